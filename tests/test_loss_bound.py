"""The bound on loss curves: right attentions lie within it, wrong ones outside; and the split of a training step."""

import warnings
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import flashlib
from flashlib.gpt import CONFIGS, GPT, Config
from flashlib.instruments.backends import taken, why_not
from flashlib.ladder import LADDER, climb
from flashlib.loss_bound import RESULTS, Perturbed, Spread, spread, student
from flashlib.show import progress
from flashlib.show import training as picture
from flashlib.step_split import Timed, absent, attention_share, fits, flops, split
from flashlib.training import text, train

TINY = Config(layers=1, heads=1, width=16, context=32, vocab=256)
OPTIONS = {"steps": 40, "B": 2, "lr": 1e-2}


@pytest.fixture(scope="module")
def found() -> Spread:
    return spread(TINY, runs=8, progress=False, **OPTIONS)


def curve(slot):
    return train(TINY, slot, progress=False, measure=False, **OPTIONS)[1].losses


def test_right_attentions_lie_within(found):
    for slot in ("naive", "tiled", "sdpa", "reference"):
        assert 0 <= found.worst(curve(slot), 3) < 1, slot


@pytest.mark.parametrize(
    "slot",
    [
        lambda q, k, v, **_: flashlib.attention(q, k, v, causal=True, scale=1.03 * q.shape[-1] ** -0.5),
        lambda q, k, v, **_: flashlib.attention(q, k.detach(), v, causal=True),
        lambda q, k, v, **_: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(32, 32).tril(1).bool()),
        lambda q, k, v, **_: flashlib.attention(q, k, v, causal=True) * torch.nan,
    ],
    ids=["scale", "no dk", "sees the next token", "nan"],
)
def test_wrong_attentions_lie_outside(found, slot):
    assert found.worst(curve(slot), 3) > 1


def test_noise_is_as_large_as_the_budgets_say():
    """In o and in each gradient, at two sizes; and none while budgets are recorded."""
    x = [torch.randn(2, 1, 24, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)]
    do = torch.randn(2, 1, 24, 8, generator=torch.Generator().manual_seed(9))

    def results(slot):
        o = slot(*x, causal=True)
        return dict(zip(RESULTS, (o, *torch.autograd.grad(o, x, do)), strict=True))

    recorder = Perturbed()
    exact = results(recorder)
    (budget,) = recorder.budgets
    for size in (1.0, 30.0):
        noisy = results(Perturbed(recorder.budgets, size=size, seed=3))
        for name in RESULTS:
            most = (noisy[name] - exact[name]).abs().max().item() / (size * budget[name])
            assert 0.9 < most < 1.05, (name, size)


def test_student_against_known_values():
    assert student(2, 0.05) == pytest.approx(4.302652730, rel=1e-8)
    assert student(16, 4e-8) == pytest.approx(9.732562236, rel=1e-8)
    assert student(1000, 0.01) == pytest.approx(NormalDist().inv_cdf(0.995), rel=3e-3)
    for bad in ((3, 0.1), (0, 0.1), (4, 0.0), (4, 1.0)):
        with pytest.raises(ValueError, match="freedom must be even"):
            student(*bad)


def test_what_would_break_the_count_of_calls_is_refused():
    for change in ({"dropout": 0.1}, {"checkpoint": True}):
        with pytest.raises(ValueError, match="no dropout and no checkpointing"):
            spread(Config(**{**vars(TINY), **change}), steps=1)
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="causal and without dropout"):
        Perturbed()(q, q, q, dropout_p=0.5)


@pytest.mark.parametrize("config", [TINY, Config(layers=3, heads=2, width=24, context=40, vocab=99)])
def test_flops_are_those_that_torch_counts(config):
    x = text()[: 2 * (config.context + 1)].reshape(2, -1) % config.vocab
    with FlopCounterMode(display=False) as counter:
        GPT(config, "naive")(x[:, :-1], x[:, 1:]).backward()
    counted = flops(config, 2)
    assert counter.get_total_flops() == sum(counted.values())
    assert attention_share(config, config.context) == pytest.approx(counted["attention"] / sum(counted.values()))
    assert flops(config, 2, recompute=True)["attention"] * 6 == counted["attention"] * 7
    assert attention_share(CONFIGS["gpt2"], 1024) == pytest.approx(0.1325, abs=1e-4)


