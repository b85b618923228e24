"""What a web page needs that a notebook does not: formulas as MathML, links between pages, and no link that is dead."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from latex2mathml.converter import convert

# Code comes first: a dollar sign or a bracket in it means nothing.
_CODE = r"(?P<code>^ {0,3}(?P<fence>```+|~~~+).*?^ {0,3}(?P=fence)|(?<!`)(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`))"
_FORMULA = re.compile(
    rf"{_CODE}|\\\$|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)", re.M | re.S
)
_LINK = re.compile(
    rf"{_CODE}|(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)", re.M | re.S
)


def formulas(source: str) -> str:
    """Markdown whose `$…$` and `$$…$$` are MathML, which browsers draw without a script; code stays as it is."""

    def mathml(match: re.Match[str]) -> str:
        if match["display"]:
            # On one line, so that Markdown takes it for a part of the text around it.
            return re.sub(r"\s*\n\s*", " ", convert(match["display"].strip(), display="block"))
        return convert(match["inline"]) if match["inline"] else match[0]

    return _FORMULA.sub(mathml, source)


def links(source: str, folder: str, target: Callable[[str], str | None]) -> str:
    """Markdown whose links between the repository's files are links that work on a page.

    Parameters
    ----------
    source : str
        Markdown of a file in `folder`.
    folder : str
        Relative to the repository, "notebooks" for example.
    target : callable
        From a file's path in the repository to an address, or None: then the link's text stays, without a link.
    """

    def mended(match: re.Match[str]) -> str:
        path = match["path"]
        if match["code"] or match["image"] or not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return match[0]
        address = target(posixpath.normpath(posixpath.join(folder, path)))
        if address is None:
            return match["text"]
        # The README's headings are not those of the page that takes its place.
        anchor = "" if address == "index.html" else match["anchor"] or ""
        return f"[{match['text']}]({address}{anchor})"

    return _LINK.sub(mended, source)


class _Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what points somewhere and what can be pointed at."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def broken(folder: Path) -> list[str]:
    """Relative links in `folder`'s pages that lead to no file, or to no anchor in it: "page: link" for each."""
    read = {}
    for path in sorted(folder.glob("*.html")):
        read[path.name] = _Page()
        read[path.name].feed(path.read_text(encoding="utf-8"))
    bad = []
    for name, page in read.items():
        for link in dict.fromkeys(page.links):
            if re.match(r"[a-z][a-z0-9+.-]*:|//", link):
                continue
            file, _, anchor = link.partition("#")
            file = unquote(file) or name
            # Like a browser: an anchor is looked for as it is written, then decoded.
            lost = anchor and file in read and not {anchor, unquote(anchor)} & read[file].anchors
            if lost or not (folder / file).is_file():
                bad.append(f"{name}: {link}")
    return bad
