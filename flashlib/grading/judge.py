"""Judges: each makes a function that turns an outcome into a finding. No tolerance is picked by hand.

`exact` holds attention's results against `exactness.Problem`, `matches` any others against `expected.Answer`; the rest
judge what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from flashlib.grading.case import Finding, Judge, Outcome, Value
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import Answer

AXES = {
    "o": ("batch", "head", "row", "column"),
    "lse": ("batch", "head", "row"),
    "dq": ("batch", "head", "row", "column"),
    "dk": ("batch", "head", "key", "column"),
    "dv": ("batch", "head", "key", "column"),
}
PLAIN = {1: ("element",), 2: ("row", "column")}


def exact(problem: Callable[[], Problem] | Problem, *names: str, library: str | None = None) -> Judge:
    """Results, in this order, are attention's "o", "lse", "dq", "dk", "dv"; ``problem`` may be made when it is needed.

    o and the gradients have the dtype of q; lse is float32 (float64 for float64).
    """
    made: list[Problem] = []

    def judge(outcome: Outcome) -> Finding:
        if not made:
            made.append(problem if isinstance(problem, Problem) else problem())
        p = made[0]
        answers = []
        for name in names:
            dtype = "float32" if name == "lse" and p.dtype != "float64" else p.dtype
            right = p._in_range(name)
            answers.append(Answer(name, right, p.budget(name), dtype, library, AXES[name][-right.ndim :]))
        return matches(*answers)(outcome)

    return judge


def matches(*answers: Answer) -> Judge:
    """Results, in this order, equal these answers within their budgets."""

    def judge(outcome: Outcome) -> Finding:
        results = outcome.results
        if all(not a.exact.ndim for a in answers):
            results = apart(results, len(answers))
        if len(results) != len(answers):
            got = _count(len(results))
            if len(answers) == 1 and len(results) > 1 and all(r.library == "python" for r in results):
                got = "a list"
            names, wanted = ", ".join(a.name for a in answers), _count(len(answers))
            if got == "a list" and answers[0].library == "torch":
                wanted = f"a torch tensor of {answers[0].dtype}"
            return Finding(False, says=f"It returned {got}, expected {wanted}: {names}.")
        findings = [compare(a, v) for a, v in zip(answers, results, strict=True)]
        wrong = next((f for f in findings if not f.ok), None)
        if wrong is not None:
            return replace(wrong, budgets=tuple(a.budget for a in answers))
        # all within budget: show the one that came nearest to its budget
        return max(findings, key=lambda f: (f.error or 0) / f.budget if f.budget else 0)

    return judge


def apart(results: tuple[Value, ...], n: int) -> tuple[Value, ...]:
    """The results; but one array of n numbers where n numbers were asked for counts as n results."""
    if n > 1 and len(results) == 1 and results[0].array.shape == (n,):
        return tuple(results[0]._replace(array=x) for x in map(np.asarray, results[0].array))
    return results


def compare(answer: Answer, got: Value) -> Finding:
    """One array against its answer. NaN where a number belongs is wrong, and so is a number where NaN or −∞ belongs."""
    name, right = answer.name, answer.exact
    if got.array.shape != right.shape:
        return Finding(False, result=name, says=f"{name} has shape {got.array.shape}, expected {tuple(right.shape)}.")
    if answer.library == "torch" and got.library != "torch":
        return Finding(False, result=name, says=f"{name} is no torch tensor; expected a tensor of {answer.dtype}.")
    if answer.library == "numpy" and got.library == "torch" and right.ndim:
        return Finding(False, result=name, says=f"{name} is a torch tensor; expected a NumPy array.")
    if answer.dtype is not None and got.library != "python" and got.dtype != answer.dtype:
        return Finding(False, result=name, says=f"{name} is {got.dtype}, expected {answer.dtype}.")
    if answer.whole and got.array.dtype.kind == "f":
        says = f"{name} is made of floats ({got.dtype}); it should be whole numbers, that one can count or loop with."
        return Finding(False, result=name, says=says)
    if right.size == 0:
        return Finding(True, 0.0, 0.0, result=name)
    if right.dtype.kind == "i" and not right.ndim:
        right = right.astype(float)  # a count: the size of the difference tells something
    if right.dtype.kind in "bi":
        error = (got.array != right).astype(float)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(got.array.astype(right.dtype) - right).astype(float)
        finite = np.isfinite(right)
        unlike = np.isfinite(got.array) != finite
        unlike |= np.isinf(right) & (got.array != right)
        error = np.where(unlike, np.inf, np.where(finite, error, 0.0))
    worst, wrong = float(error.max()), error > answer.budget
    if not wrong.any():
        return Finding(True, worst, answer.budget, result=name)
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    here, there = got.array[where], right[where]
    if not where:
        says = "{} is {}, expected {}.".format(name, *_two(here, there)) if answer.whole else _alone(name, here, there)
        return Finding(False, worst, answer.budget, result=name, says=says)
    says = "{} is {} there, expected {}.".format(name, *_two(here, there))
    if right.dtype.kind == "f":
        nans = int((np.isnan(got.array) & ~np.isnan(right)).sum())
        if nans:
            says = (
                f"{name} is NaN in {nans:,} of {right.size:,} places; the first wrong one should be {_number(there)}."
            )
    says += _pattern(got.array, right, answer.budget)
    axes = answer.axes or PLAIN.get(right.ndim) or tuple(f"axis {i}" for i in range(right.ndim))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = error[where[:-2]] if error.ndim >= 2 else np.atleast_2d(error)
        ratio = np.where(ratio > 0, ratio / max(answer.budget, np.finfo(float).tiny), 0.0)
    return Finding(False, worst, answer.budget, where, axes, name, says, ratio)


def _alone(name: str, got: np.generic, right: np.generic) -> str:
    """ "S is 96, expected 768. That is 0.125 times as much.": a single number, where a factor often tells the unit."""
    says = "{} is {}, expected {}.".format(name, *_two(got, right))
    if right.dtype.kind == "b" or not (np.isfinite(got) and np.isfinite(right) and right != 0):
        return says
    factor = float(got) / float(right)
    return f"{says} That is {factor:.6g} times as much." if _telling(factor) and _round(factor) else says


def _telling(factor: float) -> bool:
    """A factor that may tell where it comes from: not 1 and not 0 to the digits that are shown, and no huge power."""
    return 1e-6 <= abs(factor) <= 1e6 and f"{factor:.6g}" != "1"


def _round(factor: float) -> bool:
    """A whole number, a part of one, a fraction with a small divisor, or a change of the logarithm's base."""
    size = abs(factor)
    return any(abs(x - round(x)) <= min(1e-5 * x, 1e-3) for x in (1 / size, *(size * d for d in range(1, 17)))) or any(
        abs(size / base - 1) <= 1e-5 for base in (np.log(2), 1 / np.log(2), np.log(10), 1 / np.log(10))
    )


