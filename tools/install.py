"""Makes .venv and installs the course into it. Run by `make lab` and `make test`; standard library only.

On Linux, pip's plain answer to "torch" is the CUDA build with about 3 GB of NVIDIA's libraries, of no use without a
GPU. So without one this installs PyTorch's CPU build: through uv, which knows where PyTorch keeps it, and where that
cannot be reached through pip with constraints.txt, after a dry run has shown that no NVIDIA package would come along.
With a GPU, or on a Mac, pip's plain answer is the right one.

This file must parse on old Pythons, so that they can say that they are too old.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

OLDEST = (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
WHAT = ".[lab,dev]"
CUDA_PACKAGE = re.compile(r"^\s*\+?\s*((?:nvidia|cuda)-[a-z0-9-]+)", re.M)
started = time.time()


def say(text):
    """Print one line with the time since the start."""
    print("[{:4.0f} s] {}".format(time.time() - started, text), flush=True)


def stop(text):
    """Print what is wrong and what to do, and end with an error."""
    print("\n" + text, file=sys.stderr, flush=True)
    sys.exit(1)


def version_of(python):
    """(major, minor) of a Python program, or None if it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        out = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
        major, minor = out.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def use_new_enough_python():
    """If this Python is too old, start again with a newer one from the path; stop if there is none."""
    if sys.version_info >= OLDEST:
        return
    for minor in (13, 12, 11, 14, 15):  # the middle of the range first: every wheel exists for it
        python = shutil.which("python3.{}".format(minor))
        if python and (version_of(python) or (0, 0)) >= OLDEST:
            os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])
    stop(
        "The course needs Python {}.{} or newer; `{}` is {}.{}, and no newer one is on the path.\n"
        "Install one (python.org, your system's packages, or `uv python install 3.13`) and name it:\n"
        "    make lab PYTHON=/path/to/python3.13".format(*OLDEST, sys.executable, *sys.version_info[:2])
    )


