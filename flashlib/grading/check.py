"""`check("04.3", my_function)`: the cell after every exercise. Seconds, no install, and it never stops the notebook."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from flashlib.grading import harness, library_calls
from flashlib.grading.case import Case, Exercise, Finding, Outcome
from flashlib.grading.catalogue import find
from flashlib.grading.diagnose import Diagnosis, Failure, describe, diagnose
from flashlib.grading.report import Line, Report

Run = Callable[[Case], Outcome]
STEPS = "Write the steps yourself: arithmetic, matrix products, exp, log, max and sum are all you need."


def check(exercise_id: str, fn: Callable[..., Any] | None = None, *, seed: int | None = None) -> Report:
    """Try a learner's function on fresh inputs and say what is right, what is not, and which mistake it is.

    Parameters
    ----------
    exercise_id : as "04.3".
    fn : the learner's function.
    seed : the one a report printed, to try the same inputs again.

    Returns
    -------
    Report
        True if everything is right. In a notebook it is shown, with a picture of where the error lies.

    Raises
    ------
    KeyError
        There is no such exercise.
    TypeError
        ``fn`` cannot be called.
    """
    exercise = find(exercise_id)
    if not callable(fn):
        raise TypeError(f"check({exercise_id!r}, …) takes your function {exercise.function} as well, got {fn!r}")
    seed = secrets.randbelow(10**6) if seed is None else int(seed)
    start, resolve = library_calls.of_function(fn)
    report = judge(
        exercise,
        seed,
        lambda case: harness.run(fn, case, may_change=exercise.may_change),
        library_calls.find(start, resolve, exercise.forbidden),
    )
    from flashlib.grading.progress import note
    from flashlib.grading.show_report import show_report

    note(report)
    show_report(report)
    return report


def judge(exercise: Exercise, seed: int, run: Run, library: str | None = None) -> Report:
    """The report on one function, wherever ``run`` runs it.

    Cases are tried in order. After the first failure the rest that is not measured is still tried, so that the mistake
    can be named on more than one input; what is measured waits until the answers are right.
    """
    began = time.perf_counter()

    def report(state: str, lines: list[Line], **more: Any) -> Report:
        return Report(exercise, seed, state, tuple(lines), seconds=time.perf_counter() - began, **more)

    refused = library_calls.refused(exercise.forbidden)
    lines: list[Line] = []
    failures: list[Failure] = []
    passed: list[tuple[Case, Outcome]] = []
    for case, outcome in _outcomes(exercise, seed, run, failures, lines):
        if outcome.trouble and outcome.trouble.kind == "NotImplementedError" and not lines:
            return report("not started", [])
        used = library or next((n for n in outcome.called if n in refused), None)
        if used:
            return report(
                "failed", [], named=f"library call: {used}", headline=f"It calls {used}, which does the exercise.",
                advice=(STEPS,),
            )  # fmt: skip
        finding = _found(case, outcome)
        lines.append(Line("passed" if finding.ok else "failed", case, finding))
        if finding.ok:
            passed.append((case, outcome))
        else:
            failures.append(Failure(case, outcome, finding))
    if not failures:
        return report("passed", lines)
    diagnosis = diagnose(exercise, failures, passed)
    return report(
        "failed", lines, advice=_advice(failures[0], diagnosis), named=diagnosis.mistake.name if diagnosis else ""
    )


def _outcomes(
    exercise: Exercise, seed: int, run: Run, failures: list[Failure], lines: list[Line]
) -> Iterator[tuple[Case, Outcome]]:
    for case in exercise.cases(seed):
        if failures and (case.measured or _hopeless(failures)):
            lines.append(Line("skipped", case))
        else:
            yield case, run(case)


def _hopeless(failures: list[Failure]) -> bool:
    """Out of time or of memory: the next case would only cost the same again."""
    return failures[-1].outcome.trouble is not None and failures[-1].outcome.trouble.kind in (
        "MemoryError", "TimeLimit", "ProcessDied", "NotDefined",
    )  # fmt: skip


def _found(case: Case, outcome: Outcome) -> Finding:
    if outcome.trouble and not getattr(case.judge, "expects_trouble", False):
        t = outcome.trouble
        at = f" Line {t.number}: {t.line}" if t.line else ""
        return Finding(False, says=f"{t.kind}: {t.message}".rstrip(": ") + "." * (not t.message.endswith(".")) + at)
    if outcome.changed:
        what = " and ".join(outcome.changed)
        return Finding(False, says=f"It wrote to {what}; inputs belong to the caller. Work on a copy.")
    return case.judge(outcome)


def _advice(first: Failure, diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """What went wrong, in words; then the mistake it equals, or what is true of the error; then the question."""
    says = first.finding.says
    if diagnosis is None:
        return tuple(s for s in (says, describe(first)) if s)
    m = diagnosis.mistake
    same = "It fails in the same way as" if first.outcome.trouble else "Your output equals that of"
    clause = m.says if m.says[:1].isupper() else f"{same} {m.says}"
    more = "" if diagnosis.equal == diagnosis.tried else " Another case fails in a way that this does not explain."
    return tuple(s for s in (says, clause.rstrip(".") + "." + more, m.ask) if s)
