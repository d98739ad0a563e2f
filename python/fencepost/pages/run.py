"""The page of a run of a job: what it kept and refused, and the questions of an audit for the rows of this run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fencepost.pages.charts import Chart
from fencepost.pages.commands import command
from fencepost.pages.drawings import columns
from fencepost.pages.page import Command, Page, Section
from fencepost.pages.tables import Table, key_names, share, size, table_of
from fencepost.words import plural

COUNTS = dict.fromkeys(("rows", "duplicates", "retimed", "count"), "count")
SAID = {
    "ACCEPTED": "new",
    "UNTRACKED": "without a producer, kept as they are",
    "DUPLICATE": "came before",
    "CONFLICT": "came before, with other content",
    "OUT_OF_ORDER": "neither new nor known to be repeats",
    "FENCED": "of a replaced epoch",
    "FORGOTTEN": "older than what is remembered",
}


def run_page(report: Any) -> Page:
    """Return the page of a `RunReport`."""
    run = _Run(report)
    title = (
        f"version {report.version} of {report.sink}"
        if report.version is not None
        else f"nothing new in {report.source}"
    )
    answers = (
        [run.kept(), run.repeats(), run.lost(), run.zombies(), run.restarts()] if report.version is not None else []
    )
    return Page("Run", title, list(run.facts()), [*answers, *run.left_out()], [run.steps()])


class _Run:
    def __init__(self, report: Any) -> None:
        self.report = report

    def facts(self) -> Iterator[tuple[str, str]]:
        report = self.report
        yield "Source", report.source
        yield "Rows read", f"{report.rows:,} in {plural(report.files, 'new file')}, {size(report.bytes)}"
        yield "Policy", report.policy
        yield "Identity", ", ".join(report.identity)
        yield "State", f"{report.state}, {report.entries:,} entries"
        yield "Seconds", f"{sum(report.seconds.values()):,.2f}"

    def kept(self) -> Section:
        report = self.report
        counts = list(report.counts.items())
        rows = [
            (name, count, count / report.rows if report.rows else 0.0, SAID.get(name, "")) for name, count in counts
        ]
        kinds = {"rows": "count", "share": "share"}
        table = Table("Rows by verdict", ["verdict", "rows", "share", "meaning"], rows, len(rows), kinds=kinds)
        said = "Columns by verdict: " + ", ".join(f"{name}: {count:,}" for name, count in counts)
        drawing = columns(counts, "verdict", "rows", "rows")
        chart = Chart("verdicts", "Rows by verdict", "", said, drawing, table)
        return Section(
            "kept",
            "What was kept?",
            f"{report.kept:,} rows",
            f"were kept, of {report.rows:,} rows read. {report.rows - report.kept:,} were not.",
            "note",
            [chart] if counts else (),
        )

    def repeats(self) -> Section:
        report = self.report
        section = partial(Section, "repeats", "How many rows came twice?")
        repeats = report.repeats
        if not repeats:
            return section("None", f"No row was a repeat, of {report.rows:,} rows.", "good")
        conflicts = report.counts.get("CONFLICT", 0)
        answer = f"were repeats: {share(repeats / report.rows)} of {report.rows:,} rows. They were not kept."
        if report.content_compared is not None:
            answer += f" {report.content_compared:,} were compared, {conflicts:,} have other content."
        found = table_of("Repeats with other content", report.conflicts, {}, 10, total=conflicts)
        tables = [found] if len(report.conflicts) else []
        return section(f"{repeats:,} rows", answer, "note", tables=tables)

    def lost(self) -> Section:
        report = self.report
        section = partial(Section, "lost", "What is missing?")
        if not report.missing_rows:
            return section("Nothing", "The rows of this run skip no sequence number.", "good")
        answer = (
            f"were missing when this run ended, in {plural(report.missing_ranges, 'gap')} that its rows left. Later "
            "runs may still fill them."
        )
        line = command("state", "export", report.state, "missing.csv", "--what", "missing")
        return section(
            f"{report.missing_rows:,} rows",
            answer,
            "bad",
            tables=[self._table("Gaps of this run", report.missing, report.missing_ranges)],
            commands=[Command("List all gaps that are open now", line)],
        )

    def zombies(self) -> Section:
        report = self.report
        section = partial(Section, "zombies", "Is a zombie writing?")
        if not report.stale_epoch:
            return section("No", "No row is of an epoch that a later one had replaced.", "good")
        answer = f"{plural(report.stale_epoch, 'row')} came after a new epoch of the same producer had begun."
        tables = [self._table("Rows of replaced epochs", report.stale)]
        return section("Yes", answer, "bad", tables=tables)

    def restarts(self) -> Section:
        report = self.report
        section = partial(Section, "restarts", "Did a counter restart?")
        if not report.resets_looked_for:
            answer = "Timestamps are not kept by this state, and only they tell a restarted counter from repeats."
            return section("Not known", answer, "unknown")
        count = report.reset_keys
        if not count:
            return section("No", "No key seems to start again.", "good")
        answer = "probably started their numbers again under the same epoch. Their new events look like repeats."
        tables = [self._table("Keys whose numbers seem to start again", report.suspected_resets, count)]
        return section(plural(count, "key"), answer, "bad", tables=tables)

    def left_out(self) -> Iterator[Section]:
        report = self.report
        files = [(path, "quarantined", why) for path, why in report.quarantined]
        files += [(path, "deferred", "cannot be read yet") for path in report.deferred]
        files += [(path, "blocked", "comes after a deferred file") for path in report.blocked]
        files += [(path, "vanished", "was gone or changed when it was read") for path in report.vanished]
        if files:
            table = Table(
                "Files that were not read", ["file", "what", "why"], files[:50], len(files), kinds={"why": "text"}
            )
            answer = f"{plural(len(files), 'new file')} of the source could not be read in this run."
            yield Section(
                "files", "Which files were left out?", plural(len(files), "file"), answer, "bad", tables=[table]
            )

    def _table(self, caption: str, found: Any, total: int | None = None) -> Table:
        """A table of keys and their findings. `total`: their number, if the report has only the first of them."""
        names = key_names(found.column_names, self.report.identity)
        kinds = COUNTS | dict.fromkeys([*names, "epoch"], "id")
        return table_of(caption, found, kinds, names=names, total=total)

    def steps(self) -> Section:
        report = self.report
        rows = [(name, round(seconds, 3)) for name, seconds in report.seconds.items()]
        table = Table("Seconds by step", ["step", "seconds"], rows, len(rows))
        total = sum(report.seconds.values())
        plan = f"The plan was {report.plan}: {report.plan_reason}." if report.plan else "Nothing was new."
        answer = f"{total:,.2f} seconds in all. {plan}"
        shown = [(name, seconds) for name, seconds in rows if seconds]
        said = "Columns by step: " + ", ".join(f"{name}: {seconds}" for name, seconds in shown)
        chart = Chart("steps", "Seconds by step", "", said, columns(shown, "step", "rows", "seconds"), table)
        return Section("steps", "Where did the time go?", "", answer, "note", [chart] if shown else ())
