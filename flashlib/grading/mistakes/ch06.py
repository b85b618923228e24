"""Known mistakes of chapter 06. Each kernel is right but for what ``BUG`` names. Imports triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from flashlib.grading import harness
from flashlib.grading.case import Case, Finding, Mistake, Outcome


def same_words(wrong: Callable[..., Any]) -> Callable[[Case, Outcome, Finding], bool]:
    """Fits a fault of the watch only if it is told in the same words: same tensor, same element, same distance."""

    def fits(case: Case, got: Outcome, finding: Finding) -> bool:
        made = harness.run(wrong, case)
        return got.trouble is not None and made.trouble is not None and got.trouble[:2] == made.trouble[:2]

    return fits


def more(measure: str) -> Callable[[Case, Outcome, Finding], bool]:
    """Fits a measured case whose ``measure`` came out too large: it differs, and it is not that nothing was counted."""

    def fits(case: Case, got: Outcome, finding: Finding) -> bool:
        counted = got.measures.get("launches", 0) > 0 and got.measures.get(measure, 1)
        return case.measured and finding.result.startswith(measure) and bool(counted)

    return fits


# -- 06.1 ------------------------------------------------------------------------------------------------------------
@triton.jit
def copy_kernel(X, OUT, x_strides, out_strides, n_rows, n_cols, BLOCK: tl.constexpr, BUG: tl.constexpr):
    """One tile of OUT = X."""
    p = tl.program_id(0)
    across, down = tl.cdiv(n_cols, BLOCK), tl.cdiv(n_rows, BLOCK)
    i, j = p // across, p % across
    if BUG == "divided by the wrong count":
        i, j = p // down, p % down
    if BUG == "one tile for all":
        i, j = p * 0, p * 0
    rows = (i * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    cols = (j * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    from_ = rows[:, None] * x_strides[0] + cols[None, :] * x_strides[1]
    to = rows[:, None] * out_strides[0] + cols[None, :] * out_strides[1]
    if BUG == "column stride left out":
        from_ = rows[:, None] * x_strides[0] + cols[None, :]
    if BUG == "rows taken for contiguous":
        from_ = rows[:, None] * n_cols + cols[None, :]
    if BUG == "strides swapped":
        from_ = rows[:, None] * x_strides[1] + cols[None, :] * x_strides[0]
    if BUG == "one tensor's strides for both":
        to = from_
    mask = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    if BUG == "limits swapped":
        mask = (rows[:, None] < n_cols) & (cols[None, :] < n_rows)
    if BUG == "one lane too many":
        mask = (rows[:, None] <= n_rows) & (cols[None, :] <= n_cols)
    if BUG == "one row too many":
        mask = (rows[:, None] <= n_rows) & (cols[None, :] < n_cols)
    if BUG == "one column too many":
        mask = (rows[:, None] < n_rows) & (cols[None, :] <= n_cols)
    if BUG == "only rows masked":
        mask = (rows[:, None] < n_rows) & (cols[None, :] >= 0)
    if BUG == "only columns masked":
        mask = (rows[:, None] >= 0) & (cols[None, :] < n_cols)
    everywhere = (rows[:, None] >= 0) & (cols[None, :] >= 0)
    load_mask, store_mask = mask, mask
    if BUG == "no mask" or BUG == "load not masked":
        load_mask = everywhere
    if BUG == "no mask" or BUG == "store not masked":
        store_mask = everywhere
    tl.store(OUT + to, tl.load(X + from_, mask=load_mask, other=0.0), mask=store_mask)


def copy_matrix(x, by_columns=False, block=16, *, bug=""):
    """A copy of x (n_rows, n_cols), laid out row by row or column by column."""
    n_rows, n_cols = x.shape
    out = torch.empty(n_cols, n_rows, dtype=x.dtype).t() if by_columns else torch.empty(n_rows, n_cols, dtype=x.dtype)
    grid = (triton.cdiv(n_rows, block) * triton.cdiv(n_cols, block),)
    copy_kernel[grid](x, out, x.stride(), out.stride(), n_rows, n_cols, BLOCK=block, BUG=bug)
    return out


def _copy(name: str, says: str, ask: str, exactly: bool = False) -> Mistake:
    wrong = partial(copy_matrix, bug=name)
    return Mistake(name, wrong, says, ask, same_words(wrong) if exactly else None)


COPY = [
    _copy(
        "one lane too many",
        "Your mask lets one lane too many pass.",
        "In a matrix of 37 rows, what is the number of the last one?",
        exactly=True,
    ),
    _copy(
        "one row too many",
        "Your mask lets one row too many pass.",
        "In a matrix of 37 rows, what is the number of the last one?",
        exactly=True,
    ),
    _copy(
        "one column too many",
        "Your mask lets one column too many pass.",
        "In a matrix of 53 columns, what is the number of the last one?",
        exactly=True,
    ),
    _copy(
        "no mask",
        "Neither the load nor the store is masked.",
        "A tile is 16 × 16. Which of its lanes have no element when the matrix has 37 rows and 21 columns?",
    ),
    _copy(
        "store not masked",
        "The load is masked, the store is not.",
        "Where does a lane past the right edge write? Think of where the next row begins.",
    ),
    _copy(
        "load not masked",
        "The store is masked, the load is not.",
        "What does a lane past the edge read, and what lies there?",
    ),
    _copy(
        "only rows masked",
        "Your mask guards the lower edge and not the right one.",
        "Column 53 of row 0 does not exist. What lies at its address?",
        exactly=True,
    ),
    _copy(
        "only columns masked",
        "Your mask guards the right edge and not the lower one.",
        "What do the lanes of the last row of tiles do whose row does not exist?",
        exactly=True,
    ),
    _copy(
        "one tile for all",
        "All programs work on the same tile.",
        "Each program has a number. Where does it enter into your rows and columns?",
    ),
    _copy(
        "divided by the wrong count",
        "The program's number is divided by the number of tiles in a column.",
        "Tiles are counted row by row. How many tiles are there before the second row of tiles begins?",
    ),
    _copy(
        "rows taken for contiguous",
        "a copy that takes row i of X to begin at element i · n_cols",
        "How many elements lie between two rows of a transposed view, and who tells you?",
    ),
    _copy(
        "column stride left out",
        "a copy that takes neighbours in a row of X to be neighbours in memory",
        "In a transposed view, how many elements lie between one column and the next?",
    ),
    _copy(
        "one tensor's strides for both",
        "a copy that uses the strides of X for OUT as well",
        "X and OUT may be laid out differently. Which of the two tuples belongs in which address?",
    ),
    _copy(
        "strides swapped",
        "a copy that steps from row to row by strides[1]",
        "x.stride() gives two numbers. Which of them leads from one row to the next?",
    ),
    _copy(
        "limits swapped",
        "Rows are held against n_cols and columns against n_rows.",
        "Which number says how many rows there are?",
    ),
]


# -- 06.2 ------------------------------------------------------------------------------------------------------------
@triton.jit
def softmax_kernel(X, OUT, x_strides, out_strides, n_cols, BLOCK: tl.constexpr, BUG: tl.constexpr):
    """One row of OUT = softmax(X)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK).to(tl.int64)
    at = X + row * x_strides[0] + cols * x_strides[1]
    if BUG == "row stride taken for n_cols":
        at = X + row * n_cols + cols
    if BUG == "column stride left out":
        at = X + row * x_strides[0] + cols
    if BUG == "no mask":
        s = tl.load(at)
    elif BUG == "no other":
        s = tl.load(at, mask=cols < n_cols)
    elif BUG == "zeros past the edge":
        s = tl.load(at, mask=cols < n_cols, other=0.0)
    elif BUG == "minus ten thousand past the edge":
        s = tl.load(at, mask=cols < n_cols, other=-1e4)
    else:
        s = tl.load(at, mask=cols < n_cols, other=float("-inf"))
    s = s.to(tl.float32)
    m = tl.max(s, 0)
    if BUG == "no maximum":
        m = m * 0.0
        m = tl.where(m == 0.0, m, 0.0)
    if BUG == "a maximum from zero":
        m = tl.maximum(m, 0.0)
    if BUG != "no guard":
        m = tl.where(m == float("-inf"), 0.0, m)
    e = tl.exp(s - m)
    if BUG == "base 2":
        e = tl.exp2(s - m)
    if BUG == "maximum not subtracted again":
        e = tl.exp(s)
    l = tl.sum(e, 0)
    if BUG != "no guard":
        l = tl.where(l == 0.0, 1.0, l)
    p = e / l
    if BUG == "not divided":
        p = e
    tl.store(OUT + row * out_strides[0] + cols * out_strides[1], p, mask=cols < n_cols)


