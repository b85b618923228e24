"""The one-page sheet says what is so: its code is run."""

import re

import numpy as np

from flashlib.grading.case import Outcome
from flashlib.grading.exactness import Problem
from flashlib.grading.expected import expect
from flashlib.grading.harness import values
from flashlib.grading.inputs import draw
from flashlib.grading.judge import matches
from tests.files import ROOT


def test_the_code_on_the_sheet_is_right():
    text = (ROOT / "docs" / "CHEATSHEET.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {"np": np}
    exec(compile(code, "CHEATSHEET.md", "exec"), names)
    x = draw(3, B=1, Hq=1, Hkv=1, Sq=37, Sk=53, D=20, Dv=9, dtype="float64")
    q, k, v, do = (t[0, 0] for t in x)
    scale = q.shape[1] ** -0.5
    for Br, Bc in ((16, 8), (5, 60)):
        o, lse = names["forward"](q, k, v, scale, Br, Bc)
        dq, dk, dv = names["backward"](do, q, k, v, o, lse, scale)
        Problem(q, k, v, do).compare(o=o, lse=lse, dq=dq, dk=dk, dv=dv).raise_if_wrong()


def test_the_merge_law_on_the_sheet():
    s, v = np.array([0.0, 1, 5, -2, 3]), np.arange(10.0).reshape(5, 2)

    def part(s, v):
        m = s.max()
        p = np.exp(s - m)
        return m + np.log(p.sum()), p @ v / p.sum()

    (lse1, o1), (lse2, o2) = part(s[:2], v[:2]), part(s[2:], v[2:])
    lse = np.log(np.exp(lse1) + np.exp(lse2))
    merged = o1 * np.exp(lse1 - lse) + o2 * np.exp(lse2 - lse)
    finding = matches(*expect(("lse", "o"), part, (s, v), longest=5))(Outcome(values((lse, merged))))
    assert finding.ok, finding
