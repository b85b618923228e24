"""Chapter 08, Triton backward: what its exercises are tried on. Triton is imported when an exercise is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from flashlib.algorithms.masks import tiles
from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.checks.ch06 import NO_TF32, ONE_LAUNCH, PRODUCTS, SOFTMAXES
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.inputs import draw, rival
from flashlib.grading.judge import both, exact, matches, measured
from flashlib.grading.rounding import to_numpy

TILE = (16, 16)
FORBIDDEN = (*PRODUCTS, *SOFTMAXES, "grad", "backward", "vjp", "vecdot")


def _torch(x: Any, dtype: Any = None) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)).to(dtype or torch.float32)


# -- 08.1 ------------------------------------------------------------------------------------------------------------
def _delta_cases(seed: int) -> Iterator[Case]:
    import torch

    rng = np.random.default_rng(seed)
    S = 33 + int(rng.integers(1, 8))

    def case(name: str, Sq: int, D: int, B: int = 1, H: int = 1, lse: bool = True, **options: Any) -> Case:
        loud, dtype = options.get("loud", 1.0), options.get("dtype", torch.float32)
        x = draw(seed, B=B, Hq=H, Hkv=H, Sq=Sq, Sk=Sq, D=D, dtype="float64")
        dlse = _torch(3.0 * lse * rng.standard_normal((B, H, Sq)))
        args = (_torch(loud * x.v, dtype), _torch(loud * x.do, dtype), dlse)
        right = expect(
            "delta", lambda o, do, dlse: (o * do).sum(-1) - dlse, args, longest=D, dtype="float32",
            axes=[("batch", "head", "row")],
        )  # fmt: skip
        return Case(name, args, matches(*right), how="watch", tile=TILE)

    yield case("one tile: 16 rows, D = 16, dlse = 0", 16, 16, lse=False)
    yield case("three tiles", 48, 16, lse=False)
    yield case("lse has a gradient", 32, 16)
    yield case("20 features in 32 lanes", 32, 20)
    yield case(f"ragged: {S} rows", S, 16)
    yield case("batches and heads", S, 20, 2, 3)
    yield case("bfloat16 in, float32 out", S, 20, 1, 2, dtype=torch.bfloat16)
    yield case("float16 in, products beyond 65 504", 16, 20, 1, 2, dtype=torch.float16, loud=200.0)
    read, row = 2 * 6 * S * 20 * 4, 6 * S * 4
    bill = both(
        ONE_LAUNCH,
        measured("read", {"O": read // 2, "DO": read // 2, "DLSE": row}, "B", "Each number is read once."),
        measured("written", {"DELTA": row}, "B", "One number a row, written once."),
    )
    args = case("", S, 20, 2, 3).args
    yield Case("HBM bytes: everything once", args, bill, how="watch", measured=True)


# -- 08.2 and 08.3 ---------------------------------------------------------------------------------------------------
def _backward(
    seed: int, Sq: int, Sk: int, D: int = 16, H: int = 1, **options: Any
) -> tuple[Any, tuple[Any, ...], dict]:
    """The problem, and the launcher's arguments: exact lse and delta, rounded to float32."""
    kwargs = {name: options.pop(name) for name in ("causal", "scale") if name in options}
    alone = options.pop("alone", None)
    x = draw(seed, B=1, Hq=H, Hkv=H, Sq=Sq, Sk=Sk, D=D, library="torch", **options)
    if alone:
        rival(x.q, x.k, *alone)
    problem = Problem(*x, **kwargs)
    delta = (to_numpy(x.do).astype(float) * problem.forward.o).sum(-1)
    args = (x.q, x.k, x.v, x.do, _torch(problem.forward.lse), _torch(delta), problem.scale)
    return problem, args, {"causal": True} if kwargs.get("causal") else {}