def test_the_watch_changes_nothing_and_sees_the_slot_only():
    assert curve(Timed("naive")) == curve("naive")
    watch, slow = Timed(absent), Timed("naive")
    for slot in (watch, slow):
        train(TINY, slot, steps=3, B=16, progress=False, measure=False)
    assert 0 < watch.forward_s < slow.forward_s and 0 < watch.backward_s < slow.backward_s


def test_split_puts_the_squares_with_attention():
    config = Config(layers=1, heads=4, width=32, context=256, vocab=256)
    parts = {slot: split(config, slot, steps=1, B=2) for slot in ("naive", "tiled")}
    assert parts["naive"].rest_bytes == parts["tiled"].rest_bytes > 0
    assert parts["naive"].attention_bytes > parts["tiled"].attention_bytes + 4 * 2 * 4 * 256**2
    assert all(0 < p.share < 1 and p.tokens == 512 for p in parts.values())


def test_backends_and_reasons():
    q = torch.randn(1, 2, 16, 32)
    assert taken(q, q, q) == "FLASH_ATTENTION" and why_not("FLASH_ATTENTION", q, q, q) == ""
    assert taken(q, q, q, dropout_p=0.1) == "MATH"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing must reach the reader's screen
        assert "dropout" in why_not("FLASH_ATTENTION", q, q, q, dropout_p=0.1)
        assert "4 dim" in why_not("FLASH_ATTENTION", q[0], q[0], q[0])
    assert taken(q[0], q[0], q[0]) == "MATH" and why_not("MATH", q[0], q[0], q[0]) == ""
    with pytest.raises(ValueError, match="backend must be one of"):
        why_not("FASTEST", q, q, q)


def test_the_ladder_can_be_climbed():
    """On a tiny model, with graphs captured but not compiled."""
    ladder = [type(r)(**{**vars(r), "compiled": r.compiled and "aot_eager", "vocab": 256}) for r in LADDER]
    seen = []
    rows = climb(TINY, absent, "sdpa", B=2, steps=3, ladder=ladder, each=seen.append)
    assert seen == [row[0] for row in rows] == [r.name for r in LADDER]
    assert all(row[2] == 2 and row[3] > 0 for row in rows)
    assert torch.get_float32_matmul_precision() == "highest"


def test_batches_are_halved_until_they_fit():
    def step(B):
        if B > 3:
            raise torch.OutOfMemoryError("too much")
        return 10 * B

    assert fits(step, 16) == (2, 20)
    with pytest.raises(torch.OutOfMemoryError):
        fits(lambda B: step(99), 4)


def test_progress_goes_to_stdout_and_leaves_nothing_of_itself(capsys):
    assert list(progress.steps(3, "three", note=lambda: "a note")) == [0, 1, 2]
    said = capsys.readouterr()
    assert "three" in said.out and said.out.endswith("\r") and said.err == ""
    assert list(progress.steps(2, "two", show=False)) == [0, 1] and capsys.readouterr().out == ""


def test_progress_in_a_notebook_is_one_output(monkeypatch):
    shown = []
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(progress, "EVERY_S", -1)
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **_: shown.append(data) or SimpleNamespace(display_id=7)
    )
    monkeypatch.setattr("IPython.display.update_display", lambda data, display_id, raw: shown.append(data))
    assert list(progress.steps(2, "<two>", note=lambda: "loss 1")) == [0, 1]
    assert [data["text/plain"] for data in shown][-1] == "<two>: 2 of 2, loss 1" and len(shown) == 4
    assert "<progress" in shown[0]["text/html"] and "<progress" not in shown[-1]["text/html"]
    assert "&lt;two&gt;" in shown[-1]["text/html"]


def test_the_picture_shows_every_curve(found):
    exact = found.exact.tolist()
    shifted = [x + 1e-3 for x in exact]
    fig = picture.losses({"naive": exact}, exact, found.bound(1).tolist(), title="t", wrong={"shifted": shifted})
    left, right = fig.axes
    moved = np.abs(np.array(shifted) - np.array(exact))
    assert np.array_equal(right.lines[1].get_ydata(), moved) and len(left.lines) == 2
    with pytest.raises(ValueError, match="'naive' has 39 steps"):
        picture.losses({"naive": exact[1:]}, exact, exact, title="t")
