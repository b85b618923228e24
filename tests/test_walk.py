"""The walk over the toy's tiles: what is drawn is what chapter 04's loops hold at that moment."""

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

from flashlib import toy
from flashlib.grading.exactness import Problem
from flashlib.instruments.pipelines import flash_sram
from flashlib.show import walk


def test_sram_holds_what_the_memory_machine_would_count():
    for step in range(9):
        assert walk.moment(*toy(), step).numbers == flash_sram(2, 2, d=4, itemsize=8) // 8


def test_the_last_tile_of_a_row_of_tiles_finishes_its_rows():
    every = [walk.moment(*toy(), step) for step in range(9)]
    assert [now.last for now in every] == [False, False, True] * 3
    o = np.concatenate([now.acc / now.l for now in every if now.last])
    Problem(*toy()).compare(o=o).raise_if_wrong()


def test_row_three_is_the_course_s_row_three():
    assert [round(float(walk.moment(*toy(), step).l[1, 0]), 4) for step in (3, 4, 5)] == [1.3679, 1.8711, 2.0562]


@pytest.mark.parametrize(("step", "block"), [(0, 2), (8, 2), (3, 4), (0, 6)])
def test_the_picture_shows_the_scores_of_one_tile_and_its_words_give_the_state(step, block):
    now = walk.moment(*toy(), step, block)
    grid = walk.draw(*toy(), step, block).axes[0]
    numbers = [t.get_text() for t in grid.texts if t.get_text() != "gone"]
    assert numbers == [f"{x:.3g}".replace("-", "−") for x in now.s.ravel()]
    assert len(grid.texts) - len(numbers) == step
    words = walk.describe(*toy(), step, block)
    assert walk.draw(*toy(), step, block).get_suptitle().replace("\n", " ") in words
    assert f"Tile {step + 1} of " in words
    assert all(f"row {i}: " in words for i in range(now.i0, now.i1)) and f"l {now.l[0, 0]:.4g}" in words


def test_a_tile_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="there are 9 tiles"):
        walk.moment(*toy(), 9)
