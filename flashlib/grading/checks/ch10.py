"""Chapter 10, decoding: what its exercises are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flashlib.algorithms.reference import attention
from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import Answer, expect
from flashlib.grading.inputs import draw, rival
from flashlib.grading.judge import both, exact, linear_memory, matches
from flashlib.grading.mistakes import ch10 as gallery
from flashlib.grading.mistakes import ch10_heads, ch10_lengths
from flashlib.grading.rounding import to_numpy

STEPS = ("softmax", "log_softmax", "logsumexp", "logaddexp", "softmin", "logcumsumexp", "_softmax", "_log_softmax")
MANY = 311  # keys or parts: a prime, so that no block divides it


def _o_and_lse(oracle: Callable[..., Any], args: tuple[Any, ...], longest: int, **more: Any) -> list[Answer]:
    """Answers of ``oracle``, which returns o and lse, with room for the weights exp(s − lse) of an lse that is rounded:
    then all weights of a row are off by the same factor, however small the other errors are."""

    def rounded(*moved: Any) -> tuple[Any, Any]:
        o, lse = oracle(*moved[:-1])
        with np.errstate(invalid="ignore"):
            off = np.where(np.isfinite(lse), lse * (moved[-1] - 1), 0)
        return o * np.exp(off)[..., None], lse + off

    ones = np.ones(oracle(*(to_numpy(a) if hasattr(a, "detach") else a for a in args))[1].shape)
    return expect(("o", "lse"), rounded, (*args, ones), longest=longest, **more)


def _best_last(q: Any, k: Any) -> None:
    """Make the last key (in place) one that query 0 likes better than all others, by a fifth."""
    rival(q, k, 0, k.shape[-2] - 1)
    k[..., -1, :] *= 1.2


# -- 10.1 ----------------------------------------------------------------------------------------------------------
def _part(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    done = attention(q, k, v, scale=scale, precision=q.dtype)
    return done.o, done.lse


def _part_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(
        name: str, R: int, n: int, D: int, Dv: int, scale: float | None = None, rise=0.0, last=False, **more: Any
    ) -> Case:
        """``rise``: every row's scores rise from −rise to rise along the keys; or fall, below 0. ``last``: the last key
        brings row 0 a new maximum."""
        x = draw(int(rng.integers(1 << 30)), 1, 1, 1, R, n, D, Dv, library="torch", **more)
        if rise:
            x.q[..., 0], x.k[..., 0] = D**0.5, torch.linspace(-rise, rise, n)
        if last:
            _best_last(x.q, x.k)
        args = x.q[0, 0], x.k[0, 0], x.v[0, 0], D**-0.5 if scale is None else scale
        wide = "float64" if more.get("dtype") == "float64" else "float32"
        axes = [("row", "column"), ("row",)]
        return Case(name, args, matches(*_o_and_lse(_part, args, n + D, dtype=wide, axes=axes)))

    yield one("one row, two keys", 1, 2, 4, 3 + a)
    yield one("four rows", 4, 11 + a, 8, 6)
    yield one("scale = 0.37", 5, 9 + a, 6, 7, scale=0.37, spread=2.0)
    yield one("scores near ±120", 7, 13, 10 + a, 6, offset=120)
    yield one("one row near 0, one near 120", 2, 12, 10 + a, 7, offset=120)
    yield one("scores that rise from −150 to 150", 5, 12 + a, 9, 6, rise=150.0)
    yield one("scores that fall from 150 to −150", 6, 11 + a, 8, 5, rise=-150.0)
    yield one("no keys", 3 + a, 0, 6, 5)
    yield one(f"many keys: {MANY}", 5, MANY, 8, 6 + a, rise=8.0, last=True)
    yield one("float16 in, float32 out", 6, 17 + a, 16, 5, scale=0.37, dtype="float16")  # no power of two: it rounds
    yield one("no keys, float16", 4, 0, 6 + a, 5, dtype="float16")
    yield one("no keys, float64", 3, 0, 5, 6 + a, dtype="float64")
    yield one("float64 in, float64 out", 5, 12 + a, 7, 6, dtype="float64")


# -- 10.2 ----------------------------------------------------------------------------------------------------------
def _merge(o: np.ndarray, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m = lse.max(0)
    m = np.where(np.isneginf(m), 0, m)
    weight = np.exp(lse - m)
    l = weight.sum(0)
    with np.errstate(divide="ignore"):
        return (weight[..., None] * o).sum(0) / np.where(l == 0, 1, l)[..., None], m + np.log(l)


def _merge_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(
        name: str, P: int, R: int, Dv: int, *, shift: float = 0.0, empty=(), dtype: str = "float32", up: float = 0.0
    ) -> Case:
        """``empty``: (part, row) pairs without any key; rows lie ``shift`` up or down, or every second ``up``."""
        lse = 2 * rng.standard_normal((P, R)) + rng.permuted(np.tile(-3.0 * np.arange(P)[:, None], R), axis=0)
        if P == MANY:  # rising, and the last is the largest
            lse = rng.standard_normal((P, R)) + np.linspace(0, 5, P)[:, None]
            lse[-1] = lse.max(0) + 1
        lse += np.resize([1.0, -1.0], R) * shift + np.resize([0.0, 1.0], R) * up
        o = rng.standard_normal((P, R, Dv))
        o[..., -1] = 1
        for part, row in empty:
            lse[part, row], o[part, row] = -np.inf, 0
        args = tuple(torch.from_numpy(x).to(getattr(torch, dtype)) for x in (o, lse))
        axes = [("row", "column"), ("row",)]
        # a sum of P terms, each rounded four times: the difference, exp, the product, the quotient
        return Case(name, args, matches(*_o_and_lse(_merge, args, P + 4, axes=axes)))

    P = 9 + a
    most = [(p, r) for p in range(P) for r in range(5) if (p * 5 + r) % 4]
    yield one("two parts of one row", 2, 1, 4 + a)
    yield one("five parts", 5, 4 + a, 6)
    yield one("lse near ±1000", 4, 5 + a, 7, shift=1000)
    yield one("some parts are empty", 4, 6, 5 + a, empty=[(0, 0), (3, 2), (1, 3), (2, 3), (1, 5)])
    yield one("lse near 0, and near 200", 4, 4 + a, 6, up=200)
    yield one("a row whose parts are all empty", 3, 4 + a, 6, empty=[(0, 2), (1, 2), (2, 2), (1, 0)])
    yield one("one part", 1, 3 + a, 5, shift=3)
    yield one(f"{P} parts, most of them empty", P, 5, 6, shift=200, empty=most)
    yield one("no row has any key", 3, 2 + a, 4, empty=[(p, r) for p in range(3) for r in range(2 + a)])
    yield one(f"many parts: {MANY}", MANY, 3, 4 + a)
    yield one("float64 in, float64 out", 6, 4, 5 + a, shift=30, empty=[(1, 1)], dtype="float64")


# -- 10.3 ----------------------------------------------------------------------------------------------------------
def _step_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(name: str, B: int, Hq: int, Hkv: int, S: int, D: int, Dv: int, **more: Any) -> Case:
        x = draw(int(rng.integers(1 << 30)), B, Hkv, Hkv, Hq // Hkv, S, D, Dv, library="torch", **more)
        if S == MANY:
            x.q[..., 0] = D**0.5  # every row's scores rise
            _best_last(x.q, x.k)
        q = x.q.reshape(B, Hq, 1, D)  # drawn as the rows of one head, of which every third is shifted up, or down
        judge = exact(lambda: Problem(q, x.k, x.v), "o", "lse", library="torch")
        return Case(name, (q, x.k, x.v), judge)

    yield one("2 query heads on 1", 1, 2, 1, 7 + a, 6, 5)
    yield one("a key head for each query head", 2, 3, 3, 9 + a, 6, 5)
    yield one("4 query heads on 2", 1, 4, 2, 11 + a, 8, 6)
    yield one("6 query heads on 2, two sequences", 2, 6, 2, 13, 8 + a, 7)
    yield one("6 query heads on 3, three sequences", 3, 6, 3, 8 + a, 9, 5)
    yield one("scores near ±120", 2, 6, 2, 12 + a, 10, 6, offset=120)
    yield one("one row near 0, one near 120", 1, 4, 2, 11, 8 + a, 7, offset=120)
    yield one("float64 in, float64 out", 2, 6, 3, 10 + a, 7, 5, dtype="float64")
    yield one("one key", 2, 4, 2, 1, 5 + a, 7)
    yield one(f"many keys: {MANY}", 1, 4, 2, MANY, 8, 6 + a)
    B, Hq, Hkv, S, D, Dv = 2, 8, 2, 23 + a, 12, 10
    case = one("K and V are read once for all heads of a group", B, Hq, Hkv, S, D, Dv)
    once = B * Hkv * S * (D + Dv)
    read = _read_once(once, B * Hq * (D + S))
    own = _own_keys_alone(2 * B * Hq * S * (D + Dv))
    yield replace(case, judge=both(case.judge, read, own), how="matmuls", measured=True)
    D, sizes = 64, (64, 128)
    calls = [tuple(draw(seed, 1, 8, 2, 1, n, D, library="torch")[:3]) for n in sizes]
    # per key: four rows of 8 scores (s, P, two on the way); per call: q scaled, q packed and o, three times
    judge = linear_memory(lambda n: 2.0 * 4 * (4 * 8 * n + 3 * 8 * D), "scores and outputs of all heads, twice over,")
    options = {"calls": calls, "n": sizes, "library": "torch"}
    yield Case("no copy of K or V", calls[0], judge, how="growth", options=options, measured=True)


def _read_once(once: int, besides: int) -> Judge:
    """The products read K and V, ``once`` numbers, one time and not twice; ``besides`` are q and P."""

    def judge(outcome: Outcome) -> Finding:
        read = outcome.measures["operands"]
        says = ""
        if read < once:
            says = (
                f"Its matrix products read {read:,} numbers, and K and V alone are {once:,}: some of the work is done "
                "without a matrix product, in which rows could share a key."
            )
        elif read > besides + 1.5 * once:
            says = (
                f"Its matrix products read {read:,} numbers. K and V are {once:,}, q and P {besides:,}: the same keys "
                "are read more than once."
            )
        return Finding(not says, float(read), 0.0 if says else float(besides + 1.5 * once), result="reads", says=says)

    return judge


def _own_keys_alone(flops: int) -> Judge:
    """The products do no more than ``flops``, a quarter allowed on top: no query meets another group's keys."""

    def judge(outcome: Outcome) -> Finding:
        done = outcome.measures["flops"]
        says = ""
        if done > 1.25 * flops:
            says = (
                f"Its matrix products do {done:,} FLOP; {flops:,} are enough for every query head to meet the keys of "
                "its own key head."
            )
        return Finding(not says, float(done), 0.0 if says else 1.25 * flops, result="flops", says=says)

    return judge


