"""An empty figure: made outside pyplot, titled, and measured until its labels fit."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .style import SIZE, TITLE, styled


@styled
def canvas(
    nrows: int = 1, ncols: int = 1, *, title: str | None = None, size: tuple[float, float] = SIZE, **options: Any
) -> tuple[Figure, Any]:
    """Make an empty figure outside pyplot, so that no backend shows it a second time.

    Parameters
    ----------
    nrows, ncols : int
        Grid of axes; `options` go to ``Figure.subplots``.
    title : str, optional
        What to see. Long titles are wrapped to the width of the figure.
    size : (float, float)
        Width and height in inches.

    Returns
    -------
    fig : matplotlib.figure.Figure
    axes : Axes, or array of Axes as ``Figure.subplots`` gives them
    """
    fig = blank(size)
    if title:
        headline(fig, title)
    return fig, fig.subplots(nrows, ncols, **options)


@styled
def blank(size: tuple[float, float]) -> Figure:
    """A figure without axes; `size` in inches."""
    fig = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(fig)  # a canvas that can measure text
    return fig


def settle(fig: Figure) -> None:
    """Lay the figure out until it stands still: with a fixed aspect, one pass leaves labels outside the picture."""
    for _ in range(3):
        fig.draw_without_rendering()


@styled
def headline(fig: Figure, text: str) -> int:
    """Write the figure's title at the top left, wrapped to its width at words; returns the number of lines."""
    renderer = FigureCanvasAgg(fig).get_renderer()
    room = fig.bbox.width * 0.98
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        probe = fig.text(0, 0, longer, fontsize=TITLE)
        fits = probe.get_window_extent(renderer).width <= room
        probe.remove()
        lines = [*lines[:-1], longer] if fits else [*lines, word]
    fig.suptitle("\n".join(lines), x=0.008, ha="left", fontsize=TITLE)
    return len(lines)
