"""The reader of the rule book: turns the pages of `spec` into cases that any door can run.

`spec/README.md` explains the format. What a page does not list must not happen: a call without a
`missing` line expects none, and so on; a misspelt line therefore fails instead of passing unread.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.rule_pages import cases_of, cells

if TYPE_CHECKING:
    import pyarrow as pa

PAGES = Path(__file__).parents[2] / "spec"
ROLES = ("pid", "epoch", "partition", "seq")
RANGES = {"missing", "open", "final", "overlap"}
NUMBERS = {"stale_epoch", "border", "dropped", "horizon"}
HEADER = {*ROLES, "timestamp", "verdict", "expected", "why"}


class Row(NamedTuple):
    pid: Any
    epoch: Any
    partition: Any
    seq: Any
    verdict: str = "-"
    expected: int | None = None
    timestamp: int | None = None


class Missing(NamedTuple):
    """A range of sequences that was skipped; `epoch` is None where the policy ignores epochs."""

    pid: Any
    epoch: int | None
    partition: Any
    first_seq: int
    last_seq: int
    count: int


class Error(NamedTuple):
    """The call is refused whole; `row` is None for a whole column.

    `column` is "policy" for a PolicyError and "capacity" for a CapacityError.
    """

    column: str
    row: int | None


@dataclass
class Call:
    """One `apply` of one table, and its expected result."""

    line: int
    has_epoch: bool
    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    open: list[Missing] = field(default_factory=list)
    final: list[Missing] = field(default_factory=list)
    stale_epoch: int = 0
    border: int = 0
    error: Error | None = None
    # A part of a call has the columns of the whole, be they null in all of the part's rows.
    whole: Call | None = None
    has_timestamp: bool = False

    def part(self, rows: list[Row]) -> Call:
        """A call of some of the rows, with nothing expected of it."""
        return Call(self.line, self.has_epoch, rows, whole=self.whole or self, has_timestamp=self.has_timestamp)

    def has_text(self, role: str, index: int | None = None) -> bool:
        cells = [getattr(row, role) for row in (self.whole or self).rows]
        return any(isinstance(cell if index is None else cell and cell[index], str) for cell in cells)


@dataclass
class Action:
    """An operation on a table other than `apply`, and its expected result.

    `evict` and `forget` with their arguments; `other`, which begins a second table, of another policy where
    `arguments` has `policy` and `fields`; `merge`, which ends it.
    """

    line: int
    name: str
    arguments: dict[str, Any]
    dropped: int = 0
    horizon: int | None = None
    overlap: list[Missing] = field(default_factory=list)
    open: list[Missing] = field(default_factory=list)
    final: list[Missing] = field(default_factory=list)
    error: Error | None = None


ACTIONS = ("evict", "forget", "other", "merge")


@dataclass
class Case:
    """A policy and what is done, one after the other, to a table of it; or a policy that is refused."""

    page: str
    line: int
    policy: str
    fields: dict[str, Any]
    refused: bool = False
    steps: list[Call | Action] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def is_of_rows(self) -> bool:
        """Whether it has only rows, in any division into calls, so that any interface can run it."""
        is_timed = self.fields.keys() & {"keep", "intervals_max", "entries_max"}
        return len(self.calls) == len(self.steps) and not is_timed

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
        if line.startswith("policy: "):
            found.append(Case(page, number, *_policy(line.removeprefix("policy: "))))
        elif line.partition(":")[0] in ACTIONS:
            found[-1].steps.append(_action(number, line))
        elif line.startswith("|") and not header:
            header = cells(line)
            if header[0] != "refused":
                assert set(header) <= HEADER, f"{page}:{number}: unknown column in {header}"
                found[-1].steps.append(Call(number, "epoch" in header, has_timestamp="timestamp" in header))
        elif line.startswith("|") and not line.startswith("|-"):
            row = dict(zip(header, cells(line), strict=True))
            if "refused" in row:
                found.append(Case(page, number, *_policy(row["refused"]), refused=True))
            else:
                found[-1].calls[-1].rows += _rows(row)
        elif line.startswith("- "):
            _expect(found[-1].steps[-1], line.removeprefix("- "))
    _check_page(page, found)
    return found


def _check_page(page: str, found: list[Case]) -> None:
    assert any(call.rows for case in found for call in case.calls), f"{page}: no row at all"
    for case in found:
        assert case.refused or case.calls, f"{case}: a policy without a table"
        for call in case.calls:
            where = f"{page}:{call.line}"
            assert call.rows, f"{where}: a table without a row"
            for row in call.rows:
                assert (row.verdict == "-") == (call.error is not None), f"{where}: verdict or error, never both: {row}"


def _value(text: str) -> Any:
    """`null`, an integer, "text" or a (tuple, of, those)."""
    return ast.literal_eval(text.replace("null", "None"))


def _policy(text: str) -> tuple[str, dict[str, Any]]:
    name, *pairs = text.split()
    return name, {key: _field(value) for key, value in (pair.split("=") for pair in pairs)}


def _action(line: int, text: str) -> Action:
    """`name: argument=value argument=value`, or `other:` with a policy or none."""
    name, _, rest = text.partition(":")
    if name == "other":
        arguments = dict(zip(("policy", "fields"), _policy(rest), strict=True)) if rest.strip() else {}
    else:
        pairs = re.findall(r"(\w+)=(.*?)(?= \w+=|$)", rest)
        arguments = {key: _value(value) for key, value in pairs}
    wanted = {"evict": [{"now", "idle"}], "forget": [{"pid"}, {"pid", "partition"}], "merge": [set()]}
    assert name == "other" or arguments.keys() in wanted[name], f"line {line}: {text}"
    return Action(line, name, arguments)


def _field(text: str) -> Any:
    return None if text == "none" else int(text) if text.lstrip("-").replace("_", "").isdigit() else text


def _rows(cells: dict[str, str]) -> list[Row]:
    """One row, or as many as the span `first..last` in the column seq has."""
    pid, epoch, partition = (_value(cells.get(role, "null")) for role in ROLES[:3])
    first, _, last = cells["seq"].partition("..")
    seqs = range(int(first), int(last) + 1) if last else [_value(first)]
    timestamp = _value(cells.get("timestamp", "null"))
    expected = cells.get("expected", "")
    assert (expected != "") == (cells["verdict"] == "OUT_OF_ORDER"), f"expected belongs to OUT_OF_ORDER alone: {cells}"
    return [Row(pid, epoch, partition, seq, cells["verdict"], _value(expected or "null"), timestamp) for seq in seqs]


def _expect(step: Call | Action, text: str) -> None:
    labels, value = text.split(": ", 1)
    for label in labels.split(", "):
        if label == "error":
            column, _, row = value.partition(", row ")
            step.error = Error(column, int(row) if row else None)
        else:
            known = {name for name in RANGES | NUMBERS if hasattr(step, name)}
            assert label in known, f"unknown expectation '{label}'"
            is_number = label in NUMBERS
            setattr(step, label, int(value) if is_number else [_missing(item) for item in value.split("; ")])


def _missing(text: str) -> Missing:
    """`pid / epoch / partition: first..last (count)`, without epoch where there are none."""
    names, _, span = text.rpartition(": ")
    pid, *epoch, partition = (_value(name) for name in names.split(" / "))
    span, _, count = span.partition(" (")
    first, last = (int(end) for end in span.split(".."))
    count = int(count.rstrip(")")) if count else last - first + 1
    assert count > 0, f"a range that passes the wrap needs its count: {text}"
    return Missing(pid, epoch[0] if epoch else None, partition, first, last, count)


def columns(call: Call) -> dict[str, Any]:
    """The column names by role, as keyword arguments of `fencepost.Columns`; a tuple for a composite."""
    names: dict[str, Any] = {}
    for role in ROLES:
        value = next(
            (cell for cell in (getattr(row, role) for row in (call.whole or call).rows) if cell is not None), None
        )
        names[role] = tuple(f"{role}_{i}" for i in range(len(value))) if isinstance(value, tuple) else role
    return names if call.has_epoch else names | {"epoch": None}


def to_arrow(call: Call) -> pa.Table:
    """The rows of a call as an Arrow table with the columns that `columns` names."""
    import pyarrow as pa

    arrays: dict[str, pa.Array] = {}
    for role, names in columns(call).items():
        cells = [getattr(row, role) for row in call.rows]
        if isinstance(names, tuple):
            for index, name in enumerate(names):
                kind = pa.string() if call.has_text(role, index) else pa.int64()
                arrays[name] = pa.array([cell and cell[index] for cell in cells], kind)
        elif names is not None:
            arrays[names] = pa.array(cells, pa.string() if call.has_text(role) else pa.int64())
    if call.has_timestamp:
        arrays["timestamp"] = pa.array([row.timestamp for row in call.rows], pa.int64())
    return pa.table(arrays)
