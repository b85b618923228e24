"""The programs that run notebooks and make pages do what they say. The lessons themselves run in `make notebooks`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from tools import build_html, page_text
from tools.course import ROOT, load
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


def test_a_link_to_what_is_no_page_goes_to_the_repository_or_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[the law, `merge`](../flashlib/algorithms/online.py) `[a](../x.py)` [later](99_later.ipynb)"
    monkeypatch.setattr(build_html, "repository", lambda: "")
    assert build_html._links(text) == "the law, `merge` `[a](../x.py)` later"
    monkeypatch.setattr(build_html, "repository", lambda: "https://example.org/o/r")
    assert build_html._links("[x](../CHANGELOG.md)", "docs") == "[x](https://example.org/o/r/blob/main/CHANGELOG.md)"
    assert (
        build_html._links("[x](../notebooks/00_start_here.ipynb) [y](#hbm)", "docs")
        == "[x](00_start_here.html) [y](#hbm)"
    )


def test_formulas_become_mathml_and_code_stays() -> None:
    code = "`$x$` and ``a ` $y$``\n\n```\ncost = $5 + $6\n```\n"
    assert page_text.formulas(code) == code
    assert page_text.formulas("it costs $5 or \\$6, not $ 7") == "it costs $5 or \\$6, not $ 7"
    text = page_text.formulas("row $i$: $$ s_{ij}\n = 1 $$ `$`")
    assert text.count("<math") == 2 and "$" not in text.removesuffix("`$`") and "\n" not in text
    assert "<mi>i</mi>" in text and 'display="block"' in text


@pytest.mark.parametrize("path", [c.path for c in load().chapters], ids=lambda p: p.stem)
def test_every_formula_of_a_chapter_converts(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            left = re.sub(r"```.*?```|`[^`]*`", "", page_text.formulas(cell.source), flags=re.S)
            assert "$" not in left, cell.id


def test_a_page_needs_no_network() -> None:
    cells = [nbformat.v4.new_markdown_cell("The cost is $N^2$.\n\n$$ a_b * c_d * e $$"), nbformat.v4.new_code_cell("1")]
    body, _ = build_html.page(nbformat.v4.new_notebook(cells=cells), "t", '<nav aria-label="Chapters"></nav>')
    assert body.count("<math") == 2 and body.count("</math>") == 2 and "<em>" not in body
    assert "<script" not in body and not re.search(r"""(src=|href=|url\(|@import )["']?(https?:)?//""", body)
    assert 'aria-label="Chapters, again"' in body


def test_dead_links_between_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#x"></a><a href="b.html#y"></a><a href="https://example.org/c">')
    (tmp_path / "b.html").write_text('<p id="x"><a href="#x"></a><a href="../c.py"></a><img src="d.png">')
    assert page_text.broken(tmp_path) == ["a.html: b.html#y", "b.html: ../c.py", "b.html: d.png"]


def test_index_lists_every_chapter() -> None:
    text = build_html.index(load())
    assert all(f'href="{c.file}.html"' in text for c in load().chapters)
    assert all(f'href="{doc.stem}.html"' in text for doc in (ROOT / "docs").glob("*.md"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert build_html.FOR_WHOM in " ".join(readme.split()) and build_html.FOR_WHOM in text


def test_normal_form_names_cells_without_names() -> None:
    given = [("markdown", "0a1b2c3d", "## The merge law"), ("code", "9f8e7d6c-1234-4abc-8def-0123456789ab", "1")]
    given += [("code", "keep", "2"), ("code", "keep", "3")]
    raw = [{"cell_type": kind, "id": cid, "metadata": {}, "source": source} for kind, cid, source in given]
    ids = [c["id"] for c in json.loads(normal(json.dumps({"cells": raw})))["cells"]]
    assert ids == ["the-merge-law", "cell-01", "keep", "keep-2"]


def test_links_that_a_cell_printed_lead_to_pages() -> None:
    out = nbformat.v4.new_output("display_data", {"text/html": '<a href="03_online_softmax.ipynb">chapter 03</a>'})
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[out])])
    body, _ = build_html.page(nb, "t", "")
    assert 'href="03_online_softmax.html"' in body and ".ipynb" not in body
