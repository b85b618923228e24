"""The programs that run notebooks and make pages do what they say. The lessons themselves run in `make notebooks`."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from tools import build_html
from tools.course import load
from tools.normal_form import normal
from tools.run_notebooks import chosen, execute


def notebook(folder: Path, *sources: str) -> Path:
    """A notebook file with these code cells, named c0, c1, ..."""
    new = [nbformat.v4.new_code_cell(s, id=f"c{i}") for i, s in enumerate(sources)]
    path = folder / "some.ipynb"
    path.write_text(normal(nbformat.writes(nbformat.v4.new_notebook(cells=new))), encoding="utf-8")
    return path


def test_a_good_notebook_passes_and_stays_as_it_is(tmp_path: Path) -> None:
    path = notebook(tmp_path, "x = 6 * 7", "print(x)")
    before = path.read_bytes()
    run = execute(path, 60)
    assert run.ok and run.notebook.cells[1].outputs[0].text == "42\n" and len(run.notebook.cells) == 2
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_failing_cell_is_shown(tmp_path: Path) -> None:
    run = execute(notebook(tmp_path, "rows = 3", "raise ValueError(f'{rows} rows')"), 60)
    assert not run.ok
    for part in ("ValueError: 3 rows", "in cell `c1`", "    raise ValueError(f'{rows} rows')"):
        assert part in run.error


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("while True: pass", "not done after 5 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its kernel died"),
        ("import torch", "torch was imported"),
    ],
    ids=["loop", "crash", "torch"],
)
def test_what_else_may_go_wrong(tmp_path: Path, source: str, said: str) -> None:
    run = execute(notebook(tmp_path, source), 5 if "while" in source else 60, torch_allowed=False)
    assert not run.ok and said in run.error


def test_the_shells_backend_does_not_reach_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = execute(notebook(tmp_path, "import os; print(os.environ['MPLBACKEND'])"), 60)
    assert "inline" in run.notebook.cells[0].outputs[0].text


def test_static_reaches_the_kernel(tmp_path: Path) -> None:
    run = execute(notebook(tmp_path, "import os; print(os.environ.get('FLASHLIB_STATIC'))"), 60, static=True)
    assert run.notebook.cells[0].outputs[0].text == "1\n"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match="begins with 99"):
        chosen(["99"])


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _page(data: dict[str, str]) -> tuple[str, list[str]]:
    output = nbformat.v4.new_output("display_data", data=data)
    cell = nbformat.v4.new_code_cell("draw()", id="draw", outputs=[output])
    return build_html.page(nbformat.v4.new_notebook(cells=[cell]), "t", "<nav></nav>")


def test_a_page_with_a_picture_without_words_is_reported() -> None:
    _, missing = _page({"image/png": PIXEL, "text/plain": "<Figure>"})
    assert missing


def test_a_page_with_a_described_picture_is_not() -> None:
    html = f'<figure><img alt="one grey dot" src="data:image/png;base64,{PIXEL}"></figure>'
    body, missing = _page({"text/html": html, "image/png": PIXEL, "text/plain": "one grey dot"})
    assert not missing and 'alt="one grey dot"' in body and "<nav>" in body


def test_links_between_notebooks_become_links_between_pages() -> None:
    text = "[a](03_online_softmax.ipynb#x) [b](../docs/GLOSSARY.md#hbm) [c](../README.md#chapters) [d](https://example.org)"
    assert build_html._links(text) == (
        "[a](03_online_softmax.html#x) [b](GLOSSARY.html#hbm) [c](index.html) [d](https://example.org)"
    )


def test_index_lists_every_chapter() -> None:
    text = build_html.index(load())
    assert all(f'href="{c.file}.html"' in text for c in load().chapters)


def test_normal_form_names_cells_without_names() -> None:
    given = [("markdown", "0a1b2c3d", "## The merge law"), ("code", "9f8e7d6c-1234-4abc-8def-0123456789ab", "1")]
    given += [("code", "keep", "2"), ("code", "keep", "3")]
    raw = [{"cell_type": kind, "id": cid, "metadata": {}, "source": source} for kind, cid, source in given]
    ids = [c["id"] for c in json.loads(normal(json.dumps({"cells": raw})))["cells"]]
    assert ids == ["the-merge-law", "cell-01", "keep", "keep-2"]
