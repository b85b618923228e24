"""Chapter 04, tiled forward: what its exercises are tried on. One head, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.inputs import draw
from flashlib.grading.judge import both, exact, linear_memory, matches, measured, products_of_tiles
from flashlib.grading.mistakes import ch04 as gallery
from flashlib.grading.mistakes import ch04_causal as causal_gallery

FORBIDDEN = ("softmax", "log_softmax", "logsumexp", "logaddexp", "softmin", "logcumsumexp")


def _head(
    rng: np.random.Generator, Sq: int, Sk: int, D: int, Dv: int, rise: float = 0.0, **more: Any
) -> tuple[Any, Any, Any]:
    """q (Sq, D), k (Sk, D), v (Sk, Dv) as torch tensors; every row's scores rise from −rise to rise along the keys."""
    x = draw(int(rng.integers(1 << 30)), 1, 1, 1, Sq, Sk, D, Dv, library="torch", **more)
    q, k, v = x.q[0, 0], x.k[0, 0], x.v[0, 0]
    if rise:
        q[:, 0], k[:, 0] = D**0.5, torch.linspace(-rise, rise, Sk)
    return q, k, v


def _room(block_q: int, block_k: int, D: int, Dv: int, item: int = 4) -> Callable[[int], float]:
    """Bytes that a right program may need for N queries and N keys: o, scaled copies of q and k, a copy of v and six
    columns; of one moment's tiles four of S, three of acc and the q, k and v tile; all of it twice, as a reserve."""
    tiles = 4 * block_q * block_k + 3 * block_q * Dv + block_q * D + block_k * (D + Dv)
    return lambda n: 2 * item * (n * (2 * D + 2 * Dv + 6) + tiles)


def _memory(rng: np.random.Generator, sizes: tuple[int, ...], *more: Any) -> Case:
    block_q, block_k, D, Dv = 128, 16, 2, 2  # tall tiles, so that a whole row of tiles is more than the reserve
    calls = [(*_head(rng, n, n, D, Dv), block_q, block_k, *more) for n in sizes]
    operations = [20 * n * -(-n // block_k) for n in sizes]  # twenty for every row of every key tile
    return Case(
        "memory grows as N, not as N²", calls[0],
        linear_memory(_room(block_q, block_k, D, Dv), "o, the row state and one moment's tiles, twice over,"),
        how="growth", options={"calls": calls, "n": sizes, "library": "torch", "operations": operations},
        measured=True,
    )  # fmt: skip


# -- 04.1 ----------------------------------------------------------------------------------------------------------
def _one_tile(q, k, v, m, l, acc):
    s = q @ k.T / np.sqrt(np.longdouble(q.shape[1]))
    m_new = np.maximum(m, s.max(-1, keepdims=True))
    p, shrink = np.exp(s - m_new), np.exp(m - m_new)
    return m_new, shrink * l + p.sum(-1, keepdims=True), shrink * acc + p @ v


def _tile_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, Br, Bc, D, Dv, *, before, falling=False, fresh=(), **more):
        q, k, v = _head(rng, Br, before + Bc, D, Dv, **more)
        if falling:
            k, v = k.flip(0), v.flip(0)
        nothing = np.full((Br, 1), -np.inf), np.zeros((Br, 1)), np.zeros((Br, Dv))
        rows, keys, values = (x.numpy().astype(np.longdouble) for x in (q, k[:before], v[:before]))
        state = _one_tile(rows, keys, values, *nothing) if before else nothing
        for x, start in zip(state, nothing, strict=True):
            x[list(fresh)] = start[list(fresh)]
        args = (q, k[before:], v[before:], *(torch.from_numpy(np.asarray(x, np.float64)).to(q.dtype) for x in state))
        axes = [("row", "column")] * 3
        answers = expect(("m", "l", "acc"), _one_tile, args, longest=before + Bc + D, axes=axes)
        return Case(name, tuple(a.clone() for a in args), matches(*answers))

    a = int(rng.integers(3))
    yield one("nothing seen before", 5 + a, 4, 6, 3, before=0)
    yield one("the maximum rises", 7, 5 + a, 8, 5, before=9)
    yield one("the maximum stays", 6 + a, 7, 10, 4, before=9, falling=True)
    yield one("some rows have seen nothing", 7 + a, 6, 8, 3, before=5, fresh=(1, 4))
    yield one("one row, one key", 1, 1, 3, 2, before=4 + a)
    yield one("scores near ±120", 9, 11, 12 + a, 6, before=13, offset=120)
    yield one("float64 in, float64 out", 5, 7, 6 + a, 5, before=6, dtype="float64")


# -- 04.2 and 04.3 -------------------------------------------------------------------------------------------------
def _forward(rng, name, tiles, D, Dv, block_q, block_k, *, rest=(0, 0), falling=False, **more):
    """``tiles`` (rows, columns) of tiles and ``rest`` rows and keys beyond them."""
    q, k, v = _head(rng, tiles[0] * block_q + rest[0], tiles[1] * block_k + rest[1], D, Dv, **more)
    if falling:
        k, v = k.flip(0), v.flip(0)
    judge = exact(lambda: Problem(q, k, v), "o", library="torch")
    return Case(name, (q, k, v, block_q, block_k), judge, tile=(block_q, block_k))


def _forward_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))
    yield _forward(rng, "one tile", (1, 1), 6, 5, 5 + a, 9)
    yield _forward(rng, "one row of tiles", (1, 4), 8, 5, 7, 6 + a)
    yield _forward(rng, "one column of tiles", (3, 1), 8, 7, 5 + a, 11)
    yield _forward(rng, "three by four tiles", (3, 4), 12, 10 + a, 7, 9)
    yield _forward(rng, "scores near ±120", (2, 3), 10, 6 + a, 9, 8, offset=120)
    yield _forward(rng, "maxima that fall by 100 and more", (2, 4), 10, 6, 5 + a, 4, falling=True, spread=100)
    yield _forward(rng, "scores that rise from −150 to 150", (2, 5), 10, 4 + a, 7, 6, rise=150)
    yield _forward(rng, "tiles of one row and one key", (5 + a, 11), 6, 4, 1, 1)
    yield _forward(rng, "float64 in, float64 out", (2, 3), 6 + a, 5, 6, 7, dtype="float64")
    yield _memory(rng, (128, 256))
    block_q, block_k = 12 + a, 7
    case = _forward(rng, "products of block_q rows and block_k keys", (3, 4), 6, 4, block_q, block_k)
    of_tiles = products_of_tiles(block_q, block_k, f"tiles of {block_q} × {block_k}")
    yield replace(case, judge=both(case.judge, of_tiles), how="matmuls", measured=True)


