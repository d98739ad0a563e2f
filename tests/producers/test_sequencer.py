"""A sequencer, a network that loses, delays, doubles and reorders, and a log that judges: each row once, in order."""

from __future__ import annotations

import fencepost as fp
import pytest
from fencepost.errors import TransportError
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.sequencer import Batch, Delivered, Identity, Limits, Numbers, Request, Sequencer, is_after, step
from fencepost.transports.admission import judge, new_table
from support.simulated_log import Faults, Simulation, complaints

SEEDS = range(40)
PATIENT = Limits(delivery_ms=10_000_000, request_ms=1_000, backoff_ms=10)
HASTY = Limits(delivery_ms=3_000, request_ms=1_000, backoff_ms=10)
MAX = 2**31 - 1

WEATHER = {
    "fair": Faults(),
    "lost requests": Faults(lost_request=0.3),
    "lost answers": Faults(lost_answer=0.3),
    "copies": Faults(twice=0.5, delay_ms=50),
    "late": Faults(late=0.2, delay_ms=50),
    "errors": Faults(refused=0.3, doubtful=0.2),
    "storm": Faults(0.2, 0.2, 0.2, 0.1, 0.1, delay_ms=400, late=0.1),
}


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.parametrize("seeds", [SEEDS[:20], pytest.param(SEEDS[20:], marks=pytest.mark.matrix)], ids=repr)
def test_with_time_enough_every_row_is_delivered_once_and_in_order(weather: str, seeds: range) -> None:
    for seed in seeds:
        simulation = Simulation(seed, WEATHER[weather], PATIENT)
        simulation.run(batches=40)
        simulation.drain()
        assert all(isinstance(batch.outcome, Delivered) for batch, _ in simulation.outcomes), f"seed {seed}"
        assert complaints(simulation) == [], f"seed {seed}"
        assert simulation.bumps == 0, f"seed {seed}: no fault of a network is a reason for a new epoch"


@pytest.mark.parametrize("weather", WEATHER)
def test_expired_batches_are_nowhere_twice_and_affect_no_other(weather: str) -> None:
    failed = bumps = 0
    for seed in SEEDS:
        simulation = Simulation(seed, WEATHER[weather], HASTY)
        simulation.run(batches=40)
        simulation.drain()
        assert complaints(simulation) == [], f"seed {seed}"
        failed += sum(not isinstance(batch.outcome, Delivered) for batch, _ in simulation.outcomes)
        bumps += simulation.bumps
    if weather in ("lost requests", "storm"):
        assert failed >= 30, "or nothing was asked"
        assert bumps >= 30, "or nothing was asked"


def test_without_a_fence_a_copy_that_outlives_its_epoch_is_written_twice() -> None:
    """Kafka's own limit, and why transports may have `fence`."""

    def complaints_of(seed: int) -> list[str]:
        simulation = Simulation(seed, WEATHER["storm"], HASTY, fences=False)
        simulation.run(batches=40)
        simulation.drain()
        return complaints(simulation)

    assert any("rows twice" in it for seed in range(600) for it in complaints_of(seed))


def test_numbers_under_which_a_batch_was_sent_are_not_given_to_the_next_one() -> None:
    sequencer = Sequencer(Identity(7, 0), Limits(request_ms=100, backoff_ms=1, backoff_max_ms=1))
    table = new_table()

    def write(request: Request) -> Answer:
        pid, epoch = request.numbers.identity
        return Answer(*judge(table, 0, pid, epoch, request.numbers.first_seq, request.batch.count))

    refused, late, last = batches = [Batch(0, 10, name, 0) for name in ("refused", "late", "last")]
    for batch in batches:
        sequencer.add(batch)
    first, second, _ = sequencer.poll(0)
    answer_of_late = Answer(fp.Verdict.ACCEPTED, 0)  # it was written, and the answer is on its way
    sequencer.answered(first.id, Answer(ErrorCode.INVALID_RECORD), 1)
    sequencer.poll(150)  # the new epoch renumbers both, and the old requests are over time
    [again] = sequencer.poll(160)
    assert (again.batch, again.numbers) == (late, Numbers(Identity(7, 1), 0))
    write(again)  # its answer is lost
    sequencer.poll(260)
    sequencer.answered(second.id, answer_of_late, 260)  # before the retry is sent
    for now_ms in range(300, 400, 10):
        for request in sequencer.poll(now_ms):
            sequencer.answered(request.id, write(request), now_ms)
    assert not isinstance(refused.outcome, Delivered)
    assert isinstance(late.outcome, Delivered)
    assert isinstance(last.outcome, Delivered)
    assert (last.outcome.offset, last.outcome.is_duplicate) == (10, False), "the log must have its rows"


class Forgetful(Sequencer):
    """Treats every timeout as a refusal, and continues with the next number."""

    def _retry(self, batch, now_ms):  # type: ignore[no-untyped-def]
        super()._retry(batch, now_ms)
        partition = self._partition(batch.partition)
        batch.numbers = Numbers(self.identity, partition.next_seq)
        partition.next_seq = step(partition.next_seq, batch.count)


def test_the_simulation_detects_a_producer_that_renumbers_retries() -> None:
    simulations = [Simulation(seed, WEATHER["lost answers"], HASTY, kind=Forgetful) for seed in range(20)]
    found = []
    for simulation in simulations:
        simulation.run(batches=40)
        found += complaints(simulation)
    assert any("rows twice" in it for it in found)


def test_nothing_is_due_once_it_has_stopped() -> None:
    """A request that is never answered would otherwise stay overdue, and its sender would never sleep."""
    sequencer = Sequencer(Identity(7, 0), HASTY)
    sequencer.add(Batch(0, 1, None, 0))
    assert len(sequencer.poll(0)) == 1
    assert sequencer.wake_ms() == HASTY.request_ms
    sequencer.stop(TransportError("stopped"))
    assert sequencer.poll(10 * HASTY.delivery_ms) == []
    assert sequencer.wake_ms() is None


def test_a_simulation_is_the_same_for_the_same_seed() -> None:
    first, again = (Simulation(5, WEATHER["storm"], HASTY) for _ in range(2))
    first.run(batches=40)
    again.run(batches=40)
    assert first.log.rows == again.log.rows
    assert first.now_ms == again.now_ms


@pytest.mark.parametrize(
    ("seq", "count", "found"), [(0, MAX, MAX), (MAX, 1, 0), (MAX, 100, 99), (99, MAX, 98), (0, -1, MAX)]
)
def test_sequences_wrap(seq: int, count: int, found: int) -> None:
    assert step(seq, count) == found


@pytest.mark.parametrize(
    ("seq", "other", "found"),
    [(1, 0, True), (0, 1, False), (0, 0, False), (0, MAX, True), (MAX, 0, False), (5, MAX - 5, True)],
)
def test_later_is_at_most_half_the_space_away(seq: int, other: int, found: bool) -> None:
    assert is_after(seq, other) is found


def test_every_retriable_error_is_one_of_kafkas() -> None:
    assert sum(code.is_retriable for code in ErrorCode) == 17
    assert {code for code in ErrorCode if code.is_fatal} == {31, 35, 53, 90}
    assert not any(code.is_retriable and code.is_fatal for code in ErrorCode)
    assert Identity(7, 0) == (7, 0)
