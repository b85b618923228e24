"""Known mistakes of chapter 10, ragged lengths. The function is right but for what ``bug`` names."""

from __future__ import annotations

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery
from flashlib.grading.mistakes.ch10 import INF, overflowing, small_lse
from flashlib.grading.mistakes.sizes import only_many

# scores of hidden keys, where the row of length 0 is set right after; V is clean
FINITE = {f"hidden by {-c:g}".replace("-", "−"): -c for c in (5.0, 10.0, 20.0, 30.0, 50.0, 80.0, 100.0)}
FINITE = {f"{name}, length 0 set right": c for name, c in FINITE.items()} | {
    "scores of 0 for hidden keys, length 0 set right": 0.0
}
BY_HAND = ("maximum no smaller than 0", "maximum over the whole room")


def decode_ragged(q, k, v, lengths, *, bug=""):
    """o and lse of one new token a sequence, each over its own ``lengths`` keys."""
    B, H, _, D = q.shape
    S = k.shape[2]
    n = lengths[:, None, None, None]
    if bug == "the longest length for all":
        n = lengths.max()[None, None, None, None]
    if bug == "the first length for all":
        n = lengths[0][None, None, None, None]
    if bug == "lengths along the heads" and B == H:
        n = lengths[None, :, None, None]
    if bug == "room for length":
        n = torch.tensor(S)[None, None, None, None]
    keys = torch.arange(S)
    hidden = keys >= n + {"one key too many": 1, "one key too few": -1}.get(bug, 0)
    if bug == "the newest keys at the end of the room":
        hidden = keys < S - n
    if bug == "mask turned round":
        hidden = ~hidden
    scale = 1.0 if bug == "scale left out" else D**-0.5
    if bug in ("all NaN hidden, in K too", "all NaN hidden in K"):
        k = torch.nan_to_num(k, nan=0.0, posinf=0.0, neginf=0.0)
    s = q @ k.mT * scale  # (B, H, 1, S)
    if bug == "mask multiplied":
        s = s * ~hidden
    elif bug == "mask added":
        s = s + torch.where(hidden, -INF, 0.0).to(s.dtype)
    else:
        by = {"hidden by −1e9": -1e9, "hidden by −10": -10.0, "scores of 0 for hidden keys": 0.0}.get(bug, -INF)
        s = s.masked_fill(hidden, by)
    if bug in FINITE:
        s, none = s.masked_fill(hidden, FINITE[bug]), n == 0
        o = (torch.softmax(s, -1) @ v.masked_fill(hidden.mT, 0)).masked_fill(none, 0)
        return o, torch.logsumexp(s, -1).masked_fill(none[..., 0], -INF)
    if bug in BY_HAND:
        raw = (q @ k.mT * scale).nan_to_num(0, 0, 0)
        own = s.amax(-1, keepdim=True).clamp(min=0)
        m = raw.amax(-1, keepdim=True) if bug == "maximum over the whole room" else own
        p = torch.exp(s - m)
        l = p.sum(-1, keepdim=True)
        return p @ v.masked_fill(hidden.mT, 0) / l.masked_fill(l == 0, 1), (m + l.log())[..., 0]
    p = torch.softmax(s, -1)
    if bug == "masked after the softmax":
        raw = q @ k.masked_fill(hidden.mT, 0).mT * scale
        o = torch.softmax(raw, -1).masked_fill(hidden, 0) @ v.masked_fill(hidden.mT, 0)
        return o, torch.logsumexp(s, -1)
    if bug == "mask added, V clean":
        s = q @ k.mT * scale + torch.zeros(()).to(s).expand_as(s).masked_fill(hidden, -INF)
        p = torch.softmax(s, -1)
    if bug == "no maximum":
        p = torch.exp(s) / torch.exp(s).sum(-1, keepdim=True)
    if bug == "NaN taken out of p":
        p = torch.nan_to_num(p)
    if bug != "length 0: NaN":
        p = p.masked_fill(hidden, 0)
    if bug in ("hidden by −1e9", "hidden by −10", "scores of 0 for hidden keys", "mask multiplied", "mask added"):
        p = torch.softmax(s, -1)
    if bug in ("all NaN hidden", "all NaN hidden, in K too"):
        v = torch.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0)
    elif bug not in ("0 · NaN", "NaN taken out of o", "mask multiplied", "mask added", "hidden by −1e9"):
        v = v.masked_fill(hidden.expand(B, H, 1, S).mT, 0)
    o, lse = p @ v, torch.log(torch.exp(s).sum(-1)) if bug == "no maximum" else torch.logsumexp(s, -1)
    if bug == "NaN taken out of o":
        o = torch.nan_to_num(o, nan=0.0)
    if bug == "a held NaN taken out of o":
        o = torch.nan_to_num(o)
    if bug == "length 0: a very small lse":
        lse = lse.masked_fill(lse == -INF, -1e9)
    if bug == "length 0: lse 0":
        lse = lse.masked_fill(lse == -INF, 0)
    if bug == "lse over the whole room":
        lse = torch.logsumexp(q @ k.mT * scale, -1)
    if bug == "lse of unscaled scores":
        lse = torch.logsumexp(s / scale, -1)
    if bug == "lse without the token's axis":
        lse = lse[..., 0]
    if bug == "not finite: hidden":
        s = s.masked_fill(~s.isfinite(), -INF)
        o, lse = torch.softmax(s, -1).masked_fill(s == -INF, 0) @ v, torch.logsumexp(s, -1)
    if bug == "lse is the maximum":
        lse = s.amax(-1)
    if bug == "mean over the length":
        o = o / lengths.clamp(min=1)[:, None, None, None]
    if bug == "cache cleaned in place":
        v.masked_fill_(hidden.expand(B, H, 1, S).mT, 0)
    return (lse, o) if bug == "order" else (o, lse)


