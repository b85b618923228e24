"""Right solutions of chapter 04, written differently: the grader must accept every one."""

import math

import torch

from flashlib.algorithms import masks

INF = math.inf


# -- 04.1 ----------------------------------------------------------------------------------------------------------
def one_tile(q, k, v, m, l, acc):
    """The course's."""
    s = q.shape[1] ** -0.5 * (q @ k.T)
    m_new = torch.maximum(m, s.amax(-1, keepdim=True))
    p, shrink = torch.exp(s - m_new), torch.exp(m - m_new)
    return m_new, shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ v


def one_tile_in_place(q, k, v, m, l, acc):
    """Overwrites the state it was given."""
    s = (q / math.sqrt(q.shape[1])) @ k.T
    before = m.clone()
    torch.maximum(m, s.max(dim=1, keepdim=True).values, out=m)
    s.sub_(m).exp_()
    factor = before.sub_(m).exp_()
    l.mul_(factor).add_(s.sum(1, keepdim=True))
    acc.mul_(factor).addmm_(s, v)
    return m, l, acc


def one_tile_merged(q, k, v, m, l, acc):
    """The tile's own state first, then the merge law."""
    s = torch.einsum("id,jd->ij", q, k) * q.shape[1] ** -0.5
    top = s.amax(1, keepdim=True)
    p = torch.exp(s - top)
    high = torch.maximum(m, top)
    a, b = torch.exp(m - high), torch.exp(top - high)
    return high, a * l + b * p.sum(1, keepdim=True), a * acc + b * torch.einsum("ij,jd->id", p, v)


def one_tile_base_2(q, k, v, m, l, acc):
    """Powers of 2, in float64, cast at the end."""
    dtype, to_2 = q.dtype, 1 / math.log(2)
    q, k, v, m, l, acc = (x.double() for x in (q, k, v, m, l, acc))
    s = q @ k.T / q.shape[1] ** 0.5
    high = torch.cat([m, s], dim=1).amax(1, keepdim=True)
    p, f = torch.exp2((s - high) * to_2), torch.exp2((m - high) * to_2)
    return [x.to(dtype) for x in (high, f * l + p.sum(1, keepdim=True), f * acc + p @ v)]


# -- 04.2 ----------------------------------------------------------------------------------------------------------
def forward(q, k, v, block_q, block_k):
    """The course's."""
    o = q.new_empty(len(q), v.shape[1])
    for i in range(0, len(q), block_q):
        qi = q[i : i + block_q]
        m = q.new_full((block_q, 1), -INF)
        l, acc = torch.zeros_like(m), q.new_zeros(block_q, v.shape[1])
        for j in range(0, len(k), block_k):
            m, l, acc = one_tile(qi, k[j : j + block_k], v[j : j + block_k], m, l, acc)
        o[i : i + block_q] = acc / l
    return o


def forward_keys_outside(q, k, v, block_q, block_k):
    """The key tiles in the outer loop, the state of all rows kept; keys in reverse."""
    m = q.new_full((len(q), 1), -INF)
    l, acc = torch.zeros_like(m), q.new_zeros(len(q), v.shape[1])
    for j0, j1 in reversed(masks.spans(len(k), block_k)):
        for i0, i1 in masks.spans(len(q), block_q):
            m[i0:i1], l[i0:i1], acc[i0:i1] = one_tile(q[i0:i1], k[j0:j1], v[j0:j1], m[i0:i1], l[i0:i1], acc[i0:i1])
    return acc / l


def forward_normalised(q, k, v, block_q, block_k):
    """o is finished after every tile; m and l of all rows are kept; tiles are lists of chunks."""
    scale, out, kept = q.shape[1] ** -0.5, [], []
    for qi in q.split(block_q):
        m, l, o = None, None, None
        for kj, vj in zip(k.split(block_k), v.split(block_k), strict=True):
            s = torch.einsum("id,jd->ij", qi, kj) * scale
            top = s.amax(1) if m is None else torch.maximum(m, s.amax(1))
            p = torch.exp(s - top[:, None])
            old = torch.zeros_like(top) if m is None else l * torch.exp(m - top)
            l = old + p.sum(1)
            o = (p @ vj if o is None else old[:, None] * o + p @ vj) / l[:, None]
            m = top
        out.append(o)
        kept.append((m, l))
    return torch.cat(out)


