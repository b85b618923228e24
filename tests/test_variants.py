"""Variants: exact for the mask that defines them, tiles skipped as counted; approximations behave as published."""

import numpy as np
import pytest

from flashlib.algorithms import variants
from flashlib.algorithms.naive import four_steps
from flashlib.grading.case import Outcome
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.harness import values
from flashlib.grading.inputs import draw
from flashlib.grading.judge import matches


def masked_oracle(q, k, v, see):
    """Softmax over the seen keys only, row by row; 0 and −∞ for a row that sees none."""
    s = (q @ k.swapaxes(-1, -2)) * q.shape[-1] ** -0.5
    s = np.where(see, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return (p @ v) / np.where(l == 0, 1, l), (m + np.log(l))[..., 0]


def prove(got, q, k, v, see):
    with np.errstate(divide="ignore", invalid="ignore"):
        answers = expect(
            ("o", "lse"), lambda q, k, v: masked_oracle(q, k, v, see), (q, k, v), longest=q.shape[-1] + k.shape[-2]
        )
    finding = matches(*answers)(Outcome(values((got.o, got.lse))))
    assert finding.ok, finding


@pytest.mark.parametrize("width", [1, 7, 20, 100])
@pytest.mark.parametrize(("Sq", "Sk"), [(37, 37), (20, 53), (53, 20)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_window_is_exact_for_its_mask(width, Sq, Sk, dtype):
    x = draw(1, B=1, Hq=2, Hkv=2, Sq=Sq, Sk=Sk, D=12, Dv=5, dtype=dtype, offset=120.0)
    i, j = np.arange(Sq)[:, None], np.arange(Sk)[None, :]
    see = (j <= i + Sk - Sq) & (j > i + Sk - Sq - width)
    got = variants.masked(*x[:3], variants.window(width, Sk - Sq), block=8)
    prove(got, *x[:3], see)
    tiles = [see[a : a + 8, b : b + 8].any() for a in range(0, Sq, 8) for b in range(0, Sk, 8)]
    assert (got.tiles, got.of) == (sum(tiles), len(tiles))


def test_a_window_costs_linear_work():
    counts = []
    for S in (64, 128, 256):
        x = draw(2, B=1, Hq=1, Hkv=1, Sq=S, Sk=S, D=4)
        counts.append(variants.masked(*x[:3], variants.window(16), block=16).tiles)
    assert counts == [2 * S // 16 - 1 for S in (64, 128, 256)]


def test_block_sparse_is_exact_and_skips():
    x = draw(3, B=1, Hq=2, Hkv=2, Sq=41, Sk=41, D=8)
    allowed = variants.strided(6, 2, 3)
    got = variants.masked(*x[:3], variants.blocks(allowed, 7), block=7)
    prove(got, *x[:3], np.kron(allowed, np.ones((7, 7), bool))[:41, :41])
    assert got.tiles == allowed.sum() and allowed[0].any() and not allowed[0, 1:].any()


def test_full_window_is_causal_attention():
    x = draw(4, B=1, Hq=2, Hkv=2, Sq=30, Sk=30, D=8, dtype="float64")
    got = variants.masked(*x[:3], variants.window(30), block=9)
    prove(got, *x[:3], np.tril(np.ones((30, 30), bool)))
    Problem(*x[:3], causal=True).compare(o=got.o, lse=got.lse).raise_if_wrong()


def test_linear_attention_is_what_it_defines_and_not_softmax():
    x = draw(5, B=1, Hq=2, Hkv=2, Sq=19, Sk=19, D=6, dtype="float64")
    a = np.where(x.q > 0, x.q + 1, np.exp(np.minimum(x.q, 0))) @ np.where(
        x.k > 0, x.k + 1, np.exp(np.minimum(x.k, 0))
    ).swapaxes(-1, -2)
    full = a / a.sum(-1, keepdims=True) @ x.v
    lower = np.tril(a)
    causal = lower / lower.sum(-1, keepdims=True) @ x.v
    room = 64 * np.finfo(float).eps * np.abs(x.v).max()
    assert np.abs(variants.linear(*x[:3]) - full).max() < room
    assert np.abs(variants.linear(*x[:3], causal=True) - causal).max() < room
    assert np.abs(full - four_steps(*x[:3]).o).max() > 0.1  # another function


def test_random_features_converge_as_the_root_of_their_number():
    x = draw(6, B=1, Hq=4, Hkv=4, Sq=24, Sk=24, D=8, dtype="float64", spread=0.2)
    exact = four_steps(*x[:3]).o
    errors = [
        np.mean([np.abs(variants.random_features(*x[:3], n, seed=s) - exact).mean() for s in range(8)])
        for n in (64, 1024)
    ]
    assert 2 < errors[0] / errors[1] < 8  # 4 by the theory


def test_low_rank_at_full_rank_is_no_copy_of_attention():
    x = draw(7, B=1, Hq=1, Hkv=1, Sq=12, Sk=30, D=8)
    assert variants.low_rank(*x[:3], 5).shape == (1, 1, 12, 8)
    assert np.isfinite(variants.low_rank(*x[:3], 60)).all()


def test_segments_are_means_and_exact_where_keys_repeat():
    e = variants.segments(5, 13)
    assert (
        e.shape == (5, 13)
        and np.array_equal((e > 0).sum(0), np.ones(13))
        and np.array_equal((e > 0).sum(1) * e.max(1), np.ones(5))
    )
    q, k, v = (x[..., :6, :] for x in draw(10, B=1, Hq=2, Hkv=2, Sq=6, Sk=6, D=8, dtype="float64")[:3])
    again = [np.repeat(x, 4, axis=-2) for x in (k, v)]
    got = variants.low_rank(q, *again, 6, projection=variants.segments(6, 24))
    Problem(q, k, v).compare(o=got).raise_if_wrong()


def test_bad_input_is_named():
    x = draw(8, B=1, Hq=1, Hkv=1, Sq=3, Sk=4, D=2)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        variants.window(0)
    with pytest.raises(ValueError, match="needs Sq = Sk, got 3 and 4"):
        variants.linear(*x[:3], causal=True)
    with pytest.raises(ValueError, match=r"projection of shape \(2, 4\), got \(2, 5\)"):
        variants.low_rank(*x[:3], 2, projection=variants.segments(2, 5))
    with pytest.raises(ValueError, match=r"negative here, got -0\.5"):
        variants.random_features(*x[:3], 8, scale=-0.5)


def test_both_sides():
    x = draw(9, B=1, Hq=1, Hkv=1, Sq=23, Sk=29, D=6)
    i, j = np.arange(23)[:, None], np.arange(29)[None, :]
    prove(variants.masked(*x[:3], variants.window(5, 6, both=True), block=4), *x[:3], abs(i + 6 - j) < 5)
    allowed = variants.strided(5, 2, 3, both=True)
    assert np.array_equal(allowed & np.tri(5, dtype=bool), variants.strided(5, 2, 3)), (
        "its lower half is the causal one"
    )
    assert allowed.tolist()[0] == [True, True, True, False, False]
