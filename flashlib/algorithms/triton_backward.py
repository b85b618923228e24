"""FlashAttention's backward as three Triton kernels. FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithm 2.

First `delta_kernel`, one number a row. Then `dkdv_kernel`: a program keeps one tile of keys and streams the queries
past it; and `dq_kernel`: a program keeps one tile of queries and streams the keys past it. Both compute each tile of P
again from q, k and lse. No program writes where another does: nothing is atomic, and every run gives the same bits.
"""

import triton
import triton.language as tl

from flashlib.algorithms.triton_tile import INFINITY, finite, has_bad, kept, last_bad_row, load_tile, locate, store_tile


@triton.jit
def delta_kernel(
    O, DO, DLSE, DELTA, o_strides, do_strides, dlse_strides, H, Sq,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, HAS_DLSE: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(dO ∘ O), what softmax's backward subtracts from dP; a gradient of lse enters with a minus."""
    n_tiles = tl.cdiv(Sq, BLOCK_M)
    tile, bh = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    b, h = bh // H, bh % H
    rows, dv = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_DV)
    o = load_tile(locate(O, o_strides, b, h), o_strides, rows, dv, Sq, DV).to(tl.float32)
    do = load_tile(locate(DO, do_strides, b, h), do_strides, rows, dv, Sq, DV).to(tl.float32)
    delta = tl.sum(o * do, 1)
    if HAS_DLSE:
        at = rows.to(tl.int64) * dlse_strides[2]
        delta -= tl.load(locate(DLSE, dlse_strides, b, h) + at, mask=rows < Sq, other=0.0)
    tl.store(DELTA + bh.to(tl.int64) * Sq + rows, delta, mask=rows < Sq)


@triton.jit
def load_rows(LSE, DELTA, rows, Sq):
    """lse in units of log2, and delta. Rows past the edge and rows that saw no key get lse = ∞: their P is 0."""
    lse = tl.load(LSE + rows, mask=rows < Sq, other=INFINITY)
    lse = tl.where(lse == -INFINITY, INFINITY, lse)
    return lse * 1.4426950408889634, tl.load(DELTA + rows, mask=rows < Sq, other=0.0)