def forward_in_float64(q, k, v, block_q, block_k):
    """In place, base 2, in float64 within a tile, scaled q, cast at the end."""
    o = torch.empty(len(q), v.shape[1], dtype=q.dtype)
    to_2 = 1 / math.log(2) / math.sqrt(q.shape[1])
    for i in range(len(q) // block_q):
        rows = slice(i * block_q, (i + 1) * block_q)
        qi = q[rows].double() * to_2
        m, l, acc = torch.full((block_q,), -INF).double(), torch.zeros(block_q).double(), 0
        for j in range(len(k) // block_k):
            keys = slice(j * block_k, (j + 1) * block_k)
            s = qi.matmul(k[keys].double().t())
            new = torch.maximum(m, s.max(1)[0])
            s.sub_(new[:, None]).exp2_()
            f = (m - new).exp2()
            l = l * f + s.sum(1)
            acc = acc * f[:, None] + s @ v[keys].double()
            m = new
        o[rows] = acc.div_(l[:, None]).to(q.dtype)
    return o


# -- 04.3 ----------------------------------------------------------------------------------------------------------
def load(x, start, block):
    """A tile of ``block`` rows from ``start`` on, with zeros past the end."""
    tile = x.new_zeros(block, x.shape[1])
    part = x[start : start + block]
    tile[: len(part)] = part
    return tile


def forward_ragged(q, k, v, block_q, block_k):
    """The course's."""
    o, scale = q.new_empty(len(q), v.shape[1]), q.shape[1] ** -0.5
    for i in range(0, len(q), block_q):
        qi = load(q, i, block_q)
        m = q.new_full((block_q, 1), -INF)
        l, acc = torch.zeros_like(m), q.new_zeros(block_q, v.shape[1])
        for j in range(0, len(k), block_k):
            s = scale * (qi @ load(k, j, block_k).T)
            s = s.masked_fill(j + torch.arange(block_k) >= len(k), -INF)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - m_new), torch.exp(m - m_new)
            l, acc = shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ load(v, j, block_k)
            m = m_new
        rows = min(block_q, len(q) - i)
        o[i : i + rows] = (acc / l)[:rows]
    return o


def ragged_cut(q, k, v, block_q, block_k):
    """The scores of keys that do not exist are cut off, not filled."""
    o = torch.empty(len(q), v.shape[1], dtype=q.dtype)
    for i0, i1 in masks.spans(len(q), block_q):
        m, l, acc = q.new_full((block_q, 1), -INF), q.new_zeros(block_q, 1), q.new_zeros(block_q, v.shape[1])
        for j0, j1 in masks.spans(len(k), block_k):
            s = (load(q, i0, block_q) @ load(k, j0, block_k).T)[:, : j1 - j0] * q.shape[1] ** -0.5
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - m_new), torch.exp(m - m_new)
            l, acc, m = shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ load(v, j0, block_k)[: j1 - j0], m_new
        o[i0:i1] = (acc / l)[: i1 - i0]
    return o


def ragged_whole_padded(q, k, v, block_q, block_k):
    """q, k and v are filled up once, the result is cut."""
    Sq, Sk = len(q), len(k)
    q = torch.cat([q, q.new_zeros(-Sq % block_q, q.shape[1])])
    k, v = (torch.cat([x, x.new_zeros(-Sk % block_k, x.shape[1])]) for x in (k, v))
    bias = torch.zeros(len(k), dtype=q.dtype)
    bias[Sk:] = -INF
    out = []
    for qi in q.split(block_q):
        m, l, acc = q.new_full((block_q, 1), -INF), 0, 0
        for kj, vj, b in zip(k.split(block_k), v.split(block_k), bias.split(block_k), strict=True):
            s = qi @ kj.T / q.shape[1] ** 0.5 + b
            m_new = torch.maximum(m, s.amax(1, keepdim=True))
            p, f = (s - m_new).exp(), (m - m_new).exp()
            l, acc, m = f * l + p.sum(1, keepdim=True), f * acc + p @ vj, m_new
        out.append(acc / l)
    return torch.cat(out)[:Sq]


