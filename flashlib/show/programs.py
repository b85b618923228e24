"""The programs of a launch: who has which tile, what falls off the edge, what a product reads, who comes first."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .frame import blank, canvas, headline, settle
from .shade import shades
from .style import COLOR, GREY, INK, PALE, SMALL, TEXT, styled

Pair = tuple[int, int]


@styled
def grid(shape: Pair, block: Pair, *, title: str, name: str = "S") -> Figure:
    """Draw a matrix under a grid of programs, each with its number; lanes past the edge are hatched.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns of the matrix.
    block : (int, int)
        Rows and columns of a program's tile.
    title : str
        What to see.
    name : str
        Gives the colour: "S", "Q", …; a key of ``style.LOOK``.
    """
    fig, ax = canvas(title=title, size=(9.0, 5.2))
    down, across = _tiles(shape, block)
    _matrix(ax, shape, block, name, shades(name)(0.25))
    for i in range(down):
        for j in range(across):
            y, x = (i + 0.5) * block[0], (j + 0.5) * block[1]
            ax.text(x, y, f"({i}, {j})", ha="center", va="center", fontsize=TEXT, bbox=_PLATE, zorder=7)
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    _ticks(ax, shape, block)
    inside, off = shape[0] * shape[1], down * across * block[0] * block[1] - shape[0] * shape[1]
    handles = [
        Patch(facecolor=shades(name)(0.25), edgecolor=INK, label=f"elements: {inside:,}"),
        Patch(facecolor="none", edgecolor=GREY, hatch="///", label=f"lanes past\nthe edge: {off:,}"),
        Patch(facecolor="none", edgecolor=INK, linewidth=2.2, label=f"programs: {down} × {across}"),
    ]
    fig.legend(handles=handles, loc="outside right center", handlelength=2.0, handleheight=1.5, labelspacing=0.9)
    settle(fig)
    return fig


@styled
def product(M: int, N: int, K: int, block: tuple[int, int, int], program: Pair, *, title: str) -> Figure:
    """Draw C = A B with B above and A to the left of C: one program's tile of C, and all the tiles it reads.

    Parameters
    ----------
    M, N, K : int
        A is (M, K), B is (K, N).
    block : (int, int, int)
        BLOCK_M, BLOCK_N, BLOCK_K.
    program : (int, int)
        The program to follow: its row and its column of tiles.
    title : str
        What to see.
    """
    bm, bn, bk = block
    i, j = program
    left, right, top, bottom = (-(-size // b) * b for size, b in ((K, bk), (N, bn), (K, bk), (M, bm)))
    unit = min(5.4 / (left + right), 4.9 / (top + bottom))  # inches an element
    gap, y0, note = 0.75, 0.25, 2.5  # inches: between the matrices, below them, for the words at the right
    x0 = max(0.2, (9.0 - (left + right) * unit - gap - note) / 2)
    fig = blank((9.0, 4.0))
    fig.set_layout_engine("none")
    lines = headline(fig, title)
    tall = y0 + (top + bottom) * unit + gap + 0.45 + 0.3 * lines
    fig.set_size_inches(9.0, tall)

    def axes(x: float, y: float, columns: int, rows: int) -> Axes:
        return fig.add_axes((x / 9.0, y / tall, columns * unit / 9.0, rows * unit / tall))

    a = axes(x0, y0, left, bottom)
    b = axes(x0 + left * unit + gap, y0 + bottom * unit + gap, right, top)
    c = axes(x0 + left * unit + gap, y0, right, bottom)
    steps = -(-K // bk)
    for ax, name, look, shape, tile, mine in (
        (a, f"A  {M}×{K}", "Q", (M, K), (bm, bk), [(i, t) for t in range(steps)]),
        (b, f"B  {K}×{N}", "K", (K, N), (bk, bn), [(t, j) for t in range(steps)]),
        (c, f"C  {M}×{N}", "S", (M, N), (bm, bn), [(i, j)]),
    ):
        _matrix(ax, shape, tile, look, shades(look)(0.12))
        for step, (y, x) in enumerate(mine):
            high, wide = min(tile[0], shape[0] - y * tile[0]), min(tile[1], shape[1] - x * tile[1])
            ax.add_patch(Rectangle((x * tile[1], y * tile[0]), wide, high, facecolor=shades(look)(0.55), zorder=3))
            ax.add_patch(Rectangle((x * tile[1], y * tile[0]), tile[1], tile[0], fill=False, edgecolor=INK,
                                   linewidth=3.2, zorder=6, clip_on=False))  # fmt: skip
            text = f"({i}, {j})" if ax is c else str(step)
            ax.text((x + 0.5) * tile[1], (y + 0.5) * tile[0], text, ha="center", va="center", fontsize=SMALL,
                    bbox=_PLATE, zorder=7)  # fmt: skip
        ax.set_title(name, loc="left", fontsize=TEXT, pad=5)
        ax.set_xticks([])
        ax.set_yticks([])
    words = f"program ({i}, {j}):\n{steps} steps; each reads\n"
    words += "the tiles of A and B\nthat bear its number\n\nhatched: past the edge"
    beside = x0 + (left + right) * unit + gap + 0.25
    fig.text(beside / 9.0, (y0 + bottom * unit + gap + top * unit) / tall, words, va="top", fontsize=SMALL)
    return fig


class Turn(NamedTuple):
    """One access to a total in memory: who, "loads" or "stores", which value, and the total after it."""

    program: int
    does: str
    value: int
    total: int


def take_turns(order: Sequence[int], parts: Sequence[int]) -> list[Turn]:
    """Let programs add their parts to one total, in memory and without atomics.

    Parameters
    ----------
    order : sequence of int
        Whose turn it is. A program loads the total in its first turn, and stores what it loaded plus its part in its
        second; so each number stands there twice.
    parts : sequence of int
        What each program adds. The total starts at 0.

    Returns
    -------
    list of Turn, the last one with the final total

    Raises
    ------
    ValueError, if a program does not have two turns.
    """
    if sorted(order) != sorted([*range(len(parts))] * 2):
        raise ValueError(f"each of {len(parts)} programs needs two turns, not {list(order)}")
    total, turns = 0, list[Turn]()
    held: dict[int, int] = {}
    for program in order:
        if program in held:
            total = held[program] + parts[program]
            turns.append(Turn(program, "stores", total, total))
        else:
            held[program] = total
            turns.append(Turn(program, "loads", total, total))
    return turns


@styled
def race(orders: Mapping[str, Sequence[int]], parts: Sequence[int], *, title: str) -> Figure:
    """Draw what programs that share a total do turn by turn, once for each order; see `take_turns`.

    Parameters
    ----------
    orders : mapping of str to sequence of int
        What the order is called, and whose turn it is.
    parts : sequence of int
        What each program adds.
    title : str
        What to see.
    """
    names = [f"program {i}" for i in range(len(parts))] + ["TOTAL"]
    steps = 2 * len(parts)
    fig, axes = canvas(len(orders), 1, title=title, size=(9.0, 0.8 + 2.0 * len(orders)), squeeze=False)
    for ax, (name, order) in zip(axes[:, 0], orders.items(), strict=True):
        for t, turn in enumerate(take_turns(order, parts)):
            wrong = t == steps - 1 and turn.total != sum(parts)
            look = {"facecolor": shades("wrong" if wrong else "S")(0.25), "hatch": "xx" if wrong else ""}
            acts = {"facecolor": "#FFFFFF" if turn.does == "loads" else PALE}
            for row, text, face in ((turn.program, f"{turn.does} {turn.value}", acts), (len(parts), turn.total, look)):
                ax.add_patch(Rectangle((t + 0.04, row + 0.08), 0.92, 0.84, edgecolor=INK, linewidth=1.2, **face))
                ax.text(t + 0.5, row + 0.5, str(text), ha="center", va="center", fontsize=TEXT, bbox=_PLATE)
        ax.set_title(name, loc="left", fontsize=TEXT)
        ax.set_xlim(0, steps)
        ax.set_ylim(len(names), 0)
        ax.set_yticks([i + 0.5 for i in range(len(names))], names)
        ax.set_xticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes[-1, 0].set_xlabel("time →")
    return fig


_PLATE = {"boxstyle": "round,pad=0.15", "facecolor": "#FFFFFF", "edgecolor": "none"}


def _tiles(shape: Pair, block: Pair) -> Pair:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _matrix(ax: Axes, shape: Pair, block: Pair, name: str, face: Any) -> None:
    """The matrix, the grid of tiles over it, and hatching where tiles reach past its edge."""
    (rows, cols), (down, across) = shape, _tiles(shape, block)
    high, wide = down * block[0], across * block[1]
    ax.add_patch(Rectangle((0, 0), cols, rows, facecolor=face, edgecolor=COLOR.get(name, INK), linewidth=1.0, zorder=2))
    for x, y, w, h in ((cols, 0, wide - cols, high), (0, rows, cols, high - rows)):
        if w and h:
            ax.add_patch(Rectangle((x, y), w, h, facecolor="none", edgecolor=GREY, hatch="///", linewidth=0, zorder=2))
    ax.hlines([i * block[0] for i in range(down + 1)], 0, wide, color=INK, linewidth=1.6, zorder=5, clip_on=False)
    ax.vlines([j * block[1] for j in range(across + 1)], 0, high, color=INK, linewidth=1.6, zorder=5, clip_on=False)
    ax.set_xlim(0, wide)
    ax.set_ylim(high, 0)
    ax.set_aspect("equal")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _ticks(ax: Axes, shape: Pair, block: Pair) -> None:
    """Ticks where tiles begin, and where the matrix ends."""
    for axis, size, b in ((ax.xaxis, shape[1], block[1]), (ax.yaxis, shape[0], block[0])):
        starts = [x for x in range(0, size, b) if size - x >= b / 2]
        axis.set_ticks([*starts, size])
