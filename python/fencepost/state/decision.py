"""What a run decided: all that is needed to finish it without its source, and to build the next one on it.

A decision may name 10^5 files and 4096 shards. So what there are many of stands in `Lists`: one list a column, no
object a row, and JSON that reads and writes it at the speed of lists.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from fencepost.errors import SnapshotError
from fencepost.policy import Policy, from_label

FORMAT = 2  # of the files in a state folder
FORMAT_FOLDED = 3
"""Of a decision behind which versions may be folded (`folding.py`). No field differs, and earlier versions of this
package refuse it: they know of no floor."""
SEMANTICS = 1  # of the verdicts: raised when the same rows would be judged otherwise

APPLIED, ABANDONED, DECIDED = "applied", "abandoned", "decided"  # what can become of a version
KINDS = ("run", "seed", "rebase", "evict", "reshard", "rollback", "retain")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a state was created for. It is fixed for ever: one state, one source, one sink, one set of rules."""

    id: str
    """Drawn at creation; the sink carries it."""
    policy: str
    """The rules, as `Policy.rules` writes them."""
    columns: dict[str, Any]
    """Role (pid, epoch, partition, seq, timestamp) to column name, list of names, or None."""
    scope: str | None
    """What the data does not say about itself (cluster, topic id): all keys of this state belong to it."""
    keep: list[str]
    """What the tables keep beyond what the rules need: [] or ["timestamp"]."""
    shards: int
    """Into how many parts the state was cut at first; a decision says how many there are since."""
    source: str
    """The folder that its runs read: an absolute path."""
    sink: str
    """The folder that its versions are shown in: an absolute path."""
    fencepost: str
    """The version of fencepost that created the state."""
    layout: str = "run"
    """How versions are shown in it: "run", in a folder each; "delta", as transactions that append to a Delta table; or
    "in-place", as transactions that take rows out of the table that is the source too."""
    format: int = FORMAT
    """Of the files in the state folder (docs/state-format.md)."""
    semantics: int = SEMANTICS
    """Of the verdicts: raised when the same rows would be judged otherwise."""

    def full_policy(self) -> Policy:
        """The rules and the columns they read."""
        return from_label(self.policy, json.dumps(self.columns))

    def check(self, wanted: Settings, uri: object) -> None:
        """Refuse another use of the state at `uri`. Raises SnapshotError naming the first difference."""
        for name in ("format", "semantics", "policy", "columns", "scope", "keep", "source", "sink", "layout"):
            ours, theirs = getattr(self, name), getattr(wanted, name)
            if ours != theirs and name == "keep":
                was, is_now = ("with max_idle", "without") if ours else ("without max_idle", "with it")
                reason = f"it was created {was}, so that it {'keeps' if ours else 'keeps no'} timestamps, this job is "
                reason = f"{reason}{is_now}"
                raise SnapshotError(f"{uri}: {reason}; use it as it is, or another state folder", reason=reason)
            if ours != theirs:
                reason = f"it was created with {name} {ours!r}, this job has {theirs!r}"
                raise SnapshotError(f"{uri}: {reason}; use that, or another state folder", reason=reason)


class Lists:
    """Rows as one list a column. All lists have one length: ValueError otherwise."""

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{type(self).__name__}: columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def columns(self) -> dict[str, list[Any]]:
        return vars(self)

    def each(self) -> Iterator[dict[str, Any]]:
        """Row by row; for tests and for what there are few of."""
        columns = self.columns()
        return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> Self:
        """The lists of these rows, which have all columns each."""
        found = list(rows)
        names = [it.name for it in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: [row[name] for row in found] for name in names})


