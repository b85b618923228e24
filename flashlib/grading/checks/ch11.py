"""Chapter 11, beyond one GPU: what its exercises are tried on. One head, one process, lists in place of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.expected import beside_lse, expect, value
from flashlib.grading.inputs import draw
from flashlib.grading.judge import both, matches, products_of_tiles
from flashlib.grading.mistakes import ch11 as gallery
from flashlib.grading.mistakes import ch11_ring

FORBIDDEN = ("softmax", "log_softmax", "logsumexp", "logaddexp", "logaddexp2", "softmin", "logcumsumexp", "decode")


def _head(rng: np.random.Generator, n: int, D: int, Dv: int, rise: float = 0.0, **more: Any) -> tuple[Any, Any, Any]:
    """q (n, D), k (n, D), v (n, Dv) of a whole sequence; every row's scores rise from −rise to rise along the keys."""
    x = draw(int(rng.integers(1 << 30)), 1, 1, 1, n, n, D, Dv, library="torch", **more)
    q, k, v = x.q[0, 0], x.k[0, 0], x.v[0, 0]
    if rise:
        q[:, 0], k[:, 0] = D**0.5, torch.linspace(-rise, rise, n)
    return q, k, v


def _part(q, k, v, q_start, k_start):
    """o and lse of these rows over these keys, causal by position; 0 and −∞ where nothing is seen."""
    s = q @ k.T / np.sqrt(np.longdouble(q.shape[1]))
    see = k_start + np.arange(len(k)) <= q_start + np.arange(len(q))[:, None]
    s = np.where(see, s, -np.inf)
    m = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return p @ v / np.where(l == 0, 1, l), (m + np.log(l))[:, 0]


