"""Which tensors hold nothing yet: what torch.empty made, until something writes to it."""

from __future__ import annotations

from typing import Any


def track_empty(watch: Any) -> Any:
    """A context manager: `torch.empty` and its kin make memory that `watch` takes for unwritten; other ops write it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    makers = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}

    def plain(tensor: Any) -> bool:  # with memory of its own: neither fake, nor meta, nor sparse
        return type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_meta

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if watch.launch is not None:
                return out  # the interpreter's own copies of its arguments
            name = func._schema.name
            if name in makers:
                if plain(out) and out.numel():
                    watch.memory(out).fresh = True
                return out
            given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | (kwargs or {})
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = given.get(argument.name)
                    for tensor in value if isinstance(value, (list, tuple)) else [value]:
                        if plain(tensor):
                            watch.filled(tensor)
            return out

    return Mode()
