"""The verdict on one row."""

from enum import IntEnum


class Verdict(IntEnum):
    """The verdict on a row. The codes are the same in all interfaces and never change."""

    ACCEPTED = 0
    """New. Kept."""
    DUPLICATE = 1
    """Already accepted; under late="duplicate" (`watermark`) also new, but not above the highest number. Not kept."""
    OUT_OF_ORDER = 2
    """Neither acceptable at this point nor a known duplicate under this policy. Not kept."""
    FENCED = 3
    """From an epoch that a higher one has replaced. Not kept."""
    INVALID_TXN_STATE = 4
    """The transaction's state does not allow this batch (produce batches only)."""
    COORDINATOR_FENCED = 5
    """A marker of a replaced coordinator (produce batches only)."""
    UNTRACKED = 6
    """Has no producer identity. Not judged, kept."""
    FORGOTTEN = 7
    """Older than what the state still remembers: may be new or a duplicate. Not kept."""
    CONFLICT = 8
    """Already accepted with other content. Not kept. Only jobs, audits and sinks that compare content distinguish it
    from DUPLICATE; tables never return it."""

    @property
    def kafka_error(self) -> int | None:
        """The error code of a Kafka broker for this verdict (org.apache.kafka.common.protocol.Errors); 0 is NONE.

        None if Kafka has no such error.
        """
        return _KAFKA_ERRORS[self]

    @property
    def is_kept(self) -> bool:
        """Whether a row with this verdict belongs in the output."""
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
