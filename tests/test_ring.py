"""Ring attention on 2, 3 and 4 processes: exact, counted, and clear when a rank dies."""

import subprocess
import sys
import time

import pytest
import torch

from flashlib.algorithms import ring
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from flashlib.processes import RankFailed, run
from flashlib.ring_job import attend, whole


def problem(S=37, **sizes):
    return draw(S, B=2, Hq=4, Hkv=2, Sq=S, Sk=S, D=12, Dv=7, library="torch", **sizes)


LAYOUTS = [{"causal": causal, "balanced": balanced} for causal in (False, True) for balanced in (True, False)]


def _each_layout(rank, world, *problem):
    return [attend(rank, world, *problem, options) for options in LAYOUTS]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_exact_forward_and_gradients_and_bytes_counted(world):
    x = problem()
    ranks = run(world, _each_layout, *x)
    for options, answers in zip(LAYOUTS, zip(*ranks, strict=True), strict=True):
        balanced = options["balanced"]
        Problem(*x, causal=options["causal"]).compare(**whole(answers, 37, balanced)).raise_if_wrong()
        for rank, a in enumerate(answers):
            row = 2 * 2 * (12 + 7) * 4  # B · Hkv · (D + Dv) · float32
            assert a.sent == ring.bytes_sent(37, world, row, balanced=balanced, rank=rank)


def test_fewer_positions_than_chunks():
    """Case 12, 16: empty shards take part and send nothing."""
    x = problem(S=3)
    answers = run(4, attend, *x, {"causal": True})
    Problem(*x, causal=True).compare(**whole(answers, 3)).raise_if_wrong()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes(dtype):
    x = problem(dtype=dtype)
    answers = run(2, attend, *x, {"causal": True, "scale": -0.3})
    Problem(*x, causal=True, scale=-0.3).compare(**whole(answers, 37)).raise_if_wrong()
    item = {"bfloat16": 2, "float64": 8}[dtype]
    row, grad = 2 * 2 * 19 * item, 2 * 2 * 19 * max(4, item)
    assert answers[0].sent == ring.bytes_sent(37, 2, row, grad_row_bytes=grad, rank=0)


@pytest.mark.parametrize("how", ["signal", "raise", "hang"])
def test_a_rank_that_dies_is_reported_and_nothing_hangs(how):
    start = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        run(3, attend, *problem(), {"causal": True, "die": (1, how)}, timeout_s=18, answer_s=5)
    errors = caught.value.errors
    assert time.monotonic() - start < 20
    assert 1 in errors and (how != "signal" or "signal 9" in errors[1])
    others = [e for r, e in errors.items() if r != 1]
    assert any("RingError: ring: rank" in e and "of the backward" in e for e in others), errors


def test_shard_and_gather_are_inverse():
    for S in (0, 1, 5, 16, 37):
        for world in (1, 2, 3, 5):
            for balanced in (True, False):
                x = torch.randn(1, 2, S, 3)
                pieces = [ring.shard(x, r, world, balanced=balanced) for r in range(world)]
                assert torch.equal(ring.gather(pieces, S, balanced=balanced), x)


def test_balanced_work_is_equal():
    """Pairs of positions that a rank computes under a causal mask, tiles of one position."""
    S, world = 64, 4

    def work(rank, balanced):
        own = [i for i0, i1 in ring.spans_of(rank, world, S, balanced) for i in range(i0, i1)]
        return sum(i + 1 for i in own)

    assert len({work(r, True) for r in range(world)}) == 1
    assert work(3, False) > 6 * work(0, False)


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
