"""A real JupyterLab on a copy of the course, looked at in headless Chromium, for tests that read and type as people do.

`server` starts JupyterLab as `make lab` does, `browser` starts Chromium without a way out of this machine, and
`Notebook` is one notebook opened there. Nothing here waits for a fixed time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from files import ROOT, repository_files
from tools.browser import browser, chromium
from tools.browser import missing as no_browser

__all__ = ["Notebook", "browser", "chromium", "copy_course", "missing", "server"]

SLOW_MS = 180_000  # how long anything may take before a test gives up: a busy machine is slow, not broken
LOCAL = re.compile(r"(https?|wss?)://127\.0\.0\.1[:/]|(data|blob|about):")


def missing() -> str:
    """Why there can be no browser test here; "" if there can."""
    if importlib.util.find_spec("jupyterlab") is None:
        return "jupyterlab is not installed"
    return no_browser()


def copy_course(folder: Path, *parts: str) -> Path:
    """Copy these folders or files of the repository, as they would be committed, to ``folder``, and return it."""
    for path in repository_files():
        name = path.relative_to(ROOT)
        if name.parts[0] in parts:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
    return folder


@contextlib.contextmanager
def server(course: Path, home: Path) -> Iterator[str]:
    """JupyterLab on ``course``, with settings, progress and all it writes in ``home``; yields its address.

    Raises
    ------
    RuntimeError
        It ended, or did not answer in time; the message holds the end of its log.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "run"}
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}  # the notebook's own task
    env |= {f"JUPYTER_{name}": str(home / place) for name, place in places.items()}
    env |= {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"), "FLASHLIB_PROGRESS": str(home / "progress.json"),
    }  # fmt: skip
    line = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={course}",
        f"--LabApp.app_settings_dir={ROOT / 'tools' / 'lab'}", "--LabApp.extension_manager=readonly",
        "--expose-app-in-browser",
    ]  # fmt: skip
    home.mkdir(parents=True, exist_ok=True)
    log = home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    base = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + SLOW_MS / 1000
        while not _answers(f"{base}/api/status"):
            if process.poll() is not None or time.monotonic() > until:
                end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise RuntimeError(f"JupyterLab does not answer (exit status {process.poll()}):\n{end}")
            time.sleep(0.1)
        yield base
    finally:
        process.send_signal(signal.SIGTERM)  # it ends its kernels, then itself
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=2):
            return True
    except OSError:
        return False


class Notebook:
    """One notebook in JupyterLab, its kernel ready.

    Parameters
    ----------
    browser : what `browser` yields.
    base : what `server` yields.
    name : the notebook's path below the course's folder.
    shots : a folder for screenshots.

    Used in ``with``, it closes its tab at the end, and leaves failed.png in ``shots`` if a test fails.
    ``outside`` collects every address asked for that is not this machine, ``broken`` every uncaught script error.
    """

    def __init__(self, browser: Any, base: str, name: str, shots: Path) -> None:
        self.shots = shots
        self.outside: list[str] = []
        self.broken: list[str] = []
        self.page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        self.page.set_default_timeout(SLOW_MS)
        for event in ("request", "websocket"):
            self.page.on(event, lambda r: None if LOCAL.match(r.url) else self.outside.append(r.url))
        self.page.on("pageerror", lambda e: self.broken.append(str(e)))
        self.page.goto(f"{base}/lab/tree/{name}?reset", wait_until="domcontentloaded")
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        self.page.wait_for_function(f"() => {{ {IDLE} return idle; }}")

    def cell(self, cell_id: str) -> Any:
        """The cell with this id, scrolled into view (JupyterLab shows only the cells near it)."""
        assert self.page.evaluate(SCROLL, cell_id), f"no cell {cell_id}"
        return self.page.locator(f'.jp-Cell[data-course-cell="{cell_id}"]')

    def output(self, cell_id: str) -> Any:
        """The outputs of a cell, as shown."""
        return self.cell(cell_id).locator(".jp-Cell-outputArea")

    def run_all(self) -> None:
        """Run > Run All Cells, with the mouse, until the last cell has run."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        self.page.wait_for_function(f"() => {{ {IDLE} return idle && code.every(c => c.executionCount !== null); }}")

    def write(self, cell_id: str, source: str) -> None:
        """Click into a cell, select all of it and type over it; the cursor stays there."""
        self.cell(cell_id).locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.insert_text(source)

    def source(self, cell_id: str) -> str:
        """What a cell holds now."""
        return self.page.evaluate(f"id => {{ {IDLE} return code.find(c => c.id === id).sharedModel.source; }}", cell_id)

    def shift_enter(self) -> str:
        """Run the chosen cell and go on to the next: its id. Does not wait for the result."""
        self.page.keyboard.press("Shift+Enter")
        return self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCell.model.id")

    def outputs(self) -> dict[str, list[dict[str, Any]]]:
        """Code cell's id → its outputs as in the file, once the kernel has nothing more to do."""
        self.page.wait_for_function(f"() => {{ {IDLE} return idle; }}")
        return self.page.evaluate(
            f"() => {{ {IDLE} return Object.fromEntries(code.map(c => [c.id, c.outputs.toJSON()])); }}"
        )

    def complaints(self) -> dict[str, str]:
        """Code cell's id → the error's name and words, or what it wrote to stderr, where there is either."""
        found = {}
        for cell_id, outputs in self.outputs().items():
            for o in outputs:
                if o["output_type"] == "error":
                    found[cell_id] = f"{o['ename']}: {o['evalue']}"
                elif o.get("name") == "stderr":
                    found[cell_id] = f"stderr: {''.join(o['text'])}"
        return found

    def shot(self, name: str, part: Any = None) -> None:
        """A screenshot of the page, or of one part of it, as ``name``.png."""
        (part or self.page).screenshot(path=self.shots / f"{name}.png")

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the tab. The kernel goes on until the server ends."""
        if kind is not None:
            self.shot("failed")
        self.page.context.close()


# Begins a function in the page: whether the kernel has nothing to do, and the notebook's code cells.
IDLE = """
    const panel = window.jupyterapp?.shell?.currentWidget;
    const idle = panel?.context?.isReady && panel.sessionContext?.session?.kernel?.status === 'idle';
    const code = panel?.content?.widgets?.map(w => w.model).filter(m => m.type === 'code') ?? [];
"""
SCROLL = """async id => {
    const content = window.jupyterapp.shell.currentWidget.content;
    const i = content.widgets.findIndex(w => w.model.id === id);
    if (i < 0) return false;
    await content.scrollToItem(i, 'smart');
    content.widgets[i].node.dataset.courseCell = id;
    return true;
}"""
