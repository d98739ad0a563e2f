"""`fencepost.BrokerTable` against the broker's rule book, a real broker's answers, and the naive reference.

`HYPOTHESIS_PROFILE=ci` tries more examples than the default `dev`. `tests/core/test_broker_rulebook.py`
shows that the rule book and the streams detect a broken broker.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.broker_attempts import differences
from support.broker_doors import Door, FencepostDoor, ReferenceDoor, complaints, do
from support.broker_reference import Judged
from support.broker_rulebook import COLUMNS, Call, Case, cases
from support.broker_streams import Part, Sender, case_of, from_seed, must_agree, options, run, streams

COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
PROFILES = {"dev": settings(max_examples=100, **COMMON), "ci": settings(max_examples=1000, **COMMON)}
NAME = os.environ.get("HYPOTHESIS_PROFILE", "dev")
SEEDS = {"dev": 300, "ci": 5000}[NAME]

CASES = cases()
PAGE_NAMES = sorted({case.page for case in CASES})
PAGE = Path(__file__).parents[2] / "docs" / "broker.md"


@pytest.mark.parametrize("spelt", ["count", "last_seq"])
@pytest.mark.parametrize("page", PAGE_NAMES)
def test_a_page_holds(page: str, spelt: str) -> None:
    found = [it for case in CASES if case.page == page for it in complaints(case, FencepostDoor, spelt)]
    assert not found, "\n".join(found)


def pieces(length: int, how: str) -> list[tuple[int, int]]:
    """Where a call of so many rows is cut."""
    if how == "row by row":
        return [(row, row + 1) for row in range(length)]
    chance = random.Random(length)
    return list(pairwise(sorted({0, length, *(chance.randrange(length) for _ in range(3))})))


@pytest.mark.parametrize("how", ["row by row", "anywhere", "through snapshots"])
@pytest.mark.parametrize("page", PAGE_NAMES)
def test_a_page_holds_for_any_division_of_its_tables(page: str, how: str) -> None:
    rows = 0
    for case in CASES:
        if case.page == page and not case.refused:
            rows += hold_in_pieces(case, how)
    assert rows


def hold_in_pieces(case: Case, how: str) -> int:
    """Run a case with its tables divided. Returns the number of judged rows."""
    table, rows = FencepostDoor(case), 0
    for step in case.steps:
        where = f"{case.page}:{step.line}"
        if not isinstance(step, Call):
            do(table, step)
        elif step.error is None:
            call = step.spelt("last_seq")
            for first, end in pieces(len(call.rows), how):
                some = call.rows[first:end]
                found = judged(table, call.part(some))
                book = [(row.verdict, row.expected, row.answered if call.has_answers else None) for row in some]
                ours = [(*it[:2], it[2] if call.has_answers else None) for it in found]
                assert ours == book, where
                rows += len(some)
                if how == "through snapshots":
                    table.rebuild()
        assert step.entries is None or table.entries() == step.entries, where
        assert {partition: table.log_end(partition) for partition in step.log_end} == step.log_end, where
    return rows


def judged(table: Door, call: Call) -> list[tuple[str, int | None, int | None]]:
    found = table.apply(call)
    assert isinstance(found, Judged), found
    return list(zip(found.verdicts, found.expected, found.offsets, strict=True))


def test_the_table_answers_like_a_real_broker() -> None:
    assert differences(FencepostDoor) == []


@PROFILES[NAME]
@given(options, streams)
def test_the_reference_agrees(chosen: dict[str, Any], stream: list[Part]) -> None:
    """Verdicts, expected, offsets, errors, entries and the ends of logs; check and apply (asserted by the door)."""
    case = case_of(chosen)
    run(FencepostDoor(case), ReferenceDoor(case), chosen, stream, must_agree)


def test_the_reference_agrees_on_longer_streams() -> None:
    for seed in range(SEEDS):
        chosen, stream = from_seed(seed)
        case = case_of(chosen)
        try:
            run(FencepostDoor(case), ReferenceDoor(case), chosen, stream, must_agree)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {chosen}") from error


def test_the_division_into_batches_has_no_effect() -> None:
    """One call, or a call for each row: the same answers and the same bytes."""
    for seed in range(SEEDS // 10):
        chosen, stream = from_seed(seed)
        sender = Sender(chosen)
        rows = [row for part in stream for row in sender.rows(replace(part, bad=None))]
        whole, pieces = FencepostDoor(case_of(chosen)), FencepostDoor(case_of(chosen))
        call = Call(0, frozenset(COLUMNS), rows=rows)
        at_once = judged(whole, call)
        one_by_one = [answer for row in rows for answer in judged(pieces, call.part([row]))]
        assert one_by_one == at_once, f"seed {seed}"
        assert pieces.state() == whole.state(), f"seed {seed}"


def transcripts() -> tuple[str, list[str]]:
    """The transcript that the page prints, and those of its examples."""
    text = PAGE.read_text("utf-8")
    (printed,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = []
    for source in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, PAGE.name, "exec"), {"__name__": "__main__"})
        found.append(out.getvalue())
    return printed, found


def test_the_textbook_and_the_table_print_the_transcript() -> None:
    printed, (textbook, table) = transcripts()
    assert len(printed.splitlines()) >= 15
    assert textbook == printed
    assert table == printed
