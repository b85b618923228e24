"""Attention as programs for the memory machine: the four steps, kernel by kernel, and one fused flash kernel.

Both compute real numbers, for q (Nq, d), k (Nk, d), v (Nk, dv), NumPy or torch. Causal is bottom-right aligned: row i
sees keys j ≤ i + (Nk − Nq). On chip, scores and sums are kept in float32 at least, whatever the inputs' dtype; in HBM
every tensor has the inputs' dtype, except the LSE: with 16-bit inputs the four steps round S and P, as eager PyTorch
does. They are made to be counted: a NaN in a masked key still reaches o (0·NaN), which `algorithms` guards against.
Their closed forms, equal to the counts byte for byte, are in
`closed_forms`, and can be had from here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flashlib.instruments.closed_forms import (
    chip_itemsize,
    flash_by_tensor,
    flash_bytes,
    flash_sram,
    flash_theta,
    flash_tiles,
    four_steps_by_kernel,
    four_steps_bytes,
    four_steps_tiles,
    softmax_rows,
    standard_theta,
    visible_keys,
)
from flashlib.instruments.traffic import HBMTensor, MemoryMachine

__all__ = [
    "Result",
    "flash",
    "flash_by_tensor",
    "flash_bytes",
    "flash_sram",
    "flash_theta",
    "flash_tiles",
    "four_steps",
    "four_steps_by_kernel",
    "four_steps_bytes",
    "four_steps_tiles",
    "softmax_rows",
    "standard_theta",
]


class Result(NamedTuple):
    """o (Nq, dv) in the inputs' dtype, and lse (Nq,), the natural log of the row sums, or None where not asked for."""

    o: Any
    lse: Any


def four_steps(
    m: MemoryMachine,
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    block: int | tuple[int, int] | None = None,
) -> Result:
    """Attention as eager PyTorch runs it: one kernel a step, S and P (Nq, Nk) written to HBM between the kernels.

    Kernels: `QKᵀ` (a panel of Q stays on chip while K streams past: Q is read once, K once a panel), `scale`, `mask`
    (causal only; the mask comes from the indices, no mask tensor is read), `softmax` (safe: a row is read once if it
    fits in SRAM; if not, three times: maximum, sum, result), `PV` (a panel of O stays while P and V stream past).

    Parameters
    ----------
    m : the machine; its counts go on from where they stand.
    q, k, v : (Nq, d), (Nk, d), (Nk, dv) of one dtype.
    scale : default 1/√d.
    block : (rows, columns) of a tile of S, or one number for both. Default: the tallest panel that fits
        (`four_steps_tiles`), which reads K and V the fewest times.

    Returns
    -------
    Result(o, None)

    Raises
    ------
    SRAMOverflow where `block` does not fit; ValueError for shapes that do not belong together.
    """
    lib, n_q, n_k, d, dv, scale = _checked(q, k, v, scale)
    itemsize = q.dtype.itemsize
    rows, columns = four_steps_tiles(m.sram_bytes, d, dv, itemsize, block)
    device = getattr(q, "device", None)
    Q, K, V = m.hbm("Q", q), m.hbm("K", k), m.hbm("V", v)
    S, P = (m.hbm_empty(name, (n_q, n_k), q.dtype, device=device) for name in "SP")
    O = m.hbm_empty("O", (n_q, dv), q.dtype, device=device)

    with m.kernel("QKᵀ"):
        for i in _tiles(n_q, rows):
            q_i = _wide(m.load(Q, i), lib)  # HBM → SRAM: rows·d elements, once
            for j in _tiles(n_k, columns):
                k_j = _wide(m.load(K, j), lib)  # HBM → SRAM: columns·d elements, once a panel
                m.store(S, (i, j), m.put("S", q_i @ k_j.T))
    with m.kernel("scale"):
        for i in _tiles(n_q, rows):
            for j in _tiles(n_k, columns):
                m.store(S, (i, j), m.put("S", _wide(m.load(S, (i, j)), lib) * scale))
    if causal:
        with m.kernel("mask"):
            for i in _tiles(n_q, rows):
                for j in _tiles(n_k, columns):
                    s = _masked(_wide(m.load(S, (i, j)), lib), i, j, n_q, n_k, lib)
                    m.store(S, (i, j), m.put("S", s))
    with m.kernel("softmax"):
        _softmax(m, S, P, rows, columns, lib)
    with m.kernel("PV"):
        for i in _tiles(n_q, rows):
            acc = m.put("acc", _zeros(lib, (i.stop - i.start, dv), q))
            for j in _tiles(n_k, columns):
                p_ij, v_j = _wide(m.load(P, (i, j)), lib), _wide(m.load(V, j), lib)
                acc = m.put("acc", acc + p_ij @ v_j)
            m.store(O, i, acc)
    return Result(O.array, None)


