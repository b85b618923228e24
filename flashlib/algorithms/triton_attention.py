"""The Triton kernels behind PyTorch: launches, `torch.library` registration, autograd.

Registered as operators, forward and backward are one node each for `torch.compile`; what they save for the backward is
q, k, v, o and lse.

Known limits, where float32 is too short. Scores s in units of log2 (q · k · scale · log2 e) are compared as float32
numbers, whose spacing is 1 from 2²³ on: beyond, full tiles on a GPU, which compute s − m in one multiply-add, are right
as long as half the spacing of m fits the dtype of P (up to 2²⁷ in float16, 2³⁰ else); elsewhere each score is rounded
first. The backward reads lse, rounded twice: P is off by up to |lse| · 2⁻²³ of itself, and useless from 1e7 on. q · k
must stay below 3.4e38 before it is scaled. A dS that float16 rounds to 0 is lost: scale the loss. That is one below
3e-8 or, beside one beyond float16's range in the same row (for dk: of the same key), below 2⁻⁴⁰ of that. An o beyond
the dtype's range (dropout divides by 1 − p) is ∞, and the gradients of its row are NaN: delta is read from o.
"""

import math
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import guard_or_false

from flashlib.algorithms import philox
from flashlib.algorithms.once import NO_SECOND_DERIVATIVE
from flashlib.algorithms.tiles import Tile, choose
from flashlib.algorithms.triton_backward import delta_kernel, dkdv_kernel, dq_kernel
from flashlib.algorithms.triton_forward import forward_kernel

LOG2E = math.log2(math.e)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, dropout_p: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """o (B, Hq, Sq, Dv) and lse (B, Hq, Sq) float32, differentiable once; arguments as in `flashlib.attention`.

    Raises
    ------
    TypeError
        float64, which the kernels do not compute.
    ValueError
        D or Dv above 256, or tensors that are not on a GPU while Triton is not interpreting.
    """
    if q.dtype == torch.float64:
        raise TypeError(
            "attention: impl='triton' computes float16, bfloat16 and float32, got float64; use impl='tiled'"
        )
    if max(q.shape[-1], v.shape[-1]) > 256:
        raise ValueError(f"attention: impl='triton' takes D and Dv up to 256, got {q.shape[-1]} and {v.shape[-1]}")
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v)):
        raise RuntimeError("attention: impl='triton' has no forward-mode derivative; for jvp use impl='naive'")
    if q.device.type != "cuda" and not interpreting():
        raise ValueError(
            f"attention: impl='triton' needs a CUDA GPU, or TRITON_INTERPRET=1 before triton is first imported; "
            f"q is on {q.device}"
        )
    # Operators take signed 64-bit integers; the bits are the same. A seed that torch.compile has yet to draw is small.
    signed = seed - 2**64 if guard_or_false(seed >= 2**63) else seed
    if q.dtype == torch.bfloat16 and not multiplies_bfloat16():
        o, lse = _forward(q.float(), k.float(), v.float(), causal, scale, dropout_p, signed)
        return o.to(q.dtype), lse
    try:
        return _forward(q, k, v, causal, scale, dropout_p, signed)
    except RuntimeError as error:
        if "functorch" not in str(error):
            raise
        message = "attention: impl='triton' does not run under torch.func.grad; use torch.autograd.grad or impl='tiled'"
        raise RuntimeError(message) from None


def interpreting() -> bool:
    """Whether Triton runs kernels on the CPU: decided by TRITON_INTERPRET when the kernels were defined."""
    return not isinstance(forward_kernel, triton.runtime.JITFunction)


def multiplies_bfloat16() -> bool:
    """False in Triton's own interpreter, which takes bfloat16 bit patterns for integers: compute in float32 there."""
    return not interpreting() or bool(getattr(triton.runtime.interpreter, "flashlib_repaired", 0))


@torch.library.custom_op("flashlib::attention_forward", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, dropout_p: float, seed: int
) -> tuple[Tensor, Tensor]:
    B, H, Sq, _ = q.shape
    o, lse = q.new_empty(B, H, Sq, v.shape[-1]), q.new_empty(B, H, Sq, dtype=torch.float32)
    if o.numel():
        tile = choose("forward", q, v, dropout_p > 0)
        with on_device(q):
            forward_kernel[(triton.cdiv(Sq, tile.block_m) * H * B,)](
                q, k, v, o, lse, q.stride(), k.stride(), v.stride(), o.stride(),
                *_sizes(q, k), *_numbers(scale, dropout_p, seed), **_constants(q, v, causal, scale, dropout_p, tile),
            )  # fmt: skip
    return o, lse


