"""The decision of a run: everything needed to finish it without its source, and to build the next version on it.

A decision may refer to 10^5 files and 4096 shards. So long lists are in `Lists`: one list per column without an object
per row, and JSON that is fast to read and write.
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
from fencepost.policy import Policy, differences, from_label

FORMAT = 2  # version of the file formats in a state folder
FORMAT_FOLDED = 3
"""The format of a decision after which versions may be folded (`folding.py`). The fields are the same, but earlier
versions of this package must refuse it, because they do not know floors."""
SEMANTICS = 1  # version of the semantics of verdicts: raised if verdicts on the same rows would change

APPLIED, ABANDONED, DECIDED = "applied", "abandoned", "decided"  # the statuses of a version


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a state. They never change: one state, one source, one sink, one set of rules."""

    id: str
    """Random; the sink contains it."""
    policy: str
    """The rules, as in `Policy.rules`."""
    columns: dict[str, Any]
    """Maps roles (pid, epoch, partition, seq, timestamp) to a column name, a list of names, or None."""
    scope: str | None
    """Distinguishes data of different origins (cluster, topic id). It applies to all keys of this state."""
    keep: list[str]
    """What tables keep beyond what the rules need: [] or ["timestamp"]."""
    shards: int
    """The initial number of shards. Decisions contain the current one."""
    source: str
    """The absolute path of the folder that runs read."""
    sink: str
    """The absolute path of the folder that shows versions."""
    fencepost: str
    """The version of fencepost that created the state."""
    layout: str = "run"
    """How versions are shown. "run": a folder each. "delta", "iceberg", "sql": transactions that append to a table.
    "in-place": transactions that remove rows from the table that is also the source. "call": calls of a function."""
    format: int = FORMAT
    """Version of the file formats in the state folder (docs/state-format.md)."""
    semantics: int = SEMANTICS
    """Version of the semantics of verdicts: raised if verdicts on the same rows would change."""

    def full_policy(self) -> Policy:
        """The rules with their columns."""
        return from_label(self.policy, json.dumps(self.columns))

    def check(self, wanted: Settings, uri: object) -> None:
        """Raise SnapshotError, naming every difference, if the state at `uri` is used with other settings."""
        differing = differences(self._compared(), wanted._compared(), "in the state", "in this job")
        if differing:
            reason = f"it was created with other settings: {differing}"
            raise SnapshotError(
                f"{uri}: {reason}. Use the values of the state, or a new state with a new sink", reason=reason
            )

    def _compared(self) -> dict[str, Any]:
        """The settings that a job must share with its state."""
        names = ("format", "semantics", "policy", "columns", "scope", "source", "sink", "layout")
        keep = {"max_idle": "given"} if self.keep else {}  # the only reason to keep timestamps
        return {name: getattr(self, name) for name in names} | keep


class Lists:
    """Rows as one list per column. Raises ValueError if lengths differ."""

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in vars(self).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{type(self).__name__}: columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def each(self) -> Iterator[dict[str, Any]]:
        """Iterate over rows as dicts. For tests and short lists."""
        columns = vars(self)
        return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> Self:
        """Build the lists from rows with all columns."""
        found = list(rows)
        names = [it.name for it in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: [row[name] for row in found] for name in names})


@dataclass(frozen=True, kw_only=True)
class Inputs(Lists):
    """The files read, in order. A file's index is its ordinal, and rows are judged by (ordinal, row).

    Another size, time, inode or etag under the same path means another file.
    """

    path: list[str] = field(default_factory=list)
    """Relative to the source."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    """0 if there is an etag."""
    inode: list[int] = field(default_factory=list)
    """0 if there is an etag."""
    etag: list[str] = field(default_factory=list)
    """Of an object store; empty for local files."""
    rows: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Quarantined(Lists):
    """Quarantined files. They are in the ledger, so that later runs do not read them."""

    path: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    inode: list[int] = field(default_factory=list)
    etag: list[str] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Deferred(Lists):
    """Files that were found and not read. They are not in the ledger, so later runs retry."""

    path: list[str] = field(default_factory=list)
    """Relative to the source."""
    bytes: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    first_seen_ms: list[int] = field(default_factory=list)
    """When a run first found this content to be bad, in milliseconds since 1970 by its clock. 0 for a file that waits
    for an earlier bad one."""
    reason: list[str] = field(default_factory=list)
    """Why it was not read."""
    add: list[dict[str, Any] | None] = field(default_factory=list)
    """The action by which a Delta table added it, without statistics. None for files of a folder."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """The paths of bad files."""
        return tuple(path for path, seen_ms in zip(self.path, self.first_seen_ms, strict=True) if seen_ms)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The paths of files that wait for others."""
        return tuple(path for path, seen_ms in zip(self.path, self.first_seen_ms, strict=True) if not seen_ms)


