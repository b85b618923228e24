"""Bytes moved by a chain of unfused PyTorch ops: `with count_ops() as moved: ...`.

Eager PyTorch runs one kernel an op. Each reads its operands from memory and writes its result back, and that is what is
counted here, op by op. Torch is imported when the counting starts, not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from flashlib.instruments.ledger import table


class OpRow(NamedTuple):
    """One op: its aten name, its operands' and results' shapes, and the bytes it reads and writes."""

    op: str
    shapes: str
    read: int
    written: int


@dataclass
class OpTraffic:
    """What a chain of ops moved. `.read`, `.written`, `.total` in bytes; `.rows` in the order in which the ops ran."""

    rows: list[OpRow] = field(default_factory=list)

    @property
    def read(self) -> int:
        """Bytes read by all ops."""
        return sum(row.read for row in self.rows)

    @property
    def written(self) -> int:
        """Bytes written by all ops."""
        return sum(row.written for row in self.rows)

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return self.read + self.written

    def __str__(self) -> str:
        moving = [row for row in self.rows if row.read or row.written]
        lines = [("op", "shapes", "read B", "written B")]
        lines += [(row.op, row.shapes, f"{row.read:,}", f"{row.written:,}") for row in moving]
        lines.append(("all", "", f"{self.read:,}", f"{self.written:,}"))
        foot = f"total {self.total:,} B; {len(self.rows) - len(moving)} views and empty allocations moved nothing"
        return table(lines) + "\n" + foot

    __repr__ = __str__


@contextmanager
def count_ops() -> Iterator[OpTraffic]:
    """Count the bytes that every aten op in the block reads and writes, backward passes included.

    The rules, for strided tensors:

    - An op reads each distinct operand once and writes each result once. This is the least that a kernel can move; a
      matrix product whose operands do not fit on chip reads them more often (`pipelines.four_steps` counts that).
    - Views (transpose, expand, slice, reshape without a copy, detach) and uninitialised allocations move nothing.
    - An in-place op reads and writes its target; copying, filling and drawing random numbers only write it, and so
      does `out=`. Python numbers are free.
    - An expanded tensor (stride 0) counts the bytes that exist, not the bytes that it seems to have.
    - Indexing reads or writes the elements that it picks, and reads the indices.
    - A fused op (`scaled_dot_product_attention`, compiled code) counts as one op: its operands and its results.

    Yields
    ------
    OpTraffic, filled while the block runs; print it for the table.
    """
    from flashlib.instruments.dispatch import OpCounter

    traffic = OpTraffic()
    with OpCounter(traffic.rows):
        yield traffic
