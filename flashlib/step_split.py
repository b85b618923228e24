"""A training step split in two: what attention takes of its time, memory and FLOP, and what the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import flashlib
from flashlib.gpt import Config, Slot
from flashlib.training import train


class Timed:
    """A slot with a stopwatch round it: seconds spent inside, forward and backward, summed over all calls.

    The backward is timed between two nodes of the graph, one behind the slot's outputs and one before its inputs. On a
    GPU both ends wait for the device, so a whole step takes somewhat longer than it would without the watch.
    """

    def __init__(self, slot: Slot | str):
        self.slot: Slot = partial(flashlib.attention, impl=slot) if isinstance(slot, str) else slot
        self.forward_s = self.backward_s = 0.0
        self.started = 0.0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """What the slot gives."""
        q, k, v = _Enter.apply(self, q, k, v)
        start = _now(q)
        o = self.slot(q, k, v, **options)
        self.forward_s += _now(q) - start
        return _Leave.apply(self, o)


def _now(x: Tensor) -> float:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


class _Enter(torch.autograd.Function):
    """Stops the watch when the gradients of q, k and v have come out."""

    @staticmethod
    def forward(ctx, watch, q, k, v):
        ctx.watch = watch
        return q.view_as(q), k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx, dq, dk, dv):
        ctx.watch.backward_s += _now(dv) - ctx.watch.started
        return None, dq, dk, dv


class _Leave(torch.autograd.Function):
    """Starts the watch when the gradient of o goes in."""

    @staticmethod
    def forward(ctx, watch, o):
        ctx.watch = watch
        return o.view_as(o)

    @staticmethod
    def backward(ctx, do):
        ctx.watch.started = _now(do)
        return None, do


def absent(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """A slot without attention: it returns v. What a step with it needs is what the rest needs."""
    return v


@dataclass(frozen=True)
class Split:
    """One step: median seconds of all of it and of attention forward and backward; peak bytes with and without it."""

    step_s: float
    forward_s: float
    backward_s: float
    peak_bytes: int
    rest_bytes: int
    tokens: int

    @property
    def share(self) -> float:
        """Attention's part of the step's time."""
        return (self.forward_s + self.backward_s) / self.step_s

    @property
    def attention_bytes(self) -> int:
        """What attention adds to the step's peak; never below 0."""
        return max(self.peak_bytes - self.rest_bytes, 0)


def split(config: Config, slot: Slot | str, *, steps: int = 5, memory: bool = True, **options: Any) -> Split:
    """Measure a training step, attention apart.

    Parameters
    ----------
    config, slot, options : as for `flashlib.training.train` (B, S, dtype, device, data, …); not ``compiled``, because
        the watch would break the graph
    steps : that many are timed, after two that are not; the medians are taken of each figure by itself
    memory : measure the peaks too, of one step with the slot and of one with `absent` in its place
    """
    watch, marks = Timed(slot), [(0.0, 0.0)]

    def mark(*_: Any) -> None:
        marks.append((watch.forward_s, watch.backward_s))

    options |= {"progress": False}
    _, history = train(config, watch, steps=steps + 2, measure=memory, each=mark, **options)
    passed = [[b - a for a, b in zip(x, y, strict=True)] for x, y in zip(marks[2:], marks[3:], strict=False)]
    rest = train(config, absent, steps=1, measure=True, **options)[1].peak_bytes if memory else 0
    forward, backward = (_median([p[i] for p in passed]) for i in (0, 1))
    return Split(history.step_s, forward, backward, history.peak_bytes or 0, rest or 0, history.tokens_per_step)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def flops(config: Config, B: int, S: int | None = None, *, recompute: bool = False) -> dict[str, int]:
    """FLOP of the matrix products of one training step; a multiply-add is two.

    Attention makes two products a layer forward, of 2·B·S²·width FLOP each, and four backward, or five if it makes S
    again. All S² pairs are counted: a causal attention that skips tiles makes down to half of them. Everything that is
    a linear layer goes in once forward and twice backward: 12·width² weights a layer, and vocab·width at the end.
    """
    S = S or config.context
    pair = 2 * B * S * S * config.width * config.layers
    token = 2 * B * S
    return {
        "attention": pair * (7 if recompute else 6),
        "layers": 3 * token * 12 * config.width**2 * config.layers,
        "output": 3 * token * config.vocab * config.width,
    }


def attention_share(config: Config, S: float) -> float:
    """Attention's part of those FLOP, S / (S + 6·width + vocab / (2·layers)), from the same count without recompute."""
    return S / (S + 6 * config.width + config.vocab / (2 * config.layers))


def fits(step: Callable[[int], Any], B: int) -> tuple[int, Any]:
    """(B, step(B)) for the largest of B, B/2, B/4, … that a GPU's memory holds.

    Raises
    ------
    torch.OutOfMemoryError
        Not even one sequence fits.
    """
    while True:
        try:
            return B, step(B)
        except torch.OutOfMemoryError:
            if B == 1:
                raise
        torch.cuda.empty_cache()  # outside the handler: its traceback held the tensors
        B //= 2
