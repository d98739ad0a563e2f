"""Middleware for the Idempotency-Key header: one for WSGI, one for ASGI.

Source: the IETF draft "The Idempotency-Key HTTP Header Field", draft-ietf-httpapi-idempotency-key-header. Errors are
application/problem+json (RFC 9457). The application reads the claim from CLAIM and completes it. The middleware sends
the response that the database has stored, so that the first request and each repeat get the same bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from io import BytesIO
from typing import Any, TypeAlias

from fencepost.errors import KeyReusedError, PolicyError, RequestInFlightError
from fencepost.sql.requests import IdempotentRequests, RequestClaim, Response

CLAIM = "fencepost.request"
"""The key of the `RequestClaim` in the environ of WSGI and in the scope of ASGI."""

_SAFE = {"GET", "HEAD", "OPTIONS", "TRACE"}
# A string of a structured field (RFC 9651), or the same without quotes, as most clients send it.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])+)"')
_BARE = re.compile(r"[!#-+\--~]+")
_KEY_MAX = 255

Environ: TypeAlias = dict[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class _Middleware:
    """The settings and decisions that both middlewares share."""

    def __init__(
        self,
        app: Any,
        requests: IdempotentRequests,
        *,
        caller: Callable[[Any], str],
        required: Iterable[str] = ("POST", "PATCH"),
        body_bytes_max: int = 1 << 20,
    ) -> None:
        if isinstance(required, str):
            raise PolicyError(f"required={required!r}: expected a list of methods")
        self.app, self.requests, self.caller = app, requests, caller
        self.required = frozenset(required)
        self.body_bytes_max = body_bytes_max

    def _key_of(self, method: str, header: str | None) -> str | Response | None:
        """Return the key of a request, None if it passes through, or the response that refuses it."""
        if method in _SAFE or (header is None and method not in self.required):
            return None
        if header is None:
            return _problem(400, "Idempotency-Key is missing", f"{method} requires this header.")
        header = header.strip(" \t")
        quoted = _QUOTED.fullmatch(header)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else header
        if len(key) > _KEY_MAX or not (quoted or _BARE.fullmatch(header)):
            detail = f"Expected one string of 1 to {_KEY_MAX} visible characters of ASCII."
            return _problem(400, "Idempotency-Key is malformed", detail)
        return key

    def _claim(self, caller: str, key: str, *parts: bytes) -> RequestClaim | Response:
        """Return the claim of a request, or the response to it. `parts`: method, path, query, body."""
        request = b"".join(len(it).to_bytes(8, "big") + it for it in parts)
        try:
            return self.requests.claim(caller, key, request)
        except RequestInFlightError:
            detail = "The same request is being processed. Repeat it later."
            return _problem(409, "A request is outstanding for this Idempotency-Key", detail, ("Retry-After", "1"))
        except KeyReusedError:
            detail = "Send this request with a new key."
            return _problem(422, "Idempotency-Key is already used for another request", detail)

    def _too_large(self) -> Response:
        return _problem(413, "The body is too large", f"At most {self.body_bytes_max} bytes are accepted.")


def _finish(claim: RequestClaim, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Response:
    """Return the response to send after the application has answered: the committed one, if there is one."""
    if claim.response is not None:
        return claim.response
    if claim.is_lost:
        return _LOST
    given = Response(status, tuple(headers), body)
    if status >= 400:  # an error that the application did not complete: a repeat resumes after the last step
        claim.release()
        return given
    return claim.complete(lambda _: given)


def _problem(status: int, title: str, detail: str, *headers: tuple[str, str]) -> Response:
    body = json.dumps({"title": title, "status": status, "detail": detail}).encode()
    return Response(status, (("Content-Type", "application/problem+json"), *headers), body)


_LOST = _problem(409, "Another worker has taken the request over", "Repeat it later.", ("Retry-After", "1"))


class WsgiIdempotency(_Middleware):
    """WSGI middleware that applies each request with an Idempotency-Key header once.

    Install it behind authentication, because a repeat does not reach the application. Requests with a safe method (GET,
    HEAD, OPTIONS, TRACE) pass through. So do requests without the header, unless `required` lists their method. Other
    requests and their responses are held in memory.

    Args:
        app: The application.
        requests: The store of requests and responses.
        caller: Takes the environ and returns the sender (an account, a tenant), a text of 1 to 255 characters. Callers
            never get each other's responses.
        required: Methods that are refused without the header (400).
        body_bytes_max: The maximum size of a request body. Larger ones are refused (413).
    """

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        key = self._key_of(environ["REQUEST_METHOD"], environ.get("HTTP_IDEMPOTENCY_KEY"))
        if key is None:
            passed: Iterable[bytes] = self.app(environ, start_response)
            return passed
        response = key if isinstance(key, Response) else self._respond(environ, key)
        start_response(f"{response.status} {_reason(response.status)}", list(response.headers))
        return [response.body]

    def _respond(self, environ: Environ, key: str) -> Response:
        body = self._body(environ)
        if isinstance(body, Response):
            return body
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        texts = (environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""))
        claim = self._claim(self.caller(environ), key, *(it.encode("latin-1") for it in texts), body)
        if isinstance(claim, Response):
            return claim
        try:
            inner = environ | {CLAIM: claim, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            return _finish(claim, *_answer_of(self.app, inner))
        except Exception:
            if claim.is_lost:
                return _LOST
            claim.release()
            raise

    def _body(self, environ: Environ) -> bytes | Response:
        """Read the body as declared by the client. A truncated body is refused, because its hash would differ."""
        declared, most = environ.get("CONTENT_LENGTH") or "", self.body_bytes_max
        if not declared and not environ.get("wsgi.input_terminated"):
            if "HTTP_TRANSFER_ENCODING" in environ:
                return _problem(411, "The length of the body is unknown", "Send the Content-Length header.")
            return b""
        if declared and not re.fullmatch("[0-9]{1,18}", declared):
            return _problem(400, "Content-Length is malformed", "Expected a number.")
        wanted = int(declared) if declared else most + 1
        if declared and wanted > most:
            return self._too_large()
        body = b""
        while len(body) < wanted and (piece := environ["wsgi.input"].read(wanted - len(body))):
            body += piece
        if len(body) > most:
            return self._too_large()
        if declared and len(body) < wanted:
            return _problem(400, "The body is incomplete", f"{wanted} bytes were declared, {len(body)} arrived.")
        return body


def _answer_of(app: Callable[..., Iterable[bytes]], environ: Environ) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return the status, headers and body of a WSGI application's response."""
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], Any]:
        started[:] = [int(status[:3]), headers]
        return written.append

    pieces = app(environ, start_response)
    try:
        written.extend(pieces)
    finally:
        if hasattr(pieces, "close"):
            pieces.close()
    return started[0], started[1], b"".join(written)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class AsgiIdempotency(_Middleware):
    """ASGI middleware for asyncio servers that applies each request with an Idempotency-Key header once.

    The arguments are those of `WsgiIdempotency`, but `caller` takes the scope. Calls to the database run in threads. In
    the application, call methods of the claim from a function that the framework runs in a thread, or with
    `asyncio.to_thread`.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        fields = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"idempotency-key"]
        key = self._key_of(scope["method"], ", ".join(fields) if fields else None)
        if key is None:
            await self.app(scope, receive, send)
            return
        response = key if isinstance(key, Response) else await self._respond(scope, receive, key)
        if response is None:
            return  # the client has disconnected
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _respond(self, scope: Scope, receive: Receive, key: str) -> Response | None:
        body = await self._body(receive)
        if not isinstance(body, bytes):
            return body
        # The path as the client sent it, if the server passes it: different paths may have the same decoded form.
        path = scope.get("raw_path") or scope["path"].encode()
        request = (scope["method"].encode(), path, scope.get("query_string", b""), body)
        claim = await asyncio.to_thread(self._claim, self.caller(scope), key, *request)
        if isinstance(claim, Response):
            return claim
        answer = _Answer(body, receive)
        try:
            await self.app({**scope, CLAIM: claim, "extensions": _extensions_of(scope)}, answer.receive, answer.send)
            return await asyncio.to_thread(_finish, claim, answer.status, answer.headers, bytes(answer.body))
        except Exception:
            if claim.is_lost:
                return _LOST
            await asyncio.to_thread(claim.release)
            raise

    async def _body(self, receive: Receive) -> bytes | Response | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.body_bytes_max:
                return self._too_large()
            if not message.get("more_body", False):
                return bytes(body)


def _extensions_of(scope: Scope) -> dict[str, Any]:
    """Return the server's extensions without other forms of a response, such as the path of a file: the response of
    the application is stored, so it must arrive here as bytes."""
    extensions = scope.get("extensions") or {}
    return {name: it for name, it in extensions.items() if not name.startswith("http.response.")}


class _Answer:
    """Passes the read body to an ASGI application, and records its response."""

    def __init__(self, request_body: bytes, receive: Receive) -> None:
        self._unread: bytes | None = request_body
        self._receive = receive
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._unread is None:
            return await self._receive()
        body, self._unread = self._unread, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = message.get("headers", ())
            self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in given]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
