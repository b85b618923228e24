"""Known mistakes of chapter 05, the autograd.Function. Each function is right but for what ``bug`` names."""

from __future__ import annotations

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery
from flashlib.grading.mistakes.ch05_tiled import square


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
            spread = torch.repeat_interleave if bug != "h % Hkv" else lambda x, n, dim: x.repeat(1, n, 1, 1)
            wide_k, wide_v = (spread(x, group, dim=1) for x in (k, v))
            p = torch.exp((1 if bug == "P without scale" else scale) * q @ wide_k.mT - lse[..., None])
            delta = (do * o).sum(-1)
            if bug in ("delta left out", "delta and dlse left out"):
                delta = torch.zeros_like(delta)
            if bug not in ("dlse ignored", "delta and dlse left out"):
                delta = delta + dlse if bug == "dlse added" else delta - dlse
            ds = p * (do @ wide_v.mT - delta[..., None])
            after = 1 if bug == "no scale" else scale
            dq, dk, dv = after * ds @ wide_k, after * ds.mT @ q, p.mT @ do
            if bug == "own scale":
                dq, dk = (x * (q.shape[-1] ** -0.5 / scale) for x in (dq, dk))
            if bug == "mean of a group":
                dk, dv = (x.unflatten(1, (-1, group)).mean(2) for x in (dk, dv))
            elif bug == "last head wins":
                dk, dv = (x.unflatten(1, (-1, group))[:, :, -1] for x in (dk, dv))
            elif bug != "group not summed":
                dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
            if bug == "order":
                dq, dk, dv = dv, dk, dq
            if bug == "dK and dV exchanged":
                dk, dv = dv, dk
            return (dq, dk, dv) if bug == "one gradient too few" else (dq, dk, dv, None)

    return Flash


def flash(q, k, v, scale, *, bug=""):
    """(o, lse), with a backward of our own."""
    return _function(bug).apply(q, k, v, scale)


def _cut(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Autograd found no way from lse to the inputs."""
    return outcome.trouble is not None and "does not require grad" in outcome.trouble.message


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
    (
        "dK and dV exchanged", "dK and dV returned in each other's place",
        "backward must return gradients in the order of forward's arguments. What is that order?",
    ),
    (
        "delta and dlse left out", "dS = P ∘ dP, with nothing subtracted",
        "What must be subtracted from dP so that the rows of dS sum to 0 when only o is used?",
    ),
    ("delta left out", "dS = P ∘ (dP + dlse), without delta", "What do rows of dS sum to when only o is used?"),
    (
        "no scale", "gradients in which the scale of dQ and dK is left out",
        "s = scale · q · k: what is its derivative by q?",
    ),
    (
        "own scale", "gradients with 1/√D, whatever scale was given",
        "What was `scale` in the forward, and where did you keep it?",
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
        "mean of a group", "dK and dV averaged over a group",
        "A key that is used by two heads: does the loss feel a change of it once or twice?",
    ),
    (
        "h % Hkv", "a backward that pairs query head h with key head h mod Hkv",
        "With 6 query heads on 2 key heads, heads 0, 1, 2 share key head 0. In which order do your K's heads repeat?",
    ),
    (
        "last head wins", "dK and dV from the last query head of each group alone",
        "Several query heads used the same key head. What happens to gradients that meet at one array?",
    ),
    (
        "P kept", "Its graph holds a matrix of N × N until the backward",
        "What can be made again from q, k and lse, and so need not be kept?", square,
    ),
)  # fmt: skip
