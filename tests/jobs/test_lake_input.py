"""Bad input to a job: its own clear error that names the file, output and state unchanged, and a way on afterwards."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.lake import DedupJob, arranging, audit, write
from support import daily
from support.lake import (
    first_of_each,
    flip_byte,
    hashes,
    land,
    land_some,
    make_job,
    make_rows,
    one_producer,
    read_sink,
    read_source,
    with_column,
)


def with_value(column: str, row: int, value: int | None) -> pa.Table:
    """The rows of seed 9, tracked, with another value in one place."""
    rows = make_rows(9)
    rows = rows.set_column(0, "pid", pa.array([1] * len(rows), pa.int64()))
    values = rows[column].cast(pa.int64()).to_pylist()
    values[row] = value
    return with_column(rows, column, pa.array(values, pa.int64()))


BAD_ROWS: dict[str, tuple[Callable[[], pa.Table], str, str, int | None]] = {
    "missing column": (
        lambda: make_rows(9).drop_columns("epoch"),
        "epoch",
        "column 'epoch': missing; it has pid, partition, seq, origin",
        None,
    ),
    "null seq": (lambda: with_value("seq", 471, None), "seq", "column 'seq', row 471: ", 471),
    "negative epoch": (lambda: with_value("epoch", 3, -1), "epoch", "column 'epoch', row 3: ", 3),
    "seq behind the wrap": (lambda: with_value("seq", 599, 2**31), "seq", "column 'seq', row 599: ", 599),
    "null partition": (lambda: with_value("partition", 5, None), "partition", "column 'partition', row 5: ", 5),
    "negative pid": (lambda: with_value("pid", 250, -2), "pid", "column 'pid', row 250: ", 250),
    "text seq": (lambda: with_column(make_rows(9), "seq", pa.array(["1"] * 600)), "seq", "column 'seq': ", None),
    "time as pid": (lambda: with_column(make_rows(9), "pid", pa.array([1.5] * 600)), "pid", "column 'pid': ", None),
}


@pytest.mark.parametrize(
    ("case", "runs_before"),
    daily.each_value(BAD_ROWS, (0, 1)),
)
def test_bad_rows(tmp_path: Path, case: str, runs_before: int) -> None:
    make, column, message, row = BAD_ROWS[case]
    land_some(tmp_path, [0, 1])
    if runs_before:
        make_job(tmp_path).run()
    land_some(tmp_path, [2])
    bad = land(tmp_path / "source", "bad.parquet", make())
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError) as caught:
        make_job(tmp_path).run()
    assert caught.value.message.startswith(f"{bad}: {message}")
    assert (caught.value.column, caught.value.row) == (column, row)
    assert hashes(tmp_path) == before
    bad.unlink()
    assert make_job(tmp_path).run().version == 1 + runs_before
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


def test_bad_row_under_an_order(tmp_path: Path) -> None:
    land_some(tmp_path, [0, 1])
    bad = land(tmp_path / "source", "bad.parquet", with_value("seq", 471, None))
    with pytest.raises(fp.BatchError, match="column 'seq', row 471: ") as caught:
        make_job(tmp_path, order_by=["partition", "epoch"]).run()
    assert str(bad) in str(caught.value)
    rows = with_column(make_rows(9), "origin", pa.array(["x"] * 590 + [None] * 10))
    bad.unlink()
    land(tmp_path / "source", "bad.parquet", rows)
    with pytest.raises(fp.BatchError, match="column 'origin', row 590: null") as caught:
        make_job(tmp_path, order_by="origin").run()
    assert (caught.value.column, caught.value.row) == ("origin", 590)
    times = [float("nan") if row == 470 else float(row) for row in range(600)]
    land(tmp_path / "source", "bad.parquet", with_value("seq", 0, 0).set_column(4, "origin", pa.array(times)))
    (tmp_path / "source").rename(tmp_path / "others")
    (tmp_path / "source").mkdir()
    (tmp_path / "others" / "bad.parquet").rename(bad)
    with pytest.raises(fp.BatchError, match="column 'origin', row 470: NaN, but order_by needs a value"):
        make_job(tmp_path, policy="in_order", order_by="origin").run()


def test_a_key_type_that_changes(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    texts = with_column(make_rows(9), "pid", make_rows(9)["pid"].cast(pa.string()))
    other = land(tmp_path / "source", "other.parquet", texts)
    with pytest.raises(fp.BatchError, match="column 'pid'") as caught:
        make_job(tmp_path).run()
    assert str(other) in str(caught.value)
    assert not hashes(tmp_path / "sink")
    other.rename(tmp_path / "other.parquet")
    make_job(tmp_path).run()
    (tmp_path / "other.parquet").rename(other)
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError, match=r"other.parquet.*'pid'"):
        make_job(tmp_path).run()
    assert hashes(tmp_path) == before


FIXED = one_producer([0, 1]).set_column(0, "pid", pa.array([b"x"] * 2, pa.binary(1)))


@pytest.mark.parametrize(
    ("first", "later", "kinds"),
    [
        (one_producer([0], 7), one_producer([0], "7"), ("integer", "string")),
        (one_producer([0], "7"), one_producer([0], b"7"), ("string", "binary")),
        (one_producer([0], b"x"), FIXED, ("binary", r"fixed_size_binary\[1\]")),
    ],
)
def test_a_key_type_that_changes_in_another_shard(
    tmp_path: Path, first: pa.Table, later: pa.Table, kinds: tuple[str, str]
) -> None:
    """Shards know their own keys only: the decision knows the type of all."""
    land(tmp_path / "source", "a.parquet", first)
    make_job(tmp_path, plan="interval", shards=64).run()
    other = land(tmp_path / "source", "b.parquet", later)
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError, match=rf"b.parquet: column 'pid': .* {kinds[1]}; .* the type {kinds[0]}"):
        make_job(tmp_path, plan="interval").run()
    assert hashes(tmp_path) == before
    other.unlink()
    # What went with a rollback is known no more.
    for file in (tmp_path / "sink" / "run=1").glob("*.parquet"):
        file.unlink()
    (tmp_path / "source" / "a.parquet").unlink()
    state.open(tmp_path / "state").rollback(0)
    land(tmp_path / "source", "b.parquet", later)
    assert make_job(tmp_path).run().kept == len(set(later["seq"].to_pylist()))


def test_untracked_rows_have_no_type_of_key(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([0, 1], None).set_column(0, "pid", pa.nulls(2, pa.int64())))
    assert make_job(tmp_path).run().counts == {"UNTRACKED": 2}
    assert "pid" not in state.open(tmp_path / "state").version(1).key_types
    land(tmp_path / "source", "b.parquet", one_producer([0, 0], 7))
    assert make_job(tmp_path).run().counts == {"ACCEPTED": 1, "DUPLICATE": 1}
    assert state.open(tmp_path / "state").version(2).key_types["pid"] == "integer"


def test_the_type_of_a_folders_key_is_that_of_the_first_run(tmp_path: Path) -> None:
    rows, columns = one_producer([1, 2, 3]), fp.Columns(partition="region")
    for region in ("eu", "1"):
        land(tmp_path / "source" / f"region={region}", "a.parquet", rows)
    assert make_job(tmp_path, columns=columns).run().counts == {"ACCEPTED": 6}
    land(tmp_path / "source" / "region=1", "b.parquet", rows)
    assert make_job(tmp_path, columns=columns).run().counts == {"DUPLICATE": 3}


@pytest.mark.parametrize("region", ["eu", "01", "+1", str(2**63)])
def test_a_folder_of_text_after_numbers(tmp_path: Path, region: str) -> None:
    columns = fp.Columns(partition="region")
    land(tmp_path / "source" / "region=1", "a.parquet", one_producer([1]))
    make_job(tmp_path, columns=columns).run()
    bad = land(tmp_path / "source" / f"region={region}", "b.parquet", one_producer([1]))
    before = hashes(tmp_path)
    with pytest.raises(fp.BatchError, match=r"column 'region': .* is no.* integer of 64 bits") as caught:
        make_job(tmp_path, columns=columns).run()
    assert (str(bad) in str(caught.value), hashes(tmp_path)) == (True, before)
    # In a state of their own, all of them are text, and none is taken for another.
    job = DedupJob(tmp_path / "source", tmp_path / "another", tmp_path / "other", columns=columns)
    assert job.run().counts == {"ACCEPTED": 2}


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([1]))
    Path(os.fsdecode(os.fsencode(tmp_path / "source") + b"/\xff.parquet")).touch()
    with pytest.raises(fp.SourceError, match=r"\\xff.parquet: the name is not UTF-8"):
        make_job(tmp_path).run()


@pytest.mark.parametrize("name", ["_row", "_file", "_length"])
def test_names_that_are_taken(tmp_path: Path, name: str) -> None:
    for arguments in ({"order_by": name}, {"order_by": ["seq", name]}, {"columns": fp.Columns(pid=("pid", name))}):
        with pytest.raises(fp.BatchError, match=f"column '{name}': the job uses"):
            make_job(tmp_path, **arguments)
    land(tmp_path / "source", "a.parquet", one_producer([1]))
    with pytest.raises(fp.BatchError, match=f"column '{name}': the job uses"):
        audit(tmp_path / "source", columns=fp.Columns(seq=name))


@pytest.mark.parametrize("values", [pa.array([1.0], pa.float16()), pa.array([[1]]), pa.array([{"a": 1}])])
def test_an_order_by_what_has_none(tmp_path: Path, values: pa.Array) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([1], at=values))
    with pytest.raises(fp.BatchError, match=r"a.parquet: column 'at': .* cannot be sorted by order_by"):
        make_job(tmp_path, order_by="at").run()


def test_the_oldest_timestamp_there_is(tmp_path: Path) -> None:
    land(tmp_path / "source", "a.parquet", one_producer([1], timestamp=[-(2**63) + 1]))
    assert make_job(tmp_path, max_idle_ms=10).run().kept == 1


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def replace_by_text(file: Path) -> None:
    file.write_bytes(b"pid,epoch,partition,seq\n1,0,0,1\n")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def break_footer(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-40:-20] = b"\xff" * 20
    file.write_bytes(data)


def leave_the_beginning(file: Path) -> None:
    file.write_bytes(b"PAR1 and no end")


@pytest.mark.parametrize("damage", [cut, replace_by_text, empty, break_footer, leave_the_beginning])
def test_a_file_that_is_not_parquet_is_deferred_then_quarantined(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    land_some(tmp_path)
    make_job(tmp_path).run()
    land_some(tmp_path, [5])
    damage(land(tmp_path / "source", "7.parquet", make_rows(7)))
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred, report.quarantined) == (1, ("7.parquet",), ())
    again = make_job(tmp_path).run()
    assert again.version is None
    assert re.fullmatch(r"nothing new in .*\n  deferred +1  file .*", str(again))
    report = make_job(tmp_path, settle_ms=0).run()
    assert (report.version, report.files, report.kept) == (3, 0, 0)
    ((name, why),) = report.quarantined
    assert name == "7.parquet"
    assert str(tmp_path / "source" / "7.parquet") in why
    assert "footer" in why or damage is not leave_the_beginning
    assert "7.parquet" in str(report)
    assert make_job(tmp_path).run().version is None
    land(tmp_path / "source", "7.parquet", make_rows(8))
    report = make_job(tmp_path).run()
    assert (report.version, report.files) == (4, 1)
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))


@pytest.mark.parametrize("column", ["seq", "origin"])
def test_a_flipped_byte_in_a_page(tmp_path: Path, column: str) -> None:
    """In an identity column the scan finds it, in the payload the rewriting; other files are read in both cases."""
    land_some(tmp_path, [0])
    flip_byte(land(tmp_path / "source", "1.parquet", make_rows(1)), column)
    report = make_job(tmp_path).run()
    assert (report.files, report.deferred) == (1, ("1.parquet",))
    report = make_job(tmp_path, settle_ms=0).run()
    ((name, why),) = report.quarantined
    assert name == "1.parquet"
    assert re.search(r"1\.parquet(, byte \d+)?: cannot be read as .*CRC", why)
    assert read_sink(tmp_path).equals(first_of_each(pl.DataFrame(make_rows(0))))


def touch(file: Path) -> None:
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def replace(file: Path) -> None:
    land(file.parent, file.name, make_rows(8))


def append_in_place(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


@pytest.mark.parametrize("change", [touch, replace, append_in_place, Path.unlink])
@pytest.mark.parametrize("step", ["list", "judge"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, change: Callable[[Path], None], step: str) -> None:
    land_some(tmp_path)
    file = tmp_path / "source" / "2.parquet"

    left = [1]

    def meddle(at: str, done: int, total: int) -> None:
        if (at, done) == (step, total) and left:
            left.pop()
            change(file)

    report = make_job(tmp_path, plan="interval").run(meddle)
    if change in (append_in_place, Path.unlink):
        assert report.files == 3
        assert report.deferred == (("2.parquet",) if change is append_in_place else ())
        file.unlink(missing_ok=True)
    else:
        assert report.files == 4
    assert read_sink(tmp_path).equals(first_of_each(read_source(tmp_path)))
    assert make_job(tmp_path).run().version is None


@pytest.mark.parametrize("options", [{}, {"sort_by": "seq"}])
def test_a_file_becomes_shorter_just_before_it_is_rewritten(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    land_some(tmp_path, range(2))

    def meddle(real: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        if "1.parquet" in str(arguments[0]):
            monkeypatch.undo()
            land(tmp_path / "source", "1.parquet", make_rows(8, 5))
        return real(*arguments, **more)

    monkeypatch.setattr(write, "rewrite", partial(meddle, write.rewrite))
    monkeypatch.setattr(arranging, "arrange_rows", partial(meddle, arranging.arrange_rows))
    report = make_job(tmp_path, plan="interval", **options).run()
    assert (report.files, report.rows, report.vanished) == (2, 605, ("1.parquet",))
    assert sorted(read_sink(tmp_path).rows(), key=repr) == sorted(first_of_each(read_source(tmp_path)).rows(), key=repr)


def test_same_size_and_time_but_other_bytes(tmp_path: Path) -> None:
    """The footers of two files differ even where size, time and inode do not."""
    land_some(tmp_path)
    file = tmp_path / "source" / "2.parquet"

    data = file.read_bytes()
    place = data.rindex(b"parquet-cpp-arrow")

    def rewrite_in_place(at: str, done: int, total: int) -> None:
        nonlocal data
        if (at, done) == ("judge", total):
            stat = file.stat()
            data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            file.write_bytes(data)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with pytest.raises(fp.SourceError, match=r"2.parquet: its footer changed"):
        make_job(tmp_path, plan="interval").run(rewrite_in_place)


def test_files_with_other_names_are_reported(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    for name in ("x.parq", "X.PARQUET", "part-00000", "day=1/notes.txt", "_SUCCESS", ".hidden"):
        (tmp_path / "source" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "source" / name).touch()
    report = make_job(tmp_path).run()
    assert (report.files, sorted(report.ignored)) == (1, ["X.PARQUET", "day=1/notes.txt", "part-00000", "x.parq"])
    again = make_job(tmp_path).run()
    for each in (report, again):
        assert re.search(r"\n  ignored +4  files .*\.parquet: ", str(each))


def test_a_missing_source_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match="no such folder"):
        make_job(tmp_path).run()


def test_a_column_twice(tmp_path: Path) -> None:
    rows = make_rows(1)
    twice = pa.Table.from_arrays([*rows.columns, rows["seq"]], names=[*rows.column_names, "seq"])
    land(tmp_path / "source", "1.parquet", twice)
    with pytest.raises(fp.BatchError, match=r"1.parquet: column 'seq': .*more than once"):
        make_job(tmp_path).run()


def test_a_full_disk_does_not_make_a_file_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write, "rewrite", full)
    before = hashes(tmp_path / "source")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        make_job(tmp_path).run()
    assert list(hashes(tmp_path)) == [f"source/{name}" for name in before]
