"""Run a learner's function where it lives and write down what came of it. Nothing here knows a right answer.

A harness is a way to call: once, with gradients, at several sizes with the memory measured, on the memory machine,
under Triton's watch. The same code runs in the notebook and in the child process of ``python -m flashlib grade``.
"""

from __future__ import annotations

import io
import linecache
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flashlib.grading.case import Case, Outcome, Stream, Trouble, Value
from flashlib.grading.rounding import dtype_name, to_numpy
from flashlib.grading.slot import Slot

Called = tuple[Any, dict[str, Any]]  # what the function returned, what was measured
_HERE = str(Path(__file__).resolve().parents[1])
_PYTHON = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def run(fn: Callable[..., Any], case: Case, *, may_change: tuple[str, ...] = ()) -> Outcome:
    """Make the case's call on fresh copies of its arguments.

    Returns
    -------
    Outcome
        An exception of the function is an outcome too, `SystemExit` included; only KeyboardInterrupt passes through.
    """
    args, kwargs = copied(case.args), copied(case.kwargs)
    start = time.perf_counter()
    with listening() as called:
        try:
            returned, measures = HARNESSES[case.how](fn, args, kwargs, copied(case.options))
            results = values(returned)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Outcome(
                trouble=trouble(error), measures=_noted(args), called=tuple(called), seconds=time.perf_counter() - start
            )
    changed = tuple(
        name
        for name, now, before in [
            *((f"argument {i + 1}", a, b) for i, (a, b) in enumerate(zip(args, case.args, strict=True))),
            *((name, kwargs[name], value) for name, value in case.kwargs.items()),
        ]
        if name not in may_change and not _same(now, before)
    )
    return Outcome(results, None, changed, {**measures, **_noted(args)}, tuple(called), time.perf_counter() - start)


def _noted(args: Any) -> dict[str, Any]:
    """What arguments have noted: how often a stream was asked for more past its end, how a slot was called."""
    ends = [a.ends for a in args if isinstance(a, Stream)]
    slots = [a for a in args if isinstance(a, Slot)]
    return ({"ends": max(ends)} if ends else {}) | ({"attend": slots[0].calls} if slots else {})


