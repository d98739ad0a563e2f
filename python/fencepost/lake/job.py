"""The job: what is new in a source, judged against a state, its kept rows in a sink, each version exactly once.

    recover   what an interrupted run decided is applied and finished, without its source
    list      new input: the files of the source that the state's ledger does not name
    scan      a task per file:  identity columns, dealt to shards          (scan.py)
    judge     a task per shard: verdicts, the shard's new segment          (judge.py)
    write     a task per file:  the kept rows                              (write.py)
    decide    sums are checked, then one put-if-absent
    apply     one rename shows the version
    finish    the version may be built upon

Up to `decide` nothing refers to what was written: whatever goes wrong, output and state are as they were.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost.errors import PolicyError, SinkError, StateConflictError
from fencepost.lake.engine import Engine, LocalEngine
from fencepost.lake.judge import SHOWN_MAX, Drop, Judged, JudgeItem, Part, judge
from fencepost.lake.report import RunReport
from fencepost.lake.scan import ScanItem, Scanned, scan
from fencepost.lake.source import SourceFile, list_files
from fencepost.lake.write import WriteItem, Written, write
from fencepost.policy import Columns, Policy, check_columns, resolve
from fencepost.state.commit import commit, conflict, recover
from fencepost.state.decision import Decision, Inputs, Outputs, Settings, Shards
from fencepost.state.disk import Disk
from fencepost.state.ledger import file_table, new_files
from fencepost.state.sinks import RunFolders
from fencepost.state.stores import LocalStore
from fencepost.state.versions import State, scratch_folder

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]
"""Called with (step, done, total) as tasks and steps are done."""

SHARDS = 16
SHARDS_MAX = 65_534
ROLES = ("pid", "epoch", "partition", "seq", "timestamp")


class DedupJob:
    """Keeps each event of a Parquet folder once, from run to run.

    `source`: a folder of Parquet files; each run reads the files that no earlier run has read. `state`: a folder that
    the job makes and owns. `sink`: a folder that it makes and owns; version n appears in it at once as `run=<n>/`, one
    file per input file of which rows are kept. None of the three may lie in another.

    `policy`: a preset name or a Policy. `columns`: where the identity stands, the policy's columns unless given.
    `scope`: what the data does not say about itself (a cluster, a topic id), fixed with the state.
    `order_by`: columns by which the rows of a run are put in order before they are judged; rows of equal values, and
    all rows where it is (), follow file name and row. Policies that depend on order demand it, () included: under
    them an order that is not the true one loses good rows.
    `rejected_max`: the run stops before anything is decided if a larger share of its rows is refused for other reasons
    than DUPLICATE. `shards`: into how many parts the state is cut: 16 at first unless given, later
    as many as it has. `engine`: where tasks run, threads
    of this process unless given. `sync=False`: do not wait for disks; a power loss may then cost the state.

    Raises PolicyError and ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        state: str | os.PathLike[str],
        sink: str | os.PathLike[str],
        *,
        policy: str | Policy = "any_order",
        columns: Columns | None = None,
        scope: str | None = None,
        order_by: str | Sequence[str] | None = None,
        rejected_max: float = 0.5,
        engine: Engine | None = None,
        shards: int | None = None,
        sync: bool = True,
    ) -> None:
        policy = resolve(policy)
        if columns is not None:
            check_columns(policy, columns)
            policy = policy.replace(columns=columns)
        if order_by is None and policy.depends_on_order:
            raise PolicyError(
                f"policy {policy.name or policy.rules} depends on the order of rows, which files do not tell: "
                "give order_by=[columns], or order_by=() if file names, then rows, stand in the true order"
            )
        if not 0 <= rejected_max <= 1:
            raise ValueError(f"rejected_max={rejected_max}: a share from 0 to 1 was expected")
        if shards is not None and not 1 <= shards <= SHARDS_MAX:
            raise ValueError(f"shards={shards}: 1 to {SHARDS_MAX} were expected")
        self.source = os.path.abspath(source)
        self.policy, self.scope, self.shards, self.rejected_max = policy, scope, shards, rejected_max
        self.order_by = (order_by,) if isinstance(order_by, str) else None if order_by is None else tuple(order_by)
        self.engine: Engine = engine or LocalEngine()
        self.disk = Disk(sync)
        self.state = State(LocalStore(state, sync=sync))
        self.sink = RunFolders(Path(os.path.abspath(sink)), self.disk)
        _check_apart(source=Path(self.source), state=self.state.path, sink=self.sink.path)

    def run(self, progress: Progress | None = None) -> RunReport:
        """Finish what was decided, then read what is new. `progress(step, done, total)` is called along the way.

        Raises, with output and state as they were: BatchError, SourceError (bad input: column, row, file),
        SnapshotError (a state of other settings, or damaged), SinkError, SinkChangedError, CapacityError, PolicyError
        (more refusals than `rejected_max`), StateConflictError (another run was faster: run again).
        """
        return _Run(self, progress or (lambda step, done, total: None)).run()

    def settings(self) -> Settings:
        """What a state of this job is created for."""
        return Settings(
            id=uuid4().hex,
            policy=self.policy.rules,
            columns={role: _plain(getattr(self.policy.columns, role)) for role in ROLES},
            scope=self.scope,
            keep=[],
            shards=self.shards or SHARDS,
            source=self.source,
            sink=str(self.sink.path),
            fencepost=fencepost.__version__,
        )


