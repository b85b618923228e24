"""Nobody is left out: what the text must have, read from the files, and what axe-core finds on pages, in Chromium.

`make html` looks at every page; here are a few of each kind, among them what `check` shows and a page of feedback.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import numpy as np
import pytest

from flashlib.grading import feedback
from flashlib.grading.check import check
from flashlib.grading.result import Result
from tests.files import ROOT
from tests.test_colab import controlled
from tests.test_repo import MARKDOWN_FILES, NOTEBOOK_FILES, WORKBOOKS, cells, prose
from tools import axe, build_html
from tools.browser import browser
from tools.course import load
from tools.run_notebooks import execute

TEXTS = MARKDOWN_FILES + NOTEBOOK_FILES + WORKBOOKS
each_text = pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.relative_to(ROOT).as_posix())
each_notebook = pytest.mark.parametrize(
    "path", NOTEBOOK_FILES + WORKBOOKS, ids=lambda p: p.relative_to(ROOT).as_posix()
)

# words

COLOURS = "red|green|blue|orange|yellow|purple|violet|pink|brown|grey|gray|vermilion|teal|cyan|magenta"
THINGS = (
    "line|curve|bar|dot|point|tile|cell|box|square|area|region|band|row|column|key|arrow|text|number|part|piece|colou?r"
)
BY_COLOUR = re.compile(rf"\b(?:the|in|a|are|is) (?:\w+ )?(?:{COLOURS})\b(?: (?:\w+ )?(?:{THINGS})s?\b)?", re.I)


def headerless(text: str) -> list[str]:
    """Tables in Markdown whose columns are not all named, by their first line."""
    lines = text.splitlines()
    bad = []
    for number, line in enumerate(lines):
        if re.fullmatch(r"\s*\|(?:\s*:?-+:?\s*\|)+\s*", line):
            head = lines[number - 1].strip() if number else ""
            if not head.startswith("|") or not all(name.strip() for name in head.strip("|").split("|")):
                bad.append(head or line)
    return bad


def unnamed(text: str) -> list[str]:
    """HTML tables without a header cell."""
    return [t for t in re.findall(r"<table\b.*?</table>", text, re.S) if "<th" not in t]


@each_text
def test_every_column_of_a_table_has_a_name(path: Path) -> None:
    assert not headerless(prose(path)) and not unnamed(prose(path))


@each_text
def test_nothing_is_told_by_its_colour(path: Path) -> None:
    """Say which marker, hatching, line or label instead: some readers see no colours, and some hear the text."""
    found = BY_COLOUR.search(prose(path))
    assert not found, found


@each_notebook
def test_pictures_come_from_flashlib_show(path: Path) -> None:
    """Whatever else puts a picture out gives it no alternative text: IPython's display, or a figure as a last value."""
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        source = "\n".join(line for line in cell["source"].splitlines() if not line.lstrip().startswith(("%", "!")))
        tree = ast.parse(source)
        called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not called & {"display", "Image", "SVG"} and "IPython.display" not in modules, cell["id"]
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Name):
            assert last.value.id not in ("fig", "figure", "ax", "axes"), f"{cell['id']} ends in a figure; use show"


def test_what_the_lint_must_find() -> None:
    assert headerless("| | a |\n|---|---|\n| x | 1 |") == ["| | a |"]
    assert headerless("|---|---|\n| x | 1 |") and not headerless("| n | a |\n|:--|---|\n| | 1 |")
    assert unnamed("<table><tr><td>1</td></tr></table>") and not unnamed("<table><tr><th>n</th></tr></table>")
    for told in ("see the red line", "tiles in blue are masked", "the pale green area", "are grey"):
        assert BY_COLOUR.search(told), told
    for fine in ("the same colour, and the same hatching", "the reduced line", "an orange"):
        assert not BY_COLOUR.search(fine), fine


# pages


def wrong(s: np.ndarray) -> np.ndarray:
    """No maximum is subtracted."""
    return np.exp(s) / np.exp(s).sum(-1, keepdims=True)


def right(s: np.ndarray) -> np.ndarray:
    """Safe softmax."""
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(top), s.dtype.type(0), top))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, s.dtype.type(1), total)


def untouched(s: np.ndarray) -> np.ndarray:
    """As it is handed out."""
    raise NotImplementedError


REPORTS = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from flashlib.grading.check import check
from flashlib.grading.progress import show
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of pages: a chapter with its results, documents, the index, a learner's checks, a page of feedback."""
    if why := axe.unavailable():
        pytest.skip(f"axe-core looked at nothing: {why}")
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHLIB_PROGRESS", str(folder / "progress.json"))
        course = load()
        chapter = course.numbered(3)
        run = execute(chapter.path, 4 * chapter.cpu_limit_s, static=True)
        assert run.ok, run.error
        body, missing = build_html.page(run.notebook, chapter.name, build_html._nav(course, chapter))
        assert not missing
        _stills(run.notebook)
        (folder / "chapter.html").write_text(body, encoding="utf-8")
        for name in ("GLOSSARY", "CHEATSHEET", "TEACHING"):
            (folder / f"{name}.html").write_text(build_html.document(course, ROOT / "docs" / f"{name}.md"), "utf-8")
        (folder / "index.html").write_text(build_html.index(course), encoding="utf-8")
        (folder / "checks.html").write_text(_checks(folder), encoding="utf-8")
        (folder / "feedback.html").write_text(_feedback(), encoding="utf-8")
    yield folder


