"""Numbers rounded to a dtype, in NumPy: bfloat16 too, which NumPy does not have."""

from typing import Any

import numpy as np

# unit roundoff u: a rounded number is off by at most u times itself
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# half of the smallest positive number: what rounding costs below the normal range
TINY = {"float64": 2.0**-1075, "float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """x rounded to the nearest number of ``dtype`` (ties to even).

    Returns
    -------
    array
        float64 for "float64", else float32 holding numbers of that dtype.

    Raises
    ------
    ValueError
        Unknown dtype.
    """
    if dtype not in UNIT:
        raise ValueError(f"dtype must be one of {', '.join(UNIT)}, got {dtype!r}")
    with np.errstate(over="ignore"):
        if dtype == "float64":
            return np.asarray(x, dtype=np.float64)
        if dtype == "float16":
            return np.asarray(x).astype(np.float16).astype(np.float32)
        single = np.asarray(x).astype(np.float32)
    if dtype == "float32":
        return single
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isfinite(single), rounded.astype(np.uint32).view(np.float32), single)


def dtype_name(x: Any) -> str:
    """ "float32" and the like, for a NumPy array or a torch tensor."""
    return str(x.dtype).removeprefix("torch.")


def to_numpy(x: Any) -> np.ndarray:
    """A NumPy array with the same numbers: torch's bfloat16 becomes float32, which holds it exactly."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().resolve_conj().resolve_neg()
        return (x.float() if dtype_name(x) == "bfloat16" else x).numpy()
    return np.asarray(x)
