"""Repeats with other content: counted separately, shown, and stopped, quarantined or dropped by the job's settings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import auditor, lake
from fencepost.lake import auditing, comparing, conflicts, repeats
from fencepost.lake.refused import REFUSED_RANGES
from support import daily
from support.lake import IDENTITY, amounts, first_of_each, hashes, land, make_job, make_rows, read_sink

CONTENT = {"compare_content": True}


def truth(rows: pa.Table, names: list[str]) -> dict[str, int]:
    """Verdicts by plain dicts: a repeat is compared with the first of its identity."""
    kept: dict[Any, Any] = {}
    found = {"ACCEPTED": 0, "DUPLICATE": 0, "CONFLICT": 0, "UNTRACKED": 0}
    for row in rows.to_pylist():
        if row["pid"] is None or row["pid"] == -1:
            found["UNTRACKED"] += 1
            continue
        content = tuple(row[name] for name in names)
        first = kept.setdefault(tuple(row[name] for name in IDENTITY), content)
        is_first = first is content
        found["ACCEPTED" if is_first else "DUPLICATE" if first == content else "CONFLICT"] += 1
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("plan", [None, "row", "aligned"])
@pytest.mark.parametrize("together", [5, 1 << 20])
@pytest.mark.parametrize("seed", daily.first(range(3)))
def test_conflicts_are_those_that_plain_dicts_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, together: int, plan: Any
) -> None:
    monkeypatch.setattr(repeats, "ROWS_TOGETHER", together)
    rng = np.random.default_rng(seed)
    tables = []
    for number in range(4):
        rows = make_rows(seed * 10 + number, 300).drop_columns(["origin"])
        table = rows.append_column("x", pa.array(rng.integers(0, 2, 300))).append_column(
            "y", pa.array(rng.choice(["a", "b", None], 300))
        )
        land(tmp_path / "source", f"{number}.parquet", table, row_group_size=70)
        tables.append(table)
    rows = pa.concat_tables(tables)
    options: dict[str, Any] = {"on_conflict": "quarantine", "plan": plan, "shards": 3}
    report = make_job(tmp_path, compare_content=True, **options).run()
    assert report.counts == truth(rows, ["x", "y"])
    assert report.counts["CONFLICT"] > 100
    assert report.plan == ("row" if plan == "row" else "interval")
    assert report.content_compared == report.counts["DUPLICATE"] + report.counts["CONFLICT"]
    assert report.kept == len(first_of_each(pl.DataFrame(rows)))
    rejects = pq.read_table(tmp_path / "sink/run=1/_rejects/verdict=CONFLICT", partitioning=None)
    assert len(rejects) == report.counts["CONFLICT"] == report.rejected["CONFLICT"]
    first = pl.DataFrame(rows).unique(IDENTITY, keep="first", maintain_order=True)
    joined = pl.DataFrame(rejects).join(first, on=IDENTITY, how="left", suffix="_kept")
    assert joined.filter(pl.col("x").eq_missing(pl.col("x_kept")) & pl.col("y").eq_missing(pl.col("y_kept"))).is_empty()
    other = lake.DedupJob(tmp_path / "source", tmp_path / "c", tmp_path / "one", compare_content="x", **options).run()
    assert other.counts == truth(rows, ["x"])


def test_a_conflict_stops_the_run_and_shows_the_difference(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 1, 2], [1, 2, 3]))
    land(tmp_path / "source", "b.parquet", amounts([2, 1], [3, 5]))
    with pytest.raises(fp.PolicyError, match=r"1 row .*other content") as info:
        make_job(tmp_path, **CONTENT).run()
    assert "b.parquet, row 1: column 'amount' has 5, where a.parquet, row 1, has 2" in str(info.value)
    assert not list((tmp_path / "sink").glob("run=*"))
    assert [name for name in hashes(tmp_path) if "source" not in name and not name.endswith("_fencepost.json")] == []


def test_dropped_conflicts_are_counted_and_shown(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 1, 1, 1], [1, 2, 2, 9]))
    report = make_job(tmp_path, on_conflict="drop", rejects="all", **CONTENT).run()
    assert report.counts == {"ACCEPTED": 2, "DUPLICATE": 1, "CONFLICT": 1}
    assert report.rejected == {"DUPLICATE": 1}
    assert read_sink(tmp_path)["amount"].to_list() == [1, 2]
    (sample,) = report.conflicts.to_pylist()
    assert (sample["seq"], sample["row"], sample["kept_row"], sample["column"]) == ("1", 3, 1, "amount")
    assert (sample["found"], sample["kept"]) == ("9", "2")
    figures = json.loads(report.to_json())
    assert (figures["counts"]["CONFLICT"], figures["content_compared"]) == (1, 2)
    assert "conflicts" in str(report)
    assert "column 'amount' has 9" in str(report)


def test_views_are_compared(tmp_path: Path) -> None:
    """Arrow's schema in the file says view, as that of other writers of Arrow: Arrow cannot take these."""
    rows = amounts([0, 1, 1, 1], [1, 2, 2, 9])
    notes = pa.array(["a", "b", "b", "b, but longer than a view"], pa.string_view())
    land(tmp_path / "source", "a.parquet", rows.append_column("note", notes))
    report = make_job(tmp_path, on_conflict="drop", compare_content=["note"]).run()
    assert report.counts == {"ACCEPTED": 2, "DUPLICATE": 1, "CONFLICT": 1}
    (sample,) = report.conflicts.to_pylist()
    assert (sample["row"], sample["found"], sample["kept"]) == (3, "b, but longer than a view", "b")
    assert lake.audit(tmp_path / "source", compare_content=["note"]).counts["CONFLICT"] == 1


