"""Known mistakes of chapter 01, softmax and the four steps. Each function is right but for what ``bug`` names."""

from __future__ import annotations

import numpy as np

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch01_rows import OF_SOFTMAX, TEXT, known, rows, sums_short, wider, wrote


def softmax(s, *, bug=""):
    """Weights of the last axis."""
    return rows(s, bug)


SOFTMAX = known(
    softmax,
    (
        "no maximum",
        "a softmax that takes exp of the scores as they are",
        "Which constant may be taken from all scores of a row, its weights unchanged, so that exp stays finite?",
    ),
    (
        "no guard",
        "a softmax without a guard for rows of −∞",
        "In such a row, what are m, s − m and the sum, and what should each be replaced by so that the weights are 0?",
    ),
    (
        "one maximum for all",
        "a softmax that takes one maximum for the whole array",
        "What happens to a row whose scores all lie 800 below that maximum?",
    ),
    (
        "columns",
        "a softmax along the first axis",
        "Which sums should be 1: those along a row, or those down a column?",
    ),
    (
        "second axis",
        "a softmax along axis 1",
        "An array (B, H, Sq, Sk) has its rows along the last axis. Which number names the last axis of any array?",
    ),
    (
        "one sum for all",
        "exponentials divided by the sum of the whole array",
        "What should the weights of one row sum to? Over which axis does your sum run?",
    ),
    (
        "epsilon",
        *TEXT["epsilon"][:2],
        sums_short(0),
    ),
    "keepdims forgotten",
    (
        "a large negative number",
        "a softmax in which −∞ became a large negative number",
        "If all scores of a row are the same number, however small, what are its weights? What should they be here?",
    ),
    (
        "−∞ made −10 000",
        "a softmax in which −∞ became a number that real scores can be as small as",
        "Scores may be as small as −10 000. Which weight has a hidden key beside them?",
    ),
    (
        "minimum",
        "a softmax that takes off the row's minimum",
        "After the change, which exponent should be the largest, and what should it be?",
    ),
    (
        "largest size",
        "a softmax that takes off the largest |s| of the row",
        "If all scores of a row are near −10 000, what are its exponents after your change?",
    ),
    (
        "no maximum, 0 / 0",
        "a softmax that takes exp of the scores as they are",
        "Which constant may be taken from all scores of a row, its weights unchanged, so that exp stays finite?",
    ),
    (
        "mean",
        "a softmax that takes off the row's mean",
        "Can a score lie far above the mean? And what is the mean of a row in which one score is −∞?",
    ),
    (
        "maximum added",
        "a softmax that adds the maximum",
        "After the change, which exponent should be the largest, and what should it be?",
    ),
    (
        "no division",
        "the exponentials, which were not divided",
        "What do the numbers of one of your rows sum to?",
    ),
    (
        "clipped",
        "a softmax of scores that were cut off, at ±50 perhaps",
        "Two scores, 60 and 70, have weights that differ by a factor of e¹⁰. Do yours?",
    ),
    (
        "in place",
        "An augmented assignment such as −= writes into the array it was given.",
        "Which of your lines makes a new array, and which one writes into an old one?",
        wrote,
    ),
    (
        "float64 comes out",
        "The numbers are float64 although float32 went in.",
        "np.zeros and np.sqrt make float64 unless told otherwise. Where does one of them enter?",
        wider,
    ),
)


