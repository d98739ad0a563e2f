"""Each row's verdict as a column: a UDF over the identity columns only, so that payloads stay in the JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from fencepost import BatchError, Columns, Policy, PolicyError, StateTable, Verdicts
from fencepost.policy import resolve, resolve_columns
from pyspark.sql import SparkSession, functions
from pyspark.taskcontext import TaskContext

from fencepost_spark.versions import __version__, use_driver_python

ACCEPTED = 0
INEXACT_FLOAT_MIN = 2**53  # 2^53 + 1 rounds to it, too
DETAIL = pa.struct([("verdict", pa.int8()), ("missing_from", pa.int64()), ("missing_to", pa.int64())])
DETAIL_DDL = "struct<verdict: tinyint, missing_from: bigint, missing_to: bigint>"


def verdict_udf(
    policy: str | Policy = "any_order",
    *,
    co_located: bool,
    columns: Columns | str | None = None,
    kind: Literal["arrow", "pandas"] = "arrow",
    detail: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> Any:
    """Return a UDF that judges rows in the order in which its task sees them, with a new state for each task.

    Pass the identity columns in the order of ``policy.columns.names``, composite keys expanded: pid, epoch (if the
    policy uses epochs), partition, seq:

        verdict = verdict_udf("any_order", co_located=True)
        df.withColumn("verdict", verdict("pid", "epoch", "partition", "seq")).where("verdict in (0, 6)")

    The UDF is non-deterministic, and each call returns a new one: Spark must not evaluate it twice or move a filter
    below it. It does not run if nothing uses its column, as in ``count()``.

    Args:
        policy: The name of a preset or a Policy.
        co_located: Must be True: you assert that all rows of a key are in one task, in order. The UDF cannot check
            this; ``deduplicate`` can.
        columns: A Columns or the name of a preset. Defines the number of parts of pid and partition, and names columns
            in errors.
        kind: "arrow" (PySpark 4.1 and later) or "pandas" (also 4.0).
        detail: Return structs; see below.
        untracked: As in ``StateTable``.

    Returns:
        A UDF of type tinyint: a ``fencepost.Verdict`` code per row, never null. With ``detail`` a struct of verdict,
            missing_from and missing_to (bigint): the sequences that an ACCEPTED row skipped and that had not arrived by
            the end of its Arrow batch, otherwise null. Verdicts do not depend on Spark's batch boundaries. But the
            boundaries decide whether a hole is listed if a later row closes it.

    Raises:
        PolicyError: Invalid policy or columns, or ``co_located`` is not True. In a task, any error of
            ``StateTable.apply`` fails the query with a message that names column, row and value.
    """
    if co_located is not True:
        raise PolicyError(
            "verdict_udf needs co_located=True: each task judges with its own state, so the verdicts are "
            "right only if all rows of a (pid, partition) are in one task, in order. deduplicate() ensures "
            "that"
        )
    rules = resolve(policy)
    mapped = resolve_columns(rules, columns)
    check_settings(SparkSession.getActiveSession())
    use_driver_python(SparkSession.getActiveSession())
    result = DETAIL_DDL if detail else "tinyint"
    options = {"policy": rules, "columns": mapped, "detail": detail, "untracked": untracked}
    StateTable(rules, untracked=untracked)  # raise errors on the driver and not in a task
    if kind == "arrow":
        return _arrow_udf(_in_worker("judge_arrays", options), result)
    if kind == "pandas":
        return _pandas_udf(_in_worker("judge_series", options), result)
    raise PolicyError(f"kind={kind!r}: expected 'arrow' or 'pandas'")


def has_arrow_udf() -> bool:
    """Return whether this PySpark supports Arrow UDFs: 4.1 and later."""
    return hasattr(functions, "arrow_udf")


def check_settings(spark: SparkSession | None) -> None:
    """Raise an error for settings under which Spark never finishes.

    Unbounded Arrow batches together with columnar input (PySpark 4.2 and later) loop forever in the JVM.
    """
    if spark is None:
        return
    rows = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    columnar = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
    if rows <= 0 and spark.conf.isModifiable(columnar) and spark.conf.get(columnar) == "true":
        raise PolicyError(
            f"spark.sql.execution.arrow.maxRecordsPerBatch={rows} with columnar input makes Spark loop "
            f"endlessly: set it above 0, or {columnar} to false"
        )


def _in_worker(judge: str, options: dict[str, Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    driver = __version__
    # Imported and unpickled after the comparison of versions, so that a worker of another version reaches it.
    pickled = pickle.dumps(options)

    def judge_in_worker(batches: Iterator[Any]) -> Iterator[Any]:
        from fencepost_spark.versions import check_worker

        check_worker(driver)
        from fencepost_spark import verdicts

        yield from getattr(verdicts, judge)(batches, **pickle.loads(pickled))

    return judge_in_worker


def _arrow_udf(judge: Callable[[Iterator[Any]], Iterator[Any]], result: str) -> Any:
    if not has_arrow_udf():
        raise PolicyError("kind='arrow' needs PySpark 4.1 or later; pass kind='pandas'")
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark recognizes the kind of a UDF by these annotations.
    judge.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return arrow_udf(judge, result).asNondeterministic()  # type: ignore[call-overload]


def _pandas_udf(judge: Callable[[Iterator[Any]], Iterator[Any]], result: str) -> Any:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.pandas.functions import pandas_udf

    judge.__annotations__ = {
        "batches": Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.Series] if result == "tinyint" else Iterator[pd.DataFrame],
    }
    return pandas_udf(judge, result).asNondeterministic()  # type: ignore[call-overload]


def judge_arrays(
    batches: Iterator[tuple[pa.Array, ...]], policy: Policy, columns: Columns, detail: bool, untracked: str
) -> Iterator[pa.Array]:
    """Judge batches in a task: identity columns in, an array of int8 (or of DETAIL) of the same length out."""
    # Created here, so that a retried task and a reused worker process start with an empty table.
    table = StateTable(policy, untracked=untracked)
    rows_before = 0
    for arrays in batches:
        if len(arrays) != len(columns.names):
            raise BatchError(
                f"the UDF takes {', '.join(columns.names)} in this order, but {len(arrays)} columns were passed"
            )
        rows = dict(zip(columns.names, arrays, strict=True))
        try:
            verdicts = table.apply(rows, columns)
        except BatchError as error:
            raise _in_task(error, rows_before, rows) from error
        rows_before += len(arrays[0])
        codes = pa.array(verdicts.verdict).view(pa.int8())
        yield _with_missing(codes, verdicts, rows, policy, columns) if detail else codes


def judge_series(batches: Iterator[tuple[Any, ...]], columns: Columns, detail: bool, **options: Any) -> Iterator[Any]:
    """As `judge_arrays` for pandas: series in, a series (or a DataFrame with the columns of DETAIL) out."""
    import pandas as pd

    arrays = (tuple(map(_from_series, series, columns.names)) for series in batches)
    for judged in judge_arrays(arrays, columns=columns, detail=detail, **options):
        if detail:
            fields = {field.name: judged.field(field.name) for field in DETAIL}
            yield pd.DataFrame({name: array.to_pandas(types_mapper=_nullable) for name, array in fields.items()})
        else:
            yield judged.to_pandas()


def _nullable(kind: pa.DataType) -> Any:
    import pandas as pd

    return pd.Int64Dtype() if kind == pa.int64() else None


def _from_series(series: Any, name: str) -> pa.Array:
    """Return the Arrow array from which Spark made the series.

    Integers beside nulls were converted to floats, even if they arrive as Int64. They are exact below 2^53. Larger ones
    raise an error and are never guessed. Fractions remain, and the table refuses them.
    """
    array = pa.Array.from_pandas(series)
    if array.null_count == 0 or array.type not in (pa.float64(), pa.int64()) or series.dtype == object:
        return array
    if (pc.max(pc.abs(array)).as_py() or 0) >= INEXACT_FLOAT_MIN:
        raise BatchError(
            f"column '{name}': pandas cannot represent integers of 2^53 and above exactly in a column with nulls; use "
            "kind='arrow'",
            column=name,
        )
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:
        return array


def _in_task(error: BatchError, rows_before: int, rows: dict[str, pa.Array]) -> BatchError:
    """Return the error with the row's values and its number within the task; its number within an Arrow batch is no
    help."""
    if error.row is None:
        return error
    context = TaskContext.get()
    place = "" if context is None else f" of Spark partition {context.partitionId()}"
    found = ", ".join(f"{name}={values[error.row].as_py()!r}" for name, values in rows.items())
    row = rows_before + error.row
    message = error.message.replace(f"row {error.row}:", f"row {row}:", 1)
    return BatchError(f"{message} (row {row}{place}; {found})", column=error.column, row=row)


def _with_missing(
    codes: pa.Array, verdicts: Verdicts, rows: dict[str, pa.Array], policy: Policy, columns: Columns
) -> pa.Array:
    """Return the verdicts with the hole that each row opened: an array of DETAIL.

    The row above each hole of the call is an ACCEPTED row whose sequence follows the hole. Few rows have such a
    sequence, so only those are checked one by one.
    """
    holes = pa.table(verdicts.missing)
    missing_from: list[int | None] = [None] * len(codes)
    missing_to: list[int | None] = [None] * len(codes)
    if holes.num_rows:
        above = _rows_above(holes, policy, columns)
        seqs = pa.array([seq for *_, seq in above], pa.int64())
        is_above = pc.and_(pc.equal(codes, ACCEPTED), pc.is_in(rows[columns.seq].cast(pa.int64()), seqs))
        places = pc.indices_nonzero(is_above)
        names = (*columns.parts("pid"), *columns.parts("partition"), *filter(None, (columns.epoch,)), columns.seq)
        identities = zip(*(rows[name].take(places).to_pylist() for name in names), strict=True)
        for place, identity in zip(places.to_pylist(), identities, strict=True):
            missing_from[place], missing_to[place] = above.get(identity, (None, None))
    arrays = [codes, pa.array(missing_from, pa.int64()), pa.array(missing_to, pa.int64())]
    return pa.StructArray.from_arrays(arrays, fields=list(DETAIL))


def _rows_above(holes: pa.Table, policy: Policy, columns: Columns) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Map the identity (pid, partition, epoch, seq) of the row above each hole to its first and last sequence."""
    roles = ("pid", *(["partition"] if columns.partition else []), *(["epoch"] if columns.epoch else []))
    names = [name for role in roles for name in holes.column_names if name.startswith(role)]
    keys = zip(*(holes[name].to_pylist() for name in names), strict=True)
    ends = zip(holes["first_seq"].to_pylist(), holes["last_seq"].to_pylist(), strict=True)
    return {
        (*key, last + 1 if policy.wrap is None else (last + 1) % policy.wrap): (first, last)
        for key, (first, last) in zip(keys, ends, strict=True)
    }
