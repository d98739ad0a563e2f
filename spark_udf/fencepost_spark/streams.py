"""Structured Streaming: every batch of a query is a version of a state.

A batch is written to files as it comes, one for each of its partitions, and those are what a job reads: no shuffle, and
the plans, checks and side tables of files. Rows that are kept are moved from there, not written twice. The decision
carries the query's id and the batch's number, so a batch that Spark delivers again is known, and finished rather
than judged again.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from fencepost.errors import PolicyError, SourceError
from fencepost.lake import DedupJob, Engine, LocalEngine, RunReport
from fencepost.lake.run import Given, Run
from fencepost.state.decision import Decision
from fencepost.state.disk import Disk
from fencepost.state.sinks import ForJobs, RunFolders
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from fencepost_spark.engine import SparkEngine
from fencepost_spark.kafka import (
    Describe,
    KafkaSource,
    KafkaWarning,
    Topic,
    check_continuity,
    execution_of,
    kafka_sources,
    warn_of,
)

Place = str | os.PathLike[str]
Ends = list[Any] | None
OwnSink = Callable[[DataFrame, int], None]
QUERY_ID, RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of the thread that runs a query: what its checkpoint holds, and another one after every start."""

PATTERN = "*?[]{}\\"


def foreach_batch(
    state: Place,
    sink: Place | RunFolders | ForJobs | OwnSink,
    *,
    folder: Place | None = None,
    adopt_checkpoint: bool = False,
    topics: Describe | None = None,
    **options: Any,
) -> BatchWriter:
    """For ``DataFrame.writeStream.foreachBatch``: keeps each event of a stream once.

    ``state``, ``sink``: as of ``fencepost.lake.DedupJob``, which takes ``options`` too (``policy``, ``columns``,
    ``scope``, ``order_by``, ``layout`` and so on). A batch lies in ``<sink>.batches`` while it is judged; workers must
    see that folder. ``engine``: ``SparkEngine`` unless given, or threads of the driver where Spark's master is local.

    Batch *b* of a query is decided once, with the query's id, which its checkpoint holds, and where the batch ends in
    each source. Delivered again it is finished and not judged. A checkpoint that is not the state's, or that was taken
    back, stops the query, since rows would be refused or missed: ``adopt_checkpoint=True`` takes over whichever comes.
    It is called once for a batch, with the whole of it.

    ``sink`` may be a sink itself, such as ``fencepost.sql.SqlSink`` or ``StagedTable``, a table of a database; batches
    then lie beside its folder. It may also be a function ``(kept, version)`` of a DataFrame and a number; ``folder``
    is then where kept rows lie until it has returned. It is called for versions that keep rows, in order, and once
    more with the same number where the driver died before it was known to have returned. So a row is shown once if it
    refuses numbers that it has seen (in the transaction that writes the rows), and at least once otherwise. ``folder``
    has none of ``* ? [ ] { } \\`` in its path, which Spark would read as a pattern.

    Of a stream that is read from Kafka the decision also holds the offsets at which the batch begins and ends. A topic
    that ends below where it was read before stops the query; with ``topics``, a function such as
    ``fencepost_spark.kafka.describe_topics`` gives, one that was recreated does, and one that rows were deleted from
    which were not read yet. ``on_reset="report"`` makes warnings of these. Options that can cost or add rows are a
    KafkaWarning.

    The callable's ``report`` is the RunReport of the last batch. Raises what ``DedupJob.run`` raises, and SourceError
    for a batch that does not follow the last one; Spark ends the query with it. Raises PolicyError in a session of
    Spark Connect, where batches do not tell of which query they are.
    """
    if is_remote():
        raise PolicyError(
            "foreach_batch needs a classic Spark session: those of Spark Connect do not tell a batch's query, so one "
            "that is delivered again could not be known. Run the query where the driver is"
        )
    if callable(sink):
        if folder is None:
            raise ValueError("folder=None: a sink of one's own needs a folder for the rows that it is given")
        place: Place = folder
        if strange := set(PATTERN).intersection(os.path.abspath(os.fspath(folder))):
            raise ValueError(f"folder={os.fspath(folder)!r}: Spark takes {' '.join(sorted(strange))} for a pattern")
        return BatchWriter(state, place, sink, adopt_checkpoint, topics, options)
    if folder is not None:
        raise ValueError(f"folder={os.fspath(folder)!r}: only a function as sink needs one")
    if isinstance(sink, ForJobs):
        sink = sink.for_job(state)
    place = sink.path if isinstance(sink, RunFolders) else sink
    return BatchWriter(state, place, sink if isinstance(sink, RunFolders) else None, adopt_checkpoint, topics, options)


