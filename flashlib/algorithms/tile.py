"""One tile in PyTorch: cut out of tensors of any strides, for all batches and heads at once, grouped heads included."""

import torch
from torch import Tensor

from flashlib.algorithms import philox


def work_dtype(x: Tensor) -> torch.dtype:
    """What tiles are computed in: float64 for float64 inputs, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def group_heads(x: Tensor, k: Tensor) -> Tensor:
    """(B, Hq, S, D) → (B, Hkv, G, S, D): query head h = hkv·G + g reads KV head h // G."""
    return x.unflatten(1, (k.shape[1], x.shape[1] // k.shape[1] if k.shape[1] else 1))


def rows(x: Tensor, i0: int, i1: int, dtype: torch.dtype) -> Tensor:
    """Rows i0:i1 of every query head, those of one KV head below one another: (B·Hkv, G·Br, D)."""
    return x[:, :, :, i0:i1].to(dtype).flatten(2, 3).flatten(0, 1)


def keys(x: Tensor, j0: int, j1: int, dtype: torch.dtype) -> Tensor:
    """Keys or values j0:j1 of every KV head: (B·Hkv, Bc, D)."""
    return x[:, :, j0:j1].to(dtype).flatten(0, 1)


class Scratch:
    """Room for one tile, used again for every tile, as SRAM is: new memory for each would cost page faults."""

    def __init__(self, like: Tensor, dtype: torch.dtype):
        self._room = like.new_empty(0, dtype=dtype)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b, written over whatever the room held before: (n, rows, k) @ (n, k, cols)."""
        shape = (a.shape[0], a.shape[1], b.shape[2])
        size = shape[0] * shape[1] * shape[2]
        if self._room.numel() < size:
            self._room = self._room.new_empty(size)
        return torch.bmm(a, b, out=self._room[:size].view(shape))


def hidden_keys(i0: int, i1: int, j0: int, j1: int, Sq: int, Sk: int, like: Tensor) -> Tensor:
    """True where a causal mask hides key j from row i in this tile: (Br, Bc)."""
    i = torch.arange(i0, i1, device=like.device)[:, None]
    return torch.arange(j0, j1, device=like.device) > i + (Sk - Sq)


def dropout_weights(
    p: Tensor, B: int, G: int, i0: int, i1: int, j0: int, j1: int, dropout_p: float, seed: int
) -> Tensor:
    """Z = keep / (1 − p) of one tile, drawn anew from its coordinates: (B·Hkv, G·Br, Bc)."""
    Hq = p.shape[0] * G // max(B, 1)
    b, h, i, j = (torch.arange(lo, hi, device=p.device) for lo, hi in ((0, B), (0, Hq), (i0, i1), (j0, j1)))
    kept = philox.keep(seed, dropout_p, b[:, None, None, None], h[:, None, None], i[:, None], j)  # (B, Hq, Br, Bc)
    return kept.reshape(p.shape).to(p.dtype) / (1 - dropout_p)
