"""The pictures of chapter 11 draw what they are given."""

from flashlib.show import ring


def test_every_rank_has_a_box_in_every_step():
    ax = ring.turns(3, lambda r, t: f"KV{(r - t) % 3}", title="turns").axes[0]
    assert [t.get_text() for t in ax.texts if t.get_text()] == [
        "KV0",
        "KV1",
        "KV2",
        "KV2",
        "KV0",
        "KV1",
        "KV1",
        "KV2",
        "KV0",
    ]
    assert len(ax.patches) == 9


def test_bars_show_work_and_waiting():
    fig = ring.work({"uneven": [[1, 0], [1, 4]], "even": [[2, 2], [2, 2]]}, title="work")
    heights = [[(b.get_y(), b.get_height()) for b in ax.patches] for ax in fig.axes]
    assert heights[0] == [(0, 1), (0, 1), (0, 0), (0, 4), (0, 4)]  # rank 0 waits for 4 in step 1
    assert heights[1] == [(0, 2)] * 4
