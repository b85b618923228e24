"""Known mistakes of chapter 12, windowed attention by tiles: one program that is right but for what ``bug`` names."""

from __future__ import annotations

import math

import torch

from flashlib.algorithms.masks import spans
from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch11 import known
from flashlib.grading.mistakes.texts import TEXT

INF = math.inf
# which tiles are multiplied, if not those that some row sees
EVERY, CAUSAL, PAST = "nothing skipped", "what is too old not skipped", "the future not skipped"
FLOPS = "A tile that is touched counts as it is, 2 · rows · keys · (D + Dv) in matrix products, any other tile nothing."


def window_attention(q, k, v, width, block_q, block_k, *, bug=""):
    """o of one head; row i sees the last ``width`` keys up to i + (Sk − Sq)."""
    Sq, Sk, Dv = len(q), len(k), v.shape[1]
    if bug in ("whole matrix", "whole rows of scores"):
        block_q, block_k = max(Sq, 1) if bug == "whole matrix" else block_q, max(Sk, 1)
    width += {"one key too many": 1, "one key too few": -1}.get(bug, 0)
    shift = {"top left": 0, "shift the wrong way": Sq - Sk, "shift never negative": max(Sk - Sq, 0)}.get(bug, Sk - Sq)
    if bug == "own tiles":
        block_q = block_k = 16
    if bug == "padded to whole tiles":
        return _padded(q, k, v, width, block_q, block_k)
    if bug in ("row by row", "tiles cut", "no products"):
        return _stretches(q, k, v, width, block_q, block_k, bug)
    kept: list[torch.Tensor] = []
    scale = {"scale left out": 1.0, "scale 1/D": 1 / q.shape[1]}.get(bug, q.shape[1] ** -0.5)
    if bug == "mask of the whole":
        whole = _hidden(0, Sq, 0, Sk, shift, width, "")
    o = q.new_zeros(Sq, Dv)
    for i0, i1 in spans(Sq, block_q):
        if bug == "smaller q tile dropped" and i1 - i0 < block_q:
            continue
        state = q.new_full((i1 - i0, 1), -INF), q.new_zeros(i1 - i0, 1), q.new_zeros(i1 - i0, Dv)
        for j0, j1 in spans(Sk, block_k):
            if bug == "smaller key tile dropped" and j1 - j0 < block_k:
                continue
            if not visited(i0, i1, j0, j1, shift, width, bug):
                if bug == "hidden tiles scored":
                    q[i0:i1] @ k[j0:j1].T
                continue
            s = scale * (q[i0:i1] @ k[j0:j1].T)
            if bug == "scores computed twice":
                s = scale * (q[i0:i1] @ k[j0:j1].T)
            hidden = _hidden(i0, i1, j0, j1, shift, width, bug)
            if bug == "masks of all tiles":
                kept = kept or [
                    _hidden(*rows, *keys, shift, width, "")
                    for rows in spans(Sq, block_q)
                    for keys in spans(Sk, block_k)
                ]
            if bug == "mask of the whole":
                hidden = whole[i0:i1, j0:j1]
            state = _absorb(s, hidden, v[j0:j1], *state, bug)
        _, l, acc = state
        by = l if bug in ("0 / 0", "no guard, NaN made 0") else l.masked_fill(l == 0, 1)
        if bug == "epsilon":
            by = l + 1e-3
        o[i0:i1] = acc if bug == "never divided" else acc / by
    return o.nan_to_num() if bug == "no guard, NaN made 0" else o


