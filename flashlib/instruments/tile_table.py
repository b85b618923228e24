"""Every entry of `algorithms.tiles` and `decode_tiles`, compiled and judged: `python -m flashlib compile` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flashlib.instruments.compiled import SPILL_LIMIT, Compiled, CompileError, Job, compile_all
from flashlib.instruments.kernel_text import python_function
from flashlib.instruments.occupancy import CAPABILITIES

KERNELS = {
    "forward": ("flashlib.algorithms.triton_forward", "forward_kernel"),
    "dkdv": ("flashlib.algorithms.triton_backward", "dkdv_kernel"),
    "dq": ("flashlib.algorithms.triton_backward", "dq_kernel"),
}
DECODE = {"decode": ("flashlib.algorithms.triton_decode", "split_kernel")}  # its tiles have a table of their own
WIDTHS = (16, 32, 64, 128, 256)
_TRITON = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# A launch as it would be: 16 heads in groups of 4, lengths that no tile divides, contiguous tensors.
_HEADS, _GROUP, _LENGTH = 16, 4, 4001
_NUMBERS = {
    "H": _HEADS, "GROUP": _GROUP, "Sq": _LENGTH, "Sk": _LENGTH, "scale": 0.125, "scale_log2": 0.18,
    "seed": 2**40 + 1, "threshold": 429496729, "inverse_keep": 1.1, "NEGATE": False,
    "Hkv": _HEADS // _GROUP, "CHUNK": 501, "SPLITS": 8, "table_stride": 251, "PAGE": 0,
}  # fmt: skip
_FLOAT32 = ("LSE", "DELTA", "DLSE")
_INT32 = ("LENGTHS", "TABLE")


@dataclass(frozen=True)
class Case:
    """One entry of the table (a `tiles.Tile`) on a chip that takes it, at one padded width D and dtype.

    The heads' own width is `D` − `short`: with short > 0 their loads are masked.
    """

    entry: Any
    capability: tuple[int, int]
    D: int
    dtype: str
    causal: bool = True
    dropout: bool = False
    short: int = 0

    @property
    def chip(self) -> str:
        """As "sm80"."""
        return "sm{}{}".format(*self.capability)

    @property
    def kernel(self) -> str:
        """As "forward"."""
        return self.entry.kernel

    def job(self) -> Job:
        """The kernel, its arguments and the chip, for `compiled.compile_all`."""
        module, name = (KERNELS | DECODE)[self.entry.kernel]
        kernel = getattr(import_module(module), name)
        return Job(kernel, self.arguments(kernel), self.capability, self.entry.warps, self.entry.stages)

    def arguments(self, kernel: Any) -> dict[str, Any]:
        """What a launch would pass, by the kernel's parameter names; ValueError for a name that has no meaning here."""
        d = self.D - self.short
        known: dict[str, Any] = {
            **_NUMBERS, "D": d, "DV": d, "BLOCK_D": self.D, "BLOCK_DV": self.D, "CAUSAL": self.causal,
            "DROPOUT": self.dropout, "BLOCK_M": self.entry.block_m, "BLOCK_N": self.entry.block_n,
            "BLOCK_R": self.entry.block_m,
        }  # fmt: skip
        strides = (_HEADS * _LENGTH * d, _LENGTH * d, d, 1)
        pointer = "*" + _TRITON[self.dtype]
        result = {}
        for name in inspect.signature(python_function(kernel)).parameters:
            if name in known:
                result[name] = known[name]
            elif name.endswith("_strides"):
                result[name] = strides
            elif name in _FLOAT32 or (name == "O" and self.kernel == "decode"):  # parts are kept in float32
                result[name] = "*fp32"
            elif name in _INT32:
                result[name] = "*i32"
            elif name.strip("_") in ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV"):
                result[name] = pointer
            else:
                raise ValueError(f"tile_table does not know what {self.entry.kernel}'s parameter {name!r} takes")
        return result

    def faults(self, result: Compiled | CompileError) -> list[str]:
        """What is wrong with this entry, in words; empty if it holds what `tiles` promises."""
        if isinstance(result, CompileError):
            return [str(result).strip().splitlines()[-1]]
        wrong = list(result.why)
        if result.spills:
            wrong.append(f"spills {result.spill_bytes} B a thread (at most {SPILL_LIMIT})")
        if not result.loops:
            wrong.append("no loop holds a dot")
        has_cores = self.dtype != "float32" and self.capability >= (8, 0)
        if has_cores and not all(c.tensor_core for c in result.loops):
            wrong.append("no tensor-core instructions")
        return wrong


