"""Kernels of chapter 08's known mistakes. Each is right but for what ``BUG`` names. Imports triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

BLOCK = 16


@triton.jit
def load_tile(X, rows, cols, n_rows, n_cols):
    """X[rows, cols] of a contiguous (n_rows, n_cols) matrix; what lies past an edge is 0."""
    at = rows[:, None].to(tl.int64) * n_cols + cols[None, :]
    return tl.load(X + at, mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols), other=0.0)


@triton.jit
def store_tile(X, rows, cols, n_rows, n_cols, tile):
    """Write the tile to X[rows, cols], rounded to X's dtype; nothing past an edge."""
    at = rows[:, None].to(tl.int64) * n_cols + cols[None, :]
    mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    tl.store(X + at, tile.to(X.dtype.element_ty), mask=mask)


# -- 08.1 ----------------------------------------------------------------------------------------------------------
@triton.jit
def delta_kernel(
    O, DO, DLSE, DELTA, Sq, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BUG: tl.constexpr
):  # fmt: skip
    """delta of one tile of rows of one head."""
    bh = tl.program_id(1)
    rows, d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    if BUG == "one tile for all":
        rows = tl.arange(0, BLOCK_M)
    seen, wide = rows[:, None] < Sq, d[None, :] < D
    if BUG == "rows not masked":
        seen = rows[:, None] >= 0
    if BUG == "features not masked":
        wide = d[None, :] >= 0
    at = bh * Sq * D + rows[:, None] * D + d[None, :]
    if BUG == "a head's offset without D":
        at = bh * Sq + rows[:, None] * D + d[None, :]
    if BUG == "inputs of the first head":
        at = rows[:, None] * D + d[None, :]
    do_at = at
    if BUG == "dO of the first head":
        do_at = rows[:, None] * D + d[None, :]
    if BUG == "no other":
        o, do = tl.load(O + at, mask=seen & wide), tl.load(DO + at, mask=seen & wide)
    else:
        o, do = tl.load(O + at, mask=seen & wide, other=0.0), tl.load(DO + do_at, mask=seen & wide, other=0.0)
    if BUG != "16 bits" and BUG != "multiplied in 16 bits":
        o, do = o.to(tl.float32), do.to(tl.float32)
    inside = rows < Sq
    dlse_at = DLSE + bh * Sq + rows
    if BUG == "dlse of the first head":
        dlse_at = DLSE + rows
    dlse = tl.load(dlse_at, mask=inside, other=0.0)
    products = o * do
    if BUG == "multiplied in 16 bits":
        products = products.to(tl.float32)
    if BUG == "dlse inside the sum":
        products = products - dlse[:, None]
    delta = tl.sum(products, 0 if BUG == "down the rows" else 1)
    if BUG == "mean":
        delta = delta / D
    if BUG == "dlse added":
        delta = delta + dlse
    elif BUG != "dlse left out" and BUG != "dlse inside the sum":
        delta = delta - dlse
    if BUG == "store not masked":
        inside = rows >= 0
    if BUG == "heads stored over each other":
        bh = bh * 0
    tl.store(DELTA + bh * Sq + rows, delta, mask=inside)


def delta(o, do, dlse, *, bug=""):
    """rowsum(dO ∘ O) − dlse: (B, H, Sq) float32."""
    (B, H, Sq, D), out = o.shape, torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    grid = (triton.cdiv(Sq, BLOCK), B * H)
    delta_kernel[grid](o, do, dlse, out, Sq, D=D, BLOCK_D=_lanes(D), BLOCK_M=BLOCK, BUG=bug)
    return out


def _lanes(D: int) -> int:
    return max(16, triton.next_power_of_2(D))


def _walks(bug: str) -> dict[str, Any]:
    """A mistake, and whether it goes with a walk over every tile."""
    return {"BUG": bug, "EVERY": bug == "not causal" or bug.endswith("every tile visited")}


