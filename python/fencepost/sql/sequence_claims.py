"""Claims by sequence: one row for each (consumer, pid, partition), however many events it represents.

    pid, partition           as text: an integer as decimal digits, other values as JSON. The text is exact and readable
    epoch, first, last       of the state table's entry for the key. With several entries, of the highest epoch
    last_timestamp           the latest timestamp of the entries, if timestamps are kept
    more                     null, or all entries as JSON if there are holes, a final range or several epochs. The JSON
                             has the number of holes; the holes are rows of another table, see `holes`

A call does these steps:

1. Lock the claims of its keys, in the order of the keys.
2. Load their entries into a `StateTable`, which judges the rows. So verdicts are those of the state table.
3. Insert new claims and update changed ones. If another transaction has inserted one of the new claims, start again.

All locks are taken before the first insertion, so two calls cannot deadlock.

After a reap only the horizon decides: an entry at or below it counts as evicted, whether its row is deleted or not.

Offsets of a broker have permanent holes: transaction markers, aborted rows, compacted rows. So for claims by
(topic, partition, offset), the position that a call passes for a partition closes the holes below it. The claim then
has no holes, however many markers the log has. The same holds for rows in log order: a row behind the newest row of
its producer's partition, by sequence number or by epoch, is a duplicate.
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
from fencepost.sql.holes import HIGHEST, LOWEST, NO_EPOCH, Hole, HoleChanges, HoleRange, Of, read_holes
from fencepost.sql.rows import array_of_integers, array_of_texts, prepared
from fencepost.sql.upserts import RacedError, as_json, is_duplicate, json_text
from fencepost.verdict import Verdict

Key: TypeAlias = tuple[str, str]
"""The pid and partition of a claim."""
_OFFSETS = {preset.seq for preset in COLUMN_PRESETS.values() if preset.epoch is None}


def log_order_of(policy: Policy) -> Policy:
    """Return the rules for rows that arrive in log order.

    Raises:
        PolicyError: The policy's `admit` is not "any".
    """
    if policy.admit != "any":
        raise PolicyError(f"in_log_order requires a policy with admit='any', not admit={policy.admit!r}")
    return _unbound(policy, admit="forward", late="duplicate", gaps="normal", columns=policy.columns)


def _unbound(policy: Policy, **rules: Any) -> Policy:
    """Return the policy with other rules and without bounds. If epochs count, a higher one fences."""
    epochs = "ignore" if policy.epochs == "ignore" else "fence"
    return policy.replace(epochs=epochs, max_jump=None, reach=None, intervals_max=None, **rules)


class Claim(NamedTuple):
    """A row of fencepost_claims, without the columns that the database fills."""

    pid: str
    partition: str
    epoch: int | None
    first: int
    last: int
    last_timestamp: int | None
    more: str | None


class Entry(NamedTuple):
    """An entry of a claim.

    `holes`: in `more`, the number of holes. Version 1 of the tables stored the holes themselves.
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
    """The distinct keys of a call's rows, as columns and as texts."""

    rows: pa.Table
    columns: pa.Table
    texts: list[tuple[str, str]]

    def positions(self, of_sources: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Return the positions of keys whose name `topic-partition` is a source."""
        names = ("-".join(map(str, it.values())) for it in self.columns.to_pylist())
        found = ((key, of_sources.get(name)) for key, name in zip(self.texts, names, strict=True))
        return {key: position for key, position in found if position is not None}

    @property
    def types(self) -> dict[str, str]:
        return {field.name: str(field.type) for field in self.columns.schema}


@dataclass(frozen=True)
class SequenceVerdicts:
    """The verdicts of a call, as in `fencepost.Verdicts`, and the new and changed claims."""

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
    """Judges rows by the claims of a consumer, and claims the accepted rows.

    `in_log_order`: rows of a producer's partition arrive in log order, and the policy is a result of `log_order_of`.
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
        self.keep = columns.kept
        # The lister finds the keys: it accepts any first row of a key, and keeps one entry per key.
        lenient = {"admit": "next", "first": "any", "late": "out_of_order", "window": 1}
        self._lister = _unbound(policy, **lenient, columns=columns)
        of_all = {"admit": "any", "epochs": "ignore" if policy.epochs == "ignore" else "key", "first": "any"}
        self._bounds_policy = Policy.any_order().replace(**of_all, wrap=policy.wrap, columns=columns)

    def prepare(self, rows: pa.Table) -> Keys:
        """Validate the rows and return their keys, without a query.

        Raises:
            BatchError: Invalid columns or values.
        """
        lister = StateTable(self._lister, untracked=self.untracked)
        lister.apply(rows, self.columns)
        keys = pa.table(lister.entries())
        columns = keys.select(_key_names(keys, "pid") + _key_names(keys, "partition")).replace_schema_metadata()
        return Keys(rows, columns, _texts(columns, self.columns))

    def claim(self, connection: Connection, keys: Keys, positions: Mapping[str, int]) -> SequenceVerdicts:
        """Lock the claims of the rows and judge the rows. The caller then calls `save`.

        `positions`: the positions that the sources have after these rows.
        """
        held = self._lock(connection, keys)
        horizon_ms = self.consumer.horizon_ms(connection)
        if keys.texts:
            self.consumer.check_key_types(connection, keys.types, _input_names(self.columns))
        of_sources = keys.positions(positions) if self.are_offsets and positions else {}
        entries_of = {claim[:2]: _entries_of(claim) for claim in held}
        stored = self._read_holes(connection, keys, entries_of, of_sources, horizon_ms)
        table = self._table(keys, entries_of, stored, horizon_ms)
        verdicts = table.apply(keys.rows, self.columns)
        entries = pa.table(table.entries())
        texts = _texts(entries, self.columns)
        if of_sources:
            entries = _closed(entries, texts, of_sources)
        holes = HoleChanges()
        is_plain = all(it.more is None for it in held) and _are_plain(entries, texts)
        counted = partial(_counted, entries_of, stored, of_sources, holes)
        after = list(_plain_claims(entries, texts) if is_plain else _claims(entries, texts, counted))
        known = {it[:2]: it for it in held}
        new = sorted((it for it in after if it[:2] not in known), key=_in_bytes)  # All calls insert in this order.
        touched = holes.keys
        changed = [it for it in after if (before := known.get(it[:2])) and (it != before or it[:2] in touched)]
        codes = pa.array(verdicts.verdict)
        kept, counts = pa.array(verdicts.kept), dict(verdicts.counts)
        if self.in_log_order and counts[Verdict.FENCED]:
            # In a log no new rows follow of an epoch that a later one has replaced. So such rows are duplicates.
            codes = pc.if_else(
                pc.equal(codes, int(Verdict.FENCED)), pa.scalar(int(Verdict.DUPLICATE), pa.uint8()), codes
            )
            counts[Verdict.DUPLICATE] += counts[Verdict.FENCED]
            counts[Verdict.FENCED] = 0
        gaps = verdicts.missing, verdicts.expected
        return SequenceVerdicts(codes, kept, counts, *gaps, verdicts.stale_epoch, new, changed, holes)

    def save(self, connection: Connection, judged: SequenceVerdicts) -> None:
        """Write the new and changed claims.

        Raises:
            RacedError: Another transaction has inserted one of the new claims. Start again.
        """
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
        """Return the holes that the rows can fill, and those that a position, a horizon or a reach can close."""
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
        bounds_of = {} if reads_all else self._bounds(keys)
        wanted = []
        for key, entry in with_holes:
            of = _of(key, entry.epoch)
            bounds = (LOWEST, HIGHEST) if reads_all else bounds_of.get(of)
            if key in of_sources:
                bounds = min(of_sources[key], HIGHEST if bounds is None else bounds[0]), HIGHEST
            elif bounds is not None and self._has_laps(bounds, entry):
                bounds = LOWEST, HIGHEST
            if bounds is not None:
                wanted.append(HoleRange(of, *bounds))
        return read_holes(connection, self.consumer, wanted)

    def _has_laps(self, bounds: tuple[int, int], entry: Entry) -> bool:
        """Return whether a sequence number of the rows can mean several positions of an entry, because it wraps."""
        first, last = min(bounds[0], entry.first), max(bounds[1], entry.last)
        return self.policy.wrap is not None and not 0 <= first <= last < self.policy.wrap

    def _bounds(self, keys: Keys) -> dict[Of, tuple[int, int]]:
        """Return the lowest and highest sequence number of the rows, by entry."""
        table = StateTable(self._bounds_policy, untracked=self.untracked)
        table.apply(keys.rows, self.columns)
        found = pa.table(table.entries())
        columns = (found[name].to_pylist() for name in ("epoch", "first", "last"))
        keyed = zip(_texts(found, self.columns), *columns, strict=True)
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
            # A reap has the same effect on these entries. It may not have deleted them yet.
            table.evict(horizon_ms, 0)
        return table

    # The database

    def _lock(self, connection: Connection, keys: Keys) -> list[Claim]:
        names = "c.pid, c.partition, c.epoch, c.first, c.last, c.last_timestamp, c.more"
        if self.consumer.database.is_sqlite:
            # CROSS makes SQLite look up the claims by the keys, not scan the claims.
            query = (
                f"SELECT {names} FROM json_each(:keys) AS k CROSS JOIN fencepost_claims AS c ON c.consumer = :consumer "
                "AND c.pid = json_extract(k.value, '$[0]') AND c.partition = json_extract(k.value, '$[1]')"
            )
            wanted: dict[str, Any] = {"keys": json.dumps(keys.texts)}
        elif self.consumer.database.is_mariadb:
            # MariaDB locks rows in the order in which it reads them. STRAIGHT makes this the order of the keys.
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


# Statements of PostgreSQL, with arrays as parameters


def insert_of(prefix: str, clock: str) -> str:
    """Return the statement that inserts claims in the order of the parameters, and skips existing keys."""
    return (
        f"INSERT INTO fencepost_claims (consumer, {', '.join(Claim._fields)}, changed_ms) "
        f"SELECT :consumer, n.*, (SELECT {clock}) FROM {_unnest(prefix)} ON CONFLICT DO NOTHING"
    )


def update_of(prefix: str, clock: str) -> str:
    """Return the statement that updates claims."""
    values = ", ".join(f"{name} = n.{name}" for name in Claim._fields[2:])
    return (
        f"UPDATE fencepost_claims AS c SET {values}, changed_ms = (SELECT {clock}) FROM {_unnest(prefix)} "
        "WHERE c.consumer = :consumer AND c.pid = n.pid AND c.partition = n.partition"
    )


def arrays_of(prefix: str, claims: Sequence[Claim]) -> dict[str, str]:
    """Return the parameters of `insert_of` and `update_of`. Without claims, the arrays are empty."""
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
_KEY_ON_MARIADB = json_text(KEY_BYTES_MAX)
_KEYS_ON_MARIADB = f"""JSON_TABLE(:keys, '$[*]' COLUMNS (
    pid {_KEY_ON_MARIADB} PATH '$[0]', of_partition {_KEY_ON_MARIADB} PATH '$[1]'))"""
_CLAIMS_ON_MARIADB = f"""JSON_TABLE(:claims, '$[*]' COLUMNS (
    pid {_KEY_ON_MARIADB} PATH '$[0]', of_partition {_KEY_ON_MARIADB} PATH '$[1]',
    epoch SMALLINT PATH '$[2]', first BIGINT PATH '$[3]', last BIGINT PATH '$[4]', last_timestamp BIGINT PATH '$[5]',
    more LONGTEXT PATH '$[6]'))"""


def _in_bytes(key: Sequence[Any]) -> tuple[bytes, bytes]:
    """Return the sort key that gives the database's order of keys: by UTF-8 bytes, as in the collation "C"."""
    return key[0].encode(), key[1].encode()


# Keys as texts


def _key_names(table: pa.Table, role: str) -> list[str]:
    return [name for name in table.column_names if name == role or name.startswith(f"{role}_")]


def _input_names(columns: Columns) -> dict[str, str]:
    """Return the column of the input for each key column of a table's entries."""
    names: dict[str, str] = {}
    for role in ("pid", "partition"):
        parts = columns.parts(role)
        names |= {role: parts[0]} if len(parts) == 1 else {f"{role}_{at}": it for at, it in enumerate(parts)}
    return names


def _texts(keys: pa.Table, of_input: Columns) -> list[Key]:
    """Return the key of each row as texts. `of_input`: the columns of the input, for errors."""
    pids, partitions = (_role_texts(keys, role, ", ".join(of_input.parts(role))) for role in ("pid", "partition"))
    return list(zip(pids, partitions, strict=True))


def _role_texts(keys: pa.Table, role: str, name: str) -> list[str]:
    columns = [keys[name] for name in _key_names(keys, role)]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        return columns[0].cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    values = [[_jsonable(it) for it in column.to_pylist()] for column in columns]
    whole = values[0] if len(values) == 1 else map(list, zip(*values, strict=True))
    texts = [json.dumps(it, ensure_ascii=False, separators=(",", ":")) for it in whole]
    for found in texts:
        if len(found.encode()) > KEY_BYTES_MAX:
            raise BatchError(
                f"column '{name}': {found[:60]}...: the key has {len(found.encode())} bytes, but a key of a claim has "
                f"at most {KEY_BYTES_MAX}. Nothing of this call was applied",
                column=name,
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
    """Return the entries of a claim, as stored."""
    if claim.more is None:
        return [Entry(claim.epoch, claim.first, claim.last, 0, None, None, claim.last_timestamp)]
    return [Entry(*it) for it in json.loads(claim.more)]


def _holes_of(key: Key, entry: Entry, stored: Mapping[Of, Sequence[Hole]]) -> list[Hole]:
    """Return the holes of an entry that were read from the database."""
    if isinstance(entry.holes, int):
        return list(stored.get(_of(key, entry.epoch), ()))
    return [Hole(*it) for it in entry.holes]


def _entries(keys: Keys, entries_of: Mapping[Key, Sequence[Entry]], stored: Mapping[Of, Sequence[Hole]]) -> pa.Table:
    """Return the claims as the table of entries that `StateTable.from_entries` expects."""
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
    """Return the entries of a claim after a call, with their numbers of holes. Add changed holes to `changes`."""
    before = {it.epoch: it for it in entries_of.get(key, ())}
    counted = []
    for entry in found:
        of, old = _of(key, entry.epoch), before.pop(entry.epoch, None)
        count = old.holes if old is not None and isinstance(old.holes, int) else 0
        read, after = stored.get(of, []), [Hole(**it) for it in entry.holes]
        end = of_sources.get(key)
        if count and end is not None:
            # The holes that end at or above the position are all read. Those below it are deleted, read or not.
            changes.deleted.append(HoleRange(of, LOWEST, end - 1))
            read = [it for it in read if it.last >= end]
            count = len(read)
        changes.replace(of, read, after)
        counted.append(entry._replace(holes=count + len(after) - len(read)))
    for epoch, gone in before.items():
        if isinstance(gone.holes, int) and gone.holes:
            changes.deleted.append(HoleRange(_of(key, epoch), LOWEST, HIGHEST))
    return counted


# Below, `texts` are the keys of the entries.


def _closed(entries: pa.Table, texts: Sequence[Key], positions: Mapping[Key, int]) -> pa.Table:
    """Return the entries without the holes below these positions."""
    ends = [positions.get(key, 0) for key in texts]
    holes = entries["holes"].combine_chunks()
    left = [_holes_from(of_entry, end) for of_entry, end in zip(holes, ends, strict=True)]
    place = entries.column_names.index("holes")
    return entries.set_column(place, "holes", pa.array(left, pa.list_(_HOLE)))


def _holes_from(holes: pa.ListScalar, end: int) -> list[dict[str, Any]]:
    # Holes are sorted. Most often all of them are below the position.
    if len(holes) == 0 or holes[-1]["last"].as_py() < end:
        return []
    return [it | {"first": max(it["first"], end)} for it in holes.as_py() if it["last"] >= end]


def _are_plain(entries: pa.Table, texts: Sequence[Key]) -> bool:
    """Return whether no two entries have the same key, and no entry has holes or a final range."""
    has_more = pc.or_(pc.greater(pc.list_value_length(entries["holes"]), 0), pc.is_valid(entries["final_first"]))
    return not pc.any(has_more).as_py() and len(set(texts)) == len(texts)


def _plain_claims(entries: pa.Table, texts: Sequence[Key]) -> Iterator[Claim]:
    """Yield the same claims as `_claims`, faster, for plain entries."""
    columns = (entries[name].to_pylist() for name in ("epoch", "first", "last", "last_timestamp"))
    for (pid, partition), epoch, first, last, at in zip(texts, *columns, strict=True):
        yield Claim(pid, partition, epoch, first, last, at, None)


def _claims(
    entries: pa.Table, texts: Sequence[Key], counted: Callable[[Key, list[Entry]], list[Entry]]
) -> Iterator[Claim]:
    """Yield the claims for these entries, which are sorted by key and epoch.

    `counted`: returns the entries of a key with their numbers of holes.
    """
    columns = (entries[name].to_pylist() for name, _ in _FIELDS)
    rows = zip(texts, map(Entry, *columns), strict=True)
    for key, group in groupby(rows, lambda it: it[0]):
        of_key = counted(key, [entry for _, entry in group])
        newest = of_key[-1]
        last_timestamp = max((it.last_timestamp for it in of_key if it.last_timestamp is not None), default=None)
        is_plain = len(of_key) == 1 and not newest.holes and newest.final_first is None
        more = None if is_plain else json.dumps(of_key, separators=(",", ":"))
        yield Claim(key[0], key[1], newest.epoch, newest.first, newest.last, last_timestamp, more)
