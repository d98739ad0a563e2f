"""Large files, of which several tasks scan and write a part each, with the result of one part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import WriterProperties, write_deltalake
from fencepost import state
from fencepost._native import SpanScan
from fencepost.lake import DedupJob, LocalEngine, RunReport, arranging, found, refused
from fencepost.lake.plan import groups_of_files, parts_of_files
from fencepost.state.scratch import FolderScratch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.delta_in_place import VECTORS, append, remove_by_vector
from support.delta_in_place import rows_of as table_rows
from support.lake import (
    IDENTITY,
    first_of_each,
    flip_byte,
    land,
    make_job,
    make_rows,
    one_producer,
    read_sink,
    read_source,
    state_hashes,
)

WHOLE = 1 << 40
"""Of `task_bytes_max`: every file is a task's."""
SMALL = 4_000
GROUP_ROWS = 100

FACTS = (
    *("files", "rows", "counts", "kept", "rejected", "missing_ranges", "missing_rows", "missing_changes"),
    *("stale_epoch", "border", "entries", "content_compared", "checksums_kept", "deferred", "quarantined"),
)


class Apart(LocalEngine):
    """Tasks read their plans, as in other processes."""

    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0


def timed_rows(seed: int, count: int = 900) -> pa.Table:
    """Spans across the borders of row groups, repeats, and timestamps that restart a key."""
    rows = make_rows(seed, count)
    long = np.arange(count) % 450
    is_long = np.random.default_rng(seed).random(count) < 0.5
    seqs = pa.array(np.where(is_long, long, rows["seq"].to_numpy()).astype(np.int32))
    rows = rows.set_column(3, "seq", seqs)
    return rows.append_column("timestamp", pa.array(np.arange(count) // 10 * 1000 + seed * 10**6))


def rows_of(root: Path, pattern: str) -> dict[str, pa.Table]:
    """By the names of folders and inputs, the rows of all files in their order."""
    read: dict[str, list[pa.Table]] = {}
    for file in sorted((root / "sink").glob(pattern)):
        name = file.relative_to(root / "sink").with_name(file.name[: len("part-00000")]).as_posix()
        read.setdefault(name, []).append(pq.read_table(file, partitioning=None))
    return {name: pa.concat_tables(tables) for name, tables in read.items()}


def check_alike(one: Path, other: Path) -> None:
    """The rows of each input, refused rows, and the state."""
    for pattern in ("run=*/*.parquet", "run=*/_rejects/*/*.parquet"):
        assert rows_of(one, pattern) == rows_of(other, pattern)
    assert state_hashes(one) == state_hashes(other)


def check_facts(report: RunReport, other: RunReport) -> None:
    for fact in FACTS:
        assert getattr(report, fact) == getattr(other, fact), fact
    for table in ("missing", "stale", "suspected_resets"):
        assert getattr(report, table).equals(getattr(other, table)), table


def plan_of(root: Path, version: int = -1) -> dict[str, Any]:
    opened = state.open(root / "state")
    decided = opened.latest() if version < 0 else opened.version(version)
    assert decided is not None
    return decided.plan


POLICIES: list[dict[str, Any]] = [
    {"policy": "any_order", "rejects": "all"},
    {"policy": "any_order", "max_idle_ms": 300_000, "on_reset": "report"},
    {"policy": "any_order", "compare_content": ["origin"], "keep_checksums": "all", "on_conflict": "quarantine"},
    {"policy": "any_order", "compare_content": ["timestamp"], "on_conflict": "drop"},
    {"policy": "in_order", "order_by": ()},
    {"policy": "in_order", "order_by": "timestamp"},
    {"policy": "kafka", "order_by": ("timestamp", "origin")},
    {"policy": "strict", "order_by": ()},
    {"policy": "watermark", "order_by": ()},
    {"policy": "kafka_offsets", "columns": fp.Columns(pid="partition", partition=None, epoch=None)},
    {"plan": "row"},
]


@pytest.mark.parametrize("options", POLICIES, ids=lambda it: "-".join(map(str, it.values())).replace(" ", ""))
def test_all_is_as_in_one_part(tmp_path: Path, options: dict[str, Any]) -> None:
    source = tmp_path / "source"
    options = {"rejected_max": 1.0, "sync": False, "shards": 3, **options}
    for step, names in enumerate((["a", "b"], ["c"])):
        for name in names:
            rows = timed_rows(ord(name), 900 if name != "b" else 30)
            land(source, f"{name}.parquet", rows, row_group_size=GROUP_ROWS)
        reports = []
        for root, size in ((tmp_path / "whole", WHOLE), (tmp_path / "split", SMALL)):
            engine = Apart(2) if size == SMALL else LocalEngine(2)
            job = DedupJob(source, root / "state", root / "sink", task_bytes_max=size, engine=engine, **options)
            reports.append(job.run())
        check_facts(*reports)
        assert plan_of(tmp_path / "split")["split_files"] == 1, "the small one is a task's"
        assert "split_files" not in plan_of(tmp_path / "whole")
        outputs = [name for name in reports[1].outputs if "part-00000-" in name]
        assert len(outputs) > 3, step
    check_alike(tmp_path / "whole", tmp_path / "split")


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 10_000), st.integers(1, 400), st.integers(1, 60), st.integers(400, 20_000))
def test_any_file_in_any_parts(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, group_rows: int, size: int
) -> None:
    root = tmp_path_factory.mktemp("any")
    for name in "ab":
        land(root / "source", f"{name}.parquet", make_rows(seed + ord(name), count), row_group_size=group_rows)
    for task_bytes_max in (WHOLE, size):
        own = root / str(task_bytes_max)
        DedupJob(root / "source", own / "state", own / "sink", task_bytes_max=task_bytes_max, sync=False).run()
        assert read_sink(own).equals(first_of_each(read_source(root)))
    check_alike(root / str(WHOLE), root / str(size))


