"""`fencepost kafka export`: Parquet files with the rows of a log, whole or not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import cli, kafka
from kafka_copies import DATA, append_again, batches_of, copy_upto


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["kafka", "export", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: str) -> None:
    out = tmp_path / "orders.parquet"
    code, told, err = run(capsys, DATA / "orders-0", out, "--isolation", isolation)
    wanted = pa.table(kafka.read_records(DATA / "orders-0", isolation))  # type: ignore[arg-type]
    assert pq.read_table(out).equals(wanted)
    assert (code, told, err) == (0, f"{len(wanted)} records, segments: 2, partitions: 1, in {out}\n", "")
    assert pq.ParquetFile(out).metadata.row_group(0).column(0).compression == "ZSTD"
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_per_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA / "clicks-0", tmp_path / "logs" / "clicks-0")
    shutil.copytree(DATA / "orders-1", tmp_path / "logs" / "orders-1")
    out = tmp_path / "out"
    assert run(capsys, tmp_path / "logs", out, "--rows", "batches", "--quiet") == (0, "", "")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["logs", "out"]
    for name in ("clicks-0", "orders-1"):
        files = sorted((out / name).glob("*.parquet"))
        assert [it.stem for it in files] == [it.stem for it in sorted((DATA / name).glob("*.log")) if it.stat().st_size]
        found = pa.concat_tables([pq.ParquetFile(it).read() for it in files])
        assert found.equals(pa.table(kafka.read_batches(DATA / name)))


def test_a_folder_that_does_not_lie_below_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths as they are typed: relative ones, a slash at the end, a segment by its name alone."""
    folder = copy_upto("orders-0", tmp_path, 10**9)
    monkeypatch.chdir(folder)
    segment = sorted(folder.glob("*.log"))[0].name
    assert run(capsys, segment, "one.parquet")[0] == 0
    assert run(capsys, segment, "alone")[0] == 0
    assert run(capsys, ".", tmp_path / "whole")[0] == 0
    one = pq.read_table("one.parquet")
    assert one.equals(pa.table(kafka.read_records(segment)))
    [alone] = sorted(Path("alone").rglob("*.parquet"))
    assert pq.ParquetFile(alone).read().equals(one)
    whole = [pq.ParquetFile(it).read() for it in sorted((tmp_path / "whole").rglob("*.parquet"))]
    assert pa.concat_tables(whole).equals(pa.table(kafka.read_records(folder)))


@pytest.mark.parametrize("out", ["orders.parquet", "orders"])
def test_damage_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    append_again(folder, batches_of(folder)[0])
    path = sorted(folder.glob("*.log"))[-1]
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    code, told, err = run(capsys, folder, tmp_path / out)
    assert (code, told) == (1, "")
    assert err.startswith(f"fencepost: {path}, byte ")
    assert "CRC-32C" in err
    assert [it.name for it in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--isolation", "committed"], "--isolation committed: read_uncommitted or read_committed was expected"),
        (["--rows", "messages"], "--rows messages: records or batches was expected"),
        (["--rows", "batches", "--isolation", "read_committed"], "is of records; batches are all shown"),
    ],
)
def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, told, err = run(capsys, DATA / "orders-0", tmp_path / "out.parquet", *arguments)
    assert (code, told) == (2, "")
    assert message in err
    assert not (tmp_path / "out.parquet").exists()


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    code, _, err = run(capsys, DATA / "orders-0", out)
    assert (code, out.read_text()) == (2, "mine")
    assert f"{out}: is there already" in err
    assert run(capsys, tmp_path / "nowhere", tmp_path / "o.parquet")[0] == 1
    code, _, err = run(capsys, DATA / "orders-0", tmp_path / "nowhere" / "o.parquet")
    assert (code, "no such folder" in err) == (2, True)
    code, _, err = run(capsys, DATA, DATA / "out")
    assert (code, (DATA / "out").exists()) == (2, False)
    assert "which is read" in " ".join(err.split())