# -- the harnesses -------------------------------------------------------------------------------------------------
def _call(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """One plain call."""
    return fn(*args, **kwargs), {}


def _gradients(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """fn(*args) → o or (o, lse); returns its gradients with respect to the first ``wrt`` arguments (3 by default).

    ``options["do"]`` is the gradient of o, ``options["dlse"]`` that of lse (optional). With ``options["outputs"]`` the
    outputs themselves come first.
    """
    import torch

    n = options.get("wrt", 3)
    leaves = [a.detach().requires_grad_() for a in args[:n]]
    out = fn(*leaves, *args[n:], **kwargs)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    seeds = [g for g in (options.get("do"), options.get("dlse")) if g is not None]
    grads = torch.autograd.grad(outs[: len(seeds)], leaves, seeds)
    return ((*outs, *grads) if options.get("outputs") else grads), {}


def _growth(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """Peak extra memory, in bytes, of ``fn(*a, **kwargs)`` for each a of ``options["calls"]``.

    Measures ``n`` (as given in ``options["n"]``), ``peak``, ``kept``, and ``alive``: the three largest arrays at the
    peak of the last call, in words (torch on a CPU only). ``options["operations"]`` is how many operations of torch
    each call may make, so that a program with tiny tiles ends: beyond it `TooManyOperations` is raised.
    """
    from flashlib.instruments.peak import peak_memory

    fns = [fn] * len(options["calls"])
    if "operations" in options:
        from flashlib.grading.counted import limited

        fns = [limited(fn, most) for most in options["operations"]]
    fns[0](*args, **kwargs)  # what a first call allocates once is not the function's
    peaks = [
        peak_memory(partial(f, *a, **kwargs), library=options["library"])
        for f, a in zip(fns, options["calls"], strict=True)
    ]
    alive = [f"{op} {shape}" for op, shape, _ in peaks[-1].alive[:3]]
    return None, {
        "n": list(options["n"]),
        "peak": [p.bytes for p in peaks],
        "kept": [p.kept for p in peaks],
        "alive": alive,
    }


def _kept(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """What is alive, in bytes, once ``fn(*a, **kwargs)`` has returned and waits for its backward, for each a of
    ``options["calls"]``: its results and all that their graph holds. The first ``wrt`` arguments need gradients.

    Measures ``n`` (as given in ``options["n"]``) and ``peak``, as "growth" does (torch only).
    """
    from flashlib.instruments.peak import peak_memory

    n, kept = options["wrt"], []
    for a in options["calls"]:
        leaves = [t.detach().requires_grad_() for t in a[:n]]
        kept.append(peak_memory(partial(fn, *leaves, *a[n:], **kwargs), library="torch").kept)
    return None, {"n": list(options["n"]), "peak": kept}


def _machine(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """fn(machine, *tensors, **kwargs) on a memory machine with ``options["sram_bytes"]`` of SRAM.

    ``options["names"]`` names the arrays among args, in order; each becomes a tensor in HBM, and what is no array is
    passed as it is. A returned HBM tensor is read out. Measures ``read`` and ``written`` per tensor, ``total`` and
    ``sram_peak``, in bytes, where the returned tensors have the names in ``options["returns"]``, whatever the function
    called them; and ``kernels`` begun, ``loads`` per tensor, ``looked``: uses of `.array` past the machine, per tensor.
    """
    from flashlib.grading.seen_machine import SeenTensor

    machine, placed = _placed(args, options)
    out = fn(machine, *placed, **kwargs)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    moved = machine.report()
    called = [o.name for o in outs if isinstance(o, SeenTensor) and all(o is not p for p in placed)]
    new = dict(zip(called, options.get("returns", ()), strict=False))
    measures = {
        "read": {new.get(n, n) if n not in options["names"] else n: b for n, b in moved.read.items()},
        "written": {new.get(n, n): b for n, b in moved.written.items()},
        "total": moved.total, "sram_peak": moved.sram_peak, "kernels": machine.begun,
        "loads": dict(machine.loads), "looked": dict(machine.looked),
    }  # fmt: skip
    return tuple(o.numbers if isinstance(o, SeenTensor) else o for o in outs), measures


def _machine_growth(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """ "growth" on a memory machine: what a program holds besides HBM, in bytes, for each of ``options["calls"]``; the
    other options are those of "machine". NumPy only."""
    from flashlib.instruments.peak import peak_memory

    machine, placed = _placed(args, options)
    fn(machine, *placed, **kwargs)
    peaks = []
    for a in options["calls"]:
        machine, placed = _placed(a, options)
        peaks.append(peak_memory(partial(fn, machine, *placed, **kwargs), library="numpy").bytes)
    return None, {"n": list(options["n"]), "peak": peaks}


def _placed(args: Any, options: Any) -> tuple[Any, list[Any]]:
    """A machine, and the arguments with the arrays among them in its HBM."""
    from flashlib.grading.seen_machine import SeenMachine

    machine, names = SeenMachine(options["sram_bytes"]), iter(options["names"])
    return machine, [machine.hbm(next(names), a) if isinstance(a, np.ndarray) else a for a in args]


def _matmuls(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """One call with its matrix products counted: ``matmuls`` and ``flops`` = Σ 2 · m · n · k, the largest m or n
    (``side``) and k (``longest``), the ``operands`` read, and the ``dtypes`` of what was multiplied; ``touched``: the
    numbers that all operations went over (torch only)."""
    from flashlib.grading.counted import Matmuls

    with Matmuls() as counted:
        out = fn(*args, **kwargs)
    return out, {
        "matmuls": counted.number, "flops": counted.flops, "side": counted.side, "longest": counted.longest,
        "operands": counted.operands, "dtypes": ", ".join(sorted(counted.dtypes)), "touched": counted.touched,
    }  # fmt: skip


def _meetings(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """ "matmuls", and who met whom. The first argument holds rows, the second blocks of keys: a tensor or a list of
    tensors each. Measures besides ``met``: for each of the first the blocks its rows met, in the order of the meetings,
    each as a list: more than one where several blocks were joined (torch only)."""
    from flashlib.grading.meetings import Meetings

    rows, blocks = (list(a) if isinstance(a, (list, tuple)) else [a] for a in args[:2])
    with Meetings(rows, blocks) as seen:
        out, measures = _matmuls(fn, args, kwargs, options)
    return out, {**measures, "met": seen.met}


def _watch(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """One call whose Triton kernels run in the interpreter under `watch`. Measures ``read``, ``written`` per tensor
    and ``total`` in bytes, ``dots``, ``flops``, and the number of ``launches``."""
    from flashlib.instruments.interpreter import NotWritten, repair, watch
    from flashlib.instruments.snapshot import tensors_in

    repair()
    with watch(**options.get("watch", {})) as seen:
        out = fn(*args, **kwargs)
        for i, tensor in enumerate(tensors_in(out if isinstance(out, (tuple, list)) else (out,))):
            memory = seen.memory(tensor)
            if memory.fresh and tensor.numel() and not memory.written.any():
                raise NotWritten(f"no kernel wrote to result {i + 1}, of shape {tuple(tensor.shape)}")
    moves = seen.report()
    return out, {
        "read": moves.read, "written": moves.written, "total": moves.total, "dots": moves.dots, "flops": moves.flops,
        "tf32": moves.tf32, "launches": seen.launches,
    }  # fmt: skip


def _watch_gradients(fn: Callable[..., Any], args: Any, kwargs: Any, options: Any) -> Called:
    """ "gradients", forward and backward under one watch; its options and what "watch" measures."""
    return _watch(lambda *a, **k: _gradients(fn, a, k, options)[0], args, kwargs, options)


HARNESSES: dict[str, Callable[..., Called]] = {
    "call": _call,
    "gradients": _gradients,
    "growth": _growth,
    "kept": _kept,
    "machine": _machine,
    "machine_growth": _machine_growth,
    "matmuls": _matmuls,
    "meetings": _meetings,
    "watch": _watch,
    "watch_gradients": _watch_gradients,
}


# -- what they share -----------------------------------------------------------------------------------------------
@contextmanager
def listening() -> Iterator[list[str]]:
    """Hold back prints and warnings, and list the torch functions that are called."""
    torch = sys.modules.get("torch")
    called: list[str] = []
    with redirect_stdout(_Sink()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            if torch is None:
                yield called
                return
            from flashlib.grading.counted import Functions

            with Functions(called):
                yield called


class _Sink(io.TextIOBase):
    """Takes what is printed and keeps nothing of it."""

    def write(self, text: str) -> int:
        return len(text)


def values(returned: Any) -> tuple[Value, ...]:
    """What was returned, flat: arrays with their numbers copied at once, so that no later write can reach them."""
    if returned is None:
        return ()
    if isinstance(returned, (tuple, list)):
        return tuple(v for r in returned for v in ((_listed(r),) if _numbers(r) or _whole(r) else values(r)))
    if hasattr(returned, "detach"):
        return (Value(to_numpy(returned).copy(), dtype_name(returned), "torch"),)
    array = np.array(returned)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"expected numbers or arrays back, got {type(returned).__name__}")
    return (Value(array, str(array.dtype), "numpy" if isinstance(returned, (np.ndarray, np.generic)) else "python"),)


def _numbers(x: Any) -> bool:
    """A list of plain numbers, or of such lists: an array in Python's own form."""
    return isinstance(x, list) and bool(x) and all(isinstance(y, (bool, int, float)) or _numbers(y) for y in x)


def _whole(x: Any) -> bool:
    """A list or tuple of whole numbers, or of such: NumPy's integers and tensors without axes may be among them."""
    return isinstance(x, (list, tuple)) and bool(x) and all(_integer(y) or _whole(y) for y in x)


def _integer(x: Any) -> bool:
    if isinstance(x, (bool, int, np.integer)):
        return True
    array = to_numpy(x) if hasattr(x, "detach") else x
    return isinstance(array, np.ndarray) and not array.ndim and array.dtype.kind in "iu"


def _plain(x: Any) -> Any:
    return (
        [_plain(y) for y in x] if isinstance(x, (list, tuple)) else x if isinstance(x, (bool, int, float)) else int(x)
    )


def _listed(x: Any) -> Value:
    try:
        array = np.array(_plain(x))
    except ValueError:  # rows of different lengths
        raise TypeError("expected numbers or arrays back, got a list whose rows differ in length") from None
    return Value(array, str(array.dtype), "python")


def trouble(error: BaseException) -> Trouble:
    """The exception in plain data, with the last line of the learner's own code on its way."""
    if isinstance(error.__cause__, NotImplementedError):  # raised in a Triton kernel, it comes wrapped
        error = error.__cause__
    if getattr(error, "source", None) and getattr(error, "line", None):  # the watch's faults know the kernel's line
        what, _, _ = str(error).partition("\n  kernel ")
        program = getattr(error, "program", None)
        what += f" (program {program})" if program and str(program) not in what else ""
        source, at = str(error.source).strip(), int(error.line)  # type: ignore[attr-defined]
        site = getattr(error, "site", None)
        if site is not None and site.callers and site.files:  # in a helper: the kernel's own line says more
            file, number = site.files[-1], site.callers[-1][1]
            what += f" (in {site.function}, which the line below calls)"
            source, at = linecache.getline(file, number).strip() or source, number
        return Trouble(type(error).__name__, what, source, at)
    own = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((_HERE, *_PYTHON, "<frozen")) and f.filename != "<string>"
    ]
    line, number = (own[-1].line or "", own[-1].lineno or 0) if own else ("", 0)
    return Trouble(type(error).__name__, str(error).strip()[:2000], line.strip(), number)


def copied(x: Any) -> Any:
    """A deep copy of arrays and tensors in tuples, lists, dicts; a tensor keeps its strides and gaps where it can."""
    if isinstance(x, np.ndarray):
        return x.copy(order="K")
    if hasattr(x, "detach"):
        x = x.detach()
        with_gaps = x.numel() and 0 not in x.stride() and x.untyped_storage().nbytes() > x.nbytes
        return x.new_empty_strided(x.size(), x.stride()).copy_(x) if with_gaps else x.clone()
    if isinstance(x, (Stream, Slot)):
        return x.fresh()
    if isinstance(x, dict):
        return {k: copied(v) for k, v in x.items()}
    if type(x) in (tuple, list):
        return type(x)(copied(v) for v in x)
    return x


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or hasattr(a, "detach"):
        a, b = to_numpy(a), to_numpy(b)
        return bool(a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    return True
