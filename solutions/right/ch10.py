"""Right solutions of chapter 10, written differently: the grader must accept every one."""

import math

import torch

INF = math.inf


# -- 10.1 ----------------------------------------------------------------------------------------------------------
def attend_part(q, k, v, scale):
    """The course's."""
    work = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(work), k.to(work), v.to(work)
    if len(k) == 0:
        return q.new_zeros(len(q), v.shape[1]), q.new_full((len(q),), -INF)
    s = scale * (q @ k.T)
    m = s.amax(1)
    p = torch.exp(s - m[:, None])
    l = p.sum(1)
    return p @ v / l[:, None], m + l.log()


def part_with_a_sentinel(q, k, v, scale):
    """No special case: one score of −∞ is put in front, and weighs nothing."""
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    s = torch.cat([q.new_full((len(q), 1), -INF, dtype=work), (q.to(work) * scale) @ k.to(work).mT], 1)
    m = s.max(1, keepdim=True).values
    p = (s - torch.where(m == -INF, 0, m)).exp()
    l = p.sum(1, keepdim=True)
    o = p[:, 1:] @ v.to(work) / torch.where(l == 0, 1, l)
    return o, (m + torch.log(l)).squeeze(1)


def part_key_by_key(q, k, v, scale):
    """Online, key by key, in float64, base 2."""
    to_2 = scale / math.log(2)
    m, l = torch.full((len(q),), -INF).double(), torch.zeros(len(q)).double()
    acc = torch.zeros(len(q), v.shape[1]).double()
    for key, row in zip(k.double(), v.double(), strict=True):
        s = q.double() @ key * to_2
        new = torch.maximum(m, s)
        p, f = torch.exp2(s - new), torch.exp2(m - new)
        l, acc, m = f * l + p, f[:, None] * acc + p[:, None] * row, new
    work = torch.promote_types(q.dtype, torch.float32)
    o = torch.where(l[:, None] > 0, acc / l[:, None], 0)
    return o.to(work), ((m + l.log2()) * math.log(2)).to(work)


def part_by_lse(q, k, v, scale):
    """lse first, then probabilities that need no division."""
    work = torch.promote_types(q.dtype, torch.float32)
    wide = q.to(work), k.to(work), v.to(work)
    s = torch.einsum("rd,nd->rn", wide[0], wide[1]) * scale
    m = s.amax(1, keepdim=True) if s.shape[1] else s.new_zeros(len(s), 1)
    lse = m[:, 0] + torch.log(torch.exp(s - m).sum(1))
    return torch.einsum("rn,nd->rd", torch.exp(s - lse[:, None]), wide[2]), lse


def part_in_blocks(q, k, v, scale):
    """Online, in blocks of 64 keys, in the dtype of the results."""
    work = torch.promote_types(q.dtype, torch.float32)
    q = q.to(work) * scale
    m, l = q.new_full((len(q), 1), -INF), q.new_zeros(len(q), 1)
    acc = q.new_zeros(len(q), v.shape[1])
    for i in range(0, len(k), 64):
        s = q @ k[i : i + 64].to(work).T
        new = torch.maximum(m, s.amax(1, keepdim=True))
        p, f = torch.exp(s - new), torch.exp(m - new)
        l, acc, m = f * l + p.sum(1, keepdim=True), f * acc + p @ v[i : i + 64].to(work), new
    return acc / torch.where(l == 0, 1, l), (m + l.log())[:, 0]


# -- 10.2 ----------------------------------------------------------------------------------------------------------
def merge(o, lse):
    """The course's."""
    m = lse.amax(0)
    weight = torch.exp(lse - m.masked_fill(m == -INF, 0))
    l = weight.sum(0)
    return (weight[..., None] * o).sum(0) / l.masked_fill(l == 0, 1)[..., None], m + l.log()


def merge_two_at_a_time(o, lse):
    """A loop with the law for two, from the identity element on."""
    out, total = torch.zeros_like(o[0]), torch.full_like(lse[0], -INF)
    for part, here in zip(o, lse, strict=True):
        high = torch.maximum(total, here)
        safe = torch.where(high == -INF, 0, high)
        a, b = torch.exp(total - safe), torch.exp(here - safe)
        by = torch.where(a + b == 0, 1, a + b)
        out = (a / by)[:, None] * out + (b / by)[:, None] * part
        total = safe + torch.log(a + b)
    return out, total