def ragged_reversed(q, k, v, block_q, block_k):
    """Keys in reverse, the ragged tile first, with torch.where; normalised each step."""
    o = q.new_zeros(len(q), v.shape[1])
    for i in range(0, len(q), block_q):
        qi, m, l, out = load(q, i, block_q), q.new_full((block_q, 1), -INF), q.new_zeros(block_q, 1), 0
        for j in reversed(range(0, len(k), block_k)):
            there = torch.arange(j, j + block_k) < len(k)
            s = torch.where(there, qi @ load(k, j, block_k).T * q.shape[1] ** -0.5, -INF)
            new = torch.maximum(m, s.amax(1, keepdim=True))
            p, old = torch.exp(s - new), l * torch.exp(m - new)
            l = old + p.sum(1, keepdim=True)
            out = (old * out + p @ load(v, j, block_k)) / l
            m = new
        o[i : i + block_q] = out[: len(q) - i]
    return o


# -- 04.4 ----------------------------------------------------------------------------------------------------------
def forward_causal(q, k, v, block_q, block_k):
    """The course's."""
    Sq, Sk = len(q), len(k)
    o, scale, shift = q.new_empty(Sq, v.shape[1]), q.shape[1] ** -0.5, Sk - Sq
    for i0, i1 in masks.spans(Sq, block_q):
        m = q.new_full((i1 - i0, 1), -INF)
        l, acc = torch.zeros_like(m), q.new_zeros(i1 - i0, v.shape[1])
        for j0, j1 in masks.spans(Sk, block_k):
            if j0 > i1 - 1 + shift:
                break
            s = scale * (q[i0:i1] @ k[j0:j1].T)
            if j1 - 1 > i0 + shift:
                rows, keys = torch.arange(i0, i1)[:, None], torch.arange(j0, j1)
                s = s.masked_fill(keys > rows + shift, -INF)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - m_new), torch.exp(m - m_new)
            l, acc = shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ v[j0:j1]
            m = m_new
        o[i0:i1] = acc / l
    return o


def causal_by_kind(q, k, v, block_q, block_k):
    """Asks masks.tile_kind; keys in reverse, so that a row may see nothing at first."""
    o = torch.zeros(len(q), v.shape[1], dtype=q.dtype)
    for i0, i1 in masks.spans(len(q), block_q):
        m, l, acc = q.new_full((i1 - i0, 1), -INF), q.new_zeros(i1 - i0, 1), q.new_zeros(i1 - i0, v.shape[1])
        for j0, j1 in reversed(masks.spans(len(k), block_k)):
            kind = masks.tile_kind(i0, i1, j0, j1, len(q), len(k), True)
            if kind == "skip":
                continue
            s = torch.einsum("id,jd->ij", q[i0:i1], k[j0:j1]) / math.sqrt(q.shape[1])
            if kind == "partial":
                keep = torch.ones_like(s, dtype=torch.bool).tril(diagonal=i0 + len(k) - len(q) - j0)
                s = torch.where(keep, s, -INF)
            new = torch.maximum(m, s.amax(1, keepdim=True))
            safe = torch.where(new == -INF, 0, new)
            p, f = torch.exp(s - safe), torch.exp(m - safe)
            l, acc, m = f * l + p.sum(1, keepdim=True), f * acc + torch.einsum("ij,jd->id", p, v[j0:j1]), new
        o[i0:i1] = acc / l
    return o


def causal_keys_outside(q, k, v, block_q, block_k):
    """The key tiles outside; weights set to 0 where hidden, after exp."""
    Sq, Sk = len(q), len(k)
    q = q * q.shape[1] ** -0.5
    m = q.new_full((Sq, 1), -INF)
    l, acc = torch.zeros_like(m), q.new_zeros(Sq, v.shape[1])
    for j in range(0, Sk, block_k):
        for i in range(0, Sq, block_q):
            rows = torch.arange(i, min(i + block_q, Sq))[:, None]
            hidden = torch.arange(j, min(j + block_k, Sk)) > rows + Sk - Sq
            if hidden.all():
                continue
            here = slice(i, i + block_q)
            s = q[here] @ k[j : j + block_k].T
            s[hidden] = -INF
            new = torch.maximum(m[here], s.amax(1, keepdim=True))
            p = torch.exp(s - new.clamp(min=torch.finfo(q.dtype).min))
            f = torch.exp(m[here] - new.clamp(min=torch.finfo(q.dtype).min))
            l[here] = f * l[here] + p.sum(1, keepdim=True)
            acc[here] = f * acc[here] + p @ v[j : j + block_k]
            m[here] = new
    return acc / l


