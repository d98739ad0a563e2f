"""Where a producer's id and epochs come from: nobody else, or whoever hands out leases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from fencepost.errors import FencedError, PolicyError, TransportError
from fencepost.producer.sequencer import EPOCH_MAX, Identity


class Registry(Protocol):
    """Hands out producer ids and epochs, like `fencepost.sql.ProducerRegistry`."""

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = ..., expected: Any = None) -> Any:
        """Something with `pid` and `epoch`, and, where a fresh pid has replaced another one of the id, that one as
        `previous_pid`: whoever still writes under it is kept out of the log.

        Without an id a pid that nobody has had. With one the same pid and the next epoch, or a fresh pid once epochs
        are used up; `expected`, what an earlier call gave: raises FencedError where somebody else came since.
        """

    # These it may have, where names expire that nobody uses.

    # keep_alive_ms: int
    #     How often a running producer calls `keep_alive`.
    # keep_alive(identity) -> object
    #     The name that has this identity, one of `init_producer` or of a coordinator, is in use. What it raises is
    #     tried again.


class Identities:
    """The identity of one producer. `given` is what a registry or coordinator said last, in its own words."""

    def __init__(self, registry: Registry | None, name: str | None, timeout_ms: int) -> None:
        self.registry, self.name, self.timeout_ms = registry, name, timeout_ms
        self.given: Any = None

    def first(self, before: Identity | None) -> Identity:
        """One to begin with, above what a checkpoint tells. Raises TransportError for a registry that goes back."""
        self.given = self._ask(None)
        found = read_identity(self.given)
        if before is not None and found.pid == before.pid and found.epoch <= before.epoch:
            raise TransportError(
                f"the registry gives pid {found.pid} epoch {found.epoch}, which is not above epoch {before.epoch} of "
                "the checkpoint: its rows would be taken for those that were sent before. Nothing was sent"
            )
        return found

    def next(self, identity: Identity) -> Identity:
        """The successor. Raises FencedError where somebody else has taken over."""
        if self.name is None:
            # Nobody else has this pid, so nobody has to be asked for the epoch.
            if identity.epoch < EPOCH_MAX:
                return identity._replace(epoch=identity.epoch + 1)
            self.given = self._ask(None)
            return read_identity(self.given)
        self.given = self._ask(self.given)
        found = read_identity(self.given)
        if found.pid == identity.pid and found.epoch <= identity.epoch:
            raise FencedError(
                f"{self.name!r} has pid {found.pid} epoch {found.epoch}, not above this producer's {identity.epoch}"
            )
        return found

    @property
    def keep_alive_ms(self) -> int | None:
        """How often the name has to be kept alive; None where it does not expire."""
        is_kept = self.name is not None and hasattr(self.registry, "keep_alive")
        return int(self.registry.keep_alive_ms) if is_kept else None  # type: ignore[union-attr]

    def keep_alive(self) -> None:
        self.registry.keep_alive(self.given)  # type: ignore[union-attr]

    def _ask(self, expected: Any) -> Any:
        if self.registry is None:
            return Identity(secrets.randbits(62), 0)
        return self.registry.init_producer(self.name, self.timeout_ms, expected)


def read_identity(given: Any) -> Identity:
    """What a registry or coordinator gave. Raises TransportError for what is no identity."""
    pid, epoch = getattr(given, "pid", None), getattr(given, "epoch", None)
    if not isinstance(pid, int) or not isinstance(epoch, int) or not 0 <= pid < 2**63 or not 0 <= epoch <= EPOCH_MAX:
        raise TransportError(
            f"{given!r} is no identity: pid 0 to {2**63 - 1} and epoch 0 to {EPOCH_MAX}. Nothing was sent"
        )
    return Identity(pid, epoch)


CHECKPOINT_VERSION = 1


def read_checkpoint(checkpoint: Any, name: str | None) -> Identity | None:
    """Whom a checkpoint is of; None without one. Raises PolicyError."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Mapping) or checkpoint.get("version") != CHECKPOINT_VERSION:
        raise PolicyError(f"{checkpoint!r:.200} is no checkpoint of version {CHECKPOINT_VERSION}")
    if name is None or checkpoint.get("name") != name:
        raise PolicyError(
            f"the checkpoint is of the producer {checkpoint.get('name')!r}, and this one is {name!r}: only a producer "
            "with a name can resume, for by it others are kept out"
        )
    return Identity(int(checkpoint["pid"]), int(checkpoint["epoch"]))
