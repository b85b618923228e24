"""A figure with controls in front of it, and the same figure as a still picture where no widget can be shown."""

import html
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .bundle import bundle, described, encoded, publish, shell

WIDGET = "application/vnd.jupyter.widget-view+json"
Alt = str | Callable[..., str]


def explore(draw: Callable[..., Any], *, alt: Alt, caption: str | None = None, **controls: Any) -> None:
    """Show a figure with controls in front of it, and a still picture where there is no widget manager.

    Parameters
    ----------
    draw : callable
        ``draw(**values)`` returns a figure (or leaves one in pyplot).
    alt : str or callable
        As in `show`; a callable is given the values, ``alt(**values)``, and describes the picture they make.
    caption : str, optional
        A line under the picture.
    **controls
        One per argument of `draw`: ``choose([...])``, a list of values, ``True``/``False``, or a core ipywidgets
        widget. The first picture is drawn with their values as they stand.

    Raises
    ------
    ValueError, TypeError
        No controls, a control of an unknown kind, a missing or short `alt`. An error in the *first* drawing is raised;
        one after a control was moved is shown as text in place of the picture.
    """
    if not controls:
        raise ValueError("explore needs at least one control, for example explore(draw, alt=..., block=[1, 2, 4])")
    specs = {name: _control(name, c) for name, c in controls.items()}
    values = {name: c.value for name, c in specs.items()}
    picture, text = _draw(draw, alt, values)
    data = bundle(picture, text, caption)
    # built pages set FLASHLIB_STATIC=1; outside a kernel nothing could answer a widget
    if os.environ.get("FLASHLIB_STATIC") != "1" and getattr(shell(), "kernel", None) is not None:
        box = _widget(draw, alt, caption, specs, data["text/html"])
        if box is not None:
            data[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    publish(data, text)


@dataclass(frozen=True)
class Choice:
    """A control that needs no ipywidgets until it is shown: a list of values, one of them chosen."""

    values: tuple[Any, ...]
    value: Any
    label: str = ""
    show: Callable[[Any], str] = str


def choose(values: Sequence[Any], start: Any = None, label: str = "", show: Callable[[Any], str] = str) -> Choice:
    """Describe a control of `explore`: the values it can take, the first one shown, its label.

    Parameters
    ----------
    values : sequence
        Numbers become a slider over exactly these values, anything else a menu, True and False a check box.
    start : optional
        The value at first; the first of `values` if left out.
    label : str
        The control's name on the screen; the argument's name if left out.
    show : callable
        Writes a value, for example ``units.nbytes``.
    """
    values = tuple(values)
    if not values:
        raise ValueError("choose needs at least one value")
    if start is None:
        start = values[0]
    if start not in values:
        raise ValueError(f"start={start!r} is not one of the values {list(values)!r}")
    return Choice(values, start, label, show)


def _draw(draw: Callable[..., Any], alt: Alt, values: dict[str, Any]) -> tuple[bytes, str]:
    fig = draw(**values)
    if fig is None:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not pyplot.get_fignums():
            raise TypeError(f"{getattr(draw, '__name__', 'draw')} returned no figure: end it with 'return fig'")
        fig = pyplot.gcf()
    return encoded(fig), described(alt(**values) if callable(alt) else alt)


def _control(name: str, control: Any) -> Any:
    if isinstance(control, Choice) or (hasattr(control, "value") and hasattr(control, "observe")):
        return control
    if isinstance(control, bool):
        return Choice((False, True), control)
    if isinstance(control, list | tuple | range):
        return choose(control)
    raise TypeError(f"control {name!r}: expected choose(...), a list of values, a bool or a widget, got {control!r}")


def _widget(draw: Callable[..., Any], alt: Alt, caption: str | None, specs: dict[str, Any], first: str) -> Any:
    """Controls above a picture that is plain HTML: the same in ipywidgets 7 and 8, and it can carry alt text."""
    try:
        import ipywidgets
    except ImportError:
        return None
    made = {name: _made(ipywidgets, name, c) for name, c in specs.items()}
    picture = ipywidgets.HTML(value=first)

    def redraw(_change: Any = None) -> None:
        try:
            drawn, text = _draw(draw, alt, {name: w.value for name, w in made.items()})
            picture.value = bundle(drawn, text, caption)["text/html"]
        except Exception as error:  # a widget's callback has nowhere else to show it
            said = html.escape(f"{type(error).__name__}: {error}")
            picture.value = f'<pre role="alert" style="white-space:pre-wrap">This picture failed.\n{said}</pre>'

    for widget in made.values():
        widget.observe(redraw, names="value")
    row = ipywidgets.HBox(list(made.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([row, picture])


def _made(ipywidgets: Any, name: str, control: Any) -> Any:
    """The ipywidget of a control; a widget given ready is only given a description if it has none."""
    if not isinstance(control, Choice):
        if not control.description:
            control.description = name
        return control
    common = {"description": control.label or name, "style": {"description_width": "initial"}}
    if set(control.values) == {False, True} and all(isinstance(v, bool) for v in control.values):
        return ipywidgets.Checkbox(value=control.value, indent=False, **common)
    options = [(control.show(v), v) for v in control.values]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in control.values):
        # redraw when the handle is let go or an arrow key is pressed, not on the way: a drawing takes 0.2 s
        return ipywidgets.SelectionSlider(options=options, value=control.value, continuous_update=False, **common)
    return ipywidgets.Dropdown(options=options, value=control.value, **common)
