"""The whole benchmark in one run: see README.md beside this file.

    python bench/run.py --full                    every page of bench/results; about 80 minutes on two idle cores
    python bench/run.py --full --only curve,sql   some parts
    python bench/run.py --quick                   few rows, to see that everything works

{parts}

Each part runs in a process of its own, so that no part has to live with another's memory. A part that fails does not
stop the others. Exits with 1 if a part failed or an answer of ours was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # instead of this folder, whose modules would come before installed ones of the same name

from bench import report  # noqa: E402
from bench.measure import describe_revision, machine, revision, tell  # noqa: E402
from bench.summary import draw_summary  # noqa: E402

ROUNDS, QUICK_ROUNDS = 5, 2


@dataclass(frozen=True)
class Step:
    """Measurements of a module, a process."""

    part: str
    module: str
    rows: int
    """Of a full run."""
    quick_rows: int
    minutes: float
    """Of a full run on two idle cores, generating its rows included."""
    what: str
    page: str = ""
    """The name of the results, if it is not the part's."""

    @property
    def results(self) -> str:
        return self.page or self.part


STEPS = (
    Step("lake", "lake", 10_000_000, 1_000_000, 22, "jobs over files"),
    Step("lake", "costs", 20_000_000, 1_000_000, 3, "jobs over files: what they cost apart from their rows"),
    Step("curve", "curve", 2_000_000, 200_000, 7, "the state table from 10 k to 100 M entries; gaps; disorder"),
    Step("shapes", "shapes", 6_000_000, 1_000_000, 3, "fp.deduplicate and polars by shape of the rows"),
    Step("memory", "compare", 4_200_000, 2_100_000, 1.5, "counting identities in memory", page="latest"),
    Step("memory", "doors", 2_000_000, 500_000, 1, "every policy, shape and type of input", page="latest"),
    Step("spark", "spark", 2_600_000, 500_000, 4.5, "DataFrames on Spark"),
    Step("delta", "delta", 4_000_000, 500_000, 4.5, "Delta tables in place (make jars)"),
    Step("streams", "streams", 3_000_000, 200_000, 5, "streams"),
    Step("kafka", "kafka", 10_000_000, 1_000_000, 2, "Kafka's log and its rules (make jars)"),
    Step("registry", "registry", 8_000_000, 1_000_000, 1, "producer identities from PostgreSQL"),
    Step("producer", "producer", 10_000_000, 1_000_000, 0.5, "numbers on rows, rows to partitions"),
    Step("partition_log", "partition_log", 20_000_000, 1_000_000, 0.5, "appends to a standalone log"),
    Step("landing_log", "landing_log", 200, 40, 0.5, "commits to a landing folder"),
    Step("transactions", "transactions", 25, 10, 0.5, "what a transaction adds; rows: % of the batches"),
    Step("sql", "sql", 1_050_000, 210_000, 6.5, "events to PostgreSQL and MariaDB"),
    Step("stores", "stores", 10_000_000, 1_000_000, 4, "an S3 server beside the local disk (make bench builds it)"),
)
"""In the order of a run."""
PARTS = tuple(dict.fromkeys(step.part for step in STEPS))
ON_SPARK = ("lake", "spark", "delta", "streams", "stores")
AS_TEXT = ("landing_log", "transactions")
"""They print a table."""
TITLES = {
    "landing_log": "What a commit of a landing folder costs",
    "transactions": "What a transaction costs",
}
OWN_PAGE = "curve"
"""It writes its own results."""


def main() -> int:
    options = _options()
    revision()  # before anything changes
    _build(options.parts)
    failed, spent = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            begin = time.monotonic()
            try:
                is_right = _measure(part, options, Path(folder))
            except (subprocess.CalledProcessError, OSError, ValueError, KeyError) as problem:
                tell(f"FAILED: {part}: {problem!r}")
                is_right = False
            spent[part] = time.monotonic() - begin
            if not is_right:
                failed.append(part)
    for part, seconds in spent.items():
        tell(f"{part}: {seconds / 60:.1f} minutes" + (", FAILED or wrong" if part in failed else ""))
    tell(f"in all {sum(spent.values()) / 60:.0f} minutes")
    stated = stated_revisions(options.results)
    if len(set(stated.values())) > 1:
        tell("The pages are not of one revision:")
        for page, found in stated.items():
            tell(f"  {page}: {found}")
    return int(bool(failed))


