"""Decoding on inputs chosen to break it, and the bytes of its kernels against the formula."""

import math

import pytest
import torch

import flashlib
from flashlib.algorithms.decode_bytes import decode_bytes
from flashlib.algorithms.paged import PagedCache
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw
from tests.test_decode import IMPLS, each_impl, prove, watched  # noqa: F401


def both(impl, watched, q, k, v, lengths, splits=(1, 5), **options):  # noqa: F811
    for n in splits:
        with watched(impl):
            o, lse = flashlib.decode(q, k, v, lengths, splits=n, return_lse=True, impl=impl, **options)
        prove(o, lse, q, k, v, lengths, **options)


def test_every_number_of_splits_from_1_to_64():
    x = draw(11, B=3, Hq=4, Hkv=2, Sq=2, Sk=75, D=12, library="torch")
    lengths = torch.tensor([75, 0, 40])
    one = [Problem(x.q[b:][:1], x.k[b:][:1, :, :n], x.v[b:][:1, :, :n], causal=True) for b, n in enumerate(lengths)]
    for splits in range(1, 65):
        o, lse = flashlib.decode(*x[:3], lengths, splits=splits, return_lse=True)
        for b, problem in enumerate(one):
            problem.compare(o=o[b : b + 1], lse=lse[b : b + 1]).raise_if_wrong()


@each_impl
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scores_of_ten_thousand(impl, dtype, watched):  # noqa: F811
    x = draw(1, B=2, Hq=4, Hkv=2, Sq=1, Sk=70, D=16, library="torch", dtype=dtype, spread=1.0)
    s = (x.q.double() @ x.k.double().repeat_interleave(2, 1).mT).abs().max().item()
    both(impl, watched, *x[:3], torch.tensor([70, 33]), scale=1e4 / s)
    both(impl, watched, *x[:3], torch.tensor([70, 33]), scale=-1e4 / s)


@each_impl
def test_scores_of_minus_infinity(impl, watched):  # noqa: F811
    """Keys of −∞ against positive queries weigh nothing; where all keys are such, the row has seen nothing."""
    x = draw(2, B=2, Hq=2, Hkv=1, Sq=1, Sk=40, D=8, library="torch")
    q, k = x.q.abs(), x.k.clone()
    k[0, :, 3:30], k[1] = -math.inf, -math.inf
    both(impl, watched, q, k, x.v, torch.tensor([40, 12]), splits=(1, 4, 40))


@each_impl
def test_more_queries_than_keys(impl, watched):  # noqa: F811
    x = draw(3, B=3, Hq=6, Hkv=2, Sq=23, Sk=9, D=8, library="torch")
    both(impl, watched, *x[:3], torch.tensor([9, 2, 0]))  # 69 rows a KV head: two tiles of rows


@each_impl
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_lengths_of_any_integer_type_and_stride(impl, dtype, watched):  # noqa: F811
    x = draw(4, B=3, Hq=2, Hkv=1, Sq=3, Sk=20, D=8, library="torch")
    lengths = torch.tensor([20, 99, 1, 99, 12, 99], dtype=dtype)[::2]
    assert lengths.stride() == (2,)
    both(impl, watched, *x[:3], lengths)


@each_impl
def test_expanded_and_odd_strides(impl, watched):  # noqa: F811
    """K and V with stride 0 over batch, heads or keys; a last axis that is not contiguous; huge ones of lone axes."""
    x = draw(5, B=1, Hq=4, Hkv=1, Sq=1, Sk=21, D=8, library="torch")
    q, lengths = x.q.expand(2, 4, 1, 8), torch.tensor([21, 8])
    both(impl, watched, q, x.k.expand(2, 2, 21, 8), x.v.expand(2, 2, 21, 8), lengths)
    both(impl, watched, q, x.k[:, :, :1].expand(2, 1, 21, 8), x.v.expand(2, 1, 21, 8), lengths)
    wide = torch.stack([x.k, x.v], -1).expand(2, 1, 21, 8, 2)
    both(impl, watched, q, wide[..., 0], wide[..., 1], lengths)
    k, v = (t.as_strided(t.shape, (2**40, 2**36, 8, 1)) for t in x[1:3])
    both(impl, watched, x.q, k, v, lengths[:1])


@each_impl
def test_a_nan_spoils_the_rows_that_see_it_and_no_other(impl, watched):  # noqa: F811
    x = draw(6, B=2, Hq=2, Hkv=2, Sq=3, Sk=30, D=8, library="torch")
    q, k = x.q.clone(), x.k.clone()
    q[0, 0, 1, 2] = math.nan  # one row
    k[1, 1, 29, 0] = math.nan  # the last key: seen by the last row of one head
    for splits in (1, 4):
        with watched(impl):
            o, lse = flashlib.decode(q, k, x.v, splits=splits, return_lse=True, impl=impl)
        bad = o.isnan().any(-1)
        assert bad.sum() == 2 and bad[0, 0, 1] and bad[1, 1, 2]
        assert torch.equal(lse.isnan(), bad)


@each_impl
def test_random_shapes(impl, watched):  # noqa: F811
    generator = torch.Generator().manual_seed(8)
    for seed in range(12 if impl == "torch" else 4):
        B, Hkv, G, Sq, S, D, Dv, splits = (
            int(torch.randint(lo, hi, (1,), generator=generator))
            for lo, hi in ((1, 4), (1, 4), (1, 8), (1, 6), (1, 90), (1, 40), (1, 40), (1, 70))
        )
        x = draw(seed, B=B, Hq=G * Hkv, Hkv=Hkv, Sq=Sq, Sk=S, D=D, Dv=Dv, library="torch")
        both(impl, watched, *x[:3], torch.randint(0, S + 1, (B,), generator=generator), splits=(splits,))


@pytest.mark.skipif(torch.cuda.is_available(), reason="bytes are counted by the interpreter: hide the GPU")
@pytest.mark.skipif("triton" not in IMPLS, reason="needs triton")
@pytest.mark.parametrize(
    ("dtype", "Sq", "block_r", "splits"), [("float16", 1, 16, (1, 3, 40)), ("float32", 9, 64, (2,))]
)
def test_bytes_are_those_of_the_formula(dtype, Sq, block_r, splits):
    from flashlib.algorithms.decode_tiles import choose
    from flashlib.instruments.interpreter import repair, watch

    repair()
    lengths = [35, 0, 20]
    x = draw(3, B=3, Hq=8, Hkv=2, Sq=Sq, Sk=35, D=20, Dv=9, dtype=dtype, library="torch")
    cache = PagedCache(3, 2, 20, 9, pages=5, page=16, dtype=x.k.dtype)
    for b, n in enumerate(lengths):
        cache.append(b, x.k[b, :, :n], x.v[b, :, :n])
    assert choose(x.q, x.v, 4 * Sq).block_m == block_r
    for n in splits:
        sizes = {"itemsize": x.q.element_size(), "splits": n, "block_r": block_r}
        with watch() as w:
            flashlib.decode(*x[:3], torch.tensor(lengths), splits=n, impl="triton")
        assert (w.report().read, w.report().written) == decode_bytes(lengths, 8, 2, Sq, 20, 9, **sizes)
        with watch() as w:
            cache.attend(x.q, splits=n, impl="triton")
        assert (w.report().read, w.report().written) == decode_bytes(lengths, 8, 2, Sq, 20, 9, paged=True, **sizes)
