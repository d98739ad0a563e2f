"""A folder, or a prefix of an object store, of Parquet files; what counts of them is what its log lists.

    _partitions.json                   how many partitions there are, stored by the first writer
    _log/00000000000000000007.json     one entry: batches, a lease, a fence or a marker
    data/partition=3/7-0-1200-<nonce>.parquet

Every decision is one put-if-absent of the next entry, so all writers agree on one order, and everyone who reads it
judges by it alike (`LandingState`). A writer puts its file first, durably, then the entry that lists it. A file without
an entry is what a crash or a refused batch has left, and nobody reads it. A zombie cannot put an entry without having
read the lease that came before.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from fencepost import BrokerTable, Verdict
from fencepost.errors import BatchError, FencedError, PolicyError, SourceError
from fencepost.producer.answers import Answer
from fencepost.producer.sequencer import EPOCH_MAX, LAST_EPOCH, Identity
from fencepost.producer.transport import SequencedBatch
from fencepost.state.stores import Store, check_exclusion, is_local, open_store
from fencepost.transports import schemas
from fencepost.transports.counts import stored_in
from fencepost.transports.cursors import above
from fencepost.transports.judging import LEASES_FROM, Judged, judge, last_written, mark, new_table

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
LOG, DATA, COUNT = "_log", "data", "_partitions.json"
_PARTITION = re.compile(rf"{DATA}/partition=(\d+)/")


@dataclass(frozen=True)
class LandedFile:
    """A file that an entry lists."""

    path: str
    """Within the folder."""
    bytes: int
    rows: int


@dataclass(frozen=True)
class LandedBatch:
    """What an entry says of a batch: its commit marker."""

    partition: int
    pid: int
    epoch: int
    first_seq: int
    last_seq: int
    count: int
    offset: int
    """Of its first row in the partition; markers of transactions take an offset, too."""
    files: tuple[LandedFile, ...]
    transactional: bool = False
    cursor: str | None = None
    """In cursor mode the producer's name, by which its positions are known."""
    schema: str | None = None
    """The application's columns of the folder from here on, where they are new (`schemas.to_text`)."""


class Lease(NamedTuple):
    """What an entry says of a lease: who has a name, or a pid without one."""

    pid: int
    epoch: int
    name: str | None
    is_taken_over: bool
    """Whether it was taken from another producer. False: it is the next epoch of the one that had it."""


class Fence(NamedTuple):
    """What an entry says of a fence: the lowest epoch of a pid from here on, in these partitions or (None) in all."""

    pid: int
    epoch: int
    partitions: tuple[int, ...] | None


class Marker(NamedTuple):
    """What an entry says of the end of a transaction in a partition."""

    pid: int
    epoch: int
    partition: int
    outcome: str
    coordinator_epoch: int


