"""What a chapter's lecture shows: reads the `slideshow` metadata of a notebook's cells and arranges pages.

docs/CONTRIBUTING.md describes the keys. Nothing here knows HTML; tools/slide_page.py draws what is arranged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tools.slide_code import shown_code

TYPES = ("slide", "subslide", "fragment", "skip")
SHOW = {"markdown": ("cell", "predict"), "code": ("both", "code", "output", "figure")}
KEYS: dict[str, Any] = {
    "slide_type": str,
    "notes": str,
    "minutes": (int, float),
    "title": str,
    "text": str,
    "show": str,
    "code": list,
    "hide": list,
}
TEXT_WORDS, CELL_WORDS, ANSWER_WORDS, CODE_LINES, NOTE_WORDS = 40, 60, 90, 15, (5, 110)
FIXED = ("head", "next")  # drawn from course.toml; their metadata holds only notes and minutes
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.M)
_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)


@dataclass
class Block:
    """One thing on a page; a `fragment` appears at the next key.

    `kind` is text, question, asked (a question again, above its answer), code or output.
    """

    kind: str
    source: str = ""
    outputs: list[Any] = field(default_factory=list)
    fragment: bool = False


@dataclass
class Page:
    """One page; `below` says that it lies under the page before it. Minutes are those of its own cells."""

    cell: str
    title: str
    blocks: list[Block]
    notes: str
    minutes: float
    below: bool


def meta(cell: Any) -> dict[str, Any]:
    """A cell's `slideshow`; without one it is skipped."""
    return cell["metadata"].get("slideshow") or {"slide_type": "skip"}


def source(cell: Any) -> str:
    """A cell's source as one string."""
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def words(text: str) -> int:
    """How many words of prose are on a slide: formulas, tables, code and folded answers are not counted."""
    text = re.sub(
        r"<details>.*?</details>|\$\$.*?\$\$|^\|.*$|^\s*([-*]|\d+\.)\s", " ", _FENCE.sub(" ", text), flags=re.M | re.S
    )
    return len(re.sub(r"\$[^$\n]+\$", "x", text).split())


def last_section(text: str) -> tuple[str, str]:
    """The last heading of a Markdown text, or "", and what stands below it: that is what its slide shows."""
    hidden = _FENCE.sub(lambda m: " " * len(m[0]), text)  # a comment in a code block is no heading
    found = list(_HEADING.finditer(hidden))
    return (found[-1][1], text[found[-1].end() :].strip()) if found else ("", text.strip())


def question(text: str) -> str:
    """The last paragraph that asks to predict or to find, from that word on; "" if none does."""
    found = [p[p.rindex(w) :] for p in re.split(r"\n\s*\n", text) for w in ("**Find", "**Predict") if w in p]
    return found[-1].strip() if found else ""


def faults(cells: Iterable[Any]) -> list[str]:
    """What is wrong with the `slideshow` metadata of a notebook's cells, one line each."""
    found: list[str] = []
    begun = False
    for cell in cells:
        if "slideshow" not in cell["metadata"]:
            continue
        given = cell["metadata"]["slideshow"]
        found += [f"{cell['id']}: {fault}" for fault in _faults_of(cell, given, begun)]
        begun = begun or (isinstance(given, dict) and given.get("slide_type") in ("slide", "subslide"))
    return found


