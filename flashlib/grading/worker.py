"""A process that grades one notebook after another: jobs come in as lines of JSON, results go out as lines of JSON.

It is the grader's own and trusted. It stands between the grader and the submissions so that several can be graded at
once, and so that what goes wrong here with one of them is no other's trouble.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

START = "import sys; sys.path.insert(0, sys.argv[1]); from flashlib.grading.worker import main; main(sys.argv[2])"


def main(options: str) -> None:
    """Answer jobs until standard input closes. What a library prints meanwhile goes to standard error."""
    o = json.loads(options)
    from flashlib.grading import limits

    limits.die_with_parent(o["parent"])
    limits.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the grader decides
    signal.signal(signal.SIGTERM, _leave)
    sys.path[:] = o["path"]
    warnings.simplefilter("ignore")
    marker = f"{o['marker']}.child"
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from flashlib.grading import leftovers, process, runner

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    for line in sys.stdin:
        job = json.loads(line)
        try:
            results, note = runner.grade(
                Path(job["path"]), job["secret"], limits.Limits(**job["limits"]), chapters=job["chapters"],
                marker=marker, done=lambda r: say({"part": r.plain()}),
            )  # fmt: skip
        except process.NotStarted as error:
            say({"fault": str(error)})
            continue
        finally:
            leftovers.sweep(marker)
        say({"done": [r.plain() for r in results], "note": note})


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(1)  # so that the child is ended on the way out
