"""Structured Streaming: every batch of a query is a version of a state.

A batch is written to files as it comes, one for each of its partitions, and those are what a job reads: no shuffle, and
the plans, checks and side tables of files. Rows that are kept are moved from there, not written twice. The decision
carries the query's id and the batch's number, so a batch that Spark delivers again is known, and finished rather
than judged again.
"""

from __future__ import annotations

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
from fencepost.lake.sources import Given
from fencepost.state.commit import Sink, Tasks, in_turn
from fencepost.state.decision import Decision
from fencepost.state.disk import Disk
from fencepost.state.sinks import ForJobs, RunFolders
from fencepost.state.stores import is_local
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
    check_continuity,
    execution_of,
    kafka_sources,
    warn_of,
)

Place = str | os.PathLike[str]
Ends = list[Any] | None
OwnSink = Callable[[DataFrame, int, str], None]
QUERY_ID, RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of the thread that runs a query: what its checkpoint holds, and another one after every start."""

PATTERN = "*?[]{}\\"


def foreach_batch(
    state: Place,
    sink: Place | Sink | ForJobs | OwnSink,
    *,
    folder: Place | None = None,
    adopt_checkpoint: bool = False,
    topics: Describe | None = None,
    **options: Any,
) -> BatchWriter:
    """For ``DataFrame.writeStream.foreachBatch``: keeps each event of a stream once.

    ``state``, ``sink``: as of ``fencepost.lake.DedupJob``, which takes ``options`` too (``policy``, ``columns``,
    ``scope``, ``order_by``, ``layout`` and so on) and checks them here. A batch lies in ``<sink>.batches`` while it is
    judged; workers must see that folder. For a sink in an object store give ``folder``, batches then lie in
    ``<folder>.batches``. ``engine``: ``SparkEngine`` unless given, or threads of the driver where
    Spark's master is local.

    Batch *b* of a query is decided once, with the query's id, which its checkpoint holds, where the batch ends in each
    source, and its content: how many rows it has, and a sum of hashes of their identities. Delivered again it is
    finished and not judged. Kafka's offsets tell whether it is the same; where offsets are hidden, and for other
    sources, its content is compared. A checkpoint that is not the state's, or that was taken back, stops the query,
    since rows would be refused or missed, and so do a state that was lost and a batch that cannot be shown to be the
    one that was decided: ``adopt_checkpoint=True`` takes over whichever comes. It is called once for a batch, with the
    whole of it.

    ``sink`` may be a sink itself, such as ``fencepost.sql.SqlSink`` or ``StagedTable``, a table of a database; batches
    then lie beside its folder. It may also be a function ``(kept, version, attempt)`` of a DataFrame, a number and a
    text; ``folder`` is then where kept rows lie until it has returned. It is called for versions that keep rows, in
    order, and once more with the same number and attempt where the driver died before it was known to have returned.
    It is not called for a version that was abandoned before. So a row is shown once if it refuses numbers that it has
    seen (in the transaction that writes the rows), and at least once otherwise. ``attempt`` is drawn by the run that
    decided the version. ``folder`` has none of ``* ? [ ] { } \\`` in its path, which Spark would read as a pattern.

    Of a stream that is read from Kafka the decision also holds the offsets at which the batch begins and ends. A topic
    that ends below where it was read before stops the query; with ``topics``, a function such as
    ``fencepost_spark.kafka.describe_topics`` gives, one that was recreated does, and one that rows were deleted from
    which were not read yet. ``on_reset="report"`` makes warnings of these. Options that can cost or add rows are a
    KafkaWarning.

    The callable's ``report`` is the RunReport of the last batch. Raises what ``DedupJob`` raises for its arguments, and
    PolicyError in a session of Spark Connect, where batches do not tell of which query they are. The callable raises
    what ``DedupJob.run`` raises, and SourceError for a batch that does not follow the last one; Spark ends the query
    with it.
    """
    if is_remote():
        raise PolicyError(
            "foreach_batch needs a classic Spark session: those of Spark Connect do not tell a batch's query, so one "
            "that is delivered again could not be known. Run the query where the driver is"
        )
    if callable(sink):
        if folder is None:
            raise ValueError("folder=None: a sink of one's own needs a folder for the rows that it is given")
        _check_function(sink)
        place: Place = folder
        if strange := set(PATTERN).intersection(os.path.abspath(os.fspath(folder))):
            raise ValueError(f"folder={os.fspath(folder)!r}: Spark takes {' '.join(sorted(strange))} for a pattern")
        return BatchWriter(state, place, sink, adopt_checkpoint, topics, options)
    shows = sink.for_job(state) if isinstance(sink, ForJobs) else sink
    beside = _folder_of(shows)
    if beside is not None and folder is not None:
        raise ValueError(f"folder={os.fspath(folder)!r}: this sink has a folder, only one without needs another")
    if beside is None and folder is None:
        raise ValueError("folder=None: a sink in an object store needs a folder, which workers see, for its batches")
    return BatchWriter(state, beside or folder or "", shows, adopt_checkpoint, topics, options)


def _folder_of(sink: Place | Sink) -> Place | None:
    if isinstance(sink, RunFolders):
        return sink.path
    return sink if isinstance(sink, str | os.PathLike) and is_local(sink) else None


class BatchWriter:
    """What `foreach_batch` gives: to be called with each batch of one query, in order."""

    def __init__(
        self,
        state: Place,
        place: Place,
        shows: Place | Sink | OwnSink,
        adopts: bool,
        describe: Describe | None,
        options: dict[str, Any],
    ) -> None:
        self._adopts, self._describe = adopts, describe
        path = Path(os.path.abspath(os.fspath(place).removeprefix("file://")))
        self._batches = path.with_name(f"{path.name}.batches")
        self._chooses_engine = "engine" not in options
        sink = CalledSink(path, Disk(options.get("sync", True)), shows) if callable(shows) else shows
        options = with_options(SparkSession.getActiveSession(), options, state=state, sink=sink)
        self._job = DedupJob(self._batches, state, sink, source_immutable=True, **options)
        self.report: RunReport | None = None
        """The RunReport of the last batch that was judged."""
        self._called: tuple[str, int, str | None] | None = None
        """Query, batch and run of it that were called for last."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Judge a batch and show its version. A batch that is done already is not judged again."""
        spark = batch.sparkSession
        query = _query_of(spark)
        call = query, number, spark.sparkContext.getLocalProperty(RUN_ID)
        if call == self._called and call[2] is not None:
            raise SourceError(
                f"batch {number} of query {query} was given in parts: it becomes one version, so pass the whole of it "
                "at once, or give each part a writer, a state and a sink of its own"
            )
        self._check_state(query, number)
        folder = self._batches / f"{query}-{number}-{uuid4().hex[:12]}"
        execution = execution_of(spark, query)
        sources = kafka_sources(execution)
        topics = self._topics(sources)
        begins, ends = _bounds(execution)
        position: dict[str, Any] = {"query": query, "batch": number, "ends": ends}
        run = self._run(spark, folder, position)
        run.recover()
        done = (run.before and run.before.source_position) or {}
        goes_on = done.get("query") == query
        # Offsets of a topic that was made anew stand for other rows.
        is_told = _is_known(ends) and len(sources) == len(ends or ()) and are_the_same(sources, topics, done)
        if self._is_next(batch, position, begins, done, is_told):
            if sources:
                warn_of(sources)
                self._check_topics(run, sources, topics, done, goes_on)
                position["kafka"] = _kafka_positions(sources, topics, done, goes_on)
            self._judge(batch, folder, position, run)
        self._collect_batches(query, number)
        self._called = call

    def _judge(self, batch: DataFrame, folder: Path, position: dict[str, Any], run: Run) -> None:
        observation = Observation()
        try:
            rows = observed(batch, self._job.policy.columns, observation)
            rows.write.parquet(f"file://{folder}")
            position["content"] = content_of(observation)
            # Not from the beginning: were this driver paused, and others have gone on, it must not follow them.
            self.report = run.go_on()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, spark: SparkSession, folder: Path, position: dict[str, Any]) -> Run:
        self._batches.mkdir(parents=True, exist_ok=True)
        if self._chooses_engine:
            self._job.engine = _engine_of(spark)
        if isinstance(self._job.sink, CalledSink):
            self._job.sink.spark = spark
        return Run(self._job, given=Given(folder=str(folder), position=position))

    def _check_state(self, query: str, number: int) -> None:
        """Raises SourceError where the checkpoint has batches and the state is empty."""
        state = self._job.state
        if number > 0 and not self._adopts and state.settings() is None:
            raise SourceError(
                f"{state.uri}: the state is empty, but the checkpoint of query {query} has batches up to "
                f"{number - 1}: the state was lost, or another place is given. Put it back. Where a new state is meant "
                "to begin here, in the middle of the stream, with a new sink, adopt_checkpoint=True begins one"
            )

    def _collect_batches(self, query: str, number: int) -> None:
        """Remove what drivers that died have left of batches that are over."""
        for path in self._batches.iterdir():
            match = re.fullmatch(r"(.+)-(\d+)-[0-9a-f]{12}", path.name)
            if match and (match[1] != query or int(match[2]) <= number):
                shutil.rmtree(path, ignore_errors=True)

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
        self, batch: DataFrame, position: dict[str, Any], begins: Ends, done: dict[str, Any], is_told: bool
    ) -> bool:
        """Whether the batch is the one after the newest that is done; False where it is that one itself.

        `is_told`: whether offsets tell all that lies between them, as Kafka's do. Those of folders count batches.
        """
        state, query, number, ends = self._job.state.uri, position["query"], position["batch"], done.get("ends")
        if done and done["query"] == query:
            if number > done["batch"] + 1:
                raise SourceError(
                    f"{state}: batch {number} of query {query} follows batch {done['batch']}: those between were "
                    "judged by another state, or this one was taken back. Put the state back, or begin a new "
                    "checkpoint with adopt_checkpoint=True"
                )
            what = f"batch {done['batch']} of this query up to {json.dumps(ends)}"
            if number == done["batch"] and _agree(position["ends"], ends):
                is_shown = is_told and _is_known(ends)
                difference = "" if is_shown else self._difference(batch, done.get("content"))
                if not difference:
                    return False
                what = f"{what}; {difference}"
            if number == done["batch"] + 1 and _agree(begins, ends):
                return True
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

    def _difference(self, batch: DataFrame, known: Content | None) -> str:
        """Why a batch cannot be shown to be the one with this content; "" where it can."""
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
        raise ValueError(f"sink={sink!r}: a function (kept, version, attempt) was expected: {error}") from None
    except ValueError:
        return  # it does not say what it takes


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


