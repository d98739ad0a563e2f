"""Jobs over files: each identity once, Parquet to Parquet, by where the repeats lie and how producers' rows are spread.

`dropDuplicates` to Parquet is what everything is compared with. An answer is (rows, sum of their sequences), read from
the output after every round. Not part of `bench/run.py`
yet: `python -m bench.lake ROWS ROUNDS OUT.json`.
"""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencepost as fp
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state as fencepost_state
from fencepost.lake import DedupJob, LocalEngine, audit
from fencepost.lake.judge import Judged, JudgeItem
from fencepost.lake.scan import Exchange, ScanItem, Scanned
from fencepost.lake.write import WriteItem, Written
from fencepost.state.decision import Piece, Shard

from bench.measure import Contestant, alternate, tell, write_part
from bench.spark import COLUMNS, DATA, DROP_DUPLICATES, THREADS, Answer, _session, _settle, _take_answer
from bench.workload import _occurrence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 20
ROW_GROUP_ROWS = 131_072
LAG_MAX = 40
"""A repeat comes up to so many runs later."""
PARTITIONS = 1_000
KEYS = 100_000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How producers' rows are spread over files, and where their repeats lie."""

    name: str
    run: int = 20
    is_scattered: bool = False
    """Every run goes to a file by chance; else all runs of a partition go to one file."""
    repeats: float = 0.05
    where: str = "everywhere"
    """Where repeats lie: everywhere, "files" (in one file in ten), "tail" (in the last tenth of each file)."""
    payload_bytes: int = 90


SHAPES = (
    Shape(name="whole keys per file, repeats in every file"),
    Shape(name="whole keys per file, repeats in one file in ten", where="files"),
    Shape(name="whole keys per file, repeats clustered in time", where="tail"),
    Shape(name="whole keys per file, no repeats", repeats=0),
    Shape(name="scattered, runs of 20", is_scattered=True),
    Shape(name="scattered, runs of one row", is_scattered=True, run=1),
)
WIDE = Shape(name="whole keys per file, repeats in every file, 1 KB payload", payload_bytes=1_000)


@dataclass(frozen=True)
class Landed:
    """Files, and the truth about them."""

    folder: Path
    landed: Answer
    kept: Answer


def land(shape: Shape, rows: int, data: Path = DATA, seed: int = 1) -> Landed:
    """About `rows` rows in FILES files; made once and kept."""
    folder = data / "-".join(
        ["lake", *(str(value).replace(" ", "-") for value in dataclasses.astuple(shape)), str(rows)]
    )
    rng = np.random.default_rng(seed)
    fresh = round(rows / (1 + shape.repeats)) // shape.run
    key = rng.integers(KEYS, size=fresh)
    first = _occurrence(key) * shape.run
    home = (key % PARTITIONS) % FILES
    order, file = _deal(rng, shape, home, round(rows * shape.repeats / (1 + shape.repeats)) // shape.run)
    landed = (len(order) * shape.run, _sum_of(first[order], shape.run))
    kept = (fresh * shape.run, _sum_of(first, shape.run))
    if not (folder / "complete").exists():
        tell(f"landing {shape.name}: {landed[0]:,} rows")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "files").mkdir(parents=True)
        for number in range(FILES):
            runs = order[file == number]
            _write(folder / "files" / f"{number:05}.parquet", rng, key[runs], first[runs], shape)
        (folder / "complete").touch()
    return Landed(folder / "files", landed, kept)


Numbers = npt.NDArray[np.int64]


