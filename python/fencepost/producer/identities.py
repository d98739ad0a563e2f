"""Provides a producer's id and epochs: generated locally, or leased from a registry."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

from fencepost.errors import FencedError, PolicyError, TransportError
from fencepost.inputs import is_integer
from fencepost.producer.sequencer import EPOCH_MAX, Identity


class Registry(Protocol):
    """Assigns producer ids and epochs, like `fencepost.sql.ProducerRegistry`."""

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = ..., expected: Any = None) -> Any:
        """Assign an identity: an object with `pid` and `epoch`.

        Without an id, assigns a new pid. With an id, assigns the same pid with the next epoch, or a new pid when the
        epochs are used up. A new pid of a known id comes with the old one as `previous_pid`, so that its writers can be
        fenced.

        `expected`: the result of an earlier call. Raises FencedError if another producer has called since.
        """

    # Optional members of registries whose names expire:

    # keep_alive_ms: int
    #   Interval between calls of `keep_alive` by a running producer.
    # keep_alive(identity) -> object
    #   Reports that the name with this identity (from `init_producer` or a coordinator) is in use. Errors are retried.


class Identities:
    """The identity of one producer. `latest` is the registry's or coordinator's last answer, unchanged."""

    def __init__(self, registry: Registry | None, name: str | None, timeout_ms: int) -> None:
        self.registry, self.name, self.timeout_ms = registry, name, timeout_ms
        self.latest: Any = None

    def first(self, before: Identity | None) -> Identity:
        """Return the first identity, above that of a checkpoint. Raises TransportError if the registry's epochs go
        back."""
        self.latest = self._ask(None)
        found = read_identity(self.latest)
        if before is not None and found.pid == before.pid and found.epoch <= before.epoch:
            raise TransportError(
                f"the registry gives pid {found.pid} epoch {found.epoch}, which is not above epoch {before.epoch} "
                "of the checkpoint: rows of this producer would count as repeats of earlier rows. Nothing was sent"
            )
        return found

    def next(self, identity: Identity) -> Identity:
        """Return the next identity. Raises FencedError if another producer has taken over."""
        if self.name is None:
            # No other producer has this pid, so the epoch needs no registry.
            if identity.epoch < EPOCH_MAX:
                return identity._replace(epoch=identity.epoch + 1)
            self.latest = self._ask(None)
            return read_identity(self.latest)
        self.latest = self._ask(self.latest)
        found = read_identity(self.latest)
        if found.pid == identity.pid and found.epoch <= identity.epoch:
            raise FencedError(
                f"{self.name!r} has pid {found.pid} epoch {found.epoch} in the registry, which is not above this "
                f"producer's epoch {identity.epoch}"
            )
        return found

    @property
    def keep_alive_ms(self) -> int | None:
        """Interval of keep-alive calls in milliseconds. None if the name does not expire."""
        is_kept = self.name is not None and hasattr(self.registry, "keep_alive")
        return int(self.registry.keep_alive_ms) if is_kept else None  # type: ignore[union-attr]

    def keep_alive(self) -> None:
        self.registry.keep_alive(self.latest)  # type: ignore[union-attr]

    def _ask(self, expected: Any) -> Any:
        if self.registry is None:
            return Identity(secrets.randbits(62), 0)
        return self.registry.init_producer(self.name, self.timeout_ms, expected)


def read_identity(given: Any) -> Identity:
    """Read the answer of a registry or coordinator. Raises TransportError if it is not an identity."""
    pid, epoch = getattr(given, "pid", None), getattr(given, "epoch", None)
    if not (_is_pid(pid) and _is_epoch(epoch)):
        raise TransportError(
            f"the registry returned {given!r}, not an identity: expected pid 0 to {2**63 - 1} and epoch 0 to "
            f"{EPOCH_MAX}. Nothing was sent"
        )
    return Identity(pid, epoch)


CHECKPOINT_VERSION = 1


def read_checkpoint(checkpoint: Any, name: str | None) -> Identity | None:
    """Return the identity in a checkpoint; None without one. Raises PolicyError."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Mapping) or checkpoint.get("version") != CHECKPOINT_VERSION:
        raise PolicyError(f"{checkpoint!r:.200} is not a checkpoint of version {CHECKPOINT_VERSION}")
    if name is None or checkpoint.get("name") != name:
        raise PolicyError(
            f"the checkpoint is from the producer {checkpoint.get('name')!r}, but this one is {name!r}: only "
            "a producer with the same name can resume"
        )
    pid, epoch = checkpoint.get("pid"), checkpoint.get("epoch")
    if not (_is_pid(pid) and _is_epoch(epoch)):
        raise PolicyError(
            f"the checkpoint of the producer {name!r} has pid={pid!r} and epoch={epoch!r}: expected pid 0 to "
            f"{2**63 - 1} and epoch 0 to {EPOCH_MAX}. Pass what `producer.checkpoint` returned"
        )
    return Identity(pid, epoch)


def _is_pid(value: Any) -> TypeGuard[int]:
    return is_integer(value, 0, 2**63 - 1)


def _is_epoch(value: Any) -> TypeGuard[int]:
    return is_integer(value, 0, EPOCH_MAX)