def softmax_rows(x, *, bug=""):
    """The softmax of each row of x (R, C); a row of −∞ alone gives zeros."""
    R, C = x.shape
    out = torch.empty(R, C, dtype=x.dtype)
    BLOCK = triton.next_power_of_2(C)
    softmax_kernel[(R,)](x, out, x.stride(), out.stride(), C, BLOCK=BLOCK, BUG=bug)
    return out


def _softmax(name: str, says: str, ask: str) -> Mistake:
    return Mistake(name, partial(softmax_rows, bug=name), says, ask)


SOFTMAX = [
    _softmax(
        "zeros past the edge",
        "a softmax in which the lanes past the edge are scores of 0",
        "exp(0 − m) is a weight like any other. Which score has the weight 0?",
    ),
    _softmax(
        "no other",
        "Your load is masked, but nothing says what the masked lanes hold.",
        "The masked lanes take part in the maximum and in the sum. Which value changes neither?",
    ),
    _softmax(
        "no maximum",
        "a softmax that does not subtract the row's maximum",
        "exp(120) is more than float32 holds. What may be subtracted from a whole row without changing its softmax?",
    ),
    _softmax(
        "no guard",
        "a softmax that computes (−∞) − (−∞) where a row holds nothing else",
        "What is the maximum of a row of −∞? What may be subtracted there instead, and what may its sum be divided by?",
    ),
    _softmax(
        "a maximum from zero",
        "a softmax whose maximum is never below 0",
        "If all scores of a row are near −120, what is their largest exp(s − 0) in float32?",
    ),
    _softmax(
        "minus ten thousand past the edge",
        "a softmax in which the lanes past the edge have the score −10 000",
        "Is −10 000 smaller than every score that can occur?",
    ),
    _softmax(
        "not divided",
        "exp(s − m) without the division by the row's sum",
        "What must the numbers of a row add up to?",
    ),
    _softmax("base 2", "a softmax in base 2", "tl.exp2(x) is 2^x. What must x be multiplied by to give e^x?"),
    _softmax(
        "row stride taken for n_cols",
        "a softmax that takes row i of X to begin at element i · n_cols",
        "How many elements lie between two rows of a view, and who tells you?",
    ),
    _softmax(
        "column stride left out",
        "a softmax that takes neighbours in a row to be neighbours in memory",
        "In a transposed view, how many elements lie between one column and the next?",
    ),
    _softmax(
        "no mask",
        "The load is not masked.",
        "BLOCK is a power of two, the row is not. What do the lanes past the row's end read?",
    ),
]