class _Run:
    """One run of a job: an attempt at the version after the newest."""

    def __init__(self, job: DedupJob, progress: Progress) -> None:
        self.job = job
        self.progress = progress
        self.attempt = uuid4().hex
        self.seconds: dict[str, float] = {}
        self.before: Decision | None = None
        self.version = 0
        self.shards = 0

    def run(self) -> RunReport:
        job = self.job
        with self.step("recover"):
            job.state.check(job.settings())
            recovered = recover(job.state, job.sink)
            self.version, self.before = job.state.head()
            self.shards = job.state.shard_count(self.before, job.shards, SHARDS)
        with self.step("list"):
            listed = list_files(job.source)
            new = new_files(job.state.ledger(self.before), file_table(_columns(listed)))
            files = [listed[place] for place in new.to_pylist()]
        if not files:
            return self.report(None, recovered, [])
        try:
            decision, judged = self.prepare(files)
        except BaseException as error:
            self.discard()
            if isinstance(error, Exception) and job.state.decided() >= self.version:
                raise conflict(job.state, self.version) from error  # its files may have been collected while it worked
            raise
        try:
            commit(job.state, job.sink, decision, self.step)
        except StateConflictError:
            self.discard()
            raise
        job.disk.remove(self.scratch)
        return self.report(decision, recovered, judged)

    # The steps

    def prepare(self, files: list[SourceFile]) -> tuple[Decision, list[Judged]]:
        """Everything that the new version needs, written where nobody looks."""
        job = self.job
        self.scratch.mkdir(parents=True)
        scanned = self.tasks("scan", scan, [self.scan_item(file) for file in files])
        judged = self.tasks("judge", judge, [self.judge_item(*shard) for shard in _parts(files, scanned)])
        counts = self.check_verdicts(scanned, judged)
        job.disk.make_folder(self.outputs)
        drops = _drops_by_file(judged)
        written = self.tasks(
            "write",
            write,
            [
                self.write_item(ordinal, file, found, drops.get(ordinal, ()))
                for ordinal, (file, found) in enumerate(zip(files, scanned, strict=True))
            ],
        )
        with self.step("check"):
            decision = self.decision(files, scanned, judged, written, counts)
        return decision, judged

    def scan_item(self, file: SourceFile) -> ScanItem:
        job = self.job
        return ScanItem(
            file=file, policy=job.policy, order_by=job.order_by or (), shards=self.shards, folder=str(self.scratch)
        )

    def judge_item(self, shard: int, parts: tuple[Part, ...]) -> JudgeItem:
        job = self.job
        return JudgeItem(
            shard=shard,
            policy=job.policy,
            order_by=job.order_by or (),
            parts=parts,
            before=self.before.shards.get(shard) if self.before else None,
            store=job.state.store,
            version=self.version,
            attempt=self.attempt,
            scratch_folder=str(self.scratch),
        )

    def write_item(self, ordinal: int, file: SourceFile, found: Scanned, drops: tuple[Drop, ...]) -> WriteItem:
        return WriteItem(
            file=file,
            ordinal=ordinal,
            rows=found.rows,
            footer_crc=found.footer_crc,
            drops=drops,
            folder=str(self.outputs),
            disk=self.job.disk,
        )

    def check_verdicts(self, scanned: list[Scanned], judged: list[Judged]) -> dict[str, int]:
        """Rows by verdict, which must add up to the rows read. Raises PolicyError if too many are refused."""
        total: Counter[str] = Counter(UNTRACKED=sum(found.untracked for found in scanned))
        for shard in judged:
            total.update(shard.counts)
        counts = {verdict.name: total[verdict.name] for verdict in fencepost.Verdict if total[verdict.name]}
        rows = sum(found.rows for found in scanned)
        if sum(counts.values()) != rows:
            raise AssertionError(f"{rows} rows were read, but the verdicts are {counts}")
        refused = {name: count for name, count in counts.items() if name not in ("ACCEPTED", "UNTRACKED", "DUPLICATE")}
        share = sum(refused.values()) / rows if rows else 0
        if share > self.job.rejected_max:
            listed = ", ".join(f"{count:,} {name}" for name, count in refused.items())
            raise PolicyError(
                f"{share:.1%} of {rows:,} new rows would be refused ({listed}), more than rejected_max="
                f"{self.job.rejected_max:.1%}; nothing was written. Does order_by give the true order, and does the "
                "policy fit?"
            )
        return counts

    def decision(
        self,
        files: list[SourceFile],
        scanned: list[Scanned],
        judged: list[Judged],
        written: list[Written],
        counts: dict[str, int],
    ) -> Decision:
        """What is to be decided, once all it names is durable, and state and sink say whose they are."""
        job = self.job
        winners = {f"part-{ordinal:05}.parquet": one for ordinal, one in enumerate(written) if one.path is not None}
        if sum(one.rows for one in winners.values()) != _kept(counts):
            raise AssertionError(f"{_kept(counts)} rows are kept, the outputs have {[one.rows for one in written]}")
        prepared = job.sink.collect(self.outputs, {name: one.path for name, one in winners.items() if one.path})
        ledger = job.state.extend_ledger(self.before, self.version, self.attempt, [file_table(_columns(files))])
        if self.version == 1:
            job.sink.claim(job.state.create(job.settings()).id)
        outputs = [(ordinal, one) for ordinal, one in enumerate(written) if one.path is not None]
        return job.state.follow(
            self.version,
            self.before,
            self.attempt,
            inputs=_inputs(files, scanned),
            outputs=Outputs(
                name=list(winners),
                ordinal=[ordinal for ordinal, _ in outputs],
                rows=[one.rows for _, one in outputs],
                bytes=[one.bytes for _, one in outputs],
                footer_crc=[one.footer_crc for _, one in outputs],
            ),
            prepared=prepared if winners else None,
            shard_count=self.shards,
            shards=(self.before.shards if self.before else Shards()).replaced(shard.after for shard in judged),
            ledger=ledger,
            counts=counts,
            missing_ranges=sum(shard.missing_ranges for shard in judged),
            missing_rows=sum(shard.missing_rows for shard in judged),
            stale_epoch=sum(shard.stale_epoch for shard in judged),
            border=sum(shard.border for shard in judged),
            policy=job.policy.rules,
            order_by=None if job.order_by is None else list(job.order_by),
        )

    # Where its files are

    @property
    def scratch(self) -> Path:
        return self.job.state.path / scratch_folder(self.version, self.attempt)

    @property
    def outputs(self) -> Path:
        return self.job.sink.prepare_folder(self.version, self.attempt)

    def discard(self) -> None:
        """Remove what this attempt prepared: nothing refers to it."""
        self.job.state.discard(self.version, self.attempt)
        self.job.disk.remove(self.outputs)

    # Around the steps

    def tasks(self, step: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        with self.timed(step):
            return self.job.engine.run(step, work, items, lambda done, total: self.progress(step, done, total))

    @contextmanager
    def step(self, step: str) -> Iterator[None]:
        """A step that is one task of the driver."""
        with self.timed(step):
            self.progress(step, 0, 1)
            yield
        self.progress(step, 1, 1)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - start

    def report(self, decision: Decision | None, recovered: tuple[int, ...], judged: list[Judged]) -> RunReport:
        counts = decision.counts if decision else {}
        inputs = decision.inputs if decision else Inputs()
        state = decision or self.before
        return RunReport(
            version=decision.version if decision else None,
            recovered=recovered,
            source=self.job.source,
            sink=str(self.job.sink.path),
            policy=self.job.policy.name or self.job.policy.rules,
            identity=self.job.policy.columns.names,
            engine=self.job.engine.name,
            files=len(inputs),
            rows=sum(inputs.rows),
            bytes=sum(inputs.bytes),
            counts=counts,
            kept=_kept(counts),
            missing_ranges=decision.missing_ranges if decision else 0,
            missing_rows=decision.missing_rows if decision else 0,
            missing=_shown(shard.missing for shard in judged),
            stale_epoch=decision.stale_epoch if decision else 0,
            stale=_shown(shard.stale for shard in judged),
            border=decision.border if decision else 0,
            entries=state.entries if state else 0,
            shards=len(judged),
            outputs=tuple(f"run={decision.version}/{name}" for name in decision.outputs.name) if decision else (),
            seconds=self.seconds,
        )


def _parts(files: list[SourceFile], scanned: list[Scanned]) -> Iterator[tuple[int, tuple[Part, ...]]]:
    """(shard, its parts in ordinal order) for each shard that rows were dealt to."""
    parts: dict[int, list[Part]] = {}
    for ordinal, (file, found) in enumerate(zip(files, scanned, strict=True)):
        for batch, (shard, rows) in enumerate(found.batches):
            part = Part(ordinal=ordinal, source=file.full_path, exchange=found.exchange, batch=batch, rows=rows)
            parts.setdefault(shard, []).append(part)
    return ((shard, tuple(parts[shard])) for shard in sorted(parts))


def _drops_by_file(judged: list[Judged]) -> dict[int, tuple[Drop, ...]]:
    drops: dict[int, list[Drop]] = {}
    for shard in judged:
        for drop in shard.drops:
            drops.setdefault(drop.ordinal, []).append(drop)
    return {ordinal: tuple(those) for ordinal, those in drops.items()}


def _columns(files: list[SourceFile]) -> dict[str, list[Any]]:
    """What tells files apart, a list a column."""
    return {
        "path": [file.path for file in files],
        "bytes": [file.bytes for file in files],
        "mtime_ns": [file.mtime_ns for file in files],
        "inode": [file.inode for file in files],
        "etag": [""] * len(files),
    }


def _inputs(files: list[SourceFile], scanned: list[Scanned]) -> Inputs:
    return Inputs(
        **_columns(files), rows=[found.rows for found in scanned], footer_crc=[found.footer_crc for found in scanned]
    )


def _kept(counts: dict[str, int]) -> int:
    return counts.get("ACCEPTED", 0) + counts.get("UNTRACKED", 0)


def _shown(streams: Iterable[bytes]) -> pa.Table:
    tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables, promote_options="permissive").slice(0, SHOWN_MAX)


def _check_apart(**folders: Path) -> None:
    """What lies in the source would be read as input, and a job cleans up in its own folders."""
    named = [(name, Path(os.path.realpath(folder))) for name, folder in folders.items()]
    for name, folder in named:
        for other, outer in named:
            if name != other and folder.is_relative_to(outer):
                raise SinkError(f"{name} {folder} lies in {other} {outer}; each of the three needs its own folder")


def _plain(names: object) -> object:
    return list(names) if isinstance(names, tuple) else names
