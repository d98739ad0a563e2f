"""Audits and advice on files that are not Parquet, and on standard input: the report is that of the rows."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fencepost as fp
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fencepost import cli, lake
from support.audits import differences
from support.lake import make_rows

NAMED = ("source", "rules")


def rows() -> pa.Table:
    return make_rows(3, 2_000)


def as_csv(path: Path) -> None:
    pyarrow.csv.write_csv(rows(), path)


def as_tsv(path: Path) -> None:
    pyarrow.csv.write_csv(rows(), path, pyarrow.csv.WriteOptions(delimiter="\t"))


def as_json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows().to_pylist()))


def as_zipped_json_lines(path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows().to_pylist())
    path.write_bytes(gzip.compress(text.encode()))


def as_arrow_file(path: Path) -> None:
    with pa.ipc.new_file(path, rows().schema) as file:
        file.write_table(rows(), max_chunksize=100)


def as_arrow_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, rows().schema) as file:
        file.write_table(rows(), max_chunksize=100)


KINDS: dict[str, Callable[[Path], None]] = {
    "rows.csv": as_csv,
    "rows.tsv": as_tsv,
    "rows.jsonl": as_json_lines,
    "rows.v2.ndjson.gz": as_zipped_json_lines,
    "rows.arrow": as_arrow_file,
    "rows.feather": as_arrow_file,
    "rows.arrows": as_arrow_stream,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_audited_as_its_rows(name: str, tmp_path: Path) -> None:
    KINDS[name](tmp_path / name)
    report = lake.audit(tmp_path / name)
    assert differences(report, fp.audit(rows()), *NAMED) == []
    assert report.source == str(tmp_path / name)
    advice = lake.advise(tmp_path / name, rows_max=None)
    assert advice.facts == fp.advise(rows(), rows_max=None).facts
    assert "fencepost dedup" not in report.to_html(), "which reads no such file"


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.arrow", "rows.arrows"])
def test_standard_input(name: str, tmp_path: Path) -> None:
    KINDS[name](tmp_path / name)
    with open(tmp_path / name, "rb") as file:
        command = [sys.executable, "-m", "fencepost", "audit", "-", "--json"]
        done = subprocess.run(command, stdin=file, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["counts"] == fp.audit(rows()).counts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"pid,epoch,partition,seq\n1,0,0\n", "rows.csv: "),
        ("rows.csv", b"", "rows.csv: "),
        ("rows.csv", b"who,seq\n1,0\n", "column 'pid': missing"),
        ("rows.csv", b"pid,epoch,partition,seq\n1,0,0,x\n", "column 'seq': "),
        ("rows.jsonl", b'{"pid": \n', "rows.jsonl: "),
        ("rows.arrow", b"no arrow here", "rows.arrow: "),
        ("rows.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "rows.arrow: "),
        ("rows.csv.gz", b"not zipped", "rows.csv.gz: "),
    ],
)
def test_an_unreadable_file_is_named_in_one_line(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert cli.main(["audit", str(tmp_path / name)]) == 1
    _, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1


def test_a_truncated_arrow_file_is_an_error(tmp_path: Path) -> None:
    as_arrow_file(tmp_path / "whole.arrow")
    content = (tmp_path / "whole.arrow").read_bytes()
    for share in (0.2, 0.5, 0.999):
        (tmp_path / "cut.arrow").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(fp.SourceError, match=r"cut\.arrow"):
            lake.audit(tmp_path / "cut.arrow")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(fp.SourceError, match=r"none\.csv"):
        lake.audit(tmp_path / "none.csv")


def test_parquet_on_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"PAR1...")))
    with pytest.raises(fp.SourceError, match="to a file"):
        lake.audit("-")


@pytest.mark.parametrize("name", ["missing.csv", "missing.jsonl", "missing.parquet", "missing.arrow"])
def test_missing_ranges_to_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(tmp_path / "rows.csv")
    assert cli.main(["audit", str(tmp_path / "rows.csv"), "--out", str(tmp_path / name), "-q"]) == 0
    report = fp.audit(rows())
    text = (tmp_path / name).read_bytes()
    if name.endswith("csv"):
        found = pyarrow.csv.read_csv(tmp_path / name).to_pylist()
    elif name.endswith("jsonl"):
        found = [json.loads(line) for line in text.splitlines()]
    elif name.endswith("parquet"):
        found = pa.parquet.read_table(tmp_path / name).to_pylist()
    else:
        found = pa.ipc.open_file(tmp_path / name).read_all().to_pylist()
    assert found == report.missing.to_pylist()
    assert cli.main(["audit", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "missing.xls")]) == 2
    assert "missing.xls" in capsys.readouterr().err
