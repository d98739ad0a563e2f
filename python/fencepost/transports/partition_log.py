"""Writes to `fencepost.kafka.PartitionLog`: rows become records, with one log per partition."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fencepost import Verdict
from fencepost.errors import BatchError, FencedError, PoisonedError, PolicyError, StoreError
from fencepost.kafka import read_batches
from fencepost.kafka.log import PartitionLog, local_folder
from fencepost.kafka.source import topic_and_partition
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.sequencer import step
from fencepost.producer.stamping import IDENTITY
from fencepost.producer.transport import SequencedBatch
from fencepost.state.stores import LocalStore
from fencepost.transports.counts import stored_in

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 32
"""Maximum number of batches that share a sync."""

logger = logging.getLogger("fencepost.transports")

_LOST = "%s: records with offsets from %d to %d were acknowledged, but the log no longer has them. They were not synced"


class PartitionLogTransport:
    """Appends batches of a `SequencedProducer` to logs in Kafka's format.

    Batches that arrive during a sync share the next one. Answers are futures, so five batches of a partition are in
    flight.

    Args:
        logs: A list of open `PartitionLog`, one per partition and in their order, or a folder that contains one per
            partition (`<topic>-0`, ...). The transport opens the logs of a folder, and `close` closes them.
        partitions: The number of partitions of a folder, which stores it permanently in `<topic>.partitions.json`. None
            uses the stored number (1 for a new folder).
        topic: The topic's name.
        key: The column of the records' keys.
        value: The column of the records' values (binary or text). Default: the row as JSON without the identity, which
            is in the batch headers.
        timestamp: The column of the records' timestamps: int64 in milliseconds, or an Arrow timestamp.
        options: Options of `PartitionLog`. `first` is always "zero": if the first batch of a new producer fails, the
            log also refuses the second one. Open logs must have first="zero" too.

    Raises:
        PolicyError: The folder has another number of partitions or is in an object store, first is "any" (no log is
            opened then), or open logs are not in the order of their partitions.
        FencepostError: Any error of opening a log.
    """

    def __init__(
        self,
        logs: str | os.PathLike[str] | Sequence[Any],
        *,
        partitions: int | None = None,
        topic: str = "events",
        key: str | None = None,
        value: str | None = None,
        timestamp: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(logs, str | os.PathLike):
            _check_first(options.get("first", "zero"), "leave out first=")
            folder = local_folder(logs)
            self._writers = _open(folder, topic, _count(folder, topic, partitions), options)
        else:
            opened: list[Any] = list(logs)
            if options or partitions not in (None, len(opened)):
                raise PolicyError(
                    f"{len(opened)} open logs were passed, which determine the number of partitions and the options: "
                    "leave out partitions= and options"
                )
            for log in opened:
                _check_first(getattr(log, "first", "zero"), f"open {log!r} with first='zero'")
            _check_order(opened)
            for folder, name in {(it.path.parent, it.topic) for it in opened if getattr(it, "topic", None)}:
                _count(folder, name, len(opened))
            self._writers = [LogWriter(log, None) for log in opened]
        self.partitions = len(self._writers)
        self._key, self._value, self._timestamp = key, value, timestamp

    def send(self, batch: SequencedBatch) -> Future[Answer]:
        """Append a batch. The future has an answer when the batch is on disk, subject to the log's `sync`."""
        answer: Future[Answer] = Future()
        answer.set_running_or_notify_cancel()  # cannot be cancelled: the batch may already be in the log
        try:
            records = self._records(batch.rows)
        except BatchError as error:
            answer.set_result(Answer(ErrorCode.INVALID_RECORD, message=error.message))
            return answer
        of_log = (batch.pid, batch.epoch, batch.first_seq, records, batch.transactional)
        self._writers[batch.partition].append(of_log, answer)
        return answer

    def fence(self, pid: int, epoch: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """Refuse epochs of a producer below `epoch` from now on, by a marker in each log (`Transport`).

        Returns the producer's last sequences in the named partitions. For all partitions (None) it returns nothing and
        reads no log: the producer has just started.
        """
        found: dict[int, tuple[int, int]] = {}
        if epoch == 0:
            return found  # there was no earlier epoch
        for number in range(self.partitions) if partitions is None else partitions:
            if not self._writers[number].fence_below(pid, epoch):
                raise FencedError(f"pid {pid} epoch {epoch}, partition {number}: a higher epoch has written there")
            # The marker is written, so missing batches can no longer arrive.
            last = None if partitions is None else self._writers[number].last_of(pid)
            if last is not None:
                found[number] = last
        return found

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int = 0) -> Verdict:
        """Write a transaction's end to a partition, for a coordinator, and return the verdict on the marker.

        Idempotent for readers. A marker of a producer that has already advanced is FENCED and changes nothing, so the
        coordinator needs no check. Raises StoreError if the log must be reopened and cannot be; retry the call.
        """
        return self._writers[partition].mark(pid, epoch, outcome, coordinator_epoch)

    def close(self) -> None:
        """Close the logs that the transport opened, after answering all batches. Raises an error of a log after it has
        closed the others."""
        with contextlib.ExitStack() as remaining:
            for writer in self._writers:
                remaining.callback(writer.close)

    def __enter__(self) -> PartitionLogTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Records

    def _records(self, rows: pa.Table) -> pa.Table:
        """Return the columns key, value and timestamp. Raises BatchError for a missing column, and for a value that
        Python or JSON does not have."""
        import pyarrow as pa

        columns = {"key": self._key, "value": self._value, "timestamp": self._timestamp}
        for name in columns.values():
            if name is not None and name not in rows.column_names:
                raise BatchError(f"column '{name}': missing; the rows have {', '.join(rows.column_names)}", column=name)
        found = {what: rows[name] for what, name in columns.items() if name is not None}
        if self._value is None:
            own = _with_exact_times(rows.drop_columns(list(IDENTITY)))
            try:
                found["value"] = pa.array([_as_json(row) for row in own.to_pylist()], pa.binary())
            # such as NaN, a time after the year 9999, or a time zone that this machine does not know
            except (pa.ArrowException, ValueError, OverflowError, LookupError) as error:
                raise BatchError(f"a row cannot be written as JSON: {error}") from error
        return pa.table(found)


