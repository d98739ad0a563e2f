"""Places that a `SequencedProducer` writes to: Kafka's log on this disk, an SQL table, a folder of Parquet files.

Each judges what comes by the rules of a broker, in one step with writing it, so that a retry is known and a producer
that was replaced is kept out. Each is imported when it is asked for: `SqlTransport` needs `fencepost[sql]`,
`LandingTransport` pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.transports.landing import LandingTransport, read_landing
    from fencepost.transports.partition_log import PartitionLogTransport
    from fencepost.transports.sql import SqlTransport, create_committed_view, read_committed, stream_committed

__all__ = [
    "LandingTransport",
    "PartitionLogTransport",
    "SqlTransport",
    "create_committed_view",
    "read_committed",
    "read_landing",
    "stream_committed",
]

_MODULES = {
    "LandingTransport": "landing",
    "PartitionLogTransport": "partition_log",
    "SqlTransport": "sql",
    "create_committed_view": "sql",
    "read_committed": "sql",
    "stream_committed": "sql",
    "read_landing": "landing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
