"""How large the letters of a slide may be: heights estimated from the text, so that what is drawn needs no script.

The estimates are on the safe side; tools/slide_check.py measures in a browser.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from typing import Any

from nbconvert.filters import strip_ansi

from tools.slides import Block

WIDTH, HEIGHT, GAP = 1192, 560, 14  # px that are left of 1280 × 720 for what stands below a title
SIZES = (
    (36, 30),
    (36, 26),
    (34, 24),
    (30, 22),
    (28, 20),
    (26, 18),
)  # px of text, and of code and print: the first that fits
TABLE_SIZES = (30, 28, 26, 24, 22, 20)
MONO = 0.61  # width of a letter in the widest of the code fonts, in its size


def printed(outputs: Iterable[Any]) -> str:
    """What a cell printed, without what it wrote to stderr."""
    said = "".join(o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout")
    return strip_ansi(said).strip("\n").rstrip()


def drawn(outputs: Iterable[Any]) -> list[tuple[str, str]]:
    """The rich outputs of a cell as (figure, table or printed; HTML or text)."""
    found = []
    for output in outputs:
        data = output.get("data", {})
        if "text/html" in data:
            page = data["text/html"]
            found.append(("figure" if "<img" in page or "<svg" in page else "table", page))
        elif "text/plain" in data:
            found.append(("printed", data["text/plain"]))
    return found


def _rows(text: str, size: int) -> int:
    """How many lines a text takes in a box of the page's width, long ones broken."""
    room = int((WIDTH - 34) / (MONO * size))
    return sum(max(1, math.ceil(len(line) / room)) for line in text.rstrip("\n").split("\n"))


def _box(text: str, size: int) -> float:
    return _rows(text, size) * 1.3 * size + 24


def _ems(text: str) -> float:
    """About how wide a bold text is, in the size of its letters."""
    return sum(0.72 if c.isupper() else 0.34 if c in " .,:;()|/il'" else 0.6 if not c.islower() else 0.55 for c in text)


def table_size(page: str, most: int) -> tuple[int, float]:
    """The largest letters in which a table is about as wide and high as the page at most, and its height."""
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr.*?</tr>", page, re.S)]
    cells = [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in row] for row in rows]
    columns = max(map(len, cells), default=0)
    widest = [max((_ems(row[j]) for row in cells if j < len(row)), default=0) for j in range(columns)]
    ems = sum(min(w, 20) for w in widest)  # longer cells are broken
    sizes = [s for s in TABLE_SIZES if s <= most] or [TABLE_SIZES[-1]]
    lines = sum(max((math.ceil(len(c) / 40) for c in row), default=1) or 1 for row in cells)
    heights = {s: lines * (1.25 * s + 11) + (1.25 * s + 8 if "<caption" in page else 0) for s in sizes}
    size = next((s for s in sizes if ems * s + 24 * columns <= WIDTH and heights[s] <= HEIGHT), sizes[-1])
    return size, heights[size]


def _height(block: Block, text: int, mono: int) -> float:
    """About how high a block is in letters of these sizes."""
    if block.kind == "code":
        return _box(block.source, mono)
    if block.kind == "output":
        heights = [
            table_size(x, text)[1] if kind == "table" else 330 if kind == "figure" else _box(x, mono)
            for kind, x in drawn(block.outputs)
        ]
        if said := printed(block.outputs):
            heights.append(_box(said, mono))
        return sum(heights) + GAP * (len(heights) - 1)
    size = 26 if block.kind == "asked" else text
    room = (WIDTH - (0 if block.kind == "text" else 50)) / (0.5 * size)
    folded = [x for _, x in re.findall(r"<details>(.*?</summary>)(.*?)</details>", block.source, re.S)]
    plain = re.sub(r"<details>.*?</details>", "Answer", block.source, flags=re.S)
    plain += max(folded, key=len, default="")  # one at a time can be open
    plain = re.sub(r"\$\$.*?\$\$", "formula\n\nformula", plain, flags=re.S)
    lines = [re.sub(r"<[^>]+>|[$*`]|\\[a-z]+|[{}]", "", line) for line in plain.split("\n") if line.strip()]
    return sum(max(1, math.ceil(len(line) / room)) * 1.35 + 0.4 for line in lines) * size + 20


def _breaks(block: Block, mono: int) -> bool:
    """Whether a line of code or print would be broken in letters of this size."""
    texts = [block.source] if block.kind == "code" else [printed(block.outputs)] if block.kind == "output" else []
    return any(_rows(text, mono) > text.count("\n") + 1 for text in texts)


def fitting(blocks: list[Block]) -> tuple[tuple[int, int], bool]:
    """The largest letters with which these blocks fit on one page, if possible without breaking a line of code."""
    fit = [s for s in SIZES if sum(_height(b, *s) for b in blocks) + GAP * (len(blocks) - 1) <= HEIGHT]
    whole = [s for s in fit if not any(_breaks(b, s[1]) for b in blocks)]
    return (whole or fit or SIZES[-1:])[0], bool(fit)


def figure(blocks: Iterable[Block]) -> bool:
    """Whether there is a picture among the blocks' outputs."""
    return any(kind == "figure" for block in blocks for kind, _ in drawn(block.outputs))
