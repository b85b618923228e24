"""Loss curves laid over each other, and how far each lies from the exact one, beside what a right one may."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .frame import canvas
from .labels import Label, label_axes
from .style import GREY, INK, SMALL, TEXT, looks, styled

FLOOR = 0.3  # a distance of 0 has no logarithm: it is drawn at this fraction of the smallest one that is not 0


@styled
def losses(
    curves: Mapping[str, Sequence[float]],
    exact: Sequence[float],
    bound: Sequence[float],
    *,
    title: str,
    wrong: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Draw the losses themselves to the left and their distances from the exact curve to the right.

    Parameters
    ----------
    curves : mapping name -> losses (steps,), in nats a token
    exact : losses of the training whose attention is exact
    bound : how far a right training may lie from it, step by step
    title : str
        What to see.
    wrong : mapping name -> losses, optional
        Drawn in both panels, with dashed lines.

    Raises
    ------
    ValueError
        Curves of different length.
    """
    every = {**curves, **(wrong or {})}
    steps = np.arange(len(exact))
    for name, values in {**every, "bound": bound}.items():
        if len(values) != len(exact):
            raise ValueError(f"{name!r} has {len(values)} steps, the exact curve {len(exact)}")
    fig, (left, right) = canvas(1, 2, title=title, size=(9.6, 5.0))
    found = looks(every)
    distances = {n: np.abs(np.asarray(v, float) - np.asarray(exact, float)) for n, v in every.items()}
    seen = np.concatenate([*distances.values(), np.asarray(bound, float)])
    low, high = float(seen[seen > 0].min()) * FLOOR, float(seen.max())
    ends = []
    for number, (name, values) in enumerate(every.items()):
        look = found[name]
        options = {"color": look.color, "linestyle": look.line, "marker": look.marker}
        # the curves lie on one another: wide lines below narrow ones, and markers at different places
        left.plot(steps, values, linewidth=max(1.5, 6 - 1.2 * number), markevery=(3 * number, 12), **options)
        y = np.maximum(distances[name], low)
        right.plot(steps, y, linewidth=1.8, markevery=(3 * number, 12), **options)
        ends.append(Label(name, float(steps[-1]), float(y[-1]), look.color))
    right.plot(steps, bound, color=INK, linewidth=2.2, linestyle="-", marker="", zorder=5)
    right.fill_between(steps, low, bound, color=GREY, alpha=0.16, linewidth=0)
    ends.append(Label("bound", float(steps[-1]), float(bound[-1]), INK, bold=True))
    right.set_yscale("log")
    right.set_ylim(low, high * 2)
    for ax, text in ((left, "loss, nats a token"), (right, "distance from the exact curve, nats")):
        ax.set_xlabel("step")
        ax.set_ylabel(text, fontsize=SMALL)
    left.set_title("the losses", fontsize=TEXT)
    right.set_title("how far apart", fontsize=TEXT)
    label_axes(right, ends, [])
    return fig
