"""A broker takes over the folder of a `PartitionLog`, and a `PartitionLog` that of a broker."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from fencepost import Verdict, kafka
from fencepost.kafka import PartitionLog
from support.kafka_broker import ANSWER_SECONDS, Broker

CODECS: list[Any] = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that can be stopped."""
    running = Broker(tmp_path / "broker")
    running.folder.mkdir()
    running.start()
    yield running
    running.stop()


def consumed(broker: Broker, topic: str, end: int) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    """The rows that a read_committed consumer gets up to an offset."""
    settings = {
        "group.id": "test",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "enable.partition.eof": True,
    }
    consumer = Consumer(broker.settings | settings)
    place = TopicPartition(topic, 0, 0)
    assert consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS) == (0, end)
    consumer.assign([place])
    found = []
    while (message := consumer.poll(ANSWER_SECONDS)) is not None and not message.error():
        found.append((message.offset(), message.key(), message.value(), message.headers()))
    assert message is not None, "the end was not reached"
    consumer.close()
    return found


def test_a_broker_takes_over_a_log_and_gives_it_back(own_broker: Broker, tmp_path: Path) -> None:
    own_broker.create("orders")
    folder, theirs = tmp_path / "orders-0", own_broker.folder / "data" / "orders-0"
    seq = 0
    for compression in CODECS:
        # Segments for each codec, some left behind, and a transaction of either outcome across them.
        with PartitionLog(folder, compression=compression, segment_bytes=8_000) as log:
            pid = 100 + CODECS.index(compression)
            log.append(pid, 0, 0, [b"in a transaction"], transactional=True)
            for number in range(30):
                records: Any = [(b"%d" % number, b"%d of %d" % (at, number) * 20, [("h", b"x")]) for at in range(5)]
                assert log.append(7, 3, seq, records).verdict is Verdict.ACCEPTED
                seq += 5
            log.append_marker(pid, 1, "abort" if pid % 2 else "commit")
            end = log.log_end
            ours = pa.table(log.read()).to_pylist()

    def swap() -> None:
        kept = {"partition.metadata", "leader-epoch-checkpoint"}
        for path in theirs.iterdir():
            if path.name not in kept:
                path.unlink()
        for path in folder.iterdir():
            shutil.copy(path, theirs)

    own_broker.restart(swap)
    lines = [line for line in own_broker.log.read_text().splitlines() if "orders-0" in line]
    segments = len(list(folder.glob("*.log")))
    assert any(f"from snapshot file 'SnapshotFile(offset={end}," in line for line in lines)
    assert any(f"logStartOffset=0, logEndOffset={end}) with {segments} segments" in line for line in lines)
    repairs = [line for line in lines if re.search("WARN|ERROR|orrupt|Recovering", line)]
    assert repairs == [], "nothing had to be repairs"
    found = consumed(own_broker, "orders", end)
    assert [(offset, value) for offset, _, value, _ in found] == [(it["offset"], it["value"]) for it in ours]
    assert len(found) == 5 * 150 + 3
    assert {(key, tuple(headers or ())) for offset, key, _, headers in found if key == b"7"} == {(b"7", (("h", b"x"),))}

    own_broker.send("orders", "a", "b", "c")
    back = tmp_path / "back" / "orders-0"

    shutil.copytree(theirs, back)
    with PartitionLog(back) as log:
        assert [it["value"] for it in pa.table(log.read(end)).to_pylist()] == [b"a", b"b", b"c"]
        assert log.append(7, 3, seq, [b"continues"]).verdict is Verdict.ACCEPTED
    epochs = [it["leader_epoch"] for it in pa.table(kafka.read_batches(back)).to_pylist()]
    assert epochs == sorted(epochs)
    assert epochs[-1] > epochs[0] == 0, "that of the broker is kept"
    [report] = kafka.audit(back).partitions
    assert (report.damage, len(report.differences), len(report.missing), len(report.repeated)) == ((), 0, 0, 0)
