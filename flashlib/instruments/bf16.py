"""bfloat16 on Triton's CPU interpreter, as a GPU computes it.

The interpreter keeps a bfloat16 as its 16 bits in a `uint16` and then adds, compares and multiplies those *integers*;
and it rounds float32 to bfloat16 by cutting. Here every operation widens to float32 (exact: a bfloat16 is a float32
whose lower half is zero), computes, and rounds once to nearest even, as the hardware does. What cannot be made right
raises `NotOnCPU` and says which operation it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Repairs = dict[tuple[Any, str], Any]  # (class, attribute) -> its replacement


class NotOnCPU(NotImplementedError):
    """The interpreter cannot do this operation as a GPU does, so it is refused instead of done wrongly."""


def widen(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 `bits` (uint16). Exact."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """The bits (uint16) of `x` rounded to bfloat16: once, to nearest, ties to even. NaN becomes 0x7FFF, as in PTX."""
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        x = _odd64(x)
    if x.dtype == np.float64:
        x = _odd32(x)
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).reshape(x.shape)
    up = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), up.astype(np.uint16))


def cut(x: np.ndarray) -> np.ndarray:
    """The bits (uint16) of float32 `x` rounded to bfloat16 towards zero (`fp_downcast_rounding="rtz"`)."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).reshape(np.shape(x))
    return np.where(np.isnan(x), np.uint16(0x7FFF), (u >> np.uint32(16)).astype(np.uint16))