def _deal(rng: np.random.Generator, shape: Shape, home: Numbers, repeats: int) -> tuple[Numbers, Numbers]:
    """(numbers of runs as they land, the file of each)."""
    fresh = len(home)
    lag = rng.integers(1, LAG_MAX * FILES, size=repeats)
    if shape.where == "tail":
        again = rng.integers(round(fresh * 0.9), fresh, size=repeats)
    elif shape.where == "files":
        candidates = np.flatnonzero(home < FILES // 10)
        again = rng.choice(candidates, min(repeats, len(candidates) // 20), replace=False)
        lag = lag[: len(again)]
    else:
        again = rng.choice(fresh, repeats, replace=False)
    place = np.concatenate([np.arange(fresh), again + lag])
    numbers = np.concatenate([np.arange(fresh), again])[np.argsort(place, kind="stable")]
    file = rng.integers(FILES, size=len(numbers)) if shape.is_scattered else home[numbers]
    return numbers, file


def _sum_of(first: Numbers, run: int) -> int:
    return int(first.sum()) * run + len(first) * run * (run - 1) // 2


def _write(path: Path, rng: np.random.Generator, key: Numbers, first: Numbers, shape: Shape) -> None:
    runs_together = ROW_GROUP_ROWS // shape.run
    writer = None
    for start in range(0, len(key), runs_together):
        some, firsts = key[start : start + runs_together], first[start : start + runs_together]
        rows = len(some) * shape.run
        key_of_row = np.repeat(some, shape.run)
        pid = key_of_row // PARTITIONS
        payload = pa.Array.from_buffers(
            pa.binary(shape.payload_bytes), rows, [None, pa.py_buffer(rng.bytes(rows * shape.payload_bytes))]
        )
        table = pa.table(
            {
                "pid": pid,
                "epoch": (pid % 3).astype(np.int16),
                "partition": (key_of_row % PARTITIONS).astype(np.int32),
                "seq": (np.repeat(firsts, shape.run) + np.tile(np.arange(shape.run), len(some))).astype(np.int32),
                "timestamp": (1_700_000_000_000 + start * shape.run + np.arange(rows)).astype(np.int64),
                "payload": payload.cast(pa.binary()),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=["pid", "epoch", "partition"])
        writer.write_table(table, row_group_size=len(table))
    if writer is not None:
        writer.close()


def contest(rows: int, rounds: int, data: Path = DATA, heap: str = "7g", warm_up: bool = True) -> dict[str, Any]:
    """All shapes; what belongs into the results."""
    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    measurements = []
    with _session(heap, scratch, {}) as spark:
        for shape, count in [*((shape, rows) for shape in SHAPES), (WIDE, rows // 10)]:
            landed = land(shape, count, data)
            contestants = _contestants(spark, landed, scratch)
            measurements += alternate(shape.name, contestants, landed.landed[0], rounds, _settle, warm_up)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"files": FILES, "heap": heap, "measurements": [it.to_json() for it in measurements]}


def _contestants(spark: SparkSession, landed: Landed, scratch: Path) -> list[Contestant]:
    from fencepost_spark import SparkEngine

    on_spark, local = SparkEngine(spark), LocalEngine(THREADS)
    return [
        _job("DedupJob, Spark engine", landed, scratch, engine=on_spark, sync=False),
        _job("DedupJob, Spark engine, synced", landed, scratch, engine=on_spark),
        _job("DedupJob, local engine", landed, scratch, engine=local, sync=False),
        _job(
            "DedupJob, Spark engine, source immutable",
            landed,
            scratch,
            engine=on_spark,
            sync=False,
            source_immutable=True,
        ),
        _audit(landed),
        _drop_duplicates(spark, landed, scratch),
    ]


def _job(name: str, landed: Landed, scratch: Path, **options: Any) -> Contestant:
    def run() -> Path:
        report = DedupJob(landed.folder, scratch / "out" / "state", scratch / "out" / "sink", **options).run()
        tell(f"  {report.plan}: {report.plan_reason}; {report.seconds}")
        return scratch / "out"

    return Contestant(name=name, threads=THREADS, run=run, expected=landed.kept, answer=_take_answer, role="ours")


def _audit(landed: Landed) -> Contestant:
    """Reads only: how many rows a job would keep."""
    return Contestant(
        name="audit",
        threads=THREADS,
        run=lambda: audit(landed.folder, threads=THREADS).counts["ACCEPTED"],
        expected=landed.kept[0],
        role="ours",
    )


def _drop_duplicates(spark: SparkSession, landed: Landed, scratch: Path) -> Contestant:
    def run() -> Path:
        frame = spark.read.parquet(str(landed.folder)).dropDuplicates(list(COLUMNS))
        frame.write.mode("overwrite").parquet(str(scratch / "out"))
        return scratch / "out"

    return Contestant(name=DROP_DUPLICATES.name, threads=THREADS, run=run, expected=landed.kept, answer=_take_answer)


# What a run costs beside its rows


def incremental(entries: int, rows: int, rounds: int, data: Path = DATA, shards: int = 1024) -> list[dict[str, Any]]:
    """A run over `rows` new rows against a state of `entries`, and against an empty one, by where their producers lie.

    The state is seeded from a file of one row an entry. Each round begins with a copy of it.
    """
    scratch = data / "incremental"
    shutil.rmtree(scratch, ignore_errors=True)
    _land_entries(scratch / "source", entries)
    tell(f"seeding {entries:,} entries")
    seeded = DedupJob(scratch / "source", scratch / "state", scratch / "sink", shards=shards, sync=False).seed()
    tell(f"  {seeded.seconds}")
    found = []
    for share in (0.01, 1.0):
        _land_runs(scratch / "new.parquet", entries, rows, shards, share)
        seconds: dict[str, list[float]] = {"empty": [], "full": []}
        for _ in range(rounds):
            for name in seconds:
                seconds[name].append(_run_again(scratch, name, shards, rows))
        full, empty = (statistics.median(seconds[name]) for name in ("full", "empty"))
        tell(
            f"  new rows in {share:.0%} of the shards: {full:.2f} s, against nothing {empty:.2f} s: {full / empty:.2f}"
        )
        found.append({"entries": entries, "rows": rows, "shards": shards, "share": share, "seconds": seconds})
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _land_entries(folder: Path, entries: int) -> None:
    """One row of each key: producers of PARTITIONS partitions."""
    folder.mkdir(parents=True)
    at_once = 1 << 20
    for number, start in enumerate(range(0, entries, 16 * at_once)):
        with pq.ParquetWriter(folder / f"{number:05}.parquet", _IDENTITY) as writer:
            for first in range(start, min(start + 16 * at_once, entries), at_once):
                writer.write_table(_identity(np.arange(first, min(first + at_once, entries)), 0))


_IDENTITY = pa.schema([("pid", pa.int64()), ("epoch", pa.int16()), ("partition", pa.int32()), ("seq", pa.int32())])


def _identity(key: Numbers, seq: Any) -> pa.Table:
    columns = (key // PARTITIONS, np.zeros(len(key)), key % PARTITIONS, np.broadcast_to(seq, len(key)))
    return pa.table(dict(zip(_IDENTITY.names, columns, strict=True))).cast(_IDENTITY)


def _land_runs(path: Path, entries: int, rows: int, shards: int, share: float, run: int = 20) -> None:
    """Runs that go on where the state ends, of keys that lie in a share of the shards."""
    rng = np.random.default_rng(3)
    keys = np.unique(rng.integers(entries, size=round(rows / run / share * 1.2) + shards))
    of_key = np.asarray(fp.shards(_identity(keys, 0), shards))
    keys = rng.permutation(keys[of_key < max(1, round(shards * share))])[: rows // run]
    seq = 1 + np.tile(np.arange(run), len(keys))
    pq.write_table(_identity(np.repeat(keys, run), seq), path)


def _run_again(scratch: Path, name: str, shards: int, rows: int) -> float:
    """Seconds of a run over the new rows, against the seeded state or an empty one."""
    import time

    if name == "full":
        place = scratch
        new = place / "source" / "new.parquet"
    else:
        place = scratch / "empty"
        shutil.rmtree(place, ignore_errors=True)
        (place / "source").mkdir(parents=True)
        new = place / "source" / "new.parquet"
    shutil.copyfile(scratch / "new.parquet", new)
    job = DedupJob(place / "source", place / "state", place / "sink", shards=shards, sync=False, plan="interval")
    _settle()
    start = time.perf_counter()
    report = job.run()
    seconds = time.perf_counter() - start
    assert report.rows == report.kept + report.counts.get("DUPLICATE", 0), report
    assert report.kept in (0, report.rows), "the whole file is new, or was read before"
    new.unlink()
    if name == "full":
        state = fencepost_state.open(place / "state", sync=False)
        last = state.done()
        for file in (place / "sink" / f"run={last}").iterdir():
            file.unlink()
        state.rollback(1)
    return seconds


class Simulated:
    """Runs no task: gives the results that tasks over large files would give, and makes the files that are renamed."""

    name = "simulated"
    slots = 64
    in_process = False

    def __init__(self, files: int, rows: int, runs: int) -> None:
        """`rows`, `runs`: of each file."""
        self.rows, self.runs, self.all_rows = rows, runs, files * rows

    def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> list[Any]:
        path = work.args[1]
        return [(0.0, getattr(self, stage)(_item(path, place))) for place in items]

    def scan(self, item: ScanItem) -> Scanned:
        count, shards = len(item.files), item.reading.shards
        found = Scanned(item.first, files=item.files, status=["read"] * count, reason=[""] * count)
        found.rows, found.untracked, found.footer_crc = [self.rows] * count, [0] * count, [7] * count
        of_shard = np.full(shards, count * self.rows // shards)
        runs = np.full(shards, count * self.runs // shards)
        schema = pa.schema([("pid", pa.int64())])
        found.exchanges = [
            Exchange(
                path=f"{item.folder}/{item.first}", schema=schema, shards=np.arange(shards), runs=runs, rows=of_shard
            )
        ]
        return found

    def judge(self, item: JudgeItem) -> Judged:
        shards = np.unique(item.parts.shard).tolist()
        piece = Piece("segments/1/simulated", 0, 1 << 20, "0" * 64)
        after = [Shard(shard=shard, entries=25_000, positions=1, pieces=(piece,)) for shard in shards]
        rows = self.all_rows * len(shards) // item.reading.shards
        return Judged(shards=after, counts={"ACCEPTED": rows})

    def write(self, item: WriteItem) -> Written:
        count = len(item.files)
        paths = [f"{item.folder}/{item.first + place}.parquet" for place in range(count)]
        for path in paths:
            open(path, "xb").close()
        return Written(paths=paths, rows=item.rows, bytes=[0] * count, footer_crc=[7] * count)


def _item(path: str, place: tuple[int, int]) -> Any:
    with open(path, "rb") as file:
        file.seek(place[0])
        return pickle.loads(file.read(place[1]))


def driver(files: int = 100_000, shards: int = 4_096, data: Path = DATA) -> dict[str, Any]:
    """What the driver does beside its tasks for many files and shards: the real code, simulated results."""
    place = data / "driver"
    shutil.rmtree(place, ignore_errors=True)
    for number in range(files):
        folder = place / "source" / f"day={number // 1_000:03}"
        if number % 1_000 == 0:
            folder.mkdir(parents=True)
        (folder / f"{number:06}.parquet").touch()
    engine = Simulated(files, rows=shards * 256, runs=shards * 8)
    job = DedupJob(place / "source", place / "state", place / "sink", engine=engine, shards=shards, sync=False)
    report = job.run()
    tell(f"{files:,} files, {shards:,} shards: driver {report.driver_seconds:.2f} s; {report.seconds}")
    assert report.kept == report.rows == files * engine.rows
    shutil.rmtree(place)
    return {"files": files, "shards": shards, "driver_seconds": report.driver_seconds, "seconds": report.seconds}


if __name__ == "__main__":
    write_part(contest)
