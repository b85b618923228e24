"""Name the mistake: hold a wrong outcome against those of known mistakes, on the very inputs that failed.

If none equals it, say what is true of the error itself: a constant factor, rows from the ragged end, a transposed axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flashlib.grading import harness
from flashlib.grading.case import Case, Exercise, Finding, Mistake, Outcome
from flashlib.instruments import faults

PLURALS = {"batch": "batches", "head": "heads", "row": "rows", "key": "keys", "column": "columns"}
MOST_CASES = 4  # failing cases on which the gallery is run
MOVES = 4  # of a mistake's inputs, to see what rounding does to its numbers


class Failure(NamedTuple):
    """A case that was judged wrong, with what came of it."""

    case: Case
    outcome: Outcome
    finding: Finding


class Diagnosis(NamedTuple):
    """The mistake that the outcome equals, and on how many of the failing cases tried it does, and how well."""

    mistake: Mistake
    equal: int
    tried: int
    likeness: float = 0.0


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
        small = [case for case, _ in passed if tried[0].case.measured and mistake.fits is None and not case.measured]
        if not all(_passes(mistake, case, exercise) for case in small):  # before it is tried on what is large
            continue
        likeness = [resembles(mistake, tried[0], exercise)]
        if likeness[0]:
            likeness += [resembles(mistake, failure, exercise) for failure in tried[1:]]
        equal = sum(map(bool, likeness))
        if equal and not (2 * equal < len(tried) and mistake.fits is None and _says_nothing(tried[0])):
            found.append(Diagnosis(mistake, equal, len(tried), sum(likeness)))
    found.sort(key=lambda d: (-d.equal, -d.likeness))  # a stable sort: among equals the gallery's order stays
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


def resembles(mistake: Mistake, failure: Failure, exercise: Exercise) -> float:
    """Whether this failing outcome is what the mistake gives: 0 if not, 1 if so, ½ if only to wider budgets."""
    case, got, finding = failure
    if mistake.fits is not None:
        return float(mistake.fits(case, got, finding))
    if case.measured and not got.results and (not got.trouble or got.trouble.kind == "TooManyOperations"):
        return 0.0
    made = harness.run(mistake.wrong, case, may_change=exercise.may_change)
    if got.trouble or made.trouble:
        return float(_same_trouble(got, made))
    judged = case.judge(made)
    if judged.ok or made.changed != got.changed or len(made.results) != len(got.results) or not got.results:
        return 0.0
    pairs = [(a.array, b.array) for a, b in zip(got.results, made.results, strict=True)]
    if all(_equal(a, b, finding.budget or 0.0) for a, b in pairs):
        return 1.0
    own = finding.budgets if len(finding.budgets) == len(pairs) else (0.0,) * len(pairs)
    budgets = [max(b, finding.budget or 0.0) for b in own]
    overflow = mistake.overflows and any(not np.isfinite(x).all() for x, _ in pairs)
    same = _equal_where_finite if overflow else _equal
    if all(same(a, b, budget) for (a, b), budget in zip(pairs, budgets, strict=True)):
        return 0.5
    return 0.5 * _as_near_as_its_rounding(mistake, case, pairs, budgets)


def _as_near_as_its_rounding(
    mistake: Mistake, case: Case, pairs: Sequence[tuple[np.ndarray, np.ndarray]], budgets: Sequence[float]
) -> bool:
    """A mistake may be worse conditioned than the right answer: a divisor that comes near 0. Where most numbers are
    equal already, allow the others what the mistake's own numbers do when its inputs move by the budget."""
    if any(a.shape != b.shape for a, b in pairs):
        return False
    finite = [np.isfinite(a) & np.isfinite(b) for a, b in pairs]
    for (a, b), there in zip(pairs, finite, strict=True):
        if (a.dtype.kind == "f") != (b.dtype.kind == "f") or not np.array_equal(a[~there], b[~there], equal_nan=True):
            return False
    off = [np.abs(a[at].astype(float) - b[at].astype(float)) for (a, b), at in zip(pairs, finite, strict=True)]
    room = [
        budget * np.maximum(1.0, np.abs(b[at].astype(float))) * (b.dtype.kind == "f")
        for budget, (_, b), at in zip(budgets, pairs, finite, strict=True)
    ]
    if any(2 * (d <= r).sum() < d.size for d, r in zip(off, room, strict=True)):
        return False
    rng = np.random.default_rng(0)
    for _ in range(MOVES):
        args = tuple(_moved(a, max(budgets), rng) for a in case.args)
        near = harness.run(mistake.wrong, replace(case, args=args)).results
        if len(near) != len(pairs) or any(v.array.shape != b.shape for v, (_, b) in zip(near, pairs, strict=True)):
            return False
        for r, moved, (_, b), at in zip(room, near, pairs, finite, strict=True):
            with np.errstate(invalid="ignore"):
                r += np.nan_to_num(np.abs(moved.array[at].astype(float) - b[at].astype(float)), posinf=0.0)
    return all(bool((d <= r).all()) for d, r in zip(off, room, strict=True))


def _moved(a: Any, by: float, rng: np.random.Generator) -> Any:
    """An array or tensor of floats, every number moved by a part ``by`` of itself at most; anything else as it is."""
    if isinstance(a, np.ndarray) and a.dtype.kind == "f":
        return (a * (1 + by * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
    if hasattr(a, "detach") and a.is_floating_point():
        return a * a.new_tensor(1 + by * rng.uniform(-1, 1, tuple(a.shape)))
    return a


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


def _equal_where_finite(a: np.ndarray, b: np.ndarray, budget: float) -> bool:
    """The same to rounding where both are finite; and neither or both hold numbers that are not."""
    if a.shape != b.shape or np.isfinite(a).all() != np.isfinite(b).all():
        return False
    finite = np.isfinite(a) & np.isfinite(b)
    return _equal(a[finite], b[finite], budget)


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
