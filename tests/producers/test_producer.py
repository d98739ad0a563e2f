"""SequencedProducer: rows in, each in its place once; what it refuses, and what it does with transports that lie."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from fencepost.producer import Answer, ErrorCode, Identity, SequencedBatch
from fencepost.transports import LandingTransport, SqlTransport
from sqlalchemy import create_engine
from support.faulty_transport import LIES, FaultyTransport, MemoryTransport
from support.producers import QUICK, Coordinator, rows
from support.waiting import PATIENCE_SECONDS, wait_until


class Script:
    """Returns given answers in turn, and repeats the last one. Exceptions are raised."""

    partitions = 1

    def __init__(self, *answers: Any) -> None:
        self.answers, self.batches = list(answers), list[SequencedBatch]()

    def send(self, batch: SequencedBatch) -> Any:
        self.batches.append(batch)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


# Delivery


def test_rows_are_stamped_and_delivered() -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, batch_rows=2) as producer:
        deliveries = producer.send(pa.table({"value": [5, 6, 7]}))
        delivered = [delivery.result(PATIENCE_SECONDS) for delivery in deliveries]
    pid, epoch = producer.identity
    assert [(it.offset, it.rows, it.first_seq, it.last_seq, it.is_duplicate) for it in delivered] == [
        (0, 2, 0, 1, False), (2, 1, 2, 2, False),
    ]  # fmt: skip
    assert {(it.pid, it.epoch) for it in delivered} == {(pid, epoch)}
    stamped = pa.concat_tables(batch.rows for batch in transport.batches)
    assert stamped.schema == pa.schema(
        {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "seq": pa.int32(), "value": pa.int64()}
    )
    assert stamped["seq"].to_pylist() == [0, 1, 2]
    assert fp.StateTable("kafka").apply(stamped).counts[fp.Verdict.ACCEPTED] == 3


@pytest.mark.parametrize("kind", ["numpy", "pandas"])
def test_a_caller_may_change_its_memory_after_send(kind: str) -> None:
    values = np.zeros(2, np.int64)
    given: Any = {"value": values}
    if kind == "pandas":
        given = pd.DataFrame(given, copy=False)
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, linger_ms=1000) as producer:
        for number in range(3):
            values[:] = number
            producer.send(given)
    assert [value for batch in transport.batches for value in batch.rows["value"].to_pylist()] == [0, 0, 1, 1, 2, 2]


def test_metrics_count_rows_and_requests() -> None:
    transport = Script(
        OSError("no answer"), Answer(offset=0), Answer(fp.Verdict.DUPLICATE, 1), Answer(ErrorCode.INVALID_RECORD)
    )
    with fp.SequencedProducer(transport, batch_rows=2, **QUICK) as producer:
        for values in ((1, 2), (3,), (4, 5)):
            [delivery] = producer.send(rows(*values))
            delivery.exception(PATIENCE_SECONDS)
        with pytest.raises(fp.FencepostError):
            producer.flush()
        assert producer.metrics() == {
            "requests": len(transport.batches), "delivered_rows": 3, "duplicate_rows": 1, "failed_rows": 2,
            "buffered_rows": 0, "buffered_bytes": 0, "buffered_batches": 0,
        }  # fmt: skip
        assert len(transport.batches) == 4


def test_a_call_without_rows_makes_no_delivery() -> None:
    with fp.SequencedProducer(MemoryTransport()) as producer:
        assert producer.send([]) == []
        assert producer.send(pa.table({"value": pa.array([], pa.int64())})) == []


def test_partitions_are_numbered_by_themselves() -> None:
    transport = MemoryTransport(partitions=3)
    with fp.SequencedProducer(transport, partition_by="to", linger_ms=0) as producer:
        producer.send(pa.table({"to": [2, 0, 2], "value": [1, 2, 3]}))
        producer.send(pa.table({"to": [2], "value": [4]}))
    assert transport.log == {0: [2], 2: [1, 3, 4]}
    assert sorted((it.partition, it.first_seq, it.last_seq) for it in transport.batches) == [
        (0, 0, 0), (2, 0, 1), (2, 2, 2),
    ]  # fmt: skip


def test_a_retry_has_the_same_numbers_and_a_copy_is_a_success() -> None:
    transport = Script(OSError("reset"), fp.errors.StoreError("gone"), Answer(fp.Verdict.DUPLICATE, 7))
    with fp.SequencedProducer(transport, **QUICK) as producer:
        delivered = producer.send(rows(1))[0].result(PATIENCE_SECONDS)
    assert (delivered.offset, delivered.is_duplicate) == (7, True)
    assert {(it.pid, it.epoch, it.first_seq) for it in transport.batches} == {(*producer.identity, 0)}
    assert len(transport.batches) == 3


@pytest.mark.parametrize("rows", [{"value": 1}, [{"value": "\udc80"}], {"value": ["\udc80"]}, [{"value": object()}]])
def test_invalid_rows_do_not_change_the_producer(rows: Any) -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport) as producer:
        with pytest.raises((fp.BatchError, TypeError), match=r"'value'.*(; nothing of this call|as a list)"):
            producer.send(rows)
        producer.send([{"value": 1}])
    assert transport.log == {0: [1]}


def test_callbacks_may_use_the_producer() -> None:
    transport, done = MemoryTransport(partitions=1), threading.Event()
    with fp.SequencedProducer(transport) as producer:

        def again(_: Any) -> None:
            producer.send(rows(2))
            done.set()

        producer.send(rows(1))[0].add_done_callback(again)
        assert done.wait(PATIENCE_SECONDS)
    assert transport.log == {0: [1, 2]}


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()])
def test_a_callback_that_exits_does_not_stop_the_producer(error: BaseException) -> None:
    def leave(_: Any) -> None:
        raise error

    class Gate:
        may_go_on = threading.Event()

        def send(self, batch: SequencedBatch) -> Answer:
            self.may_go_on.wait(PATIENCE_SECONDS)
            return Answer(offset=0)

    with fp.SequencedProducer(Gate(), **QUICK) as producer:
        [first], [second] = producer.send(rows(1)), producer.send(rows(2))
        first.add_done_callback(leave)
        Gate.may_go_on.set()
        assert second.result(PATIENCE_SECONDS).rows == 1
        producer.flush(PATIENCE_SECONDS)


def test_a_fork_does_not_accept_rows() -> None:
    """It has no thread that sends them. It must not end the transaction of its parent either."""
    program = """
