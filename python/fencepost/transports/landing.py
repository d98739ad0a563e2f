"""A folder, or a prefix of an object store, of Parquet files; what counts of them is what its log lists.

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
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fencepost import BrokerTable, Verdict
from fencepost.errors import BatchError, FencedError, PolicyError, SourceError
from fencepost.producer.answers import Answer
from fencepost.producer.sequencer import Identity
from fencepost.producer.transport import SequencedBatch
from fencepost.state.stores import Store, check_exclusion, is_local, open_store
from fencepost.transports.cursors import above
from fencepost.transports.judging import LEASES_FROM, Judged, judge, last_written, mark, new_table

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
LOG, DATA = "_log", "data"
LAST_EPOCH = 2**15 - 2
"""The last epoch that a lease gives; then comes a fresh pid. The one above is for fences and markers."""


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


class LandingState:
    """What follows from the entries so far, the same for all who read them."""

    def __init__(self) -> None:
        self.next_entry = 0
        self.next_pid = LEASES_FROM
        self.leases: dict[str, Identity] = {}
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
        """Take the next entry, and give the batches that it lets be seen."""
        self.next_entry += 1
        kind = entry["kind"]
        if kind == "batch":
            return self._take(_batch_of(entry))
        if kind == "lease":
            self._lease(entry)
        elif kind == "fence":
            partitions = [None] if entry["partitions"] is None else entry["partitions"]
            for number in partitions:
                self._raise_floor(entry["pid"], number, entry["epoch"])
        elif kind == "marker":
            return self._decide(entry)
        else:
            raise KeyError(f"kind {kind!r}")
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

    def is_taken_over(self, lease: Identity) -> bool:
        """Whether it was taken from another one: that raises the floor everywhere, one's own next epoch does not."""
        return self._floors.get((lease.pid, None), 0) >= lease.epoch

    def cursor(self, name: str, partition: int) -> int | None:
        """The highest position that a partition has of a producer in cursor mode."""
        return self._cursors.get((name, partition))

    def written(self, pid: int, partitions: Sequence[int] | None) -> dict[int, tuple[int, int]]:
        """The epoch and last sequence that partitions have of a producer."""
        known = sorted(self._partitions) if partitions is None else partitions
        return {number: last for number in known if (last := last_written(self._table, number, pid)) is not None}

    def mark(self, entry: Mapping[str, Any], *, check: bool = False) -> Verdict:
        """What becomes of a marker. `check`: and leave everything as it is."""
        of = (entry["partition"], entry["pid"], entry["epoch"], entry["outcome"], entry["coordinator_epoch"])
        return mark(self._table, *of, check=check).verdict

    def _take(self, batch: LandedBatch) -> list[LandedBatch]:
        verdict, offset = self.judge(batch, check=True)
        if verdict is not Verdict.ACCEPTED or offset != batch.offset:
            # What is not read must not change what is taken after it.
            self.refused.append((batch, Verdict.OUT_OF_ORDER if verdict is Verdict.ACCEPTED else verdict))
            return []
        self.judge(batch)
        self._partitions.add(batch.partition)
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
            self._cursors[key] = batch.last_seq
            self._table.set_log_end(batch.partition, offset + batch.count)
        return Judged(Verdict.ACCEPTED, offset)

    def _lease(self, entry: Mapping[str, Any]) -> None:
        identity, name = Identity(entry["pid"], entry["epoch"]), entry["name"]
        self.next_pid = max(self.next_pid, identity.pid + 1)
        if name is None:
            return
        before = self.leases.get(name)
        self.leases[name] = identity
        if entry["is_taken_over"] and before is not None:
            # Of its own next epoch a producer fences partition by partition: others may be in flight.
            self._raise_floor(before.pid, None, identity.epoch if identity.pid == before.pid else LAST_EPOCH + 1)

    def _raise_floor(self, pid: int, partition: int | None, epoch: int) -> None:
        key = (pid, partition)
        self._floors[key] = max(self._floors.get(key, 0), epoch)

    def _decide(self, entry: Mapping[str, Any]) -> list[LandedBatch]:
        if not self.mark(entry).is_kept:
            return []
        batches = self._open.pop((entry["pid"], entry["partition"]), [])
        return batches if entry["outcome"] == "commit" else []


