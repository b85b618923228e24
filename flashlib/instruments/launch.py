"""One launch of a kernel under `watch()`: what each load, store and atomic of each program is checked against."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashlib.instruments.faults import IntOverflow, OutOfBounds, Race, Site, UnwrittenRead, variables
from flashlib.instruments.moves import Move
from flashlib.instruments.regions import ATOMIC, MANY, Region


class Launch:
    """The tensors of a launch, the program that is running, and the checks. `poison`: a silent second run."""

    def __init__(self, watch: Any, kernel: str, arg_names: list[str], *, poison: bool = False) -> None:
        self.watch, self.kernel, self.arg_names, self.poison = watch, kernel, arg_names, poison
        self.regions: dict[int, Region] = {}  # id of the host tensor -> its region
        self.program: tuple[int, int, int] = (0, 0, 0)
        self.number = 0  # of the program, from 1
        self.numbered: list[tuple[int, int, int]] = [(0, 0, 0)]
        self.synced = False
        self.undefined: dict[tuple[str, Any], Site | None] = {}  # masked lanes without other=: (tensor, line)
        self._lane = np.zeros(0, dtype=np.int64)

    # -- set-up ------------------------------------------------------------------------------------------------------
    def add(self, name: str, device: Any, host: Any) -> None:
        """Tell the launch of one argument: as it was passed (`device`) and as the interpreter runs on it (`host`)."""
        if isinstance(device, tuple):
            names = getattr(device, "_fields", None) or range(len(device))
            for part, d, h in zip(names, device, host, strict=True):
                self.add(f"{name}.{part}" if isinstance(part, str) else f"{name}[{part}]", d, h)
        elif not hasattr(device, "untyped_storage") and hasattr(device, "base"):
            self.add(name, device.base, host.base)
        elif hasattr(device, "untyped_storage"):
            memory = self.watch.memory(device)
            self.regions[id(host)] = Region(name, host, memory, host.untyped_storage().data_ptr())

    def begin(self, program: tuple[int, int, int]) -> None:
        """A program starts."""
        self.program, self.number, self.synced = program, self.number + 1, False
        self.numbered.append(program)
        if not self.poison:
            self.watch.counts(self.kernel).programs += 1

    # -- checks ------------------------------------------------------------------------------------------------------
    def touch(self, op: str, region: Region | None, addresses: np.ndarray, mask: np.ndarray, values: Any = None) -> Any:
        """Check, count and trace the active lanes of one load, store or atomic."""
        active = addresses[mask] if mask.shape == addresses.shape else addresses[np.broadcast_to(mask, addresses.shape)]
        if not active.size:
            return
        region = region or self._owner(active)
        if region is None:
            raise self._error(OutOfBounds, f"{op} at an address that lies in no tensor argument of this kernel", None)
        at, inside = region.elements(active)
        if not inside.all():
            raise self._outside(op, region, at, inside)
        if self.poison:
            return
        units = region.units(at)
        if op != "store" and region.memory.fresh:
            unwritten = ~region.memory.written[units]
            if unwritten.any():
                which = region.spell(int(at[unwritten.reshape(len(at), -1).any(1)][0]))
                raise self._error(UnwrittenRead, f"{op} of {which}, which nothing has written yet", region)
        if self.watch.race and not self.synced:
            self._race(op, region, at, units)
            if op == "store" and active.size > 1:
                self._one_value(region, at, values, mask, addresses.shape)
        if op == "atomic" and not region.floating:
            self.synced = True
        if op != "load":
            region.memory.written[units] = True
            if op == "store":
                self.watch.stored(region, self.kernel)
        self._count(op, region, at)

    def _owner(self, addresses: np.ndarray) -> Region | None:
        """For an address whose argument is not known: the tensor that holds it."""
        return next((r for r in self.regions.values() if r.elements(addresses)[1].all()), None)

    def _race(self, op: str, region: Region, at: np.ndarray, units: np.ndarray) -> None:
        me, memory = self.number, region.memory
        writer = memory.writer[units]
        allowed = (writer == 0) | (writer == me)
        if op != "store":
            allowed |= writer == ATOMIC
        if not allowed.all():
            self._raise_race(op, region, at, units, writer, allowed, "is written")
        if op == "load":
            reader = memory.reader[units]
            memory.reader[units] = np.where((reader == 0) | (reader == me), me, MANY)
            return
        if op == "store":
            reader = memory.reader[units]
            allowed = (reader == 0) | (reader == me)
            if not allowed.all():
                self._raise_race(op, region, at, units, reader, allowed, "is read")
        memory.writer[units] = me if op == "store" else ATOMIC

    def _raise_race(self, op: str, region: Region, at: Any, units: Any, who: Any, allowed: Any, does: str) -> None:
        i = int(np.flatnonzero(~allowed)[0])
        other = {ATOMIC: "atomics of other programs", MANY: "several programs"}.get(int(who[i]))
        other = other or f"program {self.numbered[int(who[i])]}"
        mine = {"load": "reads", "store": "writes", "atomic": "atomically changes"}[op]
        element = region.spell(int(at[i * len(at) // len(units)]))
        what = (f"race: program {self.program} {mine} {element}, which {does} by {other} in the same launch; "
                "on a GPU nothing says which comes first")  # fmt: skip
        raise self._error(Race, what, region)

    def _one_value(self, region: Region, at: np.ndarray, values: Any, mask: np.ndarray, shape: Any) -> None:
        """Two lanes of one store that write one element must write the same value."""
        low = int(at.min())
        span = int(at.max()) - low + 1
        if span < 4 * len(at):  # a table is fast, a sort is small
            last = np.zeros(span, dtype=np.int64)
            last[at - low] = np.arange(len(at))
            twin = last[at - low]
        else:
            _, inverse = np.unique(at, return_inverse=True)
            last = np.zeros(len(at), dtype=np.int64)
            last[inverse] = np.arange(len(at))
            twin = last[inverse]
        doubled = twin != np.arange(len(at))
        if not doubled.any():
            return
        given = np.broadcast_to(values, shape)[np.broadcast_to(mask, shape)]
        differ = doubled & (given != given[twin]) & ~((given != given) & (given[twin] != given[twin]))
        if differ.any():
            element = region.spell(int(at[np.flatnonzero(differ)[0]]))
            raise self._error(Race, f"race: two lanes of one store write different values to {element}", region)

    def overflow(self, name: str, lhs: np.ndarray, rhs: np.ndarray, exact: np.ndarray) -> None:
        """int32 arithmetic whose exact result `exact` (int64) may not fit."""
        wrong = (exact > 2**31 - 1) | (exact < -(2**31))
        if wrong.any():
            a, b, c = (int(np.broadcast_to(x, exact.shape)[wrong][0]) for x in (lhs, rhs, exact))
            what = (f"int32 overflow: {a:,} {name} {b:,} = {c:,} does not fit in 32 bits and wraps around on a GPU. "
                    "Convert the index with .to(tl.int64) first")  # fmt: skip
            raise self._error(IntOverflow, what, None)

    def lanes(self, region: Region | None) -> None:
        """A load with masked lanes and no `other=`."""
        place = self.watch.site()
        self.undefined[(region.name if region else "?", place and (place.file, place.line))] = place

    def element_at(self, tensor: Any, byte: int) -> str:
        """The name of the element at `byte` of a tensor's storage."""
        key = tensor.untyped_storage().data_ptr()
        for region in self.regions.values():
            at = (byte - region.offset) // region.itemsize
            if region.memory.key == key and 0 <= at < region.span:
                return region.spell(at)
        return f"byte {byte} of a storage"

    # -- errors, counts ----------------------------------------------------------------------------------------------
    def _error(self, kind: Any, what: str, region: Region | None) -> Any:
        return kind(what, kernel=self.kernel, site=self.watch.site(), tensor=region and region.name,
                    program=self.program)  # fmt: skip

    def _outside(self, op: str, region: Region, at: np.ndarray, inside: np.ndarray) -> OutOfBounds:
        bad = at[~inside]
        past = bad - (region.span - 1)
        if (past > 0).any():
            worst = int(past.max())
            how = f"reaches {worst:,} element{'s' * (worst != 1)} past the end of"
        elif (bad < 0).any():
            worst = int(bad.min())
            how = f"reaches {-worst:,} element{'s' * (worst != -1)} before the start of"
        else:
            worst, how = 0, f"touches offset {int(bad[0]):,}, which lies between the elements of"
        lanes = f"{len(bad):,} of {len(at):,} active lanes" if len(at) > 1 else "its only lane"
        error = self._error(OutOfBounds, f"out of bounds: a {op} {how} {region.describe()} ({lanes})", region)
        error.past = worst
        return error

    def _count(self, op: str, region: Region, at: np.ndarray) -> None:
        kernel, n = self.watch.counts(self.kernel), len(at)
        if op != "store":
            kernel.read[region.name] = kernel.read.get(region.name, 0) + n * region.itemsize
            kernel.elements_read[region.name] = kernel.elements_read.get(region.name, 0) + n
        if op != "load":
            kernel.written[region.name] = kernel.written.get(region.name, 0) + n * region.itemsize
            kernel.elements_written[region.name] = kernel.elements_written.get(region.name, 0) + n
        if self.watch.tracing:
            place = self.watch.site()
            self.watch.trace.append(Move(
                self.watch.launches, self.kernel, self.program, op, region.name, region.box(at), int(at.min()),
                int(at.max()), n, n * region.itemsize, place and place.line, place, variables(self.watch.keep),
            ))  # fmt: skip
