"""The daemon of a database: `fencepost serve`. Needs `fencepost[serve]`.

It completes and aborts transactions that nobody ends, lets producers' names expire, forgets claims, decisions and
requests by age, and answers `/metrics`, `/healthz` and `/readyz`. Any number may run on one database.
"""

from fencepost.daemon.daemon import Daemon
from fencepost.daemon.settings import Settings

__all__ = ["Daemon", "Settings"]
