"""When an outcome is that of a known mistake though not to the last digit; who met whom; whole numbers in any form."""

import numpy as np
import torch

from flashlib.grading import harness
from flashlib.grading.case import Case, Exercise, Mistake
from flashlib.grading.check import judge
from flashlib.grading.expected import expect, value
from flashlib.grading.judge import matches


def run(fn, case, how="call"):
    return harness.run(fn, Case("", case, lambda o: None, how=how))


def named(fn, wrong, oracle, args, *others, **more):
    judged = matches(*expect("y", oracle, args, longest=len(args[0])), *others)
    exercise = Exercise(
        "99.2", "t", "f", lambda seed: [Case("one", args, judged)], lambda: [Mistake("m", wrong, "s", "a", **more)]
    )
    return judge(exercise, 1, lambda case: harness.run(fn, case)).named


def test_results_are_compared_within_their_own_budgets():
    """A wrong count beside numbers that are right to rounding, summed in another order."""
    x = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    mistake, count = (lambda x: (np.sum(x), 7)), value("n", 8)
    backwards = lambda x: (np.float32(sum(x[::-1].tolist())), 7)  # noqa: E731
    assert backwards(x)[0] != mistake(x)[0]
    assert named(backwards, mistake, lambda x: x.sum(), (x,), count) == "m"
    assert named(lambda x: (backwards(x)[0] + 1e-3, 7), mistake, lambda x: x.sum(), (x,), count) == ""


def test_a_mistake_whose_divisor_comes_near_0_is_known_to_its_own_rounding():
    x = np.array([3, 2, 5, 1.0001, 7], np.float32)
    mistake = lambda x: 1 / (x - 1)  # noqa: E731
    other = lambda x: 1 / (x * np.float32(1 + 1e-7) - 1)  # noqa: E731
    assert abs(other(x)[3] - mistake(x)[3]) > 1
    assert named(other, mistake, lambda x: 1 / x, (x,)) == "m"
    assert named(lambda x: other(x) * np.float32(1.1), mistake, lambda x: 1 / x, (x,)) == ""


def test_where_numbers_overflow_the_place_does_not_matter():
    x = np.array([1.0, 2.0, 3.0], np.float32)
    wrong, got = np.array([2, np.nan, 6], np.float32), np.array([2, 4, np.inf], np.float32)
    assert named(lambda x: got, lambda x: wrong, lambda x: x, (x,), overflows=True) == "m"
    assert named(lambda x: got, lambda x: wrong, lambda x: x, (x,)) == ""
    assert named(lambda x: 3 * got, lambda x: wrong, lambda x: x, (x,), overflows=True) == ""


def test_whole_numbers_in_lists_and_tuples_are_one_value():
    forms = [[1, 2], (1, 2), [np.int64(1), 2], [torch.tensor(1), torch.tensor(2)], (np.array(1), 2)]
    for form in forms:
        _, second = run(lambda x, form=form: (x, form), (np.ones(2),)).results
        assert second.array.tolist() == [1, 2] and second.array.dtype.kind == "i"
        assert len(run(lambda x, form=form: form, (0,)).results) == len(form)  # several results, as ever
    (rows,) = run(lambda x: [[(1, 2), [3, torch.tensor(4)]]], (0,)).results
    assert rows.array.tolist() == [[1, 2], [3, 4]]
    assert len(run(lambda x: (1, [np.ones(2), np.ones(3)]), (0,)).results) == 3
    assert run(lambda x: (1, [(1, 2), (3,)]), (0,)).trouble.kind == "TypeError"


def test_an_index_is_no_float_and_has_no_ratio():
    finding = matches(value("first", 3, whole=True))
    assert not finding(run(lambda: 3.0, ())).ok and "floats" in finding(run(lambda: 3.0, ())).says
    assert finding(run(lambda: torch.tensor(3), ())).ok
    assert "times" not in finding(run(lambda: 6, ())).says
    assert "2 times" in matches(value("bytes", 3))(run(lambda: 6, ())).says


def test_meetings_are_seen_in_products_and_sums_and_only_there():
    rows, blocks = [torch.rand(3, 2), torch.rand(4, 2)], [torch.rand(5, 2), torch.rand(2, 2)]

    def met(fn):
        return run(fn, (rows, blocks), "meetings").measures["met"]

    assert met(lambda q, k: (q[0] * 2) @ k[1].T) == [[[1]], []]
    assert met(lambda q, k: [(q[1][:, None] * k[b]).sum(-1) for b in (1, 0, 0)]) == [[], [[1], [0]]]
    assert met(lambda q, k: torch.einsum("id,jd->ij", q[0], torch.cat(k)[:2])) == [[[0, 1]], []]
    assert met(lambda q, k: torch.cat(q) @ k[0].T) == [[[0]], [[0]]]
    assert met(lambda q, k: (q[0].sum(), k[0].sum(), k[0].new_zeros(3, 2) + q[0])) == [[], []]
    assert met(lambda q, k: q[0] @ k[0].T @ k[0].clone()) == [[[0]], []]  # p·k is no meeting of rows and keys
