"""Right solutions of chapter 12, written differently: the grader must accept every one."""

import math

import numpy as np
import torch

from flashlib.algorithms import masks

INF = math.inf


# -- 12.1 ----------------------------------------------------------------------------------------------------------
def window_mask(Sq, Sk, width):
    """The course's."""
    last = torch.arange(Sq)[:, None] + (Sk - Sq)
    key = torch.arange(Sk)
    return (key <= last) & (key > last - width)


def mask_triangles(Sq, Sk, width):
    """A lower triangle without a smaller one."""
    ones = torch.ones(Sq, Sk, dtype=torch.bool)
    return ones.tril(Sk - Sq) & ones.triu(Sk - Sq - width + 1)


def mask_numpy(Sq, Sk, width):
    """NumPy; by the distance; a tensor comes back."""
    back = np.subtract.outer(np.arange(Sk - Sq, Sk), np.arange(Sk))
    return torch.from_numpy((back >= 0) & (back < width))


def mask_loops(Sq, Sk, width):
    """Row by row, in place."""
    see = torch.zeros(Sq, Sk, dtype=torch.bool)
    for i in range(Sq):
        end = i + Sk - Sq + 1
        if end > 0:
            see[i, max(0, end - width) : end] = True
    return see


# -- 12.2 ----------------------------------------------------------------------------------------------------------
def window_tiles(i0, Sq, Sk, width, block_q, block_k):
    """The course's."""
    i1 = min(i0 + block_q, Sq)
    shift = Sk - Sq
    last = i1 - 1 + shift
    if last < 0:
        return 0, 0
    first = max(0, i0 + shift - width + 1)
    return first // block_k, last // block_k + 1


