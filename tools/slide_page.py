"""Draws a chapter's pages (tools/slides.py) as one reveal.js document that fetches nothing from outside its folder."""

from __future__ import annotations

import html
import re
from dataclasses import replace

from nbconvert.filters import markdown2html
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tools import page_text, slide_code, slide_fit
from tools.course import Chapter, Course
from tools.slides import Block, Page

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<link rel="stylesheet" href="reveal/reset.css"><link rel="stylesheet" href="reveal/reveal.css">
<link rel="stylesheet" href="slides.css"></head><body>
<main><div class="reveal"><div class="slides">
"""
TAIL = """
</div></div></main>
<script src="reveal/reveal.js"></script><script src="reveal/notes.js"></script>
<script>
Reveal.initialize({width: 1280, height: 720, margin: 0, center: false, hash: true, transition: 'none',
  slideNumber: 'c/t', controlsTutorial: false, pdfSeparateFragments: false, plugins: [RevealNotes]});
</script></body></html>
"""


def markdown(text: str) -> str:
    """Markdown as HTML: formulas as MathML, links into the course as plain words, folded answers closed."""
    text = page_text.links(text, "notebooks", lambda path: None)
    text = re.sub(r"\]\(#[^)]*\)", "]", text)
    return markdown2html(page_text.formulas(text))


def split(page: Page) -> list[Page]:
    """A page, or two: code above and what it gives on the next, if both are too much or there is a figure."""
    code = [b for b in page.blocks if b.kind == "code"]
    output = [b for b in page.blocks if b.kind == "output"]
    if not code or not output or any(b.fragment for b in page.blocks):
        return [page]
    if not slide_fit.figure(output) and slide_fit.fitting(page.blocks)[1]:
        return [page]
    first = [b for b in page.blocks if b.kind != "output"]
    half = page.minutes / 2
    return [replace(page, blocks=first, minutes=half), replace(page, blocks=output, minutes=half, below=True)]


def _block(block: Block, text: int, mono: int) -> str:
    late = " fragment" if block.fragment else ""
    if block.kind == "code":
        code = highlight(block.source, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
        return f'<div class="code{late}"><pre style="font-size:{mono}px"><code>{code}</code></pre></div>'
    if block.kind == "output":
        parts, drawn = [], slide_fit.drawn(block.outputs)
        for kind, x in [*drawn, ("printed", slide_fit.printed(block.outputs))]:
            if kind == "table":
                x = x.replace("<table", f'<table style="font-size:{slide_fit.table_size(x, text)[0]}px"', 1)
                x = re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', x)  # another chapter's slides
            elif kind == "printed":
                x = x and f'<pre class="printed" style="font-size:{mono}px">{html.escape(x)}</pre>'
            parts.append(x)
        extra = " drawn" if any(kind == "figure" for kind, _ in drawn) else ""
        return f'<div class="output{extra}{late}">{"".join(parts)}</div>'
    size = 26 if block.kind == "asked" else text
    return f'<div class="{block.kind}{late}" style="font-size:{size}px">{markdown(block.source)}</div>'


def _section(page: Page, body: str, kind: str = "") -> str:
    seconds = round(page.minutes * 60)
    notes = html.escape(f"{page.notes} [{page.minutes:g} min; cell {page.cell}]")
    return (
        f'<section data-cell="{page.cell}" data-timing="{seconds}"{kind}><div class="page">{body}</div>'
        f'<aside class="notes">{notes}</aside></section>'
    )


def section(page: Page, place: int) -> str:
    """One page as a `section`; `place` makes the names of its folded answers its own."""
    blocks = [replace(b, source=slide_code.narrow(b.source)) if b.kind == "code" else b for b in page.blocks]
    sizes, fits = slide_fit.fitting(blocks)
    if blocks[0].kind == "asked" and (not fits or slide_fit.figure(blocks)):
        blocks = blocks[1:]  # whoever asks has to say it again
        sizes, _ = slide_fit.fitting(blocks)
    body = "".join(_block(b, *sizes) for b in blocks)
    body = body.replace("<details>", f'<details name="answers-{place}">')  # one opens, another closes: they fit
    title = re.sub(r"</?a\b[^>]*>", "", _inline(page.title))
    return _section(page, f'<h2>{title}</h2><div class="body">{body}</div>')


def title_section(page: Page, course: Course, chapter: Chapter) -> str:
    """The first page, from course.toml: title, promise, objectives."""
    items = "".join(f"<li>{_inline(o)}</li>" for o in chapter.objectives)
    body = (
        f'<div class="course">{html.escape(course.title)}</div><h1>{html.escape(chapter.name)}</h1>'
        f'<div class="promise">{_inline(chapter.promise)}</div><ul>{items}</ul>'
    )
    return _section(page, body, ' class="title"')


def last_section(page: Page, course: Course, chapter: Chapter) -> str:
    """The last page: the exercises and the next chapter."""
    after = course.after(chapter)
    parts = ['<h2>Where to go next</h2><div class="body">']
    if chapter.exercises:
        parts.append(f'<div class="text">Exercises, about {chapter.minutes_exercises} minutes: ')
        parts.append(", ".join(f"<code>exercises/{e}.ipynb</code>" for e in chapter.exercises) + "</div>")
    if after:
        link = f'<a href="{after.file}.html">{html.escape(after.name)}</a>'
        parts.append(f'<div class="text"><p>Next chapter: {link}</p><p>{_inline(after.promise)}</p></div>')
    else:
        parts.append('<div class="text">This is the last chapter so far.</div>')
    parts.append('<div class="text"><a href="index.html">All chapters</a></div></div>')
    return _section(page, "".join(parts))


def _inline(text: str) -> str:
    return re.sub(r"</?p>", "", markdown(text)).strip()


def deck(pages: list[Page], course: Course, chapter: Chapter) -> str:
    """The whole document. Pages that lie below others form a column with the page above them."""
    columns: list[list[str]] = []
    place = 0
    for page in pages:
        for part in [page] if page.cell in ("head", "next") else split(page):
            place += 1
            if part.cell == "head":
                drawn = title_section(part, course, chapter)
            elif part.cell == "next":
                drawn = last_section(part, course, chapter)
            else:
                drawn = section(part, place)
            if part.below and columns:
                columns[-1].append(drawn)
            else:
                columns.append([drawn])
    body = "\n".join(c[0] if len(c) == 1 else f"<section>\n{chr(10).join(c)}\n</section>" for c in columns)
    return HEAD.format(title=html.escape(f"{chapter.name}: slides")) + body + TAIL
