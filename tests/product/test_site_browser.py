"""The documentation site in a browser: every page at two widths, in light and dark colors. `make docs` builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import THEMES, WIDTHS, faint_texts, open_browser, show

pytestmark = pytest.mark.matrix

SITE = Path(__file__).parents[2] / "dist" / "site"
PROSE = "article h1, article h2, article h3, article p, article li, article th, article td"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    assert SITE.is_dir(), "the site is missing: make docs"
    found = sorted(it for it in SITE.rglob("*.html") if it.name != "404.html")  # its links are those of a server
    assert len(found) > 60, found
    return found


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_is_readable(browser: Any, pages: list[Path], width: int, theme: str) -> None:
    show(browser, pages[0].as_uri(), width, theme)
    problems = []
    for page in pages:
        browser.execute_script("localStorage.clear()")  # the colors of the page before
        show(browser, page.as_uri(), width, theme)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        broken = browser.execute_script(
            "return [...document.images].filter(it => it.complete && !it.naturalWidth).map(it => it.src)"
        )
        scheme = browser.execute_script("return document.body.dataset.mdColorScheme")
        logged = [it["message"] for it in browser.get_log("browser") if it["level"] == "SEVERE"]
        problems += [
            (page.relative_to(SITE).as_posix(), problem)
            for problem in (
                f"{wide} pixels of {width}" if wide > width else None,
                broken or None,
                f"colors: {scheme}" if scheme != {"light": "default", "dark": "slate"}[theme] else None,
                faint_texts(browser, PROSE) or None,
                logged or None,
            )
            if problem is not None
        ]
    assert problems == []
