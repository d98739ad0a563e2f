"""The state table by size: what a row and an entry cost from 10 k to 100 M entries, with the limits and the targets.

    python bench/curve.py                                       every shape, some at 100 M entries: up to 8 GB
    python bench/curve.py --entries 10k,1M --shapes kafka       some of them

Runs `bench/rust/src/bin/curve` for each shape and size in a process of its own, so that none finds another's memory.
At 100 M entries only the parts that the figures to reach need are run. `bench/rust/src/bin/shapes` adds rows with gaps
and late rows, and a run from Python compares spans of 20 with pyarrow's sum of the columns. Writes `curve.json`, `.md`,
`.svg` and `.png`. Exits with 1 if a process failed: answers are checked in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # instead of this folder, whose modules would come before installed ones of the same name

from bench import compare, peers, workload  # noqa: E402
from bench.markdown import emphasized, table  # noqa: E402
from bench.measure import Measurement, describe_revision, machine, revision, tell  # noqa: E402

SHAPES = {
    "kafka": "`kafka`, 1000 partitions a producer",
    "any_order": "`any_order`, 1000 partitions a producer",
    "wide": "`kafka_offsets`, 64-bit sequences, 1000 partitions a topic",
    "strings": "`any_order`, producers are strings of 19 bytes, 1000 partitions each",
    "timestamps": '`kafka` with `keep=("timestamp",)`, 1000 partitions a producer',
    "lone_kafka": "`kafka`, one partition a producer",
    "lone_any": "`any_order`, one partition a producer",
}
SIZES, LARGE = "10k,1M,10M", "100M"
LARGE_SHAPES, LARGE_PARTS = ("any_order", "lone_any"), "build,random,snapshot,declared"
COLOURS = dict(zip(SHAPES, ("#c2410c", "#1d4ed8", "#7c3aed", "#0f766e", "#be185d", "#f59e0b", "#60a5fa"), strict=True))
PORTABLE_ENTRIES = 1_000_000

BYTES_MAX = {"kafka": 12, "any_order": 16, "wide": 26, "strings": 16, "lone_kafka": 32, "lone_any": 32}
BYTES_FROM = 10_000_000
"""Of tables with so many entries or more."""
BARE_TIMES_MAX = {1_000_000: 4, 10_000_000: 2.5, 100_000_000: 2.2}
"""A row of a random key against a bare read, by entries."""
SCAN_TIMES_MAX = 7
"""The same against reading the columns, of 10,000 entries, which are in the cache."""
BUILD_TIMES_MAX = 3
"""An entry built in random order against a row of a random key, of 100 M entries."""
SAVE_MIN, LOAD_MIN = 25, {"lone_any": 20}
"""Millions of entries a second; of loads where less is asked for."""
DISPLACED_TIMES_MAX, DISPLACED_TIMES_GOAL, GAPS_TIMES_MAX = 8, 6, 3
PYTHON_RUNS_MIN = 0.5
"""Of pyarrow's sum of the four columns."""
ORDERS = {
    "ordered": "in order, a row of a random key",
    "gaps": "every row opens a gap of up to 10",
    "wide_gaps": "every row opens a gap of up to 999",
    "near": "one row in ten late",
    "near_gaps": "one row in ten late, gaps of up to 10",
    "shuffled": "random order",
}
"""Of `bench/rust/src/bin/shapes`."""
ORDER_POLICIES = ("any_order", "in_order")

