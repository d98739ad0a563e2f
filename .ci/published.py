"""Writes the address of the repository into what package indexes show: `published.py URL`.

The repository does not contain its own address: links of README.md are relative, so that they work in every clone. A
package index has no files beside the description, so the release workflow, which knows the address, makes the links
absolute and adds `project.urls` to both packages before it builds them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!\w+:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
PROJECTS = ("pyproject.toml", "spark_udf/pyproject.toml")


def with_absolute_links(text: str, url: str, tag: str) -> str:
    """Return a page of the root folder with its relative links made absolute, to the files of a tag."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({url}/{kind}/{tag}/{link['target']}{link['anchor'] or ''})"

    return LINK.sub(absolute, text)


def with_urls(project: str, url: str, tag: str) -> str:
    """Return the text of a pyproject.toml with `project.urls`. Raises ValueError if it has them."""
    if "urls" in tomllib.loads(project)["project"]:
        raise ValueError("it has project.urls already")
    pages = {
        "Documentation": f"{url}/blob/{tag}/docs/index.md",
        "Source": url,
        "Changelog": f"{url}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = "".join(f'{name} = "{page}"\n' for name, page in pages.items())
    return f"{project.rstrip()}\n\n[project.urls]\n{lines}"


def publish(root: Path, url: str) -> None:
    """Change README.md and both projects in a folder with a copy of the repository."""
    url = url.rstrip("/")
    tag = "v" + tomllib.loads((root / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    readme = root / "README.md"
    readme.write_text(with_absolute_links(readme.read_text("utf-8"), url, tag), "utf-8")
    for project in PROJECTS:
        path = root / project
        path.write_text(with_urls(path.read_text("utf-8"), url, tag), "utf-8")


if __name__ == "__main__":
    publish(ROOT, sys.argv[1])
