"""The producer: passes rows to a sequencer, and the sequencer's requests to a transport."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from fencepost.errors import (
    BatchError,
    CapacityError,
    ConcurrentTransactionError,
    FencedError,
    FencepostError,
    OutcomeUnknownError,
    PolicyError,
    StoreError,
    TransactionAbortableError,
    TransactionStateError,
    TransportError,
)
from fencepost.inputs import is_text, rows_of
from fencepost.metrics import counter, gauge
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.identities import CHECKPOINT_VERSION, Identities, Registry, read_checkpoint, read_identity
from fencepost.producer.sequencer import EPOCH_MAX, Batch, Delivered, Identity, Numbers, Request, Sequencer, step
from fencepost.producer.settings import Settings
from fencepost.producer.stamping import Router, cut, joined, own_copy, read_positions, stamp, stamp_positions
from fencepost.producer.transport import Coordinator, SequencedBatch, Transport

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("fencepost.producer")
TIMEOUT_MS = 60_000
_NOTHING = "nothing of this call was sent"
_COUNTED = {
    "requests": "Batches that were given to the transport, each try counted.",
    "delivered_rows": "Rows that were acknowledged.",
    "duplicate_rows": "Rows that were acknowledged, and that the transport had before.",
    "failed_rows": "Rows that were refused, expired or dropped.",
}
_HELD = {
    "buffered_rows": "Rows without an outcome.",
    "buffered_bytes": "Bytes of the rows without an outcome.",
    "buffered_batches": "Batches without an outcome.",
}
COMMITS = 5
"""How many times `transaction()` tries to commit."""
_THREAD = threading.local()
"""`producer`: the producer that owns the current thread, if any."""


class Delivery(Future[Delivered]):
    """The pending outcome of sent rows: `result()` returns a `Delivered` or raises the error.

    Callbacks run on a thread of the producer. On that thread, `result()` and `exception()` of a pending delivery raise
    PolicyError, as do the producer's blocking calls.
    """

    def __init__(
        self,
        partition: int,
        rows: int,
        producer: SequencedProducer,
        start: int = 0,
        positions: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.partition = partition
        self.rows = rows
        self._producer = producer
        self._start, self._positions = start, positions

    def _part_of(self, outcome: Delivered) -> Delivered:
        """Return the outcome of these rows. They begin at `start` within the batch."""
        if self.rows == outcome.rows:
            return outcome
        first_seq = step(outcome.first_seq, self._start)
        first_seq, last_seq = self._positions or (first_seq, step(first_seq, self.rows - 1))
        offset = None if outcome.offset is None else outcome.offset + self._start
        return outcome._replace(offset=offset, rows=self.rows, first_seq=first_seq, last_seq=last_seq)

    def result(self, timeout: float | None = None) -> Delivered:
        if not self.done():
            self._producer._check_waits("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._producer._check_waits("exception()")
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Return False: the rows may already be in the log."""
        return False