def _padded(q, k, v, width, block_q, block_k):
    """Zeros up to whole tiles: rows behind the last one, keys behind the last one, which are hidden from all."""
    Sq, Sk, shift = len(q), len(k), len(k) - len(q)
    more_q, more_k = -Sq % block_q, -Sk % block_k
    q = torch.cat([q, q.new_zeros(more_q, q.shape[1])])
    k, v = (torch.cat([x, x.new_zeros(more_k, x.shape[1])]) for x in (k, v))
    o = q.new_zeros(len(q), v.shape[1])
    for i0, i1 in spans(len(q), block_q):
        state = q.new_full((block_q, 1), -INF), q.new_zeros(block_q, 1), q.new_zeros(block_q, v.shape[1])
        for j0, j1 in spans(len(k), block_k):
            if visited(i0, min(i1, Sq), j0, min(j1, Sk), shift, width, ""):
                hidden = _hidden(i0, i1, j0, j1, shift, width, "") | (torch.arange(j0, j1) >= Sk)
                state = _absorb(q.shape[1] ** -0.5 * (q[i0:i1] @ k[j0:j1].T), hidden, v[j0:j1], *state, "")
        o[i0:i1] = state[2] / state[1].masked_fill(state[1] == 0, 1)
    return o[:Sq]


def _stretches(q, k, v, width, block_q, block_k, bug):
    """Without the grid of tiles: each row with the keys that it sees; or each q tile with those that some row sees."""
    Sq, shift, o = len(q), len(k) - len(q), q.new_zeros(len(q), v.shape[1])
    for i0, i1 in spans(Sq, 1 if bug == "row by row" else block_q):
        state = q.new_full((i1 - i0, 1), -INF), q.new_zeros(i1 - i0, 1), q.new_zeros(i1 - i0, v.shape[1])
        first, end = max(0, i0 + shift - width + 1), max(0, i1 + shift)
        for j0, j1 in spans(len(k), len(k) if bug == "row by row" else block_k):
            if bug != "no products":
                j0, j1 = max(first, j0), min(end, j1)
            if j0 >= min(j1, end) or j1 <= first:
                continue
            s = (q[i0:i1, None] * k[j0:j1]).sum(-1) if bug == "no products" else q[i0:i1] @ k[j0:j1].T
            state = _absorb(q.shape[1] ** -0.5 * s, _hidden(i0, i1, j0, j1, shift, width, ""), v[j0:j1], *state, bug)
        o[i0:i1] = state[2] / state[1].masked_fill(state[1] == 0, 1)
    return o


def visited(i0, i1, j0, j1, shift, width, bug):
    """Whether the program multiplies this tile."""
    first, last = i0 + shift - width + 1, i1 - 1 + shift
    if bug == "far edge of the last row":
        first = i1 + shift - width
    if bug == "near edge of the first row":
        last = i0 + shift
    if bug in ("one tile too many", "one tile too early"):
        width_of = j1 - j0
        first -= width_of if bug == "one tile too early" else 0
        last += width_of if bug == "one tile too many" else 0
    if bug == "whole tiles only":
        return j0 >= i1 + shift - width and j1 - 1 <= i0 + shift
    seen_by_future = bug in (EVERY, PAST, "mask in the loop only", "not causal")
    if bug == "q tile skipped by its first row" and i0 + shift < 0:
        return False
    seen_by_past = bug in (EVERY, CAUSAL, "no window")
    return (j0 <= last or seen_by_future) and (j1 > first or seen_by_past)


def _hidden(i0, i1, j0, j1, shift, width, bug):
    row, key = torch.arange(i0, i1)[:, None] + shift, torch.arange(j0, j1)
    future, old = key > row, key <= row - width
    if bug.startswith("counted within the tile"):
        row, key = torch.arange(i1 - i0)[:, None], torch.arange(j1 - j0)
        row = row + (0 if bug.endswith("from 0") else shift)
        future, old = key > row, key <= row - width
    return {
        "no mask at the far edge": future, "no window": future, "no mask at the near edge": old, "not causal": old,
        "no mask in the tiles": torch.zeros_like(future), "hides the window": ~(future | old),
    }.get(bug, future | old)  # fmt: skip