# -- 10.4 ----------------------------------------------------------------------------------------------------------
def _ragged(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: Any) -> tuple[np.ndarray, np.ndarray]:
    o = np.zeros((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    lse = np.full(q.shape[:-1], -np.inf, dtype=q.dtype)
    for b, n in enumerate(lengths.tolist()):
        done = attention(q[b], k[b, :, :n], v[b, :, :n], precision=q.dtype)
        o[b], lse[b] = done.o, done.lse
    return o, lse


def _ragged_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(
        name: str, lengths: list[int], S: int, H: int, D: int, Dv: int, *, left: Any = None, ints=torch.int64,
        held: bool = False, **more: Any,
    ) -> Case:  # fmt: skip
        """``left``: what lies past a sequence's end in K and V; by default keys and values of somebody else.
        ``held``: a key of sequence 0 and a value of sequence 1 hold NaN before the end."""
        B = len(lengths)
        q, k, v, _ = draw(int(rng.integers(1 << 30)), B, H, H, B, S, D, Dv, library="torch", **more)
        q = q[torch.arange(B), :, torch.arange(B), None]  # row b for sequence b: every third is shifted up, or down
        if S == MANY:
            q[..., 0] = D**0.5  # every row's scores rise
            _best_last(q[:1], k[:1])
        for b, n in enumerate(lengths):
            k[b, :, n:], v[b, :, n:] = (3 * k[b, :, n:], 5 + v[b, :, n:]) if left is None else left
        if held:
            k[0, 1, 2, 0] = v[1, 0, 3, 2] = torch.nan
        args = q, k, v, torch.tensor(lengths, dtype=ints)
        axes = [("batch", "head", "row", "column"), ("batch", "head", "row")]
        return Case(name, args, matches(*_o_and_lse(_ragged, args, S + D, axes=axes)))

    nan, inf = torch.nan, torch.inf
    yield one("one full sequence", [7 + a], 7 + a, 2, 6, 5)
    yield one("lengths 11, 3, 7; old keys past the end", [11, 3, 7], 11, 2, 6 + a, 5)
    yield one("lengths 1 and 9, room for 12", [1, 9], 12, 3, 8, 5 + a)
    yield one("as many sequences as heads", [5, 2, 8 + a], 8 + a, 3, 6, 5)
    yield one("a sequence of length 0", [6, 0, 9], 9, 2, 7, 5 + a)
    yield one("NaN past the end", [8, 0, 13, 5], 13, 2, 6, 5 + a, left=(nan, nan))
    yield one("inf past the end", [4, 10, 6], 10, 3, 6 + a, 5, left=(inf, -inf))
    yield one("NaN that sequences 0 and 1 do hold", [7, 6, 9], 9, 2, 6, 4 + a, left=(nan, nan), held=True)
    yield one("scores near ±120", [9, 12, 4, 7], 12, 3, 10, 6 + a, offset=120)  # the row at −120 has hidden keys
    yield one("scores near 0, and near 120", [10, 7], 10, 2, 9, 5 + a, offset=120)
    yield one("lengths are int32, NaN past the end", [3, 8 + a], 8 + a, 2, 6, 5, left=(nan, nan), ints=torch.int32)
    yield one("one head", [4, 0, 6 + a], 7 + a, 1, 6, 5, left=(nan, nan))
    yield one(f"many keys: room for {MANY}", [MANY, 101, 0], MANY, 2, 8, 5 + a, left=(nan, inf))
    yield one("all of length 0", [0, 0], 5, 2, 6, 4 + a, left=(nan, nan))
    yield one("float64 in, float64 out", [5, 0, 7], 8, 2, 6 + a, 5, left=(nan, inf), dtype="float64")


EXERCISES = [
    Exercise("10.1", "one part of the keys", "attend_part", _part_cases, lambda: gallery.PART, STEPS),
    Exercise("10.2", "merge by lse", "merge", _merge_cases, lambda: gallery.MERGE, STEPS),
    Exercise("10.3", "pack a group's heads", "decode_step", _step_cases, lambda: ch10_heads.STEP),
    Exercise("10.4", "ragged lengths", "decode_ragged", _ragged_cases, lambda: ch10_lengths.RAGGED),
]
