"""The landing folder: what its log lists counts, and nothing else; leases, zombies, leftovers, damage, transactions."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
from fencepost.producer import Answer, SequencedBatch
from fencepost.producer.stamping import stamp_positions
from fencepost.sql import ProducerRegistry
from fencepost.state.disk import Disk
from fencepost.state.stores import LocalStore
from fencepost.transports import LandingTransport, read_landing
from fencepost.transports.landing import entry_name
from fencepost.transports.schemas import from_text
from sqlalchemy import create_engine
from support.faulty_transport import FaultyTransport
from support.producers import batch
from support.s3_server import BUCKET, s3_options
from support.threads import in_threads
from support.waiting import PATIENCE_SECONDS

QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any] | None]:
    """A new folder, and the options of its store."""
    if request.param == "local":
        return str(tmp_path / "landing"), None
    return f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(request.getfixturevalue("endpoint"))


def names(folder: Path) -> ProducerRegistry:
    """A registry in addition to a folder."""
    return ProducerRegistry(create_engine(f"sqlite:///{folder}.db"))


def positions(pid: int, epoch: int, at: list[int], partition: int = 0) -> SequencedBatch:
    rows = stamp_positions(pa.table({"value": at}), pid, epoch, partition, "value")
    return SequencedBatch(partition, pid, epoch, at[0], at[-1], len(at), rows, cursor="reader")


def values(landing: Any) -> list[Any]:
    return [value for table in landing.tables() for value in table["value"].to_pylist()]


def test_rows_that_were_sent_are_read(place: tuple[str, Any]) -> None:
    folder, options = place
    transport = LandingTransport(folder, partitions=2, options=options)
    with fp.SequencedProducer(transport, partition_by="to") as producer:
        pid = producer.identity.pid
        producer.send({"to": [0, 1, 0], "value": [1, 2, 3]})
        producer.flush(30)
        position = read_landing(folder, options=options).position
        producer.send({"to": [1], "value": [4]})
    landing = read_landing(folder, options=options)
    table = landing.read().sort_by("value")
    assert table.select(["pid", "epoch", "partition", "seq", "value"]).to_pylist() == [
        {"pid": pid, "epoch": 0, "partition": 0, "seq": 0, "value": 1},
        {"pid": pid, "epoch": 0, "partition": 1, "seq": 0, "value": 2},
        {"pid": pid, "epoch": 0, "partition": 0, "seq": 1, "value": 3},
        {"pid": pid, "epoch": 0, "partition": 1, "seq": 1, "value": 4},
    ]
    assert (landing.rows, landing.refused, landing.open, landing.leftovers) == (4, [], [], [])
    assert values(read_landing(folder, after=position, options=options)) == [4]
    one = landing.batches[0]
    assert (one.pid, one.epoch, one.first_seq, one.offset) == (pid, 0, 0, 0)
    assert [file.rows for file in one.files] == [one.count]


def test_an_entry_has_the_fields_that_readers_need(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    assert transport.send(batch(7, 0, 2**31 - 1, [1])) == Answer(fp.Verdict.OUT_OF_ORDER), "a stranger begins with 0"
    assert transport.send(batch(7, 0, 0, ["a", "b"])) == Answer(fp.Verdict.ACCEPTED, 0)
    entry = json.loads((tmp_path / entry_name(0)).read_text())
    assert len(entry.pop("nonce")) == 32
    [file] = entry.pop("files")
    assert from_text(entry.pop("schema")) == pa.schema({"value": pa.string()})
    assert entry == {
        "version": 1, "kind": "batch", "partition": 0, "pid": 7, "epoch": 0, "first_seq": 0, "last_seq": 1, "count": 2,
        "offset": 0, "transactional": False, "cursor": None,
    }  # fmt: skip
    assert file == {"path": file["path"], "bytes": (tmp_path / file["path"]).stat().st_size, "rows": 2}


def test_a_retry_is_known_and_leaves_no_file(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    assert transport.send(batch(7, 0, 0, [1, 2])).offset == 0
    assert transport.send(batch(7, 0, 0, [1, 2])) == Answer(fp.Verdict.DUPLICATE, 0)
    other = LandingTransport(tmp_path, sync=False)
    assert other.send(batch(7, 0, 2, [3])).offset == 2
    assert transport.send(batch(7, 0, 2, [3])) == Answer(fp.Verdict.DUPLICATE, 2), "which another one has written"
    assert transport.send(batch(7, 0, 9, [3])) == Answer(fp.Verdict.OUT_OF_ORDER)
    landing = read_landing(tmp_path)
    assert (values(landing), landing.leftovers) == ([1, 2, 3], [])


def test_an_entry_is_on_disk_before_an_answer_that_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try puts each entry, and cannot sync its name. A power loss may remove it until a sync succeeds."""
    log, at_risk, fails = tmp_path / "_log", set[str](), False

    def seal(disk: Disk, path: Path) -> None:
        if path == log and fails:
            at_risk.update(it.name for it in log.iterdir())
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if path == log:
            at_risk.clear()

    transport = LandingTransport(tmp_path)
    assert transport.send(batch(7, 0, 0, [1])).offset == 0
    monkeypatch.setattr(Disk, "seal", seal)
    calls: list[tuple[Callable[[LandingTransport], Any], Any]] = [
        (lambda it: it.send(batch(7, 0, 1, [2])), Answer(fp.Verdict.DUPLICATE, 1)),
        (lambda it: it.fence(7, 1, None), {0: (0, 1)}),
        (lambda it: it.write_marker(8, 1, 0, "abort"), fp.Verdict.DUPLICATE),
        (lambda it: (it.send(positions(9, 0, [5])), it.cursor("reader", 0)), (Answer(fp.Verdict.DUPLICATE, None), 5)),
        (lambda _: read_landing(tmp_path).position, 5),
    ]
    for call, expected in calls:
        fails = True
        for _ in range(2):  # the retry must not answer either while the sync fails
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                call(transport)
        assert at_risk
        fails = False
        assert (call(transport), at_risk) == (expected, set())
        fails = True
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            call(LandingTransport(tmp_path))  # another process, which knows nothing of the sync


