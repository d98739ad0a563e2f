"""A naive judge of rows, written from the rules and from nothing else.

It keeps every accepted position in a plain set and reads all of them again for every question, so that
each method can be read beside the rule it states. It shares no code with the product.

Positions in an entry's final range stay in the set, but no question about them is answered from it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from support.rulebook import Missing

_ANY_ORDER = {
    "admit": "any",
    "epochs": "key",
    "first": "any",
    "window": 5,
    "late": "out_of_order",
    "gaps": "report",
    "wrap": 2**31,
    "max_jump": None,
    "reach": None,
    "intervals_max": None,
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


class ReferenceCapacityError(Exception):
    """The table holds as many holes as it may."""


def policy(name: str, **fields: Any) -> dict[str, Any]:
    """A preset with some of its fields replaced."""
    if name not in PRESETS or not fields.keys() <= _ANY_ORDER.keys():
        raise ReferencePolicyError(f"{name} {fields}")
    chosen = PRESETS[name] | fields
    if any(chosen[key] not in values for key, values in CHOICES.items()):
        raise ReferencePolicyError(f"unknown value in {fields}")
    wrap, window, max_jump = chosen["wrap"], chosen["window"], chosen["max_jump"]
    if (wrap is not None and wrap < 4) or window < 0 or (max_jump is not None and max_jump < 1):
        raise ReferencePolicyError(f"out of range in {fields}")
    if chosen["admit"] == "next" and not 1 <= window < (wrap or 2**63):
        raise ReferencePolicyError(f"window {window} is none or does not fit in wrap {wrap}")
    bounds = [chosen[name] for name in ("reach", "intervals_max") if chosen[name] is not None]
    if bounds and not keeps_holes(chosen):
        raise ReferencePolicyError("a bound on holes, and a policy that keeps none")
    if any(bound < 1 for bound in bounds):
        raise ReferencePolicyError(f"out of range in {fields}")
    return chosen


def keeps_holes(policy: dict[str, Any]) -> bool:
    """Whether a skipped position can be distinguished from an accepted one."""
    if policy["admit"] == "forward":
        return policy["late"] == "out_of_order" or policy["gaps"] == "report"
    return policy["admit"] == "any"


class Hole(NamedTuple):
    """Positions that were skipped, and the timestamp of the row that skipped them."""

    first: int
    last: int
    timestamp: int | None


@dataclass
class Entry:
    """What is remembered of one key, or of one key and epoch. Under `next`: `recent`; otherwise: `positions`."""

    key: tuple[Any, Any]
    epoch: int | None
    positions: set[int]
    recent: list[int]
    last_timestamp: int | None = None
    # What was ever jumped over; what of it was not accepted since is a hole.
    opened: list[Hole] = field(default_factory=list)
    final: tuple[int, int] | None = None

    def is_final(self, position: int) -> bool:
        return self.final is not None and self.final[0] <= position <= self.final[1]


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


def outside(taken: tuple[int, int] | None, first: int, last: int) -> list[tuple[int, int]]:
    """The part of first..last outside of a range, if there is one."""
    if taken is None:
        return [(first, last)]
    pieces = [(first, min(last, taken[0] - 1)), (max(first, taken[1] + 1), last)]
    return [(a, b) for a, b in pieces if a <= b]


def consecutive(positions: set[int]) -> list[tuple[int, int]]:
    """Positions as maximal ranges."""
    firsts = sorted(p for p in positions if p - 1 not in positions)
    lasts = sorted(p for p in positions if p + 1 not in positions)
    return list(zip(firsts, lasts, strict=True))


def highest_of(*values: int | None) -> int | None:
    """The highest of those that are there."""
    return max((value for value in values if value is not None), default=None)


class ReferenceTable:
    """Judges rows one by one under a policy as `policy` gives it."""

    def __init__(
        self,
        policy: dict[str, Any],
        untracked: str = "keep",
        keep: tuple[str, ...] = (),
        entries_max: int | None = None,
    ) -> None:
        self.policy, self.untracked, self.keep, self.entries_max = policy, untracked, keep, entries_max
        self.entries: dict[Any, Entry] = {}
        self.kinds: dict[str, Any] = {}
        self.horizon: int | None = None
        self.call = Judged()
        self.jumped: list[tuple[Entry, int, int]] = []
        # Of the row at hand; None where timestamps are not kept.
        self.timestamp: int | None = None

    # Calls

    def apply(self, rows: list[Any], has_epoch: bool = True) -> Judged:
        """Judges rows with the attributes pid, epoch, partition, seq and timestamp.

        Nothing changes if one is not valid.
        """
        if has_epoch and self.policy["epochs"] == "ignore":
            raise ReferencePolicyError("an epoch column, and a policy that ignores epochs")
        kinds = self.validate(rows)
        self.check_holes()
        self.kinds |= kinds
        self.call, self.jumped = Judged(), []
        for row in rows:
            verdict, expected = "UNTRACKED", None
            if not self.is_untracked(row.pid):
                self.timestamp = row.timestamp if "timestamp" in self.keep else None
                verdict, expected = self.judge((row.pid, row.partition), row.epoch, row.seq)
            self.call.verdicts.append(verdict)
            self.call.expected.append(expected)
        self.call.missing = self.ranges(self.jumped)
        return self.call

    def check(self, rows: list[Any], has_epoch: bool = True) -> Judged:
        return copy.deepcopy(self).apply(rows, has_epoch)

    def missing(self) -> list[Missing]:
        """Every hole that is open."""
        found = [(e.key, e.epoch, hole.first, hole.last) for e in self.entries.values() for hole in self.holes(e)]
        return [] if self.policy["gaps"] == "normal" else self.as_missing(found)

    def ranges(self, spans: list[tuple[Entry, int, int]]) -> list[Missing]:
        """What was not accepted within the spans, in the order of key, epoch and position."""
        if self.policy["gaps"] == "normal":
            return []
        return self.as_missing(
            [(e.key, e.epoch, a, b) for e, first, last in spans for a, b in uncovered(e.positions, first, last)]
        )

    def as_missing(self, found: list[tuple[Any, int | None, int, int]]) -> list[Missing]:
        found.sort(key=lambda hole: (hole[0], hole[1] or 0, hole[2]))
        return [Missing(k[0], epoch, k[1], self.seq(a), self.seq(b), b - a + 1) for k, epoch, a, b in found]

    def state(self) -> list[tuple[Any, ...]]:
        """Every entry as `StateTable.entries()` gives it, in key order.

        Pid, partition, epoch, first, last, holes, final range and last timestamp.
        """
        found = []
        for entry in sorted(self.entries.values(), key=lambda it: (it.key, it.epoch or 0)):
            if self.policy["admit"] == "next":
                first, last = self.remembered(entry)[0], entry.recent[-1]
            else:
                first, last = self.start(entry), max(entry.positions)
            final = entry.final or (None, None)
            holes = [tuple(hole) for hole in self.holes(entry)]
            found.append((*entry.key, entry.epoch, first, last, holes, *final, entry.last_timestamp))
        return found

    # Bounded memory

    def note(self, entry: Entry) -> None:
        """A row of the entry was accepted."""
        entry.last_timestamp = highest_of(self.timestamp, entry.last_timestamp)
        self.settle(entry)

    def settle(self, entry: Entry) -> None:
        """What is missing further below the highest than the policy reaches becomes final."""
        if self.policy["reach"] is not None:
            end = max(entry.positions) - self.policy["reach"] - 1
            beyond = [hole for hole in self.holes(entry) if hole.first <= end]
            self.finish(entry, [hole._replace(last=min(hole.last, end)) for hole in beyond])

    def finish(self, entry: Entry, holes: list[Hole]) -> None:
        """Holes become final: one range per entry, from the first to the last of all that ever did."""
        ends = [end for hole in holes for end in (hole.first, hole.last)] + list(entry.final or ())
        entry.final = (min(ends), max(ends)) if ends else None

    def holes(self, entry: Entry) -> list[Hole]:
        """What is open of an entry: between its first and its highest, never accepted, not final."""
        if not keeps_holes(self.policy):
            return []
        ranges = uncovered(entry.positions, self.start(entry), max(entry.positions))
        ranges = [piece for a, b in ranges for piece in outside(entry.final, a, b)]
        return [Hole(a, b, self.opened_at(entry, a, b)) for a, b in ranges]

    @staticmethod
    def opened_at(entry: Entry, first: int, last: int) -> int | None:
        """The timestamp of the row that opened the hole of which this is the rest."""
        known = [jump.timestamp for jump in entry.opened if jump.first <= first and last <= jump.last]
        return known[-1] if known else None

    def check_holes(self) -> None:
        held, bound = sum(len(self.holes(entry)) for entry in self.entries.values()), self.policy["intervals_max"]
        if bound is not None and held >= bound:
            raise ReferenceCapacityError(f"{held} holes, and at most {bound}")

    def evict(self, now_ms: int, max_idle_ms: int) -> int:
        """Drops what is idle, raises the horizon, and makes what was opened at or below it final."""
        if "timestamp" not in self.keep or max_idle_ms < 0:
            raise ReferencePolicyError("evict without timestamps, or what is not idle at all")
        idle = [slot for slot, entry in self.entries.items() if now_ms - entry.last_timestamp >= max_idle_ms]
        self.drop(idle)
        horizon = now_ms - max_idle_ms
        self.horizon = horizon if self.horizon is None else max(self.horizon, horizon)
        for entry in self.entries.values():
            self.finish(entry, [hole for hole in self.holes(entry) if hole.timestamp <= self.horizon])
            self.settle(entry)
        return len(idle)

    def forget(self, pid: Any, partition: Any = None) -> int:
        """Drops every entry of a producer, or those of one of its partitions."""
        wanted = [
            slot
            for slot, entry in self.entries.items()
            if entry.key[0] == pid and (partition is None or entry.key[1] == partition)
        ]
        self.drop(wanted)
        return len(wanted)

    def drop(self, slots: list[Any]) -> None:
        """Where nothing is left, keys may be of any type again."""
        for slot in slots:
            del self.entries[slot]
        if not self.entries:
            self.kinds = {}

    # Union

    def merge(self, other: ReferenceTable) -> list[Missing]:
        """Merge another table. Returns the rows that both had accepted."""
        if self.policy["admit"] != "any" or self.policy != other.policy or self.keep != other.keep:
            raise ReferencePolicyError("these tables cannot be merged")
        if any(self.kinds.get(column, found) != found for column, found in other.kinds.items()):
            raise ReferencePolicyError("keys of different types")
        self.check_holes()
        both = [(self.entries[slot], theirs) for slot, theirs in other.entries.items() if slot in self.entries]
        same = [(ours, theirs) for ours, theirs in both if ours.epoch == theirs.epoch]
        if any(self.is_at_border(ours, theirs) for ours, theirs in same):
            raise ReferencePolicyError("the lap depends on the order of rows")
        if self.entries_max is not None and len(self.entries.keys() | other.entries.keys()) > self.entries_max:
            raise ReferenceCapacityError("the union has too many entries")
        overlap = [
            (ours.key, ours.epoch, a, b)
            for ours, theirs in same
            for a, b in consecutive(self.accepted(ours) & self.accepted(theirs))
        ]
        for slot, theirs in other.entries.items():
            ours = self.entries.get(slot)
            if ours is None or (ours.epoch or 0) < (theirs.epoch or 0):
                self.entries[slot] = copy.deepcopy(theirs)
            elif ours.epoch == theirs.epoch:
                self.entries[slot] = self.union(ours, theirs)
            if ours is not None:
                self.entries[slot].last_timestamp = highest_of(ours.last_timestamp, theirs.last_timestamp)
        self.horizon = highest_of(self.horizon, other.horizon)
        self.kinds |= other.kinds
        return self.as_missing(overlap)

    @staticmethod
    def accepted(entry: Entry) -> set[int]:
        """What an entry still knows to have been accepted."""
        return {position for position in entry.positions if not entry.is_final(position)}

    def is_at_border(self, *entries: Entry) -> bool:
        """Whether, of one key, positions on either side of the border of the wrap are held."""
        return len({side for entry in entries for side in self.border_sides(entry)}) > 1

    def border_sides(self, entry: Entry) -> set[str]:
        """In which border zones an entry holds positions. What is final may be held."""
        wrap = self.policy["wrap"]
        if wrap is None:
            return set()
        zone, sides = min(wrap // 4, 2**20), set()
        for first, last in [*consecutive(entry.positions), *([entry.final] if entry.final else [])]:
            for border in range(first // wrap * wrap, last + zone + 1, wrap):
                sides |= {"upper"} if first < border and border - zone <= last else set()
                sides |= {"lower"} if first < border + zone and border <= last else set()
        return sides

    def union(self, ours: Entry, theirs: Entry) -> Entry:
        positions = ours.positions | theirs.positions
        united = Entry(ours.key, ours.epoch, positions, [], highest_of(ours.last_timestamp, theirs.last_timestamp))
        self.finish(united, [Hole(*entry.final, None) for entry in (ours, theirs) if entry.final])
        ranges = uncovered(positions, self.start(united), max(positions))
        for first, last in [piece for a, b in ranges for piece in outside(united.final, a, b)]:
            known = [hole for entry in (ours, theirs) for hole in self.holes(entry) if hole.first <= first <= hole.last]
            stamps = [hole.timestamp for hole in known] or [ours.last_timestamp, theirs.last_timestamp]
            united.opened.append(Hole(first, last, highest_of(*stamps)))
        return united

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
            if "timestamp" in self.keep:
                self.require(number, "timestamp", row.timestamp, -(2**63), 2**63 - 1)
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

    def slot(self, key: tuple[Any, Any], epoch: int | None) -> Any:
        return (key, epoch) if self.policy["epochs"] == "key" else key

    def judge(self, key: tuple[Any, Any], epoch: int | None, seq: int) -> tuple[str, int | None]:
        """The verdict on one tracked row and, for OUT_OF_ORDER, the sequence that would have been accepted."""
        self.call.stale_epoch += self.is_stale(key, epoch)
        verdict, expected = self.decide(key, epoch, seq)
        if verdict == "ACCEPTED":
            self.note(self.entries[self.slot(key, epoch)])
        return verdict, expected

    def decide(self, key: tuple[Any, Any], epoch: int | None, seq: int) -> tuple[str, int | None]:
        """The same, and what is accepted is remembered."""
        epochs, slot = self.policy["epochs"], self.slot(key, epoch)
        entry = self.entries.get(slot)
        if entry is not None and epochs == "fence" and epoch < entry.epoch:
            return "FENCED", None
        if entry is None or (epochs == "fence" and epoch > entry.epoch):
            if self.is_old():
                return "FORGOTTEN", None
            only_zero = self.policy["first"] == "zero" or (entry is not None and self.policy["admit"] == "next")
            return self.begin(slot, key, epoch, seq, only_zero)
        if self.policy["admit"] == "next":
            is_forgotten = self.is_old() and seq not in self.remembered(entry)
            return ("FORGOTTEN", None) if is_forgotten else self.judge_next(entry, seq)
        # After a merge there may be holes out of reach: final for every row, and for good with an accepted one.
        final = entry.final
        self.settle(entry)
        verdict, expected = self.place(entry, seq)
        if verdict != "ACCEPTED":
            entry.final = final
        return verdict, expected

    def place(self, entry: Entry, seq: int) -> tuple[str, int | None]:
        """The verdict on a row of a known entry by its position, under `any` and `forward`."""
        highest = max(entry.positions)
        position = self.position(highest, seq)
        if entry.is_final(position):
            return "FORGOTTEN", None
        if self.is_old():
            return ("DUPLICATE" if self.is_held(entry, position) else "FORGOTTEN"), None
        if self.policy["max_jump"] is not None and position > highest + self.policy["max_jump"]:
            return "OUT_OF_ORDER", self.after(highest)
        return (self.judge_any if self.policy["admit"] == "any" else self.judge_forward)(entry, position)

    def is_old(self) -> bool:
        """Whether the current row is older than the horizon."""
        return self.horizon is not None and self.timestamp is not None and self.timestamp <= self.horizon

    def is_held(self, entry: Entry, position: int) -> bool:
        """Whether a known entry holds a position. Without holes it holds all from its first to its highest."""
        if keeps_holes(self.policy):
            return position in entry.positions
        return min(entry.positions) <= position <= max(entry.positions)

    def is_stale(self, key: tuple[Any, Any], epoch: int | None) -> bool:
        if self.policy["epochs"] == "ignore":
            return False
        return any(entry.key == key and entry.epoch > epoch for entry in self.entries.values())

    def begin(self, slot: Any, key: Any, epoch: int | None, seq: int, only_zero: bool) -> tuple[str, int | None]:
        """An unknown key, or one that a higher epoch starts again."""
        if only_zero and self.policy["admit"] != "any" and seq != 0:
            return "OUT_OF_ORDER", 0
        replaced = self.entries.get(slot)
        entry = self.entries[slot] = Entry(key, None if self.policy["epochs"] == "ignore" else epoch, {seq}, [seq])
        entry.last_timestamp = replaced.last_timestamp if replaced else None
        self.jump(entry, self.start(entry), seq - 1)
        return "ACCEPTED", None

    def jump(self, entry: Entry, first: int, last: int) -> None:
        """The row at hand skips a range, which may be empty."""
        self.jumped.append((entry, first, last))
        entry.opened.append(Hole(first, last, self.timestamp))

    def start(self, entry: Entry) -> int:
        """The position from which an entry's holes count."""
        return 0 if self.policy["first"] == "zero" else min(entry.positions)

    def judge_any(self, entry: Entry, position: int) -> tuple[str, int | None]:
        if position in entry.positions:
            return "DUPLICATE", None
        lowest, highest = self.start(entry), max(entry.positions)
        if position > highest:
            self.jump(entry, highest + 1, position - 1)
        if position < lowest:
            self.jump(entry, position + 1, lowest - 1)
        entry.positions.add(position)
        return "ACCEPTED", None

    def judge_forward(self, entry: Entry, position: int) -> tuple[str, int | None]:
        highest = max(entry.positions)
        if position > highest:
            self.jump(entry, highest + 1, position - 1)
            entry.positions.add(position)
            return "ACCEPTED", None
        if position in entry.positions or self.policy["late"] == "duplicate":
            return "DUPLICATE", None
        return "OUT_OF_ORDER", self.after(highest)

    def judge_next(self, entry: Entry, seq: int) -> tuple[str, int | None]:
        if seq in self.remembered(entry):
            return "DUPLICATE", None
        expected = self.after(entry.recent[-1])
        if seq != expected:
            return "OUT_OF_ORDER", expected
        entry.recent.append(seq)
        return "ACCEPTED", None

    def remembered(self, entry: Entry) -> list[int]:
        """Under `next`: the last rows of the epoch, as many as the window has."""
        return entry.recent[-self.policy["window"] :]


def kind(cell: Any) -> Any:
    """The type of a key cell: integers of any width are one type, text another."""
    return tuple(kind(part) for part in cell) if isinstance(cell, tuple) else type(cell).__name__
