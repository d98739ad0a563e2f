"""No file of a job on Spark contains its credentials, wherever it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import IS_CONNECT
from support.s3_server import BUCKET
from support.secret_objects import objects_of, options_of, put_log
from support.secret_runs import SECRETS, contents_of, files_with, start_killed


@pytest.mark.matrix  # tests/jobs/test_secrets.py has the same without Spark
@pytest.mark.skipif(IS_CONNECT, reason="a driver of its own")
def test_nothing_that_a_killed_run_leaves_has_a_credential(endpoint: str, tmp_path: Path) -> None:
    settings = {
        "engine": "spark",
        "spark": str(tmp_path / "spark"),
        "source": put_log(endpoint, "orders-0"),
        "log_options": options_of(endpoint),
        "state": f"s3://{BUCKET}/spark",
        "state_options": options_of(endpoint),
        "sink": str(tmp_path / "sink"),
    }
    plans: set[str] = set()
    for step in ("judge", "decide"):
        start_killed({**settings, "step": step})
        left = dict(contents_of(tmp_path))
        plans |= {Path(name).name.partition("-")[0] for name in left if name.endswith(".plan")}
        assert files_with(SECRETS, left.items()) == []
        assert files_with(SECRETS, objects_of(endpoint)) == []
    assert plans == {"export", "scan", "judge", "write"}
