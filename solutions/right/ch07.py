"""Right answers to chapter 07, each written in another way; the grader must accept all of them."""

from functools import partial

import torch
import triton
import triton.language as tl


@triton.jit
def turn(acc, m, l, q, K, V, k_strides, v_strides, rows, d, j0, Sq, Sk, scale, D: tl.constexpr, BLOCK_N: tl.constexpr,
         MASKED: tl.constexpr, CAUSAL: tl.constexpr, WAY: tl.constexpr):  # fmt: skip
    """One key tile joins the state. "normalised": acc is the output so far, divided by l."""
    cols = j0 + tl.arange(0, BLOCK_N)
    if WAY == "K loaded on its side":
        k_at = K + cols[None, :] * k_strides[2] + d[:, None] * k_strides[3]
        kt = tl.load(k_at, mask=(cols[None, :] < Sk) & (d[:, None] < D), other=0.0)
    else:
        k_at = K + cols[:, None] * k_strides[2] + d[None, :] * k_strides[3]
        kt = tl.trans(tl.load(k_at, mask=(cols[:, None] < Sk) & (d[None, :] < D), other=0.0))
    v_at = V + cols[:, None] * v_strides[2] + d[None, :] * v_strides[3]
    v = tl.load(v_at, mask=(cols[:, None] < Sk) & (d[None, :] < D), other=0.0)
    if WAY == "all in float32":
        s = tl.dot(q.to(tl.float32), kt.to(tl.float32), input_precision="ieee") * scale
        v = v.to(tl.float32)
    elif WAY == "scores on their side":
        s = tl.trans(tl.dot(tl.trans(kt), tl.trans(q), input_precision="ieee")) * scale
    else:
        s = tl.dot(q, kt, input_precision="ieee") * scale
    if WAY == "base 2":
        s = s * 1.4426950408889634
    seen = (cols[None, :] < Sk) & (rows[:, None] >= 0)
    if MASKED:
        if CAUSAL:
            seen = seen & (cols[None, :] <= rows[:, None] + Sk - Sq)
        s = tl.where(seen, s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    if WAY == "base 2":
        p, shrink = tl.exp2(s - m_safe[:, None]), tl.exp2(m - m_safe)
    elif WAY == "weights set to 0 by hand":
        p, shrink = tl.where(seen, tl.exp(s - m_safe[:, None]), 0.0), tl.where(l > 0, tl.exp(m - m_safe), 0.0)
    else:
        p, shrink = tl.exp(s - m_safe[:, None]), tl.exp(m - m_safe)
    l_new = l * shrink + tl.sum(p, 1)
    if WAY == "normalised in every turn":
        by = tl.where(l_new == 0.0, 1.0, l_new)
        acc = acc * (l * shrink / by)[:, None] + tl.dot((p / by[:, None]).to(v.dtype), v, input_precision="ieee")
    elif WAY == "added outside the dot":
        acc = acc * shrink[:, None]
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
    else:
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, m_new, l_new


@triton.jit
def kernel(Q, K, V, O, LSE, q_strides, k_strides, v_strides, o_strides, H, GROUP, Sq, Sk, scale, D: tl.constexpr,
           BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
           WITH_LSE: tl.constexpr, WAY: tl.constexpr):  # fmt: skip
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    Q, O = Q + b * q_strides[0] + h * q_strides[1], O + b * o_strides[0] + h * o_strides[1]
    K, V = K + b * k_strides[0] + h // GROUP * k_strides[1], V + b * v_strides[0] + h // GROUP * v_strides[1]
    i0 = tl.program_id(0) * BLOCK_M
    if WAY == "longest first":
        i0 = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    rows, d = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < Sq) & (d[None, :] < D)
    q = tl.load(Q + rows[:, None] * q_strides[2] + d[None, :] * q_strides[3], mask=inside, other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    by_all, by_some = Sk, Sk
    if CAUSAL:
        by_all = tl.minimum(tl.maximum(i0 + 1 + Sk - Sq, 0), Sk)
        by_some = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + Sk - Sq, 0), Sk)
    if WAY == "two loops":
        full = by_all // BLOCK_N * BLOCK_N
        for j0 in tl.range(0, full, BLOCK_N):
            acc, m, l = turn(acc, m, l, q, K, V, k_strides, v_strides, rows, d, j0, Sq, Sk, scale, D, BLOCK_N,
                             False, CAUSAL, WAY)  # fmt: skip
        for j0 in tl.range(full, by_some, BLOCK_N):
            acc, m, l = turn(acc, m, l, q, K, V, k_strides, v_strides, rows, d, j0, Sq, Sk, scale, D, BLOCK_N,
                             True, CAUSAL, WAY)  # fmt: skip
    else:
        n = tl.cdiv(by_some, BLOCK_N)
        for t in tl.range(0, n):
            j0 = t * BLOCK_N
            if WAY == "keys in reverse":
                j0 = (n - 1 - t) * BLOCK_N
            acc, m, l = turn(acc, m, l, q, K, V, k_strides, v_strides, rows, d, j0, Sq, Sk, scale, D, BLOCK_N,
                             True, CAUSAL, WAY)  # fmt: skip
    o = acc
    if WAY != "normalised in every turn":
        o = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(O + rows[:, None] * o_strides[2] + d[None, :] * o_strides[3], o.to(O.dtype.element_ty), mask=inside)
    if WITH_LSE:
        lse = tl.where(l > 0, m + tl.log(l), float("-inf"))
        if WAY == "base 2":
            lse = (m + tl.log2(l)) * 0.6931471805599453
        tl.store(LSE + tl.program_id(1) * Sq + rows, lse, mask=rows < Sq)


