"""A transport's answers to batches, with Kafka's error codes.

The codes, and whether a client retries them, follow `org.apache.kafka.common.protocol.Errors` and its exceptions
(`RetriableException`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from fencepost.inputs import is_integer
from fencepost.verdict import Verdict


class ErrorCode(IntEnum):
    """Errors of a produce request that a client can act on. Any other code violates the contract."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTION_ABORTABLE = 120

    @property
    def is_retriable(self) -> bool:
        """Whether the same batch may succeed later, whatever the state of the producer. Other codes, such as
        OUT_OF_ORDER_SEQUENCE_NUMBER, are retried in some states only."""
        return self in _RETRIABLE

    @property
    def is_fatal(self) -> bool:
        """Whether the producer cannot continue (`TransactionManager.maybeTransitionToErrorState`)."""
        return self in _FATAL


_RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_FATAL = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class Answer(NamedTuple):
    """A log's answer to one request.

    Attributes:
        error: An `ErrorCode` or its number, or a `Verdict` (DUPLICATE is success, as in Kafka's protocol). 0 is
            success.
        offset: The offset of the batch's first row in the log; for a duplicate, the original one. None or -1 if
            unknown, and always if the batch was refused.
        log_start: The log's first offset, which accompanies UNKNOWN_PRODUCER_ID. None or -1 if unknown.
        message: A text for people.
    """

    error: int | Verdict = 0
    offset: int | None = None
    log_start: int | None = None
    message: str = ""


class Reading(NamedTuple):
    """A validated answer."""

    code: ErrorCode
    offset: int | None = None
    log_start: int | None = None
    is_duplicate: bool = False
    message: str = ""


def read_answer(answer: Any) -> Reading:
    """Validate an answer. Raises ValueError that says what is wrong."""
    if not isinstance(answer, Answer):
        raise ValueError(f"{answer!r} is not an Answer")
    code = _code(answer.error)
    offset = _offset("offset", answer.offset)
    if code is not ErrorCode.NONE and offset is not None:
        raise ValueError(f"it has the offset {offset} for a batch that was refused with {code.name}")
    return Reading(
        code, offset, _offset("log_start", answer.log_start), answer.error is Verdict.DUPLICATE, answer.message
    )


def _code(error: Any) -> ErrorCode:
    number = error.kafka_error if isinstance(error, Verdict) else error
    if not is_integer(number):
        raise ValueError(f"error {error!r} is neither an ErrorCode nor a Verdict that a log returns")
    try:
        return ErrorCode(number)
    except ValueError:
        raise ValueError(f"error {number} is not an error of a produce response") from None


def _offset(what: str, offset: Any) -> int | None:
    if offset is None or offset == -1:
        return None
    if not is_integer(offset, 0, 2**63 - 1):
        raise ValueError(f"{what} {offset!r} is not an offset: expected 0 to {2**63 - 1}, or None")
    return offset