class BatchWriter:
    """What `foreach_batch` gives: to be called with each batch of one query, in order."""

    def __init__(
        self,
        state: Place,
        place: Place,
        shows: RunFolders | OwnSink | None,
        adopts: bool,
        describe: Describe | None,
        options: dict[str, Any],
    ) -> None:
        self._state, self._shows, self._adopts, self._describe, self._options = state, shows, adopts, describe, options
        self._place = Path(os.path.abspath(os.fspath(place).removeprefix("file://")))
        self._batches = self._place.with_name(f"{self._place.name}.batches")
        self.report: RunReport | None = None
        """What became of the last batch that was judged."""
        self._called: tuple[str, int, str | None] | None = None
        """Query, batch and run of it that were called for last."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Judge a batch and show its version. A batch that is done already is not looked at."""
        spark = batch.sparkSession
        query = _query_of(spark)
        call = query, number, spark.sparkContext.getLocalProperty(RUN_ID)
        if call == self._called and call[2] is not None:
            raise SourceError(
                f"batch {number} of query {query} was given in parts: it becomes one version, so pass the whole of it "
                "at once, or give each part a writer, a state and a sink of its own"
            )
        folder = self._batches / f"{query}-{number}-{uuid4().hex[:12]}"
        execution = execution_of(spark, query)
        sources = kafka_sources(execution)
        topics = self._topics(sources)
        begins, ends = _bounds(execution)
        position: dict[str, Any] = {"query": query, "batch": number, "ends": ends}
        run = Run(self._job(spark), given=Given(folder=str(folder), position=position))
        run.recover()
        done = (run.before and run.before.source_position) or {}
        goes_on = done.get("query") == query
        is_same = partial(_is_same, batch, run.before, len(sources) == len(ends or ()))
        if self._is_next(run.job.state.uri, position, begins, done, is_same):
            if sources:
                warn_of(sources)
                self._check_topics(run, sources, topics, done, goes_on)
                position["kafka"] = _kafka_positions(sources, topics, done, goes_on)
            try:
                batch.write.parquet(f"file://{folder}")
                # Not from the beginning: were this driver paused, and others have gone on, it must not follow them.
                self.report = run.go_on()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        self._called = call

    def _job(self, spark: SparkSession) -> DedupJob:
        self._batches.mkdir(parents=True, exist_ok=True)
        sink: Place | RunFolders = self._place
        if isinstance(self._shows, RunFolders):
            sink = self._shows
        elif self._shows is not None:
            sink = CalledSink(self._place, Disk(self._options.get("sync", True)), self._shows, spark)
        options = {"engine": _engine_of(spark), **self._options}
        return DedupJob(self._batches, self._state, sink, source_immutable=True, **options)

    def _topics(self, sources: list[KafkaSource]) -> dict[str, Topic]:
        """The topics of a batch as they are before it is read."""
        names = sorted({topic for source in sources for topic in source.end})
        return dict(self._describe(names)) if self._describe and names else {}

    def _check_topics(
        self, run: Run, sources: list[KafkaSource], topics: dict[str, Topic], done: dict[str, Any], same: bool
    ) -> None:
        try:
            check_continuity(run.job.state.uri, sources, topics, done, same)
        except SourceError as problem:
            if run.job.on_reset == "stop":
                raise
            warnings.warn(str(problem), KafkaWarning, stacklevel=3)

    def _is_next(
        self, state: str, position: dict[str, Any], begins: Ends, done: dict[str, Any], is_same: Callable[[], bool]
    ) -> bool:
        """Whether the batch is the one after the newest that is done; False where it is that one itself."""
        query, number, ends = position["query"], position["batch"], done.get("ends")
        if done and done["query"] == query:
            if number > done["batch"] + 1:
                raise SourceError(
                    f"{state}: batch {number} of query {query} follows batch {done['batch']}: those between were "
                    "judged by another state, or this one was taken back. Put the state back, or begin a new "
                    "checkpoint with adopt_checkpoint=True"
                )
            if number == done["batch"] and _agree(position["ends"], ends) and is_same():
                return False
            if number == done["batch"] + 1 and _agree(begins, ends):
                return True
            what = f"batch {done['batch']} of this query up to {json.dumps(ends)}"
        elif done or number > 0:
            what = f"query {done['query']}, up to batch {done['batch']}" if done else "no query yet"
        else:
            return True
        if not self._adopts:
            raise SourceError(
                f"{state}: knows {what}; this is batch {number} of query {query}, from {json.dumps(begins)} to "
                f"{json.dumps(position['ends'])}. Where a checkpoint that is new, or was taken back, is meant to go on "
                "with this state, adopt_checkpoint=True takes it over: what it reads again will be refused as "
                "duplicates"
            )
        return True


