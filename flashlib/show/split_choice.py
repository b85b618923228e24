"""Explorer: a cache cut into splits: which processors are busy, in how many waves, and what cutting costs in bytes.

One new token of one sequence, sizes as in an 8B model's layer: 32 query heads, 8 key heads, D = 128, 16-bit. One
program a key head and split, one program a processor at a time; all programs take a time in proportion to their keys.
"""

from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from flashlib.algorithms.decode_bytes import decode_bytes
from flashlib.instruments.machine import CHIPS

from .frame import blank, headline
from .shade import shades
from .style import GREY, INK, LOOK, PAPER, SMALL, TEXT, styled
from .units import count, nbytes

HQ, HKV, D, HALF = 32, 8, 128, 2
PER_ROW = 33
SPLITS = (1, 128)  # the axis


class Cut(NamedTuple):
    """Programs, processors, waves, processors busy in the first and the last wave, keys of one program, bytes."""

    programs: int
    processors: int
    waves: int
    first: int
    last: int
    keys: int
    cache_bytes: int
    other_bytes: int

    @property
    def walk(self) -> int:
        """Keys that the busiest processor walks through, one program after another: what the time is made of."""
        return self.waves * self.keys


def cut(S: int, splits: int, chip: str) -> Cut:
    """What becomes of S cached keys in so many splits.

    Parameters
    ----------
    S : keys in the cache
    splits : parts of the keys
    chip : a key of `flashlib.instruments.machine.CHIPS`
    """
    sms, programs = CHIPS[chip].sms, HKV * splits
    waves = -(-programs // sms)
    read, written = decode_bytes([S], HQ, HKV, 1, D, D, itemsize=HALF, splits=splits)
    cache = read["K"] + read["V"]
    other = sum(read.values()) + sum(written.values()) - cache
    return Cut(programs, sms, waves, min(programs, sms), programs - (waves - 1) * sms, -(-S // splits), cache, other)


@styled
def draw(S: int, splits: int, chip: str) -> Figure:
    """Draw the processors, filled where a program runs, and the longest walk against splits; arguments as in `cut`."""
    c = cut(S, splits, chip)
    fig = blank((9.0, 6.2))
    headline(fig, _title(c, chip))
    grids = ["first"] if c.waves == 1 else ["first", "last"]
    axes: Any = fig.subplot_mosaic([grids, ["walk"] * len(grids)], height_ratios=[1.0, 1.5])
    _processors(axes["first"], c.processors, c.first, "first wave" if c.waves > 1 else "the only wave", len(grids))
    if c.waves > 1:
        _processors(axes["last"], c.processors, c.last, f"last of {c.waves} waves", len(grids))
    _walks(axes["walk"], S, splits, chip)
    return fig


def _processors(ax: Any, total: int, busy: int, name: str, panels: int) -> None:
    per_row = PER_ROW if panels == 1 else 18
    for i in range(total):
        face = {"facecolor": shades("tiled")(0.75)} if i < busy else {"facecolor": PAPER}
        at = (i % per_row + 0.1, i // per_row + 0.1)
        ax.add_patch(Rectangle(at, 0.8, 0.8, edgecolor=INK if i < busy else GREY, linewidth=1, **face))
    ax.set_title(f"{name}: {busy} of {total} busy", fontsize=TEXT)
    ax.set_xlim(0, per_row)
    ax.set_ylim(-(-total // per_row), 0)
    ax.set_aspect("equal")
    ax.set_axis_off()


def _walks(ax: Any, S: int, splits: int, chip: str) -> None:
    many = list(range(SPLITS[0], SPLITS[1] + 1))
    tiled = LOOK["tiled"]
    ax.plot(many, [cut(S, n, chip).walk for n in many], color=tiled.color, linestyle="-", marker="", zorder=3)
    c = cut(S, splits, chip)
    ax.plot([splits], [c.walk], color=tiled.color, marker=tiled.marker, markersize=14, markeredgecolor=INK,
            markeredgewidth=2, linestyle="", zorder=5)  # fmt: skip
    ax.text(0.99, 0.97, f"splits {splits}: a processor walks through up to {c.walk:,} keys", ha="right", va="top",
            transform=ax.transAxes, fontsize=SMALL)  # fmt: skip
    ideal = [S * HKV / CHIPS[chip].sms] * 2
    ax.plot(SPLITS, ideal, color=INK, linewidth=1.6, linestyle=(0, (2, 2)), marker="")
    ax.annotate(f"all {CHIPS[chip].sms} busy all the time", (SPLITS[0], ideal[0]), (4, -4), textcoords="offset points",
                ha="left", va="top", fontsize=SMALL)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlim(SPLITS[0] * 0.93, SPLITS[1] * 1.08)
    ax.set_ylim(S * HKV / CHIPS[chip].sms / 2.2, S * 2)
    low, high = (round(v).bit_length() for v in ax.get_ylim())
    for axis, places in ((ax.xaxis, range(0, 8)), (ax.yaxis, range(low, high, 2))):
        axis.set_major_locator(FixedLocator([2.0**e for e in places]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: count(v)))
    ax.set_xlabel("splits of the cache")
    ax.set_ylabel("keys, longest walk")


def describe(S: int, splits: int, chip: str) -> str:
    """The picture that `draw` makes, in words."""
    c = cut(S, splits, chip)
    last = f", the last with {c.last}" if c.waves > 1 else ""
    best = min(range(SPLITS[0], SPLITS[1] + 1), key=lambda n: cut(S, n, chip).walk)
    return (
        f"{count(S)} cached keys of one sequence, {HKV} key heads, splits {splits}: {c.programs} programs of "
        f"{c.keys:,} keys on the {c.processors} processors of the {chip}; {c.first} busy in the first wave, waves "
        f"{c.waves}{last}. "
        f"K and V {nbytes(c.cache_bytes)}, all other bytes {nbytes(c.other_bytes)}. Below, the longest walk against "
        f"splits, a falling saw: {c.walk:,} keys here, least at splits {best}. {_title(c, chip)}."
    )


def _title(c: Cut, chip: str) -> str:
    share = c.other_bytes / c.cache_bytes
    more = f"{share:.{0 if share > 0.1 else 1}%} more bytes" if share >= 0.001 else "hardly more bytes"
    waves = "1 wave" if c.waves == 1 else f"{c.waves} waves"
    return f"{chip}: {c.programs:,} programs in {waves}; {c.keys:,} keys each, {more}"
