"""The picture of the order in which programs visit tiles."""

from flashlib.show import launch_order


def texts(fig):
    ax = fig.axes[0]
    return [t.get_text() for t in ax.texts], [t.get_text() for t in ax.get_yticklabels()]


def test_every_visit_has_its_step_and_every_row_of_tiles_its_program():
    seen = {0: (4, [0, 4, 8]), 1: (0, [0, 4])}
    steps, rows = texts(launch_order.visits(7, 10, 4, 4, True, seen, title="longest first"))
    assert steps == ["1", "2", "3", "1", "2"]
    assert rows == ["program 1\nrows 0–3", "program 0\nrows 4–6"]


def test_numbers_stand_in_the_middle_of_ragged_tiles():
    fig = launch_order.visits(7, 10, 4, 4, False, {0: (4, [8])}, title="one tile")
    assert fig.axes[0].texts[0].get_position() == (9.0, 5.5)
