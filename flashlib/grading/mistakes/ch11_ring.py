"""Known mistakes of chapter 11, a whole ring in one process: one program that is right but for what ``bug`` names."""

from __future__ import annotations

import torch

from flashlib.grading.case import Case, Finding, Outcome
from flashlib.grading.mistakes.ch11 import INF, known
from flashlib.grading.mistakes.texts import TEXT


def ring(qs, ks, vs, *, bug=""):
    """(o of every rank, whose[t][r], bytes sent by each rank) of full attention."""
    R = len(qs)
    if bug == "all gathered":
        return _gathered(qs, ks, vs)
    if bug == "input scaled":
        qs[0].mul_(qs[0].shape[1] ** -0.5)
    held, kept_v = [(k, v, r) for r, (k, v) in enumerate(zip(ks, vs, strict=True))], list(vs)
    state = [(q.new_zeros(len(q), vs[0].shape[1]), q.new_full((len(q), 1), -INF)) for q in qs]
    whose, sent = [], [0] * R
    for t in range(R):
        whose.append([h[2] for h in held])
        for r, q in enumerate(qs):
            k, v, _ = held[r]
            if bug == "values stay" and len(v) == len(kept_v[r]):
                v = kept_v[r]
            if bug in ("ranks in their order", "the queries travel"):  # the tables tell what ought to be
                b = t if bug == "ranks in their order" else (r + t) % R
                k, v = ks[b], vs[b]
            if (bug == "last visit left out" and t == R - 1 > 0) or (bug == "own keys only" and t):
                continue
            if bug == "own keys left out" and not t and R > 1:
                continue
            if bug == "causal by rank" and held[r][2] > r:
                continue
            state[r] = _fold(q, k, v, *state[r], t, bug)
        if t == R - 1 and bug not in ("one pass too many", "input lists changed"):
            break
        for r in range(R) if t < R - 1 or bug == "one pass too many" else ():
            sent[r] += _bytes(qs, ks, vs, held, r, t, bug)
        step = -1 if bug == "to the left" else 1
        if bug == "one after the other":
            for r in range(R):
                held[(r + step) % R] = held[r]
        else:
            held = [held[(r - step) % R] for r in range(R)]
    if bug == "input lists changed" and R > 1:
        ks[:], vs[:] = [ks[-1], *ks[:-1]], [vs[-1], *vs[:-1]]
    if bug == "where, not whose":
        whose = [[row.index(b) for b in range(R)] for row in whose]
    if bug == "ranks first":
        whose = [list(column) for column in zip(*whose, strict=True)]
    if bug == "counted from 1":
        whose = [[b + 1 for b in row] for row in whose]
    if bug == "after the pass":
        whose = [*whose[1:], [(r - R) % R for r in range(R)]]
    if bug == "begun with a pass":
        whose = [[(r - t - 1) % R for r in range(R)] for t in range(R)]
        sent = [sum(_bytes(qs, ks, vs, [(ks[b], vs[b], b)], 0, 0, "") for b in c[1:]) for c in zip(*whose, strict=True)]
    if bug == "steps without the last":
        whose = whose[:-1]
    if bug == "own block once":
        sent = [_bytes(qs, ks, vs, [(ks[r], vs[r], r)], 0, 0, "") for r in range(R)]
    if bug == "sent before whose":
        return [o for o, _ in state], sent, whose
    if bug == "all ranks together":
        sent = [sum(sent)] * R
    return [o for o, _ in state], whose, sent


def _fold(q, k, v, o, lse, t, bug):
    scale = {"scale left out": 1.0, "scale 1/D": 1 / q.shape[1]}.get(bug, q.shape[1] ** -0.5)
    s = scale * (q @ k.T)
    if bug == "causal":
        s = s.masked_fill(torch.arange(len(k)) > torch.arange(len(q))[:, None], -INF)
    top = torch.zeros_like(lse) if bug == "no maximum" else s.amax(-1, keepdim=True)
    p = torch.exp(s - top)
    l = p.sum(-1, keepdim=True)
    part_o, part_lse = p @ v / l, top + l.log()
    if bug == "never rescaled":
        old, p = lse.exp(), torch.exp(s - s.amax(-1, keepdim=True))
        total = old + p.sum(-1, keepdim=True)
        return (o * old + p @ v) / total, total.log()
    if bug == "last block only":
        return part_o, part_lse
    if bug == "parts added":
        return o + part_o, lse
    if bug == "parts averaged":
        return (o * t + part_o) / (t + 1), lse
    new = torch.maximum(lse, part_lse)
    a, b = torch.exp(lse - new), torch.exp(part_lse - new)
    joint = new if bug == "lse the larger" else new + (a + b).log()
    return (o * a + part_o * b) / (a + b), joint


