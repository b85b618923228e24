"""Known mistakes of chapter 10, one part of the keys and the merge. Each function is right but for what ``bug`` names.

Those of grouped heads are in `ch10_heads`, those of ragged lengths in `ch10_lengths`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.ch05 import gallery
from flashlib.grading.mistakes.sizes import as_in_16_bits, only_many

INF = torch.inf
EPS = {f"{eps:g} in the divisor": eps for eps in (1e-6, 1e-8, 1e-9, 1e-10)}
EPS_TWICE = {f"{name} and in the logarithm": eps for name, eps in EPS.items()}


def overflowing(mistakes: list[Mistake]) -> list[Mistake]:
    """The same, with `overflows` where no maximum is taken off: that one comes last, since it resembles whatever is
    finite in the same rows."""
    last = "no maximum"
    return [m for m in mistakes if m.name != last] + [replace(m, overflows=True) for m in mistakes if m.name == last]


# -- 10.1 ----------------------------------------------------------------------------------------------------------
def attend_part(q, k, v, scale, *, bug=""):
    """o and lse of one part of the keys."""
    narrow, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    if bug != "in 16 bits":
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
    own, whole = q.shape[-1] ** -0.5, len(k) - len(k) % 64
    if bug == "blocks of keys" and whole:  # what is behind the last full block is lost
        k, v = k[:whole], v[:whole]
    s = q @ k.T * {"scale left out": 1.0, "own scale": own, "scale twice": scale**2}.get(bug, scale)
    unguarded = bug == "no keys: 0 / 0" or (bug.endswith(", 0 / 0") and s.shape[1] > 0)
    bug = bug.removesuffix(", 0 / 0")
    if bug == "no keys: a maximum of nothing":
        m = s.amax(1, keepdim=True)
    elif not s.shape[1]:
        m = s.new_full((len(s), 1), -INF)
    else:
        m = s.amax().expand(len(s), 1) if bug == "one maximum for all rows" else s.amax(1, keepdim=True)
        m = torch.zeros_like(m) if bug == "no maximum" else m
        m = m.clamp(min=0) if bug == "maximum no smaller than 0" else m
        m = s[:, :1] if bug == "the first score for the maximum" else m
    safe = m if bug == "no keys: 0 / 0" else m.masked_fill(m == -INF, 0)
    p = torch.exp(s - safe)
    if bug == "softmax down the rows":
        p = torch.exp(s - s.amax(0)) / torch.exp(s - s.amax(0)).sum(0)
    if bug == "maximum over the queries" and s.shape[1]:
        p, m = torch.exp(s - s.amax(0)), s.amax().expand(len(s), 1)
    l = p.sum(1, keepdim=True) + EPS_TWICE.get(bug, 0)
    by = l + EPS.get(bug, 0)
    o = p @ v / (by if unguarded else by.masked_fill(l == 0, 1))
    if bug == "not divided":
        o = p @ v
    if bug == "divided by the number of keys":
        o = p @ v / max(s.shape[1], 1)
    lse = {
        "m for lse": m, "log l for lse": l.log(), "l for lse": l, "m · l for lse": m * l, "m + l for lse": m + l,
        "lse in base 2": m / 0.6931471805599453 + l.log2(),
    }.get(bug, m + l.log())[:, 0]  # fmt: skip
    if bug == "lse of unscaled scores":
        lse = torch.log(torch.exp((s - safe) / scale).sum(1)) + m[:, 0] / scale
    if bug == "m not scaled":
        lse = lse + m[:, 0] * (1 / scale - 1) if s.shape[1] else lse
    if bug == "no keys: lse 0":
        lse = torch.where(l[:, 0] == 0, 0, lse)
    if bug == "no keys: a very small lse":
        lse = torch.where(l[:, 0] == 0, -1e9, lse)
    if bug == "lse keeps an axis":
        lse = lse[:, None]
    if bug == "both in 16 bits":
        o, lse = o.to(narrow), lse.to(narrow)
    if bug == "in 16 bits":
        o, lse = o.to(wide), lse.to(wide)
    if bug == "o alone":
        return o
    return (lse, o) if bug == "order" else (o, lse)


def _no_keys(case: Case, outcome: Outcome) -> bool:
    return case.name.startswith("no keys")


def _nothing(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """A maximum over no numbers was asked for."""
    return _no_keys(case, outcome) and outcome.trouble is not None and "dim" in outcome.trouble.message


def small_lse(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """A negative number where lse should be −∞."""
    lse = outcome.results[-1].array if outcome.results else np.zeros(0)
    return finding.result == "lse" and bool(finding.where) and -INF < lse[finding.where] < 0


def _narrow(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return "float16" in case.name and any(r.dtype == "float16" for r in outcome.results)


def _rounded(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Right dtypes, wrong numbers for float16 inputs, by as much as 16 bits make them."""
    right_dtypes = "float16 in" in case.name and [r.dtype for r in outcome.results] == ["float32", "float32"]
    return right_dtypes and as_in_16_bits(case, outcome, partial(attend_part, bug="in 16 bits"))


