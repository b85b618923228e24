"""Exactness: the error of a result, beside the budget that its dtype allows. No tolerance is picked by hand.

budget(result) = f · ( max(|naive in dtype t − oracle|, floor) + |round trip of the oracle through t| ), largest of each

* f is 2 for o and lse and 3 for gradients (the rule of FlashAttention's own tests).
* "naive in t" is attention computed plainly in t: for float16 and bfloat16 as a GPU does it, with float32 sums and with
  P, dS and the results rounded to t. Its error is the largest over several orders of keys and features, of which one
  goes key by key, because the error of one order may be small by luck.
* The round trip is (x + c) − c in t with c = 0.3 · max|oracle|: what it costs to write the answer down. A fixed 0.3
  would excuse any error in a gradient of size 1e-4.
* The floor is what one rounding at each step can do to the result: naive may be exact by chance (one key; all zeros),
  and then it is no yardstick. tools/false_refusals.py measures how often a right answer is refused.

The oracle is `flashlib.algorithms.reference` in float64, and in ``np.longdouble`` for float64 results.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from flashlib.algorithms import reference
from flashlib.algorithms.masks import visible
from flashlib.algorithms.philox import keep_mask
from flashlib.grading.rounding import TINY, UNIT, dtype_name, round_to, to_numpy

ORDERS = 3


class Line(NamedTuple):
    """One result held against the oracle; ``where`` is the index of the largest error."""

    name: str
    error: float
    budget: float
    ok: bool
    where: tuple[int, ...]
    note: str = ""

    def __str__(self) -> str:
        mark = "ok" if self.ok else "WRONG" + (f" at {self.where}" if self.where else "")
        note = f"  ({self.note})" if self.note else ""
        return f"{self.name:<4} error {self.error:.1e}   budget {self.budget:.1e}   {mark}{note}"


class Verdict(tuple[Line, ...]):
    """Lines of a comparison. True when every line is within its budget; prints one line a result."""

    def __bool__(self) -> bool:
        return len(self) > 0 and all(line.ok for line in self)

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def raise_if_wrong(self) -> "Verdict":
        """The verdict itself, or AssertionError with its text."""
        if not self:
            raise AssertionError("not within the error budget\n" + str(self))
        return self


class Problem:
    """One attention problem: its inputs, its exact answers, and the budget of each.

    Parameters
    ----------
    q, k, v : NumPy arrays or torch tensors (B, H, S, D), or (S, D)
        Their dtype is the dtype that is judged.
    do, dlse : optional
        Gradients of the loss with respect to o and lse; needed to judge dq, dk, dv.
    causal, scale, dropout_p, seed
        As in `flashlib.attention`.
    """

    def __init__(self, q, k, v, do=None, dlse=None, causal=False, scale=None, dropout_p=0.0, seed=None):
        self.dtype = dtype_name(q)
        if self.dtype not in UNIT:
            raise ValueError(f"q, k, v must be one of {', '.join(UNIT)}, got {self.dtype}")
        if dropout_p > 0 and (seed is None or len(q.shape) != 4):
            raise ValueError(f"dropout needs a seed and (B, H, S, D), got seed {seed} and shape {tuple(q.shape)}")
        self.q, self.k, self.v = to_numpy(q), to_numpy(k), to_numpy(v)
        self.do, self.dlse = (None if x is None else to_numpy(x) for x in (do, dlse))
        self.causal, self.dropout_p = causal, dropout_p
        self.scale = self.q.shape[-1] ** -0.5 if scale is None else scale
        self.keep = None
        if dropout_p > 0:
            B, H, Sq, _ = self.q.shape
            self.keep = keep_mask(int(seed), dropout_p, B, H, Sq, self.k.shape[-2])
        self._options = {"causal": causal, "scale": scale, "keep": self.keep, "dropout_p": dropout_p}
        self._options["precision"] = np.longdouble if self.dtype == "float64" else np.float64

    @cached_property
    def forward(self) -> reference.Forward:
        """The oracle's o, lse, p and s."""
        return reference.attention(self.q, self.k, self.v, **self._options)

    @cached_property
    def gradients(self) -> reference.Gradients:
        """The oracle's dq, dk, dv and the steps on the way."""
        do = np.zeros((*self.q.shape[:-1], self.v.shape[-1])) if self.do is None else self.do
        return reference.gradients(self.q, self.k, self.v, do, dlse=self.dlse, **self._options)

    def exact(self, name: str) -> np.ndarray:
        """The oracle's "o", "lse", "dq", "dk" or "dv"."""
        if name in ("o", "lse"):
            return getattr(self.forward, name)
        if name in ("dq", "dk", "dv"):
            if self.do is None and self.dlse is None:
                raise ValueError(f"to judge {name}, make the Problem with do=… (or dlse=…)")
            return getattr(self.gradients, name)
        raise ValueError(f"results are o, lse, dq, dk, dv; got {name!r}")

    def budget(self, name: str) -> float:
        """The largest error that a right computation in this dtype may have, in the units of the result."""
        exact = self.exact(name)
        finite = np.isfinite(exact)
        if not finite.any():
            return 0.0
        dtype = self._dtype_of(name)
        factor = 2 if name in ("o", "lse") else 3
        with np.errstate(invalid="ignore"):  # −∞ − (−∞) in the lse of rows that see nothing: not finite, not counted
            naive = max(_largest(run[name] - exact, finite) for run in self._naive)
            c = 0.3 * np.abs(exact[finite]).max()
            trip = _largest(round_to(round_to(exact + c, dtype).astype(exact.dtype) - c, dtype) - exact, finite)
        return float(factor * (max(naive, self._floors[name]) + trip + TINY[dtype]))

    def compare(self, **results: Any) -> Verdict:
        """Hold o=…, lse=…, dq=…, dk=…, dv=… against the oracle.

        Returns
        -------
        Verdict
            True if all are within budget. A wrong shape, a NaN where the oracle has a number, and a finite number
            where the oracle has NaN or −∞ are wrong whatever the size of the error.
        """
        return Verdict(self._line(name, result) for name, result in results.items())

    def _line(self, name: str, result: Any) -> Line:
        exact, budget = self.exact(name), self.budget(name)
        try:
            got = to_numpy(result)
        except Exception as reason:  # whatever was handed in, the answer is a line and not a traceback
            return Line(name, np.inf, budget, False, (), f"not an array of numbers: {type(reason).__name__}")
        if got.dtype.kind not in "fiu":
            return Line(name, np.inf, budget, False, (), f"dtype {got.dtype}, expected {self.dtype}")
        if got.shape != exact.shape:
            return Line(name, np.inf, budget, False, (), f"shape {got.shape}, expected {exact.shape}")
        if exact.size == 0:
            return Line(name, 0.0, 0.0, True, ())
        exact = self._in_range(name)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(got.astype(exact.dtype) - exact)
        finite = np.isfinite(exact)
        unlike = np.isfinite(got) != finite
        if name == "lse":  # −∞ says that a row sees nothing: no other value will do
            unlike |= np.isneginf(exact) & (got != exact)
        error = np.where(unlike, np.inf, np.where(finite, error, 0))
        where = tuple(int(i) for i in np.unravel_index(np.argmax(error), error.shape))
        note = ""
        if unlike.any():
            note = f"got {got[where]}, expected {float(exact[where]):.4g}"
        worst = float(error[where])
        if worst <= budget and 0 < np.abs(exact[finite]).max(initial=0) <= budget:
            note = "no proof: the budget is as large as the answer"
        return Line(name, worst, budget, worst <= budget, where if worst > budget else (), note)

    def _in_range(self, name: str) -> np.ndarray:
        """The oracle, with ±inf where it lies beyond the largest number of the dtype: there, inf is right."""
        exact = self.exact(name)
        beyond = np.isinf(round_to(exact, self._dtype_of(name)))
        return np.where(beyond & np.isfinite(exact), np.copysign(np.inf, exact), exact)

    def _dtype_of(self, name: str) -> str:
        return self.dtype if name != "lse" or self.dtype == "float64" else "float32"

    @cached_property
    def _naive(self) -> list[dict[str, np.ndarray]]:
        from flashlib.grading.naive_in import naive_in

        see = visible(self.q.shape[-2], self.k.shape[-2], self.causal)
        return [naive_in(self.dtype, self, see, order) for order in range(ORDERS)]

    @cached_property
    def _floors(self) -> dict[str, float]:
        from flashlib.grading.naive_in import floors

        return floors(self)


def _largest(difference: np.ndarray, where: np.ndarray) -> float:
    """Largest |difference|; a naive result that is itself not finite is no measure and counts 0."""
    values = np.abs(difference[where])
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else 0.0
