"""Right answers to chapter 06, each written in another way; the grader must accept all of them."""

from functools import partial

import torch
import triton
import triton.language as tl


# -- 06.1 ------------------------------------------------------------------------------------------------------------
@triton.jit
def broadcast_copy(X, OUT, x_strides, out_strides, n_rows, n_cols, BLOCK: tl.constexpr):
    across = tl.cdiv(n_cols, BLOCK)
    i, j = tl.program_id(0) // across, tl.program_id(0) % across
    rows = (i * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    cols = (j * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
    inside = (rows < n_rows) & (cols < n_cols)
    x = tl.load(X + rows * x_strides[0] + cols * x_strides[1], mask=inside, other=0.0)
    tl.store(OUT + rows * out_strides[0] + cols * out_strides[1], x, mask=inside)


@triton.jit
def flat_copy(X, OUT, x_strides, out_strides, n_rows, n_cols, BLOCK: tl.constexpr):
    """One axis of BLOCK² lanes; lanes that are off hold whatever they hold, since they are never stored."""
    across = tl.cdiv(n_cols, BLOCK)
    lane = tl.arange(0, BLOCK * BLOCK)
    row = tl.program_id(0) // across * BLOCK + lane // BLOCK
    col = tl.program_id(0) % across * BLOCK + lane % BLOCK
    inside = (row < n_rows) & (col < n_cols)
    x = tl.load(X + row * x_strides[0] + col * x_strides[1], mask=inside)
    tl.store(OUT + row * out_strides[0] + col * out_strides[1], x, mask=inside)


@triton.jit
def copy_by_rows(X, OUT, x_strides, out_strides, n_rows, n_cols, BLOCK: tl.constexpr):
    """A loop over the tile's rows, which ends where the matrix does."""
    across = tl.cdiv(n_cols, BLOCK)
    first = tl.program_id(0) // across * BLOCK
    cols = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    for row in tl.range(first, tl.minimum(first + BLOCK, n_rows)):
        x = tl.load(X + row * x_strides[0] + cols * x_strides[1], mask=cols < n_cols, other=1.0)
        tl.store(OUT + row * out_strides[0] + cols * out_strides[1], x, mask=cols < n_cols)


@triton.jit
def copy_by_columns(X, OUT, x_strides, out_strides, n_rows, n_cols, BLOCK: tl.constexpr):
    """Tiles dealt out column by column instead: every tile still has one program."""
    down = tl.cdiv(n_rows, BLOCK)
    rows = tl.program_id(0) % down * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(0) // down * BLOCK + tl.arange(0, BLOCK)
    inside = (cols[:, None] < n_cols) & (rows[None, :] < n_rows)  # the tile lies on its side
    x = tl.load(X + cols[:, None] * x_strides[1] + rows[None, :] * x_strides[0], mask=inside, other=0.0)
    tl.store(OUT + cols[:, None] * out_strides[1] + rows[None, :] * out_strides[0], x, mask=inside)


def copy_matrix(x, by_columns=False, block=16, *, kernel):
    n_rows, n_cols = x.shape
    out = torch.empty(n_cols, n_rows, dtype=x.dtype).t() if by_columns else torch.empty(n_rows, n_cols, dtype=x.dtype)
    grid = (triton.cdiv(n_rows, block) * triton.cdiv(n_cols, block),)
    kernel[grid](x, out, x.stride(), out.stride(), n_rows, n_cols, BLOCK=block)
    return out


# -- 06.2 ------------------------------------------------------------------------------------------------------------
@triton.jit
def two_guards(X, OUT, x_strides, out_strides, n_cols, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK).to(tl.int64)
    inside = cols < n_cols
    s = tl.load(X + row * x_strides[0] + cols * x_strides[1], mask=inside, other=float("-inf")).to(tl.float32)
    m = tl.max(s, 0)
    e = tl.exp(s - tl.where(m == float("-inf"), 0.0, m))
    l = tl.sum(e, 0)
    tl.store(OUT + row * out_strides[0] + cols * out_strides[1], e / tl.where(l == 0.0, 1.0, l), mask=inside)


@triton.jit
def base_2(X, OUT, x_strides, out_strides, n_cols, BLOCK: tl.constexpr):
    """exp2, the mask applied after a load that fills in 0, and a reciprocal instead of a division."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    s = tl.load(X + row * x_strides[0] + cols * x_strides[1], mask=cols < n_cols, other=0.0).to(tl.float32)
    s = tl.where(cols < n_cols, s * 1.4426950408889634, float("-inf"))
    m = tl.maximum(tl.max(s), -3.0e38)  # finite even where all scores are −∞
    e = tl.exp2(s - m)
    l = tl.sum(e)
    tl.store(OUT + row * out_strides[0] + cols * out_strides[1], e * (1.0 / tl.maximum(l, 1e-30)), mask=cols < n_cols)


@triton.jit
def by_lse(X, OUT, x_strides, out_strides, n_cols, BLOCK: tl.constexpr):
    """exp(s − lse): the logarithm of the sum is subtracted, nothing is divided."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside = cols < n_cols
    s = tl.load(X + row * x_strides[0] + cols * x_strides[1], mask=inside, other=float("-inf")).to(tl.float32)
    m = tl.max(s)
    if m == float("-inf"):
        p = tl.zeros([BLOCK], tl.float32)
    else:
        p = tl.exp(s - m - tl.log(tl.sum(tl.exp(s - m))))
    tl.store(OUT + row * out_strides[0] + cols * out_strides[1], p, mask=inside)


@triton.jit
def two_dimensions(X, OUT, x_strides, out_strides, n_cols, BLOCK: tl.constexpr):
    """The row as a matrix with one row; the weights of hidden lanes are set to 0 by hand."""
    rows, cols = tl.program_id(0) + tl.arange(0, 1), tl.arange(0, BLOCK)
    inside = (cols[None, :] < n_cols) & (rows[:, None] >= 0)
    s = tl.load(X + rows[:, None] * x_strides[0] + cols[None, :] * x_strides[1], mask=inside, other=-1e38)
    s = s.to(tl.float32)
    seen = inside & (s > float("-inf"))
    m = tl.max(tl.where(seen, s, -1e38), 1)
    e = tl.where(seen, tl.exp(s - m[:, None]), 0.0)
    l = tl.sum(e, 1)
    p = tl.where(l[:, None] > 0, e / l[:, None], 0.0)
    tl.store(OUT + rows[:, None] * out_strides[0] + cols[None, :] * out_strides[1], p, mask=inside)


def softmax_rows(x, *, kernel):
    R, C = x.shape
    out = torch.empty(R, C, dtype=x.dtype)
    kernel[(R,)](x, out, x.stride(), out.stride(), C, BLOCK=triton.next_power_of_2(C))
    return out


# -- 06.3 ------------------------------------------------------------------------------------------------------------
@triton.jit
def product_kernel(
    A, B, C, a_strides, b_strides, c_strides, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BLOCK_N)
    i, j = tl.program_id(0) // across, tl.program_id(0) % across
    rows, cols = i * BLOCK_M + tl.arange(0, BLOCK_M), j * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    turns = tl.cdiv(K, BLOCK_K)
    for t in tl.range(0, turns):
        if WAY == "backwards":
            ks = (turns - 1 - t) * BLOCK_K + tl.arange(0, BLOCK_K)
        else:
            ks = t * BLOCK_K + tl.arange(0, BLOCK_K)
        a_at = A + rows[:, None] * a_strides[0] + ks[None, :] * a_strides[1]
        a = tl.load(a_at, mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        if WAY == "b loaded on its side":
            b_at = B + ks[:, None] * b_strides[1] + cols[None, :] * b_strides[0]
            b = tl.load(b_at, mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
        else:
            b_at = B + cols[:, None] * b_strides[0] + ks[None, :] * b_strides[1]
            b = tl.trans(tl.load(b_at, mask=(cols[:, None] < N) & (ks[None, :] < K), other=0.0))
        if WAY == "added outside the dot":
            acc += tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
        elif WAY == "C on its side":
            acc += tl.trans(tl.dot(tl.trans(b), tl.trans(a), input_precision="ieee"))
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    c_at = C + rows[:, None] * c_strides[0] + cols[None, :] * c_strides[1]
    tl.store(c_at, acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


def product(a, b, block=(16, 16, 16), *, way):
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty(M, N, dtype=torch.float32)
    grid = (triton.cdiv(M, block[0]) * triton.cdiv(N, block[1]),)
    product_kernel[grid](a, b, c, a.stride(), b.stride(), c.stride(), M, N, K, *block, WAY=way)
    return c


RIGHT = {
    "06.1": {
        "the course's": partial(copy_matrix, kernel=broadcast_copy),
        "flat lanes, no other=": partial(copy_matrix, kernel=flat_copy),
        "a loop over rows": partial(copy_matrix, kernel=copy_by_rows),
        "tiles numbered down": partial(copy_matrix, kernel=copy_by_columns),
    },
    "06.2": {
        "the course's": partial(softmax_rows, kernel=two_guards),
        "base 2": partial(softmax_rows, kernel=base_2),
        "by the lse": partial(softmax_rows, kernel=by_lse),
        "as a matrix": partial(softmax_rows, kernel=two_dimensions),
    },
    "06.3": {
        way: partial(product, way=way)
        for way in ("the course's", "backwards", "b loaded on its side", "added outside the dot", "C on its side")
    },
}
