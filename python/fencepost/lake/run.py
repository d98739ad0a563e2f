"""One run of a job: an attempt at the version after the newest one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SnapshotError, StateConflictError, StoreError
from fencepost.lake.asking import in_driver
from fencepost.lake.files import Files, NewInput
from fencepost.lake.judge import Eviction
from fencepost.lake.kept_content import checked
from fencepost.lake.left_out import LeftOut
from fencepost.lake.plan import SHARDS, shards_for
from fencepost.lake.preparing import prepare
from fencepost.lake.run_report import RunReport, make_report
from fencepost.lake.schemas import from_text
from fencepost.lake.sources import InputOverride, open_source
from fencepost.lake.storage import ChangedError
from fencepost.lake.write import InPlace, Places
from fencepost.progress import Progress, ignore, show_rows
from fencepost.state.commit import commit, conflict, has_lost_race, recover
from fencepost.state.decision import ABANDONED, Checksums, Decision
from fencepost.state.disk import Disk
from fencepost.state.engine import Engine, LocalEngine, run_stage
from fencepost.state.hive import hive_folders
from fencepost.state.retention import release
from fencepost.state.scratch import FolderScratch, Scratch
from fencepost.telemetry import observe_run, observe_step

if TYPE_CHECKING:
    from fencepost.lake.job import DedupJob

T = TypeVar("T")
R = TypeVar("R")
TRIES = 3
"""Maximum number of times that a run is planned because a file changed between its two passes."""


class Run:
    """A run of a job and the data of its current attempt."""

    def __init__(
        self,
        job: DedupJob,
        progress: Progress | None = None,
        override: InputOverride | None = None,
    ) -> None:
        self.job = job
        self.override = override
        self.is_seed = override is not None and override.is_seed
        self.is_rebase = override is not None and override.is_rebase
        self.source = open_source(job, override)
        self.storage = self.source.storage
        self.progress = progress or ignore
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
        self.missing_changes: Counter[str] = Counter()
        """See `RunReport.missing_changes`."""

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
        """Finish a decided version, then run the next one."""
        return observe_run(self.about(), self.recover_and_go_on)

    def about(self) -> dict[str, str | int | float]:
        """Return the attributes of logs, spans and metrics."""
        position = (self.override.position if self.override else None) or {}
        stream = {f"fencepost.{name}": position[name] for name in ("query", "batch") if name in position}
        return {"fencepost.state": self.job.state.uri, "fencepost.source": self.source.place, **stream}

    def recover_and_go_on(self) -> RunReport:
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
                self.vanished.append(self.news.files.relative(str(error.path)))
            except StateConflictError:
                # In place, other writers may have changed the table before the decision was applied. The version is
                # then abandoned.
                is_decided = self.job.is_in_place and has_lost_race(self.job.state, self.version)
                is_given_up = is_decided and self.job.state.status(self.version) == ABANDONED
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
            decision, found, judged, written = prepare(self, self.news.files)
        except BaseException as error:
            self.discard()
            if isinstance(error, Exception) and has_lost_race(job.state, self.version):
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
        with suppress(OSError, StoreError):  # the version is finished; the next one removes what is left
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
            if version != self.version:  # it follows a run that has finished since: that one may have read this input
                raise conflict(job.state, self.version)
            self.recover()
        if self.before is None or self.before.version != version:
            raise conflict(job.state, version + 1)  # another run may have read this run's input
        return True

    def discard(self) -> None:
        """Remove what this attempt has prepared.

        What cannot be removed is collected later: another error may have ended the attempt, and that one counts.
        """
        with suppress(OSError, StoreError):
            if self.job.state.discard(self.version, self.attempt):
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
        rows: Callable[[R], int] | None = None,
    ) -> list[R]:
        """Return the results of the items' tasks. `rows`: the number of rows of a task, from its result."""
        engine, scratch = engine or self.engine, scratch or self.scratch
        finished: list[int] = []
        if rows is not None and engine.in_process:
            work = partial(_counted, work, rows, finished)

        def show(at: int, total: int) -> None:
            self.progress(step, at, total)
            if finished:
                show_rows(self.progress, sum(finished))

        with self.timed(step):
            began = time.perf_counter()
            done = run_stage(engine, step, work, items, scratch, show)
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
        with observe_step(step, self.job.state.uri):
            yield
        within = sum(self.seconds.values()) - before
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start - within

    @property
    def driver_seconds(self) -> float:
        """The driver's seconds, without waiting for tasks."""
        return time.perf_counter() - self.began - self.waited


def _counted(work: Callable[[T], R], rows: Callable[[R], int], finished: list[int], item: T) -> R:
    """Do the work of a task of this process, and add the number of its rows to those of the finished tasks."""
    result = work(item)
    finished.append(rows(result))
    return result
