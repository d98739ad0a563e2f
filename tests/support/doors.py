"""The interfaces that must follow the rules, with the same methods, so that tests run on each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

import pyarrow as pa

from support.reference import (
    Judged,
    ReferenceBatchError,
    ReferenceCapacityError,
    ReferencePolicyError,
    ReferenceTable,
    policy,
)
from support.rulebook import Action, Call, Case, Error, Missing, columns, to_arrow


class PolicyRefusedError(Exception):
    """The interface does not support such a table."""


class Door(Protocol):
    """One table. A call that is refused gives the error as a value."""

    def apply(self, call: Call) -> Judged | Error: ...

    def open(self) -> list[Missing]: ...

    def evict(self, now_ms: int, max_idle_ms: int) -> int | Error: ...

    def forget(self, pid: Any, partition: Any = None) -> int: ...

    def merge(self, other: Any) -> list[Missing] | Error:
        """Merge another table of the same interface. Returns the overlap."""

    def entries(self) -> list[tuple[Any, ...]]:
        """Pid, partition, epoch, first, last, holes (first, last, timestamp), final_first, final_last and
        last_timestamp of every entry, in key order."""

    def horizon(self) -> int | None: ...

    def rebuild(self, by: str) -> None:
        """Goes through a "snapshot" or through its "entries" and back."""

    def state(self) -> Any:
        """Equal before and after whatever must not change the table."""


def options_of(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a case that belong to the policy, and those that belong to the table."""
    fields = dict(case.fields)
    keep = fields.pop("keep", None)
    options = {name: fields.pop(name) for name in ("untracked", "entries_max") if name in fields}
    return fields, options | {"keep": (keep,) if keep else ()}


