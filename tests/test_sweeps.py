"""The map of tile moves: what it draws is what the memory machine recorded."""

import math

import numpy as np
import pytest

from flashlib.instruments.traffic import MemoryMachine
from flashlib.show import sweeps


def read_twice_write_once(n=12, block=3, record=True):
    machine = MemoryMachine(math.inf, record=record)
    s, p = machine.hbm("S", np.arange(n, dtype=np.float32)), machine.hbm_empty("P", (n,), np.float32)
    with machine.kernel("softmax"):
        for j in range(0, n, block):
            machine.load(s, slice(j, j + block))
        for j in range(0, n, block):
            machine.store(p, slice(j, j + block), machine.load(s, slice(j, j + block)))
    return machine.report()


def test_every_recorded_move_is_drawn_once_at_its_place():
    report = read_twice_write_once()
    steps = sweeps.moves(report)
    assert steps[:2] == [("load", "S", 0, 3), ("load", "S", 3, 6)]
    assert steps[4:6] == [("load", "S", 0, 3), ("store", "P", 0, 3)]
    ax = sweeps.figure({"two": report}, title="two sweeps").axes[0]
    drawn = [(tile.get_x(), tile.get_x() + tile.get_width(), tile.get_y()) for tile in ax.patches]
    assert drawn == [(start, stop, time) for time, (_, _, start, stop) in enumerate(steps)]


def test_a_sweep_begins_where_the_first_element_is_loaded():
    assert sweeps.sweeps(sweeps.moves(read_twice_write_once())) == [(0, 4), (4, 12)]


def test_panels_share_the_time_axis():
    long, short = read_twice_write_once(), read_twice_write_once(6)
    figure = sweeps.figure(
        {"long": long, "short": short}, title="one ends sooner", labels={"long": ("first", "second")}
    )
    assert [ax.get_ylim() for ax in figure.axes] == [(12, 0), (12, 0)]
    assert [text.get_text() for text in figure.axes[0].texts] == ["first", "second"]


@pytest.mark.parametrize("options", [{"record": False}, {}])
def test_nothing_to_draw_is_an_error(options):
    report = read_twice_write_once(**options)
    with pytest.raises(ValueError, match="moved none of"):
        sweeps.figure({"nothing": report}, title="nothing", tensors=("S", "P") if options else ("Q",))
