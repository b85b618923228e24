"""Runs notebooks from top to bottom without a screen, with a time for each.

    python -m tools.run_notebooks              every notebook, as `make notebooks` does
    python -m tools.run_notebooks 03 04        only those whose names begin so

Nothing is written into the course's folder. Exit status 1 if a notebook fails, takes longer than course.toml allows it,
or imports torch although course.toml says it does not.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flashlib.show.units import nbytes
from tools.course import NOTEBOOKS, load

PROBE = "probe"  # a cell appended to the copy that runs: was torch imported, and how much memory did the kernel take?
ASK = """
import sys
try:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
except ImportError:  # Windows
    peak = 0
print("torch" in sys.modules, peak)
"""


@dataclass
class Run:
    """What came of one notebook: the executed copy, its time, and what went wrong, if anything."""

    path: Path
    notebook: nbformat.NotebookNode
    seconds: float = 0.0
    peak_bytes: int = 0  # the kernel's largest resident memory; 0 where the system does not say
    error: str = ""
    slowest: tuple[str, float] = ("", 0.0)
    warned: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end within its limit."""
        return not self.error


def plain(text: str) -> str:
    """Text without terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def execute(path: Path, limit_s: float, *, static: bool = False, torch_allowed: bool = True, on_cell=None) -> Run:
    """Run one notebook in a fresh kernel, in its own folder, and return the executed copy.

    Parameters
    ----------
    path : Path
        The notebook; the file is only read.
    limit_s : float
        Seconds for all its cells together, kernel start included.
    static : bool
        Draw pictures instead of widgets (for web pages).
    torch_allowed : bool
        False: report an error if torch was imported.
    on_cell : callable, optional
        Called after each cell with (number of cells done, number of all cells).
    """
    nb = nbformat.read(path, as_version=4)
    nb.cells.append(nbformat.v4.new_code_cell(ASK, id=PROBE))
    run = Run(path, nb)
    began: dict[str, float] = {}
    start = time.perf_counter()
    current: list[nbformat.NotebookNode] = []

    def cell_started(cell, cell_index):
        began[cell.id] = time.perf_counter()
        current[:] = [cell]

    def cell_done(cell, cell_index, **_):
        seconds = time.perf_counter() - began.get(cell.id, start)
        if seconds > run.slowest[1]:
            run.slowest = (cell.id, seconds)
        if on_cell:
            on_cell(cell_index + 1, len(nb.cells))

    client = NotebookClient(
        nb,
        timeout_func=lambda _cell: max(1, int(limit_s - (time.perf_counter() - start))),
        kernel_name="python3",
        extra_arguments=["--log-level=CRITICAL"],  # the kernel's remark about unencrypted sockets is no news
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=cell_started,
        on_cell_executed=cell_done,
    )
    # A MPLBACKEND in the shell would replace the notebook's own; FLASHLIB_STATIC is what `explore` asks for.
    environment = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "FLASHLIB_STATIC")}
    if static:
        environment["FLASHLIB_STATIC"] = "1"
    log = logging.getLogger("traitlets")  # says again, less plainly, what is reported below
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        client.execute(env=environment)
    except CellTimeoutError:
        run.error = f"not done after {limit_s:.0f} s (course.toml, cpu_limit_s)" + _where(current)
    except DeadKernelError:
        run.error = "its kernel died (out of memory, or a crash in compiled code)" + _where(current)
    except CellExecutionError as error:
        traces = [o.traceback for o in current[0].outputs if o.output_type == "error"]
        lines = plain("\n".join(line for trace in traces for line in trace)).splitlines()
        run.error = f"{error.ename}: {error.evalue}" + _where(current) + "\n" + "\n".join(lines[-40:])
    finally:
        log.setLevel(level)
    run.seconds = time.perf_counter() - start
    probe = nb.cells.pop()
    said = "".join(o.get("text", "") for o in probe.outputs).split()
    run.peak_bytes = int(said[1]) if len(said) == 2 else 0
    if run.ok and not torch_allowed and said[:1] == ["True"]:
        run.error = "torch was imported; course.toml says that this chapter uses NumPy alone"
    if run.ok and run.seconds > limit_s:
        run.error = f"took {run.seconds:.0f} s; course.toml allows {limit_s:.0f} s"
    run.warned = [c.id for c in nb.cells if any(o.get("name") == "stderr" for o in c.get("outputs", []))]
    return run


def _where(current: list[nbformat.NotebookNode]) -> str:
    if not current:
        return ""
    source = "\n".join("    " + line for line in current[0].source.splitlines())
    return f"\nin cell `{current[0].id}`:\n{source}"


def chosen(names: list[str]) -> list[Path]:
    """The notebooks whose names begin with one of the given words; all of them without words; SystemExit if none."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    picked = [p for p in paths if not names or any(p.name.startswith(n) for n in names)]
    if not picked:
        raise SystemExit(f"no notebook in {NOTEBOOKS.name}/ begins with {' or '.join(names) or 'anything'}")
    return picked


def main(argv: list[str] | None = None) -> int:
    """Run the notebooks, show progress and a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.run_notebooks", description="Run notebooks from top to bottom."
    )
    parser.add_argument("names", nargs="*", help="beginnings of names, such as 03; all if left out")
    args = parser.parse_args(argv)
    course = load()
    # Wide enough for a table in a log; on a screen rich asks the screen.
    console = Console(width=None if sys.stdout.isatty() else 110)
    runs: list[tuple[Run, float]] = []
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.completed}/{task.total} cells"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        for path in chosen(args.names):
            chapter = course.chapter(path.stem)
            limit = float(chapter.cpu_limit_s if chapter else course.notebook_limit_s)
            task = progress.add_task(path.stem, total=None)

            def advance(done: int, total: int, task=task) -> None:
                progress.update(task, completed=done, total=total)

            run = execute(path, limit, torch_allowed=not chapter or chapter.torch, on_cell=advance)
            progress.remove_task(task)
            runs.append((run, limit))
            progress.console.print(
                f"{path.stem:<24} {run.seconds:6.1f} s   {'ok' if run.ok else 'FAILED'}", highlight=False
            )
            if not run.ok:
                progress.console.print(run.error + "\n", markup=False, highlight=False, soft_wrap=True)
    table = Table(
        "notebook", "seconds", "limit", "memory", "slowest cell", "wrote to stderr", "result", title="make notebooks"
    )
    for run, allowed in runs:
        slow = f"{run.slowest[0]} ({run.slowest[1]:.1f} s)"
        row = (
            run.path.stem,
            f"{run.seconds:.1f}",
            f"{allowed:.0f}",
            nbytes(run.peak_bytes),
            slow,
            ", ".join(run.warned) or "-",
        )
        table.add_row(*row, "ok" if run.ok else "[bold]FAILED[/bold]")
    console.print(table)
    total = sum(run.seconds for run, _ in runs)
    late = not args.names and total > course.total_limit_s
    console.print(
        f"{len(runs)} notebooks in {total:.0f} s; allowed together: {course.total_limit_s} s", highlight=False
    )
    if late:
        console.print("Too slow together.")
    return int(late or not all(run.ok for run, _ in runs))


if __name__ == "__main__":
    sys.exit(main())
