"""`fencepost generate`: the truth is computed again from the files alone, by plain sets and by the naive reference."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import cli
from fencepost.generate import BOUNDS, ORDER_FREE, ORDERED, LandingZone, generate
from support.reference import ReferenceTable, policy

ALL_POLICIES = ORDER_FREE + ORDERED
RICH = LandingZone(
    rows=30_000,
    producers=20,
    partitions=3,
    span_mean=8,
    missing_share=0.01,
    retry_share=0.01,
    bump_share=0.3,
    untracked_share=0.03,
    payload_bytes=12,
    row_group_rows=1_000,
    seed=7,
)


class Row(NamedTuple):
    """A landed row; `file` counts files in landing order."""

    file: int
    topic: str
    partition: int
    offset: int
    pid: int | None
    epoch: int
    seq: int

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def is_tracked(self) -> bool:
        return self.pid not in (None, -1)


def landing_files(path: Path, deliveries: int = 10_000) -> list[Path]:
    """The files of the first deliveries, in landing order."""
    return [file for file in sorted((path / "landing").iterdir()) if int(file.name[1:5]) < deliveries]


def read_rows(files: list[Path]) -> list[Row]:
    rows = []
    for number, file in enumerate(files):
        table = pq.read_table(file, columns=list(Row._fields[1:]))
        rows += [Row(number, *values) for values in zip(*(column.to_pylist() for column in table), strict=True)]
    return rows


def ranges(numbers: dict[Any, set[int]]) -> set[tuple[Any, int, int]]:
    """(key, first, last) of each maximal range."""
    found = set()
    for key, held in numbers.items():
        ordered = sorted(held)
        firsts = [number for number in ordered if number - 1 not in held]
        lasts = [number for number in ordered if number + 1 not in held]
        found |= {(key, first, last) for first, last in zip(firsts, lasts, strict=True)}
    return found


def holes(numbers: dict[Any, set[int]]) -> set[tuple[Any, int, int]]:
    return ranges({key: set(range(min(held), max(held))) - held for key, held in numbers.items()})


def read_ranges(file: Path) -> set[tuple[Any, int, int]]:
    found = set()
    for line in pq.read_table(file).to_pylist():
        key = tuple(line[name] for name in ("pid", "epoch", "topic", "partition") if name in line)
        assert line["count"] == line["last_seq"] - line["first_seq"] + 1
        found.add((key, line["first_seq"], line["last_seq"]))
    return found


def read_truth(path: Path, name: str, delivery: int) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((path / "truth" / name / f"d{delivery:04}.json").read_text())
    return truth


def assert_truth_holds(path: Path, name: str, delivery: int, rows: list[Row]) -> None:
    """Compares every figure of an order-free policy's truth with a recomputation by sets."""
    accepted: dict[Any, set[int]] = defaultdict(set)
    top: dict[Any, int] = {}
    untracked = stale = 0
    for row in rows:
        if name == "kafka_offsets":
            accepted[row.place].add(row.offset)
        elif row.is_tracked:
            accepted[row.pid, row.epoch, *row.place].add(row.seq)
            stale += row.epoch < top.get((row.pid, *row.place), 0)
            top[row.pid, *row.place] = max(row.epoch, top.get((row.pid, *row.place), 0))
        else:
            untracked += 1
    distinct = sum(map(len, accepted.values()))
    missing = holes(accepted) if name == "any_order" else set()
    assert read_truth(path, name, delivery) == {
        "policy": name,
        "delivery": delivery,
        "rows": len(rows),
        "counts": {
            "ACCEPTED": distinct,
            "DUPLICATE": len(rows) - distinct - untracked,
            "OUT_OF_ORDER": 0,
            "FENCED": 0,
            "UNTRACKED": untracked,
        },
        "kept_rows": distinct + untracked,
        "stale_epoch": stale,
        "missing_rows": sum(last - first + 1 for _, first, last in missing),
        "missing_ranges": len(missing),
    }
    folder = path / "truth" / name
    assert read_ranges(folder / f"d{delivery:04}-missing.parquet") == missing
    assert read_ranges(folder / f"d{delivery:04}-kept.parquet") == ranges(accepted)


