"""Follows the tutorials step by step, in an empty folder. Those on Spark are in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import tutorial


@pytest.mark.parametrize("name", ["laptop", "kafka-operator", "database-consumer"])
def test_a_tutorial_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    done = tutorial.do(tutorial.DOCS / "tutorials" / f"{name}.md", tmp_path)
    assert len(done) >= 4


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```sh\nexit 3\n```\n", "exit code 3"),
        ("```sh\necho one\n```\n\n```text\ntwo\n```\n", "it printed\none"),
        ("```sh no-run\nexit 3\n```\n", "one with a reason"),
        ("```python\nprint(1)\n```\n", "names the program's file"),
        ("```sh\nfalse | cat\n```\n", "exit code 1"),
    ],
)
def test_a_wrong_page_is_detected(page: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(AssertionError) as raised:
        tutorial.do(tmp_path / "page.md", tmp_path)
    assert problem in str(raised.value)


def test_an_ellipsis_stands_for_any_text(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "```sh\nseq 5\n```\n\n```text\n1\n...\n5\n```\n\n```sh no-run: too slow here\nexit 3\n```\n"
    )
    assert tutorial.do(tmp_path / "page.md", tmp_path) == ["seq 5\n"]
