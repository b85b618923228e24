"""Executed copies of the chapters, with pictures in place of widgets, kept in build/executed.

Whoever mends the words of pages and slides builds them many times; the cells are run again only when something they
depend on has changed: a code cell, a file of the package, Python, or one of the libraries.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version

import nbformat

from tools.course import ROOT, Chapter
from tools.run_notebooks import Run, execute

KEPT = ROOT / "build" / "executed"
LIBRARIES = ("numpy", "torch", "triton", "matplotlib", "ipywidgets")


def key(chapter: Chapter) -> str:
    """What the outputs of a chapter depend on, as sixteen hex digits."""
    parts = [sys.version]
    for name in LIBRARIES:
        try:
            parts.append(version(name))
        except PackageNotFoundError:
            parts.append(f"no {name}")
    for path in sorted((ROOT / "flashlib").rglob("*.py")):
        if path.parent.name in ("checks", "mistakes"):  # what exercises are tried on: no chapter uses it
            continue
        parts += [path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")]
    for cell in nbformat.read(chapter.path, as_version=4).cells:
        if cell.cell_type == "code":
            parts += [cell.id, cell.source]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def executed(chapter: Chapter) -> Run:
    """The chapter with the outputs of its cells; its text and metadata are those of the file as it is now.

    Returns
    -------
    Run
        Its seconds are 0 for a kept copy. With an error, and incomplete, if a cell failed; what failed is not kept.
    """
    kept = KEPT / f"{chapter.file}-{key(chapter)}.ipynb"
    if kept.is_file():
        done, seconds = nbformat.read(kept, as_version=4), 0.0
    else:
        run = execute(chapter.path, 2 * chapter.cpu_limit_s, static=True)
        if not run.ok:
            return run
        done, seconds = run.notebook, run.seconds
        KEPT.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob(f"{chapter.file}-*.ipynb"):
            old.unlink(missing_ok=True)
        scratch = kept.with_suffix(f".{os.getpid()}")
        nbformat.write(done, scratch)
        scratch.replace(kept)  # last, so that what is there is whole
    ran = {c.id: c for c in done.cells if c.cell_type == "code"}
    nb = nbformat.read(chapter.path, as_version=4)
    for cell in nb.cells:
        if cell.id in ran:
            cell.outputs, cell.execution_count = ran[cell.id].outputs, ran[cell.id].execution_count
    return Run(chapter.path, nb, seconds)
