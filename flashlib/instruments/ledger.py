"""What the memory machine writes down: its events, its counts per kernel and tensor, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Spans = tuple[tuple[int, int, int], ...]  # (start, stop, step) a dimension


class MachineError(Exception):
    """The program asked the memory machine for something it cannot do."""


class SRAMOverflow(MachineError, MemoryError):
    """More SRAM was asked for than is free. `.asked`, `.free`, `.size` in bytes; `.slots` maps slot to bytes."""

    def __init__(self, message: str, asked: int, free: float, size: float, slots: dict[str, int]) -> None:
        super().__init__(message)
        self.asked, self.free, self.size, self.slots = asked, free, size, slots


class OutsideKernel(MachineError, RuntimeError):
    """Data was moved outside `with machine.kernel(...)`, or a kernel was opened inside another."""


class WrongTile(MachineError, ValueError):
    """The tile's shape is not the shape of the place it is stored to, or the slot is empty."""


class OutOfBounds(MachineError, IndexError):
    """The index reaches past the tensor. NumPy would cut such a slice short in silence; a GPU would not."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a program: what moved, and how full SRAM was afterwards (`bytes` and `sram` in bytes)."""

    kernel: str
    op: str  # "load" | "store" | "put" | "drop"
    tensor: str  # the HBM tensor's name for load and store, the slot's for put and drop
    index: Spans  # (start, stop, step) a dimension; () for put and drop
    bytes: int
    sram: int
    slot: str = ""  # where in SRAM a load put its tile
    value: Any = field(default=None, compare=False, repr=False)  # a copy of it, and
    site: Any = field(default=None, compare=False, repr=False)  # the program's line: only if the machine traces


@dataclass
class KernelTraffic:
    """What one kernel moved, in bytes: read and written per HBM tensor, and the most SRAM it used."""

    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    sram_peak: int = 0

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return sum(self.read.values()) + sum(self.written.values())


class ByKernel:
    """Sums over `by_kernel`, kernels with `.read`, `.written` (bytes by tensor) and `.total`; and its table."""

    by_kernel: Any

    @property
    def read(self) -> dict[str, int]:
        """Bytes read from HBM, by tensor."""
        return added(k.read for k in self.by_kernel.values())

    @property
    def written(self) -> dict[str, int]:
        """Bytes written to HBM, by tensor."""
        return added(k.written for k in self.by_kernel.values())

    @property
    def total(self) -> int:
        """All bytes that crossed between HBM and the chip."""
        return sum(k.total for k in self.by_kernel.values())

    def _table(self) -> str:
        rows = [("kernel", "tensor", "read B", "written B")]
        for name, kernel in self.by_kernel.items():
            tensors = list(dict.fromkeys([*kernel.read, *kernel.written]))
            for i, tensor in enumerate(tensors or ["(nothing)"]):
                moved = kernel.read.get(tensor, 0), kernel.written.get(tensor, 0)
                rows.append((name if i == 0 else "", tensor, f"{moved[0]:,}", f"{moved[1]:,}"))
        rows.append(("all", "", f"{sum(self.read.values()):,}", f"{sum(self.written.values()):,}"))
        return f"{table(rows)}\ntotal {self.total:,} B; "


@dataclass
class Traffic(ByKernel):
    """What a program moved between HBM and SRAM, in bytes. Prints as a table.

    `by_kernel` keeps the order in which kernels were first opened; kernels of one name are added up.
    """

    by_kernel: dict[str, KernelTraffic]
    sram_peak: int
    sram_bytes: float
    events: list[Event]

    def __str__(self) -> str:
        return f"{self._table()}SRAM at most {self.sram_peak:,} of {self.sram_bytes:,} B"

    __repr__ = __str__


def added(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by name, added up."""
    out: dict[str, int] = {}
    for part in parts:
        for name, nbytes in part.items():
            out[name] = out.get(name, 0) + nbytes
    return out


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width: the first two to the left, numbers to the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["  ".join(t.ljust(w) if c < 2 else t.rjust(w) for c, (t, w) in enumerate(zip(r, widths, strict=True)))
             for r in rows]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)
