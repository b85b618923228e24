"""The front door: one-line errors that name what came and what was expected, and every mode torch has."""

import functools
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import flashlib
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw

OURS = ("reference", "naive", "tiled", "triton") if find_spec("triton") else ("reference", "naive", "tiled")


def x(B=1, H=2, S=5, D=4, dtype=torch.float32):
    return torch.randn(B, H, S, D, generator=torch.Generator().manual_seed(0)).to(dtype)


WRONG = {
    "not a tensor": (lambda: dict(q=[[1.0]], k=x(), v=x()), TypeError, ["q must be a torch.Tensor", "builtins.list"]),
    "numpy": (lambda: dict(q=x(), k=np.ones((1, 2, 5, 4)), v=x()), TypeError, ["k must be", "numpy.ndarray"]),
    "None": (lambda: dict(q=x(), k=x(), v=None), TypeError, ["v must be", "NoneType"]),
    "rank 3": (lambda: dict(q=x(), k=x()[0], v=x()), ValueError, ["k must have 4 dimensions", "(2, 5, 4)"]),
    "rank 5": (lambda: dict(q=x()[None], k=x(), v=x()), ValueError, ["(B, H, S, D)", "(1, 1, 2, 5, 4)"]),
    "batch": (lambda: dict(q=x(2), k=x(3), v=x(3)), ValueError, ["batch", "2, 3, 3"]),
    "D": (lambda: dict(q=x(D=4), k=x(D=6), v=x(D=6)), ValueError, ["D", "4 and 6"]),
    "Sk": (lambda: dict(q=x(), k=x(S=5), v=x(S=6)), ValueError, ["k and v", "(2, 5)", "(2, 6)"]),
    "KV heads": (lambda: dict(q=x(H=4), k=x(H=2), v=x(H=4)), ValueError, ["k and v", "(2, 5)", "(4, 5)"]),
    "15 Hq=33 Hkv=2": (lambda: dict(q=x(H=33), k=x(H=2), v=x(H=2)), ValueError, ["Hq=33", "Hkv=2"]),
    "no KV heads": (lambda: dict(q=x(H=2), k=x(H=0), v=x(H=0)), ValueError, ["Hq=2", "Hkv=0"]),
    "fewer Q heads": (lambda: dict(q=x(H=1), k=x(H=2), v=x(H=2)), ValueError, ["Hq=1", "Hkv=2"]),
    "D=0": (lambda: dict(q=x(D=0), k=x(D=0), v=x()), ValueError, ["at least 1", "0 and 4"]),
    "Dv=0": (lambda: dict(q=x(), k=x(), v=x(D=0)), ValueError, ["at least 1", "4 and 0"]),
    "22 mixed dtypes": (
        lambda: dict(q=x(dtype=torch.float16), k=x(), v=x()),
        TypeError,
        ["q float16", "k float32", "one dtype"],
    ),
    "23 integer": (lambda: {n: x(dtype=torch.int64) for n in "qkv"}, TypeError, ["float16, bfloat16", "q int64"]),
    "23 complex": (lambda: {n: x(dtype=torch.complex64) for n in "qkv"}, TypeError, ["q complex64"]),
    "26 two devices": (lambda: dict(q=x(), k=x().to("meta"), v=x()), ValueError, ["q on cpu", "k on meta"]),
    "scale NaN": (lambda: dict(q=x(), k=x(), v=x(), scale=float("nan")), ValueError, ["finite", "nan"]),
    "scale inf": (lambda: dict(q=x(), k=x(), v=x(), scale=float("inf")), ValueError, ["finite", "inf"]),
    "scale text": (lambda: dict(q=x(), k=x(), v=x(), scale="big"), ValueError, ["finite number", "'big'"]),
    "dropout 1": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=1.0), ValueError, ["[0, 1)", "1.0"]),
    "dropout -0.1": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=-0.1), ValueError, ["[0, 1)", "-0.1"]),
    "dropout NaN": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=float("nan")), ValueError, ["[0, 1)", "nan"]),
    "seed": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=0.1, seed=-1), ValueError, ["seed", "-1"]),
    "seed 2**64": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=0.1, seed=2**64), ValueError, ["seed", str(2**64)]),
    "seed 1.5": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=0.1, seed=1.5), ValueError, ["seed", "1.5"]),
    "impl": (lambda: dict(q=x(), k=x(), v=x(), impl="fast"), ValueError, ["reference, naive, tiled, triton", "'fast'"]),
    "meta": (lambda: {n: x().to("meta") for n in "qkv"}, ValueError, ["meta device"]),
    "sparse": (lambda: dict(q=x().to_sparse(), k=x(), v=x()), ValueError, ["q must be a dense", "sparse_coo"]),
    "causal mask": (lambda: dict(q=x(), k=x(), v=x(), causal=torch.ones(5, 5)), TypeError, ["causal", "(5, 5)"]),
    "causal text": (lambda: dict(q=x(), k=x(), v=x(), causal="no"), TypeError, ["causal", "builtins.str"]),
    "return_lse 1": (lambda: dict(q=x(), k=x(), v=x(), return_lse=1), TypeError, ["return_lse", "builtins.int"]),
    "impl array": (lambda: dict(q=x(), k=x(), v=x(), impl=np.ones(2)), ValueError, ["impl", "shape (2,)"]),
    "scale array": (lambda: dict(q=x(), k=x(), v=x(), scale=np.ones(2)), ValueError, ["scale", "shape (2,)"]),
    "scale tensor": (lambda: dict(q=x(), k=x(), v=x(), scale=torch.ones(3, 3)), ValueError, ["scale", "shape (3, 3)"]),
    "scale huge": (lambda: dict(q=x(), k=x(), v=x(), scale=10**400), ValueError, ["scale", "finite"]),
    "scale complex": (lambda: dict(q=x(), k=x(), v=x(), scale=np.complex128(0.5)), ValueError, ["scale", "complex128"]),
    "dropout array": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=np.ones(2)), ValueError, ["[0, 1)", "shape (2,)"]),
    "seed tensor": (
        lambda: dict(q=x(), k=x(), v=x(), dropout_p=0.1, seed=torch.tensor(1.5)),
        ValueError,
        ["seed", "Tensor"],
    ),
    "seed True": (lambda: dict(q=x(), k=x(), v=x(), dropout_p=0.1, seed=True), ValueError, ["seed", "True"]),
    "sdpa lse": (lambda: dict(q=x(), k=x(), v=x(), impl="sdpa", return_lse=True), ValueError, ["sdpa", "lse"]),
    "sdpa seed": (
        lambda: dict(q=x(), k=x(), v=x(), impl="sdpa", dropout_p=0.1, seed=1),
        ValueError,
        ["sdpa", "seed=None"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_in_one_line(name):
    make, error, parts = WRONG[name]
    with pytest.raises(error) as caught:
        flashlib.attention(**make())
    message = str(caught.value)
    assert "\n" not in message and message.startswith("attention: ")
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("impl", OURS)
def test_27_double_backward_is_refused_or_right(impl):
    q, k, v = (x(dtype=torch.float32 if impl == "triton" else torch.float64).requires_grad_() for _ in range(3))
    o = flashlib.attention(q, k, v, impl=impl, causal=True)
    (dq,) = torch.autograd.grad((o**2).sum(), q, create_graph=True)
    if impl == "naive":
        run = functools.partial(flashlib.attention, impl=impl, causal=True)
        assert torch.autograd.gradgradcheck(run, (q, k, v))
        return
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(dq.sum(), q)


@pytest.mark.parametrize("impl", OURS)
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_21_only_the_gradients_asked_for(impl, wanted):
    inputs = draw(3, library="torch", dtype="float32")
    tensors = [t.clone().requires_grad_(w) for t, w in zip(inputs[:3], wanted, strict=True)]
    flashlib.attention(*tensors, impl=impl, causal=True).backward(inputs.do)
    exact = Problem(*inputs[:3], inputs.do, causal=True)
    for name, t, w in zip(("dq", "dk", "dv"), tensors, wanted, strict=True):
        assert (t.grad is not None) == w
        if w:
            exact.compare(**{name: t.grad}).raise_if_wrong()


def test_21_products_of_gradients_not_asked_for_do_not_run():
    from torch.utils.flop_counter import FlopCounterMode

    inputs = draw(3, library="torch", dtype="float32")
    flops = {}
    for wanted in ((True, True, True), (True, False, False), (False, False, True)):
        tensors = [t.clone().requires_grad_(w) for t, w in zip(inputs[:3], wanted, strict=True)]
        o = flashlib.attention(*tensors, impl="tiled")
        with FlopCounterMode(display=False) as counter:
            o.backward(inputs.do)
        flops[wanted] = counter.get_total_flops()
    unit = flops[True, True, True] / 5  # S, dP, dQ, dK, dV: five products of equal size here (D = Dv)
    assert flops[True, False, False] == 3 * unit  # S, dP, dQ
    assert flops[False, False, True] == 2 * unit  # S, dV


@pytest.mark.parametrize("impl", OURS)
def test_only_lse_has_a_gradient(impl):
    inputs = draw(3, library="torch", dtype="float32" if impl == "triton" else "float64")
    q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
    _, lse = flashlib.attention(q, k, v, impl=impl, causal=True, return_lse=True)
    dlse = torch.randn_like(lse)
    lse.backward(dlse)
    Problem(q, k, v, None, dlse, causal=True).compare(dq=q.grad, dk=k.grad).raise_if_wrong()
    assert v.grad is None or not v.grad.any()


@pytest.mark.parametrize("impl", OURS[2:])
def test_saved_for_backward_is_linear_in_n(impl):
    inputs = draw(3, B=1, Hq=4, Hkv=2, Sq=64, Sk=80, D=8, Dv=6, library="torch", dtype="float16")
    q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        o, lse = flashlib.attention(q, k, v, impl=impl, return_lse=True)
    shapes = sorted(tuple(t.shape) for t in saved)
    assert shapes == sorted(tuple(t.shape) for t in (q, k, v, o, lse))


@pytest.mark.parametrize("impl", (*OURS, "sdpa"))
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_28_without_grad(impl, mode):
    inputs = draw(3, library="torch", dtype="float32")
    with mode():
        o = flashlib.attention(*inputs[:3], impl=impl, causal=True)
    assert not o.requires_grad
    Problem(*inputs[:3], causal=True).compare(o=o).raise_if_wrong()


@pytest.mark.parametrize("impl", OURS)
def test_28_compile_gives_the_same_bits(impl):
    inputs = draw(3, library="torch", dtype="float32")

    def run(attend):
        q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
        o, lse = attend(q, k, v, causal=True, impl=impl, return_lse=True)
        return o, lse, *torch.autograd.grad((o, lse), (q, k, v), (inputs.do, torch.ones_like(lse)))

    torch._dynamo.reset()
    compiled = torch.compile(flashlib.attention, backend="eager")
    for a, b in zip(run(flashlib.attention), run(compiled), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("impl", OURS)
def test_28_checkpoint_gives_the_same_bits(impl, dropout_p):
    from torch.utils.checkpoint import checkpoint

    inputs = draw(3, library="torch", dtype="float32")

    def run(through):
        torch.manual_seed(5)
        q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
        attend = functools.partial(flashlib.attention, causal=True, impl=impl, dropout_p=dropout_p)
        o = through(attend, q, k, v)
        return o, *torch.autograd.grad(o, (q, k, v), inputs.do)

    plain = run(lambda f, *a: f(*a))
    again = run(functools.partial(checkpoint, use_reentrant=False))
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("impl", (*OURS, "sdpa"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_22_autocast(impl, dtype):
    inputs = draw(3, library="torch", dtype="float32")
    q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
    q16 = q.detach().to(getattr(torch, dtype)).requires_grad_()  # mixed on purpose: autocast brings them together
    with torch.autocast("cpu", getattr(torch, dtype)):
        o = flashlib.attention(q16, k, v, impl=impl, causal=True)
    do = inputs.do.to(o.dtype)
    grads = torch.autograd.grad(o, (q16, k, v), do)
    rounded = [t.detach().to(o.dtype) for t in (q, k, v)]
    exact = Problem(*rounded, do, causal=True)
    exact.compare(o=o, dq=grads[0], dk=grads[1].to(o.dtype), dv=grads[2].to(o.dtype)).raise_if_wrong()
    assert o.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("impl", OURS)
def test_inputs_are_left_alone(impl):
    inputs = draw(3, library="torch", dtype="float32")
    inputs.v[0, 0, 3] = torch.nan
    before = [t.clone() for t in inputs]
    q, k, v = (t.requires_grad_() for t in inputs[:3])
    flashlib.attention(q, k, v, impl=impl, dropout_p=0.2, seed=1).backward(inputs.do)
    for a, b in zip(inputs, before, strict=True):
        assert torch.equal(a.detach().nan_to_num(7), b.nan_to_num(7))


@pytest.mark.parametrize("impl", OURS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_33_bit_identical_from_run_to_run(impl, dtype):
    inputs = draw(3, Sq=80, Sk=90, library="torch", dtype=dtype)

    def run():
        q, k, v = (t.clone().requires_grad_() for t in inputs[:3])
        o, lse = flashlib.attention(q, k, v, impl=impl, causal=True, dropout_p=0.1, seed=9, return_lse=True)
        return o, lse, *torch.autograd.grad((o, lse), (q, k, v), (inputs.do, torch.ones_like(lse)))

    for a, b in zip(run(), run(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("impl", ("naive", "tiled", "reference"))
def test_31_without_a_seed_torch_decides(impl):
    inputs = draw(3, library="torch", dtype="float32")

    def run(seed):
        torch.manual_seed(seed)
        return flashlib.attention(*inputs[:3], impl=impl, dropout_p=0.3)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("impl", (*OURS, "sdpa", "auto"))
def test_02_causal_is_aligned_to_the_bottom_right(impl):
    """With equal scores and one-hot values the output row is the mask row, divided by its number of ones."""
    q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4), torch.eye(5)[None, None]
    seen = flashlib.attention(q, k, v, causal=True, impl=impl)[0, 0] > 0
    assert seen.int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("impl", (*OURS, "sdpa"))
def test_an_output_changed_in_place_gives_the_right_gradient_or_torchs_own_error(impl):
    """tiled and sdpa need o in their backward, and say that it has been changed."""
    q = x().requires_grad_()
    right = torch.autograd.grad(flashlib.attention(q, q, q, impl=impl).sum(), q)[0]
    o = flashlib.attention(q, q, q, impl=impl)
    o += 1
    if impl in ("tiled", "triton", "sdpa"):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()
    else:
        assert torch.equal(torch.autograd.grad(o.sum(), q)[0], right)


@pytest.mark.parametrize("scale", [np.float32(0.5), np.array(0.5), torch.tensor(0.5), 1])
def test_a_scale_may_be_any_one_number(scale):
    a, b = (flashlib.attention(x(), x(), x(), scale=s) for s in (scale, float(scale)))
    assert torch.equal(a, b)


@pytest.mark.gpu
def test_26_second_gpu_and_tf32():
    if torch.cuda.device_count() == 0:
        pytest.skip("needs a CUDA GPU; none here")
    device = f"cuda:{torch.cuda.device_count() - 1}"
    for dtype in ("float32", "float16", "float64"):
        inputs = draw(3, library="torch", dtype=dtype)
        q, k, v, do = (t.to(device) for t in inputs)
        for impl in OURS:
            if impl == "triton" and dtype == "float64":
                continue
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            o, lse = flashlib.attention(*leaves, impl=impl, causal=True, return_lse=True)
            dq, dk, dv = torch.autograd.grad(o, leaves, do)
            Problem(q, k, v, do, causal=True).compare(o=o, lse=lse, dq=dq, dk=dk, dv=dv).raise_if_wrong()
