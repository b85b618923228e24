"""Chapter 02, the memory wall: what its exercises are tried on. Its answers are numbers with units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashlib.grading.case import Case, Exercise
from flashlib.grading.expected import expect, value
from flashlib.grading.inputs import draw
from flashlib.grading.judge import both, in_one_kernel, matches, measured
from flashlib.grading.mistakes import ch02 as gallery
from flashlib.grading.mistakes import ch02_kernel, ch02_time

_FORMULAS = ("four_steps_bytes", "four_steps_by_kernel", "flash_bytes", "flash_by_tensor")


def _numbers_moved(Nq: int, Nk: int, d: int, r: int) -> tuple[int, int, int, int]:
    """Numbers, not bytes, that QKᵀ, the scale, the softmax and PV move."""
    rounds, square = -(-Nq // r), Nq * Nk
    product = Nq * d + rounds * Nk * d + square  # of PV too: P in the place of S, V of K, O of Q
    return product, 2 * square, 2 * square, product


def _shapes(seed: int) -> list[tuple[str, tuple[int, int, int, int, int]]]:
    """(name, (Nq, Nk, d, r, itemsize)): the toy, then one property each."""
    rng = np.random.default_rng(seed)
    d, r = int(rng.integers(20, 30)) * 2 + 1, int(rng.integers(20, 30)) * 2 + 1
    Nq, Nk = int(rng.integers(500, 700)), int(rng.integers(1300, 1900))
    rounds = int(rng.integers(5, 9))
    return [
        ("the toy in float64, r = 2", (6, 6, 4, 2, 8)),
        (f"Nq = {rounds * r}, Nk = {Nk}, d = {d}, r = {r}, float32", (rounds * r, Nk, d, r, 4)),
        (f"ragged: r = {r} does not divide Nq = {rounds * r + 3}", (rounds * r + 3, Nk, d, r, 2)),
        (f"more queries than keys, Nq = {Nk * r + 1}", (Nk * r + 1, Nq, d, r, 2)),
        (f"all {Nq} queries fit, r = {Nq + 5}", (Nq, Nk, d, Nq + 5, 2)),
    ]


def _bytes_cases(seed: int) -> Iterator[Case]:
    for name, args in _shapes(seed):
        moved = [n * args[-1] for n in _numbers_moved(*args[:4])]
        yield Case(name, args, matches(*(value(k, n) for k, n in zip(gallery.KERNELS, moved, strict=True))))


def _scores(q, k):
    return q @ k.T / np.sqrt(np.longdouble(q.shape[1]))


def _kernel_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    d, r, c = (int(x) for x in rng.permutation([5, 6, 7])[:3])

    def case(name: str, Nq: int, Nk: int, measure: bool) -> Case:
        q, k = (x[0, 0] for x in draw(seed, B=1, Hq=1, Hkv=1, Sq=Nq, Sk=Nk, D=d, dtype="float64")[:2])
        judge = matches(*expect("S", _scores, (q, k), longest=d, axes=[("row", "key")]))
        if measure:
            rounds = -(-Nq // r)
            says = f"r = {r} rows of Q stay on the chip, so Q is read once and K in {rounds} rounds."
            moved = measured("read", {"Q": q.nbytes, "K": rounds * k.nbytes}, "B", says)
            written = measured("written", {"S": q.itemsize * Nq * Nk}, "B", "S is written once.")
            judge = both(judge, moved, written, in_one_kernel({"Q": rounds, "K": rounds * -(-Nk // c)}))
        room = q.itemsize * (r * d + c * d + r * c)  # one tile each of Q, K and S
        options = {"sram_bytes": room, "names": ["Q", "K"], "returns": ("S",)}
        return Case(name, (q, k, r, c), judge, how="machine", options=options, measured=measure, tile=(r, c))

    yield case("one tile", r, c, False)
    yield case(f"full tiles, Nq = {3 * r}, Nk = {4 * c}", 3 * r, 4 * c, False)
    yield case(f"ragged: Nq = {2 * r + 1}, Nk = {3 * c + 2}", 2 * r + 1, 3 * c + 2, False)
    yield case(f"bytes of full tiles, {3 * r} × {4 * c}", 3 * r, 4 * c, True)
    yield case(f"bytes of ragged tiles, {4 * r + 2} × {2 * c + 1}", 4 * r + 2, 2 * c + 1, True)


def _intensities(Nq, Nk, d, r, itemsize):
    flop = Nq * Nk * (2 * d + 1 + 5 + 2 * d)
    fused = 2 * Nq * d + 2 * -(-Nq // r) * Nk * d
    return flop / (itemsize * sum(_numbers_moved(Nq, Nk, d, r))), flop / (itemsize * fused)


def _intensity_cases(seed: int) -> Iterator[Case]:
    for name, args in _shapes(seed + 1):
        yield Case(name, args, matches(*expect(ch02_time.INTENSITIES, _intensities, args, longest=8, dtype="any")))


def _time_cases(seed: int) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    # chips that nobody sells, so that no figure is known by heart: about 100 TFLOP/s and 1 TB/s, ridge near 100 FLOP/B
    rate, bandwidth = (float(x) for x in rng.uniform(0.7, 1.4, 2) * (1e14, 1e12))
    nbytes = int(rng.integers(10**8, 10**9))
    for name, intensity in (
        ("3 FLOP for each byte", 3),
        ("half of the ridge", 0.5 * rate / bandwidth),
        ("twice the ridge", 2 * rate / bandwidth),
        ("5000 FLOP for each byte", 5000),
        ("a third of a FLOP for each byte", 1 / 3),
    ):
        args = (int(intensity * nbytes), nbytes, rate, bandwidth)
        memory, compute = args[1] / bandwidth, args[0] / rate
        seconds = expect("seconds", lambda f, b, F, B: max(f / F, b / B), args, longest=4, dtype="any")
        bound = value("memory_bound", memory > compute)
        yield Case(name, args, matches(*seconds, bound))


EXERCISES = [
    Exercise(
        "02.1", "bytes moved", "bytes_moved", _bytes_cases, lambda: gallery.BYTES_MOVED, forbidden=_FORMULAS
    ),
    Exercise(
        "02.2", "a kernel that counts", "scaled_scores", _kernel_cases, lambda: ch02_kernel.SCALED_SCORES,
        forbidden=("four_steps",),
    ),
    Exercise(
        "02.3", "arithmetic intensity", "intensity", _intensity_cases, lambda: ch02_time.INTENSITY, forbidden=_FORMULAS
    ),
    Exercise(
        "02.4", "roofline time", "roofline_time", _time_cases, lambda: ch02_time.ROOFLINE, forbidden=("roofline",)
    ),
]  # fmt: skip
