"""Chapter 05, the backward: what its exercises are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from flashlib.algorithms.masks import tiles
from flashlib.grading.case import Case, Exercise
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.inputs import draw, rival
from flashlib.grading.judge import exact, linear_memory, matches, measured
from flashlib.grading.rounding import to_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashlib.grading.case import Mistake

HEADS = ("batch", "head", "row", "column")
KEYS = ("batch", "head", "key", "column")
SCORES = ("batch", "head", "row", "key")
GRADIENTS = ("grad", "backward", "vjp", "jacobian")  # autograd, which would do these exercises


def _torch(x: Any, like: Any = None) -> Any:
    """A torch tensor of the dtype of ``like``, float32 if there is none."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)).to(torch.float32 if like is None else like.dtype)


def _steps(seed: int, **sizes: Any) -> tuple[Any, Any, Any]:
    """Inputs, and their exact P and dP as torch tensors; scores with a spread of 2, so that P is no one-hot."""
    causal = sizes.pop("causal", False)
    x = draw(seed, library="torch", spread=2.0, **sizes)
    problem = Problem(*x, causal=causal)
    return x, _torch(problem.forward.p, x.q), _torch(problem.gradients.dp, x.q)


# -- 05.1 ----------------------------------------------------------------------------------------------------------
def _softmax_backward(p: np.ndarray, dp: np.ndarray) -> np.ndarray:
    return p * (dp - (p * dp).sum(-1, keepdims=True))


def _softmax_cases(seed: int) -> Iterator[Case]:
    n = 5 + seed % 4

    def case(name: str, p: Any, dp: Any) -> Case:
        axes = [SCORES[-p.dim() :] if p.dim() != 2 else ("row", "key")]
        right = expect("ds", _softmax_backward, (p, dp), longest=p.shape[-1], axes=axes)
        return Case(name, (p, dp), matches(*right))

    _, p, dp = _steps(seed, B=1, Hq=1, Hkv=1, Sq=n, Sk=n, D=7)
    yield case("one row", p[0, 0, -1], dp[0, 0, -1])
    yield case(f"{n} rows of {n}", p[0, 0], dp[0, 0])
    _, p, dp = _steps(seed + 1, Sq=11 + seed % 3, Sk=17, D=6)
    yield case(f"batches and heads, Sq={p.shape[2]} Sk=17", p, dp)
    hidden = p.clone()
    hidden[..., 9:] = 0
    hidden /= hidden.sum(-1, keepdim=True)
    hidden[:, :, 2] = 0  # a row that sees no key
    yield case("hidden keys, and a row that sees none (P = 0 there)", hidden, dp)
    yield case("one key: P = 1 everywhere", p[..., :1] * 0 + 1, dp[..., :1])
    _, p, dp = _steps(seed + 2, B=1, Hq=3, Hkv=3, Sq=9, Sk=13, D=5, dtype="float64")
    yield case("float64 in, float64 out", p, dp)


# -- 05.2 ----------------------------------------------------------------------------------------------------------
def _row_delta(o: np.ndarray, do: np.ndarray, dlse: np.ndarray | None = None) -> np.ndarray:
    delta = (do * o).sum(-1)
    return delta if dlse is None else delta - dlse


def _delta_cases(seed: int) -> Iterator[Case]:
    import torch

    rng = np.random.default_rng(seed)

    def case(name: str, dtype: str, loud: float, lse: bool, D: int, **sizes: int) -> Case:
        S = sizes.pop("S")
        heads: dict[str, Any] = {"B": 2, "Hq": 3, "Hkv": 3} | sizes
        x = draw(seed, Sq=S, Sk=S, D=D, dtype="float64", **heads)

        o, do = (torch.from_numpy(loud * t).to(getattr(torch, dtype)) for t in (x.v, x.do))
        wide = "float64" if dtype == "float64" else "float32"
        args: tuple[Any, ...] = (o, do)
        if lse:
            args += (torch.from_numpy(3 * rng.standard_normal(o.shape[:-1])).to(getattr(torch, wide)),)
        right = expect("delta", _row_delta, args, longest=D, dtype=wide, axes=[("batch", "head", "row")])
        return Case(name, args, matches(*right))

    yield case("one head", "float32", 1, False, 8, B=1, Hq=1, Hkv=1, S=7 + seed % 4)
    yield case("batches and heads", "float32", 1, False, 20, S=13)
    yield case("lse has a gradient", "float32", 1, True, 20, S=13)
    yield case("float64 in, float64 out", "float64", 1, True, 20, S=9)
    yield case("bfloat16 in, float32 out", "bfloat16", 1, True, 20, S=9)
    yield case("float16 in, float32 out, products beyond 65 504", "float16", 200, False, 40, S=9)