def run(command, what, env=None):
    """Run a command without input, showing its latest line while it works. Returns (exit status, output)."""
    begun = told = time.time()
    show = sys.stdout.isatty()
    lines = []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(os.environ, PIP_NO_INPUT="1", **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    for line in process.stdout or []:
        lines.append(line.rstrip())
        words = line.strip()[:90]
        if show:
            print("\r\033[K         {}".format(words), end="", flush=True)
        elif time.time() - told > 15:
            told = time.time()
            say("... {}".format(words))
    status = process.wait()
    if show:
        print("\r\033[K", end="")
    say("{}: {} ({:.0f} s)".format(what, "done" if status == 0 else "did not work", time.time() - begun))
    return status, "\n".join(lines)


def tail(output, count=25):
    """The last lines of a program's output."""
    return "\n".join("    " + line for line in output.splitlines()[-count:])


def has_gpu():
    """Whether an NVIDIA driver answers."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return False
    try:
        return subprocess.call([smi, "-L"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60) == 0
    except subprocess.SubprocessError:
        return False


def venv_python():
    """The environment's Python program."""
    return os.path.join(VENV, "Scripts", "python.exe") if os.name == "nt" else os.path.join(VENV, "bin", "python")


def make_venv():
    """Make .venv unless a sound one is there."""
    if (version_of(venv_python()) or (0, 0)) >= OLDEST:
        say(".venv is there already")
        return
    version = "{}.{}".format(*sys.version_info[:2])
    status, out = run([sys.executable, "-m", "venv", "--clear", VENV], "new .venv with Python " + version)
    if status:
        stop(
            "Python could not make a virtual environment:\n{}\n"
            "On Debian and Ubuntu install its missing part: sudo apt install python{}-venv".format(tail(out), version)
        )


def pip(*words):
    """A pip command line for the environment."""
    return [venv_python(), "-m", "pip", "install", "--disable-pip-version-check", *words]


def find_uv():
    """uv from the path, or else installed into the environment; None where it cannot be had."""
    on_path = shutil.which("uv")
    if on_path:
        return [on_path]
    status, _ = run(pip("-q", "uv"), "fetching uv")
    return [venv_python(), "-m", "uv"] if status == 0 else None


def install_with_uv(uv, backend):
    """Let uv choose PyTorch's build. Returns True if all is installed; never installs CUDA packages for the CPU."""
    env = {"VIRTUAL_ENV": VENV, "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "0", "UV_NO_PROGRESS": "1"}
    line = [*uv, "pip", "install", "--torch-backend=" + backend]
    if backend == "cpu":
        status, out = run([*line, "--dry-run", "--reinstall", "torch>=2.9"], "asking uv for PyTorch's CPU build", env)
        if status or CUDA_PACKAGE.search(out):
            say("PyTorch's own CPU builds cannot be reached from here; trying pip")
            return False
    # The downloads are large: for them the ordinary patience.
    env.update(UV_HTTP_TIMEOUT="300", UV_HTTP_RETRIES="3")
    status, out = run([*line, "-e", WHAT], "installing with uv", env)
    if status:
        print(tail(out))
    return status == 0


def would_install(wanted, constraints):
    """Names of the packages that pip would install for `wanted`, from a dry run; None if it finds none."""
    handle, report = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        words = ["--dry-run", "--ignore-installed", "--report", report, "-c", constraints, wanted, "triton"]
        status, _ = run(pip(*words), "asking pip for " + wanted)
        if status:
            return None
        with open(report, encoding="utf-8") as text:
            return [item["metadata"]["name"].lower() for item in json.load(text)["install"]]
    finally:
        os.unlink(report)


def cpu_torch(constraints):
    """The requirement with which pip takes a CPU build of torch; stops if there is none for it to take."""
    with open(constraints, encoding="utf-8") as text:
        pin = next(line.strip() for line in text if line.startswith("torch=="))
    # Only CPU builds carry "+cpu", so asking for it cannot fetch a CUDA build, not even to look at it. Outside x86-64
    # the builds without a mark may be CPU builds too; there pip's own answer is looked at.
    marked = pin + "+cpu"
    for wanted in [marked] if platform.machine() in ("x86_64", "AMD64") else [marked, pin]:
        names = would_install(wanted, constraints)
        if names is not None and not any(CUDA_PACKAGE.match(name) for name in names):
            return wanted
    stop(
        "No NVIDIA GPU answers here (`nvidia-smi`), and there is no CPU build of torch to install: PyTorch's index\n"
        "cannot be reached, and pip knows only the CUDA build, 3 GB with its libraries, none of it fetched.\n"
        "Do one of these, then run the same command again:\n"
        "  - let this machine reach PyTorch's package index (pytorch.org names it);\n"
        "  - put a wheel of {}, for Python {}.{}, into a folder and set PIP_FIND_LINKS to that folder;\n"
        "  - use a Python for which you have such a wheel: make lab PYTHON=/path/to/python\n"
        "If you want the CUDA build all the same:\n"
        "    {} '{}' && touch .venv/.ok".format(marked, *version_of(venv_python()), " ".join(pip("-e")), WHAT)
    )


def install():
    """Choose the way that fits this machine and install."""
    gpu = has_gpu()
    plain = sys.platform != "linux" or gpu
    if sys.platform == "linux":
        say("NVIDIA GPU found" if gpu else "no NVIDIA GPU found: the CPU build of torch is enough")
    if gpu and shutil.which("uv") and install_with_uv([shutil.which("uv")], "auto"):
        return
    words = ["-e", WHAT]
    if not plain:
        uv = find_uv()
        if uv and install_with_uv(uv, "cpu"):
            return
        constraints = os.path.join(ROOT, "constraints.txt")
        words = ["-c", constraints, cpu_torch(constraints), "-e", WHAT]
    status, out = run(pip(*words), "installing with pip")
    if status:
        stop("pip could not install the course:\n" + tail(out))


def main():
    """Make the environment, install, and leave the mark that make looks for."""
    use_new_enough_python()
    mark = os.path.join(VENV, ".ok")
    if os.path.exists(mark):
        os.unlink(mark)
    make_venv()
    install()
    with open(mark, "w") as text:
        text.write("made by tools/install.py\n")
    say("ready: .venv holds the course and what it needs")


if __name__ == "__main__":
    main()
