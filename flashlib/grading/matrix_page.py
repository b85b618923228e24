"""The matrix on the screen and as a page: every known mistake and every right variant, tried with several seeds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flashlib.grading import catalogue, matrix
from flashlib.grading.matrix import Cell

NAMED_AT_LEAST = 0.95


class Verdict(NamedTuple):
    """The matrix in numbers. ``wrong`` are the cells that refute the grader."""

    right: int
    mistakes: int
    named: int
    wrong: list[Cell]

    @property
    def ok(self) -> bool:
        """All as deserved, and enough of the mistakes called by their names."""
        return not self.wrong and self.right > 0 and self.named >= NAMED_AT_LEAST * self.mistakes


def verdict(cells: Sequence[Cell]) -> Verdict:
    """Count."""
    mistakes = [c for c in cells if c.kind == "mistake"]
    return Verdict(
        len(cells) - len(mistakes),
        len(mistakes),
        sum(c.named_rightly for c in mistakes),
        [c for c in cells if not c.ok],
    )


@cache
def _work(chapter: int) -> list[Any]:
    return matrix.work([chapter])


def _try(chapter: int, index: int, seeds: Sequence[int]) -> list[Cell]:
    """In a process of its own: one function on one exercise, with every seed."""
    exercise, kind, name, fn = _work(chapter)[index]
    return list(matrix.run_one(exercise, kind, name, fn, seeds))


def run(seeds: Sequence[int], chapters: Sequence[int] | None = None, jobs: int | None = None) -> Iterator[list[Cell]]:
    """The cells of each function tried, as they come, ``jobs`` processes at once."""
    from flashlib.setup import cores

    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(one | {"MPLBACKEND": "agg", "TRITON_INTERPRET": "1", "FLASHLIB_PROGRESS": ""})
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or cores(), mp_context=context) as pool:
        todo = [
            pool.submit(_try, n, i, seeds)
            for n in (catalogue.CHAPTERS if chapters is None else chapters)
            for i in range(len(_work(n)))
        ]
        try:
            for done in as_completed(todo):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_and_print(
    seeds: Sequence[int], chapters: Sequence[int] | None = None, write: Path | None = None, jobs: int | None = None
) -> int:
    """Run the matrix, print what it found, and write the page if asked; 0 if the grader is as good as it must be."""
    from tqdm import tqdm

    number = sum(len(_work(n)) for n in (catalogue.CHAPTERS if chapters is None else chapters))
    cells: list[Cell] = []
    with tqdm(total=number, unit="function", file=sys.stderr, disable=None) as bar:
        for found in run(seeds, chapters, jobs):
            cells += found
            bar.update()
    order = {(e.id, kind, name): i for i, (e, kind, name, _) in enumerate(matrix.work(chapters))}
    cells.sort(key=lambda c: (order[c.exercise, c.kind, c.name], c.seed))
    print(table(cells))
    found_out = verdict(cells)
    for c in found_out.wrong:
        what = f"refused ({c.failed})" if c.kind == "right" else f"accepted ({c.state})"
        print(f"{c.exercise} {c.kind} {c.name!r}, seed {c.seed}: {what}")
    for c in cells:
        if c.kind == "mistake" and c.ok and not c.named_rightly:
            print(f"{c.exercise} mistake {c.name!r}, seed {c.seed}: named {c.named!r}")
    print(summary(found_out))
    if write:
        write.write_text(page(cells, seeds), encoding="utf-8")
    return int(not found_out.ok)


def summary(v: Verdict) -> str:
    """One sentence."""
    share = 100 * v.named / v.mistakes if v.mistakes else 0
    return (
        f"{v.right} right answers and {v.mistakes} mistakes tried; {len(v.wrong)} judged wrongly; "
        f"{v.named} mistakes ({share:.1f} %) named rightly."
    )


def table(cells: Sequence[Cell]) -> str:
    """A line an exercise, for a terminal; the time is that of the slowest check of a right answer."""
    lines = [f"{'':8}{'right accepted':>16}{'mistakes refused':>18}{'named':>10}{'slowest check':>16}"]
    for exercise in dict.fromkeys(c.exercise for c in cells):
        own = [c for c in cells if c.exercise == exercise]
        right, wrong = [c for c in own if c.kind == "right"], [c for c in own if c.kind == "mistake"]
        slowest = max((c.seconds for c in own), default=0)
        lines.append(
            f"{exercise:8}{_of(sum(c.ok for c in right), right):>16}{_of(sum(c.ok for c in wrong), wrong):>18}"
            f"{_of(sum(c.named_rightly for c in wrong), wrong):>10}{slowest:>14.1f} s"
        )
    return "\n".join(lines)


def _of(n: int, of: Sequence[Cell]) -> str:
    return f"{n} of {len(of)}"


def page(cells: Sequence[Cell], seeds: Sequence[int]) -> str:
    """The page docs/MATRIX.md. It holds no times, so that it changes only when a judgement does."""
    again = f"python -m flashlib check --matrix --seeds {','.join(map(str, seeds))} --write docs/MATRIX.md"
    out = [
        "# The grader, graded",
        "",
        "Every known mistake must be refused and called by its name; every right answer, however it is written, must",
        f"be accepted. Seeds of the inputs: {', '.join(map(str, seeds))}. Written by `{again}`.",
        "",
        f"**{summary(verdict(cells))}**",
    ]
    titles = {e.id: e.title for e in catalogue.everything()}
    for exercise in dict.fromkeys(c.exercise for c in cells):
        own = [c for c in cells if c.exercise == exercise]
        out += ["", f"## {exercise} {titles[exercise]}", "", "| tried | verdict | fails first at | named |"]
        out.append("|---|---|---|---|")
        for kind, name in dict.fromkeys((c.kind, c.name) for c in own):
            same = [c for c in own if (c.kind, c.name) == (kind, name)]
            good = sum(c.ok for c in same)
            says = (
                ("accepted" if kind == "right" else "refused") if good == len(same) else f"right {good} of {len(same)}"
            )
            if kind == "right":
                out.append(f"| right: {_plain(name)} | {says} | | |")
                continue
            named = sum(c.named_rightly for c in same)
            how = "yes" if named == len(same) else f"{named} of {len(same)}"
            out.append(f"| {_plain(name)} | {says} | {_plain(same[0].failed)} | {how} |")
    return "\n".join(out) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
