"""The player's picture of one step: the score matrix, HBM and SRAM and what crosses, the row, the bytes, the line."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from .frame import blank, headline
from .playing import Playing
from .shade import shades
from .style import COLOR, GREY, HATCH, INK, PALE, PAPER, SMALL, TEXT, styled

WIDE, TALL = 10.6, 6.8  # inches
NUMBERS = 8  # rows or keys up to which scores are written into the tile
_LOOKS = {"acc": "O", "m": "masked", "l": "masked", "LSE": "masked"}


@styled
def draw(play: Playing, n: int) -> Figure:
    """Draw step n."""
    fig = blank((WIDE, TALL))
    fig.set_layout_engine("none")
    headline(fig, play.title(n))
    matrix(_axes(fig, 0.75, 2.75, 3.4, 3.2), play, n)
    _memories(_axes(fig, 4.55, 2.2, 5.9, 3.95), play, n)
    lines = play.numbers(n)
    for k, line in enumerate(lines):
        bold = "bold" if k == 0 else "normal"
        _write(fig, 0.2, 1.88 - 0.27 * k, line, room=5.0, fontsize=TEXT if k == 0 else SMALL, fontweight=bold)
    if play.difference:
        for k, line in enumerate(play.verdict().split(". ", 1)):
            _write(fig, 0.13, 0.76 - 0.25 * k, line, fontweight="bold", va="center")
    _bytes(_axes(fig, 6.6, 1.1, 2.6, 0.95), play, n)
    code = play.code(n) or "line of code: not recorded (use trace=True)"
    _write(fig, 0.13, 0.2, code, room=WIDE - 0.25, family="monospace", va="center",
           bbox={"facecolor": "#F3F3F3", "edgecolor": "none", "pad": 4.0})  # fmt: skip
    return fig


@styled
def strip(play: Playing, moments: list[int]) -> Figure:
    """The still picture: some steps below one another, each with the matrix, what lies on chip, and the row."""
    each, top = 2.75, 0.85
    tall = top + each * len(moments)
    fig = blank((WIDE, tall))
    fig.set_layout_engine("none")
    headline(fig, f"Row {play.row}, tile by tile. {play.verdict()}")
    for k, n in enumerate(moments):
        y = tall - top - each * (k + 1)
        matrix(_axes(fig, 0.7, y + 0.55, 2.0, 1.85), play, n, plain=True)
        held = ", ".join(f"{slot} {size:,} B" for slot, size in play.step(n).held.items())
        code = play.code(n)
        lines = [play.heading(n), *play.numbers(n)[:3], f"{play.room(n)}: {held}", play.bytes_line(n)]
        for i, line in enumerate(lines):
            bold = "bold" if i == 0 else "normal"
            _write(fig, 3.05, y + 2.3 - 0.29 * i, line, fontweight=bold)
        if code:
            _write(fig, 3.05, y + 2.3 - 0.29 * len(lines), code, family="monospace")
    return fig


def matrix(ax: Axes, play: Playing, n: int, *, plain: bool = False) -> None:
    """The grid of tiles: gone, under work, hidden, and the first wrong one; the followed row is outlined."""
    rows, keys = play.problem.s.shape
    now = play.step(n)
    kernel = now.kernel.split(",")[0]
    ax.set_facecolor(PAPER)
    for number, tile in enumerate(play.run.tiles):
        if play.step(tile.first).kernel.split(",")[0] != kernel:
            continue
        (i0, i1), (j0, j1) = tile.rows, tile.keys
        done = tile.last < n or (tile.last == n and now.tile != number)
        face = COLOR["S"] if number == now.tile else shades("S")(0.15) if done else PAPER
        ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, facecolor=face, edgecolor=GREY, linewidth=1.2))
        if done and number != now.tile and min((j1 - j0) / keys, (i1 - i0) / rows) > (0.3 if plain else 0.2):
            ax.text((j0 + j1) / 2, (i0 + i1) / 2, "gone", ha="center", va="center", fontsize=SMALL, zorder=7,
                    bbox={"facecolor": face, "edgecolor": "none", "pad": 1.0})  # fmt: skip
        if play.difference and play.difference.tile == number:
            ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, facecolor="none", edgecolor=COLOR["wrong"],
                                   hatch=HATCH["wrong"], linewidth=2.4, zorder=4))  # fmt: skip
            text = "differs" if (j1 - j0) / keys > (0.28 if plain else 0.2) else "≠"
            ax.text((j0 + j1) / 2, (i0 + i1) / 2, text, ha="center", va="center", fontsize=SMALL, zorder=7,
                    bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0})  # fmt: skip
    for i, line in enumerate(np.isinf(play.problem.s)):
        if line.any():
            first = int(np.argmax(line))
            ax.add_patch(Rectangle((first, i), keys - first, 1, facecolor="none", edgecolor=GREY, hatch="///",
                                   linewidth=0, zorder=3))  # fmt: skip
    if now.rows and now.keys:
        (i0, i1), (j0, j1) = now.rows, now.keys
        if max(rows, keys) <= NUMBERS and not plain:
            for i in range(i0, i1):
                for j in range(j0, j1):
                    s = play.problem.s[i, j]
                    ax.text(j + 0.5, i + 0.5, "" if np.isinf(s) else f"{s:.3g}".replace("-", "−"), ha="center",
                            va="center", fontsize=SMALL, zorder=7)  # fmt: skip
        ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, fill=False, edgecolor=INK, linewidth=3.4, zorder=6,
                               clip_on=False))  # fmt: skip
    ax.hlines([play.row, play.row + 1], 0, keys, color=INK, linewidth=1.4, linestyle=(0, (3, 2)), zorder=5)
    ax.set_xlim(0, keys)
    ax.set_ylim(rows, 0)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(True)
    starts = range(keys) if keys <= NUMBERS else sorted({tile.keys[0] for tile in play.run.tiles})
    starts = list(starts)[:: max(1, -(-len(starts) // NUMBERS))]
    half = 0.5 if keys <= NUMBERS else 0.0  # below the key, or below the edge where a tile begins
    ax.set_xticks([s + half for s in starts], [str(s) for s in starts])
    ax.set_yticks([play.row + 0.5], [f"row \n{play.row} →"], fontweight="bold")
    if not plain:
        ax.set_xlabel("key j")
        ax.set_title("S: one tile at a time", loc="center", fontsize=TEXT, pad=6)


def _memories(ax: Axes, play: Playing, n: int) -> None:
    """HBM at the left, the chip at the right, and between them an arrow if this step moves something."""
    step = play.step(n)
    ax.set_axis_off()
    ax.set_xlim(0, 5.9)
    ax.set_ylim(0, 3.95)
    for x, width, head, color in ((0.05, 1.45, "HBM", COLOR["HBM"]), (3.0, 2.85, play.room(n), COLOR["SRAM"])):
        ax.add_patch(FancyBboxPatch((x, 0.1), width, 3.35, boxstyle="round,pad=0,rounding_size=0.1", facecolor=PAPER,
                                    edgecolor=color, linewidth=2.6))  # fmt: skip
        ax.text(x + 0.02, 3.58, head, fontsize=SMALL, fontweight="bold")
    stored = dict.fromkeys(s.name for s in play.run.steps if s.op in ("load", "store", "atomic"))
    crosses = step.op in ("load", "store", "atomic")
    for k, name in enumerate(list(stored)[:8]):
        _item(ax, 0.2, 3.05 - 0.4 * k, name, "", crosses and name == step.name)
    for k, (slot, size) in enumerate(list(step.held.items())[:8]):
        _item(ax, 3.15, 3.05 - 0.4 * k, slot, f"{size:,} B", slot == step.slot)
    if crosses and step.name in stored:
        y = 3.16 - 0.4 * min(list(stored).index(step.name), 7)
        ends = ((1.55, y), (2.95, y)) if step.op == "load" else ((2.95, y), (1.55, y))
        ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=24, linewidth=3.0, color=INK))
        above = ax.text(2.25, y + 0.12, f"{step.bytes:,} B", ha="center", va="bottom", fontsize=SMALL)
        above.set_fontweight("bold")
        ax.text(2.25, y - 0.14, f"{step.name}{step.part}" if len(step.part) < 9 else step.name, ha="center", va="top",
                fontsize=SMALL)  # fmt: skip


def _item(ax: Axes, x: float, y: float, name: str, size: str, bold: bool) -> None:
    """One tensor or slot: its colour and hatch, its name, its bytes; bold and framed if this step touches it."""
    role = _LOOKS.get(name, name.upper().removesuffix("_PTR"))
    face, hatch = COLOR.get(role, PALE), HATCH.get(role, "")
    ax.add_patch(Rectangle((x, y), 0.34, 0.24, facecolor=face, hatch=hatch, edgecolor=INK,
                           linewidth=2.4 if bold else 0.8))  # fmt: skip
    weight = "bold" if bold else "normal"
    ax.text(x + 0.46, y + 0.12, name + (" ←" if bold and size else ""), va="center", fontsize=SMALL, fontweight=weight)
    ax.text(x + 2.55, y + 0.12, size, va="center", ha="right", fontsize=SMALL, fontweight=weight)


def _bytes(ax: Axes, play: Playing, n: int) -> None:
    moved, total, naive = play.step(n).moved, play.run.total, play.naive
    most = max(total, naive)
    ax.set_axis_off()
    ax.set_xlim(0, most)
    ax.set_ylim(2, -0.55)
    ax.barh(0, total, 0.62, facecolor=PAPER, edgecolor=INK, linewidth=1.2)
    ax.barh(0, moved, 0.62, facecolor=COLOR["tiled"], hatch=HATCH["tiled"], edgecolor=INK, linewidth=1.2)
    ax.barh(1, naive, 0.62, facecolor=COLOR["naive"], edgecolor=INK, linewidth=1.2)
    ax.text(0, -0.48, f"{moved:,} B moved, of {total:,}", fontsize=SMALL, va="bottom", fontweight="bold")
    terms = play.naive_as.replace(" in", "\nin").replace(", ", "\n")
    for y, text in ((0, "this run"), (1, terms)):
        ax.text(-0.03 * most, y, text, ha="right", va="center", fontsize=SMALL)
    ax.text(naive, 1, f" {naive:,} B", va="center", fontsize=SMALL)


def _write(fig: Figure, x: float, y: float, line: str, *, room: float | None = None, **options: Any) -> None:
    """Write a line at (x, y), in inches, and end it with … where the room, or the figure, ends."""
    wide, tall = fig.get_size_inches()
    text = fig.text(x / wide, y / tall, line, **{"fontsize": SMALL, **options})
    canvas: Any = fig.canvas
    width = text.get_window_extent(canvas.get_renderer()).width / fig.dpi
    room = wide - x - 0.1 if room is None else room
    if width > room:
        text.set_text(line[: int(len(line) * room / width) - 1] + "…")


def _axes(fig: Figure, x: float, y: float, width: float, height: float) -> Axes:
    wide, tall = fig.get_size_inches()
    return fig.add_axes((x / wide, y / tall, width / wide, height / tall))
