"""Copies of the memory that a launch may change, so that it can be run a second time from the same start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def tensors_in(args: Sequence[Any]) -> list[Any]:
    """The tensors among a launch's arguments, tuples and descriptors opened, one a storage."""
    out: dict[int, Any] = {}
    for arg in args:
        if isinstance(arg, tuple):
            out |= {t.untyped_storage().data_ptr(): t for t in tensors_in(arg)}
            continue
        tensor = arg if hasattr(arg, "untyped_storage") else getattr(arg, "base", None)
        if tensor is not None and hasattr(tensor, "untyped_storage"):
            out[tensor.untyped_storage().data_ptr()] = tensor
    return list(out.values())


def contents(tensors: list[Any]) -> list[np.ndarray]:
    """The bytes of each tensor's storage, copied."""
    return [_flat(t).cpu().numpy().copy() for t in tensors]


def restore(tensors: list[Any], saved: list[np.ndarray]) -> None:
    """Put the bytes back."""
    import torch

    for tensor, data in zip(tensors, saved, strict=True):
        _flat(tensor).copy_(torch.from_numpy(data))


def _flat(tensor: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
