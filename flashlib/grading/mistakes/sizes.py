"""What the size of a case, or of an error, tells of a mistake: for the ``fits`` of several galleries. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.harness import copied, listening, values
from flashlib.grading.rounding import UNIT, dtype_name

TRIES = 6  # of a computation in 16 bits, whose error may be small by luck
ROOM = 4  # times that error: the order of the operations, and which of them are rounded, may differ


def only_many(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The numbers are wrong where there are many keys, parts or bytes; the cases in 16 bits, with more of them than the
    first ones, may be wrong as well. (Those alone are another mistake: this one would fail where all is right.)"""
    return (case.name.startswith("many ") or "float16" in case.name) and not finding.ok and bool(finding.result)


def as_in_16_bits(case: Case, outcome: Outcome, narrow: Callable[..., Any]) -> bool:
    """Whether the error is no larger than that of ``narrow``, which computes in the 16 bits of the inputs, and is right
    for float64 inputs; on inputs that move by a rounding."""
    got = [r.array for r in outcome.results]
    rng, most = np.random.default_rng(0), [0.0] * len(got)
    for _ in range(TRIES):
        args = tuple(_moved(a, rng) for a in case.args)
        errors = _errors(_made(narrow, args), args, narrow)
        if len(errors) != len(got):
            return False
        most = [max(m, e) for m, e in zip(most, errors, strict=True)]
    errors = _errors(got, case.args, narrow)
    return len(errors) == len(got) and all(e <= ROOM * m for e, m in zip(errors, most, strict=True))


def _moved(a: Any, rng: np.random.Generator) -> Any:
    if not _floating(a):
        return a
    by = UNIT[dtype_name(a)] * torch.from_numpy(rng.uniform(-1, 1, tuple(a.shape)))
    return (a.double() * (1 + by)).to(a.dtype)


def _made(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[np.ndarray]:
    with listening():
        return [v.array for v in values(fn(*copied(args)))]


def _errors(got: list[np.ndarray], args: tuple[Any, ...], fn: Callable[..., Any]) -> list[float]:
    right = _made(fn, tuple(a.double() if _floating(a) else a for a in args))
    if [g.shape for g in got] != [r.shape for r in right]:
        return []
    with np.errstate(invalid="ignore"):
        return [float(np.abs(g.astype(float) - r).max(initial=0.0)) for g, r in zip(got, right, strict=True)]


def _floating(a: Any) -> bool:
    return isinstance(a, torch.Tensor) and a.is_floating_point()
