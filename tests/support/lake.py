"""Folders of made rows, jobs over them, and drivers that end at a step."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import fencepost as fp
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import state
from fencepost.lake import DedupJob


def one_producer(seqs: Iterable[int], pid: Any = 1, **columns: Any) -> pa.Table:
    """Rows of one producer, all in one epoch and partition, with other columns after their identity."""
    listed = list(seqs)
    zeros = [0] * len(listed)
    return pa.table({"pid": [pid] * len(listed), "epoch": zeros, "partition": zeros, "seq": listed, **columns})


def amounts(seqs: list[int], values: list[Any], *, pid: int = 7, **columns: Any) -> pa.Table:
    return one_producer(seqs, pid, amount=values, **columns)


T = TypeVar("T")


R = TypeVar("R")


IDENTITY = ["pid", "epoch", "partition", "seq"]
IS_TRACKED = pl.col("pid").is_not_null() & (pl.col("pid") != -1)


SCHEMA = pa.schema(
    [
        ("pid", pa.int64()),
        ("epoch", pa.int16()),
        ("partition", pa.int32()),
        ("seq", pa.int32()),
        ("origin", pa.string()),
    ]
)


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    """The rows with other values in a column."""
    return rows.set_column(rows.column_names.index(name), name, values)


def make_rows(seed: int, count: int = 600) -> pa.Table:
    """Rows with repeats near and far, two epochs, holes and untracked rows; `origin` is another in every row."""
    rng = np.random.default_rng(seed)
    pid = rng.integers(-1, 6, count)
    return pa.table(
        {
            "pid": pa.array(pid, mask=rng.random(count) < 0.02),
            "epoch": rng.integers(0, 2, count),
            "partition": rng.integers(0, 3, count),
            "seq": rng.integers(0, 60, count) + (pid == 0) * 100,
            "origin": [f"{seed}:{row}" for row in range(count)],
        },
    ).cast(SCHEMA)


def land(folder: Path, name: str, rows: pa.Table, **options: Any) -> Path:
    """Put a file into a landing folder at once, as a sink does."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f".{name}.part", **{"row_group_size": 250, **options})
    return (folder / f".{name}.part").rename(folder / name)


def land_some(root: Path, seeds: Iterable[int] = range(4)) -> None:
    for seed in seeds:
        land(root / "source", f"{seed}.parquet", make_rows(seed))


def make_job(root: Path, **arguments: Any) -> DedupJob:
    return DedupJob(root / "source", root / "state", root / "sink", **arguments)


def read_sink(root: Path) -> pl.DataFrame:
    """All rows of all versions, in the order (version, file, row)."""
    folders = sorted((root / "sink").glob("run=*"), key=lambda folder: int(folder.name[4:]))
    tables = [pq.read_table(file, partitioning=None) for folder in folders for file in sorted(folder.glob("*.parquet"))]
    return pl.DataFrame(pa.concat_tables(tables)) if tables else pl.DataFrame(SCHEMA.empty_table())


def read_source(root: Path) -> pl.DataFrame:
    files = sorted((root / "source").glob("*.parquet"))
    return pl.DataFrame(pa.concat_tables([pq.read_table(file) for file in files]))


def first_of_each(rows: pl.DataFrame, keys: list[str] = IDENTITY) -> pl.DataFrame:
    """What `any_order` must keep, by brute force."""
    return rows.filter(~IS_TRACKED | pl.struct(keys).is_first_distinct())


def identities(rows: pl.DataFrame) -> pl.DataFrame:
    """Those of the rows with a producer, sorted."""
    return rows.filter(IS_TRACKED).select(IDENTITY).sort(IDENTITY)


def expected_of(root: Path) -> pl.DataFrame:
    """What `any_order` must keep of a source, in the order of all columns."""
    return first_of_each(read_source(root)).sort(SCHEMA.names)


def hashes(folder: Path) -> dict[str, str]:
    """Every file beneath a folder and the hash of its content."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def output_hashes(root: Path) -> dict[str, str]:
    """The same of the versions of a sink."""
    return {name: value for name, value in hashes(root / "sink").items() if name.startswith("run=")}


def state_hashes(root: Path) -> list[dict[int, str]]:
    """For each version, the hash of each shard's content, independent of its division into bases and deltas."""
    opened = state.open(root / "state")
    return [
        {shard: hashlib.sha256(table.snapshot()).hexdigest() for shard, table in opened.tables(version.version)}
        for version in opened.versions()
    ]


