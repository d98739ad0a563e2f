"""Deduplicates, audits and explains rows in memory with one function call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost import _native
from fencepost._native import StateTable
from fencepost.errors import DependencyError, FencepostError, PolicyError
from fencepost.findings import ADVICE_ROWS, RESET_ROWS_MIN, AuditReport, check_reset_rows_min
from fencepost.inputs import fields_read, is_a, opened
from fencepost.policy import Columns, Policy, difference, resolve, resolve_columns

if TYPE_CHECKING:
    from fencepost.advice import Advice

SEEN = (
    "The table may count the rows of this call as seen already, so a repeated call would drop them. Restore its last "
    "snapshot before you repeat the call"
)


def deduplicate(
    rows: Any,
    policy: str | Policy | None = None,
    columns: Columns | str | None = None,
    table: StateTable | None = None,
) -> Any:
    """Return the rows to keep (ACCEPTED or UNTRACKED), in their input order.

    Args:
        rows: Any tabular data that ``StateTable.apply`` accepts, a polars LazyFrame, or a pyarrow Dataset or Scanner.
        policy: The name of a preset or a Policy. Default: the table's policy, or "any_order" without a table.
        columns: The columns that hold the identity: a Columns or the name of a preset (``Columns.preset``). Default:
            the policy's columns. ``payload.device`` names a field of the struct column ``payload``.
        table: The state from earlier calls. The call updates it. Without a table, calls are independent of each other
            and may use all cores, up to eight.

    Returns:
        The input's type for pyarrow (Table and RecordBatch), polars and pandas DataFrames. A polars DataFrame for a
        LazyFrame, a pyarrow Table for a reader, Dataset or Scanner. For other input, an object with a length that
        supports Arrow's PyCapsule protocol: ``pyarrow.table(result)``.

    Raises:
        PolicyError: ``policy`` and ``table`` disagree.
        FencepostError: Any error of ``StateTable.apply``.
        KeyboardInterrupt, MemoryError: May come after the update of the table, and then have a note: a repeated call
            would drop the rows. Restore the table's last snapshot first.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.deduplicate(rows)["seq"].to_list()
    [0, 1]
    """
    is_last = table is None
    if table is None:
        table = StateTable("any_order" if policy is None else policy)
    _check_same_policy(policy, table)
    columns = None if columns is None else resolve_columns(table.policy, columns)
    names = (columns or table.policy.columns).read(table.keep)
    rows = opened(rows)
    try:
        return _kept_rows(rows, names, columns, table, is_last=is_last)
    except (FencepostError, NotImplementedError, TypeError):  # before any change, also if no filter supports a column
        raise
    except BaseException as error:
        if not is_last:
            error.add_note(SEEN)
        raise


def _kept_rows(rows: Any, names: Sequence[str], columns: Columns | None, table: StateTable, *, is_last: bool) -> Any:
    """Return the rows to keep. An error after the table was updated, such as Ctrl-C, loses them."""
    if is_a(rows, "pyarrow", "RecordBatchReader"):
        rows = rows.read_all()
    if is_a(rows, "pyarrow", "Table") or is_a(rows, "pyarrow", "RecordBatch"):
        import pyarrow as pa

        # pyarrow cannot filter every type. After the update of the table, an error would lose the rows.
        whole = None if _can_filter(rows) else _native.collect(rows)
        kept = table._keep(fields_read(rows, names, rows.schema.names), columns, is_last)
        if whole is None:
            return rows.filter(pa.array(kept))
        filtered = pa.table(_native.filter_rows(whole, kept))
        if is_a(rows, "pyarrow", "Table"):
            return filtered
        return (filtered.combine_chunks().to_batches() or [rows.slice(0, 0)])[0]
    if is_a(rows, "polars", "DataFrame"):
        import polars as pl

        return rows.filter(pl.Series(table._keep(fields_read(rows, names, rows.columns), columns, is_last)))
    if is_a(rows, "pandas", "DataFrame"):
        import numpy as np

        # pandas cannot filter every type, nor every column of some types: fail before the table is updated.
        rows[np.zeros(len(rows), bool)]
        return rows[np.asarray(table._keep(fields_read(rows, names, rows.columns), columns, is_last))]
    rows = _native.collect(rows)
    return _native.filter_rows(rows, table._keep(fields_read(rows, names, rows.column_names), columns, is_last))


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
    """Report duplicates, missing rows, rows of replaced epochs, and the producers they belong to.

    Args:
        rows: As in `deduplicate`. A stream is read in pieces and never held in memory as a whole.
        policy: As in `deduplicate`.
        columns: As in `deduplicate`. Timestamps are read if the table keeps them; without a table, if the columns name
            a timestamp column. Suspected resets are searched only if timestamps are read.
        table: The state from earlier calls. The audit works on a copy and does not change it.
        producers_max: Length of the lists of top producers.
        reset_rows_min: A key is suspected of a reset from this number of repeats that cannot be copies, by their
            timestamp (``AuditReport.suspected_resets``).
        compare_content: Compare each repeat with the row it repeats: True for all columns outside the identity, or the
            columns to compare. A repeat that differs is a CONFLICT. ``fencepost.content`` defines equality. Needs 24
            bytes of memory per kept row and 8 bytes per row.

    Returns:
        An AuditReport.

    Raises:
        PolicyError: ``policy`` and ``table`` disagree.
        ValueError: ``reset_rows_min`` is below 1.
        DependencyError: pyarrow or numpy is not installed.
        FencepostError: Any error of ``StateTable.apply``.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.audit(rows).count_findings()
    {'duplicate': 1}
    """
    check_reset_rows_min(reset_rows_min)
    try:
        from fencepost.auditor import audit_rows
        from fencepost.content import columns_to_compare
    except ModuleNotFoundError as problem:
        raise DependencyError.of_import(problem) from problem
    columns, table = _copied(policy, columns, table)
    return audit_rows(rows, columns, table, producers_max, reset_rows_min, columns_to_compare(compare_content))


def explain(
    rows: Any,
    policy: str | Policy | None = None,
    columns: Columns | str | None = None,
    table: StateTable | None = None,
) -> Any:
    """Return the rows with three more columns: verdict, kept_row and reason.

    ``kept_row`` is the number of the row that a repeat repeats, or null if that row is not part of the input.

    Args:
        rows: As in `audit`.
        policy: As in `audit`.
        columns: As in `audit`.
        table: The state from earlier calls. The call does not change it.

    Returns:
        A polars or pandas DataFrame for such input, otherwise a pyarrow Table.

    Raises:
        BatchError: The input already has a column named verdict, kept_row or reason.
        FencepostError: Any error of `audit`.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"pid": [7, 7, 7], "epoch": [0, 0, 0], "partition": [0, 0, 0], "seq": [0, 1, 1]})
    >>> fp.explain(rows).filter(verdict="DUPLICATE").select("seq", "kept_row", "reason").rows()
    [(1, 1, 'repeats row 1')]
    """
    try:
        from fencepost.explained import explain_rows
    except ModuleNotFoundError as problem:
        raise DependencyError.of_import(problem) from problem
    columns, table = _copied(policy, columns, table)
    return explain_rows(rows, columns, table)


def advise(
    rows: Any, columns: Columns | str | Mapping[str, Any] | None = None, *, rows_max: int | None = ADVICE_ROWS
) -> Advice:
    """Recommend a policy, columns and retention for rows, and show what each policy does with them.

    Args:
        rows: As in `deduplicate`.
        columns: The columns that hold the identity. Missing roles are detected by column name; a mapping may name some
            roles only (``{"pid": "device"}``).
        rows_max: Number of rows to read, from the beginning. None reads all rows.

    Returns:
        An Advice: the recommendation with its evidence.

    Raises:
        PolicyError: No column looks like a sequence number or a producer.
        DependencyError: pyarrow or numpy is not installed.
        FencepostError: Any error of ``StateTable.apply``.

    >>> import fencepost as fp, polars as pl
    >>> rows = pl.DataFrame({"device": ["a", "a", "a"], "counter": [1, 2, 2]})
    >>> print(fp.advise(rows).command)
    fencepost dedup SOURCE STATE CLEAN --set epochs=ignore --pid device --no-partition --seq counter
    """
    try:
        from fencepost import advice
    except ModuleNotFoundError as problem:
        raise DependencyError.of_import(problem) from problem
    return advice.advise(rows, columns, rows_max=rows_max)


def _copied(
    policy: str | Policy | None, columns: Columns | str | None, table: StateTable | None
) -> tuple[Columns, StateTable]:
    """Return the columns to read, and a table that the caller may update."""
    rules = resolve(policy) if policy is not None else table.policy if table is not None else resolve("any_order")
    columns = resolve_columns(rules, columns)
    if table is None:
        return columns, StateTable(rules, keep=columns.kept)
    _check_same_policy(policy, table)
    return columns, StateTable.restore(table.snapshot())


def _can_filter(rows: Any) -> bool:
    """Return whether pyarrow can filter the rows of a Table or RecordBatch."""
    import pyarrow as pa

    usual = (pa.types.is_primitive, pa.types.is_string, pa.types.is_large_string)
    if all(any(is_usual(kind) for is_usual in usual) for kind in rows.schema.types):
        return True  # without a trial, which would double the time of a small call
    first = rows.slice(0, 1)
    try:
        first.filter(pa.array([True] * len(first), pa.bool_()))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _check_same_policy(policy: str | Policy | None, table: StateTable) -> None:
    if policy is not None and resolve(policy) != table.policy:
        differing = difference(table.policy, resolve(policy))
        raise PolicyError(f"the table has another policy: {differing}. Leave out the policy to use that of the table")
