"""What the Triton kernels share: a tile in and out of memory, what is finite, what dropout keeps."""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def load_tile(X, strides, rows, cols, n_rows, n_cols):
    """The tile X[rows, cols]; what lies past the edge is 0. Offsets in 64 bits: a tensor may pass 2³¹ elements."""
    at = rows[:, None].to(tl.int64) * strides[2] + cols[None, :].to(tl.int64) * strides[3]
    return tl.load(X + at, mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols), other=0.0)


@triton.jit
def store_tile(X, strides, rows, cols, n_rows, n_cols, tile):
    """Write the tile to X[rows, cols], rounded to X's dtype; nothing past the edge."""
    at = rows[:, None].to(tl.int64) * strides[2] + cols[None, :].to(tl.int64) * strides[3]
    mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    tl.store(X + at, tile.to(X.dtype.element_ty), mask=mask)


@triton.jit
def finite(x):
    """True where x is neither NaN nor infinite."""
    return tl.abs(x) < INFINITY


@triton.jit
def has_bad(x):
    """Whether a tile holds a NaN or inf: 0 · x is 0 for all other numbers. One scalar, so that a branch can skip."""
    return tl.sum(tl.sum(x.to(tl.float32) * 0.0, 0), 0) != 0.0


@triton.jit
def first_bad_row(x, rows, n_rows):
    """For each column of a tile, the first row that holds a NaN or inf; n_rows if none does."""
    return tl.min(tl.where(finite(x), n_rows, rows[:, None]), 0)


@triton.jit
def kept(seed, threshold, b, h, rows, cols):
    """Dropout's decision for each place of a tile: Philox of (col, row, head, batch), as in `philox.keep`."""
    col, row = cols[None, :] + 0 * rows[:, None], rows[:, None] + 0 * cols[None, :]
    word, _, _, _ = tl.philox(seed, col, row, h + 0 * row, b + 0 * row)
    return word.to(tl.uint32, bitcast=True) >= threshold


@triton.jit
def last_bad_row(x, rows):
    """For each column of a tile, the last row that holds a NaN or inf; −1 if none does."""
    return tl.max(tl.where(finite(x), -1, rows[:, None]), 0)


@triton.jit
def locate(X, strides, b, h):
    """Pointer to the matrix of batch b and head h; 64-bit offsets."""
    return X + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
