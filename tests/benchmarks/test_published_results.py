"""The published results, and the pages of docs that repeat them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import doc_figures, report, run, summary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def test_all_pages_are_of_one_revision_without_other_changes() -> None:
    stated = set(run.stated_revisions(RESULTS).values())
    assert len(stated) == 1
    assert re.fullmatch(r"Revision `[0-9a-f]{12}`", stated.pop())


def test_everything_was_measured_in_five_rounds() -> None:
    rounds = {path.name: set(_rounds(json.loads(path.read_text()))) for path in RESULTS.glob("*.json")}
    assert {name: found for name, found in rounds.items() if min(found) < run.ROUNDS} == {}
    for name in run.AS_TEXT:
        assert f"Medians of {run.ROUNDS} rounds" in (RESULTS / f"{name}.md").read_text()


def _rounds(facts: Any) -> Iterator[int]:
    """The number of rounds of each measurement in results."""
    if isinstance(facts, dict):
        if "expected" in facts and "seconds" in facts:
            yield len(facts["seconds"])
        if isinstance(facts.get("rounds"), int):
            yield facts["rounds"]
    for it in facts.values() if isinstance(facts, dict) else facts if isinstance(facts, list) else ():
        yield from _rounds(it)


def test_each_page_has_its_worst_row_in_bold() -> None:
    for page in RESULTS.glob("*.md"):
        assert any(line.startswith("| **") for line in page.read_text().splitlines()), page.name


def test_the_summary_figure_shows_the_published_figures(tmp_path: Path) -> None:
    published = RESULTS / "lake.json"
    results = report.Results(json.loads(published.read_text()))
    summary.draw_summary(results, tmp_path / "summary.svg")
    drawn = (tmp_path / "summary.svg").read_text()
    assert drawn == published.with_name("lake-summary.svg").read_text(), (
        "python -m bench.summary bench/results/lake.json"
    )
    assert drawn.count('<g id="patch_') >= 2 * len(results.contests), "a bar for each contestant of each shape"


def test_docs_repeat_the_published_figures() -> None:
    """`python -m bench.doc_figures` writes them."""
    for passage in doc_figures.passages():
        text = (ROOT / "docs" / passage.page).read_text()
        assert re.findall(passage.pattern, text, re.DOTALL) == [passage.write()], passage.page
