"""Right solutions of chapter 08, written differently. The check must accept every one."""

import torch
import triton
import triton.language as tl


@triton.jit
def load_tile(X, rows, cols, n_rows, n_cols):
    at = rows[:, None].to(tl.int64) * n_cols + cols[None, :]
    return tl.load(X + at, mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols), other=0.0)


@triton.jit
def store_tile(X, rows, cols, n_rows, n_cols, tile):
    at = rows[:, None].to(tl.int64) * n_cols + cols[None, :]
    mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    tl.store(X + at, tile.to(X.dtype.element_ty), mask=mask)


def lanes(D):
    return max(16, triton.next_power_of_2(D))


# -- 08.1 ----------------------------------------------------------------------------------------------------------
@triton.jit
def delta_course(O, DO, DLSE, DELTA, Sq, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    bh = tl.program_id(1)
    rows, d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    o = load_tile(O + bh * Sq * D, rows, d, Sq, D).to(tl.float32)
    do = load_tile(DO + bh * Sq * D, rows, d, Sq, D).to(tl.float32)
    dlse = tl.load(DLSE + bh * Sq + rows, mask=rows < Sq, other=0.0)
    tl.store(DELTA + bh * Sq + rows, tl.sum(o * do, 1) - dlse, mask=rows < Sq)


@triton.jit
def delta_by_columns(O, DO, DLSE, DELTA, Sq, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """One feature after the other, no tile."""
    bh, rows = tl.program_id(1), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at, inside = (bh * Sq + rows) * D, rows < Sq
    total = -tl.load(DLSE + bh * Sq + rows, mask=inside, other=0.0)
    for c in tl.range(0, D):
        o = tl.load(O + at + c, mask=inside, other=0.0).to(tl.float32)
        total += o * tl.load(DO + at + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(DELTA + bh * Sq + rows, total, mask=inside)


@triton.jit
def delta_turned(O, DO, DLSE, DELTA, Sq, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """Tiles with features as rows; only one of the two loads is filled with zeros."""
    first = tl.program_id(1).to(tl.int64) * Sq
    rows, d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[None, :], tl.arange(0, BLOCK_D)[:, None]
    mask = (d < D) & (rows < Sq)
    o = tl.load(O + (first + rows) * D + d, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(DO + (first + rows) * D + d, mask=mask, other=1.0).to(tl.float32)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    delta = tl.sum(do * o, 0) - tl.load(DLSE + first + row, mask=row < Sq, other=7.0)
    tl.store(DELTA + first + row, delta, mask=row < Sq)


def delta_with(kernel, block):
    def delta(o, do, dlse):
        (B, H, Sq, D), out = o.shape, torch.empty(o.shape[:3], dtype=torch.float32)
        kernel[(triton.cdiv(Sq, block), B * H)](o, do, dlse, out, Sq, D=D, BLOCK_D=lanes(D), BLOCK_M=block)
        return out

    return delta


# -- 08.2 ----------------------------------------------------------------------------------------------------------
@triton.jit
def dkdv_course(
    Q, K, V, DO, LSE, DELTA, DK, DV, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    j0, bh = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    Q, DO, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V, DK, DV = K + bh * Sk * D, V + bh * Sk * D, DK + bh * Sk * D, DV + bh * Sk * D
    cols, d = j0 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(j0 - (Sk - Sq), 0) // BLOCK_M * BLOCK_M
    for i0 in tl.range(first, Sq, BLOCK_M):
        rows = i0 + tl.arange(0, BLOCK_M)
        q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
        lse = tl.load(LSE + rows, mask=rows < Sq, other=float("inf"))
        delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
        p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None])
        if CAUSAL:
            p = tl.where(cols[None, :] <= rows[:, None] + (Sk - Sq), p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    store_tile(DK, cols, d, Sk, D, dk * scale)
    store_tile(DV, cols, d, Sk, D, dv)


@triton.jit
def dkdv_turned(
    Q, K, V, DO, LSE, DELTA, DK, DV, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys by queries from the start, so nothing is turned later; base 2; lse of blind rows is +inf; tiles upward."""
    j0, bh = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    Q, DO, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V, DK, DV = K + bh * Sk * D, V + bh * Sk * D, DK + bh * Sk * D, DV + bh * Sk * D
    cols, d = j0 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(j0 + Sq - Sk, 0) // BLOCK_M
    last = tl.cdiv(Sq, BLOCK_M)
    for n in tl.range(first, last):
        rows = (last - 1 - (n - first)) * BLOCK_M + tl.arange(0, BLOCK_M)
        q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
        lse = tl.load(LSE + rows, mask=rows < Sq, other=0.0)
        lse = tl.where(lse == float("-inf"), float("inf"), lse) * 1.4426950408889634
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * 1.4426950408889634)
        see = (cols[:, None] < Sk) & (rows[None, :] < Sq)
        if CAUSAL:
            see = see & (cols[:, None] - rows[None, :] <= Sk - Sq)
        p = tl.exp2(tl.where(see, s, float("-inf")) - lse[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - tl.load(DELTA + rows, mask=rows < Sq, other=0.0)[None, :]) * scale
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    store_tile(DK, cols, d, Sk, D, dk)
    store_tile(DV, cols, d, Sk, D, dv)


@triton.jit
def dkdv_two_loops(
    Q, K, V, DO, LSE, DELTA, DK, DV, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Masked tiles in one loop, full ones in another; the step in a function of its own."""
    j0, bh = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    Q, DO, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V, DK, DV = K + bh * Sk * D, V + bh * Sk * D, DK + bh * Sk * D, DV + bh * Sk * D
    cols, d, shift = j0 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), Sk - Sq
    k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first, full = 0, 0
    if CAUSAL:
        first = tl.maximum(j0 - shift, 0) // BLOCK_M * BLOCK_M
        full = tl.cdiv(tl.maximum(tl.minimum(j0 + BLOCK_N, Sk) - 1 - shift, 0), BLOCK_M) * BLOCK_M
        full = tl.minimum(full, tl.cdiv(Sq, BLOCK_M) * BLOCK_M)
    for i0 in tl.range(first, full, BLOCK_M):
        dk, dv = _step(Q, DO, LSE, DELTA, k, v, dk, dv, i0 + tl.arange(0, BLOCK_M), cols, d, Sq, D, shift, scale, True)
    for i0 in tl.range(full, Sq, BLOCK_M):
        dk, dv = _step(Q, DO, LSE, DELTA, k, v, dk, dv, i0 + tl.arange(0, BLOCK_M), cols, d, Sq, D, shift, scale, False)
    store_tile(DK, cols, d, Sk, D, dk)
    store_tile(DV, cols, d, Sk, D, dv)


@triton.jit
def _step(Q, DO, LSE, DELTA, k, v, dk, dv, rows, cols, d, Sq, D, shift, scale, MASKED: tl.constexpr):
    q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
    lse = tl.load(LSE + rows, mask=rows < Sq, other=float("inf"))
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        s = tl.where(cols[None, :] > rows[:, None] + shift, float("-inf"), s)
        lse = tl.where(lse == float("-inf"), 0.0, lse)
    p = tl.exp(s - lse[:, None])
    delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
    ds = p * tl.dot(do, tl.trans(v), input_precision="ieee") - p * delta[:, None]
    dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
    dk += scale * tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    return dk, dv


def dkdv_with(kernel, rows=16, keys=16):
    def dkdv(q, k, v, do, lse, delta, scale, causal=False):
        (B, H, Sq, D), Sk, dk, dv = q.shape, k.shape[2], torch.empty_like(k), torch.empty_like(v)
        sizes = {"D": D, "BLOCK_D": lanes(D), "BLOCK_M": rows, "BLOCK_N": keys}
        grid = (triton.cdiv(Sk, keys), B * H)
        kernel[grid](q, k, v, do, lse, delta, dk, dv, Sq, Sk, scale, CAUSAL=causal, **sizes)
        return dk, dv

    return dkdv


# -- 08.3 ----------------------------------------------------------------------------------------------------------
@triton.jit
def dq_course(
    Q, K, V, DO, LSE, DELTA, DQ, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i0, bh = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    Q, DO, DQ, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, DQ + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V = K + bh * Sk * D, V + bh * Sk * D
    rows, d = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
    lse = tl.load(LSE + rows, mask=rows < Sq, other=float("inf"))
    delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    stop = Sk
    if CAUSAL:
        stop = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + Sk - Sq, 0), Sk)
    for j0 in tl.range(0, stop, BLOCK_N):
        cols = j0 + tl.arange(0, BLOCK_N)
        k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
        see = cols[None, :] < Sk
        if CAUSAL:
            see = see & (cols[None, :] <= rows[:, None] + (Sk - Sq))
        p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None])
        p = tl.where(see, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_tile(DQ, rows, d, Sq, D, dq * scale)


@triton.jit
def dq_base_2(
    Q, K, V, DO, LSE, DELTA, DQ, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Base 2, scores hidden as −inf, lse of blind rows +inf, scale in each dS."""
    i0, bh = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    rows, d = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q, do = load_tile(Q + bh * Sq * D, rows, d, Sq, D), load_tile(DO + bh * Sq * D, rows, d, Sq, D)
    lse = tl.load(LSE + bh * Sq + rows, mask=rows < Sq, other=0.0) * 1.4426950408889634
    lse = tl.where(lse == float("-inf"), float("inf"), lse)[:, None]
    delta = tl.load(DELTA + bh * Sq + rows, mask=rows < Sq, other=0.0)[:, None]
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    count = tl.cdiv(Sk, BLOCK_N)
    if CAUSAL:
        count = tl.cdiv(tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + Sk - Sq, 0), Sk), BLOCK_N)
    for n in tl.range(0, count):
        cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
        k, v = load_tile(K + bh * Sk * D, cols, d, Sk, D), load_tile(V + bh * Sk * D, cols, d, Sk, D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        hidden = (cols[None, :] >= Sk) | (rows[:, None] >= Sq)
        if CAUSAL:
            hidden = hidden | (cols[None, :] > rows[:, None] + Sk - Sq)
        p = tl.exp2(tl.where(hidden, float("-inf"), s) - lse)
        ds = scale * p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    store_tile(DQ + bh * Sq * D, rows, d, Sq, D, dq)


@triton.jit
def dq_reverse(
    Q, K, V, DO, LSE, DELTA, DQ, Sq, Sk, scale, CAUSAL: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys in reverse, scores turned (keys by queries), the sum too; ds masked instead of p."""
    i0, bh = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    Q, DO, DQ, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, DQ + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V = K + bh * Sk * D, V + bh * Sk * D
    rows, d = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q, do = tl.trans(load_tile(Q, rows, d, Sq, D)), tl.trans(load_tile(DO, rows, d, Sq, D))
    lse = tl.load(LSE + rows, mask=rows < Sq, other=0.0)
    delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
    dqt = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    stop = Sk
    if CAUSAL:
        stop = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + Sk - Sq, 0), Sk)
    count = tl.cdiv(stop, BLOCK_N)
    for n in tl.range(0, count):
        cols = (count - 1 - n) * BLOCK_N + tl.arange(0, BLOCK_N)
        k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
        see = (cols[:, None] < Sk) & (rows[None, :] < Sq)
        if CAUSAL:
            see = see & (cols[:, None] <= rows[None, :] + (Sk - Sq))
        p = tl.exp(tl.dot(k, q, input_precision="ieee") * scale - lse[None, :])
        ds = tl.where(see, p * (tl.dot(v, do, input_precision="ieee") - delta[None, :]), 0.0)
        dqt += tl.dot(tl.trans(k), ds.to(k.dtype), input_precision="ieee")
    store_tile(DQ, rows, d, Sq, D, tl.trans(dqt) * scale)


def dq_with(kernel, rows=16, keys=16):
    def dq(q, k, v, do, lse, delta, scale, causal=False):
        (B, H, Sq, D), Sk, out = q.shape, k.shape[2], torch.empty_like(q)
        sizes = {"D": D, "BLOCK_D": lanes(D), "BLOCK_M": rows, "BLOCK_N": keys}
        kernel[(triton.cdiv(Sq, rows), B * H)](q, k, v, do, lse, delta, out, Sq, Sk, scale, CAUSAL=causal, **sizes)
        return out

    return dq


# -- 08.4 ----------------------------------------------------------------------------------------------------------
class Course(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, causal, kernels):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        o, lse = kernels.forward(q, k, v, scale, causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.rest = scale, causal, kernels
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        scale, causal, kernels = ctx.rest
        do, dq, dk, dv = do.contiguous(), None, None, None
        given = q, k, v, do, lse, kernels.delta(o, do, dlse.contiguous()), scale, causal
        if ctx.needs_input_grad[0]:
            dq = kernels.dq(*given)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dk, dv = kernels.dkdv(*given)
        return dq, dk, dv, None, None, None


class Bare(torch.autograd.Function):
    """Contiguous in backward only; grads not materialized; once differentiable."""

    @staticmethod
    def forward(ctx, q, k, v, *rest):
        o, lse = rest[-1].forward(q, k, v, *rest[:-1])
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.set_materialize_grads(False)
        ctx.rest = rest
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = (x.contiguous() for x in ctx.saved_tensors)
        scale, causal, kernels = ctx.rest
        do = torch.zeros_like(o) if do is None else do.contiguous()
        delta = kernels.delta(o, do, torch.zeros_like(lse) if dlse is None else dlse.contiguous())
        need_q, *need_kv = ctx.needs_input_grad[:3]
        dk, dv = kernels.dkdv(q, k, v, do, lse, delta, scale, causal=causal) if any(need_kv) else (None, None)
        dq = kernels.dq(q, k, v, do, lse, delta, scale, causal=causal) if need_q else None
        return dq, dk if need_kv[0] else None, dv if need_kv[1] else None, None, None, None


class Apart(torch.autograd.Function):
    """setup_context; contiguous before the function is applied."""

    @staticmethod
    def forward(q, k, v, scale, causal, kernels):
        return tuple(x.clone(memory_format=torch.contiguous_format) for x in kernels.forward(q, k, v, scale, causal))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.scale, ctx.causal, ctx.kernels = inputs[3:]

    @staticmethod
    def backward(ctx, *grads):
        q, k, v, o, lse = ctx.saved_tensors
        do, dlse = (x.clone(memory_format=torch.contiguous_format) for x in grads)
        delta, out = ctx.kernels.delta(o, do, dlse), [None] * 6
        if any(ctx.needs_input_grad[1:3]):
            out[1], out[2] = ctx.kernels.dkdv(q, k, v, do, lse, delta, ctx.scale, ctx.causal)
        if ctx.needs_input_grad[0]:
            out[0] = ctx.kernels.dq(q, k, v, do, lse, delta, ctx.scale, ctx.causal)
        return tuple(out)


def flash_course(q, k, v, scale, causal, kernels):
    return Course.apply(q, k, v, scale, causal, kernels)


def flash_bare(q, k, v, scale, causal, kernels):
    return Bare.apply(q, k, v, scale, causal, kernels)


def flash_apart(q, k, v, scale, causal, kernels):
    return Apart.apply(*(x.contiguous() for x in (q, k, v)), scale, causal, kernels)


RIGHT = {
    "08.1": {
        "the course's": delta_with(delta_course, 16),
        "feature after feature": delta_with(delta_by_columns, 16),
        "features as rows": delta_with(delta_turned, 16),
        "tiles of 32 rows": delta_with(delta_course, 32),
    },
    "08.2": {
        "the course's": dkdv_with(dkdv_course),
        "turned scores, base 2, upward": dkdv_with(dkdv_turned),
        "two loops": dkdv_with(dkdv_two_loops),
    },
    "08.3": {
        "the course's": dq_with(dq_course),
        "base 2": dq_with(dq_base_2),
        "turned scores, in reverse": dq_with(dq_reverse),
    },
    "08.4": {
        "the course's": flash_course,
        "nothing materialized": flash_bare,
        "contiguous before it is applied": flash_apart,
    },
}
