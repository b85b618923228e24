"""The player's still picture: some steps below one another, each with the grid and the row; the rest is said once."""

from __future__ import annotations

from matplotlib.figure import Figure

from .frame import blank, headline
from .inches import axes, code, write
from .player_grid import margin, matrix
from .playing import Playing
from .row_words import Line, Piece, text
from .step_titles import heading
from .step_titles import headline as what_to_see
from .style import SMALL, styled

WIDE, EACH, LARGE = 9.0, 1.72, 16  # inches, inches a step, points


@styled
def strip(play: Playing, moments: list[int]) -> Figure:
    """Draw the still picture of these steps."""
    title, below = what_to_see(play), 1.5
    top = 0.62 + 0.26 * headline(blank((WIDE, 1.0)), title)
    tall = top + EACH * len(moments) + below
    fig = blank((WIDE, tall))
    fig.set_layout_engine("none")
    headline(fig, title)
    left = margin(play)
    for k, n in enumerate(moments):
        y = tall - top - EACH * (k + 1)
        last = k == len(moments) - 1
        matrix(axes(fig, left, y + 0.2, 2.8 - left, EACH - 0.2), play, n, small=True, named=k == 0, keyed=last)
        write(fig, 3.1, y + EACH - 0.22, [Piece(heading(play, n))], size=LARGE - 1, fontweight="bold")
        for i, line in enumerate(row_lines(play, n)):
            write(fig, 3.1, y + EACH - 0.58 - 0.35 * i, line, size=LARGE)
    for i, said in enumerate(once(play, moments)):
        write(fig, 0.15, 0.88 - 0.27 * i, [Piece(said)], size=SMALL)
    if source := _code(play, moments):
        code(fig, 0.15, 0.5, source)
    return fig


def row_lines(play: Playing, n: int) -> list[Line]:
    """The row's numbers in a panel: m and l; then acc, or, where it is stored or wrong, o."""
    if play.states[n] is None:
        return play.lines(n)
    _, sums, acc, *o = play.lines(n)
    if play.step(n).role == "O":
        return o if play.wrong(n) else o[:1]
    return [sums, *o] if play.wrong(n) else [sums, acc]


def once(play: Playing, moments: list[int]) -> list[str]:
    """What is said once, for all the steps."""
    most = max(moments, key=lambda n: sum(play.step(n).held.values()))
    rooms = {play.room(n) for n in moments}
    state = play.states[moments[-1]]
    source = "" if state is None or state.kept else " m, l, acc: computed anew from q, k, v."
    each = "at each of these steps" if len(rooms) == 1 else f"at most (step {most})"
    return [f"{play.room(most)} {each}.{source}", f"{play.bytes_line(moments[-1])}."]


def told(play: Playing, moments: list[int]) -> str:
    """The still picture in words."""
    steps = [f"{heading(play, n)}. {'; '.join(map(text, row_lines(play, n)))}." for n in moments]
    line = _code(play, moments)
    return " ".join([f"{what_to_see(play)}.", *steps, *once(play, moments), f"Line of code at {line}" if line else ""])


def _code(play: Playing, moments: list[int]) -> str:
    """The line of code at the first difference, else at the last of the tiles' ends."""
    ends = [n for n in moments if play.over(n)] or moments
    n = play.difference.step if play.difference else ends[-1]
    return f"step {n}: {play.code(n)}" if play.code(n) else ""
