"""Run the Triton tests on other Tritons than the pinned one, each unpacked into a folder of its own under build/.

python -m tools.triton_legs                 all legs
python -m tools.triton_legs 3.6.0           one of them
python -m tools.triton_legs --allow-offline say so, and do not fail, where a wheel cannot be fetched

Each leg is a process with its folder first on PYTHONPATH; whether Triton interprets there, tests/conftest.py decides.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KERNELS = tuple(f"tests/test_{name}.py" for name in ("triton", "interpreter", "compiled", "directional", "exactness"))
# bfloat16, which only our repair makes right, and hypothesis's cases of all dtypes: the others take minutes more.
CASES = (
    "test_triton or test_interpreter or test_compiled or (test_directional and triton) or "
    "(test_exactness and triton and (bfloat16 or any_shape))"
)


class Leg(NamedTuple):
    """One Triton: what else is unpacked beside it, and pytest's words."""

    triton: str
    numpy: str
    pytest: tuple[str, ...]


LEGS = (
    # the oldest that is supported, with a NumPy of its own time: its interpreter cannot do with a newer one
    Leg("3.6.0", "2.1.3", (*KERNELS, "-k", CASES)),
    Leg("3.9.0", "", (*KERNELS, "-k", CASES)),
    # the one that the limits of docs/LOOPS.md are for
    Leg("3.8.0", "", ("tests/test_compiled.py", "tests/test_loops.py", "-k", "limits or loops or page")),
)


class Result(NamedTuple):
    """How a leg ended: "passed", "failed", "not fetched"; the seconds, and the words to show."""

    state: str
    seconds: float
    text: str


def fetch(leg: Leg) -> tuple[Path, str]:
    """The folder with the leg's packages, and "" or why it could not be filled. A folder that is complete is kept."""
    numpy = leg.numpy if sys.version_info < (3, 14) else ""  # NumPy 2.1 has no wheels for 3.14: the course's own then
    packages = [f"triton=={leg.triton}", *([f"numpy=={numpy}"] if numpy else [])]
    folder = ROOT / "build" / f"triton-{leg.triton}"
    done = folder / ".complete"
    if done.is_file() and done.read_text(encoding="utf-8") == " ".join(packages):
        return folder, ""
    words = ["--no-deps", "--only-binary", ":all:", "--upgrade", "--no-input", "--disable-pip-version-check", "-q"]
    line = [sys.executable, "-m", "pip", "install", *words, "--target", str(folder), *packages]
    pip = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if pip.returncode:
        return folder, pip.stderr.strip() or pip.stdout.strip()
    done.write_text(" ".join(packages), encoding="utf-8")
    return folder, ""


def run(leg: Leg) -> Result:
    """Fetch one leg and run its tests."""
    start = time.perf_counter()
    folder, why = fetch(leg)
    if why:
        return Result("not fetched", time.perf_counter() - start, why)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": path}
    environment |= {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder / ".cache")}
    code = (
        "import importlib.metadata as m, sys, pytest; found = m.version('triton')\n"
        f"if found != {leg.triton!r}: sys.exit('the tests would see triton ' + found)\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *leg.pytest]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    state = "passed" if done.returncode == 0 else "failed"
    return Result(state, time.perf_counter() - start, (done.stdout + done.stderr).strip())


def main() -> int:
    """Run the legs, two at once, and print a line for each; exit status 1 if one failed or could not be fetched."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(leg.triton for leg in LEGS))
    parser.add_argument("--allow-offline", action="store_true", help="do not fail where a wheel cannot be fetched")
    options = parser.parse_args()
    unknown = set(options.versions) - {leg.triton for leg in LEGS}
    if unknown:
        parser.error(f"no leg for triton {', '.join(sorted(unknown))}")
    if sys.platform != "linux":
        print("Triton exists for Linux only: its tests on other versions were not run")
        return 0
    legs = [leg for leg in LEGS if not options.versions or leg.triton in options.versions]
    bad = False
    with ThreadPoolExecutor(max_workers=2) as pool:
        for leg, result in zip(legs, pool.map(run, legs), strict=True):
            bad |= result.state == "failed" or (result.state == "not fetched" and not options.allow_offline)
            print(
                f"triton {leg.triton}: {result.state} in {result.seconds:.0f} s: {last_line(result.text)}", flush=True
            )
            if result.state == "failed":
                print(result.text, flush=True)
            elif result.state == "not fetched":
                print("    offline? `make triton-legs LEGS=--allow-offline` goes on without it")
    return int(bad)


def last_line(text: str) -> str:
    """The last line of a program's output that holds something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    raise SystemExit(main())
