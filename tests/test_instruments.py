"""The instruments are right: counts equal closed forms to the byte, peaks what was allocated, times what a clock says.

No tolerance is picked by hand: counts are compared with ==, results with the error budget of `grading.exactness`.
"""

import gc
import math
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from flashlib.instruments import cpu, pipelines, timing
from flashlib.instruments.machine import CHIPS, KIB, roofline, this_cpu
from flashlib.instruments.ops import count_ops
from flashlib.instruments.peak import fit_exponent, peak_memory
from flashlib.instruments.traffic import MemoryMachine, OutOfBounds, OutsideKernel, SRAMOverflow, WrongTile

F8, F4 = 8, 4  # bytes of a float64 and of a float32


# -- the memory machine -----------------------------------------------------------------------------------------------
def test_every_byte_is_counted_by_kernel_and_tensor():
    m = MemoryMachine(1000)
    x = np.arange(12.0).reshape(6, 2)
    X, Y = m.hbm("X", x), m.hbm_empty("Y", (6, 2), x.dtype)
    with m.kernel("double"):
        for i in range(0, 6, 2):
            m.store(Y, slice(i, i + 2), m.put("t", 2 * m.load(X, slice(i, i + 2))))
    with m.kernel("corner"):
        m.load(Y, (slice(4, 6), 1), slot="corner")
    t = m.report()
    assert np.array_equal(Y.array, 2 * x)
    assert t.read == {"X": 12 * F8, "Y": 2 * F8} and t.written == {"Y": 12 * F8}
    assert t.by_kernel["double"].read == {"X": 12 * F8} and t.by_kernel["corner"].total == 2 * F8
    assert t.total == 26 * F8
    assert t.sram_peak == 8 * F8  # the tile of X and its double; tiles of earlier rounds were freed
    assert [e.op for e in t.events[:3]] == ["load", "put", "store"] and t.events[-1].index == ((4, 6, 1), (1, 2, 1))
    assert t.events[-1].sram == 2 * F8  # SRAM was empty when the second kernel began
    assert f"{26 * F8:,} B" in str(t) and "corner" in str(t)


def test_sram_is_a_hard_limit_and_the_error_says_what_lay_there():
    X = np.zeros((4, 4))
    m = MemoryMachine(16 * F8)
    with m.kernel("fits"):
        m.load(m.hbm("X", X))  # exactly full
    with m.kernel("flash"):
        m.load(m.hbm("Q", X), slice(0, 2))
        m.load(m.hbm("Q", X), slice(2, 4))  # the same slot: the old tile goes first
        with pytest.raises(
            SRAMOverflow, match=r"'flash'.*S \(3, 3\) float64.*72 B.*64 of 128 B.*Q \(2, 4\) float64 64 B"
        ) as e:
            m.put("S", np.zeros((3, 3)))
    assert (e.value.asked, e.value.free, e.value.size, e.value.slots) == (72, 64, 128, {"Q": 64})
    assert m.report().sram_peak == 128
    with m.kernel("dropped"):
        m.load(m.hbm("Q", X))
        m.drop("Q")
        m.put("S", X)


@pytest.mark.parametrize(
    ("error", "says", "act"),
    [
        (OutOfBounds, r"Q\[6, 4\].*slice\(4, 7.*axis 0.*size 6", lambda m, Q: m.load(Q, slice(4, 7))),
        (OutOfBounds, "axis 1, of size 4", lambda m, Q: m.load(Q, (0, 4))),
        (OutOfBounds, "axis 0", lambda m, Q: m.load(Q, slice(-1, None))),
        (OutOfBounds, "2 dimensions, the index has 3", lambda m, Q: m.load(Q, (0, 0, 0))),
        (OutOfBounds, "slices and ints, not by list", lambda m, Q: m.load(Q, [0, 1])),
        (
            WrongTile,
            r"\(2,\) tile to Q\[0:2, 0:4\], which is \(2, 4\)",
            lambda m, Q: m.store(Q, slice(0, 2), np.zeros(2)),
        ),
        (WrongTile, "no slot 'S'", lambda m, Q: m.drop("S")),
        (OutsideKernel, "'inner' was opened inside kernel 'k'", lambda m, Q: m.kernel("inner").__enter__()),
        (OutsideKernel, "inside kernel 'k'", lambda m, Q: m.reset()),
    ],
)
def test_what_a_gpu_would_do_silently_is_a_named_error(error, says, act):
    m = MemoryMachine(1000)
    Q = m.hbm("Q", np.zeros((6, 4)))
    with m.kernel("k"), pytest.raises(error, match=says):
        act(m, Q)
    assert m.report().total == 0


