"""A real PostgreSQL of the system's package, in a temporary folder, reached through a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

MISSING = "PostgreSQL is missing: apt-get install postgresql"


SCHEMAS_AT_A_TIME = 25
"""A `psql` for each would take an eighth of the time of a short test."""


class PostgresServer:
    """Started by `start`, gone with its folder after `stop`. A crash of the machine is not among what it withstands,
    unless `durable`."""

    def __init__(self, *, durable: bool = False) -> None:
        self._programs = _programs()
        self._durable = durable
        self.folder = Path(tempfile.mkdtemp(prefix="fencepost-postgres-"))
        # The server refuses to run as root, and the user that runs it must own its folder.
        self._account = "nobody" if os.geteuid() == 0 else None
        if self._account:
            os.chown(self.folder, pwd.getpwnam(self._account).pw_uid, -1)
        self._schemas = 0
        self._unused: list[str] = []

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._run(
            "initdb", "--auth=trust", "--username=tests", "--no-sync", "--encoding=UTF8", "--locale=C", "-D", "data"
        )
        self.start_again()

    def start_again(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c max_connections=200"
        if not self._durable:
            options += " -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "start", "--wait", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        self.halt()  # nobody needs what an orderly end would still write
        shutil.rmtree(self.folder)

    def halt(self) -> None:
        """Stops the server, as a crash looks to clients, and keeps its folder."""
        self._run("pg_ctl", "stop", "--wait", "-D", "data", "-m", "immediate")

    def new_database(self) -> str:
        """The URL of an empty schema of its own, for SQLAlchemy with psycopg.

        A database each would take half a second, and a minute at the end, to stop a server that has hundreds.
        """
        if not self._unused:
            self._unused = [f"test_{self._schemas + it}" for it in range(SCHEMAS_AT_A_TIME, 0, -1)]
            self._schemas += SCHEMAS_AT_A_TIME
            made = "; ".join(f"CREATE SCHEMA {name}" for name in self._unused)
            connection = ["--host", str(self.folder), "--username=tests", "postgres"]
            self._run("psql", *connection, "--quiet", "--command", made)
        return self.url(self._unused.pop())

    def url(self, schema: str) -> str:
        return f"postgresql+psycopg://tests@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def _run(self, program: str, *arguments: str) -> None:
        # Not a pipe, which the server would inherit and keep open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self._programs / program, *arguments],
                check=False,
                cwd=self.folder,
                user=self._account,
                env=os.environ | {"HOME": str(self.folder)},
                stdout=said,
                stderr=said,
            )
            said.seek(0)
            assert done.returncode == 0, f"{program}: {said.read().decode()}{self._log()}"

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text()[-2000:] if log.exists() else ""


def _programs() -> Path:
    """Where initdb is: Debian keeps it off the path, a folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    candidates = [Path(on_path)] if on_path else found
    if not candidates:
        raise FileNotFoundError(MISSING)
    return candidates[-1].resolve().parent
