"""One run of a job: an attempt at the version after the newest one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SnapshotError, SourceError, StateConflictError, StoreError
from fencepost.lake.aligned import AlignItem, align, can_align
from fencepost.lake.arranging import (
    ArrangeItem,
    Arrangement,
    arrange,
    batches,
    check_arrangement,
    spans_to_arrange,
)
from fencepost.lake.asking import in_driver
from fencepost.lake.checks import check_verdicts
from fencepost.lake.column_types import check_types
from fencepost.lake.conflicts import CompareItem, compare
from fencepost.lake.deciding import make_decision
from fencepost.lake.files import Constants, Files, constants_of
from fencepost.lake.found import Found
from fencepost.lake.judge import Eviction, Judged
from fencepost.lake.judging import judge_runs
from fencepost.lake.kept_content import ChecksumItem, ShardSums, SumItem, Summed, checked, rows_max, sum_rows
from fencepost.lake.left_out import LeftOut, ReplanError
from fencepost.lake.parts import Span, joined, tasks_of
from fencepost.lake.plan import (
    SHARDS,
    choose,
    groups_of_files,
    parts_of_files,
    shards_for,
)
from fencepost.lake.refused import Refused
from fencepost.lake.report import RunReport, make_report
from fencepost.lake.scan import Reading, ScanItem, Scanned, files_in, scan
from fencepost.lake.schemas import check_schemas, from_text
from fencepost.lake.sources import InputOverride, NewInput, open_source
from fencepost.lake.storage import ChangedError
from fencepost.lake.write import InPlace, Places, WriteItem, Written, write
from fencepost.state.commit import commit, conflict, recover
from fencepost.state.decision import ABANDONED, Checksums, Decision
from fencepost.state.disk import Disk
from fencepost.state.engine import Engine, LocalEngine, run_stage
from fencepost.state.hive import hive_folders
from fencepost.state.retention import release
from fencepost.state.scratch import FolderScratch, Scratch

if TYPE_CHECKING:
    from fencepost.lake.job import DedupJob

T = TypeVar("T")
R = TypeVar("R")
TIMESTAMP_MIN = -(2**63)
TRIES = 3
"""Maximum number of times that a run is planned because a file changed between its two passes."""


Prepared = tuple[Decision | None, Found, list[Judged], list[Written]]


class Run:
    """A run of a job and the data of its current attempt."""

    def __init__(
        self,
        job: DedupJob,
        progress: Callable[[str, int, int], None] | None = None,
        override: InputOverride | None = None,
    ) -> None:
        self.job = job
        self.override = override
        self.is_seed = override is not None and override.is_seed
        self.is_rebase = override is not None and override.is_rebase
        self.source = open_source(job, override)
        self.storage = self.source.storage
        self.progress = progress or (lambda step, done, total: None)
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.task_seconds = 0.0
        self.waited = 0.0
        self.recovered: tuple[int, ...] = ()
        self.before: Decision | None = None
        """The newest applied version."""
        self.base: Decision | None = None
        """The version whose state the run continues: the same, or None for a rebuild."""
        self.version = 0
        self.collected = 1
        """See `Decision.collected`."""
        self.sink_version: dict[str, Any] | None = None
        self.checksums: Checksums | None = None
        """The kept checksums before the run. None if none are kept."""
        self.shards = 0
        self.attempt = ""
        self.outputs: Scratch = FolderScratch("", job.disk)
        """Where this attempt's tasks write output for the sink."""
        self.scratch: Scratch = self.outputs
        """Where tasks write data for each other."""
        self.engine: Engine = job.engine
        """Where tasks run, unless they get another engine."""
        self.plan: dict[str, Any] = {}
        self.stage = ""
        """The last step that began."""
        self.news = NewInput(files=Files(self.source.place))
        self.vanished: list[str] = []
        """Files that changed between their two passes."""
        self.left_out = LeftOut(job.settle_ms, job.on_bad_file, None)
        self.clock_ms: int | None = None
        self.key_types: dict[str, str] = {}
        self.schema: pa.Schema | None = None
        """The schema of the sink's files, including this run's. None if the sink does not track it."""
        self.eviction = Eviction(horizon_before=None, horizon_after=None)

    @property
    def has_moved(self) -> bool:
        """Whether the position of the source has moved, possibly without new rows."""
        return self.news.position != (self.base.source_position if self.base else None)

    @property
    def known_schema(self) -> pa.Schema | None:
        """The schema that the sink or an earlier run has recorded, if any."""
        if (columns := self.job.sink.columns()) is not None:
            return columns
        return from_text(self.before.schema) if self.before and self.before.schema else None

    @property
    def places(self) -> Places:
        return Places(self.storage, self.scratch, self.outputs)

    @property
    def in_place(self) -> InPlace | None:
        if not self.job.is_in_place:
            return None
        return "vectors" if self.sink_version and self.sink_version["vectors"] else "files"

    @property
    def may_link(self) -> bool:
        """Whether links are allowed. Tables allow none: they delete files by age, and a link has the source's age."""
        return self.job.source_immutable and not self.job.sink.has_schema

    def folders_of(self, path: str) -> str:
        """Return the Hive-style folders of a source file, which its output keeps."""
        return hive_folders(path) if self.source.has_folder_columns else ""

    def run(self) -> RunReport:
        with self.step("recover"):
            self.recover()
        return self.go_on()

    def go_on(self) -> RunReport:
        """Run the version after the one that `recover` found, and detect if another run decides it first."""
        tries_left = TRIES
        while True:
            self.attempt = uuid4().hex
            self.outputs = self.scratch = self.job.sink.scratch(self.version, self.attempt)
            try:
                if isinstance(self.outputs, FolderScratch) or not self.job.engine.in_process:
                    report = self.try_once()
                else:
                    # Tasks of this process can exchange data through a local folder.
                    with TemporaryDirectory(prefix="fencepost-") as folder:
                        self.scratch = FolderScratch(folder, Disk(sync=False))
                        report = self.try_once()
                if report is not None:
                    return report
            except ChangedError as error:
                tries_left -= 1
                if not tries_left:
                    raise
                self.vanished.append(str(error.path))
            except StateConflictError:
                # In place, other writers may have changed the table before the decision was applied. The version is
                # then abandoned.
                is_given_up = self.job.is_in_place and self.job.state.status(self.version) == ABANDONED
                tries_left -= 1
                if not (is_given_up and tries_left):
                    raise
                self.recover()

    def recover(self) -> None:
        """Check that state and sink belong to this job, and finish a decided version."""
        job = self.job
        job.state.check(job.settings())
        self.recovered += recover(job.state, job.sink, self.tasks)
        self.version, self.before = job.state.root()
        self.base = None if self.is_rebase else self.before
        self.checksums = checked(job.state.uri, job.keep_checksums, job.compare_content, self.before, self.base)
        self.sink_version = job.sink.current_version(self.before)
        self.shards = job.state.shard_count(self.before, job.shards, SHARDS)
        if self.is_seed and job.state.decided():
            reason = f"it has {job.state.decided()} versions, but only a new state can be seeded"
            raise SnapshotError(f"{job.state.uri}: {reason}", reason=reason)

    def try_once(self) -> RunReport | None:
        """Make one attempt. Returns None if the state was split into more shards first, which used up the version."""
        job = self.job
        try:
            with self.step("list"):
                self.news = self.source.find_new(self)
            if not self.news.files and not self.has_moved:
                return make_report(self, None, None, [], [])
            if self.split():
                self.outputs.remove()
                return None
            self.collected = release(job.state, job.sink, self.before)
            decision, found, judged, written = self.prepare(self.news.files)
        except BaseException as error:
            self.discard()
            if isinstance(error, Exception) and self.has_lost_race():
                raise conflict(job.state, self.version) from error  # the winner may have removed this attempt's files
            raise
        if decision is None:
            self.discard()
            return make_report(self, None, found, [], [])
        try:
            commit(job.state, job.sink, decision, self.step, self.tasks)
        except StateConflictError:
            self.discard()
            raise
        self.outputs.remove()
        return make_report(self, decision, found, judged, written)

    def split(self) -> bool:
        """Split the state into more shards if they are too large, as a version of its own. Returns whether it did.

        Raises StateConflictError if another run has decided that version or the next one.
        """
        job, base = self.job, self.base
        if base is None or job.shard_bytes_max is None:
            return False
        count = shards_for(base.state_bytes, self.shards, job.shard_bytes_max)
        if count == self.shards:
            return False
        with self.step("split"):
            version = job.state.reshard(count, sink=job.sink).version
            self.recover()
        if self.before is None or self.before.version != version:
            raise conflict(job.state, version + 1)  # another run may have read this run's input
        return True

    def has_lost_race(self) -> bool:
        """Return whether another run has decided this version; False also if the state is not available."""
        try:
            return self.job.state.decided() >= self.version
        except (OSError, StoreError):
            return False

    def parts_of(self, files: Files) -> list[int]:
        """Return the number of parts of each file."""
        return parts_of_files(files.bytes, self.job.engine.slots, self.job.task_bytes_max)

    def scan_items(self, files: Files, reading: Reading, *, splits: bool = True) -> list[ScanItem]:
        job = self.job
        names = list(dict.fromkeys((*job.policy.columns.names, *reading.order_by)))
        types = {**files.types, **(self.base.key_types if self.base else {})}
        misfits = self.left_out.bad if self.left_out.quarantines_misfits else None
        has_folders = self.source.has_folder_columns
        constants: list[Constants] = constants_of(files, names, types, misfits) if has_folders else [{}] * len(files)
        parts = self.parts_of(files)
        groups = [
            (first, end, files.slice(first, end), (number, count))
            for first, end in groups_of_files(files.bytes, job.engine.slots, job.task_bytes_max)
            for count in (parts[first] if splits and end == first + 1 else 1,)
            for number in range(count)
        ]
        return [
            ScanItem(
                files=some,
                first=first,
                constants=constants[first:end],
                left_out=self.left_out.of(some),
                sets_aside=self.left_out.quarantines_misfits,
                reading=reading,
                part=part,
            )
            for first, end, some, part in groups
        ]

    # Prepare

    def prepare(self, files: Files) -> Prepared:
        """Write everything that the new version needs, without making it visible."""
        job = self.job
        self.outputs.make()
        self.left_out = LeftOut(job.settle_ms, job.on_bad_file, self.base, bad=dict(self.news.damaged))
        if job.state.settings() is None:
            job.sink.probe(self.version, self.attempt)
        while True:
            try:
                return self.prepare_once(files)
            except ReplanError:
                job.state.discard(self.version, self.attempt)

    def prepare_once(self, files: Files) -> Prepared:
        """Raises ReplanError if more files must be left out."""
        job = self.job
        bytes_max = job.engine.driver_bytes_max
        self.engine = self.engine_for(bytes_max > 0 and sum(files.bytes) <= bytes_max)
        reading = self.reading()
        problem = self.problem_of_aligned(reading, files)
        name, reason = choose(job.plan, problem, self.before, self.storage, files, job.policy.columns)
        self.plan = {"name": name, "reason": reason}
        if self.engine is not job.engine:
            self.plan["scanned"] = "in the driver"
        if name == "aligned":
            done = self.prepare_aligned(self.scan_items(files, reading, splits=False), files)
            if done is not None:
                return done
        items = self.scan_items(files, reading)
        found = self.found(files, self.tasks("scan", partial(scan, self.storage, self.scratch), items))
        judged = judge_runs(self, found, reading)
        self.compare(found, judged, self.sums(items, found))
        with self.step("check"):
            counts = check_verdicts(self, found, judged)
        written = [] if self.is_seed else self.write(items, found, judged)
        return make_decision(self, found, judged, written, counts), found, judged, written

    def problem_of_aligned(self, reading: Reading, files: Files) -> str:
        """Return why tasks cannot scan, judge and write at once; "" if they can."""
        if self.is_seed:
            return "a seed writes nothing"
        if self.job.is_in_place:
            return "files stay where they are but for those that lose rows"
        if self.job.compare_content is not None:
            return "the content of repeats is compared"
        if self.job.arrangement is not None:
            return "outputs have rows of several files, or another order"
        if self.job.plan != "aligned" and max(self.parts_of(files), default=1) > 1:
            return "large files are split among tasks"
        return can_align(self.job.policy, reading.timestamp, reading.order_by)

    def prepare_aligned(self, items: list[ScanItem], files: Files) -> Prepared | None:
        """Run the aligned plan. Returns None if a key turns out to be in several groups."""
        job = self.job
        aligned = self.tasks("align", partial(align, self.places), [self.align_item(item) for item in items])
        problems = [it.problem for it in aligned if it.problem]
        if problems:
            self.fall_back(problems[0])
            return None
        written = [it.written for it in aligned if it.written is not None]
        self.check_copied(written)
        found = self.found(files, [it.scanned for it in aligned])
        for it in aligned:
            found.refused.update(it.refused)
            found.stale_epoch += it.stale_epoch
            found.stale += it.stale
        judged = judge_runs(self, found, items[0].reading)
        lost = sum(count for shard in judged for name, count in shard.counts.items() if name != "ACCEPTED")
        if lost or any(shard.stale_epoch or shard.border for shard in judged):
            self.fall_back(
                f"{lost} rows that a task had kept are another file's or an earlier run's"
                if lost
                else "epochs of one key lie in several files"
            )
            job.state.discard(self.version, self.attempt)
            return None
        with self.step("check"):
            counts = check_verdicts(self, found, judged)
        return make_decision(self, found, judged, written, counts), found, judged, written

    def fall_back(self, problem: str) -> None:
        self.plan = {"name": "interval", "reason": f"fell back from aligned: {problem}"}

    def reading(self) -> Reading:
        job = self.job
        return Reading(
            policy=job.policy,
            shards=self.shards,
            timestamp=job.max_idle_ms is not None,
            order_by=job.order_by or (),
            by_row=job.plan == "row",
            reset_rows_min=job.reset_rows_min,
            compares=job.compare_content is not None,
            keeps_checksums=self.checksums is not None,
        )

    def align_item(self, item: ScanItem) -> AlignItem:
        job = self.job
        return AlignItem(
            scan=item,
            rejects=job.rejects,
            may_link=self.may_link,
            tells_schemas=job.sink.has_schema,
        )

    def found(self, files: Files, tasks: list[Scanned]) -> Found:
        """Merge the results of scan tasks."""
        scanned, spans = joined(tasks)
        is_read = np.array([it for group in scanned for it in group.is_read], bool)
        as_read = Files(files.root)
        for group in scanned:
            as_read.extend(group.files)
        newest = [group.newest_ms for group in scanned if group.newest_ms is not None]
        found = Found(
            files=as_read,
            is_read=is_read,
            read=as_read if is_read.all() else as_read.take(np.flatnonzero(is_read).tolist()),
            rows=np.array([it for group in scanned for it in group.rows], np.int64),
            untracked=sum(it for group in scanned for it in group.untracked),
            footer_crc=[it for group in scanned for it in group.footer_crc],
            schema_crc=[it for group in scanned for it in group.schema_crc],
            exchanges=[it for group in scanned for it in group.exchanges],
            newest_ms=max(newest, default=None),
            spans=spans,
        )
        if spans:
            self.plan |= {"split_files": len(spans)}
        misfit = next((group.misfit for group in scanned if group.misfit is not None), None)
        if misfit is not None and not is_read.any() and not (self.base and self.base.key_types):
            # no file was ever read successfully, so the job's columns are probably wrong, not all of the files
            raise misfit
        known = self.base.key_types if self.base else {}
        columns, order_by = self.job.policy.columns, self.job.order_by or ()
        self.key_types, misfits = check_types(
            found.exchanges,
            lambda exchange: [as_read.full_path(it) for it in files_in(self.scratch, exchange)],
            columns,
            known,
            order_by,
            sets_aside=self.left_out.quarantines_misfits,
        )
        self.left_out.add_bad(misfits)
        if self.job.sink.can_merge and not self.is_seed:
            self.schema, misfits = check_schemas(
                scanned,
                self.known_schema,
                self.job.schema,
                self.job.sink.columns_of,
                sets_aside=self.left_out.quarantines_misfits,
            )
            self.left_out.add_bad(misfits)
        if self.job.arrangement is not None and not self.is_seed:
            check_arrangement(self.job.arrangement, scanned)
        status = [it for group in scanned for it in group.status]
        reasons = [it for group in scanned for it in group.reason]
        found.vanished, found.deferred, found.quarantined = self.left_out.sort(as_read, status, reasons, self.news.adds)
        if self.job.policy.depends_on_order:
            self.left_out.hold_back(as_read, status, found.deferred, is_sorted=bool(self.job.order_by))
        return found

    def sums(self, items: list[ScanItem], found: Found) -> list[Summed]:
        """Write the checksums of all rows, if they are kept."""
        if self.checksums is None:
            return []
        is_read = found.is_read.tolist()
        with self.bad_content():
            return self.tasks(
                "sum",
                partial(sum_rows, self.storage, self.scratch),
                [
                    SumItem(
                        files=found.files.slice(first, end),
                        first=first,
                        is_read=is_read[first:end],
                        columns=self.job.policy.columns,
                        wanted=self.job.compare_content or (),
                        span=span,
                    )
                    for first, end, span in tasks_of(items, found.spans)
                ],
            )

    @contextmanager
    def bad_content(self) -> Iterator[None]:
        """Leave out files whose content is unreadable. Raises ReplanError."""
        try:
            yield
        except ChangedError:
            raise
        except SourceError as error:
            self.left_out.add_bad({} if error.path is None else {error.path: error.message})
            raise

    def compare(self, found: Found, judged: list[Judged], summed: list[Summed]) -> None:
        """Find conflicts among repeats, if requested, and keep checksums."""
        job = self.job
        paired = [it for it in judged if it.pairs is not None or it.accepted is not None or it.alone is not None]
        items = [
            CompareItem(
                files=found.files,
                pairs=it.pairs,
                losers=it.losers,
                columns=job.policy.columns,
                wanted=job.compare_content or (),
                keeping=self.keeping(it, summed),
            )
            for it in paired
        ]
        with self.bad_content():
            work = partial(compare, job.state.store, self.storage, self.scratch)
            done = self.tasks("compare", work, items) if items else []
        for it, compared in zip(paired, done, strict=True):
            it.losers, it.conflicts = compared.losers, compared.samples
            it.paired, it.kept = compared.pairs, compared.kept
            if compared.conflicts:
                it.counts["DUPLICATE"] -= compared.conflicts
                it.counts["CONFLICT"] = compared.conflicts

    def keeping(self, judged: Judged, summed: list[Summed]) -> ChecksumItem | None:
        if self.checksums is None:
            return None
        job = self.job
        return ChecksumItem(
            summed=summed,
            accepted=judged.accepted,
            alone=judged.alone,
            shards=[
                ShardSums(
                    after=it,
                    state_before=self.base.shards.get(it.shard) if self.base else None,
                    before=self.checksums.get(it.shard),
                )
                for it in judged.shards
            ],
            policy=job.policy,
            keep=("timestamp",) if job.max_idle_ms is not None else (),
            rows_max=rows_max(job.keep_checksums or 0, job.policy),
            version=self.version,
            attempt=self.attempt,
        )

    def next_eviction(self, found: Found) -> Eviction:
        """Return the horizons of this run's tables: the clock follows the data's timestamps, within bounds."""
        job, before = self.job, self.base
        horizon = before.horizon_ms if before else None
        if job.max_idle_ms is None or job.clock_gap_max_ms is None:
            return Eviction(horizon_before=horizon, horizon_after=horizon)
        clock = before.clock_ms if before else None
        if found.newest_ms is not None:
            if clock is None:
                clock = min(found.newest_ms, time.time_ns() // 1_000_000 + job.clock_gap_max_ms)
            else:
                clock = min(max(found.newest_ms, clock), clock + job.clock_gap_max_ms)
        after = None if clock is None else max(clock - job.max_idle_ms, TIMESTAMP_MIN)
        if horizon is not None:
            after = max(horizon, after) if after is not None else horizon
        self.clock_ms = clock
        return Eviction(horizon_before=horizon, horizon_after=after)

    def write(self, items: list[ScanItem], found: Found, judged: list[Judged]) -> list[Written]:
        refused = [it.losers for it in judged if it.losers is not None]
        if self.job.arrangement is None:
            spans = {} if self.job.is_in_place else found.spans_to_write(refused)
            work = partial(write, self.places)
            tasks = [self.write_item(found, *task, refused) for task in tasks_of(items, spans)]
            written = self.tasks("write", work, tasks)
        else:
            arranged = list(self.arrange_items(self.job.arrangement, found, refused))
            written = self.tasks("write", partial(arrange, self.places), arranged)
        self.check_copied(written)
        return written

    def arrange_items(self, arrangement: Arrangement, found: Found, refused: list[Refused]) -> Iterator[ArrangeItem]:
        sizes = found.files.bytes
        ends = batches(arrangement, found.files, found.is_read.tolist(), found.schema_crc)
        borders = [0, *ends]
        of_batch = [sum(sizes[first:end]) for first, end in pairwise(borders)]
        for low, high in groups_of_files(of_batch, self.job.engine.slots, self.job.task_bytes_max):
            first, end = borders[low], borders[high]
            spans: Sequence[Span | None] = [None]
            if end == first + 1 and first in found.spans:
                spans = spans_to_arrange(arrangement, sizes[first], found.spans[first])
            for span in spans:
                yield ArrangeItem(
                    files=self.write_item(found, first, end, span, refused),
                    ends=[end - first for end in ends[low:high]],
                    arrangement=arrangement,
                )

    def write_item(self, found: Found, first: int, end: int, span: Span | None, refused: list[Refused]) -> WriteItem:
        rows = None if span is None else (span.first, span.end)
        return WriteItem(
            files=found.files.slice(first, end),
            first=first,
            rows=found.rows[first:end].tolist() if span is None else [span.live],
            footer_crc=found.footer_crc[first:end],
            is_read=found.is_read[first:end].tolist(),
            losers=[place for it in refused if (place := it.of(first, end, rows)) is not None],
            rejects=self.job.rejects,
            drops_conflicts=self.job.on_conflict == "drop",
            may_link=self.may_link,
            tells_schemas=self.job.sink.has_schema,
            in_place=self.in_place,
            span=span,
        )

    def check_copied(self, written: list[Written]) -> None:
        """Leave out files whose identity is readable and whose payload is not. Raises ReplanError."""
        self.left_out.add_bad({path: reason for group in written for path, reason in group.damaged.items()})

    def discard(self) -> None:
        """Remove what this attempt has prepared."""
        self.job.state.discard(self.version, self.attempt)
        self.outputs.remove()

    # Helpers for the steps

    def engine_for(self, is_small: bool) -> Engine:
        """Return driver threads for work that costs less than starting tasks elsewhere."""
        return LocalEngine() if is_small and not self.job.engine.in_process else self.job.engine

    def tasks(
        self,
        step: str,
        work: Callable[[T], R],
        items: Sequence[T],
        engine: Engine | None = None,
        scratch: Scratch | None = None,
    ) -> list[R]:
        engine, scratch = engine or self.engine, scratch or self.scratch
        with self.timed(step):
            began = time.perf_counter()
            done = run_stage(engine, step, work, items, scratch, lambda at, total: self.progress(step, at, total))
            self.waited += time.perf_counter() - began
        self.task_seconds += sum(seconds for seconds, _ in done)
        return [result for _, result in done]

    def ask(self, work: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
        """Implement `asking.Ask` with tasks, except for a single item."""
        return (
            in_driver(work, items)
            if len(items) < 2
            else [it for some in self.tasks("look", work, items) for it in some]
        )

    def ask_early(self, work: Callable[[Any], list[Any]], items: Sequence[Any]) -> list[Any]:
        """As `ask`, before anything is prepared."""
        if len(items) < 2:
            return in_driver(work, items)
        self.outputs.make()
        try:
            return self.ask(work, items)
        finally:
            self.outputs.remove()

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """A step that is one task of the driver."""
        with self.timed(step):
            self.progress(step, 0, 1)
            yield
        self.progress(step, 1, 1)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure a step. The time of a nested step is not counted twice."""
        self.stage = step
        start, before = time.perf_counter(), sum(self.seconds.values())
        yield
        within = sum(self.seconds.values()) - before
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start - within

    @property
    def driver_seconds(self) -> float:
        """The driver's seconds, without waiting for tasks."""
        return time.perf_counter() - self.began - self.waited
