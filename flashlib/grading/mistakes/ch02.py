"""Known mistakes of chapter 02: wrong counts, each known by its value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.judge import apart

KERNELS = ("QKᵀ", "scale", "softmax", "PV")
_ROUNDINGS = 16  # more than any of these formulas has operations, each good for one rounding

Fits = Callable[[Case, Outcome, Finding], bool]


def by_value(wrong: Callable[..., Any], names: tuple[str, ...], *, whole: bool = False) -> Fits:
    """The first result that was found wrong has the value that ``wrong`` gives; the others too, if ``whole``."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        results = apart(outcome.results, len(names))
        if len(results) != len(names) or finding.result not in names:
            return False
        known = wrong(*case.args)
        at = range(len(names)) if whole else [names.index(finding.result)]
        return all(_same_number(results[i].array, known[i]) for i in at)

    return fits


def _same_number(got: np.ndarray, known: Any) -> bool:
    if got.size != 1 or isinstance(known, bool):
        return bool(got.size == 1 and bool(got) == known)
    return bool(abs(float(got) - known) <= _ROUNDINGS * np.finfo(float).eps * abs(known))


# -- 02.1 ----------------------------------------------------------------------------------------------------------
def bytes_moved(Nq, Nk, d, r, itemsize, *, bug=""):
    """Bytes that each of the four kernels moves."""
    rounds = -(-Nq // r)
    if bug == "rounds rounded down":
        rounds = Nq // r
    if bug == "one round too many":
        rounds = Nq // r + 1
    if bug == "rounds not rounded":
        rounds = Nq / r
    if bug == "rounds over the keys":
        rounds = -(-Nk // r)
    if bug == "K and V read once":
        rounds = 1
    if bug == "K and V read for every row":
        rounds = Nq
    S, Q, K = Nq * Nk, Nq * d, rounds * Nk * d
    if bug == "S has Nq² numbers":
        S = Nq * Nq
    if bug == "V has Nq rows":
        K = rounds * Nq * d
    if bug == "Q read again, not K":
        Q, K = rounds * Nq * d, Nk * d
    numbers = {
        "": (Q + K + S, 2 * S, 2 * S, S + K + Nq * d),
        "read only": (Q + K, S, S, S + K),
        "written only": (S, S, S, Nq * d),
        "S written, not read again": (Q + K + S, S, S, K + Nq * d),
        "in place counted once": (Q + K + S, S, 2 * S, S + K + Nq * d),
        "softmax reads three times": (Q + K + S, 2 * S, 4 * S, S + K + Nq * d),
        "O has Nk rows": (Q + K + S, 2 * S, 2 * S, S + K + Nk * d),
        "S read in QKᵀ": (Q + K + 2 * S, 2 * S, 2 * S, S + K + Nq * d),
        "O forgotten": (Q + K + S, 2 * S, 2 * S, S + K),
        "P read in every round": (Q + K + S, 2 * S, 2 * S, rounds * S + K + Nq * d),
    }.get(bug, (Q + K + S, 2 * S, 2 * S, S + K + Nq * d))
    unit = {
        "elements": 1, "bits": 8 * itemsize, "kB": itemsize / 1e3, "KiB": itemsize / 2**10,
        "MB": itemsize / 1e6, "MiB": itemsize / 2**20,
    }.get(bug, itemsize)  # fmt: skip
    return tuple(n * unit for n in numbers)


def _count(bug: str, says: str, ask: str, *, whole: bool = False) -> Mistake:
    wrong = partial(bytes_moved, bug=bug)
    return Mistake(bug, wrong, says, ask, by_value(wrong, KERNELS, whole=whole))


# Those that show in one kernel only come first: they must agree in all four.
BYTES_MOVED = [
    _count(
        "in place counted once",
        "That is the count of a scale that crosses HBM only once.",
        "In place saves memory. Are the numbers read and written any less often?",
        whole=True,
    ),
    _count(
        "P read in every round",
        "That is the count with P read again in every round.",
        "Which rows of P does one round of r queries need, and does any other round need them?",
        whole=True,
    ),
    _count("O forgotten", "That is the count without O.", "What does the last kernel leave in HBM?", whole=True),
    _count("elements", "That is how many numbers move, not how many bytes.", "How many bytes has one number?"),
    _count(
        "K and V read once",
        "That is the count with K, or V, read only once.",
        "SRAM holds r rows of Q. What happens to K and V when the next r rows come?",
    ),
    _count(
        "rounds rounded down",
        "That is the count with Nq // r rounds.",
        "With 7 queries and r = 2, in how many rounds have all 7 been on the chip?",
    ),
    _count(
        "one round too many",
        "That is the count with Nq // r + 1 rounds.",
        "With 6 queries and r = 2, how many rounds are there? And with 7?",
    ),
    _count(
        "rounds not rounded",
        "That is the count with Nq / r rounds, which need not be a whole number.",
        "With 7 queries and r = 2, how often is K read?",
    ),
    _count(
        "S written, not read again",
        "That is the count with S, or P, crossing once only in this kernel.",
        "Nothing stays on the chip when a kernel ends. Where must the scale, and the softmax, get S from?",
    ),
    _count(
        "S read in QKᵀ",
        "That is the count with S crossing twice in the first kernel.",
        "Has S been in HBM before the first kernel writes it?",
    ),
    _count("read only", "That is what the kernel reads.", "What does it write, and does writing cross HBM as well?"),
    _count("written only", "That is what the kernel writes.", "What does it read, and does reading cross HBM as well?"),
    _count(
        "S has Nq² numbers",
        "That is the count with Nq² scores.",
        "Each query has one score for each key. How many queries are there, and how many keys?",
    ),
    _count(
        "rounds over the keys",
        "That is the count with ⌈Nk / r⌉ rounds.",
        "The r rows that stay on the chip, are they queries or keys?",
    ),
    _count(
        "V has Nq rows",
        "That is the count with Nq rows in K, or in V.",
        "Has V a row for each query, or a row for each key?",
    ),
    _count(
        "Q read again, not K",
        "That is the count with Q read in every round and K, or V, once.",
        "Which of the two stays on the chip while the other streams past?",
    ),
    _count(
        "K and V read for every row",
        "That is the count with K, or V, read again for every query.",
        "How many queries share one pass over K?",
    ),
    _count(
        "softmax reads three times",
        "That is the count of a softmax that reads S three times.",
        "Here a row fits on the chip. How often must it then be read?",
    ),
    _count(
        "O has Nk rows", "That is the count with Nk rows in O.", "Is there an output for each query or for each key?"
    ),
    _count("bits", "That is the number of bits.", "How many bits has a byte? In which unit is itemsize?"),
    _count("kB", "That is the number in units of 1000 bytes.", "Which unit does the statement ask for?"),
    _count("KiB", "That is the number in KiB, of 1024 bytes.", "Which unit does the statement ask for?"),
    _count("MB", "That is the number in MB, of 10⁶ bytes.", "Which unit does the statement ask for?"),
    _count("MiB", "That is the number in MiB, of 2²⁰ bytes.", "Which unit does the statement ask for?"),
]
