"""Reads the input of `fencepost kafka export`, and reports what is missing or unreadable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, cast

import pyarrow as pa

from fencepost.errors import SourceError
from fencepost.kafka import PartitionAudit, audit
from fencepost.kafka.source import EmptyLogError, Log, find_partitions, open_log, topic_and_partition
from fencepost.lake.kafka_segments import OWN_TOPICS, Isolation, Part, open_partitions, read_view
from fencepost.words import plural


class Source:
    """The partitions to export. `missing` has one line for everything that is missing or damaged and not exported.

    Raises SourceError if there is no segment, and for damage unless `salvages`.
    """

    def __init__(self, source: str, isolation: str, cleanup_policy: Mapping[str, str], salvages: bool) -> None:
        self.isolation = cast(Isolation, isolation)
        self.salvages = salvages
        self.missing: list[str] = []
        self.damaged: set[str] = set()
        """Segments with damaged headers."""
        self.incomplete: set[str] = set()
        """Partitions of which batches are missing or unreadable, possibly markers."""
        self.logs: list[Log] = open_partitions(source)
        if not self.logs:
            raise SourceError(f"{source}: no segments (*.log) in any partition folder", path=source)
        if not any(log.folder == source for log in self.logs):
            self.missing += _without_segments(source)
        for log in self.logs:
            path = log.folder or log.segments[0].path
            self._note(*audit(path, now_ms="newest", cleanup_policy=cleanup_policy).partitions)

    def _note(self, found: PartitionAudit) -> None:
        if found.batches == 0:
            self.missing.append(f"{found.path}: no batch in {found.segments} segments")
        holes = [] if found.compacted else found.holes.to_pylist()
        if holes or any(it.kind not in ("gap", "index", "snapshot") for it in found.damage):
            self.incomplete.add(found.path)
        for it in holes:
            begin, end, count = it["first_offset"], it["last_offset"], it["count"]
            self.missing.append(f"{found.path}: offsets {begin} to {end} ({count:,}) are in no segment or batch")
        if found.removed and not found.compacted:
            self.missing.append(f"{found.path}: batches lack records of {plural(found.removed, 'offset')}")
        for kind, path, position, reason in found.damage:
            if kind not in ("gap", "index", "snapshot"):
                self.damaged.add(path)
                if self.salvages:
                    place = "" if position is None else f", byte {position}"
                    self.missing.append(f"{path}{place}: {reason}")

    def parts(self) -> list[Part]:
        """Return the segments, with the visible part of each."""
        found = []
        for log in self.logs:
            path = log.folder or log.segments[0].path
            lacks = path in self.incomplete
            view = read_view(log, self.isolation, salvages=self.salvages, lacks_markers=lacks)
            if lacks and view.end < view.log_end:
                text = f"{path}: offsets from {view.end} on are not exported: the transaction that begins there is open"
                self.missing.append(f"{text}, or its marker is missing")
            for part in view.parts():
                is_cut = self.salvages and part.segment.path in self.damaged
                part = replace(_before_damage(part) if is_cut else part, bytes_min=part.segment.size())
                found += [part] if part.end > (part.segment.base_offset or 0) else []
        return found

    def rows(self, part: Part, rows: str) -> Iterator[Any]:
        """Yield the rows of a part. With `salvages`, unreadable batches are skipped and added to `missing`."""
        if rows == "batches":
            yield from part.batches()
            return
        conditions: list[tuple[str, str, Any]] = []
        while True:
            try:
                yield from part.records(conditions)
                return
            except SourceError as error:
                last = _last_offset_at(part, error.position)
                if not self.salvages or last is None:
                    raise
                self.missing.append(error.message)
                conditions = [("offset", ">", last)]


def _without_segments(source: str) -> list[str]:
    """Return partition folders in the export that contain no segment."""
    found = []
    for folder in find_partitions(source):
        name = PurePosixPath(folder).name
        topic, partition = topic_and_partition(name)
        try:
            open_log(folder)
        except EmptyLogError as error:
            # Skip folders that a broker is deleting or moving.
            found += [error.message] if topic not in OWN_TOPICS and name == f"{topic}-{partition}" else []
    return found


def _before_damage(part: Part) -> Part:
    """Return the part of a segment before its first damaged header."""
    from fencepost.kafka import read_batches

    end = part.segment.base_offset or 0
    for batch in read_batches(part.segment.path, damage="report"):
        end = pa.record_batch(batch)["last_offset"][-1].as_py() + 1
    return replace(part, end=min(part.end, end), is_whole=False)


def _last_offset_at(part: Part, position: int | None) -> int | None:
    """Return the last offset of the batch at this byte position, or None if there is no such batch."""
    for rows in part.batches():
        for batch in rows.to_pylist():
            if position is not None and batch["position"] <= position < batch["position"] + batch["bytes"]:
                return int(batch["last_offset"])
    return None
