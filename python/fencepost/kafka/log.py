"""A partition's log for one writer: judged as a broker judges, written in a broker's formats, on disk when it says so.

`docs/partition-log.md` tells what lies in the folder, what a crash leaves, and what becomes of errors.
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
from fencepost.kafka.source import topic_and_partition
from fencepost.metrics import counter, gauge
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

Record: TypeAlias = (
    bytes | tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Iterable[tuple[str, bytes | None]]]
)
"""A value, (key, value) or (key, value, headers); a null value is a deletion where a topic is compacted."""

Records: TypeAlias = list[Record] | ArrowStreamExportable
"""Records of a batch: a list, or an Arrow table with value and, if it likes, key, timestamp and headers."""

SEGMENT_BYTES = 1 << 30
"""A broker's log.segment.bytes."""


class Appended(NamedTuple):
    """What became of a batch or marker."""

    verdict: Verdict
    """By the broker's rules. ACCEPTED and UNTRACKED were written, a DUPLICATE had been."""
    offset: int | None
    """Of its first record; of a duplicate, that of the first copy's; None where it was refused."""


class Batch(NamedTuple):
    """A batch for `PartitionLog.append_many`."""

    pid: int
    epoch: int
    base_seq: int
    records: Records
    transactional: bool = False


class Recovered(NamedTuple):
    """What opening a log came to."""

    state: str | None
    """The file of the state that it began with; None where there was none."""
    passed_over: tuple[str, ...]
    """Files of newer states that are damaged, or of offsets that are not there any more."""
    batches: int
    """Batches and markers that were followed from there on."""
    cut_bytes: int
    """Bytes that were cut off: what a crash had left of its last write; with "cut" everything from the damage on."""


