# ruff: noqa: E501 (pieces of source are easier to find when they are not cut)
"""State machines and coordinators that each break one rule. A harness that lets one of them pass does not look.

Each is the product's own source with one piece put otherwise.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from fencepost.sql import coordinator, transaction

LAST = "from fencepost.producer.sequencer import EPOCH_MAX, LAST_EPOCH"
MUTANTS = {
    "any expected pid will do": ("if expected is not None and not self._is_known(expected):", "if False:"),
    "a new id takes no expected one": ("return self.epoch == NONE or expected", "return expected"),
    "nobody is known before a rotation": ("is_fresh = self.epoch == 0", "is_fresh = False"),
    "rotations are known for ever": (
        "is_fresh = self.epoch == 0 and self.last_epoch == LAST_EPOCH and self.state is not State.ONGOING",
        "is_fresh = True",
    ),
    "a rotation is known while the fresh pid is in use": (" and self.state is not State.ONGOING\n", "\n"),
    "the last epoch is one too far": (LAST, f"{LAST}\nLAST_EPOCH += 1"),
    "the last epoch is one too near": (LAST, f"{LAST}\nLAST_EPOCH -= 1"),
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
    "what is decided times out": ("return self.state is State.ONGOING and is_late(", "return is_late("),
    "the time is over too early": ("abs(now_ms - since_ms) > timeout_ms", "abs(now_ms - since_ms) >= timeout_ms"),
    "what is open expires": ("return self.state in OPENABLE and self.updated_ms", "return self.updated_ms"),
    "expired at the wrong end": ("self.updated_ms <= now_ms - expiry_ms", "self.updated_ms < now_ms - expiry_ms"),
}  # fmt: skip


def mutant(name: str) -> Any:
    """The machine's module with one piece put otherwise."""
    return _changed(transaction, name, [MUTANTS[name]])


ROUTED = "return sorted(it for it in held.waiting if self.routes.get(it[0]) is not None)"
ROUTE_MUTANTS = {
    "every marker goes to the first route": [(ROUTED, "return sorted(held.waiting)"), ("route, prepared = self.routes[topic],", "route, prepared = self.routes.get(topic) or next(iter(self.routes.values())),")],
    "a partition without a route counts as written": [("found.waiting.difference(written)", "found.waiting.difference(held.waiting)")],
    "the rest of a transaction does not wait": [("        if not held.waiting:\n            after = after", "        if len(held.waiting) < 2:\n            after = after")],
    "nothing waits": [("waiting=held.waiting | new)", "waiting=held.waiting)")],
    "only the last partitions wait": [("waiting=held.waiting | new)", "waiting=new or held.waiting)")],
    "what is open without a route times out": [("            if self._is_unrouted(held):\n                return held\n            after", "            after")],
    "what is decided without a route is taken over": [("return held if self._is_unrouted(held) else self._taken(connection, held)", "return self._taken(connection, held)"), ("return held if held is None or self._is_unrouted(held) else self._finish(held)", "return held if held is None else self._finish(held)"), (ROUTED, "return [('clicks', it) for _, it in held.waiting if 'clicks' in self.routes]")],
    "a marker that failed counts as written": [("failed[topic] = partition, error", "failed[topic] = partition, error; written.append(partition)")],
    "what is left is not reported": [("for it in prepared + timed_out if it.waiting)", "for it in prepared + timed_out if False)")],
    "nothing is left": [("        return bool(held.waiting) and not self._routed(held)", "        return False")],
}  # fmt: skip
"""Pieces of the coordinator; what comes of them shows where several services share a database."""


def route_mutant(name: str) -> Any:
    """The coordinator's module with some pieces put otherwise."""
    return _changed(coordinator, name, ROUTE_MUTANTS[name])


def _changed(original: types.ModuleType, name: str, pieces: list[tuple[str, str]]) -> Any:
    path = original.__file__
    assert path is not None
    source = Path(path).read_text("utf-8")
    for old, new in pieces:
        assert source.count(old) == 1, f"{name}: {old!r} is in the source {source.count(old)} times"
        source = source.replace(old, new)
    module = types.ModuleType(f"{original.__name__}_{name.replace(' ', '_')}")
    # Dataclasses look their module up.
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module
