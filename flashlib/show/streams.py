"""One row of scores streaming by: the running maximum, the running sum, and what a new maximum does to the past."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .frame import canvas
from .style import COLOR, GREY, HATCH, INK, MARKER, SMALL, styled
from .units import number

FEW = 10  # tiles or fewer: numbers are written beside the lines


@dataclass(frozen=True)
class Trace:
    """What the online softmax knows about one row after each of its T tiles.

    Attributes
    ----------
    edges : int array (T + 1,)
        Keys seen before each tile, and at the end.
    m, l : float array (T + 1,)
        Running maximum and running sum before each tile (−inf and 0 at first), and at the end.
    factor : float array (T,)
        exp(m_old − m_new): what is left of the old sum when a tile has been seen; 0 while nothing was seen.
    """

    edges: np.ndarray
    m: np.ndarray
    l: np.ndarray
    factor: np.ndarray


def trace(scores_row: Any, block: int) -> Trace:
    """Run the online softmax over one row, tile by tile, and keep every state.

    Parameters
    ----------
    scores_row : array (N,)
        Scaled scores; −inf where the row may not look.
    block : int
        Keys in a tile; the last tile may be shorter.

    Raises
    ------
    ValueError
        The row is empty or not one-dimensional, or `block` is not positive.
    """
    s = _row(scores_row)
    if block < 1:
        raise ValueError(f"a tile needs at least 1 key, got block={block}")
    edges = np.append(np.arange(0, len(s), block), len(s))
    m, l, factor = [-np.inf], [0.0], []
    for j0, j1 in zip(edges[:-1], edges[1:], strict=True):
        new = max(m[-1], float(s[j0:j1].max()))
        safe = new if new > -np.inf else 0.0  # a row that has seen no key: exp(−inf − 0) = 0
        factor.append(float(np.exp(m[-1] - safe)))
        l.append(l[-1] * factor[-1] + float(np.exp(s[j0:j1] - safe).sum()))
        m.append(new)
    return Trace(edges, np.array(m), np.array(l), np.array(factor))


def headline(scores_row: Any, block: int) -> str:
    """What happens to the running sum of a row in tiles of `block` keys, in one line: the title of its figure.

    Parameters
    ----------
    scores_row : array (N,)
        Scaled scores; −inf where the row may not look.
    block : int
        Keys in a tile.

    Raises
    ------
    ValueError
        As `trace`.
    """
    t = trace(scores_row, block)
    end = f"at the end l = {number(t.l[-1])}"  # the same whatever the tiles are, and so the title says it
    if _shrunk(t).any():
        return f"Tiles of {block}: each new maximum shrinks the sum of the past; {end}"
    if len(t.factor) == 1:
        return f"One tile of {t.edges[-1]}: nothing to shrink; {end}"
    return f"Tiles of {block}: no new maximum after the first, nothing to shrink; {end}"


def _shrunk(t: Trace) -> np.ndarray:
    """Which tiles bring a new maximum to a row that has a sum already."""
    return (t.factor < 1) & np.isfinite(t.m[:-1])


@styled
def figure(scores_row: Any, block: int, *, title: str | None = None, symbol: str = "s") -> Figure:
    """Draw a row's scores with the running maximum m, the running sum l, and the factor exp(m_old − m_new).

    Parameters
    ----------
    scores_row : array (N,)
        Scaled scores; −inf where the row may not look.
    block : int
        Keys in a tile. Borders between tiles are drawn.
    title : str, optional
        What to see; if not given, `headline` says it.
    symbol : str
        What the scores are called.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels over one axis, the number of keys seen.
    """
    s, t = _row(scores_row), trace(scores_row, block)
    few = len(t.factor) <= FEW
    fig, axes = canvas(
        3, 1, title=title or headline(s, block), size=(9.0, 6.6), sharex=True, height_ratios=[1.25, 1.25, 1.0]
    )
    top, middle, low = axes
    for ax in axes:
        ax.grid(False, axis="x")
        if len(t.edges) <= 130:
            for edge in t.edges:
                ax.axvline(edge, color=GREY, linewidth=1.0, linestyle=(0, (2, 2)), marker="", zorder=1)
    _maximum(top, s, t, few, symbol)
    _sum(middle, s, t, few)
    _factor(low, t, few)
    ticks = t.edges if len(t.edges) <= 14 else t.edges[:: -(-len(t.edges) // 9)]
    low.set_xticks(ticks)
    low.set_xlim(0, len(s))
    low.set_xlabel(f"keys seen (borders: tiles of {block})")
    fig.align_ylabels(list(axes))
    return fig


def _maximum(ax: Any, s: np.ndarray, t: Trace, few: bool, symbol: str) -> None:
    keys = np.arange(len(s)) + 0.5
    seen = np.isfinite(s)
    small = 9 if len(s) <= 64 else 3
    ax.plot(
        keys[seen],
        s[seen],
        linestyle="none",
        marker=MARKER["S"],
        color=COLOR["S"],
        markersize=small,
        markeredgecolor=INK,
        markeredgewidth=0.8 if len(s) <= 64 else 0,
        label=f"score {symbol}",
        zorder=3,
    )
    ax.stairs(
        np.where(np.isfinite(t.m[1:]), t.m[1:], np.nan),
        t.edges,
        baseline=None,
        color=COLOR["m"],
        linewidth=2.8,
        label="m after each tile: the largest score so far",
        zorder=4,
    )
    finite = [*s[seen], 0.0] if not seen.any() else list(s[seen])
    span = max(finite) - min(finite) or 1.0
    ax.set_ylim(min(finite) - 0.15 * span, max(finite) + (0.42 if few else 0.15) * span)
    if few:
        for mid, m in zip((t.edges[:-1] + t.edges[1:]) / 2, t.m[1:], strict=True):
            if np.isfinite(m):
                ax.annotate(
                    f"m = {_signed(m)}",
                    (mid, m),
                    (0, 5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=SMALL,
                )
            else:
                ax.text(mid, 0.1, "m = −∞", transform=ax.get_xaxis_transform(), ha="center", fontsize=SMALL)
    ax.set_ylabel("score")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 0.98), ncols=2, borderaxespad=0.0, handlelength=1.8)


def _sum(ax: Any, s: np.ndarray, t: Trace, few: bool) -> None:
    cut = "cut to l × factor"
    highest = float(t.l.max()) or 1.0
    for k, (j0, j1) in enumerate(zip(t.edges[:-1], t.edges[1:], strict=True)):
        safe = t.m[k + 1] if np.isfinite(t.m[k + 1]) else 0.0
        kept = t.l[k] * t.factor[k]
        path = kept + np.concatenate([[0.0], np.cumsum(np.exp(s[j0:j1] - safe))])
        ax.plot(
            np.arange(j0, j1 + 1),
            path,
            color=COLOR["l"],
            linestyle="-",
            marker="",
            linewidth=2.8,
            zorder=3,
            label="l, running sum" if k == 0 else None,
        )
        if t.l[k] - kept > 1e-12 * highest:
            ax.annotate(
                "",
                (j0, kept),
                (j0, t.l[k]),
                zorder=4,
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": COLOR["factor"],
                    "lw": 2.4,
                    "ls": "-",
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "mutation_scale": 16 if few else 8,
                },
            )
            ax.plot([], [], color=COLOR["factor"], linestyle="-", linewidth=2.4, marker=MARKER["factor"], label=cut)
            cut = "_only once"
        if few:
            ax.annotate(
                f"l = {number(t.l[k + 1])}",
                (j1, t.l[k + 1]),
                (-4, 6),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=SMALL,
            )
    ax.set_ylim(0, highest * (1.35 if few else 1.12))
    ax.set_ylabel("sum l")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 0.98), ncols=2, borderaxespad=0.0, handlelength=1.8)


def _factor(ax: Any, t: Trace, few: bool) -> None:
    centre, width = (t.edges[:-1] + t.edges[1:]) / 2, np.diff(t.edges)
    for part, face, hatch, text in (
        (_shrunk(t), COLOR["factor"], HATCH["factor"], "exp(m_old − m_new): the past shrinks"),
        (t.factor == 1, "#DDDDDD", "", "1: no new maximum"),
    ):
        if part.any():
            ax.bar(  # 1 means that the past was left as it was: drawn pale
                centre[part],
                t.factor[part],
                width[part] * 0.62,
                color=face,
                hatch=hatch if few else "",
                edgecolor=INK,
                linewidth=1.0 if few else 0.3,
                label=text,
                zorder=3,
            )
    if few:
        for k, (x, f) in enumerate(zip(centre, t.factor, strict=True)):
            word = "0, nothing before" if np.isneginf(t.m[k]) and len(t.factor) <= 4 else number(f)
            ax.text(x, f + 0.05, word, ha="center", va="bottom", fontsize=SMALL)
    ax.set_ylim(0, 1.35 if few else 1.1)
    ax.set_yticks([0, 0.5, 1])
    ax.set_ylabel("factor")
    if ax.get_legend_handles_labels()[0]:  # a single tile has a past neither to shrink nor to leave
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 0.98), ncols=2, borderaxespad=0.0, handlelength=1.8)


def _signed(x: float) -> str:
    return number(x).replace("-", "−")


def _row(scores_row: Any) -> np.ndarray:
    if hasattr(scores_row, "detach"):
        scores_row = scores_row.detach().cpu().double().numpy()
    s = np.asarray(scores_row, dtype=float)
    if s.ndim != 1 or s.size == 0:
        raise ValueError(f"expected one row of scores, got shape {s.shape}")
    return s
