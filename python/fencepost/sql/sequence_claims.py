"""Claims by sequence: a row for each (consumer, pid, partition), however many events it stands for.

    pid, partition           as text: integers plainly, everything else as JSON; exact, and readable
    epoch, first, last       of the entry (of the highest epoch) that a state table keeps of that key
    last_timestamp           the latest of its entries, where timestamps are kept
    more                     null, or all its entries as JSON where there is more to them: the number of their holes,
                             a final range, epochs. The holes are rows of their own, see `holes`

A call locks the rows of its keys in their order, lets a `StateTable` of just these entries judge, inserts the keys
that are new and updates those that changed. So verdicts are the table's own. Whoever finds that a key that it took
for new was claimed meanwhile begins anew. Locks first, insertions after: no two calls can wait for each other.

After a reap the horizon alone decides: an entry at or below it counts as gone, deleted or not.

Offsets of a broker have holes that nothing ever fills: markers of transactions, aborted rows, compaction. So by
(topic, partition, offset) the position that a call gives for a partition closes the holes below it, and a claim stays
a plain entry, however many markers a log has. So it does where rows arrive in the order of a log: what lies behind the
newest row of a producer's partition, in sequence or in epoch, was there before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, exc, text

from fencepost._native import StateTable
from fencepost.errors import BatchError, PolicyError
from fencepost.policy import COLUMN_PRESETS, Columns, Policy
from fencepost.sql.consumers import KEY_BYTES_MAX, STORAGES, Consumer
from fencepost.sql.holes import HIGHEST, LOWEST, NO_EPOCH, Hole, HoleChanges, Of, Span, read_holes
from fencepost.sql.rows import array_of_integers, array_of_texts, prepared
from fencepost.sql.upserts import RacedError, as_json, is_duplicate
from fencepost.verdict import Verdict

Key: TypeAlias = tuple[str, str]
"""The pid and partition of a claim."""
_OFFSETS = {preset.seq for preset in COLUMN_PRESETS.values() if preset.epoch is None}


def log_order_of(policy: Policy) -> Policy:
    """The rules of rows that arrive in the order of a log. Raises PolicyError for a policy that expects an order."""
    if policy.admit != "any":
        raise PolicyError(f"in_log_order is for policies that take rows in any order, not for admit={policy.admit!r}")
    epochs = "ignore" if policy.epochs == "ignore" else "fence"
    unbound = {"max_jump": None, "reach": None, "intervals_max": None}
    return policy.replace(
        admit="forward", epochs=epochs, late="duplicate", gaps="normal", columns=policy.columns, **unbound
    )


class Claim(NamedTuple):
    """A row of fencepost_claims, but for what the database adds."""

    pid: str
    partition: str
    epoch: int | None
    first: int
    last: int
    last_timestamp: int | None
    more: str | None


class Entry(NamedTuple):
    """An entry of a claim, with the holes that are read of it.

    `holes`: in `more`, their number; in one that version 1 of the tables wrote, the holes themselves.
    """

    epoch: int | None
    first: int
    last: int
    holes: Any
    final_first: int | None
    final_last: int | None
    last_timestamp: int | None


@dataclass(frozen=True)
class Keys:
    """The keys of a call's rows, each once: their columns, and as texts."""

    rows: pa.Table
    columns: pa.Table
    texts: list[tuple[str, str]]

    def positions(self, of_sources: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """The positions of those keys that are sources: `topic-partition`."""
        names = ("-".join(map(str, it.values())) for it in self.columns.to_pylist())
        found = ((key, of_sources.get(name)) for key, name in zip(self.texts, names, strict=True))
        return {key: position for key, position in found if position is not None}

    @property
    def types(self) -> dict[str, str]:
        return {field.name: str(field.type) for field in self.columns.schema}


@dataclass(frozen=True)
class SequenceVerdicts:
    """What became of the rows of a call, see `fencepost.Verdicts`; and the claims that are new, or changed by it."""

    verdict: pa.Array
    kept: pa.Array
    counts: dict[Verdict, int]
    missing: Any
    expected: Any
    stale_epoch: int
    new: list[Claim]
    changed: list[Claim]
    holes: HoleChanges


class Sequences:
    """Judges rows by what a consumer has claimed, and claims what they add.

    `in_log_order`: rows of a producer's partition arrive in the order of a log; the policy is `log_order_of` another.
    """

    storage = STORAGES["sequence"]

    def __init__(
        self, consumer: Consumer, policy: Policy, columns: Columns, untracked: str, *, in_log_order: bool = False
    ) -> None:
        self.consumer = consumer
        self.in_log_order = in_log_order
        self.policy = policy
        self.columns = columns
        self.untracked = untracked
        self.identity = columns.names
        self.are_offsets = columns.seq in _OFFSETS
        self.keep = ("timestamp",) if columns.timestamp is not None else ()
        # The first row of every key counts, whatever it is, and nothing but one entry a key is remembered.
        epochs = "ignore" if policy.epochs == "ignore" else "fence"
        lenient = {"admit": "next", "epochs": epochs, "first": "any", "late": "out_of_order"}
        unbound = {"max_jump": None, "reach": None, "intervals_max": None}
        self._lister = policy.replace(**lenient, **unbound, window=1, columns=columns)
        of_all = {"admit": "any", "epochs": "ignore" if policy.epochs == "ignore" else "key", "first": "any"}
        self._spanner = Policy.any_order().replace(**of_all, wrap=policy.wrap, columns=columns)

    def prepare(self, rows: pa.Table) -> Keys:
        """The keys of the rows, every one of which is valid. Raises BatchError; asks no database."""
        lister = StateTable(self._lister, untracked=self.untracked)
        lister.apply(rows, self.columns)
        keys = pa.table(lister.entries())
        columns = _key_columns(keys).replace_schema_metadata()
        return Keys(rows, columns, _texts(columns))

    def claim(self, connection: Connection, keys: Keys, positions: Mapping[str, int]) -> SequenceVerdicts:
        """Judges the rows, with their claims locked; `save` is to follow.

        `positions`: up to where sources are applied with these rows.
        """
        held = self._lock(connection, keys)
        horizon_ms = self.consumer.horizon_ms(connection)
        if keys.texts:
            self.consumer.check_key_types(connection, keys.types)
        of_sources = keys.positions(positions) if self.are_offsets and positions else {}
        entries_of = {claim[:2]: _entries_of(claim) for claim in held}
        stored = self._read_holes(connection, keys, entries_of, of_sources, horizon_ms)
        table = self._table(keys, entries_of, stored, horizon_ms)
        verdicts = table.apply(keys.rows, self.columns)
        entries = pa.table(table.entries())
        if of_sources:
            entries = _closed(entries, of_sources)
        holes = HoleChanges()
        is_plain = all(it.more is None for it in held)
        counted = partial(_counted, entries_of, stored, of_sources, holes)
        after = list(_plain_claims(entries) if is_plain and _are_plain(entries) else _claims(entries, counted))
        known = {(it.pid, it.partition): it for it in held}
        new = sorted((it for it in after if it[:2] not in known), key=_in_bytes)  # as everybody inserts them
        touched = holes.keys
        changed = [it for it in after if (before := known.get(it[:2])) and (it != before or it[:2] in touched)]
        codes = pa.array(verdicts.verdict)
        kept, counts = pa.array(verdicts.kept), dict(verdicts.counts)
        if self.in_log_order and counts[Verdict.FENCED]:
            # An epoch that was replaced before the log took the next one: its rows can only come again.
            codes = pc.if_else(
                pc.equal(codes, int(Verdict.FENCED)), pa.scalar(int(Verdict.DUPLICATE), pa.uint8()), codes
            )
            counts[Verdict.DUPLICATE] += counts[Verdict.FENCED]
            counts[Verdict.FENCED] = 0
        told = verdicts.missing, verdicts.expected, verdicts.stale_epoch
        return SequenceVerdicts(codes, kept, counts, *told, new, changed, holes)

    def save(self, connection: Connection, judged: SequenceVerdicts) -> None:
        """Leaves the claims as they are after the rows. Raises RacedError: to be done again, from the start."""
        self._insert(connection, judged.new)
        self._update(connection, judged.changed)
        judged.holes.save(connection, self.consumer)

    def _read_holes(
        self,
        connection: Connection,
        keys: Keys,
        entries_of: Mapping[Key, Sequence[Entry]],
        of_sources: Mapping[Key, int],
        horizon_ms: int | None,
    ) -> dict[Of, list[Hole]]:
        """The holes that the rows can fall into, and those that a position, a horizon or a reach can close."""
        with_holes = [
            (key, entry)
            for key, entries in entries_of.items()
            for entry in entries
            if isinstance(entry.holes, int) and entry.holes
        ]
        if not with_holes:
            return {}
        is_bound = self.policy.reach is not None or self.policy.intervals_max is not None
        reads_all = is_bound or horizon_ms is not None
        spans = {} if reads_all else self._spans(keys)
        wanted = []
        for key, entry in with_holes:
            of = _of(key, entry.epoch)
            span = (LOWEST, HIGHEST) if reads_all else spans.get(of)
            if key in of_sources:
                span = min(of_sources[key], HIGHEST if span is None else span[0]), HIGHEST
            elif span is not None and self._has_laps(span, entry):
                span = LOWEST, HIGHEST
            if span is not None:
                wanted.append(Span(of, *span))
        return read_holes(connection, self.consumer, wanted)

    def _has_laps(self, span: tuple[int, int], entry: Entry) -> bool:
        """Whether a sequence number of the rows can stand for several positions of an entry."""
        first, last = min(span[0], entry.first), max(span[1], entry.last)
        return self.policy.wrap is not None and not 0 <= first <= last < self.policy.wrap

    def _spans(self, keys: Keys) -> dict[Of, tuple[int, int]]:
        """The lowest and highest sequence number of the rows, by entry."""
        table = StateTable(self._spanner, untracked=self.untracked)
        table.apply(keys.rows, self.columns)
        found = pa.table(table.entries())
        columns = (found[name].to_pylist() for name in ("epoch", "first", "last"))
        keyed = zip(_texts(_key_columns(found)), *columns, strict=True)
        return {_of(key, epoch): (first, last) for key, epoch, first, last in keyed}

    def _table(
        self,
        keys: Keys,
        entries_of: Mapping[Key, Sequence[Entry]],
        stored: Mapping[Of, Sequence[Hole]],
        horizon_ms: int | None,
    ) -> StateTable:
        entries = _entries(keys, entries_of, stored)
        table = StateTable.from_entries(entries, self.policy, keep=self.keep, horizon_ms=horizon_ms)
        if horizon_ms is not None:
            # What a reap means for these entries, whether or not it has come by.
            table.evict(horizon_ms, 0)
        return table

    # The database

    def _lock(self, connection: Connection, keys: Keys) -> list[Claim]:
        names = "c.pid, c.partition, c.epoch, c.first, c.last, c.last_timestamp, c.more"
        if self.consumer.database.is_sqlite:
            # CROSS: from the keys to the claims, never the other way round.
            query = (
                f"SELECT {names} FROM json_each(:keys) AS k CROSS JOIN fencepost_claims AS c ON c.consumer = :consumer "
                "AND c.pid = json_extract(k.value, '$[0]') AND c.partition = json_extract(k.value, '$[1]')"
            )
            wanted: dict[str, Any] = {"keys": json.dumps(keys.texts)}
        elif self.consumer.database.is_mariadb:
            # STRAIGHT: rows are locked in the order in which they are read, so in that of the keys.
            query = (
                f"SELECT {names} FROM {_KEYS_ON_MARIADB} AS k STRAIGHT_JOIN fencepost_claims AS c "
                "ON c.consumer = :consumer AND c.pid = k.pid AND c.partition = k.of_partition FOR UPDATE"
            )
            wanted = {"keys": as_json(sorted(keys.texts, key=_in_bytes))}
        else:
            query = (
                f"SELECT {names} FROM fencepost_claims AS c JOIN unnest(CAST(:pids AS text[]), "
                "CAST(:partitions AS text[])) AS k(pid, partition) ON c.pid = k.pid AND c.partition = k.partition "
                "WHERE c.consumer = :consumer ORDER BY c.pid, c.partition FOR UPDATE OF c"
            )
            pids, partitions = zip(*keys.texts, strict=True) if keys.texts else ((), ())
            wanted = {"pids": array_of_texts(pids), "partitions": array_of_texts(partitions)}
        found = connection.execute(prepared(query), {**wanted, "consumer": self.consumer.id})
        if self.consumer.database.is_mariadb:
            return [Claim(bytes(pid).decode(), bytes(partition).decode(), *rest) for pid, partition, *rest in found]
        return [Claim(*row) for row in found.all()]

    def _insert(self, connection: Connection, claims: list[Claim]) -> None:
        if not claims:
            return
        clock, consumer = self.consumer.database.clock, self.consumer.id
        names = f"consumer, {', '.join(Claim._fields)}, changed_ms"
        if self.consumer.database.is_sqlite:
            places = ", ".join(f":{name}" for name in Claim._fields)
            statement = text(f"INSERT INTO fencepost_claims ({names}) VALUES (:consumer, {places}, {clock})")
            connection.execute(statement, [{**it._asdict(), "consumer": consumer} for it in claims])
            return
        if self.consumer.database.is_mariadb:
            statement = text(
                f"INSERT INTO fencepost_claims ({names.replace('partition', '`partition`')}) "
                f"SELECT :consumer, n.*, {clock} FROM {_CLAIMS_ON_MARIADB} AS n"
            )
            try:
                connection.execute(statement, {"claims": as_json(claims), "consumer": consumer})
            except exc.IntegrityError as error:
                raise (RacedError if is_duplicate(error) else error) from error
            return
        inserted = connection.execute(text(insert_of("new", clock)), arrays_of("new", claims) | {"consumer": consumer})
        if inserted.rowcount != len(claims):
            raise RacedError

    def _update(self, connection: Connection, claims: list[Claim]) -> None:
        if not claims:
            return
        clock, names = self.consumer.database.clock, Claim._fields[2:]
        if self.consumer.database.is_sqlite:
            values = ", ".join(f"{name} = :{name}" for name in names)
            statement = text(
                f"UPDATE fencepost_claims SET {values}, changed_ms = {clock} "
                "WHERE consumer = :consumer AND pid = :pid AND partition = :partition"
            )
            connection.execute(statement, [{**it._asdict(), "consumer": self.consumer.id} for it in claims])
            return
        if self.consumer.database.is_mariadb:
            values = ", ".join(f"c.{name} = n.{name}" for name in names)
            statement = text(
                f"UPDATE {_CLAIMS_ON_MARIADB} AS n STRAIGHT_JOIN fencepost_claims AS c ON c.consumer = :consumer "
                f"AND c.pid = n.pid AND c.partition = n.of_partition SET {values}, c.changed_ms = {clock}"
            )
            connection.execute(statement, {"claims": as_json(claims), "consumer": self.consumer.id})
            return
        arrays = arrays_of("changed", claims)
        connection.execute(text(update_of("changed", clock)), arrays | {"consumer": self.consumer.id})


# PostgreSQL's statements, whose parameters are arrays


def insert_of(prefix: str, clock: str) -> str:
    """Inserts claims, but for those that are there: in the order in which they are given."""
    return (
        f"INSERT INTO fencepost_claims (consumer, {', '.join(Claim._fields)}, changed_ms) "
        f"SELECT :consumer, n.*, (SELECT {clock}) FROM {_unnest(prefix)} ON CONFLICT DO NOTHING"
    )


def update_of(prefix: str, clock: str) -> str:
    """Updates claims."""
    values = ", ".join(f"{name} = n.{name}" for name in Claim._fields[2:])
    return (
        f"UPDATE fencepost_claims AS c SET {values}, changed_ms = (SELECT {clock}) FROM {_unnest(prefix)} "
        "WHERE c.consumer = :consumer AND c.pid = n.pid AND c.partition = n.partition"
    )


def arrays_of(prefix: str, claims: Sequence[Claim]) -> dict[str, str]:
    """The parameters of `insert_of` and `update_of`; none where there are no claims."""
    columns = zip(*claims, strict=True) if claims else [()] * len(Claim._fields)
    return {
        f"{prefix}_{name}": array_of_texts(it) if kind == "text" else array_of_integers(it)
        for (name, kind), it in zip(_ARRAYS.items(), columns, strict=True)
    }


def _unnest(prefix: str) -> str:
    arrays = ", ".join(f"CAST(:{prefix}_{name} AS {kind}[])" for name, kind in _ARRAYS.items())
    return f"unnest({arrays}) AS n ({', '.join(Claim._fields)})"


_ARRAYS = {
    "pid": "text", "partition": "text", "epoch": "smallint", "first": "bigint", "last": "bigint",
    "last_timestamp": "bigint", "more": "text",
}  # fmt: skip
# MariaDB has no arrays.
_KEYS_ON_MARIADB = f"""JSON_TABLE(:keys, '$[*]' COLUMNS (
    pid VARCHAR({KEY_BYTES_MAX}) PATH '$[0]', of_partition VARCHAR({KEY_BYTES_MAX}) PATH '$[1]'))"""
_CLAIMS_ON_MARIADB = f"""JSON_TABLE(:claims, '$[*]' COLUMNS (
    pid VARCHAR({KEY_BYTES_MAX}) PATH '$[0]', of_partition VARCHAR({KEY_BYTES_MAX}) PATH '$[1]',
    epoch SMALLINT PATH '$[2]', first BIGINT PATH '$[3]', last BIGINT PATH '$[4]', last_timestamp BIGINT PATH '$[5]',
    more LONGTEXT PATH '$[6]'))"""


def _in_bytes(key: Sequence[Any]) -> tuple[bytes, bytes]:
    """The order of keys in the database: of the bytes of UTF-8, which is that of "C"."""
    return key[0].encode(), key[1].encode()


# Keys as texts


def _key_names(table: pa.Table, role: str) -> list[str]:
    return [name for name in table.column_names if name == role or name.startswith(f"{role}_")]


def _key_columns(table: pa.Table) -> pa.Table:
    return table.select(_key_names(table, "pid") + _key_names(table, "partition"))


def _texts(keys: pa.Table) -> list[tuple[str, str]]:
    return list(zip(_role_texts(keys, "pid"), _role_texts(keys, "partition"), strict=True))


def _role_texts(keys: pa.Table, role: str) -> list[str]:
    columns = [keys[name] for name in _key_names(keys, role)]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        return columns[0].cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    values = [[_jsonable(it) for it in column.to_pylist()] for column in columns]
    whole = values[0] if len(values) == 1 else map(list, zip(*values, strict=True))
    texts = [json.dumps(it, ensure_ascii=False, separators=(",", ":")) for it in whole]
    for found in texts:
        if len(found.encode()) > KEY_BYTES_MAX:
            raise BatchError(
                f"column '{role}': {found[:60]}...: has {len(found.encode())} bytes, a claim's key has at most "
                f"{KEY_BYTES_MAX}; nothing of this call was applied",
                column=role,
            )
    return texts


def _jsonable(part: object) -> object:
    return part.hex() if isinstance(part, bytes) else part


# Claims and entries

_HOLE = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("timestamp", pa.int64())])
_PLAIN = [("epoch", pa.int16()), ("first", pa.int64()), ("last", pa.int64()), ("holes", pa.list_(_HOLE))]
_FIELDS = [*_PLAIN, ("final_first", pa.int64()), ("final_last", pa.int64()), ("last_timestamp", pa.int64())]


