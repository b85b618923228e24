"""Chapter 01, naive attention: what its exercises are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from flashlib.algorithms.masks import visible
from flashlib.grading.case import Case, Exercise
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect, value
from flashlib.grading.inputs import draw
from flashlib.grading.judge import exact, matches
from flashlib.grading.mistakes import ch01 as gallery
from flashlib.grading.mistakes import ch01_heads
from flashlib.grading.mistakes import ch01_masks as masks

_SOFTMAX = ("softmax", "log_softmax", "logsumexp")


def _softmax(s):
    m = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = e.sum(-1, keepdims=True)
    return e / np.where(l == 0, 1, l)


def _sizes(seed: int, n: int) -> list[int]:
    """n different sizes from 5 to 24, none of them a power of two."""
    some = [x for x in range(5, 25) if x & (x - 1)]
    return [int(x) for x in np.random.default_rng(seed).permutation(some)[:n]]


# -- 01.1 ----------------------------------------------------------------------------------------------------------
def _softmax_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    rows, keys, more = _sizes(seed, 3)
    s = rng.standard_normal((rows, keys)) * 3
    rise = np.linspace(-1, 1, rows)[:, None]
    some = np.where(rng.random((rows, keys)) < 0.4, -np.inf, s)
    some[:, -1] = s[:, -1]  # no row is empty
    empty = some.copy()
    empty[[1, rows - 1]] = -np.inf
    for name, x in (
        (f"each row by itself, {rows} × {keys}", s),
        ("scores near +10 000", s + 1e4),
        ("scores near −10 000", s - 1e4),
        ("one score 3000 above the rest of its row", np.where(np.arange(keys) == 2, s + 3000, s)),
        ("one score 1000 below the rest of its row", np.where(np.arange(keys) == 2, s - 1000, s)),
        ("rows far apart, from −2000 to 2000", s + 2000 * rise),
        ("some scores are −∞", some),
        ("some scores are −∞, the others near −10 000", some - 1e4),
        ("a row of −∞ gives zeros", empty),
        ("four axes: rows lie along the last", rng.standard_normal((2, 3, more, keys)) * 3),
        ("float32 in, float32 out", (s + 200 * rise).astype(np.float32)),
    ):
        yield Case(name, (x,), matches(*expect("p", _softmax, (x,), longest=keys, axes=[_LAST[-x.ndim :]])))


_LAST = ("batch", "head", "row", "key")


# -- 01.2 ----------------------------------------------------------------------------------------------------------
def _four_steps(q, k, v):
    s = q @ k.T / np.sqrt(np.longdouble(q.shape[1]))
    p = _softmax(s)
    return s, p, p @ v


def _one_head(seed: int, Sq: int, Sk: int, D: int, Dv: int, **how) -> list[np.ndarray]:
    drawn = draw(seed, B=1, Hq=1, Hkv=1, Sq=Sq, Sk=Sk, D=D, Dv=Dv, **{"dtype": "float64", **how})
    return [x[0, 0] for x in drawn[:3]]


def _four_steps_cases(seed: int) -> Iterator[Case]:
    N, Sq, Sk, D, Dv = _sizes(seed, 5)
    axes = [("row", "key"), ("row", "key"), ("row", "feature")]
    for name, qkv in (
        (f"exact, N = {N}, D = {D}", _one_head(seed, N, N, D, D)),
        (f"Sq = {Sq}, Sk = {Sk}, D = {D}, Dv = {Dv}", _one_head(seed + 1, Sq, Sk, D, Dv)),
        (f"as many features in v as queries: {Sq}", _one_head(seed + 4, Sq, Sk, D, Sq)),
        ("rows of scores near ±800", _one_head(seed + 2, Sq, Sk, D, Dv, offset=800.0)),
        ("float32 in, float32 out", _one_head(seed + 3, Sq, Sk, D, Dv, offset=120.0, dtype="float32")),
    ):
        longest = max(qkv[0].shape[1], len(qkv[1]))
        yield Case(name, tuple(qkv), matches(*expect(("s", "p", "o"), _four_steps, qkv, longest=longest, axes=axes)))


# -- 01.3 ----------------------------------------------------------------------------------------------------------
def _mask_cases(seed: int) -> Iterator[Case]:
    N, a, b = _sizes(seed, 3)
    low, high = sorted((a, b))
    for name, Sq, Sk in (
        (f"square, Sq = Sk = {N}", N, N),
        ("more keys: Sq = 2, Sk = 5", 2, 5),
        (f"one query, Sk = {N}", 1, N),
        ("more queries: Sq = 5, Sk = 2", 5, 2),
        (f"Sq = {low}, Sk = {high}", low, high),
        (f"Sq = {high}, Sk = {low}", high, low),
    ):
        right = value("see", visible(Sq, Sk, causal=True), dtype="bool", library="numpy")
        yield Case(name, (Sq, Sk), matches(right._replace(axes=("row", "key"))))


# -- 01.4 ----------------------------------------------------------------------------------------------------------
def _masked(q, k, v, see):
    s = np.where(see, q @ k.T / np.sqrt(np.longdouble(q.shape[1])), -np.inf)
    return _softmax(s) @ v


def _masked_cases(seed: int) -> Iterator[Case]:
    N, a, b, D, Dv = _sizes(seed, 5)
    low, high = sorted((a, b))
    rng = np.random.default_rng(seed)
    random = rng.random((low, high)) < 0.5
    random[:, 1] = True  # no row is empty
    constant = [np.full((N, 16), 300.0), np.full((N, 16), -250.0), _one_head(seed, N, N, D, Dv)[2]]
    far = _one_head(seed, N, N, D, Dv)
    far[0][:, 1], far[1][:, 1] = 1, 0
    far[1][-1, 1] = 2000 * D**0.5  # the last key: its score is 2000 larger, and all rows but one must not see it
    causal = visible(N, N, causal=True)
    for name, qkv, see in (
        (f"every key is seen, Sq = {low}, Sk = {high}", _one_head(seed, low, high, D, Dv), np.ones((low, high), bool)),
        (f"causal, Sq = Sk = {N}", _one_head(seed + 1, N, N, D, Dv), causal),
        (f"causal, Sq = {low}, Sk = {high}", _one_head(seed + 2, low, high, D, Dv), visible(low, high, causal=True)),
        ("keys hidden at random", _one_head(seed + 3, low, high, D, Dv), random),
        ("rows that see no key give 0", _one_head(seed + 4, high, low, D, Dv), visible(high, low, causal=True)),
        ("rows of scores near ±800", _one_head(seed + 5, low, high, D, Dv, offset=800.0), random),
        ("scores of −300 000", constant, causal),
        ("a hidden score that is 2000 larger", far, causal),
        ("float32 in, float32 out", _one_head(seed + 6, low, high, D, Dv, offset=120.0, dtype="float32"), random),
    ):
        longest = max(qkv[0].shape[1], len(qkv[1]))
        right = expect("o", _masked, (*qkv, see), longest=longest, axes=[("row", "feature")])
        yield Case(name, (*qkv, see), matches(*right))


# -- 01.5 ----------------------------------------------------------------------------------------------------------
def _heads_cases(seed: int) -> Iterator[Case]:
    N, Sq, Sk, D, Dv = _sizes(seed, 5)
    for name, how in (
        ("one text, one head", {"B": 1, "Hq": 1, "Hkv": 1, "Sq": N, "Sk": N}),
        ("two texts, three heads, each with its own k and v", {"B": 2, "Hq": 3, "Hkv": 3}),
        ("grouped: Hq = 4, Hkv = 2", {"B": 1, "Hq": 4, "Hkv": 2}),
        ("grouped: B = 2, Hq = 6, Hkv = 2", {"B": 2, "Hq": 6, "Hkv": 2}),
        ("one KV head for all: Hq = 3, Hkv = 1", {"B": 1, "Hq": 3, "Hkv": 1}),
        ("rows of scores near ±800", {"B": 1, "Hq": 4, "Hkv": 2, "offset": 800.0}),
        ("float32 in, float32 out", {"B": 1, "Hq": 4, "Hkv": 2, "offset": 120.0, "dtype": "float32"}),
    ):
        seed += 1
        shape: dict[str, Any] = {"Sq": Sq, "Sk": Sk, "D": D, "Dv": Dv, "dtype": "float64", **how}
        qkv = draw(seed, **shape)[:3]
        yield Case(name, qkv, exact(partial(Problem, *qkv), "o"))


EXERCISES = [
    Exercise("01.1", "safe softmax", "softmax", _softmax_cases, lambda: gallery.SOFTMAX, forbidden=_SOFTMAX),
    Exercise("01.2", "four steps", "four_steps", _four_steps_cases, lambda: gallery.FOUR_STEPS, forbidden=_SOFTMAX),
    Exercise("01.3", "causal mask", "causal_mask", _mask_cases, lambda: masks.MASK, forbidden=("visible",)),
    Exercise("01.4", "masked attention", "masked_attention", _masked_cases, lambda: masks.MASKED, forbidden=_SOFTMAX),
    Exercise("01.5", "heads", "heads", _heads_cases, lambda: ch01_heads.HEADS, forbidden=_SOFTMAX),
]
