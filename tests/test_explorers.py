"""Every explorer in a real JupyterLab, in a browser: each control, moved with the keyboard, changes the picture.

One notebook is made of the chapters' own cells that hold an explorer; what a chapter had made before such a cell is
made here in a line or two. Set FLASHLIB_SCREENSHOTS to a folder to keep the pictures.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lab
from files import ROOT

pytestmark = pytest.mark.browser

# chapter → what its cells need, and the cells with an explorer, each with its number of controls
EXPLORERS: dict[str, tuple[str, dict[str, int]]] = {
    "01_naive_attention": ("import numpy as np\nfrom flashlib.show import display", {"formats-picture": 3}),
    "02_memory_wall": (
        "from types import SimpleNamespace\n"
        "from flashlib.instruments import pipelines\n"
        "from flashlib.instruments.machine import CHIPS\n"
        "from flashlib.show import display, fusion, units\n"
        "N, d, half = 1024, 64, 2\n"
        "four = SimpleNamespace(total=fusion.pipelines(N, d, 'A100')['four steps'].moved)",
        {"under-roof-picture": 3},
    ),
    "03_online_softmax": (
        "from flashlib import toy\n"
        "from flashlib.algorithms.naive import four_steps\n"
        "from flashlib.show import display, streams\n"
        "scores = four_steps(*toy()).s[3]",
        {"picture-stairs": 1, "tree-picture": 2},
    ),
    "04_tiled_forward": (
        "import flashlib\n"
        "from flashlib.instruments import machine, pipelines\n"
        "from flashlib.show import display, mask_tiles, tile_size, units, walk",
        {"plan-picture": 1, "causal-map": 3, "tile-picture": 4},
    ),
    "05_backward": (
        "from flashlib.show import backward\nfrom flashlib.instruments.memory_forms import extra_bytes\n"
        "device, lengths = 'cpu', (256,)\npeaks = {'naive': [extra_bytes('naive', 256, 64, backward=True)]}",
        {"loop-picture": 1, "limit-picture": 3},
    ),
    "10_flash_decoding": (
        "from flashlib.instruments.machine import CHIPS\nfrom flashlib.show import display, units",
        {"choice": 3},
    ),
    "12_other_roads": ("", {"window-picture": 4}),
}
CONTROLS = ".noUi-handle, select, input[type=checkbox]"
# The keys that move a control to another of its values, whichever it has. A menu must be open: JupyterLab takes the
# arrow keys for its cells otherwise.
KEYS = """control => control.tagName === 'SELECT'
    ? ['Space', control.selectedIndex + 1 < control.options.length ? 'ArrowDown' : 'ArrowUp', 'Enter']
    : [control.type === 'checkbox' ? 'Space'
       : control.ariaValueNow === control.ariaValueMax ? 'ArrowLeft' : 'ArrowRight']"""


def cells(chapter: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "notebooks" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_no_explorer_of_the_course_is_left_out() -> None:
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        code = [c for c in cells(path.stem) if c["cell_type"] == "code"]
        ids = [c["id"] for c in code if re.search(r"\bexplore\(", source(c))]
        if ids:
            found[path.stem] = ids
    assert found == {chapter: list(ids) for chapter, (_, ids) in EXPLORERS.items()}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Notebook]:
    """The notebook of all explorers, open in a JupyterLab, all its cells run."""
    if why := lab.missing():
        pytest.skip(f"no browser test: {why}")
    folder = tmp_path_factory.mktemp("explorers")
    course = lab.copy_course(folder / "course", "flashlib", "course.toml")
    made = [c for c in cells("00_start_here") if c["id"] == "setup"]
    for chapter, (needs, ids) in EXPLORERS.items():
        if needs:  # an empty cell would never have run
            made.append({**made[0], "id": f"needs-{chapter[:2]}", "metadata": {}, "source": needs})
        made += [c for c in cells(chapter) if c["id"] in ids]
    (course / "notebooks").mkdir()
    whole = json.loads((ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")) | {"cells": made}
    (course / "notebooks" / "explorers.ipynb").write_text(json.dumps(whole), encoding="utf-8")
    shots = Path(os.environ.get("FLASHLIB_SCREENSHOTS") or folder)
    with (
        lab.server(course, folder / "home") as base,
        lab.browser() as browser,
        lab.Notebook(browser, base, "notebooks/explorers.ipynb", shots) as notebook,
    ):
        notebook.run_all()
        assert not notebook.complaints()
        yield notebook


ALL = [(cell, n) for _, ids in EXPLORERS.values() for cell, n in ids.items()]


@pytest.mark.parametrize(("cell", "controls"), ALL, ids=[cell for cell, _ in ALL])
def test_each_control_changes_the_picture_and_its_alt_text(opened: lab.Notebook, cell: str, controls: int) -> None:
    output, page = opened.output(cell), opened.page
    picture = output.locator("figure img").first
    picture.wait_for()
    handles = output.locator(CONTROLS)
    assert handles.count() == controls
    opened.shot(f"explorer-{cell}-first", output)
    for n in range(controls):
        before = picture.get_attribute("alt"), picture.get_attribute("src")
        handle = handles.nth(n)
        handle.focus()
        for key in handle.evaluate(KEYS):
            page.keyboard.press(key)
        page.wait_for_function(
            "([area, alt]) => { const now = area.querySelector('figure img, [role=alert]'); return now?.alt !== alt }",
            arg=[output.element_handle(), before[0]],
        )
        assert not output.locator("[role=alert]").count(), output.inner_text()
        now = picture.get_attribute("alt"), picture.get_attribute("src")
        assert now[0] and now[0] != before[0] and now[1] != before[1], f"control {n}"
    opened.shot(f"explorer-{cell}-moved", output)
    assert not opened.outside and not opened.broken and not opened.complaints()
