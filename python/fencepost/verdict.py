"""The outcome for one row."""

from enum import IntEnum


class Verdict(IntEnum):
    """What became of a row. The codes are the same behind every door and never change."""

    ACCEPTED = 0
    """New: kept."""
    DUPLICATE = 1
    """Already accepted: not kept."""
    OUT_OF_ORDER = 2
    """Neither new nor known under this policy: not kept."""
    FENCED = 3
    """Of an epoch that a higher one has replaced: not kept."""
    INVALID_TXN_STATE = 4
    """A transaction in a state that does not allow it (produce batches only)."""
    COORDINATOR_FENCED = 5
    """A marker of a deposed coordinator (produce batches only)."""
    UNTRACKED = 6
    """Carries no producer identity: not judged, kept."""
    FORGOTTEN = 7
    """Older than what is still remembered: set aside."""
    CONFLICT = 8
    """Already accepted with other content: not kept. Jobs, audits and sinks that compare content tell it from
    DUPLICATE; no table does."""

    @property
    def kafka_error(self) -> int | None:
        """The error code with which a Kafka broker answers (org.apache.kafka.common.protocol.Errors); 0 is NONE.

        None where Kafka has no answer.
        """
        return _KAFKA_ERRORS[self]

    @property
    def is_kept(self) -> bool:
        """Whether such a row belongs in the output."""
        return self in (Verdict.ACCEPTED, Verdict.UNTRACKED)


_KAFKA_ERRORS = {
    Verdict.ACCEPTED: 0,
    Verdict.DUPLICATE: 0,
    Verdict.OUT_OF_ORDER: 45,
    Verdict.FENCED: 47,
    Verdict.INVALID_TXN_STATE: 48,
    Verdict.COORDINATOR_FENCED: 52,
    Verdict.UNTRACKED: None,
    Verdict.FORGOTTEN: None,
    Verdict.CONFLICT: None,
}
