"""Structured Streaming: every batch of a query is a version of a state.

Each partition of a batch is written to a file, and a job reads these files. So there is no shuffle, and the plans,
checks and side tables of file jobs apply. Files of kept rows are moved, not rewritten. The decision contains the
query's id and the batch's number. So a batch that Spark delivers again is recognized and completed, not judged again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from fencepost.errors import PolicyError, SourceError
from fencepost.lake import DedupJob, Engine, LocalEngine, RunReport
from fencepost.lake.run import Run
from fencepost.lake.sources import InputOverride
from fencepost.state.commit import Sink, Tasks, in_turn
from fencepost.state.decision import Decision
from fencepost.state.disk import Disk
from fencepost.state.sinks import ForJobs, RunFolders
from fencepost.state.stores import absolute, is_local
from fencepost.telemetry import observe_run
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.utils import is_remote

from fencepost_spark.content import Content, content_of, observed, read_content
from fencepost_spark.engine import SparkEngine
from fencepost_spark.hadoop import with_options
from fencepost_spark.kafka import (
    Describe,
    KafkaSource,
    KafkaWarning,
    Topic,
    are_the_same,
    discontinuities,
    execution_of,
    kafka_sources,
    lag_of,
    positions_of,
    warn_of,
)

Place = str | os.PathLike[str]
Ends = list[Any] | None
SinkFunction = Callable[[DataFrame, int, str], None]
QUERY_ID, RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of the thread that runs a query. The first is stored in the checkpoint; the second changes with
every start."""

CALLED: dict[str, tuple[str, int, str]] = {}
"""The query, batch and run of the last completed call by state. Not kept per function: code that makes a new function
for each part of a batch must be refused, too."""

PATTERN = "*?[]{}\\"


def foreach_batch(
    state: Place,
    sink: Place | Sink | ForJobs | SinkFunction,
    *,
    folder: Place | None = None,
    adopt_checkpoint: bool = False,
    topics: Describe | None = None,
    **options: Any,
) -> BatchWriter:
    """Return a function for ``DataFrame.writeStream.foreachBatch`` that keeps each event of a stream once.

    During processing, a batch's files are in ``<sink>.batches``, or in ``<folder>.batches`` if ``folder`` is set. All
    workers must see that folder.

    Batch *b* of a query is decided once. The decision contains the query's id (from its checkpoint), the batch's end in
    each source, and its content: the number of rows and a sum of hashes of their identities. A batch that is delivered
    again is completed, not judged. Kafka's offsets show whether it is the same batch. For other sources, or if offsets
    are not available, its content is compared.

    The query stops if its checkpoint does not belong to the state or was reset, because rows would be refused or
    missed. It also stops if the state was lost, or if a batch cannot be proven to be the decided one.
    ``adopt_checkpoint=True`` accepts the query's batches anyway. Call the function once per batch, with the whole
    batch.

    For a Kafka stream, the decision also contains the offsets at which the batch begins and ends. The query stops if a
    topic ends below the last read offset. With ``topics`` it also stops if a topic was recreated, or if unread rows
    were deleted. ``on_reset="report"`` turns these errors into warnings. Options that can lose or add rows give a
    KafkaWarning.

    Args:
        state: As in ``fencepost.lake.DedupJob``.
        sink: As in ``fencepost.lake.DedupJob``. Or a sink object, such as ``fencepost.sql.SqlSink`` or ``StagedTable``
            for a database table; batches are then in ``<folder>.batches``, where the folder is that of the
            ``StagedTable``, or ``<state>.sink`` for an ``SqlSink``. Or a function ``(kept, version, attempt)`` of a
            DataFrame, a number and a text; see below.
        folder: The location of batches. Required for a function, and for a sink without a local folder (object store,
            Iceberg); not allowed for other sinks. For a function, the kept rows are here until it returns; the path
            must not contain ``* ? [ ] { } \\``, which Spark reads as a pattern.
        adopt_checkpoint: Accept a checkpoint that does not match the state.
        topics: Returns ids and first offsets of Kafka topics, such as ``fencepost_spark.kafka.describe_topics(...)``.
        options: Arguments of ``DedupJob`` (``policy``, ``columns``, ``scope``, ``order_by``, ``layout`` and so on),
            checked here. ``engine`` defaults to ``SparkEngine``, or to driver threads if Spark's master is local.

    A function as sink is called for versions that keep rows, in order. If the driver dies before the function is known
    to have returned, it is called again with the same number and attempt. It is not called for abandoned versions. So a
    row is applied exactly once if the function refuses numbers that it has seen, in the transaction that writes the
    rows. Otherwise it is applied at least once. The run that decides the version draws ``attempt`` at random.

    Returns:
        A callable. Its ``report`` is the RunReport of the last batch that was judged. It raises the errors of
        ``DedupJob.run``, and SourceError for a batch that does not follow the last one; Spark then ends the query.

    Raises:
        PolicyError: The session is on Spark Connect, where batches do not reveal their query.
        FencepostError: Any error of ``DedupJob`` about its arguments.
    """
    if is_remote():
        raise PolicyError(
            "foreach_batch needs a classic Spark session: Spark Connect does not report the query of a "
            "batch, so a repeated batch could not be recognized. Run the query in the driver's process"
        )
    if folder is not None and not is_local(folder):
        raise ValueError(f"folder={os.fspath(folder)!r}: must be a path that the driver and all workers see, not a URI")
    if callable(sink):
        if folder is None:
            raise ValueError("folder=None: a function as sink needs a folder for the rows that it receives")
        _check_function(sink)
        place: Place = folder
        if strange := set(PATTERN).intersection(os.path.abspath(os.fspath(folder))):
            chars = " ".join(sorted(strange))
            raise ValueError(f"folder={os.fspath(folder)!r}: must not contain {chars}, which Spark reads as a pattern")
        return BatchWriter(state, place, sink, adopt_checkpoint, topics, options)
    shows = sink.for_job(state) if isinstance(sink, ForJobs) else sink
    beside = _folder_of(shows)
    if beside is not None and folder is not None:
        raise ValueError(f"folder={os.fspath(folder)!r}: this sink has its own folder; leave out folder=")
    if beside is None and folder is None:
        raise ValueError(
            "folder=None: a sink in an object store needs a folder for its batches that all workers can read and write"
        )
    return BatchWriter(state, beside or folder or "", shows, adopt_checkpoint, topics, options)


