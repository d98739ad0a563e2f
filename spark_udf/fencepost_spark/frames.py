"""DataFrame in, the kept rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost import BatchError, Columns, Policy, PolicyError, StateTable
from fencepost.policy import resolve, resolve_columns
from fencepost.verdict import Verdict
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructField, StructType

from fencepost_spark.verdicts import check_settings, has_arrow_udf, verdict_udf

if TYPE_CHECKING:
    from fencepost_spark.plain_scan import PlainScan

Order = str | Column


def deduplicate(
    df: DataFrame,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    order_by: Order | Sequence[Order] | None = None,
    co_located: bool = False,
    verify: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> DataFrame:
    """The rows of ``df`` to keep (judged ACCEPTED or UNTRACKED), with its own columns; lazy, as any transformation.

    Each run stands alone: nothing is remembered from one to the next (``DedupJob`` does that).

    By default rows are shuffled by key (pid, partition) to ``spark.sql.shuffle.partitions`` tasks and sorted there by
    key, ``order_by`` (else seq and epoch) and then by every other column. So which of several copies is kept follows
    from the rows alone: it is the first in that order, in every action and every retried task.

    Over a plain scan of Parquet files the same rows are kept without such a shuffle, where the policy does not depend
    on the order: tasks read the identity columns from the files (docs/dataframes.md). ``way_of`` says if that is so. A
    file that is then not the file it was in this call fails the query.

    ``order_by``: a column, or several, that give the order of arrival, such as an offset. Policies whose verdicts
    depend on the order need it: all but those with ``admit="any"``, 2^31 sequence numbers or more, no ``max_jump``, no
    ``reach`` and epochs that do not fence. Rows that are equal there follow each other by epoch and seq.

    ``co_located=True``: all rows of a key lie in one task already, so nothing is shuffled; without ``order_by`` each
    task judges its rows as they come and the first copy is kept. A file that is cut over several tasks fails the query,
    by name. A key in two *whole* files of two tasks goes unnoticed, and so does one that a shuffle of yours has spread,
    or that lies in a frame which is not read from files, unless ``verify=True`` reads the identity columns first, at
    once, and refuses a key that lies in two tasks. That sees how *its* query lays out the rows: where adaptive
    execution may lay them out otherwise the next time, as a join does that splits skewed partitions, persist the frame
    first. After a shuffle of our own there is nothing to verify. ``untracked``: as for ``StateTable``.

    Raises BatchError, at once, for a missing column, one of the wrong type, or a key that ``verify`` refuses;
    PolicyError for arguments and settings that do not go together, and for identities or an order that are not
    deterministic (but on Spark Connect, which does not tell); TypeError for what is not a DataFrame of Spark. In a
    task, a row outside the domain fails the query; the message names column, row and value.
    """
    call = Call.of(df, policy, columns, order_by, co_located, untracked)
    if not co_located and (scan := call.plain_scan()[0]) is not None:
        from fencepost_spark.copies import deduplicate_scan

        return deduplicate_scan(df, scan, list(call.identity.values()), [*call.order, *_tie_breakers(df)])
    if co_located and verify:
        _check_keys(df, call.columns, call.identity)
    laid_out = _guard_files(df, is_verified=verify) if co_located else _shuffle(df, call.columns, call.identity)
    arrival = call.arrival
    if arrival:
        laid_out = laid_out.sortWithinPartitions(*arrival, *_tie_breakers(df))
    return _judged(laid_out, call)


class Way(NamedTuple):
    """How ``deduplicate`` treats a frame."""

    name: Literal["files", "shuffle", "co_located"]
    reason: str


def way_of(
    df: DataFrame,
    policy: str | Policy = "any_order",
    columns: Columns | str | None = None,
    order_by: Order | Sequence[Order] | None = None,
    co_located: bool = False,
    untracked: Literal["keep", "fail"] = "keep",
) -> Way:
    """How ``deduplicate`` with these arguments treats the frame, and why; runs no query.

    "files": tasks read the identity columns from Parquet files, and only rows that have copies are shuffled.
    "shuffle": all rows are shuffled. "co_located": none is.

        >>> way_of(spark.read.parquet("events").where("pid > 7"))
        Way(name='shuffle', reason='the plan of the frame is not a plain scan of files, it has a Filter')

    Raises what ``deduplicate`` raises at once.
    """
    call = Call.of(df, policy, columns, order_by, co_located, untracked)
    if co_located:
        return Way("co_located", "asked for")
    scan, reason = call.plain_scan()
    return Way("shuffle" if scan is None else "files", reason)


@dataclass(frozen=True)
class Call:
    """The arguments of ``deduplicate``, once they were checked."""

    df: DataFrame
    rules: Policy
    columns: Columns
    fields: dict[str, StructField]
    """Of the identity columns, by the names that `columns` has for them."""
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
    ) -> Call:
        check_frame(df, "deduplicate(df)")
        rules = resolve(policy)
        mapped = resolve_columns(rules, columns)
        check_settings(df.sparkSession)
        order = _as_columns(order_by)
        if df.isStreaming:
            raise PolicyError(
                "deduplicate() forgets everything between micro-batches, so it takes no streaming DataFrame"
            )
        if not order and rules.depends_on_order:
            raise PolicyError(
                f"the verdicts of this policy ({rules.rules}) depend on the order of the rows, which a DataFrame does "
                "not have: pass order_by, the columns that give the order of arrival"
            )
        call = cls(df, rules, mapped, identity_fields(df.schema, rules, mapped), order, co_located, untracked)
        _check_deterministic(df, call.identity, [] if co_located else order)
        return call

    @property
    def identity(self) -> dict[str, Column]:
        """The identity columns by name."""
        return {name: _column(field.name) for name, field in self.fields.items()}

    @property
    def arrival(self) -> list[Column]:
        """The order of the rows in a task; none where they stay as they come."""
        keys, after = (
            [self.identity[name] for name in names] for names in (_keys(self.columns), _after_key(self.columns))
        )
        if self.order:
            return [*keys, *self.order, *after]
        return [] if self.co_located else [_place(self.columns, self.identity), *keys, *after]

    def plain_scan(self) -> tuple[PlainScan | None, str]:
        """The files that the rows are scanned from, where that is all; and why."""
        from fencepost_spark.plain_scan import NotPlainError, plain_scan

        try:
            scan = plain_scan(self)
        except NotPlainError as problem:
            return None, str(problem)
        return scan, f"{len(scan.files)} Parquet files with {scan.rows} rows are scanned, and no more"


def _judged(df: DataFrame, call: Call) -> DataFrame:
    """The rows that are kept, judged task by task in the order that they lie in."""
    verdict = unused_name(df, "verdict")
    kind: Literal["arrow", "pandas"] = "arrow" if has_arrow_udf() else "pandas"
    judge = verdict_udf(call.rules, co_located=True, columns=call.columns, kind=kind, untracked=call.untracked)
    judged = df.select("*", judge(*(call.identity[name] for name in call.columns.names)).alias(verdict))
    return judged.where(functions.col(verdict).isin(int(Verdict.ACCEPTED), int(Verdict.UNTRACKED))).drop(verdict)


def check_frame(df: object, what: str) -> None:
    """Raises TypeError for what is not a DataFrame of Spark."""
    if not isinstance(df, DataFrame):
        kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
        raise TypeError(
            f"{what}: a DataFrame of Spark was expected, not {kind}: spark.createDataFrame(df) makes one of it, and "
            "fencepost.deduplicate takes tables as they are"
        )


def _as_columns(order_by: Order | Sequence[Order] | None) -> list[Column]:
    if order_by is None:
        return []
    several = [order_by] if isinstance(order_by, str | Column) else order_by
    return [_column(it) if isinstance(it, str) else it for it in several]


def _column(name: str) -> Column:
    """The top-level column of that name, whatever characters it has."""
    return functions.col(quoted(name))


def quoted(name: str) -> str:
    """The name as SQL writes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _keys(columns: Columns) -> tuple[str, ...]:
    return (*columns.parts("pid"), *columns.parts("partition"))