@triton.jit
def p_and_ds(
    q, k, v, do, lse, delta, rows, cols, Sk, shift, scale_log2, seed, threshold, inverse_keep, b, h,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """One tile of Z ∘ P and of dS = P ∘ (Z ∘ dP − delta), P recomputed as exp2(S − lse)."""
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    seen = (cols[None, :] < Sk) & (rows[:, None] >= 0)
    if CAUSAL:
        seen = seen & (cols[None, :] <= rows[:, None] + shift)
    zp = p
    if DROPOUT:
        keep = kept(seed, threshold, b, h, rows, cols)
        zp, dp = tl.where(keep, p * inverse_keep, 0.0), tl.where(keep, dp * inverse_keep, 0.0)
    ds = p * (dp - delta[:, None])
    if MASKED:  # replaced, not multiplied: 0 · NaN would let a bad number of a hidden key or row through
        zp, ds = tl.where(seen, zp, 0.0), tl.where(seen, ds, 0.0)
    return zp, ds


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, Q, DO, LSE, DELTA, q_strides, do_strides, i0, cols, d, e, Sq, Sk, shift, scale_log2, seed, threshold,
    inverse_keep, b, h, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries gives to dk and dv of this tile of keys."""
    rows = i0 + tl.arange(0, BLOCK_M)
    q, do = load_tile(Q, q_strides, rows, d, Sq, D), load_tile(DO, do_strides, rows, e, Sq, DV)
    if NEGATE:
        q = -q
    lse, delta = load_rows(LSE, DELTA, rows, Sq)
    zp, ds = p_and_ds(
        q, k, v, do, lse, delta, rows, cols, Sk, shift, scale_log2, seed, threshold, inverse_keep, b, h,
        MASKED, CAUSAL, DROPOUT,
    )  # fmt: skip
    if MASKED:
        if has_bad(do):  # a bad dO of row i spoils the values that row i sees, and no others
            last = last_bad_row(do, rows)
            first_hidden = last + shift + 1 if CAUSAL else last * 0 + Sk
            dv = tl.where((last[None, :] >= 0) & (cols[:, None] < first_hidden[None, :]), float("nan"), dv)
            do = tl.where(finite(do), do, 0.0)
        if has_bad(q):
            q = tl.where(finite(q), q, 0.0)
    dv = tl.dot(tl.trans(zp.to(do.dtype)), do, dv, input_precision="ieee")
    dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def dkdv_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV_, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
    H, GROUP, Sq, Sk, scale, scale_log2, seed, threshold, inverse_keep,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one KV head, summed over its query heads in float32."""
    n_tiles, Hkv = tl.cdiv(Sk, BLOCK_N), H // GROUP
    tile, bh = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    b, hkv = bh // Hkv, bh % Hkv
    j0, shift = tile * BLOCK_N, Sk - Sq
    cols, d, e = j0 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    k = load_tile(locate(K, k_strides, b, hkv), k_strides, cols, d, Sk, D)  # HBM → SRAM, once
    v = load_tile(locate(V, v_strides, b, hkv), v_strides, cols, e, Sk, DV)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    first, full = 0, 0  # the first row that sees a key of this tile; the first tile of rows that see all of them
    if CAUSAL:
        first = tl.maximum(j0 - shift, 0) // BLOCK_M * BLOCK_M
        full = tl.cdiv(tl.maximum(tl.minimum(j0 + BLOCK_N, Sk) - 1 - shift, 0), BLOCK_M) * BLOCK_M
    full = tl.where(j0 + BLOCK_N > Sk, Sq, full)  # the ragged edge: every tile needs the mask
    full = tl.minimum(tl.cdiv(full, BLOCK_M), tl.cdiv(Sq, BLOCK_M)) * BLOCK_M
    for g in tl.range(0, GROUP):
        h = hkv * GROUP + g
        Qh, DOh = locate(Q, q_strides, b, h), locate(DO, do_strides, b, h)
        row_at = (b * H + h).to(tl.int64) * Sq
        for i0 in tl.range(first, full, BLOCK_M, num_stages=1):
            dk, dv = _dkdv_tile(
                dk, dv, k, v, Qh, DOh, LSE + row_at, DELTA + row_at, q_strides, do_strides, i0, cols, d, e, Sq, Sk,
                shift, scale_log2, seed, threshold, inverse_keep, b, h, D, DV, BLOCK_M, True, CAUSAL, DROPOUT, NEGATE,
            )  # fmt: skip
        for i0 in tl.range(full, Sq, BLOCK_M):
            dk, dv = _dkdv_tile(
                dk, dv, k, v, Qh, DOh, LSE + row_at, DELTA + row_at, q_strides, do_strides, i0, cols, d, e, Sq, Sk,
                shift, scale_log2, seed, threshold, inverse_keep, b, h, D, DV, BLOCK_M, False, CAUSAL, DROPOUT, NEGATE,
            )  # fmt: skip
    store_tile(locate(DK, dk_strides, b, hkv), dk_strides, cols, d, Sk, D, dk * tl.abs(scale))
    store_tile(locate(DV_, dv_strides, b, hkv), dv_strides, cols, e, Sk, DV, dv)


@triton.jit
def _dq_tile(
    dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sk, shift, scale_log2, seed, threshold,
    inverse_keep, b, h, D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add what one tile of keys gives to dq of this tile of queries."""
    cols = j0 + tl.arange(0, BLOCK_N)
    k, v = load_tile(K, k_strides, cols, d, Sk, D), load_tile(V, v_strides, cols, e, Sk, DV)
    _, ds = p_and_ds(
        q, k, v, do, lse, delta, rows, cols, Sk, shift, scale_log2, seed, threshold, inverse_keep, b, h,
        MASKED, CAUSAL, DROPOUT,
    )  # fmt: skip
    if MASKED:
        if has_bad(k):
            k = tl.where(finite(k), k, 0.0)
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit
def dq_kernel(
    Q, K, V, DO, LSE, DELTA, DQ, q_strides, k_strides, v_strides, do_strides, dq_strides,
    H, GROUP, Sq, Sk, scale, scale_log2, seed, threshold, inverse_keep,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head; the loops are the forward's."""
    n_tiles = tl.cdiv(Sq, BLOCK_M)
    tile, bh = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    if CAUSAL:
        tile = n_tiles - 1 - tile
    b, h = bh // H, bh % H
    i0, shift = tile * BLOCK_M, Sk - Sq
    rows, d, e = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = load_tile(locate(Q, q_strides, b, h), q_strides, rows, d, Sq, D)
    do = load_tile(locate(DO, do_strides, b, h), do_strides, rows, e, Sq, DV)
    if NEGATE:
        q = -q
    lse, delta = load_rows(LSE + bh.to(tl.int64) * Sq, DELTA + bh.to(tl.int64) * Sq, rows, Sq)
    K, V = locate(K, k_strides, b, h // GROUP), locate(V, v_strides, b, h // GROUP)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    seen_by_all, seen_by_some = Sk, Sk
    if CAUSAL:
        seen_by_all = tl.minimum(tl.maximum(i0 + 1 + shift, 0), Sk)
        seen_by_some = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + shift, 0), Sk)
    full = seen_by_all // BLOCK_N * BLOCK_N
    for j0 in tl.range(0, full, BLOCK_N):
        dq = _dq_tile(
            dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sk, shift, scale_log2, seed, threshold,
            inverse_keep, b, h, D, DV, BLOCK_N, False, CAUSAL, DROPOUT,
        )  # fmt: skip
    for j0 in tl.range(full, seen_by_some, BLOCK_N, num_stages=1):
        dq = _dq_tile(
            dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sk, shift, scale_log2, seed, threshold,
            inverse_keep, b, h, D, DV, BLOCK_N, True, CAUSAL, DROPOUT,
        )  # fmt: skip
    store_tile(locate(DQ, dq_strides, b, h), dq_strides, rows, d, Sq, D, dq * scale)
