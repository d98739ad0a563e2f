"""Holes of claims: a row for each range of sequence numbers below a claim's last one that was not received.

A call reads only the holes into which its rows can fall, and writes only those that it changes. Its cost does not
depend on the number of holes of a claim. Holes change only while the row of their claim is locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, select, text

from fencepost.sql.consumers import HOLES, Consumer
from fencepost.sql.rows import array_of_integers, array_of_texts, prepared

LOWEST, HIGHEST = -(2**63), 2**63 - 1
NO_EPOCH = -1
"""The epoch of a claim whose policy ignores epochs: a column of a key cannot be null."""


class Of(NamedTuple):
    """The entry of a claim that a hole belongs to."""

    pid: str
    partition: str
    epoch: int


class Hole(NamedTuple):
    """Sequence numbers `first` to `last`. `timestamp`: of the row that left the hole; None if none are kept."""

    first: int
    last: int
    timestamp: int | None


class HoleRange(NamedTuple):
    """Selects the holes of an entry whose last number is in `low` to `high`."""

    of: Of
    low: int
    high: int


@dataclass
class HoleChanges:
    """The changes of a call: `deleted` applies before `added`."""

    deleted: list[HoleRange] = field(default_factory=list)
    added: list[tuple[Of, Hole]] = field(default_factory=list)

    @property
    def keys(self) -> set[tuple[str, str]]:
        """The claims whose holes change."""
        return {it.of[:2] for it in self.deleted} | {of[:2] for of, _ in self.added}

    def replace(self, of: Of, before: Sequence[Hole], after: Sequence[Hole]) -> None:
        """Record the change from `before` to `after`: consecutive holes of an entry."""
        kept, known = set(after), set(before)
        deleted: list[HoleRange] = []
        was_kept = True
        for hole in before:
            is_kept = hole in kept
            if not is_kept and not was_kept:
                deleted[-1] = deleted[-1]._replace(high=hole.last)
            elif not is_kept:
                deleted.append(HoleRange(of, hole.last, hole.last))
            was_kept = is_kept
        self.deleted += deleted
        self.added += [(of, hole) for hole in after if hole not in known]

    def save(self, connection: Connection, consumer: Consumer) -> None:
        """Write the changes. The claims must be locked."""
        if self.deleted:
            _delete(connection, consumer, self.deleted)
        if self.added:
            _insert(connection, consumer, self.added)


def read_holes(connection: Connection, consumer: Consumer, ranges: Sequence[HoleRange]) -> dict[Of, list[Hole]]:
    """Return the holes of each range and the next one above it, in order: all that overlap `low` to `high`."""
    found: dict[Of, list[Hole]] = {it.of: [] for it in ranges}
    if not ranges:
        return found
    database = consumer.database
    if database.is_sqlite or database.is_mariadb:
        for it in ranges:
            rows = connection.execute(_READ, {**_parameters(it), "of_consumer": consumer.id})
            found[it.of] = [Hole(*row) for row in rows]
        return found
    rows = connection.execute(_READ_ON_POSTGRESQL, _arrays(ranges) | {"consumer": consumer.id})
    for pid, partition, epoch, *hole in rows:
        found[Of(pid, partition, epoch)].append(Hole(*hole))
    for holes in found.values():
        holes.sort()
    return found


def _delete(connection: Connection, consumer: Consumer, ranges: Sequence[HoleRange]) -> None:
    if consumer.database.is_sqlite or consumer.database.is_mariadb:
        connection.execute(_DELETE, [{**_parameters(it), "of_consumer": consumer.id} for it in ranges])
        return
    connection.execute(_DELETE_ON_POSTGRESQL, _arrays(ranges) | {"consumer": consumer.id})


def _insert(connection: Connection, consumer: Consumer, added: Sequence[tuple[Of, Hole]]) -> None:
    if consumer.database.is_sqlite or consumer.database.is_mariadb:
        rows = [{"consumer": consumer.id, **of._asdict(), **hole._asdict()} for of, hole in added]
        connection.execute(HOLES.insert(), rows)
        return
    arrays = _arrays([HoleRange(of, hole.first, hole.last) for of, hole in added])
    arrays["timestamps"] = array_of_integers([hole.timestamp for _, hole in added])
    connection.execute(_INSERT_ON_POSTGRESQL, arrays | {"consumer": consumer.id})


# One query per range: MariaDB does not use an index for a range that comes from another table.
_OF_ENTRY = [
    HOLES.c.consumer == bindparam("of_consumer"),
    *(HOLES.c[name] == bindparam(f"of_{name}", type_=HOLES.c[name].type) for name in Of._fields),
]
_NEXT = select(func.min(HOLES.c.last)).where(*_OF_ENTRY, HOLES.c.last > bindparam("high")).scalar_subquery()
_READ = (
    select(*(HOLES.c[name] for name in Hole._fields))
    .where(*_OF_ENTRY, HOLES.c.last >= bindparam("low"), HOLES.c.last <= func.coalesce(_NEXT, bindparam("high")))
    .order_by(HOLES.c.last)
)
_DELETE = delete(HOLES).where(*_OF_ENTRY, HOLES.c.last >= bindparam("low"), HOLES.c.last <= bindparam("high"))


def _parameters(wanted: HoleRange) -> dict[str, object]:
    of, low, high = wanted
    return {**{f"of_{name}": value for name, value in of._asdict().items()}, "low": low, "high": high}


_SPANS = (
    "unnest(CAST(:pids AS text[]), CAST(:partitions AS text[]), CAST(:epochs AS smallint[]), CAST(:lows AS bigint[]), "
    "CAST(:highs AS bigint[]))"
)
_ENTRY = "consumer = :consumer AND pid = s.pid AND partition = s.partition AND epoch = s.epoch"
# OFFSET 0 makes the database look up each range in the index, whatever its statistics of the table.
_READ_ON_POSTGRESQL = text(
    f"SELECT s.pid, s.partition, s.epoch, h.first, h.last, h.timestamp FROM {_SPANS} "
    "AS s (pid, partition, epoch, low, high) CROSS JOIN LATERAL ("
    f"(SELECT first, last, timestamp FROM fencepost_holes WHERE {_ENTRY} AND last >= s.low AND last <= s.high OFFSET 0)"
    " UNION ALL "
    f"(SELECT first, last, timestamp FROM fencepost_holes WHERE {_ENTRY} AND last > s.high ORDER BY last LIMIT 1)"
    ") AS h"
)
_DELETE_ON_POSTGRESQL = text(
    f"DELETE FROM fencepost_holes WHERE ctid = ANY (ARRAY (SELECT h.ctid FROM {_SPANS} "
    "AS s (pid, partition, epoch, low, high) CROSS JOIN LATERAL ("
    f"SELECT ctid FROM fencepost_holes WHERE {_ENTRY} AND last >= s.low AND last <= s.high OFFSET 0) AS h))"
)
_INSERT_ON_POSTGRESQL = prepared(
    "INSERT INTO fencepost_holes (consumer, pid, partition, epoch, first, last, timestamp) SELECT :consumer, n.* "
    f"FROM {_SPANS.removesuffix(')')}, CAST(:timestamps AS bigint[])) AS n"
)


def _arrays(ranges: Iterable[HoleRange]) -> dict[str, str]:
    pids, partitions, epochs, lows, highs = zip(*((*of, low, high) for of, low, high in ranges), strict=True)
    return {
        "pids": array_of_texts(pids),
        "partitions": array_of_texts(partitions),
        "epochs": array_of_integers(epochs),
        "lows": array_of_integers(lows),
        "highs": array_of_integers(highs),
    }
