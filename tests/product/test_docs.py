"""The documentation site, checked from its sources: navigation, links, anchors, lengths, code blocks.

`make docs` builds it. Python blocks run in tests/product/test_package.py.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fencepost as fp
import pytest
import typer
import yaml
from fencepost.cli import app
from fencepost.daemon import Settings
from fencepost.sql import statements
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


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    mark: str
    text: str


LANGUAGES = {"python", "sh", "sql", "toml", "properties", "mermaid", "text"}
"""Tests run or check blocks of these languages. Exceptions: drawings, and text outside of tutorials."""
MARK = re.compile(r"| continued| no-run: [^`]{10,}")


def blocks_in(text: str) -> list[Block]:
    found = re.findall(r"^ *```(\S*)([^\n]*)\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(*it) for it in found]


def blocks_of(language: str) -> list[str]:
    """The blocks of all pages in this language, except those that say why no test runs them."""
    blocks = [block for path in linked_pages() for block in blocks_in(path.read_text("utf-8"))]
    return [block.text for block in blocks if block.language == language and not block.mark]


def unchecked_blocks(text: str) -> list[str]:
    """The first lines of blocks that no test checks, without a reason."""
    return [
        f"{block.language}{block.mark}"
        for block in blocks_in(text)
        if not (MARK.fullmatch(block.mark) and (block.language in LANGUAGES or "no-run" in block.mark))
    ]


@pytest.mark.parametrize("path", linked_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_block_is_checked_or_says_why_not(path: Path) -> None:
    assert unchecked_blocks(path.read_text("utf-8")) == [], "write ```<language> no-run: the reason"


def test_a_block_without_a_check_is_detected() -> None:
    page = "```{}\n1\n```\n"
    for first in ("", "python no-run", "python no-run: no", "yaml", "python later"):
        assert unchecked_blocks(page.format(first)) == [first]
    for first in ("python", "python continued", "text", "yaml no-run: a template of the reader"):
        assert unchecked_blocks(page.format(first)) == []


def test_sql_on_pages_runs_on_sqlite() -> None:
    blocks = blocks_of("sql")
    assert len(blocks) >= 2
    for block in blocks:
        connection = sqlite3.connect(":memory:")
        for statement in (*statements("sqlite"), "CREATE TABLE orders (pid BIGINT, epoch SMALLINT)"):
            connection.execute(statement)
        connection.executescript(block)
        connection.close()


def test_toml_on_pages_has_settings_of_the_daemon(tmp_path: Path) -> None:
    blocks = blocks_of("toml")
    assert len(blocks) >= 2
    for block in blocks:
        (tmp_path / "fencepost.toml").write_text(block)
        assert Settings.read(tmp_path / "fencepost.toml").claims_keep_ms


def test_the_configuration_of_kafka_connect_writes_the_columns_of_its_preset() -> None:
    (block,) = blocks_of("properties")
    settings = dict(line.split("=", 1) for line in block.splitlines())
    preset = fp.Columns.preset("kafka-connect")
    fields = [settings[f"transforms.meta.{name}.field"] for name in ("topic", "partition", "offset")]
    assert fields == [preset.pid, preset.partition, preset.seq]


def test_sh_on_pages_is_valid() -> None:
    blocks = blocks_of("sh")
    assert len(blocks) >= 40
    for block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{block}"


def test_make_has_the_targets_on_pages() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    commands = [it for path in linked_pages() for it in commands_in(path.read_text("utf-8"), "make")]
    named = {word for command in commands for word in command if re.fullmatch(r"[a-z][a-z-]*", word)}
    assert len(named) >= 5
    assert named - targets == set()


def commands_in(text: str, program: str = "fencepost") -> list[list[str]]:
    """The commands of a program in the `sh` blocks of a page, each as its arguments."""
    found = []
    for block in (it.text for it in blocks_in(text) if it.language == "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
            words.whitespace_split = True
            parts: list[list[str]] = [[]]
            for word in words:
                if set(word) <= set("|&;<>()"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            found += [part[1:] for part in parts if part[:1] == [program]]
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
