"""Jobs and audits whose files are in an object store, next to the same files in a folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns
from fencepost._native import SpanScan
from fencepost.errors import StoreError
from fencepost.lake import DedupJob, LocalEngine, advise, ahead, asking, audit, dataset
from fencepost.lake.ahead import ColumnsAhead, WholeFile
from fencepost.lake.plan import PLANS
from fencepost.lake.storage import ObjectStorage, open_storage
from fencepost.state import stores
from support import credentials, daily
from support.liar import FAULTS_OF_READS, Liar
from support.object_sinks import rows
from support.quick_retries import be_quick, probe_little  # noqa: F401
from support.s3_server import BUCKET, s3_options
from support.secret_runs import ProcessEngine

BY_PROVIDER = {"region": "us-east-1", "allow_http": True, "credential_provider": "support.credentials:Provider"}
KEEP = {"policy": "any_order", "settle_ms": 0}


class Landing:
    """The same files in a folder and beneath a prefix."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder / "landing"
        self.uri = f"s3://{BUCKET}/{os.urandom(8).hex()}/landing"
        self.options = s3_options(endpoint)
        store = stores.open_store(self.uri, options=self.options)
        assert isinstance(store, stores.RemoteStore)
        self.store = store

    def land(self, name: str, rows: pa.Table, **options: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, **options)
        self.put(name, path.read_bytes())

    def put(self, name: str, data: bytes) -> None:
        self.store._client.put(self.store._store, name, data)


@pytest.fixture
def landing(tmp_path: Path, endpoint: str) -> Landing:
    return Landing(tmp_path, endpoint)


def job(landing: Landing, root: Path, *, remote: bool, **options: Any) -> DedupJob:
    source = landing.uri if remote else landing.folder
    given = {"source_options": landing.options} if remote else {}
    return DedupJob(source, root / "state", root / "sink", **{**KEEP, **given, **options})


def test_slices_of_a_prefix(landing: Landing, tmp_path: Path) -> None:
    for number, name in enumerate(["day=1/a.parquet", "day=2/a.parquet", "day=2/b.parquet", "day=3/a.parquet"]):
        landing.land(name, rows(0, 10, pid=number))
    steps: list[dict[str, Any]] = [
        {"only": "day=2", "rows_max": 15},
        {"files": [f"{landing.uri}/day=3/a.parquet", "day=2/a.parquet", "day=9/gone.parquet"]},
        {"only": ["day=1..2"]},
    ]
    names = []
    for step in steps:
        report = job(landing, tmp_path, remote=True, **step).run()
        names.append((report.inputs["path"].to_pylist(), report.remaining_files, report.vanished))
    assert names == [
        (["day=2/a.parquet"], 1, ()),
        (["day=3/a.parquet"], 0, ("day=9/gone.parquet",)),
        (["day=1/a.parquet", "day=2/b.parquet"], 0, ()),
    ]
    several = DedupJob(
        [f"{landing.uri}/day=1", f"{landing.uri}/*/b.parquet"],
        *(tmp_path / "several", tmp_path / "sink of several"),
        source_options=landing.options,
        **KEEP,
    )
    assert several.run().kept == 20


