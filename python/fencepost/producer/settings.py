"""What a producer can be told, and what is refused because it contradicts the promise to write each row once."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.errors import PolicyError
from fencepost.producer.sequencer import COUNT_MAX, UNLIMITED, Limits

IN_FLIGHT_MAX = 5


@dataclass(frozen=True)
class Settings:
    """As safe as it can be unless told otherwise. Times are in milliseconds.

    `acks`: "all" (or -1), nothing else. `retries`: None for as many as fit into `delivery_timeout_ms`.
    `max_in_flight`: batches of a partition that are sent and not acknowledged, 1 to 5; a log remembers no more.
    `delivery_timeout_ms`: from `send` to the failure of a batch; `request_timeout_ms`: from sending it to sending it
    again. `retry_backoff_ms` before the first retry, doubled up to `retry_backoff_max_ms`. `linger_ms`: how long a
    batch waits for the rows of further calls; 0 sends the rows of each call at once, by themselves. `batch_rows`,
    `batch_bytes`: of one batch at most; a full one does not wait. `buffer_rows`, `buffer_bytes`: without an outcome at
    most; `send` waits up to `max_block_ms` for room. Bytes are those of the Arrow columns.
    `threads`: partitions that are written to at the same time, where the transport answers only when it is done.
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
        """Itself. Raises PolicyError that names the setting and why it cannot be. `positions`: numbers of a source."""
        if self.acks not in ("all", -1, "-1"):
            raise PolicyError(
                f"acks={self.acks!r}: only 'all'. What fewer replicas acknowledge can be lost with them, and a log "
                "that has lost a batch finds the ones behind it out of order"
            )
        if self.retries is not None and not self.retries >= 1:
            raise PolicyError(
                f"retries={self.retries}: at least 1, or None for as many as fit into delivery_timeout_ms. Without "
                "retries a lost answer is a lost batch, and numbers are of no use"
            )
        in_flight_max = 1 if positions else IN_FLIGHT_MAX
        if self.max_in_flight is not None and not 1 <= self.max_in_flight <= in_flight_max:
            reason = (
                "a log that takes any higher position would drop one that is retried behind it as old"
                if positions
                else "a log remembers the last five batches of a producer; a retry of an older one is out of order"
            )
            raise PolicyError(f"max_in_flight={self.max_in_flight}: 1 to {in_flight_max}, for {reason}")
        if self.delivery_timeout_ms < self.request_timeout_ms:
            raise PolicyError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is less than request_timeout_ms="
                f"{self.request_timeout_ms}: a batch would fail before its first try is over"
            )
        if isinstance(self.linger_ms, int) and self.linger_ms >= self.delivery_timeout_ms:
            raise PolicyError(
                f"linger_ms={self.linger_ms} is not less than delivery_timeout_ms={self.delivery_timeout_ms}: a batch "
                "would fail before it is sent"
            )
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise PolicyError(f"{name}={value!r}: {least} to {most}")
        return self

    def limits(self, *, positions: bool = False) -> Limits:
        """The same as the sequencer has it."""
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
