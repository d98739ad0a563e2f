"""Brokers that each break one rule. A harness that lets one of them pass does not look."""

from __future__ import annotations

from typing import Any

from support.broker_reference import NOTHING, Batch, Judged, ReferenceBroker, State
from support.broker_rulebook import MAX, Kept, Row

Verdict = tuple[str, int | None, int | None]


class CopyAfterTheEpoch(ReferenceBroker):
    """Looks for the copy in any epoch, after comparing epochs."""

    def find(self, state: State, batch: Batch) -> Kept | None:
        return None if batch.epoch < state.epoch else super().find(state, batch._replace(epoch=state.epoch))


class CopyInAnyEpoch(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        return super().find(state, batch._replace(epoch=state.epoch))


class CopyAfterTheFlag(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        return None if state.is_open and not batch.transactional else super().find(state, batch)


class WindowOfRecords(ReferenceBroker):
    """Remembers the batches in which the last records were."""

    def keep(self, state: State, batch: Batch) -> None:
        super().keep(state, batch)
        records = 0
        for place in range(len(state.window), 0, -1):
            kept = state.window[place - 1]
            records += (kept.last - kept.first) % 2**31 + 1
            if records >= self.window:
                state.window = state.window[place - 1 :]
                return


class WindowTooLong(ReferenceBroker):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.window += 1


class WindowTooShort(ReferenceBroker):
    def keep(self, state: State, batch: Batch) -> None:
        super().keep(state, batch)
        state.window = state.window[-max(self.window - 1, 1) :]


class FirstAloneIsCompared(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        same = [kept for kept in state.window if state.epoch == batch.epoch and kept.first == batch.first]
        return same[0] if same else None


class LastAloneIsCompared(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        same = [kept for kept in state.window if state.epoch == batch.epoch and kept.last == batch.last]
        return same[0] if same else None


class OverlapIsACopy(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        same = [it for it in state.window if state.epoch == batch.epoch and it.first <= batch.first <= it.last]
        return super().find(state, batch) or (same[0] if same else None)


class CopyMovesToTheEnd(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        copy_of = super().find(state, batch)
        if copy_of is not None and copy_of is not state.window[-1]:
            # The last one stays: it says what comes next.
            state.window.remove(copy_of)
            state.window.insert(len(state.window) - 1, copy_of)
        return copy_of


class CopyRefreshesTheClock(ReferenceBroker):
    def find(self, state: State, batch: Batch) -> Kept | None:
        copy_of = super().find(state, batch)
        state.last_timestamp = batch.timestamp if copy_of else state.last_timestamp
        return copy_of


class CopyAnswersItsOwnOffset(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        verdict, expected, offset = super().judge(batch)
        return verdict, expected, batch.offset if verdict == "DUPLICATE" else offset


class CopyAnswersTheLastOffset(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        verdict, expected, offset = super().judge(batch)
        return verdict, expected, offset + batch.delta if verdict == "DUPLICATE" and offset is not None else offset


class WrapIsModuloMax(ReferenceBroker):
    @staticmethod
    def after(seq: int, steps: int) -> int:
        return (seq + steps) % MAX


class NeverWraps(ReferenceBroker):
    @staticmethod
    def after(seq: int, steps: int) -> int:
        return seq + steps


class EmptyWindowTakesAnything(ReferenceBroker):
    def expected(self, state: State, batch: Batch) -> int | None:
        return super().expected(state, batch) if state.window else None


class ZeroIsAlwaysTaken(ReferenceBroker):
    def expected(self, state: State, batch: Batch) -> int | None:
        return 0 if batch.first == 0 else super().expected(state, batch)


class UnknownBeginsWithZero(ReferenceBroker):
    def must_begin_with_zero(self, batch: Batch) -> bool:
        return True


class UnknownBeginsAnywhere(ReferenceBroker):
    def must_begin_with_zero(self, batch: Batch) -> bool:
        return False


class NewPartitionsAreOld(ReferenceBroker):
    def is_first(self, batch: Batch) -> bool:
        return False


class PartitionsAreNewAgain(ReferenceBroker):
    """Treats a partition without producers as one without records."""

    def is_first(self, batch: Batch) -> bool:
        return not batch.offset and all(partition != batch.partition for _, partition in self.entries)


class OffsetsSayNothing(ReferenceBroker):
    """Treats a batch at offset 100 as the first of its partition."""

    def is_first(self, batch: Batch) -> bool:
        return self.log_end(batch.partition) == 0


class BumpGoesOn(ReferenceBroker):
    def expected(self, state: State, batch: Batch) -> int | None:
        return super().expected(state, batch._replace(epoch=state.epoch) if state.epoch != NOTHING else batch)


class RefusedBumpLosesTheWindow(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        verdict = super().judge(batch)
        state = self.entries.get((batch.pid, batch.partition))
        if verdict[0] == "OUT_OF_ORDER" and state is not None and batch.epoch > state.epoch:
            state.epoch, state.window = batch.epoch, []
        return verdict


class RefusedProducerIsKnown(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        verdict = super().judge(batch)
        if verdict[0] == "OUT_OF_ORDER":
            self.entries.setdefault((batch.pid, batch.partition), State(epoch=batch.epoch))
        return verdict


class LowerEpochsAreTaken(ReferenceBroker):
    """Accepts them if the sequence fits, like Redpanda on the idempotent path."""

    def judge(self, batch: Batch) -> Verdict:
        state = self.entries.get((batch.pid, batch.partition))
        lower = state is not None and batch.kind == "data" and batch.origin == "client" and batch.epoch < state.epoch
        return super().judge(batch._replace(epoch=state.epoch) if lower and state else batch)


class FlagBeforeTheSequence(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        if batch.kind == "data" and state.is_open and not batch.transactional:
            return "INVALID_TXN_STATE", None
        return super().refusal(state, batch)


class FlagIsNoRuleForReplicas(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        return (None, None) if batch.origin == "replica" else super().refusal(state, batch)


class FlagIsNoRule(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        verdict, expected = super().refusal(state, batch)
        return (None, None) if verdict == "INVALID_TXN_STATE" else (verdict, expected)


class EpochClosesTheTransaction(ReferenceBroker):
    def record(self, state: State, batch: Batch) -> None:
        if batch.epoch != state.epoch:
            state.is_open, state.txn = False, None
        super().record(state, batch)


class TransactionBeginsWithItsLastBatch(ReferenceBroker):
    def keep(self, state: State, batch: Batch) -> None:
        super().keep(state, batch)
        state.txn = batch.offset if state.is_open else None


class MarkerEmptiesTheWindow(ReferenceBroker):
    def close(self, state: State, batch: Batch) -> None:
        super().close(state, batch)
        state.window = []


class MarkerKeepsTheWindow(ReferenceBroker):
    def record(self, state: State, batch: Batch) -> None:
        if batch.kind == "marker":
            state.epoch = batch.epoch
        super().record(state, batch)


class MarkerMakesNoEntry(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        is_new = (batch.pid, batch.partition) not in self.entries
        verdict = super().judge(batch)
        if is_new and batch.kind == "marker":
            del self.entries[batch.pid, batch.partition]
        return verdict


class MarkerIsNoActivity(ReferenceBroker):
    def record(self, state: State, batch: Batch) -> None:
        before = state.last_timestamp
        super().record(state, batch)
        state.last_timestamp = before if batch.kind == "marker" else state.last_timestamp


class MarkersNeedNotRaise(ReferenceBroker):
    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        return super().is_marker_fenced(state, batch._replace(transaction_version=0))


class MarkersMustRaiseAlways(ReferenceBroker):
    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        return batch.epoch <= state.epoch


class RetriedMarkersAreFenced(ReferenceBroker):
    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        is_retry = batch.transaction_version >= 2 and batch.epoch == state.epoch and self.version >= (4, 2)
        return is_retry or super().is_marker_fenced(state, batch)


class LastEpochIsRaised(ReferenceBroker):
    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        is_last = batch.transaction_version >= 2 and state.is_open and batch.epoch == state.epoch == 32767
        return (is_last and self.version >= (4, 2)) or super().is_marker_fenced(state, batch)


class LastEpochIsNotRaised(ReferenceBroker):
    """In versions that fence it."""

    def is_marker_fenced(self, state: State, batch: Batch) -> bool:
        return batch.epoch < 32767 and super().is_marker_fenced(state, batch)


class CoordinatorsAreNotCompared(ReferenceBroker):
    def is_coordinator_fenced(self, state: State, batch: Batch) -> bool:
        return False


class CoordinatorBeforeTheProducer(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        is_checked = batch.kind == "marker" and batch.origin == "coordinator"
        if is_checked and self.is_coordinator_fenced(state, batch):
            return "COORDINATOR_FENCED", None
        return super().refusal(state, batch)


class CoordinatorIsForgotten(ReferenceBroker):
    def close(self, state: State, batch: Batch) -> None:
        super().close(state, batch)
        state.coordinator_epoch = batch.coordinator_epoch


class EmptyControlIsAMarker(ReferenceBroker):
    def read(self, number: int, row: Row) -> Batch:
        batch = super().read(number, row)
        return batch._replace(kind="marker") if batch.kind == "empty" else batch


class ReplicaChecksSequences(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        state = self.entries.get((batch.pid, batch.partition))
        checks = batch.kind == "data" and batch.origin == "replica" and state is not None and batch.first >= 0
        expected = self.expected(state, batch) if checks and state else None
        return ("OUT_OF_ORDER", expected, None) if expected not in (None, batch.first) else super().judge(batch)


class ReplicaIsFenced(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        is_lower = batch.kind == "data" and batch.origin == "replica" and batch.epoch < state.epoch
        return ("FENCED", None) if is_lower else super().refusal(state, batch)


class ReplicaLooksForCopies(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        state = self.entries.get((batch.pid, batch.partition))
        copy_of = self.find(state, batch) if state and batch.kind == "data" and batch.origin == "replica" else None
        return ("DUPLICATE", None, copy_of.first_offset) if copy_of else super().judge(batch)


class LowerEpochKeepsTheWindow(ReferenceBroker):
    def record(self, state: State, batch: Batch) -> None:
        state.epoch = min(state.epoch, batch.epoch) if state.epoch != NOTHING else state.epoch
        super().record(state, batch)


class CoordinatorChecksSequences(ReferenceBroker):
    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        as_client = batch.kind == "data" and batch.origin == "coordinator" and batch.first >= 0
        return super().refusal(state, batch._replace(origin="client") if as_client else batch)


class CoordinatorLooksForCopies(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        state = self.entries.get((batch.pid, batch.partition))
        looks = state is not None and batch.kind == "data" and batch.origin == "coordinator"
        copy_of = self.find(state, batch) if looks and state else None
        return ("DUPLICATE", None, copy_of.first_offset) if copy_of else super().judge(batch)


class RestartKeepsFive(ReferenceBroker):
    def restart(self, now: int) -> None:
        if self.has_times:
            self.evict(now)


class RestartEmptiesTheWindow(ReferenceBroker):
    def restart(self, now: int) -> None:
        super().restart(now)
        for state in self.entries.values():
            state.window = []


class RestartKeepsTheIdle(ReferenceBroker):
    def restart(self, now: int) -> None:
        for state in self.entries.values():
            state.window = state.window[-1:]


class RestartClosesTransactions(ReferenceBroker):
    def restart(self, now: int) -> None:
        super().restart(now)
        for state in self.entries.values():
            state.is_open, state.txn = False, None


class NoTimestampIsLongAgo(ReferenceBroker):
    def apply(self, rows: list[Row]) -> Judged:
        judged = super().apply(rows)
        self.has_times = True
        return judged


class EvictsTooLate(ReferenceBroker):
    def is_idle(self, state: State, now: int) -> bool:
        return super().is_idle(state, now - 1)


class EvictsTheOpen(ReferenceBroker):
    def is_idle(self, state: State, now: int) -> bool:
        return now - state.last_timestamp >= self.max_idle_ms


class NewestTimestampCounts(ReferenceBroker):
    def record(self, state: State, batch: Batch) -> None:
        super().record(state, batch._replace(timestamp=max(batch.timestamp, state.last_timestamp)))


class EpochsAreOfTheProducer(ReferenceBroker):
    """As kfake keeps them: for all partitions at once."""

    def refusal(self, state: State, batch: Batch) -> tuple[str | None, int | None]:
        epochs = [other.epoch for (pid, _), other in self.entries.items() if pid == batch.pid]
        is_lower = batch.kind == "data" and batch.origin == "client" and batch.epoch < max(epochs, default=NOTHING)
        return ("FENCED", None) if is_lower else super().refusal(state, batch)


class MarkersTakeNoOffset(ReferenceBroker):
    def take(self, batch: Batch) -> None:
        before = self.log_end(batch.partition)
        super().take(batch)
        if batch.kind == "marker" and self.assigns and batch.origin != "replica":
            self.log_ends[batch.partition] = before


class RefusedBatchesTakeOffsets(ReferenceBroker):
    def judge(self, batch: Batch) -> Verdict:
        verdict = super().judge(batch)
        if self.assigns and verdict[0] == "OUT_OF_ORDER":
            self.log_ends[batch.partition] = self.log_end(batch.partition) + 1
        return verdict


class OneLogForAll(ReferenceBroker):
    def log_end(self, partition: int) -> int:
        return max(self.log_ends.values(), default=0) if self.assigns else super().log_end(partition)


class HalfACall(ReferenceBroker):
    """Judges rows until one makes no sense."""

    def apply(self, rows: list[Row]) -> Judged:
        judged = Judged()
        for number, row in enumerate(rows):
            verdict, expected, offset = self.judge(self.read(number, row))
            judged.verdicts.append(verdict)
            judged.expected.append(expected)
            judged.offsets.append(offset)
        return judged


class CountWins(ReferenceBroker):
    def sequences(self, row: Row, origin: str, demand: Any) -> tuple[int, int, int]:
        return super().sequences(row._replace(last_seq=None) if row.count else row, origin, demand)


MUTANTS = ReferenceBroker.__subclasses__()
