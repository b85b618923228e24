"""Right solutions of chapter 01, written in different ways: the grader must accept every one."""

import math

import numpy as np


# -- 01.1 ----------------------------------------------------------------------------------------------------------
def softmax(s):
    m = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = e.sum(axis=-1, keepdims=True)
    return e / np.where(l == 0, 1, l)


def softmax_in_place(s):
    p = s.copy()
    m = p.max(-1, keepdims=True)
    m[np.isneginf(m)] = 0
    p -= m
    np.exp(p, out=p)
    l = p.sum(-1, keepdims=True)
    np.divide(p, l, out=p, where=l > 0)
    return p


def softmax_base_2(s):
    m = s.max(-1, keepdims=True)
    t = (s - np.where(np.isfinite(m), m, 0)) * math.log2(math.e)
    e = np.exp2(t)
    return e / np.maximum(e.sum(-1, keepdims=True), np.finfo(s.dtype).tiny)


def softmax_by_lse(s):
    m = s.max(-1, keepdims=True)
    m = np.where(np.isneginf(m), 0, m)
    l = np.exp(s - m).sum(-1, keepdims=True)
    lse = np.where(l == 0, np.inf, m + np.log(np.where(l == 0, 1, l)))
    return np.exp(s - lse)


def softmax_loops(s):
    p = np.zeros_like(s)
    for row in np.ndindex(*s.shape[:-1]):
        top = max(s[row])
        if top == -np.inf:
            continue
        e = [math.exp(x - top) for x in s[row]]
        p[row] = [x / sum(e) for x in e]
    return p