def measure(path: Path, producers: int) -> dict[str, int]:
    """The number of rows of each kind, counted from the files alone."""
    names = "near far redelivered retries within across missing bumps zombies restarts null minus_one"
    found = dict.fromkeys(names.split(), 0)
    files: dict[str, Path] = {}
    for file in landing_files(path):
        found["redelivered"] += (digest := hashlib.sha256(file.read_bytes()).hexdigest()) in files
        files.setdefault(digest, file)
    first_file: dict[Any, int] = {}  # of each offset
    top_before: dict[Any, int] = {}  # highest offset of each partition in the files before
    top_here: dict[Any, tuple[int, int]] = {}  # (file, highest offset) of each partition
    logs: dict[Any, dict[int, Row]] = defaultdict(dict)
    for row in read_rows(list(files.values())):
        if row.offset in logs[row.place]:
            found["near"] += first_file[row.place, row.offset] == row.file
            found["far"] += first_file[row.place, row.offset] < row.file - 1
            continue
        first_file[row.place, row.offset] = row.file
        logs[row.place][row.offset] = row
        top_file, top = top_here.get(row.place, (row.file, -1))
        if top_file != row.file:
            top_before[row.place] = top
        is_late = row.offset < top_before.get(row.place, -1)
        found["across"] += is_late
        found["within"] += not is_late and row.offset < top
        found["null"] += row.pid is None
        found["minus_one"] += row.pid == -1
        top_here[row.place] = (row.file, max(top, row.offset))
    for log in logs.values():
        found["missing"] += max(log) + 1 - len(log)
        identities = [(row.pid, row.epoch, row.seq) for row in log.values() if row.is_tracked]
        found["retries"] += len(identities) - len(set(identities))
        epochs: dict[Any, int] = {}
        for _, row in sorted(log.items()):
            if row.is_tracked:
                found["zombies"] += row.epoch < epochs.get(row.pid, 0)
                epochs[row.pid] = max(row.epoch, epochs.get(row.pid, 0))
                found["bumps"] += row.epoch > 0
                found["restarts"] += (row.pid or 0) >= 1000 + producers
    return found


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rich")
    generate(path, RICH)
    return path


@pytest.fixture(scope="module")
def rich_counts(rich: Path) -> dict[str, int]:
    return measure(rich, RICH.producers)


# Truth


@pytest.mark.parametrize("name", ORDER_FREE)
@pytest.mark.parametrize("delivery", range(RICH.deliveries))
def test_the_truth_file_matches_the_files(rich: Path, name: str, delivery: int) -> None:
    assert_truth_holds(rich, name, delivery, read_rows(landing_files(rich, delivery + 1)))


