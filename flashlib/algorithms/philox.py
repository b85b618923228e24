"""Dropout without memory: a random number that depends on (seed, batch, head, row, col) and on nothing else.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4)
turns a counter and a key into four random words. Forward and backward, in any tile size, on any machine, ask for the
same (row, col) and get the same answer, so no mask of size N×N is ever kept. Triton's ``tl.philox`` is the same
function. The arithmetic below is written for int64, which NumPy arrays and torch tensors share.
"""

from typing import Any

import numpy as np

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57  # the two odd multipliers and the two key increments of the paper
_INCREMENTS = 0x9E3779B9, 0xBB67AE85


def philox(counter: tuple[Any, Any, Any, Any], seed: int, rounds: int = 10) -> tuple[Any, Any, Any, Any]:
    """Four random 32-bit words for each counter.

    Parameters
    ----------
    counter : tuple of four int64 arrays or tensors, or ints
        Broadcastable; each value is taken modulo 2³².
    seed : int
        64-bit key; its low and high halves are the two key words.
    rounds : int
        10 in the standard generator.

    Returns
    -------
    tuple of four int64 arrays or tensors with values in [0, 2³²)
    """
    c0, c1, c2, c3 = (c & _LOW for c in counter)
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(rounds):
        # 32 × 32 → 64 bits. int64 wraps around, which leaves all 64 bits right; the shift copies the sign, so mask.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((right >> 32) & _LOW) ^ c1 ^ k0,
            right & _LOW,
            ((left >> 32) & _LOW) ^ c3 ^ k1,
            left & _LOW,
        )
        k0, k1 = (k0 + _INCREMENTS[0]) & _LOW, (k1 + _INCREMENTS[1]) & _LOW
    return c0, c1, c2, c3


def keep(seed: int, dropout_p: float, batch: Any, head: Any, rows: Any, cols: Any) -> Any:
    """True where the probability of (batch, head, row, col) is kept.

    Parameters
    ----------
    seed : int
        64-bit seed.
    dropout_p : float in [0, 1)
        A word below ⌊p·2³²⌋ is dropped: an integer comparison, so every machine decides alike.
    batch, head, rows, cols : int64 arrays or tensors
        Indices that broadcast to the shape wanted; head is the *query* head.
    """
    word, _, _, _ = philox((cols, rows, head, batch), seed)
    return word >= threshold(dropout_p)


def threshold(dropout_p: float) -> int:
    """The smallest 32-bit word that is kept at dropout probability p."""
    return int(dropout_p * 2**32)


def keep_mask(seed: int, dropout_p: float, B: int, H: int, Sq: int, Sk: int) -> np.ndarray:
    """The whole mask as a NumPy boolean array (B, H, Sq, Sk): for the oracle and for looking at; N×N in memory."""
    b, h, i, j = np.ogrid[:B, :H, :Sq, :Sk]
    # broadcast first: NumPy's scalars of size 1 would warn when they wrap around, arrays do not
    b, h, i, j = (np.broadcast_to(x.astype(np.int64), (B, H, Sq, Sk)) for x in (b, h, i, j))
    return np.asarray(keep(seed, dropout_p, b, h, i, j))
