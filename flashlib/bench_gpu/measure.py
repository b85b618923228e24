"""One case at a time: each method warmed up, then all of them in turn, round after round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from flashlib.bench_gpu.methods import Method, Refusal, attempt
from flashlib.bench_gpu.plan import Budget, Case

SLOW_REFUSAL = 1.0  # seconds; a method that takes this long to say no is not asked again with this dtype, D and pass


def inputs(case: Case, device: Any) -> list[Any]:
    """q, k, v, dO: (B, H, N, D), normal, on the device."""
    import torch

    generator = torch.Generator(device=device).manual_seed(case.n)
    shape = (case.batch, case.heads, case.n, case.d)
    dtype = getattr(torch, case.dtype)
    return [torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(4)]


def call_of(method: Method, case: Case, tensors: list[Any]) -> Callable[[], Any]:
    """A function that runs the method once on this case, forward or forward and backward."""
    import torch

    if method.layout == "bshd":
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]
    q, k, v, do = tensors
    run = method.prepare(q, case.causal)

    def forward() -> Any:
        with torch.no_grad():
            return run(q, k, v)

    def both() -> Any:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]  # the same memory; no gradient is kept between calls
        return torch.autograd.grad(run(*leaves), leaves, do)

    return forward if case.kind == "forward" else both


class Bench:
    """Measures cases; remembers what methods cost and which refused.

    Parameters
    ----------
    clock : has once(call) -> s, peak(call) -> B and wait(); `clock.CudaClock`, or a fake.
    methods, budget, device : as in `run.measure_all`.
    """

    def __init__(self, methods: list[Method], clock: Any, budget: Budget, device: Any) -> None:
        self.methods, self.clock, self.budget, self.device = methods, clock, budget, device
        self._refused: dict[tuple[Any, ...], Refusal] = {}

    def case(self, case: Case, cases_left: int) -> dict[str, Any]:
        """One case as plain data: for each method its time, TFLOP/s and peak memory, or why there are none."""
        rows: dict[str, dict[str, Any]] = {}
        ready: dict[str, tuple[Callable[[], Any], int]] = {}
        tensors = attempt(lambda: inputs(case, self.device)) if self.budget.left else None
        for method in self.methods:
            if isinstance(tensors, Refusal):
                rows[method.name] = {"status": tensors.status, "why": tensors.why}
                continue
            got = self._warm(method, case, tensors)
            if isinstance(got, Refusal):
                rows[method.name] = {"status": got.status, "why": got.why}
            else:
                call, once_s, peak = got
                ready[method.name] = call, self.budget.rounds(once_s, cases_left, len(self.methods))
                rows[method.name] = {"status": "ok", "peak_bytes": peak}
        for name, found in self._rounds(ready).items():
            rows[name] = _refused(found) if isinstance(found, Refusal) else rows[name] | _summary(found, case.flop)
        return {
            "pass": case.kind, "causal": case.causal, "n": case.n, "d": case.d, "dtype": case.dtype,
            "batch": case.batch, "heads": case.heads, "flop": case.flop,
            "methods": {m.name: rows[m.name] for m in self.methods},
        }  # fmt: skip

    def _warm(self, method: Method, case: Case, tensors: Any) -> Refusal | tuple[Callable[[], Any], float, int]:
        """First call (compilers), second call (how long it takes), third (memory); or why the method is left out."""
        why = self.budget.why_not(method.name, case.flop, compiled=method.compiled)
        if why:
            return Refusal("not measured", why)
        key = (method.name, case.dtype, case.d, case.kind)
        if key in self._refused:
            return self._refused[key]
        start = time.perf_counter()

        def work() -> tuple[Callable[[], Any], float, float, int]:
            call = call_of(method, case, tensors)
            call()
            self.clock.wait()
            first = time.perf_counter() - start
            return call, first, self.clock.once(call), self.clock.peak(call)

        got = attempt(work)
        spent = time.perf_counter() - start
        if isinstance(got, Refusal):
            if got.status == "refused" and spent > SLOW_REFUSAL:
                self._refused[key] = got
            return got
        call, first, once_s, peak = got
        self.budget.took(method.name, case.flop, first, once_s, compiled=method.compiled)
        return call, once_s, peak

    def _rounds(self, ready: dict[str, tuple[Callable[[], Any], int]]) -> dict[str, list[float] | Refusal]:
        """Seconds of each call. A slow moment of the machine falls on all alike; slow methods leave after few rounds.

        The order turns round every time, so that nobody always comes after the same neighbour.
        """
        found: dict[str, list[float] | Refusal] = {name: [] for name in ready}
        for turn in range(max((rounds for _, rounds in ready.values()), default=0)):
            names = [name for name, (_, rounds) in ready.items() if turn < rounds]
            for name in names if turn % 2 == 0 else reversed(names):
                times = found[name]
                if isinstance(times, Refusal):
                    continue
                seconds = attempt(lambda name=name: self.clock.once(ready[name][0]))  # type: ignore[misc]
                if isinstance(seconds, Refusal):
                    found[name] = seconds
                else:
                    times.append(seconds)
        return found


def _refused(refusal: Refusal) -> dict[str, Any]:
    return {"status": refusal.status, "why": refusal.why}


def _summary(seconds: list[float], flop: int) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "median_s": median, "low_s": min(seconds), "high_s": max(seconds), "rounds": len(seconds),
        "tflops": flop / max(median, 1e-12) / 1e12,
    }  # fmt: skip
