"""Known mistakes of chapter 04, the causal mask and lse: one program that is right but for what ``bug`` names."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from flashlib.algorithms.masks import spans, tiles, visible
from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.texts import TEXT

INF = math.inf


KEEPS = ("nothing skipped", "−1e9 for −∞", "diagonal where i0 = j0", "hidden tiles scored")


def flash(q, k, v, block_q, block_k, causal=True, *, bug=""):
    """(o, lse) of one head."""
    import torch

    Sq, Sk, Dv = len(q), len(k), v.shape[1]
    if bug == "whole matrix":
        block_q, block_k = max(Sq, 1), max(Sk, 1)
    work = q.dtype if bug == "16-bit state" or q.dtype == torch.float64 else torch.float32
    shift = {
        "aligned top left": 0, "one key too few": Sk - Sq - 1, "one key too many": Sk - Sq + 1,
        "shift never negative": max(Sk - Sq, 0),
    }.get(bug, Sk - Sq)  # fmt: skip
    if bug == "shift the wrong way":
        shift = Sq - Sk
    if not causal or bug == "no mask":
        shift = max(Sq, Sk)
    if bug == "mask of the whole":
        whole = torch.arange(Sk) > torch.arange(Sq)[:, None] + shift
    o = torch.empty(Sq, Dv, dtype=work if bug == "o in float32" else q.dtype)
    lse = torch.empty(Sq, dtype=q.dtype if bug == "lse in 16 bits" else work)
    scale = 1.0 if bug == "scale left out" else q.shape[1] ** -0.5
    for i0, i1 in spans(Sq, block_q):
        m, l, acc = (torch.full((i1 - i0, n), x, dtype=work) for n, x in ((1, -INF), (1, 0.0), (Dv, 0.0)))
        row = torch.arange(i0, i1)[:, None]
        for j0, j1 in spans(Sk, block_k):
            last = {"skipped by the first row": i0, "one tile too many": i1}.get(bug, i1 - 1) + shift
            if j0 > last and bug not in KEEPS:
                continue
            if bug == "diagonal where i0 = j0" and j0 > i0:
                continue
            if bug == "full tiles only" and j1 - 1 > i0 + shift:
                continue
            s = q[i0:i1].to(work) @ k[j0:j1].to(work).T
            if bug == "scores computed twice":
                s = q[i0:i1].to(work) @ k[j0:j1].to(work).T
            if bug == "scores in 16 bits":
                s = (q[i0:i1] @ k[j0:j1].T).to(work)
            if bug == "hidden tiles scored" and j0 > last:
                continue
            top = scale * s.amax(-1, keepdim=True)
            if bug != "raw scores in lse":
                s = s * scale
            key = torch.arange(j0, j1)
            hidden = key > row + shift
            if bug == "the future seen":
                hidden = key < row + shift
            if bug == "diagonal where i0 = j0":
                hidden = key > row
            if bug == "counted within the tile":
                hidden = key - j0 > row - i0 + shift
            if bug == "the tile's own triangle":
                hidden = (key - j0 > row - i0) & torch.tensor(j1 - 1 > i0 + shift)
            if bug == "mask of the whole":
                hidden = whole[i0:i1, j0:j1]
            if bug == "no mask in the tile" or (bug == "diagonal where i0 = j0" and i0 != j0):
                hidden = torch.zeros_like(hidden)
            if bug == "masked by 0":
                s = s.masked_fill(hidden, 0)
            elif bug == "−1e9 for −∞":
                s = s.masked_fill(hidden, -1e9)
            elif bug != "mask not in l":
                s = s.masked_fill(hidden, -INF)
            m_new = torch.maximum(m, top if bug == "maximum before the mask" else s.amax(-1, keepdim=True))
            if bug == "the first tile's maximum kept":
                m_new = torch.where(m == -INF, m_new, m)
            safe = m_new if bug in ("no guard", "no guards") else m_new.masked_fill(m_new == -INF, 0)
            by = scale if bug == "raw scores in lse" else 1
            p, shrink = torch.exp(by * (s - safe)), torch.exp(by * (m - safe))
            l = shrink * l + p.sum(-1, keepdim=True)
            if bug == "mask not in l":
                p = p.masked_fill(hidden, 0)
            pv = p @ v[j0:j1].to(work) if bug != "P in 16 bits" else (p.to(q.dtype) @ v[j0:j1]).to(work)
            acc = (1 if bug == "acc is not rescaled" else shrink) * acc + pv
            m = m_new
        by_l = l if bug in ("0 / 0", "no guards", "maximum before the mask") else l.masked_fill(l == 0, 1)
        o[i0:i1] = acc if bug == "never divided" else acc / by_l
        lse[i0:i1] = _lse(m, l, by_l, bug)[:, 0]
    return o, lse[:, None] if bug == "lse is a column" else lse


def _lse(m, l, by_l, bug):
    if bug == "lse without log l":
        return m
    if bug == "lse = m + l":
        return m + l
    if bug == "lse in base 2":
        return m + l.log2()
    if bug == "lse without m":
        return l.log()
    if bug == "lse 0 for empty rows":
        return m.masked_fill(m == -INF, 0) + by_l.log()
    return m + l.log()


def causal(q, k, v, block_q, block_k, *, bug=""):
    """o alone."""
    return flash(q, k, v, block_q, block_k, True, bug=bug)[0]


def tile_flops(Sq, Sk, D, Dv, block_q, block_k, *, skip=True):
    """FLOPs of the two products, 2 · m · n · k each, in the tiles that a causal mask leaves; or in all tiles."""
    seen = [t for t in tiles(Sq, Sk, block_q, block_k, causal=True) if t[-1] != "skip" or not skip]
    return sum(2 * (i1 - i0) * (j1 - j0) * (D + Dv) for i0, i1, j0, j1, _ in seen)


def _all_tiles(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if case.how != "matmuls" or finding.ok:
        return False
    q, k, v, block_q, block_k = case.args[:5]
    return outcome.measures.get("flops") == tile_flops(
        len(q), len(k), q.shape[1], v.shape[1], block_q, block_k, skip=False
    )


def _some_more(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Some hidden tiles more: fewer FLOPs than all tiles have, and both products of each."""
    if case.how != "matmuls" or finding.ok:
        return False
    q, k, v, block_q, block_k = case.args[:5]
    right, most = (
        tile_flops(len(q), len(k), q.shape[1], v.shape[1], block_q, block_k, skip=skip) for skip in (True, False)
    )
    flops = outcome.measures.get("flops", 0)
    if _hidden_scored(case, outcome, finding):
        return False
    return right < flops < most and (flops - right) % (2 * (q.shape[1] + v.shape[1])) == 0


