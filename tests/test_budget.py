"""The error budget itself: it refuses what is wrong, in every dtype, and its parts do what they say."""

import numpy as np
import pytest
import torch

from flashlib.algorithms.masks import visible
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from flashlib.grading.rounding import UNIT, round_to

DTYPES = ("float64", "float32", "float16", "bfloat16")


def softmax(s):
    return torch.softmax(s, -1)


def scores(q, k, see, scale=None, fill=-torch.inf):
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return s.masked_fill(~see, fill)


def causal(q, k):
    return torch.from_numpy(visible(q.shape[2], k.shape[2], True))


# What people really write, a line each. Computed in float64 from the rounded inputs: nothing but the mistake shows.
MISTAKES = {
    "scale forgotten": lambda q, k, v: softmax(scores(q, k, causal(q, k), 1.0)) @ v,
    "scale applied twice": lambda q, k, v: softmax(scores(q, k, causal(q, k), 1 / q.shape[-1])) @ v,
    "scale fixed at 1/8": lambda q, k, v: softmax(scores(q, k, causal(q, k), 1 / 8)) @ v,
    "mask ignored": lambda q, k, v: softmax(q @ k.mT * q.shape[-1] ** -0.5) @ v,
    "mask aligned to the top left": lambda q, k, v: (
        softmax(scores(q, k, torch.ones(q.shape[2], k.shape[2]).tril().bool())) @ v
    ),
    "mask without the diagonal": lambda q, k, v: softmax(scores(q, k, causal(q, k).roll(-1, 1).tril(15))) @ v,
    "mask after the softmax": lambda q, k, v: (softmax(q @ k.mT * q.shape[-1] ** -0.5) * causal(q, k)) @ v,
    "masked scores are 0": lambda q, k, v: softmax(scores(q, k, causal(q, k), fill=0.0)) @ v,
    "last key dropped": lambda q, k, v: softmax(scores(q, k, causal(q, k))[..., :-1]) @ v[:, :, :-1],
    "tail of a ragged tile dropped": lambda q, k, v: softmax(scores(q, k, causal(q, k))[..., :48]) @ v[:, :, :48],
    "softmax over the queries": lambda q, k, v: torch.softmax(scores(q, k, causal(q, k)), -2).nan_to_num(0) @ v,
    "1 + x for exp": lambda q, k, v: linear(scores(q, k, causal(q, k), fill=-1.0)) @ v,
    "never rescaled": lambda q, k, v: by_tiles(q, k, v, rescale=False),
    "sum not rescaled": lambda q, k, v: by_tiles(q, k, v, rescale_l=False),
    "never divided": lambda q, k, v: by_tiles(q, k, v, divide=False),
    "keys of the wrong head": lambda q, k, v: softmax(scores(q, k.roll(1, 1), causal(q, k))) @ v,
    "h % Hkv instead of h // G": lambda q, k, v: softmax(scores(q, k[:, [0, 2, 0, 2]], causal(q, k))) @ v,
    "TF32 products": lambda q, k, v: softmax(scores(tf32(q), tf32(k), causal(q, k))) @ v,
}


def linear(s):
    p = (1 + s).clamp(min=0)
    return p / p.sum(-1, keepdim=True)


def tf32(x):
    """Rounded to 10 bits of mantissa, as tensor cores do with float32 unless told otherwise."""
    bits = x.float().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).double()


def by_tiles(q, k, v, rescale=True, rescale_l=True, divide=True):
    s = scores(q, k, causal(q, k))
    m = torch.full((*s.shape[:-1], 1), -torch.inf, dtype=s.dtype)
    l, acc = torch.zeros_like(m), torch.zeros_like(q @ v.mT[..., :1] * 0) + torch.zeros(v.shape[-1])
    for j in range(0, s.shape[-1], 16):
        tile = s[..., j : j + 16]
        m_new = torch.maximum(m, tile.amax(-1, keepdim=True))
        p, shrink = torch.exp(tile - m_new), torch.exp(m - m_new)
        acc = acc * (shrink if rescale else 1) + p @ v[:, :, j : j + 16]
        l = l * (shrink if rescale and rescale_l else 1) + p.sum(-1, keepdim=True)
        m = m_new
    return acc / l if divide else acc


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(name, dtype):
    if name == "TF32 products" and dtype in ("float16", "bfloat16"):
        pytest.skip("TF32 holds 16-bit inputs exactly (bfloat16, float16 have at most 10 bits of mantissa)")
    x = draw(1, library="torch", dtype=dtype)
    q, k, v = (t.double() for t in x[:3])
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    wrong = MISTAKES[name](q, k, v).to(getattr(torch, dtype))
    assert not Problem(*x[:3], causal=True).compare(o=wrong)


def backward_of(q, k, v, do, scale, see):
    """The right gradients, step by step; the mistakes below change one step each."""
    p = softmax(scores(q, k, see))
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    return p, dp, ds


