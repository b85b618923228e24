"""Chapter 12, other roads: what its exercises are tried on. One head, in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.expected import beside_lse, expect, value
from flashlib.grading.inputs import draw
from flashlib.grading.judge import both, linear_memory, matches, measured
from flashlib.grading.mistakes import ch12 as gallery
from flashlib.grading.mistakes import ch12_window

FORBIDDEN = ("softmax", "log_softmax", "logsumexp", "logaddexp", "logaddexp2", "softmin", "logcumsumexp")
FLEX = ("create_block_mask", "create_mask", "sliding_window")


def _see(Sq: int, Sk: int, width: int) -> np.ndarray:
    last, key = np.arange(Sq)[:, None] + (Sk - Sq), np.arange(Sk)
    return (key <= last) & (key > last - width)


# -- 12.1 ----------------------------------------------------------------------------------------------------------
def _mask_cases(seed: int) -> Iterator[Case]:
    a = int(np.random.default_rng(seed).integers(4))
    for name, Sq, Sk, width in (
        (f"square, Sq = Sk = {9 + a}, width 3", 9 + a, 9 + a, 3),
        ("width 1: its own key alone", 7 + a, 7 + a, 1),
        (f"more keys: Sq = 5, Sk = {11 + a}, width 4", 5, 11 + a, 4),
        (f"more queries: Sq = {12 + a}, Sk = 7, width 3", 12 + a, 7, 3),
        (f"one query, Sk = {13 + a}, width 6", 1, 13 + a, 6),
        ("wider than the keys: causal", 6, 8 + a, 30),
        (f"an even width, Sq = {10 + a}, Sk = 17", 10 + a, 17, 6),
        ("as wide as the keys", 9 + a, 9 + a, 9 + a),
    ):
        right = value("see", _see(Sq, Sk, width), dtype="bool", library="torch")
        yield Case(name, (Sq, Sk, width), matches(right._replace(axes=("row", "key"))))


# -- 12.2 ----------------------------------------------------------------------------------------------------------
def _touched(i0: int, Sq: int, Sk: int, width: int, block_q: int, block_k: int) -> tuple[int, int]:
    """By looking at every key of the mask."""
    keys = np.flatnonzero(_see(Sq, Sk, width)[i0 : i0 + block_q].any(0))
    return (int(keys[0]) // block_k, int(keys[-1]) // block_k + 1) if keys.size else (0, 0)


def _tiles_cases(seed: int) -> Iterator[Case]:
    a = int(np.random.default_rng(seed).integers(4))
    b = 5 + a  # keys of a tile; sizes below are such that edges fall where the names say, whatever b is
    for name, args in (
        ("the first rows", (0, 6 * b, 6 * b, b + 2, b - 2, b)),
        ("one row, a window within one tile", (b + 2, 4 * b, 4 * b, 2, 1, b)),
        ("in the middle", (2 * b + 2, 6 * b, 6 * b, b, b, b)),
        ("an edge of the tile that is no edge of a key tile", (3 * b - 2, 6 * b, 6 * b, b + 3, b, b)),
        ("the far edge is the first key of a tile", (4 * b, 7 * b, 7 * b, 2 * b + 1, b, b)),
        ("the far edge is the last key of a tile", (4 * b, 7 * b, 7 * b, 2 * b + 2, b, b)),
        ("the far edge is the second key of a tile", (4 * b, 7 * b, 7 * b, 2 * b, b, b)),
        ("the near edge is the last key of a tile", (2 * b, 7 * b, 7 * b, 3, 2 * b, b)),
        ("the near edge is the first key of a tile", (2 * b + 1, 7 * b, 7 * b, 3, b, b)),
        ("the near edge is the last but one", (2 * b - 1, 7 * b, 7 * b, 3, b, b)),
        ("tall tiles of rows", (6 * b, 9 * b, 9 * b, b + 3, 3 * b, b)),
        ("wide tiles of keys", (9 * b, 12 * b, 12 * b, b, b, 3 * b)),
        ("more keys than queries", (b, 3 * b, 8 * b + 3, b + 4, b, b)),
        ("a window wider than all rows", (0, 3, 7 * b + 2, 3 * b - 1, b, b)),
        ("the last rows, fewer than a tile, more keys", (2 * b, 2 * b + 3, 5 * b + 1, b - 1, b, b)),
        ("the last rows, fewer than a tile, last key tile full", (3 * b, 3 * b + 2, 4 * b, 2, b, b)),
        ("wider than all keys", (2 * b, 4 * b, 4 * b, 9 * b, b, b)),
        ("more queries than keys, all rows see some", (6 * b, 9 * b, 5 * b, b + 1, b, b)),
        ("more queries than keys, some rows see none", (3 * b, 8 * b, 4 * b + 2, 3, 2 * b, b)),
        ("more queries than keys, no row sees any", (b, 9 * b, 3 * b + 1, b, b, b)),
        ("the first row sees only key 0", (4 * b, 8 * b, 4 * b, b + 1, b, b)),
        ("the last row sees only key 0", (3 * b + 1, 8 * b, 4 * b, b, b, b)),
        ("one row, one key a tile", (3 * b, 6 * b, 6 * b + 2, 1, 1, 1)),
    ):
        first, stop = _touched(*args)
        i0, Sq, Sk, width, block_q, block_k = args
        full = f"{name}: i0={i0} Sq={Sq} Sk={Sk} width={width} tiles {block_q} × {block_k}"
        yield Case(full, args, matches(value("first", first, whole=True), value("stop", stop, whole=True)))


# -- 12.3 ----------------------------------------------------------------------------------------------------------
def _under(width: int):
    def attend(q, k, v):
        s = np.where(_see(len(q), len(k), width), q @ k.T / np.sqrt(np.longdouble(q.shape[1])), -np.inf)
        m = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(np.isneginf(m), 0, m))
        l = p.sum(-1, keepdims=True)
        return p @ v / np.where(l == 0, 1, l)

    return attend


def _head(rng: np.random.Generator, Sq: int, Sk: int, D: int, Dv: int, rise: float = 0.0, **more: Any):
    """q (Sq, D), k (Sk, D), v (Sk, Dv) as torch tensors; every row's scores rise from −rise to rise along the keys."""
    x = draw(int(rng.integers(1 << 30)), 1, 1, 1, Sq, Sk, D, Dv, library="torch", **more)
    q, k, v = x.q[0, 0], x.k[0, 0], x.v[0, 0]
    if rise:
        q[:, 0], k[:, 0] = D**0.5, torch.linspace(-rise, rise, Sk)
    return q, k, v