# -- 08.2 ----------------------------------------------------------------------------------------------------------
@triton.jit
def dkdv_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV, Sq, Sk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BUG: tl.constexpr,
    EVERY: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one head."""
    tile, bh = tl.program_id(0), tl.program_id(1)
    Q, DO, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V = K + bh * Sk * D, V + bh * Sk * D
    if BUG != "one head for all":
        DK, DV = DK + bh * Sk * D, DV + bh * Sk * D
    cols, d = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if BUG == "sum kept in HBM":
        dk = load_tile(DK, cols, d, Sk, D).to(tl.float32)
    shift = Sk - Sq
    if BUG == "top left":
        shift = 0
    if BUG == "shift turned round":
        shift = Sq - Sk
    first, stop = 0, Sq
    if CAUSAL and not EVERY:
        first = tl.maximum(tile * BLOCK_N - shift, 0) // BLOCK_M * BLOCK_M
        if BUG == "begins a tile late":
            first = tl.cdiv(tl.maximum(tile * BLOCK_N - shift, 0), BLOCK_M) * BLOCK_M
        if BUG == "begins without the shift":
            first = tile * BLOCK_N // BLOCK_M * BLOCK_M
        if BUG == "starts where all is seen":
            first = tl.cdiv(tl.maximum(tile * BLOCK_N + BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M
    if BUG == "last tile dropped":
        stop = Sq // BLOCK_M * BLOCK_M
    for i0 in tl.range(first, stop, BLOCK_M):
        rows = i0 + tl.arange(0, BLOCK_M)
        q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
        if BUG == "own tile loaded in every turn":
            k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
        if BUG == "no other":
            lse = tl.load(LSE + rows, mask=rows < Sq)
        elif BUG == "lse not masked":
            lse = tl.load(LSE + rows)
        else:
            lse = tl.load(LSE + rows, mask=rows < Sq, other=float("inf"))
        delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
        p, ds = _p_ds(q, k, v, do, lse, delta, rows, cols, Sk, shift, scale, CAUSAL, BUG)
        if BUG == "float32 times the inputs":
            dv += tl.dot(tl.trans(p), do, input_precision="ieee")
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        else:
            p, ds = p.to(do.dtype), ds.to(q.dtype)
            pt = p if BUG == "P not turned" else tl.trans(p)
            dst = ds if BUG == "dS not turned" else tl.trans(ds)
            share_v, share_k = tl.dot(pt, do, input_precision="ieee"), tl.dot(dst, q, input_precision="ieee")
            keep_k, keep_v = dk, dv
            if BUG == "overwritten" or BUG == "dK overwritten":
                keep_k = dk * 0.0
            if BUG == "overwritten" or BUG == "dV overwritten":
                keep_v = dv * 0.0
            dk, dv = keep_k + share_k, keep_v + share_v
            if BUG == "sums in 16 bits":
                dk, dv = dk.to(k.dtype).to(tl.float32), dv.to(k.dtype).to(tl.float32)
    if BUG == "scale twice":
        dk = dk * scale
    if BUG != "no scale":
        dk = dk * scale
    if BUG == "scale in dV":
        dv = dv * scale
    at = cols[:, None] * D + d[None, :]
    if BUG == "store not masked":
        tl.store(DK + at, dk.to(k.dtype), mask=d[None, :] < D)
        tl.store(DV + at, dv.to(k.dtype), mask=d[None, :] < D)
    elif BUG == "features past D stored":
        tl.store(DK + at, dk.to(k.dtype), mask=cols[:, None] < Sk)
        tl.store(DV + at, dv.to(k.dtype), mask=cols[:, None] < Sk)
    else:
        store_tile(DK, cols, d, Sk, D, dk)
        store_tile(DV, cols, d, Sk, D, dv)


@triton.jit
def _p_ds(q, k, v, do, lse, delta, rows, cols, Sk, shift, scale, CAUSAL: tl.constexpr, BUG: tl.constexpr):
    """A tile of P, made again, and of dS."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if BUG != "P without scale":
        s = s * scale
    if BUG == "exp(s) / exp(lse)":
        p = tl.exp(s) / tl.exp(lse)[:, None]
    elif BUG == "base 2":
        p = tl.exp2(s - lse[:, None])
    elif BUG == "NaN of blind rows, by scores of −∞":
        i_last = rows[:, None] + shift
        seen = (cols[None, :] < Sk) & (cols[None, :] <= tl.where(CAUSAL, i_last, Sk))
        p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])
    elif BUG == "lse laid along the row":
        p = tl.exp(s - lse[None, :])
    else:
        p = tl.exp(s - lse[:, None])
    see = (cols[None, :] < Sk) & (rows[:, None] >= 0)
    if BUG == "keys past the end":
        see = (cols[None, :] >= 0) & (rows[:, None] >= 0)
    if CAUSAL and BUG != "not causal":
        if BUG == "diagonal hidden":
            see = see & (cols[None, :] < rows[:, None] + shift)
        elif BUG == "mask upside down":
            see = see & (cols[None, :] >= rows[:, None] + shift)
        else:
            see = see & (cols[None, :] <= rows[:, None] + shift)
    if BUG == "NaN of blind rows, by scores of −∞":
        p = p + 0.0
    elif BUG == "dS alone masked" or BUG == "tiles skipped, nothing masked":
        p = tl.where(cols[None, :] < Sk, p, 0.0)
    elif BUG == "NaN of blind rows" or BUG == "NaN of blind rows, every tile visited":
        p = p * see.to(tl.float32)
    else:
        p = tl.where(see, p, 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    if BUG == "delta laid along the row":
        dp = dp - delta[None, :]
    elif BUG != "delta left out":
        dp = dp - delta[:, None]
    ds = p * dp
    if BUG == "dS alone masked":
        ds = tl.where(see, ds, 0.0)
    return p, ds


def dkdv(q, k, v, do, lse, delta, scale, causal=False, *, bug=""):
    """dk, dv (B, H, Sk, D)."""
    (B, H, Sq, D), Sk = q.shape, k.shape[2]
    _contiguous(q=q, k=k, v=v, do=do, lse=lse, delta=delta)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    dkdv_kernel[(triton.cdiv(Sk, BLOCK), B * H)](
        q, k, v, do, lse, delta, dk, dv, Sq, Sk, scale, CAUSAL=causal, D=D, BLOCK_D=_lanes(D), BLOCK_M=BLOCK,
        BLOCK_N=BLOCK, **_walks(bug),
    )  # fmt: skip
    return dk, dv


# -- 08.3 ----------------------------------------------------------------------------------------------------------
@triton.jit
def dq_kernel(
    Q, K, V, DO, LSE, DELTA, DQ, Sq, Sk, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BUG: tl.constexpr,
    EVERY: tl.constexpr,
):  # fmt: skip
    """dq of one tile of rows of one head."""
    tile, bh = tl.program_id(0), tl.program_id(1)
    Q, DO, LSE, DELTA = Q + bh * Sq * D, DO + bh * Sq * D, LSE + bh * Sq, DELTA + bh * Sq
    K, V = K + bh * Sk * D, V + bh * Sk * D
    if BUG != "one head for all":
        DQ += bh * Sq * D
    rows, d = tile * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
    lse = tl.load(LSE + rows, mask=rows < Sq, other=float("inf"))
    delta = tl.load(DELTA + rows, mask=rows < Sq, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if BUG == "sum kept in HBM":
        dq = load_tile(DQ, rows, d, Sq, D).to(tl.float32)
    shift = Sk - Sq
    if BUG == "top left":
        shift = 0
    if BUG == "shift turned round":
        shift = Sq - Sk
    stop = Sk
    if CAUSAL and not EVERY:
        last = tl.minimum(tile * BLOCK_M + BLOCK_M, Sq)
        if BUG == "stops at the first row's keys":
            last = tile * BLOCK_M + 1
        if BUG == "stops without the shift":
            stop = tl.minimum(last, Sk)
        else:
            stop = tl.minimum(tl.maximum(last + shift, 0), Sk)
        if BUG == "stops one key early":
            stop = tl.maximum(stop - 1, 0)
    if BUG == "last tile dropped":
        stop = Sk // BLOCK_N * BLOCK_N
    for j0 in tl.range(0, stop, BLOCK_N):
        cols = j0 + tl.arange(0, BLOCK_N)
        k, v = load_tile(K, cols, d, Sk, D), load_tile(V, cols, d, Sk, D)
        if BUG == "own tile loaded in every turn":
            q, do = load_tile(Q, rows, d, Sq, D), load_tile(DO, rows, d, Sq, D)
        _, ds = _p_ds(q, k, v, do, lse, delta, rows, cols, Sk, shift, scale, CAUSAL, BUG)
        if BUG == "float32 times the inputs":
            share = tl.dot(ds, k, input_precision="ieee")
        elif BUG == "dS turned":
            share = tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision="ieee")
        elif BUG == "V for K":
            share = tl.dot(ds.to(k.dtype), v, input_precision="ieee")
        else:
            share = tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        dq = share if BUG == "overwritten" else dq + share
        if BUG == "sums in 16 bits":
            dq = dq.to(q.dtype).to(tl.float32)
        if BUG == "scale in every turn":
            dq = dq * scale
    if BUG == "scale twice":
        dq = dq * scale
    if BUG != "no scale" and BUG != "scale in every turn":
        dq = dq * scale
    at = rows[:, None] * D + d[None, :]
    if BUG == "store not masked":
        tl.store(DQ + at, dq.to(q.dtype), mask=d[None, :] < D)
    elif BUG == "features past D stored":
        tl.store(DQ + at, dq.to(q.dtype), mask=rows[:, None] < Sq)
    else:
        store_tile(DQ, rows, d, Sq, D, dq)


def dq(q, k, v, do, lse, delta, scale, causal=False, *, bug=""):
    """dq (B, H, Sq, D)."""
    (B, H, Sq, D), Sk = q.shape, k.shape[2]
    _contiguous(q=q, k=k, v=v, do=do, lse=lse, delta=delta)
    out = torch.empty_like(q)
    dq_kernel[(triton.cdiv(Sq, BLOCK), B * H)](
        q, k, v, do, lse, delta, out, Sq, Sk, scale, CAUSAL=causal, D=D, BLOCK_D=_lanes(D), BLOCK_M=BLOCK,
        BLOCK_N=BLOCK, **_walks(bug),
    )  # fmt: skip
    return out


def _contiguous(**tensors: Any) -> None:
    for name, x in tensors.items():
        if not x.is_contiguous():
            raise ValueError(f"this kernel needs a contiguous {name}, got one of strides {tuple(x.stride())}")


# -- 08.4 ----------------------------------------------------------------------------------------------------------
class Kernels(NamedTuple):
    """What flash is handed: forward and the three launchers of the backward."""

    forward: Callable[..., Any]
    delta: Callable[..., Any]
    dkdv: Callable[..., Any]
    dq: Callable[..., Any]


def forward(q, k, v, scale, causal):
    """o, lse, plainly: it is the backward that is wired here."""
    s = scale * q @ k.mT
    if causal:
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(k.shape[2] - q.shape[2]), -torch.inf)
    m = s.amax(-1, keepdim=True)
    m = torch.where(torch.isneginf(m), 0.0, m)
    e = torch.exp(s - m)
    l = e.sum(-1, keepdim=True)
    return e @ v / torch.where(l == 0, 1.0, l), (m + torch.log(l))[..., 0]


def delta_of_contiguous(o, do, dlse):
    """`delta`, which refuses what is not contiguous."""
    _contiguous(o=o, do=do, dlse=dlse)
    return delta(o, do, dlse)


KERNELS = Kernels(forward, delta_of_contiguous, dkdv, dq)
