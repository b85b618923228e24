"""Which part of a cell's code a slide shows, and how long lines are made shorter."""

from __future__ import annotations

import ast
import io
import itertools
import re
import textwrap
import tokenize
from collections.abc import Iterable

LONG = 78  # characters; a comment that makes a line longer goes above it


def shown_code(text: str, starts: Iterable[str] = (), hide: Iterable[str] = ()) -> str:
    """The code that a slide shows: without docstrings and asserts.

    Parameters
    ----------
    text : str
        A code cell's source.
    starts : iterable of str
        How the statements begin that are shown, at any depth; all if left out.
    hide : iterable of str
        How statements begin that are left out.

    Raises
    ------
    ValueError
        The cell is no Python, or no statement begins so, or several do.
    """
    lines = text.splitlines()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"no Python: {error}") from error
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) and len(node.body) > 1:
            hidden |= _rows(node.body[0])
        elif isinstance(node, ast.Assert):
            hidden |= _rows(node)
    for start in hide:
        hidden |= _rows(_statement(tree, lines, start))
    parts = [_rows(_statement(tree, lines, start)) for start in starts] or [set(range(len(lines)))]
    texts = [textwrap.dedent("\n".join(lines[i] for i in sorted(part - hidden))) for part in sorted(parts, key=min)]
    joined = texts[0]
    for above, below in itertools.pairwise(texts):
        joined += ("\n\n" if "\n" in above + below else "\n") + below
    return re.sub(r"\n{3,}", "\n\n", joined).strip("\n")


def _rows(node: ast.stmt) -> set[int]:
    """The lines of a statement, counted from 0, its decorators with it."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return set(range(first - 1, node.end_lineno or node.lineno))


def _statement(tree: ast.Module, lines: list[str], start: str) -> ast.stmt:
    """The one statement that begins with `start`: at the margin if there is one, else at any depth."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    every = [n for n in nodes if lines[n.lineno - 1].lstrip().startswith(start)]
    outer = [n for n in every if n in tree.body]
    found = outer if len(outer) == 1 else every
    if len(found) != 1:
        raise ValueError(f"{len(found)} statements begin with {start!r}")
    return found[0]


def narrow(code: str) -> str:
    """Code whose long lines have their comments above them."""
    lines = code.split("\n")
    out = list(lines)
    for token in tokenize.generate_tokens(io.StringIO(code + "\n").readline):
        row, column = token.start
        if token.type != tokenize.COMMENT or len(lines[row - 1]) <= LONG:
            continue
        if before := lines[row - 1][:column].rstrip():
            indent = before[: len(before) - len(before.lstrip())]
            out[row - 1] = f"{indent}{token.string}\n{before}"
    return "\n".join(out)
