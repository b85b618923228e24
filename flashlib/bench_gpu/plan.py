"""What is measured, in which order, how many FLOP each case is, and how to stay inside the time.

The FLOP count is that of FlashAttention's own benchmarks: two matmuls forward (S = QKᵀ, O = PV), five backward (S
again, dP, dV, dQ, dK), two FLOP a multiply-add. A causal mask counts the pairs that it leaves, to the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TOKENS, HIDDEN = 2**14, 2048  # B · N and H · D, the same in every case (Dao 2023, FlashAttention-2, section 4.1)
LENGTHS = (4096, 16384, 1024, 8192, 2048, 512)  # in this order, so that a budget that ends early leaves whole curves
WIDTHS = (64, 128)
PASSES = ("forward", "forward+backward")
MOST_ROUNDS, LEAST_ROUNDS = 25, 3


def pairs(Sq: int, Sk: int, causal: bool) -> int:
    """Pairs (query, key) that see each other; causal means j ≤ i + (Sk − Sq)."""
    if not causal:
        return Sq * Sk
    first = max(Sk - Sq + 1, 1)  # keys of the first row that sees any; each row below sees one more, the last one all
    return min(Sq, Sk) * (first + Sk) // 2


@dataclass(frozen=True)
class Case:
    """One point of the figure: (B, H, N, D), dtype, mask and pass."""

    kind: str
    causal: bool
    n: int
    d: int
    dtype: str
    batch: int
    heads: int

    @property
    def flop(self) -> int:
        """4 · D · pairs · B · H forward, 3.5 times that with the backward."""
        forward = 4 * self.d * pairs(self.n, self.n, self.causal) * self.batch * self.heads
        return forward * 7 // 2 if self.kind == "forward+backward" else forward

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.dtype} N={self.n} D={self.d} {mask} {self.kind}"


def dtypes(capability: tuple[int, int]) -> tuple[str, ...]:
    """The 16-bit dtypes that the chip multiplies itself. Torch would say bfloat16 of a T4 too, which emulates it."""
    return ("float16", "bfloat16") if capability >= (8, 0) else ("float16",)


def grid(
    types: Iterable[str], *, lengths: Iterable[int] = LENGTHS, tokens: int = TOKENS, hidden: int = HIDDEN
) -> list[Case]:
    """All cases in the order of their weight: one dtype after the other, and in each the most telling length first."""
    return [
        Case(kind, causal, n, d, dtype, max(1, tokens // n), max(1, hidden // d))
        for dtype in types
        for n in lengths
        for kind in PASSES
        for d in WIDTHS
        for causal in (True, False)
    ]


class Budget:
    """Seconds for the whole of it, shared out as they go: what one case leaves over falls to the next ones.

    Parameters
    ----------
    seconds : all the time there is, from now on.
    setup_share : the part of it that slow first calls (a compiler) may take.
    now : the clock, for tests.
    """

    def __init__(self, seconds: float, *, setup_share: float = 0.3, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now, self._start = seconds, now, now()
        self._setup_left = setup_share * seconds
        self._setup: dict[str, float] = {}  # seconds of a method's slowest compilation so far
        self._speed: dict[str, float] = {}  # FLOP/s of a method's last case

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._now() - self._start

    @property
    def left(self) -> float:
        """Seconds left, 0 when there are none."""
        return max(0.0, self.seconds - self.spent)

    def rounds(self, first_s: float, cases_left: int, methods: int) -> int:
        """How often to time a call that takes first_s, so that each of the cases left gets the same time."""
        share = self.left / max(1, cases_left) / max(1, methods)
        return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(share / max(first_s, 1e-9))))

    def why_not(self, method: str, flop: int, *, compiled: bool = False) -> str:
        """ "" if there is time for this method; else the reason, in words."""
        if not self.left:
            return f"the {self.seconds:.0f} s were over"
        expected = flop / self._speed[method] * (LEAST_ROUNDS + 3) if method in self._speed else 0.0
        if expected > self.left:
            return f"it would take about {expected:.0f} s and {self.left:.0f} s were left"
        if compiled and self._setup.get(method, 0.0) > min(self._setup_left, self.left):
            return "compiling, which each length needs anew, had used up its share of the time"
        return ""

    def took(self, method: str, flop: int, first_s: float, once_s: float, *, compiled: bool = False) -> None:
        """Remember how long a method's first call and a later one took."""
        self._speed[method] = flop / max(once_s, 1e-9)
        if compiled:
            setup = max(0.0, first_s - once_s)
            self._setup[method] = max(self._setup.get(method, 0.0), setup)
            self._setup_left -= setup
