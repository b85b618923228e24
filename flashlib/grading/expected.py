"""Right answers of functions that are not whole attention, each with the error that a right computation may make.

`exactness.Problem` knows attention. Here is the same rule for any function of arrays that NumPy can compute:

budget = 2 · ( max(spread, n · u · max|answer|) + round trip of the answer through the dtype )

u is the dtype's unit roundoff and n the length of the longest sum. A stable way of computing makes no larger error than
moving every input by n roundoffs would; ``spread`` is what such moves do to the answer, the largest of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flashlib.grading.rounding import TINY, UNIT, dtype_name, round_to, to_numpy

MOVES = 6


class Answer(NamedTuple):
    """One right array: exact numbers, the largest error allowed, and what the result must be."""

    name: str
    exact: np.ndarray
    budget: float
    dtype: str | None  # None: any
    library: str | None  # "numpy" | "torch" | None: any
    axes: tuple[str, ...] = ()
    whole: bool = False  # numbers of places, to count or to loop with: no float will do, and no ratio tells anything


def expect(
    names: str | Sequence[str], oracle: Callable[..., Any], args: Sequence[Any], *, longest: int,
    dtype: str | None = None, library: str | None = None, axes: Sequence[tuple[str, ...]] | None = None,
) -> list[Answer]:  # fmt: skip
    """Answers of ``oracle(*args)``, one for each name.

    Parameters
    ----------
    oracle : written in NumPy; called with every floating-point array widened to ``np.longdouble``. Returns one array or
        a tuple.
    longest : terms in the longest sum.
    dtype, library : what the results must be. Left out: as the first array among args; "any" for dtype asks nothing.
    axes : for each result, names of its axes, for reports.

    Raises
    ------
    ValueError
        The oracle returns another number of arrays than there are names.
    """
    names = [names] if isinstance(names, str) else list(names)
    first = next((a for a in args if _floating(a)), None)
    like = dtype_name(first) if first is not None else "float64"
    kind = dtype if dtype not in (None, "any") else like
    owner = library or ("torch" if hasattr(first, "detach") else "numpy" if first is not None else None)
    wide = [to_numpy(a).astype(np.longdouble) if _floating(a) else a for a in args]
    exact = _tuple(oracle(*wide))
    if len(exact) != len(names):
        raise ValueError(f"the oracle returns {len(exact)} arrays for {len(names)} names")
    rng, u = np.random.default_rng(0), UNIT[kind]
    moved = []
    for _ in range(MOVES):
        near = [a * (1 + longest * u * rng.uniform(-1, 1, a.shape)) if _floating(a) else a for a in wide]
        moved.append(_tuple(oracle(*near)))
    answers = []
    for i, name in enumerate(names):
        size = _largest(exact[i])
        c = 0.3 * size
        with np.errstate(invalid="ignore"):  # −∞ − (−∞), where a part is empty: no number, not counted
            spread = max(_largest(np.asarray(m[i]) - exact[i]) for m in moved)
            trip = _largest(round_to(round_to(exact[i] + c, kind).astype(np.longdouble) - c, kind) - exact[i])
        budget = 2 * (max(spread, longest * u * size) + trip + TINY[kind])
        names_of_axes = tuple(axes[i]) if axes else ()
        answers.append(Answer(name, exact[i], float(budget), None if dtype == "any" else kind, owner, names_of_axes))
    return answers


def value(
    name: str, exact: Any, *, dtype: str | None = None, library: str | None = None, whole: bool = False
) -> Answer:
    """An answer with no rounding in it: a whole number, a mask, a shape. Any difference is wrong, a float too where it
    is to be ``whole``."""
    return Answer(name, np.asarray(exact), 0.0, dtype, library, whole=whole)


def beside_lse(answer: Answer, q: Any, k: Any) -> Answer:
    """The answer with room for weights exp(s − lse). They need no division, but lse is rounded where it is as large as
    the largest score, and that moves all weights of a row by the same part."""
    score = _largest(to_numpy(q).astype(np.longdouble) @ to_numpy(k).astype(np.longdouble).T) / q.shape[-1] ** 0.5
    return answer._replace(budget=answer.budget + 2 * UNIT[dtype_name(q)] * score * _largest(answer.exact))


def _floating(a: Any) -> bool:
    return (isinstance(a, np.ndarray) and a.dtype.kind == "f") or (hasattr(a, "detach") and a.is_floating_point())


def _tuple(x: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, x)) if isinstance(x, (tuple, list)) else (np.asarray(x),)


def _largest(x: np.ndarray) -> float:
    size = np.abs(np.asarray(x, dtype=np.longdouble))
    size = size[np.isfinite(size)]
    return float(size.max()) if size.size else 0.0
