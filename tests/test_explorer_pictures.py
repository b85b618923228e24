"""The explorers' pictures: what they show, draw and say equals the formulas and the algorithms, whatever is chosen."""

from __future__ import annotations

import itertools
import math
import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("agg")

from matplotlib.patches import Rectangle

from flashlib.algorithms import masks, variants
from flashlib.algorithms.decode_bytes import decode_bytes
from flashlib.algorithms.naive import four_steps
from flashlib.algorithms.toy import ROW, toy
from flashlib.instruments import bf16, closed_forms
from flashlib.instruments.machine import CHIPS
from flashlib.instruments.memory_forms import METHODS, extra_bytes, longest
from flashlib.show import formats, fusion, mask_tiles, memory_limit, merge_order, split_choice, style, tile_size, units
from flashlib.show.bundle import described
from flashlib.show.units import nbytes

# what the notebooks offer, at its ends and once between
CHOICES = {
    fusion: {"N": (512, 65536), "d": (32, 256), "chip": ("T4", "B200")},
    tile_size: {"chip": ("T4", "H200"), "d": (64, 256), "Br": (16, 1024), "Bc": (16, 256)},
    mask_tiles: {"Sq": (1, 32), "Sk": (1, 32), "tile": (2, 8), "window": (None, 1, 64)},
    formats: {"name": ("float32", "TF32", "bfloat16", "float16"), "score": (1, 150), "terms": (16, 2**26)},
    memory_limit: {"chip": ("T4", "B200"), "heads": (1, 512), "backward": (False, True)},
    split_choice: {"S": (1024, 262144), "splits": (1, 128), "chip": ("T4", "B200")},
    merge_order: {"order": ("left fold", "balanced tree", "random tree, seed 2"), "keys": (1, 2, 6)},
}
CASES = [
    pytest.param(module, dict(zip(ways, values, strict=True)), id=f"{module.__name__.split('.')[-1]}-{n}")
    for module, ways in CHOICES.items()
    for n, values in enumerate(itertools.product(*ways.values()))
]


def words(fig):
    """All texts of a figure, its title first."""
    texts = [fig.get_suptitle().replace("\n", " ")]
    for ax in fig.axes:
        texts += [ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel(), *(t.get_text() for t in ax.texts)]
    return texts


@pytest.mark.parametrize(("module", "values"), CASES)
def test_every_picture_is_titled_described_and_has_no_label_outside(module, values):
    fig, alt = module.draw(**values), described(module.describe(**values))
    title = fig.get_suptitle().replace("\n", " ")
    assert len(title) > 20 and title in alt, "the alt text says what the title says"
    assert not re.search(r"\bnan\b|None|np\.", alt + title)
    fig.draw_without_rendering()
    width, height = fig.bbox.size
    assert width <= 910 and height <= 640, "room on a slide"
    renderer = fig.canvas.get_renderer()
    for text in itertools.chain.from_iterable(ax.texts for ax in fig.axes):
        box = text.get_window_extent(renderer)
        inside = -2 <= box.x0 and box.x1 <= width + 2 and -2 <= box.y0 and box.y1 <= height + 2
        assert inside, f"{text.get_text()!r} is cut off: {box}"


# --- 02: the roof


