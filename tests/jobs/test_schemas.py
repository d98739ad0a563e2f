"""Sinks whose files get other columns: refused before the decision, or accepted, and read as one dataset."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake
from fencepost import state as states
from fencepost._native import parquet_footer
from fencepost.lake import DedupJob, dataset
from fencepost.lake.plan import PLANS
from fencepost.lake.schemas import from_text, merged, to_text
from fencepost.state.decision import decision_from_json, to_json
from fencepost.state.sinks import RunFolders
from support.lake import with_column
from support.object_sinks import Bucket
from support.quick_retries import probe_little  # noqa: F401
from support.schemas import ROWS, events, ints


class Folders:
    def __init__(self, folder: Path) -> None:
        self.places = [str(folder / name) for name in ("source", "state", "sink")]
        self.options: dict[str, Any] = {}

    def land(self, name: str, table: pa.Table, **options: Any) -> None:
        path = Path(self.places[0]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)

    def run(self, **options: Any) -> Any:
        return DedupJob(*self.places, settle_ms=0, **options).run()

    @property
    def decided(self) -> int:
        return states.open(self.places[1]).decided()

    def rows(self) -> pa.Table:
        found = dataset(self.places[2]).to_table()
        return found.drop_columns([it for it in ("run", "pid", "epoch", "partition") if it in found.column_names])


class Prefixes(Folders):
    """The same in an object store."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.bucket = Bucket(folder, endpoint)
        self.options = self.bucket.options
        self.places = [f"{self.bucket.root}/{name}" for name in ("source", "state", "sink")]

    def land(self, name: str, table: pa.Table, **options: Any) -> None:
        self.bucket.land(name, table, **options)

    def run(self, **options: Any) -> Any:
        return self.bucket.job(settle_ms=0, **options).run()

    @property
    def decided(self) -> int:
        return int(self.bucket.state().decided())

    def rows(self) -> pa.Table:
        return dataset(self.places[2], self.options).to_table().drop_columns(["run", "pid", "epoch", "partition"])


IN_STORE = "prefixes"
STORES = ["folders", IN_STORE]


@pytest.fixture(params=STORES)
def job(request: pytest.FixtureRequest, tmp_path: Path, endpoint: str) -> Folders:
    return Folders(tmp_path) if request.param == "folders" else Prefixes(tmp_path, endpoint)


OTHERS = {
    "type": ({"x": ints(pa.int64())}, "x", r"b\.parquet: column 'x': int64; the sink has int32"),
    "text": ({"x": pa.array(["a"] * ROWS)}, "x", r"b\.parquet: column 'x': string; the sink has int32"),
    "new": ({"x": ints(pa.int32()), "y": ints(pa.int32())}, "y", "column 'y': int32; .*no such column"),
    "missing": ({}, "x", "column 'x': missing; the sink has int32"),
}


@pytest.mark.parametrize(
    ("job", "plan", "other"),
    [
        # In a store, each plan and each kind of columns once.
        pytest.param(job, plan, other, marks=pytest.mark.matrix if job == IN_STORE and rest else ())
        for job in STORES
        for at, other in enumerate(OTHERS)
        for plan, rest in ((it, PLANS.index(it) != at % len(PLANS)) for it in PLANS)
    ],
    indirect=["job"],
)
def test_other_columns_stop_a_run_before_anything_is_decided(job: Folders, other: str, plan: Any) -> None:
    columns, column, text = OTHERS[other]
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.run(plan=plan)
    before = job.rows()
    job.land("b.parquet", events(ROWS, **columns))
    with pytest.raises(fp.BatchError, match=text) as error:
        job.run(plan=plan)
    assert error.value.column == column
    assert job.decided == 1
    assert job.rows().equals(before)


@pytest.mark.parametrize(
    ("job", "other"),
    [
        pytest.param(job, other, marks=pytest.mark.matrix if job == IN_STORE and other != "type" else ())
        for job in STORES
        for other in OTHERS
    ],
    indirect=["job"],
)
def test_files_with_other_columns_can_be_quarantined_by_name(job: Folders, other: str) -> None:
    columns, _, text = OTHERS[other]
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.run()
    job.land("b.parquet", events(ROWS, **columns))
    job.land("c.parquet", events(2 * ROWS, x=ints(pa.int32())))
    report = job.run(on_bad_file="quarantine")
    assert report.kept == ROWS
    [(path, reason)] = report.quarantined
    assert path == "b.parquet"
    assert re.search(text, reason)
    assert sorted(job.rows()["seq"].to_pylist()) == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]