def _is_known(ends: Ends) -> bool:
    """Whether the place in every source is known."""
    return ends is not None and None not in ends


def _agree(found: Ends, known: Ends) -> bool:
    """Whether places in the sources are the same, as far as they are known."""
    if found is None or known is None:
        return True
    return len(found) == len(known) and all(
        None in pair or pair[0] == pair[1] for pair in zip(found, known, strict=True)
    )


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

    def __init__(self, path: Path, disk: Disk, call: OwnSink) -> None:
        super().__init__(path, disk)
        self._call = call
        self.spark: SparkSession | None = None
        """The session of the batch at hand."""

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """See `Sink`: a version is shown once the function has returned. It is not called for one that is fenced."""
        prepared = self.path / str(decision.prepared)
        is_fenced = self._is_fenced(self._target(decision))
        if not is_fenced and len(decision.outputs) and self._holds(prepared, decision):
            assert self.spark is not None
            files = [f"file://{prepared}/{name}" for name in decision.outputs.name]
            all_of_them = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
            frame = self.spark.read.options(basePath=f"file://{prepared}", **all_of_them).parquet(*files)
            self._call(frame, decision.version, decision.attempt)
        return super().apply(decision, tasks)

    def shown(self, decision: Decision) -> int:
        """See `Sink`: what the function was given is not in this folder any more."""
        return len(decision.outputs)

    def fold(self, first: int, last: int) -> None:
        """See `Sink`: all marks stay. Without one, a paused driver would call the function again."""

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
