"""Small Triton kernels with a planted fault each, and right ones beside them. A kernel needs a file to be read from.

A comment `# here: NAME` marks the line that an error must name.
"""

import triton
import triton.language as tl


@triton.jit
def copy_right(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, mask=at < n), mask=at < n)


@triton.jit
def load_past(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at)  # here: load_past
    tl.store(Y + at, x, mask=at < n)


@triton.jit
def store_before(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at - 3, tl.load(X + at, mask=at < n, other=0.0), mask=at < n)  # here: store_before


@triton.jit
def fetch(X, at):
    return tl.load(X + at)  # here: fetch


@triton.jit
def load_past_inside(X, Y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, fetch(X, at), mask=at < n)  # here: fetch_caller


@triton.jit
def rows(X, strides, Y, n, d, BLOCK: tl.constexpr, D: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, D)
    x = tl.load(X + i[:, None] * strides[0] + j[None, :] * strides[1], mask=i[:, None] < n, other=0.0)  # here: rows
    tl.store(Y + i, tl.sum(x, 1), mask=i < n)


@triton.jit
def loaded_pointer(P, Y):
    address = tl.load(P)
    tl.store(Y, tl.load(address.to(tl.pointer_type(tl.float32))))  # here: loaded_pointer


@triton.jit
def same_place(Y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(Y + at, at)  # here: same_place


@triton.jit
def reads_behind(X, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at + STEP, mask=(at + STEP >= 0) & (at + STEP < n), other=0.0)  # here: reads_behind
    tl.store(X + at, x)  # here: writes_ahead


@triton.jit
def lanes_collide(Y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Y + at // 2, at)  # here: lanes_collide


@triton.jit
def count(Y, C, BLOCK: tl.constexpr):
    tl.atomic_add(C, 1)
    tl.atomic_add(Y + tl.arange(0, BLOCK), 1.0)


@triton.jit
def half(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, mask=at < n, other=0.0), mask=(at < n) & (at % 2 == 0))  # here: half


@triton.jit
def accumulate(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(Y + at, mask=at < n, other=0.0)  # here: accumulate
    tl.store(Y + at, y + tl.load(X + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def far(Y, row, stride, WIDE: tl.constexpr):
    if WIDE:
        offset = row.to(tl.int64) * stride
    else:
        offset = row * stride  # here: far
    tl.store(Y + offset % 4, 1.0)


@triton.jit
def thin_dot(A, B, C, K: tl.constexpr):
    i, k = tl.arange(0, 16), tl.arange(0, K)
    a, b = tl.load(A + i[:, None] * K + k[None, :]), tl.load(B + k[:, None] * 16 + i[None, :])
    c = tl.dot(a, b)  # here: thin_dot
    tl.store(C + i[:, None] * 16 + i[None, :], c)


@triton.jit
def row_sum(X, Y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n)  # here: row_sum
    tl.store(Y, tl.sum(x, 0))


@triton.jit
def row_top(X, Y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n)  # here: row_top
    tl.store(Y, tl.max(x, 0))


@triton.jit
def hops(I, X, Y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    i = tl.load(I + at, mask=at < n)  # here: hops
    tl.store(Y + at, tl.load(X + i))


@triton.jit
def fails(Y):
    y = tl.load(Y)
    tl.static_assert(y.dtype == tl.int32, "wants integers")  # here: fails


@triton.jit
def bf16_ops(A, B, C, SUM, DIFFERENCE, PRODUCT, QUOTIENT, FMA, NEGATIVE, SIZE, TOP, LOW, CHOICE, PLUS, LESS, EQUAL,
             n, BLOCK: tl.constexpr):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c = tl.load(A + at), tl.load(B + at), tl.load(C + at)
    tl.store(SUM + at, a + b)
    tl.store(DIFFERENCE + at, a - b)
    tl.store(PRODUCT + at, a * b)
    tl.store(QUOTIENT + at, a / b)
    tl.store(FMA + at, tl.fma(a, b, c))
    tl.store(NEGATIVE + at, -a)
    tl.store(SIZE + at, tl.abs(a))
    tl.store(TOP + at, tl.maximum(a, b))
    tl.store(LOW + at, tl.minimum(a, b))
    tl.store(CHOICE + at, tl.where(a < b, a, 0.5))
    tl.store(PLUS + at, a + 1.5)
    tl.store(LESS + at, (a < b).to(tl.int8) + 2 * (a <= b).to(tl.int8) + 4 * (a > b).to(tl.int8))
    tl.store(EQUAL + at, (a == b).to(tl.int8) + 2 * (a != b).to(tl.int8) + 4 * (a >= b).to(tl.int8))


@triton.jit
def bf16_round(X, Y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at).to(tl.bfloat16))


@triton.jit
def bf16_cut(X, Y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def mul(a, b):
    return a * b


@triton.jit
def as_float(a, b):
    return a.to(tl.float32) + b.to(tl.float32)


@triton.jit
def bf16_folds(X, TOP, LOW, WHERE, SUM, WIDE, RUNNING, PRODUCT, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    x = tl.load(X + i[:, None] * BLOCK + j[None, :])
    tl.store(TOP + i, tl.max(x, 1))
    tl.store(LOW + j, tl.min(x, 0))
    tl.store(WHERE + i, tl.argmax(x, 1))
    tl.store(SUM + i, tl.sum(x, 1))
    tl.store(WIDE + i, tl.sum(x.to(tl.float32), 1))
    tl.store(RUNNING + i[:, None] * BLOCK + j[None, :], tl.cumsum(x.to(tl.float32), 1).to(tl.bfloat16))
    tl.store(PRODUCT + i, tl.reduce(x, 1, mul))


@triton.jit
def bf16_bad_fold(X, Y, BLOCK: tl.constexpr):
    tl.store(Y, tl.reduce(tl.load(X + tl.arange(0, BLOCK)), 0, as_float))


@triton.jit
def bf16_atomic(X, Y):
    tl.atomic_add(Y, tl.load(X))


@triton.jit
def matmul(A, a_strides, B, b_strides, C, c_strides, M, N, K, BLOCK: tl.constexpr):
    """C = A·B in tiles, with what a kernel of ours uses: tuples of strides, 64-bit offsets, tl.range, trans, acc."""
    tiles = tl.cdiv(N, BLOCK)
    i = (tl.program_id(0) // tiles * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    j = (tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k0 in tl.range(0, K, BLOCK):
        k = (k0 + tl.arange(0, BLOCK)).to(tl.int64)
        a = tl.load(A + i[:, None] * a_strides[0] + k[None, :] * a_strides[1],
                    mask=(i[:, None] < M) & (k[None, :] < K), other=0.0)  # fmt: skip
        bt = tl.load(B + j[:, None] * b_strides[1] + k[None, :] * b_strides[0],
                     mask=(j[:, None] < N) & (k[None, :] < K), other=0.0)  # fmt: skip
        acc = tl.dot(a, tl.trans(bt), acc, input_precision="ieee")
    tl.store(C + i[:, None] * c_strides[0] + j[None, :] * c_strides[1], acc.to(C.dtype.element_ty),
             mask=(i[:, None] < M) & (j[None, :] < N))  # fmt: skip


@triton.jit
def draw_bits(Y, seed, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    word, _, _, _ = tl.philox(seed, at, at, at, at)
    tl.store(Y + at, word.to(tl.int32, bitcast=True))


@triton.jit
def run_time_bounds(Y, N):
    n = tl.load(N)
    total = 0
    for i in range(n):
        total += i
    for i in tl.range(0, n, 2):
        total += i
    tl.store(Y, total)


@triton.jit
def describe_rows(X, Y, n, d, BLOCK: tl.constexpr, D: tl.constexpr):
    x = tl.make_tensor_descriptor(X, [n, d], [d, 1], [BLOCK, D])
    y = tl.make_tensor_descriptor(Y, [n, d], [d, 1], [BLOCK, D])
    row = tl.program_id(0) * BLOCK
    y.store([row, 0], x.load([row, 0]) * 2)


@triton.jit
def lopsided_nan(X, Y, Z):
    x, y = tl.load(X), tl.load(Y)
    tl.store(Z, tl.maximum(x, y))
    tl.store(Z + 1, tl.minimum(x, y))
    tl.store(Z + 2, tl.clamp(x, y, y))


@triton.jit
def dot_said(A, B, C, SAID: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    a, b = tl.load(A + at), tl.load(B + at)
    if SAID == "":
        c = tl.dot(a, b)
    else:
        c = tl.dot(a, b, input_precision=SAID)
    tl.store(C + at, c)


@triton.jit
def half_function(X, Y, NAME: tl.constexpr):
    x = tl.load(X)
    if NAME == "exp":
        y = tl.exp(x)
    elif NAME == "exp2":
        y = tl.exp2(x)
    elif NAME == "log":
        y = tl.log(x)
    elif NAME == "sqrt":
        y = tl.sqrt(x)
    elif NAME == "sin":
        y = tl.sin(x)
    else:
        y = tl.cos(x)
    tl.store(Y, y)
