"""Known mistakes of chapter 11: programs that are right but for what ``bug`` names."""

from __future__ import annotations

import math
from functools import partial

import torch

from flashlib.grading.case import Case, Finding, Mistake, Outcome
from flashlib.grading.mistakes.texts import TEXT

INF = math.inf


OVERFLOWS = ("no maximum", "exp of lse", "exp of lse, guarded")


def known(fn, *entries) -> list[Mistake]:
    """Mistakes of ``fn``: (name, says, ask), with ``fits`` as a fourth where no output shows it."""
    return [
        Mistake(name, partial(fn, bug=name), says, ask, fits[0] if fits else None, name in OVERFLOWS)
        for name, says, ask, *fits in entries
    ]


# -- 11.1 ----------------------------------------------------------------------------------------------------------
def ring_step(q, k, v, o, lse, q_start, k_start, *, bug=""):
    """(o, lse) of this rank's rows after one more visiting block, by positions in the whole sequence."""
    n, m = len(q), len(k)
    last = q_start + n - 1
    future = {
        "skipped by the first row": k_start > q_start, "skipped by its last key": k_start + m - 1 > last,
        "masked in the own block only": k_start > q_start,
    }.get(bug, k_start > last)  # fmt: skip
    if future and bug not in ("no mask", "future computed", "NaN made 0", "the block in place of the state"):
        return (torch.zeros_like(o), torch.full_like(lse, -INF)) if bug == "future empties the state" else (o, lse)
    by = {"scale left out": 1.0, "scale 1/D": 1 / q.shape[1], "scale from v": v.shape[1] ** -0.5}
    s = by.get(bug, q.shape[1] ** -0.5) * (q @ k.T)
    part_o, part_lse = _attend(s.masked_fill(_hidden(n, m, q_start, k_start, bug), _fill(bug)), v, bug)
    out, joint = _merge(o, lse, part_o, part_lse, bug)
    if bug == "log of the sum forgotten":
        m = torch.maximum(lse, s.masked_fill(_hidden(n, m, q_start, k_start, bug), -INF).amax(-1))
        joint = m + torch.exp(joint - m.masked_fill(m == -INF, 0))
    return out, joint


def _fill(bug):
    return {"−1e9 for −∞": -1e9, "masked by 0": 0.0}.get(bug, -INF)


def _hidden(n, m, q_start, k_start, bug):
    row, key = torch.arange(n)[:, None], torch.arange(m)
    hidden = key + k_start > row + q_start
    if bug in ("no mask", "skips but masks nothing") or (bug == "earlier blocks taken whole" and k_start < q_start):
        hidden = torch.zeros_like(hidden)
    if bug == "counted within the block" or (bug == "masked in the own block only" and k_start == q_start):
        hidden = key > row
    elif bug == "masked in the own block only":
        hidden = torch.zeros_like(hidden)
    if bug == "aligned by the lengths":
        hidden = key > row + m - n
    if bug == "starts exchanged":
        hidden = key + q_start > row + k_start
    if bug == "start of the rows left out":
        hidden = key + k_start > row
    if bug == "not itself":
        hidden = key + k_start >= row + q_start
    if bug == "one key too many":
        hidden = key + k_start > row + q_start + 1
    if bug == "the past hidden":
        hidden = key + k_start < row + q_start
    return hidden


def _attend(s, v, bug):
    """o and lse of the block alone; 0 and −∞ in rows that see none of it."""
    top = s.amax(-1, keepdim=True)
    safe = top if bug in ("no guard", "NaN made 0") else top.masked_fill(top == -INF, 0)
    p = torch.exp(s - safe)
    l = p.sum(-1, keepdim=True)
    o = p @ v
    if bug not in ("block not divided", "never divided"):
        o = o / (l if bug in ("no guard", "0 / 0", "NaN made 0") else l.masked_fill(l == 0, 1))
    if bug == "lse without log l":
        return o, top[:, 0]
    return o, (top + (l.log2() if bug == "lse in base 2" else l.log()))[:, 0]


