"""The changes in the list of missing ranges by version, which the sink shows in `_missing`.

| change | meaning |
|---|---|
| OPEN | the range is missing from now on |
| CLOSED | it is no longer missing: its rows came, or a rollback returned to a state before it was missing |
| SPLIT | some of its rows came; the rest follows as OPEN |
| FINAL | it was given up, and nothing more is known about it |

Lines are counted regardless of their order: OPEN adds one of its range, every other change removes one. A range may be
open twice, if the same sequences are missing in two laps. The sum over all files in the sink is `State.missing`. The
exception are ranges that the horizon gave up in shards that no version has read since; their FINAL lines come with the
next version that reads the shard. Every version that changes missing ranges writes lines: runs, seeds, evictions,
reshards (which read every shard), rollbacks, and rebases.

A rollback or rebase cannot know which files the user has removed. So it counts the lines that the sink still shows, and
writes the difference to the list of the new state. Files removed later are not accounted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from fencepost._native import StateTable, parquet_footer
from fencepost.arrow import ArrowTable
from fencepost.state.decision import SideFiles
from fencepost.state.scratch import Scratch

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from fencepost.state.commit import Sink

OPEN, CLOSED, SPLIT, FINAL = KINDS = ("OPEN", "CLOSED", "SPLIT", "FINAL")
FOLDER = "_missing"
NAME = f"{FOLDER}/part-00000.parquet"
NUMBERS_MAX = 1 << 62
NamedFile: TypeAlias = tuple[dict[str, Any], str]
"""The decision's record (`SideFiles`) of a file, and its name in the scratch."""
TALLY_MIN = 1 << 20
"""Number of lines that a rollback collects before adding them up."""


def changes(before: ArrowTable, after: ArrowTable, table: StateTable, version: int) -> list[ArrowTable]:
    """Return the changes from `before` to `after`, the missing ranges of `table` earlier and now: version, change, and
    the columns of `missing()`.

    Lines that remove ranges come first. Empty if nothing changed.
    """
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]

    if not len(before):  # nothing can be gone
        return [_as_lines(after, np.full(len(after), KINDS.index(OPEN), np.int8), version)] if len(after) else []
    if before.equals(after):
        return []
    if len(after):
        before, after = _without_shared(before, after)
    if not len(before) and not len(after):
        return []
    # Tables without ranges do not know the types of keys.
    both = pa.concat_tables([it for it in (before, after) if len(it)], promote_options="permissive")
    ranges = _Ranges.of(both)
    same = ranges.same()
    was, now = same[: len(before)], same[len(before) :]
    gone = np.flatnonzero(_is_beyond(was, now))
    new = np.flatnonzero(_is_beyond(now, was)) + len(before)
    if not len(gone) and not len(new):
        return []
    kinds = np.full(len(gone) + len(new), KINDS.index(OPEN), np.int8)
    if len(gone):
        kinds[: len(gone)] = _kinds_of_gone(ranges, gone, new, _finals(table, both)[gone])
    return [_as_lines(both.take(pa.array(np.concatenate([gone, new]))), kinds, version)]


def corrections(shown: Iterable[ArrowTable], missing: Iterable[ArrowTable], version: int) -> list[ArrowTable]:
    """Return the lines that turn the ranges `shown` into `missing`: CLOSED for surplus ones, then OPEN.

    Memory: the open ranges, and TALLY_MIN lines. Empty if there is no difference.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    tally = _Tally()
    for lines in shown:
        is_open = pc.equal(lines["change"], OPEN).to_numpy()
        tally.add(lines.drop_columns(["version", "change"]), np.where(is_open, -1, 1))
    for ranges in missing:
        tally.add(ranges, np.ones(len(ranges), np.int64))
    wrong, lacking = tally.total()
    found = []
    for kind, times in ((CLOSED, np.maximum(-lacking, 0)), (OPEN, np.maximum(lacking, 0))):
        lines = wrong.take(pa.array(np.repeat(np.arange(len(wrong)), times)))
        if len(lines):
            found.append(_as_lines(lines, np.full(len(lines), KINDS.index(kind), np.int8), version))
    return found


def count_lines(lines: Iterable[ArrowTable]) -> Counter[str]:
    """Return the number of lines by change."""
    import pyarrow.compute as pc

    found: Counter[str] = Counter()
    for table in lines:
        for kind in pc.value_counts(table["change"]).to_pylist():
            found[kind["values"]] += kind["counts"]
    return found


def write_piece(lines: list[ArrowTable], scratch: Scratch) -> str | None:
    """Write a task's lines for the version's file: in Parquet, a hundredth of their size in memory.

    Returns the name in the scratch. None without lines.
    """
    name = f"{uuid4().hex}.changes"
    if not lines:
        return None
    with scratch.new(name) as path:
        _write(lines, path)
    return name


def read_piece(scratch: Scratch, name: str) -> ArrowTable:
    """Read the result of `write_piece`."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    return pq.read_table(scratch.read(name), read_dictionary=["change"])