def softmax_nan_to_num(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.nan_to_num(e / e.sum(-1, keepdims=True))


# -- 01.2 ----------------------------------------------------------------------------------------------------------
def four_steps(q, k, v):
    s = (q @ k.T) * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return s, p, p @ v


def four_steps_scaled_q(q, k, v):
    s = (q * q.shape[-1] ** -0.5) @ k.swapaxes(0, 1)
    p = softmax_base_2(s)
    return s, p, np.einsum("ij,jc->ic", p, v)


def four_steps_row_by_row(q, k, v):
    s = np.empty((len(q), len(k)), q.dtype)
    p = np.empty_like(s)
    o = np.empty((len(q), v.shape[1]), q.dtype)
    for i in range(len(q)):
        for j in reversed(range(len(k))):
            s[i, j] = sum(a * b for a, b in zip(q[i], k[j], strict=True)) / math.sqrt(q.shape[1])
        e = np.exp(s[i] - s[i].max())
        p[i] = e / e.sum()
        o[i] = (e @ v) / e.sum()
    return s, p, o


def four_steps_in_float64(q, k, v):
    a, b, c = (x.astype(np.float64) for x in (q, k, v))
    s = a @ b.T / np.sqrt(a.shape[1])
    p = softmax_by_lse(s)
    return [x.astype(q.dtype) for x in (s, p, p @ c)]


# -- 01.3 ----------------------------------------------------------------------------------------------------------
def causal_mask(Sq, Sk):
    return np.arange(Sk) <= np.arange(Sq)[:, None] + (Sk - Sq)


def mask_by_tri(Sq, Sk):
    return np.tri(Sq, Sk, Sk - Sq, dtype=bool)


def mask_by_tril(Sq, Sk):
    return np.tril(np.ones((Sq, Sk), dtype=bool), k=Sk - Sq)


def mask_from_the_end(Sq, Sk):
    back_i, back_j = np.arange(Sq)[::-1, None], np.arange(Sk)[None, ::-1]
    return ~(back_j < back_i)


def mask_of_lists(Sq, Sk):
    return np.array([[j - i <= Sk - Sq for j in range(Sk)] for i in range(Sq)])


# -- 01.4 ----------------------------------------------------------------------------------------------------------
def masked_attention(q, k, v, see):
    s = np.where(see, (q @ k.T) * q.shape[-1] ** -0.5, -np.inf)
    m = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = e.sum(-1, keepdims=True)
    return e / np.where(l == 0, 1, l) @ v


def masked_divided_last(q, k, v, see):
    s = (q * q.shape[-1] ** -0.5) @ k.T
    s[~see] = -np.inf
    m = s.max(-1, keepdims=True, initial=np.finfo(s.dtype).min)
    e = np.exp(s - m)
    o, l = e @ v, e.sum(-1)
    o[l > 0] /= l[l > 0, None]
    return o


def masked_visible_keys_only(q, k, v, see):
    o = np.zeros((len(q), v.shape[1]), q.dtype)
    for i, row in enumerate(see):
        if row.any():
            s = k[row] @ q[i] / math.sqrt(q.shape[1])
            e = np.exp(s - s.max())
            o[i] = e @ v[row] / e.sum()
    return o


def masked_additive(q, k, v, see):
    s = (q @ k.T) * q.shape[-1] ** -0.5 + np.where(see, 0, -np.inf).astype(q.dtype)
    return softmax_nan_to_num(s) @ v


def masked_weights_of_empty_rows(q, k, v, see):
    s = np.where(see, (q @ k.T) / math.sqrt(q.shape[-1]), np.finfo(q.dtype).min)
    p = softmax_base_2(s)
    return (p * see) @ v


# -- 01.5 ----------------------------------------------------------------------------------------------------------
def heads(q, k, v):
    G = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, G, axis=1), np.repeat(v, G, axis=1)
    s = (q @ k.mT) * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def heads_loop(q, k, v):
    G = q.shape[1] // k.shape[1]
    o = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            o[b, h] = four_steps_scaled_q(q[b, h], k[b, h // G], v[b, h // G])[2]
    return o


def heads_einsum(q, k, v):
    B, Hq, Sq, D = q.shape
    Hkv = k.shape[1]
    grouped = q.reshape(B, Hkv, Hq // Hkv, Sq, D)
    s = np.einsum("bhgid,bhjd->bhgij", grouped, k) / math.sqrt(D)
    p = softmax_base_2(s)
    return np.einsum("bhgij,bhjc->bhgic", p, v).reshape(B, Hq, Sq, -1)


def heads_indexed(q, k, v):
    kv_head = [h * k.shape[1] // q.shape[1] for h in range(q.shape[1])]
    s = np.matmul(q, k[:, kv_head].swapaxes(-1, -2)) * q.shape[-1] ** -0.5
    return (softmax_by_lse(s.astype(np.float64)) @ v[:, kv_head]).astype(q.dtype)


RIGHT = {
    "01.1": {
        "the course's": softmax,
        "in place, on a copy": softmax_in_place,
        "base 2, tiny in the place of 0": softmax_base_2,
        "through the logsumexp": softmax_by_lse,
        "Python loops": softmax_loops,
        "NaN turned into 0": softmax_nan_to_num,
    },
    "01.2": {
        "the course's": four_steps,
        "q scaled, einsum": four_steps_scaled_q,
        "row by row, keys in reverse": four_steps_row_by_row,
        "float64 inside": four_steps_in_float64,
    },
    "01.3": {
        "the course's": causal_mask,
        "np.tri": mask_by_tri,
        "np.tril": mask_by_tril,
        "counted from the end": mask_from_the_end,
        "Python lists": mask_of_lists,
    },
    "01.4": {
        "the course's": masked_attention,
        "division last, a finite start for the maximum": masked_divided_last,
        "visible keys only": masked_visible_keys_only,
        "mask added, NaN turned into 0": masked_additive,
        "smallest number, and 0 after": masked_weights_of_empty_rows,
    },
    "01.5": {
        "the course's": heads,
        "loop": heads_loop,
        "grouped, einsum": heads_einsum,
        "indexed, float64 inside": heads_indexed,
    },
}
