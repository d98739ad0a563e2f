"""Runs that read a part of what is new, and jobs that go on until they are told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake
from fencepost import cli
from fencepost import state as states
from fencepost.lake import DedupJob, KafkaLog, RunReport, dataset
from fencepost.lake import storage as storages
from test_lake import land, make_job, make_rows
from waiting import wait_until

FILES = 5


def land_files(folder: Path, numbers: range = range(FILES)) -> list[int]:
    """Files of different rows; gives how many rows each has."""
    return [len(make_rows(it)) for it in numbers if land(folder / "source", f"{it}.parquet", make_rows(it))]


def read(report: RunReport) -> list[str]:
    return sorted(report.inputs["path"].to_pylist())


def test_a_run_reads_the_first_files_and_says_how_many_are_left(tmp_path: Path) -> None:
    land_files(tmp_path)
    job = make_job(tmp_path, files_max=2)
    reports = [job.run() for _ in range(4)]
    assert [read(it) for it in reports] == [["0.parquet", "1.parquet"], ["2.parquet", "3.parquet"], ["4.parquet"], []]
    assert [it.left for it in reports] == [3, 1, 0, 0]
    assert [it.version for it in reports] == [1, 2, 3, None]
    assert "left" in str(reports[0])
    assert "left" not in str(reports[2])


def test_slices_keep_what_one_run_keeps(tmp_path: Path) -> None:
    rows = sum(land_files(tmp_path))
    whole = DedupJob(tmp_path / "source", tmp_path / "whole", tmp_path / "at_once").run()
    job = make_job(tmp_path, bytes_max=1)  # one file at least
    kept = []
    while (report := job.run()).version is not None:
        kept.append(report.kept)
    assert (len(kept), sum(kept)) == (FILES, whole.kept)
    assert whole.rows == rows
    names = ("pid", "epoch", "partition", "seq")
    found = [
        sorted(map(str, dataset(tmp_path / it).to_table(columns=list(names)).to_pylist())) for it in ("sink", "at_once")
    ]
    assert found[0] == found[1]


def test_bytes_are_counted(tmp_path: Path) -> None:
    land_files(tmp_path)
    sizes = [(tmp_path / "source" / f"{it}.parquet").stat().st_size for it in range(FILES)]
    assert len(read(make_job(tmp_path, bytes_max=sum(sizes[:3]) - 1).run())) == 2
    assert len(read(make_job(tmp_path, bytes_max=sum(sizes[2:4])).run())) == 2
    assert len(read(make_job(tmp_path, bytes_max=10**9, files_max=9).run())) == 1


def test_bad_files_do_not_keep_out_what_follows(tmp_path: Path) -> None:
    land_files(tmp_path)
    for name in ("0.parquet", "1.parquet"):
        path = tmp_path / "source" / name
        path.write_bytes(path.read_bytes()[:-50])
    job = make_job(tmp_path, files_max=1, settle_ms=3_600_000)
    reports = [job.run() for _ in range(FILES + 1)]
    assert [read(it) for it in reports if it.files] == [["2.parquet"], ["3.parquet"], ["4.parquet"]]
    assert reports[-1].deferred == ("0.parquet", "1.parquet")


def test_a_seed_and_a_log_are_not_cut(tmp_path: Path) -> None:
    for number in range(FILES):
        rows = {"pid": [number] * 3, "epoch": [0] * 3, "partition": [0] * 3, "seq": range(3)}
        land(tmp_path / "source", f"{number}.parquet", pa.table(rows))
    assert make_job(tmp_path, files_max=1).seed().files == FILES
    write_deltalake(tmp_path / "table", make_rows(0))
    for source in (tmp_path / "table", KafkaLog(tmp_path / "log")):
        with pytest.raises(ValueError, match=r"bytes_max: .* is read up to a position"):
            DedupJob(source, tmp_path / "state2", tmp_path / "sink2", bytes_max=1)
    for name in ("files_max", "bytes_max"):
        with pytest.raises(ValueError, match=f"{name}=0: at least 1 was expected"):
            make_job(tmp_path, **{name: 0})


# Watching


def test_a_watch_runs_until_nothing_is_left_and_sees_what_lands_later(tmp_path: Path) -> None:
    land_files(tmp_path)
    stop, found = threading.Event(), list[RunReport]()

    def watch() -> None:
        found.extend(make_job(tmp_path, files_max=2).watch(5, stop))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        state = tmp_path / "state"
        wait_until(lambda: (state / "state.json").exists() and states.open(state).done() == 3, "three versions")
        land_files(tmp_path, range(FILES, FILES + 1))
        wait_until(lambda: states.open(state).done() == 4, "the version of the file that came later")
    finally:
        stop.set()
        watching.join()
    assert [it.version for it in found] == [1, 2, 3, 4]


def test_a_watch_goes_on_where_another_run_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_files(tmp_path)
    stop, job = threading.Event(), make_job(tmp_path)
    ours = job.run
    failures = [fp.StateConflictError("faster")]

    def run(*arguments: Any) -> RunReport:
        if failures:
            raise failures.pop()
        stop.set()
        return ours(*arguments)

    monkeypatch.setattr(job, "run", run)
    assert [it.version for it in job.watch(1, stop)] == [1]


def watch_process(folder: Path, *options: str) -> subprocess.Popen[str]:
    places = [str(folder / it) for it in ("source", "state", "sink")]
    command = [sys.executable, "-m", "fencepost.cli", "dedup", *places, "--watch", "50ms", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_watch_after_the_run_under_way(tmp_path: Path, number: signal.Signals) -> None:
    land_files(tmp_path)
    with watch_process(tmp_path, "--json", "--files-max", "2") as process:
        assert process.stdout is not None
        reports = [json.loads(process.stdout.readline()) for _ in range(3)]
        land_files(tmp_path, range(FILES, FILES + 1))
        reports.append(json.loads(process.stdout.readline()))
        process.send_signal(number)
        rest, complaints = process.communicate(timeout=60)
    assert (process.returncode, rest, complaints) == (0, "", "")
    assert [it["version"] for it in reports] == [1, 2, 3, 4]
    assert [it["left"] for it in reports] == [3, 1, 0, 0]


def test_an_outage_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    land_files(tmp_path)
    monkeypatch.setattr(storages, "PAUSES_SECONDS", ())
    ours, failures = DedupJob.run, [fp.StoreError("the disk does not answer", path="x", errno=5)]

    def run(job: DedupJob, *arguments: Any) -> RunReport:
        if failures:
            raise failures.pop()
        os.kill(os.getpid(), signal.SIGTERM)
        return ours(job, *arguments)

    monkeypatch.setattr(DedupJob, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    code = cli.main(["dedup", *(str(tmp_path / it) for it in ("source", "state", "sink")), "--watch", "1ms"])
    out, complaints = capsys.readouterr()
    assert (code, complaints) == (0, "fencepost: the disk does not answer\n")
    assert "version 1 of" in out
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_watch_does_not_rebase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    land_files(tmp_path)
    places = [str(tmp_path / it) for it in ("source", "state", "sink")]
    assert cli.main(["dedup", *places, "--watch", "1s", "--rebase"]) == 2
    assert "--watch and --rebase: one of them" in capsys.readouterr().err
