"""What `python -m flashlib bench` and `bench --tune` do on a GPU; each returns its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from flashlib.bench_gpu import tables

TUNE_S = 1200.0


def bench(
    console: Console, *, as_json: bool, out: Path | None, quick: bool, anyway: bool, figures: Path | None,
    seconds: float | None, parts: Any = None,
) -> int:  # fmt: skip
    """Measure, print tables or JSON, write what was asked for; 1 if a result is wrong."""
    from flashlib.bench_gpu import run

    result = run.run(parts or run.on_this_gpu(), budget_s=seconds or run.BUDGET_S, anyway=anyway, quick=quick)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
    else:
        tables.show(console, result)
    if figures and result["cases"]:
        from flashlib.bench_gpu.figure import save

        for path, _ in save(result, figures):
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True) if not as_json else None
    return int(not result["exactness"]["ok"])


def tune(console: Console, why_not: str, *, seconds: float | None) -> int:
    """Propose tile sizes; 2, with one line, where there is no GPU to try them on."""
    if why_not:
        console.print(f"--tune times kernels on a GPU: {why_not}", highlight=False, markup=False, soft_wrap=True)
        return 2
    import torch

    from flashlib.bench_gpu import tune as tuning
    from flashlib.bench_gpu.clock import CudaClock
    from flashlib.bench_gpu.launches import Launches

    device = torch.device("cuda", torch.cuda.current_device())
    capability = torch.cuda.get_device_capability(device)
    launches = Launches(device, CudaClock(device), capability)
    found = tuning.tune(launches, capability, seconds=seconds or TUNE_S)
    if not found:
        console.print("the table has no entry for this chip to start from", highlight=False)
        return 2
    tables.show_tuned(console, found, capability)
    return 0
