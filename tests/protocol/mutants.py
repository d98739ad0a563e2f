"""Protocols that each break one rule. The explorer must detect each.

`caught_by` is the property that its shortest failure breaks; `sink` and `bounds` limit the search.
"""

from __future__ import annotations

from protocol.model import (
    ABANDON,
    ABANDONED,
    ABSENT,
    APPLIED_ERROR,
    APPLY,
    COPY,
    DECIDE,
    DISCARD,
    ERROR,
    EXISTS,
    FENCE,
    FINISH,
    FREE,
    GONE,
    HEAD,
    LATE,
    LIST,
    MOVED,
    OK,
    OWN_EXISTS,
    READABLE,
    RECOVER,
    RUN,
    SEAL_LOG,
    SEAL_SINK,
    SEALED,
    THERE,
    Bounds,
    Driver,
    Protocol,
    Shown,
    applied,
    described,
    newest,
    replaced,
)


class Mutant(Protocol):
    sink = "run"
    bounds = Bounds(faults=1, starts=3, changes=1)
    caught_by = ""

    def __init__(self) -> None:
        super().__init__(type(self).sink, type(self).bounds)


class RelistOnRecovery(Mutant):
    """Recovery lists the source again, and publishes what it finds under the number that the sink has."""

    caught_by = "cardinality_is_rows"

    def recover(self, w, d, version, nonce):
        before = w.log[version - 2][0] if version > 1 else 0
        inputs = w.source & ~(w.attempts[before - 1].ledger if before else 0)
        attempt = self.prepared(w, version, before, inputs)._replace(segments=SEALED, outputs=SEALED)
        w = w._replace(attempts=(*w.attempts, attempt))
        again = len(w.attempts)
        shown = w.sink[version - 1]
        if shown and shown.who > 0:  # The sink has the number already: nothing to apply.
            w = self.change_attempt(w, again, kept=w.attempts[nonce - 1].kept)
            w = self.show(w, version, shown._replace(who=again))
        w = w._replace(log=replaced(w.log, version - 1, (again, True)))
        yield f"{version} again, with {described(inputs)}", "", w, Driver(APPLY, True, RECOVER, version, again)


class TrustsTheHint(Mutant):
    """A version that the hint names counts as done."""

    caught_by = "history_has_no_gap"

    def newest_by(self, w, hint):
        return max(hint, newest(w.done)), max(hint, newest(w.log))

    def head_of(self, w, d, done, decided):
        known = newest(w.done)
        if known < done == decided < self.bounds.versions and d.about == RUN:
            yield f"{done} is done", "", w, d._replace(step=LIST, version=done + 1, base=applied(w, known))
        else:
            yield from super().head_of(w, d, known, newest(w.log))


class StateOfAnotherAttempt(Mutant):
    """Segments are named by version alone: a later attempt writes over an earlier one's."""

    caught_by = "loser_changes_nothing"

    def store_segments(self, w, attempt):
        for nonce, other in enumerate(w.attempts, 1):
            if other.version == attempt.version and other.segments in READABLE:
                w = self.change_attempt(w, nonce, stored=attempt.state)
        return w


class ExistsIsLost(Mutant):
    """A put that finds its own success treats it as another's: the retry of a request whose answer was lost."""

    caught_by = "references_exist"

    def after_decide(self, outcome):
        return DISCARD if outcome in (EXISTS, OWN_EXISTS) else super().after_decide(outcome)


class ErrorIsLost(Mutant):
    """An error of a put is treated as "nothing happened", without reading back."""

    caught_by = "references_exist"

    def after_decide(self, outcome):
        return DISCARD if outcome in (APPLIED_ERROR, LATE, ERROR) else super().after_decide(outcome)


class AbsentIsLost(Mutant):
    """After an error, and nothing to read, a run gives up and removes its files; then its put lands."""

    caught_by = "references_exist"

    def read_log(self, w, d):
        for text, outcome, world, then in super().read_log(w, d):
            yield text, outcome, world, then._replace(step=DISCARD if then.step == DECIDE else then.step)


