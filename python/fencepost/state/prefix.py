"""The output in an object store: a prefix with a folder for each version, as `RunFolders` has it on a disk.

    _fencepost.json            the state that this prefix belongs to
    _versions/<n>.json         what became of a version: applied, or abandoned. Put if absent, so it is one of the two
    run=<n>/part-<ordinal>.parquet                           and the other files of a version
    run=<n>/_SUCCESS           of a version that is there as a whole: its files, with bytes, rows and checksums
    _prepare/<n>-<attempt>/    what tasks of a running job write and hand on

Stores have no renames. So a version is claimed first; then each file is copied to its place, by the store itself; then
`_SUCCESS` is put; and what was prepared is removed last, so that a driver that was paused finds nothing to copy. Who
lists files without looking for `_SUCCESS` sees whole files only, nothing undecided or abandoned, no row twice; but of a
version that is being applied he may see a part. `shown_files` lists those of versions that are there as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError, SinkChangedError, SinkError, StoreError
from fencepost.state import changelog
from fencepost.state.commit import NewRows
from fencepost.state.decision import ABANDONED, APPLIED, Decision, Outputs, SideFiles
from fencepost.state.scratch import PrefixScratch
from fencepost.state.sinks import MARKER, PREPARE, check_owner
from fencepost.state.stores import RemoteStore, check_exclusion
from fencepost.state.versions import State

VERSIONS = "_versions"
SUCCESS = "_SUCCESS"
COLLECTED = "collected.json"
"""In the folder of an attempt: final name to the name that a task has drawn."""
COPIES_AT_ONCE = 32
STREAMED_BYTES = 32 << 20
"""One request of a copy that the store does not make by itself."""


class RunPrefixes:
    """A sink with the files of each version beneath `run=<n>/` of a prefix. See `Sink` for what is not said here."""

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
        """See `Sink`. What lies beneath `run=<n>/` is not listed: a year's versions are many."""
        # What the state is known to have, then the sink: other runs may finish versions meanwhile.
        seen, owner, settings = state.seen(), self.owner(), state.settings()
        done, decided = seen.done, seen.decided
        if owner is None:
            self._check_new(done)
            return
        check_owner(self.location, owner, state.uri, settings)
        if done and not self.store.exists(_claim_of(done)):
            raise SinkChangedError(f"{self.location}: {_claim_of(done)} is gone, though version {done} was written")
        is_claimed = self.store.exists(_claim_of(decided + 1))
        if is_claimed and state.decided() == decided:  # nor has another run decided it meanwhile
            raise SinkChangedError(
                f"{self.location}: {_claim_of(decided + 1)} is there, though no such version was decided: the state "
                "is older than the sink. Put back the newer one"
            )

    def _check_new(self, done: int) -> None:
        if done:
            raise SinkChangedError(f"{self.location}: {MARKER} is gone, which said that the prefix is this state's")
        names = self.store.names_at_top()
        foreign = sorted(name for name in names if name != PREPARE)
        if foreign and MARKER not in names:  # unless another run has claimed it meanwhile
            raise SinkError(f"{self.location}: not empty and not a fencepost sink (it holds {', '.join(foreign[:5])})")

    def probe(self, version: int, attempt: str) -> None:
        """See `Sink`: a store that does not keep conditional puts apart, or does not copy."""
        folder = f"{PREPARE}/{version}-{attempt}"
        check_exclusion(self.store, folder)
        first, second = f"{folder}/first.probe", f"{folder}/second.probe"
        self.store.put(first, b"probe")
        self.store.copy(self.store, first, 5, second)
        if self.store.read(second) != b"probe":
            raise SinkError(f"{self.location}: this store cannot hold a sink: a copy of an object is not equal to it")
        self.store.delete([first, second])

    def claim(self, state_id: str) -> None:
        marker = {"format": 1, "state": state_id, "layout": self.layout}
        if not self.store.put(MARKER, _json(marker)):
            raise SinkError(f"{self.location}: belongs to another state (id {self.owner()}), claimed meanwhile")

    def look(self, before: Decision | None) -> None:
        """See `Sink`: prefixes have no versions of their own."""

    def columns(self) -> None:
        """See `Sink`: the state notes them."""

    def columns_of(self, schema: Any) -> Any:
        return schema

    def check_rows(self, rows: NewRows) -> dict[str, Any]:
        """See `Sink`: every file goes beneath a prefix just as it is."""
        return {}

    # What is prepared

    def scratch(self, version: int, attempt: str) -> PrefixScratch:
        return PrefixScratch(self.store, f"{PREPARE}/{version}-{attempt}")

    def staging(
        self, version: int, attempt: str, outputs: Outputs, winners: dict[str, str], slots: int
    ) -> tuple[Callable[[Any], Any], list[Any]]:
        """See `Sink`: nothing, they are in the store."""
        return len, []

    def staged(self, results: list[Any]) -> dict[str, Any]:
        return {}

    def collect(self, version: int, attempt: str, winners: dict[str, str]) -> str:
        """See `Sink`: an object says which they are."""
        name = f"{PREPARE}/{version}-{attempt}/{COLLECTED}"
        if not self.store.put(name, _json(winners)):
            raise AssertionError(f"{self.store.uri}/{name}: the folder of an attempt is its own")
        return name

    def prepare_changelog(self, version: int, attempt: str, lines: list[Any]) -> tuple[SideFiles, str]:
        return changelog.prepare(self, version, attempt, lines)

    def discard(self, version: int, attempt: str) -> None:
        self.scratch(version, attempt).remove()

    def collect_garbage(self, done: int) -> None:
        for folder in self.store.names_at_top(PREPARE):
            match = re.fullmatch(r"(\d+)-\w+", folder)
            if match and int(match[1]) <= done:
                self.store.clear(f"{PREPARE}/{folder}")

    # Versions

    def apply(self, decision: Decision) -> str:
        """See `Sink`: every step may have been done before, by anyone."""
        return self._go_on(decision, self._claimed(decision, APPLIED))

    def fence(self, decision: Decision) -> str:
        """See `Sink`: whoever claims the version says what becomes of it."""
        return self._go_on(decision, self._claimed(decision, ABANDONED))

    def _claimed(self, decision: Decision, wanted: str) -> str:
        """What became of a version: what is wanted, unless it was claimed before."""
        name = _claim_of(decision.version)
        if self.store.put(name, _json({"status": wanted, "attempt": decision.attempt})):
            return wanted
        return self._checked_claim(decision, self.store.read(name))

    def _checked_claim(self, decision: Decision, data: bytes) -> str:
        claim = json.loads(data)
        if claim["attempt"] != decision.attempt or claim["status"] not in (APPLIED, ABANDONED):
            raise SinkChangedError(
                f"{self.store.uri}/{_claim_of(decision.version)}: of another decision (attempt {claim['attempt']}) "
                f"than version {decision.version} of this state: it was taken back, and others have seen what it had "
                "decided"
            )
        return str(claim["status"])

    def _go_on(self, decision: Decision, status: str) -> str:
        if status == APPLIED:
            self._show(decision)
        self.clear(decision)
        return status

    def clear(self, decision: Decision) -> None:
        """Remove what was prepared for a version that is over."""
        if decision.prepared is not None:
            self.store.clear(decision.prepared.rpartition("/")[0])

    def status(self, decision: Decision) -> str | None:
        """For sinks whose rows are elsewhere: what has become of a version, if anything has."""
        data = self._read(_claim_of(decision.version))
        return None if data is None else self._checked_claim(decision, data)

    def _show(self, decision: Decision) -> None:
        name, manifest = f"run={decision.version}/{SUCCESS}", _json(_manifest(decision))
        if self._read(name) == manifest:
            return
        try:
            self._copy_lacking(decision)
        except FileNotFoundError:
            # Another driver was through, and has cleaned up; its files may be gone again by now.
            if self._read(name) == manifest:
                return
            raise SinkChangedError(
                f"{self.location}/run={decision.version}: not what version {decision.version} decided, and it cannot "
                f"be taken from {decision.prepared}"
            ) from None
        if not self.store.put(name, manifest):
            raise SinkChangedError(f"{self.store.uri}/{name}: not what version {decision.version} decided; remove it")

    def _copy_lacking(self, decision: Decision) -> None:
        """Raises FileNotFoundError where what was prepared is gone."""
        wanted = _files(decision)
        lacking = self._lacking(decision, wanted)
        if not lacking:
            return
        written, run = self.written(decision), f"run={decision.version}"
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            copies = [pool.submit(self._copy, written[name], wanted[name][0], f"{run}/{name}") for name in lacking]
        for copy in copies:
            copy.result()
        sizes = self._sizes(decision)
        wrong = [name for name, (size, _) in wanted.items() if sizes.get(name) != size]
        if wrong:
            raise SinkChangedError(f"{self.location}/{run}/{wrong[0]}: not what was copied there")

    def _lacking(self, decision: Decision, wanted: dict[str, tuple[int, int]]) -> list[str]:
        """Names of files that are not at their places, or are others."""
        sizes = self._sizes(decision)
        there = [name for name, (size, _) in wanted.items() if sizes.get(name) == size]
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            are_right = pool.map(lambda name: self._has_footer(decision, name, wanted[name]), there)
            right = {name for name, is_right in zip(there, are_right, strict=True) if is_right}
        return [name for name in wanted if name not in right]

    def _has_footer(self, decision: Decision, name: str, facts: tuple[int, int]) -> bool:
        full_name, (size, crc) = f"run={decision.version}/{name}", facts
        try:
            footer = parquet_footer(f"{self.store.uri}/{full_name}", object=self.store.object(full_name, size))
        except StoreError:
            raise
        except (FencepostError, FileNotFoundError):
            return False
        return footer.footer_crc == crc

    def _copy(self, name: str, size: int, target: str) -> None:
        copy_object(self.store, name, size, self.store, target)

    def written(self, decision: Decision) -> dict[str, str]:
        """Where the files of a version were prepared, by their final names. Raises FileNotFoundError: nowhere now."""
        folder = str(decision.prepared).rpartition("/")[0]
        written = json.loads(self.store.read(str(decision.prepared)))
        return {name: f"{folder}/{it}" for name, it in written.items()}

    # What is there

    def names(self, decision: Decision) -> list[str]:
        return [f"run={decision.version}/{name}" for name in decision.outputs.name]

    def shown(self, decision: Decision) -> int:
        return len(self._sizes(decision).keys() & set(decision.outputs.name))

    def changelog(self) -> Iterator[Any]:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for name, size, etag in sorted(self.store.listing()):
            if not re.fullmatch(rf"run=\d+/{changelog.FOLDER}/[^/]+\.parquet", name):
                continue
            try:
                yield pq.ParquetFile(self.store.object(name, size, etag).open()).read()
            except (OSError, ValueError) as error:
                text = f"{self.store.uri}/{name}: cannot be read ({error}): put back what it was, or remove it"
                raise SinkError(text) from error

    def shown_files(self) -> list[str]:
        """The names of the files with kept rows of all versions that are there as a whole."""
        listed = [name for name, _, _ in self.store.listing()]
        whole = [name.partition("/")[0] for name in listed if re.fullmatch(rf"run=\d+/{SUCCESS}", name)]
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            manifests = list(pool.map(lambda run: self.store.read(f"{run}/{SUCCESS}"), whole))
        there = set(listed)
        rows = [f"{run}/{it['name']}" for run, data in zip(whole, manifests, strict=True) for it in _rows_of(data)]
        return sorted(name for name in rows if name in there)

    def schema(self) -> str | None:
        """The columns of all files with kept rows, as the newest version that is there as a whole notes them."""
        runs = [int(it[4:]) for it in self.store.names_at_top() if re.fullmatch(r"run=\d+", it)]
        for run in sorted(runs, reverse=True):
            data = self._read(f"run={run}/{SUCCESS}")
            if data is not None:
                schema: str | None = json.loads(data).get("schema")
                return schema
        return None

    def _sizes(self, decision: Decision) -> dict[str, int]:
        """The bytes of every file of a version, by its name within."""
        folder = f"run={decision.version}"
        return {name.removeprefix(f"{folder}/"): size for name, size, _ in self.store.listing(folder)}

    def owner(self) -> str | None:
        """The state whose prefix it is."""
        data = self._read(MARKER)
        return None if data is None else str(json.loads(data)["state"])

    def _read(self, name: str) -> bytes | None:
        try:
            return self.store.read(name)
        except FileNotFoundError:
            return None


def copy_object(origin: RemoteStore, name: str, size: int, store: RemoteStore, target: str) -> None:
    """Copy an object of so many bytes to a name of a store, by the store itself where it can.

    Raises FileNotFoundError.
    """
    if store.copy(origin, name, size, target):
        return
    writer = store.writer(target)
    for piece in origin.object(name, size).pieces(STREAMED_BYTES):
        writer.write(piece)
    writer.close()


def _claim_of(version: int) -> str:
    return f"{VERSIONS}/{version}.json"


def _json(value: Any) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def _files(decision: Decision) -> dict[str, tuple[int, int]]:
    """Bytes and footer checksum of every file of a version, by its name."""
    return {it["name"]: (it["bytes"], it["footer_crc"]) for it in _manifest(decision)["files"]}


def _manifest(decision: Decision) -> dict[str, Any]:
    """What `_SUCCESS` says: of the version, and of its files."""
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