class PartitionQueue:
    """The queue of requests of one partition to the transport, sent one at a time."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.is_busy = False


class SequencedProducer:
    """Delivers each row exactly once, by numbers that let a log, table or folder distinguish a retry from a new row.

    Rows are Arrow data (any object with the PyCapsule protocol), a mapping of columns, or a list of dicts. The producer
    assigns them to partitions, adds pid, epoch, partition and seq, and sends them, in order per partition. It resends
    unacknowledged rows under the same numbers. It reacts to each answer like Kafka's client (`spec/client`).

    Args:
        transport: The destination (`Transport`).
        partitions: The number of partitions, for a transport that does not define it.
        key: The column whose hash selects the partition, as in Kafka's client.
        partition_by: The column that contains the partition. Without ``key`` and ``partition_by``, each call's rows go
            to the next partition.
        name: Identifies the producer across restarts. The registry assigns it the same pid with the next epoch and
            fences its predecessor. A running producer renews a name that can expire. Without a name the pid is new and
            unique.
        registry: Assigns identities (`Registry`). Default: the coordinator, if it has `init_producer`. A name needs one
            of the two. Without a name and a registry, the pid is a random number.
        coordinator: Enables transactions. The name is the transactional id.
        topic: With a coordinator: the topic under which the `routes` of the coordinator have this transport.
        resume: A checkpoint of the previous producer of this name.
        position: Enables cursor mode. The column holds each row's position in its source, which serves as its sequence.
            A restarted producer sends the same numbers, and the log drops those it has. Positions must rise within a
            partition. With several partitions, ``key`` (never null) or ``partition_by`` must select the partition.
        settings: The fields of `Settings`.

    Raises:
        PolicyError: The settings contradict each other.
        TransportError: The destination has rows of this identity already.
        FencepostError: Any error of the registry.

    >>> import fencepost as fp
    >>> from fencepost.producer import Answer
    >>> class Printer:
    ...     def send(self, batch):
    ...         print(batch.partition, batch.first_seq, batch.last_seq, batch.rows["event"].to_pylist())
    ...         return Answer(offset=batch.first_seq)
    >>> with fp.SequencedProducer(Printer(), partitions=2, key="user") as producer:
    ...     [delivery] = producer.send([{"user": "ann", "event": "login"}, {"user": "ann", "event": "logout"}])
    ...     delivery.result().offset
    0 0 1 ['login', 'logout']
    0
    """

    def __init__(
        self,
        transport: Transport,
        *,
        partitions: int | None = None,
        key: str | None = None,
        partition_by: str | None = None,
        name: str | None = None,
        registry: Registry | None = None,
        coordinator: Coordinator | None = None,
        topic: str | None = None,
        resume: Mapping[str, Any] | None = None,
        position: str | None = None,
        transaction_timeout_ms: int = TIMEOUT_MS,
        **settings: Any,
    ) -> None:
        self._settings = _settings(settings, position is not None)
        if registry is None:
            registry = cast("Registry", coordinator) if hasattr(coordinator, "init_producer") else None
        _check(transport, name, registry, position)
        _check_transactions(transport, name, coordinator, topic, position)
        before = read_checkpoint(resume, name)
        count = getattr(transport, "partitions", 1) if partitions is None else partitions
        self._router = Router(count, key=key, partition_by=partition_by, position=position)
        _check_count(transport, partitions)
        self._transport, self._position = transport, position
        self._coordinator, self._topic = coordinator, "" if topic is None else topic
        self._identities = Identities(registry, name, transaction_timeout_ms)
        identity = self._identities.first(before)
        self._fence = getattr(transport, "fence", None)
        if name is not None:
            self._fence_predecessors(identity)
        self._sequencer = Sequencer(
            identity,
            self._settings.limits(positions=position is not None),
            transactional=coordinator is not None,
            asks=name is not None or self._fence is not None,
        )
        self._positions: dict[int, int] = {}  # the last one of each partition, in cursor mode
        self._deliveries: dict[Batch, list[Delivery]] = {}
        self._buffered, self._buffered_bytes = 0, 0
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._undelivered: FencepostError | None = None
        self._joined: set[int] | None = None  # the partitions of the open transaction
        self._is_ending = False  # that transaction is being decided and accepts no more rows
        self._is_aborting = False  # the decision is an abort, which drops unsent rows
        # the error of an attempt to end the transaction that may have decided it
        self._undecided: FencepostError | None = None
        self._decider: int | None = None  # the thread that waits for the decision
        self._queues: dict[int, PartitionQueue] = {}
        self._successor: Identity | None = None
        self._is_closed = False
        self._process = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._pool = ThreadPoolExecutor(self._settings.threads, "fencepost-producer", self._mark_thread)
        self._settled: SimpleQueue[Batch | None] = SimpleQueue()
        self._threads = self._start_threads()

    def _start_threads(self) -> list[threading.Thread]:
        targets = [self._run, self._deliver]
        if self._identities.keep_alive_ms is not None:
            targets.append(self._keep)
        threads = [
            threading.Thread(target=it, name=f"fencepost-{it.__name__.strip('_')}", daemon=True) for it in targets
        ]
        for thread in threads:
            thread.start()
        return threads

    # Calls of the application

    @property
    def identity(self) -> Identity:
        """The producer id and epoch of new rows. See `previous_pid`."""
        with self._changed:
            return self._sequencer.identity

    @property
    def previous_pid(self) -> int | None:
        """The pid of this name before the current one, if the name expired or its epochs were used up.

        Data that an application stores by the old pid is obsolete: sequences restarted. A registry reports it with each
        identity until the pid changes again. None: the name had no other pid, the registry does not report it, or there
        is no name.
        """
        with self._changed:
            found: int | None = getattr(self._identities.latest, "previous_pid", None)
            return found

    def send(self, rows: Any) -> list[Delivery]:
        """Send rows. Returns one delivery per partition, in order of partitions, or several for large tables.

        Copies the rows, except Arrow and polars data: do not change the memory below an Arrow table before its outcome.
        The index of a pandas DataFrame is a column if it has a name.

        Rows of several calls share a batch if they arrive within `linger_ms` and have the same columns. A batch is
        delivered or refused as a whole. Blocks while `buffer_rows` rows or `buffer_bytes` bytes are pending.

        On an error, nothing of the call is sent.

        Raises:
            BatchError: Invalid rows (column, row).
            CapacityError: No room within `max_block_ms`; in a callback, at once.
            FencepostError: The error that stopped the producer or its transaction.
        """
        table, settings = own_copy(rows, rows_of(rows, _NOTHING)), self._settings
        self._check_process("send()")
        with self._changed:
            self._check_open()
            self._make_room(table.num_rows, table.nbytes)
            parts = self._router.deal(table)
            positions = self._last_positions(parts)
            self._join(number for number, _ in parts)
            self._positions |= positions
            pieces = [
                (it, piece) for it, part in parts for piece in cut(part, settings.batch_rows, settings.batch_bytes)
            ]
            deliveries = [self._add(number, piece) for number, piece in pieces]
            self._changed.notify_all()
        return deliveries

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every row that was sent before the call has an outcome.

        Raises:
            FencepostError: The first failure since the last `flush`, mostly a DeliveryError.
            TimeoutError: Not finished after `timeout` seconds. Delivery continues.
            PolicyError: Called in a callback of the producer. `flush` would wait for the end of this callback, and the
                callback for `flush`.
        """
        self._check_waits("flush()")
        with self._changed:
            self._send_waiting()
            # Other threads may send more, and the wait for their rows could have no end.
            self._wait_for_outcomes(set(self._deliveries), timeout, "delivery continues")

    def _wait_for_outcomes(self, batches: Set[Batch], timeout: float | None, otherwise: str) -> None:
        """Raise the first failure, and TimeoutError. `otherwise`: what happens to batches that have no outcome in time.
        The caller holds the lock."""
        pending = self._deliveries.keys()
        if not self._changed.wait_for(lambda: batches.isdisjoint(pending), timeout):
            raise TimeoutError(f"{len(batches & pending)} batches have no outcome after {timeout} s; {otherwise}")
        error, self._undelivered = self._undelivered, None
        if error is not None:
            raise error

    def checkpoint(self, position: Any = None) -> dict[str, Any]:
        """Flush, and return a checkpoint for `resume`: plain values to store with the application's own state.

        `position`: any value that the application wants to store with it, such as its position in the source. Raises
        the errors of `flush`, and PolicyError for a producer without a name.
        """
        if self._identities.name is None:
            raise PolicyError("a producer without a name cannot resume: pass name= and registry=")
        self.flush()
        with self._changed:
            pid, epoch = self._sequencer.identity
            partitions = {
                str(number): {"next_seq": it.next_seq, "last_offset": it.last_acked_offset}
                for number, it in sorted(self._sequencer.partitions.items())
            }
        return {
            "version": CHECKPOINT_VERSION, "name": self._identities.name, "pid": pid, "epoch": epoch,
            "partitions": partitions, "position": position,
        }  # fmt: skip

    def metrics(self) -> dict[str, int]:
        """Return the metrics of this producer. Counters start at its creation; buffer values are current.

        | name | meaning |
        |---|---|
        | `requests` | batches passed to the transport, counting each try |
        | `delivered_rows` | acknowledged rows |
        | `duplicate_rows` | acknowledged rows in batches that the transport already had |
        | `failed_rows` | rows refused, expired or dropped |
        | `buffered_rows`, `buffered_bytes`, `buffered_batches` | pending now |
        """
        with self._changed:
            return self._counts | {
                "buffered_rows": self._buffered,
                "buffered_bytes": self._buffered_bytes,
                "buffered_batches": len(self._deliveries),
            }

    def collect(self) -> Iterator[Metric]:
        """Yield the same metrics as `prometheus_client` families, labeled by name or pid. See `fencepost.metrics`."""
        found = self.metrics()
        by = {"producer": self._identities.name or str(self.identity.pid)}
        for name, about in _COUNTED.items():
            yield counter(f"fencepost_producer_{name}", about, found[name], by)
        for name, about in _HELD.items():
            yield gauge(f"fencepost_producer_{name}", about, found[name], by)

    def close(self, timeout: float | None = None) -> None:
        """Deliver sent rows and stop. Aborts an open transaction.

        Raises PolicyError, and changes nothing, if it is called in a callback of the producer, in a forked process, or
        by the thread that is in `commit` or `abort` (such as in `work`). Raises the errors of `flush` and `abort`; the
        producer is closed then, too. Does not close the transport.
        """
        self._check_waits("close()")
        self._check_undecided("close()")
        try:
            if self._joined is not None:
                self.abort()
            elif not self._is_closed:
                with self._changed:
                    self._send_waiting()
                    otherwise = "the producer is closed, and they may or may not be in the log"
                    self._wait_for_outcomes(self._deliveries.keys(), timeout, otherwise)
        finally:
            self._stop_threads("the producer was closed")

    def __enter__(self) -> SequencedProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._is_own_thread() and self._process == os.getpid():
            try:
                with contextlib.suppress(Exception):
                    if self._joined is not None:
                        self.abort()
            finally:
                self._stop_threads(f"the producer was closed by {error!r}")

    # Transactions

    def begin(self) -> None:
        """Begin a transaction: rows sent until `commit` become visible together or not at all."""
        coordinator = self._transactional()
        self._check_waits("begin()")
        if self._is_aborting:
            self.abort()  # an outage may have left its outcome open
        with self._changed:
            self._check_open()
            if self._joined is not None:
                raise PolicyError("a transaction is open: commit or abort it first")
        self.flush()
        coordinator.begin(self._identities.latest)
        with self._changed:
            self._joined = set()

    def commit(self, work: Any = None) -> None:
        """Commit the transaction: make its rows visible. `work`: as in `TransactionCoordinator.commit`.

        The producer accepts no rows until the outcome is known.

        Raises:
            TransactionAbortableError: Some rows were not delivered. Call `abort`.
            FencedError: Another producer has taken over. Nothing becomes visible, unless an earlier call whose outcome
                is unknown decided the commit: `TransactionCoordinator.decision` has the outcome.
            TransactionStateError: The transaction was aborted, because it was late. Call `abort`, then begin again.
            ConcurrentTransactionError, OutcomeUnknownError: It may be decided. Call again.
            StoreError: The coordinator's database is not available, nothing is decided. Call again, or abort.
            PolicyError: Called in a callback of the producer or within `work`.
        """
        self._check_waits("commit()")
        self._in_transaction()
        self._check_undecided("commit()")
        self._check_not_aborting()
        while not self._is_ending:
            try:
                self.flush()
            except FencepostError as error:
                with self._changed:
                    self._sequencer.check()
                raise TransactionAbortableError(f"{error.message}. The transaction can only be aborted") from error
            with self._changed:
                self._sequencer.check()
                self._in_transaction()
                self._check_not_aborting()
                self._is_ending = not self._deliveries  # other threads may have sent rows since
        self._check_not_aborting()  # begun by another thread: `_is_ending` is set, and rows may be missing
        decide = self._transactional().commit
        self._end(decide if work is None else lambda identity: decide(identity, work))

    def abort(self) -> None:
        """Abort the transaction: its rows never become visible. Drops rows that were not sent yet.

        From then on the transaction can only be aborted.

        Raises:
            TransactionStateError: An earlier `commit` decided the transaction. Call `commit` again to complete it.
            StoreError, ConcurrentTransactionError, OutcomeUnknownError: Call again, or call `begin`, which aborts
                first.
            PolicyError: Called in a callback of the producer or within the `work` of a commit.
        """
        self._check_waits("abort()")
        self._in_transaction()
        self._check_undecided("abort()")
        dropped = TransactionAbortableError("the transaction was aborted before this batch was sent")
        with self._changed:
            self._is_ending = self._is_aborting = True
            self._sequencer.drop_unsent(dropped)
            self._settle()
            self._changed.wait_for(lambda: not self._deliveries)
            self._undelivered = None
            if self._sequencer.fatal is not None:
                self._ended()
                raise self._sequencer.fatal
        try:
            self._end(self._transactional().abort)
        except TransactionStateError as error:
            self._is_aborting = False
            advice = "an earlier commit() decided this transaction, and its rows are committed. Call commit() again"
            raise TransactionStateError(f"{advice} ({error.message})") from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[SequencedProducer]:
        """Run a transaction: commit at the end of the block, abort if it raises.

        Retries a commit a few times if its outcome is unknown, or if it is decided but not complete. If the retries
        fail, the transaction stays open for `commit`: it may be visible already. If the abort after an exception fails
        too, the exception is still raised, and `begin` aborts first.
        """
        self.begin()
        try:
            yield self
            undone = self._try_to_commit()
        except BaseException:
            with contextlib.suppress(Exception):
                if self._joined is not None:
                    self.abort()
            raise
        if undone is not None:
            raise undone

    def _try_to_commit(self) -> FencepostError | None:
        """Return the error of the last attempt if the commit is not known to be complete."""
        pause_ms, last = self._settings.retry_backoff_ms, None
        for left in reversed(range(COMMITS)):
            try:
                self.commit()
            except (ConcurrentTransactionError, OutcomeUnknownError) as error:
                last = error
            else:
                return None
            if left:
                time.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, self._settings.retry_backoff_max_ms)
        return last

    def _transactional(self) -> Coordinator:
        if self._coordinator is None:
            raise PolicyError("transactions need a coordinator: SequencedProducer(..., name=..., coordinator=...)")
        return self._coordinator

    def _in_transaction(self) -> None:
        self._transactional()
        if self._joined is None:
            raise PolicyError("no transaction is open: call begin() first")

    def _check_not_aborting(self) -> None:
        if self._is_aborting:
            raise TransactionAbortableError("an abort has begun and has dropped unsent rows: call abort() again")

    def _end(self, decide: Any) -> None:
        self._decider = threading.get_ident()
        try:
            self._identities.latest = decide(self._identities.latest)
            identity = read_identity(self._identities.latest)
        except FencedError as error:
            with self._changed:
                self._stop(error)
                self._ended()
            raise
        except (ConcurrentTransactionError, OutcomeUnknownError) as error:
            self._undecided = error
            raise
        except StoreError as error:
            if self._undecided is None:
                raise
            # This attempt decided nothing, but the one before may have.
            raise type(self._undecided)(f"{self._undecided.message}. The next try: {error.message}") from error
        finally:
            self._decider = None
        with self._changed:
            self._sequencer.transaction_ended(identity)
            self._ended()

    def _ended(self) -> None:
        self._joined, self._undecided = None, None
        self._is_ending = self._is_aborting = False

    def _join(self, partitions: Iterator[int]) -> None:
        """Register partitions with the coordinator before the first write to them."""
        if self._coordinator is None:
            return
        if self._joined is None:
            raise PolicyError("a transactional producer sends only inside a transaction: call begin() first")
        if self._is_ending:
            raise PolicyError(
                "the transaction is ending and may be decided already: call commit() or abort() again, then begin()"
            )
        new = sorted(set(partitions) - self._joined)
        if new:
            try:
                self._coordinator.add_partitions(self._identities.latest, [(self._topic, number) for number in new])
            except FencedError as error:
                raise self._error_of_bump(error) from error
            self._joined.update(new)

    def _error_of_bump(self, error: FencedError) -> FencepostError:
        """Return the error for a raised epoch of this transaction. The caller holds the lock.

        The transaction either timed out, which is recoverable by `abort`, or another producer has taken over, which is
        final.
        """
        try:
            self._transactional().abort(self._identities.latest)
        except FencedError:
            self._stop(error)
            return error
        except FencepostError:
            pass  # unknown for now; abort will find out
        problem = "the transaction was open for too long, so it was aborted. Call abort(), then begin another one"
        late = TransactionAbortableError(f"{problem} ({error.message})")
        self._sequencer.abortable = late  # for all further calls
        return late

    # Callbacks

    def _mark_thread(self) -> None:
        """Mark the current thread as the producer's. Code on it must not wait for the producer."""
        _THREAD.producer = self

    def _is_own_thread(self) -> bool:
        return getattr(_THREAD, "producer", None) is self

    def _check_waits(self, call: str) -> None:
        """Raise PolicyError for a call that would wait for its own thread, or for the threads of a parent process."""
        self._check_process(call)
        if self._is_own_thread():
            raise PolicyError(
                f"{call} inside a callback of the producer would wait for its own thread. Call it from another "
                "thread, after the callback has returned (send() does not wait and is allowed)"
            )

    def _check_process(self, call: str) -> None:
        """Raise PolicyError in a fork, which has no thread that sends."""
        if self._process != os.getpid():
            raise PolicyError(
                f"{call}: process {self._process} opened the producer, and this process is a fork of it, in which "
                "nothing is sent: open a producer after the fork"
            )

    def _check_undecided(self, call: str) -> None:
        """Raise PolicyError for a call from within the decision that it would wait for."""
        if self._decider == threading.get_ident():
            raise PolicyError(
                f"{call} while this thread commits or aborts the transaction: call it after commit() or abort() "
                "has returned"
            )

    # Accepting rows

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("the producer is closed: open another one")
        self._sequencer.check()

    def _last_positions(self, parts: list[tuple[int, Any]]) -> dict[int, int]:
        column, before = self._position, self._positions
        if column is None:
            return {}
        return {number: read_positions(part, column, before.get(number))[1] for number, part in parts}

    def _make_room(self, rows: int, size: int) -> None:
        """Wait until this number of rows and bytes fits. A call larger than the buffer waits until it is empty."""
        rows_max, bytes_max = self._settings.buffer_rows, self._settings.buffer_bytes
        block_ms = 0 if self._is_own_thread() else self._settings.max_block_ms

        def has_room() -> bool:
            fits = self._buffered + rows <= rows_max and self._buffered_bytes + size <= bytes_max
            return not self._buffered or fits or self._is_closed

        if not has_room():
            self._send_waiting()
        if not self._changed.wait_for(has_room, block_ms / 1000):
            waited = (
                f"No room became free within max_block_ms={block_ms}"
                if block_ms
                else "This call came from a callback of the producer, which cannot wait for room"
            )
            is_rows = self._buffered + rows > rows_max
            held, more, bound, name = (
                (f"{self._buffered} rows", rows, rows_max, "buffer_rows")
                if is_rows
                else (f"{self._buffered_bytes} bytes of rows", size, bytes_max, "buffer_bytes")
            )
            raise CapacityError(
                f"{name}={bound} would be exceeded: {held} have no outcome yet, and this call has {more} more. "
                f"{waited}. Nothing of this call was sent",
                limit=bound,
            )
        self._check_open()

    def _send_waiting(self) -> None:
        """Send batches that wait for more rows. The caller holds the lock."""
        for batch in self._deliveries:
            batch.ready_ms = 0
        self._changed.notify_all()

    def _add(self, number: int, piece: Any) -> Delivery:
        """Add a partition's rows, or a piece of them, to the open batch or to a new one."""
        positions = None
        if self._position is not None:
            column = piece[self._position]
            positions = (column[0].as_py(), column[-1].as_py())
        batch = self._sequencer.waiting(number)
        start = 0
        if batch is not None and self._can_join(batch, piece):
            start = batch.count
            batch.payload.append(piece)
            batch.count += piece.num_rows
            if batch.positions is not None and positions is not None:
                batch.positions = batch.positions[0], positions[1]
        else:
            batch = Batch(number, piece.num_rows, [piece], _now_ms(), positions)
            batch.ready_ms = batch.created_ms + self._settings.linger_ms
            self._sequencer.add(batch)
            self._deliveries[batch] = []
        batch.bytes += piece.nbytes
        if batch.count >= self._settings.batch_rows or batch.bytes >= self._settings.batch_bytes:
            batch.ready_ms = 0
        delivery = Delivery(number, piece.num_rows, self, start, positions)
        self._deliveries[batch].append(delivery)
        self._buffered += piece.num_rows
        self._buffered_bytes += piece.nbytes
        return delivery

    def _can_join(self, batch: Batch, piece: Any) -> bool:
        settings = self._settings
        return bool(
            settings.linger_ms
            and batch.count + piece.num_rows <= settings.batch_rows
            and batch.bytes + piece.nbytes <= settings.batch_bytes
            and batch.payload[0].schema.equals(piece.schema)
        )

    # Sending

    def _run(self) -> None:
        """The sender thread: executes requests of the sequencer until the producer is closed."""
        self._mark_thread()
        try:
            with self._changed:
                while not self._is_closed:
                    self._poll_once()
        except BaseException as error:
            with self._changed:
                self._stop(
                    TransportError(f"the sender thread failed unexpectedly: {error!r}. The producer has stopped")
                )
            raise

    def _poll_once(self) -> None:
        requests = self._sequencer.poll(_now_ms())
        for request in requests:
            self._enqueue(request)
        self._settle()
        if self._sequencer.wanted is not None and self._sequencer.fatal is None:
            self._change_identity(self._sequencer.wanted)
        elif not requests:
            due = self._sequencer.wake_ms()
            self._changed.wait(None if due is None else max(0.0, (due - _now_ms()) / 1000))

    def _enqueue(self, request: Request) -> None:
        queue = self._queues.setdefault(request.batch.partition, PartitionQueue())
        queue.requests.append(request)
        if not queue.is_busy:
            queue.is_busy = True
            self._pool.submit(self._send_queue, queue)

    def _send_queue(self, queue: PartitionQueue) -> None:
        """Send the requests of a partition in order."""
        while True:
            with self._changed:
                while queue.requests and not self._sequencer.is_wanted(queue.requests[0].id):
                    self._sequencer.withdrawn(queue.requests.popleft().id)
                if not queue.requests:
                    queue.is_busy = False
                    return
                request = queue.requests.popleft()
                self._counts["requests"] += 1
                payload = request.batch.payload
            try:
                result = self._transport.send(self._stamped(request.batch, request.numbers, payload))
            except BaseException as error:  # also of an exit or a cancellation: the pool would drop it, and the answer
                self._answer(request.id, error)
                continue
            if hasattr(result, "add_done_callback"):
                result.add_done_callback(lambda future, id=request.id: self._answer(id, _outcome(future)))
            else:
                self._answer(request.id, result)

    def _stamped(self, batch: Batch, numbers: Numbers, pieces: list[Any]) -> SequencedBatch:
        (pid, epoch), first_seq = numbers
        payload = joined(pieces)
        if self._position is None:
            rows = stamp(payload, pid, epoch, batch.partition, first_seq)
        else:
            rows = stamp_positions(payload, pid, epoch, batch.partition, self._position)
        last_seq, is_transactional = batch.last_seq_from(first_seq), self._coordinator is not None
        cursor = None if self._position is None else self._identities.name
        return SequencedBatch(
            batch.partition, pid, epoch, first_seq, last_seq, batch.count, rows, is_transactional, cursor
        )

    def _answer(self, id: int, result: Any) -> None:
        with self._changed:
            try:
                if isinstance(result, BaseException):
                    answer = _answer_of(result)
                    if answer is None:
                        self._sequencer.broken(id, repr(result))
                    self._sequencer.answered(id, answer, _now_ms())
                else:
                    self._sequencer.answered(id, result, _now_ms())
            except TransportError as error:
                if isinstance(result, BaseException):
                    error.__cause__ = result
            self._settle()
            self._changed.notify_all()

    # Epochs

    def _fence_predecessors(self, identity: Identity) -> None:
        """Fence earlier owners of the name, under this pid and under the previous one. Raises TransportError if one has
        written under this identity."""
        if self._fence is None:
            return
        previous_pid = getattr(self._identities.latest, "previous_pid", None)
        if previous_pid is not None and previous_pid != identity.pid:
            self._fence(previous_pid, EPOCH_MAX, None)
        found = self._fence(identity.pid, identity.epoch, None) or {}
        for number, (epoch, last_seq) in found.items():
            if epoch == identity.epoch and last_seq >= 0:
                raise TransportError(
                    f"the registry issued pid {identity.pid} epoch {epoch}, but partition {number} has rows of this "
                    "identity: new rows would count as repeats of them. The registry's database may have been restored "
                    "from a backup: let it issue new pids, as docs/producers-and-transactions.md describes. Nothing "
                    "was sent"
                )

    def _change_identity(self, identity: Identity) -> None:
        """Get the next identity, fence the old one, and find out what it delivered. The caller holds the lock."""
        partitions = self._sequencer.rewritten()
        self._changed.release()
        try:
            found = self._ask(identity, partitions)
            logger.info("new identity: %s, after %s", self._successor, identity)
        except FencedError as error:
            found = error
        except (StoreError, OutcomeUnknownError, OSError) as error:
            seconds = self._settings.retry_backoff_ms / 1000
            logger.warning("no new identity after %s; retrying in %.1f s: %s", identity, seconds, error)
            time.sleep(seconds)
            return  # retried in the next turn
        except Exception as error:
            found = TransportError(f"the registry did not issue the next epoch: {error!r}. The producer has stopped")
        finally:
            self._changed.acquire()
        if isinstance(found, FencepostError):
            self._stop(found)
            return
        for number, (epoch, last_seq) in found.items():
            # The partition may still be at an earlier epoch than the current one.
            self._sequencer.found(number, Identity(identity.pid, epoch), last_seq)
        assert self._successor is not None
        self._sequencer.set_successor(self._successor, partitions)
        self._successor = None

    def _ask(self, identity: Identity, partitions: list[int]) -> Any:
        if self._successor is None:
            self._successor = self._identities.next(identity)
        if self._fence is None:
            return {}
        if self._successor.pid == identity.pid:
            return self._fence(identity.pid, self._successor.epoch, partitions) or {}
        if identity.epoch < EPOCH_MAX:
            return self._fence(identity.pid, EPOCH_MAX, partitions) or {}
        return {}

    def _keep(self) -> None:
        """Renew the name while the producer runs, even if it sends nothing."""
        self._mark_thread()
        wait_ms = interval_ms = self._identities.keep_alive_ms or 0
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closed, wait_ms / 1000):
                    return
            try:
                self._identities.keep_alive()
                wait_ms = interval_ms
            except Exception as error:  # probably an outage of the registry; retried
                wait_ms = min(interval_ms, self._settings.retry_backoff_max_ms)
                logger.warning("the name was not renewed; retrying in %.1f s: %s", wait_ms / 1000, error)

    # Outcomes

    def _stop(self, error: FencepostError) -> None:
        self._sequencer.stop(error)
        self._settle()
        self._changed.notify_all()

    def _settle(self) -> None:
        """Release batches that have an outcome. The caller holds the lock."""
        while self._sequencer.settled:
            self._settled.put(self._sequencer.settled.popleft())

    def _deliver(self) -> None:
        """Report outcomes to the application, in a thread of their own: callbacks may send or block."""
        self._mark_thread()
        while (batch := self._settled.get()) is not None:
            outcome = batch.outcome
            for delivery in self._deliveries[batch]:
                # A callback that exits or is cancelled must not end this thread: flush() waits for it.
                with contextlib.suppress(BaseException):
                    if isinstance(outcome, Delivered):
                        delivery.set_result(delivery._part_of(outcome))
                    else:
                        delivery.set_exception(outcome)
            with self._changed:
                if not isinstance(outcome, Delivered):
                    self._undelivered = self._undelivered or outcome
                    self._counts["failed_rows"] += batch.count
                else:
                    self._counts["delivered_rows"] += batch.count
                    self._counts["duplicate_rows"] += batch.count if outcome.is_duplicate else 0
                del self._deliveries[batch]
                self._buffered -= batch.count
                self._buffered_bytes -= batch.bytes
                self._changed.notify_all()

    def _stop_threads(self, why: str) -> None:
        """Stop without waiting for the transport's answers, which may never come."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed, is_quiet = True, not self._deliveries
            self._stop(StoreError(f"{why} before this batch had an outcome: it may or may not be in the log"))
        self._settled.put(None)
        for thread in self._threads:
            thread.join()
        self._pool.shutdown(wait=is_quiet)


def _settings(given: dict[str, Any], positions: bool) -> Settings:
    unknown = sorted(given.keys() - Settings.__dataclass_fields__.keys())
    if unknown:
        raise PolicyError(f"{unknown[0]}: unknown setting; settings are {', '.join(Settings.__dataclass_fields__)}")
    return Settings(**given).check(positions=positions)


def _check(transport: Any, name: str | None, registry: Any, position: str | None) -> None:
    """Raise PolicyError for contradictory arguments."""
    if not hasattr(transport, "send"):
        raise PolicyError(f"{type(transport).__name__} is not a transport: it has no send method")
    if name is not None and not (is_text(name) and name):
        raise PolicyError(f"name={name!r}: expected a text of at least one character in UTF-8")
    if name is not None and registry is None:
        raise PolicyError(
            f"name={name!r} needs a registry, which keeps producers of the same name apart: pass registry=, such as a "
            "fencepost.sql.ProducerRegistry"
        )
    if position is not None and name is None:
        raise PolicyError(
            f"position={position!r} needs a name, by which the log recognizes the producer after a restart: pass name="
        )
    if position is not None and not hasattr(transport, "cursor"):
        raise PolicyError(
            f"position={position!r}: {type(transport).__name__} has no cursor mode; LandingTransport has it. Leave "
            "out position=, and commit the source's position with the rows, in a transaction of a coordinator"
        )


def _check_transactions(
    transport: Any, name: str | None, coordinator: Any, topic: str | None, position: str | None
) -> None:
    """Raise PolicyError for contradictory arguments, or if the transaction's rows could never become visible."""
    if coordinator is None:
        if topic is not None:
            raise PolicyError(
                f"topic={topic!r} needs a coordinator, because only transactions use topics: pass coordinator=, or "
                "leave out topic="
            )
        return
    if name is None:
        raise PolicyError(
            "coordinator= needs name=: the producer's name is its transactional id, by which the coordinator fences "
            "zombies"
        )
    routes: Mapping[str, Any] | None = getattr(coordinator, "routes", None)
    if not topic or (routes is not None and topic not in routes):
        known = "" if routes is None else f"; the coordinator's routes: {', '.join(map(repr, routes)) or 'none'}"
        raise PolicyError(
            f"topic={topic!r} is not a topic of the coordinator: pass the topic whose markers the coordinator writes "
            f"with this transport{known}"
        )
    if routes is not None and routes[topic] is None and hasattr(transport, "write_marker"):
        raise PolicyError(
            f"topic={topic!r} has the route None, but the transport's readers wait for markers, so committed "
            f"rows would never become visible. Create the coordinator with routes={{{topic!r}: transport}}"
        )
    if position is not None:
        raise PolicyError(
            f"position={position!r} with a coordinator: a transaction that runs again repeats its positions, "
            "and the log would drop its rows. Leave out position=, and commit the source's position with the rows, in "
            "the transaction"
        )


def _check_count(transport: Any, given: int | None) -> None:
    """Raise PolicyError for another number of partitions than the transport's."""
    own = getattr(transport, "partitions", given)
    if given not in (None, own):
        raise PolicyError(
            f"partitions={given}: the transport has {own}. With another count, rows of a key may go to another "
            "partition, which does not recognize repeats of its earlier rows. Leave out partitions="
        )


def _outcome(future: Any) -> Any:
    try:
        return future.result()
    except BaseException as error:
        return error


def _answer_of(error: BaseException) -> Answer | None:
    """Translate a transport's exception to an answer. None if it violates the contract."""
    if isinstance(error, FencedError):
        return Answer(ErrorCode.PRODUCER_FENCED, message=error.message)
    if isinstance(error, BatchError):
        return Answer(ErrorCode.INVALID_RECORD, message=error.message)
    if isinstance(error, StoreError | OutcomeUnknownError | OSError):
        return Answer(ErrorCode.NETWORK_EXCEPTION, message=f"{type(error).__name__}: {error}")
    return None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
