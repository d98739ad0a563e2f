"""Objects of runs that know credentials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore
from fencepost.state.stores import open_store
from obstore.store import S3Store

from support.kafka_logs import DATA
from support.s3_server import BUCKET, s3_options
from support.secret_runs import SECRETS


def options_of(endpoint: str) -> dict[str, Any]:
    return s3_options(endpoint, *SECRETS)


def objects_of(endpoint: str) -> Iterator[tuple[str, bytes]]:
    """All that is in the bucket."""
    store = S3Store(
        BUCKET,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="other",
        secret_access_key="other",
        client_options={"allow_http": True},
    )
    for page in obstore.list(store):
        for entry in page:
            yield entry["path"], bytes(obstore.get(store, entry["path"]).bytes())


def put_log(endpoint: str, name: str) -> str:
    """A partition of Kafka's in the bucket; gives the URI of the folder above."""
    store = open_store(f"s3://{BUCKET}/logs", options=options_of(endpoint))
    for file in (DATA / name).iterdir():
        if file.suffix == ".log":
            store.put(f"{name}/{file.name}", file.read_bytes())
    return f"s3://{BUCKET}/logs"
