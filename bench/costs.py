"""What a job costs beside its rows: a large state, many files and shards, a worker's memory.

All sizes follow from one number of rows. From the 20 M of a full run come a state of 100 M entries, 1 M new rows and
100 000 files.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import fencepost as fp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fencepost import state as fencepost_state
from fencepost.lake import DedupJob, Engine, LocalEngine
from fencepost.lake.judge import Judged, JudgeItem
from fencepost.lake.plan import DRIVER_SPANS_MAX
from fencepost.lake.scan import Exchange, ScanItem, Scanned
from fencepost.lake.write import WriteItem, Written
from fencepost.state.decision import Piece, Shard
from fencepost.state.scratch import Scratch
from fencepost.state.segment_files import CACHE
from fencepost.state.task_plan import read_item

from bench.lake import ONE_ROW, PARTITIONS, WIDE, land
from bench.measure import memory_bytes, tell, write_part
from bench.spark import DATA, THREADS, session, settle
from bench.workload import Numbers, payloads

T = TypeVar("T")
R = TypeVar("R")
PAYLOAD_BYTES = 90
SHARDS, DRIVER_SHARDS = 1_024, 4_096


def costs(rows: int, rounds: int, data: Path = DATA, heap: str = "2g", shards: int = SHARDS) -> dict[str, Any]:
    """All of it; what belongs into the results."""
    from fencepost_spark import SparkEngine

    data = data.resolve()  # a state knows its source by its path
    scratch = data / "scratch"
    files = rows // 200
    with session(heap, scratch, {}) as spark:
        on_spark = SparkEngine(spark)
        engines = [LocalEngine(THREADS), on_spark]
        found = {
            "incremental": incremental(rows * 5, rows // 20, rounds, data, engines, shards),
            "memory": memory(rows, data, scratch, on_spark),
        }
    shutil.rmtree(scratch)
    sizes = [(files, DRIVER_SHARDS), (files // 10, DRIVER_SHARDS), (files // 10, DRIVER_SHARDS // 16)]
    return {**found, "driver": [driver(files, shards, rounds, data) for files, shards in sizes]}


# A run against a large state


def incremental(
    entries: int, rows: int, rounds: int, data: Path, engines: Sequence[Engine], shards: int
) -> dict[str, Any]:
    """Runs over `rows` new rows against a state of `entries` and against an empty one, by where their producers lie.

    Each run finds no piece of the state in its own memory, but its files in the system's: a state that has to come
    from a disk takes its bytes longer.
    """
    place, facts = _seeded(entries, shards, data)
    found = []
    for share, count in ((0.01, 5 * rounds), (1.0, rounds)):
        new = _new_rows(entries, rows, shards, share)
        for engine in engines:
            runs: dict[str, list[dict[str, Any]]] = {"empty": [], "full": []}
            for number in range(count + 1):
                for name, again in (("empty", _run_on_nothing), ("full", _run_on_state)):
                    one = again(place, new, shards, engine)
                    what = f"{share:.0%} of {shards} shards, {engine.name} engine, round {number} of {count}"
                    tell(f"{what}: {name} {one['total']:.3f} s")
                    if number:
                        runs[name].append(one)
            found.append({"share": share, "engine": engine.name, "rows": len(new), "shards": shards, **runs})
    return {"entries": entries, **facts, "runs": found}


def _seeded(entries: int, shards: int, data: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a job whose state has so many entries, made once and kept; and what that took."""
    place = data / f"seeded-{entries}-{shards}"
    if not (place / "facts.json").exists():
        shutil.rmtree(place, ignore_errors=True)
        _land_entries(place / "source", entries)
        tell(f"seeding {entries:,} entries")
        report = _job(place, shards, LocalEngine()).seed()
        state_bytes = sum(file.stat().st_size for file in place.glob("state/segments/**/*.state"))
        _, table = next(fencepost_state.open(place / "state", sync=False).tables())
        memory = table.memory_bytes / len(table)
        facts = {"seed_seconds": report.seconds, "state_bytes": state_bytes, "memory_bytes_an_entry": memory}
        (place / "facts.json").write_text(json.dumps(facts))
    return place, json.loads((place / "facts.json").read_text())


def _land_entries(folder: Path, entries: int) -> None:
    """One row of each key: producers of PARTITIONS partitions."""
    folder.mkdir(parents=True)
    at_once = 1 << 20
    for number, start in enumerate(range(0, entries, 4 * at_once)):
        with pq.ParquetWriter(folder / f"{number:05}.parquet", _identity(np.zeros(0, np.int64), 0).schema) as writer:
            for first in range(start, min(start + 4 * at_once, entries), at_once):
                writer.write_table(_identity(np.arange(first, min(first + at_once, entries)), 0))


