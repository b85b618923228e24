"""Figures: one visual language, readable without colour and without sight, shown once, in every front end."""

import ast
import base64
import html
import io
import itertools
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

from flashlib.algorithms.toy import ROW, TILE, toy
from flashlib.show import bundle as bundles
from flashlib.show import curves, display, explorer, labels, matrices, roofline, shade, streams, style, units
from flashlib.show.frame import canvas

ALT = 'Two lines: "naive" rises as N², tiled as N; at 4096 < 1/16.'
SHOW = Path(style.__file__).parent


class Pictures(HTMLParser):
    """The img tags of a page, and whether every tag that was opened was closed."""

    def __init__(self, page):
        super().__init__()
        self.images, self.open, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def a_figure():
    fig, ax = canvas(title="A line")
    ax.plot([1, 2], [1, 2])
    return fig


@pytest.fixture
def sent(monkeypatch):
    """What reaches the front end of a kernel: a list of (data, metadata)."""
    import IPython.display

    out = []
    monkeypatch.delenv("FLASHLIB_STATIC", raising=False)
    for module in (bundles, explorer):
        monkeypatch.setattr(module, "shell", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", lambda data, raw, metadata: out.append((data, metadata)))
    return out


def widget_of(data):
    import ipywidgets

    model = data[explorer.WIDGET]["model_id"]
    instances = getattr(ipywidgets.Widget, "_instances", None) or getattr(ipywidgets.widgets.widget, "_instances", None)
    return (instances or ipywidgets.Widget.widgets)[model]


# --- the bundle


def test_show_sends_one_bundle_with_escaped_alt_text(sent):
    display.show(a_figure(), alt=ALT, caption="4 < 5 & so on")
    [(data, metadata)] = sent
    assert set(data) == {"text/html", "image/png", "text/plain"}
    page = Pictures(data["text/html"])
    assert not page.open
    [image] = page.images
    assert image["alt"] == ALT and ALT not in data["text/html"]  # escaped: quotes and < would break the tag
    assert image["src"] == "data:image/png;base64," + data["image/png"]
    assert page.text == "4 < 5 & so on" and html.escape(page.text) in data["text/html"]
    assert data["text/plain"].startswith(ALT)
    assert metadata["image/png"]["alt"] == ALT


def test_png_is_900_pixels_wide_and_small(sent):
    from PIL import Image

    display.show(a_figure(), alt=ALT)
    png = base64.b64decode(sent[0][0]["image/png"])
    assert Image.open(io.BytesIO(png)).width == 900
    assert len(png) < 60_000


@pytest.mark.parametrize("alt", ["", "   \n ", "a plot", "figure of memory"])
def test_alt_that_describes_nothing_is_refused(sent, alt):
    with pytest.raises(ValueError, match="cannot see"):
        display.show(a_figure(), alt=alt)
    assert not sent


def test_alt_is_required(sent):
    with pytest.raises(TypeError):
        display.show(a_figure())
    with pytest.raises(TypeError, match="string"):
        display.show(a_figure(), alt=None)
    with pytest.raises(TypeError, match="figure"):
        display.show([1, 2], alt=ALT)


def test_show_closes_the_figure_so_that_no_backend_shows_it_again(sent):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    fig, ax = plt.subplots()
    display.show(ax, alt=ALT)  # axes will do
    assert plt.get_fignums() == before and not plt.fignum_exists(fig.number)
    curves.loglog({"naive": ([1, 2], [1, 4])}, xlabel="N", ylabel="B", title="ours never enter pyplot")
    assert plt.get_fignums() == before


def test_without_ipython_the_alt_text_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(bundles, "shell", lambda: None)
    display.show(a_figure(), alt=ALT, caption="below")
    assert capsys.readouterr().out == f"{ALT}\nbelow\n"


# --- explorers


def draw_block(block):
    return streams.figure(toy().q[ROW], block, title=f"tiles of {block}")


def alt_block(block):
    return f"Running maximum of one row, streamed in tiles of {block}."


def test_explore_puts_a_widget_in_front_of_the_picture(sent):
    display.explore(draw_block, alt=alt_block, caption="c", block=display.choose([1, 2, 4], start=2, label="tile"))
    [(data, _)] = sent
    assert {explorer.WIDGET, "text/html", "image/png", "text/plain"} == set(data)
    assert Pictures(data["text/html"]).images[0]["alt"] == alt_block(2)
    controls, picture = widget_of(data).children
    [slider] = controls.children
    assert slider.description == "tile" and slider.value == 2
    assert picture.value == data["text/html"]
    slider.value = 4
    assert Pictures(picture.value).images[0]["alt"] == alt_block(4)
    assert Pictures(picture.value).images[0]["src"] != Pictures(data["text/html"]).images[0]["src"]


def test_explore_shows_later_errors_as_text_and_raises_the_first(sent):
    def draw(n):
        if n == 0:
            raise ZeroDivisionError("no <keys>")
        return a_figure()

    display.explore(draw, alt=ALT, n=[1, 0])
    controls, picture = widget_of(sent[0][0]).children
    controls.children[0].value = 0
    assert "ZeroDivisionError: no <keys>" in Pictures(picture.value).text and "role=" in picture.value
    controls.children[0].value = 1
    assert Pictures(picture.value).images
    with pytest.raises(ZeroDivisionError):
        display.explore(draw, alt=ALT, n=[0, 1])
    assert len(sent) == 1


def test_every_control_has_a_description_and_the_right_kind(sent):
    import ipywidgets

    given = ipywidgets.IntSlider(value=3)
    display.explore(
        lambda **_: a_figure(), alt=ALT, n=range(1, 5), chip=["T4", "A100"], causal=False, given=given
    )  # fmt: skip
    made = widget_of(sent[0][0]).children[0].children
    assert [w.description for w in made] == ["n", "chip", "causal", "given"]
    assert [type(w).__name__ for w in made] == ["SelectionSlider", "Dropdown", "Checkbox", "IntSlider"]
    assert made[3] is given


@pytest.mark.parametrize("static", [True, False])
def test_no_widget_in_static_pages_or_outside_a_kernel(sent, monkeypatch, static):
    if static:
        monkeypatch.setenv("FLASHLIB_STATIC", "1")
    else:
        monkeypatch.setattr(explorer, "shell", lambda: SimpleNamespace())
    display.explore(draw_block, alt=alt_block, block=[1, 2])
    assert set(sent[0][0]) == {"text/html", "image/png", "text/plain"}


def test_explore_refuses_what_it_cannot_show(sent):
    for bad, error in (({}, ValueError), ({"n": 3}, TypeError), ({"n": []}, ValueError)):
        with pytest.raises(error):
            display.explore(lambda **_: a_figure(), alt=ALT, **bad)
    with pytest.raises(ValueError, match="not one of"):
        display.choose([1, 2], start=3)
    with pytest.raises(TypeError, match="return fig"):
        display.explore(lambda n: None, alt=ALT, n=[1])
    with pytest.raises(ValueError, match="cannot see"):
        display.explore(lambda n: a_figure(), alt=lambda n: "", n=[1])


# --- tables


def test_table_marks_its_headers_and_prints_in_columns(sent):
    display.table([["naive", 10], ["<tiled>", 2.5]], ["method", "MiB"], caption="Peak & more")
    data = sent[0][0]
    page = data["text/html"]
    assert page.count('scope="col"') == 2 and page.count('scope="row"') == 2
    assert "<caption" in page and "Peak &amp; more" in page and "&lt;tiled&gt;" in page
    lines = data["text/plain"].splitlines()
    assert lines[0] == "Peak & more"
    assert lines[3:] == ["naive     10", "<tiled>  2.5"]
    with pytest.raises(ValueError, match="row 1"):
        display.table([[1, 2], [1]], ["a", "b"])


@pytest.mark.parametrize(
    "text", ["12", "−3.5", "1.52 GiB", "1.2e-07", "989 TFLOP/s", "3 of 15", "2 × 64", "~ 40 %", "1,024", "0 1"]
)
def test_numbers_and_their_units_stand_to_the_right(sent, text):
    display.table([["a", text]], ["name", "x"])
    assert f'<td style="text-align:right;white-space:nowrap">{text}</td>' in sent[0][0]["text/html"]


@pytest.mark.parametrize("text", ["00 · Start here", "05 · Backward", "2 kernels instead of 5", "o", "−inf", "3D view"])
def test_words_stand_to_the_left(sent, text):
    display.table([[text, 1]], ["name", "x"])
    assert f'<th scope="row" style="text-align:left;white-space:nowrap">{text}</th>' in sent[0][0]["text/html"]


def test_a_short_caption_is_not_broken_to_a_narrow_table(sent):
    for caption, broken in (("c" * 79, False), ("c" * 80, True)):
        display.table([[1]], ["x"], caption)
        assert ("nowrap" not in sent[-1][0]["text/html"].partition("</caption>")[0]) == broken


# --- the visual language


def test_every_name_has_colour_marker_line_and_hatch():
    names = {"Q", "K", "V", "O", "S", "P", "masked", "HBM", "SRAM", "naive", "tiled", "sdpa", "oracle", "wrong"}
    assert names <= set(style.LOOK)
    for table in (style.COLOR, style.MARKER, style.LINE, style.HATCH):
        assert set(table) == set(style.LOOK)
    okabe_ito = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert {c for name, c in style.COLOR.items() if name != "masked"} <= okabe_ito


def test_things_of_one_group_differ_without_colour_too():
    for group in style.GROUPS:
        for a, b in itertools.combinations(group, 2):
            assert style.COLOR[a] != style.COLOR[b]
            same = (style.MARKER[a], style.HATCH[a], style.LINE[a]) == (style.MARKER[b], style.HATCH[b], style.LINE[b])
            assert not same, (a, b)


# Viénot, Brettel, Mollon 1999: what dichromats see, in linear RGB
DICHROMAT = {
    "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def lab(color, matrix=None):
    c = np.asarray(matplotlib.colors.to_rgb(color))
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    if matrix is not None:
        linear = np.clip(np.asarray(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / to_xyz.sum(1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", DICHROMAT)
def test_colours_of_a_group_stay_apart_for_dichromats(sight):
    just_noticeable = 2.3  # ΔE*ab (Mahy, Van Eycken, Oosterlinck 1994)
    for group in style.GROUPS:
        seen = {name: lab(style.COLOR[name], DICHROMAT[sight]) for name in group}
        for a, b in itertools.combinations(group, 2):
            assert np.linalg.norm(seen[a] - seen[b]) > 4 * just_noticeable, (a, b)


def test_looks_are_fixed_by_name_and_never_alike():
    names = ["naive", "tiled", "tiled, causal", "tiled (backward)", "mine", "yours", "Flash, fp16", "K"]
    found = style.looks(names)
    assert list(found) == names
    assert found["naive"] == style.LOOK["naive"] and found["tiled"] == style.LOOK["tiled"]
    assert found["tiled, causal"].color == found["Flash, fp16"].color == style.COLOR["tiled"]
    keys = [(look.color, look.marker) for look in found.values()]
    assert len(set(keys)) == len(keys)
    many = style.looks(f"run {i}" for i in range(12))
    assert len(many) == 12


@pytest.mark.parametrize("name", style.LOOK)
def test_numbers_in_cells_can_be_read_on_every_shade(name):
    steps = [shade.shades(name)(x) for x in np.linspace(0, 1, 101)]
    assert min(shade.contrast(shade.ink(color), color) for color in steps) >= 4.5
    light = [shade.luminance(color) for color in steps]
    assert all(a >= b for a, b in itertools.pairwise(light))  # darker means more, in print too


def test_contrast_is_the_published_one():
    assert shade.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert shade.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(
    "written, want",
    [
        (units.nbytes(0), "0 B"),
        (units.nbytes(1023.9 * 1024), "1 MiB"),
        (units.nbytes(1536), "1.5 KiB"),
        (units.nbytes(40 * 2**30), "40 GiB"),
        (units.count(512), "512"),
        (units.count(1024), "1k"),
        (units.count(1536), "1.5k"),
        (units.count(131072), "128k"),
        (units.count(1000), "1,000"),
        (units.words(26_352), "26 thousand"),
        (units.words(7_812_345), "7.8 million"),
        (units.words(812), "812"),
        (units.seconds(0.0032), "3.2 ms"),
        (units.seconds(2), "2 s"),
        (units.seconds(5e-8), "50 ns"),
        (units.flop_rate(312e12), "312 TFLOP/s"),
        (units.number(0.25), "0.25"),
    ],
)
def test_units(written, want):
    assert written == want


# --- the figures

NS = [512, 1024, 2048, 4096]
CHIPS = [
    SimpleNamespace(name=f"chip {i}", bandwidth=b, flops={"float16": f})
    for i, (b, f) in enumerate([(3e11, 6e13), (2e12, 3e14), (3.3e12, 1e15)])
]
SCORES = toy().q @ toy().k.T / 2
SEEN = np.tril(np.ones((6, 6), bool))


def make_loglog():
    return curves.loglog(
        {
            "naive": (NS, [8 * n * n for n in NS]),
            "tiled": (NS, [512 * n for n in NS]),
            "sdpa": (NS, [500 * n for n in NS]),
        },
        xlabel="sequence length N",
        ylabel="memory",
        title="Memory: the four steps grow with the square of N, and this long title needs a second line to be seen",
        theory={"closed form": (NS, [512 * n for n in NS])},
        limits={"small GPU": 15 * 2**30, "large GPU": 40 * 2**30},
        marks={"here": 1000, "and here": 1100},
    )


def make_bars():
    kernels = {f"{i} kernel": {"read": 1e6 * (i + 1), "written": 64e6} for i in range(7)}
    return curves.bars(kernels, xlabel="bytes", title="Kernel by kernel")


def make_several():
    s = np.where(SEEN, SCORES, -np.inf)
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    parts = [
        {"a": s, "row": ROW},
        {"a": p, "name": "P", "row": ROW},
        {"a": p @ toy().v, "name": "O"},
    ]
    return matrices.several(parts, title="Row 3 through the four steps", between=["softmax", "× V"])


FIGURES = {
    "loglog": make_loglog,
    "bars": make_bars,
    "heat": lambda: matrices.heat(SCORES, title="Scores", block=TILE, row=ROW),
    "heat, large": lambda: matrices.heat(np.outer(np.arange(40.0), np.arange(50.0)), title="No numbers here"),
    "several": make_several,
    "tile map": lambda: matrices.tile_map(37, 53, 8, 16, True),
    "tile map, many": lambda: matrices.tile_map(2048, 2048, 64, 64, True),
    "tile map, flat": lambda: matrices.tile_map(16, 1024, 16, 128, True),
    "roofline": lambda: roofline.figure(CHIPS, [("four steps", 4e9, 2e8), ("flash", 4e9, 3e7)], title="Roofs"),
    "roofline, measured": lambda: roofline.figure(CHIPS[0], {"naive": (1e9, 1e9, 1.0)}, title="One chip"),
    "streams": lambda: streams.figure(SCORES[ROW], TILE),
    "streams, long": lambda: streams.figure(np.linspace(0, 9, 200), 16),
    "streams, masked": lambda: streams.figure([-np.inf, -np.inf, 1, 0, -3, 2.5], 2),
}


def texts_of(fig):
    """Every text that is drawn, with its box in pixels."""
    fig.draw_without_rendering()
    renderer = fig.canvas.get_renderer()
    # ticks outside the limits exist, with a text, but are not drawn
    outside = set()
    for axis in (axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        outside |= {tick.label1 for tick in axis.majorTicks if not low <= tick.get_loc() <= high}
    for artist in fig.findobj(matplotlib.text.Text):
        drawn = artist.get_visible() and artist.get_text().strip() and artist not in outside
        ax = artist.axes
        if drawn and (ax is None or ax.axison):
            yield artist, artist.get_window_extent(renderer)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_can_be_read_from_the_back_of_a_room(name):
    before = dict(matplotlib.rcParams)
    fig = FIGURES[name]()
    assert dict(matplotlib.rcParams) == before
    assert fig._suptitle is not None and fig._suptitle.get_text()
    found = list(texts_of(fig))
    for artist, _box in found:
        assert artist.get_fontsize() >= 13 - 1e-9, artist
    for (a, x), (b, y) in itertools.combinations(found, 2):
        overlap = min(x.x1, y.x1) - max(x.x0, y.x0), min(x.y1, y.y1) - max(x.y0, y.y0)
        assert min(overlap) < 3, f"{a.get_text()!r} lies on {b.get_text()!r}"
    for artist, box in found:
        inside = box.x0 > -3 and box.y0 > -3 and box.x1 < fig.bbox.width + 3 and box.y1 < fig.bbox.height + 3
        assert inside, f"{artist.get_text()!r} is cut off"
    png = bundles.encoded(fig)
    assert len(png) < 60_000


def test_loglog_writes_the_measured_slope():
    fig = curves.loglog({"naive": (NS, [7.0 * n**1.5 for n in NS])}, xlabel="N", ylabel="B", title="t")
    assert any(artist.get_text() == "naive\nslope 1.50" for artist, _ in texts_of(fig))
    fig = curves.loglog(
        {"naive": (NS, [2.0 * n for n in NS])}, xlabel="N", ylabel="B", title="t", last=True, slopes=False
    )
    assert any(artist.get_text() == "naive: 8 KiB" for artist, _ in texts_of(fig))  # the last of them, 2 · 4096
    for bad in ([1, 2, 0, 4], [1, 2, np.nan, 4], [1, 2]):
        with pytest.raises(ValueError, match="naive"):
            curves.loglog({"naive": (NS, bad)}, xlabel="N", ylabel="B", title="t")


def test_bars_take_what_the_memory_machine_counted():
    counted = SimpleNamespace(read={"Q": 3, "K": 4}, written={"S": 5})
    fig = curves.bars({"QK": counted}, xlabel="bytes", title="t")
    assert sum(patch.get_width() for patch in fig.axes[0].patches) == 12


def test_heat_hatches_what_is_masked_and_numbers_the_rest():
    s = np.where(SEEN, SCORES, -np.inf)
    for a, visible in ((s, None), (SCORES, SEEN)):
        fig = matrices.heat(a, title="t", visible=visible)
        [hatched] = fig.axes[0].collections
        assert hatched.get_hatch() and len(hatched.get_paths()) == 5  # a run in every row but the last
        assert len(fig.axes[0].texts) == SEEN.sum()
    ax = matrices.heat(toy().k, title="t", name="dK").axes[0]
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("key j", "feature")
    with pytest.raises(ValueError, match="batch and head"):
        matrices.heat(np.zeros((2, 3, 4)), title="t")
    with pytest.raises(ValueError, match="row 9"):
        matrices.heat(SCORES, title="t", row=9)


def test_tile_map_counts_what_it_draws():
    kinds = matrices.tile_kinds(37, 53, 8, 16, True)
    visible = np.arange(53)[None, :] <= np.arange(37)[:, None] + 16
    for (i0, i1, j0, j1), kind in kinds.items():
        part = visible[i0:i1, j0:j1]
        assert kind == ("full" if part.all() else "partial" if part.any() else "skip")
    title = matrices.tile_map(37, 53, 8, 16, True)._suptitle.get_text()
    numbers = [list(kinds.values()).count(k) for k in ("skip", "partial", "full")]
    assert title == f"{numbers[0]} of {len(kinds)} tiles are skipped; {numbers[1]} need a mask, {numbers[2]} do not"
    band = matrices.tile_map(64, 64, 16, 16, kind=lambda i0, i1, j0, j1: "full" if i0 == j0 else "skip")
    assert band._suptitle.get_text().startswith("12 of 16 tiles are skipped")


def test_roofline_refuses_a_type_the_chip_has_not():
    with pytest.raises(ValueError, match=r"chip 0 has no bfloat16 peak; it has float16"):
        roofline.figure(CHIPS, [("a", 1, 1)], "bfloat16", title="t")


@pytest.mark.parametrize("block", [1, 2, 5, 16, 100])
def test_trace_is_the_two_pass_softmax(block):
    row = np.random.default_rng(3).normal(size=16) * 5
    row[[0, 7]] = -np.inf
    t = streams.trace(row, block)
    assert t.edges[0] == 0 and t.edges[-1] == 16
    for edge, m, l in zip(t.edges[1:], t.m[1:], t.l[1:], strict=True):
        top = row[:edge].max()
        assert m == top
        assert l == pytest.approx(np.exp(row[:edge] - top).sum() if top > -np.inf else 0.0, rel=16 * 2**-52)


@pytest.mark.parametrize(
    ("row", "block", "said"),
    [
        ([0, 1, 2, 1, 3, 2], 2, "Tiles of 2: each new maximum shrinks the sum of the past; at the end l = 2.06"),
        ([0, 1, 2, 1, 3, 2], 6, "One tile of 6: nothing to shrink; at the end l = 2.06"),
        ([0, 1, 2, 1, 3, 2], 100, "One tile of 6: nothing to shrink; at the end l = 2.06"),
        ([3, 2, 2, 1, 1, 0], 2, "Tiles of 2: no new maximum after the first, nothing to shrink; at the end l = 2.06"),
        (
            [-np.inf, -np.inf, 2, 1],
            2,
            "Tiles of 2: no new maximum after the first, nothing to shrink; at the end l = 1.37",
        ),
    ],
)
def test_the_picture_claims_no_shrinking_where_there_is_none(row, block, said):
    fig = streams.figure(row, block)
    assert streams.headline(row, block) == said == fig._suptitle.get_text().replace("\n", " ")
    labels = [label for ax in fig.axes for label in ax.get_legend_handles_labels()[1]]
    assert any("shrinks" in label for label in labels) == ("shrinks" in said)


def test_spread_keeps_order_and_distance():
    wanted = np.array([0.1, 0.11, 0.12, 0.9])
    sizes = np.full(4, 0.1)
    got = labels.spread(wanted, sizes, 0.0, 1.0)
    assert (np.diff(got) > 0.1 - 1e-12).all() and got[-1] == pytest.approx(0.9) and got[0] >= 0.05 - 1e-12
    assert labels.spread(np.array([0.5]), np.array([0.2]), 0, 1)[0] == 0.5


# --- imports


def test_importing_show_loads_nothing_heavy():
    code = (
        "import sys, flashlib.show as show; first = set(sys.modules)\n"
        "from flashlib.show import curves, display, matrices, roofline, streams, show, explore, table\n"
        "assert callable(show) and callable(explore) and callable(table)\n"
        "print(*[m for m in ('matplotlib', 'torch', 'triton', 'ipywidgets') if m in first])\n"
        "print(*[m for m in ('torch', 'triton', 'ipywidgets', 'IPython', 'matplotlib.pyplot') if m in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "agg"}
    )
    assert run.stdout == "\n\n", run.stdout + run.stderr


@pytest.mark.parametrize("path", sorted(SHOW.glob("*.py")), ids=lambda p: p.name)
def test_no_figure_carries_typed_in_data(path):
    """Constants that look like measurements (six digits, or 1e9 and more) have no place in a figure's code."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and path.name != "units.py":
            value = f"{node.value:g}" if isinstance(node.value, float) else str(node.value)
            assert len(value.strip("0").replace(".", "")) < 6, f"{path.name}:{node.lineno} {node.value}"
