"""One player for any recorded run: of the memory machine, or of a Triton kernel under `watch`; yours too.

Where a widget can be shown it steps, scrubs and plays; elsewhere it is a strip of still pictures. Both say the same in
words.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from typing import Any

from .bundle import bundle, described, encoded, publish, shell
from .explorer import WIDGET
from .player_figure import draw
from .player_strip import strip, told
from .playing import Playing
from .recording import recording
from .row_state import Problem

PACE = 1200  # milliseconds a step when it plays; a picture takes about 300 to draw


def play(
    run: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    row: int,
    causal: bool = False,
    scale: float | None = None,
    head: tuple[int, int] = (0, 0),
    names: Mapping[str, str] | None = None,
    o: Any = None,
    log2: bool = False,
    start: int | None = None,
) -> Playing:
    """Show a recorded run of attention step by step, beside what is right.

    Parameters
    ----------
    run : MemoryMachine or its report, or Watch
        Recorded with ``trace=True``; a watch with ``keep=("m", "l", "acc")`` also tells the kernel's own numbers.
    q, k, v : (Sq, D), (Sk, D), (Sk, Dv), or (B, H, S, D)
        The inputs of the run; NumPy or torch.
    row : int
        The query that we follow.
    causal, scale
        As the run should have had them; scale is 1/√D if left out.
    head : (int, int)
        Batch and query head, for inputs of four dimensions.
    names : mapping, optional
        What the program calls things: ``{"queries": "Q", "top": "m"}``. Q, q, q_ptr, m, l, acc need no mapping.
    o : array like q, optional
        The run's result, compared where the run itself did not note what it stored.
    log2 : bool
        The program holds m in units of log 2.
    start : int, optional
        The first step shown; the end of the row's first tile if left out.

    Returns
    -------
    Playing
        What is shown: ``.states[n]`` is the row's state after step n, ``.difference`` the first wrong place or None.

    Raises
    ------
    ValueError
        Nothing was recorded, or the row does not exist.
    """
    q, k, v, o = _head(q, k, v, o, head)
    problem = Problem(q, k, v, causal=causal, scale=scale)
    notes = recording(run, head=head, names=names)
    playing = Playing(notes, problem, row, o=o, log2=log2)
    moments = playing.moments()
    start = moments[0] if start is None else start
    if not 0 <= start < len(notes.steps):
        raise ValueError(f"step {start} does not exist: the run has steps 0 to {len(notes.steps) - 1}")
    spoken = described(told(playing, moments))
    data = bundle(encoded(strip(playing, moments)), spoken, playing.verdict())
    if os.environ.get("FLASHLIB_STATIC") != "1" and getattr(shell(), "kernel", None) is not None:
        box = _widget(playing, start, lambda r: Playing(notes, problem, r, o=o, log2=log2))
        if box is not None:
            data[WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    publish(data, spoken)
    return playing


def _head(q: Any, k: Any, v: Any, o: Any, head: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """One head's matrices of inputs that may have four dimensions; query heads share KV heads."""
    if q.ndim == 2:
        return q, k, v, o
    b, h = head
    kv = h // (q.shape[1] // k.shape[1])
    return q[b, h], k[b, kv], v[b, kv], None if o is None else o[b, h]


def page(playing: Playing, n: int) -> str:
    """A step as HTML: the picture with its words, and the followed row's numbers as text."""
    said = " · ".join(playing.numbers(n))
    picture = encoded(draw(playing, n))
    return bundle(picture, described(playing.words(n)), f"{said}. {playing.verdict()}")["text/html"]


def _widget(playing: Playing, start: int, follow: Any) -> Any:
    """Slider, play and buttons above the picture: core widgets of ipywidgets 7.7 and 8, all on the keyboard."""
    try:
        import ipywidgets as w
    except ImportError:
        return None
    last, steps = len(playing.run.steps) - 1, playing.run.steps
    wide = {"description_width": "initial"}
    clock = w.Play(value=start, min=0, max=last, step=1, interval=PACE, show_repeat=False,
                   layout=w.Layout(width="6em"))  # fmt: skip
    step = w.IntSlider(value=start, min=0, max=last, description="step", continuous_update=False, style=wide,
                       layout=w.Layout(width="17em"))  # fmt: skip
    row = w.BoundedIntText(value=playing.row, min=0, max=len(playing.problem.q) - 1, description="row", style=wide,
                           layout=w.Layout(width="6em"))  # fmt: skip
    picture = w.HTML(value=page(playing, start))
    shown, pages = {"playing": playing}, {(playing.row, start): picture.value}

    def redraw(_change: Any = None) -> None:
        key = row.value, step.value
        try:
            if key not in pages:
                if shown["playing"].row != row.value:
                    shown["playing"] = follow(row.value)
                pages[key] = page(shown["playing"], step.value)
            picture.value = pages[key]
        except Exception as error:  # a widget's callback has nowhere else to show it
            said = html.escape(f"{type(error).__name__}: {error}")
            picture.value = f'<pre role="alert" style="white-space:pre-wrap">This picture failed.\n{said}</pre>'

    def next_tile(n: int) -> int:
        return next((t.last for t in playing.run.tiles if t.last > n), last)

    def button(text: str, tip: str, to: Any) -> Any:
        made = w.Button(description=text, tooltip=tip, layout=w.Layout(width="auto"))
        made.on_click(lambda _: setattr(step, "value", to(step.value)))
        return made

    chip = playing.chip
    buttons = [
        button("◀ step", "One step back", lambda n: max(n - 1, 0)),
        button("step ▶", "One step on: a load, a store, or a value computed on chip", lambda n: min(n + 1, last)),
        button("tile ▶", "On to the step after which the next tile of scores is absorbed", next_tile),
        button("transfer ▶", f"On to the next load or store, past what is computed on the {chip} without moving bytes",
               lambda n: next((i for i in range(n + 1, last) if steps[i].bytes), last)),
    ]  # fmt: skip
    if playing.difference:
        place = playing.difference.step
        buttons.append(button("first difference", "To the step at which the run first differs from float64",
                              lambda _: place))  # fmt: skip
    for control in (step, row):
        control.observe(redraw, names="value")
    # in the browser, so that it plays at its pace whatever the kernel does
    box = w.VBox([w.HBox([clock, step, row, *buttons], layout=w.Layout(flex_flow="row wrap")), picture])
    box.link = w.jslink((clock, "value"), (step, "value"))
    return box