class LoserBelievesUnsynced(Mutant):
    """A loser discards though a power loss can still take the winner's link back, and its own put land then."""

    bounds = Bounds(faults=2, starts=2, changes=0, abandons=0, free=True)
    caught_by = "references_exist"

    def seal_lost(self, w, version):
        return w


class ExistsIsWon(Mutant):
    """A put that finds the name taken continues as if it had won."""

    caught_by = "numbers_decided_once"

    def after_decide(self, outcome):
        return SEAL_LOG if outcome == EXISTS else super().after_decide(outcome)


class PutReplaces(Mutant):
    """The store ignores the condition of the put."""

    caught_by = "loser_changes_nothing"

    def put(self, w, name, version, value):
        yield OK, self.landed(w, name, version, value)


class BuildsOnUnfinished(Mutant):
    """A run builds on what is decided, before it is done."""

    caught_by = "history_has_no_gap"

    def recover(self, w, d, version, nonce):
        yield from super().recover(w, d, version, nonce)
        if version < self.bounds.versions:
            yield f"{version} is decided", "", w, d._replace(step=LIST, version=version + 1, base=nonce)


class DoneBeforeApply(Mutant):
    """done/<n> is put before the sink has n."""

    caught_by = "done_is_shown"

    def recover(self, w, d, version, nonce):
        for text, outcome, world, then in super().recover(w, d, version, nonce):
            yield text, outcome, world, then._replace(step=FINISH, note=nonce)

    def seal_log(self, w, d):
        for text, outcome, world, then in super().seal_log(w, d):
            yield text, outcome, world, then._replace(step=FINISH, note=d.nonce)

    def seal_done(self, w, d):
        for text, outcome, world, _ in super().seal_done(w, d):
            yield text, outcome, world, d._replace(step=APPLY)

    def seal_sink(self, w, d):
        for text, outcome, world, _ in super().seal_sink(w, d):
            yield text, outcome, world, Driver()


class CollectsByAge(Mutant):
    """What nothing names and has lain for long is collected, whatever its number: a paused run's files too."""

    caught_by = "references_exist"

    def is_garbage(self, w, nonce):
        named = nonce in (entry[0] for entry in w.log if entry)
        return (False, False) if named else (nonce not in self.retained(w, newest(w.done)), True)


class CollectsLastPlusOne(Mutant):
    """The collector also treats the number after the last one as garbage, if it is not decided."""

    bounds = Bounds(faults=1, starts=2, changes=1, abandons=0)
    caught_by = "references_exist"

    def is_garbage(self, w, nonce):
        last = w.collector
        version = w.attempts[nonce - 1].version
        if not last or version > last + 1 or (version == last + 1 and w.log[last]):
            return False, False
        return nonce not in self.retained(w, last), True


class CollectorBelievesUnsynced(Mutant):
    """The collector trusts a done/<n> that a power loss can still remove."""

    bounds = Bounds(faults=2, starts=2, changes=1, abandons=0)
    caught_by = "references_exist"

    def observe(self, w, done):
        return w._replace(collector=done)


class RetainsNewestNumber(Mutant):
    """The collector retains the newest done version, also where that was abandoned and the next builds on another."""

    bounds = Bounds(faults=1, starts=4, changes=1)
    caught_by = "references_exist"

    def retained(self, w, until):
        nonce = w.log[until - 1][0] if until else 0
        return (nonce, *w.attempts[nonce - 1].refs) if nonce else ()


class ReusedNumbers(Mutant):
    """Abandoning clears the number, and the next run uses it again."""

    caught_by = "numbers_decided_once"

    def seal_done(self, w, d):
        for text, outcome, world, then in super().seal_done(w, d):
            if d.note == ABANDONED and d.about == ABANDON:
                cleared = {
                    name: replaced(getattr(world, name), d.version - 1, None) for name in ("log", "done", "sink")
                }
                world = world._replace(**cleared)
            yield text, outcome, world, then

    def finish(self, w, d):
        if w.log[d.version - 1]:
            yield from super().finish(w, d)
        else:
            yield "its decision is cleared, stops", "", w, Driver()


