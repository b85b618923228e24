"""Matrices as a reader sees them on paper: numbers in cells, masked cells hatched, tiles outlined."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator

from .frame import blank, canvas, headline, settle
from .shade import ink, shades
from .style import GREY, INK, MASK_FACE, PAPER, SMALL, TEXT, styled
from .tiles import tile_kinds, tile_map
from .units import count

__all__ = ["heat", "panel", "several", "tile_kinds", "tile_map"]

CELLS_WITH_NUMBERS = 16  # rows or columns above which numbers would be too small to read


@styled
def heat(a: Any, *, title: str, **options: Any) -> Figure:
    """Draw one matrix. The options are those of `panel`.

    Parameters
    ----------
    a : array (rows, columns)
        Cells that are −inf or NaN are drawn as masked.
    title : str
        What to see.
    """
    rows, cols = _matrix(a).shape
    cell = min(6.6 / cols, 4.4 / rows)
    side = 0.0 if _numbered(_matrix(a), options.get("numbers")) else 1.3  # the colour bar's room
    size = (max(5.2, cols * cell + 1.2 + side), max(3.2, rows * cell + 1.5))
    fig, ax = canvas(title=title, size=size)
    panel(ax, a, **options)
    settle(fig)
    return fig


@styled
def several(
    panels: Sequence[Mapping[str, Any]],
    *,
    title: str,
    between: Sequence[str] = (),
) -> Figure:
    """Draw matrices side by side, such as S → P → O, all cells of one size.

    Parameters
    ----------
    panels : sequence of mappings
        Each has ``a`` and any option of `panel`: ``dict(a=s, name="S", block=2)``.
    title : str
        What to see.
    between : sequence of str, optional
        What leads from each matrix to the next, ``["softmax", "× V"]``; written over an arrow.
    """
    if not panels:
        raise ValueError("several needs at least one panel")
    if len(between) not in (0, len(panels) - 1):
        raise ValueError(f"{len(panels)} panels have {len(panels) - 1} places between them, got {len(between)} texts")
    shapes = [_matrix(p["a"]).shape for p in panels]
    # rows that are the first matrix's rows are named once
    named = [
        i == 0 or n != shapes[0][0] or _rows_of(p) != _rows_of(panels[0])
        for i, (p, (n, _)) in enumerate(zip(panels, shapes, strict=True))
    ]
    # The layout is worked out here, in inches, because all cells must have one size.
    arrow = max([0.3, *(0.14 + 0.115 * len(text) for text in between)])
    gaps = [0.75, *(arrow + 0.75 * own for own in named[1:])]
    columns, tallest = sum(m for _, m in shapes), max(n for n, _ in shapes)
    width, below = 9.0, 0.8
    cell = min((width - 0.15 - sum(gaps)) / columns, 0.72, 4.6 / tallest)
    fig = blank((width, 4.0))
    fig.set_layout_engine("none")
    lines = headline(fig, title)
    height = tallest * cell + below + 0.5 + 0.27 * lines
    fig.set_size_inches(width, height)
    middle = below + tallest * cell / 2
    x = (width - sum(gaps) - columns * cell) / 2
    for i, (options, (n, m)) in enumerate(zip(panels, shapes, strict=True)):
        if between and i:
            _arrow(fig, between[i - 1], x + arrow / 2, middle, arrow - 0.2)
        x += gaps[i]
        ax = fig.add_axes((x / width, (middle - n * cell / 2) / height, m * cell / width, n * cell / height))
        panel(ax, **dict(options))
        if not named[i]:
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)
        x += m * cell
    return fig


def _arrow(fig: Figure, text: str, x: float, y: float, length: float) -> None:
    """An arrow to the right with words above it; its middle is at (x, y), all in inches."""
    inches = fig.dpi_scale_trans
    style = {"arrowstyle": "-|>", "lw": 2.4, "color": INK, "mutation_scale": 20}
    ax = fig.axes[-1]
    ends = ((x + length / 2, y), (x - length / 2, y))
    ax.annotate("", *ends, xycoords=inches, textcoords=inches, arrowprops=style, annotation_clip=False)
    fig.text(x, y + 0.12, text, transform=inches, ha="center", va="bottom", fontsize=TEXT)


@styled
def panel(
    ax: Axes,
    a: Any,
    *,
    name: str = "S",
    label: str | None = None,
    visible: Any = None,
    block: int | tuple[int, int] | None = None,
    row: int | None = None,
    rows: str | None = None,
    cols: str | None = None,
    numbers: bool | None = None,
    fmt: str | None = None,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw a matrix into axes of your own.

    Parameters
    ----------
    ax : Axes
    a : array (rows, columns)
    name : str
        Gives the colour: "S", "P", "Q", "K", "V", "O"; a key of ``style.LOOK``.
    label : str, optional
        Written above the matrix; `name` and the shape if left out, nothing if empty.
    visible : bool array, optional
        True where a query may see a key. Cells that are False, −inf or NaN are hatched.
    block : int or (int, int), optional
        Height and width of a tile; tile borders are drawn thick.
    row : int, optional
        A row to outline.
    rows, cols : str, optional
        What a row and a column are; by default what they are for a matrix of this name. Empty for no axis label.
    numbers : bool, optional
        Write the values into the cells; by default only where they can be read.
    fmt : str, optional
        How a value is written, such as "{:.2f}"; by default with up to two decimals. In narrow cells 0.50 becomes .5.
    limits : (float, float), optional
        Values of the lightest and the darkest colour.
    """
    a = _matrix(a)
    n, m = a.shape
    hidden = ~np.isfinite(a)
    if visible is not None:
        visible = np.asarray(visible, bool)
        if visible.shape != a.shape:
            raise ValueError(f"visible has shape {visible.shape}, the matrix {a.shape}")
        hidden = hidden | ~visible
    seen = a[~hidden]
    low, high = limits or ((float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0))
    norm = Normalize(low, high if high > low else low + 1.0)
    cmap = shades(name).with_extremes(bad=MASK_FACE)
    image = ax.imshow(
        np.ma.masked_where(hidden, a),
        cmap=cmap,
        norm=norm,
        extent=(0, m, n, 0),
        aspect="equal",
        interpolation="nearest",
    )
    _hatch(ax, hidden)
    numbers = _numbered(a, numbers)
    if numbers:
        ax.set_xticks(np.arange(m + 1), minor=True)
        ax.set_yticks(np.arange(n + 1), minor=True)
        ax.grid(True, which="minor", color="#BDBDBD", linewidth=0.8)
    ax.grid(False, which="major")
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(True)
    for x, places, size in ((ax.xaxis, _ticks(m), m), (ax.yaxis, _ticks(n), n)):
        x.set_major_locator(FixedLocator([p + 0.5 for p in places]))
        x.set_ticklabels([count(p) if size > CELLS_WITH_NUMBERS else str(p) for p in places])
    if block is not None:
        high_, wide = block if isinstance(block, tuple) else (block, block)
        ax.hlines(np.arange(high_, n, high_), 0, m, color=INK, linewidth=2.2)
        ax.vlines(np.arange(wide, m, wide), 0, n, color=INK, linewidth=2.2)
    if row is not None:
        if not 0 <= row < n:
            raise ValueError(f"row {row} does not exist: the matrix has rows 0 to {n - 1}")
        for color, width in ((PAPER, 6.0), (INK, 3.6)):
            ax.add_patch(
                Rectangle((0, row), m, 1, fill=False, edgecolor=color, linewidth=width, clip_on=False, zorder=6)
            )
        if row in _ticks(n):
            ax.get_yticklabels()[_ticks(n).index(row)].set_fontweight("bold")
    ax.set_title(f"{name}  {n}×{m}" if label is None else label, loc="center", fontsize=TEXT, pad=8)
    ax.set_xlabel(_axes(name)[1] if cols is None else cols)
    ax.set_ylabel(_axes(name)[0] if rows is None else rows)
    if numbers:
        cells = [(int(i), int(j)) for i, j in np.argwhere(~hidden)]
        texts, size = _fitted(ax, a, cells, fmt)
        for (i, j), text in zip(cells, texts, strict=True):
            ax.text(
                j + 0.5,
                i + 0.5,
                text,
                ha="center",
                va="center",
                fontsize=size,
                zorder=7,
                color=ink(cmap(norm(a[i, j]))),
            )
    else:
        bar = ax.figure.colorbar(image, ax=ax, shrink=0.85, pad=0.03)
        bar.outline.set_linewidth(0.8)


