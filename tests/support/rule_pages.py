"""Shared code of the readers of rule books: finding the pages of a folder, splitting rows of tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")


def cases_of(pages: Path, read_page: Callable[[str, str], list[Case]]) -> list[Case]:
    """Every case of every page of a folder, in order. `read_page`: the cases of a page by its name and its text."""
    found = [case for path in sorted(pages.glob("*.md")) for case in read_page(path.stem, path.read_text("utf-8"))]
    assert found, f"no page in {pages}"
    return found


def cells(line: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
