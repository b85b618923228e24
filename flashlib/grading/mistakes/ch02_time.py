"""Known mistakes of chapter 02: wrong intensities and times, each known by its value."""

from __future__ import annotations

from functools import partial

from flashlib.grading.case import Mistake
from flashlib.grading.mistakes.ch02 import by_value

INTENSITIES = ("four kernels", "fused kernel")
TIME = ("seconds", "memory_bound")


# -- 02.3 ----------------------------------------------------------------------------------------------------------
def intensity(Nq, Nk, d, r, itemsize, *, bug=""):
    """FLOP per byte of the four kernels and of one fused kernel."""
    rounds = {
        "rounds rounded down": Nq // r, "K and V read once": 1, "rounds not rounded": Nq / r,
        "one round too many": Nq // r + 1,
    }.get(bug, -(-Nq // r))  # fmt: skip
    a_score = {
        "a multiply-add is one FLOP": 2 * d + 6, "products only": 4 * d, "one product": 2 * d + 6.0,
        "one FLOP for the softmax": 4 * d + 2, "scale forgotten": 4 * d + 5, "d forgotten": 10,
    }.get(bug, 4 * d + 6)  # fmt: skip
    flop = a_score * (Nq * Nq if bug == "Nq² scores" else Nq * Nk)
    S, Q, K = Nq * Nk, Nq * d, rounds * Nk * d
    four, fused = 6 * S + 2 * Q + 2 * K, 2 * Q + 2 * K
    if bug == "S written, not read again":
        four = 3 * S + 2 * Q + 2 * K
    if bug == "only S and P counted":
        four = 6 * S
    if bug == "one round of Q":
        fused = Q + 2 * K
    if bug == "S still written":
        fused = 2 * Q + 2 * K + S
    if bug == "S and P still cross":
        fused = 2 * Q + 2 * K + 2 * S
    if bug == "V forgotten":
        fused = 2 * Q + K
    unit = {"per element": 1, "per bit": 8 * itemsize}.get(bug, itemsize)
    four, fused = four * unit, fused * unit
    if bug == "upside down":
        return four / flop, fused / flop
    if bug == "four kernels twice":
        fused = four
    if bug == "fused first":
        four, fused = fused, four
    if bug == "per MB":
        return flop / (four / 1e6), flop / (fused / 1e6)
    return flop / four, flop / fused


def _intensity(bug: str, says: str, ask: str, *, whole: bool = False) -> Mistake:
    wrong = partial(intensity, bug=bug)
    return Mistake(bug, wrong, says, ask, by_value(wrong, INTENSITIES, whole=whole))


INTENSITY = [
    _intensity(
        "a multiply-add is one FLOP",
        "That is the value with one FLOP for each multiplication and addition together.",
        "A dot product of d features takes d multiplications. How many additions?",
    ),
    _intensity("per element", "That is FLOP for each number moved.", "How many bytes has one number?"),
    _intensity(
        "upside down", "That is bytes for each FLOP.", "Is a kernel that computes much with each byte high or low?"
    ),
    _intensity(
        "products only",
        "That is the value with the two matrix products alone.",
        "How many FLOPs does each score cost in the scale and in the softmax?",
    ),
    _intensity(
        "one FLOP for the softmax",
        "That is the value with one FLOP a score for the softmax.",
        "The softmax takes a maximum, a difference, an exp, a sum and a division. How many FLOPs for each score?",
    ),
    _intensity(
        "scale forgotten", "That is the value without the scale's FLOPs.", "What does the scale do to each score?"
    ),
    _intensity(
        "K and V read once",
        "That is the value with K and V read only once.",
        "SRAM holds r queries. How many rounds over K and V does it take until all have been there?",
    ),
    _intensity(
        "rounds rounded down",
        "That is the value with Nq // r rounds.",
        "With 7 queries and r = 2, in how many rounds have all 7 been on the chip?",
    ),
    _intensity(
        "rounds not rounded",
        "That is the value with Nq / r rounds, which need not be a whole number.",
        "With 7 queries and r = 2, how often is K read?",
    ),
    _intensity(
        "one round too many",
        "That is the value with Nq // r + 1 rounds.",
        "With 6 queries and r = 2, how many rounds are there? And with 7?",
    ),
    _intensity(
        "fused first",
        "That is the other one of the two intensities.",
        "Which of the two does the statement name first?",
        whole=True,
    ),
    _intensity(
        "S written, not read again",
        "That is the value with S and P crossing three times, not six.",
        "Who writes S and P in the four kernels, and who reads each of them again?",
    ),
    _intensity(
        "only S and P counted",
        "That is the value with the traffic of S and P alone.",
        "Which four other tensors cross, and how often?",
    ),
    _intensity(
        "Nq² scores",
        "That is the value with Nq² scores.",
        "Each query has one score for each key. How many queries are there, and how many keys?",
    ),
    _intensity(
        "four kernels twice",
        "That is the four kernels' value again.",
        "Which tensors no longer cross when one kernel does all the steps?",
    ),
    _intensity(
        "S still written",
        "That is the value of a fused kernel that still writes S.",
        "What does the fused kernel do with a tile of S when the next one comes?",
    ),
    _intensity(
        "S and P still cross",
        "That is the value of a fused kernel in which S and P still cross.",
        "What does the fused kernel do with a tile of S when the next one comes?",
    ),
    _intensity("one round of Q", "That is the value without O.", "What does the fused kernel leave in HBM?"),
    _intensity("V forgotten", "That is the value without V.", "What are the weights multiplied by?"),
    _intensity("per bit", "That is FLOP for each bit.", "How many bits has a byte? In which unit is itemsize?"),
    _intensity("per MB", "That is FLOP for each MB.", "Which unit does the statement ask for?"),
]


# -- 02.4 ----------------------------------------------------------------------------------------------------------
def roofline_time(flop, nbytes, flop_per_s, bytes_per_s, *, bug=""):
    """Least time of a kernel in seconds, and whether memory decides it."""
    compute, memory = flop / flop_per_s, nbytes / bytes_per_s
    bound = bool(memory > compute)
    seconds = {
        "sum": compute + memory, "the shorter": min(compute, memory), "FLOPs only": compute, "bytes only": memory,
        "milliseconds": 1e3 * max(compute, memory), "microseconds": 1e6 * max(compute, memory),
        "twice the FLOPs": max(2 * compute, memory), "bits": max(compute, 8 * memory),
        "GiB against GB": max(compute, memory * 1e9 / 2**30), "GB against GiB": max(compute, memory * 2**30 / 1e9),
        "upside down": max(flop_per_s / flop, bytes_per_s / nbytes), "mean": (compute + memory) / 2,
    }.get(bug, max(compute, memory))  # fmt: skip
    if bug == "bound the wrong way round":
        bound = not bound
    if bug in ("always memory-bound", "never memory-bound"):
        bound = bug == "always memory-bound"
    if bug == "FLOPs against bytes":
        bound = bool(nbytes > flop)
    return seconds, bound


def _time(bug: str, says: str, ask: str) -> Mistake:
    wrong = partial(roofline_time, bug=bug)
    return Mistake(bug, wrong, says, ask, by_value(wrong, TIME))


ROOFLINE = [
    _time(
        "sum",
        "That is the sum of both times.",
        "A chip fetches and computes at once. When both have begun together, which one is waited for?",
    ),
    _time("the shorter", "That is the shorter of both times.", "Can a kernel end before both are done?"),
    _time("FLOPs only", "That is the time of the arithmetic.", "How long do the bytes take?"),
    _time("bytes only", "That is the time of the bytes.", "How long does the arithmetic take?"),
    _time(
        "bound the wrong way round",
        "The time is right; memory_bound says the opposite.",
        "The kernel waits for the slower of the two. Is that the memory here?",
    ),
    _time(
        "always memory-bound",
        "That memory_bound is True whatever the kernel.",
        "Can the FLOPs take longer than the bytes? What must memory_bound be then?",
    ),
    _time(
        "never memory-bound",
        "That memory_bound is False whatever the kernel.",
        "Can the bytes take longer than the FLOPs? What must memory_bound be then?",
    ),
    _time(
        "FLOPs against bytes",
        "That memory_bound compares the number of bytes with the number of FLOPs.",
        "A chip does many FLOPs in the time of one byte. Which two times must be compared?",
    ),
    _time("milliseconds", "That is in milliseconds.", "Which unit does the statement ask for?"),
    _time("microseconds", "That is in microseconds.", "Which unit does the statement ask for?"),
    _time(
        "twice the FLOPs",
        "That is the time of twice the FLOPs.",
        "flop already counts a multiplication and an addition as two. Who counts them again?",
    ),
    _time("bits", "That is the time of eight times the bytes.", "Are these bits or bytes, and bits or bytes a second?"),
    _time(
        "GiB against GB",
        "That is the time of GiB (2³⁰ bytes) divided by GB/s (10⁹ bytes/s).",
        "Both are given in bytes. Is any conversion needed?",
    ),
    _time(
        "GB against GiB",
        "That is the time of GB (10⁹ bytes) divided by GiB/s (2³⁰ bytes/s).",
        "Both are given in bytes. Is any conversion needed?",
    ),
    _time(
        "upside down",
        "That is a rate divided by an amount.",
        "If there are twice the bytes, is the time longer or shorter? What unit has your quotient?",
    ),
    _time("mean", "That is the mean of both times.", "Can a kernel end before both are done?"),
]
