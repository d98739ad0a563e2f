from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, final

from fencepost.arrow import ArrowArrayExportable, ArrowStreamExportable, Rows
from fencepost.policy import Columns, Policy
from fencepost.verdict import Verdict

__all__ = [
    "ParquetFooter",
    "Rewritten",
    "RunScan",
    "StateTable",
    "Verdicts",
    "__version__",
    "collect",
    "filter_rows",
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
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def presets() -> list[tuple[str, str, str, str | None, str, str]]: ...
def validate_policy(rules: str) -> None: ...
def shards(rows: Rows, count: int, columns: Columns | str | None = None) -> ArrowArrayExportable: ...
def collect(rows: Rows) -> ArrowStreamExportable: ...
def filter_rows(table: ArrowStreamExportable, mask: ArrowArrayExportable) -> ArrowStreamExportable: ...

@final
class RunScan:
    """The rows of a local Parquet file as runs, dealt to shards.

    A run is rows that follow each other in the file, with the same key and epoch, sequence numbers that follow each
    other, and the same timestamp and values of `order_by` where those are read; with `by_row` each row is one.
    `constants`: values of columns that are not read from the file. `policy`: whose sequence space holds the values.
    Raises BatchError (column, row of the file) and SourceError (path, position).
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
    ) -> RunScan: ...
    def next(self, runs_max: int) -> list[tuple[int, ArrowArrayExportable]] | None:
        """The next runs, `runs_max` or somewhat more unless the file ends; None at its end.

        (shard, record batch) in the order of the shards: the identity columns, those of `order_by`, `_length`
        (uint32), `_file` (uint32), `_row` (uint64). No run goes on from one call to the next.
        """

    @property
    def rows(self) -> int: ...
    @property
    def row_groups(self) -> int: ...
    @property
    def footer_crc(self) -> int: ...
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
    def groups_copied(self) -> int: ...
    @property
    def groups_rewritten(self) -> int: ...

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
    def bounds(self) -> dict[str, list[tuple[int, int] | None]]: ...

def rewrite(
    source: str | PathLike[str],
    target: str | PathLike[str],
    first_rows: Any,
    counts: Any,
    *,
    keep: bool = False,
) -> Rewritten:
    """A Parquet file without these ranges of rows, or with `keep` only these, everything else as it is.

    `first_rows`, `counts`: Arrow or NumPy arrays of integers, a range each; sorted and disjoint. `target` must not
    exist; it is not synced. Raises SourceError (path, position), ValueError for other ranges, OSError for the target.
    """

def parquet_footer(path: str | PathLike[str], columns: Sequence[str] = ()) -> ParquetFooter:
    """Reads a local Parquet file's footer, and the bounds of some integer columns, a row group each."""