class NoContentSync(Mutant):
    """Prepared files are named durably, their content is not synced."""

    caught_by = "references_exist"

    def sync_contents(self, w, nonce):
        return w

    def seal_names(self, w, nonce):
        return w


class NoNameSync(Mutant):
    """Prepared files are synced, the folders with their names are not."""

    caught_by = "references_exist"

    def seal_names(self, w, nonce):
        return w


class NoLogSync(Mutant):
    """The link of log/<n> is not synced before the sink shows n."""

    caught_by = "history_has_no_gap"

    def seal_decision(self, w, version):
        return w


class NoDoneSync(Mutant):
    """The link of done/<n> is not synced, neither by its writer nor by a run that builds on it."""

    bounds = Bounds(faults=2, starts=2, changes=1)
    caught_by = "history_has_no_gap"

    def seal_done(self, w, d):
        yield "not synced", "", w, Driver(HEAD, True) if d.about == RECOVER else Driver()

    def seal_head(self, w):
        return w


class NoSinkSync(Mutant):
    """The rename to run=<n> is not synced before done/<n>."""

    caught_by = "done_is_shown"

    def seal_sink(self, w, d):
        yield "not synced", "", w, d._replace(step=FINISH)


class TrustsUnsyncedHead(Mutant):
    """A run builds on log/<n> or done/<n> without a sync; their writer died before the folder was synced."""

    bounds = Bounds(faults=2, starts=2, changes=1)
    caught_by = "history_has_no_gap"

    def seal_head(self, w):
        return w


class TrustsUnsyncedFolder(Mutant):
    """An existing segments/<n> is not synced again; its creator has not synced the folder above yet."""

    bounds = Bounds(faults=2, starts=2, changes=1)
    caught_by = "references_exist"

    def seal_shared(self, w, version, made):
        return super().seal_shared(w, version, made) if made else w


class RenamesFileByFile(Mutant):
    """run=<n> is made first and filled file by file."""

    caught_by = "versions_are_whole"

    def apply_run(self, w, d):
        shown, attempt = w.sink[d.version - 1], w.attempts[d.nonce - 1]
        if shown is None or shown.who == d.nonce:
            shown = shown or Shown(d.nonce, True, (0,) * len(attempt.kept))
            then = d._replace(step=COPY, note=0)
            yield f"make run={d.version}", "", self.show(w, d.version, shown), then
        else:
            yield from super().apply_run(w, d)


class ZombieOverwrites(Mutant):
    """Apply replaces the content of the sink under the number by a copy of the prepared files."""

    bounds = Bounds(faults=1, starts=2, changes=0, abandons=0)
    caught_by = "done_is_shown"

    def apply_run(self, w, d):
        attempt = w.attempts[d.nonce - 1]
        if attempt.outputs in READABLE:
            shown = Shown(d.nonce, False, (1,) * len(attempt.kept))
            yield "remove, and copy", "", self.show(w, d.version, shown), d._replace(step=SEAL_SINK, note=d.nonce)
        else:
            yield "remove; there is nothing to copy", "", self.show(w, d.version, None), Driver()


class TakesAnyFolder(Mutant):
    """Apply treats any content under the number as its own."""

    bounds = Bounds(faults=2, starts=2, changes=1)
    caught_by = "done_is_shown"

    def find_shown(self, w, d, shown, seal):
        yield "something is there", "", w, seal


class EmptyRunFolder(Mutant):
    """A version without output is an empty folder, which a rename replaces: it keeps no fence out."""

    bounds = Bounds(faults=0, starts=2, changes=1, free=True)
    caught_by = "done_is_shown"

    def put_fence(self, w, d):
        shown = w.sink[d.version - 1]
        if shown and shown.who > 0 and not shown.files:
            fence = Shown(FENCE, True, ())
            yield (
                "over the empty folder",
                "",
                self.show(w, d.version, fence),
                d._replace(step=SEAL_SINK, note=ABANDONED),
            )
        else:
            yield from super().put_fence(w, d)


