"""Ring attention on 2, 3 and 4 processes: exact, counted, and clear when a rank dies."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch

from flashlib.algorithms import ring
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from flashlib.processes import RankFailed, run
from flashlib.ring_job import attend, attend_all, whole


def problem(S=37, **sizes):
    return draw(S, B=2, Hq=4, Hkv=2, Sq=S, Sk=S, D=12, Dv=7, library="torch", **sizes)


LAYOUTS = [{"causal": causal, "balanced": balanced} for causal in (False, True) for balanced in (True, False)]
NEGATIVE = {"causal": True, "scale": -0.3}
#: one run a number of processes, since starting them takes longer than what they do
JOBS = {
    2: [*((problem(), o) for o in LAYOUTS), *((problem(dtype=t), NEGATIVE) for t in ("bfloat16", "float64"))],
    3: [(problem(), o) for o in LAYOUTS],
    4: [*((problem(), o) for o in LAYOUTS), (problem(S=3), {"causal": True})],  # case 12, 16: some shards are empty
}


@pytest.mark.parametrize("world", JOBS)
def test_exact_forward_and_gradients_and_bytes_counted(world):
    ranks = run(world, attend_all, JOBS[world])
    assert not multiprocessing.active_children()
    for (x, options), answers in zip(JOBS[world], zip(*ranks, strict=True), strict=True):
        S, balanced, item = x.q.shape[2], options.get("balanced", True), x.q.element_size()
        judged = {name: options[name] for name in ("causal", "scale") if name in options}
        Problem(*x, **judged).compare(**whole(answers, S, balanced)).raise_if_wrong()
        for rank, a in enumerate(answers):
            row = 2 * 2 * (12 + 7)  # B · Hkv · (D + Dv)
            want = ring.bytes_sent(
                S, world, row * item, grad_row_bytes=row * max(4, item), balanced=balanced, rank=rank
            )
            assert a.sent == want
            assert a.pairs == ring.pairs_seen(S, world, rank, causal=options["causal"], balanced=balanced)


@pytest.mark.parametrize("how", ["signal", "raise", "hang"])
def test_a_rank_that_dies_is_reported_and_nothing_hangs(how):
    start = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        run(3, attend, *problem(), {"causal": True, "die": (1, how)}, timeout_s=18, answer_s=4)
    errors = caught.value.errors
    assert time.monotonic() - start < 20
    assert 1 in errors and (how != "signal" or "signal 9" in errors[1])
    others = [e for r, e in errors.items() if r != 1]
    assert any("RingError: ring: rank" in e and "of the backward" in e for e in others), errors
    assert not any("/" in e for e in others), "a path of the machine that built the library"
    assert not multiprocessing.active_children()


def test_no_rank_outlives_its_run():
    """Each rank leaves its process number; after the run none of them is running, the one that hung included."""
    with pytest.raises(RankFailed, match="rank 1: did not end in time") as caught:
        run(2, _number_and_hang, timeout_s=18, answer_s=2)
    number = int(caught.value.errors[0].partition("number ")[2].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def _number_and_hang(rank, world):
    box = torch.tensor([os.getpid()])
    torch.distributed.broadcast(box, 1)
    if rank == 1:
        time.sleep(3600)
    raise ValueError(f"the other has number {int(box)} ")


def test_spawned_ranks_do_the_same(monkeypatch):
    """Where there is no fork server, as on Windows."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    x = problem(S=5)
    answers = run(2, attend, *x, {"causal": True})
    Problem(*x, causal=True).compare(**whole(answers, 5)).raise_if_wrong()


def test_shard_and_gather_are_inverse():
    for S in (0, 1, 5, 16, 37):
        for world in (1, 2, 3, 5):
            for balanced in (True, False):
                x = torch.randn(1, 2, S, 3)
                pieces = [ring.shard(x, r, world, balanced=balanced) for r in range(world)]
                assert torch.equal(ring.gather(pieces, S, balanced=balanced), x)


def test_balanced_work_is_equal():
    """Pairs (query, key) that a rank sees under a causal mask: equal for all ranks where chunks are equal."""
    for S, world in ((64, 4), (48, 3), (8, 1)):
        own = [ring.pairs_seen(S, world, r, causal=True) for r in range(world)]
        assert len(set(own)) == 1 and sum(own) == S * (S + 1) // 2
    one, last = (ring.pairs_seen(64, 4, r, causal=True, balanced=False) for r in (0, 3))
    assert last > 6 * one
    assert ring.pairs_seen(64, 4, 2, causal=False) == 16 * 64
    steps = [[ring.pairs_seen(64, 4, r, causal=True, step=t) for t in range(4)] for r in range(4)]
    assert [sum(row) for row in steps] == [ring.pairs_seen(64, 4, r, causal=True) for r in range(4)]
    assert {row[t] for row in steps for t in (1, 2, 3)} == {16 * 16 // 2}  # half of the pairs, every rank, every step


def test_a_wrong_shard_is_refused():
    x = problem()
    with pytest.raises(RankFailed, match="rank 0 of 1 holds 38 of 38 positions, got q 37, k 37, v 37"):
        run(1, _wrong, *x)


def _wrong(rank, world, q, k, v, do):
    return ring.attention(q, k, v, 38)


def test_under_torchrun():
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "flashlib.ring_job", "--length", "65", "--causal"]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ok") == 5 and "rank 1: sent" in done.stdout
