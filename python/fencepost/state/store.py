"""A state folder: its decisions, its segments, its ledger."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fencepost._native import StateTable
from fencepost.errors import SnapshotError
from fencepost.state.decision import (
    FORMAT,
    Decision,
    LedgerSegment,
    Settings,
    decision_from_json,
    fields_from_json,
    settings_from_json,
    sha256,
    to_json,
)
from fencepost.state.disk import TEMPORARY, Disk

DECISION_BYTES_MAX = 65_536  # what is larger goes to a body: some stores bound a conditional put
LEDGER_SEGMENTS_MAX = 8  # then they are written as one

FileKey = tuple[str, int, int, int]
"""Path relative to the source, bytes, mtime_ns, inode."""


def open(path: str | os.PathLike[str]) -> State:
    """The state in a folder, to look at. Raises SnapshotError where there is none."""
    state = State(path)
    if state.settings() is None:
        raise SnapshotError(f"{path}: not a fencepost state: there is no state.json", reason="no state.json")
    return state


class State:
    """A state folder, whether or not anything was decided in it yet."""

    def __init__(self, path: str | os.PathLike[str], disk: Disk | None = None) -> None:
        self.path = Path(path)
        self.disk = disk or Disk()

    # What there is

    def settings(self) -> Settings | None:
        """What it was created for; None before the first decision. Raises SnapshotError."""
        path = self.path / "state.json"
        return settings_from_json(path.read_bytes(), path) if path.exists() else None

    def decided(self) -> int:
        """The newest version that was decided; 0 before the first."""
        return max(self._numbers("log", r"(\d+)\.json"), default=0)

    def done(self) -> int:
        """The newest version that is applied to the sink; 0 before the first."""
        return max(self._numbers("done", r"(\d+)"), default=0)

    def unfinished(self) -> range:
        """The versions that are decided and not done: one at most. Raises SnapshotError where files are gone."""
        # Other runs may decide and finish meanwhile: what is read first can only have grown since.
        done = self.done()
        decided = self.decided()
        if decided < done:
            raise self._damaged(f"log/{done}.json", f"missing, though version {done} is done")
        done = self.done()
        if done < decided - 1:
            raise self._damaged(f"done/{decided - 1}", f"missing, though version {decided} is decided")
        return range(done + 1, decided + 1)

    def decision(self, version: int) -> Decision:
        """What was decided as `version`. Raises SnapshotError where it or its link to the version before is damaged."""
        header = self._header(version)
        data = self.read(header["body"], header["sha256"]) if "body" in header else self._logged(version)
        decision = decision_from_json(data, self._log_path(version))
        if version > 1 and decision.previous != sha256(self._logged(version - 1)):
            problem = f"it does not follow from log/{version - 1}.json, which has changed since"
            raise self._damaged(f"log/{version}.json", problem)
        return decision

    def latest(self) -> Decision | None:
        """The newest version that is done."""
        version = self.done()
        return self.decision(version) if version else None

    def versions(self) -> list[Decision]:
        """All versions that are done, oldest first; the whole chain of hashes is checked. Raises SnapshotError."""
        return [self.decision(version) for version in range(1, self.done() + 1)]

    def tables(self) -> Iterator[tuple[int, StateTable]]:
        """(shard, table) of the newest version that is done, shard by shard."""
        latest = self.latest()
        for segment in latest.segments if latest else ():
            yield segment.shard, StateTable.restore(self.read(segment.name, segment.sha256))

    def missing(self) -> Any:
        """All ranges that are still missing: a pyarrow table as `StateTable.missing` gives it, shard by shard."""
        return self._concat(StateTable.missing)

    def entries(self) -> Any:
        """All that is remembered: a pyarrow table as `StateTable.entries` gives it, shard by shard."""
        return self._concat(StateTable.entries)

    def ledger(self, latest: Decision | None) -> set[FileKey]:
        """The inputs that were read up to a version."""
        lines: list[bytes] = []
        for segment in latest.ledger if latest else ():
            lines += self.read(segment.name, segment.sha256).splitlines()
        return {tuple(json.loads(line)) for line in lines}

    def read(self, name: str, expected: str) -> bytes:
        """The content of a file, by its name relative to the state. Raises SnapshotError if it is not as decided."""
        try:
            data = (self.path / name).read_bytes()
        except FileNotFoundError as error:
            raise self._damaged(name, "missing") from error
        if sha256(data) != expected:
            raise self._damaged(name, f"its SHA-256 is {sha256(data)}, decided was {expected}")
        return data

    # The four steps

    def segments_folder(self, version: int, attempt: str) -> Path:
        """Where an attempt at a version puts its segments."""
        return self.path / "segments" / str(version) / attempt

    def scratch_folder(self, version: int, attempt: str) -> Path:
        """Where an attempt at a version puts what only its own tasks read."""
        return self.path / "scratch" / f"{version}-{attempt}"

    def extend_ledger(
        self, before: Decision | None, folder: Path, files: Iterable[FileKey]
    ) -> tuple[LedgerSegment, ...]:
        """Prepare, in an attempt's folder of segments, the ledger that has the one `before` and `files`."""
        kept, listed = before.ledger if before else (), sorted(files)
        if len(kept) >= LEDGER_SEGMENTS_MAX:
            kept, listed = (), sorted(self.ledger(before).union(listed))
        data = b"".join(json.dumps(file).encode() + b"\n" for file in listed)
        path = folder / "ledger.jsonl"
        self.disk.write(path, data)
        name = path.relative_to(self.path).as_posix()
        return (*kept, LedgerSegment(name=name, sha256=sha256(data), files=len(listed)))

    def log_hash(self, version: int) -> str | None:
        """What decision version + 1 must give as its `previous`."""
        return sha256(self._logged(version)) if version else None

    def create(self, settings: Settings) -> Settings:
        """Write the settings unless they are there; gives those that count. Raises SnapshotError if they differ."""
        for folder in ("log", "body", "done"):
            self.disk.make_folder(self.path / folder)
        self.disk.put(self.path / "state.json", to_json(settings))
        stored = self.settings()
        assert stored is not None, "a file that was put is there"
        stored.check(settings, self.path)
        return stored

    def decide(self, decision: Decision) -> bool:
        """Put the decision unless its version is decided already. False: another writer was first."""
        data = to_json(decision)
        if len(data) > DECISION_BYTES_MAX:
            body = f"body/{decision.version}-{sha256(data)}.json"
            self.disk.put(self.path / body, data)
            header = {"format": FORMAT, "version": decision.version, "attempt": decision.attempt}
            data = to_json({**header, "body": body, "sha256": sha256(data)})
        return self.disk.put(self._log_path(decision.version), data)

    def finish(self, version: int) -> None:
        """Say that a version is applied to the sink."""
        self.disk.put(self.path / "done" / str(version), f"{self.log_hash(version)}\n".encode())

    def collect_garbage(self) -> None:
        """Remove what crashed and beaten attempts left of versions that are done. Later ones may be at work still."""
        done = self.done()
        for path in self._orphans(done) if done else ():
            self.disk.remove(path)

    # Files

    def _orphans(self, done: int) -> Iterator[Path]:
        yield from _numbered(self.path / "scratch", r"(\d+)-\w+", range(done + 1))
        for name in ("log", "done", "body"):
            yield from _numbered(self.path / name, rf"(\d+).*{re.escape(TEMPORARY)}", range(done + 1))
        yield from self.path.glob(f"state.json.*{TEMPORARY}")
        for folder in _numbered(self.path / "segments", r"(\d+)", range(done + 1)):
            if len(os.listdir(folder)) > 1:  # the winner's is always there, with the ledger in it
                yield from (attempt for attempt in folder.iterdir() if attempt.name != self._winner(int(folder.name)))
        # What losing tasks of the winning attempt wrote is looked for in the newest version only: looking into every
        # version ever written would cost the more the longer a state lives.
        newest = self.decision(done)
        names = [*(it.name for it in newest.segments), *(it.name for it in newest.ledger)]
        named = {self._body_path(done), *(self.path / name for name in names)}
        bodies = _numbered(self.path / "body", r"(\d+)-\w+\.json", range(done, done + 1))
        segments = self.segments_folder(done, newest.attempt).iterdir()
        yield from (path for path in (*bodies, *segments) if path not in named)

    def _concat(self, part: Callable[[StateTable], Any]) -> Any:
        import pyarrow as pa  # type: ignore[import-untyped]

        tables = [pa.table(part(table)) for _, table in self.tables()]
        if not tables:
            raise self._damaged("done", "no version is done yet")
        return pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(None)

    def _damaged(self, name: str, reason: str) -> SnapshotError:
        return SnapshotError(f"{self.path / name}: {reason}", reason=reason)

    def _numbers(self, folder: str, pattern: str) -> Iterator[int]:
        names = os.listdir(self.path / folder) if (self.path / folder).exists() else []
        return (int(match[1]) for name in names if (match := re.fullmatch(pattern, name)))

    def _log_path(self, version: int) -> Path:
        return self.path / "log" / f"{version}.json"

    def _logged(self, version: int) -> bytes:
        try:
            return self._log_path(version).read_bytes()
        except FileNotFoundError as error:
            raise self._damaged(f"log/{version}.json", "missing") from error

    def _header(self, version: int) -> dict[str, Any]:
        return fields_from_json(self._logged(version), self._log_path(version))

    def _winner(self, version: int) -> str:
        attempt: str = self._header(version)["attempt"]
        return attempt

    def _body_path(self, version: int) -> Path | None:
        """Where a decision is that is too large for the log."""
        header = self._header(version)
        return self.path / header["body"] if "body" in header else None


def _numbered(folder: Path, pattern: str, wanted: range) -> Iterator[Path]:
    """What lies in a folder under a name whose number is wanted."""
    for path in folder.iterdir() if folder.exists() else ():
        match = re.fullmatch(pattern, path.name)
        if match and int(match[1]) in wanted:
            yield path
