"""Whole chapters in a real JupyterLab, in a browser: every cell runs, and the player, stepped by keyboard, is right.

Set FLASHLIB_SCREENSHOTS to a folder to keep the pictures.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashlib
import lab
from flashlib.grading.inputs import draw
from flashlib.show.row_state import Problem, number

pytestmark = pytest.mark.browser

SAYS = """([place, text]) => {
    const found = [...document.querySelectorAll('.jp-OutputArea-output ' + place)];
    return found.some(f => (f.alt ?? f.textContent).replace(/\\s+/g, ' ').includes(text));
}"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, Path]]:
    """A browser, the address of a JupyterLab on a copy of the course, and a folder for screenshots."""
    if why := lab.missing():
        pytest.skip(f"no browser test: {why}")
    folder = tmp_path_factory.mktemp("player")
    course = lab.copy_course(folder / "course", "flashlib", "notebooks", "docs", "course.toml", "pyproject.toml")
    shots = Path(os.environ.get("FLASHLIB_SCREENSHOTS") or folder)
    with lab.server(course, folder / "home") as base, lab.browser() as browser:
        yield browser, base, shots


@contextlib.contextmanager
def run(opened: tuple[Any, str, Path], name: str) -> Iterator[lab.Notebook]:
    """A chapter, untouched, run from top to bottom; at the end nothing may have gone wrong or left the machine."""
    browser, base, shots = opened
    with lab.Notebook(browser, base, f"notebooks/{name}.ipynb", shots) as notebook:
        notebook.run_all()
        assert not notebook.complaints()
        shown = notebook.outputs()
        assert len([outputs for outputs in shown.values() if outputs]) > len(shown) / 2
        notebook.shot(name)
        yield notebook
        assert not notebook.complaints() and not notebook.outside and not notebook.broken


class Player:
    """The player of an open notebook."""

    def __init__(self, notebook: lab.Notebook) -> None:
        self.page, self.output = notebook.page, notebook.output("player-run")
        self.handle = self.output.locator(".noUi-handle").first
        self.readout = self.output.locator(".widget-readout").first
        self.handle.wait_for()

    def at(self) -> int:
        """The step that the slider stands at."""
        return int(self.readout.inner_text())

    def press(self, key: str, on: Any, step: int) -> None:
        """Press a key on a control, until slider and picture stand at this step."""
        on.focus()
        self.page.keyboard.press(key)
        self.page.wait_for_function("([e, n]) => e.textContent == n", arg=[self.readout.element_handle(), str(step)])
        self.says("figure img", f"Step {step} of")

    def says(self, place: str, text: str) -> None:
        """Wait until the caption, or the picture's alt text, holds these words."""
        self.page.wait_for_function(SAYS, arg=[place, text])

    def fits(self) -> None:
        """The controls stand in one row, say what they do, and leave the picture its place on the screen."""
        buttons = [b for b in self.output.locator(".widget-hbox button").all() if b.is_visible()]
        tops = {round(b.bounding_box()["y"]) for b in buttons}
        assert len(tops) == 1, tops
        ours = self.output.locator("button.widget-button").all()
        assert len(ours) >= 4 and all(len(b.get_attribute("title") or "") > 10 for b in ours)
        box, picture = self.output.locator(".widget-vbox").first, self.output.locator("figure img").first
        picture.scroll_into_view_if_needed()
        pages = [p for p in self.page.locator(".jp-WindowedPanel-outer").all() if p.is_visible()]
        (top, end), (first, last) = (
            (a.bounding_box()["y"], b.bounding_box()["y"] + b.bounding_box()["height"])
            for a, b in ((pages[0], pages[0]), (box, picture))
        )
        assert top <= first < last <= end + 1 and last - first <= 620, (top, first, last, end)

    def button(self, name: str) -> Any:
        """A button by what stands on it."""
        return self.output.get_by_role("button", name=name)


@pytest.mark.parametrize("name", ["00_start_here", "03_online_softmax"])
def test_a_whole_chapter_runs(opened: Any, name: str) -> None:
    with run(opened, name) as notebook:
        for cell_id, outputs in notebook.outputs().items():
            if any("image/png" in o.get("data", {}) for o in outputs):
                notebook.shot(f"{name}-{cell_id}", notebook.cell(cell_id))


def test_the_toy_is_stepped_with_the_arrow_keys_and_shows_the_computed_numbers(opened: Any) -> None:
    with run(opened, "04_tiled_forward") as notebook:
        player, problem, pictures = Player(notebook), Problem(*flashlib.toy()), set()
        for keys in (2, 4, 6):
            right = problem.state(3, list(range(keys)))
            words = f"row 3 after this tile ({keys} keys in all): m = {number(right.m)} l = {number(right.l)}"
            o = "o = acc / l = (" + ", ".join(number(float(x)) for x in right.o) + ")"
            for place in ("figcaption", "figure img"):
                player.says(place, words)
                player.says(place, o)
            pictures.add(player.output.locator("figure img").first.get_attribute("src"))
            player.fits()
            notebook.shot(f"player-{keys}-keys")
            for _ in range(6 if keys < 6 else 0):  # K, S, V, m, l, acc: six steps a tile
                player.press("ArrowRight", player.handle, player.at() + 1)
        assert len(pictures) == 3
        player.press("Enter", player.button("◀ step"), player.at() - 1)
        player.press("Enter", player.button("tile ▶"), player.at() + 1)


def test_the_wrong_kernel_is_followed_to_its_first_difference(opened: Any) -> None:
    with run(opened, "07_triton_forward") as notebook:
        player = Player(notebook)
        printed = re.search(r"First difference at step (\d+)", player.output.inner_text())
        assert printed
        player.press("Enter", player.button("first difference"), int(printed[1]))
        q, k, v = (x[0, 0] for x in draw(7, B=1, Hq=1, Hkv=1, Sq=37, Sk=53, library="torch", offset=120.0)[:3])
        right = Problem(q, k, v).state(2, list(range(53)))
        words = f"m = 0 ≠ {number(right.m)} (right) l = 0 ≠ {number(right.l)} (right)"
        player.says("figcaption", f"row 2 after this tile (53 keys in all): {words}")
        player.says("figcaption", "in the tile of rows 0 to 15, keys 48 to 52")
        player.says("figure img", "the first difference: the ragged tile of keys 48 to 52 wipes row 2 out")
        player.says("figure img", words)
        player.fits()
        notebook.shot("player-first-difference")
