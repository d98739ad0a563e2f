"""Draws charts of a page from Vega-Lite specifications (`drawings.py`) as SVG or PNG, without a browser.

Drawing requires `fencepost[report]`.

On a page the colors are CSS variables, so that one drawing serves light and dark mode. Files have the colors of one
theme.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fencepost.errors import DependencyError
from fencepost.pages.tables import Table

Theme = Literal["page", "light", "dark"]
Size = Literal["normal", "wide", "narrow"]
Spec = dict[str, Any]
WIDTHS: dict[Size, int] = {"normal": 480, "wide": 1000, "narrow": 326}
"""Width in pixels, including labels."""

COLORS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#181f27"),
    "text": ("#16202c", "#e6ebf0"),
    "soft": ("#52606f", "#a3b0bd"),
    "grid": ("#e3e7ec", "#2b3540"),
    "empty": ("#eceff3", "#28323d"),
    "duplicates": ("#2f6fde", "#6fa4ff"),
    "missing": ("#c2410c", "#ff9f6b"),
    "stale": ("#7a3fc2", "#b892f0"),
    "refused": ("#0f766e", "#4fc3b5"),
    "rows": ("#8a97a5", "#6b7a89"),
    "heat1": ("#cfe0fa", "#1f3658"),
    "heat2": ("#9cbff4", "#2c5596"),
    "heat3": ("#6398e8", "#4a80d6"),
    "heat4": ("#2f6fde", "#86b1ff"),
    "heat5": ("#123f8f", "#d3e4ff"),
}
"""Colors by role: (light, dark)."""
KINDS = {
    "duplicates": "Repeats",
    "missing": "Missing",
    "stale": "From replaced producers",
    "refused": "Refused",
}
"""The findings that charts count, and their labels."""


def css() -> str:
    """Return the colors as CSS variables of a page."""
    light, dark = ("".join(f"--c-{role}:{pair[theme]};" for role, pair in COLORS.items()) for theme in range(2))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


@dataclass(frozen=True)
class Chart:
    """A drawing with its numbers. `spec`: returns the Vega-Lite specification for a width."""

    name: str
    title: str
    subtitle: str
    alternative: str
    """A text alternative for screen readers."""
    spec: Callable[[Size], Spec]
    numbers: Table
    sizes: tuple[Size, ...] = ("normal", "narrow")

    def to_svg(self, theme: Theme = "light", size: Size | None = None) -> str:
        """Draw as SVG. Raises DependencyError if `fencepost[report]` is not installed."""
        svg: str = _renderer().vegalite_to_svg(self._whole(size, has_title=theme != "page"))
        svg = re.sub(r"<svg\b", f'<svg role="img" aria-label="{_attribute(self.alternative)}"', svg, count=1)
        return _colored(svg, theme)

    def to_png(self, theme: Theme = "light", size: Size | None = None) -> bytes:
        """Draw as PNG at twice the size in pixels. Raises DependencyError if `fencepost[report]` is not installed."""
        spec = _themed(self._whole(size, has_title=True), theme)
        png: bytes = _renderer().vegalite_to_png(spec, scale=2)
        return png

    def save(self, path: str | os.PathLike[str], theme: Theme = "light", size: Size | None = None) -> None:
        """Write the drawing to a .svg or .png file. Raises ValueError for other names."""
        target = Path(path)
        if target.suffix == ".svg":
            target.write_text(self.to_svg(theme, size), encoding="utf-8")
        elif target.suffix == ".png":
            target.write_bytes(self.to_png(theme, size))
        else:
            raise ValueError(f"{target}: the name of a chart's file must end in .svg or .png")

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _whole(self, size: Size | None, has_title: bool) -> Spec:
        spec = self.spec(size or self.sizes[0])
        title = {"text": self.title, "subtitle": self.subtitle} if has_title else None
        background = color_of("page") if has_title else None
        return {**spec, "$schema": _SCHEMA, "config": _CONFIG, "background": background, "title": title, "padding": 4}


def is_installed() -> bool:
    """Return whether charts can be drawn."""
    from importlib.util import find_spec

    return find_spec("vl_convert") is not None


def _renderer() -> Any:
    try:
        import vl_convert
    except ModuleNotFoundError as problem:
        raise DependencyError("vl_convert is not installed: pip install 'fencepost[report]'") from problem
    return vl_convert


# Colors. A specification uses an unusual placeholder color for each role, which the drawing replaces.

_ROLES = list(COLORS)


def color_of(role: str) -> str:
    """Return the placeholder color of a role in a specification."""
    return f"#fe{_ROLES.index(role):02x}fd"


def _value_of(code: str, theme: Theme) -> str:
    role = _ROLES[int(code[3:5], 16)]
    if theme == "page":
        return f"var(--c-{role})"
    return COLORS[role][theme == "dark"]


def _colored(svg: str, theme: Theme) -> str:
    return re.sub("#fe[0-9a-f]{2}fd", lambda it: _value_of(it[0], theme), svg)


def _themed(value: Any, theme: Theme) -> Any:
    """Replace the placeholder colors of a specification with the colors of a theme."""
    if isinstance(value, dict):
        return {name: _themed(it, theme) for name, it in value.items()}
    if isinstance(value, list):
        return [_themed(it, theme) for it in value]
    return _colored(value, theme) if isinstance(value, str) else value


def _attribute(text: str) -> str:
    from html import escape

    return escape(text).replace("\\", "\\\\")


_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_CONFIG: Spec = {
    "font": "Liberation Sans, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": color_of("soft"),
        "titleColor": color_of("soft"),
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "gridColor": color_of("grid"),
        "domainColor": color_of("soft"),
        "tickColor": color_of("soft"),
        "labelLimit": 140,
    },
    "legend": {
        "labelColor": color_of("text"),
        "titleColor": color_of("soft"),
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "title": {
        "color": color_of("text"),
        "subtitleColor": color_of("soft"),
        "anchor": "start",
        "fontSize": 14,
        "subtitleFontSize": 12,
        "frame": "group",
    },
}
