"""Known mistakes of chapter 09, the heads and half a block. Each function is right but for what ``bug`` names.

Those of the loss are in `ch09_loss`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.ch05 import gallery


# -- 09.1 ----------------------------------------------------------------------------------------------------------
def split_heads(qkv, heads, *, bug=""):
    """q, k and v, (B, H, S, D) each, from (B, S, 3 · H · D)."""
    B, S, width = qkv.shape
    D = width // 3 // heads
    if bug == "three to each head":
        return tuple(x.transpose(1, 2) for x in qkv.view(B, S, heads, 3, D).unbind(3))
    if bug == "three to each feature":
        return tuple(x.transpose(1, 2) for x in qkv.view(B, S, heads, D, 3).unbind(-1))
    if bug == "reshaped at once":
        return tuple(qkv.reshape(3, B, heads, S, D))
    q, k, v = qkv.chunk(3, 1 if bug == "cut along the positions" else -1)
    q, k, v = {"k first": (k, q, v), "v first": (v, k, q), "k and v exchanged": (q, v, k)}.get(bug, (q, k, v))
    if bug == "first third for all":
        q = k = v = qkv[..., : width // 3]
    if bug == "cut in three, no more":
        return q, k, v
    if bug == "heads not split":
        return tuple(x[:, None] for x in (q, k, v))
    if bug == "reshaped, not transposed":
        return tuple(x.reshape(B, heads, S, D) for x in (q, k, v))
    if bug == "heads interleaved":
        return tuple(x.view(B, S, D, heads).permute(0, 3, 1, 2) for x in (q, k, v))
    q, k, v = (x.unflatten(-1, (heads, -1)) for x in (q, k, v))
    if bug == "not transposed":
        return q, k, v
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if bug == "k transposed for the scores":
        return q, k.mT, v
    if bug == "features before positions":
        return q.mT, k.mT, v.mT
    if bug == "q scaled":
        return q * D**-0.5, k, v
    if bug == "batches and heads in one axis":
        return tuple(x.flatten(0, 1) for x in (q, k, v))
    if bug == "copied":
        return tuple(x.contiguous() for x in (q, k, v))
    return q, k, v


def kept_from_before():
    """A `split_heads` that keeps its last result, and gives it again for the same sizes."""
    last: dict[tuple[int, ...], Any] = {}

    def split(qkv, heads):
        sizes = (*qkv.shape, heads)
        if sizes not in last:
            last.clear()
            last[sizes] = split_heads(qkv, heads)
        return last[sizes]

    return split


def _again(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return case.name.startswith("the same sizes") and finding.error is not None


SPLIT = gallery(
    split_heads,
    (
        "reshaped, not transposed", "a reshape to (B, H, S, D) with no axes exchanged",
        "`reshape` keeps the numbers in their order in memory. Which of H and S comes first there?",
    ),
    (
        "not transposed", "a program that stops at (B, S, H, D)",
        "Attention is done for each head apart. Which axis must come right after the batch?",
    ),
    (
        "reshaped at once", "a reshape of everything to (3, B, H, S, D)",
        "`reshape` keeps the numbers in their order in memory. What is first there: all of q, or all of position 0?",
    ),
    (
        "three to each head", "a program that takes the columns as q, k, v of head 0, then q, k, v of head 1",
        "In the packing of this exercise, where do the first E columns belong: to head 0 or to q?",
    ),
    (
        "three to each feature", "a program that takes every third column",
        "In the packing of this exercise, where do the first E columns belong?",
    ),
    (
        "heads interleaved", "a program that gives head 0 every H-th feature",
        "Head 0 owns the first D features. When a row of E numbers becomes a table, which axis is the last, H or D?",
    ),
    ("k first", "a program that takes the first third for k", "In which order are the three packed?"),
    ("v first", "a program that returns v, k, q", "In which order are the three packed, and returned?"),
    ("k and v exchanged", "a program that returns q, v, k", "In which order are the three packed, and returned?"),
    (
        "features before positions", "a program that returns (B, H, D, S)",
        "Which two axes have to change places: positions and heads, or positions and features?",
    ),
    (
        "k transposed for the scores", "a program that returns k as (B, H, D, S), ready for the product",
        "Who transposes k for the scores: this function, or the attention that is called with its result?",
    ),
    (
        "q scaled", "a program that has scaled q by 1/√D",
        "The attention that is called with q scales the scores itself. How often is it done then?",
    ),
    (
        "first third for all", "a program that returns the first third three times",
        "Where do k and v begin in a row of 3 · E numbers?",
    ),
    (
        "cut in three, no more", "a program that cuts qkv in three and stops there",
        "Which shape does the signature ask for, and where is the axis of the heads?",
    ),
    (
        "heads not split", "a program with one head of E features",
        "How many features has one head?",
    ),
    (
        "batches and heads in one axis", "a program that returns (B · H, S, D)",
        "How many axes does the signature name?",
    ),
    (
        "cut along the positions", "a program that cuts the positions into three",
        "Which axis has 3 · E entries?",
    ),
    (
        "copied", "The numbers are right, but they have been copied; views of qkv would do.",
        "Which operation makes the copy: `contiguous`, `clone`, `stack`, or a `reshape` after a transpose?",
        lambda case, outcome, finding: finding.result == "bytes",
    ),
)  # fmt: skip
SPLIT.append(
    Mistake(
        "kept from an earlier call",
        kept_from_before(),
        "It was right when it met these sizes first, and is wrong when they come again with other numbers.",
        "What does your function remember from one call to the next?",
        _again,
    )
)


# -- 09.2 ----------------------------------------------------------------------------------------------------------
def attention_half(x, w_qkv, w_out, heads, attend, dropout_p, training, *, bug=""):
    """x + attention(norm(x)), with the attention that is handed in."""
    h = x if bug in ("norm left out", "norm after") else F.layer_norm(x, x.shape[-1:])
    packed = "three to each head" if bug == "three to each head" else ""
    packed = "reshaped, not transposed" if bug == "split without a transpose" else packed
    q, k, v = split_heads(h @ w_qkv, heads, bug=packed)
    p = {
        "dropout in inference": dropout_p, "dropout left out": 0.0,
        "training turned round": 0.0 if training else dropout_p,
    }.get(bug, dropout_p if training else 0.0)  # fmt: skip
    causal = bug != "causal left out"
    if bug in ("scaled twice", "scaled twice, k too"):
        q = q * q.shape[-1] ** -0.5
        k = k * q.shape[-1] ** -0.5 if bug == "scaled twice, k too" else k
    if bug == "heads not split":
        q, k, v = (t.transpose(1, 2).flatten(2)[:, None] for t in (q, k, v))
    if bug == "(B, S, H, D) handed over":
        o = attend(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal, dropout_p=p)
        o = o.flatten(2)
    elif bug == "several calls":
        each = [attend(*(t[:, [i]] for t in (q, k, v)), causal=causal, dropout_p=p)[:, 0] for i in range(heads)]
        o = torch.cat(each, -1)
    elif bug == "attention of its own":
        o = _own(q, k, v, p, attend).transpose(1, 2).flatten(2)
    else:
        q, k, v = {"k and v exchanged": (q, v, k), "q and k exchanged": (k, q, v)}.get(bug, (q, k, v))
        o = attend(q, k, v, causal=causal, dropout_p=p)
        o = o.reshape(x.shape) if bug == "heads merged without a transpose" else o.transpose(1, 2).flatten(2)
        if bug == "heads merged feature by feature":
            o = o.unflatten(-1, (heads, -1)).mT.flatten(2)
    if bug != "w_out left out":
        o = o @ (w_out.T if bug == "w_out transposed" else w_out)
    if bug == "residual left out":
        return o
    if bug == "residual of the normed x":
        return h + o
    return F.layer_norm(x + o, x.shape[-1:]) if bug == "norm after" else x + o


def _own(q, k, v, p, attend):
    """What attend computes, without it; the dropout mask is attend's."""
    from flashlib.grading.slot import Slot

    return Slot(attend.seed)(q, k, v, causal=True, dropout_p=p)


