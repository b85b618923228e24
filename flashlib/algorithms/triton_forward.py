"""FlashAttention's forward as one Triton kernel. FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithm 1.

One program computes BLOCK_M rows of one head. It loads its queries once, then streams the keys and values past them,
BLOCK_N at a time, carrying (m, l, acc). Read `_attend_tile` first: it is chapter 03's merge law, one tile at a time.
Scores are kept in units of log2, because the hardware's exponential is 2ˣ: ``scale_log2`` = scale · log2(e).
"""

import triton
import triton.language as tl

from flashlib.algorithms.triton_tile import (
    INFINITY,
    finite,
    first_bad_row,
    has_bad,
    kept,
    load_next,
    load_tile,
    locate,
    store_tile,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32's finite numbers


@triton.jit
def _attend_tile(
    acc, m, l, q, K, V, k_strides, v_strides, rows, j0, d, dv, Sk, shift, scale_log2, seed, threshold, b, h,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Merge one tile of keys and values into the state (m, l, acc) of BLOCK_M rows."""
    cols = j0 + tl.arange(0, BLOCK_N)
    k = load_next(K, k_strides, j0, d, Sk, D, BLOCK_N, MASKED)  # HBM → SRAM: BLOCK_N · D elements
    s = tl.dot(q, tl.trans(k), input_precision="ieee")  # float32; "ieee": float32 inputs are not cut to TF32
    if MASKED:  # the ragged edge and the diagonal; full tiles are spared the comparison
        seen = cols[None, :] < Sk
        if CAUSAL:
            seen = seen & (cols[None, :] <= rows[:, None] + shift)
        s = tl.where(seen, s * scale_log2, -INFINITY)
        m_new = tl.maximum(m, tl.max(s, 1))
    else:
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)  # the largest raw score is the largest: scale_log2 ≥ 0
        s = s * scale_log2
    p = tl.exp2(s - m_new[:, None])
    shrink = tl.exp2(m - m_new)  # what was summed so far was measured against the old maximum
    l = l * shrink + tl.sum(p, 1)
    if DROPOUT:  # after the row sum; the survivors are divided by 1 − p once, at the end
        p = tl.where(kept(seed, threshold, b, h, rows[:, None], cols[None, :]), p, 0.0)
    v = load_next(V, v_strides, j0, dv, Sk, DV, BLOCK_N, MASKED)  # HBM → SRAM: BLOCK_N · DV elements
    acc = acc * shrink[:, None]
    if MASKED:
        if has_bad(v):  # 0 · NaN = NaN: a weight of 0 does not stop it. Mark the rows that see it, then clear it.
            last_seen = tl.minimum(rows + shift, Sk - 1) if CAUSAL else rows * 0 + Sk - 1
            acc = tl.where(first_bad_row(v, cols, Sk)[None, :] <= last_seen[:, None], float("nan"), acc)
            v = tl.where(finite(v), v, 0.0)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
    return acc, m_new, l


@triton.jit
def forward_kernel(
    Q, K, V, O, LSE, q_strides, k_strides, v_strides, o_strides, H, GROUP, Sq, Sk, scale_log2, seed, threshold,
    inverse_keep, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, NEGATE: tl.constexpr,
):  # fmt: skip
    """o and lse for one tile of rows of one head. The grid is one-dimensional: tile fastest, then head, then batch."""
    n_tiles = tl.cdiv(Sq, BLOCK_M)
    tile, bh = tl.program_id(0) % n_tiles, tl.program_id(0) // n_tiles
    if CAUSAL:
        tile = n_tiles - 1 - tile  # the last rows see the most keys: start the longest programs first
    b, h = bh // H, bh % H
    Q, O = locate(Q, q_strides, b, h), locate(O, o_strides, b, h)
    K, V = locate(K, k_strides, b, h // GROUP), locate(V, v_strides, b, h // GROUP)
    LSE += bh.to(tl.int64) * Sq

    i0 = tile * BLOCK_M
    rows = i0 + tl.arange(0, BLOCK_M)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = load_tile(Q, q_strides, rows, d, Sq, D)  # HBM → SRAM, once: BLOCK_M · D elements
    if NEGATE:  # a negative scale is a positive one with −q, which is exact; then the largest score stays the largest
        q = -q
    # m is finite from the start: a row that has seen no key has p = exp2(−inf − m) = 0, and never −inf − (−inf) = NaN
    m = tl.full([BLOCK_M], LOWEST, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)

    shift = Sk - Sq  # causal, aligned to the bottom right: row i sees keys j ≤ i + shift
    seen_by_all, seen_by_some = Sk, Sk
    if CAUSAL:
        seen_by_all = tl.minimum(tl.maximum(i0 + 1 + shift, 0), Sk)
        seen_by_some = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + shift, 0), Sk)
    full = seen_by_all // BLOCK_N * BLOCK_N
    for j0 in tl.range(0, full, BLOCK_N):
        acc, m, l = _attend_tile(
            acc, m, l, q, K, V, k_strides, v_strides, rows, j0, d, dv, Sk, shift, scale_log2, seed, threshold, b, h,
            D, DV, BLOCK_N, False, CAUSAL, DROPOUT,
        )  # fmt: skip
    for j0 in tl.range(full, seen_by_some, BLOCK_N, num_stages=1):  # one or two tiles: a pipeline costs registers
        acc, m, l = _attend_tile(
            acc, m, l, q, K, V, k_strides, v_strides, rows, j0, d, dv, Sk, shift, scale_log2, seed, threshold, b, h,
            D, DV, BLOCK_N, True, CAUSAL, DROPOUT,
        )  # fmt: skip

    lse = m * 0.6931471805599453 + tl.log(l)  # from log2 to natural log; −inf for a row that saw no key
    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # the one division
    if DROPOUT:
        o *= inverse_keep
    store_tile(O, o_strides, rows, dv, Sq, DV, o)  # SRAM → HBM: BLOCK_M · DV elements
    tl.store(LSE + rows, tl.where(l == 0.0, -INFINITY, lse), mask=rows < Sq)