def _odd32(x: np.ndarray) -> np.ndarray:
    """float64 `x` as float32 rounded to odd: rounding the result again, to bfloat16, is as good as rounding once."""
    with np.errstate(all="ignore"):
        near = x.astype(np.float32)
        inexact = (near.astype(np.float64) != x) & ~np.isnan(x)
        cut_off = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    return (np.where(inexact, cut_off, near).view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def _odd64(x: np.ndarray) -> np.ndarray:
    """Integers as float64: exact up to 53 bits, and rounded to odd above."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    sticky = ((x & x.dtype.type(0x7FF)) != 0).astype(x.dtype)
    small = np.abs(x.astype(np.float64)) < 2.0**53
    return np.where(small, x.astype(np.float64), ((x >> x.dtype.type(11)) | sticky).astype(np.float64) * 2.0**11)


def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x·y + z in float64 rounded to odd, for float32 or narrower values: one more rounding gives the true fma."""
    x, y, z = (np.asarray(a, dtype=np.float64) for a in (x, y, z))
    with np.errstate(all="ignore"):
        p = x * y  # exact: 24 + 24 bits fit in 53
        s = np.asarray(p + z)
        back = s - p
        lost = (p - (s - back)) + (z - back)  # what the sum rounded away (Knuth's TwoSum)
        nudge = np.isfinite(s) & (lost != 0) & (s.view(np.uint64) & np.uint64(1) == 0)
        return np.where(nudge, np.nextafter(s, np.copysign(np.inf, lost)), s)


def repairs(module: Any, tl: Any) -> Repairs:
    """The replacements that make bfloat16 right in `module` = triton.runtime.interpreter."""
    Builder, Handle = module.InterpreterBuilder, module.TensorHandle
    old = {name: getattr(Builder, name) for name in (
        "binary_op", "unary_op", "ternary_op", "cast_impl", "create_fp_to_fp", "create_fma", "create_dot",
        "create_erf", "create_rsqrt", "create_atomic_rmw", "create_print", "create_descriptor_load",
    )}  # fmt: skip

    def is_bf16(handle: Any) -> bool:
        # A comparison's handle keeps its operands' dtype but holds booleans, so look at the data too.
        return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16

    def wide(handle: Any) -> Any:
        return Handle(widen(handle.data), tl.float32) if is_bf16(handle) else handle

    def narrow(handle: Any) -> Any:
        if handle.data.dtype == np.bool_:
            return Handle(handle.data, tl.int1)
        return Handle(rounded(handle.data), tl.bfloat16)

    def by_float32(name: str) -> Any:
        """The old operation, on float32 if a bfloat16 comes in (`self`, handles..., and anything else as it is)."""

        def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(a, Handle) and is_bf16(a) for a in args):
                return old[name](self, *args, **kwargs)
            return narrow(old[name](self, *[wide(a) if isinstance(a, Handle) else a for a in args], **kwargs))

        return operation  # fmt: skip

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where:  # a choice moves bits, whatever they mean
            return old["ternary_op"](self, lhs, rhs, other, op)
        return by_float32("ternary_op")(self, lhs, rhs, other, op)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16:
            if is_bf16(src):
                return src
            refuse_fp8("a cast", src.dtype.scalar, tl.bfloat16)
            data = src.data.astype(np.float32) if src.data.dtype in (np.bool_, np.float16) else src.data
            return Handle(rounded(data), tl.bfloat16)
        if is_bf16(src):
            refuse_fp8("a cast", tl.bfloat16, dst_type.scalar)
        return old["cast_impl"](self, wide(src), dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 not in (source, target):
            return old["create_fp_to_fp"](self, src, dst_type, rounding_mode)
        refuse_fp8("a cast", source, target)
        if target == tl.bfloat16 and rounding_mode == module._ir.ROUNDING_MODE.RTZ:
            if src.data.dtype == np.float64:
                raise NotOnCPU("a cast from float64 to bfloat16 that rounds towards zero: cast to float32 first")
            return Handle(cut(src.data.astype(np.float32)), tl.bfloat16)
        return cast_impl(self, src, dst_type)

    def refuse_fp8(what: str, source: Any, target: Any) -> None:
        if (source.is_fp8() and target == tl.bfloat16) or (source == tl.bfloat16 and target.is_fp8()):
            raise NotOnCPU(f"{what} from {source} to {target}: the interpreter has no right one; go through float32")

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if is_bf16(z):
            return Handle(rounded(fma(widen(x.data), widen(y.data), widen(z.data))), tl.bfloat16)
        if z.data.dtype == np.float64:
            return old["create_fma"](self, x, y, z)
        with np.errstate(all="ignore"):  # a value too large for the narrow type becomes inf, silently, as on a GPU
            return Handle(fma(x.data, y.data, z.data).astype(z.data.dtype), z.dtype.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return old["create_dot"](self, wide(a), wide(b), d, *rest)  # bfloat16 products, added up in float32

    def create_dot_scaled(self: Any, lhs: Any, lhs_scale: Any, lhs_format: Any, rhs: Any, *rest: Any) -> Any:
        if is_bf16(lhs) or is_bf16(rhs) or scaled is None:
            raise NotOnCPU("tl.dot_scaled (with bfloat16 operands, or at all before triton 3.9)")
        return scaled(self, lhs, lhs_scale, lhs_format, rhs, *rest)

    scaled = getattr(Builder, "create_dot_scaled", None)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, *rest: Any) -> Any:
        if is_bf16(val):
            raise NotOnCPU("an atomic operation on bfloat16 (tl.atomic_add): accumulate in float32")
        return old["create_atomic_rmw"](self, op, ptr, val, *rest)

    def create_print(self: Any, prefix: Any, hexadecimal: Any, values: Any, *rest: Any) -> Any:
        shown = values if hexadecimal else [wide(v) for v in values]
        return old["create_print"](self, prefix, hexadecimal, shown, *rest)

    def create_descriptor_load(self: Any, desc: Any, *rest: Any, **kwargs: Any) -> Any:
        if desc.padding == module._ir.PADDING_OPTION.PAD_NAN and desc.base.get_element_ty() == tl.bfloat16:
            raise NotOnCPU("a descriptor load that pads bfloat16 with NaN")
        return old["create_descriptor_load"](self, desc, *rest, **kwargs)

    def get_bf16(self: Any, value: float) -> Any:
        return Handle(rounded(np.array([value], dtype=np.float64)), tl.bfloat16)

    new = {name: by_float32(name) for name in ("binary_op", "unary_op", "create_erf", "create_rsqrt")}
    new |= {f.__name__: f for f in (
        ternary_op, cast_impl, create_fp_to_fp, create_fma, create_dot, create_dot_scaled, create_atomic_rmw,
        create_print, create_descriptor_load, get_bf16,
    )}  # fmt: skip
    return {(Builder, name): function for name, function in new.items()}