def _identity(key: Numbers, seq: Any) -> pa.Table:
    return pa.table(
        {
            "pid": key // PARTITIONS,
            "epoch": np.zeros(len(key), np.int16),
            "partition": (key % PARTITIONS).astype(np.int32),
            "seq": np.broadcast_to(np.asarray(seq, np.int32), len(key)),
        }
    )


def _new_rows(entries: int, rows: int, shards: int, share: float, run: int = 20) -> pa.Table:
    """Runs that continue where the state ends. Their keys are in a share of the shards."""
    rng = np.random.default_rng(3)
    keys = np.unique(rng.integers(entries, size=round(rows / run / share * 1.2) + shards))
    of_key = np.asarray(fp.shards(_identity(keys, 0), shards))
    keys = rng.permutation(keys[of_key < max(1, round(shards * share))])[: rows // run]
    table = _identity(np.repeat(keys, run), np.tile(np.arange(1, run + 1), len(keys)))
    return table.append_column("payload", payloads(rng, len(table), PAYLOAD_BYTES))


def _job(place: Path, shards: int, engine: Engine) -> DedupJob:
    return DedupJob(
        place / "source", place / "state", place / "sink", shards=shards, engine=engine, sync=False, plan="interval"
    )


def _run_on_nothing(place: Path, new: pa.Table, shards: int, engine: Engine) -> dict[str, Any]:
    place = place / "empty"
    shutil.rmtree(place, ignore_errors=True)
    (place / "source").mkdir(parents=True)
    return _run(place, new, shards, engine)


def _run_on_state(place: Path, new: pa.Table, shards: int, engine: Engine) -> dict[str, Any]:
    """The state is brought back before, to what it was once it was seeded."""
    (place / "source" / "new.parquet").unlink(missing_ok=True)
    for file in (place / "sink").rglob("*.parquet"):
        file.unlink()
    state = fencepost_state.open(place / "state", sync=False)
    if state.decided() > 1:
        state.rollback(1)
    CACHE.clear()
    return _run(place, new, shards, engine)


def _run(place: Path, new: pa.Table, shards: int, engine: Engine) -> dict[str, Any]:
    pq.write_table(new, place / "source" / "new.parquet")
    job = _job(place, shards, engine)
    settle()
    start = time.perf_counter()
    report = job.run()
    total = time.perf_counter() - start
    assert report.kept == report.rows == len(new), report
    return {
        "total": total,
        "seconds": report.seconds,
        "shards": report.shards,
        "state_bytes_read": report.state_bytes_read,
        "state_bytes_written": report.state_bytes_written,
        "judged": report.judged,
    }


# Many files and shards


class Simulated:
    """Runs no task: gives the results that tasks over large files would give, and makes the files that are renamed."""

    name = "simulated"
    slots = 64
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def __init__(self, files: int, rows: int, spans: int) -> None:
        """`rows`, `spans`: of each file."""
        self.rows, self.spans, self.all_rows = rows, spans, files * rows

    def run(self, stage: str, work: Any, items: Any, progress: Any = None) -> list[Any]:
        _, kind, scratch, plan = work.args
        return [(0.0, getattr(self, stage)(scratch, read_item(scratch, plan, place, kind))) for place in items]

    def scan(self, _: Scratch, item: ScanItem) -> Scanned:
        count, shards = len(item.files), item.reading.shards
        found = Scanned(item.first, files=item.files, status=["read"] * count, reason=[""] * count)
        found.rows, found.untracked, found.footer_crc = [self.rows] * count, [0] * count, [7] * count
        spans = np.full(shards, count * self.spans // shards, np.uint32)
        schema = pa.schema([("pid", pa.int64()), ("partition", pa.int32())])
        numbers, sizes = np.arange(shards, dtype=np.uint32), np.full(shards, 1_000, np.uint32)
        exchange = {"shards": numbers, "spans": spans, "rows": count * self.rows, "bytes": sizes}
        found.exchanges = [Exchange(name=str(item.first), schema=schema, **exchange)]
        return found

    def judge(self, _: Scratch, item: JudgeItem) -> Judged:
        shards = np.unique(item.parts.shard).tolist()
        piece = Piece("segments/1/simulated", 0, 1 << 20, "0" * 64)
        after = [Shard(shard=shard, entries=25_000, positions=1, pieces=(piece,)) for shard in shards]
        rows = self.all_rows * len(shards) // item.reading.shards
        return Judged(shards=after, counts={"ACCEPTED": rows})

    def write(self, scratch: Scratch, item: WriteItem) -> Written:
        count = len(item.files)
        ordinals = [item.first + place for place in range(count)]
        names = [f"{ordinal}.parquet" for ordinal in ordinals]
        for name in names:
            open(scratch.place(name), "xb").close()
        facts = {"rows": item.rows, "bytes": [0] * count, "footer_crc": [7] * count}
        return Written(ordinal=ordinals, folder=[""] * count, names=names, bounds=[{}] * count, **facts)


def driver(files: int, shards: int, rounds: int, data: Path) -> dict[str, Any]:
    """What the driver does beside its tasks for many files and shards: the real code, simulated results."""
    place = data / "driver"
    shutil.rmtree(place, ignore_errors=True)
    for number in range(files):
        folder = place / "source" / f"day={number // 1_000:03}"
        if number % 1_000 == 0:
            folder.mkdir(parents=True)
        (folder / f"{number:06}.parquet").touch()
    more = DRIVER_SPANS_MAX // (files * shards) + 1  # of a file and shard: in all too many for the driver to judge
    engine = Simulated(files, rows=shards * 256, spans=shards * max(8, more))
    found = []
    for number in range(rounds + 1):
        job = DedupJob(place / "source", place / "state", place / "sink", engine=engine, shards=shards, sync=False)
        settle()
        report = job.run()
        assert report.kept == report.rows == files * engine.rows
        tell(f"{files:,} files, {shards:,} shards, round {number} of {rounds}: driver {report.driver_seconds:.2f} s")
        if number:
            found.append({"driver": report.driver_seconds, "seconds": report.seconds})
        shutil.rmtree(place / "state")
        shutil.rmtree(place / "sink")
    shutil.rmtree(place)
    return {"files": files, "shards": shards, "rounds": found}


# Memory of a worker


def memory(rows: int, data: Path, scratch: Path, on_spark: Engine) -> list[dict[str, Any]]:
    """The most that any task of a stage took above what its process had before its first, by engine and shape.

    Pages of mapped files are among it, which the system takes back when it needs them.
    """
    found = []
    for shape in (ONE_ROW, WIDE):
        source = land(shape, rows // 10 if shape is WIDE else rows, data).folder
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            local = alone.submit(_peaks, source, scratch / "out", LocalEngine(1)).result()
        for engine, peaks in (("local", local), ("spark", _peaks(source, scratch / "out", on_spark))):
            tell(f"{shape.name}, {engine}: {peaks}")
            found.append({"shape": shape.name, "engine": engine, "row_group": _largest_group(source), **peaks})
    return found


def _peaks(source: Path, out: Path, engine: Engine) -> dict[str, Any]:
    weighed = Weighed(engine)
    report = DedupJob(source, out / "state", out / "sink", engine=weighed, sync=False).run()
    shutil.rmtree(out)
    return {"peaks": weighed.peaks, "shard": report.state_bytes_written // report.shards}


def _largest_group(source: Path) -> int:
    """Bytes of a row group before compression."""
    found = [pq.ParquetFile(file).metadata for file in source.iterdir()]
    return max(it.row_group(number).total_byte_size for it in found for number in range(it.num_row_groups))


class Weighed:
    """Runs tasks on another engine, each of which tells how much memory its process took."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.slots, self.in_process = engine, engine.name, engine.slots, engine.in_process
        self.driver_bytes_max = self.driver_scan_bytes_max = 0  # what the driver does is not weighed
        self.peaks: dict[str, int] = {}

    def run(self, stage: str, work: Callable[[T], R], items: Sequence[T], progress: Any = None) -> list[R]:
        done = self.engine.run(stage, partial(_weigh, work), items, progress)
        self.peaks[stage] = max(peak for peak, _ in done)
        return [result for _, result in done]


def _weigh(work: Callable[[T], R], item: T) -> tuple[int, R]:
    before = _bytes_before()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    result = work(item)
    return memory_bytes("VmHWM") - before, result


@cache
def _bytes_before() -> int:
    """When this process is asked for the first time: what its modules take."""
    return memory_bytes("VmRSS")


if __name__ == "__main__":
    from bench.costs import costs as part  # workers know what it pickles by the module's own name

    write_part(part)
