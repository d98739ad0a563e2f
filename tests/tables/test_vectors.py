"""Deletion vectors: rows that are gone from a file are neither judged nor written nor counted."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fencepost as fp
import numpy as np
import polars as pl
import polars.testing
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from fencepost import state
from fencepost.lake import audit
from fencepost.lake.scan import LENGTH, ROW, without
from fencepost.state.stores import LocalStore
from fencepost.state.vectors import MAGIC, Bitmap, from_z85, ranges_of, read_vector, to_z85
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64
from support.lake import SCHEMA, first_of_each, make_job, make_rows, read_sink

PLANS = ("interval", "row", "aligned")


def to_bitmap(rows: Iterable[int]) -> Bitmap:
    found: Bitmap = BitMap64(rows).serialize()
    return found


@settings(deadline=None)
@given(st.sets(st.integers(0, 2**34)))
def test_bitmaps_come_back(rows: set[int]) -> None:
    firsts, counts = ranges_of(to_bitmap(sorted(rows)))
    found = [first + at for first, count in zip(firsts.tolist(), counts.tolist(), strict=True) for at in range(count)]
    assert found == sorted(rows)
    assert all(np.diff(firsts.astype(np.int64)) > counts[:-1].astype(np.int64))  # ranges do not touch


@settings(deadline=None)
@given(st.binary().map(lambda it: it[: len(it) // 4 * 4]))
def test_z85_comes_back(data: bytes) -> None:
    assert from_z85(to_z85(data)) == data


def test_z85_is_that_of_its_specification() -> None:
    assert to_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=12), st.sets(st.integers(0, 60)))
def test_spans_without_rows_that_are_gone(spans: list[tuple[int, int]], gone: set[int]) -> None:
    """`spans`: (rows, rows of other shards behind it) one after the other; against row by row."""
    lines, row = [], 0
    for number, (length, skipped) in enumerate(spans):
        lines.append({"pid": number, "seq": 1000 * number, LENGTH: length, ROW: row})
        row += length + skipped
    schema = pa.schema([("pid", pa.int64()), ("seq", pa.int32()), (LENGTH, pa.uint32()), (ROW, pa.uint64())])
    left, count = without(pa.RecordBatch.from_pylist(lines, schema), *ranges_of(to_bitmap(sorted(gone))), "seq")

    def rows_of(lines: list[dict[str, int]]) -> list[tuple[int, int, int]]:
        return [(it["pid"], it["seq"] + at, it[ROW] + at) for it in lines for at in range(it[LENGTH])]

    expected = [it for it in rows_of(lines) if it[2] not in gone]
    assert rows_of(left.to_pylist()) == expected
    assert count == len(rows_of(lines)) - len(expected)
    assert left.schema == schema


# -- In tables


def take_away(root: Path, gone: list[list[int]], storage: str = "i") -> None:
    """Commit vectors for the table's files, in the order of their names, as a deletion does."""
    table = DeltaTable(root / "source")
    log = root / "source" / "_delta_log"
    lines = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines()]
    added = sorted((it["add"] for it in lines if "add" in it), key=lambda it: str(it["path"]))
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "DELETE"}}]
    data = b"\x01"
    name = uuid4()
    for add, rows in zip(added, gone, strict=True):
        vector = MAGIC + to_bitmap(rows)
        place: dict[str, Any] = {"sizeInBytes": len(vector), "cardinality": len(rows), "storageType": storage}
        if storage == "i":
            place["pathOrInlineDv"] = to_z85(vector + bytes(-len(vector) % 4))
        else:
            place["pathOrInlineDv"] = "ab" + to_z85(name.bytes) if storage == "u" else (root / "v.bin").as_uri()
            place["offset"] = len(data)
            data += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        same = {name: add[name] for name in ("path", "partitionValues", "size")}
        actions.append({"remove": same | {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}})
        actions.append({"add": add | {"deletionVector": place}})
    if storage == "u":
        (root / "source" / "ab").mkdir()
        (root / "source" / "ab" / f"deletion_vector_{name}.bin").write_bytes(data)
    elif storage == "p":
        (root / "v.bin").write_bytes(data)
    (log / f"{table.version() + 1:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def land(root: Path, *seeds: int) -> dict[str, pa.Table]:
    """A table with a file for each seed; gives what each file holds, by their names, in order."""
    for seed in seeds:
        write_deltalake(
            root / "source",
            make_rows(seed, 300).sort_by([(name, "ascending") for name in SCHEMA.names[:4]]),
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"},
        )
    files = sorted(map(Path, DeltaTable(root / "source").file_uris()))
    return {file.name: pq.read_table(file) for file in files}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("storage", ["i", "u", "p"])
def test_removed_rows_are_not_read(tmp_path: Path, storage: str, plan: Any) -> None:
    tables = land(tmp_path, 0, 1, 2)
    rng = np.random.default_rng(5)
    gone = [sorted(rng.choice(300, count, replace=False).tolist()) for count in (40, 299, 1)]
    take_away(tmp_path, gone, storage)
    report = make_job(tmp_path, plan=plan).run()
    there = {
        name: table.filter(~np.isin(np.arange(300), rows))
        for (name, table), rows in zip(tables.items(), gone, strict=True)
    }
    rows = pl.DataFrame(pa.concat_tables([there[it["path"]] for it in report.inputs.to_pylist()]))
    assert report.rows == sum(report.counts.values()) == len(rows)
    polars.testing.assert_frame_equal(
        read_sink(tmp_path).select(SCHEMA.names).sort("origin"), first_of_each(rows).sort("origin")
    )
    assert sum(state.open(tmp_path / "state").version(1).inputs.rows) == len(rows)


def test_vectors_that_differ_from_the_table_are_refused(tmp_path: Path) -> None:
    land(tmp_path, 0)
    take_away(tmp_path, [[1, 2, 3]], "u")
    file = next((tmp_path / "source" / "ab").iterdir())
    whole = file.read_bytes()
    name = bytes.fromhex(file.stem.removeprefix("deletion_vector_").replace("-", ""))
    place: dict[str, Any] = {"storageType": "u", "pathOrInlineDv": "ab" + to_z85(name)}
    place |= {"offset": 1, "sizeInBytes": len(whole) - 9, "cardinality": 3}
    assert ranges_of(read_vector(LocalStore(tmp_path / "source"), place))[1].tolist() == [3]
    for harm, match in (
        ({"cardinality": 4}, "has 3 rows, but .* declares 4"),
        ({"sizeInBytes": 20}, "not the .*vector of 20 bytes"),
        ({"storageType": "x"}, "storage type 'x'"),
    ):
        with pytest.raises(fp.SourceError, match=match):
            read_vector(LocalStore(tmp_path / "source"), place | harm)
    file.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])
    with pytest.raises(fp.SourceError, match=f"not the .*vector of {len(whole) - 9} bytes"):
        read_vector(LocalStore(tmp_path / "source"), place)
    file.unlink()
    with pytest.raises(fp.SourceError, match="does not exist"):
        read_vector(LocalStore(tmp_path / "source"), place)


def test_audits_do_not_read_them_yet(tmp_path: Path) -> None:
    land(tmp_path, 0)
    take_away(tmp_path, [[1]])
    with pytest.raises(fp.SourceError, match="deletion vectors"):
        audit(tmp_path / "source")