class PartitionLog:
    """The log of one partition, open for its only writer. A building block: no retention, no readers elsewhere.

    `path`: the partition's folder, created if need be; `orders-3` is partition 3 of the topic orders. `partition`: the
    number where the folder's name does not tell it, 0 unless given. Batches are judged by a `BrokerTable` and written
    as a broker writes them, so `read_batches`, `read_records`, `audit` and any Kafka client's decoder read the folder.

    `sync`, when an append returns: "each": its bytes are on disk, with a sync of its own; "group": they are on disk,
    with a sync that all share who append meanwhile; "interval": the system has them, and a power loss takes what was
    appended within the last `interval_ms` and the time of a sync (a killed process loses nothing). `segment_bytes`:
    above this a segment takes no more; also what a call may append at most. `compression`: "none", "gzip", "snappy",
    "lz4", "zstd", of new batches. `version`, `window`, `first`, `max_idle_ms`: as for `BrokerTable`. `on_damage`:
    "refuse" reads the segment of the newest state and those behind it, and raises for damage elsewhere than at a torn
    end; "cut" reads all segments, and gives up everything from the first damage on, acknowledged batches and whole
    segments too.

    Usable from several threads; the interpreter is released meanwhile. A process that is forked must open its own.
    Opening takes a lock. Raises LockedError where another one writes; SourceError (path, position) for a log that is
    damaged, and changes nothing then; OSError; PolicyError and ValueError for options.

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
            raise ValueError(f"sync={sync!r}: 'each', 'group' or 'interval'")
        if on_damage not in ("refuse", "cut"):
            raise ValueError(f"on_damage={on_damage!r}: 'refuse' or 'cut'")
        for name, value, least in (("interval_ms", interval_ms, 1), ("segment_bytes", segment_bytes, 1)):
            if not least <= value < 2**31:
                raise ValueError(f"{name}={value} is outside {least}..={2**31 - 1}")
        self.path = Path(path)
        self.topic, self.partition = _place(self.path, partition)
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
        """Judges a batch, and writes it if it is accepted. Returns when `sync` says.

        `pid` (int64), `epoch` (int16), `base_seq` (int32): as the producer numbers it; all -1 for a producer that is
        not idempotent. `records`: a list of bytes, (key, value) or (key, value, headers), headers a list of (name,
        bytes or None); or an Arrow table with value and, optionally, key (binary or strings), timestamp (int64 ms or
        Arrow timestamp) and headers (list of struct key utf8, value binary). `now_ms`: the timestamp of records without
        one, and what producers are idle by; the system's clock unless given.

        What is refused (OUT_OF_ORDER, FENCED, INVALID_TXN_STATE) is a verdict and leaves no trace. Raises BatchError
        for what no batch can be, and OSError where the disk is full or the system refuses: nothing was appended then,
        and the same call may be tried again. PoisonedError: it is not known what is on disk; open the log again, which
        tells, and try again with the same numbers. ValueError once the log was closed.
        """
        return self.append_many([Batch(pid, epoch, base_seq, records, transactional)], now_ms=now_ms)[0]

    def append_many(self, batches: Iterable[Batch | Sequence[Any]], *, now_ms: int | None = None) -> list[Appended]:
        """Judges batches in their order, and writes those that are accepted: all of them or, with an error, none.

        `batches`: (pid, epoch, base_seq, records) or (pid, epoch, base_seq, records, transactional) each, with any
        producers; as one call to `append` each, but with one sync. Errors are those of `append`.
        """
        told = self._log.append([Batch(*batch) for batch in batches], _now_ms(now_ms))
        return [self._counted(Verdict(code), offset) for code, offset in told]

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
        """Judges the end of a transaction as its coordinator sends it, and writes it if it is accepted.

        Under `transaction_version` 2 (KIP-890) the epoch must be above that of the transaction's batches, but for a
        retry where nothing is open, and for the last epoch, 32767 (4.3). FENCED and COORDINATOR_FENCED are verdicts.
        Errors are those of `append`.
        """
        if outcome not in ("commit", "abort"):
            raise ValueError(f"outcome={outcome!r}: 'commit' or 'abort'")
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
        """The records from an offset on, as an Arrow stream with the columns of `read_records`.

        What was there when it was called, and is on disk ("interval": was appended). "read_committed": nothing of
        aborted transactions, and to the last stable offset. May be read while others append, and after the log was
        closed. Raises ValueError for an offset that is not in 0 ... the log's end; SourceError for damage.
        """
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation={isolation!r}: 'read_committed' or 'read_uncommitted'")
        return self._log.read(from_offset, isolation == "read_committed")

    @property
    def log_end(self) -> int:
        """The offset that the next batch gets."""
        return self._log.log_end

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or of what is not on disk yet; else the log's end."""
        return self._log.last_stable_offset

    def metrics(self) -> dict[str, Any]:
        """What monitoring asks of a log: `log_end`, `last_stable_offset`, `segments` and their `bytes`, as of now.

        `appended`: batches and markers that were judged since it was opened, by verdict.
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
        """The same as families of `prometheus_client`: see `fencepost.metrics`."""
        found = self.metrics()
        by = {"log": os.fspath(self.path)}
        judged = {("verdict", verdict): count for verdict, count in found["appended"].items()}
        yield counter("fencepost_log_appended", "Batches and markers that were judged, by verdict.", judged, by)
        yield gauge("fencepost_log_end", "The offset that the next batch gets.", found["log_end"], by)
        about = "The first offset of an open transaction, or of what is not on disk yet; else the end."
        yield gauge("fencepost_log_last_stable_offset", about, found["last_stable_offset"], by)
        yield gauge("fencepost_log_segments", "Segments.", found["segments"], by)
        yield gauge("fencepost_log_size_bytes", "Bytes of the segments.", found["bytes"], by, "bytes")

    def evict(self, now_ms: int) -> int:
        """Forgets producers that have been idle for `max_idle_ms`, as `BrokerTable.evict`, and gives how many.

        A restart knows those again that have written behind the state that it begins with.
        """
        return self._log.evict(now_ms)

    def sync(self) -> None:
        """Returns when everything that was appended before is on disk, whatever the policy."""
        self._log.sync()

    def close(self) -> None:
        """Syncs, writes what the next one who opens it begins with, and gives back the lock. Again: nothing happens.

        A log that is not closed is found as a crash leaves it. Raises OSError; the log is closed then, too.
        """
        self._log.close()

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PartitionLog {os.fspath(self.path)!r}, partition {self.partition}>"


def _place(path: Path, partition: int | None) -> tuple[str | None, int]:
    """Topic and partition, by the folder's name where it tells them."""
    topic, told = topic_and_partition(path.absolute().name)
    if partition is not None and not 0 <= partition < 2**31:
        raise ValueError(f"partition={partition} is outside 0..=2147483647")
    if told is not None and partition not in (None, told):
        raise ValueError(f"partition={partition}: the folder's name says partition {told} of topic {topic!r}")
    if told is None:
        told = 0 if partition is None else partition
    return topic, told


def _now_ms(now_ms: int | None) -> int:
    if now_ms is None:
        return time.time_ns() // 1_000_000
    if not 0 <= now_ms < 2**63:
        raise ValueError(f"now_ms={now_ms} is outside 0..={2**63 - 1}")
    return now_ms
