"""What an audit of a Kafka log found: figures for programs, a page for people, tables for those who ask further."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencepost.errors import PolicyError
from fencepost.kafka.finding import Finding

FINDINGS = ("missing", "repeated", "fenced", "hanging", "snapshot", "index", "damage")
"""What `LogAudit.found` can be asked for."""
SHOWN_MAX = 10
"""Lines of a table that the text shows, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class PartitionAudit:
    """What the log of one partition says. Tables are `pyarrow.Table`."""

    path: str
    topic: str | None
    partition: int | None
    segments: int
    bytes: int
    """Of the batches that were read."""
    batches: int
    records: int
    log_start: int | None
    """The first offset; None where there is no batch."""
    log_end: int | None
    """The offset after the last."""
    last_stable_offset: int | None
    first_unstable_offset: int | None
    newest_timestamp: int | None
    """Of all batches, in milliseconds."""
    compacted: bool
    """Whether batches have lost records, or offsets are in no batch of a segment: compaction removes both. Steps in
    sequence numbers then do not tell a loss of the broker's from what it has removed: `missing` lists them, and
    `found` does not count them."""
    known_from: str | None
    """The snapshot from which producers were known where the log does not begin at 0."""
    untracked: int
    """Batches without a producer."""
    commits: int
    """Markers."""
    aborts: int
    compressions: dict[str, int]
    """Batches by compression."""
    producers: Any
    """pid, epoch (the last), epochs, batches, records, first_offset, last_offset, in the order of pids."""
    missing: Any
    """Sequence numbers that the broker had accepted and does not have: pid, epoch, first_seq, last_seq, count, offset
    (of the batch behind them), segment, position."""
    repeated: Any
    """Batches that go back in their producer's sequence, so written a second time: pid, epoch, base_seq, last_seq,
    expected, offset, segment, position."""
    fenced: Any
    """Batches of an epoch below their producer's highest: pid, epoch, base_seq, last_seq, offset, segment, position."""
    open: Any
    """Transactions without a marker: pid, epoch, first_offset, last_offset, last_timestamp, hanging (open for longer
    than the longest time-out and five minutes, 20 minutes)."""
    aborted: Any
    """Aborted transactions: pid, first_offset, last_offset, last_stable_offset."""
    snapshots: Any
    """The broker's own snapshots: file, offset, producers, expired (known from the log, idle, and not in the file),
    differences, verdict: "equal", "differs", "compacted" (what it names, compaction has removed since), "damaged" or
    "before" (of a time before the log's first batch)."""
    differences: Any
    """Where a snapshot and the state computed from the log differ: file, pid, field, in_snapshot, in_log; a field
    "producer" is of one that only one side has."""
    index: Any
    """Where the transaction indexes and the log differ: pid, first_offset, last_offset, last_stable_offset, only_in
    ("index" or "log")."""
    damage: tuple[Finding, ...]
    """Files that are not what they claim to be; what can be read of them was."""

    def found(self) -> dict[str, int]:
        """How much there is of each kind of finding. Compaction leaves steps and gaps, which are none."""
        return {
            "missing": 0 if self.compacted else self._stepped,
            "repeated": len(self.repeated),
            "fenced": len(self.fenced),
            "hanging": sum(self.open["hanging"].to_pylist()),
            "snapshot": sum(verdict == "differs" for verdict in self.snapshots["verdict"].to_pylist()),
            "index": len(self.index),
            "damage": sum(not (self.compacted and finding.kind == "gap") for finding in self.damage),
        }

    @property
    def _stepped(self) -> int:
        return int(sum(self.missing["count"].to_pylist()))

    @property
    def name(self) -> str:
        return self.path if self.topic is None else f"{self.topic}-{self.partition}"

    def to_text(self, rows_max: int = SHOWN_MAX) -> str:
        """The page for people; of each table `rows_max` rows."""
        return "\n".join(self._lines(rows_max))

    def _lines(self, rows_max: int) -> Iterator[str]:
        yield f"{self.name}: {self.path}"
        for what, figure in self._figures():
            yield f"  {what:<14} {figure}"
        for title, table in self._shown():
            if len(table) and rows_max:
                more = "" if len(table) <= rows_max else f" (the first {rows_max:,} of {len(table):,})"
                yield f"  {title}{more}:"
                yield from (f"    {line}" for line in _grid(table.slice(0, rows_max)))
        for kind, path, position, reason in self.damage:
            place = "" if position is None else f", byte {position:,}"
            yield f"  damage ({kind}): {path}{place}: {reason}"

    def _figures(self) -> Iterator[tuple[str, str]]:
        yield "segments", f"{self.segments:,}, {self.batches:,} batches, {self.records:,} records, {self.bytes:,} bytes"
        if self.log_start is not None:
            yield "offsets", f"{self.log_start:,} to {self.log_end:,}, stable to {self.last_stable_offset:,}"
        yield "producers", f"{len(self.producers):,}, and {self.untracked:,} batches without one"
        aborted, still_open = len(self.aborted), len(self.open)
        yield (
            "transactions",
            f"{self.commits:,} commits, {self.aborts:,} aborts ({aborted:,} of data), {still_open:,} open",
        )
        found = self.found()
        yield (
            "sequences",
            (
                f"{found['missing']:,} missing, {found['repeated']:,} batches written twice, {found['fenced']:,} fenced"
                + (f"; compacted, so steps over {self._stepped:,} are no loss" if self.compacted else "")
            ),
        )
        verdicts = self.snapshots["verdict"].to_pylist()
        told = ", ".join(f"{verdicts.count(it):,} {it}" for it in dict.fromkeys(verdicts)) or "none"
        yield "snapshots", told

    def _shown(self) -> Iterator[tuple[str, Any]]:
        yield "steps in sequences, in a compacted log" if self.compacted else "missing sequences", self.missing
        yield "batches written twice", self.repeated
        yield "batches of fenced producers", self.fenced
        yield "open transactions", self.open
        yield "snapshots that do not follow from the log", _where(self.snapshots, ("differs", "compacted", "damaged"))
        yield "differences of snapshots", self.differences
        yield "transaction index and log differ", self.index


