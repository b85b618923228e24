"""Chapter 07, Triton forward: what its exercises are tried on. Triton is imported when an exercise is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashlib.algorithms.masks import tiles
from flashlib.grading.case import Case, Exercise, Judge
from flashlib.grading.checks.ch06 import NO_TF32, PRODUCTS, SOFTMAXES, spaced
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw, rival
from flashlib.grading.judge import both, exact, measured
from flashlib.instruments.closed_forms import flash_by_tensor

TILE = (16, 16)
FORBIDDEN = (*PRODUCTS, *SOFTMAXES)


def _head(seed: int, Sq: int, Sk: int, D: int, **options: Any) -> tuple[Any, Any, Any]:
    """q (Sq, D), k and v (Sk, D) of one head."""
    x = draw(seed, B=1, Hq=1, Hkv=1, Sq=Sq, Sk=Sk, D=D, library="torch", **options)
    return x.q[0, 0], x.k[0, 0], x.v[0, 0]


def _one(name: str, x: tuple[Any, Any, Any], causal: bool = False, **kwargs: Any) -> Case:
    problem = exact(lambda: Problem(*x, causal=causal, **kwargs), "o", library="torch")
    return Case(name, x, problem, kwargs, "watch", tile=TILE)


def _bill(name: str, x: tuple[Any, ...], causal: bool = False, lse: bool = False) -> Case:
    """Bytes by tensor and dots, against the closed form of chapter 04; K and V are streamed for every query head."""
    q, k = x[0], x[1]
    (Sq, D), Sk, heads = q.shape[-2:], k.shape[-2], q[..., 0, 0].numel()
    form = flash_by_tensor(Sq, Sk, D, D, *TILE, itemsize=q.element_size(), causal=causal, lse=lse)
    moved = {tensor: heads * n for tensor, n in form.items()}
    visited = sum(kind != "skip" for *_, kind in tiles(Sq, Sk, *TILE, causal=causal))
    how = "K and V are read once for each q tile, Q once"
    judges: list[Judge] = [
        measured("dots", 2 * heads * visited, "dots", "Two for each tile of S that some row sees."),
        measured("read", {t: moved[t] for t in "QKV"}, "B", f"{how}."),
        measured("written", {t: n for t, n in moved.items() if t not in "QKV"}, "B", "Each result is written once."),
        NO_TF32,
    ]
    every = 2 * heads * len(tiles(Sq, Sk, *TILE))
    return Case(
        name, x, both(*judges), {"causal": True} if causal and lse else {}, "watch", {"every": every}, measured=True
    )


# -- 07.1 ------------------------------------------------------------------------------------------------------------
def _one_tile_cases(seed: int) -> Iterator[Case]:
    yield _one("16 queries, 16 keys, 16 features", _head(seed, 16, 16, 16))
    yield _one("32 features", _head(seed + 1, 16, 16, 32))
    yield _one("scores near ±120", _head(seed + 2, 16, 16, 16, offset=120.0))
    yield _one("a scale of its own, 0.4", _head(seed + 3, 16, 16, 32), scale=0.4)
    q, k, v = _head(seed + 4, 16, 16, 16)
    yield _one("k transposed in memory, rows of q and v apart", (spaced(q, 3), k.t().contiguous().t(), spaced(v, 5)))
    yield _bill("HBM bytes and dots: q, k, v and o once, two dots", _head(seed + 5, 16, 16, 32))


# -- 07.2 ------------------------------------------------------------------------------------------------------------
def _streamed_cases(seed: int) -> Iterator[Case]:
    yield _one("one key tile", _head(seed, 16, 16, 16))
    yield _one("three key tiles, the maximum rises", _head(seed + 1, 16, 48, 16))
    yield _one("the largest scores in the first tile", _steep(seed + 2, 16, 32, 16, up=False))
    yield _one("the largest scores in the last tile, by 150 and more", _steep(seed + 2, 16, 32, 16, down=False))
    yield _one("scores near ±300", _head(seed + 3, 16, 32, 16, offset=300.0))
    yield _one("two q tiles, three key tiles, 32 features", _head(seed + 4, 32, 48, 32))
    q, k, v = _head(seed + 5, 16, 32, 16)
    yield _one("k transposed in memory, rows of q and v apart", (spaced(q, 3), k.t().contiguous().t(), spaced(v, 5)))
    yield _bill("HBM bytes and dots as the tiles say", _head(seed + 6, 32, 48, 16))


def _steep(seed: int, Sq: int, Sk: int, D: int, *, down: bool = True, up: bool = True) -> tuple[Any, Any, Any]:
    """Scores of the first tile lie about 150 above those that follow (even rows) or below them (odd rows): what was
    summed against the wrong maximum is then beyond float32. Without ``up`` or ``down`` all rows are of one kind."""
    q, k, v = _head(seed, Sq, Sk, D)
    step = 150.0**0.5 * D**0.25  # step · step / √D = 150
    q[:, 1] = step if down else -step
    q[1::2, 1] = -step if up else step
    k[:, 1] = 0.0
    k[:16, 1] = step
    return q, k, v


# -- 07.3 ------------------------------------------------------------------------------------------------------------
def _sizes(seed: int) -> tuple[int, int, int]:
    """Sq < Sk and D, no multiples of 16. Nor is Sk − Sq: the diagonal would run through the corners of tiles, where
    some mistakes do not show."""
    rng = np.random.default_rng(seed)
    Sq, Sk, D = (int(rng.integers(low, low + 8)) for low in (19, 35, 18))
    return Sq, Sk + ((Sk - Sq) % 16 == 0), D


def _ragged_cases(seed: int) -> Iterator[Case]:
    Sq, Sk, D = _sizes(seed)
    yield _one("whole tiles", _head(seed, 16, 32, 16))
    yield _one(f"ragged keys: Sk = {Sk}", _head(seed + 1, 16, Sk, 16))
    yield _one(f"ragged queries: Sq = {Sq}", _head(seed + 2, Sq, 32, 16))
    yield _one(f"ragged features: D = {D}", _head(seed + 3, 16, 32, D))
    yield _one(f"all three: Sq = {Sq}, Sk = {Sk}, D = {D}", _head(seed + 4, Sq, Sk, D))
    yield _one("scores near ±120, Sk = 32", _head(seed + 5, Sq, 32, D, offset=120.0))
    yield _one("scores near ±20 500", _head(seed + 6, 5, Sk, D, offset=20500.0))
    yield _one("the maximum rises or falls by 150", _steep(seed + 10, 7, Sk, D))
    yield _one("one query, three keys, five features", _head(seed + 7, 1, 3, 5))
    q, k, v = _head(seed + 8, Sq, Sk, D)
    yield _one("k transposed in memory, rows of q and v apart", (spaced(q, 3), k.t().contiguous().t(), spaced(v, 5)))
    yield _bill("HBM bytes and dots as the tiles say", _head(seed + 9, Sq, Sk, D))


# -- 07.4 ------------------------------------------------------------------------------------------------------------
def _causal_cases(seed: int) -> Iterator[Case]:
    Sq, Sk, D = _sizes(seed)

    def case(name: str, x: tuple[Any, Any, Any]) -> Case:
        return _one(name, x, causal=True)

    yield case("one tile, 16 × 16", _head(seed, 16, 16, 16))
    yield case("square, 32 × 32", _head(seed + 1, 32, 32, 16))
    yield case(f"more keys than queries: Sq = {Sq}, Sk = {Sk}", _head(seed + 2, Sq, Sk, 16))
    last = _head(seed + 7, 16, 33, 16)
    rival(*last[:2], 15, 32)
    yield case("one row sees one key of the third tile: Sq = 16, Sk = 33", last)
    yield case(f"one query, {Sk} keys", _head(seed + 3, 1, Sk, D))
    yield case(f"ragged square: Sq = Sk = {Sk}, D = {D}", _head(seed + 4, Sk, Sk, D))
    yield case("scores near ±20 500", _head(seed + 5, Sq, Sk, D, offset=20500.0))
    yield case("the maximum rises or falls by 150", _steep(seed + 8, 20, Sk, D))
    yield _bill("HBM bytes and dots: hidden tiles are skipped", _head(seed + 6, 44, 44, D), causal=True)


# -- 07.5 ------------------------------------------------------------------------------------------------------------
def _forward_cases(seed: int) -> Iterator[Case]:
    Sq, Sk, D = _sizes(seed)

    def case(name: str, Sq: int = Sq, Sk: int = Sk, D: int = D, B: int = 1, H: int = 1, **options: Any) -> Case:
        kwargs: dict[str, Any] = {key: options.pop(key) for key in ("causal", "scale") if key in options}
        x = draw(seed, B=B, Hq=H, Hkv=max(1, H // 2), Sq=Sq, Sk=Sk, D=D, library="torch", **options)[:3]
        problem = exact(lambda: Problem(*x, **kwargs), "o", "lse", library="torch")
        return Case(name, x, problem, kwargs, "watch", tile=TILE)

    yield case("one tile, float32", 16, 16, 16)
    yield case(f"Sq = {Sq}, Sk = {Sk}, D = {D}, two heads on one KV head", H=2)
    yield case("float16", dtype="float16", spread=8.0)
    yield case("bfloat16", dtype="bfloat16")
    loud = draw(seed + 4, B=1, Hq=1, Hkv=1, Sq=5, Sk=Sk, D=D, dtype="float16", library="torch")[:3]
    loud = (loud[0] * 0.1, loud[1], loud[2] * 100 + 4000)  # weights near 1: o is about 4000, acc that times Sk
    judge = exact(lambda: Problem(*loud), "o", "lse", library="torch")
    yield Case("float16, sums beyond 65 504", loud, judge, {}, "watch", tile=TILE)
    yield case("causal", causal=True)
    last = draw(seed + 5, B=1, Hq=1, Hkv=1, Sq=16, Sk=33, D=16, library="torch")[:3]
    rival(*last[:2], 15, 32)
    judge = exact(lambda: Problem(*last, causal=True), "o", "lse", library="torch")
    name = "causal, one row sees one key of the third tile: Sq = 16, Sk = 33"
    yield Case(name, last, judge, {"causal": True}, "watch", tile=TILE)
    yield case(f"causal, rows that see no key: Sq = {Sk}, Sk = {Sq}", Sk, Sq, causal=True)
    yield case("no key at all", 5, 0)
    yield case("scores near ±120, causal", offset=120.0, causal=True)
    yield case("scale = −0.6", 16, 35, scale=-0.6, spread=25.0)
    steep = tuple(t[None, None] for t in _steep(seed + 2, 8, Sk, D))
    judge = exact(lambda: Problem(*steep), "o", "lse", library="torch")
    yield Case("the maximum rises or falls by 150", steep, judge, {}, "watch", tile=TILE)
    one = draw(seed + 3, B=1, Hq=1, Hkv=1, Sq=16, Sk=16, D=16, library="torch")[:3]
    yield Case("float32 is multiplied as float32", one, NO_TF32, {}, "watch", measured=True)
    x = draw(seed + 1, B=1, Hq=2, Hkv=1, Sq=Sk, Sk=Sq, D=D, library="torch", dtype="float16")[:3]
    yield _bill("HBM bytes and dots equal chapter 04's formula", x, causal=True, lse=True)


def _gallery(name: str) -> Any:
    from flashlib.grading.mistakes import ch07

    return getattr(ch07, name)


EXERCISES = [
    Exercise(
        "07.1", "one tile of attention", "one_tile", _one_tile_cases, lambda: _gallery("ONE_TILE"),
        forbidden=FORBIDDEN, triton=True, stub="one_tile_kernel",
    ),
    Exercise(
        "07.2", "stream the key tiles", "streamed", _streamed_cases, lambda: _gallery("STREAMED"),
        forbidden=FORBIDDEN, triton=True, stub="streamed_kernel",
    ),
    Exercise(
        "07.3", "ragged edges", "ragged", _ragged_cases, lambda: _gallery("RAGGED"),
        forbidden=FORBIDDEN, triton=True, stub="ragged_kernel",
    ),
    Exercise(
        "07.4", "causal, hidden tiles skipped", "causal", _causal_cases, lambda: _gallery("CAUSAL"),
        forbidden=FORBIDDEN, triton=True, stub="causal_kernel",
    ),
    Exercise(
        "07.5", "LSE, dtypes, rows that see nothing", "forward", _forward_cases, lambda: _gallery("FORWARD"),
        forbidden=FORBIDDEN, triton=True, stub="forward_kernel",
    ),
]  # fmt: skip
