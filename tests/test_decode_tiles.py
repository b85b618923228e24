"""The decode kernel's tiles, compiled for chips that are not here."""

import datetime
import random
import re

import pytest

from flashlib.instruments.compiled import Job, compile_all
from flashlib.instruments.occupancy import CAPABILITIES
from flashlib.instruments.tile_table import all_entries, cases, compile_table
from tests.files import ROOT

triton = pytest.importorskip("triton", reason="triton is not installed here")
from flashlib.algorithms import decode_tiles, triton_decode  # noqa: E402

PINNED = re.search(r"^triton==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
pinned = pytest.mark.skipif(triton.__version__ != PINNED, reason=f"registers are promised for triton {PINNED}")


def test_every_chip_width_and_dtype_has_a_tile():
    found = {(c.capability, c.D, c.dtype) for c in cases(decode_tiles.ENTRIES)}
    dtypes = {chip: 2 if chip < (8, 0) else 3 for chip in CAPABILITIES}
    assert len(CAPABILITIES) == 7 and len(found) == sum(5 * n for n in dtypes.values())
    assert {c.kernel for c in cases(all_entries())} == {"forward", "dkdv", "dq", "decode"}


@pinned
def test_a_sample_of_the_table():
    """Another sample every day; `python -m flashlib compile --kernel decode` takes the whole table."""
    day = datetime.date.today().isoformat()
    sample = random.Random(day).sample(cases(decode_tiles.ENTRIES), 5)
    for i, result in compile_table(sample, jobs=2):
        assert sample[i].faults(result) == [], (day, sample[i])


@pinned
def test_pages_and_the_merge_compile_for_all_seven_chips():
    """With a table of pages, and fewer rows than the entry allows: as a launch of one token is."""
    paged = []
    for case in cases(decode_tiles.ENTRIES, dtype="float16", width=64):
        job = case.job()
        arguments = job.arguments | {"PAGE": 16, "BLOCK_R": 16, "Sq": 1}
        paged.append(Job(job.kernel, arguments, job.capability, job.num_warps, job.num_stages))
    small = {"O": "*fp32", "LSE": "*fp32", "OUT": "*fp16", "LSE_OUT": "*fp32"}
    sizes = {"n_rows": 32, "SPLITS": 8, "DV": 64, "BLOCK_DV": 64}
    merges = [Job(triton_decode.merge_kernel, small | sizes, chip, 1, 1) for chip in ((7, 5), (9, 0))]
    for i, built in compile_all([*paged, *merges], jobs=2):
        assert not isinstance(built, Exception), built
        assert built.fits and not built.spills, str(built)
        assert i >= 7 or bool(built.inner.tensor_core) == (built.capability >= (8, 0))
