"""What the tasks of a scan have found in the new files of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.lake.files import Files
from fencepost.lake.scan import Exchange
from fencepost.state.decision import Deferred, Quarantined


@dataclass
class Found:
    """What the new files hold, once they are scanned; columns of the files that were read, by ordinal."""

    files: Files
    """As they were listed; a file's place is its ordinal in the exchange."""
    is_read: npt.NDArray[np.bool_]
    read: Files
    rows: npt.NDArray[np.int64]
    untracked: int
    footer_crc: list[int]
    schema_crc: list[int]
    """Of the columns as each footer declares them."""
    exchanges: list[Exchange]
    newest_ms: int | None
    vanished: list[str] = field(default_factory=list)
    deferred: Deferred = field(default_factory=Deferred)
    quarantined: Quarantined = field(default_factory=Quarantined)
    refused: Counter[str] = field(default_factory=Counter)
    """Rows that were refused before the exchange, by name of verdict."""
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)