def _merge(o, lse, part_o, part_lse, bug):
    if bug == "the block in place of the state":
        return part_o, part_lse
    if bug.startswith("exp of lse"):
        a, b = lse.exp(), part_lse.exp()
        by = a + b if bug == "exp of lse" else (a + b).masked_fill(a + b == 0, 1)
        return (a[:, None] * o + b[:, None] * part_o) / by[:, None], (a + b).log()
    new = torch.maximum(lse, part_lse)
    safe = new if bug in ("no guard", "no guard in the merge", "NaN made 0") else new.masked_fill(new == -INF, 0)
    a, b = torch.exp(lse - safe), torch.exp(part_lse - safe)
    total = a + b
    joint = new + total.log()
    by = total if bug in ("no guard", "no guard in the merge", "NaN made 0") else total.masked_fill(total == 0, 1)
    a, b = (a / by)[:, None], (b / by)[:, None]
    if bug == "weights exchanged":
        a, b = b, a
    out = a * o + b * part_o
    if bug == "parts averaged":
        out = (o + part_o) / 2
    if bug == "parts added":
        out = o + part_o
    if bug == "state not weighed":
        out = o + b * part_o
    if bug in ("weights not divided", "never divided"):
        out = out * by[:, None]
    if bug == "NaN made 0":
        out = out.nan_to_num()
        joint = torch.where(joint.isnan(), -INF, joint)
    return out, {"lse added": lse + part_lse, "lse the larger": new, "lse kept": lse}.get(bug, joint)


