"""The doors behind which the broker's rules must hold, in one shape: what the tests ask is asked of each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

from broker_reference import Judged, ReferenceBatchError, ReferenceBroker, ReferencePolicyError
from broker_rulebook import Action, Call, Case, Entry, Error


class PolicyRefusedError(Exception):
    """The door does not make such a table."""


class Door(Protocol):
    """One table. A call that is refused gives the error as a value."""

    def apply(self, call: Call) -> Judged | Error: ...

    def evict(self, now: int) -> int | Error: ...

    def restart(self, now: int) -> None: ...

    def set_log_end(self, partition: int, offset: int) -> Error | None: ...

    def log_end(self, partition: int) -> int: ...

    def entries(self) -> list[Entry]: ...

    def rebuild(self) -> None:
        """Goes through a snapshot and back."""

    def state(self) -> Any:
        """Equal before and after whatever must not change the table."""


class ReferenceDoor:
    """The reference, so that the book and the reference are held against each other."""

    judge: type[ReferenceBroker] = ReferenceBroker

    def __init__(self, case: Case) -> None:
        try:
            self.table = self.judge(**case.options)
        except ReferencePolicyError as error:
            raise PolicyRefusedError from error

    def apply(self, call: Call) -> Judged | Error:
        checked = self._or_error(lambda: self.table.check(call.rows))
        applied = self._or_error(lambda: self.table.apply(call.rows))
        assert checked == applied, "check and apply disagree"
        return applied

    @staticmethod
    def _or_error(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ReferenceBatchError as error:
            return Error(error.column, error.row)
        except ReferencePolicyError:
            return Error("policy", None)

    def evict(self, now: int) -> int | Error:
        return self._or_error(lambda: self.table.evict(now))

    def restart(self, now: int) -> None:
        self.table.restart(now)

    def set_log_end(self, partition: int, offset: int) -> Error | None:
        return self._or_error(lambda: self.table.set_log_end(partition, offset))

    def log_end(self, partition: int) -> int:
        return self.table.log_end(partition)

    def entries(self) -> list[Entry]:
        return self.table.state()

    def rebuild(self) -> None:
        self.table = copy.deepcopy(self.table)

    def state(self) -> Any:
        return repr((self.table.entries, self.table.log_ends, self.table.has_times))


def complaints(case: Case, door: Callable[[Case], Door], spelt: str = "last_seq") -> list[str]:
    """What a door does otherwise than the book says. Empty for a door that keeps the rules.

    `spelt`: whether the sequences of a batch come as a "count" or as the "last_seq".
    """
    try:
        table = door(case)
    except PolicyRefusedError:
        return [] if case.refused else [f"{case}: refused"]
    if case.refused:
        return [f"{case}: not refused"]
    found = []
    for step in case.steps:
        pairs = _of_call(table, step.spelt(spelt)) if isinstance(step, Call) else _of_action(table, step)
        if step.entries is not None:
            pairs["entries"] = (step.entries, table.entries())
        for partition, offset in step.log_end.items():
            pairs[f"log end of {partition}"] = (offset, table.log_end(partition))
        where = f"{case.page}:{step.line}"
        found += [f"{where}, {what}: the book says {a}, found {b}" for what, (a, b) in pairs.items() if a != b]
    return found


Pairs = dict[str, tuple[Any, Any]]
"""What the book says and what was found, by what it is."""


def do(table: Door, action: Action) -> int | Error:
    """The entries that the action says it has dropped, or its error."""
    result = getattr(table, action.name)(**action.arguments)
    return result if action.name == "evict" or isinstance(result, Error) else 0


def _of_action(table: Door, action: Action) -> Pairs:
    before = table.state()
    result = do(table, action)
    if isinstance(result, Error) or action.error is not None:
        return {"error": (action.error, result), "table": (before, table.state())}
    return {"dropped": (action.dropped, result)}


def _of_call(table: Door, call: Call) -> Pairs:
    before = table.state()
    judged = table.apply(call)
    if isinstance(judged, Error) or call.error is not None:
        return {"error": (call.error, judged), "table": (before, table.state())}
    pairs: Pairs = {"batches": (len(call.rows), len(judged.verdicts))}
    for number, (row, *found) in enumerate(
        zip(call.rows, judged.verdicts, judged.expected, judged.offsets, strict=False)
    ):
        book = [row.verdict, row.expected, row.answered] if call.has_answers else [row.verdict, row.expected]
        what = f"batch {number} ({row.pid} e{row.epoch}: {row.base_seq}..{row.last_seq or row.count})"
        pairs[what] = (book, found[: len(book)])
    return pairs