def _folder_of(sink: Place | Sink) -> Place | None:
    if isinstance(sink, RunFolders):
        return sink.path
    return sink if isinstance(sink, str | os.PathLike) and is_local(sink) else None


class BatchWriter:
    """The callable that `foreach_batch` returns: processes the batches of one query, in order."""

    def __init__(
        self,
        state: Place,
        place: Place,
        shows: Place | Sink | SinkFunction,
        adopts: bool,
        describe: Describe | None,
        options: dict[str, Any],
    ) -> None:
        self._adopts, self._describe = adopts, describe
        path = Path(absolute(place))
        self._batches = path.with_name(f"{path.name}.batches")
        self._chooses_engine = "engine" not in options
        sink = FunctionSink(path, Disk(options.get("sync", True)), shows) if callable(shows) else shows
        options = with_options(SparkSession.getActiveSession(), options, state=state, sink=sink)
        self._job = DedupJob(self._batches, state, sink, source_immutable=True, **options)
        # In the names of its folders: queries that share folder= must not remove each other's.
        self._owner = hashlib.sha256(self._job.state.uri.encode()).hexdigest()[:12]
        self.report: RunReport | None = None
        """The RunReport of the last judged batch."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Judge a batch and apply its version. A completed batch is not judged again."""
        spark = batch.sparkSession
        query = _query_of(spark)
        execution = execution_of(spark, query)
        run_id = _run_of(spark, execution)
        if run_id is not None and CALLED.get(self._job.state.uri) == (query, number, run_id):
            raise SourceError(
                f"batch {number} of query {query} was passed in parts, but becomes one version: pass the whole "
                "batch in one call, or call foreach_batch for each part with its own state and sink"
            )
        self._check_state(query, number)
        folder = self._batches / f"{self._owner}-{query}-{number}-{uuid4().hex[:12]}"
        sources = kafka_sources(execution)
        topics = self._topics(sources)
        begins, ends = _bounds(execution)
        position: dict[str, Any] = {"query": query, "batch": number, "ends": ends}
        run = self._run(spark, folder, position, lag_of(sources))
        run.recover()
        done = (run.before and run.before.source_position) or {}
        # A restored checkpoint begins at an earlier batch: ends below those of the state are right then.
        continues = done.get("query") == query and number == done["batch"] + 1
        # Offsets of a recreated topic refer to other rows.
        is_exact = _is_known(ends) and len(sources) == len(ends or ()) and are_the_same(sources, topics, done)
        if self._is_next(batch, position, begins, done, is_exact):
            if sources:
                warn_of(sources)
                self._check_topics(sources, topics, done, continues)
                position["kafka"] = positions_of(sources, topics, done, continues)
            self._judge(batch, folder, position, run)
        self._collect_batches(query, number)
        if run_id is not None:
            CALLED[self._job.state.uri] = query, number, run_id

    def _judge(self, batch: DataFrame, folder: Path, position: dict[str, Any], run: Run) -> None:
        observation = Observation()
        try:
            rows = observed(batch, self._job.policy.columns, observation)
            # Whatever the session says: names of a partition's further files do not sort in the order of arrival.
            rows.write.option("maxRecordsPerFile", 0).parquet(f"file://{folder}")
            position["content"] = content_of(observation)
            # Do not restart from the beginning: if this driver paused while others continued, it must not follow them.
            self.report = observe_run(run.about(), run.go_on)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, spark: SparkSession, folder: Path, position: dict[str, Any], lag: int | None) -> Run:
        self._batches.mkdir(parents=True, exist_ok=True)
        if self._chooses_engine:
            self._job.engine = _engine_of(spark)
        if isinstance(self._job.sink, FunctionSink):
            self._job.sink.spark = spark
        return Run(self._job, override=InputOverride(folder=str(folder), position=position, lag=lag))

    def _check_state(self, query: str, number: int) -> None:
        """Raise SourceError if the checkpoint has batches and the state is empty."""
        state = self._job.state
        if number > 0 and not self._adopts and state.settings() is None:
            raise SourceError(
                f"{state.uri}: the state is empty, but the checkpoint of query {query} has batches up to "
                f"{number - 1}: the state was lost, or another place was passed. Restore it. To begin a new state "
                "and a new sink here, in the middle of the stream, pass adopt_checkpoint=True"
            )

    def _collect_batches(self, query: str, number: int) -> None:
        """Remove files that crashed drivers of this state left behind for finished batches."""
        for path in self._batches.iterdir():
            match = re.fullmatch(rf"{self._owner}-(.+)-(\d+)-[0-9a-f]{{12}}", path.name)
            if match and (match[1] != query or int(match[2]) <= number):
                shutil.rmtree(path, ignore_errors=True)

    def _topics(self, sources: list[KafkaSource]) -> dict[str, Topic]:
        """Describe the batch's topics before the batch is read."""
        names = sorted({topic for source in sources for topic in source.end})
        return dict(self._describe(names)) if self._describe and names else {}

    def _check_topics(
        self, sources: list[KafkaSource], topics: dict[str, Topic], done: dict[str, Any], same: bool
    ) -> None:
        for problem in discontinuities(self._job.state.uri, sources, topics, done, same):
            if self._job.on_reset == "stop":
                raise problem
            warnings.warn(problem.message, KafkaWarning, stacklevel=3)

    def _is_next(
        self, batch: DataFrame, position: dict[str, Any], begins: Ends, done: dict[str, Any], is_exact: bool
    ) -> bool:
        """Return whether the batch follows the newest completed one. False if it is that batch.

        `is_exact`: whether offsets identify the rows between them, as Kafka's do. Offsets of folders count batches.
        """
        state, query, number, ends = self._job.state.uri, position["query"], position["batch"], done.get("ends")
        if done and done["query"] == query:
            if number > done["batch"] + 1:
                raise SourceError(
                    f"{state}: batch {number} of query {query} does not follow batch {done['batch']}, the last one of "
                    "this state: another state judged the batches between, or this one was rolled back. Restore the "
                    "state. Or pass adopt_checkpoint=True with a new checkpoint, whose startingOffsets are at or "
                    "before the missing batches"
                )
            what = f"batch {done['batch']} of this query up to {json.dumps(ends)}"
            if number == done["batch"] and _are_equal_if_known(position["ends"], ends):
                is_shown = is_exact and _is_known(ends)
                difference = "" if is_shown else self._difference(batch, done.get("content"))
                if not difference:
                    return False
                what = f"{what}; {difference}"
            if number == done["batch"] + 1 and _are_equal_if_known(begins, ends):
                return True
        elif done or number > 0:
            what = f"query {done['query']}, up to batch {done['batch']}" if done else "no query yet"
        else:
            return True
        if not self._adopts:
            raise SourceError(
                f"{state}: not the batch that this state expects. The state knows {what}; this is batch {number} of "
                f"query {query}, from {json.dumps(begins)} to {json.dumps(position['ends'])}. If the checkpoint is new "
                "or was restored, and begins no later than the state ends, pass adopt_checkpoint=True: rows that are "
                "read again are refused as duplicates, except rows without a producer id"
            )
        return True

    def _difference(self, batch: DataFrame, known: Content | None) -> str:
        """Return why a batch cannot be proven to have this content; "" if it can."""
        if known is None:
            return "its offsets do not tell what is in it, and the state does not either"
        found = read_content(batch, self._job.policy.columns)
        if found == known:
            return ""
        if found["rows"] != known["rows"]:
            return f"it had {known['rows']} rows, and now has {found['rows']}"
        return f"it had {known['rows']} rows, as now, but other ones"


