"""The state folder: what is put once, what is found damaged, what is collected."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import fencepost as fp
import pytest
from fencepost import state
from fencepost.state import segment_files, versions
from fencepost.state.disk import Disk
from fencepost.state.stores import LocalStore
from support.lake import Crash, hashes, land, land_some, make_job, make_rows

ROOT = Path(__file__).parents[1]


def some_versions(root: Path, count: int = 2) -> state.State:
    for version in range(count):
        land_some(root, [version])
        make_job(root).run()
    return state.open(root / "state")


def test_a_version_describes_its_run(tmp_path: Path) -> None:
    land_some(tmp_path, [0, 1])
    report = make_job(tmp_path, scope="east").run()
    opened = state.open(tmp_path / "state")
    (glance,) = opened.versions()
    assert (glance.version, glance.status, glance.kind, glance.builds_on) == (1, "applied", "run", 0)
    assert (glance.files, glance.rows, glance.kept, glance.entries) == (2, 1200, report.kept, report.entries)
    version = opened.version(1)
    assert (version.version, version.previous, version.counts) == (1, None, report.counts)
    assert list(zip(version.inputs.path, version.inputs.rows, strict=True)) == [("0.parquet", 600), ("1.parquet", 600)]
    assert sum(version.outputs.rows) == report.kept
    for name, size in zip(version.outputs.name, version.outputs.bytes, strict=True):
        assert (tmp_path / "sink" / "run=1" / name).stat().st_size == size
    assert version.entries == report.entries == len(opened.entries())
    assert sum(shard.positions or 0 for shard in version.shards) == report.counts["ACCEPTED"]
    settings = opened.settings()
    assert settings is not None
    assert (settings.scope, settings.shards, settings.fencepost) == ("east", 16, fp.__version__)


def test_untouched_shards_keep_their_segments(tmp_path: Path) -> None:
    land_some(tmp_path, [0])
    make_job(tmp_path).run()
    one_key = make_rows(0).slice(0, 1).set_column(0, "pid", [[3]])
    land(tmp_path / "source", "one.parquet", one_key)
    assert make_job(tmp_path).run().shards == 1
    first, second = (state.open(tmp_path / "state").version(version) for version in (1, 2))
    changed = [new for new in second.shards if new != first.shards.get(new.shard)]
    assert len(changed) == 1
    assert len(second.shards) >= len(first.shards) > 3


def test_entries_and_missing_over_all_shards(tmp_path: Path) -> None:
    opened = some_versions(tmp_path)
    rows = [make_rows(0), make_rows(1)]
    table = fp.StateTable("any_order")
    for part in rows:
        table.apply(part)
    import pyarrow as pa  # type: ignore[import-untyped]

    keys = [("pid", "ascending"), ("partition", "ascending"), ("epoch", "ascending")]
    expected = pa.table(table.entries()).replace_schema_metadata(None)
    assert opened.entries().sort_by(keys).to_pylist() == expected.to_pylist()
    assert opened.missing().num_rows == pa.table(table.missing()).num_rows > 0


def test_no_state(tmp_path: Path) -> None:
    with pytest.raises(fp.SnapshotError, match="not a fencepost state"):
        state.open(tmp_path)


def test_a_large_decision_goes_to_a_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 500)
    opened = some_versions(tmp_path, 3)
    assert [version.version for version in opened.versions()] == [1, 2, 3]
    assert all(path.stat().st_size <= 1_000 for path in (tmp_path / "state" / "log").iterdir())
    bodies = sorted((tmp_path / "state" / "body").iterdir())
    assert len(bodies) == 3
    bodies[1].write_bytes(bodies[1].read_bytes().replace(b"DUPLICATE", b"ACCEPTED "))
    opened = state.open(tmp_path / "state")
    assert [version.rows for version in opened.versions()] == [600] * 3
    with pytest.raises(fp.SnapshotError, match=r"body/2-.*: its SHA-256 is .* the decision names"):
        opened.version(2)


def test_the_next_version_reads_no_list_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the root of the decision; where that is gone, or damaged, the body."""
    monkeypatch.setattr(versions, "DECISION_BYTES_MAX", 500)
    land_some(tmp_path, list(range(40)))
    assert make_job(tmp_path).run().version == 1
    log = json.loads((tmp_path / "state" / "log" / "1.json").read_bytes())
    body, root = tmp_path / "state" / log["body"], tmp_path / "state" / log["root"]
    assert root.stat().st_size < body.stat().st_size / 2
    data = body.read_bytes(), root.read_bytes()
    body.unlink()
    assert make_job(tmp_path).run().version is None
    body.write_bytes(data[0])
    root.write_bytes(data[1][:-9])
    land_some(tmp_path, [40])
    assert make_job(tmp_path).run().version == 2
    root.unlink()
    opened = state.open(tmp_path / "state")
    assert len(opened.version(1).inputs) == len(opened.version(1).outputs) == 40
    assert len(opened.latest().inputs) == 1  # type: ignore[union-attr]
    land_some(tmp_path, [41])
    assert make_job(tmp_path).run().version == 3
    assert opened.collect_garbage() == 0


