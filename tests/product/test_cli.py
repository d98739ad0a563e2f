"""The command line: what goes where, exit codes, and that options reach what they are for."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import inspect
import io
import json
import os
import platform
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fencepost.state
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fencepost import Columns, FencepostError, Policy, StateTable, cli, lake
from fencepost.cli import dedup, doctor, jobs
from fencepost.generate import LandingZone, generate
from support import daily
from support.commands import run
from support.kafka_logs import DATA
from support.lake import land, make_rows
from support.waiting import wait_until

THREADS = "slots" if hasattr(lake.LocalEngine(1), "slots") else "threads"
KEYS = ["--partition", "topic", "--partition", "partition"]


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zone")
    generate(path, LandingZone(rows=20_000, producers=10, payload_bytes=4, missing_share=0.01))
    return path


@pytest.fixture
def job(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A landing folder with one file, and where state and sink will be."""
    land(tmp_path / "landing", "a.parquet", make_rows(0))
    return tmp_path / "landing", tmp_path / "state", tmp_path / "clean"


def without_code(message: str) -> str:
    """A line of the command line whose error has its code in front."""
    return re.sub(r"\[FP\d{3}\] ", "", message, count=1)


def as_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fencepost", *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, capture_output=True, **options)


# dedup


def test_dedup_reads_what_is_new(job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "dedup", *job, "--no-sync")
    assert (code, err) == (0, "")
    assert out.startswith(f"version 1 of {job[2]}, policy any_order\n")
    code, out, err = run(capsys, "dedup", *job, "--no-sync")
    assert (code, out, err) == (0, f"nothing new in {job[0]}: nothing written, state unchanged\n", "")
    land(job[0], "b.parquet", make_rows(0))
    code, out, err = run(capsys, "dedup", *job, "--no-sync", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["version"], report["rows"]) == (2, 600)
    assert set(report["counts"]) == {"DUPLICATE", "UNTRACKED"}
    land(job[0], "c.parquet", make_rows(1))
    assert run(capsys, "dedup", *job, "--no-sync", "--quiet") == (0, "", "")
    assert fencepost.state.open(job[1]).done() == 3


class Job:
    """Accepts the arguments of `DedupJob`, and stores them."""

    given: dict[str, Any]

    def __init__(
        self, source: str, state: str, sink: str, *, policy: Policy, engine: Any = None, scope: Any = None,
        order_by: Any = None, rejected_max: float = 0.5, rejects: str = "copy", max_idle_ms: int | None = None,
        settle_ms: int = 60_000, clock_gap_max_ms: int | None = None,
        on_reset: str = "stop", on_bad_file: str | None = None, reset_rows_min: int = 1,
        compare_content: bool | list[str] = False, on_conflict: str = "stop", keep_checksums: int | str | None = None,
        plan: str | None = None, source_immutable: bool = False, shards: int | None = None,
        sync: bool = True, state_options: dict[str, object] | None = None, layout: str | None = None,
        keep_versions: int | None = 100, keep_versions_ms: int = 604_800_000,
    ) -> None:  # fmt: skip
        Job.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}

    def run(self, progress: Any) -> str:
        return "ran"

    def seed(self, progress: Any, clean: str | None) -> str:
        return f"seeded from {clean}"


