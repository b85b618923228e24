"""Headless Chromium that can reach this machine and nothing else: for tests, and for the check of built pages."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome, else of the one playwright has fetched; None if there is neither."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        own = p.chromium.executable_path
    return own if Path(own).is_file() else None


def missing() -> str:
    """Why no page can be looked at here; "" if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if chromium() else "no Chromium is installed"


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium without a way out of this machine.

    Raises
    ------
    RuntimeError
        No Chromium is installed.
    """
    from playwright.sync_api import sync_playwright

    flags = [
        "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox refuses root, and containers have no other user
    path = chromium()
    if path is None:
        raise RuntimeError("no Chromium is installed")
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=path, args=flags)
        try:
            yield found
        finally:
            found.close()
