"""What a function asks of torch: which of its functions, and how many matrix products. Imports torch at the top."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# name → which arguments are multiplied; the same with a trailing "_", which writes into the first argument
_PRODUCTS = {
    "mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "_addmm_activation": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2),
    "mv": (0, 1), "addmv": (1, 2), "dot": (0, 1), "vdot": (0, 1),
}  # fmt: skip
# Under inference mode these arrive whole; elsewhere torch has taken them apart before.
_MADE_OF_PRODUCTS = ("matmul", "linear", "einsum", "inner", "tensordot", "chain_matmul", "linalg_multi_dot")


class Functions(TorchFunctionMode):
    """Lists the names of torch functions as they are called, each once: also those reached by another name."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in self.names:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class Matmuls(TorchDispatchMode):
    """Counts matrix products: ``number`` and ``flops`` = Σ 2 · m · n · k, forward and backward alike.

    ``side`` is the largest m or n, ``longest`` the largest k of all products, ``dtypes`` the names of their dtypes,
    ``operands`` how many numbers the products read: both factors of each, a number that is read twice counted twice.
    ``touched`` is the work of all operations, products or not: of each the numbers in its largest operand or result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = self.flops = self.side = self.longest = self.operands = self.touched = 0
        self.dtypes: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler, seconds of it, before the first op."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _MADE_OF_PRODUCTS:
            with self:
                made = func.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        where = _PRODUCTS.get(name.rstrip("_"))
        if where is not None:
            a, b = (args[i] for i in where)
            columns = b.shape[-1] if b.dim() > 1 else 1
            self.number += 1
            self.operands += a.numel() + b.numel()
            self.flops += 2 * math.prod(a.shape) * columns
            self.side = max(self.side, columns, a.shape[-2] if a.dim() > 1 else 1)
            self.longest = max(self.longest, a.shape[-1])
            self.dtypes.add(str(a.dtype).removeprefix("torch."))
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.touched += max((t.numel() for t in tensors((args, kwargs, out))), default=0)
        return out


def tensors(x: Any) -> list[torch.Tensor]:
    """The tensors in what an operation takes or gives, lists of them included."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = x.values()
    elif not isinstance(x, (list, tuple)):
        return []
    return [t for y in x for t in tensors(y)]


class TooManyOperations(RuntimeError):
    """A call was stopped after so many operations of torch."""


class _Operations(TorchDispatchMode):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.number = most, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        if self.number > self.most:
            raise TooManyOperations(
                f"stopped after {self.most:,} operations of torch in one call, many for each row of each tile; "
                "see that the tiles are as large as the arguments say"
            )
        return func(*args, **(kwargs or {}))


def limited(fn: Callable[..., Any], most: int) -> Callable[..., Any]:
    """``fn``, stopped by `TooManyOperations` after ``most`` operations of torch in one call."""

    def stopped(*args: Any, **kwargs: Any) -> Any:
        with _Operations(most):
            return fn(*args, **kwargs)

    return stopped
