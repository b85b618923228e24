"""FlashAttention's backward as three Triton kernels. FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithm 2.

First `delta_kernel`, one number a row. Then `dkdv_kernel`: a program keeps one tile of keys and streams the queries
past it; and `dq_kernel`: a program keeps one tile of queries and streams the keys past it. Both compute each tile of P
again from q, k and lse. No program writes where another does: nothing is atomic, and every run gives the same bits.

In 16 bits each has two loops. The fast one takes the tiles in which every row sees every key, and looks at nothing. The
careful one takes the diagonal and the edges: it masks, clears numbers that are not finite, and keeps dS in float16's
range. Where the fast loop ended in a NaN or inf, which may be due or not, its tiles go through the careful one again.
In float32, whose dots are multiply-adds, a second loop would cost more registers than it spares instructions.
"""

import triton
import triton.language as tl

from flashlib.algorithms.triton_tile import (
    INFINITY,
    finite,
    has_bad,
    kept,
    last_bad_row,
    load_next,
    load_tile,
    locate,
    spoiled,
    store_tile,
)


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
    q, k, v, do, lse, delta, rows, cols, Sq, Sk, shift, scale_log2, seed, threshold, inverse_keep, b, h,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """One tile of keep ∘ P and of dS = P ∘ (Z ∘ dP − delta), Z = keep / (1 − p); P recomputed as exp2(S − lse).

    lse, delta and rows are columns, cols is a row. All swapped, q with k and do with v too, both tiles come transposed.
    """
    p = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - lse)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    kp = p
    if DROPOUT:  # multiplied: where P is NaN, a dropped place is NaN too
        keep = kept(seed, threshold, b, h, rows, cols).to(tl.float32)
        kp, dp = p * keep, dp * (keep * inverse_keep)
    ds = p * (dp - delta)
    if MASKED:  # replaced, not multiplied: 0 · NaN would let a bad number of a hidden key or row through
        seen = (cols < Sk) & (rows < Sq)
        if CAUSAL:
            seen = seen & (cols <= rows + shift)
        kp, ds = tl.where(seen, kp, 0.0), tl.where(seen, ds, 0.0)
    return kp, ds


@triton.jit
def _add_product(acc, ds, x, CAREFUL: tl.constexpr):
    """acc + dS · x. Where dS would pass float16's 65 504, its row is counted in a unit, a power of two, and back."""
    if CAREFUL:
        if x.dtype == tl.float16:
            unit = tl.exp2(tl.maximum(tl.ceil(tl.log2(tl.max(tl.abs(ds), 1))) - 15.0, 0.0))
            inverse = (1.0 / unit)[:, None]
            return tl.dot((ds * inverse).to(x.dtype), x, acc * inverse, input_precision="ieee") * unit[:, None]
    return tl.dot(ds.to(x.dtype), x, acc, input_precision="ieee")


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, Q, DO, LSE, DELTA, q_strides, do_strides, i0, cols, d, e, H, Sq, Sk, shift, scale_log2, seed,
    threshold, inverse_keep, b, h, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    CAREFUL: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries of head h gives to dk and dv of this tile of keys."""
    rows, row_at = i0 + tl.arange(0, BLOCK_M), (b * H + h).to(tl.int64) * Sq
    q = load_next(locate(Q, q_strides, b, h), q_strides, i0, d, Sq, D, BLOCK_M, CAREFUL)
    do = load_next(locate(DO, do_strides, b, h), do_strides, i0, e, Sq, DV, BLOCK_M, CAREFUL)
    if NEGATE:
        q = -q
    lse, delta = load_rows(LSE + row_at, DELTA + row_at, rows, Sq)
    if CAREFUL:
        if tl.sum((lse + delta) * 0.0, 0) != 0.0:  # a bad q or dO shows in lse or delta, and so in P and dS
            q, do = tl.where(finite(q), q, 0.0), tl.where(finite(do), do, 0.0)
    kp, ds = p_and_ds(  # transposed, keys by queries, as the products below take them
        k, q, do, v, lse[None, :], delta[None, :], rows[None, :], cols[:, None], Sq, Sk, shift, scale_log2, seed,
        threshold, inverse_keep, b, h, CAREFUL, CAUSAL, DROPOUT,
    )  # fmt: skip
    dv = tl.dot(kp.to(do.dtype), do, dv, input_precision="ieee")
    dk = _add_product(dk, ds, q, CAREFUL)
    return dk, dv


@triton.jit
def _mark_bad_do(
    dv, DO, do_strides, first, end, cols, e, b, hkv, GROUP, Sq, Sk, shift,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """NaN in the dv of every key that a row with a bad dO sees."""
    last = e * 0 - 1
    for g in tl.range(0, GROUP):
        for tile_m in tl.range(first, end, num_stages=1):
            rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
            do = load_tile(locate(DO, do_strides, b, hkv * GROUP + g), do_strides, rows, e, Sq, DV)
            last = tl.maximum(last, last_bad_row(do, rows))
    first_hidden = last + shift + 1 if CAUSAL else last * 0 + Sk
    return tl.where((last[None, :] >= 0) & (cols[:, None] < first_hidden[None, :]), float("nan"), dv)


@triton.jit
def dkdv_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV_, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
    H, GROUP, Sq, Sk, scale, scale_log2, seed, threshold, inverse_keep,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one KV head, summed over its query heads in float32."""
    FAST: tl.constexpr = Q.dtype.element_ty != tl.float32
    n_tiles, Hkv = tl.cdiv(Sk, BLOCK_N), H // GROUP
    tile, bh = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    b, hkv = bh // Hkv, bh % Hkv
    j0, shift = tile * BLOCK_N, Sk - Sq
    cols, d, e = j0 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    k = load_tile(locate(K, k_strides, b, hkv), k_strides, cols, d, Sk, D)  # HBM → SRAM, once
    v = load_tile(locate(V, v_strides, b, hkv), v_strides, cols, e, Sk, DV)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    # Tiles of queries: those before `first` see no key of this tile; from `full` on they see all of them, and have all
    # their rows up to `whole`. Keys past the edge need no mask: what they collect is not stored.
    first, full, whole, end = 0, 0, Sq // BLOCK_M, tl.cdiv(Sq, BLOCK_M)
    if CAUSAL:
        first = tl.maximum(j0 - shift, 0) // BLOCK_M
        full = tl.minimum(tl.cdiv(tl.maximum(tl.minimum(j0 + BLOCK_N, Sk) - 1 - shift, 0), BLOCK_M), whole)
    if FAST:
        for g in tl.range(0, GROUP):
            for tile_m in tl.range(full, whole):
                dk, dv = _dkdv_tile(
                    dk, dv, k, v, Q, DO, LSE, DELTA, q_strides, do_strides, tile_m * BLOCK_M, cols, d, e, H, Sq,
                    Sk, shift, scale_log2, seed, threshold, inverse_keep, b, hkv * GROUP + g, D, DV, BLOCK_M,
                    False, CAUSAL, DROPOUT, NEGATE,
                )  # fmt: skip
        again = spoiled(dk) | spoiled(dv)
        dk, dv, full = tl.where(again, 0.0, dk), tl.where(again, 0.0, dv), tl.where(again, whole, full)
    else:
        full = whole
    for g in tl.range(0, GROUP):
        for n in tl.range(first, full + end - whole, num_stages=1):
            tile_m = tl.where(n < full, n, whole)
            dk, dv = _dkdv_tile(
                dk, dv, k, v, Q, DO, LSE, DELTA, q_strides, do_strides, tile_m * BLOCK_M, cols, d, e, H, Sq, Sk,
                shift, scale_log2, seed, threshold, inverse_keep, b, hkv * GROUP + g, D, DV, BLOCK_M,
                True, CAUSAL, DROPOUT, NEGATE,
            )  # fmt: skip
    store_tile(locate(DK, dk_strides, b, hkv), dk_strides, cols, d, Sk, D, dk * tl.abs(scale))
    if spoiled(dk):  # a bad dO makes a NaN of each dS of its row, and so of dk
        dv = _mark_bad_do(dv, DO, do_strides, first, end, cols, e, b, hkv, GROUP, Sq, Sk, shift, DV, BLOCK_M, CAUSAL)
    if DROPOUT:
        dv *= inverse_keep
    store_tile(locate(DV_, dv_strides, b, hkv), dv_strides, cols, e, Sk, DV, dv)


