"""The counter-based generator: known answers, NumPy and torch alike; a mask that depends on nothing but its place."""

import numpy as np
import pytest
import torch

from flashlib.algorithms import philox, tiled
from flashlib.grading.inputs import draw

# Philox4x32-10 known answers: the three vectors of the authors' own Random123 library (kat_vectors)
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFF_FFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, seed, words", KNOWN)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_known_answers(counter, seed, words, library):
    arrays = [np.array([c], dtype=np.int64) for c in counter]
    if library == "torch":
        arrays = [torch.from_numpy(a) for a in arrays]
    assert tuple(int(w[0]) for w in philox.philox(tuple(arrays), seed)) == words


def test_triton_draws_the_same_words():
    """tl.philox, run by Triton's interpreter in a process of its own, for the kernels to come."""
    pytest.importorskip("triton", reason="triton is not installed here")
    import os
    import subprocess
    import sys

    code = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.philox(seed, i, i * 7, i * 0 + 3, i * 0 + 1)
    tl.store(out + i, a.to(tl.int64) & 0xFFFFFFFF)
out = torch.zeros(64, dtype=torch.int64)
seed = 0x123456789ABCDEF
kernel[(1,)](out, seed, N=64)
from flashlib.algorithms.philox import philox
i = torch.arange(64)
assert torch.equal(out, philox((i, i * 7, i * 0 + 3, i * 0 + 1), seed)[0]), out
"""
    path = os.path.join(os.path.dirname(__file__), "_philox_kernel.py")
    with open(path, "w") as f:  # @triton.jit reads its source from a file
        f.write(code)
    try:
        env = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=os.path.dirname(os.path.dirname(__file__)))
        done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=120)
    finally:
        os.remove(path)
    assert done.returncode == 0, done.stderr


def test_the_mask_depends_on_seed_batch_head_row_and_column():
    whole = philox.keep_mask(7, 0.5, 3, 4, 20, 30)
    assert np.array_equal(philox.keep_mask(7, 0.5, 2, 3, 11, 17), whole[:2, :3, :11, :17])
    flat = [whole[b, h].tobytes() for b in range(3) for h in range(4)]
    assert len(set(flat)) == 12
    assert not np.array_equal(whole, philox.keep_mask(8, 0.5, 3, 4, 20, 30))


def test_31_the_mask_does_not_depend_on_the_tiles():
    """With v = identity the output is P ∘ Z: where it is 0, a weight was dropped."""
    x = draw(1, B=2, Hq=4, Hkv=2, Sq=33, Sk=29, D=5, Dv=29, dtype="float64", library="torch", spread=1.0)
    v = torch.eye(29, dtype=torch.float64).expand(2, 2, 29, 29)
    expected = torch.from_numpy(philox.keep_mask(99, 0.4, 2, 4, 33, 29))
    for block_q, block_k in ((256, 256), (16, 16), (7, 13), (1, 29)):
        o, _ = tiled.forward(x.q, x.k, v, dropout_p=0.4, seed=99, block_q=block_q, block_k=block_k)
        assert torch.equal(o != 0, expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_dropped_is_p(p):
    n = 2 * 3 * 200 * 300
    dropped = n - int(philox.keep_mask(3, p, 2, 3, 200, 300).sum())
    # binomial: six standard deviations are missed once in 5·10⁸ seeds; the seed is fixed
    assert abs(dropped - n * p) <= 6 * (n * p * (1 - p)) ** 0.5


def test_neighbours_are_independent():
    keep = philox.keep_mask(11, 0.5, 1, 1, 400, 400)[0, 0].astype(float) * 2 - 1
    for a, b in ((keep[:, :-1], keep[:, 1:]), (keep[:-1], keep[1:])):
        assert abs((a * b).sum()) <= 6 * a.size**0.5