def test_the_driver_makes_no_request_for_a_single_file(
    landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks check files that a notification names, files whose rows are counted, and quarantined files."""
    monkeypatch.setattr(asking, "ASKED_OF_A_TASK", 1)
    asked: list[str] = []
    for name in ("head", "read_exactly"):
        real = getattr(stores.RemoteStore, name)
        monkeypatch.setattr(stores.RemoteStore, name, lambda *it, real=real: (asked.append(it[1]), real(*it))[1])
    for number in range(4):
        landing.land(f"{number}.parquet", rows(0, 10, pid=number))
    for name in ("bad.parquet", "worse.parquet"):
        landing.put(name, b"no Parquet")
    named = ["0.parquet", "1.parquet", "2.parquet", "3.parquet", "bad.parquet", "worse.parquet", "gone.parquet"]
    options = {"files": named, "rows_max": 25, "plan": "interval", "engine": ProcessEngine()}
    report = job(landing, tmp_path, remote=True, **options).run()
    assert (report.kept, report.remaining_files, report.vanished) == (20, 4, ("gone.parquet",))
    report = job(landing, tmp_path, remote=True, **options).run()
    assert (report.kept, report.remaining_files) == (20, 0)
    assert [path for path, _ in report.quarantined] == ["bad.parquet", "worse.parquet"]
    assert asked == []
    monkeypatch.undo()
    assert job(landing, tmp_path, remote=True).run().version is None


def shown(root: Path) -> dict[str, list[dict[str, Any]]]:
    """What a sink holds, file by file."""
    files = sorted((root / "sink").glob("run=*/**/*.parquet"))
    return {str(it.relative_to(root / "sink")): pq.ParquetFile(it).read().to_pylist() for it in files}


def both(landing: Landing, tmp_path: Path, **options: Any) -> tuple[Any, Any]:
    """Reports of a run on either; what they keep is the same."""
    reports = [job(landing, tmp_path / name, remote=name == "far", **options).run() for name in ("near", "far")]
    assert shown(tmp_path / "near") == shown(tmp_path / "far")
    assert reports[0].counts == reports[1].counts
    return reports[0], reports[1]


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_rows_are_those_of_a_folder(landing: Landing, tmp_path: Path, plan: Any) -> None:
    landing.land("day=1/a.parquet", rows(0, 3000), row_group_size=700, use_dictionary=["payload"])
    landing.land("day=1/b.parquet", rows(2500, 1500), row_group_size=400, compression="zstd")
    landing.land("day=2/clean.parquet", rows(0, 500, pid=2))
    _, far = both(landing, tmp_path, plan=plan)
    assert (far.files, far.counts["DUPLICATE"]) == (3, 500)
    assert both(landing, tmp_path, plan=plan)[1].version is None, "nothing is new"
    landing.land("day=2/late.parquet", rows(400, 300, pid=2))
    _, far = both(landing, tmp_path, plan=plan)
    assert (far.files, far.counts) == (1, {"ACCEPTED": 200, "DUPLICATE": 100})


@pytest.mark.parametrize("engine", [LocalEngine, ProcessEngine])
def test_credentials_come_from_a_provider(landing: Landing, tmp_path: Path, engine: Any) -> None:
    """It is imported where it is needed, also in processes of tasks; there are no other credentials."""
    landing.land("a.parquet", rows(0, 3000))
    options = {**BY_PROVIDER, "endpoint": landing.options["endpoint"]}
    credentials.asked.clear()
    report = job(landing, tmp_path, remote=True, source_options=options, engine=engine(), plan="interval").run()
    assert report.kept == 3000
    assert credentials.asked


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "support.credentials",
            "credential_provider=support.credentials: AttributeError: module 'support.credentials' has no attribute ''",
        ),
        ("nowhere:Provider", "credential_provider=nowhere:Provider: ModuleNotFoundError: No module named 'nowhere'"),
        (
            "support.credentials:broken",
            "credential_provider=support.credentials:broken: RuntimeError: no token in /var/run",
        ),
    ],
)
def test_a_provider_that_cannot_be_had_is_named(landing: Landing, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(fp.StoreError, match=message):
        job(landing, tmp_path, remote=True, source_options={**BY_PROVIDER, "credential_provider": name})


def test_content_is_compared(landing: Landing, tmp_path: Path) -> None:
    landing.land("a.parquet", rows(0, 1000), row_group_size=300)
    landing.land("b.parquet", rows(500, 1000).set_column(4, "payload", pa.array(["other"] * 1000)))
    options = {"compare_content": True, "on_conflict": "quarantine", "keep_checksums": "all"}
    _, far = both(landing, tmp_path, **options)
    assert far.counts["CONFLICT"] == 500
    landing.land("c.parquet", rows(0, 10).set_column(4, "payload", pa.array(["third"] * 10)))
    assert both(landing, tmp_path, **options)[1].counts == {"CONFLICT": 10}


def test_an_audit(landing: Landing) -> None:
    landing.land("a.parquet", rows(0, 1000))
    landing.land("b.parquet", rows(900, 1000).slice(50))
    near, far = audit(landing.folder), audit(landing.uri, source_options=landing.options)
    assert far.counts == near.counts == {"ACCEPTED": 1900, "DUPLICATE": 50}
    assert far.source == landing.uri
    one = audit(f"{landing.uri}/b.parquet", source_options=landing.options)
    assert (one.files, one.rows) == (1, 950)
    for call in (audit, advise):
        with pytest.raises(fp.SourceError, match=r"gone\.parquet: no such file"):
            call(f"{landing.uri}/gone.parquet", source_options=landing.options)


def test_a_copy_with_the_same_content_is_not_new(landing: Landing, tmp_path: Path) -> None:
    """Rows without identity would be kept twice."""
    untracked = rows(0, 50).set_column(0, "pid", pa.array([None] * 50, pa.int64()))
    landing.land("a.parquet", untracked)
    assert job(landing, tmp_path, remote=True).run().counts == {"UNTRACKED": 50}
    landing.put("a.parquet", (landing.folder / "a.parquet").read_bytes())
    assert job(landing, tmp_path, remote=True).run().version is None
    landing.land("a.parquet", untracked.slice(10))
    assert job(landing, tmp_path, remote=True).run().counts == {"UNTRACKED": 40}


def test_names_that_are_passed_over(landing: Landing, tmp_path: Path) -> None:
    landing.land("a.parquet", rows(0, 10))
    for name in ("_temporary/b.parquet", "day=1/.c.parquet", "day=1/d.csv", "e.PARQUET"):
        landing.put(name, b"no Parquet file")
    report = job(landing, tmp_path, remote=True).run()
    assert (report.files, sorted(report.ignored)) == (1, ["day=1/d.csv", "e.PARQUET"])


def test_damage_is_content(landing: Landing, tmp_path: Path) -> None:
    landing.land("a.parquet", rows(0, 10))
    landing.put("b.parquet", b"no Parquet file" * 100)
    landing.put("c.parquet", b"")
    landing.put("d.parquet", (landing.folder / "a.parquet").read_bytes()[:-7])
    report = job(landing, tmp_path, remote=True).run()
    assert report.files == 1
    assert [path for path, _ in report.quarantined] == ["b.parquet", "c.parquet", "d.parquet"]
    assert all(reason.startswith(landing.uri) for _, reason in report.quarantined)


def padded(first: int, count: int, bytes_of_a_row: int) -> pa.Table:
    payload = pa.array([os.urandom(bytes_of_a_row) for _ in range(count)])
    return rows(first, count).set_column(4, "payload", payload)


@pytest.mark.parametrize("bytes_of_a_row", [0, 500])
@pytest.mark.parametrize("step", ["scan", "write"])
def test_a_file_that_is_replaced_meanwhile(landing: Landing, tmp_path: Path, step: str, bytes_of_a_row: int) -> None:
    """The new version is read in this run or in the next one: the end of the old one may have been read before."""

    landing.land("a.parquet", padded(0, 1000, bytes_of_a_row), row_group_size=100)
    landing.land("b.parquet", padded(900, 500, bytes_of_a_row), row_group_size=100)

    class Replacing(LocalEngine):
        def run(self, stage: str, *arguments: Any) -> Any:
            if stage == step and (tmp_path / "new").exists():
                landing.put("b.parquet", (tmp_path / "new").read_bytes())
                (tmp_path / "new").unlink()
            return super().run(stage, *arguments)

    pq.write_table(padded(950, 700, bytes_of_a_row), tmp_path / "new")
    report = job(landing, tmp_path, remote=True, engine=Replacing(1)).run()
    is_seen = step == "scan" or bytes_of_a_row > 0
    assert report.counts == ({"ACCEPTED": 1650, "DUPLICATE": 50} if is_seen else {"ACCEPTED": 1400, "DUPLICATE": 100})
    assert len(report.vanished) == (step == "write" and is_seen)
    later = job(landing, tmp_path, remote=True).run()
    assert later.counts == ({} if is_seen else {"ACCEPTED": 250, "DUPLICATE": 450})
    assert sorted(row["seq"] for file in shown(tmp_path).values() for row in file) == [*range(1650)]


@pytest.mark.parametrize("bytes_of_a_row", [0, 500])
@pytest.mark.parametrize("step", ["scan", "write"])
def test_a_file_that_vanishes_meanwhile(landing: Landing, tmp_path: Path, step: str, bytes_of_a_row: int) -> None:
    """What was read of it before is kept if that is all."""
    landing.land("a.parquet", padded(0, 1000, bytes_of_a_row))
    landing.land("b.parquet", padded(900, 500, bytes_of_a_row))

    class Removing(LocalEngine):
        def run(self, stage: str, *arguments: Any) -> Any:
            if stage == step:
                landing.store.delete(["b.parquet"])
            return super().run(stage, *arguments)

    report = job(landing, tmp_path, remote=True, engine=Removing(1)).run()
    is_seen = step == "scan" or bytes_of_a_row > 0
    assert report.counts == ({"ACCEPTED": 1000} if is_seen else {"ACCEPTED": 1400, "DUPLICATE": 100})
    assert [it.rpartition("/")[2] for it in report.vanished] == ["b.parquet"] * is_seen
    assert sum(map(len, shown(tmp_path).values())) == report.kept


@pytest.mark.parametrize(
    ("fault", "share"),
    daily.each_value(FAULTS_OF_READS, (0.3, 1.0)),
)
def test_answers_that_are_wrong(landing: Landing, tmp_path: Path, fault: str, share: float) -> None:
    """Throttling and broken answers are retried; if they persist, the run stops and changes nothing."""
    for number in range(4):
        landing.land(f"{number}.parquet", rows(900 * number, 1000), row_group_size=100)
    with Liar(landing.options["endpoint"], (fault,), share=share, verb="GET", names=".parquet") as liar:
        landing.options = {**landing.options, "endpoint": liar.endpoint}
        if share < 1:
            assert job(landing, tmp_path, remote=True).run().counts == {"ACCEPTED": 3700, "DUPLICATE": 300}
        else:
            with pytest.raises(fp.StoreError, match=landing.uri) as caught:
                job(landing, tmp_path, remote=True).run()
            assert "the-secret" not in str(caught.value)
            assert not (tmp_path / "sink").exists() or not shown(tmp_path)
        assert liar.answers[fault] > 0
    landing.options = {**landing.options, "endpoint": f"http://{liar.target}"}
    report = job(landing, tmp_path, remote=True).run()
    assert report.version is None if share < 1 else report.counts == {"ACCEPTED": 3700, "DUPLICATE": 300}


def test_few_requests_and_few_bytes(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit reads identity columns only, a row group of them by a few requests."""
    landing.land("a.parquet", padded(0, 20_000, 200), row_group_size=10_000)
    asked: list[tuple[int, int]] = []
    real = stores.Ranges.read

    def counted(self: stores.Ranges, offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return real(self, offset, length)

    monkeypatch.setattr(stores.Ranges, "read", counted)
    assert audit(landing.uri, source_options=landing.options).rows == 20_000
    size = (landing.folder / "a.parquet").stat().st_size
    assert size > 4_000_000
    assert len(asked) <= 5
    assert sum(length for _, length in asked) < size


def count_columns(
    monkeypatch: pytest.MonkeyPatch, landing: Landing, bytes_max: int, meet: Callable[[], object] = int
) -> tuple[set[int], list[int]]:
    """(sizes of the objects, bytes of each request of at most so many that is for none of their ends). `meet`: called
    with each of the first three."""
    sizes, columns = {path.stat().st_size for path in landing.folder.iterdir()}, list[int]()
    real = stores.Ranges.read

    def counted(self: stores.Ranges, offset: int, length: int) -> bytes:
        if offset + length not in sizes and length < bytes_max:
            columns.append(length)
            if len(columns) <= 3:
                meet()
        return real(self, offset, length)

    monkeypatch.setattr(stores.Ranges, "read", counted)
    return sizes, columns


def test_row_groups_are_read_ahead(landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request for the identity columns of each row group, those of three at a time."""
    landing.land("a.parquet", padded(0, 6_000, 2_000), row_group_size=1_000)
    landing.land("b.parquet", padded(3_000, 6_000, 2_000), row_group_size=3_000)
    together = threading.Barrier(3)
    sizes, columns = count_columns(monkeypatch, landing, 1 << 20, lambda: together.wait(60))  # no whole file
    report = job(landing, tmp_path, remote=True, engine=LocalEngine(1)).run()
    assert report.counts == {"ACCEPTED": 9_000, "DUPLICATE": 3_000}
    assert min(sizes) > 12_000_000
    assert len(columns) == 6 + 2
    assert sum(columns) < 200_000


@pytest.mark.parametrize("fault", ["", *FAULTS_OF_READS])
def test_a_whole_file_is_streamed(landing: Landing, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A request per STREAM_BYTES and one for the end, in order and around it; a broken one is replaced."""
    for name, value in {"STREAM_BYTES": 4_000, "BLOCK_BYTES": 1_000, "PIECE_BYTES": 600}.items():
        monkeypatch.setattr(ahead, name, value)
    for name in ("CHUNK_BYTES", "TAIL_BYTES"):
        monkeypatch.setattr(stores, name, 300)
    monkeypatch.setattr(ahead, "TAIL_BYTES", 300)
    data = os.urandom(10_500)
    landing.put("large", data)
    landing.put("small", data[:4_000])
    with Liar(landing.options["endpoint"], (fault,) if fault else (), verb="GET" if fault else "", lies_max=3) as proxy:
        store = stores.open_store(landing.uri, options={**landing.options, "endpoint": proxy.endpoint})
        assert isinstance(store, stores.RemoteStore)

        def check(name: str, places: list[tuple[int, int]]) -> int:
            size, before = store.size(name), proxy.asked["GET"]
            block = 1_000 if name == "large" else size
            with WholeFile(store.object(name, size)) as file:
                for offset, length in places:
                    is_tail = offset + length == size == len(data)
                    count = length if is_tail else min(length, 600, block - offset % block)
                    assert file.read(offset, length) == data[offset : offset + count]
            return proxy.asked["GET"] - before

        forward = [(10_200, 300), *((at, 500) for at in range(0, 10_500, 500)), (10_200, 300)]
        back_and_forth = [(at + step, 300) for at in range(0, 10_000, 1_000) for step in (0, 900, 100)]
        anywhere = [(at, 100) for at in (9_000, 10, 5_000, 4_400, 0, 9_900, 3_999)]
        counts = [
            check("large", forward),
            check("large", back_and_forth),
            check("small", [(3_700, 300), (0, 9), (99, 9)]),
        ]
        check("large", anywhere)
    if not fault:
        assert counts == [1 + 3 + 1, 3, 1], "without an etag the end is not kept"
    else:
        assert proxy.answers[fault] == 3


def test_a_whole_file_that_changes(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STREAM_BYTES", 1_000)
    monkeypatch.setattr(ahead, "BLOCK_BYTES", 1_000)
    landing.put("a", os.urandom(5_000))
    with WholeFile(landing.store.object("a", *landing.store.head("a"))) as file:
        file.read(0, 100)
        landing.put("a", os.urandom(5_000))
        with pytest.raises(StoreError, match="a: changed while"):
            file.read(4_000, 100)


def test_large_objects_are_split_among_tasks(landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks for the identity columns of its own row groups only, and source and sink are in the store."""
    landing.land("a.parquet", padded(0, 6_000, 500), row_group_size=1_000)
    landing.land("b.parquet", padded(3_000, 6_000, 500), row_group_size=1_000)
    _, columns = count_columns(monkeypatch, landing, 100_000)  # no block of a file
    sink = landing.uri.replace("landing", "sink")
    split = DedupJob(
        landing.uri,
        tmp_path / "state",
        sink,
        source_options=landing.options,
        sink_options=landing.options,
        task_bytes_max=1_000_000,
        **KEEP,
    ).run()
    assert len(columns) == 6 + 6
    whole = job(landing, tmp_path / "whole", remote=False).run()
    assert split.counts == whole.counts == {"ACCEPTED": 9_000, "DUPLICATE": 3_000}
    assert len(split.outputs) == 1 + 2, "the first is copied, and one of four parts of the other is repeats alone"
    found = dataset(sink, options=landing.options).to_table().drop_columns(["run"])
    written = [pq.read_table(tmp_path / "whole" / "sink" / name) for name in whole.outputs]
    assert found.sort_by("seq").equals(pa.concat_tables(written).sort_by("seq"))


def test_columns_in_the_end_of_a_file(landing: Landing) -> None:
    """The bytes that are read with the footer hold columns, too, and native code asks for them again."""
    landing.land("a.parquet", rows(0, 4_000), row_group_size=100, compression="none")
    path = landing.folder / "a.parquet"
    size, ranges = path.stat().st_size, landing.store.object("a.parquet", path.stat().st_size)
    names = ("pid", "epoch", "partition", "seq")
    columns, tail = ColumnsAhead(ranges, names), size - (64 << 10)
    assert columns.read(tail, size - tail) == path.read_bytes()[tail:]
    held = [it for group in columns.groups for it in group]
    assert len(held) == 40
    assert held[-1][0] > tail
    assert columns.read(tail, size - tail) == path.read_bytes()[tail:], "whole, though it begins within columns"
    for start, end in held:
        assert columns.read(start, size) == path.read_bytes()[start:end]
    scan = SpanScan("a.parquet", Columns(), 1, object=ColumnsAhead(ranges, names))
    batches = [batch for dealt in iter(lambda: scan.next(1), None) for _, batch in dealt]
    assert sum(pa.record_batch(batch)["_length"].to_numpy().sum() for batch in batches) == 4_000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"s3://{BUCKET}/nothing-here", "/nothing-here: no objects"),
        ("hdfs://host/folder", "unknown store hdfs://"),
        ("memory://somewhere", "memory://somewhere: .*a prefix of an"),
        ("s3://key:the-secret@bucket/x", "the URI contains credentials"),
    ],
)
def test_sources_that_are_refused(endpoint: str, tmp_path: Path, source: str, message: str) -> None:
    options = s3_options(endpoint)
    with pytest.raises((fp.SourceError, fp.StoreError), match=message) as caught:
        DedupJob(source, tmp_path / "state", tmp_path / "sink", source_options=options).run()
    assert "the-secret" not in str(caught.value)


def test_a_delta_log_without_a_schema_is_refused(landing: Landing, tmp_path: Path) -> None:
    landing.land("a.parquet", rows(0, 10))
    landing.put("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(fp.SourceError, match=r"Delta table: .* no schema"):
        job(landing, tmp_path, remote=True).run()


def test_state_in_the_source_is_refused(landing: Landing, tmp_path: Path) -> None:
    options = {"source_options": landing.options, "state_options": landing.options}
    with pytest.raises(fp.SinkError, match=r"state s3://.* is inside source"):
        DedupJob(landing.uri, f"{landing.uri}/state", tmp_path / "sink", **options)
    DedupJob(landing.uri, f"{landing.uri}-state", tmp_path / "sink", **options)


def test_no_credential_is_written_down(landing: Landing, tmp_path: Path) -> None:
    landing.land("a.parquet", rows(0, 10))
    job(landing, tmp_path, remote=True).run()
    files = [it for folder in ("state", "sink") for it in (tmp_path / folder).rglob("*") if it.is_file()]
    assert files
    assert not [it for it in files if b"the-secret" in it.read_bytes()]
    assert "the-secret" not in repr(open_storage(landing.uri, landing.options))
    assert isinstance(open_storage(landing.uri, landing.options), ObjectStorage)
