"""The files of a run that are not read: bad ones, and those that wait for a bad one before them in the order.

| content | the run |
|---|---|
| is damaged, or (`on_bad_file="quarantine"`) has wrong columns, types or values | *defers* the file: the decision says since when, and the next run looks again |
| is still so, unchanged, after `settle_ms` | *quarantines* it, or with `on_bad_file="stop"` stops |

Storage that does not give the content says nothing of it: the run stops (`fencepost.lake.files.persist`).
"""  # noqa: E501 a table

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fencepost.errors import SourceError
from fencepost.lake.files import Files
from fencepost.lake.scan import Status
from fencepost.state.decision import Decision, Deferred, Quarantined

OnBadFile = Literal["quarantine", "stop"]
Adds = Mapping[str, dict[str, Any]]
"""Path to the action by which a Delta table names a file."""


class ReplanError(Exception):
    """More is known of the files than when the run was planned: scan, judge and write anew."""


@dataclass
class LeftOut:
    """What is known so far in one attempt."""

    settle_ms: int
    on_bad_file: OnBadFile | None
    base: Decision | None
    bad: dict[str, str] = field(default_factory=dict)
    """Full path to reason."""
    waiting: dict[str, str] = field(default_factory=dict)
    """The same, of files that could be read."""

    @property
    def sets_misfits_aside(self) -> bool:
        """Whether files of wrong columns, types or values are bad files rather than an error."""
        return self.on_bad_file == "quarantine"

    def of(self, files: Files) -> dict[str, str]:
        """Which of these files are not to be read: full path to reason."""
        known = self.bad | self.waiting
        paths = map(files.full_path, range(len(files))) if known else ()
        return {path: known[path] for path in paths if path in known}

    def add_bad(self, found: Mapping[str, str]) -> None:
        """Leave out these files too. Raises ReplanError if there are any."""
        if found:
            self.bad.update(found)
            raise ReplanError

    def sort(
        self, files: Files, status: Sequence[Status], reasons: Sequence[str], adds: Adds
    ) -> tuple[list[str], Deferred, Quarantined]:
        """(vanished, deferred, quarantined). Raises SourceError where a bad file is to stop the run."""
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
            # A clock that was ahead when the file was seen says nothing of how long that is ago.
            first_ms = 0 if is_waiting else min(known.get((path, size, mtime_ns), now_ms), now_ms)
            if is_waiting or now_ms - first_ms < self.settle_ms:
                deferred.append(row | {"first_seen_ms": first_ms, "add": adds.get(path)})
            elif self.on_bad_file == "stop":
                raise _stopping(files.full_path(place), reasons[place])
            else:
                quarantined.append(row | {"inode": files.inode[place], "etag": etag})
        return vanished, Deferred.of(deferred), Quarantined.of(quarantined)

    def hold_back(self, files: Files, status: Sequence[Status], deferred: Deferred, *, is_sorted: bool) -> None:
        """Let what follows a bad file wait for it, under a policy that judges by the order of rows.

        `is_sorted`: rows are put in order by columns, so any row may follow those of the bad file. Raises ReplanError
        where files were read that have to wait.
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
        """(path, bytes, mtime_ns) of each bad file that is known, to when it was seen first."""
        known = self.base.deferred if self.base else Deferred()
        identities = zip(known.path, known.bytes, known.mtime_ns, strict=True)
        return {it: ms for it, ms in zip(identities, known.first_seen_ms, strict=True) if ms}


def _stopping(path: str, reason: str) -> SourceError:
    text = f"{reason}. Mend the file or move it out of the source; or go on without it: on_bad_file='quarantine'"
    return SourceError(text, path=path)
