"""The exercises as a course folder for nbgrader: assignments with its metadata, its settings, and this package beside.

nbgrader itself is not needed to write it. Solutions are the source; nbgrader cuts them out when it makes a release.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashlib.grading import catalogue

PACKAGE = Path(__file__).resolve().parents[1]
SOLUTIONS = PACKAGE.parent / "solutions"
CONFIG = '''\
"""nbgrader's settings for this course."""

import os

os.environ.setdefault("FLASHLIB_PROGRESS", "")  # grading is no learner's progress
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "flash"
c.ClearSolutions.code_stub = {"python": "# your code here\\nraise NotImplementedError"}
c.ExecutePreprocessor.timeout = 120  # seconds for a cell
'''


def assignment(notebook: dict[str, Any]) -> dict[str, Any]:
    """A solution notebook with nbgrader's metadata, made from its cell ids.

    Cells with a solution are the student's; the cells that set up are locked; each check is worth its exercise's points
    and raises when the exercise is not passed, which is how nbgrader learns of it.

    Raises
    ------
    KeyError
        A check cell names an exercise that does not exist.
    """
    cells = []
    for cell in notebook["cells"]:
        cell = {**cell, "metadata": dict(cell.get("metadata", {}))}
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = source.replace(": solutions", ": exercises")
        elif m := re.fullmatch(r"check-(\d\d)-(\d+)", cell["id"]):
            exercise = catalogue.find(f"{m[1]}.{m[2]}")
            cell["source"] = _raising(source)
            cell["metadata"]["nbgrader"] = _metadata(cell["id"], grade=True, locked=True, points=exercise.points)
        elif "# BEGIN SOLUTION" in source:
            cell["metadata"]["nbgrader"] = _metadata(cell["id"], solution=True)
        elif cell["id"] in ("setup", "imports"):
            cell["metadata"]["nbgrader"] = _metadata(cell["id"], locked=True)
        cells.append(cell)
    return {**notebook, "cells": cells}


def _raising(source: str) -> str:
    """`check("03.2", merge)` as a cell that shows the report and raises unless it is passed."""
    call = source.strip()
    return f'report = {call}\nprint(report)\nassert report, f"{{report.exercise.id}} is not passed yet"'


def _metadata(
    name: str, *, grade: bool = False, solution: bool = False, locked: bool = False, points: float | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "grade": grade, "grade_id": name, "locked": locked, "schema_version": 3, "solution": solution, "task": False,
    }  # fmt: skip
    return made if points is None else made | {"points": points}


def write(folder: Path, chapters: Sequence[int] | None = None) -> list[str]:
    """Write a course folder for nbgrader.

    Parameters
    ----------
    folder : new, or empty.
    chapters : only these; None for all that have solutions.

    Returns
    -------
    list of str
        The assignments' names, "flash-03" and so on.

    Raises
    ------
    FileNotFoundError
        There are no solutions for these chapters.
    FileExistsError
        The folder holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty")
    sources = {int(p.name[:2]): p for p in sorted(SOLUTIONS.glob("[0-9][0-9]_solutions.ipynb"))}
    wanted = sorted(n for n in sources if n in catalogue.CHAPTERS and (chapters is None or n in chapters))
    if not wanted:
        raise FileNotFoundError(f"{SOLUTIONS} holds no solutions of these chapters")
    names = []
    for n in wanted:
        notebook = json.loads(sources[n].read_text(encoding="utf-8"))
        name = f"flash-{n:02d}"
        place = folder / "source" / name
        place.mkdir(parents=True)
        text = json.dumps(assignment(notebook), indent=1, ensure_ascii=False) + "\n"
        (place / f"{n:02d}_exercises.ipynb").write_text(text, encoding="utf-8")
        names.append(name)
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    # The first cell of a notebook looks for the package in the folders above it.
    shutil.copytree(PACKAGE, folder / "flashlib", ignore=shutil.ignore_patterns("__pycache__"))
    return names