def test_files_of_one_run_have_the_same_columns(job: Folders) -> None:
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.land("b.parquet", events(ROWS, x=ints(pa.int64())))
    for rule in (None, "quarantine"):  # nobody can tell which of the two is right
        with pytest.raises(
            fp.BatchError, match=r"b\.parquet: column 'x': int64; \S+a\.parquet has int32\. schema='merge'"
        ):
            job.run(on_bad_file=rule)
    with pytest.raises(fp.SnapshotError, match=r"there is no state\.json"):
        _ = job.decided


def test_merged_columns_are_read_as_one_dataset(job: Folders) -> None:
    point = pa.array([{"x": 1.5}] * ROWS)
    job.land("a.parquet", events(0, x=ints(pa.int32()), text=pa.nulls(ROWS), point=point))
    job.run(schema="merge")
    job.land("b.parquet", events(ROWS, x=ints(pa.int64()), text=pa.array(["a"] * ROWS), y=ints(pa.float32())))
    job.land("c.parquet", events(2 * ROWS, y=ints(pa.float64()), x=ints(pa.int16())))
    assert job.run(schema="merge").kept == 2 * ROWS
    rows = job.rows().sort_by("seq")
    assert {field.name: field.type for field in rows.schema} == {
        "seq": pa.int64(),
        "x": pa.int64(),
        "text": pa.string(),
        "point": point.type,
        "y": pa.float64(),
    }
    assert rows["x"].to_pylist() == 3 * [*range(ROWS)]
    assert rows["text"].to_pylist() == [None] * ROWS + ["a"] * ROWS + [None] * ROWS
    assert rows["y"].to_pylist() == [None] * ROWS + 2 * [0, 1, 2, 3]
    assert rows["point"].to_pylist() == [{"x": 1.5}] * ROWS + [None] * (2 * ROWS)
    # Strict again: the columns that the sink has by now are the rule.
    job.land("d.parquet", events(3 * ROWS, x=ints(pa.int32())))
    with pytest.raises(fp.BatchError, match="the sink has int64"):
        job.run()


def test_no_schema_reads_text_and_numbers(job: Folders) -> None:
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.run(schema="merge")
    job.land("b.parquet", events(ROWS, x=pa.array(["a"] * ROWS)))
    with pytest.raises(fp.BatchError, match=r"column 'x': string; the sink has int32\. Another"):
        job.run(schema="merge")
    assert job.decided == 1


def test_how_a_file_was_written_makes_no_other_columns(tmp_path: Path) -> None:
    """Order of columns, nulls, dictionaries, versions and codecs."""
    job = Folders(tmp_path)
    table = events(0, x=ints(pa.int32()), text=pa.array(["a"] * ROWS), many=pa.array([[1]] * ROWS))
    job.land("a.parquet", table)
    job.run()
    fields = [field.with_nullable(False) for field in table.schema]
    seqs = pa.array(range(ROWS, 2 * ROWS))
    others = [
        table.select(table.column_names[::-1]),
        table.cast(pa.schema(fields)),
        with_column(table, "text", table["text"].dictionary_encode()),
        with_column(table, "text", table["text"].cast(pa.large_string())),
        table.replace_schema_metadata({"writer": "another"}),
    ]
    for number, other in enumerate(others):
        place = other.schema.get_field_index("seq")
        moved = other.set_column(place, other.schema.field(place), pa.compute.add(seqs, number * ROWS))
        job.land(f"b{number}.parquet", moved, data_page_version="2.0", compression="zstd", version="2.6")
        assert job.run().kept == ROWS
    assert sorted(job.rows()["seq"].to_pylist()) == list(range(ROWS * (1 + len(others))))