def write_lines(lines: list[ArrowTable], scratch: Scratch) -> NamedFile:
    """Write a version's file of changes durably."""
    name = f"{uuid4().hex}.missing"
    with scratch.new(name, lasts=True) as path:
        rows = _write(lines, path)
        size = path.stat().st_size
        footer_crc = parquet_footer(path).footer_crc
    return as_side_file(rows, size, footer_crc), name


def as_side_file(rows: int, size: int, footer_crc: int) -> dict[str, Any]:
    """Return the decision's record (`SideFiles`) of a version's file of changes."""
    return {"table": "missing", "name": NAME, "rows": rows, "bytes": size, "footer_crc": footer_crc}


def _write(lines: list[ArrowTable], path: Path) -> int:
    """Write lines to a Parquet file. Returns their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables(lines, promote_options="permissive").unify_dictionaries()
    # Without Arrow's schema, readers see the kinds as text, as in files of all versions. Dictionaries of columns whose
    # values all differ, statistics but of keys, and small batches take half of the time and help nobody.
    keys = _keys(table.drop_columns(["version", "change"]))
    coded = ["version", "change", *keys, "count"]
    facts: dict[str, Any] = {"use_dictionary": coded, "write_statistics": keys, "write_batch_size": 1 << 14}
    pq.write_table(table, path, store_schema=False, **facts)
    return len(table)


def prepare(sink: Sink, version: int, attempt: str, lines: list[ArrowTable]) -> tuple[SideFiles, str]:
    """Prepare an attempt that shows only these lines. Returns `Decision.side_files` and `prepared`."""
    scratch = sink.scratch(version, attempt)
    scratch.make()
    row, name = write_lines(lines, scratch)
    return SideFiles.of([row]), sink.collect(version, attempt, {row["name"]: name})


def numbered(table: ArrowTable) -> npt.NDArray[np.int64]:
    """Number the rows from 0: equal rows have equal numbers, different rows different ones."""
    import numpy as np

    return np.unique(sparse_numbers(table), return_inverse=True)[1].reshape(-1).astype(np.int64)


def sparse_numbers(table: ArrowTable) -> npt.NDArray[np.int64]:
    """As `numbered`, but numbers may have gaps."""
    import numpy as np
    import pyarrow.compute as pc

    numbers, count = np.zeros(len(table), np.int64), 1
    for name in table.column_names:
        encoded = table[name].combine_chunks().dictionary_encode()
        codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64) + 1
        different = len(encoded.dictionary) + 1
        if count * different >= NUMBERS_MAX:  # renumber, so that the product fits into 64 bits
            found, numbers = np.unique(numbers, return_inverse=True)
            count = len(found)
        numbers = numbers.reshape(-1) * different + codes
        count *= different
    return numbers.astype(np.int64)


def _keys(ranges: ArrowTable) -> list[str]:
    return [name for name in ranges.column_names if name not in ("first_seq", "last_seq", "count")]


def _as_lines(ranges: ArrowTable, kinds: npt.NDArray[np.int8], version: int) -> ArrowTable:
    """`kinds`: indexes into KINDS."""
    import numpy as np
    import pyarrow as pa

    change = pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(KINDS, pa.string()))
    lines = ranges.add_column(0, "change", change)
    lines = lines.add_column(0, "version", pa.array(np.full(len(ranges), version, np.int64)))
    return lines.replace_schema_metadata(None)


def _without_shared(before: ArrowTable, after: ArrowTable) -> tuple[ArrowTable, ArrowTable]:
    """Leave out the ranges with which a key begins in both lists. Where a run only adds ranges, all old ones go.

    A list has the ranges of a key together. If it had not, fewer ranges would be left out.
    """
    import numpy as np
    import pyarrow as pa

    borders = [_borders(it) for it in (before, after)]
    keys = [it.select(_keys(it)).take(pa.array(at[:-1])) for it, at in zip((before, after), borders, strict=True)]
    numbers = sparse_numbers(pa.concat_tables(keys, promote_options="permissive"))
    split = len(keys[0])
    _, *groups = np.intersect1d(numbers[:split], numbers[split:], return_indices=True)
    lengths = np.minimum(*(np.diff(at)[of] for at, of in zip(borders, groups, strict=True)))
    ends = np.cumsum(lengths)
    offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    was, now = (np.repeat(at[:-1][of], lengths) + offsets for at, of in zip(borders, groups, strict=True))
    differs = np.zeros(len(offsets), bool)
    for name in ("first_seq", "last_seq"):
        differs |= before[name].to_numpy()[was] != after[name].to_numpy()[now]
    differing = np.cumsum(differs)
    of_earlier_keys = np.append(0, differing)[ends - lengths]
    is_shared = differing == np.repeat(of_earlier_keys, lengths)
    left = []
    for ranges, places in ((before, was), (after, now)):
        is_left = np.ones(len(ranges), bool)
        is_left[places[is_shared]] = False
        left.append(ranges.filter(pa.array(is_left)))
    return left[0], left[1]


def _borders(ranges: ArrowTable) -> npt.NDArray[np.int64]:
    """Return the first line of each key, and the number of lines."""
    import numpy as np

    is_first = np.ones(len(ranges) + 1, bool)
    is_first[1:-1] = False
    for name in _keys(ranges):
        codes = sparse_numbers(ranges.select([name]))
        is_first[1:-1] |= codes[1:] != codes[:-1]
    return np.flatnonzero(is_first)


@dataclass(frozen=True)
class _Ranges:
    """Missing ranges as numbers."""

    key: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]

    @staticmethod
    def of(table: ArrowTable) -> _Ranges:
        return _Ranges(
            sparse_numbers(table.select(_keys(table))), table["first_seq"].to_numpy(), table["last_seq"].to_numpy()
        )

    def same(self) -> npt.NDArray[np.int64]:
        """A number for each range: equal ranges have equal numbers."""
        import numpy as np

        # Nearly sorted: the input is two lists, each in some order of keys.
        order = np.lexsort((self.last, self.first, self.key))
        is_new = np.zeros(len(order), bool)
        for column in (self.key, self.first, self.last):
            is_new[1:] |= column[order[1:]] != column[order[:-1]]
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(is_new)
        return numbers


def _is_beyond(some: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each of `some` whether it occurs more often so far than in `others`."""
    import numpy as np

    order = np.argsort(some, kind="stable")
    ordered = some[order]
    place = np.empty(len(some), np.int64)
    place[order] = np.arange(len(some)) - np.searchsorted(ordered, ordered)  # the number of equal ones before it
    ordered = np.sort(others)
    count = np.searchsorted(ordered, some, side="right") - np.searchsorted(ordered, some)
    beyond: npt.NDArray[np.bool_] = place >= count
    return beyond


