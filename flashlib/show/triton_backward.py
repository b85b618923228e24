"""The two directions of the backward's kernels over the tiles of the score matrix."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .frame import canvas, settle
from .shade import shades
from .style import COLOR, GREY, INK, MASK_FACE, PAPER, SMALL, TEXT, styled
from .tiles import tile_kinds

__all__ = ["directions", "say_directions"]


@styled
def directions(Sq: int, Sk: int, block_q: int, block_k: int, *, causal: bool = True, title: str) -> Figure:
    """Draw which tiles each program of the two kernels visits: an arrow a program, over the map of the tiles.

    Parameters
    ----------
    Sq, Sk : int
        Queries and keys; causal is aligned to the bottom right.
    block_q, block_k : int
        Rows and columns of a tile.
    causal : bool
    title : str
        What to see.
    """
    kinds = tile_kinds(Sq, Sk, block_q, block_k, causal)
    n_q, n_k = -(-Sq // block_q), -(-Sk // block_k)
    at = {(i0 // block_q, j0 // block_k): kind for (i0, _, j0, _), kind in kinds.items()}
    fig, axes = canvas(1, 2, title=title, size=(9.4, 1.9 + 3.4 * n_q / n_k))
    faces = {"full": COLOR["S"], "partial": shades("S")(0.22), "skip": MASK_FACE}
    hatches = {"full": "", "partial": "//", "skip": "xx"}
    for ax, kernel in zip(axes, ("dkdv", "dq"), strict=True):
        for (i, j), kind in at.items():
            edge = GREY if kind == "skip" else INK
            box = Rectangle((j, i), 1, 1, facecolor=faces[kind], hatch=hatches[kind], edgecolor=edge, linewidth=1.2)
            ax.add_patch(box)
        for start, stop in _walks(at, n_q, n_k, kernel):
            _arrow(ax, start, stop)
        down = kernel == "dkdv"
        ax.set_title(
            "dK/dV: a key tile's program goes down" if down else "dQ: a query tile's program goes along", fontsize=TEXT
        )
        ax.set_xlim(0, n_k)
        ax.set_ylim(n_q, 0)
        ax.set_aspect("equal")
        ax.grid(False)
        ax.set_xticks([j + 0.5 for j in range(n_k)], [str(j) for j in range(n_k)], fontsize=SMALL)
        ax.set_yticks([i + 0.5 for i in range(n_q)], [str(i) for i in range(n_q)], fontsize=SMALL)
        ax.tick_params(length=0)
        ax.set_xlabel(f"key tile (of {block_k})")
        ax.set_ylabel(f"query tile (of {block_q})")
    labels = {"full": "full", "partial": "masked inside", "skip": "skipped"}
    edges = {"full": INK, "partial": INK, "skip": GREY}
    keys = [Patch(facecolor=faces[k], hatch=hatches[k], edgecolor=edges[k], label=labels[k]) for k in labels]
    fig.legend(handles=keys, loc="outside lower center", ncols=3, handlelength=2.2, handleheight=1.4)
    settle(fig)
    return fig


def say_directions(Sq: int, Sk: int, block_q: int, block_k: int, causal: bool = True) -> str:
    """What `directions` shows, in words."""
    kinds = tile_kinds(Sq, Sk, block_q, block_k, causal)
    n_q, n_k = -(-Sq // block_q), -(-Sk // block_k)
    at = {(i0 // block_q, j0 // block_k): kind for (i0, _, j0, _), kind in kinds.items()}
    down = "; ".join(f"{j}: {_said(s[1], e[1])}" for j, (s, e) in enumerate(_walks(at, n_q, n_k, "dkdv")))
    along = "; ".join(f"{i}: {_said(s[0], e[0])}" for i, (s, e) in enumerate(_walks(at, n_q, n_k, "dq")))
    counts = ", ".join(f"{sum(k == kind for k in kinds.values())} {kind}" for kind in ("full", "partial", "skip"))
    return (
        f"{n_q} by {n_k} tiles, {counts}. The dK/dV program of each key tile goes down the query tiles: {down}. "
        f"The dQ program of each query tile goes along the key tiles: {along}."
    )


def _said(start: float, stop: float) -> str:
    return f"{int(start)} to {int(stop)}" if int(start) != int(stop) else f"{int(start)} only"


def _walks(at: Any, n_q: int, n_k: int, kernel: str) -> list[Any]:
    """((x, y) of the first tile's middle, of the last one's) for each program that visits a tile."""
    walks = []
    for lead in range(n_k if kernel == "dkdv" else n_q):
        if kernel == "dkdv":
            seen = [(lead + 0.5, i + 0.5) for i in range(n_q) if at[i, lead] != "skip"]
        else:
            seen = [(j + 0.5, lead + 0.5) for j in range(n_k) if at[lead, j] != "skip"]
        if seen:
            walks.append((seen[0], seen[-1]))
    return walks


def _arrow(ax: Any, start: tuple[float, float], stop: tuple[float, float]) -> None:
    """A dot where the program begins and an arrow to its last tile, on a pale ground so that hatches do not hide it."""
    ax.plot(*start, marker="o", markersize=11, color=INK, markeredgecolor=PAPER, markeredgewidth=2.0, zorder=5)
    if start != stop:
        ground = (start, (stop[0] - 0.2 * (stop[0] > start[0]), stop[1] - 0.2 * (stop[1] > start[1])))
        ax.plot(*zip(*ground, strict=True), color=PAPER, linewidth=7, linestyle="-", marker="", zorder=3)
        style = {"arrowstyle": "-|>", "color": INK, "lw": 2.6, "mutation_scale": 20, "shrinkA": 5, "shrinkB": 0}
        ax.annotate("", xy=stop, xytext=start, arrowprops=style, zorder=4)
