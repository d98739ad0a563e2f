"""Gathers audit figures from verdicts, call by call. Memory grows with producers, not with rows.

An `Auditor` receives the rows of a call and their verdicts. It neither judges nor changes a table. Auditors of disjoint
keys can be merged (`merge`), so an audit of many files uses one auditor per shard.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencepost import _native
from fencepost._native import StateTable, Verdicts
from fencepost.content import Hashes, checksums, content_columns, mixed, unpacked
from fencepost.errors import BatchError
from fencepost.examples import Examples
from fencepost.findings import ORDER_OF_ROWS, AuditReport
from fencepost.inputs import check_polars, frame_package, heads_of, is_a, narrowed, opened, with_fields, without_runs
from fencepost.policy import Columns, Policy
from fencepost.resets import UNKNOWN, Mask, Numbers, milliseconds, newest_before
from fencepost.sums import exact_sum
from fencepost.timeline import Timeline
from fencepost.verdict import Verdict

CALL_ROWS = 1 << 20
"""Rows per call: large enough to be fast, small enough to react to Ctrl-C and to bound memory."""
SAMPLE_MAX = 1 << 18
"""Maximum number of kept rows to remember for comparison with repeats, 24 bytes each."""
CONFLICTS_MAX = 1_000
"""Maximum number of repeats with other content that a report lists."""
EXAMPLES_MAX = 20
"""Maximum number of example rows of each kind."""
GAPS_SEARCHED = 1 << 14
"""Number of missing ranges, the largest ones, whose neighboring rows are searched in the samples of kept rows."""
COMPACT_MIN = 1 << 18
"""Number of lines that a tally collects before it adds them up."""


def audit_rows(
    rows: Any,
    columns: Columns,
    table: StateTable,
    producers_max: int,
    reset_rows_min: int,
    compared: tuple[str, ...] | None = None,
) -> AuditReport:
    """Return the report on rows of any type. Updates `table`. See `fencepost.audit`."""
    auditor = Auditor(table.policy, columns, table, compared is not None)
    first = 0
    sums = [np.empty(0, np.uint64)]
    names = columns.read(table.keep)
    for piece in pieces(rows, names, is_whole=compared is not None):
        with whole_input_rows(first):
            verdicts = table.apply(piece, columns)
        auditor.add(identity(piece, columns, table.keep), verdicts, first)
        first += len(piece)
        if compared is not None:
            sums.append(checksums(piece, content_columns(piece.column_names, columns.names, compared)))
    facts: dict[str, Any] = {} if compared is None else _compared(auditor, np.concatenate(sums))
    return auditor.report(
        table, order=ORDER_OF_ROWS, producers_max=producers_max, reset_rows_min=reset_rows_min, **facts
    )


def _compared(auditor: Auditor, sums: Hashes) -> dict[str, Any]:
    """Return the report's fields about content. `sums`: the checksum of each row."""
    repeats, kept = auditor.pairs()
    is_conflict = sums[repeats] != sums[kept]
    auditor.count_conflicts(int(is_conflict.sum()))
    conflicts = pa.table({"row": repeats[is_conflict], "kept_row": kept[is_conflict]}).sort_by("row")
    return {"content_compared": len(repeats), "conflicts": conflicts.slice(0, CONFLICTS_MAX)}


@contextmanager
def whole_input_rows(first: int) -> Iterator[None]:
    """Make a BatchError name the row of the whole input. `first`: the number of the call's first row."""
    try:
        yield
    except BatchError as error:
        if error.row is None or not first:
            raise
        row = error.row + first
        text = error.message.replace(f"row {error.row}:", f"row {row}:", 1)
        raise BatchError(text, column=error.column, row=row) from error


