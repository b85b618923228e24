"""What a submission may use, and how it is held to that: limits of the process, and Landlock where the system has it.

Standard library only: the child applies it before anything else is loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = "FLASHLIB_GRADING"  # in the environment of everything that a grading run starts

# Landlock, Linux 5.13: its three system calls, and the rights that it knows (linux/landlock.h).
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}  # by version; from 5 on 16 rights
_OF_A_FILE = _EXECUTE | _WRITE | _READ | 1 << 14 | 1 << 15

MORE_PROCESSES = 256  # threads that a submission may add to its user's


@dataclass(frozen=True)
class Limits:
    """Seconds of waiting for the submission's own code; sizes in bytes.

    ``exercise_s`` holds for one exercise and for one cell; an exercise with Triton gets ``triton`` times as much.
    ``submission_s`` holds for all of a notebook. ``memory`` is address space, ``file`` one file's size, ``folder`` all
    that lies in its folder, ``answer`` what a call may return.
    """

    exercise_s: float = 30.0
    triton: float = 3.0
    submission_s: float = 600.0
    memory: int = 4 << 30
    file: int = 16 << 20
    folder: int = 256 << 20
    answer: int = 64 << 20


def environment(folder: str, marker: str) -> dict[str, str]:
    """The child's environment: one thread, no GPU, no window, Triton interpreted, home and temporary files in
    ``folder``; nothing of the grader's own but PATH."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return one | {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8",
        "MPLBACKEND": "agg", "MPLCONFIGDIR": folder, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1", "FLASHLIB_PROGRESS": "", MARKER: marker,
    }  # fmt: skip


def hold_process(memory: int, cpu_s: int, file: int) -> None:
    """Set this process's own limits: address space beyond what it has mapped by now, processor time, file size, no core
    dumps; on Linux also how many processes the user may have, which the system counts for all of the user's together
    and not at all for root."""
    import resource

    wanted = [(resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_FSIZE, file), (resource.RLIMIT_CORE, 0)]
    if sys.platform == "linux":  # macOS takes RLIMIT_AS and does not keep to it
        with open("/proc/self/statm") as sizes:  # a torch with CUDA maps several GB before it computes anything
            mapped = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        wanted += [(resource.RLIMIT_AS, mapped + memory), (resource.RLIMIT_NPROC, _threads() + MORE_PROCESSES)]
    for what, most in wanted:
        ceiling = resource.getrlimit(what)[1]
        most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(what, (most, most))


def _threads() -> int:
    """How many threads this user has in all."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has just ended
            continue
    return total


def landlock_version() -> int:
    """0 where there is no Landlock. From 4 on it also refuses TCP, from 6 on signals to processes outside."""
    if sys.platform != "linux":
        return 0
    try:
        return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, 0, 1)))
    except (OSError, AttributeError):
        return 0


def confine(folder: str, readable: Iterable[str]) -> int:
    """From here on this process and all it starts may write in ``folder`` only, and read there and in ``readable``.

    Landlock holds a thread and what it starts later: call it before there are other threads.

    Returns
    -------
    int
        Landlock's version; 0 if there is none and nothing is confined.

    Raises
    ------
    OSError
        Landlock is there and refused.
    """
    version = landlock_version()
    if not version:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"Landlock: {os.strerror(code)}")
        return result

    handled = _KNOWN.get(version, (1 << 16) - 1)
    fields = [handled, 0b11, 0b11][: 1 if version < 4 else 2 if version < 6 else 3]
    attribute = (ctypes.c_uint64 * len(fields))(*fields)
    rules = must(libc.syscall(_CREATE, ctypes.byref(attribute), ctypes.c_size_t(ctypes.sizeof(attribute)), 0))
    look = _EXECUTE | _READ | _LIST
    for place, rights in [(folder, handled), ("/dev/null", _READ | _WRITE), *((p, look) for p in readable)]:
        try:
            fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # an entry of sys.path that does not exist
            continue
        allowed = rights & handled & (-1 if os.path.isdir(place) else _OF_A_FILE)
        rule = allowed.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder, signed=True)
        must(libc.syscall(_ADD, rules, 1, rule, 0))
        os.close(fd)
    must(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS, without which Landlock asks for root
    must(libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)
    return version


def readable_places() -> list[str]:
    """What Python and the package need to read. Neither the solutions nor any submission is among them."""
    package = str(Path(__file__).resolve().parents[1])
    pythons = {sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)}
    here = {os.getcwd(), str(Path(package).parent), ""}  # where the solutions or the submissions may lie
    packages = {p for p in sys.path if p not in here}
    system = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/opt", "/nix", "/proc", "/sys", "/dev"]
    return [package, *sorted(pythons | packages), *system]


def die_with_parent(parent: int) -> None:
    """Linux: SIGKILL for this process when the one that started it ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Linux: what outlives the child that started it becomes a child of this process, and can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def folder_size(folder: str) -> int:
    """Bytes in a folder; symbolic links are not followed."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_blocks * 512
            except OSError:
                continue
    return total
