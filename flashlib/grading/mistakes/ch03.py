"""Known mistakes of chapter 03. Each function is right but for what ``bug`` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashlib.grading.case import Case, Finding, Mistake, Outcome

TWO_SWEEPS = "If each tile comes once, what must you carry from tile to tile instead of the tiles?"


def _known(fn: Callable[..., Any], *known: tuple[str, str, str]) -> list[Mistake]:
    return [Mistake(name, partial(fn, bug=name), says, ask) for name, says, ask in known]


def _hoards(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The memory grows with the row."""
    peak = outcome.measures.get("peak") or []
    return bool(peak) and not finding.ok and peak[-1] > 2 * peak[0]


def _again(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The stream was asked past its end more than once."""
    return not finding.ok and outcome.measures.get("ends", 0) > 1


def _looped(wrong: Callable[..., Any]) -> Mistake:
    return Mistake(
        "two loops",
        wrong,
        "It goes over the tiles twice, and the second time finds none left.",
        TWO_SWEEPS,
        fits=_again,
    )


def _indexed(wrong: Callable[..., Any]) -> Mistake:
    return Mistake(
        "taken as an array",
        wrong,
        "It treats the stream as an array or a list; a stream has no index and no length.",
        "How does a `for` loop get one tile after the other?",
        fits=lambda case, outcome, finding: outcome.trouble is not None and "'Stream'" in outcome.trouble.message,
    )


FIRST_MAXIMUM = (
    "the first tile's maximum kept",
    "a program that keeps the first tile's maximum for good",
    "What does exp(s − m) become if a later score is larger than m by 1000?",
)


# -- 03.1 ----------------------------------------------------------------------------------------------------------
def row_state(tiles, *, bug=""):
    """(m, l) of the scores that come in tiles."""
    if bug == "tiles kept":
        whole = np.concatenate(list(tiles))
        return whole.max(), np.exp(whole - whole.max()).sum()
    if bug == "taken as an array":
        return tiles[0].max(), 0.0
    if bug == "two loops":
        m = max(tile.max() for tile in tiles)
        return m, sum(np.exp(tile - m).sum() for tile in tiles)
    m, l = {"m begins at 0": 0.0, "m begins too high": -1000.0}.get(bug, -np.inf), 0.0
    for tile in tiles:
        if bug == "the first tile's maximum kept":
            m = tile.max() if np.isneginf(m) else m
            l += np.exp(tile - m).sum()
            continue
        m_new = tile.max() if bug == "the last tile's maximum" else max(m, tile.max())
        against = {"no maximum": 0.0, "each tile its own maximum": tile.max()}.get(bug, m_new)
        power = np.exp2 if bug == "powers of 2" else np.exp
        p = power(tile - against).sum()
        shrink = power(m - m_new)
        if bug in ("never rescaled", "no maximum"):
            shrink = 1.0
        if bug == "wrong way round":
            shrink = np.exp(m_new - m) if np.isfinite(m) else 0.0
        if bug == "the last tile only":
            shrink = 0.0
        both = bug == "the new tile rescaled as well" or (bug == "rescaled after adding" and np.isfinite(m))
        l = shrink * (l + p) if both else shrink * l + p
        m = m_new
        if bug == "return in the loop":
            return m, l
    return {"l and m swapped": (l, m), "a logarithm for l": (m, m + np.log(l))}.get(bug, (m, l))


def _too_high(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """m is finite and far above all scores, so that l is 0."""
    if case.measured or [r.array.size for r in outcome.results] != [1, 1]:
        return False
    m, l = (float(r.array.reshape(())) for r in outcome.results)
    return l == 0 and np.inf > m > 700 + max(tile.max() for tile in case.args[0].fresh())


ROW_STATE = [
    _looped(partial(row_state, bug="two loops")),
    _indexed(partial(row_state, bug="taken as an array")),
    *_known(
        row_state,
        (
            "never rescaled",
            "a sum that is not brought to the new maximum when the maximum rises",
            "What you have summed was measured against the old m. Is the old m still there when you compute the "
            "factor, and do you multiply l by it?",
        ),
        FIRST_MAXIMUM,
        (
            "no maximum",
            "a sum of exp(s) itself, with no maximum taken off",
            "l is to be measured against m. What is exp(10 000)?",
        ),
        (
            "wrong way round",
            "a correction factor of exp(m_new − m_old)",
            "When the maximum rises, must what was summed before grow or shrink?",
        ),
        (
            "m begins at 0",
            "a running maximum that begins at 0",
            "What is the maximum of no scores at all, if it must lose against every score?",
        ),
        (
            "each tile its own maximum",
            "a program that sums each tile against the tile's own maximum",
            "After this tile, against which maximum is l to be measured: the tile's or the running one?",
        ),
        (
            "the last tile's maximum",
            "a program whose m is the maximum of the last tile",
            "What is m after a tile whose scores are all smaller than those before?",
        ),
        (
            "the last tile only",
            "a program that forgets the sum of the tiles before",
            "What does l hold after a tile: the tile's sum, or that of everything seen?",
        ),
        (
            "rescaled after adding",
            "a program that multiplies the new tile by the correction factor as well",
            "Which part of the sum was measured against the old maximum, and which against the new one?",
        ),
        (
            "the new tile rescaled as well",
            "a program that multiplies the new tile by the correction factor as well",
            "Which part of the sum was measured against the old maximum, and which against the new one?",
        ),
        (
            "return in the loop",
            "a program that returns after the first tile",
            "How far is your `return` indented, and how often does the loop run?",
        ),
        ("powers of 2", "a program that uses powers of 2", "Which base has the sum that l is to be?"),
        (
            "l and m swapped",
            "a program that returns l first and m second",
            "In which order does the signature name them?",
        ),
        (
            "a logarithm for l",
            "a program that returns lse = m + log l in the place of l",
            "l is a sum of exponentials. Has anybody asked for its logarithm?",
        ),
    ),
    Mistake(
        "m begins too high",
        partial(row_state, bug="m begins too high"),
        "The m it returns is larger than every score: the running maximum began at a number.",
        "What is the maximum of no scores at all, if it must lose against every score?",
        fits=_too_high,
    ),
    Mistake(
        "tiles kept",
        partial(row_state, bug="tiles kept"),
        "The memory grows with the row: the tiles, or something as long as the row, are kept.",
        TWO_SWEEPS,
        fits=_hoards,
    ),
]


# -- 03.2 ----------------------------------------------------------------------------------------------------------
def merge(m1, l1, m2, l2, *, bug=""):
    """(m, l) of the two parts together."""
    if bug == "Python's max":
        m = max(m1, m2)
        return m, l1 * np.exp(m1 - m) + l2 * np.exp(m2 - m)
    if bug == "the second taken as larger":
        return m2, l1 * np.exp(m1 - m2) + l2
    m = np.maximum(m1, m2)
    safe = m if bug == "no guard" else np.where(np.isneginf(m), 0, m)
    a, b = np.exp(m1 - safe), np.exp(m2 - safe)
    if bug == "sums added":
        a = b = 1.0
    if bug == "wrong way round":
        a, b = np.exp(safe - m1), np.exp(safe - m2)
    if bug == "only the first one shrinks":
        b = 1.0
    if bug == "only the second one shrinks":
        a = 1.0
    if bug == "factors swapped":
        a, b = b, a
    if bug == "logarithms added":
        return m, l1 * a * l2 * b
    if bug == "nothing where a side is empty":
        return m, np.where(np.isneginf(m1) | np.isneginf(m2), 0, l1 * a + l2 * b)
    if bug == "l first":
        return l1 * a + l2 * b, m
    return (safe if bug == "guard kept in m" else m), l1 * a + l2 * b


MERGE = _known(
    merge,
    (
        "sums added",
        "two sums added as if they were measured against the same maximum",
        "Each l was summed against its own m. By what factor must each be multiplied before they may be added?",
    ),
    (
        "only the first one shrinks",
        "a merge in which only the first sum is brought to the new maximum",
        "If the first maximum is the larger one, what must happen to the second sum?",
    ),
    (
        "only the second one shrinks",
        "a merge in which only the second sum is brought to the new maximum",
        "If the second maximum is the larger one, what must happen to the first sum?",
    ),
    (
        "the second taken as larger",
        "a merge that takes the second maximum for the larger one",
        "The law is symmetrical. Which of the two maxima is the new one?",
    ),
    (
        "wrong way round",
        "a correction factor of exp(m_new − m_old)",
        "When the maximum rises, must what was summed before grow or shrink?",
    ),
    (
        "no guard",
        "a merge that computes (−∞) − (−∞)",
        "What is exp(m1 − m) when both parts are empty, and what should it be?",
    ),
    (
        "guard kept in m",
        "a merge that returns the m it used to subtract",
        "The 0 is there only to be subtracted. What is the maximum of no scores?",
    ),
    (
        "factors swapped",
        "a merge in which each sum gets the other one's factor",
        "Which maximum was l1 measured against?",
    ),
    (
        "logarithms added",
        "a merge that multiplies the two sums, as adding their logarithms does",
        "What is the logarithm of a sum, and what is the sum of two logarithms?",
    ),
    (
        "nothing where a side is empty",
        "a merge that gives l = 0 wherever one side is empty",
        "If the first side has seen nothing and the second one some keys, what is the state of both together?",
    ),
    ("l first", "a merge that returns l first and m second", "In which order does the signature name them?"),
    (
        "Python's max",
        "It compares whole arrays with Python's max, which can only compare two single numbers.",
        "Which function of NumPy takes the larger of two arrays, place by place?",
    ),
)


# -- 03.3 ----------------------------------------------------------------------------------------------------------
def attend(q, tiles, *, bug=""):
    """Attention of the rows of q over keys and values that come in tiles."""
    if bug == "taken as an array":
        return tiles[0]
    if bug == "tiles kept":
        ks, vs = zip(*tiles, strict=True)
        tiles = [(np.concatenate(ks), np.concatenate(vs))]
    if bug == "first tile dropped":
        next(tiles)
    of_D = {
        "scale left out": 1.0, "scale 1/D": 1 / q.shape[-1], "scale from the number of rows": len(q) ** -0.5
    }.get(bug, q.shape[-1] ** -0.5)  # fmt: skip
    m, l, o = np.full(len(q), -np.inf), np.zeros(len(q)), 0.0
    if bug == "two loops":
        for k, _ in tiles:
            m = np.maximum(m, of_D * (q @ k.T).max(-1))
    full = 0
    for k, v in tiles:
        full = full or len(k)
        if bug == "last tile filled up with zeros":
            k, v = (np.pad(x, ((0, full - len(x)), (0, 0))) for x in (k, v))
        scale = len(k) ** -0.5 if bug == "scale from the number of keys" else of_D
        s = scale * (q @ (k if bug == "k not transposed" else k.T))
        top = np.full(len(q), s.max()) if bug == "one maximum for all rows" else s.max(-1)
        m_new = np.maximum(m, top)
        if bug == "the first tile's maximum kept":
            m_new = np.where(np.isneginf(m), top, m)
        shrink = np.exp(m - m_new)
        if bug == "no maximum":
            m_new, shrink = np.zeros(len(q)), np.ones(len(q))
        if bug == "no second axis":
            s = s - m_new  # (Sq, Bc) and (Sq,)
        p = np.exp(s - (top if bug == "each tile its own maximum" else m_new)[:, None])
        if bug == "softmax over the rows":
            p = np.exp(s - s.max(0))
            shrink = np.ones(len(q))
        of_l, of_o = shrink, shrink
        if bug in ("never rescaled", "o is not rescaled"):
            of_o = np.ones(len(q))
        if bug in ("never rescaled", "l is not rescaled"):
            of_l = np.ones(len(q))
        if bug in ("o rescaled the wrong way", "both rescaled the wrong way"):
            of_o = np.where(np.isneginf(m), 0, 1 / shrink)
        if bug == "both rescaled the wrong way":
            of_l = of_o
        pv = p @ v
        if bug == "every tile divided":
            pv = pv / p.sum(-1)[:, None]
        l, o = of_l * l + p.sum(-1), of_o[:, None] * o + pv
        if bug in ("divided in every turn", "divided in every turn and at the end"):
            o = o / l[:, None]
        m = m_new
    return o if bug in ("never divided", "every tile divided", "divided in every turn") else o / l[:, None]


ATTEND = [
    _looped(partial(attend, bug="two loops")),
    _indexed(partial(attend, bug="taken as an array")),
    *_known(
        attend,
        (
            "o is not rescaled",
            "an o that is not rescaled when the maximum rises, while l is",
            "o is a sum of exp(s − m)·v. Against which m were its earlier terms measured?",
        ),
        (
            "never rescaled",
            "a state that is never rescaled when the maximum rises",
            "l and o were summed against the old m. By what factor do both have to shrink?",
        ),
        (
            "l is not rescaled",
            "an l that is not rescaled when the maximum rises, while o is",
            "l is a sum of exp(s − m). Against which m were its earlier terms measured?",
        ),
        (
            "never divided",
            "an o that is never divided by l",
            "The last column of v is 1 everywhere. What must the last column of o be?",
        ),
        (
            "every tile divided",
            "a program that divides every tile by the tile's own sum",
            "By which sum must a row be divided, and when do you know it?",
        ),
        (
            "divided in every turn",
            "a program that divides o by l in every turn, and then adds to the quotient",
            "l grows with every tile. By which l has the first tile been divided in the end?",
        ),
        (
            "divided in every turn and at the end",
            "a program that divides o by l in every turn and once more at the end",
            "l grows with every tile. By which l has the first tile been divided in the end?",
        ),
        ("scale left out", "scores without the scale", "By what are the products q·k divided before the softmax?"),
        ("scale 1/D", "scores divided by D", "The variance of q·k grows with D. How does its spread grow?"),
        (
            "scale from the number of rows",
            "scores divided by the root of the number of rows",
            "Over which numbers does q·k sum: the features or the rows?",
        ),
        FIRST_MAXIMUM,
        (
            "no maximum",
            "a program that takes exp(s) with no maximum taken off",
            "What is exp(1000), and what is exp(−1000)?",
        ),
        (
            "each tile its own maximum",
            "a program that measures each tile against the tile's own maximum",
            "After this tile, against which maximum are l and o to be measured?",
        ),
        (
            "one maximum for all rows",
            "a program that takes one maximum for all rows of the tile",
            "What is exp(s − m) in a row whose scores all lie far below those of another row?",
        ),
        (
            "o rescaled the wrong way",
            "a program that multiplies o by exp(m_new − m_old), as a misprint has it",
            "When the maximum rises, must what was summed before grow or shrink?",
        ),
        (
            "both rescaled the wrong way",
            "a program that multiplies l and o by exp(m_new − m_old)",
            "When the maximum rises, must what was summed before grow or shrink?",
        ),
        (
            "last tile filled up with zeros",
            "a program in which a smaller last tile is filled up with keys of zeros",
            "Which score has a key of zeros, and what is exp(score − m)?",
        ),
        (
            "softmax over the rows",
            "a softmax over the queries",
            "The weights of which numbers must sum to 1: those of one query, or those of one key?",
        ),
        (
            "scale from the number of keys",
            "scores divided by the root of the number of keys in the tile",
            "Over which numbers does q·k sum: the features or the keys?",
        ),
        (
            "no second axis",
            "It lets a vector with one number a row meet a matrix with one row for each.",
            "NumPy lines up the *last* axes. Which shape must (Sq,) get, to be taken from (Sq, Bc) row by row?",
        ),
        (
            "k not transposed",
            "It multiplies q (Sq, D) by k (Bc, D) as they are.",
            "The scores are (Sq, Bc). Which axis of k must meet the features of q?",
        ),
        (
            "first tile dropped",
            "a program that does not use the first tile",
            "`next(tiles)` takes a tile out of the stream. What becomes of it?",
        ),
    ),
    Mistake(
        "tiles kept",
        partial(attend, bug="tiles kept"),
        "The memory grows with the number of keys: the tiles, or a row of scores, are kept.",
        TWO_SWEEPS,
        fits=_hoards,
    ),
]


# -- 03.4 ----------------------------------------------------------------------------------------------------------
def attend_masked(tiles, rows, Dv, *, bug=""):
    """(o, lse) of rows whose scores come in tiles, −∞ where masked."""
    m, l, o = np.full(rows, 0.0 if bug == "m begins at 0" else -np.inf), np.zeros(rows), np.zeros((rows, Dv))
    if bug == "two loops":
        for s, _ in tiles:
            m = np.maximum(m, s.max(-1))
    if bug == "taken as an array":
        return tiles[0]
    if bug == "tiles kept":
        tiles = list(tiles)
    for s, v in tiles:
        if bug == "−1e9 for −∞":
            s = np.maximum(s, -1e9)
        if bug == "masked tiles left out" and np.isinf(s).any():
            continue
        if bug == "guard for whole tiles" and np.isinf(s).all():
            continue
        m_new = np.maximum(m, s.max(-1))
        if bug == "the first tile's maximum kept":
            m_new = np.where(np.isneginf(m), m_new, m)
        bare = bug in ("no guard", "guard for whole tiles", "masked tiles left out")
        safe = m_new if bare else np.where(np.isneginf(m_new), 0, m_new)
        if bug == "guard kept in m":
            m_new = safe
        p, shrink = np.exp(s - safe[:, None]), np.exp(m - safe)
        if bug == "never rescaled":
            shrink = np.ones(rows)
        l, o, m = shrink * l + p.sum(-1), shrink[:, None] * o + p @ v, m_new
    if bug == "a little added to l":
        l = l + 1e-9
    by = {"0 / 0": l, "never divided": np.ones(rows)}.get(bug, np.where(l == 0, 1, l))
    lse = m + np.log(l)
    if bug == "lse without log l":
        lse = m
    if bug == "lse = m + l":
        lse = m + l
    if bug == "lse in base 2":
        lse = m + np.log2(l)
    if bug == "lse without m":
        lse = np.log(l)
    if bug == "lse 0 for empty rows":
        lse = np.where(l == 0, 0, m) + np.log(by)
    return o / by[:, None], lse


ATTEND_MASKED = [
    _looped(partial(attend_masked, bug="two loops")),
    _indexed(partial(attend_masked, bug="taken as an array")),
]
ATTEND_MASKED += _known(
    attend_masked,
    (
        "no guard",
        "a program that computes (−∞) − (−∞)",
        "What is s − m in a row that has seen no key so far, and what should exp of it be?",
    ),
    (
        "0 / 0",
        "a program that divides 0 by 0 in rows that see no key",
        "What are o and l of a row that saw nothing, and by what may you divide instead?",
    ),
    (
        "guard for whole tiles",
        "a program that guards only tiles that are masked for all rows",
        "In one tile some rows may see keys and others none. For which of them must the guard act?",
    ),
    (
        "masked tiles left out",
        "a program that leaves out every tile with a masked score in it",
        "Which scores of a tile must count when only some of them are masked?",
    ),
    (
        "−1e9 for −∞",
        "a program that puts a large negative number in the place of −∞",
        "If all scores of a row are −1e9, what is exp(s − m)? Does the row see nothing then?",
    ),
    (
        "guard kept in m",
        "a program that keeps the guard's 0 as the running maximum",
        "The first tile is masked and then come scores near −1000. Against which m are they measured?",
    ),
    (
        "m begins at 0",
        "a running maximum that begins at 0",
        "If all scores of a row are near −1000 and m is 0, what is exp(s − m)?",
    ),
    (
        "lse without log l",
        "an lse without log l",
        "lse is the logarithm of Σ exp(s). What is that sum in terms of m and l?",
    ),
    ("lse = m + l", "an lse of m + l", "Σ exp(s) = exp(m)·l. What is the logarithm of a product?"),
    ("lse without m", "an lse without m", "Σ exp(s) = exp(m)·l. What is the logarithm of a product?"),
    ("lse in base 2", "an lse whose log l is in base 2", "Which logarithm undoes exp?"),
    (
        "lse 0 for empty rows",
        "an lse of 0 in rows that see no key",
        "What is the logarithm of a sum without terms?",
    ),
    (
        "a little added to l",
        "a program that adds a small number to l to avoid a division by 0",
        "Which rows does that change besides the empty ones? By what could the empty ones alone be divided?",
    ),
    FIRST_MAXIMUM,
    (
        "never divided",
        "an o that is never divided by l",
        "The last column of v is 1 everywhere. What must the last column of o be?",
    ),
    (
        "never rescaled",
        "a state that is never rescaled when the maximum rises",
        "l and o were summed against the old m. By what factor do both have to shrink?",
    ),
)
ATTEND_MASKED.append(
    Mistake(
        "tiles kept",
        partial(attend_masked, bug="tiles kept"),
        "The memory grows with the number of keys: the tiles are kept.",
        TWO_SWEEPS,
        fits=_hoards,
    )
)


# -- 03.5 ----------------------------------------------------------------------------------------------------------
def fused(machine, S, V, block, *, bug=""):
    """One row on the memory machine: scores S (N,), values V (N, Dv) → O (Dv,)."""
    N, Dv = V.shape
    O = machine.hbm_empty("O", (Dv,), V.dtype)
    tiles = [slice(j, j + block if bug == "past the end" else min(j + block, N)) for j in range(0, N, block)]
    if bug == "the whole row loaded":
        tiles = [slice(0, N)]
    if bug == "tiles of another size":
        tiles = [slice(j, j + 1) for j in range(N)]
    if bug == "ragged tile left out":
        tiles = [slice(j, j + block) for j in range(0, N // block * block, block)]
    if bug == "loaded outside a kernel":
        machine.load(S, tiles[0])
    if bug == "past the machine":
        p = np.exp(S.array - S.array.max())
        return p @ V.array / p.sum()
    m, l, o = -np.inf, 0.0, np.zeros(Dv)
    if bug == "two kernels":
        with machine.kernel("nothing"):
            pass
    with machine.kernel("fused"):
        if bug == "tiles collected":
            parts = [(machine.load(S, t), machine.load(V, t)) for t in tiles]
            s, v = (np.concatenate(x) for x in zip(*parts, strict=True))
            p = np.exp(s - s.max())
            machine.store(O, (), p @ v / p.sum())
            return O
        if bug == "loaded for show":
            for t in tiles:
                machine.load(S, t), machine.load(V, t)
            p = np.exp(S.array - S.array.max())
            machine.store(O, (), p @ V.array / p.sum())
            return O
        if bug in ("two sweeps", "three sweeps"):
            m = max(machine.load(S, t).max() for t in tiles)
        if bug == "three sweeps":
            l = sum(np.exp(machine.load(S, t) - m).sum() for t in tiles)
        P = machine.hbm_empty("P", (N,), S.dtype) if bug == "weights written out" else None
        for t in tiles:
            s, v = machine.load(S, t), machine.load(V, t)
            m_new = max(m, s.max())
            if bug == "the first tile's maximum kept":
                m_new = s.max() if np.isneginf(m) else m
            p, shrink = np.exp(s - m_new), np.exp(m - m_new)
            if bug == "no maximum":
                p, shrink = np.exp(s), 1.0
            l = l if bug == "three sweeps" else (1.0 if bug == "never rescaled" else shrink) * l + p.sum()
            o = (1.0 if bug in ("never rescaled", "o is not rescaled") else shrink) * o + p @ v
            m = m_new
            if P is not None:
                machine.store(P, t, p)
            if bug == "stored in every turn":
                machine.store(O, (), o / l)
        if bug != "stored in every turn":
            machine.store(O, (), o if bug == "never divided" else o / l)
    return O.array if bug == "the array returned" else O


def _reads(times: int) -> Callable[[Case, Outcome, Finding], bool]:
    """S was read this many times, and the answer is right but for that."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        read = outcome.measures.get("read", {})
        once = {"S": case.args[0].nbytes, "V": case.args[1].nbytes}
        return case.measured and not finding.ok and read.get("S") == times * once["S"] and read.get("V") == once["V"]

    return fits


def _raised(kind: str) -> Callable[[Case, Outcome, Finding], bool]:
    return lambda case, outcome, finding: outcome.trouble is not None and outcome.trouble.kind == kind


def _wrote(name: str) -> Callable[[Case, Outcome, Finding], bool]:
    """More was written under this name than there is to write."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        right = case.args[1][0].nbytes if name == "O" else 0
        return case.measured and not finding.ok and outcome.measures.get("written", {}).get(name, 0) > right

    return fits


def _differs(result: str, *tensors: str) -> Callable[[Case, Outcome, Finding], bool]:
    """This was found wrong; and, where tensors are named, the `.array` of one of them was used."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        looked = outcome.measures.get("looked", {})
        return not finding.ok and finding.result == result and (not tensors or any(t in looked for t in tensors))

    return fits


def _past_the_machine(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Nothing was loaded of S or V, or nothing stored to O."""
    read, written = outcome.measures.get("read", {}), outcome.measures.get("written", {})
    return case.measured and not finding.ok and not (read.get("S") and read.get("V") and written.get("O"))


FUSED = [
    Mistake(
        "the whole row loaded",
        partial(fused, bug="the whole row loaded"),
        "SRAM is smaller than a row.",
        "Which part of S is needed at one moment?",
        fits=_raised("SRAMOverflow"),
    ),
    Mistake(
        "past the end",
        partial(fused, bug="past the end"),
        "The machine does not shorten a slice as NumPy does.",
        "Where does the last tile end if N is no multiple of the block?",
        fits=_raised("OutOfBounds"),
    ),
    Mistake(
        "loaded outside a kernel",
        partial(fused, bug="loaded outside a kernel"),
        "SRAM exists only while a kernel runs.",
        "Which lines must stand inside `with machine.kernel(...)`?",
        fits=_raised("OutsideKernel"),
    ),
    *_known(
        fused,
        (
            "o is not rescaled",
            "an o that is not rescaled when the maximum rises, while l is",
            "o is a sum of exp(s − m)·v. Against which m were its earlier terms measured?",
        ),
        (
            "never rescaled",
            "a state that is never rescaled when the maximum rises",
            "l and o were summed against the old m. By what factor do both have to shrink?",
        ),
        (
            "never divided",
            "an o that is never divided by l",
            "The last column of v is 1 everywhere. What must the last number of o be?",
        ),
        FIRST_MAXIMUM,
        ("no maximum", "a program that takes exp(s) with no maximum taken off", "What is exp(1000)?"),
        (
            "ragged tile left out",
            "a program that leaves out the keys past the last whole tile",
            "How many tiles do 67 keys need, in tiles of 4?",
        ),
    ),
    Mistake(
        "three sweeps",
        partial(fused, bug="three sweeps"),
        "The answer is right, but three sweeps go over S: for the maximum, for the sum, for the result.",
        "What must you carry from tile to tile, so that a maximum found late does no harm?",
        fits=_reads(3),
    ),
    Mistake(
        "two sweeps",
        partial(fused, bug="two sweeps"),
        "The answer is right, but S is read twice.",
        "Is a sweep for the maximum needed, or can a tile be loaded twice by mistake?",
        fits=_reads(2),
    ),
    Mistake(
        "weights written out",
        partial(fused, bug="weights written out"),
        "The answer is right, but the weights went out to HBM.",
        "Who needs the weights once they have met their values?",
        fits=_wrote("P"),
    ),
    Mistake(
        "past the machine",
        partial(fused, bug="past the machine"),
        "The answer is right, but numbers were taken from `.array`, or written there, and the machine did not see it.",
        "What moves a tile from HBM to SRAM, and what moves it back?",
        fits=_past_the_machine,
    ),
    Mistake(
        "loaded for show",
        partial(fused, bug="loaded for show"),
        "The bytes are right, but the numbers did not come from the tiles.",
        "Which array does `machine.load` return, and is it the one you compute with?",
        fits=_differs("array", "S", "V"),
    ),
    Mistake(
        "the array returned",
        partial(fused, bug="the array returned"),
        "O lives in HBM; its numbers are looked at when the machine is done, not by the kernel.",
        "What did `machine.hbm_empty` give you, and what does the statement ask you to return?",
        fits=_differs("array", "O"),
    ),
    Mistake(
        "two kernels",
        partial(fused, bug="two kernels"),
        "It begins more than one kernel. What the first one knew would have to go through HBM.",
        "Which lines must stand inside one and the same `with machine.kernel(...)`?",
        fits=_differs("kernels"),
    ),
    Mistake(
        "tiles of another size",
        partial(fused, bug="tiles of another size"),
        "The tiles that it loads are not those of `block` keys.",
        "How many tiles of `block` keys are there, if the last one may be smaller?",
        fits=lambda case, outcome, finding: finding.result.startswith("loads"),
    ),
    Mistake(
        "tiles collected",
        partial(fused, bug="tiles collected"),
        "Each number is loaded once, but the tiles are kept in Python: SRAM could not hold them.",
        "If each tile comes once, what must you carry from tile to tile instead of the tiles?",
        fits=_hoards,
    ),
    Mistake(
        "stored in every turn",
        partial(fused, bug="stored in every turn"),
        "The answer is right, but O is written more often than once.",
        "After which tile is o the answer?",
        fits=_wrote("O"),
    ),
]
