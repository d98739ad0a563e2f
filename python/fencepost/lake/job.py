"""The job: reads new files of a source, judges them against a state, and writes kept rows to a sink, exactly once.

    recover   apply and finish the decided version of an interrupted run, without its source
    list      find new input: files of the source that the state's ledger does not contain
    scan      a task per group of files:  write their spans, split by shard         (scan.py)
    judge     a task per group of shards: write verdicts and the new segments       (judge.py)
    write     a task per group of files:  write the kept rows                       (write.py)
    decide    check the sums, then one put-if-absent
    apply     make the version visible by one rename
    finish    allow other versions to build on it

If each key is in one group of files, one task scans, judges and writes its files (aligned.py). Before `decide` nothing
refers to what was written: after any failure, output and state are unchanged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Literal, cast, get_args
from uuid import uuid4

import fencepost
from fencepost.content import columns_to_compare
from fencepost.errors import PolicyError, SinkError, StateConflictError
from fencepost.findings import RESET_ROWS_MIN, check_reset_rows_min
from fencepost.inputs import is_integer
from fencepost.lake.arranging import arrangement_of
from fencepost.lake.conflicts import OnConflict
from fencepost.lake.kafka_log import KafkaLog
from fencepost.lake.left_out import OnBadFile
from fencepost.lake.plan import (
    DRIVER_SPANS_MAX,
    DRIVER_STATE_BYTES_MAX,
    PLANS,
    SHARD_BYTES_MAX,
    SHARDS,
    TASK_BYTES_MAX,
    TASK_SPANS_MAX,
    Plan,
)
from fencepost.lake.run import Run
from fencepost.lake.run_report import RunReport
from fencepost.lake.scan import check_names
from fencepost.lake.schemas import SchemaRule
from fencepost.lake.slices import Slice, files_of, patterns_of, source_of
from fencepost.lake.sources import InputOverride, open_place
from fencepost.lake.write import Rejects
from fencepost.policy import Columns, Policy, resolve, resolve_columns
from fencepost.progress import Progress
from fencepost.state.commit import Sink
from fencepost.state.decision import Settings
from fencepost.state.delta_sink import is_delta
from fencepost.state.disk import Disk
from fencepost.state.engine import Engine, LocalEngine
from fencepost.state.operations import check_shards
from fencepost.state.retention import KEEP_VERSIONS, KEEP_VERSIONS_MS, Retention
from fencepost.state.sink_kinds import layout_of, open_sink
from fencepost.state.sinks import IN_PLACE, ForJobs
from fencepost.state.stores import LocalStore, absolute, is_local, open_store
from fencepost.state.versions import State

OnReset = Literal["stop", "report"]
Layout = Literal["run", "delta"]
ROLES = ("pid", "epoch", "partition", "seq", "timestamp")
_AFTER_CONFLICT_MS = 1000


class DedupJob:
    """Keeps each event of a Parquet folder, a Delta or Iceberg table, or Kafka's log once, from run to run.

    Source, state and sink must not contain each other. The exception is a Delta table in a local folder that is both
    source and sink: then refused rows are removed from it in place.

    Args:
        source: What to read. Each run reads what no earlier run has read.

            - a folder of Parquet files, or a prefix of an object store (`s3://`, `gs://`, `az://`)
            - a glob such as "landing/*/events" (a `str`; a `Path` is not a glob)
            - a list of folders and globs; the state knows it by their common folder
            - a Delta table in a folder or prefix
            - an Iceberg table by its name, `iceberg://<catalog>/<namespace>.<table>`
            - a `KafkaLog`
        state: A folder or the URI of an object store (`fencepost.state.open_store`) that the job creates and owns.
        sink: Where kept rows go.

            - a folder that the job creates and owns: version n appears atomically as `run=<n>/`, with one file per
              input file with kept rows, in the input's Hive-style folders
            - a Delta table in a folder or prefix: each version is one transaction
            - a prefix of an object store: a version's files appear one by one, then `run=<n>/_SUCCESS`, which lists
              them (`fencepost.lake.applied_files`)
            - an Iceberg table by its name: each version is one snapshot
            - a sink object, such as those of `fencepost.state.sinks` or a `fencepost.sql.SqlSink`
        policy: The name of a preset or a Policy.
        columns: The identity columns: a Columns or the name of a preset (`Columns.preset`). Default: the policy's
            columns. They may be in the names of Hive-style folders, or fields of struct columns ("payload.seq").
        scope: A text that distinguishes data of different origins (a cluster, a topic id). Fixed with the state.
        order_by: Columns that order the rows of a run before they are judged. Rows that are equal in these columns are
            ordered by file name and row. With (), all rows are. Policies that depend on the order require this
            argument, even if it is (): with a wrong order, they refuse good rows.

        rejected_max: Maximum share of refused rows, not counting DUPLICATE and CONFLICT. Above it, the run stops
            before its decision.
        rejects: The refused rows to quarantine in `run=<n>/_rejects/verdict=<name>/`: "copy" for all except duplicates,
            "all", or "none".
        on_reset: What to do if keys seem to restart their numbers: "stop" the run before its decision, or "report".
            This needs timestamps, so it is checked only with `max_idle_ms` (rule: `fencepost.resets`). Applies also if
            unread rows of a Kafka log were deleted: "report" warns and continues with the first available row.
        reset_rows_min: A key is suspected from this number of repeats that cannot be copies, by their timestamp (rule:
            `fencepost.resets`).
        compare_content: Compare repeats with the rows they repeat, if both are in files of this run: True for all
            columns outside the identity, or the columns to compare. A repeat that differs is a CONFLICT instead of a
            DUPLICATE. `fencepost.content` defines equality. Leave out columns that differ between copies (offsets,
            upload times). Repeats of earlier runs' rows are counted as not compared, unless checksums are kept.
        on_conflict: "stop" the run before its decision, "quarantine" such rows in `_rejects/verdict=CONFLICT/`, or
            "drop" them. They are counted in any case.
        keep_checksums: Keep a checksum (4 bytes) of each accepted row in the state, so that later runs can compare
            repeats: "all", or the number of newest positions per key; never more than the policy's `reach`. Reads the
            content of all rows a second time. Different rows have equal checksums with a probability of 2^-32. May be
            enabled at any run; rows accepted before are not compared. From then on, every run must pass it with the
            same columns in `compare_content`; the number may change. 0 drops all checksums. A rebase restarts them.
        max_idle_ms: Forget producers that were idle for this time, by the timestamps of the data (column "timestamp",
            or the one in `columns`). Older rows without a record in the state are then FORGOTTEN and quarantined.
            Cannot be enabled or disabled later; the duration may change.
        clock_gap_max_ms: The state has a clock, which follows the newest timestamp of the data, and which tells how
            long a producer was idle. This is its maximum advance per run. Default: `max_idle_ms`. The clock also never
            passes the time of this machine by more than half of `max_idle_ms`. So a row with a timestamp in the far
            future does not make the state forget producers that wrote within the last half of `max_idle_ms`.

        settle_ms: Runs defer a file with damaged content to the next run, for this time at most. The time begins when a
            run first finds the file damaged, and again whenever the file changes.
        on_bad_file: What to do with a file that is still damaged after `settle_ms`: "quarantine" reports the file, and
            later runs skip it until it is replaced or touched; "stop" stops every run until it is repaired or deleted.
            Files with wrong columns, types or values are treated in the same way under "quarantine", and stop the run
            at once under "stop". Default: damaged files are quarantined; wrong columns, types or values stop the run.
            Columns that a Delta or database table does not take stop the run in any case. Under policies that depend on
            the order, files after a deferred file wait for it; if `order_by` has columns, all files do.

        target_file_bytes: Merge small neighboring outputs to about this size, and split larger ones between row groups.
            This, `partition_by` and `sort_by` are supported by folders, prefixes and Delta tables. Without them, every
            output is a file of the source, or a copy without its refused rows.
        partition_by: A column whose values name Hive-style output folders, or "day(column)" for the UTC dates of a
            timestamp column. Files omit a column that folders name. A file without the column raises BatchError before
            the decision.
        sort_by: Columns that order the rows of each output, nulls last.

        engine: Where tasks run. Default: threads of this process.
        plan: "interval", "row" or "aligned" (see plan.py). Default: chosen by the run.
        shards: Number of shards of the state. Default: 16 for a new state, later its current number. Passing it
            disables automatic splitting.
        shard_bytes_max: A run doubles the number of shards, repeatedly if necessary, if they have more bytes than this
            on average. The split is a version of its own, as by `State.reshard`. None: never.
        task_bytes_max: Larger files are scanned by several tasks, some row groups each. If rows are removed, these
            tasks also write the file, as several files.
        task_spans_max: Shards with more spans (of consecutive rows) in this run are judged by several tasks, if the
            policy accepts any order (`fencepost.lake.hot`).
        driver_spans_max: Maximum number of spans (of consecutive rows) that the driver judges itself; more are judged
            by tasks. 0 always starts tasks.
        driver_state_bytes_max: Maximum bytes of the state of the shards that the driver judges itself.
        layout: "delta" for a Delta table as sink, "run" for folders. Default: the existing sink's layout, or folders.
        schema: "strict" refuses a file whose columns or types differ from those of the sink's files, before the
            decision (`on_bad_file`). "merge" also accepts new columns, missing columns, and other widths of a type
            (`fencepost.lake.schemas`). A column is null in the rows of files that do not have it. No file is rewritten;
            `fencepost.lake.dataset` and `fencepost_spark.read_sink` read all of them with one schema. For Delta and
            Iceberg tables, "strict" refuses columns and types that the table does not have. "merge" adds or widens them
            in the transaction that adds the rows (`docs/delta.md`). Database tables define their own columns.
        source_immutable: Asserts that files of the source never change, so that outputs equal to their inputs may be
            hard links.
        sync: False does not wait for disks. A power loss may then destroy the state.
        state_options: Options of the state's object store (`fencepost.state.open_store`).
        source_options: Options of the source's object store, or properties of its Iceberg catalog.
        sink_options: Options of the sink's object store, or properties of its Iceberg catalog.

        keep_versions: Number of newest versions that support rollback (`State.rollback`). Runs remove files of the
            state that only older versions need. The output stays. May change from run to run. None keeps all.
        keep_versions_ms: Also keep versions that were the newest at any time within this period before now. Periods
            under an hour count as an hour.

        files_max: Maximum number of new files per run. The first by name are read, at least one; later runs read the
            others (`RunReport.remaining_files`). Keeps runs over a backlog small. This and the following four arguments
            are for folders and prefixes. Deferred files do not count, unless the policy depends on the order.
        bytes_max: Maximum bytes of new files per run, at least one file.
        rows_max: Maximum rows of new files per run, at least one file.
        only: Patterns relative to the source, such as "day=2026-11-2*" or "day=2026-11-20..2026-11-24". A run reads
            files that match, or whose folder matches.
        files: Paths of the files to read, such as those of a notification. The source is not listed. Files that were
            read before are skipped; missing ones are in `RunReport.vanished`.

    Raises:
        PolicyError, ValueError: Contradictory arguments.
        BatchError: Reserved column names.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | KafkaLog,
        state: str | os.PathLike[str],
        sink: str | os.PathLike[str] | Sink | ForJobs,
        *,
        policy: str | Policy = "any_order",
        columns: Columns | str | None = None,
        scope: str | None = None,
        order_by: str | Sequence[str] | None = None,
        rejected_max: float = 0.5,
        rejects: Rejects = "copy",
        max_idle_ms: int | None = None,
        settle_ms: int = 60_000,
        clock_gap_max_ms: int | None = None,
        on_reset: OnReset = "stop",
        on_bad_file: OnBadFile | None = None,
        reset_rows_min: int = RESET_ROWS_MIN,
        compare_content: bool | Sequence[str] = False,
        on_conflict: OnConflict = "stop",
        keep_checksums: int | Literal["all"] | None = None,
        engine: Engine | None = None,
        plan: Plan | None = None,
        shards: int | None = None,
        shard_bytes_max: int | None = SHARD_BYTES_MAX,
        task_bytes_max: int = TASK_BYTES_MAX,
        task_spans_max: int = TASK_SPANS_MAX,
        driver_spans_max: int = DRIVER_SPANS_MAX,
        driver_state_bytes_max: int = DRIVER_STATE_BYTES_MAX,
        layout: Layout | None = None,
        schema: SchemaRule = "strict",
        source_immutable: bool = False,
        sync: bool = True,
        state_options: dict[str, object] | None = None,
        source_options: dict[str, object] | None = None,
        sink_options: dict[str, object] | None = None,
        keep_versions: int | None = KEEP_VERSIONS,
        keep_versions_ms: int = KEEP_VERSIONS_MS,
        files_max: int | None = None,
        bytes_max: int | None = None,
        rows_max: int | None = None,
        only: str | Sequence[str] | None = None,
        files: Sequence[str | os.PathLike[str]] | None = None,
        target_file_bytes: int | None = None,
        partition_by: str | None = None,
        sort_by: str | Sequence[str] | None = None,
    ) -> None:
        self.log = source if isinstance(source, KafkaLog) else None
        self.policy = _policy_of(policy, columns, self.log)
        if self.log is not None and source_options:
            raise ValueError("source_options: a KafkaLog has options of its own: pass KafkaLog(options=...)")
        self.order_by = (order_by,) if isinstance(order_by, str) else None if order_by is None else tuple(order_by)
        if self.order_by is None and self.policy.depends_on_order:
            raise PolicyError(
                f"policy {self.policy.name or self.policy.rules} depends on the order of rows, which files do not "
                "record: pass order_by=[columns], or order_by=() if the order of file names, and of rows in a file, is "
                "the true one"
            )
        check_names((*self.policy.columns.names, *(self.order_by or ())))
        _check_one_of("rejects", rejects, get_args(Rejects))
        _check_one_of("on_reset", on_reset, get_args(OnReset))
        _check_one_of("on_conflict", on_conflict, get_args(OnConflict))
        _check_one_of("on_bad_file", on_bad_file, (None, *get_args(OnBadFile)))
        _check_one_of("plan", plan, (None, *PLANS))
        _check_one_of("layout", layout, (None, *get_args(Layout)))
        _check_one_of("schema", schema, get_args(SchemaRule))
        check_reset_rows_min(reset_rows_min)
        if not 0 <= rejected_max <= 1:
            raise ValueError(f"rejected_max={rejected_max}: expected a share from 0 to 1")
        if shards is not None:
            check_shards(shards)
        _check_least(
            0, "milliseconds from 0 on", settle_ms=settle_ms, max_idle_ms=max_idle_ms, clock_gap_max_ms=clock_gap_max_ms
        )
        _check_least(1, "at least 1", files_max=files_max, bytes_max=bytes_max, rows_max=rows_max)
        _check_least(1, "at least 1", shard_bytes_max=shard_bytes_max, task_bytes_max=task_bytes_max)
        _check_least(1, "at least 1", task_spans_max=task_spans_max)
        _check_least(0, "at least 0", driver_spans_max=driver_spans_max, driver_state_bytes_max=driver_state_bytes_max)
        if max_idle_ms is None and clock_gap_max_ms is not None:
            raise ValueError(
                f"clock_gap_max_ms={clock_gap_max_ms}: pass max_idle_ms too, without which there is no clock"
            )
        self.source, of_source = (source.name, ()) if isinstance(source, KafkaLog) else source_of(source)
        self.slice = Slice(
            files_max=files_max,
            bytes_max=bytes_max,
            rows_max=rows_max,
            of_source=of_source,
            only=patterns_of(only),
            files=None if files is None else files_of(self.source, files),
        )
        self.source_name = self.source
        """The source's name in the state. It differs from the folder if the input was converted for this run."""
        self.source_options = source_options
        self.scope, self.shards = scope, shards
        self.shard_bytes_max = shard_bytes_max if shards is None else None
        self.task_bytes_max, self.task_spans_max = task_bytes_max, task_spans_max
        self.driver_spans_max, self.driver_state_bytes_max = driver_spans_max, driver_state_bytes_max
        self.rejected_max, self.rejects, self.on_reset = rejected_max, rejects, on_reset
        self.reset_rows_min = reset_rows_min
        self.compare_content = columns_to_compare(compare_content)
        self.on_conflict = on_conflict
        self.keep_checksums = keep_checksums
        _check_keep_checksums(keep_checksums, self.compare_content is not None)
        if self.compare_content is not None and on_conflict == "quarantine" and rejects == "none":
            raise PolicyError(
                "on_conflict='quarantine' writes rows to _rejects, but rejects='none' writes none: change one of them"
            )
        self.max_idle_ms, self.settle_ms, self.on_bad_file = max_idle_ms, settle_ms, on_bad_file
        self.clock_gap_max_ms = max_idle_ms if clock_gap_max_ms is None else clock_gap_max_ms
        # What a run exports from a log is used by this run only, so links are safe.
        self.plan, self.source_immutable = plan, source_immutable or self.log is not None
        self.retention = Retention(keep_versions, keep_versions_ms)
        self.disk = Disk(sync)
        uri = absolute(state)
        self.state = State(open_store(uri, sync=sync, options=state_options), sink_options, engine or LocalEngine())
        if self.log or not open_place(self.source, source_options).has_ledger:
            self.check_no_slices()
        self.sink = self._open_sink(sink, state, layout, sink_options)
        if schema != "strict" and not (self.sink.can_merge or self.sink.layout == "delta"):
            raise SinkError(
                f"{self.sink.location}: schema={schema!r} cannot change this table, which defines its own columns. Add "
                "or widen them there, and leave out schema="
            )
        self.schema = schema
        self.arrangement = arrangement_of(target_file_bytes, partition_by, sort_by)
        self._check_places(uri)

    def _open_sink(
        self,
        sink: str | os.PathLike[str] | Sink | ForJobs,
        state: str | os.PathLike[str],
        layout: Layout | None,
        options: dict[str, object] | None,
    ) -> Sink:
        if isinstance(sink, ForJobs):
            return sink.for_job(state)
        if not isinstance(sink, str | os.PathLike):
            return sink
        place = absolute(sink)
        if layout is None and not is_local(place):  # the state knows the layout, which saves a request to the sink
            layout = cast("Layout | None", self.state.layout_at(place))
        if place != self.source:
            return open_sink(place, layout or layout_of(place, options), self.disk, options)
        if not is_local(place) or not is_delta(LocalStore(place)) or layout == "run":
            raise SinkError(f"{place}: only a Delta table in a local folder can be both source and sink")
        return open_sink(place, IN_PLACE, self.disk)

    def _check_places(self, state: str) -> None:
        """Raise SinkError for a sink that does not support the arguments, and for places that overlap."""
        if self.arrangement is not None and self.sink.layout not in get_args(Layout):
            raise SinkError(
                f"{self.sink.location}: target_file_bytes, partition_by and sort_by are for folders, prefixes, and "
                "Delta tables that are not deduplicated in place. Leave them out for this sink"
            )
        if self.is_in_place and str(self.sink.location) != self.source:
            raise SinkError(
                f"{self.sink.location}: to deduplicate in place, source and sink must be the same table, but the "
                f"source is {self.source}"
            )
        shown = {} if self.is_in_place else {"sink": str(self.sink.location)}
        _check_apart(self.slice, source=self.log.place if self.log else self.source, state=state, **shown)

    @property
    def engine(self) -> Engine:
        """Where tasks run, including those of operations on the state."""
        assert self.state.engine is not None, "a job gives its state an engine"
        return self.state.engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self.state.engine = engine

    @property
    def is_in_place(self) -> bool:
        """Whether rows are removed from the source in place."""
        return self.sink.layout == IN_PLACE

    def run(self, progress: Progress | None = None) -> RunReport:
        """Finish a decided version, then read new input. Calls `progress(step, done, total)` (`fencepost.progress`).

        An error before the decision leaves no version. An error after it leaves a version that the next run finishes.

        Raises:
            BatchError: Invalid values (column, row, file).
            SourceError: There is no source, or a file keeps changing.
            SnapshotError: The state has other settings, or is damaged.
            SinkError, SinkChangedError: The sink is not this job's, or was changed.
            StoreError: The storage of source or state is not available.
            CapacityError: The state has the maximum number of holes (`Policy.intervals_max`).
            PolicyError: Too many refused rows (`rejected_max`), suspected resets (`on_reset`), or rows with other
                content (`on_conflict`).
            StateConflictError: Another run decided first. Run again.
        """
        return Run(self, progress).run()

    def watch(
        self, interval_ms: int = 10_000, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> Iterator[RunReport]:
        """Run while there is new input, then check every `interval_ms`. Yields the report of each run with a version.

        It also pauses after a run that could read none of the new files. Ends after the current run when `stop` is set.
        Raises the errors of `run`, except StateConflictError: if another run decided first, the next check continues
        after it, a second later at most.
        """
        if self.slice.files is not None:
            raise ValueError("files= names the files of one run, so there is nothing to watch")
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                report = self.run(progress)
            except StateConflictError:
                stop.wait(min(interval_ms, _AFTER_CONFLICT_MS) / 1000)
                continue
            if report.version is not None:
                yield report
            if not report.files:  # files that are being written change the state in each run
                stop.wait(interval_ms / 1000)

    def seed(self, progress: Progress | None = None, *, clean: str | os.PathLike[str] | None = None) -> RunReport:
        """Create the state from data that is already free of duplicates, as its first version, without writing rows.

        `clean`: the folder with that data, if it is not the job's source, such as the table from before the first job.
        All files of the source are then new to the first run, which keeps the rows that the clean data does not
        contain. Without `clean`, the current files of the source count as read.

        Raises the errors of `run`, SnapshotError if the state exists, and SourceError if the data is not clean: rows
        would be refused, or files of `clean` are unreadable.
        """
        folder = self.source if clean is None else absolute(clean)
        return Run(self, progress, InputOverride(folder=folder, is_seed=True)).run()

    def rebase(self, progress: Progress | None = None) -> RunReport:
        """Rebuild the state from all current rows of the table.

        For a table that is deduplicated in place, after other writers deleted, updated or merged its rows, restored it,
        or compacted files that were not read yet. Of several copies, the one in the file written first stays. The list
        of missing ranges is rebuilt, too. Version numbers continue.

        Raises the errors of `run`, and PolicyError if the policy depends on an order that no column defines, because
        rewritten files do not preserve it.
        """
        if not self.is_in_place:
            raise PolicyError(
                f"{self.source}: only a Delta table that is both source and sink can be rebased; otherwise begin "
                "with a new state and a new sink"
            )
        self.check_rewritten()
        return Run(self, progress, InputOverride(folder=self.source, is_rebase=True)).run()

    def check_no_slices(self) -> None:
        """Raise ValueError for partial reads of a source that is read up to a position."""
        if self.slice.argument:
            raise ValueError(
                f"{self.slice.argument}: {self.source} is read up to a position, so none of its files can be chosen. "
                f"Leave out {self.slice.argument}"
            )

    def check_rewritten(self) -> None:
        """Raise PolicyError if other writers may have rewritten files and no column defines the required order."""
        if self.policy.depends_on_order and not self.order_by:
            raise PolicyError(
                f"policy {self.policy.name or self.policy.rules} depends on the order of rows, but other "
                "writers may have rewritten the files in another order: pass order_by=[columns]"
            )

    def settings(self) -> Settings:
        """The settings for creating this job's state."""
        return Settings(
            id=uuid4().hex,
            policy=self.policy.rules,
            columns={role: _plain(getattr(self.policy.columns, role)) for role in ROLES},
            scope=self.scope,
            keep=["timestamp"] if self.max_idle_ms is not None else [],
            shards=self.shards or SHARDS,
            source=self.source_name,
            sink=str(self.sink.location),
            layout=self.sink.layout,
            fencepost=fencepost.__version__,
        )


def _policy_of(policy: str | Policy, columns: Columns | str | None, log: KafkaLog | None) -> Policy:
    """Return the policy with the job's identity columns. Raises PolicyError if it does not fit a log."""
    found = resolve(policy)
    if columns is None and log is not None and found.columns == Columns():
        columns = "kafka-producer"
    if columns is not None:
        found = found.replace(columns=resolve_columns(found, columns))
    if log is not None:
        _check_for_log(found)
    return found


def _check_least(least: int, expected: str, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{name}={value}: expected {expected}")


def _check_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")


def _check_keep_checksums(value: object, is_compared: bool) -> None:
    if value not in (None, "all") and not is_integer(value, 0):
        raise ValueError(f"keep_checksums={value!r}: expected 'all' or a number of rows from 0 on")
    if value not in (None, 0) and not is_compared:
        raise PolicyError(
            f"keep_checksums={value!r} keeps checksums of the compared columns: pass compare_content, too"
        )


def _check_apart(of_source: Slice, **places: str) -> None:
    """Raise an error if places overlap: input would include output, and the job deletes files in its own folders."""
    named = [(name, os.path.realpath(place) if is_local(place) else place) for name, place in places.items()]
    for name, place in named:
        for other, outer in named:
            inner = f"{place}/".removeprefix(f"{outer.rstrip('/')}/")
            is_within = name != other and inner != f"{place}/"
            if is_within and (other != "source" or of_source.may_hold(inner.rstrip("/"))):
                raise SinkError(f"{name} {place} is inside {other} {outer}; each of them needs its own folder")


def _plain(names: object) -> object:
    return list(names) if isinstance(names, tuple) else names


def _check_for_log(policy: Policy) -> None:
    """Raise PolicyError for a policy that loses committed rows of a log."""
    name = policy.name or policy.rules
    if policy.admit == "next":
        raise PolicyError(
            f"policy {name} accepts only the next number, but a log has gaps at markers, at aborted or "
            "compacted records, and where a broker forgot its producer. It would refuse committed rows; use "
            "any_order or in_order"
        )
    if policy.epochs == "ignore" and policy.columns.seq == "seq":
        raise PolicyError(
            f"policy {name} ignores epochs, but producers restart at sequence 0 with each epoch. It would "
            "refuse committed rows; any_order and in_order use epochs, kafka_offsets uses offsets"
        )
