"""This computer's roofline, measured: what a copy and a matmul reach here. NumPy and the standard library only."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from flashlib.instruments.machine import MIB, Chip

MATMUL_N = 1024
COPY_AT_LEAST, COPY_AT_MOST = 64 * MIB, 256 * MIB
BUDGET_S = 0.25  # for each of the three measurements


@functools.cache
def measured_cpu() -> Chip:
    """The `Chip` of this computer; see `machine.this_cpu`."""
    cores = usable_cores()
    caches = cache_sizes()
    last = max(caches.values(), default=None)
    # The larger of 64 MiB and four times the last cache, so that the copy comes from memory; but no more than 256 MiB.
    size = min(max(COPY_AT_LEAST, 4 * (last or 0)), COPY_AT_MOST)
    bandwidth = copy_bandwidth(size, cores)
    flops = {dtype: matmul_rate(MATMUL_N, dtype) for dtype in ("float32", "float64")}
    own = caches.get(2)
    source = (
        f"measured here with NumPy {np.__version__}: bandwidth by copying {size // MIB} MiB on {cores} threads, FLOP/s "
        f"by {MATMUL_N}×{MATMUL_N} matmuls on as many threads as NumPy's BLAS takes, best of several. "
        f"Caches: {'as the operating system reports them' if caches else 'not readable on this system'}."
    )
    return Chip(model_name(), None, memory_bytes(), bandwidth, flops, cores, own, own, last, source)


def copy_bandwidth(size: int, threads: int) -> float:
    """Bytes per second, read plus written, of copying `size` bytes, cut up among `threads`; the best of several."""
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    cuts = [slice(size * t // threads, size * (t + 1) // threads) for t in range(threads)]
    with ThreadPoolExecutor(threads) as pool:  # NumPy lets go of the interpreter's lock while it copies

        def copy() -> None:
            list(pool.map(lambda cut: np.copyto(target[cut], source[cut]), cuts))

        return 2 * size / _best(copy)


def matmul_rate(n: int, dtype: str) -> float:
    """FLOP per second of an n×n matmul, 2n³ FLOP; the best of several."""
    a, b = np.full((n, n), 0.5, dtype=dtype), np.full((n, n), 0.25, dtype=dtype)
    out = np.empty_like(a)
    return 2 * n**3 / _best(lambda: np.matmul(a, b, out=out))


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_sizes() -> dict[int, int]:
    """Data cache sizes in bytes by level, as one core sees them: Linux's sysfs, macOS's sysctl, else empty."""
    found: dict[int, int] = {}
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and kind != "Instruction":
            found[int(level)] = int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    if not found and sys.platform == "darwin":
        for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
            value = _sysctl(name)
            if value.isdigit() and int(value):
                found[level] = int(value)
    return found


def model_name() -> str:
    """The processor's name as the system gives it, else its architecture."""
    if sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string")
    else:
        try:
            name = dict(_fields(Path("/proc/cpuinfo").read_text())).get("model name", "")
        except OSError:
            name = platform.processor()
    return name or platform.processor() or platform.machine() or "this CPU"


def memory_bytes() -> int | None:
    """Bytes of RAM, or None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _fields(text: str) -> list[tuple[str, str]]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return [(key.strip(), value.strip()) for key, value in pairs]


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _best(fn: Callable[[], object]) -> float:
    """Seconds of the fastest call within the budget, after one to warm up; at least two are timed."""
    fn()
    best, start, runs = float("inf"), time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - start < BUDGET_S:
        before = time.perf_counter()
        fn()
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return best