class LogWriter:
    """Appends to one log on a thread. Batches that arrive meanwhile share the next append and sync.

    The calling threads write markers, between appends. `log` is None while a log cannot be reopened: each batch and
    marker tries again, and fails with the reason. `reopen`: None if the caller owns the log, and so closes it.
    """

    def __init__(self, log: Any, reopen: Callable[[], Any] | None) -> None:
        self.log = log
        self._reopen = reopen
        self._acknowledged = 0  # the offset after the last record that a caller knows to be in the log
        self._last: dict[int, tuple[int, int]] = {}  # the epoch and last sequence of each pid appended here
        self._lock = threading.RLock()  # held while the log is written or opened
        self._closing, self._is_closed = threading.Lock(), False
        self._queue: SimpleQueue[tuple[Any, Future[Answer]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fencepost-log", daemon=True)
        self._thread.start()

    def append(self, batch: Any, answer: Future[Answer]) -> None:
        with self._closing:
            if not self._is_closed:
                self._queue.put((batch, answer))
                return
        answer.set_exception(PolicyError("the transport is closed: open another one. The batch was not sent"))

    def mark(self, pid: int, epoch: int, outcome: str, coordinator_epoch: int) -> Verdict:
        """Write a marker, and sync it. Raises StoreError if the log does not know what is on disk."""
        with self._lock, self._as_store_errors():
            log = self.opened()
            verdict: Verdict = log.append_marker(pid, epoch, outcome, coordinator_epoch).verdict
            # Under "interval" too: a coordinator never writes this marker again. A refused one may repeat one that is
            # not on disk yet.
            log.sync()
            self._acknowledged = log.log_end
            return verdict

    def fence_below(self, pid: int, epoch: int) -> bool:
        """Refuse a producer's epochs below `epoch` from now on. Returns False if a higher one has written. Raises
        StoreError.

        After a takeover, the log has the new coordinator's epoch and refuses markers with a lower one. This marker has
        no coordinator, so it repeats the epoch of the log.
        """
        with self._lock:
            verdict = self.mark(pid, epoch, "abort", 0)
            if verdict is Verdict.COORDINATOR_FENCED:
                verdict = self.mark(pid, epoch, "abort", _coordinator_epoch_in(self.opened().path, pid))
            if verdict is Verdict.COORDINATOR_FENCED:
                raise StoreError(
                    f"pid {pid} epoch {epoch}: cannot be fenced, because the log refuses its abort marker: the log has "
                    "a higher coordinator epoch than the batches in its files. Call write_marker(pid, epoch, "
                    "partition, 'abort', coordinator_epoch=n) of the transport with n = 1, 2 and so on until it does "
                    "not return COORDINATOR_FENCED, then open the producer again"
                )
            return verdict is not Verdict.FENCED

    def last_of(self, pid: int) -> tuple[int, int] | None:
        """The epoch and last sequence of a producer in the log, regardless of later markers."""
        with self._lock:
            log = self.opened()
            found = self._last.get(pid) or _last_in(log.path, pid)
            if found is not None:
                self._last[pid] = found
            return found

    def opened(self) -> Any:
        """Return the log, reopened if that failed before. Raises StoreError."""
        with self._lock:
            if self.log is None and self._reopen is not None:
                try:
                    self.log = self._reopen()
                except Exception as error:
                    raise StoreError(f"the log could not be opened again: {error}") from error
                if self.log.log_end < self._acknowledged:
                    logger.error(_LOST, self.log.path, self.log.log_end, self._acknowledged - 1)
                    self._acknowledged = self.log.log_end
            return self.log

    def close(self) -> None:
        with self._closing:
            self._is_closed = True  # nothing comes after the end of the queue, which would have no answer
            self._queue.put(None)
        self._thread.join()
        if self._reopen is not None and self.log is not None:
            self.log.close()

    @contextlib.contextmanager
    def _as_store_errors(self) -> Iterator[None]:
        """Turn errors of a poisoned log into StoreError: what is on disk is unknown, and a retry finds out."""
        try:
            yield
        except PoisonedError as error:
            self._open_again()
            raise StoreError(f"the log has to be opened again: {error.message}") from error

    def _open_again(self) -> None:
        """Reopen a log that does not know what is on disk, unless the caller owns it."""
        # There may be more on disk than was acknowledged, and another process may write before the log is open.
        self._last.clear()
        if self._reopen is None:
            return
        with contextlib.suppress(Exception):
            self.log.close()
        self.log = None
        with contextlib.suppress(StoreError):  # the next attempt reports the reason
            self.opened()

    def _run(self) -> None:
        is_open = True
        while is_open:
            waiting = [self._queue.get()]
            while len(waiting) < AT_ONCE and waiting[-1] is not None and not self._queue.empty():
                waiting.append(self._queue.get())
            is_open = waiting[-1] is not None
            self._write([it for it in waiting if it is not None])

    def _write(self, batches: list[tuple[Any, Future[Answer]]]) -> None:
        """Write all batches in one call. If it fails, write them one by one, so that each gets its own answer."""
        if not batches:
            return
        try:
            answers = self._append([batch for batch, _ in batches])
        except Exception as error:
            if len(batches) == 1:
                batches[0][1].set_exception(error)
                return
        else:
            for (_, answer), one in zip(batches, answers, strict=True):
                answer.set_result(one)
            return
        for alone in batches:  # nothing was appended, or the next attempt reports the reason
            self._write([alone])

    def _append(self, batches: list[Any]) -> list[Answer]:
        with self._lock, self._as_store_errors():
            log = self.opened()
            try:
                results = log.append_many(batches)
            except ValueError as error:
                self._acknowledged = log.log_end  # raises, too, if the owner has closed the log
                raise BatchError(str(error)) from error  # no segment can hold it
            for (pid, epoch, first_seq, records, _), appended in zip(batches, results, strict=True):
                if appended.verdict is Verdict.ACCEPTED:
                    self._last[pid] = (epoch, step(first_seq, len(records) - 1))
            self._acknowledged = log.log_end
        return [Answer(appended.verdict, appended.offset) for appended in results]


def _last_in(path: Path, pid: int) -> tuple[int, int] | None:
    """Return the epoch and last sequence of a producer in a log folder, by reading all batch headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last: tuple[int, int] | None = None
    for some in pa.RecordBatchReader.from_stream(read_batches(path)):
        own = some.filter(pc.and_(pc.equal(some["pid"], pid), pc.greater_equal(some["base_seq"], 0)))
        if len(own):
            last = (own["epoch"][-1].as_py(), own["last_seq"][-1].as_py())
    return last


def _coordinator_epoch_in(path: Path, pid: int) -> int:
    """Return the highest coordinator epoch of a producer's markers in a log folder, by reading all batch headers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = 0
    for some in pa.RecordBatchReader.from_stream(read_batches(path)):
        own = some.filter(pc.equal(some["pid"], pid))
        found = max(found, pc.max(own["coordinator_epoch"]).as_py() or 0)
    return found


def _check_first(first: str, remedy: str) -> None:
    if first != "zero":
        raise PolicyError(
            f"first={first!r}: with this setting, a log accepts a producer's second batch even if its first batch has "
            "failed for a moment. The first one is then refused, or counts as delivered although it is not in the log: "
            f"{remedy}"
        )


def _check_order(logs: Sequence[Any]) -> None:
    """Raise PolicyError for logs whose folders have the numbers of other partitions: a restart in another order would
    move keys, and write the markers of open transactions to wrong logs."""
    for number, log in enumerate(logs):
        if getattr(log, "topic", None) and log.partition != number:
            raise PolicyError(
                f"logs[{number}] is {log!r}: pass one log per partition, in the order of the partitions from 0 on"
            )


def _count(folder: Path, topic: str, partitions: int | None) -> int:
    """Return the number of the topic's logs, which the folder stores."""

    def used() -> int:
        found = (topic_and_partition(it.name) for it in folder.iterdir()) if folder.is_dir() else ()
        return max((number + 1 for name, number in found if name == topic and number is not None), default=0)

    place = f"topic {topic!r} in {folder}"
    return stored_in(LocalStore(folder), f"{topic}.partitions.json", place, partitions, used)


def _open(folder: Path, topic: str, partitions: int, options: dict[str, Any]) -> list[LogWriter]:
    opened: list[LogWriter] = []
    try:
        for number in range(partitions):
            reopen = partial(PartitionLog, folder / f"{topic}-{number}", **{"first": "zero", **options})
            opened.append(LogWriter(reopen(), reopen))
    except BaseException:
        for writer in opened:
            writer.close()
        raise
    return opened


def _with_exact_times(rows: pa.Table) -> pa.Table:
    """Return times of day in nanoseconds as text, because Python's times would truncate them."""
    import pyarrow as pa

    for at, field in enumerate(rows.schema):
        if field.type == pa.time64("ns"):
            rows = rows.set_column(at, field.name, rows[at].cast(pa.string()))
    return rows


def _as_json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, default=_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """Return a value that JSON does not support as text."""
    convert: Callable[[], Any] | None = getattr(value, "isoformat", None)
    if convert is not None:
        return convert()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
