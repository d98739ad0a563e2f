"""Streams of produce batches and markers as hypothesis or a seed comes to them, all columns used.

A stream is made of moves: what a producer does next, relative to its position. So it shrinks to few plain moves, and
most of what it says makes sense to a broker. What the broker makes of it is not asked here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from support.broker_doors import Door, do
from support.broker_rulebook import COLUMNS, SEQUENCES, Action, Call, Case, Row

# One producer in two partitions, two producers in one, and the largest there are.
KEYS = ((7, 0), (7, 1), (8, 0), (2**63 - 1, 2**31 - 1))

EPOCH_MAX = 2**15 - 1
VERSIONS = ("2.4", "2.8", "4.1", "4.2", "4.3", "4.3", "4.5", "4.5")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "version": VERSIONS,
    "window": (1, 2, 5, 5, 5, 6, 9),
    "first": ("any", "any", "any", "zero"),
    "offsets": ("given", "assign"),
    "max_idle_ms": (0, 100, 10_000),
}


@dataclass(frozen=True)
class Move:
    """What a producer does next. `bump`: how far its epoch rises; `offset` and `timestamp`: where they lie."""

    key: int
    kind: str
    count: int
    bump: int
    origin: str | None
    transactional: bool | None
    coordinator_epoch: int | None
    transaction_version: int | None
    offset: str
    timestamp: str
    spelling: str


MOVES: dict[str, tuple[Any, ...]] = {
    "key": (0, 0, 0, 1, 2, 3),
    "kind": (
        *("next",) * 10,
        *("again",) * 5,
        *("part", "gap", "zero", "border", "anywhere", "none", "none"),
        *("commit", "commit", "abort", "empty", "other", "untracked"),
    ),
    # The borders of 8 and of 16 bits too: an implementation keeps lengths in few of them.
    "count": (1, 1, 1, 2, 3, 5, 20, 255, 256, 257, 65535, 65536, 65537, 2**31 - 1),
    "bump": (*(0,) * 9, 1, 1, 2, -1),
    "origin": (*(None,) * 6, "client", "client", "replica", "replica", "coordinator"),
    "transactional": (None, None, False, True, True),
    "coordinator_epoch": (None, None, -1, 0, 1, 2, 2**31 - 1),
    "transaction_version": (None, 0, 1, 2, 2),
    "offset": ("next", "next", "next", "none", "gap", "far", "back"),
    "timestamp": ("next", "next", "next", "none", "same", "back", "far", "below", "first", "last"),
    "spelling": ("count", "last_seq", "both", "lie"),
}
ACTIONS = ("none", "none", "none", "evict", "restart", "set_log_end", "rebuild")


@dataclass(frozen=True)
class Part:
    """Some moves in one call, and what is done after it.

    `bad`: the column, if any, of which one row makes no sense. `without`: columns that the call does not have.
    """

    moves: list[Move]
    without: str
    action: str
    amount: int
    bad: str | None


BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pid", {"pid": -2}),
    ("epoch", {"pid": 7, "epoch": None}),
    ("partition", {"pid": 7, "partition": -1}),
    ("base_seq", {"pid": 7, "base_seq": -1, "origin": "client", "control": None}),
    ("count", {"pid": 7, "base_seq": 0, "count": 0, "last_seq": None, "control": None, "origin": "client"}),
    ("control", {"pid": 7, "control": "rollback"}),
    ("origin", {"pid": 7, "origin": "leader"}),
    ("transactional", {"pid": -1, "transactional": True, "control": None}),
)
AMOUNTS = (0, 1, 99, 100, 101, 9_999, 10_000, 2**40)
WITHOUT = ("", "", "", "timestamp", "offset", "offset coordinator_epoch", "timestamp offset coordinator_epoch")
BADS = (*(None,) * 20, *(column for column, _ in BAD))

parts = st.builds(
    Part,
    moves=st.lists(
        st.builds(Move, **{name: st.sampled_from(it) for name, it in MOVES.items()}), min_size=1, max_size=12
    ),
    without=st.sampled_from(WITHOUT),
    action=st.sampled_from(ACTIONS),
    amount=st.sampled_from(AMOUNTS),
    bad=st.sampled_from(BADS),
)
streams = st.lists(parts, min_size=1, max_size=6)
options = st.fixed_dictionaries({}, optional={name: st.sampled_from(it) for name, it in OPTIONS.items()})


def from_seed(seed: int) -> tuple[dict[str, Any], list[Part]]:
    """Options and a stream, longer than those that hypothesis makes."""
    chance = random.Random(seed)
    chosen = {name: chance.choice(it) for name, it in OPTIONS.items() if chance.random() < 0.7}

    def part() -> Part:
        moves = [Move(**{name: chance.choice(it) for name, it in MOVES.items()}) for _ in range(chance.randint(1, 40))]
        without = chance.choice(WITHOUT) if is_mixed else same
        return Part(moves, without, chance.choice(ACTIONS), chance.choice(AMOUNTS), chance.choice(BADS))

    is_mixed, same = chance.random() < 0.5, chance.choice(WITHOUT)
    return chosen, [part() for _ in range(chance.randint(1, 8))]


@dataclass
class Stand:
    """The position of a producer: what it has sent."""

    epoch: int
    last: int = -1
    sent: list[tuple[int, int, int]] = field(default_factory=list)


class Sender:
    """Turns moves into rows."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.assigns = chosen.get("offsets") == "assign"
        self.max_idle_ms = chosen.get("max_idle_ms", 86_400_000)
        # One near the last epoch that there is.
        self.stands = {key: Stand(EPOCH_MAX - 1 if place == 1 else 0) for place, key in enumerate(KEYS)}
        self.offset = 0
        self.clock = 1_000

    def call(self, number: int, part: Part) -> Call:
        """The rows of a call, and the columns that it has."""
        absent = {*part.without.split(), *(("last_offset",) if "offset" in part.without else ())}
        if self.assigns:
            absent -= {"offset", "last_offset"}  # a follower's rows must bring theirs
        nothing: dict[str, Any] = dict.fromkeys(absent)
        rows = [row._replace(**nothing) for row in self.rows(part)]
        return Call(number, frozenset(COLUMNS) - absent, rows=rows)

    def rows(self, part: Part) -> list[Row]:
        rows = [self.row(move) for move in part.moves]
        changes = dict(BAD).get(part.bad or "")
        if changes is not None:
            place = part.amount % len(rows)
            rows[place] = rows[place]._replace(**changes)
        return rows

    def row(self, move: Move) -> Row:
        (pid, partition), stand = KEYS[move.key], self.stands[KEYS[move.key]]
        control = move.kind if move.kind in ("commit", "abort", "empty", "other") else None
        origin = move.origin
        if origin == "client" and control not in (None, "other"):
            origin = "coordinator"
        epoch = min(EPOCH_MAX, max(0, stand.epoch + move.bump))
        if epoch > stand.epoch:
            stand.epoch, stand.last = epoch, -1
        row = Row(
            *(pid, epoch, partition),
            timestamp=self.timestamp(move),
            coordinator_epoch=move.coordinator_epoch,
            transaction_version=move.transaction_version,
            transactional=move.transactional,
            control=control,
            origin=origin,
        )
        if move.kind == "untracked" or (move.kind == "other" and move.count % 2):
            count = move.count if control is None else 1
            row = row._replace(pid=None if move.count % 2 else -1, base_seq=-1, count=count, transactional=None)
            return self.with_offsets(move, row, count - 1)
        if control is not None:
            return self.with_offsets(move, row, 0)
        if move.kind == "none":
            row = row._replace(base_seq=-1, count=min(move.count, 300), last_seq=[None, -1][move.count % 2])
            row = row._replace(origin=origin if origin in ("replica", "coordinator") else "coordinator")
            return self.with_offsets(move, row, min(move.count, 300) - 1)
        first, count, epoch = self.sequences(move, stand, epoch)
        last = (first + count - 1) % SEQUENCES
        row = row._replace(epoch=epoch, base_seq=first, count=count, last_seq=last)
        match move.spelling:
            case "count":
                row = row._replace(last_seq=None)
            case "last_seq":
                row = row._replace(count=None)
            case "lie":  # as compaction leaves it
                row = row._replace(count=count // 2)
        return self.with_offsets(move, row, count - 1)

    @staticmethod
    def sequences(move: Move, stand: Stand, epoch: int) -> tuple[int, int, int]:
        """First sequence, how many there are, and the epoch."""
        after = (stand.last + 1) % SEQUENCES
        match move.kind:
            case "again" if stand.sent:
                first, count, epoch = stand.sent[-1 - move.count % min(len(stand.sent), 7)]
                return first, count, epoch
            case "part" if stand.sent:
                first, count, epoch = stand.sent[-1]
                return first, count + 1 if count < 3 else count - 1, epoch
            case "gap":
                return (after + move.count) % SEQUENCES, 1, epoch
            case "zero":
                first = 0
            case "border":
                first = SEQUENCES - 1 - move.count % 3
            case "anywhere":
                first = (after - move.count) % SEQUENCES
            case _:
                first = after
        stand.last = (first + move.count - 1) % SEQUENCES
        stand.sent.append((first, move.count, epoch))
        return first, move.count, epoch

    def with_offsets(self, move: Move, row: Row, delta: int) -> Row:
        must = self.assigns and row.origin == "replica"
        if move.offset == "none" and not must:
            return row
        if move.offset == "back":
            offset = max(0, self.offset - 1_000)
        else:
            offset = self.offset + {"gap": 3, "far": 2**34}.get(move.offset, 0)
            self.offset = offset + delta + 1
        return row._replace(offset=offset, last_offset=[None, offset + delta][move.count % 2])

    def timestamp(self, move: Move) -> int | None:
        fixed = {"none": None, "below": -(2**50), "first": -(2**63), "last": 2**63 - 1}
        if move.timestamp in fixed:
            return fixed[move.timestamp]
        self.clock += {"next": 7, "same": 0, "back": -500, "far": 2**36}[move.timestamp]
        return self.clock


def run(
    ours: Door,
    other: Door,
    chosen: dict[str, Any],
    stream: list[Part],
    compare: Callable[[str, Any, Any], None],
) -> None:
    """Apply the same operations to two tables and compare all results."""
    sender = Sender(chosen)
    for number, part in enumerate(stream):
        call = sender.call(number, part)
        compare(f"call {number}: {call.rows}", ours.apply(call), other.apply(call))
        action = action_of(part, sender)
        if part.action == "rebuild":
            ours.rebuild()
        elif action is not None:
            compare(f"after call {number}, {action}", do(ours, action), do(other, action))
        compare(f"entries after call {number} and {part.action}", ours.entries(), other.entries())
        for partition in sorted({partition for _, partition in KEYS}):
            compare(f"log end of {partition}", log_end(ours, sender, partition), log_end(other, sender, partition))


def action_of(part: Part, sender: Sender) -> Action | None:
    match part.action:
        case "evict" | "restart":
            # Just before, at and just after the limit of the last writer, or long after.
            near = part.amount % 3 - 1 if part.amount < 2**40 else part.amount
            return Action(0, part.action, {"now": sender.clock + sender.max_idle_ms + near})
        case "set_log_end" if sender.assigns:
            return Action(0, part.action, {"partition": KEYS[part.amount % len(KEYS)][1], "offset": part.amount})
        case _:
            return None


def log_end(door: Door, sender: Sender, partition: int) -> int | None:
    return door.log_end(partition) if sender.assigns else None


def case_of(chosen: dict[str, Any]) -> Case:
    return Case("stream", 0, chosen)


class Difference(Exception):
    """Two tables gave different results."""


def must_agree(what: str, ours: Any, other: Any) -> None:
    if ours != other:
        raise Difference(f"{what}\nours:  {ours}\nother: {other}")
