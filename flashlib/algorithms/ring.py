"""Attention over a sequence held by several processes: keys and values travel in a ring, queries stay.

Liu, Zaharia, Abbeel 2023 (arXiv 2310.01889). Each rank holds some chunks of the sequence. In step t it attends with its
own queries to the keys and values that began at rank − t, merges the result by lse (the law of chapter 03), and hands
them on. In the backward dk and dv travel along, so that every rank adds its part, and end where they began.

With a causal mask later chunks have more to do. In the balanced layout (striped in pairs, as in "zigzag" rings) rank r
of W holds chunks r and 2W − 1 − r of 2W, and all ranks do the same work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from flashlib.algorithms import tiled
from flashlib.algorithms.decode import merge_splits
from flashlib.algorithms.masks import parts


class RingError(RuntimeError):
    """A neighbour did not answer: its process has ended or hangs. The message names ranks, step and pass."""


@dataclass
class Sent:
    """Bytes this rank sent, by pass, and the pairs (query, key) its forward saw; hand it to `attention` to fill it."""

    forward: int = 0
    backward: int = 0
    pairs: int = 0


def chunks_of(rank: int, world: int, balanced: bool) -> tuple[int, ...]:
    """The chunks that a rank holds: one of ``world``, or two of 2 · ``world`` in the balanced layout."""
    return (rank, 2 * world - 1 - rank) if balanced else (rank,)


def spans_of(rank: int, world: int, S: int, balanced: bool) -> list[tuple[int, int]]:
    """Where these chunks begin and end in a sequence of S positions; the last chunks may be shorter, or empty."""
    cut = parts(S, 2 * world if balanced else world)
    return [cut[c] for c in chunks_of(rank, world, balanced)]


def shard(x: Tensor, rank: int, world: int, *, balanced: bool = True) -> Tensor:
    """This rank's positions of a whole (B, H, S, D), its chunks one after the other."""
    return torch.cat([x[:, :, i0:i1] for i0, i1 in spans_of(rank, world, x.shape[2], balanced)], 2)


def gather(pieces: list[Tensor], S: int, *, balanced: bool = True) -> Tensor:
    """The whole again from the shards of all ranks, in rank order."""
    whole = pieces[0].new_empty(*pieces[0].shape[:2], S, *pieces[0].shape[3:])
    for rank, piece in enumerate(pieces):
        at = 0
        for i0, i1 in spans_of(rank, len(pieces), S, balanced):
            whole[:, :, i0:i1] = piece[:, :, at : at + i1 - i0]
            at += i1 - i0
    return whole


