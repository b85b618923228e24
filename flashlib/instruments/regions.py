"""The memory that a watched kernel may touch: each tensor argument, and a shadow of what happened to its elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flashlib.instruments.ledger import Spans

ATOMIC, MANY = -2, -1  # in place of a program's number: "some atomic", "several programs"


class Memory:
    """One storage: who wrote and read each element of it in this launch, and what was written since the watch began.

    The arrays start as zeros, which the system hands out only when touched. A program's number is counted from 1.
    """

    def __init__(self, key: int, nbytes: int, unit: int) -> None:
        self.key, self.nbytes, self.unit = key, nbytes, unit
        self.fresh = False  # made by torch.empty: what nothing has written has no value
        self.written = np.zeros(self.units, dtype=bool)
        self.launched()

    @property
    def units(self) -> int:
        """How many elements, of the smallest itemsize seen."""
        return -(-self.nbytes // self.unit)

    def launched(self) -> None:
        """A new launch: what other launches did is ordered before it."""
        self.writer = np.zeros(self.units, dtype=np.int32)
        self.reader = np.zeros(self.units, dtype=np.int32)

    def refine(self, unit: int) -> None:
        """Count in smaller elements from now on."""
        if unit < self.unit:
            self.written = np.repeat(self.written, self.unit // unit)
            self.unit = unit
            self.written = np.resize(self.written, self.units)
            self.launched()


class Region:
    """One tensor argument of a launch: its name, where it lies, and which elements are its own."""

    def __init__(self, name: str, tensor: Any, memory: Memory, base: int) -> None:
        self.name, self.memory, self.tensor = name, memory, tensor
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        self.itemsize, self.floating = tensor.element_size(), tensor.is_floating_point()
        self.start, self.offset = int(tensor.data_ptr()), int(tensor.data_ptr()) - base
        self.numel = math.prod(self.shape)
        self.span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if self.numel else 0
        distinct = math.prod(n for n, s in zip(self.shape, self.strides, strict=True) if s) if self.numel else 0
        self._gaps = distinct < self.span
        self._own: np.ndarray | None = None

    def elements(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The element offset of each address from the tensor's first element, and whether it is one of its elements."""
        bytes_ = addresses.astype(np.int64) - self.start
        at = bytes_ // self.itemsize
        inside = (at >= 0) & (at < self.span) & (bytes_ % self.itemsize == 0)
        if self._gaps and inside.any():
            inside[inside] = self.own[at[inside]]
        return at, inside

    @property
    def own(self) -> np.ndarray:
        """For each element of the span, whether it belongs to the view (the others belong to another view)."""
        if self._own is None:
            self._own = np.zeros(self.span, dtype=bool)
            np.lib.stride_tricks.as_strided(self._own, self.shape, self.strides)[...] = True
        return self._own

    def all(self) -> np.ndarray:
        """The offsets of all elements."""
        return np.flatnonzero(self.own) if self._gaps else np.arange(self.span)

    def units(self, at: np.ndarray) -> np.ndarray:
        """The places in the shadow that elements `at` cover."""
        many = self.itemsize // self.memory.unit
        first = (self.offset + at * self.itemsize) // self.memory.unit
        return first if many == 1 else (first[:, None] + np.arange(many)).ravel()

    def unwritten(self) -> tuple[int, int]:
        """How many elements nothing has written, and the offset of the first of them."""
        if not self.numel:
            return 0, 0
        at = self.all()
        many = self.itemsize // self.memory.unit
        missing = at[~self.memory.written[self.units(at)].reshape(-1, many).all(axis=1)]
        return len(missing), int(missing[0]) if len(missing) else 0

    def index(self, at: np.ndarray) -> np.ndarray | None:
        """The indices, (len(at), ndim), of elements `at`; None where the strides do not tell."""
        rest, out = at.copy(), np.zeros((len(at), len(self.shape)), dtype=np.int64)
        for d in sorted(range(len(self.shape)), key=lambda d: -self.strides[d]):
            if self.strides[d] and self.shape[d] > 1:
                out[:, d] = np.minimum(rest // self.strides[d], self.shape[d] - 1)
                rest -= out[:, d] * self.strides[d]
        return None if rest.any() else out

    def spell(self, at: int) -> str:
        """An element's name, as O[0, 3, 5]."""
        index = self.index(np.array([at]))
        return f"{self.name}[{', '.join(map(str, index[0]))}]" if index is not None else f"{self.name} + {at}"

    def box(self, at: np.ndarray) -> Spans:
        """The smallest box of indices that holds elements `at`."""
        index = self.index(at)
        if index is None:
            return ()
        return tuple((int(a), int(b) + 1, 1) for a, b in zip(index.min(0), index.max(0), strict=True))

    def describe(self) -> str:
        """Shape, and strides unless they are the plain ones."""
        plain: list[int] = []
        size = 1
        for n in reversed(self.shape):
            plain.insert(0, size)
            size *= max(n, 1)
        strides = "" if plain == list(self.strides) else f" with strides {self.strides}"
        return f"{self.name}, of shape {self.shape}{strides}"
