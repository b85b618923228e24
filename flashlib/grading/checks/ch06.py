"""Chapter 06, Triton primer: what its exercises are tried on. Triton is imported when one is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashlib.grading.case import Case, Exercise
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect, value
from flashlib.grading.judge import both, exact, matches, measured

PRODUCTS = ("matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum", "inner", "tensordot", "linear")
SOFTMAXES = ("softmax", "log_softmax", "logsumexp", "softmin")
COPIES = ("clone", "contiguous")
ONE_LAUNCH = measured("launches", 1, "launches", "The launcher calls the kernel once, and the kernel does the work.")
NO_TF32 = measured(
    "tf32",
    0,
    "dots",
    "On a GPU tl.dot rounds float32 to TF32 (10 bits after the point) unless input_precision forbids.",
)


def _tensor(rng: np.random.Generator, *shape: int, spread: float = 1.0, dtype: str = "float32") -> Any:
    import torch

    return torch.from_numpy(rng.standard_normal(shape) * spread).to(getattr(torch, dtype))


def spaced(x: Any, gap: int) -> Any:
    """The same matrix as a view whose rows lie ``gap`` elements further apart than they are long."""
    wide = x.new_empty(x.shape[0], x.shape[1] + gap)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


# -- 06.1 ------------------------------------------------------------------------------------------------------------
def _copy_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    m, n = 32 + int(rng.integers(3, 13)), 16 + int(rng.integers(3, 13))

    def case(name: str, x: Any, **kwargs: Any) -> Case:
        numbers = x.float().numpy()
        right = value("out", numbers, dtype=str(x.dtype).removeprefix("torch."), library="torch")
        return Case(name, (x,), matches(right), kwargs, "watch", tile=(16, 16))

    yield case("one tile, 16 × 16", _tensor(rng, 16, 16))
    yield case("3 × 2 whole tiles", _tensor(rng, 48, 32))
    yield case(f"ragged below: {m} × 32", _tensor(rng, m, 32))
    yield case(f"ragged at the right: 32 × {n}", _tensor(rng, 32, n))
    yield case(f"ragged: {m} × {n}", _tensor(rng, m, n))
    yield case(f"a transposed view, {n} × {m}", _tensor(rng, m, n).t())
    yield case("rows of x lie apart", spaced(_tensor(rng, m, n), 7))
    yield case("out laid out column by column", _tensor(rng, m, n), by_columns=True)
    yield case("float16", _tensor(rng, m, n, dtype="float16"))
    x = _tensor(rng, m, n)
    bytes_ = 4 * m * n
    says = "Each element is read once and written once."
    yield Case(
        "HBM bytes: every element once", (x,),
        both(ONE_LAUNCH, measured("read", {"X": bytes_}, "B", says), measured("written", {"OUT": bytes_}, "B", says)),
        how="watch", measured=True,
    )  # fmt: skip


# -- 06.2 ------------------------------------------------------------------------------------------------------------
def _softmax(x):
    m = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = e.sum(-1, keepdims=True)
    return e / np.where(l == 0, 1, l)


def _softmax_cases(seed: int) -> Iterator[Case]:
    import torch

    rng = np.random.default_rng(seed)
    R, C = 3 + int(rng.integers(0, 3)), 33 + int(rng.integers(2, 27))

    def case(name: str, x: Any) -> Case:
        one = torch.eye(x.shape[1], dtype=x.dtype)  # softmax of x is attention with q = x and unit matrices
        return Case(name, (x,), exact(lambda: Problem(x, one, one, scale=1.0), "o", library="torch"), {}, "watch")

    def hidden(name: str, x: Any) -> Case:
        return Case(name, (x,), matches(*expect("o", _softmax, (x,), longest=x.shape[1])), {}, "watch")

    def wide(rows: int = R, columns: int = C, **kwargs: Any) -> Any:
        return _tensor(rng, rows, columns, spread=5, **kwargs)

    yield case("rows of 16, all lanes used", wide(columns=16))
    yield case(f"ragged: rows of {C} in 64 lanes", wide())
    shifted = torch.tensor([120.0, -120.0]).repeat(R)[:R, None]
    yield case("scores near ±120", wide() + shifted)
    yield case("scores near ±20 000", wide() + shifted * 167)
    x = wide()
    x[torch.from_numpy(rng.random((R, C)) < 0.4)] = -torch.inf
    x[:, 5] = 1.0
    yield hidden("some scores are −∞", x)
    x = wide()
    x[1] = -torch.inf
    yield hidden("a row of −∞ alone gives zeros", x)
    yield case("a transposed view", wide(C, R).t())
    yield case("rows of x lie apart", spaced(wide(), 5))
    yield case("float16 in, float16 out", wide(dtype="float16"))
    n = 4 * R * C
    says = "The row stays on the chip: it is read once and written once."
    yield Case(
        "HBM bytes: every score once", (wide(),),
        both(ONE_LAUNCH, measured("read", {"X": n}, "B", says), measured("written", {"OUT": n}, "B", says)),
        how="watch", measured=True,
    )  # fmt: skip


# -- 06.3 ------------------------------------------------------------------------------------------------------------
def _product_cases(seed: int) -> Iterator[Case]:
    import torch

    rng = np.random.default_rng(seed)
    M, N, K = (int(rng.integers(low, high)) for low, high in ((35, 47), (19, 31), (37, 45)))

    def case(name: str, a: Any, b: Any, **kwargs: Any) -> Case:
        c = expect("c", lambda a, b: a @ b.T, (a, b), longest=a.shape[1], dtype="float32")
        return Case(name, (a, b), matches(*c), kwargs, "watch", tile=(16, 16))

    def pair(m: int, n: int, k: int) -> tuple[Any, Any]:
        return _tensor(rng, m, k), _tensor(rng, n, k)

    yield case("one tile, 16 × 16 × 16", *pair(16, 16, 16))
    yield case("whole tiles: M = 32, N = 16, K = 48", *pair(32, 16, 48))
    yield case(f"ragged K = {K}", *pair(16, 16, K))
    yield case(f"ragged: M = {M}, N = {N}, K = {K}", *pair(M, N, K))
    yield case("a is a transposed view, rows of b lie apart", _tensor(rng, K, M).t(), spaced(_tensor(rng, N, K), 3))
    yield case("tiles of 16 × 32 × 16", *pair(21, 37, 19), block=(16, 32, 16))
    whole = [torch.from_numpy(rng.integers(-50, 51, (n, K)).astype(np.float16)) for n in (M, N)]
    yield case("float16 in, sums in float32", *whole)
    down, across = -(-M // 16), -(-N // 16)
    says = "A is read once for each column of tiles of C, B once for each row of tiles."
    yield Case(
        "HBM bytes and dots as the tiles say", pair(M, N, K),
        both(
            ONE_LAUNCH,
            measured("read", {"A": 4 * across * M * K, "B": 4 * down * N * K}, "B", says),
            measured("written", {"C": 4 * M * N}, "B", "C is written once."),
            measured("dots", down * across * -(-K // 16), "dots", "One for each tile of C and tile along K."),
            NO_TF32,
        ),
        how="watch", measured=True,
    )  # fmt: skip


def _gallery(name: str) -> Any:
    from flashlib.grading.mistakes import ch06

    return getattr(ch06, name)


EXERCISES = [
    Exercise(
        "06.1", "a masked copy", "copy_matrix", _copy_cases, lambda: _gallery("COPY"),
        forbidden=COPIES, triton=True, stub="copy_kernel",
    ),
    Exercise(
        "06.2", "softmax, one program a row", "softmax_rows", _softmax_cases, lambda: _gallery("SOFTMAX"),
        forbidden=SOFTMAXES, triton=True, stub="softmax_kernel",
    ),
    Exercise(
        "06.3", "a product in tiles", "product", _product_cases, lambda: _gallery("PRODUCT"),
        forbidden=PRODUCTS, triton=True, stub="product_kernel",
    ),
]  # fmt: skip
