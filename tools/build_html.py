"""Builds the course as web pages, with results, in build/html: `make html`.

Every notebook is executed, unless build/executed has a copy of the same code, with FLASHLIB_STATIC=1, so that a figure
with sliders becomes a picture. The pages hold no script and fetch nothing: they can be read without a network. Exit
status 1 if a notebook fails, a figure has no alt text, a link between pages leads nowhere, or axe-core finds something
that stands in the way of some readers; axe needs a Chromium and npm, and where one is missing a line says so.
"""

from __future__ import annotations

import html
import logging
import re
import shutil
import sys
from collections.abc import Container
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from tools import axe, page_frame, page_text
from tools.course import ROOT, Chapter, Course, load, repository
from tools.executed import executed

OUT = ROOT / "build" / "html"
# A sentence of the README.
FOR_WHOM = "You need Python, some NumPy, and to have met attention once."


class _Alt(logging.Handler):
    """Collects nbconvert's complaints about images without alt text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it is about alt text."""
        if "lternative text" in record.getMessage():
            self.found.append(record.getMessage())


def _target(path: str, chapters: Container[str]) -> str | None:
    """The address that a link to a file of the repository has on a page; None if it has none."""
    folder, _, name = path.rpartition("/")
    stem, _, kind = name.rpartition(".")
    if path == "README.md":
        return "index.html"
    if (folder, kind) == ("docs", "md") or ((folder, kind) == ("notebooks", "ipynb") and stem in chapters):
        return f"{stem}.html"
    return f"{repository()}/blob/main/{path}" if repository() else None


def _links(source: str, folder: str = "notebooks") -> str:
    """Links between the repository's files, as links between pages."""
    chapters = {c.file for c in load().chapters}
    return page_text.links(source, folder, lambda path: _target(path, chapters))


def _nav(course: Course, chapter: Chapter | None, here: str = "") -> str:
    """The line of links above and below a page; `here` is the page's own file, to which it needs no link."""
    links = ['<a href="index.html">All chapters</a>']
    if chapter:
        place = course.chapters.index(chapter)
        for step, word, relation in ((-1, "Previous", "prev"), (1, "Next", "next")):
            if 0 <= place + step < len(course.chapters):
                other = course.chapters[place + step]
                links.append(f'<a rel="{relation}" href="{other.file}.html">{word}: {html.escape(other.name)}</a>')
    if here != "GLOSSARY.html":
        links.append('<a href="GLOSSARY.html">Glossary</a>')
    return f'<nav class="course" aria-label="Chapters">{" ".join(links)}</nav>'


def page(nb: nbformat.NotebookNode, title: str, nav: str, folder: str = "notebooks") -> tuple[str, list[str]]:
    """A notebook's page, and what nbconvert says about missing alt text."""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = page_text.formulas(_links(cell.source, folder))
    heard = _Alt()
    exporter = HTMLExporter(embed_images=False)
    exporter.log.addHandler(heard)
    try:
        body, _ = exporter.from_notebook_node(nb, resources={"metadata": {"name": title}})
    finally:
        exporter.log.removeHandler(heard)
    # Links that a cell printed, in a table of sources say; those in text were turned before.
    chapters = {c.file for c in load().chapters}
    body = re.sub(r'href="(\w+)\.ipynb"', lambda m: f'href="{m[1]}.html"' if m[1] in chapters else m.group(0), body)
    if folder == "docs":
        body = page_frame.github_anchors(body)
    return page_frame.frame(body, nav, f"{title} – {load().title}"), heard.found


def document(course: Course, path: Path) -> str:
    """The page of a Markdown file of docs/."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(path.read_text(encoding="utf-8"))])
    return page(nb, _heading(path), _nav(course, None, f"{path.stem}.html"), "docs")[0]


def index(course: Course) -> str:
    """The first page: whom the course is for, and every chapter with its promise and its time."""
    rows = "".join(
        f'<tr><th scope="row"><a href="{c.file}.html">{html.escape(c.name)}</a></th><td>{html.escape(c.promise)}</td>'
        f"<td>{c.minutes_read}</td></tr>"
        for c in course.chapters
    )
    url = repository()
    source = f'<p>The notebooks themselves: <a href="{html.escape(url)}">{html.escape(url)}</a></p>' if url else ""
    head = f'<meta charset="utf-8"><title>{html.escape(course.title)}</title>{page_frame.STYLE}'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    columns = "".join(f'<th scope="col">{name}</th>' for name in ("chapter", "what it does", "minutes"))
    return (
        f'<!doctype html><html lang="en"><head>{head}{view}</head><body class="course"><main>'
        f"<h1>{html.escape(course.title)}</h1><p>{FOR_WHOM}</p><h2>Chapters</h2>"
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"
        f"<h2>Beside the chapters</h2><ul>{_documents()}</ul>{source}</main></body></html>\n"
    )


def _documents() -> str:
    """Links to the pages of docs/, each by its first heading; the glossary first."""
    pages = sorted((ROOT / "docs").glob("*.md"), key=lambda p: (p.stem != "GLOSSARY", p.stem))
    return "".join(f'<li><a href="{p.stem}.html">{html.escape(_heading(p))}</a></li>' for p in pages)


def _heading(doc: Path) -> str:
    """The first heading of a Markdown file, which names its page."""
    return doc.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def main() -> int:
    """Execute and convert every chapter."""
    course = load()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    bad = 0
    for chapter in course.chapters:
        run = executed(chapter)
        if not run.ok:
            print(f"{chapter.file}: {run.error}")
            bad += 1
            continue
        body, missing = page(run.notebook, chapter.name, _nav(course, chapter))
        (OUT / f"{chapter.file}.html").write_text(body, encoding="utf-8")
        took = f"{run.seconds:6.1f} s" if run.seconds else "    kept"
        print(f"{chapter.file:<24} {took}   {'ok' if not missing else 'NO ALT TEXT'}", flush=True)
        for line in missing:
            print("   ", line)
        bad += bool(missing)
    for doc in sorted((ROOT / "docs").glob("*.md")):
        (OUT / f"{doc.stem}.html").write_text(document(course, doc), encoding="utf-8")
    (OUT / "index.html").write_text(index(course), encoding="utf-8")
    dead = page_text.broken(OUT)
    for link in dead:
        print(f"leads nowhere: {link}")
    barred = _barriers(sorted(OUT.glob("*.html")))
    print(f"{Path('build') / 'html' / 'index.html'}" + (f": {bad} chapters need mending" if bad else ""))
    return int(bad > 0 or bool(dead) or barred > 0)


def _barriers(pages: list[Path]) -> int:
    """Look at all pages with axe-core, print what it finds, and count what is more than minor."""
    if why := axe.unavailable():
        print(f"not looked at with axe-core: {why}")
        return 0
    found = [v for v in axe.violations(pages) if v.impact in axe.GRAVE]
    for violation in found:
        print(violation)
    print(f"axe-core: {len(found)} barriers on {len(pages)} pages")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
