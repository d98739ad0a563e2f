"""`fencepost kafka export`: Parquet files with the rows of a log, whole or not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import cli, kafka
from fencepost.cli.salvage import Source
from support.kafka_logs import DATA, append_again, batches_of, copy_upto, flip


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["kafka", "export", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: str) -> None:
    out = tmp_path / "orders.parquet"
    code, text, err = run(capsys, DATA / "orders-0", out, "--isolation", isolation)
    wanted = pa.table(kafka.read_records(DATA / "orders-0", isolation))  # type: ignore[arg-type]
    assert pq.read_table(out).equals(wanted)
    assert (code, text, err) == (0, f"{len(wanted)} records, segments: 2, partitions: 1, in {out}\n", "")
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


def test_an_export_accepts_relative_paths(
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
    assert one.equals(pa.table(kafka.read_records(segment, isolation="read_uncommitted")))
    [alone] = sorted(Path("alone").rglob("*.parquet"))
    assert pq.ParquetFile(alone).read().equals(one)
    whole = [pq.ParquetFile(it).read() for it in sorted((tmp_path / "whole").rglob("*.parquet"))]
    assert pa.concat_tables(whole).equals(pa.table(kafka.read_records(folder, isolation="read_uncommitted")))


@pytest.mark.parametrize("out", ["orders.parquet", "orders"])
def test_damage_leaves_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    append_again(folder, batches_of(folder)[0])
    path = sorted(folder.glob("*.log"))[-1]
    flip(path, -4)
    code, text, err = run(capsys, folder, tmp_path / out)
    assert (code, text) == (1, "")
    assert err.startswith(f"fencepost: [FP201] {path}, byte ")
    assert "CRC-32C" in err
    assert [it.name for it in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--isolation", "committed"], "--isolation committed: expected read_uncommitted or read_committed"),
        (["--rows", "messages"], "--rows messages: expected records"),
        (["--rows", "batches", "--isolation", "read_committed"], "applies to records only"),
    ],
)
def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, text, err = run(capsys, DATA / "orders-0", tmp_path / "out.parquet", *arguments)
    assert (code, text) == (2, "")
    assert message in err
    assert not (tmp_path / "out.parquet").exists()


def test_an_export_does_not_overwrite_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    code, _, err = run(capsys, DATA / "orders-0", out)
    assert (code, out.read_text()) == (2, "mine")
    assert f"{out} already exists" in err
    assert run(capsys, tmp_path / "nowhere", tmp_path / "o.parquet")[0] == 1
    code, _, err = run(capsys, DATA / "orders-0", tmp_path / "nowhere" / "o.parquet")
    assert (code, "no such folder" in err) == (2, True)
    code, _, err = run(capsys, DATA, DATA / "out")
    assert (code, (DATA / "out").exists()) == (2, False)
    assert "which is read" in " ".join(err.split())


# What is not there, and what cannot be read


def segments_of(folder: Path) -> list[Path]:
    return sorted(it for it in folder.glob("*.log") if it.stat().st_size)


@pytest.mark.parametrize("out", ["one.parquet", "many"])
@pytest.mark.parametrize("rows", ["records", "batches"])
def test_a_missing_segment_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, rows: str) -> None:
    shutil.copytree(DATA / "clicks-0", tmp_path / "logs" / "clicks-0")
    shutil.copytree(DATA / "orders-0", tmp_path / "logs" / "orders-0")
    before = batches_of(tmp_path / "logs" / "clicks-0")
    gone = segments_of(tmp_path / "logs" / "clicks-0")[1]
    lost = [it for it in before if it["segment"] == gone.name]
    gone.unlink()
    begin, end = lost[0]["base_offset"], lost[-1]["last_offset"]
    code, text, err = run(capsys, tmp_path / "logs", tmp_path / out, "--rows", rows)
    assert code == cli.EXIT_FINDINGS
    where = f"fencepost: {tmp_path}/logs/clicks-0: offsets {begin} to {end} ({end - begin + 1:,}) are in no segment"
    assert err.startswith(where)
    assert err.count("\n") == 1
    assert text.startswith(f"{written(tmp_path / out)} {rows}, ")
    assert run(capsys, tmp_path / "logs", tmp_path / "quiet", "--quiet") == (cli.EXIT_FINDINGS, "", "")
    code, _, err = run(capsys, tmp_path / "logs", tmp_path / "again", "--cleanup-policy", "clicks=compact")
    assert (code, err) == (cli.EXIT_CLEAN, "")


def test_batches_that_lack_records_are_reported_if_nothing_compacts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = DATA / "profiles-0"
    assert run(capsys, source, tmp_path / "any.parquet")[0] == cli.EXIT_CLEAN, "it looks compacted"
    code, _, err = run(capsys, source, tmp_path / "delete.parquet", "--cleanup-policy", "delete")
    (found,) = kafka.audit(source, cleanup_policy="delete").partitions
    assert code == cli.EXIT_FINDINGS
    assert f"{source}: batches lack records of {found.removed:,} offsets" in err


def written(out: Path) -> str:
    files = sorted(out.rglob("*.parquet")) if out.is_dir() else [out]
    return f"{sum(pq.ParquetFile(it).metadata.num_rows for it in files):,}"


def test_an_empty_segment_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    segments_of(folder)[1].write_bytes(b"")
    code, _, err = run(capsys, folder, tmp_path / "out")
    assert (code, "are in no segment" in err) == (cli.EXIT_FINDINGS, True)
    # Nothing at all.
    empty = tmp_path / "empty-0"
    empty.mkdir()
    (empty / f"{0:020}.log").write_bytes(b"")
    code, text, err = run(capsys, empty, tmp_path / "none.parquet")
    assert (code, text[:10]) == (cli.EXIT_FINDINGS, "0 records,")
    assert err == f"fencepost: {empty}: no batch in 1 segments\n"


def test_folders_without_segments_are_reported_or_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs" / "empty-0").mkdir(parents=True)
    code, _, err = run(capsys, tmp_path / "logs", tmp_path / "out")
    assert code == cli.EXIT_ERROR
    assert "no segments (*.log) in any partition folder" in err
    assert not (tmp_path / "out").exists()
    shutil.copytree(DATA / "carts-0", tmp_path / "logs" / "carts-0")
    code, text, err = run(capsys, tmp_path / "logs", tmp_path / "out")
    assert (code, "partitions: 1" in text) == (cli.EXIT_FINDINGS, True)
    assert err == f"fencepost: {tmp_path}/logs/empty-0: no segments (*.log) in this folder\n"
    (tmp_path / "nothing").mkdir()
    assert run(capsys, tmp_path / "nothing", tmp_path / "out2")[0] == cli.EXIT_ERROR


def offsets_in(out: Path) -> list[int]:
    files = sorted(out.rglob("*.parquet")) if out.is_dir() else [out]
    return sorted(it for file in files for it in pq.ParquetFile(file).read()["offset"].to_pylist())


@pytest.mark.parametrize(
    ("place", "isolation"),
    [
        *(("last", "read_committed"), ("middle", "read_uncommitted")),
        pytest.param("last", "read_uncommitted", marks=pytest.mark.matrix),
        pytest.param("middle", "read_committed", marks=pytest.mark.matrix),
    ],
)
def test_salvage_exports_the_batches_before_a_torn_tail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], isolation: str, place: str
) -> None:
    """The segment is cut at any byte of a batch; later segments are exported too."""
    whole = batches_of(DATA / "clicks-0")
    wanted = pa.table(kafka.read_records(DATA / "clicks-0", isolation))["offset"].to_pylist()  # type: ignore[arg-type]
    names = sorted({it["segment"] for it in whole})
    torn = [it for it in whole if it["segment"] == (names[-1] if place == "last" else names[1])]
    for number, (at, kept) in enumerate([(0, 1), (0, 40), (1, 61), (len(torn) - 1, 100), (len(torn) - 1, 11)]):
        folder = shutil.copytree(DATA / "clicks-0", tmp_path / str(number) / "clicks-0")
        path = folder / torn[at]["segment"]
        path.write_bytes(path.read_bytes()[: torn[at]["position"] + kept])
        assert run(capsys, folder, tmp_path / f"{number}.no", "--isolation", isolation)[0] != cli.EXIT_CLEAN
        out = tmp_path / f"{number}.parquet"
        code, _, err = run(capsys, folder, out, "--salvage", "--isolation", isolation)
        assert (code, f"fencepost: {path}, byte {torn[at]['position']}: " in err) == (cli.EXIT_FINDINGS, True), err
        lost = range(torn[at]["base_offset"], torn[-1]["last_offset"] + 1)
        assert offsets_in(out) == [it for it in wanted if it not in lost]


@pytest.mark.parametrize("rows", ["records", "batches"])
def test_a_segment_that_becomes_shorter_during_an_export_is_an_error(tmp_path: Path, rows: str) -> None:
    folder = copy_upto("clicks-0", tmp_path, 10**9)
    source = Source(str(folder), "read_uncommitted", {}, False)
    first, *_ = source.parts()
    path = Path(first.segment.path)
    path.write_bytes(path.read_bytes()[: batches_of(path)[-1]["position"]])
    with pytest.raises(fp.SourceError, match=f"{path}: .* truncated or replaced"):
        list(source.rows(first, rows))


@pytest.mark.parametrize("lost", ["torn", "missing"])
def test_a_lost_abort_marker_is_not_replaced_by_the_next_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    folder = tmp_path / "t-0"
    with kafka.PartitionLog(folder, segment_bytes=200) as log:
        log.append(8, 0, 0, [b"x"] * 5)
        for number, outcome in enumerate(("abort", "commit")):
            log.append(7, 0, 10 * number, [b"x"] * 10, transactional=True)
            log.append_marker(7, 0, outcome, transaction_version=1)  # type: ignore[arg-type]
    [marker] = [it for it in batches_of(folder) if it["control"] == "abort"]
    path = folder / marker["segment"]
    assert marker["position"] == 0
    path.write_bytes(path.read_bytes()[:40]) if lost == "torn" else path.unlink()
    salvage = ["--salvage"] if lost == "torn" else []
    out = tmp_path / "out.parquet"
    code, _, err = run(capsys, folder, out, "--isolation", "read_committed", *salvage)
    assert (code, offsets_in(out)) == (cli.EXIT_FINDINGS, [0, 1, 2, 3, 4])
    assert f"{folder}: offsets from 5 on are not exported" in err
    # Compaction removes no marker of records that are there.
    if lost == "missing":
        code, _, err = run(
            capsys, folder, tmp_path / "c.parquet", "--isolation", "read_committed", "--cleanup-policy", "compact"
        )
        assert (code, err, len(offsets_in(tmp_path / "c.parquet"))) == (0, "", 25)


def test_salvage_shows_no_transaction_of_a_segment_that_seems_to_overlap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit in the last offset of a batch, and the headers of later segments are not read."""
    folder = tmp_path / "orders-0"
    with kafka.PartitionLog(folder, segment_bytes=200) as log:
        log.append(7, 0, 0, [b"one"])
        log.append(7, 0, 1, [b"two" * 30])
        log.append(8, 0, 0, [b"aborted"], transactional=True)
        log.append_marker(8, 1, "abort")
    first, *_ = sorted(folder.glob("*.log"))
    flip(first, 23)
    code, _, err = run(capsys, folder, tmp_path / "a.parquet", "--isolation", "read_committed", "--salvage")
    assert (code, "are not exported" in err) == (cli.EXIT_FINDINGS, True)
    assert b"aborted" not in pq.read_table(tmp_path / "a.parquet")["value"].to_pylist()


