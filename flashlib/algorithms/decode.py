"""One new token against a long cache: split the keys, attend to each part, merge the parts by one number a row.

Flash-Decoding (Dao, Haziza, Massa, Sizov 2023). A new token has few queries and many keys, so tiles of queries would
leave most of a GPU idle; splitting the keys gives every processor a part. Each part returns its o and its lse, and the
parts are merged by the law of `flashlib.algorithms.online`, written for results that are divided already:

    L = log Σ exp(lseₛ),   o = Σ exp(lseₛ − L) · oₛ

The queries of one group of heads lie below one another as rows of one tile, so each key is read once for all of them.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from flashlib.algorithms.arguments import check_decode
from flashlib.algorithms.masks import parts
from flashlib.algorithms.nonfinite import clean, first_bad
from flashlib.algorithms.tile import group_heads, work_dtype


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None = None,
    *,
    scale: float | None = None,
    splits: int | None = None,
    return_lse: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the newest tokens over a cache of keys and values.

    Parameters
    ----------
    q : (B, Hq, Sq, D)
        The queries of the last Sq positions; Sq is small, most often 1. Row i sees keys j ≤ i + (length − Sq): causal,
        aligned to the end of what the cache holds.
    k_cache : (B, Hkv, S, D), v_cache : (B, Hkv, S, Dv)
        What lies beyond a sequence's length is never used, whatever it holds.
    lengths : (B,) integers in [0, S], optional
        How many keys each sequence has, the newest included. Default: S for all.
    scale : float, optional
        Default 1/√D.
    splits : int ≥ 1, optional
        Into how many parts the keys are cut. It changes rounding and time only; parts may be empty.
    return_lse : bool
        Also return lse, (B, Hq, Sq) float32 (float64 for float64), natural log, −∞ for a row that sees no key.
    impl : "auto" | "torch" | "triton"
        "auto" takes the Triton kernel on a GPU that has one, where no gradient is asked for.

    Returns
    -------
    o : (B, Hq, Sq, Dv) in q's dtype; 0 for a row that sees no key. With ``return_lse``: (o, lse).

    Raises
    ------
    TypeError, ValueError
        Arguments that do not belong together: the message states what came and what was expected.
    RuntimeError
        ``impl="triton"`` and a gradient is asked for.
    """
    check_decode(q, k_cache, v_cache, lengths, scale, splits, impl)
    B, D = q.shape[0], q.shape[-1]
    scale = D**-0.5 if scale is None else float(scale)
    if lengths is None:
        lengths = torch.full((B,), k_cache.shape[2], device=q.device)
    else:  # int64: unsigned lengths could not go below zero. Room that no sequence has reached is not looked at
        lengths = lengths.to(q.device, torch.int64)
        longest = int(lengths.max()) if B else 0
        k_cache, v_cache = k_cache[:, :, :longest], v_cache[:, :, :longest]
    splits = choose_splits(q, k_cache) if splits is None else int(splits)
    run = _triton if impl == "triton" or (impl == "auto" and _can_triton(q, k_cache, v_cache)) else split_attention
    o, lse = run(q, k_cache, v_cache, lengths, scale, splits)
    return (o, lse) if return_lse else o


def split_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, splits: int):
    """(o, lse) in PyTorch: one pass a split, then `merge_splits`. Arguments as `decode` gives them."""
    work = work_dtype(q)
    Sq, S = q.shape[2], k.shape[2]
    last = lengths[:, None] - Sq + torch.arange(Sq, device=q.device)  # (B, Sq): the last key each row sees
    spoiled = None  # 0 · NaN is NaN: a value that a row does not see must not reach it, one that it sees must
    if not bool(torch.isfinite(v).all()):
        spoiled = first_bad(v).repeat_interleave(q.shape[1] // v.shape[1], 1) <= last[:, None, :, None]
        v = clean(v)
    rows = group_heads(q, k).to(work).flatten(2, 3) * scale  # (B, Hkv, G·Sq, D)
    last = last.repeat(1, rows.shape[2] // max(Sq, 1))[:, None, :, None]  # (B, 1, G·Sq, 1)
    results = []
    for j0, j1 in parts(S, splits):
        hidden = torch.arange(j0, j1, device=q.device) > last  # (B, 1, G·Sq, keys of this part)
        results.append(one_split(rows, k[:, :, j0:j1].to(work), v[:, :, j0:j1].to(work), hidden))
    o, lse = merge_splits(*map(torch.stack, zip(*results, strict=True)))
    o, lse = o.reshape(*q.shape[:3], v.shape[-1]), lse.reshape(q.shape[:3])
    return (o if spoiled is None else o.masked_fill(spoiled, torch.nan)).to(q.dtype), lse


def one_split(rows: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """o and lse of one part of the keys; 0 and −∞ where a row sees none of them.

    Parameters
    ----------
    rows : (B, Hkv, R, D), scaled; k : (B, Hkv, n, D); v : (B, Hkv, n, Dv); hidden : bool, broadcast to (B, Hkv, R, n)
    """
    if k.shape[2] == 0:
        return rows.new_zeros(*rows.shape[:3], v.shape[-1]), rows.new_full(rows.shape[:3], -torch.inf)
    s = (rows @ k.mT).masked_fill(hidden, -torch.inf)
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m.masked_fill(m == -torch.inf, 0))
    l = p.sum(-1, keepdim=True)
    return (p @ v) / l.masked_fill(l == 0, 1), (m + l.log()).squeeze(-1)


def merge_splits(o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge parts that were each divided by their own sum.

    Parameters
    ----------
    o : (splits, …, Dv), lse : (splits, …)

    Returns
    -------
    o : (…, Dv), lse : (…)
    """
    m = lse.amax(0)
    weight = torch.exp(lse - m.masked_fill(m == -torch.inf, 0))  # an empty part has lse −∞ and weighs 0
    l = weight.sum(0)
    return (weight[..., None] * o).sum(0) / l.masked_fill(l == 0, 1)[..., None], m + l.log()


def choose_splits(q: Tensor, k: Tensor, least: int = 256) -> int:
    """Parts so that every processor of a GPU has one, of at least ``least`` keys each; 1 on a CPU."""
    if q.device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    programs = max(1, k.shape[0] * k.shape[1])
    return max(1, min(-(-processors // programs), k.shape[2] // least))


def _can_triton(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if q.device.type != "cuda" or q.dtype == torch.float64 or max(q.shape[-1], v.shape[-1]) > 256:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return False
    return find_spec("triton") is not None and torch.cuda.get_device_capability(q.device) >= (8, 0)


def _triton(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, splits: int):
    if find_spec("triton") is None:
        raise ValueError("decode: impl='triton' needs the package triton, got none installed; use impl='torch'")
    if not torch.cuda.is_available():  # read by triton when it is first imported
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from flashlib.algorithms import triton_decode

    return triton_decode.split_attention(q, k, v, lengths, scale, splits)
