"""The smallest inputs that have shown a fault in attention code somewhere. Every implementation must answer them all.

Each case is a function from a dtype name to (Inputs, options). Its number is that of the fault it belongs to:

 1–8   empty rows and masks          9–11  scale and range        12–18  shapes
 19–20 strides                       30–31 lse and dropout
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from flashlib.grading.inputs import Inputs, draw


class Case(NamedTuple):
    """One problem: torch inputs and the options of `flashlib.attention`."""

    inputs: Inputs
    options: dict[str, Any]


CASES: dict[str, Callable[[str], Case]] = {}


def case(name: str):
    """Register a function under "number name"."""

    def register(f):
        assert name not in CASES
        CASES[name] = f
        return f

    return register


def tensors(dtype: str, *arrays) -> Inputs:
    """Inputs from arrays; a random dO of the right shape is added when only q, k, v are given."""
    q, k, v, *rest = (torch.as_tensor(np.asarray(x), dtype=torch.float64) for x in arrays)
    do = rest[0] if rest else torch.from_numpy(np.random.default_rng(7).standard_normal((*q.shape[:3], v.shape[-1])))
    return Inputs(*(x.to(getattr(torch, dtype)) for x in (q, k, v, do)))


def simple(name: str, options: dict[str, Any] | None = None, **sizes) -> None:
    """A case with discriminating inputs of the given sizes."""
    options = options or {}

    @case(name)
    def make(dtype):
        return Case(draw(11, dtype=dtype, library="torch", **sizes), options)


CAUSAL = {"causal": True}
simple("01 causal, more queries than keys: rows that see nothing", CAUSAL, B=1, Hq=1, Hkv=1, Sq=5, Sk=2, D=4)
simple("01 causal, whole tiles of rows that see nothing", CAUSAL, B=1, Hq=2, Hkv=1, Sq=45, Sk=3, D=5)
simple("02 causal, more keys than queries", CAUSAL, B=1, Hq=1, Hkv=1, Sq=2, Sk=5, D=4)
simple("03 first tile masked for some rows only", CAUSAL, B=1, Hq=2, Hkv=2, Sq=37, Sk=30, D=8)
simple("05 plain", B=2, Hq=3, Hkv=3, Sq=37, Sk=37, D=12)
simple("05 causal, square", CAUSAL, B=2, Hq=3, Hkv=3, Sq=37, Sk=37, D=12)
simple("06 causal, Sq < Sk, several tiles", CAUSAL, B=1, Hq=2, Hkv=2, Sq=41, Sk=87, D=12)
simple("06 causal, Sq > Sk, several tiles", CAUSAL, B=1, Hq=2, Hkv=2, Sq=87, Sk=41, D=12)


@case("04 one key")
def one_key(dtype):
    x = np.full((1, 1, 1, 16), 3.0)
    return Case(tensors(dtype, x, x, x), {})


@case("07 scores near -3e5: a masked score must be lower still")
def very_negative(dtype):
    q, k = np.full((1, 1, 6, 16), -160.0), np.full((1, 1, 6, 16), 480.0)  # scores −160·480·16/4 = −307 200
    return Case(tensors(dtype, q, k, np.eye(6)[None, None]), CAUSAL)


def spoiled(where: str, value: float, position: tuple[int, ...], Sq: int = 21, Sk: int = 30):
    def make(dtype):
        x = draw(5, B=1, Hq=2, Hkv=1, Sq=Sq, Sk=Sk, D=6, dtype=dtype, library="torch")
        getattr(x, where)[position] = value
        return Case(x, CAUSAL)

    return make


for _where, _position in (
    ("k", (0, 0, 27, 2)), ("v", (0, 0, 27, 2)), ("q", (0, 1, 4, 0)), ("v", (0, 0, 29)), ("do", (0, 1, 4, 0)),
):  # fmt: skip
    for _value in (np.nan, np.inf):
        case(f"08 {_value} in {_where} at {_position}: seen by some rows only")(spoiled(_where, _value, _position))
for _where, _row in (("q", 40), ("k", 7), ("v", 7), ("do", 40)):
    case(f"08 inf in {_where}, row {_row} of many tiles")(spoiled(_where, np.inf, (0, 0, _row, 1), 75, 70))


def score_of_minus_infinity(where: str, Sq: int, Sk: int, causal: bool):
    """A −inf beside positive numbers: its scores are −inf and its weights 0, which is no reason for a NaN."""

    def make(dtype):
        x = draw(5, B=1, Hq=1, Hkv=1, Sq=Sq, Sk=Sk, D=2, dtype=dtype, library="torch", spread=1.0)
        x = x._replace(q=x.q.abs(), k=x.k.abs())
        getattr(x, where)[0, 0, 3, 0] = -np.inf
        return Case(x, {"causal": causal})

    return make


for _where in "qk":
    for _Sq, _Sk in ((4, 4), (5, 32), (32, 9), (32, 32), (70, 75)):
        _make = score_of_minus_infinity(_where, _Sq, _Sk, _Sq == 70)
        case(f"08 a score of -inf: in {_where}, Sq={_Sq} Sk={_Sk}")(_make)


@case("08 NaN in a query that sees nothing")
def nan_in_empty_row(dtype):
    x = draw(5, B=1, Hq=1, Hkv=1, Sq=9, Sk=4, D=6, dtype=dtype, library="torch")
    x.q[0, 0, 1] = np.nan
    return Case(x, CAUSAL)


for _scale in (0.0, -0.7, 1.0, 3.0):
    simple(f"09 scale {_scale}", {"scale": _scale}, B=1, Hq=2, Hkv=2, Sq=19, Sk=23, D=8, spread=2.0)
simple("09 negative scale, causal", {"scale": -0.7, **CAUSAL}, B=1, Hq=2, Hkv=2, Sq=19, Sk=23, D=8, spread=2.0)


@case("10 scores of ±1e4")
def huge_scores(dtype):
    x = draw(3, B=1, Hq=2, Hkv=2, Sq=13, Sk=17, D=16, dtype=dtype, library="torch")
    grow = 1e4 / (x.q @ x.k.mT / 4).abs().max().item()
    return Case(x._replace(q=x.q * grow**0.5, k=x.k * grow**0.5), {})


@case("10 inputs of ±60")
def sixties(dtype):
    rng = np.random.default_rng(1)
    q, k = (np.where(rng.random((1, 2, 14, 64)) < 0.5, -60.0, 60.0) for _ in range(2))
    return Case(tensors(dtype, q, k, rng.standard_normal((1, 2, 14, 64))), {})


@case("10 v and dO of ±60: dS passes float16's largest number, and no result does")
def large_ds(dtype):
    rng = np.random.default_rng(0)
    q, k = (0.1 * rng.standard_normal((1, 1, n, 8)) for n in (2, 40))
    v, do = (np.where(rng.random((1, 1, n, 128)) < 0.5, -60.0, 60.0) for n in (40, 2))
    v[0, 0, :2] = do[0, 0]  # dO · v = 460 800
    return Case(tensors(dtype, q, k, v, do), {"scale": 0.3})


@case("10 constant inputs of 1000")
def thousand(dtype):
    x = np.full((1, 1, 11, 8), 1000.0)
    return Case(tensors(dtype, x, x, x), {})


@case("11 equal keys give the mean of v")
def equal_keys(dtype):
    x = draw(2, B=1, Hq=2, Hkv=1, Sq=9, Sk=33, D=6, dtype=dtype, library="torch")
    return Case(x._replace(k=x.k[:, :, :1].expand_as(x.k).clone()), {})


@case("11 zeros")
def zeros(dtype):
    x = draw(2, B=1, Hq=2, Hkv=1, Sq=9, Sk=33, D=6, dtype=dtype, library="torch")
    return Case(x._replace(q=torch.zeros_like(x.q), k=torch.zeros_like(x.k)), CAUSAL)


@case("11 v = 1")
def ones(dtype):
    x = draw(2, B=1, Hq=2, Hkv=1, Sq=9, Sk=33, D=6, dtype=dtype, library="torch")
    return Case(x._replace(v=torch.ones_like(x.v)), {})


for _Sq, _Sk in ((1, 1), (1, 40), (40, 1), (7, 7), (16, 16), (17, 33), (64, 64), (65, 63)):
    for _options in ({}, CAUSAL):
        _label = "causal " if _options else ""
        simple(f"12 {_label}Sq={_Sq} Sk={_Sk}", _options, B=1, Hq=2, Hkv=2, Sq=_Sq, Sk=_Sk, D=6)
for _D in (1, 8, 40, 72, 80, 96, 128, 160, 256):
    simple(f"13 D={_D}", CAUSAL, B=1, Hq=1, Hkv=1, Sq=18, Sk=21, D=_D)
for _D, _Dv in ((8, 20), (20, 8), (16, 1), (1, 16)):
    simple(f"14 D={_D} Dv={_Dv}", B=1, Hq=2, Hkv=2, Sq=18, Sk=21, D=_D, Dv=_Dv)
for _Hq, _Hkv in ((4, 2), (6, 2), (14, 2), (5, 1)):
    simple(f"15 Hq={_Hq} Hkv={_Hkv}", CAUSAL, B=2, Hq=_Hq, Hkv=_Hkv, Sq=18, Sk=21, D=6)
simple("16 no batch", B=0, Hq=2, Hkv=2, Sq=5, Sk=5, D=4)
simple("16 no heads", B=2, Hq=0, Hkv=0, Sq=5, Sk=5, D=4)
simple("16 no queries", B=2, Hq=2, Hkv=1, Sq=0, Sk=5, D=4)
simple("16 no keys", B=2, Hq=2, Hkv=1, Sq=5, Sk=0, D=4)
simple("16 no keys, causal", CAUSAL, B=2, Hq=2, Hkv=1, Sq=5, Sk=0, D=4)
simple("17 B·H beyond 65 535", B=1, Hq=65_537, Hkv=65_537, Sq=1, Sk=2, D=2)


def strided(name: str):
    """Register a function that lays discriminating inputs out anew, number for number."""

    def register(f):
        @case(name)
        def make(dtype):
            x = draw(9, B=2, Hq=4, Hkv=4, Sq=23, Sk=23, D=10, dtype=dtype, library="torch")
            return Case(Inputs(*f(*x)), CAUSAL)

        return f

    return register


def laid_out(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same numbers with the dimensions in another order in memory."""
    return x.permute(order).contiguous().permute(np.argsort(order).tolist())