def _hidden_scored(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The scores of all tiles, and the second product of the visible ones."""
    if case.how != "matmuls" or finding.ok:
        return False
    q, k, v, block_q, block_k = case.args[:5]
    scores = tile_flops(len(q), len(k), q.shape[1], 0, block_q, block_k, skip=False)
    return outcome.measures.get("flops") == scores + tile_flops(len(q), len(k), 0, v.shape[1], block_q, block_k)


def _scores_twice(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The FLOPs of the visible tiles, and those of q kᵀ once more."""
    if case.how != "matmuls" or finding.ok:
        return False
    q, k, v, block_q, block_k = case.args[:5]
    twice = tile_flops(len(q), len(k), 2 * q.shape[1], v.shape[1], block_q, block_k)
    return outcome.measures.get("flops") == twice


def _square(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return "peak" in outcome.measures and not finding.ok


def _finite_lse(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The lse of rows that see no key is finite and hugely negative."""
    if len(outcome.results) != 2 or finding.ok:
        return False
    q, k, _, _, _, causal = case.args
    empty, lse = ~visible(len(q), len(k), causal).any(1), outcome.results[1].array.reshape(-1)
    return len(lse) == len(q) and bool(empty.any() and (np.isfinite(lse[empty]) & (lse[empty] < -1000)).all())


def _known(fn, *known: tuple[str, str, str]) -> list[Mistake]:
    return [Mistake(name, partial(fn, bug=name), says, ask) for name, says, ask in known]


TOP_LEFT = (
    "aligned top left",
    "a mask aligned to the top left",
    "The last query may look at all keys. With Sk − Sq more keys than queries, what is the last key row 0 may see?",
)
CAUSAL = [
    *_known(
        causal,
        TOP_LEFT,
        (
            "no mask in the tile",
            "loops that skip whole tiles but mask nothing inside the tiles on the diagonal",
            "Do all rows of a tile on the diagonal see all of its keys?",
        ),
        ("no mask", "attention without a mask", "Which keys must row 0 not see?"),
        (
            "one key too few",
            "a mask that hides one key too many from every row",
            "May row i see the key i + (Sk − Sq) itself?",
        ),
        (
            "one key too many",
            "a mask that lets every row see one key too many",
            "What is the last key that the last row may see, and the row before it?",
        ),
        (
            "counted within the tile",
            "a mask that numbers rows and keys within the tile",
            "Which row of the whole is row 0 of this tile, and which key is key 0?",
        ),
        (
            "shift the wrong way",
            "a mask shifted by Sq − Sk",
            "With more keys than queries, does row 0 see more keys than one, or none?",
        ),
        (
            "the future seen",
            "a mask that hides the past",
            "Must a row see the keys before it or those after it?",
        ),
        (
            "skipped by the first row",
            "loops that skip a tile which the first row does not see, though others do",
            "Which row of a tile sees the most keys?",
        ),
        (
            "full tiles only",
            "loops that leave out the tiles on the diagonal",
            "What is to be done with a tile of which some rows see some keys?",
        ),
        (
            "masked by 0",
            "a program in which masked scores are 0",
            "Which score gives the weight exp(s − m) = 0?",
        ),
        (
            "diagonal where i0 = j0",
            "a program for which the diagonal runs through the tiles with i0 = j0 only",
            "Through which tiles does the diagonal run if a tile is 8 rows by 6 keys, or if Sk is larger than Sq?",
        ),
        (
            "mask not in l",
            "a program that masks the weights after l has been summed",
            "Which weights may l add up?",
        ),
        (
            "the tile's own triangle",
            "a program that hides the upper triangle of the tile itself, wherever the diagonal runs",
            "Which row of the whole is row 0 of this tile, and which key is key 0?",
        ),
        (
            "maximum before the mask",
            "a program whose maximum is taken before the mask",
            "If a hidden score is 200 larger than every visible one, what are the weights of the visible ones?",
        ),
        ("the first tile's maximum kept", *TEXT["the first tile's maximum kept"]),
        ("acc is not rescaled", *TEXT["acc is not rescaled"]),
        ("never divided", *TEXT["never divided"]),
        ("scale left out", *TEXT["scale left out"]),
    ),
    Mistake(
        "hidden tiles scored",
        partial(causal, bug="hidden tiles scored"),
        "The numbers are right, but hidden tiles are left out only after their scores have been computed.",
        "What must you know to leave a tile out: its scores, or only where it lies?",
        fits=_hidden_scored,
    ),
    Mistake(
        "scores computed twice",
        partial(causal, bug="scores computed twice"),
        "The numbers are right and hidden tiles are skipped, but the scores of the others are computed twice.",
        "For which two things do you need the scores of a tile, and can both be had from one product?",
        fits=_scores_twice,
    ),
    Mistake(
        "nothing skipped",
        partial(causal, bug="nothing skipped"),
        "The numbers are right, but every tile is multiplied, those too that no row sees.",
        "How do you know from i0, i1 and j0 alone that a tile is hidden from all of its rows?",
        fits=_all_tiles,
    ),
    Mistake(
        "one tile too many",
        partial(causal, bug="one tile too many"),
        "The numbers are right, but some tiles are multiplied that no row sees.",
        "i1 is the first row after the tile. Which is its last row, and which is the last key that row sees?",
        fits=_some_more,
    ),
    Mistake(
        "mask of the whole",
        partial(causal, bug="mask of the whole"),
        "The numbers are right, but an array of the size of S is held, perhaps a mask of all rows and keys.",
        "Which part of the mask does one tile need, and can it be made from the tile's own numbers?",
        fits=_square,
    ),
]

FLASH = [
    *_known(
        flash,
        (
            "0 / 0",
            "a program that divides 0 by 0 in rows that see no key",
            "What are acc and l of a row that saw nothing, and by what may you divide instead?",
        ),
        (
            "no guard",
            "a program that computes (−∞) − (−∞) in rows that see no key of a tile",
            "In a row that has seen nothing m is −∞. What is s − m there, and what should exp of it be?",
        ),
        (
            "lse without log l",
            "an lse without log l",
            "lse is the logarithm of Σ exp(s). What is that sum in terms of m and l?",
        ),
        ("lse = m + l", "an lse of m + l", "Σ exp(s) = exp(m)·l. What is the logarithm of a product?"),
        ("lse in base 2", "an lse whose log l is in base 2", "Which logarithm undoes exp?"),
        ("lse without m", "an lse without m", "Σ exp(s) = exp(m)·l. What is the logarithm of a product?"),
        (
            "lse 0 for empty rows",
            "an lse of 0 in rows that see no key",
            "What is the logarithm of a sum without terms?",
        ),
        (
            "raw scores in lse",
            "an lse made of a maximum that was not scaled",
            "lse belongs to the scaled scores. Was your m taken before or after the scale?",
        ),
        (
            "16-bit state",
            "a program whose m, l and acc have the dtype of q",
            "How many digits does float16 keep, and how often is the state rounded?",
        ),
        TOP_LEFT,
        (
            "shift never negative",
            "a mask that is never shifted to the left",
            "With Sq = 5 and Sk = 2 the last query sees both keys. How many does the first one see?",
        ),
        (
            "no guards",
            "a program that guards neither the difference nor the division in rows that see no key",
            "In a row that has seen nothing, what are s − m and acc / l, and what should stand in their place?",
        ),
        ("the first tile's maximum kept", *TEXT["the first tile's maximum kept"]),
        (
            "scores in 16 bits",
            "a program whose scores have the dtype of q",
            "How many digits does float16 keep of a score of 100?",
        ),
        ("no mask", "attention without a mask", "What does causal=True ask for?"),
        ("acc is not rescaled", *TEXT["acc is not rescaled"]),
        ("never divided", *TEXT["never divided"]),
        ("scale left out", *TEXT["scale left out"]),
    ),
    Mistake(
        "−1e9 for −∞",
        partial(flash, bug="−1e9 for −∞"),
        "A row that sees no key has a finite lse: a large negative number stands in the place of −∞.",
        "If all scores of a row are −1e9, what is exp(s − m)? Does the row see nothing then?",
        fits=_finite_lse,
    ),
    Mistake(
        "o in float32",
        partial(flash, bug="o in float32"),
        "The o that it returns has the dtype of the state.",
        "o goes where q came from. Which dtype has it there?",
        fits=lambda case, outcome, finding: finding.result == "o" and finding.says.startswith("o is float32"),
    ),
    Mistake(
        "lse in 16 bits",
        partial(flash, bug="lse in 16 bits"),
        "It stores lse in q's dtype.",
        "The backward takes exp(s − lse). How many digits of lse does it need?",
        fits=lambda case, outcome, finding: finding.result == "lse" and finding.says.startswith("lse is float16"),
    ),
    Mistake(
        "whole matrix",
        partial(flash, bug="whole matrix"),
        "The numbers are right, but more than a few tiles live at the peak.",
        "Which of your tensors has both Sq and Sk in its shape?",
        fits=_square,
    ),
    Mistake(
        "P in 16 bits",
        partial(flash, bug="P in 16 bits"),
        "The numbers are within the budget, but the weights were rounded to 16 bits for the second product.",
        "Which of your tensors has q's dtype where it enters a product?",
        fits=lambda case, outcome, finding: finding.result == "dtypes",
    ),
    Mistake(
        "lse is a column",
        partial(flash, bug="lse is a column"),
        "The lse of a row is one number, so lse has one dimension.",
        "m and l are columns, (Br, 1). How do you take their only column?",
        fits=lambda case, outcome, finding: finding.result == "lse" and finding.says.startswith("lse has shape"),
    ),
]
