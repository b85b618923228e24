"""Reductions and scans of bfloat16 on Triton's CPU interpreter: the other half of `instruments.bf16`."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashlib.instruments.bf16 import NotOnCPU, Repairs, rounded, widen


def repairs(module: Any, tl: Any) -> Repairs:
    """The replacements that make reductions and scans of bfloat16 right in `module` = triton.runtime.interpreter."""
    Reduce, Scan = module.ReduceOps, module.ScanOps
    old = {f: getattr(owner, f) for owner, f in (
        (Reduce, "min_max"), (Reduce, "sum"), (Reduce, "generic_reduce"),
        (Scan, "cumsum"), (Scan, "cumprod"), (Scan, "generic_scan"),
    )}  # fmt: skip

    def bf16(x: Any) -> bool:
        return x.dtype == tl.bfloat16

    def min_max(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        one = input[0] if isinstance(input, tuple) else input
        if not bf16(one):
            return old["min_max"](self, input, *args, **kwargs)
        out = old["min_max"](self, self.to_tensor(widen(one.handle.data), tl.float32), *args, **kwargs)
        parts = [back(x) if x.dtype == tl.float32 else x for x in (out if isinstance(out, tuple) else (out,))]
        return tuple(parts) if isinstance(out, tuple) else parts[0]

    def back(x: Any) -> Any:
        data = rounded(x.handle.data)  # exact: the largest or smallest of bfloat16 values is one of them
        return tl.tensor(module.TensorHandle(data, tl.bfloat16), x.type.with_element_ty(tl.bfloat16) if
                         x.type.is_block() else tl.bfloat16)  # fmt: skip

    def sum(self: Any, input: Any) -> Any:
        """Rounded to bfloat16 after every addition, as on a GPU; in a tree's order, which is one a GPU may take."""
        if not bf16(input):
            return old["sum"](self, input)
        data = input.handle.data
        axis = 0 if self.axis is None else self.axis
        rows = np.moveaxis(data.reshape(-1) if self.axis is None else data, axis, 0)
        while len(rows) > 1:
            half = len(rows) // 2
            rows = rounded(widen(rows[:half]) + widen(rows[half:]))  # sizes are powers of two
        out = rows[0]
        if self.keep_dims:
            out = out.reshape((1,) * data.ndim) if self.axis is None else np.expand_dims(out, axis)
        return self.to_tensor(out, input.dtype)

    def running(combine: Any, name: str) -> Any:
        def scan(self: Any, input: Any) -> Any:
            if not bf16(input):
                return old[name](self, input)
            rows = np.moveaxis(input.handle.data.copy(), self.axis, 0)
            for i in range(1, len(rows)):
                rows[i] = rounded(combine(widen(rows[i - 1]), widen(rows[i])))
            return [self.to_tensor(np.ascontiguousarray(np.moveaxis(rows, 0, self.axis)), input.dtype)]

        return scan  # fmt: skip

    def same_dtype(name: str) -> Any:
        """A combine function that turns bfloat16 into float32 would have its float32 cut to 16 bits of an integer."""

        def generic(self: Any, input: Any) -> Any:
            if any(bf16(x) for x in input):
                inner = self.combine_fn.fn

                def checked(*args: Any) -> Any:
                    out = inner(*args)
                    for x, given in zip(out if isinstance(out, tuple) else (out,), input, strict=True):
                        if bf16(given) and getattr(x, "dtype", None) != tl.bfloat16:
                            raise NotOnCPU("tl.reduce or tl.associative_scan of bfloat16 whose combine function "
                                           "returns another dtype: convert to float32 first")  # fmt: skip
                    return out

                self = _With(self, checked)
            return old[name](self, input)

        return generic  # fmt: skip

    return {
        (Reduce, "min_max"): min_max,
        (Reduce, "sum"): sum,
        (Reduce, "generic_reduce"): same_dtype("generic_reduce"),
        (Scan, "cumsum"): running(np.add, "cumsum"),
        (Scan, "cumprod"): running(np.multiply, "cumprod"),
        (Scan, "generic_scan"): same_dtype("generic_scan"),
    }


class _With:
    """A reduction or scan with another combine function; everything else is the original's."""

    def __init__(self, original: Any, combine: Any) -> None:
        self._original = original
        self.combine_fn = type("Combine", (), {"fn": staticmethod(combine)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
