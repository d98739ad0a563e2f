"""Outputs of transactions: a transport of each kind, and how to read what is committed there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from fencepost import kafka
from fencepost.transports import LandingTransport, PartitionLogTransport, SqlTransport, read_committed, read_landing

KINDS = ["sql", "landing", "log"]


class Output:
    """`read`: the committed values, sorted."""

    def __init__(self, transport: Any, read: Callable[[], list[int]]) -> None:
        self.transport, self._read = transport, read

    def read(self) -> list[int]:
        return sorted(self._read())

    def close(self) -> None:
        getattr(self.transport, "close", lambda: None)()

    def rows(self, *values: int, **columns: Any) -> dict[str, Any]:
        """Rows with these values, as the transport takes them."""
        is_log = isinstance(self.transport, PartitionLogTransport)
        return {**columns, "value": [str(it) for it in values] if is_log else list(values)}


def make_output(kind: str, name: str, engine: sa.Engine, folder: Path, partitions: int = 1) -> Output:
    """`name`: of the table, or of a folder in `folder`."""
    path = folder / name
    if kind == "sql":
        schema = pa.schema({"value": pa.int64()})
        transport = SqlTransport(engine, name, schema=schema, partitions=partitions)
        return Output(transport, lambda: read_committed(engine, name)["value"].to_pylist())
    if kind == "landing":
        return Output(
            LandingTransport(path, partitions=partitions, sync=False),
            lambda: [it for table in read_landing(path).tables() for it in table["value"].to_pylist()],
        )

    def read_logs() -> list[int]:
        logs = [pa.table(kafka.read_records(path / f"events-{it}", "read_committed")) for it in range(partitions)]
        return [int(it) for log in logs for it in log["value"].to_pylist()]

    return Output(PartitionLogTransport(path, partitions=partitions, value="value"), read_logs)