def _of(key: Sequence[str], epoch: int | None) -> Of:
    return Of(key[0], key[1], NO_EPOCH if epoch is None else epoch)


def _entries_of(claim: Claim) -> list[Entry]:
    """The entries of a claim as the database has them."""
    if claim.more is None:
        return [Entry(claim.epoch, claim.first, claim.last, 0, None, None, claim.last_timestamp)]
    return [Entry(*it) for it in json.loads(claim.more)]


def _holes_of(key: Key, entry: Entry, stored: Mapping[Of, Sequence[Hole]]) -> list[Hole]:
    """The holes of an entry that are read."""
    if isinstance(entry.holes, int):
        return list(stored.get(_of(key, entry.epoch), ()))
    return [Hole(*it) for it in entry.holes]


def _entries(keys: Keys, entries_of: Mapping[Key, Sequence[Entry]], stored: Mapping[Of, Sequence[Hole]]) -> pa.Table:
    """What `StateTable.from_entries` takes of these claims."""
    numbers = {it: index for index, it in enumerate(keys.texts)}
    of_key: list[int] = []
    entries: list[Sequence[Any]] = []
    for key, of_claim in entries_of.items():
        for entry in of_claim:
            of_key.append(numbers[key])
            holes = [it._asdict() for it in _holes_of(key, entry, stored)] if entry.holes else ()
            entries.append((*entry[:3], holes, *entry[4:]))
    columns = keys.columns.take(pa.array(of_key, pa.int64()))
    values = zip(*entries, strict=True) if entries else [()] * len(_FIELDS)
    for (name, kind), column in zip(_FIELDS, values, strict=True):
        columns = columns.append_column(name, pa.array(column, kind))
    return columns


