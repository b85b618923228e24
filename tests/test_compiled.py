"""Ahead-of-time compilation: what is read from the assembler, how arguments are described, what is refused."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from flashlib.algorithms import tiles
from flashlib.cli import app
from flashlib.instruments import loop_table, sass
from flashlib.instruments.compiled import Compiled, CompileError, Job, compile_all, compile_for
from flashlib.instruments.kernel_text import describe, kernel_text
from flashlib.instruments.occupancy import CAPABILITIES, limits, occupancy
from flashlib.instruments.tile_table import all_entries, cases, compile_table
from tests.files import ROOT

pytest.importorskip("triton", reason="triton is not installed here")
import triton

from tests import compiled_kernels

SQUARE = (4096, 1)
# The triton that the tiles are promised for; on others they must compile, fit and use tensor cores.
PINNED = re.search(r"^triton==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]


def arguments(tile: tuple[int, int, int], dtype: str = "*fp16") -> dict:
    M, N, K = tile
    strides = dict.fromkeys(("a_strides", "b_strides", "c_strides"), SQUARE)
    return {"A": dtype, "B": dtype, "C": dtype, **strides, "K": 4096, "M": M, "N": N, "BLOCK_K": K}


@pytest.fixture(scope="module")
def made() -> dict[str, Compiled | CompileError]:
    """All that the tests below compile, by two processes."""
    jobs = {
        "sm80": Job(compiled_kernels.matmul, arguments((64, 64, 32)), (8, 0)),
        "sm90": Job(compiled_kernels.matmul, arguments((64, 64, 32)), (9, 0)),
        "sm75": Job(compiled_kernels.matmul, arguments((32, 32, 16)), (7, 5), 4, 1),
        "float32": Job(compiled_kernels.matmul, arguments((32, 32, 16), "*fp32"), (8, 0), 4, 1),
        "deep": Job(compiled_kernels.matmul, arguments((64, 128, 64)), (8, 9), 4, 6),
        "wide": Job(compiled_kernels.matmul, arguments((128, 64, 16)), (8, 0), 1, 1),
        "no dot": Job(compiled_kernels.largest, {"X": "*fp32", "O": "*fp32", "n": 100, "BLOCK": 128}, (8, 0)),
        "broken": Job(compiled_kernels.broken, {"X": "*fp32", "n": 16}, (8, 0)),
    }
    found = dict(compile_all(jobs.values(), jobs=2))
    return {name: found[i] for i, name in enumerate(jobs)}


@pytest.mark.parametrize(("chip", "instruction"), [("sm80", "HMMA"), ("sm90", "HGMMA")])
def test_tensor_cores_are_found(made: dict, chip: str, instruction: str) -> None:
    c = made[chip]
    assert c.fits and not c.spills and 0 < c.shared_bytes <= c.shared_limit and 0 < c.registers <= 255
    (loop,) = c.loops
    assert (
        loop is c.inner and loop.tensor_core > 0 and loop.total > loop.tensor_core + loop.load_store > loop.tensor_core
    )
    assert {name.split(".")[0] for name in loop.by_name if "MMA" in name} == {instruction}
    assert instruction in c.sass and ".entry matmul" in c.ptx.replace("visible ", "")
    assert 1 <= c.occupancy.blocks <= limits(c.capability).blocks and "tensor core" in str(c)
    if chip == "sm80":  # 64 · 64 · 32 products by 4 warps, 16 · 8 · 16 of them an instruction
        assert loop.tensor_core == 64 * 64 * 32 // (4 * 16 * 8 * 16)


@pytest.mark.parametrize("name", ["sm75", "float32"])
def test_without_tensor_cores_the_dot_is_multiply_adds(made: dict, name: str) -> None:
    (loop,) = made[name].loops
    products = 32 * 32 * 16 // 128  # a thread
    assert loop.tensor_core == 0 and loop.fma % products == 0 and loop.fma >= products


def test_what_does_not_fit_says_why(made: dict) -> None:
    deep, wide = made["deep"], made["wide"]
    assert not deep.fits and deep.occupancy.blocks == 0 and "shared memory" in deep.why[0], deep
    assert str(deep.shared_bytes) in deep.why[0] and "does not fit" in str(deep)
    assert wide.fits and wide.spills and wide.registers == 255, wide
    assert made["no dot"].loops == () and made["no dot"].inner is None and "no loop" in str(made["no dot"])
    assert isinstance(made["broken"], CompileError) and "no_such_thing" in str(made["broken"])


LAUNCHER = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature
import triton, triton.language as tl
from flashlib.instruments.kernel_text import describe
@triton.jit
def kernel(A, B, s, t, n, m, f, z, flag, big, M: tl.constexpr, N: tl.constexpr = 3): pass
backend = make_backend(GPUTarget("cuda", 80, 32))
given = dict(s=(4096, 1), t=(2**33, (7, 16), 3), n=1, m=48, f=0.5, z=None, flag=True, big=2**63 + 1, M=16)
bind = create_function_from_signature(kernel.signature, kernel.params, backend)
bound, special, _ = bind(A=MockTensor(tl.float16), B=MockTensor(tl.float32), **given)
_, signature, constexprs, attrs = kernel._pack_args(backend, {}, bound, special, {})
ours = describe(kernel, {**given, "A": "*fp16", "B": "*fp32"})
print(ours == (signature, constexprs, {k: v for k, v in attrs.items() if v}), ours)
"""


