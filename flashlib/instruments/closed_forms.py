"""What the programs of `pipelines` move, as formulas: bytes by kernel and by tensor, tile sizes that fit, Θ terms.

N² appears in both: flash attention's *traffic* is still quadratic, N²d²/M against N² of the four steps. It is the
extra *memory* that is linear. In the formulas of the FlashAttention paper (arXiv 2205.14135, Theorem 2) M counts
elements; everything else here is in bytes.
"""

from __future__ import annotations

import math

# Widths of a tile of S. It is to be tall, and 16 keys are what a tensor core takes at once; fewer only where the tile
# would otherwise be wider than tall.
PANEL_COLUMNS = (16, 4, 1)


def chip_itemsize(itemsize: int) -> int:
    """Bytes of a number that was computed on chip: float32, or float64 for float64 inputs."""
    return max(4, itemsize)


def visible_keys(row_end: int, n_q: int, n_k: int) -> int:
    """How many keys the row before `row_end` sees, causal and bottom-right aligned: keys 0 … i + (Nk − Nq)."""
    return min(max(row_end + n_k - n_q, 0), n_k)


# -- flash ------------------------------------------------------------------------------------------------------------
def flash_by_tensor(
    Nq: int, Nk: int, d: int, dv: int, block_q: int, block_k: int, itemsize: int, causal: bool = False, lse: bool = True
) -> dict[str, int]:
    """Bytes that `pipelines.flash` moves, by tensor: Q, K, V are read, O and LSE are written.

    Q and O cross once. K and V cross once for each tile of Q: ⌈Nq/Br⌉·Nk·(d + dv) elements, or, causal, as many whole
    key tiles as the last row of the Q tile can see.
    """
    keys = 0
    for start in range(0, Nq, block_q):
        seen = visible_keys(min(start + block_q, Nq), Nq, Nk) if causal else Nk
        keys += min(math.ceil(seen / block_k) * block_k, Nk)
    moved = {"Q": Nq * d, "K": keys * d, "V": keys * dv, "O": Nq * dv}
    out = {name: elements * itemsize for name, elements in moved.items()}
    return out | ({"LSE": Nq * chip_itemsize(itemsize)} if lse else {})


def flash_bytes(
    Nq: int, Nk: int, d: int, dv: int, block_q: int, block_k: int, itemsize: int, causal: bool = False, lse: bool = True
) -> int:
    """All bytes that `pipelines.flash` moves; equal to the machine's count for every tile size."""
    return sum(flash_by_tensor(Nq, Nk, d, dv, block_q, block_k, itemsize, causal, lse).values())


def flash_sram(block_q: int, block_k: int, d: int, dv: int | None = None, itemsize: int = 4) -> int:
    """SRAM in bytes that one Q tile and one key tile of `pipelines.flash` take: Q, K, V, S, acc, m, l."""
    dv = d if dv is None else dv
    inputs = block_q * d + block_k * (d + dv)
    computed = block_q * block_k + block_q * (dv + 2)
    return inputs * itemsize + computed * chip_itemsize(itemsize)


