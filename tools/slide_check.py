"""Walks through built decks in a browser, as a speaker does, and reports what does not fit or leaves the folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.browser import browser

# Faults of the slide on the screen, with what is folded closed, and with each answer opened in turn.
_LOOK = """() => {
    const slide = Reveal.getCurrentSlide(), bad = [];
    const name = e => `${e.tagName.toLowerCase()}${e.className ? '.' + String(e.className).split(' ')[0] : ''} "`
        + (e.alt || e.textContent || '').trim().replace(/\\s+/g, ' ').slice(0, 40) + '"';
    const look = when => {
        for (const e of slide.querySelectorAll('.page, .page *')) {
            if (!e.checkVisibility({checkVisibilityCSS: true})) continue;
            const r = e.getBoundingClientRect();
            if (!r.width && !r.height) continue;
            const over = Math.max(-r.left, -r.top, r.right - 1280, r.bottom - 720);
            if (over > 1) bad.push(`${when}${name(e)} goes ${Math.ceil(over)} px beyond the slide`);
            else if (e instanceof HTMLElement && e.clientWidth && (e.scrollWidth > e.clientWidth + 1
                     || (e.matches('.page, .body, pre, .output') && e.scrollHeight > e.clientHeight + 2)))
                bad.push(`${when}${name(e)} holds more than it shows`);
            const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            const least = e.closest('pre, code') ? 18 : e.closest('table') ? 20 : 24;
            if (own && e instanceof HTMLElement && parseFloat(getComputedStyle(e).fontSize) < least)
                bad.push(`${when}${name(e)} has letters smaller than ${least} px`);
            if (e.tagName === 'IMG') {
                if (!e.alt) bad.push(`${when}a picture without alt text`);
                const scale = Math.min(r.width / e.naturalWidth, r.height / e.naturalHeight);  // it keeps its shape
                if (scale < 0.7) bad.push(`${when}a picture is drawn at ${scale.toFixed(2)} of its size`);
            }
        }
    };
    look('');
    for (const d of slide.querySelectorAll('details')) { d.open = true; look('opened: '); d.open = false; }
    const notes = slide.querySelector('aside.notes');
    if (!notes || !notes.textContent.trim()) bad.push('no notes');
    const at = Reveal.getIndices();
    return {bad: [...new Set(bad)].slice(0, 3), place: `${at.h + 1}${at.v ? '.' + (at.v + 1) : ''}`,
        cell: slide.dataset.cell, last: Reveal.isLastSlide() && !Reveal.availableFragments().next};
}"""


def faults(decks: Iterable[Path], shots: Path | None = None) -> Iterator[str]:
    """Faults of decks, "deck, slide, cell: what" for each; a picture of each stop goes to `shots` if given."""
    with browser() as chromium:
        for deck in decks:
            page = chromium.new_context(viewport={"width": 1280, "height": 720}).new_page()
            said: list[str] = []
            home = deck.parent.resolve().as_uri() + "/"
            page.on("request", lambda r, said=said, home=home: _outside(r.url, home, said))
            page.on("console", lambda m, said=said: said.append(f"console: {m.text}") if m.type == "error" else None)
            page.on("pageerror", lambda e, said=said: said.append(f"script: {e}"))
            page.goto(deck.resolve().as_uri())
            page.wait_for_function("() => window.Reveal && Reveal.isReady()")
            yield from (f"{deck.name}, {fault}" for fault in _walk(page, deck.stem, shots))
            yield from (f"{deck.name}: {fault}" for fault in dict.fromkeys(said))
            page.context.close()


def _outside(url: str, home: str, said: list[str]) -> None:
    if not url.startswith((home, "data:", "about:", "blob:")):
        said.append(f"asks for {url}")


def _walk(page: Any, name: str, shots: Path | None) -> Iterator[str]:
    """Press the space bar from the first slide to the last."""
    for stop in range(400):
        seen = page.evaluate(_LOOK)
        if shots:
            page.screenshot(path=shots / f"{name}-{stop:03d}.png")
        for fault in seen["bad"]:
            yield f"slide {seen['place']}, cell {seen['cell']}: {fault}"
        if seen["last"]:
            return
        page.keyboard.press("Space")
    yield "the space bar never leads to the last slide"