def test_nothing_moves_outside_a_kernel_and_unwritten_results_show():
    m = MemoryMachine(1000)
    Q = m.hbm("Q", np.zeros((6, 4)))
    for act in (
        lambda: m.load(Q),
        lambda: m.put("S", 1.0),
        lambda: m.store(Q, (), np.zeros((6, 4))),
        lambda: m.drop("S"),
    ):
        with pytest.raises(OutsideKernel):
            act()
    assert np.isnan(m.hbm_empty("O", (2, 2), np.float32).array).all()
    assert torch.isnan(m.hbm_empty("O", (2, 2), torch.bfloat16).array).all()
    with pytest.raises(ValueError, match="positive"):
        MemoryMachine(0)


def test_a_report_is_a_copy_and_tiles_are_copies():
    m = MemoryMachine(1000)
    x = np.zeros(3)
    X = m.hbm("X", x)
    with m.kernel("k"):
        m.load(X)[:] = 7
        before = m.report()
        m.load(X)
    assert x.sum() == 0 and before.total == 3 * F8 and m.report().total == 6 * F8
    m.reset()
    assert m.report().total == 0 and m.report().events == []


# -- pipelines --------------------------------------------------------------------------------------------------------
def qkv(n_q, n_k, d, dv, dtype="float64", library="numpy", seed=0):
    x = draw(seed, B=1, Hq=1, Hkv=1, Sq=n_q, Sk=n_k, D=d, Dv=dv, dtype=dtype, library=library)
    return x.q[0, 0], x.k[0, 0], x.v[0, 0]


def assert_attention(q, k, v, causal, out, steps):
    """Hold a float64 result against extended precision, by the classical bound on its rounding errors.

    u is half an ulp of 1. A score is a sum of d products, scaled: off by at most (d + 2)·u·scale·Σ|q||k|. A weight is
    off by a factor: that error, the rounding of s − m (u times the range of the scores) and of exp (taken as 2 ulp),
    and of one product, for itself and for each of the `steps` maxima that follow. Sums of Nk terms and of the steps add
    (Nk + steps)·u, in the numerator and in the denominator, and the division 2u. Second order: times 1.01.
    """
    exact, u = Problem(q, k, v, causal=causal).forward, 2.0**-53
    if 0 in q.shape or 0 in k.shape:
        assert not out.o.any() and (out.lse is None or (out.lse == -np.inf).all())
        return
    scale = q.shape[1] ** -0.5
    reach = scale * (np.abs(q) @ np.abs(k).T).max()  # no score is larger, no two differ by more than twice this
    weight = (q.shape[1] + 2) * u * reach + (steps + 1) * (2 * reach + 6) * u
    total = 1.01 * (weight + (k.shape[0] + steps + 2) * u)
    assert np.abs(out.o - exact.o).max() <= 2 * total * np.abs(v).max()
    if out.lse is not None:
        seen = np.isfinite(exact.lse)
        assert (seen == np.isfinite(out.lse)).all() and (out.lse[~seen] == -np.inf).all()
        size = reach + np.log(k.shape[0])
        assert (np.abs(out.lse[seen] - exact.lse[seen]) <= total + 4 * u * size).all()


lengths, widths = st.integers(0, 23), st.integers(1, 6)
sizes = st.tuples(lengths, lengths, widths, widths)  # Nq, Nk, d, dv
tiles = st.tuples(st.integers(1, 26), st.integers(1, 26))