def merge_by_the_whole(o, lse):
    """lse first, then weights exp(lse − L) by an einsum."""
    top = lse.max(0).values
    safe = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    L = safe + torch.log(torch.exp(lse - safe).sum(0))
    weight = torch.exp(lse - torch.where(torch.isinf(L), torch.zeros_like(L), L))
    return torch.einsum("pr,prd->rd", weight, o), L


def merge_in_a_tree(o, lse):
    """Halves, recursively, in float64."""
    if len(o) == 1:
        return o[0].clone(), lse[0].clone()
    half = len(o) // 2
    (o1, a), (o2, b) = (
        merge_in_a_tree(x.double(), y.double()) for x, y in ((o[:half], lse[:half]), (o[half:], lse[half:]))
    )
    m = torch.maximum(a, b).clamp(min=-1e300)
    wa, wb = torch.exp(a - m), torch.exp(b - m)
    l = wa + wb
    out = (wa[:, None] * o1 + wb[:, None] * o2) / l.clamp(min=0.5)[:, None]
    return out.to(o.dtype), torch.where(l > 0, m + l.log(), -INF).to(o.dtype)


# -- 10.3 ----------------------------------------------------------------------------------------------------------
def decode_step(q, k, v):
    """The course's."""
    rows = q.unflatten(1, (k.shape[1], -1)).squeeze(3)
    s = q.shape[-1] ** -0.5 * rows @ k.mT
    o, lse = torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)
    return o.flatten(1, 2)[:, :, None], lse.flatten(1, 2)[:, :, None]


def step_einsum(q, k, v):
    """einsum with an axis for the group, softmax by hand."""
    B, Hq, _, D = q.shape
    grouped = q.view(B, k.shape[1], Hq // k.shape[1], D)
    s = torch.einsum("bhgd,bhsd->bhgs", grouped, k) / math.sqrt(D)
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m)
    l = p.sum(-1, keepdim=True)
    o = torch.einsum("bhgs,bhsd->bhgd", p, v) / l
    return o.reshape(B, Hq, 1, -1), (m + l.log()).reshape(B, Hq, 1)


def step_head_by_head(q, k, v):
    """A loop over sequences and key heads."""
    G = q.shape[1] // k.shape[1]
    o, lse = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype), torch.empty(q.shape[:3], dtype=q.dtype)
    for b in range(len(q)):
        for h in range(k.shape[1]):
            rows = slice(h * G, h * G + G)
            s = (q[b, rows, 0] * q.shape[-1] ** -0.5) @ k[b, h].T
            lse[b, rows, 0] = s.logsumexp(1)
            o[b, rows, 0] = torch.exp(s - lse[b, rows]) @ v[b, h]
    return o, lse


def step_keys_first(q, k, v):
    """Keys as rows of the product, groups as columns."""
    B, Hq, _, D = q.shape
    columns = q.reshape(B, k.shape[1], -1, D).transpose(-1, -2)
    s = (k @ columns) * D**-0.5  # (B, Hkv, S, G)
    p, lse = s.softmax(-2), s.logsumexp(-2)
    o = v.transpose(-1, -2) @ p  # (B, Hkv, Dv, G)
    return o.transpose(-1, -2).reshape(B, Hq, 1, v.shape[-1]), lse.reshape(B, Hq, 1)