def divided() -> list[tuple[str, str, str]]:
    """Rows of a gallery for what is added to the divisor."""
    ask = "A small number keeps 0 out of the divisor, and changes every row. In which rows alone is the sum 0?"
    return [
        *((name, f"a divisor to which {eps:g} is added", ask) for name, eps in EPS.items()),
        *((name, f"a program that adds {eps:g} to l", ask) for name, eps in EPS_TWICE.items()),
    ]


PART = gallery(
    attend_part,
    (
        "not divided", "an o that is not divided by l",
        "The last column of v is 1 everywhere. What must the last column of o be?",
    ),
    (
        "m for lse", "the maximum in the place of lse",
        "Two keys with the scores 5 and 5: what is log(e⁵ + e⁵)?",
    ),
    (
        "log l for lse", "log l in the place of lse, without the maximum",
        "l was summed after the maximum had been taken off. How does it come back into log Σ exp(s)?",
    ),
    ("l for lse", "l in the place of lse", "Which function stands in front of the sum in log Σ exp(s)?"),
    (
        "m + l for lse", "m + l in the place of lse",
        "Σ exp(s) = exp(m) · l. What is its logarithm?",
    ),
    ("m · l for lse", "m · l in the place of lse", "Σ exp(s) = exp(m) · l. What is its logarithm?"),
    (
        "m not scaled", "an lse with the maximum of q·k, before the scale",
        "Which scores is lse the sum of: with the scale or without it?",
    ),
    ("lse in base 2", "an lse to the base 2", "To which base is the logarithm asked for?"),
    (
        "no maximum", "a program that takes exp(s) with no maximum taken off",
        "What is exp(120), and exp(−120), in float32?",
    ),
    *(
        (name, "a program whose maximum is 0 at least", "What is the sum of a row whose scores all lie near −120?")
        for name in ("maximum no smaller than 0", "maximum no smaller than 0, 0 / 0")
    ),
    *(
        (
            name, "a program that takes one maximum for all rows",
            "What is exp(s − m) in a row whose scores all lie far below those of another row?",
        )
        for name in ("one maximum for all rows", "one maximum for all rows, 0 / 0")
    ),
    (
        "the first score for the maximum", "a program that takes the first key's score off, not the largest",
        "What becomes of exp(s − s₀) if a later score is larger by 100?",
    ),
    *(
        (
            name, "a program that takes each key's maximum over the queries off its scores",
            "The scores of a row share a sum. Must the number taken off be the same for all keys, or for all queries?",
        )
        for name in ("maximum over the queries", "maximum over the queries, 0 / 0")
    ),
    ("lse of unscaled scores", "an lse of q·k, without the scale", "Which scores is lse the sum of?"),
    *divided(),
    ("scale left out", "scores without the scale", "What does your function do with its argument `scale`?"),
    (
        "own scale", "scores with 1/√D, whatever scale was given",
        "What does your function do with its argument `scale`?",
    ),
    ("scale twice", "scores with the scale in them twice", "How often does the scale appear in s = scale · q · k?"),
    (
        "no keys: a maximum of nothing", "It takes the maximum of a row that has no scores.",
        "What is the largest of no numbers, and what must the function return when k has no rows?", _nothing,
    ),
    (
        "no keys: 0 / 0", "a program that divides 0 by 0, or takes −∞ from −∞, where there are no keys",
        "What are m and l of a row that has seen nothing? What may be divided by l = 0?",
    ),
    (
        "no keys: lse 0", "an lse of 0 where there are no keys",
        "Such a part must weigh exp(lse − L) = 0. Which lse says that?",
    ),
    (
        "no keys: a very small lse", "Where there are no keys, its lse is a small number and not −∞.",
        "If all parts of a row are like this one, what will the merged weights be?", small_lse,
    ),
    (
        "divided by the number of keys", "an o divided by the number of keys", "By which sum must a row be divided?",
    ),
    (
        "softmax down the rows", "a softmax down the queries",
        "Over which axis do the probabilities of a row sum to 1?",
    ),
    ("lse keeps an axis", "an lse of shape (R, 1)", "Which shape does the signature ask for?"),
    ("order", "lse first and o second", "In which order does the signature name them?"),
    ("o alone", "a program that returns o alone", "What else does the merge need to know of this part?"),
    (
        "both in 16 bits", "The results come back in 16 bits.",
        "This is not the end: parts are still to be merged. In which dtype do their digits survive?", _narrow,
    ),
    (
        "in 16 bits", "It computes in 16 bits, or rounds to 16 bits on its way.",
        "Which of your arrays are float16: the scores, the weights, the products? How many digits does float16 keep?",
        _rounded,
    ),
    (
        "blocks of keys", "It is right for few keys and wrong for many.",
        "If you go through the keys in blocks: what becomes of l and acc when a later block brings a larger maximum, "
        "and where do the keys behind the last full block go?", only_many,
    ),
)  # fmt: skip
PART = overflowing(PART)