@settings(deadline=None, max_examples=150)
@given(sizes, tiles, st.booleans(), st.booleans())
def test_flash_moves_what_its_closed_form_says(size, tile, causal, lse):
    q, k, v = qkv(*size)
    n_q, n_k, d, dv = size
    room = pipelines.flash_sram(*tile, d, dv, F8)
    m = MemoryMachine(room)  # the footprint that flash_sram promises is enough
    out = pipelines.flash(m, q, k, v, block_q=tile[0], block_k=tile[1], causal=causal, lse=lse)
    t = m.report()
    shape = (n_q, n_k, d, dv, *tile, F8, causal, lse)
    moved = {name: b for name, b in (t.read | t.written).items() if b}
    assert moved == {name: b for name, b in pipelines.flash_by_tensor(*shape).items() if b}
    assert t.total == pipelines.flash_bytes(*shape)
    if n_q and n_k and not causal:
        # Q, m, l and acc of a full Q tile with K, V and S of a full key tile: nothing more, nothing less.
        assert t.sram_peak == pipelines.flash_sram(min(tile[0], n_q), min(tile[1], n_k), d, dv, F8)
    assert_attention(q, k, v, causal, out, steps=-(-n_k // tile[1]))


@settings(deadline=None, max_examples=100)
@given(sizes, st.one_of(st.none(), tiles), st.booleans(), st.integers(0, 400))
def test_four_steps_moves_what_its_closed_form_says(size, tile, causal, spare):
    q, k, v = qkv(*size)
    n_q, n_k, d, dv = size
    if tile is None:  # the machine chooses: it must fit whatever there is
        room = 8 * (2 * max(d, dv, 2) + 1) + spare
    else:
        rows, columns = tile
        room = 8 * (max(rows * d + columns * d, columns * dv + rows * dv, 2 * rows) + rows * columns) + spare
    m = MemoryMachine(room)
    out = pipelines.four_steps(m, q, k, v, block=tile, causal=causal)
    t = m.report()
    expected = pipelines.four_steps_by_kernel(n_q, n_k, d, dv, F8, sram_bytes=room, block=tile, causal=causal)
    assert {n: (sum(k.read.values()), sum(k.written.values())) for n, k in t.by_kernel.items()} == expected
    assert t.total == pipelines.four_steps_bytes(n_q, n_k, d, dv, F8, sram_bytes=room, block=tile, causal=causal)
    assert_attention(q, k, v, causal, out, steps=1)


def test_flash_closed_form_for_every_tile_size():
    n_q, n_k, d, dv = 11, 13, 3, 2
    q, k, v = qkv(n_q, n_k, d, dv)
    for block_q in range(1, n_q + 2):
        for block_k in range(1, n_k + 2):
            for causal in (False, True):
                m = MemoryMachine(math.inf, record=False)
                pipelines.flash(m, q, k, v, block_q=block_q, block_k=block_k, causal=causal)
                assert m.report().total == pipelines.flash_bytes(n_q, n_k, d, dv, block_q, block_k, F8, causal)


def test_traffic_written_out_by_hand():
    """6 × 6, d = 4, tiles of 2, float64: small enough to count on paper."""
    q, k, v = qkv(6, 6, 4, 4)
    m = MemoryMachine(1000)
    pipelines.flash(m, q, k, v, block_q=2, block_k=2)
    t = m.report()
    assert t.read == {"Q": 24 * F8, "K": 3 * 24 * F8, "V": 3 * 24 * F8} and t.written == {"O": 24 * F8, "LSE": 6 * F8}
    m.reset()
    pipelines.flash(m, q, k, v, block_q=2, block_k=2, causal=True)
    # Q tiles 0, 1, 2 see 1, 2, 3 key tiles of 2 · 4 numbers.
    assert m.report().read["K"] == (1 + 2 + 3) * 8 * F8
    m.reset()
    pipelines.four_steps(m, q, k, v, block=2, causal=True)
    kernels = m.report().by_kernel
    assert list(kernels) == ["QKᵀ", "scale", "mask", "softmax", "PV"]
    assert kernels["QKᵀ"].read == {"Q": 24 * F8, "K": 72 * F8} and kernels["QKᵀ"].written == {"S": 36 * F8}
    assert kernels["scale"].read == kernels["mask"].read == kernels["softmax"].read == {"S": 36 * F8}
    assert kernels["PV"].read == {"P": 36 * F8, "V": 72 * F8} and kernels["PV"].written == {"O": 24 * F8}


def test_causal_is_bottom_right_and_skips_what_no_row_sees():
    n_q, n_k = 5, 2  # rows 0, 1, 2 see no key
    q, k, v = qkv(n_q, n_k, 3, 3)
    m = MemoryMachine(10_000)
    out = pipelines.flash(m, q, k, v, block_q=2, block_k=1, causal=True)
    assert (out.o[:3] == 0).all() and (out.lse[:3] == -np.inf).all() and np.isfinite(out.lse[3:]).all()
    # Rows 0-1 load no key; rows 2-3 one; row 4 two.
    assert m.report().read["K"] == (0 + 1 + 2) * 3 * F8
    assert (pipelines.four_steps(m, q, k, v, causal=True).o[:3] == 0).all()


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
@pytest.mark.parametrize("d", [1, 64, 128, 256])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_largest_tile_fits_and_one_row_more_does_not(chip, d, itemsize):
    room = chip.sram_per_block
    rows, columns = pipelines.flash_tiles(room, d, itemsize=itemsize)
    assert (
        rows
        >= columns
        == max(c for c in (1, 4, 16) if c == 1 or pipelines.flash_sram(c, c, d, itemsize=itemsize) <= room)
    )
    assert pipelines.flash_sram(rows, columns, d, itemsize=itemsize) <= room
    assert pipelines.flash_sram(rows + 1, columns, d, itemsize=itemsize) > room


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3000))
def test_chosen_tiles_run_on_the_machine(d, dv, room):
    q, k, v = qkv(40, 17, d, dv)
    try:
        rows, columns = pipelines.flash_tiles(room, d, dv, F8)
    except ValueError:
        assert pipelines.flash_sram(1, 1, d, dv, F8) > room
        return
    m = MemoryMachine(room)
    pipelines.flash(m, q, k, v, block_q=rows, block_k=columns)
    if rows < 40:  # one row more overflows, unless N is smaller than the tile
        with pytest.raises(SRAMOverflow):
            pipelines.flash(m, q, k, v, block_q=rows + 1, block_k=columns)