import os, fencepost as fp
from support.faulty_transport import MemoryTransport
from support.producers import Coordinator, rows
transport = MemoryTransport(partitions=1)
coordinator = Coordinator(transport)
with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out", linger_ms=60_000) as producer:
    with producer.transaction():
        [pending] = producer.send(rows(1))
        child = os.fork()
        if child == 0:
            calls = lambda: producer.send(rows(2)), producer.flush, pending.result, producer.commit, producer.abort
            for call in (*calls, producer.close):
                try:
                    call()
                except fp.PolicyError as error:
                    print("is a fork of it" in error.message, flush=True)
            raise SystemExit
        assert os.waitpid(child, 0)[1] == 0
print(transport.log, coordinator.calls[-1])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [*["True"] * 6, "{0: [1]} commit"]


def test_refusals_are_reported_by_delivery_and_flush() -> None:
    transport = Script(Answer(ErrorCode.INVALID_RECORD, message="too odd"), Answer(offset=0))
    producer = fp.SequencedProducer(transport, **QUICK)
    refused, taken = producer.send(rows(1))[0], producer.send(rows(2))[0]
    with pytest.raises(fp.DeliveryError, match=r"INVALID_RECORD \(too odd\)\. .*not in the log") as caught:
        refused.result(PATIENCE_SECONDS)
    assert (caught.value.partition, caught.value.is_refused) == (0, True)
    with pytest.raises(fp.DeliveryError, match="too odd"):
        producer.flush(PATIENCE_SECONDS)
    assert taken.result(PATIENCE_SECONDS).offset == 0
    producer.flush(PATIENCE_SECONDS)  # the error was raised once
    producer.close()


def test_expired_batches_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [0]
    monkeypatch.setattr("fencepost.producer.producer._now_ms", lambda: now_ms[0])
    transport = Script(Future())
    producer = fp.SequencedProducer(transport, delivery_timeout_ms=200, request_timeout_ms=100, **QUICK)
    sent = producer.send(rows(1))[0]
    wait_until(lambda: transport.batches, "no batch is sent")
    now_ms[0] = 200
    with pytest.raises(fp.DeliveryError, match="not acknowledged within delivery_timeout_ms=200") as caught:
        sent.result(PATIENCE_SECONDS)
    assert not caught.value.is_refused
    assert sent.cancel() is False
    with pytest.raises(fp.DeliveryError):
        producer.close()


def test_a_full_buffer_makes_send_wait_and_then_fail() -> None:
    transport = Script(Future())
    producer = fp.SequencedProducer(transport, buffer_rows=3, max_block_ms=50, linger_ms=0)
    producer.send(rows(1, 2))
    with pytest.raises(fp.CapacityError, match=r"buffer_rows=3 would be exceeded: 2 rows have no outcome .* 2 more"):
        producer.send(rows(3, 4))
    producer.send(rows(5))
    with pytest.raises(TimeoutError, match=r"2 batches .* 0\.01 s"):
        producer.close(0.01)
    with pytest.raises(fp.PolicyError, match="the producer is closed"):
        producer.send(rows(6))


def test_a_close_that_ends_in_time_does_not_promise_delivery() -> None:
    may_go_on = threading.Event()

    class Slow:
        def send(self, batch: SequencedBatch) -> Answer:
            may_go_on.wait(PATIENCE_SECONDS)
            return Answer(offset=0)

    producer = fp.SequencedProducer(Slow(), **QUICK)
    [delivery] = producer.send(rows(1))
    with pytest.raises(TimeoutError, match=r"1 batches have no outcome .*0.05 s; delivery continues"):
        producer.flush(0.05)
    with pytest.raises(TimeoutError, match=r"producer is closed.*may or may not"):
        producer.close(0.05)
    assert isinstance(delivery.exception(PATIENCE_SECONDS), fp.StoreError)
    may_go_on.set()


def test_an_exception_in_the_block_closes_it() -> None:
    sent: list[Any] = []

    def work() -> None:
        with fp.SequencedProducer(Script(Future())) as producer:
            sent.extend(producer.send(rows(1)))
            raise KeyError

    with pytest.raises(KeyError):
        work()
    with pytest.raises(fp.StoreError, match="closed by KeyError"):
        sent[0].result(PATIENCE_SECONDS)


