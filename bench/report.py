"""Results as a table for the terminal and for Markdown, with the targets beside the figures, and as a chart."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench import (
    delta,
    kafka,
    lake_report,
    partition_log,
    peers,
    producer,
    registry,
    shapes,
    spark,
    sql,
    stores,
    streams,
    workload,
)
from bench.markdown import table
from bench.measure import Measurement, Role, Target, machine

LIBRARIES = (
    "fencepost",
    "fencepost-spark",
    "polars",
    "duckdb",
    "datafusion",
    "pyarrow",
    "pandas",
    "numpy",
    "pyspark",
    "deltalake",
)
RUNS, RANDOM, NOOP, GAPS, PARQUET = workload.RUNS.name, workload.RANDOM.name, spark.NOOP, spark.GAPS, spark.PARQUET
APPLY, CO_LOCATED, JOB = "fencepost apply", spark.CO_LOCATED.name, spark.JOB
PARTS = (
    "memory",
    "shapes",
    "spark",
    "lake",
    "delta",
    "stores",
    "streams",
    "kafka",
    "partition_log",
    "registry",
    "producer",
    "sql",
)
COLOURS = {"ours": "#c2410c", "peer": "#64748b", "limit": "#cbd5e1"}


class Results:
    """What a run of the benchmark measured."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.contests: dict[str, dict[str, Measurement]] = {}
        for part in PARTS:
            for fields in facts.get(part, {}).get("measurements", []):
                one = Measurement.from_json(fields)
                self.contests.setdefault(one.contest, {})[one.name] = one

    @property
    def wrong(self) -> list[Measurement]:
        """Contestants whose answer was not the true one."""
        return [one for contest in self.contests.values() for one in contest.values() if not one.is_right]

    def limit(self, contest: str) -> Measurement | None:
        """The fastest of those that show how fast anything could be, if there are any."""
        found = [it for it in self.contests[contest].values() if it.role == "limit"]
        return min(found, key=lambda it: it.median, default=None)

    def targets(self) -> Iterator[Target]:
        """The figures to reach, as far as their contests were held."""
        if RUNS in self.contests:
            yield self._apply_target(RUNS, 400, of_limit=0.6)
            yield self._apply_target(RANDOM, 80)
            yield self._peer_target(RUNS, 10)
            yield self._peer_target(RANDOM, 2)
        if peers.BROKER.name in self.contests.get(RUNS, {}):
            yield self._broker_target(RUNS, 100)
            yield self._broker_target(RANDOM, 10)
        if NOOP in self.contests:
            yield self.ratio_target(NOOP, CO_LOCATED, 3)
            yield self.ratio_target(NOOP, spark.ROW_INPUT.name, 4)
            for contest in (NOOP, GAPS):
                yield self.ratio_target(contest, spark.FILES.name, 2.5)
                yield self.ratio_target(contest, spark.SHUFFLED.name, 1.1)
            yield self.ratio_target(PARQUET, CO_LOCATED, 2.5)
            yield self.ratio_target(PARQUET, JOB, 3)
        if delta.ALL_ROWS in self.contests:
            yield self.target_of(delta.ALL_ROWS, delta.VECTORS, delta.OVERWRITE, 30)
            yield self.target_of(delta.ALL_ROWS, delta.VECTORS, delta.DELETE, 30)
        if "stores" in self.facts:
            yield from stores.targets(self.contests, self.facts["stores"])
        if streams.STREAM in self.contests:
            yield self.target_of(streams.STREAM, streams.OURS, streams.ROCKSDB, 6)
            yield self.target_of(streams.STREAM, streams.OURS, streams.DEFAULT, 3)
            yield self._state_target(1)
        if kafka.HEADERS in self.contests:
            yield from self._kafka_targets()
        if registry.IDS in self.contests:
            rate, least = self.contests[registry.IDS][registry.OURS].rows_per_second, registry.CALLS_A_SECOND
            yield Target(f"{registry.IDS}: {registry.OURS}", f"≥ {least}/s", f"{rate:,.0f}/s", rate >= least)
        if producer.STAMPING in self.contests:
            yield self._rate_target(producer.STAMPING, producer.STAMP, 50)
        if sql.ALL in self.contests:
            yield from self._sql_targets()
        if partition_log.APPEND in self.contests:
            yield self._append_target(partition_log.MANY)
            yield self._append_target(partition_log.THREADS)
        yield from shapes.targets(self)
        yield from lake_report.targets(self)

    def target_of(self, contest: str, ours: str, peer: str, times: float) -> Target:
        """How many times as fast as one peer ours is."""
        return self._against(f"{contest}: {ours}", contest, ours, self.contests[contest][peer], times)

    def _kafka_targets(self) -> Iterator[Target]:
        for it in self.facts["kafka"]["judging"]:
            what = f"BrokerTable, {it['producers']:,} producers, {it['columns']}"
            millions = kafka.MILLIONS.get(it["producers"])
            if millions is not None:
                found = it["median_millions_a_second"]
                yield Target(what, f"≥ {millions} M batches/s", f"{found:.1f} M batches/s", found >= millions)
            if it["producers"] >= kafka.WEIGHED_FROM:
                most, bytes_of = kafka.BYTES_MAX[it["columns"]], it["bytes_an_entry"]
                yield Target(f"{what}: memory", f"≤ {most} bytes an entry", f"{bytes_of:.1f} bytes", bytes_of <= most)
        yield self._rate_target(kafka.HEADERS, kafka.SCAN, 20)
        yield self._rate_target(kafka.COPIED, kafka.SCAN, 20)
        yield self._rate_target(kafka.REPLAY, kafka.APPLY, 20)
        for contest in kafka.RECORDS.values():
            yield self._rate_target(contest, kafka.OURS, 4)
            yield self.target_of(contest, kafka.OURS, kafka.CLIENT, 8)

    def _sql_targets(self) -> Iterator[Target]:
        times = sql.times_of_the_loop(self.contests)
        what = f"{sql.ALL}: {sql.OURS} against {sql.LOOP}"
        yield Target(what, f"≥ {sql.LOOP_TIMES} ×", f"{times:.1f} ×", times >= sql.LOOP_TIMES)
        yield self.target_of(sql.ALL, sql.OURS, sql.BULK, sql.BULK_TIMES)
        ours, theirs = (self.facts["sql"]["storage_bytes"][name] for name in (sql.OURS, sql.BULK))
        found = f"{ours / theirs:.2%} ({ours / 1e6:,.2f} MB of {theirs / 1e6:,.1f})"
        wanted = f"≤ {sql.STORAGE_SHARE:.0%} of processed messages'"
        yield Target(f"{sql.ALL}: claims on disk", wanted, found, ours <= theirs * sql.STORAGE_SHARE)
        for size in sql.CALLS_AT_PAR:
            contest = sql.calls_of(size)
            for kind in (sql.BY_SEQUENCE, sql.BY_OFFSET, sql.BY_MESSAGE):
                best = min((sql.ARRAYS, sql.STAGED), key=lambda it: self.contests[contest][it].median)
                yield self.target_of(contest, kind, best, 1)

    def _append_target(self, ours: str) -> Target:
        contest = self.contests[partition_log.APPEND]
        rate = contest[ours].rows_per_second
        share = rate / _fastest(contest.values(), "limit").rows_per_second
        least, millions = partition_log.DISK_SHARE_MIN, partition_log.MILLIONS_MIN
        wanted = f"≥ {least:.0%} of the disk's bandwidth or ≥ {millions} M rows/s"
        is_met = share >= least or rate >= millions * 1e6
        return Target(ours, wanted, f"{_share(share)} of it, {rate / 1e6:.1f} M rows/s", is_met)

    def _rate_target(self, contest: str, ours: str, millions: int) -> Target:
        rate = self.contests[contest][ours].rows_per_second / 1e6
        return Target(f"{contest}: {ours}", f"≥ {millions} M/s", f"{rate:.1f} M/s", rate >= millions)

    def _state_target(self, percent: float) -> Target:
        """What a stream remembers its events by, beside what the peer with RocksDB does."""
        state_of = self.facts["streams"]["state_bytes"][streams.MANY]
        ours, newest = (state_of[streams.OURS][name] for name in ("bytes", "newest_version_bytes"))
        theirs = state_of[streams.ROCKSDB]["bytes"]
        share = ours / theirs
        found = f"{share:.2%} ({ours / 1e6:,.1f} MB, its newest version {newest / 1e6:,.1f}, of {theirs / 1e6:,.1f})"
        return Target(f"{streams.MANY}: state on disk", f"≤ {percent:g} % of RocksDB's", found, share <= percent / 100)

    def _apply_target(self, contest: str, millions: int, of_limit: float = 0.0) -> Target:
        rate = self.contests[contest][APPLY].rows_per_second
        share = rate / _fastest(self.contests[contest].values(), "limit").rows_per_second
        wanted = f"≥ {millions} M rows/s" + (f" or ≥ {of_limit:.0%} of the sum" if of_limit else "")
        is_met = rate >= millions * 1e6 or (of_limit > 0 and share >= of_limit)
        return Target(
            f"apply, one thread, {contest}", wanted, f"{rate / 1e6:,.0f} M rows/s, {_share(share)} of the sum", is_met
        )

    def _peer_target(self, contest: str, times: float) -> Target:
        peer = _fastest(self.contests[contest].values(), "peer")
        return self._against(f"apply against the fastest peer, {contest}", contest, APPLY, peer, times)

    def _broker_target(self, contest: str, times: float) -> Target:
        broker, ours = self.contests[contest][peers.BROKER.name], peers.OURS_BROKER.name
        return self._against(f"{ours} against a broker in Python, {contest}", contest, ours, broker, times)

    def ratio_target(self, contest: str, ours: str, times: float) -> Target:
        """How many times as fast as `dropDuplicates` ours is."""
        peer = self.contests[contest][spark.DROP_DUPLICATES.name]
        return self._against(f"{contest}: {ours} against {peer.name}", contest, ours, peer, times)

    def _against(self, what: str, contest: str, ours: str, peer: Measurement, times: float) -> Target:
        found = peer.median / self.contests[contest][ours].median
        return Target(what, f"≥ {times:g} ×", f"{found:.1f} × ({peer.name})", found >= times)