def test_history_that_was_changed(tmp_path: Path) -> None:
    opened = some_versions(tmp_path, 3)
    log = tmp_path / "state" / "log" / "1.json"
    text = log.read_text()
    log.write_text(text.replace('"rows": [600]', '"rows": [601]'))
    with pytest.raises(fp.SnapshotError, match=r"done/1: does not match log/1.json"):
        opened.versions()
    with pytest.raises(fp.SnapshotError, match=r"log/2.json: .*not follow from log/1.json"):
        opened.version(2)
    log.write_text(text)
    assert len(opened.versions()) == 3
    log.write_text("{")
    with pytest.raises(fp.SnapshotError, match=r"log/1.json: not a file"):
        opened.versions()
    log.write_text('{"format": 2, "version": 1}')
    with pytest.raises(fp.SnapshotError, match=r"log/1.json: not a file .*\(KeyError"):
        state.open(tmp_path / "state").versions()
    log.write_text(text)
    (tmp_path / "state" / "log" / "3.json").unlink()
    with pytest.raises(fp.SnapshotError, match=r"log/3.json: missing, but version 3 is done"):
        make_job(tmp_path).run()


@pytest.mark.parametrize("name", ["*.state", "ledger*"])
def test_a_damaged_segment(tmp_path: Path, name: str) -> None:
    some_versions(tmp_path)
    land_some(tmp_path, [2])
    before = hashes(tmp_path / "sink")
    segment = next((tmp_path / "state" / "segments" / "2").rglob(name))
    data = segment.read_bytes()
    segment.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    segment_files.CACHE.clear()
    with pytest.raises(fp.SnapshotError, match=r"its SHA-256 is .* the decision names"):
        make_job(tmp_path).run()
    segment_files.CACHE.clear()  # what is known by its content is read from there
    segment.unlink()
    with pytest.raises(fp.SnapshotError, match="missing"):
        make_job(tmp_path).run()
    assert hashes(tmp_path / "sink") == before
    segment.write_bytes(data)
    assert make_job(tmp_path).run().version == 3


def test_a_version_that_was_never_finished(tmp_path: Path) -> None:
    some_versions(tmp_path, 3)
    for version in (2, 3):
        (tmp_path / "state" / "done" / str(version)).unlink()
    with pytest.raises(fp.SnapshotError, match="done/2: missing, but version 3 is decided"):
        make_job(tmp_path).run()


def test_the_ledger_stays_short(tmp_path: Path) -> None:
    opened = some_versions(tmp_path, 8)
    parts = [opened.version(version).ledger.files for version in range(1, 9)]
    assert parts == [[1], [2], [3], [4], [5], [6], [7], [8]] or all(
        older >= 2 * newer for files in parts for older, newer in itertools.pairwise(files)
    )
    assert opened.ledger(opened.latest())["path"].to_pylist() == [f"{seed}.parquet" for seed in range(8)]


def test_only_rubbish_is_collected(tmp_path: Path) -> None:
    opened = some_versions(tmp_path)
    path, sink = tmp_path / "state", tmp_path / "sink"
    before = hashes(tmp_path)
    rubbish = [
        path / "segments" / "2" / "dead" / "x.state",
        path / "body" / "2-dead.json",
        path / "tmp" / "log-2.json.dead.tmp",
        path / "tmp" / "done-3.dead.tmp",
        path / "tmp" / "state.json.dead.tmp",
        path / "segments" / "3" / "slower" / "x.state",
        sink / "_prepare" / "2-dead" / "part.parquet",
        sink / "_prepare" / "3-slower" / "part.parquet",
        sink / "_prepare" / "_fencepost.json.dead.tmp",
    ]
    at_work = [
        path / "segments" / "4" / "alive" / "x.state",
        path / "body" / "4-alive.json",
        path / "tmp" / "log-4.json.alive.tmp",
        sink / "_prepare" / "4-alive" / "part.parquet",
    ]
    beside = [path / "log" / "2.json.dead.tmp", path / "done" / "1.dead.tmp"]
    """As earlier versions of this package had temporaries."""
    oldest = path / "segments" / "1" / "dead" / "x.state"
    for file in (*rubbish, *at_work, *beside, oldest):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    assert make_job(tmp_path).run().version is None, "costs the same whatever there is"
    land_some(tmp_path, [2])
    assert make_job(tmp_path).run().version == 3
    assert [file for file in rubbish if file.exists()] == []
    assert [file for file in (*at_work, *beside, oldest) if not file.exists()] == []
    assert opened.collect_garbage() == 3
    assert [file for file in (*beside, oldest) if file.exists()] == []
    assert [file for file in at_work if not file.exists()] == []
    del before["state/hint"]
    assert {name: value for name, value in hashes(tmp_path).items() if name in before} == before
    assert len(opened.versions()) == 3


