"""What a learner has passed, kept in one small file of theirs. Losing it loses nothing but the map."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from flashlib.grading.report import Report

NAME = ".flash-progress.json"


def path() -> Path:
    """Where the file lies: FLASHLIB_PROGRESS if set, else beside the package, in the course's folder."""
    named = os.environ.get("FLASHLIB_PROGRESS")
    return Path(named) if named else Path(__file__).resolve().parents[2] / NAME


def read() -> dict[str, Any]:
    """Exercise id → {"state", "tries", "when"}; {} if there is no file or it cannot be read."""
    try:
        kept = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def note(report: Report) -> None:
    """Remember the result of a check. Once passed stays passed. A folder that cannot be written is no error."""
    if report.state == "not started" or os.environ.get("FLASHLIB_PROGRESS") == "":
        return
    kept = read()
    before = kept.get(report.exercise.id, {})
    before = before if isinstance(before, dict) else {}
    passed = report.state == "passed" or before.get("state") == "passed"
    kept[report.exercise.id] = {
        "state": "passed" if passed else "tried",
        "tries": int(before.get("tries", 0)) + 1,
        "when": before.get("when") if before.get("state") == "passed" else time.strftime("%Y-%m-%d"),
    }
    try:
        new = path().with_suffix(".new")
        new.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path())
    except OSError:
        return


def text() -> str:
    """The map as text: a line a chapter, ✓ passed, ○ tried, · not yet."""
    from flashlib.grading import catalogue

    kept = read()
    lines, passed, number = [], 0, 0
    for n in catalogue.CHAPTERS:
        marks = []
        for e in catalogue.of_chapter(n):
            state = kept.get(e.id, {}).get("state")
            number, passed = number + 1, passed + (state == "passed")
            marks.append(f"{e.id} {'✓' if state == 'passed' else '○' if state else '·'}")
        lines.append("   ".join(marks))
    return "\n".join([*lines, f"{passed} of {number} passed   (✓ passed, ○ tried, · not yet)"])
