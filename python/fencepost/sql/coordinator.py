"""Transactions: what one producer wrote to many places counts at once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Select, literal_column, select

from fencepost.errors import ConcurrentTransactionError, MappingError, PolicyError, TransactionStateError
from fencepost.sql.database import run
from fencepost.sql.registry import ProducerRegistry
from fencepost.sql.transaction import (
    LAST_EPOCH,
    NONE,
    PREPARED,
    Outcome,
    Partition,
    ProducerIdentity,
    State,
    Transaction,
)
from fencepost.sql.transaction_tables import (
    DECISIONS,
    GROUPS,
    POSITIONS,
    PRODUCERS,
    STAGED,
    Held,
    check_generation,
    check_position,
    checked_partitions,
    end,
    from_text,
    hold,
    insert_if_missing,
    look,
    save,
    to_text,
)

WriteMarker = Callable[[int, int, Partition, Outcome, int], object]
Offsets = Mapping[Partition, tuple[int | None, int]]


@dataclass(frozen=True)
class Positions:
    """Where a group's input stands."""

    decided: dict[Partition, int]
    """The next position to read, by partition; partitions without a commit are not there."""
    pending: frozenset[Partition]
    """Partitions for which an open transaction has staged another position: it may move any moment."""


class Recovered(NamedTuple):
    """What `recover` found to do."""

    completed: int
    """Transactions that were decided, and whose markers are written now."""
    aborted: int
    """Transactions that were open for longer than they may be."""


