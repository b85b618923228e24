"""The glossary and the chapters hold each other: a word is linked where a reader meets it first, and leads back.

The rule, also in docs/CONTRIBUTING.md: a word is linked in the cell in which the course first uses it, chapters read in
order, or earlier, and so once more in the chapter that explains it. What is code, a formula or a heading is no use.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.files import ROOT, repository_files
from tools.course import NOTEBOOKS

GLOSSARY = ROOT / "docs" / "GLOSSARY.md"
CHAPTERS = sorted(NOTEBOOKS.glob("*.ipynb"))
FIXED = ("head", "setup", "next")  # written from course.toml

# How the text says a word, where that is not the entry's own name (up to a comma or a bracket).
FORMS = {
    "alignment": r"aligned|aligns|alignment",
    "block-sparse": r"block-sparse",
    "dtype": r"dtypes?\b",
    "exponent": r"exponents?\b",
    "fusion": r"fusion|fused|fuse\b",
    "gqa": r"GQA|grouped heads",
    "lse": r"logsumexp|lse\b",
    "merge-law": r"merge law",
    "naive": r"naive",
    "reference": r"reference\b|oracle",
    "recompute": r"recomputation",
    "scale": r"scale\b",
    "softmax": r"softmax",
}
# Words that have an everyday meaning too: looked for from the chapter on that explains them.
EVERYDAY = {"grid", "mask", "page", "program", "rank", "scale", "slot"}
# Names of libraries that are words of the text although they are written as code.
NAMES = re.compile(r"`(autograd\.Function|gradcheck)`")


@dataclass(frozen=True)
class Entry:
    """One word: its anchors, its name, and the number of the chapter that explains it."""

    anchors: tuple[str, ...]
    name: str
    chapter: int
    target: str

    @property
    def form(self) -> re.Pattern[str]:
        """What counts as a use."""
        words = FORMS.get(self.anchors[0]) or re.escape(re.split(r"[,(]", self.name)[0].strip())
        return re.compile(rf"\b(?:{words})", re.I)


def entries(text: str) -> list[Entry]:
    """The words of a glossary; ValueError for a paragraph among them that is not one."""
    out = []
    for block in text.split("## Words", 1)[1].strip().split("\n\n"):
        head = re.match(r'((?:<a id="[^"]+"></a>)+)\n\*\*(.+?)\.\*\* ', block)
        back = re.search(r"\[Chapter (\d\d)\]\(\.\./notebooks/(\S+)\)\.$", block)
        if not head or not back:
            raise ValueError(f"an entry is an anchor, a name, words, and its chapter at the end: {block!r}")
        out.append(Entry(tuple(re.findall(r'id="([^"]+)"', head[1])), head[2], int(back[1]), back[2]))
    return out


WORDS = entries(GLOSSARY.read_text(encoding="utf-8"))


def text_cells(path: Path) -> list[tuple[str, str]]:
    """(id, source) of a notebook's own Markdown cells."""
    raw = json.loads(path.read_text(encoding="utf-8"))["cells"]
    own = [c for c in raw if c["cell_type"] == "markdown" and c["id"] not in FIXED]
    return [(c["id"], "".join(c["source"])) for c in own]


def plain(source: str) -> str:
    """A cell's text without code, formulas, headings, tags and addresses; the text of links stays."""
    text = re.sub(r"^(```|~~~).*?^\1", " ", source, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", " ", NAMES.sub(r"\1", text))
    text = re.sub(r"^#+ [^\n]*$|\$\$.*?\$\$|\$[^$\n]+\$|</?[a-z][^>]*>", " ", text, flags=re.M | re.S)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def links(source: str) -> set[str]:
    """The anchors of the glossary to which a cell links."""
    return set(re.findall(r"\]\(\.\./docs/GLOSSARY\.md#([\w-]+)\)", source))


def unlinked(word: Entry, chapters: list[list[tuple[str, str]]]) -> str:
    """Where a word is used before it is linked; "" if it is linked in time.

    Parameters
    ----------
    chapters : for each chapter in order its cells, as `text_cells` gives them.
    """
    begins = word.chapter if word.anchors[0] in EVERYDAY else 0
    used = [any(word.form.search(plain(source)) for _, source in cells) for cells in chapters]
    first = next((n for n in range(begins, len(chapters)) if used[n]), None)
    for number in sorted({word.chapter} if first is None else {first, word.chapter}):
        for name, source in chapters[number]:
            if links(source) & set(word.anchors):
                break
            if word.form.search(plain(source)):
                return f"{word.name}: first used, and not linked, in chapter {number:02d}, cell {name}"
        else:
            return f"{word.name}: chapter {number:02d} should explain it, and neither uses nor links it"
    return ""


READ = [text_cells(path) for path in CHAPTERS]


@pytest.mark.parametrize("word", WORDS, ids=lambda w: w.anchors[0])
def test_a_word_is_linked_where_it_is_first_used(word: Entry) -> None:
    assert not unlinked(word, READ), unlinked(word, READ)


def test_a_word_used_before_its_link_is_found() -> None:
    word = Entry(("tile",), "Tile", 1, "")
    link = "A [tile](../docs/GLOSSARY.md#tile) is"
    assert unlinked(word, [[("a", "no such word"), ("b", link)], [("c", link)]]) == ""
    assert "chapter 00, cell a" in unlinked(word, [[("a", "two tiles"), ("b", link)], [("c", link)]])
    assert "chapter 01, cell c" in unlinked(word, [[("b", link)], [("c", "a tile")]])
    assert "neither" in unlinked(word, [[("b", link)], [("c", "`tile` and $tile$\n# A tile")]])


def test_every_anchor_is_linked_and_used_once() -> None:
    anchors = [a for word in WORDS for a in word.anchors]
    assert len(set(anchors)) == len(anchors)
    linked: set[str] = set()
    for path in repository_files():
        if path.suffix in (".md", ".ipynb") and path != GLOSSARY:
            linked |= set(re.findall(r"GLOSSARY\.md#([\w-]+)", path.read_text(encoding="utf-8")))
    assert set(anchors) - linked == set(), "an anchor to which no chapter links"
    assert linked - set(anchors) <= {"notation", "words"}, "a link without an anchor"


def test_words_are_in_order_and_lead_to_their_chapter() -> None:
    names = [re.sub(r"\W", " ", word.name).lower() for word in WORDS]
    assert names == sorted(names)
    for word in WORDS:
        assert CHAPTERS[word.chapter].name == word.target, word.name
    with pytest.raises(ValueError, match="its chapter at the end"):
        entries('## Words\n\n<a id="x"></a>\n**X.** Something.\n')


def test_every_exception_is_a_word() -> None:
    assert set(FORMS) | EVERYDAY <= {word.anchors[0] for word in WORDS}
