"""The grader on a folder of submissions, right, wrong, broken and hostile; killed in the middle; and piece by piece."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashlib.grading import (
    catalogue,
    gradebook,
    leftovers,
    library_calls,
    limits,
    matrix_page,
    progress,
    result,
    submission,
    wire,
)  # fmt: skip
from flashlib.grading.case import Case, Outcome, Trouble, Value
from flashlib.grading.matrix import Cell
from tests import submissions
from tests.files import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="grading needs Linux or macOS")
CONFINED = limits.landlock_version() >= 6
SEED = "a seed for the tests"


def command(folder: Path, out: Path, *more: str) -> list[str]:
    """The grader's command line."""
    words = ["grade", str(folder), "-o", str(out), "--chapter", "03", "--seed", SEED, "--jobs", "2", *more]
    return [sys.executable, "-m", "flashlib", *words, "--time-limit", "4", "--memory-limit", "1"]


def grade(folder: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(command(folder, out, *more), cwd=ROOT, capture_output=True, text=True)


def table(out: Path) -> dict[str, dict[str, str]]:
    """Student → row."""
    with out.open(encoding="utf-8", newline="") as file:
        return {row["student"].removeprefix("'"): row for row in csv.DictReader(file)}


def running(run: str) -> list[str]:
    """Command lines of what a run has left: by its marker, and the daemons, which have thrown theirs away."""
    pids = [p for p in leftovers._pids() if b"98.761" in leftovers._read(p, "cmdline")]
    pids += leftovers.of_marker(f"{run}.", begins=True)
    return [leftovers._read(p, "cmdline").decode(errors="replace") for p in pids]


def run_of(out: Path) -> str:
    """The run's name, from its journal."""
    with out.with_name(out.name + ".journal").open(encoding="utf-8") as file:
        return str(json.loads(file.readline())["run"])


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, submissions.Handed]]:
    """The whole folder, graded once; and what each deserves."""
    home = tmp_path_factory.mktemp("grade")
    (home / "in").mkdir()
    (home / "victim.txt").write_text("intact", encoding="utf-8")
    students = submissions.write(home / "in", home / "victim.txt")
    start = time.perf_counter()
    done = grade(home / "in", home / "grades.csv", "--feedback", str(home / "pages"))
    print(f"{len(students)} students in {time.perf_counter() - start:.1f} s")
    assert done.returncode == 0, done.stderr
    return home, students


def test_everyone_gets_what_they_deserve(graded: tuple[Path, dict[str, submissions.Handed]]) -> None:
    home, students = graded
    rows = table(home / "grades.csv")
    assert set(rows) == set(students) and len(students) >= 40
    for student, handed in students.items():
        if handed.confined and not CONFINED:
            continue
        row = rows[student]
        assert (float(row["03.2"] or 0), float(row["total"])) == (handed.points, handed.points), (student, row)
        assert handed.says in row["reason"], (student, row)
        if not handed.points:
            assert row["reason"], student


def test_nothing_is_left_and_nothing_was_touched(graded: tuple[Path, dict[str, submissions.Handed]]) -> None:
    home, _ = graded
    assert running(run_of(home / "grades.csv")) == []
    assert {p.name for p in home.iterdir()} == {"in", "victim.txt", "grades.csv", "grades.csv.journal", "pages"}
    if CONFINED:
        assert (home / "victim.txt").read_text(encoding="utf-8") == "intact"


def test_a_second_run_grades_only_what_is_new(graded: tuple[Path, dict[str, submissions.Handed]]) -> None:
    home, _ = graded
    before = (home / "grades.csv").read_bytes()
    start = time.perf_counter()
    done = grade(home / "in", home / "grades.csv")
    print(f"nothing new: {time.perf_counter() - start:.1f} s")
    assert done.returncode == 0 and "graded before" in done.stderr
    assert (home / "grades.csv").read_bytes() == before
    other = grade(home / "in", home / "grades.csv", "--chapter", "04")
    assert other.returncode == 2 and "another chapter" in other.stderr and "--fresh" in other.stderr