# -- Disk


def test_put_if_absent(tmp_path: Path) -> None:
    disk = Disk()
    assert disk.put(tmp_path / "a", b"mine")
    assert disk.put(tmp_path / "a", b"mine"), "a try that succeeded unnoticed"
    assert not disk.put(tmp_path / "a", b"yours")
    assert (tmp_path / "a").read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["a"]


def test_a_loser_waits_until_the_name_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have died before the name was on disk, and the next run builds on it."""
    Disk(sync=False).put(tmp_path / "x", b"theirs")
    sealed: list[Path] = []
    monkeypatch.setattr(Disk, "seal", lambda disk, path: sealed.append(path))
    assert not Disk().put(tmp_path / "x", b"mine")
    assert sealed == [tmp_path]


@pytest.mark.parametrize(("faster", "won"), [(None, True), (b"mine", True), (b"yours", False)])
def test_put_survives_the_collection_of_its_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bytes | None, won: bool
) -> None:
    """Between write and link another run may put the same name and collect the temporary file as garbage."""
    disk, write, taken = Disk(), Disk.write, []

    def write_then_lose(self: Disk, path: Path, data: bytes) -> None:
        write(self, path, data)
        if not taken:
            taken.append(path.name)
            path.unlink()
            if faster is not None:
                (tmp_path / "a").write_bytes(faster)

    monkeypatch.setattr(Disk, "write", write_then_lose)
    assert disk.put(tmp_path / "a", b"mine") is won
    assert (tmp_path / "a").read_bytes() == (faster or b"mine")
    assert len(taken) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_put_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, the parts of each try would take what becomes free, and no later try would fit."""

    def seal(disk: Disk, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Disk, "seal", seal)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        Disk().put(tmp_path / "a", b"mine")
    assert not os.listdir(tmp_path)