def test_a_zombie_is_kept_out_by_the_fence(tmp_path: Path) -> None:
    zombie = LandingTransport(tmp_path, sync=False)
    assert zombie.send(batch(7, 0, 0, [1])).offset == 0
    successor = LandingTransport(tmp_path, sync=False)
    assert successor.fence(7, 1, None) == {0: (0, 0)}
    assert zombie.send(batch(7, 0, 1, [2])) == Answer(fp.Verdict.FENCED), "before the new one has written anything"
    assert successor.send(batch(7, 1, 0, [3])).offset == 1
    assert values(read_landing(tmp_path)) == [1, 3]


def test_a_marker_that_a_zombie_has_put_is_not_accepted(tmp_path: Path) -> None:
    """A writer that does not read before it writes: readers judge by the order of the entries."""
    transport = LandingTransport(tmp_path, sync=False)
    transport.send(batch(7, 0, 0, [1]))
    transport.fence(7, 1, None)
    entry = json.loads((tmp_path / entry_name(0)).read_text())
    forged = {**entry, "first_seq": 1, "last_seq": 1, "offset": 1, "nonce": "z"}
    assert LocalStore(tmp_path).put(entry_name(2), json.dumps(forged).encode())
    landing = read_landing(tmp_path)
    assert values(landing) == [1]
    [(refused, verdict)] = landing.refused
    assert (refused.first_seq, verdict) == (1, fp.Verdict.FENCED)
    assert LandingTransport(tmp_path, sync=False).send(batch(7, 1, 0, [2])).offset == 1, "and writers go on"
    assert values(read_landing(tmp_path)) == [1, 2]


def test_leases_of_a_folder_still_fence(tmp_path: Path) -> None:
    """Entries of an older version: the owner of a name, its pid, and whether it took over the name."""
    lease = {"kind": "lease", "name": "a", "is_taken_over": True, "pid": 7}
    put_entry(tmp_path, 0, {**lease, "epoch": 0})
    put_entry(tmp_path, 1, {**lease, "epoch": 1})
    transport = LandingTransport(tmp_path, sync=False)
    assert transport.send(batch(7, 0, 0, [1])) == Answer(fp.Verdict.FENCED)
    assert transport.send(batch(7, 1, 0, [1])).offset == 0
    put_entry(tmp_path, 3, {**lease, "is_taken_over": False, "epoch": 2})
    put_entry(tmp_path, 4, {**lease, "name": None, "pid": 8, "epoch": 0})
    assert transport.send(batch(7, 1, 1, [2])).offset == 1, "its own next epoch, whose batches in flight count"
    put_entry(tmp_path, 6, {**lease, "pid": 9, "epoch": 0})
    assert transport.send(batch(7, 2, 0, [3])) == Answer(fp.Verdict.FENCED), "a fresh pid of the same name"
    assert values(read_landing(tmp_path)) == [1, 2]


