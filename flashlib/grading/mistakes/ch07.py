"""Known mistakes of chapter 07. One forward kernel, right but for what ``BUG`` names. Imports triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.ch06 import more, same_words


@triton.jit
def forward_kernel(
    Q, K, V, O, LSE, q_strides, k_strides, v_strides, o_strides, H, GROUP, Sq, Sk, scale, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WITH_LSE: tl.constexpr,
    BUG: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of one head's O and LSE."""
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    Q += b * q_strides[0] + h * q_strides[1]
    K += b * k_strides[0] + (h // GROUP) * k_strides[1]
    V += b * v_strides[0] + (h // GROUP) * v_strides[1]
    O += b * o_strides[0] + h * o_strides[1]
    i0 = tl.program_id(0) * BLOCK_M
    if BUG == "one tile for all":
        i0 = i0 * 0
    rows, d = i0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    row_mask, d_mask = rows[:, None] < Sq, d[None, :] < D
    if BUG == "rows not masked":
        row_mask = rows[:, None] >= 0
    if BUG == "features not masked":
        d_mask = d[None, :] >= 0
    q_at = Q + rows[:, None] * q_strides[2] + d[None, :] * q_strides[3]
    if BUG == "strides left out":
        q_at = Q + rows[:, None] * D + d[None, :]
    if BUG == "no other":
        q = tl.load(q_at, mask=row_mask & d_mask)
    else:
        q = tl.load(q_at, mask=row_mask & d_mask, other=0.0)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if BUG == "a maximum from zero":
        m = tl.zeros([BLOCK_M], tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    shift = Sk - Sq
    by_all, by_some = Sk, Sk
    if CAUSAL:
        if BUG == "aligned top left":
            shift = shift * 0
        if BUG == "shift turned round":
            shift = -shift
        by_all = tl.minimum(tl.maximum(i0 + 1 + shift, 0), Sk)
        by_some = tl.minimum(tl.maximum(tl.minimum(i0 + BLOCK_M, Sq) + shift, 0), Sk)
        if BUG == "loop ends where the first row's keys end":
            by_some = by_all
        if BUG == "loop ends one key early":
            by_some = by_some - 1
        if BUG == "loop bound without the shift":
            by_some = tl.minimum(i0 + BLOCK_M, Sk)
        if BUG == "not causal" or BUG == "no tile skipped" or BUG == "mask upside down":
            by_some = Sk
        if BUG == "one tile too many":
            by_some = tl.minimum(by_some + BLOCK_N, Sk)
    full = by_all // BLOCK_N * BLOCK_N
    if BUG == "first partial tile not masked":
        full = tl.cdiv(by_all, BLOCK_N) * BLOCK_N
    start = 0
    if BUG == "first tile left out" and Sk > BLOCK_N:
        start = BLOCK_N
    if BUG == "last tile dropped":
        by_some = Sk // BLOCK_N * BLOCK_N
    if BUG == "own scale":
        scale = 1.0 / tl.sqrt(D * 1.0)
    for j0 in tl.range(start, by_some, BLOCK_N):
        cols = j0 + tl.arange(0, BLOCK_N)
        if BUG == "never moves on":
            cols = tl.arange(0, BLOCK_N)
        if BUG == "q loaded in every turn":
            q = tl.load(q_at, mask=row_mask & d_mask, other=0.0)
        key_mask = cols[:, None] < Sk
        if BUG == "rows not masked":
            key_mask = cols[:, None] >= 0
        k_at = K + cols[:, None] * k_strides[2] + d[None, :] * k_strides[3]
        v_at = V + cols[:, None] * v_strides[2] + d[None, :] * v_strides[3]
        if BUG == "strides left out":
            k_at, v_at = K + cols[:, None] * D + d[None, :], V + cols[:, None] * D + d[None, :]
        if BUG == "no other":
            k, v = tl.load(k_at, mask=key_mask & d_mask), tl.load(v_at, mask=key_mask & d_mask)
        else:
            k = tl.load(k_at, mask=key_mask & d_mask, other=0.0)
            v = tl.load(v_at, mask=key_mask & d_mask, other=0.0)

        if BUG == "K not transposed":
            s = tl.dot(q, k, input_precision="ieee")
        elif BUG == "S turned":
            s = tl.dot(k, tl.trans(q), input_precision="ieee")
        else:
            s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if BUG == "scores in 16 bits":
            s = s.to(q.dtype).to(tl.float32)
        raw = s
        if BUG != "no scale":
            s = s * scale
        if BUG == "scale twice":
            s = s * scale
        unmasked = s
        seen = (cols[None, :] < Sk) & (rows[:, None] >= 0)
        if BUG == "one lane too many":
            seen = (cols[None, :] <= Sk) & (rows[:, None] >= 0)
        if BUG == "keys held against Sq":
            seen = (cols[None, :] < Sq) & (rows[:, None] >= 0)
        if CAUSAL and BUG != "no causal mask" and BUG != "not causal" and (j0 >= full or BUG == "mask upside down"):
            if BUG == "the diagonal left out":
                seen = seen & (cols[None, :] < rows[:, None] + shift)
            elif BUG == "one key too many":
                seen = seen & (cols[None, :] <= rows[:, None] + shift + 1)
            elif BUG == "mask upside down":
                seen = seen & (cols[None, :] >= rows[:, None] + shift)
            else:
                seen = seen & (cols[None, :] <= rows[:, None] + shift)
        hidden = float("-inf")
        if BUG == "minus ten thousand":
            hidden = -1e4
        if BUG == "hidden scores of 0":
            hidden = 0.0
        if BUG == "minus a billion":
            hidden = -1e9
        if BUG != "zeros past the edge":
            s = tl.where(seen, s, hidden)

        top = tl.max(s, 1)
        if BUG == "maximum before the mask":
            top = tl.max(unmasked, 1)
        if BUG == "maximum before the scale":
            top = tl.max(tl.where(seen, raw, float("-inf")), 1) * scale
        if BUG == "one maximum for the tile":
            top = tl.max(s, 1) * 0.0 + tl.max(s)
        if BUG == "columns instead of rows" or BUG == "down the columns":
            top = tl.max(s, 0)
        m_new = tl.maximum(m, top)
        if BUG == "maximum of the last tile":
            m_new = top
        if BUG == "the first tile's maximum kept":
            m_new = tl.where(m == float("-inf"), top, m)
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        if BUG == "no guard" or BUG == "no guard in the loop":
            m_safe = m_new
        if BUG == "no maximum":
            m_safe = m_safe * 0.0
            m_new = m_safe
        if BUG == "columns instead of rows" or BUG == "maximum laid along the row":
            p = tl.exp(s - m_safe[None, :])
        elif BUG == "base 2":
            p = tl.exp2(s - m_safe[:, None])
        else:
            p = tl.exp(s - m_safe[:, None])
        shrink = tl.exp(m - m_safe)
        if BUG == "base 2":
            shrink = tl.exp2(m - m_safe)
        if BUG == "no maximum" or BUG == "never rescaled":
            shrink = shrink * 0.0 + 1.0
        if BUG == "shrink upside down":
            shrink = tl.where(m == float("-inf"), 0.0, tl.exp(m_safe - m))
        if BUG == "only the last tile":
            shrink = shrink * 0.0
        for_l, for_acc = shrink, shrink
        if BUG == "l not rescaled":
            for_l = shrink * 0.0 + 1.0
        if BUG == "acc not rescaled":
            for_acc = shrink * 0.0 + 1.0
        if BUG == "columns instead of rows" or BUG == "down the columns" or BUG == "sum down the columns":
            l = tl.sum(p, 0)
        else:
            l = l * for_l + tl.sum(p, 1)
        if BUG == "p not cast":
            acc = tl.dot(p, v, acc * for_acc[:, None], input_precision="ieee")
        elif BUG == "p cast to float16":
            acc = tl.dot(p.to(tl.float16), v, acc * for_acc[:, None], input_precision="ieee")
        else:
            acc = tl.dot(p.to(v.dtype), v, acc * for_acc[:, None], input_precision="ieee")
        if BUG == "acc in 16 bits":
            acc = acc.to(v.dtype).to(tl.float32)
        if BUG == "divided in every turn":
            acc = acc / l[:, None]
        if BUG != "m never kept":
            m = m_new

    whole = tl.where(l == 0.0, 1.0, l)
    # one head alone: no row sees nothing there, and people write the division without a guard
    if BUG == "no guard" or BUG == "division by zero" or not WITH_LSE:
        whole = l
    o = acc / whole[:, None]
    if BUG == "not divided" or BUG == "divided in every turn":
        o = acc
    if BUG == "scale at the end":
        o = o * scale
    out_mask = (rows[:, None] < Sq) & (d[None, :] < D)
    if BUG == "store not masked":
        out_mask = (rows[:, None] >= 0) & (d[None, :] >= 0)
    tl.store(O + rows[:, None] * o_strides[2] + d[None, :] * o_strides[3], o.to(O.dtype.element_ty), mask=out_mask)
    if WITH_LSE:
        lse = m + tl.log(l)
        if BUG == "lse without the logarithm":
            lse = m + l
        if BUG == "lse is the maximum":
            lse = m
        if BUG == "lse without m":
            lse = tl.log(l)
        if BUG == "log2 for log":
            lse = m + tl.log2(l)
        if BUG == "lse in base 2":
            lse = (m + tl.log(l)) * 1.4426950408889634
        if BUG == "lse of 0 where nothing is seen":
            lse = tl.where(l == 0.0, 0.0, lse)
        lse_mask = rows < Sq
        if BUG == "lse not masked":
            lse_mask = rows >= 0
        tl.store(LSE + tl.program_id(1) * Sq + rows, lse, mask=lse_mask)


def forward(q, k, v, causal=False, scale=None, block=(16, 16), *, bug="", with_lse=True):
    """(o, lse) of q (B, H, Sq, D) and k, v (B, Hkv, Sk, D)."""
    (B, H, Sq, D), Hkv, Sk = q.shape, k.shape[1], k.shape[2]
    o = torch.empty(B, H, Sq, D, dtype=q.dtype)
    lse = torch.empty(B, H, Sq, dtype=torch.float32) if with_lse else o
    scale = D**-0.5 if scale is None else scale
    grid = (triton.cdiv(Sq, block[0]), B * H)
    forward_kernel[grid](
        q, k, v, o, lse, q.stride(), k.stride(), v.stride(), o.stride(), H, H // Hkv, Sq, Sk, scale, D,
        max(16, triton.next_power_of_2(D)), *block, CAUSAL=causal, WITH_LSE=with_lse, BUG=bug,
    )  # fmt: skip
    return (o, lse) if with_lse else o


def one_head(q, k, v, scale=None, *, bug="", causal=False):
    """o (Sq, D) of one head."""
    return forward(q[None, None], k[None, None], v[None, None], causal, scale, bug=bug, with_lse=False)[0, 0]


Fits = Callable[[Case, Outcome, Finding], bool]


def _one(name: str, says: str, ask: str, fits: Fits | None = None) -> Mistake:
    return Mistake(name, partial(one_head, bug=name), says, ask, fits)


def _causal(name: str, says: str, ask: str, fits: Fits | None = None) -> Mistake:
    return Mistake(name, partial(one_head, bug=name, causal=True), says, ask, fits)


def _whole(name: str, says: str, ask: str, fits: Fits | None = None) -> Mistake:
    return Mistake(name, partial(forward, bug=name), says, ask, fits)


def _named(*names: str) -> list[tuple[str, str, str]]:
    """(name, says, ask) of mistakes that several of these exercises know."""
    return [(name, *TEXTS[name]) for name in names]


def _exactly(name: str, **more: bool) -> Fits:
    """For faults of the watch: the same words, so the same tensor and place."""
    return same_words(partial(one_head, bug=name, **more))


RESCALE = "l and acc are sums of the same weights. Which of them may stay as it is when the maximum rises?"
TEXTS = {
    "never rescaled": (
        "sums that are never rescaled when the maximum rises (or whose factor is always 1)",
        "What was summed so far was measured against the old maximum. By what factor must it shrink, and is the old "
        "maximum still at hand when you compute that factor?",
    ),
    "acc not rescaled": ("an accumulator that is not rescaled, while l is", RESCALE),
    "l not rescaled": ("a row sum that is not rescaled, while acc is", RESCALE),
    "the first tile's maximum kept": (
        "a kernel that keeps the first tile's maximum for good",
        "What is exp(s − m) in float32 if a later score lies 150 above the first tile's maximum?",
    ),
    "maximum of the last tile": (
        "a maximum that forgets the tiles before",
        "If the first tile holds the largest score, how large is exp(m_old − m_new) in the second turn?",
    ),
    "m never kept": (
        "a kernel in which m stays −∞, so that each turn wipes out the one before",
        "What is exp(m_old − m_new) in the second turn, and which line makes m the new maximum?",
    ),
    "no scale": (
        "attention whose scores are not scaled",
        "Scores are q · k times `scale`. Where does it enter your kernel?",
    ),
    "base 2": ("a softmax in base 2", "tl.exp2(x) is 2^x. What must x be multiplied by to give e^x?"),
    "no maximum": (
        "a softmax that does not subtract the row's maximum",
        "exp(120) is more than float32 holds. What may be subtracted from a whole row without changing its softmax?",
    ),
    "a maximum from zero": (
        "a running maximum that starts at 0",
        "If all scores of a row are near −120, what is exp(s − 0) in float32? What is the maximum of no scores at all?",
    ),
    "one maximum for the tile": (
        "a softmax that subtracts one maximum from all rows of the tile",
        "If one row's scores are near 120 and another's near −120, what is exp(s − m) in the second?",
    ),
    "hidden scores of 0": (
        "attention in which hidden scores are made 0",
        "exp(0 − m) is a weight like any other. Which score has the weight 0?",
    ),
    "one key too many": (
        "a mask that lets each row see one key too many",
        "The last row sees key Sk − 1 and no more. Which i is that, and what is i + Sk − Sq?",
    ),
    "loop ends one key early": (
        "a loop that ends one key before the last one that a row of the tile sees",
        "If the last key that a row sees is the first of a key tile, is that tile visited?",
    ),
    "shift turned round": (
        "a mask with Sq − Sk where Sk − Sq belongs",
        "With more keys than queries, does row 0 see more keys than one, or none?",
    ),
}


def _nan_where_nothing_is_seen(case: Case, got: Outcome) -> bool:
    """Rows of o are NaN, and only rows that see no key."""
    if len(got.results) != 2:
        return False
    q, k = case.args[0], case.args[1]
    nothing = q.shape[2] - k.shape[2] if case.kwargs.get("causal") or not k.shape[2] else 0
    nan = np.isnan(got.results[0].array).any(-1)  # (B, H, Sq)
    return bool(nan.any() and not nan[..., max(nothing, 0) :].any())


def _no_guard(case: Case, got: Outcome, finding: Finding) -> bool:
    """Where the loop runs, lse is NaN too; without a single key it is −∞ all the same."""
    here = _nan_where_nothing_is_seen(case, got)
    return here and (not case.args[1].shape[2] or bool(np.isnan(got.results[1].array).any()))


def _zero_division(case: Case, got: Outcome, finding: Finding) -> bool:
    return _nan_where_nothing_is_seen(case, got) and not np.isnan(got.results[1].array).any()


def _every_tile(case: Case, got: Outcome, finding: Finding) -> bool:
    every = case.options.get("every")
    return case.measured and every is not None and got.measures.get("dots", 0) >= every


STRIDES = _one(
    "strides left out",
    "a kernel that takes row i to begin at element i · D",
    "How many elements lie between two rows of a view, and who tells you?",
)

ONE_TILE = [
    _one(
        "no scale",
        "attention whose scores are not scaled",
        "Scores are q · k times `scale`. Where does it enter your kernel?",
    ),
    _one(
        "no maximum",
        "a softmax that does not subtract the row's maximum",
        "exp(120) is more than float32 holds. What may be subtracted from a whole row without changing its softmax?",
    ),
    _one(
        "K not transposed",
        "scores computed as Q K instead of Q Kᵀ",
        "Score (i, j) is the product of which two rows? And which index does tl.dot(a, b) sum over?",
    ),
    _one(
        "not divided",
        "an output that was never divided by the row sum l",
        "The last column of V is 1. What must the last column of O be?",
    ),
    _one(
        "columns instead of rows",
        "a softmax along the queries instead of the keys",
        "s has a row for each query. Along which axis do its weights add up to 1?",
    ),
    _one(
        "one maximum for the tile",
        "a softmax that subtracts one maximum from all rows of the tile",
        "If one row's scores are near 120 and another's near −120, what is exp(s − m) in the second?",
    ),
    _one("base 2", "a softmax in base 2", "tl.exp2(x) is 2^x. What must x be multiplied by to give e^x?"),
    _one(
        "own scale",
        "attention scaled by 1/√D, whatever scale was given",
        "What does your kernel do with its argument `scale`?",
    ),
    _one(
        "sum down the columns",
        "a row sum that was taken down the columns",
        "s has a row for each query. Along which axis do its weights add up to 1?",
    ),
    _one(
        "down the columns",
        "a maximum and a sum that were taken down the columns",
        "s has a row for each query. Along which axis do its weights add up to 1?",
    ),
    _one(
        "maximum laid along the row",
        "a maximum that is subtracted along the row: number j from column j",
        "m has one number a row, shape (16,). Which axis must be added so that it meets its row?",
    ),
    _one(
        "S turned",
        "attention of the keys to the queries: S is K Qᵀ",
        "Score (i, j) belongs to query i and key j. Which of the two comes first in the dot?",
    ),
    _one("scale twice", "attention whose scores are scaled twice", "How often does `scale` enter a score?"),
    _one(
        "scale at the end",
        "attention whose output is scaled once more",
        "The scale belongs to the scores. What do the weights of a row add up to afterwards?",
    ),
    STRIDES,
]

STREAMED = [
    *(_one(*text) for text in _named("never rescaled", "acc not rescaled", "l not rescaled", "m never kept")),
    _one(
        "only the last tile",
        "attention to the last key tile alone",
        "What do m, l and acc hold after the first turn, and what has become of that after the second?",
    ),
    _one(
        "shrink upside down",
        "a correction factor of exp(m_new − m_old)",
        "When the maximum rises, must what was summed before grow or shrink?",
    ),
    *(_one(*text) for text in _named("the first tile's maximum kept", "maximum of the last tile", "no scale")),
    *(_one(*text) for text in _named("base 2", "no maximum", "one maximum for the tile")),
    *(_one(*text) for text in _named("a maximum from zero")),
    _one(
        "divided in every turn",
        "an accumulator that is divided by l in every turn",
        "Once divided, acc is no sum any more. When is the one moment to divide?",
    ),
    _one(
        "first tile left out",
        "attention that never looks at the first key tile",
        "At which key must the loop begin?",
    ),
    _one(
        "never moves on",
        "attention to the first key tile alone",
        "How many turns has your loop, and which of your indices depend on its variable?",
    ),
    _one(
        "one tile for all",
        "All programs work on the same q tile.",
        "Each program has a number. Where does it enter into your rows?",
    ),
    STRIDES,
    _one(
        "q loaded in every turn",
        "Q is loaded once for each key tile.",
        "Does q change from one key tile to the next?",
        more("read Q"),
    ),
]

RAGGED = [
    _one(
        "zeros past the edge",
        "attention to keys that do not exist: lanes past Sk count as scores of 0",
        "A key of zeros has the score 0, and exp(0 − m) is a weight like any other. Which score has the weight 0?",
    ),
    _one(
        "maximum before the mask",
        "a maximum taken while the lanes past Sk still hold a score of 0",
        "If all real scores of a row are near −120 and a hidden lane holds 0, what is exp(s − m)?",
    ),
    _one(
        "one lane too many",
        "attention to one key that does not exist: the first lane past Sk counts as a score of 0",
        "With 37 keys, what is the number of the last one?",
    ),
    *(_one(*text) for text in _named("a maximum from zero")),
    _one(
        "last tile dropped",
        "attention that leaves out the last, ragged key tile",
        "Sk = 37 and BLOCK_N = 16: how many turns does the loop need?",
    ),
    _one(
        "no other",
        "Your loads are masked, but nothing says what the masked lanes hold.",
        "The masked lanes go into the dots. Which value adds nothing there?",
    ),
    _one(
        "features not masked",
        "The lanes past D are not masked.",
        "BLOCK_D is a power of two, D is not. What lies behind the last feature of a row?",
        _exactly("features not masked"),
    ),
    _one(
        "rows not masked",
        "The rows past the last query or key are not masked.",
        "What do the lanes of the last tile read whose row does not exist?",
        _exactly("rows not masked"),
    ),
    _one(
        "store not masked",
        "The loads are masked, the store is not.",
        "Where does a lane past D write? Think of where the next row begins.",
        _exactly("store not masked"),
    ),
    _one(
        "keys held against Sq",
        "attention in which the number of keys is taken to be Sq",
        "Which number says how many keys there are?",
    ),
    _one(
        "minus ten thousand",
        "attention in which lanes past Sk have the score −10 000",
        "Is −10 000 smaller than every score that can occur?",
    ),
    *(_one(*text) for text in _named("never rescaled", "acc not rescaled", "l not rescaled", "m never kept")),
    *(_one(*text) for text in _named("the first tile's maximum kept", "maximum of the last tile", "no scale")),
    STRIDES,
]

CAUSAL = [
    _causal(
        "aligned top left",
        "a mask aligned to the top left: row i sees the keys j ≤ i",
        "The last query sees every key. With more keys than queries, what is the last key that row 0 may see?",
    ),
    _causal(
        "no causal mask",
        "attention in which a row sees all keys of the tiles it visits",
        "Which keys of a tile on the diagonal may row i see, and what becomes of the scores of the others?",
    ),
    _causal(
        "the diagonal left out",
        "a mask that hides the last key a row may see",
        "Row i sees keys up to i + (Sk − Sq). Is that one among them?",
    ),
    _causal(
        "loop ends where the first row's keys end",
        "a loop that ends where the keys of the tile's first row end",
        "Which row of the tile sees most? Up to which key?",
    ),
    _causal(
        "loop bound without the shift",
        "a loop that ends at key i0 + BLOCK_M",
        "With more keys than queries, up to which key does the last row of the tile see?",
    ),
    _causal(
        "first partial tile not masked",
        "attention in which the first tile that the diagonal cuts is not masked",
        "A tile is full if its first row sees its last key. Do you round up or down?",
    ),
    _causal(
        "mask upside down",
        "a mask that hides the past and shows the future",
        "Row 0 is the first token. Which keys come after it?",
    ),
    _causal(
        "no tile skipped",
        "Every program visits all key tiles; those it may not see are loaded, computed and hidden.",
        "What is the last key that the last row of this tile sees? Must the loop go on after it?",
        _every_tile,
    ),
    _causal(
        "one tile too many",
        "Your loop visits a key tile of which no row of the tile sees a key.",
        "What is the last key that the last row of this tile sees? In which tile does it lie?",
        more("dots"),
    ),
    _causal(
        "zeros past the edge",
        "attention in which hidden scores are not made −∞",
        "A hidden score must get the weight 0. Which score has it?",
    ),
    *(_causal(*text) for text in _named("hidden scores of 0", "one key too many", "loop ends one key early")),
    *(_causal(*text) for text in _named("shift turned round")),
    *(_causal(*text) for text in _named("never rescaled", "acc not rescaled", "l not rescaled", "m never kept")),
    *(_causal(*text) for text in _named("the first tile's maximum kept", "maximum of the last tile", "no scale")),
    _causal(
        "minus ten thousand",
        "attention in which hidden scores are −10 000",
        "Is −10 000 smaller than every score that can occur?",
    ),
]

FORWARD = [
    _whole(
        "p not cast",
        "The second dot is given p in float32 and v in another dtype; it takes one dtype.",
        "Which dtype must p have before the second dot? Ask v.",
    ),
    _whole(
        "no guard",
        "a kernel that computes (−∞) − (−∞) in rows that have seen no key",
        "What is m in a row that has seen nothing? What may be subtracted there instead?",
        _no_guard,
    ),
    _whole(
        "no guard in the loop",
        "a kernel that computes (−∞) − (−∞) in rows that have seen no key",
        "What is m in a row that has seen nothing? What may be subtracted there instead, in both exponentials?",
        _no_guard,
    ),
    _whole(
        "division by zero",
        "a kernel that divides by l = 0 in rows that have seen no key",
        "acc is 0 there, and so is l. What may stand in for l so that o is 0?",
        _zero_division,
    ),
    _whole(
        "minus a billion",
        "a kernel that hides scores by −10⁹",
        "In a row that sees no key, which score is the maximum, and what are the weights?",
    ),
    _whole(
        "lse in base 2",
        "an lse in base 2",
        "lse is a natural logarithm. What must a logarithm in base 2 be multiplied by?",
    ),
    _whole(
        "lse without the logarithm",
        "an lse of m + l",
        "lse = log Σ exp(s). With Σ exp(s) = exp(m) · l, what is its logarithm?",
    ),
    _whole(
        "lse is the maximum",
        "an lse of m alone",
        "lse = log Σ exp(s). With Σ exp(s) = exp(m) · l, what is its logarithm?",
    ),
    _whole(
        "lse without m",
        "an lse of log l alone",
        "lse = log Σ exp(s). With Σ exp(s) = exp(m) · l, what is its logarithm?",
    ),
    _whole(
        "log2 for log",
        "an lse of m + log₂ l",
        "lse is a natural logarithm. Which of Triton's logarithms is that?",
    ),
    _whole(
        "lse not masked",
        "It stores lse of rows that do not exist.",
        "Where does the row after the last one of a head lie in LSE?",
        same_words(partial(forward, bug="lse not masked")),
    ),
    _whole(
        "acc in 16 bits",
        "an accumulator that is rounded to v's dtype in every turn",
        "acc is not divided by l yet. How large can it become, and what is the largest float16?",
    ),
    _whole(
        "not causal",
        "a kernel that is never causal",
        "Where does CAUSAL appear in your kernel?",
    ),
    _whole(
        "lse of 0 where nothing is seen",
        "an lse of 0 in rows that see no key",
        "The sum over no keys is 0. What is its logarithm?",
    ),
    _whole(
        "scores in 16 bits",
        "scores that are rounded to the inputs' dtype before the softmax",
        "A score of 60 in bfloat16 may be off by 0.1. What does that do to exp?",
    ),
    _whole(
        "p cast to float16",
        "Your kernel casts p to float16, whatever v is.",
        "Your kernel is handed bfloat16 and float32 as well. Where can it ask which dtype v has?",
    ),
    _whole(
        "maximum before the scale",
        "a maximum taken before the scale",
        "With a negative scale the largest product becomes the smallest score. When should the maximum be taken?",
    ),
    _whole(
        "aligned top left",
        "a mask aligned to the top left: row i sees the keys j ≤ i",
        "The last query sees every key. What is the last key that row 0 may see?",
    ),
    _whole(
        "zeros past the edge",
        "attention in which hidden scores, or lanes past Sk, are not made −∞",
        "A hidden score must get the weight 0. Which score has it?",
    ),
    _whole(
        "no tile skipped",
        "Every program visits all key tiles; those it may not see are loaded, computed and hidden.",
        "What is the last key that the last row of this tile sees? Must the loop go on after it?",
        _every_tile,
    ),
    *(_whole(*text) for text in _named("never rescaled", "acc not rescaled", "l not rescaled", "m never kept")),
    *(_whole(*text) for text in _named("the first tile's maximum kept", "maximum of the last tile", "no scale")),
    *(_whole(*text) for text in _named("one key too many", "loop ends one key early")),
]
