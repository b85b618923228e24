"""Exercises: generated from the solutions, leaking none of them, and in the form that the grader expects."""

import random
import re

import nbformat
import pytest

from flashlib.grading import catalogue, matrix
from tools import course as course_data
from tools import exercises

SOLVED = sorted(exercises.SOLUTIONS.glob("*_solutions.ipynb"))
each_solution = pytest.mark.parametrize("path", SOLVED, ids=lambda p: p.stem)


def code(path):
    return [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def test_exercises_are_what_the_solutions_give():
    assert not exercises.stale(), "run `make fix`"


def test_every_chapter_has_its_exercises_and_its_solutions():
    there = {int(p.name[:2]) for p in SOLVED}
    assert there == set(catalogue.CHAPTERS)
    listed = {c.number: c.exercises for c in course_data.load().chapters if c.exercises}
    assert listed == {n: [f"{n:02d}_exercises"] for n in sorted(there)}


@each_solution
def test_no_line_of_a_solution_is_in_the_exercise(path):
    """Lines of a solution that say something: a bare `else:` or `return o` may stand elsewhere too."""
    inside = [m.group(0) for source in code(path) for m in exercises.SOLUTION.finditer(source)]
    lines = {line.strip() for block in inside for line in block.splitlines()[1:-1]}
    telling = {line for line in lines if len(re.findall(r"\w+", line)) >= 4 and not line.startswith(("#", "return "))}
    assert telling, "no solution found"
    text = exercises.target(path).read_text(encoding="utf-8")
    assert not [line for line in sorted(telling) if line in text]


@each_solution
def test_every_exercise_is_defined_and_checked_once(path):
    number = int(path.name[:2])
    source = "\n".join(code(exercises.target(path)))
    for e in catalogue.of_chapter(number):
        assert len(re.findall(rf"^def {e.function}\(", source, re.M)) == 1, e.id
        assert len(re.findall(rf'^check\("{e.id}", {e.function}\)$', source, re.M)) == 1, e.id
        stub = e.stub or e.function  # where the report sends a learner who has not begun
        body = re.search(rf"^(?:def|class) {stub}\b.*?(?=^[@\w]|\Z)", source, re.M | re.S)
        assert body and "raise NotImplementedError" in body[0], f"{e.id}: no stub in {stub}"
    assert source.count("raise NotImplementedError") >= len(catalogue.of_chapter(number))


@each_solution
def test_every_exercise_has_three_hints_and_a_way_further(path):
    cells = {c.id: c.source for c in nbformat.read(path, as_version=4).cells}
    for e in catalogue.of_chapter(int(path.name[:2])):
        number = e.id.replace(".", "-")
        assert cells[number].startswith(f"## {e.id}"), e.id
        assert cells[f"hints-{number}"].count("<details>") == 3, e.id
        assert "further" in cells[f"hints-{number}"].lower(), e.id


def test_there_are_enough_exercises_mistakes_and_right_variants():
    assert len(catalogue.everything()) >= 30
    for n in catalogue.CHAPTERS:
        right = matrix.right_variants(n)
        for e in catalogue.of_chapter(n):
            assert len(e.mistakes()) >= 5 and len(right[e.id]) >= 3, e.id


@pytest.mark.parametrize("chapter", catalogue.CHAPTERS)
def test_the_matrix(chapter, capsys):
    """Every mistake rejected and 95 % named, every right variant accepted, with a seed that is new every time."""
    seed = random.SystemRandom().randrange(10**6)
    cells = list(matrix.run([seed], [chapter]))
    wrong = [c for c in cells if not c.ok]
    mistakes = [c for c in cells if c.kind == "mistake"]
    unnamed = [(c.exercise, c.name, c.named) for c in mistakes if not c.named_rightly]
    assert not wrong, f"seed {seed}: {wrong}"
    assert len(unnamed) <= 0.05 * len(mistakes), f"seed {seed}: {unnamed}"
