"""The job: what is new in a source, judged against a state, its kept rows in a sink, each version exactly once.

    recover   what an interrupted run decided is applied and finished, without its source
    list      new input: the files of the source that the state's ledger does not name
    scan      a task per group of files:  their runs, dealt to shards               (scan.py)
    judge     a task per group of shards: verdicts, the shards' new segments        (judge.py)
    write     a task per group of files:  the kept rows                             (write.py)
    decide    sums are checked, then one put-if-absent
    apply     one rename shows the version
    finish    the version may be built upon

Where files hold whole keys, one task does the first three for its files (aligned.py). Up to `decide` nothing refers to
what was written: whatever goes wrong, output and state are as they were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast, get_args
from uuid import uuid4

import fencepost
from fencepost.content import columns_to_compare
from fencepost.errors import PolicyError, SinkError, StateConflictError
from fencepost.findings import RESET_ROWS_MIN, check_reset_rows_min
from fencepost.lake.arranging import arrangement_of
from fencepost.lake.conflicts import OnConflict
from fencepost.lake.kafka_log import KafkaLog
from fencepost.lake.left_out import OnBadFile
from fencepost.lake.plan import PLANS, SHARD_BYTES_MAX, SHARDS, TASK_BYTES_MAX, TASK_RUNS_MAX, Plan
from fencepost.lake.report import RunReport
from fencepost.lake.run import Run
from fencepost.lake.scan import check_names
from fencepost.lake.schemas import SchemaRule
from fencepost.lake.slices import Slice, files_of, patterns_of, source_of
from fencepost.lake.sources import Given, open_place
from fencepost.lake.write import Rejects
from fencepost.policy import Columns, Policy, resolve, resolve_columns
from fencepost.state.commit import Sink
from fencepost.state.decision import Settings
from fencepost.state.delta import is_delta
from fencepost.state.disk import Disk
from fencepost.state.engine import Engine, LocalEngine
from fencepost.state.operations import check_shards
from fencepost.state.retention import KEEP_VERSIONS, KEEP_VERSIONS_MS, Retention
from fencepost.state.sinks import IN_PLACE, ForJobs, layout_of, open_sink
from fencepost.state.stores import LocalStore, absolute, is_local, open_store
from fencepost.state.versions import State

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total) as tasks and steps are done."""

OnReset = Literal["stop", "report"]
Layout = Literal["run", "delta"]
ROLES = ("pid", "epoch", "partition", "seq", "timestamp")


