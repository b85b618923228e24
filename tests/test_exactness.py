"""Every implementation answers every case, forward, lse and gradients, in every dtype, by the error budget."""

import contextlib
import functools
import warnings
from importlib.util import find_spec

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

from cases import CASES, Case
from flashlib.algorithms import api, naive, online, reference, tiled
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import Inputs, draw

DTYPES = ("float64", "float32", "float16", "bfloat16")


def tiles_of(block_q, block_k):
    return functools.partial(tiled.attention, block_q=block_q, block_k=block_k)


# (o, lse) from q, k, v and options; tile sizes that divide nothing, tiles of one row, tiles larger than the matrix
TORCH = {
    "reference": functools.partial(api.attention, impl="reference", return_lse=True),
    "naive": functools.partial(api.attention, impl="naive", return_lse=True),
    "tiled": functools.partial(api.attention, impl="tiled", return_lse=True),
    "tiled 16x16": tiles_of(16, 16),
    "tiled 7x13": tiles_of(7, 13),
    "tiled 1x3": tiles_of(1, 3),
    "triton": functools.partial(api.attention, impl="triton", return_lse=True),
    "sdpa": lambda q, k, v, **options: (api.attention(q, k, v, impl="sdpa", **options), None),
}
CANNOT = {  # what PyTorch's own kernel does not promise; ours do
    ("sdpa", "08"): "PyTorch's SDPA lets a NaN in a masked key or value through",
    ("sdpa", "31"): "PyTorch's SDPA draws its dropout mask from its own generator",
}


def lacking(implementation: str, name: str, dtype: str) -> str | None:
    """Why this implementation does not answer this case in this dtype; None if it must."""
    if implementation == "triton":
        if find_spec("triton") is None:
            return "triton is not installed here"
        if dtype == "float64":
            return "the Triton kernels refuse float64 by name"
        if name.startswith("17") and not torch.cuda.is_available():
            return "65 537 programs take the interpreter minutes; a grid of one axis is tested on a GPU"
    return None if "dropout 0 " in name else CANNOT.get((implementation, name[:2]))


def answers(attend, case: Case) -> dict[str, torch.Tensor]:
    """o, lse, dq, dk, dv; the loss also has a gradient with respect to lse where there is one."""
    x, options = case
    q, k, v = (t.detach().requires_grad_() for t in x[:3])
    with watched(attend):
        o, lse = attend(q, k, v, **options)
        outputs = (o,) if lse is None else (o, lse)
        dq, dk, dv = torch.autograd.grad(outputs, (q, k, v), gradient_of(case, lse is not None))
    out = {"o": o, "dq": dq, "dk": dk, "dv": dv}
    return out if lse is None else out | {"lse": lse}


def watched(attend):
    """Kernels run under the interpreter's watch: out of bounds, races, outputs not written, overflow of offsets."""
    if attend is not TORCH["triton"] or torch.cuda.is_available():
        return contextlib.nullcontext()
    from flashlib.instruments.interpreter import watch

    return watch()


def gradient_of(case: Case, with_lse: bool) -> tuple[torch.Tensor, ...]:
    if not with_lse:
        return (case.inputs.do,)
    x = case.inputs
    dlse = torch.linspace(-1, 1, x.q[..., 0].numel(), dtype=torch.float64).reshape(x.q.shape[:3])
    return x.do, dlse.to(torch.float64 if x.q.dtype == torch.float64 else torch.float32)


@functools.lru_cache(maxsize=4)
def problem(name: str, dtype: str, with_lse: bool) -> tuple[Case, Problem]:
    case = CASES[name](dtype)
    q, k, v, _ = case.inputs
    return case, Problem(q, k, v, *gradient_of(case, with_lse), **case.options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("implementation", TORCH)
def test_case(implementation, name, dtype):
    if reason := lacking(implementation, name, dtype):
        pytest.skip(reason)
    case, exact = problem(name, dtype, implementation != "sdpa")
    if implementation == "sdpa" and "seed" in case.options:
        case = case._replace(options={k: v for k, v in case.options.items() if k != "seed"})
    got = answers(TORCH[implementation], case)
    if implementation == "naive" and name.startswith("08"):
        # autograd multiplies 0 by NaN on its way back; the tiled backward is written so that it does not
        got = {"o": got["o"], "lse": got["lse"]}
    exact.compare(**got).raise_if_wrong()
    for result, value in got.items():
        assert value.dtype == (getattr(torch, dtype) if result != "lse" else lse_dtype(dtype)), result


def lse_dtype(dtype: str) -> torch.dtype:
    return torch.float64 if dtype == "float64" else torch.float32


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("31 dropout")])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("implementation", ["online, blocks of 1", "online, blocks of 13", "four steps"])
def test_numpy_case(implementation, dtype, name):
    """The NumPy chapters' own functions, forward and lse, with equal head counts."""
    case, _ = problem(name, dtype, True)
    q, k, v = (x.numpy() for x in case.inputs[:3])
    if name.startswith("08") and implementation == "four steps":
        pytest.skip("the four steps as chapter 01 writes them let 0·NaN through, and it says so")
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    options = {key: case.options[key] for key in ("causal", "scale") if key in case.options}
    if implementation == "four steps":
        steps = naive.four_steps(q, k, v, **options)
        o, lse = steps.o, steps.lse
    else:
        o, lse = online.stream(q, k, v, block=int(implementation.split()[-1]), **options)
    Problem(q, k, v, **options).compare(o=o, lse=lse).raise_if_wrong()
    assert o.dtype == lse.dtype == q.dtype


