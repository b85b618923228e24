"""The one form in which a notebook is committed.

    python -m tools.normal_form check [NOTEBOOK ...]     exit 1 and name what differs
    python -m tools.normal_form fix   [NOTEBOOK ...]     write the files again, and the README's chapter table

Without names: every notebook in notebooks/, solutions/ and exercises/. The form: nbformat 4.5; no outputs and no
counts; no empty cells; cell ids chosen by hand; metadata only `tags` and `slideshow`; one fixed kernel; the cells
`head`, `setup` and `next` as course.toml says (of exercises and solutions only `setup`). A notebook saved by JupyterLab
or Colab comes back from `fix` byte for byte.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

from tools import course as course_data
from tools import slides

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEEP = ("tags", "slideshow")
EXERCISES = re.compile(r"\d\d_(exercises|solutions)")
# What JupyterLab and Colab invent when a cell is new: eight hex digits, a UUID, or twelve mixed letters and digits.
INVENTED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?|(?=.*\d)(?=.*[A-Z])(?=.*[a-z])[0-9A-Za-z_-]{12}")


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else source


def _name(cell: dict[str, Any], seen: set[str], position: int) -> str:
    """The cell's own id where a person chose it, otherwise one made from its first heading or its place."""
    own = cell.get("id") or cell.get("metadata", {}).get("id") or ""
    own = re.sub(r"[^a-zA-Z0-9_-]", "-", own)[:64]
    if not own or INVENTED.fullmatch(own):
        heading = re.search(r"^#+ +(.+)$", _source(cell), re.M) if cell["cell_type"] == "markdown" else None
        words = re.findall(r"[a-z0-9]+", heading.group(1).lower()) if heading else []
        own = "-".join(words[:4])[:40] or f"cell-{position:02d}"
    base, count = own, 2
    while own in seen:
        own, count = f"{base}-{count}", count + 1
    return own


def normal(text: str, file: str | None = None, *, url: str | None = None) -> str:
    """The normal form of a notebook.

    Parameters
    ----------
    text : str
        The notebook's JSON.
    file : str, optional
        The notebook's name without ``.ipynb``. If course.toml has it, the cells `head`, `setup` and `next` are written
        from there.
    url : str, optional
        The repository's address; read from pyproject.toml if not given.

    Returns
    -------
    str
        The JSON to commit, with a newline at its end.

    Raises
    ------
    nbformat.ValidationError
        If the result is no valid notebook.
    """
    raw = json.loads(text)
    course = course_data.load()
    chapter = course.chapter(file) if file else None
    fixed: dict[str, tuple[str, str]] = {}
    if chapter:
        url = course_data.repository() if url is None else url
        fixed = {
            "head": ("markdown", course_data.head_cell(course, chapter, url)),
            "setup": ("code", course_data.setup_cell(url)),
            "next": ("markdown", course_data.next_cell(course, chapter)),
        }
    written = {kind: {"cell_type": t, "id": kind, "metadata": {}, "source": s} for kind, (t, s) in fixed.items()}
    if file and EXERCISES.fullmatch(file):  # theirs stands where the author put it
        setup = course_data.setup_cell(course_data.repository() if url is None else url)
        for cell in raw["cells"]:
            if cell.get("id") == "setup":
                cell["source"] = setup
    body = []
    for cell in raw["cells"]:
        own = cell.get("id") or cell.get("metadata", {}).get("id")
        if own in written:
            meta = cell.get("metadata", {})
            written[own]["metadata"] = meta
        elif _source(cell).strip():
            body.append(cell)
    cells = (
        [written[k] for k in ("head", "setup") if k in written] + body + [written[k] for k in ("next",) if k in written]
    )
    seen: set[str] = set()
    out = []
    for position, cell in enumerate(cells):
        cid = _name(cell, seen, position)
        seen.add(cid)
        source = "\n".join(_source(cell).rstrip().splitlines())
        new: dict[str, Any] = {
            "cell_type": cell["cell_type"],
            "id": cid,
            "metadata": {k: cell["metadata"][k] for k in KEEP if cell.get("metadata", {}).get(k)},
            "source": source,
        }
        if cell["cell_type"] == "code":
            new |= {"execution_count": None, "outputs": []}
        if cell.get("attachments"):
            new["attachments"] = cell["attachments"]
        out.append(new)
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    nb = nbformat.from_dict({"cells": out, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    nbformat.validate(nb)
    return nbformat.writes(nb).rstrip("\n") + "\n"


def differs(path: Path) -> str:
    """ "" if the notebook is in normal form, otherwise the first lines of the difference, or its `slideshow` faults."""
    text = path.read_text(encoding="utf-8")
    wanted = normal(text, path.stem)
    if text == wanted:
        return "\n".join(slides.faults(json.loads(text)["cells"]))
    lines = list(
        difflib.unified_diff(text.splitlines(), wanted.splitlines(), "as it is", "normal form", lineterm="", n=0)
    )
    return "\n".join(lines[:12] + (["..."] if len(lines) > 12 else []))


def fix(path: Path) -> bool:
    """Write the notebook in normal form; True if that changed it."""
    text = path.read_text(encoding="utf-8")
    wanted = normal(text, path.stem)
    if text != wanted:
        path.write_text(wanted, encoding="utf-8", newline="\n")
    return text != wanted


def fix_readme(*, write: bool) -> bool:
    """Compare the README's chapter table with course.toml, write it again if asked; True if it differed."""
    readme = course_data.ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    table = course_data.readme_table(course_data.load(), course_data.repository())
    wanted = course_data.readme_with_table(text, table)
    if write and wanted != text:
        readme.write_text(wanted, encoding="utf-8", newline="\n")
    return wanted != text


def main(argv: list[str] | None = None) -> int:
    """Check or fix the notebooks named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.normal_form", description="The normal form of notebooks.")
    parser.add_argument("mode", choices=["check", "fix"])
    parser.add_argument("notebooks", nargs="*", type=Path)
    args = parser.parse_args(argv)
    paths = args.notebooks or sorted(
        p for folder in ("notebooks", "solutions", "exercises") for p in (course_data.ROOT / folder).glob("*.ipynb")
    )
    bad = 0
    for path in paths:
        if args.mode == "fix":
            if fix(path):
                print(f"fixed {path.name}")
        elif difference := differs(path):
            bad += 1
            print(f"not in normal form: {path}\n{difference}\n")
    if not args.notebooks and fix_readme(write=args.mode == "fix"):
        print("fixed README.md" if args.mode == "fix" else "README.md: the chapter table is not course.toml's")
        bad += args.mode == "check"
    if bad:
        print("`make fix` mends this, but for faults of `slideshow`.")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