def _bytes(qs, ks, vs, held, r, t, bug):
    k, v, _ = held[r]
    if bug == "own block each time":
        k, v = ks[r], vs[r]
    if bug == "received, not sent":
        k, v, _ = held[r - 1]
    per = k.element_size()
    size = {"numbers, not bytes": 1, "always 4 bytes": 4, "always 8 bytes": 8, "bits": 8 * per}.get(bug, per)
    of_v = {"keys alone counted": 0, "keys counted twice": k.numel()}
    numbers = k.numel() + of_v.get(bug, v.numel())
    if bug == "queries counted too":
        numbers += qs[r].numel()
    if bug == "twice: sent and received":
        numbers += held[r - 1][0].numel() + held[r - 1][1].numel()
    return numbers * size


def _gathered(qs, ks, vs):
    R, k, v = len(qs), torch.cat(ks), torch.cat(vs)
    out = []
    for q in qs:
        s = q.shape[1] ** -0.5 * (q @ k.T)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        out.append(p @ v / p.sum(-1, keepdim=True))
    whose = [[(r - t) % R for r in range(R)] for t in range(R)]
    size = [(ks[r].numel() + vs[r].numel()) * k.element_size() for r in range(R)]
    return out, whose, [sum(size[(r - t) % R] for t in range(R - 1)) for r in range(R)]