def _small_shares(rng: np.random.Generator, of_keys: bool) -> tuple[Problem, tuple[Any, ...]]:
    """float16 inputs of which the first tile gives nearly all and 24 more give a little each: half a unit in the last
    place of the sum so far and less, so that a sum kept in 16 bits stays where it is, too small."""
    import torch

    few, many, D = 16, 16 * 25, 16
    q, k, v, do = (
        0.1 * rng.standard_normal((n, D)) for n in ((few, many, many, few) if not of_keys else (many, few, few, many))
    )
    late = np.arange(many) >= 16
    if of_keys:  # dk and dv: the rows of the first tile are loud, and all point the same way
        q[:, 0], do[:] = 1.0, np.where(late, 0.8 * 2.0**-11, 1.0)[:, None] * (900 + 300 * rng.random(D))
    else:  # dq: the keys of the first tile get nearly all of P, and every dS · k is positive
        q[:, :2], k[:, 1], v[:, 0], do[:, 0] = [0, D**0.5], np.where(late, -np.log(0.9 * 2.0**11), 0.0), 1.0, 1.0
        v[:16, 0] = np.where(np.arange(16) % 2, 1.25, -1.25)
        k[:, 0] = np.sign(v[:, 0])
    x = [_torch(a[None, None], torch.float16) for a in (q, k, v, do)]
    problem = Problem(*x)
    delta = (to_numpy(x[3]).astype(float) * problem.forward.o).sum(-1)
    return problem, (*x, _torch(problem.forward.lse), _torch(delta), problem.scale)


def _kept(tensors: tuple[str, ...], bytes_: int) -> Judge:
    """Of these tensors every byte is read once; of the others anything may be."""
    bill = measured("read", dict.fromkeys(tensors, bytes_), "B", "A program loads the tile it keeps once.")

    def judge(outcome: Outcome) -> Finding:
        read = outcome.measures.get("read", {})
        return bill(replace(outcome, measures={"read": {t: read.get(t, 0) for t in tensors}}))

    return judge