def test_every_option_reaches_the_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lake, "DedupJob", Job)
    assert run(capsys, "dedup", "a", "b", "c") == (0, "ran\n", "")
    defaults = {name: it.default for name, it in inspect.signature(Job).parameters.items()}
    expected = defaults | {"source": "a", "state": "b", "sink": "c", "policy": Policy.any_order()}
    assert Job.given == expected, "what is not given has the job's own default"
    options = (
        "--policy in_order --set reach=none --set window=5 --pid cluster --pid pid --partition topic --epoch e --seq n "
        "--timestamp t --scope eu --order-by day --order-by hour --rejected-max 0.25 --rejects all --on-reset report "
        "--reset-rows-min 20 --compare-content a --compare-content b --on-conflict drop --keep-checksums 50 "
        "--max-idle 7d --settle 90s --on-bad-file stop --clock-gap-max 2h --shards 4 --plan row --threads 3 "
        "--layout delta "
        "--source-immutable --no-sync --state-option region=eu --state-option endpoint=http://x?a=b "
        "--keep-versions 9 --keep-versions-for 2d"
    )
    assert run(capsys, "dedup", "a", "b", "c", *options.split()) == (0, "ran\n", "")
    assert getattr(Job.given.pop("engine"), THREADS) == 3
    columns = Columns(pid=("cluster", "pid"), partition="topic", epoch="e", seq="n", timestamp="t")
    assert Job.given == {
        "source": "a", "state": "b", "sink": "c", "policy": Policy.in_order().replace(columns=columns), "scope": "eu",
        "order_by": ["day", "hour"], "rejected_max": 0.25, "rejects": "all", "on_reset": "report",
        "reset_rows_min": 20, "compare_content": ["a", "b"], "on_conflict": "drop", "keep_checksums": 50,
        "max_idle_ms": 604_800_000, "settle_ms": 90_000, "on_bad_file": "stop",
        "clock_gap_max_ms": 7_200_000, "shards": 4, "plan": "row",
        "layout": "delta",
        "source_immutable": True, "sync": False,
        "state_options": {"region": "eu", "endpoint": "http://x?a=b"},
        "keep_versions": 9, "keep_versions_ms": 172_800_000,
    }  # fmt: skip
    assert run(capsys, "dedup", "a", "b", "c", "--keep-versions", "all")[0] == 0
    assert Job.given["keep_versions"] is None
    assert run(capsys, "dedup", "a", "b", "c", "--keep-versions", "some")[0] == 2
    assert run(capsys, "dedup", "a", "b", "c", "--keep-checksums", "all")[0] == 0
    assert Job.given["keep_checksums"] == "all"
    assert run(capsys, "dedup", "a", "b", "c", "--keep-checksums", "some")[0] == 2
    named = ["--policy", "kafka_offsets", "--columns", "kafka-connect", "--pid", "topic_name"]
    assert run(capsys, "dedup", "a", "b", "c", *named)[0] == 0
    expected_columns = Columns(pid="topic_name", epoch=None, partition="kafka_partition", seq="kafka_offset")
    assert Job.given["policy"].columns == expected_columns
    assert run(capsys, "dedup", "a", "b", "c", "--policy", "kafka", "--file-order")[0] == 0
    assert Job.given["order_by"] == ()
    assert run(capsys, "state", "seed", "a", "b", "c", "--shards", "2", "--scope", "eu") == (
        0,
        "seeded from None\n",
        "",
    )
    assert (Job.given["shards"], Job.given["scope"]) == (2, "eu")
    assert run(capsys, "state", "seed", "a", "b", "c", "--policy", "kafka", "--file-order", "--max-idle", "2d")[0] == 0
    assert (Job.given["order_by"], Job.given["max_idle_ms"]) == ((), 172_800_000)
    content = ("--compare-content", "all", "--keep-checksums", "all")
    assert run(capsys, "state", "seed", "a", "b", "c", *content)[0] == 0
    order = run(capsys, "state", "seed", "a", "b", "c", "--order-by", "at", "--file-order")
    assert order[0] == 2
    assert "not both" in order[2]
    assert (Job.given["compare_content"], Job.given["keep_checksums"]) == (True, "all")


def test_every_argument_of_the_job_has_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noted(Exception):
        pass

    def note(source: list[str], state: str, sink: str, policy: Policy, options: dict[str, Any]) -> None:
        raise Noted(*options)

    monkeypatch.setattr(dedup, "make_job", note)
    with pytest.raises(Noted) as caught:
        cli.main(["dedup", "a", "b", "c"])
    arguments = set(inspect.signature(lake.DedupJob).parameters)
    assert arguments - set(caught.value.args) == {"source", "state", "sink", "policy", "columns", "engine"}


@pytest.mark.parametrize(
    ("text", "expected"), [("0s", 0), ("500ms", 500), ("45s", 45_000), ("30m", 1_800_000), ("2d", 172_800_000)]
)
def test_durations(text: str, expected: int) -> None:
    assert jobs.milliseconds(text) == expected


# Policies


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "p.json",
            '{"wrap": "none", "reach": 7, "epochs": "ignore", "columns": {"pid": ["a", "b"], "partition": "none"}}',
        ),
        ("p.toml", 'wrap = "none"\nreach = 7\nepochs = "ignore"\n[columns]\npid = ["a", "b"]\npartition = "none"\n'),
    ],
)
def test_a_policy_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    monkeypatch.setattr(lake, "DedupJob", Job)
    (tmp_path / name).write_text(text)
    assert run(capsys, "dedup", "a", "b", "c", "--policy-file", tmp_path / name, "--seq", "n")[0] == 0
    columns = Columns(pid=("a", "b"), epoch=None, partition=None, seq="n")
    assert Job.given["policy"] == Policy.any_order().replace(wrap=None, reach=7, epochs="ignore", columns=columns)


def test_fields_of_a_policy_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lake, "DedupJob", Job)
    assert run(capsys, "dedup", "a", "b", "c", "--set", "wrap=none", "--set", "reach=7")[0] == 0
    assert Job.given["policy"] == Policy.any_order().replace(wrap=None, reach=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policy any", "Invalid value: unknown policy 'any'; presets are any_order, in_order,"),
        ("--set color=blue", "Invalid value: a policy has no field 'color'"),
        ("--set reach", "Invalid value: --set reach: expected FIELD=VALUE"),
        ("--set wrap=1", "Invalid value: wrap=1"),
        ("--policy watermark --epoch e", "Invalid value: this policy ignores epochs, so epoch='e' cannot be mapped"),
        ("--partition p --no-partition", "Invalid value: pass either --partition or --no-partition, not both"),
        ("--policy-file {here}/none.json", "[Errno 2] No such file or directory: '{here}/none.json'"),
        ("--policy-file {here}/bad.json", "Invalid value: {here}/bad.json: Expecting value: line 1"),
        ("--policy-file {here}/odd.json", "Invalid value: {here}/odd.json: a policy has no field 'odd'"),
        ("--columns kafka-conect", "Invalid value: columns='kafka-conect': unknown preset"),
        ("--policy kafka --policy-file {here}/bad.json", "Invalid value: {here}/bad.json: Expecting value: line 1"),
    ],
)
def test_invalid_policies_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    (tmp_path / "bad.json").write_text("no")
    (tmp_path / "odd.json").write_text('{"odd": 1}')
    for command in (["audit", tmp_path], ["dedup", "a", "b", "c"]):
        code, out, err = run(capsys, *command, *options.format(here=tmp_path).split())
        assert code == (1 if "Errno" in message else 2)
        assert out == ""
        assert without_code(err).startswith(f"fencepost: {message.format(here=tmp_path)}")
        assert err.count("\n") == 1


