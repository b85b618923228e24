"""Known mistakes of chapter 09, the loss. The function is right but for what ``bug`` names."""

from __future__ import annotations

import math
from functools import partial

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery
from flashlib.grading.mistakes.sizes import as_in_16_bits, only_many

EPS = {f"{eps:g} in the logarithm": eps for eps in (1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)}


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
    if bug == "cut to the longest":
        there = (at < lengths.max()).expand_as(there)
    if bug == "zeros ignored":
        there = targets != 0
    axis = 1 if bug == "softmax over the positions" else -1
    m = torch.zeros_like(rows[..., :1]) if bug == "no maximum" else rows.amax(axis, keepdim=True)
    if bug == "one maximum for all rows":
        m = rows.amax().expand(*rows.shape[:2], 1)
    if bug == "maximum no smaller than 0":
        m = m.clamp(min=0)
    lse = (m.detach() if bug == "maximum added without its gradient" else m) + torch.log(
        torch.exp(rows - m).sum(axis, keepdim=True)
    )
    if bug == "blocks of the vocabulary":
        lse = m + torch.exp(rows - m)[..., : V - V % 64 or V].sum(-1, keepdim=True).log()
    if bug == "lse detached":
        lse = lse.detach()
    if bug == "picked logit detached":
        rows = rows.detach()
    log_p = torch.gather(rows - lse, 2, targets[..., None])[..., 0]
    if bug == "logits for log p":
        log_p = torch.gather(rows, 2, targets[..., None])[..., 0]
    if bug == "probability, no logarithm":
        log_p = log_p.exp()
    if bug in EPS:
        log_p = torch.log(log_p.exp() + EPS[bug])
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
    if bug == "one at least from each sequence":
        return -log_p.sum() / (lengths - 1).clamp(min=1).sum()
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
    """A loss of 32 bits that is wrong for 16-bit logits, by as much as 16 bits make it."""
    right_dtype = "bfloat16" in case.name and [r.dtype for r in outcome.results] == ["float32"]
    return right_dtype and as_in_16_bits(case, outcome, partial(next_byte_loss, bug="computed in 16 bits"))


def _gradient(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return case.how == "gradients" and finding.result == "dlogits"


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
        "cut to the longest", "a loss that counts every row up to the longest sequence's end",
        "Which sequence does a row belong to, and how many tokens has that one?",
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
        "one at least from each sequence", "a loss whose divisor counts a sequence of one token as a prediction",
        "A sequence of one token: how many predictions does it add to your sum, and to your divisor?",
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
        "maximum no smaller than 0", "a softmax whose maximum is 0 at least",
        "What is the sum of a row whose logits all lie near −1000?",
    ),
    (
        "one maximum for all rows", "one maximum for all rows of the batch",
        "What is exp(x − m) in a row whose logits all lie far below those of another row?",
    ),
    *(
        (name, f"a loss that adds {eps:g} to p before it takes the logarithm",
         "What does a sure and wrong model pay then? How do you get log p without going through p?")
        for name, eps in EPS.items()
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
        "How many digits does bfloat16 keep of a logit near 10, or of a difference of two?", _rounded,
    ),
    (
        "blocks of the vocabulary", "It is right for a small vocabulary and wrong for a large one.",
        "If you go through the bytes in blocks: what becomes of the sum when a later block brings a larger maximum, "
        "and where do the bytes behind the last full block go?", only_many,
    ),
    (
        "maximum added without its gradient", "a gradient in which the maximum is a constant where it is added back",
        "The maximum depends on the logits, both where it is taken off and where it is added. In which of the two is "
        "your graph cut?",
    ),
    (
        "lse detached", "a gradient in which lse is a constant",
        "If a wrong byte's logit rises, does the loss rise? Through which of your tensors does the gradient learn it?",
    ),
    (
        "picked logit detached", "The loss is right and its gradient is not.",
        "Which of your tensors depend on the logits, and in which of them is the graph cut?", _gradient,
    ),
    (
        "detached", "It cuts the loss off from the graph, so no gradient can come back through it.",
        "What does `.detach()`, `.item()` or `torch.tensor(…)` do to a loss that training needs?", _cut,
    ),
)  # fmt: skip