@dataclass(frozen=True, kw_only=True)
class Outputs(Lists):
    """The files with kept rows. In place: only replacement files, and files of deletion vectors, which have no rows."""

    name: list[str] = field(default_factory=list)
    """The final name within the version."""
    ordinal: list[int] = field(default_factory=list)
    """The ordinal of the first input with rows in it."""
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Marked(Lists):
    """The files of an in-place table that lose rows."""

    path: list[str] = field(default_factory=list)
    """Relative to the table."""
    ordinal: list[int] = field(default_factory=list)
    """Its index among the inputs."""
    rows: list[int] = field(default_factory=list)
    """Number of rows in the file, including deleted ones."""
    refused: list[int] = field(default_factory=list)
    """Number of rows that it loses now."""
    vector: list[dict[str, Any] | None] = field(default_factory=list)
    """Its new deletion vector for the table's log. None if the output with the same ordinal, if any, replaces the file.
    """


@dataclass(frozen=True, kw_only=True)
class SideFiles(Lists):
    """Files of tables besides the output: refused rows, missing ranges."""

    table: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    footer_crc: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LedgerFiles(Lists):
    """The parts of the ledger, the list of all inputs so far, the oldest first (`ledger.py`)."""

    name: list[str] = field(default_factory=list)
    """Relative to the state."""
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    """Of the index, or of the whole part if it has none."""
    files: list[int] = field(default_factory=list)
    """Number of files listed."""
    index: list[int] = field(default_factory=list)
    """Bytes of the index at its end. 0 for an Arrow file without index, written by earlier versions."""


@dataclass(frozen=True)
class Piece:
    """A snapshot or delta: a range of a segment file."""

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
    """The state of one shard: the keys that one task owns."""

    shard: int
    """Its number, from 0."""
    entries: int
    """Number of entries: keys, or keys and epochs."""
    positions: int | None
    """Number of sequence positions ever accepted, under policies that keep positions. It grows by the accepted rows."""
    missing: int | None = None
    """Number of sequences that are missing. None if it was last written by a version that did not count them."""
    pieces: tuple[Piece, ...]
    """A base, then its deltas."""


class _Pieces:
    """Pieces in columns: an index into `files`, and other fields."""

    files: list[str]
    file: list[int]
    offset: list[int]
    bytes: list[int]
    sha256: list[str]

    def _piece(self, place: int) -> Piece:
        return Piece(self.files[self.file[place]], self.offset[place], self.bytes[place], self.sha256[place])

    def _add_piece(self, piece: Piece, places: dict[str, int]) -> None:
        """`places`: maps the names so far to indexes. They become `files` at the end."""
        self.file.append(places.setdefault(piece.file, len(places)))
        self.offset.append(piece.offset)
        self.bytes.append(piece.bytes)
        self.sha256.append(piece.sha256)


