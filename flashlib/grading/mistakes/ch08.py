"""Known mistakes of chapter 08, and the wiring. The kernels are in `ch08_kernels`. Imports triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.ch06 import same_words
from flashlib.grading.mistakes.ch08_kernels import delta, dkdv, dq


# -- 08.4 ----------------------------------------------------------------------------------------------------------
def _function(bug: str) -> type[torch.autograd.Function]:
    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale, causal, kernels):
            if bug != "q, k, v as they lie":
                q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            o, lse = kernels.forward(q, k, v, scale, causal)
            if bug == "lse cut off":
                ctx.mark_non_differentiable(lse)
            ctx.save_for_backward(q, k, v, o.contiguous(), lse.contiguous())
            ctx.scale, ctx.causal, ctx.kernels = scale, causal, kernels
            return o, lse

        @staticmethod
        def backward(ctx, do, dlse):
            q, k, v, o, lse = ctx.saved_tensors
            if bug != "dO as it lies":
                do = do.contiguous()
            if bug not in ("dO as it lies", "dlse as it lies"):
                dlse = dlse.contiguous()
            if bug == "dlse ignored":
                dlse = torch.zeros_like(dlse)
            dlse = {"dlse added": -dlse, "lse for dlse": lse}.get(bug, dlse)
            delta = ctx.kernels.delta(o, do, dlse)
            scale = q.shape[-1] ** -0.5 if bug == "own scale" else ctx.scale
            row = (delta, lse) if bug == "lse and delta exchanged" else (lse, delta)
            rest = (q, k, v, do, *row, scale, False if bug == "causal forgotten" else ctx.causal)
            need = (True, True, True) if bug == "every kernel runs" else ctx.needs_input_grad
            grad_q = ctx.kernels.dq(*rest) if need[0] else None
            wanted = need[1] and need[2] if bug == "dK and dV only together" else need[1] or need[2]
            grad_k, grad_v = ctx.kernels.dkdv(*rest) if wanted else (None, None)
            if bug == "order":
                grad_k, grad_v = grad_v, grad_k
            return (grad_q, grad_k, grad_v, *([None] * (2 if bug == "one gradient too few" else 3)))

    return Flash


def flash(q, k, v, scale, causal, kernels, *, bug=""):
    """(o, lse), with the backward's kernels wired in."""
    return _function(bug).apply(q, k, v, scale, causal, kernels)


# -- the galleries -------------------------------------------------------------------------------------------------
def _gallery(fn: Callable[..., Any], *rows: tuple[Any, ...]) -> list[Mistake]:
    return [
        Mistake(
            name, (wrong := partial(fn, bug=name)), says, ask,
            (same_words(wrong) if more[0] == "same words" else more[0]) if more else None,
        )
        for name, says, ask, *more in rows
    ]  # fmt: skip


