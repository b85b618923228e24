"""A Triton kernel as plain text, and the arguments of a launch as a compiler wants them described.

Compiling happens in another process (`compiled`): this one may interpret, and a kernel typed into a notebook cell
cannot be imported anywhere else. So a kernel travels as the text of itself and of all it calls. Triton is not needed.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from types import ModuleType
from typing import Any, NamedTuple

_POINTER = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


def python_function(kernel: Any) -> Any:
    """The function under @triton.jit, @triton.autotune …, whether this process interprets or compiles."""
    while not inspect.isfunction(kernel):
        if not hasattr(kernel, "fn"):
            raise TypeError(f"{kernel!r} is no Triton kernel: expected a function under @triton.jit")
        kernel = kernel.fn
    return kernel


def kernel_text(kernel: Any) -> tuple[str, str]:
    """(name, text) of a module that holds the kernel, each kernel it calls and each tl.constexpr global it reads.

    Raises
    ------
    ValueError where two modules mean different things by one name, or a global is neither of these; OSError where
    the source is not at hand.
    """
    pieces: dict[str, str] = {"triton": "import triton", "tl": "import triton.language as tl"}
    _collect(kernel, python_function(kernel).__name__, pieces)
    imports = [p for p in pieces.values() if not p.startswith(("@", "\n"))]
    return python_function(kernel).__name__, "\n".join([*imports, *(p for p in pieces.values() if p not in imports)])


def _collect(value: Any, name: str, pieces: dict[str, str]) -> None:
    """Add what makes `name` mean `value`, and what that needs in turn; what is needed comes first."""
    new, function = _piece(value, name)
    if name in pieces:
        if pieces[name] != new:
            raise ValueError(
                f"two modules of this kernel mean different things by the name {name!r}: rename one of them"
            )
        return
    if function is not None:
        pieces[name] = new  # before its callees: a kernel may call itself
        tree = ast.parse(new[new.index("def ") :])
        own = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        used = dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in own)
        around = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        for other in used:
            if other in around and not (other == name and around[other] is value):
                _collect(around[other], other, pieces)
        del pieces[name]  # callees above their caller
    pieces[name] = new


def _piece(value: Any, name: str) -> tuple[str, Any]:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}", None
    home = getattr(python_function(value) if hasattr(value, "fn") else value, "__module__", None) or ""
    if home.startswith("triton.") and not isinstance(value, type) and hasattr(value, "__name__"):
        return f"from {home} import {value.__name__} as {name}", None  # tl.cdiv, tl.load … under a name of their own
    if type(value).__name__ == "constexpr":
        return f"\n{name} = tl.constexpr({_literal(value.value, name)})", None
    if type(value).__name__ == "dtype":
        return f"\n{name} = tl.dtype({str(value)!r})", None
    if not hasattr(value, "fn"):
        raise ValueError(
            f"the kernel reads the global {name!r}, a {type(value).__name__}: a kernel may use other kernels and "
            "tl.constexpr(...) globals; pass everything else as an argument"
        )
    function = python_function(value)
    text = textwrap.dedent(inspect.getsource(function))
    start = re.search(r"^def\s+(\w+)", text, re.MULTILINE)
    if start is None:
        raise ValueError(f"the source of the kernel {name!r} has no `def` line")
    noinline = getattr(value, "noinline", False) or getattr(value, "kwargs", {}).get("noinline", False)
    alias = "" if start[1] == name else f"\n{name} = {start[1]}\n"
    return f"@triton.jit{'(noinline=True)' if noinline else ''}\n{text[start.start() :]}{alias}\n", function


def _literal(value: Any, name: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if type(value).__name__ == "dtype":
        return f"tl.dtype({str(value)!r})"
    if value is None or isinstance(value, bool | int | float | str | tuple):
        return repr(value)
    raise ValueError(f"the kernel reads {name} = tl.constexpr of a {type(value).__name__}, which has no plain text")


class Described(NamedTuple):
    """What `triton.compiler.ASTSource` takes: `attrs` and `constexprs` are keyed by the path to the argument."""

    signature: dict[str, Any]
    constexprs: dict[tuple[int, ...], Any]
    attrs: dict[tuple[int, ...], list[list[Any]]]


def describe(kernel: Any, arguments: dict[str, Any]) -> Described:
    """What Triton's launcher would tell its compiler about these arguments.

    Parameters
    ----------
    kernel : a function under @triton.jit.
    arguments : by parameter name, examples of what a launch passes. A tensor or array, or a string like "*fp16": a
        pointer, aligned to 16 bytes. An int: 32 bits (64 where it needs them), known to divide by 16 if it does, a
        constant if it is 1. A float: fp32. A tuple: each element by these rules; so ``x.stride()`` says which stride
        is 1. "i32", "i64", "fp32" …: such a scalar, of which nothing is known. None, and whatever a ``tl.constexpr``
        parameter takes: a constant.

    Raises
    ------
    TypeError naming the parameter that is missing, unknown or of a kind no kernel takes.
    """
    parameters = inspect.signature(python_function(kernel)).parameters
    unknown = [name for name in arguments if name not in parameters]
    if unknown:
        raise TypeError(f"the kernel has no parameter {', '.join(unknown)}; it has {', '.join(parameters)}")
    result = Described({}, {}, {})
    for i, (name, parameter) in enumerate(parameters.items()):
        if name not in arguments and parameter.default is inspect.Parameter.empty:
            raise TypeError(f"the kernel's parameter {name!r} is missing: {', '.join(parameters)}")
        value = arguments.get(name, parameter.default)
        constant = "constexpr" in str(parameter.annotation)
        result.signature[name] = _kind(value, (i,), name, constant, result)
    return result


def _kind(value: Any, path: tuple[int, ...], name: str, constant: bool, result: Described) -> Any:
    if constant or value is None or (type(value) is int and value == 1):
        result.constexprs[path] = value
        return "constexpr"
    if isinstance(value, tuple):
        return tuple(_kind(v, (*path, i), f"{name}[{i}]", False, result) for i, v in enumerate(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        value = "*" + _POINTER.get(str(value.dtype).removeprefix("torch."), str(value.dtype))
    if isinstance(value, str):
        if value.startswith("*"):
            result.attrs[path] = [["tt.divisibility", 16]]
        return value
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        if value % 16 == 0:
            result.attrs[path] = [["tt.divisibility", 16]]
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"the kernel's parameter {name!r} cannot be a {type(value).__name__}")
