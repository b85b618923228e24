"""TFLOP/s against N: a panel for each D and mask, our line beside the others, the chip's dense peak as the roof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flashlib.bench_gpu.machine import chip
from flashlib.show.frame import canvas
from flashlib.show.style import INK, SMALL, looks, styled
from flashlib.show.units import count

# Names that the house's style knows (ours is blue as tiled, SDPA math is the four steps), or that get their own colour.
NAMES = {
    "ours": "tiled",
    "SDPA flash": "sdpa",
    "SDPA math": "naive",
    "SDPA efficient": "efficient",
    "SDPA cuDNN": "cudnn",
}


def points(result: dict[str, Any], method: str, **wanted: Any) -> tuple[list[int], list[float]]:
    """N and TFLOP/s of one line, by N; only what was measured."""
    rows = [
        (c["n"], c["methods"][method]["tflops"])
        for c in result["cases"]
        if all(c[k] == v for k, v in wanted.items()) and c["methods"][method]["status"] == "ok"
    ]
    return [n for n, _ in sorted(rows)], [y for _, y in sorted(rows)]


def roof(result: dict[str, Any], dtype: str) -> float | None:
    """The chip's dense TFLOP/s for the dtype, if its data sheet is known."""
    known = chip(result["machine"]["name"], result["machine"].get("sms"))
    return known.flops[dtype] / 1e12 if known and dtype in known.flops else None


@styled
def figure(result: dict[str, Any], dtype: str, kind: str) -> Figure:
    """One dtype and pass of a GPU benchmark, as four panels.

    Parameters
    ----------
    result : what `run.run` gives.
    dtype : "float16" or "bfloat16". kind : "forward" or "forward+backward".

    Raises
    ------
    ValueError if nothing of it was measured.
    """
    panels = sorted({(c["d"], c["causal"]) for c in result["cases"]})
    drawn = [m for m in result["methods"] if points(result, m, dtype=dtype, **{"pass": kind})[0]]
    if not drawn:
        raise ValueError(f"nothing was measured in {dtype}, {kind}")
    top = roof(result, dtype)
    title = f"{result['machine']['name']}, {dtype}, {kind.replace('+', ' and ')}: TFLOP/s against N"
    columns = 2
    fig, axes = canvas(
        -(-len(panels) // columns), columns, title=title, size=(9.0, 8.0), sharex=True, sharey=True, squeeze=False
    )
    style = looks([NAMES.get(m, m) for m in drawn])
    lengths = sorted({c["n"] for c in result["cases"]})
    for ax, (d, causal) in zip(axes.flat, panels, strict=False):
        for method in drawn:
            x, y = points(result, method, dtype=dtype, d=d, causal=causal, **{"pass": kind})
            look, lone = style[NAMES.get(method, method)], len(x) == 1  # a lone point must not hide behind a line
            ax.plot(
                x, y, color=look.color, marker=look.marker, linestyle=look.line, markeredgecolor="white",
                linewidth=3.6 if method == "ours" else 2.2, label=method,
                zorder=5 if lone else 4 if method == "ours" else 3, markersize=11 if lone else 8,
            )  # fmt: skip
        if top:
            ax.axhline(top, color=INK, linewidth=1.6, linestyle=(0, (7, 3)), marker="", zorder=2)
            ax.text(0.02, top, f"dense peak {top:.0f}", transform=ax.get_yaxis_transform(), va="bottom", fontsize=SMALL)
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [count(n) for n in lengths])
        ax.set_ylim(bottom=0)
        if top:
            ax.set_ylim(top=1.12 * top)
        ax.set_title(f"D = {d}, {'causal' if causal else 'full'}")
    for ax in axes[-1]:
        ax.set_xlabel("tokens N")
    for ax in axes[:, 0]:
        ax.set_ylabel("TFLOP/s")
    lines = {label: h for ax in axes.flat for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend([lines[m] for m in drawn], drawn, loc="outside lower center", ncols=4, handlelength=3)
    return fig


def alt(result: dict[str, Any], dtype: str, kind: str) -> str:
    """What the figure shows, in words, with the numbers at each panel's longest length."""
    parts = []
    for d, causal in sorted({(c["d"], c["causal"]) for c in result["cases"]}):
        ends = []
        for method in result["methods"]:
            x, y = points(result, method, dtype=dtype, d=d, causal=causal, **{"pass": kind})
            if x:
                ends.append(f"{method} {y[-1]:.0f} at N = {x[-1]}")
        if ends:
            parts.append(f"D = {d}, {'causal' if causal else 'full'}: {', '.join(ends)}")
    top = roof(result, dtype)
    peak = f" The chip's dense peak is {top:.0f}." if top else ""
    name = result["machine"]["name"]
    what = f"TFLOP/s of {kind.replace('+', ' and ')} in {dtype} against N on {name}, one line a kernel."
    return f"{what} {'; '.join(parts)}.{peak}"


def save(result: dict[str, Any], folder: Path, stem: str = "gpu") -> list[tuple[Path, str]]:
    """Write a PNG for each dtype and pass that was measured, and its alt text beside it: (file, alt)."""
    out = []
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in dict.fromkeys(c["dtype"] for c in result["cases"]):
        for kind in dict.fromkeys(c["pass"] for c in result["cases"]):
            if not any(points(result, m, dtype=dtype, **{"pass": kind})[0] for m in result["methods"]):
                continue
            path = folder / f"{stem}-{dtype}-{kind.replace('+', '-')}.png"
            figure(result, dtype, kind).savefig(path, dpi=100)
            text = alt(result, dtype, kind)
            path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
            out.append((path, text))
    return out