def _computed(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return case.how == "meetings" and finding.result == "met"


RING_STEP = known(
    ring_step,
    (
        "counted within the block",
        "a mask that numbers rows and keys within their blocks",
        "Row 0 of this rank and key 0 of the block: at which positions of the sequence do they lie?",
    ),
    (
        "masked in the own block only",
        "a program that masks the own block, skips what begins later and takes everything else whole",
        "May a block begin before your last row and still hold keys that your first row must not see?",
    ),
    ("no mask", "a step without a mask", "May a row see a key whose position is larger than its own?"),
    (
        "skips but masks nothing",
        "a step that skips blocks of the future but masks nothing inside the others",
        "Do all rows see all keys of a block that begins at your own first row?",
    ),
    (
        "skipped by the first row",
        "a step that skips a block which the first row does not see, though others do",
        "Which of your rows sees the most keys?",
    ),
    (
        "skipped by its last key",
        "a step that skips a block because its last key lies in the future",
        "Which key of the block is seen first, and by which of your rows?",
    ),
    (
        "aligned by the lengths",
        "a mask aligned by the lengths of rows and block",
        "Do the lengths say where the block lies in the sequence, or do q_start and k_start?",
    ),
    (
        "starts exchanged",
        "a mask in which q_start and k_start have changed places",
        "Key j of the block has position k_start + j. Which position has row i?",
    ),
    (
        "start of the rows left out",
        "a mask that counts keys in the sequence but rows from 0",
        "Which position of the sequence has row i of this rank?",
    ),
    ("not itself", "a mask in which a row does not see its own position", "May position 7 see position 7?"),
    (
        "one key too many",
        "a mask that lets every row see one position too many",
        "Which is the last position that position 7 may see?",
    ),
    ("the past hidden", "a mask that hides the past", "Must a row see the keys before it or those after it?"),
    (
        "parts averaged",
        "a step that takes the mean of the old o and the block's",
        "If the block has a far larger sum of exp(s) than all before, which of the two should count more?",
    ),
    (
        "parts added",
        "a step that adds the block's o to the old one",
        "The last column of v is 1 everywhere. What must the last column of o be after every step?",
    ),
    (
        "weights exchanged",
        "a step that gives each of the two parts the other's weight",
        "If the block's lse is much larger, whose o should almost be the answer?",
    ),
    (
        "state not weighed",
        "a step that weighs the block's o but not the old one",
        "The two weights sum to 1. What is left for the old o?",
    ),
    (
        "weights not divided",
        "a step whose weights are not divided by their sum",
        "The last column of v is 1 everywhere. What must the two weights sum to?",
    ),
    (
        "exp of lse",
        "a step that takes exp(lse) with no maximum taken off",
        "What is exp(120) in float32, and what is exp(−120) / exp(−120)?",
    ),
    (
        "earlier blocks taken whole",
        "a program that masks nothing in a block that begins before the own rows",
        "A block begins before your first row. Where does it end?",
    ),
    (
        "never divided",
        "a step that takes o for a sum not yet divided, and divides nothing",
        "The last column of v is 1 everywhere. What must the last column of o be after every step?",
    ),
    (
        "exp of lse, guarded",
        "a step that takes exp(lse) with no maximum taken off",
        "What is exp(120) in float32, and what is exp(−120) / exp(−120)?",
    ),
    (
        "block not divided",
        "a step that merges the block's sum of exp(s − m) v, not yet divided",
        "The old o is already divided by its sum. Is the block's?",
    ),
    ("lse added", "a step that adds the two lse", "exp(lse) is a sum over keys. What is it for both sets of keys?"),
    (
        "lse the larger",
        "a step that keeps the larger of the two lse",
        "exp(lse) is a sum over keys. What is it for both sets of keys?",
    ),
    (
        "lse kept",
        "a step that leaves lse as it was",
        "Which keys has a row seen after this step, and whose sum is exp(lse)?",
    ),
    (
        "the block in place of the state",
        "a step that returns the block's own result and forgets what was seen before",
        "Where do the old o and lse enter?",
    ),
    (
        "future empties the state",
        "a step that returns 0 and −∞ for a block of the future",
        "What have your rows seen before this block came, and is that lost?",
    ),
    (
        "NaN made 0",
        "a step that makes NaN to 0 in rows that see nothing of the block",
        "Such a row has a state from before. What should it be after the step?",
    ),
    (
        "no guard",
        "a step that computes (−∞) − (−∞) in rows that see nothing of the block",
        "What is the maximum of a row of −∞, and by what may you replace it so that exp gives 0?",
    ),
    (
        "0 / 0",
        "a step that divides 0 by 0 in rows that see nothing of the block",
        "What is Σ exp(s − m) of a row that sees nothing, and by what may you divide instead?",
    ),
    (
        "no guard in the merge",
        "a step that computes (−∞) − (−∞) where neither the state nor the block has seen a key",
        "Which two lse meet in a row that has seen nothing and sees nothing now?",
    ),
    ("scale left out", *TEXT["scale left out"]),
    ("scale 1/D", *TEXT["scale 1/D"]),
    ("scale from v", "scores divided by the root of v's width", "Over which numbers does q·k sum: those of k or of v?"),
    (
        "log of the sum forgotten",
        "an lse to which the sum itself is added, not its logarithm",
        "exp(lse) is m's part times l. What is the logarithm of such a product?",
    ),
    (
        "lse without log l",
        "a step that takes the block's maximum for its lse",
        "lse is the logarithm of Σ exp(s). What is that sum in terms of m and l?",
    ),
    ("lse in base 2", "a step whose block has an lse with a logarithm in base 2", "Which logarithm undoes exp?"),
    (
        "−1e9 for −∞",
        "a step that hides keys by −1e9",
        "If all scores of a row are −1e9, what is exp(s − m)? Does the row see nothing then?",
    ),
    ("masked by 0", "a step in which hidden scores are 0", "Which score gives the weight exp(s − m) = 0?"),
    (
        "future computed",
        "The numbers are right, but a block that no row may see is multiplied all the same.",
        "How do you know from q_start, k_start and the number of rows alone that nothing of the block is seen?",
        _computed,
    ),
)


# -- 11.2 ----------------------------------------------------------------------------------------------------------
def balanced_layout(rank, world, S, *, bug=""):
    """Positions of this rank, and its visible pairs in each step."""
    held = _positions(rank, world, S, bug)
    pairs = []
    for t in range(world):
        keys = _positions((rank - t) % world, world, S, bug)
        if bug == "counted within the shards":
            see = torch.arange(len(keys)) <= torch.arange(len(held))[:, None]
        elif bug == "diagonal chunks in full":
            c = max(S // (2 * world), 1)
            see = keys // c <= held[:, None] // c
        else:
            see = keys <= held[:, None] if bug != "not itself" else keys < held[:, None]
        if bug == "everything counted":
            see = torch.ones_like(see)
        pairs.append(int(see.sum()))
    if bug == "home like a visit":
        pairs[0] -= S // (2 * world)
    if bug == "one total":
        return held, sum(pairs)
    if bug == "summed up":
        pairs = [sum(pairs[: t + 1]) for t in range(world)]
    if bug == "own keys only":
        pairs[1:] = [0] * (world - 1)
    return held + (bug == "counted from 1"), pairs


def _positions(rank, world, S, bug):
    c = S // (2 * world)
    cut = torch.arange(S).split(c)
    if bug == "contiguous":
        return torch.arange(rank * 2 * c, (rank + 1) * 2 * c)
    if bug == "dealt out one by one":
        return torch.arange(rank, S, world)
    if bug == "last chunk missing":
        return cut[rank]
    if bug == "no such chunk":
        return torch.cat([cut[rank], cut[2 * world - rank]])
    other = {"one chunk too late": 2 * world - rank, "one chunk too early": 2 * world - 2 - rank,
             "chunks r and r + world": rank + world,
             "one chunk too late, round": (2 * world - rank) % (2 * world)}.get(bug, 2 * world - 1 - rank)  # fmt: skip
    late = cut[other] if other < len(cut) else torch.arange(0)
    if bug == "mirrored within":
        late = late.flip(0)
    return torch.cat([late, cut[rank]] if bug == "late chunk first" else [cut[rank], late])


def _no_chunk(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return outcome.trouble is not None and outcome.trouble.kind == "IndexError"


def _one_total(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return len(outcome.results) == 2 and not outcome.results[1].array.ndim and finding.result == "pairs"


LAYOUT = known(
    balanced_layout,
    (
        "contiguous",
        "the contiguous layout, one stretch a rank",
        "Which rank has the most to do if the last positions all lie with one?",
    ),
    (
        "chunks r and r + world",
        "a layout of chunks r and r + world",
        "Rank 0 should get the very first chunk. Which chunk has as much to do as that one has little?",
    ),
    (
        "one chunk too late",
        "a layout of chunks r and 2·world − r",
        "Chunks are numbered from 0. What is the number of the last of 2·world chunks, and who gets it?",
    ),
    (
        "one chunk too late, round",
        "a layout of chunks r and 2·world − r, where rank 0 comes round to chunk 0",
        "Chunks are numbered from 0. What is the number of the last of 2·world chunks, and who gets it?",
    ),
    (
        "no such chunk",
        "It asks for a chunk that does not exist.",
        "Chunks are numbered from 0. What is the number of the last of 2·world chunks, and which rank gets it?",
        _no_chunk,
    ),
    (
        "one chunk too early",
        "a layout of chunks r and 2·world − 2 − r",
        "Chunks are numbered from 0. What is the number of the last of 2·world chunks, and who gets it?",
    ),
    (
        "last chunk missing",
        "a layout in which each rank has its early chunk only",
        "How many chunks are there, how many ranks, and how many chunks does each rank hold?",
    ),
    (
        "dealt out one by one",
        "a layout that deals positions out one by one",
        "Asked for are two stretches a rank. How long is each?",
    ),
    (
        "late chunk first",
        "a layout in which the late chunk stands before the early one",
        "In which order do the positions lie in the sequence?",
    ),
    (
        "mirrored within",
        "a layout that turns the late chunk round",
        "The late chunk is a stretch of the sequence as well. In which order do its positions lie?",
    ),
    ("counted from 1", "positions that are counted from 1", "What is the first position of rank 0?"),
    (
        "everything counted",
        "counts without a mask: every query with every key",
        "Is a pair computed if its key lies after its query?",
    ),
    (
        "diagonal chunks in full",
        "counts in which a chunk sees itself in full",
        "How many pairs with key ≤ query are there among 3 positions?",
    ),
    (
        "not itself",
        "counts in which a position does not see itself",
        "How many keys does position 0 see?",
    ),
    (
        "counted within the shards",
        "counts that number rows and keys within the two shards",
        "The third row of this rank: which position of the sequence is it?",
    ),
    (
        "home like a visit",
        "counts in which a rank's own block is counted like any visitor",
        "At home position 7 meets itself. Does it meet itself in a visit?",
    ),
    ("own keys only", "counts of the rank's own keys alone", "Whose keys are with this rank in step 1?"),
    (
        "summed up",
        "counts that are summed up from step to step",
        "What is computed in step t alone?",
    ),
    (
        "one total",
        "It gives one number for all steps together; asked for is a list with one number for each step.",
        "How many steps does the ring take?",
        _one_total,
    ),
)
