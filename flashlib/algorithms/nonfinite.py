"""A NaN must reach the rows that see it, and no other: 0 · NaN is NaN, so a weight of 0 alone does not stop it.

Scores are masked by replacing them, which is safe. Products with values, and with anything in the backward, are not.
The cure costs one look at the inputs when all is finite, as it nearly always is. Otherwise the products run on inputs
with the bad numbers replaced by 0, and the results that depend on them are marked NaN afterwards. With a causal mask,
"row i sees a bad key" is one comparison: the first bad key against the last key that row i sees.
"""

import torch
from torch import Tensor


def quarantine(v: Tensor, Hq: int, Sq: int, causal: bool) -> tuple[Tensor, Tensor | None]:
    """v with every NaN and inf replaced by 0, and where o is spoiled by them.

    Returns
    -------
    v : (B, Hkv, Sk, Dv)
    spoiled : bool (B, Hq, Sq, Dv), or None when v is finite throughout
    """
    if all_finite(v):
        return v, None
    reach = last_seen(Sq, v.shape[2], causal, v.device)[:, None]  # (Sq, 1)
    first = first_bad(v).repeat_interleave(Hq // v.shape[1], dim=1)  # (B, Hq, 1, Dv)
    return clean(v), first <= reach


def all_finite(*tensors: Tensor) -> bool:
    """True if no tensor holds a NaN or an inf."""
    return all(bool(torch.isfinite(x).all()) for x in tensors)


def clean(x: Tensor) -> Tensor:
    """x with every NaN and inf replaced by 0."""
    return x.masked_fill(~torch.isfinite(x), 0)


def last_seen(Sq: int, Sk: int, causal: bool, device: torch.device) -> Tensor:
    """Index of the last key each row sees (Sq,); −1 or less for rows that see none."""
    if not causal:
        return torch.full((Sq,), Sk - 1, device=device)
    return torch.arange(Sq, device=device) + (Sk - Sq)


def first_bad(x: Tensor) -> Tensor:
    """Index of the first row with a NaN or inf, column by column: (..., S, C) → (..., 1, C); S where there is none."""
    return _bad_index(x, none=x.shape[-2]).amin(-2, keepdim=True)


def last_bad(x: Tensor) -> Tensor:
    """Index of the last row with a NaN or inf, column by column: (..., S, C) → (..., 1, C); −1 where there is none."""
    return _bad_index(x, none=-1).amax(-2, keepdim=True)


def _bad_index(x: Tensor, none: int) -> Tensor:
    rows = torch.arange(x.shape[-2], device=x.device)[:, None]
    return torch.where(torch.isfinite(x), none, rows)
