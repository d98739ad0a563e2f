"""The one-liners: rows in, the rows to keep out; rows in, a report on them out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost import _native
from fencepost._native import StateTable
from fencepost.errors import FencepostError, PolicyError
from fencepost.findings import ADVICE_ROWS, RESET_ROWS_MIN, AuditReport, check_reset_rows_min
from fencepost.policy import Columns, Policy, difference, resolve, resolve_columns

if TYPE_CHECKING:
    from fencepost.advice import Advice


def deduplicate(
    rows: Any,
    policy: str | Policy | None = None,
    columns: Columns | str | None = None,
    table: StateTable | None = None,
) -> Any:
    """The rows to keep, in their order: those judged ACCEPTED or UNTRACKED.

    ``rows``: anything tabular, see ``StateTable.apply``. ``policy``: a preset name or a Policy, "any_order" unless a
    table is given. ``columns``: which hold the identity, a Columns or the name of a preset (``Columns.preset``), the
    policy's unless given. ``table``: what is already known,
    and is advanced; without one each call stands alone.

    Gives back the kind that came in for pyarrow (Table, RecordBatch; a Table for a reader), polars and pandas
    DataFrames; an Arrow table by the PyCapsule protocol for anything else.

    Raises what ``StateTable.apply`` raises, and PolicyError where policy and table disagree.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.deduplicate(rows)["seq"].to_list()
    [0, 1]
    """
    if table is None:
        table = StateTable("any_order" if policy is None else policy)
    _check_same_policy(policy, table)
    columns = None if columns is None else resolve_columns(table.policy, columns)
    if _is_a(rows, "pyarrow", "RecordBatchReader"):
        rows = rows.read_all()
    if _is_a(rows, "pyarrow", "Table") or _is_a(rows, "pyarrow", "RecordBatch"):
        import pyarrow as pa

        kept = table.apply(rows, columns).kept
        try:
            return rows.filter(pa.array(kept))
        except pa.ArrowNotImplementedError:
            # pyarrow cannot filter every type; the table has advanced, so the rows must come out.
            filtered = pa.table(_native.filter_rows(_native.collect(rows), kept))
            if _is_a(rows, "pyarrow", "Table"):
                return filtered
            return (filtered.combine_chunks().to_batches() or [rows.slice(0, 0)])[0]
    if _is_a(rows, "polars", "DataFrame"):
        import polars as pl

        return rows.filter(pl.Series(table.apply(rows, columns).kept))
    if _is_a(rows, "pandas", "DataFrame"):
        import numpy as np

        # Only these: pandas would convert every column, and could not convert some.
        names = (columns or table.policy.columns).read(table.keep)
        is_complete = set(names) <= set(rows.columns)
        identity = rows.loc[:, [name in names for name in rows.columns]] if is_complete else rows
        return rows[np.asarray(table.apply(identity, columns).kept)]
    rows = _native.collect(rows)
    return _native.filter_rows(rows, table.apply(rows, columns).kept)


def audit(
    rows: Any,
    policy: str | Policy | None = None,
    columns: Columns | str | None = None,
    table: StateTable | None = None,
    *,
    producers_max: int = 10,
    reset_rows_min: int = RESET_ROWS_MIN,
    compare_content: bool | Sequence[str] = False,
) -> AuditReport:
    """What the rows say about their producers: what is missing, came twice or from a replaced epoch, and who sent it.

    ``rows``, ``policy``, ``columns``: as in `deduplicate`; a stream is read piece by piece and not collected.
    ``table``: what is already known; it is *not* advanced, a copy of it is. Timestamps are read where ``columns`` (or
    the policy's) name their column, or the table keeps them; only then are suspected resets looked for.
    ``producers_max``: how many of the top producers are listed. ``reset_rows_min``: a key is suspected from so many
    repeats on that carry another timestamp than the row they repeat (``AuditReport.suspected_resets``).
    ``compare_content``: compare each repeat with the row it repeats, True for all columns but those of the identity, or
    the columns to compare; one that differs is a CONFLICT. What is equal is said in ``fencepost.content``. That takes
    24 bytes a kept row and 8 a row.

    Needs pyarrow and numpy, and raises FencepostError where they are not installed; else what ``StateTable.apply``
    raises, PolicyError where policy and table disagree, and ValueError for ``reset_rows_min`` below 1.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.audit(rows).found()
    {'duplicate': 1}
    """
    check_reset_rows_min(reset_rows_min)
    try:
        from fencepost.auditor import CALL_ROWS, audit_rows
        from fencepost.content import columns_to_compare
    except ModuleNotFoundError as problem:
        raise _missing(problem) from problem
    columns, table = _copied(policy, columns, table)
    return audit_rows(
        rows, columns, table, producers_max, CALL_ROWS, reset_rows_min, columns_to_compare(compare_content)
    )


def explain(
    rows: Any,
    policy: str | Policy | None = None,
    columns: Columns | str | None = None,
    table: StateTable | None = None,
) -> Any:
    """The rows with three more columns: verdict, kept_row (the row that a repeat repeats, if it is one of these rows)
    and reason.

    Arguments as in `audit`: ``table`` is *not* advanced. Gives back a polars or pandas DataFrame for one of these, a
    pyarrow Table for anything else.

    Needs pyarrow and numpy, and raises FencepostError where they are not installed; BatchError where the rows have a
    column of one of these names; else what `audit` raises.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.explain(rows).filter(verdict="DUPLICATE").select("seq", "kept_row", "reason").rows()
    [(1, 1, 'repeats row 1')]
    """
    try:
        from fencepost.explained import explain_rows
    except ModuleNotFoundError as problem:
        raise _missing(problem) from problem
    columns, table = _copied(policy, columns, table)
    return explain_rows(rows, columns, table)


def advise(
    rows: Any, columns: Columns | str | Mapping[str, Any] | None = None, *, rows_max: int | None = ADVICE_ROWS
) -> Advice:
    """Recommend a policy, columns and retention for rows, and show what each policy does with them.

    ``rows``: as in `deduplicate`. ``columns``: which hold the identity; what they do not say is found by the names of
    columns, and a mapping may name some roles only (``{"pid": "device"}``).
    ``rows_max``: how many rows are read, from the beginning; None for all.

    Needs pyarrow and numpy, and raises FencepostError where they are not installed; PolicyError where no column looks
    like a sequence number or a producer; else what ``StateTable.apply`` raises.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"device": ["a", "a", "a"], "counter": [1, 2, 2]})
    >>> print(fp.advise(rows).command)
    fencepost dedup SOURCE STATE CLEAN --set epochs=ignore --pid device --no-partition --seq counter
    """
    try:
        from fencepost import advice
    except ModuleNotFoundError as problem:
        raise _missing(problem) from problem
    return advice.advise(rows, columns, rows_max=rows_max)


def _copied(
    policy: str | Policy | None, columns: Columns | str | None, table: StateTable | None
) -> tuple[Columns, StateTable]:
    """The columns, and a table that may be advanced."""
    rules = resolve(policy) if policy is not None else table.policy if table is not None else resolve("any_order")
    columns = resolve_columns(rules, columns)
    if table is None:
        return columns, StateTable(rules, keep=("timestamp",) if columns.timestamp is not None else ())
    _check_same_policy(policy, table)
    return columns, StateTable.restore(table.snapshot())


def _missing(problem: ModuleNotFoundError) -> FencepostError:
    package = str(problem.name).partition(".")[0]
    return FencepostError(f"{package} is not installed: pip install 'fencepost[lake]'")


def _check_same_policy(policy: str | Policy | None, table: StateTable) -> None:
    if policy is not None and resolve(policy) != table.policy:
        raise PolicyError(f"the table is of another policy: {difference(table.policy, resolve(policy))}")


def _is_a(rows: object, package: str, name: str) -> bool:
    """Whether rows are of a class of a package, which is not imported to ask."""
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(rows, kind)
