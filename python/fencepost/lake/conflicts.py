"""Stage 2b, if content is compared: a repeat whose other columns differ from the row it repeats is a CONFLICT.

Judging yields the pairs of rows of this run with equal identity. One task per judge task reads both rows of its pairs
and compares their checksums (`fencepost.content`). A repeat of an earlier run's row has no second row in this run. It
is compared if that run has kept a checksum (`kept_content.py`), and counted as not compared otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.content import checksums
from fencepost.inputs import with_fields
from fencepost.lake.files import Files
from fencepost.lake.kept_content import ChecksumItem, Kept, Ranges, Sums, compare_and_keep, read_rows
from fencepost.lake.refused import Refused, read_refused, write_refused
from fencepost.lake.repeats import Stretches, find_repeats
from fencepost.lake.scan import FILE, ROW, borders_of
from fencepost.lake.storage import Storage, unchanged
from fencepost.policy import Columns, Policy
from fencepost.state.scratch import Scratch, read_table
from fencepost.state.stores import Store

OnConflict = Literal["stop", "quarantine", "drop"]

PAIRS = pa.schema([("file", pa.uint32()), ("row", pa.uint64()), ("kept_file", pa.uint32()), ("kept_row", pa.uint64())])
"""A repeat and the row it repeats: ordinals of files, and row numbers in them."""
SAMPLES_MAX = 10
"""Maximum number of conflicts that a task shows."""
TEXT_MAX = 60
"""Maximum number of characters of a value in a sample."""

Rows = npt.NDArray[np.int64]


def find_pairs(
    shard: int, spans: pa.Table, codes: npt.NDArray[np.uint8], policy: Policy, others: Ranges | None
) -> pa.Table:
    """Return the pairs of a shard's rows. `codes`: a verdict per row. `others` receives the other repeats."""
    some = Stretches.of(spans, codes, [Verdict.ACCEPTED, Verdict.DUPLICATE])
    files, rows = spans[FILE].to_numpy()[some.spans], spans[ROW].to_numpy()[some.spans] + some.offsets.astype(np.uint64)
    found = []
    for repeats in find_repeats(spans, some, policy):
        if others is not None:
            others.add_repeats(shard, spans, policy, some, repeats)
        has_kept = repeats.kept >= 0
        stretch, kept = repeats.stretch[has_kept], repeats.kept[has_kept]
        columns = [
            files[stretch],
            rows[stretch] + repeats.offsets[has_kept].astype(np.uint64),
            files[kept],
            rows[kept] + repeats.kept_offsets[has_kept].astype(np.uint64),
        ]
        found.append(pa.table(columns, schema=PAIRS))
    return pa.concat_tables(found) if found else PAIRS.empty_table()


@dataclass(frozen=True, kw_only=True)
class CompareItem:
    files: Files
    """As in the first pass; a file's index is its ordinal."""
    pairs: str | None
    refused_rows: Refused | None
    columns: Columns
    wanted: tuple[str, ...]
    """The columns to compare; () for all outside the identity."""
    keeping: ChecksumItem | None
    """Set if checksums are kept across runs."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    refused_rows: Refused | None
    """The judge's refused rows, with CONFLICT as verdict of conflicts."""
    pairs: int
    """Number of compared repeats."""
    conflicts: int
    samples: pa.Table
    """Some conflicts: identity columns, file, row, kept_file, kept_row, column (the first that differs), found, kept
    (its two values, as text). The last five are null if an earlier run kept the row."""
    kept: Kept | None
    """Set if checksums are kept across runs."""


def compare(store: Store, storage: Storage, scratch: Scratch, item: CompareItem) -> Compared:
    """Compare the rows of the pairs, and repeats of earlier runs' rows that have checksums.

    Memory: a row group's content columns, 40 bytes per pair, and that of `kept_content.compare_and_keep`. Raises
    BatchError for a column that cannot be compared, ChangedError if a file changed since the first pass, SnapshotError.
    """
    pairs = PAIRS.empty_table()
    if item.pairs is not None:
        pairs = read_table(scratch, item.pairs)
    sums = None if item.keeping is None else Sums(scratch, item.keeping.summed)
    content = Content(storage, item.files, item.columns, item.wanted, sums)
    conflicts, kept, compared = content.conflicts(pairs), None, len(pairs)
    if item.keeping is not None and sums is not None:
        kept, others = compare_and_keep(store, scratch, item.keeping, sums)
        conflicts = pa.concat_tables([conflicts, others], promote_options="default")
        compared += kept.compared
    refused_rows = item.refused_rows
    if len(conflicts):
        assert item.refused_rows is not None, "conflicts are among the rows that are not kept"
        refused_rows = write_refused(scratch, mark(read_refused(scratch, [item.refused_rows.all()]), conflicts))
    samples = content.samples(conflicts)
    return Compared(refused_rows=refused_rows, pairs=compared, conflicts=len(conflicts), samples=samples, kept=kept)


