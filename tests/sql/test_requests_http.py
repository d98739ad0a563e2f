"""The Idempotency-Key header before applications of Flask, Starlette and FastAPI: the same requests and responses."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections.abc import Callable
from io import BytesIO
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import fastapi
import fencepost as fp
import flask
import httpx
import pytest
import sqlalchemy
from fencepost.sql import AsgiIdempotency, IdempotentRequests, RequestClaim, Response, WsgiIdempotency
from fencepost.sql.http import CLAIM
from sqlalchemy import Connection, Engine, text
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from support.databases import execute
from support.processes import fork_server
from support.waiting import wait_until
from werkzeug.serving import make_server

PROCESSES = fork_server("fencepost.sql", "sqlalchemy.dialects.postgresql.psycopg", "psycopg")
BODY_BYTES_MAX = 1000
Views = dict[str, Callable[[RequestClaim | None], tuple[int, str]]]


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def title(self) -> str:
        assert ("content-type", "application/problem+json") in self.headers
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        return str(problem["title"])


class Client(Protocol):
    def __call__(
        self, path: str, key: str | None = None, body: bytes = b"", *, method: str = "POST", account: str = "7"
    ) -> Answer: ...


def flask_client(requests: IdempotentRequests, views: Views) -> Client:
    app = flask.Flask("shop")

    @app.route("/<view>", methods=["GET", "POST", "PUT"])
    def handle(view: str) -> tuple[str, int]:
        status, body = views[view](flask.request.environ.get(CLAIM))
        return body + flask.request.get_data(as_text=True), status

    guarded = WsgiIdempotency(
        app.wsgi_app, requests, caller=lambda environ: environ["HTTP_ACCOUNT"], body_bytes_max=BODY_BYTES_MAX
    )
    app.wsgi_app = guarded  # type: ignore[method-assign]
    app.logger.disabled = True

    def send(
        path: str, key: str | None = None, body: bytes = b"", *, method: str = "POST", account: str = "7"
    ) -> Answer:
        headers = {"Account": account} | ({} if key is None else {"Idempotency-Key": key})
        answer = app.test_client().open(path, method=method, headers=headers, data=body)
        return Answer(answer.status_code, [(name.lower(), value) for name, value in answer.headers], answer.data)

    return send


def starlette_client(requests: IdempotentRequests, views: Views) -> Client:
    async def handle(request: Request) -> StarletteResponse:
        claim = request.scope.get(CLAIM)
        status, body = await run_in_threadpool(views[request.path_params["view"]], claim)
        return PlainTextResponse(body + (await request.body()).decode(), status)

    return _asgi_client(Starlette(routes=[Route("/{view}", handle, methods=["GET", "POST", "PUT"])]), requests)


def fastapi_client(requests: IdempotentRequests, views: Views) -> Client:
    async def body_of(request: Request) -> bytes:
        return await request.body()

    def handle(request: Request, body: bytes = fastapi.Depends(body_of)) -> StarletteResponse:
        status, answer = views[request.path_params["view"]](request.scope.get(CLAIM))
        return PlainTextResponse(answer + body.decode(), status)

    app = fastapi.FastAPI()
    app.add_api_route("/{view}", handle, methods=["GET", "POST", "PUT"])
    return _asgi_client(app, requests)


def _asgi_client(app: Starlette, requests: IdempotentRequests) -> Client:
    guarded = AsgiIdempotency(
        app,
        requests,
        caller=lambda scope: dict(scope["headers"])[b"account"].decode(),
        body_bytes_max=BODY_BYTES_MAX,
    )

    async def ask(method: str, path: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        transport = httpx.ASGITransport(app=guarded, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.request(method, path, headers=headers, content=body)

    def send(
        path: str, key: str | None = None, body: bytes = b"", *, method: str = "POST", account: str = "7"
    ) -> Answer:
        headers = {"Account": account} | ({} if key is None else {"Idempotency-Key": key})
        answer = asyncio.run(ask(method, path, headers, body))
        return Answer(answer.status_code, answer.headers.multi_items(), answer.content)

    return send


class Shop:
    """An application with views that are called by their names, and its database."""

    def __init__(self, engine: Engine, make: Callable[[IdempotentRequests, Views], Client]) -> None:
        self.engine = engine
        execute(engine, "CREATE TABLE effects (name VARCHAR(20))")
        self.requests = IdempotentRequests(engine)
        self.calls: list[str] = []
        views = {"order": self._order, "plain": self._plain, "broken": self._broken, "slow": self._slow}
        self.send = make(self.requests, {name: self._counted(name, view) for name, view in views.items()})
        self.while_slow: Callable[[], object] = lambda: None

    def _counted(self, name: str, view: Callable[[Any], tuple[int, str]]) -> Callable[[Any], tuple[int, str]]:
        return lambda claim: (self.calls.append(name), view(claim))[1]

    def _insert(self, connection: Connection) -> Response:
        connection.execute(text("INSERT INTO effects VALUES ('order')"))
        number = connection.execute(text("SELECT count(*) FROM effects")).scalar_one()
        return Response(
            201, (("Content-Type", "a/b"), ("X-Order", "é"), ("X-Order", "2")), b"\x00\xff" + b"%d" % number
        )

    def _order(self, claim: RequestClaim) -> tuple[int, str]:
        claim.complete(self._insert)
        return 500, "the committed response is sent, not this one"

    def _plain(self, claim: RequestClaim | None) -> tuple[int, str]:
        return 210 + len(self.calls), "" if claim is None else "claimed "

    def _broken(self, claim: RequestClaim) -> tuple[int, str]:
        claim.step("charge", lambda connection: (self._insert(connection), None)[1])
        if self.calls.count("broken") == 1:
            raise ConnectionError("the next service is away")
        return {2: (503, "away"), 3: (429, "too often")}.get(self.calls.count("broken")) or self._order(claim)

    def _slow(self, claim: RequestClaim) -> tuple[int, str]:
        self.while_slow()
        return self._order(claim)

    def effects(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM effects")).scalar_one())


@pytest.fixture(params=[flask_client, starlette_client, fastapi_client], ids=["wsgi", "asgi", "fastapi"])
def shop(engine: Engine, request: pytest.FixtureRequest) -> Shop:
    return Shop(engine, request.param)


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_a_repeat_gets_the_same_response(shop: Shop) -> None:
    first = shop.send("/order", '"k"', b"three")
    assert (first.status, first.body) == (201, b"\x00\xff1")
    assert [it for it in first.headers if it[0] in ("content-type", "x-order")] == [
        ("content-type", "a/b"), ("x-order", "é"), ("x-order", "2")
    ]  # fmt: skip
    for key in ('"k"', "k"):
        assert shop.send("/order", key, b"three") == first
    assert (shop.effects(), shop.calls) == (1, ["order"])
    assert shop.send("/order", "k", b"three", account="8").body == b"\x00\xff2", "each caller has keys of its own"


@on_sqlite
def test_what_is_refused(shop: Shop) -> None:
    assert shop.send("/order", "k", b"one").status == 201
    for other in (
        shop.send("/order", "k", b"two"),
        shop.send("/plain", "k", b"one"),
        shop.send("/order?a", "k", b"one"),
    ):
        assert other.status == 422
        assert other.title.startswith("Idempotency-Key is already used")
    missing = shop.send("/order", body=b"one")
    assert (missing.status, missing.title) == (400, "Idempotency-Key is missing")
    for key in ("", '""', '"', 'a"b', "a b", "a, b", '"a\\b"', "k" * 256, '"k";p=1'):
        refused = shop.send("/order", key, b"one")
        assert (refused.status, refused.title) == (400, "Idempotency-Key is malformed"), key
    large = shop.send("/order", "large", b"-" * (BODY_BYTES_MAX + 1))
    assert large.status == 413
    assert "too large" in large.title
    assert (shop.effects(), shop.calls) == (1, ["order"])


@on_sqlite
def test_methods_are_a_list(engine: Engine) -> None:
    with pytest.raises(fp.PolicyError, match=r"required='POST': .*list of methods"):
        WsgiIdempotency(lambda *_: [], IdempotentRequests(engine), caller=lambda _: "7", required="POST")


@on_sqlite
def test_requests_without_idempotency_pass_through(shop: Shop) -> None:
    assert shop.send("/plain", "k", method="GET") == shop.send("/plain", "k", method="GET")._replace(status=211)
    assert shop.send("/plain", body=b"x", method="PUT").body == b"x"
    first = shop.send("/plain", "k", b"x" * BODY_BYTES_MAX, method="PUT")
    assert (first.status, first.body) == (214, b"claimed " + b"x" * BODY_BYTES_MAX)
    assert shop.send("/plain", "k", b"x" * BODY_BYTES_MAX, method="PUT") == first, "where it is given, it counts"
    assert shop.calls == ["plain"] * 4


def test_a_failed_request_continues_after_its_last_step(shop: Shop) -> None:
    assert [shop.send("/broken", "k").status for _ in range(5)] == [500, 503, 429, 201, 201]
    assert (shop.effects(), len(shop.calls)) == (2, 4)


def test_a_repeat_while_the_first_is_in_flight(shop: Shop) -> None:
    answers: list[Answer] = []
    shop.while_slow = lambda: answers.append(shop.send("/slow", "k"))
    assert shop.send("/slow", "k").status == 201
    assert answers[0].status == 409
    assert answers[0].title.startswith("A request is outstanding")
    assert ("retry-after", "1") in answers[0].headers
    assert shop.effects() == 1


def test_a_replaced_worker_raises_an_error(shop: Shop) -> None:
    answers: list[Answer] = []

    def replace() -> None:
        shop.while_slow = lambda: None
        with shop.engine.begin() as connection:
            connection.execute(text("UPDATE fencepost_requests SET leased_until_ms = 1"))
        answers.append(shop.send("/slow", "k"))

    shop.while_slow = replace
    late = shop.send("/slow", "k")
    assert late.status == 409
    assert late.title.startswith("Another worker")
    assert answers[0].status == 201
    assert shop.send("/slow", "k") == answers[0]
    assert shop.effects() == 1


@on_sqlite
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"CONTENT_LENGTH": "9"}, 400),
        ({"CONTENT_LENGTH": "-1"}, 400),
        ({"CONTENT_LENGTH": str(BODY_BYTES_MAX + 1)}, 413),
        ({"HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"CONTENT_LENGTH": "3"}, 200),
        ({}, 200),
        ({"wsgi.input_terminated": True}, 200),
    ],
)
def test_bodies_of_wsgi(engine: Engine, given: dict[str, Any], status: int) -> None:
    """One that was cut off would be stored as another request under its key."""
    seen: list[Any] = []

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])(b"written ")
        return [environ["wsgi.input"].read()]

    guarded = WsgiIdempotency(app, IdempotentRequests(engine), caller=lambda _: "7", body_bytes_max=BODY_BYTES_MAX)
    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "wsgi.input": BytesIO(b"one two"), **given}
    body = b"".join(guarded(environ, lambda *started: seen.append(started)))
    assert int(seen[0][0][:3]) == status
    if status == 200:
        read = {"CONTENT_LENGTH": b"one", "wsgi.input_terminated": b"one two"}
        assert body == b"written " + b"".join(read[name] for name in given)


@on_sqlite
def test_a_wsgi_application_that_lets_errors_through(engine: Engine) -> None:
    requests, started = IdempotentRequests(engine), []

    def app(environ: dict[str, Any], _: Callable[..., Any]) -> list[bytes]:
        execute(engine, "UPDATE fencepost_requests SET owner = 'another worker'")
        environ[CLAIM].renew()
        raise AssertionError("the claim was lost")

    guarded = WsgiIdempotency(app, requests, caller=lambda _: "7")
    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k"}
    body = b"".join(guarded(environ, lambda *given: started.append(given)))
    assert started[0][0] == "409 Conflict"
    assert json.loads(body)["title"] == "Another worker has taken the request over"


@on_sqlite
def test_a_client_that_goes_away_leaves_no_claim(engine: Engine) -> None:
    requests = IdempotentRequests(engine)

    async def disconnected() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def never(*_: Any) -> None:
        raise AssertionError("nothing is called, nothing is sent")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"Idempotency-Key", b"k")]}
    asyncio.run(AsgiIdempotency(never, requests, caller=lambda _: "7")(scope, disconnected, never))
    assert isinstance(requests.claim("7", "k", b""), RequestClaim)


@on_sqlite
def test_a_response_without_headers(engine: Engine) -> None:
    """ASGI makes them optional. Such a response was an error 500, and its request was applied again."""
    sent: list[Any] = []

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    requests = IdempotentRequests(engine)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
    for _ in range(2):
        asyncio.run(AsgiIdempotency(app, requests, caller=lambda _: "7")(scope, receive, send))
    assert sent == 2 * [
        {"type": "http.response.start", "status": 204, "headers": []}, {"type": "http.response.body", "body": b""}
    ]  # fmt: skip


@on_sqlite
def test_a_file_is_stored_with_its_content(engine: Engine, tmp_path: Path) -> None:
    """Servers such as Granian take the path of a file. The stored response was empty."""
    (tmp_path / "report").write_bytes(b"report")

    async def handle(_: Request) -> StarletteResponse:
        return FileResponse(tmp_path / "report")

    app = Starlette(routes=[Route("/", handle, methods=["POST"])])
    guarded = AsgiIdempotency(app, IdempotentRequests(engine), caller=lambda _: "7")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b"k")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    scope |= {"asgi": {"spec_version": "2.4"}, "extensions": {"http.response.pathsend": {}, "tls": {}}}
    for _ in range(2):
        asyncio.run(guarded(dict(scope), receive, send))
    assert [it["body"] for it in sent if it["type"] == "http.response.body"] == [b"report"] * 2


# Servers that are killed


LEASE_MS = 300
CLIENTS, KEYS, KILLS = 4, 50, 10


def serve(url: str, pipe: Pipe) -> None:
    """An HTTP server whose orders are a step and a completion; it runs until it is killed."""
    logging.getLogger("werkzeug").disabled = True
    app = flask.Flask("shop")

    def insert(connection: Connection, name: str) -> None:
        connection.execute(text("INSERT INTO effects VALUES (:name)"), {"name": name})

    @app.post("/order")
    def order() -> str:
        claim = flask.request.environ[CLAIM]

        def work(connection: Connection) -> Response:
            insert(connection, f"order {claim.key}")
            return Response.of_json(connection.execute(text("SELECT count(*) FROM effects")).scalar_one())

        claim.step("charge", lambda connection: insert(connection, f"charge {claim.key}"))
        claim.complete(work)
        return ""

    requests = IdempotentRequests(sqlalchemy.create_engine(url), lease_ms=LEASE_MS)
    guarded = WsgiIdempotency(app.wsgi_app, requests, caller=lambda environ: environ["REMOTE_ADDR"])
    server = make_server("127.0.0.1", 0, guarded, threaded=True)
    pipe.send(server.server_port)
    server.serve_forever()


def response_to(client: httpx.Client, ports: list[int], key: str) -> bytes:
    """The final response of a client, which repeats its request until it gets one."""
    while True:
        try:
            answer = client.post(f"http://127.0.0.1:{ports[-1]}/order", headers={"Idempotency-Key": key})
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code != 409:
            assert answer.status_code == 200, answer.text
            return answer.content
        time.sleep(0.005)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(3))
def test_servers_that_are_killed_again_and_again(engine: Engine, database_url: str, seed: int) -> None:
    """Each client repeats its requests until they are answered, and then once again."""
    execute(engine, "CREATE TABLE effects (name VARCHAR(40))")
    ports: list[int] = []
    answers: list[tuple[str, bytes]] = []

    def send(number: int) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            for key in (f"{number}-{it}" for it in range(KEYS)):
                answers.extend([(key, response_to(client, ports, key)), (key, response_to(client, ports, key))])

    clients = [threading.Thread(target=send, args=[number]) for number in range(CLIENTS)]
    marks = sorted(random.Random(seed).sample(range(CLIENTS * KEYS), KILLS))
    for mark in (*marks, None):
        ours, theirs = PROCESSES.Pipe()
        server = PROCESSES.Process(target=serve, args=(database_url, theirs))
        server.start()
        ports.append(ours.recv())
        if len(ports) == 1:
            for client in clients:
                client.start()
        if mark is not None:
            wait_until(lambda mark=mark: len(answers) >= 2 * mark, "no request is answered")
        else:
            for client in clients:
                client.join()
        server.kill()
        server.join()
    assert len(answers) == 2 * len(set(answers)) == 2 * CLIENTS * KEYS, "each key has one response"
    with engine.connect() as connection:
        effects = sorted(connection.execute(text("SELECT name FROM effects")).scalars())
    keys = {key for key, _ in answers}
    assert effects == sorted(f"{effect} {key}" for effect in ("charge", "order") for key in keys)
