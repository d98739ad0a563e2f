"""Kafka's log: partition folders that a broker wrote, compared with their truth files, and damaged ones."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import kafka
from fencepost.kafka.source import Segment, find_partitions, open_log, topic_and_partition
from fencepost.state.stores import open_store
from support.interpreter import assert_released
from support.kafka_logs import DATA, PARTITIONS, flip, read_csv, rows_of
from support.s3_server import BUCKET, s3_options


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    with gzip.open(DATA / "ground_truth.json.gz") as file:
        found: dict[str, Any] = json.load(file)
    return found


def pulled(stream: Any) -> Iterator[dict[str, Any]]:
    """Row by row, so that those before an error are seen."""
    for batch in stream:
        yield from pa.record_batch(batch).to_pylist()


def before_error(stream: Any) -> tuple[list[dict[str, Any]], fp.SourceError | None]:
    rows = []
    try:
        for row in pulled(stream):
            rows.append(row)
    except fp.SourceError as error:
        return rows, error
    return rows, None


# What a broker wrote


def test_every_header_is_what_the_brokers_own_tool_prints() -> None:
    wanted = read_csv("batches.csv")
    assert len(wanted) == 506
    found = [row | {"folder": name} for name in PARTITIONS for row in rows_of(kafka.read_batches(DATA / name))]
    for row in found:
        assert f"{row['topic']}-{row['partition']}" == row["folder"]
    same = {
        "position": "position", "size": "bytes", "base_offset": "base_offset", "last_offset": "last_offset",
        "count": "count", "base_sequence": "base_seq", "last_sequence": "last_seq", "producer_id": "pid",
        "producer_epoch": "epoch", "leader_epoch": "leader_epoch", "timestamp": "max_timestamp",
    }  # fmt: skip

    def as_printed(row: dict[str, Any]) -> dict[str, str]:
        numbers = {theirs: str(row[ours]) for theirs, ours in same.items()}
        flags = {"transactional": str(row["transactional"]).lower(), "control": str(row["control"] is not None).lower()}
        texts = {"codec": row["compression"], "timestamp_type": row["timestamp_type"]}
        return {"file": f"{row['folder']}/{row['segment']}"} | numbers | flags | texts

    def key(row: dict[str, str]) -> tuple[str, int]:
        return row["file"], int(row["position"])

    printed = sorted(({name: row[name] for name in as_printed(found[0])} for row in wanted), key=key)
    assert sorted((as_printed(row) for row in found), key=key) == printed
    assert {row["compression"] for row in found} == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_the_columns_have_the_names_and_types_of_the_interface() -> None:
    names = pa.table(kafka.read_batches(DATA / "orders-0")).schema
    ints = {pa.int64(): "position base_offset last_offset pid max_timestamp", pa.int16(): "epoch"}
    ints[pa.int32()] = "partition bytes count base_seq last_seq coordinator_epoch leader_epoch"
    wanted = {name: kind for kind, several in ints.items() for name in several.split()}
    wanted |= dict.fromkeys(("topic", "segment", "timestamp_type", "control", "compression"), pa.string())
    assert {field.name: field.type for field in names} == wanted | {"transactional": pa.bool_()}
    assert " ".join(names.names) == (
        "topic partition segment position bytes base_offset last_offset count pid epoch base_seq last_seq "
        "max_timestamp timestamp_type transactional control coordinator_epoch compression leader_epoch"
    )
    records = pa.table(kafka.read_records(DATA / "orders-0", isolation="read_uncommitted")).schema
    header = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
    kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.int64()}
    kinds |= {"key": pa.binary(), "value": pa.binary(), "headers": pa.list_(pa.field("item", header, nullable=False))}
    kinds |= {"pid": pa.int64(), "epoch": pa.int16(), "seq": pa.int32()}
    assert {field.name: field.type for field in records} == kinds


def test_markers_agree_with_the_outcomes_of_the_transactions() -> None:
    for name in PARTITIONS:
        batches = rows_of(kafka.read_batches(DATA / name))
        aborted = {int(it["last_offset"]) for it in read_csv("aborted.csv") if it["file"].startswith(f"{name}/")}
        found = {it["base_offset"] for it in batches if it["control"] == "abort"}
        assert aborted <= found
        for it in batches:
            assert (it["coordinator_epoch"] is not None) == (it["control"] in ("commit", "abort"))
    outcomes = {it["control"] for name in PARTITIONS for it in rows_of(kafka.read_batches(DATA / name))}
    assert outcomes == {None, "commit", "abort"}


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def test_every_record_is_what_was_produced(truth: dict[str, Any]) -> None:
    timestamps = {(it["topic"], it["partition"], it["offset"]): it["timestamp"] for it in truth["read_committed"]}
    with_headers = with_timestamp = 0
    for name in PARTITIONS:
        found = {it["offset"]: it for it in rows_of(kafka.read_records(DATA / name, isolation="read_uncommitted"))}
        assert sorted(found) == truth["read_uncommitted_offsets"][name]
        compared = set()
        for produced in truth["produced"]:
            place = (produced["topic"], produced["partition"], produced["offset"])
            row = found.get(produced["offset"])
            if f"{place[0]}-{place[1]}" != name or produced["outcome"] == "refused" or row is None:
                continue
            assert (row["topic"], row["partition"]) == place[:2]
            assert (row["key"], row["value"]) == (encoded(produced["key"]), encoded(produced["value"]))
            headers = [{"key": key, "value": encoded(value)} for key, value in produced.get("headers", [])]
            assert row["headers"] == headers
            with_headers += bool(headers)
            compared.add(produced["offset"])
        assert compared == (set() if name.startswith("frames") else found.keys()), "those of frames are made by hand"
        for (topic, partition, offset), timestamp in timestamps.items():
            if f"{topic}-{partition}" == name:
                assert found[offset]["timestamp"] == timestamp
                with_timestamp += 1
    assert (with_headers, with_timestamp) == (24, 2074)


def test_records_have_the_identities_of_their_headers() -> None:
    without = 0
    for name in PARTITIONS:
        batches = rows_of(kafka.read_batches(DATA / name))
        records = rows_of(kafka.read_records(DATA / name, isolation="read_uncommitted"))
        for batch in batches:
            inside = [it for it in records if batch["base_offset"] <= it["offset"] <= batch["last_offset"]]
            if batch["control"] is not None:
                assert inside == []
                continue
            assert len(inside) == batch["count"]
            for it in inside:
                if batch["pid"] == -1:
                    assert (it["pid"], it["epoch"], it["seq"]) == (None, None, None)
                    without += 1
                else:
                    seq = (batch["base_seq"] + it["offset"] - batch["base_offset"]) % 2**31
                    assert (it["pid"], it["epoch"], it["seq"]) == (batch["pid"], batch["epoch"], seq)
    assert without > 10


def test_read_committed_is_what_such_a_consumer_got(truth: dict[str, Any]) -> None:
    shown = 0
    for name in PARTITIONS:
        rows = rows_of(kafka.read_records(DATA / name, isolation="read_committed"))
        wanted = [it for it in truth["read_committed"] if f"{it['topic']}-{it['partition']}" == name]
        wanted.sort(key=lambda it: it["offset"])
        assert [(it["offset"], it["key"], it["value"], it["timestamp"]) for it in rows] == [
            (it["offset"], encoded(it["key"]), encoded(it["value"]), it["timestamp"]) for it in wanted
        ]
        assert all(it["offset"] < truth["read_committed_position"][name] for it in rows)
        shown += len(rows)
    assert shown == 2074


def test_outcomes_of_a_single_segment_come_from_its_transaction_index() -> None:
    """Each segment's committed records are those of the folder, or an error says that the folder is needed."""
    decided = undecided = 0
    for name in PARTITIONS:
        of_folder = {it["offset"]: it for it in rows_of(kafka.read_records(DATA / name, isolation="read_committed"))}
        for path in sorted((DATA / name).glob("*.log")):
            rows, error = before_error(kafka.read_records(path, isolation="read_committed"))
            if error is not None:
                assert "read the folder" in str(error)
                assert (error.path, rows) == (str(path), [])
                undecided += 1
                continue
            offsets = {it["offset"] for it in rows_of(kafka.read_records(path, isolation="read_uncommitted"))}
            assert {it["offset"]: it for it in rows} == {at: it for at, it in of_folder.items() if at in offsets}
            decided += 1
    assert decided >= 20
    assert undecided >= 1


