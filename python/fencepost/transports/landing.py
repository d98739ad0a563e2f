"""A landing folder, or prefix of an object store, of Parquet files. Its log lists the files that count.

    _partitions.json                   the number of partitions, stored by the first writer
    _log/00000000000000000007.json     one entry: a batch, a fence or a marker
    data/partition=3/7-0-1200-<nonce>.parquet

Every decision is one put-if-absent of the next log entry, so all writers agree on one order. All readers judge the
entries by the same rules (`LandingState`). A writer first puts its file durably, then the entry that lists it. Files
without an entry are left over from crashes or refused batches; nobody reads them. A zombie cannot put an entry without
having read the fence.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from fencepost import BrokerTable, Verdict
from fencepost.errors import BatchError, PolicyError, SourceError
from fencepost.inputs import is_integer
from fencepost.producer.answers import Answer
from fencepost.producer.sequencer import EPOCH_MAX, LAST_EPOCH, Identity
from fencepost.producer.transport import SequencedBatch
from fencepost.state.stores import Store, check_exclusion, is_local, open_store
from fencepost.transports import schemas
from fencepost.transports.admission import Judged, judge, last_written, mark, new_table
from fencepost.transports.counts import stored_in
from fencepost.transports.schemas import NOTHING

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
LOG, DATA, COUNT = "_log", "data", "_partitions.json"
_ENTRY = re.compile(rf"{LOG}/\d{{20}}\.json$")
_PARTITION = re.compile(rf"{DATA}/partition=(\d+)/")


@dataclass(frozen=True)
class LandedFile:
    """A file that an entry lists."""

    path: str
    """Relative to the folder."""
    bytes: int
    rows: int


@dataclass(frozen=True)
class LandedBatch:
    """An entry's record of a batch: its commit marker."""

    partition: int
    pid: int
    epoch: int
    first_seq: int
    last_seq: int
    count: int
    offset: int
    """Offset of its first row in the partition. Transaction markers take an offset, too."""
    files: tuple[LandedFile, ...]
    transactional: bool = False
    cursor: str | None = None
    """The producer's name in cursor mode; it identifies the producer's positions."""
    schema: str | None = None
    """The folder's columns from this entry on, if the batch changes them (`schemas.to_text`)."""


class Lease(NamedTuple):
    """A lease, in an entry of an older version: the owner of a name, or of a pid without a name."""

    pid: int
    epoch: int
    name: str | None
    is_taken_over: bool
    """Whether it was taken from another producer. False: its owner asked for its own next epoch."""


class Fence(NamedTuple):
    """An entry's record of a fence: a pid's lowest epoch from here on, in these partitions or (None) in all."""

    pid: int
    epoch: int
    partitions: tuple[int, ...] | None


class Marker(NamedTuple):
    """An entry's record of the end of a transaction in a partition."""

    pid: int
    epoch: int
    partition: int
    outcome: str
    coordinator_epoch: int