def _counted(
    entries_of: Mapping[Key, Sequence[Entry]],
    stored: Mapping[Of, Sequence[Hole]],
    of_sources: Mapping[Key, int],
    changes: HoleChanges,
    key: Key,
    found: Sequence[Entry],
) -> list[Entry]:
    """The entries of a claim after a call, with the numbers of their holes; and what changes of these."""
    before = {it.epoch: it for it in entries_of.get(key, ())}
    counted = []
    for entry in found:
        of, old = _of(key, entry.epoch), before.pop(entry.epoch, None)
        count = old.holes if old is not None and isinstance(old.holes, int) else 0
        read, after = stored.get(of, []), [Hole(**it) for it in entry.holes]
        end = of_sources.get(key)
        if count and end is not None:
            # All that end at or above the position are read; those below it go, read or not.
            changes.deleted.append(Span(of, LOWEST, end - 1))
            read = [it for it in read if it.last >= end]
            count = len(read)
        changes.replace(of, read, after)
        counted.append(entry._replace(holes=count + len(after) - len(read)))
    for epoch, gone in before.items():
        if isinstance(gone.holes, int) and gone.holes:
            changes.deleted.append(Span(_of(key, epoch), LOWEST, HIGHEST))
    return counted


def _closed(entries: pa.Table, positions: Mapping[tuple[str, str], int]) -> pa.Table:
    """Without the holes below these positions."""
    texts = _texts(_key_columns(entries))
    ends = [positions.get(key, 0) for key in texts]
    holes = entries["holes"].combine_chunks()
    left = [_holes_from(of_entry, end) for of_entry, end in zip(holes, ends, strict=True)]
    place = entries.column_names.index("holes")
    return entries.set_column(place, "holes", pa.array(left, pa.list_(_HOLE)))