def _check_function(sink: Callable[..., object]) -> None:
    try:
        inspect.signature(sink).bind(None, 1, "")
    except TypeError as error:
        raise ValueError(f"sink={sink!r}: expected a function (kept, version, attempt): {error}") from None
    except ValueError:
        return  # the signature is not available


def _engine_of(spark: SparkSession) -> Engine:
    """Return the engine for small batches: Spark if it has workers on other machines, otherwise driver threads.

    Each stage on Spark costs 0.1 to 0.2 s.
    """
    context = spark.sparkContext
    return LocalEngine(context.defaultParallelism) if (context.master or "").startswith("local") else SparkEngine(spark)


def _bounds(execution: Any) -> tuple[Ends, Ends]:
    """Return where the current batch of a running query begins and ends in each source, in the source's text format.

    None if this version of Spark does not expose it.
    """
    try:
        sources = [execution.sources().apply(place) for place in range(execution.sources().size())]
        begins, ends = (
            [json.loads(offsets.get(it).get().json()) if offsets.contains(it) else None for it in sources]
            for offsets in (execution.committedOffsets(), execution.availableOffsets())
        )
        return begins, ends
    except (Py4JError, AttributeError, TypeError, ValueError):
        return None, None


def _run_of(spark: SparkSession, execution: Any) -> str | None:
    """Return the id of a running query's start. None outside a query.

    The local property is the job group, which the caller's code may have changed.
    """
    try:
        return str(execution.runId().toString())
    except (Py4JError, AttributeError, TypeError):
        return spark.sparkContext.getLocalProperty(RUN_ID)


