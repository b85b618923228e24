"""What a learner has passed, kept in one small file of theirs. Losing it loses nothing but the map."""

from __future__ import annotations

import html
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
    remember(report.exercise.id, report.state)


def remember(exercise_id: str, state: str) -> None:
    """The same for a result that is known by its exercise and state alone."""
    if state == "not started" or os.environ.get("FLASHLIB_PROGRESS") == "":
        return
    kept = read()
    before = kept.get(exercise_id, {})
    before = before if isinstance(before, dict) else {}
    passed = state == "passed" or before.get("state") == "passed"
    kept[exercise_id] = {
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


MARKS = {"passed": "✓", "tried": "○", "": "·"}
LEGEND = "✓ passed, ○ tried, · not yet"


class Map:
    """All exercises of the course with what is known of them; prints as text, shows as a table in a notebook."""

    def __init__(self) -> None:
        from flashlib.grading import catalogue

        kept = read()
        self.chapters = {
            n: [(e.id, e.title, self._state(kept, e.id)) for e in catalogue.of_chapter(n)] for n in catalogue.CHAPTERS
        }
        states = [state for rows in self.chapters.values() for _, _, state in rows]
        self.summary = f"{states.count('passed')} of {len(states)} passed"

    @staticmethod
    def _state(kept: dict[str, Any], exercise_id: str) -> str:
        entry = kept.get(exercise_id)
        state = entry.get("state") if isinstance(entry, dict) else ""
        return state if state in ("passed", "tried") else ""

    def __str__(self) -> str:
        lines = ["   ".join(f"{name} {MARKS[state]}" for name, _, state in rows) for rows in self.chapters.values()]
        return "\n".join([*lines, f"{self.summary}   ({LEGEND})"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A row a chapter; the marks carry the meaning, and the titles stand beside them."""
        colour = {"passed": "#009E73", "tried": "#E69F00", "": "#999999"}
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left;vertical-align:top">{n:02d}</th><td style="text-align:left">'
            + " ".join(
                f'<span style="display:inline-block;border-left:4px solid {colour[state]};padding:0 .8em 0 .4em">'
                f"{MARKS[state]} {name} {html.escape(title)}</span>"
                for name, title, state in exercises
            )
            + "</td></tr>"
            for n, exercises in self.chapters.items()
        )
        head = '<tr><th scope="col">Chapter</th><th scope="col" style="text-align:left">Exercises</th></tr>'
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table><p>{self.summary} ({LEGEND}).</p>"


def show() -> Map:
    """The map, as the last value of a notebook's cell."""
    return Map()


def text() -> str:
    """The map as text: a line a chapter, ✓ passed, ○ tried, · not yet."""
    return str(Map())