def test_a_rollback_restores_the_columns_of_its_version(tmp_path: Path) -> None:
    job = Folders(tmp_path)
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.run()
    job.land("b.parquet", events(ROWS, x=ints(pa.int64())))
    job.run(schema="merge")
    state = states.open(job.places[1])
    with pytest.raises(fp.SinkError):
        state.rollback(1)
    state.rollback(1, accept_duplicates=True)
    assert noted(job, 3) == noted(job, 2) != noted(job, 1)  # rows of int64 are still there
    state.rollback(1, accept_duplicates=True)
    for path in Path(job.places[2], "run=2").glob("*.parquet"):
        path.unlink()
    state.rollback(1)
    assert noted(job, 5) == noted(job, 1)


def noted(job: Folders, version: int) -> pa.Schema | None:
    schema = states.open(job.places[1]).version(version).schema
    return None if schema is None else from_text(schema)


def test_a_state_that_noted_no_columns_learns_them_from_its_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Folders(tmp_path)
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolders, "can_merge", False)
        job.run()
    assert noted(job, 1) is None
    text = to_json(states.open(job.places[1]).version(1))
    assert b'"schema"' not in text
    assert decision_from_json(text, "").schema is None
    job.land("b.parquet", events(ROWS, x=ints(pa.int64())))
    job.run()
    assert noted(job, 2) == pa.schema(parquet_footer(Path(job.places[0]) / "b.parquet").schema)


def test_the_manifest_of_a_prefix_has_the_columns(tmp_path: Path, endpoint: str) -> None:
    job = Prefixes(tmp_path, endpoint)
    job.land("a.parquet", events(0, x=ints(pa.int32())))
    job.run()
    manifest = json.loads(job.bucket.store("sink").read("run=1/_SUCCESS"))
    names = {"pid": pa.int64(), "epoch": pa.int64(), "partition": pa.int64(), "seq": pa.int64(), "x": pa.int32()}
    assert from_text(manifest["schema"]) == pa.schema(list(names.items()))


def test_tables_have_columns_of_their_own(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    write_deltalake(tmp_path / "table", events(0))
    places = [str(tmp_path / it) for it in ("table", "state", "table")]
    with pytest.raises(fp.SinkError, match="schema='merge' cannot change"):
        DedupJob(*places, schema="merge")
    with pytest.raises(ValueError, match="schema='other': expected one of 'strict', 'merge'"):
        DedupJob(*folders.places, schema="other")  # type: ignore[arg-type]


WIDER = [
    (pa.int8(), pa.int64()),
    (pa.uint8(), pa.uint32()),
    (pa.uint16(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(9, 2), pa.decimal128(30, 2)),
    (pa.decimal128(38, 2), pa.decimal256(40, 2)),
    (pa.null(), pa.string()),
    (pa.null(), pa.struct({"a": pa.int8()})),
]
APART = [
    (pa.int64(), pa.uint64()),
    (pa.int64(), pa.float64()),
    (pa.decimal128(9, 2), pa.decimal128(9, 3)),
    (pa.string(), pa.binary()),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.date32(), pa.timestamp("us")),
]


@pytest.mark.parametrize(("small", "large"), WIDER)
def test_the_wider_type_is_taken(small: pa.DataType, large: pa.DataType) -> None:
    first, second = pa.schema({"a": small, "b": pa.int8()}), pa.schema({"c": pa.int8(), "a": large})
    wide = {"a": large, "b": pa.int8(), "c": pa.int8()}
    assert merged(first, second) == pa.schema(wide)
    assert merged(second, first) == pa.schema({"c": pa.int8(), "a": large, "b": pa.int8()})
    assert from_text(to_text(merged(first, second))) == pa.schema(wide)


def test_integers_of_two_signs_are_widened_to_what_holds_both() -> None:
    for first, second in ((pa.int32(), pa.uint32()), (pa.uint32(), pa.int8())):
        assert merged(pa.schema({"a": first}), pa.schema({"a": second})) == pa.schema({"a": pa.int64()})


@pytest.mark.parametrize(("first", "second"), APART)
def test_types_that_do_not_hold_each_other_are_refused(first: pa.DataType, second: pa.DataType) -> None:
    for one, other in ((first, second), (second, first)):
        with pytest.raises(fp.BatchError, match="column 'a'") as error:
            merged(pa.schema({"a": one}), pa.schema({"a": other}))
        assert error.value.column == "a"