@dataclass(frozen=True, kw_only=True)
class LogAudit:
    """What the logs of some partitions say. `str(report)` is for people."""

    source: str
    partitions: tuple[PartitionAudit, ...]

    def found(self, *kinds: str) -> dict[str, int]:
        """How much there is of each kind of finding; what there is none of is left out. All kinds unless named.

        "missing" sequence numbers (not of compacted logs), "repeated" and "fenced" batches, "hanging" transactions,
        "snapshot" files that differ from the log, "index" entries that do, "damage" of files. Raises PolicyError for a
        kind that does not exist.
        """
        for kind in kinds:
            if kind not in FINDINGS:
                raise PolicyError(f"no finding is called '{kind}'; there are {', '.join(FINDINGS)}")
        sums = {kind: sum(partition.found()[kind] for partition in self.partitions) for kind in kinds or FINDINGS}
        return {kind: count for kind, count in sums.items() if count}

    def table(self, name: str) -> Any:
        """A table of all partitions together, `topic` and `partition` before its columns, as a `pyarrow.Table`.

        `name`: producers, missing, repeated, fenced, open, aborted, snapshots, differences or index.
        """
        if name not in _TABLES:
            raise PolicyError(f"no table is called '{name}'; there are {', '.join(_TABLES)}")
        import pyarrow as pa

        tables = []
        for it in self.partitions:
            found = getattr(it, name)
            keys = (pa.array([it.topic] * len(found), pa.string()), pa.array([it.partition] * len(found), pa.int32()))
            tables.append(found.add_column(0, "topic", keys[0]).add_column(1, "partition", keys[1]))
        return pa.concat_tables(tables)

    def to_pandas(self) -> dict[str, Any]:
        """The tables as pandas DataFrames, by name."""
        return {name: self.table(name).to_pandas() for name in _TABLES}

    def to_json(self, rows_max: int | None = None) -> str:
        """Everything, tables as lists of objects. `rows_max`: how many rows of each, all unless given."""
        return json.dumps(
            {
                "source": self.source,
                "found": self.found(),
                "partitions": [_as_dict(partition, rows_max) for partition in self.partitions],
            }
        )

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, rows_max: int = SHOWN_MAX) -> str:
        """The page for people; of each table `rows_max` rows."""
        return "\n\n".join(partition.to_text(rows_max) for partition in self.partitions)


_TABLES = ("producers", "missing", "repeated", "fenced", "open", "aborted", "snapshots", "differences", "index")


def _as_dict(partition: PartitionAudit, rows_max: int | None) -> dict[str, Any]:
    fields = {field.name: getattr(partition, field.name) for field in dataclasses.fields(partition)}
    fields |= {name: fields[name].slice(0, rows_max).to_pylist() for name in _TABLES}
    return fields | {"damage": [finding._asdict() for finding in partition.damage]}


def _where(snapshots: Any, verdicts: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return snapshots.filter(pa.array([it in verdicts for it in snapshots["verdict"].to_pylist()], pa.bool_()))


def _grid(table: Any) -> Iterator[str]:
    """Lines of a table, columns aligned."""
    lines = [table.column_names, *([_cell(it) for it in row.values()] for row in table.to_pylist())]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.column_names))]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if type(value) is int else str(value)