class RetryingEngine:
    """Pickles everything, runs each item three times in some order, and takes the second result."""

    name = "retrying"
    slots = 2
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def run(
        self,
        stage: str,
        work: Callable[[T], R],
        items: Sequence[T],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[R]:
        attempts = [work_on for item in reversed(items) for work_on in [pickle.dumps((work, item))] * 3]
        results = [pickle.dumps(work(item)) for work, item in map(pickle.loads, attempts)]
        return [pickle.loads(result) for result in results[1::3]][::-1]


def flip_byte(file: Path, column: str = "origin") -> None:
    """In a page of a column: of the payload, so that the identity can be read, or of another one."""
    pq.write_table(pq.read_table(file), file, write_page_checksum=True, row_group_size=600)
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(pq.read_schema(file).get_field_index(column))
    data = bytearray(file.read_bytes())
    data[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2] ^= 1
    file.write_bytes(data)


class Crash(BaseException):
    """The process dies: nothing it would do afterwards happens."""


@contextmanager
def dead_before(owner: Any, name: str) -> Iterator[None]:
    """What runs in this context dies before a step, which is a function of a class or a module."""

    def die(*_: Any) -> Any:
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(Crash):
            yield


DISK_CALLS = ("link", "rename", "fsync", "mkdir", "unlink", "rmdir")


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, call: int) -> Iterator[list[int]]:
    """From the `call`-th change to the disk on, every change raises Crash. Gives a list of one: the calls so far."""
    calls = [0]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] >= call:
                raise Crash
            return real(*arguments, **options)

        return act

    with monkeypatch.context() as patch:
        for name in DISK_CALLS:
            patch.setattr(os, name, dying(getattr(os, name)))
        yield calls


def template_of(world: Path, versions: int, run: Callable[[Path], int | None]) -> Callable[[], None]:
    """Lands files, two of them in so many earlier versions. Returns a function that makes the same world again."""
    template = world.with_name("template")
    if versions:
        land_some(world, [0, 1])
        run(world)
    land_some(world, [2, 3])
    world.rename(template)

    def restore_world() -> None:
        shutil.rmtree(world, ignore_errors=True)
        shutil.copytree(template, world, copy_function=os.link)  # the ledger knows inodes

    return restore_world


def check_copies_of_a_state(
    root: Path, sink: Any, make: Callable[[Path], DedupJob], open_state: Callable[[Path], state.State]
) -> None:
    """Two copies of a state check their table before either writes. The rows of the slower one were lost.

    `sink`: the class of the sink. `make`: returns a job with a state in this folder.
    """
    land(root / "source", "0.parquet", make_rows(0, 1))
    make(root / "state").run()
    shutil.copytree(root / "state", root / "copy")
    land(root / "source", "1.parquet", make_rows(1, 1))
    late = land(root / "source", "2.parquet", make_rows(2, 1))
    with pytest.MonkeyPatch.context() as patch:
        real = sink._write

        def write(*arguments: Any) -> None:
            patch.undo()
            late.rename(root / "2.parquet")
            assert make(root / "copy").run().version == 2
            (root / "2.parquet").rename(late)
            real(*arguments)

        patch.setattr(sink, "_write", write)
        slower = [make(root / "state").run] * 2
        for call in (*slower, lambda: open_state(root).abandon(2)):
            with pytest.raises(fp.SinkError, match=r"version 2 .* made with another copy"):
                call()
    assert open_state(root).done() == 1


def check_a_late_abandon(
    root: Path, sink: Any, run: Callable[[Path], int | None], open_state: Callable[[Path], state.State], beside: Path
) -> None:
    """Others finish the version and the next one, and remove files beside its rows, while an abandon is paused.

    `sink`: the class of the sink. `beside`: the folder of its side tables. The abandon must not remove rows.
    """
    land_some(root, [0])
    run(root)
    land_some(root, [1])
    with dead_before(sink, "apply"):
        run(root)
    real = sink.fence

    def fence(own: Any, decision: Any) -> str:
        assert run(root) is None
        land_some(root, [2])
        assert run(root) == 3
        for path in list((beside / "run=2").rglob("*.parquet")):
            path.unlink()
        return str(real(own, decision))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "fence", fence)
        with pytest.raises(fp.SinkError, match="have finished version 2"):
            open_state(root).abandon(2)