# -- 10.2 ----------------------------------------------------------------------------------------------------------
def merge(o, lse, *, bug=""):
    """Parts (P, R, Dv), (P, R) merged into (R, Dv), (R)."""
    whole = len(lse) - len(lse) % 16
    if bug == "blocks of parts" and whole:  # what is behind the last full block is lost
        o, lse = o[:whole], lse[:whole]
    unguarded, bug = bug.endswith(", 0 / 0"), bug.removesuffix(", 0 / 0")
    m = {"no maximum": torch.zeros_like(lse[0]), "one maximum for all rows": lse.max().expand(lse.shape[1])}.get(
        bug, lse.amax(0)
    )
    if bug == "maximum no smaller than 0":
        m = m.clamp(min=0)
    safe = m if bug == "all empty: NaN" else m.masked_fill(m == -INF, 0)
    if bug == "the first part's lse for the maximum":
        m = safe = lse[0]
    if bug == "the first part's lse for the maximum, or 0":
        m = safe = lse[0].masked_fill(lse[0] == -INF, 0)
    weight = torch.exp((safe - lse) if bug == "sign" else lse - safe)
    if bug == "base 2":
        weight = torch.exp2(lse - safe)
    l = weight.sum(0) + EPS_TWICE.get(bug, 0)
    L = (m if bug in EPS_TWICE else safe) + (l.log2() if bug == "base 2" else l.log())
    if bug == "weights across the rows":
        high = lse.amax(1, keepdim=True)
        weight = torch.exp(lse - high.masked_fill(high == -INF, 0))
        weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-30)
        return (weight[..., None] * o).sum(0), L
    if bug == "lse are the weights":
        finite = lse.masked_fill(lse == -INF, 0)
        return (finite[..., None] * o).sum(0) / finite.sum(0)[..., None], L
    if bug == "mean of the o":
        return o.mean(0), L
    if bug == "mean over the parts that are not empty":
        there = (lse > -INF).to(o.dtype)
        return (there[..., None] * o).sum(0) / there.sum(0).clamp(min=1)[..., None], L
    if bug == "o added":
        return o.sum(0), L
    if bug == "best part alone":
        return o[lse.argmax(0), torch.arange(o.shape[1])], m
    if bug == "merged two at a time, halves":
        out = o[0]
        for part in o[1:]:
            out = (out + part) / 2
        return out, L
    total = (weight[..., None] * o).sum(0)
    out = total if bug == "never divided" else total / (l + EPS.get(bug, 0)).masked_fill(l == 0, 1)[..., None]
    if bug == "all empty: NaN" or (unguarded and (m > -INF).all()):
        out = total / l[..., None]
    if bug == "divided by the number of parts":
        out = total / len(o)
    L = {
        "lse added": lse.sum(0), "largest lse": m, "mean of exp": L - torch.log(torch.tensor(1.0 * len(o))).to(L.dtype),
        "log l alone": l.log(), "mean of lse": lse.mean(0), "l for lse": l,
    }.get(bug, L)  # fmt: skip
    if bug == "all empty: a very small lse":
        L = L.masked_fill(L == -INF, -1e9)
    if bug == "all empty: lse 0":
        L = L.masked_fill(L == -INF, 0)
    if bug == "lse keeps an axis":
        L = L[:, None]
    return (L, out) if bug == "order" else (out, L)


