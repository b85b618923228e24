"""Plain attention computed in a given dtype: the yardstick of the error budget. NumPy only.

float32 and float64 are computed in themselves. float16 and bfloat16 are computed as a GPU's matrix units do: products
and sums in float32; P, dS and the results rounded to the dtype; delta from the rounded o.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from flashlib.algorithms.reference import product
from flashlib.grading.rounding import UNIT, round_to

if TYPE_CHECKING:
    from flashlib.grading.exactness import Problem


def naive_in(dtype: str, problem: "Problem", see: np.ndarray, order: int) -> dict[str, np.ndarray]:
    """o, lse and, where the problem has dO or dLSE, dq, dk, dv.

    Parameters
    ----------
    see : bool (Sq, Sk)
    order : int
        0 is the natural order of keys and features; other numbers seed a permutation of both. 0 leaves its sums to
        BLAS, the others add one term after another. Even orders take the four steps and scale the scores; odd ones
        scale q, carry (m, l, o) from key to key and recompute P from the lse. All are right.
    """
    work: Any = np.float64 if dtype == "float64" else np.float32
    rng = np.random.default_rng(order)
    keys, features = np.arange(see.shape[1]), np.arange(problem.q.shape[-1])
    if order:
        keys, features = rng.permutation(keys), rng.permutation(features)
    q = problem.q[..., features].astype(work)
    k, v = _heads(problem, problem.k[..., keys, :][..., features], problem.v[..., keys, :], work)
    see, scale = see[:, keys], work(problem.scale)
    z = work(1) if problem.keep is None else problem.keep[..., keys].astype(work) / work(1 - problem.dropout_p)
    with np.errstate(all="ignore"):
        dot = one_after_another if order else np.matmul
        s = dot(q * scale, k.swapaxes(-1, -2)) if order % 2 else scale * dot(q, k.swapaxes(-1, -2))
        s = np.where(see, s, work(-np.inf))
        m = s.max(-1, keepdims=True, initial=work(-np.inf))
        m = np.where(np.isneginf(m), work(0), m)
        if order % 2:
            o, l, m = _key_by_key(s, z, v, dtype)
            lse = (m + np.log(l))[..., 0]
            p = np.where(see & (l > 0), np.exp(s - lse[..., None]), work(0))
        else:
            e = np.where(see, np.exp(s - m), work(0))
            l = e.sum(-1, keepdims=True)
            p = np.where(see, e / np.where(l == 0, work(1), l), work(0))
            lse = (m + np.log(l))[..., 0]
            o = product(round_to(p * z, dtype), v, see, dot)
        o = round_to(o, dtype)
        out = {"o": o, "lse": lse}
        if problem.do is None and problem.dlse is None:
            return out
        do = np.zeros_like(o) if problem.do is None else problem.do.astype(work)
        delta = (do * o).sum(-1, keepdims=True)
        if problem.dlse is not None:
            delta = delta - problem.dlse.astype(work)[..., None]
        dp = z * dot(do, v.swapaxes(-1, -2))
        ds = round_to(np.where(see, p * (dp - delta), work(0)), dtype)
        back, unmix = np.argsort(keys), np.argsort(features)
        dk = scale * _sum(problem.k, product(ds.swapaxes(-1, -2), q, see.T, dot))
        dv = _sum(problem.v, product(round_to(p * z, dtype).swapaxes(-1, -2), do, see.T, dot))
        out["dq"] = round_to(scale * product(ds, k, see, dot), dtype)[..., unmix]
        out["dk"] = round_to(dk, dtype)[..., back, :][..., unmix]
        out["dv"] = round_to(dv, dtype)[..., back, :]
    return out


def _key_by_key(s: np.ndarray, z: np.ndarray, v: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """o before its last rounding, l and m, by online softmax with tiles of one key."""
    m = np.full((*s.shape[:-1], 1), -np.inf, dtype=s.dtype)
    l, acc = np.zeros_like(m), np.zeros((*s.shape[:-1], v.shape[-1]), dtype=s.dtype)
    z = np.broadcast_to(z, s.shape)
    for j in range(s.shape[-1]):
        new = np.maximum(m, s[..., j, None])
        safe = np.where(np.isneginf(new), s.dtype.type(0), new)
        p, shrink = np.exp(s[..., j, None] - safe), np.exp(m - safe)
        l = shrink * l + p
        # a key that is not seen has p = 0, and must not bring 0 · NaN
        acc = shrink * acc + np.where(p > 0, round_to(p * z[..., j, None], dtype) * v[..., None, j, :], s.dtype.type(0))
        m = new
    return acc / np.where(l == 0, s.dtype.type(1), l), l, np.where(np.isneginf(m), s.dtype.type(0), m)


def one_after_another(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b with each sum added strictly from the first term to the last: (..., M, K) @ (..., K, N)."""
    out = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), dtype=a.dtype)
    for n in range(a.shape[-1]):
        out += a[..., :, n, None] * b[..., None, n, :]
    return out


