"""The report of an audit of a Kafka log: figures for programs, text for people, tables for further analysis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fencepost.errors import PolicyError
from fencepost.kafka.finding import Finding
from fencepost.report import Report, grid
from fencepost.words import plural

if TYPE_CHECKING:
    from fencepost.pages.page import Page

FINDINGS = ("missing", "repeated", "fenced", "hanging", "snapshot", "index", "damage")
"""The kinds of findings that `LogAudit.count_findings` accepts."""
SHOWN_MAX = 10
"""Default number of table lines in the text."""


@dataclass(frozen=True, kw_only=True)
class PartitionAudit:
    """The findings of one partition's log. Tables are `pyarrow.Table`."""

    path: str
    topic: str | None
    partition: int | None
    segments: int
    bytes: int
    """Size of the batches read."""
    batches: int
    records: int
    log_start: int | None
    """The first offset. None without batches."""
    log_end: int | None
    """The offset after the last one."""
    last_stable_offset: int | None
    first_unstable_offset: int | None
    newest_timestamp: int | None
    """The newest timestamp of all batches, in milliseconds."""
    cleanup_policy: str
    """The topic's cleanup.policy as passed to the audit: "delete", "compact" or "unknown"."""
    compacted: bool
    """Whether the log counts as compacted: the policy is "compact", or it is "unknown" and some batches have fewer
    records than offsets. In a compacted log, steps in sequence numbers and offsets in no batch are not losses:
    `missing` and `holes` list them, but `count_findings` does not count them."""
    removed: int
    """Number of records removed from batches, by compaction or by a loss of single records."""
    checksums: bool
    """Whether the content of batches was read and checksums were verified."""
    known_from: str | None
    """The snapshot that defines the producers at the start, if the log does not begin at 0."""
    untracked: int
    """Number of batches without a producer."""
    commits: int
    """Number of commit and abort markers."""
    aborts: int
    compressions: dict[str, int]
    """Number of batches by compression."""
    producers: Any
    """Columns: pid, epoch (the last), epochs, batches, records, first_offset, last_offset. Ordered by pid."""
    missing: Any
    """Sequence numbers that the broker had accepted and no longer has: pid, epoch, first_seq, last_seq, count, offset
    (of the following batch), segment, position."""
    holes: Any
    """Offsets that are in no batch: first_offset, last_offset, count, segment and position (of the following batch;
    position is null at the log's end)."""
    repeated: Any
    """Batches whose sequences go back, so they were written twice: pid, epoch, base_seq, last_seq, expected, offset,
    segment, position."""
    fenced: Any
    """Batches of an epoch below their producer's highest: pid, epoch, base_seq, last_seq, offset, segment, position."""
    open: Any
    """Transactions without a marker: pid, epoch, first_offset, last_offset, last_timestamp, hanging (whether the newest
    batch is more than 20 minutes old: the maximum timeout plus five minutes)."""
    aborted: Any
    """Aborted transactions: pid, first_offset, last_offset, last_stable_offset."""
    snapshots: Any
    """The broker's snapshots: file, offset, producers, expired (in the log, idle, and not in the file), differences,
    verdict.

    The verdict is "equal", "differs", "compacted" (compaction or retention removed what it names), "damaged" or
    "before" (at or before the log's beginning).
    """
    differences: Any
    """Differences between a snapshot and the state computed from the log: file, pid, field, in_snapshot, in_log. The
    field "producer" means that only one side has the producer."""
    index: Any
    """Differences between the transaction indexes and the log: pid, first_offset, last_offset, last_stable_offset,
    only_in ("index" or "log")."""
    damage: tuple[Finding, ...]
    """Damaged files. Their readable parts were used."""

    def count_findings(self) -> dict[str, int]:
        """Return the number of findings by kind. Steps and gaps caused by compaction are not counted."""
        return {
            "missing": 0 if self.compacted else self._lost,
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
    def _offsets_missing(self) -> int:
        return int(sum(self.holes["count"].to_pylist())) + self.removed

    @property
    def _lost(self) -> int:
        """Return the minimum number of lost records: a lost record leaves a hole, a step of its producer, or both."""
        return max(self._stepped, self._offsets_missing)

    @property
    def name(self) -> str:
        return self.path if self.topic is None else f"{self.topic}-{self.partition}"

    def to_text(self, rows_max: int = SHOWN_MAX) -> str:
        """Return the report as text. `rows_max`: rows per table."""
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
            place = "" if position is None else f", byte {position}"
            yield f"  damage ({kind}): {path}{place}: {reason}"

    def _figures(self) -> Iterator[tuple[str, str]]:
        yield "segments", f"{self.segments:,}, {self.batches:,} batches, {self.records:,} records, {self.bytes:,} bytes"
        if self.log_start is not None:
            newest = _time(self.newest_timestamp)
            yield "offsets", f"{self.log_start} to {self.log_end}, stable to {self.last_stable_offset}; newest {newest}"
            places = plural(len(self.holes), "place")
            yield "holes", f"{plural(self._offsets_missing, 'offset')} without a record, in {places}"
        yield "producers", f"{len(self.producers):,}, and {self.untracked:,} batches without one"
        aborted, still_open = len(self.aborted), len(self.open)
        yield (
            "transactions",
            f"{self.commits:,} commits, {self.aborts:,} aborts ({aborted:,} of data), {still_open:,} open",
        )
        found = self.count_findings()
        yield (
            "sequences",
            (
                f"{0 if self.compacted else self._stepped:,} missing, {found['repeated']:,} batches written twice, "
                f"{found['fenced']:,} fenced"
                + (f"; compacted, so steps over {self._stepped:,} are not losses" if self.compacted else "")
            ),
        )
        if found["missing"] and self.cleanup_policy == "unknown":
            yield "", 'if the topic is compacted, say so (cleanup policy "compact"): then these are not losses'
        verdicts = self.snapshots["verdict"].to_pylist()
        counts = ", ".join(f"{verdicts.count(it):,} {it}" for it in dict.fromkeys(verdicts)) or "none"
        yield "snapshots", counts

    def _shown(self) -> Iterator[tuple[str, Any]]:
        yield "steps in sequences, in a compacted log" if self.compacted else "missing sequences", self.missing
        yield "offsets in no batch", self.holes
        yield "batches written twice", self.repeated
        yield "batches of fenced producers", self.fenced
        yield "open transactions", self.open
        yield "snapshots that do not follow from the log", _where(self.snapshots, ("differs", "compacted", "damaged"))
        yield "differences of snapshots", self.differences
        yield "transaction index and log differ", self.index


@dataclass(frozen=True, kw_only=True)
class LogAudit(Report):
    """The findings of several partitions' logs. `str(report)` is a text for people."""

    source: str
    partitions: tuple[PartitionAudit, ...]

    def count_findings(self, *kinds: str) -> dict[str, int]:
        """Return the number of findings by kind. Kinds without findings are left out.

        | kind | counts |
        |---|---|
        | "missing" | records: skipped sequence numbers or offsets in no batch (the larger sum of a partition) |
        | "repeated", "fenced" | batches |
        | "hanging" | transactions |
        | "snapshot" | snapshot files that differ from the log |
        | "index" | index entries that differ from the log |
        | "damage" | findings in `PartitionAudit.damage`; without gaps between segments if the log is compacted |

        Compacted logs have no "missing" records. `kinds`: default all. Raises PolicyError for an unknown kind.
        """
        for kind in kinds:
            if kind not in FINDINGS:
                raise PolicyError(f"unknown finding '{kind}'; findings are {', '.join(FINDINGS)}")
        sums = {
            kind: sum(partition.count_findings()[kind] for partition in self.partitions) for kind in kinds or FINDINGS
        }
        return {kind: count for kind, count in sums.items() if count}

    def table(self, name: str) -> Any:
        """Return a table of all partitions as `pyarrow.Table`, with `topic` and `partition` as first columns.

        `name`: producers, missing, holes, repeated, fenced, open, aborted, snapshots, differences or index.
        """
        if name not in _TABLES:
            raise PolicyError(f"unknown table '{name}'; tables are {', '.join(_TABLES)}")
        import pyarrow as pa

        tables = []
        for it in self.partitions:
            found = getattr(it, name)
            keys = (pa.array([it.topic] * len(found), pa.string()), pa.array([it.partition] * len(found), pa.int32()))
            tables.append(found.add_column(0, "topic", keys[0]).add_column(1, "partition", keys[1]))
        return pa.concat_tables(tables)

    def to_pandas(self) -> dict[str, Any]:
        """Return the tables as pandas DataFrames, by name."""
        return {name: self.table(name).to_pandas() for name in _TABLES}

    def _page(self) -> Page:
        from fencepost.pages.kafka import log_page

        return log_page(self)

    def total(self) -> dict[str, int]:
        """Sums over all partitions: partitions, with_findings, segments, batches, records, bytes."""
        sums = {name: sum(getattr(it, name) for it in self.partitions) for name in _SUMMED}
        return {"partitions": len(self.partitions), "with_findings": len(self._with_findings())} | sums

    def to_json(self, rows_max: int | None = None, *, only_findings: bool = False) -> str:
        """Return the report as JSON, tables as lists of objects, times in milliseconds.

        `rows_max`: rows per table, None for all. `only_findings`: only partitions with findings.
        """
        shown = self._with_findings() if only_findings else self.partitions
        return json.dumps(
            {
                "source": self.source,
                "found": self.count_findings(),
                "total": self.total(),
                "partitions": [_as_dict(partition, rows_max) for partition in shown],
            }
        )

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, rows_max: int = SHOWN_MAX, *, only_findings: bool = False) -> str:
        """Return the report as text, with a total at its end. `rows_max`: rows per table.

        `only_findings`: only partitions with findings.
        """
        shown = self._with_findings() if only_findings else self.partitions
        return "\n\n".join([*(partition.to_text(rows_max) for partition in shown), self._total_text()])

    def _with_findings(self) -> tuple[PartitionAudit, ...]:
        return tuple(it for it in self.partitions if any(it.count_findings().values()))

    def _total_text(self) -> str:
        sums = self.total()
        found = ", ".join(f"{kind} {count:,}" for kind, count in self.count_findings().items()) or "nothing"
        figures = ", ".join(f"{sums[name]:,} {name}" for name in _SUMMED)
        partitions = f"{plural(sums['partitions'], 'partition')}, {sums['with_findings']:,} with findings"
        return f"total: {partitions}; {figures}\n  found          {found}"


