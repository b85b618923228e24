"""What the galleries of chapter 01 share: a softmax with its mistakes, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashlib.grading.case import Case, Finding, Mistake, Outcome

Fits = Callable[[Case, Outcome, Finding], bool]


def known(fn: Callable[..., Any], *mistakes: Any) -> list[Mistake]:
    """A gallery of ``fn(…, bug=name)``: each a name in `TEXT`, or (name, says, ask) and perhaps how it is known."""
    entries = [(m, *TEXT[m]) if isinstance(m, str) else m for m in mistakes]
    return [Mistake(name, partial(fn, bug=name), *rest) for name, *rest in entries]


def wrote(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The function changed an argument."""
    return bool(outcome.changed)


def wider(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """float32 went in, float64 came out."""
    return case.args[0].dtype == np.float32 and any(r.dtype == "float64" for r in outcome.results)


def axis_lost(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """NumPy could not broadcast a row's maximum or sum, (..., Sq), to the scores."""
    shape = str(case.args[0].shape[:-1]).replace(" ", "")
    text = outcome.trouble.message if outcome.trouble else ""
    return "could not be broadcast" in text and shape in text


def sums_short(result: int, column: int | None = None) -> Callable[[Case, Outcome, Finding], bool]:
    """Whether the weights of all rows sum to a little less than 1, where they are not 0.

    Summed are the rows of result number ``result``; or its ``column`` is taken, where v holds 1.
    """

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if len(outcome.results) <= result or outcome.results[result].array.ndim < 1:
            return False
        x = outcome.results[result].array
        total = x.sum(-1) if column is None else x[..., column]
        short = 1 - total[total != 0]
        return bool(short.size and (short > 0).all() and short.max() < 1e-3 and short.max() > (finding.budget or 0))

    return fits


#: what several exercises know: name → (what the output equals, the question that mends it, how it is known)
TEXT: dict[str, tuple[str, str, Fits | None]] = {
    "no maximum": (
        "an attention that does not take off the row's maximum",
        "What does exp make of a row whose scores are all near 800, or all near −800?",
        None,
    ),
    "no maximum, 0 / 0": (
        "an attention that does not take off the row's maximum",
        "What does exp make of a row whose scores are all near 800, or all near −800?",
        None,
    ),
    "one maximum for all, 0 / 0": (
        "a softmax that takes one maximum for all rows, so that a row of weights becomes 0 / 0",
        "What is left of a row whose scores all lie 800 below the largest score of another row?",
        None,
    ),
    "one maximum for all": (
        "a softmax that takes one maximum for all rows",
        "What is left of a row whose scores all lie 800 below the largest score of another row?",
        None,
    ),
    "columns": (
        "a softmax down the columns of s",
        "Each query shares out its weight among the keys. Along which axis of s do the keys lie?",
        None,
    ),
    "scale forgotten": (
        "scores that are the plain dot products",
        "By what are the dot products of d features multiplied, so that their size does not grow with d?",
        None,
    ),
    "sum without its axis": (
        "row j's sum dividing column j, as a sum without keepdims does in a square matrix",
        "e is (…, Sq, Sk). What shape has your sum, and along which axis does NumPy lay it?",
        None,
    ),
    "maximum without its axis": (
        "row j's maximum taken from column j, as a maximum without keepdims is in a square matrix",
        "s is (…, Sq, Sk). What shape has your maximum, and along which axis does NumPy lay it?",
        None,
    ),
    "maximum and sum without their axis": (
        "row j's maximum and sum used for column j, as without keepdims in a square matrix",
        "s is (…, Sq, Sk). What shape have your maximum and sum, and along which axis does NumPy lay them?",
        None,
    ),
    "keepdims forgotten": (
        "The maximum or the sum of each row has lost its axis, and does not fit the rows any more.",
        "What shape has a row maximum taken without keepdims, and what shape would broadcast along the rows?",
        axis_lost,
    ),
    "float64 comes out": (
        "The numbers are float64 although float32 went in.",
        "np.sqrt(20) is a NumPy float64, 20 ** 0.5 a Python float. Which one turns a float32 array into float64?",
        wider,
    ),
    "argument changed": (
        "An augmented assignment such as *= writes into the array it was given.",
        "Which of your lines makes a new array, and which one writes into an old one?",
        wrote,
    ),
    "epsilon": (
        "The weights of a row sum to a little less than 1, as if a small number had been added to the sum.",
        "After the maximum is taken off, how small can the sum of a row get? Is there anything left to guard but 0?",
        None,
    ),
}


#: what `rows` can do wrong, and so can every attention that uses it
OF_SOFTMAX = (
    "no maximum", "no maximum, 0 / 0", "one maximum for all", "one maximum for all, 0 / 0", "columns",
    "one sum for all", "no division", "epsilon", "keepdims forgotten", "maximum and sum without their axis",
    "maximum without its axis", "sum without its axis", "sum down the columns",
)  # fmt: skip


def rows(s, bug=""):
    """Safe softmax of the last axis, 0 for a row of −∞."""
    bug, bare = bug.removesuffix(", 0 / 0"), bug.endswith(", 0 / 0")
    axis = {"columns": 0, "second axis": 1}.get(bug, -1)
    if bug == "in place":
        s -= np.where(np.isneginf(s.max(-1, keepdims=True)), 0, s.max(-1, keepdims=True))
    if bug == "clipped":
        s = np.clip(s, -50, 50)
    if bug == "a large negative number":
        s = np.maximum(s, -1e9)
    if bug == "−∞ made −10 000":
        empty = np.isneginf(s).all(-1, keepdims=True)
        p = rows(np.where(np.isneginf(s), s.dtype.type(-1e4), s))
        return np.where(empty, s.dtype.type(0), p)
    m = s.max() if bug == "one maximum for all" else s.max(axis, keepdims=True)
    if bug in ("keepdims forgotten", "maximum without its axis", "maximum and sum without their axis"):
        m = s.max(-1)
    if bug == "mean":
        m = s.mean(-1, keepdims=True)
    if bug == "no maximum":
        m = s.dtype.type(0)
    if bug == "maximum added":
        m = -m
    if bug == "minimum":
        m = s.min(-1, keepdims=True)
    if bug == "largest size":
        m = np.abs(np.where(np.isinf(s), s.dtype.type(0), s)).max(-1, keepdims=True)
    if bug != "no guard":
        m = np.where(np.isneginf(m), s.dtype.type(0), m)
    e = np.exp(s - m)
    l = e.sum() if bug == "one sum for all" else e.sum(axis, keepdims=True)
    if bug in ("keepdims forgotten", "sum without its axis", "maximum and sum without their axis"):
        l = e.sum(-1)
    if bug == "sum down the columns":
        l = e.sum(0, keepdims=True)
    if bug == "epsilon":
        l = l + s.dtype.type(1e-8)
    if bug == "no division":
        l = np.ones_like(l)
    if bug != "no guard" and not bare:
        l = np.where(l == 0, s.dtype.type(1), l)
    p = e / l
    return p.astype(np.float64) if bug == "float64 comes out" else p
