"""Transactions: all writes of one producer to several outputs become visible together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Select, select

from fencepost.errors import (
    ConcurrentTransactionError,
    MappingError,
    OutcomeUnknownError,
    PolicyError,
    StoreError,
    TransactionStateError,
    message_of,
)
from fencepost.inputs import is_integer, is_text, shown
from fencepost.producer.sequencer import LAST_EPOCH
from fencepost.sql.database import run
from fencepost.sql.inspection import TransactionMetrics
from fencepost.sql.registry import ProducerRegistry
from fencepost.sql.routes import Recovered, Routes, Unrouted, checked_routes, write_marker
from fencepost.sql.transaction import (
    NONE,
    PREPARED,
    Outcome,
    Partition,
    ProducerIdentity,
    State,
    TopicPartition,
    Transaction,
    unknown_id,
)
from fencepost.sql.transaction_tables import (
    DECISIONS,
    NAME_BYTES_MAX,
    POSITIONS,
    PRODUCERS,
    STAGED,
    Held,
    check_inputs,
    check_position,
    checked_outputs,
    end,
    from_text,
    hold,
    is_late_since,
    read_unlocked,
    save,
    to_text,
)
from fencepost.sql.upserts import insert_if_missing

if TYPE_CHECKING:
    from prometheus_client import Metric

Offsets = Mapping[Partition, tuple[int | None, int]]


@dataclass(frozen=True)
class Positions:
    """The positions of a group's input."""

    decided: dict[Partition, int]
    """The next position to read, by partition. Partitions without a commit are absent."""
    pending: frozenset[Partition]
    """Partitions whose position may change at any time, because an open transaction has staged another one."""