@strided("19 q, k, v in three layouts")
def three_layouts(q, k, v, do):
    return laid_out(q, (0, 2, 1, 3)), laid_out(k, (3, 1, 0, 2)), laid_out(v, (2, 0, 1, 3)), do


@strided("19 slices of one packed qkv, with a storage offset")
def packed(q, k, v, do):
    buffer = torch.full((2, 23, 3, 4, 13), torch.nan, dtype=q.dtype)[:, :, :, :, 2:12]
    for n, x in enumerate((q, k, v)):
        buffer[:, :, n] = x.transpose(1, 2)
    return *(buffer[:, :, n].transpose(1, 2) for n in range(3)), do


@strided("19 k and v expanded over heads, stride 0")
def expanded(q, k, v, do):
    return q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), do


@strided("19 k expanded over keys, stride 0")
def expanded_keys(q, k, v, do):
    return q, k[:, :, :1].expand_as(k), v, do


@strided("19 every second row and feature")
def stepped(q, k, v, do):
    def every_second(x):
        wide = torch.full((2, 4, 46, 20), torch.nan, dtype=x.dtype)
        wide[:, :, ::2, ::2] = x
        return wide[:, :, ::2, ::2]

    return every_second(q), every_second(k), every_second(v), do


@strided("20 dO is one number, stride 0")
def expanded_do(q, k, v, do):
    return q, k, v, torch.ones((), dtype=do.dtype).expand_as(do)


