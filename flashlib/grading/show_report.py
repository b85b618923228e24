"""Put a report in front of the learner: rich in a notebook, plain in a terminal, the same words in both."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashlib.grading.report import Report, place


def show_report(report: Report) -> None:
    """In a notebook nothing is printed here, since the report is the cell's value, but a picture of the error is shown
    where there is one; in a terminal the report is printed."""
    from flashlib.show.bundle import shell

    if shell() is None:
        print(report)
        return
    line = report.failed
    if line is not None and line.finding is not None and line.finding.ratio is not None:
        from flashlib.show.display import show

        ratio = line.finding.ratio
        if min(ratio.shape) > 0 and ratio.size > 1:
            show(picture(ratio, line.finding.axes, line.case.tile), alt=f"{_words(ratio)} {place(line)}.")


def picture(ratio: np.ndarray, axes: tuple[str, ...], tile: tuple[int, int] | None) -> Any:
    """A map of one matrix: right numbers pale, wrong ones dark and crossed, tile borders as lines.

    Parameters
    ----------
    ratio : (rows, columns), error / budget: above 1 is wrong.
    axes : names of the result's axes; the last two are drawn.
    tile : (rows, columns) of a tile, drawn where the axes are rows of queries or keys.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    from flashlib.show.style import COLOR, apply

    apply()
    rows, columns = ratio.shape
    size_in = (min(7.0, 3.8 + 0.12 * columns), min(5.0, 1.9 + 0.1 * rows))  # wide enough for the title
    fig, ax = plt.subplots(figsize=size_in, layout="constrained")
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    wrong = ratio > 1
    ax.imshow(wrong, cmap=_two(COLOR["wrong"]), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if wrong.sum() <= 400:
        y, x = np.nonzero(wrong)
        ax.plot(x, y, linestyle="", marker="x", color="white", markersize=5)
    names = axes[-2:] if len(axes) >= 2 else ("", *axes)
    if tile:
        sizes: dict[str, int] = {"row": tile[0], "key": tile[1]}
        for axis, draw, n in ((str(names[0]), ax.axhline, int(rows)), (str(names[-1]), ax.axvline, int(columns))):
            size = sizes.get(axis, n)
            for edge in range(size, n, size):
                draw(edge - 0.5, color="black", linewidth=0.8)
    ax.set_xlabel(names[-1])
    ax.set_ylabel(names[0])
    ax.set_title(f"{int(wrong.sum()):,} of {wrong.size:,} numbers are wrong (dark, ×)", fontsize=11)
    return fig


def _two(dark: str) -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap(["#ECECEC", dark])


def _words(ratio: np.ndarray) -> str:
    wrong = ratio > 1
    return f"Map of the first wrong matrix: {int(wrong.sum())} of {wrong.size} numbers are beyond the error budget;"
