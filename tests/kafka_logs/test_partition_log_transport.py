"""The transport for logs in Kafka's formats, with a replacement of the log whose faults the test chooses."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.kafka import PartitionLog
from fencepost.producer import Answer
from fencepost.transports import PartitionLogTransport
from fencepost.transports.admission import judge, mark, new_table
from support.producers import batch
from support.waiting import PATIENCE_SECONDS

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


class Appended(NamedTuple):
    verdict: fp.Verdict
    offset: int | None


class StandIn:
    """What of `PartitionLog` the transport uses. `fails`: what the next calls raise."""

    def __init__(self, fails: tuple[Exception, ...] = ()) -> None:
        self.table, self.values, self.fails = new_table(), list[Any](), list(fails)
        self.calls: list[int] = []
        self.synced: list[int] = []
        self.is_closed = False
        self.entered, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    @property
    def log_end(self) -> int:
        return self.table.log_end(0)

    def append_many(self, batches: list[Any]) -> list[Appended]:
        self._call(len(batches))
        return [self._append(*it) for it in batches]

    def append_marker(self, pid: int, epoch: int, outcome: str, coordinator_epoch: int = 0) -> Appended:
        return Appended(*mark(self.table, 0, pid, epoch, outcome, coordinator_epoch))

    def sync(self) -> None:
        self.synced.append(len(self.values))

    def close(self) -> None:
        self.is_closed = True

    def _call(self, batches: int) -> None:
        self.entered.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        self.calls.append(batches)
        if self.fails:
            raise self.fails.pop(0)

    def _append(self, pid: int, epoch: int, base_seq: int, records: Any, transactional: bool) -> Appended:
        judged = judge(self.table, 0, pid, epoch, base_seq, len(records), transactional)
        if judged.verdict.is_kept:
            self.values += records["value"].to_pylist()
        return Appended(*judged)


def test_batches_during_a_sync_share_the_next_sync() -> None:
    log = StandIn()
    log.may_go_on.clear()
    with PartitionLogTransport([log]) as transport:
        table = pa.table({"n": [1]})
        answers = [transport.send(batch(7, 0, 0, table))]
        assert log.entered.wait(PATIENCE_SECONDS)
        answers += [transport.send(batch(7, 0, seq, table)) for seq in (1, 2, 3)]
        log.may_go_on.set()
        assert [it.result(PATIENCE_SECONDS) for it in answers] == [
            Answer(fp.Verdict.ACCEPTED, offset) for offset in range(4)
        ]
    assert log.calls == [1, 3]
    assert not log.is_closed, "it is the caller's"


def test_an_answer_cannot_be_cancelled() -> None:
    """As a task of asyncio does that waits for it and ends. It would also end the thread that appends."""
    log = StandIn()
    transport = PartitionLogTransport([log])
    log.may_go_on.clear()
    answer = transport.send(batch(7, 0, 0, pa.table({"value": [1]})))
    assert not answer.cancel()
    log.may_go_on.set()
    assert answer.result(PATIENCE_SECONDS).offset == 0
    assert transport.send(batch(7, 0, 1, pa.table({"value": [2]}))).result(PATIENCE_SECONDS).offset == 1
    transport.close()


def test_an_append_that_fails_is_the_failure_of_its_batch_alone() -> None:
    log = StandIn((OSError(28, "No space left on device"), fp.BatchError("too large"), OSError(28, "No space left")))
    log.may_go_on.clear()
    with PartitionLogTransport([log]) as transport:
        table = pa.table({"n": [1]})
        answers = [transport.send(batch(7, 0, 0, table))]
        assert log.entered.wait(PATIENCE_SECONDS)
        answers += [transport.send(batch(pid, 0, 0, table)) for pid in (8, 9)]
        log.may_go_on.set()
        assert isinstance(answers[0].exception(PATIENCE_SECONDS), OSError)
        assert isinstance(answers[1].exception(PATIENCE_SECONDS), OSError), "first the call of both, then its own"
        assert answers[2].result(PATIENCE_SECONDS).offset == 0
    assert log.calls == [1, 2, 1, 1]


def test_a_full_disk_is_retried_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")
    with (
        PartitionLogTransport([StandIn((full, full))]) as transport,
        fp.SequencedProducer(transport, **QUICK) as producer,
    ):
        assert producer.send([{"n": 1}])[0].result(PATIENCE_SECONDS).offset == 0
    log = StandIn((full,) * 10_000)
    monkeypatch.setattr("fencepost.producer.producer._now_ms", lambda: len(log.calls))  # a millisecond per append
    with PartitionLogTransport([log]) as transport:
        limits = {"delivery_timeout_ms": 100, "request_timeout_ms": 100}
        producer = fp.SequencedProducer(transport, linger_ms=0, retry_backoff_ms=0, retry_backoff_max_ms=0, **limits)
        with pytest.raises(fp.DeliveryError, match="No space left"):
            producer.send([{"n": 1}])[0].result(PATIENCE_SECONDS)
        with pytest.raises(fp.DeliveryError):
            producer.close()


def test_records_that_were_acknowledged_and_then_lost_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under sync="interval", the disk may refuse what the system has acknowledged. The log is then opened again."""
    table = pa.table({"n": [1, 2]})
    with PartitionLogTransport(tmp_path, partitions=1, sync="interval") as transport:
        for first_seq in (0, 2):
            assert transport.send(batch(7, 0, first_seq, table)).result(PATIENCE_SECONDS).offset == first_seq
        writer = transport._writers[0]
        writer.log.close()
        [segment] = (tmp_path / "events-0").glob("*.log")
        for other in (tmp_path / "events-0").iterdir():
            if other.suffix in (".state", ".snapshot"):
                other.unlink()
        os.truncate(segment, segment.stat().st_size // 2)
        writer.log = StandIn((fp.PoisonedError("a sync failed"),))
        with caplog.at_level("ERROR", logger="fencepost.transports"):
            lost = transport.send(batch(7, 0, 4, table))
            assert isinstance(lost.exception(PATIENCE_SECONDS), fp.StoreError)
        assert [it.getMessage() for it in caplog.records] == [
            f"{tmp_path / 'events-0'}: records with offsets from 2 to 3 were acknowledged, but the log no longer has "
            "them. They were not synced"
        ]
        again = [transport.send(batch(7, 0, seq, table)).result(PATIENCE_SECONDS) for seq in (2, 4)]
        assert [it.offset for it in again] == [2, 4]
        assert len(caplog.records) == 1


def test_a_marker_is_on_disk_when_its_coordinator_counts_it() -> None:
    """Under sync="interval" too: a power loss would end the transaction in another way than it was decided."""
    log = StandIn()
    transport = PartitionLogTransport([log])
    assert transport.send(batch(7, 0, 0, pa.table({"n": [1, 2]}), transactional=True)).result(PATIENCE_SECONDS)
    assert log.synced == []
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 0, 0, "commit") is fp.Verdict.FENCED, "of a coordinator that comes late"
    assert log.synced == [2, 2], "a repeat waits for the first copy"
    transport.close()


