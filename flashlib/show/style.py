"""One visual language: what each colour means, and what says the same without colour.

Colours are Okabe and Ito's, which readers with protan, deutan or tritan sight can tell apart
(M. Okabe, K. Ito, "Color Universal Design", 2008). No meaning rests on colour alone: each name has a marker, a line
style and a hatch too.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from cycler import cycler

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE, INK, PAPER, MASK_FACE = "#999999", "#C8C8C8", "#1A1A1A", "#FFFFFF", "#ECECEC"
_DASH, _DASHDOT, _DOT = (0, (5, 2)), (0, (6, 2, 1.2, 2)), (0, (1.2, 1.4))
Line = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Look:
    """How one thing is drawn, wherever it is drawn."""

    color: str
    marker: str
    line: Line
    hatch: str


LOOK = {
    # tensors: filled cells and bars
    "Q": Look(BLUE, "o", "-", ""),
    "K": Look(ORANGE, "s", _DASH, "//"),
    "V": Look(GREEN, "^", _DASHDOT, "\\\\"),
    "O": Look(PURPLE, "D", _DOT, ".."),
    "S": Look(SKY, "v", _DASH, "--"),
    "P": Look(YELLOW, "P", _DASHDOT, "xx"),
    "masked": Look(PALE, "x", _DOT, "////"),
    # places
    "HBM": Look(VERMILLION, "s", "-", "//"),
    "SRAM": Look(BLACK, "o", _DASH, ".."),
    # methods: lines
    "naive": Look(VERMILLION, "o", "-", ""),
    "tiled": Look(BLUE, "s", _DASH, "//"),
    "sdpa": Look(GREEN, "^", _DASHDOT, "\\\\"),
    "oracle": Look(BLACK, "D", _DOT, ".."),
    "wrong": Look(PURPLE, "X", (0, (3, 1.5)), "xx"),
    # the online softmax's state of one row
    "m": Look(BLACK, "_", "-", ""),
    "l": Look(BLUE, "o", "-", ""),
    "factor": Look(VERMILLION, "v", _DASH, "//"),
}
#: things of one group may stand in one figure, so they differ in colour; tensors and places never share one
GROUPS = (
    ("Q", "K", "V", "O", "S", "P", "masked", "HBM", "SRAM"),
    ("naive", "tiled", "sdpa", "oracle", "wrong"),
    ("m", "l", "factor", "S"),
)
COLOR = {name: look.color for name, look in LOOK.items()}
MARKER = {name: look.marker for name, look in LOOK.items()}
LINE = {name: look.line for name, look in LOOK.items()}
HATCH = {name: look.hatch for name, look in LOOK.items()}

#: what figures call a method, in every chapter, whatever the code calls it
CALLED = {"naive": "four steps", "tiled": "tiles"}
#: other words for the same things, compared in lower case
_SAME = {
    **{name.lower(): name for name in LOOK},
    **{f"d{name.lower()}": name for name in "QKVOSP"},  # a gradient has the colour of what it belongs to
    **{"standard": "naive", "four": "naive", "four_steps": "naive", "unfused": "naive"},
    **{"flash": "tiled", "fused": "tiled", "tiles": "tiled", "flashattention": "tiled"},
    **{"reference": "oracle", "float64": "oracle"},
}
_SPARE = (
    Look(BLUE, "s", "-", ""),
    Look(ORANGE, "o", _DASH, "//"),
    Look(GREEN, "^", _DASHDOT, "\\\\"),
    Look(PURPLE, "D", _DOT, "xx"),
    Look(VERMILLION, "v", (0, (3, 1.5)), ".."),
    Look(SKY, "P", (0, (8, 2)), "--"),
    Look(BLACK, "X", (0, (4, 1, 1, 1, 1, 1)), "++"),
)

SIZE = (9.0, 5.0)  # inches; 900 pixels wide at DPI
DPI = 100
TEXT, SMALL, TITLE = 14, 13, 16  # points: nothing is smaller than SMALL
RC: dict[str, Any] = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "font.size": TEXT,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "figure.titlesize": TITLE,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 2.6,
    "lines.markersize": 8,
    "hatch.linewidth": 1.2,
    "axes.linewidth": 1.2,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E2E2E2",
    "grid.linewidth": 0.9,
    "axes.prop_cycle": cycler(
        color=[s.color for s in _SPARE], linestyle=[s.line for s in _SPARE], marker=[s.marker for s in _SPARE]
    ),
    "svg.hashsalt": "flashlib",
}

P_ = ParamSpec("P_")
R_ = TypeVar("R_")


def apply() -> None:
    """Use the course's sizes and colours for your own plots too (changes ``matplotlib.rcParams`` for good)."""
    mpl.rcParams.update(RC)


def styled(draw: Callable[P_, R_]) -> Callable[P_, R_]:
    """Decorator: run a drawing function in the course's style and leave ``rcParams`` as they were."""

    @functools.wraps(draw)
    def wrapper(*args: P_.args, **kwargs: P_.kwargs) -> R_:
        with mpl.rc_context(RC):
            return draw(*args, **kwargs)

    return wrapper


def look(name: str) -> Look | None:
    """Look of a thing by name, or by the first word of a longer label: ``look("tiled, causal")``; None if unknown."""
    words = name.replace(",", " ").replace("(", " ").replace(":", " ").split()
    for word in (name.lower(), words[0].lower() if words else ""):
        if word in _SAME:
            return LOOK[_SAME[word]]
    return None


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks for the series of one figure: the fixed one where the name has a meaning, and no two alike.

    A second series of the same thing ("tiled, causal" after "tiled") keeps the colour and gets its own marker and
    line; names without a meaning share out the colours that are left.
    """
    fixed = {name: look(name) for name in names}
    out: dict[str, Look] = {}
    for name, found in fixed.items():
        if found and found not in out.values():
            out[name] = found
    for name, found in fixed.items():
        if name not in out:
            out[name] = _unlike(out.values(), found.color if found else None)
    return {name: out[name] for name in fixed}


def _unlike(used: Iterable[Look], color: str | None) -> Look:
    """The spare look that shares least with those in use, in `color` if one is given."""
    used = list(used)

    def shared(spare: Look) -> int:
        same_color = 0 if color else sum(u.color == spare.color for u in used)
        return (
            4 * same_color + 2 * sum(u.marker == spare.marker for u in used) + sum(u.line == spare.line for u in used)
        )

    best = min(_SPARE, key=shared)  # the first of equals
    return Look(color or best.color, best.marker, best.line, best.hatch)
