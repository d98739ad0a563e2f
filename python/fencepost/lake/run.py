"""One run of a job: an attempt at the version after the newest."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost.errors import BatchError, PolicyError, SnapshotError, SourceError, StateConflictError
from fencepost.lake.aligned import AlignItem, align, can_align
from fencepost.lake.delta import list_appended
from fencepost.lake.engine import Engine, LocalEngine, run_stage
from fencepost.lake.judge import Eviction, Judged, JudgeItem, Parts, judge
from fencepost.lake.kafka_log import ExportItem, export, find_new
from fencepost.lake.plan import (
    DRIVER_RUNS_MAX,
    DRIVER_STATE_BYTES_MAX,
    SHARDS,
    choose,
    groups_of_files,
    groups_of_shards,
)
from fencepost.lake.report import RunReport, make_report
from fencepost.lake.scan import Exchange, Reading, ScanItem, Scanned, scan
from fencepost.lake.source import ChangedError, Files, constants_of, list_files
from fencepost.lake.write import InPlace, WriteItem, Written, write
from fencepost.state.changelog import corrections, write_lines
from fencepost.state.commit import commit, conflict, recover
from fencepost.state.decision import ABANDONED, Decision, Inputs, Marked, Outputs, Quarantined, Shards, SideFiles
from fencepost.state.delta import is_delta
from fencepost.state.hive import hive_folders
from fencepost.state.ledger import file_table, new_files

if TYPE_CHECKING:
    from fencepost.lake.job import DedupJob

T = TypeVar("T")
R = TypeVar("R")
TIMESTAMP_MIN = -(2**63)
TRIES = 3
"""How often a run is planned anew because a file changed between its two passes."""


@dataclass
class Found:
    """What the new files hold, once they are scanned; columns of the files that were read, by ordinal."""

    files: Files
    """As they were listed; a file's place is its ordinal in the exchange."""
    is_read: npt.NDArray[np.bool_]
    read: Files
    rows: npt.NDArray[np.int64]
    untracked: int
    footer_crc: list[int]
    exchanges: list[Exchange]
    newest_ms: int | None
    vanished: list[str] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)
    quarantined: Quarantined = field(default_factory=Quarantined)
    refused: Counter[str] = field(default_factory=Counter)
    """Rows that were refused before the exchange, by name of verdict."""
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is read whole, in place of what is new in the job's source."""

    folder: str
    is_seed: bool = False
    """Whether its rows are judged, and what is missing among them said, but no row is written."""
    is_rebase: bool = False
    """Whether the state begins anew with these rows."""
    position: dict[str, Any] | None = None
    """Of a folder that a stream has written: `Decision.source_position` behind it."""


