"""Transactions: what one producer wrote to many places counts at once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Select, literal_column, select

from fencepost.errors import (
    ConcurrentTransactionError,
    MappingError,
    OutcomeUnknownError,
    PolicyError,
    StoreError,
    TransactionStateError,
    message_of,
)
from fencepost.inputs import is_text, shown
from fencepost.producer.sequencer import LAST_EPOCH
from fencepost.sql.database import run
from fencepost.sql.inspection import TransactionMetrics
from fencepost.sql.registry import ProducerRegistry
from fencepost.sql.routes import Recovered, Routes, Unrouted, checked_routes
from fencepost.sql.transaction import (
    NONE,
    PREPARED,
    Outcome,
    Partition,
    ProducerIdentity,
    State,
    TopicPartition,
    Transaction,
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
    look,
    save,
    to_text,
)
from fencepost.sql.upserts import insert_if_missing

if TYPE_CHECKING:
    from prometheus_client import Metric

Offsets = Mapping[Partition, tuple[int | None, int]]


@dataclass(frozen=True)
class Positions:
    """Where a group's input stands."""

    decided: dict[Partition, int]
    """The next position to read, by partition; partitions without a commit are not there."""
    pending: frozenset[Partition]
    """Partitions for which an open transaction has staged another position: it may move any moment."""


