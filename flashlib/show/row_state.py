"""What a row of attention should have summed up after the keys it has seen, and where a run first differs from it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .recording import Recording, Step

_SIXTEEN = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 0.0)}  # rounding: relative, and absolute near 0


class State(NamedTuple):
    """m, l, acc of one row and how many keys it has seen; `kept`: the program's own numbers, else computed anew."""

    m: float
    l: float
    acc: np.ndarray
    seen: int
    kept: bool

    @property
    def o(self) -> np.ndarray:
        """acc / l: attention over the keys seen so far; zeros before the first."""
        with np.errstate(all="ignore"):
            return self.acc / self.l if self.l != 0 else np.zeros_like(self.acc)


class Difference(NamedTuple):
    """The first place at which a run is wrong: step, tile (None: at a store), row, and what is wrong in words."""

    step: int
    tile: int | None
    row: int
    what: str


class Problem:
    """The inputs of one head in float64: what is right after any keys."""

    def __init__(self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> None:
        from flashlib.algorithms.masks import visible

        self.itemsize = q.dtype.itemsize
        # Arithmetic on chip is in float32 at least; 16-bit programs also round the weights, before they meet v, and o.
        self.unit = 2.0**-53 if self.itemsize == 8 else 2.0**-24
        self.coarse, self.least = _SIXTEEN.get(str(v.dtype).removeprefix("torch."), (0.0, 0.0))
        self.q, self.k, self.v = (_plain(x) for x in (q, k, v))
        if self.q.ndim != 2 or self.k.ndim != 2 or self.v.ndim != 2:
            raise ValueError(f"expected one head, q (Sq, D) and so on, got {self.q.shape}: choose a batch and a head")
        scale = 1 / math.sqrt(self.q.shape[1]) if scale is None else scale
        self.causal = causal
        self.s = np.where(visible(len(self.q), len(self.k), causal), scale * self.q @ self.k.T, -math.inf)
        self.size = abs(scale) * np.abs(self.q) @ np.abs(self.k).T  # of the products that a score sums up

    def state(self, row: int, keys: list[int]) -> State:
        """The right m, l, acc after these keys."""
        keys = [j for j in keys if self.s[row, j] > -math.inf]
        if not keys:
            return State(-math.inf, 0.0, np.zeros(self.v.shape[1]), 0, False)
        s = self.s[row, keys]
        p = np.exp(s - s.max())
        return State(float(s.max()), float(p.sum()), p @ self.v[keys], len(keys), False)

    def budget(self, row: int, keys: list[int], turns: int) -> float:
        """By how much rounding alone may change a row's weights and sums, relative to them.

        To first order (Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1): a score of d products is
        off by (d + 2) u Σ|q k|, and changes its weight by that share, once in s and once in m; exp, the weight's own
        rounding, a sum of n terms and two products at each of the turns add n + 4 · turns + 8 units u. Twice that,
        for arithmetic in base 2.
        """
        size = float(self.size[row, keys].max()) if keys else 0.0
        units = 2 * (self.q.shape[1] + 4) * size + len(keys) + 4 * turns + 8
        return math.expm1(min(2 * units * self.unit, 700.0)) + self.coarse + len(keys) * self.least


def history(run: Recording, problem: Problem, row: int, *, log2: bool = False) -> list[State | None]:
    """A row's state after every step: the program's numbers where they are known, else computed from its keys.

    None before the row's first step. `log2`: the program holds m in units of log 2.
    """
    out, now = list[State | None](), None
    for step, keys in zip(run.steps, seen(run, row), strict=True):
        if step.rows and step.rows[0] <= row < step.rows[1]:
            visible = sum(problem.s[row, j] > -math.inf for j in keys)
            now = kept(step, row, visible, problem.v.shape[1], log2) or (now if run.kept else problem.state(row, keys))
        out.append(now)
    return out


def kept(step: Step, row: int, n: int, dv: int, log2: bool = False) -> State | None:
    """The state of a row as the program holds it after a step, if it holds m, l and acc."""
    if step.rows is None or not {"m", "l", "acc"} <= set(step.state):
        return None
    i = row - step.rows[0]
    m, l, acc = (np.atleast_1d(_plain(step.state[name])) for name in ("m", "l", "acc"))
    if i >= min(len(m), len(l), len(acc)):
        return None
    unit = math.log(2) if log2 else 1.0
    return State(float(m[i].flat[0]) * unit, float(l[i].flat[0]), np.atleast_1d(acc[i])[:dv], n, True)


def seen(run: Recording, row: int) -> list[list[int]]:
    """The keys that a row has absorbed after each step: those of the tiles that are over, in this kernel."""
    out, now, kernel = list[list[int]](), list[int](), None
    ends = {tile.last: tile for tile in run.tiles if tile.rows[0] <= row < tile.rows[1]}
    for n, step in enumerate(run.steps):
        if step.kernel != kernel and step.rows and step.rows[0] <= row < step.rows[1]:
            kernel, now = step.kernel, []
        if n in ends:
            now = now + [j for j in range(*ends[n].keys) if j not in now]
        out.append(now)
    return out


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
        if given is not None and (what := _wrong(problem, row, every, _plain(given)[row - (step.rows or (0,))[0]])):
            return Difference(n, None, row, what)
    return found[0] if found else None


def _unlike(problem: Problem, row: int, keys: list[int], have: State) -> str:
    right = problem.state(row, keys)
    if right.seen == 0:
        return (
            "" if have.l == 0 and not np.any(have.acc) else f"row {row} has seen no key, but its l is {number(have.l)}"
        )
    with np.errstate(all="ignore"):
        lse, true = have.m + np.log(have.l), right.m + math.log(right.l)
    # the weights' share, and what m and log l lose when they are added
    room = problem.budget(row, keys, len(keys)) + 4 * problem.unit * (abs(right.m) + 1)
    if not abs(lse - true) <= room:
        return f"row {row}: m = {number(have.m)}, l = {number(have.l)}; right: {number(right.m)}, {number(right.l)}"
    return _wrong(problem, row, keys, have.o, right.o)


def _wrong(problem: Problem, row: int, keys: list[int], o: Any, right: Any = None) -> str:
    right = problem.state(row, keys).o if right is None else right
    # o is an average of the values with those weights; one more rounding when it is stored
    most = np.abs(problem.v[keys]).max(0) if keys else np.zeros(len(right))
    room = 2 * (problem.budget(row, keys, len(keys)) + max(2 * problem.unit, problem.coarse)) * most
    bad = ~(np.abs(o - right) <= room)
    if not bad.any():
        return ""
    at = int(np.flatnonzero(bad)[0])
    return f"row {row}: o[{at}] = {number(o[at])}, right: {number(right[at])}"


def number(x: float) -> str:
    """Five digits, with a true minus sign."""
    return f"{x:.5g}".replace("-", "−").replace("inf", "∞")


def _list(keys: list[int]) -> str:
    whole = keys == list(range(keys[0], keys[-1] + 1)) and len(keys) > 2
    return f"{keys[0]} to {keys[-1]}" if whole else ", ".join(map(str, keys))


def _plain(x: Any) -> np.ndarray:
    x = x.detach().cpu().double().numpy() if hasattr(x, "detach") else x
    return np.asarray(x, dtype=np.float64)
