"""The command line's part about exercises: ``grade``, ``check``, ``progress`` and ``export``."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Chapters = Annotated[list[int] | None, typer.Option("--chapter", help="Only this chapter, as 03; may be repeated.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="How many at once; one a core by default.")]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", min=0.1, help="Seconds for an exercise; three times that with Triton.")
]
MemoryLimit = Annotated[
    float, typer.Option("--memory-limit", min=0.1, help="GiB that a submission may add to its process.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(grade)
    app.command()(check)
    app.command()(progress)
    app.command()(export)


def _limits(seconds: float, gib: float) -> Any:
    from flashlib.grading.limits import Limits

    if os.name != "posix":
        raise typer.BadParameter("grading needs Linux or macOS; on Windows use WSL")
    return Limits(exercise_s=seconds, submission_s=max(20 * seconds, 120), memory=int(gib * 2**30))


def _fail(says: str) -> typer.Exit:
    print(says, file=sys.stderr)
    return typer.Exit(code=2)


def grade(
    submissions: Annotated[Path, typer.Argument(help="Folder of notebooks: STUDENT.ipynb or STUDENT/…/any.ipynb.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The table of grades.")] = Path("grades.csv"),
    chapter: Chapters = None,
    jobs: Jobs = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="Take up an interrupted run, or forget it.")] = True,
    feedback: Annotated[Path | None, typer.Option("--feedback", help="Write a page for each student here.")] = None,
    gradescope: Annotated[
        Path | None, typer.Option("--gradescope", help="The folder is one student's: write their results.json.")
    ] = None,
    time_limit: TimeLimit = 30.0,
    memory_limit: MemoryLimit = 4.0,
    seed: Annotated[str | None, typer.Option("--seed", help="Any text: draw the same inputs as another run.")] = None,
) -> None:
    """Grade a folder of exercise notebooks into a CSV table. No sandbox: see docs/TEACHING.md on what is protected."""
    from tqdm import tqdm

    from flashlib.grading import feedback as pages
    from flashlib.grading import gradebook, journal, limits, pool, result
    from flashlib.grading import gradescope as scope
    from flashlib.setup import cores

    held = _limits(time_limit, memory_limit)
    try:
        handed_in = gradebook.find(submissions, one=gradescope is not None)
    except FileNotFoundError as error:
        raise _fail(str(error)) from None
    if not handed_in:
        raise _fail(f"{submissions} holds no notebook")
    asked = {"chapter": chapter, "limit": [time_limit, memory_limit], "grader": journal.grader_digest(chapter)}
    try:
        kept = journal.Journal(out.with_name(out.name + ".journal"), asked, fresh=not resume, seed=seed)
    except journal.OtherRun as error:
        raise _fail(f"{error}; to begin again: --fresh") from None
    if kept.resumed:
        pool.end_run(kept.run)  # a run that was killed may have left something
    keys = [journal.key_of(h.path, h.name) for h in handed_in]
    todo = [i for i, key in enumerate(keys) if key not in kept.kept]
    if len(todo) < len(keys):
        print(f"{len(keys) - len(todo)} of {len(keys)} were graded before", file=sys.stderr)
    if version := limits.landlock_version():
        may = "" if version >= 6 else "Submissions cannot write outside their folder here, but can end other processes"
    else:
        may = "No Landlock here: submissions can do what you can do"
    if may:
        print(f"{may}. See docs/TEACHING.md", file=sys.stderr)
    paths = [str(handed_in[i].path.absolute()) for i in todo]
    graded = pool.grade_all(paths, kept.secret, held, chapters=chapter, jobs=jobs or cores(), run=kept.run)
    try:
        with tqdm(
            total=len(keys), initial=len(keys) - len(todo), unit="notebook", file=sys.stderr, disable=None
        ) as bar:
            for message in graded:
                if message.kind == "done":
                    kept.add(keys[todo[message.job]], message.results, message.note)
                    bar.update()
    except KeyboardInterrupt:
        graded.close()
        print("\nInterrupted; the same command takes it up where it stopped.", file=sys.stderr)
        raise typer.Exit(code=130) from None
    except pool.GraderFault as error:
        raise _fail(f"The grader does not work here: {error}") from None
    finally:
        kept.close()
    lines = [(h, kept.kept[k]["results"], kept.kept[k]["note"]) for h, k in zip(handed_in, keys, strict=True)]
    table = gradebook.rows(lines)
    out.write_text(gradebook.as_csv(table), encoding="utf-8")
    if feedback:
        feedback.mkdir(parents=True, exist_ok=True)
        for row in table:
            page = pages.page(row.student, list(row.results.values()), row.notes)
            (feedback / f"{row.student}.html").write_text(page, encoding="utf-8")
    if gradescope:
        gradescope.write_text(json.dumps(scope.results(table[0]), indent=1, ensure_ascii=False), encoding="utf-8")
    unjudged = [r["id"] for _, results, _ in lines for r in results if r["reason"].startswith(result.UNJUDGED)]
    if unjudged:
        print(f"{len(unjudged)} results could not be judged: look at their reasons", file=sys.stderr)
    full = sum(gradebook.columns(table).values())
    print(f"{out}: {len(table)} students, mean {sum(r.total for r in table) / len(table):.2f} of {full:g} points")


def check(
    notebook: Annotated[Path | None, typer.Argument(help="Your exercise notebook.")] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Check the grader itself instead.")] = False,
    seeds: Annotated[str, typer.Option("--seeds", help="For the matrix: seeds, as 1,2,3.")] = "1,2,3",
    chapter: Chapters = None,
    write: Annotated[Path | None, typer.Option("--write", help="For the matrix: write it into this page.")] = None,
    jobs: Jobs = None,
    time_limit: TimeLimit = 30.0,
    memory_limit: MemoryLimit = 4.0,
) -> None:
    """Check a notebook's exercises here in the terminal; exit 1 unless all are passed. Or the grader, with --matrix."""
    if matrix:
        from flashlib.grading import matrix_page

        numbers = [int(s) for s in seeds.split(",")]
        raise typer.Exit(code=matrix_page.run_and_print(numbers, chapter, write, jobs))
    from flashlib.grading import pool, progress
    from flashlib.grading.catalogue import find

    if notebook is None or not notebook.is_file():
        raise _fail("Name a notebook, as: python -m flashlib check exercises/03_exercises.ipynb")
    run, secret = secrets.token_hex(8), secrets.token_hex(16)
    passed, number, note = 0, 0, ""
    held = _limits(time_limit, memory_limit)
    for message in pool.grade_all([str(notebook.absolute())], secret, held, chapters=chapter, jobs=1, run=run):
        note = message.note
        for r in message.results if message.kind == "part" else ():
            print((r["text"] or f"{r['id']}  {r['title']}\n✗ {r['reason']}") + "\n", flush=True)
            progress.remember(find(r["id"]).id, r["state"])
            passed, number = passed + (r["state"] == "passed"), number + 1
    if note:
        print(note)
    print(f"{passed} of {number} passed")
    raise typer.Exit(code=int(passed < number or not number))


def progress() -> None:
    """Show which exercises you have passed."""
    from flashlib.grading import progress as kept

    print(kept.text())


def export(
    nbgrader: Annotated[Path, typer.Option("--nbgrader", help="Write a course folder for nbgrader here.")],
    chapter: Chapters = None,
) -> None:
    """Write the exercises as assignments of nbgrader, from solutions/."""
    from flashlib.grading import nbgrader_export

    try:
        names = nbgrader_export.write(nbgrader, chapter)
    except (FileNotFoundError, FileExistsError) as error:
        raise _fail(str(error)) from None
    print(f"{nbgrader}: {', '.join(names)}. Next: cd {nbgrader} && nbgrader generate_assignment {names[0]}")