class TransactionCoordinator:
    """Decides transactions in a database. Many processes and services may have a coordinator on the same database.

    The states are Empty, Ongoing, Prepare (the outcome is decided and final), and Complete (all markers are written).
    The epoch increases with every transaction, so that a transaction cannot be confused with the next one.

    Between Prepare and Complete, a marker is written to each partition of the transaction. Any coordinator with a
    route to the topic may write it. If a coordinator has a route to none of the topics that wait for a marker, it
    neither times out nor completes the transaction; another coordinator must do this.

    Args:
        engine: The database.
        registry: The registry of the producers, on the same engine. None: a new `ProducerRegistry(engine)`.
        routes: Maps each topic to the transport whose readers wait for a marker (`MarkerWriter`). None for a topic
            whose readers call `decision` or join `fencepost_decisions`. A topic is the name of one output, the same for
            all users of the database: two outputs must not share a name.

    Raises:
        PolicyError: As in `ProducerRegistry`, or a route has no `write_marker`.
        SchemaError, StoreError: As in `ProducerRegistry`. Every call raises StoreError if the database does not answer,
            and OutcomeUnknownError if the connection is lost during its commit. Call again.
    """

    def __init__(
        self, engine: Engine, registry: ProducerRegistry | None = None, *, routes: Routes | None = None
    ) -> None:
        self.routes = checked_routes({} if routes is None else routes)
        self.registry = ProducerRegistry(engine) if registry is None else registry
        self.database = self.registry.database
        if self.database.engine is not engine:
            raise PolicyError(
                "registry= uses another engine than the coordinator: create both with the same engine, because they "
                "share tables"
            )

    # A producer's calls

    @property
    def keep_alive_ms(self) -> int:
        """See `ProducerRegistry.keep_alive_ms`."""
        return self.registry.keep_alive_ms

    def keep_alive(self, identity: ProducerIdentity) -> None:
        """See `ProducerRegistry.keep_alive`."""
        self.registry.keep_alive(identity)

    def init_producer(
        self, transactional_id: str, timeout_ms: int = 60_000, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Call `ProducerRegistry.init_producer`, and write the markers for which it would have to wait.

        Raises:
            ConcurrentTransactionError: A marker could not be written, or its topic has no route here. An open
                transaction is aborted nevertheless.
            PolicyError, FencedError, CapacityError: As in `ProducerRegistry.init_producer`.
        """
        for _ in range(2):
            try:
                return self.registry.init_producer(transactional_id, timeout_ms, expected)
            except ConcurrentTransactionError:
                if (held := self._take_over(transactional_id)) is not None:
                    self._completed(held)
        return self.registry.init_producer(transactional_id, timeout_ms, expected)

    def begin(self, identity: ProducerIdentity) -> None:
        """Open a transaction and start its time-out.

        `add_partitions` and `add_offsets` also open a transaction if none is open. A second call changes nothing while
        the transaction is empty.

        Raises:
            FencedError, MappingError, ConcurrentTransactionError: As in `add_partitions`.
            TransactionStateError: A transaction is open and not empty. Commit or abort it.
        """

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            before = held.transaction
            after = before.with_partitions(identity.pid, identity.epoch, frozenset(), held.now_ms)
            if after is before and (before.partitions or self._has_staged(connection, before)):
                raise TransactionStateError(
                    f"transactional id {before.transactional_id!r}: a transaction is open already: commit or abort it"
                )
            self._open(connection, held, after)

        self.database.transaction(work)

    def add_partitions(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions of any topics, as (topic, number), before the first write to them.

        Raises:
            FencedError: Another producer has taken over. After this error and the following ones, nothing has changed.
            MappingError: No transactional id currently has this pid.
            ConcurrentTransactionError: The previous transaction is not complete.
            PolicyError: A partition is not (topic, number), or a topic has no route here.
        """
        wanted = checked_outputs(partitions)
        if unknown := sorted({topic for topic, _ in wanted} - self.routes.keys()):
            raise PolicyError(
                f"topic {unknown[0]!r} has no route here (routes: {', '.join(map(repr, self.routes)) or 'none'}): "
                "readers would wait for its markers forever. Create the coordinator with routes={topic: transport}, or "
                "None for a topic whose readers ask for decisions"
            )
        new = frozenset(it for it in wanted if self.routes[it[0]] is not None)

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            after = held.transaction.with_partitions(identity.pid, identity.epoch, wanted, held.now_ms)
            self._open(connection, held, after, new)

        self.database.transaction(work)

    def verify(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Check that the partitions are in this producer's open transaction. A log calls this before it writes.

        Raises:
            TransactionAbortableError: Some partitions are not in the transaction.
            PolicyError: A partition is not (topic, number).
            FencedError, MappingError, ConcurrentTransactionError: As in `add_partitions`.
        """
        wanted = checked_outputs(partitions)

        def work(connection: Connection) -> Held | None:
            return read_unlocked(self.database, connection, pid=identity.pid)

        self._found(self.database.transaction(work), identity).transaction.verify(identity.pid, identity.epoch, wanted)

    def add_offsets(self, identity: ProducerIdentity, group: str, offsets: Offsets) -> None:
        """Stage positions of the group's input, which commit with this transaction.

        `offsets` maps each partition of the input to a pair: the position at which this worker began to read, and the
        next position to read. The first must be the committed position. This is checked now, and again under a lock
        with the decision: if two workers own one input, only one commits, even with different transactional ids. A
        first position of 0 or None means a partition without a commit. A later call for the same partition continues
        at the staged position.

        Raises:
            TransactionAbortableError: Another transaction has moved a position. Nothing has changed, and the
                transaction is still open.
            PolicyError: A position is below 0, or a next position is below the first one.
            FencedError, MappingError, ConcurrentTransactionError: As in `add_partitions`.
        """
        rows = _checked_offsets(group, offsets)

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            after = held.transaction.with_partitions(identity.pid, identity.epoch, frozenset(), held.now_ms)
            self._open(connection, held, after)
            if rows:
                self._stage(connection, after.transactional_id, group, rows)

        self.database.transaction(work)

    def commit(
        self, identity: ProducerIdentity, work: Callable[[Connection], object] | None = None
    ) -> ProducerIdentity:
        """Decide to commit this transaction. Returns the identity for the next one.

        `work(connection)` may write rows of the same database. They commit in the same database transaction as the
        decision. It may run several times, each time without the effects of earlier tries. It does not run if an
        earlier call decided the commit. Wrap a statement that may fail without ending the call in
        `connection.begin_nested()`.

        Raises:
            UndoneError: `work` ignored an error by which the database undid everything, or ended the database
                transaction. If `work` committed it, the decision is committed, too. Otherwise nothing is decided.
            TransactionAbortableError: A position that `add_offsets` staged has moved. Nothing has changed: abort.
            FencedError: Another producer has taken over. A transaction that was not committed before is aborted.
            TransactionStateError: No transaction is open, or it was aborted because it exceeded its time-out.
            ConcurrentTransactionError: The commit is decided and final, but a marker could not be written, or the
                database was lost before this was recorded. Call again, or run `recover`. If a topic has no route here,
                run `recover` of a coordinator with a route.
            OutcomeUnknownError: The connection was lost during the decision. Call again to get the outcome.
            StoreError: The database does not answer. This call decided nothing. Call again.
            MappingError: No transactional id currently has this pid.
        """
        return self._end(identity, "commit", work)

    def abort(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Decide to abort this transaction. Returns the identity for the next one.

        Allowed without an open transaction, so that a producer can abort if it does not know the outcome.

        Raises:
            TransactionStateError: An earlier call committed the transaction.
            FencedError, MappingError, ConcurrentTransactionError, OutcomeUnknownError, StoreError: As in `commit`.
        """
        return self._end(identity, "abort", None)

    # Calls of readers

    def decision(self, pid: int, epoch: int) -> Outcome | None:
        """Return the outcome of the transaction that `pid` wrote under `epoch`. None: not decided.

        Outcomes are kept until `forget_decisions`. Rows written outside a transaction never get an outcome.
        """
        query = select(DECISIONS.c.outcome).where((DECISIONS.c.pid == pid) & (DECISIONS.c.epoch == epoch))
        return self.database.transaction(lambda connection: connection.execute(query).scalar_one_or_none())

    def forget_decisions(self, older_than_ms: int) -> int:
        """Delete decisions that are older than `older_than_ms`. Returns their number.

        Call this only if all readers have passed these transactions. `decision` then returns None for them, so a later
        reader sees them as open.
        """

        def work(connection: Connection) -> int:
            until = self.database.now_ms(connection) - older_than_ms
            return connection.execute(DECISIONS.delete().where(DECISIONS.c.decided_ms < until)).rowcount

        return self.database.transaction(work)

    def positions(self, group: str) -> Positions:
        """Return the committed positions of a group's input, and the partitions that an open transaction may move."""

        def work(connection: Connection) -> Positions:
            committed = select(POSITIONS.c.partition, POSITIONS.c.position).where(
                (POSITIONS.c.group_id == group) & POSITIONS.c.position.is_not(None)
            )
            # Staged positions first: the second query sees a decision that is made between the two.
            staged = connection.execute(select(STAGED.c.partition).where(STAGED.c.group_id == group)).scalars()
            pending = frozenset(from_text(it) for it in staged)
            return Positions({from_text(it.partition): it.position for it in connection.execute(committed)}, pending)

        return self.database.transaction(work)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the database's producers and transactions, for `fencepost.metrics`.

        Nothing while the database does not answer: a scrape in an outage needs the metrics of other objects.
        """
        try:
            found = list(TransactionMetrics(self.database.engine).collect())
        except (StoreError, OutcomeUnknownError):
            return
        yield from found

    # Recovery

    def reap(self) -> Recovered:
        """Abort transactions that have been open for longer than their time-out.

        If topics of a transaction wait for a marker and none of them has a route here, the transaction is unchanged. If
        some have a route, the abort is decided, and the markers of these topics are written.

        Raises:
            ConcurrentTransactionError: Markers of some transactions could not be written. The transactions are aborted
                nevertheless, and `recover` writes the markers.
        """
        return self._recovered([], [])

    def recover(self) -> Recovered:
        """Write the missing markers of decided transactions, and abort transactions that exceed their time-out.

        Transactions without a route here are in `Recovered.unrouted`. Call this when a process starts, and
        periodically. It is safe while others commit: their markers may be written twice.

        Raises:
            ConcurrentTransactionError: Some transactions could not be completed: a marker could not be written, or
                another session holds the row. All others are done; call again.
        """
        failures: list[ConcurrentTransactionError] = []
        prepared = PRODUCERS.c.state.in_([int(it) for it in PREPARED])
        found = self._for_each(select(PRODUCERS.c.transactional_id).where(prepared), self._take_over, failures)
        return self._recovered(found, failures)

    def terminate(self, transactional_id: str) -> tuple[str, ...]:
        """Abort the open transaction of an id, for an operator whose producer does not end it.

        The producer sees the same errors as after a time-out. Markers are written where there is a route. Returns the
        topics without one, for which `recover` of another coordinator must write the markers.

        Raises:
            MappingError: The id does not exist.
            TransactionStateError: No transaction is open: it never began, or it is decided. Nothing has changed.
            ConcurrentTransactionError: The transaction is aborted, but a marker could not be written. `recover` writes
                it.
            OutcomeUnknownError, StoreError: As in `abort`.
        """
        fresh_pid = self.registry.pids.take()

        def work(connection: Connection) -> Held:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None:
                raise unknown_id(transactional_id)
            before = held.transaction
            if before.state is not State.ONGOING:
                raise TransactionStateError(
                    f"transactional id {transactional_id!r}: no transaction is open ({before.state.name})"
                    + (": its outcome is decided, and recover() completes it" if before.state in PREPARED else "")
                )
            aborted = before.fenced(held.now_ms, fresh_pid)
            end(connection, before, aborted)
            return self._saved(connection, held, aborted)

        return _topics_of(self._finish(self.database.transaction(work)))

    # Implementation

    def _hold(self, connection: Connection, identity: ProducerIdentity) -> Held:
        return self._found(hold(self.database, connection, pid=identity.pid), identity)

    @staticmethod
    def _found(held: Held | None, identity: ProducerIdentity) -> Held:
        if held is None:
            raise MappingError(
                f"no transactional id has the pid {identity.pid}: it expired, or was never assigned; "
                "call init_producer with the id and expected="
            )
        return held

    def _open(
        self, connection: Connection, held: Held, after: Transaction, new: frozenset[TopicPartition] = frozenset()
    ) -> None:
        opened = held._replace(transaction=after, waiting=held.waiting | new)
        if opened != held:
            save(connection, opened)

    @staticmethod
    def _has_staged(connection: Connection, transaction: Transaction) -> bool:
        mine = STAGED.c.transactional_id == transaction.transactional_id
        return connection.execute(select(STAGED.c.partition).where(mine).limit(1)).first() is not None

    def _stage(
        self,
        connection: Connection,
        transactional_id: str,
        group: str,
        rows: list[tuple[str, int, int]],
    ) -> None:
        mine = (STAGED.c.transactional_id == transactional_id) & (STAGED.c.group_id == group)
        staged = {it.partition: it for it in connection.execute(select(STAGED).where(mine))}
        which = (POSITIONS.c.group_id == group) & POSITIONS.c.partition.in_([it[0] for it in rows])
        committed = {it.partition: it.position for it in connection.execute(select(POSITIONS).where(which))}
        new = []
        for partition, expected, position in rows:
            before = staged.get(partition)
            if partition not in committed:
                # The decision needs a row to lock. All transactions insert in key order, to avoid deadlocks.
                empty = {"group_id": group, "partition": partition, "position": None}
                insert_if_missing(connection, POSITIONS, empty)
            if before is None:
                check_position(group, partition, expected, committed.get(partition))
            elif (before.expected, before.position) != (expected, position):
                check_position(group, partition, expected, before.position)
                expected = before.expected
            row = {"partition": partition, "expected": expected, "position": position}
            new.append({"transactional_id": transactional_id, "group_id": group} | row)
        connection.execute(STAGED.delete().where(mine & STAGED.c.partition.in_([it[0] for it in rows])))
        connection.execute(STAGED.insert(), new)

    def _end(
        self, identity: ProducerIdentity, outcome: Outcome, work: Callable[[Connection], object] | None
    ) -> ProducerIdentity:
        # Taken here, because a block of pids cannot be reserved in the transaction that uses one of them.
        fresh_pid = self.registry.pids.take() if identity.epoch >= LAST_EPOCH else NONE

        def prepare(connection: Connection) -> Held:
            held = self._hold(connection, identity)
            before = held.transaction
            try:
                after = before.ended(identity.pid, identity.epoch, outcome, held.now_ms, fresh_pid)
            except ConcurrentTransactionError:
                # An earlier call decided the same outcome and did not complete it.
                return self._taken(connection, held)
            if after is before:
                return held
            end(connection, before, after)
            decided = self._saved(connection, held, after)
            if work is not None:
                run(work, connection)
            return decided

        return self._completed(self._finish(self.database.transaction(prepare)))

    def _saved(self, connection: Connection, held: Held, after: Transaction) -> Held:
        """Save a prepared transaction. It is completed at once if no reader waits for a marker."""
        if not held.waiting:
            after = after.completed(held.now_ms)
        held = held._replace(transaction=after)
        save(connection, held)
        return held

    def _routed(self, held: Held) -> list[TopicPartition]:
        """Return the partitions that wait for a marker and have a route here, in order."""
        return sorted(it for it in held.waiting if self.routes.get(it[0]) is not None)

    def _is_unrouted(self, held: Held) -> bool:
        """Return whether partitions wait for a marker, and none of them has a route here."""
        return bool(held.waiting) and not self._routed(held)

    def _finish(self, held: Held) -> Held:
        """Write the markers of a prepared transaction that have a route, and complete it if no marker is missing.

        Written markers are recorded even if others fail. Partitions get their markers independently, so any
        coordinator may write the rest later. Raises ConcurrentTransactionError if a marker could not be written.
        """
        if held.transaction.state not in PREPARED:
            return held
        written: list[TopicPartition] = []
        failed: dict[str, tuple[TopicPartition, Exception]] = {}
        for partition in self._routed(held):
            topic = partition[0]
            if topic in failed:
                continue
            try:
                self._write_marker(held, partition)
            except Exception as error:
                failed[topic] = partition, error
            else:
                written.append(partition)
        try:
            held = self.database.transaction(lambda connection: self._recorded(connection, held, written))
        except (StoreError, OutcomeUnknownError) as error:
            raise ConcurrentTransactionError(
                f"{_decision_of(held)}, but the connection to the database was lost before its completion was recorded "
                f"({error.message}): call again, or recover()"
            ) from error
        if failed and held.transaction.state in PREPARED:
            (topic, number), cause = next(iter(failed.values()))
            raise ConcurrentTransactionError(
                f"{_decision_of(held)}, but the marker for topic {topic!r}, partition {number} could not be written "
                f"({message_of(cause)}): call again, or recover()"
            ) from cause
        return held

    def _write_marker(self, held: Held, partition: TopicPartition) -> None:
        topic, number = partition
        route, prepared = self.routes[topic], held.transaction
        assert route is not None, "a partition without a route"
        outcome = PREPARED[prepared.state]
        write_marker(route, topic, prepared.pid, prepared.epoch, number, outcome, held.coordinator_epoch)

    def _recorded(self, connection: Connection, held: Held, written: Iterable[TopicPartition]) -> Held:
        """Remove written partitions from the waiting ones, and complete the transaction after the last one."""
        prepared = held.transaction
        found = hold(self.database, connection, transactional_id=prepared.transactional_id)
        assert found is not None, "prepared transactions do not expire"
        if found.transaction != prepared:
            # Another coordinator has completed it, and its producer may have begun the next one.
            return Held(prepared.completed(found.now_ms))
        return self._saved(connection, found._replace(waiting=found.waiting.difference(written)), prepared)

    @staticmethod
    def _completed(held: Held) -> ProducerIdentity:
        """Return the next identity. Raises ConcurrentTransactionError if topics wait for another coordinator."""
        if held.transaction.state in PREPARED:
            topics = ", ".join(map(repr, _topics_of(held)))
            raise ConcurrentTransactionError(
                f"{_decision_of(held)}, and markers for {topics} have no route here: call recover() on a coordinator "
                "with routes to them"
            )
        return held.transaction.identity

    def _taken(self, connection: Connection, held: Held) -> Held:
        """Raise the coordinator epoch, above that of others that write the same markers."""
        held = held._replace(coordinator_epoch=held.coordinator_epoch + 1)
        save(connection, held)
        return held

    def _take_over(self, transactional_id: str) -> Held | None:
        """Finish a decided transaction of this id where there are routes. Returns its new status.

        None if no transaction was decided.
        """

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None or held.transaction.state not in PREPARED:
                return None
            return held if self._is_unrouted(held) else self._taken(connection, held)

        held = self.database.transaction(work)
        return held if held is None or self._is_unrouted(held) else self._finish(held)

    def _recovered(self, prepared: list[Held], failures: list[ConcurrentTransactionError]) -> Recovered:
        """Abort transactions that exceed their time-out. Returns the result of `recover`; raises if there are failures.

        `prepared`: the decided transactions that were processed before.
        """
        late = is_late_since(PRODUCERS.c.started_ms, self.database.clock_ms)
        query = select(PRODUCERS.c.transactional_id).where((PRODUCERS.c.state == int(State.ONGOING)) & late)
        timed_out = self._for_each(query, self._time_out, failures)
        if failures:
            raise ConcurrentTransactionError(
                f"transactions that could not be completed: {len(failures)}. The first: {failures[0].message}"
            ) from failures[0]
        completed = sum(it.transaction.state not in PREPARED for it in prepared)
        aborted = sum(it.transaction.state is not State.ONGOING for it in timed_out)
        left = (Unrouted(it.transaction.transactional_id, _topics_of(it)) for it in prepared + timed_out if it.waiting)
        return Recovered(completed, aborted, tuple(left))

    def _time_out(self, transactional_id: str) -> Held | None:
        """Abort the transaction of this id if it exceeds its time-out and has a route here. Returns its new status.

        None if it does not exceed its time-out.
        """
        fresh_pid = self.registry.pids.take()

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None or not held.transaction.is_timed_out(held.now_ms):
                return None
            if self._is_unrouted(held):
                return held
            after = held.transaction.fenced(held.now_ms, fresh_pid)
            end(connection, held.transaction, after)
            return self._saved(connection, held, after)

        held = self.database.transaction(work)
        if held is None or fresh_pid not in (held.transaction.pid, held.transaction.next_pid):
            self.registry.pids.give_back(fresh_pid)
        return None if held is None else self._finish(held)

    def _for_each(
        self,
        query: Select[Any],
        act: Callable[[str], Held | None],
        failures: list[ConcurrentTransactionError],
    ) -> list[Held]:
        """Call `act` with each id of the query. Returns its results except None. Adds to `failures`."""
        ids: list[str] = self.database.transaction(lambda connection: list(connection.execute(query).scalars()))
        found = []
        for transactional_id in ids:
            try:
                held = act(transactional_id)
            except ConcurrentTransactionError as failure:
                failures.append(failure)
            except StoreError as failure:
                if not self.database.is_locked(failure):
                    raise
                # Other ids must not wait for the session that holds this row.
                problem = f"transactional id {transactional_id!r}: another session holds its row: {failure.message}"
                failures.append(ConcurrentTransactionError(problem))
            else:
                found += [] if held is None else [held]
        return found


def _decision_of(held: Held) -> str:
    prepared = held.transaction
    outcome = PREPARED[prepared.state]
    return f"transactional id {prepared.transactional_id!r}: {outcome} of producer {prepared.pid} is decided"


def _topics_of(held: Held) -> tuple[str, ...]:
    """Return the topics that wait for markers, sorted."""
    return tuple(sorted({topic for topic, _ in held.waiting}))


_PAIR = "of 64-bit integers: (the position at which reading began, or None; the next position to read)"


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    numbers = [pair[1]] if pair[0] is None else pair
    return all(is_integer(it, most=2**63 - 1) for it in numbers)


def _checked_offsets(group: str, offsets: Offsets) -> list[tuple[str, int, int]]:
    """Return (partition as text, expected, next position), in key order. Raises PolicyError."""
    if not is_text(group) or not group:
        raise PolicyError(f"group={group!r}: expected a non-empty text of UTF-8")
    if len(group.encode()) > NAME_BYTES_MAX:
        raise PolicyError(f"group={shown(group)}: has more than {NAME_BYTES_MAX} bytes of UTF-8")
    if not isinstance(offsets, Mapping):
        raise PolicyError(f"offsets={shown(offsets)}: expected a mapping of partitions to pairs {_PAIR}")
    check_inputs(offsets)
    rows = []
    for partition, pair in offsets.items():
        if not _is_pair(pair):
            raise PolicyError(f"group {group!r}, partition {partition!r}: {shown(pair)} is not a pair {_PAIR}")
        if len(to_text(partition)) > NAME_BYTES_MAX:
            raise PolicyError(
                f"group {group!r}, partition {shown(partition)}: has more than {NAME_BYTES_MAX} bytes as JSON"
            )
        expected, position = pair
        start = 0 if expected is None else expected
        if start < 0 or position < start:
            raise PolicyError(
                f"group {group!r}, partition {partition!r}: ({expected}, {position}) is invalid: positions are at "
                "least 0, and the next position to read is not below the one at which reading began"
            )
        rows.append((to_text(partition), start, position))
    return sorted(rows)
