"""What a learner reads after a check: one line a property, the first failure in plain words, a picture of the error."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

from flashlib.grading.case import Case, Exercise, Finding

MARKS = {"passed": "✓", "failed": "✗", "skipped": "·"}


@dataclass(frozen=True)
class Line:
    """One property: "passed", "failed" or "skipped", and what was found."""

    state: str
    case: Case
    finding: Finding | None = None


@dataclass(frozen=True)
class Report:
    """The whole answer to one check. True if the exercise is passed; prints as text, shows as HTML in a notebook.

    ``state`` is "passed", "failed" or "not started". ``headline`` stands for a failure that is no property's, such as a
    library's attention. ``advice`` is what went wrong and the question that mends it.
    """

    exercise: Exercise
    seed: int
    state: str
    lines: tuple[Line, ...] = ()
    headline: str = ""
    advice: tuple[str, ...] = ()
    named: str = ""  # the known mistake's name
    seconds: float = field(default=0.0, compare=False)

    def __bool__(self) -> bool:
        return self.state == "passed"

    @property
    def failed(self) -> Line | None:
        """The first property that failed."""
        return next((line for line in self.lines if line.state == "failed"), None)

    def rows(self) -> list[tuple[str, str]]:
        """(mark and property, numbers) for each line; the skipped ones share the last."""
        out = []
        for line in self.lines:
            if line.state == "skipped":
                continue
            out.append((f"{MARKS[line.state]} {line.case.name}", numbers(line)))
        skipped = [line.case.name for line in self.lines if line.state == "skipped"]
        if skipped:
            out.append((f"{MARKS['skipped']} {', '.join(skipped)}: not tried until the rest is right", ""))
        return out

    def title(self) -> str:
        """Id and title, or what stands in for a result."""
        text = f"{self.exercise.id}  {self.exercise.title}"
        if self.state == "not started":
            return f"{text}: not started"
        return text

    def __str__(self) -> str:
        head = self.title()
        if self.state == "not started":
            where = self.exercise.stub or self.exercise.function
            return f"{head}. Replace `raise NotImplementedError` in {where} and run the cell again."
        text = [f"{head}   seed {self.seed}"]
        rows = self.rows()
        width = max((len(name) for name, n in rows if n), default=0)
        shown_advice = False
        for name, figures in rows:
            text.append(f"{name:<{width}}   {figures}".rstrip())
            if name.startswith(MARKS["failed"]) and not shown_advice:
                text += [f"    {a}" for a in self.advice]
                shown_advice = True
        if self.headline:
            text.append(f"{MARKS['failed']} {self.headline}")
        if not shown_advice:
            text += [f"    {a}" for a in self.advice]
        if self:
            text.append("Passed.")
        return "\n".join(text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same words, in a table with a coloured edge; the marks carry the meaning without the colour."""
        colour = {"passed": "#009E73", "failed": "#D55E00", "not started": "#999999"}[self.state]
        esc = html.escape
        if self.state == "not started":
            body = "<div>" + re.sub("`(.+?)`", r"<code>\1</code>", esc(str(self))) + "</div>"
        else:
            rows = "".join(
                f'<tr><th scope="row" style="text-align:left;font-weight:normal">{esc(name)}</th>'
                f'<td style="text-align:left;white-space:pre-wrap">{esc(figures)}</td></tr>'
                for name, figures in self.rows()
            )
            extra = f"<div>{MARKS['failed']} {esc(self.headline)}</div>" if self.headline else ""
            advice = "".join(f"<p style='margin:.4em 0 0 1.2em'>{esc(a)}</p>" for a in self.advice)
            done = "<p style='margin:.4em 0 0'><strong>Passed.</strong></p>" if self else ""
            body = (
                f"<div><strong>{esc(self.title())}</strong> &nbsp; seed {self.seed}</div>"
                f"<table>{rows}</table>{extra}{advice}{done}"
            )
        return f'<div style="border-left:4px solid {colour};padding-left:.8em">{body}</div>'


def numbers(line: Line) -> str:
    """ "error 2.0e-07   budget 9.9e-07   first wrong: row 0, column 2" for a line."""
    finding = line.finding
    if finding is None or finding.error is None or finding.budget is None:
        return place(line)
    if finding.budget == 0 and finding.result and float(finding.error).is_integer():
        text = "equal" if finding.ok else "differs"
    elif finding.result == "bytes":
        text = f"{finding.error:,.0f} B   at most {finding.budget:,.0f} B"
    else:
        text = f"error {finding.error:.1e}   budget {finding.budget:.1e}"
    return f"{text}   {place(line)}".rstrip()


def place(line: Line) -> str:
    """ "first wrong: row 0, column 2, tile (0, 1)"; "" if nothing is wrong or nothing was compared."""
    finding = line.finding
    if finding is None or finding.ok or not finding.where or (finding.ratio is not None and finding.ratio.size == 1):
        return ""
    parts = [f"{axis} {i}" for axis, i in zip(finding.axes, finding.where, strict=True)]
    if line.case.tile and finding.axes:
        for axis, size in (("row", line.case.tile[0]), ("key", line.case.tile[1])):
            if axis in finding.axes:
                parts.append(f"{axis} tile {finding.where[finding.axes.index(axis)] // size}")
    return f"first wrong: {finding.result + ', ' if finding.result else ''}{', '.join(parts)}"
