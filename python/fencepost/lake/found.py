"""The results of a run's scan tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.lake.files import Files
from fencepost.lake.parts import RowRange
from fencepost.lake.refused import Refused
from fencepost.lake.scan import Exchange
from fencepost.state.decision import Deferred, Quarantined
from fencepost.state.stores import COPY_BYTES_MAX


@dataclass
class Found:
    """The content of the new files after the scan. Columns have one value per file, by ordinal."""

    files: Files
    """As listed. A file's index is its ordinal in the exchange."""
    is_read: npt.NDArray[np.bool_]
    read: Files
    rows: npt.NDArray[np.int64]
    untracked: int
    footer_crc: list[int]
    schema_crc: list[int]
    """Checksum of the columns that each footer declares."""
    exchanges: list[Exchange]
    newest_ms: int | None
    row_ranges: dict[int, list[RowRange]]
    """The parts of each file that several tasks have scanned, by ordinal."""
    vanished: list[str] = field(default_factory=list)
    deferred: Deferred = field(default_factory=Deferred)
    quarantined: Quarantined = field(default_factory=Quarantined)
    refused: Counter[str] = field(default_factory=Counter)
    """Number of rows refused before the exchange, by verdict."""
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)

    def row_ranges_to_write(self, refused: Sequence[Refused]) -> dict[int, list[RowRange]]:
        """Return the `row_ranges` of files that tasks write in parts.

        A file without refused rows is copied as a whole, unless it is larger than a store copies in one request.
        """
        if not self.row_ranges:
            return {}
        losing = {ordinal for it in refused for ordinal in it.files.tolist()}
        losing.update(it for it in self.row_ranges if self.files.vectors[it] is not None)
        losing.update(it for it in self.row_ranges if self.files.bytes[it] > COPY_BYTES_MAX)
        return {it: row_ranges for it, row_ranges in self.row_ranges.items() if it in losing}
