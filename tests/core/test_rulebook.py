"""The rule book, page by page, through each interface of Python. An interface that breaks a rule must be detected."""

from __future__ import annotations

from collections import Counter

import pytest
from support.doors import Door, FencepostDoor, ReferenceDoor, Tables, complaints
from support.mutants import FORGETFUL, MUTANTS
from support.reference import ReferenceTable
from support.rulebook import ACTIONS, Action, Row, cases, read_page

CASES = cases()
PAGE_NAMES = sorted({case.page for case in CASES})
# Pages that must be there. More are welcome.
PAGES_EXPECTED = {
    *("README", "identity", "epochs", "first", "wrap", "missing", "policies"),
    *("horizon", "final_ranges", "reach", "intervals_max", "forget", "merge"),
    *("any_order", "in_order", "kafka", "strict", "watermark", "kafka_offsets"),
}
ROWS_MIN = 1600
VERDICTS = {"ACCEPTED", "DUPLICATE", "OUT_OF_ORDER", "FENCED", "UNTRACKED", "FORGOTTEN"}


@pytest.fixture(params=[ReferenceDoor, FencepostDoor], ids=["reference", "fencepost"])
def door(request: pytest.FixtureRequest) -> type[Door]:
    return request.param


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_a_page_holds_through_the_public_interface(door: type[Door], page: str) -> None:
    found = [complaint for case in CASES if case.page == page for complaint in complaints(case, door)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_a_page_holds_for_any_division_of_its_tables(door: type[Door], page: str) -> None:
    """Each row in a call of its own: the same verdicts, the same state at the end."""
    rows = 0
    for case in CASES:
        # A bound on holes is looked at once a call, so there the cuts do matter.
        if case.page != page or case.refused or "intervals_max" in case.fields:
            continue
        tables = Tables(case, door)
        for call in case.steps:
            if isinstance(call, Action):
                tables.do(call)
                continue
            if call.error is not None:
                continue
            table = tables.current
            judged = [table.apply(call.part([row])) for row in call.rows]
            verdicts = [(one.verdicts[0], one.expected[0]) for one in judged]
            assert verdicts == [(row.verdict, row.expected) for row in call.rows], f"{case}, call of line {call.line}"
            assert table.open() == call.open
            assert sum(one.stale_epoch for one in judged) == call.stale_epoch
            rows += len(verdicts)
    assert rows or page == "intervals_max"


def test_the_book_is_read_whole() -> None:
    rows = [row for case in CASES for call in case.calls for row in call.rows]
    verdicts = Counter(row.verdict for row in rows)
    print(f"{len(PAGE_NAMES)} pages, {len(CASES)} cases, {len(rows)} rows: {dict(verdicts)}")
    assert set(PAGE_NAMES) >= PAGES_EXPECTED
    assert len(rows) >= ROWS_MIN
    assert set(verdicts) - {"-"} == VERDICTS
    assert any(case.refused for case in CASES)
    calls = [call for case in CASES for call in case.calls]
    errors = {step.error.column for case in CASES for step in case.steps if step.error}
    assert errors == {"pid", "epoch", "partition", "seq", "timestamp", "policy", "capacity"}
    actions = [step for case in CASES for step in case.steps if isinstance(step, Action)]
    assert {action.name for action in actions} == set(ACTIONS)
    for stated in ("dropped", "horizon", "open", "final", "overlap"):
        assert any(getattr(action, stated) for action in actions), f"no page states {stated}"
    for stated in ("missing", "open", "final", "stale_epoch", "border"):
        assert any(getattr(call, stated) for call in calls), f"no page states {stated}"


def test_a_row_is_read_as_it_is_written() -> None:
    text = "\n".join(
        [
            "policy: kafka window=2 wrap=none",
            "",
            "| pid | epoch | partition | seq | verdict | expected | why |",
            "|---|---|---|---|---|---|---|",
            '| ("c1", null) | 3 | "p" | 4..5 | OUT_OF_ORDER | 1_000 | because |',
            "",
            "- missing, open: 7 / 0 / 1: 15..1 (3)",
            "- stale_epoch: 2",
        ]
    )
    (case,) = read_page("page", text)
    assert (case.policy, case.fields) == ("kafka", {"window": 2, "wrap": None})
    (call,) = case.calls
    assert call.rows == [Row(("c1", None), 3, "p", seq, "OUT_OF_ORDER", 1000) for seq in (4, 5)]
    assert call.missing == call.open == [(7, 0, 1, 15, 1, 3)]
    assert (call.stale_epoch, call.border, call.error) == (2, 0, None)


def test_an_action_is_read_as_it_is_written() -> None:
    lines = [
        "",
        'forget: pid=("c", 1) partition="t 0"',
        "",
        "- dropped: 3",
        "",
        "other: kafka window=2",
        "",
        "merge:",
        "",
    ]
    (case,) = read_page("page", HEADER + ROW + "\n".join([*lines, "- error: capacity", "- final: 7 / 0: 3..4"]))
    _, forget, other, merge = case.steps
    assert isinstance(forget, Action)
    assert (forget.name, forget.arguments, forget.dropped) == ("forget", {"pid": ("c", 1), "partition": "t 0"}, 3)
    assert isinstance(other, Action)
    assert other.arguments == {"policy": "kafka", "fields": {"window": 2}}
    assert isinstance(merge, Action)
    assert (merge.error, merge.final) == (("capacity", None), [(7, None, 0, 3, 4, 2)])
    assert not case.is_of_rows


HEADER = "policy: any_order\n\n| pid | epoch | partition | seq | verdict |\n|---|---|---|---|---|\n"
ROW = "| 7 | 0 | 0 | 0 | ACCEPTED |\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "prose alone",
        "policy: any_order\n",
        HEADER,
        "| refused |\n|---|\n| nothing |\n",
        f"{HEADER}{ROW}\n- mising: 7 / 0 / 0: 1..1\n",
        f"{HEADER}{ROW}\n- error: seq, row 0\n",
        f"{HEADER}{ROW}\n- dropped: 1\n",
        f"{HEADER}{ROW}\nevict: now=7\n",
        f"{HEADER}{ROW}\nforget: partition=0\n",
        f"{HEADER}{ROW}\nmerge:\n\n- missing: 7 / 0 / 0: 1..1\n",
        f"{HEADER}| 7 | 0 | 0 | 0 | OUT_OF_ORDER |\n",
        f"{HEADER}{ROW}\n- missing: 7 / 0 / 0: 15..1\n",
        f"{HEADER}{ROW}\npolicy: any_order\n",
        HEADER.replace("seq", "sequence") + ROW,
    ],
)
def test_a_page_without_statements_or_with_invalid_ones_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        read_page("page", text)


@pytest.mark.parametrize("mutant", MUTANTS + FORGETFUL, ids=lambda mutant: mutant.__name__)
def test_a_broken_judge_is_detected(mutant: type[ReferenceTable]) -> None:
    """By a verdict, by what is missing or by what is stale; the count of border decisions alone does not count."""

    class Broken(ReferenceDoor):
        judge = mutant

    found = [complaint for case in CASES for complaint in complaints(case, Broken)]
    assert [complaint for complaint in found if ", border:" not in complaint]
