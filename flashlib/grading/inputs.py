"""Inputs that can tell right from wrong.

Random normal inputs give scores near 0, and there most mistakes are invisible: no rescaling is needed, the maximum does
not matter, a dropped tail changes the third digit. These inputs have scores with a standard deviation of at least 5,
maxima that rise along the keys, sizes that are all different and no powers of two, values with a constant column, a
last query that weighs more, and, with ``offset``, rows whose scores are all far from 0.
"""

from typing import Any, NamedTuple

import numpy as np

from flashlib.grading.rounding import UNIT


class Inputs(NamedTuple):
    """q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv), do (B, Hq, Sq, Dv)."""

    q: Any
    k: Any
    v: Any
    do: Any


def draw(
    seed: int,
    B: int = 2,
    Hq: int = 4,
    Hkv: int = 2,
    Sq: int = 37,
    Sk: int = 53,
    D: int = 20,
    Dv: int | None = None,
    dtype: str = "float32",
    library: str = "numpy",
    spread: float = 5.0,
    offset: float = 0.0,
) -> Inputs:
    """Discriminating inputs from a seed.

    Parameters
    ----------
    seed : int
        Print it: the same seed gives the same inputs.
    dtype : "float64" | "float32" | "float16" | "bfloat16"
        bfloat16 exists only in torch.
    library : "numpy" | "torch"
    spread : float
        Standard deviation of the scores at the default scale 1/√D. On top of it the scores rise along the keys by
        about 2 · spread for half of the rows, so that every tile of keys brings a new maximum there.
    offset : float
        Added to all scores of every third row, and taken from those of every third: with 120 a softmax that forgets
        the maximum overflows in one and divides by 0 in the other, in float32.

    Returns
    -------
    Inputs
        q, k, v, do; the last column of v is constant 1, so the last column of any right output without dropout is 1.
        dO of the last query is 4 times as large: under a causal mask the last key is seen by no other.

    Raises
    ------
    ValueError
        Unknown library or dtype, or bfloat16 asked of NumPy.
    """
    rng = np.random.default_rng(seed)
    Dv = D if Dv is None else Dv
    q = rng.standard_normal((B, Hq, Sq, D)) * np.sqrt(spread)
    k = rng.standard_normal((B, Hkv, Sk, D)) * np.sqrt(spread)
    if D > 1:  # feature 0 carries the ramp: score += q0 · k0 / √D
        q[..., 0] = np.where(rng.random((B, Hq, Sq)) < 0.5, 1, 0.1) * np.sqrt(D)
        k[..., 0] = np.linspace(0, 2 * spread, Sk)
    if D > 1 and offset:  # feature 1 carries the offset: score += q1 · k1 / √D
        size = np.sqrt(abs(offset) * np.sqrt(D))
        q[..., 1] = size * np.sign(offset) * np.resize([0, 1, -1], Sq)
        k[..., 1] = size
    v = rng.standard_normal((B, Hkv, Sk, Dv))
    if Dv > 1:
        v[..., -1] = 1
    do = rng.standard_normal((B, Hq, Sq, Dv))
    do[..., -1:, :] *= 4
    if dtype not in UNIT:
        raise ValueError(f"dtype must be one of {', '.join(UNIT)}, got {dtype!r}")
    if library == "torch":
        import torch

        return Inputs(*(torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v, do)))
    if library != "numpy":
        raise ValueError(f"library must be 'numpy' or 'torch', got {library!r}")
    if dtype == "bfloat16":
        raise ValueError("NumPy has no bfloat16: ask for library='torch'")
    return Inputs(*(x.astype(dtype) for x in (q, k, v, do)))


def rival(q: Any, k: Any, row: int, key: int) -> None:
    """Make ``key`` (in place) a copy of the key before it that query ``row`` likes best, so that the two weigh the same
    there: a loop or a mask that loses this one key of this one row is seen. Torch; q and k have the same heads."""
    best = (q[..., row : row + 1, :] @ k[..., :key, :].mT).argmax(-1)  # (…, 1)
    k[..., key, :] = k.gather(-2, best[..., None].expand(*best.shape, k.shape[-1]))[..., 0, :]
