"""In which order the programs of a kernel visit the tiles of the score matrix."""

from collections.abc import Mapping, Sequence

import matplotlib.patheffects as effects
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from .frame import settle
from .style import INK, PAPER, SMALL, styled
from .tiles import tile_kinds, tile_map


@styled
def visits(
    Nq: int,
    Nk: int,
    block_q: int,
    block_k: int,
    causal: bool,
    seen: Mapping[int, tuple[int, Sequence[int]]],
    *,
    title: str,
) -> Figure:
    """Draw the map of tiles with, in each visited tile, when its program came to it, and at the left which program.

    Parameters
    ----------
    Nq, Nk, block_q, block_k, causal
        As in `tiles.tile_map`, which gives the colours.
    seen : mapping program -> (first row, first keys)
        What each program loaded: its query tile, and its key tiles in the order of their loads.
    title : str
        What to see.
    """
    kinds = tile_kinds(Nq, Nk, block_q, block_k, causal)
    fig = tile_map(Nq, Nk, block_q, block_k, causal, title=title)
    ax = fig.axes[0]
    halo = [effects.withStroke(linewidth=3, foreground=PAPER)]
    for i0, keys in seen.values():
        for step, j0 in enumerate(keys, 1):
            i1, j1 = min(i0 + block_q, Nq), min(j0 + block_k, Nk)
            x, y = (j0 + j1) / 2, (i0 + i1) / 2
            if kinds.get((i0, i1, j0, j1)) == "partial":  # beside the diagonal, not on it
                x, y = j0 + 0.28 * (j1 - j0), i0 + 0.7 * (i1 - i0)
            ax.text(x, y, str(step), ha="center", va="center", fontsize=SMALL, color=INK, path_effects=halo, zorder=6)
    first = sorted((i0, program) for program, (i0, _) in seen.items())
    ax.yaxis.set_major_locator(FixedLocator([(i0 + min(i0 + block_q, Nq)) / 2 for i0, _ in first]))
    ax.set_yticklabels([f"program {p}\nrows {i0}–{min(i0 + block_q, Nq) - 1}" for i0, p in first])
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel("")
    settle(fig)
    return fig
