"""Axes and text placed in inches from the lower left corner, for pictures whose parts must not move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from .row_words import Piece
from .shade import shades
from .style import SMALL

WRONG = shades("wrong")(0.8)  # dark enough for text on white


def axes(fig: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Axes at a place of the figure."""
    wide, tall = fig.get_size_inches()
    return fig.add_axes((x / wide, y / tall, width / wide, height / tall))


def write(
    fig: Figure, x: float, y: float, pieces: Iterable[Piece], *, size: float = SMALL, room: float = 0.0, **options: Any
) -> None:
    """Write a line that starts at (x, y), its wrong pieces bold and coloured; smaller where the room is too little."""
    wide, tall = fig.get_size_inches()
    canvas: Any = fig.canvas
    texts, widths = list[Text](), list[float]()
    for piece in pieces:
        marked: dict[str, Any] = {"fontweight": "bold", "color": WRONG} if piece.wrong else {}
        texts.append(fig.text(0, y / tall, piece.text, **{"fontsize": size, "va": "baseline", **options, **marked}))
        widths.append(texts[-1].get_window_extent(canvas.get_renderer()).width / fig.dpi)
    shrunk = min(1.0, (room or wide - x - 0.1) / sum(widths))
    for text, width in zip(texts, widths, strict=True):
        text.set(x=x / wide, fontsize=shrunk * size)
        x += shrunk * width


def code(fig: Figure, x: float, y: float, line: str, *, rows: int = 2) -> None:
    """Write a line of code on grey, from (x, y) down: broken after a comma or a space, ended with … where it must."""
    wide, tall = fig.get_size_inches()
    probe = fig.text(0, 0, "0" * 50, fontsize=SMALL, family="monospace")
    canvas: Any = fig.canvas
    letters = int((wide - x - 0.15) * 50 * fig.dpi / probe.get_window_extent(canvas.get_renderer()).width)
    probe.remove()
    parts, rest = list[str](), line
    while len(rest) > letters and len(parts) < rows - 1:
        at = max(rest.rfind(" ", 0, letters), rest.rfind(",", 0, letters) + 1) or letters
        parts, rest = [*parts, rest[:at].rstrip()], "    " + rest[at:].strip()
    parts.append(rest if len(rest) <= letters else rest[: letters - 1] + "…")
    fig.text(x / wide, y / tall, "\n".join(parts), fontsize=SMALL, family="monospace", va="top", linespacing=1.15,
             bbox={"facecolor": "#F3F3F3", "edgecolor": "none", "pad": 3.0})  # fmt: skip
