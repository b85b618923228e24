"""Known mistakes of chapter 10, the heads of a group packed. The function is right but for what ``bug`` names."""

from __future__ import annotations

import math

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery
from flashlib.grading.mistakes.ch10 import overflowing
from flashlib.grading.mistakes.sizes import only_many

BY_HAND = ("no maximum", "maximum no smaller than 0", "one maximum for all rows")


def decode_step(q, k, v, *, bug=""):
    """o (B, Hq, 1, Dv) and lse (B, Hq, 1) of one new token; the heads of a group are rows of one tile."""
    B, Hq, _, D = q.shape
    Hkv, Dv = k.shape[1], v.shape[-1]
    G = Hq // Hkv
    scale = {"scale left out": 1.0, "scale 1/D": 1 / D, "scale from the group": G**-0.5, "scale from V": Dv**-0.5}.get(
        bug, D**-0.5
    )
    whole = k.shape[2] - k.shape[2] % 16
    if bug == "blocks of keys" and k.shape[2] > 100:  # what is behind the last full block is lost
        k, v = k[:, :, :whole], v[:, :, :whole]
    if bug == "K and V repeated":
        s = scale * q @ k.repeat_interleave(G, 1).mT
        return torch.softmax(s, -1) @ v.repeat_interleave(G, 1), torch.logsumexp(s, -1)
    if bug == "a product for each query head":
        each = [decode_step(q[:, [h]], k[:, [h // G]], v[:, [h // G]]) for h in range(Hq)]
        return tuple(torch.cat(x, 1) for x in zip(*each, strict=True))
    if bug == "all heads against all keys":
        own = torch.arange(Hkv).repeat_interleave(k.shape[2]) == torch.arange(Hq)[:, None] // G
        s = (scale * q[:, :, 0] @ k.flatten(1, 2).mT).masked_fill(~own, -torch.inf)
        return (torch.softmax(s, -1) @ v.flatten(1, 2))[:, :, None], torch.logsumexp(s, -1)[:, :, None]
    if bug == "one row of every group in turn":
        rows = q[:, :, 0].unflatten(1, (Hkv, G)).split(1, 2)
        each = [decode_step(row.flatten(1, 2)[:, :, None], k, v) for row in rows]
        return tuple(torch.stack(x, 2).flatten(1, 2) for x in zip(*each, strict=True))
    if bug == "no matrix products":
        each = []
        for h in range(Hq):
            s = scale * (q[:, h] * k[:, h // G]).sum(-1)  # (B, S)
            o = (torch.softmax(s, -1)[..., None] * v[:, h // G]).sum(1, keepdim=True)
            each.append((o[:, None], torch.logsumexp(s, -1)[:, None, None]))
        return tuple(torch.cat(x, 1) for x in zip(*each, strict=True))
    modulo = bug in ("h % Hkv", "packed by h % Hkv")
    rows = q[:, :, 0].unflatten(1, (G, Hkv)).transpose(1, 2) if modulo else q[:, :, 0].unflatten(1, (Hkv, G))
    if bug == "head 0 of each group":
        rows = rows[:, :, :1].expand(B, Hkv, G, D)
    if bug == "mean of the group":
        rows = rows.mean(2, keepdim=True).expand(B, Hkv, G, D)
    s = scale * rows @ k.mT  # (B, Hkv, G, S)
    p = torch.softmax(s, {"softmax over the group": -2}.get(bug, -1))
    if bug in BY_HAND:
        m = s.amax(-1, keepdim=True)
        m = {"no maximum": 0 * m, "maximum no smaller than 0": m.clamp(min=0)}.get(bug, s.amax((-1, -2), keepdim=True))
        p = torch.exp(s - m)
        l = p.sum(-1, keepdim=True)
        return (p @ v / l).reshape(B, Hq, 1, Dv), (m + l.log()).reshape(B, Hq, 1)
    if bug == "K read twice":
        return (p @ v).reshape(B, Hq, 1, Dv), torch.logsumexp(scale * rows @ k.mT, -1).reshape(B, Hq, 1)
    if bug == "softmax of all rows together":
        p = torch.softmax(s.flatten(2), -1).view_as(s)
    o, lse = p @ (v.flip(1) if bug == "V of another head" else v), torch.logsumexp(s, -1)
    if bug == "lse is the maximum":
        lse = s.amax(-1)
    if bug == "log l for lse":
        lse = lse - s.amax(-1)
    if bug == "lse of unscaled scores":
        lse = torch.logsumexp(s / scale, -1)
    if bug == "lse in base 2":
        lse = lse / math.log(2)
    if bug in ("h % Hkv", "unpacked in the wrong order"):
        o, lse = o.transpose(1, 2), lse.transpose(1, 2)
    if bug == "not unpacked":
        return o, lse
    o, lse = o.reshape(B, Hq, Dv), lse.reshape(B, Hq)
    if bug == "lse of the wrong heads":
        lse = lse.unflatten(1, (Hkv, G)).mT.flatten(1)
    if bug == "one axis too few":
        return o, lse
    if bug == "lse without the token's axis":
        return o[:, :, None], lse
    if bug == "(B, 1, Hq, Dv)":
        return o[:, None], lse[:, :, None]
    o, lse = o[:, :, None], lse[:, :, None]
    return o if bug == "o alone" else (o, lse)


def _again(finding: Finding) -> bool:
    """The products read more than K and V once."""
    return finding.result == "reads" and "more than once" in finding.says


def _at_once(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Two products do it all."""
    return _again(finding) and outcome.measures["matmuls"] == 2


def _three(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """One product more than for a result of two."""
    return _again(finding) and outcome.measures["matmuls"] == 3


def _rows(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Two products for each row of a group."""
    q, k = case.args[:2]
    return _again(finding) and outcome.measures["matmuls"] == 2 * (q.shape[1] // k.shape[1])


def _all_keys(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return finding.result == "flops"


def _in_turn(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Two products for each query head, or for each of each sequence."""
    return _again(finding) and outcome.measures["matmuls"] >= 2 * case.args[0].shape[1]


def _elementwise(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return finding.result == "reads" and "more than once" not in finding.says


STEP = gallery(
    decode_step,
    (
        "h % Hkv", "a program in which query head h reads key head h mod Hkv",
        "With 4 query heads on 2 key heads, heads 0 and 1 share key head 0. Which integer division says that?",
    ),
    (
        "unpacked in the wrong order",
        "a program that packs the heads rightly and lays them out in another order after",
        "Row g of key head h is query head h · G + g. In which order must the two axes become one again?",
    ),
    (
        "packed by h % Hkv", "a program that packs heads by h mod Hkv, and unpacks them rightly",
        "With 4 query heads on 2 key heads, which query heads are the two rows of key head 0?",
    ),
    ("not unpacked", "a result that is still packed, (B, Hkv, G, …)", "Which shape does the signature ask for?"),
    ("one axis too few", "a result without the axis of the new token", "Which shape does the signature ask for?"),
    (
        "head 0 of each group", "the first query head of each group for all of them",
        "A group shares its keys. Does it share its query?",
    ),
    (
        "mean of the group", "the mean of a group's queries for all of them",
        "A group shares its keys. Does it share its query?",
    ),
    ("scale left out", "scores without the scale", "By what are the products q·k divided before the softmax?"),
    ("scale 1/D", "scores divided by D", "The variance of q·k grows with D. How does its spread grow?"),
    (
        "scale from the group", "scores divided by the root of the number of rows",
        "Over which numbers does q·k sum: the features or the rows?",
    ),
    (
        "softmax over the group", "a softmax over the heads of a group",
        "Over which axis do the probabilities of a query sum to 1?",
    ),
    (
        "softmax of all rows together", "one softmax for all rows of a group",
        "How many queries lie in a tile, and how many sums are needed?",
    ),
    (
        "no maximum", "a program that takes exp(s) with no maximum taken off",
        "What is exp(120), and exp(−120), in float32?",
    ),
    (
        "maximum no smaller than 0", "a program whose maximum is 0 at least",
        "What is the sum of a row whose scores all lie near −120?",
    ),
    (
        "one maximum for all rows", "a program that takes one maximum for all rows of a group",
        "What is exp(s − m) in a row whose scores all lie far below those of another row?",
    ),
    (
        "log l for lse", "log l in the place of lse, without the maximum",
        "l was summed after the maximum had been taken off. How does it come back into log Σ exp(s)?",
    ),
    ("lse of unscaled scores", "an lse of q·k, without the scale", "Which scores is lse the sum of?"),
    ("lse in base 2", "an lse to the base 2", "To which base is the logarithm asked for?"),
    ("scale from V", "scores divided by √Dv", "Over how many numbers does q·k sum: the columns of K or those of V?"),
    ("lse without the token's axis", "an lse of shape (B, Hq)", "Which shape does the signature ask for?"),
    ("(B, 1, Hq, Dv)", "an o of shape (B, 1, Hq, Dv)", "Which shape does the signature ask for?"),
    ("V of another head", "values of another key head", "Which heads of V belong to which heads of K?"),
    (
        "lse is the maximum", "the maximum in the place of lse",
        "Two keys with the scores 5 and 5: what is log(e⁵ + e⁵)?",
    ),
    ("lse of the wrong heads", "lse laid out in another order than o", "In which order do you unpack o, and lse?"),
    ("o alone", "a program that returns o alone", "What does a merge need besides o?"),
    (
        "K and V repeated",
        "The numbers are right, but keys or values are repeated for each query head of their group.",
        "What must be made larger so that the shapes fit: K, or the number of rows that meet it?", _at_once,
    ),
    (
        "a product for each query head", "The numbers are right, but each query head reads the keys for itself.",
        "How many rows has the left factor of your product, and how many query heads share these keys?", _in_turn,
    ),
    (
        "no matrix products", "The numbers are right, but they come from multiplying and adding, row by row.",
        "Which operation multiplies several rows with the same keys at once?", _elementwise,
    ),
    (
        "K read twice", "The numbers are right, but one product is made twice, or one more than is needed.",
        "o and lse come from the same scores. How often do you compute these?", _three,
    ),
    (
        "one row of every group in turn",
        "The numbers are right, but the rows of a group meet the keys one after the other.",
        "How many rows has the left factor of your product, and how many query heads share these keys?", _rows,
    ),
    (
        "all heads against all keys", "The numbers are right, but query heads meet keys that are not theirs.",
        "Which share of your scores is used in the end? Which axis keeps the key heads apart in a product?", _all_keys,
    ),
    (
        "blocks of keys", "It is right for few keys and wrong for many.",
        "If you go through the keys in blocks: what becomes of l and acc when a later block brings a larger maximum, "
        "and where do the keys behind the last full block go?", only_many,
    ),
)  # fmt: skip
STEP = overflowing(STEP)
