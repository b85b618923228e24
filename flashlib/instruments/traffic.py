"""A machine with two memories: a large slow one (HBM) and a small fast one (SRAM). Every byte between them is counted.

Arithmetic happens only on tiles that have been loaded, so a program written for this machine tells how much it moves,
and a program that needs more SRAM than there is stops and says what lay there. Works on NumPy arrays and torch tensors
alike and imports only NumPy.

Sizes here are **bytes**. The M of Theorem 2 in the FlashAttention paper (arXiv 2205.14135) counts **elements**:
M = sram_bytes / itemsize.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flashlib.instruments.faults import Site
from flashlib.instruments.ledger import (
    Event,
    KernelTraffic,
    MachineError,
    OutOfBounds,
    OutsideKernel,
    Spans,
    SRAMOverflow,
    Traffic,
    WrongTile,
)
from flashlib.instruments.ops import OpTraffic, count_ops

__all__ = [
    "Event",
    "HBMTensor",
    "KernelTraffic",
    "MachineError",
    "MemoryMachine",
    "OpTraffic",
    "OutOfBounds",
    "OutsideKernel",
    "SRAMOverflow",
    "Traffic",
    "WrongTile",
    "count_ops",
]


class HBMTensor:
    """A tensor that lives in the machine's HBM. `.array` is the data; look at it only when no kernel is running."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: Any = array.dtype
        self.itemsize: int = array.dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.name} {self.shape} {_dtype_name(self.dtype)} in HBM"


