"""Both ends of a stream on a real database: producer identity, transactions, idempotent consumers.

Needs `fencepost[sql]` (SQLAlchemy 2, pyarrow, numpy). SQLite is embedded and needs no more; PostgreSQL needs psycopg 3,
`fencepost[postgresql]`. Everything here runs in transactions of `database`, which knows what may be tried again.
"""

from fencepost.sql.coordinator import Positions, Recovered, TransactionCoordinator
from fencepost.sql.registry import ProducerRegistry
from fencepost.sql.transaction import ProducerIdentity

__all__ = ["Positions", "ProducerIdentity", "ProducerRegistry", "Recovered", "TransactionCoordinator"]