def four_steps(q, k, v, *, bug=""):
    """s, p and o of one head."""
    d = q.shape[-1]
    scale = {
        "scale forgotten": 1.0, "1/d": 1 / d, "scale from the keys": k.shape[0] ** -0.5, "times √d": d**0.5,
        "scale from the queries": q.shape[0] ** -0.5,
    }.get(bug, d**-0.5)  # fmt: skip
    if bug == "argument changed":
        q *= 2
        scale = scale / 2
    if bug == "k not transposed":
        return q @ k
    if bug == "k times q":
        s = (k @ q.T) * scale
        p = rows(s)
        return s, p, p @ v
    s = (q @ k.T) * scale
    shown = s
    if bug == "s before the scale":
        shown = q @ k.T
    if bug == "scale after the softmax":
        s = q @ k.T
        p = rows(s) * scale
        return s, p, p @ v
    p = rows(s, bug if bug in OF_SOFTMAX else "")
    if bug == "s overwritten":
        shown = s - s.max(-1, keepdims=True)
    if bug == "exponentials in s":
        shown = np.exp(s - s.max(-1, keepdims=True))
    o = s @ v if bug == "scores times v" else p @ v
    if bug == "p without the division":
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        o = (p @ v) / p.sum(-1, keepdims=True)
    if bug == "float64 comes out":
        shown, p, o = (x.astype(np.float64) for x in (shown, p, o))
    return shown, p, o


def _turned(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """s came out as (Sk, Sq)."""
    if len(outcome.results) != 3:
        return False
    right, got = four_steps(*case.args)[0].T, outcome.results[0].array
    return got.shape == right.shape and bool(
        np.abs(got - right).max() <= (finding.budget or 0) + 1e-5 * np.abs(right).max()
    )


def _no_product(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """NumPy found that the shapes fit no matrix product."""
    t = outcome.trouble
    return t is not None and t.kind == "ValueError" and "core dimension" in t.message


FOUR_STEPS = known(
    four_steps,
    "scale forgotten",
    (
        "k not transposed",
        "The two matrices fit no product as they are: q is (Sq, D) and k is (Sk, D).",
        "s is (Sq, Sk). Which axis of k must meet the features of q?",
        _no_product,
    ),
    (
        "k times q",
        "The scores are turned round: keys lie along the rows.",
        "s is (Sq, Sk). Which of q and k must stand on the left of the product?",
        _turned,
    ),
    (
        "1/d",
        "scores with a scale of 1/d",
        "The dot product of d independent features has variance d. What is then its standard deviation?",
    ),
    "no maximum, 0 / 0",
    "columns",
    "sum without its axis",
    "maximum without its axis",
    "maximum and sum without their axis",
    (
        "epsilon",
        *TEXT["epsilon"][:2],
        sums_short(1),
    ),
    (
        "sum down the columns",
        "exponentials divided by the sum of their column",
        "What should each row of p sum to? Over which axis does your sum run?",
    ),
    "one maximum for all, 0 / 0",
    (
        "s before the scale",
        "an s that is returned before it was scaled",
        "p and o are fine. Which s does the formula of step 1 define?",
    ),
    (
        "s overwritten",
        "an s from which the maximum has been taken off",
        "Does one of your lines write into s after step 1? What does `s -= m` do?",
    ),
    (
        "exponentials in s",
        "an s that holds the exponentials",
        "Into which array does your line of step 2 write?",
    ),
    (
        "p without the division",
        "a p that was not divided by its row's sum, although o is right",
        "What should each row of p sum to? Which step divides p itself?",
    ),
    (
        "scale from the keys",
        "scores with a scale of 1/√N, N the number of keys",
        "Over which axis does the dot product sum: over tokens or over features? Which length belongs under the root?",
    ),
    (
        "scale from the queries",
        "scores with a scale of 1/√Sq",
        "Over which axis does the dot product sum: over tokens or over features? Which length belongs under the root?",
    ),
    (
        "times √d",
        "scores multiplied by √d",
        "Should the scale make scores of long vectors smaller or larger?",
    ),
    (
        "scale after the softmax",
        "weights that were scaled after the softmax",
        "What should each row of p sum to? Which step does the scale belong to?",
    ),
    (
        "one sum for all",
        "exponentials divided by the sum of the whole matrix",
        "What should each row of p sum to? Over which axis does your sum run?",
    ),
    "argument changed",
    (
        "scores times v",
        "an o made from the scores in the place of the weights",
        "A row of o is a mean of the values. Which of your arrays holds weights that sum to 1?",
    ),
    "float64 comes out",
)