def test_softmax_reads_a_row_once_if_it_fits_else_three_times():
    q, k, v = qkv(6, 10, 2, 2)
    fits = (10 + 2) * F8  # a row, its maximum, its sum
    for room, sweeps in ((fits, 1), (fits - 1, 3)):
        m = MemoryMachine(room)
        out = pipelines.four_steps(m, q, k, v, block=(1, 1))
        kernel = m.report().by_kernel["softmax"]
        assert kernel.read == {"S": sweeps * 60 * F8} and kernel.written == {"P": 60 * F8}
        Problem(q, k, v).compare(o=out.o).raise_if_wrong()


def test_large_n_runs_in_small_sram_and_the_square_terms_dominate():
    n, d, room = 768, 16, 4 * KIB
    q, k, v = qkv(n, n, d, d, "float32")
    m = MemoryMachine(room, record=False)
    four = pipelines.four_steps(m, q, k, v).o
    naive = m.report()
    square = n * n * F4
    assert naive.sram_peak <= room
    # S is written, read and written by the scale, read by the softmax; P written and read. Q, K, V, O: less than that.
    assert naive.read["S"] + naive.written["S"] + naive.read["P"] + naive.written["P"] == 6 * square > naive.total / 2
    m.reset()
    rows, columns = pipelines.flash_tiles(room, d)
    flash = pipelines.flash(m, q, k, v, block_q=rows, block_k=columns)
    assert m.report().total < naive.total  # M = 1024 numbers is more than d² = 256
    Problem(q, k, v).compare(o=flash.o, lse=flash.lse).raise_if_wrong()
    Problem(q, k, v).compare(o=four).raise_if_wrong()


def test_flash_traffic_follows_theorem_2():
    """A row of Q costs 2d + 16 + 2 = 146 numbers of SRAM, so Br → M/146 and K and V move 2·(146/64) times N²d²/M."""
    n, d = 2**17, 64
    for elements in (16 * d * d, 32 * d * d, 64 * d * d):
        rows, columns = pipelines.flash_tiles(elements * F4, d)
        moved = pipelines.flash_by_tensor(n, n, d, d, rows, columns, F4)
        ratio = (moved["K"] + moved["V"]) / F4 / pipelines.flash_theta(n, d, elements)
        limit, fixed = 2 * 146 / 64, 2 * d * 16  # the tile of K and V
        assert limit < ratio < limit * elements / (elements - fixed - 146) * (1 + rows / n)  # Br and N/Br are whole
    assert pipelines.standard_theta(8, 2) == 80


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch_tensors_move_the_same_bytes(dtype):
    q, k, v = qkv(21, 34, 5, 3, dtype, "torch")
    itemsize = q.dtype.itemsize
    m = MemoryMachine(pipelines.flash_sram(8, 5, 5, 3, itemsize))
    out = pipelines.flash(m, q.requires_grad_(), k, v, block_q=8, block_k=5, causal=True)
    assert m.report().total == pipelines.flash_bytes(21, 34, 5, 3, 8, 5, itemsize, True)
    assert out.o.dtype == q.dtype and out.lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    Problem(q.detach(), k, v, causal=True).compare(o=out.o, lse=out.lse).raise_if_wrong()
    m = MemoryMachine(2000)
    out = pipelines.four_steps(m, q.detach(), k, v, causal=True)
    assert m.report().total == pipelines.four_steps_bytes(21, 34, 5, 3, itemsize, sram_bytes=2000, causal=True)
    if itemsize >= 4:  # S rounded to 16 bits, as eager PyTorch leaves it, is not held to the budget
        Problem(q.detach(), k, v, causal=True).compare(o=out.o).raise_if_wrong()