@dataclass(frozen=True, kw_only=True)
class Inputs(Lists):
    """The files that were read, in their order: a file's place is its ordinal, rows are judged by (ordinal, row).

    Another size, time, inode or etag under the same path is another file.
    """

    path: list[str] = field(default_factory=list)
    """Relative to the source."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    """0 where there is an etag."""
    inode: list[int] = field(default_factory=list)
    """0 where there is an etag."""
    etag: list[str] = field(default_factory=list)
    """Of an object store; empty for local files."""
    rows: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Quarantined(Lists):
    """Files that were set aside unread. They are in the ledger, so that they are not looked at again."""

    path: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    inode: list[int] = field(default_factory=list)
    etag: list[str] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Deferred(Lists):
    """Files that were found and not read. They are not in the ledger: later runs look at them again."""

    path: list[str] = field(default_factory=list)
    """Relative to the source."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    first_seen_ms: list[int] = field(default_factory=list)
    """When a run first found this content to be bad, in milliseconds since 1970 by its clock; 0 for a file that only
    waits for a bad one before it in the order."""
    reason: list[str] = field(default_factory=list)
    """Why it was not read."""
    add: list[dict[str, Any] | None] = field(default_factory=list)
    """The action by which a Delta table names it, without statistics; None for files of a folder."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """The paths of the bad ones."""
        return tuple(path for path, seen_ms in zip(self.path, self.first_seen_ms, strict=True) if seen_ms)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The paths of those that only wait."""
        return tuple(path for path, seen_ms in zip(self.path, self.first_seen_ms, strict=True) if not seen_ms)


@dataclass(frozen=True, kw_only=True)
class Outputs(Lists):
    """The files with the kept rows; in place only those that take the place of others, and those of deletion vectors,
    which have no rows."""

    name: list[str] = field(default_factory=list)
    """Final, within the version."""
    ordinal: list[int] = field(default_factory=list)
    """Of the first input that gave it rows."""
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Marked(Lists):
    """The files of a table, deduplicated in place, that lose rows."""

    path: list[str] = field(default_factory=list)
    """Relative to the table."""
    ordinal: list[int] = field(default_factory=list)
    """Its place among the inputs."""
    rows: list[int] = field(default_factory=list)
    """In the file, those included that were gone before."""
    refused: list[int] = field(default_factory=list)
    """How many it loses now."""
    vector: list[dict[str, Any] | None] = field(default_factory=list)
    """What the log will say of its new deletion vector; None where the output of the same ordinal, if there is one,
    takes its place."""


@dataclass(frozen=True, kw_only=True)
class SideFiles(Lists):
    """Files of tables beside the output: rejected rows, missing ranges."""

    table: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LedgerFiles(Lists):
    """The parts of the list of all inputs so far, the oldest first (`ledger.py`)."""

    name: list[str] = field(default_factory=list)
    """Relative to the state."""
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    """Of its index, or of the whole part where it has none."""
    files: list[int] = field(default_factory=list)
    """How many files it lists."""
    index: list[int] = field(default_factory=list)
    """Bytes of the index, at its end; 0 for an Arrow file without one, as earlier versions have written it."""


@dataclass(frozen=True)
class Piece:
    """A snapshot or a delta: a range of a segment file."""

    file: str
    """Relative to the state."""
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SumPiece:
    """Checksums of some kept rows of a shard (`checksums.py`)."""

    rows: int
    piece: Piece


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The state of one shard, the part of the keys that one task owns."""

    shard: int
    """Its number, from 0 on."""
    entries: int
    """What it remembers: keys, or keys and epochs."""
    positions: int | None
    """Sequence positions ever accepted, under policies whose positions stay: its growth equals the accepted rows."""
    pieces: tuple[Piece, ...]
    """A base, then the deltas that followed it."""


class _Pieces:
    """How pieces stand in columns: the place of a piece's name in `files`, and what else is known of it."""

    files: list[str]
    file: list[int]
    offset: list[int]
    bytes: list[int]
    sha256: list[str]

    def _piece(self, place: int) -> Piece:
        return Piece(self.files[self.file[place]], self.offset[place], self.bytes[place], self.sha256[place])

    def _add_piece(self, piece: Piece, places: dict[str, int]) -> None:
        """`places`: of the names so far, which go to `files` at the end."""
        self.file.append(places.setdefault(piece.file, len(places)))
        self.offset.append(piece.offset)
        self.bytes.append(piece.bytes)
        self.sha256.append(piece.sha256)


