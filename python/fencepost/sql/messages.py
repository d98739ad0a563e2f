"""Claims by message id: the table of processed messages, with one row for every message within the retention.

An id is a column of texts, integers or binary values from the *producer*, alone or with a version:
(aggregate, version). Pairs are compared exactly. Coordinates of the broker are refused. They number stored records,
not sent events, so a producer's retry gets two coordinates and would be applied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, exc, text

from fencepost.errors import BatchError, PolicyError
from fencepost.inputs import shown
from fencepost.policy import COLUMN_PRESETS
from fencepost.resets import milliseconds
from fencepost.sql import drivers
from fencepost.sql.consumers import ID_BYTES_MAX, STORAGES, Consumer
from fencepost.sql.kinds import driver_errors
from fencepost.sql.rows import array_of, array_of_integers, column_named, prepared, uuid_spellings, uuid_texts
from fencepost.sql.upserts import RacedError, as_json, is_duplicate, json_text
from fencepost.verdict import Verdict

_SECONDS_MAX = (2**63 - 1) // 1000
_BROKER_NAMES = {"topic", "partition", "offset", "topic_partition", "kafka_key_offset", "record_offset"} | {
    name.lower() for preset in ("kafka", "kafka-connect", "hudi") for name in COLUMN_PRESETS[preset].names
}


def check_names(names: Sequence[str]) -> None:
    """Check the columns of a message id.

    Raises:
        PolicyError: A column has the name of a broker coordinate, or there are not one or two columns.
    """
    coordinates = [name for name in names if isinstance(name, str) and name.lower() in _BROKER_NAMES]
    if coordinates:
        raise PolicyError(
            f"message_id={tuple(names)!r}: '{coordinates[0]}' is a coordinate of the broker. It numbers stored "
            "records: an event that its producer sent twice has two offsets, and both would be applied. Use an id from "
            "the producer (claim='message_id') or the producer's sequence numbers (claim='sequence'). To detect "
            "redelivery only, use claim='sequence' with policy='kafka_offsets'"
        )
    if not 1 <= len(names) <= 2 or not all(isinstance(name, str) for name in names):
        raise PolicyError(f"message_id={names!r}: expected the column of an event id, or (aggregate id, version)")


@dataclass(frozen=True)
class Ids:
    """The distinct ids of a call's rows, and the id of each row.

    Attributes:
        texts: The text of each distinct id. Ids are sorted by the bytes of the text, then by version.
        versions: The version of each distinct id; 0 without a version column.
        of_row: For each row, the index of its id.
        first: For each distinct id, the first row that has it.
        timestamps: For each row, int64 ms; None without a timestamp column.
        types: The types of the id columns, by name.
    """

    texts: pa.Array
    versions: Any
    of_row: Any
    first: Any
    timestamps: Any
    types: dict[str, str]

    def timestamps_of(self, asked: Any) -> Any:
        """Return a list with the timestamp of the first row of each requested id, or None."""
        return [None] * len(asked) if self.timestamps is None else self.timestamps[self.first[asked]].tolist()


@dataclass(frozen=True)
class MessageVerdicts:
    """The verdicts of a call, with the fields of `SequenceVerdicts` that a sink reads."""

    verdict: pa.Array
    kept: pa.Array
    counts: dict[Verdict, int]
    missing: None = None
    expected: None = None
    stale_epoch: None = None
    new: tuple[()] = ()
    changed: tuple[()] = ()


class Messages:
    """Judges rows by the processed messages of a consumer, and claims the ids of new ones."""

    storage = STORAGES["message_id"]

    def __init__(self, consumer: Consumer, names: Sequence[str], timestamp: str | None) -> None:
        self.consumer = consumer
        self.identity = tuple(names)
        self.timestamp = timestamp

    def prepare(self, rows: pa.Table) -> Ids:
        """Validate the rows and return their ids, without a query.

        Raises:
            BatchError: Invalid columns or values.
        """
        texts = _id_texts(rows, self.identity[0])
        types = {self.identity[0]: _kind(rows, self.identity[0])}
        versions = pa.array(np.zeros(rows.num_rows, np.int64))
        if len(self.identity) == 2:
            versions = _integers(rows, self.identity[1])
            types[self.identity[1]] = "integer"
        # Every process claims ids in the order of their bytes, so that they cannot deadlock.
        encoded = texts.combine_chunks().dictionary_encode()
        by_bytes = np.asarray(pc.sort_indices(encoded.dictionary))
        rank = np.empty(len(by_bytes), np.int64)
        rank[by_bytes] = np.arange(len(by_bytes))
        keys = rank[np.asarray(encoded.indices)], np.asarray(versions)
        order = np.lexsort(keys[::-1])
        is_other = [np.diff(it[order], prepend=it[order[:1]] - 1) != 0 for it in keys]
        is_first = is_other[0] | is_other[1]
        first = order[is_first]
        of_row = np.empty(rows.num_rows, np.int64)
        of_row[order] = np.cumsum(is_first) - 1
        timestamps = None if self.timestamp is None else np.asarray(_milliseconds(rows, self.timestamp))
        different = texts.take(pa.array(first)).combine_chunks()
        return Ids(different, keys[1][first], of_row, first, timestamps, types)

    def claim(
        self,
        connection: Connection,
        ids: Ids,
        positions: Mapping[str, int],
        insert: Callable[[Ids, Any], Any] | None = None,
    ) -> MessageVerdicts:
        """Judge the rows and claim new ids.

        `positions` are not used; `Sequences.claim` has the same parameter. `insert` claims the ids at the given
        indexes. It returns the positions, within these indexes, of ids that are new.
        """
        horizon_ms = self.consumer.horizon_ms(connection)
        if len(ids.texts):
            self.consumer.check_key_types(connection, ids.types, {})
        is_old = np.zeros(len(ids.of_row), bool)
        if horizon_ms is not None:
            is_old = ids.timestamps <= horizon_ms
            # The first row above the horizon represents an id. Earlier rows are FORGOTTEN, however rows are divided
            # into calls.
            first = np.full(len(ids.texts), len(ids.of_row), np.int64)
            np.minimum.at(first, ids.of_row[~is_old], np.flatnonzero(~is_old))
            ids = replace(ids, first=first)
        asked = np.flatnonzero(ids.first < len(ids.of_row))
        is_new = np.zeros(len(ids.texts), bool)
        found = self._insert(connection, ids, asked) if insert is None else insert(ids, asked)
        is_new[asked[found]] = True
        codes = np.full(len(ids.of_row), Verdict.DUPLICATE, np.uint8)
        codes[ids.first[is_new]] = Verdict.ACCEPTED
        codes[is_old] = Verdict.FORGOTTEN
        counts = np.bincount(codes, minlength=len(Verdict))
        return MessageVerdicts(
            pa.array(codes), pa.array(codes == Verdict.ACCEPTED), {it: int(counts[it]) for it in Verdict}
        )

    def save(self, connection: Connection, judged: MessageVerdicts) -> None:
        """Do nothing: `claim` has inserted the ids."""

    def _insert(self, connection: Connection, ids: Ids, asked: Any) -> Any:
        """Insert the requested ids. Return the positions in `asked` of those that were new."""
        clock, consumer = self.consumer.database.clock, self.consumer.id
        texts, versions = ids.texts.take(pa.array(asked)).to_pylist(), ids.versions[asked].tolist()
        if self.consumer.database.is_sqlite:
            return self._insert_one_by_one(connection, texts, versions, ids.timestamps_of(asked))
        if self.consumer.database.is_mariadb:
            return self._insert_unknown(connection, texts, versions, ids.timestamps_of(asked))
        statement = prepared(
            f"WITH claimed AS ({CLAIM.format(clock=clock)} FROM unnest({ARRAYS}) AS n (id, version, timestamp) "
            "ON CONFLICT DO NOTHING RETURNING id, version) SELECT array_agg(id), array_agg(version) FROM claimed"
        )
        found = connection.execute(statement, arrays_of(ids, asked) | {"consumer": consumer}).one()
        claimed = set(zip(*found, strict=True)) if found[0] is not None else set()
        return np.flatnonzero([key in claimed for key in zip(texts, versions, strict=True)])

    def _insert_unknown(
        self, connection: Connection, texts: list[str], versions: list[int], timestamps: list[int | None]
    ) -> Any:
        """Insert on MariaDB, which does not report the rows that an insertion skips.

        Raises:
            RacedError: Another transaction has inserted one of the ids. Start again.
        """
        ids = as_json(list(zip(texts, versions, strict=True)))
        known = connection.execute(_KNOWN_ON_MARIADB, {"ids": ids, "consumer": self.consumer.id})
        is_new = np.ones(len(texts), bool)
        is_new[[row[0] - 1 for row in known]] = False
        new = np.flatnonzero(is_new)
        rows = as_json([(texts[it], versions[it], timestamps[it]) for it in new])
        statement = text(_INSERT_ON_MARIADB.format(clock=self.consumer.database.clock))
        if len(new):
            try:
                connection.execute(statement, {"ids": rows, "consumer": self.consumer.id})
            except exc.IntegrityError as error:
                raise (RacedError if is_duplicate(error) else error) from error
        return new

    def _insert_one_by_one(
        self, connection: Connection, texts: list[str], versions: list[int], timestamps: list[int | None]
    ) -> Any:
        statement = (
            "INSERT INTO fencepost_messages (consumer, id, version, timestamp, changed_ms) "
            f"VALUES (?, ?, ?, ?, {self.consumer.database.clock}) ON CONFLICT DO NOTHING"
        )
        driver = drivers.driver_of(connection)
        rows = zip([self.consumer.id] * len(texts), texts, versions, timestamps, strict=True)
        counts = (drivers.settled(driver.execute(statement, row)).rowcount for row in rows)
        with driver_errors(connection, statement):
            return np.flatnonzero(np.fromiter(counts, np.int64, len(texts)))


# Statements of PostgreSQL, with arrays as parameters. The rows are locked in the order of `asked`.
CLAIM = (
    "INSERT INTO fencepost_messages (consumer, id, version, timestamp, changed_ms) "
    "SELECT :consumer, n.id, n.version, n.timestamp, (SELECT {clock})"
)
ARRAYS = "CAST(:ids AS text[]), CAST(:versions AS bigint[]), CAST(:timestamps AS bigint[])"


def arrays_of(ids: Ids, asked: Any) -> dict[str, str]:
    """Return the parameters of `ARRAYS` for the ids at these indexes."""
    return {
        "ids": array_of(pa.chunked_array([ids.texts.take(pa.array(asked))])),
        "versions": array_of_integers(ids.versions[asked].tolist()),
        "timestamps": array_of_integers(ids.timestamps_of(asked)),
    }


_ID_ON_MARIADB = json_text(ID_BYTES_MAX)
_KNOWN_ON_MARIADB = text(
    f"SELECT n.place FROM JSON_TABLE(:ids, '$[*]' COLUMNS (place FOR ORDINALITY, id {_ID_ON_MARIADB} "
    "PATH '$[0]', version BIGINT PATH '$[1]')) AS n STRAIGHT_JOIN fencepost_messages AS m ON m.consumer = :consumer "
    "AND m.id = n.id AND m.version = n.version"
)
_INSERT_ON_MARIADB = (
    "INSERT INTO fencepost_messages (consumer, id, version, timestamp, changed_ms) SELECT :consumer, n.*, {clock} "
    "FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id " + _ID_ON_MARIADB + " PATH '$[0]', "
    "version BIGINT PATH '$[1]', timestamp BIGINT PATH '$[2]')) AS n"
)

# Columns


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = column_named(rows, name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise BatchError(f"column '{name}', row {row}: null, but each message needs a value", column=name, row=row)
    return column


def _kind(rows: pa.Table, name: str) -> str:
    kind = _column(rows, name).type
    if pa.types.is_integer(kind):
        return "integer"
    return "binary" if _is_binary(kind) else "text"


def _is_binary(kind: pa.DataType) -> bool:
    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(is_one(kind) for is_one in of_bytes)


def _id_texts(rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name)
    if column.type == pa.uuid():
        column = uuid_texts(column)
    kind = column.type
    if _is_binary(kind):
        column = pa.chunked_array([pa.array([it.hex() for it in column.to_pylist()], pa.string())])
    elif pa.types.is_integer(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.string())
    elif len(column) == 0:
        return column.cast(pa.string())
    elif not pa.types.is_string(kind):
        raise BatchError(f"column '{name}': is of type {kind}, texts, integers or binary are needed", column=name)
    if not _is_binary(kind) and not pa.types.is_integer(kind):
        column = pc.coalesce(uuid_spellings(column), column)  # All spellings of a UUID are the same id.
    row = pc.index(pc.greater(pc.binary_length(column), ID_BYTES_MAX), True).as_py()
    if row >= 0:
        value = shown(column[row].as_py())
        raise BatchError(
            f"column '{name}', row {row}: {value}: an id has at most {ID_BYTES_MAX} bytes", column=name, row=row
        )
    row = pc.index(pc.equal(pc.binary_length(column), 0), True).as_py()
    if row >= 0:
        raise BatchError(f"column '{name}', row {row}: empty, but a message needs an identity", column=name, row=row)
    row = pc.index(pc.match_substring(column, "\0"), True).as_py()
    if row >= 0:
        value = shown(column[row].as_py())
        raise BatchError(f"column '{name}', row {row}: {value}: an id must have no zero bytes", column=name, row=row)
    return column


def _integers(rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name)
    if not pa.types.is_integer(column.type):
        raise BatchError(f"column '{name}': is of type {column.type}, integers are needed", column=name)
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        row = next(at for at, it in enumerate(column.to_pylist()) if it >= 2**63)
        problem = f"value {column[row].as_py()} is outside {-(2**63)}..={2**63 - 1}"
        raise BatchError(f"column '{name}', row {row}: {problem}", column=name, row=row) from None


def _milliseconds(rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = _column(rows, name)
    if not pa.types.is_timestamp(column.type):
        return _integers(rows, name)
    if column.type.unit == "s":
        ticks = column.cast(pa.int64()).to_numpy()
        wrong = np.flatnonzero((ticks > _SECONDS_MAX) | (ticks < -_SECONDS_MAX))
        if len(wrong):
            row = int(wrong[0])
            problem = f"value {ticks[row]} is outside the milliseconds that 64 bits can hold"
            raise BatchError(f"column '{name}', row {row}: {problem}", column=name, row=row)
    return milliseconds(column)
