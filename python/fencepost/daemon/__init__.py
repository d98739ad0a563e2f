"""The maintenance daemon of a database: `fencepost serve`. Needs `fencepost[serve]`.

It completes decided transactions, aborts abandoned ones, expires producers' names, and deletes old claims, decisions
and requests. It serves `/metrics`, `/healthz` and `/readyz`. Any number of daemons may run on one database.
"""

from fencepost.daemon.daemon import Daemon
from fencepost.daemon.settings import Settings

__all__ = ["Daemon", "Settings"]
