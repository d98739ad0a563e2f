"""The broker's rule book against the naive reference, and the reader of the book. A broken reference must be found out.

`tests/core/test_broker.py` holds `fencepost.BrokerTable` against the same pages.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from support.broker_attempts import differences
from support.broker_doors import ReferenceDoor, complaints
from support.broker_mutants import MUTANTS, RestartKeepsFive
from support.broker_reference import Judged, ReferenceBroker
from support.broker_rulebook import ACTIONS, COLUMNS, MAX, OPTIONS, PAGES, Action, Entry, Error, Kept, cases, read_page
from support.broker_streams import Difference, case_of, from_seed, must_agree, run

CASES = cases()
PAGE_NAMES = sorted({case.page for case in CASES})
# Pages that must be there. More are welcome.
PAGES_EXPECTED = {
    *("README", "client", "window", "wrap", "unknown", "markers", "transactions", "origins"),
    *("forgetting", "versions", "offsets", "columns", "brokers"),
}
ROWS_MIN = 650
VERDICTS = {
    *("ACCEPTED", "DUPLICATE", "OUT_OF_ORDER", "FENCED", "INVALID_TXN_STATE", "COORDINATOR_FENCED", "UNTRACKED"),
}


@pytest.mark.parametrize("spelt", ["count", "last_seq"])
@pytest.mark.parametrize("page", PAGE_NAMES)
def test_the_reference_keeps_the_page(page: str, spelt: str) -> None:
    found = [it for case in CASES if case.page == page for it in complaints(case, ReferenceDoor, spelt)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_broker_is_detected(mutant: type[ReferenceBroker]) -> None:
    class Broken(ReferenceDoor):
        judge = mutant

    assert [complaint for case in CASES for complaint in complaints(case, Broken)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_random_streams_detect_a_broken_broker(mutant: type[ReferenceBroker]) -> None:
    """The streams with which `tests/core/test_broker.py` looks for differences do find some."""

    class Broken(ReferenceDoor):
        judge = mutant

    def differs(seed: int) -> bool:
        chosen, stream = from_seed(seed)
        case = case_of(chosen)
        try:
            run(Broken(case), ReferenceDoor(case), chosen, stream, must_agree)
        except Difference:
            return True
        return False

    assert any(differs(seed) for seed in range(600))


def test_streams_depend_on_the_seed_only_and_contain_every_verdict() -> None:
    verdicts: Counter[str] = Counter()
    errors: Counter[str] = Counter()

    def count(what: str, ours: Any, other: Any) -> None:
        must_agree(what, ours, other)
        if isinstance(ours, Judged):
            verdicts.update(ours.verdicts)
        elif isinstance(ours, Error):
            errors.update([ours.column])

    for seed in range(200):
        chosen, stream = from_seed(seed)
        assert (chosen, stream) == from_seed(seed)
        run(ReferenceDoor(case_of(chosen)), ReferenceDoor(case_of(chosen)), chosen, stream, count)
    assert set(verdicts) == VERDICTS
    assert min(verdicts.values()) >= 50, verdicts
    assert len(errors) >= 6, errors


def test_there_are_enough_broken_brokers() -> None:
    assert len(MUTANTS) >= 55


def test_the_book_is_read_whole() -> None:
    calls = [call for case in CASES for call in case.calls]
    rows = [row for call in calls for row in call.rows]
    verdicts = Counter(row.verdict for row in rows)
    print(f"{len(PAGE_NAMES)} pages, {len(CASES)} cases, {len(rows)} rows: {dict(verdicts)}")
    assert set(PAGE_NAMES) >= PAGES_EXPECTED
    assert len(rows) >= ROWS_MIN
    assert set(verdicts) - {"-"} == VERDICTS
    assert {option for case in CASES for option in case.options} == OPTIONS
    assert any(case.refused for case in CASES)
    errors = {call.error.column for call in calls if call.error}
    assert errors == set(COLUMNS) - {"timestamp", "transaction_version"}
    assert any(step.error == Error("policy", None) for case in CASES for step in case.steps)
    for column in COLUMNS:
        assert any(getattr(row, column) is not None for row in rows), f"no row has {column}"
    actions = [step for case in CASES for step in case.steps if isinstance(step, Action)]
    assert {action.name for action in actions} == set(ACTIONS)
    assert {origin for row in rows if (origin := row.origin)} >= {"client", "coordinator", "replica"}
    assert {control for row in rows if (control := row.control)} >= {"commit", "abort", "empty", "other"}
    for stated in ("dropped", "entries", "log_end"):
        assert any(getattr(action, stated) for action in actions), f"no page states {stated}"


def test_every_trap_and_every_compared_sequence_has_a_case() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES.glob("*.md"))
    assert {int(it) for it in re.findall(r"Trap (\d+)", text)} == set(range(1, 23))
    assert {int(it) for it in re.findall(r"^\| .*\| X(\d+): ", text, re.MULTILINE)} == set(range(1, 28))


def test_the_reference_answers_as_the_broker_did() -> None:
    assert differences(ReferenceDoor) == []


def test_answers_that_differ_from_the_brokers_are_detected() -> None:
    class Broken(ReferenceDoor):
        judge = RestartKeepsFive

    assert differences(Broken)


def test_a_row_is_read_as_it_is_written() -> None:
    text = """\
