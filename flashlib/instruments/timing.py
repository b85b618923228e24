"""How long a call takes, honestly: warmed up, synchronised, the median of several, two rivals taken in turn."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, the first and third quartile (`low`, `high`), the number of runs, and each run.

    Prints in milliseconds.
    """

    median: float
    low: float
    high: float
    runs: int
    seconds: tuple[float, ...] = field(repr=False)

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Sum up a list of runs."""
        low, middle, high = _quartiles(seconds)
        return cls(middle, low, high, len(seconds), tuple(seconds))

    def __str__(self) -> str:
        return f"{_ms(self.median)} ms (middle half {_ms(self.low)} to {_ms(self.high)} ms, {self.runs} runs)"

    __repr__ = __str__


@dataclass(frozen=True)
class Pair:
    """Two calls timed in turn. `ratio` is the median of a's seconds over b's, turn by turn, with its quartiles."""

    a: Timing
    b: Timing
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        ratio = f"a takes {self.ratio:.3g} times b (middle half {self.low:.3g} to {self.high:.3g})"
        return f"a {self.a}\nb {self.b}\n{ratio}"

    __repr__ = __str__


def measure(
    fn: Callable[[], Any], *, warmup: int = 2, repeats: int | None = None, budget_s: float = 1.0, at_least: int = 5
) -> Timing:
    """Time `fn()`. The first calls, which compile, allocate and fill caches, are not counted.

    Parameters
    ----------
    warmup : calls before the clock starts.
    repeats : calls to time; None takes as many as fit in `budget_s` seconds, but `at_least` that many.

    Returns
    -------
    Timing, in seconds. On CUDA each call is timed to the end of its kernels (the device is synchronised).
    """
    _check(warmup, repeats, budget_s, at_least)
    for _ in range(warmup):
        fn()
    with _quiet():
        return Timing.of([_once(fn) for _ in _turns(repeats, budget_s, at_least)])


def pairs(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    warmup: int = 2,
    repeats: int | None = None,
    budget_s: float = 2.0,
    at_least: int = 5,
) -> Pair:
    """Time two calls in turn, A B B A A B …, so that a machine that slows down or speeds up touches both alike.

    The order changes every turn, so that neither always runs on the other's warm caches. The ratio is taken turn by
    turn and then its median, which survives a disturbed turn.
    """
    _check(warmup, repeats, budget_s, at_least)
    for _ in range(warmup):
        a()
        b()
    first, second = [], []
    with _quiet():
        for turn in _turns(repeats, budget_s, at_least):
            if turn % 2 == 0:
                first.append(_once(a))
                second.append(_once(b))
            else:
                second.append(_once(b))
                first.append(_once(a))
    low, ratio, high = _quartiles([x / y for x, y in zip(first, second, strict=True)])
    return Pair(Timing.of(first), Timing.of(second), ratio, low, high)


def _turns(repeats: int | None, budget_s: float, at_least: int) -> Iterator[int]:
    """0, 1, 2, …: `repeats` of them, or until the budget is spent (never fewer than `at_least`)."""
    start, turn = time.perf_counter(), 0
    while turn < repeats if repeats is not None else turn < at_least or time.perf_counter() - start < budget_s:
        yield turn
        turn += 1


def _once(fn: Callable[[], Any]) -> float:
    _synchronise()
    start = time.perf_counter()
    fn()
    _synchronise()
    return max(time.perf_counter() - start, 1e-9)  # a clock tick at least, so that a ratio exists


def _synchronise() -> None:
    """Wait for the GPU, if torch is loaded and has one in use. Kernels run on after the call that started them."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection while the clock runs."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _check(warmup: int, repeats: int | None, budget_s: float, at_least: int) -> None:
    if warmup < 0 or at_least < 1 or (repeats is not None and repeats < 1) or not 0 <= budget_s < math.inf:
        raise ValueError(
            f"warmup ≥ 0, repeats ≥ 1, at_least ≥ 1 and a finite budget_s ≥ 0 are needed, "
            f"got {warmup}, {repeats}, {at_least}, {budget_s}"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
