"""The validated call of a function on a DataFrame, its identity columns, and how its rows are laid out in tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost import BatchError, Columns, Policy, PolicyError, StateTable
from fencepost.policy import resolve, resolve_columns
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegralType, MapType, StringType, StructField, StructType

from fencepost_spark.verdicts import check_settings, has_arrow_udf, verdict_udf

Order = str | Column

UNSORTED = {"map", "variant", "interval"}
"""Types that Spark cannot sort, but can convert to others."""
UNCONVERTED = {"geometry", "geography"}
"""Types that Spark can neither sort nor convert to text."""


@dataclass(frozen=True)
class Call:
    """The validated arguments of ``deduplicate`` or ``explain``."""

    df: DataFrame
    rules: Policy
    columns: Columns
    fields: dict[str, StructField]
    """The identity columns, by their names in `columns`. The name of a field of a struct is its path."""
    order: list[Column]
    co_located: bool
    untracked: Literal["keep", "fail"]

    @classmethod
    def of(
        cls,
        df: DataFrame,
        policy: str | Policy,
        columns: Columns | str | None,
        order_by: Order | Sequence[Order] | None,
        co_located: bool,
        untracked: Literal["keep", "fail"],
        function: str = "deduplicate",
    ) -> Call:
        """Validate the arguments. `function`: the called one, for messages."""
        check_frame(df, f"{function}(df)")
        rules = resolve(policy)
        mapped = resolve_columns(rules, columns)
        check_settings(df.sparkSession)
        order = _as_columns(order_by, df.schema)
        if df.isStreaming:
            raise PolicyError(
                f"{function}() keeps nothing between micro-batches, so it does not accept a streaming DataFrame: "
                "use foreach_batch"
            )
        if not order and rules.depends_on_order:
            raise PolicyError(
                f"the verdicts of this policy ({rules.rules}) depend on the order of the rows, which a DataFrame "
                "does not have: pass order_by, the columns with the order of arrival"
            )
        call = cls(df, rules, mapped, identity_fields(df.schema, rules, mapped), order, co_located, untracked)
        _check_deterministic(df, call.identity, [] if co_located else order)
        return call

    @property
    def identity(self) -> dict[str, Column]:
        """The identity columns by name."""
        return {name: column_of(field.name, self.df.schema) for name, field in self.fields.items()}

    @property
    def arrival(self) -> list[Column]:
        """The order of the rows in a task; empty to keep their order."""
        identity = self.identity
        keys = [identity[name] for name in self.columns.keys]
        after = [identity[name] for name in (self.columns.epoch, self.columns.seq) if name is not None]
        if self.order:
            return [*keys, *self.order, *after]
        return [] if self.co_located else [_place(self.columns, identity), *keys, *after]

    @property
    def order_of_copies(self) -> list[Column]:
        """The order of the rows of an identity. The result depends on the rows only, because all columns decide."""
        return [*self.order, *map(functions.expr, tie_breakers(self.df.schema))]


def judge(call: Call, verify: bool, verdict: str) -> DataFrame:
    """Return the rows of a call, laid out in tasks and ordered, with their codes of verdicts in a column."""
    df, identity = call.df, call.identity
    if call.co_located and verify:
        _check_keys(df, call.columns, identity)
    laid_out = _guard_files(df, is_verified=verify) if call.co_located else _shuffle(df, call.columns, identity)
    arrival = call.arrival
    if arrival:
        laid_out = laid_out.sortWithinPartitions(*arrival, *map(functions.expr, tie_breakers(df.schema)))
    kind: Literal["arrow", "pandas"] = "arrow" if has_arrow_udf() else "pandas"
    verdict_of = verdict_udf(call.rules, co_located=True, columns=call.columns, kind=kind, untracked=call.untracked)
    return laid_out.select("*", verdict_of(*(identity[name] for name in call.columns.names)).alias(verdict))


def check_frame(df: object, what: str) -> None:
    """Raise TypeError if it is not a Spark DataFrame."""
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise TypeError(
            f"{what}: expected a Spark DataFrame, not {kind}: convert it with spark.createDataFrame(df), or "
            "pass tables to the functions of the package fencepost"
        )


def _as_columns(order_by: Order | Sequence[Order] | None, schema: StructType) -> list[Column]:
    if order_by is None:
        return []
    several = [order_by] if isinstance(order_by, str | Column) else order_by
    return [column_of(it, schema) if isinstance(it, str) else it for it in several]


def column_of(name: str, schema: StructType) -> Column:
    """Return the column of that name, which may contain any characters; otherwise the field of a struct column."""
    field = find_field(schema, name)
    is_column = field is None or any(field is it for it in schema)
    return functions.col(quoted(name) if is_column else ".".join(map(quoted, name.split("."))))


def find_field(schema: StructType, name: str) -> StructField | None:
    """Return the column of that name, otherwise the field of a struct column at that path, named by its path.

    Spark resolves names case-insensitively.
    """
    columns = {field.name.lower(): field for field in schema}
    if name.lower() in columns:
        return columns[name.lower()]
    path: list[str] = []
    kind: DataType = schema
    for part in name.split("."):
        fields = {field.name.lower(): field for field in kind} if isinstance(kind, StructType) else {}
        if part.lower() not in fields:
            return None
        path.append(fields[part.lower()].name)
        kind = fields[part.lower()].dataType
    return StructField(".".join(path), kind)


def quoted(name: str) -> str:
    """Return the name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def identity_fields(schema: StructType, policy: Policy, columns: Columns) -> dict[str, StructField]:
    """Return the identity columns, or fields of struct columns, by their names in ``columns``.

    A table judges zero rows of these types to check them before Spark runs anything. Raises BatchError.
    """
    found = {name: find_field(schema, name) for name in columns.names}
    fields = {name: field for name, field in found.items() if field is not None}
    repeated = [name for name, count in Counter(name.lower() for name in schema.names).items() if count > 1]
    if repeated:
        raise BatchError(f"column '{repeated[0]}': occurs twice in the DataFrame; rename one", column=repeated[0])
    others = {name: pa.nulls(0) for name in schema.names}  # for the error about a missing column
    empty = {name: pa.array([], _arrow_type(name, field.dataType)) for name, field in fields.items()}
    StateTable(policy).check(others | empty, columns)
    return fields


