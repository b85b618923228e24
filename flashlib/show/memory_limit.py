"""Explorer: memory against N up to what a chip has, naive and tiled, forward alone or with the backward."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from flashlib.instruments.machine import CHIPS
from flashlib.instruments.memory_forms import METHODS, extra_bytes, input_bytes, longest

from .frame import canvas
from .style import GREY, INK, LOOK, MASK_FACE, PAPER, SMALL, styled
from .units import count, nbytes

TOKENS, BYTES = (9, 27), (20, 42)  # the axes run over these powers of two


def needed(method: str, N: int, heads: int, backward: bool, d: int = 64) -> int:
    """Bytes that live at the peak, inputs and all: float32, `heads` is batch · heads."""
    return heads * (input_bytes(N, d, backward=backward) + extra_bytes(method, N, d, backward=backward))


def fits(chip: str, heads: int, backward: bool, d: int = 64) -> dict[str, int]:
    """The longest N that a chip's memory holds, by method, if it holds nothing else."""
    room = CHIPS[chip].hbm_bytes or 0

    def of(method: str) -> int:
        return longest(room, lambda N: needed(method, N, heads, backward, d))

    return {method: of(method) for method in METHODS}


@styled
def draw(chip: str, heads: int, backward: bool) -> Figure:
    """Draw both methods' memory against N, the chip's memory, and the N at which each is full.

    The axes stay as they are, whatever is chosen, so that the lines move and not the ground.

    Parameters
    ----------
    chip : a key of `flashlib.instruments.machine.CHIPS`
    heads : batch · heads
    backward : with the gradients, or the forward alone
    """
    room, full = CHIPS[chip].hbm_bytes or 0, fits(chip, heads, backward)
    fig, ax = canvas(title=_title(chip, heads, backward, full))
    ax.axhspan(room, 2.0 ** BYTES[1], facecolor=MASK_FACE, edgecolor=GREY, hatch="//", linewidth=0, zorder=1)
    ax.axhline(room, color=INK, linewidth=2.2, linestyle="-", marker="", zorder=2)
    sizes = [2.0**e for e in range(TOKENS[0], TOKENS[1] + 1)]
    inner = 2.0 ** (TOKENS[0] + 3.4), 2.0 ** (TOKENS[1] - 3.4)  # where the middle of a label may stand
    for row, (method, most) in enumerate(full.items()):
        look = LOOK[method]
        every = [float(needed(method, int(N), heads, backward)) for N in sizes]
        ax.plot(sizes, every, color=look.color, linestyle=look.line, marker="", label=method, zorder=3)
        end = float(needed(method, most, heads, backward))
        ax.plot([most], [end], color=look.color, marker=look.marker, markersize=13, linestyle="", zorder=4)
        ax.annotate(f"{method} is full: N = {most:,}", (float(np.clip(most, *inner)), room),
                    (0, 34 - 24 * row), textcoords="offset points", ha="center", va="bottom", fontsize=SMALL, zorder=5,
                    bbox={"facecolor": PAPER, "edgecolor": look.color, "pad": 2.0})  # fmt: skip
    ax.text(2.0 ** (TOKENS[1] - 0.2), 2.0 ** (BYTES[1] - 0.3), f"beyond the {chip}'s {room / 1e9:.0f} GB", ha="right",
            va="top", fontsize=SMALL, zorder=5, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 2.0})  # fmt: skip
    for axis, (low, high), step, write in ((ax.xaxis, TOKENS, 3, count), (ax.yaxis, BYTES, 4, nbytes)):
        axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (2.0**low, 2.0**high)})
        axis.set_major_locator(FixedLocator([2.0**e for e in range(low, high + 1, step)]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _, write=write: write(v)))
    ax.set_xlabel("tokens N")
    ax.set_ylabel("memory at the peak")
    ax.legend(loc="lower right", handlelength=3)
    return fig


def describe(chip: str, heads: int, backward: bool) -> str:
    """The picture that `draw` makes, in words."""
    full, at = fits(chip, heads, backward), 2**14
    told = "; ".join(
        f"{method}: {nbytes(needed(method, at, heads, backward))} at N = {count(at)}, full at N = {most:,}"
        for method, most in full.items()
    )
    return (
        f"Memory at the peak against N, inputs included, float32, d = 64, batch times heads {heads}, "
        f"{_what(backward)}, both axes logarithmic, with the {(CHIPS[chip].hbm_bytes or 0) / 1e9:.0f} GB of the "
        f"{chip} as a line across. {told}. Naive rises as N squared, tiled as N. {_title(chip, heads, backward, full)}."
    )


def _what(backward: bool) -> str:
    return "forward and backward" if backward else "forward alone"


def _title(chip: str, heads: int, backward: bool, full: dict[str, int]) -> str:
    times = full["tiled"] / max(full["naive"], 1)
    return f"{chip}, {_what(backward)}: tiles reach {times:,.0f} times as far as the square"