def _finals(table: StateTable, both: ArrowTable) -> npt.NDArray[np.bool_]:
    """Return for each line whether its range was given up: its entry is forgotten, or has it in its final range.

    An entry that begins above the range is a new one, created after the old one was forgotten.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.horizon_ms is None and table.policy.reach is None and table.policy.epochs != "fence":
        return np.zeros(len(both), bool)
    if not len(table):  # an empty table does not know the types of its keys
        return np.ones(len(both), bool)
    names = _keys(both)
    if table.policy.columns.epoch is None:
        names.remove("epoch")
    known = pa.table(table.entries()).select([*names, "first", "final_first", "final_last"])
    known = known.append_column("is_known", pa.array(np.ones(len(known), bool))).replace_schema_metadata(None)
    lines = both.select([*names, "first_seq"]).append_column("line", pa.array(np.arange(len(both))))
    found = lines.replace_schema_metadata(None).join(known, keys=names, join_type="left outer").sort_by("line")
    seq, first, final_first, final_last = (
        pc.fill_null(found[name], -1).to_numpy() for name in ("first_seq", "first", "final_first", "final_last")
    )
    wrap = table.policy.wrap
    if wrap is not None:  # positions continue where sequences restart
        first, final_first, final_last = first % wrap, final_first % wrap, final_last % wrap
    has_final = pc.is_valid(found["final_first"]).to_numpy(zero_copy_only=False)
    is_known = pc.fill_null(found["is_known"], False).to_numpy(zero_copy_only=False)
    is_final = has_final & (final_first <= seq) & (seq <= final_last)
    given_up: npt.NDArray[np.bool_] = ~is_known | (seq < first) | is_final
    return given_up


def _kinds_of_gone(
    ranges: _Ranges, gone: npt.NDArray[np.int64], new: npt.NDArray[np.int64], may_be_final: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int8]:
    """Return SPLIT if something new is within the old range, else CLOSED, or FINAL if its key gave something up."""
    import numpy as np

    # Combine keys and beginnings of new ranges to one sortable number each.
    keys = np.unique(ranges.key[new])
    firsts = np.unique(ranges.first[new])
    begins = np.sort(
        np.searchsorted(keys, ranges.key[new]) * (len(firsts) + 1) + np.searchsorted(firsts, ranges.first[new])
    )
    key = np.searchsorted(keys, ranges.key[gone])
    is_known = np.isin(ranges.key[gone], keys)
    low = np.searchsorted(begins, key * (len(firsts) + 1) + np.searchsorted(firsts, ranges.first[gone]))
    end = np.searchsorted(firsts, ranges.last[gone], side="right")
    is_split = is_known & (np.searchsorted(begins, key * (len(firsts) + 1) + end) > low)
    closed = np.where(may_be_final, KINDS.index(FINAL), KINDS.index(CLOSED))
    return np.where(is_split, KINDS.index(SPLIT), closed).astype(np.int8)


class _Tally:
    """Counts of ranges, of which some are added and others removed."""

    def __init__(self) -> None:
        self._gathered: list[ArrowTable] = []
        self._lines = 0
        self._lines_max = TALLY_MIN

    def add(self, ranges: ArrowTable, times: npt.NDArray[np.int64]) -> None:
        import pyarrow as pa

        if len(ranges):  # tables without ranges do not know the types of keys
            self._gathered.append(ranges.append_column("times", pa.array(times)).replace_schema_metadata(None))
            self._lines += len(ranges)
        if self._lines > self._lines_max:
            self._add_up()

    def total(self) -> tuple[ArrowTable, npt.NDArray[np.int64]]:
        """Return the ranges whose count is not zero, and their counts."""
        import numpy as np
        import pyarrow as pa

        self._add_up()
        if not self._gathered:
            return pa.table({}), np.zeros(0, np.int64)
        ranges = self._gathered[0]
        return ranges.drop_columns(["times"]), ranges["times"].to_numpy()

    def _add_up(self) -> None:
        if not self._gathered:
            return
        import pyarrow as pa
        import pyarrow.compute as pc

        lines = pa.concat_tables(self._gathered, promote_options="permissive")
        names = [name for name in lines.column_names if name != "times"]
        # With one thread, the order of lines is that of the input.
        sums = lines.group_by(names, use_threads=False).aggregate([("times", "sum")])
        sums = sums.rename_columns([*names, "times"]).select([*names, "times"])
        self._gathered = [sums.filter(pc.not_equal(sums["times"], 0))]
        self._lines = len(self._gathered[0])
        self._lines_max = max(TALLY_MIN, 2 * self._lines)
