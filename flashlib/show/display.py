"""Put a figure, an explorer or a table in front of every reader, with the text that says the same."""

import html
import re
from collections.abc import Sequence
from typing import Any

from .bundle import bundle, described, encoded, publish
from .explorer import choose, explore

__all__ = ["bundle", "choose", "explore", "show", "table"]

SHORT_CELL, SHORT_CAPTION = 30, 80  # characters; what is shorter stays on one line
_NUMBER = r"[−\-+~<>≤≥≈]*\s*\d[\d.,]*(?:e[−+-]?\d+)?"
_UNIT = r"(?:\s?(?:%|[^\W\d_]{1,6}(?:/[^\W\d_]{1,5})?))?"
_NUMBERS = re.compile(rf"{_NUMBER}{_UNIT}(?:(?:\s?(?:×|/|–|±|of|to|,)\s?|\s){_NUMBER}{_UNIT})*")


def show(fig: Any, *, alt: str, caption: str | None = None) -> None:
    """Show a figure once, with alternative text, and close it.

    Parameters
    ----------
    fig : matplotlib Figure or Axes
    alt : str
        What a reader who cannot see the picture must know: what is drawn, and what it shows, with the numbers.
    caption : str, optional
        A line under the picture, for everyone.

    Raises
    ------
    ValueError
        `alt` is blank or too short to describe a figure.
    """
    alt = described(alt)
    publish(bundle(encoded(fig), alt, caption), alt)


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], caption: str | None = None) -> None:
    """Show a table whose header cells are marked as such; the first column names the rows.

    Parameters
    ----------
    rows : sequence of sequences
        Cells are printed with ``str``; a column of numbers, with or without a unit, is set to the right.
    headers : sequence of str
        One per column.
    caption : str, optional
        What the table tells.

    Raises
    ------
    ValueError
        A row is longer or shorter than `headers`.
    """
    cells = [[str(c) for c in row] for row in rows]
    for i, row in enumerate(cells):
        if len(row) != len(headers):
            raise ValueError(f"row {i} has {len(row)} cells, the table has {len(headers)} headers")
    right = [bool(cells) and all(_numeric(row[j]) for row in cells) for j in range(len(headers))]
    esc = html.escape

    def cell(j: int, text: str) -> str:
        wrap = ";white-space:nowrap" if len(text) < SHORT_CELL else ""
        align = f' style="text-align:{"right" if right[j] else "left"}{wrap}"'
        return f'<th scope="row"{align}>{esc(text)}</th>' if j == 0 else f"<td{align}>{esc(text)}</td>"

    head = "".join(
        f'<th scope="col" style="text-align:{"right" if right[j] else "left"}">{esc(str(h))}</th>'
        for j, h in enumerate(headers)
    )
    body = "".join("<tr>" + "".join(cell(j, c) for j, c in enumerate(row)) + "</tr>" for row in cells)
    # A caption would otherwise be broken to the width of the columns, however narrow they are.
    wrap = ";white-space:nowrap" if caption and len(caption) < SHORT_CAPTION else ""
    title = f'<caption style="text-align:left{wrap}">{esc(caption)}</caption>' if caption else ""
    widths = [max([len(str(h)), *(len(row[j]) for row in cells)]) for j, h in enumerate(headers)]

    def line(row: Sequence[str]) -> str:
        parts = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(parts).rstrip()

    text = "\n".join(
        [
            *([caption] if caption else []),
            line([str(h) for h in headers]),
            "  ".join("-" * w for w in widths),
            *map(line, cells),
        ]
    )
    page = f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    publish({"text/html": page, "text/plain": text}, text)


def _numeric(text: str) -> bool:
    """Whether a cell is a number, or several, each perhaps with a unit: "1.5 GiB", "3 of 15", not "05 · Backward"."""
    return bool(_NUMBERS.fullmatch(text.strip()))
