"""Writes the README's measured figures and its picture from a benchmark: the only way they get there.

python -m flashlib bench --cpu --json --out bench.json
python -m tools.readme_results bench.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

import flashlib
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from flashlib.instruments.closed_forms import flash_bytes, flash_tiles, four_steps_bytes
from flashlib.instruments.machine import CHIPS
from flashlib.show import curves
from flashlib.show.style import CALLED
from flashlib.show.units import nbytes
from tools.course import ROOT

N, D = 4096, 64
BEGIN, END = "<!-- results:begin (written by tools/readme_results.py) -->", "<!-- results:end -->"


def _case(bench: dict[str, Any], n: int, causal: bool, kind: str) -> dict[str, Any]:
    return next(c for c in bench["cases"] if (c["n"], c["causal"], c["pass"]) == (n, causal, kind))["methods"]


def _row(label: str, naive: str, ours: str, ratio: str) -> str:
    return f"| {label} | {naive} | {ours} | {ratio} |"


def _measured(bench: dict[str, Any]) -> list[str]:
    rows = []
    for label, kind in (("forward", "forward"), ("forward and backward", "forward+backward")):
        m = _case(bench, N, False, kind)
        a, b = m["naive"]["peak_bytes"], m["tiled"]["peak_bytes"]
        rows.append(_row(f"peak extra memory, {label}", nbytes(a), nbytes(b), f"{a / b:.0f} times less"))
    for label, causal in (("forward, full", False), ("forward, causal", True)):
        m = _case(bench, N, causal, "forward")
        a, b = m["naive"]["median_s"], m["tiled"]["median_s"]
        rows.append(_row(f"time, {label}", f"{a * 1e3:.0f} ms", f"{b * 1e3:.0f} ms", f"{a / b:.1f} times faster"))
    return rows


def _counted() -> str:
    sram = CHIPS["A100"].sram_per_block or 0
    block_q, block_k = flash_tiles(sram, D, D, 2)
    a = four_steps_bytes(N, N, D, D, 2, sram_bytes=sram)
    b = flash_bytes(N, N, D, D, block_q, block_k, 2)
    return _row("bytes moved, one head, float16, SRAM of an A100", nbytes(a), nbytes(b), f"{a / b:.0f} times less")


def _error() -> str:
    x = draw(1, library="torch", dtype="float32")
    exact = Problem(*x[:3], causal=True)
    errors = [exact.compare(o=flashlib.attention(*x[:3], causal=True, impl=i))[0] for i in ("naive", "tiled")]
    assert all(line.ok for line in errors)
    naive, ours = (f"{line.error:.1e}" for line in errors)
    return _row("largest error against float64, hard float32 inputs", naive, ours, f"budget {errors[0].budget:.1e}")


def block(bench: dict[str, Any]) -> str:
    """The README's block: one table, one picture, and where the numbers come from."""
    m = bench["machine"]
    table = [
        "| at N = 4096 | four steps | yours, by tiles | remark |",
        "|---|---|---|---|",
        *_measured(bench),
        _counted(),
        _error(),
    ]
    points = [(c["n"], c["methods"]) for c in bench["cases"] if c["pass"] == "forward+backward" and not c["causal"]]
    last = {k: nbytes(points[-2][1][k]["peak_bytes"]) for k in ("naive", "tiled")}
    alt = (
        f"Peak extra memory of forward and backward against the number of tokens, both axes logarithmic. At N = 4096 "
        f"the four steps take {last['naive']} and grow with the square of N; tiles take {last['tiled']} and grow at "
        f"most in a line."
    )
    source = (
        f"Memory and time: `python -m flashlib bench --cpu`, {bench['shape']}, on {m['name']}, {m['cores']} cores, "
        f"PyTorch {m['torch']}; bytes: counted in chapter 04, here by its formula; error: chapter 01's budget."
    )
    return "\n".join([BEGIN, *table, "", source, "", f"![{alt}](docs/img/memory.png)", END])


def picture(bench: dict[str, Any], path: Path) -> None:
    """Peak memory of forward and backward against N, as PNG."""
    series: dict[str, tuple[list[int], list[int]]] = {}
    for c in bench["cases"]:
        if c["pass"] == "forward+backward" and not c["causal"]:
            for name in ("naive", "tiled"):
                if name in c["methods"]:
                    xs, ys = series.setdefault(CALLED[name], ([], []))
                    xs.append(c["n"])
                    ys.append(c["methods"][name]["peak_bytes"])
    m = _case(bench, N, False, "forward+backward")
    at = {name: nbytes(m[name]["peak_bytes"]) for name in CALLED}
    fig = curves.loglog(
        series,
        last=True,
        xlabel=f"tokens N ({bench['shape']})",
        ylabel="peak memory beyond the inputs",
        title=f"Forward and backward, {N:,} tokens: four steps {at['naive']}, tiles {at['tiled']}",
    )
    fig.savefig(path, dpi=100)


def main() -> int:
    """Write README.md and docs/img/memory.png; exit status 2 without a benchmark."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    bench = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    new, found = re.subn(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block(bench), text, flags=re.S)
    if not found:
        raise SystemExit(f"README.md lacks {BEGIN} … {END}")
    readme.write_text(new, encoding="utf-8")
    (ROOT / "docs/img").mkdir(exist_ok=True)
    picture(bench, ROOT / "docs/img/memory.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
