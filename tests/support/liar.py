"""A proxy with the faults of real networks and stores. Needs only the standard library."""

from __future__ import annotations

import http.client
import math
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIES = (
    "503 after",
    "503 before",
    "409",
    "dropped after",
    "dropped before",
    "late",
    "late and dropped",
    "dropped, then late",
)
FAULTS_OF_READS = ("503", "dropped", "cut", "cut and closed")


class Liar:
    """A proxy. `lies`: what it may do to conditional puts, drawn by `seed`, as often as the truth.

    `verb`: it lies about these requests instead, in the way of FAULTS_OF_READS. `names`: it lies about these only, by
    how they end. `lies_max`: how often it lies. `late_seconds`: how late a put arrives that is late; None: when
    `may_arrive` is set.
    """

    def __init__(
        self,
        endpoint: str,
        lies: tuple[str, ...],
        seed: int = 0,
        share: float = 0.5,
        *,
        verb: str = "",
        names: str = "",
        lies_max: float = math.inf,
        late_seconds: float | None = 0.1,
    ) -> None:
        self.target = endpoint.removeprefix("http://")
        self.lies, self.share, self.names = lies, share, names
        self.verb = verb
        self.lies_max, self.late_seconds = lies_max, late_seconds
        self.may_arrive = threading.Event()
        self.answers: Counter[str] = Counter()
        """Answers by kind: "truth", or one of `lies`."""
        self.arrived: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        """Requests of S3 by kind: GET, HEAD, PUT, COPY, LIST, POST, DELETE."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"liar": self}))
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Liar:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_arrive.set()
        self.server.shutdown()
        self.server.server_close()

    def lie(self, is_conditional: bool) -> str:
        with self._lock:
            may_lie = is_conditional and self.lies and self.answers.total() - self.answers["truth"] < self.lies_max
            is_lie = may_lie and self._random.random() < self.share
            lie = self._random.choice(self.lies) if is_lie else "truth"
            self.answers[lie] += 1
            return lie

    def count(self, command: str, path: str, is_copy: bool) -> None:
        is_list = command == "GET" and "list-type=" in path
        with self._lock:
            self.asked["LIST" if is_list else "COPY" if is_copy else command] += 1


class _Handler(BaseHTTPRequestHandler):
    """Passes on the requests of a `liar`, or lies."""

    liar: Liar
    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.liar.count(self.command, self.path, "x-amz-copy-source" in self.headers)
        is_conditional = self.command == "PUT" and "If-None-Match" in self.headers
        is_wanted = self.command == self.liar.verb if self.liar.verb else is_conditional
        lie = self.liar.lie(is_wanted and self.path.partition("?")[0].endswith(self.liar.names))
        if lie in ("dropped before", "dropped"):
            return self.drop()
        if lie in ("409", "503 before", "503"):
            return self.reply(int(lie[:3]), {}, b"")
        headers = {name.lower(): value for name, value in self.headers.items()}
        if lie == "dropped, then late":
            threading.Thread(target=self.late, args=(body, headers), daemon=True).start()
            return self.drop()
        if lie.startswith("late"):
            self.liar.may_arrive.wait(self.liar.late_seconds)
        if lie == "ignored" or (lie == "checked before" and not self.is_there(headers)):
            del headers["if-none-match"]
        status, found, data = self.ask(body, headers)
        self.liar.arrived[lie] += 1
        if lie in ("dropped after", "late and dropped"):
            return self.drop()
        if lie == "503 after":
            return self.reply(503, {}, b"")
        if lie == "cut":  # whole, as far as its headers tell
            return self.reply(status, found, data[: len(data) // 2])
        if lie == "cut and closed":
            self.close_connection = True
            return self.reply(status, found, data[: len(data) // 2], len(data))
        return self.reply(status, found, data)

    def is_there(self, headers: dict[str, str]) -> bool:
        """As careless servers look, and put a moment later."""
        connection = http.client.HTTPConnection(self.liar.target, timeout=20)
        connection.request("HEAD", self.path, headers={name: headers[name] for name in ("host", "authorization")})
        found = connection.getresponse().status == 200
        connection.close()
        time.sleep(0.02)
        return found

    def ask(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.liar.target, timeout=20)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data, found = response.read(), dict(response.getheaders())
        connection.close()
        return response.status, found, data

    def late(self, body: bytes, headers: dict[str, str]) -> None:
        self.liar.may_arrive.wait(self.liar.late_seconds)
        with suppress(OSError):  # the store is already gone
            self.ask(body, headers)

    def reply(self, status: int, headers: dict[str, str], data: bytes, bytes_declared: int = 0) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(bytes_declared or len(data)))
        with suppress(OSError):  # who asked has given up
            self.end_headers()
            self.wfile.write(data)

    def drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        pass

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on
