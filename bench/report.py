"""Results as a table for the terminal and for Markdown, with the targets beside the figures, and as a chart."""

from __future__ import annotations

import json
import math
import platform
import sys
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
    lake,
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
from bench.markdown import emphasized, table
from bench.measure import Measurement, Role, Target, describe_revision, machine, revision

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
APPLY, CO_LOCATED = "fencepost apply", spark.CO_LOCATED.name
DEFAULTS = (spark.SYNCED,)
"""Contestants with default settings, where the first of ours has others."""
WITHOUT_OUTPUT = (lake.AUDIT, lake.LINKED)
"""They write no rows: the limit of those that do is not theirs."""
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
COLOURS = {"ours": "#c2410c", "peer": "#64748b", "limit": "#94a3b8"}
WHISKER, GRID = "#0f172a", "#e2e8f0"


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

    def reference(self, contest: str) -> Measurement | None:
        """The fastest contestant that does not deduplicate, if there is one."""
        found = [it for it in self.contests[contest].values() if it.role == "limit"]
        return min(found, key=lambda it: it.median, default=None)

    def faster_than(self, reference: Measurement) -> Measurement | None:
        """The fastest contestant that does the work in less time: then the reference is not a limit."""
        found = [
            it
            for it in self.contests[reference.contest].values()
            if it.role != "limit" and it.name not in WITHOUT_OUTPUT and it.median < reference.median
        ]
        return min(found, key=lambda it: it.median, default=None)

    def headline(self, contest: str) -> Measurement | None:
        """Ours with default settings, if we take part."""
        ours = [it for it in self.contests[contest].values() if it.role == "ours"]
        return next((it for it in ours if it.name in DEFAULTS), ours[0] if ours else None)

    @property
    def rounds(self) -> int:
        """The fewest that a contestant has."""
        return min((len(one.seconds) for contest in self.contests.values() for one in contest.values()), default=0)

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
            yield self.ratio_target(PARQUET, spark.SYNCED, 3)
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
        "revision": revision(),
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
        f"{describe_revision(facts.get('revision'))}, {facts['date']}, `--{facts['mode']}`, {machine['cores']} cores "
        f"({machine['architecture']}), {machine['memory_gb']} GB. Medians of {results.rounds} rounds or more of one "
        "run, in each of which every contestant takes its turn; every answer checked.",
        ", ".join(f"{name} {number}" for name, number in facts["versions"].items()) + ".",
    ]
    if chart:
        parts.append(f"![rows a second by contestant]({chart})")
    parts += _glance(results)
    targets = [(it.what, it.wanted, it.found, "met" if it.is_met else "**missed**") for it in results.targets()]
    if targets:
        parts += ["## Figures to reach", table(("what", "target", "found", ""), targets, "lllc")]
    if "shapes" in facts:
        parts += shapes.sections(results)
    parts += lake_report.sections(results)
    if "stores" in facts:
        parts += stores.sections(facts["stores"])
    for contest, measurements in results.contests.items():
        parts += [f"## {contest}", *_contest_table(results, contest, list(measurements.values()))]
    if "doors" in facts:
        about = "Five rounds. The slowest row of those with 100,000 rows or more is in bold."
        parts += ["## Every policy, shape and type of input (pytest-benchmark)", about, _doors_table(facts["doors"])]
    return "\n\n".join(parts) + "\n"


def _glance(results: Results) -> Iterator[str]:
    """Ours with default settings against the fastest of the others, by contest; on a page without others against the
    fastest that does not deduplicate."""
    if "shapes" in results.facts:  # which have a table of their own
        return
    for role, who in (("peer", "the fastest of the others"), ("limit", "the fastest that does not deduplicate")):
        found = []
        for contest, its in results.contests.items():
            ours = results.headline(contest)
            other = min((it for it in its.values() if it.role == role), key=lambda it: it.median, default=None)
            if ours and other:
                found.append((contest, ours, other, other.median / ours.median))
        if found:
            worst = min(times for *_, times in found)
            rows = [
                emphasized(
                    (contest, ours.name, _digits(ours.median), other.name, _digits(other.median), f"{times:.2f}"),
                    times == worst,
                )
                for contest, ours, other, times in found
            ]
            yield f"## Against {who}"
            yield "fencepost with default settings. *Times as fast*: below 1, the other is faster. Worst row in bold."
            yield table(("contest", "fencepost", "s", "other", "s", "times as fast"), rows, "llrlrr")
            return


WHO: dict[Role, str] = {"ours": "fencepost", "peer": "other", "limit": "no deduplication"}


