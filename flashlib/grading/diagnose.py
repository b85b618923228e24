"""Name the mistake: hold a wrong outcome against those of known mistakes, on the very inputs that failed.

If none equals it, say what is true of the error itself: a constant factor, rows from the ragged end, a transposed axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flashlib.grading import harness
from flashlib.grading.case import Case, Exercise, Finding, Mistake, Outcome
from flashlib.instruments import faults

PLURALS = {"batch": "batches", "head": "heads", "row": "rows", "key": "keys", "column": "columns"}
MOST_CASES = 4  # failing cases on which the gallery is run


class Failure(NamedTuple):
    """A case that was judged wrong, with what came of it."""

    case: Case
    outcome: Outcome
    finding: Finding


class Diagnosis(NamedTuple):
    """The mistake that the outcome equals, and on how many of the failing cases tried it does."""

    mistake: Mistake
    equal: int
    tried: int


def diagnose(
    exercise: Exercise, failures: Sequence[Failure], passed: Sequence[tuple[Case, Outcome]] = ()
) -> Diagnosis | None:
    """The known mistake whose outcome is the learner's on the first failing case; the one that agrees most often.

    A mistake that would fail where the learner is right is another mistake. What is still equal is decided by the
    gallery's order: it begins with what people do most.
    """
    tried = failures[:MOST_CASES]
    found: list[Diagnosis] = []
    for mistake in exercise.mistakes() if tried else ():
        equal = 0
        for i, failure in enumerate(tried):
            if resembles(mistake, failure, exercise):
                equal += 1
            elif i == 0:
                break
        if equal and not (2 * equal < len(tried) and mistake.fits is None and _says_nothing(tried[0])):
            found.append(Diagnosis(mistake, equal, len(tried)))
    found.sort(key=lambda d: -d.equal)  # a stable sort: among equals the gallery's order stays
    for candidate in found:
        if all(_passes(candidate.mistake, case, exercise) for case, _ in passed):
            return candidate
    return None


def _says_nothing(failure: Failure) -> bool:
    """What was found wrong is 0, or not finite, throughout: many mistakes end so."""
    wrong = [r.array for r in failure.outcome.results if r.array.dtype.kind == "f"]
    name = failure.finding.result
    return bool(name) and any(x.size and not (np.isfinite(x) & (x != 0)).any() for x in wrong)


def _passes(mistake: Mistake, case: Case, exercise: Exercise) -> bool:
    """Whether the mistake does not show on this case."""
    made = harness.run(mistake.wrong, case, may_change=exercise.may_change)
    if made.trouble and not getattr(case.judge, "expects_trouble", False):
        return False
    return not made.changed and case.judge(made).ok


def resembles(mistake: Mistake, failure: Failure, exercise: Exercise) -> bool:
    """Whether this failing outcome is what the mistake gives."""
    case, got, finding = failure
    if mistake.fits is not None:
        return bool(mistake.fits(case, got, finding))
    if case.measured and not got.results and (not got.trouble or got.trouble.kind == "TooManyOperations"):
        return False
    made = harness.run(mistake.wrong, case, may_change=exercise.may_change)
    if got.trouble or made.trouble:
        return _same_trouble(got, made)
    judged = case.judge(made)
    if judged.ok or made.changed != got.changed or len(made.results) != len(got.results):
        return False
    if not got.results:
        return False
    return all(_equal(a.array, b.array, finding.budget or 0.0) for a, b in zip(got.results, made.results, strict=True))


def _same_trouble(a: Outcome, b: Outcome) -> bool:
    """The same exception; of the watch's faults the kind is enough, since their text names kernels and lines."""
    if a.trouble is None or b.trouble is None or a.trouble.kind != b.trouble.kind:
        return False
    return hasattr(faults, a.trouble.kind) or a.trouble.message == b.trouble.message


def _equal(a: np.ndarray, b: np.ndarray, budget: float) -> bool:
    """The same to rounding: within the case's budget, which grows with numbers larger than the right answer's."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "bi" and b.dtype.kind in "bi":
        return bool((a == b).all())
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide_a)
    if (finite != np.isfinite(wide_b)).any() or not np.array_equal(wide_a[~finite], wide_b[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    size = np.maximum(1.0, np.abs(wide_b[finite]))
    return bool((np.abs(wide_a[finite] - wide_b[finite]) <= budget * size).all())


def describe(failure: Failure) -> str:
    """What is true of the error, in a sentence, when no known mistake equals it. "" if nothing stands out."""
    finding = failure.finding
    if not finding.result or finding.ratio is None or finding.error is None or finding.ratio.size == 1:
        return ""
    wrong = finding.ratio > 1
    rows, columns = wrong.any(1), wrong.any(0)
    n, m = wrong.shape
    names = [PLURALS.get(axis, usual) for axis, usual in zip(finding.axes[-2:], ("rows", "columns"), strict=False)]
    parts = [f"{int(wrong.sum()):,} of {wrong.size:,} numbers of this matrix are wrong"]
    if len(finding.axes) == 1:
        which = "all of them" if wrong.all() else f"{finding.axes[0]} {_spans(columns)}"
        return f"{int(wrong.sum()):,} of {wrong.size:,} numbers are wrong: {which}."
    if wrong.all():
        parts.append("all of it")
    elif rows.sum() < n and wrong[rows].all():
        parts.append(f"whole {names[0]}: {_spans(rows)}")
    elif columns.sum() < m and wrong[:, columns].all():
        parts.append(f"whole {names[1]}: {_spans(columns)}")
    elif rows.sum() < n:
        parts.append(f"only in {names[0]} {_spans(rows)}")
    return ", ".join(parts) + "."


def _spans(mask: Any) -> str:
    """True places as "0–3, 7"; after four spans "…"."""
    at = np.flatnonzero(mask)
    groups = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    text = [str(g[0]) if len(g) == 1 else f"{g[0]}–{g[-1]}" for g in groups]
    return ", ".join(text[:4]) + (", …" if len(text) > 4 else "")
