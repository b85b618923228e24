"""Explorer: memory against N up to what a chip has, four steps and tiles, forward alone or with the backward."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from flashlib.instruments.machine import CHIPS
from flashlib.instruments.memory_forms import METHODS, extra_bytes, input_bytes, longest

from .frame import canvas
from .style import CALLED, GREY, INK, LOOK, MASK_FACE, SMALL, styled
from .units import count, nbytes, words

TOKENS, BYTES = (9, 28), (20, 42)  # the axes run over these powers of two


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
    for method, most in full.items():
        look = LOOK[method]
        every = [float(needed(method, int(N), heads, backward)) for N in sizes]
        ax.plot(sizes, every, color=look.color, linestyle=look.line, marker="", zorder=3)
        end = float(needed(method, most, heads, backward))
        ax.vlines(most, 2.0 ** BYTES[0], end, color=look.color, linewidth=1.6, linestyle=(0, (1, 2)), zorder=2)
        ax.plot([most], [end], color=look.color, marker=look.marker, markersize=13, linestyle="", zorder=4)
        ax.plot([], [], color=look.color, linestyle=look.line, marker=look.marker,
                label=f"{CALLED[method]}, full at N = {most:,}")  # fmt: skip
    for axis, (low, high), step, write in ((ax.xaxis, TOKENS, 3, count), (ax.yaxis, BYTES, 4, nbytes)):
        axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (2.0**low, 2.0**high)})
        axis.set_major_locator(FixedLocator([2.0**e for e in range(low, high + 1, step)]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _, write=write: write(v)))
    ax.annotate(f"{chip}:\n{room / 1e9:.0f} GB,\n{nbytes(room)}", (2.0 ** TOKENS[1], room), (6, 0), va="center",
                textcoords="offset points", fontsize=SMALL, annotation_clip=False)  # fmt: skip
    ax.set_xlabel("tokens N (d = 64, float32; computed, not measured)")
    ax.set_ylabel("memory at the peak, inputs too")
    ax.legend(loc="lower right", handlelength=3, frameon=True, framealpha=1.0, edgecolor="none")
    return fig


def describe(chip: str, heads: int, backward: bool) -> str:
    """The picture that `draw` makes, in words."""
    full, at = fits(chip, heads, backward), 2**14
    told = "; ".join(
        f"{CALLED[method]}: {nbytes(needed(method, at, heads, backward))} at N = {count(at)}, full at N = {most:,}"
        for method, most in full.items()
    )
    room = CHIPS[chip].hbm_bytes or 0
    return (
        f"Memory at the peak against N, inputs included, float32, d = 64, batch times heads {heads}, "
        f"{_what(backward)}, both axes logarithmic, computed, with the {room / 1e9:.0f} GB ({nbytes(room)}) of the "
        f"{chip} as a line across. {told}. Four steps rise as N squared, tiles as N. "
        f"{_title(chip, heads, backward, full)}."
    )


def _what(backward: bool) -> str:
    return "forward and backward" if backward else "forward alone"


def _title(chip: str, heads: int, backward: bool, full: dict[str, int]) -> str:
    many = "one head" if heads == 1 else f"{heads} heads"
    ends = {method: words(most) for method, most in full.items()}
    return f"{chip}, {many}, {_what(backward)}: full at {ends['naive']} tokens by four steps, {ends['tiled']} by tiles"
