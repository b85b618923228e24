"""The lectures: what the metadata promises, and what a browser shows.

With FLASHLIB_SCREENSHOTS set to a folder, a picture of every slide of the decks opened here is kept there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from files import ROOT
from tools import build_slides, npm_package, slide_check, slide_page, slides
from tools import course as course_data
from tools.browser import browser, missing
from tools.executed import executed

COURSE = course_data.load()
each_chapter = pytest.mark.parametrize("chapter", COURSE.chapters, ids=lambda c: c.file)
DECKS = ("00_start_here", "03_online_softmax")  # to execute all of them takes minutes: `make slides` looks at all


def cells(chapter: course_data.Chapter) -> list[dict]:
    return json.loads(chapter.path.read_text(encoding="utf-8"))["cells"]


def cell(kind: str, source: str, **slideshow: Any) -> dict:
    given = {"slide_type": "slide", "notes": "Say this and then ask the class.", "minutes": 1} | slideshow
    given = {key: value for key, value in given.items() if value is not None}
    found = {"cell_type": kind, "id": "a", "source": source, "metadata": {"slideshow": given}}
    return found | ({"outputs": []} if kind == "code" else {})


@each_chapter
def test_every_chapter_has_a_lecture_as_long_as_promised(chapter: course_data.Chapter) -> None:
    own = cells(chapter)
    assert slides.faults(own) == []
    assert slides.minutes(own) == chapter.minutes_talk and 25 <= chapter.minutes_talk <= 45
    pages = slides.pages(own)
    assert pages[0].cell == "head" and pages[-1].cell == "next"
    assert 10 <= sum(not page.below for page in pages) and 18 <= len(pages) <= 40


@each_chapter
def test_no_answer_stands_on_the_page_of_its_question(chapter: course_data.Chapter) -> None:
    own = {c["id"]: c for c in cells(chapter)}
    pages = slides.pages(own.values())
    asked = [page for page in pages if any(b.kind == "question" for b in page.blocks)]
    assert len(asked) >= 5, "a lecture asks before it shows"
    for page in asked:
        assert not any(b.kind == "output" and not b.fragment for b in page.blocks), page.cell
    for page in pages:
        for block in page.blocks:  # folded answers of the notebook are folded on the slide, too
            folded = block.source.count("<details>")
            assert (
                folded == slide_page.markdown(block.source).count("<details>") and "<details open" not in block.source
            )


@each_chapter
def test_readers_of_the_notebook_see_nothing_of_the_notes(chapter: course_data.Chapter) -> None:
    text = " ".join(" ".join(c["source"] for c in nbformat.read(chapter.path, as_version=4).cells).split())
    for c in cells(chapter):
        notes = slides.meta(c).get("notes", "")
        assert not notes or notes not in text, c["id"]


FAULTY = {
    "no object": ("markdown", "x", "slide", "no object"),
    "unknown key": ("markdown", "x", {"note": "x"}, "unknown key 'note'"),
    "type": ("markdown", "x", {"minutes": "2"}, "minutes is a str"),
    "slide type": ("markdown", "x", {"slide_type": "page"}, "slide_type is 'page'"),
    "skip": ("markdown", "x", {"slide_type": "skip"}, "no other keys"),
    "no notes": ("markdown", "x", {"notes": None}, "notes of 0 words"),
    "no minutes": ("markdown", "x", {"minutes": None}, "minutes are missing"),
    "below nothing": ("markdown", "x", {"slide_type": "subslide"}, "before the first slide"),
    "long": ("markdown", "word " * 61, {}, "61 words"),
    "long text": ("markdown", "x", {"text": "word " * 41}, "41 words"),
    "nothing asked": ("markdown", "x", {"show": "predict"}, "nothing is asked"),
    "code in text": ("markdown", "x", {"code": ["x"]}, "means nothing"),
    "show": ("code", "x = 1", {"show": "predict"}, "show is 'predict'"),
    "long code": ("code", "x = 1\n" * 16, {}, "16 lines of code"),
    "lost": ("code", "x = 1", {"code": ["y ="]}, "0 statements begin with 'y ='"),
    "twice": ("code", "x = 1\nx = 2", {"code": ["x ="]}, "2 statements"),
    "answer": ("code", "x = 1", {"text": "**Predict.** x?"}, "a question and what the cell gives"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_faulty_metadata_is_named(name: str) -> None:
    kind, source, given, says = FAULTY[name]
    bad = cell(kind, source, **given) if isinstance(given, dict) else cell(kind, source)
    if not isinstance(given, dict):
        bad["metadata"]["slideshow"] = given
    assert [fault for fault in slides.faults([bad]) if says in fault and fault.startswith("a: ")]
    assert slides.faults([cell("markdown", "fine"), cell("code", "x = 1")]) == []


def test_normal_form_names_faulty_metadata(tmp_path: Path) -> None:
    from tools import normal_form

    nb = {"cells": [cell("markdown", "x", notes="no")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "x.ipynb"
    path.write_text(normal_form.normal(json.dumps(nb)), encoding="utf-8")
    assert "notes of 1 words" in normal_form.differs(path)


def test_shown_code_leaves_out_what_nobody_reads_aloud() -> None:
    source = 'def f(x):\n    """Doc."""\n    y = x\n    return y\n\n\nassert f(1) == 1\nprint(f(2))\n'
    assert slides.shown_code(source) == "def f(x):\n    y = x\n    return y\n\nprint(f(2))"
    assert slides.shown_code(source, ["return", "y ="]) == "y = x\nreturn y"
    assert slides.shown_code(source, ["def f"], ["y ="]) == "def f(x):\n    return y"


def test_a_figure_gets_a_page_of_its_own_and_the_question_comes_again() -> None:
    ask = cell("markdown", "## How many?\n\nText before.\n\n**Predict.** How many?", show="predict")
    answer = cell("code", "print(3)", slide_type="subslide", show="output")
    answer["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "3\n"}]
    drawn = cell("code", "x = 1", slide_type="subslide", minutes=3)
    drawn["outputs"] = [{"output_type": "display_data", "data": {"text/html": '<figure><img alt="a"></figure>'}}]
    pages = slides.pages([ask, answer, drawn])
    assert [[b.kind for b in p.blocks] for p in pages] == [["question"], ["asked", "output"], ["code", "output"]]
    assert [p.title for p in pages] == ["How many?"] * 3
    parts = slide_page.split(pages[2])
    assert [[b.kind for b in p.blocks] for p in parts] == [["code"], ["output"]] and parts[1].below
    assert sum(p.minutes for p in parts) == 3
    assert len(slide_page.split(pages[1])) == 1


def test_a_figure_leaves_out_the_table_beside_it() -> None:
    rows = {"text/html": "<table><tr><td>1</td></tr></table>"}
    drawn = {"text/html": '<figure><img alt="a"></figure>', "image/png": "x"}
    outputs: list[dict] = [{"output_type": "stream", "name": "stdout", "text": "3\n"}]
    outputs += [{"output_type": "display_data", "data": data} for data in (rows, drawn)]
    both = cell("code", "x = 1", show="figure") | {"outputs": outputs}
    assert [o["data"] for o in slides.pages([both])[0].blocks[0].outputs] == [drawn]
    table = cell("code", "x = 1", show="figure") | {"outputs": outputs[:2]}
    assert [o["data"] for o in slides.pages([table])[0].blocks[0].outputs] == [rows]


def test_a_long_table_has_smaller_letters_and_links_to_slides() -> None:
    row = '<tr><td>1</td><td><a href="05_backward.ipynb">chapter 05</a></td></tr>'
    for rows, size in ((3, 30), (13, 24)):
        shown = cell("code", "x = 1", show="output")
        shown["outputs"] = [{"output_type": "display_data", "data": {"text/html": f"<table>{row * rows}</table>"}}]
        page = slide_page.section(slides.pages([shown])[0], 1)
        assert f'<table style="font-size:{size}px"' in page
        assert 'href="05_backward.html"' in page and ".ipynb" not in page


def unavailable() -> str:
    if why := missing():
        return why
    try:
        npm_package.fetch(*npm_package.REVEAL)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def decks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if why := unavailable():
        pytest.skip(f"no slides can be looked at: {why}")
    folder = tmp_path_factory.mktemp("slides")
    build_slides.prepare(folder)
    written = []
    for name in DECKS:
        chapter = COURSE.chapter(name)
        assert chapter is not None
        run = executed(chapter)
        assert run.ok, run.error
        written.append(build_slides.write(run.notebook, COURSE, chapter, folder))
    (folder / "index.html").write_text(build_slides.index(COURSE), encoding="utf-8")
    return written


@pytest.mark.browser
def test_every_slide_fits_and_nothing_is_fetched(decks: list[Path]) -> None:
    shots = os.environ.get("FLASHLIB_SCREENSHOTS")
    assert list(slide_check.faults(decks, Path(shots) if shots else None)) == []


@pytest.mark.browser
def test_the_deck_is_what_a_lecturer_needs(decks: list[Path]) -> None:
    with browser() as chromium:
        page = chromium.new_context(viewport={"width": 1280, "height": 720}).new_page()
        page.goto(decks[0].as_uri())
        page.wait_for_function("() => window.Reveal && Reveal.isReady()")
        assert page.title().startswith("00 · Start here")
        assert page.locator("h1").inner_text() == "00 · Start here"
        notes = page.locator("aside.notes").all_text_contents()
        assert len(notes) == page.evaluate("Reveal.getTotalSlides()") and all(len(n.split()) > 8 for n in notes)
        assert page.locator("aside.notes").first.is_hidden()
        timing = page.locator("section[data-timing]").evaluate_all("all => all.map(e => +e.dataset.timing)")
        assert sum(timing) == pytest.approx(COURSE.chapters[0].minutes_talk * 60, abs=len(timing))
        with page.expect_popup() as opened:  # the speaker view, from the deck's own folder
            page.keyboard.press("s")
        view = opened.value
        view.wait_for_function("() => document.querySelector('.speaker-controls-notes .value')?.textContent.trim()")
        assert notes[0].split("[")[0].strip() in view.locator(".speaker-controls-notes .value").inner_text()
        page.bring_to_front()
        page.keyboard.press("End")
        page.locator("section.present a", has_text="01 · Naive attention").wait_for()


@pytest.mark.browser
def test_the_check_sees_what_is_wrong(tmp_path: Path) -> None:
    if why := unavailable():
        pytest.skip(f"no slides can be looked at: {why}")
    build_slides.prepare(tmp_path)
    tall, wide = "<p>line</p>" * 30, f'<pre style="white-space:pre;font-size:18px">{"x" * 200}</pre>'
    bodies = {
        "fine": "<p>fine</p>", "tall": tall, "wide": wide, "small": '<p style="font-size:12px">small</p>',
        "folded": f"<details><summary>Answer</summary>{tall}</details>", "fetches": '<img alt="x" src="../x.png">',
    }  # fmt: skip
    sections = "".join(
        f'<section data-cell="{name}"><div class="page"><h2>{name}</h2><div class="body">{body}</div></div>'
        f"<aside class=notes>{'' if name == 'fine' else 'Say it.'}</aside></section>"
        for name, body in bodies.items()
    )
    deck = tmp_path / "bad.html"
    deck.write_text(slide_page.HEAD.format(title="bad") + sections + slide_page.TAIL, encoding="utf-8")
    found = list(slide_check.faults([deck]))
    for name, says in {
        "fine": "no notes", "tall": "beyond the slide", "wide": "", "small": "smaller than 24 px",
        "folded": "opened: ",
    }.items():  # fmt: skip
        assert [f for f in found if f"cell {name}: " in f and says in f], (name, found)
    assert [f for f in found if "asks for file://" in f and "x.png" in f]
    assert not [f for f in found if "cell fine: " in f and "no notes" not in f]


def test_a_deck_names_no_address_but_those_of_links(tmp_path: Path) -> None:
    """Links may lead out; nothing else may, so that a deck opens the same without a network."""
    sources = [ROOT / "tools" / "slides.css", ROOT / "tools" / "slide_page.py", ROOT / "tools" / "build_slides.py"]
    for path in sources:
        assert not re.search(r"https?://", path.read_text(encoding="utf-8")), path.name
