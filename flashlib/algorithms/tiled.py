"""FlashAttention in PyTorch, tile by tile: O(N) extra memory, forward and backward.

FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithms 1 and 2. A tile is Br = ``block_q`` queries by Bc =
``block_k`` keys, for all batches and heads at once. Nothing of size Sq × Sk is ever made; what is kept for the backward
is q, k, v, o and one number a row, lse. Query heads of one KV head lie below one another as rows of the same tile.
"""

from functools import partial

import torch
from torch import Tensor

from flashlib.algorithms.masks import spans, tile_kind
from flashlib.algorithms.nonfinite import all_finite, clean, last_bad, quarantine
from flashlib.algorithms.once import Once
from flashlib.algorithms.tile import Scratch, dropout_weights, group_heads, hidden_keys, keys, rows, work_dtype

BLOCK = 256  # measured on a CPU: large enough to hide Python's cost, small enough for the caches


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Attention by tiles. No autograd: see `attention`.

    Parameters
    ----------
    q : (B, Hq, Sq, D), k : (B, Hkv, Sk, D), v : (B, Hkv, Sk, Dv)
        Any strides. float16 and bfloat16 tiles are computed in float32.
    causal : bool
        Bottom-right aligned; tiles that no row sees are skipped.
    dropout_p, seed
        Mask of `flashlib.algorithms.philox`: depends on (seed, b, h, row, col), not on the tiles.
    block_q, block_k : int
        Tile sizes; they change nothing but rounding, time and memory.

    Returns
    -------
    o : (B, Hq, Sq, Dv) in q's dtype
    lse : (B, Hq, Sq) float32 (float64 for float64 inputs), natural log, −∞ for rows that see no key
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    v, spoiled = quarantine(v, q.shape[1], q.shape[2], causal)
    Sk, Dv, work = k.shape[2], v.shape[-1], work_dtype(q)
    o, lse = q.new_empty(*q.shape[:3], Dv), q.new_empty(q.shape[:3], dtype=work)
    q, o_grouped, lse_grouped = (group_heads(x, k) for x in (q, o, lse))  # (B, Hkv, G, Sq, …)
    B, Hkv, G, Sq = q.shape[:4]
    scores = Scratch(q, work)
    for i0, i1 in spans(Sq, block_q):
        qi = rows(q, i0, i1, work) * scale  # HBM → SRAM: Br·D elements, here (B·Hkv, G·Br, D)
        m = qi.new_full((*qi.shape[:-1], 1), -torch.inf)
        l = torch.zeros_like(m)
        acc = qi.new_zeros(*qi.shape[:-1], Dv)
        for j0, j1 in spans(Sk, block_k):
            kind = tile_kind(i0, i1, j0, j1, Sq, Sk, causal)
            if kind == "skip":
                continue
            kj, vj = keys(k, j0, j1, work), keys(v, j0, j1, work)  # HBM → SRAM: Bc·(D + Dv)
            s = scores.product(qi, kj.mT)  # (B·Hkv, G·Br, Bc), never leaves the tile
            if kind == "partial":
                s.unflatten(1, (G, -1)).masked_fill_(hidden_keys(i0, i1, j0, j1, Sq, Sk, s), -torch.inf)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            m_safe = m_new.masked_fill(m_new == -torch.inf, 0)  # rows that have seen no key: exp(−∞ − 0) = 0
            p = s.sub_(m_safe).exp_()
            shrink = m.sub_(m_safe).exp_()  # what was summed so far was measured against the old maximum
            l = l.mul_(shrink).add_(p.sum(-1, keepdim=True))
            if dropout_p > 0:  # after the row sum: dropout does not change l
                p.mul_(dropout_weights(p, B, G, i0, i1, j0, j1, dropout_p, seed))
            torch.baddbmm(acc.mul_(shrink), p, vj, out=acc)  # acc · shrink + P V
            m = m_new
        tile = (B, Hkv, G, i1 - i0)
        o_grouped[:, :, :, i0:i1] = (acc / l.masked_fill(l == 0, 1)).view(*tile, Dv)  # one division; SRAM → HBM
        lse_grouped[:, :, :, i0:i1] = (m + l.log()).view(tile)
    return o if spoiled is None else o.masked_fill_(spoiled, torch.nan), lse