def test_pipelines_say_what_is_wrong_with_their_inputs():
    m = MemoryMachine(1000)
    q, k, v = qkv(6, 6, 4, 4)
    with pytest.raises(ValueError, match=r"\(6, 4\), \(6, 3\), \(6, 4\)"):
        pipelines.flash(m, q, k[:, :3], v, block_q=2, block_k=2)
    with pytest.raises(TypeError, match="float64, float32, float64"):
        pipelines.four_steps(m, q, k.astype("float32"), v)
    with pytest.raises(ValueError, match="d = 64"):
        pipelines.flash_tiles(100, 64)
    with pytest.raises(ValueError, match="limit"):
        pipelines.flash_tiles(math.inf, 64)


# -- counting PyTorch ops ---------------------------------------------------------------------------------------------
def test_the_unfused_chain_moves_the_sum_of_its_ops():
    n_q, n_k, d, dv = 5, 7, 3, 4
    q, k, v = torch.randn(n_q, d), torch.randn(n_k, d), torch.randn(n_k, dv)
    with count_ops() as moved:
        s = (q @ k.T) * 0.5
        p = torch.softmax(s, -1)
        p @ v
    square = n_q * n_k * F4
    matmul = (n_q * d + n_k * d) * F4
    assert [(r.op, r.read, r.written) for r in moved.rows if r.read] == [
        ("mm", matmul, square),
        ("mul", square, square),
        ("_softmax", square, square),
        ("mm", square + n_k * dv * F4, n_q * dv * F4),
    ]
    assert moved.read == matmul + 3 * square + n_k * dv * F4 and moved.written == 3 * square + n_q * dv * F4
    assert moved.total == moved.read + moved.written and f"{moved.total:,} B" in str(moved)


X, ROW, I3 = (lambda: torch.ones(4, 6)), (lambda: torch.ones(1, 6)), (lambda: torch.tensor([0, 2, 0]))
OPS = {  # name: (inputs, op, bytes read, bytes written); 4 × 6 float32 is 96 B, an int64 index 8 B
    "views": ([X], lambda x: x.T.view(6, 4)[1:].unsqueeze(0).expand(5, 5, 4).detach(), 0, 0),
    "reshape without a copy": ([X], lambda x: x.reshape(24), 0, 0),
    "reshape with a copy": ([X], lambda x: x.T.reshape(24), 96, 96),
    "empty": ([X], lambda x: (torch.empty(9), torch.empty_like(x), x.new_empty(3)), 0, 0),
    "filled": ([X], lambda x: (torch.zeros(4), torch.ones_like(x)), 0, 16 + 96),
    "in place": ([X], lambda x: x.mul_(2), 96, 96),
    "overwritten": ([X, X], lambda x, y: (x.zero_(), x.fill_(3), x.copy_(y)), 96, 3 * 96),
    "out": ([X, X], lambda x, y: torch.exp(x, out=y), 96, 96),
    "same operand twice": ([X], lambda x: x * x, 96, 96),
    "expanded": ([ROW], lambda r: r.expand(4, 6) + 1, 24, 96),
    "expanded part": ([lambda: torch.ones(9, 6)], lambda x: x[:1].expand(4, 6) + 1, 24, 96),
    "broadcast": ([X, ROW], lambda x, r: x + r, 120, 96),
    "part of a tensor": ([X], lambda x: x[:2] * 2, 48, 48),
    "written through a view": ([X], lambda x: x[0].add_(1), 24, 24),
    "index": ([X, I3], lambda x, i: x[i], 72 + 24, 72),
    "index_select": ([X, I3], lambda x, i: x.index_select(0, i), 72 + 24, 72),
    "index_put": ([X, I3], lambda x, i: x.index_put_((i,), torch.tensor(1.0)), 24 + 4, 72),
    "index_add": ([X, I3, X], lambda x, i, y: x.index_add_(0, i, y[:3]), 24 + 72 + 72, 72),
    "two results": ([X], lambda x: x.max(-1), 96, 4 * 4 + 4 * 8),
    "to a wider type": ([X], lambda x: x.double(), 96, 192),
    "nothing": ([lambda: torch.ones(0, 6)], lambda x: x + 1, 0, 0),
}