def run(code: str, folder: Path, **environment: str) -> str:
    """What a new Python prints: Triton interprets or compiles, as the environment says, from its first import on."""
    (folder / "code.py").write_text(code, encoding="utf-8")  # @triton.jit reads its source from a file
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, folder / "code.py"], capture_output=True, text=True,
        env={**inherited, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_compiler_that_dawdles_is_stopped_and_replaced() -> None:
    work = [Job(compiled_kernels.largest, {"X": "*fp32", "O": "*fp32", "n": 100, "BLOCK": n}, (8, 0)) for n in (32, 64)]
    late = dict(compile_all(work, jobs=1, timeout_s=0.01))
    assert all("compiling largest for sm80 took longer than 0.01 s" in str(late[i]) for i in (0, 1))


def test_an_interpreting_process_compiles_a_kernel_of_a_cell(tmp_path: Path) -> None:
    """TRITON_INTERPRET=1, a kernel that lies in no file, with a helper and a global: as in a notebook."""
    cell = (
        "import triton\nimport triton.language as tl\nfrom triton.language import cdiv\nTWO = tl.constexpr(2.0)\n"
        "@triton.jit\ndef twice(x):\n    return x * TWO\n"
        "@triton.jit\ndef kernel(X, n: tl.constexpr):\n"
        "    at = X + cdiv(n, n) + tl.arange(0, n)\n    tl.store(at, twice(tl.load(at)))\n"
    )
    code = (
        f"import linecache, sys\ncell = {cell!r}\n"
        "linecache.cache['<cell>'] = (len(cell), None, cell.splitlines(True), '<cell>')\n"
        "exec(compile(cell, '<cell>', 'exec'))\n"
        "from flashlib.instruments.compiled import compile_for\n"
        "made = compile_for(kernel, {'X': '*fp32', 'n': 128}, capability=(8, 0))\n"
        "print(type(kernel).__name__, made.registers, 'torch' in sys.modules)\n"
    )
    kind, registers, torch = run(code, tmp_path, TRITON_INTERPRET="1").split()
    assert kind == "InterpretedFunction" and int(registers) > 0 and torch == "False"


def test_arguments_are_described_as_the_launcher_does(tmp_path: Path) -> None:
    """Triton's own launcher specialises the same arguments: types, constants and what divides by 16."""
    assert run(LAUNCHER, tmp_path).startswith("True")


def test_wrong_arguments_are_named() -> None:
    kernel, right = compiled_kernels.matmul, arguments((16, 16, 16))
    assert describe(kernel, {**right, "A": np.zeros(3, np.float16)}) == describe(kernel, right)
    for wrong, message in (
        ({"A": "*fp16"}, "'B' is missing"),
        ({**right, "Z": 1}, "no parameter Z"),
        ({**right, "K": [1]}, "'K' cannot be a list"),
        ({**right, "a_strides": (4096, "4096", [1])}, r"'a_strides\[2\]' cannot be a list"),
    ):
        with pytest.raises(TypeError, match=message):
            describe(kernel, wrong)


def test_a_kernel_travels_with_what_it_calls() -> None:
    name, text = kernel_text(compiled_kernels.matmul)
    assert name == "matmul" and Counter(text.split("\n"))["@triton.jit"] == 2 and "ZERO = tl.constexpr(0.0)" in text
    assert text.index("def tile_of") < text.index("def matmul") and "largest" not in text
    assert "LOWEST = tl.constexpr(float('-inf'))" in kernel_text(compiled_kernels.largest)[1]
    with pytest.raises(TypeError, match="no Triton kernel"):
        kernel_text(3)
    with pytest.raises(ValueError, match=r"\(9, 9\) is not known"):
        compile_for(compiled_kernels.largest, {}, capability=(9, 9))


def test_loops_are_found_in_sass() -> None:
    """A loop, a cold block behind EXIT that waits and returns into it, and the trap loop at the end."""
    lines = """
        S2R R0, SR_TID.X | HMMA.16816.F32 R4, R8, R12, R4 | SYNCS.PHASECHK P0, [UR4] | @!P0 BRA 0x70
        MUFU.EX2 R1, R2 | @P1 BRA 0x10
        EXIT | SYNCS.PHASECHK P0, [UR4] | @!P0 BRA 0x70 | BRA 0x40 | BRA 0xa0 | NOP"""
    code = [line.strip() for line in lines.replace("\n", "|").split("|") if line.strip()]
    listing = "\n".join(
        f"        /*{16 * i:04x}*/                   {line} ;    /* 0x0 */" for i, line in enumerate(code)
    )
    (loop,) = sass.dot_loops(listing)
    assert sass.dot_loops(listing.replace(" ;", "   &req={2}   ?WAIT15_END_GROUP ;")) == [loop]  # Blackwell, triton 3.6
    assert (loop.tensor_core, loop.special_function, loop.total) == (1, 1, 8)
    assert loop.by_name["SYNCS.PHASECHK"] == 2  # once in line, once in the cold block
    with pytest.raises(ValueError, match="REG:"):
        sass.usage("nothing")


def test_kinds_of_instructions() -> None:
    names = "HFMA2.MMA FFMA UTCHMMA HGMMA.64x64x16 LDGSTS.E.128 LDGDEPBAR LDC LDSM.16 STL MUFU.RCP"
    c = sass.count([*names.split(), "NOP"])
    assert (c.tensor_core, c.fma, c.load_store, c.spills, c.special_function, c.total) == (2, 2, 3, 1, 1, 10)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_occupancy_never_passes_a_limit(capability: tuple[int, int]) -> None:
    chip = limits(capability)
    for registers in (16, 40, 128, 168, 255):
        for shared in (0, 1024, 40_000, chip.shared_per_block, chip.shared_per_block + 1):
            for warps in (1, 4, 8):
                o = occupancy(capability, registers, shared, warps)
                assert o.limits and o.blocks * warps * 32 <= chip.threads and o.blocks <= chip.blocks
                assert o.blocks * (shared + chip.reserved) <= chip.shared_per_sm and 0 <= o.fraction <= 1
                assert o.blocks * warps * 32 * registers <= 65_536 and (o.blocks > 0 or shared > chip.shared_per_block)


def test_occupancy_of_known_kernels() -> None:
    """By hand: 128 registers let 16 warps in, 255 (given as 256) let 8; 164 KiB hold 50,176 B and 1 KiB three times."""
    assert occupancy((8, 0), 128, 0, 4).blocks == 4 and occupancy((8, 0), 128, 0, 4).limits == ("registers",)
    assert occupancy((8, 0), 255, 0, 4).blocks == 2
    by_memory = occupancy((8, 0), 32, 50_176, 4)
    assert (by_memory.blocks, by_memory.limits, by_memory.fraction) == (3, ("shared memory",), 384 / 2048)
    assert occupancy((7, 5), 32, 0, 8).limits == ("threads",) and occupancy((8, 6), 16, 0, 1).limits == ("blocks",)


def entry(**other: object) -> SimpleNamespace:
    sizes = dict(kernel="forward", capability=(8, 0), D=64, dtype="16-bit", block_m=64, block_n=64, warps=4, stages=2)
    return SimpleNamespace(**{**sizes, "when": "", **other})


def test_cases_of_the_table() -> None:
    """By the rule of `tiles.lookup`: the nearest chip at or below, and there the smallest width that holds D."""
    entries = [entry(), entry(D=256), entry(capability=(7, 5)), entry(capability=(9, 0), D=128), entry(dtype="float32")]
    found = cases(entries)
    by_entry = Counter(
        (c.chip, c.entry.capability, c.entry.dtype, c.entry.D) for c in found if c.chip in ("sm75", "sm86")
    )
    assert by_entry == {
        ("sm75", (7, 5), "16-bit", 64): 3, ("sm86", (8, 0), "16-bit", 64): 6, ("sm86", (8, 0), "16-bit", 256): 4,
        ("sm86", (8, 0), "float32", 64): 3,
    }  # fmt: skip
    above = {(c.D, c.entry.capability, c.entry.D) for c in found if c.chip == "sm120" and c.dtype == "bfloat16"}
    assert above == {(d, (9, 0), 128) for d in (16, 32, 64, 128)} | {(256, (8, 0), 256)}
    (one,) = cases(entries, chip="sm86", dtype="bfloat16", width=32, kernel="forward")
    assert (one.chip, one.D, one.dtype) == ("sm86", 32, "bfloat16") and cases(entries, kernel="dq") == []


def test_entries_stand_in_for_dropout_and_for_padded_widths() -> None:
    """The nearest chip's plain entry, or the one beside it for the occasion; those for unaligned rows come first."""
    names = {64: "", 16: "dropout", 128: "masked", 32: "unaligned"}
    table = [entry(block_m=m, when=when) for m, when in names.items()] + [entry(block_m=256, capability=(9, 0))]

    def found(D: int, dropout: bool, capability: tuple[int, int] = (8, 6)) -> str:
        one = tiles.best(tiles.fitting(table, "forward", capability, D, "16-bit", dropout))
        return names.get(one.block_m, "sm90")

    assert [found(D, False) for D in (16, 32, 64, 48, 40, 24, 8)] == ["", "", "", "masked", *["unaligned"] * 3]
    assert [found(D, True) for D in (64, 48, 40)] == ["dropout", "masked", "unaligned"]
    assert [found(D, True, (9, 0)) for D in (64, 48, 40)] == ["sm90", "sm90", "unaligned"]
    short = Counter((c.D, c.short, names[c.entry.block_m]) for c in cases(table[:4], ragged=True, chip="sm80"))
    assert short == dict.fromkeys(
        [(16, 8, "unaligned"), (32, 8, "unaligned"), (64, 16, "masked"), (64, 8, "unaligned")], 2
    )
    assert {c.arguments(c.job().kernel)["D"] for c in cases(ragged=True, width=128)} == {96, 120}
    assert {c.kernel for c in cases(all_entries(), dropout=True)} == {"forward", "dkdv", "dq"}  # decode has none


def test_the_table_says_what_is_wrong(made: dict) -> None:
    (case,) = cases([entry()], dtype="float16", chip="sm80", width=16)
    assert case.faults(made["sm80"]) == [] and "spills" in case.faults(made["wide"])[0]
    assert "shared memory" in case.faults(made["deep"])[0]
    assert case.faults(made["float32"]) == ["no tensor-core instructions"]
    assert "no loop" in case.faults(made["no dot"])[0] and "no_such_thing" in " ".join(case.faults(made["broken"]))


def test_a_sample_of_the_real_table() -> None:
    """Another sample every day, also with dropout and of padded widths; `python -m flashlib compile` takes them all."""
    day = datetime.date.today().isoformat()
    draw = random.Random(day).sample
    sample = draw(cases(), 8) + draw(cases(dropout=True), 2) + draw(cases(ragged=True), 2)
    # and always these three, where the plain tiles spill
    sample += cases(kernel="forward", dtype="float16", chip="sm80", width=64, dropout=True)
    sample += cases(kernel="forward", dtype="float16", chip="sm86", width=128, ragged=True)
    for i, result in compile_table(sample, jobs=2):
        faults = sample[i].faults(result)
        if triton.__version__ != PINNED:  # registers are given out anew by every compiler: there, spills are told
            print(*(f"{sample[i].kernel} {sample[i].chip} {f}" for f in faults if f.startswith("spills")), sep="\n")
            faults = [f for f in faults if not f.startswith("spills")]
        assert faults == [], (day, sample[i])


def test_the_command() -> None:
    """One entry of the real table; a chip that nobody has is refused."""
    small = cases(kernel="dq", chip="sm80", dtype="float16", width=16)
    words = [
        "compile",
        "--kernel",
        "dq",
        "--chip",
        "sm80",
        "--dtype",
        "float16",
        "--width",
        "16",
        "--jobs",
        "1",
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    rows = json.loads(done.stdout)
    assert done.exit_code == int(any(r["faults"] for r in rows)), done.output
    assert [(r["kernel"], r["chip"], r["D"]) for r in rows] == [(c.kernel, c.chip, c.D) for c in small] and small
    words[words.index("sm80")] = "sm81"
    assert CliRunner().invoke(app, words).exit_code == 2


def test_the_inner_loops_keep_their_limits() -> None:
    """The forward's loop over full tiles is lighter than that of Triton's own tutorial; docs/LOOPS.md says the same."""
    if not triton.__version__.startswith(loop_table.TRITON + "."):
        pytest.skip(
            f"the limits are for triton {loop_table.TRITON}, this is {triton.__version__}; `make triton-legs` has it"
        )
    table = loop_table.limited()
    found = dict(compile_table(table, jobs=2))
    page = loop_table.page_of(table, [found[i] for i in range(len(table))])
    print(*(f"{r.chip} D={r.D}: {r.total} of {r.limit}" for r in page.rows if r.limit), sep="\n")
    assert len([r for r in page.rows if r.limit]) == 4 and loop_table.faults(page) == []
    written = loop_table.parse((ROOT / "docs" / "LOOPS.md").read_text(encoding="utf-8"))
    if written.triton == triton.__version__:
        assert [r for r in page.rows if r not in written.rows] == [], "write docs/LOOPS.md again"


def test_the_command_for_loops(tmp_path: Path) -> None:
    """One chip, whose loops have no limit; an unknown chip, and a page that would lack chips, are refused."""
    done = CliRunner().invoke(app, ["loops", "--chip", "sm89", "--json", "--jobs", "2"])
    rows = json.loads(done.stdout)
    assert done.exit_code == 0 and len(rows) == 12, done.output
    for full, masked in zip(rows[::2], rows[1::2], strict=True):
        assert full["tiles"] == "full" and 0 < full["total"] < masked["total"]
        assert min(full["kinds"]["dot"], masked["kinds"]["dot"]) > 0 and full["kinds"]["other"] == 0
        assert sum(full["kinds"].values()) == full["total"]
    assert CliRunner().invoke(app, ["loops", "--chip", "sm81"]).exit_code == 2
    assert CliRunner().invoke(app, ["loops", "--chip", "sm89", "--write", str(tmp_path / "x.md")]).exit_code == 2