def _axes(name: str) -> tuple[str, str]:
    """What the rows and columns of a matrix are, by its name; a gradient has the axes of what it belongs to."""
    rows = {"Q": "query i", "O": "query i", "K": "key j", "V": "key j"}.get(name.lstrip("d"))
    return (rows, "feature") if rows else ("query i", "key j")


def _rows_of(options: Mapping[str, Any]) -> str:
    rows = options.get("rows")
    return _axes(options.get("name", "S"))[0] if rows is None else str(rows)


def _matrix(a: Any) -> np.ndarray:
    if hasattr(a, "detach"):  # a torch tensor, without importing torch; NumPy has no bfloat16
        a = a.detach().cpu().double().numpy()
    a = np.asarray(a, dtype=float)
    if a.ndim != 2 or 0 in a.shape:
        raise ValueError(f"expected a matrix with rows and columns, got shape {a.shape}: choose one batch and head")
    return a


def _numbered(a: np.ndarray, numbers: bool | None) -> bool:
    return max(a.shape) <= CELLS_WITH_NUMBERS if numbers is None else numbers


def _ticks(n: int) -> list[int]:
    if n <= CELLS_WITH_NUMBERS:
        return list(range(n))
    step = 2 ** max(0, (n - 1).bit_length() - 3)
    return list(range(0, n, step))