def _engine_of(spark: SparkSession) -> Engine:
    """Where tasks of a small batch are best run: where Spark has workers, but in the driver's threads where those would
    be on its own machine, for every stage on Spark costs a tenth of a second or two."""
    context = spark.sparkContext
    return LocalEngine(context.defaultParallelism) if (context.master or "").startswith("local") else SparkEngine(spark)


def _bounds(execution: Any) -> tuple[Ends, Ends]:
    """Where the batch that a running query is at begins and ends in each of its sources, as they write it; None where
    this Spark does not show it."""
    try:
        sources = [execution.sources().apply(place) for place in range(execution.sources().size())]
        begins, ends = (
            [json.loads(offsets.get(it).get().json()) if offsets.contains(it) else None for it in sources]
            for offsets in (execution.committedOffsets(), execution.availableOffsets())
        )
        return begins, ends
    except (Py4JError, AttributeError, TypeError, ValueError):
        return None, None


def _is_same(batch: DataFrame, done: Decision | None, is_told: bool) -> bool:
    """Whether a batch that ends where the newest version does has as many rows. `is_told`: offsets say what lies
    between them, as Kafka's do; those of folders only count the batches, so the rows are counted. A version of another
    kind came after the batch, and does not say."""
    return is_told or done is None or done.kind != "run" or batch.count() == sum(done.inputs.rows)


def _agree(found: Ends, known: Ends) -> bool:
    return found is None or known is None or found == known


def _kafka_positions(
    sources: list[KafkaSource], topics: dict[str, Topic], done: dict[str, Any], same: bool
) -> list[dict[str, Any]]:
    """What the decision says of each source."""
    last = done.get("kafka") or []
    last = last if len(last) == len(sources) else [{}] * len(sources)
    return [source.position(topics, it, same) for source, it in zip(sources, last, strict=True)]


class CalledSink(RunFolders):
    """Shows the rows of each version to a function, and keeps them only until it has returned."""

    layout = "call"

    def __init__(self, path: Path, disk: Disk, call: OwnSink, spark: SparkSession) -> None:
        super().__init__(path, disk)
        self._call, self._spark = call, spark

    def apply(self, decision: Decision) -> str:
        """See `Sink`: a version is shown once the function has returned."""
        prepared = self.path / str(decision.prepared)
        if len(decision.outputs) and self._holds(prepared, decision):
            files = [f"file://{prepared}/{name}" for name in decision.outputs.name]
            all_of_them = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
            frame = self._spark.read.options(basePath=f"file://{prepared}", **all_of_them).parquet(*files)
            self._call(frame, decision.version)
        return super().apply(decision)

    def shown(self, decision: Decision) -> int:
        """See `Sink`: what the function was given is not in this folder any more."""
        return len(decision.outputs)

    def collect_garbage(self, done: int) -> None:
        """See `Sink`: the rows of the newest version, too, which were shown."""
        super().collect_garbage(done)
        version = self.path / f"run={done}"
        for file in version.glob("**/part-*.parquet"):
            if not file.relative_to(version).parts[0].startswith("_"):
                self.disk.remove(file)


def _query_of(spark: SparkSession) -> str:
    """The id of the query whose batch this is."""
    query = spark.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise SourceError("foreach_batch was called outside a streaming query: DedupJob reads files")
    return query
