"""Gathers what verdicts say about producers, call by call, in memory that follows producers and not rows.

An `Auditor` is fed with the rows of a call and their verdicts; it neither judges nor changes a table. Auditors of
disjoint keys add up (`merge`), so an audit of many files is several of them, one a shard.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencepost import _native
from fencepost._native import StateTable, Verdicts
from fencepost.errors import BatchError
from fencepost.findings import AuditReport
from fencepost.policy import Columns, Policy
from fencepost.verdict import Verdict

CALL_ROWS = 1 << 20
"""Rows of a call: large enough to be fast, small enough to answer Ctrl-C and to bound memory."""
SAMPLE_MAX = 1 << 18
"""Kept rows that are remembered for the distances of their repeats, 16 bytes each."""
RESET_ROWS_MIN = 1_000
"""A key with fewer newer duplicates is not suspected of a reset."""
COMPACT_MIN = 1 << 18
"""Lines that a tally lets gather before it is added up."""

Hashes: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

UNKNOWN = np.iinfo(np.int64).min


def audit_rows(rows: Any, columns: Columns, table: StateTable, producers_max: int, call_rows: int) -> AuditReport:
    """The report on rows of any kind, judged by a table that is advanced. See `fencepost.audit`."""
    auditor = Auditor(table.policy, columns, table)
    first = 0
    for piece in pieces(rows, columns.read(table.keep), call_rows):
        with placed(first):
            verdicts = table.apply(piece, columns)
        auditor.add(identity(piece, columns, table.keep), verdicts, first)
        first += len(piece)
    return auditor.report(table, order="as the rows came", producers_max=producers_max)


@contextmanager
def placed(first: int) -> Iterator[None]:
    """While a call is judged whose rows begin at row `first`: a BatchError names the row of the whole input."""
    try:
        yield
    except BatchError as error:
        if error.row is None or not first:
            raise
        row = error.row + first
        text = str(error).replace(f"row {error.row}:", f"row {row}:", 1)
        raise BatchError(text, column=error.column, row=row) from error


def pieces(rows: Any, names: tuple[str, ...], rows_max: int = CALL_ROWS) -> Iterator[pa.Table]:
    """Rows of any kind as Arrow tables of about `rows_max` rows, identity columns only if all are there.

    A stream is read as it comes and not collected. Raises TypeError for what is no table.
    """
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in _batches(rows, names):
        if set(names) <= set(batch.schema.names):
            batch = batch.select([batch.schema.get_field_index(name) for name in dict.fromkeys(names)])
        for start in range(0, max(len(batch), 1), rows_max):
            part = batch.slice(start, rows_max)
            if gathered and count + len(part) > rows_max:
                yield pa.Table.from_batches(gathered)
                gathered, count = [], 0
            gathered.append(part)
            count += len(part)
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(rows: Any, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """At least one batch, so that wrong columns are found out even where there are no rows."""
    if _is_frame(rows) and set(names) <= set(rows.columns):
        rows = rows[list(dict.fromkeys(names))]  # the others need not be convertible
    if hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
    else:
        if hasattr(rows, "keys") and set(names) <= set(rows.keys()):
            rows = {name: rows[name] for name in names}
        reader = pa.RecordBatchReader.from_stream(_native.collect(rows))
    is_empty = True
    for batch in reader:
        is_empty = False
        yield batch
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=reader.schema)


def _is_frame(rows: object) -> bool:
    """Whether rows are a DataFrame of pandas or polars, neither of which is imported to ask."""
    kinds = (getattr(sys.modules.get(package), "DataFrame", None) for package in ("pandas", "polars"))
    return any(kind is not None and isinstance(rows, kind) for kind in kinds)


def identity(rows: pa.Table, columns: Columns, keep: tuple[str, ...] = ()) -> pa.Table:
    """The identity columns under the names that verdicts give them: pid or pid_0 …, partition …, epoch, seq, timestamp.

    Integers as int64, timestamps as milliseconds; text and bytes as they are, dictionaries and views unpacked.
    """
    named = {f"{role}{suffix}": rows[name] for role in ("pid", "partition") for suffix, name in _parts(columns, role)}
    if columns.epoch is not None:
        named["epoch"] = rows[columns.epoch]
    named["seq"] = rows[columns.seq]
    plain = {name: _plain(column) for name, column in named.items()}
    if "timestamp" in keep:
        plain["timestamp"] = _milliseconds(rows[columns.timestamp or "timestamp"])
    return pa.table(plain)


def _parts(columns: Columns, role: str) -> Iterator[tuple[str, str]]:
    names = getattr(columns, role)
    if isinstance(names, tuple):
        yield from ((f"_{number}", name) for number, name in enumerate(names))
    elif names is not None:
        yield "", names


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):
        kind = pa.int64()
    elif kind in (pa.large_string(), pa.string_view()):
        kind = pa.string()
    elif kind in (pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind):
        kind = pa.binary()
    return column if column.type == kind else column.cast(kind)


def _milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Milliseconds since 1970, rounded down, as the table reads them."""
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    ticks = column.cast(pa.int64())
    per_ms = {"s": 1 / 1000, "ms": 1, "us": 1_000, "ns": 1_000_000}[column.type.unit]
    if per_ms < 1:
        return pc.multiply(ticks, 1000)
    return ticks if per_ms == 1 else pa.chunked_array([_floor_divide(chunk, int(per_ms)) for chunk in ticks.chunks])


