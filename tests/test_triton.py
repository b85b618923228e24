"""The Triton kernels as operators: torch's own checks, other tile sizes, refusals. Exactness is in test_exactness."""

import pytest
import torch

import flashlib
from flashlib.algorithms import tiles
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw

pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
ta = pytest.importorskip("flashlib.algorithms.triton_attention")


def sample(dropout_p=0.0, needs=True):
    x = draw(1, B=1, Hq=2, Hkv=1, Sq=17, Sk=21, D=8, library="torch", spread=1.0)
    return tuple(t.requires_grad_(needs) for t in x[:3]), (True, 0.3, dropout_p, 7)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_opcheck_forward(dropout_p):
    tensors, options = sample(dropout_p)
    torch.library.opcheck(ta._forward, (*tensors, *options))


@pytest.mark.parametrize("dlse", [False, True])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_opcheck_backward(dlse, needs):
    (q, k, v), options = sample(needs=False)
    o, lse = ta._forward(q, k, v, *options)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    arguments = (torch.ones_like(o), torch.ones_like(lse) if dlse else None, q, k, v, o, lse, *options, *needs)
    torch.library.opcheck(ta._backward, arguments, test_utils=tests)


def test_compile_takes_it_whole():
    """One graph, no break: the operators are opaque to torch.compile and differentiable."""
    (q, k, v), (causal, scale, dropout_p, seed) = sample()

    def loss(q, k, v):
        o, lse = ta.attention(q, k, v, causal=causal, scale=scale, dropout_p=dropout_p, seed=seed)
        return (o.sin().sum() + lse.sum()) * 2

    def run(f):
        return torch.autograd.grad(f(q, k, v), (q, k, v))

    torch._dynamo.reset()
    for a, b in zip(run(loss), run(torch.compile(loss, backend="aot_eager", fullgraph=True)), strict=True):
        assert torch.equal(a, b)


def under_watch(monkeypatch, skip=None):
    """Both launches outside of torch.library, inside of which new tensors cannot be followed."""
    from flashlib.instruments.interpreter import watch

    class Skipped:
        def __getitem__(self, grid):
            return lambda *args, **options: None

    if skip:
        monkeypatch.setattr(ta, skip, Skipped())
    (q, k, v), options = sample(needs=False)
    with watch():
        o, lse = ta._forward._init_fn(q, k, v, *options)
        ta._backward._init_fn(torch.ones_like(o), None, q, k, v, o, lse, *options, True, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the watch is the interpreter's; here kernels are compiled")
def test_nothing_is_read_before_it_is_written(monkeypatch):
    from flashlib.instruments.interpreter import UnwrittenRead

    under_watch(monkeypatch)
    for kernel in ("forward_kernel", "delta_kernel"):
        with monkeypatch.context() as patch, pytest.raises(UnwrittenRead):
            under_watch(patch, skip=kernel)


def test_the_front_door_compiles_whole_for_more_than_one_length():
    torch._dynamo.reset()
    compiled = torch.compile(flashlib.attention, backend="aot_eager", fullgraph=True)
    for S in (17, 33, 40):
        x = draw(S, B=1, Hq=2, Hkv=1, Sq=S, Sk=S + 4, D=8, library="torch", spread=1.0)
        assert torch.equal(compiled(*x[:3], impl="triton"), flashlib.attention(*x[:3], impl="triton"))


def test_forward_mode_is_refused_and_not_zero():
    x = draw(1, B=1, Hq=1, Hkv=1, Sq=3, Sk=4, D=8, library="torch")
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: flashlib.attention(q, x.k, x.v, impl="triton"), (x.q,), (torch.ones_like(x.q),))


