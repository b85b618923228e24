"""Known mistakes of chapter 12, the window's mask, its tiles, and linear attention: right but for what ``bug`` names.

Windowed attention itself is in `ch12_window`.
"""

from __future__ import annotations

import numpy as np
import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch11 import known


# -- 12.1 ----------------------------------------------------------------------------------------------------------
def window_mask(Sq, Sk, width, *, bug=""):
    """bool (Sq, Sk): True where row i sees key j."""
    i, j = torch.arange(Sq)[:, None], torch.arange(Sk)[None, :]
    shift = {
        "top left": 0, "shift the wrong way": Sq - Sk, "shift never negative": max(Sk - Sq, 0),
        "shift without its sign": abs(Sk - Sq),
    }.get(bug, Sk - Sq)  # fmt: skip
    width += {"one key too many": 1, "one key too few": -1}.get(bug, 0)
    last = (i + shift).clamp(min=0) if bug == "own key at least 0" else i + shift
    causal, near = j <= last, j > last - width
    if bug == "only the diagonal shifted":
        near = j > i - width
    if bug == "only the window shifted":
        causal = j <= i
    if bug == "not itself":
        causal, near = j < last, j >= last - width
    see = {
        "symmetric": abs(last - j) < width, "half to each side": abs(last - j) <= width // 2, "not causal": near,
        "no window": causal, "looks ahead": (j >= last) & (j < last + width), "outside": causal & ~near,
        "blocks of keys": causal & (j // width == last // width) if width else causal, "either": causal | near,
    }.get(bug, causal & near)  # fmt: skip
    if bug == "hidden is True":
        see = ~see
    if bug == "transposed":
        see = see.T
    if bug == "numbers":
        see = see.float()
    if bug == "added to scores":
        see = torch.where(see, 0.0, -torch.inf)
    return see


def _transposed(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if len(outcome.results) != 1:
        return False
    return np.array_equal(outcome.results[0].array, window_mask(*case.args).T.numpy())


def _of_numbers(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if len(outcome.results) != 1 or outcome.results[0].dtype == "bool":
        return False
    return bool(np.isin(outcome.results[0].array, (0, 1)).all())


def _of_infinities(case: Case, outcome: Outcome, finding: Finding) -> bool:
    if len(outcome.results) != 1 or outcome.results[0].dtype == "bool":
        return False
    return bool((outcome.results[0].array < -1).any())


MANY = "With width = 1 a row sees one key, its own. How many does your mask show it?"
LAST = "The last query sees the last key. With Sq = 2 and Sk = 5, which is the last key of row 0?"
MASK = known(
    window_mask,
    ("one key too many", "a window of width + 1 keys", MANY),
    ("one key too few", "a window of width − 1 keys", MANY),
    ("top left", "a mask aligned to the top left", LAST),
    ("symmetric", "a window open to both sides", "May a row see keys that come after its own?"),
    (
        "not causal",
        "a mask that hides what is too old but not the future",
        "May a row see keys that come after its own?",
    ),
    ("no window", "a causal mask without a window", "Which keys are too old for a row to see?"),
    ("hidden is True", "a mask that is True where a key is hidden", "What does True mean here: may look, or may not?"),
    ("not itself", "a window of the keys before a row's own", "With width = 1 a row sees one key. Which one?"),
    (
        "half to each side",
        "a window with half of its width on each side",
        "On which side of a row's own key lie all its keys?",
    ),
    (
        "looks ahead",
        "a window that begins at a row's own key",
        "Is a row's own key the first or the last of its window?",
    ),
    (
        "outside",
        "a mask of the past outside the window",
        "Are the keys of the window those near the row or those far from it?",
    ),
    (
        "blocks of keys",
        "a window that jumps from block to block",
        "How far does the window move from one row to the next?",
    ),
    ("either", "a mask with “or” in place of “and”", "Must a key satisfy one of the two bounds or both?"),
    (
        "only the diagonal shifted",
        "a mask in which the diagonal is shifted by Sk − Sq and the far edge is not",
        "How many keys does the last row see if Sk is larger than Sq?",
    ),
    (
        "only the window shifted",
        "a mask in which the far edge is shifted by Sk − Sq and the diagonal is not",
        "How many keys does the last row see if Sk is larger than Sq?",
    ),
    ("shift the wrong way", "a mask shifted by Sq − Sk", LAST),
    (
        "shift never negative",
        "a mask that is never shifted to the left",
        "With Sq = 5 and Sk = 2 the last query sees the last key. Which one does row 3 see last, and row 0?",
    ),
    (
        "shift without its sign",
        "a mask shifted by |Sk − Sq|",
        "With Sq = 5 and Sk = 2 the last query sees the last key. Which one does row 3 see last, and row 0?",
    ),
    (
        "own key at least 0",
        "a mask in which the first rows see key 0, though they come before all keys",
        "With Sq = 5 and Sk = 2 the last query sees the last key. Which key lies at row 0, and is there such a key?",
    ),
    (
        "transposed",
        "Rows and columns are exchanged.",
        "Which axis holds the queries: the first or the second?",
        _transposed,
    ),
    (
        "added to scores",
        "It is a mask of 0 and −∞ to be added to scores; asked for is one of True and False.",
        "Which comparison of two index arrays gives True and False by itself?",
        _of_infinities,
    ),
    (
        "numbers",
        "It holds the numbers 0 and 1; asked for is a mask of True and False.",
        "What dtype does a comparison such as j <= i have?",
        _of_numbers,
    ),
)


# -- 12.2 ----------------------------------------------------------------------------------------------------------
def window_tiles(i0, Sq, Sk, width, block_q, block_k, *, bug=""):
    """(first, stop): the key tiles that the rows i0 … i0 + block_q see something of."""
    if bug == "i0 taken for a tile":
        i0 = i0 * block_q
    i1 = i0 + block_q if bug == "ragged tile counted full" else min(i0 + block_q, Sq)
    shift = {"top left": 0, "shift the wrong way": Sq - Sk, "shift never negative": max(Sk - Sq, 0)}.get(bug, Sk - Sq)
    block = {"block_q for block_k": block_q}.get(bug, block_k)
    low = i0 + shift - width + 1
    low += {"reach one too far": -1, "reach one too short": 1, "far edge not shifted": -shift}.get(bug, 0)
    if bug == "far edge of the last row":
        low = i1 - 1 + shift - width + 1
    high = i0 + shift if bug == "near edge of the first row" else i1 - 1 + shift
    high += {"one key past the tile": 1, "near edge not shifted": -shift}.get(bug, 0)
    if bug == "symmetric":
        high = min(high + width - 1, Sk - 1)
    if (high < 0 and bug != "nothing seen, not told") or (bug == "empty by the first row" and i0 + shift < 0):
        return 0, 0
    if bug not in ("not cut off at 0", "cut off by its sign"):
        low = max(low, 0)
    if bug == "cut off by its sign":
        low = abs(low)
    first, last = low // block, high // block
    if bug == "last key rounded up":
        last = -(-high // block) - 1
    if bug == "last tile lost":
        last = min(last, Sk // block - 1)
    if bug == "floats":
        return float(first), float(last + 1)
    if bug == "first rounded up":
        first = -(-low // block)
    if bug == "the last one is left out":
        last -= 1
    if bug == "one tile too many":
        last += 1
    if bug == "one tile too early":
        first = max(first - 1, 0)
    if bug == "nothing skipped":
        first, last = 0, (Sk - 1) // block
    if bug == "causal alone":
        first = 0
    if bug == "the past alone":
        last = (Sk - 1) // block
    if bug == "keys, not tiles":
        return low, high + 1
    if bug == "keys at tile borders":
        return first * block, (last + 1) * block
    if bug == "first and number":
        return first, last + 1 - first
    if bug == "by the width alone":
        return max(last + 1 - -(-width // block), 0), last + 1
    return first, last + 1


TILES = known(
    window_tiles,
    (
        "the last one is left out",
        "a program that returns the last tile, or leaves it out",
        "range(first, stop) ends before stop. Is the last tile you want among them?",
    ),
    (
        "far edge of the last row",
        "a program that takes the far edge from the tile's last row",
        "Which row of the tile looks back farthest?",
    ),
    (
        "near edge of the first row",
        "a program that takes the near edge from the tile's first row",
        "Which row of the tile sees the latest key?",
    ),
    (
        "reach one too far",
        "a window that reaches one key too far back",
        "Row i sees `width` keys, its own among them. How many of them lie before its own?",
    ),
    (
        "reach one too short",
        "a window that reaches one key too short",
        "Row i sees `width` keys, its own among them. How many of them lie before its own?",
    ),
    (
        "one key past the tile",
        "a program that takes the first row after the tile for its last",
        "i1 is the first row after the tile. Which row is its last?",
    ),
    (
        "last key rounded up",
        "a stop that is the last key divided by block_k and rounded up",
        "In which tile of 8 lies key 16, and what is 16 / 8 rounded up?",
    ),
    (
        "empty by the first row",
        "a program that takes the tile for empty because its first row sees nothing",
        "Which row of the tile sees the latest key?",
    ),
    (
        "i0 taken for a tile",
        "a program that takes i0 for the number of a q tile",
        "Is i0 the number of a tile or of a row?",
    ),
    (
        "last tile lost",
        "a program that has only Sk // block_k tiles",
        "How many key tiles of 8 hold 20 keys, if the last may be smaller?",
    ),
    (
        "floats",
        "The two numbers are floats.",
        "What does range(0.0, 2.0) do, and which division of whole numbers gives a whole number?",
        lambda case, outcome, finding: any(r.array.dtype.kind == "f" for r in outcome.results),
    ),
    ("first rounded up", "a first tile that is rounded up", "In which tile of 8 lies key 13?"),
    (
        "one tile too many",
        "a program with one tile too many at the end",
        "In which tile of 8 lies key 15, and what is stop then?",
    ),
    (
        "one tile too early",
        "a program with one tile too many at the beginning",
        "In which tile of 8 lies key 16?",
    ),
    (
        "ragged tile counted full",
        "a program that counts rows past Sq",
        "How many rows has the last q tile, and which is the last of them?",
    ),
    (
        "not cut off at 0",
        "a first tile that may be negative",
        "Which is the first key there is, however far the window reaches back?",
    ),
    (
        "cut off by its sign",
        "a program that takes the absolute value of the far edge",
        "Which is the first key there is, however far the window reaches back?",
    ),
    (
        "top left",
        "a window aligned to the top left",
        "The last query sees the last key. With Sq = 2 and Sk = 5, which is the last key of row 0?",
    ),
    (
        "shift the wrong way",
        "a window shifted by Sq − Sk",
        "The last query sees the last key. With Sq = 2 and Sk = 5, which is the last key of row 0?",
    ),
    (
        "shift never negative",
        "a window that is never shifted to the left",
        "With Sq = 5 and Sk = 2 the last query sees the last key. Which keys does the first query see?",
    ),
    (
        "far edge not shifted",
        "a far edge that is not shifted by Sk − Sq",
        "How many keys does every row see, far from the beginning?",
    ),
    (
        "near edge not shifted",
        "a near edge that is not shifted by Sk − Sq",
        "Which key does the last row see last?",
    ),
    (
        "nothing seen, not told",
        "a program that does not return (0, 0) where no row sees a key",
        "With Sq = 20 and Sk = 4, which keys do the first rows see?",
    ),
    ("block_q for block_k", "a program that divides keys by block_q", "How many keys has one key tile?"),
    ("nothing skipped", "a program that visits every tile", "Which tiles lie wholly before or after the window?"),
    ("causal alone", "a program that skips the future but not what is too old", "Which tiles are too old?"),
    ("the past alone", "a program that skips what is too old but not the future", "Which tiles lie in the future?"),
    ("symmetric", "a window open to both sides", "May a row see keys that come after its own?"),
    ("keys, not tiles", "a program that returns keys", "In which tile of 8 lies key 13?"),
    ("keys at tile borders", "a program that returns keys at the tiles' borders", "Which is the number of the tile?"),
    (
        "first and number",
        "a program that returns the first tile and how many there are",
        "With range(first, stop) in mind: what is the second of the two?",
    ),
    (
        "by the width alone",
        "a program that visits ⌈width / block_k⌉ tiles",
        "A window of 3 keys may lie in one tile or across two. And all rows of the tile count. What decides?",
    ),
)


# -- 12.4 ----------------------------------------------------------------------------------------------------------
def linear_attention(q, k, v, *, bug=""):
    """Causal linear attention, φ(x) = elu(x) + 1, by running sums."""
    scale = q.shape[1] ** -0.5
    if bug == "scale put in":
        q = q * scale
    fq, fk = (_phi(x, bug) for x in (q, k))
    if bug == "φ of the queries left out":
        fq = q
    if bug == "φ of the keys left out":
        fk = k
    if bug in ("N × N", "softmax"):
        return _square(q * scale, k, fq, fk, v, bug)
    if bug == "all keys":
        return fq @ (fk.T @ v) / (fq @ fk.sum(0))[:, None]
    if bug == "every key with every later row":
        o, l = torch.zeros_like(v), torch.zeros_like(v[:, :1])
        for j in range(len(k)):
            w = (fq[j:] * fk[j]).sum(-1, keepdim=True)
            o[j:], l[j:] = o[j:] + w * v[j], l[j:] + w
        return o / l
    if bug in ("blocks too large", "earlier blocks forgotten"):
        return _blocks(fq, fk, v, 128 if bug == "blocks too large" else 16, bug)
    if bug == "the whole block seen":
        return _blocks(fq, fk, v, 16, bug)
    if bug == "sums begun anew":
        rows = [fq[i] @ (fk[: i + 1].T @ v[: i + 1]) / (fq[i] @ fk[: i + 1].sum(0)) for i in range(len(q))]
        return torch.stack(rows)
    if bug == "a state for every row":
        states = (fk[:, :, None] * v[:, None, :]).cumsum(0)
        return (fq[:, None, :] @ states)[:, 0] / (fq * fk.cumsum(0)).sum(-1, keepdim=True)
    o = torch.empty_like(v)
    state, norm = torch.zeros_like(fk.T @ v), torch.zeros_like(fk[0])
    total = fk.sum(0)
    for i in range(len(q)):
        before = state, norm
        state = fk[i][:, None] * v[i] + (0 if bug == "state not kept" else state)
        norm = norm + fk[i]
        if bug in ("own key left out", "own key left out, row 0 too", "own key left out, 0 / 0") and (
            i or bug != "own key left out"
        ):
            by = fq[i] @ before[1]
            o[i] = fq[i] @ before[0] / (1 if bug == "own key left out, row 0 too" and not i else by)
            continue
        by = {
            "never divided": torch.ones(()), "divided by the number of keys": torch.tensor(i + 1.0),
            "divided by all keys": fq[i] @ total, "divided by the sum of φ(k)": norm.sum(),
            "own key left out of the divisor": fq[i] @ before[1], "epsilon": fq[i] @ norm + 1e-6,
        }.get(bug, fq[i] @ norm)  # fmt: skip
        o[i] = fq[i] @ state / by
        if bug == "state divided":
            state = state / norm.sum()
    return o


def _blocks(fq, fk, v, size, bug):
    """A triangle in each block of rows, the state for what lies before."""
    out, state, norm = [], torch.zeros_like(fk.T @ v), torch.zeros_like(fk[0])
    for a, b, c in zip(fq.split(size), fk.split(size), v.split(size), strict=True):
        w = a @ b.T if bug == "the whole block seen" else (a @ b.T).tril()
        out.append((w @ c + a @ state) / (w.sum(1) + a @ norm)[:, None])
        if bug != "earlier blocks forgotten":
            state, norm = state + b.T @ c, norm + b.sum(0)
    return torch.cat(out)


def _phi(x, bug):
    elu = torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)
    return {
        "elu without + 1": elu, "relu + 1": x.clamp(min=0) + 1, "exp": x.exp(),
        "relu": x.clamp(min=0) + 1e-6, "φ exchanged": torch.where(x > 0, x.exp(), x + 1), "φ doubled": elu + 2,
    }.get(bug, elu + 1)  # fmt: skip


def _square(q, k, fq, fk, v, bug):
    if bug == "softmax":
        s = (q @ k.T).masked_fill(~torch.ones(len(q), len(k), dtype=torch.bool).tril(), -torch.inf)
        p = torch.exp(s - s.amax(-1, keepdim=True))
    else:
        p = (fq @ fk.T).tril()
    return p @ v / p.sum(-1, keepdim=True)


def _held(outcome: Outcome) -> str:
    """What was too large at the peak: "N × N", a "block" of rows with a side above 64, or "states"."""
    n = outcome.measures["n"][-1]
    shapes = [text.partition("(")[2].rstrip(")").split(",") for text in outcome.measures.get("alive", [])]
    sides = [sorted((int(d) for d in shape if d.strip()), reverse=True) for shape in shapes]
    if any(len(side) > 1 and side[1] > n // 2 for side in sides):
        return "N × N"
    return "block" if any(len(side) == 2 and side[1] > 64 for side in sides) else "states"


def _large(what: str):
    """Whether too much was held, and it was this."""

    def fits(case: Case, outcome: Outcome, finding: Finding) -> bool:
        return "peak" in outcome.measures and not finding.ok and _held(outcome) == what

    return fits


def _whole_blocks(case: Case, outcome: Outcome, finding: Finding) -> bool:
    """Much work, but not a product for every row: blocks that are too large."""
    m = outcome.measures
    if finding.result in ("flops", "touched"):
        return m["side"] > 64 and m["matmuls"] < len(case.args[0]) / 8
    return _large("block")(case, outcome, finding)


LINEAR = known(
    linear_attention,
    (
        "all keys",
        "linear attention over all keys, those of the future too",
        "Which keys may row i have added to the state before it is used?",
    ),
    ("never divided", "sums that are never divided", "The last column of v is 1 everywhere. What must that of o be?"),
    (
        "divided by all keys",
        "a program that divides by the sum over all keys",
        "Which keys are in the state when row i is computed, and in the sum that divides it?",
    ),
    (
        "divided by the number of keys",
        "a program that divides by the number of keys",
        "The weights are φ(q)·φ(k). What is their sum?",
    ),
    (
        "divided by the sum of φ(k)",
        "a program that divides by a sum of φ(k) in which the query does not enter",
        "The weights are φ(q)·φ(k). What is their sum?",
    ),
    (
        "own key left out",
        "a program that adds key i to the state after row i has used it",
        "Does row i see key i?",
    ),
    (
        "own key left out, row 0 too",
        "a program that adds key i to the state after row i has used it",
        "Does row i see key i?",
    ),
    (
        "own key left out, 0 / 0",
        "a program that adds key i to the state after row i has used it",
        "Does row i see key i? What has row 0 to divide?",
    ),
    (
        "own key left out of the divisor",
        "a program that adds φ(k) of row i to the norm after row i has used it",
        "Which keys are in the state when row i is computed, and in the norm that divides it?",
    ),
    (
        "the whole block seen",
        "blocks of 16 rows in which every row sees all keys of its block",
        "Which of the keys of its own block may the first row see?",
    ),
    (
        "epsilon",
        "a program that adds a small number to the divisor",
        "Row i sees at least its own key. Can the sum of its weights be 0?",
    ),
    (
        "earlier blocks forgotten",
        "blocks of rows that know nothing of the blocks before",
        "What must a block's first row know of the rows of earlier blocks, and which two sums hold it?",
    ),
    ("state not kept", "a program whose state begins anew in every row", "What does the state add up?"),
    (
        "state divided",
        "a program that divides the state itself",
        "The state goes on to the next row. May it be divided?",
    ),
    (
        "elu without + 1",
        "a φ without the + 1",
        "What must a weight never be, if the weights are to sum to 1 and stay ≥ 0?",
    ),
    (
        "φ of the queries left out",
        "a program without φ for the queries",
        "Which two vectors are multiplied in a weight?",
    ),
    ("φ of the keys left out", "a program without φ for the keys", "Which two vectors are multiplied in a weight?"),
    ("exp", "a φ that is exp", "What is φ(2)?"),
    ("relu + 1", "a φ that is 1 for all negative numbers", "What is φ(−2)?"),
    ("relu", "a φ that is 0 for negative numbers", "What is φ(−2), and what is φ(0)?"),
    ("φ doubled", "a φ that is elu + 2", "What is φ(0)?"),
    ("φ exchanged", "a φ whose two branches are exchanged", "What is φ(2), and what is φ(−2)?"),
    ("scale put in", "queries that were divided by √D", "Which weights does the statement define?"),
    ("softmax", "causal softmax attention", "Which weights does the statement define?"),
    (
        "blocks too large",
        "The numbers are right, but the blocks have more than 64 rows.",
        "Into how many pieces does your program cut the rows, and how does a triangle grow with its side?",
        _whole_blocks,
    ),
    (
        "every key with every later row",
        "The numbers are right, but the work grows as N²: a row and a key before it are multiplied, one by one.",
        "Which two sums could hold all that the keys so far have to tell a later row?",
        lambda case, outcome, finding: finding.result == "touched" and not outcome.measures["matmuls"],
    ),
    (
        "sums begun anew",
        "The numbers are right, but the work grows as N²: row by row the sums go over all the keys again.",
        "What does the state of row i have in common with that of row i − 1?",
        lambda case, outcome, finding: finding.result in ("flops", "touched"),
    ),
    (
        "N × N",
        "The numbers are right, but an array of N × N is held.",
        "In which order can φ(Q), φ(K)ᵀ and V be multiplied so that nothing N × N arises?",
        _large("N × N"),
    ),
    (
        "a state for every row",
        "The numbers are right, but a state is kept for every row at once.",
        "Which of the states do you still need when row i is done?",
        _large("states"),
    ),
)