def _floor_divide(chunk: pa.Array, by: int) -> pa.Array:
    floored = pa.array(chunk.fill_null(0).to_numpy() // by)
    return pc.if_else(chunk.is_valid(), floored, None) if chunk.null_count else floored


class Auditor:
    """What the rows so far say. `policy`: by which they are judged; `table`: what was known before the first.

    Memory: some 50 bytes per key for the tallies (more where keys are text), 16 per entry where timestamps are kept,
    and 4 MB for distances.
    """

    def __init__(self, policy: Policy, columns: Columns, table: StateTable) -> None:
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
                "newer": "sum",
                "together": "max",
                "first_epoch": "min",
                "last_epoch": "max",
            }
        )
        self.missing = [pa.table(table.missing())] if policy.admit == "forward" and len(table) else []
        self.every_epoch = (
            [_EveryEpoch(policy, columns, table)] if policy.admit == "any" and policy.epochs == "fence" else []
        )
        self.distances = _Distances()
        self.times = _Times(table, policy) if "timestamp" in table.keep else None

    def add(self, rows: pa.Table, verdicts: Verdicts, first: int = 0) -> None:
        """Rows as `identity` gives them, and what the table said of them. `first`: where the first of them stands."""
        codes = self._add_verdicts(verdicts)
        places = np.arange(first, first + len(rows), dtype=np.int64)
        is_tracked = codes != Verdict.UNTRACKED
        if not is_tracked.all():
            rows, codes, places = rows.filter(pa.array(is_tracked)), codes[is_tracked], places[is_tracked]
        if len(rows):
            self._add_tracked(rows.combine_chunks(), np.ones(len(rows), np.int64), codes, places)

    def add_runs(self, runs: pa.Table, verdicts: Verdicts, lengths: Numbers, places: Numbers) -> None:
        """Runs as `identity` gives them, how many rows each has, and where each row stands among all of the audit.

        Repeats come after what they repeat, in this call and in all of them.
        """
        codes = self._add_verdicts(verdicts)
        if len(runs):
            self._add_tracked(runs.combine_chunks(), lengths, codes, places)

    def add_untracked(self, count: int) -> None:
        """Rows without a producer that no table was asked about."""
        self.rows += count
        self.counts[Verdict.UNTRACKED.name] += count

    def _add_verdicts(self, verdicts: Verdicts) -> npt.NDArray[np.uint8]:
        """What they say without a look at their rows; gives the verdict of each row."""
        codes = np.asarray(pa.array(verdicts.verdict))
        self.rows += len(codes)
        self.counts.update({verdict.name: count for verdict, count in verdicts.counts.items() if count})
        self.border += verdicts.border
        self.stale_epoch += verdicts.stale_epoch
        self.stale.add(pa.table(verdicts.stale))
        if self.policy.admit == "forward":  # these holes never close, and a later epoch does not hide them
            self.missing.append(pa.table(verdicts.missing))
        return codes

    def _add_tracked(self, runs: pa.Table, lengths: Numbers, codes: npt.NDArray[np.uint8], places: Numbers) -> None:
        """`codes`, `places`: of each row of the runs."""
        is_duplicate, is_accepted = codes == Verdict.DUPLICATE, codes == Verdict.ACCEPTED
        for it in self.every_epoch:
            it.add(runs, lengths, is_accepted)
        keys = [_Column(runs[name]) for name in _key_names(runs)]
        epoch = runs["epoch"].to_numpy() if "epoch" in runs.column_names else np.zeros(len(runs), np.int64)
        # What follows each other of one key and epoch is one line: it is hashed and tallied once.
        is_start = np.ones(len(runs), bool)
        is_start[1:] = np.logical_or.reduce([it[1:] != it[:-1] for it in (*(key.codes for key in keys), epoch)])
        starts = np.flatnonzero(is_start)
        firsts = np.cumsum(lengths) - lengths
        line_rows = np.diff(firsts[starts], append=len(codes))
        # Verdicts never lean on hashes. These only find the kept copy of a repeat and the age of an entry: two of a
        # million entries are taken for one in one of 40 million audits.
        key_hashes = _hash([key.bits[starts] for key in keys], len(starts))
        hashes = _mixed(key_hashes, epoch[starts])
        identities = _mixed(np.repeat(hashes, line_rows), self._sequences(runs["seq"].to_numpy(), firsts, lengths))
        self.distances.add(identities, is_duplicate, is_accepted, places)
        is_newer, together = np.zeros(1, bool), np.zeros(len(starts), np.int64)
        if self.times is not None:
            entries = np.repeat(hashes if self.policy.epochs == "key" else key_hashes, line_rows)
            timestamps = np.repeat(runs["timestamp"].to_numpy(), lengths)
            is_newer, since = self.times.add(entries, timestamps, is_duplicate, is_accepted)
            together = np.maximum.reduceat(since, firsts[starts])
        lines = {name: runs[name].take(pa.array(starts)) for name in _key_names(runs)}
        lines["rows"] = pa.array(line_rows)
        lines["duplicates"] = pa.array(_sums(is_duplicate, firsts[starts]))
        lines["newer"] = pa.array(_sums(is_newer, firsts[starts]))
        lines["together"] = pa.array(together)
        lines["first_epoch"] = lines["last_epoch"] = pa.array(epoch[starts])
        self.keys.add(pa.table(lines))

    def _sequences(self, seq: Numbers, firsts: Numbers, lengths: Numbers) -> Numbers:
        """Of each row of runs."""
        rows = int(lengths.sum())
        if rows == len(seq):
            return seq
        seqs = np.repeat(seq - firsts, lengths) + np.arange(rows)
        return seqs if self.policy.wrap is None else seqs % self.policy.wrap

    def merge(self, other: Auditor) -> None:
        """Take in what another auditor found of other keys."""
        self.rows += other.rows
        self.counts.update(other.counts)
        self.border += other.border
        self.stale_epoch += other.stale_epoch
        self.stale.merge(other.stale)
        self.keys.merge(other.keys)
        self.missing += other.missing
        self.every_epoch += other.every_epoch
        self.distances.merge(other.distances)

    def report(
        self,
        *tables: StateTable,
        order: str,
        producers_max: int,
        source: str | None = None,
        files: int = 0,
        bytes: int = 0,
    ) -> AuditReport:
        """The report; `tables`: those that judged, which know what is still missing; first this auditor's own, then
        those of the others in the order in which they were merged."""
        if self.policy.admit == "forward":
            missing = self.missing
        elif self.every_epoch:
            missing = [it.missing(table) for it, table in zip(self.every_epoch, tables, strict=True)]
        else:
            missing = [pa.table(it.missing()) for it in tables]
        ranges = _sorted(_joined(missing or [pa.table(tables[0].missing())]), None)
        names = [f"{role}{suffix}" for role in ("pid", "partition") for suffix, _ in _parts(self.columns, role)]
        keys = self.keys.total() if self.keys.lines else _no_lines([*names, *self.keys.figures])
        pids = [name for name in names if name.startswith("pid")]
        producers = _Tally({"rows": "sum", "duplicates": "sum"}).added(keys.select([*pids, "rows", "duplicates"]))
        duplicates, seen = self.counts["DUPLICATE"], self.distances.measured
        return AuditReport(
            policy=self.policy.name or self.policy.rules,
            identity=self.columns.names,
            order=order,
            source=source,
            files=files,
            bytes=bytes,
            rows=self.rows,
            counts={verdict.name: self.counts[verdict.name] for verdict in Verdict if self.counts[verdict.name]},
            missing_ranges=len(ranges),
            missing_rows=pc.sum(ranges["count"]).as_py() or 0,
            missing=ranges,
            stale_epoch=self.stale_epoch,
            stale=_sorted(self.stale.total(), "count"),
            resets=_resets(keys, names),
            suspected_resets=None if self.times is None else _suspected(keys, names),
            producers=len(producers),
            producers_by_rows=_sorted(producers, "rows").slice(0, producers_max),
            producers_by_duplicates=_sorted(producers, "duplicates").slice(0, producers_max),
            distances=self.distances.table(),
            distance_share=seen / duplicates if duplicates else 1.0,
            repeats_of_unseen=self.distances.unseen,
            border=self.border,
        )


