"""A real Kafka broker of one node on loopback, from jars, without containers."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import wait_until

JARS = Path(__file__).parents[2] / ".tools" / "broker"
CLUSTER = base64.urlsafe_b64encode(b"fencepost-broker").decode().rstrip("=")
"""An id is 16 bytes. Of random ones some begin with "-", which the tool takes for an option."""
START_SECONDS = 120
ANSWER_SECONDS = 30
STOP_SECONDS = 30
LOGGING = """
Configuration:
  status: ERROR
  Appenders:
    File:
      name: F
      fileName: "{log}"
      PatternLayout: {{ pattern: "[%d] %p %m (%c)%n" }}
  Loggers:
    Root: {{ level: INFO, AppenderRef: [ {{ ref: F }} ] }}
"""
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
auto.create.topics.enable=false
log.retention.ms=-1
"""


def consumer_settings(address: str, group: str, **more: object) -> dict[str, Any]:
    """Of confluent-kafka's consumer for a loop. `more`: other settings, with underscores for dots."""
    return {
        "bootstrap.servers": address,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Broker:
    """A broker and its folder. `address` is what clients are given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.address = ""
        self.admin: AdminClient
        """Kept: its answers end with it."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Format the folder and start. Raises AssertionError, with the end of the log, if the broker does not start."""
        assert any(JARS.glob("*.jar")), f"no jars in {JARS}: make jars"
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        data = self.folder / "data"
        (self.folder / "log4j2.yaml").write_text(LOGGING.format(log=self.log))
        settings = self.folder / "server.properties"
        settings.write_text(SETTINGS.format(port=port, controller=controller, data=data))
        subprocess.run(
            [*self._java("kafka.tools.StorageTool"), "format", "-c", settings, "-t", CLUSTER],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._launch()

    def stop(self) -> None:
        """End the process, and remove its folder."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, meanwhile: Callable[[], None]) -> None:
        """End the process, do something to its folder, and start it again at the same address."""
        self._end()
        meanwhile()
        self.log.unlink()
        self._launch()

    def crash(self) -> None:
        """Kill the process, and start it again at the same address on what it had on disk."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.log.unlink()
        self._launch()

    def _launch(self) -> None:
        with (self.folder / "stdout.log").open("wb") as out:
            command = [*self._java("kafka.Kafka"), self.folder / "server.properties"]
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self._wait()
        self.admin = AdminClient(self.settings)

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def settings(self) -> dict[str, Any]:
        """Of any client. Quiet ones: some outlive the broker."""
        return {"bootstrap.servers": self.address, "log_level": 0}

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, and wait until all clients see it."""
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result()
        wait_until(lambda: self._has(topic), f"the broker does not know topic {topic}", ANSWER_SECONDS)

    def delete(self, topic: str) -> None:
        """Delete a topic with all its rows."""
        self.admin.delete_topics([topic])[topic].result()
        wait_until(lambda: not self._has(topic), f"the broker still knows topic {topic}", ANSWER_SECONDS)

    def cut(self, topic: str, before: int) -> None:
        """Delete the rows of partition 0 before an offset, as retention does."""
        place = TopicPartition(topic, 0, before)
        self.admin.delete_records([place])[place].result()

    def producer(self, **settings: Any) -> Producer:
        """An idempotent producer, unless the settings differ."""
        return Producer(self.settings | {"enable.idempotence": True} | settings)

    def send(self, topic: str, *values: str, partition: int = 0, headers: dict[str, str] | None = None) -> None:
        """Produce values to a partition, and wait until the broker has them."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, partition=partition, headers=headers)
        assert producer.flush(ANSWER_SECONDS) == 0

    def _has(self, topic: str) -> bool:
        return self.admin.list_topics(topic, ANSWER_SECONDS).topics[topic].error is None

    def _java(self, main: str) -> list[str | Path]:
        java = os.environ.get("JAVA", "java")
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        # Little memory and few compilers: it shares a laptop with Spark.
        return [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging, "-cp", f"{JARS}/*", main]

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if self.log.exists() and "Kafka Server started" in self.log.read_text():
                return
            time.sleep(0.1)
        output = (self.folder / "stdout.log").read_text()[-2000:]
        state = "does not come up" if self._process.poll() is None else "has died"
        self.stop()
        raise AssertionError(f"the broker {state}: {output}")


def _free_ports(count: int) -> list[int]:
    """Free ports; all are reserved at once, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for it in sockets:
            it.bind(("127.0.0.1", 0))
        return [it.getsockname()[1] for it in sockets]
    finally:
        for it in sockets:
            it.close()
