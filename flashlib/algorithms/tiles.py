"""Tile sizes for the Triton kernels: by kernel, chip, width and dtype. Compiled ahead of time; CI takes a sample a day.

What is promised of an entry, for contiguous tensors: it fits the chip's shared memory, keeps its numbers in registers
(at most 16 bytes spilled a thread), and uses tensor cores where the chip has them. A chip between two entries takes the
nearest one below it. `python -m flashlib compile` prints the table; nothing in it has been timed on a GPU yet.

Three occasions cost a kernel registers. For each there are entries that stand in for the plain ones:

- "dropout": Philox's rounds come to every score. Promised for D that are powers of two: `compile --dropout`.
- "masked": a D that is no power of two is padded to one, and loads are masked. Promised for 48, 96 and 192.
- "unaligned": where D is no multiple of 16, Triton does not know that rows begin at multiples of 16 bytes: it loads
  number by number, each with an address of its own. Promised for 8, 24, 56, 120 and 248: `compile --ragged` does both.

The D between take the same tiles. Not promised: dropout at a padded D, other strides, a v of another width than q.
"""

from collections.abc import Iterable
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
    when: str = ""  # "dropout", "masked" or "unaligned": only then; "": always


Sizes = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, warps, stages
Table = dict[tuple[int, int], dict[int, Sizes]]  # by chip, then by width


def _entries(kernel: str, dtype: str, table: Table, when: str = "") -> list[Tile]:
    return [Tile(kernel, chip, D, dtype, *sizes, when) for chip, row in table.items() for D, sizes in row.items()]


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
    # Beside a plain row a special one may name single widths; where its chip has no plain row it names them all.
    *_entries("forward", "16-bit", {
        (8, 0): {64: (128, 64, 8, 3)},
        (8, 6): {64: (128, 64, 8, 3)},
        (9, 0): {64: (128, 64, 8, 3), 128: (128, 32, 8, 3)},
        (10, 0): {64: (128, 32, 8, 3), 128: (128, 32, 8, 3)},
    }, "dropout"),
    *_entries("dkdv", "16-bit", {
        (8, 0): {32: (32, 64, 8, 2)}, (9, 0): {64: (32, 128, 8, 2)}, (12, 0): {32: (32, 64, 8, 2)},
    }, "dropout"),
    *_entries("dq", "16-bit", {(8, 0): {128: (32, 64, 8, 2)}}, "dropout"),
    *_entries("forward", "16-bit", {
        (7, 5): {256: (16, 32, 8, 1)},
        (8, 0): {128: (128, 64, 8, 2)},
        (8, 6): {128: (128, 32, 8, 2)},
        (12, 0): {128: (128, 32, 8, 2)},
    }, "masked"),
    *_entries("forward", "float32", {
        (8, 6): {64: (64, 32, 8, 1), 128: (16, 32, 8, 1), 256: (16, 32, 8, 1)},
        (9, 0): {64: (64, 32, 8, 1), 128: (16, 32, 8, 1), 256: (16, 16, 8, 1)},
        (12, 0): {64: (64, 32, 8, 1), 128: (16, 32, 8, 1), 256: (16, 32, 8, 1)},
    }, "masked"),
    *_entries("dkdv", "float32", {
        (9, 0): {64: (32, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)}, (12, 0): {128: (32, 16, 8, 1)},
    }, "masked"),
    *_entries("dq", "16-bit", {
        (8, 0): {128: (64, 32, 8, 2)}, (9, 0): {256: (32, 32, 8, 2)}, (12, 0): {256: (32, 32, 8, 2)},
    }, "masked"),
    *_entries("dq", "float32", {(12, 0): {64: (32, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)}}, "masked"),
    *_entries("forward", "16-bit", {
        (7, 5): {64: (64, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)},
        (8, 0): {16: (128, 64, 4, 3), 64: (128, 64, 8, 3), 128: (128, 16, 8, 3), 256: (32, 16, 8, 2)},
        (10, 0): {64: (128, 32, 8, 3), 128: (128, 16, 8, 3), 256: (32, 16, 8, 2)},
        (12, 0): {64: (128, 32, 8, 3), 128: (64, 16, 8, 3), 256: (32, 16, 8, 2)},
    }, "unaligned"),
    *_entries("forward", "float32", {
        (7, 5): {64: (64, 32, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 8, 1)},
    }, "unaligned"),
    *_entries("dkdv", "16-bit", {
        (8, 0): {16: (64, 32, 8, 2), 32: (32, 64, 8, 2), 64: (64, 32, 8, 2), 128: (32, 32, 8, 2), 256: (16, 16, 8, 1)},
    }, "unaligned"),
    *_entries("dkdv", "float32", {
        (7, 5): {32: (16, 32, 8, 1), 64: (32, 16, 8, 1), 128: (16, 16, 8, 1)},
        (8, 0): {64: (32, 16, 8, 1), 128: (32, 32, 8, 1), 256: (16, 16, 16, 1)},
        (9, 0): {64: (32, 16, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 16, 1)},
        (10, 0): {32: (16, 32, 8, 1), 64: (32, 16, 8, 1), 128: (32, 16, 8, 1), 256: (16, 16, 16, 1)},
    }, "unaligned"),
    *_entries("dq", "16-bit", {
        (8, 0): {64: (128, 16, 8, 2), 128: (32, 32, 8, 2), 256: (16, 16, 8, 1)},
        (9, 0): {64: (128, 16, 8, 2), 128: (32, 16, 8, 2), 256: (16, 16, 8, 1)},
    }, "unaligned"),
    *_entries("dq", "float32", {
        (8, 0): {64: (32, 32, 8, 1), 256: (16, 16, 8, 1)}, (12, 0): {64: (32, 16, 8, 1), 256: (16, 16, 8, 1)},
    }, "unaligned"),
]  # fmt: skip


