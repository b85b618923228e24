"""What kernels moved under `watch()`: bytes and elements by tensor, dots and their FLOPs, and the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashlib.instruments.ledger import ByKernel, Spans, added


@dataclass(frozen=True, slots=True)
class Move:
    """One load, store or atomic of one program: which part of which tensor. For pictures.

    `index` is the box that the touched elements span, a (start, stop, step) a dimension of the tensor as it was
    passed; `()` if they have no such box. `first` and `last` are element offsets from the tensor's first element.
    """

    launch: int  # 0, 1, 2, … in the order of launches
    kernel: str
    program: tuple[int, int, int]
    op: str  # "load" | "store" | "atomic"
    tensor: str
    index: Spans
    first: int
    last: int
    elements: int
    bytes: int
    line: int | None
    site: Any = field(default=None, compare=False, repr=False)  # the line with its file and its callers
    state: Any = field(default=None, compare=False, repr=False)  # watch(keep=…): the kernel's variables before the move


@dataclass
class KernelMoves:
    """What one kernel moved and multiplied. `read` and `written` in bytes by tensor argument, masked lanes left out.

    A lane is counted each time it is loaded: a tile of pointers that repeats an address counts each repetition.
    """

    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    elements_read: dict[str, int] = field(default_factory=dict)
    elements_written: dict[str, int] = field(default_factory=dict)
    dots: int = 0
    flops: int = 0  # of the dots: 2 · M · N · K each
    tf32: int = 0  # dots of float32 that a GPU would do in TF32, as none said input_precision="ieee"
    launches: int = 0
    programs: int = 0

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return sum(self.read.values()) + sum(self.written.values())


@dataclass
class Moves(ByKernel):
    """What the watched kernels moved between HBM and the chip, in bytes. Prints as a table."""

    by_kernel: dict[str, KernelMoves]

    @property
    def elements_read(self) -> dict[str, int]:
        """Elements read, by tensor."""
        return added(k.elements_read for k in self.by_kernel.values())

    @property
    def elements_written(self) -> dict[str, int]:
        """Elements written, by tensor."""
        return added(k.elements_written for k in self.by_kernel.values())

    @property
    def dots(self) -> int:
        """The number of tl.dot that ran."""
        return sum(k.dots for k in self.by_kernel.values())

    @property
    def flops(self) -> int:
        """Their FLOPs, 2 · M · N · K each."""
        return sum(k.flops for k in self.by_kernel.values())

    @property
    def tf32(self) -> int:
        """How many of the dots have float32 operands that a GPU would round to TF32 first."""
        return sum(k.tf32 for k in self.by_kernel.values())

    def __str__(self) -> str:
        return f"{self._table()}{self.dots:,} dots, {self.flops:,} FLOP in them"

    __repr__ = __str__
