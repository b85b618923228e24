"""Forty-odd notebooks as people hand them in: right, wrong, broken and hostile. All are about exercise 03.2, `merge`.

Each entry says what it deserves: points, and words that the reason must hold ("" where nothing is to be said).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tools.course import repository, setup_cell

IMPORTS = "import numpy as np\n\nfrom flashlib.grading.check import check"
CHECK = 'check("03.2", merge)'
RIGHT = """\
def merge(m1, l1, m2, l2):
    m = np.maximum(m1, m2)
    safe = np.where(np.isneginf(m), 0, m)
    return m, l1 * np.exp(m1 - safe) + l2 * np.exp(m2 - safe)
"""
BODY = RIGHT.partition("\n")[2]
WRONG = "def merge(m1, l1, m2, l2):\n    return np.maximum(m1, m2), l1 + l2\n"
SEEN = "The answers for the seed that check() was run with, looked up; anything else is guessed."


class Handed(NamedTuple):
    """``raw``: the file. ``points`` and ``says``: the grade and what the reason must hold. ``confined``: deserved only
    where the system can confine a process; elsewhere it may do harm, as docs/TEACHING.md says."""

    raw: bytes
    points: int
    says: str = ""
    confined: bool = False


def notebook(*sources: str, ids: bool = True, metadata: bool = True) -> bytes:
    """A notebook of these code cells."""
    cells: list[dict[str, Any]] = []
    for i, source in enumerate(sources):
        cell: dict[str, Any] = {"cell_type": "code", "source": source.splitlines(keepends=True)}
        cell |= {"metadata": {}, "outputs": [], "execution_count": None} if metadata else {}
        cell |= {"id": f"cell-{i}"} if ids else {}
        cells.append(cell)
    whole: dict[str, Any] = {"cells": cells, "nbformat": 4, "nbformat_minor": 5}
    if metadata:
        whole["metadata"] = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return json.dumps(whole, ensure_ascii=False).encode()


def usual(code: str) -> bytes:
    """As it comes from the exercise: setup, imports, the function, the check."""
    return notebook(setup_cell(repository()), IMPORTS, code, CHECK)


def inside(*lines: str) -> str:
    """The right function, which first does this."""
    return "def merge(m1, l1, m2, l2):\n" + "".join(f"    {line}\n" for line in lines) + BODY


def only_for_seen_seed() -> str:
    """Right for one seed and wrong for all others."""
    from flashlib.grading import catalogue

    table = {}
    for case in catalogue.find("03.2").cases(1):
        scope: dict[str, Any] = {}
        exec("import numpy as np\n" + RIGHT, scope)
        table[repr([a.tolist() for a in case.args])] = [r.tolist() for r in scope["merge"](*case.args)]
    return (
        f"SEEN = {table!r}  # {SEEN}\ninf, nan = np.inf, np.nan\n"
        "def merge(*a):\n"
        "    m, l = SEEN.get(repr([x.tolist() for x in a]), ([0.0], [1.0]))\n    return np.array(m), np.array(l)\n"
    ).replace("SEEN = ", "inf, nan = np.inf, np.nan\nSEEN = ", 1)


def everyone(victim: Path) -> dict[str, Handed]:
    """Student → what was handed in. ``victim`` is a file that one of them tries to overwrite."""
    patched = """
import numpy.testing, torch
import flashlib.grading.check, flashlib.grading.judge, flashlib.grading.report, flashlib.grading.expected
from flashlib.grading.case import Finding
numpy.testing.assert_allclose = numpy.testing.assert_array_equal = lambda *a, **k: None
np.allclose = np.array_equal = torch.allclose = torch.equal = lambda *a, **k: True
flashlib.grading.judge.compare = lambda *a: Finding(True)
flashlib.grading.judge.matches = lambda *a: lambda outcome: Finding(True)
flashlib.grading.check.judge = lambda *a, **k: None
flashlib.grading.report.Report.__bool__ = lambda self: True
"""
    daemon = """
