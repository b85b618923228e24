"""Data sheets of the chips that the course speaks of, "this CPU" measured, and the arithmetic of the roofline.

Units: bytes, bytes per second, FLOP per second; one fused multiply-add is two FLOP. A data sheet's GB, TB/s and TFLOP/s
are powers of ten; shared memory and caches are given in KiB and MiB.

`flops` is the highest *dense* matmul rate of a dtype: tensor cores where the chip has them for that dtype, with
float32 accumulation, without the "sparsity" that doubles the figure in many data sheets; "float32" means full float32,
not TF32. What a kernel reaches in practice is less: clocks fall under load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Chip:
    """What a chip can hold and do. None where the figure does not exist or could not be read.

    `hbm_bytes` is the large memory (HBM, GDDR or RAM) and `bandwidth` its rate in B/s. `sram_per_block` is what one
    thread block can have, one core's own cache on a CPU; `l2_bytes` is the last cache before memory, shared by all.
    """

    name: str
    capability: tuple[int, int] | None
    hbm_bytes: int | None
    bandwidth: float
    flops: dict[str, float]
    sms: int
    sram_per_block: int | None
    sram_per_sm: int | None
    l2_bytes: int | None
    source: str

    def rate(self, dtype: str) -> float:
        """Dense matmul FLOP/s for `dtype`; ValueError names what the chip has if this is not among it."""
        key = str(dtype).removeprefix("torch.")
        if key not in self.flops:
            raise ValueError(f"{self.name} has no {key} matmul rate; it has {', '.join(self.flops)}")
        return self.flops[key]

    def ridge(self, dtype: str) -> float:
        """FLOP per byte at which memory and arithmetic take equally long: below it, memory decides."""
        return self.rate(dtype) / self.bandwidth


@dataclass(frozen=True)
class Roof:
    """What the roofline promises: no run is faster than `seconds`.

    `intensity` and `ridge` in FLOP/B, `attainable` in FLOP/s, `bound` says which of the two limits it is.
    """

    seconds: float
    bound: Literal["memory", "compute"]
    intensity: float
    ridge: float
    attainable: float

    def __str__(self) -> str:
        return (
            f"at least {self.seconds * 1e3:.3g} ms, bound by {self.bound}: {self.intensity:.3g} FLOP/B against a ridge "
            f"of {self.ridge:.3g}; at most {self.attainable / 1e12:.3g} TFLOP/s"
        )

    __repr__ = __str__


def roofline(chip: Chip, flops: float, bytes_: float, dtype: str) -> Roof:
    """The least time for `flops` FLOP that move `bytes_` bytes: max(bytes/bandwidth, flops/rate).

    Parameters
    ----------
    chip : one of `CHIPS`, or `this_cpu()`.
    flops, bytes_ : FLOP done and bytes moved to and from the large memory. Both ≥ 0, not both 0.
    dtype : "float16", "bfloat16", "tf32", "float32" or "float64".

    Returns
    -------
    Roof. With bytes_ = 0 the intensity is infinite and the chip computes at its full rate.

    Raises
    ------
    ValueError for a dtype that the chip has no rate for, or for negative or all-zero work.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    if not (flops >= 0 and bytes_ >= 0 and math.isfinite(flops + bytes_) and flops + bytes_ > 0):
        raise ValueError(f"flops and bytes must be finite, ≥ 0 and not both 0, got {flops} and {bytes_}")
    rate, ridge = chip.rate(dtype), chip.ridge(dtype)
    seconds = max(bytes_ / chip.bandwidth, flops / rate)
    intensity = flops / bytes_ if bytes_ else math.inf
    bound: Literal["memory", "compute"] = "memory" if intensity < ridge else "compute"
    return Roof(seconds, bound, intensity, ridge, min(rate, intensity * chip.bandwidth))


_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_TUNING = "https://docs.nvidia.com/cuda/{0}-tuning-guide/, section Unified Shared Memory/L1/Texture Cache"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper, https://resources.nvidia.com/en-us-tensor-core"
_ADA = "NVIDIA Ada GPU Architecture whitepaper, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"


