"""A Spark standalone cluster on this machine: one master, and a worker for each loopback address.

Spark takes addresses for machines: it speculates on another one, and counts what is lost with one. Daemons and
executors get nothing of the environment of the tests, so Python finds there what the driver ships and no more. Linux
answers on every address of 127.0.0.0/8; another system has to be given the second one first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pyspark

HOSTS = ("127.0.0.1", "127.0.0.2")
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 300
BRIEF_JVM = os.environ.get("JDK_JAVA_OPTIONS", "")
"""What the Makefile asks of JVMs that live for a minute: half of their time."""
KEPT = ("PATH", "HOME", "LANG", "JAVA_HOME")
"""Of the environment of the tests."""


class Cluster:
    """Runs from `start` to `stop`. Workers may die in between; `start_workers` starts these again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.url = self.web = ""

    def start(self) -> None:
        self._launch("master", HOSTS[0], "master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0")
        self.url = self._logged("master", r"Starting Spark master at (spark://\S+)")
        self.web = self._logged("master", r"Bound MasterWebUI to .*, and started at (http://\S+)")
        self.start_workers()

    def start_workers(self) -> None:
        """Those that do not run. Done when the master knows them."""
        for host in HOSTS:
            if host not in self.daemons or self.daemons[host].poll() is not None:
                limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.work_of(host)), "--webui-port", "0")
                self._launch(host, host, "worker.Worker", "--host", host, *limits, self.url)
        pids = {daemon.pid for daemon in self.daemons.values() if daemon.poll() is None}
        assert len(pids) == 1 + len(HOSTS), "a daemon has ended"
        wait_until(lambda: sorted(self.alive()) == sorted(HOSTS), "not all workers are registered", self.logs)

    def work_of(self, host: str) -> Path:
        """The folder that its executors have theirs in, and in them what they log."""
        return self.folder / f"work-{host}"

    def alive(self) -> list[str]:
        workers = read_json(f"{self.web}/json/")["workers"]
        return [worker["host"] for worker in workers if worker["state"] == "ALIVE"]

    def is_running(self, host: str) -> bool:
        return self.daemons[host].poll() is None

    def stop(self) -> None:
        """Whatever has become of them: executors are in the process groups of their workers."""
        for daemon in self.daemons.values():
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        for unpacked in self.folder.glob("work-*/*/*/environment"):
            shutil.rmtree(unpacked, ignore_errors=True)  # they are large, and pytest keeps the folders of three runs

    def logs(self) -> str:
        """The ends of what the daemons have logged."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def _launch(self, name: str, host: str, kind: str, *arguments: str) -> None:
        own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
        own["SPARK_DAEMON_JAVA_OPTS"] = f"{BRIEF_JVM} -Dspark.master.rest.enabled=false"
        own["SPARK_LOCAL_DIRS"] = str(self.folder / f"local-{host}")
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env={name: os.environ[name] for name in KEPT if name in os.environ} | own,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _logged(self, name: str, pattern: str) -> str:
        """The match of the pattern's group in the log. The system chooses ports, so none is used twice."""
        path = self.folder / f"{name}.log"
        wait_until(lambda: re.search(pattern, path.read_text()), f"{name} does not start", self.logs)
        found = re.search(pattern, path.read_text())
        assert found is not None
        return found[1]


def wait_until(holds: Callable[[], Any], otherwise: str, details: Callable[[], str] = str) -> None:
    end = time.monotonic() + START_SECONDS
    while not holds():
        assert time.monotonic() < end, f"{otherwise}\n{details()}"
        time.sleep(0.1)


def read_json(url: str) -> Any:
    """Of a page on this machine: never through a proxy."""
    with build_opener(ProxyHandler({})).open(url, timeout=60) as page:
        return json.load(page)