def _arrow_type(name: str, kind: DataType) -> pa.DataType:
    if isinstance(kind, IntegralType | StringType | BinaryType):
        return to_arrow_type(kind)
    raise BatchError(
        f"column '{name}': is {kind.simpleString()}; identity columns are integers, pid and partition also strings or "
        "binary",
        column=name,
    )


def _shuffle(df: DataFrame, columns: Columns, identity: dict[str, Column]) -> DataFrame:
    """Shuffle rows so that each key is in one task. Adaptive execution may join partitions, which keeps keys together.

    It never splits those of a repartition by columns. An explicit number would keep 200 tasks by default, however few
    the rows: three times as long for 3 M rows.

    Untracked rows have no key. They are spread by their content, because a hash of their pid would send all of them to
    one task. Random spreading would not do: a retried task must send each row to the same task.
    """
    content = [functions.col(quoted(field.name)) for field in df.schema if is_orderable(field.dataType)]
    if not _is_deterministic(df, content):
        content = list(identity.values())
    spread = functions.when(is_untracked(df, columns, identity), functions.xxhash64(*content))
    return df.repartition(*(identity[name] for name in columns.keys), spread)


def is_untracked(df: DataFrame, columns: Columns, identity: dict[str, Column]) -> Column:
    """Return whether a row has no identity: a part of its pid is null, or -1 if it is a number."""
    untracked = functions.lit(False)
    for name in columns.parts("pid"):
        column = identity[name]
        untracked = untracked | column.isNull()
        if isinstance(df.select(column).schema[0].dataType, IntegralType):
            untracked = untracked | (column == -1)
    return untracked


def is_orderable(kind: DataType) -> bool:
    """Return whether Spark can sort and hash the type. All can except some types, at any nesting level."""
    return not _has_any(kind, UNSORTED | UNCONVERTED)


def _has_any(kind: DataType, names: set[str]) -> bool:
    """Return whether a type is one of these, at any nesting level."""
    inner = [getattr(kind, part, None) for part in ("elementType", "keyType", "valueType")]
    inner += [field.dataType for field in getattr(kind, "fields", [])]
    return kind.typeName() in names or any(_has_any(it, names) for it in inner if it is not None)


def _place(columns: Columns, identity: dict[str, Column]) -> Column:
    """Return key and sequence as one number, for policies that do not depend on the order.

    It must only bring copies together, and the rows of each key. Spark's sort keeps the first number of each row beside
    its pointer and compares rows only if these numbers are equal. A pid is equal in thousands of rows. This number is
    equal only in copies and in collisions of two 32-bit hashes.
    """
    key = functions.xxhash64(*(identity[name] for name in columns.keys))
    seq = identity[columns.seq].cast("long").bitwiseAND(functions.lit(0xFFFF_FFFF))
    return functions.shiftleft(key, 32).bitwiseOR(seq)


def tie_breakers(schema: StructType) -> list[str]:
    """Return SQL expressions of all columns, which Spark can sort: compared only if rows are equal in key and order.

    A shuffle may deliver rows in another order when a task is retried. Without these columns, the retry could keep
    another copy of an identity after the plan above has partly consumed the first one. Rows would then be counted twice
    or not at all. Columns that are converted come last, because the conversion takes time and few copies need it.
    """
    is_converted = {field.name: not is_orderable(field.dataType) for field in schema}
    found = (_sortable(field) for field in sorted(schema, key=lambda it: is_converted[it.name]))
    return [it for it in found if it is not None]


