"""The kernels that are measured, each alone: ours, SDPA's backends, FlexAttention, flash-attn. And why one refuses."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

Run = Callable[[Any, Any, Any], Any]  # (q, k, v) -> o


@dataclass(frozen=True)
class Method:
    """One kernel. `prepare(q, causal)` gives the function of q, k, v that is timed; `layout` is "bhsd" or "bshd"."""

    name: str
    prepare: Callable[[Any, bool], Run]
    layout: str = "bhsd"
    compiled: bool = False


@dataclass(frozen=True)
class Refusal:
    """A call that gave no result: `status` is "refused" or "out of memory", `why` the reason in words."""

    status: str
    why: str


def methods() -> list[Method]:
    """All that can be asked here; flash-attn only where it is installed. Ours comes first."""
    found = [Method("ours", _ours)]
    for name, backend in (
        ("SDPA flash", "FLASH_ATTENTION"),
        ("SDPA efficient", "EFFICIENT_ATTENTION"),
        ("SDPA cuDNN", "CUDNN_ATTENTION"),
        ("SDPA math", "MATH"),
    ):
        found.append(Method(name, _sdpa(backend)))
    found.append(Method("FlexAttention", _flex, compiled=True))
    if find_spec("flash_attn") is not None:
        found.append(Method("flash-attn", _flash_attn, layout="bshd"))
    return found


def _ours(q: Any, causal: bool) -> Run:
    from flashlib.algorithms.api import attention

    return lambda q, k, v: attention(q, k, v, causal=causal, impl="triton")


def _sdpa(backend: str) -> Callable[[Any, bool], Run]:
    def prepare(q: Any, causal: bool) -> Run:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        only = getattr(SDPBackend, backend)

        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(only):  # the backward of a kernel is its own: nothing to choose there
                return scaled_dot_product_attention(q, k, v, is_causal=causal)

        return run

    return prepare


def _flex(q: Any, causal: bool) -> Run:
    """Compiled for this very length. Past its limit of recompilations torch would run it uncompiled, S × S in memory:
    a reset keeps clear of the limit, and fullgraph turns it into an error.
    """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    n = q.shape[2]
    mask = create_block_mask(_sees, None, None, n, n, device=q.device) if causal else None
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def _sees(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _flash_attn(q: Any, causal: bool) -> Run:
    from flash_attn import flash_attn_func

    return lambda q, k, v: flash_attn_func(q, k, v, causal=causal)


def attempt(call: Callable[[], Any]) -> Any:
    """What the call gives, or a `Refusal` where it raises: a backend that cannot is a result, not a crash."""
    import torch

    refusal = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # torch gives a backend's reasons as warnings, before it raises
        try:
            return call()
        except Exception as error:  # whatever a foreign kernel raises, its words go into the table
            memory = isinstance(error, torch.OutOfMemoryError) or re.search(
                r"out of memory|ALLOC_FAILED", str(error), re.I
            )
            refusal = Refusal("out of memory" if memory else "refused", reason(error, [str(w.message) for w in said]))
    if refusal.status == "out of memory" and torch.cuda.is_available():
        gc.collect()  # only now: the traceback held the tensors
        torch.cuda.empty_cache()
    return refusal


def reason(error: BaseException, said: list[str]) -> str:
    """One line: torch's warnings where its message only says that there is no kernel, else the message's core."""
    message = str(error).strip() or type(error).__name__
    if re.match(r"No (available kernel|viable backend)", message):
        told = [re.sub(r"\s*\(Triggered internally at .*", "", w, flags=re.S).strip() for w in said]
        told = [w for w in told if w and not re.search(r"not used because:?$|runtime disabled", w)]
        message = "; ".join(dict.fromkeys(told)) or message
    inner = re.search(
        r"raised exception \w+\((['\"])(.+?)\1\)", message
    )  # what torch.compile met, deep in its own words
    message = inner[2] if inner else message
    first = next((line.strip() for line in message.splitlines() if line.strip()), message)
    text = message if message.count("\n") == 0 else first
    text = text if len(text) <= 300 else text[:299] + "…"
    return text if isinstance(error, RuntimeError) else f"{type(error).__name__}: {text}"
