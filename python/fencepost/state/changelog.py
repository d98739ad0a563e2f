"""The changes in the list of missing ranges, version by version, as the sink shows them in `_missing`.

OPEN: the range is missing from now on. CLOSED: it is not any more, its rows came, or a rollback has gone back to before
it was missing. SPLIT: some of its rows came; what is left of it follows as OPEN. FINAL: it was given up, nobody can
tell any more.

Lines are counted, whatever their order: OPEN is one more of its range, every other kind one less. The same sequences
may be missing in two laps, and then their range is open twice. Over all files that a sink shows, what is left is
`State.missing`, but for what the horizon has given up in shards that no version has looked at since: their FINAL lines
come with the next version that does. Every version that changes what is missing writes its lines: runs, seeds,
evictions, reshards (which look at every shard), and rollbacks.

A rollback cannot know which files its user has removed. So it counts what the sink still shows, and writes what makes
that the list of the state it goes back to. Files that are removed later are in nobody's lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from fencepost._native import StateTable, parquet_footer
from fencepost.state.decision import SideFiles
from fencepost.state.scratch import Scratch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fencepost.state.commit import Sink

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`; pyarrow is imported where it is needed."""

OPEN, CLOSED, SPLIT, FINAL = KINDS = ("OPEN", "CLOSED", "SPLIT", "FINAL")
FOLDER = "_missing"
NAME = f"{FOLDER}/part-00000.parquet"
NUMBERS_MAX = 1 << 62
TALLY_MIN = 1 << 20
"""Lines that a rollback gathers before they are added up."""


def changes(before: ArrowTable, table: StateTable, version: int) -> list[ArrowTable]:
    """What changed since `before`, the ranges that were missing: version, change, and the columns of `missing()`.

    Lines that take back come first. No table where nothing changed.
    """
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]

    after = pa.table(table.missing())
    if (not len(before) and not len(after)) or before.equals(after):
        return []
    # The types of keys are unknown where there are none.
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
    """The lines after which what is left of those `shown` is `missing`: CLOSED for what is too much, then OPEN.

    Memory: the ranges that are open, and TALLY_MIN lines. No table where nothing is wrong.
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


def write_lines(lines: list[ArrowTable], scratch: Scratch) -> tuple[dict[str, Any], str]:
    """Write a version's file of changes, durably: what the decision says of it (`SideFiles`), and its name there."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    name = f"{uuid4().hex}.missing"
    table = pa.concat_tables(lines, promote_options="permissive")
    # As text, which is what readers of all versions find.
    table = table.set_column(1, "change", table["change"].cast(pa.string()))
    with scratch.new(name, lasts=True) as path:
        pq.write_table(table, path)
        facts = {"bytes": path.stat().st_size, "footer_crc": parquet_footer(path).footer_crc}
    return {"table": "missing", "name": NAME, "rows": len(table), **facts}, name


def prepare(sink: Sink, version: int, attempt: str, lines: list[ArrowTable]) -> tuple[SideFiles, str]:
    """See `Sink.prepare_changelog`."""
    scratch = sink.scratch(version, attempt)
    scratch.make()
    row, name = write_lines(lines, scratch)
    return SideFiles.of([row]), sink.collect(version, attempt, {row["name"]: name})


def numbered(table: ArrowTable) -> npt.NDArray[np.int64]:
    """A number from 0 on for each row: the same for equal rows, and for no others."""
    import numpy as np

    return np.unique(told_apart(table), return_inverse=True)[1].reshape(-1).astype(np.int64)


def told_apart(table: ArrowTable) -> npt.NDArray[np.int64]:
    """The same with gaps between the numbers."""
    import numpy as np
    import pyarrow.compute as pc

    numbers, count = np.zeros(len(table), np.int64), 1
    for name in table.column_names:
        encoded = table[name].combine_chunks().dictionary_encode()
        codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64) + 1
        different = len(encoded.dictionary) + 1
        if count * different >= NUMBERS_MAX:  # of rows, so that the product stays a number of 64 bits
            found, numbers = np.unique(numbers, return_inverse=True)
            count = len(found)
        numbers = numbers.reshape(-1) * different + codes
        count *= different
    return numbers.astype(np.int64)


def _keys(ranges: ArrowTable) -> list[str]:
    return [name for name in ranges.column_names if name not in ("first_seq", "last_seq", "count")]


