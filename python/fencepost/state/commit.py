"""How a version comes to be: decided once, shown by anyone, then built upon.

    decide    one put-if-absent of the decision: from here on the version exists, whatever dies
    apply     an idempotent redo against the sink, which never reads the source
    finish    the version may be built upon

Every decision is applied, also one without output: what a sink shows is numbered like the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fencepost.errors import StateConflictError
from fencepost.state.decision import ABANDONED, Decision, Outputs, SideFiles
from fencepost.state.scratch import Scratch

if TYPE_CHECKING:
    from fencepost.state.versions import State

T = TypeVar("T")
R = TypeVar("R")


class Tasks(Protocol):
    """Runs a stage of `Sink.apply`, such as a job does on its engine."""

    def __call__(self, stage: str, work: Callable[[T], R], items: Sequence[T], /, *, scratch: Scratch) -> list[R]:
        """`work` of each item, in the order of the items, which are dataclasses of data. It is a function of a module,
        or a `partial` of one, and may run more than once. `scratch`: where the plan of a stage may lie.

        Raises what a task raises.
        """


def in_turn(_: str, work: Callable[[T], R], items: Sequence[T], /, *, scratch: Scratch) -> list[R]:
    """`Tasks` where there is no engine: one after the other, in this process."""
    return [work(item) for item in items]


@dataclass(frozen=True, kw_only=True)
class NewRows:
    """What is known of a version's files before it is decided."""

    schemas: dict[bytes, str]
    """Arrow schemas, serialized, to the path of a file that has it."""
    folders: Iterable[str]
    """The Hive-style folders of all."""
    bounds: list[dict[str, list[int]]]
    """For each file the lowest and highest value of its integer columns, by name, where its statistics tell."""
    rule: Literal["strict", "merge"]
    """`DedupJob.schema`."""


class Sink(Protocol):
    """Where versions are shown. All calls may be made again, by anyone, at the same time too."""

    @property
    def layout(self) -> str:
        """What its versions are shown by, one of `sinks.KINDS` where it can be opened by its place."""

    @property
    def has_schema(self) -> bool:
        """Whether it is a table with columns of its own, so that `check_rows` needs to know those of the files."""

    @property
    def can_merge(self) -> bool:
        """Whether a run compares the columns of new files with `columns` before it judges any row. The decision then
        says what they are afterwards (`Decision.schema`). False for tables that compare them in `check_rows`: of these,
        a Delta table takes other columns too (`NewRows.rule`)."""

    @property
    def location(self) -> str | Path:
        """What people know it by."""

    def check(self, state: State) -> None:
        """Refuse a sink that is not this state's, or no longer what it left behind. Changes nothing.

        Raises SinkError, SinkChangedError.
        """

    def probe(self, version: int, attempt: str) -> None:
        """Refuse storage on which what is promised here would not hold, before the state's first decision.

        Raises SinkError, StoreError.
        """

    def claim(self, state_id: str) -> None:
        """Say whose sink it is, before its state's first decision. Raises SinkError if another state was faster."""

    def look(self, before: Decision | None) -> dict[str, Any] | None:
        """What the sink is as of now, for `Decision.sink_version`; None where it has no versions of its own.

        `before`: the newest applied version, whose rows and those of all before must still be there. Raises
        SinkChangedError where somebody has taken rows back since.
        """

    def columns(self) -> Any:
        """Its columns as of now, an Arrow schema; None where the state notes them, or it has none yet."""

    def columns_of(self, schema: Any) -> Any:
        """The columns of a file, an Arrow schema, with the types that the sink gives back. Raises BatchError (column)
        for a type that it does not have."""

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """Refuse files that the sink cannot take, before anything is decided. Changes nothing.

        Gives what else the decision has to say of the sink (`Decision.sink_version`). Raises SinkError.
        """

    def scratch(self, version: int, attempt: str) -> Scratch:
        """Where an attempt's tasks write."""

    def staging(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int
    ) -> tuple[Callable[[Any], Any], list[Any]]:
        """What tasks are to do with the winning files before they are decided: a function of a module, and its items,
        for about so many slots. `winners`: final name to name in the scratch."""

    def staged(self, results: list[Any]) -> dict[str, Any]:
        """What the decision has to say of it, from what the tasks gave."""

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """Keep the winning files, final name to name in the scratch, apart from what else tasks have written or still
        write; gives their place for `apply` (`Decision.prepared`)."""

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Show a decided version. Gives APPLIED, or ABANDONED where it was fenced. Raises SinkChangedError.

        `tasks`: runs what takes a request for each file.
        """

    def fence(self, decision: Decision) -> str:
        """Make sure that a decided version is never shown. Gives ABANDONED, or APPLIED where it is shown already.

        Raises SinkChangedError where it is shown in part.
        """

    def names(self, decision: Decision) -> list[str]:
        """Where a version's outputs are, relative to the sink."""

    def shown(self, decision: Decision) -> int:
        """How many of an applied version's output files are still there."""

    def changelog(self) -> Iterator[Any]:
        """The lines of `changelog.py` that are still there, of all versions, as tables. Raises SinkError."""

    def prepare_changelog(self, version: int, attempt: str, lines: list[Any]) -> tuple[SideFiles, str]:
        """Prepare an attempt that shows these lines and nothing else: `Decision.side_files` and `prepared`."""

    def discard(self, version: int, attempt: str) -> None:
        """Remove what an attempt that was not decided has prepared here."""

    def collect_garbage(self, done: int) -> None:
        """Remove what attempts at versions that are done have left."""

    def fold(self, first: int, last: int) -> None:
        """Remove the marks of applied versions that no reader needs. `first` to `last`: the state has folded them.

        Marks of abandoned versions stay: a paused driver must find them. Sinks that would show an applied version
        again, or remove its rows, without its mark keep all marks.
        """


def recover(state: State, sink: Sink, tasks: Tasks = in_turn) -> tuple[int, ...]:
    """Check that the sink is the state's, finish the version that was decided and not done, and clean up behind it.

    Gives the version's number, if there was one. `state.seen()` is of now then. Raises SnapshotError, SinkError,
    SinkChangedError.
    """
    unfinished = state.unfinished()
    # What is acted upon must not be gone after a power loss: a run that died may not have waited for its last names.
    state.settle()
    sink.check(state)
    for version in unfinished:
        state.finish(version, sink.apply(state.version(version), tasks))
        clean_up(state, sink)
    state.renew_hint()
    return tuple(unfinished)


def clean_up(state: State, sink: Sink) -> None:
    """Remove what crashed and beaten attempts at the newest versions left."""
    state.collect_leftovers()
    sink.collect_garbage(state.seen().done)


def commit(
    state: State,
    sink: Sink,
    decision: Decision,
    step: Callable[[str], AbstractContextManager[object]] = nullcontext,
    tasks: Tasks = in_turn,
) -> None:
    """Decide, apply and finish. Everything that the decision names is durable already. `step` is entered for each.

    Raises StateConflictError where another writer decided the version first, or abandoned this one; StoreError where
    it is not known whether it was decided: then what it names must stay, and the next run will know.
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
            f"{state.uri}: version {decision.version} was abandoned by another writer; nothing of it is visible"
        )


def conflict(state: State, version: int) -> StateConflictError:
    """What the slower one of two writers is told."""
    return StateConflictError(
        f"{state.uri}: another run decided version {version} first; nothing of this one is visible, run again"
    )
