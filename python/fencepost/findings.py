"""The report of an audit: figures for programs, text for people, tables for further analysis."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost.errors import PolicyError
from fencepost.policy import Policy
from fencepost.report import Report, aligned, grid, plain
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from fencepost.pages.charts import Chart
    from fencepost.pages.page import Page

FINDINGS = ("missing", "duplicate", "stale", "reset", "conflict")
"""The kinds of findings that `AuditReport.count_findings` accepts."""
ORDER_OF_ROWS = "as the rows came"
"""The order of an audit of rows in memory, or of a stream."""
SHOWN_MAX = 10
"""Default number of table lines in the text."""
IGNORED_MAX = 100
"""Maximum number of files with other names that a report lists."""
ADVICE_ROWS = 2_000_000
"""Default number of rows that advice reads, from the beginning: a random sample would have gaps of its own."""
RESET_ROWS_MIN = 1
"""Default number of retimed repeats from which a key is suspected of a reset. One is enough: it cannot be a copy."""


def reset_rule(rows_min: int) -> str:
    """Describe the rule for suspected resets."""
    return f"{rows_min:,} or more repeats have another timestamp than the row they repeat, or are newer than all before"


def ignored_line(ignored: tuple[str, ...]) -> tuple[str, str, str]:
    """Return (label, count, explanation) for files that were not read because of their names."""
    more = " or more" if len(ignored) == IGNORED_MAX else ""
    names = f"{', '.join(ignored[:3])}{', …' if len(ignored) > 3 else ''}"
    return "ignored", f"{len(ignored):,}", f"files{more} whose names do not end in .parquet: {names}"


def why_not_found(kind: str, policy: Policy) -> str | None:
    """Return why an audit by this policy cannot find a kind of finding, or None if it can."""
    if kind == "missing":
        return policy.why_gaps_are_unknown
    return "this policy ignores epochs" if kind == "stale" and policy.epochs == "ignore" else None


def check_reset_rows_min(rows_min: int) -> None:
    """Raise ValueError if the threshold is below 1."""
    if rows_min < 1:
        raise ValueError(f"reset_rows_min={rows_min}: expected 1 row or more")


@dataclass(frozen=True, kw_only=True)
class AuditReport(Report):
    """The findings of an audit. Tables are `pyarrow.Table`; `str(report)` is a text for people.

    The key columns of the tables are pid and partition (composite keys: pid_0, pid_1 …), as in `StateTable.entries`.
    """

    policy: str
    rules: Policy
    """The policy that judged the rows, with the columns that were read."""
    identity: tuple[str, ...]
    """The identity columns: pid, epoch, partition, seq. Composite keys are expanded."""
    order: str
    """The order in which the rows were judged."""
    source: str | None
    """The folder or file. None for rows in memory."""
    files: int
    """Number of files read. 0 for rows in memory."""
    unreadable: tuple[tuple[str, str], ...]
    """(path relative to the source, reason) of files that could not be read to their end. Rows that were judged before
    the damage are counted."""
    ignored: tuple[str, ...]
    """The first 100 files that were skipped because their names do not end in .parquet, relative to the source. Names
    that begin with _ or . are not listed."""
    bytes: int
    """Size of the files read, including all columns, compressed. 0 for rows in memory."""
    rows: int
    counts: dict[str, int]
    """Number of rows by name of verdict. The numbers add up to `rows`."""
    missing_ranges: int
    missing_rows: int
    """Number of ranges of sequences that never came, and number of their rows."""
    missing: Any
    """The missing ranges: key columns, epoch, first_seq, last_seq, count. If a table was passed, its earlier missing
    ranges are included. If timestamps were read and late rows are accepted, also timestamp: that of the row that
    skipped the range, in milliseconds.

    Includes epochs that a later epoch has replaced: their missing rows can no longer come. Under policies that accept
    late rows, ranges that became final by `reach` are not listed.
    """
    stale_epoch: int
    """Number of rows below the highest epoch of their key, written by zombies."""
    stale: Any
    """These rows by key: key columns, epoch, count. The largest counts come first."""
    resets: Any
    """Keys that restarted their numbers under another epoch: key columns, first_epoch, last_epoch (lowest and highest
    seen)."""
    suspected_resets: Any
    """Keys that probably restarted their numbers under the *same* epoch: key columns, rows, duplicates, retimed. None
    if no timestamps were read.

    A copy has the timestamp of the row it repeats. `retimed` counts the repeats that cannot be copies. Their timestamp
    differs from that of the kept row, or, if the kept row is not in memory, it is newer than everything their entry
    accepted before. Each thread remembers up to 262,144 kept rows, and a sample if there are more (`distance_share`).
    """
    reset_rows_min: int
    """Number of retimed repeats from which a key is suspected."""
    keys: Any
    """Keys with any finding, those with the most first: key columns, rows, duplicates, refused, missing, stale, since,
    until. `refused` counts rows that are neither kept nor repeats. `since` and `until` locate the first and the last of
    these findings, in `timeline_unit`."""
    timeline: Any
    """Rows over time, in at most 240 bins: first, last (inclusive, in `timeline_unit`), rows, duplicates, missing,
    stale, refused. Empty bins are left out. Without timestamps, only duplicates, stale and refused rows are counted;
    `rows` and `missing` are 0. For files without timestamps, also file.
    """
    timeline_unit: str
    """"ms": timestamps of the rows, in milliseconds since 1970. "rows": row numbers in the order of the audit."""
    examples: Any
    """Up to 20 rows of each kind of finding, a fair sample of identities. Columns: `what`, key columns, epoch, seq, row
    and kept_row (of the row that a repeat repeats; null if unknown). If timestamps were read, also timestamp and
    kept_timestamp.

    `what` is DUPLICATE, OUT_OF_ORDER, FENCED, FORGOTTEN, STALE (accepted, of a replaced epoch) or RETIMED (a repeat
    with another timestamp). For files there are also file and kept_file, and row numbers are within the file.

    The last rows are BEFORE_GAP and AFTER_GAP: the rows with the numbers before and after missing ranges, the largest
    ranges first. Such a row is known only if it is one of the kept rows in memory (`suspected_resets`). There are none
    if numbers were used again after a wrap.
    """
    producers: int
    """Number of different producers (pid)."""
    producers_by_rows: Any
    """The producers with the most rows: pid columns, rows, duplicates."""
    producers_by_duplicates: Any
    """The producers with the most duplicates, with the same columns."""
    distances: Any
    """Histogram of the distance between a repeat and its kept row: first, last, repeats. The distance is a number of
    rows of any key in the audit; 1 is the next row."""
    distance_share: float
    """The share of repeats whose distance was measured, from 0 to 1. Below 1, `distances` is an estimate."""
    repeats_of_unseen: int
    """Number of repeats whose first row is not part of this audit: a passed table knew it, or the policy calls late
    rows duplicates. They have no distance. Estimated like `distances`."""
    content_compared: int | None
    """Number of repeats that were compared with the row they repeat. None if content was not compared."""
    conflicts: Any
    """Some of the CONFLICT rows. None if content was not compared.

    For files: identity columns (text), file, row, kept_file, kept_row, column (the first that differs), found and kept
    (its two values, as text). For other rows: row and kept_row, as row numbers.
    """
    border: int
    """Number of rows that were put into another lap than the highest accepted row, because both are near the end of the
    number range. A lap is one pass from 0 to wrap - 1."""

    @property
    def tables(self) -> dict[str, Any]:
        """The tables, by name."""
        return {name: value for name, value in vars(self).items() if hasattr(value, "to_pylist")}

    def to_pandas(self) -> dict[str, Any]:
        """Return the tables as pandas DataFrames, by name."""
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def to_json(self, rows_max: int | None = None) -> str:
        """Return the report as JSON, tables as lists of objects. `rows_max`: rows per table; None for all."""
        fields = vars(self) | {"rules": self.rules.rules, "columns": dataclasses.asdict(self.rules.columns)}
        fields |= {name: table.slice(0, rows_max).to_pylist() for name, table in self.tables.items()}
        fields |= {f"{name}_keys": None if (it := getattr(self, name)) is None else len(it) for name in _KEY_TABLES}
        return json.dumps(fields, default=plain)

    def _page(self) -> Page:
        from fencepost.pages.audit import audit_page

        return audit_page(self)

    def _charts(self) -> dict[str, Chart]:
        from fencepost.pages.audit import audit_charts

        return audit_charts(self)

    def count_findings(self, *kinds: str) -> dict[str, int]:
        """Return the number of findings by kind. Kinds without findings are left out.

        Args:
            kinds: "missing", "duplicate", "stale", "conflict" (numbers of rows) and "reset" (number of keys). Default:
                all kinds that were searched for.

        Raises:
            PolicyError: A kind is unknown, or was not searched for: "reset" without timestamps, "conflict" without
                comparison of content, "missing" under a policy that does not count gaps, "stale" without epochs.
        """
        for kind in kinds:
            if kind not in FINDINGS:
                raise PolicyError(f"unknown finding '{kind}'; findings are {', '.join(FINDINGS)}")
        if "reset" in kinds and self.suspected_resets is None:
            raise PolicyError("this audit did not search for resets: pass a timestamp column")
        if "conflict" in kinds and self.content_compared is None:
            raise PolicyError("this audit did not compare content: pass compare_content")
        for kind in kinds:
            if (why := why_not_found(kind, self.rules)) is not None:
                raise PolicyError(f"this audit did not search for '{kind}': {why}")
        counts = {
            "missing": self.missing_rows,
            "duplicate": self.counts.get("DUPLICATE", 0),
            "stale": self.stale_epoch,
            "conflict": self.counts.get("CONFLICT", 0),
            "reset": 0 if self.suspected_resets is None else len(self.suspected_resets),
        }
        return {kind: counts[kind] for kind in kinds or FINDINGS if counts[kind]}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, rows_max: int = SHOWN_MAX) -> str:
        """Return the report as text. `rows_max`: rows per table."""
        lines = [f"audit of {self.source or 'rows'}, policy {self.policy}"]
        lines += aligned([*self._figures()])
        for title, table in self._shown():
            if len(table) and rows_max:
                more = "" if len(table) <= rows_max else f" (the first {rows_max:,} of {len(table):,})"
                lines += ["", f"{title}{more}", *_grid(self.named(table.slice(0, rows_max)))]
        return "\n".join(lines)

    def column_names(self) -> dict[str, str]:
        """Return the input's names of the key columns of the tables."""
        from fencepost.pages.tables import key_names

        return key_names(self.resets.column_names, self.identity)

    def named(self, table: Any) -> Any:
        """Return one of the tables with the input's names of the key columns."""
        if self.rules.columns.epoch is None and "epoch" in table.column_names:
            table = table.drop_columns(["epoch"])  # has only nulls, and a part of the producer may have this name
        names = self.column_names()
        return table.rename_columns([names.get(name, name) for name in table.column_names])

    def _figures(self) -> Iterator[tuple[str, str, str]]:
        """Yield (label, number, explanation)."""
        yield "identity", "", ", ".join(self.identity)
        yield "order", "", self.order
        where = f" in {self.files:,} files, {self.bytes / 1e6:,.1f} MB" if self.files else ""
        yield "read", f"{self.rows:,}", f"rows{where}"
        if self.unreadable:
            yield "unreadable", f"{len(self.unreadable):,}", "files that could not be read; their rows are missing here"
            yield from (("", "", f"{path}: {why}") for path, why in self.unreadable[:SHOWN_MAX])
        if self.ignored:
            yield ignored_line(self.ignored)
        for name, count in self.counts.items():
            note = _NOTES.get(name, "")
            if name == "DUPLICATE" and self.rules.takes_late_for_repeats:
                note += ", or not above the highest number"
            yield f"  {name}", f"{count:,}", f"{count / self.rows:.2%}{note}"
        if (why := why_not_found("missing", self.rules)) is None:
            given_up = f"; {why}" if (why := self.rules.why_some_gaps_are_unknown) is not None else ""
            note = f"rows that never came, in {self.missing_ranges:,} ranges{given_up}"
            yield "missing", f"{self.missing_rows:,}", note
        else:
            yield "missing", "?", f"not looked for: {why}"
        if (why := why_not_found("stale", self.rules)) is None:
            yield "stale epoch", f"{self.stale_epoch:,}", "rows of producers that a later epoch had replaced"
        else:
            yield "stale epoch", "?", f"not looked for: {why}"
        yield "resets", f"{len(self.resets):,}", "keys whose numbers start again under another epoch"
        if self.suspected_resets is None:
            yield "", "?", "keys under the same epoch: not looked for, no timestamp column was named"
        else:
            rule = reset_rule(self.reset_rows_min)
            note = f"keys whose numbers seem to start again under the same epoch: {rule}"
            yield "", f"{len(self.suspected_resets):,}", note
        if self.content_compared is not None:
            number = f"{self.counts.get('CONFLICT', 0):,}"
            yield "conflicts", number, f"repeats with other content, of {self.content_compared:,} that were compared"
        yield "producers", f"{self.producers:,}", ""

    def _shown(self) -> Iterator[tuple[str, Any]]:
        if self.suspected_resets is not None:
            yield "suspected resets", self.suspected_resets
        if self.conflicts is not None:
            yield "repeats with other content", self.conflicts
        yield "missing", self.missing
        yield "stale epochs", self.stale
        yield "producers of the most rows", self.producers_by_rows
        if any(self.producers_by_duplicates["duplicates"].to_pylist()):
            yield "producers of the most duplicates", self.producers_by_duplicates
        if self.counts.get("DUPLICATE") or self.counts.get("CONFLICT"):
            estimated = "" if self.distance_share == 1 else f", estimated from {self.distance_share:.1%} of them"
            unseen = f"; {self.repeats_of_unseen:,} repeat what was not seen here" if self.repeats_of_unseen else ""
            yield f"repeats by how many rows after the kept copy they came{estimated}{unseen}", self.distances


_KEY_TABLES = ("resets", "suspected_resets")
_NOTES = {
    "UNTRACKED": ", no producer",
    "DUPLICATE": ", came before",
    "CONFLICT": ", came before with other content",
    "ACCEPTED": ", new",
}


def _grid(table: Any) -> list[str]:
    """Format a table: numbers right-aligned, text left-aligned."""
    columns = [column.to_pylist() for column in table.columns]
    are_numbers = [all(isinstance(value, int | None) for value in column) for column in columns]
    cells = [
        [name, *(_cell(value, name) for value in column)]
        for name, column in zip(table.column_names, columns, strict=True)
    ]
    return [f"  {line}" for line in grid([*zip(*cells, strict=True)], are_numbers)]


def _cell(value: object, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and name in _COUNTS:
        return f"{value:,}"
    if isinstance(value, int) and name == "timestamp":
        from fencepost.pages.tables import utc

        return utc(value)
    return plain(value)


# Columns that hold counts and get thousands separators. Other numbers are names.
_COUNTS = {"count", "rows", "duplicates", "retimed", "repeats", "first", "last"}

assert set(_NOTES) <= {verdict.name for verdict in Verdict}
