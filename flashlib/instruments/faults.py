"""What `watch()` raises: which kernel, which line, which tensor. And how a line is found."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a kernel's source: the line that touched memory, and the lines that called its function."""

    file: str
    line: int
    function: str
    callers: tuple[tuple[str, int], ...] = ()  # (function, line), innermost first
    files: tuple[str, ...] = ()  # of the callers

    @property
    def source(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        calls = "".join(f", called from {f} line {n}" for f, n in self.callers)
        return f"line {self.line} of {os.path.basename(self.file)} ({self.function}{calls}): {self.source}"


class WatchError(RuntimeError):
    """A fault that the interpreter would have hidden.

    Attributes: `kernel` (name), `line` and `file` (of the source), `source` (that line's text), `tensor` (the kernel's
    argument, or None), `program` ((x, y, z), or None).
    """

    def __init__(
        self,
        what: str,
        *,
        kernel: str | None = None,
        site: Site | None = None,
        tensor: str | None = None,
        program: tuple[int, ...] | None = None,
    ) -> None:
        self.kernel, self.site, self.tensor, self.program = kernel, site, tensor, program
        self.file: str | None = site.file if site else None
        self.line: int | None = site.line if site else None
        self.source: str | None = site.source if site else None
        where = [f"kernel {kernel}" if kernel else "", f"program {program}" if program else "", str(site or "")]
        super().__init__("\n  ".join([what, ", ".join(w for w in where if w)]).rstrip())


class OutOfBounds(WatchError, IndexError):
    """A load, store or atomic outside its tensor. `.past`: elements past the end (negative: before the start)."""

    past: int = 0


class Race(WatchError):
    """Two programs touch one element, at least one of them writes it, and nothing says which comes first."""


class NotWritten(WatchError):
    """Elements of an output that no program wrote. `.missing`: how many."""

    missing: int = 0


class UnwrittenRead(WatchError):
    """A load of memory that nothing has written yet."""


class IntOverflow(WatchError, OverflowError):
    """int32 arithmetic whose result does not fit: on a GPU it wraps around, and the offset points elsewhere."""


class BadDot(WatchError, TypeError):
    """A tl.dot that triton accepts for no NVIDIA GPU."""


class UndefinedLanes(WatchError):
    """The result depends on masked lanes of a load without `other=`, whose value a GPU leaves undefined."""


class KernelFailed(WatchError):
    """Any other error inside a kernel, with its place. The error itself is `__cause__`."""


class NotInterpreting(RuntimeError):
    """watch() was asked for in a process whose kernels do not run in the interpreter."""


def root_cause(error: BaseException) -> BaseException:
    """The first error of a chain of `raise … from …`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _foreign(file: str, skip: tuple[str, ...]) -> bool:
    return file.startswith((*skip, _OWN, "<frozen"))


def site(skip: tuple[str, ...], frame: Any = None) -> Site | None:
    """The kernel's line that is running now: the innermost frame outside triton, numpy and the instruments."""
    frame, found = frame or sys._getframe(1), []
    while frame is not None and frame.f_code.co_qualname != "GridExecutor.__call__":
        code = frame.f_code
        if not _foreign(code.co_filename, skip):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    if not found or frame is None:
        return None
    (file, line, name), *callers = found
    return Site(file, line, name, tuple((n, i) for _, i, n in callers), tuple(f for f, _, _ in callers))


def variables(names: Iterable[str], frame: Any = None) -> dict[str, Any]:
    """Copies of the running kernel's block variables of these names, each from the innermost function that has it."""
    names, frame, found = tuple(names), frame or sys._getframe(1), dict[str, Any]()
    while len(found) < len(names) and frame is not None and frame.f_code.co_qualname != "GridExecutor.__call__":
        for name in names:
            data = getattr(getattr(frame.f_locals.get(name), "handle", None), "data", None)
            if name not in found and data is not None:
                found[name] = data.copy()
        frame = frame.f_back
    return found


def site_of(error: BaseException, skip: tuple[str, ...]) -> Site | None:
    """The kernel's line on which `error` was raised, from its traceback."""
    trace, found = error.__traceback__, []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not _foreign(code.co_filename, skip):
            found.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    if not found:
        return None
    *callers, (file, line, name) = found
    return Site(file, line, name, tuple((n, i) for _, i, n in reversed(callers)))
