"""The roofline: how fast a chip can be at all, for the arithmetic a pipeline does on each byte it moves.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .frame import canvas
from .labels import Label, label_axes
from .style import INK, PAPER, SMALL, looks, styled
from .units import flop_rate, number

_ROOFS = ("-", (0, (7, 2)), (0, (2, 1.5)), (0, (8, 2, 2, 2)), (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)), (0, (12, 3)))


@styled
def figure(
    chips: Sequence[Any] | Any,
    points: Mapping[str, tuple[float, ...]] | Sequence[tuple[Any, ...]],
    dtype: str = "float16",
    *,
    title: str,
    note: str = "",
    span: tuple[float, float] | None = None,
    rates: tuple[float, float] | None = None,
) -> Figure:
    """Draw the roofs of one or several chips and where pipelines stand under them.

    Parameters
    ----------
    chips : instruments.machine.Chip, or several
        Each has `name`, `bandwidth` (bytes/s) and `flops` (mapping dtype -> FLOP/s).
    points : sequence of (name, flops, bytes), or mapping name -> (flops, bytes)
        A pipeline's arithmetic and its HBM traffic; a further number is its measured time in seconds, drawn hollow.
        An intensity belongs to the pipeline and not to the chip: each point is a vertical line, marked on every roof.
    dtype : str
        Which of the chips' peaks to draw.
    title : str
        What to see.
    note : str
        What the points are points of, "one head, N = 4k, d = 64"; written under the axis.
    span, rates : (float, float), optional
        Ends of the axes of intensity and of rate, for pictures that are compared; by default what the marks need.

    Raises
    ------
    ValueError
        A chip has no peak for `dtype` (the message says which has what), or a point has no bytes.
    """
    chips = list(chips) if isinstance(chips, list | tuple) else [chips]
    rows: list[Any] = [(k, *v) for k, v in points.items()] if isinstance(points, Mapping) else list(points)
    for chip in chips:
        if not chip.flops.get(dtype):
            raise ValueError(f"{chip.name} has no {dtype} peak; it has {', '.join(chip.flops)}")
    for name, flops, moved, *_ in rows:
        if not (flops > 0 and moved > 0):
            raise ValueError(f"point {name!r}: FLOP and bytes must be positive, got {flops:g} and {moved:g}")
    intensity: dict[str, float] = {name: flops / moved for name, flops, moved, *_ in rows}
    ridges = [chip.flops[dtype] / chip.bandwidth for chip in chips]
    low, high = span or _range([*intensity.values()], ridges)

    fig, ax = canvas(title=title)
    ax.set_xscale("log")
    ax.set_yscale("log")
    x = np.geomspace(low, high, 400)
    right: list[Label] = []
    bottom = min(chip.bandwidth for chip in chips) * low
    for chip, line in zip(chips, _ROOFS * len(chips), strict=False):
        peak = chip.flops[dtype]
        ax.plot(x, np.minimum(peak, chip.bandwidth * x), color=INK, linestyle=line, linewidth=2.6, marker="", zorder=2)
        rate = f"{flop_rate(peak)}\n{number(chip.bandwidth / 1e9)} GB/s"
        right.append(
            Label(f"{chip.name}: {rate}" if len(chips) <= 3 else f"{chip.name}: {flop_rate(peak)}", high, peak, INK)
        )
        if len(chips) <= 3:  # below its own roof and above the next: there is room
            ridge = peak / chip.bandwidth
            ax.annotate(f"ridge: {number(ridge)} FLOP/B", (ridge, peak), (2, -5), textcoords="offset points", ha="left",
                        va="top", fontsize=SMALL, zorder=3,
                        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5})  # fmt: skip
    flags = []
    shapes = looks(intensity)
    for name, flops, _moved, *measured in rows:
        at, shape = intensity[name], shapes[name]
        for chip in chips:
            ax.plot(
                [at],
                [min(chip.flops[dtype], chip.bandwidth * at)],
                color=shape.color,
                marker=shape.marker,
                markersize=13,
                markeredgecolor="white",
                markeredgewidth=1.5,
                linestyle="none",
                zorder=4,
            )
        text = f"{name}: {number(at)} FLOP/B"
        if len(chips) == 1:
            text += f"\nat most {flop_rate(min(chips[0].flops[dtype], chips[0].bandwidth * at))}"
        if measured:
            got = flops / measured[0]
            bottom = min(bottom, got / 2)
            ax.plot(
                [at],
                [got],
                marker=shape.marker,
                markersize=13,
                markerfacecolor="white",
                linestyle="none",
                markeredgecolor=shape.color,
                markeredgewidth=3,
                zorder=4,
            )
            text += f"\nhollow: measured {flop_rate(got)}"
        flags.append(Label(text, at, 1.0, shape.color))
    ax.set_xlim(low, high)
    ax.set_ylim(rates or (bottom, 2.2 * max(chip.flops[dtype] for chip in chips)))
    _decades(ax.xaxis, low, high, number)
    _decades(ax.yaxis, ax.get_ylim()[0], ax.get_ylim()[1], flop_rate)
    ax.set_xlabel("arithmetic intensity: FLOP for each byte moved to or from HBM (FLOP/B)" + (note and f"\n{note}"))
    ax.set_ylabel(f"highest possible rate, {dtype}\n(data sheet, not measured)")
    # each word stands where it holds for every chip: left of all ridges, right of all ridges
    for text, at, side in (("← memory-bound", min(ridges), "right"), ("compute-bound →", max(ridges), "left")):
        ax.annotate(
            text,
            (at, 0.03),
            (-8 if side == "right" else 8, 0),
            xycoords=ax.get_xaxis_transform(),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=SMALL,
            zorder=5,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 2.0},
        )
    label_axes(ax, right, flags)
    return fig


def _range(intensities: list[float], ridges: list[float]) -> tuple[float, float]:
    """Intensities to show: every point and ridge, and on each side of the ridges a third of the width for a word."""
    first, last = np.log10(min(ridges)), np.log10(max(ridges))
    low = min(first, np.log10(min(intensities, default=min(ridges)))) - 0.5
    high = max(last, np.log10(max(intensities, default=max(ridges)))) + 0.5
    for _ in range(60):  # widening one side narrows the other's share; the shares add up to less than 1, it settles
        width = high - low
        low, high = min(low, first - 0.32 * width), max(high, last + 0.32 * width)
    return float(10**low), float(10**high)


def _decades(axis: Any, low: float, high: float, write: Any) -> None:
    powers = np.arange(np.ceil(np.log10(low) - 1e-9), np.floor(np.log10(high) + 1e-9) + 1)
    step = -(-len(powers) // 7)
    axis.set_major_locator(FixedLocator([10.0**p for p in powers[::step]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: write(v)))
