"""A progress bar that leaves one line: in a notebook an output that is replaced, in a terminal tqdm on stdout."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

EVERY_S = 0.2  # no more often: each change is a message to the browser


def steps(total: int, name: str, *, note: Callable[[], str] = str, show: bool = True) -> Iterator[int]:
    """Yield 0 … total − 1 and show how far it is. Nothing goes to stderr.

    Parameters
    ----------
    total : number of steps
    name : what goes on
    note : called for a text to add, such as the loss so far
    show : False shows nothing
    """
    if not show:
        yield from range(total)
        return
    draw, close = _notebook(total, name) if _in_notebook() else _terminal(total, name)
    shown = time.perf_counter()
    draw(0, "")
    for i in range(total):
        yield i
        if time.perf_counter() - shown > EVERY_S:
            shown = time.perf_counter()
            draw(i + 1, note())
    close(note())


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def _notebook(total: int, name: str) -> tuple[Callable[[int, str], None], Callable[[str], None]]:
    from IPython.display import display, update_display

    handle: list[Any] = []

    def put(done: int, note: str, bar: bool) -> None:
        text = f"{name}: {done} of {total}" + (f", {note}" if note else "")
        code = f'<progress value="{done}" max="{total}" aria-label="{html.escape(name)}"></progress> ' if bar else ""
        data = {"text/plain": text, "text/html": f"<div>{code}{html.escape(text)}</div>"}
        if handle:
            update_display(data, display_id=handle[0].display_id, raw=True)
        else:
            handle.append(display(data, raw=True, display_id=True))

    return lambda done, note: put(done, note, True), lambda note: put(total, note, False)


def _terminal(total: int, name: str) -> tuple[Callable[[int, str], None], Callable[[str], None]]:
    from tqdm import tqdm

    bar = tqdm(total=total, desc=name, file=sys.stdout, leave=False)

    def draw(done: int, note: str) -> None:
        bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)

    return draw, lambda note: bar.close()
