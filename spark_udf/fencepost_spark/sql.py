"""SQL functions: one that judges rows, and a table function that keeps each identity once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost import BatchError, Columns, Policy, PolicyError, StateTable
from fencepost.policy import check_columns, resolve, resolve_columns
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StructType, TimestampType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, OrderingColumn, PartitioningColumn

from fencepost_spark.engine import session_or_active
from fencepost_spark.frames import identity_fields, is_orderable, quoted, tie_breakers
from fencepost_spark.kafka_log import KafkaLog
from fencepost_spark.verdicts import has_arrow_udf, verdict_udf

VERDICT, DEDUPLICATE = "fencepost_verdict", "fencepost_deduplicate"
BUCKETS = 1_024
"""Number of groups of keys, each with its own table: more than the parallel tasks of a cluster."""
ROWS_TOGETHER = 8_192


def register(
    spark: SparkSession | None = None, policy: str | Policy = "any_order", columns: Columns | str | None = None
) -> None:
    """Register functions and a data source for SQL in a session (default: the active one).

    ``fencepost_verdict(pid, epoch, partition, seq)``: ``verdict_udf`` with this policy and these columns. The statement
    must partition the rows by key and sort them, as ``DISTRIBUTE BY … SORT BY …`` does:

        SELECT * FROM (
            SELECT *, fencepost_verdict(pid, epoch, partition, seq) AS verdict
            FROM (SELECT * FROM events DISTRIBUTE BY pid, partition SORT BY pid, partition, epoch, seq)
        ) WHERE verdict IN (0, 6)

    ``fencepost_deduplicate(TABLE(events))``: the rows to keep. It partitions and sorts the table as ``deduplicate``
    does. Policy and columns are constant arguments of the call; the defaults are those passed here:

        SELECT * FROM fencepost_deduplicate(
            TABLE(events), policy => 'kafka', order_by => 'offset', partition => 'topic, partition')

    All columns of all rows pass through Python, row by row. Use it for tables of up to some millions of rows with UTF-8
    texts, and ``deduplicate(df)`` or ``DedupJob`` for more.

    ``spark.read.format("fencepost-kafka-log")``: Kafka's own log segments (``fencepost_spark.kafka_log.KafkaLog``).

    Raises:
        PolicyError: Policy and columns contradict each other.
        RuntimeError: There is no session.
    """
    spark = session_or_active(spark)
    judge = verdict_udf(policy, co_located=True, columns=columns, kind="arrow" if has_arrow_udf() else "pandas")
    spark.udf.register(VERDICT, judge)
    rules = resolve(policy)
    mapped = None if columns is None else resolve_columns(rules, columns)
    spark.udtf.register(DEDUPLICATE, _table_function(rules, mapped))
    spark.dataSource.register(KafkaLog)


@dataclass
class Analyzed(AnalyzeResult):
    """The analyzed arguments of a call, which travel to the tasks."""

    policy: Policy | None = None
    columns: Columns | None = None
    types: tuple[tuple[str, DataType], ...] = ()
    """The table's identity columns and their types."""


def _table_function(policy: Policy, columns: Columns | None) -> Any:
    from pyspark.sql.functions import udtf

    class Deduplicate:
        @staticmethod
        def analyze(table: AnalyzeArgument, **options: AnalyzeArgument) -> Analyzed:
            from fencepost_spark.sql import analyze

            return analyze(table, options, policy, columns)

        def __init__(self, analyzed: Analyzed) -> None:
            from fencepost_spark.sql import GroupJudge

            self.keeper = GroupJudge(analyzed)

        def eval(self, table: Row, **options: Any) -> Iterator[Any]:
            yield from self.keeper.take(table)

        def terminate(self) -> Iterator[Any]:
            yield from self.keeper.rest()

    return udtf(Deduplicate, useArrow=False)


ROLES = ("pid", "epoch", "partition", "seq")


def analyze(
    table: AnalyzeArgument, options: dict[str, AnalyzeArgument], policy: Policy, columns: Columns | None
) -> Analyzed:
    """Define the result and the partitioning of the table, on the driver."""
    if not table.isTable or not isinstance(table.dataType, StructType):
        raise PolicyError(f"{DEDUPLICATE}: the first argument is the table: {DEDUPLICATE}(TABLE(events))")
    given = {name: _constant(name, it) for name, it in options.items()}
    rules = resolve(given.pop("policy", "") or policy)
    order = _names(given.pop("order_by", ""))
    preset = given.pop("columns", None)
    mapped = _columns(given, resolve_columns(rules, preset) if preset else columns or rules.columns)
    check_columns(rules, mapped)
    if not order and rules.depends_on_order:
        raise PolicyError(
            f"the verdicts of this policy ({rules.rules}) depend on the order of the rows, which a table does "
            "not have: pass order_by => 'column, ...', the columns with the order of arrival"
        )
    schema = table.dataType
    fields = identity_fields(schema, rules, mapped)
    of_struct = next((name for name, field in fields.items() if field.name not in schema.names), None)
    if of_struct is not None:
        raise BatchError(
            f"column '{of_struct}': a field of a struct column, which {DEDUPLICATE} does not read: select it as a "
            "column of its own, TABLE(SELECT ...), or use deduplicate(df)",
            column=of_struct,
        )
    for name in order:
        if name.lower() not in {field.name.lower() for field in schema}:
            raise BatchError(f"column '{name}': missing; the table has {', '.join(schema.names)}", column=name)
    keys = [fields[name].name for part in ("pid", "partition") for name in mapped.parts(part)]
    after = [*order, *(fields[name].name for name in (mapped.epoch, mapped.seq) if name is not None)]
    return Analyzed(
        schema=schema,
        partitionBy=[PartitioningColumn(_bucket(schema, keys, [fields[it].name for it in mapped.parts("pid")]))],
        orderBy=[OrderingColumn(it) for it in dict.fromkeys((*map(quoted, (*keys, *after)), *tie_breakers(schema)))],
        policy=rules,
        columns=mapped,
        types=tuple((fields[name].name, fields[name].dataType) for name in mapped.names),
    )


