"""The documentation site, checked from its sources: navigation, links, anchors, lengths. `make docs` builds it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from fencepost.cli import app
from support.scripts import load_script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINES_MAX = 300

site_hook: Any = load_script(ROOT / ".ci" / "docs.py")


class _Loader(yaml.SafeLoader):
    """Reads `mkdocs.yml` without what its tags import."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """Pages that no file has, with their texts: they take seconds."""
    return site_hook.generated_pages()


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def nav() -> list[str]:
    """The pages in the navigation of the site, in order."""

    def pages(item: Any) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        else:
            for part in item.values() if isinstance(item, dict) else item:
                yield from pages(part)

    return list(pages(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)["nav"]))


def pages_of_docs() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def linked_pages() -> list[Path]:
    """The pages whose links are checked: all of docs/, and those of the repository that the site shows."""
    return [*pages_of_docs(), ROOT / "README.md", *(ROOT / it for it in site_hook.repository_pages())]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as a repository and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(text), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        while (name := slug if number == 1 else f"{slug}-{number - 1}") in found:
            number += 1
        found.add(name)
    return found


def broken_links(text: str, path: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of a page."""
    found = []
    for _, _, target in site_hook.LINK.findall(prose(text)):
        file, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        to = path.parent / file if file else path
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to.read_text("utf-8"))):
            found.append(target)
    return found


def test_every_page_is_in_the_nav_once(generated: dict[str, str]) -> None:
    expected = {path.relative_to(DOCS).as_posix() for path in pages_of_docs()}
    expected |= {*site_hook.repository_pages().values(), *generated}
    in_nav = nav()
    assert sorted(expected - set(in_nav)) == [], "add these pages to the nav of mkdocs.yml"
    assert sorted(set(in_nav) - expected) == [], "the nav of mkdocs.yml has pages that do not exist"
    assert len(in_nav) == len(set(in_nav))


@pytest.mark.parametrize("path", linked_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path.read_text("utf-8"), path) == []


def test_a_broken_link_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A title, `quoted`\n\n```\n# no heading\n```\n\n## A title, `quoted`\n")
    text = "[1](a.md) [2](a.md#a-title-quoted-1) [3](#b) [4](a.md#no-heading) ![5](b.svg) [6](https://example.org)"
    assert broken_links(text, page) == ["#b", "a.md#no-heading", "b.svg"]


def limited_pages() -> list[Path]:
    """The pages that docs/style.md limits: all except tables that tests read, and results of benchmarks."""
    return [it for it in linked_pages() if not {ROOT / "spec", ROOT / "bench" / "results"} & {*it.parents}]


@pytest.mark.parametrize("path", limited_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_is_long(path: Path) -> None:
    lines = path.read_text("utf-8").count("\n")
    assert lines <= LINES_MAX, f"{lines} lines; at most {LINES_MAX}: split the page"


def test_links_of_the_repository_become_links_of_the_site() -> None:
    pages = site_hook.repository_pages()

    def link(target: str, source: str, page: str) -> str:
        text: str = site_hook.site_links(f"[it]({target})", source, page, pages)
        return text

    assert link("../CHANGELOG.md", "docs/faq.md", "faq.md") == "[it](changelog.md)"
    assert link("../guide.md#audit", "docs/tutorials/laptop.md", "tutorials/laptop.md") == "[it](../guide.md#audit)"
    assert link("docs/guide.md", "ARCHITECTURE.md", "internals/architecture.md") == "[it](../guide.md)"
    assert link("lake.svg", "bench/results/lake.md", "benchmarks/lake.md") == "[it](lake.svg)"
    assert link("../bench/run.py", "docs/faq.md", "faq.md") == "it", "a file that is not a page"
    assert link("nowhere.md", "docs/faq.md", "faq.md") == "[it](nowhere.md)", "MkDocs reports it"
    assert link("https://example.org/a", "docs/faq.md", "faq.md") == "[it](https://example.org/a)"


def test_marks_of_code_blocks_are_for_tests_only() -> None:
    text = "```python no-run: needs a broker\n[a](b.md)\n```\n"
    assert site_hook.site_links(text, "docs/faq.md", "faq.md", {}) == "```python\n[a](b.md)\n```\n"


def commands_in(text: str) -> list[list[str]]:
    """The `fencepost` commands in the `sh` blocks of a page, each as its arguments."""
    found = []
    for block in re.findall(r"^```sh[^\n]*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
            words.whitespace_split = True
            parts: list[list[str]] = [[]]
            for word in words:
                if set(word) <= set("|&;<>()"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            found += [part[1:] for part in parts if part[:1] == ["fencepost"]]
    return found


def wrong_usage(arguments: list[str]) -> str | None:
    """What the command line objects to in arguments; nothing is run."""
    command, names = command_line(), list(arguments)
    while names and hasattr(command, "commands"):
        name = names.pop(0)
        if name.startswith("-"):
            return None
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    try:
        command.make_parser(command.context_class(command)).parse_args(names)
    except typer.BadParameter.__mro__[2] as problem:
        return str(problem)
    return None


@pytest.mark.parametrize("path", linked_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_on_pages_have_existing_options(path: Path) -> None:
    commands = commands_in(path.read_text("utf-8"))
    wrong = {" ".join(it): said for it in commands if (said := wrong_usage(it)) is not None}
    assert wrong == {}


OTHER_TOOLS = {"--archives", "--properties", "--py-files", "--help"}
"""Options of other tools that pages name by themselves."""


def options_of(command: Any) -> set[str]:
    own = {name for it in command.params for name in (*it.opts, *it.secondary_opts)}
    return own.union(*(options_of(it) for it in getattr(command, "commands", {}).values()))


def unknown_options(text: str, known: set[str]) -> list[str]:
    """The options that a page names in its sentences and that no command has."""
    return [it for it in re.findall(r"`(--[a-z][a-z-]+)", prose(text)) if it not in known]


def test_pages_name_options_that_exist() -> None:
    known = options_of(command_line()) | OTHER_TOOLS
    pages = [*pages_of_docs(), ROOT / "README.md", ROOT / "CHANGELOG.md"]  # pages of benchmarks name their own programs
    unknown = {path.name: it for path in pages if (it := unknown_options(path.read_text("utf-8"), known))}
    assert unknown == {}
    assert unknown_options("with `--task-bytes-max`, not `--task-bites-max 3`", known) == ["--task-bites-max"]


def test_a_wrong_command_is_detected() -> None:
    text = "```sh\nls | fencepost audit a --fail-un b && fencepost odit a  # says\n```\n"
    assert commands_in(text) == [["audit", "a", "--fail-un", "b"], ["odit", "a"]]
    assert [wrong_usage(it) is None for it in commands_in(text)] == [False, False]
    assert wrong_usage(["audit", "a", "--fail-on", "duplicate"]) is None
    assert sum(len(commands_in(path.read_text("utf-8"))) for path in linked_pages()) >= 40


def test_each_command_has_its_help_on_a_page(generated: dict[str, str]) -> None:
    for name, members in site_hook.commands().items():
        page = generated[f"reference/cli/{name}.md"]
        assert page.count("Usage: fencepost") == len(members)
        assert f"Usage: fencepost {name}" in page
    assert "| [`fencepost dedup`](dedup.md) | " in generated["reference/cli/index.md"]
