"""A stream of Parquet files to Parquet, each event once: `foreach_batch` against `dropDuplicates` on a stream.

Producers of 2000 rows, each in one of four source partitions, which come as one file a batch; 5 % of the rows come
again, in the same batch or a later one. An answer is (rows, sum of their sequences), read from the output after every
round. What each leaves on the disk to remember the events by is weighed as well, of twice the rows by forty
times the producers, without a payload, and without the default provider, which would need them all in the heap.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencepost.state
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lake import WARM_UP
from bench.measure import Contestant, alternate, tell, write_part
from bench.spark import COLUMNS, DATA, THREADS, Answer, answer_of, session, settle, wake_workers
from bench.workload import Numbers, occurrence, payloads, sum_of_runs, with_repeats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM, MANY = "a stream", "a stream of many producers"
MANY_ROWS, MANY_PRODUCERS = 2, 40
"""Times the rows and the producers of the other."""
OURS, UNSYNCED, ROCKSDB, DEFAULT = (
    "foreach_batch", "foreach_batch, not synced", "dropDuplicates, RocksDB", "dropDuplicates"
)  # fmt: skip
PROVIDER = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.StateStore$"
ROWS_A_PRODUCER, PARTITIONS, BATCHES, RUN = 2_000, 4, 8, 20
REPEATS = 0.05
PAYLOAD_BYTES = 90


@dataclass(frozen=True)
class Events:
    """Files in the order in which they are to come, and the truth about them."""

    folder: Path
    rows: int
    kept: Answer


def land(rows: int, producers: int, batches: int, data: Path = DATA, payload_bytes: int = PAYLOAD_BYTES) -> Events:
    """About `rows` rows, made once and kept."""
    folder = data / f"stream-{rows}-{producers}-{batches}-{payload_bytes}"
    rng = np.random.default_rng(1)
    fresh = round(rows / (1 + REPEATS)) // RUN
    pid = rng.integers(producers, size=fresh)
    first = occurrence(pid) * RUN
    again = rng.choice(fresh, round(fresh * REPEATS), replace=False)
    order = with_repeats(fresh, again, rng.integers(1, fresh // batches, size=len(again)))
    kept = (fresh * RUN, sum_of_runs(first, RUN))
    if not (folder / "complete").exists():
        tell(f"landing a stream of {len(order) * RUN:,} rows")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "files").mkdir(parents=True)
        for batch, runs in enumerate(np.array_split(order, batches)):
            for partition in range(PARTITIONS):
                some = runs[pid[runs] % PARTITIONS == partition]
                path = folder / "files" / f"{batch:05}-{partition}.parquet"
                _write(path, rng, pid[some], first[some], partition, payload_bytes)
        (folder / "complete").touch()
    return Events(folder / "files", len(order) * RUN, kept)


def _write(path: Path, rng: np.random.Generator, pid: Numbers, first: Numbers, partition: int, payload: int) -> None:
    rows = len(pid) * RUN
    columns: dict[str, Any] = {
        "pid": np.repeat(pid, RUN),
        "epoch": np.zeros(rows, np.int16),
        "partition": np.full(rows, partition, np.int32),
        "seq": (np.repeat(first, RUN) + np.tile(np.arange(RUN), len(pid))).astype(np.int32),
    }
    if payload:
        columns["payload"] = payloads(rng, rows, payload)
    pq.write_table(pa.table(columns), path, use_dictionary=["pid", "epoch", "partition"])


def contest(
    rows: int,
    rounds: int,
    data: Path = DATA,
    heap: str = "7g",
    producers: int | None = None,
    batches: int = BATCHES,
    warm_up: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """What belongs into the results. `settings` of Spark: underscores in their names stand for dots."""
    producers = producers or max(PARTITIONS, rows // ROWS_A_PRODUCER)
    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    bytes_of: dict[str, dict[str, dict[str, int]]] = {STREAM: {}, MANY: {}}
    with session(heap, scratch, {"spark.sql.shuffle.partitions": PARTITIONS, **settings}) as spark:
        for size, times in [(rows // WARM_UP, 1)] * warm_up + [(rows, rounds)]:
            events = land(size, producers, batches, data)
            contestants = _contestants(spark, events, scratch, bytes_of[STREAM])
            measurements = alternate(
                STREAM, contestants, events.rows, times, partial(_make_ready, spark), warm_up=False
            )
        many = land(rows * MANY_ROWS, producers * MANY_PRODUCERS, batches, data, payload_bytes=0)
        contestants = [it for it in _contestants(spark, many, scratch, bytes_of[MANY]) if it.name in (OURS, ROCKSDB)]
        measurements += alternate(MANY, contestants, many.rows, rounds, partial(_make_ready, spark), warm_up=False)
    shutil.rmtree(scratch, ignore_errors=True)
    facts = {"heap": heap, "producers": producers, "batches": batches, "state_bytes": bytes_of}
    return {**facts, "measurements": [it.to_json() for it in measurements]}


def _make_ready(spark: SparkSession) -> None:
    # What dropDuplicates remembers stays in memory when its query is over, and would be in everyone's way.
    jvm: Any = spark._jvm
    jvm.java.lang.Class.forName(STATE_STORE).getField("MODULE$").get(None).stop()
    jvm.System.gc()
    settle()
    wake_workers(spark)


def _contestants(
    spark: SparkSession, events: Events, scratch: Path, bytes_of: dict[str, dict[str, int]]
) -> list[Contestant]:
    """`bytes_of`: gets what each remembers the events by."""
    works: dict[str, Callable[[Path], Path]] = {
        OURS: lambda place: _foreach_batch(spark, events, place, sync=True),
        UNSYNCED: lambda place: _foreach_batch(spark, events, place, sync=False),
        ROCKSDB: lambda place: _drop_duplicates(spark, events, place, "RocksDB"),
        DEFAULT: lambda place: _drop_duplicates(spark, events, place, "HDFSBacked"),
    }

    def run(name: str) -> tuple[str, Path]:
        return name, works[name](scratch / "out")

    def answer(result: tuple[str, Path]) -> Answer:
        name, state = result
        bytes_of[name] = {"events": events.rows, "bytes": _bytes(state)}
        if name in (OURS, UNSYNCED):
            opened = fencepost.state.open(state)
            bytes_of[name]["newest_version_bytes"] = sum(opened.version(opened.decided()).shards.bytes)
        found = answer_of(scratch / "out" / "sink")
        shutil.rmtree(scratch / "out")
        return found

    return [
        Contestant(
            name=name,
            threads=THREADS,
            run=partial(run, name),
            expected=events.kept,
            answer=answer,
            role="ours" if "foreach" in name else "peer",
        )
        for name in works
    ]


def _stream(spark: SparkSession, events: Events) -> DataFrame:
    schema = spark.read.parquet(str(events.folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", PARTITIONS).parquet(str(events.folder))


def _foreach_batch(spark: SparkSession, events: Events, place: Path, sync: bool) -> Path:
    from fencepost_spark import foreach_batch

    writer = foreach_batch(place / "state", place / "sink", sync=sync)
    stream = _stream(spark, events).writeStream.foreachBatch(writer)
    stream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    return place / "state"


def _drop_duplicates(spark: SparkSession, events: Events, place: Path, provider: str) -> Path:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER.format(provider))
    kept = _stream(spark, events).dropDuplicates(list(COLUMNS)).writeStream.format("parquet")
    kept = kept.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
    kept.start(str(place / "sink")).awaitTermination()
    return place / "checkpoint" / "state"


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    write_part(contest)