def test_content_is_compared_only_on_request(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 0], [1, 2]))
    report = make_job(tmp_path).run()
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 1, "DUPLICATE": 1}, None)
    assert "conflicts" not in str(report)


def test_repeats_of_an_earlier_run_are_counted_as_not_compared(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", amounts([0, 1], [1, 2]))
    make_job(tmp_path, **CONTENT).run()
    land(tmp_path / "source", "b.parquet", amounts([0, 2, 2], [9, 3, 3]))
    report = make_job(tmp_path, **CONTENT).run()
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 1, "DUPLICATE": 2}, 1)
    assert "of 1 repeat compared; 1 was not at hand" in str(report)


def test_equal_rows_of_other_types_and_files_are_copies(tmp_path: Path) -> None:
    """A column that was added, widths, dictionaries, and the order of columns."""
    rows = amounts([0, 1, 2], [1, 2, 3], name=["a", "b", None])
    land(tmp_path / "source", "a.parquet", rows)
    names = rows["name"].cast(pa.large_string()).dictionary_encode()
    added = rows.set_column(5, "name", names).append_column("added", pa.nulls(3, pa.int64()))
    land(tmp_path / "source", "b.parquet", added.select([*reversed(added.column_names)]))
    smaller = rows.set_column(4, "amount", rows["amount"].cast(pa.int8()))
    land(tmp_path / "source", "c.parquet", smaller)
    assert make_job(tmp_path, schema="merge", **CONTENT).run().counts == {"ACCEPTED": 3, "DUPLICATE": 6}


