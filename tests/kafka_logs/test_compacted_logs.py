"""Logs with transactions, compacted as Kafka's cleaner does: readers and audit agree with what is left."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import kafka
from support.kafka_logs import rows_of

ISOLATIONS: tuple[Any, ...] = ("read_uncommitted", "read_committed")


def write(folder: Path, chance: random.Random) -> None:
    """Producers with transactions of version 1 and 2, and without."""
    producers = {pid: [0, 0, False] for pid in range(4)}  # epoch, next sequence number, whether a transaction is open
    with kafka.PartitionLog(folder, segment_bytes=500) as log:
        for _ in range(60):
            pid = chance.randrange(4)
            epoch, seq, is_open = producers[pid]
            version = (None, 1, 2, 2)[pid]
            if version and is_open and chance.random() < 0.4:
                outcome = chance.choice(["commit", "abort"])
                raised = epoch + version - 1
                log.append_marker(pid, raised, outcome, transaction_version=version)  # type: ignore[arg-type]
                producers[pid] = [raised, seq if version == 1 else 0, False]
                continue
            count = chance.randint(1, 3)
            log.append(pid, epoch, seq, [b"value"] * count, transactional=bool(version))
            producers[pid] = [epoch, seq + count, bool(version)]


def emptied(batch: bytes) -> bytes:
    """The header of a batch without records."""
    return batch[:8] + struct.pack(">i", 61 - 12) + batch[12:57] + struct.pack(">i", 0)


def clean(folder: Path, upto: int, chance: random.Random) -> None:
    """Remove aborted and some other batches below an offset, and markers whose batches an earlier pass has removed.

    An entry of a transaction index stays as long as its marker. The last batch of a producer stays as a header.
    """
    rows = rows_of(kafka.read_batches(folder))
    aborted = [row for path in folder.glob("*.txnindex") for row in rows_of(kafka.read_aborted(path))]
    last = {row["pid"]: row["last_offset"] for row in rows if row["control"] is None}
    has_batches: set[int] = set()
    logs = {path.name: path.read_bytes() for path in folder.glob("*.log")}
    kept: dict[str, bytes] = dict.fromkeys(logs, b"")
    for row in rows:
        batch = logs[row["segment"]][row["position"] :][: row["bytes"]]
        pid, offset = row["pid"], row["base_offset"]
        if offset < upto and row["control"] is None:
            if row["transactional"]:
                has_batches.add(pid)
            is_aborted = any(it["pid"] == pid and it["first_offset"] <= offset < it["last_offset"] for it in aborted)
            is_removed = not row["count"] or (is_aborted and row["transactional"]) or chance.random() < 0.5
            if is_removed and last[pid] != row["last_offset"]:
                continue
            batch = emptied(batch) if is_removed else batch
        elif offset < upto and pid not in has_batches:
            aborted = [it for it in aborted if (it["pid"], it["last_offset"]) != (pid, offset)]
            continue
        has_batches -= {pid} if row["control"] else set()
        kept[row["segment"]] += batch
    for name, data in kept.items():
        folder.joinpath(name).write_bytes(data)
    for path in folder.glob("*.txnindex"):
        entries = [path.read_bytes()[at : at + 34] for at in range(0, path.stat().st_size, 34)]
        known = {it["last_offset"] for it in aborted}
        path.write_bytes(b"".join(it for it in entries if struct.unpack_from(">q", it, 18)[0] in known))
    for path in folder.glob("*index"):
        if path.suffix != ".txnindex":
            path.unlink()


@pytest.mark.parametrize("seed", range(5))
def test_what_compaction_leaves_is_read_and_no_finding(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "t-0"
    write(folder, chance)
    whole = {isolation: rows_of(kafka.read_records(folder, isolation)) for isolation in ISOLATIONS}
    segments = [int(path.stem) for path in sorted(folder.glob("*.log"))]
    (report,) = kafka.audit(folder).partitions
    assert report.count_findings() == dict.fromkeys(report.count_findings(), 0)
    stable = report.last_stable_offset
    assert stable is not None
    for _ in range(2):
        clean(folder, chance.choice([it for it in segments if it <= stable]), chance)
        (report,) = kafka.audit(folder, cleanup_policy="compact").partitions
        assert report.count_findings() == dict.fromkeys(report.count_findings(), 0), report.to_text()
        assert report.last_stable_offset == stable
        batches = pa.table(kafka.read_batches(folder))
        left = {
            offset
            for row in batches.to_pylist()
            if row["count"]
            for offset in range(row["base_offset"], row["last_offset"] + 1)
        }
        for isolation, rows in whole.items():
            wanted = [row for row in rows if row["offset"] in left]
            assert rows_of(kafka.read_records(folder, isolation)) == wanted
