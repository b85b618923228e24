"""Curves against N (memory, traffic, time) and bars of bytes, kernel by kernel."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .frame import canvas
from .labels import Label, label_axes
from .shade import shades
from .style import COLOR, GREY, INK, PAPER, SMALL, look, looks, styled
from .units import UNITS

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@styled
def loglog(
    series: Series,
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    xunit: str = "count",
    yunit: str = "bytes",
    slopes: bool = True,
    last: bool = False,
    theory: Series | None = None,
    limits: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw measured series on doubly logarithmic axes, each named at the end of its line.

    Parameters
    ----------
    series : mapping name -> (x, y)
        Positive numbers. Names such as "naive" or "tiled, causal" keep their colour in every figure.
    xlabel, ylabel, title : str
        The title says what to see.
    xunit, yunit : {"count", "bytes", "seconds", "flops", "number"}
        How ticks are written; count and bytes have ticks at powers of two.
    slopes : bool
        Fit log y against log x by least squares and write the slope. It describes the points shown and is no law: a
        fixed cost plus a line has a slope below 1.
    last : bool
        Write each line's last value after its name.
    theory : mapping name -> (x, y), optional
        Closed forms, drawn as dotted lines without markers over the measured points.
    limits : mapping text -> y, optional
        Horizontal lines, such as a GPU's memory.
    marks : mapping text -> x, optional
        Vertical lines, such as a GPU's SRAM.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        A series is empty, has x and y of different length, or a value that no logarithm takes.
    """
    data = {name: _points(name, xy) for name, xy in series.items()}
    lines = {name: _points(name, xy) for name, xy in (theory or {}).items()}
    if not data:
        raise ValueError("loglog needs at least one series")
    fig, ax = canvas(title=title)
    ends: list[Label] = []
    for name, found in looks(data).items():
        x, y = data[name]
        ax.plot(
            x,
            y,
            color=found.color,
            marker=found.marker,
            linestyle=found.line,
            label=name,
            markeredgecolor="white",
            markersize=10,
            zorder=3,
        )
        text = name + (f": {UNITS[yunit](y[-1])}" if last else "") + (_slope(x, y) if slopes else "")
        ends.append(Label(text, x[-1], y[-1], found.color))
    for name, (x, y) in lines.items():
        for color, width in ((PAPER, 4.0), (INK, 2.0)):  # a white edge, so that dots show on a line just below
            dots = (0, (2.4 / width, 4 / width))  # in widths of the line
            ax.plot(x, y, color=color, linewidth=width, linestyle=dots, marker="", zorder=4)
        ends.append(Label(name, x[-1], y[-1], INK))
    every = [*data.values(), *lines.values()]
    xs = np.concatenate([x for x, _ in every] + [np.array(list((marks or {}).values()))])
    ys = np.concatenate([y for _, y in every] + [np.array(list((limits or {}).values()))])
    _log_axis(ax, "x", xs, xunit, most=8)
    _log_axis(ax, "y", ys, yunit, most=7)
    for text, height in (limits or {}).items():
        ax.axhline(height, color=INK, linewidth=1.6, linestyle=(0, (7, 3)), marker="", zorder=2)
        ends.append(Label(text, ax.get_xlim()[1], height, INK))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    label_axes(ax, ends, [Label(text, x, 1.0, INK) for text, x in (marks or {}).items()])
    return fig