def _after_key(columns: Columns) -> tuple[str, ...]:
    return (columns.seq,) if columns.epoch is None else (columns.epoch, columns.seq)


def identity_fields(schema: StructType, policy: Policy, columns: Columns) -> dict[str, StructField]:
    """The identity columns by the name that ``columns`` has for them. The table itself judges the types, on no rows,
    before Spark runs anything. Raises BatchError."""
    of_name = {field.name.lower(): field for field in schema}  # Spark resolves names without regard to case
    fields = {name: of_name[name.lower()] for name in columns.names if name.lower() in of_name}
    twins = [name for name, count in Counter(name.lower() for name in schema.names).items() if count > 1]
    if twins:
        raise BatchError(f"column '{twins[0]}': stands twice in the DataFrame; rename one", column=twins[0])
    others = {name: pa.nulls(0) for name in schema.names}  # for the message about a missing one
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
    """Whole keys to one task each. The number is explicit, or adaptive execution would choose another one.

    Untracked rows have no key; they are spread by their content, for a hash of their pid alone would send all of them
    to one task. By content and not at random: a retried task must send each row where the first attempt did.
    """
    partitions = df.sparkSession.conf.get("spark.sql.shuffle.partitions") or ""
    count = int(partitions) if partitions.isdigit() else 200  # some platforms say "auto"
    content = [_column(field.name) for field in df.schema if is_orderable(field.dataType)]
    if not _is_deterministic(df, content):
        content = list(identity.values())
    spread = functions.when(is_untracked(df, columns, identity), functions.xxhash64(*content))
    return df.repartition(count, *(identity[name] for name in _keys(columns)), spread)


def is_untracked(df: DataFrame, columns: Columns, identity: dict[str, Column]) -> Column:
    """Whether a row has no identity: a part of its pid is null, or -1 where that is a number."""
    untracked = functions.lit(False)
    for name in columns.parts("pid"):
        column = identity[name]
        untracked = untracked | column.isNull()
        if isinstance(df.select(column).schema[0].dataType, IntegralType):
            untracked = untracked | (column == -1)
    return untracked


