"""Known mistakes of chapter 10, the heads of a group packed. The function is right but for what ``bug`` names."""

from __future__ import annotations

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery


def decode_step(q, k, v, *, bug=""):
    """o (B, Hq, 1, Dv) and lse (B, Hq, 1) of one new token; the heads of a group are rows of one tile."""
    B, Hq, _, D = q.shape
    Hkv, Dv = k.shape[1], v.shape[-1]
    G = Hq // Hkv
    scale = {"scale left out": 1.0, "scale 1/D": 1 / D, "scale from the group": G**-0.5}.get(bug, D**-0.5)
    if bug == "K and V repeated":
        s = scale * q @ k.repeat_interleave(G, 1).mT
        return torch.softmax(s, -1) @ v.repeat_interleave(G, 1), torch.logsumexp(s, -1)
    if bug == "a product for each query head":
        each = [decode_step(q[:, [h]], k[:, [h // G]], v[:, [h // G]]) for h in range(Hq)]
        return tuple(torch.cat(x, 1) for x in zip(*each, strict=True))
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
    if bug == "no maximum":
        p = torch.exp(s)
        o, lse = p @ v / p.sum(-1, keepdim=True), p.sum(-1).log()
        return o.reshape(B, Hq, 1, Dv), lse.reshape(B, Hq, 1)
    if bug == "softmax of all rows together":
        p = torch.softmax(s.flatten(2), -1).view_as(s)
    o, lse = p @ (v.flip(1) if bug == "V of another head" else v), torch.logsumexp(s, -1)
    if bug == "lse is the maximum":
        lse = s.amax(-1)
    if bug in ("h % Hkv", "unpacked in the wrong order"):
        o, lse = o.transpose(1, 2), lse.transpose(1, 2)
    if bug == "not unpacked":
        return o, lse
    o, lse = o.reshape(B, Hq, Dv), lse.reshape(B, Hq)
    if bug == "lse of the wrong heads":
        lse = lse.unflatten(1, (Hkv, G)).mT.flatten(1)
    if bug == "one axis too few":
        return o, lse
    o, lse = o[:, :, None], lse[:, :, None]
    return o if bug == "o alone" else (o, lse)


def _again(finding: Finding) -> bool:
    """The products read more than K and V once."""
    return finding.result == "reads" and "more than once" in finding.says


def _at_once(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Two products do it all."""
    return _again(finding) and outcome.measures["matmuls"] == 2


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
)  # fmt: skip
