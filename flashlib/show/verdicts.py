"""Verdicts on claims: a ruling is computed from evidence, and no ruling can be handed in as a word."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .bundle import publish
from .display import table

Source = tuple[str, str]  # what to read (paper and section), and its link
LONG = 7  # numbers: longer lists are shown by their ends
RULINGS = ("true", "false", "not decided here")


class Verdict(NamedTuple):
    """One claim and what became of it. `evidence` is what the ruling was computed from, label → number."""

    number: str
    claim: str
    ruling: str
    evidence: dict[str, Any]
    right: str
    sources: tuple[Source, ...]

    @property
    def kind(self) -> str:
        """ "true", "false", "true when …" or "not decided here": how the ruling begins."""
        if self.ruling.startswith("true when"):
            return "true when …"
        return next(word for word in RULINGS if self.ruling.startswith(word))

    @property
    def because(self) -> str:
        """The evidence in one line."""
        return "; ".join(f"{label}: {_spell(value)}" for label, value in self.evidence.items())


class Verdicts:
    """Collects verdicts, one a claim: deciding a claim again replaces what was decided before."""

    def __init__(self) -> None:
        self._all: dict[str, Verdict] = {}

    def verdict(
        self, number: str, claim: str, *, evidence: Mapping[str, Any], rule: Callable[..., str], right: str,
        source: Source | Iterable[Source],
    ) -> Verdict:  # fmt: skip
        """Decide one claim and show the verdict.

        Parameters
        ----------
        number : its place in the list, a number and perhaps a letter: "3", "2b"
        claim : as it is told
        evidence : label → what was measured, counted or computed: numbers, bools, or lists of numbers. No words.
        rule : called with the values of `evidence`, in their order; returns a ruling that begins with "true", "false"
            or "not decided here"
        right : the statement that holds
        source : (what to read, link), or several

        Raises
        ------
        ValueError
            Something is missing, or no other evidence would have changed the ruling: then it is an assertion.
        """
        sources = (source,) if isinstance(source, tuple) and isinstance(source[0], str) else tuple(source)
        if not re.fullmatch(r"\d+[a-z]?|[a-z]", number) or not claim.strip() or not right.strip():
            raise ValueError(f"claim {number!r} needs a number such as '2b', its words, and the right statement")
        if not sources or not all(text.strip() and link.strip() for text, link in sources):
            raise ValueError(f"claim {number}: name a source and its link")
        found = {label: _plain(number, label, value) for label, value in evidence.items()}
        if not found:
            raise ValueError(f"claim {number}: no evidence, no verdict")
        ruling = rule(*found.values())
        if not isinstance(ruling, str) or not ruling.startswith(RULINGS):
            raise ValueError(f"claim {number}: a ruling begins with one of {RULINGS}, got {ruling!r}")
        if not could_differ(rule, list(found.values()), ruling):
            raise ValueError(f"claim {number}: no evidence would change the ruling {ruling!r}: it is an assertion")
        made = Verdict(number, claim, ruling, found, right, tuple((t, link) for t, link in sources))
        self._all.pop(number, None)
        self._all[number] = made
        _show(made)
        return made

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self):
        return iter(sorted(self._all.values(), key=lambda v: _order(v.number)))

    def counts(self) -> dict[str, int]:
        """How many of each kind."""
        kinds = [v.kind for v in self]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of `numbers` that have no verdict; "2a" and "2b" stand for 2."""
        have = {int(v.number.rstrip("abcdefghijklmnopqrstuvwxyz") or -1) for v in self}
        return [n for n in numbers if n not in have]

    def table(self, caption: str | None = None) -> None:
        """All verdicts so far as one table; evidence and source stand with each verdict."""
        rows = [(v.number, v.claim, v.ruling, v.right) for v in self]
        table(rows, ("no.", "claim", "verdict", "what holds"), caption)


def could_differ(rule: Callable[..., str], values: list[Any], ruling: str) -> bool:
    """Whether other evidence would give another ruling: one value changed, two, … all; beyond four, one or all."""
    choices = [[value, *_others(value)] for value in values]
    if len(values) <= 4:
        others: Iterable[tuple[Any, ...]] = itertools.product(*choices)
    else:
        alone = ((*values[:i], x, *values[i + 1 :]) for i, found in enumerate(choices) for x in found)
        others = itertools.chain(alone, zip(*choices, strict=False))
    for other in others:
        try:
            if rule(*other) != ruling:
                return True
        except (ArithmeticError, ValueError):
            continue
    return False


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list):
        changed = [[x * factor for x in value] for factor in (-1, 0, 1e-9, 0.5, 2, 1e9)]
        ends = [
            [x * factor if i == at else x for i, x in enumerate(value)]
            for at in (0, len(value) - 1)
            for factor in (0, 1e9)
        ]
        return [*changed, *ends, [1] * len(value)]
    return [0, 1, -value, value * 1e-9, value / 2, value * 2, value * 1e9, math.inf]


def _plain(number: str, label: str, value: Any) -> Any:
    """A bool, a number or a list of numbers, in Python's own types."""
    if hasattr(value, "tolist"):  # NumPy and torch
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(number, label, x) for x in value]
    if not isinstance(value, bool | int | float):
        raise ValueError(f"claim {number}: {label!r} is {type(value).__name__}; evidence is numbers, not words")
    return value


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and len(value) > LONG:
        return f"{len(value)} numbers from {_spell(min(value))} to {_spell(max(value))}"
    if isinstance(value, list):
        return ", ".join(map(_spell, value))
    if isinstance(value, int) or (abs(value) >= 1000 and math.isfinite(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _order(number: str) -> tuple[float, str]:
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(digits) if digits else math.inf, number)


def _show(v: Verdict) -> None:
    rows = [("claim", f"{v.number} · {v.claim}"), ("verdict", v.ruling), ("evidence", v.because), ("right", v.right)]
    text = "\n".join(f"{name:<9} {value}" for name, value in rows)
    text += "\nsource    " + "; ".join(f"{name}, {link}" for name, link in v.sources)
    links = "; ".join(f'<a href="{html.escape(link)}">{html.escape(name)}</a>' for name, link in v.sources)
    cells = [(name, html.escape(value)) for name, value in rows] + [("source", links)]
    cells[1] = ("verdict", f"<strong>{cells[1][1]}</strong>")
    left = 'style="text-align:left;vertical-align:top"'
    body = "".join(f'<tr><th scope="row" {left}>{name}</th><td {left}>{value}</td></tr>' for name, value in cells)
    publish({"text/html": f"<table><tbody>{body}</tbody></table>", "text/plain": text}, text)
