"""Producer identities, transactions and idempotent consumers on a SQL database.

    database      extra                      driver
    SQLite        `fencepost[sql]`           in Python
    PostgreSQL    `fencepost[postgresql]`    psycopg 3
    MariaDB       `fencepost[mariadb]`       PyMySQL

`fencepost[sql]` installs SQLAlchemy 2, pyarrow and numpy. All modules use the transactions of `database`, which retries
them if that is safe. `kinds` contains the differences between databases.
"""

from fencepost.sql.asynchronous import AsyncSqlSink
from fencepost.sql.coordinator import Positions, TransactionCoordinator
from fencepost.sql.http import AsgiIdempotency, WsgiIdempotency
from fencepost.sql.inspection import (
    DatabaseSession,
    StagedPosition,
    TransactionMetrics,
    TransactionStatus,
    describe_transaction,
    late_transactions,
    list_transactions,
    transaction_metrics,
)
from fencepost.sql.outbound import derived_key
from fencepost.sql.reaping import Reaped, RetentionWarning
from fencepost.sql.reconciliation import Reconciliation
from fencepost.sql.registry import ProducerRegistry
from fencepost.sql.requests import IdempotentRequests, RequestClaim, Response
from fencepost.sql.routes import MarkerWriter, Recovered, Unrouted
from fencepost.sql.schema import ddl, statements
from fencepost.sql.sink import Applied, SqlSink
from fencepost.sql.staged import StagedTable
from fencepost.sql.transaction import ProducerIdentity
from fencepost.sql.transitions import transition

__all__ = [
    "Applied",
    "AsgiIdempotency",
    "AsyncSqlSink",
    "DatabaseSession",
    "IdempotentRequests",
    "MarkerWriter",
    "Positions",
    "ProducerIdentity",
    "ProducerRegistry",
    "Reaped",
    "Reconciliation",
    "Recovered",
    "RequestClaim",
    "Response",
    "RetentionWarning",
    "SqlSink",
    "StagedPosition",
    "StagedTable",
    "TransactionCoordinator",
    "TransactionMetrics",
    "TransactionStatus",
    "Unrouted",
    "WsgiIdempotency",
    "ddl",
    "derived_key",
    "describe_transaction",
    "late_transactions",
    "list_transactions",
    "statements",
    "transaction_metrics",
    "transition",
]