class LandingState:
    """The state after the entries so far. Equal for all readers."""

    def __init__(self) -> None:
        self.next_entry = 0
        self._leases: dict[str, Identity] = {}
        self.schema: pa.Schema | None = None
        self.refused: list[tuple[LandedBatch, Verdict]] = []
        self._table: BrokerTable = new_table()
        self._floors: dict[tuple[int, int | None], int] = {}
        self._cursors: dict[tuple[str, int], int] = {}
        self._open: dict[tuple[int, int], list[LandedBatch]] = {}
        self._partitions: set[int] = set()

    @property
    def open(self) -> list[LandedBatch]:
        """Batches of undecided transactions."""
        return [batch for batches in self._open.values() for batch in batches]

    def apply(self, entry: Mapping[str, Any]) -> list[LandedBatch]:
        """Apply the next entry, and return the batches that it makes visible.

        Raises KeyError, TypeError, ValueError or BatchError for an invalid entry. The state is then unchanged, so the
        same entry can be read again.
        """
        seen = self._accept(read_entry(entry))
        self.next_entry += 1
        return seen

    def _accept(self, record: LandedBatch | Lease | Fence | Marker) -> list[LandedBatch]:
        if isinstance(record, LandedBatch):
            return self._take(record)
        if isinstance(record, Marker):
            return self._decide(record)
        if isinstance(record, Lease):
            self._lease(record)
        else:
            for number in (None,) if record.partitions is None else record.partitions:
                self._raise_floor(record.pid, number, record.epoch)
        return []

    def judge(self, batch: SequencedBatch | LandedBatch, *, check: bool = False) -> Judged:
        """Judge a batch. `check`: do not change the state."""
        if batch.epoch < self.floor(batch.pid, batch.partition):
            return Judged(Verdict.FENCED, None)
        if batch.cursor is not None:
            return self._judge_cursor(batch, batch.cursor, check)
        return judge(
            self._table, batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.count, batch.transactional,
            check=check,
        )  # fmt: skip

    def floor(self, pid: int, partition: int) -> int:
        """The lowest epoch that a partition accepts of a producer."""
        return max(self._floors.get((pid, None), 0), self._floors.get((pid, partition), 0))

    def cursor(self, name: str, partition: int) -> int | None:
        """The highest position that a partition has of a producer in cursor mode."""
        return self._cursors.get((name, partition))

    def written(self, pid: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """The epoch and last sequence of a producer in each partition."""
        known = sorted(self._partitions) if partitions is None else partitions
        return {number: last for number in known if (last := last_written(self._table, number, pid)) is not None}

    def mark(self, marker: Marker, *, check: bool = False) -> Verdict:
        """Judge a marker. `check`: do not change the state."""
        of = (marker.partition, marker.pid, marker.epoch, marker.outcome, marker.coordinator_epoch)
        return mark(self._table, *of, check=check).verdict

    def _take(self, batch: LandedBatch) -> list[LandedBatch]:
        verdict, offset = self.judge(batch, check=True)
        if verdict is not Verdict.ACCEPTED or offset != batch.offset:
            # A batch that readers skip must not affect the judgment of later batches.
            self.refused.append((batch, Verdict.OUT_OF_ORDER if verdict is Verdict.ACCEPTED else verdict))
            return []
        self.judge(batch)
        self._partitions.add(batch.partition)
        if batch.schema is not None:
            self.schema = schemas.from_text(batch.schema)
        if batch.transactional:
            self._open.setdefault((batch.pid, batch.partition), []).append(batch)
            return []
        return [batch]

    def _judge_cursor(self, batch: SequencedBatch | LandedBatch, name: str, check: bool) -> Judged:
        """Apply Pulsar's rule: everything above the highest position is new."""
        key = (name, batch.partition)
        before = self._cursors.get(key, -1)
        if batch.last_seq <= before:
            return Judged(Verdict.DUPLICATE, None)
        if batch.first_seq <= before:
            return Judged(Verdict.OUT_OF_ORDER, None)  # the transport removes rows that are already written
        offset = self._table.log_end(batch.partition)
        if not check:
            self._table.set_log_end(batch.partition, offset + batch.count)
            self._cursors[key] = batch.last_seq
        return Judged(Verdict.ACCEPTED, offset)

    def _lease(self, lease: Lease) -> None:
        if lease.name is None:
            return
        identity, before = Identity(lease.pid, lease.epoch), self._leases.get(lease.name)
        self._leases[lease.name] = identity
        if lease.is_taken_over and before is not None:
            # For its own next epoch, a producer fences partition by partition: other partitions may have batches in
            # flight.
            self._raise_floor(before.pid, None, identity.epoch if identity.pid == before.pid else LAST_EPOCH + 1)

    def _raise_floor(self, pid: int, partition: int | None, epoch: int) -> None:
        key = (pid, partition)
        self._floors[key] = max(self._floors.get(key, 0), epoch)

    def _decide(self, marker: Marker) -> list[LandedBatch]:
        if not self.mark(marker).is_kept:
            return []
        batches = self._open.pop((marker.pid, marker.partition), [])
        return batches if marker.outcome == "commit" else []


class LandingTransport:
    """Writes batches of a `SequencedProducer` to a landing folder, one Parquet file each.

    May be used from several threads and processes.

    Args:
        folder: A path, or the URI of an object store that supports put-if-absent.
        partitions: The number of partitions. The folder stores it permanently. None uses the stored number (1 for a new
            folder).
        schema: An Arrow schema of the application's columns. Default: the columns of the first batch.
        compression: The Parquet codec.
        sync: False does not sync local files, for tests and scratch data.
        options: Options of the object store, as for `fencepost.state.open`.

    Raises:
        PolicyError: The folder has another number of partitions.
        StoreError: The store is not available, or does not support put-if-absent: it lets two writers create the same
            file.
        SourceError: The log is invalid (path).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        compression: str = "zstd",
        sync: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.compression, self._schema = compression, schema
        self._log = LandingLog(open_store(folder, sync=sync, options=options))
        if not is_local(folder):
            check_exclusion(self._log.store)
        self.partitions = stored_in(self._log.store, COUNT, self._log.store.uri, partitions, self._used_partitions)
        self._lock = threading.Lock()

    def send(self, batch: SequencedBatch) -> Answer:
        """Write a batch and list it, or return the reason for refusing it.

        Raises BatchError (column, row) if columns or types differ from the folder's. Nothing is written then.
        """
        while True:
            with self._lock:
                left = self._unwritten(batch)
                answer = self._seen(left)
                if answer is not None:
                    return answer
                left, schema = self._conformed(left)
            file = self._write(left)
            with self._lock:
                answer = self._list(left, file, schema)
            if answer is None or answer.error is not Verdict.ACCEPTED:
                self._log.store.delete([file.path])
            if answer is not None:
                # The offset is that of the rows that were missing, not of the first row.
                return answer if left.count == batch.count else answer._replace(offset=None)

    def fence(self, pid: int, epoch: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """Refuse epochs of a producer below `epoch` from now on, and return its last sequences (`Transport`)."""
        with self._lock:
            while True:
                self._log.refresh()
                state = self._log.state
                wanted = [-1] if partitions is None else partitions
                if all(state.floor(pid, number) >= epoch for number in wanted):
                    self._log.settle()
                    return state.written(pid, partitions)
                listed = None if partitions is None else list(partitions)
                if self._log.put({"kind": "fence", "pid": pid, "epoch": epoch, "partitions": listed}):
                    return state.written(pid, partitions)

    def cursor(self, name: str, partition: int) -> int | None:
        """The highest position of a producer in cursor mode, or None."""
        with self._lock:
            self._log.refresh()
            self._log.settle()
            return self._log.state.cursor(name, partition)

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int = 0) -> Verdict:
        """Write a transaction's end to a partition, for a coordinator, and return the verdict on the marker.

        Idempotent. A marker of a producer that has already advanced is FENCED and changes nothing, so the coordinator
        needs no check.
        """
        marker = Marker(pid, epoch, partition, outcome, coordinator_epoch)
        with self._lock:
            while True:
                self._log.refresh()
                written = self._log.state.written(pid, [partition]).get(partition)
                is_known = written is not None and written[0] == epoch  # only a marker introduces one without batches
                verdict = Verdict.DUPLICATE if is_known else self._log.state.mark(marker, check=True)
                if not verdict.is_kept:
                    self._log.settle()
                    return verdict
                if self._log.put({"kind": "marker", **marker._asdict()}):
                    return verdict

    # Single steps

    def _used_partitions(self) -> int:
        """The number of partitions that the folder's files show."""
        found = (_PARTITION.match(name) for name in self._log.store.list(DATA))
        return max((int(it[1]) + 1 for it in found if it), default=0)

    def _seen(self, batch: SequencedBatch) -> Answer | None:
        """Return the answer if there is nothing to write."""
        self._log.refresh()
        judged = self._log.state.judge(batch, check=True)
        if judged.verdict is Verdict.ACCEPTED:
            return None
        self._log.settle()
        return Answer(judged.verdict, judged.offset)

    def _unwritten(self, batch: SequencedBatch) -> SequencedBatch:
        """In cursor mode, return the rows that are not yet written: batches may have had other boundaries before a
        restart. Returns the whole batch if all or none of its rows are written."""
        import pyarrow.compute as pc

        if batch.cursor is None:
            return batch
        self._log.refresh()
        position = self._log.state.cursor(batch.cursor, batch.partition)
        if position is None or not batch.first_seq <= position < batch.last_seq:
            return batch
        rows = batch.rows.filter(pc.greater(batch.rows["seq"], position))
        return replace(batch, rows=rows, first_seq=rows["seq"][0].as_py(), count=rows.num_rows)

    def _write(self, batch: SequencedBatch) -> LandedFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        try:
            pq.write_table(batch.rows, sink, compression=self.compression)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise BatchError(f"Parquet cannot store these rows: {error}; {NOTHING}") from error
        data = memoryview(sink.getvalue()).cast("B")  # stores need unsigned bytes
        name = f"{batch.pid}-{batch.epoch}-{batch.first_seq}-{uuid4().hex}.parquet"
        path = f"{DATA}/partition={batch.partition}/{name}"
        writer = self._log.store.writer(path)
        try:
            writer.write(data)  # type: ignore[arg-type]
            writer.close()
        except BaseException:
            # On a full disk, parts of each try would take what becomes free.
            with suppress(Exception):
                writer.give_up()
                self._log.store.delete([path])
            raise
        return LandedFile(path, data.nbytes, batch.count)

    def _conformed(self, batch: SequencedBatch) -> tuple[SequencedBatch, pa.Schema]:
        """Return a batch with the folder's columns, and the columns after it is listed. Raises BatchError (column,
        row)."""
        place, rows = self._log.store.uri, batch.rows
        if self._schema is not None:
            rows = schemas.conform(rows, self._schema, place)
        schema = schemas.schema_after(self._log.state.schema, rows)
        return replace(batch, rows=schemas.conform(rows, schema, place)), schema

    def _list(self, batch: SequencedBatch, file: LandedFile, schema: pa.Schema) -> Answer | None:
        """Put the entry, unless an earlier entry changed the decision. Returns None if it changed the columns."""
        while True:
            answer = self._seen(batch)
            if answer is not None:
                return answer
            try:
                is_same = self._conformed(batch)[1] == schema
            except BatchError:
                is_same = False  # the next attempt reports the reason
            if not is_same:
                return None
            offset = self._log.state.judge(batch, check=True).offset
            assert offset is not None
            schema_text = None if schema == self._log.state.schema else schemas.to_text(schema)
            landed = LandedBatch(
                batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.last_seq, batch.count, offset, (file,),
                batch.transactional, batch.cursor, schema_text,
            )  # fmt: skip
            if self._log.put({"kind": "batch", **asdict(landed)}):
                return Answer(Verdict.ACCEPTED, offset)


class LandingLog:
    """Reads and writes the log entries of a folder."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = LandingState()
        self._last: str | None = None  # the last entry at the first reading
        self._settled = 0  # the number of entries whose names are on disk

    def refresh(self) -> None:
        """Read up to the end of the log. Raises SourceError."""
        for _ in self.entries():
            pass

    def entries(self) -> Iterator[tuple[Mapping[str, Any], list[LandedBatch]]]:
        """Read on, and yield each entry with the batches that it makes visible. Raises SourceError.

        The first call lists the log, to find a lost entry before others: the log would seem to end there, and a writer
        would put another entry in its place.
        """
        if self._last is None:
            self._last = max(filter(_ENTRY.match, self.store.list(LOG)), default="")
        while True:
            name = entry_name(self.state.next_entry)
            try:
                data = self.store.read(name)
            except FileNotFoundError:
                if self._last > name:
                    path = f"{self.store.uri}/{name}"
                    raise SourceError(
                        f"{path}: this entry of the log is missing, but later ones exist, up to {self._last}. "
                        "Restore it; nothing after it was read",
                        path=path,
                    ) from None
                return
            entry = self._parse(name, data)
            yield entry, self._apply(name, entry)

    def settle(self) -> None:
        """Make the entries that were read durable, before an answer that depends on them.

        The writer of the last one may have failed or died before it synced the name. A power loss would undo an entry
        that a retry has reported as written.
        """
        if self._settled < self.state.next_entry:
            self.store.settle(LOG)
            self._settled = self.state.next_entry

    def put(self, entry: Mapping[str, Any]) -> bool:
        """Put an entry as the next one. Returns False if another entry was first and must be read.

        Raises PolicyError for an entry that could not be read back, and StoreError.
        """
        try:
            read_entry(entry)
        except ValueError as problem:  # the entry would make the log unreadable
            raise PolicyError(f"{entry['kind']}: {problem}; nothing was written") from problem
        data = json.dumps({"version": VERSION, **entry, "nonce": uuid4().hex}, separators=(",", ":")).encode()
        name = entry_name(self.state.next_entry)
        if not self.store.put(name, data):
            return False
        self._apply(name, self._parse(name, data))
        self._settled = self.state.next_entry  # the put has synced the folder
        return True

    def _apply(self, name: str, entry: Mapping[str, Any]) -> list[LandedBatch]:
        try:
            return self.state.apply(entry)
        except (KeyError, TypeError, ValueError, BatchError) as error:
            path = f"{self.store.uri}/{name}"
            raise SourceError(f"{path}: not an entry of a landing folder: {error!r}", path=path) from error

    def _parse(self, name: str, data: bytes) -> Mapping[str, Any]:
        path = f"{self.store.uri}/{name}"
        try:
            entry = json.loads(data)
            version = entry["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{path}: not an entry of a landing folder: {error}", path=path) from error
        if version != VERSION:
            raise SourceError(f"{path}: version {version!r}, but this package reads {VERSION}", path=path)
        checked: Mapping[str, Any] = entry
        return checked


def entry_name(number: int) -> str:
    """The name of an entry."""
    return f"{LOG}/{number:020}.json"


def read_entry(entry: Mapping[str, Any]) -> LandedBatch | Lease | Fence | Marker:
    """Parse an entry and check its types. Raises KeyError, TypeError or ValueError."""
    kind = entry["kind"]
    if kind == "batch":
        return _batch_of(entry)
    pid, epoch = _integer(entry, "pid"), _integer(entry, "epoch", EPOCH_MAX)
    if kind == "lease":
        return Lease(pid, epoch, _of_type(entry, "name", str | None), _of_type(entry, "is_taken_over", bool))
    if kind == "fence":
        listed = _of_type(entry, "partitions", list | None)
        if listed is not None and not all(isinstance(it, int) and 0 <= it < 2**31 for it in listed):
            raise ValueError(f"partitions {listed!r}: expected a list of numbers from 0 to {2**31 - 1}, or null")
        return Fence(pid, epoch, None if listed is None else tuple(listed))
    if kind == "marker":
        if entry["outcome"] not in ("commit", "abort"):
            raise ValueError(f"outcome {entry['outcome']!r} is neither 'commit' nor 'abort'")
        partition = _integer(entry, "partition", 2**31 - 1)
        return Marker(pid, epoch, partition, entry["outcome"], _integer(entry, "coordinator_epoch", 2**31 - 1))
    raise ValueError(f"unknown kind {kind!r}")


def _batch_of(entry: Mapping[str, Any]) -> LandedBatch:
    of_files = [
        LandedFile(_of_type(it, "path", str), _integer(it, "bytes"), _integer(it, "rows")) for it in entry["files"]
    ]
    cursor = entry["cursor"] or None
    if not isinstance(cursor, str | None):
        # Written by a version without names, so the owner of the positions is unknown.
        raise ValueError(f"cursor {cursor!r} is not a producer's name")
    schema = entry.get("schema")
    if schema is not None:
        schemas.from_text(_of_type(entry, "schema", str))
    return LandedBatch(
        _integer(entry, "partition", 2**31 - 1), _integer(entry, "pid"), _integer(entry, "epoch", EPOCH_MAX),
        _integer(entry, "first_seq"), _integer(entry, "last_seq"), _integer(entry, "count"), _integer(entry, "offset"),
        tuple(of_files), _of_type(entry, "transactional", bool), cursor, schema,
    )  # fmt: skip


def _integer(entry: Mapping[str, Any], name: str, most: int = 2**63 - 1) -> int:
    value = entry[name]
    if not is_integer(value, 0, most):
        raise ValueError(f"{name} {value!r}: expected 0 to {most}")
    return value


def _of_type(entry: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = entry[name]
    if not isinstance(value, kind):
        raise ValueError(f"{name} {value!r} is of type {type(value).__name__}")
    return value


# Reading


@dataclass
class Landing:
    """The content of a landing folder up to an entry of its log."""

    store: Store
    batches: list[LandedBatch]
    """Visible batches: of transactions only committed ones, in the order of becoming visible."""
    refused: list[tuple[LandedBatch, Verdict]]
    """Batches that are listed but refused: out of order, or of a replaced producer. Readers skip them."""
    open: list[LandedBatch]
    """Batches of undecided transactions. Not visible yet."""
    leftovers: list[str]
    """Files that no entry lists, left over from crashes and refusals. Delete them only while no writer runs."""
    position: int
    """Number of entries read: `read_landing(folder, after=position)` continues from there."""

    @property
    def rows(self) -> int:
        """Number of visible rows."""
        return sum(batch.count for batch in self.batches)

    def read(self) -> pa.Table:
        """Return all visible rows, with pid, epoch, partition and seq in front.

        Raises the errors of `tables`, and SourceError if files have incompatible types for a column, which only older
        versions could list. `tables` can still read them one by one.
        """
        import pyarrow as pa

        tables = list(self.tables())
        try:
            return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SourceError(
                f"{self.store.uri}: its files have incompatible schemas ({error})", path=self.store.uri
            ) from error

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each batch.

        Raises SourceError (path) for a listed file that is missing or was changed.
        """
        for batch in self.batches:
            for file in batch.files:
                yield self._read(file)

    def _read(self, file: LandedFile) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = f"{self.store.uri}/{file.path}"
        try:
            data = self.store.read(file.path)
        except FileNotFoundError:
            raise SourceError(f"{path}: listed in the log, but the file does not exist", path=path) from None
        if len(data) != file.bytes:
            raise SourceError(f"{path}: has {len(data)} bytes, but the log lists {file.bytes}", path=path)
        try:
            table = pq.read_table(pa.BufferReader(data), partitioning=None)
        except (pa.ArrowException, OSError) as error:  # OSError: a decoder failed
            raise SourceError(f"{path}: {error}", path=path) from error
        if table.num_rows != file.rows:
            raise SourceError(f"{path}: has {table.num_rows} rows, but the log lists {file.rows}", path=path)
        return table


def is_landing(folder: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a writer has opened this folder. Creates nothing. Raises StoreError."""
    store = open_store(folder, options=options)
    return any(store.exists(name) for name in (COUNT, entry_name(0)))  # older versions stored no count


def read_landing(
    folder: str | os.PathLike[str], *, after: int = 0, options: Mapping[str, Any] | None = None
) -> Landing:
    """Read a landing folder: only files that its log lists, judged again by a broker's rules.

    Torn and unlisted files are skipped. `leftovers` of the result names them.

    Args:
        folder: A path or URI.
        after: Return only what became visible after this number of log entries. Pass `position` of the result of an
            earlier call.
        options: Options of the object store.

    Raises:
        SourceError: No writer has opened this folder, or the log is invalid (path).
        PolicyError: `after` is beyond the end of the log.
    """
    log = LandingLog(open_store(folder, options=options))
    seen: list[LandedBatch] = []
    listed: set[str] = set()
    for entry, found in log.entries():
        listed.update(file["path"] for file in entry.get("files", ()))
        if log.state.next_entry > after:
            seen += found
    if not log.state.next_entry and not log.store.exists(COUNT):
        problem = "not a landing folder: it has no log and no partition count. Check its path"
        raise SourceError(f"{log.store.uri}: {problem}", path=log.store.uri)
    if after > log.state.next_entry:
        count = log.state.next_entry
        raise PolicyError(f"after={after}: expected at most {count}, the number of entries of {log.store.uri}")
    if log.state.next_entry > after:
        log.settle()  # if a power loss removed an entry below the position, the next one in its place would be skipped
    entries = {entry_name(number) for number in range(log.state.next_entry)}
    there = [*log.store.list(DATA), *log.store.list(LOG)]
    leftovers = sorted(name for name in there if name not in listed and name not in entries)
    return Landing(log.store, seen, log.state.refused, log.state.open, leftovers, log.state.next_entry)
