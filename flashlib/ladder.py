"""The step time of a GPT-2, change by change, as in a well-known lecture: theirs beside what this machine takes.

A. Karpathy, "Let's reproduce GPT-2 (124M)", 2024, https://www.youtube.com/watch?v=l8pRSuU81PU: the chapters of its
second section are named after the milliseconds of a step of 16 × 1,024 tokens on one A100.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flashlib.gpt import Config, Slot
from flashlib.step_split import fits
from flashlib.training import train


@dataclass(frozen=True)
class Rung:
    """One change on top of those before it. ``lecture_ms`` is theirs; ``fused`` puts the fused slot in."""

    name: str
    lecture_ms: int
    tf32: bool = False
    dtype: torch.dtype | None = None
    compiled: bool | str = False
    fused: bool = False
    vocab: int = 50257


LADDER = [Rung("float32", 1000)]
for _name, _ms, _change in (
    ("TF32", 333, {"tf32": True}),
    ("bfloat16 autocast", 300, {"dtype": torch.bfloat16}),
    ("torch.compile", 130, {"compiled": True}),
    ("fused attention", 96, {"fused": True}),
    ("vocabulary of 50,304", 93, {"vocab": 50304}),
):
    LADDER.append(replace(LADDER[-1], name=_name, lecture_ms=_ms, **_change))


def climb(
    config: Config, plain: Slot, fused: Slot | str, *, B: int = 16, steps: int = 12, data: Tensor | None = None,
    ladder: Sequence[Rung] = LADDER, each: Callable[[str], None] | None = None,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Train for a few steps on every rung.

    Parameters
    ----------
    config : its vocabulary is the rung's
    plain, fused : the slots below and from the rung "fused attention"
    B : sequences a step; halved where a GPU's memory does not hold them
    each : called with the rung's name before it starts

    Returns
    -------
    list of (name, lecture's ms, B, our ms a step, tokens a second, peak bytes in use or None on a CPU)
    """
    gpu = torch.cuda.is_available()
    rows = []
    before = torch.get_float32_matmul_precision()
    try:
        for rung in ladder:
            if each:
                each(rung.name)
            torch.set_float32_matmul_precision("high" if rung.tf32 else "highest")
            torch.compiler.reset()
            slot, model = fused if rung.fused else plain, replace(config, vocab=rung.vocab)
            options: dict[str, Any] = {"dtype": rung.dtype, "compiled": rung.compiled, "steps": steps, "data": data}

            def run(B: int, model=model, slot=slot, options=options):
                if gpu:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                return train(model, slot, B=B, progress=False, measure=False, **options)[1]

            fitted, history = fits(run, B)
            peak = torch.cuda.max_memory_allocated() if gpu else None
            rows.append((rung.name, rung.lecture_ms, fitted, history.step_s * 1e3, history.tokens_per_s, peak))
    finally:
        torch.set_float32_matmul_precision(before)
    return rows
