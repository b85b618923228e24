"""A memory machine that also notes how often kernels begin, how many tiles each tensor was loaded in, and who looks at
a tensor's numbers past the machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flashlib.instruments import traffic
from flashlib.instruments.traffic import HBMTensor, MemoryMachine


class SeenTensor(HBMTensor):
    """A tensor in HBM that counts in ``looked`` how often `.array` was used by anybody but the machine."""

    def __init__(self, name: str, array: Any, looked: Counter[str]) -> None:
        self.numbers, self._looked = array, looked
        super().__init__(name, array)

    @property
    def array(self) -> Any:
        """The data."""
        if sys._getframe(1).f_code.co_filename != traffic.__file__:
            self._looked[self.name] += 1
        return self.numbers

    @array.setter
    def array(self, value: Any) -> None:
        """The data, set."""
        self.numbers = value


class SeenMachine(MemoryMachine):
    """A `MemoryMachine` with ``begun``, the kernels that were begun, ``loads`` by tensor, and ``looked`` by tensor."""

    def __init__(self, sram_bytes: float) -> None:
        super().__init__(sram_bytes, record=False)
        self.begun = 0
        self.loads: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()

    def hbm(self, name: str, array: Any) -> HBMTensor:
        """As `MemoryMachine.hbm`."""
        return SeenTensor(name, array, self.looked)

    def hbm_empty(self, name: str, shape: tuple[int, ...], dtype: Any, *, device: Any = None) -> HBMTensor:
        """As `MemoryMachine.hbm_empty`."""
        made = super().hbm_empty(name, shape, dtype, device=device).array
        return SeenTensor(name, made, self.looked)

    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """As `MemoryMachine.kernel`; counted each time, under whatever name."""
        self.begun += 1
        with super().kernel(name):
            yield

    def load(self, tensor: HBMTensor, index: Any = (), *, slot: str | None = None) -> Any:
        """As `MemoryMachine.load`."""
        tile = super().load(tensor, index, slot=slot)
        self.loads[tensor.name] += 1
        return tile