def collect(mode: str, **parts: Any) -> Results:
    """The results of a run: its parts, and what they were measured with. Nothing says on whose machine."""
    facts = {
        "format": 1,
        "date": date.today().isoformat(),
        "mode": mode,
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        **{name: part for name, part in parts.items() if part is not None},
    }
    results = Results(facts)
    facts["targets"] = [asdict(target) for target in results.targets()]
    return results


def write(results: Results, folder: Path, name: str) -> None:
    """`<name>.json`, `.md`, `.svg` and `.png`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results.facts, indent=2) + "\n")
    (folder / f"{name}.md").write_text(to_markdown(results, chart=f"{name}.svg"))
    draw(results, [folder / f"{name}.svg", folder / f"{name}.png"])


# As text


def to_markdown(results: Results, chart: str | None = None) -> str:
    """Everything, as tables that can be read unrendered too."""
    facts, machine = results.facts, results.facts["machine"]
    parts = [
        "# Benchmark results",
        f"{facts['date']}, `--{facts['mode']}`, {machine['cores']} cores ({machine['architecture']}), "
        f"{machine['memory_gb']} GB. Medians of alternated rounds of one run; every answer checked.",
        ", ".join(f"{name} {number}" for name, number in facts["versions"].items()) + ".",
    ]
    if chart:
        parts.append(f"![rows a second by contestant]({chart})")
    targets = [(it.what, it.wanted, it.found, "met" if it.is_met else "**missed**") for it in results.targets()]
    if targets:
        parts += ["## Figures to reach, stated for `--full`", table(("what", "target", "found", ""), targets, "lllc")]
    if "shapes" in facts:
        parts += shapes.sections(results)
    parts += lake_report.sections(results)
    if "stores" in facts:
        parts += stores.sections(facts["stores"])
    for contest, measurements in results.contests.items():
        parts += [f"## {contest}", *_contest_table(results, contest, list(measurements.values()))]
    if "doors" in facts:
        parts += ["## Every policy, shape and type of input (pytest-benchmark)", _doors_table(facts["doors"])]
    return "\n\n".join(parts) + "\n"


def _contest_table(results: Results, contest: str, measurements: Sequence[Measurement]) -> Iterator[str]:
    ours, limit = measurements[0], results.limit(contest)
    rounds = f"{ours.rows:,} rows, {len(ours.seconds)} rounds"
    about = f" *Of the limit*: {limit.name} is 100 %." if limit else ""
    yield f"{rounds}. *Times*: the time that {ours.name} takes is 1.{about}"
    yield table(
        ("contestant", "threads", "s", "min–max", "M rows/s", "times", "of the limit", "answer"),
        [
            (
                f"**{it.name}**" if it.role == "ours" else it.name,
                str(it.threads),
                _digits(it.median),
                f"{_digits(min(it.seconds))}–{_digits(max(it.seconds))}",
                f"{it.rows_per_second / 1e6:,.1f}",
                f"{it.median / ours.median:.2f}",
                _share(limit.median / it.median) if limit else "",
                ("all rows" if it.role == "limit" else "right") if it.is_right else f"**wrong: {it.answer}**",
            )
            for it in sorted(measurements, key=lambda it: it.median)
        ],
        "lrrrrrrl",
    )


def _doors_table(doors: Sequence[dict[str, Any]]) -> str:
    rows = [
        (it["name"], f"{it['rows']:,}", f"{it['median'] * 1e3:,.2f}", f"{it['median'] / it['rows'] * 1e9:,.2f}")
        for it in doors
    ]
    return table(("what", "rows", "ms", "ns a row"), rows, "lrrr")


def _digits(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.4f}"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def doors(path: Path) -> list[dict[str, Any]]:
    """What pytest-benchmark wrote, shortened."""
    benchmarks = json.loads(path.read_text())["benchmarks"]
    return [
        {
            "name": it["name"].removeprefix("test_"),
            "rows": it["extra_info"]["rows"],
            "median": median(it["stats"]["data"]),
            "seconds": it["stats"]["data"],
        }
        for it in benchmarks
    ]


# As a picture


def draw(results: Results, paths: Sequence[Path]) -> None:
    """Bars of rows a second on a logarithmic axis, a panel per contest, with whiskers from the slowest round to the
    fastest."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fencepost"  # equal figures, equal bytes
    matplotlib.rcParams["font.size"] = 9
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    contests = {name: sorted(its.values(), key=lambda it: it.rows_per_second) for name, its in results.contests.items()}
    figure, panels = pyplot.subplots(
        len(contests),
        figsize=(9, 0.9 * len(contests) + 0.27 * sum(map(len, contests.values()))),
        height_ratios=[len(its) + 1 for its in contests.values()],
        squeeze=False,
        layout="constrained",
    )
    for panel, (name, its) in zip(panels[:, 0], contests.items(), strict=True):
        rates = [it.rows_per_second / 1e6 for it in its]
        slowest = [rate - it.rows / max(it.seconds) / 1e6 for it, rate in zip(its, rates, strict=True)]
        quickest = [it.rows / min(it.seconds) / 1e6 - rate for it, rate in zip(its, rates, strict=True)]
        labels = [it.name + ("" if it.is_right else " (wrong answer)") for it in its]
        panel.barh(
            labels,
            rates,
            color=[COLOURS[it.role] for it in its],
            xerr=[slowest, quickest],
            error_kw={"elinewidth": 0.8, "ecolor": "#0f172a"},
        )
        for place, rate in enumerate(rates):
            end = rate + quickest[place]
            panel.text(end * 1.06, place, f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}", va="center")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlim(min(rates) / 3, max(rates) * 2.5)
        panel.set_title(f"{name} ({its[0].rows:,} rows)", loc="left", fontweight="bold")
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("million rows a second, logarithmic; whiskers: slowest and fastest round")
    names = {"ours": "fencepost", "peer": "peers", "limit": "limits: no deduplication"}
    figure.legend(
        handles=[Patch(color=COLOURS[role], label=label) for role, label in names.items()],
        loc="outside upper right",
        ncols=3,
        frameon=False,
    )
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _fastest(measurements: Iterable[Measurement], role: Role) -> Measurement:
    return min((it for it in measurements if it.role == role), key=lambda it: it.median)
