"""What the first cell of every notebook runs: say what is here, and settle how Triton will run. Standard library only.

Triton decides when it is imported whether its kernels are compiled for a GPU or interpreted on the CPU, so the choice
must be made before that, without importing torch: NumPy chapters never load it, and setup stays well under a second.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from dataclasses import dataclass

# Which triton each torch asks for (torch's own wheel metadata). Colab's CPU image has torch and no triton.
TRITON_FOR_TORCH = {
    "2.9": "3.5.0",
    "2.10": "3.6.0",
    "2.11": "3.6.0",
    "2.12": "3.7.1",
    "2.13": "3.7.1",
    "2.14": "3.8.0",
    "2.15": "3.9.0",
}


@dataclass(frozen=True)
class Gpu:
    """A CUDA GPU as its driver describes it: name and compute capability."""

    name: str
    capability: tuple[int, int]


def version(package: str) -> str | None:
    """A package's installed version, read without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _visible(count: int) -> list[int]:
    """Indices the process may use, from CUDA_VISIBLE_DEVICES; names such as "GPU-8a..." are taken to mean the first."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(range(count))
    out = []
    for part in (p.strip() for p in wanted.split(",") if p.strip()):
        index = int(part) if part.lstrip("-").isdigit() else 0
        if not 0 <= index < count:
            break  # CUDA ignores everything from the first bad index on
        out.append(index)
    return out


def find_gpu() -> Gpu | None:
    """The first CUDA GPU this process may use, or None.

    Asks the driver's management library (NVML), not CUDA: that takes milliseconds, creates no CUDA context and stays
    safe if the process forks later. A torch built without CUDA cannot use a GPU, so then the answer is None as well.
    """
    if (version("torch") or "").endswith("+cpu"):
        return None
    try:
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        visible = _visible(count.value)
        handle = ctypes.c_void_p()
        if not visible or nvml.nvmlDeviceGetHandleByIndex_v2(visible[0], ctypes.byref(handle)) != 0:
            return None
        name = ctypes.create_string_buffer(96)
        major, minor = ctypes.c_int(), ctypes.c_int()
        if nvml.nvmlDeviceGetName(handle, name, 96) != 0:
            return None
        if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
            return None
        return Gpu(name.value.decode(errors="replace"), (major.value, minor.value))
    except AttributeError:  # a driver too old for one of these calls
        return None
    finally:
        nvml.nvmlShutdown()


def cpu_name() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """How many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decide_interpreter(gpu: Gpu | None) -> bool:
    """Set TRITON_INTERPRET=1 if there is no GPU and nobody has chosen; True if Triton kernels will be interpreted.

    Call it before triton is first imported in the process; afterwards the variable has no effect.
    """
    if gpu is None and "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "1"
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def need_triton() -> None:
    """For chapters that write Triton kernels: on Colab install the triton that fits the torch there, if it is missing.

    Raises
    ------
    ModuleNotFoundError
        If triton is missing and this is not Colab; the message says what to do.
    """
    if importlib.util.find_spec("triton") is not None:
        return
    torch_version = version("torch") or ""
    wanted = TRITON_FOR_TORCH.get(".".join(torch_version.split(".")[:2]))
    if "google.colab" in sys.modules and wanted:
        # --no-deps: nothing that the running kernel has already loaded may be replaced under it.
        line = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"triton=={wanted}"]
        print("installing triton", wanted, "for torch", torch_version, "(once per Colab machine)")
        subprocess.run(line, check=True)
        importlib.invalidate_caches()
        return
    if sys.platform != "linux":
        raise ModuleNotFoundError("triton runs on Linux only; on Windows use WSL, on a Mac use Colab for this chapter")
    raise ModuleNotFoundError(
        f"triton is not installed; run: {sys.executable} -m pip install --no-deps triton=={wanted or '<see doctor>'}"
    )


def _style_when_matplotlib_comes() -> None:
    """Give figures the course's style once matplotlib is there, without loading it for a chapter that draws none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return

    def style(*_: object) -> None:
        if "matplotlib" in sys.modules:
            shell.events.unregister("pre_run_cell", style)
            importlib.import_module("flashlib.show.style").apply()

    shell.events.register("pre_run_cell", style)


def setup() -> None:
    """Print versions and device in two lines and settle how Triton runs; call it before anything imports triton."""
    gpu = find_gpu()
    late = "triton" in sys.modules
    interpreted = decide_interpreter(gpu)
    here = importlib.import_module("flashlib").__version__
    found = [f"{p} {version(p) or 'missing'}" for p in ("numpy", "torch", "triton", "matplotlib", "ipywidgets")]
    print(f"flashlib {here}, Python {platform.python_version()}, " + ", ".join(found))
    if gpu:
        chip = f"{gpu.name} (capability {gpu.capability[0]}.{gpu.capability[1]})"
        how = "interpreted on the CPU, as TRITON_INTERPRET asks" if interpreted else "compiled for the GPU"
    else:
        chip = f"no CUDA GPU; {cpu_name()}, {cores()} core{'s' if cores() > 1 else ''}"
        how = "interpreted on the CPU" if interpreted else "compiled, as TRITON_INTERPRET asks"
    print(f"{chip}. Triton kernels: {how}.")
    if late and interpreted and importlib.import_module("triton").knobs.runtime.interpret is False:
        print("Triton was imported before this cell; restart the kernel, or its kernels will look for a GPU.")
    _style_when_matplotlib_comes()