def _as_lines(ranges: ArrowTable, kinds: npt.NDArray[np.int8], version: int) -> ArrowTable:
    """`kinds`: places in KINDS."""
    import numpy as np
    import pyarrow as pa

    change = pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(KINDS, pa.string()))
    lines = ranges.add_column(0, "change", change)
    lines = lines.add_column(0, "version", pa.array(np.full(len(ranges), version, np.int64)))
    return lines.replace_schema_metadata(None)


@dataclass(frozen=True)
class _Ranges:
    """Missing ranges as numbers."""

    key: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]

    @staticmethod
    def of(table: ArrowTable) -> _Ranges:
        return _Ranges(
            told_apart(table.select(_keys(table))), table["first_seq"].to_numpy(), table["last_seq"].to_numpy()
        )

    def same(self) -> npt.NDArray[np.int64]:
        """A number for each range: the same for equal ones."""
        import numpy as np

        # They come as two lists, each in some order of keys: a sort that looks for what is in order takes little.
        order = np.lexsort((self.last, self.first, self.key))
        is_new = np.zeros(len(order), bool)
        for column in (self.key, self.first, self.last):
            is_new[1:] |= column[order[1:]] != column[order[:-1]]
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(is_new)
        return numbers


def _is_beyond(some: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Of each of some numbers, whether the others have fewer of it than there are up to here."""
    import numpy as np

    order = np.argsort(some, kind="stable")
    ordered = some[order]
    place = np.empty(len(some), np.int64)
    place[order] = np.arange(len(some)) - np.searchsorted(ordered, ordered)  # how many equal ones stand before it
    ordered = np.sort(others)
    count = np.searchsorted(ordered, some, side="right") - np.searchsorted(ordered, some)
    beyond: npt.NDArray[np.bool_] = place >= count
    return beyond


def _finals(table: StateTable, both: ArrowTable) -> npt.NDArray[np.bool_]:
    """For each line, whether its range was given up: its entry is known no more, or has it in its final range.

    An entry that begins above the range is another, which came after that was forgotten.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if table.horizon_ms is None and table.policy.reach is None and table.policy.epochs != "fence":
        return np.zeros(len(both), bool)
    if not len(table):  # nor does it know of which types its keys were
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
    if wrap is not None:  # positions go on where sequences begin anew
        first, final_first, final_last = first % wrap, final_first % wrap, final_last % wrap
    has_final = pc.is_valid(found["final_first"]).to_numpy(zero_copy_only=False)
    is_known = pc.fill_null(found["is_known"], False).to_numpy(zero_copy_only=False)
    is_final = has_final & (final_first <= seq) & (seq <= final_last)
    given_up: npt.NDArray[np.bool_] = ~is_known | (seq < first) | is_final
    return given_up


def _kinds_of_gone(
    ranges: _Ranges, gone: npt.NDArray[np.int64], new: npt.NDArray[np.int64], may_be_final: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int8]:
    """SPLIT where something new lies within the old range, else CLOSED, or FINAL where its key gave something up."""
    import numpy as np

    # Keys and beginnings of what is new as one number each, in one order.
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
    """How often each range is there, of some that are taken away and others that are added."""

    def __init__(self) -> None:
        self._gathered: list[ArrowTable] = []
        self._lines = 0
        self._lines_max = TALLY_MIN

    def add(self, ranges: ArrowTable, times: npt.NDArray[np.int64]) -> None:
        import pyarrow as pa

        if len(ranges):  # the types of keys are unknown where there are none
            self._gathered.append(ranges.append_column("times", pa.array(times)).replace_schema_metadata(None))
            self._lines += len(ranges)
        if self._lines > self._lines_max:
            self._add_up()

    def total(self) -> tuple[ArrowTable, npt.NDArray[np.int64]]:
        """The ranges that are not there just as often as they were taken away, and how much more often."""
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
        # One thread: the order of lines is then that in which they came.
        sums = lines.group_by(names, use_threads=False).aggregate([("times", "sum")])
        sums = sums.rename_columns([*names, "times"]).select([*names, "times"])
        self._gathered = [sums.filter(pc.not_equal(sums["times"], 0))]
        self._lines = len(self._gathered[0])
        self._lines_max = max(TALLY_MIN, 2 * self._lines)
