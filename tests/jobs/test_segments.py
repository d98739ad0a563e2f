"""Decisions, segments and ledgers: what is written is what is read, and little is written where little has changed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import uuid
from typing import Any

import fencepost as fp
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost.state import ledger as ledgers
from fencepost.state import segment_files
from fencepost.state.decision import (
    Checksums,
    Decision,
    Deferred,
    Inputs,
    LedgerFiles,
    Lists,
    Marked,
    Outputs,
    Piece,
    Quarantined,
    Settings,
    Shard,
    Shards,
    SideFiles,
    SumPiece,
    decision_from_json,
    settings_from_json,
    sha256,
    to_json,
)
from fencepost.state.ledger import COLUMNS, IDENTITY, UNKNOWN_CRC, extend_ledger, file_table, new_files, read_ledger
from fencepost.state.segment_files import SegmentWriter, advance, held_positions, load_table
from fencepost.state.stores import MemoryStore
from support import daily

FILES: dict[str, Any] = {
    "path": ["a", "é/b"],
    "bytes": [1, 2],
    "mtime_ns": [10**18, 0],
    "inode": [2**63, 0],
    "etag": ["", '"x"'],
}
SHARDS_ALL = [
    Shard(shard=2, entries=5, positions=None, missing=4, pieces=(Piece("s/1", 0, 10, "aa"),)),
    Shard(shard=0, entries=3, positions=7, missing=7, pieces=(Piece("s/1", 10, 5, "bb"), Piece("s/2", 0, 1, "cc"))),
    Shard(shard=9, entries=0, positions=0, missing=0, pieces=()),
]
DECISION = Decision(
    version=7,
    previous="00",
    builds_on=5,
    attempt="ab",
    kind="seed",
    shard_count=12,
    shards=Shards.of(SHARDS_ALL),
    checksums=Checksums.of(["x"], {2: [SumPiece(rows=3, piece=Piece("s/3", 20, 12, "ee"))]}),
    ledger=LedgerFiles(name=["l"], bytes=[3], sha256=["dd"], files=[2], index=[1]),
    listing="ff",
    inputs=Inputs(**FILES, rows=[3, 4], footer_crc=[5, 6]),
    quarantined=Quarantined(**FILES, reason=["no footer", "none"]),
    deferred=Deferred(
        path=["d"], bytes=[1], mtime_ns=[2], first_seen_ms=[3], reason=["none"], add=[{"path": "d", "size": 1}]
    ),
    outputs=Outputs(name=["o"], ordinal=[1], rows=[4], bytes=[5], footer_crc=[6]),
    marked=Marked(path=["p"], ordinal=[1], rows=[9], refused=[2], vector=[{"cardinality": 2}]),
    side_files=SideFiles(table=["missing"], name=["m"], rows=[1], bytes=[2], footer_crc=[3]),
    prepared="_prepare/7-ab/run",
    source_position={"from": 1, "to": 4},
    sink_version={"table": "t", "version": 17},
    clock_ms=1_000,
    horizon_ms=900,
    key_types={"pid": "integer"},
    schema="c2NoZW1h",
    oldest=3,
    collected=2,
    breaks=[[3, 1]],
    counts={"ACCEPTED": 4, "DUPLICATE": 3},
    missing_ranges=1,
    missing_rows=2,
    stale_epoch=3,
    border=4,
    plan={"name": "interval", "spans": 12},
    report={"note": "ä"},
    policy="rules",
    order_by=["x"],
    decided_ms=5,
    fencepost="0",
)


def test_every_field_comes_back() -> None:
    fields = {it.name: it for it in dataclasses.fields(Decision)}
    none = dataclasses.MISSING
    defaults = {name: it.default if it.default_factory is none else it.default_factory() for name, it in fields.items()}
    left_out = {name for name, default in defaults.items() if getattr(DECISION, name) == default}
    assert left_out == {"format", "semantics"}, "the example says something in every field"
    data = to_json(DECISION)
    again = decision_from_json(data, "x")
    assert again == DECISION
    assert to_json(again) == data
    assert json.loads(data).keys() == fields.keys()


def test_settings_come_back() -> None:
    texts = {it.name: it.name for it in dataclasses.fields(Settings) if it.name not in ("format", "semantics")}
    settings = Settings(**(texts | {"columns": {"pid": ["a", "b"]}, "keep": ["timestamp"], "shards": 4}))  # type: ignore[arg-type]
    assert settings_from_json(to_json(settings), "x") == settings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 7', '"versions": 7'),
        ('"shard": [0, 2, 9]', '"shard": [0, 2]'),
        ('"rows": [3, 4]', '"rows": [3]'),
        ('"sha256": ["bb", "cc", "aa"]', '"sha256": ["bb", "cc"]'),
        ('"etag"', '"colour"'),
        ("}\n", ""),
    ],
)
def test_a_malformed_decision_is_refused(old: str, new: str) -> None:
    text = to_json(DECISION).decode()
    assert old in text
    with pytest.raises(fp.SnapshotError, match=r" x: not a file"):
        decision_from_json(text.replace(old, new).encode(), "x")


def test_a_decision_without_counts_of_missing_rows() -> None:
    assert DECISION.missing_open == 11
    fields = json.loads(to_json(DECISION))
    del fields["shards"]["missing"]  # as before the counts existed
    old = decision_from_json(json.dumps(fields).encode(), "x")
    assert old.missing_open is None
    counted = [dataclasses.replace(shard, missing=1) for shard in old.shards]
    assert dataclasses.replace(old, shards=old.shards.replaced(counted[:2])).missing_open is None
    assert dataclasses.replace(old, shards=old.shards.replaced(counted)).missing_open == 3


def test_shards_by_number() -> None:
    shards = Shards.of(SHARDS_ALL)
    assert [it.shard for it in shards] == [0, 2, 9]
    assert [shards.get(it.shard) for it in SHARDS_ALL] == SHARDS_ALL
    assert [shards.get(it) for it in (-1, 1, 3, 10)] == [None] * 4
    other = Shard(shard=2, entries=6, positions=1, pieces=(Piece("s/3", 0, 1, "ee"),))
    new = shards.replaced([other])
    assert (new.get(2), new.get(0), new.get(9)) == (other, shards.get(0), shards.get(9))
    assert sorted(new.files) == ["s/1", "s/2", "s/3"], "only files with pieces"
    assert sorted(new.replaced([dataclasses.replace(other, shard=0)]).files) == ["s/3"]
    assert len(Shards()) == 0
    assert DECISION.entries == 8
    assert DECISION.files() == {"s/1", "s/2", "s/3", "l"}


def test_many_files_and_shards() -> None:
    """10^5 inputs, as many outputs, 4096 shards of five pieces: the lists hold no object a row."""
    count, shard_count = 100_000, 4_096
    numbers = list(range(count))
    names = [f"day=1/part-{it:06}.parquet" for it in numbers]
    pieces = [Piece(f"segments/{it}/x.state", it, 100, f"{it:064x}") for it in range(5)]
    large = dataclasses.replace(
        DECISION,
        inputs=Inputs(
            path=names,
            bytes=numbers,
            mtime_ns=numbers,
            inode=numbers,
            etag=[""] * count,
            rows=numbers,
            footer_crc=numbers,
        ),
        outputs=Outputs(name=names, ordinal=numbers, rows=numbers, bytes=numbers, footer_crc=numbers),
        shards=Shards.of(Shard(shard=it, entries=1, positions=2, pieces=tuple(pieces)) for it in range(shard_count)),
    )
    data = to_json(large)
    again = decision_from_json(data, "x")
    assert (len(again.inputs), len(again.outputs), len(again.shards)) == (count, count, shard_count)
    assert len(again.shards.sha256) == 5 * shard_count
    assert again.shards.get(4_095) == Shard(shard=4_095, entries=1, positions=2, pieces=tuple(pieces))
    assert again == large
    assert data.count(b"\n") < 120, "a column a line"


def test_lists_row_by_row() -> None:
    rows = list(DECISION.outputs.each())
    assert rows == [{"name": "o", "ordinal": 1, "rows": 4, "bytes": 5, "footer_crc": 6}]
    assert Outputs.of(rows) == DECISION.outputs
    assert all(len(kind()) == 0 for kind in Lists.__subclasses__())
    assert len(Lists.__subclasses__()) == 7


# -- Segments


@pytest.fixture
def store() -> MemoryStore:
    segment_files.CACHE.clear()
    return MemoryStore(f"memory://{uuid.uuid4().hex}")


def rows_of(seed: int, count: int = 50) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "pid": rng.integers(0, 1_000, count),
            "epoch": np.zeros(count, np.int16),
            "partition": np.zeros(count, np.int32),
            "seq": rng.integers(0, 60, count).astype(np.int32),
        }
    )


def step(store: MemoryStore, before: Shard | None, version: int, rows: pa.Table) -> Shard:
    table = load_table(store, before.pieces if before else (), "any_order")
    table.apply(rows)
    with SegmentWriter(store, version, "a") as writer:
        return advance(table, before, 3, writer, held_positions(table), pa.table(table.missing()))


def test_deltas_and_bases(store: MemoryStore) -> None:
    """A large base, then small changes: up to four deltas, then a base again."""
    whole = fp.StateTable("any_order")
    whole.apply(rows_of(0, 20_000))
    shard = step(store, None, 1, rows_of(0, 20_000))
    lengths = []
    for version in range(2, 13):
        whole.apply(rows_of(version))
        shard = step(store, shard, version, rows_of(version))
        lengths.append(len(shard.pieces))
        table = load_table(store, shard.pieces, "any_order")
        assert table.snapshot() == whole.snapshot()
        assert (shard.shard, shard.entries, shard.positions) == (3, len(whole), held_positions(whole))
    assert lengths == [2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def test_a_large_change_is_a_base(store: MemoryStore) -> None:
    first = step(store, None, 1, rows_of(1, 50))
    second = step(store, first, 2, rows_of(2, 5_000))
    assert len(second.pieces) == 1
    assert second.pieces[0] != first.pieces[0]


def test_without_a_change_no_piece_is_written(store: MemoryStore) -> None:
    first = step(store, None, 1, rows_of(1))
    again = step(store, first, 2, rows_of(1))
    assert again == first
    assert store.list("segments/2") == [], "and no file"


def test_pieces_of_several_shards_in_one_file(store: MemoryStore) -> None:
    tables = [fp.StateTable("any_order") for _ in range(3)]
    with SegmentWriter(store, 1, "a") as writer:
        for number, table in enumerate(tables):
            table.apply(rows_of(number))
        found = [
            advance(table, None, number, writer, held_positions(table), pa.table(table.missing()))
            for number, table in enumerate(tables)
        ]
    (name,) = store.list("segments")
    assert {piece.file for shard in found for piece in shard.pieces} == {name}
    assert len(store.read(name)) == sum(piece.bytes for shard in found for piece in shard.pieces)
    for shard, table in zip(found, tables, strict=True):
        assert load_table(store, shard.pieces, "any_order").snapshot() == table.snapshot()


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_piece_is_named(store: MemoryStore, place: int) -> None:
    shard = step(store, step(store, None, 1, rows_of(1, 5_000)), 2, rows_of(2))
    piece = shard.pieces[place]
    whole = store.read(piece.file)
    segment_files.CACHE.clear()
    for at in (piece.offset, piece.offset + piece.bytes - 1):
        store.objects[piece.file] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        expected = rf"{store.uri}/{piece.file}, bytes {piece.offset} to .*: its SHA-256 is .* {piece.sha256}"
        with pytest.raises(fp.SnapshotError, match=expected):
            load_table(store, shard.pieces, "any_order")
    store.objects[piece.file] = whole[:-1]
    with pytest.raises(fp.SnapshotError, match="its SHA-256 is"):
        load_table(store, shard.pieces, "any_order")
    del store.objects[piece.file]
    with pytest.raises(fp.SnapshotError, match=rf"{store.uri}/{piece.file}, bytes .*: missing"):
        load_table(store, shard.pieces, "any_order")


def test_another_policy_is_refused(store: MemoryStore) -> None:
    shard = step(store, None, 1, rows_of(1))
    with pytest.raises(fp.SnapshotError, match=rf"{store.uri}/segments/1/a/.*: .*another policy"):
        load_table(store, shard.pieces, "kafka")


def test_the_cache_is_bounded(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_files, "CACHE_BYTES_MAX", 1_000)
    read = []
    for number in range(100):
        data = bytes([number]) * 100
        segment_files.CACHE.get(sha256(data), lambda data=data: data)  # type: ignore[misc]
    for number in range(100):
        data = bytes([number]) * 100
        segment_files.CACHE.get(sha256(data), lambda data=data, number=number: read.append(number) or data)  # type: ignore[misc]
    assert read == list(range(100)), "in this order each was gone before it was asked for again"
    assert segment_files.CACHE.get(sha256(data), bytes) == data, "the last is there"
    large = bytes(500)
    assert segment_files.CACHE.get("large", lambda: large) == large
    assert segment_files.CACHE.get("large", lambda: b"read again") == b"read again", "what would fill it does not stay"


# -- The ledger


def listing(*numbers: int, mtime_ns: int = 5) -> pa.Table:
    columns = {
        "path": [f"{it}.parquet" for it in numbers],
        "bytes": list(numbers),
        "mtime_ns": [mtime_ns] * len(numbers),
        "inode": [2**64 - 1] * len(numbers),
        "etag": [""] * len(numbers),
    }
    return file_table(columns)


def test_a_ledger_finds_new_and_changed_files(store: MemoryStore) -> None:
    ledger = None
    assert new_files(store, ledger, listing(2, 4)) == ([0, 1], {})
    ledger = extend_ledger(store, ledger, 1, "a", [listing(3), listing(1, 2)])
    assert read_ledger(store, ledger)["path"].to_pylist() == ["1.parquet", "2.parquet", "3.parquet"]
    assert new_files(store, ledger, listing(0, 1, 3, 4, 5)) == ([0, 3, 4], {})
    assert new_files(store, ledger, listing(1, 2, 3)) == ([], {})
    assert new_files(store, ledger, listing(2, mtime_ns=6)) == ([0], {}), "another file of the same name"
    assert new_files(store, ledger, listing()) == ([], {})
    for column in IDENTITY[1:]:
        assert new_files(store, ledger, changed(column)) == ([0], {}), column
    assert new_files(store, ledger, changed("inode")) == ([], {}), "the footer that was read is not known"


def changed(column: str) -> pa.Table:
    other: Any = ["x"] if column == "etag" else [99]
    return file_table({name: other if name == column else listing(2)[name].to_pylist() for name in COLUMNS})


def test_footers_distinguish_files_with_another_inode(store: MemoryStore) -> None:
    ledger = extend_ledger(store, None, 1, "a", [changed("footer_crc"), listing(1)])
    assert new_files(store, ledger, listing(2)) == ([], {})
    assert new_files(store, ledger, changed("inode")) == ([], {0: {99}})
    again = changed("inode").set_column(5, "footer_crc", pa.array([99]))
    ledger = extend_ledger(store, ledger, 2, "b", [again])
    assert new_files(store, ledger, changed("inode")) == ([], {})


def test_a_ledger_without_footers(store: MemoryStore) -> None:
    """As versions before have written it: what is in it was read."""
    sink = pa.BufferOutputStream()
    old = listing(1, 2).drop_columns(["footer_crc"]).select(["path", "bytes", "mtime_ns", "inode", "etag"])
    with pa.ipc.new_file(sink, old.schema) as file:
        file.write_table(old)
    data = sink.getvalue().to_pybytes()
    store.put("old.arrow", data)
    ledger = LedgerFiles(name=["old.arrow"], bytes=[len(data)], sha256=[sha256(data)], files=[2], index=[0])
    assert new_files(store, ledger, changed("inode")) == ([], {})
    ledger = extend_ledger(store, ledger, 1, "a", [listing(3)])
    assert ledger.files == [3]
    assert all(ledger.index), "all of it is in blocks now"
    assert new_files(store, ledger, listing(1, 2, 3, 4)) == ([3], {})


def test_the_ledger_is_merged_like_a_log(store: MemoryStore) -> None:
    ledger, written, seen = None, 0, []
    rng = np.random.default_rng(1)
    for version in range(1, 201):
        new = list(range(len(seen), len(seen) + int(rng.integers(1, 8))))
        seen += new
        before = set(ledger.name) if ledger else set()
        ledger = extend_ledger(store, ledger, version, "a", [listing(*new)])
        assert all(older >= 2 * newer for older, newer in itertools.pairwise(ledger.files))
        assert sum(ledger.files) == len(seen)
        written += sum(files for name, files in zip(ledger.name, ledger.files, strict=True) if name not in before)
    assert len(ledger.name) <= 10
    assert written <= 10 * len(seen)
    assert sorted(read_ledger(store, ledger)["bytes"].to_pylist()) == seen
    assert extend_ledger(store, ledger, 300, "a", [listing()]) == ledger


def test_a_ledger_of_very_many(store: MemoryStore) -> None:
    """10^5 files, twenty of them new: whole columns are compared, without an object for each file."""
    table = listing(*range(100_000)).sort_by("path")
    ledger = extend_ledger(store, None, 1, "a", [table.slice(20)])
    assert new_files(store, ledger, table) == (list(range(20)), {})
    assert ledger.bytes[0] < 1_000_000


class Read(MemoryStore):
    """Notes how many bytes are read."""

    bytes = 0

    def read(self, *arguments: Any) -> bytes:
        data = super().read(*arguments)
        self.bytes += len(data)
        return data


def test_a_listing_is_compared_with_the_blocks_that_may_have_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "BLOCK_FILES", 100)
    ledger = extend_ledger(store, None, 1, "a", [listing(*range(1_000, 9_000))])
    reader = Read(store.uri)
    assert new_files(reader, ledger, listing(*range(5_000, 5_101))) == ([], {})
    assert 0 < reader.bytes < ledger.bytes[0] / 10
    assert new_files(reader, ledger, listing(*range(4_000, 9_001))) == ([5_000], {})


@pytest.mark.parametrize("seed", daily.first(range(2)))
def test_any_ledger_and_any_listing(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Small blocks and parts, files that change and move, listings that lose files: as a set of lines would say."""
    monkeypatch.setattr(ledgers, "BLOCK_FILES", 5)
    monkeypatch.setattr(ledgers, "PART_FILES_MAX", 20)
    monkeypatch.setattr(ledgers, "BLOCKS_AT_ONCE", 2)
    rng = np.random.default_rng(seed)
    ledger, known, written = None, set[tuple[Any, ...]](), 0
    for version in range(1, 26):
        numbers = np.unique(rng.integers(120, size=rng.integers(1, 60)))
        lines = [
            (f"{it:03}", 1, int(rng.integers(2)), "", int(rng.integers(2)), int(rng.integers(-1, 2))) for it in numbers
        ]
        table = file_table(dict(zip(COLUMNS, zip(*lines, strict=True), strict=True)))
        footers = {place: {it[5] for it in known if it[:4] == line[:4]} for place, line in enumerate(lines)}
        same = {it[:5] for it in known}
        moved = {place: crcs for place, crcs in footers.items() if crcs and lines[place][:5] not in same}
        expected = [place for place, crcs in footers.items() if not crcs]
        assert new_files(store, ledger, table) == (
            expected,
            {place: crcs for place, crcs in moved.items() if UNKNOWN_CRC not in crcs},
        )
        new = table.take(pa.array([*expected, *moved], pa.int64()))
        before = set(ledger.name) if ledger else set()
        ledger = extend_ledger(store, ledger, version, "a", [new])
        written += sum(files for name, files in zip(ledger.name, ledger.files, strict=True) if name not in before)
        known |= {tuple(it.values()) for it in new.to_pylist()}
        assert {tuple(it.values()) for it in read_ledger(store, ledger).to_pylist()} == known
        assert max(ledger.files) <= 20
    assert written <= 5 * len(known), "full parts are not written again"


def test_a_damaged_ledger(store: MemoryStore) -> None:
    ledger = extend_ledger(store, None, 1, "a", [listing(1)])
    (name,) = ledger.name
    store.objects[name] = store.objects[name][:-1]
    with pytest.raises(fp.SnapshotError, match=rf"{store.uri}/{name}, bytes .*: its SHA-256 is"):
        read_ledger(store, ledger)
    store.clear("segments")
    segment_files.CACHE.clear()
    with pytest.raises(fp.SnapshotError, match=rf"{store.uri}/{name}, bytes .*: missing"):
        read_ledger(store, ledger)