def in_place(q, k, v, lengths):
    """Cleans the caller's cache."""
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:], v[b, :, n:] = 0, 0
    return decode_ragged(q, k, v, lengths)


def _in_blocks(q, k, v, lengths, *, bug):
    """What lies behind the last full block of 16 is lost, where there are many."""
    return decode_ragged(q, k, v, lengths - lengths % 16 if k.shape[2] > 100 else lengths)


def _writes(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return bool({"argument 2", "argument 3"} & set(outcome.changed))


def _none_small(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return small_lse(case, outcome, finding) and case.args[3][finding.where[0]] == 0


RAGGED = gallery(
    decode_ragged,
    (
        "0 · NaN", "a program that hides the scores and then multiplies 0 by what lies in V",
        "What is 0 · NaN? What must become of the values past the end before they are multiplied?",
    ),
    (
        "length 0: NaN", "a softmax of a row in which everything is hidden",
        "A softmax divides by its sum. What is the sum of a sequence of length 0, and what should o be?",
    ),
    (
        "hidden by −1e9", "a program that hides by a very small score, such as −1e9",
        "If every score of a row is −1e9, which weights come out of the softmax?",
    ),
    (
        "hidden by −10", "a program that hides by a small score, such as −10",
        "May a real score be smaller than yours? Which number is smaller than all?",
    ),
    (
        "scores of 0 for hidden keys", "a program that gives hidden keys the score 0",
        "What is exp(0)? Which score has the weight 0?",
    ),
    (
        "mask multiplied", "a program that multiplies the scores by the mask",
        "What is exp(0)? Which score has the weight 0? And what is 0 · NaN?",
    ),
    (
        "mask added", "a program that adds a mask of 0 and −∞ to the scores",
        "What is NaN − ∞, and ∞ − ∞? Which operation looks only at the mask?",
    ),
    (
        "mask added, V clean", "a program that adds a mask of 0 and −∞ to the scores",
        "What is NaN − ∞, and ∞ − ∞? Which operation looks only at the mask?",
    ),
    *(
        (
            name, f"a program that gives hidden keys the score {c:g}".replace("-", "−"),
            "May a real score be smaller than that? Which number is smaller than all?",
        )
        for name, c in FINITE.items()
    ),
    (
        "masked after the softmax", "a softmax over the whole room, whose hidden weights are then set to 0",
        "What do the weights that are left sum to? When must a key be hidden, before the sum or after it?",
    ),
    (
        "one key too many", "a program that lets one key past the end through",
        "Keys are numbered from 0. What is the number of the last one?",
    ),
    (
        "one key too few", "a program that hides the newest key",
        "Keys are numbered from 0. What is the number of the last one?",
    ),
    (
        "the longest length for all", "the longest length for all sequences",
        "Which sequence does row b of the batch belong to, and how many keys has that one?",
    ),
    (
        "the first length for all", "the first sequence's length for all",
        "Which sequence does row b of the batch belong to, and how many keys has that one?",
    ),
    ("room for length", "a program that does not look at lengths", "Which keys of the room belong to the sequence?"),
    (
        "lengths along the heads", "lengths that are laid along the heads",
        "The scores are (B, H, 1, S). Along which of these axes do lengths lie?",
    ),
    (
        "the newest keys at the end of the room", "a program that takes the last keys of the room",
        "A cache is filled from its beginning. Where does the newest key of a short sequence lie?",
    ),
    (
        "mask turned round", "a program that hides the keys that are there",
        "Which keys does True in your mask stand for?",
    ),
    (
        "all NaN hidden", "a program that takes every NaN and inf out of V",
        "A sequence that does hold a NaN should show it. Which NaN may be taken out, and which may not?",
    ),
    (
        "all NaN hidden, in K too", "a program that takes every NaN and inf out of K and V",
        "A sequence that does hold a NaN should show it. Which NaN may be taken out, and which may not?",
    ),
    (
        "all NaN hidden in K", "a program that takes every NaN and inf out of K",
        "A sequence that does hold a NaN should show it. Which NaN may be taken out, and which may not?",
    ),
    (
        "NaN taken out of o", "a program that takes NaN out of o",
        "What was lost of o when it became NaN? Where did the NaN come from?",
    ),
    (
        "NaN taken out of p", "a program whose o is 0 wherever the scores of a row are NaN",
        "NaN comes from a row of −∞ alone, and from a row whose own keys hold a NaN. Which of the two may become 0?",
    ),
    (
        "a held NaN taken out of o", "a program that keeps the garbage out, and then takes every NaN out of o",
        "A sequence that does hold a NaN should show it. What does your last step hide?",
    ),
    (
        "length 0: a very small lse", "For a sequence of length 0 its lse is a small number and not −∞.",
        "If this sequence is merged with another that is as empty, which weights come out?", _none_small,
    ),
    ("length 0: lse 0", "an lse of 0 for a sequence of length 0", "What is the logarithm of an empty sum?"),
    ("lse over the whole room", "an lse that has seen the whole room", "Over which keys does lse sum?"),
    (
        "lse is the maximum", "the maximum in the place of lse",
        "Two keys with the scores 5 and 5: what is log(e⁵ + e⁵)?",
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
        "maximum over the whole room", "a program whose maximum has seen the hidden keys",
        "Old keys may have far larger scores than a sequence's own. What is exp(s − m) then?",
    ),
    ("lse of unscaled scores", "an lse of q·k, without the scale", "Which scores is lse the sum of?"),
    ("lse without the token's axis", "an lse of shape (B, H)", "Which shape does the signature ask for?"),
    (
        "not finite: hidden", "a program that hides every key whose score is not finite",
        "A sequence that does hold a NaN should show it. Which scores may be hidden?",
    ),
    ("mean over the length", "an o divided by the length once more", "What do the weights of a row sum to already?"),
    ("scale left out", "scores without the scale", "By what are the products q·k divided before the softmax?"),
    ("order", "lse first and o second", "In which order does the signature name them?"),
)  # fmt: skip
RAGGED = overflowing(RAGGED)
RAGGED += gallery(
    _in_blocks,
    (
        "blocks of keys", "It is right for few keys and wrong for many.",
        "If you go through the keys in blocks: what becomes of l and acc when a later block brings a larger maximum, "
        "and where do the keys behind the last full block go?", only_many,
    ),
)  # fmt: skip
RAGGED += gallery(
    lambda *a, bug: in_place(*a),
    (
        "cache cleaned in place", "It clears the caller's cache.",
        "Who else may still write to the room past the end? Clear a copy, or only the part that you use.", _writes,
    ),
)  # fmt: skip