def _tera(**rates: float) -> dict[str, float]:
    return {dtype: rate * 1e12 for dtype, rate in rates.items()}


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        # No bfloat16 and no TF32 on Turing: torch emulates bfloat16 there and says that it is supported.
        Chip(
            "T4", (7, 5), 16 * 10**9, 320e9, _tera(float16=65, float32=8.1, float64=8.1 / 32),
            40, 64 * KIB, 64 * KIB, 4 * MIB,
            "FLOP rates, memory: NVIDIA T4 datasheet, table Specifications, https://www.nvidia.com/content/dam/en-zz/"
            "Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf. Bandwidth: 256 bit at 10 Gbit/s (the "
            "datasheet prints 300 GB/s). "
            "float64 is 1/32 of float32, SMs, L2: NVIDIA Turing GPU Architecture whitepaper. "
            "Shared memory: " + _TUNING.format("turing"),
        ),
        Chip(
            "L4", (8, 9), 24 * 10**9, 300e9,
            _tera(float16=121, bfloat16=121, tf32=60, float32=30.3, float64=30.3 / 64),
            58, 99 * KIB, 100 * KIB, 48 * MIB,
            f"FLOP rates (half of the printed ones, which are with sparsity), memory: {_NVIDIA}l4/, Specifications. "
            f"float64 is 1/64 of float32: {_ADA}. SMs: 7,424 CUDA cores of 128 a SM. "
            "Shared memory: " + _TUNING.format("ada"),
        ),
        Chip(
            "A100", (8, 0), 80 * 10**9, 2039e9,
            _tera(float16=312, bfloat16=312, tf32=156, float32=19.5, float64=19.5),
            108, 163 * KIB, 164 * KIB, 40 * MIB,
            "80 GB SXM. FLOP rates, memory: NVIDIA A100 datasheet, table Specifications, https://www.nvidia.com/content/"
            "dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf. SMs, L2: "
            "NVIDIA A100 Tensor Core GPU Architecture whitepaper, https://images.nvidia.com/aem-dam/en-zz/Solutions/"
            "data-center/nvidia-ampere-architecture-whitepaper.pdf. Shared memory: " + _TUNING.format("ampere"),
        ),
        Chip(
            "H100", (9, 0), 80 * 10**9, 3.35e12,
            _tera(float16=989.4, bfloat16=989.4, tf32=494.7, float32=66.9, float64=66.9),
            132, 227 * KIB, 228 * KIB, 50 * MIB,
            f"SXM5. FLOP rates (dense), SMs, L2: {_HOPPER}. Memory and bandwidth: {_NVIDIA}h100/, Specifications. "
            "Shared memory: " + _TUNING.format("hopper"),
        ),
        Chip(
            "H200", (9, 0), 141 * 10**9, 4.8e12,
            _tera(float16=989.4, bfloat16=989.4, tf32=494.7, float32=66.9, float64=66.9),
            132, 227 * KIB, 228 * KIB, 60 * MIB,
            f"SXM. Memory and bandwidth: {_NVIDIA}h200/, Specifications. FLOP rates as H100, the same GH100 chip: "
            f"{_HOPPER}. SMs, L2: as reported by the CUDA driver. Shared memory: " + _TUNING.format("hopper"),
        ),
        Chip(
            "B200", (10, 0), 180 * 10**9, 8e12,
            _tera(float16=2250, bfloat16=2250, tf32=1100, float32=80, float64=40),
            148, 227 * KIB, 228 * KIB, 126 * MIB,
            f"In DGX/HGX B200, 1,000 W. Memory and bandwidth: {_NVIDIA}dgx-b200/, Specifications, 1/8 of 1,440 GB and "
            "64 TB/s (the driver's clocks give 7.7 TB/s a chip). FLOP rates (dense): NVIDIA Blackwell Architecture "
            "Technical Brief, table HGX B200, https://resources.nvidia.com/en-us-blackwell-architecture. SMs: as "
            "reported by the CUDA driver. L2 and shared memory: " + _TUNING.format("blackwell"),
        ),
        # With float16 accumulation the 4090's float16 rate doubles to 330: too coarse a sum for attention.
        Chip(
            "RTX 4090", (8, 9), 24 * 10**9, 1008e9,
            _tera(float16=165.2, bfloat16=165.2, tf32=82.6, float32=82.6, float64=82.6 / 64),
            128, 99 * KIB, 100 * KIB, 72 * MIB,
            f"All but shared memory: {_ADA}, appendix A, table GeForce RTX 4090 (dense, FP32 accumulate). "
            "Shared memory: " + _TUNING.format("ada"),
        ),
    )
}  # fmt: skip


def this_cpu() -> Chip:
    """This computer as a `Chip`: bandwidth and FLOP/s measured once a process (about a second), caches where readable.

    Measured with NumPy: bandwidth by copying arrays larger than the caches on all cores (bytes read plus bytes written,
    best of several), FLOP/s by matmuls (best of several). Both are what NumPy reaches here, not the maker's figures.
    """
    from flashlib.instruments.cpu import measured_cpu

    return measured_cpu()