class ReferenceDoor:
    """The reference, so that the book and the reference are held against each other."""

    judge = ReferenceTable

    def __init__(self, case: Case) -> None:
        fields, options = options_of(case)
        try:
            self.table = self.judge(policy(case.policy, **fields), **options)
        except ReferencePolicyError as error:
            raise PolicyRefusedError from error

    def apply(self, call: Call) -> Judged | Error:
        return self._or_error(lambda: self.table.apply(call.rows, call.has_epoch))

    @staticmethod
    def _or_error(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ReferenceBatchError as error:
            return Error(error.column, error.row)
        except ReferencePolicyError:
            return Error("policy", None)
        except ReferenceCapacityError:
            return Error("capacity", None)

    def open(self) -> list[Missing]:
        return self.table.missing()

    def evict(self, now_ms: int, max_idle_ms: int) -> int | Error:
        return self._or_error(lambda: self.table.evict(now_ms, max_idle_ms))

    def forget(self, pid: Any, partition: Any = None) -> int:
        return self.table.forget(pid, partition)

    def merge(self, other: ReferenceDoor) -> list[Missing] | Error:
        return self._or_error(lambda: self.table.merge(other.table))

    def entries(self) -> list[tuple[Any, ...]]:
        return self.table.state()

    def horizon(self) -> int | None:
        return self.table.horizon

    def rebuild(self, by: str) -> None:
        self.table = copy.deepcopy(self.table)

    def state(self) -> Any:
        return repr((self.table.entries, self.table.kinds, self.table.horizon))


class FencepostDoor:
    """`fencepost.StateTable`, fed by Arrow. Every call is checked before it is applied, and both must agree."""

    def __init__(self, case: Case) -> None:
        import fencepost as fp

        self.fp = fp
        fields, options = options_of(case)
        try:
            chosen = fp.StateTable(case.policy).policy.replace(**fields)
            self.table = fp.StateTable(chosen, **options)
        except fp.PolicyError as error:
            raise PolicyRefusedError from error
        self.has_epochs = chosen.epochs != "ignore"

    def apply(self, call: Call) -> Judged | Error:
        rows, names = to_arrow(call), self.fp.Columns(**columns(call))
        before = self.state()
        checked = self._judged(self.table.check, rows, names)
        assert self.state() == before, "check changed the table"
        applied = self._judged(self.table.apply, rows, names)
        assert applied == checked, "check and apply disagree"
        return applied

    def _judged(self, method: Any, rows: pa.Table, names: Any) -> Judged | Error:
        verdicts = self._or_error(lambda: method(rows, columns=names))
        if isinstance(verdicts, Error):
            return verdicts
        assert len(verdicts) == rows.num_rows
        codes = pa.array(verdicts.verdict).to_pylist()
        return Judged(
            verdicts=[self.fp.Verdict(code).name for code in codes],
            expected=pa.array(verdicts.expected).to_pylist(),
            missing=missing_from_arrow(verdicts.missing, self.has_epochs),
            stale_epoch=verdicts.stale_epoch,
            border=getattr(verdicts, "border", None),
        )

    def _or_error(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self.fp.BatchError as error:
            return Error(error.column.partition("_")[0], error.row)
        except self.fp.PolicyError:
            return Error("policy", None)
        except self.fp.CapacityError:
            return Error("capacity", None)

    def open(self) -> list[Missing]:
        return missing_from_arrow(self.table.missing(), self.has_epochs)

    def evict(self, now_ms: int, max_idle_ms: int) -> int | Error:
        return self._or_error(lambda: self.table.evict(now_ms, max_idle_ms))

    def forget(self, pid: Any, partition: Any = None) -> int:
        return self.table.forget(pid, partition)

    def merge(self, other: FencepostDoor) -> list[Missing] | Error:
        before = self.state(), other.state()
        overlap = self._or_error(lambda: self.table.merge(other.table))
        assert other.state() == before[1], "a merge changed the other table"
        if isinstance(overlap, Error):
            assert self.state() == before[0], "a merge that was refused changed the table"
            return overlap
        return missing_from_arrow(overlap, self.has_epochs)

    def entries(self) -> list[tuple[Any, ...]]:
        return [
            (
                *(_part(row, "pid"), _part(row, "partition"), row["epoch"], row["first"], row["last"]),
                [tuple(hole.values()) for hole in row["holes"]],
                *(row["final_first"], row["final_last"], row["last_timestamp"]),
            )
            for row in pa.table(self.table.entries()).to_pylist()
        ]

    def horizon(self) -> int | None:
        return self.table.horizon_ms

    def rebuild(self, by: str) -> None:
        state = self.state()
        if by == "snapshot":
            self.table = self.fp.StateTable.restore(state)
        else:
            self.table = self.fp.StateTable.from_entries(self.table.entries())
        assert self.state() == state, f"lost on the way through {by}"

    def state(self) -> bytes:
        return self.table.snapshot()


def missing_from_arrow(stream: Any, has_epochs: bool) -> list[Missing]:
    """The results of `Verdicts.missing` and `StateTable.missing()`, in the format of the rule book.

    The value of the column epoch without epochs is not a rule.
    """
    return [
        Missing(
            pid=_part(row, "pid"),
            epoch=row["epoch"] if has_epochs else None,
            partition=_part(row, "partition"),
            first_seq=row["first_seq"],
            last_seq=row["last_seq"],
            count=row["count"],
        )
        for row in pa.table(stream).to_pylist()
    ]


def _part(row: dict[str, Any], role: str) -> Any:
    if role in row:
        return row[role]
    names = (f"{role}_{number}" for number in count())
    parts = []
    while (name := next(names)) in row:
        parts.append(row[name])
    return tuple(parts)


def final_of(door: Door) -> list[Missing]:
    """The final ranges of a table's entries, as positions."""
    ranges = [(entry[:3], entry[6], entry[7]) for entry in door.entries() if entry[6] is not None]
    return [Missing(pid, epoch, part, first, last, last - first + 1) for (pid, part, epoch), first, last in ranges]


class Tables:
    """The table of a case and, from `other` to `merge`, a second one to which everything is done."""

    def __init__(self, case: Case, door: type) -> None:
        self.case, self.door = case, door
        self.first, self.other = door(case), None

    @property
    def current(self) -> Any:
        return self.other or self.first

    def do(self, action: Action) -> Any:
        """What the action gives, errors as values; nothing for a table that is made."""
        arguments = action.arguments
        match action.name:
            case "evict":
                return self.current.evict(arguments["now"], arguments["idle"])
            case "forget":
                return self.current.forget(**arguments)
            case "merge":
                other, self.other = self.other, None
                return self.first.merge(other)
            case _:
                self.other = self.door(replace(self.case, **arguments))
                return None


def complaints(case: Case, door: type) -> list[str]:
    """Differences between an interface and the rule book. Empty if it follows the rules."""
    try:
        tables = Tables(case, door)
    except PolicyRefusedError:
        return [] if case.refused else [f"{case}: refused"]
    if case.refused:
        return [f"{case}: not refused"]
    found = []
    for step in case.steps:
        pairs = _of_call(tables.current, step) if isinstance(step, Call) else _of_action(tables, step)
        if step.error is None:
            pairs |= {"open": (step.open, tables.current.open()), "final": (step.final, final_of(tables.current))}
        where = f"{case.page}:{step.line}"
        found += [f"{where}, {what}: the book says {a}, found {b}" for what, (a, b) in pairs.items() if a != b]
    return found


Pairs = dict[str, tuple[Any, Any]]
"""What the book says and what was found, by what it is."""


def _of_action(tables: Tables, action: Action) -> Pairs:
    before = None if action.name in ("other", "merge") else tables.current.state()
    result = tables.do(action)
    if isinstance(result, Error) or action.error is not None:
        after = None if before is None else tables.current.state()
        return {"error": (action.error, result), "table": (before, after)}
    match action.name:
        case "evict":
            horizon = tables.current.horizon()
            return {"dropped": (action.dropped, result), "horizon": (action.horizon, horizon)}
        case "forget":
            return {"dropped": (action.dropped, result)}
        case "merge":
            return {"overlap": (action.overlap, result)}
        case _:
            return {}


def _of_call(table: Door, call: Call) -> Pairs:
    before = table.state()
    result = table.apply(call)
    if isinstance(result, Error) or call.error is not None:
        return {"error": (call.error, result), "table": (before, table.state())}
    pairs: Pairs = {
        f"row {number} {row.pid, row.epoch, row.partition, row.seq}": ((row.verdict, row.expected), found)
        for number, (row, found) in enumerate(
            zip(call.rows, zip(result.verdicts, result.expected, strict=True), strict=True)
        )
    }
    pairs |= {"missing": (call.missing, result.missing), "stale_epoch": (call.stale_epoch, result.stale_epoch)}
    # Not every door counts border decisions.
    return pairs | ({} if result.border is None else {"border": (call.border, result.border)})