def test_a_lost_file_does_not_match_the_truth(rich: Path) -> None:
    rows = read_rows(landing_files(rich, 4)[:-1])
    for name in ORDER_FREE:
        with pytest.raises(AssertionError):
            assert_truth_holds(rich, name, 3, rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"span_mean": 1.0, "producers": 3},
        {"span_mean": 500.0},
        {"co_located": True, "files": 5},
        {"missing_share": 0.5, "repeat_near": 0.5, "repeat_far": 0.5, "redelivery_share": 1.0, "retry_share": 0.5},
        {"bump_share": 1.0, "restart_share": 1.0, "zombie_share": 1.0, "zipf_exponent": 0.0},
        {"untracked_share": 1.0},
        {"missing_share": 1.0, "retry_share": 0.0, "disorder_within": 0.0, "disorder_across": 0.0},
        {"producers": 1, "topics": 1, "partitions": 1, "deliveries": 1, "files": 1},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_truth_at_the_edges(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(RICH, rows=6_000, **changes)
    generate(tmp_path, spec)
    for delivery in range(spec.deliveries):
        rows = read_rows(landing_files(tmp_path, delivery + 1))
        for name in ORDER_FREE:
            assert_truth_holds(tmp_path, name, delivery, rows)


def test_every_policy_agrees_with_the_reference(tmp_path: Path) -> None:
    generate(tmp_path, dataclasses.replace(RICH, rows=3_000, producers=5), truth_policies=ALL_POLICIES)
    for name in ALL_POLICIES:
        table = ReferenceTable(policy(name))
        has_epoch = table.policy["epochs"] != "ignore"
        verdicts: list[tuple[Row, str]] = []
        stale = 0
        for delivery in range(RICH.deliveries):
            rows = read_rows(landing_files(tmp_path, delivery + 1))[len(verdicts) :]
            judged = table.apply([as_reference_row(name, row) for row in rows], has_epoch)
            verdicts += zip(rows, judged.verdicts, strict=True)
            stale += judged.stale_epoch
            truth = read_truth(tmp_path, name, delivery)
            counts = {verdict: sum(found == verdict for _, found in verdicts) for verdict in truth["counts"]}
            assert (name, truth["counts"], truth["stale_epoch"]) == (name, counts, stale)
            folder, prefix = tmp_path / "truth" / name, f"d{delivery:04}"
            open_ranges = {
                ((each.pid, each.epoch, *each.partition), each.first_seq, each.last_seq) for each in table.missing()
            }
            assert read_ranges(folder / f"{prefix}-missing.parquet") == open_ranges
            kept: dict[Any, set[int]] = defaultdict(set)
            for row, verdict in verdicts:
                if verdict == "ACCEPTED" and name == "kafka_offsets":
                    kept[row.place].add(row.offset)
                elif verdict == "ACCEPTED":
                    kept[row.pid, row.epoch if has_epoch else None, *row.place].add(row.seq)
            assert read_ranges(folder / f"{prefix}-kept.parquet") == ranges(kept)


def as_reference_row(name: str, row: Row) -> SimpleNamespace:
    if name == "kafka_offsets":
        return SimpleNamespace(pid=row.topic, epoch=None, partition=row.partition, seq=row.offset)
    return SimpleNamespace(pid=row.pid, epoch=row.epoch, partition=row.place, seq=row.seq)


# Ingredients


@pytest.mark.parametrize(
    ("share", "ingredients"),
    [
        ("repeat_near", ["near"]),
        ("repeat_far", ["far"]),
        ("redelivery_share", ["redelivered"]),
        ("retry_share", ["retries"]),
        ("disorder_within", ["within"]),
        ("disorder_across", ["across"]),
        ("missing_share", ["missing"]),
        ("bump_share", ["bumps", "zombies"]),
        ("zombie_share", ["zombies"]),
        ("restart_share", ["restarts"]),
        ("untracked_share", ["null", "minus_one"]),
    ],
)
def test_each_kind_of_row_occurs_unless_its_share_is_0(
    rich_counts: dict[str, int], tmp_path: Path, share: str, ingredients: list[str]
) -> None:
    without: dict[str, Any] = {share: 0}
    generate(tmp_path, dataclasses.replace(RICH, **without))
    gone = measure(tmp_path, RICH.producers)
    assert all(count > 0 for count in rich_counts.values()), rich_counts
    assert {name: gone[name] for name in ingredients} == dict.fromkeys(ingredients, 0)
    assert all(gone[name] > 0 for name in gone if name not in ingredients), gone


def test_the_summary_counts_each_kind_of_row(rich: Path, rich_counts: dict[str, int]) -> None:
    counted = json.loads((rich / "truth" / "d0003.json").read_text())
    rows = read_rows(landing_files(rich))
    distinct = len({(row.place, row.offset) for row in rows})
    assert counted["written"] == RICH.rows
    assert distinct == RICH.rows + counted["retries"] - counted["missing"]
    assert len(rows) - distinct == counted["near"] + counted["far"] + counted["redelivered_rows"]
    assert counted["redelivered_files"] == rich_counts["redelivered"] == 2


def test_shares_are_shares_of_rows(tmp_path: Path) -> None:
    spec = LandingZone(rows=300_000, payload_bytes=0, retry_share=0.02, missing_share=0.02)
    found = generate(tmp_path, spec).ingredients
    expected = {
        "near": spec.repeat_near,
        "far": spec.repeat_far,
        "retries": spec.retry_share,
        "missing": spec.missing_share,
        "displaced": spec.disorder_within,
        "late": spec.disorder_across,
    }
    for name, share in expected.items():
        assert found[name] / spec.rows == pytest.approx(share, rel=0.2), name


def test_rates_are_skewed(tmp_path: Path) -> None:
    calm: dict[str, Any] = dict.fromkeys(("bump_share", "restart_share", "untracked_share"), 0)
    for exponent, low, high in ((0.0, 0.5, 2.0), (1.0, 6.0, 20.0)):
        path = tmp_path / str(exponent)
        generate(path, LandingZone(rows=50_000, producers=10, zipf_exponent=exponent, payload_bytes=0, **calm))
        pids = [row.pid for row in read_rows(landing_files(path))]
        assert low < pids.count(1000) / pids.count(1009) < high


# Files


def test_columns_row_groups_and_compression(rich: Path) -> None:
    file = pq.ParquetFile(landing_files(rich)[0])
    assert {field.name: str(field.type) for field in file.schema_arrow} == {
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[ms, tz=UTC]",
        "pid": "int64",
        "epoch": "int16",
        "seq": "int32",
        "key": "string",
        "payload": "binary",
    }
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    assert [group.num_rows for group in groups[:-1]] == [RICH.row_group_rows] * (len(groups) - 1)
    assert len(groups) == 2
    assert groups[0].column(0).compression == "SNAPPY"
    assert {len(payload) for payload in file.read()["payload"].to_pylist()} == {RICH.payload_bytes}


def test_a_repeat_is_the_same_row_and_a_retry_the_same_event(rich: Path) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in landing_files(rich)]).to_pylist()
    by_offset: dict[Any, set[Any]] = defaultdict(set)
    by_identity: dict[Any, set[Any]] = defaultdict(set)
    for row in rows:
        place, content = (row["topic"], row["partition"]), (row["timestamp"], row["key"], row["payload"])
        by_offset[place, row["offset"]].add((row["pid"], row["epoch"], row["seq"], *content))
        if row["pid"] not in (None, -1):
            by_identity[place, row["pid"], row["epoch"], row["seq"]].add(content)
    assert {len(contents) for contents in by_offset.values()} == {1}
    assert {len(contents) for contents in by_identity.values()} == {1}
    untracked = {(row["pid"], row["epoch"], row["seq"]) for row in rows if row["pid"] in (None, -1)}
    assert untracked == {(None, None, None), (-1, -1, -1)}


