"""The changes in the list of missing ranges, version by version: their fold is `StateTable.missing`.

OPEN: the range is missing from now on. CLOSED: it is not any more, its rows came. SPLIT: some of its rows came; what is
left of it follows as OPEN. FINAL: it was given up, nobody can tell any more. So the open ranges are those of OPEN that
no later line of the same range takes back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fencepost import StateTable

OPEN, CLOSED, SPLIT, FINAL = "OPEN", "CLOSED", "SPLIT", "FINAL"


def changes(before: pa.Table, table: StateTable, version: int) -> list[pa.Table]:
    """What changed since `before`, the ranges that were missing: version, change, and the columns of `missing()`.

    Lines that take back come first. No table where nothing changed.
    """
    after = pa.table(table.missing())
    if (not len(before) and not len(after)) or before.equals(after):
        return []
    # The types of keys are unknown where there are none.
    both = pa.concat_tables([it for it in (before, after) if len(it)], promote_options="permissive")
    names = [name for name in both.column_names if name not in ("first_seq", "last_seq", "count")]
    keys = numbered(both.select(names))
    ranges = np.stack([keys, both["first_seq"].to_numpy(), both["last_seq"].to_numpy()], axis=1)
    _, same = np.unique(ranges, axis=0, return_inverse=True)
    same = same.reshape(-1)
    was, now = same[: len(before)], same[len(before) :]
    gone = np.flatnonzero(~np.isin(was, now))
    new = np.flatnonzero(~np.isin(now, was)) + len(before)
    if not len(gone) and not len(new):
        return []
    kinds = _kinds_of_gone(ranges, gone, new, _finals(table, both))
    lines = both.take(pa.array(np.concatenate([gone, new])))
    change = pa.array([*kinds, *[OPEN] * len(new)], pa.string())
    lines = lines.add_column(0, "change", change).add_column(0, "version", pa.array([version] * len(lines), pa.int64()))
    return [lines.replace_schema_metadata(None)]


def numbered(table: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each row: the same for equal rows, and for no others."""
    numbers = np.zeros(len(table), np.int64)
    for name in table.column_names:
        codes = pc.fill_null(table[name].combine_chunks().dictionary_encode().indices, -1).to_numpy()
        _, numbers = np.unique(np.stack([numbers, codes], axis=1), axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
    return numbers.astype(np.int64)


def _finals(table: StateTable, both: pa.Table) -> npt.NDArray[np.bool_]:
    """For each line, whether its range was given up: its entry is known no more, or has it in its final range."""
    if table.horizon_ms is None and table.policy.reach is None:
        return np.zeros(len(both), bool)
    names = [name for name in both.column_names if name not in ("first_seq", "last_seq", "count")]
    if table.policy.columns.epoch is None:
        names.remove("epoch")
    known = pa.table(table.entries()).select([*names, "final_first", "final_last"])
    known = known.append_column("is_known", pa.array(np.ones(len(known), bool))).replace_schema_metadata(None)
    lines = both.select([*names, "first_seq"]).append_column("line", pa.array(np.arange(len(both))))
    found = lines.replace_schema_metadata(None).join(known, keys=names, join_type="left outer").sort_by("line")
    first, final_first, final_last = (
        pc.fill_null(found[name], -1).to_numpy() for name in ("first_seq", "final_first", "final_last")
    )
    wrap = table.policy.wrap
    if wrap is not None:  # positions go on where sequences begin anew
        final_first, final_last = final_first % wrap, final_last % wrap
    has_final = pc.is_valid(found["final_first"]).to_numpy(zero_copy_only=False)
    is_known = pc.fill_null(found["is_known"], False).to_numpy(zero_copy_only=False)
    given_up: npt.NDArray[np.bool_] = ~is_known | (has_final & (final_first <= first) & (first <= final_last))
    return given_up


def _kinds_of_gone(
    ranges: npt.NDArray[np.int64],
    gone: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    may_be_final: npt.NDArray[np.bool_],
) -> list[str]:
    """SPLIT where something new lies within the old range, else CLOSED, or FINAL where its key gave something up."""
    order = np.lexsort((ranges[new, 1], ranges[new, 0]))
    key, first = ranges[new, 0][order], ranges[new, 1][order]
    kinds = []
    for line in gone:
        low = np.searchsorted(key, ranges[line, 0], side="left")
        high = np.searchsorted(key, ranges[line, 0], side="right")
        within = (first[low:high] >= ranges[line, 1]) & (first[low:high] <= ranges[line, 2])
        kinds.append(SPLIT if within.any() else FINAL if may_be_final[line] else CLOSED)
    return kinds
