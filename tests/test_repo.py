"""The repository keeps its own rules: one course.toml, one list of packages, one form of notebook, sound links."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.files import ROOT, repository_files
from tools import course as course_data
from tools import normal_form
from tools.course import NOTEBOOKS

COURSE = course_data.load()
NOTEBOOK_FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
WORKBOOKS = sorted((ROOT / "exercises").glob("*.ipynb")) + sorted((ROOT / "solutions").glob("*.ipynb"))
MARKDOWN_FILES = [p for p in repository_files() if p.suffix == ".md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = sorted((ROOT / "flashlib").rglob("*.py"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOK_FILES, ids=lambda p: p.stem)
each_text = pytest.mark.parametrize(
    "path", MARKDOWN_FILES + NOTEBOOK_FILES + WORKBOOKS, ids=lambda p: p.relative_to(ROOT).as_posix()
)


def cells(path: Path) -> list[dict]:
    """The notebook's cells with joined sources."""
    raw = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [c | {"source": "".join(c["source"])} for c in raw]


def markdown(path: Path) -> str:
    """A Markdown file's text, or a notebook's Markdown cells one after another."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(c["source"] for c in cells(path) if c["cell_type"] == "markdown")


def prose(path: Path) -> str:
    """The Markdown without code blocks and without inline code, in which nothing is a link or a heading."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown(path), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


# course.toml, notebooks, README


def test_every_chapter_has_its_notebook_and_the_other_way_round() -> None:
    assert [p.stem for p in NOTEBOOK_FILES] == [c.file for c in COURSE.chapters]
    assert [c.number for c in COURSE.chapters] == list(range(len(COURSE.chapters)))


@pytest.mark.parametrize("chapter", COURSE.chapters, ids=lambda c: c.file)
def test_chapter_is_well_described(chapter: course_data.Chapter) -> None:
    assert chapter.file.startswith(f"{chapter.number:02d}_")
    assert 3 <= len(chapter.objectives) <= 5
    assert all(o[0].islower() and not o.endswith((".", ";")) for o in chapter.objectives), "they complete a sentence"
    assert chapter.promise.endswith(".")
    assert all(n < chapter.number for n in chapter.needs), "a chapter needs earlier chapters only"
    assert chapter.minutes_read > 0
    assert 0 < chapter.cpu_limit_s <= COURSE.notebook_limit_s
    assert chapter.gpu in ("no", "optional")
    assert bool(chapter.exercises) == bool(chapter.minutes_exercises)
    for name in chapter.exercises:
        assert (ROOT / "exercises" / f"{name}.ipynb").is_file(), name


def test_readme_table_is_course_toml() -> None:
    assert not normal_form.fix_readme(write=False), "run `make fix`"


def test_readme_names_only_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for path in MARKDOWN_FILES:
        named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", path.read_text(encoding="utf-8"), re.M))
        assert {a or b for a, b in named} <= targets, path


# packages and versions


def test_versions_agree() -> None:
    import flashlib

    changelog = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert changelog
    assert flashlib.__version__ == PROJECT["project"]["version"] == changelog[1]


def _requirements(lines: list[str]) -> dict[str, str]:
    return {r.name: str(r.specifier) for r in map(Requirement, lines)}