def test_leftovers_of_a_crash_are_reported_and_not_read(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    transport.send(batch(7, 0, 0, [1]))
    (tmp_path / "data" / "partition=0" / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "_log" / "00000000000000000001.json.0123.tmp").write_bytes(b"{")
    landing = read_landing(tmp_path)
    assert values(landing) == [1]
    assert landing.leftovers == ["_log/00000000000000000001.json.0123.tmp", "data/partition=0/torn.parquet"]


def test_a_file_that_cannot_be_written_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, the parts of each try would take what becomes free, and no later try would fit."""
    transport = LandingTransport(tmp_path)

    def seal(disk: Disk, path: Path) -> None:
        if path.suffix == ".parquet":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "seal", seal)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            transport.send(batch(7, 0, 0, [1]))
    assert read_landing(tmp_path).leftovers == []
    assert transport.send(batch(7, 0, 0, [1])).offset == 0


def test_a_file_without_its_entry_after_a_failed_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = LandingTransport(tmp_path, sync=False)

    def fails(*_: Any) -> bool:
        raise fp.StoreError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(transport._log.store, "put", fails)
        with pytest.raises(fp.StoreError):
            transport.send(batch(7, 0, 0, [1]))
    assert transport.send(batch(7, 0, 0, [1])).offset == 0
    landing = read_landing(tmp_path)
    assert (values(landing), len(landing.leftovers)) == ([1], 1)


@pytest.mark.parametrize("damage", ["missing", "short", "long", "torn", "other"])
def test_a_listed_file_that_is_not_what_was_listed_is_an_error(tmp_path: Path, damage: str) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    transport.send(batch(7, 0, 0, [1]))
    landing = read_landing(tmp_path)
    path = tmp_path / landing.batches[0].files[0].path
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(b"\0" * len(data))
    elif damage == "other":
        other = tmp_path / "other"
        LandingTransport(other, sync=False).send(batch(7, 0, 0, [1, 1]))
        entry = tmp_path / entry_name(0)
        [file] = json.loads((other / entry_name(0)).read_text())["files"]
        path.write_bytes((other / file["path"]).read_bytes())
        entry.write_text(entry.read_text().replace(f'"bytes":{len(data)}', f'"bytes":{file["bytes"]}'))
        landing = read_landing(tmp_path)
    else:
        path.write_bytes(data[:-1] if damage == "short" else data + b"x")
    with pytest.raises(fp.SourceError) as caught:
        values(landing)
    assert caught.value.path == str(path)
    what = {"missing": "listed in the log", "torn": "", "other": "2 rows, but the log lists 1"}
    assert what.get(damage, f"the log lists {len(data)}") in str(caught.value)


def test_a_file_that_does_not_decode_is_damage_and_not_an_outage(tmp_path: Path) -> None:
    """Arrow raises OSError for it, as for a disk that does not answer."""
    LandingTransport(tmp_path, sync=False).send(batch(7, 0, 0, [f"{it} of many" for it in range(10_000)]))
    landing = read_landing(tmp_path)
    path = tmp_path / landing.batches[0].files[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
    path.write_bytes(data)
    with pytest.raises(fp.SourceError) as caught:
        values(landing)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version":2}', '{"version":1,"kind":"x"}', '{"version":1}'])
def test_a_malformed_log_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "_log").mkdir()
    (tmp_path / entry_name(0)).write_text(content)
    transport = LandingTransport(tmp_path, sync=False)
    for call in (lambda: read_landing(tmp_path), lambda: transport.send(batch(7, 0, 0, [1]))):
        with pytest.raises(fp.SourceError) as caught:
            call()
        assert caught.value.path == str(tmp_path / entry_name(0))


# Columns


def of_rows(first_seq: int, rows: Any) -> SequencedBatch:
    return batch(7, 0, first_seq, pa.table(rows))


HELD = {"at": pa.array([1], pa.timestamp("us")), "name": pa.array(["a"]), "value": pa.array([1])}
OTHERS = [
    (HELD | {"value": pa.array([1.5])}, "value", "column 'value': is of type double, but .* has int64"),
    (HELD | {"value": pa.array(["1"])}, "value", "column 'value': is of type string, but .* has int64"),
    (HELD | {"value": pa.array([1], pa.int32())}, "value", "column 'value': is of type int32, but .* has int64"),
    (HELD | {"at": pa.array([1], pa.timestamp("ms"))}, "at", r"'at': is of type timestamp\[ms\], but .* timestamp\[us"),
    (
        {"at": HELD["at"], "name": HELD["name"]},
        "value",
        r"column 'value': missing; .* value \(int64\), the rows have at",
    ),
    (HELD | {"more": pa.array([1])}, "more", r"column 'more': .* no such column; .* at\b"),
]


@pytest.mark.parametrize(("rows", "column", "message"), OTHERS)
@pytest.mark.parametrize("is_given", [False, True])
def test_batches_of_other_columns_are_refused(
    tmp_path: Path, rows: Any, column: str, message: str, is_given: bool
) -> None:
    """Readers of the folder could not combine the files."""
    transport = LandingTransport(tmp_path, sync=False, schema=pa.table(HELD).schema if is_given else None)
    first_seq = 0 if is_given else transport.send(of_rows(0, HELD)).offset + 1
    before = sorted(tmp_path.rglob("*"))
    for one in (transport, LandingTransport(tmp_path, sync=False, schema=pa.table(HELD).schema)):
        with pytest.raises(fp.BatchError, match=f"{message}.*; nothing of this batch") as caught:
            one.send(of_rows(first_seq, rows))
        assert caught.value.column == column
    assert sorted(tmp_path.rglob("*")) == before
    assert transport.send(of_rows(first_seq, HELD)) == Answer(fp.Verdict.ACCEPTED, first_seq)


def test_layouts_of_one_type_are_one_type(tmp_path: Path) -> None:
    name = HELD["name"]
    transport = LandingTransport(tmp_path, sync=False)
    for seq, kind in enumerate(
        (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    ):
        assert transport.send(of_rows(seq, HELD | {"name": name.cast(kind)})).offset == seq
    assert transport.send(of_rows(4, HELD | {"name": pa.nulls(1)})).offset == 4
    table = read_landing(tmp_path).read()
    assert table["name"].to_pylist() == ["a"] * 4 + [None]
    assert table.schema.field("name").type == pa.string()


def test_a_column_without_a_value_has_no_type_yet(tmp_path: Path) -> None:
    nothing, one = {"value": pa.nulls(1)}, {"value": [1]}
    for seq, rows in enumerate((nothing, nothing, one, nothing)):
        assert LandingTransport(tmp_path, sync=False).send(of_rows(seq, rows)).offset == seq
    with pytest.raises(fp.BatchError, match=r"column 'value': is of type string, but .* has int64"):
        LandingTransport(tmp_path, sync=False).send(of_rows(4, {"value": ["a"]}))
    assert values(read_landing(tmp_path)) == [None, None, 1, None]


@pytest.mark.parametrize("is_given", [False, True])
def test_a_part_of_a_column_without_a_value_has_no_type_yet(tmp_path: Path, is_given: bool) -> None:
    """Such as tags, if the events of a batch have none."""
    nothing: dict[str, Any] = {"tags": [[]], "from": [{"host": None, "ports": []}]}
    one: dict[str, Any] = {"tags": [["a"]], "from": [{"host": "x", "ports": [80]}]}
    schema = pa.table(one).schema if is_given else None
    for seq, rows in enumerate((nothing, nothing, one, nothing)):
        assert LandingTransport(tmp_path, sync=False, schema=schema).send(of_rows(seq, rows)).offset == seq
    for odd in (one | {"tags": [[1]]}, one | {"from": [{"host": "x"}]}, one | {"from": [{"host": 1, "ports": [80]}]}):
        with pytest.raises(fp.BatchError, match="is of type"):
            LandingTransport(tmp_path, sync=False).send(of_rows(4, odd))
    table = read_landing(tmp_path).read()
    assert table["tags"].to_pylist() == [[], [], ["a"], []]
    assert table["from"].to_pylist() == [*nothing["from"] * 2, *one["from"], *nothing["from"]]
    assert table.schema.field("tags").type == pa.list_(pa.string())


def test_values_that_parquet_does_not_store_fail_their_batch_alone(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    with fp.SequencedProducer(transport, **QUICK) as producer:
        [delivery] = producer.send([{"value": {}}])
        with pytest.raises(fp.DeliveryError, match=r"INVALID_RECORD \(Parquet cannot store") as caught:
            delivery.result(30)
        assert caught.value.is_refused
        with pytest.raises(fp.DeliveryError):
            producer.flush(30)
        producer.send([{"value": 1}])
    landing = read_landing(tmp_path)
    assert (values(landing), landing.leftovers) == ([1], [])


def test_a_null_in_a_required_column_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("value", pa.int64(), nullable=False)])
    transport = LandingTransport(tmp_path, sync=False, schema=schema)
    with pytest.raises(fp.BatchError, match=r"column 'value', row 1: null, but NOT NULL") as caught:
        transport.send(of_rows(0, {"value": [1, None]}))
    assert (caught.value.column, caught.value.row) == ("value", 1)
    transport.send(of_rows(0, {"value": [1]}))
    with pytest.raises(fp.BatchError, match=r"column 'value', row 0: null, but NOT NULL"):
        LandingTransport(tmp_path, sync=False).send(of_rows(1, {"value": pa.nulls(1, pa.int64())}))


@pytest.mark.parametrize("is_list", [True, False])
def test_a_null_within_a_column_that_takes_none_fails_its_batch_alone(tmp_path: Path, is_list: bool) -> None:
    part = pa.field("n", pa.int64(), nullable=False)
    schema = pa.schema({"value": pa.list_(part) if is_list else pa.struct([part])})
    right, odd = ([1], [None]) if is_list else ({"n": 1}, {"n": None})
    with fp.SequencedProducer(LandingTransport(tmp_path, sync=False, schema=schema), **QUICK) as producer:
        [delivery] = producer.send([{"value": odd}])
        with pytest.raises(fp.DeliveryError, match=r"INVALID_RECORD \(column 'value': does not fit"):
            delivery.result(30)
        with pytest.raises(fp.DeliveryError):
            producer.flush(30)
        producer.send(pa.table({"value": [right]}, schema=schema))
    assert values(read_landing(tmp_path)) == [right]


def test_the_first_batch_decides_under_concurrent_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer lists its first batch while the file of this one is being written."""
    mine, other = (LandingTransport(tmp_path, sync=False) for _ in range(2))
    write = mine._write

    def write_late(batch: SequencedBatch) -> Any:
        file = write(batch)
        assert other.send(of_rows(0, {"value": ["a"]})).offset == 0
        return file

    monkeypatch.setattr(mine, "_write", write_late)
    with pytest.raises(fp.BatchError, match=r"column 'value': is of type int64, but .* has string"):
        mine.send(batch(8, 0, 0, [1]))
    landing = read_landing(tmp_path)
    assert (values(landing), landing.leftovers) == (["a"], [])


def test_a_folder_of_an_older_version_has_the_columns_of_its_next_batch(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    transport.send(of_rows(0, {"value": ["a"]}))
    path = tmp_path / entry_name(0)
    path.write_text(json.dumps({it: value for it, value in json.loads(path.read_text()).items() if it != "schema"}))
    assert LandingTransport(tmp_path, sync=False).send(of_rows(1, {"value": [1]})).offset == 1
    with pytest.raises(fp.BatchError, match="column 'value': is of type string"):
        LandingTransport(tmp_path, sync=False).send(of_rows(2, {"value": ["a"]}))
    assert values(read_landing(tmp_path)) == ["a", 1]
    with pytest.raises(fp.SourceError, match="files have incompatible schemas"):
        read_landing(tmp_path).read()


# Damage


ENTRIES: dict[str, dict[str, Any]] = {
    "batch": {
        "kind": "batch", "partition": 0, "pid": 7, "epoch": 1, "first_seq": 0, "last_seq": 0, "count": 1, "offset": 0,
        "files": [{"path": "data/partition=0/a.parquet", "bytes": 9, "rows": 1}], "transactional": False,
        "cursor": None,
    },
    "lease": {"kind": "lease", "name": "a", "is_taken_over": True, "pid": 7, "epoch": 3},
    "fence": {"kind": "fence", "pid": 7, "epoch": 1, "partitions": [0, 1]},
    "marker": {
        "kind": "marker", "pid": 7, "epoch": 1, "partition": 0, "outcome": "abort", "coordinator_epoch": 0,
    },
}  # fmt: skip
DAMAGES = [
    (kind, name, damage) for kind, entry in ENTRIES.items() for name in entry for damage in ("missing", "other type")
]


def put_entry(folder: Path, number: int, entry: dict[str, Any]) -> Path:
    path = folder / entry_name(number)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, **entry, "nonce": "0"}))
    return path


