"""The reader of the broker's rule book: turns the pages of `spec/broker` into cases that any door can run.

`spec/broker/README.md` explains the format. A misspelt line fails instead of passing unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.rule_pages import cases_of, cells

if TYPE_CHECKING:
    import pyarrow as pa

PAGES = Path(__file__).parents[2] / "spec" / "broker"
SEQUENCES = 2**31
MAX = SEQUENCES - 1
INTEGERS = (
    *("pid", "epoch", "partition", "base_seq", "count", "last_seq", "offset", "last_offset", "timestamp"),
    *("coordinator_epoch", "transaction_version"),
)
COLUMNS = (*INTEGERS, "transactional", "control", "origin")
DEFAULTS = {"pid": 7, "epoch": 0, "partition": 0}
OPTIONS = {"version", "window", "first", "offsets", "max_idle_ms"}
ACTIONS = {"evict": {"now"}, "restart": {"now"}, "set_log_end": {"partition", "offset"}}


class Row(NamedTuple):
    """A batch or a marker, by the names of `BatchColumns`, and its expected result."""

    pid: int | None = None
    epoch: int | None = None
    partition: int | None = None
    base_seq: int | None = None
    count: int | None = None
    last_seq: int | None = None
    offset: int | None = None
    last_offset: int | None = None
    timestamp: int | None = None
    coordinator_epoch: int | None = None
    transaction_version: int | None = None
    transactional: bool | None = None
    control: str | None = None
    origin: str | None = None
    verdict: str = "-"
    expected: int | None = None
    answered: int | None = None

    @property
    def has_sequences(self) -> bool:
        """Whether last_seq can replace count: not without a producer or a sequence."""
        return self.pid not in (None, -1) and self.base_seq is not None and self.base_seq >= 0


class Kept(NamedTuple):
    """A batch in a window. Sequences are -1 where it has none, offsets None where none were given."""

    first: int
    last: int
    first_offset: int | None
    last_offset: int | None


class Entry(NamedTuple):
    """What is remembered of a producer in a partition.

    `txn` is None, or the first offset of the open transaction, "?" where that has none. The coordinator's epoch
    and the timestamp are -1 where there is none.
    """

    pid: int
    partition: int
    epoch: int
    window: tuple[Kept, ...]
    txn: int | str | None
    coordinator_epoch: int
    last_timestamp: int


class Error(NamedTuple):
    """The call is refused whole; `row` is None for a whole column. `column` is "policy" for a PolicyError."""

    column: str
    row: int | None


@dataclass
class Call:
    """One `apply` of one table, and its expected result."""

    line: int
    # In a call: the columns that are there, be they null in all of its rows.
    columns: frozenset[str]
    # Whether base_seq and what goes with it were written as `seq`.
    has_seq: bool = False
    has_answers: bool = False
    rows: list[Row] = field(default_factory=list)
    entries: list[Entry] | None = None
    log_end: dict[int, int] = field(default_factory=dict)
    error: Error | None = None

    def part(self, rows: list[Row]) -> Call:
        """A call of some of the rows, with nothing expected of it."""
        return Call(self.line, self.columns, self.has_seq, self.has_answers, rows)

    def spelt(self, by: str) -> Call:
        """The same call with `seq` passed as base_seq and a `count`, or a `last_seq`."""
        if not self.has_seq:
            return self
        other = "last_seq" if by == "count" else "count"
        rows = [row._replace(**{other: None}) if by == "count" or row.has_sequences else row for row in self.rows]
        columns = self.columns - {other} if all(getattr(row, other) is None for row in rows) else self.columns
        return replace(self, columns=columns, rows=rows)


@dataclass
class Action:
    """An operation on a table other than `apply`, and its expected result."""

    line: int
    name: str
    arguments: dict[str, int]
    dropped: int = 0
    entries: list[Entry] | None = None
    log_end: dict[int, int] = field(default_factory=dict)
    error: Error | None = None


@dataclass
class Case:
    """Options and what is done, one after the other, to a table of them; or options that are refused."""

    page: str
    line: int
    options: dict[str, Any]
    refused: bool = False
    steps: list[Call | Action] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def cases(pages: Path = PAGES) -> list[Case]:
    """Every case of every page, in order."""
    return cases_of(pages, read_page)


def read_page(page: str, text: str) -> list[Case]:
    """The cases of one page. Fails on a page that states nothing."""
    found: list[Case] = []
    header: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            header = []
        if line.startswith("broker:"):
            found.append(Case(page, number, _options(line.removeprefix("broker:"))))
        elif line.partition(":")[0] in ACTIONS:
            found[-1].steps.append(_action(number, line))
        elif line.startswith("|") and not header:
            header = cells(line)
            if header[0] != "refused":
                found[-1].steps.append(_call(number, header))
        elif line.startswith("|") and not line.startswith("|-"):
            row = dict(zip(header, cells(line), strict=True))
            if "refused" in row:
                found.append(Case(page, number, _options(row["refused"]), refused=True))
            else:
                found[-1].calls[-1].rows.append(_row(row))
        elif line.startswith("- "):
            _expect(found[-1].steps[-1], line.removeprefix("- "))
    _check_page(page, found)
    return found


def _check_page(page: str, found: list[Case]) -> None:
    assert any(call.rows for case in found for call in case.calls), f"{page}: no batch at all"
    for case in found:
        assert case.refused or case.calls, f"{case}: options without a table"
        for call in case.calls:
            where = f"{page}:{call.line}"
            assert call.rows, f"{where}: a table without a batch"
            for row in call.rows:
                assert (row.verdict == "-") == (call.error is not None), f"{where}: verdict or error, never both: {row}"


def _options(text: str) -> dict[str, Any]:
    pairs = [word.split("=") for word in text.split()]
    assert {name for name, _ in pairs} <= OPTIONS, f"unknown option in {text}"
    return {name: value if name in ("version", "first", "offsets") else int(value) for name, value in pairs}


def _action(line: int, text: str) -> Action:
    name, _, rest = text.partition(":")
    arguments = {key: _integer(value) for key, value in (word.split("=") for word in rest.split())}
    assert arguments.keys() == ACTIONS[name], f"line {line}: {text}"
    return Action(line, name, arguments)


def _call(line: int, header: list[str]) -> Call:
    known = {*COLUMNS, "seq", "verdict", "expected", "offsets", "why"}
    assert set(header) <= known, f"line {line}: unknown column in {header}"
    spelt = {"base_seq", "count", "last_seq"} if "seq" in header else set()
    # A table always has these, be there nothing in them.
    needed = {*DEFAULTS, "base_seq", *(() if "last_seq" in header else ("count",))}
    columns = (set(header) & set(COLUMNS)) | needed | spelt
    return Call(line, frozenset(columns), "seq" in header, "offsets" in header)


def _integer(text: str) -> int:
    """An integer, or MAX, or so much less than MAX."""
    if text.startswith("MAX"):
        return MAX - int(text.removeprefix("MAX").removeprefix("-") or 0)
    return int(text)


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return _integer(first), _integer(last or first)


def _seq(text: str) -> dict[str, int]:
    """`5`, `0..4`, `MAX-1..3`, `none` or `none*3`, as columns; nothing for an empty cell."""
    if not text:
        return {}
    if text.startswith("none"):
        return {"base_seq": -1, "count": int(text.partition("*")[2] or 1), "last_seq": -1}
    first, last = _range(text)
    return {"base_seq": first, "count": (last - first) % SEQUENCES + 1, "last_seq": last}


def _row(cells: dict[str, str]) -> Row:
    fields: dict[str, Any] = dict(DEFAULTS)
    fields |= {name: _integer(cells[name]) if cells[name] else None for name in INTEGERS if name in cells}
    fields |= {name: cells[name] or None for name in ("control", "origin") if name in cells}
    fields |= _seq(cells.get("seq", ""))
    flag = cells.get("transactional", "")
    assert flag in ("", "yes", "no"), f"transactional is yes, no or empty: {cells}"
    if flag:
        fields["transactional"] = flag == "yes"
    verdict, expected = cells["verdict"], cells.get("expected", "")
    assert (expected != "") == (verdict == "OUT_OF_ORDER"), f"expected belongs to OUT_OF_ORDER alone: {cells}"
    fields["verdict"] = verdict
    fields["expected"] = _integer(expected) if expected else None
    fields["answered"] = int(cells["offsets"]) if cells.get("offsets") else None
    return Row(**fields)


def _expect(step: Call | Action, text: str) -> None:
    label, value = text.split(": ", 1)
    known = {name for name in ("entries", "log_end", "dropped", "error") if hasattr(step, name)}
    assert label in known, f"unknown expectation '{label}'"
    if label == "error":
        column, _, row = value.partition(", row ")
        step.error = Error(column, int(row) if row else None)
    elif label == "entries":
        step.entries = [] if value == "none" else [_entry(item) for item in value.split("; ")]
    elif label == "log_end":
        pairs = (item.split(": ") for item in value.split("; "))
        step.log_end = {int(partition): int(offset) for partition, offset in pairs}
    else:
        step.dropped = int(value)


_ENTRY = re.compile(
    r"(-?\d+) / (\d+): e(\d+) \[(.*)\](?: txn (\d+|\?))?(?: coord (\d+))?(?: at (-?\d+))?",
)


def _entry(text: str) -> Entry:
    """`pid / partition: epoch [sequences@offsets, ...] txn offset coord epoch at timestamp`."""
    match = _ENTRY.fullmatch(text)
    assert match, f"not an entry: {text}"
    pid, partition, epoch, window, txn, coordinator_epoch, at = match.groups()
    return Entry(
        *(int(pid), int(partition), int(epoch)),
        window=tuple(_kept(batch) for batch in window.split(", ") if batch),
        txn=txn if txn in (None, "?") else int(txn),
        coordinator_epoch=int(coordinator_epoch or -1),
        last_timestamp=int(at or -1),
    )


def _kept(text: str) -> Kept:
    seqs, _, offsets = text.partition("@")
    first, last = (-1, -1) if seqs == "none" else _range(seqs)
    return Kept(first, last, *(_range(offsets) if offsets else (None, None)))


def to_arrow(call: Call) -> pa.Table:
    """The batches of a call as an Arrow table with the columns that it has."""
    import pyarrow as pa

    kinds = {"transactional": pa.bool_(), "control": pa.string(), "origin": pa.string()}
    kinds |= {"epoch": pa.int64(), "transaction_version": pa.int8(), "coordinator_epoch": pa.int32()}
    columns = [name for name in COLUMNS if name in call.columns]
    return pa.table(
        {name: pa.array([getattr(row, name) for row in call.rows], kinds.get(name, pa.int64())) for name in columns}
    )