@dataclass(frozen=True)
class Content:
    """The content of files' rows. `wanted`: the columns to compare; () for all outside the identity."""

    storage: Storage
    files: Files
    columns: Columns
    wanted: tuple[str, ...]
    sums: Sums | None = None
    """The checksums of all rows, if available."""

    def conflicts(self, pairs: pa.Table) -> pa.Table:
        """Return the PAIRS whose rows differ."""
        repeats = self._checksums(pairs["file"].to_numpy(), pairs["row"].to_numpy())
        kept = self._checksums(pairs["kept_file"].to_numpy(), pairs["kept_row"].to_numpy())
        return pairs.filter(pa.array(repeats != kept))

    def samples(self, conflicts: pa.Table) -> pa.Table:
        """See `Compared.samples`."""
        found = [self._sample(line) for line in conflicts.slice(0, SAMPLES_MAX).to_pylist()]
        places = {"file": pa.string(), "row": pa.int64(), "kept_file": pa.string(), "kept_row": pa.int64()}
        texts = [*self.columns.names, *places, "column", "found", "kept"]
        return pa.Table.from_pylist(found, pa.schema(dict.fromkeys(texts, pa.string()) | places))

    def _checksums(self, files: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        if self.sums is not None:
            return self.sums.of(files, rows)
        found = np.zeros(len(rows), np.uint64)
        order = np.argsort(files, kind="stable")
        for first, end in pairwise(borders_of(files[order])):
            some = order[first:end]
            ordinal = int(files[some[0]])
            numbers, places = np.unique(rows[some], return_inverse=True)
            sums = [checksums(part, part.column_names) for part in self._read(ordinal, numbers.astype(np.int64))]
            found[some] = np.concatenate(sums)[places.reshape(-1)]
        return found

    def _read(self, ordinal: int, rows: Rows, more: tuple[str, ...] = ()) -> Iterator[pa.Table]:
        with unchanged(self.storage, self.files, ordinal):
            yield from read_rows(self.storage, self.files, ordinal, rows, self.columns, self.wanted, more)

    def _sample(self, line: dict[str, Any]) -> dict[str, Any]:
        """Format a conflict for people."""
        identity = self.columns.names
        read = (*identity, *(name.partition(".")[0] for name in identity))
        one = with_fields(next(self._read(line["file"], np.array([line["row"]]), read)), identity)
        shown = {name: _text(one, name) for name in identity}
        shown |= {"file": self.files.paths[line["file"]], "row": line["row"]}
        if line["kept_file"] is None:
            return shown | dict.fromkeys(("kept_file", "kept_row", "column", "found", "kept"))
        other = next(self._read(line["kept_file"], np.array([line["kept_row"]]), read))
        shown |= {"kept_file": self.files.paths[line["kept_file"]], "kept_row": line["kept_row"]}
        compared = dict.fromkeys(self.wanted or (*one.column_names, *other.column_names))
        differ = [name for name in compared if _sum(one, name) != _sum(other, name)]
        differ = [name for name in differ if name in self.wanted or name not in identity]
        first = differ[0] if differ else ""
        return shown | {"column": first, "found": _text(one, first), "kept": _text(other, first)}


def mark(refused_rows: pa.Table, conflicts: pa.Table) -> pa.Table:
    """Set the verdict of these rows to CONFLICT in the ranges of refused rows, which are sorted by file and row."""
    file, row, count, verdict = (refused_rows[name].to_numpy() for name in refused_rows.column_names)
    order = np.lexsort((conflicts["row"].to_numpy(), conflicts["file"].to_numpy()))
    files, rows = conflicts["file"].to_numpy()[order], conflicts["row"].to_numpy()[order]
    # Find the range of each conflict, and cut it before and after the row.
    lows, highs = np.searchsorted(file, files, "left").tolist(), np.searchsorted(file, files, "right").tolist()
    found = zip(lows, highs, rows.tolist(), strict=True)
    of = np.array([low + np.searchsorted(row[low:high], it, "right") - 1 for low, high, it in found], np.int64)
    firsts = np.concatenate([row, rows, rows + np.uint64(1)])
    of_range = np.concatenate([np.arange(len(row)), of, of])
    is_conflict = np.concatenate([np.zeros(len(row), bool), np.ones(len(rows), bool), np.zeros(len(rows), bool)])
    ends = (row + count)[of_range]
    order = np.lexsort((is_conflict, firsts, of_range))
    firsts, of_range, is_conflict, ends = firsts[order], of_range[order], is_conflict[order], ends[order]
    nexts = np.append(firsts[1:], 0)
    is_last = np.append(of_range[1:] != of_range[:-1], True)
    counts = np.where(is_last, ends, nexts) - firsts
    is_any = (counts > 0) & (firsts < ends)
    verdicts = np.where(is_conflict, np.uint8(Verdict.CONFLICT), verdict[of_range])[is_any]
    columns = [file[of_range][is_any], firsts[is_any], counts[is_any].astype(np.uint64), verdicts]
    return pa.table(columns, schema=refused_rows.schema)


def _sum(rows: pa.Table, name: str) -> int:
    return int(checksums(rows, [name] if name in rows.column_names else [])[0])


def _text(rows: pa.Table, name: str) -> str:
    value = rows[name][0].as_py() if name in rows.column_names else None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def listed(samples: pa.Table) -> str:
    """Return the first conflicts as one line of text."""
    return "; ".join(map(_line, samples.slice(0, 3).to_pylist()))


def _line(sample: dict[str, Any]) -> str:
    place = f"{sample['file']}, row {sample['row']}"
    if sample["kept_file"] is None:
        return f"{place}: its checksum differs from that of the row that an earlier run has kept"
    kept = f"{sample['kept_file']}, row {sample['kept_row']}, has {sample['kept']}"
    return f"{place}: column '{sample['column']}' has {sample['found']}, where {kept}"


def joined(samples: list[pa.Table]) -> pa.Table:
    some = [table for table in samples if table.num_columns]
    return pa.concat_tables(some, promote_options="permissive") if some else pa.table({})