@dataclass(frozen=True, kw_only=True)
class Shards(_Pieces):
    """All shards with a state, by number. A single one can be read without parsing the others."""

    shard: list[int] = field(default_factory=list)
    """Ascending."""
    entries: list[int] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    missing: list[int | None] = field(default_factory=list)
    first_piece: list[int] = field(default_factory=list)
    """Index of its first piece in the lists below. Its pieces end at the next shard's first."""
    files: list[str] = field(default_factory=list)
    """The names of segment files."""
    file: list[int] = field(default_factory=list)
    """Index into `files` per piece."""
    offset: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        of_shards = ("shard", "entries", "positions", "missing", "first_piece")
        for names in (of_shards, ("file", "offset", "bytes", "sha256")):
            lengths = {name: len(getattr(self, name)) for name in names}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"Shards: columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.shard)

    def __iter__(self) -> Iterator[Shard]:
        return (self._at(place) for place in range(len(self)))

    def get(self, shard: int) -> Shard | None:
        """Return the state of a shard, if any."""
        place = bisect.bisect_left(self.shard, shard)
        return self._at(place) if place < len(self) and self.shard[place] == shard else None

    def replaced(self, changed: Iterable[Shard]) -> Shards:
        """Return a copy with some shards replaced. The others keep their pieces."""
        return Shards.of(({it.shard: it for it in self} | {it.shard: it for it in changed}).values())

    @staticmethod
    def of(shards: Iterable[Shard]) -> Shards:
        new = Shards()
        places: dict[str, int] = {}
        for it in sorted(shards, key=lambda it: it.shard):
            new.shard.append(it.shard)
            new.entries.append(it.entries)
            new.positions.append(it.positions)
            new.missing.append(it.missing)
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
            shard=self.shard[place],
            entries=self.entries[place],
            positions=self.positions[place],
            missing=self.missing[place],
            pieces=pieces,
        )


