"""Triton's interpreter, made honest: bfloat16 bit by bit against torch, every planted fault caught and named.

TRITON_INTERPRET must be set before triton is first imported, which is when the kernels' file is.
"""

# ruff: noqa: E402
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed (it runs on Linux only)")

import kernels_bad as bad
from flashlib.grading.inputs import draw
from flashlib.instruments import bf16, interpreter
from flashlib.instruments.interpreter import (
    BadDot,
    IntOverflow,
    KernelFailed,
    NotOnCPU,
    NotWritten,
    OutOfBounds,
    Race,
    UndefinedLanes,
    UnsupportedTriton,
    UnwrittenRead,
    WatchError,
    repair,
    watch,
)

SOURCE = Path(bad.__file__)
F4 = 4  # bytes of a float32


def line(name: str) -> int:
    """The line of kernels_bad.py that is marked `# here: name`."""
    return next(i for i, text in enumerate(SOURCE.read_text().splitlines(), 1) if text.endswith(f"# here: {name}"))


def named(error: WatchError, kernel: str, mark: str, tensor: str | None) -> None:
    """The error says which kernel, which line and which tensor, in its attributes and in its text."""
    assert (error.kernel, error.line, error.tensor) == (kernel, line(mark), tensor)
    assert Path(error.file or "").name == SOURCE.name
    text = str(error)
    assert f"kernel {kernel}" in text and f"line {error.line} of {SOURCE.name}" in text
    assert error.source and error.source in text
    assert tensor is None or tensor in text