def test_co_located_keys_are_complete_and_in_order_in_one_file(tmp_path: Path) -> None:
    spec = dataclasses.replace(RICH, co_located=True, files=4)
    generate(tmp_path, spec)
    for delivery in range(spec.deliveries):
        names = [f"d{delivery:04}-f{number:04}.parquet" for number in range(4)]
        rows = read_rows([tmp_path / "landing" / name for name in names])
        file_of: dict[Any, int] = {}
        fresh: dict[Any, list[int]] = defaultdict(list)
        for row in rows:
            assert file_of.setdefault(row.place, row.file) == row.file
            if delivery == 0 and row.offset not in fresh[row.place]:
                fresh[row.place].append(row.offset)
        assert set(file_of.values()) == {0, 1, 2, 3}
        assert all(offsets == sorted(offsets) for offsets in fresh.values())
    assert len(landing_files(tmp_path)) == 16


def contents(path: Path) -> dict[str, str]:
    """Every file below a folder and the digest of its bytes."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_same_seed_same_bytes(rich: Path, tmp_path: Path) -> None:
    generate(tmp_path / "same", RICH)
    generate(tmp_path / "other", dataclasses.replace(RICH, seed=8))
    same, other, first = contents(tmp_path / "same"), contents(tmp_path / "other"), contents(rich)
    assert same == first
    assert all(other.get(name) != digest for name, digest in first.items() if "landing" in name)


@pytest.mark.parametrize("co_located", [False, True])
def test_deliveries_one_by_one_are_the_same_bytes(tmp_path: Path, co_located: bool) -> None:
    spec = dataclasses.replace(RICH, co_located=co_located, rows=10_000)
    whole = generate(tmp_path / "whole", spec, truth_policies=ALL_POLICIES)
    parts = [
        generate(tmp_path / "parts", spec, deliveries=deliveries, truth_policies=ALL_POLICIES)
        for deliveries in (range(2), range(2, 3), range(3, 4))
    ]
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")
    assert whole.files == sum((part.files for part in parts), ())
    assert whole.rows == sum(part.rows for part in parts)
    assert (whole.truth, whole.ingredients) == (parts[-1].truth, parts[-1].ingredients)


def test_a_delivery_has_late_and_repeated_rows(rich: Path) -> None:
    before = {(row.place, row.offset) for row in read_rows(landing_files(rich, 3))}
    top = dict(sorted(before))  # the highest offset of each partition comes last
    names = [file for file in landing_files(rich) if file.name.startswith("d0003")]
    last = read_rows(names)
    assert any((row.place, row.offset) in before for row in last)
    assert any((row.place, row.offset) not in before and row.offset < top[row.place] for row in last)


def test_another_zone_is_not_overwritten(rich: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="other parameters"):
        generate(rich, dataclasses.replace(RICH, seed=9))
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "mine.parquet").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        generate(tmp_path, RICH)


def test_a_missing_earlier_delivery_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"d0000-f0000\.parquet is missing"):
        generate(tmp_path, RICH, deliveries=range(1, 2), truth_policies=["kafka"])


# Arguments


@pytest.mark.parametrize("field", BOUNDS)
def test_a_parameter_out_of_range_is_named(field: str) -> None:
    low, high = BOUNDS[field]
    for value in (low - 1, high + 1, float("nan")):
        parameter: dict[str, Any] = {field: value}
        with pytest.raises(ValueError, match=f"^{field} must be .*from {low} to {high}, found {value}$"):
            LandingZone(**parameter)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rows": 1.5}, r"rows must be .* 1 to 1073741824, found 1\.5"),
        ({"compression": "rar"}, "compression must be .* none, snappy, zstd, lz4, gzip, found 'rar'"),
        ({"rows": 10}, "deliveries × files must be from 1 to 10, found 16"),
        (
            {"producers": 10_000, "partitions": 1_000},
            "producers × topics × partitions must be from 1 to 16777216, found 20000000",
        ),
        ({"files": 13, "co_located": True}, "files .* from 1 to 12, found 13"),
        (
            {"missing_share": 0.75, "disorder_within": 0.5, "disorder_across": 0.0},
            r"missing_share \+ disorder_across \+ disorder_within must be from 0 to 1, found 1\.25",
        ),
        (
            {"row_group_rows": 2**20, "payload_bytes": 2_048},
            "row_group_rows × payload_bytes must be from 0 to 2147483647, found 2147483648",
        ),
    ],
)
def test_parameters_that_contradict_each_other(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        LandingZone(**parameters)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"deliveries": range(3, 5)}, r"deliveries must be .* 0 to 4 by step 1, found range\(3, 5\)"),
        ({"deliveries": range(2, 2)}, r"deliveries must be .* 0 to 4 by step 1, found range\(2, 2\)"),
        (
            {"truth_policies": ["any"]},
            f"truth_policies must be among {', '.join(ALL_POLICIES)}, found 'any'",
        ),
    ],
)
def test_impossible_requests_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        generate(tmp_path, RICH, **arguments)
    assert not list(tmp_path.iterdir())


def test_ordered_policies_have_a_limit_of_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows with truth of 'kafka' must be from 1 to 5000000, found 5000001"):
        generate(tmp_path, LandingZone(rows=5_000_001), truth_policies=["kafka"])


# Resources


@pytest.mark.slow
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from fencepost.generate import *;"
        "generate(sys.argv[1], LandingZone(rows=int(sys.argv[2]), payload_bytes=4, row_group_rows=65_536));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peak_kib = {
        rows: int(subprocess.check_output([sys.executable, "-c", program, str(tmp_path / str(rows)), str(rows)]))
        for rows in (1_000_000, 4_000_000)
    }
    assert peak_kib[4_000_000] - peak_kib[1_000_000] < 32 * 1024, peak_kib


def test_importing_the_package_does_not_import_the_generator() -> None:
    program = (
        "import sys, fencepost;"
        "heavy = {'numpy', 'pyarrow', 'typer', 'rich', 'fencepost.generate', 'fencepost.cli'} & sys.modules.keys();"
        "assert not heavy, heavy; import fencepost.generate; assert 'pyarrow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Command line


def test_the_command_writes_a_zone_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(tmp_path / "cli"), "--rows", "10_000", "--seed", "3", "--payload-bytes", "4"]
    assert cli.main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = generate(tmp_path / "call", LandingZone(rows=10_000, seed=3, payload_bytes=4))
    assert json.loads(out) == json.loads(json.dumps(dataclasses.asdict(summary)))
    assert err == ""
    assert contents(tmp_path / "cli") == contents(tmp_path / "call")
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{summary.rows:,} rows in 18 files, {summary.bytes:,} bytes\n")
    assert f"{summary.truth['any_order']['counts']['ACCEPTED']:,}" in out
    assert err == ""


def test_the_command_lands_chosen_deliveries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for land in ("0:3", "3:4"):
        command = ["generate", str(tmp_path), "--rows", "5000", "--land", land, "--truth", "strict"]
        assert cli.main([*command, "--truth", "any_order"]) == 0
    assert {file.name[:5] for file in landing_files(tmp_path)} == {"d0000", "d0001", "d0002", "d0003"}
    assert {file.name for file in (tmp_path / "truth").iterdir() if file.is_dir()} == {"strict", "any_order"}
    assert "OUT_OF_ORDER" in capsys.readouterr().out


def test_the_command_has_the_defaults_of_the_zone() -> None:
    options = inspect.signature(cli.generate_command).parameters
    fields = {field.name: field.default for field in dataclasses.fields(LandingZone)}
    assert {name: options[name].default for name in fields} == fields
    assert options.keys() - fields.keys() == {"out", "land", "truth", "as_json"}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ([], 2, "Invalid value: a command is missing: see fencepost --help"),
        (["invent"], 2, "No such command 'invent'."),
        (["generate"], 2, "Missing argument 'OUT'."),
        (["generate", "{out}", "--rows", "0"], 2, "Invalid value: rows must be from 1 to 1073741824, found 0"),
        (["generate", "{out}", "--land", "3"], 2, "Invalid value: land must be FIRST:STOP within 0:4, found '3'"),
        (["generate", "{out}/taken"], 1, "[Errno 20] Not a directory: '{out}/taken/landing'"),
    ],
)
def test_an_error_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, message: str
) -> None:
    (tmp_path / "taken").touch()
    assert cli.main([argument.format(out=tmp_path) for argument in arguments]) == exit_code
    assert capsys.readouterr() == ("", f"fencepost: {message.format(out=tmp_path)}\n")


@pytest.mark.parametrize("package", ["typer", "rich", "numpy", "pyarrow"])
def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, package: str) -> None:
    program = (
        f"import sys; sys.modules['{package}'] = None; from fencepost.cli import main;"
        "sys.exit(main(['generate', sys.argv[1]]))"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "zone")], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"fencepost: {package} is not installed: ")
    assert ended.stderr.endswith(" 'fencepost[cli]'\n")
