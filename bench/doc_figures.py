"""Writes the published figures into the pages of docs that repeat them: `python -m bench.doc_figures`.

Each page keeps its sentences; only the figures in them, and the tables, are replaced. What a page repeats is found by a
pattern that matches it before and after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import delta, lake_report, spark, stores, streams
from bench.curve import Curve
from bench.report import Results

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Passage:
    """A part of a page that repeats figures."""

    page: str
    pattern: str
    """Of what is replaced. Matches once."""
    write: Callable[[], str]


def passages() -> Iterator[Passage]:
    yield Passage("cluster.md", r"\| +\| what +\| +figure \|\n.*?\n(?=\n)", _cluster)
    yield Passage("dataframes.md", r"Measured with [^|]+\n\n\| \| no output.*?\n(?=\n)", _dataframes)
    yield Passage(
        "delta.md", r"A table of [^|]+ rows with a 90-byte payload.*?\| a MERGE that deletes [^\n]*\n", _delta
    )
    stream = r"[^\n]+ rows of [^|]+\(`bench/results/streams.md`\).*?A version of fencepost's state has [^\n]*?MB\."
    yield Passage("streams.md", stream, _streams)
    yield Passage("large-clusters.md", r"Measured on an S3 server .*?\| rewritten, one row group [^\n]*\n", _requests)
    yield Passage("large-clusters.md", r"On this server, a run took .*? s\)", _times_of_the_disk)
    yield Passage("state-table.md", r"plain read at 100 M entries took [\d.]+ ns", _plain_read)
    yield Passage("state-table.md", r"\| \| 10 k \| 1 M \| 100 M \|.*?\n(?=\n)", _state_table)
    yield Passage("producers-and-transactions.md", r"\| rows per transaction \|.*?\n(?=\n)", _transactions)
    yield Passage("transports.md", r"[\d.]+ times as long in the first [^|]+? in the last \d+", _landing)


def write() -> None:
    for passage in passages():
        path = ROOT / "docs" / passage.page
        text = path.read_text()
        [found] = re.findall(passage.pattern, text, re.DOTALL)
        path.write_text(text.replace(found, passage.write()))


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return facts


def _seconds(results: Results, contest: str, name: str) -> str:
    found = results.contests[contest][name].median
    return f"{found:.0f} s" if found >= 10 else f"{found:.1f} s" if found >= 1 else f"{found:.2f} s"


def _millions(rows: int) -> str:
    return f"{rows / 1e6:.0f} M" if rows >= 9.5e5 else f"{rows:,}"


def _cluster() -> str:
    return lake_report.cluster(_facts("lake")) + "\n"


def _dataframes() -> str:
    results = Results(_facts("spark"))
    rows = results.contests[spark.NOOP][spark.SCAN.name].rows

    def cells(name: str) -> str:
        contests = (spark.NOOP, spark.GAPS, spark.PARQUET)
        return " | ".join(_seconds(results, it, name) if name in results.contests[it] else "" for it in contests)

    lines = {
        "`dropDuplicates`": spark.DROP_DUPLICATES.name,
        "`deduplicate(df)` over files": spark.FILES.name,
        "`deduplicate(df)` of another frame": spark.SHUFFLED.name,
        "`deduplicate(df, co_located=True)`": spark.CO_LOCATED.name,
        "Spark only reads and writes the rows": spark.SCAN_AND_WRITE.name,
        "`DedupJob`, default settings": spark.SYNCED,
    }
    table = "\n".join(f"| {what} | {cells(name)} |" for what, name in lines.items())
    return (
        f"Measured with {rows / 1e6:.1f} M rows, each with a payload of 90 bytes (`bench/results/spark.md`):\n\n"
        f"| | no output | no output, gaps between all sequences | to Parquet |\n|---|---:|---:|---:|\n{table}\n"
    )


def _delta() -> str:
    results = Results(_facts("delta"))
    lines = {
        "in place, with deletion vectors": delta.VECTORS,
        "in place, without deletion vectors": delta.FILES,
        "`dropDuplicates` and an overwrite": delta.OVERWRITE,
        "a MERGE that deletes": delta.DELETE,
    }
    rows = results.contests[delta.ALL_ROWS][delta.VECTORS].rows
    table = "\n".join(f"| {what} | {_seconds(results, delta.ALL_ROWS, name)} |" for what, name in lines.items())
    return (
        f"A table of {_millions(rows)} rows with a 90-byte payload was deduplicated on two cores. "
        f"One row in twenty was a repeat\n(`bench/results/delta.md`):\n\n| | time |\n|---|---:|\n{table}\n"
    )


def _streams() -> str:
    facts = _facts("streams")
    results, weighed = Results(facts), facts["streams"]["state_bytes"][streams.MANY]
    lines = {
        "`foreach_batch`": streams.OURS,
        "`dropDuplicates`, Spark's default state store": streams.DEFAULT,
        "`dropDuplicates`, Spark's RocksDB state store": streams.ROCKSDB,
    }
    table = "\n".join(f"| {what} | {_seconds(results, streams.STREAM, name)} |" for what, name in lines.items())
    rows, events = results.contests[streams.STREAM][streams.OURS].rows, weighed[streams.ROCKSDB]["events"]
    producers = facts["streams"]["producers"]
    newest, left = weighed[streams.OURS]["newest_version_bytes"], weighed[streams.ROCKSDB]["bytes"]
    return (
        f"The measured query has {_millions(rows)} rows of {producers:,} producers with a 90-byte payload. It reads "
        f"files and writes files, in {facts['streams']['batches']} batches\n"
        "on two cores (`bench/results/streams.md`):\n\n"
        f"| | time |\n|---|---:|\n{table}\n\n"
        f"For {_millions(events)} events of {producers * streams.MANY_PRODUCERS:,} producers, RocksDB leaves "
        f"{left / 1e6:,.0f} MB on disk. A version of fencepost's state has {newest / 1e6:.2g} MB."
    )


def _requests() -> str:
    facts = _facts("stores")
    results = Results(facts)
    weighed = {it["contest"]: it for it in facts["stores"]["costs"] if "requests" in it}
    rows = results.contests[stores.COPIED.name][stores.STORE].rows
    lines = []
    for what, shape in (("clean", stores.COPIED), ("rewritten", stores.REWRITTEN)):
        for groups, suffix in (("four row groups", ""), ("one row group", ", a row group a file")):
            it = weighed[shape.name + suffix]
            gets, puts = (it["requests"][kind] / it["source_bytes"] * 1e9 for kind in ("GET", "PUT"))
            name = groups if rows > 9e6 or suffix else "several row groups"
            lines.append(f"| {what}, {name} | {gets:.0f} | {puts:.0f} |")
    each_mb = weighed[stores.COPIED.name]["source_bytes"] / 19 / 1e6  # a run over all files but one
    return (
        f"Measured on an S3 server (`bench/results/stores.md`), {_millions(rows)} rows of 90 bytes in 20 files of "
        f"{each_mb:.0f} MB:\n\n| files | GET per GB | PUT per GB |\n|---|---:|---:|\n" + "\n".join(lines) + "\n"
    )


def _times_of_the_disk() -> str:
    its = Results(_facts("stores")).contests[stores.COPIED.name]
    store, disk = its[stores.STORE].median, its[stores.LOCAL].median
    return (
        f"On this server, a run took {store / disk:.1f} times as long as on the local disk "
        f"({store:.2f} s and {disk:.2f} s)"
    )


def _state_table() -> str:
    curve = Curve(_facts("curve"))
    sizes = {"10 k": 10_000, "1 M": 1_000_000, "100 M": 100_000_000}

    def random(entries: int) -> str:
        line = curve.find("random", "any_order", entries)
        assert line is not None, entries
        row, read = median(line["ns_a_row"]), median(line["ns_a_bare_read"])
        return f"{row:.0f} ({row / read:.1f} ×)"

    def built(entries: int) -> str:
        line = curve.find("build", "any_order", entries)
        assert line is not None, entries
        return f"{median(line['ns_an_entry']):.0f}"

    def weighed(entries: int) -> str:
        return f"{curve.bytes_an_entry('any_order', entries):.1f}"

    lines = {
        "random keys, ns per row (multiple of a plain read)": random,
        "bytes per entry": weighed,
        "built from an empty table, entries in random order, ns per entry": built,
    }
    rows = [f"| `any_order`: {what} | {' | '.join(map(of, sizes.values()))} |" for what, of in lines.items()]
    return f"| | {' | '.join(sizes)} |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _plain_read() -> str:
    line = Curve(_facts("curve")).find("random", "any_order", 100_000_000)
    assert line is not None
    return f"plain read at 100 M entries took {median(line['ns_a_bare_read']):.0f} ns"


def _cells(page: str) -> Iterator[list[str]]:
    for line in (RESULTS / page).read_text().splitlines():
        if line.startswith("|"):
            yield [cell.strip(" *") for cell in line.strip("|").split("|")]


def _transactions() -> str:
    lines = ["| rows per transaction | without a transaction | with a transaction |", "|---:|---:|---:|"]
    for output, rows, without, within, cost in (cells for cells in _cells("transactions.md") if cells[0] == "log"):
        assert output == "log"
        lines.append(f"| {rows} | {without} ms | {within} ms ({cost.lstrip('+')} more) |")
    return "\n".join(lines) + "\n"


def _landing() -> str:
    first, last = (cells[-1] for cells in _cells("landing_log.md") if cells[0].startswith("ms a commit"))
    return f"{first} times as long in the first 50 commits of 200, {last} times in the last 50"


if __name__ == "__main__":
    write()