def test_batches_of_a_partition_are_in_flight_together() -> None:
    class Slow(MemoryTransport):
        def __init__(self) -> None:
            super().__init__(partitions=1)
            self.waiting: list[tuple[SequencedBatch, Future[Answer]]] = []
            self.full = threading.Event()

        def send(self, batch: SequencedBatch) -> Any:
            answer: Future[Answer] = Future()
            self.waiting.append((batch, answer))
            if len(self.waiting) == 5:
                self.full.set()
            return answer

    transport = Slow()
    producer = fp.SequencedProducer(transport, batch_rows=1)
    producer.send(rows(*range(7)))
    assert transport.full.wait(PATIENCE_SECONDS)
    assert [batch.first_seq for batch, _ in transport.waiting] == [0, 1, 2, 3, 4]
    for _ in range(7):
        wait_until(lambda: transport.waiting, "a batch is not sent")
        batch, answer = transport.waiting.pop(0)
        answer.set_result(MemoryTransport.send(transport, batch))
    producer.close()
    assert transport.log == {0: list(range(7))}


def test_a_flush_does_not_wait_for_rows_that_other_threads_send_meanwhile() -> None:
    """Under a steady load, some batch is always without an outcome."""
    entered, may_go_on = threading.Event(), threading.Event()

    class Slow(MemoryTransport):
        def send(self, batch: SequencedBatch) -> Answer:
            entered.set()
            may_go_on.wait(PATIENCE_SECONDS)
            return super().send(batch)

    with fp.SequencedProducer(Slow(), partition_by="to", linger_ms=60_000) as producer:
        [first] = producer.send([{"to": 0, "value": 1}])
        flushing = threading.Thread(target=producer.flush)
        flushing.start()
        assert entered.wait(PATIENCE_SECONDS), "by the flush: the rows could wait for others"
        [second] = producer.send([{"to": 1, "value": 2}])
        may_go_on.set()
        flushing.join(PATIENCE_SECONDS)
        assert not flushing.is_alive()
        assert (first.done(), second.done()) == (True, False)
    assert second.done(), "close waits for all"


# Batches


def test_rows_of_several_calls_share_a_batch() -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, linger_ms=60_000) as producer:
        sent = [producer.send(rows(*range(it, 2 * it + 1)))[0] for it in range(4)]
        producer.flush(PATIENCE_SECONDS)
        assert [(it.partition, it.rows) for it in sent] == [(0, 1), (0, 2), (0, 3), (0, 4)]
        found = [it.result(0) for it in sent]
    assert len(transport.batches) == 1
    assert [(it.offset, it.rows, it.first_seq, it.last_seq) for it in found] == [
        (0, 1, 0, 0), (1, 2, 1, 2), (3, 3, 3, 5), (6, 4, 6, 9),
    ]  # fmt: skip
    assert transport.log == {0: [0, 1, 2, 2, 3, 4, 3, 4, 5, 6]}


def test_a_batch_goes_when_it_is_full_or_has_waited() -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, linger_ms=60_000, batch_rows=3) as producer:
        [*sent] = (producer.send(rows(it))[0] for it in range(7))
        assert sent[5].result(PATIENCE_SECONDS).offset == 5
        assert not sent[6].done()
    assert [it.count for it in transport.batches] == [3, 3, 1]
    with fp.SequencedProducer(transport, linger_ms=1) as producer:
        assert producer.send(rows(7))[0].result(PATIENCE_SECONDS).offset == 7


def test_bytes_bound_a_batch_and_the_buffer() -> None:
    transport = Script(Future())
    text = "x" * 1000
    producer = fp.SequencedProducer(transport, linger_ms=60_000, batch_bytes=3000, buffer_bytes=8000, max_block_ms=50)
    assert len(producer.send(rows(*[text] * 5))) > 1
    assert producer.metrics()["buffered_bytes"] > 5000
    with pytest.raises(fp.CapacityError, match=r"buffer_bytes=8000 would be exceeded: .* bytes of rows"):
        producer.send(rows(*[text] * 5))
    wait_until(lambda: transport.batches, "no batch is sent")
    assert max(it.rows.nbytes for it in transport.batches) < 3500
    with pytest.raises(TimeoutError):
        producer.close(0.01)


def test_rows_with_other_columns_are_another_batch() -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, linger_ms=60_000) as producer:
        for row in (rows(1), rows(2), [{"value": 3, "more": "x"}], rows(4)):
            producer.send(row)
    assert [it.count for it in transport.batches] == [2, 1, 1]
    assert transport.log == {0: [1, 2, 3, 4]}


def test_dictionaries_of_a_batch_need_not_fit_into_one() -> None:
    """Categories of pandas have codes of 8 bits."""
    transport = MemoryTransport(partitions=1)
    texts = [[f"{call} {number}" for number in range(100)] for call in range(2)]
    with fp.SequencedProducer(transport, linger_ms=60_000) as producer:
        for some in texts:
            codes = pa.array(range(len(some)), pa.int8())
            producer.send(pa.table({"value": pa.DictionaryArray.from_arrays(codes, pa.array(some))}))
    assert transport.log == {0: texts[0] + texts[1]}
    assert len(transport.batches) == 1