@pytest.mark.parametrize(("kind", "name", "damage"), DAMAGES)
def test_an_entry_that_cannot_be_taken_is_read_again(tmp_path: Path, kind: str, name: str, damage: str) -> None:
    """If it were skipped, its effect would be missing: without a fence, a zombie could write."""
    damaged = {it: value for it, value in ENTRIES[kind].items() if it != name}
    if damage == "other type":
        damaged[name] = [0, "x"] if name in ("partitions", "files") else {"x": 1}
    transport = LandingTransport(tmp_path, sync=False)
    path = put_entry(tmp_path, 0, damaged)
    for _ in range(2):
        with pytest.raises(fp.SourceError, match="not an entry") as caught:
            transport.send(batch(7, 0, 0, [1]))
        assert caught.value.path == str(path)
    assert transport._log.state.next_entry == 0
    put_entry(tmp_path, 0, ENTRIES[kind])
    if kind == "lease":
        put_entry(tmp_path, 1, {**ENTRIES[kind], "epoch": 4})  # it fences the one before it
    assert transport.send(batch(7, 0, 0, [1])) == Answer(fp.Verdict.FENCED)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_entry_before_others_is_not_the_end_of_the_log(place: tuple[str, Any], lost: int) -> None:
    folder, options = place
    transport = LandingTransport(folder, sync=False, options=options)
    for seq in range(4):
        transport.send(batch(7, 0, seq, [seq]))
    store = transport._log.store
    data = store.read(entry_name(lost))
    store.delete([entry_name(lost)])
    with pytest.raises(fp.SourceError, match=f"{entry_name(lost)}: .*is missing"):
        read_landing(folder, options=options)
    writer = LandingTransport(folder, sync=False, options=options)
    for _ in range(2):  # it does not put another entry in its place
        with pytest.raises(fp.SourceError, match="later ones exist"):
            writer.send(batch(8, 0, 0, [9]))
    assert store.put(entry_name(lost), data)
    assert writer.send(batch(8, 0, 0, [9])) == Answer(fp.Verdict.ACCEPTED, 4)
    assert read_landing(folder, options=options).read()["value"].to_pylist() == [0, 1, 2, 3, 9]


