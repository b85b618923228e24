"""Gradients in float32 along random directions, against differences of the float64 reference's loss.

As gradcheck, but honest about rounding. L(x) = ⟨o, dO⟩ + ⟨lse, dLSE⟩ and φ(t) = L(x + t·u), for directions u of ±1. No
gradient formula is used on the exact side: ⟨∇L, u⟩ is (φ(h) − φ(−h)) / 2h, and what that may be wrong by is bounded:

* truncation: φ‴/6 · h². φ is analytic, so on a disc of radius r where |φ − c| ≤ M, |φ‴| ≤ 6M/r³ (Cauchy). The radius ρ
  is where no score's imaginary part passes π/3: there |Σ eˢ| ≥ ½ Σ |eˢ|, so |p| sums to at most 2 in each row, and
  |log Σ eˢ − lse| ≤ π/3 + log 2 + π/3.
* rounding: two losses, each off by at most E, over 2h. E follows each step of the reference with unit 2⁻⁵³.

h makes the two about equal. The gradients in float32 may add their error budget in every place, summed over |u| = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pytest
import torch

import flashlib
from flashlib.algorithms import reference
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw

NAMES = ("dq", "dk", "dv")
UNIT = 2.0**-53
SHAPES = {
    "ragged, grouped": (dict(Hq=4, Hkv=2, Sq=37, Sk=53, D=20), {}),
    "causal": (dict(Hq=4, Hkv=1, Sq=41, Sk=67, D=9, Dv=13), {"causal": True}),
    "causal, rows that see nothing": (dict(Hq=2, Hkv=2, Sq=45, Sk=34, D=17), {"causal": True, "scale": 0.3}),
    "dropout": (dict(Hq=4, Hkv=2, Sq=35, Sk=39, D=12), {"causal": True, "dropout_p": 0.3, "seed": 2**40 + 7}),
    "negative scale": (dict(Hq=2, Hkv=1, Sq=33, Sk=35, D=16), {"scale": -0.2}),
}
IMPLEMENTATIONS = [
    pytest.param(
        "triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed here")
    ),
    "tiled",
]


class Slope(NamedTuple):
    """⟨∇L, u⟩ by central differences, and the most it can be wrong by."""

    value: float
    bound: float


class Loss:
    """L of one problem in float64, its slopes, and the gradients an implementation gives in float32."""

    def __init__(self, name: str):
        sizes, self.options = SHAPES[name]
        x = draw(11, B=2, library="torch", spread=2.0, **sizes)
        self.tensors, self.do = x[:3], x.do
        self.inputs = tuple(t.double().numpy() for t in x[:3])
        dlse = torch.linspace(-1, 1, x.q[..., 0].numel()).reshape(x.q.shape[:3])
        sees = np.isfinite(Problem(*x[:3], **self.options).forward.lse)
        self.dlse = dlse * torch.from_numpy(sees)  # the lse of a row that sees nothing is −∞, whatever is moved
        self.problem = Problem(*x[:3], do=self.do, dlse=self.dlse, **self.options)
        self.scale, self.keep = abs(self.problem.scale), self.problem.keep

    def value(self, inputs: tuple[np.ndarray, ...]) -> float:
        """L, its last sum without rounding."""
        options = {"causal": self.problem.causal, "scale": self.problem.scale, "keep": self.keep}
        out = reference.attention(*inputs, **options, dropout_p=self.problem.dropout_p)
        lse = np.where(np.isfinite(out.lse), out.lse, 0)
        return math.fsum([*(out.o * self.do.numpy()).ravel(), *(lse * self.dlse.numpy()).ravel()])

    def slope(self, u: tuple[np.ndarray, ...]) -> Slope:
        """The slope along u; the bound holds for any step, and with a power of two x ± h·u is exact."""
        group = self.inputs[0].shape[1] // self.inputs[1].shape[1]
        (q, uq), (k, uk), (v, uv) = (
            (x, y) if i == 0 else (np.repeat(x, group, 1), np.repeat(y, group, 1))
            for i, (x, y) in enumerate(zip(self.inputs, u, strict=True))
        )
        do, dlse = np.abs(self.do.double().numpy()), np.abs(self.dlse.double().numpy())
        z = 1 / (1 - self.problem.dropout_p)
        # s(t) = s + a·t + b·t²; a radius at which |a|·ρ + 2·|b|·ρ² ≤ π/3 everywhere
        a = self.scale * np.abs(uq @ k.swapaxes(-1, -2) + q @ uk.swapaxes(-1, -2)).max()
        b = self.scale * np.abs(uq @ uk.swapaxes(-1, -2)).max()
        rho = min(1.0, 2 * (math.pi / 3) / (a + math.sqrt(a * a + 8 * b * math.pi / 3) + 1e-300))
        assert a * rho + 2 * b * rho**2 <= math.pi / 3 * (1 + 1e-12)
        o_size = 2 * z * (np.abs(v) + rho * np.abs(uv)).max(-2, keepdims=True)  # |p| sums to at most 2
        largest = (do * o_size).sum() + (2 * math.pi / 3 + math.log(2)) * dlse.sum()
        # the sum, the scale and s − m: a score is off by (D + 4)·UNIT of its terms' sizes; p relatively by as much
        s_error = UNIT * (q.shape[-1] + 4) * self.scale * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max() + 4 * UNIT
        p_error = 2 * s_error + UNIT * (k.shape[-2] + 8)  # the row sum shares the scores' errors; exp, divide, keep
        p, lse = self.problem.forward.p, np.where(dlse > 0, np.abs(self.problem.forward.lse), 0)
        sizes = z * (p @ np.abs(v))
        rounding = 2 * (
            (do * sizes).sum() * (p_error + UNIT * (k.shape[-2] + 2))
            + (
                dlse
                * (
                    p_error
                    + 4 * UNIT * (lse + np.abs(self.problem.forward.s[np.isfinite(self.problem.forward.s)]).max())
                )
            ).sum()
        )  # doubled: these are first-order bounds, and the rest is smaller by 1e-9
        h = 2.0 ** math.floor(math.log2(min(rho / 8, (rounding * rho**3 / (2 * largest)) ** (1 / 3))))
        sides = []
        for sign in (1, -1):
            moved = tuple(x + sign * h * y for x, y in zip(self.inputs, u, strict=True))
            assert all(((m - x) == sign * h * y).all() for m, x, y in zip(moved, self.inputs, u, strict=True))
            sides.append(self.value(moved))
        return Slope((sides[0] - sides[1]) / (2 * h), largest * h**2 / (rho - h) ** 3 + rounding / h)

    def gradients(self, implementation: str) -> dict[str, np.ndarray]:
        """dq, dk, dv in float32."""
        q, k, v = (t.clone().requires_grad_() for t in self.tensors)
        o, lse = flashlib.attention(q, k, v, impl=implementation, return_lse=True, **self.options)
        found = torch.autograd.grad((o, lse), (q, k, v), (self.do, self.dlse))
        return {name: g.double().numpy() for name, g in zip(NAMES, found, strict=True)}

    def directions(self) -> list[tuple[np.ndarray, ...]]:
        """±1 in all three, twice; then in one of them alone, for each."""
        rng = np.random.default_rng(5)
        out = []
        for only in (None, None, 0, 1, 2):
            signs = (rng.choice([-1.0, 1.0], x.shape) for x in self.inputs)
            out.append(tuple(s if only in (None, i) else 0 * s for i, s in enumerate(signs)))
        return out


class Held(NamedTuple):
    """The slope from the gradients, that from the differences, and how far apart they may be."""

    got: float
    exact: Slope
    budget: float

    @property
    def ok(self) -> bool:
        """Within the budget of the gradients and the bound of the differences together."""
        return abs(self.got - self.exact.value) <= self.budget + self.exact.bound


def hold(loss: Loss, gradients: dict[str, np.ndarray]) -> list[Held]:
    """Every direction."""
    out = []
    for u, exact in zip(loss.directions(), slopes(loss), strict=True):
        got = math.fsum(math.fsum((gradients[n] * y).ravel()) for n, y in zip(NAMES, u, strict=True))
        budget = sum(loss.problem.budget(n) * np.abs(y).sum() for n, y in zip(NAMES, u, strict=True))
        out.append(Held(got, exact, budget))
    return out


def slopes(loss: Loss) -> list[Slope]:
    """The exact sides, computed once a problem."""
    if not hasattr(loss, "known"):
        loss.known = [loss.slope(u) for u in loss.directions()]
    return loss.known


@pytest.fixture(scope="module")
def losses() -> Callable[[str], Loss]:
    made: dict[str, Loss] = {}

    def get(name: str) -> Loss:
        if name not in made:
            made[name] = Loss(name)
        return made[name]

    return get


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_slopes(losses, implementation: str, name: str) -> None:
    for held in hold(losses(name), losses(name).gradients(implementation)):
        assert held.ok, held


@pytest.mark.parametrize("name", SHAPES)
def test_the_oracles_own_gradients_lie_within_the_bound_of_the_differences(losses, name: str) -> None:
    """No budget here: formula against differences; and the bound is small beside the budget, so it hides nothing."""
    loss = losses(name)
    for held in hold(loss, {n: loss.problem.exact(n) for n in NAMES}):
        assert abs(held.got - held.exact.value) <= held.exact.bound, held
        assert held.exact.bound <= 0.1 * held.budget, held


def without_delta(loss: Loss, gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """dS = P ∘ dP, as a backward that forgets delta computes it."""
    exact, q, k = loss.problem.gradients, *loss.inputs[:2]
    ds, group = loss.problem.forward.p * exact.dp, q.shape[1] // k.shape[1]
    dk = loss.problem.scale * ds.swapaxes(-1, -2) @ q
    dk = dk.reshape(k.shape[0], k.shape[1], group, *k.shape[2:]).sum(2)
    return gradients | {"dq": loss.problem.scale * ds @ np.repeat(k, group, 1), "dk": dk}


MISTAKES = {
    "delta left out": without_delta,
    "no scale in dk": lambda loss, g: g | {"dk": g["dk"] / loss.problem.scale},
    "no gradient of lse": lambda loss, g: g | no_dlse(loss),
    "dv of one key in a tile lost": lambda loss, g: (
        g | {"dv": np.where(np.arange(g["dv"].shape[2])[:, None] == 5, 0, g["dv"])}
    ),
}


def no_dlse(loss: Loss) -> dict[str, np.ndarray]:
    other = Problem(*loss.tensors, do=loss.do, **loss.options).gradients
    return {"dq": other.dq, "dk": other.dk}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", SHAPES)
def test_mistakes_show(losses, name: str, mistake: str) -> None:
    loss = losses(name)
    assert not all(held.ok for held in hold(loss, MISTAKES[mistake](loss, loss.gradients("tiled"))))


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed here")
def test_a_mistake_in_the_kernels_shows(losses, monkeypatch) -> None:
    """delta left out of the Triton backward itself: its kernel is not launched and delta stays 0."""
    from flashlib.algorithms import triton_attention

    class Zeros:
        def __getitem__(self, grid):
            return lambda *args, **options: args[3].zero_()

    loss = losses("ragged, grouped")
    monkeypatch.setattr(triton_attention, "delta_kernel", Zeros())
    assert not all(held.ok for held in hold(loss, loss.gradients("triton")))
