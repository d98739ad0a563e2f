"""Judges that each break one rule. A harness that lets one of them pass does not look."""

from __future__ import annotations

from typing import Any

from reference import ReferenceTable


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
    """RFC 1982, which would take a replay from far back for the next lap."""

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
    """Takes the highest epoch seen for the highest accepted."""

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


MUTANTS = [
    *(GapAccepted, WindowTooLong, WindowTooShort, FenceIgnoresEpochs, DuplicateBeforeFence, BumpBeginsAnywhere),
    *(RefusedBumpReplaces, FirstIsNeverZero, HeadIsNotMissing, WrapDoesNotWrap, NearestLap, NoLapBefore),
    *(LapBeforeTheFirst, ZoneTooWide, JumpOffByOne, RefusedRowLeavesATrace, LateIsNew, LateIsAlwaysARepeat),
    *(BelowTheFirstIsKnown, OpenHolesAreRepeated, StaleByMention, MinusOneIsAPid, PartitionIsNoKey, KeysAreGlued),
]
