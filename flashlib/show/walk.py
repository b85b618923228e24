"""A walk over the tiles of a small attention: which tile is computed, and all that lies in SRAM at that moment."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from .frame import blank, headline
from .matrices import panel
from .shade import shades
from .style import COLOR, GREY, INK, PAPER, SMALL, TEXT, styled

CELL = 0.53  # inches; wide enough for "1.87" at a readable size


class Moment(NamedTuple):
    """SRAM just after a tile was absorbed: the tile's place, its inputs and scores, and the rows' state."""

    i0: int
    i1: int
    j0: int
    j1: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    s: np.ndarray
    m: np.ndarray
    l: np.ndarray
    acc: np.ndarray
    last: bool

    @property
    def numbers(self) -> int:
        """How many numbers lie in SRAM."""
        return sum(x.size for x in (self.q, self.k, self.v, self.s, self.m, self.l, self.acc))


def moment(q: Any, k: Any, v: Any, step: int, block: int = 2) -> Moment:
    """The state of SRAM after tile number `step`, row of tiles by row of tiles, no mask.

    Parameters
    ----------
    q : (Sq, D), k : (Sk, D), v : (Sk, Dv), NumPy
    step : int
        0 is the tile of the first rows and first keys.
    block : int
        Rows and columns of a tile.

    Raises
    ------
    ValueError
        There are not so many tiles.
    """
    from flashlib.algorithms import online
    from flashlib.algorithms.masks import spans, tiles

    every = tiles(len(q), len(k), block, block)
    if not 0 <= step < len(every):
        raise ValueError(f"step {step} does not exist: there are {len(every)} tiles")
    i0, i1, j0, j1, _ = every[step]
    qi, state = q[i0:i1], online.identity(i1 - i0, v.shape[1])
    for a, b in spans(j1, block):
        s = qi @ k[a:b].T / np.sqrt(q.shape[1])
        state = online.merge(state, online.of_tile(s, v[a:b]))
    return Moment(i0, i1, j0, j1, qi, k[j0:j1], v[j0:j1], s, state.m[:, None], state.l[:, None], state.o, j1 == len(k))


def describe(q: Any, k: Any, v: Any, step: int, block: int = 2) -> str:
    """The picture that `draw` makes, in words."""
    now = moment(q, k, v, step, block)
    rows = "; ".join(
        f"row {i}: scores {_list(s)}, m {m:.4g}, l {l:.4g}, acc {_list(acc)}"
        for i, s, (m,), (l,), acc in zip(range(now.i0, now.i1), now.s, now.m, now.l, now.acc, strict=True)
    )
    return (
        f"Left, the {len(q)} by {len(k)} score matrix as a grid of {block} by {block} tiles, of which {step} are done "
        f"and gone; only the tile of rows {now.i0} to {now.i1 - 1} and keys {now.j0} to {now.j1 - 1} has numbers. "
        f"Right, what lies in SRAM, {now.numbers} numbers: the q, k and v tiles, the scores, the state "
        f"after this tile. {rows}. {_title(q, k, now, step, block)}."
    )


@styled
def draw(q: Any, k: Any, v: Any, step: int, block: int = 2, *, title: str | None = None) -> Figure:
    """Draw the grid of tiles beside the contents of SRAM, after tile number `step`.

    Parameters
    ----------
    q, k, v, step, block
        As in `moment`; meant for the toy, up to about 8 × 8.
    title : str, optional
        By default which tile it is, and the count of numbers in SRAM.
    """
    now = moment(q, k, v, step, block)
    d, dv = q.shape[1], v.shape[1]
    left = max(0.8 + CELL * len(k), 3.6) + 0.45
    inner = CELL * max(2 * d, block + dv, 2 + dv) + 1.65
    fig = blank((left + inner + 0.15, 5.55))
    fig.set_layout_engine("none")
    headline(fig, title or _title(q, k, now, step, block))
    _grid(fig, now, len(q), len(k), block, step)
    wide, tall = fig.get_size_inches()
    box = fig.add_axes((left / wide, 0.1 / tall, inner / wide, 4.95 / tall))
    box.set_axis_off()
    box.set_xlim(0, inner)
    box.set_ylim(0, 4.95)
    box.add_patch(FancyBboxPatch((0.08, 0.08), inner - 0.16, 4.79, boxstyle="round,pad=0,rounding_size=0.15",
                                 facecolor=PAPER, edgecolor=INK, linewidth=2.4))  # fmt: skip
    box.text(0.25, 4.7, "in SRAM", fontsize=TEXT, fontweight="bold", va="top")
    rows, keys = range(now.i0, now.i1), range(now.j0, now.j1)
    x = 0.55 + left
    for x0, y0, name, label, a, lines in (
        (x, 3.2, "Q", "q tile, stays" if now.j0 else "q tile, new", now.q, rows),
        (x + d * CELL + 0.55, 3.2, "K", "k tile, new", now.k, keys),
        (x, 1.8, "S", "s tile, new", now.s, rows),
        (x + d * CELL + 0.55, 1.8, "V", "v tile, new", now.v, keys),
        (x, 0.4, "masked", "m", now.m, rows),
        (x + CELL + 0.45, 0.4, "masked", "l", now.l, rows),
        (x + d * CELL + 0.55, 0.4, "O", "acc, changed" if now.j0 else "acc, begun", now.acc, rows),
    ):
        ax = fig.add_axes((x0 / wide, y0 / tall, a.shape[1] * CELL / wide, a.shape[0] * CELL / tall))
        panel(ax, a, name=name, label=label, rows="", cols="", numbers=True, limits=(-3.0, 7.0))
        ax.set_xticks([])
        ax.set_yticks([i + 0.5 for i in range(len(lines))], [str(i) for i in lines])
    return fig


def _grid(fig: Figure, now: Moment, Sq: int, Sk: int, block: int, step: int) -> None:
    from flashlib.algorithms.masks import tiles

    wide, tall = fig.get_size_inches()
    ax = fig.add_axes((0.75 / wide, 1.15 / tall, Sk * CELL / wide, Sq * CELL / tall))
    ax.grid(False)
    for n, (i0, i1, j0, j1, _) in enumerate(tiles(Sq, Sk, block, block)):
        face = COLOR["S"] if n == step else shades("S")(0.15) if n < step else PAPER
        ax.add_patch(Rectangle((j0, i0), j1 - j0, i1 - i0, facecolor=face, edgecolor=GREY, linewidth=1.2))
        if n < step:
            ax.text((j0 + j1) / 2, (i0 + i1) / 2, "gone", ha="center", va="center", fontsize=SMALL)
    for i, line in enumerate(now.s, now.i0):
        for j, value in enumerate(line, now.j0):
            ax.text(j + 0.5, i + 0.5, f"{value:.3g}".replace("-", "−"), ha="center", va="center", fontsize=TEXT)
    size = now.j1 - now.j0, now.i1 - now.i0
    ax.add_patch(Rectangle((now.j0, now.i0), *size, fill=False, edgecolor=INK, linewidth=3.6, clip_on=False, zorder=5))
    ax.set_xlim(0, Sk)
    ax.set_ylim(Sq, 0)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(True)
    ax.set_xticks(np.arange(Sk) + 0.5, [str(j) for j in range(Sk)])
    ax.set_yticks(np.arange(Sq) + 0.5, [str(i) for i in range(Sq)])
    ax.set_xlabel("key j: k and v tiles stream past →")
    ax.set_ylabel("query i: one q tile stays")
    ax.set_title("S, never whole", loc="center", fontsize=TEXT, pad=8)
    end = "then o = acc / l goes to HBM" if now.last else "then the next key tile is loaded"
    fig.text(0.75 / wide, 0.3 / tall, end, fontsize=SMALL, va="center")


def _title(q: Any, k: Any, now: Moment, step: int, block: int) -> str:
    many = -(-len(q) // block) * -(-len(k) // block)
    return (
        f"Tile {step + 1} of {many}: queries {now.i0} to {now.i1 - 1} meet keys {now.j0} to {now.j1 - 1}; "
        f"{now.numbers} numbers in SRAM at any N"
    )


def _list(a: np.ndarray) -> str:
    return "(" + ", ".join(f"{x:.4g}" for x in a) + ")"
