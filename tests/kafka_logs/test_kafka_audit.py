"""The audit of Kafka's log: folders that a broker wrote, and findings after parts of them are removed."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import cli, kafka
from fencepost.cli.salvage import Source
from fencepost.kafka import replay
from fencepost.kafka.audit_report import FINDINGS, PartitionAudit
from fencepost.kafka.sequence_checks import MAX, Sequences
from fencepost.kafka.source import open_log
from fencepost.lake import DedupJob, KafkaLog
from support.kafka_logs import DATA, PARTITIONS, batches_in, flip, read_csv, rows_of


@pytest.fixture(scope="module")
def report() -> kafka.LogAudit:
    return kafka.audit(DATA, now_ms="newest")


def of(report: kafka.LogAudit, name: str) -> PartitionAudit:
    (found,) = (partition for partition in report.partitions if partition.name == name)
    return found


# What a broker wrote


def test_a_brokers_own_files_agree_with_its_log(report: kafka.LogAudit) -> None:
    assert [partition.name for partition in report.partitions] == PARTITIONS
    assert report.count_findings() == {}
    verdicts = report.table("snapshots").to_pylist()
    assert len(verdicts) == 35
    assert [(row["topic"], row["file"]) for row in verdicts if row["verdict"] != "equal"] == [
        ("profiles", "00000000000000000530.snapshot")
    ]
    assert report.table("aborted").select(["pid", "first_offset", "last_offset", "last_stable_offset"]).to_pylist() == [
        {name.replace("producer_id", "pid"): int(value) for name, value in row.items() if name != "file"}
        for row in read_csv("aborted.csv")
    ]


def test_a_compacted_log_reports_underivable_snapshots(report: kafka.LogAudit) -> None:
    profiles = of(report, "profiles-0")
    assert profiles.compacted
    assert sum(partition.compacted for partition in report.partitions) == 1
    assert profiles.differences.to_pylist() == [
        {"file": "00000000000000000530.snapshot", "pid": 1005, "field": "producer", "in_snapshot": 1, "in_log": None}
    ]
    assert [row["verdict"] for row in profiles.snapshots.to_pylist()] == ["equal", "compacted", "equal", "equal"]
    assert len(profiles.missing) == 2
    assert profiles.count_findings()["missing"] == 0


def test_sums_are_those_of_the_headers(report: kafka.LogAudit) -> None:
    for name in PARTITIONS:
        found, rows = of(report, name), rows_of(kafka.read_batches(DATA / name))
        data = [row for row in rows if row["control"] is None]
        assert (found.batches, found.bytes) == (len(rows), sum(row["bytes"] for row in rows))
        assert found.records == sum(row["count"] for row in data)
        assert found.untracked == sum(row["pid"] < 0 for row in data)
        assert (found.commits, found.aborts) == tuple(
            sum(row["control"] == it for row in rows) for it in ("commit", "abort")
        )
        assert (found.log_start, found.log_end) == (rows[0]["base_offset"], rows[-1]["last_offset"] + 1)
        assert sum(found.compressions.values()) == len(rows)
        wanted: dict[int, list[dict[str, Any]]] = {}
        for row in data:
            if row["pid"] >= 0:
                wanted.setdefault(row["pid"], []).append(row)
        assert found.producers.to_pylist() == [
            {
                "pid": pid,
                "epoch": max(row["epoch"] for row in of_pid),
                "epochs": len({row["epoch"] for row in of_pid}),
                "batches": len(of_pid),
                "records": sum(row["count"] for row in of_pid),
                "first_offset": of_pid[0]["base_offset"],
                "last_offset": of_pid[-1]["last_offset"],
            }
            for pid, of_pid in sorted(wanted.items())
        ]


def test_an_open_transaction_hangs_after_twenty_minutes(report: kafka.LogAudit) -> None:
    carts = of(report, "carts-0")
    assert (carts.last_stable_offset, carts.first_unstable_offset, carts.log_end) == (15, 15, 34)
    (row,) = carts.open.to_pylist()
    assert (row["pid"], row["first_offset"], row["hanging"]) == (1007, 15, False)
    begun = row["last_timestamp"]
    for now, hangs in ((begun + 1_200_000, False), (begun + 1_200_001, True), ("newest", False), (None, True)):
        later = kafka.audit(DATA / "carts-0", now_ms=now)
        assert later.count_findings("hanging") == ({"hanging": 1} if hangs else {})


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_state_from_any_snapshot_is_written_as_the_broker_wrote_it(name: str, tmp_path: Path) -> None:
    snapshots = sorted((DATA / name).glob("*.snapshot"))
    assert snapshots
    for path in snapshots:
        table = fp.BrokerTable.from_kafka_snapshot(path, 3)
        table.to_kafka_snapshot(tmp_path / "again", 3)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
        # A table that computed the state writes the same producers, by pid.
        other = fp.BrokerTable.restore(table.snapshot())
        other.to_kafka_snapshot(tmp_path / "sorted", 3)
        rows = rows_of(kafka.read_snapshot(tmp_path / "sorted"))
        assert rows == sorted(rows_of(kafka.read_snapshot(path)), key=lambda row: row["pid"])


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "profiles-0"])
def test_a_replay_from_any_snapshot_gives_every_later_one(name: str, tmp_path: Path) -> None:
    rows = pa.table(kafka.read_batches(DATA / name))
    snapshots = sorted((DATA / name).glob("*.snapshot"))
    for start in snapshots:
        partition = int(name.rpartition("-")[2])
        table = fp.BrokerTable.from_kafka_snapshot(start, partition)
        done = int(start.stem)
        for path in snapshots[snapshots.index(start) + 1 :]:
            offsets = np.asarray(rows["base_offset"])
            part = rows.filter(pa.array((offsets >= done) & (offsets < int(path.stem))))
            verdicts = table.apply(part, fp.BatchColumns.kafka_log())
            assert set(np.asarray(verdicts.kept)) <= {True}
            table.to_kafka_snapshot(tmp_path / "computed", partition)
            computed = {row["pid"]: row for row in rows_of(kafka.read_snapshot(tmp_path / "computed"))}
            assert computed == {row["pid"]: row for row in rows_of(kafka.read_snapshot(path))}
            done = int(path.stem)


# What is taken out, doubled or damaged


def moved(batch: bytes, offset: int) -> bytes:
    """The same batch at another offset, which its checksum does not cover."""
    return struct.pack(">q", offset) + batch[8:]


def offsets_of(batch: bytes) -> tuple[int, int]:
    base, delta = struct.unpack_from(">q", batch)[0], struct.unpack_from(">i", batch, 23)[0]
    return base, base + delta


def rewritten(tmp_path: Path, name: str, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    """A log with the changed batches in sequence, as after an unclean election."""
    folder = tmp_path / name
    folder.mkdir()
    offset, out = 0, []
    for batch in change(list(batches_in(DATA / name))):
        base, last = offsets_of(batch)
        out.append(moved(batch, offset))
        offset += last - base + 1
    (folder / f"{0:020}.log").write_bytes(b"".join(out))
    return folder


def header(batch: bytes) -> dict[str, int]:
    pid, epoch, base_seq = struct.unpack_from(">qhi", batch, 43)
    return {"pid": pid, "epoch": epoch, "base_seq": base_seq}


def test_sequences_that_the_broker_lost_are_reported(tmp_path: Path) -> None:
    rows = rows_of(kafka.read_batches(DATA / "clicks-0"))
    # Of each of three producers what lies between its first and its last batch.
    of_pids = [[at for at, row in enumerate(rows) if row["pid"] == pid] for pid in sorted({row["pid"] for row in rows})]
    lost = {at for of_pid in sorted(of_pids, key=len)[-3:] for at in of_pid[1:-1][:2]}
    assert len(lost) == 6
    folder = rewritten(tmp_path, "clicks-0", lambda batches: [it for n, it in enumerate(batches) if n not in lost])
    (found,) = kafka.audit(folder).partitions
    gone = sum(rows[at]["last_seq"] - rows[at]["base_seq"] + 1 for at in lost)
    reported = found.missing.to_pylist()
    assert found.count_findings() == dict.fromkeys(FINDINGS, 0) | {"missing": gone}
    for row in reported:
        of_pid = [rows[at] for at in sorted(lost) if rows[at]["pid"] == row["pid"]]
        assert row["first_seq"] == of_pid[0]["base_seq"]
        assert row["last_seq"] == of_pid[-1]["last_seq"]
        behind = rows_of(kafka.read_batches(folder))
        (after,) = (it for it in behind if (it["segment"], it["position"]) == (row["segment"], row["position"]))
        assert (after["pid"], after["base_seq"], after["base_offset"]) == (
            row["pid"],
            row["last_seq"] + 1,
            row["offset"],
        )
    assert {row["pid"] for row in reported} == {rows[at]["pid"] for at in lost}


def test_a_batch_that_was_written_twice_is_reported(tmp_path: Path) -> None:
    folder = rewritten(tmp_path, "clicks-1", lambda batches: [*batches[:12], batches[4], *batches[12:]])
    (found,) = kafka.audit(folder).partitions
    rows = rows_of(kafka.read_batches(folder))
    # What follows its repeat continues from there: the state is that of a follower, which records what it finds.
    repeat = rows[12]
    assert found.repeated.to_pylist()[0] | {"expected": None} == {
        **{name: repeat[name] for name in ("pid", "epoch", "base_seq", "last_seq", "segment", "position")},
        "offset": repeat["base_offset"],
        "expected": None,
    }
    assert found.count_findings()["repeated"] == 1


def test_a_fenced_producer_that_wrote_nevertheless_is_reported(tmp_path: Path) -> None:
    def zombie(batches: list[bytes]) -> list[bytes]:
        epochs = [header(batch)["epoch"] for batch in batches]
        at = epochs.index(max(epochs))
        return [*batches[: at + 1], batches[0], *batches[at + 1 :]]

    folder = rewritten(tmp_path, "payments-0", zombie)
    (found,) = kafka.audit(folder).partitions
    assert found.count_findings()["fenced"] == 1
    first = rows_of(kafka.read_batches(DATA / "payments-0"))[0]
    (reported,) = found.fenced.to_pylist()
    assert {name: reported[name] for name in ("pid", "epoch", "base_seq")} == {
        name: first[name] for name in ("pid", "epoch", "base_seq")
    }


def test_a_snapshot_and_an_index_of_another_log_differ(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    entries = rows_of(kafka.read_snapshot(folder / "00000000000000000140.snapshot"))
    table = fp.BrokerTable.from_kafka_snapshot(folder / "00000000000000000140.snapshot", 0)
    pid = entries[0]["pid"]
    table.apply({"pid": np.array([pid]), "epoch": np.array([9]), "partition": np.array([0]), "base_seq": np.array([0]),
                 "count": np.array([3]), "offset": np.array([500]), "timestamp": np.array([5]),
                 "transactional": np.array([True])})  # fmt: skip
    table.to_kafka_snapshot(folder / "00000000000000000140.snapshot", 0)
    index = folder / "00000000000000000127.txnindex"
    last = rows_of(kafka.read_aborted(index))[-1]
    index.write_bytes(index.read_bytes()[:-34])
    (found,) = kafka.audit(folder).partitions
    assert found.count_findings() | {"snapshot": 0, "index": 0} == dict.fromkeys(FINDINGS, 0)
    assert [row["file"] for row in found.snapshots.to_pylist() if row["verdict"] == "differs"] == [
        "00000000000000000140.snapshot"
    ]
    differing = {row["field"]: row["in_snapshot"] for row in found.differences.to_pylist() if row["pid"] == pid}
    assert differing["epoch"] == 9
    assert differing["last_offset"] == 502
    (only,) = found.index.to_pylist()
    assert only == {**last, "only_in": "log"}


def test_a_log_that_retention_cut_begins_with_its_snapshot(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    (folder / "00000000000000000000.log").unlink()
    (found,) = kafka.audit(folder).partitions
    assert (found.log_start, found.known_from) == (156, "00000000000000000156.snapshot")
    assert found.count_findings() == dict.fromkeys(FINDINGS, 0)
    assert {row["file"]: row["verdict"] for row in found.snapshots.to_pylist()} == {
        f"{offset:020}.snapshot": "before" if offset == 156 else "equal" for offset in (156, 268, 271, 489, 684, 733)
    }
    # Without the snapshot, the log does not show which producers were known before.
    (folder / "00000000000000000156.snapshot").unlink()
    (found,) = kafka.audit(folder).partitions
    assert found.known_from is None
    assert found.count_findings()["missing"] == 0


def test_a_log_that_begins_with_a_marker_lacks_nothing_before_it(tmp_path: Path) -> None:
    """Without the snapshot at its beginning, whether older ones are there or not; and each segment by itself."""
    with kafka.PartitionLog(tmp_path / "whole" / "t-0", segment_bytes=200) as log:
        for number in range(5):
            log.append(7, 0, 10 * number, [b"x"] * 10, transactional=True)
            log.append_marker(7, 0, "commit", transaction_version=1)
    segments = sorted(log.path.glob("*.log"))
    assert len(segments) > 5
    for at, segment in enumerate(segments):
        assert kafka.audit(segment).count_findings() == {}
        for snapshots in (0, 1):
            folder = tmp_path / str(at) / str(snapshots) / "t-0"
            folder.mkdir(parents=True)
            older = [it for it in log.path.glob("*.snapshot") if int(it.stem) < int(segment.stem)]
            for path in [*segments[at:], *sorted(older)[-snapshots:][:snapshots]]:
                shutil.copy(path, folder)
            (found,) = kafka.audit(folder).partitions
            assert (found.count_findings(), found.known_from) == (dict.fromkeys(FINDINGS, 0), None)


def test_a_log_that_begins_within_a_transaction_agrees_with_its_files(tmp_path: Path) -> None:
    """With and without the snapshot at its beginning."""
    with kafka.PartitionLog(tmp_path / "whole" / "t-0", segment_bytes=200) as log:
        for number, outcome in enumerate(("commit", "abort", "abort")):
            for half in range(2):
                log.append(7, 0, 20 * number + 10 * half, [b"x"] * 10, transactional=True)
            log.append_marker(7, 0, outcome, coordinator_epoch=3, transaction_version=1)  # type: ignore[arg-type]
            log.append(8, 0, 5 * number, [b"x"] * 5)
    segments = sorted(log.path.glob("*.log"))
    for at, segment in enumerate(segments):
        for name in ("with", "without"):
            folder = tmp_path / str(at) / name / "t-0"
            folder.mkdir(parents=True)
            for path in log.path.iterdir():
                if path.suffix in (".log", ".txnindex", ".snapshot") and int(path.stem) >= int(segment.stem):
                    shutil.copy(path, folder)
            if name == "without":
                folder.joinpath(f"{segment.stem}.snapshot").unlink(missing_ok=True)
            (found,) = kafka.audit(folder).partitions
            assert found.count_findings() == dict.fromkeys(FINDINGS, 0), (segment.name, name)
    [index, *_] = sorted(folder.parents[2].joinpath("0", "with", "t-0").glob("*.txnindex"))
    shutil.copy(index, folder)
    (found,) = kafka.audit(folder).partitions
    assert found.count_findings()["index"] == 1, "the marker is not in the log"


def test_a_marker_before_the_log_begins_is_not_a_difference(tmp_path: Path) -> None:
    """A snapshot does not say at which offset it saw the marker of a producer that wrote nothing after it."""
    with kafka.PartitionLog(tmp_path / "t-0", segment_bytes=150) as log:
        log.append(7, 0, 0, [b"x"], transactional=True)
        log.append_marker(7, 1, "commit")
        for number in range(4):
            log.append(8, 0, number, [b"x"])
    first, second, *_ = sorted(log.path.glob("*.log"))
    first.unlink()
    second.with_suffix(".snapshot").unlink()
    (found,) = kafka.audit(log.path).partitions
    assert found.known_from is None
    assert {it["pid"]: it["in_log"] for it in found.differences.to_pylist()} == {7: None}
    assert found.count_findings() == dict.fromkeys(FINDINGS, 0)


@pytest.mark.parametrize("ending", [".log", ".snapshot"])
def test_files_that_retention_removes_during_an_audit_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    waiting = sorted(folder.glob(f"*{ending}"))[:2]

    def list_and_remove(path: str, options: Any = None) -> Any:
        log = open_log(path, options)
        if waiting:
            waiting.pop(0).unlink()
        return log

    monkeypatch.setattr(replay, "open_log", list_and_remove)
    (found,) = kafka.audit(tmp_path).partitions
    assert not waiting
    assert (found.count_findings(), found.damage) == (dict.fromkeys(FINDINGS, 0), ())
    assert found.log_start == (271 if ending == ".log" else 0)


def test_an_index_entry_of_a_batch_that_is_written_meanwhile_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    path = sorted(it for it in folder.glob("*.log") if it.stat().st_size)[-1]
    for later in folder.glob("*.log"):
        if later > path:
            later.unlink()
    last = rows_of(kafka.read_batches(path))[-1]
    entry = struct.pack(">II", last["last_offset"] + 1 - int(path.stem), last["position"] + last["bytes"])
    index = path.with_suffix(".index")
    index.write_bytes((index.read_bytes() if index.exists() else b"").rstrip(b"\0") + entry)
    (found,) = kafka.audit(folder).partitions
    assert [it.kind for it in found.damage] == ["index"], "no batch is there"
    whole = replay._batched

    def append_after(stream: Any) -> Any:
        yield from whole(stream)
        data = path.read_bytes()[last["position"] :]
        path.write_bytes(path.read_bytes() + moved(data, last["last_offset"] + 1))

    monkeypatch.setattr(replay, "_batched", append_after)
    (found,) = kafka.audit(folder).partitions
    assert found.damage == ()


def test_an_idle_producer_that_the_broker_forgot_is_not_a_difference(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-1", tmp_path / "clicks-1")
    last = sorted(folder.glob("*.snapshot"))[-1]
    entries = rows_of(kafka.read_snapshot(last))
    oldest = min(entries, key=lambda row: row["timestamp"])
    newest = max(row["timestamp"] for row in entries)
    table = fp.BrokerTable.from_kafka_snapshot(last, 0, max_idle_ms=newest - oldest["timestamp"])
    assert table.evict(newest) >= 1
    table.to_kafka_snapshot(last, 0)
    limit = newest - oldest["timestamp"]
    (found,) = kafka.audit(folder, max_idle_ms=limit).partitions
    assert found.count_findings()["snapshot"] == 0
    assert found.snapshots.to_pylist()[-1]["expired"] >= 1
    (found,) = kafka.audit(folder).partitions
    assert found.count_findings()["snapshot"] == 1


def test_a_compacted_transaction_is_not_hanging(tmp_path: Path) -> None:
    folder = rewritten(tmp_path, "orders-0", lambda batches: batches)
    (path,) = folder.glob("*.log")
    [*_, last] = batches_in(folder)
    end = offsets_of(last)[1] + 1
    empty = struct.pack(">qiibIhiqqqhii", end, 61 - 12, 0, 2, 0, 0x10, 4, -1, 5, 77, 0, 0, 0)
    path.write_bytes(path.read_bytes() + empty)
    (found,) = kafka.audit(folder).partitions
    assert found.compacted
    assert (found.log_end, found.last_stable_offset, len(found.open)) == (end + 5, end + 5, 0)


def test_damage_is_a_finding_and_what_can_be_read_is_audited(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-2", tmp_path / "clicks-2")
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-20])
    snapshot = sorted(folder.glob("*.snapshot"))[0]
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    (found,) = kafka.audit(folder).partitions
    assert {finding.kind for finding in found.damage} >= {"torn", "snapshot"}
    assert found.batches == 59
    text = str(kafka.audit(folder))
    assert f"damage (torn): {last}" in text
    assert str(snapshot) in text


def test_a_partition_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(DATA / "clicks-2", tmp_path / "clicks-2")
    (tmp_path / "empty-0").mkdir()
    (tmp_path / "odd-0").mkdir()
    (tmp_path / "odd-0" / ("0" * 20 + ".log")).mkdir()
    report = kafka.audit(tmp_path)
    clicks, empty, odd = report.partitions
    assert (clicks.batches, clicks.damage) == (kafka.audit(DATA / "clicks-2").partitions[0].batches, ())
    assert [(it.topic, it.partition, it.batches, it.log_end) for it in (empty, odd)] == [
        ("empty", 0, 0, None),
        ("odd", 0, 0, None),
    ]
    assert [(it.kind, it.path) for it in empty.damage] == [("unreadable", str(tmp_path / "empty-0"))]
    assert len(odd.damage) == 1
    assert report.count_findings("damage") == {"damage": 2}
    assert "no segments (*.log) in this folder" in str(report)
    with pytest.raises(fp.SourceError, match="no segments"):
        kafka.audit(tmp_path / "empty-0")


def cut_out(folder: Path, batch: dict[str, Any]) -> None:
    """Remove a batch from its segment, like damage or compaction."""
    path = folder / batch["segment"]
    data = path.read_bytes()
    path.write_bytes(data[: batch["position"]] + data[batch["position"] + batch["bytes"] :])


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "profiles-0"])
def test_a_batch_that_was_cut_out_is_missing_unless_the_log_is_compacted(name: str, tmp_path: Path) -> None:
    """Any batch of any log except the last ones, whose loss cannot be detected."""
    whole = rows_of(kafka.read_batches(DATA / name))
    for at in range(0, len(whole) - 1, 7):
        folder = shutil.copytree(DATA / name, tmp_path / str(at) / name)
        batch = whole[at]
        cut_out(folder, batch)
        count = batch["last_offset"] - batch["base_offset"] + 1
        for policy in ("delete", "unknown"):
            (found,) = kafka.audit(folder, cleanup_policy=policy).partitions
            (hole,) = found.holes.to_pylist()
            wanted = {"first_offset": batch["base_offset"], "last_offset": batch["last_offset"], "count": count}
            behind = {"segment": whole[at + 1]["segment"]}
            assert hole | {"position": None} == wanted | behind | {"position": None}
            assert (found.compacted, found.cleanup_policy) == (False, policy)
            assert found.count_findings()["missing"] == count
        (found,) = kafka.audit(folder, cleanup_policy="compact").partitions
        assert (found.compacted, found.count_findings()["missing"], len(found.holes)) == (True, 0, 1)


def test_a_removed_segment_is_reported_as_missing(tmp_path: Path) -> None:
    """A middle segment, the first batches of the first one, and the last ones if files of the broker show them."""
    names = ["clicks-0", "orders-0", "events-0"]
    for name in names:
        folder = shutil.copytree(DATA / name, tmp_path / name)
        segments = sorted(it for it in folder.glob("*.log") if it.stat().st_size)
        rows = rows_of(kafka.read_batches(folder))
        gone = segments[len(segments) // 2 if len(segments) > 2 else -1]
        lost = [row for row in rows if row["segment"] == gone.name]
        gone.unlink() if len(segments) > 1 else gone.write_bytes(b"")
        (found,) = kafka.audit(folder, cleanup_policy="delete").partitions
        (hole,) = found.holes.to_pylist()
        assert (hole["first_offset"], hole["last_offset"]) == (lost[0]["base_offset"], lost[-1]["last_offset"])
        assert found.count_findings()["missing"] == hole["count"]


def test_a_batch_with_fewer_records_than_offsets_shows_compaction() -> None:
    (found,) = kafka.audit(DATA / "profiles-0").partitions
    assert (found.compacted, found.cleanup_policy, found.removed > 0) == (True, "unknown", True)
    lost = sum(found.holes["count"].to_pylist()) + found.removed
    (found,) = kafka.audit(DATA / "profiles-0", cleanup_policy="delete").partitions
    assert not found.compacted
    assert found.count_findings()["missing"] == lost > 0
    (found,) = kafka.audit(DATA / "profiles-0", cleanup_policy={"profiles": "compact", "*": "delete"}).partitions
    assert (found.compacted, found.count_findings()["missing"]) == (True, 0)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted_unless_they_are_named(topic: str, tmp_path: Path) -> None:
    """A user who passes a policy for all topics does not think of Kafka's own."""
    folder = shutil.copytree(DATA / "profiles-0", tmp_path / f"{topic}-0")
    for policy in ("unknown", "delete", {"*": "delete"}, {topic: "unknown", "*": "delete"}):
        (found,) = kafka.audit(folder, cleanup_policy=policy).partitions
        assert (found.compacted, found.count_findings()["missing"]) == (True, 0)
    (found,) = kafka.audit(folder, cleanup_policy={topic: "delete"}).partitions
    assert (found.compacted, found.count_findings()["missing"] > 0) == (False, True)


