"""What the player tells of one step of a run, in words and numbers: the picture and the text both come from here."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from . import step_titles
from .judging import Difference, Faults, faults, first_difference
from .recording import Recording, Step, Tile
from .row_state import Problem, State, history, seen
from .row_words import Line, Piece, output, several, span, sums, text, when

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Playing:
    """A recorded run beside its problem, for one row that we follow.

    Attributes
    ----------
    states : the row's `State` after every step, or None.
    written : whether S or P crossed to HBM, as in the four steps.
    naive : bytes of the four-step pipeline for the same problem, by its closed form; `naive_as` says on what terms.
    difference : the first place where the run is wrong, or None.
    """

    def __init__(self, run: Recording, problem: Problem, row: int, *, o: Any = None, log2: bool = False) -> None:
        if not 0 <= row < len(problem.q):
            raise ValueError(f"row {row} does not exist: there are rows 0 to {len(problem.q) - 1}")
        self.run, self.problem, self.row = run, problem, row
        self.states = history(run, problem, row, log2=log2)
        self.seen = seen(run, row)
        self.difference: Difference | None = first_difference(run, problem, o=o, log2=log2)
        self.naive, self.naive_as = _naive(run, problem)
        self.written = any(s.role in ("S", "P") and s.bytes for s in run.steps)

    def step(self, n: int) -> Step:
        """Step n of the run."""
        return self.run.steps[n]

    def over(self, n: int) -> Tile | None:
        """The tile that the rows have absorbed with step n; in the four steps they absorb none."""
        tile = self.step(n).tile
        return None if tile is None or self.written or self.run.tiles[tile].last != n else self.run.tiles[tile]

    def title(self, n: int) -> str:
        """What the step does, and whether the run is wrong from here on, in a line."""
        return step_titles.title(self, n)

    def verdict(self) -> str:
        """Whether the run is right, and if not, where it first differs."""
        return step_titles.verdict(self)

    @property
    def chip(self) -> str:
        """Where tiles go: SRAM, or, where only the compiler knows whether it is registers, the chip."""
        return "chip" if self.run.sram_bytes is None else "SRAM"

    def bytes_line(self, n: int) -> str:
        """Bytes so far against the whole run's and the naive pipeline's."""
        run, naive = self.run.total, self.naive
        return f"{self.step(n).moved:,} B moved by step {n}, of this run's {run:,}; {self.naive_as}: {naive:,} B"

    def wrong(self, n: int) -> Faults | None:
        """Which of the row's numbers are wrong after step n; None: none, or a tile is half absorbed."""
        now = self.states[n]
        if now is None or not now.kept or self.difference is None or not self.whole(n):
            return None
        found = faults(self.problem, self.row, self.seen[n], now)
        return found if found.any else None

    def whole(self, n: int) -> bool:
        """Whether the row's numbers after step n are those after its last whole tile, or of before its first."""
        now, tile = self.states[n], self.step(n).tile
        if now is None or not now.kept or tile is None or self.over(n):
            return True
        first = self.run.tiles[tile].first
        before: State | None = self.states[first - 1] if first else None
        if before is None:
            return now.l == 0
        then, here = ([state.m, state.l, *state.acc] for state in (before, now))
        return np.array_equal(then, here, equal_nan=True)

    def lines(self, n: int) -> list[Line]:
        """The followed row after this step, in pieces: which keys it holds, m and l, acc, o, and the right ones."""
        now, step = self.states[n], self.step(n)
        if now is None:
            return [[Piece(f"row {self.row}: its turn has not come")]]
        mine = step.rows is not None and step.rows[0] <= self.row < step.rows[1]
        tile = self.run.tiles[step.tile] if mine and step.tile is not None else None
        found, whole = self.wrong(n), self.whole(n)
        source = [] if now.kept else [[Piece("m, l, acc: computed anew from q, k, v")]]
        head = f"row {self.row} {when(step, n, tile, now, whole)}:"
        acc = [Piece("acc = "), *several(now.acc)]
        return [[Piece(head)], sums(now, found), acc, *output(now, found, whole), *source]

    def numbers(self, n: int) -> list[str]:
        """`lines` as text."""
        head, *rest = (text(line) for line in self.lines(n))
        return [f"{head} {rest[0]}", *rest[1:]] if rest else [head]

    def code(self, n: int) -> str:
        """The program's line that runs: function, line number, text; empty where the run was not traced."""
        site = self.step(n).site
        if site is None:
            return ""
        import linecache

        files = (site.file, *site.files)
        frames = [(site.function, site.line), *site.callers]
        # helpers of the package stand aside for the line that calls them: the learner's own, or the package's kernel
        own = [i for i, file in enumerate(files) if not file.startswith(_PACKAGE)]
        own = own or [i for i, file in enumerate(files) if file == files[-1]]
        function, line = frames[own[0]]
        return f"{function}, line {line}:  {linecache.getline(files[own[0]], line).strip()}"

    @property
    def checked(self) -> bool:
        """Whether the run left numbers that can be held against the right ones."""
        return self.run.kept or any(s.value is not None for s in self.run.steps)

    def words(self, n: int) -> str:
        """Everything that the picture of a step shows."""
        step = self.step(n)
        tile = "No tile of scores is under work."
        if step.rows and step.keys:
            rows, keys = step.rows, step.keys
            tile = f"Under work: the tile of {span('row', rows)} and {span('key', keys)}."
        wrong = self.difference
        if wrong and wrong.tile is not None and wrong.step <= n:
            rows, keys = self.run.tiles[wrong.tile].rows, self.run.tiles[wrong.tile].keys
            tile += f" Marked ≠: the tile of {span('row', rows)} and {span('key', keys)}."
        held = ", ".join(f"{slot} {n:,} B" for slot, n in step.held.items()) or "nothing"
        code = self.code(n)
        return (
            f"{self.title(n)}. {tile} {self.room(n)}: {held}. {'; '.join(self.numbers(n))}. {self.bytes_line(n)}."
            f"{f' Line of code: {code}' if code else ''}"
        )

    def room(self, n: int) -> str:
        """How full the chip is."""
        held = sum(self.step(n).held.values())
        size = self.run.sram_bytes
        if size is None:
            return f"On chip, loaded: {held:,} B"
        return f"SRAM: {held:,} B" + ("" if math.isinf(size) else f" of {size:,.0f} B")

    def moments(self, most: int = 4) -> list[int]:
        """The steps of the still picture: the ends of the followed row's tiles and its store, `most` at most."""
        mine = [t.last for t in self.run.tiles if t.rows[0] <= self.row < t.rows[1]]
        stores = [n for n, s in enumerate(self.run.steps)
                  if s.op == "store" and s.role == "O" and s.rows and s.rows[0] <= self.row < s.rows[1]]  # fmt: skip
        found = sorted({*mine, *stores[-1:]}) or [0, len(self.run.steps) - 1]
        if len(found) > most:  # the first ones, and the last
            found = [*found[: most - 1], found[-1]]
        if self.difference and self.difference.step not in found:
            found = sorted([*found[: most - 1], self.difference.step])
        return found


def _naive(run: Recording, problem: Problem) -> tuple[int, str]:
    """The four steps' bytes: in the same SRAM where one is known and large enough, else with the same tiles."""
    from flashlib.instruments.closed_forms import four_steps_bytes

    (n_q, d), (n_k, dv) = problem.q.shape, problem.v.shape
    sizes = (n_q, n_k, d, dv, problem.itemsize)
    if run.sram_bytes is not None and not math.isinf(run.sram_bytes):
        try:
            found = four_steps_bytes(*sizes, sram_bytes=run.sram_bytes, causal=problem.causal)
            return found, "four steps in the same SRAM"
        except ValueError:
            pass
    first = run.tiles[0] if run.tiles else None
    block = (int(np.diff(first.rows)[0]), int(np.diff(first.keys)[0])) if first else (n_q, n_k)
    return four_steps_bytes(*sizes, sram_bytes=math.inf, block=block, causal=problem.causal), "four steps, same tiles"
