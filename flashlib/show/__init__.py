"""See: figures, tables and explorers in one visual language.

Nothing here is loaded before it is used: ``import flashlib.show`` imports neither matplotlib nor ipywidgets.
"""

from importlib import import_module
from typing import Any

# name -> the module it lives in
_NAMES = {
    "show": "display",
    "explore": "display",
    "choose": "display",
    "table": "display",
    "COLOR": "style",
    "canvas": "frame",
    "look": "style",
    "looks": "style",
    "nbytes": "units",
    "count": "units",
    "seconds": "units",
}
_MODULES = ("curves", "display", "matrices", "player", "roofline", "streams", "style", "sweeps", "tiles", "units")
__all__ = [*_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
