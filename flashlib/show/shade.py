"""Light and dark: contrast of text against its ground, and the shades of a thing's colour."""

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from .style import BLACK, BLUE, PAPER, look


def luminance(color: Any) -> float:
    """Relative luminance of a colour, 0 black to 1 white (WCAG 2.2, "relative luminance")."""
    c = np.asarray(to_rgb(color))
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(a: Any, b: Any) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2, "contrast ratio"); text needs 4.5."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def ink(background: Any) -> str:
    """Black or white, whichever reads better on `background`; the contrast is never below 4.5."""
    return max((BLACK, PAPER), key=lambda text: contrast(text, background))


def shades(name: str) -> LinearSegmentedColormap:
    """Colour map from white through the thing's own colour to a dark shade of it; lightness falls all the way."""
    found = look(name)
    base = np.asarray(to_rgb(found.color if found else BLUE))
    stops = [(0.0, (1.0, 1.0, 1.0)), (0.6, tuple(base)), (1.0, tuple(0.4 * base))]
    return LinearSegmentedColormap.from_list(f"shades of {name}", stops)