class _EveryEpoch:
    """What is missing of every epoch, where a higher epoch replaces an entry and its holes with it.

    Late rows fill holes under these policies, until the epoch is replaced, so a call's own list does not tell which are
    left for good. Therefore the accepted rows go to a table of its own, in which each epoch is an entry: rows of a
    replaced epoch are never accepted, so its holes stay as they were. `table`: what was known before the first row.

    Memory: an entry per key and epoch, not one per key.
    """

    def __init__(self, policy: Policy, columns: Columns, table: StateTable) -> None:
        rules = policy.replace(epochs="key", intervals_max=None)
        self.table = StateTable(rules, keep=table.keep)
        names = {role: tuple(f"{role}{suffix}" for suffix, _ in _parts(columns, role)) for role in ("pid", "partition")}
        self.columns = Columns(
            **{role: it[0] if len(it) == 1 else it or None for role, it in names.items()},
            epoch="epoch",
            seq="seq",
            timestamp="timestamp" if "timestamp" in table.keep else None,
        )
        self.wrap = policy.wrap
        if len(table):
            entries = pa.table(table.entries()).replace_schema_metadata(None)
            for name in (*names["pid"], *names["partition"]):
                entries = entries.set_column(entries.column_names.index(name), name, _plain(entries[name]))
            self.table = StateTable.from_entries(entries, rules, keep=table.keep, horizon_ms=table.horizon_ms)

    def add(self, runs: pa.Table, lengths: Numbers, is_accepted: Mask) -> None:
        """`is_accepted`: of each row of the runs."""
        firsts = np.cumsum(lengths) - lengths
        is_first = np.zeros(len(is_accepted), bool)
        is_first[firsts] = True
        # As runs again: each goes on while rows of one run are accepted.
        starts = np.flatnonzero(is_accepted & (is_first | ~np.append(False, is_accepted[:-1])))
        ends = np.flatnonzero(is_accepted & np.append(is_first[1:] | ~is_accepted[1:], True)) + 1
        if not len(starts):
            return
        of_run = np.searchsorted(firsts, starts, side="right") - 1
        seq = runs["seq"].to_numpy()[of_run] + starts - firsts[of_run]
        rows = runs.take(pa.array(of_run))
        seqs = pa.array(seq if self.wrap is None else seq % self.wrap)
        rows = rows.set_column(rows.column_names.index("seq"), "seq", seqs)
        self.table.apply_runs(rows.append_column("_length", pa.array(ends - starts)), "_length", self.columns)

    def missing(self, table: StateTable) -> pa.Table:
        """`table`: the one that judged, for the types of keys."""
        found = pa.table(self.table.missing())
        return found.cast(pa.table(table.missing()).schema) if len(found) else found


