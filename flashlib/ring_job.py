"""What one rank of chapter 11 does: its shard of a problem, forward and backward. Also a program for torchrun.

    torchrun --standalone --nproc-per-node 4 -m flashlib.ring_job --length 512 --causal

There it uses NCCL where every rank has a GPU, gloo elsewhere, and rank 0 prints error, budget and bytes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flashlib.algorithms import ring
from flashlib.processes import use_loopback


class Answer(NamedTuple):
    """A rank's share of the results; bytes it sent and seconds, each (forward, backward); pairs that it computed."""

    o: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    sent: tuple[int, int]
    seconds: tuple[float, float]
    pairs: int


def attend(rank: int, world: int, q: Tensor, k: Tensor, v: Tensor, do: Tensor, options: dict[str, Any]) -> Answer:
    """Cut the whole problem, run `ring.attention` on this rank's shard, forward and backward.

    ``options``: ``causal``, ``balanced``, ``scale``, and for trying what happens then: ``die`` = (rank, "signal" |
    "raise" | "hang"), before the backward.
    """
    options = dict(options)  # a copy: `die` is taken out of it
    dying, how = options.pop("die", (-1, ""))
    balanced, S = options.get("balanced", True), q.shape[2]
    own = [ring.shard(x, rank, world, balanced=balanced).requires_grad_() for x in (q, k, v)]
    mine = ring.shard(do, rank, world, balanced=balanced)
    sent, start = ring.Sent(), time.perf_counter()
    o, lse = ring.attention(own[0], own[1], own[2], S, sent=sent, **options)
    middle = time.perf_counter()
    if rank == dying:
        if how == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(3600)
        raise ValueError("this rank was told to fail")
    grads = torch.autograd.grad(o, own, mine)
    end = time.perf_counter()
    dq, dk, dv = grads
    times = middle - start, end - middle
    return Answer(o.detach(), lse.detach(), dq, dk, dv, (sent.forward, sent.backward), times, sent.pairs)


def attend_all(
    rank: int, world: int, jobs: list[tuple[tuple[Tensor, Tensor, Tensor, Tensor], dict[str, Any]]]
) -> list[Answer]:
    """Several problems in one run, since starting processes costs more than they do: ((q, k, v, do), options) each."""
    return [attend(rank, world, *tensors, options) for tensors, options in jobs]


def whole(answers: list[Answer], S: int, balanced: bool = True) -> dict[str, Tensor]:
    """The ranks' shares put together: "o", "lse", "dq", "dk", "dv"."""
    return {
        name: ring.gather([getattr(a, name) for a in answers], S, balanced=balanced)
        for name in ("o", "lse", "dq", "dk", "dv")
    }


def main() -> int:
    """One rank under torchrun; rank 0 judges the whole."""
    from flashlib.grading.exactness import Problem
    from flashlib.grading.inputs import draw

    parser = argparse.ArgumentParser(prog="torchrun -m flashlib.ring_job", description="Ring attention, proved exact.")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--contiguous", action="store_true", help="one chunk a rank instead of two")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        use_loopback()
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60))
    x = draw(1, B=1, Hq=4, Hkv=2, Sq=args.length, Sk=args.length, D=32, library="torch")
    options = {"causal": args.causal, "balanced": not args.contiguous}
    q, k, v, do = (t.to(device) for t in x)
    answer = attend(rank, world, q, k, v, do, options)
    answers: list[Any] = [None] * world
    on_cpu = {name: t.cpu() for name, t in answer._asdict().items() if isinstance(t, Tensor)}
    dist.all_gather_object(answers, answer._replace(**on_cpu))
    ok = True
    if rank == 0:
        print(f"{world} ranks on {dist.get_backend()}, {args.length} positions, seed 1, {options}")
        verdict = Problem(*x, causal=args.causal).compare(**whole(answers, args.length, not args.contiguous))
        ok = bool(verdict)
        print(verdict)
        for r, a in enumerate(answers):
            print(f"rank {r}: sent {a.sent[0]:,} B forward, {a.sent[1]:,} B backward")
    dist.destroy_process_group()
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