def _pattern(got: np.ndarray, right: np.ndarray, budget: float) -> str:
    """ " Every number is −1 times the expected one." and the like, where that is so to rounding; else ""."""
    if right.dtype.kind != "f" or got.size < 2 or not (np.isfinite(got) & np.isfinite(right)).all():
        return ""
    g, r = got.astype(np.float64), right.astype(np.float64)
    if (g == 0).all():
        return " Every number is 0."
    if r.ndim >= 2 and r.shape[-1] == r.shape[-2] and np.abs(g.swapaxes(-1, -2) - r).max() <= budget:
        return " It is the expected matrix, transposed."
    factor, offset = float((g * r).sum() / max((r * r).sum(), 1e-300)), float((g - r).mean())
    room = budget * max(1.0, abs(factor))
    if _telling(factor) and np.abs(g - factor * r).max() <= room:
        return f" Every number is {factor:.6g} times the expected one."
    if np.abs(g - r - offset).max() <= budget:
        return f" Every number is {offset:+.6g} off."
    return ""


def linear_memory(limit: Callable[[int], float], what: str) -> Judge:
    """The peak extra memory measured by "growth" stays under ``limit(n)`` bytes at every n.

    ``limit`` must be derived: what a right function needs to hold, counted, times a stated reserve. ``what`` says it:
    "O, the row state and two tiles".
    """

    def judge(outcome: Outcome) -> Finding:
        m = outcome.measures
        over = [(n, peak) for n, peak in zip(m["n"], m["peak"], strict=True) if peak > limit(n)]
        n, peak = over[-1] if over else (m["n"][-1], m["peak"][-1])
        held = f" Largest at the peak: {', '.join(m['alive'])}." if m.get("alive") else ""
        says = f"At N = {n:,} it holds {peak:,} B more than its inputs; {what} need {int(limit(n)):,}.{held}"
        return Finding(not over, float(peak), float(limit(n)), result="bytes", says=says if over else "")

    return judge


