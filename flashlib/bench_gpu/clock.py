"""Time and memory of one call on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LEAST_FLUSH = 2**28  # bytes; more than any last-level cache, and long enough to hide the start of most kernels


class CudaClock:
    """Times calls with CUDA events, on a cache that holds nothing of theirs.

    Before each call a buffer of at least twice the L2 cache is overwritten. While that runs, the host is already
    starting the call's kernels: what it needs beyond that (some 0.1 ms) counts, as it does for a user.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda = torch.cuda
        self.device = torch.device(device)
        cache = getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0)
        self.flush_bytes = max(LEAST_FLUSH, 2 * cache)
        self._buffer = torch.empty(self.flush_bytes, dtype=torch.int8, device=self.device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once(self, call: Callable[[], Any]) -> float:
        """Seconds of one call, from its first kernel to its last."""
        self._buffer.zero_()
        self._start.record()
        result = call()
        self._end.record()
        self._cuda.synchronize(self.device)
        del result
        return self._start.elapsed_time(self._end) / 1e3

    def peak(self, call: Callable[[], Any]) -> int:
        """Bytes that the call needs beyond what lived before it, its results included: the allocator's count."""
        self._cuda.synchronize(self.device)
        self._cuda.reset_peak_memory_stats(self.device)
        before = self._cuda.memory_allocated(self.device)
        result = call()
        self._cuda.synchronize(self.device)
        most = self._cuda.max_memory_allocated(self.device)
        del result
        return int(most - before)

    def wait(self) -> None:
        """Until all kernels are done; an error of one of them is raised here."""
        self._cuda.synchronize(self.device)
