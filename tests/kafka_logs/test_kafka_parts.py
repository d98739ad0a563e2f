"""Partitions shared out segment by segment: together the parts give what the whole partition gives, filtered or not."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fencepost import kafka
from fencepost.lake.kafka_segments import (
    Condition,
    Isolation,
    Part,
    batches_schema,
    may_be_in,
    open_partitions,
    read_view,
    records_schema,
)
from fencepost.state.stores import open_store
from support import daily
from support.kafka_logs import DATA, PARTITIONS, flip
from support.s3_server import BUCKET, s3_options

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def records_of(parts: Sequence[Part], conditions: Sequence[Condition] = ()) -> pa.Table:
    return pa.Table.from_batches([it for part in parts for it in part.records(conditions)], schema=records_schema())


def batches_of(parts: Sequence[Part], conditions: Sequence[Condition] = ()) -> pa.Table:
    return pa.Table.from_batches([it for part in parts for it in part.batches(conditions)], schema=batches_schema())


def parts_of(folder: Path | str, isolation: Isolation, conditions: Sequence[Condition] = ()) -> list[Part]:
    [log] = open_partitions(folder)
    return read_view(log, isolation).parts(conditions)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_parts_give_what_the_partition_gives(name: str, isolation: Isolation) -> None:
    parts = parts_of(DATA / name, isolation)
    found = records_of(pickle.loads(pickle.dumps(parts)))
    assert found.equals(pa.table(kafka.read_records(DATA / name, isolation)))
    if isolation == "read_uncommitted":
        assert len(parts) == len(list((DATA / name).glob("*.log")))
        assert batches_of(parts).equals(pa.table(kafka.read_batches(DATA / name)))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_single_segments_are_read_as_read_records_reads_them(isolation: Isolation) -> None:
    equal, refused = 0, 0
    for path in sorted(DATA.glob("*/*.log")):
        try:
            wanted: pa.Table | str = pa.table(kafka.read_records(path, isolation))
        except fp.SourceError as error:
            wanted = error.message
        if isinstance(wanted, str):
            with pytest.raises(fp.SourceError, match="read the folder") as info:
                parts_of(path, isolation)
            assert info.value.message == wanted
            refused += 1
        else:
            assert records_of(parts_of(path, isolation)).equals(wanted)
            equal += 1
    assert (equal, refused) == ((27, 0) if isolation == "read_uncommitted" else (26, 1))


def holds(row: dict[str, Any], condition: Condition) -> bool:
    """The result by the rules of SQL, without the code under test; null is false."""
    name, operator, value = condition
    found = row[name]
    if operator == "null":
        return found is None
    if operator == "known":
        return found is not None
    if found is None:
        return False
    return {
        "=": lambda: found == value,
        "<": lambda: found < value,
        "<=": lambda: found <= value,
        ">": lambda: found > value,
        ">=": lambda: found >= value,
        "in": lambda: found in value,
    }[operator]()


COMPARISONS = ("=", "<", "<=", ">", ">=")


def conditions_on(rows: list[dict[str, Any]], names: Sequence[str], seed: int) -> list[Condition]:
    """Every operator on each column, with values that occur, their neighbours, and the ends of what there is."""
    chance = random.Random(seed)
    found: list[Condition] = []
    for name in names:
        values = sorted({row[name] for row in rows if row[name] is not None})
        ends = [values[0], values[-1], values[0] - 1, values[-1] + 1, -1, 2**63 - 1, -(2**63)]
        for operator in COMPARISONS:
            found += [(name, operator, it) for it in (*ends, *chance.choices(values, k=4))]
        found += [(name, "in", tuple(chance.choices(values, k=3))), (name, "in", (values[-1] + 1, 2**40))]
        found += [(name, "in", tuple(range(values[0], values[0] + 200))), (name, "null", None), (name, "known", None)]
    return found


@pytest.mark.parametrize(
    ("name", "isolation"),
    daily.each_value(("clicks-0", "orders-0", "events-0", "profiles-0", "carts-0"), ISOLATIONS),
)
def test_conditions_give_the_rows_for_which_they_hold(name: str, isolation: Isolation) -> None:
    table = pa.table(kafka.read_records(DATA / name, isolation))
    rows = table.to_pylist()
    columns = ("offset", "pid", "timestamp", "epoch", "seq", "partition")
    alone = conditions_on(rows, columns, seed=7)
    chance = random.Random(11)
    together = [tuple(chance.sample(alone, k=2)) for _ in range(40)]
    counts = []
    for conditions in (*((it,) for it in alone), *together):
        wanted = [all(holds(row, it) for it in conditions) for row in rows]
        [log] = open_partitions(DATA / name)
        parts = read_view(log, isolation).parts(conditions) if may_be_in(log, conditions) else []
        assert records_of(parts, conditions).equals(table.filter(pa.array(wanted))), conditions
        counts.append(sum(wanted))
    assert 0 in counts
    assert len(rows) in counts
    assert len(set(counts)) >= min(20, len(rows)), "most of them tell rows apart"


def test_conditions_on_headers() -> None:
    rows = pa.table(kafka.read_batches(DATA / "orders-0")).to_pylist()
    for condition in conditions_on(rows, ("base_offset", "last_offset", "pid", "max_timestamp", "count"), seed=3):
        parts = parts_of(DATA / "orders-0", "read_uncommitted", [condition])
        assert batches_of(parts, [condition]).to_pylist() == [row for row in rows if holds(row, condition)], condition


def test_segments_and_batches_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    """Segments by the offsets of their names, batches by their headers, partitions by the names of their folders."""
    folder = shutil.copytree(DATA / "clicks-0", tmp_path / "clicks-0")
    assert [it.segment.base_offset for it in parts_of(folder, "read_uncommitted", [("offset", "<", 271)])] == [0, 156]
    assert [it.segment.base_offset for it in parts_of(folder, "read_uncommitted", [("offset", "=", 300)])] == [271]
    logs = open_partitions(DATA)
    assert [f"{it.topic}-{it.partition}" for it in logs] == PARTITIONS
    topic: Condition = ("topic", "=", "orders")
    assert [it.partition for it in logs if may_be_in(it, [topic])] == [0, 1]
    assert [it.topic for it in logs if may_be_in(it, [("partition", "in", (2, 9))])] == ["clicks"]
    # Of a batch that is not wanted, damage does not show.
    batches = pa.table(kafka.read_batches(folder)).to_pylist()
    flip(folder / batches[0]["segment"], batches[0]["position"] + 70)
    [log] = open_partitions(folder)
    wanted: list[Condition] = [("offset", ">", batches[0]["last_offset"])]
    assert len(records_of(read_view(log, "read_uncommitted").parts(), wanted)) == 733 - batches[0]["count"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_damage_is_reported_with_its_place(tmp_path: Path, isolation: Isolation) -> None:
    """Also where only some batches of the segment are read."""
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    batches = pa.table(kafka.read_batches(folder)).to_pylist()
    committed = set(pa.table(kafka.read_records(folder, "read_committed"))["offset"].to_pylist())
    batch = [it for it in batches if it["control"] is None and it["base_offset"] in committed][-2]
    path = folder / batch["segment"]
    flip(path, batch["position"] + 80, 0x40)
    for conditions in ([], [("offset", ">=", batch["base_offset"])]):
        with pytest.raises(fp.SourceError, match="CRC-32C") as info:
            records_of(parts_of(folder, isolation), conditions)
        assert (info.value.path, info.value.position) == (str(path), batch["position"])
        assert info.value.message.startswith(f"{path}, byte {batch['position']}: ")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_batches_after_the_plan_are_not_read(tmp_path: Path, isolation: Isolation) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    last = sorted(folder.glob("*.log"))[-1]
    data = last.read_bytes()
    batches = pa.table(kafka.read_batches(last)).to_pylist()
    cut = batches[len(batches) // 2]["position"]
    last.write_bytes(data[:cut])
    wanted = pa.table(kafka.read_records(folder, isolation))
    parts = parts_of(folder, isolation)
    for later in (data, data[: cut + 30], data[:cut] + bytes(100)):
        last.write_bytes(later)
        assert records_of(parts).equals(wanted)
        assert len(records_of(parts, [("pid", "known", None)])) == len(wanted)


def test_a_log_that_was_cut_after_the_plan_is_refused(tmp_path: Path) -> None:
    """Its rows would be missing without an error."""
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    parts = parts_of(folder, "read_uncommitted")
    last = sorted(folder.glob("*.log"))[-1]
    batches = pa.table(kafka.read_batches(last)).to_pylist()
    for cut in (batches[-1], batches[0]):
        last.write_bytes(last.read_bytes()[: cut["position"]])
        for read in (records_of, batches_of):
            with pytest.raises(fp.SourceError, match=rf"ends at offset {cut['base_offset']}, but ended at "):
                read(parts)


def test_segments_that_are_merged_after_the_plan_are_not_read_twice(tmp_path: Path) -> None:
    """A broker that compacts puts the records of several segments into the first one."""
    folder = shutil.copytree(DATA / "clicks-2", tmp_path / "clicks-2")
    wanted = pa.table(kafka.read_records(folder))
    first, *others = parts_of(folder, "read_uncommitted")
    later = records_of(others)
    paths = sorted(folder.glob("*.log"))
    paths[0].write_bytes(b"".join(path.read_bytes() for path in paths[:2]))
    paths[1].unlink()
    assert pa.concat_tables([records_of([first]), later]).equals(wanted)


def test_the_end_of_a_live_log_may_be_in_the_making(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "orders-0", tmp_path / "orders-0")
    first, last = sorted(folder.glob("*.log"))
    data = last.read_bytes()
    batches = pa.table(kafka.read_batches(last)).to_pylist()
    cut = batches[-1]["position"]
    for tail in (data[cut : cut + 10], data[cut : cut + 70], bytes(4_000)):
        last.write_bytes(data[:cut] + tail)
        [log] = open_partitions(folder)
        with pytest.raises(fp.SourceError):
            read_view(log, "read_uncommitted")
        for isolation in ISOLATIONS:
            view = read_view(log, isolation, is_live=True)
            assert view.log_end == batches[-2]["last_offset"] + 1
            assert len(records_of(view.parts())) > 60
    # Elsewhere it is damage.
    last.write_bytes(data)
    first.write_bytes(first.read_bytes()[:-5])
    [log] = open_partitions(folder)
    with pytest.raises(fp.SourceError, match="torn or damaged"):
        read_view(log, "read_committed", is_live=True)


def test_internal_folders_of_the_broker_are_skipped(tmp_path: Path) -> None:
    for name in ("orders-0", "orders-0.0a1b-delete", "orders-1.77-future", "clicks-0.9-stray", "__consumer_offsets-3"):
        shutil.copytree(DATA / "orders-0", tmp_path / name)
    shutil.copytree(DATA / "clicks-1", tmp_path / "_schemas-0")
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert [f"{it.topic}-{it.partition}" for it in open_partitions(tmp_path)] == ["_schemas-0", "orders-0"]
    [own] = open_partitions(tmp_path / "__consumer_offsets-3")
    assert own.topic == "__consumer_offsets"


def test_an_object_store(endpoint: str) -> None:
    """Whole batches by range reads, and what is not wanted jumped over."""
    options = s3_options(endpoint)
    for name in ("orders-0", "clicks-1"):
        store = open_store(f"s3://{BUCKET}/backup/{name}", options=options)
        for path in (DATA / name).iterdir():
            store.put(path.name, path.read_bytes())
    logs = open_partitions(f"s3://{BUCKET}/backup", options)
    assert [(it.topic, it.partition) for it in logs] == [("clicks", 1), ("orders", 0)]
    for log, isolation in itertools.product(logs, ISOLATIONS):
        parts = pickle.loads(pickle.dumps(read_view(log, isolation, options=options).parts()))
        wanted = pa.table(kafka.read_records(DATA / f"{log.topic}-{log.partition}", isolation))
        assert records_of(parts).equals(wanted)
        some = wanted.filter(pa.compute.greater(wanted["offset"], 100))
        assert records_of(parts, [("offset", ">", 100)]).equals(some)