def is_orderable(kind: DataType) -> bool:
    """Whether Spark can sort and hash it: all but some types, however deep they lie."""
    if kind.typeName() in {"map", "variant", "interval", "geometry", "geography"}:
        return False
    inner = [getattr(kind, "elementType", None), *(field.dataType for field in getattr(kind, "fields", []))]
    return all(is_orderable(it) for it in inner if it is not None)


def _place(columns: Columns, identity: dict[str, Column]) -> Column:
    """Key and sequence in one number, for policies whose verdicts do not depend on the order: all that is asked of it
    is that copies meet and keys come in runs.

    Spark's sort has the first number of each row beside its pointer, and looks at the rows only where that is the same.
    A pid is the same in thousands of rows; this is so in copies, and where 32 bits of two hashes meet.
    """
    key = functions.xxhash64(*(identity[name] for name in _keys(columns)))
    seq = identity[columns.seq].cast("long").bitwiseAND(functions.lit(0xFFFF_FFFF))
    return functions.shiftleft(key, 32).bitwiseOR(seq)


def _tie_breakers(df: DataFrame) -> list[Column]:
    """Every column that can be sorted: compared only where rows are equal in key and order.

    A shuffle delivers rows in another order when a task is retried. Were copies of one identity that differ elsewhere
    left in that order, a retry could keep the other copy after a part of the plan above has already used the first:
    counted twice, or not at all.
    """
    return [_column(field.name) for field in df.schema if is_orderable(field.dataType)]


def _check_deterministic(df: DataFrame, identity: dict[str, Column], order: list[Column]) -> None:
    """Refuses identities that are drawn anew whenever a task is tried again: a row could then be judged as another one
    than the one that is kept, and be lost. And an order that is drawn once the rows have been shuffled."""
    names = ", ".join(identity)
    how = (
        "whenever a task is tried again (rand(), uuid(), monotonically_increasing_id(), input_file_name(), a UDF that "
        "is not"
    )
    if not _is_deterministic(df, identity.values()):
        raise PolicyError(
            f"{names}, or which rows there are, is drawn anew {how} deterministic): rows would be judged under one "
            "identity and kept under another. Write the frame first, or for the name of a file use _metadata.file_path"
        )
    if order and not _is_deterministic(df.sortWithinPartitions(*order), identity.values()):
        raise PolicyError(
            f"order_by is drawn anew {how} deterministic), and after the shuffle: make it a column of the frame and "
            "write that first"
        )


def _is_deterministic(df: DataFrame, columns: Iterable[Column]) -> bool:
    """Whether rows have the same values in these columns whenever a task is tried again. What Spark leaves of the plan
    says it; Spark Connect does not tell."""
    plan = getattr(df.select(*columns), "_jdf", None)
    return plan is None or bool(plan.queryExecution().optimizedPlan().deterministic())


def _check_keys(df: DataFrame, columns: Columns, identity: dict[str, Column]) -> None:
    """Refuses keys that lie in two tasks, by reading the key columns alone."""
    keys = [identity[name].alias(f"key_{place}") for place, name in enumerate(_keys(columns))]
    tracked = df.where(~is_untracked(df, columns, identity)).select(*keys, functions.spark_partition_id().alias("task"))
    # By a struct: grouped by the columns themselves, a bucketed table would be read by bucket here, and only here.
    key = functions.struct(*(column for column in tracked.columns if column != "task"))
    tasks = tracked.groupBy(key.alias("key")).agg(
        functions.min("task").alias("first_task"), functions.max("task").alias("last_task")
    )
    spread = tasks.where("first_task < last_task").first()
    if spread is not None:
        key, first, last = spread
        found = ", ".join(f"{name}={value!r}" for name, value in zip(_keys(columns), key, strict=True))
        raise BatchError(
            f"the key {found} lies in two tasks ({first} and {last} among them), where it would be judged twice: leave "
            "out co_located=True, or read the files so that each task gets whole keys",
            column=", ".join(_keys(columns)),
        )


def _guard_files(df: DataFrame, is_verified: bool) -> DataFrame:
    """Makes a file that is cut over two tasks an error of the query, where the frame is read from files.

    A filter in the JVM over the file's metadata: it costs next to nothing and cannot be optimised away, because it may
    drop rows for all that Spark knows. A frame that is cached is read from its files again, for the cache does not know
    which row is of which.
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
            "this DataFrame reads files but their metadata does not reach it (a union, join or aggregate stands "
            "between), so a file that is cut over two tasks would go unnoticed: pass verify=True, or leave out "
            "co_located=True"
        ) from error


def unused_name(df: DataFrame, name: str) -> str:
    """The name, or one like it that no column of the frame has."""
    taken = {column.lower() for column in df.columns}
    while name in taken:
        name = f"_{name}"
    return name
