"""Reads course.toml and writes what is made from it: a notebook's fixed cells and the README's chapter table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
BEGIN, END = "<!-- chapters:begin (written by `make fix` from course.toml) -->", "<!-- chapters:end -->"


@dataclass(frozen=True)
class Chapter:
    """One [[chapter]] of course.toml; the file's own head explains the fields."""

    number: int
    file: str
    title: str
    carries: str
    promise: str
    objectives: list[str]
    needs: list[int]
    minutes_read: int
    minutes_exercises: int
    cpu_limit_s: int
    gpu: str
    torch: bool
    triton: bool = False
    minutes_talk: int = 0
    exercises: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Number and title as the course writes them, "03 · Online softmax"."""
        return f"{self.number:02d} · {self.title}"

    @property
    def path(self) -> Path:
        """Where the notebook lies."""
        return NOTEBOOKS / f"{self.file}.ipynb"


@dataclass(frozen=True)
class Course:
    """All of course.toml."""

    title: str
    notebook_limit_s: int
    total_limit_s: int
    chapters: list[Chapter]

    def chapter(self, file: str) -> Chapter | None:
        """The chapter whose notebook has this name, or None."""
        return next((c for c in self.chapters if c.file == file), None)

    def after(self, chapter: Chapter) -> Chapter | None:
        """The chapter that follows, or None after the last."""
        later = [c for c in self.chapters if c.number > chapter.number]
        return later[0] if later else None

    def numbered(self, number: int) -> Chapter:
        """The chapter with this number; KeyError if there is none."""
        for c in self.chapters:
            if c.number == number:
                return c
        raise KeyError(f"course.toml has no chapter {number}")


def load(root: Path = ROOT) -> Course:
    """Read course.toml."""
    raw = tomllib.loads((root / "course.toml").read_text(encoding="utf-8"))
    chapters = sorted((Chapter(**c) for c in raw["chapter"]), key=lambda c: c.number)
    return Course(chapters=chapters, **raw["course"])


def repository(root: Path = ROOT) -> str:
    """The repository's address from pyproject.toml, or "" while it is not set."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/").removesuffix(".git")


def colab_badge(chapter: Chapter, url: str) -> str:
    """Markdown of the "open in Colab" badge; "" unless the repository lies on GitHub."""
    host = "https://github.com/"
    if not url.startswith(host):
        return ""
    target = (
        f"https://colab.research.google.com/github/{url.removeprefix(host)}/blob/main/notebooks/{chapter.file}.ipynb"
    )
    return f"[![Open {chapter.name} in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({target})"


def _link(c: Chapter) -> str:
    return f"[{c.name}]({c.file}.ipynb)"


def head_cell(course: Course, chapter: Chapter, url: str) -> str:
    """Source of the `head` cell: title, promise, objectives, needs, times, GPU."""
    needs = ", ".join(_link(course.numbered(n)) for n in chapter.needs) or "nothing but some Python"
    minutes = f"{chapter.minutes_read} minutes to read and run"
    if chapter.exercises:
        minutes += f", {chapter.minutes_exercises} for the exercises"
    gpu = {"no": "not used", "optional": "not needed; used where there is one"}[chapter.gpu]
    facts = [
        f"**Needs:** {needs}.",
        f"**Time:** {minutes}; its cells take less than {chapter.cpu_limit_s} seconds on two CPU cores.",
        f"**GPU:** {gpu}.",
    ]
    badge = colab_badge(chapter, url)
    parts = [
        f"# {chapter.name}",
        *([badge] if badge else []),
        chapter.promise,
        "**After this chapter you will be able to**",
        "\n".join(f"- {o}" + (";" if o is not chapter.objectives[-1] else ".") for o in chapter.objectives),
        "  \n".join(facts),
    ]
    return "\n\n".join(parts)


SETUP = """\
# Run this cell first. It finds the course; on your own machine it installs nothing.
import pathlib
import shutil
import subprocess
import sys

COURSE_URL = "{url}"
COLAB = pathlib.Path("/content/flash-course")
if "google.colab" in sys.modules and not COLAB.is_dir():
    if COURSE_URL:
        subprocess.run(["git", "clone", "-q", "--depth=1", COURSE_URL, str(COLAB)], check=True)
    elif COLAB.with_suffix(".zip").is_file():
        shutil.unpack_archive(COLAB.with_suffix(".zip"), COLAB.parent)
places = [pathlib.Path.cwd(), *pathlib.Path.cwd().parents, COLAB]
root = next((p for p in places if (p / "flashlib" / "setup.py").is_file()), None)
if root is None:
    raise FileNotFoundError(
        "The course's folder is neither here nor above. On your own machine, open this notebook inside the course. "
        "On Colab: run `make zip` at home, upload flash-course.zip to /content (Files, left), run this cell again."
    )
sys.path.insert(0, str(root))
from flashlib.setup import setup

setup()"""


def setup_cell(url: str) -> str:
    """Source of the `setup` cell, the same in every notebook; standard library alone until flashlib is found."""
    return SETUP.replace("{url}", url)


def next_cell(course: Course, chapter: Chapter) -> str:
    """Source of the `next` cell: exercises if there are any, the next chapter, the glossary."""
    lines = ["## Where to go next", ""]
    if chapter.exercises:
        names = ", ".join(f"[{e}](../exercises/{e}.ipynb)" for e in chapter.exercises)
        lines += [f"Exercises, about {chapter.minutes_exercises} minutes: {names}.", ""]
    after = course.after(chapter)
    if after:
        lines.append(f"Next chapter: {_link(after)}. {after.promise}")
    else:
        lines.append("This is the last chapter so far.")
    lines += ["", "[All chapters](../README.md#chapters) · [Glossary](../docs/GLOSSARY.md)"]
    return "\n".join(lines)


def readme_table(course: Course, url: str) -> str:
    """The README's chapter table with its two markers."""
    badge = url.startswith("https://github.com/")
    rows = ["| chapter | what it holds | minutes | exercises | GPU |" + (" Colab |" if badge else "")]
    rows.append("|---|---|---|---|---|" + ("---|" if badge else ""))
    for c in course.chapters:
        own = " ".join(f"[{c.minutes_exercises} min](exercises/{e}.ipynb)" for e in c.exercises)
        row = f"| [{c.name}](notebooks/{c.file}.ipynb) | {c.carries} | {c.minutes_read} | {own} | {c.gpu} |"
        rows.append(row + (f" {colab_badge(c, url)} |" if badge else ""))
    return "\n".join([BEGIN, *rows, END])


def readme_with_table(text: str, table: str) -> str:
    """The README's text with the table between its markers written again; ValueError if a marker is missing."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md needs the markers {BEGIN!r} and {END!r}, once each")
    before, rest = text.split(BEGIN)
    return before + table + rest.split(END)[1]
