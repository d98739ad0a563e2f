"""Storage that does not return a file: the run stops and changes nothing. This never counts as damage."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest
from fencepost.lake import DedupJob, audit, scan
from fencepost.lake.files import Facts
from fencepost.lake.storage import PAUSES_SECONDS, LocalStorage, converted_errors
from support.lake import first_of_each, hashes, land, land_some, make_job, make_rows, read_sink, read_source

PROGRAM = Path(__file__).parents[1] / "support" / "storage_runs.py"
NAMES = ("EIO", "ESTALE", "EACCES", "EMFILE", "ENFILE", "ETIMEDOUT", "ENOMEM", "ECONNRESET", "EHOSTDOWN", "ENETUNREACH")
USUAL = {"openat": ("ETIMEDOUT", "EACCES", "EMFILE"), "pread64": ("EIO", "ECONNRESET")}
"""Those of a disk, of rights, of a process and of a network file system, each at one call. The matrix has the rest."""


def run_case(case: str, root: Path, *wrapper: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*wrapper, sys.executable, str(PROGRAM), case, str(root)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def injecting(root: Path, path: Path, calls: str, what: str) -> list[str]:
    """strace makes these calls fail that concern this file."""
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(root / "trace"), "-P", str(path)]
    return [*traced, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]


def injected(root: Path) -> int:
    return (root / "trace").read_text().count("(INJECTED)")


# CI has strace, so that no fault is left out there.
needs_strace = pytest.mark.skipif(
    not shutil.which("strace") and not os.environ.get("CI"), reason="strace is missing: apt-get install strace"
)


@needs_strace
@pytest.mark.parametrize(
    ("calls", "name"),
    [
        pytest.param(calls, name, marks=() if name in usual else pytest.mark.matrix)
        for calls, usual in USUAL.items()
        for name in NAMES
    ],
)
def test_no_error_of_storage_is_damage(tmp_path: Path, calls: str, name: str) -> None:
    """Of the class, each error at each call by which a file is read, in all plans."""
    land_some(tmp_path)
    bad = tmp_path / "source" / "2.parquet"
    os.utime(bad, (0, 0))
    before = hashes(tmp_path / "source")
    found = run_case("under_faults", tmp_path, *injecting(tmp_path, bad, calls, f"error={name}"))
    assert injected(tmp_path) >= len(found) * (1 if name == "EACCES" else len(PAUSES_SECONDS) + 1)
    for outcome in found:
        facts = (outcome.get("error"), outcome.get("path"), outcome.get("errno"))
        assert facts == ("StoreError", str(bad), getattr(errno, name)), outcome
        assert "run again" in outcome["message"]
    assert hashes(tmp_path / "source") == before
    assert not (tmp_path / "state" / "log").exists()
    make_job(tmp_path).run()
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


@needs_strace
@pytest.mark.parametrize(
    ("calls", "at"),
    [
        pytest.param(calls, at, marks=() if usual == at else pytest.mark.matrix)
        for calls, usual in (("openat", "when=1"), ("pread64", "when=2"), ("copy_file_range", "when=1"))
        for at in ("when=1", "when=2", "when=3")
    ],
)
def test_an_error_that_passes_is_outlived(tmp_path: Path, calls: str, at: str) -> None:
    land_some(tmp_path)
    bad = tmp_path / "source" / "2.parquet"
    found = run_case("under_faults", tmp_path, *injecting(tmp_path, bad, calls, f"error=ESTALE:{at}"))
    assert found[0].get("version") == 1, found[0]
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


@needs_strace
def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    land_some(tmp_path)
    folder = tmp_path / "source"
    found = run_case("under_faults", tmp_path, *injecting(tmp_path, folder, "getdents64", "error=EIO"))
    assert injected(tmp_path)
    assert {(it.get("error"), it.get("path"), it.get("errno")) for it in found} == {
        ("StoreError", str(folder), errno.EIO)
    }
    assert not (tmp_path / "state").exists()


def test_no_descriptor_left_is_not_damage(tmp_path: Path) -> None:
    land_some(tmp_path)
    first, second = run_case("without_descriptors", tmp_path)
    assert (first["error"], first["errno"]) == ("StoreError", errno.EMFILE), first
    assert second["version"] == 1


def test_a_run_with_few_descriptors(tmp_path: Path) -> None:
    """Tasks hand on more files than a process may have open."""
    for number in range(280):
        land(tmp_path / "source", f"{number:03}.parquet", make_rows(number, 60))
    expected = first_of_each(read_source(tmp_path)).height
    found = run_case("with_few_descriptors", tmp_path)
    assert [it.get("kept") for it in found] == [expected] * 3, found
    assert all(it["exchanges"] > 256 for it in found), found


@pytest.mark.parametrize("kind", ["pipe", "socket", "loop"])
def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    land_some(tmp_path)
    path = tmp_path / "source" / "x.parquet"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o140644)
    else:
        path.symlink_to(path)
        with pytest.raises(fp.StoreError, match="cannot be listed: ") as caught:
            make_job(tmp_path).run()
        assert caught.value.errno == errno.ELOOP
        return
    report = make_job(tmp_path, settle_ms=0).run()
    assert (report.files, report.quarantined[0][0]) == (4, "x.parquet")
    assert "not a regular file" in report.quarantined[0][1]


def test_a_file_that_vanishes_between_listing_and_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    land_some(tmp_path)
    gone = tmp_path / "source" / "2.parquet"
    real = LocalStorage.stat

    def vanishing(self: LocalStorage, path: str) -> Facts:
        found = real(self, path)
        if path == str(gone):
            gone.unlink()
        return found

    monkeypatch.setattr(LocalStorage, "stat", vanishing)
    report = make_job(tmp_path, settle_ms=0).run()
    assert (report.files, report.vanished, report.quarantined) == (3, ("2.parquet",), ())


def test_a_file_is_scanned_again_after_an_error_of_the_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store, spans of a file may fail to be written. The next attempt drops those of the first."""
    count, exchanges, ours = 150_000, [], scan.write_exchange
    (tmp_path / "source").mkdir()
    columns = {"pid": range(count), "epoch": [0] * count, "partition": [0] * count, "seq": [0] * count}
    pq.write_table(pa.table(columns), tmp_path / "source" / "a.parquet", row_group_size=10_000)

    def write_exchange(*arguments: Any) -> Any:
        exchanges.append(arguments)
        if len(exchanges) == 2:
            raise fp.StoreError("scratch: does not answer")
        return ours(*arguments)

    monkeypatch.setattr(scan, "write_exchange", write_exchange)
    monkeypatch.setattr(scan, "SPANS_TOGETHER", 1_000)
    assert make_job(tmp_path, plan="interval").run().counts == {"ACCEPTED": count}
    assert len(exchanges) > 4


def test_an_audit_reports_an_error_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = land(tmp_path / "source", "a.parquet", make_rows(1, 1))

    def stat(self: LocalStorage, path: str) -> Facts:
        with converted_errors(path):
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(LocalStorage, "stat", stat)
    with pytest.raises(fp.StoreError) as caught:
        audit(tmp_path / "source")
    assert (caught.value.path, caught.value.errno) == (str(path), errno.ESTALE)


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    """Files beside it are not read, and a second run finds nothing new."""
    land_some(tmp_path)
    path = tmp_path / "source" / "0.parquet"
    job = DedupJob(path, tmp_path / "state", tmp_path / "sink")
    report = job.run()
    assert (report.files, report.rows) == (1, pq.read_metadata(path).num_rows)
    assert job.run().files == 0


def test_a_log_that_cannot_be_listed_does_not_count_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table would be read as a folder, files that were removed from it included."""
    land_some(tmp_path)
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path).endswith("_delta_log"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(fp.StoreError, match="cannot be listed: ") as caught:
        make_job(tmp_path)
    assert caught.value.errno == errno.EACCES
