"""The one example of the course: 6 tokens, 4 features, tiles of 2. Every chapter redoes these numbers."""

from typing import NamedTuple

import numpy as np

TILE = 2
ROW = 3  # the row we follow: its scores are 0 1 | 2 1 | 3 2, so the maximum rises in every tile


class Toy(NamedTuple):
    """Queries, keys and values of the toy example, each ``(6, 4)`` float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def toy() -> Toy:
    """Fresh copies of the toy example's q, k and v.

    Returns
    -------
    Toy
        Three float64 arrays of shape (6, 4). With d = 4 the scale is 1/√4 = 1/2, so every score is a multiple of 1/2.
        The last column of v is constant 1, so the last column of any right output is 1: it catches a wrong row sum.
    """
    q = [[1, 0, 0, 1], [0, 1, 1, 0], [1, -1, 0, 1], [2, 0, 0, 2], [0, 0, 2, -1], [-1, 1, 0, 1]]
    k = [[0, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 1], [2, 0, 1, 1], [1, -1, 0, 1]]
    v = [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [2, 0, 0, 1], [0, 2, 0, 1], [1, 1, 2, 1]]
    return Toy(*(np.array(x, dtype=np.float64) for x in (q, k, v)))
