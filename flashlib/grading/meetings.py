"""Which rows of queries met which blocks of keys, and in which order: seen in the operations of torch, of any kind.

A tensor that was made of rows alone, or of blocks alone, remembers of which. Where an operation takes one of each kind,
they meet: a matrix product, a sum of products, anything. Imports torch at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashlib.grading.counted import tensors

Origin = tuple[frozenset[int], frozenset[int]]  # numbers of the rows, numbers of the blocks
NOBODY: Origin = (frozenset(), frozenset())


class Meetings(TorchDispatchMode):
    """Lists in ``met[r]`` the blocks that the rows r met, one list a meeting; the same again and again is noted once.

    A product of batches, in which every row may have its own block, says nothing of who met whom and is left out.
    """

    def __init__(self, rows: Sequence[torch.Tensor], blocks: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.met: list[list[list[int]]] = [[] for _ in rows]
        self._origins: dict[int, Origin] = {}
        self._alive: list[torch.Tensor] = []  # whose storages have an origin: none is given to another tensor meanwhile
        for i, tensor in enumerate(rows):
            self._note(tensor, (frozenset({i}), frozenset()))
        for i, tensor in enumerate(blocks):
            self._note(tensor, (frozenset(), frozenset({i})))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler, seconds of it, before the first op."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.overloadpacket.__name__, [self._origin(t) for t in tensors((args, kwargs))]
        rows = frozenset().union(*(r for r, b in given if not b))
        blocks = frozenset().union(*(b for r, b in given if not r))
        if rows and blocks and not ("bmm" in name and len(rows) > 1 and len(blocks) > 1):
            for r in rows:
                if not self.met[r] or self.met[r][-1] != sorted(blocks):
                    self.met[r].append(sorted(blocks))
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not name.startswith("new_") and not name.endswith("_like"):  # those take only a shape
            origin = tuple(frozenset().union(*(g[i] for g in given)) for i in (0, 1))
            for tensor in tensors(out):
                self._note(tensor, origin)  # type: ignore[arg-type]
        return out

    def _origin(self, tensor: torch.Tensor) -> Origin:
        return self._origins.get(tensor.untyped_storage().data_ptr(), NOBODY)

    def _note(self, tensor: torch.Tensor, origin: Origin) -> None:
        if origin != NOBODY and tensor.numel():
            self._origins[tensor.untyped_storage().data_ptr()] = origin
            self._alive.append(tensor)