def _absorb(s, hidden, v, m, l, acc, bug):
    top = s.amax(-1, keepdim=True)
    s = s.masked_fill(hidden, {"−1e9 for −∞": -1e9, "masked by 0": 0.0, "−1000 for −∞": -1000.0}.get(bug, -INF))
    if bug != "maximum before the mask":
        top = s.amax(-1, keepdim=True)
    m_new = torch.maximum(m, top)
    if bug == "each tile its own maximum":
        m_new = top
    unguarded = bug in ("no guard", "no guard, NaN made 0")
    safe = m_new if unguarded else m_new.masked_fill(m_new == -INF, 0)
    if bug == "no maximum":
        safe, m = torch.zeros_like(safe), torch.zeros_like(m)
    p, shrink = torch.exp(s - safe), torch.exp(m - safe)
    if bug == "each tile its own maximum":
        shrink = torch.ones_like(shrink)
    of_acc = 1 if bug in ("acc is not rescaled", "never rescaled") else shrink
    of_l = 1 if bug in ("l is not rescaled", "never rescaled") else shrink
    pv = (p[..., None] * v).sum(-2) if bug == "no products" else p @ v
    return m_new, of_l * l + p.sum(-1, keepdim=True), of_acc * acc + pv


def tile_flops(Sq, Sk, D, Dv, width, block_q, block_k, bug="", *, whole=False):
    """FLOPs of the two products, 2 · m · n · k each, in the tiles that the program with this bug multiplies; ``whole``:
    smaller tiles counted like the others."""
    return sum(
        2 * (block_q * block_k if whole else (i1 - i0) * (j1 - j0)) * (D + Dv)
        for i0, i1 in spans(Sq, block_q)
        for j0, j1 in spans(Sk, block_k)
        if visited(i0, i1, j0, j1, Sk - Sq, width, bug)
    )


def _flops(bug, twice=False):
    """Whether the counted FLOPs are those of this bug; ``twice``: those of the right tiles, scores counted twice."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if case.how != "matmuls" or finding.ok:
            return False
        q, k, v, width, block_q, block_k = case.args

        def flops(D: int, Dv: int, bug: str = "") -> int:
            return tile_flops(len(q), len(k), D, Dv, width, block_q, block_k, bug)

        D, Dv = q.shape[1], v.shape[1]
        made = flops(D, 0, EVERY) + flops(0, Dv) if bug == "hidden tiles scored" else flops(D * (1 + twice), Dv, bug)
        if bug == "own tiles":  # whichever: a square, or exchanged
            sides = [(block_k, block_q), *((n, n) for n in {block_q, block_k, 8, 16, 32, 64, 128})]
            sizes = [tile_flops(len(q), len(k), D, Dv, width, *side) for side in sides]
            return outcome.measures.get("flops") in sizes
        if bug == "row by row":
            return outcome.measures.get("flops") == tile_flops(len(q), len(k), D, Dv, width, 1, 1)
        if bug == "padded to whole tiles":
            tiles = tile_flops(len(q), len(k), D, Dv, width, block_q, block_k, "", whole=True)
            return outcome.measures.get("flops") == tiles
        if bug == "tiles cut":
            return 0 < outcome.measures.get("flops", 0) < flops(D, Dv)
        return outcome.measures.get("flops") == made

    return fits


def _held(what):
    """Whether more than tiles lived at the peak: scores N × N, a mask N × N, or a q tile's scores with all keys."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if "peak" not in outcome.measures or finding.ok:
            return False
        n, alive = outcome.measures["n"][-1], outcome.measures.get("alive", [])
        square = [text.partition(" ")[0] for text in alive if f"({n}, {n})" in text]
        shapes = [[int(d) for d in text.partition("(")[2].rstrip(")").split(",") if d.strip()] for text in alive]
        _, _, _, _, block_q, block_k = case.args
        if all(math.prod(shape) <= block_q * block_k for shape in shapes):
            return what == "pieces"
        scores = any(op in ("mm", "mul", "div", "exp", "sub", "masked_fill", "where") for op in square)
        return what == ("scores" if scores else "mask" if square else "panel")

    return fits


