"""The command line: ``python -m flashlib doctor``, ``bench``, ``compile`` and ``loops``; exercises: `cli_grading`."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from flashlib import cli_grading

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools around the course on FlashAttention.")
# Tables go to a log or a file as often as to a screen; there rich would cut them at 80 columns.
console = Console(width=None if Console().is_terminal else 120)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback()
def _tools() -> None:
    """Tools around the course on FlashAttention."""


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show versions, the chip, what each chapter does on this machine, and what to install if something is missing."""
    from flashlib.doctor import examine

    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _show_doctor(facts)
    raise typer.Exit(code=int(not facts["ok"]))


def _show_doctor(facts: dict[str, Any]) -> None:
    chip = facts["chip"]
    capability = f", capability {chip['capability'][0]}.{chip['capability'][1]}" if chip["kind"] == "cuda" else ""
    what = (
        f"{chip['name']}{capability}"
        if chip["kind"] == "cuda"
        else f"{chip['name']}, {chip['cores']} cores; no CUDA GPU"
    )
    lines = [
        f"flashlib {facts['flashlib']}, Python {facts['python']}, {facts['platform']}",
        f"chip: {what}",
        *([f"note: {chip['note']}"] if chip["note"] else []),
        f"Triton kernels: {facts['triton_kernels']}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False)
    packages = Table("package", "version", "wanted", "state", title="Packages")
    for name, p in facts["packages"].items():
        state = p["problem"] or ("ok" if p.get("fits_torch", "yes") == "yes" else f"ok ({p['fits_torch']})")
        packages.add_row(name, p["version"] or "-", p["wanted"], state)
    console.print(packages)
    if facts["chapters"]:
        chapters = Table("chapter", "on this machine", title="Chapters")
        for c in facts["chapters"]:
            chapters.add_row(f"{c['number']:02d} · {c['title']}", c["here"])
        console.print(chapters)
    if facts["ok"]:
        console.print("Nothing is missing.")
    else:
        console.print("To put it right:")
        for line in facts["install"]:
            console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def bench(
    cpu: Annotated[bool, typer.Option("--cpu", help="Measure on the CPU even where there is a GPU.")] = False,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON to this file too.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short sequences and few repeats: to see that it works.")
    ] = False,
    figures: Annotated[Path | None, typer.Option("--figures", help="GPU: write figures into this folder.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="GPU: time even if a result is wrong.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="GPU: propose tile sizes for this chip instead.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=10, help="GPU: time limit; 165, and 1200 with --tune.")
    ] = None,
) -> None:
    """Time and memory: on a GPU our kernels beside those people use, on a CPU naive, tiled and SDPA attention.

    On a GPU the kernels are first held against the error budget; if a result is wrong, the exit status is 1.
    """
    from flashlib.bench_gpu import command, machine

    why_not = "" if cpu and not tune else machine.gpu_to_bench()
    if tune:
        raise typer.Exit(code=command.tune(console, why_not, seconds=seconds))
    if not cpu and not why_not:
        raise typer.Exit(
            code=command.bench(
                console, as_json=as_json, out=out, quick=quick, anyway=anyway, figures=figures, seconds=seconds
            )
        )
    if why_not:
        print(f"{why_not}: measured on the CPU instead, naive, tiled and SDPA attention in float32", file=sys.stderr)
    from flashlib import bench as measuring

    result = measuring.run(device="cpu", quick=quick)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
    else:
        _show_bench(result)


def _show_bench(result: dict[str, Any]) -> None:
    m = result["machine"]
    console.print(
        f"{m['device']}: {m['name']}, {m['threads']} threads; torch {m['torch']}; {result['shape']}", highlight=False
    )
    for title, key, scale, unit in (
        ("Time", "median_s", 1e3, "ms"),
        ("Peak extra memory", "peak_bytes", 2**-20, "MiB"),
    ):
        table = Table("pass", "mask", "N", *result["methods"], title=f"{title} ({unit})")
        for case in result["cases"]:
            cells = [case["methods"].get(name, {}).get(key) for name in result["methods"]]
            row = (case["pass"], "causal" if case["causal"] else "full", str(case["n"]))
            table.add_row(*row, *("not run" if c is None else f"{c * scale:.2f}" for c in cells))
        console.print(table)
    ratios = Table(
        "pass", "mask", "N", "naive / tiled, time", "tiled / sdpa, time", "naive / tiled, memory", title="Ratios"
    )
    for r in result["ratios"]:
        numbers = (r["naive_over_tiled"], r["tiled_over_sdpa"], r["memory_naive_over_tiled"])
        row = (r["pass"], "causal" if r["causal"] else "full", str(r["n"]))
        ratios.add_row(*row, *("-" if c is None else f"{c:.2f}" for c in numbers))
    console.print(ratios)
    grown = Table("pass", "mask", *result["methods"], title="Peak extra memory grows as N to the power")
    for e in result["exponents"]:
        cells = [e["memory"].get(name) for name in result["methods"]]
        mask = "causal" if e["causal"] else "full"
        grown.add_row(e["pass"], mask, *("-" if c is None else f"{c:.2f}" for c in cells))
    console.print(grown)


@app.command("compile")
def compile_tiles(  # a name of its own: `compile` is Python's
    chip: Annotated[str | None, typer.Option("--chip", help="Only this chip, as sm80.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only float16, bfloat16 or float32.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only forward, dkdv, dq or decode.")] = None,
    width: Annotated[int | None, typer.Option("--width", help="Only 16, 32, 64, 128 or 256: D, padded.")] = None,
    dropout: Annotated[bool, typer.Option("--dropout", help="With dropout, and the tiles for it.")] = False,
    ragged: Annotated[bool, typer.Option("--ragged", help="For padded D: 8 below each width, and ¾ of it.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Compilers at once; one a core by default.")] = None,
    as_json: Json = False,
) -> None:
    """Compile every tile size for its chip, with no GPU; exit 1 on spills, too much memory or no tensor cores.

    Plain, a width D is a power of two and there is no dropout. With --dropout, and with --ragged for other D, kernels
    may take other tiles, and those are compiled. Both at once may spill.
    """
    from tqdm import tqdm

    from flashlib.instruments import tile_table

    if find_spec("triton") is None:
        console.print("Triton is not installed here (it runs on Linux): nothing can be compiled.")
        raise typer.Exit(code=2)
    table = tile_table.cases(
        tile_table.all_entries(), chip=chip, dtype=dtype, kernel=kernel, width=width, dropout=dropout, ragged=ragged
    )  # fmt: skip
    if not table:
        raise typer.BadParameter("no entry of flashlib.algorithms.tiles is like that")
    rows = {}
    with tqdm(total=len(table), file=sys.stderr, unit="kernel", disable=None) as bar:
        for i, result in tile_table.compile_table(table, jobs=jobs):
            rows[i] = tile_table.as_dict(table[i], result)
            bar.update()
    found = [rows[i] for i in range(len(table))]
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _show_compiled(found)
    raise typer.Exit(code=int(any(row["faults"] for row in found)))


def _show_compiled(rows: list[dict[str, Any]]) -> None:
    heads = ("kernel", "chip", "D", "dtype", "tile", "regs", "spill", "shared", "blocks")
    table = Table(title="Tiles, compiled ahead of time", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in (*heads, "instructions", "dots", "2ˣ", "memory"):
        table.add_column(head, no_wrap=True)
    for r in rows:
        tile = f"{r['block_m']}×{r['block_n']} w{r['warps']} s{r['stages']}"
        first = (r["kernel"], r["chip"], str(r["D"]), r["dtype"], tile)
        if "loops" not in r:
            table.add_row(*first, "refused")
            continue
        loops = sorted(r["loops"], key=lambda loop: loop["total"])  # full tiles first, then those that need a mask
        kinds = ["/".join(str(loop[k]) for loop in loops) for k in ("total", "special_function", "load_store")]
        dots = "/".join(str(loop["tensor_core"]) for loop in loops)
        if not any(loop["tensor_core"] for loop in loops):
            dots = "/".join(f"{loop['fma']}F" for loop in loops)
        shared = f"{r['shared_bytes'] / 1024:.0f}/{r['shared_limit'] // 1024}K"
        numbers = (r["registers"], r["spill_bytes"], shared, r["blocks_per_sm"], kinds[0], dots, *kinds[1:])
        table.add_row(*first, *map(str, numbers))
    console.print(table)
    console.print(
        "regs, spill (B): a thread; shared: of what the chip gives a block; blocks: at once on an SM. Then the loops\n"
        "that hold the dots, full tiles/masked tiles: all instructions, matrix instructions (F: multiply-adds, where\n"
        "there are none), 2ˣ and the like, loads and stores.",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    for r in (r for r in rows if r["faults"]):
        what = f"{r['kernel']} {r['chip']} D={r['D']} {r['dtype']} {r['block_m']}×{r['block_n']}"
        console.print(f"{what}: {'; '.join(r['faults'])}", highlight=False, markup=False, soft_wrap=True)
    bad = sum(bool(r["faults"]) for r in rows)
    triton = next((r["triton"] for r in rows if "triton" in r), "?")
    console.print(f"{len(rows) - bad} of {len(rows)} as promised (triton {triton})", highlight=False)


@app.command()
def loops(
    chip: Annotated[str | None, typer.Option("--chip", help="Only this chip, as sm80.")] = None,
    write: Annotated[Path | None, typer.Option("--write", help="Write the tables into this page.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Compilers at once; one a core by default.")] = None,
    as_json: Json = False,
) -> None:
    """Show where the instructions of the inner loops go, with no GPU; exit 1 if a loop is longer than its limit."""
    from tqdm import tqdm

    from flashlib.instruments import loop_table, tile_table

    if find_spec("triton") is None:
        console.print("Triton is not installed here (it runs on Linux): nothing can be compiled.")
        raise typer.Exit(code=2)
    table = loop_table.loop_cases(chip)
    if not table:
        raise typer.BadParameter(f"no chip is called {chip}")
    found = {}
    with tqdm(total=len(table), file=sys.stderr, unit="kernel", disable=None) as bar:
        for i, result in tile_table.compile_table(table, jobs=jobs):
            found[i] = result
            bar.update()
    page = loop_table.page_of(table, [found[i] for i in range(len(table))])
    if write:
        if chip or not page.triton.startswith(loop_table.TRITON + "."):
            raise typer.BadParameter(f"the page holds all chips, by triton {loop_table.TRITON}; this is {page.triton}")
        loop_table.write(page, write)
    if as_json:
        print(json.dumps(loop_table.as_dicts(page), indent=2, ensure_ascii=False))
    elif not write:
        print(loop_table.render(page))
    wrong = loop_table.faults(page)
    for line in wrong:
        print(line, file=sys.stderr)
    raise typer.Exit(code=int(bool(wrong)))


cli_grading.add_to(app)