def _contest_table(results: Results, contest: str, measurements: Sequence[Measurement]) -> Iterator[str]:
    base = results.headline(contest) or measurements[0]
    reference = results.reference(contest)
    faster = results.faster_than(reference) if reference else None
    limit = None if faster else reference
    about = f"{base.rows:,} rows, {len(base.seconds)} rounds. *Times*: the time that {base.name} takes is 1."
    if limit:
        about += f" *Of the limit*: {limit.name} is 100 %."
    elif reference and faster:
        about += f" {reference.name} is not a limit: {faster.name} is faster."
    yield about
    head = ("contestant", "by", "threads", "s", "min–max", "M rows/s", "times", "answer")
    rows = [
        (
            it.name,
            WHO[it.role],
            str(it.threads),
            _digits(it.median),
            f"{_digits(min(it.seconds))}–{_digits(max(it.seconds))}",
            _rate(it.rows_per_second / 1e6),
            f"{it.median / base.median:.2f}",
            ("all rows" if it.role == "limit" else "right") if it.is_right else f"**wrong: {it.answer}**",
            *([_share(limit.median / it.median) if it.name not in WITHOUT_OUTPUT else ""] if limit else []),
        )
        for it in sorted(measurements, key=lambda it: it.median)
    ]
    yield table((*head, "of the limit") if limit else head, rows, "llrrrrrl" + ("r" if limit else ""))


def _doors_table(doors: Sequence[dict[str, Any]]) -> str:
    each_ns = [it["median"] / it["rows"] * 1e9 for it in doors]
    worst = max((ns for it, ns in zip(doors, each_ns, strict=True) if it["rows"] >= 100_000), default=0)
    rows = [
        emphasized((it["name"], f"{it['rows']:,}", f"{it['median'] * 1e3:,.2f}", f"{ns:,.2f}"), ns == worst)
        for it, ns in zip(doors, each_ns, strict=True)
    ]
    return table(("what", "rows", "ms", "ns a row"), rows, "lrrr")


def _rate(millions: float) -> str:
    """Three digits, without an exponent."""
    return f"{millions:,.0f}" if millions >= 100 else f"{millions:.{max(0, 2 - math.floor(math.log10(millions)))}f}"


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
    """Dots of rows a second, a panel per contest, all on one logarithmic axis, with whiskers from the slowest round to
    the fastest. No bars: on a logarithmic axis their length says nothing."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fencepost"  # equal figures, equal bytes
    matplotlib.rcParams["font.size"] = 9
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

    contests = {name: sorted(its.values(), key=lambda it: it.rows_per_second) for name, its in results.contests.items()}
    figure, panels = pyplot.subplots(
        len(contests),
        figsize=(9, 0.9 + 0.75 * len(contests) + 0.24 * sum(map(len, contests.values()))),
        height_ratios=[len(its) + 1 for its in contests.values()],
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, (name, its) in zip(panels[:, 0], contests.items(), strict=True):
        for place, it in enumerate(its):
            rate, slowest, fastest = (it.rows / s / 1e6 for s in (it.median, max(it.seconds), min(it.seconds)))
            error = [[rate - slowest], [fastest - rate]]
            panel.errorbar(rate, place, xerr=error, fmt="o", color=COLOURS[it.role], ecolor=WHISKER, elinewidth=0.8)
            panel.annotate(_rate(rate), (fastest, place), (7, 0), textcoords="offset points", va="center")
        panel.set_yticks(range(len(its)), [it.name + ("" if it.is_right else " (wrong answer)") for it in its])
        panel.set_ylim(-0.6, len(its) - 0.4)
        panel.set_title(f"{name} ({its[0].rows:,} rows)", loc="left", fontweight="bold", wrap=True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", color=GRID)
        panel.set_axisbelow(True)
        panel.tick_params(labelbottom=True)
    everyone = [it for its in contests.values() for it in its]
    least, most = (limit(it.rows / end(it.seconds) / 1e6 for it in everyone) for limit, end in ((min, max), (max, min)))
    low = 10 ** math.floor(math.log10(least))
    axis = panels[-1, 0]
    axis.set_xscale("log")
    axis.set_xlim(low * 0.9, max(low * 10.5, most * 1.2 * (most / low) ** 0.13))  # room for the last label
    for panel in panels[:, 0]:
        panel.xaxis.set_major_locator(LogLocator(10, numticks=12))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(
        "million rows a second, logarithmic, the same axis in all panels\nlines: slowest and fastest round", loc="right"
    )
    figure.legend(
        handles=[Line2D([], [], marker="o", linestyle="", color=COLOURS[role], label=WHO[role]) for role in WHO],
        loc="outside upper right",
        ncols=3,
        frameon=False,
    )
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _fastest(measurements: Iterable[Measurement], role: Role) -> Measurement:
    return min((it for it in measurements if it.role == role), key=lambda it: it.median)


if __name__ == "__main__":  # writes the pages and pictures of measured results again
    for given in map(Path, sys.argv[1:]):
        write(Results(json.loads(given.read_text())), given.parent, given.stem)
