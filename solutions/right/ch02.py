"""Right solutions of chapter 02, written in different ways: the grader must accept every one."""

import math
from fractions import Fraction

import numpy as np


# -- 02.1 ----------------------------------------------------------------------------------------------------------
def bytes_moved(Nq, Nk, d, r, itemsize):
    rounds = -(-Nq // r)
    q, s, kv = Nq * d, Nq * Nk, rounds * Nk * d
    return (q + kv + s) * itemsize, 2 * s * itemsize, 2 * s * itemsize, (s + kv + q) * itemsize


def bytes_by_loops(Nq, Nk, d, r, itemsize):
    qk = scale = softmax = pv = 0
    for start in range(0, Nq, r):
        rows = min(r, Nq - start)
        qk += rows * d + Nk * d + rows * Nk
        scale += rows * Nk + rows * Nk
        softmax += rows * Nk + rows * Nk
        pv += rows * Nk + Nk * d + rows * d
    return [itemsize * n for n in (qk, scale, softmax, pv)]


def bytes_read_and_written(Nq, Nk, d, r, itemsize):
    rounds, S = math.ceil(Nq / r), Nq * Nk
    read = np.array([Nq * d + rounds * Nk * d, S, S, S + rounds * Nk * d])
    written = np.array([S, S, S, Nq * d])
    return tuple((read + written) * itemsize)


def bytes_as_floats(Nq, Nk, d, r, itemsize):
    rounds = np.ceil(Nq / r)
    return tuple(
        float(itemsize * n)
        for n in (Nk * (Nq + rounds * d) + Nq * d, 2 * Nq * Nk, 2 * Nq * Nk, Nq * (Nk + d) + rounds * Nk * d)
    )


# -- 02.2 ----------------------------------------------------------------------------------------------------------
def tiles(n, size):
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def scaled_scores(machine, Q, K, r, c):
    S = machine.hbm_empty("S", (Q.shape[0], K.shape[0]), Q.dtype)
    scale = Q.shape[1] ** -0.5
    with machine.kernel("scaled scores"):
        for i in tiles(Q.shape[0], r):
            q_i = machine.load(Q, i)
            for j in tiles(K.shape[0], c):
                machine.store(S, (i, j), machine.put("S", scale * (q_i @ machine.load(K, j).T)))
    return S


def scores_q_scaled(machine, Q, K, r, c):
    (Nq, d), (Nk, _) = Q.shape, K.shape
    S = machine.hbm_empty("S", (Nq, Nk), Q.dtype)
    with machine.kernel("QKᵀ"):
        for i in range(0, Nq, r):
            rows = slice(i, min(Nq, i + r))
            q_i = machine.put("Q", machine.load(Q, rows) / math.sqrt(d))
            for j in range(0, Nk, c):
                keys = slice(j, min(Nk, j + c))
                k_j = machine.load(K, keys)
                machine.store(S, (rows, keys), np.einsum("id,jd->ij", q_i, k_j))
    return S


def scores_in_reverse(machine, Q, K, r, c):
    S = machine.hbm_empty("S", (Q.shape[0], K.shape[0]), Q.dtype)
    with machine.kernel("from the last tile to the first"):
        for i in reversed(tiles(Q.shape[0], r)):
            q_i = machine.load(Q, i, slot="queries")
            for j in reversed(tiles(K.shape[0], c)):
                s = machine.put("tile", q_i @ machine.load(K, j, slot="keys").T)
                s = machine.put("tile", s / np.sqrt(Q.shape[1]))
                machine.store(S, (i, j), s)
                machine.drop("tile")
    return S


def scores_back_and_forth(machine, Q, K, r, c):
    S = machine.hbm_empty("S", (Q.shape[0], K.shape[0]), Q.dtype)
    scale, start = Q.shape[1] ** -0.5, 0
    with machine.kernel("scores"):
        while start < Q.shape[0]:
            i = slice(start, min(start + r, Q.shape[0]))
            q_i = machine.load(Q, i)
            for j in tiles(K.shape[0], c)[:: -1 if start // r % 2 else 1]:
                s = q_i @ machine.load(K, j).T
                s *= scale
                machine.store(S, (i, j), machine.put("S", s))
            start += r
    return S


# -- 02.3 ----------------------------------------------------------------------------------------------------------
def intensity(Nq, Nk, d, r, itemsize):
    flop = (4 * d + 6) * Nq * Nk
    inputs_output = 2 * Nq * d + 2 * -(-Nq // r) * Nk * d
    return flop / (itemsize * (6 * Nq * Nk + inputs_output)), flop / (itemsize * inputs_output)


def intensity_by_kernel(Nq, Nk, d, r, itemsize):
    scores = Nq * Nk
    flop = sum([2 * d * scores, scores, 5 * scores, 2 * d * scores])
    four = sum(bytes_moved(Nq, Nk, d, r, itemsize))
    fused = four - 6 * scores * itemsize
    return np.array([flop / four, flop / fused])[0], flop / fused


def intensity_exactly(Nq, Nk, d, r, itemsize):
    rounds = math.ceil(Fraction(Nq, r))
    flop = Fraction(Nq * Nk * (4 * d + 6))
    fused = itemsize * 2 * d * (Nq + rounds * Nk)
    return float(flop / (fused + 6 * itemsize * Nq * Nk)), float(flop / fused)


# -- 02.4 ----------------------------------------------------------------------------------------------------------
def roofline_time(flop, nbytes, flop_per_s, bytes_per_s):
    by_flops, by_bytes = flop / flop_per_s, nbytes / bytes_per_s
    return max(by_flops, by_bytes), by_bytes > by_flops


def time_by_intensity(flop, nbytes, flop_per_s, bytes_per_s):
    attainable = min(flop_per_s, flop / nbytes * bytes_per_s)
    return flop / attainable, flop / nbytes < flop_per_s / bytes_per_s


def time_in_numpy(flop, nbytes, flop_per_s, bytes_per_s):
    times = np.array([nbytes / bytes_per_s, flop / flop_per_s])
    return times.max(), times.argmax() == 0


def time_in_tera(flop, nbytes, flop_per_s, bytes_per_s):
    compute = (flop / 1e12) / (flop_per_s / 1e12)
    memory = (nbytes / 1e9) / (bytes_per_s / 1e9)
    if memory > compute:
        return memory, 1
    return compute, 0


RIGHT = {
    "02.1": {
        "the course's": bytes_moved,
        "round by round": bytes_by_loops,
        "read and written apart, NumPy": bytes_read_and_written,
        "floats": bytes_as_floats,
    },
    "02.2": {
        "the course's": scaled_scores,
        "q scaled, no put for S": scores_q_scaled,
        "in reverse": scores_in_reverse,
        "K back and forth": scores_back_and_forth,
    },
    "02.3": {
        "the course's": intensity,
        "kernel by kernel": intensity_by_kernel,
        "fractions": intensity_exactly,
    },
    "02.4": {
        "the course's": roofline_time,
        "by intensity and ridge": time_by_intensity,
        "NumPy": time_in_numpy,
        "in TFLOP/s and GB/s": time_in_tera,
    },
}