def measured(name: str, right: float | Mapping[str, int], unit: str, says: str = "") -> Judge:
    """A measure of the harness equals a whole number exactly: bytes moved, FLOPs, launches. ``right`` may be a mapping,
    as {"K": 8192, "V": 8192}, and then the first entry that differs is named."""

    def judge(outcome: Outcome) -> Finding:
        got = outcome.measures.get(name)
        pairs: Sequence[tuple[str, float, float]]
        if isinstance(right, Mapping):
            pairs = [(k, (got or {}).get(k, 0), r) for k, r in right.items()]
            pairs += [(k, g, 0) for k, g in (got or {}).items() if k not in right]
        else:
            pairs = [("", got or 0, right)]
        for key, value, wanted in pairs:
            if value != wanted:
                what = f"{name} {key}".strip()
                text = f"{what}: {value:,} {unit}, expected {wanted:,}. {says}".strip()
                return Finding(False, abs(float(value - wanted)), 0.0, result=what, says=text)
        return Finding(True, 0.0, 0.0, result=name)

    return judge


def in_one_kernel(loads: Mapping[str, int]) -> Judge:
    """On the memory machine: one kernel was begun, each tensor loaded in this many tiles, and no `.array` was used by
    anybody but the machine."""

    def judge(outcome: Outcome) -> Finding:
        m = outcome.measures
        if m["looked"]:
            names = ", ".join(f"{n}.array" for n in m["looked"])
            says = f"It uses {names}: a kernel sees HBM through load and store only, and what it returns is the tensor."
            return Finding(False, float(sum(m["looked"].values())), 0.0, result="array", says=says)
        return next(
            (
                f
                for f in (measured("kernels", 1, "begun")(outcome), measured("loads", loads, "tiles")(outcome))
                if not f.ok
            ),
            Finding(True, 0.0, 0.0, result="kernels"),
        )

    return judge


def products_of_tiles(side: int, longest: int, what: str) -> Judge:
    """Of the matrix products counted by "matmuls" none has more than ``side`` rows or columns, or sums over more than
    ``longest``. ``what`` says which sizes these are: "tiles of 7 × 9"."""

    def judge(outcome: Outcome) -> Finding:
        for name, most, does in (("side", side, "has {:,} rows or columns"), ("longest", longest, "sums over {:,}")):
            got = outcome.measures[name]
            if got > most:
                says = f"A matrix product {does.format(got)}; in {what} none needs more than {most:,}."
                return Finding(False, float(got - most), 0.0, result=name, says=says)
        return Finding(True, 0.0, 0.0, result="side")

    return judge


def both(*judges: Judge) -> Judge:
    """The first judge that finds something wrong; the first finding if all are content."""

    def judge(outcome: Outcome) -> Finding:
        findings = [j(outcome) for j in judges]
        return next((f for f in findings if not f.ok), findings[0])

    return judge


def raises(kind: str, *parts: str) -> Judge:
    """The call is refused with this kind of exception, whose message holds all the parts."""

    def judge(outcome: Outcome) -> Finding:
        t = outcome.trouble
        if t is None:
            return Finding(False, says=f"It gave an answer; it should have raised {kind}.")
        missing = [p for p in parts if p not in t.message]
        if t.kind != kind or missing:
            lacks = f" (its message lacks {', '.join(map(repr, missing))})" if missing else ""
            return Finding(False, says=f"It raised {t.kind}: {t.message}{lacks}; expected {kind}.")
        return Finding(True)

    judge.expects_trouble = True  # type: ignore[attr-defined]
    return judge


def _count(n: int) -> str:
    return "nothing" if n == 0 else "1 result" if n == 1 else f"{n} results"


def _two(got: np.generic, right: np.generic) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see that they differ."""
    digits = 6 if _number(got) != _number(right) else 17
    return _number(got, digits), _number(right, digits)


def _number(x: np.generic, digits: int = 6) -> str:
    if x.dtype.kind == "b":
        return str(bool(x))
    whole = 1e3 <= abs(float(x)) < 1e15 and float(x).is_integer()  # a count of bytes: all its digits
    return f"{int(x):,}" if whole else f"{float(x):.{digits}g}"
