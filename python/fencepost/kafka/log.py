"""A partition's log for one writer: judges batches like a broker, writes Kafka's format, and syncs to disk as
configured.

`docs/partition-log.md` describes the files in the folder, what a crash leaves behind, and errors.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fencepost import _native
from fencepost.arrow import ArrowStreamExportable
from fencepost.errors import PoisonedError, PolicyError
from fencepost.kafka.source import topic_and_partition
from fencepost.metrics import counter, gauge
from fencepost.state.stores import check_path, is_local
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

Record: TypeAlias = (
    bytes | tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Iterable[tuple[str, bytes | None]]]
)
"""A value, (key, value) or (key, value, headers). In a compacted topic, a null value is a deletion."""

Records: TypeAlias = list[Record] | ArrowStreamExportable
"""Records of a batch: a list, or an Arrow table with value and optionally key, timestamp and headers."""

SEGMENT_BYTES = 1 << 30
"""The default of a broker's log.segment.bytes."""


class Appended(NamedTuple):
    """The result for a batch or marker."""

    verdict: Verdict
    """By the broker's rules. ACCEPTED and UNTRACKED are now written, a DUPLICATE already was."""
    offset: int | None
    """Offset of the first record; for a duplicate that of the first copy. None if refused."""


class Batch(NamedTuple):
    """A batch for `PartitionLog.append_many`."""

    pid: int
    epoch: int
    base_seq: int
    records: Records
    transactional: bool = False


class Recovered(NamedTuple):
    """What opening a log found."""

    state: str | None
    """The file of the state that was loaded. None if there was none."""
    passed_over: tuple[str, ...]
    """Files of newer states that were skipped: damaged, or with offsets that no longer exist."""
    batches: int
    """Number of batches and markers replayed after the state."""
    cut_bytes: int
    """Number of bytes that were cut off: the remains of a crash's last write; with "cut" everything from the damage on.
    """


