"""The whole of it: what machine, is it right, how fast, how much memory. Plain data for JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from flashlib.bench_gpu import exact, machine
from flashlib.bench_gpu.measure import Bench
from flashlib.bench_gpu.methods import Method, methods
from flashlib.bench_gpu.plan import HIDDEN, LEAST_ROUNDS, LENGTHS, MOST_ROUNDS, TOKENS, WIDTHS, Budget, dtypes, grid
from flashlib.setup import cores

BUDGET_S = 165.0
TIMING_S = 60.0  # the clock gets at least this much, however long the compilers took before
ASK_AGAIN = 6  # checks that raised, at most
HOW = (
    "TFLOP/s: 4·B·H·D FLOP for each pair (query, key) that sees each other, forward; 3.5 times that forward and "
    "backward (two matmuls forward, five backward). A causal mask counts its pairs to the last one.",
    "Time: CUDA events; two calls to warm up, then all methods in turn, round after round; the median of the rounds. "
    "Before each call the L2 cache is overwritten.",
    "Memory: the most that PyTorch's allocator held during the call beyond q, k, v and dO, results included.",
    "FlexAttention is compiled for each length; where the time for that was used up, it was not measured.",
)


@dataclass
class Parts:
    """What a run stands on; on a GPU `on_this_gpu` makes it, in tests fakes do."""

    device: Any
    capability: tuple[int, int]
    clock: Any
    facts: Callable[[], dict[str, Any]]
    methods: list[Method] = field(default_factory=methods)
    workers: int = 0
    tiny: bool = False
    lengths: tuple[int, ...] = LENGTHS
    tokens: int = TOKENS
    hidden: int = HIDDEN


def on_this_gpu() -> Parts:
    """The current CUDA device."""
    import torch

    from flashlib.bench_gpu.clock import CudaClock

    device = torch.device("cuda", torch.cuda.current_device())
    return Parts(
        device, torch.cuda.get_device_capability(device), CudaClock(device), lambda: machine.facts(device),
        workers=min(cores(), 8),
    )  # fmt: skip


def run(parts: Parts, *, budget_s: float = BUDGET_S, anyway: bool = False, quick: bool = False) -> dict[str, Any]:
    """Exactness first; if a result is wrong, nothing is timed unless ``anyway``.

    Parameters
    ----------
    budget_s : seconds for all of it. What does not fit is left out, the least telling first, and the result says so.
    quick : the two shortest lengths only: to see that it works.

    Returns
    -------
    dict : ``machine``, ``exactness``, ``how``, ``methods``, ``cases`` (s, TFLOP/s, B), ``plan``.
    """
    checking = Budget(budget_s)
    before = parts.facts()
    exactness = check_all(parts) | {"seconds": checking.spent}
    budget = Budget(max(checking.left, min(TIMING_S, budget_s)))
    cases: list[dict[str, Any]] = []
    lengths = tuple(sorted(parts.lengths)[:2]) if quick else parts.lengths
    todo = grid(dtypes(parts.capability), lengths=lengths, tokens=parts.tokens, hidden=parts.hidden)
    clocks = []
    if exactness["ok"] or anyway:
        bench = Bench(parts.methods, parts.clock, budget, parts.device)
        with tqdm(todo, file=sys.stderr, unit="case", disable=None) as bar:
            for i, case in enumerate(bar):
                bar.set_description(f"{case} ({budget.left:.0f} s left)")
                cases.append(bench.case(case, len(todo) - i))
                if i % 16 == 15:  # right after work, before the clocks fall
                    clocks.append(parts.facts().get("sm_clock_mhz"))
    return {
        "kind": "gpu",
        "machine": before | {"sm_clock_mhz_at_work": [c for c in clocks if c is not None]},
        "exactness": exactness,
        "how": list(HOW),
        "flush_bytes": getattr(parts.clock, "flush_bytes", 0),
        "shape": f"B·N = {parts.tokens}, H·D = {parts.hidden}",
        "methods": [m.name for m in parts.methods],
        "cases": cases,
        "plan": {
            "budget_s": budget_s,
            "timing_s": budget.seconds,
            "spent_s": checking.spent,
            "says": says(cases, budget, exactness["ok"], budget_s - exactness["seconds"]),
        },
    }


def check_all(parts: Parts) -> dict[str, Any]:
    """The exactness set in every dtype of the chip; beside it, our kernels are compiled for the clock."""
    checks = [(name, t) for t in exact.dtypes(parts.capability) for name in exact.CASES]
    jobs: list[exact.Job] = [(exact.check, (name, t, str(parts.device), parts.tiny)) for name, t in checks]
    if parts.workers:
        kinds = [(d, c, t, str(parts.device), parts.hidden)
                 for t in dtypes(parts.capability) for d in WIDTHS for c in (True, False)]  # fmt: skip
        jobs += [(exact.warm, kind) for kind in kinds]
    found: dict[int, Any] = {}
    with tqdm(total=len(jobs), file=sys.stderr, unit="check", desc="is it right?", disable=None) as bar:
        for i, result in exact.in_processes(jobs, parts.workers):
            found[i] = result
            bar.update()
    lines = [_line(*checks[i], found[i]) for i in range(len(checks))]
    # One that dies takes its neighbours along, and many at once may lack memory: whoever raised is asked alone.
    for i in [i for i, x in enumerate(lines) if x["raised"]][: ASK_AGAIN if parts.workers else 0]:
        lines[i] = _line(*checks[i], dict(exact.in_processes([jobs[i]], 1))[0])
    # A chip with no tiles at all has shown nothing: that is not right either.
    return {"ok": all(x["ok"] for x in lines) and not all(x["refused"] for x in lines), "lines": lines}


def _line(name: str, dtype: str, result: Any) -> dict[str, Any]:
    if isinstance(result, BaseException):
        text = f"its process died: {type(result).__name__}: {result}"
        return {"case": name, "dtype": dtype, "ok": False, "refused": False, "raised": True, "says": [text]}
    return result


def says(cases: list[dict[str, Any]], budget: Budget, right: bool, left_s: float) -> list[str]:
    """In words, what the time did not allow. Empty if every case had all its rounds.

    ``left_s``: what the exactness set, with its compilers, had left of the time.
    """
    if not cases:
        return [] if right else ["nothing was timed: a result is wrong"]
    rows = [m for c in cases for m in c["methods"].values()]
    few = [m["rounds"] for m in rows if m["status"] == "ok" and m["rounds"] < MOST_ROUNDS]
    missing = sum(m["status"] == "not measured" for m in rows)
    out = [] if right else ["timed although a result is wrong"]
    if left_s < budget.seconds - 1:
        out.append(
            f"compilers and exactness left {max(0.0, left_s):.0f} s, and {budget.seconds:.0f} s were taken for timing; "
            "a second run finds the kernels compiled"
        )
    if few:
        out.append(
            f"{len(few)} of {len(rows)} measurements have fewer than {MOST_ROUNDS} rounds (at least {min(few)}), "
            f"to stay in {budget.seconds:.0f} s of timing"
        )
    if missing:
        out.append(f"{missing} of {len(rows)} measurements were left out, to stay in {budget.seconds:.0f} s of timing")
    assert not few or min(few) >= LEAST_ROUNDS
    return out