def bits(seed: int, n: int) -> torch.Tensor:
    """n bfloat16 of random bits, all kinds of values among them: subnormal, infinite, NaN, and equal pairs."""
    rng = np.random.default_rng(seed)
    u = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    u[::7] = rng.choice(np.array([0, 0x8000, 0x7F80, 0xFF80, 0x3F80, 0x7FC0, 1, 0x8001], dtype=np.uint16), len(u[::7]))
    u[::3] = 0x3F00 + (u[::3] & 0x1FF)  # and many of similar size, so that sums and comparisons are not trivial
    return torch.from_numpy(u.view(np.int16).copy()).view(torch.bfloat16)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit; one NaN is as good as another."""
    nan = a.isnan() & b.isnan()
    kind = {2: torch.int16, 1: torch.int8, 4: torch.int32}[a.element_size()]
    return a.dtype == b.dtype and bool(((a.view(kind) == b.view(kind)) | nan).all())


# -- right ------------------------------------------------------------------------------------------------------------
def test_repair_says_what_it_did_and_does_it_once():
    first = repair()
    builder = sys.modules["triton.runtime.interpreter"].InterpreterBuilder
    before = dict(vars(builder))
    assert repair() == first and dict(vars(builder)) == before
    assert any("bfloat16" in one for one in first) and any("nearest even" in one for one in first)


def test_a_triton_without_the_hooks_is_refused_by_name():
    class Builder:
        pass

    module = type("module", (), {"InterpreterBuilder": Builder})
    with pytest.raises(UnsupportedTriton, match=r"InterpreterBuilder\.create_masked_load.*triton 3\.6\.0 to 3\.9\.0"):
        interpreter._check_hooks(module)


def test_rounding_to_bfloat16_is_to_nearest_even():
    rng = np.random.default_rng(1)
    u = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    u[::4] = (u[::4] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties
    x = u.view(np.float32)
    ours = torch.from_numpy(bf16.rounded(x).view(np.int16)).view(torch.bfloat16)
    assert same_bits(ours, torch.from_numpy(x).to(torch.bfloat16))
    n = 1 << 13
    tensor = torch.from_numpy(x[:n].copy())
    y = torch.empty(n, dtype=torch.bfloat16)
    with watch(outputs=[y]):
        bad.bf16_round[(n // 1024,)](tensor, y, 1024)
    assert same_bits(y, tensor.to(torch.bfloat16))
    with watch(outputs=[y]):
        bad.bf16_cut[(n // 1024,)](tensor, y, 1024)
    cut = torch.from_numpy((u[:n] & np.uint32(0xFFFF0000)).view(np.float32)).to(torch.bfloat16)
    assert bool((same := (y == cut) | (y.isnan() & tensor.isnan())).all()), (~same).nonzero()


def test_rounding_to_bfloat16_happens_once():
    """1 + 2^-8 + a little lies above the middle of two bfloat16; by way of float32 it would be the middle itself."""
    x = torch.tensor([1 + 2**-8 + 2**-40, -1 - 2**-8 - 2**-40, 1 + 2**-8, 2.0**128 * (1 - 2**-9)], dtype=torch.float64)
    y = torch.empty(4, dtype=torch.bfloat16)
    bad.bf16_round[(1,)](x, y, 4)
    assert y.tolist() == [1 + 2**-7, -1 - 2**-7, 1, float("inf")]
    i = torch.tensor([2**30 + 2**22 + 1, 2**30 + 2**22, -(2**30) - 2**22 - 1, 7], dtype=torch.int32)
    bad.bf16_round[(1,)](i, y, 4)
    assert y.tolist() == [2.0**30 + 2**23, 2.0**30, -(2.0**30) - 2**23, 7]
    i = torch.tensor([2**62 + 2**54 + 1, 2**62 + 2**54, -(2**62) - 2**54 - 1, -7], dtype=torch.int64)
    bad.bf16_round[(1,)](i, y, 4)
    assert y.tolist() == [2.0**62 + 2**55, 2.0**62, -(2.0**62) - 2**55, -7]


def test_fma_rounds_once():
    rng = np.random.default_rng(2)
    for dtype in (np.float16, np.float32):
        x, y, z = (rng.standard_normal(1000).astype(dtype) for _ in range(3))
        exact = x.astype(np.longdouble) * y + z  # exact enough: the product is, and 64 bits hold nearly every sum
        ours = bf16.fma(x, y, z).astype(dtype)
        assert np.array_equal(ours, exact.astype(dtype))
    a, tiny = np.float32(1 + 2**-12), np.float32(2.0**-80)  # a² = 1 + 2^-11 + 2^-24: the middle of two float32
    assert bf16.fma(a, a, tiny).astype(np.float32) == np.float32(1 + 2**-11 + 2**-23)
    assert bf16.fma(a, a, -tiny).astype(np.float32) == np.float32(1 + 2**-11)


def test_bfloat16_arithmetic_equals_torchs_bit_by_bit():
    n = 1 << 12
    a, b, c = bits(1, n), bits(2, n), bits(3, n)
    b[: n // 8] = a[: n // 8]
    names = ["sum", "difference", "product", "quotient", "fma", "negative", "size", "top", "low", "choice", "plus"]
    out = {name: torch.empty(n, dtype=torch.bfloat16) for name in names}
    less, equal = torch.empty(n, dtype=torch.int8), torch.empty(n, dtype=torch.int8)
    with watch(outputs=[*out.values(), less, equal]):
        bad.bf16_ops[(n // 1024,)](a, b, c, *out.values(), less, equal, n, 1024)

    def numpys(op):  # torch's own fmax of bfloat16 returns NaN for some pairs of a number and a NaN
        return torch.from_numpy(op(a.float().numpy(), b.float().numpy())).to(torch.bfloat16)

    want = {
        "sum": a + b, "difference": a - b, "product": a * b, "quotient": a / b, "size": a.abs(),
        "top": numpys(np.fmax), "low": numpys(np.fmin), "choice": torch.where(a < b, a, 0.5), "plus": a + 1.5,
        "fma": (a.double() * b.double() + c.double()).to(torch.bfloat16),
    }  # fmt: skip
    for name, expected in want.items():
        ours = out[name]
        if name in ("top", "low"):  # of +0 and −0 either may be taken
            ours, expected = ours + 0.0, expected + 0.0
        wrong = ((ours != expected) & ~(ours.isnan() & expected.isnan())).nonzero().ravel()
        if name == "fma":  # torch rounds twice or thrice here; check those by exact arithmetic
            wrong = torch.tensor([i for i in wrong.tolist() if not _is_fma(a[i], b[i], c[i], ours[i])])
        assert not len(wrong), (name, a[wrong[:3]], b[wrong[:3]], ours[wrong[:3]], expected[wrong[:3]])
    assert bool(((out["negative"] == -a) | a.isnan()).all())
    assert torch.equal(less, (a < b).to(torch.int8) + 2 * (a <= b).to(torch.int8) + 4 * (a > b).to(torch.int8))
    assert torch.equal(equal, (a == b).to(torch.int8) + 2 * (a != b).to(torch.int8) + 4 * (a >= b).to(torch.int8))


def _is_fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, r: torch.Tensor) -> bool:
    """Whether r is the bfloat16 nearest to a·b + c, by fractions."""
    from fractions import Fraction

    exact = Fraction(a.item()) * Fraction(b.item()) + Fraction(c.item())
    u = int(r.view(torch.int16).item()) & 0xFFFF
    near = [torch.tensor(v if v < 1 << 15 else v - (1 << 16), dtype=torch.int16).view(torch.bfloat16).item()
            for v in (u - 1, u + 1) if 0 <= v < 1 << 16]  # fmt: skip
    return all(abs(Fraction(r.item()) - exact) <= abs(Fraction(v) - exact) for v in near if np.isfinite(v))


def test_bfloat16_reductions():
    n = 16
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    half = [torch.empty(n, dtype=torch.bfloat16) for _ in range(4)]
    top, low, total, product = half
    where, wide = torch.empty(n, dtype=torch.int32), torch.empty(n)
    running = torch.empty(n, n, dtype=torch.bfloat16)
    with watch(outputs=[*half, where, wide, running]):
        bad.bf16_folds[(1,)](x, top, low, where, total, wide, running, product, n)
    assert same_bits(top, x.amax(1)) and same_bits(low, x.amin(0)) and torch.equal(where.long(), x.argmax(1))
    tree = x
    while tree.shape[1] > 1:
        tree = tree[:, : tree.shape[1] // 2] + tree[:, tree.shape[1] // 2 :]
    assert same_bits(total, tree[:, 0])  # rounded at every step, as on a GPU
    chain = x[:, 0]
    for i in range(1, n):
        chain = chain * x[:, i]
    assert same_bits(product, chain)
    with np.errstate(all="ignore"):
        assert np.array_equal(wide.numpy(), x.float().numpy().sum(1))
        assert same_bits(running, torch.from_numpy(x.float().numpy().cumsum(1)).to(torch.bfloat16))


def test_what_cannot_be_right_is_refused_by_name():
    x, y = torch.ones(16, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    with pytest.raises(NotOnCPU, match="atomic_add"):
        bad.bf16_atomic[(1,)](x, y)
    with pytest.raises(NotOnCPU, match=r"tl\.reduce.*float32"):
        bad.bf16_bad_fold[(1,)](x, y, 16)
    with watch(), pytest.raises(KernelFailed, match=r"atomic_add") as caught:
        bad.bf16_atomic[(1,)](x, y)
    assert isinstance(caught.value.__cause__, NotOnCPU)
    if hasattr(torch, "float8_e5m2"):
        with pytest.raises(NotOnCPU, match="fp8e5"):
            bad.bf16_round[(1,)](x.to(torch.float8_e5m2), torch.empty(16, dtype=torch.bfloat16), 16)


def test_maximum_of_a_number_and_nan_is_the_number_as_on_a_gpu():
    z = torch.empty(3)
    for x, y in ((float("nan"), 2.0), (2.0, float("nan"))):
        bad.lopsided_nan[(1,)](torch.tensor([x]), torch.tensor([y]), z)
        assert z[:2].tolist() == [2.0, 2.0]


def test_loop_bounds_known_at_run_time():
    y = torch.empty(1, dtype=torch.int32)
    with watch(outputs=[y]):
        bad.run_time_bounds[(1,)](y, torch.tensor([7], dtype=torch.int32))
    assert y.item() == sum(range(7)) + sum(range(0, 7, 2))


# -- watchful ---------------------------------------------------------------------------------------------------------
def test_a_right_kernel_passes_in_silence(recwarn):
    for n in (1, 10, 32, 33):
        x = torch.randn(n)
        y = torch.empty(n)
        with watch():
            bad.copy_right[(triton.cdiv(n, 16),)](x, y, n, 16)
        assert torch.equal(x, y)
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_right_matmul_passes_and_is_counted(dtype, transposed):
    m, n, k, block = 37, 20, 50, 16
    given = draw(4, B=1, Hq=1, Hkv=1, Sq=m, Sk=k, D=k, dtype=str(dtype).removeprefix("torch."), library="torch")
    a = given.q[0, 0]  # (m, k)
    b = (given.k[0, 0].T if transposed else given.k[0, 0])[:, :n]  # (k, n): a view with a row stride of k, or columns
    c = torch.empty(m, n, dtype=dtype)
    with watch(outputs=[c]) as w:
        bad.matmul[(triton.cdiv(m, block) * triton.cdiv(n, block),)](
            a, a.stride(), b, b.stride(), c, c.stride(), m, n, k, block)  # fmt: skip
    exact = a.double() @ b.double()
    # one rounding to dtype, and k float32 additions of products below |a|·|b|
    unit = torch.finfo(dtype).eps / 2
    bound = unit * exact.abs() + (k + 1) * 2.0**-23 * (a.double().abs() @ b.double().abs())
    assert bool(((c.double() - exact).abs() <= bound).all())
    size, moved = a.element_size(), w.report()
    assert moved.read == {"A": 2 * m * k * size, "B": 3 * k * n * size}  # A once a column of tiles, B once a row
    assert moved.written == {"C": m * n * size} and moved.elements_written == {"C": m * n}
    assert moved.total == (2 * m * k + 3 * k * n + m * n) * size
    assert moved.dots == 3 * 2 * 4 and moved.flops == moved.dots * 2 * 16**3
    assert moved.by_kernel["matmul"].programs == 6 and moved.by_kernel["matmul"].launches == 1
    text = str(moved)
    assert "read B" in text and "written B" in text and f"total {moved.total:,} B; 24 dots" in text


def test_out_of_bounds_load_and_store():
    x, y = torch.zeros(10), torch.zeros(10)
    with watch(), pytest.raises(OutOfBounds, match=r"6 elements past the end.*6 of 16 active lanes") as caught:
        bad.load_past[(1,)](x, y, 10, 16)
    named(caught.value, "load_past", "load_past", "X")
    assert caught.value.past == 6 and caught.value.program == (0, 0, 0) and isinstance(caught.value, IndexError)
    with watch(), pytest.raises(OutOfBounds, match="3 elements before the start of Y") as caught:
        bad.store_before[(1,)](x, y, 10, 16)
    named(caught.value, "store_before", "store_before", "Y")
    assert caught.value.past == -3
    with watch(), pytest.raises(OutOfBounds) as caught:  # in the second program; an empty tensor; neighbours in memory
        both = torch.zeros(32)
        bad.load_past[(2,)](both[:20], both[20:], 12, 16)
    assert (caught.value.program, caught.value.tensor, caught.value.past) == ((1, 0, 0), "X", 12)
    with watch(), pytest.raises(OutOfBounds, match="1 element past"):
        bad.load_past[(1,)](torch.empty(0), y, 0, 1)


def test_the_line_is_that_of_the_device_function_and_its_caller_is_named():
    x, y = torch.zeros(10), torch.zeros(10)
    with watch(), pytest.raises(OutOfBounds) as caught:
        bad.load_past_inside[(1,)](x, y, 10, 16)
    named(caught.value, "load_past_inside", "fetch", "X")
    assert f"fetch, called from load_past_inside line {line('fetch_caller')}" in str(caught.value)


def test_a_view_owns_its_elements_and_not_its_neighbours():
    packed = torch.zeros(4, 3, 8)
    k = packed[:, 1]  # (4, 8) with row stride 24
    y = torch.zeros(4)
    with watch():
        bad.rows[(1,)](k, k.stride(), y, 4, 8, 4, 8)
    with watch(), pytest.raises(OutOfBounds, match=r"between the elements of X.*strides \(24, 1\)") as caught:
        bad.rows[(1,)](k, k.stride(), y, 3, 8, 4, 16)
    named(caught.value, "rows", "rows", "X")
    wide = torch.arange(8.0).expand(4, 8)  # stride 0
    with watch():
        bad.rows[(1,)](wide, wide.stride(), y, 4, 8, 4, 8)
    assert y.tolist() == [28.0] * 4


def test_an_address_from_nowhere_does_not_crash():
    p = torch.tensor([12345678], dtype=torch.int64)
    with watch(), pytest.raises(OutOfBounds, match="no tensor argument") as caught:
        bad.loaded_pointer[(1,)](p, torch.zeros(1))
    named(caught.value, "loaded_pointer", "loaded_pointer", None)


def test_races():
    with watch(), pytest.raises(Race, match=r"\(1, 0, 0\) writes Y\[4\].*written by program \(0, 0, 0\)") as caught:
        bad.same_place[(2,)](torch.zeros(12, dtype=torch.int32), 8)
    named(caught.value, "same_place", "same_place", "Y")
    with watch(), pytest.raises(Race, match=r"reads X\[0\], which is written by program \(0, 0, 0\)") as caught:
        bad.reads_behind[(2,)](torch.arange(16.0), 16, 8, -8)
    named(caught.value, "reads_behind", "reads_behind", "X")
    with watch(), pytest.raises(Race, match=r"writes X\[8\], which is read by program \(0, 0, 0\)") as caught:
        bad.reads_behind[(2,)](torch.arange(16.0), 16, 8, 8)
    named(caught.value, "reads_behind", "writes_ahead", "X")
    with watch(), pytest.raises(Race, match=r"two lanes.*Y\[0\]") as caught:
        bad.lanes_collide[(1,)](torch.zeros(4, dtype=torch.int32), 8)
    named(caught.value, "lanes_collide", "lanes_collide", "Y")
    with watch():  # two launches are ordered; atomics do not race
        for _ in range(2):
            bad.same_place[(1,)](torch.zeros(8, dtype=torch.int32), 8)
        y, c = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
        bad.count[(3,)](y, c, 4)
    assert y.tolist() == [3.0] * 4 and c.item() == 3
    with watch(race=False):
        bad.same_place[(2,)](torch.zeros(12, dtype=torch.int32), 8)


def test_output_never_written():
    x, y = torch.zeros(5, 2), torch.zeros(5, 2)
    with pytest.raises(NotWritten, match=r"5 of 10 elements of Y.*first is Y\[0, 1\]") as caught, watch():
        bad.half[(1,)](x, y, 10, 16)
    named(caught.value, "half", "half", "Y")
    assert caught.value.missing == 5
    with watch(outputs=()):
        bad.half[(1,)](x, y, 10, 16)
    with watch():  # two launches fill one tensor
        bad.copy_right[(1,)](x[:3], y[:3], 6, 16)
        bad.copy_right[(1,)](x[3:], y[3:], 4, 16)
    with pytest.raises(NotWritten, match=r"output 0, of shape \(7,\)"), watch(outputs=[torch.empty(7)]):
        pass


def test_reading_what_nothing_wrote():
    x = torch.ones(10)
    with watch(), pytest.raises(UnwrittenRead, match=r"Y\[0\]") as caught:
        bad.accumulate[(1,)](x, torch.empty(10), 10, 16)
    named(caught.value, "accumulate", "accumulate", "Y")
    with watch(), pytest.raises(UnwrittenRead, match=r"Y\[4\]"):
        y = torch.empty_like(x)
        y[:4].zero_()
        bad.accumulate[(1,)](x, y, 10, 16)
    with watch():
        y = torch.empty(10)
        y.fill_(1)
        bad.accumulate[(1,)](x, y, 10, 16)
        z = torch.empty(10)
        bad.copy_right[(1,)](x, z, 10, 16)  # a kernel's writes count too
        bad.accumulate[(1,)](x, z, 10, 16)
        bad.accumulate[(1,)](x, torch.zeros(10), 10, 16)
    assert y.tolist() == z.tolist() == [2.0] * 10
    filled = (lambda: torch.tensor([1.0] * 10), lambda: torch.ones(10), lambda: torch.rand(10), lambda: x.clone(),
              lambda: torch.arange(10.0), lambda: torch.full_like(x, 2), lambda: torch.cat([x[:5], x[5:]]),
              lambda: torch.empty(10).normal_(), lambda: torch.add(x, x, out=torch.empty(10)),
              lambda: torch.empty(10).copy_(x), lambda: torch.from_numpy(np.ones(10, np.float32)),
              lambda: x[torch.arange(9, -1, -1)], lambda: torch.nn.init.ones_(torch.empty(10)),
              lambda: torch.empty(2, 5).t().fill_(3).reshape(-1), lambda: x.double().float())  # fmt: skip
    with watch():
        for make in filled:
            bad.accumulate[(1,)](x, make(), 10, 16)
    before = torch.empty(10)
    with pytest.raises(UnwrittenRead), watch(outputs=[before]):
        bad.accumulate[(1,)](x, before, 10, 16)
    with pytest.raises(UnwrittenRead), watch(fresh=[before]):
        bad.accumulate[(1,)](x, before, 10, 16)


def test_int32_overflow():
    y = torch.zeros(4)
    with watch(outputs=()), pytest.raises(IntOverflow, match=r"65,536 · 65,536 = 4,294,967,296.*int64") as caught:
        bad.far[(1,)](y, 65536, 65536, False)
    named(caught.value, "far", "far", None)
    with watch(outputs=()):
        bad.far[(1,)](y, 65536, 65536, True)
    with watch():  # unsigned arithmetic may wrap
        bad.draw_bits[(1,)](torch.empty(16, dtype=torch.int32), 12345, 16)


def test_dots_no_gpu_accepts():
    c = torch.zeros(16, 16)
    half = torch.zeros(256, dtype=torch.float16)
    with watch(), pytest.raises(BadDot, match=r"K = 8.*no less than 16") as caught:
        bad.thin_dot[(1,)](half, half, c, 8)
    named(caught.value, "thin_dot", "thin_dot", None)
    with watch(), pytest.raises(BadDot, match="fp16 with bf16"):
        bad.thin_dot[(1,)](half, half.to(torch.bfloat16), c, 16)
    with watch():
        bad.thin_dot[(1,)](half, half, c, 16)


@pytest.mark.parametrize(("dtype", "said", "rounded"), [
    (torch.float32, "", 1), (torch.float32, "tf32", 1), (torch.float32, "ieee", 0), (torch.float32, "tf32x3", 0),
    (torch.float16, "", 0), (torch.bfloat16, "", 0),
])  # fmt: skip
def test_dots_that_a_gpu_rounds_to_tf32_are_counted(dtype, said, rounded):
    x, c = torch.ones(16, 16, dtype=dtype), torch.zeros(16, 16)
    with watch() as w:
        bad.dot_said[(1,)](x, x, c, said)
    moved = w.report()
    assert (moved.dots, moved.tf32) == (1, rounded)


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "sin", "cos"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_functions_of_16_bits_are_refused_as_for_a_gpu(name, dtype):
    """Triton compiles them for no GPU; the interpreter must not do them in silence either."""
    kind = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    with watch(), pytest.raises(KernelFailed, match=rf"Expected dtype \['fp32', 'fp64'\] but got {kind}"):
        bad.half_function[(1,)](torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype), name)
    y = torch.zeros(1)
    with watch():
        bad.half_function[(1,)](torch.ones(1), y, name)
    assert y.item() == getattr(np, name)(np.float32(1))


def test_masked_lanes_without_other():
    y = torch.zeros(1)
    with watch(), pytest.raises(UndefinedLanes, match=r"X without other=.*Y\[0\] depends") as caught:
        bad.row_sum[(1,)](torch.ones(10), y, 10, 16)
    named(caught.value, "row_sum", "row_sum", "X")
    assert y.item() == 10  # the first run's result stays
    with watch(), pytest.raises(UndefinedLanes) as caught:
        bad.row_top[(1,)](-torch.ones(10), y, 10, 16)
    named(caught.value, "row_top", "row_top", "X")
    with watch(), pytest.raises(UndefinedLanes) as caught:  # used as an address
        bad.hops[(1,)](torch.zeros(10, dtype=torch.int32), torch.ones(10), torch.zeros(16), 10, 16)
    named(caught.value, "hops", "hops", "I")
    with watch():
        bad.row_sum[(1,)](torch.ones(16), y, 16, 16)  # no lane is masked
    with watch(poison=False):
        bad.row_sum[(1,)](torch.ones(10), y, 10, 16)


def test_other_errors_name_their_line():
    with watch(), pytest.raises(KernelFailed, match="AssertionError: wants integers") as caught:
        bad.fails[(1,)](torch.zeros(1))
    named(caught.value, "fails", "fails", None)


def test_in_place_and_descriptors():
    x = torch.randn(10)
    doubled = 2 * x
    with watch():
        bad.accumulate[(1,)](x, x, 10, 16)  # one tensor as two arguments; each program its own elements
    assert torch.equal(x, doubled)
    x, y = torch.randn(20, 8), torch.empty(20, 8)
    with watch(outputs=[y]) as w:
        bad.describe_rows[(2,)](x, y, 20, 8, 16, 8)
    assert torch.equal(y, 2 * x) and w.report().read == {"X": 160 * F4} and w.report().written == {"Y": 160 * F4}


def test_trace():
    x = torch.randn(6, 4)
    y = torch.empty(6, 4)
    with watch(trace=True) as w:
        bad.copy_right[(2,)](x, y, 24, 16)
    seen = [(m.program[0], m.op, m.tensor, m.index, m.first, m.last, m.elements, m.bytes) for m in w.trace]
    four, two = ((0, 4, 1), (0, 4, 1)), ((4, 6, 1), (0, 4, 1))
    assert seen == [
        (0, "load", "X", four, 0, 15, 16, 64), (0, "store", "Y", four, 0, 15, 16, 64),
        (1, "load", "X", two, 16, 23, 8, 32), (1, "store", "Y", two, 16, 23, 8, 32),
    ]  # fmt: skip
    assert {m.kernel for m in w.trace} == {"copy_right"} and {m.launch for m in w.trace} == {0}
    with watch() as w:
        bad.copy_right[(2,)](x, y, 24, 16)
    assert w.trace == []


def test_hooks_go_when_the_watch_ends():
    module = sys.modules["triton.runtime.interpreter"]

    def state():
        return (dict(vars(module.InterpreterBuilder)), dict(vars(module.GridExecutor)), module._implicit_cvt,
                type(module.interpreter_semantic).dot)  # fmt: skip

    repair()
    before = state()
    with pytest.raises(OutOfBounds), watch():
        bad.load_past[(1,)](torch.zeros(10), torch.zeros(10), 10, 16)
    with watch():
        assert state() != before
    assert state() == before


def test_a_watch_changes_no_result():
    """A watched matmul equals the unwatched one bit by bit."""
    given = draw(5, B=1, Hq=1, Hkv=1, Sq=33, Sk=33, D=33, library="torch")
    a, b, first, second = given.q[0, 0], given.k[0, 0], torch.empty(33, 33), torch.empty(33, 33)
    args = (a, a.stride(), b, b.stride())
    bad.matmul[(9,)](*args, first, first.stride(), 33, 33, 33, 16)
    with watch():
        bad.matmul[(9,)](*args, second, second.stride(), 33, 33, 33, 16)
    assert torch.equal(first, second)


# -- where it cannot be used ------------------------------------------------------------------------------------------
def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | env
    root = Path(__file__).resolve().parents[1]
    return subprocess.run([sys.executable, "-c", code], cwd=root, env=given, capture_output=True, text=True)


def test_without_the_interpreter_watch_says_what_to_do():
    code = "from flashlib.instruments.interpreter import watch\nwith watch(): pass"
    done = run(code)
    assert done.returncode == 1 and "NotInterpreting" in done.stderr and "TRITON_INTERPRET=1" in done.stderr


def test_without_triton_it_imports_and_repair_says_why_not():
    code = ("import sys; sys.modules['triton'] = None\nfrom flashlib.instruments import interpreter\n"
            "assert not any(m == 'torch' for m in sys.modules)\ninterpreter.repair()")  # fmt: skip
    done = run(code, TRITON_INTERPRET="1")
    assert done.returncode == 1 and "ImportError: the interpreter comes with triton" in done.stderr
