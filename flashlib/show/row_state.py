"""What a row of attention should have summed up after the keys it has seen, and what a recorded run holds of it."""

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


class Problem:
    """The inputs of one head in float64: what is right after any keys."""

    def __init__(self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> None:
        from flashlib.algorithms.masks import visible

        self.itemsize = q.dtype.itemsize
        # Arithmetic on chip is in float32 at least; 16-bit programs also round the weights, before they meet v, and o.
        self.unit = 2.0**-53 if self.itemsize == 8 else 2.0**-24
        self.coarse, self.least = _SIXTEEN.get(str(v.dtype).removeprefix("torch."), (0.0, 0.0))
        self.q, self.k, self.v = (plain(x) for x in (q, k, v))
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
    m, l, acc = (np.atleast_1d(plain(step.state[name])) for name in ("m", "l", "acc"))
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


def number(x: float) -> str:
    """Five digits, with a true minus sign."""
    return f"{x:.5g}".replace("-", "−").replace("inf", "∞")


def plain(x: Any) -> np.ndarray:
    """Float64 in NumPy, of an array of NumPy or torch."""
    x = x.detach().cpu().double().numpy() if hasattr(x, "detach") else x
    return np.asarray(x, dtype=np.float64)