Line = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure to reach, and what was found: nothing where it was not measured."""

    what: str
    wanted: str
    found: str | None
    is_met: bool = False
    shortfall: float = 0.0
    """How many times as much as wanted was found, or as little; below 1 if the target is met."""

    @property
    def state(self) -> str:
        return "not measured" if self.found is None else "met" if self.is_met else "**missed**"


class Curve:
    """What was measured."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.lines: dict[tuple[str, str, int, str], Line] = {
            (line["part"], line["shape"], line["entries"], line["path"]): line for line in facts["lines"]
        }

    def find(self, part: str, shape: str, entries: int, path: str = "fast") -> Line | None:
        return self.lines.get((part, shape, entries, path))

    def sizes(self, shape: str) -> list[int]:
        """Of the shapes' tables, smallest first."""
        return sorted({entries for part, of, entries, path in self.lines if (of, path) == (shape, "fast")})

    def shapes(self) -> list[str]:
        return [shape for shape in SHAPES if self.sizes(shape)]

    def bytes_an_entry(self, shape: str, entries: int) -> float | None:
        """The dictionary of names left out."""
        line = self.find("build", shape, entries)
        return (line["memory_bytes"] - line["dictionary_bytes"]) / entries if line else None

    def targets(self) -> Iterator[Target]:
        for shape, most in BYTES_MAX.items():
            entries = max(self.sizes(shape), default=0)
            found = self.bytes_an_entry(shape, entries) if entries >= BYTES_FROM else None
            yield self._at_most(f"{shape}, {max(entries, BYTES_FROM):,} entries: bytes an entry", most, found)
        for shape in ("kafka", "any_order"):
            yield self._scan_target(shape)
            for entries, most in BARE_TIMES_MAX.items():
                if entries <= BYTES_FROM or shape in LARGE_SHAPES:
                    found = self._against_bare_read(shape, entries)
                    yield self._ratio(f"{shape}, {entries:,} entries: a random row against a bare read", most, found)
            runs = self.find("runs", shape, 1_000_000)
            found = runs and median(runs["ns_a_row"]) / median(runs["ns_a_row_read"])
            yield self._ratio(f"{shape}, 1,000,000 entries: spans of 20 against reading the columns", 1.5, found)
            yield self._portable_target(shape)
        for shape in LARGE_SHAPES:
            yield from self._growth_targets(shape)
        for shape in LARGE_SHAPES:
            yield from self._snapshot_targets(shape)
        yield self._thread_target()
        yield from self._disorder_targets()
        for policy in ORDER_POLICIES:
            yield from self._gap_targets(policy)
        yield self._python_target()
        sweep = self.find("evict", "timestamps", 10_000_000)
        found = sweep and median(sweep["seconds"])
        yield self._at_most("timestamps, 10 M entries: seconds of a sweep that drops half", 0.2, found)

    def _scan_target(self, shape: str) -> Target:
        random, runs = (self.find(part, shape, 10_000) for part in ("random", "runs"))
        found = median(random["ns_a_row"]) / median(runs["ns_a_row_read"]) if random and runs else None
        what = f"{shape}, 10,000 entries: a random row against reading the columns"
        return self._ratio(what, SCAN_TIMES_MAX, found)

    def _growth_targets(self, shape: str) -> Iterator[Target]:
        build, random = (self.find(part, shape, 100_000_000) for part in ("build", "random"))
        what = f"{shape}, 100 M entries from nothing"
        steady = median(build["ns_an_entry"]) / median(random["ns_a_row"]) if build and random else None
        yield self._ratio(f"{what}, random order: an entry against a random row", BUILD_TIMES_MAX, steady)
        if random and (declared := self.find("declared", shape, 100_000_000)):
            steady = median(declared["ns_an_entry"]) / median(random["ns_a_row"])
            yield self._ratio(f"{what}, partitions declared: the same", BUILD_TIMES_MAX, steady)
        peak = build and build["peak_growth_bytes"] / build["resident_growth_bytes"]
        yield self._ratio(f"{what}: peak of resident bytes against the end", 1.35, peak)
        stall = build and build["longest_call_ns"] / build["median_call_ns"]
        yield self._ratio(f"{what}: the longest call of 64 k rows against the median", 10, stall)
        exact = build and abs(build["memory_bytes"] / build["resident_growth_bytes"] - 1) * 100
        yield self._at_most(f"{what}: % between memory_bytes and resident growth", 5, exact)

    def _snapshot_targets(self, shape: str) -> Iterator[Target]:
        line = self.find("snapshot", shape, 100_000_000)
        for verb, least in (("save", SAVE_MIN), ("load", LOAD_MIN.get(shape, SAVE_MIN))):
            what = f"{shape}, 100 M entries: M entries/s of a snapshot's {verb}"
            yield self._at_least(what, least, line and 100 / median(line[f"{verb}_seconds"]))
            extra = line and line[f"{verb}_extra_bytes"] / line["memory_bytes"] * 100
            yield self._at_most(f"{shape}, 100 M entries: % of extra memory for the {verb}", 5, extra)
        on_disk = line and line["file_bytes"] / 100_000_000
        yield self._at_most(f"{shape}, 100 M entries: bytes an entry on disk", 10, on_disk)

    def _portable_target(self, shape: str) -> Target:
        ratios = []
        for part in ("random", "runs"):
            fast, portable = (self.find(part, shape, PORTABLE_ENTRIES, path) for path in ("fast", "portable"))
            if fast and portable:
                ratios.append(median(portable["ns_a_row"]) / median(fast["ns_a_row"]))
        found = max(ratios) if len(ratios) == 2 else None
        return self._ratio(f"{shape}, {PORTABLE_ENTRIES:,} entries: the portable path against the fast one", 2, found)

    def _thread_target(self) -> Target:
        line = self.find("threads", "kafka", 10_000_000)
        found = line and median(line["seconds_by_one"]) / median(line["seconds_by_two"])
        return self._at_least("kafka, eight tables of 10 M entries in all: two threads against one", 1.6, found, " ×")

    def _disorder_targets(self) -> Iterator[Target]:
        line = self.find("disorder", "any_order", 1_000_000)
        displaced = f"one row in ten displaced (goal {DISPLACED_TIMES_GOAL} ×)"
        for name, what, times in (("any_order", "ordered rows", 1.3), ("displaced", displaced, DISPLACED_TIMES_MAX)):
            found = line and median(line[name]) / median(line["in_order"])
            yield self._ratio(f"any_order against in_order, 1,000,000 entries: {what}", times, found)

    def _gap_targets(self, policy: str) -> Iterator[Target]:
        ordered, gaps = (self.order(policy, shape) for shape in ("ordered", "gaps"))
        base = median(ordered["first"]) if ordered else 0  # 0 also where few rows take less than the clock's step
        for field, what in (
            ("first", "a row that opens a gap"),
            ("again", "a repeat between gaps"),
            ("list", "the list of a row's missing range"),
        ):
            found = median(gaps[field]) / base if base and gaps else None
            yield self._ratio(f"{policy}: {what}, against an ordered row of a random key", GAPS_TIMES_MAX, found)

    def _python_target(self) -> Target:
        its = {it.name: it for it in map(Measurement.from_json, self.facts.get("python_runs", []))}
        total = its.get(f"{peers.LIMIT}, pyarrow")
        found = total.median / its["fencepost apply"].median if total else None
        return self._at_least("spans of 20 from Python: of pyarrow's sum of the columns", PYTHON_RUNS_MIN, found)

    def order(self, policy: str, shape: str) -> Line | None:
        found = [it for it in self.facts.get("orders", []) if (it["policy"], it["shape"]) == (policy, shape)]
        return found[0] if found else None

    def _against_bare_read(self, shape: str, entries: int) -> float | None:
        line = self.find("random", shape, entries)
        return median(line["ns_a_row"]) / median(line["ns_a_bare_read"]) if line else None

    @staticmethod
    def _at_most(what: str, limit: float, found: float | None, unit: str = "") -> Target:
        is_met = found is not None and found <= limit
        return Target(what, f"≤ {limit:g}{unit}", _figure(found), is_met, (found or 0) / limit)

    @staticmethod
    def _at_least(what: str, limit: float, found: float | None, unit: str = "") -> Target:
        is_met = found is not None and found >= limit
        return Target(what, f"≥ {limit:g}{unit}", _figure(found), is_met, limit / found if found else 0)

    @classmethod
    def _ratio(cls, what: str, limit: float, found: float | None) -> Target:
        return cls._at_most(what, limit, found, " ×")

    def differing(self) -> list[str]:
        """Parts whose verdicts the portable path gives otherwise."""
        return [
            f"{part} of {shape}, {entries:,} entries"
            for (part, shape, entries, path), line in self.lines.items()
            if path == "portable"
            and (fast := self.find(part, shape, entries)) is not None
            and fast.get("checksum") != line.get("checksum")
        ]


