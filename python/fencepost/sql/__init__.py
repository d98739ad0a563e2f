"""Both ends of a stream on a real database: producer identity, transactions, idempotent consumers.

Needs `fencepost[sql]` (SQLAlchemy 2, pyarrow, numpy). SQLite is embedded and needs no more; PostgreSQL needs psycopg 3,
`fencepost[postgresql]`. Everything here runs in transactions of `database`, which knows what may be tried again.
"""
