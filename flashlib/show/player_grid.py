"""The grid of score tiles in the player's pictures: gone, under work, hidden, and the first wrong one."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from .inches import WRONG
from .playing import Playing
from .shade import shades
from .style import COLOR, GREY, INK, PAPER, SMALL, TEXT

NUMBERS = 8  # rows or keys up to which each has its number, and scores are written into the tile


def matrix(ax: Axes, play: Playing, n: int, *, small: bool = False, named: bool = True, keyed: bool = True) -> None:
    """The grid after step n, the followed row outlined; `small`: no scores, and of the rows only that one's number."""
    rows, keys = play.problem.s.shape
    now, wrong = play.step(n), play.difference
    kernel = now.kernel.split(",")[0]
    ax.set_facecolor(PAPER)
    for number, tile in enumerate(play.run.tiles):
        if play.step(tile.first).kernel.split(",")[0] != kernel:
            continue
        (i0, i1), (j0, j1) = tile.rows, tile.keys
        done = tile.last < n or (tile.last == n and now.tile != number)
        marked = wrong is not None and wrong.tile == number and wrong.step <= n
        face = COLOR["S"] if number == now.tile else shades("S")(0.15) if done else PAPER
        ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, facecolor=face, edgecolor=GREY, linewidth=1.2))
        if done and number != now.tile and min((j1 - j0) / keys, (i1 - i0) / rows) > (0.3 if small else 0.2):
            ax.text((j0 + j1) / 2, (i0 + i1) / 2, "gone", ha="center", va="center", fontsize=SMALL, zorder=7,
                    bbox={"facecolor": face, "edgecolor": "none", "pad": 1.0})  # fmt: skip
        if marked:
            ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, fill=False, edgecolor=WRONG, linewidth=4.5, zorder=8,
                                   clip_on=False))  # fmt: skip
            seal = {"boxstyle": "circle,pad=0.1", "facecolor": PAPER, "edgecolor": WRONG, "linewidth": 2.4}
            ax.text(j1, i1, "≠", fontsize=20, fontweight="bold", color=WRONG, ha="center", va="center", zorder=9,
                    bbox=seal)  # fmt: skip
    for i, line in enumerate(np.isinf(play.problem.s)):
        if line.any():
            first = int(np.argmax(line))
            ax.add_patch(Rectangle((first, i), keys - first, 1, facecolor="none", edgecolor=GREY, hatch="///",
                                   linewidth=0, zorder=3))  # fmt: skip
    if now.rows and now.keys:
        (i0, i1), (j0, j1) = now.rows, now.keys
        if max(rows, keys) <= NUMBERS and not small:
            _scores(ax, play, now.rows, now.keys)
        ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, fill=False, edgecolor=INK, linewidth=3.4, zorder=6,
                               clip_on=False))  # fmt: skip
    ax.hlines([play.row, play.row + 1], 0, keys, color=INK, linewidth=1.4, linestyle=(0, (3, 2)), zorder=5)
    ax.set_xlim(0, keys)
    ax.set_ylim(rows, 0)
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(True)
    places, names = _numbers(sorted({t.keys[0] for t in play.run.tiles}), keys, 4 if small else NUMBERS)
    ax.set_xticks(places, names if keyed else [""] * len(names))
    places, names = _numbers(sorted({t.rows[0] for t in play.run.tiles}), rows, NUMBERS)
    apart = 1.0 if rows <= NUMBERS else rows / 10  # rows that a number is high
    others = [(y, s) for y, s in zip(places, names, strict=True) if abs(y - play.row - 0.5) >= apart and not small]
    ax.set_yticks([*(y for y, _ in others), play.row + 0.5], [*(s for _, s in others), f"row {play.row} →"])
    followed = ax.get_yticklabels()[-1]
    followed.set(fontweight="bold", va="center_baseline")
    followed.set_transform(followed.get_transform() + ScaledTranslation(0, 1.5 / 72, ax.figure.dpi_scale_trans))
    if keyed:
        ax.set_xlabel("key j", labelpad=2)
    if named:
        ax.set_title("S, written whole" if play.written else "S: never whole", loc="center", fontsize=TEXT, pad=6)


def margin(play: Playing) -> float:
    """Inches that the rows' numbers need at the left of the grid, the same for each row that may be followed."""
    return 0.86 + 0.11 * len(str(len(play.problem.q) - 1))


def _scores(ax: Axes, play: Playing, rows: tuple[int, int], keys: tuple[int, int]) -> None:
    for i in range(*rows):
        for j in range(*keys):
            s = play.problem.s[i, j]
            ax.text(j + 0.5, i + 0.5, "" if np.isinf(s) else f"{s:.3g}".replace("-", "−"), ha="center", va="center",
                    fontsize=SMALL, zorder=7)  # fmt: skip


def _numbers(starts: list[int], size: int, most: int) -> tuple[list[float], list[str]]:
    """Where numbers of rows or keys stand: in the middle of each, or of many, where a tile begins, `most` at most."""
    if size <= NUMBERS:
        return [i + 0.5 for i in range(size)], [str(i) for i in range(size)]
    starts = starts[:: max(1, -(-len(starts) // most))]
    return [float(i) for i in starts], [str(i) for i in starts]
