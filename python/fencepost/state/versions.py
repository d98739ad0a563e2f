"""A state: its decisions, its tables, its ledger."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencepost
from fencepost._native import StateTable
from fencepost.arrow import ArrowTable
from fencepost.errors import SnapshotError, StateConflictError, StoreError
from fencepost.progress import Progress, ignore, show_rows
from fencepost.report import Report
from fencepost.state import folding, history, ledger, operations, retention
from fencepost.state.decision import (
    ABANDONED,
    APPLIED,
    DECIDED,
    FORMAT,
    FORMAT_FOLDED,
    OF_STATE,
    Decision,
    LedgerFiles,
    Settings,
    Version,
    decision_from_json,
    fields_from_json,
    settings_from_json,
    sha256,
    summary,
    to_json,
)
from fencepost.state.disk import TEMPORARY
from fencepost.state.folding import Folded
from fencepost.state.segment_files import load_table, segments_folder
from fencepost.state.stores import TEMPORARIES, LocalStore, Store, check_exclusion, open_store

if TYPE_CHECKING:
    from fencepost.pages.page import Page
    from fencepost.state.commit import Sink
    from fencepost.state.engine import Engine

READERS = 16  # number of threads that wait for a store while reading many small files
HINT = "hint"
"""The file that says where `State.refresh` begins."""
PROBES_MAX = 32
"""Maximum number of versions after the hint to check one by one. If there are more, all are listed."""
DECISION_BYTES_MAX = 65_536  # larger decisions go to a body, because some stores limit conditional puts
LISTS = ("inputs", "quarantined", "outputs", "marked", "side_files")
"""Fields of a decision with one line per file, which the next version does not need."""
CARRIED = (*OF_STATE, "schema", "oldest", "collected", "policy")
"""Fields that a decision takes over from the previous one unless it sets them."""


def open(
    uri: str | os.PathLike[str],
    *,
    sync: bool = True,
    options: Mapping[str, Any] | None = None,
    sink_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
) -> State:
    """Open the state at a path or URI, to inspect or repair it.

    Args:
        uri: A path or URI.
        sync: False does not sync local files.
        options: Options of the state's remote store, see `open_store`.
        sink_options: Options of the sink's remote store.
        engine: Where the tasks of `reshard`, `evict`, `rollback` and `collect_garbage` run, such as a
            `fencepost_spark.SparkEngine`. Default: threads of this process.

    Raises:
        SnapshotError: There is no state.
        StoreError: The store is not available.
    """
    state = State(open_store(uri, sync=sync, options=options), sink_options, engine)
    state.require_settings()
    return state


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The newest versions at one moment."""

    done: int
    """The newest applied or abandoned version. 0 before the first."""
    decided: int
    """The newest decided version: the same, or the next one."""
    mark: bytes | None
    """Content of `done/<done>`. None if it is missing."""
    hint: int | None = None
    """Content of the hint. None if it was useless."""


