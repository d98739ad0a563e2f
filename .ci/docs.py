"""A hook of MkDocs: adds to the site what is not a file in docs/, see `mkdocs.yml`.

- Pages of the repository outside of docs/ (ARCHITECTURE.md, bench/README.md, the rule book, ...), with their pictures.
- The Python reference: one page for each package, with the names in its `__all__`.
- The command-line reference: the `--help` text of each command.

Links in pages are relative to files of the repository, so that they work where the repository is read. Here they become
links between pages of the site. A link to a file that is not a page becomes its text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

MODULES = {
    "fencepost": "python/fencepost",
    "fencepost.lake": "python/fencepost/lake",
    "fencepost.state": "python/fencepost/state",
    "fencepost.state.operations": "python/fencepost/state/operations.py",
    "fencepost.kafka": "python/fencepost/kafka",
    "fencepost.sql": "python/fencepost/sql",
    "fencepost.consumer": "python/fencepost/consumer",
    "fencepost.producer": "python/fencepost/producer",
    "fencepost.transports": "python/fencepost/transports",
    "fencepost.daemon": "python/fencepost/daemon",
    "fencepost_spark": "spark_udf/fencepost_spark",
}
HELP_COLUMNS = "100"


def repository_pages() -> dict[str, str]:
    """Pages outside of docs/ that the site shows: file of the repository to page of the site."""
    pages = {
        "ARCHITECTURE.md": "internals/architecture.md",
        "CONTRIBUTING.md": "internals/contributing.md",
        "CHANGELOG.md": "changelog.md",
        "SECURITY.md": "reference/security.md",
        "bench/README.md": "benchmarks/index.md",
    }
    for path in sorted((ROOT / "bench" / "results").glob("*.md")):
        pages[f"bench/results/{path.name}"] = f"benchmarks/{path.name}"
    for path in sorted((ROOT / "spec").rglob("*.md")):
        name = path.relative_to(ROOT / "spec").as_posix()
        pages[f"spec/{name}"] = f"reference/rules/{name.replace('README.md', 'index.md')}"
    return pages


def generated_pages() -> dict[str, str]:
    """Pages that no file has: page of the site to its text."""
    return {**{f"reference/python/{name}.md": text for name, text in _python_pages()}, **dict(_command_pages())}


def _python_pages() -> Iterator[tuple[str, str]]:
    for module, place in MODULES.items():
        path = ROOT / place
        names = _public_names(path / "__init__.py" if path.is_dir() else path)
        blocks = "".join(f"::: {module}.{name}\n\n" for name in names)
        options = "    options:\n      members: false\n      show_root_heading: false\n"
        yield module, f"# {module}\n\n::: {module}\n{options}\n{blocks}"


def _public_names(path: Path) -> list[str]:
    """The names in `__all__` of a module; without one, its functions and classes without an underscore."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [it for it in ast.literal_eval(node.value) if not it.startswith("_")]
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def commands() -> dict[str, list[list[str]]]:
    """The commands of `fencepost` by group, each as its words."""
    import typer
    from fencepost.cli import app

    groups: dict[str, list[list[str]]] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        subcommands = getattr(command, "commands", {})
        groups[name] = [[name], *([name, it] for it in subcommands)]
    return groups


def help_text(words: list[str]) -> str:
    """The `--help` text of a command."""
    from fencepost.cli import app

    before = {name: os.environ.get(name) for name in ("COLUMNS", "TERMINAL_WIDTH", "NO_COLOR")}
    os.environ.update(COLUMNS=HELP_COLUMNS, TERMINAL_WIDTH=HELP_COLUMNS, NO_COLOR="1")
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            app([*words, "--help"], prog_name="fencepost", standalone_mode=False)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    return out.getvalue()


def _command_pages() -> Iterator[tuple[str, str]]:
    groups = commands()
    rows = "".join(f"| [`fencepost {name}`]({name}.md) | {_summary([name])} |\n" for name in groups)
    intro = (
        "# Command line\n\n`pip install 'fencepost[cli]'` installs the command `fencepost`. "
        "This reference is the `--help` text of each command.\n\n"
        f"| command | what it does |\n|---|---|\n{rows}\n"
        "| exit code | meaning |\n|---:|---|\n| 0 | clean |\n| 1 | error |\n| 2 | usage |\n"
        "| 3 | findings |\n| 4 | nothing was read |\n"
    )
    yield "reference/cli/index.md", intro
    for name, members in groups.items():
        blocks = ""
        for words in members:
            heading = f"## fencepost {' '.join(words)}\n\n" if len(words) > 1 else ""
            blocks += f"{heading}```text\n{help_text(words).strip()}\n```\n\n"
        yield f"reference/cli/{name}.md", f"# fencepost {name}\n\n{blocks}"


def _summary(words: list[str]) -> str:
    """The first sentence of a command's help."""
    _, _, rest = help_text(words).partition("\n\n")
    paragraph = " ".join(rest.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("|", "\\|")


# What MkDocs calls.


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in repository_pages().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "bench" / "results").glob("*.svg")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    for page, text in generated_pages().items():
        files.append(File.generated(config, page, content=text))
    script = ROOT / ".tools" / "mermaid.min.js"
    if script.exists():  # otherwise the theme loads drawings' script from the network
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(script)))
        config.extra_javascript.append("assets/mermaid.min.js")
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    pages = repository_pages()
    origins = {page: source for source, page in pages.items()}
    here = origins.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_links(markdown, here, page.file.src_uri, pages)


LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(\s*```[a-z]+) .*$", re.MULTILINE)


def site_links(markdown: str, source: str, page: str, pages: dict[str, str]) -> str:
    """The text of a page whose links point to pages of the site.

    `source`: file of the repository, `page`: its page. What follows the language of a code block (`python no-run`) is
    for the tests and is removed.
    """
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        parts[number] = LINK.sub(lambda match: _site_link(match, source, page, pages), parts[number])
    return "".join(FENCE.sub(r"\1", part) if number % 2 else part for number, part in enumerate(parts))


def _site_link(match: re.Match[str], source: str, page: str, pages: dict[str, str]) -> str:
    picture, text, target = match.groups()
    path, hash_, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return match[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if file.startswith("bench/results/") and file.endswith(".svg"):
        found = f"benchmarks/{posixpath.basename(file)}"
    elif file in pages:
        found = pages[file]
    elif file.startswith("docs/"):
        found = file.removeprefix("docs/")
    elif file == "README.md":
        found = "index.md"
    elif (ROOT / file).exists():
        return text
    else:
        return match[0]  # broken: MkDocs reports it
    return f"{picture}[{text}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{hash_}{anchor})"
