"""The GPU, its driver and its clocks, for whoever reads the numbers later."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from typing import Any

from flashlib import __version__
from flashlib.instruments.machine import CHIPS, Chip
from flashlib.setup import cores, cpu_name, version

# what nvidia-smi is asked for, and what we call it; W, MHz and °C
ASKED = {
    "driver_version": "driver", "power.limit": "power_limit_w", "clocks.max.sm": "sm_clock_max_mhz",
    "clocks.max.memory": "memory_clock_max_mhz", "clocks.sm": "sm_clock_mhz", "clocks.mem": "memory_clock_mhz",
    "temperature.gpu": "temperature_c", "persistence_mode": "persistence_mode",
}  # fmt: skip


def gpu_to_bench() -> str:
    """ "" if there is a CUDA GPU that torch can use and Triton compiles for it; else why not, in one line."""
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA GPU that torch can use"
    if torch.version.cuda is None:
        return "this torch is not built for CUDA, and the kernels have tiles for NVIDIA's chips only"
    if version("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"):
        return "TRITON_INTERPRET is set, so kernels would be interpreted on the CPU: unset it"
    return ""


def facts(device: Any) -> dict[str, Any]:
    """Chip, capability, memory, driver, clocks, power limit, and the versions of everything, as plain data."""
    import torch

    p = torch.cuda.get_device_properties(device)
    found = smi(p)
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "device": "cuda", "name": p.name, "capability": list(torch.cuda.get_device_capability(device)),
        "memory_bytes": p.total_memory, "sms": p.multi_processor_count,
        "l2_bytes": getattr(p, "L2_cache_size", None), **found,
        "cpu": cpu_name(), "cores": cores(), "platform": platform.platform(), "python": platform.python_version(),
        "flashlib": __version__, "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn,
        "triton": version("triton"), "flash_attn": version("flash-attn"),
    }  # fmt: skip


def smi(properties: Any) -> dict[str, Any]:
    """What nvidia-smi says of this GPU; None for what it does not know, and for everything where it is missing."""
    uuid = getattr(properties, "uuid", None)
    which = f"GPU-{uuid}" if uuid else "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits", f"--id={which}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return parse_smi("")
    return parse_smi(done.stdout if done.returncode == 0 else "")


def parse_smi(text: str) -> dict[str, Any]:
    """One line of values, in the order of `ASKED`, as plain data."""
    values = [v.strip() for v in text.strip().splitlines()[0].split(",")] if text.strip() else []
    if len(values) != len(ASKED):
        return dict.fromkeys(ASKED.values())
    return {name: _value(name, v) for name, v in zip(ASKED.values(), values, strict=True)}


def _value(name: str, text: str) -> Any:
    if not text or text.startswith("[") or text in ("N/A", "Unknown Error"):
        return None
    if name.endswith(("_w", "_mhz", "_c")):
        return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
    return text


def chip(name: str, sms: int | None) -> Chip | None:
    """The data sheet of this GPU, or None: the name must hold the chip's, and the number of SMs must be the sheet's.

    So an H100 PCIe, a laptop's 4090 or a slice of an A100 gets no roof that is not its own.
    """
    for known in CHIPS.values():
        if re.search(rf"\b{re.escape(known.name)}\b", name) and sms == known.sms and not re.search(r"NVL|MIG", name):
            return known
    return None
