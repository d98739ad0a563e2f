"""Kafka's log as the source of a job: each run reads what is new, each record counts once, whatever dies."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from fencepost import kafka, state
from fencepost.lake import DedupJob, KafkaLog, judging, preparing, sources, writing
from fencepost.lake import run as run_module
from fencepost.lake.kafka_log import find_new
from fencepost.lake.kafka_segments import Isolation
from fencepost.state.sinks import RunFolders
from support.kafka_logs import DATA, PARTITIONS, append_again, batches_of, copy_upto, flip

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def make_job(root: Path, isolation: Isolation = "read_committed", **arguments: Any) -> DedupJob:
    return DedupJob(KafkaLog(root / "logs", isolation), root / "state", root / "sink", **arguments)


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by(
        [(it, "ascending") for it in ("topic", "partition", "offset")]
    ).to_pylist()
    return rows


def read_sink(root: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in (root / "sink").glob("run=*/*.parquet"))
    return sorted_rows(ds.dataset(files).to_table())


def read_log(root: Path, isolation: Isolation = "read_committed") -> list[dict[str, Any]]:
    folders = sorted((root / "logs").iterdir())
    return sorted_rows(pa.concat_tables([pa.table(kafka.read_records(it, isolation)) for it in folders]))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_brokers_directory(tmp_path: Path, isolation: Isolation) -> None:
    shutil.copytree(
        DATA, tmp_path / "logs", ignore=lambda _, names: {it for it in names if it.endswith((".csv", ".gz"))}
    )
    (tmp_path / "logs" / "README.md").unlink()
    report = make_job(tmp_path, isolation).run()
    assert read_sink(tmp_path) == read_log(tmp_path, isolation)
    assert report.counts == {"ACCEPTED": {"read_uncommitted": 2385, "read_committed": 2038}[isolation], "UNTRACKED": 36}
    assert report.identity == ("pid", "epoch", "topic", "partition", "seq")
    assert report.source_position is not None
    offsets = report.source_position["offsets"]
    assert {f"{topic}-{it}" for topic in offsets for it in offsets[topic]} == set(PARTITIONS)
    # The transaction that is open at 15 holds back what is committed.
    assert offsets["carts"] == {"0": 15 if isolation == "read_committed" else 34}
    assert report.lag == (34 - 15 if isolation == "read_committed" else 0)
    again = make_job(tmp_path, isolation).run()
    assert (again.version, again.rows, again.lag) == (None, 0, report.lag)
    assert not list((tmp_path / "sink" / "_prepare").iterdir()), "nothing is left of what was exported"


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        pytest.param(name, isolation, marks=() if isolation == usual else pytest.mark.matrix)
        for name, usual in (("orders-0", ISOLATIONS[0]), ("carts-0", ISOLATIONS[1]), ("clicks-1", ISOLATIONS[1]))
        for isolation in ISOLATIONS
    ],
)
def test_each_run_reads_what_is_new(tmp_path: Path, name: str, isolation: Isolation) -> None:
    """The log after each fourth batch: within transactions, and where segments begin."""
    ends = [it["base_offset"] for it in batches_of(DATA / name)][3::4]
    read = 0
    for end in (*ends, 10**9):
        copy_upto(name, tmp_path / "logs", end)
        wanted = read_log(tmp_path, isolation)
        report = make_job(tmp_path, isolation).run()
        assert report.rows == len(wanted) - read
        read = len(wanted)
        if wanted:
            assert read_sink(tmp_path) == wanted
    assert read == len(pa.table(kafka.read_records(DATA / name, isolation))) > 8
    assert make_job(tmp_path, isolation).run().version is None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_segment_that_is_not_copied_yet_stops_the_run(tmp_path: Path, isolation: Isolation) -> None:
    """Whether a run has read those before it, or not: a later run would read only what follows."""
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path, isolation)
    _, *middle, last = sorted(folder.glob("*.log"))
    late = [it.rename(tmp_path / it.name) for it in middle]
    message = rf"{folder}: offsets {int(middle[0].stem)} to {int(last.stem) - 1} are in no segment: .* copied later"
    with pytest.raises(fp.SourceError, match=message) as info:
        make_job(tmp_path, isolation).run()
    assert "cleanup_policy='compact'" in str(info.value)
    last.rename(tmp_path / last.name)
    make_job(tmp_path, isolation).run()
    (tmp_path / last.name).rename(last)
    with pytest.raises(fp.SourceError, match=message):
        make_job(tmp_path, isolation).run()
    for path in late:
        path.rename(folder / path.name)
    make_job(tmp_path, isolation).run()
    assert read_sink(tmp_path) == wanted


def test_a_compacted_log_has_offsets_in_no_segment(tmp_path: Path) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    _, middle, *_ = sorted(folder.glob("*.log"))
    middle.unlink()
    wanted = read_log(tmp_path)
    for policy in ("delete", {"clicks": "unknown", "*": "compact"}):
        with pytest.raises(fp.SourceError, match="are in no segment"):
            DedupJob(KafkaLog(folder, cleanup_policy=policy), tmp_path / "state", tmp_path / "sink").run()
    compacted = KafkaLog(folder, cleanup_policy={"clicks": "compact"})
    assert DedupJob(compacted, tmp_path / "state", tmp_path / "sink").run().rows == len(wanted)
    with pytest.warns(RuntimeWarning, match="are in no segment"):
        report = DedupJob(KafkaLog(folder), tmp_path / "b", tmp_path / "c", on_reset="report").run()
    assert report.rows == len(wanted)
    assert DedupJob(KafkaLog(folder), tmp_path / "b", tmp_path / "c").run().version is None, "it was accepted"
    with pytest.raises(fp.PolicyError, match="cleanup_policy='compacted'"):
        KafkaLog(folder, cleanup_policy="compacted")


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_marker_with_a_changed_bit_stops_the_run(tmp_path: Path, outcome: Any) -> None:
    """Otherwise a committed transaction counts as aborted, or an aborted one as committed."""
    folder = tmp_path / "logs" / "orders-0"
    with kafka.PartitionLog(folder) as log:
        log.append(7, 0, 0, [b"one"], transactional=True)
        log.append_marker(7, 1, outcome)
        log.append(7, 1, 0, [b"two"])
    _, marker, _ = batches_of(folder)
    path = folder / marker["segment"]
    flip(path, marker["position"] + marker["bytes"] - 9)  # the last byte of the key
    for read in (lambda: pa.table(kafka.read_records(folder)), make_job(tmp_path).run):
        with pytest.raises(fp.SourceError, match="CRC-32C") as info:
            read()
        assert info.value.position == marker["position"]


def test_first_segments_that_are_copied_after_the_first_run_stop_the_next_one(tmp_path: Path) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path)
    first, second, third, *_ = sorted(folder.glob("*.log"))
    late = [it.rename(tmp_path / it.name) for it in (first, second)]
    start = int(third.stem)
    position = make_job(tmp_path).run().source_position
    assert position == {"offsets": {"clicks": {"0": 733}}, "ids": {}, "starts": {"clicks": {"0": start}}}
    assert make_job(tmp_path).run().version is None
    for path in reversed(late):
        path.rename(folder / path.name)
        message = f"{folder}: offsets {int(path.stem)} to {start - 1} were not read: .* {start} when"
        with pytest.raises(fp.SourceError, match=message):
            make_job(tmp_path).run()
    with pytest.warns(RuntimeWarning, match="were not read"):
        report = make_job(tmp_path, on_reset="report").run()
    assert report.counts == {"ACCEPTED": start, "DUPLICATE": 733 - start}
    assert report.source_position == {"offsets": {"clicks": {"0": 733}}, "ids": {}}
    assert read_sink(tmp_path) == wanted
    first.unlink()
    assert make_job(tmp_path).run().version is None, "retention"


@pytest.mark.parametrize("place", [0, 1])
def test_segments_that_a_broker_is_replacing_are_not_a_gap(tmp_path: Path, place: int) -> None:
    """Compaction removes the old segments before the new one has its name."""
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path)
    first, second = sorted(folder.glob("*.log"))[place : place + 2]
    swap = first.with_name(f"{first.name}.swap")
    swap.write_bytes(first.read_bytes() + second.read_bytes())

    def run() -> None:
        DedupJob(KafkaLog(tmp_path / "logs", cleanup_policy="compact"), tmp_path / "state", tmp_path / "sink").run()

    for path in (first, second):
        path.rename(path.with_name(f"{path.name}.deleted"))
        with pytest.raises(fp.SourceError, match=rf"{folder}: .* is replacing segments by {swap.name}"):
            run()
    swap.rename(first)
    run()
    assert read_sink(tmp_path) == wanted


def test_every_gap_is_reported(tmp_path: Path) -> None:
    """A run that continues reads past all of them."""
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    _, second, third, fourth, last = sorted(folder.glob("*.log"))
    second.unlink()
    fourth.unlink()
    with pytest.warns(RuntimeWarning) as found:
        DedupJob(KafkaLog(folder), tmp_path / "state", tmp_path / "sink", on_reset="report").run()
    gaps = [(int(second.stem), int(third.stem) - 1), (int(fourth.stem), int(last.stem) - 1)]
    assert [str(it.message).partition(" are in ")[0] for it in found] == [
        f"{folder}: offsets {begin} to {end}" for begin, end in gaps
    ]


def test_records_that_a_broker_took_twice_are_kept_once(tmp_path: Path) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path)
    first = batches_of(folder)[0]
    append_again(folder, first)
    report = make_job(tmp_path).run()
    assert report.counts == {"ACCEPTED": len(wanted), "DUPLICATE": first["count"]}
    append_again(folder, first)
    report = make_job(tmp_path).run()
    assert report.counts == {"DUPLICATE": first["count"]}
    assert read_sink(tmp_path) == wanted


def test_a_partitions_folder_and_policies_that_need_an_order(tmp_path: Path) -> None:
    """Rows are read by partition and offset, so file names and rows are in the true order."""
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    append_again(folder, batches_of(folder)[0])
    job = DedupJob(
        KafkaLog(folder), tmp_path / "state", tmp_path / "sink", policy="in_order", order_by=(), rejects="all"
    )
    report = job.run()
    assert set(report.counts) == {"ACCEPTED", "DUPLICATE"}
    assert report.source_position == {
        "offsets": {"clicks": {"0": 733 + report.counts["DUPLICATE"]}},
        "ids": {},
    }
    by_offset = DedupJob(KafkaLog(folder), tmp_path / "b", tmp_path / "c", policy="kafka_offsets").run()
    assert by_offset.identity == ("topic", "partition", "offset")
    assert by_offset.counts == {"ACCEPTED": report.rows}


def test_a_torn_end_is_read_once_it_is_whole(tmp_path: Path) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    last = sorted(folder.glob("*.log"))[-1]
    data, batches = last.read_bytes(), batches_of(last)
    cut = batches[-3]["position"]
    for tail in (data[cut : cut + 20], data[cut : cut + 65], bytes(300)):
        last.write_bytes(data[:cut] + tail)
        make_job(tmp_path, "read_uncommitted").run()
        rows = read_sink(tmp_path)
        assert rows[-1]["offset"] < batches[-3]["base_offset"]
    last.write_bytes(data)
    make_job(tmp_path, "read_uncommitted").run()
    assert read_sink(tmp_path) == read_log(tmp_path, "read_uncommitted")


def test_damage_stops_the_run(tmp_path: Path) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    first = sorted(folder.glob("*.log"))[0]
    data = first.read_bytes()
    first.write_bytes(data[:90] + bytes([data[90] ^ 1]) + data[91:])
    with pytest.raises(fp.SourceError, match="byte 0: the batch has the CRC-32C") as info:
        make_job(tmp_path, "read_uncommitted").run()
    assert info.value.path == str(first)
    assert not list((tmp_path / "sink" / "_prepare").iterdir())
    first.write_bytes(data)
    assert make_job(tmp_path, "read_uncommitted").run().version == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_segment_that_becomes_shorter_during_a_run_stops_it(tmp_path: Path, isolation: Isolation) -> None:
    """A copy that replaces files in place: what the run has planned to read is gone, and comes back."""
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path, isolation)
    segments = sorted(it for it in folder.glob("*.log") if it.stat().st_size)
    for path in (segments[0], segments[-1]):
        data = path.read_bytes()
        for left in (b"", data[: batches_of(path)[-1]["position"]]):
            parts = find_new(KafkaLog(tmp_path / "logs", isolation), None).parts
            path.write_bytes(left)
            (part,) = (it for it, _ in parts if it.segment.path == str(path))
            with pytest.raises(fp.SourceError, match=f"{path}: it had {len(data)} bytes or more"):
                list(part.records())
            path.write_bytes(data)
    make_job(tmp_path, isolation).run()
    assert read_sink(tmp_path) == wanted


# Retention, truncation


def test_segments_that_were_read_may_go(tmp_path: Path) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 600)
    make_job(tmp_path).run()
    copy_upto("clicks-0", tmp_path / "logs", 10**9)
    for path in sorted(folder.glob("*.log"))[:3]:
        path.unlink()
    make_job(tmp_path).run()
    assert [it["offset"] for it in read_sink(tmp_path)] == list(range(733))


def test_rows_that_went_before_they_were_read(tmp_path: Path) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 200)
    end = batches_of(folder)[-1]["last_offset"] + 1
    make_job(tmp_path).run()
    copy_upto("clicks-0", tmp_path / "logs", 10**9)
    for path in sorted(folder.glob("*.log"))[:3]:
        path.unlink()
    start = int(sorted(folder.glob("*.log"))[0].stem)
    with pytest.raises(fp.SourceError, match=f"{folder}: rows were lost: offsets {end} to {start - 1} were") as info:
        make_job(tmp_path).run()
    assert "on_reset='report'" in str(info.value)
    assert state.open(tmp_path / "state").head()[0] == 2, "nothing was decided"
    with pytest.warns(RuntimeWarning, match="rows were lost"):
        report = make_job(tmp_path, on_reset="report").run()
    assert report.rows == 733 - start
    assert [it["offset"] for it in read_sink(tmp_path)] == [*range(end), *range(start, 733)]
    assert make_job(tmp_path).run().version is None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_log_that_ends_before_its_position(tmp_path: Path, isolation: Isolation) -> None:
    folder = copy_upto("clicks-0", tmp_path / "logs", 10**9)
    make_job(tmp_path, isolation).run()
    shutil.rmtree(folder)
    shutil.copytree(DATA / "clicks-1", folder)
    with pytest.raises(fp.SourceError, match="read up to offset 733, but ends at 480"):
        make_job(tmp_path, isolation).run()
    with pytest.warns(RuntimeWarning, match="truncated"):
        report = make_job(tmp_path, isolation, on_reset="report").run()
    assert report.rows == 480
    assert report.source_position == {"offsets": {"clicks": {"0": 480}}, "ids": {}}


def _lay(logs: Path, source: str, name: str, topic_id: str | None = None) -> None:
    """Put a partition in place of another one of this name."""
    shutil.rmtree(logs / name, ignore_errors=True)
    shutil.copytree(DATA / source, logs / name)
    if topic_id is not None:
        (logs / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


def test_a_recreated_topic_that_has_grown_is_recognized_by_its_id(tmp_path: Path) -> None:
    """Only its id distinguishes it from the previous topic; the folder of a broker has the id."""

    lay = partial(_lay, tmp_path / "logs")
    lay("clicks-1", "clicks-0", "first")
    lay("clicks-2", "clicks-1", "first")
    lay("orders-0", "orders-0", "other")
    assert make_job(tmp_path).run().source_position == {
        "offsets": {"clicks": {"0": 480, "1": 410}, "orders": {"0": 197}},
        "ids": {"clicks": "first", "orders": "other"},
    }
    lay("clicks-0", "clicks-0", "second")
    for on_reset in ("stop", "report"):
        with pytest.raises(fp.SourceError, match=r"clicks-1: .* id is first, .*clicks-0 is second"):
            make_job(tmp_path, on_reset=on_reset).run()
    lay("clicks-2", "clicks-1", "second")
    with pytest.raises(fp.SourceError, match="topic was recreated"):
        make_job(tmp_path).run()
    with pytest.warns(RuntimeWarning, match="topic was recreated"):
        report = make_job(tmp_path, on_reset="report").run()
    assert report.rows == 733 + 410
    assert report.source_position is not None
    assert report.source_position["ids"] == {"clicks": "second", "orders": "other"}
    assert make_job(tmp_path).run().version is None


def test_all_partitions_of_a_recreated_topic_begin_at_their_start(tmp_path: Path) -> None:
    """Also those whose folders lack the id, and come before the one that shows it."""
    lay = partial(_lay, tmp_path / "logs")
    lay("clicks-1", "clicks-0")
    lay("clicks-2", "clicks-1", "first")
    assert make_job(tmp_path).run().rows == 480 + 410
    lay("clicks-0", "clicks-0")
    lay("clicks-2", "clicks-1", "second")
    with pytest.warns(RuntimeWarning, match="topic was recreated"):
        report = make_job(tmp_path, on_reset="report").run()
    assert report.rows == 733 + 410
    assert make_job(tmp_path).run().version is None, "all positions were stored"


def test_partitions_come_and_go(tmp_path: Path) -> None:
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    make_job(tmp_path).run()
    copy_upto("clicks-2", tmp_path / "logs", 10**9)
    assert make_job(tmp_path).run().rows == 410
    shutil.move(tmp_path / "logs" / "orders-0", tmp_path / "orders-0")
    with pytest.raises(fp.SourceError, match=r"orders-0 is gone.* offset 197"):
        make_job(tmp_path).run()
    with pytest.warns(RuntimeWarning, match="orders-0 is gone"):
        assert make_job(tmp_path, on_reset="report").run().version is None
    shutil.move(tmp_path / "orders-0", tmp_path / "logs" / "orders-0")
    assert make_job(tmp_path).run().version is None, "it was not forgotten"


# Runs that die


def test_a_run_that_dies_before_its_decision_has_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_upto("orders-0", tmp_path / "logs", 100)
    make_job(tmp_path).run()
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    modules = {"export": sources, "scan": preparing, "judge": judging, "write": writing, "commit": run_module}
    for step, module in modules.items():

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, step, die)
            with pytest.raises(KeyboardInterrupt):
                make_job(tmp_path, plan="interval").run()
        [position] = [it.source_position for it in [state.open(tmp_path / "state").version(1)]]
        assert state.open(tmp_path / "state").decided() == 1
        assert position["offsets"]["orders"]["0"] < 197  # type: ignore[index]
    make_job(tmp_path).run()
    assert read_sink(tmp_path) == read_log(tmp_path)


def test_a_run_that_dies_after_its_decision_is_finished_without_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    wanted = read_log(tmp_path)

    def die(*_: object) -> None:
        raise OSError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolders, "apply", die)
        with pytest.raises(OSError, match="the machine is gone"):
            make_job(tmp_path).run()
    assert state.open(tmp_path / "state").decided() == 1
    shutil.move(tmp_path / "logs", tmp_path / "away")
    with pytest.raises(fp.SourceError, match="no such file"):
        make_job(tmp_path).run()
    assert read_sink(tmp_path) == wanted
    shutil.move(tmp_path / "away", tmp_path / "logs")
    assert make_job(tmp_path).run().version is None


def test_a_rollback_takes_the_position_back(tmp_path: Path) -> None:
    copy_upto("orders-0", tmp_path / "logs", 100)
    make_job(tmp_path).run()
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    second = make_job(tmp_path).run()
    state.open(tmp_path / "state").rollback(1, accept_duplicates=True)
    again = make_job(tmp_path).run()
    assert (again.rows, again.counts, again.source_position) == (second.rows, second.counts, second.source_position)


# What it can be combined with


def test_a_delta_table_as_sink(tmp_path: Path) -> None:
    for end in (100, 10**9):
        copy_upto("orders-0", tmp_path / "logs", end)
        make_job(tmp_path, layout="delta").run()
    rows = pa.table(DeltaTable(tmp_path / "sink").to_pyarrow_table())
    assert sorted_rows(rows)[0].keys() == read_log(tmp_path)[0].keys()
    assert [it["offset"] for it in sorted_rows(rows)] == [it["offset"] for it in read_log(tmp_path)]


def test_a_seed_knows_what_the_log_holds(tmp_path: Path) -> None:
    folder = copy_upto("clicks-1", tmp_path / "logs", 10**9)
    report = make_job(tmp_path).seed()
    assert (report.rows, report.source_position) == (480, {"offsets": {"clicks": {"1": 480}}, "ids": {}})
    append_again(folder, batches_of(folder)[3])
    assert set(make_job(tmp_path).run().counts) == {"DUPLICATE"}


def test_the_clock_is_the_newest_timestamp_of_the_log(tmp_path: Path) -> None:
    copy_upto("clicks-0", tmp_path / "logs", 10**9)
    report = make_job(tmp_path, max_idle_ms=86_400_000).run()
    newest = max(it["timestamp"] for it in read_log(tmp_path))
    assert state.open(tmp_path / "state").version(1).clock_ms == newest
    assert report.resets_looked_for


@pytest.mark.parametrize("change", ["isolation", "folder"])
def test_a_state_is_of_one_log(tmp_path: Path, change: str) -> None:
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    make_job(tmp_path).run()
    if change == "isolation":
        other = make_job(tmp_path, "read_uncommitted")
    else:
        other = DedupJob(tmp_path / "logs", tmp_path / "state", tmp_path / "sink", columns="kafka-producer")
    with pytest.raises(fp.SnapshotError, match="source='kafka-log:read_committed:"):
        other.run()


def test_a_job_refuses_sources_that_are_not_partition_folders(tmp_path: Path) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    segment = sorted(folder.glob("*.log"))[0]
    shutil.copytree(folder, tmp_path / "backup")
    for path in (segment, tmp_path / "backup"):
        job = DedupJob(KafkaLog(path), tmp_path / "state", tmp_path / "sink")
        with pytest.raises(fp.SourceError, match="not a partition folder"):
            job.run()
    with pytest.raises(fp.SourceError, match="no such file"):
        DedupJob(KafkaLog(tmp_path / "nowhere"), tmp_path / "state", tmp_path / "sink").run()
    with pytest.raises(ValueError, match="isolation='none': expected one of read_uncommitted, read_committed"):
        KafkaLog(folder, "none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pass KafkaLog\(options="):
        DedupJob(KafkaLog(folder), tmp_path / "state", tmp_path / "sink", source_options={"region": "eu"})
    with pytest.raises(fp.SinkError, match="is inside source"):
        DedupJob(KafkaLog(tmp_path / "logs"), tmp_path / "state", tmp_path / "logs" / "sink")
    (tmp_path / "logs" / "empty-0").mkdir()
    (tmp_path / "logs" / "notes").mkdir()
    (tmp_path / "logs" / "notes" / "readme.log").touch()
    assert make_job(tmp_path).run().rows == 73, "neither has segments"


@pytest.mark.parametrize("name", ["orders", "orders-00", "orders-x", "-1"])
def test_a_folder_of_segments_without_the_name_of_a_partition_is_reported(name: str, tmp_path: Path) -> None:
    folder = copy_upto("orders-0", tmp_path / "logs", 10**9)
    shutil.copytree(folder, tmp_path / "logs" / name)
    with pytest.raises(fp.SourceError, match=f"folder {name} has segments.* no topic"):
        make_job(tmp_path).run()
    with pytest.raises(fp.SourceError, match=f"the folder {name} has segments"):
        kafka.audit(tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs" / name)
    assert make_job(tmp_path).run().rows == 73


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("kafka", "accepts only the next"),
        ("strict", "accepts only the next"),
        ("watermark", "ignores epochs"),
    ],
)
def test_policies_that_would_refuse_committed_rows(policy: str, reason: str, tmp_path: Path) -> None:
    copy_upto("orders-0", tmp_path / "logs", 10**9)
    with pytest.raises(fp.PolicyError, match=f"policy {policy} {reason}"):
        make_job(tmp_path, policy=policy, order_by=())
    assert make_job(tmp_path, policy="kafka_offsets").run().counts == {"ACCEPTED": 73}
