"""The output: a folder in which each version appears at once.

    _fencepost.json            the state that this folder belongs to
    run=<n>/part-<ordinal>.parquet
    _prepare/<n>-<attempt>/    what tasks of a running job have written; readers ignore names that begin with `_`

A run's files are prepared in the same file system, so that one rename shows them all.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fencepost.errors import SinkChangedError, SinkError
from fencepost.state.decision import Decision, Output
from fencepost.state.disk import TEMPORARY, Disk
from fencepost.state.store import State

MARKER = "_fencepost.json"
PREPARE = "_prepare"


class RunFolders:
    """A sink with one folder per version, `run=<n>/`."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.disk = disk

    def check(self, state: State) -> None:
        """Refuse a folder that is not this state's, or no longer what it left behind. Changes nothing.

        Raises SinkError, SinkChangedError.
        """
        # In this order: other runs may finish versions meanwhile.
        done = state.done()
        names = set(os.listdir(self.path)) if self.path.exists() else set()
        decided, settings = state.decided(), state.settings()
        if MARKER not in names:
            if done:
                raise SinkChangedError(f"{self.path}: {MARKER} is gone, which said that the folder is this state's")
            foreign = sorted(name for name in names if name != PREPARE and not name.startswith(f"{MARKER}."))
            if foreign:
                raise SinkError(f"{self.path}: not empty and not a fencepost sink (it holds {', '.join(foreign[:5])})")
        elif settings is None or self._owner() != settings.id:
            raise SinkError(f"{self.path}: belongs to another state (id {self._owner()}); a sink has one for ever")
        runs = {int(match[1]) for name in names if (match := re.fullmatch(r"run=(\d+)", name))}
        gone = set(range(1, done + 1)) - runs
        if gone:
            raise SinkChangedError(f"{self.path}: run={min(gone)} is gone, though version {min(gone)} was written")
        unknown = runs - set(range(1, decided + 1))
        if unknown:
            raise SinkChangedError(f"{self.path}: run={min(unknown)} is there, though no such version was decided")

    def claim(self, state_id: str) -> None:
        """Say whose folder it is. Raises SinkError if another state was faster."""
        self.disk.make_folder(self.path)
        marker = {"format": 1, "state": state_id, "layout": "run"}
        if not self.disk.put(self.path / MARKER, (json.dumps(marker) + "\n").encode()):
            raise SinkError(f"{self.path}: belongs to another state (id {self._owner()}), claimed meanwhile")

    def prepare_folder(self, version: int, attempt: str) -> Path:
        """Where an attempt's tasks write."""
        return self.path / PREPARE / f"{version}-{attempt}"

    def collect(self, folder: Path, winners: dict[str, str]) -> str:
        """Bring the winning files, final name to path, into one folder under `folder`; gives its name for `apply`.

        Tasks that lost may still write to `folder`; they know nothing of the one inside.
        """
        prepared = folder / "run"
        self.disk.make_folder(prepared)
        for name, path in winners.items():
            os.rename(path, prepared / name)
        self.disk.seal(prepared)
        return prepared.relative_to(self.path).as_posix()

    def apply(self, decision: Decision) -> None:
        """Show a decided version. May be done again by anyone, at the same time too. Raises SinkChangedError."""
        target = self.path / f"run={decision.version}"
        prepared = self.path / decision.prepared
        try:
            self.disk.move(prepared, target)
        except OSError:
            # Shown already, or in this moment by another run: a folder with content is never replaced.
            if not self._holds(target, decision.outputs):
                raise SinkChangedError(
                    f"{target}: not what version {decision.version} decided, and it cannot be taken from {prepared}"
                ) from None
            self.disk.seal(self.path)
        self.disk.remove(prepared.parent)

    def collect_garbage(self, done: int) -> None:
        """Remove what attempts at versions that are done have left."""
        folder = self.path / PREPARE
        for path in folder.iterdir() if folder.exists() else ():
            match = re.fullmatch(r"(\d+)-\w+", path.name)
            if match and int(match[1]) <= done:
                self.disk.remove(path)
        for temporary in self.path.glob(f"{MARKER}.*{TEMPORARY}") if done else ():
            self.disk.remove(temporary)

    def _owner(self) -> str | None:
        try:
            owner: str = json.loads((self.path / MARKER).read_bytes())["state"]
        except (ValueError, KeyError, TypeError):
            return None
        return owner

    @staticmethod
    def _holds(target: Path, outputs: tuple[Output, ...]) -> bool:
        if not target.is_dir():
            return False
        found = {entry.name: entry.stat().st_size for entry in os.scandir(target)}
        return found == {output.name: output.bytes for output in outputs}
