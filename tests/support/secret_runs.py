"""Runs of jobs with credentials that are killed at a step, and the search for credentials in their files.

As a program: one such run. Its settings come on standard input, so that no file and no command line has the
credentials.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.processes import fork_server

TESTS = Path(__file__).parents[1]
SECRETS = ("AKIAFENCEPOSTSECRET7", "wJalr/XUtnFEMI+K7MDENG-fencepost-secret")
"""A key's id and the key: letters that base64 and URLs write otherwise are among them."""


def start_killed(settings: dict[str, Any]) -> None:
    """A run that must be killed at `settings["step"]`, after its tasks and before their results are used."""
    done = subprocess.run(
        [sys.executable, "-m", "support.secret_runs"],
        input=json.dumps(settings),
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        start_new_session=True,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, f"not killed at {settings['step']}: {done.stdout}{done.stderr}"
    for secret in SECRETS:
        assert secret not in done.stdout + done.stderr


def files_with(secrets: Sequence[str], contents: Iterable[tuple[str, bytes]]) -> list[str]:
    """The names of those contents in which a secret is: as it is, in a URL, in UTF-16, or in base64."""
    forms = [form for secret in secrets for form in _forms(secret)]
    return [name for name, data in contents if any(form in data for form in forms)]


def contents_of(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """The files beneath folders, whatever they are named."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


def _forms(secret: str) -> Iterator[bytes]:
    yield from (secret.encode(), quote(secret, safe="").encode(), secret.encode("utf-16-le"))
    yield json.dumps(secret)[1:-1].replace("/", "\\/").encode()
    for shift in range(3):  # within other bytes; without the characters that these make too
        data = base64.b64encode(b"\0" * shift + secret.encode())
        yield data[4 if shift else 0 :].rstrip(b"=")[:-1]


class ProcessEngine:
    """A process for each task. They are sent what they do by pipes."""

    name = "processes"
    slots = 2
    in_process = False
    driver_bytes_max = driver_scan_bytes_max = 0

    def run(
        self,
        stage: str,
        work: Callable[[Any], Any],
        items: Sequence[Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Any]:
        results = []
        context = fork_server("support.secret_runs", "fencepost.lake")
        for item in items:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,))
            process.start()
            theirs.close()
            ours.send_bytes(pickle.dumps((work, item)))
            results.append(pickle.loads(ours.recv_bytes()))
            process.join()
            if isinstance(results[-1], Exception):
                raise results[-1]
        if progress is not None:
            progress(len(items), len(items))
        return results


def _work(pipe: Any) -> None:
    work, item = pickle.loads(pipe.recv_bytes())
    try:
        result = work(item)
    except Exception as error:
        result = error
    pipe.send_bytes(pickle.dumps(result))


def _main(settings: dict[str, Any]) -> None:
    from fencepost.lake import DedupJob, KafkaLog, LocalEngine

    def progress(step: str, done: int, total: int) -> None:
        if step == settings["step"] and done == total:
            os.killpg(0, signal.SIGKILL)

    engine: Any = LocalEngine(2)
    if settings["engine"] == "processes":
        engine = ProcessEngine()
    elif settings["engine"] == "spark":
        engine = _spark(Path(settings["spark"]))
    source: Any = settings["source"]
    if "log_options" in settings:
        source = KafkaLog(source, options=settings["log_options"])
    sink: Any = settings["sink"]
    if "table" in settings:
        from fencepost.sql import StagedTable

        sink = StagedTable(settings["url"], settings["table"], sink)
    options = {name: settings[name] for name in ("state_options", "source_options", "sink_options") if name in settings}
    # Shards are judged in tasks, which open the state's store.
    DedupJob(source, settings["state"], sink, engine=engine, driver_spans_max=0, **options).run(progress)
    print("came to its end")


def _spark(home: Path) -> Any:
    from fencepost_spark import SparkEngine
    from pyspark.sql import SparkSession

    from support.spark_session import configured, let_workers_import, of_driver, use_this_python

    use_this_python()
    let_workers_import(TESTS)
    settings = {"spark.ui.enabled": "false", **of_driver(home, "1g")}
    spark = configured(SparkSession.builder.master("local[2,2]"), settings).getOrCreate()
    return SparkEngine(spark, driver_bytes_max=0)


if __name__ == "__main__":
    _main(json.load(sys.stdin))
