"""Compile a Triton kernel for a GPU you do not have, and see what it would need there.

Triton's wheel carries NVIDIA's assembler, so no GPU and no CUDA is needed: `compile_for` gives registers, spilled
bytes, shared memory against the chip's limit, how many blocks fit an SM, and the instructions of the inner loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from typing import Any

from flashlib.instruments.kernel_text import describe, kernel_text, python_function
from flashlib.instruments.occupancy import Occupancy, limits, occupancy
from flashlib.instruments.sass import Counts, dot_loops, usage
from flashlib.instruments.workers import Workers

SPILL_LIMIT = 16  # bytes a thread: a few registers saved outside the loop cost nothing that can be measured


@dataclass(frozen=True)
class Compiled:
    """What a compiled kernel needs of a chip.

    `registers` and `spill_bytes` (stack) a thread, `shared_bytes` a block; `loops`: the instructions of the innermost
    loops that hold dots, in order of address; `why` names each limit of the chip that is passed. Sizes in bytes.
    """

    kernel: str
    capability: tuple[int, int]
    warps: int
    stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    shared_limit: int
    occupancy: Occupancy
    loops: tuple[Counts, ...]
    why: tuple[str, ...]
    triton: str
    ptx: str = field(repr=False)
    sass: str = field(repr=False)

    @property
    def fits(self) -> bool:
        """Can the chip launch it at all? Spills make a kernel slow, not impossible."""
        return not self.why

    @property
    def spills(self) -> bool:
        """More than `SPILL_LIMIT` bytes a thread."""
        return self.spill_bytes > SPILL_LIMIT

    @property
    def inner(self) -> Counts | None:
        """The largest of `loops` (a masked loop is larger than an unmasked one); None if no loop holds dots."""
        return max(self.loops, key=lambda c: c.total, default=None)

    def __str__(self) -> str:
        c = self.inner
        loop = "no loop holds a dot" if c is None else (
            f"inner loop {c.total} instructions: {c.tensor_core} tensor core, {c.fma} FMA, "
            f"{c.special_function} special function, {c.load_store} load/store"
        )  # fmt: skip
        return (
            f"{self.kernel} on sm{self.capability[0]}{self.capability[1]}, {self.warps} warps, {self.stages} stages: "
            f"{self.registers} registers, {self.spill_bytes} B spilled a thread, "
            f"{self.shared_bytes} of {self.shared_limit} B shared memory; {self.occupancy}; {loop}"
            + ("" if self.fits else "; does not fit: " + ", ".join(self.why))
        )


class CompileError(RuntimeError):
    """Triton, or the assembler, refused the kernel: the message is theirs."""


@dataclass(frozen=True)
class Job:
    """One kernel, its arguments and the chip; see `compile_for`."""

    kernel: Any
    arguments: dict[str, Any]
    capability: tuple[int, int]
    num_warps: int = 4
    num_stages: int = 3


def compile_for(
    kernel: Any, arguments: dict[str, Any], *, capability: tuple[int, int], num_warps: int = 4, num_stages: int = 3
) -> Compiled:
    """Compile a kernel for a chip, without that chip.

    Parameters
    ----------
    kernel : a function under @triton.jit, from a module or a notebook cell, interpreted here or not.
    arguments : what a launch would pass, by parameter name: tensors or "*fp16" for pointers, ints, floats, tuples of
        strides, and the values of tl.constexpr parameters. `kernel_text.describe` has the rules.
    capability : (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0) or (12, 0).
    num_warps, num_stages : as in a launch. 32 threads a warp.

    Returns
    -------
    Compiled. A call starts Triton in another process (about a second) and compiles (seconds); Triton caches repeats.

    Raises
    ------
    CompileError with Triton's message; ModuleNotFoundError without Triton; TypeError, ValueError for a wrong argument.
    """
    result = next(compile_all([Job(kernel, arguments, capability, num_warps, num_stages)], jobs=1))[1]
    if isinstance(result, Exception):
        raise result
    return result


def compile_all(
    work: Iterable[Job], *, jobs: int | None = None, timeout_s: float = 600
) -> Iterator[tuple[int, Compiled | CompileError]]:
    """Compile many, `jobs` at a time, one process each: (index, result) as they finish.

    A kernel that is refused, crashes the compiler or takes longer than `timeout_s` gives a CompileError in its place.
    """
    work = list(work)
    plain = [_plain(job) for job in work]  # mistakes in the arguments show here, before anything is compiled
    with Workers(min(jobs or os.cpu_count() or 1, max(1, len(work)))) as workers:
        futures = {workers.submit(p, timeout_s): i for i, p in enumerate(plain)}
        for future in as_completed(futures):
            i = futures[future]
            yield i, _read(work[i], future.result())


def _plain(job: Job) -> dict[str, Any]:
    limits(job.capability)
    name, text = kernel_text(job.kernel)
    described = describe(job.kernel, job.arguments)._asdict()
    sm = 10 * job.capability[0] + job.capability[1]
    return {"name": name, "text": text, "sm": sm, "warps": job.num_warps, "stages": job.num_stages, **described}


def _read(job: Job, answer: dict[str, Any]) -> Compiled | CompileError:
    if "error" in answer:
        return CompileError(answer["error"])
    registers, spilled = usage(answer["usage"])
    chip, warps = limits(job.capability), answer["warps"]
    why = []
    if answer["shared"] > chip.shared_per_block:
        why.append(f"{answer['shared']} B of shared memory, the chip gives a block {chip.shared_per_block}")
    if answer["tensor_memory"] > 512:
        why.append(f"{answer['tensor_memory']} columns of tensor memory, the chip has 512")
    fit = occupancy(job.capability, registers, answer["shared"], warps)
    if not fit.blocks and not why:
        why.append(f"not one block fits an SM: limited by {' and '.join(fit.limits)}")
    return Compiled(
        python_function(job.kernel).__name__, job.capability, warps, job.num_stages, registers, spilled,
        answer["shared"], chip.shared_per_block, fit,
        tuple(dot_loops(answer["sass"])), tuple(why), answer["triton"], answer["ptx"],
        answer["sass"],
    )  # fmt: skip