def test_a_marker_that_was_acknowledged_and_then_lost_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PartitionLogTransport(tmp_path, partitions=1, sync="interval") as transport:
        rows = transport.send(batch(7, 0, 0, pa.table({"n": [1]}), transactional=True))
        assert rows.result(PATIENCE_SECONDS).offset == 0
        writer = transport._writers[0]
        [segment] = (tmp_path / "events-0").glob("*.log")
        size = segment.stat().st_size
        assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.ACCEPTED
        writer.log.close()
        for other in (tmp_path / "events-0").iterdir():
            if other.suffix in (".state", ".snapshot"):
                other.unlink()
        os.truncate(segment, size)
        writer.log = None
        with caplog.at_level("ERROR", logger="fencepost.transports"):
            assert writer.opened().log_end == 1
        assert "records with offsets from 1 to 1 were acknowledged" in caplog.text


def test_a_log_that_fails_to_close_does_not_keep_the_others_open(tmp_path: Path) -> None:
    transport = PartitionLogTransport(tmp_path, partitions=3)
    logs = [writer.log for writer in transport._writers]

    def fail() -> None:
        raise OSError(28, "No space left on device")

    transport._writers[1].log.close = fail
    with pytest.raises(OSError, match="No space left"):
        transport.close()
    assert not any(writer._thread.is_alive() for writer in transport._writers)
    for log in (logs[0], logs[2]):
        with pytest.raises(ValueError, match="closed"):
            log.append(7, 0, 0, [b"one"])