def pieces(rows: Any, names: tuple[str, ...], *, is_whole: bool = False) -> Iterator[pa.Table]:
    """Yield tabular data as Arrow tables of about CALL_ROWS rows, with the identity columns only if all exist.

    A stream is never held in memory as a whole. `is_whole`: yield all columns. Raises TypeError for input that is not
    tabular.
    """
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in _batches(opened(rows, () if is_whole else names), () if is_whole else names):
        batch = without_runs(with_fields(batch, names), names)
        if not is_whole and set(names) <= set(batch.schema.names):
            # also a second column of that name, which the native code refuses
            batch = batch.select([at for at, name in enumerate(batch.schema.names) if name in names])
        for start in range(0, max(len(batch), 1), CALL_ROWS):
            part = batch.slice(start, CALL_ROWS)
            if gathered and count + len(part) > CALL_ROWS:
                yield pa.Table.from_batches(gathered)
                gathered, count = [], 0
            gathered.append(part)
            count += len(part)
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(rows: Any, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield at least one batch, so that wrong columns are found even without rows."""
    if names and frame_package(rows):
        rows = narrowed(rows, heads_of(names, rows.columns) or names)
    if is_a(rows, "polars", "DataFrame"):
        check_polars(rows)
    if isinstance(rows, pa.RecordBatchReader):
        reader = rows  # a copy by the C interface would turn errors of its source into Arrow's
    elif hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
    else:
        if names and hasattr(rows, "keys") and set(names) <= set(rows.keys()):
            rows = {name: rows[name] for name in names}
        reader = pa.RecordBatchReader.from_stream(_native.collect(rows))
    is_empty, nothing = True, None
    for batch in reader:
        if len(batch):  # Arrow cannot combine an empty chunk that was a slice with others
            is_empty = False
            yield batch
        else:
            nothing = batch
    if is_empty and nothing is None:
        columns = [pa.nulls(0, field.type) for field in reader.schema]
        nothing = pa.RecordBatch.from_arrays(columns, schema=reader.schema)
    if is_empty:
        yield nothing


def identity(rows: pa.Table, columns: Columns, keep: tuple[str, ...] = ()) -> pa.Table:
    """Return the identity columns under their names in verdicts: pid or pid_0 …, partition …, epoch, seq, timestamp.

    Integers become int64 and timestamps milliseconds. Text and bytes keep their type; dictionaries, views and extension
    types are unpacked. Rows without a producer may have integers that int64 does not hold: they become any others.
    """
    keys = _key_columns(columns, "pid") | _key_columns(columns, "partition")
    named = {name: rows[column] for name, column in keys.items()}
    if columns.epoch is not None:
        named["epoch"] = rows[columns.epoch]
    named["seq"] = rows[columns.seq]
    plain = {name: _plain(column) for name, column in named.items()}
    if "timestamp" in keep:
        plain["timestamp"] = milliseconds(_unpacked(rows[columns.timestamp or "timestamp"]))
    return pa.table(plain)


def _key_columns(columns: Columns, role: str) -> dict[str, str]:
    """Return the columns of a role in the input, by their names in `identity`."""
    names = getattr(columns, role)
    if isinstance(names, tuple):
        return {f"{role}_{number}": name for number, name in enumerate(names)}
    return {} if names is None else {role: names}


def _names(columns: Columns) -> list[str]:
    """Return the names of the key columns in `identity`. Rows without a partition have no such column; entries do."""
    return [*_key_columns(columns, "pid"), *_key_columns(columns, "partition")]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = _unpacked(column)
    kind = column.type
    if pa.types.is_integer(kind):
        kind = pa.int64()
    elif kind in (pa.large_string(), pa.string_view()):
        kind = pa.string()
    elif kind in (pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind):
        kind = pa.binary()
    return column if column.type == kind else column.cast(kind, safe=False)


def _unpacked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type) and not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([unpacked(chunk) for chunk in column.chunks or [pa.nulls(0, column.type)]])


class Auditor:
    """Figures about the rows so far. `policy`: the rules that judge them; `table`: the state before the first row.

    Memory: about 50 bytes per key (more for text keys), 40 per key with findings, 16 per entry if timestamps are kept,
    and 6 MB for a sample of kept rows.
    """

    def __init__(self, policy: Policy, columns: Columns, table: StateTable, is_compared: bool = False) -> None:
        """`is_compared`: pair repeats with the rows they repeat (`pairs`), for 24 bytes per kept row."""
        self.policy, self.columns = policy, columns
        self.rows = 0
        self.counts: Counter[str] = Counter()
        self.border = 0
        self.stale_epoch = 0
        self.stale = _Tally({"count": "sum"})
        self.keys = _Tally(
            {
                "rows": "sum",
                "duplicates": "sum",
                "retimed": "sum",
                "first_epoch": "min",
                "last_epoch": "max",
            }
        )
        self.findings = _Tally({"refused": "sum", "since": "min", "until": "max"})
        """Only keys with repeats, refused or stale rows; most keys have none."""
        self.missing = [pa.table(table.missing())] if policy.admit == "forward" and len(table) else []
        self.every_epoch = (
            [_EveryEpoch(policy, columns, table)] if policy.admit == "any" and policy.epochs == "fence" else []
        )
        self.distances = _Sample(is_compared)
        self.samples = [self.distances]
        """This auditor's sample, and those of merged ones."""
        self.times = _Times(table, policy, columns) if "timestamp" in table.keep else None
        self.timeline = Timeline("rows" if self.times is None else "ms")
        self.examples = Examples(EXAMPLES_MAX)

    def add(self, rows: pa.Table, verdicts: Verdicts, first: int = 0) -> None:
        """Add rows from `identity` and their verdicts. `first`: the number of the first row."""
        codes, stale = self._add_verdicts(verdicts)
        places = np.arange(first, first + len(rows), dtype=np.int64)
        is_tracked = codes != Verdict.UNTRACKED
        if not is_tracked.all():
            rows, codes, places = rows.filter(pa.array(is_tracked)), codes[is_tracked], places[is_tracked]
        if len(rows):
            self._add_tracked(rows.combine_chunks(), np.ones(len(rows), np.int64), codes, places, stale)

    def add_spans(self, spans: pa.Table, verdicts: Verdicts, lengths: Numbers, places: Numbers) -> None:
        """Add spans from `identity`, the number of rows of each, and the number of each row in the whole audit.

        A repeat must come after the row it repeats, within the call and across calls.
        """
        codes, stale = self._add_verdicts(verdicts)
        if len(spans):
            self._add_tracked(spans.combine_chunks(), lengths, codes, places, stale)

    def add_untracked(self, count: int) -> None:
        """Count rows without a producer that were not judged."""
        self.rows += count
        self.counts[Verdict.UNTRACKED.name] += count

    def _add_verdicts(self, verdicts: Verdicts) -> tuple[npt.NDArray[np.uint8], pa.Table]:
        """Add the figures of verdicts that need no rows. Returns the verdict of each row, and `Verdicts.stale`."""
        codes = np.asarray(pa.array(verdicts.verdict))
        self.rows += len(codes)
        self.counts.update({verdict.name: count for verdict, count in verdicts.counts.items() if count})
        self.border += verdicts.border
        self.stale_epoch += verdicts.stale_epoch
        stale = pa.table(verdicts.stale)
        self.stale.add(stale)
        if self.policy.admit == "forward":  # these holes never close, and a later epoch does not hide them
            self.missing.append(pa.table(verdicts.missing))
        return codes, stale

    def _add_tracked(
        self, spans: pa.Table, lengths: Numbers, codes: npt.NDArray[np.uint8], places: Numbers, stale: pa.Table
    ) -> None:
        """`codes`, `places`: one value per row of the spans. `stale`: `Verdicts.stale` of the call."""
        is_duplicate, is_accepted = codes == Verdict.DUPLICATE, codes == Verdict.ACCEPTED
        for it in self.every_epoch:
            it.add(spans, lengths, is_accepted)
        keys = [_Column(spans[name]) for name in _key_names(spans)]
        epoch = spans["epoch"].to_numpy() if "epoch" in spans.column_names else np.zeros(len(spans), np.int64)
        # Consecutive spans of one key and epoch form one line, which is hashed and added once.
        is_start = np.ones(len(spans), bool)
        is_start[1:] = np.logical_or.reduce([it[1:] != it[:-1] for it in (*(key.codes for key in keys), epoch)])
        starts = np.flatnonzero(is_start)
        firsts = np.cumsum(lengths) - lengths
        line_rows = np.diff(firsts[starts], append=len(codes))
        # Verdicts never depend on these hashes. They only locate the kept row of a repeat and the age of an entry. With
        # a million entries, two collide in one of 40 million audits.
        key_hashes = _hash([key.bits[starts] for key in keys], len(starts))
        hashes = mixed(key_hashes, epoch[starts])
        identities = mixed(np.repeat(hashes, line_rows), self._sequences(spans["seq"].to_numpy(), firsts, lengths))
        timestamps = None if self.times is None else np.repeat(spans["timestamp"].to_numpy(), lengths)
        sampled = self.distances.add(identities, is_duplicate, is_accepted, places, timestamps)
        is_retimed = sampled == RETIMED
        if self.times is not None and timestamps is not None:
            entries = np.repeat(hashes if self.policy.epochs == "key" else key_hashes, line_rows)
            newest = self.times.add(entries, np.where(is_accepted, timestamps, UNKNOWN))
            is_newer = is_duplicate & (newest != UNKNOWN) & (timestamps > newest)
            is_retimed = is_retimed | ((sampled == NOT_SAMPLED) & is_newer)
        is_stale = _stale_rows(stale, _key_names(spans), hashes, line_rows)
        is_refused = ~is_accepted & ~is_duplicate
        at = places if timestamps is None else timestamps
        lines = {name: spans[name].take(pa.array(starts)) for name in _key_names(spans)}
        lines["rows"] = pa.array(line_rows)
        lines["duplicates"] = pa.array(_sums(is_duplicate, firsts[starts]))
        lines["retimed"] = pa.array(_sums(is_retimed, firsts[starts]))
        lines["first_epoch"] = lines["last_epoch"] = pa.array(epoch[starts])
        self.keys.add(pa.table(lines))
        is_finding = is_duplicate | is_refused | is_stale
        if is_finding.any():
            self._add_findings(pa.table(lines).select(_key_names(spans)), is_finding, is_refused, at, firsts[starts])
        kinds = {"duplicates": is_duplicate, "stale": is_stale, "refused": is_refused}
        if timestamps is not None:
            self.timeline.add("rows", spans["timestamp"].to_numpy(), lengths)
        for kind, is_one in kinds.items():
            self.timeline.add(kind, at[is_one])
        self._add_examples(spans, lengths, codes, places, identities, is_stale & is_accepted, is_retimed)

    def _add_findings(self, keys: pa.Table, is_finding: Mask, is_refused: Mask, at: Numbers, starts: Numbers) -> None:
        """`keys`, `starts`: the key and the first row of each line. The other arguments have one value per row."""
        limits = np.iinfo(np.int64)
        found = keys.append_column("refused", pa.array(_sums(is_refused, starts)))
        since = np.minimum.reduceat(np.where(is_finding, at, limits.max), starts)
        until = np.maximum.reduceat(np.where(is_finding, at, limits.min), starts)
        found = found.append_column("since", pa.array(since)).append_column("until", pa.array(until))
        self.findings.add(found.filter(pa.array(np.logical_or.reduceat(is_finding, starts))))

    def _add_examples(
        self,
        spans: pa.Table,
        lengths: Numbers,
        codes: npt.NDArray[np.uint8],
        places: Numbers,
        identities: Hashes,
        is_stale: Mask,
        is_retimed: Mask,
    ) -> None:
        """`is_stale`: rows of a replaced epoch that were accepted."""
        kinds = {it.name: codes == it for it in (Verdict.DUPLICATE, *_REFUSED)}
        firsts = np.cumsum(lengths) - lengths
        for kind, is_one in {**kinds, "STALE": is_stale, "RETIMED": is_retimed}.items():
            rows = self.examples.wanted(kind, identities, places, is_one)
            if not len(rows):
                continue
            shown = _rows_of(spans, firsts, rows, self.policy.wrap)
            kept, kept_at = self.distances.kept(identities[rows], places[rows])
            is_unknown = (codes[rows] != Verdict.DUPLICATE) | (kept < 0)
            shown = shown.append_column("row", pa.array(places[rows]))
            shown = shown.append_column("kept_row", pa.array(kept, mask=is_unknown))
            if self.times is not None:
                shown = shown.append_column("kept_timestamp", pa.array(kept_at, mask=is_unknown))
            self.examples.add(kind, identities[rows], shown)

    def _sequences(self, seq: Numbers, firsts: Numbers, lengths: Numbers) -> Numbers:
        """Return the sequence number of each row of the spans."""
        rows = int(lengths.sum())
        if rows == len(seq):
            return seq
        seqs = np.repeat(seq - firsts, lengths) + np.arange(rows)
        return seqs if self.policy.wrap is None else seqs % self.policy.wrap

    def merge(self, other: Auditor) -> None:
        """Add the figures of another auditor, whose keys must be disjoint from this one's."""
        self.rows += other.rows
        self.counts.update(other.counts)
        self.border += other.border
        self.stale_epoch += other.stale_epoch
        self.stale.merge(other.stale)
        self.keys.merge(other.keys)
        self.findings.merge(other.findings)
        self.missing += other.missing
        self.every_epoch += other.every_epoch
        self.distances.merge(other.distances)
        self.samples += other.samples
        self.timeline.merge(other.timeline)
        self.examples.merge(other.examples)

    def pairs(self) -> tuple[Numbers, Numbers]:
        """Return (numbers of repeats, numbers of the rows they repeat), for this auditor's keys only."""
        repeats, kept = zip(*self.distances.pairs, strict=True) if self.distances.pairs else ((), ())
        none = np.empty(0, np.int64)
        return np.concatenate([none, *repeats]), np.concatenate([none, *kept])

    def count_conflicts(self, count: int) -> None:
        """Count repeats whose content differs from the row they repeat."""
        if count:
            self.counts[Verdict.DUPLICATE.name] -= count
            self.counts[Verdict.CONFLICT.name] += count

    def report(
        self,
        *tables: StateTable,
        order: str,
        producers_max: int,
        reset_rows_min: int,
        source: str | None = None,
        files: int = 0,
        bytes: int = 0,
        unreadable: tuple[tuple[str, str], ...] = (),
        ignored: tuple[str, ...] = (),
        content_compared: int | None = None,
        conflicts: pa.Table | None = None,
    ) -> AuditReport:
        """Return the report.

        `tables`: the tables that judged and know what is still missing: this auditor's own first, then those of the
        merged auditors in order of merging.
        """
        names = _names(self.columns)
        ranges = _keyed(self._missing_ranges(tables), names, "epoch", "first_seq", "last_seq", "count")
        stale = _keyed(_sorted(self.stale.total(), "count"), names, "epoch", "count")
        keys = self.keys.total() if self.keys.lines else _empty_lines([*names, *self.keys.figures])
        pids = [name for name in names if name.startswith("pid")]
        producers = _Tally({"rows": "sum", "duplicates": "sum"}).added(keys.select([*pids, "rows", "duplicates"]))
        timeline = self.timeline.copy()
        if "timestamp" in ranges.column_names:
            timeline.add("missing", *(ranges[name].drop_null().to_numpy() for name in ("timestamp", "count")))
        duplicates, seen = self.counts["DUPLICATE"] + self.counts["CONFLICT"], self.distances.measured
        return AuditReport(
            policy=self.policy.name or self.policy.rules,
            rules=self.policy.replace(columns=self.columns),
            identity=self.columns.names,
            order=order,
            source=source,
            files=files,
            unreadable=unreadable,
            ignored=ignored,
            bytes=bytes,
            rows=self.rows,
            counts={verdict.name: self.counts[verdict.name] for verdict in Verdict if self.counts[verdict.name]},
            missing_ranges=len(ranges),
            missing_rows=exact_sum(ranges["count"]),
            missing=ranges,
            stale_epoch=self.stale_epoch,
            stale=stale,
            resets=_resets(keys, names),
            suspected_resets=None if self.times is None else _suspected(keys, names, reset_rows_min),
            reset_rows_min=reset_rows_min,
            keys=_with_findings(keys, names, self.findings.total(), ranges, stale),
            timeline=timeline.table(),
            timeline_unit=timeline.unit,
            examples=_joined([self.examples.table(names), self._beside_gaps(ranges, names)]),
            producers=len(producers),
            producers_by_rows=_sorted(producers, "rows").slice(0, producers_max),
            producers_by_duplicates=_sorted(producers, "duplicates").slice(0, producers_max),
            distances=self.distances.table(),
            distance_share=seen / duplicates if duplicates else 1.0,
            repeats_of_unseen=self.distances.unseen,
            content_compared=content_compared,
            conflicts=conflicts,
            border=self.border,
        )

    def _beside_gaps(self, ranges: pa.Table, names: list[str]) -> pa.Table:
        """Return the rows just before and after some of the largest missing ranges, in the layout of `Examples`.

        Only rows that a sample holds are known. None are returned if numbers were used again after a wrap: it is not
        known which of the rows with a number is the neighbor.
        """
        ranges = ranges.sort_by([("count", "descending")]).slice(0, GAPS_SEARCHED)
        if not len(ranges) or any(it.has_wrapped() for it in self.samples):
            return pa.table({})
        keys = {name: _plain(ranges[name]) for name in names}
        if self.columns.epoch is not None:
            keys["epoch"] = _plain(ranges["epoch"])
        epoch = keys["epoch"].to_numpy() if "epoch" in keys else np.zeros(len(ranges), np.int64)
        entries = mixed(_hash([_Column(keys[name]).bits for name in names], len(ranges)), epoch)
        seqs = np.stack([_plain(ranges["first_seq"]).to_numpy() - 1, _plain(ranges["last_seq"]).to_numpy() + 1])
        seqs = seqs if self.policy.wrap is None else seqs % self.policy.wrap
        places, times = np.full(seqs.shape, -1), np.zeros(seqs.shape, np.int64)
        for side in range(2):
            identities = mixed(entries, seqs[side])
            for sample in self.samples:
                found, at = sample.kept(identities, np.full(len(ranges), np.iinfo(np.int64).max))
                is_known = found >= 0
                places[side, is_known], times[side, is_known] = found[is_known], at[is_known]
        gaps = np.flatnonzero((places >= 0).any(axis=0))[: EXAMPLES_MAX // 2]
        sides, lines = np.tile([0, 1], len(gaps)), np.repeat(gaps, 2)
        is_known = places[sides, lines] >= 0
        sides, lines = sides[is_known], lines[is_known]
        rows = {"what": pa.array([BESIDE_GAPS[it] for it in sides], pa.string())}
        rows |= {name: column.take(pa.array(lines)) for name, column in keys.items()}
        rows["seq"] = pa.array(seqs[sides, lines])
        if self.times is not None:
            rows["timestamp"] = pa.array(times[sides, lines])
        rows |= {"row": pa.array(places[sides, lines]), "kept_row": pa.nulls(len(lines), pa.int64())}
        return pa.table(rows)

    def _missing_ranges(self, tables: Sequence[StateTable]) -> pa.Table:
        if self.policy.admit == "forward":
            missing = self.missing
        elif self.every_epoch:
            missing = [it.missing(table) for it, table in zip(self.every_epoch, tables, strict=True)]
        else:
            missing = [_timed_missing(it) for it in tables]
        return _sorted(_joined(missing or [pa.table(tables[0].missing())]), None)


class _EveryEpoch:
    """Tracks missing rows of every epoch, for policies where a higher epoch replaces an entry and its holes.

    Under these policies, late rows fill holes until the epoch is replaced, so the missing ranges of a call are not
    final. Accepted rows therefore go to a second table that has one entry per epoch. Rows of a replaced epoch are never
    accepted, so its holes in this table stay as they were. `table`: the state before the first row.

    Memory: one entry per key and epoch instead of one per key.
    """

    def __init__(self, policy: Policy, columns: Columns, table: StateTable) -> None:
        rules = policy.replace(epochs="key", intervals_max=None)
        self.table = StateTable(rules, keep=table.keep)
        names = {role: tuple(_key_columns(columns, role)) for role in ("pid", "partition")}
        self.columns = Columns(
            **{role: it[0] if len(it) == 1 else it or None for role, it in names.items()},
            epoch="epoch",
            seq="seq",
            timestamp="timestamp" if "timestamp" in table.keep else None,
        )
        self.wrap = policy.wrap
        if len(table):
            entries = pa.table(table.entries()).replace_schema_metadata(None)
            for name in _key_names(entries):
                entries = entries.set_column(entries.column_names.index(name), name, _plain(entries[name]))
            self.table = StateTable.from_entries(entries, rules, keep=table.keep, horizon_ms=table.horizon_ms)

    def add(self, spans: pa.Table, lengths: Numbers, is_accepted: Mask) -> None:
        """`is_accepted`: one value per row of the spans."""
        firsts = np.cumsum(lengths) - lengths
        is_first = np.zeros(len(is_accepted), bool)
        is_first[firsts] = True
        # Split the spans where accepted and refused rows meet.
        starts = np.flatnonzero(is_accepted & (is_first | ~np.append(False, is_accepted[:-1])))
        ends = np.flatnonzero(is_accepted & np.append(is_first[1:] | ~is_accepted[1:], True)) + 1
        if not len(starts):
            return
        rows = _rows_of(spans, firsts, starts, self.wrap)
        self.table.apply_spans(rows.append_column("_length", pa.array(ends - starts)), "_length", self.columns)

    def missing(self, table: StateTable) -> pa.Table:
        """Return the missing ranges. `table`: the table that judged; it defines the types of keys."""
        found = _timed_missing(self.table)
        if not len(found):
            return found
        for field in pa.table(table.missing()).schema:
            found = found.set_column(found.column_names.index(field.name), field, found[field.name].cast(field.type))
        return found


def _rows_of(spans: pa.Table, firsts: Numbers, rows: Numbers, wrap: int | None) -> pa.Table:
    """Return single rows of spans. `firsts`, `rows`: numbers of the first row of each span and of the wanted rows."""
    of_span = np.searchsorted(firsts, rows, side="right") - 1
    seqs = spans["seq"].to_numpy()[of_span] + rows - firsts[of_span]
    found = spans.take(pa.array(of_span))
    at = found.column_names.index("seq")
    return found.set_column(at, "seq", pa.array(seqs if wrap is None else seqs % wrap))


def _stale_rows(stale: pa.Table, names: list[str], hashes: Hashes, line_rows: Numbers) -> Mask:
    """Return whether each row is of an epoch that a higher one had replaced before it.

    `stale`: `Verdicts.stale`; `names`: the key columns; `hashes`, `line_rows`: the entry and the number of rows of each
    line. A replaced epoch stays replaced, so its stale rows are its last ones in the call.
    """
    is_stale = np.zeros(int(line_rows.sum()), bool)
    if not len(stale):
        return is_stale
    keys = [_Column(_plain(stale[name])) for name in names]
    entries = mixed(_hash([key.bits for key in keys], len(stale)), _plain(stale["epoch"]).to_numpy())
    counts = dict(zip(entries.tolist(), stale["count"].to_pylist(), strict=True))
    rows = np.flatnonzero(np.repeat(np.isin(hashes, entries), line_rows))
    of_row = np.repeat(hashes, line_rows)[rows]
    order = np.argsort(of_row, kind="stable")
    rows, of_row = rows[order], of_row[order]
    ends = np.flatnonzero(np.append(of_row[1:] != of_row[:-1], True)) + 1
    group = np.searchsorted(ends, np.arange(len(rows)), side="right")
    left = ends[group] - np.arange(len(rows))
    wanted = np.array([counts[it] for it in of_row[ends - 1].tolist()], np.int64)
    is_stale[rows[left <= wanted[group]]] = True
    return is_stale


def _timed_missing(table: StateTable) -> pa.Table:
    """Return `StateTable.missing`, with the timestamp at which each range was skipped if the table keeps timestamps."""
    found = pa.table(table.missing())
    if "timestamp" not in table.keep or not len(found):
        return found
    # The ranges are the holes of the entries, in the same order.
    entries = pa.RecordBatchReader.from_stream(table.entries())
    times = [batch.column("holes").flatten().field("timestamp") for batch in entries]
    return found.append_column("timestamp", pa.chunked_array(times, pa.int64()))


def _sums(is_one: Mask, starts: Numbers) -> Numbers:
    """Count the true values from each start to the next."""
    if not is_one.any():
        return np.zeros(len(starts), np.int64)
    sums: Numbers = np.add.reduceat(is_one, starts, dtype=np.int64)
    return sums


def _key_names(rows: pa.Table) -> list[str]:
    return [name for name in rows.column_names if name.partition("_")[0] in ("pid", "partition")]


def _resets(keys: pa.Table, names: list[str]) -> pa.Table:
    found = keys.filter(pc.greater(keys["last_epoch"], keys["first_epoch"]))
    return _sorted(found.select([*names, "first_epoch", "last_epoch"]), None)


def _suspected(keys: pa.Table, names: list[str], rows_min: int) -> pa.Table:
    found = keys.filter(pc.greater_equal(keys["retimed"], rows_min)).select([*names, "rows", "duplicates", "retimed"])
    return _sorted(found, "retimed")


def _with_findings(
    keys: pa.Table, names: list[str], findings: pa.Table, missing: pa.Table, stale: pa.Table
) -> pa.Table:
    """Return the keys with any finding, those with the most first."""
    sums = {"rows": "sum", "duplicates": "sum", "refused": "sum", "missing": "sum", "stale": "sum"}
    tally = _Tally(sums | {"since": "min", "until": "max"})
    tally.add(_filled(keys.select([*names, "rows", "duplicates"]), tally.figures))
    lost = missing.select([*names, "count"]).rename_columns([*names, "missing"])
    if "timestamp" in missing.column_names:
        lost = lost.append_column("since", missing["timestamp"]).append_column("until", missing["timestamp"])
    zombies = stale.select([*names, "count"]).rename_columns([*names, "stale"]) if len(stale) else stale
    for found in (findings, lost, zombies):
        if len(found):
            tally.add(_filled(found, tally.figures))
    total = tally.total()
    findings = pc.add(pc.add(total["duplicates"], total["missing"]), pc.add(total["stale"], total["refused"]))
    found = total.append_column("_findings", findings).filter(pc.greater(findings, 0))
    return _sorted(found, "_findings").drop_columns(["_findings"])


def _filled(lines: pa.Table, figures: dict[str, str]) -> pa.Table:
    """Add missing figure columns: 0 for sums, otherwise null."""
    for name, how in figures.items():
        if name not in lines.column_names:
            value = pa.array(np.zeros(len(lines), np.int64)) if how == "sum" else pa.nulls(len(lines), pa.int64())
            lines = lines.append_column(name, value)
    return lines.select([*(it for it in lines.column_names if it not in figures), *figures])


def _sorted(table: pa.Table, by: str | None) -> pa.Table:
    """Sort by `by`, highest first, then by key, so that equal audits give equal reports."""
    names = [*_key_names(table), *(name for name in ("epoch", "first_seq") if name in table.column_names)]
    keys = [*([(by, "descending")] if by else []), *((name, "ascending") for name in names)]
    return table.sort_by(keys) if len(table) else table


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables, without empty ones: the types of their key columns are unknown."""
    known = [table for table in tables if len(table)] or tables[:1]
    return pa.concat_tables(known, promote_options="permissive").replace_schema_metadata(None)


def _keyed(table: pa.Table, names: list[str], *others: str) -> pa.Table:
    """Return the table, or an empty one: a table without entries does not know that its keys have several columns."""
    return table if set(names) <= set(table.column_names) else _empty_lines([*names, *others])


def _empty_lines(names: list[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.int64()) for name in names})


class _Tally:
    """Figures by key, added up in Arrow. Keys are compared by value."""

    def __init__(self, figures: dict[str, str]) -> None:
        self.figures = figures
        """Maps columns to aggregations. The other columns form the key."""
        self.lines: list[pa.Table] = []
        self.is_total = False
        """Whether `lines` is one table with one line per key."""
        self.pending = 0
        self.compact_at = COMPACT_MIN

    def add(self, lines: pa.Table) -> None:
        if not len(lines) and self.lines:
            return
        self.lines.append(lines)
        self.is_total = False
        self.pending += len(lines)
        if self.pending > self.compact_at:
            self.compact_at = max(COMPACT_MIN, 2 * len(self.total()))

    def merge(self, other: _Tally) -> None:
        if other.lines:
            self.add(other.total())

    def added(self, lines: pa.Table) -> pa.Table:
        self.add(lines)
        return self.total()

    def total(self) -> pa.Table:
        """Return the total: one line per key."""
        if not self.lines:
            return _empty_lines(["pid", *self.figures])
        if self.is_total:
            return self.lines[0]
        joined = _joined(self.lines)
        names = [name for name in joined.column_names if name not in self.figures]
        grouped = joined.group_by(names, use_threads=False).aggregate(list(self.figures.items()))
        renamed = {name: grouped[f"{name}_{how}"] for name, how in self.figures.items()}
        total = pa.table({name: grouped[name] for name in names} | renamed)
        self.lines, self.is_total, self.pending = [total], True, len(total)
        return total


class _Column:
    """A key column of a call: integer codes that differ if neighbors differ, and 64 bits of each value."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.codes: npt.NDArray[Any]
        self.bits: Numbers | Hashes
        if pa.types.is_integer(column.type):
            self.codes = self.bits = column.to_numpy()
            return
        encoded = column.combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        values = (it.encode() if isinstance(it, str) else it for it in encoded.dictionary.to_pylist())
        digests = b"".join(hashlib.blake2b(value, digest_size=8).digest() for value in values)
        self.codes = encoded.indices.to_numpy()
        self.bits = np.frombuffer(digests, np.uint64)[self.codes]


def _hash(columns: list[Numbers | Hashes], count: int) -> Hashes:
    hashes = np.zeros(count, np.uint64)
    for bits in columns:
        hashes = mixed(hashes, bits)
    return hashes


_REFUSED = (Verdict.OUT_OF_ORDER, Verdict.FENCED, Verdict.FORGOTTEN)
BESIDE_GAPS = ("BEFORE_GAP", "AFTER_GAP")
"""The kinds of examples that are the neighbors of missing ranges."""
COPY, RETIMED, NOT_SAMPLED = range(3)
"""The sample's answer for a row: nothing to report or a copy; a repeat with another timestamp; its kept row is not in
the sample."""


class _Sample:
    """A sample of kept rows, and a histogram of the distance of their repeats in powers of ten.

    For each kept row, the sample maps the hash of its identity to its row number, and to its timestamp if known. It
    holds all rows up to `SAMPLE_MAX`. Beyond that it holds rows whose hash is in the lower half, quarter, … of all
    hashes: a fair sample of identities at every distance, in bounded memory. A window of the last rows would also be
    bounded, but would miss all greater distances.
    """

    def __init__(self, is_whole: bool = False) -> None:
        """`is_whole`: remember all kept rows and pair repeats with them."""
        self.is_whole = is_whole
        self.pairs: list[tuple[Numbers, Numbers]] = []
        self.halvings = 0
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.places: Numbers = np.empty(0, np.int64)
        self.times: Numbers = np.empty(0, np.int64)
        self.bins: Numbers = np.zeros(20, np.int64)
        """Estimated number of repeats at a distance of 1, 2 to 10, 11 to 100, …"""
        self.unseen = 0
        self._has_wrapped = False
        self.measured = 0
        """Number of repeats whose kept row is in the sample."""

    def add(
        self, hashes: Hashes, is_duplicate: Mask, is_accepted: Mask, places: Numbers, times: Numbers | None
    ) -> npt.NDArray[np.uint8]:
        """Return COPY, RETIMED or NOT_SAMPLED for each row. `times`: the timestamp of each row, if read."""
        found = np.where(is_duplicate, NOT_SAMPLED, COPY).astype(np.uint8)
        times = np.zeros(len(hashes), np.int64) if times is None else times
        self._keep_last()  # not at the end: `kept` looks up rows of the call
        self._narrow(hashes[is_accepted])
        sampled = np.flatnonzero(hashes < self._bound()) if self.halvings else np.arange(len(hashes))
        accepted, repeats = sampled[is_accepted[sampled]], sampled[is_duplicate[sampled]]
        self._remember(hashes[accepted], places[accepted], times[accepted])
        if len(repeats):
            found[repeats] = self._measure(hashes[repeats], places[repeats], times[repeats])
        return found

    def _keep_last(self) -> None:
        """Keep the last of the rows with the same identity: if a sequence wrapped, later repeats repeat this one."""
        is_last = np.ones(len(self.hashes), bool)
        is_last[:-1] = self.hashes[1:] != self.hashes[:-1]
        if not is_last.all():
            self._has_wrapped = True
            self._keep(is_last)

    def has_wrapped(self) -> bool:
        """Return whether two kept rows had the same identity, because the sequence wrapped."""
        self._keep_last()
        return self._has_wrapped

    def _keep(self, wanted: Mask | slice) -> None:
        self.hashes = self.hashes[wanted].copy()
        self.places, self.times = self.places[wanted].copy(), self.times[wanted].copy()

    def _narrow(self, hashes: Hashes) -> None:
        """Narrow the sample of identities until the known and the new rows fit."""
        while not self.is_whole and len(self.hashes) + len(hashes) > SAMPLE_MAX:
            self.halvings += 1
            hashes = hashes[hashes < self._bound()]
            self._keep(slice(int(np.searchsorted(self.hashes, self._bound()))))

    def _bound(self) -> np.uint64:
        return np.uint64(1 << (64 - self.halvings))

    def _remember(self, hashes: Hashes, places: Numbers, times: Numbers) -> None:
        hashes = np.concatenate([self.hashes, hashes])
        order = np.argsort(hashes, kind="stable")  # a stable sort keeps equal hashes ordered by place
        self.hashes = hashes[order]
        self.places = np.concatenate([self.places, places])[order]
        self.times = np.concatenate([self.times, times])[order]

    def kept(self, hashes: Hashes, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return (row number of each row's kept row, its timestamp); -1 if it is not remembered."""
        at, is_copy = self._find(hashes, places)
        found = [np.full(len(hashes), -1) for _ in range(2)]
        found[0][is_copy], found[1][is_copy] = self.places[at[is_copy]], self.times[at[is_copy]]
        return found[0], found[1]

    def _find(self, hashes: Hashes, places: Numbers) -> tuple[Numbers, Mask]:
        """Return (index of the kept row that each row repeats, whether there is one)."""
        at = np.searchsorted(self.hashes, hashes, side="right") - 1
        if not len(self.hashes):
            return at, np.zeros(len(hashes), bool)
        while True:  # if a sequence wrapped, the kept row is the last one before the repeat
            is_copy = (at >= 0) & (self.hashes[at] == hashes)
            is_later = is_copy & (self.places[at] > places)
            if not is_later.any():
                return at, is_copy
            at[is_later] -= 1

    def _measure(self, hashes: Hashes, places: Numbers, times: Numbers) -> npt.NDArray[np.uint8]:
        found = np.full(len(hashes), NOT_SAMPLED, np.uint8)
        at, is_copy = self._find(hashes, places)
        if self.is_whole:
            self.pairs.append((places[is_copy], self.places[at[is_copy]]))
        distances = places[is_copy] - self.places[at[is_copy]]
        bins = np.searchsorted(_BIN_LASTS, distances, side="left")
        self.bins += np.bincount(bins, minlength=20)[:20] << self.halvings
        self.unseen += int((~is_copy).sum()) << self.halvings
        self.measured += len(hashes)
        found[is_copy] = np.where(self.times[at[is_copy]] == times[is_copy], COPY, RETIMED)
        return found

    def merge(self, other: _Sample) -> None:
        """Add the measurements of other keys."""
        self.bins = self.bins + other.bins
        self.unseen += other.unseen
        self.measured += other.measured

    def table(self) -> pa.Table:
        count = int(np.flatnonzero(self.bins)[-1]) + 1 if self.bins.any() else 0
        firsts = [1, *(last + 1 for last in _BIN_LASTS)]
        columns = {"first": firsts[:count], "last": _BIN_LASTS[:count], "repeats": self.bins[:count]}
        return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


_BIN_LASTS = [10**power for power in range(19)]


class _Times:
    """The newest timestamp of each entry, by the hash of its key (and epoch, if epochs are independent)."""

    def __init__(self, table: StateTable, policy: Policy, columns: Columns) -> None:
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.newest: Numbers = np.empty(0, np.int64)
        names = _names(columns)
        for batch in pa.RecordBatchReader.from_stream(table.entries()) if len(table) else ():
            entries = pa.Table.from_batches([batch])
            keys = [_Column(_plain(entries[name])) for name in _key_names(entries) if name in names]
            hashes = _hash([key.bits for key in keys], len(entries))
            if policy.epochs == "key":
                hashes = mixed(hashes, _plain(entries["epoch"]).to_numpy())
            self._put(hashes, entries["last_timestamp"].to_numpy())

    def add(self, entries: Hashes, accepted: Numbers) -> Numbers:
        """Return for each row the newest timestamp that its entry has accepted up to and including it.

        `accepted`: the timestamp of each accepted row, UNKNOWN for others.
        """
        of_row, known, newest = newest_before(entries, accepted, self._before)
        self._put(known, newest)
        return of_row

    def _before(self, entries: Hashes) -> Numbers:
        if not len(self.hashes):
            return np.full(len(entries), UNKNOWN)
        at = np.minimum(np.searchsorted(self.hashes, entries), len(self.hashes) - 1)
        return np.where(self.hashes[at] == entries, self.newest[at], UNKNOWN)

    def _put(self, entries: Hashes, newest: Numbers) -> None:
        """`entries` may be unordered and contain repeats."""
        entries, newest = np.concatenate([self.hashes, entries]), np.concatenate([self.newest, newest])
        order = np.argsort(entries, kind="stable")
        ordered = entries[order]
        is_start = np.ones(len(ordered), bool)
        is_start[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(is_start)
        self.hashes = ordered[starts]
        self.newest = np.maximum.reduceat(newest[order], starts) if len(starts) else newest