def test_environment_yml_is_pyproject() -> None:
    """conda's file lists the packages by conda's names; everything else is the project's own extras, through pip."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(e["pip"] for e in entries if isinstance(e, dict))
    conda_names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    listed = _requirements([e for e in entries if isinstance(e, str)])
    listed = {conda_names.get(name, name): spec for name, spec in listed.items()}
    assert listed.pop("pip") == ""
    assert listed.pop("python") == PROJECT["project"]["requires-python"]
    wanted = _requirements(PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["lab"])
    triton = next(line for line in PROJECT["project"]["dependencies"] if line.startswith("triton"))
    assert [e for e in pip if not e.startswith("-e")] == [triton], "triton's conda builds bring CUDA: it comes from pip"
    assert [e for e in pip if e.startswith("-e")] == ["-e .[lab,dev]"]
    assert listed == {name: spec for name, spec in wanted.items() if name != "triton"}


def test_constraints_satisfy_pyproject() -> None:
    wanted = {r.name: r.specifier for r in map(Requirement, PROJECT["project"]["dependencies"])}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and line[0] != "#")
    assert set(pins) == {"torch", "triton"}
    assert all(pins[name] in wanted[name] for name in pins)
    setup = importlib.import_module("flashlib.setup")
    assert setup.TRITON_FOR_TORCH[pins["torch"].rsplit(".", 1)[0]] == pins["triton"]


def test_installer_parses_on_old_pythons() -> None:
    ast.parse((ROOT / "tools" / "install.py").read_text(encoding="utf-8"), feature_version=(3, 7))


# notebooks


@each_notebook
def test_normal_form(path: Path) -> None:
    assert not normal_form.differs(path), f"run `make fix`:\n{normal_form.differs(path)}"


@each_notebook
def test_a_saved_notebook_comes_back_byte_for_byte(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lab = json.loads(text)
    lab["metadata"]["language_info"] |= {"version": "3.13.1", "file_extension": ".py"}
    lab["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2}}
    for count, cell in enumerate(c for c in lab["cells"] if c["cell_type"] == "code"):
        cell["execution_count"] = count + 1
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["hello\n"]}]
        cell["metadata"]["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    empty = {
        "cell_type": "code",
        "id": "b6e1a2f4",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": [],
    }
    lab["cells"].append(empty)  # Lab adds one when the last cell is run
    assert normal_form.normal(json.dumps(lab), path.stem) == text
    colab = json.loads(text)
    colab["nbformat_minor"] = 0
    colab["metadata"] |= {"colab": {"provenance": []}, "accelerator": "GPU"}
    for cell in colab["cells"]:
        cell["metadata"] |= {"id": cell.pop("id"), "outputId": "x"}
    assert normal_form.normal(json.dumps(colab, indent=2), path.stem) == text


@each_notebook
def test_ids_are_chosen_by_hand(path: Path) -> None:
    ids = [c["id"] for c in cells(path)]
    assert ids[0] == "head" and ids[1] == "setup" and ids[-1] == "next"
    assert len(set(ids)) == len(ids)
    bad = [i for i in ids if normal_form.INVENTED.fullmatch(i) or re.fullmatch(r"cell-\d+", i)]
    assert not bad, f"give these cells a name that says what they hold: {bad}"


def test_first_code_cells_are_identical() -> None:
    first = {next(c["source"] for c in cells(p) if c["cell_type"] == "code") for p in NOTEBOOK_FILES}
    assert first == {course_data.setup_cell(course_data.repository())}


def test_first_cell_needs_the_standard_library_alone() -> None:
    tree = ast.parse(course_data.setup_cell(""))
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names}
    assert names <= sys.stdlib_module_names
    assert [n.module for n in imports if isinstance(n, ast.ImportFrom)] == ["flashlib.setup"]


@each_notebook
def test_setting_the_address_writes_badge_and_clone_line(path: Path) -> None:
    text, url = path.read_text(encoding="utf-8"), "https://github.com/someone/flash-course"
    assert ("colab-badge" in text) == bool(course_data.repository()), "no badge that leads nowhere"
    published = normal_form.normal(text, path.stem, url=url)
    head, setup = json.loads(published)["cells"][:2]
    assert f"/github/someone/flash-course/blob/main/notebooks/{path.name})" in "".join(head["source"])
    assert f'COURSE_URL = "{url}"\n' in setup["source"]
    assert normal_form.normal(published, path.stem) == text, "and taking it away restores the file"


@each_notebook
def test_cells_are_short(path: Path) -> None:
    """One idea a cell. About 15 lines of code and 120 words are the habit; these are the outer limits.

    Folded answers and tables are not counted: nobody has to read through them to come to the next cell.
    """
    for cell in cells(path)[2:]:
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"].splitlines() if line.strip()]
            assert len(lines) <= 25, f"{cell['id']}: {len(lines)} lines of code"
        else:
            text = re.sub(r"<details>.*?</details>", "", cell["source"], flags=re.S)
            words = len(re.sub(r"^\|.*$", "", text, flags=re.M).split())
            assert words <= 180, f"{cell['id']}: {words} words"


@pytest.mark.parametrize("path", NOTEBOOK_FILES + WORKBOOKS, ids=lambda p: p.stem)
def test_figures_have_alt_text(path: Path) -> None:
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        source = "\n".join(line for line in cell["source"].splitlines() if not line.lstrip().startswith(("%", "!")))
        for call in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "explore" or (name == "show" and not _is_pyplot(call)):
                assert any(k.arg == "alt" for k in call.keywords), f"{cell['id']}: {name}() without alt="
            assert not _is_pyplot(call), f"{cell['id']}: plt.show() gives a picture without alt text; use flashlib.show"


def _is_pyplot(call: ast.Call) -> bool:
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr == "show" and getattr(func.value, "id", "") == "plt"


def _imports_of(path: Path) -> str:
    """The notebook's own import lines, as a program."""
    lines = []
    for cell in cells(path):
        if cell["cell_type"] == "code" and cell["id"] != "setup":
            tree = ast.parse("\n".join(x for x in cell["source"].splitlines() if not x.lstrip().startswith(("%", "!"))))
            lines += [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return "\n".join(lines)


@pytest.mark.parametrize("chapter", [c for c in COURSE.chapters if not c.torch], ids=lambda c: c.file)
def test_numpy_chapters_import_no_torch(chapter: course_data.Chapter) -> None:
    code = _imports_of(chapter.path) + "\nimport sys; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# words


@each_text
def test_headings(path: Path) -> None:
    text = prose(path)
    levels = [len(m[1]) for m in re.finditer(r"^(#{1,6})(?: |$)", text, re.M)]
    assert levels and levels[0] == 1 and levels.count(1) == 1, f"one H1, and first: {levels}"
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False)), f"a heading level is skipped: {levels}"
    assert not re.search(r"^#{1,6}\s*$", text, re.M), "an empty heading"