# audit


def test_audit_prints_text_and_json(zone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = lake.audit(zone / "landing", columns=Columns(partition=("topic", "partition")))
    assert run(capsys, "audit", zone / "landing", *KEYS) == (0, f"{report}\n", "")
    code, out, err = run(capsys, "audit", zone / "landing", *KEYS, "--json", "--top", "2", "--threads", "1")
    assert (code, err) == (0, "")
    parsed = json.loads(out)
    assert parsed == json.loads(report.to_json(2))
    assert len(parsed["missing"]) == 2 < parsed["missing_ranges"]


def test_findings_are_exit_code_3(zone: Path, job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = lake.audit(zone / "landing", columns=Columns(partition=("topic", "partition"))).count_findings()
    message = f"fencepost: found: missing {found['missing']:,}, duplicate {found['duplicate']:,}\n"
    code, out, err = run(capsys, "audit", zone / "landing", *KEYS, "--fail-on", "missing,duplicate")
    assert (code, err) == (3, message)
    assert out.startswith("audit of ")
    both = ["--fail-on", "missing", "--fail-on", "duplicate"]
    assert run(capsys, "audit", zone / "landing", *KEYS, *both, "--quiet") == (3, "", "")
    code, out, err = run(capsys, "audit", zone / "landing", *KEYS, *both, "--json")
    assert (code, err) == (3, message)
    json.loads(out)
    run(capsys, "dedup", *job, "--no-sync")
    assert run(capsys, "audit", job[2], "--fail-on", "duplicate", "--quiet") == (0, "", "")
    assert run(capsys, "audit", job[0], "--fail-on", "duplicate", "--quiet") == (3, "", "")
    code, out, err = run(capsys, "audit", zone / "landing", *KEYS, "--timestamp", "timestamp", "--fail-on", "reset")
    assert (code, err) == (0, "")


# state


def test_state_show_describes_a_run(job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    source, state, sink = job
    run(capsys, "dedup", *job, "--no-sync")
    land(source, "b.parquet", make_rows(1))
    run(capsys, "dedup", *job, "--no-sync")
    code, out, err = run(capsys, "state", "show", state)
    assert (code, err) == (0, "")
    assert f"source          {source}\n" in out
    assert "policy          any_order\n" in out
    assert out.splitlines()[-3].split()[:4] == ["version", "kind", "status", "files"]
    assert out.splitlines()[-1].split()[:5] == ["2", "run", "applied", "1", "600"]
    shown = json.loads(run(capsys, "state", "show", state, "--json", "--last", "1")[1])
    assert shown["state"]["sink"] == str(sink)
    assert shown["state"]["versions"] == 2
    (second,) = shown["versions"]
    whole = json.loads(run(capsys, "state", "show", state, "2", "--json")[1])
    assert whole.items() >= second.items()
    assert whole["kept"] + whole["not_kept"] == whole["rows"] == sum(whole["counts"].values()) == 600
    assert [(it["path"], it["rows"]) for it in whole["inputs"]] == [("b.parquet", 600)]
    assert sum(it["rows"] for it in whole["outputs"]) == whole["kept"]
    assert whole["entries"] == len(fencepost.state.open(state).entries())
    assert whole["state_bytes"] > 0
    out = run(capsys, "state", "show", state, "2")[1]
    assert "\ninputs\n  b.parquet: 600 rows, " in out
    assert f"kept            {whole['kept']:,}\n" in out
    message = "fencepost: Invalid value: version 3 does not exist; versions are 1 to 2\n"
    assert run(capsys, "state", "show", state, "3") == (2, "", message)
    assert run(capsys, "state", "show", source)[:2] == (1, "")


@pytest.mark.parametrize("what", ["entries", "missing"])
def test_state_export(
    job: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    run(capsys, "dedup", *job, "--no-sync")
    state = fencepost.state.open(job[1])
    rows = state.entries() if what == "entries" else state.missing()
    assert len(rows) > 10
    code, out, err = run(capsys, "state", "export", job[1], "--what", what)
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == rows.to_pylist()
    for name in ("a.parquet", "a.arrow", "a.csv", "a.jsonl"):
        assert run(capsys, "state", "export", job[1], tmp_path / name, "--what", what) == (0, "", "")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows.to_pylist()
    assert pa.ipc.open_file(tmp_path / "a.arrow").read_all().equals(rows)
    assert (tmp_path / "a.jsonl").read_text() == out
    lines = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [it["pid"] for it in lines] == [str(it) for it in rows["pid"].to_pylist()]
    if what == "entries":
        assert [json.loads(it["holes"]) for it in lines] == rows["holes"].to_pylist()
        # What is exported can be taken back.
        taken = StateTable.from_entries(pq.read_table(tmp_path / "a.parquet"), "any_order")
        assert len(taken) == len(rows)


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(5)])
def test_bytes_of_keys_are_exported_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: pa.DataType
) -> None:
    key = bytes([0, 10, 34, 44, 255])
    rows = {"pid": pa.array([key, key], kind), "epoch": [0, 0], "partition": [0, 0], "seq": [0, 3]}
    land(tmp_path / "landing", "a.parquet", pa.table(rows))
    places = (tmp_path / "landing", tmp_path / "state", tmp_path / "clean")
    _, out, _ = run(capsys, "dedup", *places, "--no-sync", "--json")
    assert [it["pid"] for it in json.loads(out)["missing"]] == [key.hex()]
    for what in ("entries", "missing"):
        for name in ("a.csv", "a.jsonl"):
            assert run(capsys, "state", "export", tmp_path / "state", tmp_path / name, "--what", what) == (0, "", "")
        (line,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
        assert line["pid"] == json.loads((tmp_path / "a.jsonl").read_text())["pid"] == key.hex()
    run(capsys, "audit", tmp_path / "landing", "--out", tmp_path / "a.csv")
    (line,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
    assert (line["pid"], line["count"]) == (key.hex(), "2")


@pytest.mark.parametrize(
    ("name", "content"),
    daily.each_value(("a.parquet", "a.arrow", "a.csv", "a.jsonl"), (None, b"of before")),
)
def test_an_export_that_fails_leaves_the_file_as_it_was(
    job: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    """A part of a list looks like a shorter one. Here no file may grow, as on a full disk."""
    run(capsys, "dedup", *job, "--no-sync")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / name
    if content:
        out.write_bytes(content)
    command = f"ulimit -f 0; trap '' XFSZ; exec {sys.executable} -m fencepost state export {job[1]} {out}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "File too large" in done.stderr
    assert [it.read_bytes() for it in out.parent.iterdir()] == ([content] if content else [])


class FakeState:
    """Has the operations of a state, and remembers what it was asked."""

    asked: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any, **options: Any) -> int:
            options.pop("progress", None)
            FakeState.asked = (name, arguments, options)
            return 7

        return answer


@pytest.mark.parametrize(
    ("arguments", "asked", "said"),
    [
        ("evict S --max-idle 2s --now-ms 9000", ("evict", (9_000, 2_000), {}), "evicted"),
        ("rollback S 4", ("rollback", (4,), {"accept_duplicates": False}), "rolled back"),
        ("rollback S 4 --accept-duplicates", ("rollback", (4,), {"accept_duplicates": True}), "rolled back"),
        ("abandon S 5", ("abandon", (5,), {}), "abandoned"),
        ("gc S", ("collect_garbage", (), {}), "files removed"),
        ("gc S --keep-versions 3", ("collect_garbage", (), {"keep_versions": 3}), "files removed"),
        ("reshard S 32", ("reshard", (32,), {}), "resharded"),
    ],
)
def test_operations_reach_the_state(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, asked: Any, said: str
) -> None:
    monkeypatch.setattr(fencepost.state, "open", lambda uri: FakeState())
    assert run(capsys, "state", *arguments.split()) == (0, f"{said}: count 7\n", "")
    assert FakeState.asked == asked
    assert json.loads(run(capsys, "state", *arguments.split(), "--json")[1]) == {"done": said, "count": 7}


def test_an_operation_that_makes_a_version_prints_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Made:
        version, attempt, report = 5, "abc", {"evicted": 12_345, "max_idle_ms": 2_000}

    monkeypatch.setattr(FakeState, "evict", lambda self, now_ms, max_idle_ms, progress: Made(), raising=False)
    monkeypatch.setattr(fencepost.state, "open", lambda uri: FakeState())
    code, out, _ = run(capsys, "state", "evict", "S", "--max-idle", "2s")
    assert (code, out) == (0, "evicted: version 5, evicted 12,345, max idle ms 2,000\n")


def test_operations_on_a_real_state(job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    source, state, _ = job
    run(capsys, "dedup", *job, "--no-sync")
    land(source, "b.parquet", make_rows(1))
    run(capsys, "dedup", *job, "--no-sync")
    entries = len(fencepost.state.open(state).entries())
    code, out, err = run(capsys, "state", "reshard", state, "4", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["version"] == 3
    assert len(fencepost.state.open(state).entries()) == entries
    code, out, err = run(capsys, "state", "rollback", state, "1")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    code, out, err = run(capsys, "state", "rollback", state, "1", "--accept-duplicates", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["version"] == 4
    shown = json.loads(run(capsys, "state", "show", state, "--json")[1])
    assert [(it["kind"], it["status"], it["builds_on"]) for it in shown["versions"]] == [
        ("run", "applied", 0), ("run", "applied", 1), ("reshard", "applied", 2), ("rollback", "applied", 1),
    ]  # fmt: skip
    assert run(capsys, "state", "gc", state)[0] == 0
    code, out, err = run(capsys, "state", "evict", state, "--max-idle", "1d")
    assert (code, out) == (1, "")
    assert "keeps no timestamps" in err
    code, out, err = run(capsys, "state", "abandon", state, "2")
    assert (code, out) == (1, "")


# doctor


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith(("python", "fencepost", "pyarrow"))] == [
        "good", "good", "good",
    ]  # fmt: skip
    checks = json.loads(run(capsys, "doctor", "--json")[1])
    assert {it["name"] for it in checks} >= {"python", "fencepost", "typer", "rich", "pyarrow", "numpy", "obstore"}
    assert "java" not in {it["name"] for it in checks}
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    code, out, _ = run(capsys, "doctor", "--spark", "--json")
    java = next(it for it in json.loads(out) if it["name"] == "java")
    assert (code, java["is_good"], java["found"]) == (1, False, "not found: install Java 17 and set JAVA_HOME")
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("a file that nobody may execute")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    *_, java, worker = doctor._spark_checks()
    assert java == ("java", False, f"{program}: Permission denied: install Java 17 and set JAVA_HOME")
    assert worker[:2] == ("a worker", None)
    for ours, found in (("9.9.9", "9.9.9, but fencepost "), (None, "not installed: ")):
        monkeypatch.setattr(doctor, "_version", lambda name, ours=ours: ours if name == "fencepost-spark" else "1.2.3")
        spark = next(it for it in doctor._spark_checks() if it[0] == "fencepost-spark")
        assert (spark[1], spark[2].startswith(found)) == (False, True)


@pytest.mark.parametrize(
    ("program", "is_good", "found"),
    [
        (f'exec "{sys.executable}" "$@"', True, f"{platform.python_version()}, fencepost-spark "),
        ("echo 3.7.1 9.9.9", False, f"is Python 3.7.1, this is {platform.python_version()}: set PYSPARK_PYTHON="),
        ("echo No module named numpy >&2; exit 1", False, ": No module named numpy: set PYSPARK_PYTHON="),
        (None, False, ": No such file or directory: set PYSPARK_PYTHON="),
    ],
)
def test_doctor_runs_the_python_of_workers(
    program: str | None,
    is_good: bool,
    found: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setattr(doctor, "_start_worker", lambda python: (True, python))
    checks = {it["name"]: it for it in json.loads(run(capsys, "doctor", "--spark", "--json")[1])}
    check, worker = checks["workers' python"], checks["a worker"]
    assert check["is_good"] is is_good
    assert found in check["found"]
    assert "(PYSPARK_PYTHON)" in check["found"]
    assert (worker["is_good"], worker["found"] == str(python)) == ((True, True) if is_good else (None, False))


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        (
            "java.lang.SparkException:\nError from python worker:\n  ImportError: no pyarrow\nPYTHONPATH was:\n  /a\n"
            "java.lang.SparkException: EOF\n\tat a.b\npy4j.Py4JJavaError: o1\n: java.lang.SparkException: EOF\n",
            "ImportError: no pyarrow",
        ),
        (
            "Traceback:\n  File 1\na.b.PySparkRuntimeError: [MISMATCH] Python 3.7\n\tat a.b\n",
            "a.b.PySparkRuntimeError: [MI",
        ),
        ("one\ntwo\n", "two"),
        ("", "exit code 3: "),
    ],
)
def test_doctor_shows_one_line_of_a_worker_that_fails(
    printed: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 3, "", printed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    is_good, found = doctor._start_worker("python")
    assert (is_good, found.startswith(problem), "\n" in found) == (False, True, False), found


def test_doctor_finds_the_python_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert doctor._worker_python()[0] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/a/python")
    assert doctor._worker_python()[:2] == ("/a/python", "PYSPARK_PYTHON")
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    for setting, value in (("SPARK_HOME", tmp_path), ("SPARK_CONF_DIR", defaults.parent)):
        monkeypatch.setenv(setting, str(value))
        for text in ("spark.pyspark.python /b/python", "spark.executor.cores 2\n spark.pyspark.python=/b/python\n"):
            defaults.write_text(text)
            python, named, _ = doctor._worker_python()
            assert (python, str(defaults) in named) == ("/b/python", True)
        defaults.write_text("# spark.pyspark.python /b/python\nspark.pyspark.driver.python /b/python\n")
        assert doctor._worker_python()[0] == "/a/python"
        monkeypatch.delenv(setting)


def test_doctor_starts_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    is_good, found = doctor._start_worker(sys.executable)
    assert (is_good, found.endswith(f"{platform.python_version()}, {sys.executable}")) == (True, True), found


@pytest.mark.matrix
def test_doctor_names_why_a_worker_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    python = tmp_path / "python"
    daemon = "*pyspark.daemon*) echo \"ModuleNotFoundError: No module named 'lost'\" >&2; exit 1"
    python.write_text(f'#!/bin/sh\ncase "$*" in {daemon};; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert doctor._check_python(str(python), "")[0], "only the worker fails"
    is_good, found = doctor._start_worker(str(python))
    assert (is_good, found.startswith("ModuleNotFoundError: No module named 'lost'")) == (False, True), found


# What all commands have in common


def test_a_report_is_printed_if_its_files_cannot_be_written(
    job: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(__file__).parents[1] / "data" / "kafka-segments"
    wrong = tmp_path / "a.csv"
    wrong.mkdir()
    for command in (["dedup", *job, "--no-sync"], ["audit", job[0]], ["advise", job[0]], ["kafka", "audit", log]):
        code, out, err = run(capsys, *command, "--json", "--html", wrong)
        assert (code, bool(json.loads(out)), err.count("\n")) == (1, True, 1)
    code, out, _ = run(capsys, "audit", job[0], "--json", "--out", wrong)
    assert (code, bool(json.loads(out))) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["dedup", "{here}/none", "{here}/s", "{here}/c"], 1, "{here}/none: no such folder"),
        (["dedup", "{here}", "{here}/s", "{here}/c"], 1, "state {here}/s is inside source {here}"),
        (["dedup", "a", "b"], 2, "Missing argument 'SOURCE'."),
        (["dedup", "a", "b", "c", "--policy", "kafka"], 2, "Invalid value: policy kafka depends on the order of rows"),
        (
            ["dedup", "a", "b", "c", "--rejected-max", "2"],
            2,
            "Invalid value: rejected_max=2.0: expected a share from 0 to 1",
        ),
        (["dedup", "a", "b", "c", "--threads", "0"], 2, "Invalid value for '--threads': "),
        (
            ["dedup", "a", "b", "c", "--max-idle", "1w"],
            2,
            "Invalid value: expected a duration such as 7d",
        ),
        (
            ["dedup", "a", "b", "c", "--order-by", "x", "--file-order"],
            2,
            "Invalid value: pass either --order-by",
        ),
        (
            ["dedup", "a", "b", "c", "--state-option", "x"],
            2,
            "Invalid value: --state-option x: expected NAME=VALUE",
        ),
        (["audit", "{here}/none"], 1, "{here}/none: no such folder"),
        (["audit", "{here}", "--pid", "who"], 1, "{here}/a.parquet: column 'who': missing; it has pid, epoch"),
        (
            ["audit", "{here}", "--fail-on", "loss"],
            2,
            "Invalid value: --fail-on loss: expected one of missing, duplicate, stale, reset",
        ),
        (["audit", "{here}", "--fail-on", "reset"], 2, "Invalid value: --fail-on reset: needs --timestamp"),
        (["audit", "{here}", "--reset-rows-min", "2"], 2, "Invalid value: --reset-rows-min: needs --timestamp"),
        (["dedup", "a", "b", "c", "--on-reset", "stop"], 2, "Invalid value: --on-reset: needs --max-idle"),
        (["dedup", "a", "b", "c", "--reset-rows-min", "2"], 2, "Invalid value: --reset-rows-min: needs --max-idle"),
        (["audit", "{here}", "--threads", "0"], 2, "Invalid value for '--threads': "),
        (["state"], 2, "Missing command."),
        (["state", "show", "{here}"], 1, "{here}: not a fencepost state"),
        (
            ["state", "export", "{here}", "--what", "all"],
            2,
            "Invalid value: --what all: expected entries or missing",
        ),
        (
            ["state", "export", "{here}", "x.xml"],
            2,
            "Invalid value: x.xml: expected a name that ends in one of",
        ),
        (["state", "evict", "{here}"], 2, "Missing option '--max-idle'."),
    ],
)
def test_an_error_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, message: str
) -> None:
    land(tmp_path, "a.parquet", make_rows(0))
    code, out, err = run(capsys, *(it.format(here=tmp_path) for it in arguments))
    assert (code, out) == (exit_code, "")
    assert without_code(err).startswith(f"fencepost: {message.format(here=tmp_path)}")
    assert err.count("\n") == 1


def commands() -> list[list[str]]:
    import typer

    found = []
    for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        found += [[name, inner] for inner in command.commands] if hasattr(command, "commands") else [[name]]
    return found


def test_every_command_exists_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    found = [" ".join(it) for it in commands()]
    operations = ["show", "export", "evict", "rollback", "abandon", "gc", "reshard", "seed"]
    operations = [*(f"state {it}" for it in operations), "kafka audit", "kafka export"]
    operations += [f"transactions {it}" for it in ("list", "describe", "abort", "metrics")]
    operations += [f"sql {it}" for it in ("ddl", "status", "migrate")]
    assert sorted(found) == sorted(["dedup", "audit", "advise", "generate", "doctor", "serve", *operations])
    for command in commands():
        code, out, err = run(capsys, *command, "--help")
        assert (code, err) == (0, "")
        assert "Usage:" in out


def test_commands_run_as_processes(job: tuple[Path, Path, Path]) -> None:
    ended = as_process("dedup", *job, "--json")
    assert (ended.returncode, ended.stderr) == (0, ""), "no progress without a terminal"
    assert json.loads(ended.stdout)["version"] == 1
    ended = as_process("audit", job[0], "--fail-on", "duplicate", "--json")
    assert ended.returncode == 3
    json.loads(ended.stdout)
    assert ended.stderr.startswith("fencepost: found: duplicate ")
    ended = as_process("state", "show", job[1])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "…" not in ended.stdout
    ended = as_process("invent")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "fencepost: No such command 'invent'.\n")


def test_no_command_imports_pandas(job: tuple[Path, Path, Path]) -> None:
    """Although pandas is installed: its import would take longer than the job."""
    assert importlib.util.find_spec("pandas")
    program = "import sys; from fencepost import cli; code = cli.run(); print(code, 'pandas' in sys.modules)"
    for arguments in (("dedup", *job, "-q"), ("audit", job[0]), ("state", "show", job[1])):
        command = [sys.executable, "-c", program, *map(str, arguments)]
        ended = subprocess.run(command, check=True, text=True, capture_output=True)
        assert ended.stdout.splitlines()[-1] == "0 False", (arguments, ended.stderr)


def test_a_plain_run_imports_what_it_needs(zone: Path, tmp_path: Path) -> None:
    """Else a small job would spend most of its time on imports."""
    needless = ["fencepost.auditor", "fencepost.producer", "rich.console", "pyarrow.dataset", "pyiceberg", "deltalake",
                "obstore", "sqlalchemy", "fsspec"]  # fmt: skip
    program = f"import sys; from fencepost import cli; print(cli.run(), *sys.modules.keys() & {needless})"
    command = [sys.executable, "-c", program, "dedup", zone / "landing", tmp_path / "state", tmp_path / "sink", *KEYS]
    ended = subprocess.run([*map(str, command)], check=True, text=True, capture_output=True)
    assert ended.stdout.splitlines()[-1] == "0", ended.stdout


def test_help_imports_what_it_needs() -> None:
    """Else half of its time would be for stores and states, which help does not read."""
    needless = ["fencepost.state", "fencepost.kafka.source", "fencepost.pages", "pyarrow", "numpy", "rich.console"]
    program = f"import sys; from fencepost import cli; print(cli.run(), *sys.modules.keys() & {needless})"
    for arguments in (["--help"], ["kafka", "audit", "--help"], ["dedup", "--help"]):
        ended = subprocess.run([sys.executable, "-c", program, *arguments], check=True, text=True, capture_output=True)
        assert ended.stdout.splitlines()[-1] == "0", ended.stdout


def on_terminal(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout, and the output on a terminal at stderr."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fencepost", *map(str, arguments)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # that is how Linux says that the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    out, _ = process.communicate()
    return process.returncode, out, seen.decode()


@pytest.mark.parametrize("command", ["dedup", "audit", "generate"])
def test_progress_bars_go_to_a_terminal_and_not_to_stdout(zone: Path, tmp_path: Path, command: str) -> None:
    arguments = {
        "dedup": [zone / "landing", tmp_path / "state", tmp_path / "clean", *KEYS],
        "audit": [zone / "landing", *KEYS],
        "generate": [tmp_path / "zone", "--rows", "20_000", "--payload-bytes", "4"],
    }[command]
    code, out, seen = on_terminal(command, *arguments, "--json")
    assert code == 0
    json.loads(out)
    assert "━" in seen
    assert "100%" in seen
    step = {"dedup": "finish", "audit": "audit", "generate": "events"}[command]
    assert step in seen
    if command != "generate":
        rest = [it for it in arguments if it != tmp_path / "state"]
        rest = [tmp_path / "other" if it == tmp_path / "clean" else it for it in rest]
        if command == "dedup":
            rest.insert(1, tmp_path / "other-state")
        assert on_terminal(command, *rest, "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("command", "step", "has_rows"),  # whether the last step has rows: earlier ones may be too short to be shown
    [
        ("advise LANDING", "judge", True),
        ("audit LANDING", "audit", True),
        ("generate OUT --rows 20_000 --payload-bytes 4", "events", True),
        ("kafka audit LOGS", "audit", True),
        ("kafka export LOGS/clicks-0 OUT", "export", True),
        ("state export STATE OUT.csv", "read", True),
        ("state reshard STATE 4", "reshard", False),
        ("state gc STATE", "gc", False),
        ("state seed LANDING OTHER OUT", "finish", False),
    ],
)
def test_long_commands_have_a_progress_bar(
    job: tuple[Path, Path, Path], tmp_path: Path, command: str, step: str, has_rows: bool
) -> None:
    fencepost.lake.DedupJob(*job).run()
    land(tmp_path / "clean-landing", "a.parquet", make_rows(1).slice(0, 1))
    places = {"LANDING": job[0], "STATE": job[1], "OUT": tmp_path / "out", "LOGS": DATA, "OTHER": tmp_path / "other"}
    if "seed" in command:
        places["LANDING"] = tmp_path / "clean-landing"
    for name, place in places.items():
        command = command.replace(name, str(place))
    code, _, seen = on_terminal(*command.split())
    assert code == 0, seen
    assert "━" in seen
    assert step in seen
    assert "rows/s" in seen or not has_rows


def test_an_interrupt_is_reported_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencepost", "generate", str(tmp_path), "--rows", "5_000_000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(tmp_path.glob("landing/*")), "nothing is generated")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (1, "", "fencepost: interrupted")


def test_an_interrupt_of_a_job(
    job: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lake.DedupJob, "run", interrupt)
    code, out, err = run(capsys, "dedup", *job)
    assert (code, out, err.strip()) == (1, "", "fencepost: interrupted")


def test_a_reader_may_close_the_pipe(job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "dedup", *job, "--no-sync")
    command = f"{sys.executable} -m fencepost state export {job[1]} | head -1"
    ended = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True)
    assert len(ended.stdout.splitlines()) == 1
    assert ended.stderr == ""


def test_errors_of_the_package_are_what_is_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug is not an error of the user: it keeps its traceback."""

    def fail(problem: Exception) -> None:
        def read(*arguments: Any, **options: Any) -> None:
            raise problem

        monkeypatch.setattr(lake, "audit", read)

    fail(FencepostError("two\n  lines"))
    assert run(capsys, "audit", "x") == (1, "", "fencepost: [FP001] two lines\n")
    fail(AssertionError("a bug"))
    with pytest.raises(AssertionError):
        cli.main(["audit", "x"])


def test_an_audit_does_not_pass_for_what_its_policy_cannot_find(zone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for policy, kind in (("kafka", "missing"), ("watermark", "missing"), ("watermark", "stale")):
        code, out, err = run(capsys, "audit", zone / "landing", *KEYS, "--policy", policy, "--fail-on", kind)
        assert (code, out) == (2, "")
        assert f"--fail-on {kind}: " in err


# What nobody read


def test_an_audit_that_read_nothing_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names in ((), ("a.csv", "b.csv"), ("A.PARQUET",)):
        folder = tmp_path / "-".join(["x", *names])
        folder.mkdir()
        for name in names:
            (folder / name).write_text("pid,seq\n")
        code, out, err = run(capsys, "audit", folder, "--fail-on", "duplicate")
        assert (code, "read            0" in out) == (4, True)
        assert err.startswith(f"fencepost: {folder}: nothing was read: ")
        assert all(name in err and name in out for name in names)
        assert run(capsys, "audit", folder, "--quiet") == (4, "", "")
        assert run(capsys, "audit", folder, "--quiet", "--allow-empty") == (0, "", "")
        code, out, err = run(capsys, "audit", folder, "--json")
        assert (code, sorted(json.loads(out)["ignored"])) == (4, sorted(names))
    (tmp_path / "events.csv").write_text("pid,epoch,partition,seq\n")
    code, _, err = run(capsys, "audit", tmp_path / "events.csv")
    assert (code, ".parquet" in err, "nothing was read" in err) == (4, False, True)
    (tmp_path / "rows").mkdir()
    land(tmp_path / "rows", "a.parquet", make_rows(0).slice(0, 0))
    code, _, err = run(capsys, "audit", tmp_path / "rows")
    assert (code, "1 .parquet files without rows" in err) == (4, True)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_folder_of_other_files_is_read_by_the_glob_that_the_error_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    rows = b"pid,epoch,partition,seq\n1,0,0,0\n"
    for name in (f"2026.11{ending}", f"deeper/b{ending}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(rows) if ending.endswith(".gz") else rows)
    pattern = f"{tmp_path}/**/*{ending}"
    for command, code in (("audit", 4), ("advise", 1)):
        found, _, err = run(capsys, command, tmp_path)
        assert (found, f"'{pattern}'" in err) == (code, True)
        assert run(capsys, command, pattern)[0] == 0
    assert json.loads(run(capsys, "audit", pattern, "--json")[1])["rows"] == 2


def test_an_audit_names_a_bad_file_and_has_an_exit_code_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path, "a.parquet", make_rows(0))
    (tmp_path / "b.parquet").write_text("not Parquet")
    code, out, err = run(capsys, "audit", tmp_path, "--fail-on", "duplicate")
    assert code == 1
    assert re.fullmatch(r"fencepost: 1 files .*: b\.parquet\n", err)
    assert "DUPLICATE" in out
    assert "b.parquet: byte " in out


@pytest.mark.parametrize(
    ("module", "source", "command"),
    [
        ("typer", "raise KeyboardInterrupt", ["doctor"]),
        ("pyarrow", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)", ["audit", "x"]),
        ("pyarrow", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)", ["dedup", "x", "y", "z"]),
    ],
)
def test_an_interrupt_while_modules_are_imported(tmp_path: Path, module: str, source: str, command: list[str]) -> None:
    (tmp_path / f"{module}.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    whole = [sys.executable, "-m", "fencepost", *command]
    ended = subprocess.run(whole, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "fencepost: interrupted\n")


def test_quarantined_files_are_shown_as_they_are(
    job: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = job[0] / "bad.parquet"
    bad.write_text("not Parquet")
    assert run(capsys, "dedup", *job, "--no-sync", "--quiet", "--settle", "0s") == (0, "", "")
    (quarantined,) = fencepost.state.open(job[1]).version(1).quarantined.each()
    code, out, _ = run(capsys, "state", "show", job[1], "1")
    assert code == 0
    assert f"  bad.parquet: 11 bytes: {quarantined['reason']}\n" in out


def test_an_audit_fails_on_conflicts_where_content_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(tmp_path, "a.parquet", make_rows(0))  # every row has an origin of its own
    code, out, err = run(capsys, "audit", tmp_path, "--compare-content", "all", "--fail-on", "conflict")
    assert code == 3
    assert err.startswith("fencepost: found: conflict ")
    assert "repeats with other content (" in out or "repeats with other content\n" in out
    assert run(capsys, "audit", tmp_path, "--compare-content", "pid", "--fail-on", "conflict", "--quiet") == (0, "", "")
    for name, count in (("all", 10), ("pid", 0)):
        _, out, _ = run(capsys, "audit", tmp_path, "--compare-content", name, "--json")
        shown = json.loads(out)["conflicts"]
        assert len(shown) == count
        assert all(it["column"] for it in shown)
    code, _, err = run(capsys, "audit", tmp_path, "--fail-on", "conflict")
    assert (code, "--fail-on conflict: needs --compare-content" in err) == (2, True)