def test_a_segment_takes_the_transaction_index_at_its_word(tmp_path: Path) -> None:
    """A transaction that another segment aborts: known by the index that tiered storage keeps with a segment."""
    whole = (DATA / "carts-0" / f"{0:020}.log").read_bytes()
    batches = rows_of(kafka.read_batches(DATA / "carts-0"))
    first = next(it for it in batches if it["pid"] == 1008)
    cut = first["position"] + first["bytes"]
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(whole[:cut])
    with pytest.raises(fp.SourceError, match=r"producer 1008 at offset 5 ends in another segment .* read the folder"):
        rows_of(kafka.read_records(path, isolation="read_committed"))
    path.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 1008, 5, 9, 10))
    rows = rows_of(kafka.read_records(path, isolation="read_committed"))
    assert [it["offset"] for it in rows] == [0, 1, 2, 3]


def test_snapshots_hold_what_the_brokers_own_tool_prints() -> None:
    wanted = read_csv("snapshots.csv")
    files = sorted(DATA.glob("*/*.snapshot"))
    assert (len(files), len(wanted)) == (35, 155)
    found = []
    for path in files:
        for it in rows_of(kafka.read_snapshot(path)):
            last, delta = it["last_seq"], it["offset_delta"]
            first = -1 if last == -1 else (last - delta) % 2**31
            found.append(
                [
                    f"{path.parent.name}/{path.name}", it["pid"], it["epoch"], it["coordinator_epoch"],
                    it["txn_first_offset"], it["timestamp"], first, last, it["last_offset"], delta,
                ]
            )  # fmt: skip
    printed = [list(row.values()) for row in wanted]
    # The tool prints the timestamp of a producer and that of its last batch, -1 where there is none.
    assert sorted([str(it) for it in row] for row in found) == sorted(row[:10] for row in printed)


