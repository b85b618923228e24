"""Proposes tile sizes for this GPU: those near the table's, compiled first, then timed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from flashlib.bench_gpu.launches import Sizes, compiled_ahead
from flashlib.bench_gpu.methods import Refusal

KERNELS = ("forward", "dkdv", "dq")
WIDTHS = (64, 128, 256)
DTYPES = ("16-bit", "float32")
GAIN = 0.02  # a tile must be this much faster than the one in the table to replace it: less is noise from run to run


@dataclass
class Found:
    """One entry: the tile in the table and the best of those tried, with median seconds."""

    kernel: str
    D: int
    dtype: str
    current: Sizes
    current_s: float | None = None
    best: Sizes | None = None
    best_s: float | None = None
    tried: int = 0
    candidates: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> how many
    note: str = ""

    @property
    def proposed(self) -> Sizes:
        """The best tile, or the current one where it is as good."""
        if self.best is None or self.best_s is None:
            return self.current
        return self.current if self.current_s and self.best_s > (1 - GAIN) * self.current_s else self.best


def candidates(current: Sizes) -> list[Sizes]:
    """Tiles near this one, nearest first: each side halved, kept or doubled, 4 or 8 warps, a stage more or less."""
    m, n, warps, stages = current
    out = [
        (a, b, w, s)
        for a in (m // 2, m, 2 * m)
        for b in (n // 2, n, 2 * n)
        for w in (4, 8)
        for s in (stages - 1, stages, stages + 1)
        if 16 <= a <= 256 and 16 <= b <= 256 and 1 <= s <= 5
    ]

    def far(t: Sizes) -> int:
        return (t[0] != m) + (t[1] != n) + (t[2] != warps) + (t[3] != stages)

    return sorted(out, key=lambda t: (far(t), t))


def tune(launches: Any, capability: tuple[int, int], *, seconds: float, ahead: Any = compiled_ahead) -> list[Found]:
    """Try tiles for every kernel, width and dtype that has an entry, for about `seconds` in all.

    Parameters
    ----------
    launches : `Launches`, or a fake with `seconds` and `wrong`, both of (kernel, D, dtype, tile).
    ahead : `compiled_ahead`, or a fake.
    """
    from flashlib.algorithms import tiles

    every = [(k, D, t) for D in WIDTHS for t in DTYPES for k in KERNELS]
    todo = [(k, D, t) for k, D, t in every if tiles.fitting(tiles.ENTRIES, k, capability, D, t)]
    start, found = time.monotonic(), []
    with tqdm(todo, file=sys.stderr, unit="entry", disable=None) as bar:
        for i, (kernel, D, dtype) in enumerate(bar):
            bar.set_description(f"{kernel} D={D} {dtype}")
            end = time.monotonic() + max(0.0, seconds - (time.monotonic() - start)) / (len(todo) - i)
            current = tiles.lookup(kernel, capability, D, dtype)
            sizes = (current.block_m, current.block_n, current.warps, current.stages)
            found.append(_entry(launches, Found(kernel, D, dtype, sizes), capability, end, ahead))
    return found


def _entry(launches: Any, found: Found, capability: tuple[int, int], end: float, ahead: Any) -> Found:
    base = launches.seconds(found.kernel, found.D, found.dtype, found.current)
    if isinstance(base, Refusal):
        found.note = f"the tile in the table does not run: {base.why}"
    else:
        found.current_s = base
    near = [t for t in candidates(found.current) if t != found.current]
    found.candidates = len(near)
    for first in range(0, len(near), 8):  # nearest first, in handfuls, so that the time limit falls between two
        if time.monotonic() >= end:
            found.note = found.note or "time was up"
            break
        for tile, why in ahead(found.kernel, found.D, found.dtype, near[first : first + 8], capability):
            if why:
                found.dropped[why] = found.dropped.get(why, 0) + 1
                continue
            took = launches.seconds(found.kernel, found.D, found.dtype, tile)
            found.tried += 1
            if isinstance(took, Refusal):
                found.dropped["did not run"] = found.dropped.get("did not run", 0) + 1
            elif found.best_s is None or took < found.best_s:
                found.best, found.best_s = tile, took
    if found.best and found.proposed != found.current:
        wrong = launches.wrong(found.kernel, found.D, found.dtype, found.best)
        if wrong:
            found.note, found.best, found.best_s = f"the fastest, {found.best}, is wrong: {wrong}", None, None
    return found


def snippet(found: list[Found], capability: tuple[int, int]) -> str:
    """Rows for `flashlib/algorithms/tiles.py`, ready to paste, each under the head it belongs to.

    A row names every width: `lookup` prefers the nearest chip, so a row that lacked one would hide the right entry.
    """
    lines = []
    for kernel, dtype in dict.fromkeys((f.kernel, f.dtype) for f in found):
        row = {f.D: f.proposed for f in found if (f.kernel, f.dtype) == (kernel, dtype)}
        lines += [f'# in *_entries("{kernel}", "{dtype}", {{', f"        {capability}: {row},"]
    return "\n".join(lines)
