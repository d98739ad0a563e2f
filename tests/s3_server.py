"""An S3 server for tests."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

BUCKET = "bucket"


@contextmanager
def serve_s3() -> Iterator[str]:
    """The endpoint of a server with one empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        connection.request("PUT", f"/{BUCKET}", headers={"Content-Length": "0"})
        assert connection.getresponse().status == 200
        connection.close()
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class OneAtATime:
    """Answers one request after the other: moto looks whether an object exists and then puts it, and between the two
    another conditional put may do the same, so that both succeed."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self.turn:
            return list(self.app(environ, start_response))
