"""Deduplicates event streams identified by (pid, epoch, partition, seq).

Classifies each row: new, duplicate, out of order, or written by a fenced producer (a zombie). Reports missing rows.

>>> import fencepost as fp
>>> from array import array
>>> pid, epoch, partition, seq = (array("q", column) for column in ([7, 7, 7, 7], [0] * 4, [0] * 4, [0, 1, 1, 4]))
>>> table = fp.StateTable("any_order")
>>> verdicts = table.apply({"pid": pid, "epoch": epoch, "partition": partition, "seq": seq})
>>> verdicts
<Verdicts of 4 rows: ACCEPTED 3, DUPLICATE 1>
>>> table.get(pid=7, partition=0)["holes"]
[{'first': 2, 'last': 3, 'timestamp': None}]

This module has no dependencies: it exchanges Arrow data by the PyCapsule protocol. Jobs over files are in
``fencepost.lake`` and their state in ``fencepost.state``. These two modules and ``audit``, ``explain`` and ``advise``
need pyarrow.
"""

import logging
from typing import TYPE_CHECKING, Any

from fencepost._native import BrokerTable, StateTable, Verdicts, __version__, shards
from fencepost.dedup import advise, audit, deduplicate, explain
from fencepost.errors import (
    BatchError,
    CapacityError,
    ConcurrentTransactionError,
    DeliveryError,
    DependencyError,
    FencedError,
    FencepostError,
    KeyReusedError,
    LockedError,
    MappingError,
    OutcomeUnknownError,
    PoisonedError,
    PolicyError,
    RequestInFlightError,
    SchemaError,
    SinkChangedError,
    SinkError,
    SnapshotError,
    SourceError,
    StateConflictError,
    StoreError,
    TransactionAbortableError,
    TransactionStateError,
    TransitionError,
    TransportError,
    UndoneError,
)
from fencepost.findings import AuditReport
from fencepost.policy import BatchColumns, Columns, Policy
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from fencepost.producer import SequencedProducer

# Quiet until the application configures logging.
logging.getLogger("fencepost").addHandler(logging.NullHandler())

__all__ = [
    "AuditReport",
    "BatchColumns",
    "BatchError",
    "BrokerTable",
    "CapacityError",
    "Columns",
    "ConcurrentTransactionError",
    "DeliveryError",
    "DependencyError",
    "FencedError",
    "FencepostError",
    "KeyReusedError",
    "LockedError",
    "MappingError",
    "OutcomeUnknownError",
    "PoisonedError",
    "Policy",
    "PolicyError",
    "RequestInFlightError",
    "SchemaError",
    "SequencedProducer",
    "SinkChangedError",
    "SinkError",
    "SnapshotError",
    "SourceError",
    "StateConflictError",
    "StateTable",
    "StoreError",
    "TransactionAbortableError",
    "TransactionStateError",
    "TransitionError",
    "TransportError",
    "UndoneError",
    "Verdict",
    "Verdicts",
    "__version__",
    "advise",
    "audit",
    "deduplicate",
    "explain",
    "shards",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: its threads and random numbers would slow down the start of the command line.
    if name == "SequencedProducer":
        from fencepost.producer import SequencedProducer

        return SequencedProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
