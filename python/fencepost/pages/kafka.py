"""The page of an audit of Kafka's log: for each partition, what is lost, repeated, fenced or left open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fencepost.pages.charts import Chart
from fencepost.pages.commands import command
from fencepost.pages.drawings import bars
from fencepost.pages.page import Command, Page, Section
from fencepost.pages.tables import Table, size, table_of
from fencepost.words import plural

PARTITIONS_MAX = 15
"""Maximum number of partitions in a chart."""
KINDS = {
    "missing": "Missing records",
    "repeated": "Repeated batches",
    "fenced": "Fenced batches",
    "hanging": "Hanging transactions",
}
COLORS = {"missing": "missing", "repeated": "duplicates", "fenced": "stale", "hanging": "refused"}
COUNTS = dict.fromkeys(
    ("count", "batches", "records", "epochs", "producers", "expired", "differences", "bytes", "segments"), "count"
)
TIMES = {"last_timestamp": "time"}
IDS = dict.fromkeys(("partition", "pid", "epoch"), "id")


def log_page(report: Any) -> Page:
    """Return the page of a `LogAudit`."""
    audit = _LogAudit(report)
    answers = [audit.repeated(), audit.lost(), audit.producers(), audit.zombies(), audit.hanging(), audit.files()]
    return Page("Kafka log audit", report.source, list(audit.facts()), answers, [audit.partitions()])


class _LogAudit:
    def __init__(self, report: Any) -> None:
        self.report = report
        self.found = report.count_findings()
        self.total = report.total()
        self.of = [(it, it.count_findings()) for it in report.partitions]
        self.kept_whole = replace(report, partitions=tuple(it for it in report.partitions if not it.compacted))
        """The partitions in which steps and holes are losses."""

    def facts(self) -> Iterator[tuple[str, str]]:
        total = self.total
        yield "Partitions", f"{total['partitions']:,}, {total['with_findings']:,} with findings"
        yield "Batches", f"{total['batches']:,}"
        yield "Records", f"{total['records']:,}"
        yield "Segments", f"{total['segments']:,}, {size(total['bytes'])}"

    def repeated(self) -> Section:
        answer = "that go back in their producer's sequence: they were written a second time."
        return self._section(
            "repeats", "What was written twice?", "repeated", "batch", answer, "No batch was written twice."
        )

    def lost(self) -> Section:
        answer = "that the broker had accepted are not in its log."
        compacted = [it.name for it, _ in self.of if it.compacted]
        notes = []
        if compacted:
            notes.append(
                f"{plural(len(compacted), 'partition is', 'partitions are')} compacted: steps there are not losses."
            )
        tables = self._tables(("missing", "holes"), by="count", report=self.kept_whole)
        return self._section(
            "lost", "What was lost?", "missing", "record", answer, "No record is missing.", tables, notes
        )

    def producers(self) -> Section:
        names = ("producers",)
        found = self._tables(names, by="records")
        count = sum(len(it.producers) for it, _ in self.of)
        answer = "producers of a partition. The table has those with the most records."
        return Section("producers", "Which producers?", f"{count:,}", answer, "note", tables=found)

    def zombies(self) -> Section:
        answer = "of an epoch below their producer's highest."
        return self._section(
            "zombies", "Is a zombie writing?", "fenced", "batch", answer, "No batch is of a replaced epoch."
        )

    def hanging(self) -> Section:
        answer = "open for longer than any time-out allows. Consumers that read committed records wait for its end."
        none = "No transaction hangs."
        tables = self._tables(("open",), by="hanging")
        return self._section("hanging", "Does a transaction hang?", "hanging", "transaction", answer, none, tables)

    def files(self) -> Section:
        count = sum(self.found.get(it, 0) for it in ("snapshot", "index", "damage"))
        section = partial(Section, "files", "Are the files intact?")
        damage = [
            (it.name, *finding)
            for it, _ in self.of
            for finding in it.damage
            if not (it.compacted and finding.kind == "gap")
        ]
        tables = self._tables(("snapshots",), by="differences")
        tables += self._tables(("differences", "index")) if count else []
        if damage:
            table = Table(
                "Damage",
                ["partition", "kind", "path", "position", "reason"],
                damage[:50],
                len(damage),
                kinds={"reason": "text"},
            )
            tables.insert(0, table)
        if not count:
            return section("Yes", "Files, snapshots and indexes agree with the log.", "good", tables=tables)
        answer = "Some files are damaged, or differ from the log."
        return section(plural(count, "finding"), answer, "bad", tables=tables)

    def partitions(self) -> Section:
        rows = [
            [it.name, it.segments, it.batches, it.records, it.log_start, it.log_end, *(counts[kind] for kind in KINDS)]
            for it, counts in self.of
        ]
        rows.sort(key=lambda row: (-sum(row[6:]), row[0]))
        columns = ["partition", "segments", "batches", "records", "log start", "log end", *KINDS]
        kinds = COUNTS | dict.fromkeys(KINDS, "count")
        table = Table("Partitions, those with the most findings first", columns, rows[:100], len(rows), kinds=kinds)
        shown = [(it.name, counts) for it, counts in self.of if any(counts[kind] for kind in KINDS)]
        shown.sort(key=lambda it: -sum(it[1][kind] for kind in KINDS))
        charts = [self._chart(shown[:PARTITIONS_MAX], table, len(shown))] if shown else []
        answer = f"Partitions with lost, repeated, fenced or hanging data: {len(shown):,} of {len(rows):,}."
        return Section("partitions", "Which partitions?", "", answer, "note", charts, [] if shown else [table])

    def _chart(self, shown: list[tuple[str, dict[str, int]]], table: Table, total: int) -> Chart:
        subtitle = f"The {len(shown):,} with the most findings, of {total:,}."
        said = ", ".join(f"{name}: {sum(counts[kind] for kind in KINDS):,}" for name, counts in shown[:5])
        drawing = bars(shown, KINDS, COLORS, "findings")
        return Chart("partitions", "Findings by partition", subtitle, f"Bars by partition: {said}", drawing, table)

    def _section(
        self,
        name: str,
        question: str,
        kind: str,
        unit: str,
        answer: str,
        none: str,
        tables: Sequence[Table] | None = None,
        notes: Any = (),
    ) -> Section:
        section = partial(Section, name, question)
        count = self.found.get(kind, 0)
        if not count:
            figure = "No" if question.startswith(("Is", "Does")) else "None"
            return section(figure, none, "good", notes=notes)
        line = command("kafka", "audit", self.report.source, *self._policies(), "--only-findings", "--top", "1000")
        return section(
            plural(count, unit, "batches" if unit == "batch" else None),
            answer,
            "bad",
            tables=self._tables((kind,)) if tables is None else tables,
            notes=notes,
            commands=[Command("List them by partition", line)],
        )

    def _policies(self) -> list[str]:
        """The options by which an audit gets the same cleanup policies: that of most topics, and exceptions."""
        of_topic = {it.topic: it.cleanup_policy for it in self.report.partitions}
        ((usual, _),) = Counter(of_topic.values()).most_common(1)
        others = [f"{topic}={policy}" for topic, policy in of_topic.items() if topic and policy != usual]
        known = others if usual == "unknown" else [usual, *others]
        return [word for policy in known for word in ("--cleanup-policy", policy)]

    def _tables(self, names: tuple[str, ...], by: str | None = None, report: Any = None) -> list[Table]:
        """Tables of all partitions, or of those of another report. `by`: the column whose highest values come first."""
        of = report or self.report
        tables = []
        for name in names if of.partitions else ():
            found = of.table(name)
            if by is not None:
                found = found.sort_by([(by, "descending")])
            if len(found):
                tables.append(table_of(name.capitalize(), found, COUNTS | TIMES | IDS))
        return tables
