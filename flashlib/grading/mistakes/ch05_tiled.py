"""Known mistakes of chapter 05, tiles and autograd. Each function is right but for what ``bug`` names."""

from __future__ import annotations

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery


# -- 05.5 ----------------------------------------------------------------------------------------------------------
def tiled_backward(do, delta, q, k, v, lse, scale, causal=False, block=16, *, bug=""):
    """dq, dk, dv, tile by tile."""
    Sq, Sk = q.shape[-2], k.shape[-2]
    shift = 0 if bug == "top left" else Sk - Sq
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    if bug == "N × N stored":
        block = max(Sq, Sk, 1)
    whole = bug == "ragged tail dropped"
    for j in range(0, Sk - Sk % block if whole else Sk, block):
        keys = slice(j, min(j + block, Sk))
        for i in range(0, Sq - Sq % block if whole else Sq, block):
            rows = slice(i, min(i + block, Sq))
            if causal and bug != "not causal" and not bug.endswith("every tile visited") and j > rows.stop - 1 + shift:
                continue
            p, ds = _tile(do, delta, q, k, v, lse, scale, rows, keys, causal, shift, bug)
            shares = (
                (dq[..., rows, :], (1 if bug == "no scale" else scale) * ds @ k[..., keys, :]),
                (dk[..., keys, :], (1 if bug == "no scale" else scale) * ds.mT @ q[..., rows, :]),
                (dv[..., keys, :], p.mT @ do[..., rows, :]),
            )
            for n, (total, share) in enumerate(shares):
                lost = {0: "dQ overwritten", 1: "dK and dV overwritten", 2: "dK and dV overwritten"}[n]
                total.copy_(share) if bug == lost else total.add_(share)
    if bug == "scale twice in dK":
        dk *= scale
    return dq, dk, dv


def _tile(do, delta, q, k, v, lse, scale, rows, keys, causal, shift, bug):
    """A tile of P, made again, and of dS."""
    s = (1 if bug == "P without scale" else scale) * q[..., rows, :] @ k[..., keys, :].mT
    lse_i = lse[..., rows, None]
    if bug == "softmax of the tile":
        e = torch.exp(s - s.amax(-1, keepdim=True))
        p = e / e.sum(-1, keepdim=True)
    elif bug == "exp(s) / exp(lse)":
        p = torch.exp(s) / torch.exp(lse_i)
    else:
        p = torch.exp2(s - lse_i) if bug == "base 2" else torch.exp(s - lse_i)
    if causal and bug != "not causal":
        i = torch.arange(rows.start, rows.stop)[:, None]
        j = torch.arange(keys.start, keys.stop)[None, :]
        if bug.startswith("one diagonal"):
            i, j = i - rows.start, j - keys.start
        see = j < i + shift if bug == "strictly below" else j <= i + shift
        p = p * see if bug.startswith("NaN of blind rows") else torch.where(see, p, 0.0)
    dp = do[..., rows, :] @ v[..., keys, :].mT
    return p, p * (dp if bug == "delta left out" else dp - delta[..., rows, None])


# -- 05.6 ----------------------------------------------------------------------------------------------------------
def _plain(q, k, v, scale):
    group = q.shape[1] // k.shape[1]
    s = scale * q @ k.repeat_interleave(group, 1).mT
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse[..., None])
    return p @ v.repeat_interleave(group, 1), lse, p


def _function(bug: str) -> type[torch.autograd.Function]:
    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale):
            o, lse, p = _plain(q, k, v, scale)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.scale = scale
            if bug == "P kept":
                ctx.p = p
            if bug == "lse cut off":
                ctx.mark_non_differentiable(lse)
            return o, lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, do, dlse):
            q, k, v, o, lse = ctx.saved_tensors
            group, scale = q.shape[1] // k.shape[1], ctx.scale
            wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
            p = torch.exp((1 if bug == "P without scale" else scale) * q @ wide_k.mT - lse[..., None])
            delta = (do * o).sum(-1)
            if bug == "delta left out":
                delta = torch.zeros_like(delta)
            if bug != "dlse ignored":
                delta = delta + dlse if bug == "dlse added" else delta - dlse
            ds = p * (do @ wide_v.mT - delta[..., None])
            after = 1 if bug == "no scale" else scale
            dq, dk, dv = after * ds @ wide_k, after * ds.mT @ q, p.mT @ do
            if bug == "last head wins":
                dk, dv = (x.unflatten(1, (-1, group))[:, :, -1] for x in (dk, dv))
            elif bug != "group not summed":
                dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
            if bug == "order":
                dq, dk, dv = dv, dk, dq
            return (dq, dk, dv) if bug == "one gradient too few" else (dq, dk, dv, None)

    return Flash


def flash(q, k, v, scale, *, bug=""):
    """(o, lse), with a backward of our own."""
    return _function(bug).apply(q, k, v, scale)


