"""The grader's core: what counts as equal, what is named, what is refused, and what a learner reads."""

import json

import numpy as np
import pytest

from flashlib.grading import catalogue, harness, library_calls
from flashlib.grading.case import Case, Exercise, Mistake
from flashlib.grading.check import check, judge
from flashlib.grading.expected import expect, value
from flashlib.grading.judge import linear_memory, matches, measured, raises
from flashlib.grading.progress import read
from flashlib.grading.show_report import picture


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHLIB_PROGRESS", str(tmp_path / "progress.json"))


def soft(x, *, bug=""):
    m = 0 if bug == "no maximum" else x.max(-1, keepdims=True)
    p = np.exp(x - m)
    return p if bug == "not divided" else p / p.sum(-1, keepdims=True)


MISTAKES = [
    Mistake("not divided", lambda x: soft(x, bug="not divided"), "weights that are not divided", "What sums to 1?"),
    Mistake("no maximum", lambda x: soft(x, bug="no maximum"), "a softmax without the maximum", "What is exp(800)?"),
]


def cases(seed):
    rng = np.random.default_rng(seed)
    for name, size in (("small scores", 1), ("scores near 1000", 500)):
        x = rng.standard_normal((5, 7)) * size + 2 * size
        yield Case(name, (x,), matches(*expect("p", soft, (x,), longest=7)), tile=(2, 3))
    yield Case("memory", (x,), linear_memory(lambda n: 8 * n, "x"), how="growth", measured=True,
               options={"n": [64], "calls": [(np.ones((1, 64)),)], "library": "numpy"})  # fmt: skip


EXERCISE = Exercise("99.1", "softmax", "softmax", cases, lambda: MISTAKES, forbidden=("softmax",))


def judged(fn, exercise=EXERCISE, seed=3):
    return judge(exercise, seed, lambda c: harness.run(fn, c, may_change=exercise.may_change))


def test_right_answers_pass_until_what_is_measured():
    report = judged(soft)
    assert [line.state for line in report.lines] == ["passed", "passed", "failed"]
    assert "At N = 64 it holds" in report.advice[0] and "x need 512" in report.advice[0]


def test_a_known_mistake_is_named_and_the_rest_waits():
    report = judged(lambda x: soft(x, bug="not divided"))
    assert report.named == "not divided" and report.lines[-1].state == "skipped"
    text = str(report)
    assert "Your output equals that of weights that are not divided." in text and "What sums to 1?" in text
    assert "first wrong: p, row 0, column 0, row tile 0" in text and "memory: not tried until the rest is right" in text
    assert judged(lambda x: soft(x, bug="no maximum")).named == "no maximum"


def test_an_unknown_mistake_gets_true_words():
    def wrong(x):
        p = soft(x)
        p[1:3] *= 1 + 1e-9
        return p

    report = judged(wrong)
    assert not report.named and "whole rows: 1–2." in report.advice[1]


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: 3 * soft(x), "Every number is 3 times the expected one."),
        (lambda x: soft(x) + 0.5, "Every number is +0.5 off."),
        (lambda x: 0 * soft(x), "Every number is 0."),
        (lambda x: None, "It returned nothing, expected 1 result: p."),
        (lambda x: (soft(x), soft(x)), "It returned 2 results, expected 1 result: p."),
        (lambda x: soft(x).T, "p has shape (7, 5), expected (5, 7)."),
        (lambda x: soft(x).astype(np.float32), "p is float32, expected float64."),
        (lambda x: np.full_like(x, np.nan), "p is NaN in 35 of 35 places"),
        (lambda x: x.__imul__(0), "It wrote to argument 1; inputs belong to the caller."),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero."),
        (lambda x: exit(), "SystemExit"),
        (lambda x: "p", "expected numbers or arrays back, got str"),
    ],
)
def test_what_comes_back_wrong_is_said(fn, words):
    report = judged(fn)
    assert report.state == "failed" and words in report.advice[0]


