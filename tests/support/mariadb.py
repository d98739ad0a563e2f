"""A real MariaDB of the system's package, in a temporary folder, reached through a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.waiting import wait_until

MISSING = "MariaDB is missing: apt-get install mariadb-server"


class MariaDBServer:
    """Started by `start`, gone with its folder after `stop`.

    It does not withstand a crash of the machine, unless `durable`: then each commit syncs, as by default.
    """

    def __init__(self, durable: bool = False, options: Sequence[str] = ()) -> None:
        self._small = [*_SMALL, *(_DURABLE if durable else ()), *options]
        self._server, self._install = _program("mariadbd"), _program("mariadb-install-db")
        self.folder = Path(tempfile.mkdtemp(prefix="fencepost-mariadb-"))
        # The user that runs the server must own its folder.
        self._account = "nobody" if os.geteuid() == 0 else None
        if self._account:
            os.chown(self.folder, pwd.getpwnam(self._account).pw_uid, -1)
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MariaDBServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        command = [self._install, "--no-defaults", f"--datadir={self.folder}/data", *options, *self._small]
        done = subprocess.run(
            command, check=False, cwd=self.folder, user=self._account, capture_output=True, env=self._environment()
        )
        assert done.returncode == 0, f"mariadb-install-db: {done.stdout.decode()}{done.stderr.decode()}"
        self.start_again()

    def start_again(self) -> None:
        """After `halt`, on the same data."""
        files = {"datadir": "data", "socket": "socket", "pid-file": "pid", "tmpdir": ""}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._server, "--no-defaults", *options, "--skip-networking", "--max-connections=200", *self._small],
                cwd=self.folder, user=self._account, stdout=log, stderr=log, env=self._environment(),
            )  # fmt: skip
        wait_until(self._answers, "mariadbd does not start")

    def stop(self) -> None:
        self.halt()  # nobody needs what an orderly end would still write
        shutil.rmtree(self.folder)

    def halt(self) -> None:
        """Stops the server, as a crash looks to clients, and keeps its folder."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def new_database(self) -> str:
        """The URL of an empty database of its own, for SQLAlchemy with PyMySQL."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        # A socket has no TLS. Yet PyMySQL reads the certificates of the system for each connection, which took a third
        # of the time of a short test, unless it is asked not to.
        return f"mariadb+pymysql://root@localhost/{database}?unix_socket={self.folder}/socket&ssl_disabled=true"

    def execute(self, statement: str) -> None:
        """Runs a statement of an administrator."""
        import pymysql

        connection = pymysql.connect(
            unix_socket=f"{self.folder}/socket", user="root", autocommit=True, ssl_disabled=True
        )
        try:
            connection.cursor().execute(statement)
        finally:
            connection.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"mariadbd has ended: {self._log()}"
        # Not by the driver, which leaves the sockets of what it could not connect open.
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(f"{self.folder}/socket") == 0

    def _environment(self) -> dict[str, str]:
        # The server may not be allowed to write to the temporary folder of the tests.
        return os.environ | {"HOME": str(self.folder), "TMPDIR": str(self.folder)}

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]


# Tests are short, and their databases small. A commit outlives the process (2), though not the machine.
_SMALL = [
    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=0", "--innodb-flush-method=nosync", "--performance-schema=OFF", "--skip-log-bin",
    "--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci", "--innodb-file-per-table=0",
]  # fmt: skip
_DURABLE = ["--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1", "--innodb-flush-method=fsync"]


def _program(name: str) -> str:
    """The path of the server: on Debian it is only on the path of root."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        raise FileNotFoundError(MISSING)
    return found
