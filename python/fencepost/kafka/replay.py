"""Replays partitions like a follower, and records inconsistencies.

Each partition is read once, header by header, in calls of about a million batches. Each call updates four things: the
producers' sequence numbers (`Sequences`), their state as in a broker (`BrokerTable`, replica rules), the transactions
(`TransactionIndex`), and sums. Where the broker wrote a snapshot, it is compared with the state so far. Memory grows
with producers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fencepost import _native
from fencepost._native import BrokerTable, TransactionIndex
from fencepost.errors import PolicyError, SourceError, StoreError
from fencepost.kafka.audit_report import LogAudit, PartitionAudit
from fencepost.kafka.cleanup import CleanupPolicy, check_cleanup_policy, policy_of_topic
from fencepost.kafka.finding import Finding
from fencepost.kafka.headers import without_impossible
from fencepost.kafka.sequence_checks import MAX, Sequences
from fencepost.kafka.source import Log, Segment, find_partitions, open_log, read_whole, topic_and_partition
from fencepost.policy import BatchColumns
from fencepost.progress import Progress, show_rows
from fencepost.telemetry import observe_report, observe_report_step

CALL_ROWS = 1 << 20
"""Number of batches to process together."""
ATTEMPTS_MAX = 3
"""How often a partition is read whose files a broker removes meanwhile."""
HANGING_MS = 20 * 60_000
"""The broker's maximum transaction timeout (transaction.max.timeout.ms) plus five minutes."""

_COLUMNS = BatchColumns.kafka_log().replace(partition=None)
_STATE = ("epoch", "last_seq", "last_offset", "offset_delta", "timestamp", "coordinator_epoch", "txn_first_offset")
"""The fields of a producer in a snapshot."""


_SUMS = ("bytes", "batches", "records", "untracked", "commits", "aborts", "removed")


@dataclass(frozen=True)
class Request:
    """The arguments of `fencepost.kafka.audit`."""

    now_ms: int | Literal["newest"] | None
    max_idle_ms: int
    cleanup_policy: CleanupPolicy
    checksums: bool
    options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        check_cleanup_policy(self.cleanup_policy)
        if isinstance(self.now_ms, str) and self.now_ms != "newest":
            raise PolicyError(f"now_ms={self.now_ms!r}: expected milliseconds since 1970, or 'newest'")


def audit(source: str | os.PathLike[str], request: Request, progress: Progress) -> LogAudit:
    """Implement `fencepost.kafka.audit`."""
    name = os.fspath(source)

    def work() -> LogAudit:
        with observe_report_step("list", name):
            folders = find_partitions(source, request.options)
        partitions: list[PartitionAudit] = []
        for folder in folders:
            show = _Shown(progress, len(partitions), len(folders), sum(it.records for it in partitions))
            show(0, 0)
            with observe_report_step("replay", folder):
                partitions.append(_audit_partition(folder, request, show, is_one_of_several=folders != [name]))
        return LogAudit(source=name, partitions=tuple(partitions))

    return observe_report("kafka_audit", name, work, _figures)


def _figures(report: LogAudit) -> dict[str, int]:
    total = report.total()
    figures = {"fencepost.rows": total["records"]}
    figures |= {f"fencepost.{name}": total[name] for name in ("partitions", "batches")}
    return figures | {f"fencepost.found.{kind}": count for kind, count in report.count_findings().items()}


@dataclass(frozen=True)
class _Shown:
    """Shows the progress of a partition among all partitions."""

    progress: Progress
    partition: int
    partitions: int
    records_before: int

    def __call__(self, share: float, records: int) -> None:
        """`share`: of the partition, from 0 to 1. `records`: of the partition so far."""
        self.progress("audit", int(1000 * (self.partition + share)), 1000 * self.partitions)
        show_rows(self.progress, self.records_before + records)


def _audit_partition(folder: str, request: Request, show: _Shown, *, is_one_of_several: bool) -> PartitionAudit:
    """Audit a partition, again if retention or compaction removed files that were listed and not read yet."""
    for _ in range(ATTEMPTS_MAX):
        partition = _Partition(folder, request, show)
        report = partition.report(is_one_of_several=is_one_of_several)
        if not partition.has_lost_files():
            break
    show(1, report.records)
    return report