def stated_revisions(folder: Path) -> dict[str, str]:
    """By page: the line's beginning that states its revision; empty where none does."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        line = re.search(r"^Revision `\w+`( with uncommitted changes)?", page.read_text(), re.MULTILINE)
        found[page.name] = line[0] if line else ""
    return found


def _measure(part: str, options: argparse.Namespace, folder: Path) -> bool:
    """Whether every answer of ours was right."""
    mode = "full" if options.full else "quick"
    rounds = ROUNDS if options.full else QUICK_ROUNDS
    prefix = "" if options.full else "quick-"
    parts: dict[str, Any] = {}
    steps = [step for step in STEPS if step.part == part]
    name = prefix + steps[0].results
    for step in steps:
        rows = step.rows if options.full else step.quick_rows
        if options.rows:
            rows = min(rows, options.rows) if part in AS_TEXT else options.rows
        tell(f"{part}: {step.what}: {rows:,} rows, {rounds} rounds")
        if part == OWN_PAGE:
            sizes = [] if options.full else ["--entries", "10k,1M", "--large", ""]
            command = ["--rounds", str(rounds), "--rows", str(rows), "--results", str(options.results), "--name", name]
            subprocess.run([sys.executable, "-m", "bench.curve", *command, *sizes], cwd=ROOT, check=True)
            return True
        if part in AS_TEXT:
            command = [sys.executable, "-m", f"bench.{step.module}", str(rows), str(rounds)]
            printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
            _publish_text(TITLES[part], printed, mode, rounds, options.results / f"{name}.md")
            return True
        run = _doors if step.module == "doors" else _run
        parts[_fact(step)] = run(step.module, rows, rounds, folder)
    return _publish(parts, mode, options.results, name)


def _build(parts: tuple[str, ...]) -> None:
    """The Rust programs, so that no compiler runs beside a measurement."""
    if {"curve", "kafka"} & set(parts):
        tell("building the Rust programs")
        build = ["cargo", "build", "--quiet", "--release", "--locked", "--package", "fencepost-bench", "--bins"]
        for features in (["--features", "portable"], []):
            subprocess.run([*build, *features], cwd=ROOT, check=True)


def _fact(step: Step) -> str:
    """The name under which results have it."""
    return "memory" if step.module == "compare" else step.module


def _publish(parts: dict[str, Any], mode: str, folder: Path, name: str) -> bool:
    """Write and show what was measured; whether every answer of ours was right."""
    results = report.collect(mode, **parts)
    report.write(results, folder, name)
    if "lake" in parts:
        draw_summary(results, folder / f"{name}-summary.svg")
    print(report.to_markdown(results))
    tell(f"written: {folder}/{name}.json, .md, .svg, .png")
    for one in results.wrong:
        tell(f"WRONG: {one.contest}: {one.name} answered {one.answer}, right is {one.expected}")
    return not any(one.role == "ours" for one in results.wrong)


def _publish_text(title: str, printed: str, mode: str, rounds: int, page: Path) -> None:
    its = machine()
    state = (
        f"{describe_revision(revision())}, {date.today().isoformat()}, `--{mode}`, {its['cores']} cores "
        f"({its['architecture']}), {its['memory_gb']} GB. Medians of {rounds} rounds of one run, in each of which "
        "every contestant takes its turn."
    )
    page.parent.mkdir(exist_ok=True)
    page.write_text(f"# {title}\n\n{state}\n\n{printed}")
    print(page.read_text())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(parts="\n".join(_lines())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", action="store_true")
    size.add_argument("--full", action="store_true")
    parser.add_argument("--only", type=_parts, dest="parts", metavar="PART,...", help=", ".join(PARTS))
    parser.add_argument("--no-spark", action="store_true", help="without the parts that need Java")
    parser.add_argument(
        "--rows",
        type=int,
        help="instead of the table's number, in every part; at most, in those that count commits or batches",
    )
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where to write")
    options = parser.parse_args()
    options.results = options.results.resolve()
    options.parts = options.parts or PARTS
    if options.no_spark:
        options.parts = tuple(part for part in options.parts if part not in (*ON_SPARK, "kafka"))
    return options


def _lines() -> Iterator[str]:
    yield f"    {'part':14} {'minutes':>7} {'rows':>12}  in {ROUNDS} rounds"
    for step in STEPS:
        yield f"    {step.part:14} {step.minutes:7g} {step.rows:12,}  {step.what}"


def _parts(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    for name in found:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(PARTS)}")
    return found


def _run(module: str, rows: int, rounds: int, folder: Path) -> Any:
    """What `bench.<module>` measures, in a process of its own."""
    out = folder / f"{module}.json"
    subprocess.run([sys.executable, "-m", f"bench.{module}", str(rows), str(rounds), str(out)], cwd=ROOT, check=True)
    return json.loads(out.read_text())


def _doors(_: str, rows: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    out = folder / "doors.json"
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / "test_memory.py"), f"--benchmark-json={out}"]
    env = {**os.environ, "FENCEPOST_BENCH_ROWS": str(rows), "FENCEPOST_BENCH_ROUNDS": str(rounds)}
    subprocess.run([*command, "--benchmark-quiet"], cwd=ROOT, env=env, check=True, stdout=sys.stderr)
    return report.doors(out)


if __name__ == "__main__":
    sys.exit(main())