@pytest.mark.parametrize("kind", ["polars", "views", "columns", "within", "runs"])
def test_columns_that_arrow_cannot_select_rows_of_go_to_their_partitions(kind: str) -> None:
    """Texts of polars, views of Arrow, also within lists, structs and maps, and columns of run ends."""
    values = [f"user {number}" for number in range(10)]
    frame = pl.DataFrame({"value": values})
    more = frame.with_columns(kind=pl.Series(["a", "b"] * 5, dtype=pl.Categorical), all=pl.concat_list("value"))
    views = pa.array(values, pa.string_view())
    lists = [pa.array([[it] for it in values], of(pa.string_view())) for of in (pa.list_, pa.large_list)]
    maps = pa.array([[(it, b"")] for it in values], pa.map_(pa.string(), pa.binary_view()))
    runs = pa.RunEndEncodedArray.from_arrays([1, 10], ["a", "b"])
    rows: dict[str, Any] = {
        "polars": more,
        "views": pa.table(frame),
        "columns": {"value": views},
        "within": {"value": values, "a": pa.StructArray.from_arrays(lists, ["b", "c"]), "d": maps},
        "runs": {"value": values, "runs": runs},
    }
    transport = MemoryTransport(partitions=2)
    with fp.SequencedProducer(transport, key="value") as producer:
        producer.send(rows[kind])
    assert sorted(transport.log) == [0, 1]
    assert sorted(transport.log[0] + transport.log[1]) == values


@pytest.mark.parametrize("kind", [pl.Int128, pl.Object], ids=str)
def test_types_that_only_polars_has_are_refused(kind: Any) -> None:
    """The addresses of objects would be sent."""
    transport = MemoryTransport()
    with fp.SequencedProducer(transport) as producer:
        with pytest.raises(fp.BatchError, match=f"column 'value': .* {kind.__name__}, .* nothing"):
            producer.send(pl.DataFrame({"value": pl.Series([1, None], dtype=kind)}))
        producer.send([{"value": 1}, {"more": 2}])
    assert transport.log == {0: [1, None]}, "a key that an event lacks is null"


def test_rows_of_one_batch_are_refused_together() -> None:
    transport = Script(Answer(ErrorCode.INVALID_RECORD), Answer(offset=0))
    producer = fp.SequencedProducer(transport, linger_ms=60_000)
    sent = [producer.send(rows(it))[0] for it in range(3)]
    with pytest.raises(fp.DeliveryError):
        producer.flush(PATIENCE_SECONDS)
    assert all(isinstance(it.exception(0), fp.DeliveryError) for it in sent)
    assert producer.metrics()["failed_rows"] == 3
    producer.close()


def test_an_abort_drops_what_waits_for_more_rows() -> None:
    transport = MemoryTransport(partitions=1)
    coordinator = Coordinator(transport)
    with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out", linger_ms=60_000) as producer:
        producer.begin()
        [sent] = producer.send(rows(1))
        producer.abort()
        assert isinstance(sent.exception(0), fp.TransactionAbortableError)
        with producer.transaction():
            producer.send(rows(2))
    assert [it.count for it in transport.batches] == [1]


def test_a_commit_does_not_pass_an_abort_of_another_thread() -> None:
    """The abort drops rows, so the commit would decide a part of the transaction."""
    asked, may_end = threading.Event(), threading.Event()

    class Late(Coordinator):
        def abort(self, identity: Any) -> Identity:
            asked.set()
            may_end.wait(PATIENCE_SECONDS)
            return super().abort(identity)

    class Interrupted(fp.SequencedProducer):
        def flush(self, timeout: float | None = None) -> None:
            if self._joined:
                aborting.start()
                asked.wait(PATIENCE_SECONDS)
            super().flush(timeout)

    transport = MemoryTransport(partitions=1)
    coordinator = Late(transport)
    with Interrupted(transport, name="t", coordinator=coordinator, topic="out", linger_ms=60_000) as producer:
        aborting = threading.Thread(target=producer.abort)
        producer.begin()
        [dropped] = producer.send(rows(1))
        with pytest.raises(fp.TransactionAbortableError, match="an abort has begun"):
            producer.commit()
        may_end.set()
        aborting.join(PATIENCE_SECONDS)
        assert isinstance(dropped.exception(PATIENCE_SECONDS), fp.TransactionAbortableError)
    assert "commit" not in coordinator.calls


# Epochs


def test_a_new_epoch_renumbers_and_other_partitions_keep_the_old_one() -> None:
    class Loses(MemoryTransport):
        """Forgets partition 0 once: a broker that has lost what was acknowledged."""

        has_lost = False

        def send(self, batch: SequencedBatch) -> Answer:
            if batch.partition == 0 and batch.first_seq == 1 and not self.has_lost:
                self.has_lost = True
                return Answer(ErrorCode.UNKNOWN_PRODUCER_ID, log_start=0)
            return super().send(batch)

    transport = Loses()
    with fp.SequencedProducer(transport, partition_by="to", **QUICK) as producer:
        producer.send([{"to": 0, "value": 1}, {"to": 1, "value": 2}])
        producer.flush(PATIENCE_SECONDS)
        pid, _ = producer.identity
        found = producer.send([{"to": 0, "value": 3}])[0].result(PATIENCE_SECONDS)
        assert (found.pid, found.epoch, found.first_seq) == (pid, 1, 0)
        assert producer.send([{"to": 1, "value": 4}])[0].result(PATIENCE_SECONDS).first_seq == 0, "under the new epoch"
    assert transport.log == {0: [1, 3], 1: [2, 4]}


