"""What attention's other roads move, as formulas in bytes: each array once where it fits, keys once a visited tile.

One head: q (Nq, d), k (Nk, d), v (Nk, dv). SRAM holds the tiles and the small matrices that are named; every number has
one size. The tests hold each formula against a program on the memory machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]


def visited_keys(Nq: int, Nk: int, mask: Mask, block: int) -> int:
    """Keys loaded by `variants.masked`: the keys of every tile of ``block`` rows and keys of which a row sees one."""
    keys = 0
    for i0 in range(0, Nq, block):
        rows = np.arange(i0, min(i0 + block, Nq))[:, None]
        for j0 in range(0, Nk, block):
            cols = np.arange(j0, min(j0 + block, Nk))[None, :]
            keys += cols.size * bool(mask(rows, cols).any())
    return keys


def masked_bytes(Nq: int, Nk: int, d: int, dv: int, itemsize: int, mask: Mask, block: int) -> int:
    """Tiles under a mask: Q and O once, K and V once a visited tile. The mask is computed from the places, not read."""
    return itemsize * (Nq * (d + dv) + visited_keys(Nq, Nk, mask, block) * (d + dv))


def linear_bytes(Nq: int, Nk: int, d: int, dv: int, itemsize: int) -> int:
    """Linear attention: K and V once into a d × dv state and its norm, which is written and read; then Q and O once."""
    return itemsize * ((Nq + Nk) * (d + dv) + 2 * d * (dv + 1))


def features_bytes(Nq: int, Nk: int, d: int, dv: int, itemsize: int, features: int) -> int:
    """Random features: as linear attention, with a state of ``features`` × dv, and the d × features matrix twice."""
    return itemsize * ((Nq + Nk) * (d + dv) + 2 * features * (dv + 1) + 2 * d * features)


def low_rank_bytes(Nq: int, Nk: int, d: int, dv: int, itemsize: int, rank: int) -> int:
    """Low rank: the rank × Nk projection, K and V once; what it makes of them written and read; Q and O once."""
    return itemsize * ((Nq + Nk) * (d + dv) + rank * Nk + 2 * rank * (d + dv))
