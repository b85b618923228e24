"""Write a line's name at its end instead of in a legend, so that nobody has to look up a colour."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from .style import GREY, INK, SMALL


@dataclass(frozen=True)
class Label:
    """A text that belongs to the point (x, y) of an axes, and the colour of the line to it."""

    text: str
    x: float
    y: float
    color: str = GREY
    bold: bool = False


def label_axes(ax: Axes, right: list[Label], top: list[Label]) -> None:
    """Write `right` labels beside the axes and `top` labels above it, none over another.

    Parameters
    ----------
    ax : Axes
        Finished but for the labels: its limits must not change afterwards.
    right : list of Label
        Stand at the height of their y, moved up or down only as far as needed; a thin line leads to (x, y).
    top : list of Label
        Stand as flags on a line that goes up from x; y is not used.
    """
    fig: Any = ax.figure
    texts = [
        ax.text(
            1.04,
            0.5,
            label.text,
            transform=ax.transAxes,
            va="center",
            ha="left",
            fontsize=SMALL,
            linespacing=1.05,
            fontweight="bold" if label.bold else "normal",
            clip_on=False,
        )
        for label in right
    ]
    fig.draw_without_rendering()  # the layout makes room for the labels before anything is measured
    if top:
        _flags(ax, sorted(top, key=lambda label: label.x))
        fig.draw_without_rendering()
    if right:
        _beside(ax, right, texts)


def spread(wanted: np.ndarray, sizes: np.ndarray, low: float, high: float) -> np.ndarray:
    """Centres closest to `wanted` (least squares) whose intervals of `sizes` do not overlap and lie in [low, high].

    `wanted` must be sorted upwards. Where the sizes do not fit at all, they overlap evenly.
    """
    if len(wanted) == 0:
        return wanted
    gaps = (sizes[:-1] + sizes[1:]) / 2
    gaps = gaps * min(1.0, (high - low - (sizes[0] + sizes[-1]) / 2) / gaps.sum()) if len(gaps) else gaps
    offset = np.concatenate([[0.0], np.cumsum(gaps)])
    blocks: list[list[float]] = []  # [mean, length]: pool adjacent violators on wanted − offset
    for value in wanted - offset:
        blocks.append([float(value), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, n = blocks.pop()
            before, k = blocks[-1]
            blocks[-1] = [(mean * n + before * k) / (n + k), n + k]
    flat = np.concatenate([np.full(int(n), mean) for mean, n in blocks])
    return np.clip(flat, low + sizes[0] / 2, high - sizes[-1] / 2 - offset[-1]) + offset


def _beside(ax: Axes, labels: list[Label], texts: list[Any]) -> None:
    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    box = ax.get_window_extent(renderer)
    heights = np.array([t.get_window_extent(renderer).height for t in texts]) / box.height + 0.015
    ends = [ax.transAxes.inverted().transform(ax.transData.transform((label.x, label.y))) for label in labels]
    order = np.argsort([end[1] for end in ends], kind="stable")
    wanted = np.array([ends[i][1] for i in order])
    # labels may stand a little below and above the axes: there is room beside the tick labels
    for i, y in zip(order, spread(wanted, heights[order], -0.06, 1.06), strict=True):
        texts[i].set_y(y)
        elbow = max(1.0, float(ends[i][0]))
        ax.plot(
            [ends[i][0], elbow, 1.03],
            [ends[i][1], ends[i][1], y],
            transform=ax.transAxes,
            color=labels[i].color,
            linewidth=1.2,
            linestyle="-",
            marker="",
            clip_on=False,
            zorder=1.5,
        )


def _flags(ax: Axes, labels: list[Label]) -> None:
    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    box = ax.get_window_extent(renderer)
    texts, starts, ends = [], [], []
    for label in labels:
        x = ax.transAxes.inverted().transform(ax.transData.transform((label.x, 1)))[0]
        text = ax.text(
            x + 0.008,
            1.0,
            label.text,
            transform=ax.transAxes,
            va="bottom",
            ha="left",
            fontsize=SMALL,
            color=INK,
            clip_on=False,
            fontweight="bold" if label.bold else "normal",
        )
        extent = text.get_window_extent(renderer)
        texts.append(text)
        starts.append(x)
        ends.append(x + 0.03 + extent.width / box.width)
        step = (extent.height / box.height) * 1.22
    # from the right: a flag that would run into the next one stands a row higher, so its pole meets no text
    row = [0] * len(labels)
    for i in reversed(range(len(labels) - 1)):
        row[i] = row[i + 1] + 1 if ends[i] > starts[i + 1] else 0
        row[i] = max([row[i], *(row[j] + 1 for j in range(i + 1, len(labels)) if ends[i] > starts[j])])
    for label, text, x, r in zip(labels, texts, starts, row, strict=True):
        text.set_y(1.02 + r * step)
        ax.plot(
            [x, x],
            [0, 1.02 + (r + 0.8) * step],
            transform=ax.transAxes,
            color=label.color,
            linewidth=1.4,
            linestyle=(0, (4, 3)),
            marker="",
            clip_on=False,
            zorder=1.4,
        )
