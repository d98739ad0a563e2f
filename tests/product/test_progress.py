"""Progress of long operations: the steps they report, and how many rows of a step are done."""

from __future__ import annotations

from pathlib import Path

import fencepost as fp
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from fencepost import kafka, lake, state
from fencepost.lake import auditing
from support.kafka_logs import DATA

ROWS = 1_000


class Seen:
    """A function for `progress` that also takes the number of rows."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.rows: dict[str, int] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        self.calls.append((step, done, total))

    def show_rows(self, rows: int) -> None:
        self.rows[self.calls[-1][0]] = rows

    def of(self, step: str) -> list[tuple[int, int]]:
        found = [(done, total) for name, done, total in self.calls if name == step]
        assert found[0][0] == 0, "the speed counts from the beginning of the step"
        assert [done for done, _ in found] == sorted(done for done, _ in found)
        return found


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Two files of one producer whose rows are in no span: each other number is missing."""
    (tmp_path / "landing").mkdir()
    for file in range(2):
        seq = [2 * (file * ROWS + row) for row in range(ROWS)]
        rows = {"pid": [7] * ROWS, "epoch": [0] * ROWS, "partition": [0] * ROWS, "seq": seq, "timestamp": seq}
        pq.write_table(pa.table(rows), tmp_path / "landing" / f"{file}.parquet", row_group_size=100)
    return tmp_path / "landing"


def test_the_steps_of_a_run_count_its_rows(landing: Path, tmp_path: Path) -> None:
    seen = Seen()
    job = lake.DedupJob(landing, tmp_path / "state", tmp_path / "clean", plan="interval")
    job.run(seen)
    assert seen.rows == dict.fromkeys(("scan", "judge", "write"), 2 * ROWS)
    for step in seen.rows:
        done, total = seen.of(step)[-1]
        assert done == total > 0


def test_a_function_without_rows_is_enough(landing: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    job = lake.DedupJob(landing, tmp_path / "state", tmp_path / "clean")
    job.run(lambda *call: calls.append(call))
    assert {"list", "finish"} <= {step for step, *_ in calls}


def test_an_audit_proceeds_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "SPANS", 1)  # at least: a call reads some ten thousand rows
    rows = 200_000
    pq.write_table(pa.table({"pid": [7] * rows, "epoch": [0] * rows, "seq": range(rows)}), tmp_path / "a.parquet")
    seen = Seen()
    report = lake.audit(tmp_path, columns=fp.Columns(partition=None), threads=1, progress=seen)
    found = seen.of("audit")
    assert len(set(found)) > 3
    assert found[-1] == (report.bytes, report.bytes)
    assert seen.rows == {"audit": rows}


@pytest.mark.parametrize("rows_max", [None, 1_500])
def test_advice_reads_and_judges(landing: Path, rows_max: int | None) -> None:
    seen = Seen()
    lake.advise(landing, rows_max=rows_max, progress=seen)
    done, total = seen.of("read")[-1]
    assert (done, total) == (
        (1_500, 1_500) if rows_max else (total, sum(it.stat().st_size for it in landing.iterdir()))
    )
    policies = seen.of("judge")[-1]
    assert policies[0] == policies[1] > 3
    rows = rows_max or 2 * ROWS
    assert seen.rows == {"read": rows, "judge": rows * policies[1]}


def test_the_total_of_text_is_unknown(landing: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "rows.csv")
    pyarrow.csv.write_csv(pq.read_table(landing / "0.parquet"), place)
    seen = Seen()
    lake.audit(place, progress=seen)
    lake.advise(place, progress=seen)
    assert (seen.of("audit"), seen.of("read")) == ([(0, 0)], [(0, 0)])
    assert (seen.rows["audit"], seen.rows["read"]) == (ROWS, ROWS)


@pytest.mark.parametrize("checksums", [False, True])
def test_a_kafka_audit_counts_partitions_and_records(checksums: bool) -> None:
    seen = Seen()
    report = kafka.audit(DATA, now_ms="newest", checksums=checksums, progress=seen)
    found = seen.of("audit")
    total = 1000 * len(report.partitions)
    assert found[-1] == (total, total)
    assert {(1000 * it, total) for it in range(1, len(report.partitions) + 1)} <= set(found)
    assert any(done % 1000 for done, _ in found), "segments, one after the other"
    assert seen.rows == {"audit": report.total()["records"]}


def test_operations_on_a_state_report_their_stages(landing: Path, tmp_path: Path) -> None:
    lake.DedupJob(landing, tmp_path / "state", tmp_path / "clean", max_idle_ms=10**9).run()
    opened, seen = state.open(tmp_path / "state"), Seen()
    opened.evict(None, 10**9, progress=seen)
    opened.reshard(4, progress=seen)
    opened.rollback(1, accept_duplicates=True, progress=seen)
    opened.collect_garbage(progress=seen)
    for stage in ("evict", "reshard", "missing", "gc"):
        assert seen.of(stage)[-1][0] > 0
    assert seen.rows == {}
    entries = opened.entries(seen)
    assert seen.rows == {"read": len(entries)}
    shards, total = seen.of("read")[-1]
    assert shards == total > 0
