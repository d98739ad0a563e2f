"""A naive judge of produce batches, written from the rules and from nothing else.

A dict of entries, each a list of batches; every question is answered by looking at all of them. Each method can be read
beside the rule it states, and each is one that a broken judge gets wrong (`tests/support/broker_mutants.py`). It shares
no code with the product.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.broker_rulebook import MAX, SEQUENCES, Entry, Kept, Row

VERSIONS = ("2.4", "2.5", "2.6", "2.7", "2.8", *(f"3.{minor}" for minor in range(10)), *(f"4.{it}" for it in range(6)))
NOTHING = -1


class ReferencePolicyError(Exception):
    """No such broker."""


class ReferenceBatchError(Exception):
    """The call is not one of batches."""

    def __init__(self, column: str, row: int | None) -> None:
        super().__init__(f"column '{column}', row {row}")
        self.column, self.row = column, row


class Batch(NamedTuple):
    """A row whose columns were found to make sense. A marker has neither sequences nor records."""

    kind: str
    origin: str
    pid: int
    partition: int
    epoch: int
    first: int
    last: int
    # One less than the offsets it takes.
    delta: int
    # Its first offset, None where the row has none.
    offset: int | None
    timestamp: int
    transactional: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass
class State:
    """What is remembered of a producer in a partition. `txn`: the first offset of the open transaction."""

    epoch: int = NOTHING
    window: list[Kept] = field(default_factory=list)
    is_open: bool = False
    txn: int | None = None
    coordinator_epoch: int = NOTHING
    last_timestamp: int = NOTHING


@dataclass
class Judged:
    """What one call gives, a value for each batch."""

    verdicts: list[str] = field(default_factory=list)
    expected: list[int | None] = field(default_factory=list)
    offsets: list[int | None] = field(default_factory=list)


class ReferenceBroker:
    """`fencepost.BrokerTable`, slowly."""

    def __init__(
        self,
        *,
        version: str = "4.3",
        window: int = 5,
        first: str = "any",
        offsets: str = "given",
        max_idle_ms: int = 86_400_000,
    ) -> None:
        if version not in VERSIONS or window < 1 or max_idle_ms < 0:
            raise ReferencePolicyError(f"{version} {window} {max_idle_ms}")
        if first not in ("any", "zero") or offsets not in ("given", "assign"):
            raise ReferencePolicyError(f"{first} {offsets}")
        self.version = tuple(int(part) for part in version.split("."))
        self.window, self.first, self.assigns, self.max_idle_ms = window, first, offsets == "assign", max_idle_ms
        self.entries: dict[tuple[int, int], State] = {}
        self.log_ends: dict[int, int] = {}
        # Whether any accepted batch had a timestamp.
        self.has_times = False

    # Changes

    def apply(self, rows: list[Row]) -> Judged:
        batches = [self.read(number, row) for number, row in enumerate(rows)]
        judged = Judged()
        for batch in batches:
            verdict, expected, offset = self.judge(batch)
            self.has_times |= verdict == "ACCEPTED" and batch.timestamp != -1
            judged.verdicts.append(verdict)
            judged.expected.append(expected)
            judged.offsets.append(offset)
        return judged

    def evict(self, now: int) -> int:
        if self.entries and not self.has_times:
            raise ReferencePolicyError("nobody can be idle without timestamps")
        idle = [key for key, state in self.entries.items() if self.is_idle(state, now)]
        for key in idle:
            del self.entries[key]
        return len(idle)

    def is_idle(self, state: State, now: int) -> bool:
        return now - state.last_timestamp >= self.max_idle_ms and not state.is_open

    def restart(self, now: int) -> None:
        if self.has_times:
            self.evict(now)
        for state in self.entries.values():
            state.window = state.window[-1:]

    def set_log_end(self, partition: int, offset: int) -> None:
        if not self.follows_logs() or offset < 0:
            raise ReferencePolicyError(f"{offset}")
        self.log_ends[partition] = offset

    # Questions

    def check(self, rows: list[Row]) -> Judged:
        return copy.deepcopy(self).apply(rows)

    def log_end(self, partition: int) -> int:
        return self.log_ends.get(partition, 0)

    def state(self) -> list[Entry]:
        return [
            Entry(
                pid=pid,
                partition=partition,
                epoch=state.epoch,
                window=tuple(state.window),
                txn=("?" if state.txn is None else state.txn) if state.is_open else None,
                coordinator_epoch=state.coordinator_epoch,
                last_timestamp=state.last_timestamp,
            )
            for (pid, partition), state in sorted(self.entries.items())
        ]

    # One row, read

    def read(self, number: int, row: Row) -> Batch:
        def demand(column: str, holds: bool) -> None:
            if not holds:
                raise ReferenceBatchError(column, number)

        demand("control", row.control in (None, "commit", "abort", "empty", "other"))
        demand("origin", row.origin in (None, "client", "replica", "coordinator"))
        origin = row.origin or ("client" if row.control is None else "coordinator")
        demand("origin", row.control in (None, "other") or origin != "client")
        kind = {None: "data", "commit": "marker", "abort": "marker"}.get(row.control, "empty")

        demand("pid", row.pid is None or row.pid >= -1)
        is_tracked = row.pid not in (None, -1)
        demand("transactional", is_tracked or not row.transactional)
        demand("control", is_tracked or row.control in (None, "other"))
        kind = kind if is_tracked else "untracked"
        in_a_partition = row.partition is not None and 0 <= row.partition <= MAX
        demand("partition", in_a_partition or not (is_tracked or self.follows_logs()))
        demand("epoch", not is_tracked or (row.epoch is not None and 0 <= row.epoch < 2**15))
        demand("coordinator_epoch", row.coordinator_epoch is None or row.coordinator_epoch >= -1)

        first, last = NOTHING, NOTHING
        reads_offsets = self.takes_offsets(origin) and (is_tracked or self.assigns)
        if kind == "data":
            first, last, delta = self.sequences(row, origin, demand)
        elif row.control is not None:
            delta = 0
        elif reads_offsets and row.offset is not None and row.last_offset is not None:
            delta = row.last_offset - row.offset
            demand("last_offset", 0 <= delta <= MAX)
        else:
            demand("count", not self.follows_logs() or (row.count is not None and 1 <= row.count <= MAX))
            delta = (row.count or 1) - 1
        offset = self.offset(row, delta, demand) if reads_offsets else None
        if not is_tracked and not self.assigns:
            offset = row.offset

        return Batch(
            kind=kind,
            origin=origin,
            pid=NOTHING if row.pid is None else row.pid,
            partition=row.partition or 0,
            epoch=row.epoch or 0,
            first=first,
            last=last,
            delta=delta,
            offset=offset,
            timestamp=NOTHING if row.timestamp is None else row.timestamp,
            transactional=bool(row.transactional),
            coordinator_epoch=NOTHING if row.coordinator_epoch is None else row.coordinator_epoch,
            transaction_version=row.transaction_version or 0,
        )

    def sequences(self, row: Row, origin: str, demand: Any) -> tuple[int, int, int]:
        """First and last sequence, and one less than the batch has."""
        base = NOTHING if row.base_seq is None else row.base_seq
        demand("base_seq", 0 <= base <= MAX or (base == NOTHING and origin != "client"))
        if row.last_seq is not None:
            demand("last_seq", 0 <= row.last_seq <= MAX if base >= 0 else row.last_seq == NOTHING)
            if base >= 0:
                return base, row.last_seq, (row.last_seq - base) % SEQUENCES
        if base == NOTHING and row.offset is not None and row.last_offset is not None and self.takes_offsets(origin):
            demand("last_offset", 0 <= row.last_offset - row.offset <= MAX)
            return NOTHING, NOTHING, row.last_offset - row.offset
        demand("count", row.count is not None and 1 <= row.count <= MAX)
        delta = (row.count or 1) - 1
        return (base, self.after(base, delta), delta) if base >= 0 else (NOTHING, NOTHING, delta)

    def follows_logs(self) -> bool:
        """Whether it matters where logs end, so that batches of no producer count too."""
        return self.assigns or self.version >= (4, 5)

    def takes_offsets(self, origin: str) -> bool:
        """Whether a row's own offsets count."""
        return not self.assigns or origin == "replica"

    def offset(self, row: Row, delta: int, demand: Any) -> int | None:
        demand("offset", row.offset is not None or (row.last_offset is None and not self.assigns))
        demand("offset", row.offset is None or row.offset >= 0)
        demand("last_offset", row.last_offset is None or row.last_offset == row.offset + delta)
        return row.offset

    @staticmethod
    def after(seq: int, steps: int) -> int:
        """The sequence so many steps on."""
        return (seq + steps) % SEQUENCES

    # One batch, judged

    def judge(self, batch: Batch) -> tuple[str, int | None, int | None]:
        """Verdict, the sequence expected, the first offset answered."""
        key = (batch.pid, batch.partition)
        if self.assigns and batch.origin != "replica":
            batch = batch._replace(offset=self.log_end(batch.partition))
        state = self.entries.get(key)
        if batch.kind == "data" and batch.origin == "client" and state is not None:
            copy_of = self.find(state, batch)
            if copy_of is not None:
                return "DUPLICATE", None, copy_of.first_offset
        verdict, expected = self.refusal(state or State(), batch)
        if verdict is not None:
            return verdict, expected, None
        if batch.kind in ("data", "marker"):  # a control batch without a record changes no entry
            if state is None:
                state = self.entries[key] = State()
            self.record(state, batch)
        self.take(batch)
        return "UNTRACKED" if batch.kind == "untracked" else "ACCEPTED", None, batch.offset

    def find(self, state: State, batch: Batch) -> Kept | None:
        """The batch of the window that this one is a copy of."""
        if batch.epoch != state.epoch:
            return None
        copies = [kept for kept in state.window if (kept.first, kept.last) == (batch.first, batch.last)]
        return copies[0] if copies else None

    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        """The reason why the batch is refused, if it is. An unknown producer has the epoch -1."""
        if batch.kind == "data":
            if batch.origin != "replica" and batch.epoch < state.epoch:
                return "FENCED", None
            if batch.origin == "client":
                expected = self.expected(state, batch)
                if expected is not None and expected != batch.first:
                    return "OUT_OF_ORDER", expected
            if state.is_open and not batch.transactional:
                return "INVALID_TXN_STATE", None
        if batch.kind == "marker" and batch.origin == "coordinator":
            if self.is_marker_fenced(state, batch):
                return "FENCED", None
            if self.is_coordinator_fenced(state, batch):
                return "COORDINATOR_FENCED", None
        return None, None

    def expected(self, state: State, batch: Batch) -> int | None:
        """The only first sequence that is accepted from a client; None if any is."""
        if state.epoch == NOTHING:
            return 0 if self.must_begin_with_zero(batch) else None
        if batch.epoch != state.epoch:
            return 0
        # An empty window has the last sequence -1.
        return self.after(state.window[-1].last if state.window else NOTHING, 1)

    def must_begin_with_zero(self, batch: Batch) -> bool:
        return self.first == "zero" or self.version < (2, 5) or (self.version >= (4, 5) and self.is_first(batch))

    def is_first(self, batch: Batch) -> bool:
        """Whether its partition never held a record. An offset shows that records existed below it."""
        return self.log_end(batch.partition) == 0 and not batch.offset

    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        if self.version < (4, 2) or batch.transaction_version < 2 or batch.epoch != state.epoch:
            return batch.epoch < state.epoch
        is_raised = self.version < (4, 3) or state.epoch < 2**15 - 1
        return state.is_open and is_raised

    def is_coordinator_fenced(self, state: State, batch: Batch) -> bool:
        return NOTHING < batch.coordinator_epoch < state.coordinator_epoch

    # One batch, recorded

    def record(self, state: State, batch: Batch) -> None:
        if batch.epoch != state.epoch:
            state.epoch, state.window = batch.epoch, []
        state.last_timestamp = batch.timestamp
        if batch.kind == "marker":
            self.close(state, batch)
        else:
            self.keep(state, batch)

    def close(self, state: State, batch: Batch) -> None:
        state.is_open, state.txn = False, None
        if batch.coordinator_epoch != NOTHING:
            state.coordinator_epoch = batch.coordinator_epoch

    def keep(self, state: State, batch: Batch) -> None:
        last_offset = None if batch.offset is None else batch.offset + batch.delta
        state.window.append(Kept(batch.first, batch.last, batch.offset, last_offset))
        state.window = state.window[-self.window :]
        if batch.transactional and not state.is_open:
            state.is_open, state.txn = True, batch.offset

    def take(self, batch: Batch) -> None:
        """Move the end of the log past the written batches."""
        if self.follows_logs():
            begin = self.log_end(batch.partition) if batch.offset is None else batch.offset
            self.log_ends[batch.partition] = begin + batch.delta + 1
