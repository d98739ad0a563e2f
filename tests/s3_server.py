"""An S3 server for tests."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer

BUCKET = "bucket"


@contextmanager
def serve_s3() -> Iterator[str]:
    """The endpoint of a server with one empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        connection = http.client.HTTPConnection(host, port)
        connection.request("PUT", f"/{BUCKET}", headers={"Content-Length": "0"})
        assert connection.getresponse().status == 200
        connection.close()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
