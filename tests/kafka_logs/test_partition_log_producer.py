"""Rows into logs in Kafka's formats: records that every reader reads, zombies, transactions, positions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost import kafka
from fencepost.producer import Answer, Identity, SequencedBatch
from fencepost.transports import PartitionLogTransport
from support.faulty_transport import FaultyTransport
from support.producers import batch
from support.waiting import PATIENCE_SECONDS

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[PartitionLogTransport]:
    with PartitionLogTransport(tmp_path, partitions=2, key="user", value="value") as transport:
        yield transport


def records(folder: Path, partition: int = 0) -> pa.Table:
    return pa.table(kafka.read_records(folder / f"events-{partition}", isolation="read_uncommitted"))


def test_rows_become_records_that_every_reader_reads(transport: PartitionLogTransport, tmp_path: Path) -> None:
    rows = {"user": ["ann", None, "bob"], "value": [b"login", b"click", None], "to": [0, 0, 1]}
    with fp.SequencedProducer(transport, partition_by="to") as producer:
        assert [it.result(PATIENCE_SECONDS).offset for it in producer.send(rows)] == [0, 0]
    transport.close()
    found = records(tmp_path).select(["offset", "key", "value", "pid", "epoch", "seq"])
    pid = producer.identity.pid
    assert found.to_pylist() == [
        {"offset": 0, "key": b"ann", "value": b"login", "pid": pid, "epoch": 0, "seq": 0},
        {"offset": 1, "key": None, "value": b"click", "pid": pid, "epoch": 0, "seq": 1},
    ]
    assert records(tmp_path, 1)["value"].to_pylist() == [None]


def test_times_of_day_in_json_keep_their_nanoseconds(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([3_600_000_000_001, None], pa.time64("ns"))})
    with PartitionLogTransport(tmp_path) as transport, fp.SequencedProducer(transport) as producer:
        producer.send(rows)
    found = pa.table(kafka.read_records(tmp_path / "events-0"))["value"].to_pylist()
    assert found == [b'{"at":"01:00:00.000000001"}', b'{"at":null}']


def test_without_a_value_a_row_is_json(tmp_path: Path) -> None:
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    rows = [{"user": "änn", "n": 1, "at": at, "raw": b"\xff", "none": None}]
    with (
        PartitionLogTransport(tmp_path, timestamp="at") as transport,
        fp.SequencedProducer(transport, partition_by=None) as producer,
    ):
        producer.send(rows)
    [record] = records(tmp_path).to_pylist()
    assert json.loads(record["value"]) == {
        "user": "änn", "n": 1, "at": "2024-02-29T12:00:00+00:00", "raw": "ff", "none": None,
    }  # fmt: skip
    assert record["timestamp"] == int(at.timestamp() * 1000)


def test_a_missing_column_fails_its_batch(transport: PartitionLogTransport) -> None:
    producer = fp.SequencedProducer(transport)
    with pytest.raises(fp.DeliveryError, match=r"INVALID_RECORD \(column 'user': missing"):
        producer.send([{"value": b"x"}])[0].result(PATIENCE_SECONDS)
    with pytest.raises(fp.DeliveryError):
        producer.close()


@pytest.mark.parametrize("seed", range(3))
def test_each_record_is_written_once_despite_a_faulty_network(tmp_path: Path, seed: int) -> None:
    with PartitionLogTransport(tmp_path, partitions=2) as log:
        transport = FaultyTransport(log, seed)
        with fp.SequencedProducer(transport, partition_by="to", request_timeout_ms=100, **QUICK) as producer:
            for value in range(40):
                producer.send([{"to": value % 2, "n": value}])
        transport.settle()
    for number in range(2):
        found = records(tmp_path, number)["value"].to_pylist()
        assert [json.loads(it)["n"] for it in found] == list(range(number, 40, 2))


class LosesTheFirstAnswer:
    """The first batch of one partition is written, and its answer arrives too late."""

    def __init__(self, behind: PartitionLogTransport) -> None:
        self.behind, self.partitions, self.fence, self.sent = behind, 1, behind.fence, 0

    def send(self, batch: SequencedBatch) -> Future[Answer]:
        self.sent += 1
        answer = self.behind.send(batch)
        if self.sent > 1:
            return answer
        answer.result(PATIENCE_SECONDS)
        lost: Future[Answer] = Future()
        threading.Timer(0.2, lambda: lost.set_exception(fp.errors.StoreError("answer lost"))).start()
        return lost


def test_batches_in_the_log_are_not_sent_again_under_a_new_epoch(
    transport: PartitionLogTransport, tmp_path: Path
) -> None:
    good, bad = {"user": ["ann"], "value": [b"one"]}, {"value": [b"no user"]}
    producer = fp.SequencedProducer(LosesTheFirstAnswer(transport), retry_backoff_ms=500)
    first, refused = producer.send(good)[0], producer.send(bad)[0]
    third = producer.send({"user": ["bob"], "value": [b"three"]})[0]
    found = first.result(PATIENCE_SECONDS)
    assert (found.epoch, found.first_seq, found.is_duplicate) == (0, 0, True)
    assert isinstance(refused.exception(PATIENCE_SECONDS), fp.DeliveryError)
    assert (third.result(PATIENCE_SECONDS).epoch, third.result(PATIENCE_SECONDS).first_seq) == (1, 0)
    assert records(tmp_path)["value"].to_pylist() == [b"one", b"three"]
    with pytest.raises(fp.DeliveryError):
        producer.close()


@pytest.mark.parametrize("seed", range(3))
def test_each_record_is_written_once_if_batches_are_refused_too(tmp_path: Path, seed: int) -> None:
    with PartitionLogTransport(tmp_path, partitions=2, value="n") as log:
        transport = FaultyTransport(log, seed)
        producer = fp.SequencedProducer(transport, partition_by="to", request_timeout_ms=100, **QUICK)
        for value in range(60):
            producer.send([{"to": value % 2, "odd" if value % 7 == 3 else "n": f"{value}"}])
        with pytest.raises(fp.DeliveryError, match="column 'n': missing"):
            producer.close()
        transport.settle()
    for number in range(2):
        found = records(tmp_path, number)["value"].to_pylist()
        assert [int(it) for it in found] == [it for it in range(number, 60, 2) if it % 7 != 3]


def test_a_fence_reports_the_existing_batches(transport: PartitionLogTransport, tmp_path: Path) -> None:
    table = pa.table({"user": ["ann", "bob"], "value": [b"x", b"y"]})
    assert transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS).error is fp.Verdict.ACCEPTED
    assert transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS).error is fp.Verdict.DUPLICATE
    assert transport.fence(7, 1, [0, 1]) == {0: (0, 1)}
    assert transport.fence(7, 1, [0, 1]) == {0: (0, 1)}  # its own marker changes nothing
    assert transport.fence(8, 1, [0]) == {}
    transport.close()
    with PartitionLogTransport(tmp_path, partitions=2, key="user", value="value") as again:
        assert again.fence(7, 2, [0]) == {0: (0, 1)}
        assert again.send(batch(7, 2, 0, table)).result(PATIENCE_SECONDS).error is fp.Verdict.ACCEPTED
        assert again.fence(7, 3, [0]) == {0: (2, 1)}


# A log that does not know what is on disk


class Poisoned:
    """A log whose sync has failed."""

    def __init__(self, log: Any) -> None:
        self.close = log.close

    def _refuse(self, *_: Any) -> Any:
        raise fp.errors.PoisonedError("sync failed")

    append = append_many = append_marker = _refuse


def poison(transport: PartitionLogTransport) -> Any:
    """The writer of partition 0, whose log is poisoned."""
    writer = transport._writers[0]
    writer.log = Poisoned(writer.log)
    return writer


def test_markers_and_fences_have_a_poisoned_log_opened_again(transport: PartitionLogTransport) -> None:
    table = pa.table({"user": ["ann"], "value": [b"x"]})
    transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS)
    poison(transport)
    with pytest.raises(fp.errors.StoreError, match="opened again: sync failed"):
        transport.write_marker(7, 1, 0, "commit")
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.ACCEPTED
    poison(transport)
    with pytest.raises(fp.errors.StoreError, match="opened again: sync failed"):
        transport.fence(7, 2, [0])
    assert transport.fence(7, 2, [0]) == {0: (0, 0)}


def test_a_log_that_cannot_be_opened_again_is_tried_each_time(transport: PartitionLogTransport) -> None:
    table = pa.table({"user": ["ann"], "value": [b"x"]})
    writer = poison(transport)
    reopen, problems = writer._reopen, [OSError("disk full")] * 3

    def fails() -> Any:
        if problems:
            raise problems.pop()
        return reopen()

    writer._reopen = fails
    with pytest.raises(fp.errors.StoreError, match="opened again: sync failed"):
        transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS)
    with pytest.raises(fp.errors.StoreError, match=r"could not be opened.* disk full"):
        transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS)
    with pytest.raises(fp.errors.StoreError, match=r"could not be opened.* disk full"):
        transport.fence(7, 1, [0])
    assert transport.send(batch(7, 0, 0, table)).result(PATIENCE_SECONDS).offset == 0


def test_a_closed_transport_answers(transport: PartitionLogTransport) -> None:
    producer = fp.SequencedProducer(transport, key="user", **QUICK)
    transport.close()
    [sent] = producer.send({"user": ["ann"], "value": [b"x"]})
    with pytest.raises(fp.TransportError, match="the transport is closed"):
        sent.result(PATIENCE_SECONDS)
    with pytest.raises(fp.TransportError):
        producer.close()


def test_a_zombie_is_kept_out_by_a_marker(transport: PartitionLogTransport) -> None:
    class Registry:
        epoch = -1

        def init_producer(self, transactional_id: Any = None, timeout_ms: int = 0, expected: Any = None) -> Identity:
            if expected is not None and expected.epoch != self.epoch:
                raise fp.FencedError("somebody else has it")
            self.epoch += 1
            return Identity(5, self.epoch)

    registry, table = Registry(), pa.table({"user": ["ann"], "value": [b"x"]})
    first = fp.SequencedProducer(transport, name="a", registry=registry, partition_by=None, **QUICK)
    first.send(table)[0].result(PATIENCE_SECONDS)
    with fp.SequencedProducer(transport, name="a", registry=registry, **QUICK) as second:
        with pytest.raises(fp.DeliveryError, match="INVALID_PRODUCER_EPOCH"):
            first.send(table)[0].result(PATIENCE_SECONDS)
        with pytest.raises(fp.FencedError, match="somebody else has it"):
            first.send(table)[0].result(PATIENCE_SECONDS)
        assert second.send(table)[0].result(PATIENCE_SECONDS).offset in (1, 2)
    assert transport.write_marker(5, 0, 0, "abort") is fp.Verdict.FENCED
    transport.fence(5, 3, [0])
    transport.fence(5, 3, [0])
    with pytest.raises(fp.FencedError, match="pid 5 epoch 2, partition 0: a higher epoch"):
        transport.fence(5, 2, [0])
    with pytest.raises(fp.FencepostError):
        first.close()


def test_a_fence_holds_after_the_marker_of_another_coordinator(transport: PartitionLogTransport) -> None:
    """A refused marker without a coordinator must be an error: otherwise the fenced producer could write."""
    table = pa.table({"user": ["ann"], "value": [b"x"]})
    assert transport.write_marker(7, 1, 0, "abort", 3) is fp.Verdict.ACCEPTED
    transport.fence(7, 5, [0])
    assert transport.send(batch(7, 4, 0, table)).result(PATIENCE_SECONDS).error is fp.Verdict.FENCED
    assert transport.send(batch(7, 5, 0, table)).result(PATIENCE_SECONDS).error is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 6, 0, "abort", 3) is fp.Verdict.ACCEPTED, "the coordinator continues"


def test_transactions_are_seen_when_they_are_committed(transport: PartitionLogTransport, tmp_path: Path) -> None:
    for pid, outcome in ((7, "commit"), (8, "abort")):
        table = pa.table({"user": ["ann"], "value": [f"{pid}".encode()]})
        answer = transport.send(batch(pid, 0, 0, table, transactional=True)).result(PATIENCE_SECONDS)
        assert answer.error is fp.Verdict.ACCEPTED
        transport.write_marker(pid, 1, 0, outcome)
    transport.close()
    found = pa.table(kafka.read_records(tmp_path / "events-0", isolation="read_committed"))
    assert found["value"].to_pylist() == [b"7"]


def test_a_log_that_another_one_writes_is_not_opened(transport: PartitionLogTransport, tmp_path: Path) -> None:
    with pytest.raises(fp.FencepostError):
        PartitionLogTransport(tmp_path, partitions=2)