@dataclass(frozen=True, kw_only=True)
class Shards(_Pieces):
    """All shards that have a state, by number. One is read without a look at the others."""

    shard: list[int] = field(default_factory=list)
    """Ascending."""
    entries: list[int] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    first_piece: list[int] = field(default_factory=list)
    """Where its pieces begin in the lists below; they end where the next shard's begin."""
    files: list[str] = field(default_factory=list)
    """The names of segment files."""
    file: list[int] = field(default_factory=list)
    """Of each piece: its place in `files`."""
    offset: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for names in (("shard", "entries", "positions", "first_piece"), ("file", "offset", "bytes", "sha256")):
            lengths = {name: len(getattr(self, name)) for name in names}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"Shards: columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.shard)

    def __iter__(self) -> Iterator[Shard]:
        return (self._at(place) for place in range(len(self)))

    def get(self, shard: int) -> Shard | None:
        """The state of a shard, if it has any."""
        place = bisect.bisect_left(self.shard, shard)
        return self._at(place) if place < len(self) and self.shard[place] == shard else None

    def replaced(self, changed: Iterable[Shard]) -> Shards:
        """These shards, the changed ones in place of what they were; the others keep their pieces."""
        return Shards.of(({it.shard: it for it in self} | {it.shard: it for it in changed}).values())

    @staticmethod
    def of(shards: Iterable[Shard]) -> Shards:
        new = Shards()
        places: dict[str, int] = {}
        for it in sorted(shards, key=lambda it: it.shard):
            new.shard.append(it.shard)
            new.entries.append(it.entries)
            new.positions.append(it.positions)
            new.first_piece.append(len(new.file))
            for piece in it.pieces:
                new._add_piece(piece, places)
        new.files.extend(places)
        return new

    def _at(self, place: int) -> Shard:
        start = self.first_piece[place]
        stop = self.first_piece[place + 1] if place + 1 < len(self) else len(self.file)
        pieces = tuple(map(self._piece, range(start, stop)))
        return Shard(
            shard=self.shard[place], entries=self.entries[place], positions=self.positions[place], pieces=pieces
        )


