"""Which kernel PyTorch's SDPA takes for a call, and why it refuses another. Torch is imported inside functions."""

from __future__ import annotations

import re
import warnings
from typing import Any

from flashlib.instruments.ops import count_ops

#: a part of the aten op's name → the backend's name in `torch.nn.attention.SDPBackend`
OPS = {
    "flash_attention": "FLASH_ATTENTION",
    "efficient_attention": "EFFICIENT_ATTENTION",
    "cudnn_attention": "CUDNN_ATTENTION",
    "overrideable": "OVERRIDEABLE",
}
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


def taken(q: Any, k: Any, v: Any, **options: Any) -> str:
    """The backend that ``scaled_dot_product_attention(q, k, v, **options)`` takes here, by the op that it runs.

    Returns
    -------
    str
        A name of `torch.nn.attention.SDPBackend`; "MATH" where no fused op ran: then SDPA is a few plain ops.
    """
    import torch.nn.functional as F

    with count_ops() as moved:
        F.scaled_dot_product_attention(q, k, v, **options)
    names = [row.op for row in moved.rows]
    return next((backend for part, backend in OPS.items() if any(part in name for name in names)), "MATH")


def why_not(backend: str, q: Any, k: Any, v: Any, **options: Any) -> str:
    """Why SDPA cannot run on this backend, in torch's own words; "" if it can.

    All other backends are switched off. Torch then gives its reasons as warnings and raises.

    Raises
    ------
    ValueError
        An unknown backend.
    """
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                F.scaled_dot_product_attention(q, k, v, **options)
            return ""
        except RuntimeError as error:
            reasons = [_plain(str(w.message)) for w in said]
            raised = _plain(str(error))
    # "Memory efficient kernel not used because:" and the like are headings, and of other backends too
    reasons = [r for r in reasons if r and not re.search(r"not used because:?$|runtime disabled", r)]
    return "; ".join(dict.fromkeys(reasons)) or raised


def _plain(text: str) -> str:
    """Without the place in torch's sources, on one line."""
    text = re.sub(r"\(Triggered internally at .*?\)\s*$", "", text, flags=re.S)
    return " ".join(text.split())
