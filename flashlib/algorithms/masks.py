"""Which keys a query may see. Causal is aligned to the bottom right: row i sees keys j ≤ i + (Sk − Sq)."""

from typing import Literal

import numpy as np

Kind = Literal["skip", "partial", "full"]


def visible(Sq: int, Sk: int, causal: bool = False) -> np.ndarray:
    """Boolean mask of shape (Sq, Sk): True where query i may look at key j.

    Parameters
    ----------
    Sq, Sk : int
        Number of queries and of keys.
    causal : bool
        If True, row i sees the keys j ≤ i + (Sk − Sq): the last query sees every key. With more queries than
        keys, the first Sq − Sk rows see nothing at all.
    """
    if not causal:
        return np.ones((Sq, Sk), dtype=bool)
    return np.arange(Sk)[None, :] <= np.arange(Sq)[:, None] + (Sk - Sq)


def tile_kind(i0: int, i1: int, j0: int, j1: int, Sq: int, Sk: int, causal: bool = False) -> Kind:
    """What the mask does to the tile of rows i0:i1 and keys j0:j1.

    Returns
    -------
    "skip" | "partial" | "full"
        "skip": no row of the tile sees any of its keys, so it need not be loaded. "full": every row sees every key,
        so no mask is needed. "partial": the diagonal runs through it.
    """
    if not causal:
        return "full"
    shift = Sk - Sq
    if j0 > i1 - 1 + shift:  # the first key lies beyond what even the last row sees
        return "skip"
    if j1 - 1 <= i0 + shift:  # the last key is seen even by the first row
        return "full"
    return "partial"


def tiles(Sq: int, Sk: int, block_q: int, block_k: int, causal: bool = False) -> list[tuple[int, int, int, int, Kind]]:
    """Every tile (i0, i1, j0, j1, kind) of the score matrix, row of tiles by row of tiles; ragged edges are shorter."""
    return [
        (i0, i1, j0, j1, tile_kind(i0, i1, j0, j1, Sq, Sk, causal))
        for i0, i1 in spans(Sq, block_q)
        for j0, j1 in spans(Sk, block_k)
    ]


def spans(n: int, block: int) -> list[tuple[int, int]]:
    """Cut 0…n into pieces of ``block``; the last one may be shorter. n = 0 gives no piece.

    Raises
    ------
    ValueError
        If ``block`` is not a positive integer.
    """
    if block < 1:
        raise ValueError(f"a tile needs at least 1 row, got a block of {block}")
    return [(start, min(start + block, n)) for start in range(0, n, block)]


def parts(n: int, count: int) -> list[tuple[int, int]]:
    """Cut 0…n into ``count`` pieces of equal length; the last ones may be shorter, or empty.

    Raises
    ------
    ValueError
        If ``count`` is not a positive integer.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    size = -(-n // count)
    return [(min(p * size, n), min((p + 1) * size, n)) for p in range(count)]