def _sums(is_one: Mask, starts: Numbers) -> Numbers:
    """How many are from each start to the next."""
    if not is_one.any():
        return np.zeros(len(starts), np.int64)
    sums: Numbers = np.add.reduceat(is_one, starts, dtype=np.int64)
    return sums


def _key_names(rows: pa.Table) -> list[str]:
    return [name for name in rows.column_names if name.partition("_")[0] in ("pid", "partition")]


def _resets(keys: pa.Table, names: list[str]) -> pa.Table:
    found = keys.filter(pc.greater(keys["last_epoch"], keys["first_epoch"]))
    return _sorted(found.select([*names, "first_epoch", "last_epoch"]), None)


def _suspected(keys: pa.Table, names: list[str]) -> pa.Table:
    """A run is suspicious where most of a key's rows are newer duplicates. An audit may see years at once, so that what
    came after a reset is never most of it: there as many must follow each other with no accepted row between them."""
    is_many = pc.greater_equal(keys["newer"], RESET_ROWS_MIN)
    is_most = pc.greater(pc.multiply(keys["newer"], 2), keys["rows"])
    is_together = pc.greater_equal(keys["together"], RESET_ROWS_MIN)
    found = keys.filter(pc.and_(is_many, pc.or_(is_most, is_together))).select([*names, "rows", "duplicates", "newer"])
    return _sorted(found, "newer")


