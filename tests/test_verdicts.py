"""Verdicts: computed from evidence, complete, and never an assertion."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from flashlib.show.verdicts import Verdicts, could_differ

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "13_claims_checked.ipynb"
GOOD = {"evidence": {"error": 2.0, "budget": 1.0}, "right": "The other way round.", "source": ("Paper, §1", "x.html")}


def by_budget(error, budget):
    return "false" if error > budget else "true"


def test_the_ruling_comes_from_the_evidence(capsys):
    book = Verdicts()
    assert book.verdict("2", "It is so.", rule=by_budget, **GOOD).ruling == "false"
    assert book.verdict("2", "It is so.", rule=by_budget, **{**GOOD, "evidence": {"e": 0.5, "b": 1.0}}).ruling == "true"
    assert len(book) == 1, "deciding again replaces"
    shown = capsys.readouterr().out
    assert "error: 2; budget: 1" in shown and "Paper, §1, x.html" in shown and "The other way round." in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": lambda e, b: ""}, "begins with one of"),
        ({"rule": lambda e, b: "perhaps"}, "begins with one of"),
        ({"rule": lambda e, b: "false"}, "it is an assertion"),
        ({"evidence": {}}, "no evidence, no verdict"),
        ({"evidence": {"error": "large", "budget": 1.0}}, "numbers, not words"),
        ({"right": " "}, "the right statement"),
        ({"source": ("Paper", "")}, "name a source and its link"),
        ({"source": []}, "name a source and its link"),
    ],
)
def test_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Verdicts().verdict("1", "It is so.", **{**GOOD, "rule": by_budget, **change})


def test_numbers_counts_and_what_is_missing(capsys):
    book = Verdicts()
    for number, error in (("10a", 2.0), ("2", 0.5), ("b", 2.0)):
        book.verdict(number, "It is so.", rule=by_budget, **{**GOOD, "evidence": {"error": error, "budget": 1.0}})
    book.verdict(
        "3", "It is.", rule=lambda few: "true when few" if few else "false", **{**GOOD, "evidence": {"f": True}}
    )
    assert [v.number for v in book] == ["2", "3", "10a", "b"]
    assert book.counts() == {"true": 1, "true when …": 1, "false": 2}
    assert book.missing(range(2, 12)) == [4, 5, 6, 7, 8, 9, 11]
    book.table("all")
    said = capsys.readouterr().out
    assert said.count("Paper, §1") == 4 and said.count("The other way round.") == 8  # with each, and in the table
    with pytest.raises(ValueError, match="needs a number"):
        book.verdict("x1", "It is so.", rule=by_budget, **GOOD)


def test_arrays_are_evidence():
    v = Verdicts().verdict(
        "1", "It grows.", evidence={"sizes": np.array([1.0, 2.0]), "all": np.bool_(True)},
        rule=lambda sizes, every: "true" if sizes[1] > sizes[0] and every else "false", right="Yes.", source=("a", "b"),
    )  # fmt: skip
    assert v.evidence == {"sizes": [1.0, 2.0], "all": True} and v.because == "sizes: 1, 2; all: yes"
    assert could_differ(lambda x: "true" if x > 3 else "false", [2], "false")
    assert not could_differ(lambda x: "true", [2], "true")
    both = {
        "both": lambda a, b: "true" if a < 1 and b < 1 else "false",
        "last": lambda r: "true" if r[-1] > 9 > r[0] else "false",
    }
    assert could_differ(both["both"], [5, 5], "false") and could_differ(both["last"], [[1, 1]], "false")


def test_long_lists_are_shown_by_their_ends(capsys):
    Verdicts().verdict(
        "1", "Wide.", **{**GOOD, "evidence": {"r": list(range(1, 12))}}, rule=lambda r: "true" if r[0] else "false"
    )
    assert "r: 11 numbers from 1 to 11" in capsys.readouterr().out


def test_every_rule_of_the_notebook_asks_its_evidence():
    """None by assertion: each rule branches on one of its own parameters, which are the evidence."""
    seen = 0
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code" or cell["id"] == "setup":
            continue
        tree = ast.parse("".join(cell["source"]))
        functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            if getattr(call.func, "attr", "") != "verdict":
                continue
            rule = next(k.value for k in call.keywords if k.arg == "rule")
            if isinstance(rule, ast.Name) and rule.id in functions:
                rule = functions[rule.id]
            if isinstance(rule, ast.Name):  # defined in an earlier cell: found there by the next loop
                seen += 1
                continue
            names = {a.arg for a in (*rule.args.args, rule.args.vararg) if a}
            tests = [n.test for n in ast.walk(rule) if isinstance(n, ast.IfExp | ast.If)]
            assert any(names & {m.id for m in ast.walk(t) if isinstance(m, ast.Name)} for t in tests), cell["id"]
            seen += 1
    assert seen >= 19