def test_the_last_epoch_brings_a_fresh_pid() -> None:
    class Old:
        def __init__(self) -> None:
            self.given = [Identity(8, 2**15 - 1), Identity(9, 0)]

        def init_producer(self, transactional_id: Any = None, timeout_ms: int = 0, expected: Any = None) -> Identity:
            return self.given.pop(0)

    transport = Script(Answer(fp.Verdict.OUT_OF_ORDER), Answer(offset=0))
    with fp.SequencedProducer(transport, registry=Old(), **QUICK) as producer:
        assert producer.send(rows(1))[0].result(PATIENCE_SECONDS).pid == 9
    assert [(it.pid, it.epoch) for it in transport.batches] == [(8, 2**15 - 1), (9, 0)]


def test_rows_in_the_log_are_not_sent_again_under_a_new_epoch() -> None:
    """The answer is "out of order" although the batch exists: a fence reports it."""
    transport = MemoryTransport(partitions=1)

    class Lies:
        partitions = 1
        fence = transport.fence

        def send(self, batch: SequencedBatch) -> Answer:
            answer = transport.send(batch)
            return Answer(fp.Verdict.OUT_OF_ORDER) if batch.first_seq == 0 and batch.epoch == 0 else answer

    with fp.SequencedProducer(Lies(), **QUICK) as producer:
        found = producer.send(rows(1))[0].result(PATIENCE_SECONDS)
    assert (found.epoch, found.offset, found.is_duplicate) == (0, None, True)
    assert transport.log == {0: [1]}


# Names


def test_a_second_producer_of_a_name_fences_the_first() -> None:
    transport = MemoryTransport(partitions=1)
    first = fp.SequencedProducer(transport, name="gate 7", registry=transport, **QUICK)
    first.send(rows(1))[0].result(PATIENCE_SECONDS)
    with fp.SequencedProducer(transport, name="gate 7", registry=transport, **QUICK) as second:
        assert second.identity == (first.identity.pid, first.identity.epoch + 1)
        second.send(rows(2))[0].result(PATIENCE_SECONDS)
        zombie = first.send(rows(3))[0]
        with pytest.raises(fp.DeliveryError, match="INVALID_PRODUCER_EPOCH"):
            zombie.result(PATIENCE_SECONDS)
        with pytest.raises(fp.FencedError, match="'gate 7' has"):
            first.send(rows(4))[0].result(PATIENCE_SECONDS)
        second.send(rows(5))[0].result(PATIENCE_SECONDS)
    assert transport.log == {0: [1, 2, 5]}
    with pytest.raises(fp.FencepostError):
        first.close()


def test_a_checkpoint_is_resumed_under_a_higher_epoch() -> None:
    transport = MemoryTransport(partitions=1)
    with fp.SequencedProducer(transport, name="gate 7", registry=transport) as producer:
        producer.send(rows(1, 2))
        checkpoint = producer.checkpoint(position={"line": 2})
    assert checkpoint["position"] == {"line": 2}
    assert checkpoint["partitions"] == {"0": {"next_seq": 2, "last_offset": 2}}, "behind the marker of the fence"
    with fp.SequencedProducer(transport, name="gate 7", registry=transport, resume=checkpoint) as producer:
        assert (producer.identity.pid, producer.identity.epoch) == (checkpoint["pid"], checkpoint["epoch"] + 1)
        assert producer.send(rows(3))[0].result(PATIENCE_SECONDS).first_seq == 0
    assert transport.log == {0: [1, 2, 3]}


def test_a_registry_that_gives_the_same_epoch_again_is_refused() -> None:
    class Stuck:
        def init_producer(self, transactional_id: Any = None, timeout_ms: int = 0, expected: Any = None) -> Identity:
            return Identity(5, 3)

    with fp.SequencedProducer(MemoryTransport(), name="a", registry=Stuck()) as producer:
        checkpoint = producer.checkpoint()
    with pytest.raises(fp.TransportError, match=r"pid 5 epoch 3, .*not above epoch 3 of the checkpoint"):
        fp.SequencedProducer(MemoryTransport(), name="a", registry=Stuck(), resume=checkpoint)


@pytest.mark.parametrize("place", ["folder", "table"])
def test_an_identity_that_a_restored_registry_issues_again_is_refused(place: str, tmp_path: Path) -> None:
    def transport() -> Any:
        if place == "folder":
            return LandingTransport(tmp_path / "landing", sync=False)
        return SqlTransport(
            create_engine(f"sqlite:///{tmp_path}/rows.db"), "rows", schema=pa.schema({"value": pa.int64()})
        )

    class Restored:
        def init_producer(self, *_: Any) -> Identity:
            return Identity(7, epochs.pop(0))

    epochs = [3, 3, 4]
    with fp.SequencedProducer(transport(), name="a", registry=Restored()) as producer:
        producer.send(rows(1))
    with pytest.raises(fp.TransportError, match=r"pid 7 epoch 3, .*partition 0 has rows"):
        fp.SequencedProducer(transport(), name="a", registry=Restored())
    with fp.SequencedProducer(transport(), name="a", registry=Restored()) as producer:
        assert producer.send(rows(2))[0].result(PATIENCE_SECONDS)[1:3] == (1, 1)