@pytest.mark.parametrize("name", OPS)
def test_bytes_of_one_op(name):
    inputs, op, read, written = OPS[name]
    tensors = [make() for make in inputs]
    with count_ops() as moved:
        op(*tensors)
    assert (moved.read, moved.written) == (read, written), moved


def test_backward_is_counted_and_an_expanded_gradient_is_small():
    x = torch.ones(4, 6, requires_grad=True)
    with count_ops() as moved:
        (x * 3).sum().backward()
    # forward: mul 96 → 96, sum 96 → 4; backward: ones_like → 4, mul of the expanded 4 B → 96.
    assert (moved.read, moved.written) == (96 + 96 + 4, 96 + 4 + 4 + 96), moved


# -- peak memory ------------------------------------------------------------------------------------------------------
N, D, B = 192, 16, 32
Q_, K_, V_ = (torch.randn(N, D, generator=torch.Generator().manual_seed(s)) for s in (1, 2, 3))


def naive_forward():
    return torch.softmax(Q_ @ K_.T, -1) @ V_


def naive_backward():
    q, k, v = (x.detach().requires_grad_() for x in (Q_, K_, V_))
    o = torch.softmax(q @ k.T, -1) @ v
    o.backward(V_)
    return q.grad, k.grad, v.grad


def streamed():
    out = []
    for i in range(0, N, B):
        top, total, acc = torch.full((B, 1), -math.inf), torch.zeros(B, 1), torch.zeros(B, D)
        for j in range(0, N, B):
            s = Q_[i : i + B] @ K_[j : j + B].T
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, shrink = torch.exp(s - new), torch.exp(top - new)
            total, acc, top = total * shrink + p.sum(-1, keepdim=True), acc * shrink + p @ V_[j : j + B], new
        out.append(acc / total)
    return torch.cat(out)


