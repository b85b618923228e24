"""The export for nbgrader: its form always, and the whole cycle where nbgrader's environment has been built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashlib.grading import catalogue, nbgrader_export
from tools import nbgrader_cycle


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All chapters, exported."""
    folder = tmp_path_factory.mktemp("nbgrader") / "course"
    nbgrader_export.write(folder)
    return folder


def test_every_exercise_is_a_grade_cell_with_its_points(course: Path) -> None:
    found = {}
    for path in sorted(course.glob("source/*/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            marks = cell["metadata"].get("nbgrader")
            has_solution = "# BEGIN SOLUTION" in "".join(cell["source"])
            assert has_solution == bool(marks and marks["solution"]), cell["id"]
            if marks and marks["grade"]:
                assert marks["locked"] and marks["grade_id"] == cell["id"] and "assert report" in cell["source"]
                found[cell["id"].removeprefix("check-").replace("-", ".")] = marks["points"]
    chapters = {int(p.name[-2:]) for p in course.glob("source/*")}
    assert found == {e.id: e.points for n in chapters for e in catalogue.of_chapter(n)} and found
    assert (course / "flashlib" / "setup.py").is_file(), "the first cell looks for it"


def test_nothing_is_overwritten(course: Path) -> None:
    with pytest.raises(FileExistsError):
        nbgrader_export.write(course)


@pytest.mark.skipif(not nbgrader_cycle.there(), reason="no nbgrader here; `python -m tools.nbgrader_cycle` installs it")
def test_nbgrader_generates_autogrades_and_scores(tmp_path: Path) -> None:
    scores, most, seconds = nbgrader_cycle.cycle(tmp_path / "course", 3, "merge")
    print({step: round(s, 1) for step, s in seconds.items()})
    assert scores == {"solved": most, "untouched": 0.0, "spoilt": most - 1}
