"""Known mistakes of chapter 02: kernels for the memory machine that are wrong, or move too much."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashlib.grading import harness
from flashlib.grading.case import Case, Finding, Mistake, Outcome

Fits = Callable[[Case, Outcome, Finding], bool]


def by_traffic(wrong: Callable[..., Any]) -> Fits:
    """The right numbers, moved as ``wrong`` moves them: the same bytes read and written of every tensor."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if not case.measured or outcome.trouble:
            return False
        made = harness.run(wrong, case).measures
        return all(outcome.measures.get(side) == made.get(side) for side in ("read", "written"))

    return fits


def by_trouble(kind: str) -> Fits:
    """It was stopped by this exception, whatever its words."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        return outcome.trouble is not None and outcome.trouble.kind == kind

    return fits


def _tiles(n, size):
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def scaled_scores(machine, Q, K, r, c, *, bug=""):
    """S = QKᵀ/√d by one kernel."""
    (Nq, d), Nk = Q.shape, K.shape[0]
    scale = {"scale forgotten": 1.0, "scale of 1/d": 1 / d}.get(bug, d**-0.5)
    S = machine.hbm_empty("S", (Nq, Nk), Q.dtype)
    rows, keys = _tiles(Nq, r), _tiles(Nk, c)
    if bug == "last tile dropped":
        rows, keys = rows[: Nq // r], keys[: Nk // c]
    if bug == "past the end":
        rows, keys = ([slice(a, a + size) for a in range(0, n, size)] for n, size in ((Nq, r), (Nk, c)))
    if bug == "outside a kernel":
        machine.load(Q, rows[0])
    if bug == "array used directly":
        S.array[:] = Q.array @ K.array.T * scale
        return S
    if bug == "a kernel for each tile":
        for i in rows:
            with machine.kernel("scores"):
                q_i = machine.load(Q, i)
                for j in keys:
                    machine.store(S, (i, j), machine.put("S", q_i @ machine.load(K, j).T * scale))
        return S
    if bug == "loaded for show":
        whole = Q.array @ K.array.T * scale
        with machine.kernel("scores"):
            for i in rows:
                machine.load(Q, i)
                for j in keys:
                    machine.load(K, j)
                    machine.store(S, (i, j), machine.put("S", whole[i, j]))
        return S
    with machine.kernel("scores"):
        if bug == "loops the other way round":
            for j in keys:
                k_j = machine.load(K, j)
                for i in rows:
                    machine.store(S, (i, j), machine.put("S", machine.load(Q, i) @ k_j.T * scale))
            return S
        if bug == "whole rows of S":
            machine.put("S", np.zeros((min(r, Nq), Nk)))
        if bug == "all of K at once":
            machine.load(K)
        kept: dict[int, Any] = {}
        for i in rows:
            q_i = machine.load(Q, i)
            for n, j in enumerate(keys):
                if bug == "Q loaded again" and n:
                    q_i = machine.load(Q, i)
                if bug == "tiles kept aside" and n in kept:
                    k_j = kept[n]
                else:
                    k_j = kept[n] = machine.load(K, j)
                where = (j, i) if bug == "tile stored across" else (i, j)
                product = q_i @ k_j if bug == "not transposed" else q_i @ k_j.T
                if bug in ("scaled in a second kernel", "scaled in a second pass"):
                    machine.store(S, where, machine.put("S", product))
                elif bug == "a slot for each step":
                    machine.store(S, where, machine.put("scaled", machine.put("S", product) * scale))
                else:
                    machine.store(S, where, machine.put("S", product * scale))
            if bug == "scaled in a second pass":
                for j in keys:
                    machine.store(S, (i, j), machine.put("S", machine.load(S, (i, j)) * scale))
    if bug == "scaled in a second kernel":
        with machine.kernel("scale"):
            for i in rows:
                for j in keys:
                    machine.store(S, (i, j), machine.put("S", machine.load(S, (i, j)) * scale))
    return S.array if bug == "the array returned" else S


def _looked(*tensors: str) -> Fits:
    """The `.array` of one of these was used, and nothing else is wrong."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        return finding.result == "array" and any(t in outcome.measures.get("looked", {}) for t in tensors)

    return fits


def _moves(bug: str, says: str, ask: str) -> Mistake:
    wrong = partial(scaled_scores, bug=bug)
    return Mistake(bug, wrong, says, ask, by_traffic(wrong))


def _stops(bug: str, kind: str, says: str, ask: str) -> Mistake:
    return Mistake(bug, partial(scaled_scores, bug=bug), says, ask, by_trouble(kind))


def _gives(bug: str, says: str, ask: str) -> Mistake:
    return Mistake(bug, partial(scaled_scores, bug=bug), says, ask)