def test_columns_that_do_not_exist_are_named(tmp_path: Path) -> None:
    path = land(tmp_path / "source", "a.parquet", amounts([0, 0], [1, 2]))
    with pytest.raises(fp.BatchError, match="column 'amont': missing, but compare_content") as info:
        make_job(tmp_path, compare_content=["amont"]).run()
    assert str(path) in str(info.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"compare_content": []}, "compare_content=[]: expected True, or"),
        ({"compare_content": [1]}, "compare_content=[1]: expected True, or"),
        ({"compare_content": True, "on_conflict": "quarantine", "rejects": "none"}, "one of them"),
        ({"on_conflict": "keep"}, "on_conflict='keep': expected one of 'stop', 'quarantine', 'drop'"),
    ],
)
def test_invalid_combinations_of_options(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises((fp.PolicyError, ValueError)) as info:
        make_job(tmp_path, **options)
    assert error in str(info.value)


def test_a_file_that_changes_before_it_is_compared_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = land(tmp_path / "source", "a.parquet", amounts([0, 0], [1, 2]))
    changed: list[int] = []
    compare = conflicts.compare

    def change(*arguments: Any) -> Any:
        if not changed:
            changed.append(1)
            os.utime(path, (1, 1))
        return compare(*arguments)

    monkeypatch.setattr(comparing, "compare", change)
    report = make_job(tmp_path, on_conflict="drop", **CONTENT).run()
    assert (report.counts, changed, len(report.vanished)) == ({"ACCEPTED": 1, "CONFLICT": 1}, [1], 1)


def test_a_file_that_vanishes_before_its_conflicts_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = land(tmp_path / "source", "a.parquet", amounts([0, 0], [1, 2]))
    land(tmp_path / "source", "b.parquet", amounts([1], [1]))
    real = conflicts.Content.samples

    def samples(content: conflicts.Content, found: pa.Table) -> pa.Table:
        path.unlink()
        return real(content, found)

    monkeypatch.setattr(conflicts.Content, "samples", samples)
    report = make_job(tmp_path, on_conflict="drop", **CONTENT).run()
    assert (report.counts, report.vanished) == ({"ACCEPTED": 1}, (path.name,))


def test_a_conflict_in_place(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(tmp_path / "table", amounts([0, 1, 1], [1, 2, 9]))
    job = lake.DedupJob(tmp_path / "table", tmp_path / "state", tmp_path / "table", on_conflict="drop", **CONTENT)
    assert job.run().counts == {"ACCEPTED": 2, "CONFLICT": 1}
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().sort_by("seq")["amount"].to_pylist() == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_of_refused_rows_are_marked_row_by_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, rows = [], []
    for file in range(3):
        end = 0
        for _ in range(int(rng.integers(0, 6))):
            first, count = end + int(rng.integers(0, 3)), int(rng.integers(1, 7))
            end = first + count
            lines.append((file, first, count, int(rng.choice([1, 2]))))
            rows += [(file, row) for row in range(first, end) if lines[-1][3] == 1]
    refused_rows = pa.table(
        [list(column) for column in zip(*lines, strict=True)] if lines else [[]] * 4, schema=REFUSED_RANGES
    )
    wanted = {rows[place] for place in rng.permutation(len(rows))[: len(rows) // 2]}
    files, places = ([it[part] for it in wanted] for part in (0, 1))
    pairs = pa.table({"file": pa.array(files, pa.uint32()), "row": pa.array(places, pa.uint64())})

    def each(table: pa.Table) -> dict[tuple[int, int], int]:
        return {
            (it["file"], it["row"] + offset): it["verdict"] for it in table.to_pylist() for offset in range(it["count"])
        }

    expected = {place: 8 if place in wanted else verdict for place, verdict in each(refused_rows).items()}
    found = conflicts.mark(refused_rows, pairs)
    assert each(found) == expected
    assert sum(found["count"].to_pylist()) == len(expected), "no row is in two ranges"
    assert found.sort_by([("file", "ascending"), ("row", "ascending")]).equals(found)


# Audits


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", daily.first(range(2)))
def test_an_audit_counts_what_plain_dicts_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, threads: int
) -> None:
    monkeypatch.setattr(auditor, "SAMPLE_MAX", 16)
    monkeypatch.setattr(auditing, "TOGETHER", 150)
    rng = np.random.default_rng(seed + 100)
    rows = make_rows(seed, 600).drop_columns(["origin"]).append_column("x", pa.array(rng.integers(0, 2, 600)))
    for number, (first, count) in enumerate([(0, 200), (200, 0), (200, 400)]):
        land(tmp_path, f"{number}.parquet", rows.slice(first, count), row_group_size=90)
    expected = truth(rows, ["x"])
    report = lake.audit(tmp_path, threads=threads, compare_content=True)
    assert report.counts == expected
    assert report.content_compared == expected["DUPLICATE"] + expected["CONFLICT"]
    assert report.count_findings("conflict") == {"conflict": expected["CONFLICT"]}
    assert report.distance_share == 1
    for sample in report.conflicts.to_pylist():
        one, other = (
            pq.read_table(tmp_path / sample[file]).slice(sample[row], 1).to_pylist()[0]
            for file, row in (("file", "row"), ("kept_file", "kept_row"))
        )
        assert all(one[name] == other[name] == int(sample[name]) for name in IDENTITY)
        assert (str(one["x"]), str(other["x"])) == (sample["found"], sample["kept"])
        assert one["x"] != other["x"]
    assert len(report.conflicts) == 10
    assert "repeats with other content" in str(report)
    for call_rows in (31, 1 << 20):
        monkeypatch.setattr(auditor, "CALL_ROWS", call_rows)
        for given in (rows, rows.to_reader(), pl.DataFrame(rows)):
            in_memory = fp.audit(given, compare_content=["x"])
            assert in_memory.counts == expected
            assert len(in_memory.conflicts) == expected["CONFLICT"]
    assert lake.audit(tmp_path, compare_content=["pid"]).counts == truth(rows, ["pid"])


def test_an_audit_of_files_some_of_which_cannot_be_read(tmp_path: Path) -> None:
    land(tmp_path, "a.parquet", amounts([0, 1], [1, 2]))
    (tmp_path / "b.parquet").write_text("not Parquet")
    land(tmp_path, "c.parquet", amounts([1, 0], [2, 9]))
    report = lake.audit(tmp_path, compare_content=True)
    assert (report.counts, report.content_compared) == ({"ACCEPTED": 2, "DUPLICATE": 1, "CONFLICT": 1}, 2)
    assert [path for path, _ in report.unreadable] == ["b.parquet"]


def test_an_audit_without_compared_content_reports_no_conflicts() -> None:
    report = fp.audit(amounts([0, 0], [1, 2]))
    assert (report.conflicts, report.content_compared, report.count_findings()) == (None, None, {"duplicate": 1})
    with pytest.raises(fp.PolicyError, match="did not compare content"):
        report.count_findings("conflict")
    with pytest.raises(fp.BatchError, match="column 'z': missing"):
        fp.audit(amounts([0, 0], [1, 2]), compare_content=["z"])
