"""In a real JupyterLab in a real browser: the player is stepped with the keyboard and shows the right numbers.

Needs Chromium and playwright; without them the test says so and is skipped. Nothing leaves the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import flashlib
from flashlib.show.row_state import Problem, number
from tests.files import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update"]  # fmt: skip
WAIT = 120_000  # milliseconds; a busy machine needs them
NOT_YET = """() => {
    const panel = window.jupyterapp?.shell?.currentWidget;
    return panel?.context?.isReady && panel.sessionContext?.session?.kernel?.status === 'idle';
}"""
ALL_RUN = """() => {
    const panel = window.jupyterapp.shell.currentWidget, cells = panel.content.model.cells;
    for (let i = 0; i < cells.length; i++)
        if (cells.get(i).type === 'code' && cells.get(i).executionCount == null) return false;
    return panel.sessionContext.session.kernel.status === 'idle';
}"""
SAYS = """text => [...document.querySelectorAll('.jp-OutputArea-output figcaption')]
    .some(f => f.textContent.replace(/\\s+/g, ' ').includes(text))"""
pytestmark = pytest.mark.browser


def excerpt(name: str, ids: tuple[str, ...], target: Path) -> None:
    """A notebook of some of a chapter's own cells."""
    notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] in ids]
    assert len(notebook["cells"]) == len(ids), "a cell of the chapter has another name now"
    target.write_text(json.dumps(notebook), encoding="utf-8")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a JupyterLab, and the folder that it shows."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    home, root = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("course")
    for name in ("flashlib", "course.toml"):
        (root / name).symlink_to(ROOT / name)
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
              "IPYTHONDIR": "ipython", "MPLCONFIGDIR": "matplotlib", "JUPYTERLAB_SETTINGS_DIR": "settings",
              "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}  # fmt: skip
    env = os.environ | {name: str(home / place) for name, place in places.items()}
    env |= {"TRITON_INTERPRET": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    env.pop("FLASHLIB_STATIC", None)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}"]
    command += ["--expose-app-in-browser", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    base = f"http://127.0.0.1:{port}"
    with (home / "log").open("w") as log, subprocess.Popen(command, env=env, stdout=log, stderr=log) as server:
        try:
            for _ in range(400):
                try:
                    urllib.request.urlopen(f"{base}/api/status", timeout=1)
                    break
                except OSError:
                    assert server.poll() is None, (home / "log").read_text()
                    time.sleep(0.25)
            yield base, root
        finally:
            server.terminate()


@pytest.fixture
def page(lab: tuple[str, Path]) -> Iterator:
    """A browser's page. At the end: no request went elsewhere."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    elsewhere: list[str] = []
    ours = (lab[0], lab[0].replace("http", "ws"), "data:", "blob:")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.set_default_timeout(WAIT)
        page.on("request", lambda r: None if r.url.startswith(ours) else elsewhere.append(r.url))
        yield page
        browser.close()
    assert not elsewhere


def run_all(page, base: str, name: str) -> None:
    """Open a notebook and run all its cells; no cell may fail or write to stderr."""
    page.goto(f"{base}/lab/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
    page.wait_for_function(NOT_YET)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.wait_for_function(ALL_RUN)
    kinds = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
    assert page.locator(kinds).all_inner_texts() == []


def test_the_player_is_stepped_with_the_keyboard_and_shows_the_computed_numbers(lab, page):
    base, root = lab
    cells = ("setup", "imports", "absorb", "player-program", "player-run")
    excerpt("04_tiled_forward", cells, root / "player.ipynb")
    run_all(page, base, "player.ipynb")
    player = page.locator(".jp-OutputArea-output", has=page.locator("figcaption")).first
    player.scroll_into_view_if_needed()
    handle, readout = player.locator(".noUi-handle").first, player.locator(".widget-readout").first
    toy = flashlib.toy()
    problem = Problem(*toy)
    shown = set()
    for keys in (2, 4, 6):
        right = problem.state(3, list(range(keys)))
        o = ", ".join(number(float(x)) for x in right.o)
        page.wait_for_function(SAYS, arg=f"row 3: m = {number(right.m)} l = {number(right.l)} after {keys} keys")
        page.wait_for_function(SAYS, arg=f"o = acc / l = ({o})")
        image = player.locator("figure img")
        assert f"l = {number(right.l)}" in re.sub(r"\s+", " ", image.get_attribute("alt"))
        shown.add(image.get_attribute("src"))
        step = int(readout.inner_text())
        for _ in range(6 if keys < 6 else 0):  # K, S, V, m, l, acc: six steps a tile
            handle.focus()
            page.keyboard.press("ArrowRight")
        if keys < 6:
            page.wait_for_function("([e, n]) => e.textContent == n", arg=[readout.element_handle(), str(step + 6)])
    assert len(shown) == 3
    button = player.get_by_role("button", name="◀ step")
    before = int(readout.inner_text())
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("([e, n]) => e.textContent == n", arg=[readout.element_handle(), str(before - 1)])
    page.wait_for_function("t => [...document.querySelectorAll('figure img')].some(i => i.alt.startsWith(t))",
                           arg=f"Step {before - 1} of")  # fmt: skip
    keep = os.environ.get("FLASHLIB_SCREENSHOTS")
    if keep:
        page.screenshot(path=str(Path(keep) / "player.png"))