ROW_0 = "The last query sees the last key. With more keys than queries, what is the last key of row 0?"
WINDOW = known(
    window_attention,
    (
        "no guard",
        "a program that computes (−∞) − (−∞) in rows that see no key of a tile",
        "In a row that has seen nothing so far m is −∞. What is s − m there, and what should exp of it be?",
    ),
    (
        "0 / 0",
        "a program that divides 0 by 0 in rows that see no key",
        "What are acc and l of a row that saw nothing, and by what may you divide instead?",
    ),
    (
        "no guard, NaN made 0",
        "a program that computes (−∞) − (−∞) and makes the NaN to 0 at the end",
        "A row may see nothing of its first tile and something of the next. What is left of it once it is NaN?",
    ),
    ("one key too many", "a window of width + 1 keys", "With width = 1 a row sees one key. Which one?"),
    ("one key too few", "a window of width − 1 keys", "With width = 1 a row sees one key. Which one?"),
    ("top left", "a window aligned to the top left", ROW_0),
    ("shift the wrong way", "a window shifted by Sq − Sk", ROW_0),
    (
        "shift never negative",
        "a window that is never shifted to the left",
        "With Sq = 5 and Sk = 2, which keys does the first query see?",
    ),
    (
        "no mask at the far edge",
        "a program that skips tiles that are too old but hides no old key inside a tile",
        "Do all rows of the first visited tile see all of its keys?",
    ),
    (
        "no mask at the near edge",
        "a program that skips tiles of the future but hides no later key inside a tile",
        "Do all rows of the last visited tile see all of its keys?",
    ),
    (
        "no mask in the tiles",
        "a program that skips tiles but masks nothing inside them",
        "Which tiles do the two edges of the window run through?",
    ),
    ("no window", "causal attention without a window", "Which keys are too old for a row to see?"),
    ("not causal", "a program that hides old keys but not those of the future", "May a row see keys after its own?"),
    (
        "hides the window",
        "a program that sees what it should hide",
        "masked_fill(x, −∞): what is hidden where x is True?",
    ),
    (
        "counted within the tile",
        "a mask that numbers rows and keys within the tile",
        "Which row of the whole is row 0 of this tile, and which key is key 0?",
    ),
    (
        "far edge of the last row",
        "a program that skips by the far edge of the tile's last row",
        "Which row of the tile looks back farthest?",
    ),
    (
        "near edge of the first row",
        "a program that skips by the near edge of the tile's first row",
        "Which row of the tile sees the latest key?",
    ),
    (
        "whole tiles only",
        "a program that leaves out the tiles through which an edge runs",
        "What is to be done with a tile of which some rows see some keys?",
    ),
    (
        "−1e9 for −∞",
        "a program that hides by −1e9",
        "If all scores of a row are −1e9, what is exp(s − m)? Does the row see nothing then?",
    ),
    (
        "−1000 for −∞",
        "a program that hides by a number that real scores can fall below, such as −1000",
        "If all real scores of a row are near −9000, which score is its maximum then?",
    ),
    ("masked by 0", "a program in which hidden scores are 0", "Which score gives the weight exp(s − m) = 0?"),
    (
        "maximum before the mask",
        "a program whose maximum is taken before the mask",
        "If a hidden score is 200 larger than every visible one, what are the weights of the visible ones?",
    ),
    (
        "epsilon",
        "a program that divides by l plus a small number",
        "Is l + 0.001 still the sum of the weights in a row that sees something?",
    ),
    (
        "counted within the tile from 0",
        "a mask that numbers rows and keys within the tile, both from 0",
        "Which row of the whole is row 0 of this tile, and which key is key 0?",
    ),
    (
        "q tile skipped by its first row",
        "a program that skips a q tile because its first row sees no key",
        "Which row of the tile sees the latest key?",
    ),
    (
        "smaller q tile dropped",
        "a program that leaves out the last q tile where it is smaller",
        "With Sq = 30 and tiles of 8, how many q tiles are there, and how many rows has the last?",
    ),
    (
        "smaller key tile dropped",
        "a program that leaves out the last key tile where it is smaller",
        "With Sk = 30 and tiles of 8, how many key tiles are there, and how many keys has the last?",
    ),
    ("acc is not rescaled", *TEXT["acc is not rescaled"]),
    ("l is not rescaled", *TEXT["l is not rescaled"]),
    ("never rescaled", *TEXT["never rescaled"]),
    ("each tile its own maximum", *TEXT["each tile its own maximum"]),
    ("no maximum", *TEXT["no maximum"]),
    ("never divided", *TEXT["never divided"]),
    ("scale left out", *TEXT["scale left out"]),
    ("scale 1/D", *TEXT["scale 1/D"]),
    (
        CAUSAL,
        "The numbers are right and the future is skipped, but tiles that are too old are multiplied.",
        "Which is the first key that the tile's first row sees? What of the tiles before it?",
        _flops(CAUSAL),
    ),
    (
        PAST,
        "The numbers are right and old tiles are skipped, but tiles of the future are multiplied.",
        "Which is the last key that the tile's last row sees? What of the tiles after it?",
        _flops(PAST),
    ),
    (
        EVERY,
        "The numbers are right, but every tile is multiplied, those too that no row sees.",
        "What do 12.2's two numbers say about a tile before you load it?",
        _flops(EVERY),
    ),
    (
        "hidden tiles scored",
        "The numbers are right, but hidden tiles are left out only after their scores have been computed.",
        "What must you know to leave a tile out: its scores, or only where it lies?",
        _flops("hidden tiles scored"),
    ),
    (
        "scores computed twice",
        "The numbers are right and hidden tiles are skipped, but the scores of the others are computed twice.",
        "For which two things do you need the scores of a tile, and can both be had from one product?",
        _flops("", twice=True),
    ),
    (
        "one tile too many",
        "The numbers are right, but at the near edge a tile is multiplied that no row sees.",
        "Which is the last key that the tile's last row sees, and in which tile does it lie?",
        _flops("one tile too many"),
    ),
    (
        "one tile too early",
        "The numbers are right, but at the far edge a tile is multiplied that no row sees.",
        "Which is the first key that the tile's first row sees, and in which tile does it lie?",
        _flops("one tile too early"),
    ),
    (
        "padded to whole tiles",
        "The numbers are right and hidden tiles are skipped, but the last tiles are filled up and multiplied whole.",
        "How many rows has the last q tile, and how many keys the last key tile, if nothing is filled up?",
        _flops("padded to whole tiles"),
    ),
    (
        "own tiles",
        "The numbers are right, but the tiles are not those that block_q and block_k ask for.",
        "How many rows has a q tile, and how many keys a key tile? Who decides it here?",
        _flops("own tiles"),
    ),
    (
        "no products",
        "The numbers are right, but no matrix product is seen: the check can only count those.",
        "Which operator sums the products of rows with rows by itself?",
        lambda case, outcome, finding: finding.result == "flops" and not outcome.measures["flops"],
    ),
    (
        "row by row",
        "The numbers are right, but every row is multiplied by itself; asked for are tiles.",
        "How many rows share the load of one key tile?",
        _flops("row by row"),
    ),
    (
        "tiles cut",
        "The numbers are right, but of a touched tile only a part is multiplied.",
        "Which keys has key tile t: all from t · block_k on, or only those that some row sees?",
        _flops("tiles cut"),
    ),
    (
        "masks of all tiles",
        "The numbers are right, but pieces pile up: something is kept for every tile, though only one is at work.",
        "What does one tile leave behind that the next one needs, besides m, l and acc?",
        _held("pieces"),
    ),
    (
        "whole matrix",
        "The numbers are right, but an array of the size of S lived at the peak.",
        "Which of your tensors has both Sq and Sk in its shape?",
        _held("scores"),
    ),
    (
        "mask of the whole",
        "The numbers are right, but a mask of all rows and keys is held.",
        "Which part of the mask does one tile need, and can it be made from the tile's own numbers?",
        _held("mask"),
    ),
    (
        "whole rows of scores",
        "The numbers are right, but more than a tile is held at a time, such as a q tile against all keys at once.",
        "Which of your tensors has more than block_q rows or block_k keys, and is it an input or o?",
        _held("panel"),
    ),
)
