"""Kafka's log as input: records of partitions from the last read offset.

A run exports new records to Parquet files in its attempt's folder, one per segment, and continues as a run over files.
The decision contains the next offset of each partition. A run that dies before the decision has read nothing. One that
dies after it is finished without the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.errors import SourceError
from fencepost.kafka import BATCH_BYTES_MAX
from fencepost.kafka.cleanup import CleanupPolicy, check_cleanup_policy, policy_of_topic
from fencepost.kafka.source import Log, Options, read_whole
from fencepost.lake.kafka_segments import Isolation, Part, View, open_partitions, read_view, records_schema
from fencepost.state.stores import absolute

Position = dict[str, Any]
"""{"offsets": {topic: {partition: next offset}}, "ids": {topic: its id}, "starts": {topic: {partition: offset}}}.
Partitions are text, as JSON requires. Ids exist for topics whose folders contain them. A start is the first offset that
was read; it exists for partitions that did not begin at 0."""


@dataclass(frozen=True)
class KafkaLog:
    """Kafka partitions as the source of a `DedupJob`.

    Rows have the columns of `fencepost.kafka.read_records`. The default identity is `Columns.preset("kafka-producer")`.
    Rows without a producer are UNTRACKED.

    Attributes:
        path: A folder of partition folders (a broker's log directory, or a copy; Kafka's internal topics are skipped),
            a partition's folder, or a URI of either.
        isolation: "read_committed" reads up to the last stable offset, without aborted transactions; "read_uncommitted"
            reads everything. Fixed with the state.
        options: Options of a remote store, with obstore's names.
        batch_bytes_max: Maximum size of a decompressed batch.
        cleanup_policy: The topic's cleanup.policy: "delete", "compact" or "unknown", or a mapping from topics to these,
            with "*" for all others. Compaction can leave offsets that are in no segment. In the log of a topic that is
            not compacted, a missing segment between two others stops the run (with on_reset="report" it is a warning).
            A partition of unknown policy counts as compacted if one of the new batches has fewer records than offsets.
    """

    path: str | os.PathLike[str]
    isolation: Isolation = "read_committed"
    options: Options = field(default=None, repr=False)
    batch_bytes_max: int = BATCH_BYTES_MAX
    cleanup_policy: CleanupPolicy = "unknown"

    def __post_init__(self) -> None:
        check_cleanup_policy(self.cleanup_policy)
        if self.isolation not in get_args(Isolation):
            raise ValueError(f"isolation={self.isolation!r}: expected one of {', '.join(get_args(Isolation))}")

    @property
    def place(self) -> str:
        """The absolute path, or the URI."""
        return absolute(self.path)

    @property
    def name(self) -> str:
        """The source's name in the state."""
        return f"kafka-log:{self.isolation}:{self.place}"