def _kernel_cases(seed: int, names: tuple[str, ...], dots: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    Sq, Sk, D = (int(rng.integers(low, low + 5)) for low in (19, 35, 18))
    for name, sizes, options in (
        ("one tile, 16 × 16", (16, 16), {}),
        ("full tiles, Sq=32 Sk=48", (32, 48), {}),
        ("scale = 0.4", (32, 16), {"scale": 0.4}),
        (f"ragged: Sq={Sq} Sk={Sk} D={D}, two heads", (Sq, Sk, D, 2), {}),
        ("scores near ±120, ragged", (19, 27, D), {"offset": 120.0}),
        ("causal, Sq = Sk = 32", (32, 32), {"causal": True}),
        # row 15 sees one key of the third tile: a loop that begins or ends one off loses it
        (f"causal, Sq={Sq} Sk={Sq + 17}", (Sq, Sq + 17, D), {"causal": True, "alone": (15, 32)}),
        ("causal, Sq=39 Sk=21: 18 rows see no key", (39, 21), {"causal": True}),
        # D = 20 and more: a scale that is no power of two, so that q · scale does not fit into 16 bits
        ("float16 in, float16 out", (16, Sk, D), {"dtype": "float16", "spread": 8.0}),
    ):
        problem, args, kwargs = _backward(seed, *sizes, **options)
        yield Case(name, args, exact(problem, *names, library="torch"), kwargs, "watch", tile=TILE)
    problem, args = _small_shares(rng, "dk" in names)
    name = "float16, 25 tiles: one large share and many small ones"
    yield Case(name, args, exact(problem, *names, library="torch"), {}, "watch", tile=TILE)
    _, args, kwargs = _backward(seed, 48, 64, causal=True)
    kinds = [kind for *_, kind in tiles(48, 64, *TILE, causal=True)]
    visited = sum(kind != "skip" for kind in kinds)
    rows = {"dq": 48, "dk": 64, "dv": 64}
    bill = both(
        measured(
            "dots", dots * visited, "dots", f"{dots} for each of the {visited} tiles of which some query sees a key."
        ),
        measured("written", {n.upper(): rows[n] * 16 * 4 for n in names}, "B", "Each result is written once."),
        _kept(("K", "V") if "dk" in names else ("Q", "DO"), 4 * 16 * rows[names[0]]),
        NO_TF32,
    )
    name = f"causal, Sq=48 Sk=64: only {visited} of {len(kinds)} tiles are computed"
    yield Case(name, args, bill, kwargs, "watch", {"every": dots * len(kinds)}, measured=True)


# -- 08.4 ------------------------------------------------------------------------------------------------------------
def _flash_cases(seed: int) -> Iterator[Case]:
    from flashlib.grading.mistakes.ch08_kernels import KERNELS

    rng = np.random.default_rng(seed)
    Sq, Sk = 17 + int(rng.integers(0, 6)), 25 + int(rng.integers(0, 6))
    for name, lse, turned, options in (
        ("gradients, one head", False, False, {"scale": 0.25}),
        ("causal, scale = 0.4", False, False, {"causal": True, "scale": 0.4}),
        ("lse has a gradient", True, False, {"scale": 0.3}),
        ("dO and dlse transposed in memory", True, True, {"scale": 0.3, "H": 2}),
        ("q, k, v transposed in memory", False, True, {"scale": 0.3, "H": 2, "inputs": True}),
    ):
        scale, causal, H = options["scale"], options.get("causal", False), int(options.get("H", 1))
        x = draw(seed, B=1, Hq=H, Hkv=H, Sq=Sq, Sk=Sk, D=16, library="torch")
        dlse = _torch(2 * rng.standard_normal((1, H, Sq))) if lse else None
        if dlse is not None and turned:
            dlse = dlse.mT.contiguous().mT
        problem = Problem(*x, dlse=dlse, causal=causal, scale=scale)
        q, k, v, do = (_apart(t) if turned and (i == 3 or "inputs" in options) else t for i, t in enumerate(x))
        judge = exact(problem, "o", "lse", "dq", "dk", "dv", library="torch")
        more = {"do": do, "outputs": True} | ({"dlse": dlse} if lse else {})
        yield Case(name, (q, k, v, scale, causal, KERNELS), judge, how="watch_gradients", options=more, tile=TILE)
    x = draw(seed + 1, B=1, Hq=1, Hkv=1, Sq=Sq, Sk=Sk, D=16, library="torch")
    for wrt, what in (
        (3, "all gradients: three launches"),
        (2, "dQ and dK asked for: three launches"),
        (1, "only dQ asked for: delta and dQ run, dK/dV does not"),
    ):
        says = "One for delta, one for dQ." if wrt == 1 else "One for delta, one for dK and dV, one for dQ."
        more = {"do": x.do, "wrt": wrt}
        judge = measured("launches", 2 if wrt == 1 else 3, "launches", says)
        yield Case(what, (*x[:3], 0.25, False, KERNELS), judge, how="watch_gradients", options=more, measured=True)


def _apart(x: Any) -> Any:
    """The same numbers, laid out as (B, S, H, D)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _gallery(name: str) -> Any:
    from flashlib.grading.mistakes import ch08

    return getattr(ch08, name)


EXERCISES = [
    Exercise(
        "08.1", "the delta kernel", "delta", _delta_cases, lambda: _gallery("DELTA"),
        forbidden=FORBIDDEN, triton=True, stub="delta_kernel",
    ),
    Exercise(
        "08.2", "the dK/dV kernel", "dkdv", lambda seed: _kernel_cases(seed, ("dk", "dv"), 4),
        lambda: _gallery("DKDV"), forbidden=FORBIDDEN, triton=True, stub="dkdv_kernel",
    ),
    Exercise(
        "08.3", "the dQ kernel", "dq", lambda seed: _kernel_cases(seed, ("dq",), 3), lambda: _gallery("DQ"),
        forbidden=FORBIDDEN, triton=True, stub="dq_kernel",
    ),
    Exercise(
        "08.4", "wired into autograd", "flash", _flash_cases, lambda: _gallery("FLASH"),
        forbidden=("vjp", "enable_grad", "checkpoint"), triton=True, stub="Flash",
    ),
]  # fmt: skip
