"""An S3 server for tests: moto in this process, or the versitygw that FENCEPOST_S3_SERVER names.

moto is there with the other dependencies, and answers one request after the other. The program is a real server: its
conditional puts are exact while many requests are answered at once, and it knows credentials.
"""

from __future__ import annotations

import http.client
import logging
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from support.waiting import wait_until

BUCKET = "bucket"
KEY, SECRET = "a", "the-secret"
_SERVING: list[Any] = []
"""The servers by moto that answer in this process."""


def s3_options(endpoint: str, key: str = KEY, secret: str = SECRET) -> dict[str, Any]:
    """Options of stores on a server."""
    credentials = {"access_key_id": key, "secret_access_key": secret}
    return {"endpoint": endpoint, "region": "us-east-1", "allow_http": True, **credentials}


def serve_s3(key: str = KEY, secret: str = SECRET, folder: str | None = None) -> AbstractContextManager[str]:
    """The endpoint of a server with one empty bucket. `folder`: where the program keeps it, else a temporary one."""
    program = os.environ.get("FENCEPOST_S3_SERVER")
    return _serve_by_program(program, key, secret, folder) if program else serve_by_moto()


@contextmanager
def _serve_by_program(program: str, key: str, secret: str, folder: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="s3-", dir=folder) as data:
        Path(data, BUCKET).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", data],
            env={**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: server.poll() is not None or _answers(port), "the S3 server does not answer")
            assert server.poll() is None, f"{program} ended with code {server.returncode}"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def serve_by_moto() -> Iterator[str]:
    """The same on moto, which checks no signature: a proxy may change what requests say."""
    from moto.moto_api._internal import moto_api_backend
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    if not _SERVING:  # all servers of a process share their objects: those of the tests before are in the way
        moto_api_backend.reset()
    # Not moto's dispatcher of all services: for each request, it lists the folders of its package.
    app = OneAtATime(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _SERVING.append(server)
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
        _SERVING.remove(server)


class OneAtATime:
    """Answers one request after the other: moto looks whether an object exists and then puts it, and between the two
    another conditional put may do the same, so that both succeed."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self.turn:
            return list(self.app(environ, start_response))
