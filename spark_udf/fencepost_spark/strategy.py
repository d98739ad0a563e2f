"""Deduplicates a DataFrame, by the strategy that suits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from fencepost import Columns, Policy
from fencepost.verdict import Verdict
from fencepost.words import plural
from pyspark.sql import DataFrame, functions

from fencepost_spark.frames import Call, Order, judge, unused_name
from fencepost_spark.versions import use_driver_python

if TYPE_CHECKING:
    from fencepost_spark.plain_scan import PlainScan


def deduplicate(
    df: DataFrame,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    order_by: Order | Sequence[Order] | None = None,
    co_located: bool = False,
    verify: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> DataFrame:
    """Return the rows of ``df`` to keep (ACCEPTED or UNTRACKED), with its columns. Lazy, like any transformation.

    Each run is independent and keeps no state (``DedupJob`` does).

    By default, rows are shuffled by key (pid, partition), to as many tasks as Spark chooses for an aggregation. Each
    task sorts them by key, by ``order_by`` (default: seq and epoch) and then by all other columns. It keeps the first
    copy in that order. The result depends on the rows only and is the same in every action and retried task.

    Over a plain scan of Parquet files, and if the policy does not depend on the order, the same rows are kept without
    this shuffle: tasks read the identity columns from the files (docs/dataframes.md). ``choose_strategy`` tells
    whether that applies. A file that changed since this call fails the query.

    With ``co_located=True`` nothing is shuffled. Without ``order_by``, each task judges its rows as they come and keeps
    the first copy. A file that is split among several tasks fails the query with an error. Not detected are keys that
    occur in two *whole* files of two tasks, keys that your own shuffle has spread, and keys in DataFrames that are not
    read from files. ``verify=True`` detects them.

    Args:
        df: A DataFrame.
        policy: The name of a preset or a Policy.
        columns: The identity columns: a Columns or the name of a preset. A name that no column has can be the path of a
            field in struct columns, such as ``payload.seq``.
        order_by: One or several columns that define the order of arrival, such as an offset. Required by policies whose
            verdicts depend on the order. Verdicts do not depend on the order under policies with ``admit="any"``, at
            least 2^31 sequence numbers, no ``max_jump``, no ``reach`` and epochs that do not fence. Rows that are equal
            in ``order_by`` are ordered by epoch and seq.
        co_located: All rows of a key are already in one task, in order.
        verify: With ``co_located``, read the identity columns at once and refuse a key that is in two tasks. This runs
            a query of its own and checks the layout in that query. If adaptive execution may choose another layout in
            your query (a join that splits skewed partitions), persist the DataFrame first. Without ``co_located`` there
            is nothing to verify.
        untracked: As in ``StateTable``.

    Raises:
        BatchError: Immediately, for a missing column, a wrong type, or a key that ``verify`` refuses. In a task, an
            invalid row fails the query with a message that names column, row and value.
        PolicyError: Contradictory arguments or settings, or an identity or order that is not deterministic (not
            detectable on Spark Connect).
        TypeError: ``df`` is not a Spark DataFrame.
    """
    call = Call.of(df, policy, columns, order_by, co_located, untracked)
    use_driver_python(df.sparkSession)
    if not co_located and (scan := _find_plain_scan(call)[0]) is not None:
        from fencepost_spark.copies import deduplicate_scan

        return deduplicate_scan(call, scan)
    verdict = unused_name(df, "verdict")
    judged = judge(call, verify, verdict)
    return judged.where(functions.col(verdict).isin(int(Verdict.ACCEPTED), int(Verdict.UNTRACKED))).drop(verdict)


class Strategy(NamedTuple):
    """How ``deduplicate`` processes a DataFrame."""

    name: Literal["files", "shuffle", "co_located"]
    reason: str


def choose_strategy(
    df: DataFrame,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    order_by: Order | Sequence[Order] | None = None,
    co_located: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> Strategy:
    """Return how ``deduplicate`` with these arguments processes the DataFrame, and why. Runs no query.

    | name | meaning |
    |---|---|
    | "files" | Tasks read the identity columns from Parquet files. Only rows with copies are shuffled. |
    | "shuffle" | All rows are shuffled. |
    | "co_located" | Nothing is shuffled. |

        >>> choose_strategy(spark.read.parquet("events").where("pid > 7"))
        Strategy(name='shuffle', reason='the plan of the frame is not a plain scan of files, it has a Filter')

    Raises the immediate errors of ``deduplicate``.
    """
    call = Call.of(df, policy, columns, order_by, co_located, untracked)
    if co_located:
        return Strategy("co_located", "asked for")
    scan, reason = _find_plain_scan(call)
    return Strategy("shuffle" if scan is None else "files", reason)


def _find_plain_scan(call: Call) -> tuple[PlainScan | None, str]:
    """Return the files that are scanned if the DataFrame is a plain scan, and the reason."""
    from fencepost_spark.plain_scan import NotPlainError, plain_scan

    of_struct = next((it.name for it in call.fields.values() if it.name not in call.df.schema.names), None)
    if of_struct is not None:
        return None, f"'{of_struct}' is a field of a struct column"
    try:
        scan = plain_scan(call)
    except NotPlainError as problem:
        return None, str(problem)
    return (
        scan,
        f"it reads {plural(len(scan.files), 'Parquet file')} with {plural(scan.rows, 'row')}, and nothing else",
    )