def _empty_small(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """A negative number where lse should be −∞."""
    return small_lse(case, outcome, finding) and bool((case.args[1][:, finding.where[0]] == -INF).all())


MERGE = gallery(
    merge,
    (
        "mean of the o", "the mean of the parts' o",
        "A part whose scores are all smaller by 10: how much of the whole sum of exp(s) does it hold?",
    ),
    (
        "mean over the parts that are not empty", "the mean of the o of the parts that are not empty",
        "A part whose scores are all smaller by 10: how much of the whole sum of exp(s) does it hold?",
    ),
    (
        "lse are the weights", "parts weighed by lse itself",
        "A part's sum is Σ exp(s). How do you get it from lse?",
    ),
    ("o added", "the parts' o added", "Each o is divided already. What must the weights of the parts sum to?"),
    (
        "lse added", "the parts' lse added",
        "Adding logarithms multiplies the sums. What is done to the sums when two sets of keys become one?",
    ),
    (
        "largest lse", "the largest lse in the place of the merged one",
        "Two parts with lse 5 and 5: what is log(e⁵ + e⁵)?",
    ),
    (
        "mean of exp", "the logarithm of the mean of exp(lse)",
        "Two parts with lse 5 and 5: is the sum over all their keys the mean of the two sums?",
    ),
    ("mean of lse", "the mean of the lse", "Two parts with lse 5 and 5: what is log(e⁵ + e⁵)?"),
    (
        "log l alone", "a merged lse without the maximum",
        "The maximum was taken off before exp. When does it come back?",
    ),
    ("l for lse", "a sum in the place of its logarithm", "Which function stands in front of the sum?"),
    (
        "no maximum", "weights exp(lse) with no maximum taken off", "What is exp(1000), and exp(−1000), in float32?",
    ),
    *(
        (name, "a program whose maximum is 0 at least", "What is the sum of a row whose lse all lie near −1000?")
        for name in ("maximum no smaller than 0", "maximum no smaller than 0, 0 / 0")
    ),
    (
        "one maximum for all rows, 0 / 0", "one maximum for all rows",
        "What is exp(lse − m) in a row whose parts all lie far below those of another row?",
    ),
    (
        "the first part's lse for the maximum, or 0",
        "a program that takes the first part's lse off, not the largest, or 0 if that part is empty",
        "What is exp(lse − lse₀) if a later part's lse is larger by 100?",
    ),
    (
        "the first part's lse for the maximum", "a program that takes the first part's lse off, not the largest",
        "What is lse − lse of a row whose first part is empty?",
    ),
    (
        "one maximum for all rows", "one maximum for all rows",
        "What is exp(lse − m) in a row whose parts all lie far below those of another row?",
    ),
    (
        "all empty: NaN", "a program that takes −∞ from −∞, or divides 0 by 0, where all parts of a row are empty",
        "What is the maximum of a row without any key? What may be divided by l = 0?",
    ),
    (
        "all empty: lse 0", "an lse of 0 for a row without any key", "What is the logarithm of an empty sum?",
    ),
    (
        "all empty: a very small lse", "For a row without any key its lse is a small number and not −∞.",
        "If this row is merged with another that is as empty, which weights come out?", _empty_small,
    ),
    ("never divided", "a weighted sum that is not divided by the sum of the weights", "What must the weights sum to?"),
    (
        "divided by the number of parts", "a weighted sum divided by the number of parts",
        "What must the weights sum to?",
    ),
    ("best part alone", "the part with the largest lse alone", "How much do the other parts weigh?"),
    (
        "merged two at a time, halves", "parts merged two at a time, each time half and half",
        "When part 2 comes, how many keys does what you have already stand for?",
    ),
    ("sign", "weights exp(L − lse)", "Which part should weigh more: one with a large lse or a small one?"),
    (
        "weights across the rows", "weights that sum to 1 across the rows",
        "Over which axis are parts of the same row?",
    ),
    ("base 2", "powers of 2 on a natural logarithm", "To which base are the lse given?"),
    *divided(),
    ("lse keeps an axis", "an lse of shape (R, 1)", "Which shape does the signature ask for?"),
    ("order", "lse first and o second", "In which order does the signature name them?"),
    (
        "blocks of parts", "It is right for few parts and wrong for many.",
        "If you go through the parts in blocks: what becomes of the sums when a later block brings a larger lse, and "
        "where do the parts behind the last full block go?", only_many,
    ),
)  # fmt: skip
MERGE = overflowing(MERGE)