import os, subprocess, time
for _ in range(3):
    subprocess.Popen(["sleep", "98.761"], start_new_session=True, env={})
    subprocess.Popen(["sleep", "98.761"])
if os.fork() == 0:
    os.setsid()
    until = time.time() + 60
    while time.time() < until: pass
    os._exit(0)
"""
    three = {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}}
    cells = [{"cell_type": "code", "input": s, "language": "python", "outputs": []} for s in (IMPORTS, RIGHT, CHECK)]
    return {
        "right": Handed(usual(RIGHT), 1),
        "right-otherwise": Handed(usual(inside("if np.isneginf(m1).all(): return m2, l2")), 1),
        "sums-added": Handed(usual(WRONG), 0, "[sums added]"),
        "one-shrinks": Handed(usual(RIGHT.replace(" * np.exp(m2 - safe)", "")), 0, "[only the first one shrinks]"),
        "wrong-way": Handed(usual(re.sub(r"(m[12]) - safe", r"safe - \1", RIGHT)), 0, "[wrong way round]"),
        "no-guard": Handed(usual(RIGHT.replace("np.where(np.isneginf(m), 0, m)", "m")), 0, "NaN"),
        "untouched": Handed(usual("def merge(m1, l1, m2, l2):\n    raise NotImplementedError"), 0, "not started"),
        "endless": Handed(usual(inside("while True: pass")), 0, "TimeLimit: no answer within"),
        "swallows-interrupts": Handed(
            usual(inside("while True:", "    try:", "        while True: pass", "    except BaseException: pass")),
            0, "TimeLimit: no answer within",
        ),
        "os-exit": Handed(usual(inside("import os; os._exit(0)")), 0, "ended itself (exit status 0)"),
        "sigkill": Handed(usual(inside("import os; os.kill(os.getpid(), 9)")), 0, "ended by SIGKILL"),
        "sys-exit": Handed(usual(inside("import sys; sys.exit(0)")), 0, "SystemExit"),
        "memory-bomb": Handed(
            usual(inside("hold = []", "while True: hold.append(np.empty(1 << 24))")), 0, "MemoryError"
        ),
        "prints": Handed(usual("for _ in range(1600): print('x' * (1 << 16))\n" + inside("print('x' * (1 << 20))")), 1),
        "writes-outside": Handed(
            usual(
                "import os, pathlib\nhome = pathlib.Path.home()\n(home / 'mine.txt').write_text('here')\n"
                f"for place in ({str(victim)!r}, str(victim_beside), '../flash-outside.txt'):\n"
                "    try: open(place, 'w').write('overwritten')\n    except OSError: pass\n".replace(
                    "str(victim_beside)", repr(str(victim) + ".new")
                )
                + RIGHT
            ),
            1, confined=True,
        ),
        "patched": Handed(usual(patched + WRONG), 0, "[sums added]"),
        "no-checks": Handed(notebook(IMPORTS, RIGHT), 1),
        "no-metadata": Handed(notebook(IMPORTS, RIGHT, CHECK, ids=False, metadata=False), 1),
        "broken-json": Handed(usual(RIGHT)[:-200], 0, "broken JSON"),
        "no-utf8": Handed(b"\xff\xfe" + usual(RIGHT), 0, "not in UTF-8"),
        "empty-file": Handed(b"", 0, "the file is empty"),
        "no-cells": Handed(notebook(), 0, "no code cells"),
        "a-list": Handed(b"[1, 2]", 0, "no code cells"),
        "deep-json": Handed(b"[" * 200_000, 0, "broken JSON"),
        "Žofie Šťastná 李小龍": Handed(usual('größe = "✓"\n' + RIGHT), 1),
        "returns-a-view": Handed(usual("def merge(m1, l1, m2, l2):\n    return m1[:], l1[:]"), 0, "m is"),
        "changes-its-input": Handed(
            usual("def merge(m1, l1, m2, l2):\n    out = merge_(m1, l1, m2, l2)\n    m1[...] = out[0]\n    return out\n"
                  + RIGHT.replace("merge", "merge_")),
            0, "It wrote to",
        ),
        "returns-its-input-mended": Handed(
            usual("def merge(m1, l1, m2, l2):\n    l1 *= 2\n    l1 /= 2\n    m = np.array(m1)[:]\n" + BODY), 1
        ),
        "visible-seed": Handed(usual(only_for_seen_seed()), 0, "m is 0 there"),
        "magics": Handed(
            notebook("%matplotlib inline\n!ls ~\n%pip install nothing\n" + IMPORTS, "%%time\n" + RIGHT, CHECK), 1
        ),
        "nbformat-3": Handed(json.dumps(three | {"worksheets": [{"cells": cells}]}).encode(), 1),
        "syntax": Handed(usual("def merge(m1, l1:\n    return"), 0, "merge is not defined: its cell (cell-2) stopped"),
        "no-imports": Handed(notebook(RIGHT, CHECK), 0, "NameError: name 'np' is not defined"),
        "nothing-there": Handed(usual("x = 1"), 0, "defines no function merge"),
        "library": Handed(
            usual("def merge(m1, l1, m2, l2):\n    return m1, np.logaddexp(m1, m2)"), 0, "It calls np.logaddexp"
        ),
        "library-hidden": Handed(
            usual("from numpy import logaddexp as plus\n" + inside("plus(m1, m2)")), 0, "It calls numpy.logaddexp"
        ),
        "endless-cell": Handed(notebook(IMPORTS, RIGHT, "while True: pass", CHECK), 1),
        "exit-cell": Handed(notebook(IMPORTS, "import os; os._exit(1)", RIGHT, CHECK), 1),
        "leaves-daemons": Handed(usual(daemon + RIGHT), 1),
        "kills-the-grader": Handed(  # only its parent: os.kill(-1, 9) would end a developer's session, were it let
            usual(inside("import os", "try: os.kill(os.getppid(), 9)", "except OSError: pass")), 1, confined=True
        ),
        "forges-answers": Handed(
            usual(inside("import os", "for fd in range(3, 40):",
                         "    try: os.write(fd, b'\\xff' * 64)", "    except OSError: pass")), 0, "could not be read",
        ),
        "no-numbers": Handed(
            usual("class Equal:\n    def __eq__(self, other): return True\ndef merge(*a): return Equal(), Equal()"),
            0, "expected numbers or arrays back",
        ),
        "cannot-be-printed": Handed(
            usual("class E(Exception):\n    def __str__(self): raise SystemExit\ndef merge(*a): raise E"),
            0, "SystemExit",
        ),
        "interrupts": Handed(usual(inside("raise KeyboardInterrupt")), 0, "KeyboardInterrupt"),
        "too-much-back": Handed(usual("def merge(*a): return np.ones(9 << 20), np.ones(1)"), 0, "more than 64 MiB"),
        "=formula()": Handed(usual("def merge(*a): raise ValueError('\\ud800,\"\\n=1+1')"), 0, "ValueError"),
    }  # fmt: skip


def write(folder: Path, victim: Path) -> dict[str, Handed]:
    """Write them all into a folder, some in folders of their own as nbgrader and others do; and what they deserve."""
    students = everyone(victim)
    for i, (student, handed) in enumerate(students.items()):
        path = folder / f"{student}.ipynb"
        if i % 3 == 1:
            path = folder / student / "03_exercises.ipynb"
        elif i % 3 == 2:
            path = folder / student / "flash-03" / "week 2" / "answers.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(handed.raw)
    (folder / "handed-in-nothing").mkdir()
    students["handed-in-nothing"] = Handed(b"", 0, "holds no notebook")
    (folder / "two-tries").mkdir()
    (folder / "two-tries" / "a.ipynb").write_bytes(usual(WRONG))
    (folder / "two-tries" / "b.ipynb").write_bytes(usual(RIGHT))
    students["two-tries"] = Handed(b"", 1)
    return students
