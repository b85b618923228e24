"""Exercises as a learner does them: in a real JupyterLab, in a browser, with mouse and keyboard.

The notebook comes untouched and is run from top to bottom; then one exercise is solved with a slip in it, checked,
mended and checked again. The solution is read from solutions/ while the test runs; JupyterLab's folder holds none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest

import lab
from files import ROOT
from flashlib.grading import catalogue

pytestmark = pytest.mark.browser

GREEN, RED = "#009E73", "#D55E00"  # a report's edge when all is right, and when something is not


class Solved(NamedTuple):
    """One exercise: its cells, and a slip planted in its solution (right line → wrong one) with the mistake's name."""

    chapter: int
    id: str
    cells: tuple[str, str, str]  # function, try, check
    right: str
    wrong: str
    mistake: str


STREAMED = Solved(
    3, "03.3", ("fn-attend", "try-03-3", "check-03-3"), "o = shrink[:, None] * o + p @ v", "o = o + p @ v",
    "o is not rescaled",
)  # fmt: skip
TRITON = Solved(
    7, "07.2", ("fn-streamed", "try-07-2", "check-07-2"), "acc * shrink[:, None]", "acc", "acc not rescaled"
)  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, Path]]:
    """A browser, the address of a JupyterLab on a copy of the course without solutions, and where it writes."""
    if why := lab.missing():
        pytest.skip(f"no browser test: {why}")
    folder = tmp_path_factory.mktemp("lab")
    course = lab.copy_course(folder / "course", "exercises", "flashlib")
    with lab.server(course, folder / "home") as base, lab.browser() as browser:
        yield browser, base, folder


def solution(case: Solved) -> str:
    """The whole function cell, solved."""
    cells = nbformat.read(ROOT / "solutions" / f"{case.chapter:02d}_solutions.ipynb", as_version=4).cells
    source = next(c.source for c in cells if c.id == case.cells[0])
    return "\n".join(line for line in source.splitlines() if not re.search("(BEGIN|END) SOLUTION", line))


def edge(output: Any) -> str:
    """The colour of a report's edge, as "#RRGGBB"."""
    seen = output.locator(".jp-RenderedHTML > div").first.evaluate("e => getComputedStyle(e).borderLeft")
    width, style, colour = re.fullmatch(r"(\S+) (\S+) rgb\((.*)\)", seen).groups()
    assert float(width.removesuffix("px")) >= 3 and style == "solid", seen
    return "#" + "".join(f"{int(part):02X}" for part in colour.split(","))


def untouched(notebook: lab.Notebook, case: Solved) -> set[str]:
    """Run it all: every check says "not started", and nothing fails but the trials, whose cells are returned."""
    from playwright.sync_api import expect

    notebook.run_all()
    exercises = catalogue.of_chapter(case.chapter)
    said = notebook.complaints()
    assert set(said) == {f"try-{e.id.replace('.', '-')}" for e in exercises}, said
    assert all("NotImplementedError" in words for words in said.values()), said
    for e in exercises:
        expect(notebook.output(f"check-{e.id.replace('.', '-')}")).to_contain_text(f"{e.id} {e.title}: not started")
    notebook.shot("1_untouched")
    return set(said)


def type_and_check(notebook: lab.Notebook, case: Solved, source: str) -> Any:
    """Type it over the function; Shift+Enter runs it, then the trial, then the check, whose output is returned."""
    function, trial, check = case.cells
    notebook.write(function, source)
    assert notebook.source(function) == source
    assert notebook.shift_enter() == trial
    assert notebook.shift_enter() == check
    notebook.shift_enter()
    return notebook.output(check)


def shows_the_mistake(output: Any, case: Solved) -> None:
    """The report names the mistake and asks its question; a picture says, in words too, where the error is."""
    from playwright.sync_api import expect

    mistake = next(m for m in catalogue.find(case.id).mistakes() if m.name == case.mistake)
    expect(output).to_contain_text(mistake.says)
    expect(output).to_contain_text(mistake.ask)
    expect(output).not_to_contain_text("Passed.")
    picture = output.locator("img")
    expect(picture).to_be_visible()
    assert re.match(r"Map of the first wrong matrix: \d+ of \d+ numbers .*row \d+", picture.get_attribute("alt"))
    assert picture.evaluate("i => i.complete && i.naturalWidth > 200")
    assert edge(output) == RED


@pytest.mark.parametrize("case", [STREAMED, TRITON], ids=lambda c: c.id)
def test_an_exercise_is_solved_in_jupyterlab(case: Solved, opened: tuple[Any, str, Path], tmp_path: Path) -> None:
    if case is TRITON:
        pytest.importorskip("triton", reason="chapter 07 needs triton")
    from playwright.sync_api import expect

    expect.set_options(timeout=lab.SLOW_MS)
    browser, base, folder = opened
    name = f"exercises/{case.chapter:02d}_exercises.ipynb"
    with lab.Notebook(browser, base, name, tmp_path) as notebook:
        left = untouched(notebook, case)
        whole = solution(case)
        assert whole.count(case.right) == 1
        check = type_and_check(notebook, case, whole.replace(case.right, case.wrong))
        shows_the_mistake(check, case)
        notebook.shot("2_slip", check)
        notebook.shot("2_slip_page")

        check = type_and_check(notebook, case, whole)
        expect(check).to_contain_text("Passed.")
        expect(check.locator("img")).to_have_count(0)
        assert edge(check) == GREEN
        notebook.shot("3_mended", check)
        notebook.shot("3_mended_page")

        assert set(notebook.complaints()) == left - {case.cells[1]}
        assert not notebook.outside, "asked outside of this machine"
        assert not notebook.broken
    progress = json.loads((folder / "home" / "progress.json").read_text(encoding="utf-8"))
    assert progress[case.id]["state"] == "passed" and progress[case.id]["tries"] == 2
    assert not (folder / "course" / ".flash-progress.json").exists()