def test_a_snapshot_behind_the_last_batch_names_what_compaction_removed(tmp_path: Path) -> None:
    """The newest segment is empty, and nothing is left of the end of the one before."""
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    *_, last = sorted(it for it in folder.glob("*.log") if it.stat().st_size)
    end = rows_of(kafka.read_batches(folder))[-1]["last_offset"] + 1
    last.write_bytes(b"")
    verdicts = {}
    for policy in ("compact", "delete"):
        (found,) = kafka.audit(folder, cleanup_policy=policy).partitions
        verdicts[policy] = found.snapshots.to_pylist()[-1]["verdict"]
        assert found.snapshots.to_pylist()[-1]["offset"] == end
        assert found.count_findings()["snapshot"] == (policy == "delete")
    assert verdicts == {"compact": "compacted", "delete": "differs"}


def test_transactions_that_compaction_has_removed_agree_with_the_files_of_the_broker(tmp_path: Path) -> None:
    """Kafka keeps index entries as long as their markers, and a snapshot for each segment that is left."""
    with kafka.PartitionLog(tmp_path / "t-0", segment_bytes=200) as log:
        log.append(7, 0, 0, [b"x"], transactional=True)  # 0
        log.append_marker(7, 1, "commit")  # 1
        log.append(8, 0, 0, [b"x"], transactional=True)  # 2
        log.append(8, 0, 1, [b"x"], transactional=True)  # 3, where a segment ends
        log.append_marker(8, 1, "abort")  # 4
        log.append(7, 1, 0, [b"x"], transactional=True)  # 5
        log.append_marker(7, 2, "abort")  # 6
        log.append(7, 2, 0, [b"x"])  # 7
    rows = rows_of(kafka.read_batches(log.path))
    assert kafka.audit(log.path).count_findings() == {}
    removed = {0, 1, 2, 5}
    for row in reversed(rows):
        if row["base_offset"] in removed:
            cut_out(log.path, row)
    (found,) = kafka.audit(log.path, cleanup_policy="compact").partitions
    assert found.count_findings() == dict.fromkeys(FINDINGS, 0)
    assert "compacted" in found.snapshots["verdict"].to_pylist()
    assert found.snapshots["verdict"].to_pylist()[-1] == "equal"
    # An entry without its marker, and a marker without its entry, are findings.
    cut_out(log.path, next(it for it in rows_of(kafka.read_batches(log.path)) if it["base_offset"] == 6))
    (found,) = kafka.audit(log.path, cleanup_policy="compact").partitions
    assert [(it["last_offset"], it["only_in"]) for it in found.index.to_pylist()] == [(6, "index")]


