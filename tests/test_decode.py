"""Decoding: equal to full attention for any number of splits, ragged lengths, empty parts, paged or not."""

import math

import pytest
import torch

import flashlib
from flashlib.algorithms.decode import merge_splits
from flashlib.algorithms.paged import PagedCache
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw

LENGTHS = torch.tensor([75, 0, 41, 1])
IMPLS = ["torch"]
try:
    import triton  # noqa: F401

    IMPLS.append("triton")
except ImportError:
    pass
each_impl = pytest.mark.parametrize("impl", IMPLS)


def prove(o, lse, q, k, v, lengths, **options):
    """Each sequence against the oracle on the keys that it holds."""
    for b, n in enumerate(lengths.tolist()):
        one = (q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        Problem(*one, causal=True, **options).compare(o=o[b : b + 1], lse=lse[b : b + 1]).raise_if_wrong()


@each_impl
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize("Sq", [1, 3])
def test_equals_full_attention(impl, dtype, splits, Sq, watched):
    x = draw(3, B=4, Hq=6, Hkv=2, Sq=Sq, Sk=75, D=20, Dv=9, dtype=dtype, library="torch", offset=30.0)
    if impl == "triton" and (dtype, Sq) != ("float32", 1):
        splits = min(splits, 9)  # interpreted programs are slow: one case takes all 64
    for scale in (None, -0.4, 0.0) if (dtype, splits) == ("float32", 3) else (None,):
        with watched(impl):
            o, lse = flashlib.decode(x.q, x.k, x.v, LENGTHS, scale=scale, splits=splits, return_lse=True, impl=impl)
        assert o.dtype == x.q.dtype and lse.dtype == torch.float32
        prove(o, lse, x.q, x.k, x.v, LENGTHS, scale=scale)


@pytest.fixture
def watched():
    """A context for each implementation: Triton's kernels run under the watch where they are interpreted."""
    from contextlib import nullcontext

    def context(impl):
        if impl != "triton" or torch.cuda.is_available():
            return nullcontext()
        from flashlib.instruments.interpreter import repair, watch

        repair()
        return watch()

    return context


@pytest.mark.parametrize("splits", [1, 4])
def test_float64_against_extended_precision(splits):
    x = draw(5, B=4, Hq=4, Hkv=4, Sq=2, Sk=75, D=12, dtype="float64", library="torch")
    prove(*flashlib.decode(x.q, x.k, x.v, LENGTHS, splits=splits, return_lse=True), x.q, x.k, x.v, LENGTHS)


@each_impl
def test_what_lies_beyond_the_length_is_never_used(impl, watched):
    """Case 8: garbage past a sequence's end; a NaN that is seen must show, in the rows that see it."""
    x = draw(7, B=2, Hq=2, Hkv=1, Sq=3, Sk=40, D=16, library="torch")
    k, v, lengths = x.k.clone(), x.v.clone(), torch.tensor([17, 40])
    k[0, :, 17:], v[0, :, 17:] = math.nan, math.inf
    v[1, 0, 38, 5] = math.nan  # seen by the last two rows of three
    for splits in (1, 5):
        with watched(impl):
            o, lse = flashlib.decode(x.q, k, v, lengths, splits=splits, return_lse=True, impl=impl)
        prove(o[:1], lse[:1], x.q[:1], x.k[:1], x.v[:1], lengths[:1])
        bad = o[1].isnan()
        assert bad[:, 1:, 5].all() and bad.sum() == 2 * 2 and not lse.isnan().any()


@each_impl
@pytest.mark.parametrize("shape", [(0, 2, 1, 5), (2, 0, 1, 5), (2, 2, 0, 5), (2, 2, 1, 0)])
def test_zero_sizes(impl, shape):
    B, H, Sq, S = shape
    o, lse = flashlib.decode(
        torch.ones(B, H, Sq, 8), torch.ones(B, H, S, 8), torch.ones(B, H, S, 4), splits=3, return_lse=True, impl=impl
    )
    assert o.shape == (B, H, Sq, 4) and not o.any() and (lse == -math.inf).all()


@each_impl
def test_strides_and_wide_heads(impl, watched):
    """Layouts (B, S, H, D) seen through a transpose, K and V of different strides, D = 80 and 256."""
    for D, Dv in ((80, 80), (256, 24)):
        x = draw(9, B=2, Hq=3, Hkv=3, Sq=1, Sk=50, D=D, Dv=Dv, library="torch")
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in x[:3])
        v = torch.cat([v, v], -1)[..., :Dv]
        lengths = torch.tensor([50, 33])
        with watched(impl):
            o, lse = flashlib.decode(q, k, v, lengths, splits=4, return_lse=True, impl=impl)
        prove(o, lse, q, k, v, lengths)


