"""Known mistakes of chapter 09, the loss. The function is right but for what ``bug`` names."""

from __future__ import annotations

import math

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery


def next_byte_loss(logits, tokens, lengths, *, bug=""):
    """Mean of −log p of each real token but the first, in nats."""
    V = logits.shape[-1]
    wide = torch.promote_types(logits.dtype, torch.float32)
    x = logits if bug in ("computed in 16 bits", "returned in 16 bits") else logits.to(wide)
    start = 0 if bug in ("not shifted", "last row wraps round") else 1
    rows, targets = (x, tokens) if start == 0 else (x[:, :-1], tokens[:, 1:])
    if bug == "last row wraps round":
        targets = tokens.roll(-1, 1)
    if bug == "not shifted, first left out":
        rows = x[:, 1:]
    if bug == "shifted the other way":
        rows, targets = x[:, 1:], tokens[:, :-1]
    at = torch.arange(start, start + rows.shape[1])
    there = at < lengths[:, None] + {"one target too many": 1, "one target too few": -1}.get(bug, 0)
    if bug == "filling counted":
        there = torch.ones_like(there)
    if bug == "zeros ignored":
        there = targets != 0
    axis = 1 if bug == "softmax over the positions" else -1
    m = torch.zeros_like(rows[..., :1]) if bug == "no maximum" else rows.amax(axis, keepdim=True)
    lse = m + torch.log(torch.exp(rows - m).sum(axis, keepdim=True))
    log_p = torch.gather(rows - lse, 2, targets[..., None])[..., 0]
    if bug == "logits for log p":
        log_p = torch.gather(rows, 2, targets[..., None])[..., 0]
    if bug == "probability, no logarithm":
        log_p = log_p.exp()
    if bug == "bits":
        log_p = log_p / math.log(2)
    log_p = log_p.masked_fill(~there, 0)
    if bug == "mean of the sequences' means":
        counts = there.sum(1)
        return -(log_p.sum(1) / counts.clamp(min=1)).sum() / (counts > 0).sum()
    if bug == "sum":
        return -log_p.sum()
    if bug == "divided by all positions":
        return -log_p.mean()
    if bug == "divided by all real tokens":
        return -log_p.sum() / lengths.sum()
    if bug == "divided by the batch":
        return -log_p.sum() / len(logits)
    if bug == "divided by the vocabulary too":
        return -log_p.sum() / there.sum() / V
    if bug == "logarithm of the mean":
        return -torch.log((log_p.exp() * there).sum() / there.sum())
    loss = log_p.sum() / there.sum() * (1 if bug == "sign" else -1)
    if bug == "perplexity":
        loss = loss.exp()
    if bug == "detached":
        return loss.detach()
    return loss if bug == "returned in 16 bits" else loss.to(wide)


def _cut(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Autograd found no way from the loss to the logits."""
    return outcome.trouble is not None and "does not require grad" in outcome.trouble.message


def _narrow(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """A loss of 16 bits."""
    return "bfloat16" in case.name and any(r.dtype == "bfloat16" for r in outcome.results)


def _rounded(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """A loss of 32 bits that is wrong for 16-bit logits, and for no others."""
    return "bfloat16" in case.name and any(r.dtype == "float32" for r in outcome.results)


LOSS = gallery(
    next_byte_loss,
    (
        "not shifted", "a loss that holds row t against token t, which the model has seen",
        "Row t has seen tokens 0 to t. Which token does it predict?",
    ),
    (
        "not shifted, first left out", "a loss that leaves the first token out, but holds row t against token t",
        "Row t has seen tokens 0 to t. Which token does it predict, and which row is left without one?",
    ),
    (
        "shifted the other way", "a loss that holds row t against token t − 1",
        "Row t has seen tokens 0 to t. Which token does it predict?",
    ),
    (
        "last row wraps round", "a loss whose last row predicts the first token, as `roll` has it",
        "Which token follows the last one, and what can its row be held against?",
    ),
    (
        "filling counted", "a loss in which the filled-up end counts",
        "Past `lengths` tokens hold 0. Did anybody write these bytes?",
    ),
    (
        "zeros ignored", "a loss that leaves out every target that is 0",
        "May a real byte be 0? Which number tells where a sequence ends?",
    ),
    (
        "divided by all positions", "a loss that leaves the filled-up end out of the sum, but divides by all positions",
        "Over how many predictions does your sum run?",
    ),
    (
        "divided by all real tokens", "a loss divided by the number of real tokens",
        "A sequence of n tokens: how many of them are predicted?",
    ),
    (
        "one target too many", "a loss that counts the first token past the end as a target",
        "A sequence of n tokens: what is the number of its last token, and of the row that predicts it?",
    ),
    (
        "one target too few", "a loss that leaves out the last real token",
        "A sequence of n tokens: what is the number of its last token, and of the row that predicts it?",
    ),
    (
        "mean of the sequences' means", "a mean over the sequences of each one's mean",
        "Does a token of a short sequence count as much as one of a long sequence?",
    ),
    ("sum", "a sum, not a mean", "Would the loss of a batch of twice the size be the same?"),
    ("divided by the batch", "a sum divided by the number of sequences", "Of what is the mean to be taken?"),
    (
        "divided by the vocabulary too", "a mean that is divided by V once more",
        "How many numbers are left for each prediction once the right byte is picked?",
    ),
    (
        "no maximum", "a softmax without the maximum", "What is exp(1000), and exp(−1000), in float32?",
    ),
    (
        "softmax over the positions", "a softmax along the sequence",
        "Over which axis do the probabilities of the 256 bytes sum to 1?",
    ),
    (
        "logits for log p", "a loss that takes the logit itself for log p",
        "If all logits of a row rise by 5, nothing has changed for the probabilities. What does your loss do?",
    ),
    (
        "probability, no logarithm", "a mean of −p", "What does a sure and wrong model pay with −p, and with −log p?",
    ),
    (
        "logarithm of the mean", "the logarithm of the mean p",
        "Which comes first: the logarithm of each p, or the mean?",
    ),
    ("bits", "a loss in bits", "To which base is the logarithm of a nat?"),
    ("perplexity", "exp of the loss", "What does the statement ask for: the loss or the perplexity?"),
    ("sign", "a loss with the sign turned round", "Is the logarithm of a probability positive or negative?"),
    (
        "returned in 16 bits", "The loss comes back in the dtype of the logits, 16 bits wide.",
        "Which digits of a loss near 3 does bfloat16 keep, and by how much does it change from step to step?",
        _narrow,
    ),
    (
        "computed in 16 bits", "It computes in the dtype of the logits, 16 bits wide.",
        "How many digits does bfloat16 keep of a sum of 256 numbers?", _rounded,
    ),
    (
        "detached", "It cuts the loss off from the graph, so no gradient can come back through it.",
        "What does `.detach()`, `.item()` or `torch.tensor(…)` do to a loss that training needs?", _cut,
    ),
)  # fmt: skip