def backward(
    do: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of q, k and v; the probabilities are computed again from q, k and lse.

    Parameters
    ----------
    do : (B, Hq, Sq, Dv), any strides; dlse : (B, Hq, Sq) or None
    q, k, v, o, lse and the options: as given to and returned by `forward`
    needs : three bools
        Which of dq, dk, dv are wanted; the others come back as None and their products are not computed.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    need_q, need_k, need_v = needs
    work = work_dtype(q)
    # delta = rowsum(dO ∘ O) is what softmax's backward subtracts; a gradient of lse enters with the other sign
    delta = (do.to(work) * o.to(work)).sum(-1)
    if dlse is not None:
        delta = delta - dlse.to(work)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row that saw nothing: exp(S − ∞) = 0 whatever S holds
    finite, raw_do = all_finite(q, k, v, do), do
    if not finite:  # P needs q and k as they are; the products that follow must not meet 0 · NaN
        v, do = clean(v), clean(do)
    q, do = group_heads(q, k), group_heads(do, k)
    delta, lse = (group_heads(x.unsqueeze(-1), k) for x in (delta, lse))  # (B, Hkv, G, Sq, 1)
    B, Hkv, G, Sq, D = q.shape
    Sk = k.shape[2]
    dq = q.new_zeros(B * Hkv, G, Sq, D, dtype=work) if need_q else None
    dk = torch.zeros_like(k, memory_format=torch.contiguous_format) if need_k else None
    dv = torch.zeros_like(v, memory_format=torch.contiguous_format) if need_v else None
    scores, products = Scratch(q, work), Scratch(q, work)
    for j0, j1 in spans(Sk, block_k):
        kj, vj = keys(k, j0, j1, work), keys(v, j0, j1, work)
        dkj, dvj = torch.zeros_like(kj), torch.zeros_like(vj)  # stay in SRAM while the queries stream by
        for i0, i1 in spans(Sq, block_q):
            kind = tile_kind(i0, i1, j0, j1, Sq, Sk, causal)
            if kind == "skip":
                continue
            qi, doi = rows(q, i0, i1, work) * scale, rows(do, i0, i1, work)
            # P = exp(S − lse): the row is finished, so no running maximum is needed now
            p = scores.product(qi, kj.mT).sub_(rows(lse, i0, i1, work)).exp_()
            hidden = hidden_keys(i0, i1, j0, j1, Sq, Sk, p) if kind == "partial" else None
            if hidden is not None:
                p.unflatten(1, (G, -1)).masked_fill_(hidden, 0)
            z = dropout_weights(p, B, G, i0, i1, j0, j1, dropout_p, seed) if dropout_p > 0 else None
            if need_v:
                torch.baddbmm(dvj, (p if z is None else p * z).mT, doi, out=dvj)
            if not (need_q or need_k):
                continue
            dp = products.product(doi, vj.mT)
            if z is not None:
                dp.mul_(z)
            ds = dp.sub_(rows(delta, i0, i1, work)).mul_(p)
            if hidden is not None:  # a NaN in dO or lse of a row must not reach keys that the row does not see
                ds.unflatten(1, (G, -1)).masked_fill_(hidden, 0)
            if need_k:
                torch.baddbmm(dkj, ds.mT, qi if finite else clean(qi), out=dkj)  # qi carries the scale already
            if dq is not None:
                dq[:, :, i0:i1] += (ds @ (kj if finite else clean(kj))).unflatten(1, (G, -1))
        if dk is not None:
            dk[:, :, j0:j1] = dkj.unflatten(0, (B, Hkv))
        if dv is not None:
            dv[:, :, j0:j1] = dvj.unflatten(0, (B, Hkv))
    if dv is not None and not finite:
        dv = _mark_bad_do(dv, raw_do, Sq, Sk, causal)
    return None if dq is None else dq.mul_(scale).view(B, Hkv * G, Sq, D).to(q.dtype), dk, dv


class TiledAttention(torch.autograd.Function):
    """Saves q, k, v, o and lse: nothing of size Sq × Sk."""

    @staticmethod
    def forward(q, k, v, options):
        """(o, lse) by tiles."""
        with torch.autocast(q.device.type, enabled=False):  # products stay in the dtype the tiles were cast to
            return forward(q, k, v, **options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """What the backward needs; apart from `forward`, so that torch.func.grad works."""
        q, k, v, ctx.options = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, do, dlse):
        """dq, dk, dv by tiles, only those asked for."""
        q, k, v, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do  # only lse has a gradient
        compute = partial(backward, **ctx.options, needs=ctx.needs_input_grad[:3])
        with torch.autocast(q.device.type, enabled=False):
            return *Once.apply(compute, do, dlse, q, k, v, o, lse), None

    @staticmethod
    def jvp(ctx, *_):
        """Refuse."""
        raise RuntimeError("attention: impl='tiled' has no forward-mode derivative; for jvp use impl='naive'")

    @staticmethod
    def vmap(*_):
        """Refuse."""
        raise RuntimeError("attention: impl='tiled' does not run under vmap; batch along B, or use impl='naive'")


def attention(q: Tensor, k: Tensor, v: Tensor, **options) -> tuple[Tensor, Tensor]:
    """Differentiable tiled attention: (o, lse). Options as in `forward`; gradients flow from o and from lse."""
    return TiledAttention.apply(q, k, v, options)


def _mark_bad_do(dv: Tensor, do: Tensor, Sq: int, Sk: int, causal: bool) -> Tensor:
    """NaN in the dv of every key that a row with a bad dO sees."""
    last = last_bad(do).unflatten(1, (dv.shape[1], -1)).amax(2)  # (B, Hkv, 1, Dv)
    if not causal:
        return dv.masked_fill(last >= 0, torch.nan)
    first_row = torch.arange(Sk, device=dv.device)[:, None] - (Sk - Sq)  # the first row that sees key j
    return dv.masked_fill((last >= 0) & (last >= first_row), torch.nan)