def test_roof_has_the_counted_pipelines_at_their_intensities():
    N, d, sram = 2048, 64, CHIPS["A100"].sram_per_block
    four = closed_forms.four_steps_bytes(N, N, d, d, 2, sram_bytes=sram)
    fused = closed_forms.flash_bytes(N, N, d, d, *closed_forms.flash_tiles(sram, d, d, 2), 2, lse=False)
    flops = (4 * d + 6) * N * N
    ax = fusion.draw(N, d, "A100").axes[0]
    at = [
        line.get_xdata()[0] for line in ax.lines if line.get_marker() not in ("", "None") and len(line.get_xdata()) == 1
    ]
    assert at == pytest.approx([flops / four, flops / fused])
    for module, values in (case.values for case in CASES):
        if module is fusion:
            every = [p.roof.intensity for p in fusion.pipelines(**values).values()]
            assert fusion.SPAN[0] * 2 < min(every) and max(every) < fusion.SPAN[1] / 2, "the axis holds all marks"
    grounds = {(ax.get_xlim(), ax.get_ylim()) for c in CHIPS for ax in fusion.draw(N, d, c).axes}
    assert len(grounds) == 1, "chips can be compared: the axes stay"
    low, high = grounds.pop()[1]
    assert all(low < p.roof.attainable < high for c in CHIPS for p in fusion.pipelines(N, d, c).values())
    said = fusion.describe(N, d, "A100")
    assert nbytes(four) in said and nbytes(fused) in said
    assert ("over the ridge" in said) == (flops / fused > CHIPS["A100"].ridge("float16") > flops / four)


# --- 04: tiles


def test_tile_takes_the_sram_of_the_closed_form_and_the_tallest_just_fits():
    for chip, d, Bc in itertools.product(("T4", "A100", "RTX 4090"), (64, 128), (16, 64)):
        f = tile_size.fit(chip, d, 48, Bc)
        assert f.needed == closed_forms.flash_sram(48, Bc, d, d, 2)
        room = CHIPS[chip].sram_per_block
        assert (
            closed_forms.flash_sram(f.tallest, Bc, d, d, 2)
            <= room
            < closed_forms.flash_sram(f.tallest + 1, Bc, d, d, 2)
        )
        assert f.fits == (f.needed <= room)


def test_tile_picture_draws_what_it_computes():
    fig = tile_size.draw("T4", 64, 128, 64)
    top, low = fig.axes
    bars = [p for p in top.patches if isinstance(p, Rectangle)]
    assert sum(p.get_width() for p in bars) == closed_forms.flash_sram(128, 64, 64, 64, 2) > CHIPS["T4"].sram_per_block
    marked = next(line for line in low.lines if line.get_marker() == "s")
    assert marked.get_ydata()[0] == closed_forms.flash_bytes(4096, 4096, 64, 64, 128, 64, 2)
    assert marked.get_markerfacecolor() == "#FFFFFF", "hollow: it does not fit"
    assert "does not fit" in fig.get_suptitle()
    axes = {tile_size.draw(chip, 64, 128, 64).axes[0].get_xlim() for chip in CHIPS}
    assert axes == {(0, tile_size.SRAM)} and max(c.sram_per_block for c in CHIPS.values()) < tile_size.SRAM


# --- 04 and 12: masks


@pytest.mark.parametrize("sizes", [(10, 17, 4), (17, 10, 4), (1, 9, 2), (13, 13, 8)])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_mask_counts_are_those_of_the_mask_itself(sizes, window):
    Sq, Sk, tile = sizes
    see = masks.visible(Sq, Sk, True)
    if window is not None:
        see &= variants.window(window, Sk - Sq)(np.arange(Sq)[:, None], np.arange(Sk)[None, :])
    parts = [see[i : i + tile, j : j + tile] for i in range(0, Sq, tile) for j in range(0, Sk, tile)]
    n = mask_tiles.counts(Sq, Sk, tile, window)
    assert n.skip == sum(not p.any() for p in parts) and n.full == sum(bool(p.all()) for p in parts)
    assert n.partial == len(parts) - n.skip - n.full
    assert n.computed == sum(p.size for p in parts if p.any()) and n.seen == see.sum()
    assert n.empty == sum(not row.any() for row in see)


def test_mask_picture_draws_both_edges_of_a_window():
    ax = mask_tiles.draw(16, 20, 4, 3).axes[0]
    right, left = (line.get_xdata() for line in ax.lines if line.get_color() == style.INK)
    assert list(right[::2]) == [min(i + 5, 20) for i in range(16)]
    assert list(left[::2]) == [i + 2 for i in range(16)]
    assert sum(line.get_color() == style.INK for line in mask_tiles.draw(16, 20, 4).axes[0].lines) == 1
    sizes = {tuple(mask_tiles.draw(Sq, Sk, 4).bbox.size) for Sq in (1, 16, 64) for Sk in (1, 64)}
    assert len(sizes) == 1, "the page does not jump"