def profiled_peak(fn):
    """The peak of every allocation that torch's own CPU allocator reports."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = fn()
    changes = sorted(
        (e.start_ns(), e.nbytes()) for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"
    )
    del kept
    return int(np.cumsum([nbytes for _, nbytes in changes]).max())


@pytest.mark.parametrize("fn", [naive_forward, naive_backward, streamed])
def test_peak_agrees_with_torchs_own_allocator(fn):
    fn()
    ours, theirs = peak_memory(fn).bytes, profiled_peak(fn)
    print(f"{fn.__name__}: followed {ours:,} B, allocator {theirs:,} B")
    # The allocator also sees what kernels take and give back inside one op. Less than one row of numbers: no tensor
    # was missed, for the smallest here is the (B, 1) running maximum.
    assert ours <= theirs < ours + B * F4


def test_peak_is_what_lives_at_once():
    square, out = N * N * F4, N * D * F4
    p = peak_memory(naive_forward)
    assert (p.bytes, p.kept) == (2 * square, out) and p.by == "live torch storages"  # S and P; then only O
    assert [(op, shape) for op, shape, _ in p.alive] == [("mm", (N, N)), ("_softmax", (N, N))]
    p = peak_memory(naive_backward)
    # P for the backward, dP, dS (P is let go after them), O, dV: three squares and two panels.
    assert p.bytes == 3 * square + 2 * out and p.kept == 3 * out
    assert peak_memory(streamed).bytes < square


def test_peak_leaves_out_what_lived_before():
    old = torch.zeros(1000)
    assert peak_memory(lambda: old.add_(1), library="torch").bytes == 0
    assert peak_memory(lambda: old.view(10, 100).T, library="torch").kept == 0
    assert peak_memory(lambda: (old + 1, None)[1]).bytes == 4000
    assert peak_memory(lambda: old + 1).kept == 4000
    assert peak_memory(lambda: torch.tensor([1.0, 2.0])).kept == 8
    memory = np.zeros(1000)
    assert peak_memory(lambda: torch.from_numpy(memory), library="torch").kept == 0
    assert peak_memory(lambda: torch.exp(old, out=torch.empty(0))).bytes == 4000  # a storage that grows
    assert peak_memory(lambda: torch.zeros(9, device="meta"), library="torch").bytes == 0  # no memory behind it


def test_peak_sees_what_autograd_saves():
    x = torch.zeros(1000, requires_grad=True)
    p = peak_memory(lambda: torch.exp(x) * torch.exp(x))
    assert p.kept == 3 * 4000  # the product, and both factors, which the backward will need
    with torch.no_grad():
        assert peak_memory(lambda: torch.exp(x) * torch.exp(x)).kept == 4000


def test_peak_of_numpy():
    n = 300_000

    def two_arrays():
        a = np.zeros(n)
        return (a + 1).sum()

    p = peak_memory(two_arrays)
    assert p.by == "tracemalloc" and 2 * n * F8 <= p.bytes < 3 * n * F8  # two arrays at once, no third
    assert p.kept < n * F8 <= peak_memory(lambda: np.zeros(n)).kept
    tracemalloc.start()  # somebody else is tracing already: measure above what they see, and leave it on
    try:
        others = np.zeros(n)
        assert peak_memory(two_arrays).bytes < 3 * n * F8 and tracemalloc.is_tracing() and others.sum() == 0
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="jax"):
        peak_memory(lambda: None, library="jax")


def test_exponent_of_a_power_law():
    ns = [128, 256, 1024, 4096]
    for e in (1, 2, 0.5):
        assert math.isclose(fit_exponent(ns, [3.5 * n**e for n in ns]), e)
    peaks = [peak_memory(lambda n=n: torch.zeros(n, n)).bytes for n in ns[:3]]
    assert math.isclose(fit_exponent(ns[:3], peaks), 2)
    for bad in (([1], [2]), ([1, 1], [2, 3]), ([1, 2], [0, 1]), ([1, 2, 3], [1, 2])):
        with pytest.raises(ValueError, match="different sizes"):
            fit_exponent(*bad)


# -- timing -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def clock(monkeypatch):
    """A clock that only `work(seconds)` moves."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def work(name, *seconds):
        turns = iter(seconds)

        def fn():
            log.append(name)
            now[0] += next(turns)

        return fn

    log = []
    work.log = log
    return work


def test_measure_takes_the_median_of_what_follows_the_warm_up(clock):
    t = timing.measure(clock("a", 100, 100, 1, 2, 4, 8, 1000), warmup=2, repeats=5)
    assert (t.median, t.low, t.high, t.runs) == (4, 2, 8, 5) and len(t.seconds) == 5
    assert str(t).startswith("4e+03 ms")


def test_the_budget_decides_how_often(clock):
    assert timing.measure(clock("a", *[0.25] * 99), warmup=0, budget_s=2.0).runs == 8
    assert timing.measure(clock("a", *[9.0] * 99), warmup=0, budget_s=2.0).runs == 5  # never fewer than at_least
    assert gc.isenabled()
    with pytest.raises(ValueError, match="repeats"):
        timing.measure(lambda: None, repeats=0)


def test_pairs_interleave_and_take_the_ratio_turn_by_turn(clock):
    # The machine slows down tenfold in the middle: the ratio does not move.
    p = timing.pairs(clock("a", 2, 2, 20, 20), clock("b", 1, 1, 10, 10), warmup=1, repeats=3)
    assert "".join(clock.log) == "ab" + "ab" + "ba" + "ab"
    assert (p.ratio, p.low, p.high) == (2, 2, 2) and p.a.runs == p.b.runs == 3
    assert "a takes 2 times b" in str(p)