def test_a_compacted_log_agrees_with_snapshots_of_what_it_still_has(tmp_path: Path) -> None:
    """A producer of which nothing was removed is compared."""
    with kafka.PartitionLog(tmp_path / "t-0", segment_bytes=150) as log:
        for number in range(3):
            log.append(7, 0, number, [b"x"])
            log.append(8, 0, number, [b"x"])
    cut_out(log.path, rows_of(kafka.read_batches(log.path))[0])
    last = sorted(log.path.glob("*.snapshot"))[-1]
    assert kafka.audit(log.path, cleanup_policy="compact").count_findings() == {}
    table = fp.BrokerTable.from_kafka_snapshot(last, 0)
    batch = {"pid": 8, "epoch": 1, "partition": 0, "base_seq": 0, "count": 1, "offset": 4}
    table.apply(pa.Table.from_pylist([batch]))
    table.to_kafka_snapshot(last, 0)
    assert kafka.audit(log.path, cleanup_policy="compact").count_findings() == {"snapshot": 1}


def test_a_compacted_log_reports_the_numbers_that_it_skips(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-2", tmp_path / "clicks-2")
    rows = rows_of(kafka.read_batches(folder))
    cut = next(it for it in rows[5:] if it["pid"] >= 0 and it["control"] is None)
    cut_out(folder, cut)
    (found,) = kafka.audit(folder, cleanup_policy="compact").partitions
    assert found.count_findings()["missing"] == 0
    assert sum(found.missing["count"].to_pylist()) == cut["count"]
    assert f"compacted, so steps over {cut['count']:,} are" in found.to_text()
    (found,) = kafka.audit(folder).partitions
    assert '(cleanup policy "compact")' in found.to_text()


@pytest.mark.parametrize("name", ["orders-0", "frames-0"])
def test_checksums_detect_every_batch_that_was_changed(name: str, tmp_path: Path) -> None:
    """One bit anywhere after the length of a batch: in one batch, in several, in consecutive ones."""
    rows = rows_of(kafka.read_batches(DATA / name))
    (clean,) = kafka.audit(DATA / name, checksums=True).partitions
    assert (clean.damage, clean.checksums) == ((), True)
    chance = random.Random(3)
    for number in range(25):
        folder = shutil.copytree(DATA / name, tmp_path / str(number) / name)
        at = chance.randrange(len(rows))
        bent = rows[at : at + 2] if number % 2 else chance.sample(rows, 3)
        for row in bent:
            path = folder / row["segment"]
            flip(path, row["position"] + chance.randrange(61, row["bytes"]), 1 << chance.randrange(8))
        (unseen,) = kafka.audit(folder, checksums=False).partitions
        (found,) = kafka.audit(folder, checksums=True).partitions
        places = {(Path(it.path).name, it.position) for it in found.damage if it.kind == "content"}
        assert places == {(row["segment"], row["position"]) for row in bent} - {
            (Path(it.path).name, it.position) for it in unseen.damage if it.kind != "gap"
        }
        assert found.count_findings()["damage"] >= len(bent)
        assert "content" not in {it.kind for it in unseen.damage}


@pytest.mark.parametrize(("at", "bit"), [(51, 0x80), (43, 0x80), (53, 0x80), (22, 0x10)])
def test_an_impossible_producer_in_a_header_is_damage(at: int, bit: int, tmp_path: Path) -> None:
    """Of epoch, pid and sequence the sign; of a batch without a producer the bit of transactions."""
    logs, folder = tmp_path / "logs", tmp_path / "logs" / "orders-0"
    for name in ("orders-0", "orders-1"):
        with kafka.PartitionLog(logs / name) as log:
            log.append(7, 0, 0, [b"one"])
            log.append(*((-1, -1, -1) if at == 22 else (7, 0, 1)), [b"two"])
            log.append(9, 0, 0, [b"three"], transactional=True)
            log.append_marker(9, 1, "commit")
    path = folder / f"{0:020}.log"
    position = rows_of(kafka.read_batches(folder))[1]["position"]
    flip(path, position + at, bit)
    damaged, whole = kafka.audit(logs).partitions
    [found] = damaged.damage
    assert (found.kind, found.path, found.position) == ("field", str(path), position)
    assert (damaged.batches, damaged.holes["first_offset"].to_pylist()) == (3, [1])
    assert (whole.damage, whole.batches) == ((), 4)
    with pytest.raises(fp.SourceError, match=r": impossible$") as info:
        DedupJob(KafkaLog(logs), tmp_path / "state", tmp_path / "sink").run()
    assert (info.value.path, info.value.position) == (str(path), position)
    source = Source(str(folder), "read_committed", {}, salvages=True)
    parts = [rows for part in source.parts() for rows in source.rows(part, "records")]
    assert [value for rows in parts for value in rows["value"].to_pylist()] == [b"one", b"three"]
    assert any(found.reason in it for it in source.missing)


def test_a_gap_does_not_hide_the_damaged_batch_behind_it(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    _, gone, behind, *_ = sorted(folder.glob("*.log"))
    gone.unlink()
    flip(behind, 70)
    (found,) = kafka.audit(folder, checksums=True, cleanup_policy="compact").partitions
    assert [(it.kind, Path(it.path).name, it.position) for it in found.damage if it.kind != "index"] == [
        ("gap", behind.name, 0),
        ("content", behind.name, 0),
    ]
    assert found.count_findings()["damage"] == 1


# The report


def test_the_report_is_text_json_and_tables(report: kafka.LogAudit) -> None:
    text = str(report)
    assert "carts-0: " in text
    assert "offsets        0 to 34, stable to 15; newest 2026-11-" in text
    assert "3 equal, 1 compacted" in text
    # Ids and times as they are copied and read, counts with separators.
    begun = report.table("open").to_pylist()[0]["last_timestamp"]
    time = datetime.fromtimestamp(begun / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert f"  1007      0            15           18  {time}    False" in text
    assert text.splitlines()[-2:] == [
        "total: 12 partitions, 0 with findings; 27 segments, 506 batches, 2,421 records, 126,877 bytes",
        "  found          nothing",
    ]
    parsed = json.loads(report.to_json())
    assert [it["topic"] for it in parsed["partitions"]] == [name.rpartition("-")[0] for name in PARTITIONS]
    assert parsed["partitions"][0]["open"][0]["first_offset"] == 15
    frames = report.to_pandas()
    assert set(frames) == {
        "producers", "missing", "holes", "repeated", "fenced", "open", "aborted", "snapshots", "differences", "index"
    }  # fmt: skip
    assert list(frames["open"].columns[:3]) == ["topic", "partition", "pid"]
    with pytest.raises(fp.PolicyError, match="unknown finding 'lost'"):
        report.count_findings("lost")
    with pytest.raises(fp.PolicyError, match="unknown table 'lost'"):
        report.table("lost")


def test_only_partitions_with_findings_are_shown_and_all_are_summed(tmp_path: Path) -> None:
    for name in ("clicks-0", "orders-0"):
        shutil.copytree(DATA / name, tmp_path / name)
    cut = rows_of(kafka.read_batches(tmp_path / "orders-0"))[3]
    cut_out(tmp_path / "orders-0", cut)
    report = kafka.audit(tmp_path, now_ms="newest")
    text = report.to_text(only_findings=True)
    assert "orders-0: " in text
    assert "clicks-0: " not in text
    count = cut["last_offset"] - cut["base_offset"] + 1
    assert "total: 2 partitions, 1 with findings; " in text
    assert f"missing {count:,}" in text.splitlines()[-1]
    parsed = json.loads(report.to_json(only_findings=True))
    assert [it["topic"] for it in parsed["partitions"]] == ["orders"]
    assert parsed["total"] == report.total()
    assert report.total()["batches"] == sum(it.batches for it in report.partitions)
    assert [it["topic"] for it in json.loads(report.to_json())["partitions"]] == ["clicks", "orders"]


@pytest.mark.parametrize("kind", ["damage", "missing"])
def test_a_nightly_check_of_a_log_with_a_hole_fails(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "logs" / "clicks-0")
    rows = rows_of(kafka.read_batches(folder))
    command = ["kafka", "audit", str(tmp_path / "logs"), "--fail-on", kind, "--only-findings"]
    assert cli.main([*command, "--checksums", "--cleanup-policy", "delete", "--now-ms", "newest"]) == cli.EXIT_CLEAN
    assert "clicks-0: " not in capsys.readouterr().out
    if kind == "missing":
        cut_out(folder, rows[4])
    else:
        path = folder / rows[4]["segment"]
        flip(path, rows[4]["position"] + 70)
    assert cli.main([*command, "--checksums", "--cleanup-policy", "delete"]) == cli.EXIT_FINDINGS
    out, err = capsys.readouterr()
    assert "clicks-0: " in out
    assert f"found: {kind}" in err
    is_lost = kind == "missing"
    assert cli.main(command) == (cli.EXIT_FINDINGS if is_lost else cli.EXIT_CLEAN)
    assert cli.main([*command, "--cleanup-policy", "clicks=compact"]) == cli.EXIT_CLEAN
    capsys.readouterr()
    for bad in (["--cleanup-policy", "keep"], ["--cleanup-policy", "a=b"], ["--now-ms", "later"], ["--now-ms", "-1"]):
        assert cli.main([*command, *bad]) == cli.EXIT_USAGE
        assert bad[1] in capsys.readouterr().err
    with pytest.raises(fp.PolicyError, match="cleanup_policy='keep': expected one of delete, compact, unknown"):
        kafka.audit(folder, cleanup_policy="keep")
    with pytest.raises(fp.PolicyError, match="now_ms='later'"):
        kafka.audit(folder, now_ms="later")  # type: ignore[arg-type]


def test_an_audit_that_read_no_batch_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs" / "orders-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").write_bytes(b"")
    for source in (folder, tmp_path / "logs"):
        assert cli.main(["kafka", "audit", str(source), "--fail-on", ",".join(FINDINGS)]) == cli.EXIT_NOTHING
        assert f"{source}: no batch was read; --allow-empty accepts that" in capsys.readouterr().err
        assert cli.main(["kafka", "audit", str(source), "--quiet"]) == cli.EXIT_NOTHING
        assert capsys.readouterr() == ("", "")
        assert cli.main(["kafka", "audit", str(source), "--allow-empty"]) == cli.EXIT_CLEAN
        capsys.readouterr()


def test_the_command_has_an_exit_code_for_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carts = ["kafka", "audit", str(DATA / "carts-0"), "--fail-on", ",".join(FINDINGS)]
    assert cli.main([*carts, "--now-ms", "newest"]) == cli.EXIT_CLEAN
    assert "stable to 15" in capsys.readouterr().out
    folder = rewritten(tmp_path, "clicks-0", lambda batches: batches[:5] + batches[6:])
    assert cli.main(["kafka", "audit", str(folder), "--fail-on", "missing"]) == cli.EXIT_FINDINGS
    assert "found: missing" in capsys.readouterr().err
    assert cli.main(["kafka", "audit", str(folder), "--json"]) == cli.EXIT_CLEAN
    assert json.loads(capsys.readouterr().out)["found"].keys() == {"missing"}
    assert cli.main(["kafka", "audit", str(folder), "--fail-on", "lost"]) == cli.EXIT_USAGE
    assert cli.main(["kafka", "audit", str(tmp_path / "nowhere")]) == cli.EXIT_ERROR
    assert "nowhere: no such file" in capsys.readouterr().err


# Sequences, against a loop


Batch = tuple[int, int, int, int, bool]
"""pid, epoch, base_seq, last_seq, whether it is a marker."""


def followed(rows: list[Batch], is_whole: bool) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Steps (row, expected, missing) and fenced rows, one row after the other."""
    known: dict[int, tuple[int, int | None]] = {}
    steps, fenced = [], []
    for at, (pid, epoch, base_seq, last_seq, is_marker) in enumerate(rows):
        if pid < 0 or (base_seq < 0 and not is_marker):
            continue
        stood = known.get(pid)
        if stood is not None and epoch < stood[0]:
            fenced += [] if is_marker else [at]
        elif is_marker:
            if stood is None or epoch > stood[0]:
                known[pid] = (epoch, -1 if stood or is_whole else None)
        else:
            if stood is not None:
                expected = 0 if epoch > stood[0] else None if stood[1] is None else (stood[1] + 1) & MAX
                if expected is not None and base_seq != expected:
                    ahead = (base_seq - expected) & MAX
                    steps.append((at, expected, ahead if ahead <= MAX // 2 else 0))
            known[pid] = (epoch, last_seq)
    return steps, fenced


def drawn(chance: random.Random) -> list[Batch]:
    rows: list[Batch] = []
    at: dict[int, tuple[int, int]] = {}
    for _ in range(chance.randint(1, 60)):
        pid = chance.choice([-1, 1, 2, 2**40])
        epoch, following = at.get(pid, (0, 0))
        epoch = max(0, epoch + (chance.choice([-1, 1]) if chance.random() < 0.15 else 0))
        base_seq = chance.choice([following, following, following, 0, (following + 3) & MAX, MAX - 1])
        last_seq = (base_seq + chance.randint(0, 4)) & MAX
        if chance.random() < 0.05:
            base_seq = last_seq = -1
        rows.append((pid, epoch, base_seq, last_seq, chance.random() < 0.2))
        at[pid] = (epoch, (last_seq + 1) & MAX)
    return rows


def test_sequences_are_followed_as_a_loop_would() -> None:
    found = 0
    for seed in range(400):
        chance = random.Random(seed)
        rows = drawn(chance)
        is_whole = seed % 2 == 0
        sequences, steps, fenced, done = Sequences(is_whole), [], [], 0
        while done < len(rows):
            part = rows[done : done + chance.randint(1, 20)]
            *numbers, is_marker = (np.array(column) for column in zip(*part, strict=True))
            jumps, below = sequences.apply(*(it.astype(np.int64) for it in numbers), is_marker)
            steps += [
                (int(row) + done, int(expected), int(missing)) for row, expected, missing in zip(*jumps, strict=True)
            ]
            fenced += [int(row) + done for row in below]
            done += len(part)
        assert (steps, fenced) == followed(rows, is_whole), f"seed {seed}"
        found += len(steps) + len(fenced)
    assert found > 1000
