"""Known mistakes of chapter 05, tiles. Each function is right but for what ``bug`` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from flashlib.grading import harness
from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch05 import gallery


# -- 05.5 ----------------------------------------------------------------------------------------------------------
def tiled_backward(do, delta, q, k, v, lse, scale, causal=False, block=16, *, bug=""):
    """dq, dk, dv, tile by tile."""
    Sq, Sk = q.shape[-2], k.shape[-2]
    shift = {"top left": 0, "shift turned round": Sq - Sk}.get(bug, Sk - Sq)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    if bug == "N × N stored":
        block = max(Sq, Sk, 1)
    if bug == "block ignored":
        block = 16
    whole = bug == "ragged tail dropped"
    for j in range(0, Sk - Sk % block if whole else Sk, block):
        keys = slice(j, min(j + block, Sk))
        for i in range(0, Sq - Sq % block if whole else Sq, block):
            rows = slice(i, min(i + block, Sq))
            last = {"skipped by the first row": i, "one tile skipped too many": rows.stop - 2}.get(bug, rows.stop - 1)
            if causal and bug != "not causal" and not bug.endswith("every tile visited") and j > last + shift:
                continue
            p, ds = _tile(do, delta, q, k, v, lse, scale, rows, keys, causal, shift, bug)
            a = 1 if bug in ("no scale", "scale left out of dQ") else scale
            b = 1 if bug in ("no scale", "scale left out of dK") else scale
            shares = (
                (dq[..., rows, :], a * ds @ k[..., keys, :]),
                (dk[..., keys, :], b * ds.mT @ q[..., rows, :]),
                (dv[..., keys, :], p.mT @ do[..., rows, :]),
            )
            for n, (total, share) in enumerate(shares):
                overwritten = bug.endswith("overwritten") and ("dQ", "dK", "dV")[n] in bug
                total.copy_(share) if overwritten else total.add_(share)
    if bug in ("scale twice in dK", "scale twice"):
        dk *= scale
    if bug == "scale twice":
        dq *= scale
    if bug == "scale in dV":
        dv *= scale
    return dq, dk, dv


def _tile(do, delta, q, k, v, lse, scale, rows, keys, causal, shift, bug):
    """A tile of P, made again, and of dS."""
    s = (1 if bug == "P without scale" else scale) * q[..., rows, :] @ k[..., keys, :].mT
    lse_i = lse[..., rows, None]
    if bug == "lse laid along the row" and s.shape[-2] == s.shape[-1]:
        lse_i = lse_i.mT
    if bug == "lse left out":
        lse_i = torch.zeros_like(lse_i)
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
        if bug not in ("tiles skipped, nothing masked", "dS alone masked"):
            p = p * see if bug.startswith("NaN of blind rows") else torch.where(see, p, 0.0)
    dp = do[..., rows, :] @ v[..., keys, :].mT
    if bug == "six products":
        dp = do[..., rows, :] @ v[..., keys, :].mT
    if bug == "delta of each tile":
        return p, p * (dp - (p * dp).sum(-1, keepdim=True))
    taken = {"delta left out": 0, "delta added": -1}.get(bug, 1) * delta[..., rows, None]
    ds = p * (dp - taken)
    return p, torch.where(see, ds, 0.0) if causal and bug == "dS alone masked" else ds


# -- the galleries -------------------------------------------------------------------------------------------------
def square(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """At the largest N it held an N × N array of float32, or more."""
    m = outcome.measures
    return "peak" in m and m["peak"][-1] >= 4 * m["n"][-1] ** 2


def _same_flops(bug: str) -> Callable[[Case, Outcome, Finding], bool]:
    """As many FLOPs as this mistake does; or so many small tiles that they were not waited for."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        if outcome.trouble is not None:
            return bug == "block ignored" and outcome.trouble.kind == "TooManyOperations"
        got = outcome.measures.get("flops")
        return got is not None and got == harness.run(partial(tiled_backward, bug=bug), case).measures.get("flops")

    return fits


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
    (
        "dK overwritten", "a dK that keeps only what its last query tile gave",
        "How many query tiles have something to say about one key?",
    ),
    (
        "dV overwritten", "a dV that keeps only what its last query tile gave",
        "How many query tiles have something to say about one value?",
    ),
    ("delta left out", "dS = P ∘ dP, without delta", "What must be subtracted from dP before it is weighted by P?"),
    ("delta added", "dS = P ∘ (dP + delta)", "Rows of dS must sum to 0. With which sign does delta bring that about?"),
    (
        "delta of each tile", "a delta computed from each tile alone",
        "delta is a sum over all keys of a row. Which of your arguments holds it already?",
    ),
    (
        "lse left out", "a P of exp(s), without lse",
        "The weights of a row must sum to 1. Which of your arguments brings that about?",
    ),
    (
        "lse laid along the row", "an lse that is subtracted along the row: number j from column j",
        "lse has one number for each query. Which axis of the tile are the queries?",
    ),
    (
        "softmax of the tile", "a softmax computed inside each tile",
        "Which keys does your row sum run over, and which number that you were given holds the whole row's sum?",
    ),
    (
        "no scale", "gradients in which the scale of dQ and dK is left out",
        "You used the scale to make P again. Where else does s = scale · q · k ask for it?",
    ),
    (
        "scale left out of dQ", "a dQ without the scale",
        "s = scale · q · k. What is its derivative by q?",
    ),
    (
        "scale left out of dK", "a dK without the scale",
        "s = scale · q · k. What is its derivative by k?",
    ),
    (
        "scale twice", "a dQ and dK in which the scale stands twice",
        "How often does the scale appear in s = scale · q · k? Does your dS carry it already?",
    ),
    (
        "scale in dV", "a dV multiplied by the scale",
        "In which step of the forward does the scale appear: in S or in O?",
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
        "shift turned round", "a causal mask with Sq − Sk where Sk − Sq belongs",
        "With more keys than queries, does row 0 see more keys than one, or none?",
    ),
    (
        "tiles skipped, nothing masked", "a backward in which a row sees all keys of the tiles that are visited",
        "A tile on the diagonal is visited for the sake of some rows. What becomes of its hidden places?",
    ),
    (
        "dS alone masked", "a backward in which dS is masked and P is not",
        "dV is made from P. What do the hidden places of P add to it?",
    ),
    (
        "skipped by the first row", "a loop that skips tiles which the first row does not see",
        "Which row of a tile sees most keys?",
    ),
    (
        "one tile skipped too many", "a loop that skips a tile of which one row sees one key",
        "The last row i of a tile sees key i + Sk − Sq. If a key tile begins with that very key, is it skipped?",
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
        square,
    ),
    (
        "block ignored", "It works in tiles of 16, whatever block was given",
        "Which of your lines know the argument `block`?", _same_flops("block ignored"),
    ),
    (
        "six products", "It computes six matrix products a tile",
        "Which two of your products multiply the same two tiles?", _same_flops("six products"),
    ),
    (
        "every tile visited", "It computes tiles of which no query sees any key",
        "For which i and j does a whole tile lie beyond the diagonal?", _all_tiles,
    ),
)  # fmt: skip