broker: version=2.4 window=2 offsets=assign

| pid | partition | seq | transactional | control | origin | verdict | expected | offsets | why |
|---|---|---|---|---|---|---|---|---|---|
| 8 | 1 | MAX-1..3 | yes | | replica | OUT_OF_ORDER | MAX | | because |
| 8 | 1 | none*3 | no | abort | | ACCEPTED | | 12 | |
| | 1 | | | | | UNTRACKED | | | |

 | prose |
 |---|

- entries: 8 / 1: e3 [0..4@10..14, none@15..16, MAX..0] txn ? coord 2 at -5; 9 / 0: e0 [] txn 7
- log_end: 0: 15; 1: 3

restart: now=-5

evict: now=7

- dropped: 2
- entries: none
"""
    (case,) = read_page("page", text)
    assert case.options == {"version": "2.4", "window": 2, "offsets": "assign"}
    call, restart, evict = case.steps
    first, second, third = case.calls[0].rows
    assert (first.pid, first.epoch, first.partition) == (8, 0, 1)
    assert (first.base_seq, first.count, first.last_seq) == (MAX - 1, 6, 3)
    assert (first.transactional, first.origin, first.expected, first.answered) == (True, "replica", MAX, None)
    assert (second.base_seq, second.count, second.last_seq) == (-1, 3, -1)
    assert (second.transactional, second.control, second.answered) == (False, "abort", 12)
    assert (third.pid, third.base_seq, third.count, third.last_seq, third.control) == (None,) * 5
    assert call.entries == [
        Entry(8, 1, 3, (Kept(0, 4, 10, 14), Kept(-1, -1, 15, 16), Kept(MAX, 0, None, None)), "?", 2, -5),
        Entry(9, 0, 0, (), 7, -1, -1),
    ]
    assert call.log_end == {0: 15, 1: 3}
    assert isinstance(restart, Action)
    assert (restart.name, restart.arguments, restart.entries) == ("restart", {"now": -5}, None)
    assert isinstance(evict, Action)
    assert (evict.name, evict.dropped, evict.entries) == ("evict", 2, [])


def test_sequences_are_spelt_by_count_or_by_the_last() -> None:
    (case,) = read_page("page", f"{HEADER}{ROW}| -1 | 0..4 | UNTRACKED |\n")
    (call,) = case.calls
    by_count, by_last = call.spelt("count"), call.spelt("last_seq")
    assert [(row.count, row.last_seq) for row in by_count.rows] == [(5, None), (5, None)]
    assert [(row.count, row.last_seq) for row in by_last.rows] == [(None, 4), (5, 4)]
    assert "last_seq" not in by_count.columns
    assert {"count", "last_seq"} <= by_last.columns


HEADER = "broker:\n\n| pid | seq | verdict |\n|---|---|---|\n"
ROW = "| 7 | 0..4 | ACCEPTED |\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prose alone",
        "broker:\n",
        HEADER,
        "| refused |\n|---|\n| window=0 |\n",
        f"{HEADER}{ROW}\n- entires: none\n",
        f"{HEADER}{ROW}\n- error: pid, row 0\n",
        f"{HEADER}{ROW}\n- dropped: 1\n",
        f"{HEADER}{ROW}\n- entries: 7 / 0: 0..4\n",
        f"{HEADER}{ROW}\n- entries: 7 / 0: e0 [0..4] open 3\n",
        f"{HEADER}{ROW}\nevict: now=7 idle=3\n",
        f"{HEADER}{ROW}\nrestart:\n",
        f"{HEADER}{ROW}\nevict: now=7\n\n- missing: none\n",
        f"{HEADER}| 7 | 0 | OUT_OF_ORDER |\n",
        f"{HEADER}{ROW}\nbroker:\n",
        HEADER.replace("broker:", "broker: windows=3") + ROW,
        HEADER.replace("seq", "sequence") + ROW,
        HEADER.replace("seq", "transactional") + "| 7 | true | ACCEPTED |\n",
    ],
)
def test_a_page_without_statements_or_with_invalid_ones_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        read_page("page", text)


def test_an_error_names_column_and_row() -> None:
    (case,) = read_page("page", f"{HEADER}| 7 | 0..4 | - |\n\n- error: base_seq, row 0\n")
    assert case.calls[0].error == Error("base_seq", 0)