def test_aborted_transactions_are_what_the_brokers_own_tool_prints() -> None:
    wanted = read_csv("aborted.csv")
    found = []
    for path in sorted(DATA.glob("*/*.txnindex")):
        rows = rows_of(kafka.read_aborted(path))
        found += [[f"{path.parent.name}/{path.name}", *(str(value) for value in it.values())] for it in rows]
    assert sorted(found) == sorted(list(row.values()) for row in wanted)
    assert len(found) == 51


def test_whole_folders_hold_no_damage_and_compacted_ones_have_gaps() -> None:
    kinds = {}
    for name in PARTITIONS:
        stream = kafka.read_batches(DATA / name, damage="report")
        rows = rows_of(stream)
        assert len(rows) == len(rows_of(kafka.read_batches(DATA / name)))
        kinds[name] = {it.kind for it in stream.findings}
    assert kinds == {name: set() for name in PARTITIONS} | {"profiles-0": {"gap"}}


# Names


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c_d-17", ("a-b.c_d", 17)),
        ("orders-0.7c9f0b1e4c5d4f1c8a3b2e1d0f9a8b7c-future", ("orders", 0)),
        ("orders-3.7c9f0b1e4c5d4f1c8a3b2e1d0f9a8b7c-delete", ("orders", 3)),
        ("orders-3.7c9f0b1e4c5d4f1c8a3b2e1d0f9a8b7c-stray", ("orders", 3)),
        ("orders", (None, None)),
        ("orders-", (None, None)),
        ("orders-99999999999", (None, None)),
        ("-7", (None, None)),
    ],
)
def test_folders_give_topic_and_partition(folder: str, wanted: tuple[str | None, int | None], tmp_path: Path) -> None:
    assert topic_and_partition(folder) == wanted
    shutil.copytree(DATA / "carts-0", tmp_path / folder)
    rows = rows_of(kafka.read_batches(tmp_path / folder))
    assert {(it["topic"], it["partition"]) for it in rows} == {wanted}


def test_a_segment_has_any_name(tmp_path: Path) -> None:
    for path in (tmp_path / "object", tmp_path / f"{'9' * 20}-id.log"):
        shutil.copy(DATA / "carts-0" / f"{0:020}.log", path)
        assert len(rows_of(kafka.read_batches(path))) == 11
    path = tmp_path / "object"
    shutil.copy(DATA / "carts-0" / f"{0:020}.log", path)
    assert len(rows_of(kafka.read_batches(path))) == 11
    assert len(rows_of(kafka.read_records(str(path), isolation="read_uncommitted"))) == 30
    assert len(rows_of(kafka.read_records(f"file://{path}", isolation="read_uncommitted"))) == 30


