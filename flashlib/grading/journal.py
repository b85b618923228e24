"""A grading run's journal, a line of JSON for each notebook graded: what an interrupted run is taken up from.

The first line holds the run's secret, from which its seeds are made, and what it was asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flashlib


class OtherRun(Exception):
    """The journal is not this run's; the message says in what they differ."""


class Journal:
    """Opened for one run; `close` it. ``kept`` maps a notebook's key to its line."""

    def __init__(self, path: Path, asked: dict[str, Any], *, fresh: bool, seed: str | None) -> None:
        self.path = path
        self.kept: dict[str, dict[str, Any]] = {}
        head = None if fresh else self._read(asked, seed)
        self.resumed = head is not None
        if head is None:
            self.kept = {}
            head = {"secret": seed or secrets.token_hex(16), "run": secrets.token_hex(8), "asked": asked}
        self.secret, self.run = str(head["secret"]), str(head["run"])
        self.file = path.open("a" if self.resumed else "w", encoding="utf-8")
        self._lock()
        if not self.resumed:
            self._write(head)

    def _read(self, asked: dict[str, Any], seed: str | None) -> dict[str, Any] | None:
        """The head, with ``kept`` filled; None if there is nothing to go on with. A torn last line is cut off."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise OtherRun(f"{self.path} is no journal") from error
        if not lines or not isinstance(lines[0], dict) or "secret" not in lines[0]:
            return None
        differ = sorted(k for k in asked if lines[0]["asked"].get(k) != asked[k])
        differ += ["seed"] if seed is not None and seed != lines[0]["secret"] else []
        if differ:
            raise OtherRun(f"{self.path} was written with another {' and another '.join(differ)}")
        self.kept = {line["key"]: line for line in lines[1:]}
        return lines[0]

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no Unix
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OtherRun(f"{self.path} is being written by another run") from error

    def add(self, key: str, results: list[dict[str, Any]], note: str) -> None:
        """Write a notebook's results down, for good."""
        line = {"key": key, "results": results, "note": note}
        self.kept[key] = line
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def key_of(path: Path, name: str) -> str:
    """A notebook's key: where it lies and what it holds, so that one handed in again is graded again."""
    try:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "none"
    except OSError:
        content = "unreadable"
    return f"{name} {content}"


def grader_digest(chapters: Sequence[int] | None = None) -> str:
    """Changes with the package's version and with any line of the grader or of the checks (of these chapters)."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256(flashlib.__version__.encode())
    for path in sorted(here.rglob("*.py")):
        chapter = re.match(r"ch(\d\d)", path.name)
        if chapter and chapters is not None and int(chapter[1]) not in chapters:
            continue
        digest.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
