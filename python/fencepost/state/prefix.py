"""The output in an object store: a prefix with a folder per version, like `RunFolders` on a disk.

    _fencepost.json            the state that owns this prefix
    _versions/<n>.json         a version's status, applied or abandoned; put if absent, so it is one of the two
    run=<n>/part-<ordinal>.parquet                           and other files of a version
    run=<n>/_SUCCESS           of a complete version: its files, with bytes, rows and checksums
    _prepare/<n>-<attempt>/    prepared files and exchange files of a running job's tasks

Stores have no renames. So a version is first claimed; then each file is copied to its final location, within the store;
then `_SUCCESS` is put; and prepared files are removed last, so that a paused driver finds nothing to copy. Readers that
ignore `_SUCCESS` see complete files only, nothing undecided or abandoned, and no row twice. But they may see a part of
a version that is being applied. `applied_files` lists the files of complete versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencepost.errors import SinkChangedError, SinkError
from fencepost.state import changelog
from fencepost.state.commit import SinkDefaults, Tasks, in_turn
from fencepost.state.decision import ABANDONED, APPLIED, Decision
from fencepost.state.placing import CopyItem, Placed, clear_folder, place_files
from fencepost.state.scratch import PrefixScratch
from fencepost.state.sinks import MARKER, PREPARE, check_owner
from fencepost.state.stores import RemoteStore, check_exclusion

if TYPE_CHECKING:
    from fencepost.state.versions import State

VERSIONS = "_versions"
SUCCESS = "_SUCCESS"
COLLECTED = "collected.json"
"""A file in an attempt's folder: maps final names to the random names of tasks."""
READS_AT_ONCE = 32


