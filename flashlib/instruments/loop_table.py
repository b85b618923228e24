"""Where the instructions of the inner loops go: what ``python -m flashlib loops`` prints and writes to docs/LOOPS.md.

Rows: the forward at the tiles that have a limit, then every entry of `flashlib.algorithms.tiles` for D = 64 and 128, in
float16 and causal, so that each kernel has a loop over full tiles and one over tiles that need a mask. The masked loop
of a kernel is taken to be the larger of its two.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from flashlib.instruments.compiled import Compiled, CompileError
from flashlib.instruments.kernel_text import kernel_text
from flashlib.instruments.sass_kinds import KINDS, RULES, unknown
from flashlib.instruments.tile_table import KERNELS, Case, cases

TRITON = "3.8"  # the counts move with the compiler: the limits are for this one
# Instructions of the forward's loop over full 128×64 tiles, at most. On sm80 0.95 × the 707 (D = 64, 4 warps, 3 stages)
# and 558 (D = 128, 8 warps, 3 stages) of the fused attention in Triton's tutorial 06, counted in the same way.
LIMITS = {("sm80", 64): 671, ("sm80", 128): 530, ("sm90", 64): 520, ("sm90", 128): 360}
TUTORIAL = {("sm80", 64): 707, ("sm80", 128): 558}
WARPS = {64: 4, 128: 8}
BEGIN, END = "<!-- loops:begin (written by `python -m flashlib loops`) -->", "<!-- loops:end -->"


class Row(NamedTuple):
    """One loop: `kernel` "forward", `tile` "128×64 w4 s3", `tiles` "full" or "masked", instructions by kind."""

    chip: str
    kernel: str
    D: int
    tile: str
    tiles: str
    kinds: dict[str, int]

    @property
    def total(self) -> int:
        """All instructions of the loop's body, each once."""
        return sum(self.kinds.values())

    @property
    def per_score(self) -> float:
        """Instructions that all threads of a block together spend on one score of the tile: fair between tiles."""
        m, n, warps = map(int, re.findall(r"\d+", self.tile)[:3])
        return self.total * 32 * warps / (m * n)

    @property
    def limit(self) -> int | None:
        """The limit that this loop must keep, if it has one."""
        at = (self.chip, self.D)
        limited = self.kernel == "forward" and self.tiles == "full" and self.tile == f"128×64 w{WARPS[self.D]} s3"
        return LIMITS.get(at) if limited else None


class Page(NamedTuple):
    """What stands between the markers of docs/LOOPS.md."""

    triton: str
    digest: str
    rows: list[Row]
    others: dict[str, int]


def limited() -> list[Case]:
    """The forward loops that have a limit."""
    tile = import_module("flashlib.algorithms.tiles").Tile
    chips = {"sm80": (8, 0), "sm90": (9, 0)}
    return [
        Case(tile("forward", chips[chip], D, "16-bit", 128, 64, WARPS[D], 3), chips[chip], D, "float16")
        for chip, D in LIMITS
    ]


def loop_cases(chip: str | None = None) -> list[Case]:
    """Everything on the page, by chip; only `chip` if one is named."""
    own = [c for c in cases(dtype="float16") if c.D in (64, 128)]
    found = {(c.chip, c.kernel, c.D, tile_of(c)): c for c in [*limited(), *own] if chip in (None, c.chip)}
    order = list(KERNELS)
    return sorted(found.values(), key=lambda c: (c.capability, order.index(c.kernel), c.D))


def tile_of(case: Case) -> str:
    """As "128×64 w4 s3": BLOCK_M × BLOCK_N, warps, stages."""
    e = case.entry
    return f"{e.block_m}×{e.block_n} w{e.warps} s{e.stages}"


def rows_of(case: Case, result: Compiled) -> list[Row]:
    """The kernel's loops, the one over full tiles first.

    Raises
    ------
    ValueError where the kernel does not have two loops with dots: then nothing says which is which.
    """
    if len(result.loops) != 2:
        raise ValueError(f"{case.kernel} on {case.chip}, D={case.D}: {len(result.loops)} loops hold dots, expected 2")
    loops = sorted(result.loops, key=lambda c: c.total)
    return [
        Row(case.chip, case.kernel, case.D, tile_of(case), tiles, counts.kinds)
        for tiles, counts in zip(("full", "masked"), loops, strict=True)
    ]


