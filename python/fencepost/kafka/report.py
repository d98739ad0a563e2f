"""What an audit of a Kafka log found: figures for programs, a page for people, tables for those who ask further."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.errors import PolicyError
from fencepost.kafka.finding import Finding

FINDINGS = ("missing", "repeated", "fenced", "hanging", "snapshot", "index", "damage")
"""What `LogAudit.found` can be asked for."""
CLEANUP_POLICIES = ("delete", "compact", "unknown")
"""What an audit can be told of a topic's cleanup.policy."""
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
    cleanup_policy: str
    """What the audit was told of the topic: "delete", "compact" or "unknown"."""
    compacted: bool
    """Whether the log is taken for compacted: the policy is "compact", or it is "unknown" and batches have fewer
    records than offsets. Steps in sequence numbers and offsets in no batch are then not counted as losses: `missing`
    and `holes` list them, and `found` does not count them."""
    removed: int
    """Records that batches held and do not hold any more; only compaction removes records from a batch."""
    checksums: bool
    """Whether what batches hold was read, and their checksums were compared."""
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
    holes: Any
    """Offsets that are in no batch: first_offset, last_offset, count, segment and position (of the batch behind them;
    position null at the log's end)."""
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
        """At least so many records: a lost one leaves a hole, a step of its producer, or both."""
        return max(self._stepped, self._offsets_missing)

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
            place = "" if position is None else f", byte {position}"
            yield f"  damage ({kind}): {path}{place}: {reason}"

    def _figures(self) -> Iterator[tuple[str, str]]:
        yield "segments", f"{self.segments:,}, {self.batches:,} batches, {self.records:,} records, {self.bytes:,} bytes"
        if self.log_start is not None:
            newest = _time(self.newest_timestamp)
            yield "offsets", f"{self.log_start} to {self.log_end}, stable to {self.last_stable_offset}; newest {newest}"
            yield "holes", f"{self._offsets_missing:,} offsets without a record, in {len(self.holes):,} places"
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
                f"{0 if self.compacted else self._stepped:,} missing, {found['repeated']:,} batches written twice, "
                f"{found['fenced']:,} fenced"
                + (f"; compacted, so steps over {self._stepped:,} are no loss" if self.compacted else "")
            ),
        )
        if found["missing"] and self.cleanup_policy == "unknown":
            yield "", 'if the topic is compacted, say so (cleanup policy "compact"): then these are no loss'
        verdicts = self.snapshots["verdict"].to_pylist()
        told = ", ".join(f"{verdicts.count(it):,} {it}" for it in dict.fromkeys(verdicts)) or "none"
        yield "snapshots", told

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
class LogAudit:
    """What the logs of some partitions say. `str(report)` is for people."""

    source: str
    partitions: tuple[PartitionAudit, ...]

    def found(self, *kinds: str) -> dict[str, int]:
        """How much there is of each kind of finding; what there is none of is left out. All kinds unless named.

        "missing" records (sequence numbers that are stepped over or offsets in no batch, the larger of the two sums of
        a partition; not of compacted logs), "repeated" and "fenced" batches, "hanging" transactions,
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

        `name`: producers, missing, holes, repeated, fenced, open, aborted, snapshots, differences or index.
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

    def to_html(self) -> str:
        """A page with charts, as one file that loads nothing. Raises FencepostError without `fencepost[report]`."""
        from fencepost.pages.kafka import log_page

        return log_page(self).to_html()

    def _repr_html_(self) -> str | None:
        from fencepost.pages.charts import is_installed
        from fencepost.pages.kafka import log_page

        return log_page(self).frame() if is_installed() else None

    def total(self) -> dict[str, int]:
        """Sums over all partitions: partitions, with_findings, segments, batches, records, bytes."""
        sums = {name: sum(getattr(it, name) for it in self.partitions) for name in _SUMMED}
        return {"partitions": len(self.partitions), "with_findings": len(self._with_findings())} | sums

    def to_json(self, rows_max: int | None = None, *, only_findings: bool = False) -> str:
        """Everything, tables as lists of objects, times in milliseconds.

        `rows_max`: how many rows of each table, all unless given; `only_findings`: partitions that have any.
        """
        shown = self._with_findings() if only_findings else self.partitions
        return json.dumps(
            {
                "source": self.source,
                "found": self.found(),
                "total": self.total(),
                "partitions": [_as_dict(partition, rows_max) for partition in shown],
            }
        )

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, rows_max: int = SHOWN_MAX, *, only_findings: bool = False) -> str:
        """The page for people, a total at its end; of each table `rows_max` rows.

        `only_findings`: only partitions that have any.
        """
        shown = self._with_findings() if only_findings else self.partitions
        return "\n\n".join([*(partition.to_text(rows_max) for partition in shown), self._total_text()])

    def _with_findings(self) -> tuple[PartitionAudit, ...]:
        return tuple(it for it in self.partitions if any(it.found().values()))

    def _total_text(self) -> str:
        sums = self.total()
        found = ", ".join(f"{kind} {count:,}" for kind, count in self.found().items()) or "nothing"
        figures = ", ".join(f"{sums[name]:,} {name}" for name in _SUMMED)
        partitions = f"{sums['partitions']:,} partitions, {sums['with_findings']:,} with findings"
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
    fields = {field.name: getattr(partition, field.name) for field in dataclasses.fields(partition)}
    fields |= {name: fields[name].slice(0, rows_max).to_pylist() for name in _TABLES}
    return fields | {"damage": [finding._asdict() for finding in partition.damage]}


def _where(snapshots: Any, verdicts: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return snapshots.filter(pa.array([it in verdicts for it in snapshots["verdict"].to_pylist()], pa.bool_()))


def _grid(table: Any) -> Iterator[str]:
    """Lines of a table, columns aligned."""
    lines = [table.column_names, *([_cell(name, row) for name in row] for row in table.to_pylist())]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.column_names))]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


_COUNTS = {"count", "batches", "records", "epochs", "producers", "expired", "differences"}


def _cell(name: str, row: dict[str, Any]) -> str:
    """Counts with separators, times as times; ids, offsets, sequence numbers and positions as they are copied."""
    value = row[name]
    if value is None:
        return ""
    if name == "last_timestamp" or (row.get("field") == "timestamp" and name in ("in_snapshot", "in_log")):
        return _time(value)
    return f"{value:,}" if name in _COUNTS else str(value)


def _time(ms: int | None) -> str:
    """Milliseconds since 1970 as a time of UTC; as a number where no calendar has it."""
    if ms is None or ms < 0:
        return "unknown"
    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
