"""The picture of the two walks shows what the mask says."""

import pytest

from flashlib.algorithms.masks import tiles
from flashlib.show import triton_backward


@pytest.mark.parametrize("shape", [(80, 112, 16, 16), (53, 37, 16, 8), (6, 6, 2, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_every_walk_covers_exactly_the_tiles_that_are_not_skipped(shape: tuple[int, ...], causal: bool) -> None:
    Sq, Sk, block_q, block_k = shape
    at = {(i0 // block_q, j0 // block_k): kind for i0, _, j0, _, kind in tiles(Sq, Sk, block_q, block_k, causal)}
    n_q, n_k = -(-Sq // block_q), -(-Sk // block_k)
    wanted = {tile for tile, kind in at.items() if kind != "skip"}
    for kernel in ("dkdv", "dq"):
        walked = set()
        for (x0, y0), (x1, y1) in triton_backward._walks(at, n_q, n_k, kernel):
            walked |= {(i, j) for i in range(int(y0), int(y1) + 1) for j in range(int(x0), int(x1) + 1)}
        assert walked == wanted
    fig = triton_backward.directions(Sq, Sk, block_q, block_k, causal=causal, title="walks")
    assert len(fig.axes) == 2
    assert f"{n_q} by {n_k} tiles" in triton_backward.say_directions(Sq, Sk, block_q, block_k, causal)
