"""Folders on mounts: inodes change, and renames of folders may not be atomic."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from fencepost import state
from fencepost.lake import LocalEngine, asking
from fencepost.state.disk import Disk
from fencepost.state.sinks import check_renames
from support.lake import first_of_each, land, land_some, make_job, make_rows, read_sink, read_source
from support.waiting import wait_until


def remount(root: Path) -> None:
    """The same files with other inodes, as after a remount, `rsync -a` or a restore."""
    before = {file: file.stat().st_ino for file in (root / "source").rglob("*.parquet")}
    shutil.copytree(root / "source", root / "copy")
    shutil.rmtree(root / "source")
    (root / "copy").rename(root / "source")
    assert before
    assert all(file.stat().st_ino != inode for file, inode in before.items())


def untracked(count: int, first: int = 0) -> pa.Table:
    origin = [f"{number:09}" for number in range(first, first + count)]
    nulls = pa.nulls(count, pa.int64())
    return pa.table({"pid": nulls, "epoch": [0] * count, "partition": [0] * count, "seq": [0] * count, "o": origin})


def test_a_remount_brings_nothing_new(tmp_path: Path) -> None:
    """Rows without identity would be kept a second time."""
    land(tmp_path / "source" / "day=1", "a.parquet", untracked(50))
    land_some(tmp_path)
    make_job(tmp_path, schema="merge").run()
    for _ in range(2):
        remount(tmp_path)
        assert make_job(tmp_path, schema="merge").run().version is None
    assert list((tmp_path / "sink" / "_prepare").iterdir()) == []
    land(tmp_path / "source" / "day=1", "b.parquet", untracked(7, 50))
    report = make_job(tmp_path, schema="merge").run()
    assert (report.files, report.counts) == (1, {"UNTRACKED": 7})


def test_footers_are_read_once_after_a_remount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked = asking.footers, [0]

    def counted(storage: Any, item: asking.FileItem) -> list[int | None]:
        looked[-1] += len(item.files)
        return real(storage, item)

    monkeypatch.setattr(asking, "footers", counted)
    land_some(tmp_path, range(6))
    make_job(tmp_path).run()
    remount(tmp_path)
    for seed in (6, 7, 8):
        land_some(tmp_path, [seed])
        looked.append(0)
        assert make_job(tmp_path).run().files == 1
    assert looked == [0, 6, 0, 0]
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


def test_other_content_of_equal_size_and_time_is_another_file(tmp_path: Path) -> None:
    """Mounts of object stores keep times to the second."""
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    file = land(tmp_path / "source", "a.parquet", untracked(50), **options)
    make_job(tmp_path).run()
    before = file.stat()
    other = land(tmp_path / "other", "a.parquet", untracked(50, 50), **options)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ino != before.st_ino
    assert make_job(tmp_path).run().counts == {"UNTRACKED": 50}
    assert make_job(tmp_path).run().version is None
    found = pa.concat_tables(pq.ParquetFile(it).read() for it in (tmp_path / "sink").glob("run=*/*.parquet"))
    assert len(found["o"].unique()) == len(found) == 100


@pytest.mark.parametrize("plan", ["interval", "row", "aligned"])
def test_inodes_that_change_while_a_run_reads(tmp_path: Path, plan: str) -> None:
    land_some(tmp_path)

    class Remounting(LocalEngine):
        def run(self, stage: str, *arguments: Any) -> Any:
            remount(tmp_path)
            return super().run(stage, *arguments)

    report = make_job(tmp_path, engine=Remounting(2), plan=plan).run()
    assert (report.files, report.vanished) == (4, ())
    assert read_sink(tmp_path).height == first_of_each(read_source(tmp_path)).height


# -- Renames


Rename = Callable[[Any, Any], None]
REAL: Rename = os.rename


def refusing(source: Any, target: Any) -> None:
    """As mountpoint-s3, and gcsfuse of a folder."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def replacing(source: Any, target: Any) -> None:
    """A folder replaces one that has content."""
    if os.path.isdir(target):
        shutil.rmtree(target)
    REAL(source, target)


def merging(source: Any, target: Any) -> None:
    if not os.path.isdir(target):
        return REAL(source, target)
    for name in os.listdir(source):
        os.replace(os.path.join(source, name), os.path.join(target, name))
    return os.rmdir(source)


@pytest.mark.parametrize(
    ("rename", "problem"),
    [
        (refusing, "Function not implemented"),
        (replacing, "takes the place of"),
        (merging, "takes the place of"),
    ],
)
def test_a_sink_where_versions_would_not_appear_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: Rename, problem: str
) -> None:
    land_some(tmp_path)
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(fp.SinkError, match=f"cannot hold a sink: .*{problem}"):
        make_job(tmp_path).run()
    monkeypatch.undo()
    assert not (tmp_path / "state").exists()
    assert [path.name for path in (tmp_path / "sink").iterdir()] == ["_prepare"]
    assert make_job(tmp_path).run().version == 1


def test_renames_that_others_see_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs: every file of a folder is copied, one after the other."""
    real_list, listed = os.listdir, set()

    def listing(folder: Any) -> list[str]:
        names = real_list(folder)
        listed.add(len(names))
        return names

    def copying(source: Any, target: Any) -> None:
        os.makedirs(target)
        for count, name in enumerate(sorted(real_list(source)), 1):
            REAL(os.path.join(source, name), os.path.join(target, name))
            wait_until(lambda count=count: count in listed, "nobody looked")
        os.rmdir(source)

    monkeypatch.setattr(os, "listdir", listing)
    monkeypatch.setattr(os, "rename", copying)
    with pytest.raises(fp.SinkError, match="appears file by file"):
        check_renames(tmp_path / "probe", Disk(sync=False))
    assert not (tmp_path / "probe").exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_state_where_links_do_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(fp.StoreError, match="cannot hold a state") as caught:
        state.stores.check_exclusion(state.open_store(tmp_path / "state"))
    assert caught.value.errno == number
    land(tmp_path / "source", "a.parquet", make_rows(1))
    with pytest.raises(fp.SinkError, match="cannot hold a sink"):
        make_job(tmp_path).run()
