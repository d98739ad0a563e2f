"""Pages in a browser: nothing is loaded or refused, charts and tables work, and nothing overflows at any width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from fencepost import cli, lake
from fencepost.generate import LandingZone, generate
from support.browser import THEMES, WIDTHS, faint_texts, open_browser, show
from support.pages import HOSTILE, LANDING, rows_of
from support.waiting import wait_until

pytestmark = pytest.mark.matrix

CUT = """
    return [...document.querySelectorAll("svg")].filter(it => it.getBoundingClientRect().width).flatMap(svg => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")].filter(it => {
        const own = it.getBoundingClientRect();
        const isOut = own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
        return own.width && isOut;
      }).map(it => it.textContent);
    });
"""
"""Texts that reach out of their drawing, where they are cut off."""
TOUCHING = """
    return [...document.querySelectorAll("svg g.role-axis-label")].flatMap(axis => {
      const isShown = it => it.getAttribute("opacity") !== "0" && !it.getAttribute("transform")?.includes("rotate");
      const boxes = [...axis.querySelectorAll("text")].filter(isShown)
        .map(it => [it.textContent, it.getBoundingClientRect()]).filter(([, it]) => it.width);
      return boxes.flatMap(([text, a], at) => boxes.slice(at + 1).filter(([, b]) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        .map(([other]) => `${text} | ${other}`));
    });
"""
"""Labels of an axis that overlap, but for slanted ones, whose boxes do and whose texts do not."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of every kind."""
    path = tmp_path_factory.mktemp("pages")
    generate(path, LandingZone(rows=60_000, producers=40, payload_bytes=4, zombie_share=1.0, missing_share=0.01))
    landing = path / "landing"
    made = {
        "audit": lake.audit(landing, columns=LANDING).to_html(),
        "in_order": lake.audit(landing, "in_order", LANDING).to_html(),
        "positions": lake.audit(landing, columns=fp.Columns(partition=("topic", "partition"))).to_html(),
        "hostile": fp.audit(rows_of(HOSTILE)).to_html(),
        "nothing": fp.audit(rows_of([])).to_html(),
        "advice": lake.advise(landing).to_html(),
    }
    for name, html in made.items():
        (path / f"{name}.html").write_text(html)
    keys = ["--partition", "topic", "--partition", "partition", "-q", "--no-sync", "--files-max", "5"]
    for _ in range(3):
        job = ["dedup", str(landing), str(path / "state"), str(path / "clean"), *keys]
        assert cli.main([*job, "--html", str(path / "run.html")]) == 0
    assert cli.main(["state", "show", str(path / "state"), "--html", str(path / "state.html")]) == 0
    return {it.stem: it for it in sorted(path.glob("*.html"))}


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_load_nothing_and_fit(browser: Any, pages: dict[str, Path], width: int) -> None:
    assert len(pages) == 8
    for name, page in pages.items():
        show(browser, page.as_uri(), width)
        assert browser.get_log("browser") == [], name
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(it => it.name)")
        assert loaded == [], name
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, f"{name}: {wide} pixels of {width}"
        assert browser.execute_script(CUT) == [], name
        assert browser.execute_script(TOUCHING) == [], name


def test_the_checks_detect_a_broken_page(browser: Any, pages: dict[str, Path]) -> None:
    show(browser, pages["audit"].as_uri())
    browser.execute_script("""
        for (const it of document.querySelectorAll("#producers figure .normal g.role-axis-label text"))
          it.setAttribute("transform", "translate(-60, 20)");
    """)
    assert browser.execute_script(CUT)
    assert browser.execute_script(TOUCHING)
    browser.execute_script("document.querySelector('h1').style.color = '#888'")
    assert faint_texts(browser, "h1")
    browser.execute_script("document.querySelector('h1').style.minWidth = '2000px'")
    assert browser.execute_script("return document.documentElement.scrollWidth") > 1280
    browser.execute_script("const it = new Image(); it.src = 'https://example.com/x.png'; document.body.append(it)")
    assert any("Content Security Policy" in it["message"] for it in browser.get_log("browser"))


def test_text_has_contrast_in_both_themes(browser: Any, pages: dict[str, Path]) -> None:
    for theme in THEMES:
        show(browser, pages["audit"].as_uri(), theme=theme)
        assert faint_texts(browser, "h1, h2, h3, p, dt, dd, td, th button, caption, a, code, svg text") == [], theme


def test_a_table_sorts_by_each_column(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["audit"].as_uri())
    table = browser.find_element(By.CSS_SELECTOR, "#producers > .scroll table")
    button = table.find_elements(By.CSS_SELECTOR, "th button")[1]
    for key, direction in ((Keys.ENTER, "descending"), (Keys.SPACE, "ascending")):
        button.send_keys(key)
        assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == direction
        cells = [it.text.replace(",", "") for it in table.find_elements(By.CSS_SELECTOR, "tbody tr td:nth-child(2)")]
        numbers = [int(it) for it in cells]
        assert numbers == sorted(numbers, reverse=direction == "descending")
        assert direction in browser.find_element(By.ID, "status").get_attribute("textContent")
    assert len(table.find_elements(By.CSS_SELECTOR, "tfoot tr")) == 1


def test_the_keyboard_reaches_everything(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["audit"].as_uri())
    seen = []
    for _ in range(400):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        name = browser.execute_script("""
            const it = document.activeElement;
            return it === document.body ? null : `${it.tagName} ${it.className}`.trim();
        """)
        if name is None:
            break
        seen.append(name)
    assert seen[0] == "A skip"
    for kind in ("A", "SUMMARY", "DIV scroll", "BUTTON", "BUTTON copy"):
        assert kind in seen
    all_of_them = browser.execute_script("""
        const found = document.querySelectorAll("a, button, summary, [tabindex='0']");
        return [...found].filter(it => it.checkVisibility()).length;
    """)
    assert len(seen) == all_of_them


def test_a_mark_of_a_chart_has_a_description(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    show(browser, pages["audit"].as_uri())
    mark = browser.find_element(By.CSS_SELECTOR, "#producers figure .normal svg g.mark-rect path[aria-label]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(browser).move_to_element(mark).perform()
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    wait_until(tip.is_displayed, "the mark has no description")
    assert tip.text.split("\n")[0] == mark.get_attribute("aria-label").split("; ")[0]
