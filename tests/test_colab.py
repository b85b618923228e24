"""The course in an environment with Colab's versions: every first cell, and the chapters with a player or explorers.

The environment is built once into .venv-colab and kept. torch is lent from the environment that runs the tests (linked,
not installed): Colab brings its own torch too, and nothing here may fetch a CUDA build.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata as metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.files import ROOT, repository_files
from tools.course import NOTEBOOKS

HERE = ROOT / "tests" / "colab"
VENV = ROOT / ".venv-colab"
PINS = HERE / "pins.txt"
WHOLE = ("00_start_here", "03_online_softmax", "04_tiled_forward", "07_triton_forward")
FEW = "03_online_softmax"
# What puts a picture with controls out.
CONTROLLED = ("explore", "play")
ALT = re.compile(r'<img [^>]*\balt="[^"]{20,}"')
VIEW = "application/vnd.jupyter.widget-view+json"
pytestmark = pytest.mark.colab


def pins() -> dict[str, str]:
    """Package -> pinned version."""
    lines = [line for line in PINS.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#"]
    return dict(line.split("==") for line in lines)


def _lend_torch(site: Path) -> None:
    """Link torch, and NVIDIA's libraries if it uses them, from this environment into the other."""
    ours = Path(sysconfig.get_path("purelib"))
    tops = {file.parts[0] for file in metadata.files("torch") or [] if file.parts[0] not in ("..", "__pycache__")}
    for name in sorted(tops | {"nvidia"}):
        if (ours / name).exists() and not (site / name).exists():
            (site / name).symlink_to(ours / name)


@pytest.fixture(scope="module")
def colab() -> Path:
    """The Colab-like environment's Python."""
    python = VENV / "bin" / "python"
    torch = metadata.distribution("torch")
    wants = [r for r in map(Requirement, torch.requires or []) if not re.match(r"nvidia|cuda|triton", r.name)]
    helpers = [f"{r.name}{r.specifier}" for r in wants if r.marker is None or r.marker.evaluate({"extra": ""})]
    stamp = hashlib.sha256(
        repr([PINS.read_text(), sys.version, torch.version, helpers, str(ROOT)]).encode()
    ).hexdigest()
    mark = VENV / "stamp"
    if mark.exists() and mark.read_text() == stamp:
        return python
    start = time.perf_counter()
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, stdin=subprocess.DEVNULL)
    line = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(PINS), *helpers]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        pytest.fail(
            f"Colab's versions (tests/colab/pins.txt) cannot be installed for Python {sys.version.split()[0]}:\n"
            f"{done.stderr[-2000:]}\nTo leave this test out on your machine: python -m pytest -m 'not colab'"
        )
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    )
    _lend_torch(Path(site.stdout.strip()))
    mark.write_text(stamp)
    print(f"Colab-like environment built in {time.perf_counter() - start:.0f} s")
    return python


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for Colab's /content: holds flash-course.zip, as a reader would upload it, and nothing else."""
    folder = tmp_path_factory.mktemp("content")
    with zipfile.ZipFile(folder / "flash-course.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in repository_files():
            archive.write(file, Path("flash-course") / file.relative_to(ROOT))
    return folder


def _place(notebook: Path, content: Path, url: str = "") -> Path:
    """A copy of the notebook in `content`; there /content means that folder, and the repository lies at `url`."""
    text = notebook.read_text(encoding="utf-8")
    text = text.replace("/content/flash-course", (content / "flash-course").as_posix())
    text = text.replace('COURSE_URL = \\"\\"', f'COURSE_URL = \\"{url}\\"')
    copy = content / notebook.name
    copy.write_text(text, encoding="utf-8")
    return copy


def _run(python: Path, mode: str, notebooks: list[Path], tmp_path: Path, lent: Sequence[Path] = ()) -> list[dict]:
    """Run notebooks as Colab would: google.colab imported by IPython at its start, a folder of their own."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-colab.py").write_text("import google.colab\n")
    drop = ("MPLBACKEND", "PYTHONPATH", "VIRTUAL_ENV", "FLASHLIB_STATIC", "TRITON_INTERPRET", "JUPYTER_PATH")
    env = {k: v for k, v in os.environ.items() if k not in drop}
    env |= {
        "PYTHONPATH": os.pathsep.join(map(str, [HERE / "stub", *lent])),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"),
        "COLAB_RELEASE_TAG": "test",
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    line = [str(python), str(HERE / "run.py"), mode, *map(str, notebooks)]
    done = subprocess.run(line, cwd=notebooks[0].parent, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]


def _assert_sound(row: dict) -> None:
    assert not row["error"], f"{row['name']}: {row['error']}"
    wanted = {k: v for k, v in pins().items() if k in row["versions"]} | {"IPython": pins()["ipython"]}
    assert {k: row["versions"][k] for k in wanted} == wanted, f"{row['name']}: Colab's own packages were replaced"


def test_floors_admit_colab() -> None:
    """Installing the course on Colab must replace nothing: Colab's versions satisfy what pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in map(Requirement, project["dependencies"]):
        if requirement.name in pins():
            assert pins()[requirement.name] in requirement.specifier, requirement


def test_first_cells(colab: Path, content: Path, tmp_path: Path) -> None:
    """Every notebook's first code cell finds the uploaded course and prints its two lines."""
    notebooks = [_place(p, content) for p in sorted(NOTEBOOKS.glob("*.ipynb"))]
    rows = _run(colab, "first", notebooks, tmp_path)
    assert [r["name"] for r in rows] == [p.name for p in notebooks]
    for row in rows:
        _assert_sound(row)
        assert re.search(r"^flashlib \d.*\n.*Triton kernels: .*$", row["printed"]), row
        assert not row["versions"]["torch"], f"{row['name']}: the setup cell imports torch"


def _lend_triton(folder: Path) -> Path:
    """A folder with this environment's Triton, for PYTHONPATH; elsewhere a chapter's own cell would install one."""
    folder.mkdir()
    triton = metadata.distribution("triton")
    for name in {file.parts[0] for file in triton.files or [] if file.parts[0] != ".."}:
        (folder / name).symlink_to(triton.locate_file(name))
    return folder


def controlled(source: str) -> int:
    """How many calls of a cell show a picture with controls."""
    code = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
    calls = [n.func for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call)]
    names = [f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls]
    return sum(name in CONTROLLED for name in names)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_chapter(colab: Path, content: Path, tmp_path: Path, name: str) -> None:
    """From top to bottom; each player and explorer is a widget, a picture with alternative text, and that text."""
    lent = [_lend_triton(tmp_path / "lent")] if name.startswith("07") else []
    (row,) = _run(colab, "whole", [_place(NOTEBOOKS / f"{name}.ipynb", content)], tmp_path, lent)
    _assert_sound(row)
    pictures = widgets = 0
    for cell in row["cells"]:
        shown = [o for o in cell["outputs"] if VIEW in o["kinds"]]
        wanted = controlled(cell["source"])
        assert len(shown) == wanted, f"{cell['id']}: {wanted} pictures with controls, {len(shown)} widgets"
        for output in cell["outputs"]:
            if not {VIEW, "image/png"} & set(output["kinds"]):
                continue
            assert {"text/html", "image/png", "text/plain"} <= set(output["kinds"]), cell["id"]
            assert ALT.search(output["html"]) and len(output["text"]) >= 20, f"{cell['id']}: no words for a picture"
            assert VIEW not in output["kinds"] or ALT.search(output["widget"] or ""), f"{cell['id']}: an empty widget"
            pictures += 1
        widgets += wanted
    print(f"{name}: {pictures} pictures, {widgets} of them with controls")
    assert pictures and (widgets or name == "00_start_here")


