"""Explorer: a tile's size, the SRAM that it needs on a chip, and the bytes that cross with it."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from flashlib.instruments.closed_forms import chip_itemsize, flash_bytes, flash_sram, four_steps_bytes
from flashlib.instruments.machine import CHIPS

from .frame import canvas
from .style import GREY, INK, LOOK, MASK_FACE, PAPER, SMALL, styled
from .units import count, nbytes

N, HALF = 4096, 2  # tokens, and bytes of a 16-bit number
ROWS = (2.0**3, 2.0**11)  # the axis of Br
SRAM = 2**18  # the axis of bytes in SRAM: more than any chip gives a block, and the same for all, to compare them


class Fit(NamedTuple):
    """Bytes: what lies in SRAM by part, what there is; the tallest tile for these keys; what crosses, fused and not."""

    parts: dict[str, int]
    room: int
    tallest: int
    moved: int
    four_steps: int

    @property
    def needed(self) -> int:
        """SRAM that one tile takes, in bytes."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the chip has it."""
        return self.needed <= self.room


def fit(chip: str, d: int, Br: int, Bc: int) -> Fit:
    """What a tile of Br queries and Bc keys takes and moves: one head, N = 4096, 16-bit, the state in float32.

    Parameters
    ----------
    chip : a key of `flashlib.instruments.machine.CHIPS`
    d : features of a head
    """
    room, wide = CHIPS[chip].sram_per_block or 0, chip_itemsize(HALF)
    parts = {"Q": Br * d * HALF, "K": Bc * d * HALF, "V": Bc * d * HALF, "S": Br * Bc * wide, "acc": Br * d * wide,
             "m, l": 2 * Br * wide}  # fmt: skip
    fixed = flash_sram(0, Bc, d, d, HALF)
    tallest = max(0, (room - fixed) // (flash_sram(1, Bc, d, d, HALF) - fixed))
    return Fit(parts, room, tallest, _moved(d, Br, Bc), four_steps_bytes(N, N, d, d, HALF, sram_bytes=room))


def _moved(d: int, Br: int, Bc: int) -> int:
    return flash_bytes(N, N, d, d, Br, Bc, HALF)


@styled
def draw(chip: str, d: int, Br: int, Bc: int) -> Figure:
    """Draw what fills the SRAM above, and below it the traffic against Br; arguments as in `fit`."""
    f = fit(chip, d, Br, Bc)
    fig, (top, low) = canvas(2, 1, title=_title(f, chip, Br, Bc), size=(9.0, 6.4), height_ratios=[1.0, 2.6])
    _sram(fig, top, f, chip)
    _traffic(low, f, d, Br, Bc)
    fig.align_ylabels([top, low])
    return fig


def _sram(fig: Figure, ax: Any, f: Fit, chip: str) -> None:
    looks = {"Q": LOOK["Q"], "K": LOOK["K"], "V": LOOK["V"], "S": LOOK["S"], "acc": LOOK["O"], "m, l": LOOK["P"]}
    left = 0
    for part, size in f.parts.items():
        ax.barh([0], [size], left=left, color=looks[part].color, hatch=looks[part].hatch, edgecolor=INK, height=0.7)
        left += size
    ax.axvline(f.room, color=INK, linewidth=4, linestyle="-", marker="")
    side = -1 if f.room > SRAM / 2 else 1
    ax.annotate(f"{chip}: {nbytes(f.room)} a block", (f.room, 0.52), (6 * side, 0), textcoords="offset points",
                ha="right" if side < 0 else "left", va="bottom", fontsize=SMALL)  # fmt: skip
    verdict = "fits" if f.fits else f"{nbytes(f.needed - f.room)} too much"
    inside = f.needed < 0.62 * SRAM  # room for the words right of the bar
    at = f.needed if inside else 0.0 if side < 0 else 0.98 * SRAM  # otherwise in the bar, away from the chip's line
    beyond = " →" if f.needed > SRAM else ""
    ax.text(at + 0.01 * SRAM, 0, f"{nbytes(f.needed)}: {verdict}{beyond}", va="center", fontsize=SMALL,
            ha="left" if inside or side < 0 else "right",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 2.0})  # fmt: skip
    ax.set_xlim(0, SRAM)
    ax.set_ylim(-0.45, 0.95)
    ax.set_yticks([])
    ax.set_xticks([k * SRAM / 4 for k in range(5)], [nbytes(k * SRAM / 4) for k in range(5)])
    ax.set_ylabel("SRAM")
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    keys = [Patch(facecolor=k.color, hatch=k.hatch, edgecolor=INK, label=part) for part, k in looks.items()]
    fig.legend(handles=keys, loc="outside lower center", ncols=len(keys), handlelength=2.0, columnspacing=1.2)


