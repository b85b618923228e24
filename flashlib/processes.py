"""Several processes on one machine, for chapter 11: start them, collect what they return, and leave none behind."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


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
    answer_s : seconds a rank waits for another before it gives up

    Raises
    ------
    RankFailed
        A rank raised, died, or did not end in time. No process is left running.
    """
    context, start = mp.get_context("spawn"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(r, world, _free_port(folder), folder, answer_s, fn, args), daemon=True)
            for r in range(world)
        ]
        try:
            for p in processes:
                p.start()
            while any(p.is_alive() for p in processes) and time.monotonic() - start < timeout_s:
                time.sleep(0.02)
            errors = {r: e for r in range(world) if (e := _error(processes[r], Path(folder, f"{r}.pkl")))}
        finally:
            for p in processes:
                if p.is_alive():
                    p.kill()
                p.join(5)
        if errors:
            raise RankFailed(errors, time.monotonic() - start)
        return [pickle.loads(Path(folder, f"{r}.pkl").read_bytes())["value"] for r in range(world)]


def _error(process: Any, answer: Path) -> str:
    if process.is_alive():
        return "did not end in time"
    if answer.is_file():
        return pickle.loads(answer.read_bytes()).get("error", "")
    code = process.exitcode
    return f"its process ended by signal {-code}" if code and code < 0 else f"its process ended with code {code}"


def _free_port(folder: str) -> int:
    """One port for all ranks of a run, kept in its folder."""
    file = Path(folder, "port")
    if not file.is_file():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            file.write_text(str(s.getsockname()[1]))
    return int(file.read_text())


def _rank(rank: int, world: int, port: int, folder: str, answer_s: float, fn: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    answer: dict[str, Any]
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=answer_s))
        answer = {"value": fn(rank, world, *args)}
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer = {"error": f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"}
    new = Path(folder, f"{rank}.new")
    new.write_bytes(pickle.dumps(answer))
    new.replace(Path(folder, f"{rank}.pkl"))
    if "value" in answer:
        dist.destroy_process_group()
    os._exit(0)  # a broken group would wait for its neighbours once more