@dataclass
class NewRecords:
    """The new records of a log."""

    parts: list[tuple[Part, int]] = field(default_factory=list)
    """Segments with new rows, and the offset of the first new row; sorted by topic, partition and offset."""
    offsets: dict[str, dict[str, int]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    starts: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Messages about rows that were lost, or may have been."""
    lag: int = 0
    """Number of offsets after this position, up to the logs' ends: those from the first open transactions on."""

    def position(self) -> Position:
        """The position after these records."""
        starts = _sorted({topic: its for topic, its in self.starts.items() if its})
        position = {"offsets": _sorted(self.offsets), "ids": dict(sorted(self.ids.items()))}
        return position | ({"starts": starts} if starts else {})


def _sorted(offsets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


REPEATED_IDENTITIES = (
    "and new rows with the identity of old ones are dropped. Use a new state and a new sink, unless identities cannot "
    "repeat"
)

MISSING_SEGMENT = (
    "A segment that is copied later would never be read: copy it, then run again. If the topic is compacted, pass "
    "KafkaLog(cleanup_policy='compact')"
)


def find_new(log: KafkaLog, position: Position | None) -> NewRecords:
    """Find records after a position, as far as they are visible now. Reads headers. Raises SourceError.

    If there is a problem, the position is that of a run that ignores it: it starts from the first available offset.
    """
    known: dict[str, dict[str, int]] = dict(position["offsets"]) if position else {}
    news = NewRecords(offsets={topic: dict(offsets) for topic, offsets in known.items()})
    news.ids = dict(position["ids"]) if position else {}
    if position:
        news.starts = {topic: dict(starts) for topic, starts in position.get("starts", {}).items()}
    logs = _partitions(log)
    for topic, (topic_id, folder) in _topic_ids(logs, log.options).items():
        if news.ids.setdefault(topic, topic_id) != topic_id:
            news.problems.append(
                f"{folder}: the topic was recreated (its id is {topic_id}, was {news.ids[topic]}): rows may be lost, "
                f"{REPEATED_IDENTITIES}"
            )
            news.ids[topic], news.offsets[topic], news.starts[topic], known[topic] = topic_id, {}, {}, {}
    for (topic, partition), it in logs.items():
        since = known.get(topic, {}).get(partition)
        view = read_view(it, log.isolation, since=since or 0, is_live=True, options=log.options)
        begin = view.start if since is None else since
        starts = news.starts.setdefault(topic, {})
        problem = _problem(view, begin, starts.get(partition, 0))
        if problem:
            news.problems.append(f"{it.folder}: {problem}")
            view = read_view(it, log.isolation, is_live=True, options=log.options)
            begin = view.start
        if problem or since is None:
            starts.pop(partition, None)
            starts |= {partition: begin} if begin else {}
        if not _is_compacted(log, view):
            news.problems += [f"{it.folder}: {gap}. {MISSING_SEGMENT}" for gap in view.gaps]
        news.parts += [(part, begin) for part in view.parts([("offset", ">=", begin)])]
        end = news.offsets.setdefault(topic, {})[partition] = max(view.end, begin)
        news.lag += max(0, view.log_end - end)
    for topic, offsets in known.items():
        for partition in offsets.keys() - {of for its, of in logs if its == topic}:
            news.problems.append(
                f"{log.place}: {topic}-{partition} is gone: rows from offset {offsets[partition]} on, if there were "
                "any, were not read"
            )
    return news


def _partitions(log: KafkaLog) -> dict[tuple[str, str], Log]:
    """Open the partitions of a log. Raises SourceError for two folders of one."""
    found: dict[tuple[str, str], Log] = {}
    for it in open_partitions(log.path, log.options):
        topic, partition = _place_of(it)
        if found.setdefault((topic, partition), it) is not it:
            raise SourceError(
                f"{it.folder}: a second folder of partition {topic}-{partition}: keep only one of them in the source",
                path=it.folder,
            )
    return found


def _topic_ids(logs: dict[tuple[str, str], Log], options: Options) -> dict[str, tuple[str, str | None]]:
    """Return the id of each topic that has one, and the first folder with it. Raises SourceError for two ids."""
    found: dict[str, tuple[str, str | None]] = {}
    for (topic, _), it in logs.items():
        topic_id = _topic_id(it, options)
        if topic_id is None:
            continue
        same, other = found.setdefault(topic, (topic_id, it.folder))
        if same != topic_id:
            raise SourceError(
                f"{it.folder}: its topic id is {topic_id}, but that of {other} is {same}: the topic was recreated, and "
                "one of these folders is a copy from before. Remove that folder, or copy it again",
                path=it.folder,
            )
    return found


def _place_of(log: Log) -> tuple[str, str]:
    if not log.is_folder or log.topic is None:
        path = log.folder or log.segments[0].path
        raise SourceError(
            f"{path}: not a partition folder: its name must have the topic and the partition, such as orders-0",
            path=path,
        )
    return log.topic, str(log.partition)


def _topic_id(log: Log, options: Options) -> str | None:
    """Return the topic id from a partition's folder; None if it is missing there."""
    try:
        text = read_whole(f"{log.folder}/partition.metadata", options).decode()
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    match = re.search(r"^topic_id: *(\S+)", text, flags=re.MULTILINE)
    return match[1] if match else None


def _is_compacted(log: KafkaLog, view: View) -> bool:
    policy = policy_of_topic(log.cleanup_policy, view.log.topic)
    return policy == "compact" or (policy == "unknown" and view.is_thinned)


def _problem(view: View, begin: int, first: int) -> str | None:
    """Return a message about rows that are lost, or may be. `first`: the first offset that was ever read."""
    if view.start > begin:
        return (
            f"rows were lost: offsets {begin} to {view.start - 1} were removed before they were read, the log begins "
            f"at {view.start}"
        )
    if view.end < begin:
        return (
            f"it was read up to offset {begin}, but ends at {view.end}: truncated, or the topic was recreated. Rows "
            f"may be lost, {REPEATED_IDENTITIES}"
        )
    if view.start < first:
        return (
            f"offsets {view.start} to {first - 1} were not read: the log began at {first} when it was first read, and "
            f"begins at {view.start} now: segments were copied later, or the topic was recreated"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class ExportItem:
    """A segment whose rows a task exports to a file."""

    part: Part
    """Without its store."""
    since: int
    folder: str
    batch_bytes_max: int


@dataclass(frozen=True)
class Exported:
    path: str
    rows: int


def export(options: Options, item: ExportItem) -> Exported:
    """Export the rows of a segment. The file has a unique name, because a task may run more than once.

    `options`: of the log's store, including credentials (`KafkaLog`).
    """
    path = f"{item.folder}/{uuid4().hex}.exported"
    begin = item.part.segment.base_offset or 0
    conditions = [("offset", ">=", item.since)] if item.since > begin else []
    batches = item.part.attached(options).records(conditions, item.batch_bytes_max)
    return Exported(path, write_parquet(path, records_schema(), batches))


def write_parquet(path: str | Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write these rows to a Parquet file. Returns their number."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    return rows