# -- machines ---------------------------------------------------------------------------------------------------------
def test_roofline_arithmetic():
    a100 = CHIPS["A100"]
    below = roofline(a100, 1e9, 1e9, "float16")
    assert (below.bound, below.intensity, below.seconds) == ("memory", 1, 1e9 / 2039e9)
    assert below.attainable == 2039e9 and below.ridge == 312e12 / 2039e9
    above = roofline(a100, 1e15, 1e9, "float16")
    assert (above.bound, above.seconds, above.attainable) == ("compute", 1e15 / 312e12, 312e12)
    for work in ((1e12, 3e9), (5e9, 8e9), (7.0, 0.0)):  # the two ways to say it agree
        roof = roofline(a100, *work, "float32")
        assert math.isclose(roof.seconds * roof.attainable, work[0])
    assert roofline(a100, 0, 10, "float32").attainable == 0
    for bad in ((0, 0), (-1, 1), (math.nan, 1), (1, math.inf)):
        with pytest.raises(ValueError, match="flops and bytes"):
            roofline(a100, *bad, "float32")


def test_a_dtype_that_the_chip_lacks_is_refused_by_name():
    for dtype in ("bfloat16", "torch.bfloat16", "tf32"):
        with pytest.raises(ValueError, match=r"T4 has no .*it has float16, float32, float64"):
            roofline(CHIPS["T4"], 1, 1, dtype)
    assert CHIPS["L4"].rate(torch.bfloat16) == CHIPS["L4"].rate("bfloat16")


def test_data_sheets_are_complete_and_agree_with_each_other():
    assert list(CHIPS) == ["T4", "L4", "A100", "H100", "H200", "B200", "RTX 4090"]
    capabilities = [(7, 5), (8, 9), (8, 0), (9, 0), (9, 0), (10, 0), (8, 9)]
    block = {(7, 5): 64, (8, 0): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
    for chip, capability in zip(CHIPS.values(), capabilities, strict=True):
        assert chip.capability == capability and chip.sram_per_block == block[capability] * KIB
        # CUDA keeps 1 KiB a block for itself, except on Turing.
        assert chip.sram_per_sm - chip.sram_per_block == (0 if capability == (7, 5) else KIB)
        assert "https://" in chip.source and chip.rate("float16") > chip.rate("float32") >= chip.rate("float64")
        assert ("bfloat16" in chip.flops) == ("tf32" in chip.flops) == (capability >= (8, 0))
        # Sparse figures are twice the dense ones: a chip's tensor cores do 16-bit at twice TF32, dense.
        if "tf32" in chip.flops:
            assert 1.9 < chip.rate("float16") / chip.rate("tf32") < 2.1
        # Dense 16-bit FLOP a clock and SM: a power of two, so the clock follows, and it must be one that GPUs run at.
        # A figure with sparsity, or with float16 sums on a GeForce (which halves its rate for float32 sums), would ask
        # for twice that.
        per_sm = {(7, 5): 1024, (8, 9): 1024, (8, 0): 2048, (9, 0): 4096, (10, 0): 8192}[capability]
        clock = chip.rate("float16") / chip.sms / (512 if chip.name.startswith("RTX") else per_sm)
        assert 1.4e9 < clock < 2.6e9, (chip.name, clock)


def test_this_cpu_is_measured_once():
    chip = this_cpu()
    assert chip is this_cpu() and chip.capability is None and chip.sms >= 1 and "measured here" in chip.source
    assert chip.bandwidth > 1e8 and chip.rate("float32") > 1e8 and chip.name
    with pytest.raises(ValueError, match="no bfloat16"):
        roofline(chip, 1, 1, "bfloat16")
    print(chip)


def test_cpu_bandwidth_counts_reads_and_writes(monkeypatch):
    monkeypatch.setattr(cpu, "_best", lambda fn: (fn(), 0.5)[1])
    assert cpu.copy_bandwidth(1000, 3) == 4000  # 1,000 B read and 1,000 B written in half a second
    assert cpu.matmul_rate(10, "float32") == 4000


def test_numpy_side_needs_no_torch():
    code = """
        import sys
        import numpy as np
        from flashlib.instruments.machine import CHIPS, roofline, this_cpu
        from flashlib.instruments.peak import peak_memory
        from flashlib.instruments.pipelines import flash, four_steps
        from flashlib.instruments.timing import measure
        from flashlib.instruments.traffic import MemoryMachine, count_ops
        x = np.ones((6, 4))
        m = MemoryMachine(10_000)
        flash(m, x, x, x, block_q=2, block_k=2, causal=True)
        four_steps(m, x, x, x)
        print(m.report(), peak_memory(lambda: x + 1), measure(lambda: x + 1, repeats=3))
        print(roofline(CHIPS["T4"], 1, 1, "float16"), this_cpu())
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, stdout=subprocess.DEVNULL)