def test_a_picture_with_controls_is_recognised() -> None:
    assert controlled("display.explore(draw, alt=alt, n=[1, 2])") == controlled("%time\nseen = player.play(m, q)") == 1
    assert controlled("explore = 1\nshow(fig, alt=alt)") == 0


def test_torch_is_lent(colab: Path) -> None:
    """torch chapters can run in that environment: torch imports there and shares memory with Colab's NumPy."""
    code = "import numpy, torch; a = numpy.ones(3); torch.from_numpy(a).mul_(2); print(numpy.__version__, a.sum())"
    done = subprocess.run([str(colab), "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [pins()["numpy"], "6.0"], done.stderr


def test_clone(colab: Path, tmp_path: Path) -> None:
    """With the repository's address set, the first cell fetches the course with git."""
    upstream, content = tmp_path / "upstream", tmp_path / "content"
    content.mkdir()
    for file in repository_files():
        target = upstream / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    git = ["git", "-C", str(upstream), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "course"]):
        subprocess.run([*git, *words], check=True)
    (row,) = _run(colab, "first", [_place(NOTEBOOKS / f"{FEW}.ipynb", content, upstream.as_uri())], tmp_path)
    _assert_sound(row)
    assert (content / "flash-course" / "flashlib" / "setup.py").is_file()


def test_lost(colab: Path, tmp_path: Path) -> None:
    """Without an address and without an upload the first cell says how to bring the course."""
    (row,) = _run(colab, "first", [_place(NOTEBOOKS / f"{FEW}.ipynb", tmp_path)], tmp_path)
    assert "make zip" in row["error"] and "upload flash-course.zip" in row["error"]