def _constant(name: str, argument: AnalyzeArgument) -> str:
    if name not in ("policy", "columns", "order_by", *ROLES):
        raise PolicyError(f"{DEDUPLICATE}: {name}: unknown; expected policy, columns, order_by, {', '.join(ROLES)}")
    if not argument.isConstantExpression or not isinstance(argument.value, str):
        raise PolicyError(f"{DEDUPLICATE}: {name}: expected a constant text")
    return argument.value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(given: dict[str, str], default: Columns) -> Columns:
    """Return the columns by role. An empty text means that there is no such column."""
    found: dict[str, Any] = {role: getattr(default, role) for role in ROLES}
    for role, text in given.items():
        names = _names(text)
        found[role] = None if not names else names[0] if len(names) == 1 else tuple(names)
    return Columns(**found)


def _bucket(schema: StructType, keys: list[str], pids: list[str]) -> str:
    """Return the SQL expression of a row's group. Untracked rows have no key and are spread by their content."""
    of_name = {field.name: field.dataType for field in schema}
    untracked = [f"{quoted(name)} IS NULL" for name in pids]
    untracked += [f"{quoted(name)} = -1" for name in pids if isinstance(of_name[name], IntegralType)]
    content = ", ".join(quoted(field.name) for field in schema if is_orderable(field.dataType))
    spread = f"CASE WHEN {' OR '.join(untracked)} THEN xxhash64({content}) END"
    return f"pmod(xxhash64({', '.join(map(quoted, keys))}, {spread}), {BUCKETS})"


class GroupJudge:
    """Judges the rows of a group in a task, some thousand at a time."""

    def __init__(self, analyzed: Analyzed) -> None:
        assert analyzed.policy is not None
        assert analyzed.columns is not None
        self.table = StateTable(analyzed.policy)
        self.columns = analyzed.columns
        self.places = [analyzed.schema.names.index(name) for name, _ in analyzed.types]
        self.types = [to_arrow_type(kind) for _, kind in analyzed.types]
        kinds = [field.dataType for field in analyzed.schema]
        self.instants = {place: exact for place, kind in enumerate(kinds) if (exact := _exact(kind)) is not None}
        self.rows: list[Row] = []

    def take(self, row: Row) -> Iterator[Row]:
        self.rows.append(row)
        if len(self.rows) == ROWS_TOGETHER:
            yield from self.rest()

    def rest(self) -> Iterator[Row]:
        """Return the rows to keep of the last, incomplete batch."""
        columns = {
            name: pa.array([row[place] for row in self.rows], kind)
            for name, place, kind in zip(self.columns.names, self.places, self.types, strict=True)
        }
        kept = pa.array(self.table.apply(columns, self.columns).kept).to_pylist()
        rows, self.rows = self.rows, []
        yield from (self.restored(row) for row, is_kept in zip(rows, kept, strict=True) if is_kept)

    def restored(self, row: Row) -> Any:
        if not self.instants:
            return row
        values = list(row)
        for place, exact in self.instants.items():
            values[place] = exact(values[place])
        return tuple(values)


def _exact(kind: DataType) -> Callable[[Any], Any] | None:
    """Return the conversion that preserves a value of this type; None if none is needed.

    Timestamps arrive as naive local time. If returned like that, PySpark may choose the wrong one of the two equal
    hours at the end of daylight saving time. UTC has no such hours.
    """
    if isinstance(kind, TimestampType):
        return _in_utc
    if isinstance(kind, ArrayType) and (element := _exact(kind.elementType)):
        return lambda values: None if values is None else [element(it) for it in values]
    if isinstance(kind, MapType):
        key, value = _exact(kind.keyType) or _same, _exact(kind.valueType) or _same
        if (key, value) != (_same, _same):
            return lambda pairs: None if pairs is None else {key(one): value(other) for one, other in pairs.items()}
    if isinstance(kind, StructType) and any(map(_exact, (field.dataType for field in kind))):
        parts = [_exact(field.dataType) or _same for field in kind]
        return lambda row: None if row is None else tuple(part(it) for part, it in zip(parts, row, strict=True))
    return None


def _same(value: Any) -> Any:
    return value


def _in_utc(value: datetime | None) -> datetime | None:
    try:
        return None if value is None else value.astimezone(UTC)
    except (OverflowError, ValueError):  # in the first and last hours of the calendar, which have no time changes
        return value
