"""Kernels that test_compiled.py compiles: a tiled matmul, its helper, and one that takes no dot."""

import triton
import triton.language as tl

ZERO = tl.constexpr(0.0)
LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def tile_of(X, rows, cols, strides):
    return X + rows[:, None] * strides[0] + cols[None, :] * strides[1]


@triton.jit
def matmul(A, B, C, a_strides, b_strides, c_strides, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    """C = A B, one program a tile of M × N."""
    rows, cols = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    acc = tl.full([M, N], ZERO, tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        a = tl.load(tile_of(A, rows, ks, a_strides))
        acc = tl.dot(a, tl.load(tile_of(B, ks, cols, b_strides)), acc, input_precision="ieee")
    tl.store(tile_of(C, rows, cols, c_strides), acc.to(C.dtype.element_ty))


@triton.jit
def largest(X, O, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(O, tl.max(tl.load(X + i, mask=i < n, other=LOWEST), 0))


@triton.jit
def broken(X, n: tl.constexpr):
    tl.store(X + tl.arange(0, n), no_such_thing(n))  # noqa: F821