def _faults_of(cell: Any, given: Any, begun: bool) -> list[str]:
    if not isinstance(given, dict):
        return ["slideshow is no object"]
    bad = [f"unknown key {key!r}" for key in given if key not in KEYS]
    bad += [
        f"{key} is a {type(value).__name__}"
        for key, value in given.items()
        if key in KEYS and (not isinstance(value, KEYS[key]) or isinstance(value, bool))
    ]
    if bad:
        return bad
    if not all(isinstance(start, str) for key in ("code", "hide") for start in given.get(key, ())):
        return ["code and hide are lists of texts"]
    kind = given.get("slide_type")
    if kind not in TYPES:
        return [f"slide_type is {kind!r}, not one of {', '.join(TYPES)}"]
    if kind == "skip":
        return ["a skipped cell has no other keys"] if len(given) > 1 else []
    if kind != "slide" and not begun:
        bad.append(f"a {kind} before the first slide")
    if kind != "fragment":
        (least, most), said = NOTE_WORDS, len(given.get("notes", "").split())
        if not least <= said <= most:
            bad.append(f"notes of {said} words; say something in {least} to {most}")
        if not 0 < given.get("minutes", 0) <= 8:
            bad.append("minutes are missing or not in 0 to 8")
    if cell["id"] in FIXED:
        return bad + [f"{key!r} means nothing here" for key in given if key not in ("slide_type", "notes", "minutes")]
    allowed = SHOW.get(cell["cell_type"], ())
    if given.get("show", allowed[0]) not in allowed:
        return [*bad, f"show is {given['show']!r}, not one of {', '.join(allowed)}"]
    if words(given.get("text", "")) > TEXT_WORDS:
        bad.append(f"text has {words(given['text'])} words, more than {TEXT_WORDS}")
    if cell["cell_type"] == "markdown":
        own = last_section(source(cell))[1]
        bad += [f"{key} means nothing in a text cell" for key in ("code", "hide") if key in given]
        if given.get("show") == "predict":
            if not question(source(cell)):
                bad.append("show is predict, but nothing is asked")
        elif "text" not in given and words(own) > (most := ANSWER_WORDS if "<details>" in own else CELL_WORDS):
            bad.append(f"the slide has {words(own)} words, more than {most}: give it a text")
    elif given.get("show", "both") in ("both", "code"):
        try:
            lines = shown_code(source(cell), given.get("code", ()), given.get("hide", ())).count("\n") + 1
        except ValueError as error:
            return [*bad, f"code: {error}"]
        if question(given.get("text", "")) and given.get("show", "both") == "both":
            bad.append("a question and what the cell gives on one page: show only the code")
        if lines > CODE_LINES:
            bad.append(f"{lines} lines of code, more than {CODE_LINES}: name the statements to show in code")
    return bad


def pages(cells: Iterable[Any]) -> list[Page]:
    """The pages of a chapter in order; `head` and `next` come as pages without blocks."""
    out: list[Page] = []
    heading = ""
    for cell in cells:
        own, body = last_section(source(cell)) if cell["cell_type"] == "markdown" else ("", "")
        heading = own or heading
        given = meta(cell)
        kind = given["slide_type"]
        if kind == "skip":
            continue
        blocks = [] if cell["id"] in FIXED else _blocks(cell, given, body)
        if kind == "fragment":
            for block in blocks:
                block.fragment = True
            out[-1].blocks += blocks
            out[-1].minutes += given.get("minutes", 0)
            out[-1].notes = " ".join(filter(None, (out[-1].notes, given.get("notes", ""))))
            continue
        above = [b for b in out[-1].blocks if b.kind == "question"] if out and kind == "subslide" else []
        if above and cell["cell_type"] == "code" and given.get("show") in ("output", "figure"):
            blocks.insert(0, Block("asked", above[-1].source))
        title = given.get("title", heading)
        out.append(Page(cell["id"], title, blocks, given["notes"], given["minutes"], kind == "subslide"))
    return out


def _blocks(cell: Any, given: dict[str, Any], body: str) -> list[Block]:
    blocks = []
    if "text" in given:
        asked = question(given["text"])
        asked = asked if given["text"].endswith(asked) else ""
        before = given["text"].removesuffix(asked).strip()
        blocks = [Block("text", before)] * bool(before) + [Block("question", asked)] * bool(asked)
    if cell["cell_type"] == "markdown":
        if given.get("show") == "predict":
            blocks.append(Block("question", question(source(cell))))
        elif not blocks:
            blocks.append(Block("text", body))
        return blocks
    show = given.get("show", "both")
    if show in ("both", "code"):
        blocks.append(Block("code", shown_code(source(cell), given.get("code", ()), given.get("hide", ()))))
    if show != "code":
        kept = cell.get("outputs", [])
        if show == "figure":  # without what was printed, and without a table beside it
            kept = [o for o in kept if o["output_type"] != "stream"]
            kept = [o for o in kept if "image/png" in o.get("data", {})] or kept
        blocks.append(Block("output", outputs=kept))
    return blocks


def minutes(cells: Iterable[Any]) -> float:
    """How long a chapter's talk takes by its metadata."""
    return sum(meta(cell).get("minutes", 0) for cell in cells)
