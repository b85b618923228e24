"""Grade one notebook: a child process runs its code, this process judges what comes back.

The child is kept for all exercises of the notebook. When it is out of time or memory, or dies, the exercise it was
busy with is lost and a new child takes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashlib.grading import catalogue, feedback, library_calls, process, submission
from flashlib.grading.case import Case, Exercise, Outcome, Trouble
from flashlib.grading.check import judge
from flashlib.grading.limits import Limits
from flashlib.grading.report import Report
from flashlib.grading.result import UNJUDGED, Result, reason, seed_of

MOST_BAD_CELLS = 3


def grade(
    path: Path, secret: str, limits: Limits, *, chapters: Sequence[int] | None = None, marker: str = "1",
    confine: bool = True, done: Callable[[Result], None] = lambda _: None,
) -> tuple[list[Result], str]:  # fmt: skip
    """Grade the notebook at ``path``.

    Parameters
    ----------
    secret : from which the seeds are made.
    chapters : which chapters' exercises; None finds out from the notebook.
    marker : put into the environment of all that is started, to find it again.
    confine : use Landlock where the system has it.
    done : called with each result as it comes.

    Returns
    -------
    results, note
        ``note`` says what was wrong with the notebook as a whole, "" if nothing.
    """
    handed_in = submission.read(path)
    wanted = submission.chapters_of(handed_in, path.name)
    if chapters is not None:
        wanted = [n for n in wanted if n in chapters] or (list(chapters) if handed_in.reason else [])
    exercises = [e for n in wanted for e in catalogue.of_chapter(n)]
    note = handed_in.reason
    if not exercises and not note:
        note = "no exercise of the course was found in it" if chapters is None else "it is of another chapter"
    results = []
    with Runner(handed_in, limits, marker, confine) as runner:
        for exercise in exercises:
            result = runner.grade(exercise, seed_of(secret, exercise.id))
            results.append(result)
            done(result)
    return results, note


class Runner:
    """Holds the child of one notebook."""

    def __init__(self, handed_in: submission.Submission, limits: Limits, marker: str, confine: bool) -> None:
        self.notebook, self.limits, self.marker, self.confine = handed_in, limits, marker, confine
        self.child: process.Child | None = None
        self.errors: dict[int, str] = {}  # cell → the exception it ended with
        self.bad: dict[int, str] = {}  # cell → why it stopped the child; it is not run again
        self.left = limits.submission_s

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """End the child and all it started."""
        if self.child is not None:
            self.child.close()
            self.child = None

    def grade(self, exercise: Exercise, seed: int) -> Result:
        """Judge one exercise."""
        began = time.perf_counter()
        zero = Result(exercise.id, exercise.title, "failed", 0.0, exercise.points, self.notebook.reason, seed)
        if self.notebook.reason:
            return zero
        start, resolve = library_calls.of_cells([c.code for c in self.notebook.cells], exercise.function)
        budget = self.limits.exercise_s * (self.limits.triton if exercise.triton else 1)
        clock = _Clock(budget)
        # What gave no answer resembles no known mistake: then none is run.
        tried = replace(exercise, mistakes=lambda: () if clock.stopped else exercise.mistakes())
        try:
            report = self._missing(exercise, seed)
            if report is None:
                used = library_calls.find(start, resolve, exercise.forbidden)
                report = judge(tried, seed, lambda case: self._outcome(tried, case, clock), used)
        except process.NotStarted:
            raise
        except Exception as error:  # an outcome that a judge cannot read: forged, or a fault of ours; never a crash
            self.drop()
            says = f"{UNJUDGED} ({type(error).__name__}: {error})"
            return Result(**{**zero.plain(), "reason": says})
        return Result(
            exercise.id, exercise.title, report.state, exercise.points if report else 0.0, exercise.points,
            reason(report), seed, str(report), feedback.fragment(report), report.named, time.perf_counter() - began,
        )  # fmt: skip

    def _missing(self, exercise: Exercise, seed: int) -> Report | None:
        """The report on a function that the notebook, once run, does not have; None if it has it."""
        try:
            self._ready()
            assert self.child is not None
            if self.child.ask({"do": "defined", "name": exercise.function}, self.limits.exercise_s).get("defined"):
                return None
            why = submission.not_defined(exercise, self.notebook.cells, self.errors | self.bad)
        except process.Stopped as stopped:
            self.drop()
            why = f"{stopped.kind}: {stopped}"
        return Report(exercise, seed, "failed", headline=f"{why}.")

    def _outcome(self, exercise: Exercise, case: Case, clock: _Clock) -> Outcome:
        """Have the child make one call."""
        began = time.monotonic()
        try:
            self._ready()
            sent = Case(case.name, case.args, None, case.kwargs, case.how, case.options)  # type: ignore[arg-type]
            request = {"do": "run", "name": exercise.function, "case": sent, "may_change": exercise.may_change}
            assert self.child is not None
            began = time.monotonic()
            outcome = self.child.call(request, min(clock.left, self.left))
        except process.Stopped as stopped:
            self.drop()
            clock.stopped = True
            outcome = Outcome(trouble=Trouble(stopped.kind, str(stopped)))
        spent = time.monotonic() - began
        clock.left -= spent
        self.left -= spent
        if outcome.trouble and outcome.trouble.kind == "RuntimeError" and "allocate memory" in outcome.trouble.message:
            outcome = Outcome(trouble=outcome.trouble._replace(kind="MemoryError"))  # torch's word for it
        if outcome.trouble and outcome.trouble.kind == "MemoryError":
            self.drop()
        return outcome

    def _ready(self) -> None:
        """A child that has run the cells. A cell that stopped an earlier child is left out."""
        while self.child is None:
            if self.left <= 0:
                raise process.Stopped("TimeLimit", f"the notebook's {self.limits.submission_s:g} s are used up")
            if len(self.bad) > MOST_BAD_CELLS:
                raise process.Stopped("ProcessDied", f"more than {MOST_BAD_CELLS} cells stopped the process")
            self.errors = {}
            self.child = process.Child(self.notebook, self.limits, self.marker, self.confine)
            for i, cell in enumerate(self.notebook.cells):
                if i in self.bad:
                    continue
                began = time.monotonic()
                try:
                    request = {"do": "cell", "name": cell.id, "code": cell.code}
                    error = self.child.ask(request, min(self.limits.exercise_s, self.left)).get("error")
                except process.Stopped as stopped:
                    self.bad[i] = f"{stopped.kind}: {stopped}"
                    self.drop()
                    break
                finally:
                    self.left -= time.monotonic() - began
                if isinstance(error, str):
                    self.errors[i] = process.wire.words(error, 400)


@dataclass
class _Clock:
    """Seconds that are left for an exercise, and whether a child was lost over it."""

    left: float
    stopped: bool = False
