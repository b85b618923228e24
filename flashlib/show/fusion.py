"""Explorer: the four steps and the fused kernel of one head under a chip's roof, for any N, d and chip.

Both do the same arithmetic on the scores, (4d + 6)·N² FLOP: 2d for QKᵀ, 2d for PV, one for the scale, five for the
softmax. What the fused kernel adds, one more scaling of its running output for each key tile, is 1/64 of that with
tiles of 16 keys, and is left out.
"""

from typing import NamedTuple

from matplotlib.figure import Figure

from flashlib.instruments.closed_forms import flash_bytes, flash_tiles, four_steps_bytes
from flashlib.instruments.machine import CHIPS, Roof, roofline

from . import roofline as chart
from .units import count, flop_rate, nbytes, number, seconds

HALF = 2  # bytes of a float16
SPAN = (4.0, 4000.0)  # FLOP/B: the axis stays, so that the marks are seen to move


class Pipeline(NamedTuple):
    """FLOP done, bytes moved, and what the roofline makes of them."""

    flops: int
    moved: int
    roof: Roof


def pipelines(N: int, d: int, chip: str) -> dict[str, Pipeline]:
    """The two pipelines of one head in float16, each with the tallest tiles that fit the chip's SRAM.

    Parameters
    ----------
    N, d : tokens and features of a head
    chip : a key of `flashlib.instruments.machine.CHIPS`
    """
    on = CHIPS[chip]
    sram = on.sram_per_block or 0
    flops = (4 * d + 6) * N * N
    moved = {
        "four steps": four_steps_bytes(N, N, d, d, HALF, sram_bytes=sram),
        "fused": flash_bytes(N, N, d, d, *flash_tiles(sram, d, d, HALF), HALF, lse=False),
    }
    return {name: Pipeline(flops, b, roofline(on, flops, b, "float16")) for name, b in moved.items()}


def draw(N: int, d: int, chip: str) -> Figure:
    """Draw the chip's roof with the two pipelines as points; arguments as in `pipelines`."""
    found = pipelines(N, d, chip)
    points = {name: (float(p.flops), float(p.moved)) for name, p in found.items()}
    points["fused, by tiles"] = points.pop("fused")
    rates = SPAN[0] * min(c.bandwidth for c in CHIPS.values()), 2.2 * max(c.flops["float16"] for c in CHIPS.values())
    note = f"one head, N = {count(N)}, d = {d}"
    return chart.figure(CHIPS[chip], points, title=_title(found, chip), note=note, span=SPAN, rates=rates)


def describe(N: int, d: int, chip: str) -> str:
    """The picture that `draw` makes, in words."""
    found = pipelines(N, d, chip)
    told = "; ".join(
        f"{name}: {nbytes(p.moved)}, {number(p.roof.intensity)} FLOP/B, bound by {p.roof.bound}, at most "
        f"{flop_rate(p.roof.attainable)}, at least {seconds(p.roof.seconds)}"
        for name, p in found.items()
    )
    ridge = number(CHIPS[chip].ridge("float16"))
    return (
        f"Roofline of the {chip}, float16, ridge at {ridge} FLOP/B, with two marks for one head of N = {count(N)}, "
        f"d = {d}. {told}. {_title(found, chip)}."
    )


def _title(found: dict[str, Pipeline], chip: str) -> str:
    apart, fused = found["four steps"].roof, found["fused"].roof
    rate = flop_rate(fused.attainable)
    if apart.bound == "compute":
        return f"On the {chip} even the four steps reach the ridge: at most {rate}"
    before = flop_rate(apart.attainable)
    if before.split()[1] == rate.split()[1]:
        before = before.split()[0]
    if fused.bound == "compute":
        return f"Fusing lifts the {chip}'s ceiling from {before} to {rate}: over the ridge"
    if fused.intensity > apart.intensity:
        return f"Fusing lifts the {chip}'s ceiling from {before} to {rate}: memory still decides"
    return f"Fusing lowers the {chip}'s ceiling from {before} to {rate}: its tiles are too short"
