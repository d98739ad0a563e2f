"""Destinations of a `SequencedProducer`: a Kafka log on local disk, an SQL table, a folder of Parquet files.

Each one judges batches by a broker's rules in the same atomic step as the write. So it recognizes retries and refuses
replaced producers. Modules are imported on first use: `SqlTransport` needs `fencepost[sql]`, `LandingTransport`
pyarrow.
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
