"""An attention to hand to a learner's function: it computes like any other and notes how it was called."""

from __future__ import annotations

import math
from typing import Any


class Slot:
    """``attend(q, k, v, causal=…, dropout_p=…)`` for q, k, v (B, H, S, D) torch tensors.

    Parameters
    ----------
    seed : int
        Of the dropout mask, `philox.keep_mask`, so that a result with dropout can be foretold.
    cheap : bool
        Return a copy of v and compute nothing, so that a measured memory is the caller's own.

    Notes
    -----
    ``calls`` has a dict for each call: the shapes of q, k and v as text, causal and dropout_p.
    """

    def __init__(self, seed: int = 0, *, cheap: bool = False) -> None:
        self.seed, self.cheap = seed, cheap
        self.calls: list[dict[str, Any]] = []

    def fresh(self) -> Slot:
        """The same attention, called by nobody yet."""
        return Slot(self.seed, cheap=self.cheap)

    def __call__(self, q: Any, k: Any, v: Any, causal: Any = False, dropout_p: Any = 0.0, **more: Any) -> Any:
        """o (B, H, S, D) in q's dtype.

        Raises
        ------
        TypeError, ValueError
            As a caller of the slot would see them: an unknown option, tensors that have not four axes.
        """
        if more:
            raise TypeError(f"attend takes q, k, v, causal and dropout_p; got {', '.join(more)}")
        shapes = {name: tuple(x.shape) for name, x in (("q", q), ("k", k), ("v", v))}
        if any(len(shape) != 4 for shape in shapes.values()):
            raise ValueError(f"attend takes q, k and v of shape (B, H, S, D); got {shapes}")
        if len(self.calls) < 500:
            texts = {name: " × ".join(map(str, shape)) for name, shape in shapes.items()}
            self.calls.append({**texts, "causal": bool(causal), "dropout_p": float(dropout_p)})
        return v.clone() if self.cheap else _attention(q, k, v, bool(causal), float(dropout_p), self.seed)


def _attention(q: Any, k: Any, v: Any, causal: bool, dropout_p: float, seed: int) -> Any:
    """In float64, cast at the end; bottom-right causal, as the course has it."""
    import torch

    from flashlib.algorithms.philox import keep_mask

    wide = [x.double() for x in (q, k, v)]
    s = wide[0] @ wide[1].mT / math.sqrt(q.shape[-1])
    if causal:
        Sq, Sk = s.shape[-2:]
        s = s.masked_fill(torch.ones(Sq, Sk, dtype=torch.bool).triu(Sk - Sq + 1), -torch.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    p = p / p.sum(-1, keepdim=True)
    if dropout_p > 0:
        kept = keep_mask(seed, dropout_p, 1, 1, *s.shape[-2:])  # the same for all heads: in one call or in many
        p = p * torch.from_numpy(kept).double() / (1 - dropout_p)
    return (p @ wide[2]).to(q.dtype)
