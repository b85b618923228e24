"""Explorer: the tiles that a causal or a window mask skips, cuts and leaves whole, for any two lengths."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from flashlib.algorithms.masks import visible
from flashlib.algorithms.variants import window as window_mask

from .tiles import tile_kinds, tile_map
from .variants import tile_kind


class Counts(NamedTuple):
    """Tiles skipped, partial and full; scores computed in the last two, scores seen; rows that see no key."""

    skip: int
    partial: int
    full: int
    computed: int
    seen: int
    empty: int


def counts(Sq: int, Sk: int, tile: int, window: int | None = None) -> Counts:
    """What the mask does to the tiles of an Sq × Sk score matrix, causal and aligned at the bottom right.

    Parameters
    ----------
    tile : rows and keys of a tile
    window : how many keys a query sees at most, the last ones; None for all
    """
    kinds = tile_kinds(Sq, Sk, tile, tile, True, _kind(Sq, Sk, window))
    area = {t: (t[1] - t[0]) * (t[3] - t[2]) for t in kinds}
    number = [sum(kind == what for kind in kinds.values()) for what in ("skip", "partial", "full")]
    see = visible(Sq, Sk, True)
    if window is not None:
        see = window_mask(window, Sk - Sq)(np.arange(Sq)[:, None], np.arange(Sk)[None, :])
    computed = sum(area[t] for t, kind in kinds.items() if kind != "skip")
    return Counts(number[0], number[1], number[2], computed, int(see.sum()), int((~see.any(1)).sum()))


def _kind(Sq: int, Sk: int, window: int | None) -> Callable[[int, int, int, int], str] | None:
    if window is None:
        return None
    mask = window_mask(window, Sk - Sq)
    return lambda *tile: tile_kind(mask, *tile)


def draw(Sq: int, Sk: int, tile: int, window: int | None = None) -> Figure:
    """Draw the map of the tiles and where each query's keys begin and end; arguments as in `counts`."""
    title = _title(counts(Sq, Sk, tile, window))
    return tile_map(Sq, Sk, tile, tile, True, title=title, kind=_kind(Sq, Sk, window), window=window, steady=True)


def describe(Sq: int, Sk: int, tile: int, window: int | None = None) -> str:
    """The picture that `draw` makes, in words."""
    n, shift = counts(Sq, Sk, tile, window), Sk - Sq
    sight = "up to key i" + (f" + {shift}" if shift > 0 else f" − {-shift}" if shift else "")
    last = "" if window is None else f", the last {window} of them"
    empty = f" The first {n.empty} rows see no key." if n.empty else ""
    return (
        f"Score matrix of {Sq} queries by {Sk} keys in tiles of {tile}. Query i sees the keys {sight}{last}.{empty} "
        f"{n.skip} tiles are skipped, {n.partial} partial, {n.full} full. Of {n.computed} scores computed "
        f"{n.computed - n.seen} are thrown away. {_title(n)}."
    )


def _title(n: Counts) -> str:
    if n.skip + n.partial == 0:
        return f"All {n.full} tiles are computed, and none needs a mask"
    lost = f"; of the scores computed {1 - n.seen / n.computed:.0%} are thrown away" if n.computed else ""
    return f"{n.skip} of {n.skip + n.partial + n.full} tiles are skipped{lost}"