def forward(q, k, v, causal=False, scale=None, *, way, with_lse=True):
    (B, H, Sq, D), Hkv, Sk = q.shape, k.shape[1], k.shape[2]
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, H, Sq, dtype=torch.float32)
    kernel[(triton.cdiv(Sq, 16), B * H)](
        q, k, v, o, lse, q.stride(), k.stride(), v.stride(), o.stride(), H, H // Hkv, Sq, Sk,
        D**-0.5 if scale is None else scale, D, max(16, triton.next_power_of_2(D)), 16, 16, CAUSAL=causal,
        WITH_LSE=with_lse, WAY=way,
    )  # fmt: skip
    return (o, lse) if with_lse else o


def one_head(q, k, v, scale=None, *, way, causal=False):
    return forward(q[None, None], k[None, None], v[None, None], causal, scale, way=way, with_lse=False)[0, 0]


@triton.jit
def plain_tile(Q, K, V, O, q_strides, k_strides, v_strides, o_strides, scale, BLOCK: tl.constexpr, D: tl.constexpr,
               WAY: tl.constexpr):  # fmt: skip
    """07.1 without any mask. "divided first": the weights add up to 1 before the second dot."""
    rows, d = tl.arange(0, BLOCK), tl.arange(0, D)
    q = tl.load(Q + rows[:, None] * q_strides[0] + d[None, :] * q_strides[1])
    k = tl.load(K + rows[:, None] * k_strides[0] + d[None, :] * k_strides[1])
    v = tl.load(V + rows[:, None] * v_strides[0] + d[None, :] * v_strides[1])
    if WAY == "q scaled first":
        s = tl.dot(q * scale, tl.trans(k), input_precision="ieee")
    else:
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    p = tl.exp(s - tl.max(s, 1)[:, None])
    if WAY == "divided first":
        o = tl.dot(p / tl.sum(p, 1)[:, None], v, input_precision="ieee")
    else:
        o = tl.dot(p, v, input_precision="ieee") / tl.sum(p, 1)[:, None]
    tl.store(O + rows[:, None] * o_strides[0] + d[None, :] * o_strides[1], o)


def one_tile(q, k, v, scale=None, *, way):
    o = torch.empty(q.shape, dtype=q.dtype)
    D = q.shape[1]
    scale = D**-0.5 if scale is None else scale
    plain_tile[(1,)](q, k, v, o, q.stride(), k.stride(), v.stride(), o.stride(), scale, 16, D, WAY=way)
    return o


LOOP = (
    "one loop, every tile masked", "two loops", "base 2", "normalised in every turn", "keys in reverse",
    "K loaded on its side", "scores on their side", "added outside the dot", "weights set to 0 by hand",
)  # fmt: skip
RIGHT = {
    "07.1": {way: partial(one_tile, way=way) for way in ("the course's", "divided first", "q scaled first")}
    | {way: partial(one_head, way=way) for way in ("base 2", "scores on their side", "K loaded on its side")},
    "07.2": {way: partial(one_head, way=way) for way in LOOP},
    "07.3": {way: partial(one_head, way=way) for way in LOOP},
    "07.4": {way: partial(one_head, way=way, causal=True) for way in (*LOOP, "longest first")},
    "07.5": {way: partial(forward, way=way) for way in (*LOOP, "longest first", "all in float32")},
}