def _is_known(ends: Ends) -> bool:
    """Return whether the offset in every source is known."""
    return ends is not None and None not in ends


def _are_equal_if_known(found: Ends, known: Ends) -> bool:
    """Return whether known offsets in the sources are equal."""
    if found is None or known is None:
        return True
    return len(found) == len(known) and all(
        None in pair or pair[0] == pair[1] for pair in zip(found, known, strict=True)
    )


class FunctionSink(RunFolders):
    """Passes the rows of each version to a function, and keeps them only until it returns."""

    layout = "call"

    def __init__(self, path: Path, disk: Disk, call: SinkFunction) -> None:
        super().__init__(path, disk)
        self._call = call
        self.spark: SparkSession | None = None
        """The session of the current batch."""

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Apply a version by calling the function (see `Sink`). Fenced versions are skipped."""
        prepared = self.path / str(decision.prepared)
        is_fenced = self._is_fenced(self._target(decision))
        if not is_fenced and len(decision.outputs) and self._matches(prepared, decision):
            assert self.spark is not None
            files = [f"file://{prepared}/{name}" for name in decision.outputs.name]
            all_of_them = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
            frame = self.spark.read.options(basePath=f"file://{prepared}", **all_of_them).parquet(*files)
            self._call(frame, decision.version, decision.attempt)
        return super().apply(decision, tasks)

    def shown(self, decision: Decision) -> int:
        """Return the number of visible rows (see `Sink`). Rows passed to the function are no longer in this folder."""
        return len(decision.outputs)

    def fold(self, first: int, last: int) -> None:
        """Keep all marks (see `Sink`). Without its mark, a paused driver would call the function again."""

    def collect_garbage(self, done: int) -> None:
        """Remove leftover files (see `Sink`), including the rows of the newest applied version."""
        super().collect_garbage(done)
        version = self.path / f"run={done}"
        for file in version.glob("**/part-*.parquet"):
            if not file.relative_to(version).parts[0].startswith("_"):
                self.disk.remove(file)


def _query_of(spark: SparkSession) -> str:
    """Return the id of the query that the current batch belongs to."""
    query = spark.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise SourceError("foreach_batch was called outside a streaming query: to read files use DedupJob")
    return query
