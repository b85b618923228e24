"""The formulas of the other roads equal the counts of programs on the memory machine, and the programs are right."""

import numpy as np
import pytest

from flashlib.algorithms import variants
from flashlib.algorithms.online import State, finish, identity, merge, of_tile
from flashlib.grading.expected import expect
from flashlib.grading.harness import values
from flashlib.grading.inputs import draw
from flashlib.grading.judge import compare
from flashlib.instruments import variant_forms as forms
from flashlib.instruments.traffic import MemoryMachine

Nq, Nk, D, DV, BLOCK = 37, 53, 8, 5, 8


def inputs():
    return [x[0, 0] for x in draw(31, B=1, Hq=1, Hkv=1, Sq=Nq, Sk=Nk, D=D, Dv=DV, dtype="float64", spread=1.0)[:3]]


def machine(q, k, v):
    m = MemoryMachine(float("inf"), record=False)
    return m, m.hbm("Q", q), m.hbm("K", k), m.hbm("V", v), m.hbm_empty("O", (Nq, DV), q.dtype)


def held(O, fn, *inputs):
    """The program computes what the function does, within the budget of float64."""
    (answer,) = expect("o", fn, inputs, longest=Nk + D)
    assert compare(answer, values(O.array)[0]).ok


def cut(n):
    return [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]


@pytest.mark.parametrize(
    "mask", [variants.window(9, Nk - Nq), variants.window(4, both=True), lambda i, j: (i + j) % 31 < 3]
)
def test_masked(mask):
    q, k, v = inputs()
    m, Q, K, V, O = machine(q, k, v)
    with m.kernel("masked"):
        for i in cut(Nq):
            q_i, state = m.load(Q, i), identity(i.stop - i.start, DV)
            for j in cut(Nk):
                see = mask(np.arange(i.start, i.stop)[:, None], np.arange(j.start, j.stop)[None, :])
                if see.any():
                    s = np.where(see, q_i @ m.load(K, j).T * D**-0.5, -np.inf)
                    state = merge(state, of_tile(s, m.load(V, j)))
            m.store(O, i, finish(state)[0])
    assert m.report().total == forms.masked_bytes(Nq, Nk, D, DV, 8, mask, BLOCK)
    assert np.array_equal(O.array, variants.masked(q, k, v, mask, block=BLOCK).o)


def two_passes(m, Q, K, V, O, features, phi_q, phi_k, extra=None):
    """K and V into a state, the state to HBM; then Q row by row."""
    STATE, NORM = m.hbm_empty("STATE", (features, DV), float), m.hbm_empty("NORM", (features,), float)
    w = []
    with m.kernel("keys"):
        w.append(m.load(extra) if extra else None)
        state, norm = np.zeros((features, DV)), np.zeros(features)
        for j in cut(Nk):
            f = phi_k(m.load(K, j), w[0])
            state, norm = state + f.T @ m.load(V, j), norm + f.sum(0)
        m.store(STATE, slice(0, features), state)
        m.store(NORM, slice(0, features), norm)
    with m.kernel("queries"):
        w = m.load(extra) if extra else None
        state, norm = m.load(STATE), m.load(NORM)
        for i in cut(Nq):
            f = phi_q(m.load(Q, i), w)
            m.store(O, i, (f @ state) / (f @ norm)[:, None])


def test_linear():
    q, k, v = inputs()
    m, Q, K, V, O = machine(q, k, v)
    phi = lambda x, _: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    two_passes(m, Q, K, V, O, D, phi, phi)
    assert m.report().total == forms.linear_bytes(Nq, Nk, D, DV, 8)
    held(O, variants.linear, q, k, v)


def test_features():
    q, k, v = inputs()
    m, Q, K, V, O = machine(q, k, v)
    features = 24
    W = m.hbm("W", np.random.default_rng(0).standard_normal((D, features)))
    phi = lambda x, w: np.exp(x * D**-0.25 @ w - (x * x).sum(-1, keepdims=True) * D**-0.5 / 2)  # noqa: E731
    two_passes(m, Q, K, V, O, features, phi, phi, W)
    assert m.report().total == forms.features_bytes(Nq, Nk, D, DV, 8, features)
    held(O, lambda q, k, v: variants.random_features(q, k, v, features), q, k, v)


def test_low_rank():
    q, k, v = inputs()
    m, Q, K, V, O = machine(q, k, v)
    rank = 6
    E = m.hbm("E", np.random.default_rng(0).standard_normal((rank, Nk)) / np.sqrt(rank))
    EK, EV = m.hbm_empty("EK", (rank, D), float), m.hbm_empty("EV", (rank, DV), float)
    with m.kernel("project"):
        ek, ev = np.zeros((rank, D)), np.zeros((rank, DV))
        for j in cut(Nk):
            e = m.load(E, (slice(0, rank), j))
            ek, ev = ek + e @ m.load(K, j), ev + e @ m.load(V, j)
        m.store(EK, slice(0, rank), ek)
        m.store(EV, slice(0, rank), ev)
    with m.kernel("attend"):
        ek, ev = m.load(EK), m.load(EV)
        for i in cut(Nq):
            state = of_tile(m.load(Q, i) @ ek.T * D**-0.5, ev)
            m.store(O, i, finish(State(*state))[0])
    assert m.report().total == forms.low_rank_bytes(Nq, Nk, D, DV, 8, rank)
    held(O, lambda q, k, v: variants.low_rank(q, k, v, rank), q, k, v)
