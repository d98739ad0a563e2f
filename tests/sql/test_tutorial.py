"""The tutorial of a consumer, on servers; tests/product/test_tutorials.py does it on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import tutorial


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_the_tutorial_of_a_consumer(database_url: str, tmp_path: Path) -> None:
    page = tutorial.DOCS / "tutorials" / "database-consumer.md"
    assert len(tutorial.do(page, tmp_path, {"DATABASE": database_url})) == 4
