"""The front door: one function, several implementations, and errors that say what came and what was expected."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from flashlib.algorithms import naive, reference, tiled
from flashlib.algorithms.masks import visible
from flashlib.algorithms.once import Once
from flashlib.algorithms.philox import keep_mask

IMPLEMENTATIONS = ("reference", "naive", "tiled", "sdpa")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    dropout_p: float = ...,
    seed: int | None = ...,
    return_lse: Literal[False] = ...,
    impl: str = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    dropout_p: float = ...,
    seed: int | None = ...,
    return_lse: Literal[True],
    impl: str = ...,
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    return_lse: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention, softmax(scale · QKᵀ) V.

    Parameters
    ----------
    q : (B, Hq, Sq, D)
    k : (B, Hkv, Sk, D)
    v : (B, Hkv, Sk, Dv)
        One floating dtype, one device, any strides, any sizes (zero included). Query head h reads KV head
        h // (Hq / Hkv). Under autocast they are cast to the autocast dtype.
    causal : bool
        Aligned to the bottom right: row i sees keys j ≤ i + (Sk − Sq). Rows that see no key give 0.
    scale : float, optional
        Default 1/√D; 0 and negative values are allowed.
    dropout_p : float in [0, 1)
        Probability of dropping a weight; those kept are divided by 1 − dropout_p.
    seed : int in [0, 2⁶⁴), optional
        The dropout mask depends on (seed, b, h, row, col) only. Default: drawn from torch's generator.
    return_lse : bool
        Also return the natural-log log-sum-exp of the scaled scores, which may have a gradient of its own.
    impl : "auto" | "reference" | "naive" | "tiled" | "sdpa"
        "reference" is the float64 oracle; "sdpa" is PyTorch's own kernel (no lse, its own dropout mask);
        "auto" is "tiled".

    Returns
    -------
    o : (B, Hq, Sq, Dv) in q's dtype
    lse : (B, Hq, Sq) float32, float64 for float64 inputs; −∞ for rows that see no key. Only with ``return_lse``.

    Raises
    ------
    TypeError
        Not tensors, mixed or unsupported dtypes.
    ValueError
        Wrong rank, sizes that do not fit, devices that differ, an option out of range.
    """
    q, k, v = _autocast(q, k, v)
    _check_tensors(q, k, v)
    _check_options(scale, dropout_p, seed, return_lse, impl)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if impl == "sdpa":
        return _sdpa(q, k, v, causal, scale, dropout_p)
    if seed is None:  # torch.manual_seed decides, and a checkpointed block draws the same seed again
        seed = int(torch.randint(2**63 - 1, ())) if dropout_p > 0 else 0
    options: dict[str, Any] = {"causal": bool(causal), "scale": scale, "dropout_p": float(dropout_p), "seed": int(seed)}
    o, lse = _RUN[impl](q, k, v, **options)
    return (o, lse) if return_lse else o


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    first = tensors[0]
    if not isinstance(first, Tensor) or not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    castable = (torch.float16, torch.bfloat16, torch.float32)
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.dtype in castable else x for x in tensors)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    named = {"q": q, "k": k, "v": v}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"attention: {name} must be a torch.Tensor, got {type(x).__module__}.{type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"attention: {name} must have 4 dimensions (B, H, S, D), got shape {tuple(x.shape)}")
    dtypes = ", ".join(f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in named.items())
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: q, k, v must share one dtype, got {dtypes}")
    if q.dtype not in DTYPES:
        raise TypeError(f"attention: dtype must be float16, bfloat16, float32 or float64, got {dtypes}")
    if not q.device == k.device == v.device:
        devices = ", ".join(f"{name} on {x.device}" for name, x in named.items())
        raise ValueError(f"attention: q, k, v must be on one device, got {devices}")
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    (B, Hq, _, D), (Bk, Hkv, Sk, Dk), (Bv, Hv, Sv, Dv) = q.shape, k.shape, v.shape
    if not B == Bk == Bv:
        raise ValueError(f"attention: batch sizes differ: {B}, {Bk}, {Bv} in {shapes}")
    if D != Dk:
        raise ValueError(f"attention: q and k must have the same last dimension D, got {D} and {Dk} in {shapes}")
    if (Hkv, Sk) != (Hv, Sv):
        raise ValueError(f"attention: k and v must agree in heads and keys, got {(Hkv, Sk)} and {(Hv, Sv)} in {shapes}")
    if D == 0 or Dv == 0:
        raise ValueError(f"attention: D and Dv must be at least 1, got {D} and {Dv} in {shapes}")
    if (Hkv == 0) != (Hq == 0) or (Hkv and Hq % Hkv):
        raise ValueError(f"attention: Hq must be a multiple of Hkv, got Hq={Hq}, Hkv={Hkv} in {shapes}")