def _all_keys(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return case.how == "meetings" and finding.result in ("side", "longest", "joined")


def _order(case: Case, finding: Finding) -> bool:
    return case.how == "meetings" and finding.result == "met"


def _turned(case: Case, outcome: Outcome, finding: Finding) -> bool:
    R = len(case.args[0])
    right = [[(r + t) % R for t in range(R)] for r in range(R)]
    return _order(case, finding) and [[b for m in met for b in m] for met in outcome.measures["met"]] == right


def _exchanged(case: Case, outcome: Outcome, finding: Finding) -> bool:
    R, got = len(case.args[0]), outcome.results
    return len(got) == R + 2 and got[R].array.shape == (R,) and got[R + 1].array.shape == (R, R)


def _lists_changed(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return {"argument 2", "argument 3"} <= set(outcome.changed)


def _scaled(case: Case, outcome: Outcome, finding: Finding) -> bool:
    return bool(outcome.changed) and not _lists_changed(case, outcome, finding)


SENT = "Between W ranks and W visits, how often does a block move on from each rank?"
RING = known(
    ring,
    (
        "to the left",
        "a ring in which blocks move to the rank before",
        "After one pass, does rank 1 hold the block of rank 0 or that of rank 2?",
    ),
    ("one pass too many", "a ring that passes the blocks on after the last visit too", SENT),
    (
        "one after the other",
        "a ring in which a rank's block is overwritten before it was passed on",
        "When rank 0 has handed its block to rank 1, where is the block that rank 1 had?",
    ),
    (
        "values stay",
        "a ring in which the keys travel and the values stay",
        "Which values belong to the visiting keys?",
    ),
    ("last visit left out", "a ring that stops one visit early", "How many blocks must every query meet?"),
    ("own keys only", "ranks that attend to their own keys only", "How many blocks must every query meet?"),
    ("own keys left out", "ranks that leave their own keys out", "Which keys are with a rank before anything moves?"),
    (
        "own block each time",
        "a count in which a rank sends its own block every time",
        "After the first pass, whose block does a rank hand on, and how long is that one?",
    ),
    (
        "received, not sent",
        "a count of the bytes that a rank receives",
        "The block that arrives in the last step: does this rank hand it on?",
    ),
    ("keys alone counted", "a count of the keys alone", "What travels besides the keys?"),
    ("queries counted too", "a count in which the queries travel as well", "What stays on its rank all the time?"),
    (
        "twice: sent and received",
        "a count of what is sent and received together",
        "If one rank sends a block to another, is that one move or two?",
    ),
    (
        "keys counted twice",
        "a count that takes the values for as long as the keys",
        "A key has D numbers. How many has a value?",
    ),
    (
        "own block once",
        "a count in which each rank sends its own block, once",
        "What does a rank do with a block that has come from the rank before, if another step follows?",
    ),
    ("numbers, not bytes", "a count of numbers", "How many bytes has one number of this dtype?"),
    ("always 4 bytes", "a count that takes 4 bytes for every number", "How many bytes has a float64?"),
    ("always 8 bytes", "a count that takes 8 bytes for every number", "How many bytes has a float32?"),
    ("bits", "a count of bits", "How many bytes has one number of this dtype?"),
    ("all ranks together", "a count of all ranks together", "What does rank r alone hand on?"),
    (
        "where, not whose",
        "a table that says where each block lies",
        "whose[t][r] is asked at a rank. Does your row answer “whose block is with rank r” or “where is block r”?",
    ),
    ("ranks first", "a table with the ranks in rows", "Which comes first in whose[t][r]: the step or the rank?"),
    ("counted from 1", "a table that counts ranks from 1", "What is the number of the first rank?"),
    (
        "after the pass",
        "a table written after the blocks were passed on",
        "Which block is with rank r in step 0, before anything has moved?",
    ),
    (
        "begun with a pass",
        "a ring whose blocks move before the first visit",
        "Which block is with rank r in step 0, before anything has moved?",
    ),
    (
        "steps without the last",
        "a table without the last step",
        "How many steps are there, and does a rank still compute in the last one, in which nothing is sent?",
    ),
    (
        "sent before whose",
        "It returns the bytes before the table.",
        "In which order does the signature name the three results?",
        _exchanged,
    ),
    ("causal by rank", "a ring that leaves out the blocks of later ranks", "Which keys may a query not see here?"),
    ("never rescaled", *TEXT["never rescaled"]),
    (
        "last block only",
        "a ring that keeps the result of the last block only",
        "What did the rows know before this block came?",
    ),
    (
        "parts added",
        "a ring that adds the parts' results",
        "The last column of v is 1 everywhere. What must the last column of o be?",
    ),
    (
        "parts averaged",
        "a ring that takes the mean of the parts' results",
        "Which number of each part says how much it should count?",
    ),
    (
        "lse the larger",
        "a ring whose lse is the larger of the two",
        "exp(lse) is a sum over keys. What is it after two blocks?",
    ),
    ("causal", "a ring with a mask inside each block", "Which keys may a query not see in full attention?"),
    ("no maximum", *TEXT["no maximum"]),
    ("scale left out", *TEXT["scale left out"]),
    ("scale 1/D", *TEXT["scale 1/D"]),
    (
        "input lists changed",
        "The lists that were handed in are not as they were.",
        "Which list do you pass the blocks along in: your own, or the caller's?",
        _lists_changed,
    ),
    (
        "input scaled",
        "A tensor that was handed in is not as it was.",
        "Which operation writes into its own operand: `q * x` or `q *= x`?",
        _scaled,
    ),
    (
        "all gathered",
        "The numbers are right, but queries meet the keys of several ranks at once.",
        "How many blocks of keys does a rank hold at a time?",
        _all_keys,
    ),
    (
        "the queries travel",
        "The numbers are right, but blocks come to the queries from the wrong side, as if the queries travelled.",
        "After the first pass, is the block of the rank before with rank r, or that of the rank after?",
        _turned,
    ),
    (
        "ranks in their order",
        "The numbers are right, but the queries do not meet the blocks in the order that `whose` tells.",
        "Which block is with a rank in step t, and is it the one that your product takes?",
        lambda case, outcome, finding: _order(case, finding),
    ),
)