def test_a_fence_with_an_invalid_epoch_is_not_written(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    with pytest.raises(fp.PolicyError, match=r"fence: epoch 32768: expected 0 to 32767"):
        transport.fence(7, 2**15, None)
    assert read_landing(tmp_path).position == 0


def test_a_folder_that_no_writer_has_opened_is_not_an_empty_one(place: tuple[str, Any]) -> None:
    """An operator would take a wrong path for an output without open transactions."""
    folder, options = place
    for after in (0, 3):
        with pytest.raises(fp.SourceError, match="not a landing folder"):
            read_landing(folder, after=after, options=options)
    LandingTransport(folder, options=options)
    landing = read_landing(folder, options=options)
    assert (landing.rows, landing.open, landing.position) == (0, [], 0)


def test_reading_after_the_end_is_refused(tmp_path: Path) -> None:
    LandingTransport(tmp_path, sync=False)
    with pytest.raises(fp.PolicyError, match=r"after=1: expected at most 0, the number of entries"):
        read_landing(tmp_path, after=1)
    assert read_landing(tmp_path).read().num_rows == 0


def test_writers_of_one_folder_agree_on_one_order(tmp_path: Path) -> None:
    def write(number: int) -> None:
        transport = LandingTransport(tmp_path, sync=False, partitions=2)
        with fp.SequencedProducer(transport, partition_by="to", batch_rows=5) as producer:
            for start in range(0, 100, 20):
                at = range(start, start + 20)
                producer.send({"to": [it % 2 for it in at], "value": [number * 1000 + it for it in at]})

    in_threads([partial(write, number) for number in range(4)])
    landing = read_landing(tmp_path)
    found = values(landing)
    assert sorted(found) == sorted(number * 1000 + it for number in range(4) for it in range(100))
    assert len({one.pid for one in landing.batches}) == 4
    for number in range(4):
        for parity in (0, 1):
            own = [it for it in found if it // 1000 == number and it % 2 == parity]
            assert own == sorted(own)
    assert (landing.refused, landing.leftovers) == ([], [])


@pytest.mark.parametrize("seed", range(3))
def test_each_row_lands_once_despite_a_faulty_network(tmp_path: Path, seed: int) -> None:
    transport = FaultyTransport(LandingTransport(tmp_path, sync=False, partitions=2), seed)
    with fp.SequencedProducer(
        transport, partition_by="to", name="a", registry=names(tmp_path), request_timeout_ms=80, **QUICK
    ) as producer:
        for value in range(40):
            producer.send({"to": [value % 2], "value": [value]})
    transport.settle()
    landing = read_landing(tmp_path)
    found = values(landing)
    assert [it for it in found if it % 2 == 0] == list(range(0, 40, 2))
    assert [it for it in found if it % 2] == list(range(1, 40, 2))


def test_an_entry_with_a_wrong_offset_does_not_affect_later_ones(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path)
    transport.send(batch(7, 0, 0, [1]))
    transport.send(batch(7, 0, 1, [2]))
    path = tmp_path / entry_name(1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "offset": 9}))
    landing = read_landing(tmp_path)
    assert values(landing) == [1]
    assert [verdict for _, verdict in landing.refused] == [fp.Verdict.OUT_OF_ORDER]
    again = LandingTransport(tmp_path)
    assert again.send(batch(7, 0, 1, [2])) == Answer(fp.Verdict.ACCEPTED, 1)
    assert values(read_landing(tmp_path)) == [1, 2]