def _calls(case: Case, outcome: Outcome) -> int:
    return len(outcome.measures.get("attend", [])) if case.name.startswith("attend is called") else -1


def _never(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return not finding.ok and finding.result == "calls" and _calls(case, outcome) == 0


def _often(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return finding.result == "calls" and _calls(case, outcome) > 1


HALF = gallery(
    attention_half,
    (
        "causal left out", "a block that calls attend without causal=True",
        "May position 3 look at position 4 while it learns to predict it? What does attend do unless it is told?",
    ),
    (
        "dropout in inference", "a block that hands dropout_p over whether it is trained or not",
        "attend is a function and knows no mode. What must it get when `training` is False?",
    ),
    (
        "dropout left out", "a block that never drops",
        "What must attend get when `training` is True?",
    ),
    (
        "training turned round", "a block that drops in inference and not in training",
        "When is noise wanted: while the model learns, or while it is used?",
    ),
    (
        "residual left out", "a block that returns the attention's part alone",
        "If w_out were 0, the block should change nothing. What does yours return then?",
    ),
    (
        "residual of the normed x", "a block that adds the attention's part to norm(x)",
        "If w_out were 0, the block should return x itself. What does yours return then?",
    ),
    (
        "(B, S, H, D) handed over", "a block that hands (B, S, H, D) to attend",
        "attend attends along the last axis but one. What stands there in your q?",
    ),
    (
        "split without a transpose", "a block that splits the heads by a reshape to (B, H, S, D)",
        "`reshape` keeps the numbers in their order in memory. Which of H and S comes first there?",
    ),
    (
        "heads merged without a transpose", "a block that reshapes o from (B, H, S, D) as it lies in memory",
        "A row of the result holds all heads of one position. Which axes must change places before you reshape?",
    ),
    (
        "norm left out", "a block without the norm", "What does the first LayerNorm of the block work on?",
    ),
    (
        "norm after", "a block that norms the sum instead of attention's input",
        "GPT-2 leaves the path of x free of norms. Where does its LayerNorm stand, before attention or after the sum?",
    ),
    (
        "scaled twice", "a block that scales q by 1/√D before attend does",
        "attend scales the scores itself. How often is it done then?",
    ),
    (
        "scaled twice, k too", "a block that scales q and k before attend does",
        "attend scales the scores itself. How often is it done then?",
    ),
    (
        "w_out left out", "a block without the product with w_out",
        "Heads have worked apart so far. Which matrix mixes them?",
    ),
    (
        "w_out transposed", "a product with w_outᵀ",
        "`nn.Linear` keeps its weight transposed. Is w_out here such a weight, or is it (in, out)?",
    ),
    (
        "three to each head", "a block that takes the columns as q, k, v of head 0, then q, k, v of head 1",
        "In the packing of this exercise, where do the first E columns belong: to head 0 or to q?",
    ),
    (
        "k and v exchanged", "a block that hands v over as k and k as v",
        "In which order are the three packed, and in which does attend take them?",
    ),
    (
        "q and k exchanged", "a block that hands k over as q and q as k",
        "In which order are the three packed, and in which does attend take them?",
    ),
    (
        "heads not split", "a block with one head of E features", "How many features has one head?",
    ),
    (
        "heads merged feature by feature", "a block whose merged rows hold feature 0 of all heads first",
        "Rows of w_out: the first D belong to head 0. Which numbers are first in your merged row?",
    ),
    (
        "several calls", "The numbers may be right, but attend is called more than once.",
        "How many sequences and heads does a tensor (B, H, S, D) hold, and how many calls do they need?", _often,
    ),
    (
        "attention of its own", "The numbers are right, but the attention is computed in the block itself.",
        "Somebody hands another attention in. What changes in your block?", _never,
    ),
)  # fmt: skip
