"""A naive judge of rows, written from the rules and from nothing else.

It keeps every accepted position in a plain set and looks at all of them again for every question, so that
each method can be read beside the rule it states. It shares no code with the product.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rulebook import Missing

_ANY_ORDER = {
    "admit": "any",
    "epochs": "key",
    "first": "any",
    "window": 5,
    "late": "out_of_order",
    "gaps": "report",
    "wrap": 2**31,
    "max_jump": None,
}
_IN_ORDER = _ANY_ORDER | {"admit": "forward", "epochs": "fence"}
_KAFKA = _IN_ORDER | {"admit": "next"}
_NUMBERED = {"epochs": "ignore", "gaps": "normal", "wrap": None}

PRESETS: dict[str, dict[str, Any]] = {
    "any_order": _ANY_ORDER,
    "in_order": _IN_ORDER,
    "kafka": _KAFKA,
    "strict": _KAFKA | {"first": "zero", "window": 1},
    "watermark": _IN_ORDER | _NUMBERED | {"late": "duplicate"},
    "kafka_offsets": _ANY_ORDER | _NUMBERED,
}
CHOICES = {
    "admit": ("any", "forward", "next"),
    "epochs": ("key", "fence", "ignore"),
    "first": ("any", "zero"),
    "late": ("out_of_order", "duplicate"),
    "gaps": ("report", "normal"),
}


class ReferencePolicyError(Exception):
    """No such policy, or not for these columns."""


class ReferenceBatchError(Exception):
    """The batch is not a batch of rows."""

    def __init__(self, column: str, row: int | None) -> None:
        super().__init__(f"column '{column}', row {row}")
        self.column, self.row = column, row


def policy(name: str, **fields: Any) -> dict[str, Any]:
    """A preset with some of its fields replaced."""
    if name not in PRESETS or not fields.keys() <= _ANY_ORDER.keys():
        raise ReferencePolicyError(f"{name} {fields}")
    chosen = PRESETS[name] | fields
    if any(chosen[key] not in values for key, values in CHOICES.items()):
        raise ReferencePolicyError(f"unknown value in {fields}")
    wrap, window, max_jump = chosen["wrap"], chosen["window"], chosen["max_jump"]
    if (wrap is not None and wrap < 4) or window < 0 or (max_jump is not None and max_jump < 0):
        raise ReferencePolicyError(f"out of range in {fields}")
    if chosen["admit"] == "next" and wrap is not None and window >= wrap:
        raise ReferencePolicyError(f"window {window} does not fit in wrap {wrap}")
    return chosen


@dataclass
class Entry:
    """What is remembered of one key, or of one key and epoch. Under `next`: `recent`; otherwise: `positions`."""

    key: tuple[Any, Any]
    epoch: int | None
    positions: set[int]
    recent: list[int]


@dataclass
class Judged:
    """What one call gives. `border`: rows that the border rules placed in a neighbouring lap."""

    verdicts: list[str] = field(default_factory=list)
    expected: list[int | None] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    stale_epoch: int = 0
    border: int = 0


def uncovered(positions: set[int], first: int, last: int) -> list[tuple[int, int]]:
    """The maximal ranges of first..last that hold no position."""
    edges = [first - 1, *sorted(p for p in positions if first <= p <= last), last + 1]
    return [(a + 1, b - 1) for a, b in pairwise(edges) if b - a > 1]


class ReferenceTable:
    """Judges rows one by one under a policy as `policy` gives it."""

    def __init__(self, policy: dict[str, Any], untracked: str = "keep") -> None:
        self.policy, self.untracked = policy, untracked
        self.entries: dict[Any, Entry] = {}
        self.kinds: dict[str, Any] = {}
        self.call = Judged()
        self.jumped: list[tuple[Entry, int, int]] = []

    # Calls

    def apply(self, rows: list[Any], has_epoch: bool = True) -> Judged:
        """Judges rows with the attributes pid, epoch, partition and seq; nothing changes if one is not valid."""
        if has_epoch and self.policy["epochs"] == "ignore":
            raise ReferencePolicyError("an epoch column, and a policy that ignores epochs")
        kinds = self.validate(rows)
        self.kinds |= kinds
        self.call, self.jumped = Judged(), []
        for row in rows:
            verdict, expected = "UNTRACKED", None
            if not self.is_untracked(row.pid):
                verdict, expected = self.judge((row.pid, row.partition), row.epoch, row.seq)
            self.call.verdicts.append(verdict)
            self.call.expected.append(expected)
        self.call.missing = self.ranges(self.jumped)
        return self.call

    def check(self, rows: list[Any], has_epoch: bool = True) -> Judged:
        return copy.deepcopy(self).apply(rows, has_epoch)

    def missing(self) -> list[Missing]:
        """Every hole that is open."""
        if self.policy["admit"] == "next":
            return []
        return self.ranges([(e, self.start(e), max(e.positions)) for e in self.entries.values()])

    def ranges(self, spans: list[tuple[Entry, int, int]]) -> list[Missing]:
        """What was not accepted within the spans, in the order of key, epoch and position."""
        if self.policy["gaps"] == "normal":
            return []
        found = [(e.key, e.epoch, a, b) for e, first, last in spans for a, b in uncovered(e.positions, first, last)]
        found.sort(key=lambda hole: (hole[0], hole[1] or 0, hole[2]))
        return [Missing(k[0], epoch, k[1], self.seq(a), self.seq(b), b - a + 1) for k, epoch, a, b in found]

    # Identity

    @staticmethod
    def is_untracked(pid: Any) -> bool:
        parts = pid if isinstance(pid, tuple) else (pid,)
        return any(part is None or part == -1 for part in parts)

    def validate(self, rows: list[Any]) -> dict[str, Any]:
        """Raises if a row is out of its domain; gives the types of the key columns."""
        kinds: dict[str, Any] = {}
        seq_max = 2**63 - 1 if self.policy["wrap"] is None else self.policy["wrap"] - 1
        for number, row in enumerate(rows):
            self.require(number, "pid", row.pid, -1, 2**63 - 1, nullable=True)
            if self.is_untracked(row.pid):
                if self.untracked == "fail":
                    raise ReferenceBatchError("pid", number)
                continue
            self.require(number, "partition", row.partition, 0, 2**31 - 1)
            if self.policy["epochs"] != "ignore":
                self.require(number, "epoch", row.epoch, 0, 2**15 - 1)
            self.require(number, "seq", row.seq, 0, seq_max)
            kinds |= {"pid": kind(row.pid), "partition": kind(row.partition)}
        for column, found in kinds.items():
            if self.kinds.get(column, found) != found:
                raise ReferenceBatchError(column, None)
        return kinds

    @staticmethod
    def require(row: int, column: str, cell: Any, low: int, high: int, nullable: bool = False) -> None:
        for part in cell if isinstance(cell, tuple) else (cell,):
            if part is None and not nullable:
                raise ReferenceBatchError(column, row)
            if isinstance(part, int) and not low <= part <= high:
                raise ReferenceBatchError(column, row)

    # Positions

    def seq(self, position: int) -> int:
        return position if self.policy["wrap"] is None else position % self.policy["wrap"]

    def after(self, position: int) -> int | None:
        """The sequence after a position; none after the last 64-bit one."""
        return None if position == 2**63 - 1 and self.policy["wrap"] is None else self.seq(position + 1)

    def position(self, highest: int, seq: int) -> int:
        wrap = self.policy["wrap"]
        if wrap is None:
            return seq
        zone = min(wrap // 4, 2**20)
        lap, r = divmod(highest, wrap)
        if r >= wrap - zone and seq < zone:
            self.call.border += 1
            return (lap + 1) * wrap + seq
        if r < zone and seq >= wrap - zone and (self.policy["first"] == "any" or lap > 0):
            self.call.border += 1
            return (lap - 1) * wrap + seq
        return lap * wrap + seq

    # Judgement

    def judge(self, key: tuple[Any, Any], epoch: int | None, seq: int) -> tuple[str, int | None]:
        """The verdict on one tracked row and, for OUT_OF_ORDER, the sequence that would have been accepted."""
        self.call.stale_epoch += self.is_stale(key, epoch)
        epochs = self.policy["epochs"]
        slot = (key, epoch) if epochs == "key" else key
        entry = self.entries.get(slot)
        if entry is None:
            return self.begin(slot, key, epoch, seq, only_zero=self.policy["first"] == "zero")
        if epochs == "fence" and epoch < entry.epoch:
            return "FENCED", None
        if epochs == "fence" and epoch > entry.epoch:
            only_zero = self.policy["first"] == "zero" or self.policy["admit"] == "next"
            return self.begin(slot, key, epoch, seq, only_zero)
        if self.policy["admit"] == "next":
            return self.judge_next(entry, seq)
        highest = max(entry.positions)
        position = self.position(highest, seq)
        if self.policy["max_jump"] is not None and position > highest + self.policy["max_jump"]:
            return "OUT_OF_ORDER", self.after(highest)
        return (self.judge_any if self.policy["admit"] == "any" else self.judge_forward)(entry, position)

    def is_stale(self, key: tuple[Any, Any], epoch: int | None) -> bool:
        if self.policy["epochs"] == "ignore":
            return False
        return any(entry.key == key and entry.epoch > epoch for entry in self.entries.values())

    def begin(self, slot: Any, key: Any, epoch: int | None, seq: int, only_zero: bool) -> tuple[str, int | None]:
        """An unknown key, or one that a higher epoch starts anew."""
        if only_zero and self.policy["admit"] != "any" and seq != 0:
            return "OUT_OF_ORDER", 0
        entry = self.entries[slot] = Entry(key, None if self.policy["epochs"] == "ignore" else epoch, {seq}, [seq])
        self.jumped.append((entry, self.start(entry), seq - 1))
        return "ACCEPTED", None

    def start(self, entry: Entry) -> int:
        """The position from which an entry's holes count."""
        return 0 if self.policy["first"] == "zero" else min(entry.positions)

    def judge_any(self, entry: Entry, position: int) -> tuple[str, int | None]:
        if position in entry.positions:
            return "DUPLICATE", None
        lowest, highest = self.start(entry), max(entry.positions)
        if position > highest:
            self.jumped.append((entry, highest + 1, position - 1))
        if position < lowest:
            self.jumped.append((entry, position + 1, lowest - 1))
        entry.positions.add(position)
        return "ACCEPTED", None

    def judge_forward(self, entry: Entry, position: int) -> tuple[str, int | None]:
        highest = max(entry.positions)
        if position > highest:
            self.jumped.append((entry, highest + 1, position - 1))
            entry.positions.add(position)
            return "ACCEPTED", None
        if position in entry.positions or self.policy["late"] == "duplicate":
            return "DUPLICATE", None
        return "OUT_OF_ORDER", self.after(highest)

    def judge_next(self, entry: Entry, seq: int) -> tuple[str, int | None]:
        window = self.policy["window"]
        if seq in (entry.recent[-window:] if window else []):
            return "DUPLICATE", None
        expected = self.after(entry.recent[-1])
        if seq != expected:
            return "OUT_OF_ORDER", expected
        entry.recent.append(seq)
        return "ACCEPTED", None


def kind(cell: Any) -> Any:
    """The type of a key cell: integers of any width are one type, text another."""
    return tuple(kind(part) for part in cell) if isinstance(cell, tuple) else type(cell).__name__
