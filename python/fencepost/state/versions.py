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
from fencepost.errors import SnapshotError, StateConflictError, StoreError
from fencepost.state import folding, ledger, operations, retention
from fencepost.state.decision import (
    ABANDONED,
    APPLIED,
    DECIDED,
    FORMAT,
    FORMAT_FOLDED,
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
from fencepost.state.ledger import ArrowTable
from fencepost.state.segments import load_table, segments_folder
from fencepost.state.stores import TEMPORARIES, LocalStore, Store, check_exclusion, open_store

if TYPE_CHECKING:
    from fencepost.state.commit import Sink
    from fencepost.state.engine import Engine

READERS = 16  # threads that wait for a store where many small files are read
HINT = "hint"
"""The file that says where `State.look` begins."""
PROBES_MAX = 32
"""Versions behind the hint that are looked for one by one; if there are more, all are listed."""
DECISION_BYTES_MAX = 65_536  # what is larger goes to a body: some stores bound a conditional put
LISTS = ("inputs", "quarantined", "outputs", "marked", "side_files")
"""Fields of a decision with a line a file, which the next version does not need."""
# What a decision has from the one it goes on from, unless it says otherwise.
CARRIED = (
    *("shard_count", "shards", "checksums", "ledger", "listing", "deferred", "source_position", "clock_ms"),
    "horizon_ms",
    *("key_types", "schema", "oldest", "collected", "policy", "order_by"),
)


def open(
    uri: str | os.PathLike[str],
    *,
    sync: bool = True,
    options: Mapping[str, Any] | None = None,
    sink_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
) -> State:
    """The state at a path or URI, to look at or to mend. Raises SnapshotError where there is none, StoreError.

    `options`, `sink_options`: of the remote stores that state and sink are in, see `open_store`. `sync=False`: local
    files are not synced. `engine`: where the tasks of `reshard`, `evict`, `rollback` and `collect_garbage` run, threads
    of this process unless given; a `fencepost_spark.SparkEngine`, say.
    """
    state = State(open_store(uri, sync=sync, options=options), sink_options, engine)
    state.agreed()
    return state


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The newest versions at some moment."""

    done: int
    """The newest that was applied or abandoned; 0 before the first."""
    decided: int
    """The newest that was decided: the same, or the one after it."""
    mark: bytes | None
    """What `done/<done>` holds; None where it is missing."""
    hint: int | None = None
    """What the hint says; None where it did not help."""


class State:
    """A state, whether or not anything was decided in it yet."""

    def __init__(
        self, store: Store, sink_options: Mapping[str, Any] | None = None, engine: Engine | None = None
    ) -> None:
        """`engine`: where the tasks of operations run, threads of this process unless given."""
        self.store = store
        self.sink_options = sink_options
        self.engine = engine
        self._known: dict[tuple[str, bool], Decision] = {}
        """The two read last, by the hash of the log file and whether it is without its LISTS."""
        self._seen: Seen | None = None
        self._floor: int | None = None
        self._folded: Folded | None = None
        self._settings: Settings | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks get it without the engine that runs them."""
        return State, (self.store, self.sink_options)

    @property
    def uri(self) -> str:
        """Where it lies: an absolute path, or the URI of an object store, without a slash at its end."""
        return self.store.uri

    @property
    def path(self) -> Path:
        """Its folder. Raises TypeError for a state that is not local."""
        if not isinstance(self.store, LocalStore):
            raise TypeError(f"{self.uri}: not a local folder")
        return self.store.folder

    # What there is

    def settings(self) -> Settings | None:
        """What it was created for; None before the first decision. Raises SnapshotError."""
        if self._settings is None:
            try:
                data = self.store.read("state.json")
            except FileNotFoundError:
                if not self.decided():
                    return None
                data = self._read("state.json")  # it is put before the first decision, in this moment maybe
            self._settings = settings_from_json(data, self._place("state.json"))
        return self._settings

    def layout_at(self, sink: str) -> str | None:
        """How versions are shown at this place, if it is the one that the state was created for."""
        with suppress(FileNotFoundError):
            self._settings = settings_from_json(self.store.read("state.json"), self._place("state.json"))
        return self._settings.layout if self._settings is not None and self._settings.sink == sink else None

    def agreed(self) -> Settings:
        """What it was created for. Raises SnapshotError before the first decision."""
        settings = self.settings()
        if settings is None:
            raise SnapshotError(f"{self.uri}: not a fencepost state: there is no state.json", reason="no state.json")
        return settings

    def decided(self) -> int:
        """The newest version that was decided; 0 before the first."""
        return self.look().decided

    def done(self) -> int:
        """The newest version that is applied to the sink or abandoned; 0 before the first."""
        return self.look().done

    def look(self) -> Seen:
        """Find the newest versions: five requests, however many versions there are, once a run has put the hint."""
        self._seen = self._by_hint() or self._by_listing()
        if not self._seen.decided:
            self._settings = None  # the folder of another state, or of none any more
        return self._seen

    def seen(self) -> Seen:
        """What the last `look` has found: others may have decided and finished versions since."""
        return self._seen or self.look()

    def unfinished(self) -> range:
        """The versions that are decided and not done: one at most. Raises SnapshotError where files are gone."""
        seen = self.look()
        done, decided = seen.done, seen.decided
        if decided < done:
            raise self.damaged(f"log/{done}.json", f"missing, though version {done} is done")
        if done < decided - 1:
            done = self.done()  # another run may have finished it meanwhile
        if done < decided - 1:
            raise self.damaged(f"done/{decided - 1}", f"missing, though version {decided} is decided")
        return range(done + 1, decided + 1)

    def status(self, version: int) -> str:
        """APPLIED, ABANDONED, or DECIDED where it is neither yet. Raises SnapshotError for a version there is not."""
        return self._status(version, sha256(self._logged(version)), self._mark(version))

    def version(self, version: int) -> Decision:
        """What was decided as `version`. Raises SnapshotError where it or its link to the version before is damaged."""
        logged = self._logged(version)
        self._header(version, logged, self.log_hash(version - 1))
        return self._decision(version, logged)

    def builds_on(self, version: int) -> int:
        """`Decision.builds_on`, by the log alone: also of versions whose files were collected. 0 where it is folded."""
        return 0 if version <= self.known_floor() else int(self._summary(version)["builds_on"])

    def decided_ms(self, version: int) -> int:
        """`Decision.decided_ms`, by the log alone: also of versions whose files were collected."""
        return int(self._summary(version)["decided_ms"])

    def glance(self, version: int) -> Version:
        """What the log says of a version: also of one whose decision was collected. Raises SnapshotError where it is
        folded."""
        return self._glance(version, self._logged(version), self.log_hash(version - 1), self._mark(version))

    def is_collected(self, version: int) -> bool:
        """Whether no more than the log is left of a version, since none can go back to it any more."""
        if version <= self.known_floor():
            return True
        return self._is_collected(self._header(version, self._logged(version), self.log_hash(version - 1)))

    def files_of(self, version: int) -> set[str] | None:
        """The segment files that a version needs; None where its body was collected."""
        logged = self._logged(version)
        header = self._header(version, logged, self.log_hash(version - 1))
        return None if self._is_collected(header) else self._decision(version, logged, is_root=True).files()

    def bodies_of(self, version: int) -> list[str]:
        """The names of a version's body and root, if it has them, whether or not they were collected."""
        return _bodies(self._header(version, self._logged(version), self.log_hash(version - 1)))

    def head(self) -> tuple[int, Decision | None]:
        """(the number of the next version, the newest version that is applied: what the next one builds on).

        What it tells is durable: the next version may build on it.
        """
        return self._head(self.look(), is_root=False)

    def root(self) -> tuple[int, Decision | None]:
        """As `head`, by what the last `look` has found, and the decision without its LISTS where these are long."""
        return self._head(self.seen(), is_root=True)

    def _head(self, seen: Seen, *, is_root: bool) -> tuple[int, Decision | None]:
        self.settle()
        for version in range(seen.done, 0, -1):
            mark = seen.mark if version == seen.done else self._mark(version)
            logged = self._read(f"log/{version}.json", missing=f"missing, though version {version} is done")
            # It gives the hash of the log, whose link to the version before was checked when it was decided.
            if self._status(version, sha256(logged), mark) == APPLIED:
                return seen.done + 1, self._decision(version, logged, is_root=is_root)
        return seen.done + 1, None

    def latest(self) -> Decision | None:
        """The newest version that is applied."""
        return self.head()[1]

    def versions(self) -> list[Version]:
        """All versions that are not folded, oldest first, without their files; the chain of hashes is checked.

        Raises SnapshotError.
        """
        decided = self.decided()
        return self.glances(self.known_floor() + 1, decided)

    def glances(self, first: int, last: int) -> list[Version]:
        """What the log says of the versions from `first` to `last`; the chain of hashes is checked.

        Raises SnapshotError.
        """
        numbers = range(first, last + 1)
        with ThreadPoolExecutor(READERS) as pool:
            marks = list(pool.map(self._mark, numbers))  # first: a version may be finished meanwhile, not undone
            logs = pool.map(self._logged, numbers)
            found: list[Version] = []
            previous = self.log_hash(first - 1)
            for version, logged, mark in zip(numbers, logs, marks, strict=True):
                found.append(self._glance(version, logged, previous, mark))
                previous = sha256(logged)
        return found

    def folds(self) -> list[int]:
        """The versions up to which some were folded, as of now: the last one, and the one before."""
        return sorted(self._numbers(folding.FOLDER, r"(\d+)\.json"))

    def floor(self) -> int:
        """The newest version that is folded, as of now; 0 where none is."""
        self._floor = max(self.folds(), default=0)
        return self._floor

    def known_floor(self) -> int:
        """What `floor` has found when it was asked last: more may be folded since."""
        return self.floor() if self._floor is None else self._floor

    def check_not_folded(self, version: int) -> None:
        """Raises SnapshotError if the version is folded as of now."""
        if version <= self.floor():
            raise self._is_folded(version)

    def folded(self) -> Folded | None:
        """What is left of the versions that are folded, if any are. Raises SnapshotError."""
        floor = self.known_floor()
        name = f"{folding.FOLDER}/{floor}.json"
        if floor and (self._folded is None or self._folded.version != floor):
            try:
                self._folded = folding.folded_from_json(self.store.read(name), self._place(name))
            except FileNotFoundError:
                if self.floor() == floor:
                    raise self.damaged(name, "missing") from None
                return self.folded()  # later ones are folded meanwhile
        return self._folded if floor else None

    def history(self, last: int = 20) -> list[dict[str, Any]]:
        """What each of the newest versions did, the oldest first; those that are folded are left out."""
        from fencepost.state.history import explained

        return explained(self, last)

    def to_html(self, last: int = 100) -> str:
        """A page on the newest versions, as one file that loads nothing. Raises DependencyError without
        `fencepost[report]`."""
        from fencepost.state import history

        return history.page(history.about(self), history.explained(self, last)).to_html()

    def _repr_html_(self) -> str | None:
        from fencepost.pages.charts import is_installed
        from fencepost.state import history

        if not is_installed() or self.settings() is None:
            return None
        return history.page(history.about(self), history.explained(self, 100)).frame()

    def tables(self, version: int | None = None) -> Iterator[tuple[int, StateTable]]:
        """(shard, table) of the newest version that is applied, or of another one, shard by shard."""
        decision = self.latest() if version is None else self.version(version)
        settings = self.agreed()
        for shard in decision.shards if decision else ():
            yield shard.shard, self.table(decision, shard.shard, settings)

    def table(self, decision: Decision | None, shard: int, settings: Settings | None = None) -> StateTable:
        """The state of a shard after a version, ready for `segments.advance`; an empty table if it has none."""
        settings = settings or self.agreed()
        found = decision.shards.get(shard) if decision else None
        return load_table(
            self.store,
            found.pieces if found else (),
            settings.full_policy(),
            keep=settings.keep,
            horizon_ms=decision.horizon_ms if decision else None,
        )

    def missing(self) -> ArrowTable:
        """All ranges that are still missing, as `StateTable.missing` gives them, shard by shard."""
        return self._concat(StateTable.missing)

    def entries(self) -> ArrowTable:
        """All that is remembered, as `StateTable.entries` gives it, shard by shard."""
        return self._concat(StateTable.entries)

    def ledger(self, decision: Decision | None) -> ArrowTable:
        """The inputs that were read up to a version: path, bytes, mtime_ns, inode, etag."""
        return ledger.read_ledger(self.store, decision.ledger if decision else None)

    def check(self, wanted: Settings) -> None:
        """Refuse another use than the one it was created for. Raises SnapshotError naming the first difference."""
        settings = self.settings()
        if settings is not None:
            settings.check(wanted, self.uri)

    def shard_count(self, before: Decision | None, wanted: int | None, default: int) -> int:
        """Into how many parts the state is cut after `before`; `wanted` or else `default` where it is new.

        Raises SnapshotError if `wanted` is another number.
        """
        settings = self.settings()
        if settings is None:
            return wanted or default
        count = before.shard_count if before else settings.shards
        if wanted is not None and wanted != count:
            reason = f"it was created with shards {settings.shards!r}, this job has {wanted!r}"
            if count != settings.shards:
                reason = f"it has {count} shards since it was resharded, this job has {wanted!r}"
            raise SnapshotError(f"{self.uri}: {reason}; use that, or another state folder", reason=reason)
        return count

    # The four steps

    def settle(self) -> None:
        """Wait until the decisions that are there are durable, and what is said of them."""
        for folder in ("log", "done"):
            self.store.settle(folder)

    def extend_ledger(
        self, before: Decision | None, version: int, attempt: str, tables: Iterable[ArrowTable]
    ) -> LedgerFiles:
        """Prepare, for an attempt, the ledger that has the one `before` and the files of `ledger.file_table`s."""
        return ledger.extend_ledger(self.store, before.ledger if before else None, version, attempt, tables)

    def follow(self, version: int, before: Decision | None, attempt: str, **changes: Any) -> Decision:
        """The decision for `version` that goes on from `before` with these changes; both are from one `head`."""
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
        """What decision version + 1 must give as its `previous`."""
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
        """Write the settings unless they are there; gives those that count.

        Raises SnapshotError if they differ, StoreError where the store cannot tell two writers apart.
        """
        if self.settings() is None:
            check_exclusion(self.store)
            self.store.put("state.json", to_json(settings))
        stored = self.agreed()
        stored.check(settings, self.uri)
        return stored

    def decide(self, decision: Decision) -> bool:
        """Put the decision unless its version is decided already. False: another writer was first.

        A StoreError leaves it open whether it was put: what it names must stay until the next run has looked. So does
        one that says that the version is folded: whose it was nobody knows any more.
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
            # Durable before anything goes that it stands for: the name may be free because it is folded, or mine still.
            self.store.settle(folding.FOLDER)
            self.store.delete([name] if is_mine else [])
            raise StoreError(
                f"{self._place(name)}: version {decision.version} was finished and folded while this run was paused. "
                "Which run had decided it is not known any more; nothing is lost or shown twice: run again"
            )
        if is_mine:
            self._remember(data, decision)
        return is_mine

    def _put_root(self, decision: Decision, bytes_max: int) -> dict[str, Any]:
        """What the log says of a decision without its LISTS, where these are most of it."""
        root = to_json(dataclasses.replace(decision, **{name: type(getattr(decision, name))() for name in LISTS}))
        if len(root) > bytes_max:
            return {}
        name = f"body/{decision.version}-{sha256(root)}.json"
        self.store.put(name, root)
        return {"root": name, "root_sha256": sha256(root)}

    def finish(self, version: int, status: str = APPLIED) -> None:
        """Say that a version is applied to the sink, or abandoned. Raises StateConflictError if it is the other.

        Of a version that is folded nothing is left to say.
        """
        try:
            logged = self._logged(version)
        except SnapshotError:
            if version > self.known_floor():
                raise
            return
        done = {"format": FORMAT, "status": status, "decision": sha256(logged)}
        if not self.store.put(f"done/{version}", to_json(done)):
            raise StateConflictError(f"{self.uri}: version {version} is {self.status(version)}, not {status}")
        self._seen = None
        self._put_hint(version)

    def renew_hint(self) -> None:
        """Let the hint say what was seen, unless it does: a run may have died before it put it."""
        seen = self.seen()
        if seen.done and seen.hint != seen.done:
            self._put_hint(seen.done)

    def _put_hint(self, done: int) -> None:
        """Nothing is lost where that fails."""
        with suppress(OSError, StoreError):
            self.store.replace(HINT, to_json({"format": FORMAT, "done": done}))

    def discard(self, version: int, attempt: str) -> None:
        """Remove what an attempt that was not decided has prepared here: nothing refers to it."""
        self.store.clear(segments_folder(version, attempt))

    def collect_leftovers(self) -> None:
        """Remove what crashed and beaten attempts left of the two newest versions that are done. Later ones may be at
        work still; older ones are looked at by `collect_garbage`."""
        done = self.seen().done
        if done:
            self.settle()
            self.store.delete(self.orphans(range(max(done - 1, self.known_floor() + 1), done + 1)))

    # What people do to it (operations.py). All but `abandon`, and `collect_garbage` without `keep_versions`, make a
    # version.

    def rollback(self, version: int, *, accept_duplicates: bool = False, sink: Sink | None = None) -> Decision:
        """Go back to the state after `version`, by a new version that has it; 0 is the state before the first.

        What was read since is new again: the next run reads it once more, as far as it is still in the source. So the
        output files of the versions that are gone back over must be removed from the sink first, while their folders
        `run=<n>/` stay; or `accept_duplicates`, and those rows will be there twice. Where an earlier rollback is
        undone, the output files of the versions that count again must be there. Clock and horizon of
        evictions go back as well. Reads the whole state, a shard at a time, to make the list of missing ranges right
        (`_missing`), in tasks of the engine; the driver holds the ranges that are missing.

        `sink`: where versions are shown, the one in the settings unless given. Gives the decision of the new version.
        Raises SinkError where rows would be there twice or lost, or the sink is not this state's; SinkChangedError;
        SnapshotError where no such version was applied, or it is older than `Decision.oldest`; StateConflictError where
        a run was faster: nothing has changed then; StoreError.
        """
        return operations.rollback(self, version, accept_duplicates=accept_duplicates, sink=sink)

    def reshard(self, count: int, *, sink: Sink | None = None) -> Decision:
        """Cut the state into `count` parts, 1 to 262144, as a new version. Verdicts stay the same.

        More parts are smaller, and more tasks can judge beside each other: a task holds one at a time. Tasks
        of the engine take some parts each. Memory of a task: one part before and one after; the entries lie in a
        temporary folder of its machine between. Jobs that name another number of shards are
        refused from then on; those that name none take it.

        `sink`: where versions are shown, the one in the settings unless given. Gives the decision of the new version.
        Raises ValueError for a count that makes no sense; SnapshotError where no version is done yet, or a file is
        damaged; StateConflictError where a run was faster: nothing has changed then; SinkError, StoreError.
        """
        return operations.reshard(self, count, sink=sink)

    def evict(self, now_ms: int | None, max_idle_ms: int, *, sink: Sink | None = None) -> Decision:
        """Forget every key that was not written in the `max_idle_ms` before `now_ms`, as a new version.

        Both are milliseconds, `now_ms` since 1970 by the timestamps of the data; None for the state's own clock, which
        follows them from run to run. Rows at or below the horizon, which is `now_ms` less `max_idle_ms`, are FORGOTTEN
        from then on where nothing is known of them. The clock moves on to `now_ms` and does not fall: an earlier one
        than that is taken for it; only a rollback goes back to what it was. Runs forget too, but only in the shards
        that their rows fall into; this looks at all of them. `StateTable.evict` is the same for one table.

        `sink`: where versions are shown, the one in the settings unless given. Gives the decision of the new version;
        its `report` has `evicted`, the number of entries. Raises PolicyError where the state keeps no timestamps (its
        jobs have no `max_idle_ms`), where `now_ms` is None and its clock has not begun yet, or for a negative
        `max_idle_ms`; SnapshotError where no version is done yet, or a file is damaged; StateConflictError where a run
        was faster: nothing has changed then; SinkError, StoreError.
        """
        return operations.evict(self, now_ms, max_idle_ms, sink=sink)

    def collect_garbage(self, keep_versions: int | None = None, *, sink: Sink | None = None) -> int:
        """Remove what crashed and beaten attempts left, in state and sink; gives how many files of the state.

        `keep_versions`: from now on only the so many newest applied versions can be gone back to, at least 1. That is
        decided, as a version, unless it is so already, and the files that only older versions need are removed. Their
        output stays. What belongs to versions that are not done is never touched, so it may be called while jobs run.

        `sink`: where versions are shown, the one in the settings unless given. Raises ValueError for a number that
        makes no sense; SnapshotError where no version is done yet; StateConflictError where a run was faster; SinkError
        and StoreError.
        """
        return operations.collect_garbage(self, keep_versions, sink=sink)

    def abandon(self, version: int, *, sink: Sink | None = None) -> None:
        """Give up a version that was decided and cannot be shown: every run stops at it, whatever is tried.

        None of its rows will ever be shown, the sink is told first. Its inputs are new again, and the next version
        builds on the one before it. Nothing happens where it is abandoned already.

        `sink`: where versions are shown, the one in the settings unless given. Raises SnapshotError where there is no
        such version; StateConflictError where it is applied (`rollback` goes back behind it); SinkChangedError where a
        part of it is shown; SinkError, StoreError, and OSError where the sink cannot be written.
        """
        operations.abandon(self, version, sink=sink)

    # Files

    def orphans(self, versions: range) -> Iterator[str]:
        """What was left of versions that are done."""
        # Earlier versions of this package had temporaries beside what they became.
        beside = ("log", "done", "body") if versions.start <= self.known_floor() + 1 else ()
        for name in (name for folder in (TEMPORARIES, *beside) for name in self.store.list(folder)):
            match = re.match(rf"(?:{TEMPORARIES}/)?(?:log|done|body)[-/](\d+)", name)
            if name.endswith(TEMPORARY) and (match is None or int(match[1]) < versions.stop):
                yield name
        yield from self.store.list("probe")
        bodies = self.store.list("body")
        for version in versions:
            logged = self._logged(version)
            header = self._header(version, logged, self.log_hash(version - 1))
            named = _bodies(header)
            yield from (name for name in bodies if name.startswith(f"body/{version}-") and name not in named)
            segments = self.store.list(f"segments/{version}")
            winner = segments_folder(version, header["attempt"])
            yield from (name for name in segments if not name.startswith(f"{winner}/"))
            if any(name.startswith(f"{winner}/") for name in segments) and not self._is_collected(header):
                # Losing tasks of the winning attempt write there as well.
                files = self._decision(version, logged, is_root=True).files()
                yield from (name for name in segments if name.startswith(f"{winner}/") and name not in files)

    def _summary(self, version: int) -> dict[str, Any]:
        header = self._header(version, self._logged(version), self.log_hash(version - 1))
        told: dict[str, Any] = header.get("summary", header)
        return told

    def _is_collected(self, header: dict[str, Any]) -> bool:
        return "body" in header and not self.store.exists(header["body"])

    def _concat(self, part: Callable[[StateTable], Any]) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        tables = [pa.table(part(table)) for _, table in self.tables()]
        if not tables:
            if self.latest() is None:
                raise self.damaged("done", "no version is done yet")
            settings = self.agreed()
            tables = [pa.table(part(StateTable(settings.full_policy(), keep=settings.keep)))]
        # A table that holds nothing does not know its keys' types.
        tables = [it for it in tables if len(it)] or tables[:1]
        return pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(None)

    def _glance(self, version: int, logged: bytes, previous: str | None, mark: bytes | None) -> Version:
        header = self._header(version, logged, previous)
        if "body" in header:
            told = header["summary"]
        else:
            told = summary(decision_from_json(logged, self._place(f"log/{version}.json")))
        return Version(version=version, status=self._status(version, sha256(logged), mark), **told)

    def _mark(self, version: int) -> bytes | None:
        """What says that a version is over, if it is."""
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
            raise self.damaged(name, f"not of log/{version}.json as it is now, or of no known status")
        status: str = found["status"]
        return status

    def _place(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def damaged(self, name: str, reason: str) -> SnapshotError:
        """The error for a file of this state that is not as it should be."""
        return SnapshotError(f"{self._place(name)}: {reason}", reason=reason)

    def _by_hint(self) -> Seen | None:
        """None where there is no hint that helps: it is lost, damaged, ahead of what is done, or far behind.

        Only the log and the marks tell what is decided and done; the hint says where to begin to look for them. The
        floor is read last: what is above it now was not folded before.
        """
        try:
            done = hint = int(json.loads(self.store.read(HINT))["done"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        mark = self._mark(done)
        for _ in range(PROBES_MAX if mark is not None else 0):
            # In this order: what is done was decided before.
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
            # In this order: others may decide and finish meanwhile, and what is read first can only have grown since.
            done = max(self._numbers("done", r"(\d+)"), default=0)
            decided = max(self._numbers("log", r"(\d+)\.json"), default=0)
            mark = self._mark(done) if done else None
            if self.floor() < max(done, 1):
                return Seen(done=done, decided=decided, mark=mark)
        raise self.damaged("done", f"nothing behind version {self._floor} is there, up to which all are folded")

    def _decision(self, version: int, logged: bytes, *, is_root: bool = False) -> Decision:
        """What a log file has decided; see `root`."""
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
            raise self.damaged(place, f"it is version {decision.version}")
        self._remember(logged, decision, is_root=is_root)
        return decision

    def _remember(self, logged: bytes, decision: Decision, *, is_root: bool = False) -> None:
        known = [*self._known.items(), ((sha256(logged), is_root), decision)]
        self._known = dict(known[-2:])

    def _read_root(self, header: Mapping[str, Any]) -> bytes:
        """The body has all of it, and earlier versions of this package collect the root as rubbish."""
        with suppress(SnapshotError):
            return self._read(header["root"], header["root_sha256"])
        return self._read(header["body"], header["sha256"])

    def _numbers(self, folder: str, pattern: str) -> Iterator[int]:
        names = self.store.list(folder)
        return (int(match[1]) for name in names if (match := re.fullmatch(f"{folder}/{pattern}", name)))

    def _logged(self, version: int) -> bytes:
        name = f"log/{version}.json"
        if version > self.known_floor():
            with suppress(FileNotFoundError):
                return self.store.read(name)
            if version > self.floor():
                raise self.damaged(name, "missing")
        raise self._is_folded(version)

    def _is_folded(self, version: int) -> SnapshotError:
        reason = f"version {version} is folded: of versions 1 to {self._floor} only totals are left"
        return SnapshotError(f"{self.uri}: {reason}", reason=reason)

    def _header(self, version: int, logged: bytes, previous: str | None) -> dict[str, Any]:
        """The log's fields, after a look at its link to the version before."""
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
            raise self.damaged(name, f"its SHA-256 is {sha256(data)}, decided was {expected}")
        return data


def _bodies(header: Mapping[str, Any]) -> list[str]:
    return [header[name] for name in ("body", "root") if name in header]
