"""Builds the course's lectures in build/slides, from the notebooks' `slideshow` metadata: `make slides`.

The notebooks are executed as for the pages. Beside the decks lies what they need of reveal.js, so that they open
without a network, from a file or from a server. Where a Chromium is installed, every slide is looked at in it. Exit
status 1 if a notebook fails, has no slides or faulty metadata, or if something does not fit on a slide.
"""

from __future__ import annotations

import argparse
import html
import shutil
import sys
from pathlib import Path

import nbformat

from tools import npm_package, slide_check, slide_page, slides
from tools.browser import missing
from tools.course import ROOT, Chapter, Course, load
from tools.executed import executed
from tools.run_notebooks import chosen

OUT = ROOT / "build" / "slides"
REVEAL = ("dist/reset.css", "dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js", "LICENSE")


def prepare(folder: Path) -> None:
    """Put what every deck needs into a folder: the parts of reveal.js, and the style.

    Raises
    ------
    RuntimeError
        reveal.js is not in build/ and could not be fetched.
    """
    package = npm_package.fetch(*npm_package.REVEAL)
    (folder / "reveal").mkdir(parents=True, exist_ok=True)
    for part in REVEAL:
        shutil.copyfile(package / part, folder / "reveal" / Path(part).name)
    shutil.copyfile(ROOT / "tools" / "slides.css", folder / "slides.css")


def write(nb: nbformat.NotebookNode, course: Course, chapter: Chapter, folder: Path) -> Path:
    """Write the deck of an executed chapter into a folder, and return its path.

    Raises
    ------
    ValueError
        The metadata is faulty, or there are no slides.
    """
    if wrong := slides.faults(nb.cells):
        raise ValueError("\n".join(wrong))
    pages = slides.pages(nb.cells)
    if not pages:
        raise ValueError("no cell has a slide_type other than skip")
    path = folder / f"{chapter.file}.html"
    path.write_text(slide_page.deck(pages, course, chapter), encoding="utf-8")
    return path


def index(course: Course) -> str:
    """The first page: the decks with their minutes, and the keys."""
    rows = "".join(
        f'<tr><td><a href="{c.file}.html">{html.escape(c.name)}</a></td><td>{html.escape(c.promise)}</td>'
        f"<td>{c.minutes_talk}</td></tr>"
        for c in course.chapters
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(course.title)}: slides</title><style>body{{font:18px/1.5 sans-serif;max-width:66rem;"
        "margin:2rem auto;padding:0 1rem;color:#1a1a1a}td,th{text-align:left;vertical-align:top;padding:.3rem .8rem}"
        f"a{{color:#005a8c}}</style></head><body><main><h1>{html.escape(course.title)}: slides</h1>"
        "<p>Space: on · arrows: on, back, down · S: speaker view with notes and clock · O: overview · F: full screen · "
        "B: black · ?: all keys. To print or save as PDF, add <code>?print-pdf</code> to a deck's address.</p>"
        "<table><thead><tr><th>chapter</th><th>what it does</th><th>minutes</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></main></body></html>\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Execute, write and look at the decks named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.build_slides", description="Build the lecture slides.")
    parser.add_argument("names", nargs="*", help="beginnings of names, such as 03; all if left out")
    args = parser.parse_args(argv)
    course, bad, written = load(), 0, []
    try:
        prepare(OUT)
    except RuntimeError as error:
        print(error)
        return 1
    for path in chosen(args.names):
        chapter = course.chapter(path.stem)
        if chapter is None:
            continue
        run = executed(chapter)
        try:
            if not run.ok:
                raise ValueError(run.error)
            written.append(write(run.notebook, course, chapter, OUT))
        except ValueError as error:
            bad += 1
            print(f"{chapter.file}: {error}")
            continue
        print(f"{chapter.file:<24} {slides.minutes(run.notebook.cells):4g} min", flush=True)
    (OUT / "index.html").write_text(index(course), encoding="utf-8")
    if why := missing():
        print(f"not looked at, whether everything fits: {why}")
    else:
        for fault in slide_check.faults(written):
            bad += 1
            print(fault, flush=True)
    print(Path("build") / "slides" / "index.html", f"({bad} to mend)" if bad else "")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
