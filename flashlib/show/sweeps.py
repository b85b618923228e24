"""A row of scores and the programs that go over it: which tile moves when, so that passes can be counted by eye."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .frame import canvas
from .style import COLOR, HATCH, INK, SMALL, styled
from .units import count


@styled
def figure(
    programs: Mapping[str, Any],
    *,
    title: str,
    tensors: Sequence[str] = ("S", "P"),
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """Draw every tile that a program moves: across, its place in the row; down, the order in which it moved.

    One pass over the row is one diagonal. The panels have one time axis, so a program that moves less ends higher up.

    Parameters
    ----------
    programs : mapping name -> Traffic
        Reports of `flashlib.instruments.traffic.MemoryMachine`, with their events, one panel each.
    title : str
        What to see.
    tensors : sequence of str
        Which HBM tensors to draw, by the place of a tile along their first axis.
    labels : mapping name -> sequence of str, optional
        What each sweep is for, in order; written where the sweep begins.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        A report without a move of these tensors: the machine was made with ``record=False``, or the names differ.
    """
    moved = {name: moves(report, tensors) for name, report in programs.items()}
    for name, steps in moved.items():
        if not steps:
            raise ValueError(f"program {name!r} moved none of {', '.join(tensors)}, or recorded no events")
    longest = max(len(steps) for steps in moved.values())
    size = (6.4 if len(moved) == 1 else 9.0, 5.4)
    fig, axes = canvas(1, len(moved), title=title, size=size, sharey=True, squeeze=False)
    for ax, (name, steps) in zip(axes[0], moved.items(), strict=True):
        n = max(stop for _, _, _, stop in steps)
        for time, (op, tensor, start, stop) in enumerate(steps):
            hatch = HATCH[tensor] if op == "store" else ""
            tile = Rectangle((start, time), stop - start, 1, facecolor=COLOR[tensor], hatch=hatch, edgecolor=INK)
            tile.set(linewidth=0.6, zorder=3)
            ax.add_patch(tile)
        for sweep, text in zip(sweeps(steps, tensors[0]), (labels or {}).get(name, ()), strict=False):
            begin = (steps[sweep[0]][3], sweep[0] + 1)  # beside the sweep's first tile, above the next: there is room
            label = ax.annotate(text, begin, (8, 3), textcoords="offset points", ha="left", va="bottom", fontsize=SMALL)
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0})  # no grid line through the words
        if len(moved) > 1:
            ax.set_title(name, fontsize=SMALL, loc="left")
        ax.set_xlim(0, n)
        ax.set_ylim(longest, 0)
        ax.set_xticks([0, n / 2, n], [count(0), count(n / 2), count(n)])
        for label, side in zip(ax.get_xticklabels(), ("left", "center", "right"), strict=True):
            label.set_horizontalalignment(side)  # the next panel's 0 stands close by
        ax.set_xlabel("place in the row")
        ax.grid(False, axis="x")
    axes[0][0].set_ylabel("time: tiles moved so far")
    found = list(dict.fromkeys((op, tensor) for steps in moved.values() for op, tensor, _, _ in steps))
    words = {"load": "read", "store": "written"}
    keys = [
        Patch(facecolor=COLOR[t], hatch=HATCH[t] if op == "store" else "", edgecolor=INK, label=f"{t} {words[op]}")
        for op, t in found
    ]
    fig.legend(handles=keys, loc="outside lower right", ncols=len(keys), handlelength=2.2)
    return fig


def moves(report: Any, tensors: Sequence[str] = ("S", "P")) -> list[tuple[str, str, int, int]]:
    """(op, tensor, start, stop) of every load and store of these tensors, in order; start and stop along axis 0."""
    return [
        (e.op, e.tensor, e.index[0][0], e.index[0][1])
        for e in report.events
        if e.op in ("load", "store") and e.tensor in tensors
    ]


def sweeps(steps: Sequence[tuple[str, str, int, int]], tensor: str = "S") -> list[tuple[int, int]]:
    """(first, one past the last) step of each pass over `tensor`: a pass begins where its first element is loaded."""
    begins = [i for i, (op, name, start, _) in enumerate(steps) if (op, name, start) == ("load", tensor, 0)]
    return list(zip(begins, [*begins[1:], len(steps)], strict=True))
