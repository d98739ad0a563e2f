"""Requests that a client repeats: the contract of the Idempotency-Key header, in the application's database.

The table fencepost_requests has one row per (scope, key): the fingerprint, the owner and the end of its lease, the
results of finished steps, and the response of a complete request.

A claim commits before the work begins, so that a concurrent repeat finds it. The work, its response and the completion
commit together if the claim still has the same owner. The row is written last in that transaction: a slow or stopped
worker does not lock the key.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    and_,
    delete,
    select,
    tuple_,
    update,
)

from fencepost.errors import FencedError, KeyReusedError, PolicyError, RequestInFlightError
from fencepost.inputs import is_integer, is_text
from fencepost.sql.columns import INNODB, Int64, LongBinary, LongText, key_text
from fencepost.sql.database import IDLE_TIMEOUT_MS, LOCK_TIMEOUT_MS, Database, run
from fencepost.sql.leases import lease_max_ms
from fencepost.sql.migrations import Part
from fencepost.sql.outbound import derived_key
from fencepost.sql.upserts import insert_if_missing

TABLES = MetaData()
PART = Part("requests", 1, TABLES)
_Name = key_text(String(255), 1020)
REQUESTS = Table(
    "fencepost_requests",
    TABLES,
    Column("scope", _Name, primary_key=True),
    Column("key", _Name, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    # Random for each claim, so that no worker mistakes another worker's claim of an expired key for its own.
    Column("owner", String(32), nullable=False),
    Column("leased_until_ms", Int64, nullable=False),
    Column("expires_ms", Int64, nullable=False, index=True),
    Column("steps", LongText, nullable=False),
    # Null until the request is complete.
    Column("status", Integer),
    Column("headers", LongText),
    Column("body", LongBinary),
    **INNODB,
)
_PIECE = 1000
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True)
class Response:
    """A response as it is stored, and as it is sent to the first request and to every repeat."""

    status: int
    """The status code: 200 to 599."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values, in order."""
    body: bytes = b""

    @staticmethod
    def of_json(value: Any, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Response:
        """Return a response with a JSON body."""
        return Response(status, (("Content-Type", "application/json"), *headers), json.dumps(value).encode())


class IdempotentRequests:
    """Applies each request once, however often a client sends it.

    Args:
        engine: The database that the requests change: of SQLite, PostgreSQL or MariaDB.
        lease_ms: How long a claim is protected. Choose more than the duration of a request. Otherwise a repeat starts
            the work a second time, and only one of the two can commit by `step` and `complete`.
        keep_ms: How long a response is replayed after the completion, and how long an unfinished request can be
            resumed after its last claim, step or renewal. After that, the key counts as new.
        attempts: How often a call tries its transaction if the database undoes it.
        lock_timeout_ms, idle_timeout_ms: As in `ProducerRegistry`. Work that leaves its transaction idle for longer is
            undone.

    Raises:
        PolicyError: An unsupported engine or an invalid duration.
        SchemaError: Another version of this package created the table.
        StoreError: The database does not answer. Every call can raise this error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        lease_ms: int = 60_000,
        keep_ms: int = 24 * 3_600_000,
        attempts: int = 20,
        lock_timeout_ms: int | None = LOCK_TIMEOUT_MS,
        idle_timeout_ms: int | None = IDLE_TIMEOUT_MS,
    ) -> None:
        for name, value in (("lease_ms", lease_ms), ("keep_ms", keep_ms)):
            if not is_integer(value, 1, 2**53 - 1):
                raise PolicyError(f"{name}={value!r}: expected a number of milliseconds from 1 to 2^53 - 1")
        self.database = Database(
            engine, attempts=attempts, lock_timeout_ms=lock_timeout_ms, idle_timeout_ms=idle_timeout_ms
        )
        self.lease_ms, self.keep_ms = lease_ms, keep_ms
        self.database.create_tables(PART)

    def claim(self, scope: str, key: str, request: bytes) -> RequestClaim | Response:
        """Claim a request for this worker, or return the stored response of a complete request.

        The claim is committed when this returns.

        Args:
            scope: The sender. Equal keys of different scopes are independent.
            key: The idempotency key.
            request: The bytes of the request (method, path, body). A hash of them is stored.

        Raises:
            RequestInFlightError: Another worker has the claim, and its lease is valid. Over HTTP: 409.
            KeyReusedError: The key was used for another request. Over HTTP: 422.
            PolicyError: A scope or key is not a text of 1 to 255 characters.
        """
        for name, value in (("scope", scope), ("key", key)):
            if not is_text(value) or not 0 < len(value) <= 255 or "\0" in value:
                raise PolicyError(f"{name}={value!r}: expected a text of 1 to 255 characters of UTF-8 without NUL")
        fingerprint, owner = hashlib.sha256(request).hexdigest(), uuid.uuid4().hex

        def work(connection: Connection) -> RequestClaim | Response:
            now = self.database.now_ms(connection)
            fresh = {"fingerprint": fingerprint, "steps": "{}", "status": None, "headers": None, "body": None}
            mine = {"owner": owner, "leased_until_ms": now + self.lease_ms, "expires_ms": now + self.keep_ms}
            row = {"scope": scope, "key": key, **fresh, **mine}
            if insert_if_missing(connection, REQUESTS, row):
                return RequestClaim(self, scope, key, owner, {})
            found = connection.execute(select(REQUESTS).where(_has_key(scope, key)).with_for_update()).one_or_none()
            if found is None:  # expired and deleted in the meantime
                return work(connection)
            # Read the clock again, because the query may have waited for the row.
            now = self.database.now_ms(connection)
            if max(found.expires_ms, found.leased_until_ms) <= now:
                connection.execute(update(REQUESTS).where(_has_key(scope, key)).values(**fresh, **mine))
                return RequestClaim(self, scope, key, owner, {})
            if found.fingerprint != fingerprint:
                raise KeyReusedError(f"key {key!r} was used for another request: send this one with a new key")
            if found.status is not None:
                return _response(found)
            is_leased = now < found.leased_until_ms <= now + lease_max_ms(self.lease_ms)
            if found.owner != owner and is_leased:
                raise RequestInFlightError(
                    f"key {key!r}: the same request is being processed: repeat it later",
                    lease_left_ms=found.leased_until_ms - now,
                )
            connection.execute(update(REQUESTS).where(_has_key(scope, key)).values(mine))
            return RequestClaim(self, scope, key, owner, json.loads(found.steps))

        return self.database.settled(work)

    def expire(self) -> int:
        """Delete expired requests, 1,000 per transaction. Returns their number. Safe at any time."""
        deleted = 0
        while True:
            count = self.database.transaction(self._expire_piece)
            deleted += count
            if count < _PIECE:
                return deleted

    def _expire_piece(self, connection: Connection) -> int:
        now = self.database.now_ms(connection)
        is_over = and_(REQUESTS.c.expires_ms <= now, REQUESTS.c.leased_until_ms <= now)
        names = select(REQUESTS.c.scope, REQUESTS.c.key).where(is_over).limit(_PIECE)
        found = connection.execute(names.with_for_update(skip_locked=True)).all()
        if found:
            keys = tuple_(REQUESTS.c.scope, REQUESTS.c.key).in_([tuple(it) for it in found])
            connection.execute(delete(REQUESTS).where(keys))
        return len(found)


class RequestClaim:
    """A request that this worker has claimed. Created by `IdempotentRequests.claim`. Not thread-safe."""

    def __init__(self, requests: IdempotentRequests, scope: str, key: str, owner: str, steps: dict[str, Any]) -> None:
        self.scope = scope
        """The sender."""
        self.key = key
        """The idempotency key, unique within the scope."""
        self.response: Response | None = None
        """The committed response. None before `complete`."""
        self.is_lost = False
        """Whether a call found that this worker has lost the claim."""
        self._requests, self._steps = requests, steps
        self._is_mine = and_(_has_key(scope, key), REQUESTS.c.owner == owner)

    def __repr__(self) -> str:
        return f"<RequestClaim {self.scope!r} {self.key!r}: steps {list(self._steps)}>"

    def step(self, name: str, work: Callable[[Connection], Any]) -> Any:
        """Run `work(connection)` and commit its result as a recovery point. Returns the result.

        If this or an earlier worker has committed the step, its result is returned and `work` does not run. Results are
        JSON values. If `work` runs, the lease is renewed. `work` may run several times until it commits, and must not
        commit itself.

        Raises:
            FencedError: The lease expired and another worker has the claim. Nothing of the step is in the database.
            PolicyError: The name is not a text, or the result is not a JSON value.
        """
        if not is_text(name) or not name:
            raise PolicyError(f"name={name!r}: expected a non-empty text that names the step")

        def settled(connection: Connection) -> dict[str, Any]:
            steps: dict[str, Any] = json.loads(self._own_row(connection).steps)
            if name not in steps:
                steps[name] = run(work, connection)
                self._save(connection, steps=_json_of(name, steps))
            return steps

        if name not in self._steps:
            self._steps = json.loads(json.dumps(self._requests.database.settled(settled)))
        return self._steps[name]

    def complete(self, work: Callable[[Connection], Response]) -> Response:
        """Commit the writes of `work(connection)`, the response that it returns, and the completion, together.

        `work` may run several times until it commits, and must not commit itself. Later calls return the same response.

        Raises:
            FencedError: The lease expired and another worker has the claim. Nothing that `work` wrote is in the
                database.
            PolicyError: `work` did not return a `Response`, or returned one that HTTP cannot express.
        """

        def settled(connection: Connection) -> Response:
            found = self._own_row(connection)
            if found.status is not None:
                return _response(found)
            response = _checked(run(work, connection))
            headers = json.dumps(response.headers)
            self._save(connection, status=response.status, headers=headers, body=response.body, leased_until_ms=0)
            return response

        if self.response is None:
            self.response = self._requests.database.settled(settled)
        return self.response

    def renew(self) -> None:
        """Renew the lease, for long work outside of transactions.

        Raises:
            FencedError: The lease expired and another worker has the claim.
        """
        self._requests.database.settled(lambda connection: self._save(connection))

    def release(self) -> None:
        """Release the claim: the next repeat resumes immediately, after the committed steps.

        Has no effect if another worker has the claim.
        """
        given_up = update(REQUESTS).where(self._is_mine).values(owner="", leased_until_ms=0)
        self._requests.database.settled(lambda connection: connection.execute(given_up))

    def derived_key(self, purpose: str) -> str:
        """Return the key for a call to another service for this request, the same in each try. See `derived_key`."""
        return derived_key((self.scope, self.key), purpose)

    def _own_row(self, connection: Connection) -> Row[Any]:
        """Return the row, or raise FencedError if another worker owns it. Takes no lock: `_save` checks again."""
        found = connection.execute(select(REQUESTS).where(self._is_mine)).one_or_none()
        if found is None:
            raise self._fenced()
        return found

    def _save(self, connection: Connection, **values: Any) -> None:
        clock = self._requests.database.clock_ms
        times = {"leased_until_ms": clock + self._requests.lease_ms, "expires_ms": clock + self._requests.keep_ms}
        if connection.execute(update(REQUESTS).where(self._is_mine).values({**times, **values})).rowcount != 1:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        self.is_lost = True
        return FencedError(
            f"key {self.key!r}: this worker no longer has the claim, which expired or was released: stop. Nothing of "
            "this call was committed"
        )


def _has_key(scope: str, key: str) -> Any:
    return and_(REQUESTS.c.scope == scope, REQUESTS.c.key == key)


def _response(row: Row[Any]) -> Response:
    return Response(row.status, tuple((name, value) for name, value in json.loads(row.headers)), bytes(row.body))


def _json_of(name: str, steps: dict[str, Any]) -> str:
    try:
        return json.dumps(steps, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"step {name!r}: its result is not a JSON value ({error}); nothing was applied") from error


def _checked(response: object) -> Response:
    """Return the response. Raises PolicyError if a server could not send it: checked before the commit."""
    if not isinstance(response, Response):
        raise PolicyError(f"the work returned a {type(response).__name__}, not a Response: nothing was applied")
    status, body = response.status, response.body
    if not is_integer(status, 200, 599):
        raise PolicyError(f"status={status!r}: expected a code from 200 to 599; nothing was applied")
    if not isinstance(body, bytes):
        raise PolicyError(f"body: expected bytes, not {type(body).__name__}; nothing was applied")
    for name, value in response.headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise PolicyError(f"header {name!r}: {value!r} is not a valid HTTP field; nothing was applied")
    return response