def _check_options(scale: float | None, dropout_p: float, seed: int | None, return_lse: bool, impl: str) -> None:
    if impl not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"attention: impl must be one of {', '.join(('auto', *IMPLEMENTATIONS))}, got {impl!r}")
    if scale is not None and not (_is_number(scale) and math.isfinite(scale)):
        raise ValueError(f"attention: scale must be a finite number or None (for 1/√D), got {scale!r}")
    if not (_is_number(dropout_p) and 0 <= dropout_p < 1):
        raise ValueError(f"attention: dropout_p must be in [0, 1), got {dropout_p!r}")
    if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= int(seed) < 2**64):
        raise ValueError(f"attention: seed must be an integer in [0, 2**64) or None, got {seed!r}")
    if impl == "sdpa" and return_lse:
        raise ValueError("attention: impl='sdpa' returns no lse; expected return_lse=False, or impl='tiled'")
    if impl == "sdpa" and dropout_p > 0 and seed is not None:
        raise ValueError("attention: impl='sdpa' draws its own dropout mask; expected seed=None, or impl='tiled'")


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) or (hasattr(x, "__float__") and not isinstance(x, Tensor | str))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout_p: float) -> Tensor:
    Sq, Sk = q.shape[2], k.shape[2]
    options = {"scale": scale, "dropout_p": dropout_p, "enable_gqa": q.shape[1] != k.shape[1]}
    if causal and Sq != Sk:  # is_causal would align to the top left
        mask = torch.from_numpy(visible(Sq, Sk, causal)).to(q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), **options)


def _reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, dropout_p: float, seed: int):
    B, Hq, Sq, _ = q.shape
    keep = keep_mask(seed, dropout_p, B, Hq, Sq, k.shape[2]) if dropout_p > 0 else None
    return _Reference.apply(q, k, v, {"causal": causal, "scale": scale, "dropout_p": dropout_p, "keep": keep})


class _Reference(torch.autograd.Function):
    """The NumPy oracle behind torch's front door, on the CPU."""

    @staticmethod
    def forward(ctx, q, k, v, options):
        ctx.save_for_backward(q, k, v)
        ctx.options = options
        ctx.set_materialize_grads(False)
        out = reference.attention(*map(_numpy, (q, k, v)), **options)
        lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        return torch.from_numpy(out.o).to(q.device, q.dtype), torch.from_numpy(out.lse).to(q.device, lse_dtype)

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v = ctx.saved_tensors
        do = q.new_zeros(*q.shape[:3], v.shape[-1]) if do is None else do
        return *Once.apply(partial(_reference_backward, ctx.options), do, dlse, q, k, v), None


def _reference_backward(options, do, dlse, q, k, v):
    dlse = None if dlse is None else _numpy(dlse)
    grads = reference.gradients(*map(_numpy, (q, k, v, do)), dlse=dlse, **options)[:3]
    return tuple(torch.from_numpy(g).to(x.device, x.dtype) for g, x in zip(grads, (q, k, v), strict=True))


def _numpy(x: Tensor):
    return x.detach().to("cpu", torch.float64).numpy()


_RUN: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": _reference,
    "naive": naive.attention,
    "tiled": tiled.attention,
    "auto": tiled.attention,
}
