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
def load_next(X, strides, start, cols, n_rows, n_cols: tl.constexpr, LENGTH: tl.constexpr, RAGGED: tl.constexpr):
    """The tile X[start : start + LENGTH, cols] of a stream of tiles; where it is not ``RAGGED``, all its rows exist.

    Only a pointer moves with ``start``: the offsets inside the tile are the same in every turn of the loop.
    """
    rows = tl.arange(0, LENGTH)
    X += tl.cast(start, tl.int64) * strides[2]
    if RAGGED:
        return load_tile(X, strides, rows, cols, n_rows - start, n_cols)
    at = rows[:, None].to(tl.int64) * strides[2] + cols[None, :].to(tl.int64) * strides[3]
    if cols.shape[0] == n_cols:
        return tl.load(X + at)
    return tl.load(X + at, mask=cols[None, :] < n_cols, other=0.0)


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
def spoiled(acc):
    """As `has_bad`, for a sum of dots. Flat: an accumulator of sm100 cannot be reduced along one axis, then another."""
    return tl.sum(acc * 0.0) != 0.0


@triton.jit
def first_bad_row(x, rows, n_rows):
    """For each column of a tile, the first row that holds a NaN or inf; n_rows if none does."""
    return tl.min(tl.where(finite(x), n_rows, rows[:, None]), 0)


@triton.jit
def last_bad_row(x, rows):
    """For each column of a tile, the last row that holds a NaN or inf; −1 if none does."""
    return tl.max(tl.where(finite(x), -1, rows[:, None]), 0)


@triton.jit
def kept(seed, threshold, b, h, rows, cols):
    """Dropout's decision for each place of a tile: Philox of (col, row, head, batch), as in `philox.keep`.

    rows and cols lie across one another, as rows[:, None] and cols[None, :], or the other way round.
    """
    row, col = rows + 0 * cols, cols + 0 * rows
    word, _, _, _ = tl.philox(seed, col, row, h + 0 * row, b + 0 * row)
    return word.to(tl.uint32, bitcast=True) >= threshold


@triton.jit
def locate(X, strides, b, h):
    """Pointer to the matrix of batch b and head h; 64-bit offsets."""
    return X + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
