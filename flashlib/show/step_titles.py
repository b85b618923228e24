"""The player's titles: what a step does, what to see in the still picture, and where a run first differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .row_state import kept
from .row_words import span

if TYPE_CHECKING:
    from .playing import Playing


def title(play: Playing, n: int) -> str:
    """What the step does, and whether the run is wrong from here on, in a line."""
    step, over = play.step(n), play.over(n)
    head = f"Step {n} of {len(play.run.steps) - 1}"
    if play.difference and play.difference.step == n:
        return f"{head}, the first difference: {fault(play)}"
    what = f"{step.name}{step.part}"
    does = {
        "load": f"{what}, {step.bytes:,} B, HBM → {play.chip}",
        "store": f"{what}, {step.bytes:,} B, {play.chip} → HBM",
        "put": f"{step.name} is computed on chip, nothing crosses",
        "drop": f"{step.name} leaves SRAM, nothing crosses",
    }.get(step.op, f"{step.op} {what}, {step.bytes:,} B")
    if over:
        absorbed = f"{span('key', over.keys)} {'is' if over.keys[1] - over.keys[0] == 1 else 'are'} absorbed"
        does = f"{does}; then {absorbed}" if step.bytes else f"{absorbed}, nothing crosses"
    kernels = len({s.kernel for s in play.run.steps}) > 1
    return f"{head}{', ' + step.kernel.split(', ')[-1] if kernels else ''}: {does}"


def heading(play: Playing, n: int) -> str:
    """What has happened when the step is over, in a few words: for the still picture."""
    over, step = play.over(n), play.step(n)
    if over and not over.rows[0] <= play.row < over.rows[1]:
        return f"Step {n}: {span('row', over.rows)} absorb {span('key', over.keys)}"
    if over:
        return f"Step {n}, the tile's last: {span('key', over.keys)} absorbed"
    return f"Step {n}: {step.name} is stored" if step.op == "store" and not play.written else title(play, n)


def headline(play: Playing) -> str:
    """What to see in the still picture."""
    if play.difference:
        return f"Step {play.difference.step}: {fault(play)}"
    if play.written or not play.run.tiles:
        return f"{'S is written whole' if play.written else 'Step by step'}: how row {play.row} gets its o"
    return f"One tile at a time: row {play.row} {'keeps' if play.run.kept else 'needs'} only m, l and acc"


def fault(play: Playing) -> str:
    """The first difference: what the tile does to which row, and the wrong and the right numbers."""
    wrong = play.difference
    if wrong is None:
        return ""
    row, _, numbers = wrong.what.partition(": ")
    if not numbers:
        return wrong.what
    if wrong.tile is None:
        return f"what is stored of {row} is wrong, {numbers}"
    tile, widest = play.run.tiles[wrong.tile], max(t.keys[1] - t.keys[0] for t in play.run.tiles)
    ragged = "ragged " if tile.keys[1] - tile.keys[0] < widest else ""
    have = kept(play.step(wrong.step), wrong.row, 0, play.problem.v.shape[1])
    does = f"wipes {row} out" if have and have.l == 0 else f"makes {row} wrong"
    return f"the {ragged}tile of {span('key', tile.keys)} {does}: {numbers}"


def verdict(play: Playing) -> str:
    """Whether the run is right, and if not, where it first differs."""
    wrong = play.difference
    if wrong is None:
        held = "every tile's state and every row of o agree" if play.run.kept else "every row of o agrees"
        held = held if play.checked else "the tiles are complete; no numbers were recorded to compare"
        return f"No difference: {held} with float64, but for rounding."
    place = "at the store of o"
    if wrong.tile is not None:
        (i0, i1), (j0, j1) = play.run.tiles[wrong.tile].rows, play.run.tiles[wrong.tile].keys
        place = f"in the tile of rows {i0} to {i1 - 1}, keys {j0} to {j1 - 1}"
    return f"First difference at step {wrong.step}, {place}. {wrong.what[:1].upper()}{wrong.what[1:]}."
