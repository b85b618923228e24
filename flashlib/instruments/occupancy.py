"""How many blocks of a kernel share one SM, and what keeps the next one out."""

from __future__ import annotations

from dataclasses import dataclass

from flashlib.instruments.machine import CHIPS, KIB

REGISTERS = 65_536  # 32-bit registers an SM, on every chip here
_GIVEN = 256  # registers are given to a warp in units of this many


@dataclass(frozen=True)
class Limits:
    """Of one SM: bytes of shared memory a block can ask for and an SM has, resident threads and blocks.

    `reserved`: bytes of shared memory that the system takes for itself with each block.
    """

    shared_per_block: int
    shared_per_sm: int
    threads: int
    blocks: int
    reserved: int


# Threads and blocks: CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications. 8.6 (A10,
# RTX 3090) and 12.0 (RTX 5090) are not among the data sheets of `machine`: their shared memory is from the same table.
_RESIDENT = {
    (7, 5): (1024, 16), (8, 0): (2048, 32), (8, 6): (1536, 16), (8, 9): (1536, 24), (9, 0): (2048, 32),
    (10, 0): (2048, 32), (12, 0): (1536, 24),
}  # fmt: skip
_SHARED = {(8, 6): (99 * KIB, 100 * KIB), (12, 0): (99 * KIB, 100 * KIB)}
for _chip in CHIPS.values():
    if _chip.capability and _chip.sram_per_block and _chip.sram_per_sm:
        _SHARED[_chip.capability] = _chip.sram_per_block, _chip.sram_per_sm
CAPABILITIES = tuple(_RESIDENT)


def limits(capability: tuple[int, int]) -> Limits:
    """The limits of a chip by its compute capability; ValueError names those that are known."""
    if capability not in _RESIDENT:
        known = ", ".join(f"({a}, {b})" for a, b in CAPABILITIES)
        raise ValueError(f"compute capability {capability!r} is not known here: {known}")
    return Limits(*_SHARED[capability], *_RESIDENT[capability], 0 if capability < (8, 0) else KIB)


@dataclass(frozen=True)
class Occupancy:
    """Blocks that one SM holds at once; `fraction` of the threads it could hold; `limits`: what stops one more."""

    blocks: int
    fraction: float
    limits: tuple[str, ...]

    def __str__(self) -> str:
        many = "block" if self.blocks == 1 else "blocks"
        return f"{self.blocks} {many} an SM ({self.fraction:.0%}), limited by {' and '.join(self.limits)}"


def occupancy(capability: tuple[int, int], registers: int, shared_bytes: int, warps: int) -> Occupancy:
    """Theoretical occupancy: what the SM's sizes allow, whatever the kernel does.

    Parameters
    ----------
    capability : of the chip, as (8, 0).
    registers : a thread. shared_bytes : a block. warps : a block, 32 threads each.

    Returns
    -------
    Occupancy; blocks is 0 where a block asks for more than there is.

    Source: the rules of NVIDIA's occupancy calculator: registers are given to a warp 256 at a time, and from 8.0 up
    each block costs 1 KiB of shared memory more.
    """
    chip = limits(capability)
    a_warp = -(-registers * 32 // _GIVEN) * _GIVEN
    # An SM is four parts with a quarter of the registers each: warps that fit a part, times four.
    warps_by_registers = 4 * (REGISTERS // 4 // a_warp)
    shared = shared_bytes + chip.reserved
    by = {
        "registers": warps_by_registers // warps,
        "shared memory": chip.shared_per_sm // shared if shared else chip.blocks,
        "threads": chip.threads // (32 * warps),
        "blocks": chip.blocks,
    }
    if shared_bytes > chip.shared_per_block:
        by["shared memory"] = 0
    blocks = min(by.values())
    return Occupancy(blocks, blocks * warps * 32 / chip.threads, tuple(what for what, n in by.items() if n == blocks))
