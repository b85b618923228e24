"""What kernels moved under `watch()`: bytes and elements by tensor, dots and their FLOPs, and the trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashlib.instruments.ledger import Spans, _added, table


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
    launches: int = 0
    programs: int = 0

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return sum(self.read.values()) + sum(self.written.values())


@dataclass
class Moves:
    """What the watched kernels moved between HBM and the chip, in bytes. Prints as a table."""

    by_kernel: dict[str, KernelMoves]

    @property
    def read(self) -> dict[str, int]:
        """Bytes read from HBM, by tensor."""
        return _added(k.read for k in self.by_kernel.values())

    @property
    def written(self) -> dict[str, int]:
        """Bytes written to HBM, by tensor."""
        return _added(k.written for k in self.by_kernel.values())

    @property
    def elements_read(self) -> dict[str, int]:
        """Elements read, by tensor."""
        return _added(k.elements_read for k in self.by_kernel.values())

    @property
    def elements_written(self) -> dict[str, int]:
        """Elements written, by tensor."""
        return _added(k.elements_written for k in self.by_kernel.values())

    @property
    def total(self) -> int:
        """All bytes that crossed between HBM and the chip."""
        return sum(k.total for k in self.by_kernel.values())

    @property
    def dots(self) -> int:
        """The number of tl.dot that ran."""
        return sum(k.dots for k in self.by_kernel.values())

    @property
    def flops(self) -> int:
        """Their FLOPs, 2 · M · N · K each."""
        return sum(k.flops for k in self.by_kernel.values())

    def __str__(self) -> str:
        rows = [("kernel", "tensor", "read B", "written B")]
        for name, kernel in self.by_kernel.items():
            tensors = list(dict.fromkeys([*kernel.read, *kernel.written]))
            for i, tensor in enumerate(tensors or ["(nothing)"]):
                moved = kernel.read.get(tensor, 0), kernel.written.get(tensor, 0)
                rows.append((name if i == 0 else "", tensor, f"{moved[0]:,}", f"{moved[1]:,}"))
        rows.append(("all", "", f"{sum(self.read.values()):,}", f"{sum(self.written.values()):,}"))
        return f"{table(rows)}\ntotal {self.total:,} B; {self.dots:,} dots, {self.flops:,} FLOP in them"

    __repr__ = __str__