def _meets(order: list[list[int]], what: str) -> Judge:
    """The blocks that the rows r met are order[r], one at a time, however often it went round; none if it is empty.

    Nothing is judged where no meeting was seen but some were expected: numbers can be multiplied outside of torch.
    """

    def judge(outcome: Outcome) -> Finding:
        for r, (met, wanted) in enumerate(zip(outcome.measures["met"], order, strict=True)):
            joined = next((m for m in met if len(m) > 1), None)
            got = [b for m in met for b in m]
            if joined:
                says = f"{what.format(r)} meet the keys of ranks {_and(joined)} at once; one block is with a rank."
            elif not wanted and got:
                says = f"{what.format(r)} meet the keys of a block of which no row may see anything."
            elif got != wanted * (len(got) // max(len(wanted), 1)):
                says = f"{what.format(r)} meet the blocks of ranks {_and(got)}, in this order; the ring brings "
                says += f"{_and(wanted)}."
            else:
                continue
            return Finding(False, 1.0, 0.0, result="joined" if joined else "met", says=says)
        return Finding(True, 0.0, 0.0, result="met")

    return judge


def _and(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


# -- 11.1 ----------------------------------------------------------------------------------------------------------
def _ring_step(q, k, v, o, lse, q_start, k_start):
    part_o, part_lse = _part(q, k, v, q_start, k_start)
    m = np.maximum(lse, part_lse)
    safe = np.where(np.isneginf(m), 0, m)
    a, b = np.exp(lse - safe)[:, None], np.exp(part_lse - safe)[:, None]
    total = a + b
    with np.errstate(divide="ignore"):
        return (a * o + b * part_o) / np.where(total == 0, 1, total), m + np.log(total)[:, 0]


def _step_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    axes = [("row", "column"), ("row",)]

    def one(name, rows, keys, before, *, future=False, S=40, D=9, Dv=6, **more):
        """``rows``, ``keys`` and ``before``, what was seen already, are spans of positions."""
        q, k, v = _head(rng, S, D, Dv, **more)
        q, (k0, k1), (b0, b1) = q[rows[0] : rows[1]], keys, before
        own, seen, values = (x.numpy().astype(np.longdouble) for x in (q, k[b0:b1], v[b0:b1]))
        part = _part(own, seen, values, rows[0], b0)
        state = (torch.from_numpy(x.astype(np.float64)).to(q.dtype) for x in part)
        args = tuple(x.clone() for x in (q, k[k0:k1], v[k0:k1], *state))
        args += (rows[0], k0)
        judge = matches(*expect(("o", "lse"), _ring_step, args, longest=k1 - k0 + D + 2, axes=axes))
        if future:
            judge = both(judge, _meets([[]], "The queries"))
        return Case(name, args, judge, how="meetings" if future else "call", measured=future)

    a = int(rng.integers(4))
    yield one("the own block, nothing seen before", (8, 14 + a), (8, 14 + a), (0, 0))
    yield one("a block of the past", (20, 27), (6, 15 + a), (20, 27))
    yield one("a block of the future changes nothing", (6, 12 + a), (20, 27), (6, 12 + a))
    yield one("a block that begins among the own rows", (10, 19), (13, 19 + a), (0, 10))
    yield one("a block that ends beyond the own rows", (10, 16), (4, 18 + a), (0, 4))
    yield one("the own block after another", (9, 17 + a), (9, 17 + a), (2, 9))
    yield one("a block that only the last row sees", (11, 17 + a), (16 + a, 23), (11, 16))
    yield one("some rows have seen nothing and see nothing", (4, 11), (7, 13 + a), (0, 0))
    yield one("some rows have seen something, others nothing", (4, 11), (0, 5 + a), (7, 10))
    yield one("a block of the future, nothing seen before", (3, 8 + a), (21, 28), (0, 0))
    yield one("one row, one key", (5 + a, 6 + a), (5 + a, 6 + a), (0, 5))
    yield one("scores that rise from −150 to 150: the block weighs more", (28, 37), (15, 25 + a), (0, 12), rise=150)
    yield one("scores that fall from 150 to −150: the state weighs more", (28, 37), (15, 25 + a), (0, 12), rise=-150)
    yield one("scores near ±120", (18, 27), (12, 24 + a), (0, 12), D=12, offset=120)
    yield one("float64 in, float64 out", (10, 17), (8, 15 + a), (0, 8), dtype="float64")
    yield one("a block of the future is not multiplied", (4 + a, 11 + a), (11 + a, 19), (0, 4), future=True)


# -- 11.2 ----------------------------------------------------------------------------------------------------------
def _layout_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, rank, world, chunk):
        S = 2 * world * chunk
        mine = np.arange(S).reshape(2 * world, chunk)[[rank, 2 * world - 1 - rank]].reshape(-1)
        others = [[(rank - t) % world, 2 * world - 1 - (rank - t) % world] for t in range(world)]
        keys = [np.arange(S).reshape(2 * world, chunk)[chunks].reshape(-1) for chunks in others]
        pairs = [int((k <= mine[:, None]).sum()) for k in keys]
        right = [
            value(what, x, whole=True)._replace(axes=(axis,))
            for what, x, axis in (("positions", mine, "place"), ("pairs", pairs, "step"))
        ]
        return Case(f"{name}, S = {S}", (rank, world, S), matches(*right))

    a = int(rng.integers(3))
    yield one("the first of 2 ranks", 0, 2, 3 + a)
    yield one("the last of 2 ranks", 1, 2, 5 + a)
    yield one("rank 1 of 3", 1, 3, 4 + a)
    yield one("the first of 4", 0, 4, 3 + a)
    yield one("rank 2 of 4", 2, 4, 3 + a)
    yield one("the last of 5", 4, 5, 2 + a)
    yield one("chunks of one position, rank 2 of 5", 2, 5, 1)
    yield one("one rank alone", 0, 1, 4 + a)


# -- 11.3 ----------------------------------------------------------------------------------------------------------
def _ring_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, lengths, D=8, Dv=5, *, tiles=False, gaps=False, **more):
        q, k, v = _head(rng, sum(lengths), D, Dv, **more)
        R, at = len(lengths), np.cumsum((0, *lengths))
        names = [f"o of rank {r}" for r in range(R)]

        def parts(q, k, v):
            o = _part(q, k, v, len(k), 0)[0]  # so many positions later nothing is hidden
            return [o[i:j] for i, j in zip(at, at[1:], strict=False)]

        axes = [("row", "column")] * R
        whose = [[(r - t) % R for r in range(R)] for t in range(R)]
        size = [n * (D + Dv) * q.element_size() for n in lengths]
        sent = [sum(size[b] for b in column[: R - 1]) for column in zip(*whose, strict=True)]
        counted = [
            value(what, x, whole=True)._replace(axes=axis)
            for what, x, axis in (("whose", whose, ("step", "rank")), ("sent", sent, ("rank",)))
        ]
        outputs = expect(names, parts, (q, k, v), longest=len(k) + D, axes=axes)
        judge = matches(*(beside_lse(a, q, k) for a in outputs), *counted)
        if tiles:
            most = max(*lengths, D, Dv)
            small = products_of_tiles(most, most, f"blocks of {most} rows and keys at most")
            order = [list(column) for column in zip(*whose, strict=True)]
            judge = both(judge, small, _meets(order, "The queries of rank {}"))
        if gaps:  # keys and values are the columns of one tensor: its storage is larger than they are
            k, v = torch.cat([k, v], 1).split([D, Dv], 1)
        args = tuple([x[i:j] for i, j in zip(at, at[1:], strict=False)] for x in (q, k, v))
        return Case(name, args, judge, how="meetings" if tiles else "call", measured=tiles)

    a = int(rng.integers(3))
    yield one("2 ranks", (5 + a, 5 + a))
    yield one("3 ranks, equal blocks", (6 + a,) * 3)
    yield one("4 ranks, blocks of different lengths", (5, 9, 3 + a, 7), 10, 6, gaps=True)
    yield one("5 ranks, one position with rank 3", (4, 6 + a, 3, 1, 5), 7, 9)
    yield one("one rank alone sends nothing", (9 + a,))
    yield one("scores near ±120", (7, 5 + a, 9), 12, 6, offset=120)
    yield one("scores that rise from −150 to 150", (6 + a, 8, 5), rise=150)
    yield one("float64 in, float64 out", (3, 6, 4 + a), 6, 4, dtype="float64")
    yield one("a query meets one block at a time", (12, 11 + a, 13, 9), tiles=True)


EXERCISES = [
    Exercise(
        "11.1", "one ring step", "ring_step", _step_cases, lambda: gallery.RING_STEP, FORBIDDEN,
        may_change=("argument 4", "argument 5"),
    ),
    Exercise("11.2", "a balanced layout", "balanced_layout", _layout_cases, lambda: gallery.LAYOUT),
    Exercise("11.3", "where the blocks travel", "ring", _ring_cases, lambda: ch11_ring.RING, FORBIDDEN),
]  # fmt: skip
