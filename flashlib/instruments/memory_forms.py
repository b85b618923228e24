"""The most memory that attention holds at once, as formulas: the package's naive and its tiled way, in float32.

They count the same bytes as `peak.peak_memory` does on a CPU, forward alone or forward and backward; the tests hold one
against the other, to the byte. Multiply by batch · heads: both ways work on all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable

FLOAT = 4  # bytes
BLOCK = 256  # rows and keys of a tile in `flashlib.attention(impl="tiled")`
METHODS = ("naive", "tiled")


def extra_bytes(method: str, N: int, d: int, *, backward: bool = False) -> int:
    """Peak extra memory of one head in bytes, beyond the inputs, the result included.

    naive: three matrices of N × N (scores, their exponentials, probabilities), six where gradients are made. tiled: the
    result and lse, or, with gradients, o, dQ, dK, dV and three columns; and tiles that N does not enlarge. (For long
    inputs the forward's peak is its search for NaN in v, 7 bytes for each number of v.)

    Parameters
    ----------
    method : "naive" | "tiled", as `impl` of `flashlib.attention`
    N, d : tokens (queries and keys; from N = 512 on there are several tiles) and features

    Raises
    ------
    ValueError for another method.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if method == "naive":
        matrices, columns = (6, (3 * d + 1) * FLOAT + 1) if backward else (3, (3 * d + 4) * FLOAT + 2)
        return matrices * FLOAT * N * N + columns * N
    if backward:
        return FLOAT * ((4 * d + 3) * N + 2 * BLOCK**2 + 5 * d * BLOCK)
    looking_for_nan = (FLOAT + 3) * N * d  # before the first tile: |v| and three times a bool for each number of v
    return max(FLOAT * ((d + 1) * N + BLOCK**2 + (3 * d + 5) * BLOCK), looking_for_nan)


def input_bytes(N: int, d: int, *, backward: bool = False) -> int:
    """Bytes of one head's q, k and v, and of dO where gradients are made."""
    return FLOAT * (4 if backward else 3) * N * d


def longest(room: float, needed: Callable[[int], float]) -> int:
    """The largest N with ``needed(N)`` ≤ room; `needed` must not fall with N. 0 if not even N = 1 fits."""
    if needed(1) > room:
        return 0
    high = 2
    while needed(high) <= room:
        high *= 2
    low = high // 2
    while high - low > 1:  # needed(low) fits, needed(high) does not
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= room else (low, middle)
    return low
