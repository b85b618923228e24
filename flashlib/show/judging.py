"""Where a run first differs from the right one by more than rounding, and which numbers of a row are off."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .recording import Recording
from .row_state import Problem, State, kept, number, plain, seen


class Difference(NamedTuple):
    """The first place at which a run is wrong: step, tile (None: at a store), row, and what is wrong in words."""

    step: int
    tile: int | None
    row: int
    what: str


class Faults(NamedTuple):
    """Which numbers of a row's state are off by more than rounding, beside the right state."""

    m: bool
    l: bool
    o: np.ndarray  # (Dv,) of bool
    right: State

    @property
    def any(self) -> bool:
        """Whether one of them is."""
        return self.m or self.l or bool(self.o.any())


def first_difference(run: Recording, problem: Problem, *, o: Any = None, log2: bool = False) -> Difference | None:
    """Where a run first differs from the right one by more than rounding, or None.

    Each tile's end is held against attention over the keys seen so far, in float64, for every row of the tile: acc / l
    and m + log l, which do not depend on the shift m that a program takes. Then each store to O: has the row seen all
    its keys, and is what was stored right? For programs whose numbers are not known, give the result, `o`.
    """
    found = list[Difference]()
    keys_of = {row: seen(run, row) for row in range(len(problem.q))}
    for n, tile in enumerate(run.tiles):
        for row in range(*tile.rows):
            have = kept(run.steps[tile.last], row, 0, problem.v.shape[1], log2) if tile.kept else None
            keys = keys_of[row][tile.last]
            if have and (what := _unlike(problem, row, keys, have)):
                found.append(Difference(tile.last, n, row, what))
                break
        if found:
            break
    stop = found[0].step if found else len(run.steps)
    final = {row: n for n, s in enumerate(run.steps) if s.role == "O" and s.op == "store" and s.rows
             for row in range(*s.rows)}  # fmt: skip
    whole_rows = any(s.role in ("S", "P") and s.bytes for s in run.steps)  # the four steps: P tells, not the keys
    for row, n in sorted(final.items(), key=lambda item: (item[1], item[0])):
        if n >= stop:
            break
        step, every = run.steps[n], [int(j) for j in np.flatnonzero(problem.s[row] > -math.inf)]
        missing = sorted(set(every) - set(keys_of[row][n]))
        if run.tiles and missing and not whole_rows:
            return Difference(n, None, row, f"row {row} is stored before it has seen keys {_list(missing)}")
        given = step.value if step.value is not None else None if o is None else o[slice(*(step.rows or ()))]
        if given is not None and (what := _wrong(problem, row, every, plain(given)[row - (step.rows or (0,))[0]])):
            return Difference(n, None, row, what)
    return found[0] if found else None


def faults(problem: Problem, row: int, keys: list[int], have: State) -> Faults:
    """Hold a row's state after `keys` against the right one.

    m and l are judged together, as m + log l, which does not depend on the shift m that a program takes; where that is
    off, those of the two that are.
    """
    right = problem.state(row, keys)
    if right.seen == 0:
        return Faults(False, have.l != 0, np.asarray(have.acc != 0), right)
    # the weights' share, and what m and log l lose when they are added
    room = problem.budget(row, keys, len(keys)) + 4 * problem.unit * (abs(right.m) + 1)
    with np.errstate(all="ignore"):
        lse = have.m + np.log(have.l)
        off = not abs(lse - right.m - math.log(right.l)) <= room
        m, l = not abs(have.m - right.m) <= room, not abs(have.l / right.l - 1) <= room
    if off and have.l == 0:  # then acc / l is no number either
        return Faults(m, l, np.ones(len(right.o), bool), right)
    return Faults(off and m, off and (l or not m), _off(problem, row, keys, have.o, right.o), right)


def _unlike(problem: Problem, row: int, keys: list[int], have: State) -> str:
    found = faults(problem, row, keys, have)
    right = found.right
    if right.seen == 0:
        return f"row {row} has seen no key, but its l is {number(have.l)}" if found.any else ""
    if found.m or found.l:
        return f"row {row}: m = {number(have.m)}, l = {number(have.l)}; right: {number(right.m)}, {number(right.l)}"
    return _wrong(problem, row, keys, have.o)


def _wrong(problem: Problem, row: int, keys: list[int], o: Any) -> str:
    right = problem.state(row, keys).o
    bad = _off(problem, row, keys, o, right)
    if not bad.any():
        return ""
    at = int(np.flatnonzero(bad)[0])
    return f"row {row}: o[{at}] = {number(o[at])}, right: {number(right[at])}"


def _off(problem: Problem, row: int, keys: list[int], o: Any, right: Any) -> np.ndarray:
    """Which entries of a row of o are off by more than rounding."""
    # o is an average of the values with those weights; one more rounding when it is stored
    most = np.abs(problem.v[keys]).max(0) if keys else np.zeros(len(right))
    room = 2 * (problem.budget(row, keys, len(keys)) + max(2 * problem.unit, problem.coarse)) * most
    return ~(np.abs(o - right) <= room)


def _list(keys: list[int]) -> str:
    whole = keys == list(range(keys[0], keys[-1] + 1)) and len(keys) > 2
    return f"{keys[0]} to {keys[-1]}" if whole else ", ".join(map(str, keys))
