"""The example gateway in a process of its own: every acknowledged event is in the log, in fewer batches than events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from fencepost.kafka import read_batches, read_records
from support.waiting import wait_until

GATEWAY = Path(__file__).parents[2] / "examples" / "gateway"


class Gateway:
    """A server on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder / "clicks", folder / "log"
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(GATEWAY), "gateway:app", "--port", "0"]
        command += ["--timeout-keep-alive", "600"]  # a client that is slow to send again must not find it closed
        with self._log.open("w") as log:
            # Long enough for events to share a batch on a busy machine.
            environment = os.environ | {"GATEWAY_FOLDER": str(self.folder), "GATEWAY_LINGER_MS": "200"}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_until(self._has_port, "it does not listen")

    def _has_port(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        found = re.search(r"running on http://127.0.0.1:(\d+)", self._log.read_text())
        self.url = f"http://127.0.0.1:{found[1]}" if found else ""
        return found is not None

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.end(signal.SIGKILL)

    def in_log(self) -> list[dict[str, Any]]:
        """The events that the logs hold."""
        tables = [
            pa.table(read_records(path, isolation="read_uncommitted"))
            for path in sorted(self.folder.glob("clicks-*"))
            if path.is_dir()
        ]
        return [json.loads(it) for table in tables for it in table["value"].to_pylist()]

    def batches(self) -> int:
        return sum(
            pa.table(read_batches(path)).num_rows for path in sorted(self.folder.glob("clicks-*")) if path.is_dir()
        )


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    started = Gateway(tmp_path)
    yield started
    started.kill()


def click(number: int) -> dict[str, str]:
    return {"id": str(uuid.UUID(int=number)), "user": f"user {number % 50}", "page": "/"}


async def post(url: str, numbers: range, answers: list[tuple[int, httpx.Response]]) -> None:
    """Adds what is answered to `answers`: nothing where the connection broke."""
    limits = httpx.Limits(max_connections=50)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=None) as client:

        async def one(number: int) -> None:
            with contextlib.suppress(httpx.TransportError):
                answers.append((number, await client.post("/clicks", json=click(number))))

        await asyncio.gather(*map(one, numbers))


def test_events_share_batches_and_come_to_the_log_once(gateway: Gateway) -> None:
    answers: list[tuple[int, httpx.Response]] = []
    asyncio.run(post(gateway.url, range(200), answers))
    assert len(answers) == 200, "a connection broke"
    assert {answer.status_code for _, answer in answers} == {200}
    places = {(it.json()["partition"], it.json()["offset"]) for _, it in answers}
    assert len(places) == 200, "each has a place of its own"

    def are_counted() -> bool:
        lines = httpx.get(f"{gateway.url}/metrics/", timeout=60).text.splitlines()
        return any(it.startswith("fencepost_producer_delivered_rows_total") and it.endswith(" 200.0") for it in lines)

    wait_until(are_counted, "200 rows are not counted")
    assert gateway.end(signal.SIGTERM) in (0, -signal.SIGTERM)
    found = gateway.in_log()
    assert sorted(it["id"] for it in found) == sorted(click(number)["id"] for number in range(200))
    assert gateway.batches() < 160


def test_acknowledged_batches_survive_a_kill(gateway: Gateway) -> None:
    answers: list[tuple[int, httpx.Response]] = []

    async def run() -> None:
        sending = asyncio.create_task(post(gateway.url, range(300), answers))
        while len(answers) < 60:
            assert not sending.done(), "the gateway died by itself"
            await asyncio.sleep(0.001)
        gateway.kill()  # in this thread: meanwhile nothing more is sent
        await sending

    asyncio.run(run())
    acknowledged = {click(number)["id"] for number, answer in answers if answer.status_code == 200}
    found = [it["id"] for it in gateway.in_log()]
    assert 60 <= len(acknowledged) < 300
    assert acknowledged <= set(found)
    assert len(found) == len(set(found))


def test_an_event_that_does_not_fit_is_refused(gateway: Gateway) -> None:
    assert httpx.post(f"{gateway.url}/clicks", json={"id": "x"}, timeout=60).status_code == 422
    assert httpx.post(f"{gateway.url}/clicks", json=click(1), timeout=60).status_code == 200