@dataclass(frozen=True, kw_only=True)
class Checksums(_Pieces):
    """The pieces that hold checksums of kept rows, shard by shard, those of a shard from the oldest on."""

    columns: list[str]
    """The columns that are compared, sorted; [] for all that are not of the identity."""
    shard: list[int] = field(default_factory=list)
    """Of each piece, ascending."""
    rows: list[int] = field(default_factory=list)
    """How many checksums each piece has."""
    files: list[str] = field(default_factory=list)
    """The names of segment files."""
    file: list[int] = field(default_factory=list)
    """Of each piece: its place in `files`."""
    offset: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {it: len(getattr(self, it)) for it in ("shard", "rows", "file", "offset", "bytes", "sha256")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Checksums: columns of different lengths: {lengths}")

    def get(self, shard: int) -> tuple[SumPiece, ...]:
        """The pieces of a shard."""
        places = range(bisect.bisect_left(self.shard, shard), bisect.bisect_right(self.shard, shard))
        return tuple(SumPiece(rows=self.rows[it], piece=self._piece(it)) for it in places)

    def replaced(self, changed: Mapping[int, Sequence[SumPiece]]) -> Checksums:
        """The same with other pieces for some shards."""
        return Checksums.of(self.columns, {shard: self.get(shard) for shard in self.shard} | dict(changed))

    @staticmethod
    def of(columns: list[str], shards: Mapping[int, Sequence[SumPiece]]) -> Checksums:
        new = Checksums(columns=columns)
        places: dict[str, int] = {}
        for shard in sorted(shards):
            for it in shards[shard]:
                new.shard.append(shard)
                new.rows.append(it.rows)
                new._add_piece(it.piece, places)
        new.files.extend(places)
        return new


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Version n, as a pure function of the version it builds on and the inputs named here."""

    version: int
    """Its number: 1, 2, 3 and so on, never used twice."""
    previous: str | None
    """SHA-256 of the log file of version - 1."""
    builds_on: int
    """The version whose state this one continues: the newest that was applied, after a rollback the one gone back to;
    0 for none, as after a rebase."""
    attempt: str
    """A nonce, drawn by the run that decided: tells two writers apart, and names the folders of its files."""
    kind: str = "run"
    """One of KINDS. All but "run", "seed" and "rebase" come from `operations.py`."""
    shard_count: int
    """Into how many parts the state is cut; `shards` has those in which anything is remembered."""
    shards: Shards = field(default_factory=Shards)
    """The whole state; untouched shards keep older versions' pieces."""
    checksums: Checksums | None = None
    """What repeats are compared with; None where none are kept. Its text is left out then, so that decisions without
    are what they were before there were any."""
    ledger: LedgerFiles = field(default_factory=LedgerFiles)
    """The files that list all inputs so far, this version's included."""
    listing: str | None = None
    """The hash of a listing of the source (`ledger.hash_of_listing`) of which the ledger has every file: whoever lists
    the same need not read it. None where no such listing is known. Its text is left out then."""
    inputs: Inputs = field(default_factory=Inputs)
    """The files that this version read."""
    quarantined: Quarantined = field(default_factory=Quarantined)
    """The files that this version set aside unread."""
    deferred: Deferred = field(default_factory=Deferred)
    """The files that are to be read and are not yet, those of earlier versions included."""
    outputs: Outputs = field(default_factory=Outputs)
    """The files with its kept rows."""
    marked: Marked = field(default_factory=Marked)
    """The files that lose rows, where a table is deduplicated in place."""
    side_files: SideFiles = field(default_factory=SideFiles)
    """The files of tables beside the output: refused rows, changes in the list of missing ranges."""
    prepared: str | None = None
    """Where outputs and side files lie until they are applied, relative to the sink: a folder, in an object store an
    object that lists them. None where there are none."""
    source_position: dict[str, Any] | None = None
    """Of sources that are no folders: Delta versions, Kafka offsets, the stream's query and batch."""
    sink_version: dict[str, Any] | None = None
    """What the sink was when this was decided, where it has versions of its own (`Sink.look`)."""
    clock_ms: int | None = None
    """The clock that evictions go by, in milliseconds since 1970; None before the first. It falls only where a rollback
    goes back to what it was, and where a rebase begins anew."""
    horizon_ms: int | None = None
    """Every table is evicted up to here before its next row is judged: milliseconds since 1970, None before the first
    eviction."""
    key_types: dict[str, str] = field(default_factory=dict)
    """Column to type of the parts of keys, fixed by the first rows that had one: integer, string, binary or
    fixed_size_binary[bytes]. Tables know their own keys' only, and a shard may have none."""
    schema: str | None = None
    """The columns of the sink's files, those of this version included: an Arrow schema as an IPC message, base64. None
    where the sink has columns of its own, or no run has noted them. Its text is left out then."""
    oldest: int = 1
    """The oldest version that can be gone back to; the files of older ones may be collected."""
    collected: int = 1
    """What only versions before this one need was removed (`retention.py`)."""
    breaks: list[list[int]] | None = None
    """[version, the one that it builds on] of the versions behind `collected`, up to this one, that build on another
    one than the one before; None where this was not noted."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by name of verdict."""
    missing_ranges: int = 0
    """Ranges of sequences that this version opened."""
    missing_rows: int = 0
    """How many rows these ranges stand for."""
    stale_epoch: int = 0
    """Rows below the highest epoch of their key: what zombies wrote."""
    border: int = 0
    """Rows that only the border of the wrap could place on a lap."""
    plan: dict[str, Any] = field(default_factory=dict)
    """How it was computed: name, reason, figures."""
    report: dict[str, Any] = field(default_factory=dict)
    """Anything else that people may want to know of it."""
    policy: str
    """The rules by which its rows were judged, as `Policy.rules` writes them."""
    order_by: list[str] | None = None
    """The columns by which rows were put in order before; [] for file names, then rows; None where it was not said."""
    decided_ms: int = 0
    """When, in milliseconds since 1970 by the clock of the machine that decided. How long versions are kept goes by it,
    and nothing else."""
    fencepost: str
    """The version of fencepost that decided."""
    format: int = FORMAT
    """Of the files in the state folder (docs/state-format.md)."""
    semantics: int = SEMANTICS
    """Of the verdicts: raised when the same rows would be judged otherwise."""

    @property
    def entries(self) -> int:
        """How many, over all shards."""
        return sum(self.shards.entries)

    def files(self) -> set[str]:
        """The segment files that this version needs, of whichever version they are."""
        return {*self.shards.files, *self.ledger.name, *(self.checksums.files if self.checksums else ())}

    @property
    def state_bytes(self) -> int:
        """Of the snapshots, deltas and checksums that this state consists of."""
        return sum(self.shards.bytes) + (sum(self.checksums.bytes) if self.checksums else 0)


@dataclass(frozen=True, kw_only=True)
class Version:
    """What the log says of a version at a glance."""

    version: int
    """Its number."""
    status: str
    """"applied", "abandoned", or "decided" where it is neither yet."""
    kind: str
    """What made it: run, seed, rebase, evict, reshard, rollback or retain."""
    builds_on: int
    """The version whose state it continues, 0 for none."""
    decided_ms: int
    """When, in milliseconds since 1970 by the clock of the machine that decided."""
    files: int
    """Files of the input that were read."""
    rows: int
    """Rows of the input."""
    kept: int
    """Rows of the output; none of a seed, which writes no rows."""
    entries: int
    """What the state remembers after it, over all shards: keys, or keys and epochs."""
    state_bytes: int
    """Bytes of the snapshots, deltas and checksums that this state consists of, also of those that older versions
    wrote."""
    shard_count: int
    """Into how many parts the state is cut."""
    counts: dict[str, int]
    """Rows of the input by name of verdict."""
    report: dict[str, Any]
    """What else is to be known of it, by kind: files that were deferred, entries that were evicted and so on; empty
    where it is larger than 8 KB (`State.version` has it whole)."""


def kept_rows(decision: Decision) -> int:
    """Rows that were written, or that stay in place; a seed writes none."""
    return 0 if decision.kind == "seed" else sum(decision.counts.get(it, 0) for it in ("ACCEPTED", "UNTRACKED"))


REPORT_BYTES_MAX = 8_192  # what is larger stands in the body only


def summary(decision: Decision) -> dict[str, Any]:
    """The fields of `Version` that a decision tells."""
    own = {name: getattr(decision, name) for name in ("kind", "builds_on", "decided_ms", "shard_count", "counts")}
    report = decision.report if len(json.dumps(decision.report)) <= REPORT_BYTES_MAX else {}
    return own | {
        "files": len(decision.inputs),
        "rows": sum(decision.inputs.rows),
        "kept": kept_rows(decision),
        "entries": decision.entries,
        "state_bytes": decision.state_bytes,
        "report": report,
    }


# Text


def to_json(value: Settings | Decision | dict[str, Any]) -> bytes:
    """The text of a file in a state, a field or a column a line; equal values give equal bytes."""
    fields = value if isinstance(value, dict) else vars(value)
    fields = {
        name: it for name, it in fields.items() if it is not None or name not in ("checksums", "schema", "listing")
    }
    lines = (f" {json.dumps(name)}: {_text(it)}" for name, it in fields.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def settings_from_json(data: bytes, path: object) -> Settings:
    """Raises SnapshotError where `data` are no settings that this version understands."""
    fields = fields_from_json(data, path)
    with understood(path):
        return Settings(**fields)


def decision_from_json(data: bytes, path: object) -> Decision:
    """Raises SnapshotError where `data` are no decision that this version understands."""
    fields = fields_from_json(data, path)
    parts: dict[str, Any] = {
        "shards": Shards,
        "checksums": Checksums,
        "ledger": LedgerFiles,
        "inputs": Inputs,
        "quarantined": Quarantined,
        "deferred": Deferred,
        "outputs": Outputs,
        "marked": Marked,
        "side_files": SideFiles,
    }
    with understood(path):
        if "ledger" in fields:
            fields["ledger"].setdefault("index", [0] * len(fields["ledger"]["name"]))
        fields |= {name: kind(**fields[name]) for name, kind in parts.items() if name in fields}
        return Decision(**fields)


def fields_from_json(data: bytes, path: object) -> dict[str, Any]:
    """The fields of a file of a state. Raises SnapshotError where it is none, or of another format."""
    with understood(path):
        fields: dict[str, Any] = json.loads(data)
        found = fields["format"]
    if found not in (FORMAT, FORMAT_FOLDED):
        reason = f"format {found}, this version of fencepost reads formats {FORMAT} and {FORMAT_FOLDED}"
        raise SnapshotError(f"{path}: {reason}", reason=reason)
    return fields


def sha256(data: bytes) -> str:
    """The hash by which files of a state are named and checked, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _text(value: Any) -> str:
    """One line, but for lists of many."""
    if isinstance(value, Lists | Shards | Checksums):
        lines = (f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in vars(value).items())
        return "{\n" + ",\n".join(lines) + "\n }"
    return json.dumps(value)


@contextmanager
def understood(path: object) -> Iterator[None]:
    """Within, what is no file of a state is a SnapshotError."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        reason = f"not a file of a fencepost state ({error!r})"
        raise SnapshotError(f"{path}: {reason}", reason=reason) from error
