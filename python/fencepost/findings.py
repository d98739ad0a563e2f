"""What an audit found: figures for programs, a page for people, tables for whoever wants to know more."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost.errors import PolicyError
from fencepost.pages.tables import key_names, utc
from fencepost.policy import Policy
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from fencepost.pages.charts import Chart

FINDINGS = ("missing", "duplicate", "stale", "reset", "conflict")
"""What `AuditReport.found` can be asked for."""
SHOWN_MAX = 10
"""Lines of a table that the text shows, unless told otherwise."""
IGNORED_MAX = 100
"""Files of other names that a report lists."""
ADVICE_ROWS = 2_000_000
"""Rows that advice reads, unless told otherwise: those at the beginning, so that no gap is due to the sample."""
RESET_ROWS_MIN = 1
"""Retimed repeats from which a key is suspected, unless told otherwise: one cannot be a copy."""


def reset_rule(rows_min: int) -> str:
    """What makes a key suspected, in words."""
    return f"{rows_min:,} or more repeats have another timestamp than the row they repeat, or are newer than all before"


def ignored_line(ignored: tuple[str, ...]) -> tuple[str, str, str]:
    """(what, how many, what that means) of files that were not read for their names."""
    more = " or more" if len(ignored) == IGNORED_MAX else ""
    names = f"{', '.join(ignored[:3])}{', …' if len(ignored) > 3 else ''}"
    return "ignored", f"{len(ignored):,}", f"files{more} whose names do not end in .parquet: {names}"


def check_reset_rows_min(rows_min: int) -> None:
    """Raises ValueError for a threshold below 1."""
    if rows_min < 1:
        raise ValueError(f"reset_rows_min={rows_min}: 1 row or more were expected")


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What rows say about their producers. Tables are `pyarrow.Table`; `str(report)` is for people.

    The key columns of the tables are pid and partition (composites pid_0, pid_1 …), as in `StateTable.entries`.
    """

    policy: str
    rules: Policy
    """The policy by which rows were judged, with the columns that were read."""
    identity: tuple[str, ...]
    """The columns that told rows apart: pid, epoch, partition, seq, composites part by part."""
    order: str
    """In which order the rows were judged."""
    source: str | None
    """The folder or file; None for rows in memory."""
    files: int
    """Files that were read; 0 for rows in memory."""
    unreadable: tuple[tuple[str, str], ...]
    """(path relative to the source, why) of files that could not be read, or not to their end. Rows before the damage
    are counted where they had been judged."""
    ignored: tuple[str, ...]
    """The first 100 files that were not read because their names do not end in .parquet, relative to the source; those
    that begin with _ or . are not among them."""
    bytes: int
    rows: int
    counts: dict[str, int]
    """Rows by name of verdict; they add up to `rows`."""
    missing_ranges: int
    missing_rows: int
    """Ranges of sequences that never came, and how many rows they stand for."""
    missing: Any
    """The ranges: key columns, epoch, first_seq, last_seq, count. With a table given, what it missed before as well.
    Where timestamps were read and late rows are accepted, also timestamp: that of the row by which the range was
    skipped, in milliseconds.

    Also of epochs that a later one has replaced, which their table does not list any more: what had not come by then
    never came. What a policy's `reach` has given up is not listed under policies that accept late rows."""
    stale_epoch: int
    """Rows below the highest epoch of their key: what zombies wrote."""
    stale: Any
    """Whose rows they were: key columns, epoch, count, the most first."""
    resets: Any
    """Keys that numbered anew under another epoch: key columns, first_epoch, last_epoch (lowest and highest seen)."""
    suspected_resets: Any
    """Keys that seem to have numbered anew under the *same* epoch: key columns, rows, duplicates, retimed; None where
    no timestamps were read. A copy carries the timestamp of the row it repeats. `retimed` counts the repeats that
    cannot be copies: their timestamp is not that of the kept row, or, where the kept row is not remembered, they are
    newer than all that was accepted of their entry before them. Kept rows are remembered up to 262,144 a thread; of
    more, a sample is (`distance_share`)."""
    reset_rows_min: int
    """Retimed repeats from which a key is suspected."""
    keys: Any
    """Keys with any finding, the most first: key columns, rows, duplicates, refused, missing, stale, since, until.
    `refused` counts rows that are neither kept nor repeats. `since` and `until` are where the first and the last of
    these findings are, in `timeline_unit`."""
    timeline: Any
    """Rows over time, in at most 240 bins: first, last (in `timeline_unit`, inclusive), rows, duplicates, missing,
    stale, refused. Bins without rows are left out. Without timestamps only findings are counted: `rows` and `missing`
    are 0."""
    timeline_unit: str
    """"ms": timestamps of the rows, in milliseconds since 1970; "rows": their positions in the order of the audit."""
    examples: Any
    """Up to 20 rows of each kind of finding, a fair sample of identities: what, key columns, epoch, seq, timestamp
    (where read), row, kept_row and kept_timestamp (of the row that a repeat repeats, null where it is not remembered).
    `what` is DUPLICATE, OUT_OF_ORDER, FENCED, FORGOTTEN, STALE (accepted, of a replaced epoch) or RETIMED (a repeat
    with another timestamp). Of files: file and kept_file too, and rows are counted within the file."""
    producers: int
    """Producers seen, by pid."""
    producers_by_rows: Any
    """Those of the most rows: pid columns, rows, duplicates."""
    producers_by_duplicates: Any
    """Those of the most duplicates, in the same columns."""
    distances: Any
    """How far repeats lie behind what they repeat: first, last, repeats. A distance is how many rows of the audit, of
    whatever key, the repeat comes after the kept copy; 1 is the next row."""
    distance_share: float
    """The share of repeats whose distance was looked at: 1 is all. Below that, `distances` are estimates from it."""
    repeats_of_unseen: int
    """Repeats of rows that this audit did not see: a table knew them before, or a policy calls late rows duplicates.
    They have no distance; estimated as `distances` are."""
    content_compared: int | None
    """Repeats that were compared with the row they repeat; None where content is not compared."""
    conflicts: Any
    """Some of the CONFLICT rows; None where content is not compared. Of files: identity columns (texts), file, row,
    kept_file, kept_row, column (the first that differs), found and kept (its two values, as texts). Of other rows: row
    and kept_row, their numbers."""
    border: int
    """Rows that only the border of the wrap could place on a lap."""

    @property
    def tables(self) -> dict[str, Any]:
        """The tables, by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in fields.items() if hasattr(value, "to_pylist")}

    def to_pandas(self) -> dict[str, Any]:
        """The tables as pandas DataFrames, by name."""
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def to_json(self, rows_max: int | None = None) -> str:
        """Everything, tables as lists of objects. `rows_max`: how many rows of each, all unless given."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"rules": self.rules.rules, "columns": dataclasses.asdict(self.rules.columns)}
        fields |= {name: table.slice(0, rows_max).to_pylist() for name, table in self.tables.items()}
        fields |= {f"{name}_keys": None if (it := getattr(self, name)) is None else len(it) for name in _KEY_TABLES}
        return json.dumps(fields, default=_plain)

    def to_html(self) -> str:
        """A page with charts, as one file that loads nothing. Raises FencepostError without `fencepost[report]`."""
        from fencepost.pages.audit import audit_page

        return audit_page(self).to_html()

    def _repr_html_(self) -> str | None:
        from fencepost.pages.audit import audit_page
        from fencepost.pages.charts import is_installed

        return audit_page(self).frame() if is_installed() else None

    @property
    def charts(self) -> dict[str, Chart]:
        """The charts of the page, by name: over_time, distances, producers, partitions, heat_map; those that have
        anything to show. `report.charts["over_time"].save("over_time.png")` writes one."""
        from fencepost.pages.audit import audit_charts

        return audit_charts(self)

    def found(self, *kinds: str) -> dict[str, int]:
        """How much there is of each kind of finding: "missing", "duplicate", "stale", "conflict" (rows) and
        "reset" (keys).

        All kinds that were looked for unless named; what there is none of is left out. Raises PolicyError for a kind
        that does not exist, for "reset" where no timestamps were read, and for "conflict" where content was not
        compared.
        """
        for kind in kinds:
            if kind not in FINDINGS:
                raise PolicyError(f"no finding is called '{kind}'; there are {', '.join(FINDINGS)}")
        if "reset" in kinds and self.suspected_resets is None:
            raise PolicyError("suspected resets were not looked for: that needs a timestamp column, so name it")
        if "conflict" in kinds and self.content_compared is None:
            raise PolicyError("content was not compared: that needs compare_content")
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
        """The page for people; of each table `rows_max` rows."""
        lines = [f"audit of {self.source or 'rows'}, policy {self.policy}"]
        lines += _aligned([*self._figures()])
        for title, table in self._shown():
            if len(table) and rows_max:
                more = "" if len(table) <= rows_max else f" (the first {rows_max:,} of {len(table):,})"
                lines += ["", f"{title}{more}", *_grid(self.named(table.slice(0, rows_max)))]
        return "\n".join(lines)

    def column_names(self) -> dict[str, str]:
        """How the rows name the key columns of the tables."""
        return key_names(self.resets.column_names, self.identity)

    def named(self, table: Any) -> Any:
        """One of the tables with its key columns named as the rows have them."""
        names = self.column_names()
        return table.rename_columns([names.get(name, name) for name in table.column_names])

    def _figures(self) -> Iterator[tuple[str, str, str]]:
        """(what, how many, what that means)."""
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
            yield f"  {name}", f"{count:,}", f"{count / self.rows:.2%}{_NOTES.get(name, '')}"
        yield "missing", f"{self.missing_rows:,}", f"rows that never came, in {self.missing_ranges:,} ranges"
        yield "stale epoch", f"{self.stale_epoch:,}", "rows of producers that a later epoch had replaced"
        yield "resets", f"{len(self.resets):,}", "keys that numbered anew under another epoch"
        if self.suspected_resets is None:
            yield "", "?", "keys under the same epoch: not looked for, no timestamp column was named"
        else:
            rule = reset_rule(self.reset_rows_min)
            yield "", f"{len(self.suspected_resets):,}", f"keys that seem to number anew under the same epoch: {rule}"
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
        if self.counts.get("DUPLICATE"):
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


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _aligned(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max(len(number) for _, number, _ in rows)
    return [f"  {name:<16}{number:>{width}}  {note}".rstrip() for name, number, note in rows]


def _grid(table: Any) -> list[str]:
    """The rows of a table in columns: numbers to the right, words to the left."""
    columns = [table[name].to_pylist() for name in table.column_names]
    are_numbers = [all(isinstance(value, int | None) for value in column) for column in columns]
    cells = [
        [name, *(_cell(value, name) for value in column)]
        for name, column in zip(table.column_names, columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in cells]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        ).rstrip()
        for row in zip(*cells, strict=True)
    ]


def _cell(value: object, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and name in _COUNTS:
        return f"{value:,}"
    if isinstance(value, int) and name == "timestamp":
        return utc(value)
    return _plain(value)


# Columns that count; the others name.
_COUNTS = {"count", "rows", "duplicates", "retimed", "repeats", "first", "last"}

assert set(_NOTES) <= {verdict.name for verdict in Verdict}