def test_the_line_that_raised_is_shown():
    def broken(x):
        return x @ x  # shapes do not fit

    assert "return x @ x" in judged(broken).advice[0]


def test_not_started_is_no_failure():
    def stub(x):
        raise NotImplementedError

    report = judged(stub)
    assert report.state == "not started" and not report and "not started" in str(report)


def test_a_view_of_the_input_is_judged_by_its_numbers():
    exercise = Exercise("99.2", "twice", "f", lambda seed: [
        Case("same", (np.arange(6.0).reshape(2, 3),), matches(value("x", np.arange(6.0).reshape(3, 2))))
    ], lambda: [])  # fmt: skip
    assert judged(lambda x: x.reshape(3, 2), exercise)
    assert not judged(lambda x: x, exercise)


def test_whole_numbers_and_refusals_have_no_tolerance():
    counts = Exercise("99.3", "bytes", "f", lambda seed: [
        Case("bytes", (), matches(value("bytes", 2**40))),
        Case("refused", (), raises("ValueError", "37"), kwargs={"bad": 37}),
    ], lambda: [])  # fmt: skip

    def f(bad=0):
        if bad:
            raise ValueError(f"got {bad}")
        return 2**40

    assert judged(f, counts)
    assert not judged(lambda bad=0: 2**40 + 1, counts)
    assert "should have raised ValueError" in judged(lambda bad=0: 2**40, counts).advice[0]


def test_a_measure_that_differs_is_named():
    from flashlib.grading.case import Outcome

    judge_read = measured("read", {"K": 10, "V": 20}, "B", "Each tile is read once.")
    assert judge_read(Outcome(measures={"read": {"K": 10, "V": 20}})).ok
    assert "read V: 40 B, expected 20." in judge_read(Outcome(measures={"read": {"K": 10, "V": 40}})).says
    assert "read Q: 5 B, expected 0." in judge_read(Outcome(measures={"read": {"K": 10, "V": 20, "Q": 5}})).says


# -- right computations are not refused, wrong ones in the last digits are --------------------------------------------
def test_the_budget_admits_other_orders_and_refuses_a_dropped_term():
    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        for _ in range(200):
            x = (rng.standard_normal(50) * rng.uniform(0.1, 100)).astype(dtype)
            w = rng.uniform(0.5, 1.5, 50).astype(dtype)
            judge_sum = matches(*expect("s", lambda x, w: (x * w).sum(), (x, w), longest=50))
            order = rng.permutation(50)
            one = dtype(0)
            for a, b in zip(x[order], w[order], strict=True):
                one = dtype(one + dtype(a * b))
            for s, right in ((x @ w, True), (one, True), ((x[:-1] @ w[:-1]), False)):
                from flashlib.grading.case import Outcome

                finding = judge_sum(Outcome(harness.values(dtype(s))))
                assert finding.ok == right, (dtype, s, finding)


# -- a library's attention --------------------------------------------------------------------------------------------
def sneaky(x):
    from torch.nn.functional import scaled_dot_product_attention as f

    return f(x, x, x)


def through_a_helper(x):
    return sneaky(x)


def by_name(x):
    import torch

    return getattr(torch.nn.functional, "scaled_dot_" + "product_attention")(x, x, x)


@pytest.mark.parametrize("fn", [sneaky, through_a_helper])
def test_a_library_attention_is_found_in_the_text(fn):
    assert "scaled_dot_product_attention" in library_calls.find(*library_calls.of_function(fn))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "logcumsumexp", "logaddexp2"])
def test_relatives_of_what_is_forbidden_are_forbidden(name):
    def inner(x):
        import torch

        return torch.ops.aten._softmax(x, -1, False)

    assert library_calls.find(*library_calls.of_function(inner), ("softmax",))
    assert library_calls.find(*library_calls.of_function(inner), ("logsumexp",)) is None
    assert name in library_calls.refused(("softmax", "logsumexp")) and name not in library_calls.refused(("einsum",))


