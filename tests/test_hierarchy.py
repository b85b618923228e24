"""The picture of the two memories: its speeds follow from the data sheets, its areas are to scale."""

from dataclasses import replace

import matplotlib
import pytest

matplotlib.use("agg")

from matplotlib.patches import Rectangle

from flashlib.instruments.machine import CHIPS
from flashlib.show import hierarchy

GPUS = [CHIPS[name] for name in ("T4", "A100", "H100")]


@pytest.mark.parametrize(("name", "boost"), [("T4", 1.59e9), ("A100", 1.41e9), ("H100", 1.98e9)])
def test_the_clock_behind_the_float32_rate_is_the_boost_clock(name, boost):
    # boost clocks as the makers print them; the data sheets round the float32 rate to two or three digits
    assert round(hierarchy.clock(CHIPS[name]) / boost, 2) in (0.99, 1.0)


def test_sram_is_faster_and_smaller_on_every_gpu():
    for chip in CHIPS.values():
        assert hierarchy.sram_bandwidth(chip) > 3 * chip.bandwidth
        assert hierarchy.sram_total(chip) == chip.sms * chip.sram_per_sm < chip.hbm_bytes / 1000


def test_areas_are_to_scale():
    fig = hierarchy.figure(GPUS, ("S", 2 * 16384**2), title="Two memories")
    for ax, chip in zip(fig.axes, GPUS, strict=False):
        areas = [p.get_width() * p.get_height() for p in ax.patches if isinstance(p, Rectangle)]
        assert areas == pytest.approx([chip.hbm_bytes, 2 * 16384**2, hierarchy.sram_total(chip), chip.sram_per_sm])


def test_a_cpu_is_refused_by_name():
    cpu = replace(CHIPS["A100"], name="my laptop", capability=None)
    with pytest.raises(ValueError, match="compute capability of my laptop"):
        hierarchy.figure([cpu], ("S", 1.0), title="Two memories")
