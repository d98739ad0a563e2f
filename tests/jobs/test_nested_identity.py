"""Identity columns in structs of Parquet files: audits, advice and jobs give the answers of flat columns."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fencepost import BatchError, Columns, lake
from fencepost.generate import LandingZone, generate
from fencepost.lake.ahead import byte_ranges_of
from support import daily

FLAT = Columns(pid="name", partition=("topic", "partition"), timestamp="timestamp")
NESTED = Columns(pid="head.id.name", partition=("topic", "partition"), seq="head.seq", timestamp="head.at")


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of the same rows. Rows without a producer have a null struct, or null fields."""
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=8_000, producers=20, payload_bytes=4, zombie_share=1.0, missing_share=0.01))
    for kind in ("flat", "nested"):
        (path / kind).mkdir()
    for number, file in enumerate(sorted((path / "landing").glob("*.parquet"))):
        rows = pq.read_table(file).combine_chunks()
        is_tracked = pc.greater_equal(rows["pid"], 0).combine_chunks()
        columns = {name: rows[name].combine_chunks() for name in ("pid", "seq", "timestamp", "offset")}
        name = pc.if_else(is_tracked, columns.pop("pid").cast(pa.string()), None)
        seq = pc.if_else(is_tracked, columns["seq"], None)
        flat = rows.drop_columns(["pid", "seq"]).append_column("name", name).append_column("seq", seq)
        pq.write_table(flat, path / "flat" / file.name, row_group_size=500)
        ids = pa.StructArray.from_arrays([name.dictionary_encode() if number % 2 else name], ["name"])
        other = pa.array([["a"]] * len(rows))
        is_null = pc.and_(pc.invert(is_tracked), pc.equal(pc.bit_wise_and(columns["offset"], 1), 0))
        fields = [other, columns["timestamp"], columns["seq"], ids]
        head = pa.StructArray.from_arrays(fields, ["other", "at", "seq", "id"], mask=is_null)
        kept = rows.drop_columns(["pid", "seq", "timestamp"])
        pq.write_table(kept.append_column("head", head), path / "nested" / file.name, row_group_size=500)
    return path


def test_audits_and_advice(zone: Path) -> None:
    flat, nested = (lake.audit(zone / name, columns=it) for name, it in (("flat", FLAT), ("nested", NESTED)))
    assert nested.counts["UNTRACKED"] > 0
    for name in ("rows", "counts", "missing_rows", "stale_epoch", "producers", "files"):
        assert getattr(nested, name) == getattr(flat, name), name
    for name in ("missing", "timeline", "distances", "keys", "examples"):
        assert getattr(nested, name).equals(getattr(flat, name)), name
    advice = [lake.advise(zone / name, it) for name, it in (("flat", FLAT), ("nested", NESTED))]
    assert advice[0].policies.equals(advice[1].policies)
    assert advice[0].max_idle_ms == advice[1].max_idle_ms


def test_advice_on_rows_without_a_producer(tmp_path: Path) -> None:
    head = pa.array([None] * 3, pa.struct([("id", pa.string()), ("seq", pa.int64())]))
    pq.write_table(pa.table({"head": head, "epoch": [0] * 3, "partition": [0] * 3}), tmp_path / "a.parquet")
    advice = lake.advise(tmp_path, Columns(pid="head.id", seq="head.seq"))
    assert advice.policies["UNTRACKED"][0].as_py() == advice.rows == 3


