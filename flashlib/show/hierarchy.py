"""Two memories drawn to scale: areas are bytes, bars are bytes per second."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from flashlib.instruments.machine import Chip

from .frame import canvas, settle
from .style import COLOR, HATCH, INK, PAPER, SMALL, TEXT, styled
from .units import nbytes, number

# float32 lanes an SM: CUDA C++ Programming Guide, section "Arithmetic Instructions", table of throughputs
LANES = {(7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}
BANKS, BANK_BYTES = 32, 4  # the same guide, section "Shared Memory": 32 banks of 32 bits a clock


def sram_total(chip: Chip) -> int:
    """Bytes of SRAM on the whole chip: shared memory of one SM times the number of SMs. No block can use it all."""
    return chip.sms * _known(chip.sram_per_sm, chip, "shared memory")


def clock(chip: Chip) -> float:
    """Clock in Hz that the data sheet's float32 rate implies: every lane of every SM does one multiply-add a clock."""
    lanes = LANES.get(_known(chip.capability, chip, "compute capability"))
    return chip.rate("float32") / (2 * chip.sms * _known(lanes, chip, "number of float32 lanes"))


def sram_bandwidth(chip: Chip) -> float:
    """Bytes per second from all shared memories together, at most: 32 banks × 4 bytes a clock on every SM.

    No data sheet prints this figure. It is an upper limit, reached only without bank conflicts and at full clock.

    Parameters
    ----------
    chip : one of `instruments.machine.CHIPS`

    Raises
    ------
    ValueError
        The chip has no SMs whose lanes are known (a CPU).
    """
    return chip.sms * BANKS * BANK_BYTES * clock(chip)


@styled
def figure(chips: Sequence[Chip], extra: tuple[str, float], *, title: str) -> Figure:
    """Draw each chip's HBM, all its SRAM, and one other thing as squares of one scale; below them, the two speeds.

    A ring shows where the tiny square of all SRAM lies. The SRAM of one SM is far below a pixel, and the label says so.

    Parameters
    ----------
    chips : sequence of Chip
        GPUs of `instruments.machine.CHIPS`.
    extra : (name, bytes)
        What else to draw at the same scale, such as the scores of one head.
    title : str
        What to see.

    Returns
    -------
    matplotlib.figure.Figure
    """
    fig, axes = canvas(2, len(chips), title=title, size=(9.0, 5.4), squeeze=False, height_ratios=[3.4, 1.0])
    side = max(_known(chip.hbm_bytes, chip, "memory size") for chip in chips) ** 0.5
    fastest = max(sram_bandwidth(chip) for chip in chips)
    for chip, top, low in zip(chips, *axes, strict=True):
        _areas(top, chip, extra, side)
        _speeds(low, chip, fastest, first=low is axes[1, 0])
    settle(fig)
    return fig


def _areas(ax: Axes, chip: Chip, extra: tuple[str, float], side: float) -> None:
    """The HBM square stands on y = 0, the small ones in rows below it, each with its name to the right."""
    row, gap = 0.125 * side, 0.04 * side
    hbm, sram = chip.hbm_bytes or 0, _known(chip.sram_per_sm, chip, "shared memory")
    _square(ax, 0, hbm, "HBM")
    ax.text(
        0,
        hbm**0.5 + gap,
        f"{chip.name}: HBM, {number(hbm / 1e9)} GB",
        fontsize=TEXT,
        va="bottom",
        ha="left",
        in_layout=False,
    )
    rows = [
        (extra[0], extra[1], "S"),
        (f"SRAM, {chip.sms} SMs", sram_total(chip), "SRAM"),
        ("SRAM, one SM", sram, "SRAM"),
    ]
    for i, (text, size, name) in enumerate(rows):
        y, label = -(i + 1) * row, f"{text}: {nbytes(size)}"
        _square(ax, y - size**0.5 / 2, size, name)
        if size < hbm / 1e5:
            label += "\n(too small to draw)"
        elif size < hbm / 1e3:
            middle = (size**0.5 / 2, y)
            ax.add_patch(Circle(middle, 0.036 * side, facecolor="none", edgecolor=INK, linewidth=1.2, clip_on=False))
        ax.text(0.12 * side, y + 0.03 * side, label, fontsize=SMALL, va="top", ha="left", in_layout=False)
    ax.set_xlim(-0.04 * side, 1.32 * side)
    ax.set_ylim(-4.4 * row, 1.13 * side)
    ax.set_aspect("equal", anchor="NW")
    ax.axis("off")


def _speeds(ax: Axes, chip: Chip, fastest: float, *, first: bool) -> None:
    rates = {"HBM": chip.bandwidth, "SRAM": sram_bandwidth(chip)}
    for y, (name, rate) in enumerate(rates.items()):
        ax.barh(y, rate, color=COLOR[name], hatch=HATCH[name], edgecolor=INK if name == "HBM" else PAPER, height=0.62)
        ax.text(rate + 0.02 * fastest, y, f"{number(rate / 1e12)} TB/s", va="center", ha="left", fontsize=SMALL)
    ax.set_xlim(0, 1.45 * fastest)
    ax.set_yticks(range(len(rates)), list(rates) if first else [""] * len(rates))
    ax.invert_yaxis()
    ax.set_xticks([])
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)
    ax.set_title("speed, to scale", fontsize=SMALL)


def _square(ax: Axes, y: float, size: float, name: str) -> None:
    """A square of `size` bytes; its edge lies inside the area of the large one and is left out of the tiny ones."""
    large = name == "HBM"
    ax.add_patch(
        Rectangle(
            (0, y),
            size**0.5,
            size**0.5,
            facecolor=(COLOR[name], 0.35 if large else 1.0),
            hatch=HATCH[name] if large else "",
            edgecolor=COLOR[name],
            linewidth=1.0 if large else 0.0,
        )
    )


def _known(value: Any, chip: Chip, what: str) -> Any:
    if value is None:
        raise ValueError(f"the {what} of {chip.name} is not known: draw a GPU of flashlib.instruments.machine.CHIPS")
    return value
