"""exercises/ from solutions/: the same notebooks with every solution cut out.

    python -m tools.exercises           write what is stale
    python -m tools.exercises --check   exit 1 and name what is stale

A solution stands between `# BEGIN SOLUTION` and `# END SOLUTION`; in its place the exercise raises NotImplementedError.
solutions/NN_solutions.ipynb gives exercises/NN_exercises.ipynb; cell ids stay, and a second run changes nothing.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat

from tools.course import ROOT

SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"
SOLUTION = re.compile(r"^(?P<indent>[ \t]*)# BEGIN SOLUTION.*?^[ \t]*# END SOLUTION[^\n]*\n?", re.M | re.S)
STUB = "{indent}# your code here\n{indent}raise NotImplementedError\n"


def exercise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook a learner gets.

    Raises
    ------
    ValueError
        A marker without its partner, a doubled cell id, or a cell with outputs: the message names the cell.
    """
    notebook = copy.deepcopy(notebook)
    seen: set[str] = set()
    for cell in notebook.cells:
        if cell.id in seen:
            raise ValueError(f"two cells have the id {cell.id!r}")
        seen.add(cell.id)
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count):
            raise ValueError(f"cell {cell.id!r} holds outputs; `make fix` strips them")
        cell.source = SOLUTION.sub(lambda m: STUB.format(indent=m["indent"]), cell.source).rstrip("\n")
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(": solutions", ": exercises")
        if re.search(r"(BEGIN|END) SOLUTION", cell.source):
            raise ValueError(f"cell {cell.id!r} has a BEGIN or END SOLUTION without its partner")
    nbformat.validate(notebook)
    return notebook


def text_of(path: Path) -> str:
    """What the exercise made from this solution notebook must hold, byte for byte."""
    return nbformat.writes(exercise(nbformat.read(path, as_version=4))).rstrip("\n") + "\n"


def target(path: Path) -> Path:
    """solutions/03_solutions.ipynb → exercises/03_exercises.ipynb."""
    return EXERCISES / path.name.replace("_solutions", "_exercises")


def stale() -> list[tuple[Path, str]]:
    """(exercise, its right text) for each that is missing or differs; exercises without a source come with ""."""
    wanted = {target(p): text_of(p) for p in sorted(SOLUTIONS.glob("*_solutions.ipynb"))}
    there = set(EXERCISES.glob("*.ipynb"))
    old = [(p, t) for p, t in wanted.items() if p not in there or p.read_text(encoding="utf-8") != t]
    return old + [(p, "") for p in sorted(there - set(wanted))]


def main(argv: list[str] | None = None) -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.exercises", description="exercises/ from solutions/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is stale")
    args = parser.parse_args(argv)
    old = stale()
    for path, text in old:
        print(f"{'stale' if args.check else 'written' if text else 'removed'}: {path.relative_to(ROOT)}")
        if args.check:
            continue
        path.parent.mkdir(exist_ok=True)
        if text:
            path.write_text(text, encoding="utf-8", newline="\n")
        else:
            path.unlink()
    if args.check and old:
        print("`make fix` mends this.")
    return int(args.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