class MemoryMachine:
    """A two-level memory of `sram_bytes` of SRAM and as much HBM as you like.

    Parameters
    ----------
    sram_bytes : size of SRAM in bytes (for Theorem 2's M divide by the itemsize); `math.inf` for no limit.
    record : keep one `Event` a step. Turn it off for long programs.
    trace : note in each event the program's line and a copy of the tile too, as `show.player` reads them.
    """

    def __init__(self, sram_bytes: float, *, record: bool = True, trace: bool = False) -> None:
        if not sram_bytes > 0:
            raise ValueError(f"sram_bytes must be positive, got {sram_bytes!r}")
        self.sram_bytes = sram_bytes
        self._record, self._trace = record or trace, trace
        self._kernel: str | None = None
        self._slots: dict[str, tuple[int, str]] = {}  # slot -> (bytes, "(2, 4) float64")
        self._in_use = 0
        self._by_kernel: dict[str, KernelTraffic] = {}
        self._events: list[Event] = []

    # -- HBM ---------------------------------------------------------------------------------------------------------
    def hbm(self, name: str, array: Any) -> HBMTensor:
        """Place `array` (NumPy array or torch tensor) in HBM under `name`. Not copied: a store changes `array`."""
        return HBMTensor(name, array)

    def hbm_empty(self, name: str, shape: tuple[int, ...], dtype: Any, *, device: Any = None) -> HBMTensor:
        """Reserve HBM for a result. Floats start as NaN, so what was never written shows. A torch dtype gives torch."""
        if type(dtype).__module__ == "torch":
            import torch

            array: Any = torch.empty(shape, dtype=dtype, device=device)
            return HBMTensor(name, array.fill_(math.nan) if dtype.is_floating_point else array.zero_())
        kind = np.dtype(dtype)
        return HBMTensor(name, np.full(shape, np.nan if kind.kind in "fc" else 0, dtype=kind))

    # -- kernels -----------------------------------------------------------------------------------------------------
    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Run a kernel: SRAM is empty when it starts and is emptied when it ends, so results must be stored."""
        if self._kernel is not None:
            raise OutsideKernel(f"kernel {name!r} was opened inside kernel {self._kernel!r}: kernels do not nest")
        self._kernel = name
        self._by_kernel.setdefault(name, KernelTraffic())
        try:
            yield
        finally:
            self._kernel, self._slots, self._in_use = None, {}, 0

    # -- moving data -------------------------------------------------------------------------------------------------
    def load(self, tensor: HBMTensor, index: Any = (), *, slot: str | None = None) -> Any:
        """Copy `tensor[index]` from HBM into an SRAM slot (default: the tensor's name) and return the copy.

        `index` is a slice, an int or a tuple of them; `()` means all of it. A tile in the same slot is freed first.
        """
        kernel = self._running(f"load {tensor.name}")
        where, spans, _ = _checked(tensor, index)
        view = tensor.array[where]
        tile = view.detach().clone() if hasattr(view, "detach") else np.array(view)
        nbytes = _nbytes(tile)
        self._take(slot or tensor.name, nbytes, tile, f"loading {tensor.name}")
        kernel.read[tensor.name] = kernel.read.get(tensor.name, 0) + nbytes
        self._note("load", tensor.name, spans, nbytes, slot or tensor.name, tile)
        return tile

    def put(self, slot: str, value: Any) -> Any:
        """Keep a value computed on chip in `slot` and return it. It takes SRAM and moves nothing."""
        self._running(f"put {slot}")
        tile = value if hasattr(value, "dtype") else np.asarray(value)
        nbytes = _nbytes(tile)
        self._take(slot, nbytes, tile, f"putting {slot}")
        self._note("put", slot, (), nbytes, slot, tile)
        return tile

    def drop(self, slot: str) -> None:
        """Free an SRAM slot."""
        self._running(f"drop {slot}")
        if slot not in self._slots:
            raise WrongTile(f"nothing to drop: no slot {slot!r} in SRAM, which holds {self._contents()}")
        nbytes = self._slots.pop(slot)[0]
        self._in_use -= nbytes
        self._note("drop", slot, (), nbytes, slot)

    def store(self, tensor: HBMTensor, index: Any, tile: Any) -> None:
        """Write `tile` from SRAM to `tensor[index]` in HBM, in the tensor's dtype. Shapes must be equal."""
        kernel = self._running(f"store {tensor.name}")
        where, spans, shape = _checked(tensor, index)
        if tuple(tile.shape) != shape:
            place = f"{tensor.name}[{_spell(spans)}]"
            raise WrongTile(f"kernel {self._kernel!r} stores a {tuple(tile.shape)} tile to {place}, which is {shape}")
        tensor.array[where] = tile
        nbytes = math.prod(shape) * tensor.itemsize
        kernel.written[tensor.name] = kernel.written.get(tensor.name, 0) + nbytes
        self._note("store", tensor.name, spans, nbytes, value=tile)

    # -- reading the counters ----------------------------------------------------------------------------------------
    def report(self) -> Traffic:
        """What has moved since the machine was made or last reset: a copy, which later kernels do not change."""
        kernels = {n: KernelTraffic(dict(k.read), dict(k.written), k.sram_peak) for n, k in self._by_kernel.items()}
        peak = max((k.sram_peak for k in kernels.values()), default=0)
        return Traffic(kernels, peak, self.sram_bytes, list(self._events))

    def reset(self) -> None:
        """Set every counter to zero. HBM keeps its contents."""
        if self._kernel is not None:
            raise OutsideKernel(f"reset inside kernel {self._kernel!r}: the kernel's counts would be torn in two")
        self._by_kernel, self._events = {}, []

    # -- inside ------------------------------------------------------------------------------------------------------
    def _running(self, what: str) -> KernelTraffic:
        if self._kernel is None:
            raise OutsideKernel(f"{what} outside a kernel: SRAM exists only inside `with machine.kernel(name):`")
        return self._by_kernel[self._kernel]

    def _take(self, slot: str, nbytes: int, tile: Any, doing: str) -> None:
        old = self._slots.pop(slot, None)
        self._in_use -= old[0] if old else 0
        what = f"{tuple(tile.shape)} {_dtype_name(tile.dtype)}"
        free = self.sram_bytes - self._in_use
        if nbytes > free:
            raise SRAMOverflow(
                f"SRAM is full in kernel {self._kernel!r}: {doing} {what} asks for {nbytes:,} B, "
                f"{free:,} of {self.sram_bytes:,} B are free. In SRAM: {self._contents()}",
                nbytes, free, self.sram_bytes, {name: held for name, (held, _) in self._slots.items()},
            )  # fmt: skip
        self._slots[slot] = (nbytes, what)
        self._in_use += nbytes
        kernel = self._by_kernel[self._kernel or ""]
        kernel.sram_peak = max(kernel.sram_peak, self._in_use)

    def _contents(self) -> str:
        return ", ".join(f"{slot} {what} {held:,} B" for slot, (held, what) in self._slots.items()) or "nothing"

    def _note(self, op: str, tensor: str, spans: Spans, nbytes: int, slot: str = "", value: Any = None) -> None:
        if not self._record:
            return
        site = None
        if self._trace:
            frame = sys._getframe(2)  # who called load, put, drop or store; a comprehension is part of its function
            while frame.f_code.co_name in ("<listcomp>", "<genexpr>", "<dictcomp>") and frame.f_back:
                frame = frame.f_back
            site = Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            value = _copy(value)
        event = Event(self._kernel or "", op, tensor, spans, nbytes, self._in_use, slot, value if site else None, site)
        self._events.append(event)


def _copy(tile: Any) -> Any:
    """The tile as it is now: the program may go on to change it in place."""
    return tile.detach().clone() if hasattr(tile, "detach") else None if tile is None else np.array(tile)


def _checked(
    tensor: HBMTensor, index: Any
) -> tuple[tuple[Any, ...], tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """The index as a full tuple, its spans (start, stop, step), and the shape it selects; out of bounds raises."""
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > len(tensor.shape):
        raise OutOfBounds(f"{tensor.name} has {len(tensor.shape)} dimensions, the index has {len(given)}")
    where: list[Any] = []
    spans, shape = [], []
    for axis, size in enumerate(tensor.shape):
        part = given[axis] if axis < len(given) else slice(None)
        if isinstance(part, slice):
            start, stop = part.start or 0, size if part.stop is None else part.stop
            step = 1 if part.step is None else part.step
            inside = 0 <= start <= stop <= size and step >= 1
            shape.append(len(range(start, stop, max(step, 1))))
            where.append(slice(start, stop, step))
        elif isinstance(part, int | np.integer):
            start, stop, step = int(part), int(part) + 1, 1
            inside = 0 <= start < size
            where.append(start)
        else:
            raise OutOfBounds(f"{tensor.name}: a tile is cut out by slices and ints, not by {type(part).__name__}")
        if not inside:
            raise OutOfBounds(f"{tensor.name}{list(tensor.shape)}: index {part} leaves axis {axis}, of size {size}")
        spans.append((start, stop, step))
    return tuple(where), tuple(spans), tuple(shape)


def _nbytes(tile: Any) -> int:
    return math.prod(tile.shape) * tile.dtype.itemsize


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _spell(spans: Spans) -> str:
    return ", ".join(f"{a}:{b}" if s == 1 else f"{a}:{b}:{s}" for a, b, s in spans)
