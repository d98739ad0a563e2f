"""Several paths, globs and files of text as the source of audits, advice and jobs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, Policy, SourceError, cli, lake, state
from fencepost.generate import LandingZone, generate
from fencepost.lake.tabular import open_rows, write_as_parquet


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=4_000, producers=20, payload_bytes=4))
    return path / "landing"


def test_several_paths_and_globs(zone: Path) -> None:
    files = sorted(zone.glob("*.parquet"))
    assert len(files) > 3
    whole = lake.audit(zone).counts
    for source in (files, f"{zone}/*.parquet", [f"{zone}/{files[0].name}", *map(str, files[1:])], [zone]):
        assert lake.audit(source).counts == whole  # type: ignore[arg-type]
    some = lake.audit([files[1], files[0]])
    assert some.files == 2
    assert some.source == f"{files[1]}, {files[0]}"
    assert some.rows == sum(pq.read_metadata(path).num_rows for path in files[:2])


@pytest.fixture(scope="module")
def texts(zone: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The rows of two files as CSV."""
    folder = tmp_path_factory.mktemp("texts")
    names = ["pid", "epoch", "partition", "seq"]
    for number, path in enumerate(sorted(zone.glob("*.parquet"))[:2]):
        pyarrow.csv.write_csv(pq.read_table(path, columns=names), folder / f"{number}.csv")
    return sorted(folder.iterdir())


def test_several_text_files(zone: Path, texts: list[Path]) -> None:
    both = lake.audit(sorted(zone.glob("*.parquet"))[:2]).counts
    assert lake.audit(texts).counts == lake.audit(f"{texts[0].parent}/*.csv").counts == both
    assert lake.advise(texts).rows == sum(both.values())
    again = [texts[1], f"{texts[1].parent}/*.csv", texts[0].parent / ".." / texts[0].parent.name / texts[0].name]
    assert lake.audit(again).rows == sum(both.values())  # a file that is named twice is read once, as among Parquet


def test_invalid_combinations_of_sources_are_refused(zone: Path, texts: list[Path], tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "table", pq.read_table(next(zone.glob("*.parquet"))))
    (tmp_path / "other.csv").write_text("pid,epoch,partition\n1,0,0\n")
    (tmp_path / "words.csv").write_text("pid,epoch,partition,seq\n1,0,0,one\n")
    cases: list[tuple[Any, str]] = [
        ([zone, texts[0]], "separately"),
        (f"{tmp_path}/table/*.parquet", "is a table"),
        ([tmp_path / "table", zone], "is a table"),
        ([zone, zone.parent / "nowhere"], r"nowhere: no \.parquet file"),
        (f"{zone}/nothing*", "no .parquet file matches"),
        (f"{tmp_path}/nothing*.csv", "no file matches"),
        ([texts[0], tmp_path / "other.csv"], "column 'seq': missing"),
        ([texts[0], tmp_path / "words.csv"], "column 'seq': not convertible to int64"),
        ([zone, "s3://bucket/prefix"], "in one store"),
    ]
    for source, text in cases:
        with pytest.raises(SourceError, match=text):
            lake.audit(source)


def test_a_job_over_files_that_are_named(zone: Path, tmp_path: Path) -> None:
    files = sorted(map(str, zone.glob("*.parquet")))[:2]
    arguments = ["--no-sync", "--quiet"]
    assert cli.main(["dedup", *files, f"{tmp_path}/both", f"{tmp_path}/of-both", *arguments]) == 0
    assert cli.main(["dedup", files[0], f"{tmp_path}/one", f"{tmp_path}/of-one", *arguments]) == 0
    for name, some in (("both", files), ("one", files[:1])):
        counts = lake.audit(some).counts
        kept = lake.dataset(f"{tmp_path}/of-{name}").count_rows()
        assert kept == counts["ACCEPTED"] + counts["UNTRACKED"]


def test_a_job_reads_text_once(
    texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = lake.audit(texts).counts
    job = [f"{tmp_path}/state", f"{tmp_path}/clean", "--no-sync", "--quiet"]
    for _ in range(2):
        assert cli.main(["dedup", *map(str, texts), *job]) == 0
    assert cli.main(["dedup", *map(str, texts), *job[:-1]]) == 0
    assert capsys.readouterr().out.startswith(f"nothing new in {texts[0]}, {texts[1]}: ")
    assert len(state.open(job[0]).history()) == 1
    assert lake.dataset(job[1]).count_rows() == counts["ACCEPTED"] + counts["UNTRACKED"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(texts[0].read_bytes())))
    assert cli.main(["dedup", "-", *job]) == 0
    assert lake.dataset(job[1]).count_rows() == counts["ACCEPTED"] + counts["UNTRACKED"]