def test_a_folder_with_content_is_never_replaced(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with pytest.raises(OSError, match="not empty"):
        Disk().move(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["old"]


def test_settings_are_text_that_people_can_read(tmp_path: Path) -> None:
    some_versions(tmp_path, 1)
    fields = json.loads((tmp_path / "state" / "state.json").read_text())
    roles = {"pid": "pid", "epoch": "epoch", "partition": "partition", "seq": "seq", "timestamp": None}
    assert fields["columns"] == roles
    assert fields["policy"] == fp.Policy.any_order().rules
    assert fields["source"] == str(tmp_path / "source")


# -- States of earlier versions, and the hint


def test_a_state_of_an_earlier_version_continues(tmp_path: Path) -> None:
    """As it was before there were hints, and indexes of ledgers: never written again (`tests/data`)."""
    shutil.copytree(ROOT / "data" / "state-v1", tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "state" / "state.json"
    places = {"{source}": str(tmp_path / "source"), "{sink}": str(tmp_path / "sink")}
    text = settings.read_text()
    settings.write_text(text.replace("{source}", places["{source}"]).replace("{sink}", places["{sink}"]))
    for path in (tmp_path / "source").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    opened = state.open(tmp_path / "state")
    assert (opened.done(), [it.status for it in opened.versions()]) == (3, ["applied"] * 3)
    figures = [(it["missing_opened"], it["missing_closed"], it["seconds"]) for it in opened.history()]
    assert figures == [(None, None, None)] * 3, "not recorded by then"
    assert opened.ledger(opened.latest())["path"].to_pylist() == ["a.parquet", "b.parquet", "c.parquet", "d.parquet"]
    assert not (tmp_path / "state" / "hint").exists()
    assert make_job(tmp_path).run().version is None, "though the inodes are others"
    land_some(tmp_path, [0])
    report = make_job(tmp_path, schema="merge").run()
    assert (report.version, report.files, report.recovered) == (4, 1, ())
    latest = opened.latest()
    assert latest is not None
    assert all(latest.ledger.index)
    assert sorted(set(opened.ledger(latest)["path"].to_pylist())) == sorted(os.listdir(tmp_path / "source"))
    assert make_job(tmp_path).run().version is None
    assert opened.rollback(3, accept_duplicates=True).version == 5


HINTS = {
    "lost": None,
    "empty": b"",
    "cut": b'{"format": 2, "done"',
    "text": b'{"format": 2, "done": "x"}',
    "a list": b"[]",
    "behind": b'{"format": 2, "done": 2}',
    "far behind": b'{"format": 2, "done": 1}',
    "before the first": b'{"format": 2, "done": -1}',
    "none": b'{"format": 2, "done": 0}',
    "ahead": b'{"format": 2, "done": 5}',
    "far ahead": b'{"format": 2, "done": 1000000000000}',
}


def test_a_hint_never_decides_which_versions_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PROBES_MAX", 3)
    opened = some_versions(tmp_path, 4)
    path, done = tmp_path / "state" / "hint", tmp_path / "state" / "done" / "4"
    assert json.loads(path.read_bytes())["done"] == 4
    for (name, data), is_finished in itertools.product(HINTS.items(), (True, False)):
        path.unlink() if data is None else path.write_bytes(data)
        if not is_finished:
            done.unlink()
        assert (opened.done(), opened.decided()) == (4 if is_finished else 3, 4), name
        assert opened.unfinished() == range(4 + is_finished, 5), name
        assert (path.read_bytes() if path.exists() else None) == data, "who only looks writes nothing"
        report = make_job(tmp_path).run()
        assert (report.version, report.recovered) == (None, () if is_finished else (4,)), name
        assert json.loads(path.read_bytes())["done"] == 4, "a run puts it right"
    land_some(tmp_path, [4])
    assert make_job(tmp_path).run().version == 5
    assert [it.status for it in opened.versions()] == ["applied"] * 5


def test_a_version_counts_without_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies before it puts the hint, or cannot put it."""
    some_versions(tmp_path, 2)
    for error in (Crash(), OSError("no space"), fp.StoreError("no answer")):
        land_some(tmp_path, [len(os.listdir(tmp_path / "source"))])
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "replace", lambda *_, error=error: raise_(error))
            with pytest.raises(Crash) if isinstance(error, Crash) else nullcontext():
                make_job(tmp_path).run()
    opened = state.open(tmp_path / "state")
    assert (opened.done(), opened.unfinished()) == (5, range(6, 6))
    assert json.loads((tmp_path / "state" / "hint").read_bytes())["done"] == 2
    assert make_job(tmp_path).run().version is None
    assert json.loads((tmp_path / "state" / "hint").read_bytes())["done"] == 5


def raise_(error: BaseException) -> None:
    raise error


def test_a_gap_after_the_hint_is_damage(tmp_path: Path) -> None:
    some_versions(tmp_path, 4)
    (tmp_path / "state" / "hint").write_bytes(HINTS["behind"] or b"")
    (tmp_path / "state" / "log" / "3.json").unlink()
    (tmp_path / "state" / "log" / "4.json").unlink()
    with pytest.raises(fp.SnapshotError, match=r"log/4.json: missing, but version 4 is done"):
        make_job(tmp_path).run()


def test_an_unchanged_listing_is_not_compared_again(tmp_path: Path) -> None:
    """An equal listing needs no ledger: not even a damaged one. Any other one is compared."""
    opened = some_versions(tmp_path)
    latest = opened.latest()
    assert latest is not None
    for name in latest.ledger.name:
        (tmp_path / "state" / name).unlink()
    segment_files.CACHE.clear()
    assert make_job(tmp_path).run().version is None
    os.utime(tmp_path / "source" / "0.parquet", ns=(1, 1))
    with pytest.raises(fp.SnapshotError, match="missing"):
        make_job(tmp_path).run()


def test_a_listing_with_files_left_out_is_compared_again(tmp_path: Path) -> None:
    land_some(tmp_path, [0, 1])
    assert make_job(tmp_path, files_max=1).run().version == 1
    assert make_job(tmp_path, files_max=1).run().version == 2
    (tmp_path / "source" / "2.parquet").write_bytes(b"PAR1 is no file")
    assert make_job(tmp_path, settle_ms=10**9).run().version == 3
    latest = state.open(tmp_path / "state").latest()
    assert latest is not None
    assert (latest.deferred.path, latest.listing) == (["2.parquet"], None)
    assert make_job(tmp_path, settle_ms=10**9).run().version is None
    assert make_job(tmp_path, settle_ms=0).run().version == 4
    assert state.open(tmp_path / "state").latest().listing is not None  # type: ignore[union-attr]
