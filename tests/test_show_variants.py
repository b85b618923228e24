"""Pictures of masks and of errors: counts and places are computed from what is drawn."""

import numpy as np

from flashlib.algorithms import variants as roads
from flashlib.show import variants


def test_a_tile_is_skipped_cut_or_full():
    mask = roads.window(5)
    assert variants.tile_kind(mask, 0, 4, 4, 8) == "skip"
    assert variants.tile_kind(mask, 4, 8, 4, 8) == "partial"
    assert variants.tile_kind(mask, 4, 5, 2, 4) == "full"


def test_panels_count_as_masked_does():
    panels = {"window": roads.window(6), "stripes": roads.blocks(roads.strided(5, 1, 2), 4)}
    fig = variants.masks(panels, 20, 4, title="what is left")
    x = np.ones((20, 2))
    for ax, mask in zip(fig.axes, panels.values(), strict=True):
        done = roads.masked(x, x, x, mask, block=4)
        assert ax.get_title(loc="left").endswith(f"{done.tiles} of {done.of} tiles")
        assert len(ax.patches) == done.of and sum(p.get_hatch() == "xx" for p in ax.patches) == done.of - done.tiles


def test_errors_stand_where_they_belong():
    rows = {"window": {"mild": 0.5, "local": 1e-3}, "linear": {"mild": 0.1, "local": 0.9}}
    fig = variants.errors(rows, xlabel="error", title="t", line=("the mean of V", 1.0))
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == list(rows) and ax.get_xscale() == "log"
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    assert dots == [(0.5, 0), (1e-3, 0), (0.1, 1), (0.9, 1)]
