"""Keeps some rows of each kind of finding as examples.

Of each kind, the rows whose identities have the lowest hashes are kept, one row per identity. This is a fair sample of
identities that does not depend on how rows are split into calls or threads.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_HASH = "_hash"


class Examples:
    """A sample of up to `rows_max` rows of each kind."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.found: dict[str, pa.Table] = {}

    def wanted(self, kind: str, hashes: Hashes, places: Numbers, is_one: Mask) -> Numbers:
        """Return the rows of a call that belong to the sample. `is_one`: whether each row is of this kind."""
        rows = np.flatnonzero(is_one)
        known = self.found.get(kind)
        if known is not None and len(known) == self.rows_max:
            rows = rows[hashes[rows] <= known[_HASH].to_numpy()[-1]]
        near = 50 * self.rows_max
        if len(rows) > 2 * near:  # Usually leaves enough of the lowest hashes, and avoids sorting all.
            some = rows[hashes[rows] <= np.partition(hashes[rows], near)[near]]
            if len(np.unique(hashes[some])) >= self.rows_max:
                rows = some
        rows = rows[np.lexsort((places[rows], hashes[rows]))]
        return rows[_firsts(hashes[rows])[: self.rows_max]]

    def add(self, kind: str, hashes: Hashes, rows: pa.Table) -> None:
        """Add rows that `wanted` returned. Column "row": the number of each row."""
        found = rows.append_column(_HASH, pa.array(hashes))
        if kind in self.found:
            found = pa.concat_tables([self.found[kind], found], promote_options="permissive")
        found = found.sort_by([(_HASH, "ascending"), ("row", "ascending")]).combine_chunks()
        self.found[kind] = found.take(pa.array(_firsts(found[_HASH].to_numpy())[: self.rows_max]))

    def merge(self, other: Examples) -> None:
        for kind, found in other.found.items():
            self.add(kind, found[_HASH].to_numpy(), found.drop_columns([_HASH]))

    def table(self, key_names: list[str]) -> pa.Table:
        """Return the rows with their kind in the column "what", ordered by kind and input."""
        tables = []
        for kind, found in sorted(self.found.items()):
            rows = found.drop_columns([_HASH]).sort_by("row")
            tables.append(rows.add_column(0, "what", pa.array([kind] * len(rows), pa.string())))
        if not tables:
            return pa.table({name: pa.nulls(0, pa.int64()) for name in ("what", *key_names, "seq", "row", "kept_row")})
        return pa.concat_tables(tables, promote_options="permissive")


def _firsts(ordered: Hashes) -> Numbers:
    """Return the first index of each hash."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.empty(0, np.int64)
