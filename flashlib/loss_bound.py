"""How far the loss curves of two right attentions may lie apart: derived from the error budgets, not picked.

A training is run once with the oracle in the slot, then several times with the oracle plus noise in o, dq, dk and dv,
each number of it drawn between − and + its error budget (`flashlib.grading.exactness`). How far the noisy losses lie
from the exact ones, step by step, is what such errors do to this model, this text and this learning rate. A right
attention is one more draw; Student's t says how far one more draw may lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import flashlib
from flashlib.gpt import Config
from flashlib.grading.exactness import Problem
from flashlib.grading.rounding import UNIT
from flashlib.show.progress import steps as steps_of
from flashlib.training import train

RESULTS = ("o", "dq", "dk", "dv")
REFUSALS = 1e-5  # the course's rule: at most one right answer in 100,000 is refused


class Perturbed:
    """A slot: the oracle's causal attention (float64, rounded once), plus uniform noise within ± size · budget.

    Parameters
    ----------
    budgets : one dict {"o": …, "dq": …, "dk": …, "dv": …} a call, or None to record them and add no noise
    size : noise in budgets
    seed : of the noise
    every : while recording, work the budgets out afresh at every so-manyeth call of a layer only
    layers : calls a step
    """

    def __init__(self, budgets: list[dict[str, float]] | None = None, *, size: float = 1.0, seed: int = 0,
                 every: int = 1, layers: int = 1):  # fmt: skip
        self.noise = budgets is not None
        self.budgets: list[dict[str, float]] = [] if budgets is None else budgets
        self.size, self.every, self.layers = size, every, layers
        self.calls = 0
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, dropout_p: float = 0.0) -> Tensor:
        """q, k, v (B, H, S, D) → o (B, H, S, D). Dropout is refused: its masks would differ from slot to slot."""
        if dropout_p or not causal:
            raise ValueError(f"perturbed attention is causal and without dropout, got {causal=} and {dropout_p=}")
        if self.noise:
            budget = {name: self.size * self.budgets[self.calls][name] for name in RESULTS}
        else:
            budget = dict.fromkeys(RESULTS, 0.0)
            self.budgets.append(self._last())
        inputs = [_Noise.apply(x, 0.0, budget[name], self) for x, name in zip((q, k, v), RESULTS[1:], strict=True)]
        o = flashlib.attention(*(x.double() for x in inputs), causal=True, impl="naive").to(q.dtype)
        if not self.noise and (self.calls // self.layers) % self.every == 0 and o.requires_grad:
            x, entry = (q.detach(), k.detach(), v.detach()), self.budgets[-1]
            o.register_hook(lambda do: entry.update(_budgets(*x, do)))
        self.calls += 1
        return _Noise.apply(o, budget["o"], 0.0, self)

    def _last(self) -> dict[str, float]:
        """The same dict as a step ago, or a new one that the backward will fill."""
        fresh = (self.calls // self.layers) % self.every == 0
        return {} if fresh else self.budgets[self.calls - self.layers]

    def draw(self, x: Tensor, budget: float) -> Tensor:
        """x plus noise."""
        return x if budget == 0 else x + budget * (2 * torch.rand(x.shape, generator=self.generator) - 1).to(x)


class _Noise(torch.autograd.Function):
    """Adds noise to what passes: of one size on the way forward, of another to the gradient on the way back."""

    @staticmethod
    def forward(ctx, x, forward, backward, slot):
        ctx.options = backward, slot
        return slot.draw(x.view_as(x), forward)

    @staticmethod
    def backward(ctx, gradient):
        backward, slot = ctx.options
        return slot.draw(gradient, backward), None, None, None


def _budgets(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> dict[str, float]:
    problem = Problem(q, k, v, do=do, causal=True)
    return {name: problem.budget(name) for name in RESULTS}


@dataclass
class Spread:
    """Losses of the exact training (steps,), distances of the noisy ones from it (runs, steps), budgets a call."""

    exact: Tensor
    distances: Tensor
    budgets: list[dict[str, float]]

    @property
    def deviation(self) -> Tensor:
        """Root mean square of the distances, step by step, in nats; the centre is known, so every run counts.

        A loss is a float32 number. Writing it down is off by up to half of the last place, at random, which has the
        variance place²/12; a distance is the difference of two such numbers. Without this, steps at which all losses
        happen to be written alike would allow nothing at all.
        """
        place = 2 * UNIT["float32"] * self.exact
        return (self.distances.square().mean(0) + place.square() / 6).sqrt()

    def factor(self, curves: int, refusals: float = REFUSALS) -> float:
        """Student's t for one more draw, at so many curves of so many steps together."""
        runs, steps = self.distances.shape
        return student(runs, refusals / (curves * steps))

    def bound(self, curves: int, refusals: float = REFUSALS) -> Tensor:
        """How far a right training may lie from the exact one, in nats, step by step."""
        return self.factor(curves, refusals) * self.deviation

    def worst(self, losses: Sequence[float], curves: int) -> float:
        """The largest distance of a curve from the exact one, in bounds: more than 1 is refused. NaN gives inf."""
        ratio = (torch.tensor(losses, dtype=torch.float64) - self.exact).abs() / self.bound(curves)
        return float(ratio.nan_to_num(nan=math.inf).max())


def spread(config: Config, *, steps: int, runs: int = 16, size: float = 1.0, every: int = 10,
           progress: bool = True, **options: Any) -> Spread:  # fmt: skip
    """Train once exactly and ``runs`` times with noise.

    Parameters
    ----------
    config, steps : as for `flashlib.training.train`, which takes ``options`` too (B, S, lr, seed, data, device)
    runs : an even number: `student` needs it
    size : of the noise, in error budgets
    every : steps after which the budgets are worked out afresh

    Raises
    ------
    ValueError
        A model with dropout or checkpointing: both would change how often, and with what, the slot is called.
    """
    if config.dropout or config.checkpoint:
        raise ValueError(f"no dropout and no checkpointing here, got {config}")
    options |= {"steps": steps, "progress": False, "measure": False}
    exact = Perturbed(every=every, layers=config.layers)
    losses = train(config, exact, **options)[1].losses
    found = []
    for seed in steps_of(runs, "noisy trainings", show=progress):
        found.append(train(config, Perturbed(exact.budgets, size=size, seed=seed), **options)[1].losses)
    centre = torch.tensor(losses, dtype=torch.float64)
    return Spread(centre, torch.tensor(found, dtype=torch.float64) - centre, exact.budgets)


def student(freedom: int, tail: float) -> float:
    """The t for which Student's |T| is larger with probability ``tail``; even degrees of freedom only.

    Closed form of the distribution: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.4.

    Raises
    ------
    ValueError
        An odd number of degrees of freedom, or a tail outside [1e-12, 1).
    """
    if freedom < 2 or freedom % 2 or not 1e-12 <= tail < 1:
        raise ValueError(f"freedom must be even and the tail in [1e-12, 1), got {freedom} and {tail}")

    def beyond(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        term, total = 1.0, 1.0
        for i in range(1, freedom // 2):
            term *= (2 * i - 1) / (2 * i) * math.cos(angle) ** 2
            total += term
        return 1 - math.sin(angle) * total

    low, high = 0.0, 1.0
    while beyond(high) > tail:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > tail else (low, middle)
    return high