@_forward.register_fake
def _(q, k, v, causal, scale, dropout_p, seed):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("flashlib::attention_backward", mutates_args=())
def _backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    causal: bool, scale: float, dropout_p: float, seed: int, need_q: bool, need_kv: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    (B, H, Sq, _), (_, Hkv, Sk, _) = q.shape, k.shape
    dq = torch.zeros_like(q, memory_format=torch.contiguous_format) if need_q else q.new_empty(0)
    dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) if need_kv else x.new_empty(0) for x in (k, v))
    if not (B * H * Sq * Sk):
        return dq, dk, dv
    DV = v.shape[-1]
    numbers = *_sizes(q, k), scale, *_numbers(scale, dropout_p, seed)
    with on_device(q):
        delta = torch.empty_like(lse)
        delta_kernel[(triton.cdiv(Sq, 64) * H * B,)](
            o, do, delta if dlse is None else dlse, delta, o.stride(), do.stride(),
            delta.stride() if dlse is None else dlse.stride(), H, Sq,
            DV=DV, BLOCK_DV=_width(DV), BLOCK_M=64, HAS_DLSE=dlse is not None,
        )  # fmt: skip
        if need_kv:
            tile = choose("dkdv", q, v, dropout_p > 0)
            dkdv_kernel[(triton.cdiv(Sk, tile.block_n) * Hkv * B,)](
                q, k, v, do, lse, delta, dk, dv, q.stride(), k.stride(), v.stride(), do.stride(), dk.stride(),
                dv.stride(), *numbers, **_constants(q, v, causal, scale, dropout_p, tile),
            )  # fmt: skip
        if need_q:
            tile = choose("dq", q, v, dropout_p > 0)
            dq_kernel[(triton.cdiv(Sq, tile.block_m) * H * B,)](
                q, k, v, do, lse, delta, dq, q.stride(), k.stride(), v.stride(), do.stride(), dq.stride(),
                *numbers, **_constants(q, v, causal, scale, dropout_p, tile),
            )  # fmt: skip
    return dq, dk, dv


@_backward.register_fake
def _(do, dlse, q, k, v, o, lse, causal, scale, dropout_p, seed, need_q, need_kv):
    dq = torch.empty_like(q, memory_format=torch.contiguous_format) if need_q else q.new_empty(0)
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) if need_kv else x.new_empty(0) for x in (k, v))
    return dq, dk, dv


def _save(ctx, inputs, output):
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx, do, dlse):
    need_q, need_k, need_v = ctx.needs_input_grad[:3]
    q, k, v, o, lse = ctx.saved_tensors
    dq, dk, dv = _backward(do, dlse, q, k, v, o, lse, *ctx.options, need_q, need_k or need_v)
    return dq if need_q else None, dk if need_k else None, dv if need_v else None, None, None, None, None


def _refuse(ctx, *_):
    raise RuntimeError(NO_SECOND_DERIVATIVE)


torch.library.register_autograd("flashlib::attention_forward", _gradients, setup_context=_save)
torch.library.register_autograd("flashlib::attention_backward", _refuse)


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    """H, GROUP, Sq, Sk."""
    return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2]


def _numbers(scale: float, dropout_p: float, seed: int) -> tuple[float, int, int, float]:
    """scale_log2, seed, threshold, inverse_keep."""
    return abs(scale) * LOG2E, seed, philox.threshold(dropout_p), 1 / (1 - dropout_p)


def _constants(q: Tensor, v: Tensor, causal: bool, scale: float, dropout_p: float, tile: Tile) -> dict[str, Any]:
    D, DV = q.shape[-1], v.shape[-1]
    return {
        "D": D, "DV": DV, "BLOCK_D": _width(D), "BLOCK_DV": _width(DV),
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
        "CAUSAL": causal, "DROPOUT": dropout_p > 0, "NEGATE": scale < 0,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip


def _width(D: int) -> int:
    """The padded width of a tile: a power of two, and at least the 16 that tensor cores take."""
    return max(16, triton.next_power_of_2(D))


def on_device(q: Tensor) -> Any:
    """Kernels start on the current device, so make q's device current."""
    return torch.cuda.device(q.device) if q.device.type == "cuda" else nullcontext()