def _dots(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """As many dots as if no tile were skipped."""
    return case.measured and outcome.measures.get("dots") == case.options.get("every")


def _own(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """More bytes read of the tensors whose tile a program keeps."""
    return case.measured and finding.result.startswith("read")


def _launches(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """All three kernels ran where two were needed."""
    return case.measured and outcome.measures.get("launches") == 3


def _cut(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Autograd found no way from lse to the inputs."""
    return outcome.trouble is not None and "does not require grad" in outcome.trouble.message


HEADS = "Every pair of batch and head has its own part of each tensor. Which of your pointers still lacks it?"
SHIFT = "The last query sees every key: j ≤ i + (Sk − Sq). Which key may row 0 see last?"
BLIND = "a mask that leaves NaN where exp(s − lse) is infinite: 0 · ∞, or (−∞) − (−∞)"
WHATEVER = (
    "What is exp(s − lse) in a row that sees no key, where lse is −∞, and what at a key past the end if lse is −120? "
    "How can p be set to 0 whatever came out?"
)
COLUMN = "lse and delta have one number for each query. Which axis of the tile are the queries?"
LAST = "With 37 rows and tiles of 16, how many tiles are there, and where does the last one end?"
DTYPE = "`tl.dot` takes two tiles of one dtype. What are yours when the inputs are float16?"
BASE = "lse is a natural logarithm. Which power must you take, or what must be multiplied first?"
LARGE = "How large is exp(120) in float32? Which is smaller in size, s or s − lse?"
EDGE = "The last tile reaches past the last row. Which lanes may be written?"
SKIPPED = "It computes tiles of which no query sees any key"

DELTA = _gallery(
    delta,
    ("dlse left out", "delta without the gradient of lse", "What do you do with DLSE?"),
    (
        "dlse added", "rowsum(dO ∘ O) plus dlse",
        "dS = P ∘ (dP − delta) must contain + P ∘ dlse. Which sign does dlse need inside delta?",
    ),
    (
        "dlse inside the sum", "dlse subtracted once for every lane of a row",
        "dlse is one number a row. How often does it enter your row's sum?",
    ),
    ("down the rows", "a sum over axis 0", "A tile is (rows, features). Which axis must vanish?"),
    ("mean", "the mean of dO ∘ O instead of the sum", "Is delta Σ p·dP, or a D-th part of it?"),
    (
        "16 bits", "products and sums in the dtype of the inputs",
        "How many digits does a 16-bit number keep, and what is the largest float16?",
    ),
    (
        "multiplied in 16 bits", "products rounded to 16 bits and only then added in float32",
        "Which comes first in your kernel: the multiplication or the conversion to float32?",
    ),
    (
        "store not masked", "It writes delta of rows that do not exist", EDGE, "same words",
    ),
    (
        "rows not masked", "It loads rows that do not exist",
        "37 rows in tiles of 16: what does the last tile's mask have to say?", "same words",
    ),
    (
        "features not masked", "a row that goes on into the next one: lanes past D are not masked",
        "BLOCK_D is a power of two and D is not. What do the lanes from D on load?",
    ),
    (
        "no other", "It uses masked lanes of a load without other=",
        "What does a masked lane hold if you give no `other`, and does your sum use it?",
    ),
    (
        "a head's offset without D", "a kernel that steps from head to head by Sq elements",
        "How many elements of O lie between the first row of one head and that of the next?",
    ),
    ("inputs of the first head", "a kernel that loads every head's rows from the first head", HEADS),
    ("dO of the first head", "a kernel that loads every head's dO from the first head", HEADS),
    ("dlse of the first head", "a kernel that loads every head's dlse from the first head", HEADS),
    ("heads stored over each other", "It writes all heads' delta to the first head's place", HEADS, "same words"),
    (
        "one tile for all", "Every program works on the first tile of rows",
        "Which rows belong to the program with `tl.program_id(0)` = 2?", "same words",
    ),
)  # fmt: skip

_SHARED = (
    ("delta left out", "dS = P ∘ dP, without delta", "What must be subtracted from dP before it is weighted by P?"),
    ("P without scale", "a P made again from scores without the scale", "Which scores was lse computed from?"),
    ("base 2", "2 to the power s − lse", BASE),
    ("exp(s) / exp(lse)", "exp(s) divided by exp(lse)", LARGE),
    ("lse laid along the row", "an lse that is subtracted along the row: number j from column j", COLUMN),
    ("delta laid along the row", "a delta that is subtracted along the row: number j from column j", COLUMN),
    ("not causal", "a kernel without the causal mask", "Where does CAUSAL appear in your kernel?"),
    (
        "tiles skipped, nothing masked", "a kernel in which a row sees all keys of the tiles that are visited",
        "A tile on the diagonal is visited for the sake of some rows. What becomes of its hidden places?",
    ),
    (
        "shift turned round", "a causal mask with Sq − Sk where Sk − Sq belongs",
        "With more keys than queries, does row 0 see more keys than one, or none?",
    ),
    ("top left", "a causal mask aligned to the top left", SHIFT),
    ("diagonal hidden", "a causal mask that hides the diagonal as well", "May a query look at its own position?"),
    (
        "mask upside down", "a mask that hides what should be seen",
        "`tl.where(condition, a, b)` takes a where the condition holds. Which of the two is yours?",
    ),
    ("NaN of blind rows", BLIND, WHATEVER),
    ("NaN of blind rows, every tile visited", BLIND, WHATEVER),
    ("last tile dropped", "a loop over whole tiles only", LAST),
    (
        "sums in 16 bits", "sums over the tiles that are kept in 16 bits",
        "A float16 has 11 bits. What becomes of 2048 + 0.8, and in which dtype does your sum live while the loop runs?",
    ),
    ("float32 times the inputs", "It multiplies a float32 tile with one of the inputs' dtype", DTYPE),
    ("one head for all", "All heads write to the first head's place", HEADS, "same words"),
    ("store not masked", "It writes rows that do not exist", EDGE, "same words"),
    (
        "features past D stored", "It stores lanes past D, which lie in the next row",
        "BLOCK_D is a power of two and D is not. Which lanes of a row may be written?", "same words",
    ),
    (
        "sum kept in HBM", "It loads a result before anything has been written to it",
        "What does `torch.empty` hold, and where can a sum live while the loop runs?",
    ),
    (
        "own tile loaded in every turn", "The tile that your program owns is loaded in every turn",
        "Which tiles does the program keep while it walks, and which change from turn to turn?", _own,
    ),
    ("every tile visited", SKIPPED, "For which tiles does even the last row of the tile not see the first key?", _dots),
)  # fmt: skip

DKDV = _gallery(
    dkdv,
    ("no scale", "a dK without the scale", "s = scale · q · k: what is its derivative by k?"),
    ("scale twice", "a dK with the scale in it twice", "Does your q, or your dS, carry the scale already?"),
    ("scale in dV", "a dV multiplied by the scale", "Where in the forward does the scale appear: in S or in O?"),
    (
        "P not turned", "dV from P, not from Pᵀ",
        "P is (queries, keys), dV is (keys, features). Over which index must the product sum?",
    ),
    (
        "dS not turned", "dK from dS, not from dSᵀ",
        "dS is (queries, keys), dK is (keys, features). Over which index must the product sum?",
    ),
    (
        "overwritten", "a dK and dV that keep only what the last query tile gave",
        "How many query tiles have something to say about one key?",
    ),
    (
        "dK overwritten", "a dK that keeps only what the last query tile gave",
        "How many query tiles have something to say about one key?",
    ),
    (
        "dV overwritten", "a dV that keeps only what the last query tile gave",
        "How many query tiles have something to say about one value?",
    ),
    *_SHARED,
    (
        "dS alone masked", "a kernel in which dS is masked and P is not",
        "dV is made from P. What do the hidden places of P add to it?",
    ),
    (
        "begins a tile late", "a loop whose first query tile was rounded up, or sought with the last key of the tile",
        "If row 21 is the first that sees *any* key of the tile, in which tile of 16 rows does it lie?",
    ),
    (
        "begins without the shift", "a loop that begins at row j0",
        "Query i sees key j if j ≤ i + (Sk − Sq). Which row is the first that sees key j0?",
    ),
    (
        "starts where all is seen", "a loop that begins at the first query tile that sees the whole key tile",
        "Which row is the first that sees *any* key of the tile?",
    ),
    (
        "no other", "It uses masked lanes of a load without other=",
        "What is exp(s − lse) in a lane whose lse was never loaded?",
    ),
    ("lse not masked", "It loads lse of rows that do not exist", LAST, "same words"),
)  # fmt: skip

DQ = _gallery(
    dq,
    ("no scale", "a dQ without the scale", "s = scale · q · k: what is its derivative by q?"),
    ("scale twice", "a dQ with the scale in it twice", "Does your k, or your dS, carry the scale already?"),
    ("dS turned", "dQ from dSᵀ", "dS is (queries, keys), dQ is (queries, features). Over which index does it sum?"),
    (
        "overwritten", "a dQ that keeps only what the last key tile gave",
        "How many key tiles have something to say about one row of dQ?",
    ),
    (
        "scale in every turn", "a dQ that is multiplied by the scale in every turn",
        "How often has the first key tile's share been multiplied by the scale in the end?",
    ),
    ("NaN of blind rows, by scores of −∞", BLIND, WHATEVER),
    ("V for K", "dQ from dS V", "s = scale · q · k: what stands beside q in it?"),
    *_SHARED,
    (
        "keys past the end", "a kernel in which keys that do not exist have a weight",
        "For a key past the end s = 0, so p = exp(−lse). What if lse is −120, and what is that times a k of 0?",
    ),
    (
        "stops at the first row's keys", "a loop that ends with the keys that the tile's first row sees",
        "Which row of the tile sees most keys?",
    ),
    (
        "stops one key early", "a loop that ends one key before the last one that a row of the tile sees",
        "If the last key that a row sees is the first of a key tile, is that tile visited?",
    ),
    ("stops without the shift", "a loop whose end ignores Sk − Sq", SHIFT),
)  # fmt: skip

FLASH = _gallery(
    flash,
    (
        "one gradient too few", "a backward that returns one gradient too few",
        "forward has six arguments. What does backward return for those that are no tensors?",
    ),
    ("order", "dK and dV exchanged", "In which order do K and V stand among forward's arguments?"),
    (
        "dO as it lies", "a backward that hands dO on as it lies in memory",
        "Your kernels step through memory row by row. What does `.contiguous()` do for a dO that was transposed?",
    ),
    (
        "dlse as it lies", "a backward that hands dlse on as it lies in memory",
        "Two arrays come into backward. Which of them have you made contiguous?",
    ),
    (
        "q, k, v as they lie", "a wiring that keeps q, k and v as they lie in memory",
        "Which of the tensors that you save may be views with other strides?",
    ),
    ("dlse ignored", "a backward that ignores the gradient of lse", "Which of your kernels takes dlse?"),
    (
        "dlse added", "a backward in which dlse has the wrong sign",
        "The kernel subtracts dlse already. What do you hand it?",
    ),
    (
        "lse for dlse", "a delta from which lse was subtracted, not its gradient",
        "Which of your two arrays is a result of the forward, and which came in with dO?",
    ),
    (
        "lse cut off", "It cuts lse off from the graph, so no gradient can come back through it",
        "lse is an output like o. What may a loss do with it?", _cut,
    ),
    ("causal forgotten", "a backward that is not causal", "Which `causal` had the forward, and where did you keep it?"),
    (
        "own scale", "a backward with 1/√D, whatever scale the forward had",
        "What was `scale` in the forward, and where did you keep it?",
    ),
    (
        "lse and delta exchanged", "kernels that are handed lse and delta in the wrong order",
        "In which order do the launchers take lse and delta?",
    ),
    (
        "dK and dV only together", "a backward that gives dK only if dV is wanted too",
        "One kernel makes both dK and dV. For which values of `ctx.needs_input_grad` must it run?",
    ),
    (
        "every kernel runs", "It launches all three kernels although only dQ was asked for",
        "What does `ctx.needs_input_grad` hold, and which kernel has nothing to do when only dQ is wanted?", _launches,
    ),
)  # fmt: skip
