"""The whole course through the grader: solutions score full marks, untouched exercises nothing, and in good time."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashlib.grading import catalogue
from tests.files import ROOT

LIMIT_S = 180  # for all chapters' solutions and exercises together, on two cores


@pytest.mark.skipif(sys.platform != "linux", reason="the Triton chapters run on Linux only")
def test_solutions_score_full_marks_and_untouched_exercises_nothing(tmp_path: Path) -> None:
    for student in ("solutions", "exercises"):
        (tmp_path / "in" / student).mkdir(parents=True)
        for path in sorted((ROOT / student).glob("*.ipynb")):
            shutil.copy(path, tmp_path / "in" / student)
    start = time.perf_counter()
    line = [sys.executable, "-m", "flashlib", "grade", str(tmp_path / "in"), "-o", str(tmp_path / "grades.csv")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s for two notebooks of each chapter")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "grades.csv").open(encoding="utf-8", newline="") as file:
        untouched, solved = csv.DictReader(file)
    names = [e.id for e in catalogue.everything()]
    assert {k: v for k, v in solved.items() if k in names and v != "1"} == {} and solved["reason"] == ""
    assert untouched["reason"] == "; ".join(f"{name}: not started" for name in names)
    assert float(untouched["total"]) == 0 and float(solved["total"]) == len(names)
    assert seconds < LIMIT_S