def tiles_of_numpy(i0, Sq, Sk, width, block_q, block_k):
    """NumPy's integers, in a list."""
    edge = np.array([i0 - width + 1, min(i0 + block_q, Sq) - 1]) + Sk - Sq
    return list(np.clip(edge, 0, Sk - 1) // block_k + [0, 1]) if edge[1] >= 0 else [0, 0]


def tiles_by_asking(i0, Sq, Sk, width, block_q, block_k):
    """Every tile is asked."""
    seen = []
    for t, (j0, j1) in enumerate(masks.spans(Sk, block_k)):
        for i in range(i0, min(Sq, i0 + block_q)):
            if any(0 <= i + Sk - Sq - j < width for j in range(j0, j1)):
                seen.append(t)
                break
    return (seen[0], seen[-1] + 1) if seen else (0, 0)


def tiles_rounded_up(i0, Sq, Sk, width, block_q, block_k):
    """The end is rounded up; a list comes back."""
    end = min(i0 + block_q, Sq) + Sk - Sq
    start = i0 + Sk - Sq - (width - 1)
    return [max(start, 0) // block_k, math.ceil(end / block_k)] if end > 0 else [0, 0]


def tiles_from_the_mask(i0, Sq, Sk, width, block_q, block_k):
    """The mask of these rows, and where it is True; torch numbers come back."""
    at = torch.arange(i0, min(i0 + block_q, Sq))[:, None] + Sk - Sq - torch.arange(Sk)
    keys = ((at >= 0) & (at < width)).any(0).nonzero()[:, 0]
    if len(keys) == 0:
        return 0, 0
    return keys[0] // block_k, keys[-1] // block_k + 1


# -- 12.3 ----------------------------------------------------------------------------------------------------------
def window_attention(q, k, v, width, block_q, block_k):
    """The course's."""
    Sq, Sk = len(q), len(k)
    o, scale, shift = q.new_zeros(Sq, v.shape[1]), q.shape[1] ** -0.5, Sk - Sq
    for i0 in range(0, Sq, block_q):
        i1 = min(i0 + block_q, Sq)
        m = q.new_full((i1 - i0, 1), -torch.inf)
        l, acc = torch.zeros_like(m), q.new_zeros(i1 - i0, v.shape[1])
        first = max(0, i0 + shift - width + 1) // block_k
        for j0 in range(first * block_k, i1 + shift, block_k):
            j1 = min(j0 + block_k, Sk)
            last, key = torch.arange(i0, i1)[:, None] + shift, torch.arange(j0, j1)
            s = scale * (q[i0:i1] @ k[j0:j1].T)
            s = s.masked_fill((key > last) | (key <= last - width), -torch.inf)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            safe = m_new.masked_fill(m_new == -torch.inf, 0)
            p, shrink = torch.exp(s - safe), torch.exp(m - safe)
            l = shrink * l + p.sum(-1, keepdim=True)
            acc = shrink * acc + p @ v[j0:j1]
            m = m_new
        o[i0:i1] = acc / l.masked_fill(l == 0, 1)
    return o


def window_backwards(q, k, v, width, block_q, block_k):
    """Key tiles from the right, o normalised in each step, in float64."""
    Sq, Sk, dtype = len(q), len(k), q.dtype
    q, k, v = q.double() / math.sqrt(q.shape[1]), k.double(), v.double()
    out = []
    for i0, i1 in masks.spans(Sq, block_q):
        o, lse = q.new_zeros(i1 - i0, v.shape[1]), q.new_full((i1 - i0, 1), -INF)
        for j0, j1 in reversed(masks.spans(Sk, block_k)):
            back = torch.arange(i0, i1)[:, None] + Sk - Sq - torch.arange(j0, j1)[None]
            see = (back >= 0) & (back < width)
            if not see.any():
                continue
            s = torch.where(see, q[i0:i1] @ k[j0:j1].T, -INF)
            top = torch.maximum(s.amax(1, keepdim=True), lse)
            top = torch.where(top == -INF, 0.0, top)
            p, old = (s - top).exp(), (lse - top).exp()
            total = old + p.sum(1, keepdim=True)
            lse = top + total.log()
            o = (old * o + p @ v[j0:j1]) / torch.where(total == 0, 1.0, total)
        out.append(o)
    return torch.cat(out).to(dtype)


def window_finite(q, k, v, width, block_q, block_k):
    """A running maximum that begins at the lowest finite number, weights masked instead of scores."""
    Sq, Sk = len(q), len(k)
    o = torch.zeros(Sq, v.shape[1], dtype=q.dtype)
    lowest = torch.finfo(q.dtype).min / 4
    for i0 in range(0, Sq, block_q):
        rows = torch.arange(i0, min(Sq, i0 + block_q))
        low, high = int(rows[0]) + Sk - Sq - width + 1, int(rows[-1]) + Sk - Sq
        m = torch.full((len(rows),), lowest, dtype=q.dtype)
        l, acc = torch.zeros_like(m), torch.zeros(len(rows), v.shape[1], dtype=q.dtype)
        for j0 in range(0, Sk, block_k):
            keys = torch.arange(j0, min(Sk, j0 + block_k))
            if int(keys[-1]) < low or j0 > high:
                continue
            see = (keys <= rows[:, None] + Sk - Sq) & (keys > rows[:, None] + Sk - Sq - width)
            s = torch.einsum("id,jd->ij", q[rows], k[keys]) / q.shape[1] ** 0.5
            s = s.masked_fill(~see, lowest)
            new = torch.maximum(m, s.max(1).values)
            p = torch.exp(s - new[:, None]) * see
            old = torch.exp(m - new)
            l, acc, m = l * old + p.sum(1), acc * old[:, None] + p @ v[keys], new
        o[rows] = acc / l.clamp(min=torch.finfo(q.dtype).tiny)[:, None]
    return o


def window_beside_lse(q, k, v, width, block_q, block_k):
    """The pair (o, lse) is kept, every weight is exp(s − lse), nothing is divided; NaN from −∞ − (−∞) is no weight."""
    out, shift = [], len(k) - len(q)
    for i0, i1 in masks.spans(len(q), block_q):
        o, lse = q.new_zeros(i1 - i0, v.shape[1]), q.new_full((i1 - i0, 1), -INF)
        for j0, j1 in masks.spans(len(k), block_k):
            back = torch.arange(i0, i1)[:, None] + shift - torch.arange(j0, j1)
            see = (back >= 0) & (back < width)
            if see.any():
                s = (q[i0:i1] @ k[j0:j1].T / math.sqrt(q.shape[1])).masked_fill(~see, -INF)
                top = torch.maximum(s.amax(1, keepdim=True), lse)
                new = top + ((s - top).exp().sum(1, keepdim=True) + (lse - top).exp()).log()
                new = torch.where(top == -INF, top, new)
                o = (lse - new).exp().nan_to_num() * o + (s - new).exp().nan_to_num() @ v[j0:j1]
                lse = new
        out.append(o)
    return torch.cat(out)


def window_keys_outside(q, k, v, width, block_q, block_k):
    """Key tiles outside; the state of all rows is kept; base 2."""
    Sq, Sk, Dv = len(q), len(k), v.shape[1]
    m, l, acc = q.new_full((Sq, 1), -INF), q.new_zeros(Sq, 1), q.new_zeros(Sq, Dv)
    to_2 = math.log2(math.e) / math.sqrt(q.shape[1])
    for j0, j1 in masks.spans(Sk, block_k):
        for i0, i1 in masks.spans(Sq, block_q):
            if j0 > i1 - 1 + Sk - Sq or j1 - 1 < i0 + Sk - Sq - width + 1:
                continue
            s = (q[i0:i1] @ k[j0:j1].T) * to_2
            see = torch.ones_like(s).tril(i0 - j0 + Sk - Sq).triu(i0 - j0 + Sk - Sq - width + 1) > 0
            s[~see] = -INF
            new = torch.maximum(m[i0:i1], s.amax(1, keepdim=True))
            safe = torch.where(new.isinf(), 0, new)
            p, old = torch.exp2(s - safe), torch.exp2(m[i0:i1] - safe)
            l[i0:i1] = old * l[i0:i1] + p.sum(1, keepdim=True)
            acc[i0:i1] = old * acc[i0:i1] + p @ v[j0:j1]
            m[i0:i1] = new
    return torch.where(l > 0, acc / l, torch.zeros_like(acc))


# -- 12.4 ----------------------------------------------------------------------------------------------------------
def _phi(x):
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def linear_attention(q, k, v):
    """The course's."""
    fq, fk = _phi(q), _phi(k)
    o = torch.empty_like(v)
    state, norm = q.new_zeros(k.shape[1], v.shape[1]), q.new_zeros(k.shape[1])
    for i in range(len(q)):
        state = state + fk[i, :, None] * v[i]
        norm = norm + fk[i]
        o[i] = fq[i] @ state / (fq[i] @ norm)
    return o


def linear_chunked(q, k, v):
    """Eight rows at a time: within them a small triangle, before them the state."""
    fq, fk = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    out, state, norm = [], fk[:0].T @ v[:0], fk[:0].sum(0)
    for a, b, c in zip(fq.split(8), fk.split(8), v.split(8), strict=True):
        w = (a @ b.T).tril()
        out.append((w @ c + a @ state) / (w.sum(1) + a @ norm)[:, None])
        state, norm = state + b.T @ c, norm + b.sum(0)
    return torch.cat(out)


def linear_in_place(q, k, v):
    """float64; the norm is a further column of the state; in place."""
    fq, fk = _phi(q.double()), _phi(k.double())
    wide = torch.cat([v.double(), torch.ones(len(v), 1, dtype=torch.double)], 1)
    state = torch.zeros(k.shape[1], wide.shape[1], dtype=torch.double)
    o = torch.zeros_like(v)
    for i, (a, b, c) in enumerate(zip(fq, fk, wide, strict=True)):
        state.addr_(b, c)
        both = torch.einsum("d,de->e", a, state)
        o[i] = (both[:-1] / both[-1]).to(v.dtype)
    return o


def linear_sums_in_blocks(q, k, v):
    """The states of 64 rows at a time, by a running sum."""
    fq, fk = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    out, state, norm = [], q.new_zeros(k.shape[1], v.shape[1]), q.new_zeros(k.shape[1])
    for a, b, c in zip(fq.split(64), fk.split(64), v.split(64), strict=True):
        states, norms = state + (b[:, :, None] * c[:, None]).cumsum(0), norm + b.cumsum(0)
        out.append((a[:, None] @ states)[:, 0] / (a * norms).sum(1, keepdim=True))
        state, norm = states[-1], norms[-1]
    return torch.cat(out)


def linear_triangle_number_by_number(q, k, v):
    """A triangle of 64 rows in which every product is written out and summed."""
    fq, fk = _phi(q), _phi(k)
    o, state, norm = torch.empty_like(v), q.new_zeros(k.shape[1], v.shape[1]), q.new_zeros(k.shape[1])
    for i in range(0, len(q), 64):
        a, b, c = fq[i : i + 64], fk[i : i + 64], v[i : i + 64]
        w = (a[:, None] * b).sum(-1).tril()
        past = (a[:, :, None] * state).sum(1)
        o[i : i + 64] = ((w[:, :, None] * c).sum(1) + past) / (w.sum(1) + (a * norm).sum(1))[:, None]
        state, norm = state + (b[:, :, None] * c[:, None]).sum(0), norm + b.sum(0)
    return o


RIGHT = {
    "12.1": {
        "the course's": window_mask,
        "two triangles": mask_triangles,
        "NumPy": mask_numpy,
        "row by row": mask_loops,
    },
    "12.2": {
        "the course's": window_tiles,
        "by asking every tile": tiles_by_asking,
        "rounded up": tiles_rounded_up,
        "from the mask": tiles_from_the_mask,
        "NumPy's integers": tiles_of_numpy,
    },
    "12.3": {
        "the course's": window_attention,
        "in reverse, float64": window_backwards,
        "finite maximum": window_finite,
        "beside lse": window_beside_lse,
        "keys outside, base 2": window_keys_outside,
    },
    "12.4": {
        "the course's": linear_attention,
        "eight rows at a time": linear_chunked,
        "in place, float64": linear_in_place,
        "sums in blocks of 64": linear_sums_in_blocks,
        "a triangle number by number": linear_triangle_number_by_number,
    },
}