# --- 01: formats


def test_formats_are_those_of_numpy():
    for name, dtype in (("float32", np.float32), ("float16", np.float16)):
        f, info = formats.FORMATS[name], np.finfo(dtype)
        assert f.largest == float(info.max)
        for x in (0.0, 1.0, 1.5, 7.9, 150.0, 60000.0, float(info.tiny) / 2):
            assert f.spacing(x) == float(np.spacing(dtype(x))), (name, x)
        with np.errstate(over="ignore"):
            assert math.isfinite(dtype(math.exp(f.exp_limit() * 0.9999))) and math.isinf(
                dtype(math.exp(f.exp_limit() + 0.01))
            )
    assert formats.FORMATS["bfloat16"].largest == float(bf16.widen(np.uint16(0x7F7F)))
    assert not math.isfinite(formats.FORMATS["float16"].spacing(70000.0))


def test_formats_round_as_numpy_and_the_bfloat16_instrument_do():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.standard_normal(300) * 10.0 ** rng.integers(-9, 6, 300), [0, 2049, 257, 65519.9, 65520, 1e39]]
    )
    with np.errstate(over="ignore"):
        wanted = {
            "float32": x.astype(np.float32),
            "float16": x.astype(np.float16),
            "bfloat16": bf16.widen(bf16.rounded(x)),
        }
        thirteen = x.astype(np.float32).view(np.uint32)  # TF32: cut off 13 of float32's 23 bits, to nearest even
        tf32 = ((thirteen + 0xFFF + ((thirteen >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    for name, want in (wanted | {"TF32": tf32}).items():
        assert [formats.FORMATS[name].round(float(v)) for v in x] == [float(w) for w in want], name


def test_sums_of_ones_stop_where_adding_stops():
    for name, f in formats.FORMATS.items():
        most = 2.0**f.p
        assert f.round(most - 1 + 1) == most == f.round(most + 1), name
        assert formats.trouble(name, 1, 2**26).counted == most
    total = np.float16(0)
    for _ in range(3000):
        total += np.float16(1)
    assert total == formats.trouble("float16", 1, 3000).counted == 2048
    assert formats.trouble("float16", 12, 16).exp == math.inf and formats.trouble("bfloat16", 12, 16).exp < math.inf
    assert formats.trouble("float16", 150, 16).step == 1 / 8


# --- 05: memory


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_memory_forms_are_what_is_measured(method, backward):
    import torch

    import flashlib
    from flashlib.instruments.peak import peak_memory

    for N, d, H in ((512, 64, 1), (1024, 32, 2), (2048, 128, 1)):
        q, k, v, do = (torch.randn(1, H, N, d) for _ in range(4))
        leaves = [x.requires_grad_(backward) for x in (q, k, v)]

        def run(leaves=leaves, do=do):
            o = flashlib.attention(*leaves, impl=method)
            return torch.autograd.grad(o, leaves, do) if backward else o

        assert peak_memory(run).bytes == H * extra_bytes(method, N, d, backward=backward), (N, d, H)


def test_longest_is_the_last_that_fits():
    for room in (1, 2, 3, 100, 4097):
        n = longest(room, lambda N: N * N)
        assert n * n <= room < (n + 1) ** 2
    assert longest(0, lambda N: N) == 0


@pytest.mark.parametrize("backward", [False, True])
def test_memory_picture_marks_where_the_chip_is_full(backward):
    room = CHIPS["A100"].hbm_bytes
    fig = memory_limit.draw("A100", 16, backward)
    for method in METHODS:
        N = memory_limit.fits("A100", 16, backward)[method]
        need = [memory_limit.needed(method, n, 16, backward) for n in (N, N + 1)]
        assert need[0] <= room < need[1]
        told = f"{style.CALLED[method]}, full at N = {N:,}"
        assert told in [t.get_text() for t in fig.axes[0].get_legend().texts]
        assert f"full at N = {N:,}" in memory_limit.describe("A100", 16, backward)
        assert units.words(N) in words(fig)[0]
    given = (4 if backward else 3) * 4 * 1000 * 64  # q, k, v and perhaps dO
    assert memory_limit.needed("tiled", 1000, 2, backward) == 2 * (
        given + extra_bytes("tiled", 1000, 64, backward=backward)
    )
    matrices = 6 if backward else 3
    assert memory_limit.fits("T4", 1, backward)["naive"] == pytest.approx((16e9 / (4 * matrices)) ** 0.5, rel=0.01)


# --- 10: splits


def test_splits_are_programs_waves_and_the_formulas_bytes():
    for S, splits, chip in itertools.product((1000, 65536), (1, 16, 17, 33, 100), ("T4", "H100")):
        c, sms = split_choice.cut(S, splits, chip), CHIPS[chip].sms
        programs = [len(range(p, 8 * splits, sms)) for p in range(sms)]  # dealt out one after the other
        assert (c.programs, c.waves) == (8 * splits, max(programs))
        assert c.first == sum(n > 0 for n in programs) and c.last == sum(n == max(programs) for n in programs)
        assert c.keys == max(j1 - j0 for j0, j1 in masks.parts(S, splits))
        read, written = decode_bytes([S], 32, 8, 1, 128, 128, itemsize=2, splits=splits)
        assert c.cache_bytes == 2 * 8 * S * 128 * 2 and c.cache_bytes + c.other_bytes == sum(
            [*read.values(), *written.values()]
        )


def test_splits_picture_fills_as_many_squares_as_are_busy():
    fig = split_choice.draw(65536, 17, "H100")
    filled = [sum(p.get_facecolor()[:3] != (1, 1, 1) for p in ax.patches) for ax in fig.axes[:2]]
    assert filled == [132, 4] and [len(ax.patches) for ax in fig.axes[:2]] == [132, 132]
    marked = next(line for line in fig.axes[2].lines if line.get_marker() == "s")
    assert marked.get_ydata()[0] == 2 * math.ceil(65536 / 17)
    assert split_choice.cut(65536, 16, "H100").walk < split_choice.cut(65536, 17, "H100").walk


# --- 03: the tree


@pytest.mark.parametrize("order", merge_order.ORDERS)
@pytest.mark.parametrize("keys", [1, 2, 3, 4, 6])
def test_every_order_of_merging_gives_the_row(order, keys):
    right = four_steps(*toy())
    root = merge_order.tree(order, keys, ROW)
    assert sorted(root.keys) == list(range(6))
    assert root.state.m == 3 and np.allclose(root.state.o / root.state.l, right.o[ROW], rtol=1e-14, atol=0)
    assert "(0.3348, 1.2174, 0.5367, 1), lse 3.7209" in merge_order.describe(order, keys)

    def check(node):  # each node's numbers are those of its keys alone
        s = right.s[ROW, list(node.keys)]
        assert node.state.m == s.max() and math.isclose(node.state.l, np.exp(s - s.max()).sum(), rel_tol=1e-14)
        for part in node.parts:
            check(part)

    check(root)


def test_orders_have_their_shapes():
    assert [merge_order.tree(order, 1).depth for order in merge_order.ORDERS[:2]] == [5, 3]
    halves = merge_order.tree("balanced tree", 1).parts
    assert [part.keys for part in halves] == [(0, 1, 2), (3, 4, 5)], "two halves, as in the chapter"
    assert merge_order.tree("random tree, seed 0", 1).keys != merge_order.tree("random tree, seed 1", 1).keys
    said = words(merge_order.draw("left fold", 1))
    assert sum(t.startswith("m=") for t in said) == 11 and sum(t.startswith("× ") for t in said) == 10
    with pytest.raises(ValueError, match="left fold"):
        merge_order.tree("sideways", 1)
