"""Bytes and arrays from outside that claim more than they hold, or hold what nothing could give back.

What would end the interpreter is tried in one of its own, with a bound on its memory.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import fencepost as fp
import numpy as np
import pyarrow as pa
import pytest
from support.bounded import SPARE_BYTES, attempt, run


def test_the_limit_of_memory_is_enforced() -> None:
    done = attempt(f"bytearray({2 * SPARE_BYTES})")
    assert done.returncode != 0
    assert "MemoryError" in done.stderr


def sealed(head: bytes, frames: list[bytes]) -> bytes:
    out, checksum = bytearray(head), zlib.crc32(head)
    for frame in frames:
        part = struct.pack("<Q", len(frame)) + frame
        checksum = zlib.crc32(part, checksum)
        out += part + struct.pack("<I", checksum)
    return bytes(out)


def snapshot_of_keys_of(width: int) -> bytes:
    """No entry and no key, but keys are ``width`` bytes wide."""
    table = fp.StateTable("any_order")
    keys = {"pid": pa.array([b"\1" * 16], pa.binary(16)), "epoch": np.zeros(1, np.int16)}
    table.apply(keys | {"partition": np.zeros(1, np.int32), "seq": np.zeros(1, np.int32)})
    snapshot = table.snapshot()
    count = struct.unpack("<Q", snapshot[12:20])[0]
    header = bytearray(snapshot[20 : 20 + count])
    at = header.rindex(b"\3" + struct.pack("<IQ", 16, 1)) + 1
    header[at : at + 12] = struct.pack("<IQ", width, 0)
    header[-8:] = bytes(8)
    return sealed(snapshot[:12], [bytes(header)])


WIDTHS = [0, 16, 1 << 20, 1 << 30, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


def test_a_snapshot_without_keys_takes_no_room_for_them(tmp_path: Path) -> None:
    for width in WIDTHS:
        (tmp_path / str(width)).write_bytes(snapshot_of_keys_of(width))
    said = run(
        """
        for path in sys.argv[1:]:
            try:
                table = fp.StateTable.load(path)
                print(len(table), *(pa.table(it).num_rows for it in (table.entries(), table.missing())))
            except fp.SnapshotError as error:
                print(error.reason)
        """,
        *(tmp_path / str(width) for width in WIDTHS),
    )
    for width, line in zip(WIDTHS, said.split("\n"), strict=True):
        assert re.search("^0 0 0$" if width <= 1 << 30 else rf"key part has kind 3 .* {width} bytes", line), line


def test_lengths_of_spans_take_no_room_before_every_row_is_valid() -> None:
    """The first line claims 4 billion rows, the last one is at fault."""
    said = run(
        """
        for keep in ((), ("timestamp",)):
            for bad, wrong in dict(pid=-7, seq=-7, length=0).items():
                columns = dict(pid=[-1] * 3 + [1], epoch=[0] * 4, partition=[0] * 4, seq=[0] * 4, timestamp=[0] * 4)
                columns["length"] = [2**32 - 8] + [1] * 3
                columns[bad][3] = wrong
                table = fp.StateTable("any_order", keep=keep)
                before = table.snapshot()
                for lines in (columns, {name: values * 300 for name, values in columns.items()}):
                    try:
                        table.apply_spans(pa.table(lines), "length")
                    except fp.BatchError as error:
                        print(error.row)
                assert table.snapshot() == before
        """
    )
    assert said.split() == ["3"] * 12


TOP = 2**63 - 1
BATCH = {"pid": [1], "epoch": [0], "partition": [0], "base_seq": [0], "count": [1]}
AT_THE_TOP = {
    "data": BATCH | {"offset": [TOP]},
    "more records": BATCH | {"offset": [TOP - 4], "count": [5]},
    "a marker": BATCH | {"offset": [TOP], "control": ["commit"]},
    "not idempotent": BATCH | {"pid": [-1], "offset": [TOP]},
    "not idempotent, below 0": BATCH | {"pid": [-1], "offset": [-7]},
}


@pytest.mark.parametrize("offsets", ["given", "assign"])
@pytest.mark.parametrize("version", ["2.4", "4.3", "4.5"])
@pytest.mark.parametrize("case", AT_THE_TOP)
def test_every_table_of_produce_batches_can_be_stored(case: str, version: str, offsets: str) -> None:
    """Where logs' ends are remembered, the last offset leaves room for one."""
    table = fp.BrokerTable(version=version, offsets=offsets)
    batches = pa.table(AT_THE_TOP[case] | {"origin": ["replica"]})
    before = table.snapshot()
    if offsets == "assign" or version == "4.5":
        with pytest.raises(fp.BatchError) as caught:
            table.apply(batches)
        assert (caught.value.column, caught.value.row) == ("offset", 0)
        assert table.snapshot() == before
    else:
        table.apply(batches)
    assert fp.BrokerTable.restore(table.snapshot()).snapshot() == table.snapshot()