def test_a_fence_applies_to_its_partition_and_reports_the_batches_there(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    transport.send(batch(7, 0, 0, [1, 2]))
    transport.send(batch(7, 0, 0, [3], partition=1))
    assert transport.fence(7, 1, [0]) == {0: (0, 1)}
    assert transport.send(batch(7, 0, 2, [4])) == Answer(fp.Verdict.FENCED)
    assert transport.send(batch(7, 0, 1, [5], partition=1)).offset == 1
    assert transport.fence(7, 2, None) == {0: (0, 1), 1: (0, 1)}
    assert transport.send(batch(7, 1, 0, [6], partition=1)) == Answer(fp.Verdict.FENCED)
    entries = len(list((tmp_path / "_log").iterdir()))
    assert transport.fence(7, 2, None) == {0: (0, 1), 1: (0, 1)}
    assert len(list((tmp_path / "_log").iterdir())) == entries, "nothing to add"


def test_transactions_are_seen_when_they_are_committed(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False, partitions=2)
    transport.send(batch(7, 0, 0, [1], transactional=True))
    transport.send(batch(8, 0, 0, [2], transactional=True))
    transport.send(batch(9, 0, 0, [3]))
    landing = read_landing(tmp_path)
    assert (values(landing), [it.pid for it in landing.open]) == ([3], [7, 8])
    assert transport.write_marker(8, 1, 0, "abort") is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.ACCEPTED
    assert transport.write_marker(7, 1, 0, "commit") is fp.Verdict.DUPLICATE
    assert values(read_landing(tmp_path)) == [3, 1], "in the order in which they came to be seen"
    assert values(read_landing(tmp_path, after=landing.position)) == [1]
    assert transport.send(batch(7, 1, 0, [4], transactional=True)).offset == 5, "markers take an offset, too"
    assert transport.write_marker(7, 1, 0, "abort") is fp.Verdict.DUPLICATE, "late: it has gone on to the next one"
    assert transport.write_marker(7, 0, 0, "commit") is fp.Verdict.FENCED
    assert [it.pid for it in read_landing(tmp_path).open] == [7]


# Cursor mode


def test_a_producer_that_begins_again_sends_the_same_numbers_and_the_folder_drops_them(tmp_path: Path) -> None:
    source = [{"at": at * 3, "value": at} for at in range(50)]

    def run(rows: list[dict[str, int]], size: int) -> None:
        transport = LandingTransport(tmp_path, sync=False)
        with fp.SequencedProducer(transport, name="reader", registry=names(tmp_path), position="at") as producer:
            for start in range(0, len(rows), size):
                producer.send(rows[start : start + size])

    run(source[:30], size=7)
    run(source[10:], size=9)
    run(source, size=50)
    landing = read_landing(tmp_path)
    assert values(landing) == list(range(50))
    assert landing.read()["seq"].to_pylist() == [at * 3 for at in range(50)]
    assert LandingTransport(tmp_path, sync=False).cursor("reader", 0) == 147


def test_a_source_for_several_partitions_is_read_again_in_other_pieces(tmp_path: Path) -> None:
    source = [{"at": at, "value": at, "user": f"user {at % 7}"} for at in range(60)]
    for begin, size in ((0, 7), (5, 11), (0, 60)):
        transport = LandingTransport(tmp_path, sync=False, partitions=3)
        with fp.SequencedProducer(
            transport, name="reader", registry=names(tmp_path), position="at", key="user"
        ) as producer:
            for start in range(begin, 60 if begin else 40, size):
                producer.send(source[start : start + size])
    assert sorted(values(read_landing(tmp_path))) == list(range(60))


def test_positions_that_are_there_are_dropped_row_by_row(tmp_path: Path) -> None:
    transport = LandingTransport(tmp_path, sync=False)
    assert transport.cursor("reader", 0) is None
    assert transport.send(positions(7, 0, [0, 5, 6])) == Answer(fp.Verdict.ACCEPTED, 0)
    assert transport.send(positions(7, 0, [5, 6])) == Answer(fp.Verdict.DUPLICATE)
    assert transport.send(positions(7, 1, [5, 6, 2**40])) == Answer(fp.Verdict.ACCEPTED), "5 is not at 3"
    assert values(read_landing(tmp_path)) == [0, 5, 6, 2**40]
    assert transport.send(positions(8, 0, [6, 2**40])) == Answer(fp.Verdict.DUPLICATE), "the name counts, not the pid"


def test_an_entry_of_cursor_mode_needs_the_name_of_its_producer(tmp_path: Path) -> None:
    """Entries of an old format without an owner: their rows would be accepted again."""
    LandingTransport(tmp_path, sync=False).send(positions(7, 0, [0, 1]))
    path = tmp_path / entry_name(0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "cursor": True}))
    with pytest.raises(fp.SourceError, match="cursor True is not"):
        LandingTransport(tmp_path, sync=False).send(positions(7, 1, [0, 1]))


