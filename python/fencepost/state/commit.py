"""How a version is committed: decided once, applied by anyone, then built upon.

    decide    one put-if-absent of the decision: from here on the version exists, whatever fails
    apply     an idempotent redo on the sink, which never reads the source
    finish    allow other versions to build on it

Every decision is applied, even without output, so that the sink has the same version numbers as the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fencepost.errors import StateConflictError, StoreError
from fencepost.state.decision import ABANDONED, Decision, Outputs
from fencepost.state.scratch import Scratch

if TYPE_CHECKING:
    from fencepost.state.versions import State

T = TypeVar("T")
R = TypeVar("R")
logger = logging.getLogger("fencepost.jobs")


class Tasks(Protocol):
    """Runs a stage of `Sink.apply`, such as on a job's engine."""

    def __call__(self, stage: str, work: Callable[[T], R], items: Sequence[T], /, *, scratch: Scratch) -> list[R]:
        """Return `work(item)` of each item, in order. Items are dataclasses of plain data.

        `work` is a module's function, or a `partial` of one, and may run more than once. `scratch`: where the stage's
        plan may be written. Raises the errors of tasks.
        """


def in_turn(_: str, work: Callable[[T], R], items: Sequence[T], /, *, scratch: Scratch) -> list[R]:
    """`Tasks` without an engine: one after the other, in this process."""
    return [work(item) for item in items]


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """The files of a version before its decision."""

    schemas: dict[bytes, str]
    """Maps serialized Arrow schemas to the path of a file with the schema."""
    folders: Iterable[str]
    """The Hive-style folders of all files."""
    bounds: list[dict[str, list[int]]]
    """Minimum and maximum of each file's integer columns by name, if its statistics contain them."""
    rule: Literal["strict", "merge"]
    """`DedupJob.schema`."""


class Sink(Protocol):
    """An output that shows versions. Every call may be repeated by anyone, even concurrently."""

    @property
    def layout(self) -> str:
        """The layout of its versions; one of `sinks.KINDS` if it can be opened by its location."""

    @property
    def has_schema(self) -> bool:
        """Whether it is a table with its own columns, so that `check_rows` needs the columns of the files."""

    @property
    def can_merge(self) -> bool:
        """Whether a run compares the columns of new files with `columns` before judging, and the decision records the
        result (`Decision.schema`). False for tables that compare columns in `check_rows`. Of these, a Delta table also
        accepts other columns (`NewRows.rule`)."""

    @property
    def location(self) -> str | Path:
        """Its location for messages."""

    def owner(self) -> str | None:
        """Return the id of the state that owns it; None if it is not claimed."""

    def check(self, state: State) -> None:
        """Raise SinkError for a sink of another state, SinkChangedError for one that lost versions. Changes nothing."""

    def probe(self, version: int, attempt: str) -> None:
        """Raise an error for storage that cannot keep the guarantees, before the state's first decision.

        Raises SinkError, StoreError.
        """

    def claim(self, state_id: str) -> None:
        """Record the owner, before its state's first decision. Raises SinkError if another state was first."""

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """Return the sink's current version for `Decision.sink_version`; None if it has no versions of its own.

        `before`: the newest applied version, whose rows and all earlier ones must still exist. Raises SinkChangedError
        if rows were reverted since.
        """

    def columns(self) -> Any:
        """Return the current columns, an Arrow schema. None if the state records them, or if there are none yet."""

    def columns_of(self, schema: Any) -> Any:
        """Return the columns of a file, an Arrow schema, with the types that the sink returns.

        Raises BatchError (column) for an unsupported type.
        """

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """Raise SinkError for files that the sink cannot take, before the decision. Changes nothing.

        Returns additional fields of `Decision.sink_version`.
        """

    def scratch(self, version: int, attempt: str) -> Scratch:
        """Return where an attempt's tasks write. All that an undecided attempt prepares for the sink is there."""

    def stage(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int, tasks: Tasks
    ) -> dict[str, Any]:
        """Let tasks work on the winning files before the decision.

        `winners`: maps final names to names in the scratch. `slots`: the approximate number of parallel tasks. Returns
        additional fields of `Decision.sink_version`.
        """

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """Separate the winning files from other files of tasks. Returns their location for `apply`
        (`Decision.prepared`).

        `winners`: maps final names to names in the scratch. Losing tasks may still be writing.
        """

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Apply a decided version. Returns APPLIED, or ABANDONED if it was fenced. Raises SinkChangedError.

        `tasks`: runs work that needs a request per file.
        """

    def fence(self, decision: Decision) -> str:
        """Make sure that a decided version is never shown. Returns ABANDONED, or APPLIED if it is shown already.

        Raises SinkChangedError if it is shown partially.
        """

    def names(self, decision: Decision) -> list[str]:
        """Return the locations of a version's outputs, relative to the sink."""

    def shown(self, decision: Decision) -> int:
        """Return the number of an applied version's output files that still exist."""

    def is_reverted(self, decision: Decision) -> bool:
        """Return whether the table was set back to before this applied version, which may have no output."""

    def changelog(self) -> Iterator[Any]:
        """Yield the remaining lines of `changelog.py`, of all versions, as tables. Raises SinkError."""

    def collect_garbage(self, done: int) -> None:
        """Remove leftovers of attempts at finished versions."""

    def fold(self, first: int, last: int) -> None:
        """Remove marks of applied versions that no reader needs. The state has folded the versions `first` to `last`.

        Marks of abandoned versions stay, because paused drivers must find them. Sinks keep all marks if, without its
        mark, they would show an applied version again or remove its rows.
        """


