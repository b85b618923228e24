"""FlashAttention, from four lines of attention to a tiled forward and backward you can trust.

``import flashlib`` is cheap: it imports neither torch nor triton. Each name loads on first use.
"""

from importlib import import_module

__version__ = "0.1.0"

_WHERE = {
    "attention": "flashlib.algorithms.api",
    "decode": "flashlib.algorithms.decode",
    "toy": "flashlib.algorithms.toy",
}
__all__ = ["__version__", "attention", "decode", "toy"]


def __getattr__(name: str):
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashlib' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_WHERE})
