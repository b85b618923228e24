"""Where the instructions of the inner loops go: the kinds, docs/LOOPS.md, and that the page speaks of these kernels."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from flashlib.instruments import loop_table, sass, sass_kinds
from flashlib.instruments.loop_table import BEGIN, END, LIMITS, Page, Row
from tests.files import ROOT

PAGE = ROOT / "docs" / "LOOPS.md"
COMMAND = "run `python -m flashlib loops --write docs/LOOPS.md` with triton 3.8"

OF_EACH_KIND = {
    "dot": "HMMA.16816.F32 HGMMA.64x64x16.F32 UTCHMMA IMMA QMMA.16832",
    "exp2": "MUFU.EX2 MUFU.RCP",
    "max": "FMNMX FMNMX3",
    "convert": "F2FP.PACK_AB F2F.F16.F32 I2F.S32 HADD2.F32",
    "scale, add": "FFMA FMUL FADD FFMA2 HFMA2.MMA HADD2 DFMA",
    "compare, choose": "FSETP.NEU.AND ISETP.GT.AND FSEL SEL USEL PLOP3.LUT P2R HSETP2.NE.AND UISETP.GE.AND.EX",
    "exchange": "SHFL.BFLY REDUX.MAX VOTEU.ANY",
    "load, store": "LDSM.16.M88.4 LDGSTS.E.BYPASS.128 LDG.E.128 STS.128 LDL STL LDTM.16 ATOMS REDG.E UTMALDG.2D",
    "move": "MOV IMAD.MOV.U32 UMOV PRMT CS2R R2UR.FILL S2R LDC ULDC LDCU",
    "integer": "IMAD.WIDE.U32 IADD3.X UIADD3.64 LEA.HI.X SHF.R.S32.HI LOP3.LUT IMNMX VIMNMX3 VIADD USGXT.U32",
    "control": "BRA.U CALL.REL.NOINC BAR.SYNC.DEFER_BLOCKING LDGDEPBAR DEPBAR.LE SYNCS.PHASECHK WARPGROUP.ARRIVE EXIT",
    "other": "NOSUCH.THING",
}


@pytest.mark.parametrize("kind", sass_kinds.KINDS)
def test_kind(kind: str) -> None:
    assert {sass_kinds.kind_of(name) for name in OF_EACH_KIND[kind].split()} == {kind}


def test_every_instruction_is_of_one_kind() -> None:
    """Nothing is dropped but padding, and what no rule knows stands under its own name."""
    names = " ".join(OF_EACH_KIND.values()).split()
    counts = sass.count([*names, "NOP"])
    assert sum(counts.kinds.values()) == counts.total == len(names) and counts.kinds["other"] == 1
    assert sass_kinds.unknown(counts.by_name) == {"NOSUCH.THING": 1}
    assert list(counts.kinds) == list(sass_kinds.KINDS) == list(OF_EACH_KIND)


def row(total: int, **other: object) -> Row:
    kinds = dict.fromkeys(sass_kinds.KINDS, 0) | {"dot": 128, "other": 2, "integer": total - 130}
    return Row(
        **{"chip": "sm80", "kernel": "forward", "D": 64, "tile": "128×64 w4 s3", "tiles": "full", **other}, kinds=kinds
    )


def test_limits_hold_for_their_own_loops_and_triton() -> None:
    over = [row(n + 1, chip=chip, D=D, tile=f"128×64 w{D // 16} s3") for (chip, D), n in LIMITS.items()]
    kept = [row(r.total - 1, chip=r.chip, D=r.D, tile=r.tile) for r in over]
    free = [row(9999, tiles="masked"), row(9999, kernel="dq"), row(9999, chip="sm86"), row(9999, tile="128×128 w8 s3")]
    assert len(loop_table.faults(Page("3.8.0", "x", over + free, {}))) == 4
    assert loop_table.faults(Page("3.8.0", "x", kept + free, {})) == []
    assert loop_table.faults(Page("3.7.1", "x", over, {})) == []
    assert row(640).per_score == 640 * 128 / (128 * 64)


def test_a_page_is_read_as_it_was_written(tmp_path) -> None:
    page = Page("3.8.0", "0123456789ab", [row(690), row(1834, tiles="masked")], {"NOSUCH.THING": 3, "OTHER": 1})
    path = tmp_path / "page.md"
    path.write_text(f"# Title\n\n{BEGIN}\n{END}\n\nThe end.\n", encoding="utf-8")
    loop_table.write(page, path)
    text = path.read_text(encoding="utf-8")
    assert text == f"# Title\n\n{loop_table.render(page)}\n\nThe end.\n" and loop_table.parse(text) == page
    assert "690 **over** | 671 | 707" in text
    path.write_text("# Title\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks"):
        loop_table.write(page, path)
    with pytest.raises(ValueError, match="no text between"):
        loop_table.parse("# Title\n")


def committed() -> Page:
    return loop_table.parse(PAGE.read_text(encoding="utf-8"))


def test_the_committed_page_has_the_form_the_command_writes() -> None:
    """Totals, the table of limits and a score follow from the kinds: a number changed by hand does not stand."""
    text, page = PAGE.read_text(encoding="utf-8"), committed()
    assert loop_table.render(page) in text, COMMAND
    assert page.triton.startswith(loop_table.TRITON + ".")
    assert sum(page.others.values()) == sum(r.kinds["other"] for r in page.rows)
    sixteen = [r for r in page.rows if r.chip != "sm75"]
    assert all(r.kinds["dot"] for r in sixteen) and all(r.kinds["exp2"] for r in page.rows)


def test_the_committed_page_keeps_the_limits() -> None:
    assert loop_table.faults(committed()) == []
    assert {(r.chip, r.D) for r in committed().rows if r.limit} == set(LIMITS)


def test_the_committed_page_holds_the_tiles_of_today() -> None:
    wanted = [(c.chip, c.kernel, c.D, loop_table.tile_of(c)) for c in loop_table.loop_cases()]
    assert [r[:4] for r in committed().rows] == [w for w in wanted for _ in ("full", "masked")], COMMAND


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed here")
def test_the_committed_page_speaks_of_the_kernels_of_today() -> None:
    assert committed().digest == loop_table.digest(), f"the kernels have changed: {COMMAND}"
