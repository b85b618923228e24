"""The grader graded: every known mistake must be rejected and named, every right variant accepted.

Right variants lie beside the solutions (solutions/right/chNN.py), so that a learner's copy of the package holds none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flashlib.grading import catalogue, harness, library_calls
from flashlib.grading.case import Exercise
from flashlib.grading.check import judge
from flashlib.grading.report import Report

RIGHT = Path(__file__).resolve().parents[2] / "solutions" / "right"


class Cell(NamedTuple):
    """One function tried on one exercise with one seed."""

    exercise: str
    seed: int
    kind: str  # "right" | "mistake"
    name: str
    state: str  # the report's
    named: str  # the mistake the grader named, "" if none
    failed: str  # the first property that failed
    seconds: float

    @property
    def ok(self) -> bool:
        """Right accepted, or mistake rejected."""
        return (self.state == "passed") == (self.kind == "right")

    @property
    def named_rightly(self) -> bool:
        """The mistake was called by its name."""
        return self.kind == "mistake" and self.named == self.name


def right_variants(chapter: int) -> dict[str, dict[str, Callable[..., Any]]]:
    """Exercise id → name → a right function, from solutions/right/chNN.py; {} if that file is not there."""
    path = RIGHT / f"ch{chapter:02d}.py"
    if not path.is_file():
        return {}
    name = f"flash_course_right_ch{chapter:02d}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a Triton kernel looks its own module up
    spec.loader.exec_module(module)
    return module.RIGHT


def try_one(exercise: Exercise, fn: Callable[..., Any], seed: int) -> Report:
    """The report on a function, as `check` makes it, without showing or remembering it."""
    start, resolve = library_calls.of_function(fn)
    used = (
        None
        if fn.__module__.startswith("flashlib.grading.mistakes")
        else library_calls.find(start, resolve, exercise.forbidden)
    )
    return judge(exercise, seed, lambda case: harness.run(fn, case, may_change=exercise.may_change), used)


def work(chapters: Sequence[int] | None = None) -> list[tuple[Exercise, str, str, Callable[..., Any]]]:
    """(exercise, kind, name, function) for every right variant and every mistake of these chapters."""
    todo = []
    for n in catalogue.CHAPTERS if chapters is None else chapters:
        right = right_variants(n)
        for exercise in catalogue.of_chapter(n):
            todo += [(exercise, "right", name, fn) for name, fn in right.get(exercise.id, {}).items()]
            todo += [(exercise, "mistake", m.name, m.wrong) for m in exercise.mistakes()]
    return todo


def run_one(exercise: Exercise, kind: str, name: str, fn: Callable[..., Any], seeds: Sequence[int]) -> Iterator[Cell]:
    """Try one function on every seed."""
    for seed in seeds:
        report = try_one(exercise, fn, seed)
        failed = report.failed.case.name if report.failed else report.headline
        yield Cell(exercise.id, seed, kind, name, report.state, report.named, failed, report.seconds)


def run(seeds: Sequence[int], chapters: Sequence[int] | None = None) -> Iterator[Cell]:
    """Try everything on every seed."""
    for exercise, kind, name, fn in work(chapters):
        yield from run_one(exercise, kind, name, fn, seeds)
