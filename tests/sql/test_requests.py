"""IdempotentRequests: each request has one effect and one response, whatever dies, however often it is sent."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import fencepost as fp
import pytest
import sqlalchemy
from fencepost.sql import IdempotentRequests, RequestClaim, Response, derived_key
from sqlalchemy import Connection, Engine, event, text
from support.connections import lose_the_connection
from support.databases import execute
from support.processes import fork_server
from support.threads import in_threads

PROCESSES = fork_server("fencepost.sql", "sqlalchemy.dialects.postgresql.psycopg", "psycopg")
SCOPE, KEY, BODY = "account-7", "k", b"POST /orders"
CREATED = Response(201, (("Content-Type", "text/plain"), ("X-Order", "\xe9"), ("X-Order", "2")), b"order \x00\xff")


@pytest.fixture
def requests(engine: Engine) -> IdempotentRequests:
    execute(engine, "CREATE TABLE effects (name VARCHAR(20))")
    return IdempotentRequests(engine)


def insert(name: str, returned: Any = None) -> Callable[[Connection], Any]:
    def work(connection: Connection) -> Any:
        connection.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})
        return returned

    return work


def effects(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(text("SELECT name FROM effects")).scalars())


def claimed(requests: IdempotentRequests, key: str = KEY) -> RequestClaim:
    claim = requests.claim(SCOPE, key, BODY)
    assert isinstance(claim, RequestClaim), claim
    return claim


def let_pass(engine: Engine, column: str) -> None:
    """As if the time that the column names had passed."""
    set_time(engine, column, 1)


def set_time(engine: Engine, column: str, time_ms: int) -> None:
    execute(engine, f"UPDATE fencepost_requests SET {column} = {time_ms}")


def test_a_response_is_replayed_byte_for_byte(requests: IdempotentRequests, engine: Engine) -> None:
    claim = claimed(requests)
    assert claim.complete(insert("order", CREATED)) == CREATED
    assert claim.complete(insert("again", CREATED)) == CREATED
    for _ in range(2):
        assert IdempotentRequests(engine).claim(SCOPE, KEY, BODY) == CREATED
    assert effects(engine) == ["order"]


def test_keys_belong_to_callers(requests: IdempotentRequests) -> None:
    claimed(requests).complete(lambda _: CREATED)
    other = requests.claim("account-8", KEY, b"another request")
    assert isinstance(other, RequestClaim)
    keys = {other.derived_key("charge"), claimed(requests, "k2").derived_key("charge"), other.derived_key("mail")}
    assert len(keys) == 3
    assert derived_key(("account-8", KEY), "charge") in keys


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_key_identifies_one_request(requests: IdempotentRequests, engine: Engine, is_complete: bool) -> None:
    claim = claimed(requests)
    if is_complete:
        claim.complete(lambda _: CREATED)
    with pytest.raises(fp.KeyReusedError, match="'k' was used for another"):
        requests.claim(SCOPE, KEY, b"POST /orders?")
    let_pass(engine, "leased_until_ms")
    with pytest.raises(fp.KeyReusedError):
        requests.claim(SCOPE, KEY, b"")


def test_a_request_in_flight_is_not_begun_again(requests: IdempotentRequests, engine: Engine) -> None:
    claim = claimed(requests)
    with pytest.raises(fp.RequestInFlightError) as raised:
        requests.claim(SCOPE, KEY, BODY)
    assert 0 < (raised.value.lease_left_ms or 0) <= requests.lease_ms
    let_pass(engine, "leased_until_ms")
    claim.renew()
    with pytest.raises(fp.RequestInFlightError):
        requests.claim(SCOPE, KEY, BODY)
    claim.release()
    claimed(requests)


def test_a_lease_of_a_clock_that_was_set_back_does_not_block_a_request(
    requests: IdempotentRequests, engine: Engine
) -> None:
    claimed(requests)
    set_time(engine, "leased_until_ms", int(time.time() + 10 * 86_400) * 1000)
    assert claimed(requests).complete(insert("order", CREATED)) == CREATED
    assert effects(engine) == ["order"]


@pytest.mark.parametrize("call", ["step", "complete", "renew"])
def test_a_slow_worker_whose_lease_was_taken_commits_nothing(
    requests: IdempotentRequests, engine: Engine, new_engine: Callable[[], Engine], call: str
) -> None:
    """On PostgreSQL the claim is taken over while the slow worker is in its transaction; SQLite has one writer."""
    slow = claimed(requests)
    slow.step("first", insert("first"))
    let_pass(engine, "leased_until_ms")
    taken: list[RequestClaim] = []

    def take() -> None:
        taken.append(claimed(IdempotentRequests(new_engine())))

    def work(connection: Connection) -> Any:
        insert("slow")(connection)
        if engine.dialect.name != "sqlite":
            take()
        return CREATED if call == "complete" else None

    if engine.dialect.name == "sqlite" or call == "renew":
        take()
    with pytest.raises(fp.FencedError, match="no longer has the"):
        slow.renew() if call == "renew" else (slow.complete(work) if call == "complete" else slow.step("slow", work))
    assert slow.is_lost
    slow.release()
    with pytest.raises(fp.RequestInFlightError):
        requests.claim(SCOPE, KEY, BODY)
    assert taken[0].step("first", insert("first")) is None
    assert taken[0].complete(insert("order", CREATED)) == CREATED
    assert effects(engine) == ["first", "order"]
    with pytest.raises(fp.FencedError):
        slow.complete(insert("slow", CREATED))
    assert requests.claim(SCOPE, KEY, BODY) == CREATED


def test_a_late_worker_that_was_not_replaced_completes(requests: IdempotentRequests, engine: Engine) -> None:
    claim = claimed(requests)
    let_pass(engine, "leased_until_ms")
    assert claim.complete(insert("order", CREATED)) == CREATED
    assert effects(engine) == ["order"]


def test_steps_are_resumed_with_their_results(requests: IdempotentRequests, engine: Engine) -> None:
    claim = claimed(requests)
    charge = {"charge": "ch_1", "cents": [1, 2.5, None, True], "ü\0": {}}
    assert claim.step("charge", insert("charge", charge)) == charge
    assert claim.step("pair", insert("pair", (1, 2))) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        claim.step("mail", lambda connection: (insert("mail")(connection), 1 / 0))
    claim.release()
    again = claimed(IdempotentRequests(engine))
    assert again.step("charge", insert("charge")) == charge
    assert again.step("pair", insert("pair")) == [1, 2]
    assert again.step("mail", insert("mail", "sent")) == "sent"
    again.complete(insert("order", CREATED))
    assert effects(engine) == ["charge", "mail", "order", "pair"]


@pytest.mark.parametrize("after_commit", [True, False])
@pytest.mark.parametrize("call", ["claim", "step", "complete"])
def test_a_lost_commit_is_settled(
    requests: IdempotentRequests, engine: Engine, monkeypatch: pytest.MonkeyPatch, after_commit: bool, call: str
) -> None:
    """Its outcome is read from the row, so the caller does not learn of it, and nothing is done twice."""
    claim = claimed(requests) if call != "claim" else None
    seen = lose_the_connection(engine, monkeypatch, after_commit=after_commit)
    claim = claim or claimed(requests)
    if call == "step":
        assert claim.step("order", insert("order", 3)) == 3
    assert claim.complete(insert("order", CREATED) if call != "step" else lambda _: CREATED) == CREATED
    assert len(seen) >= 2
    assert effects(engine) == ["order"]
    assert requests.claim(SCOPE, KEY, BODY) == CREATED


def test_concurrent_repeats_have_one_effect(requests: IdempotentRequests, new_engine: Callable[[], Engine]) -> None:
    def send(mine: IdempotentRequests) -> Response:
        while True:
            try:
                claim = mine.claim(SCOPE, KEY, BODY)
            except fp.RequestInFlightError:
                continue
            return claim if isinstance(claim, Response) else claim.complete(insert("order", CREATED))

    assert in_threads([partial(send, IdempotentRequests(new_engine())) for _ in range(6)]) == [CREATED] * 6
    assert effects(requests.database.engine) == ["order"]


def test_expired_requests_are_forgotten(requests: IdempotentRequests, engine: Engine) -> None:
    for key in ("complete", "abandoned", "in flight"):
        claim = claimed(requests, key)
        claim.step("first", insert("first"))
        if key == "complete":
            claim.complete(lambda _: CREATED)
        if key == "abandoned":
            claim.release()
    assert requests.expire() == 0
    let_pass(engine, "expires_ms")
    again = requests.claim(SCOPE, "complete", b"another request")
    assert isinstance(again, RequestClaim), "an expired key is new before it is deleted, too"
    assert again.step("first", lambda _: "new") == "new"
    assert requests.expire() == 1
    with pytest.raises(fp.RequestInFlightError):
        claimed(requests, "in flight")
    assert claimed(requests, "abandoned").step("first", lambda _: "new") == "new"


def test_a_zombie_does_not_get_the_claim_of_an_expired_key(requests: IdempotentRequests, engine: Engine) -> None:
    zombie = claimed(requests)
    for column in ("leased_until_ms", "expires_ms"):
        let_pass(engine, column)
    assert requests.expire() == 1
    with pytest.raises(fp.FencedError):
        zombie.complete(insert("zombie", CREATED))
    claimed(requests)
    with pytest.raises(fp.FencedError):
        zombie.complete(insert("zombie", CREATED))
    assert effects(engine) == []


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda _: "text", "str, not a Response"),
        (lambda _: Response(True), "status=True: expected a code from 200 to 599"),
        (lambda _: Response(101), "status=101"),
        (lambda _: Response(200, body="text"), "body: .* bytes, not str"),
        (lambda _: Response(200, (("a b", "c"),)), "header 'a b': 'c' is not a valid HTTP field"),
        (lambda _: Response(200, (("a", "b\r\nc: d"),)), "is not a valid HTTP field"),
        (lambda _: Response(200, (("a", "€"),)), "is not a valid HTTP field"),
        (lambda _: (it for it in ()), "returned a generator"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_response_that_cannot_be_sent(
    requests: IdempotentRequests, engine: Engine, work: Callable[[Connection], Any], message: str
) -> None:
    claim = claimed(requests)
    with pytest.raises(fp.PolicyError, match=message):
        claim.complete(lambda connection: (insert("order")(connection), work(connection))[1])
    assert effects(engine) == []
    assert claim.complete(lambda _: CREATED) == CREATED


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_invalid_arguments_of_requests_are_refused(requests: IdempotentRequests, engine: Engine) -> None:
    for scope, key, name in ((7, "k", "scope"), ("s", "", "key"), ("s", "k" * 256, "key"), ("s", "\0", "key")):
        with pytest.raises(fp.PolicyError, match=f"{name}=.*1 to 255 characters"):
            requests.claim(scope, key, BODY)  # type: ignore[arg-type]
    for options in ({"lease_ms": 0}, {"keep_ms": 2**53}, {"lease_ms": 1.5}):
        with pytest.raises(fp.PolicyError, match="milliseconds from 1 to"):
            IdempotentRequests(engine, **options)  # type: ignore[arg-type]
    claim = claimed(requests)
    with pytest.raises(fp.PolicyError, match="name=''"):
        claim.step("", insert("step"))
    for result in (b"", float("nan"), {1, 2}):
        with pytest.raises(fp.PolicyError, match=r"step 'a': .* is not a JSON value"):
            claim.step("a", insert("a", result))
    assert effects(engine) == []


# A worker that is killed


WHERE = ["after the claim", "in a step", "after a step", "in the work", "before the commit", "after the commit"]


def work_until(url: str, where: str, pipe: Pipe) -> None:
    """A worker that stops at one place and waits there to be killed."""
    engine = sqlalchemy.create_engine(url)

    def stop_at(here: str) -> None:
        if here == where:
            pipe.send(here)
            pipe.recv()

    def order(connection: Connection) -> Response:
        insert("order")(connection)
        stop_at("in the work")
        if where == "before the commit":
            event.listen(engine, "commit", lambda _: stop_at("before the commit"))
        return CREATED

    claim = claimed(IdempotentRequests(engine))
    stop_at("after the claim")
    claim.step("charge", lambda connection: (insert("charge")(connection), stop_at("in a step"), "ch_1")[2])
    stop_at("after a step")
    claim.complete(order)
    stop_at("after the commit")


@pytest.mark.parametrize("where", WHERE)
def test_a_worker_that_is_killed(requests: IdempotentRequests, engine: Engine, database_url: str, where: str) -> None:
    ours, theirs = PROCESSES.Pipe()
    worker = PROCESSES.Process(target=work_until, args=(database_url, where, theirs))
    worker.start()
    theirs.close()
    assert ours.recv() == where
    worker.kill()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    if where != "after the commit":
        with pytest.raises(fp.RequestInFlightError):
            requests.claim(SCOPE, KEY, BODY)
        let_pass(engine, "leased_until_ms")
        again = claimed(requests)
        assert again.step("charge", insert("charge", "ch_2")) == ("ch_2" if WHERE.index(where) < 2 else "ch_1")
        again.complete(insert("order", CREATED))
    assert requests.claim(SCOPE, KEY, BODY) == CREATED
    assert effects(engine) == ["charge", "order"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_work_that_leaves_its_transaction_idle_is_undone(engine: Engine) -> None:
    """A worker that is stopped in its work loses its locks after this time."""
    requests = IdempotentRequests(engine, idle_timeout_ms=200)
    claim = requests.claim("me", "key", b"body")
    assert isinstance(claim, RequestClaim)

    def sleeps(_: Connection) -> Response:
        time.sleep(1)
        return Response(200)

    with pytest.raises(fp.StoreError, match="idle for longer than idle_timeout_ms"):
        claim.complete(sleeps)
    assert claim.complete(lambda _: Response(201)).status == 201