@pytest.mark.parametrize(
    ("checkpoint", "name", "message"),
    [
        ({"version": 2}, "a", "checkpoint of version 1"),
        ("text", "a", "checkpoint of version 1"),
        ({"version": 1, "name": "b", "pid": 1, "epoch": 0}, "a", "from the producer 'b', but this one is 'a'"),
        ({"version": 1, "name": None, "pid": 1, "epoch": 0}, None, "with the same name"),
        ({"version": 1, "name": "a", "epoch": 0}, "a", "pid=None"),
        ({"version": 1, "name": "a", "pid": 2**63, "epoch": 0}, "a", f"pid={2**63}"),
        ({"version": 1, "name": "a", "pid": 1, "epoch": "0"}, "a", "epoch='0'"),
        ({"version": 1, "name": "a", "pid": True, "epoch": 0}, "a", "pid=True"),
    ],
)
def test_invalid_checkpoints_and_those_of_other_producers_are_refused(checkpoint: Any, name: Any, message: str) -> None:
    with pytest.raises(fp.PolicyError, match=message):
        fp.SequencedProducer(MemoryTransport(), name=name, registry=MemoryTransport(), resume=checkpoint)


def test_a_producer_without_a_name_has_no_checkpoint() -> None:
    with fp.SequencedProducer(MemoryTransport()) as producer, pytest.raises(fp.PolicyError, match="without a name"):
        producer.checkpoint()


# Transactions


def test_a_transaction_commits_or_aborts() -> None:
    transport = MemoryTransport()
    coordinator = Coordinator(transport)
    with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out", partition_by="to") as producer:
        with producer.transaction():
            producer.send([{"to": 0, "value": 1}])
            producer.send([{"to": 1, "value": 2}, {"to": 0, "value": 3}])
        first = producer.identity
        with pytest.raises(ZeroDivisionError), producer.transaction():
            1 / len(producer.send([{"to": 1, "value": 4}])[1:])
        assert producer.identity == (first.pid, first.epoch + 1)
        with producer.transaction():
            assert producer.send([{"to": 1, "value": 5}])[0].result(PATIENCE_SECONDS).first_seq == 0
    assert coordinator.calls == [
        "begin",
        [("out", 0)],
        [("out", 1)],
        "commit",
        "begin",
        [("out", 1)],
        "abort",
        "begin",
        [("out", 1)],
        "commit",
    ]
    assert all(batch.transactional for batch in transport.batches)


def test_a_transaction_that_lost_a_batch_can_only_be_aborted() -> None:
    class Refuses(MemoryTransport):
        def send(self, batch: SequencedBatch) -> Answer:
            if batch.rows["value"][0].as_py() == "bad":
                return Answer(ErrorCode.INVALID_RECORD)
            return super().send(batch)

    transport = Refuses()
    coordinator = Coordinator(transport)
    with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out") as producer:
        producer.begin()
        producer.send(rows("good"))
        producer.send(rows("bad"))[0].exception(PATIENCE_SECONDS)
        with pytest.raises(fp.TransactionAbortableError, match="INVALID_RECORD"):
            producer.send(rows("more"))
        with pytest.raises(fp.TransactionAbortableError, match="Abort the transaction"):
            producer.commit()
        producer.abort()
        with producer.transaction():
            producer.send(rows("good"))
    assert coordinator.calls.count("commit") == 1


class Unsure(Coordinator):
    """Commits, and answers only after so many tries."""

    def __init__(self, transport: MemoryTransport, *errors: Exception) -> None:
        super().__init__(transport)
        self.errors, self.decided = list(errors), None

    def commit(self, identity: Any, work: Any = None) -> Identity:
        if self.decided is None:
            self.decided = super().commit(identity, work)
        if self.errors:
            raise self.errors.pop()
        found, self.decided = self.decided, None
        return found


UNSURE = [fp.errors.OutcomeUnknownError("lost"), fp.errors.ConcurrentTransactionError("a marker is missing")]


@pytest.mark.parametrize("error", UNSURE)
def test_nothing_is_taken_while_a_commit_has_no_answer(error: Exception) -> None:
    transport = MemoryTransport(partitions=1)
    coordinator = Unsure(transport, error)
    with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out") as producer:
        producer.begin()
        producer.send(rows(1))
        with pytest.raises(type(error)):
            producer.commit()
        with pytest.raises(fp.PolicyError, match="may be decided already"):
            producer.send(rows(2))
        producer.commit()
        with producer.transaction():
            producer.send(rows(3))
    assert transport.log == {0: [1, 3]}


def test_a_with_block_repeats_its_commit_and_does_not_abort() -> None:
    transport = MemoryTransport(partitions=1)
    coordinator = Unsure(transport, *UNSURE)
    with fp.SequencedProducer(transport, name="t", coordinator=coordinator, topic="out", **QUICK) as producer:
        with producer.transaction():
            producer.send(rows(1))
        coordinator.errors = UNSURE[:1] * 5
        with pytest.raises(fp.errors.OutcomeUnknownError), producer.transaction():
            producer.send(rows(2))
        producer.commit()
        with pytest.raises(fp.errors.OutcomeUnknownError), producer.transaction():
            raise UNSURE[0]  # the application's own: nothing was decided
    assert [it for it in coordinator.calls if it in ("commit", "abort")] == ["commit", "commit", "abort"]


