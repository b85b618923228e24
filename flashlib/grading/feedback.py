"""A learner's results as one HTML page that needs nothing else: the report of each exercise, as `check` shows it."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Any

from flashlib.grading.report import Report, place

STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
       background: #fff; }
table { border-collapse: collapse; margin: .5rem 0; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
section { margin: 2rem 0; } img { max-width: 100%; height: auto; }
"""
WORDS = {"passed": "✓ passed", "failed": "✗ not passed", "not started": "· not started"}


def fragment(report: Report) -> str:
    """The report as HTML, with a picture of the first wrong matrix where there is one."""
    line = report.failed
    ratio = line.finding.ratio if line is not None and line.finding is not None else None
    if line is None or line.finding is None or ratio is None or ratio.size <= 1 or min(ratio.shape) == 0:
        return report._repr_html_()
    from flashlib.grading.show_report import picture
    from flashlib.show.bundle import encoded

    png = base64.b64encode(encoded(picture(ratio, line.finding.axes, line.case.tile))).decode("ascii")
    alt = (
        f"Map of the first wrong matrix: {int((ratio > 1).sum())} of {ratio.size} numbers are beyond the error budget; "
        f"{place(line)}."
    )
    return f'{report._repr_html_()}<img src="data:image/png;base64,{png}" alt="{html.escape(alt)}">'


def page(student: str, results: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> str:
    """The page of one learner.

    Parameters
    ----------
    results : `result.Result.plain()` of each exercise.
    notes : what was wrong with whole notebooks.
    """
    esc = html.escape
    points, most = sum(r["points"] for r in results), sum(r["out_of"] for r in results)
    rows = "".join(
        f'<tr><th scope="row"><a href="#e{esc(r["id"])}">{esc(r["id"])}</a> {esc(r["title"])}</th>'
        f"<td>{WORDS[r['state']]}</td><td>{r['points']:g} of {r['out_of']:g}</td></tr>"
        for r in results
    )
    head = '<tr><th scope="col">Exercise</th><th scope="col">Result</th><th scope="col">Points</th></tr>'
    table = f"<table><caption>Results</caption><thead>{head}</thead><tbody>{rows}</tbody></table>" if results else ""
    parts = "".join(
        f'<section id="e{esc(r["id"])}"><h2>{esc(r["id"])} {esc(r["title"])}: {WORDS[r["state"]]}</h2>'
        f"{r['html'] or '<p>' + esc(r['reason']) + '</p>'}{_again(r)}</section>"
        for r in results
    )
    said = "".join(f"<p><strong>{esc(n)}</strong></p>" for n in notes)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Results of {esc(student)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body><main>'
        f"<h1>Results of {esc(student)}</h1><p>{points:g} of {most:g} points.</p>{said}{table}{parts}"
        "</main></body></html>\n"
    )


def _again(r: dict[str, Any]) -> str:
    """How to try the same inputs at home."""
    if r["state"] != "failed" or not r["html"]:
        return ""
    return (
        f'<p>To try the same inputs: <code>check("{html.escape(r["id"])}", your_function, seed={r["seed"]})</code></p>'
    )