_SUMMED = ("segments", "batches", "records", "bytes")
_TABLES = (
    "producers",
    "missing",
    "holes",
    "repeated",
    "fenced",
    "open",
    "aborted",
    "snapshots",
    "differences",
    "index",
)


def _as_dict(partition: PartitionAudit, rows_max: int | None) -> dict[str, Any]:
    tables = {name: getattr(partition, name).slice(0, rows_max).to_pylist() for name in _TABLES}
    return vars(partition) | tables | {"damage": [finding._asdict() for finding in partition.damage]}


def _where(snapshots: Any, verdicts: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return snapshots.filter(pa.array([it in verdicts for it in snapshots["verdict"].to_pylist()], pa.bool_()))


def _grid(table: Any) -> list[str]:
    """Format a table with aligned columns."""
    lines = [table.column_names, *([_cell(name, row) for name in row] for row in table.to_pylist())]
    return grid(lines, [True] * len(table.column_names))


_COUNTS = {"count", "batches", "records", "epochs", "producers", "expired", "differences"}


def _cell(name: str, row: dict[str, Any]) -> str:
    """Format counts with separators and timestamps as times; ids, offsets, sequence numbers and positions as plain
    numbers."""
    value = row[name]
    if value is None:
        return ""
    if name == "last_timestamp" or (row.get("field") == "timestamp" and name in ("in_snapshot", "in_log")):
        return _time(value)
    return f"{value:,}" if name in _COUNTS else str(value)


def _time(ms: int | None) -> str:
    """Format milliseconds since 1970 as UTC, or as a number if the calendar has no such time."""
    if ms is None or ms < 0:
        return "unknown"
    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