class RunPrefixes(SinkDefaults):
    """A sink with the files of each version below `run=<n>/` of a prefix. See `Sink` for undocumented methods."""

    layout = "run"
    has_schema = False
    can_merge = True

    def __init__(self, store: RemoteStore) -> None:
        self.store = store

    @property
    def location(self) -> str:
        return self.store.uri

    # Checks

    def check(self, state: State) -> None:
        """Check the owner (see `Sink`). Does not list `run=<n>/`, because a year has many versions."""
        # Read the state before the sink, because other runs may finish versions in the meantime.
        seen, owner, settings = state.newest(), self.owner(), state.settings()
        done, decided = seen.done, seen.decided
        if owner is None:
            self._check_new(done)
            return
        check_owner(self.location, owner, state.uri, settings)
        claim = self._read(_claim_of(done)) if done else None
        if done and claim is None and done > state.floor():
            raise SinkChangedError(
                f"{self.location}: {_claim_of(done)} is gone, but version {done} was written. Restore the sink, or at "
                "least this object"
            )
        signs = [_claim_of(decided + 1)]
        if claim is None or f'"{APPLIED}"'.encode() not in claim:
            # Nothing here shows that the next claim is not folded: claims of abandoned versions stay.
            signs.append(f"run={decided + 1}/{SUCCESS}")
        sign = next((it for it in signs if self.store.exists(it)), None)
        if sign is not None and state.decided() == decided:  # check that no other run has decided in the meantime
            raise SinkChangedError(
                f"{self.location}: {sign} exists, but the state has no version {decided + 1}: the state is older than "
                "the sink. Restore the newer state"
            )

    def _check_new(self, done: int) -> None:
        if done:
            raise SinkChangedError(
                f"{self.location}: {MARKER} is gone, which names the state that owns this prefix. Restore the sink, or "
                "at least this object"
            )
        names = self.store.names_at_top()
        foreign = sorted(name for name in names if name != PREPARE)
        if foreign and MARKER not in names:  # unless another run has claimed it in the meantime
            raise SinkError(f"{self.location}: not empty and not a fencepost sink (it holds {', '.join(foreign[:5])})")

    def probe(self, version: int, attempt: str) -> None:
        """Refuse a store without reliable conditional puts, or without copies (see `Sink`)."""
        folder = f"{PREPARE}/{version}-{attempt}"
        check_exclusion(self.store, folder)
        first, second = f"{folder}/first.probe", f"{folder}/second.probe"
        self.store.put(first, b"probe")
        self.store.copy(self.store, first, 5, second)
        if self.store.read_exactly(second, 0, 5, "") != b"probe":
            raise SinkError(
                f"{self.location}: this store cannot hold a sink: its copy of an object differs from the original. Use "
                "another store"
            )
        self.store.delete([first, second])

    def claim(self, state_id: str) -> None:
        marker = {"format": 1, "state": state_id, "layout": self.layout}
        if not self.store.put(MARKER, _json(marker)):
            raise SinkError(
                f"{self.location}: belongs to another state (id {self.owner()}), which claimed it meanwhile"
            )

    # Prepared files

    def scratch(self, version: int, attempt: str) -> PrefixScratch:
        return PrefixScratch(self.store, f"{PREPARE}/{version}-{attempt}")

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """Write an object that lists the files (see `Sink`)."""
        name = f"{PREPARE}/{version}-{attempt}/{COLLECTED}"
        if not self.store.put(name, _json(winners)):
            raise AssertionError(f"{self.store.uri}/{name}: exists already, although only this attempt writes here")
        return name

    def collect_garbage(self, done: int) -> None:
        for folder in self.store.names_at_top(PREPARE):
            match = re.fullmatch(r"(\d+)-\w+", folder)
            if match and int(match[1]) <= done:
                self.store.clear(f"{PREPARE}/{folder}")

    def fold(self, first: int, last: int) -> None:
        """Remove the claims (see `Sink`). `_SUCCESS` stays for readers."""
        claims = [_claim_of(version) for version in range(first, last + 1)]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            found = list(pool.map(self._read, claims))
        self.store.delete(
            name for name, data in zip(claims, found, strict=True) if data and json.loads(data)["status"] == APPLIED
        )

    # Versions

    def apply(self, decision: Decision, tasks: Tasks = in_turn) -> str:
        """Apply a version (see `Sink`). Anyone may already have done any step."""
        return self._complete(decision, self._claimed(decision, APPLIED), tasks)

    def fence(self, decision: Decision) -> str:
        """Abandon a version (see `Sink`). The first claim decides its status."""
        return self._complete(decision, self._claimed(decision, ABANDONED), in_turn)

    def _claimed(self, decision: Decision, wanted: str) -> str:
        """Claim a version. Returns its status: `wanted`, unless it was claimed before."""
        name = _claim_of(decision.version)
        if self.store.put(name, _json({"status": wanted, "attempt": decision.attempt})):
            return wanted
        return self._checked_claim(decision, self.store.read(name))

    def _checked_claim(self, decision: Decision, data: bytes) -> str:
        claim = json.loads(data)
        if claim["attempt"] != decision.attempt or claim["status"] not in (APPLIED, ABANDONED):
            raise SinkChangedError(
                f"{self.store.uri}/{_claim_of(decision.version)}: belongs to another version {decision.version} "
                f"(attempt {claim['attempt']}), not to that of this state: an older state was restored, and made the "
                "version again. Restore the newer state"
            )
        return str(claim["status"])

    def _complete(self, decision: Decision, status: str, tasks: Tasks) -> str:
        if status == APPLIED:
            self._show(decision, tasks)
        self.clear(decision, tasks)
        return status

    def clear(self, decision: Decision, tasks: Tasks = in_turn) -> None:
        """Remove prepared files of a finished version."""
        if decision.prepared is not None:
            clear_folder(self.store, _folder_of(decision), tasks)

    def status(self, decision: Decision) -> str | None:
        """Return a version's status, if any. For sinks that store rows elsewhere."""
        data = self._read(_claim_of(decision.version))
        return None if data is None else self._checked_claim(decision, data)

    def _show(self, decision: Decision, tasks: Tasks) -> None:
        name, manifest = f"run={decision.version}/{SUCCESS}", _json(_manifest(decision))
        there = self._read(name)
        if there == manifest:
            return
        if there is None:
            try:
                self._copy_missing(decision, tasks)
            except FileNotFoundError:
                # Another driver has finished and cleaned up, and its files may have been removed since.
                if self._read(name) == manifest:
                    return
                raise SinkChangedError(
                    f"{self.location}/run={decision.version}: files of version {decision.version} are missing or "
                    f"differ, and they cannot be restored from {decision.prepared}. Restore them"
                ) from None
        if there is not None or not self.store.put(name, manifest):
            raise SinkChangedError(
                f"{self.store.uri}/{name}: not the list of files that version {decision.version} has. If you have "
                "restored an older state, restore the newer one, whose version has these files. Otherwise remove this "
                "object, then run again"
            )

    def _copy_missing(self, decision: Decision, tasks: Tasks) -> None:
        """Copy files that are missing at their final locations, or differ.

        Raises FileNotFoundError if prepared files are missing or differ.
        """
        wanted, run = _files(decision), f"run={decision.version}"
        if not wanted:
            return
        sizes, written = self._sizes(run), self.written(decision)
        files = CopyItem()
        for name, (size, crc) in wanted.items():
            files.add(written.get(name), f"{run}/{name}", size, crc if sizes.get(name) == size else None)
        placed = self.place(decision, files, self.store, tasks)
        for target in (*placed.gone, *placed.wrong):
            raise FileNotFoundError(target)

    def place(self, decision: Decision, files: CopyItem, store: RemoteStore, tasks: Tasks) -> Placed:
        """Copy files of a version, by their names in this prefix, to their final locations in a store."""
        scratch = PrefixScratch(self.store, _folder_of(decision))
        try:
            return place_files(files, self.store, store, scratch, tasks)
        except Exception:
            if self.written(decision):
                raise
            # Another driver has finished and removed the prepared files, and the plan of these tasks.
            lost = replace(files, names=[None] * len(files.targets))
            return place_files(lost, self.store, store, scratch, in_turn)

    def place_outputs(self, decision: Decision, targets: list[str], store: RemoteStore, tasks: Tasks) -> list[str]:
        """Copy a version's outputs to these locations in a store. Returns those that are not complete there.

        Outputs whose prepared files are missing are complete if another driver has copied them.
        """
        outputs, written, files = decision.outputs, self.written(decision), CopyItem()
        for name, target, size in zip(outputs.name, targets, outputs.bytes, strict=True):
            files.add(written.get(name), target, size)
        return self.place(decision, files, store, tasks).wrong

    def written(self, decision: Decision) -> dict[str, str]:
        """Map final names of a version's files to their prepared names. Empty if they were removed."""
        data = self._read(str(decision.prepared))
        written = {} if data is None else json.loads(data)
        return {name: f"{_folder_of(decision)}/{it}" for name, it in written.items()}

    # Content

    def names(self, decision: Decision) -> list[str]:
        return [f"run={decision.version}/{name}" for name in decision.outputs.name]

    def shown(self, decision: Decision) -> int:
        return len(self._sizes(f"run={decision.version}").keys() & set(decision.outputs.name))

    def changelog(self) -> Iterator[Any]:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for name, size, etag in sorted(self.store.listing()):
            if not re.fullmatch(rf"run=\d+/{changelog.FOLDER}/[^/]+\.parquet", name):
                continue
            try:
                yield pq.ParquetFile(self.store.object(name, size, etag).open()).read()
            except (OSError, ValueError) as error:
                raise SinkError(
                    f"{self.store.uri}/{name}: this list of missing ranges cannot be read ({error}). Restore the "
                    "object, or remove it and run again, which corrects the list"
                ) from error

    def applied_files(self) -> list[str]:
        """Return the names of the files with kept rows of all complete versions."""
        listed = [name for name, _, _ in self.store.listing()]
        whole = [name.partition("/")[0] for name in listed if re.fullmatch(rf"run=\d+/{SUCCESS}", name)]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            manifests = list(pool.map(lambda run: self.store.read(f"{run}/{SUCCESS}"), whole))
        there = set(listed)
        rows = [f"{run}/{it['name']}" for run, data in zip(whole, manifests, strict=True) for it in _rows_of(data)]
        return sorted(name for name in rows if name in there)

    def schema(self) -> str | None:
        """Return the columns of all files with kept rows, from the newest complete version."""
        runs = [int(it[4:]) for it in self.store.names_at_top() if re.fullmatch(r"run=\d+", it)]
        for run in sorted(runs, reverse=True):
            data = self._read(f"run={run}/{SUCCESS}")
            if data is not None:
                schema: str | None = json.loads(data).get("schema")
                return schema
        return None

    def _sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of every file of a version, by name within it."""
        return {name.removeprefix(f"{folder}/"): size for name, size, _ in self.store.listing(folder)}

    def owner(self) -> str | None:
        """Return the state that owns the prefix."""
        data = self._read(MARKER)
        return None if data is None else str(json.loads(data)["state"])

    def _read(self, name: str) -> bytes | None:
        try:
            return self.store.read(name)
        except FileNotFoundError:
            return None


def _claim_of(version: int) -> str:
    return f"{VERSIONS}/{version}.json"


def _folder_of(decision: Decision) -> str:
    """Return the folder of a version's prepared files."""
    return str(decision.prepared).rpartition("/")[0]


def _json(value: Any) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def _files(decision: Decision) -> dict[str, tuple[int, int]]:
    """Return bytes and footer checksum of every file of a version, by name."""
    return {it["name"]: (it["bytes"], it["footer_crc"]) for it in _manifest(decision)["files"]}


def _manifest(decision: Decision) -> dict[str, Any]:
    """Return the content of `_SUCCESS`: the version and its files."""
    outputs, sides = decision.outputs, decision.side_files
    tables = ["rows"] * len(outputs) + list(sides.table)
    columns = [[*getattr(outputs, it), *getattr(sides, it)] for it in ("name", "rows", "bytes", "footer_crc")]
    files = [
        {"name": name, "table": table, "rows": rows, "bytes": size, "footer_crc": crc}
        for table, name, rows, size, crc in zip(tables, *columns, strict=True)
    ]
    about = {"format": 1, "version": decision.version, "attempt": decision.attempt}
    return about | ({} if decision.schema is None else {"schema": decision.schema}) | {"files": files}


def _rows_of(manifest: bytes) -> list[dict[str, Any]]:
    return [it for it in json.loads(manifest)["files"] if it["table"] == "rows"]