def test_readers_refuse_other_sources_and_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="no such file") as caught:
        kafka.read_batches(tmp_path / "nowhere")
    assert caught.value.path == str(tmp_path / "nowhere")
    with pytest.raises(fp.SourceError, match=r"no segments .* carts-0, clicks-0, clicks-1, \.\.\.: read each"):
        kafka.read_records(DATA, isolation="read_uncommitted")
    with pytest.raises(fp.SourceError, match=r"no segments \(\*.log\) in this folder$"):
        kafka.read_records(tmp_path, isolation="read_uncommitted")
    with pytest.raises(fp.SourceError, match=r"cannot be read.* No such file"):
        kafka.read_snapshot(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="isolation='none'"):
        kafka.read_records(tmp_path, isolation="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="damage='ignore'"):
        kafka.read_batches(tmp_path, damage="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 536870912 are possible"):
        kafka.read_records(DATA / "carts-0", batch_bytes_max=2**30, isolation="read_uncommitted")


# Object stores


def test_an_object_store_gives_the_same_rows(endpoint: str) -> None:
    options = s3_options(endpoint)
    root = f"s3://{BUCKET}/logs"
    store = open_store(root, options=options)
    for path in (DATA / "orders-0").iterdir():
        assert store.put(f"orders-0/{path.name}", path.read_bytes())
    for isolation in ("read_uncommitted", "read_committed"):
        ours = pa.table(kafka.read_records(f"{root}/orders-0", isolation, options=options))  # type: ignore[arg-type]
        assert ours.equals(pa.table(kafka.read_records(DATA / "orders-0", isolation)))  # type: ignore[arg-type]
    batches = kafka.read_batches(f"{root}/orders-0/", options=options)
    assert pa.table(batches).equals(pa.table(kafka.read_batches(DATA / "orders-0")))
    for path in sorted((DATA / "orders-0").glob("*.log")):
        ours = kafka.read_records(f"{root}/orders-0/{path.name}", "read_committed", options=options)
        assert pa.table(ours).equals(pa.table(kafka.read_records(path, "read_committed")))
    for kind, read in (("snapshot", kafka.read_snapshot), ("txnindex", kafka.read_aborted)):
        path = sorted((DATA / "orders-0").glob(f"*.{kind}"))[0]
        found = read(f"{root}/orders-0/{path.name}", options=options)
        assert rows_of(found) == rows_of(read(path))
    with pytest.raises(fp.SourceError, match=r"no segments .* partitions orders-0: read each"):
        kafka.read_batches(root, options=options)
    with pytest.raises(fp.SourceError, match="nowhere: no segments"):
        kafka.read_batches(f"{root}/nowhere", options=options)


class Counted:
    """An object that records the requests for it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        return self.data[offset : offset + length]


def test_an_object_is_read_in_few_ranges_and_as_it_is_pulled() -> None:
    one = next(it for it in rows_of(kafka.read_batches(DATA / "clicks-0")) if it["compression"] == "none")
    segment = (DATA / "clicks-0" / one["segment"]).read_bytes()
    batch = segment[one["position"] : one["position"] + one["bytes"]]
    step = one["last_offset"] - one["base_offset"] + 1
    count = 10_000_000 // len(batch)
    data = b"".join(struct.pack(">q", number * step) + batch[8:] for number in range(count))
    thing = Counted(data)
    stream = fp._native.kafka_batches([("object", 0, thing)])
    assert thing.asked == []
    assert next(stream) is not None
    assert len(thing.asked) < 3, "not all of it"
    rows = sum(pa.record_batch(it).num_rows for it in stream)
    assert rows == count - 65_536 > 0
    assert len(thing.asked) == 3
    assert all(length <= 4 << 20 for _, length in thing.asked)


# Damage


def damaged(tmp_path: Path, change: Any) -> Path:
    path = tmp_path / "orders-0" / f"{0:020}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(change((DATA / "orders-0" / path.name).read_bytes()))
    return path


def put(at: int, field: bytes) -> Any:
    return lambda data: data[:at] + field + data[at + len(field) :]


THIRD = rows_of(kafka.read_batches(DATA / "orders-0"))[2]["position"]
DAMAGE = {
    "torn": (lambda data: data[: THIRD + 30], "30 bytes are left.* header: torn"),
    "torn in a payload": (lambda data: data[: THIRD + 70], r"the file has 70 left"),
    "zeros": (lambda data: data[:THIRD] + bytes(9000), "nothing but zeros.* 9000 bytes"),
    "magic 0": (put(THIRD + 16, b"\0"), r"format version 0 \(magic 0\)"),
    "magic 1": (put(THIRD + 16, b"\1"), r"format version 1 \(magic 1\)"),
    "magic 7": (put(THIRD + 16, b"\7"), r"\(magic 7\) is unknown"),
    "longer than the file": (put(THIRD + 8, struct.pack(">i", 10**6)), "1000012 bytes"),
    "a length below its header": (put(THIRD + 8, struct.pack(">i", 3)), "length 3"),
    "more records than offsets": (put(THIRD + 57, struct.pack(">i", 10**6)), "1000000 records"),
    "offsets that go back": (put(THIRD, struct.pack(">q", 1)), "offset 1 follows"),
    "unknown compression": (put(THIRD + 22, b"\x17"), "compression 7 is unknown"),
}


READ_ALL = partial(kafka.read_records, isolation="read_uncommitted")


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported_with_file_position_and_reason(name: str, tmp_path: Path) -> None:
    change, reason = DAMAGE[name]
    path = damaged(tmp_path, change)
    for read in (kafka.read_batches, READ_ALL):
        rows, error = before_error(read(path))
        assert error is not None
        assert (error.path, error.position) == (str(path), THIRD)
        assert error.message.startswith(f"{path}, byte {THIRD}: ")
        with pytest.raises(fp.SourceError, match=reason):
            pa.table(read(path))
        whole = rows_of(read(DATA / "orders-0"))
        assert rows == whole[: len(rows)]
        assert len(rows) == (2 if read is kafka.read_batches else sum(it["count"] for it in TWO if not it["control"]))
    stream = kafka.read_batches(path.parent, damage="report")
    assert len(rows_of(stream)) == 2
    [finding] = stream.findings
    assert (finding.path, finding.position) == (str(path), THIRD)
    assert finding.reason in str(error)


def test_a_stream_that_failed_does_not_look_like_one_that_ended(tmp_path: Path) -> None:
    path = damaged(tmp_path, next(iter(DAMAGE.values()))[0])
    for read in (kafka.read_batches, READ_ALL):
        for consume in (list, pa.table):
            stream = read(path)
            with pytest.raises(fp.SourceError):
                consume(stream)
            for again in (list, pa.table):
                with pytest.raises(ValueError, match="failed midway"):
                    again(stream)


TWO = rows_of(kafka.read_batches(DATA / "orders-0"))[:2]


def test_a_wrong_checksum_is_found_where_payloads_are_read(tmp_path: Path) -> None:
    path = damaged(tmp_path, put(THIRD + 80, b"\xff\xff\xff"))
    rows, error = before_error(kafka.read_records(path, isolation="read_uncommitted"))
    assert error is not None
    assert (error.path, error.position) == (str(path), THIRD)
    assert "CRC-32C" in str(error)
    assert len(rows) == sum(it["count"] for it in TWO if not it["control"])
    assert len(rows_of(kafka.read_batches(path))) == len(rows_of(kafka.read_batches(DATA / "orders-0" / path.name)))


def test_a_batch_above_the_limit_is_refused() -> None:
    with pytest.raises(fp.SourceError, match="more than the limit 100"):
        pa.table(kafka.read_records(DATA / "orders-0", batch_bytes_max=100, isolation="read_uncommitted"))


def small_segment() -> bytes:
    data = (DATA / "carts-0" / f"{0:020}.log").read_bytes()
    return data[: rows_of(kafka.read_batches(DATA / "carts-0"))[4]["position"]]


def test_every_truncation_leaves_the_rows_before_it(tmp_path: Path) -> None:
    data, path = small_segment(), tmp_path / "segment"
    path.write_bytes(data)
    batches, records = (
        rows_of(kafka.read_batches(path)),
        rows_of(kafka.read_records(path, isolation="read_uncommitted")),
    )
    starts = {it["position"] for it in batches} | {len(data)}
    errors = 0
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        for read, whole in ((kafka.read_batches, batches), (READ_ALL, records)):
            rows, error = before_error(read(path))
            assert rows == whole[: len(rows)]
            assert (error is None) == (length in starts)
            errors += error is not None
    assert errors == 2 * (len(data) + 1 - len(starts))


def test_a_batch_whose_changed_pid_is_that_of_an_aborted_transaction_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    with kafka.PartitionLog(folder) as log:
        log.append(6, 0, 0, [b"aborted"], transactional=True)
        log.append(7, 0, 0, [b"committed"], transactional=True)
        log.append_marker(7, 1, "commit")
        log.append_marker(6, 1, "abort")
    batch = pa.table(kafka.read_batches(folder)).to_pylist()[1]
    path = folder / batch["segment"]
    flip(path, batch["position"] + 50)  # the last byte of the pid
    with pytest.raises(fp.SourceError, match="CRC-32C") as info:
        pa.table(kafka.read_records(folder))
    assert info.value.position == batch["position"]


def test_every_flipped_byte_is_an_error_or_outside_the_checksum(tmp_path: Path) -> None:
    """Base offset and leader epoch are covered by no checksum; whatever they become, nothing breaks."""
    data, path = small_segment(), tmp_path / "segment"
    path.write_bytes(data)
    batches, records = (
        rows_of(kafka.read_batches(path)),
        rows_of(kafka.read_records(path, isolation="read_uncommitted")),
    )
    errors = 0
    for at in range(len(data)):
        path.write_bytes(put(at, bytes([data[at] ^ 0xFF]))(data))
        number, batch = max((n, it) for n, it in enumerate(batches) if it["position"] <= at)  # type: ignore[type-var]
        rows, _ = before_error(kafka.read_batches(path))
        assert rows[:number] == batches[:number]
        rows, error = before_error(kafka.read_records(path, isolation="read_uncommitted"))
        if at - batch["position"] not in {*range(8), *range(12, 16)}:
            assert error is not None
            assert error.position == batch["position"]
            assert rows == records[: len(rows)]
            errors += 1
    assert errors == len(data) - 12 * len(batches)


def test_a_segment_that_is_cut_while_it_is_read_is_an_error() -> None:
    data = small_segment()

    class Cut(Counted):
        def size(self) -> int:
            return len(data)

    stream = fp._native.kafka_records([("object", None, Cut(data[:200]))])
    with pytest.raises(fp.SourceError, match=r"object, byte 0: .* cut while"):
        pa.table(stream)


def test_a_store_that_fails_is_reported() -> None:
    class Failing(Counted):
        def read(self, offset: int, length: int) -> bytes:
            raise fp.StoreError("the store is away")

    with pytest.raises(fp.StoreError, match=r"object, byte 0: cannot be read: .*the store is away"):
        pa.table(fp._native.kafka_batches([("object", None, Failing(b"x" * 100))]))


def test_segments_that_overlap_or_leave_gaps_are_reported(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    _, second, third = sorted(folder.glob("*.log"))[:3]
    second.unlink()
    stream = kafka.read_batches(folder, damage="report")
    rows_of(stream)
    [gap] = stream.findings
    assert (gap.kind, gap.path, gap.position) == ("gap", str(third), 0)
    assert gap.reason.startswith(f"offsets {int(second.stem)} to {int(third.stem) - 1} are in no segment")
    assert rows_of(kafka.read_batches(folder))[0]["base_offset"] == 0, "which is no error"

    overlapping = folder / f"{int(third.stem) + 1:020}.log"
    shutil.copy(third, overlapping)
    with pytest.raises(fp.SourceError, match=f"{overlapping.name}, byte 0: .*begins at offset"):
        pa.table(kafka.read_batches(folder))
    stream = kafka.read_batches(folder, damage="report")
    rows_of(stream)
    assert [it.kind for it in stream.findings] == ["gap", "overlap"]


def test_an_index_that_disagrees_with_its_log_is_a_finding(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    one, other = sorted(folder.glob("*.index"))[:2]
    one.write_bytes(one.read_bytes() + bytes(8000))
    entries = bytearray(other.read_bytes())
    entries[12:16] = struct.pack(">I", struct.unpack(">I", entries[12:16])[0] + 1)
    other.write_bytes(entries)
    stream = kafka.read_batches(folder, damage="report")
    whole = rows_of(kafka.read_batches(folder))
    assert rows_of(stream) == whole
    [finding] = stream.findings
    assert (finding.kind, finding.path, finding.position) == ("index", str(other), 8)
    assert "inside a batch" in finding.reason


def test_a_snapshot_that_is_damaged_or_newer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    whole = sorted((DATA / "orders-0").glob("*.snapshot"))[0].read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(fp.SourceError) as caught:
            kafka.read_snapshot(path)
        assert caught.value.path == str(path)
    for at in range(len(whole)):
        path.write_bytes(put(at, bytes([whole[at] ^ 1]))(whole))
        with pytest.raises(fp.SourceError):
            kafka.read_snapshot(path)
    path.write_bytes(put(0, b"\0\2")(whole))
    with pytest.raises(fp.SourceError, match=r"snapshot has version 2.* only version 1"):
        kafka.read_snapshot(path)


def test_a_transaction_index_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "txnindex"
    whole = sorted((DATA / "orders-0").glob("*.txnindex"))[0].read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length % 34:
            with pytest.raises(fp.SourceError, match="torn") as caught:
                kafka.read_aborted(path)
            assert (caught.value.path, caught.value.position) == (str(path), length - length % 34)
        else:
            assert len(rows_of(kafka.read_aborted(path))) == length // 34
    path.write_bytes(whole[:34] + whole[:34])
    with pytest.raises(fp.SourceError, match="they must increase"):
        kafka.read_aborted(path)


# Streams


def test_a_stream_is_read_once_and_by_anybody() -> None:
    stream = kafka.read_batches(DATA / "clicks-1")
    assert len(pl.DataFrame(stream)) == 50
    assert len(pl.DataFrame(stream)) == 0
    assert rows_of(kafka.read_batches(DATA / "clicks-1")) == list(pulled(kafka.read_batches(DATA / "clicks-1")))


def test_ctrl_c_is_answered() -> None:
    """An interrupt while an object is read ends the stream with KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it

    class Interrupting(Counted):
        def read(self, offset: int, length: int) -> bytes:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            return super().read(offset, length)

    stream = fp._native.kafka_batches([("object", None, Interrupting(small_segment()))])
    try:
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_interpreter_is_released(tmp_path: Path) -> None:
    """Another thread runs while records are decompressed."""
    one = next(it for it in rows_of(kafka.read_batches(DATA / "clicks-2")) if it["compression"] == "zstd")
    segment = (DATA / "clicks-2" / one["segment"]).read_bytes()
    batch = segment[one["position"] : one["position"] + one["bytes"]]
    step = one["last_offset"] - one["base_offset"] + 1
    path = tmp_path / "segment"
    path.write_bytes(b"".join(struct.pack(">q", number * step) + batch[8:] for number in range(100_000)))
    rows = []

    def read() -> None:
        rows.append(
            sum(pa.record_batch(batch).num_rows for batch in kafka.read_records(path, isolation="read_uncommitted"))
        )

    assert_released(read, is_brief=True)
    assert set(rows) == {100_000 * one["count"]}


def test_files_are_opened_with_the_first_row(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    stream = kafka.read_batches(folder)
    last = sorted(folder.glob("*.log"))[-1]
    last.unlink()
    rows, error = before_error(stream)
    assert rows
    assert error.message.startswith(f"{last}: cannot be read: ")
    assert len(open_log(folder).segments) == 1


def test_a_folder_that_cannot_be_listed_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as lost+found, in which only root may look. Whether it has segments is unknown."""
    shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    (tmp_path / "lost+found").mkdir()
    lists = os.listdir

    def refuse(path: Any) -> list[str]:
        if Path(path).name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return lists(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(fp.StoreError, match=r"lost\+found: .* Permission denied"):
        find_partitions(tmp_path)


def test_a_folder_above_that_cannot_be_searched_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(fp.StoreError, match="Permission denied"):
        kafka.read_batches(tmp_path / "orders-0")


def test_a_segment_that_is_gone_when_it_is_read_again_is_missing(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="No such file"):
        Segment(str(tmp_path / f"{0:020}.log"), 0).read(0, 12)


def test_records_are_the_committed_ones_by_default() -> None:
    found = rows_of(kafka.read_records(DATA / "orders-0"))
    assert found == rows_of(kafka.read_records(DATA / "orders-0", isolation="read_committed"))
    assert len(found) < len(rows_of(kafka.read_records(DATA / "orders-0", isolation="read_uncommitted")))
