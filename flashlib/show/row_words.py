"""What the player says of the followed row: m, l, acc and o at a step, and beside a wrong number the right one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .judging import Faults
from .recording import Span, Step, Tile
from .row_state import State, number

MANY = 4  # numbers of a row of o; of more, the first three are shown


class Piece(NamedTuple):
    """A part of a line; a wrong one is also marked by its weight and its colour."""

    text: str
    wrong: bool = False


Line = list[Piece]


def when(step: Step, n: int, tile: Tile | None, state: State, whole: bool) -> str:
    """Which keys the row's numbers hold, seen from the tile under work at step n; `whole`: none is half absorbed."""
    keys = count(state.seen)
    if tile is None or step.tile is None:
        return f"after {keys}"
    if tile.last == n:
        return f"after this tile ({keys} in all)"
    return f"before this tile ({keys} so far)" if whole else f"halfway into this tile ({keys} before it)"


def sums(state: State, found: Faults | None) -> Line:
    """The line of m and l."""
    line = Line()
    for name, have, wrong in (("m", state.m, found and found.m), ("l", state.l, found and found.l)):
        gap = [Piece("   ")] if line else []
        right = getattr(found.right, name) if found else 0.0
        mark = [Piece(f" ≠ {number(right)} (right)")] if wrong else []
        line += [*gap, Piece(f"{name} = {number(have)}", bool(wrong)), *mark]
    return line


def output(state: State, found: Faults | None, whole: bool) -> list[Line]:
    """The line of o = acc / l, and below it the right o if some of it is wrong."""
    if not whole:
        return [[Piece("o = acc / l: when both are of this tile")]]
    if state.l == 0:
        said = "o = acc / l: none before the first key" if state.seen == 0 else "o = acc / l = 0 / 0, not a number"
        lines = [[Piece(said, bool(found and found.o.any()))]]
    else:
        lines = [[Piece("o = acc / l = "), *several(state.o, found.o if found else ())]]
    if found and found.o.any():
        lines.append([Piece("≠ "), *several(found.right.o), Piece(" (right)")])
    return lines


def several(row: Any, wrong: Iterable[bool] = ()) -> Line:
    """Numbers of a row in brackets; of many, the first three."""
    shown = len(row) if len(row) <= MANY else MANY - 1
    bad = np.fromiter(wrong, bool) if not isinstance(wrong, np.ndarray) else wrong
    line = [Piece("(")]
    for i in range(shown):
        line += [Piece(number(float(row[i])), bool(len(bad) and bad[i])), Piece(", ")]
    return [*line[:-1], Piece(")")] if len(row) == shown else [*line, Piece("…)")]


def text(line: Line) -> str:
    """A line as plain text."""
    return "".join(piece.text for piece in line)


def count(keys: int) -> str:
    """How many keys, in words."""
    return f"{keys} key{'' if keys == 1 else 's'}"


def span(name: str, part: Span) -> str:
    """Some rows or keys: ``keys 2 to 3``, ``key 4``."""
    return f"{name}s {part[0]} to {part[1] - 1}" if part[1] - part[0] > 1 else f"{name} {part[0]}"
