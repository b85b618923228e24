"""Known mistakes of chapter 01, heads. The function is right but for what ``bug`` names."""

from __future__ import annotations

import numpy as np

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch01_rows import OF_SOFTMAX, TEXT, known, rows, sums_short


def _cannot_meet(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """NumPy could not broadcast the heads of k or v to those of q."""
    return (
        outcome.trouble is not None and outcome.trouble.kind == "ValueError" and "broadcast" in outcome.trouble.message
    )


def _all_axes_turned(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """NumPy found that the last axes fit no matrix product."""
    t = outcome.trouble
    return t is not None and t.kind == "ValueError" and "core dimension" in t.message


def _tokens_first(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The result is (B, Sq, Hq, Dv)."""
    (B, Hq, Sq, _), v = case.args[0].shape, case.args[2]
    return Hq != Sq and [r.array.shape for r in outcome.results] == [(B, Sq, Hq, v.shape[-1])]


def _kv_heads(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The result has as many heads as k."""
    q, k = case.args[:2]
    shapes = [r.array.shape for r in outcome.results]
    return k.shape[1] != q.shape[1] and all(len(s) == 4 and s[1] == k.shape[1] for s in shapes[:1]) and bool(shapes)


def heads(q, k, v, *, bug=""):
    """o of every query head; query head h reads KV head h // G."""
    Hq, Hkv = q.shape[1], k.shape[1]
    G = Hq // Hkv
    which = np.arange(Hq) // G
    if bug == "h % Hkv":
        which = np.arange(Hq) % Hkv
    if bug == "always head 0":
        which = np.zeros(Hq, dtype=int)
    if bug == "backwards":
        which = which[::-1]
    which_v = np.arange(Hq) % Hkv if bug == "k repeated, v tiled" else which
    if bug == "KV heads averaged":
        k, v = (np.repeat(x.mean(1, keepdims=True), Hkv, axis=1) for x in (k, v))
    if bug == "batch 0 for all":
        k, v = (np.repeat(x[:1], len(x), axis=0) for x in (k, v))
    if bug == "not repeated":
        k, v = (x if Hkv != Hq else x[:, which] for x in (k, v))
    else:
        k, v = k[:, which], v[:, which_v]
    d = {"scale of all heads": Hq * q.shape[-1], "scale from the wrong axis": Hq, "scale forgotten": 1}.get(
        bug, q.shape[-1]
    )
    if bug == "all axes turned":
        return q @ k.T
    s = (q @ k.mT) * float(d) ** -0.5
    if bug == "argument changed":
        q *= float(d) ** -0.5
    if bug == "softmax over the heads":
        e = np.exp(s - s.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
    elif bug == "softmax over the queries":
        e = np.exp(s - s.max(2, keepdims=True))
        p = e / e.sum(2, keepdims=True)
    else:
        p = rows(s, bug if bug in OF_SOFTMAX else "")
    o = p @ v
    if bug == "tokens before heads":
        o = o.swapaxes(1, 2)
    if bug == "group averaged":
        o = o.reshape(o.shape[0], Hkv, G, *o.shape[2:]).mean(2)
    if bug == "group summed":
        o = np.repeat(o.reshape(o.shape[0], Hkv, G, *o.shape[2:]).sum(2), G, axis=1)
    return o.astype(np.float64) if bug == "float64 comes out" else o


HEADS = known(
    heads,
    (
        "h % Hkv",
        "query heads that read KV head h % Hkv",
        "With Hq = 4 and Hkv = 2, heads 0 and 1 share one KV head. Which function repeats 0, 1 as 0, 0, 1, 1?",
    ),
    (
        "not repeated",
        "The shapes (B, Hq, …) and (B, Hkv, …) cannot meet as they are.",
        "Which KV head does query head h read? How often must each KV head stand along the head axis?",
        _cannot_meet,
    ),
    (
        "all axes turned",
        "The last two axes fit no product as they are; `.T` turns round all four axes of an array.",
        "The scores are (…, Sq, Sk). Which two axes of k must change places, and what exchanges just these?",
        _all_axes_turned,
    ),
    (
        "k repeated, v tiled",
        "keys and values of two different KV heads",
        "Is v spread over the query heads in the same way as k?",
    ),
    (
        "always head 0",
        "query heads that all read KV head 0",
        "Which KV head should the last query head read?",
    ),
    (
        "backwards",
        "query heads that read the KV heads in reverse",
        "Which KV head should query head 0 read?",
    ),
    (
        "scale of all heads",
        "a scale of 1/√(H · D)",
        "One dot product sums over the features of one head. How many are they?",
    ),
    (
        "scale from the wrong axis",
        "a scale of 1/√H",
        "In (B, H, S, D), which axis holds the features?",
    ),
    "scale forgotten",
    "argument changed",
    "sum without its axis",
    "maximum without its axis",
    "maximum and sum without their axis",
    (
        "epsilon",
        *TEXT["epsilon"][:2],
        sums_short(0, -1),
    ),
    (
        "tokens before heads",
        "The axes of heads and of tokens are exchanged.",
        "Asked for is (B, Hq, Sq, Dv). Which line changes the order of the axes?",
        _tokens_first,
    ),
    (
        "softmax over the heads",
        "a softmax along the head axis",
        "Each query shares out its weight among the keys. Which axis of (B, H, Sq, Sk) do they lie along?",
    ),
    (
        "softmax over the queries",
        "a softmax along the queries",
        "Each query shares out its weight among the keys. Which axis of (B, H, Sq, Sk) do they lie along?",
    ),
    "no maximum, 0 / 0",
    "one maximum for all, 0 / 0",
    (
        "batch 0 for all",
        "an attention in which every text reads the keys and values of text 0",
        "Do all axes of k run along with q, the first one too?",
    ),
    (
        "KV heads averaged",
        "an attention over the mean of the KV heads",
        "Does a query head read all KV heads, or one?",
    ),
    (
        "group summed",
        "outputs that were added up over the query heads of a group",
        "The query heads of a group share k and v. Do they share their result?",
    ),
    (
        "group averaged",
        "The result has as many heads as k, not as many as q.",
        "The query heads of a group share k and v. Do they share their result?",
        _kv_heads,
    ),
    "float64 comes out",
)