def test_open_logs_have_their_own_options() -> None:
    with pytest.raises(fp.PolicyError, match="1 open logs were passed"):
        PartitionLogTransport([StandIn()], partitions=2)
    with pytest.raises(fp.PolicyError, match="1 open logs"):
        PartitionLogTransport([StandIn()], sync="each")


def test_logs_that_accept_a_second_batch_before_the_first_are_refused(tmp_path: Path) -> None:
    """A fence would report the first one, which failed, as delivered: it is below the last sequence in the log."""
    with (
        PartitionLog(tmp_path / "events-0") as log,
        pytest.raises(fp.PolicyError, match=r"events-0.* with first='zero'"),
    ):
        PartitionLogTransport([log])
    with pytest.raises(fp.PolicyError, match="leave out first="):
        PartitionLogTransport(tmp_path / "new", first="any")
    assert not (tmp_path / "new").exists()


def test_open_logs_have_the_order_of_their_partitions(tmp_path: Path) -> None:
    """In another order after a restart, keys would move, and markers would go to logs without their transactions."""
    with (
        PartitionLog(tmp_path / "events-0", first="zero") as first,
        PartitionLog(tmp_path / "events-1", first="zero") as second,
    ):
        with pytest.raises(fp.PolicyError, match=r"logs\[0\] is .*events-1"):
            PartitionLogTransport([second, first])
        with PartitionLogTransport([first, second]) as transport:
            assert transport.partitions == 2


def test_logs_are_in_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URI would become a folder in the current one, which may be lost with the container that it is in."""
    monkeypatch.chdir(tmp_path)
    for opened in (PartitionLog, PartitionLogTransport):
        with pytest.raises(fp.PolicyError, match="in a local folder"):
            opened("s3://bucket/orders-0")
        with pytest.raises(fp.StoreError, match="neither a path"):
            opened(Path("s3://bucket/orders-0"))
    PartitionLog(f"file://{tmp_path}/orders-0").close()
    assert [it.name for it in tmp_path.iterdir()] == ["orders-0"]


LARGE = pa.table({"n": ["x" * 1000]})
"""Larger than a segment."""
FAR = pa.table({"n": pa.array([2**62], pa.timestamp("us"))})
"""A time that Python does not have."""
AWAY = pa.table({"n": pa.array([0], pa.timestamp("us", "Mars/Olympus"))})
"""A time zone that this machine does not know."""
NAN = pa.table({"n": [float("nan")]})
"""Most readers of JSON would refuse the record."""
AS_JSON = "cannot be written as JSON"


@pytest.mark.parametrize(
    ("odd", "problem"), [(LARGE, "segment_bytes"), (FAR, AS_JSON), (AWAY, AS_JSON), (NAN, AS_JSON)]
)
def test_rows_that_no_log_takes_fail_their_batch_alone(tmp_path: Path, odd: pa.Table, problem: str) -> None:
    with (
        PartitionLogTransport(tmp_path, segment_bytes=500) as transport,
        fp.SequencedProducer(transport, **QUICK) as producer,
    ):
        with pytest.raises(fp.DeliveryError, match=rf"INVALID_RECORD \(.*{problem}") as caught:
            producer.send(odd)[0].result(PATIENCE_SECONDS)
        assert caught.value.is_refused
        with pytest.raises(fp.DeliveryError):
            producer.flush(PATIENCE_SECONDS)
        assert producer.send([{"n": 1}])[0].result(PATIENCE_SECONDS).offset == 1, "after the marker of the fence"


def test_a_log_that_its_owner_has_closed_stops_the_producer(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "events-0", first="zero")
    with PartitionLogTransport([log]) as transport:
        producer = fp.SequencedProducer(transport, **QUICK)
        log.close()
        with pytest.raises(fp.TransportError, match="the log was closed"):
            producer.send([{"n": 1}])[0].result(PATIENCE_SECONDS)
        with pytest.raises(fp.TransportError):
            producer.close()
