"""A package of the npm registry, in build/: what `make slides` and the accessibility test need beyond Python.

Fetched once with `npm pack`, which runs none of the package's scripts, from the registry that npm is set to.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools.course import ROOT

REVEAL = ("reveal.js", "5.2.1")  # 6.0 moved its plugins, which nbconvert does not know yet: pages stay blank
AXE = ("axe-core", "4.14.1")


def fetch(name: str, version: str) -> Path:
    """The folder of a package, fetched if it is not in build/ yet.

    Raises
    ------
    RuntimeError
        There is no npm on this machine, or it could not fetch the package; the message says what to do.
    """
    folder = ROOT / "build" / f"{name}-{version}"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            f"{name} {version} comes from the npm registry, and there is no npm here: install Node.js with npm, "
            f"or unpack the package by hand to build/{folder.name}"
        )
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        line = [npm, "pack", "--silent", "--ignore-scripts", f"--pack-destination={scratch}", f"{name}@{version}"]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=scratch, timeout=300)
        found = list(Path(scratch).glob("*.tgz"))
        if done.returncode or not found:
            raise RuntimeError(f"npm could not fetch {name} {version}:\n{done.stderr.strip()[-1000:]}")
        with tarfile.open(found[0]) as archive:
            archive.extractall(scratch, filter="data")
        (Path(scratch) / "package").rename(folder)  # last, so that a folder that is there is whole
    return folder
