"""`python -m flashlib`: doctor on a sound machine and on machines that lack something, and a short bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files import ROOT

# Put before everything else on the path, this makes a package look as if it were not installed.
HIDE = """
import importlib.abc, importlib.metadata, sys
HIDDEN = {hidden!r}
class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hider())
_version = importlib.metadata.version
def version(name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return _version(name)
importlib.metadata.version = version
"""


def flashlib(
    *words: str, without: tuple[str, ...] = (), folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process, with some packages hidden."""
    code = (
        HIDE.format(hidden=without) + f"sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['flashlib', *{list(words)!r}]\n"
    )
    code += "import runpy; runpy.run_module('flashlib', run_name='__main__', alter_sys=False)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder or ROOT)


def test_doctor_json() -> None:
    done = flashlib("doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["ok"] and facts["install"] == [] and facts["chip"]["kind"] in ("cpu", "cuda")
    assert [c["number"] for c in facts["chapters"]] == list(range(len(facts["chapters"]))) and facts["chapters"]
    assert all(c["runs"] for c in facts["chapters"])


def test_doctor_tables() -> None:
    done = flashlib("doctor")
    assert done.returncode == 0 and "Nothing is missing." in done.stdout and "03 · Online softmax" in done.stdout


@pytest.mark.parametrize("missing", ["torch", "triton", "matplotlib", "ipywidgets", "jupyterlab", "numpy"])
def test_doctor_without(missing: str, tmp_path: Path) -> None:
    done = flashlib("doctor", "--json", without=(missing,), folder=tmp_path)
    if missing == "triton" and sys.platform != "linux":
        pytest.skip("triton is not asked for outside Linux")
    assert done.returncode == 1, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["packages"][missing]["problem"] == "missing" and len(facts["install"]) == 1
    stuck = [c["number"] for c in facts["chapters"] if not c["runs"]]
    numbers = [c["number"] for c in facts["chapters"]]
    needs = {"torch": [n for n in numbers if n not in (1, 3)], "triton": [6, 7, 8], "jupyterlab": []}
    assert stuck == needs.get(missing, numbers)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_command_lines_own_packages(missing: str) -> None:
    done = flashlib("doctor", without=(missing,))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"needs {missing}; run:" in done.stderr


def test_bench_quick(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = flashlib("bench", "--cpu", "--quick", "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads(out.read_text())
    assert result["machine"]["device"] == "cpu" and len(result["cases"]) == 12
    for case in result["cases"]:
        assert set(case["methods"]) == {"naive", "tiled", "sdpa"}
        assert all(m["median_s"] > 0 and m["runs"] >= 3 for m in case["methods"].values())
    assert len(result["exponents"]) == 4