def test_pages_say_the_same_and_stand_alone(graded: tuple[Path, dict[str, submissions.Handed]]) -> None:
    home, students = graded
    rows = table(home / "grades.csv")
    for student in students:
        page = (home / "pages" / f"{student}.html").read_text(encoding="utf-8")
        assert '<html lang="en">' in page and page.count("<h1>") == 1 and "<title>" in page
        assert not re.search(r'(?:src|href)="(?!data:|#)', page), "it needs nothing else"
        assert f"{float(rows[student]['total']):g} of" in page
        assert all('alt="' in tag for tag in re.findall(r"<img [^>]*>", page))
    wrong = (home / "pages" / "sums-added.html").read_text(encoding="utf-8")
    seed = result.seed_of(SEED, "03.2")
    assert f"seed={seed})" in wrong and "By what factor" in wrong, "the seed and the mistake's question"


SOME = ("broken-json", "endless", "right", "os-exit", "leaves-daemons", "memory-bomb", "no-guard", "patched",
        "magics", "untouched", "swallows-interrupts", "sums-added")  # fmt: skip


def some(chosen: Sequence[str], students: dict[str, submissions.Handed], folder: Path) -> None:
    """These of them, flat."""
    folder.mkdir()
    for student in chosen:
        (folder / f"{student}.ipynb").write_bytes(students[student].raw)


