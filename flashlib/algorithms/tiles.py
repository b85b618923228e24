"""Tile sizes for the Triton kernels: by kernel, chip, width and dtype. Every entry is compiled ahead of time in CI.

An entry fits the chip's shared memory, keeps its numbers in registers (at most 16 bytes spilled a thread, without
dropout and for widths that are powers of two), and uses tensor cores where the chip has them. A chip between two
entries takes the nearest one below it. `python -m flashlib compile` prints the table; nothing in it has been timed on a
GPU yet.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """One entry: BLOCK_M queries by BLOCK_N keys, warps a program, stages of the software pipeline."""

    kernel: str
    capability: tuple[int, int]
    D: int
    dtype: str
    block_m: int
    block_n: int
    warps: int
    stages: int


Sizes = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, warps, stages


def _entries(kernel: str, dtype: str, table: dict[tuple[int, int], dict[int, Sizes]]) -> list[Tile]:
    return [Tile(kernel, chip, D, dtype, *sizes) for chip, row in table.items() for D, sizes in row.items()]


INTERPRETED = Tile("any", (0, 0), 256, "any", 32, 32, 4, 1)  # no chip to fit; small, so that tests see many tiles
ENTRIES: list[Tile] = [
    *_entries("forward", "16-bit", {
        (7, 5): {64: (64, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
        (8, 0): {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (32, 64, 8, 2)},
        (8, 6): {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (32, 64, 8, 2)},
        (9, 0): {64: (128, 128, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 2)},
        (10, 0): {64: (128, 128, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 2)},
        (12, 0): {64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (32, 64, 8, 2)},
    }),
    *_entries("forward", "float32", {(7, 5): {64: (64, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 32, 8, 1)}}),
    *_entries("dkdv", "16-bit", {
        (7, 5): {16: (32, 16, 8, 1), 64: (32, 32, 8, 1), 128: (16, 16, 8, 1)},
        (8, 0): {64: (64, 32, 8, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 1)},
        (9, 0): {64: (64, 128, 8, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 1)},
        (10, 0): {64: (64, 64, 8, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 1)},
        (12, 0): {64: (64, 32, 8, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 1)},
    }),
    *_entries("dkdv", "float32", {
        (7, 5): {64: (32, 32, 8, 1), 128: (16, 16, 8, 1)},
        (8, 0): {16: (32, 64, 8, 1), 64: (32, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
        (9, 0): {16: (32, 32, 8, 1)},
        (10, 0): {16: (32, 16, 8, 1), 32: (32, 32, 8, 1), 64: (32, 16, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
        (12, 0): {64: (32, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
    }),
    *_entries("dq", "16-bit", {
        (7, 5): {64: (32, 32, 8, 1), 128: (16, 16, 8, 1)},
        (8, 0): {64: (128, 32, 8, 3), 128: (128, 32, 8, 2), 256: (32, 32, 8, 1)},
        (9, 0): {64: (128, 64, 8, 3), 128: (128, 32, 8, 2), 256: (32, 32, 8, 1)},
        (12, 0): {64: (128, 32, 8, 2), 128: (64, 64, 8, 2), 256: (32, 32, 8, 1)},
    }),
    *_entries("dq", "float32", {
        (7, 5): {64: (32, 32, 8, 1), 128: (16, 16, 8, 1)},
        (8, 0): {64: (32, 32, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 8, 1)},
    }),
]  # fmt: skip


def has(capability: tuple[int, int], q: Tensor, v: Tensor) -> bool:
    """Whether all three kernels have an entry for these tensors on such a chip."""
    return all(_find(kernel, capability, *_wanted(q, v)) for kernel in ("forward", "dkdv", "dq"))


def choose(kernel: str, q: Tensor, v: Tensor) -> Tile:
    """The entry for these tensors; `INTERPRETED` on the CPU.

    Raises
    ------
    ValueError
        The chip has no entry for this width and dtype: its message names them.
    """
    if q.device.type != "cuda":
        return INTERPRETED
    return lookup(kernel, torch.cuda.get_device_capability(q.device), *_wanted(q, v))


def lookup(kernel: str, capability: tuple[int, int], D: int, dtype: str) -> Tile:
    """The entry of the nearest chip at or below ``capability`` and the smallest width that holds D."""
    found = _find(kernel, capability, D, dtype)
    if not found:
        raise ValueError(
            f"attention: no Triton tile for {kernel} with D={D}, {dtype}, on a chip of capability "
            f"{capability[0]}.{capability[1]}; use impl='tiled' or impl='sdpa'"
        )
    return max(found, key=lambda t: (t.capability, -t.D))


def _find(kernel: str, capability: tuple[int, int], D: int, dtype: str) -> list[Tile]:
    return [t for t in ENTRIES if t.kernel == kernel and t.dtype == dtype and t.capability <= capability and t.D >= D]


def _wanted(q: Tensor, v: Tensor) -> tuple[int, str]:
    return max(q.shape[-1], v.shape[-1]), "float32" if q.dtype == torch.float32 else "16-bit"
