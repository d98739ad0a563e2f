"""`fencepost.kafka.PartitionLog`: its files, read by a client library's decoder; its answers, compared with a plain
`BrokerTable` and a list; its state after kills, full disks and damage. `rust/log/tests` has power losses."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import pyarrow as pa
import pytest
from aiokafka.record.default_records import _DefaultRecordBatchPy as DecodedBatch
from fencepost import Verdict, kafka
from fencepost.kafka import Appended, PartitionLog
from fencepost.metrics import to_text
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.kafka_logs import batches_in, flip, rows_of
from support.threads import in_threads

ACCEPTED, DUPLICATE, UNTRACKED = Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.UNTRACKED
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TIME = 1_700_000_000_000

RECORDS: list[Any] = [
    b"a value",
    b"",
    (b"key", b"value"),
    (b"", None),
    (None, b"x" * 9000),
    (b"key", b"value", [("name", b"header"), ("empty", b""), ("none", None), ("n\u00e4me", b"\xff")]),
    (None, None, []),
]


def fields_of(record: Any) -> tuple[Any, Any, list[Any]]:
    """Key, value and headers of a record as `append` accepts it."""
    if isinstance(record, bytes):
        return None, record, []
    key, value, *headers = record
    return key, value, [*headers[0]] if headers else []


def values_of(log: PartitionLog, from_offset: int = 0, isolation: Any = "read_uncommitted") -> list[tuple[int, bytes]]:
    return [(row["offset"], row["value"]) for row in rows_of(log.read(from_offset, isolation))]


# What it writes


@pytest.mark.parametrize("compression", CODECS)
def test_a_client_library_decodes_what_was_written(tmp_path: Path, compression: Any) -> None:
    batches: list[tuple[Any, ...]] = [
        (7, 0, 0, RECORDS),
        (-1, -1, -1, [b"of nobody"]),
        (2**63 - 1, 32767, 2**31 - 3, [b"%d" % number * 300 for number in range(9)], True),
    ]
    with PartitionLog(tmp_path / "orders-0", compression=compression) as log:
        assert log.append_many(batches, now_ms=TIME) == [
            Appended(ACCEPTED, 0), Appended(UNTRACKED, 7), Appended(ACCEPTED, 8)
        ]  # fmt: skip
        assert log.append_marker(2**63 - 1, 32767, "commit", 5, 1, now_ms=TIME + 1) == Appended(ACCEPTED, 17)
        ours = rows_of(log.read())
    [*found, marker] = map(DecodedBatch, batches_in(tmp_path / "orders-0"))
    assert len(found) == len(batches)
    offset, theirs = 0, []
    for batch, (pid, epoch, base_seq, records, *transactional) in zip(found, batches, strict=True):
        assert batch.validate_crc()
        assert (batch.base_offset, batch.last_offset_delta) == (offset, len(records) - 1)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (pid, epoch, base_seq)
        assert (batch.first_timestamp, batch.max_timestamp, batch.timestamp_type) == (TIME, TIME, 0)
        assert (batch.compression_type, batch.is_transactional) == (CODECS[compression], bool(transactional))
        assert not batch.is_control_batch
        decoded = list(batch)
        theirs += decoded
        assert [(it.key, it.value, it.headers) for it in decoded] == [fields_of(record) for record in records]
        assert [(it.offset, it.timestamp) for it in decoded] == [(offset + at, TIME) for at in range(len(records))]
        offset += len(records)
    assert marker.validate_crc()
    assert marker.is_control_batch
    assert marker.is_transactional
    [record] = marker
    assert (record.offset, record.timestamp, record.key, record.value) == (
        17, TIME + 1, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 5)
    )  # fmt: skip
    fields = [(it["offset"], it["key"], it["value"], [(h["key"], h["value"]) for h in it["headers"]]) for it in ours]
    assert fields == [(it.offset, it.key, it.value, it.headers) for it in theirs]


def test_a_changed_byte_is_found_by_the_client_library_and_by_us(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    with PartitionLog(folder) as log:
        log.append(7, 0, 0, [(b"key", b"value"), b"another"], now_ms=TIME)
    [segment] = folder.glob("*.log")
    whole = segment.read_bytes()
    for at in range(len(whole)):
        bent = bytearray(whole)
        bent[at] ^= 0x20
        # Length and magic are outside the checksum, and so are the first offset and the leader's epoch.
        assert DecodedBatch(bent).validate_crc() == (at < 17), f"byte {at}"
        segment.write_bytes(bent)
        is_seen = 8 <= at < 12 or at >= 16
        try:
            rows_of(kafka.read_records(folder, isolation="read_uncommitted"))
        except fp.SourceError:
            assert is_seen or at < 8, f"byte {at}"
        else:
            assert not is_seen, f"byte {at}"


def test_records_come_as_arrow_as_well(tmp_path: Path) -> None:
    pair = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
    columns = {
        "value": pa.array(["x", None, "\u00fc"], pa.large_string()),
        "key": pa.array([b"k", None, b""], pa.binary()),
        "timestamp": pa.array([TIME + 5, TIME - 7, TIME], pa.timestamp("ms")),
        "headers": pa.array([[{"key": "a", "value": b"b"}], None, [{"key": "c", "value": None}]], pa.list_(pair)),
        "other": [1, 2, 3],
    }
    table = pa.table(columns)
    with PartitionLog(tmp_path / "orders-0") as log:
        assert log.append(7, 0, 0, table) == Appended(ACCEPTED, 0)
        assert log.append(7, 0, 3, pa.concat_tables([table.slice(0, 1), table.slice(1)])) == Appended(ACCEPTED, 3)
        assert log.append(7, 0, 6, table.select(["value"]), now_ms=TIME) == Appended(ACCEPTED, 6)
        dictionary = pa.table({"value": pa.array([b"one", b"two", b"one"]).dictionary_encode()})
        assert log.append(7, 0, 9, dictionary, now_ms=TIME) == Appended(ACCEPTED, 9)
        rows = rows_of(log.read())
    first, again, bare, of_dictionary = (rows[at : at + 3] for at in (0, 3, 6, 9))
    for some in (first, again):
        assert [(it["key"], it["value"]) for it in some] == [(b"k", b"x"), (None, None), (b"", "\u00fc".encode())]
        assert [it["timestamp"] for it in some] == [TIME + 5, TIME - 7, TIME]
        assert [it["headers"] for it in some] == [[{"key": "a", "value": b"b"}], [], [{"key": "c", "value": None}]]
    assert {(it["key"], it["timestamp"]) for it in bare} == {(None, TIME)}
    assert [it["value"] for it in of_dictionary] == [b"one", b"two", b"one"]
    batch, *_ = map(DecodedBatch, batches_in(tmp_path / "orders-0"))
    assert (batch.first_timestamp, batch.max_timestamp) == (TIME + 5, TIME + 5)


def fill(log: PartitionLog, seed: int, count: int) -> None:
    """Producers with and without transactions, retries, and markers."""
    dice = random.Random(seed)
    seqs, epochs = dict.fromkeys(range(6), 0), dict.fromkeys(range(6), 0)
    is_open = dict.fromkeys(range(6), False)
    for number in range(count):
        pid = dice.randrange(6)
        now_ms = TIME + number * 1000 + dice.randrange(-3000, 3000)
        if is_open[pid] and dice.random() < 0.4:
            epochs[pid], seqs[pid], is_open[pid] = epochs[pid] + 1, 0, False
            log.append_marker(pid, epochs[pid], dice.choice(["commit", "abort"]), now_ms=now_ms)
            continue
        records = [os.urandom(dice.randrange(200)) for _ in range(1 + dice.randrange(8))]
        verdict, _ = log.append(pid, epochs[pid], seqs[pid], records, transactional=pid >= 3, now_ms=now_ms)
        assert verdict is ACCEPTED
        seqs[pid] += len(records)
        is_open[pid] |= pid >= 3


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "open"])
def test_an_audit_finds_nothing_wrong(tmp_path: Path, closes: bool) -> None:
    folder = tmp_path / "orders-3"
    log = PartitionLog(folder, segment_bytes=20_000)
    fill(log, 1, 300)
    if closes:
        log.close()
    [report] = kafka.audit(folder).partitions
    assert (report.topic, report.partition, report.segments > 5) == ("orders", 3, True)
    assert (report.damage, len(report.differences), len(report.index)) == ((), 0, 0)
    assert (len(report.missing), len(report.repeated), len(report.fenced)) == (0, 0, 0)
    assert set(report.snapshots["verdict"].to_pylist()) == {"equal"}
    assert len(report.snapshots) == report.segments - 1 + closes
    assert (report.aborts > 5, len(report.aborted)) == (True, report.aborts)
    assert report.log_end == (log.log_end if not closes else PartitionLog(folder).log_end)


def test_indexes_are_as_a_broker_makes_them(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    with PartitionLog(folder, segment_bytes=60_000) as log:
        fill(log, 2, 500)
    stream = kafka.read_batches(folder, damage="report")
    batches = rows_of(stream)
    assert stream.findings == []
    segments = sorted({it["segment"] for it in batches})
    assert len(segments) > 3
    for segment in segments[:-1]:
        own = {it["position"]: it for it in batches if it["segment"] == segment}
        base = int(Path(segment).name[:20])
        index = list(struct.iter_unpack(">II", (folder / segment).with_suffix(".index").read_bytes()))
        assert 3 < len(index) < len(own)
        for offset, position in index:
            assert own[position]["last_offset"] == base + offset
        gaps = [two - one for (_, one), (_, two) in pairwise(index)]
        assert min(gaps) > 4096
        times = list(struct.iter_unpack(">qI", (folder / segment).with_suffix(".timeindex").read_bytes()))
        assert times == sorted(set(times))
        for time, offset in times:
            upto = [it["max_timestamp"] for it in own.values() if it["last_offset"] <= base + offset]
            assert max(upto) == time == upto[-1]
        assert times[-1][0] == max(it["max_timestamp"] for it in own.values())


def test_the_index_of_aborted_transactions_is_kafkas(tmp_path: Path) -> None:
    """UnifiedLogTest.testTransactionIndexUpdated, by its entries: (pid, first, last, last stable offset)."""
    folder = tmp_path / "orders-0"

    def data(pid: int, first: int, last: int) -> None:
        seqs[pid] = seqs.get(pid, 0)
        records = [b"x"] * (last - first + 1)
        assert log.append(pid, 0, seqs[pid], records, transactional=True) == Appended(ACCEPTED, first)
        seqs[pid] += len(records)

    seqs: dict[int, int] = {}
    with PartitionLog(folder) as log:
        data(1, 0, 4)
        data(1, 5, 7)
        data(2, 8, 28)
        assert log.append_marker(1, 0, "abort", transaction_version=1) == Appended(ACCEPTED, 29)
        data(3, 30, 35)
        data(4, 36, 72)
        assert log.append_marker(3, 0, "commit", transaction_version=1) == Appended(ACCEPTED, 73)
        assert log.last_stable_offset == 8
        assert log.append_marker(2, 0, "abort", transaction_version=1) == Appended(ACCEPTED, 74)
        assert log.last_stable_offset == 36
        # Nothing is open, and no data was aborted.
        assert log.append_marker(2, 1, "abort") == Appended(ACCEPTED, 75)
        seen = [offset for offset, _ in values_of(log, isolation="read_committed")]
        assert seen == list(range(30, 36))
    [index] = folder.glob("*.txnindex")
    assert [tuple(it.values()) for it in rows_of(kafka.read_aborted(index))] == [(1, 0, 29, 8), (2, 8, 74, 36)]
    assert [it["offset"] for it in rows_of(kafka.read_records(folder, "read_committed"))] == list(range(30, 36))


# What it says


def log_of_aborts(folder: Path) -> tuple[Path, list[tuple[int, bytes]]]:
    """The index of aborted transactions of a closed log, and its committed records. The first producer has the id 0."""
    with PartitionLog(folder) as log:
        for number in range(3):
            log.append(0, number, 0, [b"committed"], transactional=True)
            log.append_marker(0, number, "commit", transaction_version=1)
            log.append(7, number, 0, [b"aborted"], transactional=True)
            log.append_marker(7, number, "abort", transaction_version=1)
        records = values_of(log, isolation="read_committed")
    [index] = folder.glob("*.txnindex")
    assert [value for _, value in records] == [b"committed"] * 3
    return index, records


@pytest.mark.parametrize("zeros", [34, 40, 68])
def test_zeros_that_a_crash_left_are_no_aborted_transaction(tmp_path: Path, zeros: int) -> None:
    index, records = log_of_aborts(tmp_path / "orders-0")
    whole = index.read_bytes()
    index.write_bytes(whole + bytes(zeros))
    with PartitionLog(tmp_path / "orders-0") as log:
        assert values_of(log, isolation="read_committed") == records
    assert index.read_bytes() == whole


def test_a_damaged_entry_does_not_make_aborted_records_visible(tmp_path: Path) -> None:
    index, _ = log_of_aborts(tmp_path / "orders-0")
    damaged = bytearray(index.read_bytes())
    damaged[0] ^= 1
    index.write_bytes(damaged)
    with pytest.raises(fp.SourceError, match=index.name):
        PartitionLog(tmp_path / "orders-0")
    assert index.read_bytes() == damaged


def test_retries_gaps_and_zombies(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    batches = [[b"%d" % number] * (number + 1) for number in range(7)]
    firsts = [sum(len(it) for it in batches[:number]) for number in range(7)]
    log = PartitionLog(path)
    for first, batch in zip(firsts, batches, strict=True):
        assert log.append(7, 1, first, batch) == Appended(ACCEPTED, first)
    for _ in ("as it was", "closed and opened again", "dropped and opened again"):
        size = sum(it.stat().st_size for it in path.glob("*.log"))
        for first, batch in zip(firsts[2:], batches[2:], strict=True):
            assert log.append(7, 1, first, batch) == Appended(DUPLICATE, first), "the last five are known"
        assert log.append(7, 1, firsts[1], batches[1]) == Appended(Verdict.OUT_OF_ORDER, None), "the sixth is not"
        assert log.append(7, 1, 29, [b"gap"]) == Appended(Verdict.OUT_OF_ORDER, None)
        assert log.append(7, 0, 28, [b"zombie"]) == Appended(Verdict.FENCED, None)
        assert (log.log_end, len(values_of(log))) == (28, 28)
        assert sum(it.stat().st_size for it in path.glob("*.log")) == size
        if _ == "as it was":
            log.close()
        del log
        log = PartitionLog(path)
    assert log.append(7, 2, 0, [b"next epoch"]) == Appended(ACCEPTED, 28)


def test_a_call_is_judged_as_its_batches_would_be(tmp_path: Path) -> None:
    with PartitionLog(tmp_path / "orders-0") as log:
        answers = log.append_many(
            [(7, 0, 0, [b"a", b"b"]), (7, 0, 0, [b"a", b"b"]), (8, 0, 0, [b"c"]), (7, 0, 3, [b"d"]), (7, 0, 2, [b"e"])]
        )
        assert answers == [
            Appended(ACCEPTED, 0), Appended(DUPLICATE, 0), Appended(ACCEPTED, 2),
            Appended(Verdict.OUT_OF_ORDER, None), Appended(ACCEPTED, 3),
        ]  # fmt: skip
        assert values_of(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"e")]
        assert log.append_many([]) == []


def test_only_what_is_decided_is_read_as_committed(tmp_path: Path) -> None:
    with PartitionLog(tmp_path / "orders-0") as log:
        log.append(7, 0, 0, [b"plain"])
        log.append(8, 0, 0, [b"committed"], transactional=True)
        log.append(9, 0, 0, [b"aborted"], transactional=True)
        log.append(7, 0, 1, [b"behind"])
        assert log.append(8, 0, 1, [b"plain within"]) == Appended(Verdict.INVALID_TXN_STATE, None)
        assert (log.log_end, log.last_stable_offset) == (4, 1)
        assert values_of(log, isolation="read_committed") == [(0, b"plain")]
        assert log.append_marker(8, 1, "commit").verdict is ACCEPTED
        assert log.append_marker(8, 0, "commit") == Appended(Verdict.FENCED, None)
        assert log.append_marker(9, 1, "abort", coordinator_epoch=4).verdict is ACCEPTED
        assert log.append_marker(9, 2, "abort", coordinator_epoch=3) == Appended(Verdict.COORDINATOR_FENCED, None)
        assert log.last_stable_offset == log.log_end == 6
        wanted = [(0, b"plain"), (1, b"committed"), (3, b"behind")]
        assert values_of(log, isolation="read_committed") == wanted
        assert values_of(log, 1, "read_committed") == wanted[1:]
        assert values_of(log, 2, "read_uncommitted") == [(2, b"aborted"), (3, b"behind")]
        reader = log.read()
        log.append(7, 0, 2, [b"later"])
    assert [it["value"] for it in rows_of(reader)] == [value for _, value in wanted], "as it was when asked"


def test_producers_that_are_idle_are_forgotten(tmp_path: Path) -> None:
    with PartitionLog(tmp_path / "orders-0", max_idle_ms=1000) as log:
        assert log.evict(TIME) == 0
        log.append(7, 0, 0, [b"a"], now_ms=TIME)
        log.append(8, 0, 0, [b"a"], transactional=True, now_ms=TIME)
        assert (log.evict(TIME + 999), log.evict(TIME + 1000)) == (0, 1)
        assert log.append(7, 0, 41, [b"welcome"], now_ms=TIME) == Appended(ACCEPTED, 2)


# Any calls, against a table and a list


class Calls(RuleBasedStateMachine):
    """A log, a `BrokerTable` that assigns the same offsets, and the accepted batches."""

    @initialize(
        sync=st.sampled_from(["each", "group", "interval"]),
        segment_bytes=st.sampled_from([400, 1500, 1 << 20]),
        compression=st.sampled_from(sorted(CODECS)),
    )
    def begin(self, sync: Any, segment_bytes: int, compression: str) -> None:
        self.folder = Path(tempfile.mkdtemp()) / "orders-0"
        self.options = {"sync": sync, "segment_bytes": segment_bytes, "compression": compression}
        self.table = fp.BrokerTable(offsets="assign")
        self.records: list[tuple[int, bytes, int, bool]] = []
        self.markers: list[tuple[int, int, str]] = []
        self.now_ms = TIME
        self.log = self.open()

    def open(self) -> PartitionLog:
        return PartitionLog(self.folder, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.log.close()
            shutil.rmtree(self.folder.parent)

    def judge(self, **row: Any) -> Appended:
        """The answer of the table to a row."""
        schema = {"pid": pa.int64(), "epoch": pa.int16(), "partition": pa.int32(), "base_seq": pa.int32()}
        schema |= {"count": pa.int32(), "timestamp": pa.int64(), "transactional": pa.bool_(), "control": pa.utf8()}
        schema |= {"coordinator_epoch": pa.int32(), "transaction_version": pa.int8()}
        row = dict.fromkeys(schema) | {"partition": 0, "timestamp": self.now_ms} | row
        verdicts = self.table.apply(pa.table({name: pa.array([row[name]], kind) for name, kind in schema.items()}))
        [code], [offset] = pa.array(verdicts.verdict).to_pylist(), pa.array(verdicts.offsets).to_pylist()
        return Appended(Verdict(code), offset)

    def next_seq(self, pid: int) -> int:
        known = self.table.get(pid, 0)
        return known["batches"][-1]["last_seq"] + 1 if known and known["batches"] else 0

    def wanted(self, pid: int, epoch: int, seq: int, values: list[bytes], transactional: bool) -> Appended:
        answer = self.judge(pid=pid, epoch=epoch, base_seq=seq, count=len(values), transactional=transactional)
        if answer.verdict is ACCEPTED:
            assert answer.offset is not None
            self.records += [(answer.offset + at, it, pid, transactional) for at, it in enumerate(values)]
        return answer

    batches = st.tuples(
        st.integers(0, 3), st.integers(-1, 1), st.sampled_from([0, 0, 0, 0, -1, -3, 1]),
        st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.booleans(),
    )  # fmt: skip

    def numbered(self, pid: int, bump: int, skew: int) -> tuple[int, int]:
        """An epoch and a first sequence number, most often the next."""
        known = self.table.get(pid, 0)
        epoch = max(0, (known["epoch"] if known else 0) + bump)
        return epoch, max(0, 0 if known and epoch > known["epoch"] else self.next_seq(pid) + skew)

    @rule(batch=batches)
    def append(self, batch: Any) -> None:
        pid, bump, skew, values, transactional = batch
        epoch, seq = self.numbered(pid, bump, skew)
        self.now_ms += 1
        answer = self.log.append(pid, epoch, seq, list(values), transactional, now_ms=self.now_ms)
        assert answer == self.wanted(pid, epoch, seq, values, transactional)

    @rule(some=st.lists(batches, max_size=5))
    def append_many(self, some: Any) -> None:
        self.now_ms += 1
        call, wanted = [], []
        for pid, bump, skew, values, transactional in some:
            epoch, seq = self.numbered(pid, bump, skew)
            call.append((pid, epoch, seq, list(values), transactional))
            wanted.append(self.wanted(pid, epoch, seq, values, transactional))
        if sum(len(value) + 30 for _, _, _, values, _ in call for value in values) + 61 * len(call) > 350:
            # It may be more than a segment takes: one after the other then.
            assert [self.log.append(*it, now_ms=self.now_ms) for it in call] == wanted
        else:
            assert self.log.append_many(call, now_ms=self.now_ms) == wanted

    @rule(pid=st.integers(0, 3), back=st.integers(1, 6))
    def retry(self, pid: int, back: int) -> None:
        known = self.table.get(pid, 0)
        if known is None or len(known["batches"]) < back:
            return
        batch = known["batches"][-back]
        values = [b"again"] * (batch["last_seq"] - batch["first_seq"] + 1)
        answer = self.log.append(pid, known["epoch"], batch["first_seq"], values, now_ms=self.now_ms)
        assert answer == Appended(DUPLICATE, batch["first_offset"])
        assert answer == self.judge(pid=pid, epoch=known["epoch"], base_seq=batch["first_seq"], count=len(values))

    @rule(
        pid=st.integers(0, 3), bump=st.integers(-1, 1), outcome=st.sampled_from(["commit", "abort"]),
        coordinator_epoch=st.integers(0, 2), version=st.integers(0, 2),
    )  # fmt: skip
    def end(self, pid: int, bump: int, outcome: Any, coordinator_epoch: int, version: int) -> None:
        self.now_ms += 1
        known = self.table.get(pid, 0)
        epoch = max(0, (known["epoch"] if known else 0) + bump)
        answer = self.log.append_marker(pid, epoch, outcome, coordinator_epoch, version, now_ms=self.now_ms)
        wanted = self.judge(
            pid=pid, epoch=epoch, control=outcome, coordinator_epoch=coordinator_epoch, transaction_version=version
        )
        assert answer == wanted
        if answer.verdict is ACCEPTED:
            assert answer.offset is not None
            self.markers.append((answer.offset, pid, outcome))

    @rule()
    def close(self) -> None:
        self.log.close()
        self.log = self.open()
        assert self.log.recovered.batches == 0

    @rule()
    def crash(self) -> None:
        del self.log
        self.log = self.open()
        assert self.log.recovered.cut_bytes == 0

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def read(self, data: Any) -> None:
        from_offset = data.draw(st.integers(0, self.log.log_end))
        seen, lso = self.committed()
        assert values_of(self.log, from_offset, "read_committed") == [it for it in seen if it[0] >= from_offset]
        everything = [(offset, value) for offset, value, _, _ in self.records if offset >= from_offset]
        assert values_of(self.log, from_offset) == everything
        assert self.log.last_stable_offset == lso

    def committed(self) -> tuple[list[tuple[int, bytes]], int]:
        """What is committed, record by record, and from where on nothing is decided."""
        seen, undecided = [], []
        for offset, value, pid, transactional in self.records:
            outcome = next((it for at, of, it in self.markers if of == pid and at > offset), None)
            if transactional and outcome is None:
                undecided.append(offset)
            if not transactional or outcome == "commit":
                seen.append((offset, value))
        lso = min(undecided, default=self.table.log_end(0))
        return [it for it in seen if it[0] < lso], lso

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_end == self.table.log_end(0)


Calls.TestCase.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
test_any_calls_agree_with_a_table_and_a_list = Calls.TestCase


# What is left


WRITER = """
    import sys
    from fencepost.kafka import PartitionLog
    path, sync, pid_count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = PartitionLog(path, sync=sync, segment_bytes=30_000, interval_ms=20)
    seqs = [0] * pid_count
    while True:
        for pid in range(pid_count):
            values = [b"%d:%d" % (pid, seqs[pid] + at) for at in range(1 + seqs[pid] % 7)]
            answer = log.append(pid, 0, seqs[pid], values)
            assert answer.verdict == 0
            seqs[pid] += len(values)
            print(pid, answer.offset, len(values), flush=True)