# -- the galleries -------------------------------------------------------------------------------------------------
def _square(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """At the largest N it held an N × N array of float32, or more."""
    m = outcome.measures
    return "peak" in m and m["peak"][-1] >= 4 * m["n"][-1] ** 2


def _cut(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Autograd found no way from lse to the inputs."""
    return outcome.trouble is not None and "does not require grad" in outcome.trouble.message


def _all_tiles(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """The FLOPs of five products of the whole score matrix."""
    q, k, v = case.args[2:5]
    whole = 2 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (3 * q.shape[3] + 2 * v.shape[3])
    return bool(outcome.measures.get("flops") == whole)


BLIND = "a mask that leaves NaN where a row sees no key: 0 · ∞, or (−∞) − (−∞)"
WHATEVER = (
    "A row that sees no key has lse = −∞. What is exp(s − lse) there, for a finite s and for s = −∞, and how can p be "
    "set to 0 whatever came out?"
)

TILED = gallery(
    tiled_backward,
    (
        "dQ overwritten", "a dQ that keeps only what its last key tile gave",
        "How many key tiles have something to say about one row of dQ?",
    ),
    (
        "dK and dV overwritten", "a dK and dV that keep only what their last query tile gave",
        "How many query tiles have something to say about one key?",
    ),
    ("delta left out", "dS = P ∘ dP, without delta", "What must be subtracted from dP before it is weighted by P?"),
    (
        "softmax of the tile", "a softmax computed inside each tile",
        "Which keys does your row sum run over, and which number that you were given holds the whole row's sum?",
    ),
    (
        "no scale", "gradients in which the scale of dQ and dK is left out",
        "You used the scale to make P again. Where else does s = scale · q · k ask for it?",
    ),
    (
        "scale twice in dK", "a dK with the scale in it twice",
        "Does your q carry the scale already when you multiply dSᵀ with it?",
    ),
    (
        "P without scale", "a P made again from scores without the scale",
        "lse was computed from scaled scores. Which scores do you subtract it from?",
    ),
    ("base 2", "2 to the power s − lse", "lse is a natural logarithm. What would have to be multiplied to use exp2?"),
    ("not causal", "a backward without the causal mask", "Where does `causal` appear in your loop?"),
    (
        "top left", "a causal mask aligned to the top left",
        "With more keys than queries the last query sees every key: j ≤ i + (Sk − Sq). Which key may row 0 see last?",
    ),
    (
        "one diagonal for all tiles", "a mask that is the same in every tile",
        "j ≤ i + (Sk − Sq) holds for places in the whole matrix. Where in it does the tile begin?",
    ),
    (
        "one diagonal, every tile visited", "a mask that is the same in every tile, none of them skipped",
        "j ≤ i + (Sk − Sq) holds for places in the whole matrix. Where in it does the tile begin?",
    ),
    ("strictly below", "a causal mask that hides the diagonal as well", "May a query look at its own position?"),
    (
        "ragged tail dropped", "a loop over whole tiles only",
        "53 is not a multiple of 16. How many tiles of keys are there, and how long is the last?",
    ),
    (
        "exp(s) / exp(lse)", "exp(s) divided by exp(lse)",
        "How large is exp(120) in float32? Which is smaller in size, s or s − lse?",
    ),
    ("NaN of blind rows", BLIND, WHATEVER),
    ("NaN of blind rows, every tile visited", BLIND, WHATEVER),
    (
        "N × N stored", "It holds a whole matrix of scores at once",
        "Which array in your code grows with Sq · Sk, and what is left of it when a tile has given its shares?",
        _square,
    ),
    (
        "every tile visited", "It computes tiles of which no query sees any key",
        "For which i and j does a whole tile lie beyond the diagonal?", _all_tiles,
    ),
)  # fmt: skip

FUNCTION = gallery(
    flash,
    (
        "one gradient too few", "a backward that returns one gradient too few",
        "forward has four arguments. What does backward return for the one that is no tensor?",
    ),
    (
        "order", "gradients returned in the order dv, dk, dq",
        "backward must return gradients in the order of forward's arguments. What is that order?",
    ),
    ("delta left out", "dS = P ∘ (dP + dlse), without delta", "What do rows of dS sum to when only o is used?"),
    (
        "no scale", "gradients in which the scale of dQ and dK is left out",
        "s = scale · q · k: what is its derivative by q?",
    ),
    (
        "P without scale", "a P made again from scores without the scale",
        "Which scores was lse computed from?",
    ),
    (
        "dlse ignored", "a backward that ignores the gradient of lse",
        "backward receives two gradients. What does ∂lse/∂s = p add to dS?",
    ),
    (
        "dlse added", "a delta to which dlse was added",
        "dS = P ∘ (dP − delta) must contain + P ∘ dlse. Which sign does dlse need inside delta?",
    ),
    (
        "lse cut off", "It cuts lse off from the graph, so no gradient can come back through it",
        "lse is an output like o. What may a loss do with it?",
        _cut,
    ),
    (
        "group not summed", "gradients of K and V with as many heads as Q",
        "dK has the shape of K. What becomes of the shares of the query heads that use the same key head?",
    ),
    (
        "last head wins", "dK and dV from the last query head of each group alone",
        "Several query heads used the same key head. What happens to gradients that meet at one array?",
    ),
    (
        "P kept", "Its graph holds a matrix of N × N until the backward",
        "What can be made again from q, k and lse, and so need not be kept?", _square,
    ),
)  # fmt: skip
