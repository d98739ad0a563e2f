from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, final

from fencepost.arrow import ArrowArrayExportable, ArrowSchemaExportable, ArrowStreamExportable, Rows
from fencepost.kafka.finding import Finding
from fencepost.policy import BatchColumns, Columns, Policy
from fencepost.verdict import Verdict

__all__ = [
    "Arranged",
    "BrokerTable",
    "KafkaStream",
    "ParquetFooter",
    "PartitionLog",
    "Rewritten",
    "RunScan",
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
    ) -> StateTable: ...
    def apply(self, rows: Rows, columns: Columns | str | None = None) -> Verdicts: ...
    def _keep(self, rows: Rows, columns: Columns | str | None = None) -> ArrowArrayExportable: ...
    def apply_runs(self, rows: Rows, lengths: str = "_length", columns: Columns | None = None) -> Verdicts: ...
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
def filter_rows(table: ArrowStreamExportable, mask: ArrowArrayExportable) -> ArrowStreamExportable: ...

@final
class RunScan:
    """The rows of a Parquet file as runs, dealt to shards.

    A run is rows that follow each other in the file, with the same key and epoch, sequence numbers that follow each
    other, and the same timestamp and values of `order_by` where those are read; with `by_row` each row is one.
    `constants`: values of columns that are not read from the file. `policy`: whose sequence space holds the values.
    `part`: a number and how many parts there are; only the row groups are read whose middle lies in that share of the
    file. Raises BatchError (column, row of the file) and SourceError (path, position).
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
    ) -> RunScan: ...
    def next(self, runs_max: int) -> list[tuple[int, ArrowArrayExportable]] | None:
        """The next runs, `runs_max` or somewhat more unless the file ends; None at its end.

        (shard, record batch) in the order of the shards: the identity columns, those of `order_by`, `_length`
        (uint32), `_file` (uint32), `_row` (uint64). No run goes on from one call to the next.
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
    def runs(self) -> int: ...
    @property
    def newest_timestamp(self) -> int | None: ...

@final
class Rewritten:
    """What `rewrite` wrote."""

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
    """What `arrange` wrote, and from what; lists by target, `source_crc` by source."""

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
    """What a Parquet file's footer says."""

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
    """A Parquet file without these ranges of rows, or with `keep` only these, everything else as it is.

    `first_rows`, `counts`: Arrow or NumPy arrays of integers, a range each; sorted and disjoint. `target` must not
    exist; it is not synced. Raises SourceError (path, position), ValueError for other ranges, OSError for the target.
    """

def arrange(
    sources: Sequence[str | PathLike[str]],
    targets: Sequence[tuple[str | PathLike[str], Any, Any, Any]],
    *,
    objects: Sequence[Any] | None = None,
    without: str | None = None,
    metadata: Sequence[tuple[str, str | None]] | None = None,
) -> Arranged:
    """Parquet files of rows of others, in any order. The schemas of the sources must be equal.

    `targets`: (path, places of sources, first rows, counts), the last three Arrow or NumPy arrays of integers, a range
    each. The paths must not exist; they are not synced. `without`: a column at the top that is left out. `metadata`:
    key-value metadata in place of those of the first source. Raises SourceError (path, position), ValueError for other
    ranges, OSError for a target.
    """

def parquet_footer(path: str | PathLike[str], columns: Sequence[str] = (), *, object: Any = None) -> ParquetFooter:
    """Reads a Parquet file's footer, and the bounds of some integer columns, a row group each."""

@final
class KafkaStream:
    """Rows of a Kafka log, read as they are pulled: once, as an Arrow stream or record batch by record batch."""

    @property
    def findings(self) -> list[Finding]: ...
    def __iter__(self) -> KafkaStream: ...
    def __next__(self) -> ArrowArrayExportable: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class PartitionLog:
    """What `fencepost.kafka.PartitionLog` writes with."""

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
