"""All exercises by id. A chapter's exercises are loaded when one of them is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from flashlib.grading.case import Exercise

CHAPTERS = tuple(
    n for n in range(1, 14) if find_spec(f"flashlib.grading.checks.ch{n:02d}") is not None
)  # which chapters have exercises


def of_chapter(number: int) -> list[Exercise]:
    """The exercises of a chapter, in order; [] for a chapter without any."""
    if number not in CHAPTERS:
        return []
    return list(import_module(f"flashlib.grading.checks.ch{number:02d}").EXERCISES)


def find(exercise_id: str) -> Exercise:
    """The exercise with this id, as "04.3".

    Raises
    ------
    KeyError
        No such exercise: the message lists those of the chapter, or the chapters.
    """
    head = str(exercise_id).split(".")[0]
    known = of_chapter(int(head)) if head.isdigit() else []
    for exercise in known:
        if exercise.id == exercise_id:
            return exercise
    there = ", ".join(e.id for e in known) or "chapters " + ", ".join(f"{n:02d}" for n in CHAPTERS)
    raise KeyError(f"no exercise {exercise_id!r}; there are {there}")


def everything() -> list[Exercise]:
    """Every exercise of the course, in order."""
    return [e for n in CHAPTERS for e in of_chapter(n)]
