"""Adds the verdict on each row of a DataFrame, and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fencepost import BatchError, Columns, Policy
from fencepost.explained import reasons
from fencepost.verdict import Verdict
from pyspark.sql import Column, DataFrame, functions

from fencepost_spark.frames import Call, Order, judge, unused_name
from fencepost_spark.versions import use_driver_python

ADDED = ("verdict", "reason")


def explain(
    df: DataFrame,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    order_by: Order | Sequence[Order] | None = None,
    co_located: bool = False,
    verify: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> DataFrame:
    """Return all rows of ``df`` with two more columns: verdict (a name such as "DUPLICATE") and reason. Lazy.

    The rows with the verdicts ACCEPTED and UNTRACKED are those that ``deduplicate`` keeps with the same arguments. All
    rows are shuffled and sorted by key (unless ``co_located``), so verdicts are the same in every action and retried
    task.

        >>> explain(events).where("verdict = 'DUPLICATE'").groupBy("pid").count()

    There is no ``kept_row`` as in ``fencepost.explain``, because rows of a DataFrame have no numbers. The row that a
    repeat repeats has the same identity and the verdict ACCEPTED.

    Args:
        df: As in ``deduplicate``.
        policy: As in ``deduplicate``.
        columns: As in ``deduplicate``.
        order_by: As in ``deduplicate``.
        co_located: As in ``deduplicate``.
        verify: As in ``deduplicate``.
        untracked: As in ``deduplicate``.

    Raises:
        BatchError: ``df`` already has a column named verdict or reason; or as in ``deduplicate``.
        PolicyError: As in ``deduplicate``.
        TypeError: ``df`` is not a Spark DataFrame.
    """
    call = Call.of(df, policy, columns, order_by, co_located, untracked, function="explain")
    taken = next((name for name in df.columns if name.lower() in ADDED), None)
    if taken is not None:
        raise BatchError(f"column '{taken}': the DataFrame already has a column of this name; rename it", column=taken)
    use_driver_python(df.sparkSession)
    code = unused_name(df, "code")
    names = _text({it: it.name for it in Verdict}, code).alias("verdict")
    return judge(call, verify, code).select("*", names, _text(reasons(call.rules), code).alias("reason")).drop(code)


def _text(texts: dict[Verdict, str], code: str) -> Column:
    """Return the text of each code of a column."""
    return functions.element_at(
        functions.array(*(functions.lit(texts.get(it, "")) for it in Verdict)), functions.col(code) + functions.lit(1)
    )
