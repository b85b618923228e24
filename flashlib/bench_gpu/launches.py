"""One kernel with one tile: compiled ahead of time for this chip, launched, timed, checked. What `tune` stands on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flashlib.bench_gpu.methods import Refusal, attempt
from flashlib.bench_gpu.plan import HIDDEN, TOKENS

TIMED_AS = {"16-bit": "float16", "float32": "float32"}
ROUNDS = 7
Sizes = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, warps, stages


def compiles_as(capability: tuple[int, int]) -> tuple[int, int]:
    """The chip whose limits are known that is nearest at or below this one; ValueError if there is none."""
    from flashlib.instruments.occupancy import CAPABILITIES

    known = [c for c in CAPABILITIES if c <= capability]
    if not known:
        raise ValueError(f"no tiles for a chip of capability {capability[0]}.{capability[1]}: 7.5 is the least")
    return max(known)


def compiled_ahead(
    kernel: str, D: int, dtype: str, tiles: list[Sizes], capability: tuple[int, int]
) -> Iterator[tuple[Sizes, str]]:
    """(tile, "" or why it is dropped), as the compilers finish."""
    from flashlib.algorithms.tiles import Tile
    from flashlib.instruments.tile_table import Case, compile_table

    target = compiles_as(capability)
    table = [Case(Tile(kernel, target, D, dtype, *t), target, D, TIMED_AS[dtype]) for t in tiles]
    for i, result in compile_table(table):
        faults = table[i].faults(result)
        yield tiles[i], kind_of(faults[0]) if faults else ""


def kind_of(fault: str) -> str:
    """A fault in two words, to count them."""
    for word, kind in (("spill", "spills"), ("shared", "shared memory"), ("tensor memory", "tensor memory")):
        if word in fault:
            return kind
    return "registers" if "block fits" in fault else "other: " + fault[:60]


@contextmanager
def in_table(tile: Any) -> Iterator[None]:
    """The table with this tile as the entry that a launch on this chip finds."""
    from flashlib.algorithms import tiles

    before = list(tiles.ENTRIES)
    # `lookup` takes the nearest chip, then the smallest width: an entry of this very chip and width wins, and of equals
    # the first does.
    tiles.ENTRIES.insert(0, tile)
    try:
        yield
    finally:
        tiles.ENTRIES[:] = before


class Launches:
    """Launches one kernel at N = 4096, with a causal mask and without; B·N and H·D as in the benchmark."""

    def __init__(
        self, device: Any, clock: Any, capability: tuple[int, int], n: int = 4096, tokens: int = TOKENS,
        hidden: int = HIDDEN,
    ) -> None:  # fmt: skip
        self.device, self.clock, self.capability = device, clock, capability
        self.n, self.tokens, self.hidden = n, tokens, hidden

    def seconds(self, kernel: str, D: int, dtype: str, tile: Sizes) -> float | Refusal:
        """Median seconds of the full and the causal launch, added; a `Refusal` where it cannot run."""
        from flashlib.algorithms.tiles import Tile

        with in_table(Tile(kernel, self.capability, D, dtype, *tile)):
            return attempt(lambda: sum(self._median(call) for call in self._calls(kernel, D, dtype)))

    def _median(self, call: Callable[[], Any]) -> float:
        for _ in range(2):
            call()
        self.clock.wait()
        return statistics.median(self.clock.once(call) for _ in range(ROUNDS))

    def _calls(self, kernel: str, D: int, dtype: str) -> list[Callable[[], Any]]:
        import torch

        from flashlib.algorithms import triton_attention as ta

        shape = (max(1, self.tokens // self.n), max(1, self.hidden // D), self.n, D)
        q, k, v, do = (torch.randn(shape, device=self.device, dtype=getattr(torch, TIMED_AS[dtype])) for _ in range(4))
        calls: list[Callable[[], Any]] = []
        for causal in (False, True):
            options = (causal, D**-0.5, 0.0, 0)
            if kernel == "forward":
                calls.append(lambda options=options: ta._forward(q, k, v, *options))  # type: ignore[misc]
                continue
            o, lse = ta._forward(q, k, v, *options)
            need = (kernel == "dq", kernel == "dkdv")  # delta, a few per cent of it, is launched with both
            calls.append(lambda o=o, lse=lse, options=options, need=need: ta._backward(  # type: ignore[misc]
                do, None, q, k, v, o, lse, *options, *need
            ))  # fmt: skip
        return calls

    def wrong(self, kernel: str, D: int, dtype: str, tile: Sizes) -> str:
        """ "" if results with this tile are within the error budget, else what is wrong with them."""
        from flashlib.algorithms.tiles import Tile
        from flashlib.bench_gpu import exact

        name = {128: "full, ragged, D=128", 256: "causal, D=256"}.get(D, "causal, Sq < Sk, GQA")
        with in_table(Tile(kernel, self.capability, D, dtype, *tile)):
            found = exact.check(name, TIMED_AS[dtype], str(self.device))
        return "" if found["ok"] else "; ".join(found["says"])
