"""Kafka's log and its rules: a real topic read from its segments and by a client; headers; replay; the state table.

A topic is written by an idempotent producer to a broker on the same machine, uncompressed and with lz4, and read as
Arrow from the partition's folder, against a consumer of confluent-kafka. Headers are those of a file of batches of
about 1 KB that is in the page cache, against Python's struct over a map. An answer is (rows, sum of their offsets).
What judging costs by the number of producers is measured without Python (`rust/src/bin/broker.rs`).
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fencepost import kafka

from bench.measure import Contestant, alternate, tell, write_part
from bench.workload import occurrence

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

HEADERS, COPIED = "headers of 1 KB batches, written one by one", "headers of 1 KB batches, written in large pieces"
FOLLOWED, REPLAY = "headers, read and replayed", "replay into a state"
RECORDS = {"none": "records of a topic, uncompressed", "lz4": "records of a topic, lz4"}
SCAN, STRUCT, READ = "read_batches", "struct over a map", "reading the bytes, positional"
APPLY, SCAN_AND_APPLY = "BrokerTable.apply", "read_batches and BrokerTable.apply"
OURS, COMMITTED, CLIENT = "read_records", "read_records, read_committed", "confluent-kafka consume"
CLIENT_AS_IT_COMES = "confluent-kafka consume, settings as they come"
PRODUCERS, RECORDS_OF_BATCH, VALUE_BYTES = 10_000, 10, 100
SHARE, REPLAYED = 20, 10
"""Of the benchmark's rows one in so many is a batch of a file, or a record; so many times as many are replayed."""
BATCH_BYTES, READ_BYTES = 1151, 1 << 18
SEGMENT_BATCHES, CALL_ROWS = 100_000, 1_000_000
HEADER = struct.Struct(">qiibIhiqqqhii")

MILLIONS = {1: 60, 100_000: 25, 1_000_000: 15}
"""Batches a second to reach, by producers."""
BYTES_MAX, WEIGHED_FROM = {"whole": 112, "bare": 48}, 100_000
"""Bytes an entry to stay below, with a log's columns or with sequence numbers alone; few producers weigh little."""

Answer = tuple[int, int]


def contest(rows: int, rounds: int, producers: tuple[int, ...] = (1, 100_000, 1_000_000)) -> dict[str, Any]:
    """What belongs into the results."""
    rows //= SHARE
    measurements = []
    for name, pieces in ((HEADERS, BATCH_BYTES), (COPIED, 1 << 20)):
        with tempfile.TemporaryDirectory() as scratch:
            measurements += _headers(Path(scratch), name, pieces, rows, rounds)
    measurements += _replay(rows * REPLAYED, rounds)
    with _broker() as (broker, data):
        for compression, name in RECORDS.items():
            measurements += _records(broker, data, name, compression, rows, rounds)
    return {"measurements": [it.to_json() for it in measurements], "judging": _judging(rounds, producers)}


# Headers


