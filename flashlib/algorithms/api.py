"""The front door: one function, several implementations, and errors that say what came and what was expected."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from flashlib.algorithms import naive, reference, tiled, tiles
from flashlib.algorithms.arguments import autocast, check_options, check_tensor, check_together
from flashlib.algorithms.masks import visible
from flashlib.algorithms.once import Once
from flashlib.algorithms.philox import keep_mask


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
    impl : "auto" | "reference" | "naive" | "tiled" | "triton" | "sdpa"
        "reference" is the float64 oracle; "triton" runs our kernels, on a CPU in Triton's interpreter; "sdpa" is
        PyTorch's own kernel (no lse, its own dropout mask, and for causal with Sq ≠ Sk a mask of size Sq × Sk);
        "auto" is "triton" on a GPU that has tiles for it, else "tiled".

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
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
    q, k, v = autocast(q, k, v)
    check_together(q, k, v)
    check_options(causal, scale, dropout_p, seed, return_lse, impl)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if impl == "sdpa":
        return _sdpa(q, k, v, causal, scale, dropout_p)
    if seed is None:  # torch.manual_seed decides, and a checkpointed block draws the same seed again
        seed = int(torch.randint(2**63 - 1, (), device="cpu")) if dropout_p > 0 else 0
    options: dict[str, Any] = {"causal": bool(causal), "scale": scale, "dropout_p": float(dropout_p), "seed": int(seed)}
    o, lse = _RUN[_auto(q, v) if impl == "auto" else impl](q, k, v, **options)
    return (o, lse) if return_lse else o


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout_p: float) -> Tensor:
    Sq, Sk = q.shape[2], k.shape[2]
    options = {"scale": scale, "dropout_p": dropout_p, "enable_gqa": q.shape[1] != k.shape[1]}
    if causal and Sq != Sk:  # is_causal would align to the top left
        mask = torch.from_numpy(visible(Sq, Sk, causal)).to(q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), **options)


def _auto(q: Tensor, v: Tensor) -> str:
    """ "triton" on a GPU with tensor cores for which `tiles` has an entry, else "tiled"."""
    if q.device.type != "cuda" or q.dtype == torch.float64 or find_spec("triton") is None:
        return "tiled"
    capability = torch.cuda.get_device_capability(q.device)
    return "triton" if capability >= (8, 0) and tiles.has(capability, q, v) else "tiled"


def _triton(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    if find_spec("triton") is None:
        raise ValueError("attention: impl='triton' needs the package triton, got none installed; use impl='tiled'")
    if not torch.cuda.is_available():  # read by triton when it is first imported
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from flashlib.algorithms import triton_attention

    return triton_attention.attention(q, k, v, **options)


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
    return x.detach().to("cpu", torch.float64).resolve_neg().numpy()


_RUN: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": _reference,
    "naive": naive.attention,
    "tiled": tiled.attention,
    "triton": _triton,
}
