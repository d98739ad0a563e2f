"""What a producer does about each answer: the pages, and broken producers that they must object to."""

from __future__ import annotations

from typing import Any

import pytest
from fencepost.errors import FencepostError
from fencepost.producer import sequencer
from fencepost.producer.answers import ErrorCode
from fencepost.producer.sequencer import Batch, Identity, Partition, Sent, Sequencer
from support.client_rulebook import Case, cases, read_page, run

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_producer_follows_its_rule_page(case: Case) -> None:
    assert run(case) >= 1


def test_every_row_of_the_table_has_a_case() -> None:
    rows = {case.options["row"] for case in CASES}
    assert {f"C{number:02}" for number in range(1, 25)} <= rows
    assert len(rows) >= 55
    assert sum(run(case) for case in CASES) >= 200


def test_every_code_that_needs_a_rule_is_answered_somewhere() -> None:
    said = " ".join(command for case in CASES for _, do, _ in case.steps for command in do)
    for code in (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.PRODUCER_FENCED, ErrorCode.NETWORK_EXCEPTION,
    ):  # fmt: skip
        assert code.name in said


# Broken producers


class NumbersAnewOnRetry(Sequencer):
    """Gives a batch that is sent again the next free numbers."""

    def _retry(self, batch: Batch, now_ms: int) -> None:
        super()._retry(batch, now_ms)
        partition = self._partition(batch.partition)
        assert batch.numbers is not None
        batch.numbers = batch.numbers._replace(first_seq=partition.next_seq)


class NeverBumps(Sequencer):
    def _ask_for_bump(self, partition: int) -> None: ...


class RenumbersEveryPartition(Sequencer):
    def _begin(self, identity: Identity) -> None:
        self._rewrite.update(self.partitions)
        super()._begin(identity)


class BumpsForEveryOutOfOrder(Sequencer):
    def _can_retry(self, sent: Sent, reading: Any) -> bool:
        if reading.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self.transactional:
            self._ask_for_bump(sent.batch.partition)
            return True
        return super()._can_retry(sent, reading)


class ForgetsWhatIsUnresolved(Sequencer):
    def _expire(self, now_ms: int) -> None:
        super()._expire(now_ms)
        for partition in self.partitions.values():
            partition.unresolved = None


class SendsRetriesAtOnce(Sequencer):
    def _drain(self, number: int, now_ms: int) -> Any:
        for batch in self.partitions[number].numbered:
            if batch.request is None:
                yield self._send(batch, now_ms)
        yield from super()._drain(number, now_ms)


class BumpsThoughItMustAsk(Sequencer):
    def _bump(self) -> None:
        self.asks = False
        super()._bump()


class IgnoresOldNumbers(Sequencer):
    def _answered_by_old_numbers(self, sent: Sent, *rest: Any) -> None:
        self._retry(sent.batch, 0)


class GoesOnAfterFencing(Sequencer):
    def stop(self, error: FencepostError) -> None: ...


class EpochsWithoutEnd(Sequencer):
    def _bump(self) -> None:
        if self.must_bump and not self.transactional:
            self._begin(self.identity._replace(epoch=self.identity.epoch + 1))


BROKEN = [
    NumbersAnewOnRetry, NeverBumps, RenumbersEveryPartition, BumpsForEveryOutOfOrder, ForgetsWhatIsUnresolved,
    SendsRetriesAtOnce, BumpsThoughItMustAsk, IgnoresOldNumbers, GoesOnAfterFencing, EpochsWithoutEnd,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_the_rule_pages_detect_a_broken_producer(broken: type[Sequencer]) -> None:
    def objects(case: Case) -> bool:
        try:
            run(case, broken)
        except (AssertionError, KeyError, ValueError, FencepostError, pytest.fail.Exception):
            return True
        return False

    assert any(objects(case) for case in CASES)


def test_the_rule_pages_detect_plain_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka's client compares, which goes wrong around the wrap."""
    monkeypatch.setattr(sequencer, "is_after", lambda seq, other: seq > other)

    def follows(partition: Partition, seq: int) -> bool:
        return seq - (-1 if partition.last_acked_seq is None else partition.last_acked_seq) == 1

    monkeypatch.setattr(Partition, "follows", follows)
    failed = set()
    for case in CASES:
        try:
            run(case)
        except AssertionError:
            failed.add(case.options["row"])
    assert failed == {"A23", "A24"}


HEADER = "client: row=X\n\n| do | then |\n|---|---|\n"


@pytest.mark.parametrize(
    "text",
    [
        HEADER,
        "client:\n",
        "| do | then |\n|---|---|\n| poll | sent none |\n",
        "client: row=X epochs=3\n",
        HEADER.replace("then", "than") + "| poll | sent none |\n",
        f"{HEADER}| | sent none |\n",
        f"{HEADER}| poll | |\n",
    ],
)  # fmt: skip
def test_a_page_without_statements_or_with_invalid_ones_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        read_page("page", text)


@pytest.mark.parametrize(
    "row",
    ["poll | sent p0 0 e0", "pol | sent none", "send p0 x2 | p0 nxt 2", "send q0 | sent none", "send p0 | b9 open",
     "send p0 as b | b shut", "p0:0 NONE | sent none", "send p0; p0:0 NON | sent none"],
)  # fmt: skip
def test_a_row_that_does_not_hold_or_is_misspelt_fails(row: str) -> None:
    (case,) = read_page("page", f"{HEADER}| {row} |\n")
    with pytest.raises((AssertionError, ValueError, KeyError)):
        run(case)