def _holes_from(holes: pa.ListScalar, end: int) -> list[dict[str, Any]]:
    # They are sorted, and most often all of them lie below.
    if len(holes) == 0 or holes[-1]["last"].as_py() < end:
        return []
    return [it | {"first": max(it["first"], end)} for it in holes.as_py() if it["last"] >= end]


def _are_plain(entries: pa.Table) -> bool:
    """Whether each entry is one of a key of its own, without holes and a final range."""
    has_more = pc.or_(pc.greater(pc.list_value_length(entries["holes"]), 0), pc.is_valid(entries["final_first"]))
    if pc.any(has_more).as_py():
        return False
    texts = _texts(_key_columns(entries))
    return len(set(texts)) == len(texts)


def _plain_claims(entries: pa.Table) -> Iterator[Claim]:
    """What `_claims` gives for plain entries."""
    columns = (entries[name].to_pylist() for name in ("epoch", "first", "last", "last_timestamp"))
    for (pid, partition), epoch, first, last, at in zip(_texts(_key_columns(entries)), *columns, strict=True):
        yield Claim(pid, partition, epoch, first, last, at, None)


def _claims(entries: pa.Table, counted: Callable[[Key, list[Entry]], list[Entry]]) -> Iterator[Claim]:
    """The claims that stand for these entries, which lie in the order of their keys, then epochs.

    `counted`: gives the entries of a key with the numbers of their holes.
    """
    texts = _texts(_key_columns(entries))
    columns = (entries[name].to_pylist() for name, _ in _FIELDS)
    rows = zip(texts, map(Entry, *columns), strict=True)
    for key, group in groupby(rows, lambda it: it[0]):
        of_key = counted(key, [entry for _, entry in group])
        newest = of_key[-1]
        last_timestamp = max((it.last_timestamp for it in of_key if it.last_timestamp is not None), default=None)
        is_plain = len(of_key) == 1 and not newest.holes and newest.final_first is None
        more = None if is_plain else json.dumps(of_key, separators=(",", ":"))
        yield Claim(key[0], key[1], newest.epoch, newest.first, newest.last, last_timestamp, more)
