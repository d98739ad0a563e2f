"""The page of an audit: six questions, in the order in which people ask them.

How many rows exist twice? What was lost? Which producers? Since when? Is a zombie writing? Did a counter restart?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any

from fencepost.pages.charts import KINDS, Chart
from fencepost.pages.commands import column_options, command, dedup, options, place
from fencepost.pages.drawings import bars, columns, heat_map, over_time
from fencepost.pages.page import Command, Mood, Page, Section
from fencepost.pages.tables import Table, share, size, table_of, text, utc
from fencepost.policy import Columns, Policy
from fencepost.words import plural

BARS_MAX = 12
"""Maximum number of producers, partitions and columns in a chart."""
EXAMPLES_MAX = 10
"""Maximum number of example rows of each kind in a section."""
BESIDE_GAPS = {"BEFORE_GAP": "before a gap", "AFTER_GAP": "after a gap"}
FOUND = {
    "DUPLICATE": "repeat",
    "STALE": "of a replaced epoch",
    "FENCED": "of a replaced epoch, refused",
    "OUT_OF_ORDER": "out of order, refused",
    "FORGOTTEN": "older than what is remembered, refused",
    **BESIDE_GAPS,
}
"""What the examples of each kind are. RETIMED is left out: these rows are repeats, too."""
COUNTS = ("rows", "duplicates", "refused", "missing", "stale", "retimed", "count", "repeats", "first", "last")
_TIMES = {"timestamp": "time", "kept_timestamp": "time"}


def audit_page(report: Any) -> Page:
    """Return the page of an `AuditReport`."""
    return _Audit(report).page()


def audit_charts(report: Any) -> dict[str, Chart]:
    """Return the charts of an `AuditReport` by name: over_time, distances, producers, partitions, heat_map.

    Empty charts are left out.
    """
    audit = _Audit(report)
    found = (audit.over_time(), audit.distances(), audit.producers(), audit.partitions(), audit.heat_map())
    return {it.name: it for it in found if it is not None}


class _Audit:
    def __init__(self, report: Any) -> None:
        self.report = report
        self.policy: Policy = report.rules
        self.source = place(report.source)
        self.repeats = report.counts.get("DUPLICATE", 0) + report.counts.get("CONFLICT", 0)
        self.refusals = {it: report.counts[it] for it in ("OUT_OF_ORDER", "FENCED", "FORGOTTEN") if it in report.counts}
        self.refused = sum(self.refusals.values())
        self.pids = [it for it in report.keys.column_names if it.partition("_")[0] == "pid"]
        self.parts = [it for it in report.keys.column_names if it.partition("_")[0] == "partition"]
        self.names = report.column_names()
        self.unit = report.timeline_unit
        self.by_producer = _grouped(report.keys, self.pids)
        self.by_partition = _grouped(report.keys, self.parts)

    def page(self) -> Page:
        answers = [self._repeats(), self._lost(), self._producers(), self._since(), self._zombies(), self._restarts()]
        return Page("Audit", self.report.source or "rows in memory", list(self._facts()), answers, list(self._more()))

    def _facts(self) -> Iterator[tuple[str, str]]:
        report = self.report
        files = f" in {plural(report.files, 'file')}, {size(report.bytes)}" if report.files else ""
        yield "Rows read", f"{report.rows:,}{files}"
        yield "Policy", report.policy
        yield "Identity", ", ".join(report.identity)
        yield "Order", report.order
        if report.unreadable:
            yield "Not read", f"{plural(len(report.unreadable), 'file')} with errors"

    # Sections that answer the questions

    def _repeats(self) -> Section:
        report = self.report
        section = partial(Section, "repeats", "How many rows are there twice?")
        unseen = report.repeats_of_unseen
        notes = []
        if report.distance_share < 1:
            notes.append(f"Distances are estimated from a sample of {share(report.distance_share)} of the repeats.")
        if unseen:
            notes.append(f"{plural(unseen, 'repeat')} of rows that are not in this data have no distance.")
        if report.rules.takes_late_for_repeats:
            notes.append("Under this policy, late rows count as repeats, although they may be new.")
        if not self.repeats:
            return section("None", self._of_rows("No row came twice"), "good")
        answer = f"repeat a row that came before: {share(self.repeats / report.rows)} of {report.rows:,} rows."
        if report.content_compared is not None:
            conflicts = report.counts.get("CONFLICT", 0)
            answer += f" {plural(conflicts, 'repeat')} of {report.content_compared:,} compared have other content."
        return section(
            f"{self.repeats:,} rows",
            answer,
            "bad",
            _some(self.distances()),
            [*self._examples(("DUPLICATE",), "Examples of repeats"), *self._conflicts()],
            notes,
            [Command("Write a copy without repeats, and keep it clean", dedup(self.source, self.policy))],
        )

    def _lost(self) -> Section:
        report = self.report
        section = partial(Section, "lost", "What was lost?")
        refused = (
            f" {plural(self.refused, 'row')} came out of order and would be refused by this policy."
            if self.refused
            else ""
        )
        why = self.policy.why_some_gaps_are_unknown
        given_up = [f"Under this policy, {why}."] if why is not None else []
        if not report.missing_rows:
            why = self.policy.why_gaps_are_unknown
            if why is not None:
                return section("Not known", f"{why[:1].upper()}{why[1:]}.{refused}", "unknown")
            answer = self._of_rows("No sequence number is missing between the first and the last row of a producer")
            mood: Mood = "note" if refused or given_up else "good"
            return section("Nothing", f"{answer}{refused}", mood, notes=given_up)
        numbered = report.missing_rows + report.counts.get("ACCEPTED", 0)
        answer = (
            f"never arrived. They left {plural(report.missing_ranges, 'gap')}. That is "
            f"{share(report.missing_rows / numbered)} of all numbered rows.{refused}"
        )
        note = "A gap may still be filled by rows that have not arrived yet."
        if self.policy.admit == "forward":
            note = "This policy never closes a gap: rows that arrive late are not kept, and still count as missing."
        rows = report.missing.sort_by([("count", "descending")])
        table = table_of("Largest gaps", rows, self._kinds(), names=self.names)
        return section(
            f"{report.missing_rows:,} rows",
            answer,
            "bad",
            tables=[table, *self._examples(BESIDE_GAPS, "Examples of rows before and after the largest gaps")],
            notes=[note, *given_up],
            commands=[Command("List all gaps, for the producers to send again", self._audit("--out", "missing.csv"))],
        )

    def _producers(self) -> Section:
        report = self.report
        keys, section = self.by_producer, partial(Section, "producers", "Which producers?")
        if not len(keys):
            answer = f"of {plural(report.producers, 'producer')} have a finding."
            return section("None", answer, "good")
        worst, total = keys.slice(0, 1).to_pylist()[0], sum(keys["findings"].to_pylist())
        here = sum(rows > 0 for rows in keys["rows"].to_pylist())
        line = self._audit("--json", "--top", str(len(report.keys)))
        answer = (
            f"producers have findings. Producer {self._name(worst, self.pids)} has the most: "
            f"{share(worst['findings'] / total)} of all findings."
        )
        notes = ["Findings are repeats, missing rows, rows of replaced producers and refused rows."]
        if here < len(keys):
            absent = plural(len(keys) - here, "producer has", "producers have")
            notes.append(f"{absent} no rows in this data: rows of theirs were missing before it.")
        return section(
            f"{here:,} of {report.producers:,}",
            answer,
            "bad",
            _some(self.producers(), self.partitions(), self.heat_map()),
            [self._ranking("Producers with findings", keys, self.pids), *self._keys(), *self._examples_by_producer()],
            notes,
            [Command("List the findings of all producers and partitions as JSON", line)],
        )

    def _since(self) -> Section:
        section = partial(Section, "since", "Since when?")
        bins = [it for it in self.report.timeline.to_pylist() if any(it[kind] for kind in KINDS)]
        if not bins and not len(self.by_producer):
            return section("–", "There is no finding.", "good")
        if self.unit == "rows":
            first = bins[0] if bins else None
            answer = "No timestamp column was named, so only positions in the data are known. "
            if first is not None:
                place = f" of all rows, which is in {first['file']}," if first.get("file") else ""
                answer += f"The first finding is at row {first['first']:,}{place} or soon after."
            commands = [Command("See when it happened", self._audit("--timestamp", "COLUMN", "--html", "report.html"))]
            return section("Not known", answer, "unknown", _some(self.over_time()), self._earliest(), commands=commands)
        first, last = _bounds(self.report.keys)
        if first is None:
            answer = "Under this policy, the time at which rows were missed is not known."
            line = self._audit("--html", "report.html", policy=self.policy.replace(admit="any"))
            commands = [Command("See when it happened: accept rows in any order", line)]
            return section("Not known", answer, "unknown", _some(self.over_time()), self._earliest(), commands=commands)
        answer = (
            f"is the time of the first finding (UTC). The last is at {utc(last, 'minutes')}. "
            f"The data ends before {_minute_after(self._end())}."
        )
        when = utc(first, "minutes").removesuffix(" UTC")
        again = Command("Audit again after a fix, to look for new findings", self._audit("--html", "report.html"))
        return section(when, answer, "note", _some(self.over_time()), self._earliest(), commands=[again])

    def _end(self) -> int:
        """Return the end of the newest bin or the last finding, whichever is later."""
        ends: list[int] = [
            *self.report.timeline["last"].to_pylist(),
            *self.report.keys["until"].drop_null().to_pylist(),
        ]
        return max(ends)

    def _zombies(self) -> Section:
        report = self.report
        section = partial(Section, "zombies", "Is a zombie writing?")
        if self.policy.epochs == "ignore":
            return section("Not known", "The data has no epochs, so zombies cannot be recognized.", "unknown")
        if not report.stale_epoch:
            return section("No", "No row came from an epoch that a later one had replaced.", "good")
        answer = (
            f"{plural(report.stale_epoch, 'row')} of {plural(len(report.stale), 'replaced epoch')} came after a higher "
            f"epoch of the same producer.{self._last_stale()}"
        )
        fence = self.policy.replace(epochs="fence")
        return section(
            "Yes" if self._is_stale_now() else "Not any more",
            answer,
            "bad",
            tables=[
                table_of("Rows of replaced epochs", report.stale, self._kinds(), names=self.names),
                *self._examples(("STALE",), "Examples of rows of replaced epochs"),
                *self._examples(("FENCED",), "Examples of refused rows of replaced epochs"),
            ],
            notes=["A zombie is a process that still writes after another one took over its name with a higher epoch."],
            commands=[Command("Write a copy without these rows", dedup(self.source, fence))],
        )

    def _last_stale(self) -> str:
        bins = [it for it in self.report.timeline.to_pylist() if it["stale"]]
        if self.unit != "ms" or not bins:
            return ""
        return f" The last one is from before {_minute_after(bins[-1]['last'])}."

    def _is_stale_now(self) -> bool:
        """Return whether the last tenth of the data has stale rows. A wrong clock does not define where it begins."""
        bins = self.report.timeline.to_pylist()
        first, last = 0, self.report.rows
        if self.unit == "ms":
            usual, _ = _without_outliers(bins)
            first, last = usual[0]["first"], usual[-1]["last"]
        return any(it["stale"] and it["last"] >= last - (last - first) / 10 for it in bins)

    def _restarts(self) -> Section:
        report = self.report
        section = partial(Section, "restarts", "Did a counter restart?")
        renewed = f"{plural(len(report.resets), 'key')} started again under a higher epoch, which is normal."
        resets = table_of("Keys that started again under another epoch", report.resets, self._kinds(), names=self.names)
        tables = [resets] if len(report.resets) else []
        if report.suspected_resets is None:
            answer = f"No timestamp column was named, so restarts under the same epoch look like repeats. {renewed}"
            line = self._audit("--timestamp", "COLUMN")
            commands = [Command("Look for counters that restarted", line)]
            return section("Not known", answer, "unknown", tables=tables, commands=commands)
        if not len(report.suspected_resets):
            answer = f"No key seems to start again under the same epoch. {renewed}"
            return section("No", answer, "good", tables=tables)
        count = len(report.suspected_resets)
        title = "Keys whose numbers seem to start again"
        suspects = table_of(title, report.suspected_resets, self._kinds(), names=self.names)
        return section(
            plural(count, "key"),
            f"probably started their numbers again under the same epoch: their repeats carry other timestamps than "
            f"the rows they repeat. Such rows are new events that look like repeats. {renewed}",
            "bad",
            tables=[suspects, *self._examples(("RETIMED",), "Examples of repeats with another timestamp"), *tables],
            commands=[Command("Judge again with a column that changes at each restart", self._audit_by_epoch())],
        )

    # Charts and tables behind the answers

    def over_time(self) -> Chart | None:
        rows, left_out = _without_outliers(self.report.timeline.to_pylist())
        kinds = {kind: name for kind, name in KINDS.items() if any(it[kind] for it in rows)}
        if not kinds:
            return None
        is_time = self.unit == "ms"
        shown = kinds | ({"rows": "All rows"} if is_time else {})
        width = rows[0]["last"] - rows[0]["first"] + 1
        subtitle = f"Each bar counts the rows of {_span(width, self.unit)}."
        if left_out:
            subtitle += f" {plural(left_out, 'row')} far from the others in time are not drawn."
        zone = "time of the rows (UTC)" if is_time else "position of the row in the data"
        sums = [f"{name} {sum(it[kind] for it in rows):,}" for kind, name in shown.items()]
        names = ["from", "to", *shown.values()]
        values = [[it["first"], it["last"] + 1, *(it[kind] for kind in shown)] for it in rows]
        kinds_of = dict.fromkeys(shown.values(), "count") | dict.fromkeys(
            ("from", "to"), "time" if is_time else "count"
        )
        return Chart(
            "over_time",
            "Findings over time" if is_time else "Findings by position",
            subtitle,
            f"Columns over {zone}: {', '.join(sums)}.",
            over_time(rows, shown, self.unit),
            Table("Findings over time", names, values, len(values), kinds=kinds_of),
            ("wide", "narrow"),
        )

    def distances(self) -> Chart | None:
        rows = [(_range(it["first"], it["last"]), it["repeats"]) for it in self.report.distances.to_pylist()]
        if not self.repeats or not rows:
            return None
        return Chart(
            "distances",
            "How far repeats are behind the row they repeat",
            "Distance in rows of the data, whatever their producer. 1 is the next row.",
            "Columns by distance: " + ", ".join(f"{name}: {count:,}" for name, count in rows),
            columns(rows, "rows after the kept copy", "duplicates", "repeats"),
            Table("Distances", ["distance", "repeats"], rows, len(rows), kinds={"repeats": "count"}),
            ("wide", "narrow"),
        )

    def producers(self) -> Chart | None:
        return self._bars("producers", "producer", self.by_producer, self.pids)

    def partitions(self) -> Chart | None:
        return self._bars("partitions", "partition", self.by_partition, self.parts) if self.parts else None

    def _bars(self, name: str, noun: str, keys: Any, columns: list[str]) -> Chart | None:
        if len(keys) < 2:
            return None
        rows = keys.slice(0, BARS_MAX).to_pylist()
        total = sum(keys["findings"].to_pylist())
        shown = [(self._name(it, columns), {kind: it[kind] for kind in KINDS}) for it in rows]
        part = sum(it["findings"] for it in rows) / total
        subtitle = f"All {len(rows):,} with findings." if len(rows) == len(keys) else (
            f"The {len(rows):,} with the most, of {len(keys):,}. They have {share(part)} of all findings."
        )  # fmt: skip
        return Chart(
            name,
            f"Findings by {noun}",
            subtitle,
            f"Bars by {noun}: " + ", ".join(f"{it}: {sum(counts.values()):,}" for it, counts in shown[:5]),
            bars(shown, KINDS),
            self._ranking(f"Findings by {noun}", keys.slice(0, BARS_MAX), columns, len(keys)),
        )

    def heat_map(self) -> Chart | None:
        if not self.parts or len(self.by_partition) < 2 or len(self.by_producer) < 2:
            return None
        down, across = (
            {_key(row, names): at for at, row in enumerate(keys.slice(0, BARS_MAX).to_pylist())}
            for keys, names in ((self.by_producer, self.pids), (self.by_partition, self.parts))
        )
        cells: dict[tuple[int, int], int] = {}
        for row in _of_keys(self.report.keys, self.pids, down):
            place = down[_key(row, self.pids)], across.get(_key(row, self.parts))
            if place[1] is not None:
                cells[place[0], place[1]] = sum(row[kind] for kind in KINDS)
        rows = [self._label(key) for key in down]
        names = [self._label(key) for key in across]
        values = [[rows[r], *(cells.get((r, c), 0) for c in range(len(names)))] for r in range(len(rows))]
        return Chart(
            "heat_map",
            "Findings by producer and partition",
            "The producers and partitions with the most findings. Each color is a power of ten.",
            f"Heat map of {len(rows)} producers and {len(names)} partitions.",
            heat_map(rows, names, cells),
            Table("Findings by producer and partition", ["producer", *names], values, len(values),
                  kinds=dict.fromkeys(names, "count") | {"producer": "id"}),
            ("wide", "narrow"),
        )  # fmt: skip

    def _keys(self) -> list[Table]:
        if not self.parts or not len(self.report.keys):
            return []
        found = self.report.keys
        return [self._ranking("Findings by producer and partition", found, [*self.pids, *self.parts])]

    def _ranking(self, caption: str, found: Any, columns: list[str], total: int | None = None) -> Table:
        """A table of keys and their findings, with the total of all keys."""
        counts = ["rows", "duplicates", "missing", "stale", "refused"]
        shown = found.select([*columns, *counts, "since", "until"])
        table = table_of(caption, shown, self._kinds(), names={**self.names, "duplicates": "repeats"})
        sums = [sum(found[name].to_pylist()) for name in counts]
        label = "all together" if total in (None, len(found)) else "these together"
        last = [label, *([""] * (len(columns) - 1)), *sums, *_bounds(found)]
        return Table(caption, table.columns, table.rows, total or len(found), last, table.kinds | {"repeats": "count"})

    def _examples(self, kinds: Collection[str], caption: str) -> list[Table]:
        """Return a table of the examples of some kinds, if there are any."""
        return self._example_table(caption, [it for it in self.report.examples.to_pylist() if it["what"] in kinds])

    def _examples_by_producer(self) -> list[Table]:
        """Return an example of each kind for the producers with the most findings of those that have examples."""
        found = self._all_examples()
        ranked = _of_keys(self.by_producer, self.pids, {_key(it, self.pids) for it in found})
        rank = {_key(it, self.pids): at for at, it in enumerate(ranked)}
        firsts: dict[tuple[int, str], dict[str, Any]] = {}
        for it in found:
            firsts.setdefault((rank[_key(it, self.pids)], it["what"]), it)
        rows = [firsts[it] for it in sorted(firsts, key=lambda it: it[0])]
        return self._example_table("Examples of findings by producer", rows)

    def _earliest(self) -> list[Table]:
        names, order = ["file", "row"] if self.report.files else ["row"], "position"
        if self.unit == "ms":
            names, order = ["timestamp"], "time"
        found = sorted(self._all_examples(), key=lambda it: _key(it, names))
        return self._example_table(f"Examples of findings by {order}", found)

    def _all_examples(self) -> list[dict[str, Any]]:
        return [it for it in self.report.examples.to_pylist() if it["what"] in FOUND]

    def _example_table(self, caption: str, rows: Sequence[dict[str, Any]]) -> list[Table]:
        """Return a table of examples. Leaves out empty columns, and the kind if there is only one."""
        shown = [{"finding": FOUND.get(it["what"]), **it} for it in rows[:EXAMPLES_MAX]]
        if not shown:
            return []
        left_out = {"what"} if len({it["what"] for it in shown}) > 1 else {"what", "finding"}
        columns = [it for it in shown[0] if it not in left_out and any(row[it] is not None for row in shown)]
        names = [self.names.get(it, it) for it in columns]
        kinds = {self.names.get(name, name): kind for name, kind in self._kinds().items()}
        return [Table(caption, names, [_key(it, columns) for it in shown], len(rows), kinds=kinds)]

    def _conflicts(self) -> list[Table]:
        found = self.report.conflicts
        if found is None or not len(found):
            return []
        total = self.report.counts["CONFLICT"]
        return [table_of("Repeats with other content", found, {}, EXAMPLES_MAX, total=total)]

    def _more(self) -> Iterator[Section]:
        report = self.report
        if report.unreadable:
            rows = [list(it) for it in report.unreadable[:50]]
            table = Table(
                "Files that could not be read", ["file", "error"], rows, len(report.unreadable), kinds={"error": "text"}
            )
            answer = "Their rows are missing in all figures above, or those behind the damage are."
            yield Section(
                "unreadable",
                "Which files could not be read?",
                plural(len(report.unreadable), "file"),
                answer,
                "bad",
                tables=[table],
            )
        if self.refused:
            answer = "These rows are neither new nor known to be repeats under this policy: " + ", ".join(
                f"{name} {count:,}" for name, count in self.refusals.items()
            )
            tables = [
                it
                for name in self.refusals
                if name != "FENCED"
                for it in self._examples((name,), f"Examples of {name} rows")
            ]
            words = column_options(self.policy.columns, Columns())
            advice = Command("See what other policies would do", command("advise", self.source, *words))
            yield Section(
                "refused",
                "Which rows are refused?",
                f"{self.refused:,} rows",
                f"{answer}.",
                "note",
                tables=tables,
                commands=[advice],
            )

    # Texts

    def _audit(self, *words: str, policy: Policy | None = None) -> str:
        return command("audit", self.source, *options(policy or self.policy), *words)

    def _audit_by_epoch(self) -> str:
        """The command line of an audit with a column of epochs that the reader has to name."""
        epochs = "key" if self.policy.epochs == "ignore" else self.policy.epochs
        policy = self.policy.replace(epochs=epochs, columns=dataclasses.replace(self.policy.columns, epoch="COLUMN"))
        return self._audit(policy=policy)

    def _of_rows(self, said: str) -> str:
        return f"{said}, of {self.report.rows:,} rows."

    def _name(self, row: dict[str, Any], columns: Sequence[str]) -> str:
        return self._label(_key(row, columns))

    def _label(self, key: tuple[Any, ...]) -> str:
        return " / ".join(text(it) for it in key)

    def _kinds(self) -> dict[str, str]:
        at = "time" if self.unit == "ms" else "count"
        ids = dict.fromkeys([*self.pids, *self.parts, "epoch", "first_epoch", "last_epoch"], "id")
        return dict.fromkeys(COUNTS, "count") | ids | _TIMES | {"since": at, "until": at}


def _grouped(keys: Any, columns: list[str]) -> Any:
    """Group keys by some of their columns and add a column `findings`; those with the most first."""
    import pyarrow.compute as pc

    how = dict.fromkeys(("rows", *KINDS), "sum") | {"since": "min", "until": "max"}
    if not columns:
        return keys.slice(0, 0)
    total = keys.group_by(columns, use_threads=False).aggregate(list(how.items()))
    total = total.rename_columns([*columns, *how])
    found = total.append_column("findings", reduce(pc.add, (total[kind] for kind in KINDS)))
    ordered = [("findings", "descending"), *((name, "ascending") for name in columns)]
    return found.sort_by(ordered) if len(found) else found


def _of_keys(keys: Any, columns: list[str], wanted: Collection[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the keys of the wanted producers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(keys) or not wanted:
        return []
    is_wanted = None
    for at, name in enumerate(columns):
        values = pa.array([it[at] for it in wanted], keys[name].type)
        found = pc.is_in(keys[name], values)
        is_wanted = found if is_wanted is None else pc.and_(is_wanted, found)
    return [row for row in keys.filter(is_wanted).to_pylist() if _key(row, columns) in wanted]


def _key(row: dict[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _bounds(keys: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    return (pc.min(keys["since"]).as_py(), pc.max(keys["until"]).as_py()) if len(keys) else (None, None)


def _without_outliers(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Drop outlying bins that hold at most a hundredth of the rows. Returns the other bins and the number of dropped
    rows."""

    def weight(row: dict[str, Any]) -> int:
        return int(max(row["rows"], *(row[kind] for kind in KINDS)))

    allowed, left_out = sum(map(weight, rows)) / 100, 0
    kept = list(rows)
    while len(kept) > 2:
        gaps = [later["first"] - earlier["last"] for earlier, later in pairwise(kept)]
        widest = max(range(len(gaps)), key=gaps.__getitem__)
        one, other = kept[: widest + 1], kept[widest + 1 :]
        few, many = sorted((one, other), key=lambda side: sum(map(weight, side)))
        out = sum(map(weight, few))
        if left_out + out > allowed or gaps[widest] <= 2 * (many[-1]["last"] - many[0]["first"] + 1):
            break
        kept, left_out = many, left_out + out
    return kept, left_out


def _minute_after(ms: int) -> str:
    """The first minute that begins after a time."""
    return utc((ms // 60_000 + 1) * 60_000, "minutes")


def _some(*charts: Chart | None) -> list[Chart]:
    return [it for it in charts if it is not None]


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{_short(first)} – {_short(last)}"


def _short(number: int) -> str:
    for unit, letter in ((10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number // unit:,} {letter}"
    return f"{number:,}"


_SPANS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"), (1, "millisecond"))


def _span(width: int, unit: str) -> str:
    if unit == "rows":
        return f"{width:,} positions" if width > 1 else "one position"
    unit_ms, name = next(it for it in _SPANS if width % it[0] == 0)
    return f"one {name}" if width == unit_ms else f"{width // unit_ms} {name}s"
