"""The map of the score matrix's tiles: skipped, masked inside, computed whole."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator

from .frame import canvas, settle
from .shade import shades
from .style import COLOR, GREY, INK, MASK_FACE, PAPER, styled
from .units import count


@styled
def tile_map(
    Nq: int,
    Nk: int,
    block_q: int,
    block_k: int,
    causal: bool = False,
    *,
    title: str | None = None,
    kind: Callable[[int, int, int, int], str] | None = None,
    window: int | None = None,
    steady: bool = False,
) -> Figure:
    """Draw which tiles of the score matrix are skipped, need a mask, or are computed whole.

    Parameters
    ----------
    Nq, Nk : int
        Queries and keys.
    block_q, block_k : int
        Rows and columns of a tile; tiles at the far edges may be smaller.
    causal : bool
        Query i sees keys j ≤ i + (Nk − Nq).
    title : str, optional
        By default the counts, which are computed from the tiles drawn.
    kind : callable, optional
        ``kind(i0, i1, j0, j1)`` gives "skip", "partial" or "full" for another mask than the causal one.
    window : int, optional
        With `causal`: of those keys query i sees only the last ``window``. Both ends are drawn; the kinds are `kind`'s.
    steady : bool
        The figure has one size, whatever the matrix has, so that a page does not jump.
    """
    kinds = tile_kinds(Nq, Nk, block_q, block_k, causal, kind)
    number = {k: sum(v == k for v in kinds.values()) for k in ("full", "partial", "skip")}
    if title is None:
        total = len(kinds)
        title = (
            f"{number['skip']} of {total} tiles are skipped; {number['partial']} need a mask, {number['full']} do not"
            if number["skip"] or number["partial"]
            else f"All {total} tiles are computed, and none needs a mask"
        )
    shape = np.array([Nk, Nq]) / max(Nq, Nk)
    wide, tall = np.maximum(min(4.4 / shape[0], 3.9 / shape[1]) * shape, 1.6)  # inches; a very flat map is stretched
    room = (4.4, 3.9) if steady else (float(wide), float(tall))
    fig, ax = canvas(title=title, size=(room[0] + 4.55, room[1] + 1.25))
    looks = {
        "full": (COLOR["S"], "", "full: no mask needed"),
        "partial": (shades("S")(0.22), "//", "partial: masked inside"),
        "skip": (MASK_FACE, "xx", "skipped: never loaded"),
    }
    thin = max(0.3, min(1.6, 120 / max(len(kinds) ** 0.5, 1) / 10))
    handles: list[Any] = []
    for what, (face, hatch, text) in looks.items():
        patches = [Rectangle((j0, i0), j1 - j0, i1 - i0) for (i0, i1, j0, j1), k in kinds.items() if k == what]
        if patches:
            shapes = PatchCollection(
                patches, facecolor=face, edgecolor=GREY if what == "skip" else INK, hatch=hatch, linewidth=thin
            )
            ax.add_collection(shapes)
        edge = GREY if what == "skip" else INK
        handles.append(Patch(facecolor=face, hatch=hatch, edgecolor=edge, label=f"{text} ({number[what]})"))
    if causal and (kind is None or window is not None):
        i = np.arange(Nq + 1)
        line = 3.2 if len(kinds) <= 400 else 1.6
        for back in (0,) if window is None else (0, window):
            edge_j = np.repeat(np.clip(i[:-1] + Nk - Nq + 1 - back, 0, Nk), 2)
            for color, more in ((PAPER, 3.0), (INK, 0.0)):  # a white edge: black alone drowns in the hatching
                ax.plot(edge_j, np.repeat(i, 2)[1:-1], color=color, linewidth=line + more, marker="", linestyle="-")
        what = "where a query's keys end" if window is None else f"a query's window of {window} lies between"
        handles.append(Line2D([], [], color=INK, linewidth=line, marker="", label=what))
    ax.set_xlim(0, Nk)
    ax.set_ylim(Nq, 0)
    ax.set_box_aspect(float(tall / wide))
    ax.grid(False)
    for axis, size, step in ((ax.xaxis, Nk, block_k), (ax.yaxis, Nq, block_q)):
        stride = max(1, -(-size // step) // 8) * step  # ticks at tile borders, nine at most
        places = [0, *range(stride, size - stride // 2, stride), size]
        axis.set_major_locator(FixedLocator(places))
        axis.set_ticklabels([count(p) for p in places])
    ax.set_xlabel(f"key j (tiles of {block_k})")
    ax.set_ylabel(f"query i (tiles of {block_q})")
    fig.legend(handles=handles, loc="outside right center", handlelength=2.2, handleheight=1.6, labelspacing=0.9)
    settle(fig)
    return fig


def tile_kinds(
    Nq: int,
    Nk: int,
    block_q: int,
    block_k: int,
    causal: bool = False,
    kind: Callable[[int, int, int, int], str] | None = None,
) -> dict[tuple[int, int, int, int], str]:
    """``{(i0, i1, j0, j1): "skip" | "partial" | "full"}`` for every tile of an Nq × Nk score matrix."""
    from flashlib.algorithms.masks import tiles

    if min(Nq, Nk) < 1:
        raise ValueError(f"there is nothing to draw for {Nq} queries and {Nk} keys")
    found = {(i0, i1, j0, j1): k for i0, i1, j0, j1, k in tiles(Nq, Nk, block_q, block_k, causal)}
    return {tile: kind(*tile) for tile in found} if kind else {tile: str(k) for tile, k in found.items()}
