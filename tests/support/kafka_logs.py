"""Partition folders that a broker wrote, their truth files, and copies: folders as they were, or might have become."""

from __future__ import annotations

import csv
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from fencepost import kafka

DATA = Path(__file__).parents[1] / "data" / "kafka-segments"
PARTITIONS = sorted(path.name for path in DATA.iterdir() if path.is_dir())


def read_csv(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def rows_of(stream: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(stream).to_pylist()
    return found


def batches_of(folder: Path) -> list[dict[str, Any]]:
    return rows_of(kafka.read_batches(folder))


def batches_in(folder: Path) -> Iterator[bytes]:
    """The bytes of each batch, by the length in its header."""
    for segment in sorted(folder.glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at < len(data):
            end = at + 12 + struct.unpack_from(">i", data, at + 8)[0]
            assert end <= len(data)
            yield data[at:end]
            at = end


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Changes bits of a byte in a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def copy_upto(name: str, root: Path, end: int) -> Path:
    """Restore a partition to its state before the batch at offset `end`."""
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for batch in batches_of(DATA / name):
        if batch["base_offset"] < end:
            data = (DATA / name / batch["segment"]).read_bytes()
            with open(folder / batch["segment"], "ab") as file:
                file.write(data[batch["position"] : batch["position"] + batch["bytes"]])
    return folder


def append_again(folder: Path, batch: dict[str, Any]) -> None:
    """Append a producer's batch again, like a broker that has forgotten the producer."""
    data = (folder / batch["segment"]).read_bytes()
    copied = data[batch["position"] + 8 : batch["position"] + batch["bytes"]]  # the offset is in no checksum
    last = batches_of(folder)[-1]
    with open(folder / last["segment"], "ab") as file:
        file.write(struct.pack(">q", last["last_offset"] + 1) + copied)