@triton.jit
def _dq_tile(
    dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sq, Sk, shift, scale_log2, seed,
    threshold, inverse_keep, b, h, D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr,
    CAREFUL: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Add what one tile of keys gives to dq of this tile of queries."""
    cols = j0 + tl.arange(0, BLOCK_N)
    k = load_next(K, k_strides, j0, d, Sk, D, BLOCK_N, CAREFUL)
    v = load_next(V, v_strides, j0, e, Sk, DV, BLOCK_N, CAREFUL)
    _, ds = p_and_ds(
        q, k, v, do, lse[:, None], delta[:, None], rows[:, None], cols[None, :], Sq, Sk, shift, scale_log2, seed,
        threshold, inverse_keep, b, h, CAREFUL, CAUSAL, DROPOUT,
    )  # fmt: skip
    if CAREFUL:
        if has_bad(k):  # its dS is 0, which must stay 0, or NaN
            k = tl.where(finite(k), k, 0.0)
    return _add_product(dq, ds, k, CAREFUL)


@triton.jit
def dq_kernel(
    Q, K, V, DO, LSE, DELTA, DQ, q_strides, k_strides, v_strides, do_strides, dq_strides,
    H, GROUP, Sq, Sk, scale, scale_log2, seed, threshold, inverse_keep,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """dq of one tile of queries of one head; the loops are the forward's."""
    FAST: tl.constexpr = Q.dtype.element_ty != tl.float32
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
    full = 0
    if FAST:
        full = seen_by_all // BLOCK_N * BLOCK_N
        for j0 in tl.range(0, full, BLOCK_N):
            dq = _dq_tile(
                dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sq, Sk, shift, scale_log2,
                seed, threshold, inverse_keep, b, h, D, DV, BLOCK_N, False, CAUSAL, DROPOUT,
            )  # fmt: skip
        again = spoiled(dq)
        dq, full = tl.where(again, 0.0, dq), tl.where(again, 0, full)
    for j0 in tl.range(full, seen_by_some, BLOCK_N, num_stages=1):
        dq = _dq_tile(
            dq, q, do, lse, delta, K, V, k_strides, v_strides, rows, j0, d, e, Sq, Sk, shift, scale_log2, seed,
            threshold, inverse_keep, b, h, D, DV, BLOCK_N, True, CAUSAL, DROPOUT,
        )  # fmt: skip
    store_tile(locate(DQ, dq_strides, b, h), dq_strides, rows, d, Sq, D, dq * scale)
