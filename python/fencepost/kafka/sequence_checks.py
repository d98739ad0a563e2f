"""Finds sequence numbers that a partition's producers skipped or wrote twice, from the log."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MAX = 2**31 - 1
"""The highest sequence number; 0 follows it."""

_UNKNOWN = np.iinfo(np.int64).min


class Steps(NamedTuple):
    """Rows of a call whose batch does not continue its producer's sequence. Arrays with one value per row."""

    row: Any
    """The row's index."""
    expected: Any
    """The expected sequence number; 0 at the beginning of an epoch."""
    missing: Any
    """How many numbers were skipped; 0 if the batch goes back."""


class Sequences:
    """Follows each producer's highest epoch and last sequence, batch by batch.

    A leader appends batches of a known producer only if they continue its sequence. So a step between batches of a log
    means that the broker lost accepted data or wrote it twice. The first batch of an unknown producer may begin
    anywhere. Memory: 24 bytes per producer.

    Args:
        is_whole: Whether no batches precede the first call, or `add_known` adds what they left. Otherwise a producer
            may have written before a marker that is the first of it here, and its next batch may begin anywhere.
    """

    def __init__(self, is_whole: bool = True) -> None:
        self.is_whole = is_whole
        # Sorted by pid. The last sequence number is -1 if a marker has emptied the window, `_UNKNOWN` if it may have.
        self._pid, self._epoch, self._last = (np.empty(0, np.int64) for _ in range(3))

    def add_known(self, pid: Any, epoch: Any, last_seq: Any) -> None:
        """Add known producers, from a snapshot."""
        self._remember(*(np.asarray(it, np.int64) for it in (pid, epoch, last_seq)))

    def apply(self, pid: Any, epoch: Any, base_seq: Any, last_seq: Any, is_marker: Any) -> tuple[Steps, Any]:
        """Apply rows of one partition in order. All arrays are int64, `is_marker` is boolean.

        Returns the steps, and the rows whose epoch is below their producer's highest: fenced batches that are in the
        log nevertheless. Rows without a producer, and data rows without a sequence number, are skipped.
        """
        rows = np.flatnonzero((pid >= 0) & (is_marker | (base_seq >= 0)))
        rows = rows[np.argsort(pid[rows], kind="stable")]
        pid, epoch, is_marker = pid[rows], epoch[rows], is_marker[rows]
        before = _before(pid, epoch, self._known(pid)[0])
        # A marker affects a producer only if it raises the epoch.
        is_fenced = epoch < before
        fenced = np.sort(rows[is_fenced & ~is_marker])
        follows = ~is_fenced & (~is_marker | (epoch > before))
        pid, epoch, is_marker, kept = pid[follows], epoch[follows], is_marker[follows], rows[follows]
        last = np.where(is_marker, -1, last_seq[kept])
        if not self.is_whole:
            is_new = _is_first(pid) & (self._known(pid)[0] == _UNKNOWN)
            last[is_new & is_marker] = _UNKNOWN
        stood_epoch, stood = self._state_before(pid, epoch, last)
        expected = np.where(epoch > stood_epoch, 0, (stood + 1) & MAX)
        is_known = (stood_epoch != _UNKNOWN) & ((stood != _UNKNOWN) | (epoch > stood_epoch))
        steps = is_known & ~is_marker & (base_seq[kept] != expected)
        ahead = (base_seq[kept] - expected) & MAX
        missing = np.where(ahead <= MAX // 2, ahead, 0)
        is_last = np.append(pid[1:] != pid[:-1], True)[: len(pid)]
        self._remember(pid[is_last], epoch[is_last], last[is_last])
        in_order = np.argsort(kept[steps], kind="stable")
        found = Steps(*(it[steps][in_order] for it in (kept, expected, missing)))
        return found, fenced

    def _known(self, pid: Any) -> tuple[Any, Any]:
        """Return epoch and last sequence number of each pid; `_UNKNOWN` for unknown ones."""
        at = np.searchsorted(self._pid, pid)
        at[at == len(self._pid)] = 0
        if not len(self._pid):
            return np.full(len(pid), _UNKNOWN), np.full(len(pid), _UNKNOWN)
        is_known = self._pid[at] == pid
        return tuple(np.where(is_known, it[at], _UNKNOWN) for it in (self._epoch, self._last))  # type: ignore[return-value]

    def _state_before(self, pid: Any, epoch: Any, last: Any) -> tuple[Any, Any]:
        """Return each producer's state before each row. Rows are sorted by pid, in order within."""
        stood_epoch, stood = self._known(pid)
        same = np.flatnonzero(pid[1:] == pid[:-1]) + 1
        stood_epoch[same], stood[same] = epoch[same - 1], last[same - 1]
        return stood_epoch, stood

    def _remember(self, pid: Any, epoch: Any, last: Any) -> None:
        at = np.searchsorted(self._pid, pid)
        is_known = np.zeros(len(pid), bool)
        inside = at < len(self._pid)
        is_known[inside] = self._pid[at[inside]] == pid[inside]
        self._epoch[at[is_known]], self._last[at[is_known]] = epoch[is_known], last[is_known]
        if not is_known.all():
            pairs = ((self._pid, pid), (self._epoch, epoch), (self._last, last))
            pids, epochs, lasts = (np.concatenate([old, new[~is_known]]) for old, new in pairs)
            order = np.argsort(pids, kind="stable")
            self._pid, self._epoch, self._last = pids[order], epochs[order], lasts[order]


def _before(pid: Any, epoch: Any, known_epoch: Any) -> Any:
    """Return the highest epoch of each row's producer before the row. Rows are sorted by pid."""
    is_first = _is_first(pid)
    group = np.cumsum(is_first) << 16
    # Epochs have 15 bits, so adding the group's number above them separates groups.
    floor = np.maximum(known_epoch, -1)
    highest = np.maximum.accumulate(group + np.maximum(epoch, np.where(is_first, floor, -1)) + 1) - group - 1
    before = np.where(is_first, known_epoch, np.append(-1, highest[:-1])[: len(pid)])
    return np.where(before < 0, _UNKNOWN, before)


def _is_first(pid: Any) -> Any:
    """Return whether each row is the first one of its producer. Rows are sorted by pid."""
    return np.append(True, pid[1:] != pid[:-1])[: len(pid)]