WRITE = """
import sys, fencepost as fp
from fencepost.sql import ProducerRegistry
from fencepost.transports import LandingTransport
from sqlalchemy import create_engine
flushes_at, waits_at = map(int, sys.argv[3:])
transport, registry = LandingTransport(sys.argv[1], sync=False), ProducerRegistry(create_engine(sys.argv[2]))
with fp.SequencedProducer(transport, name="reader", registry=registry, position="at") as producer:
    for start in range(0, 300, 6):
        producer.send([{"at": at, "value": at} for at in range(start, start + 6)])
        if start == flushes_at:
            producer.flush()
            print("begun", flush=True)
        if start == waits_at:
            sys.stdin.read()
"""


def test_a_producer_that_is_killed_and_begins_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path), f"sqlite:///{tmp_path}.db"]
    for seed in range(2):
        flushes_at = 6 * random.Random(seed).randrange(2, 30)
        places = [str(flushes_at), str(flushes_at + 60)]  # killed between them: it waits at the second
        process = subprocess.Popen([*command, *places], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        found = values(read_landing(tmp_path))
        assert found == list(range(len(found)))
    subprocess.run([*command, "-1", "-1"], check=True, capture_output=True)
    landing = read_landing(tmp_path)
    assert values(landing) == list(range(300))
    assert len({batch.epoch for batch in landing.batches}) >= 2, "more than one of them has written"


def test_in_cursor_mode_a_batch_that_fails_stops_the_producer(tmp_path: Path) -> None:
    """Later batches would hide that it is missing."""

    class Refuses(LandingTransport):
        def send(self, batch: SequencedBatch) -> Answer:
            return Answer(87) if batch.first_seq == 1 else super().send(batch)

    transport = Refuses(tmp_path, sync=False)
    producer = fp.SequencedProducer(transport, name="reader", registry=names(tmp_path), position="at", batch_rows=1)
    first, second, third = producer.send([{"at": at, "value": at} for at in range(3)])
    assert first.result(PATIENCE_SECONDS).first_seq == 0
    with pytest.raises(fp.DeliveryError, match=r"INVALID_RECORD.*not in the log; .* stops") as caught:
        second.result(PATIENCE_SECONDS)
    assert caught.value.is_refused
    with pytest.raises(fp.DeliveryError, match=r"an earlier batch was .* would hide") as caught:
        third.result(PATIENCE_SECONDS)
    assert not caught.value.is_refused, "where several are on their way, nobody can tell of the others"
    with pytest.raises(fp.DeliveryError):
        producer.send([{"at": 3, "value": 3}])
    with pytest.raises(fp.DeliveryError):
        producer.close()
    assert values(read_landing(tmp_path)) == [0]