class TransactionCoordinator:
    """Decides transactions in a database. Any number of processes may have one on the same database.

    States are Empty, Ongoing, Prepare (the outcome is decided, and stands), Complete (markers are written). The epoch
    rises with every transaction, so that nothing of a transaction can be taken for the next one's.

    `write_marker(pid, epoch, partition, outcome, coordinator_epoch)` tells a partition what became of the transaction
    that producer `pid` had open there; `epoch` is the raised one, as in Kafka's markers. It is called for every
    partition between Prepare and Complete, outside any database transaction, and again after a failure, then with a
    higher `coordinator_epoch`: writing twice must do no harm, and a marker that comes when the producer has gone on to
    the next transaction must be ignored (a log under Kafka's rules answers both by itself). An exception of it means
    not written. Without it nobody is told: readers ask `decision`, or join `fencepost_decisions`.

    Raises:
        PolicyError, SchemaError: as `ProducerRegistry`.
    """

    def __init__(
        self, engine: Engine, registry: ProducerRegistry | None = None, *, write_marker: WriteMarker | None = None
    ) -> None:
        self.registry = ProducerRegistry(engine) if registry is None else registry
        self.database = self.registry.database
        self.write_marker = write_marker
        if self.database.engine is not engine:
            raise PolicyError("the registry is on another engine: producers and transactions share their tables")

    # A producer's calls

    def init_producer(
        self, transactional_id: str, timeout_ms: int = 60_000, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """As `ProducerRegistry.init_producer`, and writes the markers that it would have to wait for."""
        for _ in range(2):
            try:
                return self.registry.init_producer(transactional_id, timeout_ms, expected)
            except ConcurrentTransactionError:
                self._take_over(transactional_id)
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

    def add_partitions(self, identity: ProducerIdentity, partitions: Iterable[Partition]) -> None:
        """Names partitions before anything is written to them: numbers, names, or tuples of these.

        Raises:
            FencedError: another producer has taken over. Nothing has changed, here and below.
            MappingError: no transactional id has this pid now.
            ConcurrentTransactionError: the transaction before is not completed.
            PolicyError: a partition that is none.
        """
        wanted = checked_partitions(partitions)

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            after = held.transaction.with_partitions(identity.pid, identity.epoch, wanted, held.now_ms)
            self._open(connection, held, after)

        self.database.transaction(work)

    def verify(self, identity: ProducerIdentity, partitions: Iterable[Partition]) -> None:
        """Raises unless the partitions are in this producer's open transaction: for who keeps a log, before it writes.

        Raises:
            TransactionAbortableError: some are not.
            FencedError, MappingError, ConcurrentTransactionError: as everywhere.
        """
        wanted = checked_partitions(partitions)

        def work(connection: Connection) -> Held | None:
            return look(self.database, connection, pid=identity.pid)

        self._found(self.database.transaction(work), identity).transaction.verify(identity.pid, identity.epoch, wanted)

    def add_offsets(
        self, identity: ProducerIdentity, group: str, offsets: Offsets, generation: int | None = None
    ) -> None:
        """Stages where the group's input stands once this transaction is committed.

        `offsets` is, by partition of the input, the position at which this worker began to read and the next one to
        read. That the first is still the committed one is checked now, and again, under lock, in the moment of the
        decision: of two workers that own one input, whatever their transactional ids, one commits. A first position of
        0 or None stands for a partition without a commit. More of the same partition goes on where the transaction
        stands. `generation` is the group's as this worker knows it; a higher one that anybody has brought, here or by
        `advance`, does the same to the whole group.

        Raises:
            TransactionAbortableError: a position, or the generation, is another one by now. Nothing has changed; the
                transaction is open as before.
            PolicyError: a position below 0, or a next one before the first.
            FencedError, MappingError, ConcurrentTransactionError: as everywhere.
        """
        rows = _checked_offsets(group, offsets)

        def work(connection: Connection) -> None:
            held = self._hold(connection, identity)
            after = held.transaction.with_partitions(identity.pid, identity.epoch, frozenset(), held.now_ms)
            self._open(connection, held, after)
            if generation is not None:
                self._enter(connection, group, generation)
            if rows:
                self._stage(connection, after.transactional_id, group, rows, generation)

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
            TransactionAbortableError: a position that `add_offsets` named has moved, or the generation. Nothing has
                changed: abort.
            FencedError: another producer has taken over: what it has not committed before, nobody will.
            TransactionStateError: none is open, or it was aborted (it took too long).
            ConcurrentTransactionError: the commit is decided and stands, but a marker could not be written: call again,
                or leave it to `recover`.
            OutcomeUnknownError: the connection was lost in the moment of the decision: call again, which tells.
            MappingError: no transactional id has this pid now.
        """
        return self._end(identity, "commit", work)

    def abort(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Decides that nothing of this transaction counts, and gives the identity for the next one.

        Allowed where none is open: a producer that does not know what became of its transaction aborts.

        Raises:
            TransactionStateError: it was committed by an earlier call.
            FencedError, MappingError, ConcurrentTransactionError, OutcomeUnknownError: as `commit`.
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

    def advance(self, group: str, generation: int) -> None:
        """The group has this generation from now on: no transaction of a lower one can commit positions of it.

        For who hands out partitions, before it hands them to others.

        Raises:
            TransactionAbortableError: the group has a higher one.
        """
        self.database.transaction(lambda connection: self._enter(connection, group, generation))

    # What nobody may be left to do

    def reap(self) -> int:
        """Aborts transactions that were open for longer than their time-out; how many.

        Raises:
            ConcurrentTransactionError: markers of some could not be written. They are aborted all the same, and
                `recover` writes them.
        """
        return self._reap([])

    def recover(self) -> Recovered:
        """Writes the markers of everything that is decided and not completed, and aborts what is open for too long.

        For the start of a process, and now and then. Harmless while others commit: their markers may be written twice.

        Raises:
            ConcurrentTransactionError: markers of some could not be written. All others are; call again.
        """
        failures: list[ConcurrentTransactionError] = []
        prepared = PRODUCERS.c.state.in_([int(it) for it in PREPARED])
        completed = self._each(select(PRODUCERS.c.transactional_id).where(prepared), self._take_over, failures)
        return Recovered(completed, self._reap(failures))

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

    def _open(self, connection: Connection, held: Held, after: Transaction) -> None:
        if after is not held.transaction:
            has_markers = self.write_marker is not None
            if held.transaction.state is State.ONGOING:
                has_markers |= held.has_markers
            save(connection, held._replace(transaction=after, has_markers=has_markers))

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
        generation: int | None,
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
                insert_if_missing(self.database, connection, POSITIONS, empty)
            if before is None:
                check_position(group, partition, expected, committed.get(partition))
            elif (before.expected, before.position) != (expected, position):
                check_position(group, partition, expected, before.position)
                expected = before.expected
            row = {"partition": partition, "expected": expected, "position": position, "generation": generation}
            new.append({"transactional_id": transactional_id, "group_id": group} | row)
        connection.execute(STAGED.delete().where(mine & STAGED.c.partition.in_([it[0] for it in rows])))
        connection.execute(STAGED.insert(), new)

    def _enter(self, connection: Connection, group: str, generation: int) -> None:
        """The group's generation is this one, or a higher one is found out."""
        insert_if_missing(self.database, connection, GROUPS, {"group_id": group, "generation": generation})
        which = GROUPS.c.group_id == group
        found = connection.execute(select(GROUPS.c.generation).where(which).with_for_update()).scalar_one()
        check_generation(group, generation, max(found, generation))
        if found < generation:
            connection.execute(GROUPS.update().where(which).values(generation=generation))

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

        return self._finish(self.database.transaction(prepare))

    def _saved(self, connection: Connection, held: Held, after: Transaction) -> Held:
        """A prepared transaction, completed at once where no partition has to be told."""
        if not held.must_tell:
            after = after.completed(held.now_ms)
        held = held._replace(transaction=after)
        save(connection, held)
        return held

    def _finish(self, held: Held) -> ProducerIdentity:
        """Writes the markers of a prepared transaction and completes it. The identity that follows."""
        prepared = held.transaction
        if prepared.state not in PREPARED:
            return prepared.identity
        outcome: Outcome = "commit" if prepared.state is State.PREPARE_COMMIT else "abort"
        name = f"transactional id {prepared.transactional_id!r}: {outcome} of producer {prepared.pid} is decided"
        if self.write_marker is None:
            raise ConcurrentTransactionError(f"{name}, and its markers wait for a coordinator with a write_marker")
        for partition in sorted(prepared.partitions, key=to_text):
            try:
                self.write_marker(prepared.pid, prepared.epoch, partition, outcome, held.coordinator_epoch)
            except Exception as error:
                raise ConcurrentTransactionError(
                    f"{name}, but the marker for partition {partition!r} could not be written ({error}): call again, "
                    "or recover()"
                ) from error

        def complete(connection: Connection) -> ProducerIdentity:
            found = hold(self.database, connection, transactional_id=prepared.transactional_id)
            assert found is not None, "what is prepared does not expire"
            completed = prepared.completed(found.now_ms)
            # Another may have completed it, and its producer may have gone on.
            if found.transaction == prepared:
                save(connection, found._replace(transaction=completed))
            return completed.identity

        return self.database.transaction(complete)

    def _taken(self, connection: Connection, held: Held) -> Held:
        """Others who are writing the same markers have a lower coordinator epoch from now on."""
        held = held._replace(coordinator_epoch=held.coordinator_epoch + 1)
        save(connection, held)
        return held

    def _take_over(self, transactional_id: str) -> bool:
        """Finishes what is decided of this id; whether something was."""

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            return self._taken(connection, held) if held and held.transaction.state in PREPARED else None

        if (held := self.database.transaction(work)) is not None:
            self._finish(held)
        return held is not None

    def _reap(self, failures: list[ConcurrentTransactionError]) -> int:
        late = PRODUCERS.c.started_ms + PRODUCERS.c.timeout_ms < literal_column(self.database.clock)
        query = select(PRODUCERS.c.transactional_id).where((PRODUCERS.c.state == int(State.ONGOING)) & late)
        aborted = self._each(query, self._time_out, failures)
        if failures:
            raise ConcurrentTransactionError(
                f"{len(failures)} transactions are decided and not completed, the first: {failures[0]}"
            ) from failures[0]
        return aborted

    def _time_out(self, transactional_id: str) -> bool:
        fresh_pid = self.registry.pids.take()

        def work(connection: Connection) -> Held | None:
            held = hold(self.database, connection, transactional_id=transactional_id)
            if held is None or not held.transaction.is_timed_out(held.now_ms):
                return None
            after = held.transaction.fenced(held.now_ms, fresh_pid)
            end(connection, held.transaction, after)
            return self._saved(connection, held, after)

        held = self.database.transaction(work)
        if held is None or fresh_pid not in (held.transaction.pid, held.transaction.next_pid):
            self.registry.pids.give_back(fresh_pid)
        if held is not None:
            self._finish(held)
        return held is not None

    def _each(self, query: Select[Any], act: Callable[[str], bool], failures: list[ConcurrentTransactionError]) -> int:
        """Acts on every transactional id; how many had something to do. Those that cannot be finished are told."""
        ids: list[str] = self.database.transaction(lambda connection: list(connection.execute(query).scalars()))
        done = 0
        for transactional_id in ids:
            try:
                done += act(transactional_id)
            except ConcurrentTransactionError as failure:
                failures.append(failure)
        return done


def _checked_offsets(group: str, offsets: Offsets) -> list[tuple[str, int, int]]:
    """(partition as text, expected, next position), in the order of keys."""
    if not isinstance(group, str) or not group:
        raise PolicyError(f"group={group!r}: a name was expected")
    checked_partitions(offsets)
    rows = []
    for partition, (expected, position) in offsets.items():
        start = 0 if expected is None else expected
        if start < 0 or position < start:
            raise PolicyError(
                f"group {group!r}, partition {partition!r}: next position {position} after {expected}: positions are "
                "at least 0 and do not go back"
            )
        rows.append((to_text(partition), start, position))
    return sorted(rows)