def _headers(folder: Path, name: str, pieces: int, rows: int, rounds: int) -> list[Any]:
    """`pieces`: bytes that are written at once. A cache that was filled in small ones has small pages to copy."""
    log = _write_log(folder / "clicks-0", pieces, rows)
    expected = (rows, RECORDS_OF_BATCH * rows * (rows - 1) // 2)
    contestants = [
        Contestant(name=SCAN, threads=2, role="ours", expected=expected, run=lambda: _scanned(log)),
        Contestant(name=STRUCT, threads=1, expected=expected, run=lambda: _scanned_by_struct(log)),
        Contestant(
            name=READ, threads=1, role="limit", expected=expected[0] * BATCH_BYTES, run=lambda: _bytes_read(log)
        ),
    ]
    measurements = alternate(name, contestants, rows, rounds)
    if name != HEADERS:
        return measurements
    pids, _ = _numbers(rows)
    follower = Contestant(
        name=SCAN_AND_APPLY, threads=2, role="ours", expected=_last_of(pids), answer=_last_in,
        run=lambda: _applied([kafka.read_batches(log)]),
    )  # fmt: skip
    return measurements + alternate(FOLLOWED, [follower], rows, rounds)


def _numbers(batches: int) -> tuple[Any, Any]:
    """Which producer writes each batch, and its first sequence number."""
    pids = np.random.default_rng(1).integers(PRODUCERS, size=batches)
    return pids, occurrence(pids) * RECORDS_OF_BATCH


def _write_log(folder: Path, pieces: int, batches: int) -> Path:
    """A partition of one segment for each 100 000 batches: headers as they should be, payloads of chance."""
    folder.mkdir()
    pids, first = _numbers(batches)
    payload = np.random.default_rng(2).bytes(BATCH_BYTES - HEADER.size)
    for start in range(0, batches, SEGMENT_BATCHES):
        with (folder / f"{start * RECORDS_OF_BATCH:020}.log").open("wb", buffering=pieces) as file:
            for at in range(start, min(batches, start + SEGMENT_BATCHES)):
                offset, delta = at * RECORDS_OF_BATCH, RECORDS_OF_BATCH - 1
                time = 1_700_000_000_000 + at
                file.write(
                    HEADER.pack(
                        offset, BATCH_BYTES - 12, 0, 2, 0, 0, delta, time, time, int(pids[at]), 3, int(first[at]), 10
                    )
                )
                file.write(payload)
    return folder


def _scanned(folder: Path) -> Answer:
    return _answer(kafka.read_batches(folder), "base_offset")


def _answer(batches: Iterable[Any], offset: str) -> Answer:
    """`offset`: the name of the column."""
    rows, offsets = 0, 0
    for batch in batches:
        some = pa.record_batch(batch)
        rows, offsets = rows + len(some), offsets + pc.sum(some[offset]).as_py()
    return rows, offsets


def _scanned_by_struct(folder: Path) -> Answer:
    rows, offsets = 0, 0
    for path in sorted(folder.glob("*.log")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_of:
            at, end = 0, len(bytes_of)
            unpack = HEADER.unpack_from
            while at < end:
                header = unpack(bytes_of, at)
                rows, offsets = rows + 1, offsets + header[0]
                at += 12 + header[1]
    return rows, offsets


def _bytes_read(folder: Path) -> int:
    """All of it, into a buffer that stays in the cache: what a scan that maps nothing cannot do without."""
    buffer, found = bytearray(READ_BYTES), 0
    for path in sorted(folder.glob("*.log")):
        with path.open("rb", buffering=0) as file:
            at = 0
            while count := os.preadv(file.fileno(), [buffer], at):
                at += count
            found += at
    return found


# Replay


def _replay(rows: int, rounds: int) -> list[Any]:
    pids, first = _numbers(rows)
    offsets = np.arange(rows) * RECORDS_OF_BATCH
    columns = {
        "pid": pids,
        "epoch": np.zeros(rows, np.int16),
        "partition": np.zeros(rows, np.int32),
        "base_seq": first.astype(np.int32),
        "last_seq": (first + RECORDS_OF_BATCH - 1).astype(np.int32),
        "count": np.full(rows, RECORDS_OF_BATCH, np.int32),
        "base_offset": offsets,
        "last_offset": offsets + RECORDS_OF_BATCH - 1,
        "max_timestamp": 1_700_000_000_000 + offsets,
        "transactional": np.zeros(rows, bool),
        "control": pa.nulls(rows, pa.string()),
    }
    tables = [pa.table(columns).slice(start, CALL_ROWS) for start in range(0, rows, CALL_ROWS)]
    ours = Contestant(
        name=APPLY, threads=1, role="ours", expected=_last_of(pids), answer=_last_in, run=lambda: _applied(tables)
    )
    return alternate(REPLAY, [ours], rows, rounds)


def _applied(tables: Any) -> fp.BrokerTable:
    state, columns = fp.BrokerTable(), fp.BatchColumns.kafka_log()
    for table in tables:
        state.apply(table, columns)
    return state


def _last_of(pids: Any) -> Answer:
    """Producers, and the sum of their last offsets."""
    last = np.zeros(PRODUCERS, np.int64)
    np.maximum.at(last, pids, (np.arange(len(pids)) + 1) * RECORDS_OF_BATCH - 1)
    return int((last > 0).sum()), int(last.sum())


def _last_in(state: fp.BrokerTable) -> Answer:
    batches = pa.table(state.entries())["batches"].to_pylist()
    return len(batches), sum(window[-1]["last_offset"] for window in batches)


# Records


@contextmanager
def _broker() -> Iterator[tuple[Any, Path]]:
    from support.kafka_broker import Broker

    with tempfile.TemporaryDirectory() as folder:
        running = Broker(Path(folder) / "broker")
        running.folder.mkdir()
        running.start()
        try:
            yield running, running.folder / "data"
        finally:
            running.stop()


def _records(broker: Any, data: Path, name: str, compression: str, rows: int, rounds: int) -> list[Any]:
    topic = f"bench-{compression}"
    broker.create(topic)
    tell(f"producing {rows:,} records, {compression}")
    _produce(broker, topic, compression, rows)
    folder = data / f"{topic}-0"
    expected = (rows, rows * (rows - 1) // 2)
    contestants = [
        Contestant(name=OURS, threads=1, role="ours", expected=expected, run=lambda: _read(folder)),
        Contestant(
            name=COMMITTED, threads=1, role="ours", expected=expected, run=lambda: _read(folder, "read_committed")
        ),
        Contestant(name=CLIENT, threads=2, expected=expected, run=lambda: _consumed(broker, topic, rows, _FAST)),
        Contestant(
            name=CLIENT_AS_IT_COMES, threads=2, expected=expected, run=lambda: _consumed(broker, topic, rows, {})
        ),
    ]
    return alternate(name, contestants, rows, rounds)


def _produce(broker: Any, topic: str, compression: str, rows: int) -> None:
    from confluent_kafka import Producer

    settings = {"enable.idempotence": True, "compression.type": compression, "linger.ms": 5}
    producer = Producer(broker.settings | settings | {"queue.buffering.max.messages": 1_000_000})
    rng = np.random.default_rng(2)
    values = [rng.bytes(VALUE_BYTES // 2).hex().encode() for _ in range(1000)]
    for row in range(rows):
        producer.produce(topic, values[row % 1000], key=b"%d" % (row % 5000))
        if row % 50_000 == 0:
            producer.poll(0)
            producer.flush()
    assert producer.flush() == 0


def _read(folder: Path, isolation: Any = "read_uncommitted") -> Answer:
    return _answer(kafka.read_records(folder, isolation), "offset")


# As it comes, a full queue makes the client wait a second, which is most of its time then.
_FAST = {"fetch.queue.backoff.ms": 5, "queued.max.messages.kbytes": 1_000_000}


def _consumed(broker: Any, topic: str, rows: int, settings: dict[str, Any]) -> Answer:
    from confluent_kafka import Consumer, TopicPartition

    always = {"group.id": "bench", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(broker.settings | always | settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, offsets = 0, 0
    while found < rows:
        messages = consumer.consume(5000, timeout=10)
        assert messages, "the broker gives no more"
        found, offsets = found + len(messages), offsets + sum(message.offset() for message in messages)
    consumer.close()
    return found, offsets


# Judging


def _judging(rounds: int, producers: tuple[int, ...]) -> list[dict[str, Any]]:
    """What `rust/src/bin/broker.rs` prints."""
    if not producers:
        return []
    command = ["cargo", "run", "--release", "--locked", "--quiet", "--package", "fencepost-bench", "--bin", "broker"]
    command += ["--", "--rounds", str(rounds), "--producers", ",".join(map(str, producers))]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


if __name__ == "__main__":
    write_part(contest)
