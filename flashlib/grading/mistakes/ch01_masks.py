"""Known mistakes of chapter 01, masks. Each function is right but for what ``bug`` names."""

from __future__ import annotations

import numpy as np

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch01_rows import OF_SOFTMAX, TEXT, known, rows, sums_short


def causal_mask(Sq, Sk, *, bug=""):
    """True where query i may see key j."""
    i, j = np.arange(Sq)[:, None], np.arange(Sk)[None, :]
    shift = {
        "top left": 0, "shift the wrong way": Sq - Sk, "shift never negative": max(Sk - Sq, 0),
        "shift without its sign": abs(Sk - Sq),
    }.get(bug, Sk - Sq)  # fmt: skip
    see = j <= i + shift
    if bug == "not itself":
        see = j < i + shift
    if bug == "one key too many":
        see = j <= i + shift + 1
    if bug == "hidden is True":
        see = ~see
    if bug == "looks ahead":
        see = j >= i + shift
    if bug == "transposed":
        see = see.T
    if bug == "numbers":
        see = see.astype(np.float64)
    if bug == "added to scores":
        see = np.where(see, 0.0, -np.inf)
    return see


def _transposed(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if len(outcome.results) != 1:
        return False
    return np.array_equal(outcome.results[0].array, causal_mask(*case.args).T)


def _of_numbers(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if not outcome.results or outcome.results[0].dtype == "bool":
        return False
    return bool(np.isin(outcome.results[0].array, (0, 1)).all())


def _of_infinities(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return bool(outcome.results) and outcome.results[0].dtype != "bool" and bool((outcome.results[0].array < -1).any())


MASK = known(
    causal_mask,
    (
        "top left",
        "a mask aligned to the top left",
        "The queries are the last tokens of the text. If Sq = 1 and Sk = 9, which keys may the one query see?",
    ),
    (
        "hidden is True",
        "a mask that is True where a key is hidden",
        "Here True means that query i may look. Which entry of the first row is True in a square mask?",
    ),
    (
        "not itself",
        "a mask in which a token does not see itself",
        "Token i sees the keys up to its own. Is its own key among them?",
    ),
    (
        "shift the wrong way",
        "a mask shifted by Sq − Sk",
        "With more keys than queries, does each query see more keys than its index, or fewer?",
    ),
    (
        "shift never negative",
        "a mask that is never shifted to the left",
        "With Sq = 5 and Sk = 2 the last query sees both keys. How many does the query before it see, and the first?",
    ),
    (
        "shift without its sign",
        "a mask shifted by |Sk − Sq|",
        "With Sq = 5 and Sk = 2 the last query sees both keys. How many does the query before it see, and the first?",
    ),
    (
        "one key too many",
        "a mask that lets every row see one key too many",
        "In a square mask, which is the last key that row 0 may see?",
    ),
    (
        "looks ahead",
        "a mask that shows the future and hides the past",
        "May a token look at keys with a smaller index than its own, or with a larger one?",
    ),
    (
        "transposed",
        "Rows and columns are exchanged.",
        "Which axis of s holds the queries: the first or the second?",
        _transposed,
    ),
    (
        "added to scores",
        "It is a mask of 0 and −∞ to be added to scores; asked for is one of True and False.",
        "Which comparison of two index arrays gives True and False by itself?",
        _of_infinities,
    ),
    (
        "numbers",
        "It holds the numbers 0 and 1; asked for is a mask of True and False.",
        "np.where and ~ treat True and 1.0 differently. What dtype does a comparison such as j <= i have?",
        _of_numbers,
    ),
)


def masked_attention(q, k, v, see, *, bug=""):
    """o of one head, where query i sees only the keys j with see[i, j]."""
    scale = 1.0 if bug == "scale forgotten" else q.shape[-1] ** -0.5
    s = (q @ k.T) * scale
    if bug == "argument changed":
        q *= scale
    hidden = s.dtype.type(-np.inf)
    zero, one = s.dtype.type(0), s.dtype.type(1)
    if bug == "mask ignored":
        see = np.ones_like(see)
    if bug == "mask inverted":
        see = ~see
    if bug == "0 after the softmax":
        return (rows(s) * see) @ v
    if bug == "score 0":
        return rows(s * see) @ v
    if bug == "mask added as a number":
        return rows(s + see.astype(s.dtype)) @ v
    if bug == "−1e9":
        return rows(np.where(see, s, s.dtype.type(-1e9))) @ v
    if bug == "−1e6 before the scale":
        return rows(np.where(see, q @ k.T, s.dtype.type(-1e6)) * scale) @ v
    if bug == "no guard":
        return rows(np.where(see, s, hidden), "no guard") @ v
    if bug == "0 · (−∞)":
        return rows(s + (one - see.astype(s.dtype)) * hidden) @ v
    if bug == "0 · (−∞), NaN made 0":
        return np.nan_to_num(rows(s + (one - see.astype(s.dtype)) * hidden) @ v)
    if bug == "maximum before the mask":
        e = np.where(see, np.exp(s - s.max(-1, keepdims=True)), zero)
        l = e.sum(-1, keepdims=True)
        return (e / np.where(l == 0, one, l)) @ v
    s = np.where(see, s, hidden)
    o = rows(s, bug if bug in OF_SOFTMAX else "") @ v
    return o.astype(np.float64) if bug == "float64 comes out" else o


MASKED = known(
    masked_attention,
    (
        "no guard",
        "an attention without a guard for rows that see no key",
        "In such a row m is −∞. What is −∞ − (−∞), and what must stand in the place of m, and of the sum, to give 0?",
    ),
    (
        "−1e9",
        "a mask filled with a large negative number",
        "If all scores of a row are −1e9, what are their weights? Which fill makes exp exactly 0?",
    ),
    (
        "0 after the softmax",
        "a softmax over all keys whose hidden weights were set to 0 afterwards",
        "What do the weights that are left sum to? Before which step must a key be hidden to get no share at all?",
    ),
    (
        "score 0",
        "hidden keys that have a score of 0",
        "exp(0) is 1. Which score gets a weight of exactly 0?",
    ),
    (
        "−1e6 before the scale",
        "a mask filled with a number that true scores can fall below, such as −1e6 before the scale",
        "After the scale, is your fill still below every true score? Which number is, whatever the scores?",
    ),
    (
        "0 · (−∞)",
        "scores to which a mask times −∞ was added",
        "What is 0 · (−∞), and in which places does your mask hold a 0?",
    ),
    (
        "0 · (−∞), NaN made 0",
        "scores to which a mask times −∞ was added, and whose NaN were replaced afterwards",
        "What is 0 · (−∞), and in which places does your mask hold a 0?",
    ),
    "keepdims forgotten",
    (
        "epsilon",
        *TEXT["epsilon"][:2],
        sums_short(0, -1),
    ),
    (
        "mask ignored",
        "attention over all keys",
        "Where does see enter?",
    ),
    (
        "mask inverted",
        "an attention that sees what it should not, and nothing else",
        "np.where(see, a, b): which of a and b is taken where see is True?",
    ),
    (
        "mask added as a number",
        "scores to which the mask was added as 0 and 1",
        "What must be added to a score so that its weight becomes exactly 0?",
    ),
    (
        "maximum before the mask",
        "a softmax whose maximum was taken before the mask",
        "If a hidden score is 2000 larger than every visible one, what are the exponentials of the visible ones?",
    ),
    "no maximum",
    "scale forgotten",
    "argument changed",
    "columns",
    "one maximum for all",
    "float64 comes out",
)
