"""Pictures of the backward: gradients with their signs, the order of its two loops, its matrix products."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from .frame import blank, canvas, headline, settle
from .matrices import panel
from .shade import ink, shades
from .style import BLUE, COLOR, INK, PAPER, SMALL, TEXT, TITLE, VERMILLION, styled

__all__ = ["gradients", "loops", "products", "say_loops"]

#: negative, zero, positive; the minus sign in the cell says the same without colour
SIGNED = LinearSegmentedColormap.from_list("negative to positive", [VERMILLION, PAPER, BLUE])


@styled
def gradients(panels: Sequence[Mapping[str, Any]], *, title: str, signs: Sequence[str] = ()) -> Figure:
    """Draw matrices of equally many rows side by side, as an equation; those with negative numbers are white at zero.

    All cells have one height, and the width that their matrix's widest number needs: all numbers have one size.

    Parameters
    ----------
    panels : sequence of mappings
        Each has ``a`` and any option of `matrices.panel` but ``numbers`` and ``fmt``: integers are written as such, all
        else with two decimals.
    title : str
        What to see.
    signs : sequence of str, optional
        What stands between each matrix and the next, such as "∘".

    Raises
    ------
    ValueError
        The number of signs does not fit, or the matrices' rows differ in number.
    """
    arrays = [_array(options["a"]) for options in panels]
    if len(signs) not in (0, len(panels) - 1):
        raise ValueError(f"{len(panels)} panels have {len(panels) - 1} places between them, got {len(signs)} signs")
    if len({len(a) for a in arrays}) != 1:
        raise ValueError(f"the matrices have {[len(a) for a in arrays]} rows; they must have equally many")
    n, cell, left, gap, below = len(arrays[0]), 0.42, 0.75, 0.42 if signs else 0.25, 0.85  # inches
    texts = [_texts(a) for a in arrays]
    widest = [max(map(_ems, text.values())) for text in texts]
    widths = [a.shape[1] * (0.07 + SMALL / 72 * ems) for a, ems in zip(arrays, widest, strict=True)]
    width = left + sum(widths) + gap * (len(panels) - 1) + 0.15
    fig = blank((width, 4.0))
    fig.set_layout_engine("none")
    height = n * cell + below + 0.5 + 0.27 * headline(fig, title)
    fig.set_size_inches(width, height)
    x = left
    for index, (options, wide) in enumerate(zip(panels, widths, strict=True)):
        ax = fig.add_axes((x / width, below / height, wide / width, n * cell / height))
        panel(ax, **{"rows": None if index == 0 else "", **options, "numbers": True})
        ax.set_aspect("auto")
        _sign_colors(ax, texts[index])
        if index:
            ax.tick_params(labelleft=False)
        if index < len(signs):
            at = (x + wide + gap / 2, below + n * cell / 2)
            fig.text(*at, signs[index], transform=fig.dpi_scale_trans, ha="center", va="center", fontsize=TITLE)
        x += wide + gap
    return fig


def _sign_colors(ax: Any, texts: Mapping[tuple[int, int], str]) -> None:
    """White at zero if a number is negative; every number in the size SMALL, in a colour that can be read."""
    image = ax.images[0]
    values = np.ma.filled(np.ma.asarray(image.get_array()).astype(float), 0.0)
    if values.min() < 0:
        most = np.abs(values).max()
        image.set(cmap=SIGNED, norm=Normalize(-most, most))
    for text in ax.texts:  # the numbers stand in the middle of their cells
        column, row = (int(x) for x in text.get_position())
        text.set(text=texts[row, column], fontsize=SMALL, color=ink(image.cmap(image.norm(values[row, column]))))


def _array(a: Any) -> np.ndarray:
    return np.asarray(a.detach().cpu().double().numpy() if hasattr(a, "detach") else a, dtype=float)


def _texts(a: np.ndarray) -> dict[tuple[int, int], str]:
    """The numbers as all cells of one matrix show them: integers, or two decimals without the 0 before the point."""
    whole = bool((a == np.round(a)).all())
    raw = {index: f"{x:.0f}" if whole else f"{x:.2f}" for index, x in np.ndenumerate(a)}
    return {index: re.sub(r"^(-?)0\.", r"\1.", text).replace("-", "−") for index, text in raw.items()}


def _ems(text: str) -> float:
    """Width in units of the text size (DejaVu Sans: digits 0.64, point 0.32, minus 0.84)."""
    return sum({".": 0.32, "−": 0.84}.get(c, 0.64) for c in text)


@styled
def loops(n_q: int, n_k: int, step: int, *, title: str | None = None) -> Figure:
    """Draw the backward's tiles at one moment: key tiles outside, query tiles inside.

    Parameters
    ----------
    n_q, n_k : int
        Query tiles and key tiles.
    step : int
        1 … n_q·n_k, the tile at work; they run down a column of the score matrix, then down the next.
    title : str, optional
        By default it says what stays on chip and what passes by.

    Raises
    ------
    ValueError
        There is no such step.
    """
    if not 1 <= step <= n_q * n_k:
        raise ValueError(f"step must be 1 to {n_q * n_k}, got {step}")
    j, i = divmod(step - 1, n_q)
    if title is None:
        title = f"Tile {step} of {n_q * n_k}: dK and dV of key tile {j} stay on chip, query tile {i} passes by"
    fig, ax = canvas(title=title, size=(8.4, 2.3 + 0.72 * n_q))

    def cell(x: float, y: float, face: Any, text: str, width: float = 1.6) -> None:
        ax.add_patch(Rectangle((x, y), width, 1, facecolor=face, edgecolor=INK, linewidth=1.2))
        ax.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=SMALL, color=ink(face), zorder=5)

    faces = {"on chip": COLOR["SRAM"], "stored": shades("HBM")(0.3), "not begun": PAPER}
    for column in range(n_k):
        for row in range(n_q):
            order = column * n_q + row + 1
            face = COLOR["S"] if order == step else shades("S")(0.25) if order < step else PAPER
            cell(column * 1.6, row, face, str(order))
        state = "on chip" if column == j else "stored" if column < j else "not begun"
        cell(column * 1.6, n_q + 0.35, faces[state], state)
    ax.add_patch(Rectangle((j * 1.6, i), 1.6, 1, fill=False, edgecolor=INK, linewidth=4.0, zorder=4))
    for row in range(n_q):
        added = j + (row < i)  # the tile at work is not among them yet
        text = f"now share {j + 1} of {n_k}" if row == i else f"{added} of {n_k} added"
        cell(n_k * 1.6 + 0.35, row, PAPER, text, width=2.4)
        for n in range(n_k):  # below the words, a box for each share
            fill: Any = faces["stored"] if n < added else COLOR["S"] if row == i and n == j else PAPER
            at = (n_k * 1.6 + 0.35 + 2.4 * n / n_k, row + 0.8)
            ax.add_patch(Rectangle(at, 2.4 / n_k, 0.2, facecolor=fill, edgecolor=INK, linewidth=1.2))
    ax.text(n_k * 1.6 + 1.55, -0.2, "dQ, in HBM", ha="center", va="bottom", fontsize=TEXT)
    ax.text(-0.15, n_q + 0.85, "dK, dV", ha="right", va="center", fontsize=TEXT)
    for row in range(n_q):
        ax.text(-0.15, row + 0.5, f"query tile {row}", ha="right", va="center", fontsize=SMALL)
    for column in range(n_k):
        ax.text(column * 1.6 + 0.8, -0.2, f"key tile {column}", ha="center", va="bottom", fontsize=SMALL)
    ax.set_xlim(-2.2, n_k * 1.6 + 2.9)
    ax.set_ylim(n_q + 1.45, -0.75)
    ax.set_axis_off()
    key = {"tile done": shades("S")(0.25), "tile at work": COLOR["S"], "lies in HBM": faces["stored"]}
    key["lies on chip"] = COLOR["SRAM"]
    patches = [Patch(facecolor=face, edgecolor=INK, label=label) for label, face in key.items()]
    fig.legend(handles=patches, loc="outside lower left", ncols=len(key), fontsize=SMALL)
    settle(fig)
    return fig


def say_loops(n_q: int, n_k: int, step: int) -> str:
    """What `loops` shows at this step, in words."""
    j, i = divmod(step - 1, n_q)
    added = ", ".join(str(j + (row < i)) for row in range(n_q))
    return (
        f"{n_q * n_k} tiles in {n_k} columns, worked through column by column from the top. Tile {step}: dK and dV of "
        f"key tile {j} are on chip, those of {j} of {n_k} key tiles are stored; dQ of query tiles 0 to {n_q - 1} has "
        f"{added} of {n_k} shares; that of query tile {i} is getting its share {j + 1}."
    )


@styled
def products(methods: Mapping[str, Mapping[str, Sequence[str]]], *, title: str, xlabel: str) -> Figure:
    """Draw each method's matrix products as blocks of one unit, forward then backward.

    Parameters
    ----------
    methods : mapping name -> {"forward": products, "backward": products}
        Names of products such as "S" or "dV"; one that ends in "again" is hatched: it was computed before.
    title : str
        What to see.
    xlabel : str
        What one block is.
    """
    fig, ax = canvas(title=title, size=(9.0, 1.9 + 0.75 * len(methods)))
    longest = 0
    for y, parts in enumerate(methods.values()):
        x = 0
        for phase, name in ((phase, name) for phase, names in parts.items() for name in names):
            again = name.endswith("again")
            face = PAPER if again else shades("V" if phase == "backward" else "Q")(0.35)
            ax.add_patch(Rectangle((x, y - 0.36), 1, 0.72, facecolor=face, edgecolor=INK, linewidth=1.2,
                                   hatch="//" if again else ""))  # fmt: skip
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 2.0} if again else None
            ax.text(x + 0.5, y, name.replace(" ", "\n"), ha="center", va="center", fontsize=SMALL, bbox=box)
            x += 1
        n = len(parts["forward"])
        ax.plot([n, n], [y - 0.46, y + 0.46], color=INK, linewidth=4, linestyle="-", marker="")
        ax.text(x + 0.12, y, str(x), ha="left", va="center", fontsize=TEXT)
        longest = max(longest, x)
    ax.set_yticks(range(len(methods)), list(methods))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(methods) - 0.4, -0.6)
    ax.set_xlim(0, longest + 0.6)
    ax.set_xlabel(xlabel)
    ax.grid(False)
    settle(fig)
    return fig