def floors(problem: "Problem") -> dict[str, float]:
    """For each result, what one rounding at each step can do to it: naive may be exact by luck.

    u is the unit roundoff of the dtype, w that of the arithmetic (float32 for 16-bit dtypes). Rounded to the dtype are
    P, dS, the results, and the o that delta is computed from. A score is off by w times its size for its scale, and
    √D/2 times as much for its sum: a relative error of its p, which equal keys may share. dS = P ∘ (dP − delta) takes
    the difference of numbers that are off by w times their size. An error of delta or of lse is shared by a row, so it
    meets the row's sum. A sum of n terms goes wrong like a random walk: by w·√n.
    """
    u, w = UNIT[problem.dtype], UNIT["float64" if problem.dtype == "float64" else "float32"]
    q, k, v = (_size(x) for x in (problem.q, *_heads(problem, problem.k, problem.v)))
    z = 1.0 if problem.keep is None else problem.keep / (1 - problem.dropout_p)
    p, o, scale = _size(problem.forward.p), _size(problem.forward.o), abs(problem.scale)
    partial_sum = np.maximum(_size(problem.forward.s), scale * np.sqrt(q**2 @ (k**2).swapaxes(-1, -2)))
    seen = ~np.isneginf(problem.forward.s)
    s_error = np.where(seen, w * (1 + (1 + np.sqrt(q.shape[-1]) / 2) * partial_sum), 0)
    walk_q, walk_k = w * np.sqrt(p.shape[-2]), w * np.sqrt(p.shape[-1])
    lse = _max(s_error) + w * _max(problem.forward.lse) + walk_k
    p_error = (u + s_error) * p * z
    o_error = u * (_max(o) + _max(p * z * _by_key(v))) + _max((p * z * (walk_k + s_error)) @ v)
    out = {"lse": lse, "o": o_error}
    if problem.do is None and problem.dlse is None:
        return out
    do = np.zeros_like(o) if problem.do is None else _size(problem.do)
    dp = z * (do @ v.swapaxes(-1, -2))
    delta_size = (p * dp).sum(-1, keepdims=True)
    if problem.dlse is not None:
        delta_size = delta_size + _size(problem.dlse)[..., None]
    row = w * (1 + _size(problem.forward.lse)[..., None]) + walk_k  # rounding of lse: a relative error of a row of P
    delta = _size(problem.gradients.delta)[..., None]
    delta_error = w * delta_size + row * delta + u * np.sqrt(((do * o) ** 2).sum(-1, keepdims=True))
    ds = _size(problem.gradients.ds)
    ds_error = w * p * (dp + delta_size) + (s_error + u) * ds
    shared = ((p * delta_error) ** 2).swapaxes(-1, -2) @ q**2  # the errors of delta of all rows that see a key
    terms = {
        "dq": scale * (_max(ds_error * _by_key(k)) + _max(delta_error * _mean_key(problem, p)) + walk_k * _max(ds @ k)),
        "dk": scale * (_max(ds_error * _by_row(q)) + np.sqrt(_max(shared)) + walk_q * _max(ds.swapaxes(-1, -2) @ q)),
        "dv": _max(p_error * _by_row(do)) + walk_q * _max((p * z).swapaxes(-1, -2) @ do),
    }
    return out | {name: (u + _max(row)) * _max(problem.exact(name)) + terms[name] for name in terms}


def _mean_key(problem: "Problem", p: np.ndarray) -> np.ndarray:
    """|Σ p k| of each row: what an error that all keys of a row share is multiplied by."""
    k, _ = _heads(problem, np.where(np.isfinite(problem.k), problem.k, 0), problem.v)
    return np.abs(p @ k)


def _by_row(x: np.ndarray) -> np.ndarray:
    """Largest |feature| of each row, laid along the rows of a score matrix: (..., Sq, 1)."""
    return x.max(-1, keepdims=True, initial=0.0)


def _by_key(x: np.ndarray) -> np.ndarray:
    """Largest |feature| of each key, laid along the columns of a score matrix: (..., 1, Sk)."""
    return x.max(-1, initial=0.0)[..., None, :]


def _heads(problem: "Problem", k: np.ndarray, v: np.ndarray, work: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    if problem.q.ndim < 3 or k.shape[-3] == problem.q.shape[-3]:
        return k.astype(work), v.astype(work)
    group = problem.q.shape[-3] // k.shape[-3]
    return np.repeat(k.astype(work), group, axis=-3), np.repeat(v.astype(work), group, axis=-3)


def _sum(like: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Sum over the query heads of each KV head."""
    if x.shape[:-2] == like.shape[:-2]:
        return x
    group = x.shape[-3] // like.shape[-3]
    return x.reshape(*like.shape[:-2], group, *x.shape[-2:]).sum(-3)


def _size(x: np.ndarray) -> np.ndarray:
    """|x| in float64, with 0 for what is not finite."""
    x = np.abs(x.astype(np.float64))
    return np.where(np.isfinite(x), x, 0)


def _max(x: np.ndarray) -> float:
    return float(_size(x).max(initial=0.0))
