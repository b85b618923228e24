"""Tile sizes for the decode kernel: by chip, width and dtype, compiled ahead of time and promised as those of `tiles`.

BLOCK_M is the most rows a tile may have; a KV head with fewer rows takes fewer. `python -m flashlib compile --kernel
decode` prints the table; nothing in it has been timed on a GPU yet.
"""

import torch
from torch import Tensor

from flashlib.algorithms.tiles import Table, Tile, best, fitting, wanted


def _entries(dtype: str, table: Table, when: str = "") -> list[Tile]:
    return [Tile("decode", chip, D, dtype, *sizes, when) for chip, row in table.items() for D, sizes in row.items()]


INTERPRETED = Tile("decode", (0, 0), 256, "any", 64, 32, 4, 1)  # no chip to fit; small, so that tests see many tiles
ENTRIES: list[Tile] = [
    *_entries("16-bit", {
        (7, 5): {64: (16, 32, 8, 1), 128: (16, 16, 8, 1), 256: (16, 16, 8, 1)},
        (8, 0): {64: (64, 64, 4, 2), 128: (64, 32, 4, 2), 256: (32, 32, 4, 2)},
    }),
    *_entries("float32", {
        (7, 5): {64: (16, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 8, 1)},
        (8, 0): {64: (16, 32, 4, 2), 128: (16, 16, 4, 2), 256: (16, 16, 8, 2)},
    }),
    *_entries("float32", {(7, 5): {256: (16, 16, 16, 1)}}, "masked"),
    *_entries("16-bit", {(8, 0): {64: (64, 32, 4, 2), 128: (64, 32, 8, 2), 256: (32, 32, 4, 2)}}, "unaligned"),
    *_entries("float32", {(8, 0): {128: (16, 16, 4, 2), 256: (16, 16, 8, 2)}}, "unaligned"),
]  # fmt: skip


def choose(q: Tensor, v: Tensor, rows: int) -> Tile:
    """The entry for these tensors and a KV head of ``rows`` rows; at least 16 of them, which tl.dot wants.

    Raises
    ------
    ValueError
        The chip has no entry for this width and dtype: its message names them.
    """
    entry = INTERPRETED
    if q.device.type == "cuda":
        chip = torch.cuda.get_device_capability(q.device)
        D, dtype = wanted(q, v)
        found = fitting(ENTRIES, "decode", chip, D, dtype)
        if not found:
            raise ValueError(
                f"decode: no Triton tile for D={D}, {dtype}, on a chip of capability {chip[0]}.{chip[1]}; "
                "use impl='torch'"
            )
        entry = best(found)
    return entry._replace(block_m=min(entry.block_m, max(16, 1 << max(0, rows - 1).bit_length())))
