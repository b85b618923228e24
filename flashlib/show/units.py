"""Numbers as a reader says them: 1.5 MiB, 16k, 3.2 ms."""

import math
from collections.abc import Callable


def _short(x: float) -> str:
    """Three significant digits at most, no trailing zeros, no exponent."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    text = f"{x:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def nbytes(x: float) -> str:
    """Bytes in binary units: ``nbytes(3 * 2**20) == "3 MiB"``."""
    for power, unit in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        # 1023.6 KiB would be printed as "1024 KiB": step to the next unit where rounding reaches it
        if abs(x) >= 2**power * (1 - 0.5 / 1024):
            return f"{_short(x / 2**power)} {unit}"
    return f"{_short(x)} B"


def count(n: float) -> str:
    """A length N in binary thousands: ``count(2048) == "2k"``; other numbers are printed in full."""
    for power, unit in ((20, "M"), (10, "k")):
        if abs(n) >= 2**power and n % 2 ** (power - 1) == 0:
            return f"{_short(n / 2**power)}{unit}"
    return f"{int(n):,}" if float(n).is_integer() else _short(n)


def words(n: float) -> str:
    """A large count, rounded, as one says it: ``words(7_812_345) == "7.8 million"``."""
    for scale, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if n >= scale:
            return f"{n / scale:.{1 if n < 9.95 * scale else 0}f} {name}"
    return f"{n:,.0f}"


def seconds(t: float) -> str:
    """A time in s, ms, µs or ns: ``seconds(0.0032) == "3.2 ms"``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(t) >= 0.9995 * scale:
            return f"{_short(t / scale)} {unit}"
    return f"{_short(t / 1e-9)} ns" if t else "0 s"


def flop_rate(f: float) -> str:
    """FLOP/s in decimal units, as data sheets print them: ``flop_rate(312e12) == "312 TFLOP/s"``."""
    for scale, unit in ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")):
        if abs(f) >= scale:
            return f"{_short(f / scale)} {unit}"
    return f"{_short(f)} FLOP/s"


def number(x: float) -> str:
    """A plain number, for axes without a unit."""
    return f"{_short(x)}" if 1e-3 <= abs(x) < 1e6 or x == 0 else f"{x:.2g}"


#: how the values of an axis are written, by the name of its unit
UNITS: dict[str, Callable[[float], str]] = {
    "bytes": nbytes,
    "count": count,
    "seconds": seconds,
    "flops": flop_rate,
    "number": number,
}