# -- 06.3 ------------------------------------------------------------------------------------------------------------
@triton.jit
def product_kernel(
    A, B, C, a_strides, b_strides, c_strides, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BUG: tl.constexpr,
):  # fmt: skip
    """One tile of C = A Bᵀ."""
    p = tl.program_id(0)
    across, down = tl.cdiv(N, BLOCK_N), tl.cdiv(M, BLOCK_M)
    i, j = p // across, p % across
    if BUG == "divided by the wrong count":
        i, j = p // down, p % down
    rows = (i * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (j * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    end = K
    if BUG == "last tile dropped":
        end = K // BLOCK_K * BLOCK_K
    if BUG == "first tile alone":
        end = BLOCK_K
    if BUG == "one turn too many":
        end = K + BLOCK_K
    for k0 in tl.range(0, end, BLOCK_K):
        ks = (k0 + tl.arange(0, BLOCK_K)).to(tl.int64)
        if BUG == "never moves on":
            ks = tl.arange(0, BLOCK_K).to(tl.int64)
        a_at = A + rows[:, None] * a_strides[0] + ks[None, :] * a_strides[1]
        b_at = B + cols[:, None] * b_strides[0] + ks[None, :] * b_strides[1]
        a_mask = (rows[:, None] < M) & (ks[None, :] < K)
        b_mask = (cols[:, None] < N) & (ks[None, :] < K)
        if BUG == "rows taken for contiguous":
            a_at, b_at = A + rows[:, None] * K + ks[None, :], B + cols[:, None] * K + ks[None, :]
        if BUG == "K not masked":
            a_mask = (rows[:, None] < M) & (ks[None, :] >= 0)
            b_mask = (cols[:, None] < N) & (ks[None, :] >= 0)
        if BUG == "rows of A not masked":
            a_mask = (rows[:, None] >= 0) & (ks[None, :] < K)
        if BUG == "rows of B not masked":
            b_mask = (cols[:, None] >= 0) & (ks[None, :] < K)
        if BUG == "B held against M":
            b_mask = (cols[:, None] < M) & (ks[None, :] < K)
        if BUG == "no other":
            a, b = tl.load(a_at, mask=a_mask), tl.load(b_at, mask=b_mask)
        else:
            a, b = tl.load(a_at, mask=a_mask, other=0.0), tl.load(b_at, mask=b_mask, other=0.0)
        b = tl.trans(b)
        if BUG == "B not transposed":
            b_at = B + ks[:, None] * b_strides[0] + cols[None, :] * b_strides[1]
            b = tl.load(b_at, mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
        if BUG == "not summed":
            acc = tl.dot(a, b, input_precision="ieee")
        elif BUG == "TF32":
            acc = tl.dot(a, b, acc)
        elif BUG == "sums in 16 bits":
            acc = (acc + tl.dot(a, b, input_precision="ieee")).to(tl.float16).to(tl.float32)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    if BUG == "store not masked":
        mask = (rows[:, None] >= 0) & (cols[None, :] >= 0)
    tl.store(C + rows[:, None] * c_strides[0] + cols[None, :] * c_strides[1], acc, mask=mask)


def product(a, b, block=(16, 16, 16), *, bug=""):
    """a (M, K) times the transpose of b (N, K), in float32."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty(M, N, dtype=torch.float32)
    grid = (triton.cdiv(M, block[0]) * triton.cdiv(N, block[1]),)
    product_kernel[grid](a, b, c, a.stride(), b.stride(), c.stride(), M, N, K, *block, BUG=bug)
    return c


def _product(
    name: str, says: str, ask: str, fits: Callable[[Case, Outcome, Finding], bool] | None = None
) -> Mistake:  # fmt: skip
    return Mistake(name, partial(product, bug=name), says, ask, fits)


PRODUCT = [
    _product(
        "K not masked",
        "a product in which nothing masks the lanes past the end of K",
        "Where a row of A ends, what lies behind it in memory, and what is it multiplied by?",
    ),
    _product(
        "not summed",
        "a product that keeps only the last tile along K",
        "What must become of the sum so far when the next tile's product arrives?",
    ),
    _product(
        "last tile dropped",
        "a product that leaves out the last, ragged tile along K",
        "K = 37 and BLOCK_K = 16: how many turns does the loop need?",
    ),
    _product(
        "never moves on",
        "a product that reads the first tile along K in every turn",
        "Which of your indices depend on the loop's variable?",
    ),
    _product(
        "first tile alone",
        "a product of the first BLOCK_K columns alone",
        "K = 37 and BLOCK_K = 16: how many turns does the loop need?",
    ),
    _product(
        "rows of A not masked",
        "The rows of A that do not exist are loaded.",
        "M is no multiple of BLOCK_M. What do the lanes of the last row of tiles read from A?",
        same_words(partial(product, bug="rows of A not masked")),
    ),
    _product(
        "rows of B not masked",
        "The rows of B that do not exist are loaded.",
        "N is no multiple of BLOCK_N. What do the lanes of the last column of tiles read from B?",
        same_words(partial(product, bug="rows of B not masked")),
    ),
    _product(
        "B not transposed",
        "a product that reads B as if it were (K, N)",
        "B has N rows of K numbers. Which index goes with b_strides[0]?",
    ),
    _product(
        "no other",
        "Your loads are masked, but nothing says what the masked lanes hold.",
        "The masked lanes go into the dot. Which value adds nothing?",
    ),
    _product(
        "divided by the wrong count",
        "The program's number is divided by the number of tiles in a column.",
        "Tiles of C are counted row by row. How many are there in a row?",
    ),
    _product(
        "rows taken for contiguous",
        "a product that takes row i to begin at element i · K",
        "How many elements lie between two rows of a view, and who tells you?",
    ),
    _product(
        "B held against M",
        "The rows of B are held against M.",
        "How many rows does B have?",
    ),
    _product(
        "sums in 16 bits",
        "a product that rounds the sum to float16 in every turn",
        "The products of 16-bit numbers are exact in float32. In which dtype should they be added up?",
    ),
    _product(
        "store not masked",
        "The store is not masked.",
        "Where does a lane past the right edge of C write?",
    ),
    _product(
        "one turn too many",
        "Your loop goes on after the end of K: what it adds there is 0, and it costs a dot each time.",
        "With K = 37 and BLOCK_K = 16, where does the last tile begin, and where must the loop stop?",
        more("dots"),
    ),
    _product(
        "TF32",
        "Your dots round float32 to TF32 on a GPU.",
        "What does `tl.dot` do with two float32 tiles if you say nothing of `input_precision`?",
        lambda case, got, finding: case.measured and finding.result == "tf32",
    ),
]