def test_rows_sent_during_a_commit_are_refused() -> None:
    transport = MemoryTransport(partitions=1)
    refused: list[BaseException] = []

    class Sends(Coordinator):
        def commit(self, identity: Any, work: Any = None) -> Identity:
            def other() -> None:
                try:
                    producer.send(rows(2))
                except fp.PolicyError as error:
                    refused.append(error)

            thread = threading.Thread(target=other)
            thread.start()
            thread.join(PATIENCE_SECONDS)
            return super().commit(identity, work)

    with (
        fp.SequencedProducer(transport, name="t", coordinator=Sends(transport), topic="out") as producer,
        producer.transaction(),
    ):
        producer.send(rows(1))
    assert transport.log == {0: [1]}
    assert len(refused) == 1


def test_a_fenced_transaction_stops_the_producer() -> None:
    transport = MemoryTransport()
    producer = fp.SequencedProducer(transport, name="t", coordinator=Coordinator(transport), topic="out")
    producer.begin()
    producer.send(rows(1))[0].result(PATIENCE_SECONDS)
    transport.init_producer("t")
    with pytest.raises(fp.FencedError, match="somebody else has t"):
        producer.commit()
    with pytest.raises(fp.FencedError):
        producer.begin()
    producer.close()


def test_a_coordinator_may_be_the_registry_and_takes_work_along() -> None:
    transport = MemoryTransport(partitions=1)
    coordinator = Coordinator(transport)
    coordinator.init_producer = transport.init_producer  # type: ignore[attr-defined]
    with fp.SequencedProducer(Script(Answer()), name="t", coordinator=coordinator, topic="out") as producer:
        producer.begin()
        producer.commit("work")
    assert coordinator.calls == ["begin", "work", "commit"]
    assert transport.leases["t"] == producer.identity


def test_calls_out_of_turn_are_refused() -> None:
    transport = MemoryTransport()
    with fp.SequencedProducer(transport, name="t", coordinator=Coordinator(transport), topic="out") as producer:
        with pytest.raises(fp.PolicyError, match="only inside a transaction"):
            producer.send(rows(1))
        for call in (producer.commit, producer.abort):
            with pytest.raises(fp.PolicyError, match="no transaction is open"):
                call()
        producer.begin()
        with pytest.raises(fp.PolicyError, match="a transaction is open"):
            producer.begin()
        producer.abort()
    with fp.SequencedProducer(transport) as producer, pytest.raises(fp.PolicyError, match="need a coordinator"):
        producer.begin()


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": 1}, "acks=1: only 'all'"),
        ({"acks": "0"}, "acks='0': only 'all'"),
        ({"retries": 0}, "retries=0: expected at least 1, or None"),
        ({"retries": "3"}, "retries='3': expected at least 1, or None"),
        ({"retries": True}, "retries=True: expected at least 1, or None"),
        ({"max_in_flight": 2.5}, "max_in_flight=2.5: expected 1 to 5"),
        ({"delivery_timeout_ms": "1"}, "delivery_timeout_ms='1': expected 1 to 2147483647"),
        ({"max_in_flight": 6}, "max_in_flight=6: expected 1 to 5"),
        ({"max_in_flight": 0}, "max_in_flight=0: expected 1 to 5"),
        (
            {"max_in_flight": 2, "position": "p", "name": "a"},
            "max_in_flight=2: expected 1 to 1",
        ),
        ({"delivery_timeout_ms": 1000}, "delivery_timeout_ms=1000 is less than request_timeout_ms=30000"),
        ({"batch_rows": 0}, "batch_rows=0: expected 1 to 2147483647"),
        ({"threads": True}, "threads=True: expected 1 to 256"),
        ({"linger": 5}, "linger: unknown setting"),
        ({"linger_ms": 120_000}, "linger_ms=120000 is not less than delivery_timeout_ms=120000"),
        ({"batch_bytes": 0}, "batch_bytes=0: expected 1 to"),
        ({"key": "a", "partition_by": "b"}, "key='a' and partition_by='b'"),
        ({"partitions": 0}, "partitions=0: expected 1 to 2147483647"),
        ({"name": "\udc80"}, "name='\\udc80': expected a text"),
        ({"name": ""}, "at least one character"),
        ({"coordinator": object()}, "coordinator= needs name="),
        ({"position": "p"}, "position='p' needs a name"),
        ({"coordinator": object(), "name": "a"}, "topic=None is not a topic"),
        ({"topic": "out"}, "topic='out' needs a coordinator"),
        (
            {"position": "p", "name": "a", "coordinator": object(), "topic": "out"},
            "position='p' with a coordinator",
        ),
        ({"position": "p", "name": "a"}, "position='p' with 2 partitions"),
    ],
)
def test_settings_that_contradict_the_promise_are_refused(settings: dict[str, Any], message: str) -> None:
    transport = Remembers()
    with pytest.raises(fp.PolicyError) as caught:
        fp.SequencedProducer(transport, **{"registry": transport, **settings})
    assert message in str(caught.value)


class Remembers(MemoryTransport):
    """A transport with cursor mode."""

    def cursor(self, name: str, partition: int) -> int | None:
        return None


