"""Jobs over files: read what is new, judge it against the state, write what is kept, exactly once whatever dies.

Needs `fencepost[lake]` (pyarrow, numpy). The steps of a run are in `run`; what tasks do is in `scan`, `judge`,
`write` and `aligned`; how a run commits is in `fencepost.state`. `audit` looks at files and writes nothing.
`dataset` and `shown_files` are for those who read what a job has written.
"""

from typing import TYPE_CHECKING, Any

from fencepost.lake.job import DedupJob
from fencepost.lake.kafka_log import KafkaLog
from fencepost.lake.report import RunReport
from fencepost.state.engine import Engine, LocalEngine

if TYPE_CHECKING:
    from fencepost.lake.advising import advise
    from fencepost.lake.auditing import audit
    from fencepost.lake.reading import dataset, shown_files

__all__ = ["DedupJob", "Engine", "KafkaLog", "LocalEngine", "RunReport", "advise", "audit", "dataset", "shown_files"]


def __getattr__(name: str) -> Any:
    # A run needs neither these nor what they import.
    if name == "audit":
        from fencepost.lake.auditing import audit

        return audit
    if name == "advise":
        from fencepost.lake.advising import advise

        return advise
    if name in ("dataset", "shown_files"):
        from fencepost.lake import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
