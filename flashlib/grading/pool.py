"""Several graders at once, one worker process each; a worker that dies costs the notebook it was busy with."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from flashlib.grading import leftovers
from flashlib.grading import worker as worker_module
from flashlib.grading.limits import MARKER, Limits
from flashlib.grading.process import FOLDER, ROOT

LEAVE_S = 5.0  # for a worker to end its child


class GraderFault(Exception):
    """The grader itself does not work here; nobody should get 0 points for that."""


class Message(NamedTuple):
    """From a worker: ``kind`` is "part" (one exercise's result) or "done" (all of the notebook's)."""

    job: int
    kind: str
    results: list[dict[str, Any]]
    note: str


def grade_all(
    paths: Sequence[str], secret: str, limits: Limits, *, chapters: Sequence[int] | None, jobs: int, run: str
) -> Generator[Message, None, None]:
    """Grade notebooks, ``jobs`` at once, and yield what comes, in the order in which it comes.

    However the iteration ends, nothing that it started is left running.

    Parameters
    ----------
    run : the run's own name, which marks all that it starts.
    """
    todo: queue.Queue[int] = queue.Queue()
    for i in range(len(paths)):
        todo.put(i)
    found: queue.Queue[Message | BaseException] = queue.Queue()
    stop = threading.Event()
    slots = [_Slot(f"{run}.{n}", found) for n in range(min(jobs, len(paths)))]

    def work(slot: _Slot) -> None:
        try:
            while not stop.is_set():
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    break
                job = {"path": paths[i], "secret": secret, "limits": asdict(limits), "chapters": chapters}
                slot.grade(i, job, stop)
        except BaseException as error:
            found.put(error)
        finally:  # Linux ends a worker when the thread that started it ends: this one stays to the last
            slot.close()

    threads = [threading.Thread(target=work, args=(s,), daemon=True) for s in slots]
    for thread in threads:
        thread.start()
    try:
        left = len(paths)
        while left:
            message = found.get()
            if isinstance(message, BaseException):
                raise message
            left -= message.kind == "done"
            yield message
    finally:
        stop.set()
        for slot in slots:
            slot.end()
        for thread in threads:
            thread.join(2 * LEAVE_S)
        end_run(run)


def end_run(run: str) -> int:
    """End whatever a run of this name has left, also one that was killed; how many that were."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}{run}.*"):
        shutil.rmtree(folder, ignore_errors=True)
    found = leftovers.of_marker(f"{run}.", begins=True)
    for pid in found:
        try:
            os.kill(pid, 9)
        except OSError:
            continue
    return len(found)


class _Slot:
    """One worker, started again when it has died."""

    def __init__(self, marker: str, found: queue.Queue[Message | BaseException]) -> None:
        self.marker, self.found = marker, found
        self.process: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()

    def grade(self, i: int, job: dict[str, Any], stop: threading.Event) -> None:
        worker = self._worker(stop)
        if worker is None:
            return
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                message = json.loads(line)
                if "fault" in message:
                    raise GraderFault(f"{job['path']}: {message['fault']}")
                if "part" in message:
                    self.found.put(Message(i, "part", [message["part"]], ""))
                else:
                    self.found.put(Message(i, "done", message["done"], message["note"]))
                    return
        except (BrokenPipeError, ValueError):  # it died while it read or wrote
            pass
        if not stop.is_set():
            self.close()
            self.found.put(Message(i, "done", [], "the process that graded it was ended from outside"))

    def _worker(self, stop: threading.Event) -> subprocess.Popen[str] | None:
        with self.lock:
            if self.process is None and not stop.is_set():
                options = {"parent": os.getpid(), "path": [p or os.getcwd() for p in sys.path], "marker": self.marker}
                one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
                self.process = subprocess.Popen(
                    [sys.executable, "-c", worker_module.START, ROOT, json.dumps(options)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                    env=os.environ | one | {
                        "MPLBACKEND": "agg", "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "",
                        "FLASHLIB_PROGRESS": "", MARKER: f"{self.marker}.worker",
                    },
                )  # fmt: skip
            return self.process

    def end(self) -> None:
        """Ask the worker to leave, from any thread."""
        with self.lock:
            if self.process is not None:
                self.process.terminate()

    def close(self) -> None:
        """End the worker and what it has left."""
        with self.lock:
            worker, self.process = self.process, None
        if worker is None:
            return
        worker.terminate()
        try:
            worker.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                pipe.close()
        end_run(self.marker)
