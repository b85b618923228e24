"""Several processes on one machine, for chapter 11: start them, collect what they return, and leave none behind."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class RankFailed(RuntimeError):
    """Ranks that failed: ``errors`` maps each to its message; ``seconds`` is how long it took to know."""

    def __init__(self, errors: dict[int, str], seconds: float) -> None:
        self.errors, self.seconds = errors, seconds
        lines = [f"rank {rank}: {message}" for rank, message in sorted(errors.items())]
        super().__init__(f"after {seconds:.1f} s\n" + "\n".join(lines))


def run(world: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 60, answer_s: float = 15) -> list[Any]:
    """``fn(rank, world, *args)`` in ``world`` processes joined by gloo; their return values, in rank order.

    Parameters
    ----------
    fn : a function of an importable module; what it takes and returns must be picklable
    timeout_s : seconds for all of it; what still runs then is ended
    answer_s : seconds a rank waits for another before it gives up. Once one rank has failed, those that still run are
        given this long, and three seconds more, to notice; each that ends starts the clock anew for the others

    Raises
    ------
    RankFailed
        A rank raised, died, or did not end in time. No rank is left running.
    """
    start = time.monotonic()
    deadline = start + timeout_s
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").write_bytes(pickle.dumps((fn, args)))
        processes = [_context().Process(target=_rank, args=(r, world, folder, answer_s), daemon=True)
                     for r in range(world)]  # fmt: skip
        try:
            for p in processes:
                p.start()
            seen: list[int] = []
            while any(p.is_alive() for p in processes) and time.monotonic() < deadline:
                time.sleep(0.02)
                ended = [r for r, p in enumerate(processes) if not p.is_alive()]
                if ended != seen and any(_error(processes[r], Path(folder, str(r))) for r in ended):
                    deadline = min(start + timeout_s, time.monotonic() + answer_s + 3)
                seen = ended
            errors = {r: e for r, p in enumerate(processes) if (e := _error(p, Path(folder, str(r))))}
        finally:
            for p in processes:
                if p.is_alive():
                    p.kill()
                p.join(5)
        if errors:
            raise RankFailed(errors, time.monotonic() - start)
        return [pickle.loads(Path(folder, str(r)).read_bytes())["value"] for r in range(world)]


def _context() -> Any:
    """Where the system can: a server that has imported torch once and forks a rank in milliseconds; else spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "flashlib.ring_job"])
    return context


def _error(process: Any, answer: Path) -> str:
    if process.is_alive():
        return "did not end in time"
    if answer.is_file():
        return pickle.loads(answer.read_bytes()).get("error", "")
    code = process.exitcode
    return f"its process ended by signal {-code}" if code and code < 0 else f"its process ended with code {code}"


def use_loopback() -> None:
    """Let gloo talk within this machine; otherwise it asks for the machine's own name, which need not lead anywhere."""
    name = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _meet(rank: int, world: int, folder: str) -> None:
    """Wait until all ranks have started: only then does ``answer_s`` begin to count. `run` ends who waits for ever."""
    Path(folder, f"{rank}.here").touch()
    while not all(Path(folder, f"{r}.here").exists() for r in range(world)):
        time.sleep(0.01)


def _rank(rank: int, world: int, folder: str, answer_s: float) -> None:
    torch.set_num_threads(1)
    use_loopback()
    answer: dict[str, Any]
    try:
        fn, args = pickle.loads(Path(folder, "job").read_bytes())
        _meet(rank, world, folder)
        # the ranks find one another through a file: no port to be taken by somebody else
        store = dist.FileStore(str(Path(folder, "store")), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=answer_s))
        answer = {"value": fn(rank, world, *args)}
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer = {"error": f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"}
    new = Path(folder, f"{rank}.new")
    new.write_bytes(pickle.dumps(answer))
    new.replace(Path(folder, str(rank)))
    if "value" in answer:
        dist.destroy_process_group()
    os._exit(0)  # a broken group would wait for its neighbours once more
