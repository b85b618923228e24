"""What this machine has, what each chapter will do on it, and what to install if something is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from flashlib import __version__
from flashlib.setup import TRITON_FOR_TORCH, cores, cpu_name, decide_interpreter, find_gpu, version

ROOT = Path(__file__).resolve().parent.parent
NEED = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+?)\s*(?:>=(?P<least>[0-9.]+))?\s*(?:;\s*(?P<marker>.*))?$")


def needed() -> dict[str, str]:
    """Package -> oldest version that will do, "" for any; from pyproject.toml, or else from the metadata."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        data = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        lines = data["dependencies"] + data["optional-dependencies"]["lab"]
    else:
        lines = [r for r in importlib.metadata.requires("flashlib") or [] if "dev" not in r]
    out = {}
    for line in lines:
        found = NEED.match(line.replace(" ", ""))
        if not found:
            continue
        if "sys_platform" in (found["marker"] or "") and sys.platform != "linux":
            continue
        out[found["name"]] = found["least"] or ""
    return out


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])


def _imports(package: str) -> str:
    """ "" if the package imports, otherwise the error in one line: an installed package can still be broken."""
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever it is, the reader wants to see it and not a traceback
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""


def _packages() -> dict[str, dict[str, str]]:
    """For each package: version, what is wanted, and what is wrong with it ("" if nothing)."""
    out = {}
    for name, least in needed().items():
        have = version(name)
        if have is None:
            problem = "missing"
        elif least and _numbers(have) < _numbers(least):
            problem = f"older than {least}"
        else:
            problem = _imports(name) if name in ("numpy", "torch", "triton", "matplotlib", "ipywidgets") else ""
        out[name] = {"version": have or "", "wanted": f">={least}" if least else "any", "problem": problem}
    torch, triton = out.get("torch"), out.get("triton")
    if torch and triton and torch["version"] and triton["version"] and not triton["problem"]:
        fits = TRITON_FOR_TORCH.get(".".join(torch["version"].split(".")[:2]))
        triton["fits_torch"] = "yes" if triton["version"] == fits else f"torch asks for {fits or 'another one'}"
    return out


def _advice(packages: dict[str, dict[str, str]], gpu: bool) -> list[str]:
    """The command that puts right what is wrong; nothing if nothing is."""
    wrong = [n for n, p in packages.items() if p["problem"]]
    if not wrong:
        return []
    if {"torch", "triton"} & set(wrong) and sys.platform == "linux" and not gpu:
        # Plain pip would fetch the CUDA build: 3 GB of no use here.
        if (ROOT / "Makefile").is_file():
            return [f"cd {ROOT} && make .venv/.ok"]
        return ["uv pip install --torch-backend=cpu flashlib"]
    wants = " ".join(f'"{n}{packages[n]["wanted"] if packages[n]["wanted"] != "any" else ""}"' for n in wrong)
    return [f"{sys.executable} -m pip install --upgrade {wants}"]


def _chip() -> dict[str, Any]:
    """The GPU if there is one that torch can use, otherwise the CPU."""
    gpu = find_gpu()
    chip: dict[str, Any] = {"kind": "cpu", "name": cpu_name(), "cores": cores(), "note": ""}
    torch = sys.modules.get("torch")
    if gpu and torch is not None and not torch.cuda.is_available():
        chip["note"] = f"{gpu.name} is there, but torch cannot use it (most often its driver is too old)"
    elif gpu:
        chip |= {"kind": "cuda", "name": gpu.name, "capability": list(gpu.capability)}
        if gpu.capability < (8, 0):
            chip["note"] = "before capability 8.0: bfloat16 is emulated, and Triton has no tensor cores here"
    return chip


def _chapters(packages: dict[str, dict[str, str]], chip: dict[str, Any]) -> list[dict[str, Any]]:
    """What each chapter does here; empty where course.toml is not at hand (flashlib installed without the course)."""
    plan = ROOT / "course.toml"
    if not plan.is_file():
        return []
    out = []
    for c in tomllib.loads(plan.read_text(encoding="utf-8"))["chapter"]:
        uses = ["numpy", "matplotlib", "ipywidgets"]
        uses += [p for p in ("torch", "triton") if c.get(p)]
        problems = {p: packages.get(p, {"problem": "exists for Linux only"})["problem"] for p in uses}
        lacking = [p for p in uses if problems[p]]
        if lacking:
            here = "cannot run yet: " + ", ".join(f"{p} ({problems[p]})" for p in lacking)
        elif c["gpu"] == "optional" and chip["kind"] == "cuda":
            here = f"runs on {chip['name']}"
        else:
            here = f"runs on the CPU, in less than {c['cpu_limit_s']} s on two cores"
            if c["gpu"] == "optional":
                here += "; with a GPU the same cells use it"
        out.append({"number": c["number"], "title": c["title"], "runs": not lacking, "here": here})
    return out


def examine() -> dict[str, Any]:
    """All that `doctor` knows, as plain data for JSON.

    Returns
    -------
    dict
        ``flashlib``, ``python``, ``platform``, ``chip``, ``triton_kernels``, ``packages``, ``chapters``, ``install``
        (commands to type), ``ok``.
    """
    interpreted = decide_interpreter(find_gpu())
    packages = _packages()
    chip = _chip()
    if packages.get("triton", {"problem": "missing"})["problem"]:
        kernels = "not available here; chapters 06 to 08 need them"
    else:
        kernels = "interpreted on the CPU" if interpreted else "compiled for the GPU"
    return {
        "flashlib": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "folder": os.fspath(ROOT),
        "chip": chip,
        "triton_kernels": kernels,
        "packages": packages,
        "chapters": _chapters(packages, chip),
        "install": _advice(packages, chip["kind"] == "cuda"),
        "ok": not any(p["problem"] for p in packages.values()),
    }
