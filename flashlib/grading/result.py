"""What is written down of one exercise of one notebook, and the seed that it was drawn from."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from flashlib.grading.report import Report

UNJUDGED = "the answer could not be judged"


@dataclass(frozen=True)
class Result:
    """One exercise of one notebook. ``state`` is "passed", "failed" or "not started"; ``reason`` is one line."""

    id: str
    title: str
    state: str
    points: float
    out_of: float
    reason: str
    seed: int = 0
    text: str = ""  # the report, as `check` prints it
    html: str = ""  # the same for a page, with the picture
    named: str = ""
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As a dict, for a journal."""
        return asdict(self)


def seed_of(secret: str, exercise_id: str) -> int:
    """The seed of an exercise in a grading run: the same for all who are graded in it, and unknown before."""
    return int.from_bytes(hashlib.sha256(f"{secret}:{exercise_id}".encode()).digest()[:8], "big") % 10**6


def reason(report: Report) -> str:
    """Why there are no points, in one line; "" if the exercise is passed."""
    if report.state == "not started":
        return "not started"
    if report:
        return ""
    line = report.failed
    parts = [report.headline or (f"{line.case.name}: {report.advice[0]}" if line and report.advice else "failed")]
    if report.named and not report.headline:
        parts.append(f"[{report.named}]")
    return " ".join(" ".join(parts).split())
