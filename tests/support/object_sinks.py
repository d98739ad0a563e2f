"""Buckets as sources and sinks of jobs, and drivers that end at a step."""

from __future__ import annotations

import io
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import state as states
from fencepost.lake import DedupJob, applied_files, dataset
from fencepost.state.prefix import RunPrefixes
from fencepost.state.stores import RemoteStore, open_store

from support.lake import Crash, one_producer
from support.s3_server import BUCKET, SECRET, s3_options


class Bucket:
    """Source, state and sink, each beneath a prefix of its own; the source also in a folder."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.root = f"s3://{BUCKET}/{os.urandom(8).hex()}"
        self.options = s3_options(endpoint)

    def store(self, name: str) -> RemoteStore:
        store = open_store(f"{self.root}/{name}", options=self.options)
        assert isinstance(store, RemoteStore)
        return store

    def sink(self) -> RunPrefixes:
        return RunPrefixes(self.store("sink"))

    def state(self) -> Any:
        return states.open(f"{self.root}/state", options=self.options, sink_options=self.options)

    def land(self, name: str, table: pa.Table, **options: Any) -> None:
        path = self.folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
        store = self.store("source")
        store._client.put(store._store, name, path.read_bytes())

    def job(self, *, sink_endpoint: str = "", **options: Any) -> DedupJob:
        sink = {**self.options, "endpoint": sink_endpoint or self.options["endpoint"]}
        given = {"source_options": self.options, "state_options": self.options, "sink_options": sink}
        places = [f"{self.root}/{name}" for name in ("source", "state", "sink")]
        return DedupJob(*places, **{"settle_ms": 0, **given, **options})  # type: ignore[arg-type]

    def near(self, **options: Any) -> DedupJob:
        places = [self.folder / name for name in ("source", "state", "sink")]
        return DedupJob(*places, **{"settle_ms": 0, **options})

    def listed(self) -> dict[str, bytes]:
        """The objects of the sink, by name."""
        store = self.store("sink")
        return {name: store.read(name) for name, _, _ in store.listing()}

    def check(self, versions: int) -> None:
        """The sink has just what the folder has, version by version, and no rest."""
        listed = self.listed()
        wanted = {
            str(it.relative_to(self.folder / "sink")): pq.ParquetFile(it).read()
            for it in (self.folder / "sink").glob("run=*/**/*.parquet")
        }
        found = {
            name: pq.ParquetFile(io.BytesIO(data)).read() for name, data in listed.items() if name.endswith(".parquet")
        }
        assert found.keys() == wanted.keys()
        for name, table in wanted.items():
            assert found[name].sort_by(table.column_names[0]).equals(table.sort_by(table.column_names[0])), name
        others = {name for name in listed if not name.endswith(".parquet")}
        numbers = range(1, versions + 1)
        assert others == {
            "_fencepost.json",
            *(f"_versions/{number}.json" for number in numbers),
            *(f"run={number}/_SUCCESS" for number in numbers),
        }
        assert not [name for name, data in listed.items() if SECRET.encode() in data]
        shown = [name for name in sorted(wanted) if "/_" not in name]
        assert applied_files(f"{self.root}/sink", self.options) == [f"{self.root}/sink/{name}" for name in shown]
        near, far = dataset(self.folder / "sink"), dataset(f"{self.root}/sink", self.options)
        assert sorted_rows(far.to_table()) == sorted_rows(near.to_table())


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def rows(first: int, count: int, pid: int = 1, **more: Any) -> pa.Table:
    numbers = range(first, first + count)
    return one_producer(numbers, pid, payload=[f"{pid}-{number}" * 20 for number in numbers], **more)


def land_some(bucket: Bucket) -> None:
    bucket.land("day=1/a.parquet", rows(0, 3000), row_group_size=700, use_dictionary=["payload"])
    bucket.land("day=1/b.parquet", rows(2500, 1500), row_group_size=400, compression="zstd")
    bucket.land("day=2/clean.parquet", rows(0, 500, pid=2))
    bucket.land("day=2/repeats.parquet", rows(100, 50, pid=2))


COUNTS = {"ACCEPTED": 4500, "DUPLICATE": 550}


REQUESTS = ("put", "copy", "delete", "listing", "names_at_top", "upload", "read", "head")


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, moment: str, uri: str) -> None:
    """The driver dies at the request of this number, "before" or "after" the store has answered."""
    lock, numbers = threading.Lock(), itertools.count(1)

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: RemoteStore, *arguments: Any, **named: Any) -> Any:
            if not self.uri.startswith(uri):
                return real(self, *arguments, **named)
            with lock:
                is_last = next(numbers) == number
            if is_last and moment == "before":
                raise Crash
            try:
                return real(self, *arguments, **named)
            finally:
                if is_last:
                    raise Crash

        return call

    for name in REQUESTS:
        monkeypatch.setattr(RemoteStore, name, wrap(getattr(RemoteStore, name)))
