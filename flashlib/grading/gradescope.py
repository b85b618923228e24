"""One learner's results in the shape that Gradescope's autograder reads from results.json."""

from __future__ import annotations

from typing import Any

from flashlib.grading.gradebook import Row


def results(row: Row) -> dict[str, Any]:
    """The object to write as JSON: points, and a test for each exercise with the report as text."""
    tests = [
        {
            "number": r["id"],
            "name": f"{r['id']} {r['title']}",
            "score": r["points"],
            "max_score": r["out_of"],
            "status": "passed" if r["state"] == "passed" else "failed",
            "output": r["text"] or r["reason"],
            "output_format": "text",
            "visibility": "visible",
        }
        for r in row.results.values()
    ]
    note = "; ".join(row.notes) or ("" if tests else "no exercise of the course was found")
    return {"score": row.total, "output": note, "output_format": "text", "visibility": "visible", "tests": tests}
