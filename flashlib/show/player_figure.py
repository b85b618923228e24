"""The player's picture of one step: the score tiles, HBM and SRAM and what crosses, the row, the bytes, the line."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from .frame import blank, headline
from .inches import axes, code, write
from .player_grid import margin, matrix
from .playing import Playing
from .row_words import Piece
from .style import COLOR, HATCH, INK, PALE, PAPER, SMALL, TEXT, styled

WIDE, TALL = 9.0, 5.9  # inches: as wide as a notebook's output in a window of 1280 pixels, and two thirds as high
LARGE, MOST = 15, 8  # points; tensors or slots in a memory
_LOOKS = {"acc": "O", "m": "masked", "l": "masked", "LSE": "masked"}


@styled
def draw(play: Playing, n: int) -> Figure:
    """Draw step n."""
    fig = blank((WIDE, TALL))
    fig.set_layout_engine("none")
    headline(fig, play.title(n))
    left = margin(play)
    matrix(axes(fig, left, 2.6, 3.8 - left, 2.3), play, n)
    _memories(axes(fig, 4.05, 2.25, 4.85, 2.98), play, n)
    _bytes(axes(fig, 5.55, 0.72, 3.3, 1.2), play, n)
    moved = f"{play.step(n).moved:,} B moved, of {play.run.total:,} B"
    write(fig, 5.55, 1.76, [Piece(moved)], room=3.4, fontweight="bold")
    write(fig, 5.55, 1.2, [Piece(f"{play.naive_as}: {play.naive:,} B")], room=3.4)
    head, *lines = play.lines(n)
    write(fig, 0.15, 1.76, head, size=TEXT, room=5.3, fontweight="bold")
    for k, line in enumerate(lines):
        write(fig, 0.15, 1.46 - 0.27 * k, line, size=LARGE if k == 0 else SMALL, room=5.3)
    code(fig, 0.15, 0.5, play.code(n) or "line of code: not recorded (use trace=True)")
    return fig


def _memories(ax: Axes, play: Playing, n: int) -> None:
    """HBM at the left, the chip at the right, and between them an arrow if this step moves something."""
    step = play.step(n)
    ax.set_axis_off()
    ax.set_xlim(0, 4.85)
    ax.set_ylim(0, 2.98)
    for x, width, head, color in ((0.05, 1.15, "HBM", COLOR["HBM"]), (2.35, 2.45, play.room(n), COLOR["SRAM"])):
        ax.add_patch(FancyBboxPatch((x, 0.05), width, 2.6, boxstyle="round,pad=0,rounding_size=0.1", facecolor=PAPER,
                                    edgecolor=color, linewidth=2.6))  # fmt: skip
        ax.text(x + 0.02, 2.74, head, fontsize=SMALL, fontweight="bold")
    stored = list(dict.fromkeys(s.name for s in play.run.steps if s.op in ("load", "store", "atomic")))[:MOST]
    crosses = step.op in ("load", "store", "atomic")
    for k, name in enumerate(stored):
        _item(ax, 0.17, 2.31 - 0.31 * k, name, "", crosses and name == step.name)
    for k, (slot, size) in enumerate(list(step.held.items())[:MOST]):
        _item(ax, 2.47, 2.31 - 0.31 * k, slot, f"{size:,} B", slot == step.slot)
    if crosses and step.name in stored:
        y = 2.42 - 0.31 * stored.index(step.name)
        ends = ((1.24, y), (2.31, y)) if step.op == "load" else ((2.31, y), (1.24, y))
        ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=24, linewidth=3.0, color=INK))
        ax.text(1.77, y - 0.14, f"{step.bytes:,} B", ha="center", va="top", fontsize=SMALL, fontweight="bold")


def _item(ax: Axes, x: float, y: float, name: str, size: str, bold: bool) -> None:
    """One tensor or slot: its colour and hatch, its name, its bytes; bold and framed if this step touches it."""
    role = _LOOKS.get(name, name.upper().removesuffix("_PTR"))
    face, hatch = COLOR.get(role, PALE), HATCH.get(role, "")
    ax.add_patch(Rectangle((x, y), 0.32, 0.22, facecolor=face, hatch=hatch, edgecolor=INK,
                           linewidth=2.4 if bold else 0.8))  # fmt: skip
    weight = "bold" if bold else "normal"
    ax.text(x + 0.42, y + 0.11, name + (" ←" if bold and size else ""), va="center", fontsize=SMALL, fontweight=weight)
    ax.text(x + 2.23, y + 0.11, size, va="center", ha="right", fontsize=SMALL, fontweight=weight)


def _bytes(ax: Axes, play: Playing, n: int) -> None:
    moved, total, naive = play.step(n).moved, play.run.total, play.naive
    most = max(total, naive)
    ax.set_axis_off()
    ax.set_xlim(0, most)
    ax.set_ylim(1.2, 0)  # inches, downwards
    ax.barh(0.36, total, 0.2, facecolor=PAPER, edgecolor=INK, linewidth=1.2)
    ax.barh(0.36, moved, 0.2, facecolor=COLOR["tiled"], hatch=HATCH["tiled"], edgecolor=INK, linewidth=1.2)
    ax.barh(0.92, naive, 0.2, facecolor=COLOR["naive"], edgecolor=INK, linewidth=1.2)