def attention(
    q: Tensor, k: Tensor, v: Tensor, S: int, *, causal: bool = False, scale: float | None = None, balanced: bool = True,
    group: dist.ProcessGroup | None = None, sent: Sent | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(o, lse) of this rank's queries over the keys of all ranks; differentiable in q, k and v.

    Parameters
    ----------
    q : (B, Hq, n, D), k : (B, Hkv, n, D), v : (B, Hkv, n, Dv)
        This rank's shard (`shard`) of sequences of S positions.
    S : positions in the whole sequence
    balanced : the layout, the same on all ranks
    sent : counts the bytes this rank sends

    Raises
    ------
    ValueError
        The shard has another length than the layout gives it.
    RingError
        A neighbour does not answer within the group's time-out.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    here = sum(i1 - i0 for i0, i1 in spans_of(rank, world, S, balanced))
    if not q.shape[2] == k.shape[2] == v.shape[2] == here:
        got = f"q {q.shape[2]}, k {k.shape[2]}, v {v.shape[2]}"
        raise ValueError(f"ring: rank {rank} of {world} holds {here} of {S} positions, got {got}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    ring = _Ring(rank, world, S, balanced, causal, scale, group, sent if sent is not None else Sent())
    return _RingAttention.apply(q, k, v, ring)


def bytes_sent(
    S: int, world: int, row_bytes: int, *, grad_row_bytes: int | None = None, balanced: bool = True, rank: int = 0
) -> tuple[int, int]:
    """What `attention` sends from one rank, (forward, backward), by the formula.

    ``row_bytes`` is B · Hkv · (D + Dv) · itemsize: k and v of one position. ``grad_row_bytes`` is the same for their
    gradients, which travel in float32 (float64 for float64); left out: the same. Forward: a rank hands on what it holds
    W − 1 times. Backward: k and v W − 1 times again, and the gradients W times, the last step home included.
    """
    held = [sum(i1 - i0 for i0, i1 in spans_of((rank - t) % world, world, S, balanced)) for t in range(world)]
    keys = sum(held[: world - 1]) * row_bytes
    grads = sum(held) * (row_bytes if grad_row_bytes is None else grad_row_bytes)
    return keys, keys + grads * (world > 1)


def pairs_seen(S: int, world: int, rank: int, *, causal: bool, balanced: bool = True, step: int | None = None) -> int:
    """Pairs (query, key) of one head that a rank's queries see, in one step or in all: what it has to compute."""
    sources = range(world) if step is None else [(rank - step) % world]
    keys = [span for source in sources for span in spans_of(source, world, S, balanced)]
    rows = [i for i0, i1 in spans_of(rank, world, S, balanced) for i in range(i0, i1)]
    return sum(max(0, min(i + 1, j1) - j0) if causal else j1 - j0 for i in rows for j0, j1 in keys)


@dataclass
class _Ring:
    rank: int
    world: int
    S: int
    balanced: bool
    causal: bool
    scale: float
    group: dist.ProcessGroup | None
    sent: Sent

    def pairs(self, t: int) -> list[tuple[slice, slice, bool]]:
        """(own rows, visiting keys, diagonal) of every pair of chunks in step t that a row sees."""
        source, found = (self.rank - t) % self.world, []
        for a, rows in zip(chunks_of(self.rank, self.world, self.balanced), self._slices(self.rank), strict=True):
            for c, keys in zip(chunks_of(source, self.world, self.balanced), self._slices(source), strict=True):
                if (a >= c or not self.causal) and rows.stop > rows.start and keys.stop > keys.start:
                    found.append((rows, keys, self.causal and a == c))
        return found

    def _slices(self, rank: int) -> list[slice]:
        at, out = 0, []
        for i0, i1 in spans_of(rank, self.world, self.S, self.balanced):
            out.append(slice(at, at + i1 - i0))
            at += i1 - i0
        return out

    def pass_on(self, tensors: tuple[Tensor, ...], t: int, what: str) -> tuple[Tensor, ...]:
        """Hand what is held in step t to the next rank and take what the one before holds."""
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        n = sum(i1 - i0 for i0, i1 in spans_of((self.rank - t - 1) % self.world, self.world, self.S, self.balanced))
        tensors = tuple(x.contiguous() for x in tensors)
        taken = tuple(x.new_empty(*x.shape[:2], n, x.shape[3]) for x in tensors)
        moves = []
        for i, (x, y) in enumerate(zip(tensors, taken, strict=True)):
            if x.numel():
                moves.append(dist.P2POp(dist.isend, x, self._global(after), self.group, tag=i))
            if y.numel():
                moves.append(dist.P2POp(dist.irecv, y, self._global(before), self.group, tag=i))
        try:  # as one batch: on NCCL two ranks that both send first would wait for each other
            for job in dist.batch_isend_irecv(moves) if moves else ():
                job.wait()
        except (RuntimeError, ValueError) as error:
            raise RingError(
                f"ring: rank {self.rank} of {self.world} has no answer from rank {before} or {after} in step {t} of "
                f"the {what}: its process has ended or hangs ({_reason(error)})"
            ) from error
        nbytes = sum(x.numel() * x.element_size() for x in tensors)
        setattr(self.sent, what, getattr(self.sent, what) + nbytes)
        return taken

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def _reason(error: Exception) -> str:
    """The library's first sentence, without the place in its source."""
    return re.sub(r"^\[[^]]*\.cc:\d+\] *", "", str(error).strip()).splitlines()[0].split(". ")[0]


class _RingAttention(torch.autograd.Function):
    """Saves this rank's q, k, v, o and lse; keys and values of others pass by again in the backward."""

    @staticmethod
    def forward(ctx, q, k, v, ring):
        work = torch.float64 if q.dtype == torch.float64 else torch.float32
        o = q.new_zeros(*q.shape[:3], v.shape[-1], dtype=work)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=work)
        held = k, v
        for t in range(ring.world):
            for rows, keys, diagonal in ring.pairs(t):
                n, m = rows.stop - rows.start, keys.stop - keys.start
                ring.sent.pairs += n * (n + 1) // 2 if diagonal else n * m
                part_o, part_lse = tiled.forward(
                    q[:, :, rows].to(work), held[0][:, :, keys].to(work), held[1][:, :, keys].to(work),
                    causal=diagonal, scale=ring.scale,
                )  # fmt: skip
                merged = merge_splits(
                    torch.stack([o[:, :, rows], part_o]), torch.stack([lse[:, :, rows], part_lse])
                )  # what was merged so far is one part, the visiting keys are the other
                o[:, :, rows], lse[:, :, rows] = merged
            if t < ring.world - 1:
                held = ring.pass_on(held, t, "forward")
        o = o.to(q.dtype)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, o, lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        ring, work = ctx.ring, lse.dtype
        dq = torch.zeros_like(q, dtype=work, memory_format=torch.contiguous_format)
        held = k, v, *(torch.zeros_like(x, dtype=work, memory_format=torch.contiguous_format) for x in (k, v))
        for t in range(ring.world):
            kt, vt, dk, dv = held
            for rows, keys, diagonal in ring.pairs(t):
                # with the lse and o of the whole row, a pair of chunks gives its own share of the gradients
                parts_of = tiled.backward(
                    do[:, :, rows].to(work), dlse[:, :, rows], q[:, :, rows].to(work), kt[:, :, keys].to(work),
                    vt[:, :, keys].to(work), o[:, :, rows].to(work), lse[:, :, rows], causal=diagonal, scale=ring.scale,
                )  # fmt: skip
                for whole, at, piece in zip((dq, dk, dv), (rows, keys, keys), parts_of, strict=True):
                    whole[:, :, at] += piece
            if t < ring.world - 1:
                held = ring.pass_on((kt, vt, dk, dv), t, "backward")
            elif ring.world > 1:  # the gradients are one rank short of home
                dk, dv = ring.pass_on((dk, dv), t, "backward")
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