def causal_bound(q, k, v, block_q, block_k):
    """The loop ends at the last key that the tile's last row sees; normalised each step, in base 2."""
    Sq, Sk, to_2 = len(q), len(k), 1 / math.log(2) / math.sqrt(q.shape[1])
    o = torch.empty(Sq, v.shape[1], dtype=q.dtype)
    for i in range(0, Sq, block_q):
        qi = q[i : i + block_q] * to_2
        last = torch.arange(i, i + len(qi)) + (Sk - Sq)
        m, l, out = q.new_full((len(qi),), -INF), q.new_zeros(len(qi)), 0
        for j in range(0, int(last[-1]) + 1, block_k):
            kj, vj = k[j : j + block_k], v[j : j + block_k]
            s = (qi @ kj.mT).masked_fill(torch.arange(j, j + len(kj))[None] > last[:, None], -INF)
            new = torch.maximum(m, s.amax(1))
            p, old = torch.exp2(s - new[:, None]), l * torch.exp2(m - new)
            l = old + p.sum(1)
            out = (old[:, None] * out + p @ vj) / l[:, None]
            m = new
        o[i : i + block_q] = out
    return o


# -- 04.5 ----------------------------------------------------------------------------------------------------------
def flash(q, k, v, block_q, block_k, causal):
    """The course's."""
    Sq, Sk = len(q), len(k)
    work = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_empty(Sq, v.shape[1]), q.new_empty(Sq, dtype=work)
    scale, shift = q.shape[1] ** -0.5, Sk - Sq if causal else Sk
    for i0, i1 in masks.spans(Sq, block_q):
        qi = q[i0:i1].to(work)
        m = qi.new_full((i1 - i0, 1), -INF)
        l, acc = torch.zeros_like(m), qi.new_zeros(i1 - i0, v.shape[1])
        for j0, j1 in masks.spans(Sk, block_k):
            if j0 > i1 - 1 + shift:
                break
            s = scale * (qi @ k[j0:j1].to(work).T)
            rows, keys = torch.arange(i0, i1)[:, None], torch.arange(j0, j1)
            s = s.masked_fill(keys > rows + shift, -INF)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            safe = m_new.masked_fill(m_new == -INF, 0)
            p, shrink = torch.exp(s - safe), torch.exp(m - safe)
            l, acc = shrink * l + p.sum(-1, keepdim=True), shrink * acc + p @ v[j0:j1].to(work)
            m = m_new
        o[i0:i1] = acc / l.masked_fill(l == 0, 1)
        lse[i0:i1] = (m + l.log())[:, 0]
    return o, lse


def flash_in_float64(q, k, v, block_q, block_k, causal):
    """Everything in float64, nothing skipped, cast at the end."""
    Sq, Sk, out, ends = len(q), len(k), [], []
    for i in range(0, Sq, block_q):
        qi = q[i : i + block_q].double()
        m, l = qi.new_full((len(qi),), -INF), qi.new_zeros(len(qi))
        acc = qi.new_zeros(len(qi), v.shape[1])
        for j in range(0, Sk, block_k):
            kj, vj = k[j : j + block_k].double(), v[j : j + block_k].double()
            s = qi @ kj.T / math.sqrt(q.shape[1])
            if causal:
                seen = torch.arange(j, j + len(kj)) <= torch.arange(i, i + len(qi))[:, None] + Sk - Sq
                s = torch.where(seen, s, -INF)
            new = torch.maximum(m, s.amax(1))
            p = torch.nan_to_num(torch.exp(s - new[:, None]), nan=0.0)
            f = torch.nan_to_num(torch.exp(m - new), nan=0.0)
            l, acc, m = f * l + p.sum(1), f[:, None] * acc + p @ vj, new
        out.append(torch.where(l[:, None] > 0, acc / l[:, None], 0))
        ends.append(m + l.log())
    return torch.cat(out).to(q.dtype), torch.cat(ends).to(torch.promote_types(q.dtype, torch.float32))


