"""The most memory that a call needs beyond what lived before it: `peak_memory(fn)`.

NumPy's arrays are seen by tracemalloc, torch's on a CPU by a dispatch mode that follows every storage from birth to
death, torch's on a GPU by the CUDA allocator. Torch is looked at only if the program has imported it already.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Peak:
    """Extra memory of one call, in bytes.

    `bytes` is the most that lived at once beyond what lived before the call; `kept` what the result (and whatever else
    the call left behind, such as `.grad`) still holds when it has returned; `by` names the instrument. `alive` lists
    what lived at the peak, largest first, as (op, shape, bytes): for torch on a CPU only, else empty.
    """

    bytes: int
    kept: int
    by: str
    alive: tuple[tuple[str, tuple[int, ...], int], ...] = ()

    def __str__(self) -> str:
        return f"peak {self.bytes:,} B, kept {self.kept:,} B (by {self.by})"

    __repr__ = __str__


def peak_memory(fn: Callable[[], Any], *, library: str = "auto") -> Peak:
    """Call `fn()` and measure the extra memory it needs, in bytes.

    Parameters
    ----------
    fn : called without arguments. Its result is held until `kept` has been measured. It may call `.backward()`: what
        autograd saves and the temporaries of the backward are counted.
    library : "numpy", "torch", or "auto": torch's tensors if torch is imported; if `fn` turns out to make none, it is
        called a second time and NumPy's arrays are measured. A call that uses both is measured for torch only.

    Notes
    -----
    - NumPy: exact for arrays, but tracemalloc also sees Python's own objects, some hundred or thousand bytes, more
      if `fn` imports a module or fills a cache.
    - torch on a CPU: exact for tensors, in the size of their storages. What a C++ kernel allocates for itself and
      gives back before it returns is not seen.
    - torch on a GPU: the allocator's peak, all devices added, rounded up by it to blocks of 512 B, scratch space of
      kernels included.

    Raises
    ------
    ValueError for an unknown `library`; RuntimeError for "torch" if torch has not been imported.
    """
    if library not in ("auto", "numpy", "torch"):
        raise ValueError(f'library must be "auto", "numpy" or "torch", got {library!r}')
    torch = sys.modules.get("torch")
    if library == "torch" and torch is None:
        raise RuntimeError("library='torch', but torch has not been imported")
    if torch is not None and library != "numpy":
        found = _torch_peak(fn, torch)
        if found.bytes or library == "torch":
            return found
    return _numpy_peak(fn)


def _torch_peak(fn: Callable[[], Any], torch: Any) -> Peak:
    from flashlib.instruments.dispatch import LiveStorages

    cuda = _Allocator(torch) if torch.cuda.is_available() else None
    with LiveStorages() as storages:
        result = fn()
        if storages.now:
            gc.collect()  # what only reference cycles hold is not kept by the result; at the peak it has been counted
        if cuda is not None and "cuda" in storages.devices:
            return cuda.peak()
        kept = storages.now
        storages.close()
        del result
    alive = tuple(sorted(storages.at_peak.values(), key=lambda held: -held[2]))
    return Peak(storages.peak, kept, "live torch storages", alive)


def _numpy_peak(fn: Callable[[], Any]) -> Peak:
    mine = not tracemalloc.is_tracing()
    gc.collect()
    if mine:
        tracemalloc.start(1)
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = fn()
        most = tracemalloc.get_traced_memory()[1]
        gc.collect()
        now = tracemalloc.get_traced_memory()[0]
        del result
    finally:
        if mine:
            tracemalloc.stop()
    return Peak(max(most - before, 0), max(now - before, 0), "tracemalloc")


def fit_exponent(ns: Sequence[float], values: Sequence[float]) -> float:
    """The e of values ≈ c·nᵉ: the slope of a least-squares line through log(values) against log(ns).

    Raises
    ------
    ValueError for fewer than two different sizes, or for numbers that are not positive.
    """
    x, y = np.asarray(ns, dtype=float), np.asarray(values, dtype=float)
    if x.shape != y.shape or len(set(x.tolist())) < 2 or not (x > 0).all() or not (y > 0).all():
        raise ValueError(f"need two or more different sizes, all numbers positive, got {list(ns)} and {list(values)}")
    x, y = np.log(x) - np.log(x).mean(), np.log(y) - np.log(y).mean()
    return float(x @ y / (x @ x))


class _Allocator:
    """The CUDA caching allocator's own counters, over all devices."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._devices = range(torch.cuda.device_count())
        gc.collect()  # what dies during the call must not lower the count
        for device in self._devices:
            self._cuda.synchronize(device)
            self._cuda.reset_peak_memory_stats(device)
        self._before = [self._cuda.memory_allocated(device) for device in self._devices]

    def peak(self) -> Peak:
        for device in self._devices:
            self._cuda.synchronize(device)
        most = [self._cuda.max_memory_allocated(device) for device in self._devices]
        now = [self._cuda.memory_allocated(device) for device in self._devices]
        extra = sum(m - b for m, b in zip(most, self._before, strict=True))
        kept = sum(n - b for n, b in zip(now, self._before, strict=True))
        return Peak(extra, max(kept, 0), "CUDA allocator")