def _figure(found: float | None) -> str | None:
    return None if found is None else f"{found:.3g}"


# Measuring


def measure(
    entries: Sequence[str],
    shapes: Sequence[str],
    rounds: int,
    rows: int,
    profile: str = "release",
    portable_at: str = "1M",
    large: Sequence[str] = (),
) -> dict[str, Any]:
    """Every shape at every size, some at the `large` ones, the portable path at one size, orders of rows, and runs from
    Python. A process that fails is recorded."""
    facts: dict[str, Any] = {
        "format": 1,
        "date": date.today().isoformat(),
        "revision": revision(),
        "machine": machine(),
        "rounds": rounds,
        "rows": rows,
        "lines": [],
        "failures": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rounds", str(rounds), "--rows", str(rows), "--folder", folder]
        for shape in shapes:
            for size in entries:
                facts["lines"] += _run(facts, [], ["--shape", shape, "--entries", size, *options], profile)
                if shape in ("kafka", "any_order") and size == portable_at:
                    portable = ["--shape", shape, "--entries", size, "--parts", "random,runs", *options]
                    facts["lines"] += _run(facts, ["--features", "portable"], portable, profile)
            for size in large if shape in LARGE_SHAPES else ():
                parts = ["--shape", shape, "--entries", size, "--parts", LARGE_PARTS, *options]
                facts["lines"] += _run(facts, [], parts, profile)
    order = ["--shape", ",".join(ORDERS), "--policy", ",".join(ORDER_POLICIES), "--rounds", str(rounds)]
    order += ["--rows", str(rows), "--json", "true"]
    facts["orders"] = _run(facts, [], order, profile, "shapes")
    facts["python_runs"] = compare.compare(rows * 2, rounds, [workload.RUNS], ())["measurements"]
    return facts


def _run(
    facts: dict[str, Any], features: Sequence[str], options: Sequence[str], profile: str, program: str = "curve"
) -> list[Line]:
    """The lines that a program prints."""
    cargo = ["cargo", "run", "--quiet", "--locked", "--package", "fencepost-bench", "--bin", program]
    command = [*cargo, "--profile", profile, *features, "--", *options]
    tell(f"{program} {' '.join([*features, *options[:4]])}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        facts["failures"].append({"options": " ".join(options[:4]), "problem": last})
        tell(f"FAILED: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


# As text


def to_markdown(curve: Curve, chart: str | None = None) -> str:
    facts = curve.facts
    parts = [
        "# The state table by size",
        f"{describe_revision(facts.get('revision'))}, {facts['date']}, {facts['machine']['cores']} cores "
        f"({facts['machine']['architecture']}), {facts['machine']['memory_gb']} GB. Medians of "
        f"{facts['rounds']} rounds of {facts['rows']:,} rows in calls of 64 k; every answer checked against an exact "
        "count.",
    ]
    if chart:
        parts.append(f"![nanoseconds a row and bytes an entry by size]({chart})")
    parts += [f"**Failed:** {it['options']}: {it['problem']}" for it in facts["failures"]]
    parts += [f"**The portable path differs:** {it}" for it in curve.differing()]
    targets = list(curve.targets())
    worst = max(it.shortfall for it in targets)
    rows = []
    for it in targets:
        is_worst = it.found is not None and it.shortfall == worst
        rows.append((*emphasized((it.what, it.wanted, it.found or ""), is_worst), it.state))
    about = "The row that is farthest from its target is in bold."
    parts += ["## Figures to reach", about, table(("what", "target", "found", ""), rows, "lrrl")]
    for shape in curve.shapes():
        parts += [f"## {SHAPES[shape]}", _shape_table(curve, shape)]
    if snapshots := list(_snapshot_rows(curve)):
        head = ("table", "save, M entries/s", "sync, s", "load, M entries/s", "bytes an entry", "extra: save", "load")
        parts += ["## Snapshots to a file and back", table(head, snapshots, "lrrrrrr")]
    if orders := list(_order_rows(curve)):
        about = (
            f"Nanoseconds of the processor for a row, {curve.facts['orders'][0]['keys']:,} keys: a row that comes "
            "first, the same row again, and the list of what is missing. *Times*: a first row against one in order."
        )
        head = ("policy", "rows", "first", "again", "list", "times")
        parts += ["## Rows by order", about, table(head, orders, "llrrrr")]
    if measured := [Measurement.from_json(it) for it in facts.get("python_runs", [])]:
        rows = [(it.name, f"{it.median / it.rows * 1e9:.2f}") for it in sorted(measured, key=lambda it: it.median)]
        about = f"{measured[0].rows:,} rows of 100,000 keys, {len(measured[0].seconds)} rounds."
        parts += ["## Runs of 20 from Python", about, table(("contestant", "ns a row"), rows, "lr")]
    return "\n\n".join(parts) + "\n"


def _shape_table(curve: Curve, shape: str) -> str:
    head = (
        "entries",
        "built, ns an entry",
        "random keys, ns a row",
        "a bare read, ns",
        "spans of 20, ns a row",
        "reading the columns, ns a row",
        "two threads, times",
        "bytes an entry",
        "dictionary",
        "checksum",
    )
    return table(head, [_shape_row(curve, shape, entries) for entries in curve.sizes(shape)], "rrrrrrrrrl")


def _shape_row(curve: Curve, shape: str, entries: int) -> tuple[str, ...]:
    build, random, runs, threads = (curve.find(part, shape, entries) for part in ("build", "random", "runs", "threads"))
    speedup = threads and median(threads["seconds_by_one"]) / median(threads["seconds_by_two"])
    return (
        f"{entries:,}",
        _spread(build, "ns_an_entry"),
        _spread(random, "ns_a_row"),
        _spread(random, "ns_a_bare_read"),
        _spread(runs, "ns_a_row"),
        _spread(runs, "ns_a_row_read"),
        f"{speedup:.2f}" if speedup else "",
        f"{curve.bytes_an_entry(shape, entries):.1f}" if build else "",
        f"{build['dictionary_bytes'] / entries:.2f}" if build and build["dictionary_bytes"] else "",
        str(random["checksum"]) if random else "",
    )


def _spread(line: Line | None, field: str) -> str:
    """The median, and the fastest and slowest round."""
    if line is None:
        return ""
    values = line[field]
    return f"{median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def _snapshot_rows(curve: Curve) -> Iterator[tuple[str, ...]]:
    for shape in curve.shapes():
        for entries in curve.sizes(shape):
            if line := curve.find("snapshot", shape, entries):
                yield (
                    f"{shape}, {entries:,}",
                    f"{entries / median(line['save_seconds']) / 1e6:.1f}",
                    f"{median(line['sync_seconds']):.3f}",
                    f"{entries / median(line['load_seconds']) / 1e6:.1f}",
                    f"{line['file_bytes'] / entries:.2f}",
                    f"{line['save_extra_bytes'] / line['memory_bytes']:.0%}",
                    f"{line['load_extra_bytes'] / line['memory_bytes']:.0%}",
                )


def _order_rows(curve: Curve) -> Iterator[tuple[str, ...]]:
    """The slowest of each policy in bold."""
    for policy in ORDER_POLICIES:
        lines = {shape: line for shape in ORDERS if (line := curve.order(policy, shape))}
        slowest = max((median(line["first"]) for line in lines.values()), default=0)
        base = median(lines["ordered"]["first"]) if lines else 0
        for shape, line in lines.items():
            first, again, listed = (median(line[field]) for field in ("first", "again", "list"))
            times = f"{first / base:.1f}" if base else ""
            cells = (policy, ORDERS[shape], f"{first:.1f}", f"{again:.1f}", f"{listed:.1f}", times)
            yield emphasized(cells, first == slowest)


# As a picture


def draw(curve: Curve, paths: Sequence[Path]) -> None:
    """Nanoseconds a row of random keys with the bare read dashed, and bytes an entry, over the number of entries."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fencepost"  # equal figures, equal bytes
    matplotlib.rcParams["font.size"] = 9
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, (time, space) = pyplot.subplots(2, figsize=(9, 8), sharex=True, layout="constrained")
    for shape in curve.shapes():
        lines = [line for entries in curve.sizes(shape) if (line := curve.find("random", shape, entries))]
        sizes = [line["entries"] for line in lines]
        time.plot(sizes, [median(line["ns_a_row"]) for line in lines], "o-", color=COLOURS[shape], label=shape)
        time.plot(sizes, [median(line["ns_a_bare_read"]) for line in lines], "--", color=COLOURS[shape], linewidth=0.8)
        built = [entries for entries in curve.sizes(shape) if curve.find("build", shape, entries)]
        space.plot(built, [curve.bytes_an_entry(shape, entries) for entries in built], "o-", color=COLOURS[shape])
    limit = Line2D([], [], color="#64748b", linestyle="--", linewidth=0.8, label="a bare read of a line, same depth")
    handles = [*time.get_legend_handles_labels()[0], limit]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    time.set_title("random keys, nanoseconds a row", loc="left", fontweight="bold")
    space.set_title("bytes an entry, without a dictionary of names", loc="left", fontweight="bold")
    for panel in (time, space):
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e2e8f0")
    space.set_xlabel("entries, logarithmic")
    space.xaxis.set_major_formatter(lambda entries, _: f"{entries:,.0f}")
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def write(curve: Curve, folder: Path, name: str = "curve") -> None:
    """`<name>.json`, `.md`, `.svg` and `.png`."""
    folder.mkdir(exist_ok=True)
    curve.facts["targets"] = [{**vars(target), "state": target.state} for target in curve.targets()]
    (folder / f"{name}.json").write_text(json.dumps(curve.facts, indent=2) + "\n")
    (folder / f"{name}.md").write_text(to_markdown(curve, chart=f"{name}.svg"))
    draw(curve, [folder / f"{name}.svg", folder / f"{name}.png"])


def main() -> int:
    options = _options()
    entries, shapes, large = (
        list(filter(None, it.split(","))) for it in (options.entries, options.shapes, options.large)
    )
    peers.limit_threads()
    facts = measure(entries, shapes, options.rounds, options.rows, large=large)
    curve = Curve(facts)
    write(curve, options.results, options.name)
    print(to_markdown(curve))
    for differing in curve.differing():
        tell(f"WRONG: the portable path differs: {differing}")
    return int(bool(facts["failures"] or curve.differing()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", default=SIZES, help="sizes, such as 10k,1M")
    parser.add_argument("--large", default=LARGE, help=f"sizes at which only {', '.join(LARGE_SHAPES)} are run")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4_000_000, help="of a round")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where to write")
    parser.add_argument("--name", default="curve", help="of the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
