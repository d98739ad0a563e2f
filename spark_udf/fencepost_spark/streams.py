"""Structured Streaming: every batch of a query is a version of a state.

A batch is written to files as it comes, one for each of its partitions, and those are what a job reads: no shuffle, and
the plans, checks and side tables of files. Rows that are kept are moved from there, not written twice. The decision
carries the query's id and the batch's number, so a batch that Spark delivers again is known, and finished rather
than judged again.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from fencepost.errors import PolicyError, SourceError
from fencepost.lake import RunReport
from fencepost.lake.run import Given, Run
from fencepost.state.decision import Decision
from fencepost.state.disk import Disk
from fencepost.state.sinks import RunFolders
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from fencepost_spark.jobs import DedupJob
from fencepost_spark.kafka import Describe, KafkaSource, KafkaWarning, Topic, check_continuity, kafka_sources, warn_of

Place = str | os.PathLike[str]
OwnSink = Callable[[DataFrame, int], None]
QUERY_ID = "sql.streaming.queryId"  # a local property of the thread that runs a query


def foreach_batch(
    state: Place,
    sink: Place | OwnSink,
    *,
    folder: Place | None = None,
    adopt_checkpoint: bool = False,
    topics: Describe | None = None,
    **options: Any,
) -> BatchWriter:
    """For ``DataFrame.writeStream.foreachBatch``: keeps each event of a stream once.

    ``state``, ``sink``: as of ``DedupJob``, which takes ``options`` too (``policy``, ``columns``, ``scope``,
    ``order_by``, ``layout`` and so on). A batch lies in ``<sink>.batches`` while it is judged; workers must see that
    folder.

    Batch *b* of a query is decided once, with the query's id, which its checkpoint holds. Delivered again it is
    finished and not judged. A checkpoint that is not the state's stops the query, since rows would be refused or
    missed: ``adopt_checkpoint=True`` takes over whichever comes.

    ``sink`` may be a function ``(kept, version)`` of a DataFrame and a number; ``folder`` is then where kept rows lie
    until it has returned. It is called for versions that keep rows, in order, and once more with the same number where
    the driver died before it was known to have returned. So a row is shown once if it refuses numbers that it has seen
    (in the transaction that writes the rows), and at least once otherwise.

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
        return BatchWriter(state, place, sink, adopt_checkpoint, topics, options)
    if folder is not None:
        raise ValueError(f"folder={os.fspath(folder)!r}: only a function as sink needs one")
    return BatchWriter(state, sink, None, adopt_checkpoint, topics, options)


class BatchWriter:
    """What `foreach_batch` gives: to be called with each batch of one query, in order."""

    def __init__(
        self,
        state: Place,
        place: Place,
        call: OwnSink | None,
        adopts: bool,
        describe: Describe | None,
        options: dict[str, Any],
    ) -> None:
        self._state, self._call, self._adopts, self._describe, self._options = state, call, adopts, describe, options
        self._place = Path(os.path.abspath(os.fspath(place).removeprefix("file://")))
        self._batches = self._place.with_name(f"{self._place.name}.batches")
        self.report: RunReport | None = None
        """What became of the last batch that was judged."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Judge a batch and show its version. A batch that is done already is not looked at."""
        query = _query_of(batch)
        job = self._job(batch.sparkSession)
        folder = self._batches / f"{query}-{number}-{uuid4().hex[:12]}"
        sources = kafka_sources(batch.sparkSession, query)
        topics = self._topics(sources)
        position: dict[str, Any] = {"query": query, "batch": number}
        if sources:
            warn_of(sources)
            position["kafka"] = [source.position(topics) for source in sources]
        run = Run(job, given=Given(folder=str(folder), position=position))
        run.recover()
        if not self._is_next(run, query, number):
            return
        self._check_topics(run, query, sources, topics)
        try:
            batch.write.parquet(f"file://{folder}")
            # Not from the beginning: were this driver paused, and others have gone on, it must not follow them.
            self.report = run.go_on()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _job(self, spark: SparkSession) -> DedupJob:
        self._batches.mkdir(parents=True, exist_ok=True)
        sink: Place | RunFolders = self._place
        if self._call is not None:
            sink = CalledSink(self._place, Disk(self._options.get("sync", True)), self._call, spark)
        return DedupJob(self._batches, self._state, sink, spark=spark, source_immutable=True, **self._options)

    def _topics(self, sources: list[KafkaSource]) -> dict[str, Topic]:
        """The topics of a batch as they are before it is read."""
        names = sorted({topic for source in sources for topic in source.end})
        return dict(self._describe(names)) if self._describe and names else {}

    def _check_topics(self, run: Run, query: str, sources: list[KafkaSource], topics: dict[str, Topic]) -> None:
        done = run.before.source_position if run.before else None
        try:
            check_continuity(run.job.state.uri, sources, topics, done, bool(done and done["query"] == query))
        except SourceError as problem:
            if run.job.on_reset == "stop":
                raise
            warnings.warn(str(problem), KafkaWarning, stacklevel=2)

    def _is_next(self, run: Run, query: str, number: int) -> bool:
        """Whether the batch is the one after the newest that is done; False where it is one of those before."""
        done = run.before.source_position if run.before else None
        state = run.job.state.uri
        if done is not None and done["query"] == query:
            if number > done["batch"] + 1:
                raise SourceError(
                    f"{state}: batch {number} of query {query} follows batch {done['batch']}: those between were "
                    "judged by another state, or this one was taken back. Take the checkpoint back too, or put the "
                    "state back"
                )
            return bool(number > done["batch"])
        if not self._adopts and (done is not None or number > 0):
            what = f"query {done['query']}, up to batch {done['batch']}" if done else "no query yet"
            raise SourceError(
                f"{state}: knows {what}; this is batch {number} of query {query}. Where a new checkpoint is meant to "
                "go on with this state, adopt_checkpoint=True takes it over: what it reads again will be refused as "
                "duplicates"
            )
        return True


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
            frame = self._spark.read.option("basePath", f"file://{prepared}").parquet(*files)
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


def _query_of(batch: DataFrame) -> str:
    """The id of the query that a batch is of."""
    query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise SourceError("foreach_batch was called outside a streaming query: DedupJob reads files")
    return query