def test_errors_of_a_job_name_the_text_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "a.csv": ("pid,epoch,partition,seq\n1,0,0,one\n", "column 'seq': is of type"),
        "b.csv": ("pid,epoch,partition,seq\n1,0,0,5\n1,0,0,-5\n", "column 'seq', row 1: value -5"),
        "c.csv": ("pid,epoch,part,seq\n1,0,0,5\n", "column 'partition': missing"),
    }
    for name, (text, message) in cases.items():
        (tmp_path / name).write_text(text)
        assert cli.main(["dedup", f"{tmp_path}/{name}", f"{tmp_path}/state", f"{tmp_path}/clean", "-q"]) == 1
        assert f"{tmp_path}/{name}: {message}" in capsys.readouterr().err


def test_a_text_file_cannot_be_one_of_several_sources_of_a_job(
    zone: Path, texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = [f"{tmp_path}/state", f"{tmp_path}/clean"]
    assert cli.main(["dedup", str(texts[0]), str(zone), *job]) == cli.main(["audit", str(texts[0]), str(zone)]) == 1
    for option in (("--watch", "1s"), ("--only", "0*"), ("--files-from", f"{tmp_path}/names")):
        assert cli.main(["dedup", str(texts[0]), *job, *option]) == 2
        assert f"{option[0]} needs a source" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("devices", [["007", "7"], ["7", "07"], ["1.0", "1"], ["2026-11-20", "x"], ["true", "1"]])
def test_producers_of_a_csv_file_are_those_that_it_spells(devices: list[str], tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["pid,epoch,partition,seq", *(f"{it},0,0,0" for it in devices), ""]))
    columns = {"pid": "pid", "epoch": "epoch"}
    assert lake.audit(path).counts == {"ACCEPTED": 2}
    assert lake.advise(path, columns).policies["ACCEPTED"][0].as_py() == 2
    assert cli.main(["dedup", str(path), f"{tmp_path}/state", f"{tmp_path}/clean", "-q", "--no-sync"]) == 0
    assert sorted(lake.dataset(f"{tmp_path}/clean").to_table()["pid"].to_pylist()) == sorted(devices)


