"""Files that a run does not read: bad ones, and those that wait for an earlier bad one in the order.

| content | effect |
|---|---|
| damaged | *defer* the file: the decision records since when, and the next run retries |
| wrong columns, types or values, with `on_bad_file="quarantine"` | the same |
| still bad and unchanged after `settle_ms` | *quarantine* the file, or stop with `on_bad_file="stop"` |

A storage failure says nothing about the content, so the run stops (`fencepost.lake.storage.retry`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fencepost.errors import SourceError
from fencepost.lake.files import Adds, Files
from fencepost.lake.scan import Status
from fencepost.state.decision import Decision, Deferred, Quarantined

OnBadFile = Literal["quarantine", "stop"]


class ReplanError(Exception):
    """More files must be left out than planned: scan, judge and write again."""


@dataclass
class LeftOut:
    """The files left out so far in an attempt."""

    settle_ms: int
    on_bad_file: OnBadFile | None
    base: Decision | None
    bad: dict[str, str] = field(default_factory=dict)
    """Maps full path to reason."""
    waiting: dict[str, str] = field(default_factory=dict)
    """The same for readable files that wait."""

    @property
    def quarantines_misfits(self) -> bool:
        """Whether files of wrong columns, types or values count as bad files and do not raise an error."""
        return self.on_bad_file == "quarantine"

    def of(self, files: Files) -> dict[str, str]:
        """Return which of these files are left out: full path to reason."""
        known = self.bad | self.waiting
        paths = map(files.full_path, range(len(files))) if known else ()
        return {path: known[path] for path in paths if path in known}

    def add_bad(self, found: Mapping[str, str]) -> None:
        """Leave out more files. Raises ReplanError if there are any."""
        if found:
            self.bad.update(found)
            raise ReplanError

    def sort(
        self, files: Files, status: Sequence[Status], reasons: Sequence[str], adds: Adds
    ) -> tuple[list[str], Deferred, Quarantined]:
        """Return (vanished, deferred, quarantined). Raises SourceError if a bad file must stop the run."""
        now_ms = time.time_ns() // 1_000_000
        known = self._first_seen_ms()
        vanished, deferred, quarantined = [], [], []
        for place, path in enumerate(files.paths):
            if status[place] == "vanished":
                vanished.append(path)
            if status[place] != "left out":
                continue
            size, mtime_ns, etag = files.identity(place)
            row: dict[str, Any] = {"path": path, "bytes": size, "mtime_ns": mtime_ns, "reason": reasons[place]}
            is_waiting = files.full_path(place) in self.waiting
            # A future time, from a clock that was ahead, counts as now.
            first_ms = 0 if is_waiting else min(known.get((path, size, mtime_ns), now_ms), now_ms)
            if is_waiting or now_ms - first_ms < self.settle_ms:
                deferred.append(row | {"first_seen_ms": first_ms, "add": adds.get(path)})
            elif self.on_bad_file == "stop":
                raise _stopping(files.full_path(place), reasons[place])
            else:
                quarantined.append(row | {"inode": files.inode[place], "etag": etag})
        return vanished, Deferred.of(deferred), Quarantined.of(quarantined)

    def hold_back(self, files: Files, status: Sequence[Status], deferred: Deferred, *, is_sorted: bool) -> None:
        """Defer files after a bad file, under a policy that depends on the order of rows.

        `is_sorted`: columns order the rows, so any row may come after those of the bad file. Raises ReplanError if
        files that must wait were read.
        """
        if not deferred.damaged:
            return
        first = files.paths.index(deferred.damaged[0])
        reason = f"waits for {files.full_path(first)}, whose rows come first and which cannot be read yet"
        places = range(len(files)) if is_sorted else range(first + 1, len(files))
        found = {files.full_path(place): reason for place in places if status[place] == "read"}
        if found:
            self.waiting.update(found)
            raise ReplanError

    def _first_seen_ms(self) -> dict[tuple[str, int, int], int]:
        """Map (path, bytes, mtime_ns) of each known bad file to the time when it was first seen."""
        known = self.base.deferred if self.base else Deferred()
        identities = zip(known.path, known.bytes, known.mtime_ns, strict=True)
        return {it: ms for it, ms in zip(identities, known.first_seen_ms, strict=True) if ms}


def _stopping(path: str, reason: str) -> SourceError:
    text = f"{reason}. Repair the file, move it out of the source, or continue without it: on_bad_file='quarantine'"
    return SourceError(text, path=path)