def _sortable(field: StructField) -> str | None:
    """Return a column as a value that Spark can sort, and that differs if the column differs. None if there is none."""
    name, kind = quoted(field.name), field.dataType
    if isinstance(kind, StringType) and kind != StringType():  # other texts may be equal under a collation
        return f"cast({name} as binary)"
    if is_orderable(kind):
        return name
    if isinstance(kind, MapType) and is_orderable(kind.keyType) and is_orderable(kind.valueType):
        return f"map_entries({name})"
    return None if _has_any(kind, UNCONVERTED) else f"to_json(struct({name}))"


def _check_deterministic(df: DataFrame, identity: dict[str, Column], order: list[Column]) -> None:
    """Raise PolicyError for identities or orders that change when a task is retried.

    A row with a random identity could be judged as another one than the kept one, and be lost. The same applies to an
    order that is drawn after the shuffle.
    """
    names = ", ".join(identity)
    how = (
        "changes whenever a task is retried (rand(), uuid(), monotonically_increasing_id(), input_file_name(), a "
        "nondeterministic UDF, such as that of an earlier deduplicate or explain)"
    )
    if not _is_deterministic(df, identity.values()):
        raise PolicyError(
            f"{names}, or the set of rows, {how}: rows would be judged under one identity and kept under another. "
            "Write the DataFrame to files or a table, and call this function on what you read back; for the name of a "
            "file use _metadata.file_path"
        )
    if order and not _is_deterministic(df.sortWithinPartitions(*order), identity.values()):
        raise PolicyError(
            f"order_by {how}, so the order would differ: add it as a column, write the DataFrame to files or a table, "
            "read it back, and order by this column"
        )


def _is_deterministic(df: DataFrame, columns: Iterable[Column]) -> bool:
    """Return whether these columns have the same values when a task is retried, according to Spark's plan.

    Spark Connect does not expose the plan; returns True there.
    """
    plan = getattr(df.select(*columns), "_jdf", None)
    return plan is None or bool(plan.queryExecution().optimizedPlan().deterministic())


def _check_keys(df: DataFrame, columns: Columns, identity: dict[str, Column]) -> None:
    """Raise BatchError for a key that is in two tasks, by reading the key columns only."""
    keys = [identity[name].alias(f"key_{place}") for place, name in enumerate(columns.keys)]
    tracked = df.where(~is_untracked(df, columns, identity)).select(*keys, functions.spark_partition_id().alias("task"))
    # Group by a struct: grouping by the columns would make Spark read a bucketed table by buckets, only in this query.
    key = functions.struct(*(column for column in tracked.columns if column != "task"))
    tasks = tracked.groupBy(key.alias("key")).agg(
        functions.min("task").alias("first_task"), functions.max("task").alias("last_task")
    )
    spread = tasks.where("first_task < last_task").first()
    if spread is not None:
        key, first, last = spread
        found = ", ".join(f"{name}={value!r}" for name, value in zip(columns.keys, key, strict=True))
        raise BatchError(
            f"the key {found} is in two tasks (for example {first} and {last}), which would judge it twice: "
            "leave out co_located=True, or read the files so that each task gets whole keys",
            column=", ".join(columns.keys),
        )


def _guard_files(df: DataFrame, is_verified: bool) -> DataFrame:
    """Make the query fail if a file is split between two tasks, if the DataFrame is read from files.

    The guard is a JVM filter on the file's metadata. It costs almost nothing and cannot be optimized away, because for
    Spark it may drop rows. A cached DataFrame is read from its files again, because the cache does not keep a row's
    file.
    """
    try:
        block, size, path = (
            df.metadataColumn("_metadata").getField(name) for name in ("file_block_length", "file_size", "file_path")
        )
        problem = functions.concat(
            functions.lit("fencepost: the file "),
            path,
            functions.lit(
                " is cut over several tasks, which would judge its rows apart: set "
                "spark.sql.files.maxPartitionBytes and spark.sql.files.openCostInBytes to at least "
            ),
            size,
            functions.lit(", or leave out co_located=True"),
        )
        guarded = df.where((block == size) | functions.raise_error(problem).cast("boolean"))
        guarded.select(functions.lit(0)).schema  # noqa: B018  # Spark Connect looks at nothing before it is asked
        return guarded
    except AnalysisException as error:
        if is_verified or not df.inputFiles():
            return df
        raise PolicyError(
            "this DataFrame reads files, but their metadata does not reach it (because of a union, join or "
            "aggregate), so a file that is split between two tasks would not be detected: pass verify=True, "
            "or leave out co_located=True"
        ) from error


def unused_name(df: DataFrame, name: str) -> str:
    """Return the name, or a variant of it that no column of the DataFrame has."""
    taken = {column.lower() for column in df.columns}
    while name in taken:
        name = f"_{name}"
    return name