@pytest.mark.parametrize(
    ("options", "plan"),
    daily.each_value(({}, {"compare_content": ["key"]}, {"order_by": "offset"}), ("aligned", "interval", "row")),
)
def test_jobs_keep_the_same_rows(zone: Path, tmp_path: Path, plan: Any, options: dict[str, Any]) -> None:
    if plan == "aligned" and "order_by" in options:
        plan = None
    kept = []
    for name, columns in (("flat", FLAT), ("nested", NESTED)):
        folders = (zone / name, tmp_path / f"{name}-state", tmp_path / name)
        more: dict[str, Any] = {"max_idle_ms": 1 << 50} if plan == "row" else {}
        job = lake.DedupJob(*map(str, folders), columns=columns, plan=plan, sync=False, files_max=5, **options, **more)
        reports = [job.run() for _ in range(3)]
        rows = lake.dataset(str(tmp_path / name)).to_table()
        where = [(it, "ascending") for it in ("topic", "partition", "offset")]
        kept.append(([it.counts for it in reports], [it.missing_rows for it in reports], rows.sort_by(where)))
        assert rows.schema.names == [*pq.read_schema(next((zone / name).iterdir())).names, "run"]
    assert kept[0][:2] == kept[1][:2]
    assert kept[0][2]["offset"].equals(kept[1][2]["offset"])


def test_conflicts_name_the_identity(tmp_path: Path) -> None:
    head = [{"pid": 7, "seq": seq} for seq in (0, 1, 1)]
    rows = pa.table({"head": head, "epoch": [0] * 3, "partition": [0] * 3, "text": ["a", "b", "c"]})
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "a.parquet")
    columns = Columns(pid="head.pid", seq="head.seq")
    found = lake.audit(tmp_path / "in", columns=columns, compare_content=True).conflicts.to_pylist()
    assert [(it["head.pid"], it["head.seq"], it["column"], it["found"]) for it in found] == [("7", "1", "text", "c")]
    assert lake.audit(tmp_path / "in", columns=columns, compare_content=["epoch"]).count_findings() == {"duplicate": 1}


def test_a_column_of_that_name_comes_first(tmp_path: Path) -> None:
    rows = pa.table({"pid": [7, 7], "epoch": [0, 0], "partition": [0, 0], "head": [{"seq": 0}] * 2, "head.seq": [0, 1]})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert lake.audit(tmp_path, columns=Columns(seq="head.seq")).counts == {"ACCEPTED": 2}
    pq.write_table(rows.drop_columns("head.seq"), tmp_path / "a.parquet")
    assert lake.audit(tmp_path, columns=Columns(seq="head.seq")).counts == {"ACCEPTED": 1, "DUPLICATE": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("head.none", r"column 'head.none': missing; 'head' has other, at, seq, id"),
        ("none.seq", r"column 'none.seq': missing; it has topic"),
        ("topic.seq", r"column 'topic.seq': 'topic' is not a struct"),
        ("head.other.list.element", r"column 'head.other.list.element': 'list' is not a struct"),
        ("head.other", r"column 'head.other': is of type List"),
        ("head.id", r"column 'head.id': is of type Struct"),
    ],
)
def test_names_that_are_not_of_a_field(zone: Path, tmp_path: Path, name: str, message: str) -> None:
    columns = Columns(pid=name, seq="head.seq")
    with pytest.raises(BatchError, match=message):
        lake.audit(zone / "nested", columns=columns)
    with pytest.raises(BatchError, match=message):
        lake.DedupJob(str(zone / "nested"), str(tmp_path / "s"), str(tmp_path / "o"), columns=columns, sync=False).run()


def test_objects_are_read_ahead(zone: Path) -> None:
    """Only the chunks of the fields, and all chunks of a column."""
    file = next((zone / "nested").iterdir())
    footer = pq.read_metadata(file)
    places = {footer.row_group(0).column(it).path_in_schema: it for it in range(footer.num_columns)}
    first = footer.row_group(0).column(places["head.seq"])
    start = first.dictionary_page_offset or first.data_page_offset
    assert byte_ranges_of(file.read_bytes(), ["head.seq"])[0] == [(start, start + first.total_compressed_size)]
    both = byte_ranges_of(file.read_bytes(), ["head"])[0]
    assert sum(end - begin for begin, end in both) > first.total_compressed_size


def test_rows_in_memory_agree(zone: Path) -> None:
    rows = pq.read_table(io.BytesIO(next((zone / "nested").iterdir()).read_bytes()))
    file = next((zone / "nested").iterdir())
    assert fp.audit(rows, columns=NESTED).counts == lake.audit(file, columns=NESTED).counts
