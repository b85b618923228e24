"""Writes docs/GPU.md and its pictures from a benchmark on a GPU: the only way figures get there.

python -m flashlib bench --json --out result.json
python -m tools.gpu_page result.json

Without a file it writes the page that says that nothing has been measured yet.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flashlib.bench_gpu.figure import save
from flashlib.bench_gpu.machine import chip
from tools.course import ROOT

PAGE, PICTURES = Path("docs/GPU.md"), Path("docs/img")
METHOD = """## How it is measured

One command, about three minutes, on a machine with an NVIDIA GPU from Turing (T4) on:

```
python -m flashlib bench --json --out result.json
python -m tools.gpu_page result.json
```

1. **Exactness first.** Ragged lengths, causal masks with Sq < Sk and Sq > Sk, grouped heads, D of 40, 64, 128 and 256,
   a dO with stride 0, dropout with the mask of `tiled`: forward and backward through the Triton kernels in every dtype
   of the chip, by the error budget of chapter 01, twice, and both times the same bits. If a result is wrong, the
   command names it, times nothing and exits with 1 (`--anyway` times nonetheless).
2. **Who.** Ours; SDPA's flash, efficient, cuDNN and math kernels, each alone; FlexAttention, compiled; flash-attn where
   it is installed. A kernel that refuses a case gives its reason, one that runs out of memory is noted as such.
3. **What.** Forward, and forward with backward; D = 64 and 128; causal and full; N = 512 to 16 384 with B·N = 16 384
   and H·D = 2048; float16, and bfloat16 from Ampere on.
4. **Time.** CUDA events. Two calls to warm up, then all kernels in turn, up to 25 rounds, in an order that turns round;
   the median. Before each call twice the L2 cache is overwritten. If the time runs short there are fewer rounds, at
   least 3, or cases are left out, and the page says how many. `--seconds` sets another limit. Triton keeps what it
   has compiled: on a machine with few cores, run the command twice and keep the second result.
5. **TFLOP/s.** 4·B·H·Sq·Sk·D FLOP forward; of a causal mask only the pairs that see each other, to the last one.
   The backward counts 2.5 times the forward. FLOP that a kernel does beyond that earn nothing.
6. **Memory.** The most that PyTorch's allocator held during a call, beyond q, k, v and dO, results included.

Our causal mask is aligned to the bottom right, that of SDPA's `is_causal` to the top left. Here Sq = Sk, where they
agree.

`python -m flashlib bench --tune` tries tile sizes near those of `flashlib/algorithms/tiles.py`: compiled for the chip
first, timed if they neither spill nor ask for too much memory, the best checked for exactness. It prints rows to paste.
"""
EMPTY = """# On a GPU

**Not measured yet.** The kernels have been compiled ahead of time for seven chips and run in Triton's interpreter; no
GPU has been at hand to time them. No speed is promised here, and no figure stands below.

What will stand here, written by the second command below and by nothing else: the chip, its driver, clocks and
versions; whether every result was right; TFLOP/s against N, as a figure for each dtype and pass, with the chip's dense
peak; tables of TFLOP/s and of peak memory; and what the time did not allow.