def wait_for_lines(journal: Path, lines: int) -> None:
    """Until the journal holds so many notebooks."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if journal.exists() and journal.read_bytes().count(b"\n") > lines:
            return
        time.sleep(0.05)
    raise AssertionError("the grader does not get on")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children together with their parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_and_taken_up(
    graded: tuple[Path, dict[str, submissions.Handed]], tmp_path: Path, how: signal.Signals
) -> None:
    home, students = graded
    chosen = SOME if how == signal.SIGKILL else SOME[:5]
    some(chosen, students, tmp_path / "in")
    out = tmp_path / "grades.csv"
    with (tmp_path / "said").open("w") as file:  # a pipe would be held open, and waited for, by what is left running
        process = subprocess.Popen(
            command(tmp_path / "in", out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=file,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores Ctrl-C
        )  # fmt: skip
    wait_for_lines(tmp_path / "grades.csv.journal", 1)  # the endless one comes second, and is at work for seconds yet
    process.send_signal(how)
    assert process.wait(30) == (-9 if how == signal.SIGKILL else 130)
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert how == signal.SIGKILL or "takes it up where it stopped" in said
    assert not out.exists()
    time.sleep(1)
    assert running(run_of(out)) == []
    with (tmp_path / "grades.csv.journal").open("ab") as journal:
        journal.write(b'{"key": "torn')  # as if the kill had come in the middle of a line
    done = grade(tmp_path / "in", out)
    assert done.returncode == 0 and "graded before" in done.stderr, done.stderr
    again = grade(tmp_path / "in", out)
    assert again.returncode == 0 and f"{len(chosen)} of {len(chosen)} were graded before" in again.stderr, again.stderr
    whole, taken_up = table(home / "grades.csv"), table(out)
    assert set(taken_up) == set(chosen)
    for student, row in taken_up.items():
        expected = whole[student]
        assert (row["03.2"], row["total"]) == (expected["03.2"], expected["total"])
        strip = re.compile(r"^\S+\.ipynb: ")
        assert strip.sub("", row["reason"]) == strip.sub("", expected["reason"])


# Each piece alone


def test_every_case_can_be_sent() -> None:
    for exercise in catalogue.everything():
        for case in exercise.cases(1):
            pickle.dumps(Case(case.name, case.args, None, case.kwargs, case.how, case.options))  # type: ignore[arg-type]


def outcome() -> Outcome:
    """One of everything."""
    results = (
        Value(np.arange(6, dtype=np.float32).reshape(2, 3), "bfloat16", "torch"),
        Value(np.array(True), "bool", "numpy"),
        Value(np.zeros((0, 4), np.longdouble), "longdouble", "python"),
    )
    return Outcome(results, Trouble("E", "no", "x = 1", 3), ("q",), {"read": {"Q": 8}, "n": [1, 2.5]}, ("exp",), 0.5)


def cut(message: bytes) -> tuple[bytes, bytes]:
    """Header and arrays."""
    words, bodies = wire.HEADER.unpack(message[: wire.HEADER.size])
    rest = message[wire.HEADER.size :]
    assert len(rest) == words + bodies
    return rest[:words], rest[words:]


def test_wire_there_and_back() -> None:
    there, back = outcome(), wire.unpack(*cut(wire.pack(outcome(), 1 << 20)))
    assert (back.trouble, back.changed, back.measures, back.called) == (
        there.trouble, there.changed, there.measures, there.called
    )  # fmt: skip
    for a, b in zip(there.results, back.results, strict=True):
        assert np.array_equal(a.array, b.array) and a.array.dtype == b.array.dtype and a[1:] == b[1:]
    much = wire.unpack(*cut(wire.pack(there, 8)))
    assert much.trouble is not None and much.trouble.kind == "TooMuch" and not much.results


REFUSED = [
    {"results": [{"array": "object", "shape": [1], "dtype": "x", "library": "numpy"}]},
    {"results": [{"array": "float64", "shape": [-1], "dtype": "x", "library": "numpy"}]},
    {"results": [{"array": "float64", "shape": [1 << 39, 1 << 39], "dtype": "x", "library": "numpy"}]},
    {"results": [{"array": "float64", "shape": [1.0], "dtype": "x", "library": "numpy"}]},
    {"results": []},
    {"results": None},
    {"trouble": ["a", "b"]},
    {"measures": {"a": {"b": {"c": {"d": {"e": 1}}}}}},
    {"measures": []},
    {"called": [1]},
    {"changed": "q"},
]


def test_wire_carries_who_met_whom() -> None:
    """For each row of queries a list of meetings, each a list of blocks: the deepest measure that there is."""
    met = [[[0], [2, 1]], [[1]], []]
    assert wire.unpack(*cut(wire.pack(replace(outcome(), measures={"met": met}), 1 << 20))).measures == {"met": met}


@pytest.mark.parametrize("change", REFUSED)
def test_wire_refuses(change: dict[str, object]) -> None:
    head, body = cut(wire.pack(outcome(), 1 << 20))
    with pytest.raises(wire.BadMessage):
        wire.unpack(json.dumps(json.loads(head) | change).encode(), body)


def test_wire_refuses_what_is_no_json() -> None:
    for head in (b"", b"[1]", b"\xff", b"[" * 100_000, b"1" * 100_000):
        with pytest.raises(wire.BadMessage):
            wire.unpack(head, b"")


def test_chapters_are_found() -> None:
    def found(*sources: str, file: str = "x.ipynb") -> list[int]:
        return submission.chapters_of(submission.of_text(submissions.notebook(*sources), file), file)

    assert found("x = 1", submissions.CHECK) == [3]
    assert found("x = 1", file="03_exercises.ipynb") == [3] == found("x = 1", file="Ann chapter_03.ipynb")
    assert found("x = 1", file="student_12.ipynb") == []
    assert found(submissions.RIGHT) == [3], "by its functions, when nothing else is left"
    for n in catalogue.CHAPTERS:  # some names occur in two chapters
        assert found(*(f"def {e.function}(): ..." for e in catalogue.of_chapter(n))) == [n]


def test_the_better_of_two_counts_and_missing_ones_say_so() -> None:
    def one(name: str, points: float, why: str = "") -> dict[str, object]:
        return {"id": name, "points": points, "out_of": 1, "reason": why}

    a, b = (gradebook.HandedIn(s, Path("x"), f"{s}.ipynb") for s in "ab")
    table = gradebook.rows([(a, [one("01.1", 0, "no")], ""), (a, [one("01.1", 1)], ""), (b, [], "broken")])
    assert gradebook.as_csv(table) == "student,01.1,total,out_of,reason\na,1,1,1,\nb,,0,1,b.ipynb: broken\n"


def test_the_matrix_fails_when_the_grader_does() -> None:
    def cell(kind: str, name: str, state: str, named: str = "") -> Cell:
        return Cell("03.2", 1, kind, name, state, named, "scores near 10 000", 0.1)

    good = [cell("right", "a", "passed"), *(cell("mistake", f"m{i}", "failed", f"m{i}") for i in range(20))]
    assert matrix_page.verdict(good).ok
    assert matrix_page.verdict([*good[:-1], cell("mistake", "m19", "failed")]).ok, "95 % are enough"
    assert not matrix_page.verdict([*good[:-2], *[cell("mistake", "m", "failed", "other")] * 2]).ok
    assert not matrix_page.verdict([*good, cell("mistake", "m", "passed")]).ok
    assert not matrix_page.verdict([*good, cell("right", "b", "failed")]).ok
    assert not matrix_page.verdict(good[1:]).ok, "no right answers were tried"
    page = matrix_page.page([*good, cell("mistake", "m|20", "passed")], [1])
    assert "## 03.2 the merge law" in page and "| m\\|20 | right 0 of 1 |" in page and "1 judged wrongly" in page


def test_the_map_of_what_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLIB_PROGRESS", str(tmp_path / "kept.json"))
    progress.remember("03.1", "passed")
    progress.remember("03.1", "failed")  # once passed stays passed
    progress.remember("03.2", "failed")
    progress.remember("03.3", "not started")
    text, page = progress.text(), progress.show()._repr_html_()
    assert "03.1 ✓   03.2 ○   03.3 ·" in text and "1 of" in text
    assert "✓ 03.1" in page and "○ 03.2 the merge law" in page
    (tmp_path / "kept.json").write_text('{"03.1": 7}', encoding="utf-8")  # someone edited it
    assert "0 of" in progress.text()


def test_what_a_notebook_calls_so_is_not_what_a_function_calls_so() -> None:
    """A parameter may have the name of something that the notebook made with the answers."""
    cells = ["from flashlib.algorithms import reference\ndelta = reference.delta()", "def f(delta):\n    return delta"]
    assert library_calls.find(*library_calls.of_cells(cells, "f")) is None
    cells[1] = "def f(x):\n    return delta"
    assert library_calls.find(*library_calls.of_cells(cells, "f")) == "flashlib.algorithms.reference"


def test_check_in_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "03_exercises.ipynb"
    path.write_bytes(submissions.usual(submissions.WRONG))
    kept = tmp_path / "progress.json"
    env = os.environ | {"FLASHLIB_PROGRESS": str(kept)}
    line = [sys.executable, "-m", "flashlib", "check", str(path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 1 and "By what factor" in done.stdout and "0 of" in done.stdout, done.stdout + done.stderr
    assert json.loads(kept.read_text(encoding="utf-8"))["03.2"]["state"] == "tried"
    shown = subprocess.run([*line[:3], "progress"], cwd=ROOT, capture_output=True, text=True, env=env)
    assert shown.returncode == 0 and "03.2 ○" in shown.stdout


def test_gradescope(tmp_path: Path) -> None:
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / "mine.ipynb").write_bytes(submissions.usual(submissions.RIGHT))
    (folder / "older.ipynb").write_bytes(submissions.usual(submissions.WRONG))
    done = grade(folder, tmp_path / "grades.csv", "--gradescope", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    test = next(t for t in results["tests"] if t["number"] == "03.2")
    assert results["score"] == 1 and test["status"] == "passed" and test["score"] == test["max_score"] == 1