def test_advice_reads_producers_as_a_job_does(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("Device,Boot_ID,Counter\n007,a,0\n7,a,0\n7,,0\n,a,0\n")
    assert lake.advise(path).policies.select(["ACCEPTED", "UNTRACKED"]).to_pylist()[0] == {
        "ACCEPTED": 2,
        "UNTRACKED": 2,
    }
    columns = {"pid": ("Device", "Boot_ID"), "partition": None, "epoch": None, "seq": "Counter"}
    policy = Policy.any_order().replace(epochs="ignore", columns=Columns(**columns))
    assert lake.audit(path, policy).counts == {"ACCEPTED": 2, "UNTRACKED": 2}


@pytest.mark.parametrize("devices", [["2026-11-20", "2026-11-20T00:00:00", "2026-11-20 00:00:00"], ["2026-11-20", "x"]])
def test_producers_of_json_files_are_those_that_they_spell(devices: list[str], tmp_path: Path) -> None:
    """A reader that infers types takes some texts for times, and several texts are the same time."""
    for name, some in (("a", ["x", "y"]), ("b", devices)):
        rows = [{"pid": it, "epoch": 0, "partition": 0, "seq": 0} for it in some]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = {*devices, "x", "y"}
    assert lake.audit(tmp_path / "b.jsonl").counts == {"ACCEPTED": len(devices)}
    assert lake.audit(f"{tmp_path}/*.jsonl").counts["ACCEPTED"] == len(both)
    assert cli.main(["dedup", f"{tmp_path}/*.jsonl", f"{tmp_path}/state", f"{tmp_path}/clean", "-q", "--no-sync"]) == 0
    assert set(lake.dataset(f"{tmp_path}/clean").to_table()["pid"].to_pylist()) == both


@pytest.mark.parametrize("first", ["x", 7])
@pytest.mark.parametrize("is_field", [False, True])
@pytest.mark.parametrize("pids", [[2**63, 2**63 + 1], [1.0, 2**53, 2**53 + 1]])
def test_numbers_of_producers_that_are_rounded_are_an_error(
    first: str | int, is_field: bool, pids: list[float], tmp_path: Path
) -> None:
    for name, some in (("a", [first]), ("b", pids)):
        rows = [
            {"epoch": 0, "partition": 0, "seq": 0, **({"at": {"pid": it}} if is_field else {"pid": it})} for it in some
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pid = "at.pid" if is_field else "pid"
    with pytest.raises(SourceError, match=rf"b\.jsonl: column '{pid}': not convertible"):
        lake.audit(f"{tmp_path}/*.jsonl", columns=Columns(pid=pid))


@pytest.mark.parametrize("ids", [["7", "", "", "8"], ["x", "", "", "007"]])
def test_an_empty_field_is_not_a_producer(ids: list[str], tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["pid,epoch,partition,seq", *(f"{it},0,0,0" for it in ids), ""]))
    assert lake.audit([path, path]).counts == lake.audit(path).counts == {"ACCEPTED": 2, "UNTRACKED": 2}
    again = tmp_path / "again.csv"
    again.write_bytes(path.read_bytes())
    assert lake.audit([path, again]).counts == {"ACCEPTED": 2, "DUPLICATE": 2, "UNTRACKED": 4}


def test_a_text_among_numbers_of_producers_is_an_error(tmp_path: Path) -> None:
    many, other = tmp_path / "many.csv", tmp_path / "other.csv"
    rows = [f"{number},0,0,0" for number in range(100_000)]
    many.write_text("\n".join(["pid,epoch,partition,seq", *rows, "007,0,0,0", ""]))
    other.write_text("pid,epoch,partition,seq\n007,0,0,0\n")
    with pytest.raises(SourceError, match=r"column 'pid', row 100000: '007' is not an integer"):
        lake.audit(many)
    few = tmp_path / "few.csv"
    few.write_text("pid,epoch,partition,seq\n7,0,0,0\n")
    with pytest.raises(SourceError, match=r"other\.csv: column 'pid': not convertible to int64"):
        lake.audit([few, other])


@pytest.mark.parametrize("device", ["007", "1.0", "1e3", "true", "NA"])
def test_texts_that_look_like_numbers_in_the_next_file(device: str, tmp_path: Path) -> None:
    """The first file says that the column is text: the same text in another file is the same device."""
    for name, devices in (("a", ["x", device]), ("b", [device])):
        rows = [f"{it},0,0,0,2026-11-20 10:00:00" for it in devices]
        (tmp_path / f"{name}.csv").write_text("\n".join(["pid,epoch,partition,seq,at", *rows, ""]))
    for columns in (None, Columns(timestamp="at")):
        report = lake.audit(f"{tmp_path}/*.csv", columns=columns)
        assert report.counts == {"ACCEPTED": 2, "DUPLICATE": 1}


def test_other_columns_may_differ_between_text_files(tmp_path: Path) -> None:
    for name, value in (("a", "1"), ("b", "1.5"), ("c", "warm"), ("d", "")):
        (tmp_path / f"{name}.csv").write_text(f"pid,epoch,partition,seq,value\n7,0,0,0,{value}\n")
    assert lake.audit(f"{tmp_path}/*.csv").counts == {"ACCEPTED": 1, "DUPLICATE": 3}
    with pytest.raises(SourceError, match=r"b\.csv: column 'value': not convertible to int64"):
        lake.audit(f"{tmp_path}/*.csv", compare_content=True)


# Times as texts

TIMES = {
    "2026-11-20T10:00:00.5Z": "2026-11-20 10:00:00.500",
    "2026-11-20T11:00:01+01:00": "2026-11-20 10:00:01",
    "2026-11-20 10:00:02": "2026-11-20 10:00:02",  # without a zone: UTC
    "2026-11-20T10:00:03.123456-0030": "2026-11-20 10:30:03.123",
}


def write_events(path: Path, times: list[str]) -> Path:
    events = [{"pid": 7, "epoch": 0, "partition": 0, "seq": seq, "at": at} for seq, at in enumerate(times)]
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    else:
        lines = [",".join(map(str, event.values())) for event in events]
        path.write_text("\n".join(["pid,epoch,partition,seq,at", *lines, ""]))
    return path


@pytest.mark.parametrize("name", ["events.jsonl", "events.csv"])
def test_times_as_texts(name: str, tmp_path: Path) -> None:
    path = write_events(tmp_path / name, list(TIMES))
    wanted = pa.array(list(TIMES.values())).cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
    report = lake.audit(path, columns=Columns(timestamp="at"))
    assert (report.timeline_unit, report.counts) == ("ms", {"ACCEPTED": 4})
    assert (report.timeline["first"][0].as_py(), report.timeline["rows"].to_pylist()) == (min(wanted), [1] * 4)
    assert lake.advise(path, {"timestamp": "at"}).max_idle_ms is not None
    job = [
        str(path),
        f"{tmp_path}/state",
        f"{tmp_path}/clean",
        "--timestamp",
        "at",
        "--max-idle",
        "7d",
        "--no-sync",
        "-q",
    ]
    assert cli.main(["dedup", *job]) == 0
    written = lake.dataset(f"{tmp_path}/clean").to_table()
    assert written.schema.field("at").type == pa.timestamp("us", "UTC")
    assert written["at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist() == wanted


def test_times_of_nanoseconds_and_in_structs(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.jsonl", ["2026-11-20T10:00:00.123456789Z", "2026-11-20 10:00:01"])
    assert open_rows([str(path)], "at").schema.field("at").type == pa.timestamp("ns", "UTC")
    assert lake.audit(path, columns=Columns(timestamp="at")).rows == 2
    path.write_text(path.read_text().replace('"at": ', '"payload": {"at": ').replace("}\n", "}}\n"))
    assert lake.audit(path, columns=Columns(timestamp="payload.at")).timeline_unit == "ms"


@pytest.mark.parametrize("name", ["events.jsonl", "events.csv"])
def test_a_text_that_is_not_a_time(name: str, tmp_path: Path) -> None:
    path = write_events(tmp_path / name, ["2026-11-20T10:00:00.5Z", "2026-11-20 10:00", "yesterday", "2026-13-01"])
    with pytest.raises(SourceError, match=r"column 'at', row 2: 'yesterday' is not a time .* '2026-") as error:
        lake.audit(path, columns=Columns(timestamp="at"))
    assert error.value.path == str(path)
    assert lake.audit(path).rows == 4
    job = ["dedup", str(path), f"{tmp_path}/state", f"{tmp_path}/clean", "-q"]
    assert cli.main([*job, "--timestamp", "at"]) != 0
    assert cli.main(job) == 0


ONE_TYPE = [
    ["2026-11-20 10:00:00"],
    ["2026-11-20"],
    ["2026-11-20 10:00:00", ""],
    ["2026-11-20 10:00:00.5", "2026-11-20T10:00:00"],
    ["2026-11-20T10:00:00Z"],
    ["2026-11-20T10:00:00.123Z", ""],
    ["2026-11-20T10:00:00+01:00", "2026-11-20 10:00:00", ""],
    ["2026-11-20 10:00:00"] * 40_000 + ["2026-11-20T10:00:00.5Z"],  # only a later block needs a wider type
]


@pytest.mark.parametrize("name", ["events.jsonl", "events.csv"])
def test_times_have_one_type_in_all_files(name: str, tmp_path: Path) -> None:
    """Readers infer seconds, dates, nanoseconds or text, with a zone or without: a sink accepts one type."""
    for times in ONE_TYPE:
        rows = open_rows([str(write_events(tmp_path / name, times))], "at").read_all()
        assert rows.schema.field("at").type == pa.timestamp("us", "UTC")
        meant = {it: pd.to_datetime(it, utc=True) if it else None for it in set(times)}
        # Not as objects of Python: to make 40,000 of them with a zone takes minutes.
        wanted = pa.array([meant[it] for it in times], pa.timestamp("us", "UTC"))
        assert rows["at"].equals(pa.chunked_array([wanted]))


def test_times_of_nanoseconds_in_csv(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.csv", ["2026-11-20T10:00:00.123456789Z", "2026-11-20T10:00:01Z"])
    assert open_rows([str(path)], "at").schema.field("at").type == pa.timestamp("ns", "UTC")


def test_inferred_times_in_structs_and_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_events(tmp_path / "events.csv", ["2026-11-20 10:00:00"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert open_rows(["-"], "at").schema.field("at").type == pa.timestamp("us", "UTC")
    path = tmp_path / "events.jsonl"
    path.write_text('{"payload": {"at": "2026-11-20 10:00:00"}}\n')
    assert open_rows([str(path)], "payload.at").schema.field("payload.at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("name", ["events.jsonl", "events.csv"])
@pytest.mark.parametrize("times", [["2026-11-20 10:00:00", "2026-11-20 10:00:01"], ["2026-11-20 10:00:00", ""]])
def test_the_same_rows_from_standard_input(
    name: str, times: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job recognizes them by the checksum in the name, whether times were inferred or read as text."""
    path = write_events(tmp_path / name, times)
    path.write_text(path.read_text().replace('"at": ""', '"at": null'))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    written = [Path(write_as_parquet(it, str(tmp_path), "at")).name for it in (str(path), "-")]
    assert written[0] == written[1]


def test_a_job_whose_files_suggest_different_types_of_times(tmp_path: Path) -> None:
    job = [f"{tmp_path}/state", f"{tmp_path}/clean", "--timestamp", "at", "--max-idle", "7d", "--no-sync", "--quiet"]
    for seq, at in enumerate(["2026-11-20 10:00:00", "2026-11-20 10:00:00.5", "2026-11-20T10:00:00Z"]):
        (tmp_path / f"{seq}.csv").write_text(f"pid,epoch,partition,seq,at\n7,0,0,{seq},{at}\n")
        assert cli.main(["dedup", f"{tmp_path}/{seq}.csv", *job]) == 0
    assert lake.dataset(f"{tmp_path}/clean").count_rows() == 3


def test_columns_that_parquet_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"pid": 7, "epoch": 0, "partition": 0, "seq": 0, "more": {}}\n')
    job = ["dedup", f"{tmp_path}/a.jsonl", f"{tmp_path}/state", f"{tmp_path}/clean", "--no-sync", "--quiet"]
    assert cli.main(job) == 1
    assert re.search(r"a\.jsonl: not convertible to Parquet: .*'more'", capsys.readouterr().err)


def test_files_that_differ_only_in_the_values_of_a_dictionary(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pids = pa.array([name] * 3).dictionary_encode()
        rows = pa.table({"pid": pids, "epoch": [0] * 3, "partition": [0] * 3, "seq": range(3)})
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", rows.schema) as file:
            file.write_table(rows)
    job = ["dedup", f"{tmp_path}/*.arrow", f"{tmp_path}/state", f"{tmp_path}/clean", "--no-sync", "--quiet"]
    assert [cli.main(job), cli.main(job)] == [0, 0]
    assert [it.counts for it in state.open(tmp_path / "state").versions()] == [{"ACCEPTED": 6}]


def test_a_job_judges_text_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Not in that of the converted files, whose names are checksums."""
    texts = [tmp_path / f"{number}.csv" for number in range(6)]
    for number, text in enumerate(texts):
        text.write_text("\n".join(["pid,epoch,partition,seq", *(f"7,0,0,{10 * number + it}" for it in range(10)), ""]))
    names = ["0.csv", f"{tmp_path}/*.csv"]
    job = ["--policy", "in_order", "--file-order", "--no-sync", "--quiet", "--files-max", "4"]
    for run in (1, 2):
        paths = [str(tmp_path / it) for it in names[::-1]]
        assert cli.main(["dedup", *paths, f"{tmp_path}/state", f"{tmp_path}/clean", *job]) == 0
        version = state.open(tmp_path / "state").version(run)
        assert version.counts == {"ACCEPTED": 40 if run == 1 else 20}


def test_the_row_of_a_later_block(tmp_path: Path) -> None:
    times = ["2026-11-20T10:00:00.5Z"] * 40_000
    times[39_000] = "2026-11-20T10:00:00.1234567Z"
    path = write_events(tmp_path / "events.jsonl", times)
    with pytest.raises(SourceError, match=r"row 39000: '.*1234567Z' is not a time .* at most microseconds"):
        lake.audit(path, columns=Columns(timestamp="at"))
