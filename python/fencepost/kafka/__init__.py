"""Kafka's own files, read and written: log segments, snapshots of producer state, indexes of aborted transactions.

Producer id, epoch and sequence are in no consumer's messages; they stand in the log. Whatever is read comes as an
Arrow stream, for which nothing else need be installed:

>>> from fencepost import kafka
>>> batches = kafka.read_batches("/var/lib/kafka/orders-0")  # doctest: +SKIP
>>> fp.BrokerTable().apply(batches, fp.BatchColumns.kafka_log())  # doctest: +SKIP

`docs/kafka-logs.md` tells the columns, and what becomes of damage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from fencepost import _native
from fencepost._native import TransactionIndex
from fencepost.arrow import ArrowStreamExportable
from fencepost.kafka.finding import Finding
from fencepost.kafka.log import Appended, PartitionLog
from fencepost.kafka.report import LogAudit, PartitionAudit
from fencepost.kafka.source import open_log, read_beside, read_whole

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
"""What a batch may come to, decompressed. Brokers take a megabyte, unless told otherwise."""


def read_batches(
    source: str | os.PathLike[str],
    *,
    damage: Literal["raise", "report"] = "raise",
    options: Mapping[str, Any] | None = None,
) -> _native.KafkaStream:
    """The batch headers of a partition or a segment, a row each, without a look at what they hold.

    `source`: a partition's folder, a segment, or a URI of either; `options`: of a remote store, names as obstore has
    them (`endpoint`, `region`, ...), the environment's where not given.

    Columns: topic (utf8) and partition (int32), null where the folder's name does not tell them; segment (utf8),
    position (int64), bytes (int32), base_offset, last_offset (int64), count (int32), pid (int64), epoch (int16),
    base_seq, last_seq (int32), -1 where there is none; max_timestamp (int64 ms), timestamp_type (utf8), transactional
    (bool), control (utf8: null, "commit", "abort", "empty" where compaction has removed the record, "other"),
    coordinator_epoch (int32, of markers), compression (utf8), leader_epoch (int32). Checksums are not looked at: they
    are of payloads too.

    Gives an Arrow stream that is read as it is pulled. Raises SourceError (path, position) for what is no log; damage
    farther in is raised behind the rows before it. `damage="report"`: no error but a `Finding` in `.findings` of the
    stream; the rest of the segment is passed over and the next one read. Then offsets that are in no segment are told
    too, and local offset indexes are held against their segments.
    """
    if damage not in ("raise", "report"):
        raise ValueError(f"damage={damage!r}: 'raise' or 'report'")
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
    """The data records of a partition or a segment, a row each.

    Columns: topic (utf8), partition (int32), offset (int64), timestamp (int64 ms), key, value (binary, null apart from
    empty), headers (list of struct key utf8, value binary), pid (int64), epoch (int16), seq (int32), null where the
    producer is not idempotent.

    `isolation="read_committed"`, as of `PartitionLog.read`: without records of aborted transactions, and to the last
    stable offset: the first one that belongs to an open transaction, or the log's end. For that the headers of all
    segments are read first. Of a single segment, the transaction index beside it is used; a transaction that is not
    decided there is a SourceError.

    `from_offset`: the first offset to read, for a reader that goes on where it was: its last record's offset + 1.
    Segments before it are not read, but for the headers that `read_committed` needs. At or behind the end there is
    nothing to read, which is no error.

    `batch_bytes_max`: more than this no batch may hold, decompressed. Gives an Arrow stream that is read as it is
    pulled. Raises SourceError (path, position): also for a wrong checksum, and where records from `from_offset` on were
    deleted already.
    """
    if isolation not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation={isolation!r}: 'read_uncommitted' or 'read_committed'")
    if batch_bytes_max < 0:
        raise ValueError(f"batch_bytes_max={batch_bytes_max}: a number of bytes")
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
    """What a broker knew of a partition's producers, in the order of its `.snapshot`.

    Columns: pid (int64), epoch (int16), last_seq (int32), last_offset (int64), offset_delta (int32), timestamp (int64
    ms), coordinator_epoch (int32), txn_first_offset (int64); -1 where there is none. Raises SourceError.
    """
    return _native.kafka_snapshot(read_whole(path, options), os.fspath(path))


def read_aborted(path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> ArrowStreamExportable:
    """The aborted transactions of a `.txnindex`, in the order of their markers.

    Columns: pid, first_offset, last_offset, last_stable_offset (int64). Raises SourceError.
    """
    return _native.kafka_aborted(read_whole(path, options), os.fspath(path))


def audit(
    source: str | os.PathLike[str],
    *,
    now_ms: int | Literal["newest"] | None = None,
    max_idle_ms: int = 86_400_000,
    cleanup_policy: str | Mapping[str, str] = "unknown",
    checksums: bool = False,
    options: Mapping[str, Any] | None = None,
) -> LogAudit:
    """Replays partitions, and says what a broker has lost, fenced, left open or forgotten. Nothing is changed.

    `source`: a partition's folder, a folder of such folders (a broker's log directory), a segment, or a URI. Reported
    are producers and their batches; records that are missing (unclean elections, truncation, a lost segment) or
    written twice; batches of fenced epochs; open, aborted and hanging transactions, the last stable offset; how the
    broker's own snapshots and transaction indexes differ from what its log says; and damage.

    `now_ms`: by which a transaction hangs: milliseconds since 1970, "newest" for the partition's newest timestamp, the
    system's clock unless given. Producers are idle by the number, else by the newest timestamp; `max_idle_ms`: the
    broker's producer.id.expiration.ms. `cleanup_policy`: the topic's, "delete", "compact" or "unknown", or a mapping
    from topics to these ("*" for all others). Offsets in no batch are losses under "delete", none under "compact".
    Under "unknown" they are losses too, unless batches have fewer records than offsets, which only compaction leaves.
    `checksums=True` also reads what batches hold: wrong checksums, and bytes that cannot be decompressed; without it
    only headers are read.

    Needs pyarrow and NumPy. Raises SourceError where there is no log; PolicyError for options.
    """
    from fencepost.kafka import auditing

    return auditing.audit(source, auditing.Request(now_ms, max_idle_ms, cleanup_policy, checksums, options))
