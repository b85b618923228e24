"""Is it right on this GPU? A compact set of hard cases through the Triton kernels, by the error budget.

Each case runs twice and must give the same bits. They run in processes of their own, so that a kernel that writes where
it must not cannot spoil what is timed later, and so that compilers work side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from flashlib.bench_gpu.methods import Refusal, attempt

CAUSAL = {"causal": True}
GQA = {"Hq": 4, "Hkv": 2}
# name: (sizes for `draw`, options for `attention`); S is scaled down where a kernel is interpreted
CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "causal, Sq < Sk, GQA": ({"Sq": 150, "Sk": 203, "D": 64, **GQA}, CAUSAL),
    "causal, Sq > Sk, rows that see nothing": ({"Sq": 203, "Sk": 151, "D": 40, "Hq": 2, "Hkv": 2}, CAUSAL),
    "full, ragged, D=128": ({"Sq": 203, "Sk": 150, "D": 128, "Hq": 2, "Hkv": 1}, {}),
    "causal, D=256": ({"Sq": 150, "Sk": 150, "D": 256, "Hq": 2, "Hkv": 2}, CAUSAL),
    "dO with stride 0": ({"Sq": 150, "Sk": 203, "D": 64, **GQA}, CAUSAL),
    "dropout, its mask as in tiled": ({"Sq": 150, "Sk": 203, "D": 64, **GQA}, {"dropout_p": 0.3, "seed": 2**40 + 7}),
}
DTYPES = ("float32", "float16", "bfloat16")


def dtypes(capability: tuple[int, int]) -> tuple[str, ...]:
    """Those the chip has; Turing only emulates bfloat16."""
    return DTYPES if capability >= (8, 0) else DTYPES[:2]


def check(name: str, dtype: str, device: str, tiny: bool = False, impl: str = "triton") -> dict[str, Any]:
    """One case.

    Returns
    -------
    dict : ``case``, ``dtype``, ``ok``, ``refused`` (no entry in `tiles`: falls back, and says so), ``raised`` (gave no
    numbers), ``says`` (one line a result: error, budget), for JSON.
    """
    found, result = attempt(lambda: _check(name, dtype, device, tiny, impl)), {"case": name, "dtype": dtype}
    if isinstance(found, Refusal):
        refused = "no Triton tile" in found.why
        return result | {"ok": refused, "refused": refused, "raised": not refused, "says": [found.why]}
    ok, says = found
    return result | {"ok": ok, "refused": False, "raised": False, "says": says}


def _check(name: str, dtype: str, device: str, tiny: bool, impl: str) -> tuple[bool, list[str]]:
    import torch

    from flashlib.algorithms.api import attention
    from flashlib.grading.exactness import Problem
    from flashlib.grading.inputs import draw

    sizes, options = CASES[name]
    if tiny:
        sizes = sizes | {"Sq": sizes["Sq"] // 4, "Sk": sizes["Sk"] // 4, "D": min(sizes["D"], 40)}
    x = draw(29, B=1, dtype=dtype, library="torch", **sizes)
    if "stride 0" in name:
        x = x._replace(do=torch.ones((), dtype=x.do.dtype).expand_as(x.do))
    moved = [t.to(device) for t in x[:3]]
    do = x.do[0, 0, 0, 0].to(device).expand_as(moved[0]) if "stride 0" in name else x.do.to(device)

    def results() -> dict[str, Any]:
        leaves = [t.detach().requires_grad_() for t in moved]
        o, lse = attention(*leaves, return_lse=True, impl=impl, **options)
        return dict(zip(("o", "lse", "dq", "dk", "dv"), (o, lse, *torch.autograd.grad(o, leaves, do)), strict=True))

    first, second = results(), results()
    verdict = Problem(*x, **options).compare(**{k: t.detach().cpu() for k, t in first.items()})
    says, ok = [str(line) for line in verdict], bool(verdict)
    unlike = [k for k in first if not torch.equal(first[k], second[k])]
    if unlike:
        ok, says = False, [*says, f"WRONG: two runs differ in {', '.join(unlike)}"]
    if options.get("dropout_p"):
        same = _same_mask(moved, options, impl)
        ok, says = ok and same, says if same else [*says, "WRONG: drops other weights than tiled"]
    return ok, says


def _same_mask(moved: list[Any], options: dict[str, Any], impl: str) -> bool:
    """v = identity reads the weights themselves: those that are 0 were dropped. Small scores: none underflows."""
    import torch

    from flashlib.algorithms.api import attention

    q, k, _ = (t[:, :, :61] * 0.1 for t in moved)
    v = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:3], -1).contiguous()
    a, b = (attention(q, k, v, impl=i, **options) != 0 for i in (impl, "tiled"))
    return bool(torch.equal(a, b))


def warm(d: int, causal: bool, dtype: str, device: str, hidden: int) -> str:
    """Compile our kernels as they will be timed, into Triton's cache on disk: it saves time and decides nothing."""
    from flashlib.bench_gpu.measure import call_of, inputs
    from flashlib.bench_gpu.methods import methods
    from flashlib.bench_gpu.plan import Case

    case = Case("forward+backward", causal, 256, d, dtype, 1, hidden // d)
    done = attempt(lambda: call_of(methods()[0], case, inputs(case, device))())
    return done.why if isinstance(done, Refusal) else ""


Job = tuple[Callable[..., Any], tuple[Any, ...]]


def in_processes(jobs: list[Job], workers: int) -> Iterator[tuple[int, Any]]:
    """(index, result) as they finish; a process that dies gives an exception in place of its result.

    With fewer than 1 worker everything runs here.
    """
    if workers < 1:
        yield from ((i, f(*arguments)) for i, (f, arguments) in enumerate(jobs))
        return
    # A process forked from one that has used CUDA cannot use it: start new ones.
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(f, *arguments): i for i, (f, arguments) in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()