"""


def run(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("sync", ["each", "group", "interval"])
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path, sync: str) -> None:
    path, seqs, offsets, last = tmp_path / "orders-0", [0, 0], 0, {}
    dice = random.Random(sync)
    for number in range(4):
        # Each round is a producer of its own, so that it begins at 0 again.
        folder = path.with_name(f"round{number}-0")
        writer = run(WRITER, folder, sync, 2)
        assert writer.stdout is not None
        appended = []
        for line in writer.stdout:
            appended.append(tuple(map(int, line.split())))
            if len(appended) >= 20 and dice.random() < 0.02:
                writer.send_signal(signal.SIGKILL)
                break
        appended += [
            tuple(map(int, line.split())) for line in writer.stdout if line.count(" ") == 2 and line[-1] == "\n"
        ]
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        with PartitionLog(folder) as log:
            found = dict(values_of(log))
            assert list(found) == list(range(log.log_end))
            seqs = [0, 0]
            for pid, offset, count in appended:
                wanted = [b"%d:%d" % (pid, seqs[pid] + at) for at in range(count)]
                assert [found[offset + at] for at in range(count)] == wanted
                last[pid] = (seqs[pid], wanted, offset)
                seqs[pid] += count
            offsets += len(appended)
            for pid, (seq, values, offset) in last.items():
                assert log.append(pid, 0, seq, values) == Appended(DUPLICATE, offset)
        assert kafka.audit(folder).partitions[0].snapshots["verdict"].to_pylist()[-1] == "equal"
    assert offsets > 80


@pytest.mark.parametrize("missing", ["removed", "damaged"])
def test_the_last_batches_are_known_without_the_newest_state(tmp_path: Path, missing: str) -> None:
    """A crash or a full disk can leave the newest .snapshot without its .state."""
    with PartitionLog(tmp_path, segment_bytes=200) as log:
        for seq in range(5):
            log.append(7, 0, seq, [b"value"])
    *older, newest = sorted(tmp_path.glob("*.state"))
    if missing == "removed":
        newest.unlink()
    else:
        newest.write_bytes(b"no state")
    with PartitionLog(tmp_path) as log:
        assert log.recovered.state == older[-1].name
        assert log.append(7, 0, 3, [b"value"]) == Appended(DUPLICATE, 3)


def test_columns_of_nulls_of_polars(tmp_path: Path) -> None:
    with PartitionLog(tmp_path) as log:
        rows = pl.DataFrame({"key": [None], "value": [b"a"]})
        assert log.append(7, 0, 0, rows) == Appended(ACCEPTED, 0)
        assert pa.table(log.read())["key"].to_pylist() == [None]


FULL = """
    import resource, sys
    from pathlib import Path
    from fencepost.kafka import PartitionLog
    path, calls = Path(sys.argv[1]), int(sys.argv[2])
    log = PartitionLog(path)
    [segment] = path.glob("*.log")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    seq = 0
    try:
        while True:
            batches = [(7, 0, seq + 10 * at, [b"x" * 100] * 10) for at in range(calls)]
            size, end = segment.stat().st_size, log.log_end
            log.append_many(batches)
            seq += 10 * calls
    except OSError as error:
        print(error)
        print(error.errno, segment.stat().st_size == size, log.log_end == end == seq)
        print(len(list(log.read())[0].column(0)) == end)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print([tuple(it) for it in log.append_many(batches)] == [(0, seq + 10 * at) for at in range(calls)])
    log.close()
