"""Known mistakes of chapter 03. Each function is right but for what ``bug`` names."""

from __future__ import annotations

from functools import partial

import numpy as np

from flashlib.grading.case import Mistake


def merge(m1, l1, m2, l2, *, bug=""):
    """(m, l) of the two parts together."""
    m = np.maximum(m1, m2)
    safe = m if bug == "no guard" else np.where(np.isneginf(m), 0, m)
    a, b = np.exp(m1 - safe), np.exp(m2 - safe)
    if bug == "sums added":
        a = b = 1.0
    if bug == "wrong way round":
        a, b = np.exp(safe - m1), np.exp(safe - m2)
    if bug == "only the old one shrinks":
        b = 1.0
    return m, l1 * a + l2 * b


MERGE = [
    Mistake(
        "sums added",
        partial(merge, bug="sums added"),
        "two sums added as if they were measured against the same maximum",
        "Each l was summed against its own m. By what factor must each be multiplied before they may be added?",
    ),
    Mistake(
        "only the old one shrinks",
        partial(merge, bug="only the old one shrinks"),
        "a merge in which only the first sum is brought to the new maximum",
        "If the first maximum is the larger one, what must happen to the second sum?",
    ),
    Mistake(
        "wrong way round",
        partial(merge, bug="wrong way round"),
        "a correction factor of exp(m_new − m_old)",
        "When the maximum rises, must what was summed before grow or shrink?",
    ),
    Mistake(
        "no guard",
        partial(merge, bug="no guard"),
        "a merge that computes (−∞) − (−∞)",
        "What is exp(m1 − m) when both parts are empty, and what should it be?",
    ),
]