def step_of_some(q, k, v):
    """Keys in pieces of eight, merged online; rows packed by reshape."""
    B, Hq, _, D = q.shape
    rows = q.reshape(B, k.shape[1], Hq // k.shape[1], D) * D**-0.5
    m = rows.new_full((*rows.shape[:3], 1), -INF)
    l, acc = torch.zeros_like(m), rows.new_zeros(*rows.shape[:3], v.shape[-1])
    for j in range(0, k.shape[2], 8):
        s = rows @ k[:, :, j : j + 8].mT
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, f = torch.exp(s - new), torch.exp(m - new)
        l, acc, m = f * l + p.sum(-1, keepdim=True), f * acc + p @ v[:, :, j : j + 8], new
    return (acc / l).reshape(B, Hq, 1, -1), (m + l.log()).reshape(B, Hq, 1)


# -- 10.4 ----------------------------------------------------------------------------------------------------------
def decode_ragged(q, k, v, lengths):
    """The course's."""
    hidden = torch.arange(k.shape[2]) >= lengths[:, None, None, None]
    s = (q.shape[-1] ** -0.5 * q @ k.mT).masked_fill(hidden, -INF)
    p = torch.softmax(s, -1).masked_fill(hidden, 0)
    return p @ v.masked_fill(hidden.mT, 0), torch.logsumexp(s, -1)


def ragged_one_by_one(q, k, v, lengths):
    """A loop; each sequence is cut to its length."""
    o, lse = q.new_zeros(*q.shape[:3], v.shape[-1]), q.new_full(q.shape[:3], -INF)
    for b, n in enumerate(lengths.tolist()):
        if n:
            s = q[b] @ k[b, :, :n].mT / math.sqrt(q.shape[-1])
            o[b], lse[b] = s.softmax(-1) @ v[b, :, :n], s.logsumexp(-1)
    return o, lse


def ragged_where(q, k, v, lengths):
    """where for K, V and scores, softmax by hand, guards."""
    there = torch.arange(k.shape[2])[None, None, None] < lengths.reshape(-1, 1, 1, 1)
    cols = there.transpose(-1, -2)
    k, v = torch.where(cols, k, 0), torch.where(cols, v, 0)
    s = torch.where(there, q @ k.mT * q.shape[-1] ** -0.5, -INF)
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - torch.where(m == -INF, 0, m))
    l = p.sum(-1, keepdim=True)
    return p @ v / torch.where(l == 0, 1, l), (m + l.log())[..., 0]


def ragged_parts(q, k, v, lengths):
    """Parts of four keys, each cut at the sequence's end, merged by lse, in float64."""
    shape = (*q.shape[:3], v.shape[-1])
    o, lse = torch.zeros(shape).double(), torch.full(q.shape[:3], -INF).double()
    for b, n in enumerate(lengths.tolist()):
        for j in range(0, n, 4):
            keys = slice(j, min(j + 4, n))
            s = (q[b].double() @ k[b, :, keys].double().mT) * q.shape[-1] ** -0.5
            here = s.logsumexp(-1)
            total = torch.logaddexp(lse[b], here)
            mine = torch.exp(s - here[..., None]) @ v[b, :, keys].double()
            o[b] = torch.exp(lse[b] - total)[..., None] * o[b] + torch.exp(here - total)[..., None] * mine
            lse[b] = total
    return o.to(q.dtype), lse.to(q.dtype)


def ragged_cut_to_the_longest(q, k, v, lengths):
    """Room that no sequence has reached is not looked at; an einsum; V cleaned by its own mask."""
    n = int(lengths.max())
    if n == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1]), q.new_full(q.shape[:3], -INF)
    k, v = k[:, :, :n], v[:, :, :n].clone()
    mask = torch.arange(n)[None] < lengths[:, None]  # (B, n)
    v.masked_fill_(~mask[:, None, :, None], 0)
    s = torch.einsum("bhqd,bhsd->bhqs", q, k) / q.shape[-1] ** 0.5
    s.masked_fill_(~mask[:, None, None], -INF)
    lse = s.logsumexp(-1)
    p = torch.exp(s - lse.masked_fill(lse == -INF, 0)[..., None])
    return torch.einsum("bhqs,bhsd->bhqd", p, v), lse


RIGHT = {
    "10.1": {
        "the course's": attend_part,
        "a score of −∞ in front": part_with_a_sentinel,
        "key by key, base 2": part_key_by_key,
        "lse first": part_by_lse,
        "in blocks": part_in_blocks,
    },
    "10.2": {
        "the course's": merge,
        "two at a time": merge_two_at_a_time,
        "lse first": merge_by_the_whole,
        "in a tree": merge_in_a_tree,
    },
    "10.3": {
        "the course's": decode_step,
        "einsum": step_einsum,
        "head by head": step_head_by_head,
        "keys first": step_keys_first,
        "keys in pieces": step_of_some,
    },
    "10.4": {
        "the course's": decode_ragged,
        "one by one": ragged_one_by_one,
        "where": ragged_where,
        "parts merged": ragged_parts,
        "cut to the longest": ragged_cut_to_the_longest,
    },
}
