"""What a function asks of torch: which of its functions, and how many matrix products. Imports torch at the top."""

from __future__ import annotations

import math
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addbmm": (1, 2), "mv": (0, 1)}


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
    """Counts matrix products: ``number`` and ``flops`` = Σ 2 · m · n · k, forward and backward alike."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            a, b = (args[i] for i in _PRODUCTS[name])
            self.number += 1
            self.flops += 2 * math.prod(a.shape) * (b.shape[-1] if b.dim() > 1 else 1)
        return func(*args, **(kwargs or {}))
