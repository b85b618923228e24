"""Known mistakes of chapter 05, the steps one by one. Each function is right but for what ``bug`` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flashlib.grading.case import Mistake


# -- 05.1 ----------------------------------------------------------------------------------------------------------
def softmax_backward(p, dp, *, bug=""):
    """dS from P and dP."""
    if bug == "only the diagonal":
        return p * (1 - p) * dp
    if bug == "P transposed":
        return p * dp - p * (p.mT @ dp if p.dim() > 1 else (p * dp).sum())
    if bug == "no mean":
        return p * dp
    if bug == "P not in front":
        return p * dp - (p * dp).sum(-1, keepdim=True)
    if bug == "plain mean":
        return p * (dp - dp.mean(-1, keepdim=True))
    if bug == "sum of dP":
        return p * (dp - dp.sum(-1, keepdim=True))
    if bug == "down the columns":
        return p * (dp - (p * dp).sum(-2 if p.dim() > 1 else -1, keepdim=True))
    if bug == "mean laid along the row":
        return p * (dp - (p * dp).sum(-1))
    if bug == "P twice":
        return p * (dp - p * (p * dp).sum(-1, keepdim=True))
    if bug == "over everything":
        return p * (dp - (p * dp).sum())
    delta = (p * dp).sum(-1, keepdim=True)
    return p * (delta - dp) if bug == "sign" else p * (dp - delta)


# -- 05.2 ----------------------------------------------------------------------------------------------------------
def row_delta(o, do, dlse=None, *, bug=""):
    """rowsum(dO ∘ O) − dlse."""
    narrow, wide = o.dtype, torch.float64 if o.dtype == torch.float64 else torch.float32
    wide = {"summed in 16 bits": narrow, "float32 for float64": torch.float32}.get(bug, wide)
    o, do = (o, do) if bug == "multiplied in 16 bits" else (o.to(wide), do.to(wide))
    products = o * do
    if bug == "dlse inside the sum" and dlse is not None:
        products = products - dlse[..., None]
    if bug == "down the rows":
        return products.sum(-2)
    delta = products.mean(-1) if bug == "mean" else products.to(wide).sum(-1)
    if dlse is not None and bug not in ("dlse left out", "dlse inside the sum"):
        delta = delta + dlse if bug == "dlse added" else delta - dlse
    if bug == "over all heads":
        delta = delta.sum(1)
    if bug == "cast back":
        delta = delta.to(narrow)
    return delta[..., None] if bug == "an axis too many" else delta


# -- 05.3 ----------------------------------------------------------------------------------------------------------
def dv_dp(p, do, v, *, bug=""):
    """dV = Pᵀ dO and dP = dO Vᵀ."""
    dp = (p if bug == "dP from P" else do) @ v.mT
    if bug == "P not turned":
        dv = p @ do
    elif bug == "P reshaped":
        dv = p.reshape(*p.shape[:2], p.shape[3], p.shape[2]) @ do
    elif bug == "every axis turned":
        dv = p.permute(3, 2, 1, 0) @ do
    else:
        dv = p.mT @ do
    if bug == "scale":
        dv = dv * v.shape[-1] ** -0.5
    if bug == "mean over queries":
        dv = dv / p.shape[-2]
    if bug == "already dS":
        dp = p * (dp - (p * dp).sum(-1, keepdim=True))
    if bug == "dP times P":
        dp = p * dp
    if bug == "summed over the batch":
        dv = dv.sum(0)
    if bug == "dP turned":
        dp = dp.mT
    return (dp, dv) if bug == "order" else (dv, dp)


# -- 05.4 ----------------------------------------------------------------------------------------------------------
def dq_dk(ds, q, k, scale, *, bug=""):
    """dQ = scale · dS K and dK = scale · dSᵀ Q, summed over the query heads that share a key head."""
    group = q.shape[1] // k.shape[1]
    wide = k.repeat(1, group, 1, 1) if bug in ("h % Hkv", "dQ of the wrong heads") else k.repeat_interleave(group, 1)
    if bug == "own scale":
        scale = q.shape[-1] ** -0.5
    if bug == "scale twice":
        scale = scale**2
    a = {"no scale": 1.0, "scale left out of dQ": 1.0}.get(bug, scale)
    b = {"no scale": 1.0, "scale left out of dK": 1.0, "scale twice in dK": scale**2}.get(bug, scale)
    dq = a * ds @ wide
    dk = b * (ds if bug == "dS not turned" else ds.mT) @ q
    if bug == "one row for each query head":
        return dq, dk
    if bug in ("h % Hkv", "dK of the wrong heads"):
        return dq, dk.unflatten(1, (group, -1)).sum(1)
    each = dk.unflatten(1, (-1, group))
    if bug in ("last head wins", "first head alone"):
        return dq, each[:, :, -1 if bug == "last head wins" else 0]
    dk = each.mean(2) if bug == "mean of a group" else each.sum(2)
    return (dk, dq) if bug == "order" else (dq, dk)


# -- the galleries -------------------------------------------------------------------------------------------------
def gallery(fn: Callable[..., Any], *rows: tuple[Any, ...]) -> list[Mistake]:
    """Mistakes from rows of (name, says, ask) and, for some, fits; ``fn`` takes the name as ``bug``."""
    return [
        Mistake(name, partial(fn, bug=name), says, ask, fits[0] if fits else None) for name, says, ask, *fits in rows
    ]


SOFTMAX = gallery(
    softmax_backward,
    (
        "no mean", "dS = P ∘ dP, without anything subtracted",
        "Raise every dP of a row by the same constant: since the p of a row sum to 1, the loss gains a constant and "
        "dS must not change. Does yours?",
    ),
    (
        "only the diagonal", "p (1 − p) · dP, where each score changes only its own probability",
        "If one score of a row rises, what happens to the probabilities of the row's other keys?",
    ),
    (
        "P transposed", "the formula P ∘ dP − P ∘ (Pᵀ dP), a sum over queries",
        "Softmax works on each row alone. Which other rows does your formula mix into row 3?",
    ),
    (
        "plain mean", "the plain mean of dP subtracted, each key counting the same",
        "A key with p = 0 cannot matter to the others. With which weight should each dP enter the mean?",
    ),
    (
        "P not in front", "the formula P ∘ dP minus the row's mean, the mean not multiplied by P",
        "A key with p = 0 must get dS = 0. What does yours give it?",
    ),
    (
        "sum of dP", "the unweighted sum of dP subtracted",
        "What is subtracted is a mean under P. Where does P enter your sum?",
    ),
    (
        "down the columns", "the mean taken down the columns, over queries",
        "Over which index do the probabilities sum to 1: queries or keys?",
    ),
    (
        "mean laid along the row", "means subtracted from columns: mean j from column j",
        "Which shape has the mean of each row, and along which axis is an array of n numbers laid against n × n?",
    ),
    (
        "P twice", "the formula P ∘ dP − P² · mean, where the mean is multiplied by P twice",
        "Every dP of a row loses the same number. Does yours?",
    ),
    (
        "over everything", "one mean for the whole array",
        "How many softmaxes does P hold, and how many means does your code compute?",
    ),
    (
        "sign", "a gradient with the sign turned round",
        "A key that pays more than the row's mean: should the loss grow or fall when its score rises?",
    ),
)  # fmt: skip

DELTA = gallery(
    row_delta,
    ("dlse left out", "delta without the gradient of lse", "What do you do with dlse when it is given?"),
    (
        "dlse added", "rowsum(dO ∘ O) plus dlse",
        "dS = P ∘ (dP − delta) must contain + P ∘ dlse. Which sign does dlse need inside delta?",
    ),
    (
        "dlse inside the sum", "dlse subtracted once for every column",
        "dlse is one number a row. How often does it enter your row's sum?",
    ),
    (
        "summed in 16 bits", "a sum in the dtype of the inputs",
        "How many digits does a 16-bit number keep, what is the largest float16, and how long is your sum?",
    ),
    (
        "multiplied in 16 bits", "products rounded to 16 bits and only then added in float32",
        "Which comes first in your code: the multiplication or the conversion to float32?",
    ),
    (
        "cast back", "a result in the dtype of the inputs",
        "delta is subtracted from numbers of its own size. In which dtype must it be kept so that digits remain?",
    ),
    (
        "float32 for float64", "a delta computed in float32, also for float64",
        "How many digits does float32 keep, and how many does your caller's dtype have?",
    ),
    ("mean", "the mean of dO ∘ O instead of the sum", "Is delta Σ p·dP, or a D-th part of it?"),
    (
        "down the rows", "a sum over queries",
        "delta is one number for each query. Which axis must vanish?",
    ),
    ("an axis too many", "a delta that keeps its last axis", "Which shape does the signature ask for?"),
    ("over all heads", "deltas of all heads added", "Does one head's dS depend on another head's output?"),
)  # fmt: skip

DV_DP = gallery(
    dv_dp,
    (
        "P not turned", "dV = P dO, with P not turned",
        "Value j collects from all queries i. Over which index of p_ij must the product sum?",
    ),
    (
        "P reshaped", "a P whose numbers were laid out anew, not turned",
        "`reshape` keeps the order of the numbers in memory. Which function exchanges two axes?",
    ),
    (
        "every axis turned", "a P with all four axes turned round",
        "Which two of the four axes must change places, and what does `.T` do to four?",
    ),
    (
        "dP times P", "a dP that is multiplied by P: P ∘ (dO Vᵀ)",
        "p_ij entered o_i multiplied by v_j only. Does p_ij stand in its own derivative?",
    ),
    ("already dS", "dS: softmax's backward has been applied too", "Which step of the forward does dP belong to?"),
    ("dP from P", "a dP made from P, as P Vᵀ", "Which array carries what the loss says about each row?"),
    ("scale", "dV multiplied by 1/√D", "In which step of the forward does the scale appear: in S or in O?"),
    (
        "mean over queries", "dV divided by the number of queries",
        "If the same query came twice, would V matter twice as much or the same?",
    ),
    (
        "summed over the batch", "dV summed over the batch",
        "Two sequences of a batch have different values. Which shape must dV have?",
    ),
    ("dP turned", "a dP with rows and columns exchanged", "dP has the shape of P. What are its rows?"),
    ("order", "the two results in the other order", "Which of the two does the signature name first?"),
)  # fmt: skip

DQ_DK = gallery(
    dq_dk,
    (
        "no scale", "gradients in which the scale is left out",
        "s = scale · q · k. What is the derivative of s by q?",
    ),
    (
        "scale left out of dK", "a dK without the scale",
        "s = scale · q · k. What is its derivative by k?",
    ),
    (
        "scale left out of dQ", "a dQ without the scale",
        "s = scale · q · k. What is its derivative by q?",
    ),
    (
        "scale twice in dK", "a dK with the scale in it twice",
        "How often does the scale appear in s = scale · q · k? Does your q carry it already?",
    ),
    (
        "scale twice", "gradients in which the scale stands twice",
        "How often does the scale appear in s = scale · q · k?",
    ),
    (
        "own scale", "gradients with 1/√D, whatever scale was given",
        "What does your function do with its argument `scale`?",
    ),
    (
        "dS not turned", "dK = dS Q, with dS not turned",
        "Key j collects from all queries i. Over which index of ds_ij must the product sum?",
    ),
    (
        "h % Hkv", "query head h paired with key head h mod Hkv",
        "With 4 query heads on 2 key heads, heads 0 and 1 share key head 0. Which integer division says that?",
    ),
    (
        "dK of the wrong heads", "a dK that collects from query heads h with h mod Hkv = its own number",
        "With 4 query heads on 2 key heads, heads 0 and 1 share key head 0. Which heads does your dK of head 0 add up?",
    ),
    (
        "dQ of the wrong heads", "a dQ in which query head h meets key head h mod Hkv",
        "With 4 query heads on 2 key heads, heads 0 and 1 share key head 0. In which order do your K's heads repeat?",
    ),
    (
        "first head alone", "a dK from the first query head of each group alone",
        "Several query heads used the same key. What happens to gradients that meet at one array?",
    ),
    ("order", "the two results in the other order", "Which of the two does the signature name first?"),
    (
        "last head wins", "a dK from the last query head of each group alone",
        "Several query heads used the same key. What happens to gradients that meet at one array?",
    ),
    (
        "mean of a group", "dK averaged over a group",
        "A key that is used by two heads: does the loss feel a change of it once or twice?",
    ),
    (
        "one row for each query head", "a dK with as many heads as Q",
        "dK has the shape of K. How many heads is that, and what became of the others?",
    ),
)  # fmt: skip