class Run:
    """See the module."""

    def __init__(
        self,
        job: DedupJob,
        progress: Callable[[str, int, int], None] | None = None,
        given: Given | None = None,
    ) -> None:
        self.job = job
        self.given = given
        self.is_seed = given is not None and given.is_seed
        self.is_rebase = given is not None and given.is_rebase
        self.source = given.folder if given else job.source
        self.tell = progress or (lambda step, done, total: None)
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.task_seconds = 0.0
        self.waited = 0.0
        self.recovered: tuple[int, ...] = ()
        self.before: Decision | None = None
        """The newest version that was applied."""
        self.base: Decision | None = None
        """The version whose state is gone on from: the same, or none."""
        self.version = 0
        self.sink_version: dict[str, Any] | None = None
        self.shards = 0
        self.attempt = ""
        self.folder = Path()
        """What only this attempt's tasks write and read, outputs included."""
        self.plan: dict[str, Any] = {}
        self.stage = ""
        """The last step that was begun."""
        self.is_delta = is_delta(self.source)
        self.log = job.log if self.source == job.source else None
        self.position: dict[str, Any] | None = None
        """Where a source ends that is no folder."""
        self.is_own = self.source == job.source or (given is not None and given.position is not None)
        """Whether what is read is of the job's own source."""
        self.ignored: tuple[str, ...] = ()
        self.vanished: list[str] = []
        """Files that changed between their two passes."""
        self.unreadable: dict[str, str] = {}
        """Files whose rows cannot be copied, and why."""
        self.clock_ms: int | None = None
        self.key_types: dict[str, str] = {}
        self.eviction = Eviction(horizon_before=None, horizon_after=None)

    @property
    def in_place(self) -> InPlace | None:
        if not self.job.is_in_place:
            return None
        return "vectors" if self.sink_version and self.sink_version["vectors"] else "files"

    @property
    def may_link(self) -> bool:
        """A link has the source's age too, and whoever cleans up in a table goes by ages."""
        return self.job.source_immutable and not self.job.sink.has_schema

    def run(self) -> RunReport:
        with self.step("recover"):
            self.recover()
        return self.go_on()

    def go_on(self) -> RunReport:
        """The version after the one that `recover` has found; another run that decides it meanwhile is told there."""
        tries_left = TRIES
        while True:
            self.attempt = uuid4().hex
            self.folder = self.job.sink.prepare_folder(self.version, self.attempt)
            try:
                return self.try_once()
            except ChangedError as error:
                tries_left -= 1
                if not tries_left:
                    raise
                self.vanished.append(str(error.path))
            except StateConflictError:
                # In place, others may have been faster than what was decided: the version is given up.
                is_given_up = self.job.is_in_place and self.job.state.status(self.version) == ABANDONED
                tries_left -= 1
                if not (is_given_up and tries_left):
                    raise
                self.recover()
            except SourceError as error:
                # Its identity could be read and its payload cannot: the others go on without it.
                if error.path is None or error.path in self.unreadable or self.stage not in ("write", "align"):
                    raise
                self.unreadable[error.path] = str(error)

    def recover(self) -> None:
        """Check that state and sink are this job's, and finish the version that was decided and not done."""
        job = self.job
        job.state.check(job.settings())
        self.recovered = recover(job.state, job.sink)
        self.version, self.before = job.state.head()
        self.base = None if self.is_rebase else self.before
        self.sink_version = job.sink.look(self.before)
        self.shards = job.state.shard_count(self.before, job.shards, SHARDS)
        if self.is_seed and job.state.decided():
            reason = f"it has {job.state.decided()} versions, and only a new state can be seeded"
            raise SnapshotError(f"{job.state.uri}: {reason}", reason=reason)

    def try_once(self) -> RunReport:
        job = self.job
        with self.step("list"):
            files = self.list_new()
        if not files and not self.moved:
            return make_report(self, None, None, [], [])
        try:
            decision, found, judged, written = self.prepare(files)
        except BaseException as error:
            self.discard()
            if isinstance(error, Exception) and job.state.decided() >= self.version:
                raise conflict(job.state, self.version) from error  # its files may have been collected while it worked
            raise
        if decision is None:
            self.discard()
            return make_report(self, None, found, [], [])
        try:
            commit(job.state, job.sink, decision, self.step)
        except StateConflictError:
            self.discard()
            raise
        job.disk.remove(self.folder)
        return make_report(self, decision, found, judged, written)

    def list_new(self) -> Files:
        if self.given and self.given.position is not None:
            self.position = self.given.position
            return list_files(self.source)
        before = self.base.source_position if self.base and self.source == self.job.source else None
        if self.log is not None:
            return self.export_new(before)
        self.check_kind(before)
        if self.is_delta:
            if self.job.is_in_place and before is None and self.version > 1:
                self.job.check_rewritten()  # the first version was given up: its files may have been others
            own = self.job.state.agreed().id if self.job.is_in_place and self.before else None
            files, self.position = list_appended(self.source, before, own)
            return files
        listed = list_files(self.source)
        self.ignored = listed.ignored
        new = new_files(self.job.state.ledger(self.base), _file_table(listed))
        return listed.take(new.to_pylist()) if len(new) < len(listed) else listed

    def export_new(self, before: dict[str, Any] | None) -> Files:
        """What is new in a Kafka log, as files in the folder of this attempt."""
        assert self.log is not None
        news = find_new(self.log, before)
        for problem in news.problems:
            if self.job.on_reset == "stop":
                raise SourceError(f"{problem}; on_reset='report' goes on with what there is", path=self.log.place)
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
        self.position = news.position()
        files = Files(str(self.folder / "log"))
        if self.position == before:
            return files
        self.job.disk.make_folder(self.folder)
        items = [
            ExportItem(part=part, since=since, folder=str(self.folder), batch_bytes_max=self.log.batch_bytes_max)
            for part, since in news.parts
        ]
        try:
            done = self.tasks("export", export, items)
        except BaseException:
            self.discard()
            raise
        for item, exported in zip(items, done, strict=True):
            if exported.rows:
                path = f"{item.part.topic}-{item.part.partition}/{item.part.segment.base_offset:020}.parquet"
                full_path = Path(files.root, path)
                full_path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(exported.path, full_path)
                files.append(path, full_path.stat())
        return files

    def check_kind(self, position: dict[str, Any] | None) -> None:
        """A folder that has become a table has rows in it that were read as files, and the other way round."""
        if position is not None and not self.is_delta:
            text = f"{self.source}: was read as a Delta table up to version {position['version']}, and is none any more"
            raise SourceError(text, path=self.source)
        if self.is_delta and position is None and self.base and len(self.base.ledger):
            text = f"{self.source}: was read as a folder of files, now it is a Delta table: it needs a state of its own"
            raise SourceError(text, path=self.source)

    @property
    def moved(self) -> bool:
        """Whether a source that is no folder has gone on, be it without a row."""
        return self.position != (self.base.source_position if self.base else None)

    def scan_items(self, files: Files, reading: Reading) -> list[ScanItem]:
        job = self.job
        names = list(dict.fromkeys((*job.policy.columns.names, *reading.order_by)))
        constants = constants_of(files, names, {**files.types, **(self.base.key_types if self.base else {})})
        return [
            ScanItem(
                files=files.slice(first, end),
                first=first,
                constants=constants[first:end],
                unreadable=self.unreadable,
                reading=reading,
                folder=str(self.folder),
            )
            for first, end in groups_of_files(files.bytes, job.engine.slots)
        ]

    # Prepare

    def prepare(self, files: Files) -> tuple[Decision | None, Found, list[Judged], list[Written]]:
        """Everything that the new version needs, written where nobody looks."""
        job = self.job
        job.disk.make_folder(self.folder)
        reading = self.reading()
        problem = self.problem_of_aligned(reading)
        name, reason = choose(job.plan, problem, self.before, files, job.policy.columns)
        self.plan = {"name": name, "reason": reason}
        items = self.scan_items(files, reading)
        if name == "aligned" and (done := self.prepare_aligned(items, files)) is not None:
            return done
        found = self.found(files, self.tasks("scan", scan, items))
        judged = self.judge(found, reading)
        with self.step("check"):
            counts = self.check_verdicts(found, judged)
        written = [] if self.is_seed else self.write(items, found, judged)
        return self.decision(found, judged, written, counts), found, judged, written

    def problem_of_aligned(self, reading: Reading) -> str:
        """Why tasks cannot judge and write at once; "" if they can."""
        if self.is_seed:
            return "a seed writes nothing"
        if self.job.is_in_place:
            return "files stay where they are but for those that lose rows"
        return can_align(self.job.policy, reading.timestamp, reading.order_by)

    def prepare_aligned(
        self, items: list[ScanItem], files: Files
    ) -> tuple[Decision | None, Found, list[Judged], list[Written]] | None:
        """None where files do not hold whole keys after all."""
        job = self.job
        aligned = self.tasks("align", align, [self.align_item(item) for item in items])
        problems = [it.problem for it in aligned if it.problem]
        if problems:
            self.fall_back(problems[0])
            return None
        found = self.found(files, [it.scanned for it in aligned])
        for it in aligned:
            found.refused.update(it.refused)
            found.stale_epoch += it.stale_epoch
            found.stale += it.stale
        judged = self.judge(found, items[0].reading)
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
            counts = self.check_verdicts(found, judged)
        written = [it.written for it in aligned if it.written is not None]
        return self.decision(found, judged, written, counts), found, judged, written

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
        )

    def align_item(self, item: ScanItem) -> AlignItem:
        job = self.job
        return AlignItem(
            scan=item,
            rejects=job.rejects,
            outputs=str(self.folder),
            disk=job.disk,
            may_link=self.may_link,
            tells_schemas=job.sink.has_schema,
        )

    def found(self, files: Files, scanned: list[Scanned]) -> Found:
        """What the tasks found, taken together."""
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
            exchanges=[it for group in scanned for it in group.exchanges],
            newest_ms=max(newest, default=None),
        )
        reasons = [it for group in scanned for it in group.reason]
        self.set_aside(found, reasons)
        self.key_types = self.check_types(found)
        return found

    def check_types(self, found: Found) -> dict[str, str]:
        """The types of the parts of keys from now on. Refuses files whose columns are of other types than the first
        one's, and keys of other types than those before; integers and texts may be of any width."""
        known = dict(self.base.key_types) if self.base else {}
        if not found.exchanges:
            return known
        first = found.exchanges[0]

        def path(exchange: Exchange) -> str:
            return found.files.full_path(_first_file(exchange.path))

        for exchange in found.exchanges:
            for one, other in zip(first.schema, exchange.schema, strict=True):
                if _type_name(one.type) != _type_name(other.type):
                    text = f"{path(exchange)}: column '{one.name}': {other.type}; in {path(first)} it is {one.type}"
                    raise BatchError(text, column=one.name)
        for name in self.job.order_by or ():
            if not _has_order(first.schema.field(name).type):
                text = f"{path(first)}: column '{name}': {first.schema.field(name).type} has no order for order_by"
                raise BatchError(text, column=name)
        columns = self.job.policy.columns
        for name in (*columns.parts("pid"), *columns.parts("partition")):
            kind = _type_name(first.schema.field(name).type)
            if known.setdefault(name, kind) != kind:
                text = f"{path(first)}: column '{name}': {kind}; this state's keys have {known[name]} there since its "
                raise BatchError(text + "first rows, another type needs a state of its own", column=name)
        return known

    def set_aside(self, found: Found, reasons: list[str]) -> None:
        """Files that could not be read: those that vanished, those to be looked at again, and those to be named."""
        settled = time.time_ns() - self.job.settle_ms * 1_000_000
        quarantined = []
        for place in np.flatnonzero(~found.is_read).tolist():
            path, identity = found.files.paths[place], found.files.identity(place)
            if identity == (0, 0, 0):
                found.vanished.append(path)
            elif identity[1] > settled and not self.is_delta:  # what a table names is as its writer wanted it
                found.deferred.append(path)
            else:
                size, mtime_ns, inode = identity
                row = {"path": path, "bytes": size, "mtime_ns": mtime_ns, "inode": inode, "etag": ""}
                quarantined.append(row | {"reason": reasons[place]})
        found.quarantined = Quarantined.of(quarantined)

    def judge(self, found: Found, reading: Reading) -> list[Judged]:
        """Judge the runs, where that costs least."""
        parts, sizes = _parts(found.exchanges)
        shards = np.unique(parts.shard)
        before = [self.base.shards.get(int(shard)) if self.base else None for shard in shards]
        state_bytes = [sum(piece.bytes for piece in it.pieces) if it else 0 for it in before]
        runs = np.bincount(np.searchsorted(shards, parts.shard), sizes, len(shards)) if len(shards) else np.zeros(0)
        self.eviction = self.next_eviction(found)
        engine: Engine = self.job.engine
        is_small = runs.sum() <= DRIVER_RUNS_MAX and sum(state_bytes) <= DRIVER_STATE_BYTES_MAX
        if is_small and not engine.in_process:
            engine = LocalEngine()
        self.plan |= {
            "judged": "in the driver" if is_small else "in tasks",
            "runs": int(runs.sum()),
            "shards": len(shards),
            "state_bytes_touched": sum(state_bytes),
        }
        borders = [*np.searchsorted(parts.shard, shards).tolist(), len(parts.shard)]
        items = [
            JudgeItem(
                parts=Parts(
                    shard=parts.shard[borders[first] : borders[end]],
                    exchange=parts.exchange[borders[first] : borders[end]],
                    batch=parts.batch[borders[first] : borders[end]],
                    names=parts.names,
                ),
                shards=before[first:end],
                reading=reading,
                eviction=self.eviction,
                store=self.job.state.store,
                version=self.version,
                attempt=self.attempt,
                scratch=str(self.folder),
            )
            for first, end in groups_of_shards(runs.tolist(), state_bytes, engine.slots)
        ]
        return self.tasks("judge", judge, items, engine)

    def next_eviction(self, found: Found) -> Eviction:
        """By which horizons this run's tables forget: the clock moves on by the data's timestamps, within bounds."""
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
        job = self.job
        losers = [it.losers for it in judged if it.losers is not None]
        groups = [(item.first, item.first + len(item.files)) for item in items]
        rows, crcs, is_read = found.rows.tolist(), found.footer_crc, found.is_read.tolist()
        return self.tasks(
            "write",
            write,
            [
                WriteItem(
                    files=found.files.slice(first, end),
                    first=first,
                    rows=rows[first:end],
                    footer_crc=crcs[first:end],
                    is_read=is_read[first:end],
                    losers=losers,
                    rejects=job.rejects,
                    folder=str(self.folder),
                    disk=job.disk,
                    may_link=self.may_link,
                    tells_schemas=job.sink.has_schema,
                    in_place=self.in_place,
                )
                for first, end in groups
            ],
        )

    # Check

    def check_verdicts(self, found: Found, judged: list[Judged]) -> dict[str, int]:
        """Rows by verdict, which must add up to the rows read. Raises PolicyError where people should look first."""
        total = Counter(UNTRACKED=found.untracked) + found.refused
        for shard in judged:
            total.update(shard.counts)
        counts = {verdict.name: total[verdict.name] for verdict in fencepost.Verdict if total[verdict.name]}
        self.check_whole(found)
        rows = int(found.rows.sum())
        if sum(counts.values()) != rows:
            raise AssertionError(f"{rows} rows were read, but the verdicts are {counts}")
        self.check_refused(counts, rows)
        self.check_resets([table for shard in judged for table in shard.resets])
        return counts

    def check_whole(self, found: Found) -> None:
        """Files of the job's own folder are looked at again; others, and what a table names, are read now or never."""
        unread: list[str] = []
        if self.source != self.job.source or self.log is not None:
            unread = [*found.deferred, *found.quarantined.path, *found.vanished]
        elif self.is_delta:
            unread = [*(found.quarantined.path if self.is_rebase else ()), *found.vanished]
        if unread:
            text = f"{self.source}: {len(unread)} files cannot be read, and their rows would be new later: "
            raise SourceError(text + ", ".join(unread[:10]), path=f"{self.source}/{unread[0]}")

    def check_refused(self, counts: dict[str, int], rows: int) -> None:
        refused = {name: count for name, count in counts.items() if name not in ("ACCEPTED", "UNTRACKED", "DUPLICATE")}
        share = sum(refused.values()) / rows if rows else 0
        if share > self.job.rejected_max:
            listed = ", ".join(f"{count:,} {name}" for name, count in refused.items())
            forgotten = "The state has forgotten everything up to its horizon, and they are older: see max_idle_ms."
            others = "Does order_by give the true order, and does the policy fit?"
            raise PolicyError(
                f"{share:.1%} of {rows:,} new rows would be refused ({listed}), more than rejected_max="
                f"{self.job.rejected_max:.1%}; nothing was written. {forgotten if 'FORGOTTEN' in refused else others}"
            )
        if self.is_seed and (refused or counts.get("DUPLICATE")):
            listed = ", ".join(
                f"{count:,} {name}" for name, count in counts.items() if name not in ("ACCEPTED", "UNTRACKED")
            )
            raise SourceError(
                f"{self.source}: not clean, so no state can be made of it without a look at its rows ({listed}); "
                "run() writes a clean copy",
                path=self.source,
            )

    def check_resets(self, resets: list[pa.Table]) -> None:
        if not resets or self.job.on_reset == "report":
            return
        worst = pa.concat_tables(resets, promote_options="permissive").sort_by([("newer", "descending")])
        listed = "; ".join(str(line) for line in worst.slice(0, 3).to_pylist())
        raise PolicyError(
            f"{len(worst)} keys seem to have begun to number anew: most of their rows would be DUPLICATE although they "
            f"are newer than all that was accepted before ({listed}); nothing was written. Was a topic recreated, or a "
            "cluster rebuilt? Then give it a scope and a state of its own; or on_reset='report'"
        )

    # Decide

    def decision(
        self, found: Found, judged: list[Judged], written: list[Written], counts: dict[str, int]
    ) -> Decision | None:
        """What is to be decided, once all it names is durable, and state and sink say whose they are.

        None where every file has to be looked at again.
        """
        job = self.job
        if not len(found.read) and not len(found.quarantined) and not self.moved:
            return None
        ordinals = np.cumsum(found.is_read) - 1
        outputs, winners = _outputs(found, written, ordinals)
        sides, side_winners = self.side_files(found, judged, written, ordinals)
        marked = Marked.of(it | {"ordinal": int(ordinals[it["ordinal"]])} for group in written for it in group.marked)
        if not self.is_seed:
            self.check_kept(counts, outputs, marked)
        sink_version = self.checked_rows(outputs, written)
        if staged := self.staged(outputs, winners):
            sink_version = {**(sink_version or {}), **staged}
        with self.step("collect"):
            names = winners | side_winners
            prepared = job.sink.collect(self.folder, names) if names else None
            inputs = _inputs(found)
            listed = [file_table(inputs), file_table(found.quarantined)]
            if self.source != job.source or self.is_delta or self.log is not None:
                listed = [file_table(Inputs())]  # the ledger is of the job's own folder
            ledger = job.state.extend_ledger(self.base, self.version, self.attempt, listed)
            if self.version == 1:
                job.sink.claim(job.state.create(job.settings()).id)
        shards = (self.base.shards if self.base else Shards()).replaced(it for task in judged for it in task.shards)
        return job.state.follow(
            self.version,
            self.before,
            self.attempt,
            kind="seed" if self.is_seed else "rebase" if self.is_rebase else "run",
            builds_on=self.base.version if self.base else 0,
            inputs=inputs,
            quarantined=found.quarantined,
            outputs=outputs,
            marked=marked,
            side_files=sides,
            prepared=prepared,
            sink_version=sink_version,
            source_position=self.position if self.is_own else None,
            shard_count=self.shards,
            shards=shards,
            ledger=ledger,
            clock_ms=self.clock_ms,
            horizon_ms=self.eviction.horizon_after,
            key_types=self.key_types,
            counts=counts,
            missing_ranges=sum(it.missing_ranges for it in judged),
            missing_rows=sum(it.missing_rows for it in judged),
            stale_epoch=sum(it.stale_epoch for it in judged) + found.stale_epoch,
            border=sum(it.border for it in judged),
            policy=job.policy.rules,
            order_by=None if job.order_by is None else list(job.order_by),
            plan=self.plan,
            report={"deferred": found.deferred[:100], "vanished": (self.vanished + found.vanished)[:100]}
            | ({"seeded_from": self.source} if self.is_seed else {}),
        )

    def check_kept(self, counts: dict[str, int], outputs: Outputs, marked: Marked) -> None:
        """Rows that are kept must be written, or where files stay where they are, all others must be taken out."""
        kept = counts.get("ACCEPTED", 0) + counts.get("UNTRACKED", 0)
        refused = sum(counts.values()) - kept
        if not self.job.is_in_place and sum(outputs.rows) != kept:
            raise AssertionError(f"{kept} rows are kept, the outputs have {sum(outputs.rows)}")
        if self.job.is_in_place and sum(marked.refused) != refused:
            raise AssertionError(f"{refused} rows are refused, {sum(marked.refused)} are taken out")

    def checked_rows(self, outputs: Outputs, written: list[Written]) -> dict[str, Any] | None:
        """What the decision says of the sink, which can take the rows."""
        schemas = {schema: path for group in reversed(written) for schema, path in group.schemas.items()}
        if not schemas:
            return self.sink_version
        folders = dict.fromkeys(name.rpartition("/")[0] + "/" for name in outputs.name)
        more = self.job.sink.check_rows(schemas, folders)
        return {**(self.sink_version or {}), **more} or None

    def staged(self, outputs: Outputs, winners: dict[str, str]) -> dict[str, Any]:
        """What tasks have brought nearer to the sink, where it asks for that."""
        sink, engine = self.job.sink, self.job.engine
        work, items = sink.staging(self.version, self.attempt, outputs, winners, engine.slots)
        return sink.staged(self.tasks("stage", work, items)) if items else {}

    def side_files(
        self, found: Found, judged: list[Judged], written: list[Written], ordinals: npt.NDArray[np.int64]
    ) -> tuple[SideFiles, dict[str, str]]:
        """The files of refused rows and of changes in what is missing, and where they lie now."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        rows: list[dict[str, Any]] = []
        places: dict[str, str] = {}
        for group in written:
            for ordinal, verdict, path, count, size, crc in group.rejects:
                hive = hive_folders(found.files.paths[ordinal])
                name = f"_rejects/verdict={verdict}/{hive}part-{ordinals[ordinal]:05}.parquet"
                places[name] = path
                rows.append({"table": "rejects", "name": name, "rows": count, "bytes": size, "footer_crc": crc})
        lines = [pq.read_table(it.changelog) for it in judged if it.changelog is not None]
        if self.is_rebase:
            now = [it.drop_columns(["version", "change"]) for it in lines]  # all that is missing: nothing was known
            lines = corrections(self.job.sink.changelog(), now, self.version)
        if lines:
            row, missing = write_lines(lines, self.folder, self.job.disk)
            places[row["name"]] = str(missing)
            rows.append(row)
        return SideFiles.of(rows), places

    def discard(self) -> None:
        """Remove what this attempt prepared: nothing refers to it."""
        self.job.state.discard(self.version, self.attempt)
        self.job.disk.remove(self.folder)

    # Around the steps

    def tasks(self, step: str, work: Callable[[T], R], items: Sequence[T], engine: Engine | None = None) -> list[R]:
        engine = engine or self.job.engine
        with self.timed(step):
            began = time.perf_counter()
            done = run_stage(engine, step, work, items, self.folder, lambda at, total: self.tell(step, at, total))
            self.waited += time.perf_counter() - began
        self.task_seconds += sum(seconds for seconds, _ in done)
        return [result for _, result in done]

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """A step that is one task of the driver."""
        with self.timed(step):
            self.tell(step, 0, 1)
            yield
        self.tell(step, 1, 1)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        self.stage = step
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    @property
    def driver_seconds(self) -> float:
        """Not spent in waiting for tasks."""
        return time.perf_counter() - self.began - self.waited


def _file_table(files: Files) -> pa.Table:
    columns = {"path": files.paths, "bytes": files.bytes, "mtime_ns": files.mtime_ns, "inode": files.inode}
    return file_table(columns | {"etag": [""] * len(files)})


def _parts(exchanges: list[Exchange]) -> tuple[Parts, npt.NDArray[np.int64]]:
    """All record batches by shard, those of one in the order of the files; and how many runs each has."""
    if not exchanges:
        return Parts(
            shard=np.zeros(0, np.uint32), exchange=np.zeros(0, np.int32), batch=np.zeros(0, np.int32), names=[]
        ), np.zeros(0, np.int64)
    shard = np.concatenate([it.shards for it in exchanges])
    order = np.argsort(shard.astype(np.uint16), kind="stable")  # SHARDS_MAX fits, and of 16 bits this is a radix sort
    exchange = np.repeat(np.arange(len(exchanges), dtype=np.int32), [len(it.shards) for it in exchanges])
    batch = np.concatenate([np.arange(len(it.shards), dtype=np.int32) for it in exchanges])
    names = [os.path.basename(it.path) for it in exchanges]
    parts = Parts(shard=shard[order], exchange=exchange[order], batch=batch[order], names=names)
    return parts, np.concatenate([it.runs for it in exchanges])[order]


def _type_name(kind: pa.DataType) -> str:
    """What a type is as a part of a key: of integers and text, width does not count."""
    for name, is_one in (("integer", pa.types.is_integer), ("string", _is_text), ("binary", _is_binary)):
        if is_one(kind):
            return name
    return str(kind)


def _has_order(kind: pa.DataType) -> bool:
    """Whether Arrow sorts by it."""
    return not (pa.types.is_nested(kind) or pa.types.is_float16(kind) or pa.types.is_null(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _first_file(exchange: str) -> int:
    with pa.memory_map(exchange) as file:
        ordinal: int = pa.ipc.open_file(file).get_batch(0).column("_file")[0].as_py()
    return ordinal


def _inputs(found: Found) -> Inputs:
    crcs = np.array(found.footer_crc, np.int64)
    return Inputs(
        path=found.read.paths,
        bytes=found.read.bytes,
        mtime_ns=found.read.mtime_ns,
        inode=found.read.inode,
        etag=[""] * len(found.read),
        rows=found.rows[found.is_read].tolist(),
        footer_crc=crcs[found.is_read].tolist(),
    )


def _outputs(found: Found, written: list[Written], ordinals: npt.NDArray[np.int64]) -> tuple[Outputs, dict[str, str]]:
    """The files with kept rows, and where they lie now."""
    paths = [path for group in written for path in group.paths]
    places = [place for place, path in enumerate(paths) if path is not None]
    columns: dict[str, list[Any]] = {"name": [], "ordinal": ordinals[places].tolist() if places else []}
    for column in ("rows", "bytes", "footer_crc"):
        values = [it for group in written for it in getattr(group, column)]
        columns[column] = [values[place] for place in places]
    folders = found.files.folders()
    hive = {folder: hive_folders(folder) for folder in dict.fromkeys(folders)}
    columns["name"] = [
        f"{hive[folders[place]]}part-{ordinal:05}.parquet"
        for place, ordinal in zip(places, columns["ordinal"], strict=True)
    ]
    winners = {name: str(paths[place]) for name, place in zip(columns["name"], places, strict=True)}
    for group in written:
        for first, path, size in group.vectors:
            facts = {"name": os.path.basename(path), "ordinal": int(ordinals[first]), "rows": 0, "bytes": size}
            for column, value in (facts | {"footer_crc": 0}).items():
                columns[column].append(value)
            winners[facts["name"]] = path
    return Outputs(**columns), winners
