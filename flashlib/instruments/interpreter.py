"""Triton on a CPU (`TRITON_INTERPRET=1`), made honest: `repair()` makes it right, `watch()` makes it watchful.

`repair()` mends what triton's interpreter computes otherwise than a GPU. Most of it is bfloat16, whose bits it adds as
integers: see `instruments.bf16` and `instruments.folds`. `watch()`, from `instruments.watch`, finds what it hides.

TRITON_INTERPRET=1 must be in the environment before triton is first imported. Importing this module imports neither
triton nor torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from flashlib.instruments import bf16, folds
from flashlib.instruments.bf16 import NotOnCPU
from flashlib.instruments.faults import (
    BadDot,
    IntOverflow,
    KernelFailed,
    NotInterpreting,
    NotWritten,
    OutOfBounds,
    Race,
    UndefinedLanes,
    UnwrittenRead,
    WatchError,
    root_cause,
)
from flashlib.instruments.moves import Move, Moves
from flashlib.instruments.watch import Watch, watch

__all__ = [
    "BadDot",
    "IntOverflow",
    "KernelFailed",
    "Move",
    "Moves",
    "NotInterpreting",
    "NotOnCPU",
    "NotWritten",
    "OutOfBounds",
    "Race",
    "UndefinedLanes",
    "UnsupportedTriton",
    "UnwrittenRead",
    "Watch",
    "WatchError",
    "interpreting",
    "repair",
    "watch",
]

SUPPORTED = "triton 3.6.0 to 3.9.0"
_HOOKS = {
    "": ("InterpreterBuilder", "TensorHandle", "ReduceOps", "ScanOps", "GridExecutor", "InterpretedFunction",
         "InterpreterError", "interpreter_builder", "_patch_lang", "_patch_lang_tensor", "_implicit_cvt", "_ir"),
    "InterpreterBuilder": (
        "binary_op", "unary_op", "ternary_op", "cast_impl", "create_fp_to_fp", "create_fma", "create_dot",
        "create_erf", "create_rsqrt", "create_atomic_rmw", "create_atomic_cas", "create_print", "create_masked_load",
        "create_masked_store", "create_descriptor_load", "create_bitcast", "create_select", "create_add",
        "create_sub", "create_mul", "set_grid_idx"),
    "ReduceOps": ("min_max", "sum", "generic_reduce"),
    "ScanOps": ("cumsum", "cumprod", "generic_scan"),
    "GridExecutor": ("__call__", "_init_args_hst"),
}  # fmt: skip
_done: tuple[str, ...] = ()


class UnsupportedTriton(RuntimeError):
    """This version of triton lacks a place that `repair` needs to get hold of."""


def interpreting() -> bool:
    """Whether kernels of this process run in the interpreter: what triton saw in the environment, or will see."""
    standard = sys.modules.get("triton.language.standard")
    if standard is not None:  # decided when triton's own device functions were made; too late to change
        return type(standard.cdiv).__name__ == "InterpretedFunction"
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def repair() -> tuple[str, ...]:
    """Mend triton's interpreter in this process; a second call changes nothing.

    Returns
    -------
    What was mended, one line a repair.

    Raises
    ------
    ImportError : triton is not installed.
    UnsupportedTriton : a place to mend is missing; the message names it and the versions that are supported.
    """
    global _done
    if _done:
        return _done
    try:
        module: Any = import_module("triton.runtime.interpreter")
        tl = import_module("triton.language")
    except ImportError as error:
        raise ImportError(f"the interpreter comes with triton, which cannot be imported here: {error}") from error
    _check_hooks(module)
    table = bf16.repairs(module, tl) | folds.repairs(module, tl) | _other_repairs(module)
    for (owner, name), function in table.items():
        setattr(owner, name, function)
    # Every + and · of integers was computed a second time in 64 bits to check it, and the answer thrown away unless
    # debug is on, which nothing can turn on here. watch() does its own check.
    object.__setattr__(module.interpreter_builder.options, "sanitize_overflow", False)
    module.flashlib_repaired = True  # for those who may not import this module: it lies a floor above theirs
    _done = (
        "bfloat16: arithmetic, comparisons, where, fma, exp and friends, reductions, scans, dot, constants, printing",
        "rounding to bfloat16: to nearest even, once (it was cut)",
        "refused by name: bfloat16 atomics, casts to and from float8, dot_scaled, NaN padding of descriptors",
        "fma of float32 and float16: rounded once",
        "tl.maximum, tl.minimum and clamp of a NaN and a number: the number, as on a GPU",
        "loop bounds and indices known at run time, with numpy 2.4 and newer",
        "launches: no warnings of numpy's about inf and NaN; faster, as triton.language is patched once a launch",
    )
    return _done


def _check_hooks(module: Any) -> None:
    import triton

    missing = [f"{owner}.{name}".lstrip(".") for owner, names in _HOOKS.items() for name in names
               if not hasattr(getattr(module, owner, None) if owner else module, name)]  # fmt: skip
    if missing:
        raise UnsupportedTriton(f"the interpreter of triton {triton.__version__} has no {', '.join(missing)}; "
                                f"flashlib's repairs fit {SUPPORTED}")  # fmt: skip


def _other_repairs(module: Any) -> bf16.Repairs:
    """What is not about bfloat16."""
    Builder = module.InterpreterBuilder
    old_tensor, old_lang, old_call = module._patch_lang_tensor, module._patch_lang, module.GridExecutor.__call__
    old_clamp = Builder.create_clampf
    patched: list[set[Any]] = []  # for each launch that is running, the sets of modules already patched

    def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
        old_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).squeeze()))

    def _patch_lang(fn: Any) -> Any:
        """Once a launch and not at every call of a device function, where it took a third of the time."""
        modules = frozenset(id(v) for v in fn.__globals__.values() if v is module.tl or v is module.tl.core)
        if patched and modules in patched[-1]:
            return None
        scope = old_lang(fn)
        if patched:
            patched[-1].add(modules)
        return scope

    @contextmanager
    def launch() -> Iterator[None]:
        patched.append(set())
        try:
            with np.errstate(all="ignore"):
                yield
        finally:
            patched.pop()

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with launch():
                return old_call(self, *args, **kwargs)
        except module.InterpreterError as error:
            cause = root_cause(error)
            if isinstance(cause, WatchError):
                raise cause.with_traceback(None) from None  # the fault, not the repr of its repr; it names its line
            if isinstance(cause, NotOnCPU):
                raise cause from None
            raise

    def create_clampf(self: Any, x: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if propagate_nans == module._ir.PROPAGATE_NAN.NONE:
            return self.binary_op(self.binary_op(x, low, np.fmax), high, np.fmin)
        return old_clamp(self, x, low, high, propagate_nans)

    return {
        (module, "_patch_lang_tensor"): _patch_lang_tensor,
        (module, "_patch_lang"): _patch_lang,
        (module.GridExecutor, "__call__"): __call__,
        (Builder, "create_maxnumf"): lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax),
        (Builder, "create_minnumf"): lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin),
        (Builder, "create_clampf"): create_clampf,
    }