def test_a_library_attention_is_found_when_it_runs():
    import torch

    x = torch.ones(1, 1, 3, 4)
    exercise = Exercise("99.4", "attention", "f", lambda seed: [Case("o", (x,), matches(value("o", x)))], lambda: [])
    report = judged(by_name, exercise)
    assert not report and "scaled_dot_product_attention" in report.headline


@pytest.mark.parametrize(
    "cells",
    [
        ["import flashlib", "def f(q):\n    return flashlib.attention(q, q, q)"],
        ["from flashlib import attention as a", "def f(q):\n    return a(q, q, q)"],
        ["from flashlib.algorithms.tiled import forward", "g = forward", "def f(q):\n    return g(q)"],
        ["def h(q):\n    import flashlib.algorithms.tiled as t\n    return t.forward(q)", "def f(q):\n    return h(q)"],
    ],
)
def test_the_packages_own_attention_is_found_in_cells(cells):
    assert library_calls.find(*library_calls.of_cells(cells, "f"))


def test_the_toy_and_the_masks_may_be_used():
    cells = ["from flashlib.algorithms.toy import toy", "def f(q):\n    return toy().q + q"]
    assert library_calls.find(*library_calls.of_cells(cells, "f")) is None


# -- the front ---------------------------------------------------------------------------------------------------------
def test_check_prints_and_remembers(capsys):
    def merge(m1, l1, m2, l2):
        return np.maximum(m1, m2), l1 + l2

    report = check("03.2", merge, seed=5)
    assert report.named == "sums added" and "sums" in capsys.readouterr().out
    assert read()["03.2"]["state"] == "tried"


def test_check_refuses_what_is_no_exercise_or_no_function():
    with pytest.raises(KeyError, match=r"there are .*03\.2"):
        check("03.99", len)
    with pytest.raises(TypeError, match="takes your function merge as well, got None"):
        check("03.2")


def test_progress_survives_a_broken_file(tmp_path, monkeypatch):
    file = tmp_path / "p.json"
    file.write_text("[broken")
    monkeypatch.setenv("FLASHLIB_PROGRESS", str(file))
    assert read() == {}
    check("03.2", lambda *a: a, seed=1)
    assert json.loads(file.read_text())["03.2"]["tries"] == 1


def test_html_and_text_say_the_same():
    report = judged(lambda x: soft(x, bug="not divided"))
    page = report._repr_html_()
    for words in (report.title(), *report.advice):
        import html

        assert html.escape(words) in page
    assert "<th scope" in page


def test_the_picture_marks_what_is_wrong():
    import matplotlib.pyplot as plt

    fig = picture(np.array([[0.1, 2.0, 0.0], [0.5, np.inf, 3.0]]), ("row", "key"), (1, 2))
    assert "3 of 6 numbers are wrong" in fig.axes[0].get_title(loc="left")
    plt.close(fig)


def test_every_exercise_is_whole():
    for e in catalogue.everything():
        assert e.id.startswith(f"{int(e.id[:2]):02d}.") and e.title and e.function.isidentifier()
        names = [m.name for m in e.mistakes()]
        assert len(names) == len(set(names)), f"{e.id}: two mistakes have one name"
        for m in e.mistakes():
            assert m.says and "?" in m.ask, f"{e.id} {m.name}: a mistake says what it is and asks a question"


