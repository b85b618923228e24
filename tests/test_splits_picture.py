"""The pictures of chapter 10 draw what they are given."""

from flashlib.show import splits
from flashlib.show.style import PAPER


def said(ax):
    return [t.get_text() for t in ax.texts]


def filled(ax):
    from matplotlib.colors import to_hex

    return sum(to_hex(p.get_facecolor()).upper() != PAPER for p in ax.patches)


def test_busy_processors_are_filled():
    fig = splits.processors(10, {"few": 3, "many": 12}, title="processors")
    assert [filled(ax) for ax in fig.axes] == [3, 10]
    assert [ax.get_title(loc="left") for ax in fig.axes] == [
        "few: 3 of 10 busy",
        "many: 10 of 10 busy, 2 programs wait",
    ]


def test_parts_say_what_they_hold():
    fig = splits.cut([10, 0, 5], 10, [(0, 4), (4, 8), (8, 10)], title="cut")
    assert said(fig.axes[0]) == ["4", "4", "2", "empty", "empty", "empty", "4", "1", "empty"]


def test_pages_say_whose_they_are():
    ax = splits.pages([[3, 0], [1]], [6, 4], 4, 5, title="pages").axes[0]
    assert said(ax) == ["0\n#0", "0\n#1", "1\n#0"]
    assert sorted(p.get_height() for p in ax.patches[5:]) == [2, 4, 4] and filled(ax) == 3
