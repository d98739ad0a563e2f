"""The coordinator's rule book: the machine alone, the same through a database, and broken machines found out."""

from __future__ import annotations

import re

import pytest
import sqlalchemy
from fencepost.sql import transaction
from support.coordinator_doors import MachineDoor, SqlDoor, complaints, state_name
from support.coordinator_first_version import end
from support.coordinator_mutants import MUTANTS, mutant
from support.coordinator_rulebook import PAGES, STATES, Case, cases, may_come_from, read_page

CASES = cases()
SECOND = [case for case in CASES if case.protocol == 2]
FIRST = [case for case in CASES if case.protocol == 1]
PAGE_NAMES = sorted({case.page for case in SECOND})
LEFT_OUT = {"T40", "T41"}


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_the_machine_keeps_the_page(page: str) -> None:
    found, asked = [], 0
    for case in SECOND:
        if case.page == page:
            some, count = complaints(case, MachineDoor(case))
            found, asked = found + some, asked + count
    assert not found, "\n".join(found)
    assert asked


def test_a_database_keeps_the_pages(engine: sqlalchemy.Engine) -> None:
    found, asked = [], 0
    for case in SECOND:
        some, count = complaints(case, SqlDoor(case, engine))
        found, asked = found + some, asked + count
    assert not found, "\n".join(found)
    steps = sum(len(case.steps) for case in SECOND)
    assert asked >= 0.9 * steps, f"{asked} of {steps} rows can be reached from outside"


def test_the_first_protocol_version_matches_its_page() -> None:
    assert len(FIRST) >= 12
    for case in FIRST:
        [step] = case.steps
        assert case.before is not None
        result, after = end(case.before, step.request)
        assert (result, after) == (step.result, case.before if step.is_same else step.after), f"{case}"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_state_machine_is_detected(name: str) -> None:
    module = mutant(name)
    complaining = [case for case in SECOND if _complaints(case, module)]
    assert complaining
    assert len(complaining) < len(SECOND) / 2, "one rule is broken, not all"


def _complaints(case: Case, module: object) -> list[str]:
    try:
        return complaints(case, MachineDoor(case, module))[0]
    except Exception as error:  # breaking off is objecting too
        return [f"{case}: {error!r}"]


def test_states_are_those_of_the_page() -> None:
    page = may_come_from()
    assert page.keys() == set(STATES)
    for state, (number, before) in page.items():
        ours = transaction.State[state_name(state)]
        assert ours == number
        assert transaction.MAY_COME_FROM[ours] == {transaction.State[state_name(it)] for it in before}
    assert len(transaction.State) == len(page)


def test_every_row_has_its_place() -> None:
    found = {step.row for case in CASES for step in case.steps if step.row}
    assert found == {f"T{number:02}" for number in range(1, 42)} - LEFT_OUT
    readme = (PAGES / "README.md").read_text("utf-8")
    assert set(re.findall(r"T4\d", readme.partition("## What is left out")[2])) == LEFT_OUT
    assert sum(len(case.steps) for case in CASES) >= 150


@pytest.mark.parametrize(
    "row",
    [
        "| | 7/5 Emty | init | OK | same | |",
        "| | 7/5 Empty | innit | OK | same | |",
        "| | 7/5 Empty | commit | OK | same | |",
        "| | 7/5 Empty | init | FINE | same | |",
        "| | 7 Empty | init | OK | same | |",
        "| | 7/5 Empty | init | OK | Empty | |",
    ],
)
def test_a_misspelt_row_fails(row: str) -> None:
    with pytest.raises(AssertionError):
        read_page("x", f"| row | before | request | result | after | why |\n|---|---|---|---|---|---|\n{row}\n")
