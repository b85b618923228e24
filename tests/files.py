"""Which files belong to the repository, for the tests that read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IGNORED = {".git", ".venv", ".venv-colab", "build", "dist", "__pycache__", ".ipynb_checkpoints", ".hypothesis"}
CACHES = {".pytest_cache", ".mypy_cache", ".ruff_cache"}


def repository_files() -> list[Path]:
    """Every file that is, or would be, committed; without git (a downloaded zip) every file outside caches."""
    line = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode == 0:
            return sorted(p for n in done.stdout.split("\0") if n and (p := ROOT / n).is_file())
    except OSError:
        pass
    skip = IGNORED | CACHES
    return sorted(p for p in ROOT.rglob("*") if p.is_file() and not skip & set(p.relative_to(ROOT).parts))
