"""What the benchmark and the tuner say on a screen."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from flashlib.bench_gpu.tune import Found, snippet


def head(result: dict[str, Any]) -> list[str]:
    """The machine, whether the results are right, and what the time did not allow, in lines."""
    m = result["machine"]
    lines = result["exactness"]["lines"]
    refused = [x for x in lines if x["refused"]]
    wrong = [x for x in lines if not x["ok"]]
    out = [
        f"{m['name']}, capability {m['capability'][0]}.{m['capability'][1]}, driver {m['driver'] or 'unknown'}, "
        f"CUDA {m['cuda']}; torch {m['torch']}, triton {m['triton']}",
        f"exactness: {len(lines) - len(wrong) - len(refused)} of {len(lines)} cases within the error budget, the same "
        f"bits twice" + (f"; {len(refused)} have no tile on this chip" if refused else ""),
    ]
    for x in wrong:
        out.append(f"WRONG: {x['case']}, {x['dtype']}: {'; '.join(x['says'])}")
    return out + [f"note: {line}" for line in result["plan"]["says"]]


def show(console: Console, result: dict[str, Any]) -> None:
    """TFLOP/s and memory of every method, case by case, and each reason for a gap once."""
    console.print("\n".join(head(result)), highlight=False, markup=False, soft_wrap=True)
    gaps: dict[str, None] = {}
    for title, key, scale in (("TFLOP/s", "tflops", 1.0), ("Peak extra memory (MiB)", "peak_bytes", 2.0**-20)):
        table = Table("dtype", "pass", "D", "mask", "N", *result["methods"], title=title)
        for c in sorted(result["cases"], key=lambda c: (c["dtype"], c["pass"], c["d"], c["causal"], c["n"])):
            cells = []
            for name in result["methods"]:
                row = c["methods"][name]
                cells.append(f"{row[key] * scale:.1f}" if row["status"] == "ok" else _gap(row["status"]))
                if row["status"] == "refused":
                    gaps[f"{name}, {c['dtype']}, D={c['d']}: {row['why']}"] = None
            mask = "causal" if c["causal"] else "full"
            table.add_row(
                c["dtype"], c["pass"].replace("forward+backward", "both"), str(c["d"]), mask, str(c["n"]), *cells
            )
        if result["cases"]:
            console.print(table)
    for line in [*gaps, *(result["how"] if result["cases"] else [])]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _gap(status: str) -> str:
    return {"out of memory": "no memory", "refused": "refused", "not measured": "-"}[status]


def show_tuned(console: Console, found: list[Found], capability: tuple[int, int]) -> None:
    """The best tile beside the one in the table, and rows ready to paste."""
    table = Table("kernel", "D", "dtype", "in the table", "ms", "best", "ms", "gain", "tried", "dropped", "note")
    for f in found:
        gain = f"{f.current_s / f.best_s - 1:+.0%}" if f.current_s and f.best_s else "-"
        dropped = ", ".join(f"{n} {why}" for why, n in f.dropped.items()) or "-"
        row = (f.kernel, str(f.D), f.dtype, _tile(f.current), _ms(f.current_s), _tile(f.best), _ms(f.best_s), gain)
        table.add_row(*row, f"{f.tried} of {f.candidates}", dropped, f.note)
    console.print(table)
    console.print("For flashlib/algorithms/tiles.py; then run `python -m flashlib compile`:\n", highlight=False)
    console.print(snippet(found, capability), highlight=False, markup=False, soft_wrap=True)


def _tile(t: Any) -> str:
    return f"{t[0]}×{t[1]} w{t[2]} s{t[3]}" if t else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"
