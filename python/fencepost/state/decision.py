"""What a run decided: all that is needed to finish it without its source, and to build the next one on it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fencepost.errors import SnapshotError

FORMAT = 1  # of the files in a state folder
SEMANTICS = 1  # of the verdicts: raised when the same rows would be judged otherwise


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a state was created for. It is fixed for ever: one state, one source, one sink, one set of rules."""

    id: str
    """Drawn at creation; the sink carries it."""
    policy: str
    """The rules, as `Policy.rules` writes them."""
    columns: dict[str, Any]
    """Role (pid, epoch, partition, seq) to column name, list of names, or None."""
    scope: str | None
    """What the data does not say about itself (cluster, topic id): all keys of this state belong to it."""
    shards: int
    source: str
    sink: str
    fencepost: str
    """The version that created the state."""
    format: int = FORMAT
    semantics: int = SEMANTICS

    def check(self, wanted: Settings, path: object) -> None:
        """Refuse another use of the state at `path`. Raises SnapshotError naming the first difference."""
        for field in ("format", "semantics", "policy", "columns", "scope", "shards", "source", "sink"):
            ours, theirs = getattr(self, field), getattr(wanted, field)
            if ours != theirs:
                reason = f"it was created with {field} {ours!r}, this job has {theirs!r}"
                raise SnapshotError(f"{path}: {reason}; use that, or another state folder", reason=reason)


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that was read. Another size, time or inode under the same path is another file."""

    path: str
    """Relative to the source."""
    bytes: int
    mtime_ns: int
    inode: int
    rows: int
    ordinal: int
    """Its place among the files of this version: rows are judged in the order (ordinal, row)."""
    footer_crc: int


@dataclass(frozen=True, kw_only=True)
class Output:
    """A file with the kept rows of one input."""

    name: str
    rows: int
    bytes: int
    footer_crc: int


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The state of one shard: a `StateTable` snapshot in a file."""

    shard: int
    name: str
    """Relative to the state folder."""
    bytes: int
    sha256: str
    entries: int
    positions: int | None
    """Sequence positions ever accepted, under policies whose positions stay: its growth equals the accepted rows."""


@dataclass(frozen=True, kw_only=True)
class LedgerSegment:
    """A part of the list of all inputs so far: one JSON array [path, bytes, mtime_ns, inode] a line."""

    name: str
    sha256: str
    files: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Version n, as a pure function of version n - 1 and the inputs named here."""

    version: int
    previous: str | None
    """SHA-256 of the log file of version - 1."""
    attempt: str
    """Drawn by the run that decided: tells two writers apart, and names the folders of its files."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    prepared: str
    """Where the outputs lie until they are applied, relative to the sink."""
    segments: tuple[Segment, ...]
    """The whole state, one per shard that has any; those of untouched shards are older versions' files."""
    ledger: tuple[LedgerSegment, ...]
    counts: dict[str, int]
    """Rows by name of verdict."""
    missing_ranges: int
    """Ranges of sequences that this version opened, and how many rows they stand for."""
    missing_rows: int
    stale_epoch: int
    border: int
    policy: str
    order_by: tuple[str, ...] | None
    fencepost: str
    format: int = FORMAT
    semantics: int = SEMANTICS

    def segment(self, shard: int) -> Segment | None:
        """The state of a shard, if it has any."""
        return next((segment for segment in self.segments if segment.shard == shard), None)


def to_json(value: Settings | Decision | dict[str, Any]) -> bytes:
    """The text of a file in a state folder; equal values give equal bytes."""
    fields = value if isinstance(value, dict) else dataclasses.asdict(value)
    return (json.dumps(fields, indent=1) + "\n").encode()


def settings_from_json(data: bytes, path: object) -> Settings:
    """Raises SnapshotError where `data` are no settings that this version understands."""
    fields = fields_from_json(data, path)
    with _understood(path):
        return Settings(**fields)


def decision_from_json(data: bytes, path: object) -> Decision:
    """Raises SnapshotError where `data` are no decision that this version understands."""
    fields = fields_from_json(data, path)
    parts = {"inputs": Input, "outputs": Output, "segments": Segment, "ledger": LedgerSegment}
    with _understood(path):
        fields |= {name: tuple(kind(**part) for part in fields[name]) for name, kind in parts.items()}
        fields["order_by"] = None if fields["order_by"] is None else tuple(fields["order_by"])
        return Decision(**fields)


def fields_from_json(data: bytes, path: object) -> dict[str, Any]:
    """The fields of a file of a state folder. Raises SnapshotError where it is none, or of another format."""
    with _understood(path):
        fields: dict[str, Any] = json.loads(data)
        found = fields["format"]
    if found != FORMAT:
        reason = f"format {found}, this version of fencepost reads format {FORMAT}"
        raise SnapshotError(f"{path}: {reason}", reason=reason)
    return fields


def sha256(data: bytes) -> str:
    """The hash by which files of a state are named and checked, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _understood(path: object) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        reason = f"not a file of a fencepost state ({error!r})"
        raise SnapshotError(f"{path}: {reason}", reason=reason) from error