# A list of a page's links, read out one after another, must make sense.
VAGUE = ("here", "click here", "click", "this", "link", "this link", "this page", "more", "read more", "see")


@each_text
def test_images_and_links_say_what_they_are(path: Path) -> None:
    text = prose(path)
    assert not re.search(r"!\[\s*\]\(", text), "an image without alt text"
    for tag in re.findall(r"<img\b[^>]*>", text):
        assert re.search(r'\balt="[^"]+"', tag), f"an image without alt text: {tag}"
    for words in re.findall(r"(?<!!)\[([^\]]+)\]\(", text):
        assert words.strip().lower() not in VAGUE, words


def anchors(path: Path) -> set[str]:
    """What may stand after # in a link to this file: GitHub's names, Jupyter's names, and explicit ids."""
    text = prose(path)
    out = set(re.findall(r'\b(?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?)\s*#*$", markdown(path), re.M):
        plain = re.sub(r"<[^>]*>|[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        out.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
        out.add(plain.strip().replace(" ", "-"))
    return out


@each_text
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)|\b(?:href|src)=\"([^\"]+)\"", prose(path)):
        target = link[0] or link[1]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.exists(), f"{path.name} links to {target}, which does not exist"
        assert other == path or ROOT in other.parents, f"{target} leaves the repository"
        if anchor and other.suffix in (".md", ".ipynb"):
            assert anchor in anchors(other), (
                f"{path.name} links to {target}: {other.name} has no such heading or anchor"
            )


# Put together here, so that this file does not hold what it forbids.
FORBIDDEN = ["/" + "work/", "/" + "tmp/", "/" + "opt/", "/" + "root/", "pypi" + ".org", "pythonhosted" + ".org"]
FORBIDDEN += ["download.pytorch" + ".org", "conda.anaconda" + ".org"]


def test_no_file_names_one_machine_or_a_registry() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {word}" for word in FORBIDDEN if word in line]
    assert not found, "\n".join(found)


# code

FLOORS = {"setup": 0, "algorithms": 0, "instruments": 1, "show": 2, "grading": 3}
TOP = 4  # cli, bench, bench_gpu, doctor, __main__


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Full names of the flashlib modules that a module imports, anywhere in it."""
    package = _module(path) if path.name == "__init__.py" else _module(path).rpartition(".")[0]
    out = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            name = node.module or ""
            full = (f"{base}.{name}".rstrip(".") if node.level else name) or base
            out |= {f"{full}.{a.name}" for a in node.names}
    return {n for n in out if n.split(".")[0] == "flashlib" and n != "flashlib"}


def _floor(module: str) -> int:
    parts = module.split(".")
    return FLOORS.get(parts[1], TOP) if len(parts) > 1 else -1


@pytest.mark.parametrize("path", PACKAGE, ids=_module)
def test_imports_run_one_way(path: Path) -> None:
    own = _module(path)
    if own == "flashlib":
        return  # loads names on first use, from any floor
    for name in _imported(path):
        known = (ROOT / "flashlib" / name.split(".")[1]).exists() or (
            ROOT / f"flashlib/{name.split('.')[1]}.py"
        ).exists()
        if known:  # otherwise a name that flashlib itself offers, such as flashlib.attention
            assert _floor(name) <= _floor(own), f"{own} (floor {_floor(own)}) imports {name} (floor {_floor(name)})"


@pytest.mark.parametrize("path", PACKAGE, ids=_module)
def test_public_names_are_documented(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    assert ast.get_docstring(tree) or not tree.body, f"{_module(path)} has no docstring"
    public = [n for n in tree.body if isinstance(n, definitions) and not n.name.startswith("_")]
    for top in list(public):
        if isinstance(top, ast.ClassDef):
            # PyTorch's own names: what they do stands in the class.
            given = {"forward", "backward"} if any("autograd.Function" in ast.unparse(b) for b in top.bases) else set()
            methods = [n for n in top.body if isinstance(n, ast.FunctionDef) and n.name not in given]
            public += [n for n in methods if not n.name.startswith("_")]
    for node in public:
        if "overload" in [ast.unparse(d) for d in node.decorator_list]:
            continue  # a type for the checker; the function itself follows
        summary = (ast.get_docstring(node) or "").strip().split("\n")[0]
        assert summary, f"{_module(path)}.{node.name} has no docstring"


def test_import_flashlib_is_cheap() -> None:
    """Less than 0.3 s, the best of five fresh processes, and neither torch, triton nor matplotlib comes along."""
    code = (
        "import sys, time; t = time.perf_counter(); import flashlib; s = time.perf_counter() - t; "
        "print(s, *[m for m in ('torch', 'triton', 'matplotlib') if m in sys.modules])"
    )
    runs = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True) for _ in range(5)]
    words = [r.stdout.split() for r in runs]
    assert all(len(w) == 1 for w in words), words
    best = min(float(w[0]) for w in words)
    print(f"import flashlib: {best * 1e3:.0f} ms")
    assert best < 0.3


# Modules that are about torch, and may import it when they are imported; every other one loads it inside functions.
TRITON = ("triton_attention", "triton_backward", "triton_decode", "triton_forward", "triton_tile")
ABOUT_TORCH = {"flashlib.bench", "flashlib.instruments.dispatch"}
ABOUT_TORCH |= {
    f"flashlib.algorithms.{name}"
    for name in ("api", "arguments", "decode", "nonfinite", "once", "paged", "ring", "tile", "tiled", "tiles", *TRITON)
}
ABOUT_TORCH |= {"flashlib.algorithms.decode_tiles"}
ABOUT_TORCH |= {
    "flashlib.grading.counted",
    "flashlib.grading.mistakes.sizes",
    "flashlib.grading.meetings",
    "flashlib.gpt",
    "flashlib.training",
    "flashlib.processes",
}
ABOUT_TORCH |= {"flashlib.ring_job", "flashlib.ladder", "flashlib.loss_bound", "flashlib.step_split"}
GALLERIES = sorted(p.stem for p in (ROOT / "flashlib" / "grading" / "mistakes").glob("ch*.py"))
ABOUT_TORCH |= {f"flashlib.grading.mistakes.{name}" for name in GALLERIES if int(name[2:4]) >= 4}
ABOUT_TORCH |= {f"flashlib.grading.checks.ch{n:02d}" for n in range(4, 14)}


def test_only_torch_modules_import_torch() -> None:
    modules = [_module(p) for p in PACKAGE if p.stem != "__main__"]
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules and 'triton' not in sys.modules, name + ' imports torch'"
    )
    names = [m for m in modules if m not in ABOUT_TORCH]
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_setup_is_quick_and_says_two_lines() -> None:
    code = "from flashlib.setup import setup; setup(); import sys; sys.exit('torch' in sys.modules)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, done.stdout
    assert time.perf_counter() - start < 1