# -- Which rows a part has


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
def test_parts_have_each_row_once(tmp_path: Path, parts: int) -> None:
    """Whatever the sizes of row groups: here some are a hundred times as large as others."""
    rows = make_rows(1, 1_000)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, rows.schema) as writer:
        first = 0
        for count in (3, 400, 1, 1, 200, 395):
            writer.write_table(rows.slice(first, count))
            first += count
    whole = SpanScan(path, fp.Columns(), 1, by_row=True)
    scans = [SpanScan(path, fp.Columns(), 1, by_row=True, part=(number, parts)) for number in range(parts)]
    borders = [(scan.first_row, scan.first_row + scan.rows) for scan in scans]
    assert [end for _, end in borders[:-1]] == [begin for begin, _ in borders[1:]]
    assert (borders[0][0], borders[-1][1]) == (0, 1_000)
    read = [batch for scan in scans for batch in batches_of(scan)]
    assert pa.Table.from_batches(read).equals(pa.Table.from_batches(list(batches_of(whole))))
    assert sum(scan.untracked for scan in scans) == whole.untracked
    assert {scan.footer_crc for scan in scans} == {whole.footer_crc}
    if parts == 2:  # by bytes: the border is in the large one before it
        assert [scan.row_groups for scan in scans] == [(0, 4), (4, 6)]


def batches_of(scan: SpanScan) -> Iterator[pa.RecordBatch]:
    while (dealt := scan.next(1 << 60)) is not None:
        yield from (pa.record_batch(batch) for _, batch in dealt)


def test_bad_values_name_the_row_of_the_file(tmp_path: Path) -> None:
    rows = make_rows(1, 400).set_column(3, "seq", pa.array([0] * 350 + [None] + [0] * 49, pa.int32()))
    land(tmp_path / "source", "a.parquet", rows, row_group_size=GROUP_ROWS)
    messages = []
    for size in (WHOLE, SMALL):
        with pytest.raises(fp.BatchError, match="row 350") as caught:
            make_job(tmp_path, task_bytes_max=size).run()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    with pytest.raises(ValueError, match=r"part=\(2, 2\)"):
        SpanScan(tmp_path / "source" / "a.parquet", fp.Columns(), 1, part=(2, 2))
    with pytest.raises(ValueError, match="task_bytes_max=0"):
        make_job(tmp_path, task_bytes_max=0)