def _window_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, Sq, Sk, width, block_q, block_k, D=9, Dv=6, *, hidden=0, **more):
        q, k, v = _head(rng, Sq, Sk, D, Dv, **more)
        if hidden:  # feature 1 alone decides: key `hidden` is liked by every row, far more than all others
            q[:, 1], k[:, 1] = 1, 0
            k[hidden, 1] = 200 * D**0.5
        right = expect("o", _under(width), (q, k, v), longest=min(width, Sk) + D, axes=[("row", "column")])
        name, tile = f"{name}, Sq={Sq} Sk={Sk} width={width}", (block_q, block_k)
        return Case(name, (q, k, v, width, *tile), matches(*(beside_lse(a, q, k) for a in right)), tile=tile)

    def counted(Sq, Sk, width, block_q, block_k, D=8, Dv=5):
        case = one("only tiles that some row sees", Sq, Sk, width, block_q, block_k, D, Dv)
        right = ch12_window.tile_flops(Sq, Sk, D, Dv, width, block_q, block_k)
        flops = measured("flops", right, "FLOP in matrix products", ch12_window.FLOPS)
        return replace(case, judge=both(case.judge, flops), how="matmuls", measured=True)

    a = int(rng.integers(4))
    yield one("one tile", 8 + a, 8 + a, 3, 16, 16)
    yield one("full tiles", 24, 24, 7 + a, 6, 8)
    yield one("ragged", 29 + a, 29 + a, 11, 8, 6)
    yield one("width 1", 19, 19, 1, 5, 4 + a)
    yield one("narrower than a tile", 23 + a, 23 + a, 3, 7, 9)
    yield one("more keys than queries", 13, 34 + a, 9, 5, 6)
    yield one("a window wider than all rows", 4, 33 + a, 15, 3, 6)
    yield one("more queries than keys: rows see no key", 27 + a, 15, 6, 6, 4)
    yield one("wider than the keys", 17, 21 + a, 50, 6, 5)
    yield one("tall tiles", 31, 31 + a, 8, 16, 5)
    yield one("wide tiles", 26 + a, 33, 5, 4, 16)
    yield one("scores that rise from −150 to 150", 22 + a, 25, 12, 5, 4, rise=150)
    yield one("a hidden old score that is 200 larger", 21 + a, 21 + a, 6, 7, 5, hidden=4)
    yield one("a hidden later score that is 200 larger", 21 + a, 24 + a, 6, 7, 5, hidden=-1)
    yield one("scores near ±120", 23, 23 + a, 9, 6, 7, D=12, offset=120)
    yield one("scores near ±30 000, float64", 14 + a, 17, 5, 6, 4, offset=30000, dtype="float64")
    yield one("tiles of one row and one key", 9, 11 + a, 4, 1, 1)
    yield _memory(rng)
    yield counted(22, 30, 5, 8, 4)  # both edges lie between two tiles
    yield counted(15, 35, 4 + a, 5, 7)
    yield counted(20, 16, 6 + a, 5, 4)


