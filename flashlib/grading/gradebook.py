"""Who handed in what, and the table of grades."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class HandedIn(NamedTuple):
    """One notebook of one student; ``name`` is its path inside the folder."""

    student: str
    path: Path
    name: str


@dataclass
class Row:
    """One student's results: the best for each exercise, and notes on whole notebooks."""

    student: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Points."""
        return sum(r["points"] for r in self.results.values())


def find(folder: Path, *, one: bool = False) -> list[HandedIn]:
    """The notebooks in a folder, by student; with ``one`` all of it is one student's.

    ``STUDENT.ipynb``, ``STUDENT/…/any.ipynb`` and nbgrader's ``submitted/STUDENT/ASSIGNMENT/any.ipynb`` are understood;
    a folder without a notebook is a student who handed in nothing. One notebook may be given instead of a folder.

    Raises
    ------
    FileNotFoundError
        There is no such folder.
    """
    if folder.is_file():
        return [HandedIn(folder.stem, folder, folder.name)]
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    if (folder / "submitted").is_dir() and not list(folder.glob("*.ipynb")):
        folder = folder / "submitted"
    if one:
        return _of_student(folder, folder.parent)
    found = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.suffix == ".ipynb":
            found.append(HandedIn(entry.stem, entry, entry.name))
        elif entry.is_dir() and not entry.is_symlink():
            found += _of_student(entry, folder)
    return found


def _of_student(folder: Path, above: Path) -> list[HandedIn]:
    inside = [p for p in sorted(folder.rglob("*.ipynb")) if not _hidden(p, folder)]
    return [HandedIn(folder.name, p, p.relative_to(above).as_posix()) for p in inside or [folder]]


def _hidden(path: Path, under: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(under).parts)


def rows(graded: Iterable[tuple[HandedIn, Sequence[dict[str, Any]], str]]) -> list[Row]:
    """A row a student. Where two notebooks hold the same exercise, the better one counts."""
    found: dict[str, Row] = {}
    for handed_in, results, note in graded:
        row = found.setdefault(handed_in.student, Row(handed_in.student))
        if note:
            row.notes.append(f"{handed_in.name}: {note}")
        for r in results:
            best = row.results.get(r["id"])
            if best is None or r["points"] > best["points"]:
                row.results[r["id"]] = r
    return [found[s] for s in sorted(found)]


def columns(table: Sequence[Row]) -> dict[str, float]:
    """Every exercise that occurs → its points."""
    out: dict[str, float] = defaultdict(float)
    for row in table:
        for r in row.results.values():
            out[r["id"]] = max(out[r["id"]], r["out_of"])
    return {k: out[k] for k in sorted(out)}


def as_csv(table: Sequence[Row]) -> str:
    """student, one column an exercise, total, out of, reason. An exercise that was not handed in is an empty cell."""
    heads = columns(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", *heads, "total", "out_of", "reason"])
    for row in table:
        points = [f"{row.results[h]['points']:g}" if h in row.results else "" for h in heads]
        writer.writerow(
            [_cell(row.student), *points, f"{row.total:g}", f"{sum(heads.values()):g}", _cell(reasons(row, heads))]
        )
    return out.getvalue()


def reasons(row: Row, heads: Iterable[str]) -> str:
    """Why points are missing, exercise by exercise."""
    parts = list(row.notes)
    handed_in = {head.partition(".")[0] for head in row.results}
    for head in heads:
        chapter = head.partition(".")[0]
        if chapter not in handed_in:
            why = f"chapter {chapter}: not handed in"
            if why not in parts:
                parts.append(why)
        elif head not in row.results:
            parts.append(f"{head}: not handed in")
        elif why := row.results[head]["reason"]:
            parts.append(f"{head}: {why}")
    if row.notes and not any(r["points"] for r in row.results.values()):
        parts = parts[: len(row.notes)]  # nothing could be read: once is enough
    return "; ".join(parts)


def _cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return "'" + text if text[:1] in "=+-@\t\r" and text else text
