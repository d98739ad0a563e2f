"""Reads and writes Kafka's files: log segments, producer state snapshots, indexes of aborted transactions.

Messages that consumers receive lack producer id, epoch and sequence; the log has them. Readers return Arrow streams and
need no other package:

>>> from fencepost import kafka
>>> batches = kafka.read_batches("/var/lib/kafka/orders-0")  # doctest: +SKIP
>>> fp.BrokerTable().apply(batches, fp.BatchColumns.kafka_log())  # doctest: +SKIP

`docs/kafka-logs.md` describes the columns and the handling of damage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fencepost import _native
from fencepost._native import TransactionIndex
from fencepost.arrow import ArrowStreamExportable
from fencepost.errors import DependencyError
from fencepost.kafka.audit_report import LogAudit, PartitionAudit
from fencepost.kafka.finding import Finding
from fencepost.progress import Progress, ignore

if TYPE_CHECKING:
    from fencepost.kafka.log import Appended, PartitionLog

__all__ = [
    "BATCH_BYTES_MAX",
    "Appended",
    "Finding",
    "LogAudit",
    "PartitionAudit",
    "PartitionLog",
    "TransactionIndex",
    "audit",
    "read_aborted",
    "read_batches",
    "read_records",
    "read_snapshot",
]

BATCH_BYTES_MAX = 512 << 20
"""Default maximum size of a decompressed batch. Brokers accept 1 MB by default."""


def read_batches(
    source: str | os.PathLike[str],
    *,
    damage: Literal["raise", "report"] = "raise",
    options: Mapping[str, Any] | None = None,
) -> _native.KafkaStream:
    """Read the batch headers of a partition or segment, one row per batch, without the batches' content.

    Columns:

    | column | type | meaning |
    |---|---|---|
    | topic, partition | utf8, int32 | null if the folder's name does not contain them |
    | segment, position, bytes | utf8, int64, int32 | location and size of the batch |
    | base_offset, last_offset | int64 | |
    | count | int32 | number of records |
    | pid, epoch, base_seq, last_seq | int64, int16, int32, int32 | -1 if missing |
    | max_timestamp, timestamp_type | int64 ms, utf8 | |
    | transactional | bool | |
    | control | utf8 | null, "commit", "abort", "empty" (compaction removed the record) or "other" |
    | coordinator_epoch | int32 | of markers |
    | compression, leader_epoch | utf8, int32 | |

    Only the checksums of control batches are verified. The checksum of any other batch covers its content, which is not
    read.

    Args:
        source: A partition's folder, a segment, or a URI of either.
        damage: "raise": iteration returns the rows before the damage, then raises SourceError. Other libraries that
            read the stream raise their own error, except for damage near the beginning. "report": damage becomes a
            `Finding` in the stream's `.findings`; the rest of the segment is skipped and the next one read. Offsets
            that are in no segment are reported too, and local offset indexes are checked against their segments.
        options: Options of a remote store, under the names of the package obstore (`endpoint`, `region`, ...). Options
            that are not given come from the environment.

    Returns:
        An Arrow stream that is read lazily.

    Raises:
        SourceError: The source is not a log (path, position).
    """
    if damage not in ("raise", "report"):
        raise ValueError(f"damage={damage!r}: expected 'raise' or 'report'")
    from fencepost.kafka.source import open_log

    log = open_log(source, options)
    segments = [segment.parts for segment in log.segments]
    return _native.kafka_batches(segments, log.topic, log.partition, reports=damage == "report")


def read_records(
    source: str | os.PathLike[str],
    isolation: Literal["read_uncommitted", "read_committed"] = "read_committed",
    *,
    from_offset: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    options: Mapping[str, Any] | None = None,
) -> _native.KafkaStream:
    """Read the data records of a partition or segment, one row per record.

    Columns: topic (utf8), partition (int32), offset (int64), timestamp (int64 ms), key, value (binary, null or empty as
    written), headers (list of struct key utf8, value binary), pid (int64), epoch (int16), seq (int32). The last three
    are null if the producer is not idempotent.

    Args:
        source: A partition's folder, a segment, or a URI of either.
        isolation: "read_committed" skips records of aborted transactions and stops at the last stable offset: that of
            the first open transaction, or the log's end. It first reads the headers of all segments. For a single
            segment it uses the transaction index beside the segment. If neither of the two shows the outcome of a
            transaction, it raises SourceError. "read_uncommitted" reads everything.
        from_offset: The first offset to read. To continue, pass the last record's offset + 1. Earlier segments are
            skipped, except for headers that "read_committed" needs. An offset at or behind the end gives no rows and no
            error.
        batch_bytes_max: Maximum size of a decompressed batch.
        options: As in `read_batches`.

    Returns:
        An Arrow stream that is read lazily.

    Raises:
        SourceError: The source is not a log, a checksum is wrong, or records from `from_offset` on were deleted (path,
            position).
    """
    if isolation not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation={isolation!r}: expected 'read_uncommitted' or 'read_committed'")
    if batch_bytes_max < 0:
        raise ValueError(f"batch_bytes_max={batch_bytes_max}: expected a number of bytes, 0 or more")
    from fencepost.kafka.source import open_log, read_beside

    log = open_log(source, options)
    first_segment = 0 if from_offset is None else log.segment_of(from_offset)
    committed = aborted = None
    if isolation == "read_committed":
        committed = "folder" if log.is_folder else "segment"
        aborted = None if log.is_folder else read_beside(log.segments[0], ".txnindex", options)
    segments = [segment.parts for segment in log.segments]
    return _native.kafka_records(
        segments,
        log.topic,
        log.partition,
        committed=committed,
        aborted=aborted,
        from_offset=from_offset or 0,
        first_segment=first_segment,
        batch_bytes_max=batch_bytes_max,
    )


def read_snapshot(path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> ArrowStreamExportable:
    """Read a broker's state of a partition's producers, in the order of the `.snapshot` file.

    Columns: pid (int64), epoch (int16), last_seq (int32), last_offset (int64), offset_delta (int32), timestamp (int64
    ms), coordinator_epoch (int32), txn_first_offset (int64); -1 if missing. Raises SourceError.
    """
    from fencepost.kafka.source import read_whole

    return _native.kafka_snapshot(read_whole(path, options), os.fspath(path))


def read_aborted(path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> ArrowStreamExportable:
    """Read the aborted transactions of a `.txnindex` file, in the order of their markers.

    Columns: pid, first_offset, last_offset, last_stable_offset (int64). Raises SourceError.
    """
    from fencepost.kafka.source import read_whole

    return _native.kafka_aborted(read_whole(path, options), os.fspath(path))


def audit(
    source: str | os.PathLike[str],
    *,
    now_ms: int | Literal["newest"] | None = None,
    max_idle_ms: int = 86_400_000,
    cleanup_policy: str | Mapping[str, str] = "unknown",
    checksums: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> LogAudit:
    """Replay partitions and report what a broker has lost, fenced, left open or forgotten. Changes nothing.

    Reports producers and their batches; records that are missing (unclean elections, truncation, a lost segment) or
    written twice; batches of fenced epochs; open, aborted and hanging transactions and the last stable offset;
    differences between the log and the broker's snapshots and transaction indexes; and damage.

    Args:
        source: A partition's folder, a folder of such folders (a broker's log directory), a segment, or a URI.
        now_ms: The time for finding hanging transactions: milliseconds since 1970, or "newest" for the partition's
            newest timestamp. Default: the system's clock. Whether a producer was idle at a snapshot (`max_idle_ms`) is
            judged by `now_ms` if that is a number, otherwise by the newest timestamp read so far.
        max_idle_ms: The broker's producer.id.expiration.ms.
        cleanup_policy: The topic's cleanup.policy: "delete", "compact" or "unknown", or a mapping from topics to these
            ("*" for other topics). Offsets in no batch are losses under "delete", not under "compact". Under "unknown"
            they are losses unless some batches have fewer records than offsets. Compaction causes this, but so does a
            broker that lost single records. Kafka's internal topics count as "compact", unless the mapping names them.
        checksums: Also read the batches' content and check it: checksums and compression. Otherwise only headers are
            read.
        progress: Called as progress("audit", done, total), in thousandths of partitions (`fencepost.progress`). Its
            rows are records.
        options: As in `read_batches`.

    Returns:
        A LogAudit.

    Raises:
        SourceError: There is no log.
        PolicyError: Invalid arguments.
        DependencyError: pyarrow or NumPy is not installed.
    """
    try:
        from fencepost.kafka import replay
    except ModuleNotFoundError as problem:
        raise DependencyError.of_import(problem) from problem
    request = replay.Request(now_ms, max_idle_ms, cleanup_policy, checksums, options)
    return replay.audit(source, request, progress or ignore)


def __getattr__(name: str) -> Any:
    # Imported on first use: what reads stores would slow down the start of the command line.
    if name in ("Appended", "PartitionLog"):
        from fencepost.kafka import log

        return getattr(log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
