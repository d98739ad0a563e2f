"""A page: a title, answers to the reader's questions in order, and a section of evidence for each answer.

The page is one file. It loads nothing, and its content security policy forbids loading.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

from fencepost.pages.charts import Chart, css
from fencepost.pages.html import Html, join, tag
from fencepost.pages.tables import Table

Mood = Literal["good", "bad", "note", "unknown"]
_SIGNS: dict[Mood, tuple[str, str]] = {
    "good": ("✓", "good"),
    "bad": ("!", "needs attention"),
    "note": ("i", "note"),
    "unknown": ("?", "unknown"),
}


@dataclass(frozen=True)
class Command:
    """A command that acts on a finding, and its effect."""

    purpose: str
    line: str


@dataclass(frozen=True)
class Section:
    """A question, its answer, and the evidence."""

    name: str
    """The anchor: letters and hyphens."""
    question: str
    figure: str
    """The answer as a short figure, such as a count."""
    answer: str
    """The answer in sentences."""
    mood: Mood
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    commands: Sequence[Command] = ()


@dataclass(frozen=True)
class Page:
    kind: str
    """The kind of report, such as "Audit"."""
    title: str
    facts: Sequence[tuple[str, str]]
    """What was read and how: (name, value)."""
    sections: Sequence[Section]
    more: Sequence[Section] = field(default=())
    """Sections without an entry in the summary."""

    def charts(self) -> dict[str, Chart]:
        """Return the charts of all sections by name."""
        return {chart.name: chart for section in (*self.sections, *self.more) for chart in section.charts}

    def to_html(self) -> str:
        """Return the whole file."""
        title = f"{self.kind}: {self.title}"
        policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{_digest('page.js')}'"
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", Html(css() + _asset("page.css"))),
        )
        top = tag("header", tag("p", self.kind, class_="kind"), tag("h1", self.title), _facts(self.facts))
        summary = tag("ol", [_summary(it) for it in self.sections], class_="answers")
        body = tag(
            "body",
            tag("a", "Skip to the findings", href="#findings", class_="skip"),
            top,
            tag("main", summary, [_section(it) for it in (*self.sections, *self.more)], id="findings", tabindex="-1"),
            tag("p", class_="visually-hidden", role="status", id="status"),
            tag("script", Html(_asset("page.js"))),
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically."""
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            unfinished.write_text(self.to_html(), encoding="utf-8")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)

    def frame(self) -> str:
        """Return the page for embedding, such as in a notebook."""
        style = "width: 100%; height: 720px; border: 1px solid #8884; border-radius: 8px"
        return tag("iframe", sandbox="allow-scripts", title=self.kind, style=style, srcdoc=self.to_html())


def _facts(facts: Sequence[tuple[str, str]]) -> Html:
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts], class_="facts")


def _summary(section: Section) -> Html:
    link = tag("a", section.question, href=f"#{section.name}")
    return tag(
        "li",
        tag("h2", _sign(section.mood), link),
        tag("p", section.figure, class_="figure"),
        tag("p", section.answer),
        class_=section.mood,
    )


def _sign(mood: Mood) -> Html:
    sign, said = _SIGNS[mood]
    return join(
        tag("span", sign, class_="sign", aria_hidden="true"), tag("span", f"{said}: ", class_="visually-hidden")
    )


def _section(section: Section) -> Html:
    heading = f"{section.name}-heading"
    return tag(
        "section",
        tag("h2", section.question, id=heading),
        tag("p", tag("strong", section.figure), _between(section), section.answer, class_="answer"),
        tag("div", [_figure(it) for it in section.charts], class_="charts") if section.charts else None,
        [it.html() for it in section.tables],
        [tag("p", note, class_="aside") for note in section.notes],
        [_command(it) for it in section.commands],
        id=section.name,
        aria_labelledby=heading,
        tabindex="-1",
    )


def _between(section: Section) -> str:
    """Return the text between figure and answer: the answer may continue the figure's sentence."""
    if not section.figure:
        return ""
    return " " if section.answer[:1].islower() else ". "


def _figure(chart: Chart) -> Html:
    numbers = tag("details", tag("summary", "Numbers"), chart.numbers.html())
    drawings = [tag("div", Html(chart.to_svg("page", size)), class_=size) for size in chart.sizes]
    caption = tag("figcaption", tag("h3", chart.title), tag("p", chart.subtitle))
    return tag("figure", caption, drawings, numbers, class_="wide" if "wide" in chart.sizes else None)


def _command(command: Command) -> Html:
    words = [tag("span", word) for word in command.line.split(" ")]  # wrap lines between words only
    line = tag("pre", tag("code", [part for word in words for part in (" ", word)][1:]))
    copy = tag("button", "Copy", type="button", class_="copy", aria_label=f"Copy the command: {command.purpose}")
    return tag("div", tag("p", command.purpose), tag("div", line, copy, class_="line"), class_="command")


def _asset(name: str) -> str:
    return resources.files("fencepost.pages").joinpath(name).read_text(encoding="utf-8")


def _digest(name: str) -> str:
    digest = hashlib.sha256(_asset(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
