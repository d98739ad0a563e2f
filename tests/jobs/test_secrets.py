"""No file of a job contains its credentials, wherever it is killed."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fencepost.state.stores import open_store
from support.lake import one_producer
from support.s3_server import BUCKET
from support.secret_objects import objects_of, options_of, put_log
from support.secret_runs import SECRETS, contents_of, files_with, start_killed

STEPS = ("export", "judge", "write", "collect", "decide", "recover")
"""Each run repeats the version in which the run before was killed. The last run finishes the decided version."""


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_nothing_that_a_killed_run_leaves_has_a_credential(tmp_path: Path, endpoint: str, engine: str) -> None:
    settings = {
        "engine": engine,
        "source": put_log(endpoint, "orders-0"),
        "log_options": options_of(endpoint),
        "state": f"s3://{BUCKET}/{engine}",
        "state_options": options_of(endpoint),
        "sink": str(tmp_path / "sink"),
    }
    plans: set[str] = set()
    for step in STEPS if engine == "processes" else STEPS[-2:]:
        start_killed({**settings, "step": step})
        left = dict(contents_of(tmp_path))
        assert left, "nothing was looked at"
        plans |= {Path(name).name.partition("-")[0] for name in left if name.endswith(".plan")}
        assert files_with(SECRETS, left.items()) == []
        assert files_with(SECRETS, objects_of(endpoint)) == []
    assert any(name.startswith(f"{engine}/done/") for name, _ in objects_of(endpoint))
    assert plans == ({"export", "scan", "judge", "write"} if engine == "processes" else set())


def test_nothing_has_a_credential_of_a_source(tmp_path: Path, endpoint: str) -> None:
    store = open_store(f"s3://{BUCKET}/landing", options=options_of(endpoint))
    pq.write_table(one_producer(range(9)), tmp_path / "x")
    for name in ("a.parquet", "b.parquet"):
        store.put(name, (tmp_path / "x").read_bytes())
    settings = {
        "engine": "processes",
        "source": f"s3://{BUCKET}/landing",
        "source_options": options_of(endpoint),
        "state": str(tmp_path / "state"),
        "sink": str(tmp_path / "sink"),
    }
    plans: set[str] = set()
    for step in ("write", "decide"):
        start_killed({**settings, "step": step})
        left = dict(contents_of(tmp_path))
        plans |= {Path(name).name.partition("-")[0] for name in left if name.endswith(".plan")}
        assert files_with(SECRETS, left.items()) == []
    assert {"scan", "write"} <= plans


@pytest.mark.parametrize("secret", SECRETS)
def test_a_credential_that_was_written_is_found(tmp_path: Path, endpoint: str, secret: str) -> None:
    options = {**options_of(endpoint), "secret_access_key": secret}
    planted = {
        "pickled.plan": pickle.dumps(open_store(f"s3://{BUCKET}/x", options=options)),
        "plan.json": json.dumps(options).encode(),
        **{f"base64-{shift}": json_base64(b"." * shift + secret.encode() + b"...") for shift in range(3)},
        "utf16": f"options: {secret}".encode("utf-16"),
    }
    (tmp_path / "deep" / "_prepare").mkdir(parents=True)
    for name, data in planted.items():
        (tmp_path / "deep" / "_prepare" / name).write_bytes(data)
    (tmp_path / "deep" / "clean").write_bytes(secret[:-1].encode())
    found = {Path(it).name for it in files_with([secret], contents_of(tmp_path))}
    assert found == set(planted)
    store = open_store(f"s3://{BUCKET}/planted", options=options_of(endpoint))
    store.put("body/1.json", planted["plan.json"])
    assert files_with([secret], objects_of(endpoint)) == ["planted/body/1.json"]
    store.delete(["body/1.json"])
    shutil.rmtree(tmp_path)


def json_base64(data: bytes) -> bytes:
    import base64

    return json.dumps({"base64": base64.b64encode(data).decode()}).encode()
