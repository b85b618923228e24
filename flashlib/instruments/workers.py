"""Processes that compile, one job each at a time; one that crashes or dawdles is replaced."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Workers:
    """`count` processes that compile (`compile_worker`), started when needed, ended on leaving the ``with`` block."""

    def __init__(self, count: int):
        self._threads = ThreadPoolExecutor(count)
        self._idle: queue.SimpleQueue[subprocess.Popen | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            process.kill()  # a thread that waits for its answer gets the end of the file
        self._threads.shutdown(wait=True)
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()

    def submit(self, job: dict[str, Any], timeout_s: float) -> Future:
        """A future of the worker's answer: a dict, with "error" in it if there is no other."""
        return self._threads.submit(self._run, job, timeout_s)

    def _run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        process: subprocess.Popen | None
        process = running = self._idle.get() or self._start()
        late = threading.Event()

        def stop() -> None:
            late.set()
            running.kill()

        watch = threading.Timer(timeout_s, stop)
        watch.start()
        try:
            assert running.stdin and running.stdout
            pickle.dump(job, running.stdin)
            running.stdin.flush()
            answer = pickle.load(running.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code, process = running.wait(), None
            why = f"took longer than {timeout_s:g} s" if late.is_set() else f"crashed the compiler (exit status {code})"
            answer = {"error": f"compiling {job['name']} for sm{job['sm']} {why}"}
        finally:
            watch.cancel()
            self._idle.put(process)
        return answer

    def _start(self) -> subprocess.Popen:
        hidden = ("TRITON_INTERPRET", "PYTHONPATH")  # it must compile; and it finds what this process finds
        environment = {k: v for k, v in os.environ.items() if k not in hidden}
        environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        process = subprocess.Popen(
            [sys.executable, "-m", "flashlib.instruments.compile_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        self._started.append(process)
        return process