def _traffic(ax: Any, f: Fit, d: int, Br: int, Bc: int) -> None:
    sizes = np.unique(np.geomspace(*ROWS, 160).astype(int))
    moved = [_moved(d, int(n), Bc) for n in sizes]
    marker, naive = LOOK["tiled"].marker, LOOK["naive"]  # the line is black: in this picture blue is Q
    ax.axvspan(max(f.tallest + 0.5, ROWS[0]), ROWS[1], facecolor=MASK_FACE, edgecolor=GREY, hatch="//", linewidth=0)
    ax.plot(sizes, moved, color=INK, linestyle="-", marker="", zorder=3)
    ax.axhline(f.four_steps, color=naive.color, linestyle=naive.line, marker="", zorder=2)
    ax.plot([Br], [f.moved], color=INK if f.fits else PAPER, marker=marker, markersize=14,
            markeredgecolor=INK, markeredgewidth=3, linestyle="", zorder=5)  # fmt: skip
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    ax.text(ROWS[1] / 1.1, f.four_steps * 1.15, f"four steps: {nbytes(f.four_steps)}", ha="right", va="bottom",
            fontsize=SMALL, bbox=box)  # fmt: skip
    right = Br > 64
    ax.annotate(f"tiles: {nbytes(f.moved)}", (Br, f.moved), (-14 if right else 14, -10 if right else 8), fontsize=SMALL,
                textcoords="offset points", ha="right" if right else "left", va="top" if right else "bottom",
                bbox=box, zorder=6)  # fmt: skip
    if f.tallest < ROWS[1]:
        white = f.tallest > 2.5 * ROWS[0]  # the words stand left of the border, where it fits, if they have room there
        most = f"Br ≤ {f.tallest} fits" if f.tallest else "no Br fits"
        at = (max(f.tallest, ROWS[0]), 0.03)
        ax.annotate(most, at, (-6 if white else 6, 0), xycoords=ax.get_xaxis_transform(), textcoords="offset points",
                    ha="right" if white else "left", va="bottom", fontsize=SMALL, bbox=box, zorder=6)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlim(*ROWS)
    ax.set_ylim(2.0**20, 2.0**31)
    for axis, places, write in ((ax.xaxis, range(3, 12), count), (ax.yaxis, range(20, 32, 2), nbytes)):
        axis.set_major_locator(FixedLocator([2.0**e for e in places]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _, write=write: write(v)))
    ax.set_xlabel(f"Br: queries in a tile (Bc = {Bc} keys, d = {d})")
    ax.set_ylabel(f"bytes moved, N = {count(N)}")


def describe(chip: str, d: int, Br: int, Bc: int) -> str:
    """The picture that `draw` makes, in words."""
    f = fit(chip, d, Br, Bc)
    parts = ", ".join(f"{part} {nbytes(size)}" for part, size in f.parts.items())
    verdict = "it fits" if f.fits else f"{nbytes(f.needed - f.room)} too much"
    most = f"Br up to {f.tallest} fits" if f.tallest else "no Br fits"
    return (
        f"A tile of {Br} queries and {Bc} keys, d = {d}, 16-bit. In SRAM: {parts}; {nbytes(f.needed)} of the "
        f"{nbytes(f.room)} that the {chip} gives a block: {verdict}. With {Bc} keys {most}. Bytes moved at N = {N}, "
        f"falling as 1/Br on logarithmic axes: {nbytes(f.moved)} with this tile, {nbytes(f.four_steps)} by the four "
        f"steps. {_title(f, chip, Br, Bc)}."
    )


def _title(f: Fit, chip: str, Br: int, Bc: int) -> str:
    tile = f"Br × Bc = {Br} × {Bc} on the {chip}"
    if not f.fits:
        return f"{tile} does not fit: {f.needed / f.room:.1f} times the SRAM of a block"
    if f.moved > f.four_steps:
        return f"{tile}: fits, but moves {f.moved / f.four_steps:.1f} times as much as four steps"
    return f"{tile}: fits, and moves {f.four_steps / f.moved:.1f} times less than four steps"
