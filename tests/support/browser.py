"""Pages in headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WIDTHS = (390, 1280)
THEMES = ("light", "dark")


@contextmanager
def open_browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("a browser is missing: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--force-device-scale-factor=1"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield opened
    finally:
        opened.quit()


def show(browser: Any, uri: str, width: int = 1280, theme: str = "light") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(uri)


def faint_texts(browser: Any, selector: str) -> list[str]:
    """Return the texts of these elements whose contrast is below 4.5 to 1, the limit of WCAG 2 for text."""
    found: list[str] = browser.execute_script(
        """
        const channels = it => it.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map(it => it / 255)
          .map(it => it <= 0.03928 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4)
          .reduce((sum, it, at) => sum + it * [0.2126, 0.7152, 0.0722][at], 0);
        const behind = it => {
          for (let one = it; one; one = one.parentElement) {
            const color = channels(getComputedStyle(one).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
          }
          return [255, 255, 255];
        };
        const bad = [];
        for (const it of document.querySelectorAll(arguments[0])) {
          if (!it.textContent.trim() || !it.getBoundingClientRect().width) continue;
          const style = getComputedStyle(it);
          const color = light(channels(it.closest("svg") ? style.fill : style.color));
          const ground = light(behind(it));
          const ratio = (Math.max(color, ground) + 0.05) / (Math.min(color, ground) + 0.05);
          if (ratio < 4.5) bad.push(`${it.tagName} ${it.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
        }
        return bad;
        """,
        selector,
    )
    return found
