"""Reads a notebook that someone handed in: whatever state it is in, code cells or a reason, never an exception."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flashlib.grading import catalogue
from flashlib.grading.case import Exercise

MOST_BYTES = 64 << 20
RUN_BODY = ("time", "timeit", "capture", "prun")  # cell magics whose body is run; cells of any other are left out


class Cell(NamedTuple):
    """One code cell as it will be run: its id or its place ("cell 3"), and plain Python."""

    id: str
    code: str


@dataclass(frozen=True)
class Submission:
    """Code cells in order, without the cells that set up and check; or ``reason``, why there are none."""

    name: str
    cells: tuple[Cell, ...] = ()
    named: tuple[str, ...] = ()  # exercises that its own check cells or cell ids name
    reason: str = ""


def read(path: Path) -> Submission:
    """The notebook at ``path``."""
    try:
        if path.is_dir():
            return Submission(path.name, reason="the folder holds no notebook")
        if path.is_symlink() or not path.is_file():
            return Submission(path.name, reason="it is no ordinary file")
        if path.stat().st_size > MOST_BYTES:
            return Submission(path.name, reason=f"the file is larger than {MOST_BYTES >> 20} MiB")
        raw = path.read_bytes()
    except OSError as error:
        return Submission(path.name, reason=f"the file cannot be read: {error.strerror}")
    return of_text(raw, path.name)


def of_text(raw: bytes, name: str) -> Submission:
    """The notebook in these bytes: nbformat 3 or 4, with or without ids and metadata."""
    if not raw.strip():
        return Submission(name, reason="the file is empty")
    try:
        notebook = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Submission(name, reason="the file is not in UTF-8")
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        return Submission(name, reason=f"the file is no notebook: broken JSON{where}")
    found = [_source(c, i) for i, c in enumerate(_cells(notebook), 1)]
    cells = [c for c in found if c is not None]
    if not cells:
        return Submission(name, reason="the notebook has no code cells")
    named = {f"{m[1]}.{m[2]}" for c in cells for m in re.finditer(r"\bcheck\(\s*[\"'](\d\d)\.(\d+)[\"']", c.code)}
    named |= {f"{m[1]}.{m[2]}" for c in cells if (m := re.fullmatch(r"check-(\d\d)-(\d+)", c.id))}
    kept = [Cell(c.id, plain_python(code)) for c in cells if (code := _without_setup(c)) and not _only_checks(c)]
    return Submission(name, tuple(kept), tuple(sorted(named)))


def _cells(notebook: Any) -> list[Any]:
    if not isinstance(notebook, dict):
        return []
    cells = notebook.get("cells")
    if cells is None:  # nbformat 3
        sheets = notebook.get("worksheets")
        cells = [c for s in _list(sheets) if isinstance(s, dict) for c in _list(s.get("cells"))]
    return _list(cells)


def _list(x: Any) -> list[Any]:
    return x if isinstance(x, list) else []


def _source(cell: Any, number: int) -> Cell | None:
    if not isinstance(cell, dict) or cell.get("cell_type", "code") != "code":
        return None
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(s for s in source if isinstance(s, str))
    if not isinstance(source, str) or not source.strip():
        return None
    metadata = cell.get("metadata")
    name = cell.get("id") or (metadata.get("id") if isinstance(metadata, dict) else None)
    source = source.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be compiled
    return Cell(name if isinstance(name, str) and re.fullmatch(r"[\w-]{1,64}", name) else f"cell {number}", source)


def _without_setup(cell: Cell) -> str:
    """The cell's code after the course's own setup cell, should it hold that; the runner has done its work."""
    if "from flashlib.setup import setup" not in cell.code:
        return cell.code
    return (
        re.split(r"^setup\(\).*$", cell.code, maxsplit=1, flags=re.M)[-1].strip("\n")
        if "\nsetup()" in cell.code
        else ""
    )


def _only_checks(cell: Cell) -> bool:
    """Nothing but calls of `check`, wherever the cell has its name from."""
    tree = parsed(cell.code)
    if tree is None or not tree.body:
        return False
    calls = [n.value if isinstance(n, (ast.Expr, ast.Assign)) else None for n in tree.body]
    return all(isinstance(c, ast.Call) and getattr(c.func, "id", "") == "check" for c in calls)


def parsed(code: str) -> ast.Module | None:
    """The code's tree, or None if it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def plain_python(code: str) -> str:
    """The cell without IPython's magics: what %%time and its like wrap is kept; shell lines become calls of a stub."""
    from IPython.core.inputtransformer2 import TransformerManager

    while m := re.match(r"\s*%%(\w+)[^\n]*(?:\n|$)", code):
        if m[1] not in RUN_BODY:
            return ""
        code = code[m.end() :]
    code = re.sub(r"^([ \t]*)%(?:time|prun)[ \t]+(?!-)(.+)$", r"\1\2", code, flags=re.M)
    if parsed(code) is not None:
        return code
    try:
        return TransformerManager().transform_cell(code)
    except Exception:  # text that even IPython's own reader cannot cut into words is no Python either
        return code


def chapters_of(submission: Submission, file: str) -> list[int]:
    """Which chapters a notebook is about: those that its check cells name, else the file's name, else its functions."""
    named = {int(e.split(".")[0]) for e in submission.named}
    if known := sorted(named & set(catalogue.CHAPTERS)):
        return known
    if m := re.search(r"(?<!\d)(\d\d)_(?:exercises|solutions)|(?:ch|chapter|flash)[-_ ]?(\d\d)(?!\d)", file, re.I):
        n = int(m[1] or m[2])
        return [n] if n in catalogue.CHAPTERS else []
    return _by_functions(set(defined_by(submission.cells)))


def _by_functions(defined: set[str]) -> list[int]:
    """The chapter that asks for most of these functions, then that for most of the rest, until none is left: chapters
    share a few names."""
    asked = {n: {e.function for e in catalogue.of_chapter(n)} for n in catalogue.CHAPTERS}
    found = []
    while best := max(asked, key=lambda n: len(asked[n] & defined), default=0):
        if not asked[best] & defined:
            break
        found.append(best)
        defined = defined - asked[best]
    return sorted(found)


def defined_by(cells: Sequence[Cell]) -> dict[str, int]:
    """Top-level functions, classes and assigned names → the index of the last cell that binds them."""
    found: dict[str, int] = {}
    for i, cell in enumerate(cells):
        for node in getattr(parsed(cell.code), "body", ()):
            for name in _bound(node):
                found[name] = i
    return found


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (t.id for t in node.targets if isinstance(t, ast.Name))
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (a.asname or a.name.split(".")[0] for a in node.names)


def not_defined(exercise: Exercise, cells: Sequence[Cell], errors: dict[int, str]) -> str:
    """Why the notebook has no such function, in a sentence."""
    at = defined_by(cells).get(exercise.function)
    if at is None:  # a cell that is no Python may still hold it
        pattern = re.compile(rf"\bdef\s+{re.escape(exercise.function)}\b")
        at = next((i for i, c in enumerate(cells) if i in errors and pattern.search(c.code)), None)
    if at is not None and at in errors:
        return f"{exercise.function} is not defined: its cell ({cells[at].id}) stopped with {errors[at]}"
    also = next((f"; {cells[i].id} stopped with {why}" for i, why in sorted(errors.items())), "")
    return f"The notebook defines no function {exercise.function}{also}"