def _ragged_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(1, 5))
    yield _forward(rng, "full tiles", (2, 3), 8, 6, 5 + a, 7)
    yield _forward(rng, f"ragged keys: Sk = {24 + a} in tiles of 8", (2, 3), 10, 7, 6, 8, rest=(0, a))
    yield _forward(rng, f"ragged rows: Sq = {16 + a} in tiles of 8", (2, 3), 10, 7, 8, 6, rest=(a, 0))
    yield _forward(rng, "both ragged", (2, 3), 12, 9, 11, 7, rest=(a, 6 - a))
    yield _forward(rng, "ragged, scores near ±120", (1, 3), 10, 7, 9, 8, rest=(a, 8 - a), offset=120)
    yield _forward(rng, "fewer rows and keys than a tile", (0, 0), 6, 5, 16, 16, rest=(3 + a, 5 + a))
    yield _forward(rng, "one row, one key", (0, 0), 4, 3, 8, 8, rest=(1, 1))
    yield _forward(rng, "ragged, scores that rise from −150 to 150", (1, 4), 8, 6, 7, 6, rest=(a, 6 - a), rise=150)
    yield _forward(rng, "float64, scores near ±9000", (1, 2), 9, 5, 8, 9, rest=(a, 8 - a), offset=9000, dtype="float64")
    case = _forward(rng, "a real key and a real query of zeros", (1, 2), 8, 6, 6, 8, rest=(a, 6 - a), spread=1)
    q, k, v = case.args[:3]
    k[[3, -1]], q[2] = 0, 0
    right = exact(lambda: Problem(q, k, v), "o", library="torch")
    yield replace(case, judge=right)
    yield _memory(rng, (131, 259))
    padded = _padded(2 * len(q) * len(k) * (q.shape[1] + v.shape[1]))
    yield replace(case, name="tiles are filled up", judge=both(right, padded), how="matmuls", measured=True)


def _padded(of_slices: int) -> Judge:
    """The products are not those of tiles that shrink at the edges."""

    def judge(outcome: Outcome) -> Finding:
        shrunk = outcome.measures["flops"] == of_slices
        says = f"Its products have {of_slices:,} FLOPs, those of Sq × Sk scores: its tiles shrink at the edges."
        return Finding(not shrunk, float(shrunk), 0.0, result="flops", says=says if shrunk else "")

    return judge


