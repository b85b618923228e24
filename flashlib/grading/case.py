"""What an exercise is made of: cases to run, the outcome of a run, what was found in it, and the mistakes it knows.

A case says what to call and how to judge the answer. It is run where the learner's function lives, in the notebook or
in a child process (`harness`), and judged where the answers are known (`judge`): nothing of the judging needs the
function itself, so a submission cannot change its own mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class Value(NamedTuple):
    """One returned array: its numbers (bfloat16 widened to float32), its dtype's name, and whose it was."""

    array: np.ndarray
    dtype: str
    library: str  # "numpy" | "torch" | "python"


class Trouble(NamedTuple):
    """An exception: class name, message, the learner's line that raised it (text, number)."""

    kind: str
    message: str
    line: str = ""
    number: int = 0


class Stream:
    """Arrays, or tuples of arrays, handed out one after the other, each once, as copies: a stream that does not come
    back. An argument of this kind is fresh in every run."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts, self._next = list(parts), 0
        self.ends = 0  # how often it was asked past its end: twice, if two loops went over it

    def fresh(self) -> Stream:
        """The same stream from its beginning."""
        return Stream(self._parts)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if self._next == len(self._parts):
            self.ends += 1
            raise StopIteration
        part, self._next = self._parts[self._next], self._next + 1
        return tuple(a.copy() for a in part) if isinstance(part, tuple) else part.copy()


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    ``results`` is flat: one returned array is a tuple of one. ``changed`` names the arguments the call wrote to.
    ``measures`` holds what the harness measured: plain numbers and strings. ``called`` lists library functions that
    were seen to run.
    """

    results: tuple[Value, ...] = ()
    trouble: Trouble | None = None
    changed: tuple[str, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)
    called: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Finding:
    """The judgement of one case.

    ``error`` and ``budget`` are in the units of the result (None where nothing was compared). ``where`` is the index of
    the first wrong element and ``axes`` names its axes. ``says`` is a sentence in plain words, for what went wrong.
    ``ratio`` is |error| / budget over the last two axes of the first wrong matrix, for a picture. ``budgets`` are those
    of all results, in their order, if several were compared.
    """

    ok: bool
    error: float | None = None
    budget: float | None = None
    where: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    result: str = ""
    says: str = ""
    ratio: np.ndarray | None = None
    budgets: tuple[float, ...] = ()


Judge = Callable[[Outcome], Finding]


@dataclass(frozen=True)
class Case:
    """One property, tried by one call.

    Parameters
    ----------
    name : as the report prints it, "causal, Sq=37 Sk=53".
    args, kwargs : what the function is called with. Fresh copies are made for every run.
    judge : makes a `Finding` of an `Outcome`.
    how : the harness that makes the call, a name in `harness.HARNESSES`; ``options`` are its own.
    measured : tried only when all cases that are not measured have passed.
    tile : (rows, columns) of a tile, to say in which tile the first wrong element lies.
    """

    name: str
    args: tuple[Any, ...]
    judge: Judge
    kwargs: dict[str, Any] = field(default_factory=dict)
    how: str = "call"
    options: dict[str, Any] = field(default_factory=dict)
    measured: bool = False
    tile: tuple[int, int] | None = None


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation that people write, and what to tell them.

    Parameters
    ----------
    name : short, for the matrix: "never rescaled".
    wrong : the implementation, called as the learner's function would be.
    says : what the output equals, as a clause after "Your output equals that of" (or "It fails in the same way as",
        after an exception): "an accumulator that …". For a
        mistake that shows in what was measured or raised, a whole sentence (it must then begin with a capital letter).
    ask : the question whose answer mends it. Never the solution.
    fits : for mistakes that no output shows (memory, traffic, an exception of any wording): whether this case's outcome
        looks like it. Without it outputs are compared.
    overflows : where both outputs hold numbers that are not finite, only those that are finite in both are compared:
        which ones overflow depends on the order of the operations.
    """

    name: str
    wrong: Callable[..., Any]
    says: str
    ask: str
    fits: Callable[[Case, Outcome, Finding], bool] | None = None
    overflows: bool = False


@dataclass(frozen=True)
class Exercise:
    """One exercise: the function a learner writes and how it is judged.

    Parameters
    ----------
    id : "04.3".  title : as in the notebook.  function : the name the learner's function has.
    cases : makes the cases from a seed, simplest first; a generator, so that no case is prepared in vain.
    mistakes : makes the gallery.
    forbidden : names that would do the exercise's work, besides those that are forbidden everywhere.
    triton : needs Triton; run under the interpreter's watch.
    may_change : arguments the function may write to: "argument 2" where it is passed by position, else its name.
    stub : where the line to replace stands, if not in ``function``: the kernel of a launcher.
    """

    id: str
    title: str
    function: str
    cases: Callable[[int], Iterable[Case]]
    mistakes: Callable[[], Sequence[Mistake]]
    forbidden: tuple[str, ...] = ()
    triton: bool = False
    may_change: tuple[str, ...] = ()
    points: int = 1
    stub: str = ""