GRADIENT_MISTAKES = {
    "delta left out": ("dq", lambda p, dp, ds, q, k, do, t: t * (p * dp) @ k),
    "scale left out of dq": ("dq", lambda p, dp, ds, q, k, do, t: ds @ k),
    "scale twice in dk": ("dk", lambda p, dp, ds, q, k, do, t: t * t * ds.mT @ q),
    "scale left out of dk": ("dk", lambda p, dp, ds, q, k, do, t: ds.mT @ q),
    "dk from P instead of dS": ("dk", lambda p, dp, ds, q, k, do, t: t * p.mT @ q),
    "dv from the transposed side": ("dv", lambda p, dp, ds, q, k, do, t: p.mT @ do.roll(1, 2)),
    "P transposed in delta": (
        "dq",
        lambda p, dp, ds, q, k, do, t: t * (p * (dp - (p * dp).sum(-2, keepdim=True))) @ k,
    ),
    "the last query dropped": ("dv", lambda p, dp, ds, q, k, do, t: p[:, :, :-1].mT @ do[:, :, :-1]),
    "one head of the group dropped": (
        "dv",
        lambda p, dp, ds, q, k, do, t: p.mT @ do * torch.tensor([1, 0, 1, 1])[:, None, None],
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADIENT_MISTAKES)
def test_a_wrong_gradient_is_refused_and_the_right_one_is_not(name, dtype):
    x = draw(2, library="torch", dtype=dtype)
    q, k, v, do = (t.double() for t in x)
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    scale = q.shape[-1] ** -0.5
    p, dp, ds = backward_of(q, k, v, do, scale, causal(q, k))
    result, wrong = GRADIENT_MISTAKES[name]
    right = {"dq": scale * ds @ k, "dk": scale * ds.mT @ q, "dv": p.mT @ do}[result]
    exact = Problem(*x, causal=True)

    def grouped(g):
        return (g if result == "dq" else g.unflatten(1, (2, 2)).sum(2)).to(getattr(torch, dtype))

    exact.compare(**{result: grouped(right)}).raise_if_wrong()
    assert not exact.compare(**{result: grouped(wrong(p, dp, ds, q, k, do, scale))})


def test_units_do_not_matter():
    """Values and dO a million times smaller: the budget shrinks with them, so a wrong answer stays wrong."""
    x = draw(3, library="torch", dtype="float32")
    big, small = Problem(*x), Problem(x.q, x.k, x.v * 2.0**-20, x.do * 2.0**-20)
    assert small.budget("o") == big.budget("o") * 2.0**-20
    assert small.budget("dv") == big.budget("dv") * 2.0**-20
    assert small.budget("dq") == big.budget("dq") * 2.0**-40


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_shape_and_emptiness_never_pass(dtype):
    x = draw(4, library="torch", dtype=dtype)
    exact = Problem(*x[:3], causal=True)
    o = torch.from_numpy(exact.forward.o.astype(np.float64)).to(getattr(torch, dtype))
    exact.compare(o=o).raise_if_wrong()
    nan = o.clone()
    nan[0, 0, 0, 0] = torch.nan
    verdict = exact.compare(o=nan)
    assert not verdict and verdict[0].where == (0, 0, 0, 0)
    assert not exact.compare(o=o[:, :, :-1])
    assert not exact.compare()
    assert not Problem(*x[:3]).compare(lse=torch.full(o.shape[:3], -torch.inf))


def test_an_empty_row_must_say_minus_infinity():
    x = draw(4, Sq=5, Sk=2, library="torch")
    exact = Problem(*x[:3], causal=True)
    lse = torch.from_numpy(exact.forward.lse).float()
    exact.compare(lse=lse).raise_if_wrong()
    assert not exact.compare(lse=lse.clamp(min=-1e9))
    assert not exact.compare(lse=lse.masked_fill(lse == -torch.inf, torch.inf))


def test_the_verdict_says_where():
    x = draw(4, library="torch")
    exact = Problem(*x[:3])
    o = torch.from_numpy(exact.forward.o).float()
    o[1, 2, 17, 3] += 1
    verdict = exact.compare(o=o)
    assert verdict[0].where == (1, 2, 17, 3) and "WRONG at (1, 2, 17, 3)" in str(verdict)
    with pytest.raises(AssertionError, match="not within the error budget"):
        verdict.raise_if_wrong()


def test_judging_a_gradient_needs_do():
    with pytest.raises(ValueError, match="do="):
        Problem(*draw(1)[:3]).compare(dq=np.zeros(1))
    with pytest.raises(ValueError, match="'dx'"):
        Problem(*draw(1)[:3]).compare(dx=np.zeros(1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_torchs(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(10_000).astype(np.float32) * 2.0 ** rng.integers(-20, 15, 10_000)
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf, 1e39, 2.0**-130]]).astype(np.float32)
    expected = torch.from_numpy(x).to(getattr(torch, dtype)).float().numpy()
    assert np.array_equal(round_to(x, dtype), expected)
    assert np.isnan(round_to(np.array([np.nan]), dtype)).all()
    relative = np.abs(round_to(x[:100], dtype) / x[:100] - 1)
    assert relative[np.abs(x[:100]) > 1e-3].max() <= UNIT[dtype]