def _stills(notebook: nbformat.NotebookNode) -> None:
    """Every picture with controls is a still picture with alternative text on a page."""
    found = 0
    for cell in notebook.cells:
        if cell.cell_type == "code" and (wanted := controlled(cell.source)):
            html = [o.data.get("text/html", "") for o in cell.outputs if "data" in o]
            assert sum(bool(re.search(r'<img [^>]*\balt="[^"]{20,}"', h)) for h in html) >= wanted, cell.id
            assert not any("widget-view" in kind for o in cell.outputs for kind in o.get("data", {})), cell.id
            found += wanted
    assert found


def _checks(folder: Path) -> str:
    """What `check` puts under a learner's cells, as JupyterLab draws it, and the map of what is done."""
    functions = "\n\n".join(inspect.getsource(fn) for fn in (right, wrong, untouched))
    sources = [REPORTS.format(root=str(ROOT)), functions]
    sources += [f'check("01.1", {name}, seed=1)' for name in ("right", "wrong", "untouched")] + ["show()"]
    new = nbformat.v4
    made = [new.new_markdown_cell("# Checks"), *(new.new_code_cell(source) for source in sources)]
    path = folder / "checks.ipynb"
    nbformat.write(new.new_notebook(cells=made), path)
    run = execute(path, 120)
    assert run.ok, run.error
    kinds = [[sorted(o.data) for o in c.outputs] for c in run.notebook.cells if c.cell_type == "code"]
    assert kinds[3] == [["image/png", "text/html", "text/plain"], ["text/html", "text/plain"]], kinds
    return build_html.page(run.notebook, "Checks", build_html._nav(load(), None))[0]


def _feedback() -> str:
    """The page of a student who did one exercise rightly, one wrongly, and left one."""
    results = []
    for number, fn in enumerate((right, wrong, untouched), 1):
        report = check("01.1", fn, seed=1)
        points, html = float(bool(report)), feedback.fragment(report)
        told = Result(f"01.{number}", "safe softmax", report.state, points, 1.0, "a reason", seed=1, html=html)
        results.append(told.plain())
    assert [r["state"] for r in results] == ["passed", "failed", "not started"]
    return feedback.page("ada", results, ["02_exercises.ipynb is no notebook"])


@pytest.mark.browser
def test_built_pages_have_no_barriers(pages: Path) -> None:
    found = list(axe.violations(sorted(pages.glob("*.html"))))
    print(f"axe-core: {len(found)} violations, {[v.impact for v in found]}")
    assert not [v for v in found if v.impact in axe.GRAVE], "\n".join(map(str, found))


def test_make_html_names_what_axe_found_and_why_it_did_not_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        axe.Violation("image-alt", "critical", "a.html", 390, '<img src="x">', "no alt"),
        axe.Violation("empty-table-header", "minor", "a.html", 390, "<th></th>", "no text"),
    ]
    monkeypatch.setattr(axe, "violations", lambda pages: iter(found))
    monkeypatch.setattr(axe, "unavailable", lambda: "")
    assert build_html._barriers([]) == 1
    said = capsys.readouterr().out
    assert 'critical image-alt: a.html (390 px wide): <img src="x">' in said and "empty-table-header" not in said
    monkeypatch.setattr(axe, "unavailable", lambda: "no Chromium is installed")
    assert build_html._barriers([]) == 0
    assert "not looked at with axe-core: no Chromium is installed" in capsys.readouterr().out


def test_a_document_keeps_githubs_anchors(tmp_path: Path) -> None:
    path = tmp_path / "A.md"
    path.write_text("# A\n\n" + "".join(f"## The `x`, {n}!\n\n" for n in range(4)) + "[b](#the-x-1)", "utf-8")
    body = build_html.document(load(), path)
    assert '<h2 id="the-x-1">' in body and body.count('href="#the-x-1"') == 2, "a heading, the contents and the link"


@pytest.mark.browser
def test_the_keyboard_comes_to_the_text_first(pages: Path) -> None:
    with browser() as chromium:
        page = chromium.new_page()
        page.goto((pages / "chapter.html").as_uri())
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, (
            "it is seen while it has focus"
        )
        page.keyboard.press("Enter")
        page.wait_for_function("document.activeElement.id === 'main'")
        named = page.locator("nav.contents a")
        assert [a.inner_text() for a in named.all()] == [h.inner_text() for h in page.locator("h2").all()]
        page.emulate_media(media="print")
        assert not page.locator("nav").first.is_visible() and page.locator("h1").is_visible()


def _lost_alt(page: str) -> str:
    return re.sub(r'(<img\b[^>]*) alt="[^"]*"', r"\1", page, count=1)


def _pale(page: str) -> str:
    return page.replace("<h1", '<h1 style="color:#bbb"', 1)


def _skipped_heading(page: str) -> str:
    return re.sub(r"<h2\b(.*?)</h2>", r"<h4\1</h4>", page, flags=re.S)


def _no_language(page: str) -> str:
    return page.replace('<html lang="en">', "<html>", 1)


@pytest.mark.browser
def test_axe_finds_what_is_spoiled(pages: Path, tmp_path: Path) -> None:
    """Each way to spoil a page, in pages of their own, and the rule that must name it."""
    spoiled = {"image-alt": _lost_alt, "color-contrast": _pale, "heading-order": _skipped_heading}
    spoiled["html-has-lang"] = _no_language
    page = (pages / "feedback.html").read_text(encoding="utf-8")
    for rule, spoil in spoiled.items():
        assert spoil(page) != page
        (tmp_path / f"{rule}.html").write_text(spoil(page), encoding="utf-8")
    found = list(axe.violations(sorted(tmp_path.glob("*.html")), widths=(1280,)))
    assert {(v.page, v.rule) for v in found if v.impact in axe.GRAVE} == {(f"{r}.html", r) for r in spoiled}
