"""Train a GPT on text that every machine has, and measure what a step takes: time, memory, and attention's share."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashlib.gpt import GPT, Config, Slot
from flashlib.instruments.peak import peak_memory
from flashlib.show.progress import steps as steps_of

#: modules of the standard library that every Python since 3.11 has, in this order
TEXT = ("abc", "ast", "bisect", "calendar", "copy", "csv", "dataclasses", "difflib", "enum", "functools", "heapq",
        "inspect", "random", "statistics", "string", "textwrap", "types", "uuid")  # fmt: skip


def text(limit: int = 400_000) -> Tensor:
    """Bytes of Python's own source as token numbers 0…255, int64 (n,), at most ``limit`` of them.

    Raises
    ------
    FileNotFoundError
        A Python without the source of its standard library.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = [folder / f"{name}.py" for name in TEXT]
    found = [f.read_bytes() for f in files if f.is_file()]
    if not found:
        raise FileNotFoundError(f"no source of the standard library in {folder}")
    return torch.tensor(list(b"".join(found)[:limit]))


def batches(tokens: Tensor, B: int, S: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), both (B, S): windows at random places, the targets one token further."""
    if len(tokens) <= S + 1:
        raise ValueError(f"a text of {len(tokens)} tokens is too short for windows of {S}")
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(tokens) - S - 1, (B,), generator=generator)
        window = tokens[starts[:, None] + torch.arange(S + 1)]
        yield window[:, :-1], window[:, 1:]


@dataclass
class History:
    """What a training run left: loss a step (nats a token), seconds a step, peak extra bytes of one step."""

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    tokens_per_step: int = 0

    @property
    def step_s(self) -> float:
        """Median seconds of a step, the first two left out."""
        later = sorted(self.seconds[2:] or self.seconds)
        return later[len(later) // 2]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, by the median step."""
        return self.tokens_per_step / self.step_s


def train(
    config: Config, slot: Slot | str, *, steps: int, B: int = 8, S: int | None = None, lr: float = 1e-3, seed: int = 0,
    dtype: torch.dtype | None = None, compiled: bool | str = False, device: str | torch.device | None = None,
    name: str = "", data: Tensor | None = None, progress: bool = True, measure: bool = True,
    each: Callable[[int, float], None] | None = None,
) -> tuple[GPT, History]:  # fmt: skip
    """Train from scratch with AdamW; the same seed gives the same weights and the same batches whatever the slot.

    Parameters
    ----------
    config, slot : as for `flashlib.gpt.GPT`
    steps, B, S : steps of B sequences of S tokens; S is the context if left out
    dtype : compute in it under autocast (torch.bfloat16 or float16, the latter with a gradient scaler)
    compiled : use torch.compile; a name chooses its backend: "aot_eager" captures the graphs and needs no compiler
    data : tokens (n,); `text()` if left out
    measure : measure the peak extra memory of one more step, after the training
    each : called with (step, loss) after each step

    Returns
    -------
    model, History
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(seed)
    model = GPT(config, slot).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler(place.type, enabled=dtype == torch.float16)
    called: Any = model
    if compiled:
        called = torch.compile(model, backend=compiled if isinstance(compiled, str) else "inductor")
    S = S or config.context
    source = batches(text() if data is None else data, B, S, seed)
    history = History(name or str(slot), tokens_per_step=B * S)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(place.type, dtype) if dtype else nullcontext():
            loss = called(x, y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    model.train()
    so_far = lambda: f"loss {history.losses[-1]:.3f}" if history.losses else ""  # noqa: E731
    for i in steps_of(steps, history.name, note=so_far, show=progress):
        x, y = (t.to(place) for t in next(source))
        start = time.perf_counter()
        loss = float(step(x, y))  # waits for a GPU
        history.seconds.append(time.perf_counter() - start)
        history.losses.append(loss)
        if each:
            each(i, loss)
    if measure and steps:
        x, y = (t.to(place) for t in next(source))
        history.peak_bytes = int(peak_memory(lambda: step(x, y), library="torch").bytes)
    return model, history