def flash_finished(q, k, v, block_q, block_k, causal):
    """Carries o divided and lse; keys in reverse."""
    Sq, Sk, work = len(q), len(k), torch.float64 if q.dtype == torch.float64 else torch.float32
    o, lse = torch.zeros(Sq, v.shape[1], dtype=work), torch.full((Sq,), -INF, dtype=work)
    for i0, i1 in masks.spans(Sq, block_q):
        for j0, j1 in reversed(masks.spans(Sk, block_k)):
            kind = masks.tile_kind(i0, i1, j0, j1, Sq, Sk, causal)
            if kind == "skip":
                continue
            s = q[i0:i1].to(work) @ k[j0:j1].to(work).T * q.shape[1] ** -0.5
            if kind == "partial":
                s.masked_fill_(torch.arange(j0, j1) > torch.arange(i0, i1)[:, None] + Sk - Sq, -INF)
            top = s.amax(1, keepdim=True)
            p = torch.exp(s - torch.where(top == -INF, 0, top))
            n = p.sum(1, keepdim=True)
            here = (top + n.log())[:, 0]
            high = torch.maximum(lse[i0:i1], here)
            safe = torch.where(high == -INF, 0, high)
            a, b = torch.exp(lse[i0:i1] - safe), torch.exp(here - safe)
            total = a + b
            by = torch.where(total == 0, 1, total)
            mine = p @ v[j0:j1].to(work) / torch.where(n == 0, 1, n)
            o[i0:i1] = (a / by)[:, None] * o[i0:i1] + (b / by)[:, None] * mine
            lse[i0:i1] = safe + total.log()
    return o.to(q.dtype), lse


def flash_base_2(q, k, v, block_q, block_k, causal):
    """Base 2 on the chip, natural logarithm out; in place; a finite first maximum."""
    Sq, Sk, to_2 = len(q), len(k), 1 / math.log(2)
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    o, lse = torch.empty(Sq, v.shape[1], dtype=q.dtype), torch.empty(Sq, dtype=work)
    for i0, i1 in masks.spans(Sq, block_q):
        end = min(max(i1 + Sk - Sq, 0), Sk) if causal else Sk
        m = torch.full((i1 - i0, 1), torch.finfo(work).min, dtype=work)
        wide = torch.zeros(i1 - i0, v.shape[1] + 1, dtype=work)  # the last column is l
        for j in range(0, end, block_k):
            kj, vj = k[j : j + block_k].to(work), v[j : j + block_k].to(work)
            s = (q[i0:i1].to(work) @ kj.T) * (to_2 * q.shape[1] ** -0.5)
            if causal:
                s.masked_fill_(torch.arange(j, j + len(kj)) > torch.arange(i0, i1)[:, None] + Sk - Sq, -INF)
            new = torch.maximum(m, s.amax(1, keepdim=True))
            p = s.sub_(new).exp2_()
            wide.mul_(torch.exp2(m - new)).add_(p @ torch.cat([vj, vj.new_ones(len(vj), 1)], 1))
            m = new
        l = wide[:, -1]
        o[i0:i1] = wide[:, :-1] / l.clamp(min=0.5)[:, None]  # l is 0 or at least 1
        lse[i0:i1] = torch.where(l > 0, (m[:, 0] + l.log2()) / to_2, -INF)
    return o, lse


RIGHT = {
    "04.1": {
        "the course's": one_tile,
        "in place": one_tile_in_place,
        "merged": one_tile_merged,
        "base 2 in float64": one_tile_base_2,
    },
    "04.2": {
        "the course's": forward,
        "keys outside, in reverse": forward_keys_outside,
        "normalised each step": forward_normalised,
        "base 2 in float64": forward_in_float64,
    },
    "04.3": {
        "the course's": forward_ragged,
        "scores cut off": ragged_cut,
        "filled up once": ragged_whole_padded,
        "in reverse, normalised": ragged_reversed,
    },
    "04.4": {
        "the course's": forward_causal,
        "by kind, in reverse": causal_by_kind,
        "keys outside": causal_keys_outside,
        "bounded loop, base 2": causal_bound,
    },
    "04.5": {
        "the course's": flash,
        "in float64, nothing skipped": flash_in_float64,
        "carries o and lse": flash_finished,
        "base 2, l as a column of v": flash_base_2,
    },
}