# -- what the harnesses see --------------------------------------------------------------------------------------------
def test_every_way_to_multiply_two_matrices_is_counted():
    torch = pytest.importorskip("torch")
    from flashlib.grading.counted import Matmuls

    a, b, c = torch.ones(3, 4), torch.ones(4, 5), torch.ones(3, 5)
    ways = [
        lambda: a @ b, lambda: torch.addmm(c, a, b), lambda: c.clone().addmm_(a, b),
        lambda: torch.einsum("ij,jk", a, b),
        lambda: c[None].clone().baddbmm_(a[None], b[None]), lambda: c.clone().addbmm_(a[None], b[None]),
        lambda: torch.addmm(c, a, b, out=torch.empty(3, 5)), lambda: torch.nn.functional.linear(a, b.T),
    ]  # fmt: skip
    for inference in (False, True):
        for way in ways:
            with torch.inference_mode(inference), Matmuls() as seen:
                way()
            assert (seen.flops, seen.side, seen.longest, seen.dtypes) == (2 * 3 * 4 * 5, 5, 4, {"float32"})
    for way in (lambda: torch.zeros(3).addmv_(a, b[:, 0]), lambda: a @ b[:, 0]):
        with Matmuls() as seen:
            way()
        assert seen.flops == 2 * 3 * 4
    with Matmuls() as seen:
        torch.dot(a[0], b[:, 0])
    assert seen.flops == 2 * 4


def test_a_call_of_endless_operations_is_stopped():
    torch = pytest.importorskip("torch")
    from flashlib.grading.counted import TooManyOperations, limited

    def tiny(x):
        for _ in range(60):
            x = x + 1

    with pytest.raises(TooManyOperations, match="after 50 operations"):
        limited(tiny, 50)(torch.zeros(1))


def _copied_row(machine, S, name="O", kernels=1, look=False):
    O = machine.hbm_empty(name, S.shape, S.dtype)
    for i in range(kernels):
        with machine.kernel("copy"):
            for j in range(i, S.shape[0], kernels):
                machine.store(O, slice(j, j + 1), S.array[j : j + 1] if look else machine.load(S, slice(j, j + 1)))
    return O


def test_the_machine_sees_kernels_tiles_and_who_looks_past_it():
    from flashlib.grading.judge import in_one_kernel

    case = Case("copy", (np.arange(6.0),), in_one_kernel({"S": 6}), how="machine",
                options={"sram_bytes": 64, "names": ("S",), "returns": ("O",)})  # fmt: skip

    def seen(**how):
        outcome = harness.run(lambda machine, S: _copied_row(machine, S, **how), case)
        return outcome, case.judge(outcome)

    outcome, finding = seen(name="whatever")
    assert finding.ok and outcome.measures["written"] == {"O": 48} and (outcome.results[0].array == np.arange(6)).all()
    assert "kernels: 2 begun, expected 1" in seen(kernels=2)[1].says
    assert "It uses S.array" in seen(look=True)[1].says


def test_an_array_of_numbers_counts_as_that_many_results():
    judge_two = matches(value("a", 3), value("b", 5))
    case = Case("two", (), judge_two)
    assert judge_two(harness.run(lambda: np.array([3, 5]), case)).ok
    assert not judge_two(harness.run(lambda: np.array([3, 6]), case)).ok
    assert "It returned a list" in matches(value("x", np.eye(2)))(harness.run(lambda: [[1, 0], [0, 1]], case)).says


def test_a_stream_tells_how_often_it_was_asked_past_its_end():
    from flashlib.grading.case import Stream

    case = Case("tiles", (Stream([np.ones(2)] * 3),), matches(value("n", 3)))
    assert harness.run(lambda tiles: len(list(tiles)), case).measures["ends"] == 1
    assert harness.run(lambda tiles: len(list(tiles)) + len(list(tiles)), case).measures["ends"] == 2


def _slot_case(*, cheap=False):
    import torch

    from flashlib.grading.slot import Slot

    q = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 2, 4, 5, 3)))
    return q, Case("slot", (*q, Slot(7, cheap=cheap)), matches(value("n", 1)))