def _memory(rng: np.random.Generator) -> Case:
    block_q, block_k, D, Dv, width = 128, 16, 2, 2, 40  # tall tiles: a whole row of tiles is more than the reserve
    sizes = (128, 640)
    calls = [(*_head(rng, n, n, D, Dv), width, block_q, block_k) for n in sizes]
    tiles = 4 * block_q * block_k + 3 * block_q * Dv + block_q * D + block_k * (D + Dv)
    # o, scaled copies of q and k, a copy of v and six columns; of one moment's tiles four of S, three of acc and the q,
    # k and v tile; all of it in float64, and twice, as a reserve
    limit = linear_memory(
        lambda n: 2 * 8 * (n * (2 * D + 2 * Dv + 6) + tiles), "o, copies and one moment's tiles, float64, twice over,"
    )
    operations = [40 * n * -(-n // block_k) for n in sizes]
    options = {"calls": calls, "n": sizes, "library": "torch", "operations": operations}
    return Case("memory grows as N, not as N²", calls[0], limit, how="growth", options=options, measured=True)


# -- 12.4 ----------------------------------------------------------------------------------------------------------
def _linear(q, k, v):
    fq, fk = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    weights = np.tril(fq @ fk.T)
    return weights @ v / weights.sum(-1, keepdims=True)


def _work_of_blocks(flops: int, touched: int) -> Judge:
    """Products and operations are no more than a program by blocks of 64 rows needs."""

    def judge(outcome: Outcome) -> Finding:
        needs = "blocks of 64 rows and a running state need"
        for name, most, text in (
            ("flops", flops, "Its products have {:,} FLOPs; {} {:,}."),
            ("touched", touched, "Its operations go over {:,} numbers, all together; {} {:,} at most."),
        ):
            got = outcome.measures[name]
            if got > most:
                return Finding(False, float(got - most), 0.0, result=name, says=text.format(got, needs, most))
        return Finding(True, 0.0, 0.0, result="flops")

    return judge


def _linear_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, N, D, Dv, *, dtype="float32", size=1.5, ones=0):
        q, k, v = (size * rng.standard_normal((N, d)) for d in (D, D, Dv))
        v[:, ones:1] = 1  # in column 0 a right row gives 1
        args = tuple(torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v))
        right = expect("o", _linear, args, longest=N + D, axes=[("row", "column")])
        return Case(name, args, matches(*right))

    a = int(rng.integers(4))
    yield one("two rows", 2, 3, 2)
    yield one(f"N = {11 + a}, D = 6, Dv = 4", 11 + a, 6, 4)
    yield one(f"N = {37 + a}, D = 7, Dv = 10", 37 + a, 7, 10, ones=1)
    yield one("N = D", 8 + a, 8 + a, 5, ones=1)
    yield one("queries and keys of size 6", 21 + a, 5, 6, size=6)
    yield one("one row", 1, 4, 3)
    yield one("float64 in, float64 out", 14 + a, 6, 5, dtype="float64")
    D, Dv, sizes = 16, 16, (64, 896)
    calls = [tuple(torch.from_numpy(rng.standard_normal((n, D))).float() for _ in range(3)) for n in sizes]
    limit = linear_memory(
        # o, four arrays like q or k on the way to φ, six columns, four states, twice, as a reserve; and what a block of
        # 64 rows has at a time: all products of its triangle and the triangle twice, or three times 64 states
        lambda n: 4 * (2 * (n * (Dv + 4 * D + 6) + 4 * D * Dv) + max(64 * 64 * (D + 2), 3 * 64 * D * Dv)),
        "o, φ(q), φ(k), as much again, twice over, and all that 64 rows",
    )
    options = {"calls": calls, "n": sizes, "library": "torch"}
    yield Case("memory grows as N, few states are kept", calls[0], limit, how="growth", options=options, measured=True)
    N, d, dv = 512, 4, 4
    case = one("work grows as N", N, d, dv)
    most = 2 * N * (64 * (d + dv) + 2 * d * (dv + 1))  # a triangle in blocks of 64 rows, and the state twice
    # a row of it number by number: 64 products with k and with v, each made and summed, and five times the weights;
    # and eight operations on its own state
    touched = N * (64 * (2 * (d + dv) + 5) + 8 * d * (dv + 1))
    yield replace(case, judge=both(case.judge, _work_of_blocks(most, touched)), how="matmuls", measured=True)


EXERCISES = [
    Exercise("12.1", "the window's mask", "window_mask", _mask_cases, lambda: gallery.MASK, FLEX),
    Exercise("12.2", "which tiles a window touches", "window_tiles", _tiles_cases, lambda: gallery.TILES, FLEX),
    Exercise(
        "12.3", "windowed attention, tiles skipped", "window_attention", _window_cases, lambda: ch12_window.WINDOW,
        (*FORBIDDEN, *FLEX),
    ),
    Exercise(
        "12.4", "linear attention by running sums", "linear_attention", _linear_cases, lambda: gallery.LINEAR, FORBIDDEN
    ),
]  # fmt: skip