class State(Report):
    """A state, possibly without any version."""

    def __init__(
        self, store: Store, sink_options: Mapping[str, Any] | None = None, engine: Engine | None = None
    ) -> None:
        """`engine`: where the tasks of operations run. Default: threads of this process."""
        self.store = store
        self.sink_options = sink_options
        self.engine = engine
        self._known: dict[tuple[str, bool], Decision] = {}
        """The last two decisions read, by the hash of the log file and whether LISTS are left out."""
        self._seen: Seen | None = None
        self._floor: int | None = None
        self._folded: Folded | None = None
        self._settings: Settings | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the engine, because tasks receive the state."""
        return State, (self.store, self.sink_options)

    @property
    def uri(self) -> str:
        """The absolute path, or the URI without a trailing slash."""
        return self.store.uri

    @property
    def path(self) -> Path:
        """The folder. Raises TypeError for a state that is not local."""
        if not isinstance(self.store, LocalStore):
            raise TypeError(f"{self.uri}: not a local folder")
        return self.store.folder

    # Content

    def settings(self) -> Settings | None:
        """Return the settings; None before the first decision. Raises SnapshotError."""
        if self._settings is None:
            try:
                data = self.store.read("state.json")
            except FileNotFoundError:
                if not self.decided():
                    return None
                data = self._read("state.json")  # it is put before the first decision, perhaps just now
            self._settings = settings_from_json(data, self._place("state.json"))
        return self._settings

    def layout_at(self, sink: str) -> str | None:
        """Return the layout of a sink's location, if the state was created for it."""
        with suppress(FileNotFoundError):
            self._settings = settings_from_json(self.store.read("state.json"), self._place("state.json"))
        return self._settings.layout if self._settings is not None and self._settings.sink == sink else None

    def require_settings(self) -> Settings:
        """Return the settings. Raises SnapshotError before the first decision."""
        settings = self.settings()
        if settings is None:
            raise SnapshotError(f"{self.uri}: not a fencepost state: there is no state.json", reason="no state.json")
        return settings

    def decided(self) -> int:
        """Return the newest decided version. 0 before the first."""
        return self.refresh().decided

    def done(self) -> int:
        """Return the newest version that is applied or abandoned. 0 before the first."""
        return self.refresh().done

    def refresh(self) -> Seen:
        """Find the newest versions. With a hint this takes five requests, for any number of versions."""
        self._seen = self._by_hint() or self._by_listing()
        if not self._seen.decided:
            self._settings = None  # the folder may have been deleted or replaced by another state's
        return self._seen

    def newest(self) -> Seen:
        """Return the result of the last `refresh`. Others may have decided and finished versions since."""
        return self._seen or self.refresh()

    def unfinished(self) -> range:
        """Return the versions that are decided and not finished, at most one. Raises SnapshotError if files are
        missing."""
        seen = self.refresh()
        done, decided = seen.done, seen.decided
        if decided < done:
            raise self.damaged(f"log/{done}.json", f"missing, but version {done} is done")
        if done < decided - 1:
            done = self.done()  # another run may have finished it in the meantime
        if done < decided - 1:
            raise self.damaged(f"done/{decided - 1}", f"missing, but version {decided} is decided")
        return range(done + 1, decided + 1)

    def status(self, version: int) -> str:
        """Return APPLIED, ABANDONED, or DECIDED if it is neither yet. Raises SnapshotError for a version that does not
        exist."""
        return self._status(version, sha256(self._logged(version)), self._mark(version))

    def version(self, version: int) -> Decision:
        """Return the decision of a version. Raises SnapshotError if it or its link to the one before is damaged."""
        logged, _ = self._log(version)
        return self._decision(version, logged)

    def builds_on(self, version: int) -> int:
        """Return `Decision.builds_on` from the log, also for collected versions. 0 if it is folded."""
        return 0 if version <= self.cached_floor() else int(self._summary(version)["builds_on"])

    def decided_ms(self, version: int) -> int:
        """Return `Decision.decided_ms` from the log, also for collected versions."""
        return int(self._summary(version)["decided_ms"])

    def summary(self, version: int) -> Version:
        """Return a version's summary from the log, even if it is collected. Raises SnapshotError if it is folded."""
        return self._glance(version, self._logged(version), self.log_hash(version - 1), self._mark(version))

    def is_collected(self, version: int) -> bool:
        """Return whether only the log of a version is left, because it no longer supports rollback."""
        if version <= self.cached_floor():
            return True
        return self._is_collected(self._log(version)[1])

    def files_of(self, version: int) -> set[str] | None:
        """Return the segment files that a version needs; None if its body was collected."""
        return self._files(version, *self._log(version))

    def decision_files(self, version: int) -> list[str]:
        """Return the names of a version's body and root, if it has them, collected or not."""
        return _bodies(self._log(version)[1])

    def head(self) -> tuple[int, Decision | None]:
        """Return (number of the next version, the newest applied version, on which the next one builds).

        The result is durable, so that the next version may build on it.
        """
        return self._head(self.refresh(), is_root=False)

    def root(self) -> tuple[int, Decision | None]:
        """As `head`, from the last `refresh`, and without the decision's LISTS if they are long."""
        return self._head(self.newest(), is_root=True)

    def _head(self, seen: Seen, *, is_root: bool) -> tuple[int, Decision | None]:
        self.settle()
        for version in range(seen.done, 0, -1):
            mark = seen.mark if version == seen.done else self._mark(version)
            logged = self._read(f"log/{version}.json", missing=f"missing, but version {version} is done")
            # `mark` contains the hash of the log, whose link to the version before was checked when it was decided.
            if self._status(version, sha256(logged), mark) == APPLIED:
                return seen.done + 1, self._decision(version, logged, is_root=is_root)
        return seen.done + 1, None

    def latest(self) -> Decision | None:
        """Return the newest applied version."""
        return self.head()[1]

    def versions(self) -> list[Version]:
        """Return all versions that are not folded, the oldest first, without their files. Checks the chain of hashes.

        Raises SnapshotError.
        """
        decided = self.decided()
        return self.summaries(self.cached_floor() + 1, decided)

    def summaries(self, first: int, last: int) -> list[Version]:
        """Return the summaries of the versions from `first` to `last`. Checks the chain of hashes.

        Raises SnapshotError.
        """
        numbers = range(first, last + 1)
        with ThreadPoolExecutor(READERS) as pool:
            # before the logs: a version may become finished in the meantime, but never unfinished
            marks = list(pool.map(self._mark, numbers))
            logs = pool.map(self._logged, numbers)
            found: list[Version] = []
            previous = self.log_hash(first - 1)
            for version, logged, mark in zip(numbers, logs, marks, strict=True):
                found.append(self._glance(version, logged, previous, mark))
                previous = sha256(logged)
        return found

    def folds(self) -> list[int]:
        """Return the last versions of the two newest folds."""
        return sorted(self._numbers(folding.FOLDER, r"(\d+)\.json"))

    def floor(self) -> int:
        """Return the newest folded version, as of now. 0 if there is none."""
        self._floor = max(self.folds(), default=0)
        return self._floor

    def cached_floor(self) -> int:
        """Return the last result of `floor`. More versions may be folded since."""
        return self.floor() if self._floor is None else self._floor

    def check_not_folded(self, version: int) -> None:
        """Raise SnapshotError if the version is folded as of now."""
        if version <= self.floor():
            raise self._is_folded(version)

    def folded(self) -> Folded | None:
        """Return the totals of the folded versions, if any. Raises SnapshotError."""
        floor = self.cached_floor()
        name = f"{folding.FOLDER}/{floor}.json"
        if floor and (self._folded is None or self._folded.version != floor):
            try:
                self._folded = folding.folded_from_json(self.store.read(name), self._place(name))
            except FileNotFoundError:
                if self.floor() == floor:
                    raise self.damaged(name, "missing") from None
                return self.folded()  # later versions were folded in the meantime
        return self._folded if floor else None

    def history(self, last: int = 20) -> list[dict[str, Any]]:
        """Describe the newest versions, the oldest first, without folded ones."""
        return history.explained(self, last)

    def to_html(self, last: int = 100) -> str:
        """Return a page on the newest versions as one HTML file that loads nothing else.

        Raises DependencyError if `fencepost[report]` is not installed, and SnapshotError if there is no state.
        """
        return self._page(last).to_html()

    def _page(self, last: int = 100) -> Page:
        from fencepost.pages.history import history_page

        self.require_settings()
        return history_page(history.about(self), history.explained(self, last))

    def _repr_html_(self) -> str | None:
        return None if self.settings() is None else super()._repr_html_()

    def tables(self, version: int | None = None) -> Iterator[tuple[int, StateTable]]:
        """Yield (shard, table) of the newest applied version, or of another one, shard by shard."""
        decision = self.latest() if version is None else self.version(version)
        settings = self.require_settings()
        for shard in decision.shards if decision else ():
            yield shard.shard, self.table(decision, shard.shard, settings)

    def table(self, decision: Decision | None, shard: int, settings: Settings | None = None) -> StateTable:
        """Return a shard's table after a version, ready for `segment_files.advance`; empty if it has none."""
        settings = settings or self.require_settings()
        found = decision.shards.get(shard) if decision else None
        return load_table(
            self.store,
            found.pieces if found else (),
            settings.full_policy(),
            keep=settings.keep,
            horizon_ms=decision.horizon_ms if decision else None,
        )

    def missing(self, progress: Progress | None = None) -> ArrowTable:
        """Return all missing ranges, as in `StateTable.missing`, shard by shard.

        Calls `progress("read", done, total)`, in shards (`fencepost.progress`).
        """
        return self._concat(StateTable.missing, progress or ignore)

    def entries(self, progress: Progress | None = None) -> ArrowTable:
        """Return all entries, as in `StateTable.entries`, shard by shard. `progress`: as in `missing`."""
        return self._concat(StateTable.entries, progress or ignore)

    def ledger(self, decision: Decision | None) -> ArrowTable:
        """Return the inputs up to a version, including quarantined ones: path, bytes, mtime_ns, inode, etag,
        footer_crc."""
        return ledger.read_ledger(self.store, decision.ledger if decision else None)

    def check(self, wanted: Settings) -> None:
        """Raise SnapshotError, naming every difference, if the state has other settings."""
        settings = self.settings()
        if settings is not None:
            settings.check(wanted, self.uri)

    def shard_count(self, before: Decision | None, wanted: int | None, default: int) -> int:
        """Return the number of shards after `before`; for a new state `wanted`, or else `default`.

        Raises SnapshotError if `wanted` is another number.
        """
        settings = self.settings()
        if settings is None:
            return wanted or default
        count = before.shard_count if before else settings.shards
        if wanted is not None and wanted != count:
            reason = f"it was created with shards {settings.shards!r}, but this job has {wanted!r}"
            if count != settings.shards:
                reason = f"it has {count} shards since it was resharded, but this job has {wanted!r}"
            raise SnapshotError(f"{self.uri}: {reason}. Use the value of the state, or leave out shards", reason=reason)
        return count

    # Steps of a commit

    def settle(self) -> None:
        """Make existing decisions and marks durable."""
        for folder in ("log", "done"):
            self.store.settle(folder)

    def extend_ledger(
        self, before: Decision | None, version: int, attempt: str, tables: Iterable[ArrowTable]
    ) -> LedgerFiles:
        """Write an attempt's ledger: the one of `before`, extended by the files of `ledger.file_table`s."""
        return ledger.extend_ledger(self.store, before.ledger if before else None, version, attempt, tables)

    def follow(self, version: int, before: Decision | None, attempt: str, **changes: Any) -> Decision:
        """Return the decision for `version`: that of `before` with these changes. `version` and `before` must come from
        the same call of `head`."""
        carried: dict[str, Any] = {}
        if before is not None:
            carried = {name: getattr(before, name) for name in CARRIED}
        own = {
            "version": version,
            "previous": self.log_hash(version - 1),
            "builds_on": before.version if before else 0,
            "attempt": attempt,
            "decided_ms": time.time_ns() // 1_000_000,
            "fencepost": fencepost.__version__,
        }
        fields = carried | own | changes
        if fields.get("oldest", 1) > 1:
            fields["format"] = FORMAT_FOLDED
        collected = fields.get("collected", 1)
        fields["breaks"] = retention.breaks_behind(self, before, version, fields["builds_on"], collected)
        return Decision(**fields)

    def log_hash(self, version: int) -> str | None:
        """Return the hash of a version's log entry, which is `previous` in the next decision. None for version 0."""
        if not version:
            return None
        try:
            return sha256(self._logged(version))
        except SnapshotError:
            folded = self.folded()
            if folded is None or folded.version != version:
                raise
            return folded.sha256

    def create(self, settings: Settings) -> Settings:
        """Write the settings if missing. Returns the settings that count.

        Raises SnapshotError if they differ, StoreError if the store cannot distinguish two writers.
        """
        if self.settings() is None:
            check_exclusion(self.store)
            self.store.put("state.json", to_json(settings))
        stored = self.require_settings()
        stored.check(settings, self.uri)
        return stored

    def decide(self, decision: Decision) -> bool:
        """Put the decision if its version is undecided. Returns False if another writer was first.

        After a StoreError it is unknown whether it was put: what it refers to must stay until the next run has checked.
        This includes the StoreError for a folded version, because its decision can no longer be read.
        """
        data = to_json(decision)
        if len(data) > DECISION_BYTES_MAX:
            body = f"body/{decision.version}-{sha256(data)}.json"
            self.store.put(body, data)
            header: dict[str, Any] = {it: getattr(decision, it) for it in ("format", "version", "previous", "attempt")}
            header |= {"summary": summary(decision)}
            header |= {"body": body, "sha256": sha256(data)} | self._put_root(decision, len(data) // 2)
            data = to_json(header)
        name = f"log/{decision.version}.json"
        is_mine = self.store.put(name, data)
        if decision.version <= self.floor():
            # Make the fold durable before removing this log entry: the name may be free because it was folded, or still
            # be ours.
            self.store.settle(folding.FOLDER)
            self.store.delete([name] if is_mine else [])
            raise StoreError(
                f"{self._place(name)}: version {decision.version} was finished while this run was paused, and "
                "its log entry was removed, so this run does not know who decided it. Nothing is lost or written "
                "twice: run again"
            )
        if is_mine:
            self._remember(data, decision)
        return is_mine

    def _put_root(self, decision: Decision, bytes_max: int) -> dict[str, Any]:
        """Return the log's record of a decision without its LISTS, if these are most of it."""
        root = to_json(dataclasses.replace(decision, **{name: type(getattr(decision, name))() for name in LISTS}))
        if len(root) > bytes_max:
            return {}
        name = f"body/{decision.version}-{sha256(root)}.json"
        self.store.put(name, root)
        return {"root": name, "root_sha256": sha256(root)}

    def finish(self, version: int, status: str = APPLIED) -> None:
        """Record that a version is applied to the sink, or abandoned. Raises StateConflictError if it is already
        recorded with the other status.

        Does nothing for a folded version.
        """
        try:
            logged = self._logged(version)
        except SnapshotError:
            if version > self.cached_floor():
                raise
            return
        done = {"format": FORMAT, "status": status, "decision": sha256(logged)}
        if not self.store.put(f"done/{version}", to_json(done)):
            raise StateConflictError(
                f"{self.uri}: another process finished version {version} as {self.status(version)}, not as {status}. "
                "Run again"
            )
        self._seen = None
        self._put_hint(version)

    def renew_hint(self) -> None:
        """Write the hint if it is outdated: a run may have died before writing it."""
        seen = self.newest()
        if seen.done and seen.hint != seen.done:
            self._put_hint(seen.done)

    def _put_hint(self, done: int) -> None:
        """Errors are ignored, because the hint is optional."""
        with suppress(OSError, StoreError):
            self.store.replace(HINT, to_json({"format": FORMAT, "done": done}))

    def discard(self, version: int, attempt: str) -> bool:
        """Remove what an attempt has prepared here. If the attempt has decided the version and the version is not
        abandoned, nothing is removed.

        Returns whether the sink may remove its files of the attempt, too. After a StateConflictError of `finish` or of
        a sink's function, the attempt may have decided the version.
        """
        try:
            logged = self.store.read(f"log/{version}.json")
        except FileNotFoundError:
            logged = None
        except (OSError, StoreError):
            return False  # the error that ends the attempt counts; what it has prepared is collected later
        log = {} if logged is None else fields_from_json(logged, self._place(f"log/{version}.json"))
        if log.get("attempt") == attempt and self.status(version) != ABANDONED:
            return False
        self.store.clear(segments_folder(version, attempt))
        return True

    def collect_leftovers(self) -> None:
        """Remove leftovers of crashed and defeated attempts at the two newest finished versions.

        Attempts at later versions may be in progress. `collect_garbage` handles older ones.
        """
        done = self.newest().done
        if done:
            self.settle()
            self.store.delete(self.orphans(range(max(done - 1, self.cached_floor() + 1), done + 1)))

    # Operations (operations.py). All except `abandon`, and `collect_garbage` without `keep_versions`, make a version.

    def rollback(
        self,
        version: int,
        *,
        accept_duplicates: bool = False,
        sink: Sink | None = None,
        progress: Progress | None = None,
    ) -> Decision:
        """Return to the state after `version`, as a new version. 0 is the state before the first version.

        Files that were read since become new again: the next run reads those that are still in the source. So first
        remove the output files of the versions after `version` from the sink, but keep their folders `run=<n>/`; or
        pass `accept_duplicates`, and these rows are duplicated. If this undoes an earlier rollback, the output files of
        the versions that count again must exist. The clock and horizon of evictions go back, too. The tasks read the
        whole state, a shard at a time, to correct the list of missing ranges (`_missing`); the driver holds the missing
        ranges.

        Args:
            version: The version to return to.
            accept_duplicates: Proceed although the sink contains rows of later versions.
            sink: The sink. Default: the one in the settings.
            progress: Called as progress(stage, done, total), in tasks (`fencepost.progress`).

        Returns:
            The decision of the new version.

        Raises:
            SinkError: Rows would be duplicated or lost, or the sink belongs to another state.
            SinkChangedError: The sink was changed.
            SnapshotError: The version was not applied, or is older than `Decision.oldest`.
            StateConflictError: A run decided first. Nothing has changed.
            StoreError: A store is not available.
        """
        return operations.rollback(self, version, accept_duplicates=accept_duplicates, sink=sink, progress=progress)

    def reshard(self, count: int, *, sink: Sink | None = None, progress: Progress | None = None) -> Decision:
        """Change the number of shards to `count`, as a new version. Verdicts do not change.

        More shards are smaller, and allow more parallel judge tasks, each of which holds one shard at a time. Each task
        of this operation handles some shards, with one old and one new shard in memory, and entries in a temporary
        folder of its machine. Jobs that pass another number of shards are refused from then on.

        Args:
            count: The new number of shards, 1 to 262144.
            sink: The sink. Default: the one in the settings.
            progress: Called as progress(stage, done, total), in tasks (`fencepost.progress`).

        Returns:
            The decision of the new version.

        Raises:
            ValueError: Invalid count.
            SnapshotError: No version is finished yet, or a file is damaged.
            StateConflictError: A run decided first. Nothing has changed.
            SinkError, StoreError: The sink or a store is not usable.
        """
        return operations.reshard(self, count, sink=sink, progress=progress)

    def evict(
        self, now_ms: int | None, max_idle_ms: int, *, sink: Sink | None = None, progress: Progress | None = None
    ) -> Decision:
        """Forget every key that was idle for `max_idle_ms` before `now_ms`, as a new version.

        Rows at or below the horizon are FORGOTTEN from then on if the state knows nothing about them. The horizon is
        `now_ms` - `max_idle_ms`, unless it is already higher. The clock of the state advances to `now_ms`. If `now_ms`
        is before the clock, the time of the clock is used instead: only a rollback or a rebase sets it back. Runs
        forget too, but only in the shards of their rows; this operation processes all shards. `StateTable.evict` does
        the same for one table.

        Args:
            now_ms: Milliseconds since 1970, by the timestamps of the data. None: the clock of the state, which follows
                these timestamps.
            max_idle_ms: Milliseconds.
            sink: The sink. Default: the one in the settings.
            progress: Called as progress(stage, done, total), in tasks (`fencepost.progress`).

        Returns:
            The decision of the new version. Its `report` contains `evicted`, the number of forgotten entries.

        Raises:
            PolicyError: The state keeps no timestamps (its jobs have no `max_idle_ms`), its clock has not started,
                `max_idle_ms` is negative, or `now_ms` has more than 64 bits.
            SnapshotError: No version is finished yet, or a file is damaged.
            StateConflictError: A run decided first. Nothing has changed.
            SinkError, StoreError: The sink or a store is not usable.
        """
        return operations.evict(self, now_ms, max_idle_ms, sink=sink, progress=progress)

    def collect_garbage(
        self, keep_versions: int | None = None, *, sink: Sink | None = None, progress: Progress | None = None
    ) -> int:
        """Remove leftovers of crashed and defeated attempts, in state and sink. Returns the number of removed state
        files.

        Safe while jobs run: files of unfinished versions are kept.

        Args:
            keep_versions: Support rollback only for this number of newest applied versions, at least 1. Decides this as
                a version, if necessary, and removes files that only older versions need. Their output stays.
            sink: The sink. Default: the one in the settings.
            progress: Called as progress(stage, done, total), in tasks (`fencepost.progress`).

        Raises:
            ValueError: Invalid `keep_versions`.
            SnapshotError: No version is finished yet.
            StateConflictError: A run decided first.
            SinkError, StoreError: The sink or a store is not usable.
        """
        return operations.collect_garbage(self, keep_versions, sink=sink, progress=progress)

    def abandon(self, version: int, *, sink: Sink | None = None) -> None:
        """Abandon a version that is decided but can never be applied. As long as it is not abandoned, every run stops
        at it.

        Its rows will never be shown: the sink is fenced first. Its inputs become new again, and the next version builds
        on the one before it. Rows of inputs that are no longer in the source are lost. Does nothing if it is already
        abandoned.

        Args:
            version: The version.
            sink: The sink. Default: the one in the settings.

        Raises:
            SnapshotError: There is no such version.
            StateConflictError: It is applied. Use `rollback`.
            SinkChangedError: A part of it is shown.
            SinkError: The sink belongs to another state, or is not usable.
            StoreError, OSError: The sink or a store is not usable.
        """
        operations.abandon(self, version, sink=sink)

    # Files

    def orphans(self, versions: range) -> Iterator[str]:
        """Yield leftovers of finished versions."""
        # Earlier versions of this package had temporaries beside final files.
        beside = ("log", "done", "body") if versions.start <= self.cached_floor() + 1 else ()
        for name in (name for folder in (TEMPORARIES, *beside) for name in self.store.list(folder)):
            match = re.match(rf"(?:{TEMPORARIES}/)?(?:log|done|body)[-/](\d+)", name)
            if name.endswith(TEMPORARY) and (match is None or int(match[1]) < versions.stop):
                yield name
        yield from self.store.list("probe")
        bodies = self.store.list("body")
        for version in versions:
            logged, header = self._log(version)
            named = _bodies(header)
            yield from (name for name in bodies if name.startswith(f"body/{version}-") and name not in named)
            segments = self.store.list(f"segments/{version}")
            winner = segments_folder(version, header["attempt"])
            yield from (name for name in segments if not name.startswith(f"{winner}/"))
            mine = [name for name in segments if name.startswith(f"{winner}/")]
            files = self._files(version, logged, header) if mine else None
            if files is not None:
                # Losing tasks of the winning attempt also write there.
                yield from (name for name in mine if name not in files)

    def _summary(self, version: int) -> dict[str, Any]:
        _, header = self._log(version)
        fields: dict[str, Any] = header.get("summary", header)
        return fields

    def _is_collected(self, header: dict[str, Any]) -> bool:
        return "body" in header and not self.store.exists(header["body"])

    def _files(self, version: int, logged: bytes, header: dict[str, Any]) -> set[str] | None:
        """Return the segment files that a version needs; None if its body was collected."""
        if self._is_collected(header):
            return None
        try:
            return self._decision(version, logged, is_root=True).files()
        except SnapshotError:
            if self._is_collected(header):  # another run has removed it in the meantime
                return None
            raise

    def _concat(self, part: Callable[[StateTable], Any], progress: Progress) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        latest, tables, rows = self.latest(), [], 0
        progress("read", 0, len(latest.shards) if latest else 0)
        for _, table in self.tables():
            tables.append(pa.table(part(table)))
            rows += len(tables[-1])
            progress("read", len(tables), len(latest.shards) if latest else 0)
            show_rows(progress, rows)
        if not tables:
            if latest is None:
                raise self.damaged("done", "no version is done yet: run the job first")
            settings = self.require_settings()
            tables = [pa.table(part(StateTable(settings.full_policy(), keep=settings.keep)))]
        # An empty table does not know the types of its keys.
        tables = [it for it in tables if len(it)] or tables[:1]
        return pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(None)

    def _glance(self, version: int, logged: bytes, previous: str | None, mark: bytes | None) -> Version:
        header = self._header(version, logged, previous)
        if "body" in header:
            fields = header["summary"]
        else:
            fields = summary(decision_from_json(logged, self._place(f"log/{version}.json")))
        return Version(version=version, status=self._status(version, sha256(logged), mark), **fields)

    def _mark(self, version: int) -> bytes | None:
        """Return the mark of a finished version; None if it is not finished."""
        try:
            return self.store.read(f"done/{version}")
        except FileNotFoundError:
            return None

    def _status(self, version: int, log_hash: str | None, mark: bytes | None) -> str:
        if mark is None:
            return DECIDED
        name = f"done/{version}"
        found = fields_from_json(mark, self._place(name))
        if found.get("decision") != log_hash or found.get("status") not in (APPLIED, ABANDONED):
            raise self.damaged(name, f"does not match log/{version}.json, or has an unknown status")
        status: str = found["status"]
        return status

    def _place(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def damaged(self, name: str, reason: str) -> SnapshotError:
        """Return the error for an invalid file of this state."""
        return SnapshotError(f"{self._place(name)}: {reason}", reason=reason)

    def _by_hint(self) -> Seen | None:
        """Find the versions by the hint; None if it is missing, damaged, ahead, or far behind.

        Only the log and the marks decide; the hint only says where to begin. The floor is read last, so what is above
        it now was not folded before.
        """
        try:
            done = hint = int(json.loads(self.store.read(HINT))["done"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        mark = self._mark(done)
        for _ in range(PROBES_MAX if mark is not None else 0):
            # In this order: what is finished was decided before.
            following = self._mark(done + 1)
            is_decided = self.store.exists(f"log/{done + 1}.json")
            if following is None:
                is_folded = self.floor() >= done
                return None if is_folded else Seen(done=done, decided=done + is_decided, mark=mark, hint=hint)
            if not is_decided:
                return None
            done, mark = done + 1, following
        return None

    def _by_listing(self) -> Seen:
        for _ in range(2):
            # In this order: others may decide and finish in the meantime, so the earlier result can only be too small.
            done = max(self._numbers("done", r"(\d+)"), default=0)
            decided = max(self._numbers("log", r"(\d+)\.json"), default=0)
            mark = self._mark(done) if done else None
            if self.floor() < max(done, 1):
                return Seen(done=done, decided=decided, mark=mark)
        raise self.damaged("done", f"versions up to {self._floor} are folded, but all later versions are missing")

    def _decision(self, version: int, logged: bytes, *, is_root: bool = False) -> Decision:
        """Return the decision in a log file; see `root`."""
        place = f"log/{version}.json"
        header = fields_from_json(logged, self._place(place))
        is_root = is_root and "root" in header
        known = self._known.get((sha256(logged), False)) or self._known.get((sha256(logged), is_root))
        if known is not None:
            return known
        data = logged
        if "body" in header:
            data = self._read_root(header) if is_root else self._read(header["body"], header["sha256"])
        decision = decision_from_json(data, self._place(place))
        if decision.version != version:
            raise self.damaged(place, f"it contains version {decision.version} instead of {version}")
        self._remember(logged, decision, is_root=is_root)
        return decision

    def _remember(self, logged: bytes, decision: Decision, *, is_root: bool = False) -> None:
        known = [*self._known.items(), ((sha256(logged), is_root), decision)]
        self._known = dict(known[-2:])

    def _read_root(self, header: Mapping[str, Any]) -> bytes:
        """Read the body, which contains everything, because earlier versions of this package remove the root as
        garbage."""
        with suppress(SnapshotError):
            return self._read(header["root"], header["root_sha256"])
        return self._read(header["body"], header["sha256"])

    def _numbers(self, folder: str, pattern: str) -> Iterator[int]:
        names = self.store.list(folder)
        return (int(match[1]) for name in names if (match := re.fullmatch(f"{folder}/{pattern}", name)))

    def _logged(self, version: int) -> bytes:
        name = f"log/{version}.json"
        if version > self.cached_floor():
            with suppress(FileNotFoundError):
                return self.store.read(name)
            if version > self.floor():
                raise self.damaged(name, "missing")
        raise self._is_folded(version)

    def _is_folded(self, version: int) -> SnapshotError:
        reason = f"version {version} is folded: of versions 1 to {self._floor} only totals are kept"
        return SnapshotError(f"{self.uri}: {reason}", reason=reason)

    def _log(self, version: int) -> tuple[bytes, dict[str, Any]]:
        """Return the log file of a version and its fields, after checking its link to the version before."""
        logged = self._logged(version)
        return logged, self._header(version, logged, self.log_hash(version - 1))

    def _header(self, version: int, logged: bytes, previous: str | None) -> dict[str, Any]:
        """Return the log's fields, after checking its link to the version before."""
        name = f"log/{version}.json"
        header = fields_from_json(logged, self._place(name))
        if "previous" not in header or "attempt" not in header:
            reason = "not a file of a fencepost state (KeyError: 'previous')"
            raise self.damaged(name, reason)
        if header["previous"] != previous:
            raise self.damaged(name, f"it does not follow from log/{version - 1}.json, which has changed since")
        return header

    def _read(self, name: str, expected: str | None = None, missing: str = "missing") -> bytes:
        try:
            data = self.store.read(name)
        except FileNotFoundError:
            raise self.damaged(name, missing) from None
        if expected is not None and sha256(data) != expected:
            raise self.damaged(name, f"its SHA-256 is {sha256(data)}, but the decision names {expected}")
        return data


def _bodies(header: Mapping[str, Any]) -> list[str]:
    return [header[name] for name in ("body", "root") if name in header]
