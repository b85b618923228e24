"""The pictures of a launch over a matrix count what they draw."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle

from flashlib.show import programs


def texts(fig) -> list[str]:
    """Every word in the figure's axes, legend and margin."""
    legend = [t.get_text() for box in fig.legends for t in box.get_texts()]
    return [t.get_text() for ax in fig.axes for t in ax.texts] + [t.get_text() for t in fig.texts] + legend


@pytest.mark.parametrize(("shape", "down", "across"), [((37, 53), 3, 4), ((32, 48), 2, 3), ((1, 1), 1, 1)])
def test_grid_numbers_every_program_and_counts_the_lanes(shape, down, across) -> None:
    said = texts(programs.grid(shape, (16, 16), title="what to see"))
    assert [t for t in said if t.startswith("(")] == [f"({i}, {j})" for i in range(down) for j in range(across)]
    off = down * across * 256 - shape[0] * shape[1]
    assert f"elements: {shape[0] * shape[1]:,}" in said and f"lanes past\nthe edge: {off:,}" in said


def test_product_marks_one_tile_of_c_and_what_it_reads() -> None:
    fig = programs.product(70, 45, 53, (16, 16, 16), (1, 2), title="what to see")
    a, b, c = fig.axes
    assert [[t.get_text() for t in ax.texts] for ax in fig.axes] == [list("0123"), list("0123"), ["(1, 2)"]]

    def framed(ax) -> list[tuple[float, ...]]:
        return [p.get_bbox().bounds for p in ax.patches if isinstance(p, Rectangle) and p.get_linewidth() > 3]

    assert framed(a) == [(16 * t, 16, 16, 16) for t in range(4)]
    assert framed(b) == [(32, 16 * t, 16, 16) for t in range(4)]
    assert framed(c) == [(32, 16, 16, 16)]


@pytest.mark.parametrize(("order", "total"), [((0, 0, 1, 1), 512), ((1, 1, 0, 0), 512), ((0, 1, 0, 1), 256)])
def test_race_loses_a_part_when_both_load_first(order, total) -> None:
    assert programs.take_turns(order, (256, 256))[-1].total == total
    fig = programs.race({"some order": order}, (256, 256), title="what to see")
    said = [t.get_text() for t in fig.axes[0].texts]
    assert said[-1] == str(total) and sum(t.startswith("loads") for t in said) == 2


def test_race_wants_two_turns_for_each_program() -> None:
    with pytest.raises(ValueError, match="two turns"):
        programs.take_turns((0, 0, 1), (256, 256))
