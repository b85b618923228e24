"""The export for nbgrader, tried with nbgrader itself: generate, submit, autograde, export.

    python -m tools.nbgrader_cycle            build/nbgrader is made if it is missing; then the cycle runs
    python -m tools.nbgrader_cycle --chapter 1

nbgrader lives in an environment of its own, since it brings a Jupyter of its own. Only the NumPy chapters can be tried
there: no torch is installed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flashlib.grading import nbgrader_export
from tools.course import ROOT

HOME = ROOT / "build" / "nbgrader"
PACKAGES = ("nbgrader>=0.9", "numpy>=2.0", "matplotlib>=3.9", "ipywidgets>=7.7")


def there() -> bool:
    """Whether the environment has been built."""
    return (HOME / "bin" / "nbgrader").is_file()


def build() -> None:
    """Make the environment: about 100 packages, once."""
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    subprocess.run([str(HOME / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES], check=True)


def cycle(folder: Path, chapter: int, spoilt: str) -> tuple[dict[str, float], float, dict[str, float]]:
    """Run it for three students in an empty folder.

    "solved" hands in the solutions, "untouched" the release, "spoilt" the solutions with the cell ``fn-<spoilt>`` wrong
    and all check cells emptied.

    Returns
    -------
    scores, most, seconds
        Points of each student, the points there are, and the time of each step.
    """
    name = nbgrader_export.write(folder, [chapter])[0]
    seconds: dict[str, float] = {}

    def nbgrader(step: str, *words: str) -> None:
        start = time.perf_counter()
        # nbgrader looks for its own tools on PATH
        env = os.environ | {"PATH": f"{HOME / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}", "OMP_NUM_THREADS": "1"}
        line = [str(HOME / "bin" / "nbgrader"), step, *words]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"nbgrader {step} failed:\n{done.stderr[-3000:]}")
        seconds[step] = time.perf_counter() - start

    nbgrader("generate_assignment", name)
    file = f"{chapter:02d}_exercises.ipynb"
    release, solved = folder / "release" / name / file, folder / "source" / name / file
    if "BEGIN SOLUTION" in release.read_text(encoding="utf-8"):
        raise RuntimeError("the release holds a solution")
    bad = json.loads(solved.read_text(encoding="utf-8"))
    for cell in bad["cells"]:
        if cell["id"] == f"fn-{spoilt}":
            cell["source"] = f"def {spoilt}(*anything):\n    return anything[0]"
        elif cell["id"].startswith("check-"):
            cell["source"] = "pass"
    for student, text in (
        ("solved", solved.read_text(encoding="utf-8")),
        ("untouched", release.read_text(encoding="utf-8")),
        ("spoilt", json.dumps(bad)),
    ):
        place = folder / "submitted" / student / name
        place.mkdir(parents=True)
        (place / file).write_text(text, encoding="utf-8")
    nbgrader("autograde", name)
    nbgrader("export")
    with (folder / "grades.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    return {r["student_id"]: float(r["score"]) for r in rows}, float(rows[0]["max_score"]), seconds


def main(argv: list[str] | None = None) -> int:
    """Build if needed, run, print; 0 if everyone got what they deserve."""
    parser = argparse.ArgumentParser(prog="python -m tools.nbgrader_cycle", description=__doc__)
    parser.add_argument("--chapter", type=int, default=3)
    parser.add_argument("--spoilt", default="merge", help="the function one student gets wrong")
    args = parser.parse_args(argv)
    if not there():
        print(f"building {HOME.relative_to(ROOT)} …", flush=True)
        build()
    folder = Path(tempfile.mkdtemp()) / "course"
    try:
        scores, most, seconds = cycle(folder, args.chapter, args.spoilt)
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    print(", ".join(f"{s}: {points:g} of {most:g}" for s, points in scores.items()))
    print(", ".join(f"{step} {s:.1f} s" for step, s in seconds.items()))
    return int(scores != {"solved": most, "untouched": 0.0, "spoilt": most - 1})


if __name__ == "__main__":
    sys.exit(main())