class LandingTransport:
    """Writes batches of a `SequencedProducer` to a landing folder, a Parquet file each.

    `folder`: a path, or a URI of an object store (`options` as for `fencepost.state.open`) that knows puts that must
    not replace anything. `partitions`: how many there are. `sync=False`: local files are not synced, for tests and
    scratch data. It is a registry too: `init_producer` hands out leases, so a producer needs nothing but a name.

    Usable from several threads and processes. Raises StoreError for a store that does not answer or lets two writers
    put one name, SourceError (path) for a log that is none.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        partitions: int = 1,
        compression: str = "zstd",
        sync: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.partitions, self.compression = partitions, compression
        self._log = LandingLog(open_store(folder, sync=sync, options=options))
        if not is_local(folder):
            check_exclusion(self._log.store)
        self._lock = threading.Lock()

    def send(self, batch: SequencedBatch) -> Answer:
        """Write a batch and list it, or say why not."""
        with self._lock:
            batch = self._unwritten(batch)
            answer = self._seen(batch)
        if answer is not None:
            return answer
        file = self._write(batch)
        with self._lock:
            answer, is_listed = self._list(batch, file)
        if not is_listed:
            self._log.store.delete([file.path])
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
        entry = {
            "kind": "marker", "pid": pid, "epoch": epoch, "partition": partition, "outcome": outcome,
            "coordinator_epoch": coordinator_epoch,
        }  # fmt: skip
        with self._lock:
            while True:
                self._log.refresh()
                written = self._log.state.written(pid, [partition]).get(partition)
                if written is not None and written[0] == epoch:
                    return Verdict.DUPLICATE  # markers alone bring an epoch that no batch has
                verdict = self._log.state.mark(entry, check=True)
                if not verdict.is_kept or self._log.put(entry):
                    return verdict

    # One step each

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

    def _list(self, batch: SequencedBatch, file: LandedFile) -> tuple[Answer, bool]:
        """Put the entry, unless another one before it has changed what is true."""
        while True:
            answer = self._seen(batch)
            if answer is not None:
                return answer, False
            offset = self._log.state.judge(batch, check=True).offset
            assert offset is not None
            landed = LandedBatch(
                batch.partition, batch.pid, batch.epoch, batch.first_seq, batch.last_seq, batch.count, offset, (file,),
                batch.transactional, batch.cursor,
            )  # fmt: skip
            if self._log.put({"kind": "batch", **asdict(landed)}):
                return Answer(Verdict.ACCEPTED, offset), True

    def _next_lease(self, name: str | None, expected: Any) -> dict[str, Any] | None:
        """The entry to put; None where the lease is the one that is asked for."""
        state = self._log.state
        before = None if name is None else state.leases.get(name)
        if expected is not None and before != Identity(expected.pid, expected.epoch):
            if before == Identity(expected.pid, expected.epoch + 1) and not state.is_taken_over(before):
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
        """Make an entry the next one. False: another came first, and has to be read."""
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


def _batch_of(entry: Mapping[str, Any]) -> LandedBatch:
    fields = {name: entry[name] for name in LandedBatch.__dataclass_fields__}
    fields["cursor"] = fields["cursor"] or None
    if not isinstance(fields["cursor"], str | None):
        # By a version from before there were names: whose position it is cannot be told.
        raise ValueError(f"cursor {fields['cursor']!r} is no producer's name")
    return LandedBatch(**{**fields, "files": tuple(LandedFile(**file) for file in entry["files"])})


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
        """All rows that are seen, with pid, epoch, partition and seq in front. Raises what `tables` raises."""
        import pyarrow as pa

        tables = list(self.tables())
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

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
