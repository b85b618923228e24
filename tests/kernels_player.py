"""A forward kernel with faults that can be switched on, for the player to find."""

import triton
import triton.language as tl

from flashlib.algorithms.triton_tile import load_tile, store_tile


@triton.jit
def forward(Q, K, V, O, q_strides, k_strides, v_strides, o_strides, Sq, Sk, scale, D: tl.constexpr,
            BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, RESCALE: tl.constexpr,
            TAIL: tl.constexpr):  # fmt: skip
    rows, d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q = load_tile(Q, q_strides, rows, d, Sq, D)  # here: q
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for j0 in tl.range(0, Sk if TAIL else Sk // BLOCK_N * BLOCK_N, BLOCK_N):
        cols = j0 + tl.arange(0, BLOCK_N)
        k = load_tile(K, k_strides, cols, d, Sk, D)  # here: k
        v = load_tile(V, v_strides, cols, d, Sk, D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(cols[None, :] < Sk, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        if RESCALE:
            acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new
    store_tile(O, o_strides, rows, d, Sq, D, acc / l[:, None])  # here: o
