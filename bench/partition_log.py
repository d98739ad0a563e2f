"""Appends to a `PartitionLog`, batches of 100 rows of 100 bytes, against the write bandwidth of the disk.

Everybody writes to one file system. The disk's bandwidth is that of the same bytes in pieces of a megabyte, with one
sync at the end or with one for as many bytes as a call to `append_many` has, whichever is faster. An answer is (rows,
sum of offsets, checksum of the values), read back by `kafka.read_records`; of the bare bytes their number. The page
cache is written out before each round.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fencepost import Verdict, kafka

from bench.measure import Contestant, alternate, write_part

ROOT = Path(__file__).parent.parent
APPEND = "append to a log, batches of 100 rows of 100 bytes"
MANY, THREADS, INTERVAL, EACH = (
    "append_many of 1000 batches, group", "append from 32 threads, group", "append, interval", "append, each"
)  # fmt: skip
DISK, DISK_IN_CALLS = "write of the same bytes, one sync", "write of the same bytes, a sync for each 1000 batches"
BATCH_ROWS, ROW_BYTES, CALL_BATCHES, WRITERS = 100, 100, 1000, 32
SHARE, EACH_SHARE = 10, 100
"""Of the benchmark's rows one in so many is written, and of those batches one in so many that waits alone."""
PIECE = 1 << 20
DISK_SHARE_MIN, MILLIONS_MIN = 0.5, 1
"""What is to be reached: the one or the other."""

Answer = tuple[int, int, int]


def contest(rows: int, rounds: int) -> dict[str, Any]:
    """What belongs into the results."""
    batches = rows // SHARE // BATCH_ROWS // WRITERS * WRITERS
    random = np.random.default_rng(1)
    values = [random.bytes(ROW_BYTES) for _ in range(BATCH_ROWS)]
    # Not in /tmp, which may be memory.
    (ROOT / "target").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as scratch:
        folder = Path(scratch) / "bench-0"

        def ours(name: str, threads: int, sync: str, write: Callable[[Any, int], None], batches: int) -> Contestant:
            def run() -> Path:
                with kafka.PartitionLog(folder, sync=sync) as log:  # type: ignore[arg-type]
                    write(log, batches)
                    log.sync()
                return folder

            expected = _expected(values, batches)
            return Contestant(name=name, threads=threads, role="ours", run=run, expected=expected, answer=_read_back)

        size = _bytes_of(folder, values, batches)

        def bare(name: str, synced: int) -> Contestant:
            def run() -> Path:
                return _bare(folder, size, synced)

            return Contestant(name=name, threads=1, role="limit", run=run, expected=size, answer=_size_of)

        contestants = [
            ours(MANY, 1, "group", _many(values), batches),
            ours(THREADS, WRITERS, "group", _by_threads(values), batches),
            ours(INTERVAL, 1, "interval", _one_by_one(values), batches),
            bare(DISK, size),
            bare(DISK_IN_CALLS, size // batches * CALL_BATCHES),
        ]
        measurements = alternate(APPEND, contestants, batches * BATCH_ROWS, rounds, settle=_settle)
        few = max(WRITERS, batches // EACH_SHARE)
        alone = ours(EACH, 1, "each", _one_by_one(values), few)
        measurements += alternate(f"{APPEND}, each with a sync", [alone], few * BATCH_ROWS, rounds, settle=_settle)
    return {"measurements": [it.to_json() for it in measurements]}


def _many(values: list[bytes]) -> Callable[[Any, int], None]:
    def write(log: kafka.PartitionLog, batches: int) -> None:
        for start in range(0, batches, CALL_BATCHES):
            seqs = range(start * BATCH_ROWS, min(batches, start + CALL_BATCHES) * BATCH_ROWS, BATCH_ROWS)
            appended = log.append_many([(7, 0, seq, values) for seq in seqs])
            assert appended[-1] == (Verdict.ACCEPTED, seqs[-1])

    return write


def _by_threads(values: list[bytes]) -> Callable[[Any, int], None]:
    def write(log: kafka.PartitionLog, batches: int) -> None:
        def work(pid: int) -> None:
            for seq in range(0, batches // WRITERS * BATCH_ROWS, BATCH_ROWS):
                assert log.append(pid, 0, seq, values).verdict is Verdict.ACCEPTED

        threads = [threading.Thread(target=work, args=(pid,)) for pid in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return write


def _one_by_one(values: list[bytes]) -> Callable[[Any, int], None]:
    def write(log: kafka.PartitionLog, batches: int) -> None:
        for seq in range(0, batches * BATCH_ROWS, BATCH_ROWS):
            assert log.append(7, 0, seq, values) == (Verdict.ACCEPTED, seq)

    return write


def _expected(values: list[bytes], batches: int) -> Answer:
    rows, checksum = batches * BATCH_ROWS, 0
    for _ in range(batches):
        checksum = zlib.crc32(b"".join(values), checksum)
    return rows, rows * (rows - 1) // 2, checksum


def _read_back(folder: Path) -> Answer:
    rows, offsets, checksum = 0, 0, 0
    for batch in kafka.read_records(folder, isolation="read_uncommitted"):
        some = pa.record_batch(batch)
        rows, offsets = rows + len(some), offsets + pc.sum(some["offset"]).as_py()
        checksum = zlib.crc32(_bytes(some["value"]), checksum)
    shutil.rmtree(folder)
    return rows, offsets, checksum


def _bytes(column: Any) -> Any:
    """The values of a binary column, one behind the other."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(column.buffers()[2])[offsets[0] : offsets[-1]]


def _bytes_of(folder: Path, values: list[bytes], batches: int) -> int:
    """What a log of so many batches comes to: all of them have one length, but for the digits of their times."""
    with kafka.PartitionLog(folder, sync="interval") as log:
        log.append(7, 0, 0, values)
    size = sum(it.stat().st_size for it in folder.glob("*.log"))
    shutil.rmtree(folder)
    return size * batches


def _bare(folder: Path, size: int, synced: int) -> Path:
    """Writes so many bytes, and syncs behind each `synced` of them."""
    folder.mkdir()
    piece = memoryview(os.urandom(PIECE))
    with (folder / "bytes").open("wb", buffering=0) as file:
        for start in range(0, size, synced):
            for left in range(min(synced, size - start), 0, -PIECE):
                file.write(piece[:left])
            os.fdatasync(file.fileno())
    return folder


def _size_of(folder: Path) -> int:
    size = (folder / "bytes").stat().st_size
    shutil.rmtree(folder)
    return size


def _settle() -> None:
    gc.collect()
    os.sync()


if __name__ == "__main__":
    write_part(contest)