@pytest.mark.parametrize("sizes", [(16, 16), (64, 16), (16, 128), (128, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_tile_sizes_change_nothing_but_rounding(sizes, causal, monkeypatch):
    monkeypatch.setattr(tiles, "INTERPRETED", tiles.INTERPRETED._replace(block_m=sizes[0], block_n=sizes[1]))
    x = draw(6, B=1, Hq=4, Hkv=2, Sq=75, Sk=91, D=24, Dv=9, library="torch", offset=120.0)
    q, k, v = (t.clone().requires_grad_() for t in x[:3])
    o, lse = flashlib.attention(q, k, v, causal=causal, impl="triton", return_lse=True)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), x.do)
    Problem(*x, causal=causal).compare(o=o, lse=lse, dq=dq, dk=dk, dv=dv).raise_if_wrong()


def test_31_the_mask_is_that_of_every_other_implementation():
    """v = identity reads P ∘ Z out: the very same weights are dropped, to the last place."""
    x = draw(1, B=2, Hq=4, Hkv=2, Sq=33, Sk=29, D=5, Dv=29, library="torch", spread=1.0)
    v = torch.eye(29).expand(2, 2, 29, 29)
    for seed in (0, 99, 2**31, 2**63 + 5, 2**64 - 1):
        a, b = (flashlib.attention(x.q, x.k, v, dropout_p=0.4, seed=seed, impl=i) != 0 for i in ("triton", "tiled"))
        assert torch.equal(a, b)


REFUSED = {
    "float64": (lambda: [torch.ones(1, 1, 2, 4, dtype=torch.float64)] * 3, TypeError, ["float64", "tiled"]),
    "D=257": (lambda: [torch.ones(1, 1, 2, 257)] * 3, ValueError, ["up to 256", "257"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernels_do_not_do_is_said_in_one_line(name):
    make, error, parts = REFUSED[name]
    with pytest.raises(error) as caught:
        flashlib.attention(*make(), impl="triton")
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts)


def test_no_tile_for_a_chip_is_said_in_one_line():
    with pytest.raises(ValueError, match=r"D=64, 16-bit, on a chip of capability 6\.0; use impl='tiled'"):
        tiles.lookup("forward", (6, 0), 64, "16-bit")


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_tiles_are_chosen_for_dropout(monkeypatch, dropout_p):
    asked = []
    monkeypatch.setattr(ta, "choose", lambda kernel, *args: asked.append((kernel, args[-1])) or tiles.INTERPRETED)
    (q, k, v), options = sample(dropout_p)
    ta._forward(q, k, v, *options)[0].sum().backward()
    assert asked == [(kernel, dropout_p > 0) for kernel in ("forward", "dkdv", "dq")]


def test_dropout_without_a_seed_compiles_whole():
    """The seed is drawn inside of the graph, where nothing may depend on its size."""
    torch._dynamo.reset()
    q, k, v, do = draw(3, B=1, Hq=2, Hkv=1, Sq=17, Sk=21, D=8, library="torch", spread=1.0)
    q.requires_grad_()

    def attend(q):
        return flashlib.attention(q, k, v, dropout_p=0.3, impl="triton")

    def run(f):
        torch.manual_seed(5)
        o = f(q)
        return o, *torch.autograd.grad(o, q, do)

    for a, b in zip(run(attend), run(torch.compile(attend, backend="aot_eager", fullgraph=True)), strict=True):
        assert torch.equal(a, b)


def test_func_grad_is_refused_in_one_line():
    q, k, v, _ = draw(1, B=1, Hq=1, Hkv=1, Sq=3, Sk=4, D=8, library="torch")
    with pytest.raises(RuntimeError, match=r"^attention: impl='triton' does not run under torch\.func\.grad[^\n]*$"):
        torch.func.grad(lambda q: flashlib.attention(q, k, v, impl="triton").sum())(q)


def test_full_tiles_answer_as_masked_ones_do(monkeypatch):
    """A −inf in q, k or dO, in tiles of every size: where the tiles end must not show."""
    x = draw(5, B=1, Hq=2, Hkv=1, Sq=40, Sk=40, D=2, library="torch", spread=1.0)
    q, k = x.q.abs(), x.k.abs()
    q[0, 0, 20, 0] = k[0, 0, 3, 1] = x.do[0, 1, 9, 0] = -torch.inf
    exact = Problem(q, k, x.v, x.do)
    for block_m, block_n in ((16, 16), (16, 64), (64, 16), (32, 32)):
        monkeypatch.setattr(tiles, "INTERPRETED", tiles.INTERPRETED._replace(block_m=block_m, block_n=block_n))
        leaves = [t.clone().requires_grad_() for t in (q, k, x.v)]
        o = flashlib.attention(*leaves, impl="triton")
        dq, dk, dv = torch.autograd.grad(o, leaves, x.do)
        exact.compare(o=o, dq=dq, dk=dk, dv=dv).raise_if_wrong()


def test_the_careful_loop_runs_again_only_when_needed(monkeypatch):
    """Finite inputs: keys and values are read once a tile of queries. A −inf score: the tiles in float16 twice."""
    from flashlib.instruments.interpreter import watch

    if torch.cuda.is_available():
        pytest.skip("bytes are counted in the interpreter")
    x = draw(5, B=1, Hq=1, Hkv=1, Sq=32, Sk=64, D=16, library="torch", dtype="float16", spread=1.0)
    read = []
    for bad in (False, True):
        q, k, v, do = (t.abs() for t in x)
        if bad:
            k[0, 0, 3, 0] = -torch.inf
        o, lse = ta._forward(q, k, v, False, 0.25, 0.0, 0)
        with watch() as w:
            ta._backward._init_fn(do, None, q, k, v, o, lse, False, 0.25, 0.0, 0, True, True)
        read.append(w.report().by_kernel["dq_kernel"].read["K"])
    assert read == [64 * 16 * 2, 2 * 64 * 16 * 2]


def test_a_row_of_huge_gradients_takes_nothing_from_its_neighbours():
    """float16, dS of row 0 beyond 65 504: what row 1 gets, and the key that only row 1 sees, is as if it were alone."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(1, 1, n, 4, generator=generator).half() for n in (2, 3, 3, 2))
    v[..., 0] *= 2e4
    do *= 0.01
    do[0, 0, :, 0] = torch.tensor([6e4, 0])
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    dq, dk, _ = torch.autograd.grad(flashlib.attention(*leaves, causal=True, impl="triton"), leaves, do)
    alone = Problem(q[:, :, 1:], k, v, do[:, :, 1:], causal=True)
    dk[:, :, :2] = torch.from_numpy(alone.exact("dk"))[:, :, :2]  # row 0 sees these too
    alone.compare(dq=dq[:, :, 1:], dk=dk).raise_if_wrong()


def decode_with(monkeypatch, **replaced):
    """What the decode kernel gives for a q whose numbers are to be read with a minus, against the oracle."""
    from flashlib.algorithms import triton_decode

    for name, value in replaced.items():
        monkeypatch.setattr(triton_decode, name, value)
    x = draw(2, B=1, Hq=2, Hkv=1, Sq=1, Sk=9, D=8, library="torch", spread=1.0)
    q = torch.complex(x.q, x.q).conj().imag
    assert q.is_neg()
    with torch.no_grad():
        o, lse = flashlib.decode(q, x.k, x.v, return_lse=True, impl="triton")
    Problem(-x.q, x.k, x.v, causal=True).compare(o=o, lse=lse).raise_if_wrong()


def test_decode_reads_a_negative_view_on_the_device_of_q(monkeypatch):
    from contextlib import nullcontext

    seen = []
    decode_with(monkeypatch, on_device=lambda q: seen.append(q.device) or nullcontext())
    assert seen == [torch.device("cpu")]


def test_decode_refuses_what_the_kernels_cannot_do(monkeypatch):
    with pytest.raises(ValueError, match=r"^decode: impl='triton' needs a CUDA GPU[^\n]*q is on cpu[^\n]*$"):
        decode_with(monkeypatch, interpreting=lambda: False)
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(RuntimeError, match=r"^decode: impl='triton' has no forward-mode derivative"):
        torch.func.jvp(lambda q: flashlib.decode(q, x, x, impl="triton"), (x,), (x,))


def test_decode_computes_bfloat16_in_float32_where_the_interpreter_cannot(monkeypatch):
    from flashlib.algorithms import triton_decode

    kernel, taken = triton_decode.split_kernel, []

    class Spy:
        def __getitem__(self, grid):
            return lambda q, *args, **options: taken.append(q.dtype) or kernel[grid](q, *args, **options)

    monkeypatch.setattr(triton_decode, "split_kernel", Spy())
    monkeypatch.setattr(triton_decode, "multiplies_bfloat16", lambda: False)
    x = draw(2, B=1, Hq=2, Hkv=1, Sq=1, Sk=9, D=8, library="torch", dtype="bfloat16", spread=1.0)
    o, lse = flashlib.decode(*x[:3], return_lse=True, impl="triton")
    Problem(*x[:3], causal=True).compare(o=o, lse=lse).raise_if_wrong()
    assert o.dtype == torch.bfloat16 and taken == [torch.float32]
