"""Settings of a producer. Settings that break exactly-once delivery are refused."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.errors import PolicyError
from fencepost.inputs import is_integer
from fencepost.producer.sequencer import COUNT_MAX, UNLIMITED, Limits

IN_FLIGHT_MAX = 5


@dataclass(frozen=True)
class Settings:
    """Settings of a producer. The defaults are the safest values.

    Attributes:
        acks: "all" (or -1). No other value is accepted.
        retries: Maximum number of retries. None: unlimited within `delivery_timeout_ms`.
        max_in_flight: Batches of a partition in flight, 1 to 5, because a log remembers five. Only 1 in cursor mode.
        delivery_timeout_ms: Time from `send` to the failure of a batch.
        request_timeout_ms: Time before a request is sent again.
        retry_backoff_ms: Wait before the first retry. It doubles with each retry.
        retry_backoff_max_ms: Maximum wait before a retry.
        linger_ms: How long a batch waits for rows of further calls. 0 sends each call's rows at once.
        batch_rows: Maximum rows per batch. A full batch does not wait.
        batch_bytes: Maximum bytes per batch, as Arrow columns.
        buffer_rows: Maximum pending rows.
        buffer_bytes: Maximum pending bytes, as Arrow columns.
        max_block_ms: How long `send` waits for room in the buffer.
        threads: Number of partitions written concurrently, for transports that block until done.
    """

    acks: str | int = "all"
    retries: int | None = None
    max_in_flight: int | None = None
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    linger_ms: int = 5
    batch_rows: int = 100_000
    batch_bytes: int = 16 << 20
    buffer_rows: int = 10_000_000
    buffer_bytes: int = 256 << 20
    max_block_ms: int = 60_000
    threads: int = 4

    def check(self, *, positions: bool = False) -> Settings:
        """Return the settings. Raises PolicyError that names the invalid setting. `positions`: cursor mode."""
        if self.acks not in ("all", -1, "-1"):
            raise PolicyError(
                f"acks={self.acks!r}: only 'all' is supported. Fewer replicas can lose a batch, and then the log "
                "refuses later batches as out of order"
            )
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not is_integer(value, least, most):
                raise PolicyError(f"{name}={value!r}: expected {least} to {most}")
        if self.retries is not None and not is_integer(self.retries, 1):
            raise PolicyError(
                f"retries={self.retries!r}: expected at least 1, or None for as many as fit into "
                "delivery_timeout_ms. Without retries, a batch fails if its answer is lost"
            )
        in_flight_max = 1 if positions else IN_FLIGHT_MAX
        if self.max_in_flight is not None and not is_integer(self.max_in_flight, 1, in_flight_max):
            reason = (
                "in cursor mode a log drops a batch that is retried after a later one"
                if positions
                else "a log remembers a producer's last five batches and refuses a retry of an older one"
            )
            raise PolicyError(f"max_in_flight={self.max_in_flight!r}: expected 1 to {in_flight_max}, because {reason}")
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise PolicyError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is less than request_timeout_ms="
                f"{self.request_timeout_ms}: a batch would fail before its first try is over"
            )
        if self.linger_ms >= self.delivery_timeout_ms:
            raise PolicyError(
                f"linger_ms={self.linger_ms} is not less than delivery_timeout_ms={self.delivery_timeout_ms}: a batch "
                "would fail before it is sent"
            )
        return self

    def limits(self, *, positions: bool = False) -> Limits:
        """Return the sequencer's limits."""
        return Limits(
            in_flight=self.max_in_flight or (1 if positions else IN_FLIGHT_MAX),
            retries=UNLIMITED if self.retries is None else self.retries,
            delivery_ms=self.delivery_timeout_ms,
            request_ms=self.request_timeout_ms,
            backoff_ms=self.retry_backoff_ms,
            backoff_max_ms=max(self.retry_backoff_ms, self.retry_backoff_max_ms),
        )


_RANGES = (
    ("delivery_timeout_ms", 1, 2**31 - 1),
    ("request_timeout_ms", 1, 2**31 - 1),
    ("retry_backoff_ms", 0, 2**31 - 1),
    ("retry_backoff_max_ms", 0, 2**31 - 1),
    ("linger_ms", 0, 2**31 - 1),
    ("batch_rows", 1, COUNT_MAX),
    ("batch_bytes", 1, 2**63 - 1),
    ("buffer_rows", 1, 2**63 - 1),
    ("buffer_bytes", 1, 2**63 - 1),
    ("max_block_ms", 0, 2**31 - 1),
    ("threads", 1, 256),
)
