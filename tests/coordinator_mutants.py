# ruff: noqa: E501 (pieces of source are easier to find when they are not cut)
"""State machines that each break one rule. A harness that lets one of them pass does not look.

Each is the machine's own source with one piece put otherwise.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from fencepost.sql import transaction

MUTANTS = {
    "any expected pid will do": ("if expected is not None and not self._is_known(expected):", "if False:"),
    "a new id takes no expected one": ("return self.epoch == NONE or expected", "return expected"),
    "nobody is known before a rotation": ("is_fresh = self.epoch == 0", "is_fresh = False"),
    "rotations are known for ever": (
        "is_fresh = self.epoch == 0 and self.last_epoch == LAST_EPOCH and self.state is not State.ONGOING",
        "is_fresh = True",
    ),
    "a rotation is known while the fresh pid is in use": (" and self.state is not State.ONGOING\n", "\n"),
    "the last epoch is one too far": ("LAST_EPOCH = EPOCH_MAX - 1", "LAST_EPOCH = EPOCH_MAX"),
    "the last epoch is one too near": ("LAST_EPOCH = EPOCH_MAX - 1", "LAST_EPOCH = EPOCH_MAX - 2"),
    "init does not wait for markers": ("if self.state in PREPARED:\n            raise self._concurrent()\n        if self.state is State.ONGOING:", "if self.state is State.ONGOING:"),
    "init leaves open what is open": ("            return self.fenced(now_ms, fresh_pid)\n        begun", "            raise self._concurrent()\n        begun"),
    "a repeated init gives another epoch": ("if expected.epoch == self.last_epoch:\n                return self._to(State.EMPTY, **begun)", "if False:\n                pass"),
    "any expected epoch will do": ("if expected.epoch != self.epoch:\n                raise", "if False:\n                raise"),
    "init always remembers the last epoch": ("last_epoch = NONE if expected is None else self.epoch", "last_epoch = self.epoch"),
    "init never remembers the last epoch": ("last_epoch = NONE if expected is None else self.epoch", "last_epoch = NONE"),
    "a rotation forgets the pid before": ("last_epoch=last_epoch, previous_pid=self.pid, **begun", "last_epoch=last_epoch, **begun"),
    "a rotation in any state": ("return self._to(State.EMPTY, pid=fresh_pid", "return replace(self, pid=fresh_pid"),
    "no assertion of epochs": ("assert not self.is_exhausted, f", "assert True, f"),
    "partitions while markers are written": ("        if self.state in PREPARED:\n            raise self._concurrent()\n        self._check(pid, epoch)", "        self._check(pid, epoch)"),
    "partitions are checked for the pid first": ("        if self.state in PREPARED:\n            raise self._concurrent()\n        self._check(pid, epoch)\n        if self.state is State.ONGOING", "        self._check(pid, epoch)\n        if self.state in PREPARED:\n            raise self._concurrent()\n        if self.state is State.ONGOING"),
    "partitions replace those before": ("partitions=self.partitions | partitions", "partitions=partitions"),
    "verifying does not look": ("if missing := partitions - self.partitions:", "if missing := set():"),
    "verifying while markers are written": ("        self._check(pid, epoch)\n        if self.state in PREPARED:\n            raise self._concurrent()\n        if missing", "        self._check(pid, epoch)\n        if missing"),
    "only lower epochs are fenced": ("        if epoch != self.epoch:\n            raise self._fenced_by(pid, epoch)\n\n", "        if epoch < self.epoch:\n            raise self._fenced_by(pid, epoch)\n\n"),
    "the epoch before the pid": ("        if pid != self.pid:\n            raise self._mapped_otherwise(pid)\n        if epoch", "        if False:\n            pass\n        if epoch"),
    "no retry": ("is_retry = is_rotated or epoch == self.epoch - 1", "is_retry = is_rotated"),
    "no retry across a rotation": ("is_rotated = self.state in COMPLETED and", "is_rotated = False and"),
    "a retry across a rotation in any state": ("is_rotated = self.state in COMPLETED and", "is_rotated ="),
    "any pid ends": ("if pid != self.pid and not is_rotated:", "if False:"),
    "a prepared one takes any epoch": ("            if not is_retry:\n                raise self._fenced_by(pid, epoch)\n", ""),
    "a prepared one changes its mind": ("raise self._concurrent() if PREPARED[self.state] == outcome else self._not_now(outcome)", "raise self._concurrent()"),
    "a completed one says yes to all": ("if COMPLETED[self.state] == outcome:", "if True:"),
    "a completed one never repeats": ("if self.state in COMPLETED and is_retry:", "if False:"),
    "future epochs end": ("        if epoch != self.epoch:\n            raise self._fenced_by(pid, epoch)\n        # A producer", "        if epoch < self.epoch:\n            raise self._fenced_by(pid, epoch)\n        # A producer"),
    "no abort of nothing": ('if outcome == "abort":', 'if outcome == "abort" and self.state is State.ONGOING:'),
    "a commit of nothing": ("        if self.state is State.ONGOING:\n            return self._prepared(State.PREPARE_COMMIT", "        if True:\n            return self._prepared(State.PREPARE_COMMIT"),
    "the epoch stays, as in the first version": ("epoch=min(self.epoch + 1, EPOCH_MAX),", "epoch=self.epoch,"),
    "the epoch is raised beyond 16 bits": ("epoch=min(self.epoch + 1, EPOCH_MAX),", "epoch=self.epoch + 1,"),
    "the last epoch is not kept": ("            last_epoch=self.epoch,\n            next_pid", "            next_pid"),
    "no pid follows": ("next_pid=fresh_pid if self.is_exhausted else NONE,", "next_pid=NONE,"),
    "a pid always follows": ("next_pid=fresh_pid if self.is_exhausted else NONE,", "next_pid=fresh_pid,"),
    "aborts complete as commits": ("if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT", "if self.state is State.PREPARE_COMMIT else State.COMPLETE_COMMIT"),
    "the pid that follows stays open": ('"partitions": frozenset(), "next_pid": NONE, "updated_ms"', '"partitions": frozenset(), "updated_ms"'),
    "partitions stay": ('done: dict[str, Any] = {"partitions": frozenset(), ', "done: dict[str, Any] = {"),
    "completion forgets the pid before": ("pid=self.next_pid, epoch=0, previous_pid=self.pid, **done", "pid=self.next_pid, epoch=0, **done"),
    "completion does not rotate": ("        if self.next_pid == NONE:\n", "        if True:\n"),
    "what is decided times out": ("return self.state is State.ONGOING and self.started_ms", "return self.started_ms"),
    "the time is over too early": ("self.started_ms + self.timeout_ms < now_ms", "self.started_ms + self.timeout_ms <= now_ms"),
    "what is open expires": ("return self.state in OPENABLE and self.updated_ms", "return self.updated_ms"),
    "expired at the wrong end": ("self.updated_ms <= now_ms - expiry_ms", "self.updated_ms < now_ms - expiry_ms"),
}  # fmt: skip


def mutant(name: str) -> Any:
    """The machine's module with one piece put otherwise."""
    old, new = MUTANTS[name]
    source = Path(transaction.__file__).read_text("utf-8")
    assert source.count(old) == 1, f"{name}: its piece of the source stands there {source.count(old)} times"
    module = types.ModuleType(f"{transaction.__name__}_{name.replace(' ', '_')}")
    # Dataclasses look their module up.
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), transaction.__file__, "exec"), module.__dict__)
    return module
