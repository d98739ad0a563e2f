"""The examples of the user pages about databases, run in order, print the output on the page."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "outputs"),
    [("producers-and-transactions", 5), ("transaction-markers", 2), ("transaction-failures", 1)],
)
def test_an_example_prints_the_output_on_its_page(
    name: str, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (PAGES / f"{name}.md").read_text("utf-8")
    blocks = re.findall(r"^```(python|text)(?: continued)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert sum(kind == "text" for kind, _ in blocks) == outputs
    names: dict[str, object] = {"__name__": "__main__"}
    said = ""
    for number, (kind, block) in enumerate(blocks):
        if kind == "python":
            assert said == "", f"what example {number} prints is not on the page: {said}"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, f"{name}.md", "exec"), names)
            said = out.getvalue()
        else:
            assert said == block
            said = ""
    assert said == ""
    names["engine"].dispose()  # type: ignore[attr-defined]