def flash_tiles(sram_bytes: float, d: int, dv: int | None = None, itemsize: int = 4) -> tuple[int, int]:
    """The tiles (Br, Bc) with which `pipelines.flash` moves least in `sram_bytes`: the tallest Q tile that fits.

    K and V are read ⌈Nq/Br⌉ times, whatever Bc is: so Bc is 16 (4 or 1 if Br would be less), and Br takes the rest,
    Br ≈ M/(d + dv + 18) numbers. One more row would not fit. The paper takes Bc = ⌈M/4d⌉ and Br = min(Bc, d), the other
    way round, because its outer loop runs over K and V; and it leaves no room for S, which `flash_sram` counts.

    Raises
    ------
    ValueError where not even one row and one key fit: the algorithm needs M of a few times d elements.
    """
    if math.isinf(sram_bytes):
        raise ValueError("SRAM without a limit has no largest tile: give the tile sizes")
    for columns in PANEL_COLUMNS:
        fixed = flash_sram(0, columns, d, dv, itemsize)
        a_row = flash_sram(1, columns, d, dv, itemsize) - fixed
        rows = int((sram_bytes - fixed) // a_row)
        if rows >= columns:
            return rows, columns
    need = flash_sram(1, 1, d, dv, itemsize)
    raise ValueError(f"one row and one key of d = {d} need {need:,} B of SRAM, there are {sram_bytes:,} B")


# -- the four steps ---------------------------------------------------------------------------------------------------
def four_steps_tiles(
    sram_bytes: float, d: int, dv: int | None = None, itemsize: int = 4, block: int | tuple[int, int] | None = None
) -> tuple[int, int]:
    """The (rows, columns) that `pipelines.four_steps` cuts S into: `block` if given, else the tallest panel that fits.

    The panel has 16 columns (4 or 1 if it would be less tall than that): its height is what counts, since K and V are
    read once a panel.
    """
    if block is not None:
        rows, columns = (block, block) if isinstance(block, int) else block
        if min(rows, columns) < 1:
            raise ValueError(f"block must be positive, got {block}")
        return rows, columns
    if math.isinf(sram_bytes):
        raise ValueError("SRAM without a limit has no largest tile: give `block`")
    width = max(d, d if dv is None else dv, 2)  # the softmax keeps two numbers a row beside S
    chip = chip_itemsize(itemsize)
    for columns in PANEL_COLUMNS:
        # QKᵀ holds Q, K and S; PV holds P, V and acc. Counted as if the panel were of the wider dtype in both.
        room = sram_bytes - columns * width * itemsize
        rows = int(room // ((columns + width) * chip))
        if rows >= columns:
            return rows, columns
    raise ValueError(f"one row and one key of d = {width} do not fit in {sram_bytes:,} B of SRAM")


def softmax_rows(sram_bytes: float, Nk: int, itemsize: int, rows: int) -> int:
    """How many whole rows of S (at most `rows`) the softmax kernel holds on chip; 0: none, so it reads S three times.

    A row takes Nk numbers and its maximum and sum, as computed on chip.
    """
    return int(min(rows, sram_bytes // ((Nk + 2) * chip_itemsize(itemsize))))


def four_steps_by_kernel(
    Nq: int,
    Nk: int,
    d: int,
    dv: int,
    itemsize: int,
    *,
    sram_bytes: float,
    block: int | tuple[int, int] | None = None,
    causal: bool = False,
) -> dict[str, tuple[int, int]]:
    """Bytes (read, written) by each kernel of `pipelines.four_steps` on a machine with `sram_bytes` of SRAM.

    Every N² term is explicit: S is written, read and written by the scale, again by the mask, read once or three times
    by the softmax; P is written and read. Nothing is saved by the causal mask: these kernels do not skip.
    """
    rows, _ = four_steps_tiles(sram_bytes, d, dv, itemsize, block)
    panels = math.ceil(Nq / rows)
    square = Nq * Nk
    sweeps = 1 if softmax_rows(sram_bytes, Nk, itemsize, rows) else 3
    elements = {
        "QKᵀ": (Nq * d + panels * Nk * d, square),
        "scale": (square, square),
        "mask": (square, square),
        "softmax": (sweeps * square, square),
        "PV": (square + panels * Nk * dv, Nq * dv),
    }
    if not causal:
        del elements["mask"]
    return {kernel: (read * itemsize, written * itemsize) for kernel, (read, written) in elements.items()}


def four_steps_bytes(
    Nq: int,
    Nk: int,
    d: int,
    dv: int,
    itemsize: int,
    *,
    sram_bytes: float,
    block: int | tuple[int, int] | None = None,
    causal: bool = False,
) -> int:
    """All bytes that `pipelines.four_steps` moves; equal to the machine's count."""
    kernels = four_steps_by_kernel(Nq, Nk, d, dv, itemsize, sram_bytes=sram_bytes, block=block, causal=causal)
    return sum(read + written for read, written in kernels.values())


# -- Theorem 2 --------------------------------------------------------------------------------------------------------
def standard_theta(N: int, d: int) -> int:
    """Nd + N²: HBM accesses of standard attention in **elements**, up to a constant factor (Theorem 2)."""
    return N * d + N * N


def flash_theta(N: int, d: int, M: float) -> float:
    """N²d²/M: HBM accesses of FlashAttention in **elements**, up to a constant factor, for d ≤ M ≤ Nd (Theorem 2).

    M is the size of SRAM in **elements**: sram_bytes / itemsize. Below M ≈ d² this is more than standard attention's
    (Saha & Ye, arXiv 2402.07443).
    """
    return N * N * d * d / M
