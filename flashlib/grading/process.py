"""The grader's end of the pipe: start the child, wait for an answer no longer than allowed, end all it has started."""

from __future__ import annotations

import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flashlib.grading import child as child_module
from flashlib.grading import leftovers, limits, wire
from flashlib.grading.case import Outcome
from flashlib.grading.submission import Submission

ROOT = str(Path(__file__).resolve().parents[2])
FOLDER = "flash-grade-"  # a submission's folder is called so, and by its marker
START_S = 180.0  # to start Python and load torch on a busy machine
GRACE_S = 0.2  # between looks at whether the child is alive and its folder small
LOADED = ("numpy", "torch", "triton", "matplotlib.pyplot")  # before the clock runs, if the notebook names them


class Stopped(Exception):
    """There will be no answer from this child. ``kind`` is "TimeLimit" or "ProcessDied"."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(says)
        self.kind = kind


class NotStarted(Exception):
    """The child did not come up. None of the submission's code had run, so this is no one's fault but the grader's."""


class Child:
    """One process that runs a notebook's code in a folder of its own."""

    def __init__(self, notebook: Submission, held: limits.Limits, marker: str, confine: bool) -> None:
        self.limits, self.marker = held, marker
        self.folder = tempfile.mkdtemp(prefix=f"{FOLDER}{marker}-")
        text = "\n".join(c.code for c in notebook.cells)
        get_request, self.requests = os.pipe()
        self.answers, put_answer = os.pipe()
        options = {
            "parent": os.getpid(), "path": [p or os.getcwd() for p in sys.path], "confine": confine,
            "readable": limits.readable_places(), "memory": held.memory, "cpu_s": int(held.submission_s * 1.5) + 60,
            "file": held.file, "most": held.answer, "requests": get_request, "answers": put_answer,
            "load": [name for name in LOADED if name.partition(".")[0] in text or name == "numpy"],
        }  # fmt: skip
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", child_module.START, ROOT, json.dumps(options)],
                pass_fds=(get_request, put_answer), cwd=self.folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=limits.environment(self.folder, marker),
            )  # fmt: skip
        finally:
            os.close(get_request)
            os.close(put_answer)
        os.set_blocking(self.answers, False)
        os.set_blocking(self.requests, False)
        try:
            self._header(wire.parse(self._receive(time.monotonic() + START_S, 0)[0]))
        except (Stopped, wire.BadMessage) as error:
            self.close()
            raise NotStarted(f"the process for a submission did not start: {error}") from error

    def _header(self, head: dict[str, Any]) -> None:
        if head.get("ready") is not True:
            raise wire.BadMessage("not ready")

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return the answer's header."""
        try:
            return wire.parse(self._exchange(request, seconds, 0)[0])
        except wire.BadMessage as error:
            raise Stopped("ProcessDied", f"its answer could not be read: {error}") from error

    def call(self, request: dict[str, Any], seconds: float) -> Outcome:
        """Send a request whose answer is an outcome."""
        try:
            return wire.unpack(*self._exchange(request, seconds, self.limits.answer))
        except wire.BadMessage as error:
            raise Stopped("ProcessDied", f"its answer could not be read: {error}") from error

    def _exchange(self, request: dict[str, Any], seconds: float, most: int) -> tuple[bytes, bytes]:
        until = time.monotonic() + max(seconds, 0.0)
        left = memoryview(pickle.dumps(request))
        try:
            while left:
                if not select.select([], [self.requests], [], GRACE_S)[1]:
                    self._look(until, seconds)
                    continue
                left = left[os.write(self.requests, left) :]
        except BrokenPipeError:
            raise self._died() from None
        return self._receive(until, most, seconds)

    def _receive(self, until: float, most: int, seconds: float = START_S) -> tuple[bytes, bytes]:
        head = self._read(wire.HEADER.size, until, seconds)
        words, bodies = wire.HEADER.unpack(head)
        if words > wire.MOST_JSON or bodies > most:
            raise wire.BadMessage(f"more than {max(most, wire.MOST_JSON) >> 20} MiB")
        return self._read(words, until, seconds), self._read(bodies, until, seconds)

    def _read(self, size: int, until: float, seconds: float) -> bytes:
        got = bytearray()
        while len(got) < size:
            if not select.select([self.answers], [], [], GRACE_S)[0]:
                self._look(until, seconds)
                continue
            part = os.read(self.answers, min(size - len(got), 1 << 20))
            if not part:
                raise self._died()
            got += part
            if time.monotonic() > until:
                self._look(until, seconds)
        return bytes(got)

    def _look(self, until: float, seconds: float) -> None:
        if time.monotonic() > until:
            raise Stopped("TimeLimit", f"no answer within {seconds:.3g} s")
        if self.process.poll() is not None and not select.select([self.answers], [], [], 0)[0]:
            raise self._died()
        if limits.folder_size(self.folder) > self.limits.folder:
            raise Stopped("ProcessDied", f"it wrote more than {self.limits.folder >> 20} MiB of files")

    def _died(self) -> Stopped:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return Stopped("ProcessDied", "it closed the pipe to the grader")
        if code >= 0:
            return Stopped("ProcessDied", f"the process ended itself (exit status {code})")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return Stopped("ProcessDied", f"the process was ended by {name}")

    def close(self) -> None:
        """SIGKILL for the child, its group and whatever else it has left; its folder is removed."""
        leftovers.end_group(self.process.pid)
        self.process.kill()
        self.process.wait()
        for fd in (self.requests, self.answers):
            os.close(fd)
        leftovers.sweep(self.marker)
        shutil.rmtree(self.folder, ignore_errors=True)