def _hatch(ax: Axes, hidden: np.ndarray) -> None:
    """Hatch masked cells, one patch for each run of them in a row."""
    patches = []
    for i, line in enumerate(hidden):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        patches += [Rectangle((j0, i), j1 - j0, 1) for j0, j1 in zip(edges[::2], edges[1::2], strict=True)]
    if patches:
        ax.add_collection(PatchCollection(patches, facecolor="none", edgecolor=GREY, hatch="///", linewidth=0))


def _fitted(ax: Axes, a: np.ndarray, cells: list[tuple[int, int]], fmt: str | None) -> tuple[list[str], float]:
    """Texts for the cells, and the largest size up to TEXT + 2 at which the widest of them fits."""
    fig: Any = ax.figure
    fig.draw_without_rendering()  # settles the layout, so that a cell's size is known
    room = 0.86 * ax.get_window_extent().width / a.shape[1] * 72 / fig.dpi
    texts = [fmt.format(a[c]) if fmt else _plain(a[c]) for c in cells]
    if max(map(_ems, texts), default=1.0) * SMALL > room:  # narrow cells: .53 for 0.53, and .5 for 0.50
        texts = [re.sub(r"(\.\d*?)0+$", r"\1", t).rstrip(".") for t in texts]
        texts = [re.sub(r"^(-?)0\.", r"\1.", t) for t in texts]
    texts = [t.replace("-", "−") for t in texts]
    return texts, min(TEXT + 2.0, room / max(map(_ems, texts), default=1.0))


def _plain(x: float) -> str:
    text = f"{x:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _ems(text: str) -> float:
    """Width of a number in units of the text size (DejaVu Sans: digits 0.64, point 0.32, minus 0.84)."""
    return sum({".": 0.32, "-": 0.84, "−": 0.84}.get(c, 0.64) for c in text)