@strided("20 dO transposed")
def transposed_do(q, k, v, do):
    return q, k, v, laid_out(do, (3, 2, 1, 0))


simple("30 lse with large and small scores", CAUSAL, B=1, Hq=2, Hkv=1, Sq=33, Sk=40, D=6, spread=20.0)
for _p in (0.1, 0.5, 0.9):
    simple(f"31 dropout {_p}", {"dropout_p": _p, "seed": 123, **CAUSAL}, B=2, Hq=4, Hkv=2, Sq=37, Sk=41, D=6)
simple("31 dropout, a 64-bit seed", {"dropout_p": 0.3, "seed": 2**63 + 12345}, B=1, Hq=2, Hkv=2, Sq=37, Sk=41, D=6)


@case("31 dropout 0.9: a row that is NaN is so in its dropped places too")
def dropped_nan(dtype):
    x = draw(4, B=1, Hq=1, Hkv=1, Sq=2, Sk=4, D=2, dtype=dtype, library="torch")
    x.q[0, 0, 1, 0] = np.nan
    return Case(x, {"dropout_p": 0.9, "seed": 3})


@case("31 dropout, all but one in 131 072: 1 / (1 − p) passes float16's largest number")
def almost_all_dropped(dtype):
    rng = np.random.default_rng(0)
    q, k, v, do = (0.01 * rng.standard_normal((1, 64, n, 2)) for n in (64, 1, 1, 64))
    return Case(tensors(dtype, q, k, v, do), {"dropout_p": 1 - 2**-17, "seed": 39})  # keeps one of 4,096


simple("31 dropout 0 with a seed", {"dropout_p": 0.0, "seed": 5}, B=1, Hq=2, Hkv=2, Sq=17, Sk=21, D=6)
