"""Delta tables whose files get other columns: refused before the decision, or added by the same commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from fencepost import state as states
from fencepost.lake import DedupJob
from fencepost.state import delta_sink
from fencepost.state.delta_log import put_commit, read_table
from fencepost.state.stores import LocalStore
from support.lake import with_column
from support.schemas import ROWS, events, ints


def land(root: Path, name: str, table: pa.Table) -> None:
    (root / "source").mkdir(exist_ok=True)
    pq.write_table(table, root / "source" / name)


def run(root: Path, **options: Any) -> Any:
    places = [root / name for name in ("source", "state", "sink")]
    return DedupJob(*places, settle_ms=0, **{"layout": "delta", "schema": "merge"} | options).run()


def rows_of(root: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(root / "sink").to_pyarrow_table().to_pylist(), key=lambda it: it["seq"])


def types_of(root: Path) -> dict[str, Any]:
    table = read_table(LocalStore(root / "sink"))
    assert table
    return {field["name"]: field["type"] for field in table.fields}


def allow_wider_types(root: Path) -> None:
    """What ALTER TABLE ... SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true') writes."""
    store = LocalStore(root / "sink")
    table = read_table(store)
    assert table
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    metadata = {**table.metadata, "configuration": {"delta.enableTypeWidening": "true"}}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    assert put_commit(store, table.version + 1, [{"protocol": protocol}, {"metaData": metadata}])


def test_new_and_missing_columns_are_null_elsewhere(tmp_path: Path) -> None:
    land(tmp_path, "a.parquet", events(0, x=ints(pa.int32())))
    run(tmp_path)
    land(tmp_path, "b.parquet", events(ROWS, y=pa.array(["b"] * ROWS)))
    land(tmp_path, "c.parquet", events(2 * ROWS, x=ints(pa.int32()), z=ints(pa.float64())))
    run(tmp_path)
    found = [(it["x"], it["y"], it["z"]) for it in rows_of(tmp_path)]
    numbers = range(ROWS)
    assert found == [(it, None, None) for it in numbers] + [(None, "b", None)] * ROWS + [
        (it, None, it) for it in numbers
    ]
    land(tmp_path, "d.parquet", events(3 * ROWS, x=ints(pa.int32())))
    run(tmp_path, schema="strict")
    commits = [(tmp_path / "sink" / "_delta_log" / f"{it:020}.json").read_text() for it in range(4)]
    assert ["metaData" in it for it in commits] == [True, False, True, False]