"""


def _cell(row: dict[str, Any], key: str, scale: float) -> str:
    if row["status"] == "ok":
        return f"{row[key] * scale:.0f}" if row[key] * scale >= 100 else f"{row[key] * scale:.1f}"
    return {"out of memory": "no memory", "refused": "refuses", "not measured": "not measured"}[row["status"]]


def _table(result: dict[str, Any], dtype: str, kind: str, key: str, scale: float) -> list[str]:
    cases = [c for c in result["cases"] if (c["dtype"], c["pass"]) == (dtype, kind)]
    lines = ["| D | mask | N | " + " | ".join(result["methods"]) + " |", "|---" * (3 + len(result["methods"])) + "|"]
    for c in sorted(cases, key=lambda c: (c["d"], c["causal"], c["n"])):
        cells = [_cell(c["methods"][m], key, scale) for m in result["methods"]]
        lines.append(f"| {c['d']} | {'causal' if c['causal'] else 'full'} | {c['n']} | " + " | ".join(cells) + " |")
    return lines


def _machine(m: dict[str, Any]) -> str:
    def known(key: str, unit: str = "") -> str:
        return (
            "unknown" if m.get(key) is None else f"{m[key]:g}{unit}" if isinstance(m[key], float) else f"{m[key]}{unit}"
        )

    at_work = m.get("sm_clock_mhz_at_work") or []
    during = f"{min(at_work):g} to {max(at_work):g} MHz right after work" if at_work else "at work: unknown"
    return (
        f"{m['name']}, capability {m['capability'][0]}.{m['capability'][1]}, {m['sms']} SMs, "
        f"{m['memory_bytes'] / 2**30:.0f} GiB. Driver {known('driver')}, power limit {known('power_limit_w', ' W')}; "
        f"SM clock at most {known('sm_clock_max_mhz', ' MHz')}, {during}. PyTorch {m['torch']}, CUDA {m['cuda']}, "
        f"cuDNN {known('cudnn')}, triton {m['triton']}, flash-attn {m.get('flash_attn') or 'not installed'}, flashlib "
        f"{m['flashlib']}, Python {m['python']}."
    )


def page(result: dict[str, Any], pictures: list[tuple[Path, str]], folder: Path) -> str:
    """The page as Markdown. `pictures` are (file, alt text); links are relative to `folder`."""
    lines = result["exactness"]["lines"]
    wrong = [x for x in lines if not x["ok"]]
    none = [x for x in lines if x["refused"]]
    out = ["# On a GPU", "", _machine(result["machine"]), "", "## Is it right?", ""]
    right = len(lines) - len(wrong) - len(none)
    out += [f"{right} of {len(lines)} cases are within the error budget, with the same bits twice.", ""]
    out += [f"- **Wrong**: {x['case']}, {x['dtype']}: {'; '.join(x['says'])}" for x in wrong]
    out += [f"- No tile on this chip, so another implementation is used: {x['case']}, {x['dtype']}" for x in none]
    out += [""] if wrong or none else []
    out += ["## How fast, how much memory?", "", f"{result['shape']}. " + " ".join(result["how"]), ""]
    out += [f"- {line}" for line in result["plan"]["says"]] + ([""] if result["plan"]["says"] else [])
    if not chip(result["machine"]["name"], result["machine"].get("sms")):
        out += ["The course has no data sheet for this chip: the figures have no roof.", ""]
    for path, alt in pictures:
        out += [f"![{alt}]({path.relative_to(folder).as_posix()})", ""]
    for dtype in dict.fromkeys(c["dtype"] for c in result["cases"]):
        for kind in dict.fromkeys(c["pass"] for c in result["cases"]):
            what = f"{dtype}, {kind.replace('+', ' and ')}"
            out += [f"### TFLOP/s, {what}", "", *_table(result, dtype, kind, "tflops", 1), ""]
            out += [f"### Peak extra memory in MiB, {what}", "", *_table(result, dtype, kind, "peak_bytes", 2**-20), ""]
    refused = [
        f"- {name}, {c['dtype']}, D = {c['d']}: {row['why']}"
        for c in result["cases"]
        for name, row in c["methods"].items()
        if row["status"] == "refused"
    ]
    if refused:
        out += ["### Who refused, and why", "", *dict.fromkeys(refused), ""]
    return "\n".join(out) + "\n" + METHOD


def write(root: Path, result: dict[str, Any] | None) -> None:
    """Write the page under `root`, and the pictures if there is a result."""
    pictures = save(result, root / PICTURES) if result else []
    target = root / PAGE
    target.write_text(page(result, pictures, target.parent) if result else EMPTY + METHOD, encoding="utf-8")


def main(words: list[str]) -> int:
    """Exit status 2 for a file that is no benchmark of a GPU."""
    if len(words) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    result = json.loads(Path(words[0]).read_text(encoding="utf-8")) if words else None
    if result is not None and result.get("kind") != "gpu":
        print(f"{words[0]} was not measured on a GPU", file=sys.stderr)
        return 2
    write(ROOT, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