def test_salvage_leaves_out_batches_whose_checksum_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    rows = batches_of(folder)
    data_rows = [it for it in rows if it["control"] is None]
    bent = [data_rows[2], data_rows[3], data_rows[-1]]
    for row in bent:
        path = folder / row["segment"]
        flip(path, row["position"] + row["bytes"] - 1)
    code, _, err = run(capsys, folder, tmp_path / "no")
    assert (code, "--salvage" in err, (tmp_path / "no").exists()) == (cli.EXIT_ERROR, True, False)
    wanted = pa.table(kafka.read_records(DATA / "orders-0", isolation="read_uncommitted"))["offset"].to_pylist()
    lost = {it for row in bent for it in range(row["base_offset"], row["last_offset"] + 1)}
    for out in (tmp_path / "out", tmp_path / "out.parquet"):
        code, _, err = run(capsys, folder, out, "--salvage")
        assert code == cli.EXIT_FINDINGS
        assert err.count("CRC-32C") == len(bent)
        assert offsets_in(out) == [it for it in wanted if it not in lost]
    # A log that is whole is exported the same with it.
    assert run(capsys, DATA / "orders-0", tmp_path / "whole.parquet", "--salvage")[0] == cli.EXIT_CLEAN
    assert offsets_in(tmp_path / "whole.parquet") == wanted