@styled
def bars(
    parts: Mapping[str, Any],
    *,
    xlabel: str,
    title: str,
    unit: str = "bytes",
    total: bool = True,
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Draw stacked horizontal bars in the order given, for example HBM bytes read and written by each kernel.

    Parameters
    ----------
    parts : mapping bar -> mapping part -> number
        Numbers ≥ 0. Parts named "read…" and "written"/"write…" are plain and hatched HBM; parts named after tensors or
        methods keep their colours. A bar may also be what the memory machine counted, with `read` and `written` per
        tensor: ``bars(m.report().by_kernel, …)``.
    xlabel, title : str
        The title says what to see.
    unit : str
        As in `loglog`.
    total : bool
        Write each bar's sum at its end.
    colors : mapping part -> name, optional
        Draw a part as this thing of `style.LOOK`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if not parts:
        raise ValueError("bars needs at least one bar")
    parts = {name: _directions(bar) for name, bar in parts.items()}
    kinds = list(dict.fromkeys(kind for bar in parts.values() for kind in bar))
    found = {kind: _part_look(kind, (colors or {}).get(kind)) for kind in kinds}
    height = max(3.6, min(7.0, 2.0 + 0.5 * len(parts)))
    fig, ax = canvas(title=title, size=(9.0, height))
    left = np.zeros(len(parts))
    for kind in kinds:
        width = np.array([float(bar.get(kind, 0.0)) for bar in parts.values()])
        if (width < 0).any() or not np.isfinite(width).all():
            raise ValueError(f"part {kind!r} has a negative or non-finite value: {width.tolist()}")
        face, hatch = found[kind]
        ax.barh(range(len(parts)), width, left=left, color=face, hatch=hatch, edgecolor=INK, linewidth=1.0, height=0.68)
        left += width
    write = UNITS[unit]
    top = left.max() or 1.0
    if total:
        for i, end in enumerate(left):
            ax.text(end + 0.012 * top, i, write(end), va="center", ha="left", fontsize=SMALL)
    ax.set_yticks(range(len(parts)), list(parts))
    ax.invert_yaxis()  # first kernel at the top
    ax.set_xlim(0, top * (1.17 if total else 1.02))
    ax.set_xlabel(xlabel)
    ax.xaxis.set_major_locator(FixedLocator(_round_ticks(top, unit)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: write(v)))
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    if len(kinds) > 1:
        keys = [Patch(facecolor=found[k][0], hatch=found[k][1], edgecolor=INK, label=k) for k in kinds]
        fig.legend(handles=keys, loc="outside lower right", ncols=min(len(kinds), 6), handlelength=2.2)
    return fig


def _slope(x: np.ndarray, y: np.ndarray) -> str:
    if len(set(x)) < 2:
        return ""
    from flashlib.instruments.peak import fit_exponent

    k = fit_exponent(x.tolist(), y.tolist())
    return "\ndoes not grow" if abs(k) < 0.005 else f"\nslope {k:.2f}".replace("-", "−")


def _points(name: str, xy: tuple[Sequence[float], Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(xy[0], float), np.asarray(xy[1], float)
    if x.shape != y.shape or x.ndim != 1 or x.size == 0:
        raise ValueError(f"series {name!r}: x and y must be lists of one length, got shapes {x.shape} and {y.shape}")
    good = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if not good.all():
        i = int(np.argmin(good))
        raise ValueError(f"series {name!r}: a logarithmic axis cannot show point {i}, ({x[i]:g}, {y[i]:g})")
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _log_axis(ax: Axes, which: str, values: np.ndarray, unit: str, most: int) -> None:
    """Limits and ticks: powers of two for counts and bytes, of ten otherwise, at most `most` of them."""
    base = 2.0 if unit in ("bytes", "count") else 10.0
    low, high = np.log(values.min()) / math.log(base), np.log(values.max()) / math.log(base)
    pad = 0.06 * max(high - low, 1.0)
    step = 1
    while (high - low) / step > most - 1:
        step += 1
    powers = np.arange(math.ceil(low - pad), math.floor(high + pad) + 1)
    powers = powers[powers % step == 0] if len(powers) > most else powers
    write = UNITS[unit]
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log", base=base)
    (ax.set_xlim if which == "x" else ax.set_ylim)(base ** (low - pad), base ** (high + pad))
    axis.set_major_locator(FixedLocator([float(base**p) for p in powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: write(v)))


def _round_ticks(top: float, unit: str) -> list[float]:
    """Four to seven ticks at numbers that are round in the unit that is printed."""
    scale = 1.0
    while unit in ("bytes", "count") and top / scale >= 1024:
        scale *= 1024
    raw = top / scale / 5
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(s for s in (1, 2, 2.5, 5, 10) if s * ten >= raw) * ten
    return [float(v) * scale for v in np.arange(0, top / scale * 1.001, step)]


def _directions(bar: Any) -> Mapping[str, float]:
    if isinstance(bar, Mapping):
        return bar
    return {"read": float(sum(bar.read.values())), "written": float(sum(bar.written.values()))}


def _part_look(kind: str, named: str | None) -> tuple[Any, str]:
    word = kind.lower()
    if named is None and word.startswith("read"):
        return shades("HBM")(0.25), ""
    if named is None and word.startswith(("writ", "stor")):
        return COLOR["HBM"], "//"
    known = look(named or kind)
    return (known.color, known.hatch) if known else (GREY, "..")
