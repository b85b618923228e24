"""The oracle: attention and all its gradients in float64, in NumPy, written to be checked by eye and not to be fast.

Formulas: FlashAttention (Dao et al. 2022, arXiv 2205.14135), appendix B; with dropout Z = keep / (1 − p) and, where the
log-sum-exp has a gradient of its own, delta − dLSE in the place of delta. For results in float64 it can run in
``np.longdouble``, which on x86 carries 11 more bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from flashlib.algorithms.masks import visible


class Forward(NamedTuple):
    """o (B, Hq, Sq, Dv); lse (B, Hq, Sq), natural log, −inf for empty rows; p, s (B, Hq, Sq, Sk)."""

    o: np.ndarray
    lse: np.ndarray
    p: np.ndarray
    s: np.ndarray


class Gradients(NamedTuple):
    """dq, dk, dv in the shapes of q, k, v; dp, ds, delta are the steps on the way (dk, dv are summed over a group)."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dp: np.ndarray
    ds: np.ndarray
    delta: np.ndarray


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    scale: float | None = None,
    keep: np.ndarray | None = None,
    dropout_p: float = 0.0,
    precision: DTypeLike = np.float64,
) -> Forward:
    """Exact attention, softmax(scale · QKᵀ) V, with every step returned.

    Parameters
    ----------
    q : (..., Hq, Sq, D) or (Sq, D)
    k : (..., Hkv, Sk, D) or (Sk, D); query head h reads KV head h // (Hq / Hkv)
    v : (..., Hkv, Sk, Dv) or (Sk, Dv)
    causal : bool
        Bottom-right aligned: row i sees keys j ≤ i + (Sk − Sq). Rows that see nothing give o = 0 and lse = −inf.
    scale : float, optional
        Default 1/√D.
    keep : bool (..., Hq, Sq, Sk), optional
        The dropout mask; kept probabilities are divided by 1 − dropout_p after the row sum.
    precision : dtype
        float64, or longdouble to judge float64 results.
    """
    q, k, v = (np.asarray(x).astype(precision) for x in (q, k, v))
    k, v = _per_query_head(q, k), _per_query_head(q, v)
    scale = 1 / np.sqrt(precision_of(q)(q.shape[-1])) if scale is None else scale
    see = visible(q.shape[-2], k.shape[-2], causal)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        s = np.where(see, scale * (q @ k.swapaxes(-1, -2)), -np.inf)
        m = s.max(axis=-1, keepdims=True, initial=-np.inf)
        m = np.where(np.isneginf(m), 0, m)  # a row that sees nothing: exp(−inf − 0) = 0 and not exp(−inf + inf)
        e = np.where(see, np.exp(s - m), 0)
        l = e.sum(axis=-1, keepdims=True)
        p = np.where(see, e / np.where(l == 0, 1, l), 0)
        lse = (m + np.log(l))[..., 0]
    o = product(p * _dropout(keep, dropout_p), v, see)
    return Forward(o, lse, p, s)


def gradients(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    keep: np.ndarray | None = None,
    dropout_p: float = 0.0,
    precision: DTypeLike = np.float64,
) -> Gradients:
    """Exact gradients of a loss with dO = ∂loss/∂o and, if given, dlse = ∂loss/∂lse. Parameters as in `attention`."""
    q, k, v, do = (np.asarray(x).astype(precision) for x in (q, k, v, do))
    p = attention(q, k, v, causal=causal, scale=scale, keep=keep, dropout_p=dropout_p, precision=precision).p
    kv_shape, k, v = k.shape[:-2], _per_query_head(q, k), _per_query_head(q, v)
    scale = 1 / np.sqrt(precision_of(q)(q.shape[-1])) if scale is None else scale
    see = visible(q.shape[-2], k.shape[-2], causal)
    z = _dropout(keep, dropout_p)
    with np.errstate(invalid="ignore"):
        dp = np.where(see, z * (do @ v.swapaxes(-1, -2)), 0)
        delta = (p * dp).sum(axis=-1, keepdims=True)  # = rowsum(dO ∘ O), computed without o
        shift = delta if dlse is None else delta - np.asarray(dlse).astype(precision)[..., None]
        ds = np.where(see, p * (dp - shift), 0)
    dq = scale * product(ds, k, ds != 0)
    dk = scale * product(ds.swapaxes(-1, -2), q, ds.swapaxes(-1, -2) != 0)
    dv = product((p * z).swapaxes(-1, -2), do, see.T)
    return Gradients(dq, _sum_groups(dk, kv_shape), _sum_groups(dv, kv_shape), dp, ds, delta[..., 0])


def product(a: np.ndarray, b: np.ndarray, see: np.ndarray, dot: Callable = np.matmul) -> np.ndarray:
    """a @ b for an a that is 0 outside ``see``: a NaN or inf in row j of b reaches the rows that see j, and no other.

    Plain matrix multiplication would compute 0 · NaN = NaN for every row. ``dot`` is the multiplication itself.
    """
    finite = np.isfinite(b)
    with np.errstate(invalid="ignore"):
        if finite.all():
            return dot(a, b)
        return np.where(see @ ~finite, np.nan, dot(a, np.where(finite, b, 0)))


def precision_of(x: np.ndarray) -> type:
    """The scalar type of an array, so that a constant such as √D is computed in the same precision."""
    return x.dtype.type


def _dropout(keep: np.ndarray | None, dropout_p: float):
    return 1 if keep is None else keep / (1 - dropout_p)


def _per_query_head(q: np.ndarray, x: np.ndarray) -> np.ndarray:
    if q.ndim < 3 or x.shape[-3] == q.shape[-3]:
        return x
    return np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3)


def _sum_groups(x: np.ndarray, kv_shape: tuple[int, ...]) -> np.ndarray:
    if x.shape[:-2] == kv_shape:
        return x
    group = x.shape[-3] // kv_shape[-1]
    return x.reshape(*kv_shape, group, *x.shape[-2:]).sum(axis=-3)
