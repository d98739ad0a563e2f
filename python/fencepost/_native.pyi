from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, final

from fencepost.arrow import ArrowArrayExportable, ArrowSchemaExportable, ArrowStreamExportable, Rows
from fencepost.kafka.finding import Finding
from fencepost.policy import BatchColumns, Columns, Policy
from fencepost.verdict import Verdict

__all__ = [
    "Arranged",
    "BrokerTable",
    "FilteredRows",
    "KafkaStream",
    "ParquetFooter",
    "PartitionLog",
    "Rewritten",
    "SpanScan",
    "StateTable",
    "TransactionIndex",
    "Verdicts",
    "__version__",
    "arrange",
    "collect",
    "filter_rows",
    "kafka_aborted",
    "kafka_batches",
    "kafka_records",
    "kafka_snapshot",
    "parquet_footer",
    "presets",
    "rewrite",
    "shards",
    "validate_policy",
]

__version__: str

@final
class StateTable:
    def __new__(
        cls,
        policy: str | Policy,
        *,
        keep: Sequence[str] = (),
        entries_max: int | None = None,
        untracked: str = "keep",
        partitions: Literal["one", "many"] | None = None,
    ) -> StateTable: ...
    def apply(self, rows: Rows, columns: Columns | str | None = None) -> Verdicts: ...
    def _keep(
        self, rows: Rows, columns: Columns | str | None = None, is_last: bool = False
    ) -> ArrowArrayExportable: ...
    def apply_spans(self, rows: Rows, lengths: str = "_length", columns: Columns | None = None) -> Verdicts: ...
    def check(self, rows: Rows, columns: Columns | str | None = None) -> Verdicts: ...
    def get(self, pid: Any, partition: Any, epoch: int | None = None) -> dict[str, Any] | None: ...
    def entries(self) -> ArrowStreamExportable: ...
    def missing(self) -> ArrowStreamExportable: ...
    def evict(self, now_ms: int, max_idle_ms: int) -> int: ...
    def forget(self, pid: Any, partition: Any | None = None) -> int: ...
    def merge(self, other: StateTable) -> ArrowStreamExportable: ...
    def snapshot(self, *, as_base: bool = False) -> bytes: ...
    def track_changes(self, on: bool = True) -> None: ...
    def snapshot_delta(self) -> bytes: ...
    @staticmethod
    def restore(snapshot: bytes, policy: str | Policy | None = None, *, deltas: Sequence[bytes] = ()) -> StateTable: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def save_delta(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def load(
        path: str | PathLike[str],
        policy: str | Policy | None = None,
        *,
        deltas: Sequence[str | PathLike[str]] = (),
    ) -> StateTable: ...
    @staticmethod
    def from_entries(
        rows: Rows,
        policy: str | Policy | None = None,
        *,
        keep: Sequence[str] | None = None,
        horizon_ms: int | None = None,
    ) -> StateTable: ...
    @property
    def keep(self) -> tuple[str, ...]: ...
    @property
    def horizon_ms(self) -> int | None: ...
    @property
    def positions(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def policy(self) -> Policy: ...
    def __len__(self) -> int: ...

@final
class BrokerTable:
    def __new__(
        cls,
        *,
        version: str = "4.3",
        window: int = 5,
        first: str = "any",
        offsets: str = "given",
        max_idle_ms: int = 86_400_000,
    ) -> BrokerTable: ...
    def apply(self, batches: Rows, columns: BatchColumns | None = None) -> Verdicts: ...
    def check(self, batches: Rows, columns: BatchColumns | None = None) -> Verdicts: ...
    def log_end(self, partition: Any) -> int: ...
    def set_log_end(self, partition: Any, offset: int) -> None: ...
    def restart(self, now_ms: int) -> int: ...
    def evict(self, now_ms: int) -> int: ...
    def get(self, pid: int, partition: Any) -> dict[str, Any] | None: ...
    def entries(self) -> ArrowStreamExportable: ...
    def snapshot(self) -> bytes: ...
    @staticmethod
    def restore(snapshot: bytes) -> BrokerTable: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> BrokerTable: ...
    @staticmethod
    def from_kafka_snapshot(
        path: str | PathLike[str],
        partition: Any,
        *,
        version: str = "4.3",
        window: int = 5,
        first: str = "any",
        offsets: str = "given",
        max_idle_ms: int = 86_400_000,
    ) -> BrokerTable: ...
    def to_kafka_snapshot(self, path: str | PathLike[str], partition: Any) -> None: ...
    @property
    def memory_bytes(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Verdicts:
    @property
    def verdict(self) -> ArrowArrayExportable: ...
    @property
    def kept(self) -> ArrowArrayExportable: ...
    @property
    def counts(self) -> dict[Verdict, int]: ...
    @property
    def stale_epoch(self) -> int: ...
    @property
    def stale(self) -> ArrowStreamExportable: ...
    @property
    def border(self) -> int: ...
    @property
    def missing(self) -> ArrowStreamExportable: ...
    @property
    def expected(self) -> ArrowArrayExportable: ...
    @property
    def offsets(self) -> ArrowArrayExportable: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class TransactionIndex:
    def __new__(cls) -> TransactionIndex: ...
    def apply(self, batches: Rows, columns: BatchColumns | None = None) -> ArrowStreamExportable: ...
    def resolved(self) -> ArrowStreamExportable: ...
    def open(self) -> ArrowStreamExportable: ...
    def last_stable_offset(self, partition: Any) -> int | None: ...
    def first_unstable_offset(self, partition: Any) -> int | None: ...
    def log_end(self, partition: Any) -> int | None: ...
    def aborted(self, partition: Any) -> ArrowStreamExportable: ...
    def forget_aborted(self, partition: Any, below: int) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

def presets() -> list[tuple[str, str, str, str | None, str, str]]: ...
def validate_policy(rules: str) -> None: ...
def shards(rows: Rows, count: int, columns: Columns | str | None = None) -> ArrowArrayExportable: ...
def collect(rows: Rows) -> ArrowStreamExportable: ...
def filter_rows(table: ArrowStreamExportable, mask: ArrowArrayExportable) -> FilteredRows: ...

@final
class FilteredRows:
    """The rows that were kept, as an Arrow stream that can be read more than once."""

    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class SpanScan:
    """Reads the rows of a Parquet file as spans, split by shard.

    A span is a sequence of consecutive rows with the same key and epoch, consecutive sequence numbers, and equal
    timestamps and values of `order_by`, if those are read. With `by_row` each row is a span.

    Args:
        path: The file.
        columns: The identity columns.
        shards: Number of shards.
        timestamp: Read timestamps.
        order_by: Additional columns to read.
        by_row: Make each row a span.
        constants: Values of columns that are not read from the file.
        ordinal: The number of the file, returned as `_file`.
        policy: The policy whose `wrap` limits the sequence numbers. None: all values of the column's type.
        object: An object with `size()` and `read(offset, length)` to read instead of `path`.
        part: Number of the part to read, and number of parts. A part has the row groups whose middle is in its share
            of the file.

    Raises:
        BatchError: Invalid values (column, row of the file).
        SourceError: The file is damaged (path, position).
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        columns: Columns,
        shards: int,
        *,
        timestamp: bool = False,
        order_by: Sequence[str] = (),
        by_row: bool = False,
        constants: Mapping[str, int | str | None] | None = None,
        ordinal: int = 0,
        policy: str | Policy | None = None,
        object: Any = None,
        part: tuple[int, int] = (0, 1),
    ) -> SpanScan: ...
    def next(self, spans_max: int) -> list[tuple[int, ArrowArrayExportable]] | None:
        """Return the next spans, at least `spans_max` unless the file ends; None at its end.

        Returns (shard, record batch) ordered by shard. Columns: the identity, those of `order_by`, `_length` (uint32),
        `_file` (uint32), `_row` (uint64). No span continues across calls.
        """

    @property
    def first_row(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def row_groups(self) -> tuple[int, int]: ...
    @property
    def footer_crc(self) -> int: ...
    @property
    def schema_crc(self) -> int: ...
    @property
    def schema(self) -> ArrowSchemaExportable: ...
    @property
    def untracked(self) -> int: ...
    @property
    def spans(self) -> int: ...
    @property
    def newest_timestamp(self) -> int | None: ...

@final
class Rewritten:
    """The result of `rewrite`."""

    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def footer_crc(self) -> int: ...
    @property
    def source_crc(self) -> int: ...
    @property
    def groups_copied(self) -> int: ...
    @property
    def groups_rewritten(self) -> int: ...

@final
class Arranged:
    """The result of `arrange`. Lists have one value per target; `source_crc` has one per source."""

    @property
    def rows(self) -> list[int]: ...
    @property
    def bytes(self) -> list[int]: ...
    @property
    def footer_crc(self) -> list[int]: ...
    @property
    def source_crc(self) -> list[int]: ...
    @property
    def groups_copied(self) -> int: ...
    @property
    def groups_gathered(self) -> int: ...

@final
class ParquetFooter:
    """The content of a Parquet file's footer."""

    @property
    def rows(self) -> int: ...
    @property
    def row_groups(self) -> int: ...
    @property
    def footer_crc(self) -> int: ...
    @property
    def schema(self) -> ArrowSchemaExportable: ...
    @property
    def bounds(self) -> dict[str, list[tuple[int, int] | None]]: ...

def rewrite(
    source: str | PathLike[str],
    target: str | PathLike[str],
    first_rows: Any,
    counts: Any,
    *,
    keep: bool = False,
    object: Any = None,
) -> Rewritten:
    """Copy a Parquet file without some ranges of rows, or with only these (`keep`).

    Args:
        source: The file.
        target: The new file, which must not exist. It is not synced.
        first_rows: First rows of the ranges: an Arrow or NumPy array of integers, sorted. Ranges are disjoint.
        counts: Numbers of rows of the ranges.
        keep: Keep only these rows.
        object: An object with `size()` and `read(offset, length)` to read instead of `source`.

    Raises:
        SourceError: The source is damaged (path, position).
        ValueError: Invalid ranges.
        OSError: The target cannot be written.
    """

def arrange(
    sources: Sequence[str | PathLike[str]],
    targets: Sequence[tuple[str | PathLike[str], Any, Any, Any]],
    *,
    objects: Sequence[Any] | None = None,
    without: str | None = None,
    metadata: Sequence[tuple[str, str | None]] | None = None,
) -> Arranged:
    """Write Parquet files from rows of other files, in any order. The sources must have equal schemas.

    Args:
        sources: The files.
        targets: (path, indexes of sources, first rows, counts); the last three are Arrow or NumPy arrays of integers
            with one value per range. The paths must not exist. They are not synced.
        objects: Objects with `size()` and `read(offset, length)` to read instead of the sources.
        without: A top-level column to leave out.
        metadata: Key-value metadata. Default: those of the first source.

    Raises:
        SourceError: A source is damaged (path, position).
        ValueError: Invalid ranges.
        OSError: A target cannot be written.
    """

def parquet_footer(path: str | PathLike[str], columns: Sequence[str] = (), *, object: Any = None) -> ParquetFooter:
    """Read a Parquet file's footer, and the bounds of some integer columns by row group."""

@final
class KafkaStream:
    """Rows of a Kafka log, read lazily and only once: as an Arrow stream, or one record batch after the other."""

    @property
    def findings(self) -> list[Finding]: ...
    def __iter__(self) -> KafkaStream: ...
    def __next__(self) -> ArrowArrayExportable: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class PartitionLog:
    """The native writer of `fencepost.kafka.PartitionLog`."""

    def __new__(
        cls,
        path: str | PathLike[str],
        topic: str | None,
        partition: int,
        *,
        interval_ms: int | None,
        shares_syncs: bool,
        segment_bytes: int,
        compression: str,
        version: str,
        window: int,
        first: str,
        max_idle_ms: int,
        cuts_damage: bool,
    ) -> PartitionLog: ...
    def append(
        self, batches: list[tuple[int | None, int | None, int | None, Any, bool]], now_ms: int
    ) -> list[tuple[int, int | None]]: ...
    def append_marker(
        self, pid: int, epoch: int, is_commit: bool, coordinator_epoch: int, transaction_version: int, now_ms: int
    ) -> tuple[int, int | None]: ...
    def read(self, from_offset: int, is_committed: bool) -> KafkaStream: ...
    @property
    def log_end(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def recovered(self) -> tuple[str | None, list[str], int, int]: ...
    def evict(self, now_ms: int) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...

def kafka_batches(
    segments: Sequence[tuple[str, int | None, Any]],
    topic: str | None = None,
    partition: int | None = None,
    *,
    reports: bool = False,
) -> KafkaStream: ...
def kafka_records(
    segments: Sequence[tuple[str, int | None, Any]],
    topic: str | None = None,
    partition: int | None = None,
    *,
    committed: str | None = None,
    aborted: tuple[str, bytes] | None = None,
    from_offset: int = 0,
    first_segment: int = 0,
    batch_bytes_max: int = ...,
) -> KafkaStream: ...
def kafka_snapshot(bytes: bytes, path: str) -> ArrowStreamExportable: ...
def kafka_aborted(bytes: bytes, path: str) -> ArrowStreamExportable: ...