def has(capability: tuple[int, int], q: Tensor, v: Tensor) -> bool:
    """Whether all three kernels have an entry for these tensors on such a chip."""
    return all(fitting(ENTRIES, kernel, capability, *wanted(q, v)) for kernel in ("forward", "dkdv", "dq"))


def choose(kernel: str, q: Tensor, v: Tensor, dropout: bool) -> Tile:
    """The entry for these tensors, with or without dropout; `INTERPRETED` on the CPU.

    Raises
    ------
    ValueError
        The chip has no entry for this width and dtype: its message names them.
    """
    if q.device.type != "cuda":
        return INTERPRETED
    return lookup(kernel, torch.cuda.get_device_capability(q.device), *wanted(q, v), dropout)


def lookup(kernel: str, capability: tuple[int, int], D: int, dtype: str, dropout: bool = False) -> Tile:
    """The entry for heads of width D on a chip, by the rule of `best`; ValueError if there is none."""
    found = fitting(ENTRIES, kernel, capability, D, dtype, dropout)
    if not found:
        raise ValueError(
            f"attention: no Triton tile for {kernel} with D={D}, {dtype}, on a chip of capability "
            f"{capability[0]}.{capability[1]}; use impl='tiled' or impl='sdpa'"
        )
    return best(found)


def fitting(
    entries: Iterable[Tile], kernel: str, capability: tuple[int, int], D: int, dtype: str, dropout: bool = False
) -> list[Tile]:
    """Those of this kernel and dtype, for this chip or an older one, this width or a larger one, and this occasion."""
    padded = D < 16 or D & (D - 1) > 0
    occasions = {"": True, "dropout": dropout, "masked": padded, "unaligned": D % 16 > 0}
    return [
        t for t in entries
        if t.kernel == kernel and t.dtype == dtype and t.capability <= capability and t.D >= D and occasions[t.when]
    ]  # fmt: skip


def best(found: list[Tile]) -> Tile:
    """Of those that fit, the nearest chip's; there the smallest width's; there the one made for the occasion.

    But those for unaligned rows come first: nothing else about the chip weighs as much.
    """
    order = ("", "dropout", "masked", "unaligned")
    return max(found, key=lambda t: (t.when == "unaligned", t.capability, -t.D, order.index(t.when)))


def wanted(q: Tensor, v: Tensor) -> tuple[int, str]:
    """The width and the dtype to look for, as the table names them."""
    return max(q.shape[-1], v.shape[-1]), "float32" if q.dtype == torch.float32 else "16-bit"
