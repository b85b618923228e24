"""Attention in four steps: scores, exponentials, division, weighted sum; N×N matrices between them. NumPy and torch.

This is the pipeline that FlashAttention fuses (Dao et al. 2022, arXiv 2205.14135, algorithm 0). It is kept simple on
purpose: every intermediate is there to be looked at, and to be paid for.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashlib.algorithms.masks import visible

if TYPE_CHECKING:
    import torch


class Steps(NamedTuple):
    """s, p (..., Sq, Sk): scaled scores (−∞ where masked) and probabilities; m, l, lse (..., Sq); o (..., Sq, Dv)."""

    s: Any
    m: Any
    l: Any
    p: Any
    o: Any
    lse: Any


def four_steps(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, keep: Any = None) -> Steps:
    """The four steps, all intermediates returned.

    Parameters
    ----------
    q : (..., Sq, D), k : (..., Sk, D), v : (..., Sk, Dv)
        NumPy arrays, or torch tensors (differentiable). Leading dimensions must broadcast.
    causal : bool
        Bottom-right aligned, see `flashlib.algorithms.masks.visible`.
    scale : float, optional
        Default 1/√D.
    keep : (..., Sq, Sk), optional
        Weights for the probabilities, applied after the row sum: a dropout mask already divided by 1 − p.
    """
    xp = _library(q)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    see = _mask(q, k, causal)
    s = xp.where(see, scale * (q @ k.swapaxes(-1, -2)), -xp.inf)  # (..., Sq, Sk), and again for each step below
    m = _row_max(s)
    e = xp.exp(s - m)
    l = e.sum(-1)[..., None]
    p = e / xp.where(l == 0, xp.ones_like(l), l)  # a row that sees nothing has l = 0 and gets p = 0
    o = (p if keep is None else p * keep) @ v
    lse = xp.where(l == 0, -xp.inf, m + xp.log(xp.where(l == 0, xp.ones_like(l), l)))[..., 0]
    return Steps(s, m[..., 0], l[..., 0], p, o, lse)


def attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """The four steps for torch tensors with grouped heads, dropout and 16-bit inputs; gradients are autograd's.

    Parameters
    ----------
    q : (B, Hq, Sq, D), k : (B, Hkv, Sk, D), v : (B, Hkv, Sk, Dv)
        float16 and bfloat16 are computed in float32 and rounded at the end.
    dropout_p, seed
        The mask of `flashlib.algorithms.philox`, the same as in every other implementation.

    Returns
    -------
    o : (B, Hq, Sq, Dv) in q's dtype
    lse : (B, Hq, Sq) float32, or float64 for float64 inputs
    """
    import torch

    from flashlib.algorithms.nonfinite import quarantine

    dtype, work = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
    v, spoiled = quarantine(v, q.shape[1], q.shape[2], causal)
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (x.to(work).repeat_interleave(group, dim=1) for x in (k, v))
    keep = None
    if dropout_p > 0:
        assert seed is not None, "dropout needs a seed; the front door draws one"
        keep = _dropout(q, k, dropout_p, seed).to(work) / (1 - dropout_p)
    with torch.autocast(q.device.type, enabled=False):  # or the products would be rounded to 16 bits again
        steps = four_steps(q.to(work), k, v, causal=causal, scale=scale, keep=keep)
    o = steps.o if spoiled is None else steps.o.masked_fill(spoiled, torch.nan)
    return o.to(dtype), steps.lse


def _library(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np
    import torch

    return torch


def _mask(q: Any, k: Any, causal: bool) -> Any:
    if isinstance(q, np.ndarray):
        return visible(q.shape[-2], k.shape[-2], causal)
    import torch

    return torch.from_numpy(visible(q.shape[-2], k.shape[-2], causal)).to(q.device)


def _row_max(s: Any) -> Any:
    """Row maximum with 0 in the place of −∞, so that it can be subtracted; a constant as far as gradients go."""
    if isinstance(s, np.ndarray):
        m = s.max(axis=-1, keepdims=True, initial=-np.inf)
        return np.where(np.isneginf(m), 0, m)
    if s.shape[-1] == 0:
        return s.new_zeros((*s.shape[:-1], 1))
    m = s.detach().amax(-1, keepdim=True)
    return m.masked_fill(m == -np.inf, 0)


def _dropout(q: "torch.Tensor", k: "torch.Tensor", dropout_p: float, seed: int) -> "torch.Tensor":
    import torch

    from flashlib.algorithms.philox import keep

    b, h, i, j = (torch.arange(n, device=q.device) for n in (*q.shape[:3], k.shape[2]))
    return keep(seed, dropout_p, b[:, None, None, None], h[:, None, None], i[:, None], j)
