"""One bundle of formats for Lab, Colab, built pages and a terminal.

It carries the picture as HTML with alternative text (the only form of which JupyterLab and nbconvert hand the text to
a screen reader), as PNG for tools that know no HTML, and the text alone.
"""

import base64
import html
import io
import sys
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from .style import DPI, RC

LEAST_ALT = 20  # characters: in less no figure is described


def bundle(png: bytes, alt: str, caption: str | None = None) -> dict[str, Any]:
    """MIME bundle of one picture: HTML with alternative text, PNG (base64), plain text."""
    code = base64.b64encode(png).decode("ascii")
    return {
        "text/html": _figure(code, alt, caption),
        "image/png": code,
        "text/plain": alt if not caption else f"{alt}\n{caption}",
    }


def _figure(code: str, alt: str, caption: str | None) -> str:
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    picture = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{code}" style="max-width:100%;height:auto">'
    return f'<figure style="margin:0">{picture}{below}</figure>'


def described(alt: Any) -> str:
    """The alternative text on one line, if it is long enough to describe a figure; else TypeError or ValueError."""
    if not isinstance(alt, str):
        raise TypeError(f"alt must be a string that describes the figure, got {type(alt).__name__}")
    alt = " ".join(alt.split())
    if len(alt) < LEAST_ALT:
        raise ValueError(
            f"alt={alt!r} has {len(alt)} characters: say what is drawn and what it shows, in {LEAST_ALT} at least, "
            "for readers who cannot see the figure"
        )
    return alt


def encoded(fig: Any) -> bytes:
    """Save as PNG and close; 256 colours are enough for a drawing and make the file a third as large."""
    from PIL import Image

    fig = getattr(fig, "figure", fig)  # an Axes will do
    if not isinstance(fig, Figure):
        raise TypeError(f"expected a matplotlib figure, got {type(fig).__name__}")
    raw, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"savefig.bbox": None, "hatch.linewidth": RC["hatch.linewidth"]}):
        fig.savefig(raw, format="png", dpi=DPI, metadata={"Software": None})
    _close(fig)
    Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def _close(fig: Any) -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")  # a figure made outside pyplot has nothing to close there
    if pyplot is not None:
        pyplot.close(fig)


def shell() -> Any:
    """The running IPython, or None in plain Python."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def publish(data: dict[str, Any], alt: str) -> None:
    """Send a bundle to the front end once; in plain Python, print its text."""
    if shell() is None:
        print(data["text/plain"])
        return
    from IPython.display import display

    display(data, raw=True, metadata={"image/png": {"alt": alt}} if "image/png" in data else {})