class DiscardsByNumber(Mutant):
    """A loser removes everything under its number, the winner's files too."""

    caught_by = "loser_changes_nothing"

    def discard(self, w, d):
        for nonce, attempt in enumerate(w.attempts, 1):
            if attempt.version == d.version:
                outputs = attempt.outputs if attempt.outputs == MOVED else GONE
                w = self.change_attempt(w, nonce, segments=GONE, outputs=outputs)
        yield f"all of version {d.version}", "", w, Driver()


class RecoveryReadsSource(Mutant):
    """Recovery reads the decided inputs again, and stops where one is gone."""

    caught_by = "finishable_without_source"

    def recover(self, w, d, version, nonce):
        if w.source & w.attempts[nonce - 1].inputs != w.attempts[nonce - 1].inputs:
            yield "an input is gone, stops", "", w, Driver()
        else:
            yield from super().recover(w, d, version, nonce)


class BuildsOnAbandoned(Mutant):
    """A run builds on the version before, also where that was abandoned."""

    bounds = Bounds(faults=1, starts=3, changes=1)
    caught_by = "identities_once"

    def head(self, w, d):
        for text, outcome, world, then in super().head(w, d):
            base = world.log[then.version - 2][0] if then.step == LIST and then.version > 1 else then.base
            yield text, outcome, world, then._replace(base=base)


class FenceBesideFiles(Mutant):
    """In a prefix the fence has a name of its own: a driver that is among the files does not meet it."""

    sink = "prefix"
    caught_by = "abandoned_never_appears"

    def put_fence(self, w, d):
        shown = w.sink[d.version - 1]
        if shown is None or (shown.who > 0 and not any(shown.files)):
            fence = Shown(FENCE, True, (ABSENT,) * len(w.attempts[d.nonce - 1].kept))
            yield "a name of its own", "", self.show(w, d.version, fence), d._replace(step=FINISH, note=ABANDONED)
        else:
            yield from super().put_fence(w, d)

    def copy(self, w, d):
        shown, attempt = w.sink[d.version - 1], w.attempts[d.nonce - 1]
        if shown.who == FENCE and d.note < len(attempt.kept) and attempt.outputs in READABLE:
            # The model has one entry for fence and files: the file shows that the version is there.
            files = replaced((ABSENT,) * len(attempt.kept), d.note, THERE)
            world = self.show(w, d.version, Shown(d.nonce, True, files))
            yield f"{d.version}-{d.note}", "", world, d._replace(note=d.note + 1)
        else:
            yield from super().copy(w, d)


class BelievesTheClaimIsLost(Mutant):
    """In a prefix, an answer "exists" to a claim is treated as the fence of another driver, without reading."""

    sink = "prefix"
    caught_by = "abandoned_never_appears"
    bounds = Bounds(faults=2, starts=3, changes=0)

    def after_claim(self, d, outcome):
        if outcome in (EXISTS, OWN_EXISTS) and d.about != ABANDON:
            return d._replace(step=FINISH, note=ABANDONED)
        return super().after_claim(d, outcome)


class ClearsWhenDone(Mutant):
    """In a prefix, prepared files stay until the version is done: a paused driver copies them again."""

    sink = "prefix"
    caught_by = "removed_stays_away"

    def clear(self, w, d):
        yield "nothing", "", w, d._replace(step=FINISH)


class MarksFirst(Mutant):
    """In a prefix the mark is put before the files."""

    sink = "prefix"
    bounds = Bounds(faults=0, starts=1, changes=0)
    caught_by = "versions_are_whole"

    def copy(self, w, d):
        shown = w.sink[d.version - 1]
        if shown.marked:
            yield from super().copy(w, d)
        else:
            yield "the mark first", "", self.show(w, d.version, shown._replace(marked=True)), d


