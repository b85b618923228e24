"""What stands around the text of a built page: its style, a way past the links, the links, and what the page holds.

None of it needs a script, and printed it leaves only the text.
"""

from __future__ import annotations

import html
import re

# Folded answers, formulas, tables and figures need no script; the colours keep the contrast that readers need.
STYLE = """
<style>
  nav.course { max-width: 66rem; box-sizing: border-box; margin: 1rem auto; padding: 0 1rem; font-family: sans-serif;
    display: flex; gap: .5rem 2rem; justify-content: space-between; flex-wrap: wrap; line-height: 1.7; }
  nav.contents { margin: 1rem 0 1rem 5.4rem; max-width: 46rem; font-family: sans-serif; font-size: 1rem; }
  .jp-RenderedMarkdown nav.contents { margin-left: 0; }
  nav a { color: #0d47a1; }
  nav.contents p { margin: 0; font-weight: bold; }
  nav.contents ul, .jp-RenderedMarkdown nav.contents ul { columns: 20rem 2; column-gap: 2rem; margin: .5rem 0;
    padding: 0; list-style: none !important; }
  nav.contents li { line-height: 1.3; padding: .3rem 0; break-inside: avoid; }
  .skip { position: absolute; left: -99rem; }
  .skip:focus { position: fixed; left: 1rem; top: 1rem; z-index: 9; padding: .6rem 1rem; background: #fff; color: #000;
    outline: 3px solid #0072B2; }
  a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid #0072B2; outline-offset: 2px; }
  body.course { max-width: 66rem; margin: 2rem auto; padding: 0 1rem; font-family: sans-serif; line-height: 1.5; }
  body.course td, body.course th { text-align: left; padding: .4rem .8rem .4rem 0; vertical-align: top; }
  body.course tbody th { font-weight: normal; white-space: nowrap; }
  body.course tbody td:last-child { text-align: right; }
  main { max-width: 66rem; margin: 0 auto; }
  nav.course a, nav.contents a, .jp-RenderedHTMLCommon a[href] { text-decoration: underline; }
  body.jp-Notebook { --jp-content-font-size1: 16px; }
  .jp-RenderedMarkdown > :is(p, ul, ol, details, blockquote) { max-width: 46rem; }
  .jp-InputPrompt, .jp-OutputPrompt { color: #555 !important; opacity: 1 !important; }
  .highlight .c1 { color: #306060 !important; }
  .highlight .o, .highlight .ow { color: #8a1bd6 !important; }
  .highlight .mi, .highlight .mf, .highlight .mh { color: #006b00 !important; }
  figure img { max-width: 100%; height: auto; }
  @media (max-width: 48rem) {
    .highlight pre { white-space: pre-wrap !important; overflow-wrap: anywhere; }
    caption { white-space: normal !important; }
    :not(pre) > code { overflow-wrap: anywhere; }
    nav.contents { margin-left: .4rem; }
    body.course tbody tr { display: block; padding: .4rem 0; }
    body.course tbody th, body.course tbody td { display: block; padding: 0; white-space: normal; }
    body.course thead { display: none; }
    body.course tbody td:last-child { text-align: left; }
    body.course tbody td:last-child::after { content: " minutes"; }
  }
  @media print {
    nav, .skip { display: none !important; }
    details::details-content { content-visibility: visible; }
    .highlight pre { white-space: pre-wrap !important; overflow-wrap: anywhere; }
    figure, table, pre { break-inside: avoid; }
    h1, h2, h3 { break-after: avoid; }
  }
</style>
"""
SKIP = '<a class="skip" href="#main">Skip to the text</a>'
# With fewer headings a page is seen at a glance.
LEAST_HEADINGS = 4
_HEADING = re.compile(r'<h2 id="([^"]+)"[^>]*>(.*?)</h2>', re.S)
# The text of a Markdown cell, up to the next cell; and what in it cannot be broken into narrower lines.
_TEXT = re.compile(r'(<div class="[^"]*\bjp-RenderedMarkdown\b[^"]*")(.*?)(?=<div class="jp-Cell |</main>)', re.S)
_WIDE = re.compile(r"<table\b|<pre\b|<math\b(?:(?!</math>).){600}", re.S)
_MAIN = re.compile(r"<main\b[^>]*>")


def contents(body: str) -> str:
    """A list of links to the second-level headings of a page; "" if there are too few to need one."""
    found = _HEADING.findall(body)
    if len(found) < LEAST_HEADINGS:
        return ""
    items = "".join(f'<li><a href="#{name}">{_text(words)}</a></li>' for name, words in found)
    title = '<p id="on-this-page">On this page</p>'
    return f'<nav class="contents" aria-labelledby="on-this-page">{title}<ul>{items}</ul></nav>'


def _text(heading: str) -> str:
    """A heading without links in it."""
    return re.sub(r"</?a\b[^>]*>", "", heading).strip()


def github_anchors(body: str) -> str:
    """A document's page whose headings are called as GitHub calls them: links in Markdown files are written for it."""

    def renamed(match: re.Match[str]) -> str:
        words = html.unescape(re.sub(r"<[^>]*>", "", match[3].replace("¶", "")))
        name = re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")
        return f'<h{match[1]} id="{name}"{match[2]}>{match[3]}</h{match[1]}>'

    return re.sub(r'<h([1-6]) id="[^"]*"([^>]*)>(.*?)</h\1>', renamed, body, flags=re.S)


def frame(body: str, nav: str, title: str) -> str:
    """nbconvert's page with all that stands around its text.

    Parameters
    ----------
    body : str
        The page, with one `<main>`.
    nav : str
        The line of links, put above and below.
    title : str
        What the browser's tab says.
    """
    # nbconvert's template loads MathJax, RequireJS and Mermaid from the network, whether they are needed or not.
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.S)
    # A ¶ in every heading would be read out by a screen reader; the list of contents holds the same links.
    body = re.sub(r'<a class="anchor-link"[^>]*>.*?</a>', "", body)
    # It makes every cell a stop for the Tab key, where there is nothing to do. What may be wider than the screen needs
    # one, so that the arrow keys can move it.
    body = body.replace('<div class="jp-Cell-inputWrapper" tabindex="0">', '<div class="jp-Cell-inputWrapper">')
    body = _TEXT.sub(lambda m: f'{m[1]} tabindex="0"{m[2]}' if _WIDE.search(m[2]) else m[0], body)
    body = re.sub(r"<title>.*?</title>", f"<title>{html.escape(title)}</title>", body, count=1, flags=re.S)
    body = body.replace("</head>", STYLE + "</head>", 1)
    body = re.sub(r"(<body[^>]*>)", lambda m: m.group(1) + SKIP + nav, body, count=1)
    body = _MAIN.sub('<main id="main" tabindex="-1">', body, count=1)
    # Below the head cell of a chapter, which says what it is for; in a document above its first section.
    place = re.search(r'<div class="[^"]*\bjp-CodeCell\b[^"]*" id="cell-id=setup">', body) or _HEADING.search(body)
    if place:
        body = body[: place.start()] + contents(body) + body[place.start() :]
    again = nav.replace('aria-label="Chapters"', 'aria-label="Chapters, again"')
    return body.replace("</body>", again + "</body>", 1)
