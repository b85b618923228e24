"""The merge law ⊕: identity, order, grouping, empty sides, NaN."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from flashlib.algorithms import online
from flashlib.algorithms.online import State, finish, identity, merge, of_tile
from flashlib.algorithms.toy import ROW, TILE, toy
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw


def same(a: State, b: State) -> bool:
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def test_the_toy_row_tile_by_tile():
    q, k, v = toy()
    s = q[ROW] @ k.T / 2
    assert s.tolist() == [0, 1, 2, 1, 3, 2]
    state, ms = identity((), 4), []
    for j in range(0, 6, TILE):
        state = merge(state, of_tile(s[j : j + TILE], v[j : j + TILE]))
        ms.append(float(state.m))
    assert ms == [1, 2, 3]
    o, lse = finish(state)
    Problem(q, k, v).compare(o=online.stream(q, k, v)[0]).raise_if_wrong()
    exact = Problem(q, k, v).forward
    assert abs(lse - exact.lse[ROW]) <= Problem(q, k, v).budget("lse")
    assert np.abs(o - exact.o[ROW]).max() <= Problem(q, k, v).budget("o")


finite = st.floats(-700, 700)


@given(hnp.arrays(float, (3, 5), elements=st.one_of(finite, st.just(-np.inf))), st.integers(0, 5))
def test_identity_changes_nothing_bit_for_bit(s, cut):
    v = np.linspace(-1, 1, 10).reshape(5, 2)
    state = of_tile(s[:, :cut], v[:cut])
    assert same(merge(identity(3, 2), state), state)
    assert same(merge(state, identity(3, 2)), state)


@given(hnp.arrays(float, (3, 8), elements=finite), st.integers(0, 8))
def test_order_does_not_matter_bit_for_bit(s, cut):
    v = np.linspace(-1, 1, 16).reshape(8, 2)
    a, b = of_tile(s[:, :cut], v[:cut]), of_tile(s[:, cut:], v[cut:])
    assert same(merge(a, b), merge(b, a))


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_32_any_split_merges_to_the_same_within_the_budget(seed, splits):
    """More splits than keys, empty splits among them, merged in a random tree."""
    rng = np.random.default_rng(seed)
    q, k, v = (x[0, 0] for x in draw(seed, B=1, Hq=1, Hkv=1, Sq=7, Sk=29, D=5, dtype="float64")[:3])
    s = q @ k.T / np.sqrt(5)
    cuts = [0, *np.sort(rng.integers(0, 30, splits - 1)).tolist(), 29]
    states = [of_tile(s[:, a:b], v[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    while len(states) > 1:
        a, b = states.pop(rng.integers(len(states))), states.pop(rng.integers(len(states)))
        states.append(merge(a, b))
    o, lse = finish(states[0])
    Problem(q, k, v).compare(o=o, lse=lse).raise_if_wrong()


def test_32_all_splits_empty():
    o, lse = finish(merge(identity(3, 2), of_tile(np.full((3, 4), -np.inf), np.ones((4, 2)))))
    assert not o.any() and np.isneginf(lse).all()


def test_03_a_wholly_masked_first_tile_leaves_the_maximum_at_minus_infinity():
    with np.errstate(all="raise"):
        state = merge(identity(2, 1), of_tile(np.full((2, 3), -np.inf), np.ones((3, 1))))
        assert np.isneginf(state.m).all() and not state.l.any() and not state.o.any()
        state = merge(state, of_tile(np.array([[1.0], [2.0]]), np.array([[5.0]])))
    assert state.m.tolist() == [1, 2] and state.l.tolist() == [1, 1] and state.o.tolist() == [[5], [5]]


def test_a_nan_score_that_is_seen_reaches_its_own_row_only():
    o, lse = finish(of_tile(np.array([[0.0, np.nan], [0.0, 1.0]]), np.ones((2, 1))))
    assert np.isnan(o[0]).all() and np.isnan(lse[0]) and np.isfinite(o[1]).all()


@pytest.mark.parametrize("block", [0, -1])
def test_a_block_needs_a_key(block):
    with pytest.raises(ValueError, match=f"got a block of {block}"):
        online.stream(*toy(), block=block)