def test_a_name_needs_a_registry() -> None:
    with pytest.raises(fp.PolicyError, match="name='a' needs a registry"):
        fp.SequencedProducer(Script(Answer()), name="a")
    with pytest.raises(fp.PolicyError, match="is not a transport"):
        fp.SequencedProducer(object())  # type: ignore[arg-type]


def test_settings_that_say_the_same_are_taken() -> None:
    fp.SequencedProducer(MemoryTransport(), acks=-1, retries=3, max_in_flight=5).close()


# Nonsense


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "None is not an"),
        ("ok", "'ok' is not an Answer"),
        (Answer(4711), "error 4711 is not"),
        (Answer(fp.Verdict.FORGOTTEN), "neither an ErrorCode nor a Verdict"),
        (Answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5), "offset 5 for a batch"),
        (Answer(offset=-7), "offset -7 is not an offset"),
        (Answer(offset="3"), "offset '3' is not an offset"),  # type: ignore[arg-type]
        (KeyError("oops"), "KeyError"),
        (SystemExit(3), "SystemExit(3)"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_nonsense_stops_the_producer_and_loses_nothing_silently(answer: Any, message: str) -> None:
    producer = fp.SequencedProducer(Script(answer), batch_rows=1)
    deliveries = producer.send(rows(1, 2))
    for delivery in deliveries:
        with pytest.raises(fp.TransportError, match="The producer has stopped") as caught:
            delivery.result(PATIENCE_SECONDS)
        assert message in str(caught.value)
    with pytest.raises(fp.TransportError):
        producer.send(rows(3))
    with pytest.raises(fp.TransportError):
        producer.close()


# Faults


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_written_once_and_in_order_despite_any_network_fault(seed: int) -> None:
    behind = MemoryTransport(partitions=2)
    transport = FaultyTransport(behind, seed)
    with fp.SequencedProducer(transport, partition_by="to", request_timeout_ms=40, **QUICK) as producer:
        sent: dict[int, list[int]] = {0: [], 1: []}
        deliveries = []
        for value in range(120):
            sent[value % 2].append(value)
            deliveries += producer.send([{"to": value % 2, "value": value}])
        producer.flush(60)
    transport.settle()
    assert all(delivery.result(0).rows == 1 for delivery in deliveries)
    assert behind.log == sent
    assert producer.identity.epoch == 0
    assert set(transport.answers) == {*LIES, "truth"}


@pytest.mark.parametrize("seed", range(6))
def test_undelivered_rows_are_nowhere_twice(seed: int) -> None:
    behind = MemoryTransport(partitions=2)
    transport = FaultyTransport(behind, seed, share=0.9)
    settings = {"delivery_timeout_ms": 100, "request_timeout_ms": 30, **QUICK}
    producer = fp.SequencedProducer(transport, partition_by="to", **settings)
    deliveries = [producer.send([{"to": value % 2, "value": value}])[0] for value in range(80)]
    failures = {value: delivery.exception(60) for value, delivery in enumerate(deliveries)}
    assert any(failures.values()), "or nothing was asked"
    with pytest.raises(fp.DeliveryError):
        producer.close()
    transport.settle()
    for number, log in behind.log.items():
        acknowledged = [value for value, failure in failures.items() if failure is None and value % 2 == number]
        assert len(log) == len(set(log))
        assert [value for value in log if failures[value] is None] == acknowledged
        refused = {value for value, failure in failures.items() if getattr(failure, "is_refused", False)}
        assert refused.isdisjoint(log)


def test_a_transport_that_renumbers_is_detected() -> None:
    """The property above, shown a log that does not judge."""

    class Believes(MemoryTransport):
        def send(self, batch: SequencedBatch) -> Answer:
            with self.lock:
                log = self.log.setdefault(batch.partition, [])
                log.extend(batch.rows["value"].to_pylist())
                return Answer(offset=len(log) - batch.count)

    behind = Believes(partitions=1)
    transport = FaultyTransport(behind, seed=1)
    with fp.SequencedProducer(transport, request_timeout_ms=40, **QUICK) as producer:
        for value in range(60):
            producer.send(rows(value))
    transport.settle()
    assert len(behind.log[0]) > 60


def test_a_registry_that_does_not_respond_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fencepost.producer")

    class Flaky(MemoryTransport):
        keep_alive_ms = 1
        outages = 2

        def send(self, batch: SequencedBatch) -> Answer:
            is_bad = batch.rows["value"][0].as_py() == "bad"
            return Answer(ErrorCode.INVALID_RECORD) if is_bad else super().send(batch)

        def init_producer(self, *arguments: Any, **options: Any) -> Identity:
            if self.leases and self.outages:
                self.outages -= 1
                raise fp.StoreError("no database")
            return super().init_producer(*arguments, **options)

        def keep_alive(self, identity: Any) -> None:
            raise OSError("no network")

    transport = Flaky(partitions=1)
    producer = fp.SequencedProducer(transport, name="t", registry=transport, **QUICK)
    producer.send(rows("bad"))
    wait_until(lambda: producer.identity.epoch == 1, "no next epoch")
    wait_until(lambda: "no network" in caplog.text, "a failed renewal is not logged")
    with pytest.raises(fp.DeliveryError):
        producer.close()
    warnings = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
    assert len([it for it in warnings if "no database" in it]) == 2
    infos = [it.getMessage() for it in caplog.records if it.levelname == "INFO"]
    assert len(infos) == 1
    assert "epoch=1" in infos[0]