sizes = st.integers(0, 40)


@st.composite
def problems(draw_one):
    """Any sizes, any strides, any options."""
    Hkv, group = draw_one(st.integers(1, 3)), draw_one(st.integers(1, 3))
    options = {"causal": draw_one(st.booleans())}
    if draw_one(st.booleans()):
        options["scale"] = draw_one(st.floats(-2, 2))
    if draw_one(st.booleans()):
        options |= {"dropout_p": draw_one(st.sampled_from([0.1, 0.5])), "seed": draw_one(st.integers(0, 2**64 - 1))}
    x = draw(
        draw_one(st.integers(0, 2**32 - 1)),
        B=draw_one(st.integers(0, 2)),
        Hq=Hkv * group,
        Hkv=Hkv,
        Sq=draw_one(sizes),
        Sk=draw_one(sizes),
        D=draw_one(st.integers(1, 20)),
        Dv=draw_one(st.integers(1, 20)),
        dtype=draw_one(st.sampled_from(DTYPES)),
        library="torch",
        spread=draw_one(st.sampled_from([1.0, 5.0, 12.0])),
    )
    layouts = st.permutations(range(4))

    def lay_out(t):
        order = draw_one(layouts)
        return t.permute(order).contiguous().permute(np.argsort(order).tolist())

    return Case(Inputs(*map(lay_out, x)), options)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False, print_blob=True)
@given(problems(), st.integers(1, 45), st.integers(1, 45))
@example(Case(draw(0, Sq=5, Sk=2, library="torch"), {"causal": True}), 2, 1)
def test_any_shape_stride_dtype_and_option(case, block_q, block_k):
    q, k, v, _ = case.inputs
    exact = Problem(q, k, v, *gradient_of(case, True), **case.options)
    for attend in (TORCH["naive"], tiles_of(block_q, block_k)):
        exact.compare(**answers(attend, case)).raise_if_wrong()


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed here")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(problems())
def test_any_shape_stride_dtype_and_option_in_triton(case):
    q, k, v, _ = case.inputs
    if q.dtype == torch.float64:
        case = case._replace(inputs=Inputs(*(t.float() for t in case.inputs)))
        q, k, v, _ = case.inputs
    exact = Problem(q, k, v, *gradient_of(case, True), **case.options)
    exact.compare(**answers(TORCH["triton"], case)).raise_if_wrong()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_gradcheck(causal, dropout_p):
    x = draw(4, B=1, Hq=4, Hkv=2, Sq=5, Sk=7, D=3, Dv=2, dtype="float64", library="torch", spread=1.0)
    q, k, v = (t.requires_grad_() for t in x[:3])
    attend = functools.partial(tiles_of(2, 3), causal=causal, scale=0.5, dropout_p=dropout_p, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.autograd.gradcheck(attend, (q, k, v))


def test_reference_gradients_are_those_of_finite_differences():
    """The oracle itself, against central differences in extended precision: no autograd, no shared formula."""
    x = draw(8, B=1, Hq=2, Hkv=1, Sq=3, Sk=4, D=2, Dv=3, dtype="float64", spread=1.0)
    dlse = np.array([[[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]])
    exact = reference.gradients(*x, dlse=dlse, causal=True)
    h = 1e-5

    def loss(q, k, v):
        out = reference.attention(q, k, v, causal=True)
        return (out.o * x.do).sum() + (out.lse * dlse).sum()

    for n, (array, gradient) in enumerate(zip(x[:3], exact[:3], strict=True)):
        for index in np.ndindex(array.shape):
            inputs = [a.copy() for a in x[:3]]
            inputs[n][index] += h
            up = loss(*inputs)
            inputs[n][index] -= 2 * h
            slope = (up - loss(*inputs)) / (2 * h)
            # truncation h²·f‴/6 with f‴ of the size of the loss's own numbers, and cancellation u·|loss|/h
            bound = h**2 * np.abs(gradient).max() * 100 + 2.0**-53 * abs(up) / h * 4
            assert abs(slope - gradient[index]) <= bound, (n, index)


def test_tiled_under_torch_func():
    """torch.func.grad works; what does not is said in one line."""
    q, k, v, do = draw(2, B=1, Hq=2, Hkv=1, Sq=5, Sk=6, D=4, dtype="float64", library="torch", spread=1.0)

    def loss(q):
        return (api.attention(q, k, v, impl="tiled") * do).sum()

    leaf = q.clone().requires_grad_()
    assert torch.equal(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])
    line = r"^attention: impl='tiled' [^\n]* impl='naive'$"
    with pytest.raises(RuntimeError, match=line):
        torch.func.jvp(loss, (q,), (q,))
    with pytest.raises(RuntimeError, match=line):
        torch.func.vmap(loss)(q[None])
    with pytest.raises(RuntimeError, match=r"^attention: [^\n]*no second derivative[^\n]*$"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(q)