def test_gradients_flow_in_torch_and_are_refused_by_the_kernel():
    x = draw(2, B=1, Hq=4, Hkv=2, Sq=2, Sk=19, D=8, library="torch", spread=1.0)
    q, k, v = (t.clone().requires_grad_() for t in x[:3])
    grads = torch.autograd.grad(flashlib.decode(q, k, v, splits=3, impl="torch"), (q, k, v), x.do)
    Problem(*x, causal=True).compare(dq=grads[0], dk=grads[1], dv=grads[2]).raise_if_wrong()
    if "triton" in IMPLS:
        with pytest.raises(RuntimeError, match="no gradient"):
            flashlib.decode(q, k, v, impl="triton")


def test_merging_is_no_sum_of_lse():
    """Two halves of equal weight: L = lse + ln 2, o their mean. Adding the lse would give another number."""
    o, lse = merge_splits(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[5.0], [5.0]]))
    assert o.item() == 2.0 and math.isclose(lse.item(), 5 + math.log(2), rel_tol=2**-23)
    o, lse = merge_splits(torch.zeros(3, 1, 1), torch.full((3, 1), -math.inf))
    assert o.item() == 0 and lse.item() == -math.inf


@each_impl
def test_pages_give_what_a_plain_cache_gives(impl, watched):
    x = draw(4, B=3, Hq=4, Hkv=2, Sq=2, Sk=61, D=16, library="torch")
    lengths = torch.tensor([61, 20, 0])
    cache = PagedCache(3, 2, 16, pages=12, page=8)
    cache.k.fill_(math.nan), cache.v.fill_(math.nan)  # what is not written must not show
    for step in range(0, 61, 7):  # sequences grow in turns, so that their pages are mixed
        for b, n in enumerate(lengths.tolist()):
            end = min(step + 7, n)
            if step < end:
                cache.append(b, x.k[b, :, step:end], x.v[b, :, step:end])
    assert cache.lengths.tolist() == lengths.tolist() and len(cache.free) == 12 - 8 - 3
    with watched(impl):
        o, lse = cache.attend(x.q, splits=3, impl=impl)
    prove(o, lse, x.q, x.k, x.v, lengths)
    cache.release(0)
    assert len(cache.free) == 9 and cache.lengths.tolist() == [0, 20, 0]


def test_a_full_pool_is_refused_and_nothing_is_written():
    cache = PagedCache(1, 1, 4, pages=2, page=4)
    with pytest.raises(MemoryError, match="needs 3 more pages, the pool has 2 free"):
        cache.append(0, torch.ones(1, 9, 4), torch.ones(1, 9, 4))
    assert cache.lengths.tolist() == [0] and len(cache.free) == 2


Q, KV = torch.ones(2, 4, 1, 8), torch.ones(2, 2, 5, 8)
WRONG = {
    "float lengths": (lambda: flashlib.decode(Q, KV, KV, torch.ones(2)), TypeError, ["integers", "(2,)"]),
    "too long": (lambda: flashlib.decode(Q, KV, KV, torch.tensor([5, 6])), ValueError, ["[0, 5]", "6"]),
    "negative": (lambda: flashlib.decode(Q, KV, KV, torch.tensor([-1, 5])), ValueError, ["[0, 5]", "-1"]),
    "shape": (lambda: flashlib.decode(Q, KV, KV, torch.tensor([5])), ValueError, ["(2,)", "(1,)"]),
    "splits": (lambda: flashlib.decode(Q, KV, KV, splits=0), ValueError, ["positive", "0"]),
    "impl": (lambda: flashlib.decode(Q, KV, KV, impl="naive"), ValueError, ["auto, torch, triton", "naive"]),
    "heads": (lambda: flashlib.decode(Q[:, :3], KV, KV), ValueError, ["Hq=3", "Hkv=2"]),
    "dtype": (lambda: flashlib.decode(Q.half(), KV, KV), TypeError, ["q float16", "k float32"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_line_that_names_what_came(name):
    call, error, parts = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.startswith("decode: ") and "\n" not in message and all(p in message for p in parts), message