class TransactionCoordinator:
    """Decides transactions in a database. Any number of processes and services may have one on the same database.

    States are Empty, Ongoing, Prepare (the outcome is decided, and stands), Complete (markers are written). The epoch
    rises with every transaction, so that nothing of a transaction can be taken for the next one's.

    `routes`: by topic, the transport whose readers wait for a marker (`MarkerWriter`), or None for a topic whose
    readers ask `decision` or join `fencepost_decisions`. A topic is the name of one output, the same for everybody who
    uses the database: two outputs must not share a name. Between Prepare and Complete a marker is written to each
    partition of the transaction, by whichever coordinators have routes to them; what a coordinator has no route to it
    neither times out nor completes, and leaves to those that have one.

    Raises:
        PolicyError: as `ProducerRegistry`; a route that has no `write_marker`.
        SchemaError, StoreError: as `ProducerRegistry`. StoreError in every call where the database does not answer.
    """

    def __init__(
        self, engine: Engine, registry: ProducerRegistry | None = None, *, routes: Routes | None = None
    ) -> None:
        self.routes = checked_routes({} if routes is None else routes)
        self.registry = ProducerRegistry(engine) if registry is None else registry
        self.database = self.registry.database
        if self.database.engine is not engine:
            raise PolicyError("the registry is on another engine: producers and transactions share their tables")

    # A producer's calls

    @property
    def keep_alive_ms(self) -> int:
        """As `ProducerRegistry.keep_alive_ms`."""
        return self.registry.keep_alive_ms

    def keep_alive(self, identity: ProducerIdentity) -> None:
        """As `ProducerRegistry.keep_alive`."""
        self.registry.keep_alive(identity)

    def init_producer(
        self, transactional_id: str, timeout_ms: int = 60_000, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """As `ProducerRegistry.init_producer`, and writes the markers that it would have to wait for.

        Raises:
            ConcurrentTransactionError: a marker could not be written, or a topic that waits for one has no route here.
                What was open is aborted all the same.
            PolicyError, FencedError, CapacityError: as `ProducerRegistry.init_producer`.
        """
        for _ in range(2):
            try:
                return self.registry.init_producer(transactional_id, timeout_ms, expected)
            except ConcurrentTransactionError:
                if (held := self._take_over(transactional_id)) is not None:
                    self._completed(held)
        return self.registry.init_producer(transactional_id, timeout_ms, expected)

    def begin(self, identity: ProducerIdentity) -> None:
        """Opens a transaction. Its time-out runs from here.

        `add_partitions` and `add_offsets` do so too where none is open. Once more with nothing in between is the same
        call.

        Raises:
            FencedError, MappingError, ConcurrentTransactionError: as everywhere.
            TransactionStateError: a transaction is open, and something was added to it: commit or abort it.
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
        """Names partitions, as (topic, number), before anything is written to them. They may be of several topics.

        Raises:
            FencedError: another producer has taken over. Nothing has changed, here and below.
            MappingError: no transactional id has this pid now.
            ConcurrentTransactionError: the transaction before is not completed.
            PolicyError: a partition that is not (topic, number), or a topic without a route here.
        """
        wanted = checked_outputs(partitions)
        if unknown := sorted({topic for topic, _ in wanted} - self.routes.keys()):
            raise PolicyError(
                f"topic {unknown[0]!r} has no route here (routes: {', '.join(map(repr, self.routes)) or 'none'}): who "
                "waits for its markers would wait for ever. Make the coordinator with routes={topic: transport}, or "
                "None for a topic whose readers ask for decisions"
            )
        new = frozenset(it for it in wanted if self.routes[it[0]] is not None)

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            after = held.transaction.with_partitions(identity.pid, identity.epoch, wanted, held.now_ms)
            self._open(connection, held, after, new)

        self.database.transaction(work)

    def verify(self, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Raises unless the partitions are in this producer's open transaction: for who keeps a log, before it writes.

        Raises:
            TransactionAbortableError: some are not.
            PolicyError: a partition that is not (topic, number).
            FencedError, MappingError, ConcurrentTransactionError: as everywhere.
        """
        wanted = checked_outputs(partitions)

        def work(connection: Connection) -> Held | None:
            return look(self.database, connection, pid=identity.pid)

        self._found(self.database.transaction(work), identity).transaction.verify(identity.pid, identity.epoch, wanted)

    def add_offsets(self, identity: ProducerIdentity, group: str, offsets: Offsets) -> None:
        """Stages where the group's input stands once this transaction is committed.

        `offsets` is, by partition of the input, the position at which this worker began to read and the next one to
        read. That the first is still the committed one is checked now, and again, under lock, in the moment of the
        decision: of two workers that own one input, whatever their transactional ids, one commits. A first position of
        0 or None stands for a partition without a commit. More of the same partition goes on where the transaction
        stands.

        Raises:
            TransactionAbortableError: a position has changed by now. Nothing has changed here; the transaction is
                open as before.
            PolicyError: a position below 0, or a next one before the first.
            FencedError, MappingError, ConcurrentTransactionError: as everywhere.
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
        """Decides that everything of this transaction counts, and gives the identity for the next one.

        `work(connection)` writes rows of the same database in the database transaction of the decision: they are there
        if and only if it is. It may run several times, each time on a database without the times before, and does not
        run where the commit was decided by an earlier call. What may fail in it without ending the call stands in
        `connection.begin_nested()`.

        Raises:
            UndoneError: `work` passed over an error by which the database had undone everything, or ended the database
                transaction. Nothing is decided.
            TransactionAbortableError: a position that `add_offsets` named has moved. Nothing has changed: abort.
            FencedError: another producer has taken over: what it has not committed before, nobody will.
            TransactionStateError: none is open, or it was aborted (it took too long).
            ConcurrentTransactionError: the commit is decided and stands, but a marker could not be written, or the
                database was lost before that was noted: call again, or leave it to `recover`. Or a topic has no route
                here: `recover` of a coordinator that has one.
            OutcomeUnknownError: the connection was lost in the moment of the decision: call again, which tells.
            StoreError: the database does not answer: this call has decided nothing. Call again.
            MappingError: no transactional id has this pid now.
        """
        return self._end(identity, "commit", work)

    def abort(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Decides that nothing of this transaction counts, and gives the identity for the next one.

        Allowed where none is open: a producer that does not know what became of its transaction aborts.

        Raises:
            TransactionStateError: it was committed by an earlier call.
            FencedError, MappingError, ConcurrentTransactionError, OutcomeUnknownError, StoreError: as `commit`.
        """
        return self._end(identity, "abort", None)

    # What readers ask

    def decision(self, pid: int, epoch: int) -> Outcome | None:
        """What became of the transaction that `pid` had under this epoch, the one it wrote with; None: not decided.

        Kept until `forget_decisions`. Rows written outside any transaction are never decided.
        """
        query = select(DECISIONS.c.outcome).where((DECISIONS.c.pid == pid) & (DECISIONS.c.epoch == epoch))
        return self.database.transaction(lambda connection: connection.execute(query).scalar_one_or_none())

    def forget_decisions(self, older_than_ms: int) -> int:
        """Drops decisions that are older, for which `decision` is None from then on; how many.

        For who knows that every reader has passed them: what is read later looks as if it were open for ever.
        """

        def work(connection: Connection) -> int:
            until = self.database.now_ms(connection) - older_than_ms
            return connection.execute(DECISIONS.delete().where(DECISIONS.c.decided_ms < until)).rowcount

        return self.database.transaction(work)

    def positions(self, group: str) -> Positions:
        """Where a group's input stands by what is decided, and which partitions an open transaction may move."""

        def work(connection: Connection) -> Positions:
            committed = select(POSITIONS.c.partition, POSITIONS.c.position).where(
                (POSITIONS.c.group_id == group) & POSITIONS.c.position.is_not(None)
            )
            # Before what is committed: what is decided between the two questions is seen by the second.
            staged = connection.execute(select(STAGED.c.partition).where(STAGED.c.group_id == group)).scalars()
            pending = frozenset(from_text(it) for it in staged)
            return Positions({from_text(it.partition): it.position for it in connection.execute(committed)}, pending)

        return self.database.transaction(work)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the database's producers and transactions, for `fencepost.metrics`."""
        return TransactionMetrics(self.database.engine).collect()

    # What nobody may be left to do

    def reap(self) -> Recovered:
        """Aborts transactions that were open for longer than their time-out.

        One all of whose waiting topics have no route here is left as it is. Of one that has some, the abort is decided,
        and markers are written where there is a route.

        Raises:
            ConcurrentTransactionError: markers of some could not be written. They are aborted all the same, and
                `recover` writes them.
        """
        return self._recovered([], [])

    def recover(self) -> Recovered:
        """Writes the markers of everything that is decided and not completed, and aborts what is open for too long.

        As far as there are routes; what is left to others is in `Recovered.unrouted`. For the start of a process, and
        now and then. Harmless while others commit: their markers may be written twice.

        Raises:
            ConcurrentTransactionError: markers of some could not be written. All others are; call again.
        """
        failures: list[ConcurrentTransactionError] = []
        prepared = PRODUCERS.c.state.in_([int(it) for it in PREPARED])
        found = self._each(select(PRODUCERS.c.transactional_id).where(prepared), self._take_over, failures)
        return self._recovered(found, failures)

    def terminate(self, transactional_id: str) -> tuple[str, ...]:
        """Aborts the open transaction of an id whose producer does not end it: for an operator.

        The producer learns it as from a time-out. Markers are written as far as there are routes; gives the topics
        whose markers are left to `recover` of a coordinator with routes to them.

        Raises:
            MappingError: there is no such id.
            TransactionStateError: none is open: it never began, or it is decided. Nothing has changed.
            ConcurrentTransactionError: it is aborted, but a marker could not be written: `recover` writes it.
            OutcomeUnknownError, StoreError: as `abort`.
        """
        fresh_pid = self.registry.pids.take()

        def work(connection: Connection) -> Held:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None:
                raise MappingError(f"transactional id {transactional_id!r} is not known in this database")
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

    # How it is done

    def _hold(self, connection: Connection, identity: ProducerIdentity) -> Held:
        return self._found(hold(self.database, connection, pid=identity.pid), identity)

    @staticmethod
    def _found(held: Held | None, identity: ProducerIdentity) -> Held:
        if held is None:
            raise MappingError(
                f"no transactional id has the pid {identity.pid}: it expired, or was never given one; "
                "init_producer with the id and expected="
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
                # A row that the decision can lock. In the order of keys, as everybody inserts them.
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
        # Taken here, for a block cannot be reserved in the transaction that uses a pid of it.
        fresh_pid = self.registry.pids.take() if identity.epoch >= LAST_EPOCH else NONE

        def prepare(connection: Connection) -> Held:
            held = self._hold(connection, identity)
            before = held.transaction
            try:
                after = before.ended(identity.pid, identity.epoch, outcome, held.now_ms, fresh_pid)
            except ConcurrentTransactionError:
                # This very outcome, by an earlier call that did not come to the end of it.
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
        """A prepared transaction, completed at once where nobody waits for a marker."""
        if not held.waiting:
            after = after.completed(held.now_ms)
        held = held._replace(transaction=after)
        save(connection, held)
        return held

    def _routed(self, held: Held) -> list[TopicPartition]:
        """The partitions that wait for a marker and have a route here, in order."""
        return sorted(it for it in held.waiting if self.routes.get(it[0]) is not None)

    def _is_others(self, held: Held) -> bool:
        """Whether somebody waits for its markers, and nobody whom a route leads to."""
        return bool(held.waiting) and not self._routed(held)

    def _finish(self, held: Held) -> Held:
        """Writes the markers of a prepared transaction that have a route, and completes it if no other is missing.

        What is written is noted, whatever fails: each partition by itself learns what is decided, so the rest may
        follow at any time, and from anybody. Raises ConcurrentTransactionError where one could not be written.
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
            held = self.database.transaction(lambda connection: self._noted(connection, held, written))
        except (StoreError, OutcomeUnknownError) as error:
            raise ConcurrentTransactionError(
                f"{_decision_of(held)}, but the database was lost before its end was noted ({error.message}): call "
                "again, or recover()"
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
        route.write_marker(prepared.pid, prepared.epoch, number, PREPARED[prepared.state], held.coordinator_epoch)

    def _noted(self, connection: Connection, held: Held, written: Iterable[TopicPartition]) -> Held:
        """Takes what is written from the partitions that wait, and completes the transaction after the last one."""
        prepared = held.transaction
        found = hold(self.database, connection, transactional_id=prepared.transactional_id)
        assert found is not None, "what is prepared does not expire"
        if found.transaction != prepared:
            # Another has completed it, and its producer may have gone on.
            return Held(prepared.completed(found.now_ms))
        return self._saved(connection, found._replace(waiting=found.waiting.difference(written)), prepared)

    @staticmethod
    def _completed(held: Held) -> ProducerIdentity:
        """The identity that follows. Raises ConcurrentTransactionError for topics that wait for another coordinator."""
        if held.transaction.state in PREPARED:
            topics = ", ".join(map(repr, _topics_of(held)))
            raise ConcurrentTransactionError(
                f"{_decision_of(held)}, and markers for {topics} have no route here: recover() of a coordinator with "
                "routes to them writes these, and completes it"
            )
        return held.transaction.identity

    def _taken(self, connection: Connection, held: Held) -> Held:
        """Others who are writing the same markers have a lower coordinator epoch from now on."""
        held = held._replace(coordinator_epoch=held.coordinator_epoch + 1)
        save(connection, held)
        return held

    def _take_over(self, transactional_id: str) -> Held | None:
        """Finishes what is decided of this id, as far as there are routes. How it stands then; None: nothing was."""

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None or held.transaction.state not in PREPARED:
                return None
            return held if self._is_others(held) else self._taken(connection, held)

        held = self.database.transaction(work)
        return held if held is None or self._is_others(held) else self._finish(held)

    def _recovered(self, prepared: list[Held], failures: list[ConcurrentTransactionError]) -> Recovered:
        """What `recover` has done, once what is open for too long is aborted. Raises if there was a failure."""
        late = PRODUCERS.c.started_ms + PRODUCERS.c.timeout_ms < literal_column(self.database.clock)
        query = select(PRODUCERS.c.transactional_id).where((PRODUCERS.c.state == int(State.ONGOING)) & late)
        timed_out = self._each(query, self._time_out, failures)
        if failures:
            raise ConcurrentTransactionError(
                f"{len(failures)} transactions are decided and not completed, the first: {failures[0]}"
            ) from failures[0]
        completed = sum(it.transaction.state not in PREPARED for it in prepared)
        aborted = sum(it.transaction.state is not State.ONGOING for it in timed_out)
        left = (Unrouted(it.transaction.transactional_id, _topics_of(it)) for it in prepared + timed_out if it.waiting)
        return Recovered(completed, aborted, tuple(left))

    def _time_out(self, transactional_id: str) -> Held | None:
        """Aborts what is open of this id for too long, if there is a route to it. How it stands then; None: nothing."""
        fresh_pid = self.registry.pids.take()

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None or not held.transaction.is_timed_out(held.now_ms):
                return None
            if self._is_others(held):
                return held
            after = held.transaction.fenced(held.now_ms, fresh_pid)
            end(connection, held.transaction, after)
            return self._saved(connection, held, after)

        held = self.database.transaction(work)
        if held is None or fresh_pid not in (held.transaction.pid, held.transaction.next_pid):
            self.registry.pids.give_back(fresh_pid)
        return None if held is None else self._finish(held)

    def _each(
        self,
        query: Select[Any],
        act: Callable[[str], Held | None],
        failures: list[ConcurrentTransactionError],
    ) -> list[Held]:
        """Acts on every transactional id; how those stand that had something to do, but for failures."""
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
                # The others must not wait for whoever holds this row.
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
    """The topics that wait for markers."""
    return tuple(sorted({topic for topic, _ in held.waiting}))


_PAIR = "(the position at which reading began, or None; the next one to read), integers of 64 bits"


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    numbers = [pair[1]] if pair[0] is None else pair
    return all(isinstance(it, int) and not isinstance(it, bool) and it < 2**63 for it in numbers)


def _checked_offsets(group: str, offsets: Offsets) -> list[tuple[str, int, int]]:
    """(partition as text, expected, next position), in the order of keys."""
    if not is_text(group) or not group:
        raise PolicyError(f"group={group!r}: a name was expected, a text of UTF-8")
    if len(group.encode()) > NAME_BYTES_MAX:
        raise PolicyError(f"group={shown(group)}: has more than {NAME_BYTES_MAX} bytes of UTF-8")
    if not isinstance(offsets, Mapping):
        raise PolicyError(f"offsets={shown(offsets)}: a mapping of partitions to pairs was expected, {_PAIR}")
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
                f"group {group!r}, partition {partition!r}: next position {position} after {expected}: positions are "
                "at least 0 and do not go back"
            )
        rows.append((to_text(partition), start, position))
    return sorted(rows)