class _Partition:
    """The replay of one partition."""

    def __init__(self, path: str, request: Request, show: _Shown) -> None:
        self.path, self.request, self.options = path, request, request.options
        self.show = show
        self.log = Log(*topic_and_partition(PurePath(path).name), segments=(), folder=path)
        self.sequences, self.state, self.transactions = Sequences(), BrokerTable(), TransactionIndex()
        self.damage: list[Finding] = []
        self.producers = _Producers()
        self.tables = {name: [schema.empty_table()] for name, schema in _FOUND.items()}
        self.emptied: list[Any] = []
        self.abort_markers: list[pa.Table] = []
        self.snapshots: list[dict[str, Any]] = []
        self.differences: list[dict[str, Any]] = []
        self.sums: Counter[str] = Counter()
        self.compressions: Counter[str] = Counter()
        self.log_start: int | None = None
        self.log_end: int | None = None
        self.newest: int | None = None
        self.known_from: str | None = None

    def report(self, *, is_one_of_several: bool) -> PartitionAudit:
        """Replay the partition. If it `is_one_of_several`, unreadable files are findings, otherwise an error."""
        try:
            self._read()
        except (SourceError, StoreError) as error:
            if not is_one_of_several:
                raise
            self.damage.append(_finding("unreadable", error.path or self.path, error))
        return self._result()

    def has_lost_files(self) -> bool:
        """Return whether a file could not be read because it was removed after it was listed."""
        unread = {it.path for it in self.damage if it.position is None} & _files_of(self.log)
        if not unread:
            return False
        try:
            return not unread <= _files_of(open_log(self.path, self.options))
        except (SourceError, StoreError):
            return False

    def _read(self) -> None:
        self.log = open_log(self.path, self.options)
        waiting = self._begin(self._files(".snapshot"))
        segments = [segment.parts for segment in self.log.segments]
        stream = _native.kafka_batches(segments, self.log.topic, self.log.partition, reports=True)
        ends: dict[str, int] = {}
        places = {PurePath(it.path).name: at for at, it in enumerate(self.log.segments)}
        steps = len(places) * (2 if self.request.checksums else 1)
        for rows in _batched(stream):
            place = places[rows["segment"][-1].as_py()]
            ends[rows["segment"][-1].as_py()] = rows["position"][-1].as_py() + rows["bytes"][-1].as_py()
            rows, impossible = without_impossible(rows, self.log.segments)
            self.damage += impossible
            rows = self._note(rows)
            base_offsets = rows["base_offset"].to_numpy()
            done = 0
            while waiting and len(base_offsets) and waiting[0][0] <= base_offsets[-1]:
                offset, name = waiting.pop(0)
                upto = int(np.searchsorted(base_offsets, offset))
                self._follow(rows.slice(done, upto - done))
                self._compare(offset, name)
                done = upto
            self._follow(rows.slice(done))
            self.show(place / steps, self.sums["records"])
        self._note_end()  # before the comparisons, which explain differences by holes
        for offset, name in waiting:
            self._compare(offset, name)
        end = ends.get(PurePath(self.log.segments[-1].path).name, 0)
        self.damage += [it for it in stream.findings if not self._is_of_new_batch(it, end)]
        if self.request.checksums:
            for at, segment in enumerate(self.log.segments, len(places)):
                self.show(at / steps, self.sums["records"])
                self._check_contents(segment)

    def _is_of_new_batch(self, finding: Finding, end: int) -> bool:
        """Return whether a broker has appended the batch of this index entry after its segment was read up to `end`.

        The reader opens the segment before its index.
        """
        segment = self.log.segments[-1]
        if finding.kind != "index" or finding.position is None or not segment.path.endswith(".log"):
            return False
        if finding.path != segment.path.removesuffix(".log") + ".index":
            return False
        try:
            with open(finding.path, "rb") as file:
                file.seek(finding.position + 4)
                return end <= int.from_bytes(file.read(4), "big") < segment.size()
        except (OSError, SourceError, StoreError):
            return False

    def _files(self, ending: str) -> list[tuple[int, str]]:
        return sorted((int(name[:20]), name) for name in self.log.others if name.endswith(ending))

    def _begin(self, snapshots: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """If the log does not begin at 0, load the snapshot at its beginning. Returns the later snapshots.

        An older snapshot does not have what producers wrote between it and the beginning.
        """
        base_offset = self.log.segments[0].base_offset
        start, self.sequences.is_whole = base_offset or 0, base_offset == 0
        before = [it for it in snapshots if it[0] <= start]
        for place, (offset, name) in enumerate(reversed(before)):
            is_base = place == 0 and offset == start > 0
            rows = self._snapshot(name)
            self.snapshots.append(
                {"file": name, "offset": offset, "verdict": "damaged" if rows is None else "before"}
                | ({} if rows is None else {"producers": len(rows)})
            )
            if is_base and rows is not None:
                self._load_snapshot(name, rows)
        self.snapshots.reverse()
        return snapshots[len(before) :]

    def _load_snapshot(self, name: str, rows: pa.Table) -> None:
        """Start with the producers of a snapshot."""
        self.known_from, self.sequences.is_whole = name, True
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / name
            local.write_bytes(read_whole(f"{self.log.folder}/{name}", self.options))
            self.state = BrokerTable.from_kafka_snapshot(local, 0)
        by_pid = rows.sort_by("pid")
        self.sequences.add_known(*(by_pid[it].to_numpy() for it in ("pid", "epoch", "last_seq")))
        begun = rows.filter(pc.greater_equal(rows["txn_first_offset"], 0)).sort_by("txn_first_offset")
        if len(begun):
            open_rows = {it: begun[it] for it in ("pid", "epoch", "timestamp")}
            open_rows |= {"offset": begun["txn_first_offset"], "control": pa.nulls(len(begun), pa.string())}
            self.transactions.apply(pa.table(open_rows), BatchColumns(partition=None))

    def _snapshot(self, name: str) -> pa.Table | None:
        """Return the rows of a broker's snapshot; None, with a finding, if it is damaged."""
        path = f"{self.log.folder}/{name}"
        try:
            return pa.table(_native.kafka_snapshot(read_whole(path, self.options), path))
        except (SourceError, StoreError) as error:
            self.damage.append(_finding("snapshot", path, error))
            return None

    def _note(self, rows: pa.Table) -> pa.Table:
        """Add to the sums and find gaps between offsets.

        Returns the rows with rising offsets: overlaps are damage, which is reported elsewhere.
        """
        base, last = rows["base_offset"].to_numpy(), rows["last_offset"].to_numpy()
        before = np.maximum.accumulate(np.concatenate([[-1 if self.log_end is None else self.log_end - 1], last]))
        rises = base > before[:-1]
        if not rises.all():
            rows = rows.filter(pa.array(rises))
            base, last = base[rises], last[rises]
        if not len(rows):
            return rows
        ends = np.concatenate([[self._end_so_far(int(base[0]))], last[:-1] + 1])
        behind = rows.filter(pa.array(base > ends))
        self._note_holes(ends[base > ends], base[base > ends], behind["segment"], behind["position"])
        is_data = rows["control"].is_null().to_numpy()
        counts = rows["count"].to_numpy()
        self.log_start = int(base[0]) if self.log_start is None else self.log_start
        self.log_end = int(last[-1]) + 1
        newest = int(rows["max_timestamp"].to_numpy().max())
        self.newest = newest if self.newest is None else max(newest, self.newest)
        pid = rows["pid"].to_numpy()
        self.sums.update(
            batches=len(rows),
            bytes=int(rows["bytes"].to_numpy().astype(np.int64).sum()),
            records=int(counts[is_data].astype(np.int64).sum()),
            removed=int(np.maximum(last - base + 1 - counts, 0)[is_data].sum()),
            untracked=int((is_data & (pid < 0)).sum()),
            commits=int(pc.sum(pc.equal(rows["control"], "commit")).as_py() or 0),
            aborts=int(pc.sum(pc.equal(rows["control"], "abort")).as_py() or 0),
        )
        self.compressions.update({it["values"]: it["counts"] for it in rows["compression"].value_counts().to_pylist()})
        self.producers.add(rows.filter(pa.array(is_data & (pid >= 0))))
        self.emptied.append(base[counts == 0])
        self.abort_markers.append(rows.filter(pc.equal(rows["control"], "abort")).select(["pid", "base_offset"]))
        return rows

    def _end_so_far(self, first: int) -> int:
        """Return the expected offset of the next batch; `first` if unknown."""
        if self.log_end is not None:
            return self.log_end
        begin = self.log.segments[0].base_offset
        return first if begin is None else min(begin, first)

    def _note_holes(self, begin: Any, end: Any, segment: Any, position: Any) -> None:
        """Record offsets from `begin` up to `end` (exclusive), and the location of the batches after them."""
        if len(begin):
            columns = [begin, end - 1, end - begin, segment, position]
            self._add("holes", pa.table(columns, _FOUND["holes"].names))

    def _add(self, name: str, rows: pa.Table) -> None:
        """Add rows to a table of the report."""
        self.tables[name].append(rows.select(_FOUND[name].names).cast(_FOUND[name]))

    def _note_end(self) -> None:
        """Record offsets after the last batch that the last segment or a snapshot implies."""
        last = self.log.segments[-1]
        behind = [*self._files(".snapshot"), *([] if last.base_offset is None else [(last.base_offset, last.path)])]
        end = self._end_so_far(min((it[0] for it in behind), default=0))
        offset, path = max(behind, default=(end, ""))
        if offset > end:
            self._note_holes(np.array([end]), np.array([offset]), [PurePath(path).name], pa.nulls(1))

    def _check_contents(self, segment: Segment) -> None:
        """Read the content of a segment's batches and record damaged ones."""
        # A gap before the segment has the position of its first batch, which can be damaged too.
        start, known = 0, {(it.path, it.position) for it in self.damage if it.kind != "gap"}
        while True:
            source = segment.parts if start == 0 else (segment.path, None, _SegmentTail(segment, start))
            try:
                for _ in _native.kafka_records([source], None, None):
                    pass
                return
            except (SourceError, StoreError) as error:
                if isinstance(error, StoreError) or error.position is None:
                    position, length = None, None
                else:
                    position = start + error.position
                    length = _length_at(segment, position)
                if (segment.path, position) not in known:
                    reason = error.message.partition(": ")[2] or error.message
                    self.damage.append(Finding("content", segment.path, position, reason))
                if position is None or length is None:
                    return
                start = position + length

    @property
    def is_compacted(self) -> bool:
        policy = policy_of_topic(self.request.cleanup_policy, self.log.topic)
        return policy == "compact" or (policy == "unknown" and self.sums["removed"] > 0)

    def _follow(self, rows: pa.Table) -> None:
        """Apply rows as a follower does, and record violations."""
        if not len(rows):
            return
        # A batch header whose records were compacted away belongs to a transaction decided long ago.
        is_undecided = pc.and_(rows["transactional"], pc.greater(rows["count"], 0))
        rows = rows.set_column(rows.column_names.index("transactional"), "transactional", is_undecided)
        self.state.apply(rows, _COLUMNS)
        self.transactions.apply(rows, _COLUMNS)
        is_marker = pc.is_in(rows["control"], pa.array(["commit", "abort"])).to_numpy(zero_copy_only=False)
        pid, epoch, base_seq, last_seq = (
            rows[name].to_numpy().astype(np.int64) for name in ("pid", "epoch", "base_seq", "last_seq")
        )
        steps, fenced = self.sequences.apply(pid, epoch, base_seq, last_seq, is_marker)
        is_ahead = steps.missing > 0
        batches = _batches_in_report(rows.take(steps.row))
        expected = pa.array(steps.expected)
        ahead = batches.append_column("first_seq", expected).filter(pa.array(is_ahead))
        missing = steps.missing[is_ahead]
        last_missing = (steps.expected[is_ahead] + missing - 1) & MAX
        ahead = ahead.set_column(ahead.column_names.index("last_seq"), "last_seq", pa.array(last_missing))
        self._add("missing", ahead.append_column("count", pa.array(missing)))
        self._add("repeated", batches.append_column("expected", expected).filter(pa.array(~is_ahead)))
        self._add("fenced", _batches_in_report(rows.take(fenced)))

    def _compare(self, offset: int, name: str) -> None:
        """Compare the state so far with a snapshot of the broker."""
        rows = self._snapshot(name)
        if rows is None:
            self.snapshots.append({"file": name, "offset": offset, "verdict": "damaged"})
            return
        theirs = {it.pop("pid"): it for it in rows.to_pylist()}
        ours = dict(_entries(self.state))
        found: list[dict[str, Any]] = []
        expired, reasons, removed = 0, set[str](), self._removed_before(offset)
        for pid in sorted(theirs.keys() | ours.keys()):
            their, our = theirs.get(pid), ours.get(pid)
            if their is None and our is not None and self._is_idle(our):
                expired += 1
                continue
            differing = [it for it in _differing(name, pid, their, our) if not self._is_of_unread(it)]
            reasons |= {self._reason(their, our, removed)} if differing else set()
            found += differing
        self.differences += found
        verdict = max(reasons, key=("compacted", "hole", "differs").index) if found else "equal"
        record = {"file": name, "offset": offset, "producers": len(theirs), "expired": expired}
        self.snapshots.append(record | {"differences": len(found), "verdict": verdict})

    def _is_of_unread(self, difference: dict[str, Any]) -> bool:
        """Return whether batches before the log's beginning, of which no snapshot is known, explain a difference."""
        start, theirs = self.log.segments[0].base_offset or 0, difference["in_snapshot"]
        is_of_marker = difference["field"] == "coordinator_epoch" and difference["in_log"] == -1
        is_of_begin = difference["field"] == "txn_first_offset" and 0 <= theirs < start
        return not self.sequences.is_whole and (is_of_marker or is_of_begin)

    def _is_idle(self, entry: dict[str, int]) -> bool:
        now = self.request.now_ms
        now = now if isinstance(now, int) else self.newest
        is_old = now is not None and now - entry["timestamp"] >= self.request.max_idle_ms
        return is_old and entry["txn_first_offset"] == -1

    def _removed_before(self, offset: int) -> tuple[Any, Any]:
        """Return the first and last offsets, as arrays, of ranges before an offset that have no batch or no record."""
        holes, emptied = pa.concat_tables(self.tables["holes"]), [np.empty(0, np.int64), *self.emptied]
        first, last = (np.concatenate([holes[it].to_numpy(), *emptied]) for it in ("first_offset", "last_offset"))
        return first[first < offset], last[first < offset]

    def _reason(
        self, their: dict[str, int] | None, our: dict[str, int] | None, removed: tuple[Any, Any]
    ) -> Literal["compacted", "hole", "differs"]:
        """Return why a producer in a snapshot, `their`, is not as the log says, `our`.

        "hole": batches or markers that the snapshot may know are no longer in the log.
        """
        if their is None:
            return "differs"
        if self.log_start is not None and 0 <= their["last_offset"] < self.log_start:
            return "compacted"
        if their["last_offset"] < 0 and our is None and not self.sequences.is_whole:
            return "compacted"  # the snapshot knows a marker, but not its offset
        (first, last), begun = removed, their["txn_first_offset"]
        has_all_markers = our is not None and our["coordinator_epoch"] == their["coordinator_epoch"]
        known = our["last_offset"] if our is not None and has_all_markers else -1
        return "hole" if np.any((last > known) | ((first <= begun) & (begun <= last))) else "differs"

    def _index_differences(self, aborted: pa.Table) -> pa.Table:
        """Return aborted transactions that only the log or only its indexes contain. Empty without indexes."""
        indexed: list[dict[str, int]] = []
        names = self._files(".txnindex")
        for _, name in names:
            path = f"{self.log.folder}/{name}"
            try:
                indexed += pa.table(_native.kafka_aborted(read_whole(path, self.options), path)).to_pylist()
            except (SourceError, StoreError) as error:
                self.damage.append(_finding("index", path, error))
        known: set[tuple[Any, ...]] = set()
        if not self.sequences.is_whole and self.log.segments:
            # Transactions that began before the log: their first offset, and the stable offset with it, is unknown.
            start = self.log.segments[0].base_offset or 0
            begun = [it for it in indexed if min(it["first_offset"], it["last_stable_offset"]) < start]
            known |= {(it["pid"], it["last_offset"]) for it in begun if it["last_offset"] >= start}
        if self.is_compacted:
            # The broker keeps an entry longer than the batches of its transaction, and as long as the marker.
            markers = {tuple(it.values()) for it in pa.concat_tables(self.abort_markers).to_pylist()}
            known |= {(it["pid"], it["last_offset"]) for it in indexed} & markers
        in_index, in_log = (
            {tuple(it.values()) for it in lines if (it["pid"], it["last_offset"]) not in known}
            for lines in (indexed, aborted.to_pylist() if names else indexed)
        )
        only = [(*it, "index") for it in sorted(in_index - in_log)] + [(*it, "log") for it in sorted(in_log - in_index)]
        columns = [*aborted.column_names, "only_in"]
        schema = pa.schema([*aborted.schema, ("only_in", pa.string())])
        return pa.Table.from_pylist([dict(zip(columns, it, strict=True)) for it in only], schema)

    def _result(self) -> PartitionAudit:
        has_rows = self.log_end is not None
        aborted = pa.table(self.transactions.aborted(None)) if has_rows else _ABORTED.empty_table()
        still_open = _OPEN.empty_table()
        if has_rows:
            opened = pa.table(self.transactions.open())
            now = self.request.now_ms
            now = self.newest if now == "newest" else time.time_ns() // 1_000_000 if now is None else now
            is_late = pc.fill_null(pc.greater(pc.subtract(now, opened["last_timestamp"]), HANGING_MS), False)
            still_open = opened.append_column("hanging", is_late).select(_OPEN.names).cast(_OPEN)
        index = self._index_differences(aborted)
        for it in self.snapshots:
            if it["verdict"] == "hole":
                it["verdict"] = "compacted" if self.is_compacted else "differs"
        return PartitionAudit(
            path=self.path,
            topic=self.log.topic,
            partition=self.log.partition,
            segments=len(self.log.segments),
            **{it: self.sums[it] for it in _SUMS},
            log_start=self.log_start,
            log_end=self.log_end,
            last_stable_offset=self.transactions.last_stable_offset(None) if has_rows else None,
            first_unstable_offset=self.transactions.first_unstable_offset(None) if has_rows else None,
            newest_timestamp=self.newest,
            cleanup_policy=policy_of_topic(self.request.cleanup_policy, self.log.topic),
            compacted=self.is_compacted,
            checksums=self.request.checksums,
            known_from=self.known_from,
            compressions=dict(self.compressions),
            producers=self.producers.table(),
            **{name: pa.concat_tables(tables) for name, tables in self.tables.items()},
            open=still_open,
            aborted=aborted,
            snapshots=pa.Table.from_pylist(self.snapshots, _SNAPSHOTS),
            differences=pa.Table.from_pylist(self.differences, _DIFFERENCES),
            index=index,
            damage=tuple(self.damage),
        )


class _Producers:
    """Sums by producer."""

    def __init__(self) -> None:
        self.sums: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Add data batches of producers."""
        ones = pa.array(np.ones(len(rows), np.int64))
        counted = rows.select(["pid", "epoch"]).append_column("batches", ones)
        counted = counted.append_column("records", rows["count"].cast(pa.int64()))
        counted = counted.append_column("first_offset", rows["base_offset"]).append_column(
            "last_offset", rows["last_offset"]
        )
        self.sums = _summed(counted if self.sums is None else pa.concat_tables([self.sums, counted]))

    def table(self) -> pa.Table:
        if self.sums is None:
            return _PRODUCERS.empty_table()
        names = [("epoch", "max"), ("epoch", "count"), ("batches", "sum"), ("records", "sum")]
        by_pid = self.sums.group_by("pid").aggregate([*names, ("first_offset", "min"), ("last_offset", "max")])
        return by_pid.sort_by("pid").rename_columns(_PRODUCERS.names).cast(_PRODUCERS)


def _summed(rows: pa.Table) -> pa.Table:
    """Return one row per producer and epoch."""
    sums = [("batches", "sum"), ("records", "sum"), ("first_offset", "min"), ("last_offset", "max")]
    return rows.group_by(["pid", "epoch"]).aggregate(sums).rename_columns(rows.column_names)


@dataclass(frozen=True)
class _SegmentTail:
    """A segment from a byte on, in the form of an object that the extension reads."""

    segment: Segment
    start: int

    def size(self) -> int:
        return self.segment.size() - self.start

    def read(self, offset: int, length: int) -> bytes:
        return self.segment.read(self.start + offset, length)


def _files_of(log: Log) -> set[str]:
    """Return the paths of a partition's files."""
    return {it.path for it in log.segments} | {f"{log.folder}/{name}" for name in log.others}


def _length_at(segment: Segment, position: int) -> int | None:
    """Return the size of the batch at a position; None if the segment ends within it."""
    header = segment.read(position, 12)
    if len(header) < 12:
        return None
    length = 12 + int.from_bytes(header[8:], "big", signed=True)
    return length if length > 12 and position + length < segment.size() else None


def _batched(stream: Any) -> Iterator[pa.Table]:
    """Combine a stream's batches to tables that are large enough for efficient calls."""
    batches, rows = [], 0
    for batch in stream:
        batches.append(pa.record_batch(batch))
        rows += len(batches[-1])
        if rows >= CALL_ROWS:
            yield pa.Table.from_batches(batches)
            batches, rows = [], 0
    if batches:
        yield pa.Table.from_batches(batches)


def _finding(kind: str, path: str, error: SourceError | StoreError) -> Finding:
    """A finding for a file that is unreadable or invalid."""
    position = error.position if isinstance(error, SourceError) else None
    return Finding(kind, path, position, error.message.removeprefix(path).lstrip(":, "))


def _batches_in_report(rows: pa.Table) -> pa.Table:
    """Return the columns that tables of batches in a report have."""
    batches = rows.select(["pid", "epoch", "base_seq", "last_seq", "base_offset", "segment", "position"])
    return batches.rename_columns(["pid", "epoch", "base_seq", "last_seq", "offset", "segment", "position"])


def _entries(state: BrokerTable) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield each producer with its fields of a snapshot."""
    for entry in pa.table(state.entries()).to_pylist():
        last = entry["batches"][-1] if entry["batches"] else None
        known = {
            "last_seq": last and last["last_seq"],
            "last_offset": last and last["last_offset"],
            "timestamp": entry["last_timestamp"],
            "coordinator_epoch": entry["coordinator_epoch"],
            "txn_first_offset": entry["transaction_first_offset"],
        }
        fields = {name: -1 if value is None else value for name, value in known.items()}
        delta = last["last_offset"] - last["first_offset"] if last else 0
        yield entry["pid"], fields | {"epoch": entry["epoch"], "offset_delta": delta}


def _differing(name: str, pid: int, their: dict[str, int] | None, our: dict[str, int] | None) -> list[dict[str, Any]]:
    """Return one row for each field that differs."""
    if their is None or our is None:
        found = {"in_snapshot": None if their is None else 1, "in_log": None if our is None else 1}
        return [{"file": name, "pid": pid, "field": "producer"} | found]
    return [
        {"file": name, "pid": pid, "field": field, "in_snapshot": their[field], "in_log": our[field]}
        for field in _STATE
        if their[field] != our[field]
    ]


def _of_batches(*columns: str) -> pa.Schema:
    """Return the schema of a table of batches that has these columns."""
    place = [("offset", pa.int64()), ("segment", pa.string()), ("position", pa.int64())]
    return pa.schema([("pid", pa.int64()), ("epoch", pa.int16()), *((it, pa.int64()) for it in columns), *place])


_FOUND = {
    "missing": _of_batches("first_seq", "last_seq", "count"),
    "repeated": _of_batches("base_seq", "last_seq", "expected"),
    "fenced": _of_batches("base_seq", "last_seq"),
    "holes": pa.schema(
        [(name, pa.int64()) for name in ("first_offset", "last_offset", "count")]
        + [("segment", pa.string()), ("position", pa.int64())]
    ),
}
"""The tables of a report to which each call adds rows."""
_PRODUCERS = pa.schema(
    [("pid", pa.int64()), ("epoch", pa.int16())]
    + [(name, pa.int64()) for name in ("epochs", "batches", "records", "first_offset", "last_offset")]
)
_ABORTED = pa.schema([(name, pa.int64()) for name in ("pid", "first_offset", "last_offset", "last_stable_offset")])
_OPEN = pa.schema(
    [("pid", pa.int64()), ("epoch", pa.int16())]
    + [(name, pa.int64()) for name in ("first_offset", "last_offset", "last_timestamp")]
    + [("hanging", pa.bool_())]
)
_SNAPSHOTS = pa.schema(
    [("file", pa.string())]
    + [(name, pa.int64()) for name in ("offset", "producers", "expired", "differences")]
    + [("verdict", pa.string())]
)
_DIFFERENCES = pa.schema(
    [("file", pa.string()), ("pid", pa.int64()), ("field", pa.string())]
    + [(name, pa.int64()) for name in ("in_snapshot", "in_log")]
)
