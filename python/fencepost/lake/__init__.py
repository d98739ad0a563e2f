"""Jobs over files: read new files, judge them against the state, and write the kept rows exactly once.

Needs `fencepost[lake]` (pyarrow, numpy). `run` contains the steps of a run; `scan`, `judge`, `write` and `aligned`
contain what tasks do; `fencepost.state` contains the commit. `audit` reads files and writes nothing. `dataset` and
`applied_files` are for readers of a job's output.
"""

from typing import TYPE_CHECKING, Any

from fencepost.lake.job import DedupJob
from fencepost.lake.kafka_log import KafkaLog
from fencepost.lake.run_report import RunReport
from fencepost.state.engine import Engine, LocalEngine

if TYPE_CHECKING:
    from fencepost.lake.advising import advise
    from fencepost.lake.auditing import audit
    from fencepost.lake.reading import applied_files, dataset

__all__ = ["DedupJob", "Engine", "KafkaLog", "LocalEngine", "RunReport", "advise", "applied_files", "audit", "dataset"]


def __getattr__(name: str) -> Any:
    # Imported on first use: runs need neither these functions nor their imports.
    if name == "audit":
        from fencepost.lake.auditing import audit

        return audit
    if name == "advise":
        from fencepost.lake.advising import advise

        return advise
    if name in ("dataset", "applied_files"):
        from fencepost.lake import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