def test_a_slot_computes_attention_and_notes_how_it_was_called():
    from flashlib.grading.exactness import Problem

    q, case = _slot_case()
    one = harness.run(lambda q, k, v, attend: attend(q, k, v, causal=True), case)
    Problem(*q, causal=True).compare(o=one.results[0].array).raise_if_wrong()
    shape = "2 × 4 × 5 × 3"
    assert one.measures["attend"] == [{"q": shape, "k": shape, "v": shape, "causal": True, "dropout_p": 0.0}]
    two = harness.run(lambda q, k, v, attend: attend(q, k, v) + attend(q, k, v, dropout_p=0.5), case)
    assert [(c["causal"], c["dropout_p"]) for c in two.measures["attend"]] == [(False, 0.0), (False, 0.5)]
    again = harness.run(lambda q, k, v, attend: attend(q, k, v) + attend(q, k, v, dropout_p=0.5), case)
    assert np.array_equal(two.results[0].array, again.results[0].array), "the same mask every time"
    assert harness.run(lambda q, k, v, attend: q, case).measures["attend"] == []


def test_a_slot_refuses_what_no_attention_takes_and_may_be_cheap():
    q, case = _slot_case(cheap=True)
    cheap = harness.run(lambda q, k, v, attend: attend(q, k, v), case)
    assert np.array_equal(cheap.results[0].array, q[2].numpy())
    wrong = harness.run(lambda q, k, v, attend: attend(q, k, v, is_causal=True), case)
    assert wrong.trouble.kind == "TypeError" and "got is_causal" in wrong.trouble.message
    flat = harness.run(lambda q, k, v, attend: attend(q[0], k[0], v[0]), case)
    assert flat.trouble.kind == "ValueError" and "(B, H, S, D)" in flat.trouble.message


def test_a_slots_notes_come_through_the_pipe():
    from flashlib.grading import wire

    _, case = _slot_case()
    sent = harness.run(lambda q, k, v, attend: attend(q, k, v, causal=True, dropout_p=0.25), case)
    head, body = (lambda m: (m[8 : 8 + int.from_bytes(m[:4], "little")], m[8 + int.from_bytes(m[:4], "little") :]))(
        wire.pack(sent, 1 << 20)
    )
    assert wire.unpack(head, body).measures == sent.measures


def test_the_numbers_that_products_read_are_counted():
    import torch

    q, k = torch.ones(2, 4, 3), torch.ones(2, 5, 3)
    case = Case("read", (q, k), matches(value("n", 1)), how="matmuls")
    assert harness.run(lambda q, k: q @ k.mT, case).measures["operands"] == q.numel() + k.numel()
    looped = harness.run(lambda q, k: [q[:, i : i + 1] @ k.mT for i in range(4)], case)
    assert looped.measures["operands"] == q.numel() + 4 * k.numel()


@pytest.mark.parametrize(
    ("got", "told"),
    [(96.0, "0.125"), (691.2, "0.9"), (768 / np.log(2), "1.4427"), (-768.0, "-1"), (66.0, ""), (825.9, "")],
)
def test_a_ratio_is_told_where_it_tells_something(got, told):
    finding = matches(value("S", np.float64(768.0)))(harness.run(lambda: np.float64(got), Case("one", (), None)))
    assert (f"That is {told}" in finding.says) if told else ("times as much" not in finding.says), finding.says


@pytest.mark.parametrize("exercise_id", ["09.3", "10.1"])
def test_16_bits_are_blamed_for_errors_of_their_size_alone(exercise_id):
    pytest.importorskip("torch")
    exercise = catalogue.find(exercise_id)
    mistakes = {m.name: m for m in exercise.mistakes()}
    narrow = mistakes["computed in 16 bits" if exercise_id == "09.3" else "in 16 bits"]
    case = next(c for c in exercise.cases(5) if "float16 in" in c.name)
    for wrong, fits in (
        (narrow, True),
        (mistakes["divided by the batch" if exercise_id == "09.3" else "own scale"], False),
    ):
        outcome = harness.run(wrong.wrong, case)
        assert narrow.fits(case, outcome, case.judge(outcome)) is fits, wrong.name
