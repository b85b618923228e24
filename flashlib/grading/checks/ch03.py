"""Chapter 03, online softmax: what its exercises are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashlib.grading.case import Case, Exercise
from flashlib.grading.expected import expect
from flashlib.grading.judge import matches
from flashlib.grading.mistakes import ch03 as gallery


def _merge(m1, l1, m2, l2):
    m = np.maximum(m1, m2)
    safe = np.where(np.isneginf(m), 0, m)
    return m, l1 * np.exp(m1 - safe) + l2 * np.exp(m2 - safe)


def _merge_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def halves(n, spread, rise):
        x = rng.standard_normal((2, n)) * spread
        return (
            np.array([x[0].max() - rise]),
            np.exp(x[0] - x[0].max()).sum(keepdims=True),
            np.array([x[1].max() + rise]),
            np.exp(x[1] - x[1].max()).sum(keepdims=True),
        )

    for name, args in (
        ("the second maximum is larger", halves(5, 3, 6)),
        ("the first maximum is larger", halves(5, 3, -6)),
        ("scores near 10 000", halves(5, 3000, 0)),
        ("one side is empty: (−∞, 0)", (np.array([-np.inf]), np.array([0.0]), *halves(5, 3, 0)[2:])),
        ("both sides are empty", (np.array([-np.inf]), np.array([0.0]), np.array([-np.inf]), np.array([0.0]))),
    ):
        yield Case(name, args, matches(*expect(("m", "l"), _merge, args, longest=2)))


EXERCISES = [
    Exercise(
        "03.2", "the merge law", "merge", _merge_cases, lambda: gallery.MERGE, forbidden=("logaddexp", "logsumexp")
    ),
]