# -- 04.4 ----------------------------------------------------------------------------------------------------------
def _causal_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, Sq, Sk, D, Dv, block_q, block_k, *, counted=False, **more):
        q, k, v = _head(rng, Sq, Sk, D, Dv, **more)
        judge = exact(lambda: Problem(q, k, v, causal=True), "o", library="torch")
        if counted:
            right = causal_gallery.tile_flops(Sq, Sk, D, Dv, block_q, block_k)
            judge = both(judge, measured("flops", right, "FLOP in matrix products"))
        return Case(
            f"{name}, Sq={Sq} Sk={Sk}", (q, k, v, block_q, block_k), judge,
            how="matmuls" if counted else "call", measured=counted, tile=(block_q, block_k),
        )  # fmt: skip

    def far():
        """The last key, which only the last row sees, has a score that is 200 larger."""
        case = one("a hidden score that is 200 larger", 14, 22 + a, 12, 5, 6, 7)
        q, k, v = case.args[:3]
        q[:, 1], k[:, 1] = 1, 0
        k[-1, 1] = 200 * 12**0.5
        return replace(case, judge=exact(lambda: Problem(q, k, v, causal=True), "o", library="torch"))

    a = int(rng.integers(4))
    yield one("one tile", 7 + a, 7 + a, 6, 5, 16, 16)
    yield one("square, full tiles", 24, 24, 8, 6 + a, 8, 6)
    yield one("more keys than queries", 12, 28, 10, 7 + a, 4, 7)
    yield one("ragged", 19 + a, 37, 12, 9, 6, 8)
    yield one("wide tiles", 23, 31 + a, 10, 7, 4, 16)
    yield one("tall tiles", 21 + a, 34, 10, 7, 16, 5)
    yield one("scores that rise from −150 to 150", 13, 29 + a, 10, 6, 5, 6, rise=150)
    yield far()
    yield one("scores near ±120", 13, 22 + a, 12, 5, 6, 7, offset=120)
    yield one("tiles of one row and one key", 7, 11 + a, 6, 4, 1, 1)
    yield one("only tiles that some row sees", 24, 40, 10, 6 + a, 8, 5, counted=True)
    yield one("only tiles that some row sees", 30, 30, 10, 6 + a, 5, 10, counted=True)
    yield _memory(rng, (128, 512))


# -- 04.5 ----------------------------------------------------------------------------------------------------------
def _flash_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, Sq, Sk, D, Dv, block_q, block_k, causal, **more):
        q, k, v = _head(rng, Sq, Sk, D, Dv, **more)
        judge = exact(lambda: Problem(q, k, v, causal=causal), "o", "lse", library="torch")
        return Case(name, (q, k, v, block_q, block_k, causal), judge, tile=(block_q, block_k))

    a = int(rng.integers(4))
    yield one("full, one tile", 6 + a, 9, 6, 5, 16, 16, False)
    yield one("full, ragged", 19, 33 + a, 10, 7, 8, 6, False)
    yield one(f"causal, Sq=13 Sk={29 + a}", 13, 29 + a, 10, 7, 6, 8, True)
    yield one("causal, Sq=5 Sk=2: three rows see no key", 5, 2, 8, 5, 2, 1, True)
    yield one(f"causal, Sq={31 + a} Sk=14: rows see no key within a tile", 31 + a, 14, 10, 7, 8, 6, True)
    yield one("no keys at all", 5 + a, 0, 6, 4, 4, 4, False)
    yield one("scores that rise from −150 to 150", 10, 31 + a, 10, 6, 4, 6, False, rise=150)
    yield one("no keys at all, float16", 4 + a, 0, 6, 5, 4, 4, False, dtype="float16")
    yield one("scores near ±120", 12 + a, 23, 12, 5, 6, 7, False, offset=120)
    yield one("float16 in; o float16, lse float32", 17 + a, 43, 16, 9, 8, 2, True, dtype="float16")
    yield one("float64 in, float64 out", 11, 17 + a, 8, 5, 4, 6, True, dtype="float64")
    case = one("float16 in; products in float32", 9 + a, 21, 8, 6, 5, 6, True, dtype="float16")
    yield replace(case, judge=both(case.judge, _wide), how="matmuls", measured=True)
    yield _memory(rng, (128, 256), True)


def _wide(outcome: Outcome) -> Finding:
    """No product was made of 16-bit numbers."""
    narrow = "float16" in outcome.measures["dtypes"]
    says = "A matrix product was made of float16 numbers; here both of them are computed in float32."
    return Finding(not narrow, float(narrow), 0.0, result="dtypes", says=says if narrow else "")


EXERCISES = [
    Exercise(
        "04.1", "one tile", "one_tile", _tile_cases, lambda: gallery.ONE_TILE, FORBIDDEN,
        may_change=("argument 4", "argument 5", "argument 6"),
    ),
    Exercise("04.2", "the loops over tiles", "forward", _forward_cases, lambda: gallery.FORWARD, FORBIDDEN),
    Exercise("04.3", "tiles that are not full", "forward_ragged", _ragged_cases, lambda: gallery.RAGGED, FORBIDDEN),
    Exercise(
        "04.4", "the causal mask, tiles skipped", "forward_causal", _causal_cases, lambda: causal_gallery.CAUSAL,
        FORBIDDEN,
    ),
    Exercise("04.5", "lse, empty rows, 16 bits", "flash", _flash_cases, lambda: causal_gallery.FLASH, FORBIDDEN),
]  # fmt: skip
