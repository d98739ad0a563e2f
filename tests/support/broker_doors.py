"""The interfaces that must follow the broker's rules, with the same methods, so that tests run on each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from support.broker_reference import Judged, ReferenceBatchError, ReferenceBroker, ReferencePolicyError
from support.broker_rulebook import Action, Call, Case, Entry, Error, Kept, to_arrow


class PolicyRefusedError(Exception):
    """The interface does not support such a table."""


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


class FencepostDoor:
    """`fencepost.BrokerTable`, fed by Arrow. Every call is checked before it is applied, and both must agree."""

    def __init__(self, case: Case) -> None:
        import fencepost as fp

        self.fp = fp
        try:
            self.table = fp.BrokerTable(**case.options)
        except fp.PolicyError as error:
            raise PolicyRefusedError from error

    def apply(self, call: Call) -> Judged | Error:
        batches = to_arrow(call)
        before = self.state()
        checked = self._or_error(lambda: self._judged(self.table.check(batches)))
        assert self.state() == before, "check changed the table"
        applied = self._or_error(lambda: self._judged(self.table.apply(batches)))
        assert applied == checked, "check and apply disagree"
        return applied

    def _judged(self, verdicts: Any) -> Judged:
        codes = pa.array(verdicts.verdict).to_pylist()
        assert len(verdicts) == len(codes)
        names = [self.fp.Verdict(code).name for code in codes]
        kept = [self.fp.Verdict(code).is_kept for code in codes]
        assert pa.array(verdicts.kept).to_pylist() == kept
        counted = {verdict.name: count for verdict, count in verdicts.counts.items() if count}
        assert counted == {name: names.count(name) for name in set(names)}
        expected = pa.array(verdicts.expected).to_pylist()
        return Judged(names, expected, pa.array(verdicts.offsets).to_pylist())

    def _or_error(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except self.fp.BatchError as error:
            return Error(error.column, error.row)
        except self.fp.PolicyError:
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
        found = [_entry(row) for row in pa.table(self.table.entries()).to_pylist()]
        assert len(self.table) == len(found)
        for entry in found:
            known = self.table.get(entry.pid, entry.partition)
            assert known is not None
            assert _entry(known) == entry, "get and entries disagree"
        return found

    def rebuild(self) -> None:
        state = self.state()
        self.table = self.fp.BrokerTable.restore(state)
        assert self.state() == state, "lost on the way through a snapshot"

    def state(self) -> bytes:
        return self.table.snapshot()


def _entry(row: dict[str, Any]) -> Entry:
    """An entry as `BrokerTable.entries` and `get` return it, in the words of the rule book."""
    first_offset = row["transaction_first_offset"]
    or_none = {None: -1}
    return Entry(
        pid=row["pid"],
        partition=row["partition"],
        epoch=row["epoch"],
        window=tuple(
            Kept(
                *(or_none.get(batch[name], batch[name]) for name in ("first_seq", "last_seq")),
                *(batch["first_offset"], batch["last_offset"]),
            )
            for batch in row["batches"]
        ),
        txn=("?" if first_offset is None else first_offset) if row["transaction_open"] else None,
        coordinator_epoch=or_none.get(row["coordinator_epoch"], row["coordinator_epoch"]),
        last_timestamp=or_none.get(row["last_timestamp"], row["last_timestamp"]),
    )


def complaints(case: Case, door: Callable[[Case], Door], spelt: str = "last_seq") -> list[str]:
    """Differences between an interface and the rule book. Empty if it follows the rules.

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
    """The entries that the action reports as dropped, or its error."""
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
