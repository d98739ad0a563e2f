"""Callbacks may call their producer: each call works or raises at once, and none waits for itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import fencepost as fp
import pytest
from fencepost.producer import Answer, Delivery, ErrorCode, Identity, SequencedBatch
from support.faulty_transport import MemoryTransport
from support.producers import QUICK, Coordinator, rows
from support.waiting import PATIENCE_SECONDS

ROWS_MAX = 20
DELIVERY_CALLS = ("acknowledged", "refused", "dropped")
"""Callbacks of deliveries: with a success, a refusal, and for want of a transaction."""
CALLBACKS = [
    ("acknowledged", False), ("acknowledged", True), ("refused", False), ("refused", True), ("dropped", True),
    ("transport", False), ("transport", True), ("registry", False), ("fence", False), ("keep alive", False),
    ("work", True), ("marker", True),
]  # fmt: skip
"""Where a producer calls what its user gave, and whether it is transactional."""
DECIDING = ("work", "marker")
"""Those that run on the thread that has called `commit`."""
ENDS: dict[str, Callable[[Any], Any]] = {
    "begin": lambda producer: producer.begin(),
    "commit": lambda producer: producer.commit(),
    "abort": lambda producer: producer.abort(),
    "transaction": lambda producer: producer.transaction().__enter__(),
    "close": lambda producer: producer.close(),
    "leave": lambda producer: producer.__exit__(None, None, None),
}
WAITS: dict[str, Callable[[Any], Any]] = {
    "flush": lambda producer: producer.flush(),
    "checkpoint": lambda producer: producer.checkpoint(),
    "result": lambda producer: Delivery(0, 1, producer).result(),
    "exception": lambda producer: Delivery(0, 1, producer).exception(),
}
SENDS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send(rows("more")),
    "send into a full buffer": lambda producer: producer.send(rows(*["more"] * ROWS_MAX)),
}
CALLS = ENDS | WAITS | SENDS


class Hooked(MemoryTransport):
    """A transport, registry and fence that call back. Batches are held back until `gate` is open."""

    def __init__(self, kind: str) -> None:
        super().__init__(partitions=1)
        self.kind, self.gate, self.call_back = kind, threading.Event(), lambda: None

    def send(self, batch: SequencedBatch) -> Answer:
        assert self.gate.wait(PATIENCE_SECONDS)
        self.hook("transport")
        if batch.rows["value"][0].as_py() == "bad":
            return Answer(ErrorCode.INVALID_RECORD)
        return super().send(batch)

    def init_producer(self, transactional_id: str | None = None, timeout_ms: int = 0, expected: Any = None) -> Identity:
        self.hook("registry")
        return super().init_producer(transactional_id, timeout_ms, expected)

    def fence(self, pid: int, epoch: int, partitions: Any) -> Any:
        self.hook("fence")
        return super().fence(pid, epoch, partitions)

    @property
    def keep_alive_ms(self) -> int:
        return 1 if self.kind == "keep alive" else 60_000

    def keep_alive(self, identity: Any) -> None:
        self.hook("keep alive")

    def hook(self, kind: str) -> None:
        if kind == self.kind:
            self.call_back()


class HookedCoordinator(Coordinator):
    def commit(self, identity: Any, work: Any = None) -> Identity:
        if work is not None:
            work(None)
        self.transport.hook("marker")  # type: ignore[attr-defined]
        return super().commit(identity)


def new_producer(kind: str, is_transactional: bool) -> tuple[fp.SequencedProducer, Hooked]:
    transport = Hooked(kind)
    more: dict[str, Any] = {"coordinator": HookedCoordinator(transport), "topic": "out"} if is_transactional else {}
    return fp.SequencedProducer(
        transport, name="t", registry=transport, buffer_rows=ROWS_MAX, max_in_flight=1, **more, **QUICK
    ), transport


def bring_about(kind: str, producer: fp.SequencedProducer, transport: Hooked, call_back: Callable[..., None]) -> None:
    """The callback, once."""
    transport.call_back = call_back
    if kind in DECIDING:
        transport.gate.set()
        producer.commit(call_back if kind == "work" else None)
        return
    sent = producer.send(rows("bad" if kind in ("refused", "registry", "fence") else "good"))
    if kind in DELIVERY_CALLS:
        sent = producer.send(rows("good")) if kind == "dropped" else sent
        sent[0].add_done_callback(call_back)
    if kind == "dropped":
        producer.abort()
    else:
        transport.gate.set()


def result_within(kind: str, is_transactional: bool, call: str) -> tuple[Any, fp.SequencedProducer]:
    """What a call within a callback gives or raises."""
    producer, transport = new_producer(kind, is_transactional)
    results: list[Any] = []
    has_called = threading.Event()

    def call_back(*_: Any) -> None:
        if results:
            return
        results.append(None)
        try:
            results[0] = CALLS[call](producer)
        except Exception as error:
            results[0] = error
        transport.gate.set()
        has_called.set()

    if is_transactional:
        producer.begin()
    apart(lambda: bring_about(kind, producer, transport, call_back))
    assert has_called.wait(PATIENCE_SECONDS), "the call waits for itself"
    return results[0], producer


def apart(work: Callable[[], Any]) -> None:
    """In a thread of its own, so that what waits for itself fails here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it waits for itself"
    if failed:
        raise failed[0]


def go_on(producer: fp.SequencedProducer, is_transactional: bool) -> None:
    """The producer delivers as before, and is closed."""
    with contextlib.suppress(fp.FencepostError):
        producer.flush()
    if is_transactional:
        with contextlib.suppress(fp.PolicyError):
            producer.abort()
        producer.begin()
    assert producer.send(rows("at last"))[0].result(PATIENCE_SECONDS).rows == 1
    if is_transactional:
        producer.commit()
    producer.close()


CASES = [
    (kind, is_transactional, call)
    for kind, is_transactional in CALLBACKS
    for call in CALLS
    if not (kind in DECIDING and call in ("result", "exception"))  # on a thread of the application they may wait
]


@pytest.mark.parametrize(("kind", "is_transactional", "call"), CASES)
def test_no_call_within_a_callback_waits_for_itself(kind: str, is_transactional: bool, call: str) -> None:
    result, producer = result_within(kind, is_transactional, call)
    if call in ENDS or call in (SENDS if kind in DECIDING else WAITS):
        assert isinstance(result, fp.PolicyError), result
    else:
        assert not isinstance(result, Exception) or isinstance(result, fp.FencepostError), result
    apart(lambda: go_on(producer, is_transactional))


def test_a_callback_may_send_what_fits() -> None:
    result, producer = result_within("acknowledged", False, "send")
    assert [type(it) for it in result] == [Delivery]
    assert result[0].result(PATIENCE_SECONDS).rows == 1
    producer.close()
    result, producer = result_within("acknowledged", False, "send into a full buffer")
    assert isinstance(result, fp.CapacityError)
    assert "callback of the producer" in str(result)
    producer.close()


def test_an_error_within_a_callback_has_a_remedy() -> None:
    result, producer = result_within("acknowledged", False, "flush")
    assert isinstance(result, fp.PolicyError)
    assert "flush()" in result.message
    assert "another thread" in result.message
    producer.close()
    result, producer = result_within("work", True, "abort")
    assert isinstance(result, fp.PolicyError)
    assert "abort()" in result.message
    assert "this thread" in result.message
    producer.close()
