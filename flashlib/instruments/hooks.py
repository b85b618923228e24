"""Where `watch()` takes hold of triton's interpreter: its builder's methods, for as long as the watch lasts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

SENTINEL = 65_537  # in the masked lanes of integer loads: an index that reaches past most tensors


def install(watch: Any) -> Callable[[], None]:
    """Put the hooks in; returns the function that takes them out."""
    module: Any = import_module("triton.runtime.interpreter")
    tl: Any = import_module("triton.language")
    Builder, Handle = module.InterpreterBuilder, module.TensorHandle
    Semantic, Executor = type(module.interpreter_semantic), module.GridExecutor
    old = {name: getattr(Builder, name) for name in (
        "create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "create_bitcast",
        "create_select", "create_add", "create_sub", "create_mul", "create_dot", "set_grid_idx",
    )}  # fmt: skip
    old_convert, old_args, old_call, old_dot = (
        module._implicit_cvt, Executor._init_args_hst, Executor.__call__, Semantic.dot)  # fmt: skip
    least = _least_dot()

    class Of(tl.pointer_type):
        """A pointer type that remembers whose pointer it is. Handles pass their dtype on, so it survives arithmetic."""

        def __init__(self, like: Any, region: Any) -> None:
            super().__init__(like.element_ty, like.address_space, like.const)
            self.region = region

    def region_of(handle: Any) -> Any:
        return getattr(handle.dtype.scalar, "region", None)

    def data(mask: Any) -> np.ndarray:
        return mask.data if isinstance(mask, Handle) else np.asarray(mask)  # block pointers pass a plain array

    # -- launches ----------------------------------------------------------------------------------------------------
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return watch.run(self, old_call, args, kwargs)

    def _init_args_hst(self: Any, args: Any, kwargs: Any) -> Any:
        host, host_kwargs = old_args(self, args, kwargs)
        named = dict(zip(self.arg_names, zip(args, host, strict=True), strict=False))
        for name, (device, on_host) in (named | {k: (kwargs[k], host_kwargs[k]) for k in kwargs}).items():
            watch.launch.add(name, device, on_host)
        return host, host_kwargs

    def _implicit_cvt(arg: Any) -> Any:
        out = old_convert(arg)
        region = watch.launch and watch.launch.regions.get(id(arg))
        if region:
            out.handle.dtype = Of(out.handle.dtype, region)
        return out

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        old["set_grid_idx"](self, x, y, z)
        watch.launch.begin((x, y, z))

    # -- pointers ----------------------------------------------------------------------------------------------------
    def create_bitcast(self: Any, src: Any, dst_type: Any) -> Any:
        out = old["create_bitcast"](self, src, dst_type)
        if region_of(src) and isinstance(out.dtype, tl.pointer_type):
            out.dtype = Of(out.dtype, region_of(src))
        return out

    def create_select(self: Any, cond: Any, lhs: Any, rhs: Any) -> Any:
        out = old["create_select"](self, cond, lhs, rhs)
        if isinstance(out.dtype, Of) and region_of(lhs) is not region_of(rhs):
            out.dtype = tl.pointer_type(out.dtype.element_ty, out.dtype.address_space, out.dtype.const)
        return out

    # -- memory ------------------------------------------------------------------------------------------------------
    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
        launch, active = watch.launch, data(mask)
        launch.touch("load", region_of(ptrs), ptrs.data, active)
        if other is None and not active.all():
            launch.lanes(region_of(ptrs))
            if launch.poison:
                other = poison(ptrs)
        return old["create_masked_load"](self, ptrs, mask, other, *rest, **kwargs)

    def poison(ptrs: Any) -> Any:
        element, dtype = ptrs.get_element_ty(), module._get_np_dtype(ptrs.get_element_ty())
        if element == tl.bfloat16:
            value: Any = 0x7FFF
        elif dtype.kind == "f":
            value = np.nan
        else:
            value = True if dtype.kind == "b" else min(SENTINEL, np.iinfo(dtype).max)
        return Handle(np.full(ptrs.data.shape, value, dtype=dtype), element)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.launch.touch("store", region_of(ptrs), ptrs.data, data(mask), value.data)
        return old["create_masked_store"](self, ptrs, value, mask, *rest)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        watch.launch.touch("atomic", region_of(ptr), ptr.data, data(mask))
        return old["create_atomic_rmw"](self, op, ptr, val, mask, *rest)

    def create_atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        watch.launch.touch("atomic", region_of(ptr), ptr.data, np.ones(ptr.data.shape, dtype=bool))
        return old["create_atomic_cas"](self, ptr, *rest)

    # -- arithmetic --------------------------------------------------------------------------------------------------
    def checked(name: str, sign: str, op: Any) -> Any:
        def operation(self: Any, lhs: Any, rhs: Any) -> Any:
            if watch.overflow and lhs.data.dtype == np.int32 and rhs.data.dtype == np.int32:
                exact = op(lhs.data.astype(np.int64), rhs.data.astype(np.int64))
                watch.launch.overflow(sign, lhs.data, rhs.data, exact)
            return old[name](self, lhs, rhs)

        return operation

    def dot(self: Any, lhs: Any, rhs: Any, *rest: Any, **kwargs: Any) -> Any:
        if watch.dots:
            if lhs.dtype != rhs.dtype and not (lhs.dtype.is_fp8() and rhs.dtype.is_fp8()):
                raise watch.bad_dot(f"tl.dot of {lhs.dtype} with {rhs.dtype}: both must have one dtype on any GPU")
            (m, k), n = (int(s) for s in lhs.shape[-2:]), int(rhs.shape[-1])
            for name, size, minimum in zip("MNK", (m, n, k), least(lhs.type, rhs.type), strict=True):
                if size < minimum:
                    raise watch.bad_dot(f"tl.dot of ({m}, {k}) with ({k}, {n}) in {lhs.dtype}: {name} = {size}, and "
                                        f"triton accepts no less than {minimum} on any NVIDIA GPU")  # fmt: skip
        return old_dot(self, lhs, rhs, *rest, **kwargs)

    def create_dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, *rest: Any) -> Any:
        if not watch.launch.poison:
            counts = watch.counts(watch.launch.kernel)
            counts.dots += 1
            counts.flops += 2 * a.data.size * b.data.shape[-1]
            counts.tf32 += int(a.data.dtype == np.float32 and precision == module._ir.INPUT_PRECISION.TF32)
        return old["create_dot"](self, a, b, acc, precision, *rest)

    new = [create_masked_load, create_masked_store, create_atomic_rmw, create_atomic_cas, create_bitcast, create_select,
           create_dot, set_grid_idx]  # fmt: skip
    table = {(Builder, f.__name__): f for f in new}
    for name, sign, op in (("add", "+", np.add), ("sub", "−", np.subtract), ("mul", "·", np.multiply)):
        table[Builder, f"create_{name}"] = checked(f"create_{name}", sign, op)
    table |= {(Executor, "__call__"): __call__, (Executor, "_init_args_hst"): _init_args_hst,
              (module, "_implicit_cvt"): _implicit_cvt, (Semantic, "dot"): dot}  # fmt: skip
    before = {key: getattr(*key) for key in table}
    for (owner, name), function in table.items():
        setattr(owner, name, function)

    def remove() -> None:
        for (owner, name), function in before.items():
            setattr(owner, name, function)

    return remove


def _least_dot() -> Any:
    """The rule of this triton's NVIDIA backend: the smallest (M, N, K) of a dot of two types."""
    try:
        compiler, base = import_module("triton.backends.nvidia.compiler"), import_module("triton.backends.compiler")
        return compiler.min_dot_size(base.GPUTarget("cuda", 80, 32))
    except (ImportError, AttributeError):  # a triton built without that backend
        return lambda lhs, rhs: (1, 1, 32 if lhs.scalar.primitive_bitwidth == 8 else 16)
