"""What jobs over files add to the report: how they compare with `dropDuplicates`, their steps, what they cost beside
their rows, and what all that says of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import lake, spark
from bench.markdown import table
from bench.measure import Measurement, Target

if TYPE_CHECKING:
    from bench.report import Results

Facts = dict[str, Any]
DROP_DUPLICATES = spark.DROP_DUPLICATES.name
CONTESTANTS = {
    spark.JOB: "job",
    lake.SYNCED: "synced",
    lake.LOCAL: "local engine",
    lake.LINKED: "source immutable",
    lake.INTERVAL: "interval plan",
    lake.AUDIT: "audit",
    spark.COPY: "copying",
    spark.COPY_SYNCED: "copying, synced",
}
"""As the heads of columns."""
IN_TASKS = ("scan", "align", "judge", "write")
"""The steps of a job that tasks do."""
STATE_TIMES_MAX, DRIVER_SECONDS_MAX, WORKER_BYTES_MAX = 1.5, 10, 300e6


def targets(results: Results) -> Iterator[Target]:
    """The figures to reach, as far as they were measured."""
    for shape in _shapes(results):
        yield results.ratio_target(shape.name, spark.JOB, shape.times)
    if lake.WHOLE_KEYS.name in results.contests:
        yield results.ratio_target(lake.WHOLE_KEYS.name, lake.AUDIT, lake.AUDIT_TIMES)
    if "costs" in results.facts:
        yield from _cost_targets(results.facts["costs"])


def _cost_targets(costs: Facts) -> Iterator[Target]:
    incremental, driver = costs["incremental"], costs["driver"][0]
    for it in incremental["runs"]:
        if it["share"] < 1:
            times = _total(it["full"]) / _total(it["empty"])
            shards = f"{it['engine']} engine: {it['rows']:,} new rows in {it['share']:.0%} of the shards"
            what = f"{shards}, against {incremental['entries']:,} entries"
            yield Target(what, f"≤ {STATE_TIMES_MAX} × against none", f"{times:.2f} ×", times <= STATE_TIMES_MAX)
    seconds = _driver_seconds(driver)
    what = f"driver, {driver['files']:,} files, {driver['shards']:,} shards"
    yield Target(what, f"≤ {DRIVER_SECONDS_MAX} s", f"{seconds:.2f} s", seconds <= DRIVER_SECONDS_MAX)
    for it in costs["memory"]:
        found, most = max(it["peaks"].values()), WORKER_BYTES_MAX + it["shard"] + it["row_group"]
        what = f"memory of a worker, {it['engine']} engine, {it['shape']}"
        yield Target(what, f"≤ {most / 1e6:,.0f} MB", f"{found / 1e6:,.0f} MB", found <= most)


def sections(results: Results) -> list[str]:
    """Tables, each under its head."""
    found = []
    if lake.WHOLE_KEYS.name in results.contests:
        found += ["## Times as fast as `dropDuplicates` to Parquet", _ratios(results)]
        found += ["## Plans and steps", STEPS, _steps(results.facts["lake"]["jobs"])]
    if "costs" in results.facts:
        costs = results.facts["costs"]
        found += ["## A run against a large state", *_state(costs["incremental"])]
        found += ["## The driver, tasks simulated", _driver(costs["driver"])]
        found += ["## Memory of a worker", MEMORY, _memory(costs["memory"])]
    if "costs" in results.facts and "lake" in results.facts:
        found += ["## A cluster", "The table of `docs/cluster.md`.", cluster(results.facts)]
    return found


def _ratios(results: Results) -> str:
    rows = []
    for shape in _shapes(results):
        of_shape = results.contests[shape.name]
        one = of_shape[DROP_DUPLICATES].median
        ratios = [f"{one / of_shape[name].median:.1f}" if name in of_shape else "" for name in CONTESTANTS]
        is_met = one / of_shape[spark.JOB].median >= shape.times
        rows.append((shape.name, f"{one:.2f}", f"≥ {shape.times:g}", "yes" if is_met else "**no**", *ratios))
    head = ("shape", "`dropDuplicates`, s", "target of the job", "met", *CONTESTANTS.values())
    return table(head, rows, "lrrl" + "r" * len(CONTESTANTS))


STEPS = "Seconds of the last round. *Driver*: all that is not waiting for tasks."


def _steps(jobs: list[Facts]) -> str:
    rows = [
        (
            it["contest"],
            CONTESTANTS[it["name"]],
            it["plan"],
            it["judged"],
            f"{it['spans']:,}",
            *(f"{it['seconds'][step]:.2f}" if step in it["seconds"] else "" for step in IN_TASKS),
            f"{it['driver_seconds']:.2f}",
            f"{it['carried_files']}/{it['files']}",
            f"{it['copied_groups']}/{it['copied_groups'] + it['rewritten_groups']}",
        )
        for it in jobs
    ]
    head = ("shape", "job", "plan", "judged", "exchanged", *IN_TASKS, "driver")
    return table((*head, "files carried over", "groups copied of the others"), rows, "llllrrrrrrrr")


def _state(incremental: Facts) -> Iterator[str]:
    seconds, entries = incremental["seed_seconds"], incremental["entries"]
    yield (
        f"{entries:,} entries, {incremental['state_bytes'] / 1e6:,.0f} MB, seeded in {sum(seconds.values()):,.0f} s. "
        "No piece of the state is in the run's own memory; all of them are in the system's."
    )
    rows = []
    for it in incremental["runs"]:
        full, empty = _total(it["full"]), _total(it["empty"])
        last = it["full"][-1]
        rows.append(
            (
                f"{it['share']:.0%}",
                it["engine"],
                f"{last['shards']:,} of {it['shards']:,}",
                f"{it['rows']:,}",
                f"{empty:.3f}",
                f"{full:.3f}",
                f"{full / empty:.2f}",
                f"{_step(it['empty'], 'judge'):.3f}",
                f"{_step(it['full'], 'judge'):.3f}",
                f"{last['state_bytes_read'] / 1e6:,.1f}",
                f"{last['state_bytes_written'] / 1e6:,.1f}",
            )
        )
    head = ("new rows in", "engine", "shards", "rows", "against none, s", "against the state, s", "times")
    more = ("judge: none, s", "judge: state, s", "state read, MB", "written, MB")
    yield table((*head, *more), rows, "llrrrrrrrrr")


def _driver(driver: list[Facts]) -> str:
    rows = [
        (
            f"{it['files']:,}",
            f"{it['shards']:,}",
            f"{_driver_seconds(it):.2f}",
            *(f"{_step(it['rounds'], step):.2f}" for step in ("list", "collect", "decide", "apply")),
        )
        for it in driver
    ]
    return table(("files", "shards", "driver, s", "list", "collect", "decide", "apply"), rows, "rrrrrrr")


MEMORY = (
    "The most that a task of each step took above what its process had before its first task, library code that is "
    "used for the first time and pages of mapped files included. Allowed: 300 MB, the largest row group (before "
    "compression), a shard."
)


def _memory(memory: list[Facts]) -> str:
    rows = [
        (
            it["shape"],
            it["engine"],
            *(f"{it['peaks'][step] / 1e6:,.0f}" if step in it["peaks"] else "" for step in IN_TASKS),
            f"{it['row_group'] / 1e6:,.1f}",
            f"{it['shard'] / 1e6:,.3f}",
        )
        for it in memory
    ]
    return table(("shape", "engine", *(f"{it}, MB" for it in IN_TASKS), "row group", "shard"), rows, "llrrrrrr")


# A cluster, by arithmetic


@dataclass(frozen=True)
class Example:
    """A run for which docs/cluster.md shows the arithmetic."""

    rows: float = 1e9
    run: int = 20
    files: int = 10_000
    entries: float = 1e9
    shards: int = 4_096
    cores: int = 200


def cluster(facts: Facts | None) -> str:
    """The table of docs/cluster.md, without figures where there are none yet."""
    head = ("", "what", "figure")
    return table(head, [(f"*{name}*", what, found) for name, what, found in _cluster_rows(facts)], "llr")


def _cluster_rows(facts: Facts | None) -> list[tuple[str, str, str]]:
    figures = {} if facts is None else _figures(facts)
    return [(name, what, unit.format(figures[name]) if figures else "?") for name, (what, unit) in CLUSTER.items()]


CLUSTER = {
    "scan": ("core time to read the identity of a row, in spans of 20 rows", "{:.1f} ns"),
    "scan₁": ("core time to read the identity of a row, in spans of one row", "{:.1f} ns"),
    "span": ("core time to judge a span of 20 rows", "{:.0f} ns"),
    "span₁": ("core time to judge a span of one row", "{:.0f} ns"),
    "write": ("core time to write a row with a 90-byte payload, if every row group has refused rows", "{:.1f} ns"),
    "clean": ("core time to write a row with a 90-byte payload, if no row is refused", "{:.1f} ns"),
    "drop": ("core time of `dropDuplicates` per row, from Parquet to Parquet", "{:.0f} ns"),
    "bytes": ("size of a row in a file", "{:.0f} bytes"),
    "shard": ("core time per touched shard", "{:.2f} ms"),
    "entry": ("core time per entry in a touched shard", "{:.0f} ns"),
    "disk": ("size of an entry in the files of the state", "{:.1f} bytes"),
    "memory": ("size of an entry in memory, while its shard is judged", "{:.0f} bytes"),
    "fileᵈ": ("driver time per file", "{:.0f} µs"),
    "shardᵈ": ("driver time per shard", "{:.0f} µs"),
    "T₁": ("the example: scan", "{:.1f} s"),
    "T₂": ("the example: judge", "{:.1f} s"),
    "T₃": ("the example: write", "{:.1f} s"),
    "T₄": ("the example: driver", "{:.1f} s"),
    "T": ("the example: the whole run", "{:.1f} s"),
    "rate": ("the example: rows per second", "{:.0f} M"),
    "T′": ("the example: `dropDuplicates`", "{:.0f} s"),
    "storage": ("the example: bytes read and written per second, during the write step", "{:.1f} GB/s"),
    "exchange": ("the example: bytes that tasks exchange", "{:.1f} GB"),
    "state": ("the example: size of the state", "{:.1f} GB"),
    "one shard": ("the example: size of a shard in memory", "{:.0f} MB"),
    "cores": ("the example: number of cores at which the driver takes half of the time", "{:,.0f}"),
}
"""Symbol: (what, how its figure is written)."""
RUN_BYTES = 34
"""A line of the exchange: pid 8, epoch 2, partition 4, seq 4, length 4, file 4, row 8."""


def _figures(facts: Facts) -> dict[str, float]:
    """By symbol, in the units of CLUSTER."""
    jobs = {(it["contest"], it["name"]): it for it in facts["lake"]["jobs"]}
    whole, clean = (jobs[shape, lake.INTERVAL] for shape in (lake.WHOLE_KEYS.name, lake.CLEAN.name))
    single = jobs[lake.ONE_ROW.name, spark.JOB]
    [drop] = [
        Measurement.from_json(it)
        for it in facts["lake"]["measurements"]
        if (it["contest"], it["name"]) == (lake.WHOLE_KEYS.name, DROP_DUPLICATES)
    ]
    found = {
        "scan": _core_ns(whole, "scan", "rows"),
        "scan₁": _core_ns(single, "scan", "rows"),
        "span": _core_ns(whole, "judge", "spans"),
        "span₁": _core_ns(single, "judge", "spans"),
        "write": _core_ns(whole, "write", "rows"),
        "clean": _core_ns(clean, "write", "rows"),
        "drop": drop.median * spark.THREADS / drop.rows * 1e9,
        "bytes": whole["bytes"] / whole["rows"],
        **_state_figures(facts["costs"]["incremental"]),
        **_driver_figures(facts["costs"]["driver"]),
    }
    return found | _example_figures(found, Example())


def _core_ns(job: Facts, step: str, of: str) -> float:
    return job["seconds"][step] * spark.THREADS / job[of] * 1e9


def _state_figures(incremental: Facts) -> dict[str, float]:
    [everywhere] = [it for it in incremental["runs"] if it["share"] == 1 and it["engine"] == "local"]
    empty, full = (_step(everywhere[name], "judge") * spark.THREADS for name in ("empty", "full"))
    return {
        "shard": empty / everywhere["empty"][-1]["shards"] * 1e3,
        "entry": (full - empty) / incremental["entries"] * 1e9,
        "disk": incremental["state_bytes"] / incremental["entries"],
        "memory": incremental["memory_bytes_an_entry"],
    }


def _driver_figures(driver: list[Facts]) -> dict[str, float]:
    all_, fewer_files, fewer_shards = driver
    of_files = _driver_seconds(all_) - _driver_seconds(fewer_files)
    # Among few files, where shards show at all; they may cost less than what rounds differ by.
    of_shards = max(_driver_seconds(fewer_files) - _driver_seconds(fewer_shards), 0)
    return {
        "fileᵈ": of_files / (all_["files"] - fewer_files["files"]) * 1e6,
        "shardᵈ": of_shards / (fewer_files["shards"] - fewer_shards["shards"]) * 1e6,
    }


def _example_figures(it: dict[str, float], of: Example) -> dict[str, float]:
    runs = of.rows / of.run
    scan, write = of.rows * it["scan"] / 1e9, of.rows * it["write"] / 1e9
    judge = (runs * it["span"] + of.entries * it["entry"]) / 1e9 + of.shards * it["shard"] / 1e3
    driver = (of.files * it["fileᵈ"] + of.shards * it["shardᵈ"]) / 1e6
    in_tasks = scan + judge + write
    total = in_tasks / of.cores + driver
    return {
        "T₁": scan / of.cores,
        "T₂": judge / of.cores,
        "T₃": write / of.cores,
        "T₄": driver,
        "T": total,
        "rate": of.rows / total / 1e6,
        "T′": of.rows * it["drop"] / 1e9 / of.cores,
        "storage": 2 * of.rows * it["bytes"] / (write / of.cores) / 1e9,
        "exchange": runs * RUN_BYTES / 1e9,
        "state": of.entries * it["disk"] / 1e9,
        "one shard": of.entries / of.shards * it["memory"] / 1e6,
        "cores": in_tasks / driver,
    }


# Of the facts


def _shapes(results: Results) -> Iterator[lake.Shape]:
    return (shape for shape in lake.SHAPES if shape.name in results.contests)


def _total(runs: list[Facts]) -> float:
    return median(it["total"] for it in runs)


def _step(runs: list[Facts], step: str) -> float:
    return median(it["seconds"][step] for it in runs)


def _driver_seconds(it: Facts) -> float:
    return median(one["driver"] for one in it["rounds"])
