"""axe-core over built pages: what a reader with a screen reader, a keyboard or weak eyes would stumble over.

Each page is looked at as on a desk and as on a phone, with every folded answer open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import npm_package
from tools.browser import browser, missing

WIDTHS = (1280, 390)
GRAVE = ("critical", "serious", "moderate")  # axe's fourth word is minor
_RUN = """async () => {
    document.querySelectorAll('details').forEach(d => d.open = true);
    const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
    const found = await axe.run(document, {runOnly: tags, resultTypes: ['violations']});
    return found.violations.flatMap(v => v.nodes.map(n => [v.id, n.impact || v.impact, n.html, n.failureSummary]));
}"""


@dataclass(frozen=True)
class Violation:
    """One element that breaks one of axe's rules; `impact` is minor, moderate, serious or critical."""

    rule: str
    impact: str
    page: str
    width: int
    element: str
    why: str

    def __str__(self) -> str:
        why = " ".join(self.why.split())[:300]
        return f"{self.impact} {self.rule}: {self.page} ({self.width} px wide): {self.element[:160]}\n    {why}"


def unavailable() -> str:
    """Why axe cannot run here; "" if it can. Fetches axe-core the first time."""
    if why := missing():
        return why
    try:
        npm_package.fetch(*npm_package.AXE)
    except RuntimeError as error:
        return str(error)
    return ""


def violations(pages: Iterable[Path], widths: Sequence[int] = WIDTHS) -> Iterator[Violation]:
    """What axe finds on pages, one after another; needs `unavailable()` to be ""."""
    script = npm_package.fetch(*npm_package.AXE) / "axe.min.js"
    with browser() as chromium:
        for path in pages:
            seen: set[tuple[str, str]] = set()
            for width in widths:
                context = chromium.new_context(viewport={"width": width, "height": 900})
                for rule, impact, element, why in _run(context, path, script):
                    if (rule, element) not in seen:
                        seen.add((rule, element))
                        yield Violation(rule, impact, path.name, width, element, why or "")
                context.close()


def _run(context: Any, path: Path, script: Path) -> list[list[str]]:
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.goto(path.resolve().as_uri())
    page.add_script_tag(path=script)
    return page.evaluate(_RUN)