def flash(
    m: MemoryMachine,
    q: Any,
    k: Any,
    v: Any,
    *,
    block_q: int,
    block_k: int,
    causal: bool = False,
    scale: float | None = None,
    lse: bool = True,
) -> Result:
    """Attention in one kernel: outer loop over tiles of Q, inner loop over tiles of K and V, nothing N×N in HBM.

    The state of a row is (m, l, acc): running maximum, running sum, unnormalised output. Key tiles that no row of the
    Q tile sees are not loaded. SRAM holds Q, K, V, S (P overwrites S), acc, m and l; the correction factor, one
    number a row, is counted as registers. FlashAttention-2 (arXiv 2307.08691), Algorithm 1.

    Parameters
    ----------
    block_q, block_k : Br and Bc, the tile sizes; `flash_tiles` gives the largest that fit.
    lse : also write lse (Nq,), float32 (float64 for float64 inputs), −∞ for rows that see no key.

    Returns
    -------
    Result(o, lse)
    """
    lib, n_q, n_k, _, dv, scale = _checked(q, k, v, scale)
    device = getattr(q, "device", None)
    Q, K, V = m.hbm("Q", q), m.hbm("K", k), m.hbm("V", v)
    O = m.hbm_empty("O", (n_q, dv), q.dtype, device=device)
    wide = _zeros(lib, (0,), q).dtype
    LSE = m.hbm_empty("LSE", (n_q,), wide, device=device) if lse else None

    with m.kernel("flash"):
        for i in _tiles(n_q, block_q):
            q_i = _wide(m.load(Q, i), lib)  # HBM → SRAM: Br·d elements, once
            n = i.stop - i.start
            top = m.put("m", _zeros(lib, (n, 1), q) - math.inf)
            total = m.put("l", _zeros(lib, (n, 1), q))
            acc = m.put("acc", _zeros(lib, (n, dv), q))
            for j in _tiles(n_k, block_k):
                if causal and j.start >= visible_keys(i.stop, n_q, n_k):
                    break  # the tile's last row sees no key from here on
                k_j = _wide(m.load(K, j), lib)  # HBM → SRAM: Bc·d elements
                s = m.put("S", (q_i @ k_j.T) * scale)
                if causal:
                    s = _masked(s, i, j, n_q, n_k, lib)
                new = lib.maximum(top, lib.amax(s, -1)[:, None])
                # A row that has seen no key keeps m = −∞; exp(−∞ − 0) = 0 then leaves l and acc at zero, without NaN.
                safe = lib.where(new == -math.inf, 0.0, new)
                p = m.put("S", lib.exp(s - safe))
                shrink = lib.exp(top - safe)  # what the rows so far lose by the new maximum
                v_j = _wide(m.load(V, j), lib)  # HBM → SRAM: Bc·dv elements
                total = m.put("l", shrink * total + lib.sum(p, -1)[:, None])
                acc = m.put("acc", shrink * acc + p @ v_j)
                top = m.put("m", new)
            seen = lib.where(total == 0, 1.0, total)
            m.store(O, i, acc / seen)  # SRAM → HBM: Br·dv elements, once
            if LSE is not None:
                m.store(LSE, i, lib.where(total == 0, -math.inf, top + lib.log(seen))[:, 0])
    return Result(O.array, None if LSE is None else LSE.array)


