"""`watch()`: run Triton kernels in the interpreter and be told what it hides. See `Watch` for what it can see.

The interpreter asks a builder for every load, store and dot. While a watch is on, these few methods pass through it
first; when it ends, they are what they were.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from flashlib.instruments.faults import (
    BadDot,
    KernelFailed,
    NotInterpreting,
    NotWritten,
    Site,
    UndefinedLanes,
    WatchError,
    root_cause,
    site,
    site_of,
)
from flashlib.instruments.hooks import install
from flashlib.instruments.launch import Launch
from flashlib.instruments.moves import KernelMoves, Move, Moves
from flashlib.instruments.regions import Memory, Region
from flashlib.instruments.snapshot import contents, restore, tensors_in


class Watch:
    """What a watch has seen so far. Made by `watch()`.

    Attributes
    ----------
    trace : a list of `Move`, one a load, store or atomic, in order (empty unless `watch(trace=True)`).
    """

    def __init__(
        self, *, outputs: Any, fresh: Any, race: bool, overflow: bool, dots: bool, poison: bool, trace: bool,
        keep: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.race, self.overflow, self.dots, self.poison, self.tracing = race, overflow, dots, poison, trace
        self.trace: list[Move] = []
        self.keep = tuple(keep)
        self.launch: Launch | None = None
        self.launches = 0
        self._broken = False  # a launch ended half way: what it did not write says nothing
        self._outputs = None if outputs is None else list(outputs)
        self._kernels: dict[str, KernelMoves] = {}
        self._memories: dict[int, Memory] = {}
        self._stored: dict[tuple[Any, ...], tuple[Region, str, Site | None]] = {}
        self._skip = tuple(os.path.dirname(import_module(m).__file__ or "") + os.sep for m in ("triton", "numpy"))
        self._keep: list[Any] = []  # tensors seen: kept, so that no new one takes the address of an old one
        for tensor in [*(fresh or []), *(self._outputs or [])]:
            self.memory(tensor).fresh = True

    # -- what it tells -----------------------------------------------------------------------------------------------
    def report(self) -> Moves:
        """Bytes and elements moved and dots done so far: `.read`, `.written` by tensor, `.total`, `.by_kernel`."""
        return Moves(copy.deepcopy(self._kernels))

    # -- what the hooks call -----------------------------------------------------------------------------------------
    def memory(self, tensor: Any) -> Memory:
        """The shadow of the storage that `tensor` lies in."""
        storage = tensor.untyped_storage()
        key, unit = storage.data_ptr(), tensor.element_size()
        if key not in self._memories or self._memories[key].nbytes != storage.nbytes():
            self._memories[key] = Memory(key, storage.nbytes(), unit)
            self._keep.append(storage)
        self._memories[key].refine(unit)
        return self._memories[key]

    def filled(self, tensor: Any) -> None:
        """PyTorch wrote to all of `tensor`."""
        memory = self._memories.get(tensor.untyped_storage().data_ptr())
        if memory and memory.fresh and tensor.numel():
            region = Region("", tensor, self.memory(tensor), tensor.untyped_storage().data_ptr())
            memory.written[region.units(region.all())] = True

    def site(self) -> Site | None:
        """The kernel's line that is running."""
        return site(self._skip)

    def counts(self, kernel: str) -> KernelMoves:
        """The counters of a kernel, by name."""
        return self._kernels.setdefault(kernel, KernelMoves())

    def stored(self, region: Region, kernel: str) -> None:
        """Remember that a kernel stores to this tensor, and where."""
        key = (region.memory.key, region.offset, region.shape, region.strides)
        if key not in self._stored:
            self._stored[key] = (region, kernel, self.site())

    def run(self, executor: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One launch: with masked lanes of loads without `other=` as 0, then, if there are any, with them poisoned."""
        tensors = tensors_in((*args, *kwargs.values()))
        for tensor in tensors:
            self.memory(tensor).launched()
        name = getattr(executor.fn, "__name__", "kernel")
        self.launch = Launch(self, name, executor.arg_names)
        self.counts(name).launches += 1
        try:
            before = contents(tensors) if self.poison else []
            result = self._guarded(executor, call, args, kwargs)
            lanes = self.launch.undefined
            if self.poison and lanes:
                after = contents(tensors)
                restore(tensors, before)
                self._poisoned(executor, call, args, kwargs, tensors, after)
            self.launches += 1
            return result
        except BaseException:
            self._broken = True
            raise
        finally:
            self.launch = None

    def _guarded(self, executor: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return call(executor, *args, **kwargs)
        except WatchError:
            raise
        except Exception as error:
            cause, launch = root_cause(error), self.launch
            place = site_of(cause, self._skip)
            if launch is None or place is None:
                raise
            what = f"{type(cause).__name__}: {cause}"
            raise KernelFailed(what, kernel=launch.kernel, site=place, program=launch.program) from cause

    def _poisoned(
        self, executor: Any, call: Any, args: Any, kwargs: Any, tensors: list[Any], after: list[np.ndarray]
    ) -> None:
        first = self.launch
        assert first is not None
        self.launch = Launch(self, first.kernel, executor.arg_names, poison=True)
        lines, names = list(first.undefined.values()), sorted({name for name, _ in first.undefined})
        what = (f"masked lanes of a load of {', '.join(names)} without other= are used: a GPU leaves their value "
                "undefined. Give the load an other=, or mask what is computed from it")  # fmt: skip
        try:
            self._guarded(executor, call, args, kwargs)
        except WatchError as error:
            raise UndefinedLanes(f"{what} (with another value in them: {error})", kernel=first.kernel, site=lines[0],
                                 tensor=names[0]) from error  # fmt: skip
        finally:
            poisoned = contents(tensors)
            restore(tensors, after)
        for tensor, a, b in zip(tensors, after, poisoned, strict=True):
            if not np.array_equal(a, b):
                at = first.element_at(tensor, int(np.flatnonzero(a != b)[0]))
                raise UndefinedLanes(f"{what}. {at} depends on them", kernel=first.kernel, site=lines[0],
                                     tensor=names[0])  # fmt: skip

    def finish(self) -> None:
        """The end of the watch: every element of every output must have been written."""
        outputs = self._outputs
        if self._broken:
            return
        if outputs is not None:
            seen = {memory.key for memory in self._memories.values() if memory.written.any()}
            for i, tensor in enumerate(outputs):
                if tensor.numel() and tensor.untyped_storage().data_ptr() not in seen:
                    raise NotWritten(f"output {i}, of shape {tuple(tensor.shape)}: no kernel wrote to it")
        for region, kernel, place in self._stored.values():
            if outputs is not None and not any(region.memory is self.memory(t) for t in outputs):
                continue
            missing, first = region.unwritten()
            if missing:
                what = (f"{missing:,} of {region.numel:,} elements of {region.describe()}, were never written; "
                        f"the first is {region.spell(first)}")  # fmt: skip
                error = NotWritten(what, kernel=kernel, site=place, tensor=region.name)
                error.missing = missing
                raise error

    def bad_dot(self, what: str) -> BadDot:
        """The error of a dot that no GPU accepts."""
        assert self.launch is not None
        return BadDot(what, kernel=self.launch.kernel, site=self.site(), program=self.launch.program)


@contextmanager
def watch(
    *,
    outputs: Sequence[Any] | None = None,
    fresh: Sequence[Any] | None = None,
    race: bool = True,
    overflow: bool = True,
    dots: bool = True,
    poison: bool = True,
    trace: bool = False,
    keep: Sequence[str] = (),
) -> Iterator[Watch]:
    """Watch every Triton kernel that is launched inside the `with` block.

    Always on: loads, stores and atomics outside their tensor raise `OutOfBounds` before they happen, any other error
    inside a kernel comes as `KernelFailed` with its line, and bytes, elements and dots are counted (`w.report()`).

    Parameters
    ----------
    outputs : the tensors that the kernels must fill: at the end, an element that was never written raises
        `NotWritten`, and reading one before it was written raises `UnwrittenRead`. None: every tensor that was stored
        to must have been filled (and may be read). `()`: none.
    fresh : tensors that hold nothing yet: reading an element before it was written raises `UnwrittenRead`. None: what
        torch.empty and its kin make inside the block, until PyTorch or a kernel writes to it. `()`: none.
    race : two programs of a launch that touch one element, at least one of them writing it, raise `Race`. So do two
        lanes of one store that write different values to one element. Atomics do not race with atomics; a program
        that has done an atomic on integers (a lock, a counter) is trusted from there on.
    overflow : int32 sums, differences and products that do not fit raise `IntOverflow`.
    dots : a tl.dot that this triton accepts for no NVIDIA GPU (mixed dtypes, an inner dimension under its minimum)
        raises `BadDot`.
    poison : a launch with masked loads without `other=` runs a second time with other values in the masked lanes; if
        any byte of any tensor differs, `UndefinedLanes`. The first run's results (0 in those lanes) stay.
    trace : keep one `Move` a load, store or atomic in `w.trace`.
    keep : names of the kernel's variables, such as ("m", "l", "acc"), of which each traced move notes a copy.

    Raises
    ------
    NotInterpreting : TRITON_INTERPRET was not set when triton was imported.
    WatchError : at the fault, as one of the subclasses above; `.kernel`, `.line`, `.file`, `.tensor`, `.program`.

    What it cannot see: memory reached through addresses that a kernel loads (refused as out of bounds); what NumPy
    writes into a torch.empty (pass `fresh=()`); Python integers that overflow, such as a loop's variable; masked lanes
    whose value happens not to matter; TF32 and the order of sums; shared memory, registers and launch limits (for
    those compile: `instruments.compiled`).
    """
    from flashlib.instruments.fresh import track_empty
    from flashlib.instruments.interpreter import interpreting, repair

    repair()
    if not interpreting():
        raise NotInterpreting(
            "watch() sees kernels in Triton's interpreter only: set TRITON_INTERPRET=1 in the environment before "
            "triton is first imported (in a notebook, restart the kernel first)"
        )
    seen = Watch(outputs=outputs, fresh=fresh, race=race, overflow=overflow, dots=dots, poison=poison, trace=trace,
                 keep=keep)  # fmt: skip
    remove = install(seen)
    try:
        with track_empty(seen) if fresh is None else nullcontext():
            yield seen
    finally:
        remove()
    seen.finish()
