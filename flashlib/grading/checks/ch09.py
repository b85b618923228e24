"""Chapter 09, attention in a GPT: what its exercises are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from flashlib.algorithms.philox import keep_mask
from flashlib.algorithms.reference import attention
from flashlib.grading.case import Case, Exercise, Finding, Judge, Outcome
from flashlib.grading.expected import Answer, expect
from flashlib.grading.judge import both, linear_memory, matches
from flashlib.grading.mistakes import ch09 as gallery
from flashlib.grading.mistakes import ch09_loss
from flashlib.grading.slot import Slot

HEADS = ("batch", "head", "row", "column")
ROWS = ("batch", "row", "column")


def _normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


# -- 09.1 ----------------------------------------------------------------------------------------------------------
def _split_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(3))

    def one(name: str, B: int, S: int, H: int, D: int, dtype: torch.dtype = torch.float32) -> Case:
        qkv = _normal(rng, B, S, 3 * H * D, dtype=dtype)
        right = qkv.double().numpy().reshape(B, S, 3, H, D).transpose(2, 0, 3, 1, 4)
        kind = str(dtype).removeprefix("torch.")
        answers = [Answer(n, x, 0.0, kind, "torch", HEADS) for n, x in zip("qkv", right, strict=True)]
        return Case(name, (qkv, H), matches(*answers))

    yield one("one head", 1, 5, 1, 4 + a)
    yield one("two heads", 1, 5 + a, 2, 4)
    yield one("sequences and heads", 2, 7, 3, 5 + a)
    yield one("the same sizes, other numbers", 2, 7, 3, 5 + a)
    yield one("as many heads as positions", 3, 4, 4, 5)
    yield one("heads of one feature", 2, 5 + a, 6, 1)
    yield one("float16 in, float16 out", 2, 9, 6, 2 + a, torch.float16)
    calls = [(_normal(rng, 2, n, 36), 6) for n in (16, 32)]
    options = {"calls": calls, "n": (16, 32), "library": "torch"}
    name = "no number is copied"
    yield Case(name, calls[0], linear_memory(lambda n: 0.0, "views"), how="growth", options=options, measured=True)


# -- 09.2 ----------------------------------------------------------------------------------------------------------
def _half(seed: int, x, w_qkv, w_out, heads, attend, dropout_p, training):
    """The oracle; the dropout mask is the slot's."""
    B, S, E = x.shape
    deviation = x - x.mean(-1, keepdims=True)
    normed = deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-5)
    q, k, v = (normed @ w_qkv).reshape(B, S, 3, heads, E // heads).transpose(2, 0, 3, 1, 4)
    p = dropout_p if training else 0.0
    keep = keep_mask(seed, p, 1, 1, S, S) if p else None
    o = attention(q, k, v, causal=True, keep=keep, dropout_p=p, precision=x.dtype).o
    return x + o.transpose(0, 2, 1, 3).reshape(B, S, E) @ w_out


def _half_args(rng: np.random.Generator, B: int, S: int, H: int, D: int, p: float, training: bool, **more: Any) -> Any:
    dtype = more.pop("dtype", torch.float32)
    E = H * D
    x = 2 * _normal(rng, B, S, E, dtype=dtype) + 0.5
    w_qkv, w_out = (_normal(rng, E, n, dtype=dtype) / E**0.5 for n in (3 * E, E))
    w_qkv[:, : 2 * E] *= 5**0.5  # scores with a spread of 5
    return x, w_qkv, w_out, H, Slot(int(rng.integers(1 << 30)), **more), p, training


def _half_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(name: str, B: int, S: int, H: int, D: int, p: float, training: bool, **more: Any) -> Case:
        args = _half_args(rng, B, S, H, D, p, training, **more)
        mask = args[4].seed
        right = expect("out", lambda *inner: _half(mask, *inner), args, longest=H * D + S, axes=[ROWS])
        return Case(name, args, _with_calls(matches(*right), p if training else 0.0))

    yield one("one head", 1, 5 + a, 1, 8, 0.0, False)
    yield one("three heads", 1, 7 + a, 3, 4, 0.0, False)
    yield one("sequences and heads", 2, 9, 3, 5 + a, 0.0, False)
    yield one("inference, dropout_p = 0.3", 2, 11, 3, 6, 0.3, False)
    yield one("training, dropout_p = 0.3", 2, 10 + a, 3, 6, 0.3, True)
    yield one("training, dropout_p = 0", 2, 5, 4, 3 + a, 0.0, True)
    yield one("float64 in, float64 out", 3, 7, 2, 4 + a, 0.2, True, dtype=torch.float64)
    case = one("attend is called once, for all heads", 2, 7, 3, 4 + a, 0.1, True)
    yield replace(case, judge=both(case.judge, _called_once(2, 3, 7, 4 + a)), measured=True)
    E, sizes = 8, (256, 1024)
    calls = [_half_args(rng, 1, n, 2, E // 2, 0.0, False, cheap=True) for n in sizes]
    judge = linear_memory(lambda n: 2.0 * 4 * 10 * n * E, "ten arrays of the size of x, twice over,")
    options = {"calls": calls, "n": sizes, "library": "torch"}
    yield Case("nothing of N × N but in attend", calls[0], judge, how="growth", options=options, measured=True)


def _with_calls(inner: Judge, dropout_p: float) -> Judge:
    """``inner``; where it finds something wrong, with a word on how attend was called."""

    def judge(outcome: Outcome) -> Finding:
        finding, calls = inner(outcome), outcome.measures.get("attend", [])
        said = []
        if not finding.ok and not calls:
            said.append("attend was not called.")
        if not finding.ok and calls and not all(call["causal"] for call in calls):
            said.append("attend was called with causal=False.")
        if not finding.ok and calls and any(call["dropout_p"] != dropout_p for call in calls):
            said.append(f"attend was called with dropout_p={calls[0]['dropout_p']:g}, expected {dropout_p:g}.")
        if not finding.ok and {"dropout", "bernoulli", "rand", "rand_like"} & set(outcome.called):
            said.append("It draws random numbers itself; dropping is attend's work.")
        return replace(finding, says=" ".join([finding.says, *said])) if said else finding

    return judge


def _called_once(B: int, H: int, S: int, D: int) -> Judge:
    def judge(outcome: Outcome) -> Finding:
        calls, shape = outcome.measures.get("attend", []), f"{B} × {H} × {S} × {D}"
        says = ""
        if not calls:
            says = "It never calls attend, so it would not notice that the attention was swapped."
        elif len(calls) > 1:
            says = f"It calls attend {len(calls)} times; one call can do all sequences and heads."
        elif any(calls[0][name] != shape for name in "qkv"):
            got = ", ".join(f"{name} {calls[0][name]}" for name in "qkv")
            says = f"attend got {got}; all three should be {shape}, (B, H, S, D)."
        return Finding(not says, float(len(calls)), 1.0 if not says else 0.0, result="calls", says=says)

    return judge


# -- 09.3 ----------------------------------------------------------------------------------------------------------
def _counts(tokens: Any, lengths: Any) -> np.ndarray:
    """1 where row t of the logits predicts a real token, else 0: (B, S − 1)."""
    return (np.arange(1, tokens.shape[1]) < np.asarray(lengths)[:, None]).astype(np.longdouble)


def _loss(logits: Any, tokens: Any, lengths: Any) -> Any:
    picked = np.take_along_axis(logits[:, :-1], np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    m = logits[:, :-1].max(-1)
    lse = m + np.log(np.exp(logits[:, :-1] - m[..., None]).sum(-1))
    there = _counts(tokens, lengths)
    return ((lse - picked) * there).sum() / there.sum()


def _dlogits(logits: Any, tokens: Any, lengths: Any) -> Any:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    there = _counts(tokens, lengths)
    out = np.zeros_like(p)
    one_hot = np.arange(p.shape[-1]) == np.asarray(tokens)[:, 1:, None]
    out[:, :-1] = (p[:, :-1] - one_hot) * there[..., None] / there.sum()
    return out


def _loss_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    a = int(rng.integers(4))

    def one(
        name: str, lengths: list[int], S: int, V: int, *, dtype=torch.float32, shift=0.0, far=0.0, gradient=False,
        rise=0.0, size=3.0, up=0.0,
    ) -> Case:  # fmt: skip
        """``shift``: rows of logits lie so far up or down, or ``up`` or not; ``far``: one right byte's logit lies so
        far below; ``rise``: logits rise by so much along the vocabulary, and the last is the largest; ``size``: their
        spread."""
        B = len(lengths)
        tokens = rng.integers(1, V, (B, S))
        for b, n in enumerate(lengths):
            tokens[b, min(2, n - 1)] = 0  # 0 is a byte like any other, and also what fills up the end
            tokens[b, n:] = 0
        logits = size * rng.standard_normal((B, S, V)) + np.linspace(0, rise, V)
        if rise:
            logits[..., -1] = logits.max(-1) + 2
        likely: Any = 2.0  # the right byte is likely, not certain
        if dtype == torch.bfloat16:  # a small number with digits that are lost beside the maximum
            likely = rng.uniform(0.1, 0.9, (B, S, 1))
        np.put_along_axis(logits, np.roll(tokens, -1, 1)[..., None], likely, -1)
        logits[-1, 0, tokens[-1, 1]] -= far
        logits += shift * rng.choice([-1, 1], (B, S, 1)) + up * rng.choice([0, 1], (B, S, 1))
        args = torch.from_numpy(logits).to(dtype), torch.from_numpy(tokens), torch.tensor(lengths)
        wide = "float64" if dtype == torch.float64 else "float32"
        if gradient:
            axes = [("sequence", "position", "byte")]
            right = expect("dlogits", _dlogits, args, longest=V + B * S, dtype=wide, axes=axes)
            return Case(name, args, matches(*right), how="gradients", options={"do": torch.ones(()), "wrt": 1})
        return Case(name, args, matches(*expect("loss", _loss, args, longest=V + B * S, dtype=wide)))

    yield one("one sequence", [5 + a], 5 + a, 7)
    yield one("three sequences of the same length", [8, 8, 8], 8, 11 + a)
    yield one("lengths 9, 4, 6: the rest is filled up", [9, 4, 6], 9, 12 + a)
    yield one("one sequence is far shorter", [2, 11, 10], 11, 9 + a)
    yield one("a sequence of one token has nothing to predict", [1, 7, 4], 8, 9 + a)
    yield one("logits near ±1000", [7, 5], 8, 10 + a, shift=1000.0)
    yield one("logits near 0, and near 300", [6, 8], 8, 9 + a, up=300.0)
    yield one("the right byte has a p near exp(−200)", [6, 8], 8, 9 + a, far=200.0)
    yield one("many bytes: a vocabulary of 311", [9, 6 + a], 10, 311, rise=6.0)  # a prime: no block divides it
    yield one("bfloat16 in, float32 out", [10, 6, 9], 10, 17 + a, dtype=torch.bfloat16, size=6.0)
    yield one("bfloat16, other lengths", [12, 5], 12, 19 + a, dtype=torch.bfloat16, size=6.0)
    yield one("float64 in, float64 out", [6, 8], 8, 9 + a, dtype=torch.float64)
    yield one("its gradient", [6, 3, 5], 7, 6 + a, gradient=True)


EXERCISES = [
    Exercise("09.1", "split the heads", "split_heads", _split_cases, lambda: gallery.SPLIT),
    Exercise("09.2", "swap attention in a block", "attention_half", _half_cases, lambda: gallery.HALF),
    Exercise(
        "09.3", "the loss", "next_byte_loss", _loss_cases, lambda: ch09_loss.LOSS,
        forbidden=(
            "cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "softmax", "log_softmax", "Softmax",
            "LogSoftmax", "logsumexp", "logaddexp", "softmin", "binary_cross_entropy", "logcumsumexp", "_softmax",
            "_log_softmax",
        ),
    ),
]  # fmt: skip
