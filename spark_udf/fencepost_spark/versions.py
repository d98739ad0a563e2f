"""Checks that the package, the core wheel, the driver and every worker have the same version."""

from __future__ import annotations

from importlib.metadata import version

import fencepost

__version__ = version("fencepost-spark")

if fencepost.__version__ != __version__:
    raise ImportError(
        f"fencepost-spark {__version__} needs fencepost {__version__}, found {fencepost.__version__}: install both in "
        "the same version"
    )


def check_worker(driver: str) -> None:
    """Raise ImportError if the driver has another version: verdicts and snapshots of two versions may differ.

    Every task calls it with the version that the driver put into the closure.
    """
    if driver != __version__:
        raise ImportError(
            f"the driver runs fencepost-spark {driver}, this worker {__version__}: install the same version on every "
            "node"
        )