REFUSED = {
    "a new column under strict": ({"y": ints(pa.int32())}, "strict", "column 'y' of .* not in the table"),
    "a wider type": (
        {"x": ints(pa.int64())},
        "merge",
        "'x' of .* long, in the table .*integer, and the table",
    ),
    "a smaller type": ({"x": ints(pa.int8())}, "merge", "'x' of .* byte, in the table .*integer, and only wider"),
    "another type": ({"x": pa.array(["a"] * ROWS)}, "merge", "'x' of .* string, in the table .*integer, and only"),
    "upper case": ({"X": ints(pa.int32())}, "merge", "column 'X' of .* the table has 'x'"),
    "no zone": (
        {"at": pa.array([0] * ROWS, pa.timestamp("us"))},
        "merge",
        "the feature .*timestampNtz",
    ),
    "no type": ({"y": pa.nulls(ROWS)}, "merge", "column 'y': .*no type for null"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_unsuitable_rows_are_refused_before_the_decision(tmp_path: Path, why: str) -> None:
    columns, rule, text = REFUSED[why]
    land(tmp_path, "a.parquet", events(0, x=ints(pa.int32())))
    run(tmp_path)
    land(tmp_path, "b.parquet", events(ROWS, **columns))
    with pytest.raises(fp.SinkError, match=text):
        run(tmp_path, schema=rule)
    assert states.open(tmp_path / "state").decided() == 1
    assert len(rows_of(tmp_path)) == ROWS


def test_types_are_widened_where_the_table_allows_it(tmp_path: Path) -> None:
    narrow = {"x": ints(pa.int32()), "y": ints(pa.float32()), "z": pa.array(range(ROWS), pa.decimal128(9, 2))}
    wide = {"x": ints(pa.int64()), "y": ints(pa.float64()), "z": pa.array(range(ROWS), pa.decimal128(12, 2))}
    land(tmp_path, "a.parquet", events(0, **narrow))
    run(tmp_path)
    allow_wider_types(tmp_path)
    land(tmp_path, "b.parquet", events(ROWS, **wide))
    land(tmp_path, "c.parquet", events(2 * ROWS, **narrow))
    run(tmp_path)
    assert {name: types_of(tmp_path)[name] for name in narrow} == {"x": "long", "y": "double", "z": "decimal(12,2)"}
    table = read_table(LocalStore(tmp_path / "sink"))
    changes = {it["name"]: it["metadata"].get("delta.typeChanges") for it in table.fields} if table else {}
    assert changes["x"] == [{"fromType": "integer", "toType": "long"}]
    assert changes["seq"] is None
    land(tmp_path, "d.parquet", events(3 * ROWS, **narrow))
    assert run(tmp_path).counts == {"ACCEPTED": ROWS}, "a file as those before the change is no other change"
    assert len(DeltaTable(tmp_path / "sink").file_uris()) == 4


@pytest.mark.parametrize("kind", ["integer", "string"])
def test_the_same_new_column_of_another_writer_is_not_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same column by another writer is not a conflict. One of another type stops the version."""
    land(tmp_path, "a.parquet", events(0))
    run(tmp_path)
    land(tmp_path, "b.parquet", events(ROWS, x=ints(pa.int32())))
    real, done = delta_sink.put_commit, list[int]()

    def put(store: LocalStore, version: int, actions: Any) -> bool:
        if not done:
            done.append(version)
            table = read_table(store)
            assert table
            fields = [*table.fields, {"name": "x", "type": kind, "nullable": True, "metadata": {}}]
            text = json.dumps({"type": "struct", "fields": fields})
            assert real(store, version, [{"metaData": table.metadata | {"schemaString": text}}])
        return real(store, version, actions)

    monkeypatch.setattr(delta_sink, "put_commit", put)
    if kind == "integer":
        run(tmp_path)
        assert [it["x"] for it in rows_of(tmp_path)] == [None] * ROWS + [*range(ROWS)]
        return
    with pytest.raises(fp.SinkError, match=r"'x' .*integer, in the table .*string"):
        run(tmp_path)
    states.open(tmp_path / "state").abandon(2)
    assert len(rows_of(tmp_path)) == ROWS


def _columns_of_others(root: Path, change: str) -> None:
    table = DeltaTable(root / "sink").to_pyarrow_table()
    how: dict[str, Any] = {"partition_by": ["y"]} if change == "partitions" else {}
    if change == "one less":
        table = table.drop_columns(["y"])
    if change == "another type":
        table = with_column(table, "y", table["seq"])
    if change == "a constraint":
        DeltaTable(root / "sink").alter.add_constraint({"some": "seq >= 0"})
    elif change == "one more":
        DeltaTable(root / "sink").alter.add_columns([Field("z", "long")])
    else:
        write_deltalake(root / "sink", table, mode="overwrite", schema_mode="overwrite", **how)


CHANGES = {
    "one less": "no column 'y'.* changed after version 2 .* state abandon",
    "another type": "'y' .*string, in the table .*long.* changed after version 2 .* state abandon",
    "partitions": r"partitioned by \['y'\].* changed after version 2 .* state abandon",
    "a constraint": "constraints",
    "one more": None,
}


@pytest.mark.parametrize(
    ("change", "rule", "dies"),
    [
        # Each pair of values once.
        pytest.param(change, rule, dies, marks=() if dies == ((rule == "merge") == at % 2) else pytest.mark.matrix)
        for at, change in enumerate(CHANGES)
        for rule in ("strict", "merge")
        for dies in (True, False)
    ],
)
def test_columns_that_others_change_between_decision_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, rule: str, dies: bool
) -> None:
    """Otherwise the values of a column that the table has no longer would be lost without an error."""
    land(tmp_path, "a.parquet", events(0, y=pa.array(["a"] * ROWS)))
    run(tmp_path)
    land(tmp_path, "b.parquet", events(ROWS, y=pa.array(["b"] * ROWS)))
    real = delta_sink.DeltaSink._write

    def write(*arguments: Any) -> None:
        monkeypatch.undo()
        _columns_of_others(tmp_path, change)
        if dies:
            raise KeyboardInterrupt
        real(*arguments)

    def commit() -> None:
        if dies:
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, schema=rule)
        run(tmp_path, schema=rule)

    monkeypatch.setattr(delta_sink.DeltaSink, "_write", write)
    if CHANGES[change] is None:
        commit()
        assert [it["y"] for it in rows_of(tmp_path)] == ["a"] * ROWS + ["b"] * ROWS
        return
    with pytest.raises(fp.SinkError, match=CHANGES[change]):
        commit()
    assert [it["seq"] for it in rows_of(tmp_path)] == [*range(ROWS)]
    states.open(tmp_path / "state").abandon(2)
    assert len(rows_of(tmp_path)) == ROWS
    if change == "one less" and rule == "merge":
        assert run(tmp_path).counts == {"ACCEPTED": ROWS}
        assert [it["y"] for it in rows_of(tmp_path)] == [None] * ROWS + ["b"] * ROWS


def test_a_new_table_has_the_columns_of_all_files(tmp_path: Path) -> None:
    land(tmp_path, "a.parquet", events(0, x=ints(pa.int32())))
    land(tmp_path, "b.parquet", events(ROWS, y=pa.array([0] * ROWS, pa.timestamp("us"))))
    run(tmp_path)
    assert types_of(tmp_path) == dict.fromkeys(("pid", "epoch", "partition", "seq"), "long") | {
        "x": "integer",
        "y": "timestamp_ntz",
    }
    assert len(rows_of(tmp_path)) == 2 * ROWS
    land(tmp_path, "c.parquet", events(2 * ROWS, z=pa.array([0] * ROWS, pa.timestamp("us"))))
    run(tmp_path)
    assert len(rows_of(tmp_path)) == 3 * ROWS