def _softmax(m: MemoryMachine, S: HBMTensor, P: HBMTensor, rows: int, columns: int, lib: Any) -> None:
    """Safe softmax of the rows of S, in one sweep if a row fits on chip, else in three."""
    n_q, n_k = S.shape
    whole = softmax_rows(m.sram_bytes, n_k, S.itemsize, rows)
    for i in _tiles(n_q, whole):
        s = m.put("S", _wide(m.load(S, i), lib))
        if n_k:
            top = m.put("m", _safe_max(lib.amax(s, -1)[:, None], lib))
            p = m.put("S", lib.exp(s - top))
            total = m.put("l", lib.sum(p, -1)[:, None])
            m.store(P, i, p / lib.where(total == 0, 1.0, total))
    if whole:
        return
    for i in _tiles(n_q, rows):
        tall = (i.stop - i.start, 1)
        top = m.put("m", _zeros(lib, tall, S.array) - math.inf)
        for j in _tiles(n_k, columns):  # first sweep: the maximum
            s = m.put("S", _wide(m.load(S, (i, j)), lib))
            top = m.put("m", lib.maximum(top, lib.amax(s, -1)[:, None]))
        top = m.put("m", _safe_max(top, lib))
        total = m.put("l", _zeros(lib, tall, S.array))
        for j in _tiles(n_k, columns):  # second sweep: the sum
            p = m.put("S", lib.exp(_wide(m.load(S, (i, j)), lib) - top))
            total = m.put("l", total + lib.sum(p, -1)[:, None])
        for j in _tiles(n_k, columns):  # third sweep: the result
            p = m.put("S", lib.exp(_wide(m.load(S, (i, j)), lib) - top))
            m.store(P, (i, j), p / lib.where(total == 0, 1.0, total))


# -- small things that NumPy and torch share --------------------------------------------------------------------------
def _checked(q: Any, k: Any, v: Any, scale: float | None) -> tuple[Any, int, int, int, int, float]:
    shapes = [tuple(t.shape) for t in (q, k, v)]
    if any(len(s) != 2 for s in shapes) or shapes[0][1] != shapes[1][1] or shapes[1][0] != shapes[2][0]:
        raise ValueError(f"expected q (Nq, d), k (Nk, d), v (Nk, dv), got {shapes[0]}, {shapes[1]}, {shapes[2]}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    (n_q, d), (n_k, dv) = shapes[0], shapes[2]
    lib: Any = np
    if not isinstance(q, np.ndarray):
        import torch

        lib = torch
    return lib, n_q, n_k, d, dv, 1 / math.sqrt(d) if scale is None else scale


def _tiles(n: int, block: int) -> list[slice]:
    return [slice(a, min(a + block, n)) for a in range(0, n, block)] if block else []


def _wide(tile: Any, lib: Any) -> Any:
    """A tile in the dtype of on-chip arithmetic; the wider copy stands for registers and takes no SRAM."""
    wide = lib.float32 if chip_itemsize(tile.dtype.itemsize) == 4 else lib.float64
    return tile.astype(wide) if lib is np else tile.to(wide)


def _zeros(lib: Any, shape: tuple[int, ...], like: Any) -> Any:
    wide = lib.float32 if chip_itemsize(like.dtype.itemsize) == 4 else lib.float64
    return lib.zeros(shape, dtype=wide) if lib is np else lib.zeros(shape, dtype=wide, device=like.device)


def _safe_max(top: Any, lib: Any) -> Any:
    return lib.where(top == -math.inf, 0.0, top)


def _masked(s: Any, i: slice, j: slice, n_q: int, n_k: int, lib: Any) -> Any:
    """Scores with −∞ where the row must not look: j > i + (Nk − Nq)."""
    where = {} if lib is np else {"device": s.device}
    row, key = lib.arange(i.start, i.stop, **where)[:, None], lib.arange(j.start, j.stop, **where)[None, :]
    return lib.where(key > row + (n_k - n_q), -math.inf, s)