@pytest.mark.parametrize(("version", "offsets"), [("4.3", "assign"), ("4.5", "given")])
def test_a_full_log_accepts_no_more_batches(version: str, offsets: str) -> None:
    table = fp.BrokerTable(version=version, offsets=offsets)
    last = pa.table(BATCH | {"offset": [TOP - 1], "origin": ["replica"]})
    if offsets == "assign":
        both = {name: values * 2 for name, values in BATCH.items()}
        with pytest.raises(fp.PolicyError, match="takes no more batches"):
            table.apply(pa.table(both | {"offset": [TOP - 1, None], "origin": ["replica", "client"]}))
        assert table.log_end(0) == 0
    table.apply(last)
    assert table.log_end(0) == TOP
    assert fp.BrokerTable.restore(table.snapshot()).log_end(0) == TOP
    with pytest.raises(fp.PolicyError, match=f"ends at {TOP} takes no more"):
        table.apply(pa.table(BATCH | {"offset": pa.array([None], pa.int64())}))


def test_a_refused_log_end_adds_no_partition() -> None:
    table = fp.BrokerTable(offsets="assign")
    with pytest.raises(fp.PolicyError):
        table.set_log_end("europe", -5)
    table.set_log_end(3, 5)
    assert table.log_end(3) == 5


def rows(pid: pa.Array, **columns: object) -> pa.Table:
    count = len(pid)
    return pa.table({"pid": pid, "epoch": [0] * count, "partition": [0] * count, "seq": list(range(count))} | columns)


def refused(table: fp.StateTable, batch: object, columns: object = None) -> fp.BatchError:
    before = table.snapshot()
    with pytest.raises(fp.BatchError) as caught:
        table.apply(batch, columns)
    assert table.snapshot() == before
    table.apply(rows(pa.array([1])))
    return caught.value


@pytest.mark.parametrize(
    "values",
    [
        [b"ok", b"ok", b"\xff\xfe"],
        [b"long enough for a buffer", b"another that is long", b"and one that is no text: \xff\xfe"],
        [b"short", b"long enough for a buffer", b"\xff"],
    ],
)
def test_texts_that_are_not_utf8_are_refused(values: list[bytes]) -> None:
    """Arrow does not validate its buffers; a key that is not text could not be returned as text."""
    texts = pa.array(values).view(pa.string())
    for column in (texts, texts.dictionary_encode(), texts.cast(pa.string_view()), texts.cast(pa.large_string())):
        error = refused(fp.StateTable("any_order"), rows(column))
        assert (error.column, error.row) == ("pid", 2)
        assert "not UTF-8" in str(error)
    untracked = rows(pa.array([None, 1, 2]), partition=texts)
    assert refused(fp.StateTable("any_order"), untracked).row == 2


def test_a_key_has_at_most_64_parts() -> None:
    parts = {f"p{number}": ["x"] for number in range(65)}
    columns = fp.Columns(pid="pid", epoch="epoch", partition=tuple(parts), seq="seq")
    error = refused(fp.StateTable("any_order"), rows(pa.array([1]), **parts), columns)
    assert "at most 64 parts" in str(error)
    columns = fp.Columns(pid="pid", epoch="epoch", partition=tuple(parts)[:64], seq="seq")
    table = fp.StateTable("any_order")
    table.apply(rows(pa.array([1]), **parts), columns)
    assert len(fp.StateTable.restore(table.snapshot())) == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.binary((4 << 20) + 1)])
def test_a_part_of_a_key_has_at_most_4_mebibytes(kind: pa.DataType) -> None:
    error = refused(fp.StateTable("any_order"), rows(pa.array([b"k" * ((4 << 20) + 1)]).cast(kind)))
    assert error.column == "pid"
    assert f"{(4 << 20) + 1} bytes" in str(error)
    assert "at most 4194304" in str(error)
    fp.StateTable("any_order").apply(rows(pa.array([b"k" * (4 << 20)], pa.binary())))


@pytest.mark.matrix
def test_missing_ranges_have_as_many_batches_as_their_keys_need() -> None:
    """An array of more than 2 GiB exceeds its 32-bit offsets."""
    count = 520
    key = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["k" * (4 << 20)]))
    table = fp.StateTable("any_order")
    batch = pa.table(
        {"pid": key, "epoch": [0] * count, "partition": [0] * count, "seq": [2 * it for it in range(count)]}
    )
    verdicts = table.apply(batch)
    missing = pa.table(verdicts.missing)
    assert missing.num_rows == count - 1
    assert missing["first_seq"].to_pylist() == [2 * it + 1 for it in range(count - 1)]
    assert missing["pid"].num_chunks > 1
    assert len(table) == 1
