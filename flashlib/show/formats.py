"""Explorer: four number formats, and where softmax breaks in each: rounded scores, exp too large, sums that stop.

NumPy has float32 and float16; bfloat16 and TF32 are float32 with fewer bits of significand, so all four are described
by two numbers: bits of the significand (the hidden one counted) and the largest exponent.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .frame import blank, headline
from .style import GREY, INK, PAPER, SMALL, TEXT, looks, styled
from .units import count

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Format(NamedTuple):
    """A binary floating-point format: significand bits p (hidden one included), exponents of its normal numbers."""

    p: int
    low: int
    high: int

    @property
    def largest(self) -> float:
        """(2 − 2^(1 − p)) · 2^high."""
        return (2.0 - 2.0 ** (1 - self.p)) * 2.0**self.high

    def spacing(self, x: float) -> float:
        """Distance from |x| to the next larger number of the format; infinite beyond the largest."""
        if abs(x) > self.largest:
            return math.inf
        exponent = max(math.frexp(abs(x))[1] - 1, self.low) if x else self.low
        return 2.0 ** (exponent - self.p + 1)

    def exp_limit(self) -> float:
        """The largest x whose exp(x) is still a number of the format."""
        return math.log(self.largest)

    def round(self, x: float) -> float:
        """The nearest number of the format, ties to even; ±inf beyond the largest."""
        if not math.isfinite(x):
            return x
        step = 2.0 ** (max(math.frexp(x)[1] - 1, self.low) - self.p + 1) if x else 1.0
        near = round(x / step) * step  # x / step is exact, and Python rounds ties to even
        return near if abs(near) <= self.largest else math.copysign(math.inf, x)

    def count_to(self, n: int) -> int:
        """What adding 1 to 0 comes to, n times, rounded each time: at 2^p the next 1 is half a step and is lost."""
        return min(n, 2**self.p)


#: IEEE 754-2019 binary32 and binary16; bfloat16 and TF32 as in NVIDIA's A100 whitepaper
FORMATS = {
    "float32": Format(24, -126, 127),
    "TF32": Format(11, -126, 127),
    "bfloat16": Format(8, -126, 127),
    "float16": Format(11, -14, 15),
}


class Trouble(NamedTuple):
    """What a format makes of a row: step between scores, largest error of a weight, exp(score), the sum of N ones."""

    step: float
    weight_error: float
    exp: float
    counted: int


def trouble(name: str, score: float, terms: int) -> Trouble:
    """A row whose largest score is `score`, and a sum of `terms` equal weights, in one of the four formats.

    Parameters
    ----------
    name : "float32" | "TF32" | "bfloat16" | "float16"
    score : largest score; it is off by up to half a step, its weight by the factor exp(step / 2)
    terms : ones that are added one after the other
    """
    f = FORMATS[name]
    step = f.spacing(score)
    exp = f.round(math.exp(score)) if score < 700 else math.inf
    return Trouble(step, math.expm1(step / 2), exp, f.count_to(terms))


@styled
def draw(name: str, score: float, terms: int) -> Figure:
    """Draw the steps between scores, the limits of exp, and sums of ones; arguments as in `trouble`."""
    fig, shape = blank((9.0, 6.0)), looks(FORMATS)
    headline(fig, _title(name, score, terms))
    axes: Any = fig.subplot_mosaic([["steps", "steps"], ["exp", "sum"]], height_ratios=[1.25, 1.0])
    _steps(axes["steps"], name, score, shape)
    exps = {k: f.exp_limit() for k, f in FORMATS.items()}
    _bars(axes["exp"], name, exps, score, (0.0, 210.0), lambda v: f"{v:.1f}", shape)
    axes["exp"].set_title("exp(score) is infinite above", fontsize=TEXT)
    axes["exp"].set_xlabel(f"score (dashed: {score:g})")
    powers = {k: float(f.p) for k, f in FORMATS.items()}
    _bars(axes["sum"], name, powers, math.log2(terms), (0.0, 44.0), lambda v: f"{2 ** int(v):,}", shape)
    axes["sum"].set_title("1 + 1 + … stops at", fontsize=TEXT)
    axes["sum"].set_xlabel(f"terms (dashed: {count(terms)})")
    axes["sum"].xaxis.set_major_locator(FixedLocator(list(range(0, 25, 8))))
    axes["sum"].xaxis.set_major_formatter(FuncFormatter(lambda v, _: count(2.0**v)))
    return fig


def _steps(ax: Any, name: str, score: float, shape: Any) -> None:
    sizes = np.array([2.0**e for e in range(-4, 20)])
    for k, f in FORMATS.items():
        y = [f.spacing(x) for x in sizes if x <= f.largest]
        chosen = k == name
        if k == "TF32":  # the same gaps as float16's, as far as those go: a broad pale line below them
            ax.plot(sizes[: len(y)], y, drawstyle="steps-post", color=shape[k].color, linestyle="-", marker="",
                    linewidth=10 if chosen else 8, alpha=0.45, zorder=2)  # fmt: skip
        else:
            ax.plot(sizes[: len(y)], y, drawstyle="steps-post", color=shape[k].color, linestyle=shape[k].line,
                    marker="", linewidth=4.5 if chosen else 2, zorder=4 if chosen else 3)  # fmt: skip
        at = (sizes[len(y) - 1], y[-1])
        up = {"bfloat16": 6, "TF32": -7, "float16": -16}.get(k, 0)  # points: three lines end near one another
        ax.annotate(k, at, (6, up), textcoords="offset points", fontsize=SMALL, va="center",
                    fontweight="bold" if chosen else "normal")  # fmt: skip
    step = FORMATS[name].spacing(score)
    if math.isfinite(step):
        ax.plot([score], [step], color=PAPER, markeredgecolor=INK, markeredgewidth=3, marker="o", markersize=12,
                linestyle="", zorder=6)  # fmt: skip
    ax.axvline(score, color=INK, linewidth=1.6, linestyle=(0, (4, 3)), marker="", zorder=2)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlim(sizes[0], 2.0**22)
    ax.set_ylim(2.0**-28, 2.0**14)
    for axis, places in ((ax.xaxis, range(-4, 21, 4)), (ax.yaxis, range(-24, 13, 12))):
        axis.set_major_locator(FixedLocator([2.0**e for e in places]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: _power(v)))
    ax.set_xlabel("score")
    ax.set_title("gap to the next number, at each score", fontsize=TEXT)
    ax.set_ylabel("gap")


def _bars(
    ax: Any,
    name: str,
    values: dict[str, float],
    at: float,
    span: tuple[float, float],
    write: Callable[[float], str],
    shape: Any,
) -> None:
    for y, (k, v) in enumerate(values.items()):
        broken, chosen = at > v, k == name
        ax.barh([y], [v], color=shape[k].color if chosen else GREY, hatch="" if chosen else "..", edgecolor=INK,
                height=0.7, zorder=2)  # fmt: skip
        # in a column at the right, which no bar and no dashed line reaches
        ax.text(0.995 * span[1], y, write(v) + (" ✗" if broken else ""), va="center", ha="right", fontsize=SMALL,
                fontweight="bold" if chosen else "normal", zorder=5)  # fmt: skip
    ax.axvline(at, color=INK, linewidth=2.4, linestyle=(0, (4, 3)), marker="", zorder=4)
    ax.set_yticks(range(len(values)), list(values))
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.set_xlim(*span)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")


def describe(name: str, score: float, terms: int) -> str:
    """The picture that `draw` makes, in words."""
    f, t = FORMATS[name], trouble(name, score, terms)
    others = ", ".join(f"{k} {g.exp_limit():.1f} and {2**g.p:,}" for k, g in FORMATS.items())
    return (
        f"Three panels for the formats float32, TF32, bfloat16, float16; {name} is chosen. At a score of {score:g} "
        f"the gap to its next number is {_power(t.step)}, so a weight is off by up to {t.weight_error:.2g} of itself. "
        f"In it exp({score:g}) is {t.exp:.3g}; its largest number is {f.largest:.4g}. "
        f"{terms:,} ones added one by one make {t.counted:,}. "
        f"Largest score before exp overflows, and where a sum of ones stops: {others}. {_title(name, score, terms)}."
    )


def _title(name: str, score: float, terms: int) -> str:
    t = trouble(name, score, terms)
    percent = 100 * t.weight_error
    said = [f"weights off by up to {percent:.1g}%" if percent < 1 else f"weights off by up to {percent:.0f}%"]
    if percent < 0.001:
        said = ["weights off by less than 0.001%"]
    if math.isinf(t.exp):
        said.append(f"exp({score:g}) = inf")
    if t.counted < terms:
        said.append(f"{terms:,} ones make {t.counted:,}")
    return f"{name}: " + ", ".join(said)


def _power(x: float) -> str:
    """ "1/16" or "64" for a power of two; "2⁻²⁰" below 1/1000."""
    if not math.isfinite(x):
        return "inf"
    if x >= 1:
        return count(x)
    return f"1/{round(1 / x)}" if x > 1e-3 else "2" + str(round(math.log2(x))).translate(_RAISED)
