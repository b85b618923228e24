"""Flash-Decoding as two Triton kernels: every program attends to one part of the keys, then the parts are merged.

``table`` may map a sequence's keys to pages of a shared pool (`flashlib.algorithms.paged`): key j of sequence b then
lies at place j % PAGE of page table[b, j // PAGE]. Without pages the kernel reads a cache (B, Hkv, S, D).
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad

from flashlib.algorithms.decode_tiles import choose
from flashlib.algorithms.triton_attention import interpreting, multiplies_bfloat16, on_device
from flashlib.algorithms.triton_tile import INFINITY

LOG2E = math.log2(math.e)


@triton.jit
def split_kernel(
    Q, K, V, LENGTHS, TABLE, O, LSE, q_strides, k_strides, v_strides, table_stride, Hkv, GROUP, Sq, CHUNK, SPLITS,
    scale_log2, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """o (divided) and lse of one part of the keys, for the rows of one KV head: GROUP query heads × Sq positions.

    O is (SPLITS, B, Hkv, GROUP·Sq, DV) and LSE (SPLITS, B, Hkv, GROUP·Sq), both float32 and contiguous. The grid is
    one-dimensional: split fastest, then tile of rows, then KV head, then batch.
    """
    n_rows = GROUP * Sq
    n_tiles = tl.cdiv(n_rows, BLOCK_R)
    pid = tl.program_id(0)
    split, tile, bh = pid % SPLITS, pid // SPLITS % n_tiles, pid // SPLITS // n_tiles
    b, hkv = bh // Hkv, bh % Hkv
    r = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    # row r is position r % Sq of query head r // Sq of this group: its keys are loaded once for all of them
    head, i = hkv * GROUP + r // Sq, r % Sq
    at = b.to(tl.int64) * q_strides[0] + head.to(tl.int64) * q_strides[1] + i.to(tl.int64) * q_strides[2]
    here = r < n_rows
    q = tl.load(Q + at[:, None] + d[None, :].to(tl.int64) * q_strides[3], here[:, None] & (d[None, :] < D), other=0.0)
    if NEGATE:
        q = -q
    length = tl.load(LENGTHS + b).to(tl.int32)
    last = length - Sq + i  # the last key each row sees
    m = tl.full([BLOCK_R], -INFINITY, tl.float32)
    l = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_DV], tl.float32)
    # a KV head's keys begin here; with pages the first axis of K is the page, and the batch has no axis of its own
    first = hkv.to(tl.int64)
    k_head, v_head = K + first * k_strides[1], V + first * v_strides[1]
    if PAGE == 0:
        k_head += b.to(tl.int64) * k_strides[0]
        v_head += b.to(tl.int64) * v_strides[0]
    for j0 in tl.range(split * CHUNK, tl.minimum(split * CHUNK + CHUNK, length), BLOCK_N):
        j = j0 + tl.arange(0, BLOCK_N)
        held = (j < length) & (j < split * CHUNK + CHUNK)
        k_at, v_at = j.to(tl.int64) * k_strides[2], j.to(tl.int64) * v_strides[2]
        if PAGE > 0:
            page = tl.load(TABLE + b.to(tl.int64) * table_stride + j // PAGE, held, other=0).to(tl.int64)
            k_at = page * k_strides[0] + (j % PAGE).to(tl.int64) * k_strides[2]
            v_at = page * v_strides[0] + (j % PAGE).to(tl.int64) * v_strides[2]
        k = tl.load(
            k_head + k_at[:, None] + d[None, :].to(tl.int64) * k_strides[3],
            held[:, None] & (d[None, :] < D), other=0.0,
        )  # fmt: skip
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        s = tl.where(held[None, :] & (j[None, :] <= last[:, None]), s, -INFINITY)
        m_new = tl.maximum(m, tl.max(s, 1))
        m_safe = tl.where(m_new == -INFINITY, 0.0, m_new)
        p, shrink = tl.exp2(s - m_safe[:, None]), tl.exp2(m - m_safe)
        l = l * shrink + tl.sum(p, 1)
        v = tl.load(
            v_head + v_at[:, None] + e[None, :].to(tl.int64) * v_strides[3],
            held[:, None] & (e[None, :] < DV), other=0.0,
        )  # fmt: skip
        # 0 · NaN = NaN: a value that a row does not see must not reach it, one that it sees must
        bad = tl.where(tl.abs(v) < INFINITY, 2147483647, j[:, None])
        acc = tl.where(tl.min(bad, 0)[None, :] <= last[:, None], float("nan"), acc * shrink[:, None])
        v = tl.where(tl.abs(v) < INFINITY, v, 0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new
    n_heads = tl.num_programs(0) // (SPLITS * n_tiles)  # B · Hkv
    out = (split.to(tl.int64) * n_heads + bh) * n_rows + r
    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(O + out[:, None] * DV + e[None, :], o, here[:, None] & (e[None, :] < DV))
    tl.store(LSE + out, tl.where(l == 0.0, -INFINITY, m * 0.6931471805599453 + tl.log(l)), here)


@triton.jit
def merge_kernel(O, LSE, OUT, LSE_OUT, n_rows, SPLITS, DV: tl.constexpr, BLOCK_DV: tl.constexpr):
    """Merge the parts of one row: L = log Σ exp(lse), o = Σ exp(lse − L) · o, in one pass, as chapter 03 merges."""
    row = tl.program_id(0).to(tl.int64)
    e, one = tl.arange(0, BLOCK_DV), tl.arange(0, 1)
    m, l = tl.full([1], -INFINITY, tl.float32), tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    for split in tl.range(0, SPLITS):
        at = tl.cast(split, tl.int64) * n_rows + row
        lse = tl.load(LSE + at + one)
        o = tl.load(O + at * DV + e, e < DV, other=0.0)
        m_new = tl.maximum(m, lse)
        m_safe = tl.where(m_new == -INFINITY, 0.0, m_new)
        shrink, weight = tl.exp(m - m_safe), tl.exp(lse - m_safe)
        acc, l, m = acc * shrink + weight * o, l * shrink + weight, m_new
    tl.store(OUT + row * DV + e, (acc / tl.where(l == 0.0, 1.0, l)).to(OUT.dtype.element_ty), e < DV)
    tl.store(LSE_OUT + row + one, tl.where(l == 0.0, -INFINITY, m + tl.log(l)))


def split_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, splits: int, table: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(o, lse) by the kernels. Arguments as `flashlib.decode` gives them; with ``table`` k and v are pools of pages.

    Parameters
    ----------
    q : (B, Hq, Sq, D); k : (B, Hkv, S, D), or (pages, Hkv, PAGE, D) with a table; v alike
    table : (B, pages a sequence) integers, optional

    Raises
    ------
    TypeError, ValueError
        float64; tensors that are not on a GPU while Triton is not interpreting.
    RuntimeError
        A gradient is asked for, or a forward-mode derivative.
    """
    if q.dtype == torch.float64:
        raise TypeError("decode: impl='triton' computes float16, bfloat16 and float32, got float64; use impl='torch'")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("decode: impl='triton' has no gradient; use impl='torch', or torch.no_grad()")
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v)):
        raise RuntimeError("decode: impl='triton' has no forward-mode derivative; use impl='torch'")
    if q.device.type != "cuda" and not interpreting():
        raise ValueError(
            "decode: impl='triton' needs a CUDA GPU, or TRITON_INTERPRET=1 before triton is first imported; "
            f"q is on {q.device}; use impl='torch'"
        )
    if q.dtype == torch.bfloat16 and not multiplies_bfloat16():
        o, lse = split_attention(q.float(), k.float(), v.float(), lengths, scale, splits, table)
        return o.to(q.dtype), lse
    q, k, v = (x.resolve_neg() for x in (q, k, v))  # a view may say that its numbers are to be read with a minus
    (B, Hq, Sq, D), Hkv, DV = q.shape, k.shape[1], v.shape[-1]
    page, S = (0, k.shape[2]) if table is None else (k.shape[2], table.shape[1] * k.shape[2])
    n_rows = B * Hq * Sq
    o, lse = q.new_empty(B, Hq, Sq, DV), q.new_empty(B, Hq, Sq, dtype=torch.float32)
    if not n_rows:
        return o, lse
    group = Hq // Hkv
    t = choose(q, v, group * Sq)
    lengths = lengths.to(torch.int32).contiguous()
    parts = q.new_empty(splits, n_rows, DV, dtype=torch.float32), q.new_empty(splits, n_rows, dtype=torch.float32)
    with on_device(q):
        split_kernel[(splits * triton.cdiv(group * Sq, t.block_m) * Hkv * B,)](
            q, k, v, lengths, lengths if table is None else table, *parts, q.stride(), k.stride(), v.stride(),
            0 if table is None else table.stride(0), Hkv, group, Sq, max(1, -(-S // splits)), splits,
            abs(scale) * LOG2E, D=D, DV=DV, BLOCK_D=_width(D), BLOCK_DV=_width(DV), BLOCK_R=t.block_m,
            BLOCK_N=t.block_n, PAGE=page, NEGATE=scale < 0, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        merge_kernel[(n_rows,)](*parts, o, lse, n_rows, splits, DV=DV, BLOCK_DV=_width(DV), num_warps=1)
    return o, lse


def _width(D: int) -> int:
    return max(16, triton.next_power_of_2(D))
