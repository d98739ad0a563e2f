"""Jobs over files: read what is new, judge it against the state, write what is kept, exactly once whatever dies.

Needs `fencepost[lake]` (pyarrow, numpy). The steps of a run are in `run`; what tasks do is in `scan`, `judge`,
`write` and `aligned`; how a run commits is in `fencepost.state`. `audit` looks at files and writes nothing.
"""

from fencepost.lake.auditing import audit
from fencepost.lake.engine import Engine, LocalEngine
from fencepost.lake.job import DedupJob
from fencepost.lake.kafka_log import KafkaLog
from fencepost.lake.report import RunReport

__all__ = ["DedupJob", "Engine", "KafkaLog", "LocalEngine", "RunReport", "audit"]
