"""Judges that each break one rule. A harness that lets one of them pass does not look."""

from __future__ import annotations

from typing import Any

from support.reference import ReferenceTable, highest_of


class GapAccepted(ReferenceTable):
    def judge_next(self, entry: Any, seq: int) -> tuple[str, int | None]:
        verdict, expected = super().judge_next(entry, seq)
        if verdict == "OUT_OF_ORDER" and seq > entry.recent[-1]:
            entry.recent.append(seq)
            return "ACCEPTED", None
        return verdict, expected


class WindowTooLong(ReferenceTable):
    def judge_next(self, entry: Any, seq: int) -> tuple[str, int | None]:
        known = seq in entry.recent[-self.policy["window"] - 1 :]
        return ("DUPLICATE", None) if known else super().judge_next(entry, seq)


class WindowTooShort(ReferenceTable):
    def judge_next(self, entry: Any, seq: int) -> tuple[str, int | None]:
        forgotten = seq == entry.recent[-self.policy["window"] :][0] and len(entry.recent) > 1
        return ("OUT_OF_ORDER", self.after(entry.recent[-1])) if forgotten else super().judge_next(entry, seq)


class FenceIgnoresEpochs(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        entry = self.entries.get(key)
        return super().judge(key, max(epoch, entry.epoch) if entry and epoch is not None else epoch, seq)


class DuplicateBeforeFence(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        entry = self.entries.get(key)
        known = entry and self.policy["admit"] == "next" and seq in entry.recent
        return ("DUPLICATE", None) if known else super().judge(key, epoch, seq)


class BumpBeginsAnywhere(ReferenceTable):
    def begin(self, slot: Any, key: Any, epoch: Any, seq: int, only_zero: bool) -> tuple[str, int | None]:
        return super().begin(slot, key, epoch, seq, only_zero and self.policy["first"] == "zero")


class RefusedBumpReplaces(ReferenceTable):
    def begin(self, slot: Any, key: Any, epoch: Any, seq: int, only_zero: bool) -> tuple[str, int | None]:
        verdict = super().begin(slot, key, epoch, seq, only_zero)
        if verdict[0] == "OUT_OF_ORDER":
            self.entries.pop(slot, None)
        return verdict


class FirstIsNeverZero(ReferenceTable):
    def begin(self, slot: Any, key: Any, epoch: Any, seq: int, only_zero: bool) -> tuple[str, int | None]:
        return super().begin(slot, key, epoch, seq, only_zero and slot in self.entries)


class HeadIsNotMissing(ReferenceTable):
    def start(self, entry: Any) -> int:
        return min(entry.positions)


class WrapDoesNotWrap(ReferenceTable):
    def position(self, highest: int, seq: int) -> int:
        return seq


class NearestLap(ReferenceTable):
    """Serial numbers of RFC 1982, which would treat a replay from far back as the next lap."""

    def position(self, highest: int, seq: int) -> int:
        wrap = self.policy["wrap"]
        if wrap is None:
            return seq
        lap = highest // wrap
        return min((seq + (lap + step) * wrap for step in (-1, 0, 1)), key=lambda p: abs(p - highest))


class NoLapBefore(ReferenceTable):
    def position(self, highest: int, seq: int) -> int:
        wrap, position = self.policy["wrap"], super().position(highest, seq)
        return position if wrap is None or position // wrap >= highest // wrap else position + wrap


class LapBeforeTheFirst(ReferenceTable):
    def position(self, highest: int, seq: int) -> int:
        first = self.policy["first"]
        self.policy = self.policy | {"first": "any"}
        position = super().position(highest, seq)
        self.policy = self.policy | {"first": first}
        return position


class ZoneTooWide(ReferenceTable):
    def position(self, highest: int, seq: int) -> int:
        wrap = self.policy["wrap"]
        if wrap is not None and highest % wrap == wrap - min(wrap // 4, 2**20) - 1 and seq < min(wrap // 4, 2**20):
            return (highest // wrap + 1) * wrap + seq
        return super().position(highest, seq)


class JumpOffByOne(ReferenceTable):
    def position(self, highest: int, seq: int) -> int:
        position = super().position(highest, seq)
        return position + (self.policy["max_jump"] == position - highest)


class RefusedRowLeavesATrace(ReferenceTable):
    def judge_forward(self, entry: Any, position: int) -> tuple[str, int | None]:
        verdict = super().judge_forward(entry, position)
        entry.positions.add(position)
        return verdict


class LateIsNew(ReferenceTable):
    def judge_forward(self, entry: Any, position: int) -> tuple[str, int | None]:
        return self.judge_any(entry, position)


class LateIsAlwaysARepeat(ReferenceTable):
    def judge_forward(self, entry: Any, position: int) -> tuple[str, int | None]:
        late = position <= max(entry.positions)
        return ("DUPLICATE", None) if late else super().judge_forward(entry, position)


class BelowTheFirstIsKnown(ReferenceTable):
    def judge_any(self, entry: Any, position: int) -> tuple[str, int | None]:
        return ("DUPLICATE", None) if position < min(entry.positions) else super().judge_any(entry, position)


class OpenHolesAreRepeated(ReferenceTable):
    def apply(self, rows: Any, has_epoch: bool = True) -> Any:
        judged = super().apply(rows, has_epoch)
        judged.missing = self.missing()
        return judged


class StaleByMention(ReferenceTable):
    """Treats the highest epoch seen as the highest accepted."""

    def is_stale(self, key: Any, epoch: Any) -> bool:
        self.seen = getattr(self, "seen", {})
        self.seen[key] = max(self.seen.get(key, 0), epoch or 0)
        return self.policy["epochs"] != "ignore" and epoch < self.seen[key]


class MinusOneIsAPid(ReferenceTable):
    @staticmethod
    def is_untracked(pid: Any) -> bool:
        return pid is None


class PartitionIsNoKey(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        return super().judge((key[0], 0), epoch, seq)


class KeysAreGlued(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        glued = "".join(map(str, key[0])) if isinstance(key[0], tuple) else key[0]
        return super().judge((glued, key[1]), epoch, seq)


MUTANTS = ReferenceTable.__subclasses__()
"""All above."""

# Of forgetting


class HorizonIsExclusive(ReferenceTable):
    def is_old(self) -> bool:
        return super().is_old() and self.timestamp != self.horizon


class NothingIsOld(ReferenceTable):
    def is_old(self) -> bool:
        return False


class OldRepeatsAreForgotten(ReferenceTable):
    def is_held(self, entry: Any, position: int) -> bool:
        return False


class OldHolesAreHeld(ReferenceTable):
    def is_held(self, entry: Any, position: int) -> bool:
        return min(entry.positions) <= position <= max(entry.positions)


class HorizonBeforeTheFence(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        verdict, expected = super().judge(key, epoch, seq)
        return ("FORGOTTEN", None) if verdict == "FENCED" and self.is_old() else (verdict, expected)


class RepeatsKeepAlive(ReferenceTable):
    def judge(self, key: Any, epoch: int | None, seq: int) -> tuple[str, int | None]:
        verdict = super().judge(key, epoch, seq)
        if verdict[0] == "DUPLICATE":
            self.note(self.entries[self.slot(key, epoch)])
        return verdict


class LatestToArriveIsLast(ReferenceTable):
    def note(self, entry: Any) -> None:
        super().note(entry)
        entry.last_timestamp = self.timestamp


class AgeOfThePresentEpoch(ReferenceTable):
    def begin(self, slot: Any, key: Any, epoch: Any, seq: int, only_zero: bool) -> tuple[str, int | None]:
        verdict = super().begin(slot, key, epoch, seq, only_zero)
        if verdict[0] == "ACCEPTED":
            self.entries[slot].last_timestamp = None
        return verdict


class MergedAgeOfTheHigherEpoch(ReferenceTable):
    def merge(self, other: Any) -> Any:
        both = [(slot, self.entries[slot], theirs) for slot, theirs in other.entries.items() if slot in self.entries]
        ages = {
            slot: max(ours, theirs, key=lambda entry: entry.epoch).last_timestamp
            for slot, ours, theirs in both
            if ours.epoch != theirs.epoch
        }
        overlap = super().merge(other)
        for slot, age in ages.items():
            self.entries[slot].last_timestamp = age
        return overlap


class HorizonFalls(ReferenceTable):
    def evict(self, now_ms: int, max_idle_ms: int) -> int:
        self.horizon = None
        return super().evict(now_ms, max_idle_ms)


class EvictsTooLate(ReferenceTable):
    def evict(self, now_ms: int, max_idle_ms: int) -> int:
        dropped = super().evict(now_ms - 1, max_idle_ms)
        self.horizon = max(self.horizon, now_ms - max_idle_ms)
        return dropped


class EvictsTooSoon(ReferenceTable):
    def evict(self, now_ms: int, max_idle_ms: int) -> int:
        before = self.horizon
        dropped = super().evict(now_ms + 1, max_idle_ms)
        self.horizon = highest_of(before, now_ms - max_idle_ms)
        return dropped


class NothingIsFinal(ReferenceTable):
    def finish(self, entry: Any, holes: Any) -> None:
        pass


class FinalRangeIsReplaced(ReferenceTable):
    def finish(self, entry: Any, holes: Any) -> None:
        entry.final = None if holes else entry.final
        super().finish(entry, holes)


class FinalRepeatsAreKnown(ReferenceTable):
    def place(self, entry: Any, seq: int) -> tuple[str, int | None]:
        border = self.call.border
        position = self.position(max(entry.positions), seq)
        self.call.border = border
        is_known = entry.is_final(position) and position in entry.positions
        return ("DUPLICATE", None) if is_known else super().place(entry, seq)


class ReachTooLong(ReferenceTable):
    def settle(self, entry: Any) -> None:
        chosen = self.policy
        self.policy = chosen | {"reach": chosen["reach"] and chosen["reach"] + 1}
        super().settle(entry)
        self.policy = chosen


class ReachTooShort(ReferenceTable):
    def settle(self, entry: Any) -> None:
        chosen = self.policy
        self.policy = chosen | {"reach": chosen["reach"] and chosen["reach"] - 1}
        super().settle(entry)
        self.policy = chosen


class ReachByWholeHoles(ReferenceTable):
    def finish(self, entry: Any, holes: Any) -> None:
        whole = [hole for hole in self.holes(entry) if any(hole.first == it.first for it in holes)]
        super().finish(entry, [hole for hole in whole if any(hole.last == it.last for it in holes)])


class PartsAreYounger(ReferenceTable):
    """Treats the row that splits a hole as the one that opened the rest."""

    def opened_at(self, entry: Any, first: int, last: int) -> int | None:
        return entry.last_timestamp if last + 1 in entry.positions and last + 1 != max(entry.positions) else (
            ReferenceTable.opened_at(entry, first, last)
        )  # fmt: skip


class ForgetsOneEpoch(ReferenceTable):
    def forget(self, pid: Any, partition: Any = None) -> int:
        kept = {slot: entry for slot, entry in self.entries.items() if entry.key[0] == pid and entry.epoch}
        dropped = super().forget(pid, partition)
        self.entries |= kept
        return dropped


class ForgetsEveryPartition(ReferenceTable):
    def forget(self, pid: Any, partition: Any = None) -> int:
        return super().forget(pid)


class HolesWithoutBound(ReferenceTable):
    def check_holes(self) -> None:
        pass


class OneHoleTooMany(ReferenceTable):
    def check_holes(self) -> None:
        chosen = self.policy
        self.policy = chosen | {"intervals_max": chosen["intervals_max"] and chosen["intervals_max"] + 1}
        try:
            super().check_holes()
        finally:
            self.policy = chosen


class MergesBeyondTheBound(ReferenceTable):
    is_merging = False

    def check_holes(self) -> None:
        if not self.is_merging:
            super().check_holes()

    def merge(self, other: Any) -> Any:
        self.is_merging = True
        try:
            return super().merge(other)
        finally:
            self.is_merging = False


class OverlapOfWhatIsFinal(ReferenceTable):
    @staticmethod
    def accepted(entry: Any) -> set[int]:
        return entry.positions


class MergesAtTheBorder(ReferenceTable):
    def is_at_border(self, *entries: Any) -> bool:
        return False


class MergedTimestampsAreOurs(ReferenceTable):
    def union(self, ours: Any, theirs: Any) -> Any:
        united = super().union(ours, theirs)
        united.opened = [hole._replace(timestamp=ours.last_timestamp) for hole in united.opened]
        return united


class MergedFinalRangeIsOurs(ReferenceTable):
    def union(self, ours: Any, theirs: Any) -> Any:
        united = super().union(ours, theirs)
        united.final = ours.final
        return united


class MergeReachesAtOnce(ReferenceTable):
    def union(self, ours: Any, theirs: Any) -> Any:
        united = super().union(ours, theirs)
        self.settle(united)
        return united


class MergeKeepsTheLowerEpoch(ReferenceTable):
    def merge(self, other: Any) -> Any:
        before = dict(self.entries)
        overlap = super().merge(other)
        self.entries |= {slot: entry for slot, entry in before.items() if self.entries[slot].epoch != entry.epoch}
        return overlap


class MergedHorizonIsOurs(ReferenceTable):
    def merge(self, other: Any) -> Any:
        before = self.horizon
        overlap = super().merge(other)
        self.horizon = before
        return overlap


FORGETFUL = ReferenceTable.__subclasses__()[len(MUTANTS) :]
