"""Runs that read a part of the new files, and jobs that watch a source until they are stopped."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from deltalake import write_deltalake
from fencepost import cli
from fencepost import state as states
from fencepost.lake import DedupJob, KafkaLog, RunReport, dataset
from fencepost.lake import storage as storages
from support.lake import land, make_job, make_rows, one_producer
from support.waiting import wait_until

FILES = 5


def land_files(folder: Path, numbers: range = range(FILES)) -> list[int]:
    """Files of different rows; gives how many rows each has."""
    return [len(make_rows(it)) for it in numbers if land(folder / "source", f"{it}.parquet", make_rows(it))]


def read(report: RunReport) -> list[str]:
    return sorted(report.inputs["path"].to_pylist())


@pytest.mark.parametrize("limit", [{"files_max": 2}, {"rows_max": 2 * len(make_rows(0))}], ids=str)
def test_a_run_reads_the_first_files_and_reports_the_rest(tmp_path: Path, limit: dict[str, int]) -> None:
    land_files(tmp_path)
    job = make_job(tmp_path, **limit)
    reports = [job.run() for _ in range(4)]
    assert [read(it) for it in reports] == [["0.parquet", "1.parquet"], ["2.parquet", "3.parquet"], ["4.parquet"], []]
    assert [it.remaining_files for it in reports] == [3, 1, 0, 0]
    assert [it.version for it in reports] == [1, 2, 3, None]
    assert "remaining" in str(reports[0])
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
        land(tmp_path / "source", f"{number}.parquet", one_producer(range(3), number))
    assert make_job(tmp_path, files_max=1).seed().files == FILES
    write_deltalake(tmp_path / "table", make_rows(0))
    for source in (tmp_path / "table", KafkaLog(tmp_path / "log")):
        with pytest.raises(ValueError, match=r"bytes_max: .*up to a position"):
            DedupJob(source, tmp_path / "state2", tmp_path / "sink2", bytes_max=1)
    for name in ("files_max", "bytes_max"):
        with pytest.raises(ValueError, match=f"{name}=0: expected at least 1"):
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


def test_a_watch_continues_if_another_run_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_watch_pauses_if_no_new_file_is_complete(tmp_path: Path) -> None:
    """A file that is being written is another damaged file in each run, so each run makes a version."""
    pauses = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 3:
                self.set()
            return self.is_set()

    land_files(tmp_path)
    (tmp_path / "source" / "growing.parquet").write_bytes(b"PAR1")
    found = []
    for report in make_job(tmp_path).watch(2_000, Stop()):
        found.append(report.files)
        assert len(found) <= 4
        with open(tmp_path / "source" / "growing.parquet", "ab") as file:
            file.write(b"more")
    assert (found, pauses) == ([FILES, 0, 0, 0], [2.0] * 3)


def watch_process(folder: Path, *options: str) -> subprocess.Popen[str]:
    places = [str(folder / it) for it in ("source", "state", "sink")]
    command = [sys.executable, "-m", "fencepost", "dedup", *places, "--watch", "50ms", *options]
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
    assert [it["remaining_files"] for it in reports] == [3, 1, 0, 0]


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (fp.StoreError("no answer", path="x", errno=5), "[FP303] no answer"),
        (OSError(errno.ENOSPC, "full", "state"), f"[Errno {errno.ENOSPC}] full: 'state'"),
    ],
)
def test_an_outage_ends_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: Exception, line: str
) -> None:
    land_files(tmp_path)
    monkeypatch.setattr(storages, "PAUSES_SECONDS", ())
    ours, failures = DedupJob.run, [failure]

    def run(job: DedupJob, *arguments: Any) -> RunReport:
        if failures:
            raise failures.pop()
        os.kill(os.getpid(), signal.SIGTERM)
        return ours(job, *arguments)

    monkeypatch.setattr(DedupJob, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    code = cli.main(["dedup", *(str(tmp_path / it) for it in ("source", "state", "sink")), "--watch", "1ms"])
    out, complaints = capsys.readouterr()
    assert (code, complaints) == (0, f"fencepost: {line}\n")
    assert "version 1 of" in out
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_watch_does_not_rebase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    land_files(tmp_path)
    places = [str(tmp_path / it) for it in ("source", "state", "sink")]
    assert cli.main(["dedup", *places, "--watch", "1s", "--rebase"]) == 2
    assert "pass either --watch or --rebase, not both" in capsys.readouterr().err


# What of a source is read


DAYS = [f"date=2026-11-{day}" for day in (9, 18, 19, 20, 21, 22)]


def land_days(folder: Path) -> None:
    for number, day in enumerate(DAYS):
        land(folder / "source" / day, "a.parquet", make_rows(number))


def test_a_bad_file_keeps_out_what_follows_for_one_run_only(tmp_path: Path) -> None:
    land_files(tmp_path)
    make_job(tmp_path).run()
    land_files(tmp_path, range(5, 7))
    (tmp_path / "source/5.parquet").write_bytes(b"PAR1")
    assert [read(make_job(tmp_path, rows_max=1).run()) for _ in range(2)] == [[], ["6.parquet"]]


ONLY: list[tuple[str | list[str], list[str]]] = [
    ("date=2026-11-2*", DAYS[3:]),
    (["date=2026-11-18", "date=2026-11-22/*.parquet"], [DAYS[1], DAYS[5]]),
    ("date=2026-11-19..2026-11-21", DAYS[2:5]),
    ("date=2026-11-21..", DAYS[4:5] + DAYS[5:] + DAYS[:1]),
    ("**/a.parquet", DAYS),
    ("date=2026-11-18/a.parquet", [DAYS[1]]),
    ("date=2027*", []),
    ("date=2027-01-01/", []),
]


@pytest.mark.parametrize(("only", "days"), ONLY, ids=str)
def test_patterns_say_what_is_read(tmp_path: Path, only: str | list[str], days: list[str]) -> None:
    land_days(tmp_path)
    assert read(make_job(tmp_path, only=only).run()) == sorted(f"{day}/a.parquet" for day in days)


def test_a_bad_file_outside_of_the_slice_is_checked_again(tmp_path: Path) -> None:
    land_days(tmp_path)
    path = tmp_path / "source" / DAYS[0] / "a.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    assert make_job(tmp_path, settle_ms=3_600_000, only=DAYS[:2]).run().deferred == (f"{DAYS[0]}/a.parquet",)
    report = make_job(tmp_path, settle_ms=0, only=DAYS[2]).run()
    assert (read(report), [it[0] for it in report.quarantined]) == ([f"{DAYS[2]}/a.parquet"], [f"{DAYS[0]}/a.parquet"])
    assert read(make_job(tmp_path).run()) == sorted(f"{day}/a.parquet" for day in DAYS[3:])


def test_files_of_a_notification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_files(tmp_path)
    named = ["3.parquet", tmp_path / "source/1.parquet", "1.parquet", "gone.parquet"]
    with monkeypatch.context() as patch:
        patch.setattr(storages.LocalStorage, "list", None)
        report = make_job(tmp_path, files=named).run()
    assert (read(report), report.vanished, report.remaining_files) == (["1.parquet", "3.parquet"], ("gone.parquet",), 0)
    again = make_job(tmp_path, files=["1.parquet", "0.parquet", "4.parquet"], files_max=1).run()
    assert (read(again), again.remaining_files) == (["0.parquet"], 1)
    assert make_job(tmp_path, files=["1.parquet"]).run().version is None
    assert read(make_job(tmp_path).run()) == ["2.parquet", "4.parquet"]
    for wrong, problem in [
        (tmp_path / "elsewhere/1.parquet", "elsewhere/1.parquet is not in"),
        ("../source/1.parquet", "source/1.parquet is not in"),
        ("s3://bucket/1.parquet", "s3://bucket/1.parquet is not in"),
        ("_a/1.parquet", "names that begin with _"),
        ("1.csv", r"only \*.parquet is read"),
    ]:
        with pytest.raises(ValueError, match=problem):
            make_job(tmp_path, files=["1.parquet", wrong])
    with pytest.raises(ValueError, match="nothing to watch"):
        next(make_job(tmp_path, files=["1.parquet"]).watch(1))


def test_several_paths_are_one_source(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for number, folder in enumerate(["eu/events", "us/events", "us/other", "asia/events/day=1"]):
        land(root / "landing" / folder, "a.parquet", one_producer(range(3), number))
    places = (tmp_path / "state", root / "clean")  # beside what is read
    first = DedupJob([root / "landing/eu/events", str(root / "landing/us/*")], *places).run()
    assert read(first) == ["eu/events/a.parquet", "us/events/a.parquet", "us/other/a.parquet"]
    assert read(DedupJob(str(root / "landing/*/events"), *places).run()) == ["asia/events/day=1/a.parquet"]
    assert DedupJob(root / "landing", *places).run().version is None
    one = [root / "landing/us/events", root / "landing/us/other/a.parquet"]
    assert DedupJob(one, tmp_path / "other", tmp_path / "out").seed().files == 2


def test_invalid_source_and_sink_folders_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    inside = [root / "eu", root / "us"]
    DedupJob(inside, tmp_path / "state", root / "clean")
    for source, sink in [(inside, root / "us/clean"), (inside, root / "us"), (str(root / "**/events"), root / "clean")]:
        with pytest.raises(fp.SinkError, match="is inside"):
            DedupJob(source, tmp_path / "state", sink)  # type: ignore[arg-type]
    for source, problem in [
        ([], "no paths"),
        (["s3://a/x", root], "in one store"),
        (["s3://a/x", "s3://b/x"], "no folder in common"),
        (["/a", "/b"], "no folder in common"),
    ]:
        with pytest.raises(ValueError, match=problem):
            DedupJob(source, tmp_path / "state", tmp_path / "sink")
    for only in ("/a", "../a", "", "s3://a"):
        with pytest.raises(ValueError, match=f"only={only!r}: expected a pattern"):
            make_job(tmp_path, only=only)
    (tmp_path / "odd[1]").mkdir()
    land(tmp_path / "odd[1]", "a.parquet", make_rows(1))
    assert read(DedupJob(tmp_path / "odd[1]", tmp_path / "s", tmp_path / "o").run()) == ["a.parquet"]


def test_the_command_line_reads_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    land_days(tmp_path)
    places = [str(tmp_path / it) for it in ("source", "state", "sink")]
    assert cli.main(["dedup", *places, "--only", "date=2026-11-2*", "--rows-max", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remaining_files"] == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{DAYS[0]}/a.parquet\n\n{tmp_path}/source/{DAYS[1]}/a.parquet\n"))
    assert cli.main(["dedup", *places, "--files-from", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 2
    (tmp_path / "names").write_text("elsewhere/../../a.parquet")
    assert cli.main(["dedup", *places, "--files-from", str(tmp_path / "names")]) == 2
    assert "a.parquet is not in" in capsys.readouterr().err
    assert cli.main(["dedup", *places, "--files-from", "-", "--watch", "1s"]) == 2


def test_a_path_object_is_not_a_glob(tmp_path: Path) -> None:
    places = tmp_path / "source[1]", tmp_path / "state", tmp_path / "sink"
    job = DedupJob(*places)  # before there is such a folder
    land(places[0], "a.parquet", make_rows(0))
    assert job.run().files == 1
    assert DedupJob(*places).run().version is None
