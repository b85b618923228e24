"""The GPU benchmark without a GPU: counts by brute force, the time plan, refusals, exactness interpreted, the page.

Numbers in these tests are invented where a fake clock stands for a GPU; the name of such a machine says so.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

import flashlib
from flashlib.algorithms import tiles
from flashlib.algorithms.masks import visible
from flashlib.bench_gpu import command, exact, figure, launches, machine, methods, plan, run, tables, tune
from flashlib.bench_gpu.measure import Bench, call_of, inputs
from flashlib.bench_gpu.methods import Method, Refusal, attempt
from tests.files import ROOT
from tools import gpu_page

NO_GPU = not torch.cuda.is_available()
INVENTED = "Invented GPU (a test's, nothing was measured)"


class FakeClock:
    """Runs each call and says that it took as long as `costs` says, on a clock that only it moves."""

    flush_bytes = 0

    def __init__(self, seconds: float = 0.001) -> None:
        self.now, self.seconds, self.calls = 0.0, seconds, 0

    def once(self, call):
        call()
        self.calls += 1
        self.now += self.seconds
        return self.seconds

    def peak(self, call):
        call()
        return 4096

    def wait(self):
        pass


def cheap(name="ours"):
    return Method(name, lambda q, causal: lambda q, k, v: q * 1 + k * 0 + v * 0)


def facts(name=INVENTED, sms=1):
    return {
        "device": "cuda", "name": name, "capability": [8, 0], "memory_bytes": 2**34, "sms": sms, "l2_bytes": None,
        **dict.fromkeys(machine.ASKED.values()), "sm_clock_mhz": 1000.0, "torch": "0", "cuda": "0", "cudnn": 1,
        "triton": "0", "flash_attn": None, "flashlib": "0", "python": "0",
    }  # fmt: skip


def parts(**changes):
    known = dict(
        device="cpu", capability=(8, 0), clock=FakeClock(), facts=facts, methods=[cheap(), cheap("SDPA math")],
        tiny=True, lengths=(16, 8), tokens=32, hidden=128,
    )  # fmt: skip
    return run.Parts(**(known | changes))


def right(monkeypatch, ok=True):
    """Stand in for the exactness set, which has its own test."""
    line = {"case": "a case", "dtype": "float16", "ok": ok, "refused": False, "says": ["dq   error 1 WRONG"]}
    monkeypatch.setattr(run, "check_all", lambda parts: {"ok": ok, "lines": [line]})


# counts


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_and_flop_are_those_of_a_count(causal):
    for Sq, Sk in itertools.product((0, 1, 2, 5, 9), repeat=2):
        assert plan.pairs(Sq, Sk, causal) == int(np.count_nonzero(visible(Sq, Sk, causal))), (Sq, Sk)
    for kind, matmuls in (("forward", 2), ("forward+backward", 7)):
        case = plan.Case(kind, causal, 9, 4, "float16", 3, 5)
        seen = visible(9, 9, causal)
        counted = sum(2 for _ in range(3 * 5 * 4) for _ in range(matmuls)) * int(seen.sum())
        assert case.flop == counted


def test_grid_has_the_same_tokens_and_width_everywhere():
    cases = plan.grid(("float16", "bfloat16"))
    assert len(cases) == 96 and len(set(cases)) == 96
    assert {(c.batch * c.n, c.heads * c.d) for c in cases} == {(2**14, 2048)}
    assert {c.n for c in cases} == {512, 1024, 2048, 4096, 8192, 16384} and {c.d for c in cases} == {64, 128}
    assert cases[0].n == 4096 and {c.dtype for c in cases[:48]} == {"float16"}


def test_a_t4_has_no_bfloat16():
    assert plan.dtypes((7, 5)) == ("float16",) and plan.dtypes((8, 0)) == ("float16", "bfloat16")
    assert exact.dtypes((7, 5)) == ("float32", "float16")


# the time plan


def test_rounds_fall_with_the_time_but_not_below_three():
    now = [0.0]
    budget = plan.Budget(100, now=lambda: now[0])
    assert budget.rounds(0.001, 96, 7) == plan.MOST_ROUNDS
    assert budget.rounds(0.02, 96, 7) == int(100 / 96 / 7 / 0.02)
    now[0] = 99.0
    assert budget.rounds(0.02, 96, 7) == plan.LEAST_ROUNDS
    now[0] = 101.0
    assert budget.left == 0 and "were over" in budget.why_not("ours", 1)


def test_what_does_not_fit_any_more_is_left_out_with_its_reason():
    budget = plan.Budget(10, now=lambda: 0.0)
    budget.took("SDPA math", flop=10**9, first_s=1.0, once_s=1.0)
    assert budget.why_not("SDPA math", 10**9) == ""
    assert "10 s were left" in budget.why_not("SDPA math", 2 * 10**9)
    assert budget.why_not("ours", 2 * 10**9) == ""


def test_a_compiler_gets_its_share_and_no_more():
    budget = plan.Budget(100, setup_share=0.3, now=lambda: 0.0)
    asked = 0
    while not budget.why_not("FlexAttention", 1, compiled=True):
        budget.took("FlexAttention", 1, first_s=8.0, once_s=0.0, compiled=True)
        asked += 1
    assert asked == 3


def test_a_short_budget_is_said_and_kept(monkeypatch):
    right(monkeypatch)
    clock = FakeClock(seconds=0.1)
    monkeypatch.setattr(run, "Budget", lambda s: plan.Budget(s, now=lambda: clock.now))
    result = run.run(parts(clock=clock), budget_s=20)
    text = " ".join(result["plan"]["says"])
    assert "fewer than 25 rounds (at least 3)" in text and "were left out, to stay in 20 s of timing" in text
    assert clock.now < 21
    long = run.run(parts(clock=FakeClock(seconds=1e-5)), budget_s=170)
    assert long["plan"]["says"] == []
    assert all(m["rounds"] == 25 for c in long["cases"] for m in c["methods"].values())


# methods and refusals


def test_each_backend_alone_gives_attention_or_its_reason():
    """On the CPU, SDPA has a flash and a math kernel; the others must refuse in words. All give the same numbers."""
    case = plan.Case("forward+backward", True, 16, 8, "float32", 2, 3)
    tensors = inputs(case, "cpu")
    found = {}
    for method in methods.methods():
        if method.name in ("ours", "FlexAttention", "flash-attn"):
            continue
        got = attempt(lambda method=method: call_of(method, case, tensors)())
        found[method.name] = got
    assert isinstance(found["SDPA efficient"], Refusal) and "No viable backend" in found["SDPA efficient"].why
    assert isinstance(found["SDPA cuDNN"], Refusal)
    leaves = [x.requires_grad_() for x in tensors[:3]]
    want = torch.autograd.grad(flashlib.attention(*leaves, causal=True, impl="naive"), leaves, tensors[3])
    for name in ("SDPA flash", "SDPA math"):
        for got, exact_one in zip(found[name], want, strict=True):
            torch.testing.assert_close(got, exact_one)


def test_flex_is_given_the_right_mask(monkeypatch):
    """Compiling is left out: the mask and the call are the same."""
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    q, k, v = (torch.randn(1, 2, 160, 16) for _ in range(3))
    flex = next(m for m in methods.methods() if m.name == "FlexAttention")
    for causal in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is not compiled
            got = flex.prepare(q, causal)(q, k, v)
        torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal))


def test_flash_attn_is_asked_only_where_it_is_and_in_its_own_layout(monkeypatch):
    seen = {}

    def fake(q, k, v, causal):
        seen["shape"], seen["causal"] = q.shape, causal
        return q + k + v

    import types

    monkeypatch.setitem(sys.modules, "flash_attn", types.SimpleNamespace(flash_attn_func=fake, __spec__=object()))
    method = methods.methods()[-1]
    assert method.name == "flash-attn"
    case = plan.Case("forward+backward", True, 16, 8, "float32", 2, 3)
    grads = call_of(method, case, inputs(case, "cpu"))()
    assert seen == {"shape": (2, 16, 3, 8), "causal": True} and len(grads) == 3
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    assert [m.name for m in methods.methods()][-1] == "FlexAttention"


def test_a_reason_is_taken_from_the_warnings():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at x.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at x.h:2.)",
        "Flash attention kernel not used because: (Triggered internally at x.cpp:3.)",
        "Flash attention only supports gpu architectures from sm80. (Triggered internally at x.cpp:4.)",
    ]
    error = RuntimeError("No available kernel. Aborting execution.")
    assert methods.reason(error, said) == "Flash attention only supports gpu architectures from sm80."
    assert methods.reason(error, []) == "No available kernel. Aborting execution."
    assert methods.reason(ImportError("no flash_attn_2_cuda"), said) == "ImportError: no flash_attn_2_cuda"
    assert "\n" not in methods.reason(RuntimeError("CUDA error: bad\nCompile with x\ny"), [])
    deep = (
        "Observed exception\n  Explanation: x\n  Developer debug context: raised exception TypeError('D must be 2^n')\n"
    )
    assert methods.reason(RuntimeError(deep), []) == "D must be 2^n"


def raising(error):
    def prepare(q, causal):
        raise error

    return prepare


def test_out_of_memory_and_refusals_leave_the_others_measured():
    many = [
        cheap(),
        Method("greedy", raising(torch.OutOfMemoryError("Tried to allocate 34 GiB"))),
        Method("workspace", raising(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))),
        Method("picky", raising(ValueError("D must be 32"))),
    ]
    bench = Bench(many, FakeClock(), plan.Budget(100), "cpu")
    rows = bench.case(plan.Case("forward", False, 8, 4, "float32", 1, 1), 1)["methods"]
    assert list(rows) == ["ours", "greedy", "workspace", "picky"]
    assert rows["ours"]["status"] == "ok" and rows["ours"]["peak_bytes"] == 4096 and rows["ours"]["rounds"] == 25
    assert rows["ours"]["tflops"] == pytest.approx(4 * 4 * 64 / 0.001 / 1e12)
    assert rows["greedy"]["status"] == rows["workspace"]["status"] == "out of memory"
    assert rows["picky"] == {"status": "refused", "why": "ValueError: D must be 32"}


def test_a_method_that_fails_later_is_no_crash_either():
    count = itertools.count()

    def tires(q, causal):
        def go(q, k, v):
            if next(count) > 4:
                raise RuntimeError("tired")
            return q

        return go

    bench = Bench([Method("tires", tires), cheap()], FakeClock(), plan.Budget(100), "cpu")
    rows = bench.case(plan.Case("forward", False, 8, 4, "float32", 1, 1), 1)["methods"]
    assert rows["tires"] == {"status": "refused", "why": "tired"} and rows["ours"]["rounds"] == 25


def test_methods_take_turns():
    order = []

    def noted(name):
        return Method(name, lambda q, causal: lambda q, k, v: order.append(name) or q)

    Bench([noted("a"), noted("b")], FakeClock(), plan.Budget(100), "cpu").case(
        plan.Case("forward", False, 8, 4, "float32", 1, 1), 1
    )
    assert "".join(order[:6]) == "aaabbb" and "".join(order[6:14]) == "abbaabba" and len(order) == 6 + 50


# exactness


@pytest.mark.parametrize("dtype", exact.DTYPES)
@pytest.mark.parametrize("name", exact.CASES)
def test_the_exactness_set_holds_in_the_interpreter(name, dtype):
    pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
    found = exact.check(name, dtype, "cuda" if not NO_GPU else "cpu", tiny=True)
    assert found["ok"] and not found["refused"], found
    assert len(found["says"]) == 5 and json.dumps(found)


def test_the_exactness_set_tells_wrong_from_right(monkeypatch):
    """Three faults in `tiled`, which stands for a kernel: a wrong dq, noise from run to run, another dropout mask."""
    from flashlib.algorithms import api

    name = "causal, Sq < Sk, GQA"
    assert exact.check(name, "float32", "cpu", tiny=True, impl="tiled")["ok"]
    honest = api._RUN["tiled"]
    noise = itertools.count()

    def noisy(q, k, v, **options):
        o, lse = honest(q, k, v, **options)
        return o * (1 + 2.0**-23 * (next(noise) % 2)), lse

    def late(q, k, v, **options):
        o, lse = honest(q * 1.01, k, v, **options)
        return o, lse

    def reseeded(q, k, v, **options):
        identity = v.shape[-2] == v.shape[-1]  # right but where the mask is read out
        return honest(q, k, v, **options | ({"seed": 1} if identity else {}))

    for fault, case, text in (
        (late, name, "WRONG"),
        (noisy, name, "two runs differ in o"),
        (reseeded, "dropout, its mask as in tiled", "drops other weights"),
    ):
        monkeypatch.setitem(api._RUN, "naive", fault)
        found = exact.check(case, "float32", "cpu", tiny=True, impl="naive")
        assert not found["ok"] and text in "; ".join(found["says"]), fault


def test_a_crash_is_a_wrong_result_and_a_chip_without_tiles_is_not_right(monkeypatch):
    def refuse(*_, **__):
        raise ValueError("attention: no Triton tile for dkdv with D=256, 16-bit, on a chip of capability 7.5")

    from flashlib.algorithms import api

    monkeypatch.setitem(api._RUN, "naive", refuse)
    found = exact.check("causal, D=256", "float16", "cpu", tiny=True, impl="naive")
    assert found["ok"] and found["refused"]
    monkeypatch.setattr(run.exact, "check", lambda name, t, *_: found | {"case": name, "dtype": t})
    assert not run.check_all(parts())["ok"], "nothing was shown"
    monkeypatch.setattr(run.exact, "in_processes", lambda jobs, _: ((i, OSError("gone")) for i in range(len(jobs))))
    checked = run.check_all(parts())
    assert not checked["ok"] and "its process died: OSError: gone" in checked["lines"][0]["says"][0]


def test_jobs_run_in_other_processes():
    import os

    jobs = [(os.getpid, ()), (divmod, (7, 0)), (divmod, (7, 2))]
    found = dict(exact.in_processes(jobs, 1))
    assert found[0] != os.getpid() and isinstance(found[1], ZeroDivisionError) and found[2] == (3, 1)


def test_what_raised_among_others_is_asked_again_alone(monkeypatch):
    asked = []

    def in_processes(jobs, workers):
        asked.append(len(jobs))
        for i, (_, (name, dtype, *_rest)) in enumerate(jobs):
            fine = {"case": name, "dtype": dtype, "ok": True, "refused": False, "raised": False, "says": []}
            yield i, OSError("a neighbour died") if len(jobs) > 1 and i in (0, 2) else fine

    monkeypatch.setattr(run.exact, "in_processes", in_processes)
    monkeypatch.setattr(run, "dtypes", lambda _: ())  # nothing to compile ahead
    assert run.check_all(parts(workers=2))["ok"] and asked == [18, 1, 1]
    asked.clear()
    assert not run.check_all(parts(workers=0))["ok"] and asked == [18]


def test_compilers_that_took_the_time_leave_the_clock_some_and_say_so(monkeypatch):
    now = [0.0]

    def slow(parts):
        now[0] += 500
        return {"ok": True, "lines": []}

    monkeypatch.setattr(run, "check_all", slow)
    monkeypatch.setattr(run, "Budget", lambda s: plan.Budget(s, now=lambda: now[0]))
    result = run.run(parts(clock=FakeClock(1e-5)))
    assert all(m["status"] == "ok" for c in result["cases"] for m in c["methods"].values())
    assert result["plan"]["says"] == [
        "compilers and exactness left 0 s, and 60 s were taken for timing; a second run finds the kernels compiled"
    ]


def test_the_clock_flushes_before_it_starts_and_counts_memory_beyond_what_lived(monkeypatch):
    """torch.cuda replaced by a list of what was asked of it."""
    from flashlib.bench_gpu import clock

    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, end):
            return 2.5  # ms

    class Buffer:
        def zero_(self):
            log.append("flush")

    class Properties:
        L2_cache_size = 2**28

    sizes = []
    monkeypatch.setattr(torch, "empty", lambda n, **_: sizes.append(n) or Buffer())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: log.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 350)
    it = clock.CudaClock("cpu")
    assert sizes == [2**29] == [it.flush_bytes]
    assert it.once(lambda: log.append("call")) == 2.5e-3
    assert log == ["flush", "event", "call", "event", "wait"]
    log.clear()
    assert it.peak(lambda: log.append("call")) == 250
    assert log == ["wait", "reset", "call", "wait"]


def test_why_there_is_no_gpu_to_measure_is_said(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA GPU" in machine.gpu_to_bench()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "not built for CUDA" in machine.gpu_to_bench()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine, "version", lambda _: "3.7.1")
    assert machine.gpu_to_bench() == ""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "unset it" in machine.gpu_to_bench()


# the command, the figure and the page


def bench_command(monkeypatch, tmp_path, capsys, ok=True, **options):
    right(monkeypatch, ok)
    known = dict(as_json=True, out=tmp_path / "r.json", quick=False, anyway=False, figures=None, seconds=60.0)
    code = command.bench(Console(width=200), **(known | options), parts=parts())
    return code, json.loads((tmp_path / "r.json").read_text()), capsys.readouterr().out


def test_a_wrong_result_is_named_and_stops_the_clock(monkeypatch, tmp_path, capsys):
    code, result, out = bench_command(monkeypatch, tmp_path, capsys, ok=False, as_json=False)
    assert code == 1 and result["cases"] == [] and "WRONG: a case, float16" in out
    code, result, out = bench_command(monkeypatch, tmp_path, capsys, ok=False, as_json=False, anyway=True)
    assert code == 1 and len(result["cases"]) == 32 and "timed although a result is wrong" in out


def test_from_json_to_figures_and_page(monkeypatch, tmp_path, capsys):
    """The round trip with invented data: every number of the page is in the JSON, and the links lead to pictures."""
    code, result, out = bench_command(monkeypatch, tmp_path, capsys)
    assert code == 0 and json.loads(out) == result
    result["cases"][0]["methods"]["SDPA math"] = {"status": "refused", "why": "an invented reason"}
    result["cases"][1]["methods"]["SDPA math"] = {"status": "out of memory", "why": "x"}
    result["cases"][2]["methods"]["SDPA math"] = {"status": "not measured", "why": "x"}
    (tmp_path / "docs").mkdir()
    gpu_page.write(tmp_path, result)
    text = (tmp_path / "docs/GPU.md").read_text(encoding="utf-8")
    assert text.startswith("# On a GPU\n") and INVENTED in text and "an invented reason" in text
    assert "| no memory |" in text and "| refuses |" in text and "| not measured |" in text
    assert "no data sheet for this chip" in text and "1000 to 1000 MHz right after work" in text
    pictures = [line for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) == 4
    for line in pictures:
        alt, _, link = line[2:-1].partition("](")
        path = tmp_path / "docs" / link
        assert path.read_bytes().startswith(b"\x89PNG") and path.with_suffix(".txt").read_text().strip() == alt
        assert "at N = 16" in alt and "D = 64, causal" in alt
    tables.show(Console(width=200), result)
    shown = capsys.readouterr().out
    assert "an invented reason" in shown and "no memory" in shown and "Peak extra memory" in shown


def test_the_figure_has_a_panel_for_each_width_and_mask_and_the_roof_of_a_known_chip(monkeypatch):
    right(monkeypatch)
    result = run.run(parts(facts=lambda: facts("NVIDIA A100-SXM4-80GB", sms=108)))
    fig = figure.figure(result, "float16", "forward")
    assert [ax.get_title(loc="left") for ax in fig.axes] == [
        "D = 64, full",
        "D = 64, causal",
        "D = 128, full",
        "D = 128, causal",
    ]
    for ax in fig.axes:
        assert any(t.get_text() == "dense peak 312" for t in ax.texts)
        x, y = next(line for line in ax.lines if line.get_label() == "ours").get_data()
        d, causal = int(ax.get_title(loc="left").split()[2].strip(",")), "causal" in ax.get_title(loc="left")
        want = [plan.Case("forward", causal, n, d, "float16", 32 // n, 128 // d).flop / 0.001 / 1e12 for n in (8, 16)]
        assert list(x) == [8, 16] and list(y) == pytest.approx(want)
    assert "dense peak is 312" in figure.alt(result, "float16", "forward")
    with pytest.raises(ValueError, match="nothing was measured in float64"):
        figure.figure(result, "float64", "forward")


def test_a_roof_belongs_to_one_chip_only():
    assert machine.chip("NVIDIA A100-SXM4-80GB", 108).name == "A100" and machine.chip("Tesla T4", 40).name == "T4"
    assert machine.chip("NVIDIA H200", 132).name == "H200" and machine.chip("NVIDIA L4", 58).name == "L4"
    assert machine.chip("NVIDIA GeForce RTX 4090", 128).name == "RTX 4090"
    for name, sms in (
        ("NVIDIA H100 PCIe", 114), ("NVIDIA H100 NVL", 132), ("NVIDIA GeForce RTX 4090 Laptop GPU", 76),
        ("NVIDIA L40", 142), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14), (INVENTED, 1),
    ):  # fmt: skip
        assert machine.chip(name, sms) is None, name


def test_nvidia_smi_is_read_and_may_be_missing(monkeypatch):
    got = machine.parse_smi("570.12, 400.00, 1410, 1593, 1275, 1593, 41, Enabled\n")
    assert got["driver"] == "570.12" and got["power_limit_w"] == 400 and got["sm_clock_max_mhz"] == 1410
    got = machine.parse_smi("570.12, [N/A], 1410, 1593, [Not Supported], 1593, 41, Enabled\n")
    assert got["power_limit_w"] is None and got["sm_clock_mhz"] is None and got["persistence_mode"] == "Enabled"
    monkeypatch.setenv("PATH", "")
    assert set(machine.smi(None).values()) == {None}


# tuning


def test_tuning_picks_the_fastest_that_compiles_and_is_right():
    class Fake:
        def __init__(self):
            self.asked = []

        def seconds(self, kernel, D, dtype, tile):
            self.asked.append((kernel, D, dtype, tile))
            if kernel == "dq":
                return 1.0  # no tile is better
            if tile[3] == 1:
                return Refusal("refused", "will not run")
            return 1.0 / (tile[0] * tile[1])

        def wrong(self, kernel, D, dtype, tile):
            return "o WRONG" if kernel == "dkdv" else ""

    def ahead(kernel, D, dtype, several, capability):
        for t in several:
            yield t, "spills" if t[0] * t[1] * D > 128 * 128 * 64 else ""

    fake = Fake()
    found = tune.tune(fake, (8, 9), seconds=60, ahead=ahead)
    assert {(f.kernel, f.D, f.dtype) for f in found} == set(itertools.product(tune.KERNELS, tune.WIDTHS, tune.DTYPES))
    assert not any(a[3][0] * a[3][1] * a[1] > 128 * 128 * 64 and a[3] != f.current for a in fake.asked for f in found
                   if a[:3] == (f.kernel, f.D, f.dtype))  # fmt: skip
    by = {(f.kernel, f.D, f.dtype): f for f in found}
    one = by["forward", 64, "16-bit"]
    assert one.proposed[:2] in ((128, 128), (256, 64)) and one.dropped["spills"] > 0
    assert by["dq", 64, "16-bit"].proposed == by["dq", 64, "16-bit"].current
    dkdv = by["dkdv", 64, "16-bit"]
    assert dkdv.proposed == dkdv.current and "is wrong: o WRONG" in dkdv.note
    text = tune.snippet(found, (8, 9))
    row = next(line for line in text.splitlines() if line.startswith("        (8, 9): "))
    widths = eval("{" + row.strip() + "}", {})[8, 9]
    assert sorted(widths) == [64, 128, 256] and widths[64] == one.proposed
    tables.show_tuned(Console(width=200), found, (8, 9))


def test_the_time_limit_of_tuning_is_kept():
    class Slow:
        def seconds(self, *_):
            return 1.0

        def wrong(self, *_):
            return ""

    def ahead(kernel, D, dtype, several, capability):
        yield from ((t, "") for t in several)

    found = tune.tune(Slow(), (8, 0), seconds=0, ahead=ahead)
    assert all(f.tried == 0 and f.note == "time was up" and f.proposed == f.current for f in found)


def test_candidates_start_near_and_stay_in_bounds():
    near = tune.candidates((64, 32, 8, 2))
    assert near[0] == (64, 32, 8, 2) and len(set(near)) == len(near) == 54
    assert all(min(t[:2]) >= 16 and t[3] >= 1 for t in tune.candidates((16, 16, 8, 1)))


def test_an_entry_of_this_chip_comes_first_and_leaves_no_trace():
    before = list(tiles.ENTRIES)
    mine = tiles.Tile("forward", (8, 9), 64, "16-bit", 16, 16, 4, 1)
    with launches.in_table(mine):
        assert tiles.lookup("forward", (8, 9), 64, "16-bit") is mine
        assert tiles.lookup("forward", (8, 6), 64, "16-bit") is not mine
        assert tiles.lookup("forward", (8, 9), 128, "16-bit").D == 128
    rival = mine._replace(capability=(8, 0))  # the table has an entry for this chip and width already
    with launches.in_table(rival):
        assert tiles.lookup("forward", (8, 0), 64, "16-bit") is rival
    assert before == tiles.ENTRIES
    assert launches.compiles_as((8, 9)) == (8, 9) and launches.compiles_as((12, 1)) == (12, 0)
    with pytest.raises(ValueError, match=r"7\.0"):
        launches.compiles_as((7, 0))


def test_candidates_are_compiled_for_the_chip_first():
    pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
    good, huge = (128, 64, 4, 3), (256, 256, 4, 5)
    found = dict(launches.compiled_ahead("forward", 64, "16-bit", [good, huge], (8, 0)))
    assert found[good] == "" and found[huge] in ("shared memory", "spills")


@pytest.mark.parametrize("kernel", tune.KERNELS)
def test_a_launch_of_the_tuner_runs_its_kernel(kernel):
    pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
    clock = FakeClock()
    launch = launches.Launches("cpu" if NO_GPU else "cuda", clock, (8, 0), n=16, tokens=16, hidden=256)
    assert launch.seconds(kernel, 256, "float32", (16, 16, 4, 1)) == pytest.approx(2 * clock.seconds)
    assert clock.calls == 2 * launches.ROUNDS


# without a GPU


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU, and the command would use it")
def test_the_command_says_what_it_measured_instead():
    done = subprocess.run(
        [sys.executable, "-m", "flashlib", "bench", "--quick", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and json.loads(done.stdout)["machine"]["device"] == "cpu"
    assert "no CUDA GPU" in done.stderr and "measured on the CPU instead, naive, tiled and SDPA" in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "flashlib", "bench", "--tune"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout.count("\n") == 1 and "there is no CUDA GPU" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(NO_GPU, reason="needs a CUDA GPU")
def test_the_whole_command_on_a_gpu(tmp_path):
    out = tmp_path / "r.json"
    done = subprocess.run(
        [sys.executable, "-m", "flashlib", "bench", "--quick", "--json", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(c["methods"]["ours"]["status"] == "ok" for c in json.loads(out.read_text())["cases"])


def test_the_page_of_docs_is_what_the_tool_writes():
    text = (ROOT / "docs/GPU.md").read_text(encoding="utf-8")
    assert text.endswith(gpu_page.METHOD)
    if "Not measured yet" in text:
        assert text == gpu_page.EMPTY + gpu_page.METHOD
