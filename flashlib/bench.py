"""Naive, tiled and SDPA attention side by side: time, peak extra memory, and how both grow with the sequence length."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import flashlib
from flashlib.instruments.peak import fit_exponent, peak_memory
from flashlib.setup import cores, cpu_name, version

METHODS = ("naive", "tiled", "sdpa")
LENGTHS = (512, 1024, 2048, 4096, 8192)
NAIVE_TO = 4096  # beyond it naive's N × N arrays alone take several GiB
BATCH, HEADS, DIM = 1, 8, 64
Call = Callable[[], object]


def _inputs(n: int, device: torch.device) -> list[torch.Tensor]:
    """q, k, v and dO, (B, H, N, D) float32."""
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(BATCH, HEADS, n, DIM, generator=generator).to(device) for _ in range(4)]


def _calls(n: int, causal: bool, backward: bool, device: torch.device) -> dict[str, Call]:
    """For each method a function that runs it once."""
    q, k, v, do = _inputs(n, device)

    def forward(impl: str) -> torch.Tensor:
        with torch.no_grad():
            return flashlib.attention(q, k, v, causal=causal, impl=impl)

    def both(impl: str) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]  # shares memory; no gradient is kept between calls
        return torch.autograd.grad(flashlib.attention(*leaves, causal=causal, impl=impl), leaves, do)

    one = both if backward else forward
    names = [m for m in METHODS if m != "naive" or n <= NAIVE_TO]
    return {name: partial(one, name) for name in names}


def _interleaved(calls: dict[str, Call], device: torch.device, budget_s: float) -> dict[str, list[float]]:
    """Seconds of each call, round after round, so that a slow moment of the machine falls on all methods alike."""

    def once(fn: Call) -> float:
        start = time.perf_counter()
        fn()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    first = sum(once(fn) for fn in calls.values())  # warm-up, and a look at how long a round takes
    rounds = max(3, min(15, int(budget_s / max(first, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, fn in calls.items():
            times[name].append(once(fn))
    return times


def _case(n: int, causal: bool, backward: bool, device: torch.device, budget_s: float) -> dict[str, Any]:
    calls = _calls(n, causal, backward, device)
    methods = {}
    for name, runs in _interleaved(calls, device, budget_s).items():
        methods[name] = {
            "median_s": statistics.median(runs),
            "low_s": min(runs),
            "high_s": max(runs),
            "runs": len(runs),
            "peak_bytes": int(peak_memory(calls[name]).bytes),
        }
    return {"pass": "forward+backward" if backward else "forward", "causal": causal, "n": n, "methods": methods}


def _ratios(case: dict[str, Any]) -> dict[str, Any]:
    """Medians' ratios of one case; None where naive did not run."""
    tiled, sdpa, naive = (case["methods"].get(m) for m in ("tiled", "sdpa", "naive"))
    return {
        **{key: case[key] for key in ("pass", "causal", "n")},
        "naive_over_tiled": naive and naive["median_s"] / tiled["median_s"],
        "tiled_over_sdpa": tiled["median_s"] / sdpa["median_s"],
        "memory_naive_over_tiled": naive and naive["peak_bytes"] / tiled["peak_bytes"],
    }


def _exponents(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each pass and mask: the fitted power of N in each method's peak extra memory."""
    out = []
    for kind, causal in dict.fromkeys((c["pass"], c["causal"]) for c in cases):
        mine = [c for c in cases if (c["pass"], c["causal"]) == (kind, causal)]
        memory = {}
        for name in METHODS:
            points = [(c["n"], c["methods"][name]["peak_bytes"]) for c in mine if name in c["methods"]]
            if len(points) > 1 and all(b > 0 for _, b in points):
                memory[name] = float(fit_exponent([n for n, _ in points], [b for _, b in points]))
        out.append({"pass": kind, "causal": causal, "memory": memory})
    return out


def run(*, device: str | None = None, quick: bool = False) -> dict[str, Any]:
    """Measure every method at every length, forward and forward+backward, causal and full.

    Parameters
    ----------
    device : str, optional
        "cpu" or "cuda"; a CUDA GPU if there is one when left out.
    quick : bool
        Lengths 64 to 256 and few rounds.

    Returns
    -------
    dict
        Plain data for JSON: ``machine``, ``shape``, ``methods``, ``cases`` (times in seconds, peak extra memory in
        bytes), ``ratios``, ``exponents``.
    """
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    lengths = (64, 128, 256) if quick else LENGTHS
    budget_s = 0.2 if quick else 4.0
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    todo = [(n, c, b) for b in (False, True) for c in (True, False) for n in lengths]
    cases = []
    bar = tqdm(todo, file=sys.stderr, unit="case")
    for n, causal, backward in bar:
        bar.set_description(f"N={n} {'causal' if causal else 'full'}{', with backward' if backward else ''}")
        cases.append(_case(n, causal, backward, chosen, budget_s))
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else cpu_name()
    return {
        "machine": {
            "device": chosen.type,
            "name": name,
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "load_before": load,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "flashlib": flashlib.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "triton": version("triton"),
        },
        "shape": f"B={BATCH} H={HEADS} D={DIM} float32",
        "methods": list(METHODS),
        "memory_note": "sdpa on the CPU: what PyTorch allocates; buffers inside its own kernel are not seen",
        "cases": cases,
        "ratios": [_ratios(c) for c in cases],
        "exponents": _exponents(cases),
    }