def page_of(table: list[Case], results: Iterable[Compiled | CompileError]) -> Page:
    """All rows, from results in the order of the table; a kernel that was refused raises its CompileError."""
    rows: list[Row] = []
    others, triton = Counter[str](), "?"
    for case, result in zip(table, results, strict=True):
        if isinstance(result, CompileError):
            raise result
        rows += rows_of(case, result)
        triton = result.triton
        for loop in result.loops:
            others.update(unknown(loop.by_name))
    return Page(triton, digest(), rows, dict(sorted(others.items())))


def faults(page: Page) -> list[str]:
    """The limits that are passed, in words; [] for another Triton than the one they are for."""
    if not page.triton.startswith(TRITON + "."):
        return []
    over = [r for r in page.rows if r.limit and r.total > r.limit]
    return [f"forward {r.chip} D={r.D} {r.tile}: {r.total} instructions, at most {r.limit}" for r in over]


def digest() -> str:
    """A short hash of the kernels' code, without comments and docstrings: does the page speak of these kernels?"""
    words = []
    for module, name in KERNELS.values():
        last = tokenize.NEWLINE
        text = kernel_text(getattr(import_module(module), name))[1]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            docstring = token.type == tokenize.STRING and last in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            if token.type not in (tokenize.INDENT, tokenize.DEDENT) and not docstring:
                words.append(token.string)
            last = token.type
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


def render(page: Page) -> str:
    """The page's tables in Markdown, markers included."""
    lines = [BEGIN, f"Triton {page.triton}, kernels {page.digest}, float16, causal.", ""]
    lines += ["## Against the limits", ""]
    lines += ["| chip | D | tile | instructions | at most | Triton's tutorial 06 |", "|---|---|---|---|---|---|"]
    for r in (r for r in page.rows if r.limit):
        tutorial = TUTORIAL.get((r.chip, r.D), "not counted")
        mark = "" if r.total <= (r.limit or 0) else " **over**"
        lines.append(f"| {r.chip} | {r.D} | {r.tile} | {r.total}{mark} | {r.limit} | {tutorial} |")
    lines += ["", "## Where they go"]
    for chip in dict.fromkeys(r.chip for r in page.rows):
        lines += ["", f"### {chip}", "", f"| kernel | D | tile | tiles | all | a score | {' | '.join(KINDS)} |"]
        lines.append("|---" * (6 + len(KINDS)) + "|")
        for r in (r for r in page.rows if r.chip == chip):
            first = f"| {r.kernel} | {r.D} | {r.tile} | {r.tiles} | {r.total} | {r.per_score:.1f} | "
            lines.append(first + " | ".join(str(r.kinds[k]) for k in KINDS) + " |")
    lines += ["", "## What the columns hold", "", "| column | holds |", "|---|---|"]
    lines += [f"| {kind} | {words} |" for kind, words, _ in RULES]
    names = ", ".join(f"{name} {n}" for name, n in page.others.items()) or "none"
    return "\n".join([*lines, "", f"Instructions of kind *other*: {names}.", END])


def parse(text: str) -> Page:
    """Read what `render` wrote back, out of a file's text; ValueError where there is no such block."""
    block = re.search(re.escape(BEGIN) + r"\nTriton (\S+), kernels (\w+),.*?" + re.escape(END), text, re.S)
    if not block:
        raise ValueError(f"no text between {BEGIN} and {END}")
    rows = list(_rows(block[0]))
    others = re.search(r"^Instructions of kind \*other\*: (.*)\.$", block[0], re.M)
    pairs = (part.split(" ") for part in others[1].split(", ")) if others and others[1] != "none" else ()
    return Page(block[1], block[2], rows, {name: int(n) for name, n in pairs})


def write(page: Page, path: Path) -> None:
    """Put the tables between the markers of the file; ValueError where it has none."""
    text = path.read_text(encoding="utf-8")
    new, n = re.subn(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: render(page), text, flags=re.S)
    if not n:
        raise ValueError(f"{path} lacks {BEGIN} … {END}")
    path.write_text(new, encoding="utf-8")


def _rows(text: str) -> Iterator[Row]:
    for chip, table in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S):
        for line in table.splitlines():
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if len(cells) == 6 + len(KINDS) and cells[0] in KERNELS:
                numbers = dict(zip(KINDS, map(int, cells[6:]), strict=True))
                yield Row(chip, cells[0], int(cells[1]), cells[2], cells[3], numbers)


def as_dicts(page: Page) -> list[dict[str, Any]]:
    """The rows, for JSON."""
    return [r._asdict() | {"total": r.total, "limit": r.limit, "triton": page.triton} for r in page.rows]
