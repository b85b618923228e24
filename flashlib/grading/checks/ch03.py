"""Chapter 03, online softmax: what its exercises are tried on. Everything in float64 and in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashlib.algorithms.masks import spans, visible
from flashlib.grading.case import Case, Exercise, Stream
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.inputs import draw
from flashlib.grading.judge import both, exact, in_one_kernel, linear_memory, matches, measured
from flashlib.grading.mistakes import ch03 as gallery

FORBIDDEN = ("softmax", "logsumexp", "logaddexp", "logaddexp2")
SLICE = 256  # bytes of a slice and its numbers in a list, with room to spare
PYTHON = 8192  # bytes: what tracemalloc sees of Python's own objects in one call, with room to spare


def _cut(n: int, block: int, *arrays: np.ndarray, axes: tuple[int, ...]) -> Stream:
    """The arrays in tiles of ``block`` along their axes, as a stream of tuples; of single arrays if there is one."""
    tiles = [
        tuple(np.take(a, range(j0, j1), axis) for a, axis in zip(arrays, axes, strict=True))
        for j0, j1 in spans(n, block)
    ]
    return Stream(tiles if len(arrays) > 1 else [t[0] for t in tiles])


# -- 03.1 ----------------------------------------------------------------------------------------------------------
def _state(s):
    return s.max(), np.exp(s - s.max()).sum()


def _row_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def row(n, spread, first, last):
        return rng.standard_normal(n) * spread + np.linspace(first, last, n)

    a, b = int(rng.integers(4, 8)), int(rng.integers(45, 60)) // 7 * 7 + 4
    for name, s, block in (
        ("one tile", row(a, 3, 0, 0), a),
        ("two tiles, the second maximum is larger", row(2 * a, 2, 0, 12), a),
        ("the maximum stands in the first tile", row(4 * a, 2, 30, 0), a),
        ("a maximum that rises in every tile", row(6 * a, 1, 0, 40), a),
        (f"ragged: {b} scores in tiles of 7", row(b, 5, 0, 20), 7),
        ("all scores near −1000", row(3 * a, 5, -1000, -990), a),
        ("all scores near −9000", row(3 * a, 5, -9000, -8990), a),
        ("scores near ±10 000", row(3 * a, 10_000, 0, 0), a),
        ("tiles of one score", row(11, 5, 0, 10), 1),
    ):
        yield Case(
            name, (_cut(len(s), block, s, axes=(0,)),), matches(*expect(("m", "l"), _state, (s,), longest=len(s)))
        )
    sizes, block = (8192, 32768), 512
    calls = [(_cut(n, block, row(n, 5, 0, 20), axes=(0,)),) for n in sizes]
    yield Case(
        "one sweep: memory does not grow with the row", calls[0],
        # the tile, the one before it, and four arrays of a tile's size on the way to the sum; twice that as a reserve
        linear_memory(lambda n: 2 * 6 * block * 8 + PYTHON, "m, l and a few arrays of a tile's size"),
        how="growth", options={"calls": calls, "n": sizes, "library": "numpy"}, measured=True,
    )  # fmt: skip


# -- 03.2 ----------------------------------------------------------------------------------------------------------
def _merge(m1, l1, m2, l2):
    m = np.maximum(m1, m2)
    safe = np.where(np.isneginf(m), 0, m)
    return m, l1 * np.exp(m1 - safe) + l2 * np.exp(m2 - safe)


def _merge_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def halves(n, spread, rise, rows=(1,)):
        x = rng.standard_normal((2, *rows, n)) * spread
        m = x.max(-1)
        l = np.exp(x - m[..., None]).sum(-1)
        return m[0] - rise, l[0], m[1] + rise, l[1]

    empty = np.array([-np.inf]), np.array([0.0])
    rows = halves(5, 4, rng.choice([-3, 3], 7), (7,))
    some = [x.copy() for x in rows]
    for side, where in ((0, [1, 4]), (2, [2, 4])):  # row 4 is empty on both sides
        some[side][where], some[side + 1][where] = empty
    one = halves(5, 3, 0)
    for name, args in (
        ("the second maximum is larger", halves(5, 3, 6)),
        ("the first maximum is larger", halves(5, 3, -6)),
        ("equal maxima", (one[0], one[1], one[0].copy(), one[3])),
        ("scores near ±10 000", halves(5, 10_000, 0)),
        ("seven rows at once", rows),
        ("an array of (3, 5) rows", halves(4, 5, rng.choice([-4, 4], (3, 5)), (3, 5))),
        ("the first side is empty: (−∞, 0)", (*empty, *one[2:])),
        ("the second side is empty", (*one[:2], *empty)),
        ("both sides are empty", (*empty, *empty)),
        ("some rows empty on one side, one on both", tuple(some)),
    ):
        yield Case(name, tuple(a.copy() for a in args), matches(*expect(("m", "l"), _merge, args, longest=2)))


# -- 03.3 ----------------------------------------------------------------------------------------------------------
def _attend_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, block, Sq, Sk, D, Dv, *, rise=None, **more):
        x = draw(int(rng.integers(1 << 30)), 1, 1, 1, Sq, Sk, D, Dv, dtype="float64", **more)
        q, k, v = (a[0, 0] for a in x[:3])
        if rise:  # for every row, from the first key to the last
            q[:, 0], k[:, 0] = np.sqrt(D), np.linspace(rise[0], rise[1], Sk)
        tiles = _cut(Sk, block or Sk, k, v, axes=(0, 0))
        return Case(name, (q, tiles), exact(lambda: Problem(q, k, v), "o"))

    more = int(rng.integers(3))
    yield one("one row, one tile", None, 1, 9 + more, 6, 5)
    yield one("one row, tiles of 4", 4, 1, 24, 6, 5)
    yield one("rows of their own maximum", 8, 11 + more, 40, 12, 7)
    yield one(f"ragged: {41 + more} keys in tiles of 8", 8, 13, 41 + more, 10, 9)
    # exp(710) is infinite: a maximum taken from the first tile alone does not do
    yield one("scores that rise from −900 to 900", 8, 7 + more, 37, 12, 5, rise=(-900, 900))
    yield one("scores near ±1000", 8, 9 + more, 29, 12, 7, offset=1000)
    yield one("tiles of one key", 1, 5 + more, 19, 6, 5)
    sizes, block, Sq, D = (512, 4096), 32, 16, 8
    xs = [draw(int(rng.integers(1 << 30)), 1, 1, 1, Sq, n, D, dtype="float64") for n in sizes]
    calls = [(x.q[0, 0], _cut(n, block, x.k[0, 0], x.v[0, 0], axes=(0, 0))) for n, x in zip(sizes, xs, strict=True)]
    # two pairs of key and value tiles; scores, weights and three steps between; o old and new and two steps between;
    # six columns. Twice that as a reserve.
    room = 2 * 8 * (2 * block * (D + D) + 5 * Sq * block + 4 * Sq * D + 6 * Sq) + PYTHON
    yield Case(
        "each key once: memory does not grow with their number", calls[0],
        linear_memory(lambda n: room, "the state and a few tiles"),
        how="growth", options={"calls": calls, "n": sizes, "library": "numpy"}, measured=True,
    )  # fmt: skip


# -- 03.4 ----------------------------------------------------------------------------------------------------------
def _masked(s, v):
    m = s.max(-1, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(m), 0, m)[:, None])
    l = p.sum(-1)
    with np.errstate(divide="ignore"):
        return p @ v / np.where(l == 0, 1, l)[:, None], m + np.log(l)


def _masked_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    rows, Sk, Dv, block = int(rng.integers(7, 11)), 22, 5, 4
    hidden = -np.inf

    def scores(around=0.0, n=Sk):
        return rng.standard_normal((rows, n)) * 4 + np.linspace(around, around + 15, n)

    def case(name, s):
        v = rng.standard_normal((s.shape[1], Dv))
        v[:, -1] = 1
        answers = expect(
            ("o", "lse"), _masked, (s, v), longest=max(1, s.shape[1]), axes=(("row", "column"), ("row",))
        )  # fmt: skip
        return Case(name, (_cut(s.shape[1], block, s, v, axes=(1, 0)), rows, Dv), matches(*answers), tile=(rows, block))

    yield case("nothing masked, one tile", scores(n=block))
    yield case("nothing masked, ragged tiles", scores())
    yield case("scores that rise from −900 to 900", scores() + np.linspace(-900, 900, Sk))
    s = scores()
    s[:3, -6:] = hidden
    yield case("the last tiles masked for three rows", s)
    s = scores()
    s[:, :block] = hidden
    yield case("the first tile masked for all rows", s)
    s = scores()
    s[:3, :block] = hidden
    yield case("the first tile masked for three rows", s)
    s = scores(-1000)
    s[1:4, : 2 * block] = hidden
    yield case("first tiles masked, then scores near −1000", s)
    s = scores()
    s[2] = hidden
    yield case("one row sees no key", s)
    yield case("all rows see no key", np.full((rows, Sk), hidden))
    yield case(f"causal, {rows} rows and 5 keys", np.where(visible(rows, 5, causal=True), scores(n=5), hidden))
    s = scores(10_000)
    s[rng.random(s.shape) < 0.5] = hidden
    yield case("half of the scores masked, the others near 10 000", s)
    yield case("no tile at all", scores(n=0))
    sizes, block, rows, Dv = (512, 4096), 32, 16, 8
    calls = []
    for n in sizes:
        s, v = scores(n=n), rng.standard_normal((n, Dv))
        s[: rows // 2, : n // 2] = hidden
        calls.append((_cut(n, block, s, v, axes=(1, 0)), rows, Dv))
    # two tiles of scores and values; weights, guards and two steps between; o old and new and two steps between; ten
    # columns. Twice that as a reserve.
    room = 2 * 8 * (2 * block * (rows + Dv) + 5 * rows * block + 4 * rows * Dv + 10 * rows) + PYTHON
    yield Case(
        "each tile once: memory does not grow with their number", calls[0],
        linear_memory(lambda n: room, "the state and a few tiles"),
        how="growth", options={"calls": calls, "n": sizes, "library": "numpy"}, measured=True,
    )  # fmt: skip


# -- 03.5 ----------------------------------------------------------------------------------------------------------
def _fused(s, v):
    p = np.exp(s - s.max())
    return p @ v / p.sum()


NAMES: dict[str, Any] = {"names": ("S", "V"), "returns": ("O",)}


def _fused_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)

    def one(name, tiles, rest, *, around=0.0, rise=20.0, counted=False):
        block, Dv = int(rng.integers(3, 6)), int(rng.integers(3, 5))
        N = tiles * block + rest
        s = rng.standard_normal(N) * 4 + np.linspace(around, around + rise, N)
        v = rng.standard_normal((N, Dv))
        v[:, -1] = 1
        judge = matches(*expect("o", _fused, (s, v), longest=N))
        if counted:
            read, written = {"S": s.nbytes, "V": v.nbytes}, {"O": v[0].nbytes}
            loads = dict.fromkeys("SV", -(-N // block))
            judge = both(
                judge, measured("read", read, "B"), measured("written", written, "B"), in_one_kernel(loads)
            )  # fmt: skip
        # a tile of S and of V, and the state; twice that as a reserve
        sram = 2 * 8 * (block * (1 + Dv) + Dv + 2)
        return Case(
            name, (s, v, block), judge, how="machine", options={"sram_bytes": sram, **NAMES},
            measured=counted,
        )  # fmt: skip

    yield one("one tile", 1, 0)
    yield one("full tiles, SRAM smaller than the row", 20, 0)
    yield one("ragged: the last tile is smaller", 20, 2)
    yield one("scores that rise from −900 to 900", 16, 0, around=-900, rise=1800)
    yield one("scores near 1000", 16, 1, around=1000)
    yield one("each score read once, O written once", 20, 0, counted=True)
    yield one("the same, ragged", 23, 2, counted=True)
    sizes, block, Dv = (2048, 16384), 128, 4
    calls = [(rng.standard_normal(n) * 4, rng.standard_normal((n, Dv)), block) for n in sizes]
    # the tile and the one before it, three arrays of a tile's scores, four rows of values; twice that as a reserve; and
    # a list of the tiles' slices may be made
    room = 2 * 8 * (2 * block * (1 + Dv) + 3 * block + 4 * Dv) + PYTHON
    yield Case(
        "only m, l and o are carried along", calls[0],
        linear_memory(lambda n: room + SLICE * n // block, "two tiles, the state and a list of slices"),
        how="machine_growth", options={"calls": calls, "n": sizes, "sram_bytes": 16 * (block + 1) * (Dv + 2), **NAMES},
        measured=True,
    )  # fmt: skip


EXERCISES = [
    Exercise("03.1", "the sum of a row in one sweep", "row_state", _row_cases, lambda: gallery.ROW_STATE, FORBIDDEN),
    Exercise("03.2", "the merge law", "merge", _merge_cases, lambda: gallery.MERGE, FORBIDDEN),
    Exercise("03.3", "attention, streamed", "attend", _attend_cases, lambda: gallery.ATTEND, FORBIDDEN),
    Exercise("03.4", "rows that see nothing", "attend_masked", _masked_cases, lambda: gallery.ATTEND_MASKED, FORBIDDEN),
    Exercise("03.5", "one read of each score", "fused", _fused_cases, lambda: gallery.FUSED, FORBIDDEN),
]