@dataclass(frozen=True, kw_only=True)
class Checksums(_Pieces):
    """The pieces with checksums of kept rows, by shard; within a shard, the oldest first."""

    columns: list[str]
    """The compared columns, sorted. [] for all outside the identity."""
    shard: list[int] = field(default_factory=list)
    """The shard of each piece, ascending."""
    rows: list[int] = field(default_factory=list)
    """Number of checksums of each piece."""
    files: list[str] = field(default_factory=list)
    """The names of segment files."""
    file: list[int] = field(default_factory=list)
    """Index into `files` per piece."""
    offset: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {it: len(getattr(self, it)) for it in ("shard", "rows", "file", "offset", "bytes", "sha256")}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Checksums: columns of different lengths: {lengths}")

    def get(self, shard: int) -> tuple[SumPiece, ...]:
        """Return the pieces of a shard."""
        places = range(bisect.bisect_left(self.shard, shard), bisect.bisect_right(self.shard, shard))
        return tuple(SumPiece(rows=self.rows[it], piece=self._piece(it)) for it in places)

    def replaced(self, changed: Mapping[int, Sequence[SumPiece]]) -> Checksums:
        """Return a copy with other pieces for some shards."""
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
    """Version n, as a pure function of the version it builds on and of the inputs listed here."""

    version: int
    """Its number: 1, 2, 3 and so on. Never reused."""
    previous: str | None
    """SHA-256 of the log file of version - 1."""
    builds_on: int
    """The version whose state this one continues: the newest applied version, or after a rollback the restored one. 0
    for none, as after a rebase."""
    attempt: str
    """A random nonce of the run that decided. It distinguishes writers and names the folders of their files."""
    kind: str = "run"
    """What made it: run, seed or rebase; or an operation (`operations.py`): evict, reshard, rollback or retain."""
    shard_count: int
    """Number of shards of the state. `shards` contains the non-empty ones."""
    shards: Shards = field(default_factory=Shards)
    """The whole state. Unchanged shards refer to older versions' pieces."""
    checksums: Checksums | None = None
    """The checksums for comparing repeats. None if none are kept; then the field is left out of the text, so that such
    decisions look as before the field existed."""
    ledger: LedgerFiles = field(default_factory=LedgerFiles)
    """The files that list all inputs so far, including this version's."""
    listing: str | None = None
    """The hash of a listing of the source (`ledger.hash_of_listing`) all of whose files are in the ledger, so that an
    equal listing needs no comparison. None if there is no such listing; then the field is left out of the text."""
    inputs: Inputs = field(default_factory=Inputs)
    """The files that this version read."""
    quarantined: Quarantined = field(default_factory=Quarantined)
    """The files that this version quarantined."""
    deferred: Deferred = field(default_factory=Deferred)
    """The files that are deferred, including those of earlier versions."""
    outputs: Outputs = field(default_factory=Outputs)
    """The files with its kept rows."""
    marked: Marked = field(default_factory=Marked)
    """The files that lose rows, for an in-place table."""
    side_files: SideFiles = field(default_factory=SideFiles)
    """The files of tables besides the output: refused rows, changes in missing ranges."""
    prepared: str | None = None
    """Location of outputs and side files until they are applied, relative to the sink: a folder; in an object store, an
    object that lists them. None if there are none."""
    source_position: dict[str, Any] | None = None
    """For sources other than folders: Delta versions, Kafka offsets, the stream's query and batch."""
    sink_version: dict[str, Any] | None = None
    """The sink's version at the time of the decision, if it has versions of its own (`Sink.current_version`)."""
    clock_ms: int | None = None
    """The clock of evictions, in milliseconds since 1970. None before the first one. It goes back only in a rollback or
    a rebase."""
    horizon_ms: int | None = None
    """Every table is evicted up to here before it judges: milliseconds since 1970. None before the first eviction."""
    key_types: dict[str, str] = field(default_factory=dict)
    """The types of key columns, fixed by the first rows with values: integer, string, binary or
    fixed_size_binary[bytes]. Recorded here because tables know only the types of their own keys, and a shard may be
    empty."""
    schema: str | None = None
    """The columns of the sink's files, including this version's: an Arrow schema as IPC message in base64. None if the
    sink defines its columns, or none were recorded; then the field is left out of the text."""
    oldest: int = 1
    """The oldest version that supports rollback. Files of older ones may be removed."""
    collected: int = 1
    """Files that only versions before this one need were removed (`retention.py`)."""
    breaks: list[list[int]] | None = None
    """[version, the version it builds on] for versions after `collected`, up to this one, that do not build on the one
    before. None if not recorded."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of rows by verdict."""
    missing_ranges: int = 0
    """Number of ranges of sequences that this version left missing."""
    missing_rows: int = 0
    """Number of rows in these ranges."""
    stale_epoch: int = 0
    """Number of rows below the highest epoch of their key, written by zombies."""
    border: int = 0
    """Number of rows that were put into another lap than the highest accepted row, because both are near the end of the
    number range. A lap is one pass from 0 to wrap - 1."""
    plan: dict[str, Any] = field(default_factory=dict)
    """How it was computed: name, reason, figures."""
    report: dict[str, Any] = field(default_factory=dict)
    """Other information for people."""
    policy: str
    """The rules that judged its rows, as in `Policy.rules`."""
    order_by: list[str] | None = None
    """The columns that ordered rows before. [] for file names, then rows. None if not recorded."""
    decided_ms: int = 0
    """Time of the decision in milliseconds since 1970, by the deciding machine's clock. Used only for retention."""
    fencepost: str
    """The version of fencepost that decided."""
    format: int = FORMAT
    """Version of the file formats in the state folder (docs/state-format.md)."""
    semantics: int = SEMANTICS
    """Version of the semantics of verdicts: raised if verdicts on the same rows would change."""

    @property
    def entries(self) -> int:
        """The number of entries of all shards."""
        return sum(self.shards.entries)

    @property
    def missing_open(self) -> int | None:
        """The number of sequences that are missing after this version, in all shards. None if a shard has no count."""
        counts = [it for it in self.shards.missing if it is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    def files(self) -> set[str]:
        """The segment files that this version needs, of any version."""
        return {*self.shards.files, *self.ledger.name, *(self.checksums.files if self.checksums else ())}

    @property
    def state_bytes(self) -> int:
        """Bytes of the snapshots, deltas and checksums of this state."""
        return sum(self.shards.bytes) + (sum(self.checksums.bytes) if self.checksums else 0)


OF_STATE = (
    *("shard_count", "shards", "checksums", "ledger", "listing", "deferred", "source_position"),
    *("clock_ms", "horizon_ms", "key_types", "order_by"),
)
"""Fields of a decision that describe the state after it. The next version takes them over; a rollback restores them."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A summary of a version, from the log."""

    version: int
    """Its number."""
    status: str
    """"applied", "abandoned", or "decided" if it is neither yet."""
    kind: str
    """What made it: run, seed, rebase, evict, reshard, rollback or retain."""
    builds_on: int
    """The version whose state it continues. 0 for none."""
    decided_ms: int
    """Time of the decision in milliseconds since 1970, by the deciding machine's clock."""
    files: int
    """Number of input files read."""
    rows: int
    """Number of input rows."""
    kept: int
    """Number of output rows. 0 for a seed, which writes no rows."""
    entries: int
    """Number of entries after it, in all shards: keys, or keys and epochs."""
    state_bytes: int
    """Bytes of the snapshots, deltas and checksums of this state, including those that older versions wrote."""
    shard_count: int
    """Number of shards of the state."""
    counts: dict[str, int]
    """Number of input rows by verdict."""
    report: dict[str, Any]
    """Other information, by kind: deferred files, evicted entries and so on. Empty if it is larger than 8 KB
    (`State.version` has all of it)."""


def kept_in(counts: Mapping[str, int]) -> int:
    """Return the number of kept rows. `counts`: rows by name of verdict."""
    return counts.get("ACCEPTED", 0) + counts.get("UNTRACKED", 0)


def kept_rows(decision: Decision) -> int:
    """Return the number of rows that were written or stay in place. 0 for a seed."""
    return 0 if decision.kind == "seed" else kept_in(decision.counts)


REPORT_BYTES_MAX = 8_192  # larger reports are in the body only


def summary(decision: Decision) -> dict[str, Any]:
    """Return the fields of `Version` from a decision."""
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


# Encoding


def to_json(value: Settings | Decision | dict[str, Any]) -> bytes:
    """Encode as JSON with a field or column per line. Equal values give equal bytes."""
    fields = value if isinstance(value, dict) else vars(value)
    fields = {
        name: it for name, it in fields.items() if it is not None or name not in ("checksums", "schema", "listing")
    }
    lines = (f" {json.dumps(name)}: {_text(it)}" for name, it in fields.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def settings_from_json(data: bytes, path: object) -> Settings:
    """Decode settings. Raises SnapshotError for invalid data or another format."""
    fields = fields_from_json(data, path)
    with understood(path):
        return Settings(**fields)


def decision_from_json(data: bytes, path: object) -> Decision:
    """Decode a decision. Raises SnapshotError for invalid data or another format."""
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
        if "shards" in fields:
            fields["shards"].setdefault("missing", [None] * len(fields["shards"]["shard"]))
        fields |= {name: kind(**fields[name]) for name, kind in parts.items() if name in fields}
        return Decision(**fields)


def fields_from_json(data: bytes, path: object) -> dict[str, Any]:
    """Decode the fields of a state's file. Raises SnapshotError for invalid data or another format."""
    with understood(path):
        fields: dict[str, Any] = json.loads(data)
        found = fields["format"]
    if found not in (FORMAT, FORMAT_FOLDED):
        reason = f"format {found}, this version of fencepost reads formats {FORMAT} and {FORMAT_FOLDED}"
        raise SnapshotError(f"{path}: {reason}", reason=reason)
    return fields


def sha256(data: bytes) -> str:
    """Return the hexadecimal hash that names and verifies files of a state."""
    return hashlib.sha256(data).hexdigest()


def _text(value: Any) -> str:
    """Encode a value in one line, except for long lists."""
    if isinstance(value, Lists | Shards | Checksums):
        lines = (f"  {json.dumps(name)}: {json.dumps(column)}" for name, column in vars(value).items())
        return "{\n" + ",\n".join(lines) + "\n }"
    return json.dumps(value)


@contextmanager
def understood(path: object) -> Iterator[None]:
    """Turn errors of invalid state files into SnapshotError."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        reason = f"not a file of a fencepost state ({error!r})"
        raise SnapshotError(f"{path}: {reason}", reason=reason) from error
