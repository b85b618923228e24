"""Explorer: the states of a row's tiles, merged by ⊕ in one order or another, with the state at every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flashlib.algorithms import online
from flashlib.algorithms.naive import four_steps
from flashlib.algorithms.toy import toy

from .frame import canvas
from .shade import shades
from .style import INK, PAPER, SMALL, styled

ORDERS = ("left fold", "balanced tree", "random tree, seed 0", "random tree, seed 1", "random tree, seed 2")
FEW = 3  # tiles for which there is room to write acc


@dataclass(frozen=True)
class Node:
    """A state, the keys that it stands for, and the two nodes that it was merged from (none for a tile)."""

    state: online.State
    keys: tuple[int, ...]
    parts: tuple[Node, ...] = ()

    @property
    def depth(self) -> int:
        """Merges one after the other on the way here."""
        return 1 + max(p.depth for p in self.parts) if self.parts else 0


def tree(order: str, keys: int, row: int = 3) -> Node:
    """Merge one row of the toy.

    Parameters
    ----------
    order : one of `ORDERS`
    keys : keys in a tile
    row : which query

    Raises
    ------
    ValueError for another order.
    """
    q, k, v = toy()
    s = four_steps(q, k, v).s[row]
    nodes = [
        Node(online.of_tile(s[j : j + keys], v[j : j + keys]), tuple(range(j, min(j + keys, len(s)))))
        for j in range(0, len(s), keys)
    ]
    if order == "left fold":
        while len(nodes) > 1:
            nodes = [_join(nodes[0], nodes[1]), *nodes[2:]]
    elif order == "balanced tree":
        nodes = [_halves(nodes)]
    elif order in ORDERS:
        rng = np.random.default_rng(int(order.split()[-1]))
        while len(nodes) > 1:
            a, b = (nodes.pop(int(rng.integers(len(nodes)))) for _ in range(2))
            nodes.append(_join(a, b))
    else:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    return nodes[0]


def _halves(nodes: list[Node]) -> Node:
    half = len(nodes) // 2
    return _join(_halves(nodes[:half]), _halves(nodes[half:])) if half else nodes[0]


def _join(a: Node, b: Node) -> Node:
    return Node(online.merge(a.state, b.state), a.keys + b.keys, (a, b))


def _state(node: Node, with_acc: str = "") -> str:
    """The node's m and l, and after `with_acc`, if there is something in it, its acc: o before it is divided by l."""
    m, l, acc = node.state
    text = f"m={m:.3g}  l={l:.4g}"
    return text if not with_acc else f"{text}{with_acc}acc=({', '.join(f'{x:.3g}' for x in acc)})"


def _shrink(part: Node, whole: Node) -> float:
    """What ⊕ multiplies a part by: exp(m of the part − m of both)."""
    return float(np.exp(part.state.m - whole.state.m))


@styled
def draw(order: str, keys: int, row: int = 3) -> Figure:
    """Draw the tree, tiles on top, the whole row at the bottom; arguments as in `tree`."""
    root = tree(order, keys, row)
    leaves = -(-len(root.keys) // keys)
    fig, ax = canvas(title=_title(root, order, row), size=(9.0, 5.9))  # for any tree, so that the page does not jump
    _place(ax, root, 0, root, leaves)
    ax.set_xlim(0, leaves)
    ax.set_ylim(root.depth + 0.45, -0.75)
    ax.set_axis_off()
    return fig


def _place(ax: Any, node: Node, left: int, root: Node, leaves: int) -> tuple[float, int]:
    """Draw a node and what is above it, its tiles from column `left` on: (where it stands, how many tiles it has)."""
    y = node.depth
    if not node.parts:
        x, width = left + 0.5, 1
        named = ("key " if len(node.keys) == 1 else "keys ") + ", ".join(map(str, node.keys))
        ax.text(x, -0.36, named, ha="center", va="bottom", fontsize=SMALL)
    else:
        placed, width = [], 0
        for part in node.parts:
            at, tiles = _place(ax, part, left + width, root, leaves)
            placed.append(at)
            width += tiles
        x = float(np.mean(placed))
        for at, part in zip(placed, node.parts, strict=True):
            bend = y - 0.5  # straight down to here, then to the node: no line passes through another node
            ax.plot([at, at, x], [part.depth, bend, y], color=INK, linewidth=2, linestyle="-", marker="", zorder=1)
            ax.text(at, bend, f"× {_shrink(part, node):.3g}", ha="center", va="center",
                    fontsize=SMALL, zorder=3, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5})  # fmt: skip
    last = node is root
    face = shades("O")(0.35) if last else shades("S")(0.25) if node.parts else PAPER
    box = {"boxstyle": "round,pad=0.3", "facecolor": face, "edgecolor": INK, "linewidth": 2.8 if last else 1.2}
    ax.text(x, y, _state(node, "\n" if leaves <= FEW else ""), ha="center", va="center", fontsize=SMALL, zorder=4,
            fontweight="bold" if last else "normal", bbox=box)  # fmt: skip
    return x, width


def describe(order: str, keys: int, row: int = 3) -> str:
    """The picture that `draw` makes, in words."""
    root = tree(order, keys, row)
    steps: list[str] = []

    def walk(node: Node) -> None:
        for part in node.parts:
            walk(part)
        if node.parts:
            a, b = node.parts
            steps.append(
                f"keys {_names(a)} times {_shrink(a, node):.3g} and keys {_names(b)} times {_shrink(b, node):.3g} make "
                + _state(node, " ")
            )

    walk(root)
    told = "; ".join(steps) or f"one tile: {_state(root, ' ')}"
    title = _title(root, order, row)
    return f"A tree over the {len(root.keys)} keys of toy row {row} in tiles of {keys}. {told}. {title}."


def _names(node: Node) -> str:
    return ", ".join(map(str, node.keys))


def _title(root: Node, order: str, row: int) -> str:
    o, lse = online.finish(root.state)
    result = "(" + ", ".join(f"{x:.4f}".rstrip("0").rstrip(".") for x in o) + ")"
    return f"{order.capitalize()}, {root.depth} deep: row {row} = acc / l = {result}, lse {lse:.4f}"