class LandingState:
    """What follows from the entries so far, the same for all who read them."""

    def __init__(self) -> None:
        self.next_entry = 0
        self.next_pid = LEASES_FROM
        self.leases: dict[str, Identity] = {}
        self.schema: pa.Schema | None = None
        self._followed: dict[str, Identity | None] = {}  # of each lease, whose next epoch it is
        self.refused: list[tuple[LandedBatch, Verdict]] = []
        self._table: BrokerTable = new_table()
        self._floors: dict[tuple[int, int | None], int] = {}
        self._cursors: dict[tuple[str, int], int] = {}
        self._open: dict[tuple[int, int], list[LandedBatch]] = {}
        self._partitions: set[int] = set()

    @property
    def open(self) -> list[LandedBatch]:
        """Batches of transactions that nobody has decided."""
        return [batch for batches in self._open.values() for batch in batches]

    def apply(self, entry: Mapping[str, Any]) -> list[LandedBatch]:
        """Take the next entry, and give the batches that it lets be seen.

        Raises KeyError, TypeError, ValueError or BatchError for what is no entry. Everything is as before then, so
        that the same entry is read again.
        """
        seen = self._accept(read_entry(entry))
        self.next_entry += 1
        return seen

    def _accept(self, said: LandedBatch | Lease | Fence | Marker) -> list[LandedBatch]:
        if isinstance(said, LandedBatch):
            return self._take(said)
        if isinstance(said, Marker):
            return self._decide(said)
        if isinstance(said, Lease):
            self._lease(said)
        else:
            for number in (None,) if said.partitions is None else said.partitions:
                self._raise_floor(said.pid, number, said.epoch)
        return []

    def judge(self, batch: SequencedBatch | LandedBatch, *, check: bool = False) -> Judged:
        """What becomes of a batch. `check`: and leave everything as it is."""
        if batch.epoch < self.floor(batch.pid, batch.partition):
            return Judged(Verdict.FENCED, None)
        if batch.cursor is not None:
            return self._judge_cursor(batch, batch.cursor, check)
        return judge(
            self._table, batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.count, batch.transactional,
            check=check,
        )  # fmt: skip

    def floor(self, pid: int, partition: int) -> int:
        """The lowest epoch that a partition takes of a producer."""
        return max(self._floors.get((pid, None), 0), self._floors.get((pid, partition), 0))

    def follows(self, name: str, before: Identity) -> bool:
        """Whether the lease of a name is the one that was given to `before`, on asking for its own next."""
        return self._followed.get(name) == before

    def cursor(self, name: str, partition: int) -> int | None:
        """The highest position that a partition has of a producer in cursor mode."""
        return self._cursors.get((name, partition))

    def written(self, pid: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """The epoch and last sequence that partitions have of a producer."""
        known = sorted(self._partitions) if partitions is None else partitions
        return {number: last for number in known if (last := last_written(self._table, number, pid)) is not None}

    def mark(self, marker: Marker, *, check: bool = False) -> Verdict:
        """What becomes of a marker. `check`: and leave everything as it is."""
        of = (marker.partition, marker.pid, marker.epoch, marker.outcome, marker.coordinator_epoch)
        return mark(self._table, *of, check=check).verdict

    def _take(self, batch: LandedBatch) -> list[LandedBatch]:
        verdict, offset = self.judge(batch, check=True)
        if verdict is not Verdict.ACCEPTED or offset != batch.offset:
            # What is not read must not change what is taken after it.
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
        """Pulsar's rule: what lies above the highest position is new."""
        key = (name, batch.partition)
        before = self._cursors.get(key, -1)
        if batch.last_seq <= before:
            return Judged(Verdict.DUPLICATE, None)
        if batch.first_seq <= before:
            return Judged(Verdict.OUT_OF_ORDER, None)  # the transport cuts off what is there
        offset = self._table.log_end(batch.partition)
        if not check:
            self._table.set_log_end(batch.partition, offset + batch.count)
            self._cursors[key] = batch.last_seq
        return Judged(Verdict.ACCEPTED, offset)

    def _lease(self, lease: Lease) -> None:
        identity = Identity(lease.pid, lease.epoch)
        self.next_pid = max(self.next_pid, identity.pid + 1)
        if lease.name is None:
            return
        before = self.leases.get(lease.name)
        self.leases[lease.name] = identity
        self._followed[lease.name] = None if lease.is_taken_over else before
        if lease.is_taken_over and before is not None:
            # Of its own next epoch a producer fences partition by partition: others may be in flight.
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
    """Writes batches of a `SequencedProducer` to a landing folder, a Parquet file each.

    `folder`: a path, or a URI of an object store (`options` as for `fencepost.state.open`) that knows puts that must
    not replace anything. Its rows have the columns of the first batch, or of `schema` if given: an Arrow schema of the
    application's columns. `partitions`: how many there are; the folder stores the number, for ever, and None takes it
    (1 for a new folder). `sync=False`: local files are not synced, for tests and scratch data. It is a registry too:
    `init_producer` hands out leases, so a producer needs nothing but a name.

    Usable from several threads and processes. Raises PolicyError for another number of partitions than the folder's,
    StoreError for a store that does not answer or lets two writers put one name, SourceError (path) for a log that is
    none.
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
        """Write a batch and list it, or say why not.

        Raises BatchError (column, row) for rows of other columns or types than the folder's. Nothing is written then.
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
                answer, is_listed = self._list(left, file, schema)
            if not is_listed:
                self._log.store.delete([file.path])
            if answer is not None:
                return answer

    def init_producer(
        self, transactional_id: str | None = None, timeout_ms: int = 60_000, expected: Identity | None = None
    ) -> Identity:
        """A pid that nobody has had, or the lease of a name: its pid with the next epoch. Whoever had it is fenced.

        `expected`: what an earlier call gave to the same producer. Raises FencedError where somebody came since.
        `timeout_ms` means nothing here: a lease is held until the next one is taken.
        """
        with self._lock:
            while True:
                self._log.refresh()
                entry = self._next_lease(transactional_id, expected)
                if entry is None:
                    assert transactional_id is not None
                    return self._log.state.leases[transactional_id]
                if self._log.put(entry):
                    return Identity(entry["pid"], entry["epoch"])

    def fence(self, pid: int, epoch: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """Take nothing of a producer below an epoch from here on, and tell what there is of it (`Transport`)."""
        with self._lock:
            while True:
                self._log.refresh()
                state = self._log.state
                wanted = [-1] if partitions is None else partitions
                if all(state.floor(pid, number) >= epoch for number in wanted):
                    return state.written(pid, partitions)
                listed = None if partitions is None else list(partitions)
                if self._log.put({"kind": "fence", "pid": pid, "epoch": epoch, "partitions": listed}):
                    return state.written(pid, partitions)

    def cursor(self, name: str, partition: int) -> int | None:
        """The highest position that it has of a producer in cursor mode; None if it has none."""
        with self._lock:
            self._log.refresh()
            return self._log.state.cursor(name, partition)

    def write_marker(self, pid: int, epoch: int, partition: int, outcome: str, coordinator_epoch: int = 0) -> Verdict:
        """The end of a transaction in a partition, for a coordinator. Gives what became of the marker.

        Again, nothing happens, and a marker that comes when the producer has gone on is FENCED and changes nothing: the
        coordinator need not know.
        """
        marker = Marker(pid, epoch, partition, outcome, coordinator_epoch)
        with self._lock:
            while True:
                self._log.refresh()
                written = self._log.state.written(pid, [partition]).get(partition)
                if written is not None and written[0] == epoch:
                    return Verdict.DUPLICATE  # markers alone bring an epoch that no batch has
                verdict = self._log.state.mark(marker, check=True)
                if not verdict.is_kept or self._log.put({"kind": "marker", **marker._asdict()}):
                    return verdict

    # One step each

    def _used_partitions(self) -> int:
        """How many partitions the folder's files show."""
        found = (_PARTITION.match(name) for name in self._log.store.list(DATA))
        return max((int(it[1]) + 1 for it in found if it), default=0)

    def _seen(self, batch: SequencedBatch) -> Answer | None:
        """The answer where nothing is to be written."""
        self._log.refresh()
        judged = self._log.state.judge(batch, check=True)
        return None if judged.verdict is Verdict.ACCEPTED else Answer(judged.verdict, judged.offset)

    def _unwritten(self, batch: SequencedBatch) -> SequencedBatch:
        """In cursor mode the rows that are not there yet: a batch may be cut otherwise than before a restart."""
        if batch.cursor is None:
            return batch
        self._log.refresh()
        return above(batch, self._log.state.cursor(batch.cursor, batch.partition))

    def _write(self, batch: SequencedBatch) -> LandedFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(batch.rows, sink, compression=self.compression)
        data = memoryview(sink.getvalue()).cast("B")  # stores want bytes without a sign
        name = f"{batch.pid}-{batch.epoch}-{batch.first_seq}-{uuid4().hex}.parquet"
        path = f"{DATA}/partition={batch.partition}/{name}"
        writer = self._log.store.writer(path)
        writer.write(data)  # type: ignore[arg-type]
        writer.close()
        return LandedFile(path, data.nbytes, batch.count)

    def _conformed(self, batch: SequencedBatch) -> tuple[SequencedBatch, pa.Schema]:
        """A batch with the folder's columns, and what these are once it is listed. Raises BatchError (column, row)."""
        place, rows = self._log.store.uri, batch.rows
        if self._schema is not None:
            rows = schemas.conform(rows, self._schema, place)
        schema = schemas.learnt(self._log.state.schema, rows)
        return replace(batch, rows=schemas.conform(rows, schema, place)), schema

    def _list(self, batch: SequencedBatch, file: LandedFile, schema: pa.Schema) -> tuple[Answer | None, bool]:
        """Put the entry, unless another one before it has changed what is true. No answer: the columns are others."""
        while True:
            answer = self._seen(batch)
            if answer is not None:
                return answer, False
            try:
                is_same = self._conformed(batch)[1] == schema
            except BatchError:
                is_same = False  # the next try says why
            if not is_same:
                return None, False
            offset = self._log.state.judge(batch, check=True).offset
            assert offset is not None
            said = None if schema == self._log.state.schema else schemas.to_text(schema)
            landed = LandedBatch(
                batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.last_seq, batch.count, offset, (file,),
                batch.transactional, batch.cursor, said,
            )  # fmt: skip
            if self._log.put({"kind": "batch", **asdict(landed)}):
                return Answer(Verdict.ACCEPTED, offset), True

    def _next_lease(self, name: str | None, expected: Any) -> dict[str, Any] | None:
        """The entry to put; None where the lease is the one that is asked for."""
        state = self._log.state
        before = None if name is None else state.leases.get(name)
        if expected is not None and before != Identity(expected.pid, expected.epoch):
            if before is not None and state.follows(str(name), Identity(expected.pid, expected.epoch)):
                return None  # the same call once more, whose answer was lost
            raise FencedError(f"{name!r} was taken over: it has {before}, not {expected}")
        entry = {"kind": "lease", "name": name, "is_taken_over": expected is None}
        if before is None or before.epoch >= LAST_EPOCH:
            return {**entry, "pid": state.next_pid, "epoch": 0}
        return {**entry, "pid": before.pid, "epoch": before.epoch + 1}


class LandingLog:
    """The entries of a folder, read as far as they go; and put, one after the other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = LandingState()

    def refresh(self) -> None:
        """Read on to the end. Raises SourceError."""
        for _ in self.entries():
            pass

    def entries(self) -> Iterator[tuple[Mapping[str, Any], list[LandedBatch]]]:
        """Read on, and give each entry with the batches that it lets be seen. Raises SourceError."""
        while True:
            name = entry_name(self.state.next_entry)
            try:
                data = self.store.read(name)
            except FileNotFoundError:
                return
            entry = self._parse(name, data)
            yield entry, self._apply(name, entry)

    def put(self, entry: Mapping[str, Any]) -> bool:
        """Make an entry the next one. False: another came first, and has to be read.

        Raises PolicyError for one that could not be read again, and StoreError.
        """
        try:
            read_entry(entry)
        except ValueError as problem:  # nobody could read on behind it
            raise PolicyError(f"{entry['kind']}: {problem}; nothing was written") from problem
        data = json.dumps({"version": VERSION, **entry, "nonce": uuid4().hex}, separators=(",", ":")).encode()
        name = entry_name(self.state.next_entry)
        if not self.store.put(name, data):
            return False
        self._apply(name, self._parse(name, data))
        return True

    def _apply(self, name: str, entry: Mapping[str, Any]) -> list[LandedBatch]:
        try:
            return self.state.apply(entry)
        except (KeyError, TypeError, ValueError, BatchError) as error:
            path = f"{self.store.uri}/{name}"
            raise SourceError(f"{path}: no entry of a landing folder: {error!r}", path=path) from error

    def _parse(self, name: str, data: bytes) -> Mapping[str, Any]:
        path = f"{self.store.uri}/{name}"
        try:
            entry = json.loads(data)
            version = entry["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{path}: no entry of a landing folder: {error}", path=path) from error
        if version != VERSION:
            raise SourceError(f"{path}: version {version!r}, but this package reads {VERSION}", path=path)
        checked: Mapping[str, Any] = entry
        return checked


def entry_name(number: int) -> str:
    """Where an entry lies."""
    return f"{LOG}/{number:020}.json"


def read_entry(entry: Mapping[str, Any]) -> LandedBatch | Lease | Fence | Marker:
    """What an entry says, each value of its type. Raises KeyError, TypeError or ValueError."""
    kind = entry["kind"]
    if kind == "batch":
        return _batch_of(entry)
    pid, epoch = _integer(entry, "pid"), _integer(entry, "epoch", EPOCH_MAX)
    if kind == "lease":
        return Lease(pid, epoch, _of_type(entry, "name", str | None), _of_type(entry, "is_taken_over", bool))
    if kind == "fence":
        listed = _of_type(entry, "partitions", list | None)
        if listed is not None and not all(isinstance(it, int) and 0 <= it < 2**31 for it in listed):
            raise ValueError(f"partitions {listed!r}: a list of 0 to {2**31 - 1} was expected, or null")
        return Fence(pid, epoch, None if listed is None else tuple(listed))
    if kind == "marker":
        if entry["outcome"] not in ("commit", "abort"):
            raise ValueError(f"outcome {entry['outcome']!r} is neither 'commit' nor 'abort'")
        partition = _integer(entry, "partition", 2**31 - 1)
        return Marker(pid, epoch, partition, entry["outcome"], _integer(entry, "coordinator_epoch", 2**31 - 1))
    raise ValueError(f"kind {kind!r}")


def _batch_of(entry: Mapping[str, Any]) -> LandedBatch:
    of_files = [
        LandedFile(_of_type(it, "path", str), _integer(it, "bytes"), _integer(it, "rows")) for it in entry["files"]
    ]
    cursor = entry["cursor"] or None
    if not isinstance(cursor, str | None):
        # By a version from before there were names: whose position it is cannot be known.
        raise ValueError(f"cursor {cursor!r} is no producer's name")
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} {value!r}: 0 to {most} was expected")
    return value


def _of_type(entry: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = entry[name]
    if not isinstance(value, kind):
        raise ValueError(f"{name} {value!r} is of type {type(value).__name__}")
    return value


# Reading


@dataclass
class Landing:
    """What a landing folder holds, up to an entry of its log."""

    store: Store
    batches: list[LandedBatch]
    """Those that are seen: of transactions only the committed ones, in the order in which they came to be seen."""
    refused: list[tuple[LandedBatch, Verdict]]
    """Listed, but not in order or of a producer that was replaced by then: not read."""
    open: list[LandedBatch]
    """Of transactions that are not decided: not read yet."""
    leftovers: list[str]
    """Files that no entry lists: what crashes and refusals have left. They can be deleted once no writer is at work."""
    position: int
    """Entries that were read: `read_landing(folder, after=position)` goes on from there."""

    @property
    def rows(self) -> int:
        """How many rows are seen."""
        return sum(batch.count for batch in self.batches)

    def read(self) -> pa.Table:
        """All rows that are seen, with pid, epoch, partition and seq in front.

        Raises what `tables` raises, and SourceError where files have one column in types that do not go together: an
        older version listed them. `tables` gives them one by one.
        """
        import pyarrow as pa

        tables = list(self.tables())
        try:
            return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SourceError(
                f"{self.store.uri}: its files do not go together ({error})", path=self.store.uri
            ) from error

    def tables(self) -> Iterator[pa.Table]:
        """The rows of one batch after the other.

        Raises SourceError (path) for a listed file that is not there, or is not what was listed.
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
            raise SourceError(f"{path}: listed, and not there", path=path) from None
        if len(data) != file.bytes:
            raise SourceError(f"{path}: {len(data)} bytes, and {file.bytes} are listed", path=path)
        try:
            table = pq.read_table(pa.BufferReader(data), partitioning=None)
        except pa.ArrowException as error:
            raise SourceError(f"{path}: {error}", path=path) from error
        if table.num_rows != file.rows:
            raise SourceError(f"{path}: {table.num_rows} rows, and {file.rows} are listed", path=path)
        return table


def read_landing(
    folder: str | os.PathLike[str], *, after: int = 0, options: Mapping[str, Any] | None = None
) -> Landing:
    """What a landing folder holds: only what its log lists, judged again by the rules of a broker.

    `after`: leave out what was seen up to that many entries, the `position` of an earlier reading. Torn and left-over
    files do not matter, and are told. Raises SourceError (path) for a log that is none, PolicyError for an `after` that
    the log has not come to.
    """
    log = LandingLog(open_store(folder, options=options))
    seen: list[LandedBatch] = []
    listed: set[str] = set()
    for entry, found in log.entries():
        listed.update(file["path"] for file in entry.get("files", ()))
        if log.state.next_entry > after:
            seen += found
    if after > log.state.next_entry:
        raise PolicyError(f"after={after}: the log of {log.store.uri} has {log.state.next_entry} entries")
    entries = {entry_name(number) for number in range(log.state.next_entry)}
    there = [*log.store.list(DATA), *log.store.list(LOG)]
    leftovers = sorted(name for name in there if name not in listed and name not in entries)
    return Landing(log.store, seen, log.state.refused, log.state.open, leftovers, log.state.next_entry)
