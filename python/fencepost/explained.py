"""Adds the verdict on each row and its reason to the rows.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencepost._native import StateTable
from fencepost.auditor import identity, pieces
from fencepost.errors import BatchError
from fencepost.inputs import frame_package, opened
from fencepost.policy import Columns, Policy
from fencepost.verdict import Verdict

ADDED = ("verdict", "kept_row", "reason")
REASONS = {
    Verdict.ACCEPTED: "new",
    Verdict.DUPLICATE: "repeats a row that was accepted before",
    Verdict.OUT_OF_ORDER: "neither new nor known to be a repeat under this policy",
    Verdict.FENCED: "of an epoch that a higher one has replaced",
    Verdict.UNTRACKED: "has no producer",
    Verdict.FORGOTTEN: "older than what is still remembered",
}
"""The reason for each verdict (`reasons`). A repeat whose first row has a number names it instead."""


def reasons(policy: Policy) -> dict[Verdict, str]:
    """Return the reason for each verdict of a policy."""
    if policy.takes_late_for_repeats:
        return REASONS | {Verdict.DUPLICATE: "not above the highest number, so it counts as a repeat"}
    return REASONS


def explain_rows(rows: Any, columns: Columns, table: StateTable) -> Any:
    """Implement `fencepost.explain`. Updates `table`."""
    rows = opened(rows)
    package = frame_package(rows)
    if package is None and not isinstance(rows, pa.Table):
        # A stream can be read once, and a query may return its rows in another order the next time.
        rows = pa.concat_tables(pieces(rows, (), is_whole=True))
    whole = pa.concat_tables(pieces(rows, columns.read(table.keep)))
    codes = np.asarray(pa.array(table.apply(whole, columns).verdict))
    kept = _kept_rows(identity(whole, columns), codes)
    found = {
        "verdict": _texts({it: it.name for it in Verdict}, codes),
        "kept_row": kept,
        "reason": _with_rows(_texts(reasons(table.policy), codes), kept),
    }
    return _joined(rows, package, found)


def _kept_rows(rows: pa.Table, codes: npt.NDArray[np.uint8]) -> pa.Array:
    """Return for each repeat the last accepted row of the same identity before it in this call, or null."""
    is_known = np.isin(codes, (Verdict.ACCEPTED, Verdict.DUPLICATE))
    places = np.flatnonzero(is_known)
    groups = np.zeros(len(places), np.int64)
    for column in rows.filter(pa.array(is_known)).columns:
        values = pc.fill_null(column.combine_chunks().dictionary_encode().indices, -1).to_numpy(zero_copy_only=False)
        groups = np.unique(groups * (int(values.max(initial=0)) + 2) + values + 1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(groups, kind="stable")
    is_accepted = codes[places][order] == Verdict.ACCEPTED
    # A running maximum over all groups; `is_own` excludes rows of another group.
    newest = np.maximum.accumulate(np.where(is_accepted, np.arange(len(order)), -1)) if len(order) else order
    is_own = (newest >= 0) & (groups[order][newest] == groups[order])
    found = np.full(len(codes), -1)
    found[places[order]] = np.where(is_own, places[order][newest], -1)
    return pa.array(found, mask=(found < 0) | (codes != Verdict.DUPLICATE))


def _with_rows(texts: pa.Array, kept: pa.Array) -> pa.Array:
    """Return the reasons, with the number of the row that a repeat repeats."""
    known = pc.binary_join_element_wise("repeats row ", kept.cast(pa.string()), "")
    return pc.if_else(kept.is_valid(), known, texts)


def _texts(texts: dict[Verdict, str], codes: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.array([texts.get(it, "") for it in Verdict], pa.string()).take(pa.array(codes))


def _joined(rows: Any, package: str | None, found: dict[str, pa.Array]) -> Any:
    """Return the rows with these columns added, in the input's type if that is a DataFrame."""
    for name in found:
        if name in (rows.column_names if package is None else rows.columns):
            raise BatchError(f"column '{name}': the rows already have a column of this name; rename it", column=name)
    if package == "polars":
        import polars as pl

        return rows.with_columns(pl.Series(name, values) for name, values in found.items())
    if package == "pandas":
        return rows.assign(**{name: values.to_pandas().array for name, values in found.items()})
    for name, values in found.items():
        rows = rows.append_column(name, values)
    return rows
