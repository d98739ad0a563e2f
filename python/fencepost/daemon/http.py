"""Serves `/metrics`, `/healthz` and `/readyz`, with one thread per request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry, make_wsgi_app

from fencepost.metrics import Collector, Source

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""


class Server:
    """An HTTP server that runs from its creation until `close`.

    Args:
        address: Host and port.
        metrics: The metrics of `/metrics`, in addition to those of the process.
        alive: The check of `/healthz`. A problem gives status 503.
        ready: The check of `/readyz`. A problem gives status 503.

    Raises OSError if the address is in use.
    """

    def __init__(self, address: tuple[str, int], metrics: Source, alive: Check, ready: Check) -> None:
        registry = CollectorRegistry()
        registry.register(PROCESS_COLLECTOR)
        registry.register(Collector(metrics))
        app = _app(make_wsgi_app(registry), {"/healthz": alive, "/readyz": ready})
        self._server = make_server(*address, app, server_class=_Server, handler_class=_Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="fencepost-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Do not log scrapes and probes."""


def _app(metrics: Callable[..., Iterable[bytes]], checks: dict[str, Check]) -> Callable[..., Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        if path not in checks:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics, /healthz, /readyz\n"]
        problem = checks[path]()
        status = "200 OK" if problem is None else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps({"status": "ok" if problem is None else "failing", "problem": problem}).encode()]

    return app
