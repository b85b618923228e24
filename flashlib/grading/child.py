"""The process that runs a submission. It compares nothing and knows no answers; it tells what came of a call.

The parent writes pickled requests, which are its own; what goes back is `wire`'s plain data. Only the standard library
and `limits` are loaded before the process is confined.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# The parent starts `python -I -c START root options`.
START = "import sys; sys.path.insert(0, sys.argv[1]); from flashlib.grading.child import main; main(sys.argv[2])"


class Shell:
    """Stands for IPython's shell: magics and shell lines do nothing."""

    def run_line_magic(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    run_cell_magic = magic = system = run_line_magic

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """No lines."""
        return []


def main(options: str) -> None:
    """Confine the process, load what the notebook will need, and answer requests until the pipe closes."""
    o = json.loads(options)
    from flashlib.grading import limits

    limits.die_with_parent(o["parent"])
    sys.path[:] = o["path"]
    if o["confine"]:
        limits.confine(os.getcwd(), o["readable"])
    for name in o["load"]:
        __import__(name)
    limits.hold_process(o["memory"], o["cpu_s"], o["file"])
    _serve(o["requests"], o["answers"], o["most"])
    os._exit(0)


def _serve(requests: int, answers: int, most: int) -> None:
    import pickle

    from flashlib.grading import check, harness, wire

    # The notebook imports it, and in one process with what it would check it could prove nothing.
    check.check = lambda *_, **__: None  # type: ignore[assignment]
    pipe = os.fdopen(requests, "rb")
    room = _namespace()
    _send(answers, wire.frame({"ready": True}))
    while True:
        try:
            request = pickle.load(pipe)
        except EOFError:
            return
        if request["do"] == "cell":
            reply = wire.frame({"error": _run_cell(request["name"], request["code"], room)})
        elif request["do"] == "defined":
            reply = wire.frame({"defined": callable(room.get(request["name"]))})
        else:
            reply = _try(
                room[request["name"]], request["case"], request["may_change"], harness, lambda x: wire.pack(x, most)
            )
        _send(answers, reply)


def _namespace() -> dict[str, Any]:
    """The notebook's names, in a module called __main__ as a kernel has it."""
    import builtins
    import types

    room = types.ModuleType("__main__")
    sys.modules["__main__"] = room
    shell = Shell()
    builtins.get_ipython = lambda: shell  # type: ignore[attr-defined]
    builtins.display = lambda *_, **__: None  # type: ignore[attr-defined]
    room.__dict__.update(In=[], Out={}, exit=_leave, quit=_leave)
    return room.__dict__


def _leave(*_: Any) -> None:
    raise SystemExit("the notebook asked to end")


def _run_cell(name: str, code: str, room: dict[str, Any]) -> str | None:
    """Run a cell; the exception it ended with, in a line, or None. Its lines are kept for tracebacks and for Triton."""
    import linecache

    file = f"<{name}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        exec(compile(code, file, "exec", dont_inherit=True), room)
    except BaseException as error:
        return _line(error)
    return None


def _try(fn: Any, case: Any, may_change: Any, harness: Any, pack: Any) -> bytes:
    from flashlib.grading.case import Outcome, Trouble

    try:
        return pack(harness.run(fn, case, may_change=may_change))
    except BaseException as error:  # KeyboardInterrupt, an exception that cannot be printed, results that are no data
        kind, _, message = _line(error).partition(": ")
        return pack(Outcome(trouble=Trouble(kind, message)))


def _line(error: BaseException) -> str:
    kind = type(error).__name__[:100]
    try:
        text = str(error).strip().split("\n")[0][:300]
    except BaseException:  # its own __str__ raises
        return kind
    return f"{kind}: {text}" if text else kind


def _send(answers: int, message: bytes) -> None:
    view = memoryview(message)
    while view:
        view = view[os.write(answers, view) :]