def test_how_files_are_split() -> None:
    gb = 1 << 30
    assert parts_of_files([50 * gb, 100, gb // 4, gb // 4 + 1, 0], 8, gb // 4) == [200, 1, 1, 2, 1]
    tasks = sum(parts_of_files([50 * gb] * 10_000, 8, gb // 4))
    assert 32_768 <= tasks < 50_000, "as many as an engine is to run"
    assert groups_of_files([gb, 1, 1, gb], 1, gb // 4) == [(0, 1), (1, 3), (3, 4)], "a large one is alone"


def test_a_large_file_is_aligned_only_on_request(tmp_path: Path) -> None:
    """It judges and writes at once, so a file is one task's."""
    land(tmp_path / "source", "a.parquet", make_rows(1), row_group_size=GROUP_ROWS)
    plans = {}
    for wanted in ("aligned", None):
        root = tmp_path / str(wanted)
        report = DedupJob(tmp_path / "source", root / "state", root / "sink", plan=wanted, task_bytes_max=SMALL).run()
        plans[report.plan] = report.plan_reason
    assert list(plans) == ["aligned", "interval"]
    assert (plans["aligned"], "large files" in plans["interval"]) == ("asked for", True)
    check_alike(tmp_path / "aligned", tmp_path / "None")


# -- How a file is written


def test_a_file_that_loses_nothing_is_carried_over_whole(tmp_path: Path) -> None:
    rows = one_producer(range(900))
    land(tmp_path / "source", "a.parquet", rows, row_group_size=GROUP_ROWS)
    report = make_job(tmp_path, task_bytes_max=SMALL).run()
    assert (report.carried_files, report.outputs) == (1, ("run=1/part-00000.parquet",))
    assert (tmp_path / "sink" / report.outputs[0]).read_bytes() == (tmp_path / "source" / "a.parquet").read_bytes()


def test_a_file_that_is_too_large_to_be_copied_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "COPY_BYTES_MAX", SMALL)
    rows = one_producer(range(900))
    land(tmp_path / "source", "a.parquet", rows, row_group_size=GROUP_ROWS)
    report = make_job(tmp_path, task_bytes_max=SMALL).run()
    assert (report.carried_files, report.copied_groups) == (0, 9)
    assert len(report.outputs) > 1
    assert pa.table(read_sink(tmp_path)).equals(pa.table(pl.DataFrame(rows)))


def test_row_groups_that_lose_nothing_are_copied_and_empty_parts_are_not_written(tmp_path: Path) -> None:
    """The first half is new, the second repeats it."""
    seqs = [*range(450), 5, *range(449)]
    land(tmp_path / "source", "a.parquet", one_producer(seqs), row_group_size=GROUP_ROWS)
    report = make_job(tmp_path, task_bytes_max=SMALL).run()
    assert (report.copied_groups, report.rewritten_groups) == (4, 1)
    sizes = [pq.read_metadata(tmp_path / "sink" / name).num_rows for name in report.outputs]
    assert len(sizes) > 1
    assert all(sizes)
    assert read_sink(tmp_path)["seq"].to_list() == [*range(450)]


def test_a_task_reads_the_refused_rows_of_its_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "MARK_LINES", 4)
    seqs = [seq for seq in range(2_000) for _ in range(2)]
    land(tmp_path / "source", "a.parquet", one_producer(seqs), row_group_size=GROUP_ROWS)
    read: list[int] = []
    real = FolderScratch.read_ranges

    def counted(self: FolderScratch, ranges: Any) -> Any:
        read.extend(end - begin for name, begin, end in ranges if name.endswith(".refused"))
        return real(self, ranges)

    monkeypatch.setattr(FolderScratch, "read_ranges", counted)
    report = make_job(tmp_path, task_bytes_max=SMALL, shards=1).run()
    assert report.counts == {"ACCEPTED": 2_000, "DUPLICATE": 2_000}
    assert read_sink(tmp_path)["seq"].to_list() == [*range(2_000)]
    tasks, line = len(report.outputs), 21
    assert tasks > 5
    assert len(read) == tasks
    assert 2_000 * line <= sum(read) <= (2_000 + 2 * 4 * tasks) * line


class Counting(LocalEngine):
    """How many tasks each stage has."""

    def __init__(self) -> None:
        super().__init__(2)
        self.tasks: dict[str, int] = {}

    def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
        self.tasks[stage] = len(items)
        return super().run(stage, work, items, progress)


@pytest.mark.parametrize(
    "layout",
    [
        {"target_file_bytes": 6_000},
        {"sort_by": "seq"},
        {"partition_by": "partition", "target_file_bytes": 10_000},
        {"partition_by": "day(at)", "sort_by": ["pid", "seq"], "rejects": "all"},
    ],
    ids=str,
)
def test_layouts_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]) -> None:
    monkeypatch.setattr(arranging, "HELD_BYTES", 10_000)  # so that the two files are not dealt together
    for name in "ab":
        rows = timed_rows(ord(name))
        days = pa.array(rows["timestamp"].to_numpy() // 1000 * 86_400_000, pa.timestamp("ms"))
        land(tmp_path / "source", f"{name}.parquet", rows.append_column("at", days), row_group_size=GROUP_ROWS)
    read, rejects, tasks = [], [], []
    for root, size in ((tmp_path / "whole", WHOLE), (tmp_path / "split", SMALL)):
        engine = Counting()
        job = DedupJob(tmp_path / "source", root / "state", root / "sink", task_bytes_max=size, engine=engine, **layout)
        report = job.run()
        tasks.append(engine.tasks["write"])
        tables = {name: pq.read_table(root / "sink" / name, partitioning=None) for name in sorted(report.outputs)}
        by = [(name, "ascending") for name in np.atleast_1d(layout.get("sort_by", []))]
        assert not by or all(table.equals(table.sort_by(by)) for table in tables.values())
        folders = {name.rpartition("/")[0] for name in tables}
        alike = {it: [table for name, table in tables.items() if name.startswith(f"{it}/")] for it in folders}
        read.append({it: in_order(pa.concat_tables(some), layout) for it, some in alike.items()})
        rejects.append(rows_of(root, "run=*/_rejects/*/*.parquet"))
    assert tasks[0] <= 2
    assert tasks[1] > 2
    assert read[0] == read[1]
    assert rejects[0] == rejects[1]


def in_order(rows: pa.Table, layout: dict[str, Any]) -> pa.Table:
    """Rows in the order of the files, or, where they are dealt and sorted, in another order."""
    return rows if list(layout) == ["target_file_bytes"] else rows.sort_by("origin")


# -- What goes wrong with a part


def damage_last_group(path: Path) -> None:
    """A page of `pid` in the last row group."""
    chunk = pq.read_metadata(path).row_group(8).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [damage_last_group, flip_byte])
def test_damage_in_a_part_leaves_out_the_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for name in "abc":
        rows = timed_rows(ord(name))
        land(tmp_path / "source", f"{name}.parquet", rows, row_group_size=GROUP_ROWS)
    bad = tmp_path / "source" / "b.parquet"
    whole = bad.read_bytes()
    damage(bad)
    job = make_job(tmp_path, task_bytes_max=SMALL, settle_ms=10**9)
    report = job.run()
    assert (report.files, report.deferred) == (2, ("b.parquet",))
    is_good = pl.col("origin").str.starts_with(f"{ord('b')}:").not_()
    assert read_sink(tmp_path).equals(first_of_each(read_source_of(tmp_path, "ac").filter(is_good)))
    bad.write_bytes(whole)
    assert job.run().files == 1
    assert read_sink(tmp_path).sort("origin").equals(first_of_each(read_source_of(tmp_path, "acb")).sort("origin"))


def read_source_of(root: Path, names: str) -> pl.DataFrame:
    return pl.DataFrame(pa.concat_tables([pq.read_table(root / "source" / f"{name}.parquet") for name in names]))


@pytest.mark.parametrize("when", ["scan", "write"])
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_file_that_is_replaced_between_its_parts(tmp_path: Path, when: str, is_quiet: bool) -> None:
    """`is_quiet`: size and time stay; only the footer tells."""
    layout: dict[str, Any] = {"row_group_size": GROUP_ROWS, "compression": "none", "use_dictionary": False}
    land(tmp_path / "source", "a.parquet", timed_rows(1), **layout)
    path = tmp_path / "source" / "a.parquet"

    class Replacing(LocalEngine):
        """Another file is added after the third task of a stage, once."""

        is_done = False

        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage != when or self.is_done:
                return super().run(stage, work, items, progress)
            assert len(items) > 4
            first = super().run(stage, work, items[:3], progress)
            before = path.stat()
            land(tmp_path / "source", "a.parquet", other, **layout)
            if is_quiet:
                assert path.stat().st_size == before.st_size
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.is_done = True
            return first + super().run(stage, work, items[3:], progress)

    other = timed_rows(1 if is_quiet else 2)
    if is_quiet:  # the same values in other places, under other statistics
        other = other.set_column(5, "timestamp", pa.array(other["timestamp"].to_numpy() ^ 1))
    engine = Replacing(2)
    report = make_job(tmp_path, task_bytes_max=SMALL, engine=engine).run()
    assert engine.is_done
    assert report.vanished == (path.name,)
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


def test_a_seed_of_a_file_that_is_replaced_between_its_parts(tmp_path: Path) -> None:
    """Nothing is written that would look at the file again."""
    path = land(tmp_path / "source", "a.parquet", one_producer(range(900)), row_group_size=GROUP_ROWS)
    before = path.stat()

    class Replacing(LocalEngine):
        is_done = False

        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage != "scan" or self.is_done:
                return super().run(stage, work, items, progress)
            first = super().run(stage, work, items[:2], progress)
            land(tmp_path / "source", "a.parquet", one_producer(range(900), 2), row_group_size=GROUP_ROWS)
            assert path.stat().st_size == before.st_size
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.is_done = True
            return first + super().run(stage, work, items[2:], progress)

    report = make_job(tmp_path, task_bytes_max=SMALL, engine=Replacing(2)).seed()
    assert (report.vanished, report.counts) == ((path.name,), {"ACCEPTED": 900})
    entries = pa.concat_tables([pa.table(table.entries()) for _, table in state.open(tmp_path / "state").tables()])
    assert entries["pid"].to_pylist() == [2]


def test_a_file_that_vanishes_between_its_parts(tmp_path: Path) -> None:
    for name in "ab":
        land(tmp_path / "source", f"{name}.parquet", timed_rows(ord(name)), row_group_size=GROUP_ROWS)

    class Removing(LocalEngine):
        def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> Any:
            if stage != "scan":
                return super().run(stage, work, items, progress)
            first = super().run(stage, work, items[:3], progress)
            (tmp_path / "source" / "a.parquet").unlink(missing_ok=True)
            return first + super().run(stage, work, items[3:], progress)

    report = make_job(tmp_path, task_bytes_max=SMALL, engine=Removing(2)).run()
    assert (report.files, report.vanished) == (1, ("a.parquet",))
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


# -- Tables


def test_rows_that_were_gone_before_are_taken_out_by_several_tasks(tmp_path: Path) -> None:
    """The file loses no row in this run; and yet it cannot be carried over."""
    rows = pl.DataFrame(make_rows(1, 900)).filter(pl.col("pid") >= 0).unique(IDENTITY, keep="first").sort("origin")
    properties = WriterProperties(max_row_group_size=GROUP_ROWS)
    write_deltalake(tmp_path / "table", rows.to_arrow(), configuration=VECTORS, writer_properties=properties)
    remove_by_vector(tmp_path, np.array([5, 250]))
    report = DedupJob(tmp_path / "table", tmp_path / "state", tmp_path / "sink", task_bytes_max=SMALL).run()
    assert report.counts == {"ACCEPTED": rows.height - 2}
    assert len(report.outputs) > 2
    left = rows.with_row_index().filter(~pl.col("index").is_in([5, 250])).drop("index")
    assert read_sink(tmp_path)["origin"].to_list() == left["origin"].to_list()


@pytest.mark.parametrize(("in_place", "layout"), [(True, {}), (False, {}), (False, {"target_file_bytes": 4_000})])
def test_tables_with_deletion_vectors(tmp_path: Path, in_place: bool, layout: dict[str, Any]) -> None:
    """Rows are gone before on both sides of the borders of parts. In place one task marks the rows that go."""
    properties = WriterProperties(max_row_group_size=GROUP_ROWS)
    for root in (tmp_path / "whole", tmp_path / "split"):
        append(root, 1, count=900, writer_properties=properties)
        remove_by_vector(root, np.array([*range(95, 105), 300, 450, *range(700, 850)]))
        append(root, 2, count=900, writer_properties=properties)
        sink = root / ("table" if in_place else "sink")
        size = WHOLE if root.name == "whole" else SMALL
        report = DedupJob(root / "table", root / "state", sink, task_bytes_max=size, **layout).run()
        assert report.counts["DUPLICATE"] > 100
    assert plan_of(tmp_path / "split")["split_files"] == 2
    assert state_hashes(tmp_path / "whole") == state_hashes(tmp_path / "split")
    if in_place:
        assert table_rows(tmp_path / "whole").equals(table_rows(tmp_path / "split"))
    else:
        assert len(report.outputs) > 4
        assert rows_of(tmp_path / "whole", "run=*/*.parquet") == rows_of(tmp_path / "split", "run=*/*.parquet")