def cases(
    entries: Iterable[Any] | None = None, *, chip: str | None = None, dtype: str | None = None,
    kernel: str | None = None, width: int | None = None, dropout: bool = False, ragged: bool = False,
) -> list[Case]:  # fmt: skip
    """What is launched on each of the seven chips, at each padded width and dtype; "16-bit" is float16 and bfloat16.

    Parameters
    ----------
    entries : those of `flashlib.algorithms.tiles` by default. A chip takes the entry that `tiles.lookup` gives it.
    chip, dtype, kernel, width : keep only these, as "sm80", "float16", "forward", 64.
    dropout : with dropout. The decode kernel has none.
    ragged : with heads narrower than the tile, so that loads are masked: 8 columns short of it (rows are unaligned
        then), and from 64 on a quarter short (they are aligned).
    """
    tiles = import_module("flashlib.algorithms.tiles")
    entries = list(tiles.ENTRIES if entries is None else entries)
    widths = [(D, short) for D in WIDTHS for short in (_short(D) if ragged else (0,))]
    result = []
    for capability in CAPABILITIES:
        for name, kind in dict.fromkeys((e.kernel, e.dtype) for e in entries if not (dropout and e.kernel == "decode")):
            # Turing has no bfloat16: torch emulates it there
            both = ("float16", "bfloat16") if capability >= (8, 0) else ("float16",)
            for D, short in widths:
                found = tiles.fitting(entries, name, capability, D - short, kind, dropout)
                for t in (both if kind == "16-bit" else (kind,)) if found else ():  # none: PyTorch takes over there
                    result.append(Case(tiles.best(found), capability, D, t, dropout=dropout, short=short))
    wanted = ((chip, "chip"), (dtype, "dtype"), (kernel, "kernel"), (width, "D"))
    return [c for c in result if all(value in (None, getattr(c, what)) for value, what in wanted)]


def _short(D: int) -> tuple[int, ...]:
    return (D // 4, 8) if D >= 64 else (8,)  # below 64 no multiple of 16 is padded


def all_entries() -> list[Any]:
    """Those of `flashlib.algorithms.tiles`, and the decode kernel's."""
    return [e for name in ("tiles", "decode_tiles") for e in import_module(f"flashlib.algorithms.{name}").ENTRIES]


def compile_table(table: list[Case], *, jobs: int | None = None) -> Iterator[tuple[int, Compiled | CompileError]]:
    """Compile them, `jobs` at a time: (index, result) as they finish."""
    return compile_all([case.job() for case in table], jobs=jobs)


def as_dict(case: Case, result: Compiled | CompileError) -> dict[str, Any]:
    """One row, for JSON."""
    e = case.entry
    row: dict[str, Any] = {
        "kernel": e.kernel, "chip": case.chip, "D": case.D - case.short, "dtype": case.dtype, "block_m": e.block_m,
        "block_n": e.block_n, "warps": e.warps, "stages": e.stages, "faults": case.faults(result),
    }  # fmt: skip
    if isinstance(result, Compiled):
        kinds = ("total", "tensor_core", "fma", "special_function", "load_store", "spills")
        row |= {
            "registers": result.registers, "spill_bytes": result.spill_bytes, "shared_bytes": result.shared_bytes,
            "shared_limit": result.shared_limit, "blocks_per_sm": result.occupancy.blocks,
            "occupancy": result.occupancy.fraction, "limited_by": list(result.occupancy.limits),
            "loops": [{k: getattr(c, k) for k in kinds} for c in result.loops], "triton": result.triton,
        }  # fmt: skip
    return row