class JudgesReAdds(Mutant):
    """What a compaction of the table writes again is judged as new: each row is known, and every copy is hidden."""

    sink = "table"
    bounds = Bounds(faults=0, starts=2, changes=1)
    caught_by = "identities_once"

    def judged_files(self):
        return ~0


class CommitsTwice(Mutant):
    """A commit to the table does not depend on the version that the table has."""

    sink = "table"
    caught_by = "abandoned_never_appears"

    def apply_table(self, w, d):
        hidden = tuple(entry for entry in w.sink.hidden if entry != (FENCE, d.version))
        table = w.sink._replace(version=d.version, hidden=(*hidden, *w.attempts[d.nonce - 1].dropped))
        yield f"commit {d.version}", "", w._replace(sink=table), d._replace(step=FINISH, note=d.nonce)


class FenceLooksApplied(Mutant):
    """The table's version number alone means that a version is applied; the empty commit of `abandon` has it too."""

    sink = "table"
    bounds = Bounds(faults=2, starts=2, changes=0)
    caught_by = "done_is_shown"

    def apply_table(self, w, d):
        if w.sink.version >= d.version:
            yield "the table has it", "", w, d._replace(step=FINISH, note=d.nonce)
        else:
            yield from super().apply_table(w, d)


class Folding(Mutant):
    """What mutants that break folding have in common."""

    bounds = Bounds(faults=1, starts=2, changes=1, abandons=0, folds=True)


class TrimsBeforeSync(Folding):
    """The log goes as soon as the floor is put, synced or not."""

    caught_by = "history_has_no_gap"

    def trimmable(self, w):
        return w.folded[0]


class ForgetsTheFloor(Folding):
    """A put of log/<n> always decides."""

    bounds = Bounds(faults=1, starts=3, changes=1, abandons=0, folds=True)
    caught_by = "numbers_decided_once"

    def floor_of(self, w, d):
        return 0


class ReadsTheFloorFirst(Folding):
    """The floor is read before log/<n> is put, not after."""

    bounds = Bounds(faults=1, starts=3, changes=1, abandons=0, folds=True)
    caught_by = "numbers_decided_once"

    def seal(self, w, d):
        is_folded = 2 * (d.version <= w.folded[0])
        for text, outcome, world, then in super().seal(w, d):
            yield text, outcome, world, then._replace(note=is_folded)

    def floor_of(self, w, d):
        return d.version if d.note == 2 else 0


class DiscardsWhatIsFolded(Folding):
    """A driver that finds its version folded treats it as lost, and removes its prepared files."""

    caught_by = "references_exist"

    def leave_folded(self, w, d):
        return self.change_attempt(super().leave_folded(w, d), d.nonce, segments=GONE)


class BelievesUnsyncedFloor(Folding):
    """A driver that finds its version folded removes log/<n>, though a power loss may take the floor back."""

    bounds = Bounds(faults=2, starts=2, changes=1, abandons=0, folds=True)
    caught_by = "history_has_no_gap"

    def seal_floor(self, w):
        return w


class FoldsFences(Folding):
    """Marks of abandoned versions go too: a driver that was paused before the fence finds the name free."""

    bounds = Bounds(faults=1, starts=2, changes=1, abandons=1, folds=True)
    caught_by = "identities_once"

    def without_marks(self, w):
        yield from super().without_marks(w)
        for version, shown in enumerate(w.sink[: self.trimmable(w)], 1):
            if shown and shown.owner() == FENCE:
                yield version, None


class FoldsBeforeDone(Folding):
    """Marks of applied versions go before the versions are done: `abandon` finds the name free."""

    sink = "prefix"
    bounds = Bounds(faults=1, starts=1, changes=0, abandons=1, folds=True)
    caught_by = "abandoned_never_appears"

    def without_marks(self, w):
        for version, shown in enumerate(w.sink, 1):
            if shown and shown.owner() > 0 and shown.marked:
                yield version, shown._replace(claim=FREE)


MUTANTS: tuple[type[Mutant], ...] = (
    *(it for it in Mutant.__subclasses__() if it is not Folding),
    *Folding.__subclasses__(),
)