"""


@pytest.mark.parametrize("calls", [1, 3, 7])
def test_a_disk_that_is_full_leaves_no_trace(tmp_path: Path, calls: int) -> None:
    path = tmp_path / "orders-0"
    writer = run(FULL, path, calls)
    out, _ = writer.communicate()
    lines = out.splitlines()
    message = r"\[Errno 27\].*; nothing was appended.* ends at offset \d+ .*: '.*orders-0/0{20}\.log'"
    assert re.fullmatch(message, lines[0]), lines[0]
    assert lines[1:] == [f"{errno.EFBIG} True True", "True", "True"]
    with PartitionLog(path) as log:
        assert len(values_of(log)) == log.log_end > 10 * calls
    assert kafka.audit(path).partitions[0].damage == ()


def test_there_is_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    log = PartitionLog(path)
    message = f"{path}: another PartitionLog"
    with pytest.raises(fp.LockedError, match=re.escape(message)):
        PartitionLog(path)
    other = run("import sys, fencepost.kafka as k\nk.PartitionLog(sys.argv[1])", path, stderr=subprocess.PIPE)
    assert message in other.communicate()[1]
    log.append(7, 0, 0, [b"a"])
    log.close()
    with PartitionLog(path) as log:
        assert log.log_end == 1


def test_a_log_that_could_not_be_opened_is_not_locked(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with PartitionLog(path) as log:
        log.append(7, 0, 0, [b"a"])
        log.append(7, 0, 1, [b"b"])
    [segment] = path.glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    with pytest.raises(fp.SourceError, match="it reached offset 2") as raised:
        PartitionLog(path)
    assert raised.value.path == f"{path}/"
    segment.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(fp.SourceError, match=r"Not the torn end.* batch follows at byte 69") as raised:
        PartitionLog(path)
    assert (raised.value.path, raised.value.position) == (str(segment), 0)
    segment.write_bytes(whole[:-1])
    with PartitionLog(path, on_damage="cut") as log:
        assert log.recovered == (None, ("00000000000000000002.state", "00000000000000000002.snapshot"), 1, 68)
        assert log.append(7, 0, 1, [b"b"]) == Appended(ACCEPTED, 1)


@pytest.mark.parametrize("keeps_states", [True, False])
def test_damage_in_any_segment_is_cut_on_request(tmp_path: Path, keeps_states: bool) -> None:
    whole = tmp_path / "whole" / "orders-0"
    with PartitionLog(whole, segment_bytes=300) as log:
        for seq in range(12):
            log.append(7, 0, seq, [b"%d" % seq])
    segments = sorted(whole.glob("*.log"))
    assert len(segments) >= 3
    for segment in segments:
        path = shutil.copytree(whole, tmp_path / segment.stem / "orders-0")
        if not keeps_states:
            for state in [*path.glob("*.state"), *path.glob("*.snapshot")]:
                state.unlink()
        data = bytearray(segment.read_bytes())
        data[65] ^= 1  # of the segment's first batch
        (path / segment.name).write_bytes(data)
        if not keeps_states:
            with pytest.raises(fp.SourceError, match=r'on_damage="cut" .*everything from offset') as raised:
                PartitionLog(path, segment_bytes=300)
            assert (raised.value.path, raised.value.position) == (str(path / segment.name), 0)
        base = int(segment.stem)
        behind = sum(it.stat().st_size for it in segments if it.name >= segment.name)
        with PartitionLog(path, segment_bytes=300, on_damage="cut") as log:
            assert (log.log_end, log.recovered.cut_bytes) == (base, behind)
            assert log.append(7, 0, base, [b"again"]) == Appended(ACCEPTED, base)
        with PartitionLog(path, segment_bytes=300) as log:
            values = [it for part in log.read() for it in pa.record_batch(part)["value"].to_pylist()]
            assert values == [*(b"%d" % seq for seq in range(base)), b"again"]


def test_a_transaction_of_the_last_epoch_can_be_ended(tmp_path: Path) -> None:
    with PartitionLog(tmp_path / "orders-0") as log:
        log.append(7, 32767, 0, [b"a"], transactional=True)
        assert log.last_stable_offset == 0
        assert log.append_marker(7, 32767, "abort", transaction_version=2) == Appended(ACCEPTED, 1)
        assert log.last_stable_offset == 2


def test_a_fork_does_not_write(tmp_path: Path) -> None:
    program = """
        import os, sys
        import fencepost as fp
        from fencepost.kafka import PartitionLog
        log = PartitionLog(sys.argv[1], sync=sys.argv[2])
        log.append(7, 0, 0, [b"a"])
        child = os.fork()
        if not child:
            try:
                log.append(7, 0, 1, [b"b"])
            except fp.PoisonedError as error:
                print("of which this is a fork" in str(error), flush=True)
            sys.exit()
        os.waitpid(child, 0)
        print(log.append(7, 0, 1, [b"c"]).offset, [it.num_rows for it in log.read()])
    """
    for sync in ("group", "interval"):
        out, _ = run(program, tmp_path / f"{sync}-0", sync).communicate()
        assert out == "True\n1 [2]\n"


def test_a_fork_does_not_keep_the_lock_of_a_closed_log(tmp_path: Path) -> None:
    program = """
        import os, sys
        from fencepost.kafka import PartitionLog
        log = PartitionLog(sys.argv[1])
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        log.close()
        with PartitionLog(sys.argv[1]) as again:
            print(again.append(7, 0, 0, [b"a"]).offset)
        os.close(write)
        os.waitpid(child, 0)
    """
    out, _ = run(program, tmp_path / "orders-0").communicate()
    assert out == "0\n"


def test_threads_append_at_once(tmp_path: Path) -> None:
    answers: dict[int, list[Appended]] = {pid: [] for pid in range(8)}
    with PartitionLog(tmp_path / "orders-0", segment_bytes=100_000) as log:

        def work(pid: int) -> None:
            for seq in range(0, 300, 3):
                answers[pid].append(log.append(pid, 0, seq, [b"%d:%d" % (pid, seq + at) for at in range(3)]))
                # What was acknowledged is seen at once.
                offset = answers[pid][-1].offset
                assert offset is not None
                assert values_of(log, offset)[0] == (offset, b"%d:%d" % (pid, seq))

        in_threads([partial(work, pid) for pid in answers])
        found = dict(values_of(log))
    assert list(found) == list(range(2400))
    for pid, some in answers.items():
        assert [it.verdict for it in some] == [ACCEPTED] * 100
        assert [found[it.offset or 0] for it in some] == [b"%d:%d" % (pid, seq) for seq in range(0, 300, 3)]


# What it refuses


BAD: dict[str, tuple[str, Any]] = {
    "records of text": (r"column 'value', row 1: .* str, bytes, \(key, value\) or \(key, value, headers\)",
        (7, 0, 0, [b"a", "b"])),
    "key of text": ("column 'key', row 0: .* str, bytes or None", (7, 0, 0, [("k", b"v")])),
    "four fields": (r"column 'value', row 0: .* tuple, bytes, \(key, value\) or \(key, value, headers\)",
        (7, 0, 0, [(b"k", b"v", [], 1)])),
    "headers": (r"column 'headers', row 0: .* str, .*\(name, bytes or None\)",
        (7, 0, 0, [(b"k", b"v", ["h"])])),
    "no records": ("column 'value': no records", (7, 0, 0, [])),
    "pid": (r"column 'pid': value -2 .* 0\.\.=9223372036854775807 \(-1 or None: not idempotent\)",
        (-2, 0, 0, [b"a"])),
    "epoch": (r"column 'epoch': value 32768 .* 0\.\.=32767 \(-1 or None", (7, 32768, 0, [b"a"])),
    "no epoch": (r"column 'epoch': value -1 .* 0\.\.=32767$", (7, -1, 0, [b"a"])),
    "seq": (r"column 'base_seq': value 2147483648 .* 0\.\.=2147483647 \(-1 or None",
        (7, 0, 2**31, [b"a"])),
    "seq of text": (r"column 'base_seq': value '1' .* 0\.\.=2147483647 \(-1 or None",
        (7, 0, "1", [b"a"])),
    "no pid in a transaction": ("column 'transactional': true, .*no producer",
        (-1, -1, -1, [b"a"], True)),
    "no value": ("column 'value': missing.* columns key$", (7, 0, 0, pa.table({"key": [b"a"]}))),
    "integers": ("column 'value': .* Int64, binary or strings", (7, 0, 0, pa.table({"value": [1]}))),
    "timestamp": (r"column 'timestamp', row 1: value -5, .* 0\.\.=9223372036854775807",
        (7, 0, 0, pa.table({"value": ["a", "b"], "timestamp": [1, -5]}))),
    "headers of integers": (r"column 'headers': .* Int64, .* key \(utf8\) and value \(binary\)",
        (7, 0, 0, pa.table({"value": ["a"], "headers": [1]}))),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_impossible_batch_changes_nothing(tmp_path: Path, name: str) -> None:
    message, arguments = BAD[name]
    with PartitionLog(tmp_path / "orders-0") as log:
        with pytest.raises(fp.BatchError, match=message) as raised:
            log.append(*arguments)
        alone = raised.value.message.replace("row 1", "row 0")
        with pytest.raises(fp.BatchError) as raised:
            log.append_many([(7, 0, 0, [b"good"]), arguments])
        assert raised.value.message.removeprefix("batch 1: ").replace("row 1", "row 0") == alone
        assert (log.log_end, values_of(log)) == (0, [])
        assert log.append(7, 0, 0, [b"good"]) == Appended(ACCEPTED, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync": "never"}, "sync='never': .*'each', 'group' or 'interval'"),
        ({"on_damage": "ignore"}, "on_damage='ignore': .*'refuse' or 'cut'"),
        ({"segment_bytes": 0}, r"segment_bytes=0 .* 1\.\.=2147483647"),
        ({"interval_ms": 0}, r"interval_ms=0 .* 1\.\.=2147483647"),
        ({"compression": "brotli"}, "compression='brotli' .* none, gzip, snappy, lz4, zstd"),
        ({"partition": -1}, r"partition=-1 .* 0\.\.=2147483647"),
        ({"partition": 4}, "partition=4: .* partition 3 of topic 'orders'"),
        ({"version": "1.0"}, 'version="1.0": .* 2.4 to 4.5'),
    ],
)
def test_invalid_combinations_of_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, fp.PolicyError), match=message):
        PartitionLog(tmp_path / "orders-3", **options)
    assert not (tmp_path / "orders-3").exists()


def test_invalid_calls(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "some folder", 5, segment_bytes=300)
    assert (log.topic, log.partition) == (None, 5)
    for message, call in (
        (r"from_offset=1 .* 0\.\.=0\b", lambda: log.read(1)),
        ("isolation='dirty': .*'read_committed' or", lambda: log.read(0, "dirty")),  # type: ignore[arg-type]
        ("outcome='maybe': .*'commit' or 'abort'", lambda: log.append_marker(7, 0, "maybe")),  # type: ignore[arg-type]
        (r"now_ms=-1 .* 0\.\.=9223372036854775807", lambda: log.append(7, 0, 0, [b"a"], now_ms=-1)),
        (
            r"370 bytes .* 300 \(segment_bytes\).* Nothing was appended",
            lambda: log.append(7, 0, 0, [b"x" * 300]),
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"records of type bytes.* list of bytes"):
        log.append(7, 0, 0, b"not a list")  # type: ignore[arg-type]
    assert log.log_end == 0
    log.close()
    log.close()
    for call in (lambda: log.append(7, 0, 0, [b"a"]), lambda: log.log_end, lambda: log.read(), log.sync):
        with pytest.raises(ValueError, match="the log was closed"):
            call()


# A reader that continues


def log_of_transactions(folder: Path) -> PartitionLog:
    """Segments of a few batches; a transaction that is aborted goes through several of them, and one stays open."""
    log = PartitionLog(folder, segment_bytes=300, compression="zstd")
    for number in range(12):
        log.append(7, 0, 2 * number, [b"plain", b"plain 2"])
        if number < 6:
            log.append(8, 0, number, [b"aborted"], transactional=True)
        if number == 6:
            log.append_marker(8, 1, "abort")
        log.append(9, 0, number, [b"committed"], transactional=True) if number in (2, 7) else None
        if number == 8:
            log.append_marker(9, 1, "commit")
    log.append(10, 0, 0, [b"open"], transactional=True)
    log.append(7, 0, 24, [b"behind it"])
    return log


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_records_from_any_offset(tmp_path: Path, isolation: Any) -> None:
    log_of_transactions(tmp_path / "orders-0").close()
    assert len(list((tmp_path / "orders-0").glob("*.log"))) >= 5
    everything = rows_of(kafka.read_records(tmp_path / "orders-0", isolation))
    for start in range(everything[-1]["offset"] + 4):
        found = rows_of(kafka.read_records(tmp_path / "orders-0", isolation, from_offset=start))
        assert found == [row for row in everything if row["offset"] >= start]


def test_segments_before_from_offset_are_not_read(tmp_path: Path) -> None:
    """The records of segments that are damaged there, and those of segments that were deleted."""
    log_of_transactions(tmp_path / "orders-0").close()
    segments = sorted((tmp_path / "orders-0").glob("*.log"))
    start = int(segments[2].stem)
    whole = rows_of(kafka.read_records(tmp_path / "orders-0", from_offset=start, isolation="read_uncommitted"))
    flip(segments[1], -1)
    with pytest.raises(fp.SourceError, match=segments[1].name):
        rows_of(kafka.read_records(tmp_path / "orders-0", from_offset=start - 1, isolation="read_uncommitted"))
    assert rows_of(kafka.read_records(tmp_path / "orders-0", from_offset=start, isolation="read_uncommitted")) == whole
    segments[0].unlink()
    first = int(segments[1].stem)
    with pytest.raises(fp.SourceError, match=f"offsets 0 to {first - 1} are no longer"):
        kafka.read_records(tmp_path / "orders-0", from_offset=0, isolation="read_uncommitted")
    with pytest.raises(ValueError, match="from_offset=-1"):
        kafka.read_records(tmp_path / "orders-0", from_offset=-1, isolation="read_uncommitted")
    assert rows_of(kafka.read_records(tmp_path / "orders-0", from_offset=10**9, isolation="read_uncommitted")) == []


def test_metrics_of_a_log(tmp_path: Path) -> None:
    with kafka.PartitionLog(tmp_path / "orders-0") as log:
        log.append(7, 0, 0, [b"first", b"second"])
        log.append(7, 0, 0, [b"first", b"second"])
        log.append(7, 0, 9, [b"gap"])
        found = log.metrics()
        assert (found["log_end"], found["last_stable_offset"], found["segments"]) == (2, 2, 1)
        assert found["bytes"] == sum(it.stat().st_size for it in (tmp_path / "orders-0").glob("*.log"))
        assert {name: count for name, count in found["appended"].items() if count} == {
            "accepted": 1, "duplicate": 1, "out_of_order": 1,
        }  # fmt: skip
        lines = to_text(log).splitlines()
        path = tmp_path / "orders-0"
        assert f'fencepost_log_end{{log="{path}"}} 2.0' in lines
        assert f'fencepost_log_appended_total{{log="{path}",verdict="duplicate"}} 1.0' in lines
    assert to_text(log) == "# EOF\n", "a closed log has no metrics, and those of others are still collected"


def test_a_log_that_has_to_be_opened_again_does_not_stop_a_scrape(tmp_path: Path) -> None:
    """A fork is one cause of a PoisonedError."""
    program = """
        import os, sys
        from fencepost.kafka import PartitionLog
        from fencepost.metrics import to_text
        log = PartitionLog(sys.argv[1])
        if not os.fork():
            other = PartitionLog(sys.argv[2])
            print(to_text(log, other).count("fencepost_log_end{"), to_text(log), flush=True)
            os._exit(0)
        os.wait()
        print(to_text(log).count("fencepost_log_end{"))
    """
    out, _ = run(program, tmp_path / "orders-0", tmp_path / "orders-1").communicate()
    assert out == "1 # EOF\n\n1\n"