def _sorted(table: pa.Table, by: str | None) -> pa.Table:
    """The highest first; equal ones by key, so that equal audits give equal reports."""
    names = [*_key_names(table), *(name for name in ("epoch", "first_seq") if name in table.column_names)]
    keys = [*([(by, "descending")] if by else []), *((name, "ascending") for name in names)]
    return table.sort_by(keys) if len(table) else table


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table of several; those of a table that has seen no key yet have columns of unknown types."""
    known = [table for table in tables if len(table)] or tables[:1]
    return pa.concat_tables(known, promote_options="permissive").replace_schema_metadata(None)


def _no_lines(names: list[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.int64()) for name in names})


class _Tally:
    """Sums by key. Keys are compared by value, in Arrow."""

    def __init__(self, figures: dict[str, str]) -> None:
        self.figures = figures
        """Column to how it adds up; the other columns are the key."""
        self.lines: list[pa.Table] = []
        self.pending = 0
        self.compact_at = COMPACT_MIN

    def add(self, lines: pa.Table) -> None:
        if not len(lines) and self.lines:
            return
        self.lines.append(lines)
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
        """One line a key."""
        if not self.lines:
            return _no_lines(["pid", *self.figures])
        joined = _joined(self.lines)
        names = [name for name in joined.column_names if name not in self.figures]
        grouped = joined.group_by(names, use_threads=False).aggregate(list(self.figures.items()))
        renamed = {name: grouped[f"{name}_{how}"] for name, how in self.figures.items()}
        total = pa.table({name: grouped[name] for name in names} | renamed)
        self.lines, self.pending = [total], len(total)
        return total


class _Column:
    """A key column of a call: numbers by which neighbours are compared, and 64 bits of each value."""

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
        hashes = _mixed(hashes, bits)
    return hashes


def _mixed(hashes: Hashes, values: npt.NDArray[Any]) -> Hashes:
    """Another column into the hash: the finalizer of splitmix64, of which every input bit reaches every output bit."""
    mixed = (hashes + np.uint64(0x9E3779B97F4A7C15)) ^ (values.view(np.uint64) * np.uint64(0xFF51AFD7ED558CCD))
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


class _Distances:
    """How far repeats lie behind what they repeat, in powers of ten.

    Where each kept row stood is remembered by the hash of its identity, for all rows until there are `SAMPLE_MAX`, then
    for those whose hash lies in the lower half, quarter, … of all hashes: a fair sample of identities at every
    distance, in bounded memory. A window of the last rows would be bounded too, and blind beyond it.
    """

    def __init__(self) -> None:
        self.halvings = 0
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.places: Numbers = np.empty(0, np.int64)
        self.bins: Numbers = np.zeros(20, np.int64)
        """Estimated repeats at a distance of 1, 2 to 10, 11 to 100, …"""
        self.unseen = 0
        self.measured = 0
        """Repeats that were in the sample."""

    def add(self, hashes: Hashes, is_duplicate: Mask, is_accepted: Mask, places: Numbers) -> None:
        self._narrow(hashes[is_accepted])
        if self.halvings:
            sampled = np.flatnonzero(hashes < self._bound())
            hashes, places = hashes[sampled], places[sampled]
            is_duplicate, is_accepted = is_duplicate[sampled], is_accepted[sampled]
        self._remember(hashes[is_accepted], places[is_accepted])
        if is_duplicate.any():
            self._measure(hashes[is_duplicate], places[is_duplicate])
        is_last = np.ones(len(self.hashes), bool)
        is_last[:-1] = self.hashes[1:] != self.hashes[:-1]
        if not is_last.all():
            self.hashes, self.places = self.hashes[is_last], self.places[is_last]

    def _narrow(self, hashes: Hashes) -> None:
        """Sample fewer identities, until what is known and what comes have room."""
        while len(self.hashes) + len(hashes) > SAMPLE_MAX:
            self.halvings += 1
            hashes = hashes[hashes < self._bound()]
            count = int(np.searchsorted(self.hashes, self._bound()))
            self.hashes, self.places = self.hashes[:count].copy(), self.places[:count].copy()

    def _bound(self) -> np.uint64:
        return np.uint64(1 << (64 - self.halvings))

    def _remember(self, hashes: Hashes, places: Numbers) -> None:
        hashes, places = np.concatenate([self.hashes, hashes]), np.concatenate([self.places, places])
        order = np.argsort(hashes, kind="stable")  # equal ones stay in their order of places
        self.hashes, self.places = hashes[order], places[order]

    def _measure(self, hashes: Hashes, places: Numbers) -> None:
        if not len(self.hashes):
            self.unseen += len(hashes) << self.halvings
            self.measured += len(hashes)
            return
        at = np.searchsorted(self.hashes, hashes, side="right") - 1
        while True:  # where a sequence came round, the kept copy is the last before the repeat
            is_copy = (at >= 0) & (self.hashes[at] == hashes)
            is_later = is_copy & (self.places[at] > places)
            if not is_later.any():
                break
            at[is_later] -= 1
        distances = places[is_copy] - self.places[at[is_copy]]
        bins = np.searchsorted(_BIN_LASTS, distances, side="left")
        self.bins += np.bincount(bins, minlength=20)[:20] << self.halvings
        self.unseen += int((~is_copy).sum()) << self.halvings
        self.measured += len(hashes)

    def merge(self, other: _Distances) -> None:
        """Add what was measured of other keys."""
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
    """The last timestamp of each entry, by the hash of its key (and epoch, where each epoch has its own), and how many
    newer duplicates it has had since its last accepted row."""

    def __init__(self, table: StateTable, policy: Policy) -> None:
        self.hashes: Hashes = np.empty(0, np.uint64)
        self.lasts: Numbers = np.empty(0, np.int64)
        self.since: Numbers = np.empty(0, np.int64)
        for batch in pa.RecordBatchReader.from_stream(table.entries()) if len(table) else ():
            entries = pa.Table.from_batches([batch])
            keys = [_Column(_plain(entries[name])) for name in _key_names(entries)]
            hashes = _hash([key.bits for key in keys], len(entries))
            if policy.epochs == "key":
                hashes = _mixed(hashes, _plain(entries["epoch"]).to_numpy())
            self._put(hashes, entries["last_timestamp"].to_numpy(), np.zeros(len(hashes), np.int64))

    def add(self, entries: Hashes, timestamps: Numbers, is_duplicate: Mask, is_accepted: Mask) -> tuple[Mask, Numbers]:
        """(which rows are duplicates, yet newer than all that was accepted of their entry before them; how many of
        those the entry has had by each row since its last accepted one)."""
        order = np.argsort(entries, kind="stable")
        ordered, lasts = entries[order], np.where(is_accepted, timestamps, UNKNOWN)[order]
        is_start = np.ones(len(ordered), bool)
        is_start[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(is_start)
        last_before, since_before = self._before(ordered[starts])
        is_newer = np.zeros(len(entries), bool)
        if is_duplicate.any():
            running = lasts.copy()
            running[starts] = np.maximum(running[starts], last_before)
            # The running maximum within each entry: ranks, lifted by entry so that none reaches into the next.
            ranked, ranks = np.unique(running, return_inverse=True)
            lifted = ranks + (np.cumsum(is_start) - 1) * len(ranked)
            known = ranked[np.maximum.accumulate(lifted) % len(ranked)]
            is_newer[order] = is_duplicate[order] & (known != UNKNOWN) & (timestamps[order] > known)
        since = self._counted(is_newer[order], is_accepted[order], starts, since_before)
        ends = np.append(starts[1:], len(ordered)) - 1
        self._put(ordered[starts], np.maximum.reduceat(lasts, starts), since[ends])
        of_row = np.empty(len(entries), np.int64)
        of_row[order] = since
        return is_newer, of_row

    @staticmethod
    def _counted(is_newer: Mask, is_accepted: Mask, starts: Numbers, before: Numbers) -> Numbers:
        """Newer duplicates by each row since its entry's last accepted one; `before`: by the entry's first row."""
        counts = np.cumsum(is_newer)
        begins_anew = is_accepted.copy()
        begins_anew[starts] = True
        base = np.where(is_accepted, counts, 0)
        of_start = starts[~is_accepted[starts]]
        base[of_start] = counts[of_start] - is_newer[of_start] - before[~is_accepted[starts]]
        since: Numbers = counts - base[begins_anew][np.cumsum(begins_anew) - 1]
        return since

    def _before(self, entries: Hashes) -> tuple[Numbers, Numbers]:
        """(last timestamp, newer duplicates since) of each entry."""
        if not len(self.hashes):
            return np.full(len(entries), UNKNOWN), np.zeros(len(entries), np.int64)
        at = np.minimum(np.searchsorted(self.hashes, entries), len(self.hashes) - 1)
        is_known = self.hashes[at] == entries
        return np.where(is_known, self.lasts[at], UNKNOWN), np.where(is_known, self.since[at], 0)

    def _put(self, entries: Hashes, lasts: Numbers, since: Numbers) -> None:
        """Timestamps rise only, counts are what they are now. `entries` may come in any order and more than once."""
        entries, lasts = np.concatenate([self.hashes, entries]), np.concatenate([self.lasts, lasts])
        order = np.argsort(entries, kind="stable")
        ordered = entries[order]
        is_start = np.ones(len(ordered), bool)
        is_start[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(is_start)
        ends = np.append(starts[1:], len(ordered)) - 1
        self.hashes, self.lasts = ordered[starts], np.maximum.reduceat(lasts[order], starts)
        self.since = np.concatenate([self.since, since])[order][ends]
