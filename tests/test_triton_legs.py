"""tools/triton_legs.py: a leg that fails, or that cannot be fetched, is never taken for one that passed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import triton_legs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton exists for Linux only")


def legs(monkeypatch, tmp_path: Path, *, why: str = "", code: str = "", version: str = "1.2.3", words=()) -> int:
    """The tool's exit status with one leg whose folder holds a triton of some version, and one test."""
    folder = tmp_path / "triton"
    (folder / f"triton-{version}.dist-info").mkdir(parents=True, exist_ok=True)
    (folder / f"triton-{version}.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n"
    )
    test = tmp_path / "test_one.py"
    test.write_text(f"def test_one():\n    {code or 'pass'}\n")
    monkeypatch.setattr(triton_legs, "LEGS", (triton_legs.Leg("1.2.3", "", (str(test), "-c", "/dev/null")),))
    monkeypatch.setattr(triton_legs, "fetch", lambda leg: (folder, why))
    monkeypatch.setattr(sys, "argv", ["triton_legs", *words])
    return triton_legs.main()


def test_a_leg_passes_or_fails(monkeypatch, tmp_path, capsys) -> None:
    assert legs(monkeypatch, tmp_path) == 0
    assert "triton 1.2.3: passed in" in capsys.readouterr().out
    assert legs(monkeypatch, tmp_path, code="assert 1 == 2") == 1
    out = capsys.readouterr().out
    assert "triton 1.2.3: failed in" in out and "assert 1 == 2" in out
    assert legs(monkeypatch, tmp_path, words=["--allow-offline"], code="assert 1 == 2") == 1


def test_the_tests_see_the_triton_of_the_leg(monkeypatch, tmp_path, capsys) -> None:
    assert legs(monkeypatch, tmp_path, version="1.2.4") == 1
    assert "the tests would see triton 1.2.4" in capsys.readouterr().out


def test_offline_is_said_and_passes_only_when_asked(monkeypatch, tmp_path, capsys) -> None:
    assert legs(monkeypatch, tmp_path, why="no route to host") == 1
    assert "triton 1.2.3: not fetched in 0 s: no route to host" in capsys.readouterr().out
    assert legs(monkeypatch, tmp_path, why="no route to host", words=["--allow-offline"]) == 0
    assert "not fetched" in capsys.readouterr().out


def test_an_unknown_version_is_refused(monkeypatch, tmp_path) -> None:
    with pytest.raises(SystemExit):
        legs(monkeypatch, tmp_path, words=["9.9.9"])