def _too_much(doing: str, *, beyond_a_tile: bool) -> Fits:
    """SRAM was full when something was loaded or put, and that was larger than a tile, or was not."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if not by_trouble("SRAMOverflow")(case, outcome, finding):
            return False
        asked = re.search(rf"{doing} \S+ \((\d+), (\d+)\)", outcome.trouble.message)  # type: ignore[union-attr]
        if asked is None:
            return False
        r, c = case.args[2:4]
        d = case.args[0].shape[1]
        tiles = ((r, c),) if doing == "putting" else ((r, d), (c, d))
        return beyond_a_tile != any(int(asked[1]) <= a and int(asked[2]) <= b for a, b in tiles)

    return fits


SCALED_SCORES = [
    _moves(
        "scaled in a second kernel",
        "S crosses HBM three times: it is written, read and written again.",
        "Where is a tile of S before it is stored, and can it be scaled there?",
    ),
    _moves(
        "Q loaded again",
        "The tile of Q is loaded again for every tile of K.",
        "Inside which of the two loops does the tile of Q change?",
    ),
    _moves(
        "loops the other way round",
        "Your kernel keeps the tiles of K on the chip and lets Q stream past.",
        "Which of the two does the exercise read only once? Which loop must then be the outer one?",
    ),
    _gives("scale forgotten", "a kernel that does not scale", "What is 1/√d here, and where do you multiply by it?"),
    _gives(
        "scale of 1/d",
        "a kernel with a scale of 1/d",
        "The dot product of d independent features has variance d. What is then its standard deviation?",
    ),
    _gives(
        "last tile dropped",
        "a kernel that leaves out the last, shorter tiles",
        "With 7 rows and r = 2, how many tiles are there, and how tall is the last?",
    ),
    _gives(
        "tile stored across",
        "a kernel that stores the tile of rows i and keys j at rows j, columns i",
        "Which axis of S belongs to the queries?",
    ),
    _stops(
        "past the end",
        "OutOfBounds",
        "A tile reaches past the end of a tensor.",
        "Where must the last tile stop when r does not divide the number of rows?",
    ),
    Mistake(
        "all of K at once",
        partial(scaled_scores, bug="all of K at once"),
        "More was loaded than SRAM holds: it has room for one tile of Q, one of K and one of S.",
        "How many rows of K does one step of the inner loop need?",
        _too_much("loading", beyond_a_tile=True),
    ),
    Mistake(
        "a slot for each step",
        partial(scaled_scores, bug="a slot for each step"),
        "A result is put beside an older one that is no longer needed. A slot of the same name would have been freed.",
        "When the scaled tile is there, is the unscaled one still needed?",
        _too_much("putting", beyond_a_tile=False),
    ),
    Mistake(
        "whole rows of S",
        partial(scaled_scores, bug="whole rows of S"),
        "More of S was put into SRAM than one tile of r × c numbers.",
        "Does any line need a second tile of S? When can a tile be stored?",
        _too_much("putting", beyond_a_tile=True),
    ),
    _stops(
        "outside a kernel",
        "OutsideKernel",
        "Something is moved while no kernel runs.",
        "Which lines must stand inside `with machine.kernel(…):`?",
    ),
    _stops(
        "not transposed",
        "ValueError",
        "The shapes of a tile of Q and a tile of K do not fit a product as they are.",
        "Q's tile is (r, d) and K's is (c, d). Which of them must be turned to give (r, c)?",
    ),
    _moves(
        "array used directly",
        "Nothing was loaded: the numbers were taken from HBM behind the machine's back.",
        "Arithmetic needs its numbers in SRAM. Which method brings a tile there?",
    ),
    Mistake(
        "a kernel for each tile",
        partial(scaled_scores, bug="a kernel for each tile"),
        "It begins more than one kernel.",
        "Which lines must stand inside one and the same `with machine.kernel(…):`?",
        lambda case, outcome, finding: finding.result == "kernels",
    ),
    Mistake(
        "loaded for show",
        partial(scaled_scores, bug="loaded for show"),
        "The bytes are right, but the numbers did not come from the tiles.",
        "What does `machine.load` return, and is it what you multiply?",
        _looked("Q", "K"),
    ),
    Mistake(
        "the array returned",
        partial(scaled_scores, bug="the array returned"),
        "S lives in HBM; its numbers are looked at when the machine is done, not by the kernel.",
        "What did `machine.hbm_empty` give you, and what does the statement ask you to return?",
        _looked("S"),
    ),
    _moves(
        "tiles kept aside",
        "Tiles of K are used again that SRAM no longer holds.",
        "SRAM has room for one tile of K. Where would a tile of the last round be?",
    ),
]
