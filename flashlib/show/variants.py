"""Pictures of attention's other roads: which keys a mask leaves, and how far each method is from full attention."""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .frame import canvas, settle
from .shade import shades
from .style import GREY, INK, MASK_FACE, SMALL, looks, styled
from .tiles import tile_kinds


def tile_kind(mask: Callable[[np.ndarray, np.ndarray], np.ndarray], i0: int, i1: int, j0: int, j1: int) -> str:
    """ "skip" if no row of the tile sees one of its keys, "full" if each sees all, else "partial"."""
    see = mask(np.arange(i0, i1)[:, None], np.arange(j0, j1)[None, :])
    return "full" if see.all() else "partial" if see.any() else "skip"


@styled
def masks(panels: Mapping[str, Callable], N: int, block: int, *, title: str) -> Figure:
    """Draw what each mask leaves of an N × N score matrix, with its tiles: one panel each, its counts below its name.

    Parameters
    ----------
    panels : name → mask, as `flashlib.algorithms.variants.window` makes them
    N, block : rows and keys, and those of a tile
    title : what to see
    """
    fig, axes = canvas(1, len(panels), title=title, size=(9.0, 4.3), squeeze=False)
    seen = (shades("S")(0.75), shades("S")(0.12))
    for ax, (name, mask) in zip(axes[0], panels.items(), strict=True):
        kinds = tile_kinds(N, N, block, block, kind=lambda *tile, m=mask: tile_kind(m, *tile))
        see = np.broadcast_to(mask(np.arange(N)[:, None], np.arange(N)[None, :]), (N, N))
        picture = np.ones((N, N, 3)) * np.array(seen[1][:3])
        picture[see] = seen[0][:3]
        ax.imshow(picture, extent=(0, N, N, 0), interpolation="nearest", zorder=1)
        for (i0, i1, j0, j1), kind in kinds.items():
            skip = kind == "skip"
            tile = Rectangle((j0, i0), j1 - j0, i1 - i0, facecolor=MASK_FACE if skip else "none", linewidth=0.8)
            tile.set(edgecolor=GREY if skip else INK, hatch="xx" if skip else "", zorder=3 - skip)
            ax.add_patch(tile)
        done = sum(kind != "skip" for kind in kinds.values())
        ax.set_title(f"{name}\n{done} of {len(kinds)} tiles", fontsize=SMALL)
        ax.set_xticks([0, N])
        ax.set_yticks([0, N])
        ax.set_xlabel("key j")
        ax.grid(False)
    axes[0][0].set_ylabel("query i")
    keys = [
        Patch(facecolor=seen[0], edgecolor=INK, label="seen"),
        Patch(facecolor=seen[1], edgecolor=INK, label="computed, then masked"),
        Patch(facecolor=MASK_FACE, edgecolor=GREY, hatch="xx", label="skipped"),
    ]
    fig.legend(handles=keys, loc="outside lower center", ncols=3, handlelength=2.2)
    settle(fig)
    return fig


@styled
def errors(rows: Mapping[str, Mapping[str, float]], *, xlabel: str, title: str, line: tuple[str, float]) -> Figure:
    """Draw one row a method and on it its error on each set of data, on a logarithmic axis.

    Parameters
    ----------
    rows : method → data → error, positive
    line : text and place of a vertical line to compare with
    """
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    found = looks(kinds)
    fig, ax = canvas(title=title, size=(9.0, 1.9 + 0.42 * len(rows)))
    for y, row in enumerate(rows.values()):
        ax.plot(
            [min(row.values()), max(row.values())], [y, y], color=GREY, linestyle="-", linewidth=2, marker="", zorder=2
        )
        for kind, x in row.items():
            ax.plot([x], [y], color=found[kind].color, marker=found[kind].marker, linestyle="", markersize=11, zorder=3)
    ax.axvline(line[1], color=INK, linewidth=1.6, linestyle=(0, (7, 3)), marker="")
    ax.annotate(line[0], (line[1], -0.7), (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=SMALL)
    ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -1.1)
    ax.set_xlabel(xlabel)
    ax.tick_params(axis="y", length=0)
    handles = [
        ax.plot([], [], color=found[k].color, marker=found[k].marker, linestyle="", markersize=11, label=k)[0]
        for k in kinds
    ]
    fig.legend(handles=handles, loc="outside lower right", ncols=len(kinds))
    return fig
