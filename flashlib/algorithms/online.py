"""Online softmax: one pass over the scores, carrying (m, l, o), and the merge law ⊕ that makes it possible. NumPy only.

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018, arXiv 1805.02867), for (m, l); Dao et al.
2022 (arXiv 2205.14135), section 3.1, for carrying the output along. The same law merges tiles (chapter 04).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlib.algorithms.masks import spans, visible
from flashlib.algorithms.reference import product


class State(NamedTuple):
    """What must be remembered of the keys seen so far, for each row.

    m (...,) running maximum of the scores; l (...,) running sum Σ exp(s − m); o (..., Dv) running, *not yet divided*
    output Σ exp(s − m) v. All three are measured against the same m.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray


def identity(rows: int | tuple[int, ...], Dv: int, dtype: DTypeLike = np.float64) -> State:
    """The state of rows that have seen no key: (−∞, 0, 0). Merging it with any state changes nothing."""
    shape = (rows,) if isinstance(rows, int) else tuple(rows)
    return State(np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), np.zeros((*shape, Dv), dtype))


def of_tile(s: np.ndarray, v: np.ndarray) -> State:
    """The state of one tile alone.

    Parameters
    ----------
    s : (..., Br, Bc)
        Scaled scores; −∞ where masked.
    v : (..., Bc, Dv)
    """
    m = s.max(axis=-1, initial=-np.inf)
    p = np.exp(s - _safe(m)[..., None])
    return State(m, p.sum(axis=-1), product(p, v, s > -np.inf))  # p @ v, but 0 · NaN of a masked key is 0


def merge(a: State, b: State) -> State:
    """The merge law a ⊕ b: both sides are re-measured against the larger maximum, then added.

    Associative and commutative up to rounding, with `identity` as its neutral element: tiles may be merged in any
    order and in any grouping.
    """
    m = np.maximum(a.m, b.m)
    # exp(−∞ − 0) = 0: a side that saw nothing adds nothing. Without the guard, −∞ − (−∞) would give NaN.
    shrink_a, shrink_b = np.exp(a.m - _safe(m)), np.exp(b.m - _safe(m))
    return State(
        m,
        shrink_a * a.l + shrink_b * b.l,
        shrink_a[..., None] * a.o + shrink_b[..., None] * b.o,
    )


def finish(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Divide once, at the end.

    Returns
    -------
    o : (..., Dv)
        The output; 0 for rows that saw no key.
    lse : (...,)
        log Σ exp(s), natural log; −∞ for rows that saw no key.
    """
    with np.errstate(divide="ignore"):
        lse = state.m + np.log(state.l)
    return state.o / np.where(state.l == 0, 1, state.l)[..., None], lse


def stream(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    block: int = 2,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention by streaming the keys past the queries, ``block`` keys at a time.

    Parameters
    ----------
    q : (..., Sq, D), k : (..., Sk, D), v : (..., Sk, Dv)
    block : int
        Keys in one tile; the last tile may be shorter. It changes nothing but rounding.

    Returns
    -------
    o : (..., Sq, Dv)
    lse : (..., Sq)
        Both in the dtype of q, k and v.
    """
    Sq, Sk = q.shape[-2], k.shape[-2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    see = visible(Sq, Sk, causal)
    state = identity(q.shape[:-1], v.shape[-1], q.dtype)
    for j0, j1 in spans(Sk, block):
        s = scale * (q @ k[..., j0:j1, :].swapaxes(-1, -2))
        s = np.where(see[:, j0:j1], s, s.dtype.type(-np.inf))
        state = merge(state, of_tile(s, v[..., j0:j1, :]))
    return finish(state)


def _safe(m: np.ndarray) -> np.ndarray:
    """m, with 0 for the rows that have seen nothing (m = −∞), so that it can be subtracted."""
    return np.where(np.isneginf(m), 0, m)
