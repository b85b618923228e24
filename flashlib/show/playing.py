"""What the player tells of one step of a run, in words and numbers: the picture and the text both come from here."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from .recording import Recording, Step
from .row_state import Difference, Problem, first_difference, history, number

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MANY = 6  # numbers of a row of o; of more, the first four are shown


class Playing:
    """A recorded run beside its problem, for one row that we follow.

    Attributes
    ----------
    states : the row's `State` after every step, or None.
    naive : bytes of the four-step pipeline for the same problem, by its closed form; `naive_as` says on what terms.
    difference : the first place where the run is wrong, or None.
    """

    def __init__(self, run: Recording, problem: Problem, row: int, *, o: Any = None, log2: bool = False) -> None:
        if not 0 <= row < len(problem.q):
            raise ValueError(f"row {row} does not exist: there are rows 0 to {len(problem.q) - 1}")
        self.run, self.problem, self.row = run, problem, row
        self.states = history(run, problem, row, log2=log2)
        self.difference: Difference | None = first_difference(run, problem, o=o, log2=log2)
        self.naive, self.naive_as = _naive(run, problem)

    def step(self, n: int) -> Step:
        """Step n of the run."""
        return self.run.steps[n]

    def title(self, n: int) -> str:
        """What the step does, in a line."""
        step = self.step(n)
        what = f"{step.name}{step.part}"
        does = {
            "load": f"{what}, {step.bytes:,} B, HBM → {self.chip}",
            "store": f"{what}, {step.bytes:,} B, {self.chip} → HBM",
            "put": f"{step.name} is computed on chip: nothing crosses",
            "drop": f"{step.name} leaves SRAM: nothing crosses",
        }.get(step.op, f"{step.op} {what}, {step.bytes:,} B")
        return f"Step {n} of {len(self.run.steps) - 1}, {step.kernel}: {does}"

    def heading(self, n: int) -> str:
        """What has happened when the step is over, in a line: for the still picture."""
        tile = self.step(n).tile
        if tile is not None and self.run.tiles[tile].last == n:
            rows, keys = self.run.tiles[tile].rows, self.run.tiles[tile].keys
            return f"Step {n}: rows {rows[0]} to {rows[1] - 1} have absorbed keys {keys[0]} to {keys[1] - 1}"
        return self.title(n)

    @property
    def chip(self) -> str:
        """Where tiles go: SRAM, or, where only the compiler knows whether it is registers, the chip."""
        return "chip" if self.run.sram_bytes is None else "SRAM"

    def bytes_line(self, n: int) -> str:
        """Bytes so far against the whole run's and the naive pipeline's."""
        run, naive = self.run.total, self.naive
        return f"{self.step(n).moved:,} B moved so far of this run's {run:,}; {self.naive_as}: {naive:,} B"

    def numbers(self, n: int) -> list[str]:
        """The followed row after this step: m and l, acc, o; and where the numbers come from."""
        now = self.states[n]
        if now is None:
            return [f"row {self.row}: its turn has not come"]
        source = "as the program holds them" if now.kept else "computed anew from q, k, v"
        return [
            f"row {self.row}:  m = {number(now.m)}   l = {number(now.l)}   after {now.seen} keys",
            f"acc = {several(now.acc)}",
            f"o = acc / l = {several(now.o)}",
            f"m, l, acc: {source}",
        ]

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

    def verdict(self) -> str:
        """Whether the run is right, and if not, where it first differs."""
        wrong = self.difference
        if wrong is None:
            held = "every tile's state and every row of o agree" if self.run.kept else "every row of o agrees"
            held = held if self.checked else "the tiles are complete; no numbers were recorded to compare"
            return f"No difference: {held} with float64, but for rounding."
        place = "at the store of o"
        if wrong.tile is not None:
            (i0, i1), (j0, j1) = self.run.tiles[wrong.tile].rows, self.run.tiles[wrong.tile].keys
            place = f"in the tile of rows {i0} to {i1 - 1}, keys {j0} to {j1 - 1}"
        return f"First difference at step {wrong.step}, {place}. {wrong.what[:1].upper()}{wrong.what[1:]}."

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
            tile = f"Under work: the tile of rows {rows[0]} to {rows[1] - 1} and keys {keys[0]} to {keys[1] - 1}."
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


def several(row: Any) -> str:
    """Numbers of a row in brackets; of many, the first four."""
    shown = list(row) if len(row) <= MANY else list(row[:4])
    return "(" + ", ".join(number(float(x)) for x in shown) + (", …)" if len(row) > len(shown) else ")")


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