class SinkDefaults:
    """The members of `Sink` for which most sinks need nothing special."""

    def current_version(self, before: Decision | None) -> dict[str, Any] | None:
        """Return None: it has no versions of its own."""
        return None

    def columns(self) -> Any:
        """Return None: the state records the columns, or `check_rows` compares them."""
        return None

    def columns_of(self, schema: Any) -> Any:
        """Return the schema as it is: rows keep the types that they have in the files."""
        return schema

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """Accept every file."""
        return {}

    def stage(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int, tasks: Tasks
    ) -> dict[str, Any]:
        """Do nothing: the files are already on the same file system or in the same store."""
        return {}

    def is_reverted(self, decision: Decision) -> bool:
        """Return False: it has no history."""
        return False


def recover(state: State, sink: Sink, tasks: Tasks = in_turn) -> tuple[int, ...]:
    """Check the sink's owner, finish a decided version, and remove leftovers.

    Returns the version's number, if there was one. Afterwards `state.newest()` is current. Raises SnapshotError,
    SinkError, SinkChangedError.
    """
    unfinished = state.unfinished()
    # A crashed run may not have synced its last names. Sync them before acting on them.
    state.settle()
    sink.check(state)
    for version in unfinished:
        state.finish(version, sink.apply(state.version(version), tasks))
        clean_up(state, sink)
    state.renew_hint()
    return tuple(unfinished)


def clean_up(state: State, sink: Sink) -> None:
    """Remove leftovers of crashed and defeated attempts at the newest versions.

    Storage that refuses this fails no run: its version is finished. The next one, or a collection, removes them.
    """
    try:
        state.collect_leftovers()
        sink.collect_garbage(state.newest().done)
    except (OSError, StoreError) as error:
        logger.warning("%s: leftovers of attempts were not removed: %s", state.uri, error)


def commit(
    state: State,
    sink: Sink,
    decision: Decision,
    step: Callable[[str], AbstractContextManager[object]] = nullcontext,
    tasks: Tasks = in_turn,
) -> None:
    """Decide, apply and finish. Everything that the decision refers to must be durable. `step` wraps each step.

    Raises StateConflictError if another writer decided the version first, or abandoned this one. Raises StoreError if
    it is unknown whether the decision was written: then its files must stay, and the next run finds out.
    """
    with step("decide"):
        if not state.decide(decision):
            raise conflict(state, decision.version)
    with step("apply"):
        status = sink.apply(decision, tasks)
    with step("finish"):
        state.finish(decision.version, status)
        clean_up(state, sink)
    if status == ABANDONED:
        raise StateConflictError(
            f"{state.uri}: version {decision.version} was abandoned by another writer; nothing of it is visible. Run "
            "again"
        )


def conflict(state: State, version: int) -> StateConflictError:
    """Return the error for the slower of two writers."""
    return StateConflictError(
        f"{state.uri}: another run decided version {version} first. Nothing of this run is visible; run again"
    )


def has_lost_race(state: State, version: int) -> bool:
    """Return whether another writer has decided this version; False also if the state is not available."""
    try:
        return state.decided() >= version
    except (OSError, StoreError):
        return False