class DedupJob:
    """Keeps each event of a Parquet folder, a Delta table or Kafka's log once, from run to run.

    `source`: a folder of Parquet files, or a prefix of an object store (`s3://`, `gs://`, `az://`) with such files, of
    which each run reads those that no earlier run has read; a glob such as "landing/*/events" (a `str`; a `Path` is
    taken as it is), or a list of folders and globs, which the state knows by the folder that has them all; a Delta
    table in either, of which each run reads what was appended since; an Iceberg table by its name
    (`iceberg://<catalog>/<namespace>.<table>`), likewise; or a `KafkaLog`, likewise. `state`: a folder or the URI of
    an object store (`fencepost.state.open_store`) that the job makes and owns. `sink`: a folder that it makes and
    owns; version n appears in it at once as `run=<n>/`, one file per input file of which rows are kept, in the
    Hive-style folders that it came from, or as one transaction of a Delta table. Or a prefix of an object store, where
    the files of a version appear one after the other, and then `run=<n>/_SUCCESS`, which lists them
    (`fencepost.lake.shown_files`). Or an Iceberg table by its name, of which each version is one snapshot. None of the
    three may lie in another, but a Delta table in a local folder may be both source and sink: then rows that are not
    kept are taken out of it, where it stands. `sink` may also be a sink itself, such as those of
    `fencepost.state.sinks`, or a `fencepost.sql.SqlSink`.

    `policy`: a preset name or a Policy. `columns`: where the identity stands, a Columns or the name of a preset
    (`Columns.preset`), the policy's columns unless given; they may stand in the names of Hive-style folders. `scope`:
    what the data does not say about itself (a cluster, a topic id), fixed with the state. `order_by`: columns by which
    the rows of a run are put in order before they are judged; rows of equal values, and all rows where it is (), follow
    file name and row. Policies that depend on order demand it, () included: under them an order that is not the true
    one loses good rows.

    `rejected_max`: the run stops before anything is decided if a larger share of its rows is refused for other reasons
    than DUPLICATE. `rejects`: which refused rows are set aside, in `run=<n>/_rejects/verdict=<name>/`: "copy" all but
    duplicates, "all", or "none". `on_reset`: "stop" the run before anything is decided where keys seem to have begun to
    number anew, or only "report" it; that is looked for with `max_idle_ms` only, for it takes timestamps (the rule:
    `fencepost.resets`). `reset_rows_min`: how many repeats of a key must carry another timestamp than what they repeat.
    `on_reset` also holds where rows of a Kafka log are gone that were not read: "report" warns, and goes on with the
    first that there are.

    `compare_content`: compare a repeat with the row it repeats, where both are among the files of a run: True for all
    columns but those of the identity, or the columns to compare. One that differs is a CONFLICT, not a DUPLICATE; what
    is equal is said in `fencepost.content`. `on_conflict`: "stop" the run before anything is decided, "quarantine" such
    rows in `_rejects/verdict=CONFLICT/`, or "drop" them; they are counted in any case. Leave out columns that differ in
    copies (offsets, the time of the upload). Repeats of rows that an earlier run has kept are counted as not compared,
    but for `keep_checksums`.

    `keep_checksums`: keep a checksum of each accepted row beside the state, at 4 bytes, so that later runs compare
    repeats with it: "all", or a number for so many of the newest positions of each key; no more than a policy's `reach`
    in any case. Two different rows have the same checksum once in 2^32. The content of every row is read once more. May
    begin with any run; rows that were accepted before are not compared. From then on every run must say it, with the
    same columns in `compare_content`; the number may change. 0 drops all checksums that the state has. A rebase begins
    them anew.

    `max_idle_ms`: forget producers that were not written for so long, by the timestamps of the data (column "timestamp"
    unless `columns` says otherwise); older rows that nothing is known of are then FORGOTTEN and set aside.
    `clock_gap_max_ms`: by how much the newest timestamp may move that clock in a run, `max_idle_ms` unless given: one
    row from the far future must not make the state forget everyone.

    `settle_ms`: a file whose content is damaged is left for the next run until it was so, unchanged, for this long
    since a run saw it first. `on_bad_file`: what happens then: "quarantine" sets it aside for good, by name, and "stop"
    stops every run until it is mended or gone. Files of wrong columns, types or values are treated likewise under
    "quarantine", and stop the run at once under "stop". Unless given, damaged files are quarantined, and wrong columns,
    types or values stop the run. Under policies that depend on order, what follows a file that is left for later waits
    for it.

    `target_file_bytes`: put small neighbouring outputs together until they have about so many bytes, and cut large ones
    between row groups. `partition_by`: a column whose values name Hive-style folders in which the rows lie, or
    "day(column)", the UTC dates of a timestamp column. The files lack a column that folders name. `sort_by`: columns by
    which the rows of each output are sorted, nulls last. For sinks of folders, prefixes and Delta tables. Without these
    three every output is a file of the source, or a copy without the rows that are not kept. A file without such a
    column is a BatchError before anything is decided.

    `plan`: "interval", "row" or "aligned" (see plan.py), chosen by the run unless given. `shards`: into how many parts
    the state is cut, 16 at first unless given, later as many as it has. `shard_bytes_max`: a run that has something to
    read first doubles the number of parts, as often as need be, where those of the state have more bytes on average, 16
    MB unless given: a version of its own, as by `State.reshard`. None: never. Nor where `shards` is given: then that
    number is to stay. `task_bytes_max`: several tasks scan a file of more bytes, 256 MB unless given, some of its row
    groups each. Where it loses rows they write it, too, as several files. `task_runs_max`: several tasks judge a shard
    that has more runs in this run (rows that follow each other; 8,388,608 unless given), where the policy admits any
    order and nothing else depends on it (`fencepost.lake.hot`). `layout`: "delta" for a sink that is a Delta table,
    "run" for folders; unless given, whichever the sink is already, and folders where there is none. `schema`:
    "strict" refuses a file whose columns or types differ from those of the sink's files, before anything is decided, as
    a file of wrong columns (`on_bad_file`). "merge" also takes new and missing columns, which are null elsewhere, and
    other widths of a type (`fencepost.lake.schemas`); no file is rewritten, `fencepost.lake.dataset` and
    `fencepost_spark.read_sink` read all of them by one schema. For a sink that is a Delta table "strict" refuses
    columns and types that the table does not have, and "merge" adds or widens them by the commit that adds the rows
    (`docs/delta.md`); an Iceberg table likewise, in the transaction that adds the files. Other tables have columns of
    their own. `engine`: where tasks run, threads of this process unless given. `source_immutable`: files of the source
    never change once they are there, so outputs that are equal to their inputs may be hard links. `sync=False`: do not
    wait for disks; a power loss may then cost the state. `state_options`, `source_options`, `sink_options`: of the
    object stores that they are in, see `fencepost.state.open_store`; of an Iceberg table, the properties of its
    catalog.

    `keep_versions`, `keep_versions_ms`: which versions of the state can be gone back to (`State.rollback`), 100 and a
    week unless given: the so many newest, and those that were the newest at some time in the last so many milliseconds,
    or in the last hour. Files of the state that only others need are removed as runs go on; output stays. Both may
    change from run to run. `keep_versions=None` keeps all.

    `files_max`, `bytes_max`, `rows_max`: a run reads no more new files, or files of no more bytes or rows in all, than
    that, the first ones by name, but one at least; later runs read the others (`RunReport.left`). Keeps a run over a
    backlog small. `only`: patterns relative to the source, such as "day=2026-11-2*" or "day=2026-11-20..2026-11-24"; a
    run reads the files that one of them matches, or whose folder it matches. `files`: paths of the files to read, of a
    notification, say; nothing is listed. One that is read already is skipped, one that is gone is in
    `RunReport.vanished`. All of these are for folders and prefixes. Deferred files come in any case.

    Raises PolicyError and ValueError for arguments that make no sense, BatchError for names of columns that are taken.
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
        task_runs_max: int = TASK_RUNS_MAX,
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
        policy = resolve(policy)
        self.log = source if isinstance(source, KafkaLog) else None
        if columns is None and self.log is not None and policy.columns == Columns():
            columns = "kafka-producer"
        if columns is not None:
            policy = policy.replace(columns=resolve_columns(policy, columns))
        if self.log is not None:
            _check_for_log(policy)
        if order_by is None and policy.depends_on_order:
            raise PolicyError(
                f"policy {policy.name or policy.rules} depends on the order of rows, which files do not tell: "
                "give order_by=[columns], or order_by=() if file names, then rows, stand in the true order"
            )
        check_names((*policy.columns.names, *([order_by] if isinstance(order_by, str) else order_by or ())))
        _check_one_of("rejects", rejects, get_args(Rejects))
        _check_one_of("on_reset", on_reset, get_args(OnReset))
        _check_one_of("on_conflict", on_conflict, get_args(OnConflict))
        _check_one_of("on_bad_file", on_bad_file, (None, *get_args(OnBadFile)))
        _check_one_of("plan", plan, (None, *PLANS))
        _check_one_of("layout", layout, (None, *get_args(Layout)))
        _check_one_of("schema", schema, get_args(SchemaRule))
        check_reset_rows_min(reset_rows_min)
        if not 0 <= rejected_max <= 1:
            raise ValueError(f"rejected_max={rejected_max}: a share from 0 to 1 was expected")
        if shards is not None:
            check_shards(shards)
        for name, value in (
            ("settle_ms", settle_ms),
            ("max_idle_ms", max_idle_ms),
            ("clock_gap_max_ms", clock_gap_max_ms),
        ):
            if value is not None and value < 0:
                raise ValueError(f"{name}={value}: milliseconds from 0 on were expected")
        for name, value in (
            ("files_max", files_max),
            ("bytes_max", bytes_max),
            ("rows_max", rows_max),
            ("shard_bytes_max", shard_bytes_max),
            ("task_bytes_max", task_bytes_max),
            ("task_runs_max", task_runs_max),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: at least 1 was expected")
        if max_idle_ms is None and clock_gap_max_ms is not None:
            raise ValueError(f"clock_gap_max_ms={clock_gap_max_ms}: without max_idle_ms there is no clock")
        self.source, of_source = (source.name, ()) if isinstance(source, KafkaLog) else source_of(source)
        self.slice = Slice(
            files_max=files_max,
            bytes_max=bytes_max,
            rows_max=rows_max,
            of_source=of_source,
            only=patterns_of(only),
            files=None if files is None else files_of(self.source, files),
        )
        self.source_options = source_options
        self.policy, self.scope, self.shards = policy, scope, shards
        self.shard_bytes_max = shard_bytes_max if shards is None else None
        self.task_bytes_max, self.task_runs_max = task_bytes_max, task_runs_max
        self.rejected_max, self.rejects, self.on_reset = rejected_max, rejects, on_reset
        self.reset_rows_min = reset_rows_min
        self.compare_content = columns_to_compare(compare_content)
        self.on_conflict = on_conflict
        self.keep_checksums = keep_checksums
        _check_keep_checksums(keep_checksums, self.compare_content is not None)
        if self.compare_content is not None and on_conflict == "quarantine" and rejects == "none":
            raise PolicyError("on_conflict='quarantine' writes rows to _rejects, and rejects='none' none: one of them")
        self.max_idle_ms, self.settle_ms, self.on_bad_file = max_idle_ms, settle_ms, on_bad_file
        self.clock_gap_max_ms = max_idle_ms if clock_gap_max_ms is None else clock_gap_max_ms
        self.order_by = (order_by,) if isinstance(order_by, str) else None if order_by is None else tuple(order_by)
        # What a run writes of a log is there for this run alone.
        self.plan, self.source_immutable = plan, source_immutable or self.log is not None
        self.retention = Retention(keep_versions, keep_versions_ms)
        self.disk = Disk(sync)
        uri = absolute(state)
        self.state = State(open_store(uri, sync=sync, options=state_options), sink_options, engine or LocalEngine())
        if self.log or not open_place(self.source, source_options).has_ledger:
            self.check_no_slices()
        if isinstance(sink, ForJobs):
            sink = sink.for_job(state)
        if isinstance(sink, str | os.PathLike):
            place = absolute(sink)
            if layout is None and not is_local(place):  # the state tells, without a request of the sink
                layout = cast("Layout | None", self.state.layout_at(place))
            sink = _open_sink(place, layout, self.source, self.disk, sink_options)
        self.sink: Sink = sink
        if schema != "strict" and not (self.sink.can_merge or self.sink.layout == "delta"):
            raise SinkError(
                f"{self.sink.location}: schema={schema!r} is for folders, prefixes, Iceberg tables, and Delta tables "
                "that rows are added to: this table has columns of its own. Add or widen them there"
            )
        self.schema = schema
        self.arrangement = arrangement_of(target_file_bytes, partition_by, sort_by)
        if self.arrangement is not None and self.sink.layout not in get_args(Layout):
            raise SinkError(
                f"{self.sink.location}: target_file_bytes, partition_by and sort_by are for folders, prefixes and Delta"
                " tables that rows are appended to"
            )
        if self.is_in_place and str(self.sink.location) != self.source:
            raise SinkError(
                f"{self.sink.location}: in place, source and sink are one table; the source is {self.source}"
            )
        shown = {} if self.is_in_place else {"sink": str(self.sink.location)}
        _check_apart(self.slice, source=self.log.place if self.log else self.source, state=uri, **shown)

    @property
    def engine(self) -> Engine:
        """Where tasks run, those of operations on the state too."""
        assert self.state.engine is not None, "a job gives its state an engine"
        return self.state.engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self.state.engine = engine

    @property
    def is_in_place(self) -> bool:
        """Whether rows are taken out of the source."""
        return self.sink.layout == IN_PLACE

    def run(self, progress: Progress | None = None) -> RunReport:
        """Finish what was decided, then read what is new. `progress(step, done, total)` is called along the way.

        Raises, with output and state as they were: BatchError (bad values: column, row, file), SourceError (no source,
        or a file that changes again and again), SnapshotError (a state of other settings, or damaged), SinkError,
        SinkChangedError, StoreError (storage of source or state that does not answer), CapacityError, PolicyError
        (more refusals than `rejected_max`, suspected resets), StateConflictError (another run was faster: run again).
        """
        return Run(self, progress).run()

    def watch(
        self, interval_ms: int = 10_000, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> Iterator[RunReport]:
        """Run as long as there is something new, then look again every `interval_ms`. Yields each run's report.

        Runs that found nothing new yield nothing. Ends after the run under way once `stop` is set. Raises as `run`
        does, but for StateConflictError: another run was faster, and what it left is looked for again.
        """
        if self.slice.files is not None:
            raise ValueError("files: a run reads them, and there is nothing to watch")
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                report = self.run(progress)
            except StateConflictError:
                continue
            if report.version is None:
                stop.wait(interval_ms / 1000)
            else:
                yield report

    def seed(self, progress: Progress | None = None, *, clean: str | os.PathLike[str] | None = None) -> RunReport:
        """Make the state of data that is clean already, and write no row: the first version of a new state.

        `clean`: the folder with that data, where it is not the job's own source: the table that was written before
        there was a job, say. The source's files are then all new to the first run, which keeps of them what the clean
        data does not hold. Otherwise the files of the source count as read from then on.

        Raises as `run` does, SnapshotError where there is a state already, and SourceError where the data are not
        clean: rows that would be refused, or files of `clean` that cannot be read.
        """
        folder = self.source if clean is None else absolute(clean)
        return Run(self, progress, Given(folder=folder, is_seed=True)).run()

    def rebase(self, progress: Progress | None = None) -> RunReport:
        """Begin the state anew with all rows of the table as it is now, in place of what it knew.

        For a table that is deduplicated in place, after others have deleted, updated or merged rows in it, have gone
        back by RESTORE, or have compacted what was not read yet. Of several copies that of the file that was written
        first stays. The list of missing ranges is that of the table; versions go on being counted.

        Raises as `run` does, and PolicyError where a policy depends on an order that no column tells, for files of a
        table that others have rewritten do not tell it.
        """
        if not self.is_in_place:
            raise PolicyError(
                f"{self.source}: only a Delta table that is both source and sink can be rebased; elsewhere a new state "
                "and a new sink read everything again"
            )
        self.check_rewritten()
        return Run(self, progress, Given(folder=self.source, is_rebase=True)).run()

    def check_no_slices(self) -> None:
        """Refuse to read a part of what is new in a source that is read up to a position. Raises ValueError."""
        if self.slice.given:
            raise ValueError(
                f"{self.slice.given}: {self.source} is read up to a position; only files of folders and prefixes are"
                " chosen"
            )

    def check_rewritten(self) -> None:
        """Refuse to judge files that others may have rewritten where no column tells the order that the policy needs.

        Raises PolicyError.
        """
        if self.policy.depends_on_order and not self.order_by:
            raise PolicyError(
                f"policy {self.policy.name or self.policy.rules} depends on the order of rows, which files do not tell "
                "once others have rewritten them: give order_by=[columns]"
            )

    def settings(self) -> Settings:
        """What a state of this job is created for."""
        return Settings(
            id=uuid4().hex,
            policy=self.policy.rules,
            columns={role: _plain(getattr(self.policy.columns, role)) for role in ROLES},
            scope=self.scope,
            keep=["timestamp"] if self.max_idle_ms is not None else [],
            shards=self.shards or SHARDS,
            source=self.source,
            sink=str(self.sink.location),
            layout=self.sink.layout,
            fencepost=fencepost.__version__,
        )


def _check_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(repr, known))} was expected")


def _check_keep_checksums(value: object, is_compared: bool) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if value not in (None, "all") and not is_number:
        raise ValueError(f"keep_checksums={value!r}: 'all', or a number of rows from 0 on, was expected")
    if value not in (None, 0) and not is_compared:
        raise PolicyError(f"keep_checksums={value!r}: checksums are of what is compared: give compare_content, too")


def _open_sink(place: str, layout: Layout | None, source: str, disk: Disk, options: dict[str, object] | None) -> Sink:
    if place == source:
        if not is_local(place) or not is_delta(LocalStore(place)) or layout == "run":
            raise SinkError(f"{place}: only a Delta table in a local folder can be both source and sink")
        return open_sink(place, IN_PLACE, disk)
    return open_sink(place, layout or layout_of(place, options), disk, options)


def _check_apart(of_source: Slice, **places: str) -> None:
    """What lies in the source would be read as input, and a job cleans up in its own folders."""
    named = [(name, os.path.realpath(place) if is_local(place) else place) for name, place in places.items()]
    for name, place in named:
        for other, outer in named:
            inner = f"{place}/".removeprefix(f"{outer.rstrip('/')}/")
            is_within = name != other and inner != f"{place}/"
            if is_within and (other != "source" or of_source.may_hold(inner.rstrip("/"))):
                raise SinkError(f"{name} {place} lies in {other} {outer}; each of the three needs its own folder")


def _plain(names: object) -> object:
    return list(names) if isinstance(names, tuple) else names


def _check_for_log(policy: Policy) -> None:
    """Refuse what loses committed rows of a log. Raises PolicyError."""
    name = policy.name or policy.rules
    if policy.admit == "next":
        raise PolicyError(
            f"policy {name} admits the next number only, and a log has gaps where markers stand, where records were "
            "aborted or compacted, and where a broker forgot its producer: it would refuse rows that were committed; "
            "any_order and in_order keep them"
        )
    if policy.epochs == "ignore" and policy.columns.seq == "seq":
        raise PolicyError(
            f"policy {name} ignores epochs, and producers begin at sequence 0 again with each: it would refuse rows "
            "that were committed; any_order and in_order look at epochs, kafka_offsets at offsets"
        )