# -- 05.3 and 05.4 -------------------------------------------------------------------------------------------------
def _dv_dp(p: np.ndarray, do: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return p.swapaxes(-1, -2) @ do, do @ v.swapaxes(-1, -2)


def _dv_dp_cases(seed: int) -> Iterator[Case]:
    n = 6 + seed % 3
    for name, sizes in (
        (f"one head, Sq = Sk = {n}", {"B": 1, "Hq": 1, "Hkv": 1, "Sq": n, "Sk": n, "D": 4}),
        ("batches and heads, Sq = Sk", {"Hq": 3, "Hkv": 3, "Sq": n + 5, "Sk": n + 5, "D": 6}),
        ("Sq ≠ Sk, hidden keys (P = 0)", {"Hq": 3, "Hkv": 3, "Sq": n + 5, "Sk": 19, "D": 6, "causal": True}),
        ("V wider than Q", {"Hq": 2, "Hkv": 2, "Sq": n + 4, "Sk": 15, "D": 5, "Dv": 9}),
        ("float64 in, float64 out", {"Hq": 2, "Hkv": 2, "Sq": n, "Sk": 11, "D": 5, "dtype": "float64"}),
    ):
        x, p, _ = _steps(seed, **sizes)
        args, longest = (p, x.do, x.v), max(p.shape[2], x.v.shape[3])
        yield Case(name, args, matches(*expect(("dv", "dp"), _dv_dp, args, longest=longest, axes=(KEYS, SCORES))))


def _dq_dk(ds: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    group = q.shape[1] // k.shape[1]
    each = scale * ds.swapaxes(-1, -2) @ q
    dk = each.reshape(k.shape[0], k.shape[1], group, *k.shape[2:]).sum(2)
    return scale * ds @ np.repeat(k, group, axis=1), dk


def _dq_dk_cases(seed: int) -> Iterator[Case]:
    n = 6 + seed % 3
    for name, scale, sizes in (
        (f"one head, Sq = Sk = {n}", 0.5, {"B": 1, "Hq": 1, "Hkv": 1, "Sq": n, "Sk": n, "D": 4}),
        ("batches and heads, Sq ≠ Sk", 6**-0.5, {"Hq": 3, "Hkv": 3, "Sq": n + 5, "Sk": 19, "D": 6}),
        ("scale = 0.37", 0.37, {"Hq": 2, "Hkv": 2, "Sq": n + 5, "Sk": 13, "D": 6}),
        ("grouped heads: 4 query heads on 2", 0.3, {"B": 1, "Hq": 4, "Hkv": 2, "Sq": n + 2, "Sk": 11, "D": 7}),
        ("grouped heads: 6 on 2, two batches", 0.3, {"B": 2, "Hq": 6, "Hkv": 2, "Sq": n, "Sk": 9, "D": 5}),
        ("float64 in, float64 out", 0.3, {"Hq": 4, "Hkv": 1, "Sq": n, "Sk": 11, "D": 5, "dtype": "float64"}),
    ):
        x, p, dp = _steps(seed, **sizes)
        args = (_softmax_backward(p.numpy(), dp.numpy()), x.q, x.k, scale)
        args = (_torch(args[0], x.q), *args[1:])
        longest = max(p.shape[2] * sizes["Hq"] // sizes["Hkv"], p.shape[3])
        yield Case(name, args, matches(*expect(("dq", "dk"), _dq_dk, args, longest=longest, axes=(HEADS, KEYS))))


# -- 05.5 ----------------------------------------------------------------------------------------------------------
def _backward_args(
    seed: int, *, causal: bool = False, scale: float | None = None, alone: tuple[int, int] | None = None, **sizes: Any
) -> tuple[Any, ...]:
    """The problem, and what tiled_backward is called with."""
    x = draw(seed, library="torch", **sizes)
    if alone:
        rival(x.q, x.k, *alone)
    problem = Problem(*x, causal=causal, scale=scale)
    delta = (to_numpy(x.do).astype(float) * problem.forward.o).sum(-1)
    lse, delta = _torch(problem.forward.lse, x.q), _torch(delta, x.q)
    return problem, (x.do, delta, x.q, x.k, x.v, lse, problem.scale)


def _tiled_cases(seed: int) -> Iterator[Case]:
    small = {"B": 1, "Hq": 2, "Hkv": 2, "D": 10 + seed % 3}
    for name, block, options in (
        ("one tile", 16, {"Sq": 13, "Sk": 13}),
        ("full tiles, Sq=24 Sk=32", 8, {"Sq": 24, "Sk": 32}),
        ("ragged: Sq=37, Sk=53, tiles of 16", 16, {"Sq": 37, "Sk": 53}),
        ("scale = 0.37, V wider than Q", 16, {"Sq": 21, "Sk": 34, "scale": 0.37, "Dv": 17}),
        ("scores near ±120", 16, {"Sq": 19, "Sk": 37, "offset": 120.0}),
        # one row of the first tile sees one key of the third: a loop that stops one early loses it
        ("causal, Sq=37 Sk=54", 16, {"Sq": 37, "Sk": 54, "causal": True, "alone": (15, 32)}),
        ("causal, Sq=53 Sk=37: 16 rows see no key", 7, {"Sq": 53, "Sk": 37, "causal": True}),
        ("float64 in, float64 out", 5, {"Sq": 14, "Sk": 17, "causal": True, "dtype": "float64"}),
    ):
        problem, args = _backward_args(seed, **small | options)
        kwargs = {"causal": options.get("causal", False), "block": block}
        yield Case(name, args, exact(problem, "dq", "dk", "dv", library="torch"), kwargs, tile=(block, block))
    yield _tiled_memory(seed)
    yield _tiled_flops(seed)


def _tiled_memory(seed: int) -> Case:
    import torch

    D, block, lengths = 8, 64, (256, 512)

    def args(n: int) -> tuple[Any, ...]:
        do, q, k, v = (torch.randn(1, 1, n, D, generator=torch.Generator().manual_seed(seed + i)) for i in range(4))
        return do, torch.zeros(1, 1, n), q, k, v, torch.full((1, 1, n), 9.0), D**-0.5

    # dq, dk, dv, and a copy of each of the nine arrays in float64; ten tiles in float64; all twice, as a reserve
    def limit(n: int) -> float:
        return 2.0 * (3 * n * D * 4 + (7 * D + 2) * n * 8 + 10 * block * max(block, D) * 8)

    most = [200 * (n // block) ** 2 for n in lengths]  # operations, many for each tile: tiny tiles come to an end
    options = {"calls": [args(n) for n in lengths], "n": lengths, "library": "torch", "operations": most}
    judge = linear_memory(limit, "dQ, dK, dV, a float64 copy of everything and ten tiles, twice over,")
    return Case(
        "memory grows with N, not N²",
        args(block),
        judge,
        {"block": block},
        how="growth",
        options=options,
        measured=True,
    )


def _tiled_flops(seed: int) -> Case:
    Sq, Sk, D, block = 24, 40, 8, 8  # not the default of 16: a block that is ignored gives other tiles
    _, args = _backward_args(seed, causal=True, B=1, Hq=2, Hkv=2, Sq=Sq, Sk=Sk, D=D)
    visited = sum(kind != "skip" for *_, kind in tiles(Sq, Sk, block, block, causal=True))
    right = 2 * visited * 5 * 2 * block * block * D
    says = f"Five products for each of the {visited} tiles of which some query sees a key, and no others."
    name = f"causal, Sq={Sq} Sk={Sk}: only {visited} of {Sq // block * Sk // block} tiles are computed"
    judge = measured("flops", right, "FLOP", says)
    return Case(name, args, judge, {"causal": True, "block": block}, how="matmuls", measured=True)


# -- 05.6 ----------------------------------------------------------------------------------------------------------
def _function_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    for name, lse, scale, sizes in (
        ("gradients, one head", False, 8**-0.5, {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 11 + seed % 3, "Sk": 14, "D": 8}),
        ("batches and heads, scale = 0.37", False, 0.37, {"Hq": 3, "Hkv": 3, "Sq": 13, "Sk": 17, "D": 6}),
        ("lse has a gradient", True, 0.4, {"Hq": 2, "Hkv": 2, "Sq": 13, "Sk": 17, "D": 6}),
        ("grouped heads: 6 query heads on 2", True, 0.4, {"B": 1, "Hq": 6, "Hkv": 2, "Sq": 12, "Sk": 15, "D": 7}),
        (
            "float64 in, float64 out",
            True,
            0.4,
            {"B": 1, "Hq": 2, "Hkv": 2, "Sq": 7, "Sk": 9, "D": 5, "dtype": "float64"},
        ),
    ):
        x = draw(seed, library="torch", **sizes)
        options = {"do": x.do, "outputs": True}
        if lse:
            options["dlse"] = _torch(2 * rng.standard_normal(x.q.shape[:-1]), x.q)
        problem = Problem(*x, dlse=options.get("dlse"), scale=scale)
        judge = exact(problem, "o", "lse", "dq", "dk", "dv", library="torch")
        yield Case(name, (*x[:3], scale), judge, how="gradients", options=options)
    import torch

    D, lengths = 8, (128, 512)
    calls = [
        tuple(torch.randn(1, 1, n, D, generator=torch.Generator().manual_seed(seed)) for _ in range(3)) for n in lengths
    ]
    options = {"calls": [(*call, D**-0.5) for call in calls], "n": lengths, "wrt": 3}
    judge = linear_memory(lambda n: 4.0 * n * (D + 1) * 4, "o and lse, four times over,")
    name = "kept for the backward: nothing N × N"
    yield Case(name, (*calls[0], D**-0.5), judge, how="kept", options=options, measured=True)


def _gallery(name: str) -> Sequence[Mistake]:
    from flashlib.grading.mistakes import ch05, ch05_function, ch05_tiled

    return getattr({"TILED": ch05_tiled, "FUNCTION": ch05_function}.get(name, ch05), name)


EXERCISES = [
    Exercise(
        "05.1", "softmax's backward", "softmax_backward", _softmax_cases, lambda: _gallery("SOFTMAX"),
        forbidden=("softmax", "log_softmax", "_softmax_backward_data", *GRADIENTS),
    ),
    Exercise("05.2", "delta", "row_delta", _delta_cases, lambda: _gallery("DELTA"), forbidden=GRADIENTS),
    Exercise("05.3", "dV and dP", "dv_dp", _dv_dp_cases, lambda: _gallery("DV_DP"), forbidden=GRADIENTS),
    Exercise("05.4", "dQ and dK", "dq_dk", _dq_dk_cases, lambda: _gallery("DQ_DK"), forbidden=GRADIENTS),
    Exercise(
        "05.5", "the tiled backward", "tiled_backward", _tiled_cases, lambda: _gallery("TILED"),
        forbidden=("softmax", "logsumexp", *GRADIENTS),
    ),
    Exercise(
        "05.6", "an autograd.Function", "flash", _function_cases, lambda: _gallery("FUNCTION"),
        forbidden=("checkpoint", "enable_grad", "vjp", "jacobian"), stub="Flash",
    ),
]  # fmt: skip
