"""The front door's arguments: what may come in, and errors of one line that say what came and what was expected."""

import math

import numpy as np
import torch
from torch import Tensor

IMPLEMENTATIONS = ("reference", "naive", "tiled", "triton", "sdpa")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the autocast dtype of their device, where autocast is on."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    castable = (torch.float16, torch.bfloat16, torch.float32)
    return tuple(x.to(dtype) if x.dtype in castable else x for x in tensors)


def check_tensor(name: str, x: object, who: str = "attention") -> None:
    """Refuse what is not a dense tensor of 4 dimensions."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{who}: {name} must be a torch.Tensor, got {_kind(x)}")
    if x.is_nested or x.layout != torch.strided:
        layout = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise ValueError(f"{who}: {name} must be a dense tensor, got a {layout} one")
    if x.dim() != 4:
        raise ValueError(f"{who}: {name} must have 4 dimensions (B, H, S, D), got shape {tuple(x.shape)}")


def check_together(q: Tensor, k: Tensor, v: Tensor, who: str = "attention") -> None:
    """Refuse dtypes, devices and sizes that do not belong together."""
    (B, Hq, _, D), (Bk, Hkv, Sk, Dk), (Bv, Hv, Sv, Dv) = q.shape, k.shape, v.shape
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"{who}: q, k, v must share one dtype, got {_dtypes(q, k, v)}")
    if q.dtype not in DTYPES:
        raise TypeError(f"{who}: dtype must be float16, bfloat16, float32 or float64, got {_dtypes(q, k, v)}")
    if not q.device == k.device == v.device:
        devices = f"q on {q.device}, k on {k.device}, v on {v.device}"
        raise ValueError(f"{who}: q, k, v must be on one device, got {devices}")
    if q.device.type == "meta":
        raise ValueError(f"{who}: q, k, v must hold numbers, got tensors on the meta device")
    if not B == Bk == Bv:
        raise ValueError(f"{who}: batch sizes differ: {B}, {Bk}, {Bv} in {_shapes(q, k, v)}")
    if D != Dk:
        raise ValueError(f"{who}: q and k must have the same last dimension D, got {D} and {Dk} in {_shapes(q, k, v)}")
    if Hkv != Hv or Sk != Sv:
        got = f"{(Hkv, Sk)} and {(Hv, Sv)} in {_shapes(q, k, v)}"
        raise ValueError(f"{who}: k and v must agree in heads and keys, got {got}")
    if D == 0 or Dv == 0:
        raise ValueError(f"{who}: D and Dv must be at least 1, got {D} and {Dv} in {_shapes(q, k, v)}")
    if (Hkv == 0) != (Hq == 0) or (Hkv and Hq % Hkv):
        raise ValueError(f"{who}: Hq must be a multiple of Hkv, got Hq={Hq}, Hkv={Hkv} in {_shapes(q, k, v)}")


def _dtypes(*qkv: Tensor) -> str:
    return ", ".join(f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in zip("qkv", qkv, strict=True))


def _shapes(*qkv: Tensor) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkv", qkv, strict=True))


def check_options(causal: object, scale: object, dropout_p: object, seed: object, return_lse: object, impl: object):
    """Refuse options out of range."""
    for name, flag in (("causal", causal), ("return_lse", return_lse)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"attention: {name} must be True or False, got {_kind(flag)}")
    if not isinstance(impl, str) or impl not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"attention: impl must be one of {', '.join(('auto', *IMPLEMENTATIONS))}, got {_said(impl)}")
    if scale is not None and not math.isfinite(_number(scale)):
        raise ValueError(f"attention: scale must be a finite number or None (for 1/√D), got {_said(scale)}")
    if not 0 <= _number(dropout_p) < 1:
        raise ValueError(f"attention: dropout_p must be in [0, 1), got {_said(dropout_p)}")
    if seed is not None and not (
        isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**64
    ):
        raise ValueError(f"attention: seed must be an integer in [0, 2**64) or None, got {_said(seed)}")
    if impl == "sdpa" and return_lse:
        raise ValueError("attention: impl='sdpa' returns no lse; expected return_lse=False, or impl='tiled'")
    if impl == "sdpa" and seed is not None and _number(dropout_p) > 0:
        raise ValueError("attention: impl='sdpa' draws its own dropout mask; expected seed=None, or impl='tiled'")


def _number(x: object) -> float:
    """x as a float if it is one real number, of Python, NumPy or torch; NaN for anything else."""
    if isinstance(x, np.ndarray | Tensor) and x.ndim == 0 and "complex" not in str(x.dtype):
        x = x.item()
    try:
        return float(x) if isinstance(x, int | float | np.integer | np.floating) else math.nan
    except OverflowError:
        return math.inf


def _kind(x: object) -> str:
    """What x is, in one line: its type, and its shape if it has one."""
    shape = f" of shape {tuple(x.shape)}" if isinstance(x, np.ndarray | Tensor) else ""
    return f"{type(x).__module__}.{type(x).__name__}{shape}"


def _said(x: object) -> str:
    """x itself where that is short, else what it is."""
    return repr(x) if isinstance(x, str | int | float | None) and len(repr(x)) < 40 else _kind(x)


def check_decode(q: object, k: object, v: object, lengths: object, scale: object, splits: object, impl: object) -> None:
    """Refuse what `decode` cannot use."""
    for name, x in (("q", q), ("k_cache", k), ("v_cache", v)):
        check_tensor(name, x, "decode")
    assert isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    check_together(q, k, v, "decode")
    if scale is not None and not math.isfinite(_number(scale)):
        raise ValueError(f"decode: scale must be a finite number or None (for 1/√D), got {_said(scale)}")
    if splits is not None and not (
        isinstance(splits, int | np.integer) and not isinstance(splits, bool) and splits > 0
    ):
        raise ValueError(f"decode: splits must be a positive integer or None, got {_said(splits)}")
    if impl not in ("auto", "torch", "triton"):
        raise ValueError(f"decode: impl must be one of auto, torch, triton, got {_said(impl)}")
    if lengths is None:
        return
    B, S = k.shape[0], k.shape[2]
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"decode: lengths must be a tensor of integers, got {_kind(lengths)}")
    if tuple(lengths.shape) != (B,):
        raise ValueError(f"decode: lengths must have shape (B,) = ({B},), got {tuple(lengths.shape)}")
    if B and not (0 <= int(lengths.min()) and int(lengths.max()) <= S):
        raise ValueError(
            f"decode: lengths must lie in [0, {S}], the cache's size, got {int(lengths.min())} to {int(lengths.max())}"
        )
