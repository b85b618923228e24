"""Other roads than full attention: which keys a row may see, or which function replaces softmax. NumPy only.

Window and block-sparse attention are exact for the mask that defines them, and tiles that the mask empties are skipped.
Linear attention, random features and low rank compute another function that is meant to be near softmax attention, or
to take its place: their error against full attention is no rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flashlib.algorithms.masks import spans
from flashlib.algorithms.online import finish, identity, merge, of_tile

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]  # rows (n, 1), keys (1, m) → bool (n, m): may it be seen?


class Visited(NamedTuple):
    """o (…, Sq, Dv), lse (…, Sq), and how many tiles were computed, of how many."""

    o: np.ndarray
    lse: np.ndarray
    tiles: int
    of: int


def window(width: int, shift: int = 0, *, both: bool = False) -> Mask:
    """Sliding window: row i sees the last ``width`` keys up to i + shift (Beltagy et al. 2020, arXiv 2004.05150).

    ``shift`` is Sk − Sq, so that the last row sees the last key. ``both`` opens the window to the other side too: the
    ``width`` − 1 keys after i + shift.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    if both:
        return lambda i, j: abs(i + shift - j) < width
    return lambda i, j: (j <= i + shift) & (j > i + shift - width)


def blocks(allowed: np.ndarray, block: int) -> Mask:
    """Block-sparse (Child et al. 2019, arXiv 1904.10509): tile (i // block, j // block) is seen where it is allowed.

    The tiles of `masked` need not be these, but where they are none is half empty.

    allowed : bool (tiles of rows, tiles of keys)
    """
    return lambda i, j: allowed[i // block, j // block]


def strided(n_tiles: int, local: int, stride: int, *, both: bool = False) -> np.ndarray:
    """A pattern of tiles, bool (n_tiles, n_tiles): the last ``local`` ones and every ``stride``-th before.

    Causal; with ``both`` the tiles after a row's own are seen by the same rule.
    """
    i, j = np.arange(n_tiles)[:, None], np.arange(n_tiles)[None, :]
    return (both | (j <= i)) & ((abs(i - j) < local) | (j % stride == stride - 1))


def masked(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask, *, block: int = 16, scale: float | None = None
) -> Visited:
    """Exact attention under any mask, tile by tile; a tile that no row sees is neither loaded nor computed.

    Parameters
    ----------
    q : (…, Sq, D), k : (…, Sk, D), v : (…, Sk, Dv)
    mask : which keys a row sees; rows that see none give 0 and an lse of −∞
    block : rows and keys of a tile
    """
    Sq, Sk = q.shape[-2], k.shape[-2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o = np.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    lse = np.empty(q.shape[:-1], dtype=q.dtype)
    visited = total = 0
    for i0, i1 in spans(Sq, block):
        state = identity((*q.shape[:-2], i1 - i0), v.shape[-1], q.dtype)
        for j0, j1 in spans(Sk, block):
            total += 1
            see = mask(np.arange(i0, i1)[:, None], np.arange(j0, j1)[None, :])
            if not see.any():
                continue
            visited += 1
            s = scale * (q[..., i0:i1, :] @ k[..., j0:j1, :].swapaxes(-1, -2))
            state = merge(state, of_tile(np.where(see, s, s.dtype.type(-np.inf)), v[..., j0:j1, :]))
        o[..., i0:i1, :], lse[..., i0:i1] = finish(state)
    return Visited(o, lse, visited, total)


def linear(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False) -> np.ndarray:
    """Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236): φ(q)·φ(k) for exp(q·k), φ(x) = elu(x) + 1.

    Keys and values shrink to one D × Dv matrix and one vector, so work and memory are linear in the length; the
    function is another one than softmax attention. causal : running sums, row i over keys j ≤ i (Sq = Sk).
    """
    fq, fk = _elu1(q), _elu1(k)
    if causal:
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(f"causal linear attention needs Sq = Sk, got {q.shape[-2]} and {k.shape[-2]}")
        o = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
        state, norm = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), q.dtype), np.zeros_like(k[..., 0, :])
        for i in range(q.shape[-2]):  # a recurrence: nothing but (state, norm) is remembered
            state = state + fk[..., i, :, None] * v[..., i, None, :]
            norm = norm + fk[..., i, :]
            o[..., i, :] = (
                np.einsum("...d,...de->...e", fq[..., i, :], state) / (fq[..., i, :] * norm).sum(-1)[..., None]
            )
        return o
    state, norm = fk.swapaxes(-1, -2) @ v, fk.sum(-2)
    return (fq @ state) / (fq @ norm[..., None])


def random_features(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, features: int, *, seed: int = 0, scale: float | None = None
) -> np.ndarray:
    """Softmax attention estimated by positive random features (Choromanski et al. 2020, arXiv 2009.14794).

    E exp(w·q + w·k − |q|²/2 − |k|²/2) over w ~ N(0, 1) is exp(q·k): unbiased, with an error that falls as
    1/√features and grows exponentially with |q|² and |k|². Full, not causal.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if scale < 0:
        raise ValueError(f"scale must not be negative here, got {scale}")
    w = np.random.default_rng(seed).standard_normal((q.shape[-1], features)).astype(q.dtype)
    a, b = q * np.sqrt(scale), k * np.sqrt(scale)
    fq = (a @ w) - (a * a).sum(-1, keepdims=True) / 2
    fk = (b @ w) - (b * b).sum(-1, keepdims=True) / 2
    fq = np.exp(fq - fq.max(-1, keepdims=True))  # a factor of a row cancels in the quotient
    fk = np.exp(fk - fk.max(axis=(-2, -1), keepdims=True))  # one of all keys of a head too
    return (fq @ (fk.swapaxes(-1, -2) @ v)) / (fq @ fk.sum(-2)[..., None])


def low_rank(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rank: int,
    *,
    seed: int = 0,
    scale: float | None = None,
    projection: np.ndarray | None = None,
) -> np.ndarray:
    """Keys and values projected from Sk rows to ``rank`` (Wang et al. 2020, "Linformer", arXiv 2006.04768).

    The projection is learnt in the paper. Here it is random, or one that is given, (rank, Sk), such as `segments`: read
    the error as that of an untrained one. Full: a projection mixes keys, so no causal mask can be kept.
    """
    Sk = k.shape[-2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    e = np.random.default_rng(seed).standard_normal((rank, Sk)) / np.sqrt(rank) if projection is None else projection
    if e.shape != (rank, Sk):
        raise ValueError(f"expected a projection of shape {(rank, Sk)}, got {e.shape}")
    e = e.astype(k.dtype)
    s = scale * (q @ (e @ k).swapaxes(-1, -2))
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ (e @ v)


def segments(rank: int, Sk: int) -> np.ndarray:
    """A projection that takes the mean of each of ``rank`` neighbouring segments, (rank, Sk)."""
    place = np.arange(Sk) * rank // Sk
    e = (place == np.arange(rank)[:, None]).astype(float)
    return e / e.sum(-1, keepdims=True)


def _elu1(x: np.ndarray) -> np.ndarray:
    """elu(x) + 1: positive, and x + 1 for x > 0."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
