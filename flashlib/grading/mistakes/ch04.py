"""Known mistakes of chapter 04, one tile and the loops over tiles: programs that are right but for what ``bug`` names.

Those of the causal mask and of lse are in `ch04_causal`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flashlib.algorithms.masks import spans
from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.texts import TEXT

INF = math.inf


# -- 04.1 ----------------------------------------------------------------------------------------------------------
def one_tile(q, k, v, m, l, acc, *, bug=""):
    """(m, l, acc) after one more tile of keys."""
    scale = {
        "scale left out": 1.0, "scale 1/D": 1 / q.shape[-1], "scale from the number of keys": len(k) ** -0.5,
        "scale from the number of rows": len(q) ** -0.5,
    }.get(bug, q.shape[-1] ** -0.5)  # fmt: skip
    m, l, acc = absorb(scale * (q @ (k if bug == "k not transposed" else k.T)), v, m, l, acc, bug=bug)
    return (l, m, acc) if bug == "l first" else (m, l, acc)


def absorb(s, v, m, l, acc, *, bug=""):
    """The same from the scores on."""
    top = s.amax() if bug == "one maximum for all rows" else s.amax(-1, keepdim=bug != "no second axis")
    m_new = torch.maximum(m, top)
    if bug == "the tile's maximum returned":
        m_new = top
    if bug == "the first tile's maximum kept":
        m_new = torch.where(m == -INF, top, m)
    shrink = torch.exp(m - m_new)
    if bug == "no maximum":
        m_new, shrink = torch.zeros_like(m), torch.ones_like(m)
    p = torch.exp(s - (top if bug == "each tile its own maximum" else m_new))
    if bug == "powers of 2":
        p, shrink = torch.exp2(s - m_new), torch.exp2(m - m_new)
    of_l = of_acc = shrink
    if bug in ("acc is not rescaled", "never rescaled"):
        of_acc = torch.ones_like(shrink)
    if bug in ("l is not rescaled", "never rescaled"):
        of_l = torch.ones_like(shrink)
    if bug in ("acc rescaled the wrong way", "both rescaled the wrong way"):
        of_acc = torch.where(m == -INF, 0, 1 / shrink)
    if bug == "both rescaled the wrong way":
        of_l = of_acc
    pv = p @ v
    if bug == "every tile divided":
        pv = pv / p.sum(-1, keepdim=True)
    total = p.mean(-1, keepdim=True) if bug == "mean for sum" else p.sum(-1, keepdim=True)
    return m_new, of_l * l + total, of_acc * acc + pv


def _tile(fn: Callable[..., Any], *names: str) -> list[Mistake]:
    return [Mistake(name, partial(fn, bug=name), *TEXT[name]) for name in names]


ONE_TILE = _tile(
    one_tile, "acc is not rescaled", "never rescaled", "l is not rescaled", "scale left out",
    "each tile its own maximum", "the tile's maximum returned", "no maximum", "acc rescaled the wrong way",
    "both rescaled the wrong way", "the first tile's maximum kept", "l first", "scale from the number of rows",
    "every tile divided", "scale 1/D", "one maximum for all rows", "powers of 2", "mean for sum",
    "scale from the number of keys", "no second axis", "k not transposed",
)  # fmt: skip


# -- 04.2, 04.3 ----------------------------------------------------------------------------------------------------
def forward(q, k, v, block_q, block_k, *, bug=""):
    """o of one head, tile by tile; tiles at the edges are filled up with zeros, as a GPU's are."""
    Sq, Sk, Dv = len(q), len(k), v.shape[1]
    scale = q.shape[1] ** -0.5
    if bug == "q scaled in place":
        q *= scale
        scale = 1.0
    if bug == "whole matrix":
        return _at_once(scale * (q @ k.T), v)
    if bug == "no q tiles":
        block_q = Sq
    if bug == "tile sizes exchanged":
        block_q, block_k = block_k, block_q
    o = torch.zeros(Sq, Dv, dtype=torch.float32 if bug == "o in float32" else q.dtype)
    if bug == "whole rows of scores":
        for i0, i1 in spans(Sq, block_q):
            o[i0:i1] = _at_once(scale * (q[i0:i1] @ k.T), v)
        return o
    state = (q.new_full((block_q, 1), -INF), q.new_zeros(block_q, 1), q.new_zeros(block_q, Dv))
    for i0 in range(0, Sq // block_q * block_q if bug == "last rows dropped" else Sq, block_q):
        qi = _load(q, i0, block_q)
        if bug == "slices":
            qi = q[i0 : i0 + block_q]
        if bug != "state not started anew":
            state = (q.new_full((len(qi), 1), -INF), q.new_zeros(len(qi), 1), q.new_zeros(len(qi), Dv))
        for j0 in _starts(Sk, block_k, bug):
            kj, vj = _load(k, j0, block_k), _load(v, j0, block_k)
            if bug == "slices":
                kj, vj = k[j0 : j0 + block_k], v[j0 : j0 + block_k]
                state = absorb(scale * (qi @ kj.T), vj, *state)
                continue
            s = {"scale left out": 1.0, "scale 1/D": scale**2}.get(bug, scale) * (qi @ kj.T)
            end = Sk + {"one key too many": 1, "one key too few": -1 if Sk % block_k else 0}.get(bug, 0)
            there = (j0 + torch.arange(block_k) < end).expand_as(s)
            if bug == "keys numbered within the tile":
                there = (torch.arange(block_k) < Sk).expand_as(s)
            if bug == "padding in the maximum":
                m, l, acc = state
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                p, shrink = torch.exp(s - m_new).masked_fill(~there, 0), torch.exp(m - m_new)
                state = m_new, shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ vj
                continue
            if bug == "scores of 0 hidden":
                there = s != 0
            if bug == "keys of zeros hidden":
                there = (kj != 0).any(1).expand_as(s)
            if bug != "padding counted":
                s = s.masked_fill(~there, -1000.0 if bug == "−1000 for −∞" else -INF)
            state = absorb(s, vj, *state, bug=bug)
            if bug.startswith("divided in every turn"):
                state = (*state[:2], state[2] / state[1])
            if bug == "o added to in every turn":
                o[i0 : i0 + block_q] += state[2] / state[1]
        m, l, acc = state
        if bug == "o added to in every turn":
            continue
        tile = acc if bug in ("never divided", "every tile divided", "divided in every turn") else acc / l
        if bug == "rows that do not exist":
            o[i0 : i0 + block_q] = tile
        o[i0 : i0 + block_q] = tile[: len(o[i0 : i0 + block_q])]
    return o


def _at_once(s, v):
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return p @ v / p.sum(-1, keepdim=True)


def _load(x, start, block):
    """Always ``block`` rows; zeros past the end."""
    tile = x.new_zeros(block, x.shape[1])
    part = x[start : start + block]
    tile[: len(part)] = part
    return tile


def _starts(Sk, block, bug):
    starts = list(range(0, Sk, block))
    if bug == "last tile dropped":
        starts = starts[:-1]
    if bug == "first tile dropped":
        starts = starts[1:]
    if bug == "ragged tile dropped":
        starts = list(range(0, Sk // block * block, block))
    if bug == "ragged tile dropped, unless it is the first":
        starts = list(range(0, max(1, Sk // block) * block, block))
    if bug == "last tile moved back" and Sk >= block:
        starts[-1] = Sk - block
    return starts


def _wide(outcome: Outcome) -> int:
    """The largest (rows · columns) of the arrays that lived at the peak."""
    shapes = [re.findall(r"\d+", text.partition("(")[2]) for text in outcome.measures.get("alive", [])]
    return max((math.prod(map(int, s)) for s in shapes), default=0)


def _square(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Something of the size of S lived at the peak."""
    n = outcome.measures.get("n") or []
    return bool(n) and not finding.ok and _wide(outcome) >= n[-1] ** 2


def _panel(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Something longer than a tile, but smaller than S."""
    n = outcome.measures.get("n") or []
    return bool(n) and not finding.ok and _wide(outcome) < n[-1] ** 2


def _writes_q(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return "argument 1" in outcome.changed


FORWARD = [
    *_tile(
        forward,
        "acc is not rescaled",
        "never rescaled",
        "l is not rescaled",
        "scale left out",
        "never divided",
        "each tile its own maximum",
        "every tile divided",
        "no maximum",
        "the tile's maximum returned",
        "one maximum for all rows",
        "scale 1/D",
        "the first tile's maximum kept",
        "divided in every turn",
        "divided in every turn and at the end",
    ),
    Mistake(
        "state not started anew",
        partial(forward, bug="state not started anew"),
        "a state that is carried over from one q tile to the next",
        "What have the rows of a new q tile seen so far? Inside which loop does the state begin?",
    ),
    Mistake(
        "o added to in every turn",
        partial(forward, bug="o added to in every turn"),
        "a program that adds acc / l to o after every key tile",
        "acc holds all the keys so far. After which key tile is it o, once divided?",
    ),
    Mistake(
        "last tile dropped",
        partial(forward, bug="last tile dropped"),
        "loops that leave out the last key tile",
        "At which key does your last tile end?",
    ),
    Mistake(
        "first tile dropped",
        partial(forward, bug="first tile dropped"),
        "loops that leave out the first key tile",
        "Which keys have entered the state before the loop begins?",
    ),
    Mistake(
        "o in float32",
        partial(forward, bug="o in float32"),
        "The result is made in PyTorch's usual dtype, float32, whatever the inputs are.",
        "Of what dtype is q here, and how do you make a tensor like it?",
        fits=lambda case, outcome, finding: (
            "float64" in case.name and bool(outcome.results) and outcome.results[0].dtype == "float32"
        ),
    ),
    Mistake(
        "q scaled in place",
        partial(forward, bug="q scaled in place"),
        "An operation in place, such as `q *= scale`, changes the caller's tensor.",
        "Who else may still need q?",
        fits=_writes_q,
    ),
    Mistake(
        "whole matrix",
        partial(forward, bug="whole matrix"),
        "The numbers are right, but an array of the size of S lived at the peak.",
        "Which of your tensors has both Sq and Sk in its shape?",
        fits=_square,
    ),
    Mistake(
        "whole rows of scores",
        partial(forward, bug="whole rows of scores"),
        "The numbers are right, but more than a tile is held at a time: a q tile against all keys at once.",
        "Which of your tensors has Sk in its shape, and is it an input?",
        fits=_panel,
    ),
    Mistake(
        "no q tiles",
        partial(forward, bug="no q tiles"),
        "The numbers are right, but a product holds more rows than a q tile.",
        "Which of the two loops cuts q into tiles of block_q rows?",
        fits=lambda case, outcome, finding: finding.result == "side",
    ),
    Mistake(
        "tile sizes exchanged",
        partial(forward, bug="tile sizes exchanged"),
        "The numbers are right, but a product sums over more keys than a key tile has.",
        "Which of block_q and block_k is the step of the loop over the keys?",
        fits=lambda case, outcome, finding: finding.result == "longest",
    ),
]

RAGGED = [
    Mistake(
        "padding counted",
        partial(forward, bug="padding counted"),
        "a program in which the zeros past the end count as keys with the score 0",
        "What is exp(0 − m), and who adds it to l?",
    ),
    Mistake(
        "ragged tile dropped",
        partial(forward, bug="ragged tile dropped"),
        "loops that leave out the keys past the last whole tile",
        "How many tiles are needed for 53 keys in tiles of 16, if the last one may be part empty?",
    ),
    Mistake(
        "ragged tile dropped, unless it is the first",
        partial(forward, bug="ragged tile dropped, unless it is the first"),
        "loops that leave out the keys past the last whole tile",
        "How many tiles are needed for 53 keys in tiles of 16, if the last one may be part empty?",
    ),
    Mistake(
        "keys numbered within the tile",
        partial(forward, bug="keys numbered within the tile"),
        "a program that holds the key's number within its tile against Sk",
        "Which key of the whole is column 0 of a tile that starts at j?",
    ),
    Mistake(
        "last rows dropped",
        partial(forward, bug="last rows dropped"),
        "loops that leave out the rows past the last whole q tile",
        "How many q tiles are needed for 37 rows in tiles of 16, if the last one may be part empty?",
    ),
    Mistake(
        "padding in the maximum",
        partial(forward, bug="padding in the maximum"),
        "a program that masks the weights, but whose maximum has seen the padding",
        "If all scores of a row are near −120 and m is 0, what is exp(s − m) in float32?",
    ),
    Mistake(
        "one key too many",
        partial(forward, bug="one key too many"),
        "a program that lets one key past the end through",
        "Keys are numbered from 0. What is the number of the last one?",
    ),
    Mistake(
        "one key too few",
        partial(forward, bug="one key too few"),
        "a program that hides the last key of a ragged tile",
        "Keys are numbered from 0. What is the number of the last one?",
    ),
    Mistake(
        "last tile moved back",
        partial(forward, bug="last tile moved back"),
        "a program whose last tile begins earlier, so that some keys count twice",
        "Which keys are in your last tile and in the one before it?",
    ),
    Mistake(
        "rows that do not exist",
        partial(forward, bug="rows that do not exist"),
        "It stores a whole tile where fewer rows are left.",
        "How many rows of the last q tile belong to o?",
    ),
    Mistake(
        "scores of 0 hidden",
        partial(forward, bug="scores of 0 hidden"),
        "a program that hides every score that is 0",
        "May a real query and a real key have the score 0? Which number tells that a key does not exist?",
    ),
    Mistake(
        "keys of zeros hidden",
        partial(forward, bug="keys of zeros hidden"),
        "a program that hides every key that is all zeros",
        "May a real key be all zeros? Which number tells that a key does not exist?",
    ),
    Mistake(
        "−1000 for −∞",
        partial(forward, bug="−1000 for −∞"),
        "a program that hides by a number that real scores can fall below, such as −1000",
        "If all real scores of a row are near −9000, which score is its maximum then?",
    ),
    *_tile(
        forward, "acc is not rescaled", "never rescaled", "l is not rescaled", "scale left out", "never divided",
        "the first tile's maximum kept",
    ),
    Mistake(
        "whole matrix",
        partial(forward, bug="whole matrix"),
        "The numbers are right, but an array of the size of S lived at the peak.",
        "Which of your tensors has both Sq and Sk in its shape?",
        fits=_square,
    ),
    Mistake(
        "slices",
        partial(forward, bug="slices"),
        "The numbers are right, but the tiles at the edges are smaller, as slices are; a GPU's cannot be.",
        "What does `load` return past the end of k, and what must become of those scores?",
        fits=lambda case, outcome, finding: finding.result == "flops",
    ),
]  # fmt: skip