class PartitionLog:
    """The log of one partition, open for its only writer. A building block without retention.

    A `BrokerTable` judges batches, and the log writes them like a broker. So `read_batches`, `read_records`, `audit`
    and the decoder of any Kafka client can read the folder.

    May be used from several threads. Its calls release the GIL, so other threads run meanwhile. A forked process must
    open its own log. Opening takes a lock.

    | `sync` | when an append returns |
    |---|---|
    | "each" | after its own sync to disk |
    | "group" | after a sync to disk that concurrent appends share |
    | "interval" | after writing to the operating system |

    With "interval", a power loss loses what was appended within the last `interval_ms` plus the time of a sync. A
    killed process loses nothing.

    Args:
        path: The partition's folder, created if missing; `orders-3` is partition 3 of topic orders.
        partition: The partition's number, if the folder's name does not contain it. Default: 0.
        sync: See the table.
        interval_ms: The interval of syncs with sync="interval".
        segment_bytes: Maximum size of a segment, and of a call's batches.
        compression: Compression of new batches: "none", "gzip", "snappy", "lz4" or "zstd".
        version: As in `BrokerTable`.
        window: As in `BrokerTable`.
        first: As in `BrokerTable`.
        max_idle_ms: As in `BrokerTable`.
        on_damage: "refuse" reads the segment of the newest state and later ones, and raises for damage other than a
            torn end. "cut" reads all segments and drops everything from the first damage on, including acknowledged
            batches and whole segments.

    Raises:
        LockedError: Another writer has the log open.
        SourceError: The log is damaged (path, position). Nothing is changed.
        PolicyError, ValueError: Invalid arguments.
        StoreError: The path is a URI that lacks slashes.
        OSError: The operating system refuses.

    >>> log = PartitionLog("orders-0")  # doctest: +SKIP
    >>> log.append(7, 0, 0, [b"first", b"second"])  # doctest: +SKIP
    Appended(verdict=<Verdict.ACCEPTED: 0>, offset=0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        partition: int | None = None,
        *,
        sync: Literal["each", "group", "interval"] = "group",
        interval_ms: int = 1000,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        version: str = "4.3",
        window: int = 5,
        first: Literal["any", "zero"] = "any",
        max_idle_ms: int = 86_400_000,
        on_damage: Literal["refuse", "cut"] = "refuse",
    ) -> None:
        if sync not in ("each", "group", "interval"):
            raise ValueError(f"sync={sync!r}: expected 'each', 'group' or 'interval'")
        if on_damage not in ("refuse", "cut"):
            raise ValueError(f"on_damage={on_damage!r}: expected 'refuse' or 'cut'")
        for name, value in (("interval_ms", interval_ms), ("segment_bytes", segment_bytes)):
            if not 1 <= value < 2**31:
                raise ValueError(f"{name}={value} is outside 1..={2**31 - 1}")
        self.path = local_folder(path)
        self.topic, self.partition = _place(self.path, partition)
        self.first = first
        self._log = _native.PartitionLog(
            self.path, self.topic, self.partition,
            interval_ms=interval_ms if sync == "interval" else None, shares_syncs=sync == "group",
            segment_bytes=segment_bytes, compression=compression, version=version, window=window, first=first,
            max_idle_ms=max_idle_ms, cuts_damage=on_damage == "cut",
        )  # fmt: skip
        state, passed_over, batches, cut_bytes = self._log.recovered
        self.recovered = Recovered(state, tuple(passed_over), batches, cut_bytes)
        self._counts = dict.fromkeys(Verdict, 0)
        self._count_lock = threading.Lock()

    def append(
        self,
        pid: int,
        epoch: int,
        base_seq: int,
        records: Records,
        transactional: bool = False,
        *,
        now_ms: int | None = None,
    ) -> Appended:
        """Judge a batch, and write it if it is accepted. Returns when `sync` is satisfied.

        A refused batch (OUT_OF_ORDER, FENCED, INVALID_TXN_STATE) has a verdict and leaves no trace.

        Args:
            pid: The producer id (int64), or -1 if the producer is not idempotent.
            epoch: The epoch (int16), or -1.
            base_seq: The first sequence number (int32), or -1.
            records: A list of bytes, (key, value) or (key, value, headers) with headers as list of (name, bytes or
                None). Or an Arrow table with value and optionally key (binary or strings), timestamp (int64 ms or Arrow
                timestamp) and headers (list of struct key utf8, value binary).
            transactional: Whether the batch belongs to a transaction.
            now_ms: The timestamp of records without one. Default: the system's clock.

        Raises:
            BatchError: The batch is invalid.
            OSError: The disk is full, or the operating system refuses. Nothing was appended; retry the call.
            PoisonedError: It is unknown what is on disk. Reopen the log, which finds out, and retry with the same
                numbers. Batches with pid -1 have none, so a retry may write them twice.
            ValueError: The log is closed.
        """
        return self.append_many([Batch(pid, epoch, base_seq, records, transactional)], now_ms=now_ms)[0]

    def append_many(self, batches: Iterable[Batch | Sequence[Any]], *, now_ms: int | None = None) -> list[Appended]:
        """Judge batches in order, and write all accepted ones. After an error none is written, except that it is
        unknown after PoisonedError.

        Equivalent to one call of `append` per batch, but with one sync. Raises the errors of `append`.

        `batches`: (pid, epoch, base_seq, records) or (pid, epoch, base_seq, records, transactional), of any producers.
        """
        results = self._log.append([Batch(*batch) for batch in batches], _now_ms(now_ms))
        return [self._counted(Verdict(code), offset) for code, offset in results]

    def append_marker(
        self,
        pid: int,
        epoch: int,
        outcome: Literal["commit", "abort"],
        coordinator_epoch: int = 0,
        transaction_version: int = 2,
        *,
        now_ms: int | None = None,
    ) -> Appended:
        """Judge a transaction's end from its coordinator, and write the marker if it is accepted.

        Under `transaction_version` 2 (KIP-890) and `version` 4.2 or later, the epoch of a marker that ends an open
        transaction must be above that of the transaction's batches. From 4.3 on, 32767 may also be equal. If no
        transaction is open, the marker is a retry and may have the same epoch. FENCED and COORDINATOR_FENCED are
        verdicts. Raises the errors of `append`.
        """
        if outcome not in ("commit", "abort"):
            raise ValueError(f"outcome={outcome!r}: expected 'commit' or 'abort'")
        code, offset = self._log.append_marker(
            pid, epoch, outcome == "commit", coordinator_epoch, transaction_version, _now_ms(now_ms)
        )
        return self._counted(Verdict(code), offset)

    def _counted(self, verdict: Verdict, offset: int | None) -> Appended:
        with self._count_lock:
            self._counts[verdict] += 1
        return Appended(verdict, offset)

    def read(
        self, from_offset: int = 0, isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    ) -> _native.KafkaStream:
        """Read the records from an offset on, as an Arrow stream with the columns of `read_records`.

        The stream contains what was on disk at the time of the call ("interval": what was appended). "read_committed"
        skips aborted transactions and stops at the last stable offset. The stream may be read during appends and after
        the log is closed. Raises ValueError for an offset outside 0 ... the log's end, or before the first segment (0
        is always the beginning); SourceError for damage, such as a segment that is missing between others.
        """
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation={isolation!r}: expected 'read_committed' or 'read_uncommitted'")
        return self._log.read(from_offset, isolation == "read_committed")

    @property
    def log_end(self) -> int:
        """The offset of the next batch."""
        return self._log.log_end

    @property
    def last_stable_offset(self) -> int:
        """The lowest first offset of the open transactions and of the data that is not synced to disk; without either,
        the log's end. With sync="interval", only open transactions count."""
        return self._log.last_stable_offset

    def metrics(self) -> dict[str, Any]:
        """Return the current `log_end`, `last_stable_offset`, number of `segments` and their `bytes`, and counters.

        `appended`: batches and markers judged since opening, by verdict.
        """
        sizes = [path.stat().st_size for path in self.path.glob("*.log")]
        with self._count_lock:
            appended = {verdict.name.lower(): count for verdict, count in self._counts.items()}
        return {
            "log_end": self.log_end,
            "last_stable_offset": self.last_stable_offset,
            "segments": len(sizes),
            "bytes": sum(sizes),
            "appended": appended,
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the same metrics as `prometheus_client` families; see `fencepost.metrics`.

        Nothing if it is closed or has to be opened again.
        """
        try:
            found = self.metrics()
        except (ValueError, PoisonedError):  # metrics of other sources are still wanted
            return
        by = {"log": os.fspath(self.path)}
        judged = {("verdict", verdict): count for verdict, count in found["appended"].items()}
        yield counter("fencepost_log_appended", "Batches and markers that were judged, by verdict.", judged, by)
        yield gauge("fencepost_log_end", "The offset that the next batch gets.", found["log_end"], by)
        about = "The first offset of an open transaction, or of what is not on disk yet; else the end."
        yield gauge("fencepost_log_last_stable_offset", about, found["last_stable_offset"], by)
        yield gauge("fencepost_log_segments", "Segments.", found["segments"], by)
        yield gauge("fencepost_log_size_bytes", "Bytes of the segments.", found["bytes"], by, "bytes")

    def evict(self, now_ms: int) -> int:
        """Forget producers that were idle for `max_idle_ms`, like `BrokerTable.evict`. Returns their number.

        The time of a producer is the newest timestamp of its last records. If these are the times of old events, the
        producer is forgotten although it still writes, and its retries are written again. With first="zero", its
        batches are refused instead, until one begins with 0.

        After reopening, producers that wrote after the loaded state are known again.
        """
        return self._log.evict(now_ms)

    def sync(self) -> None:
        """Wait until everything appended so far is on disk, whatever the `sync` setting."""
        self._log.sync()

    def close(self) -> None:
        """Sync, write the state for the next opening, and release the lock. Repeated calls do nothing.

        Without it, the log looks as after a crash. Raises OSError; the log is closed then, too. With sync="interval",
        raises PoisonedError if a sync has failed since: batches of earlier calls may be lost.
        """
        self._log.close()

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PartitionLog {os.fspath(self.path)!r}, partition {self.partition}>"


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder of logs.

    Raises PolicyError for the URI of an object store, which would be a folder in the current one, and StoreError for a
    URI that lacks slashes.
    """
    text = os.fspath(path)
    if not is_local(text):
        raise PolicyError(
            f"{text}: a partition log is in a local folder, because object stores cannot append to objects: pass a path"
        )
    check_path(text)
    return Path(text.removeprefix("file://"))


def _place(path: Path, partition: int | None) -> tuple[str | None, int]:
    """Return topic and partition from the folder's name, if it contains them."""
    topic, number = topic_and_partition(path.absolute().name)
    if partition is not None and not 0 <= partition < 2**31:
        raise ValueError(f"partition={partition} is outside 0..=2147483647")
    if number is not None and partition not in (None, number):
        raise ValueError(f"partition={partition}: the folder's name says partition {number} of topic {topic!r}")
    return topic, number or partition or 0


def _now_ms(now_ms: int | None) -> int:
    if now_ms is None:
        return time.time_ns() // 1_000_000
    if not 0 <= now_ms < 2**63:
        raise ValueError(f"now_ms={now_ms} is outside 0..={2**63 - 1}")
    return now_ms
