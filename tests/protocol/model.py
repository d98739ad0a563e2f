"""The commit protocol as a state machine, small enough to be explored whole. `docs/commit-protocol.md` explains it.

A world is a value: what is on the disks (with what a power loss would take), what each driver remembers, and how many
faults may still happen. `Protocol.actions` gives every next world. Mutants override single methods of `Protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

# Identities are bits: key 0 has 1 and 2, key 1 has 4 and 8. A shard holds one key.
SHARDS = (0b0011, 0b1100)

# Files of the source, by bit. A2 is what A is overwritten with; Z is what a compaction of the table writes.
A, B, C, A2, Z = 1, 2, 4, 8, 16
NAMES = {A: "a", B: "b", C: "c", A2: "a (overwritten)", Z: "z (compacted)"}
CONTENT = {A: 0b0101, B: 0b0011, C: 0b1100, A2: 0b0101}

# What is known of a prepared file or folder.
GONE, WRITTEN, SYNCED, SEALED, CORRUPT, MOVED = range(6)
READABLE = (WRITTEN, SYNCED, SEALED)

ABSENT, THERE, REMOVED, BACK = range(4)  # an output in the sink

FENCE, FOREIGN = -1, -2  # what the sink has under a number, when it is not an attempt
FREE = 0  # nobody: the version is there, and its name was folded
ABANDONED = -1  # what done/<n> says, when it is no attempt

# The next step of a driver.
(
    IDLE, HEAD, LIST, WRITE, SYNC, SEAL, DECIDE, READ_LOG, SEAL_LOG, APPLY, READ_CLAIM, COPY, MARK, CLEAR, SEAL_SINK,
    FINISH, READ_DONE, SEAL_DONE, DISCARD, PUT_FENCE, READ_FLOOR,
) = range(21)  # fmt: skip
STEPS = (
    "idle", "head", "list", "write", "sync", "seal", "decide", "read log", "seal log", "apply", "read claim", "copy",
    "mark", "clear", "seal sink", "finish", "read done", "seal done", "discard", "put fence", "read floor",
)  # fmt: skip

RUN, ABANDON, RECOVER = range(3)  # what a driver is about
LOST = 1  # what a driver notes that has read another's log/<n>

# What a put-if-absent may tell. All but the first two are lies or silence, and cost a fault.
OK, EXISTS, OWN_EXISTS, APPLIED_ERROR = "ok", "exists", "own taken for another's", "applied, error"
LATE, ERROR = "error, may land later", "error"
PUT_OUTCOMES = (OK, EXISTS, OWN_EXISTS, APPLIED_ERROR, LATE, ERROR)


class Attempt(NamedTuple):
    """The files that one run prepared, and its possible decision. Its nonce is its place in the list, from 1."""

    version: int
    inputs: int
    """Files, as bits."""
    kept: tuple[int, ...]
    """Identities of each output file; an input of which nothing is kept has none."""
    dropped: tuple[tuple[int, int], ...]
    """(file, identities that are not kept), for the table."""
    state: int
    """Identities known after it, as the decision says (by hash)."""
    stored: int
    """Identities in its segment files, as they are."""
    ledger: int
    """All files read so far."""
    refs: tuple[int, ...]
    """Per shard the nonce of the attempt whose segment counts; 0 where there is none."""
    segments: int
    outputs: int


class Shown(NamedTuple):
    """What the sink has under a number."""

    who: int
    durable: bool
    files: tuple[int, ...]
    """Per output ABSENT, THERE, REMOVED by its user, or BACK after that."""
    marked: bool = False
    """Whether a prefix says that all files are there."""
    claim: int | None = None
    """Who has the version's name: None where it is `who`, FREE where the name was folded, FENCE where a fence took it
    after that."""

    def owner(self) -> int:
        return self.who if self.claim is None else self.claim


class Table(NamedTuple):
    """A table deduplicated in place; its commits are durable and atomic."""

    version: int
    """The newest of our versions that it has."""
    hidden: tuple[tuple[int, int], ...]
    """(file, identities that its deletion vector hides)."""
    compacted: int
    """Identities in the file that a compaction wrote."""


class Driver(NamedTuple):
    step: int = IDLE
    active: bool = False
    about: int = RUN
    version: int = 0
    nonce: int = 0
    base: int = 0
    """The nonce of the version that it builds on."""
    note: int = 0
    """The inputs; the file that comes next; what done/<n> is to say; whether log/<n> is another's."""


class World(NamedTuple):
    source: int
    """Files that are there."""
    unseen: int
    """Files that may still be added."""
    changes: int
    """How often the source, or the sink by others, may still change."""
    attempts: tuple[Attempt, ...]
    log: tuple[tuple[int, bool] | None, ...]
    """(nonce, durable) by version - 1."""
    done: tuple[tuple[int, bool] | None, ...]
    sink: tuple[Shown | None, ...] | Table
    folders: tuple[int, ...]
    """segments/<n>, which attempts share: 0, 1 (its name would not survive a power loss) or 2."""
    flying: tuple[tuple[str, int, int], ...]
    """Puts under way whose writer got an error: ("log", "done" or "sink", version, what they put)."""
    drivers: tuple[Driver, ...]
    collector: int
    """The newest done version that the collector has observed."""
    faults: int
    starts: int
    abandons: int
    acted: tuple[tuple[int, ...], ...]
    """By version, the nonces of the decisions that anybody has acted on; nobody in the world knows."""
    folded: tuple[int, int] = (0, 0)
    """(the floor: the versions up to it are folded; the floor that a power loss leaves)."""


class Bounds(NamedTuple):
    versions: int = 3
    drivers: int = 2
    faults: int = 2
    starts: int = 4
    changes: int = 2
    abandons: int = 1
    folds: bool = False
    """Whether versions are folded."""
    free: bool = False
    """Anyone may act at any time; else a driver runs until it is paused, dies or ends."""


class Action(NamedTuple):
    kind: str
    label: str
    world: World
    driver: int = -1
    step: int = IDLE
    outcome: str = ""


def replaced(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


def durable(entries: tuple, version: int) -> tuple:
    entry = entries[version - 1]
    return replaced(entries, version - 1, (entry[0], True)) if entry and not entry[1] else entries


def newest(entries: tuple) -> int:
    return max((number for number, entry in enumerate(entries, 1) if entry), default=0)


def applied(world: World, until: int) -> int:
    """The nonce of the newest version up to `until` that was not abandoned; 0 where there is none."""
    return next((world.done[n - 1][0] for n in range(until, 0, -1) if world.done[n - 1][0] != ABANDONED), 0)


def committed(world: World) -> int:
    """The nonce of the newest version that the table has and that was not abandoned."""
    fences = [version for who, version in world.sink.hidden if who == FENCE]
    versions = [version for version in range(1, world.sink.version + 1) if version not in fences]
    return world.log[versions[-1] - 1][0] if versions else 0


def files_of(bits: int) -> list[int]:
    return [file for file in NAMES if bits & file]


def described(bits: int) -> str:
    return "{" + ", ".join(NAMES[file] for file in files_of(bits)) + "}"


class Protocol:
    """The protocol as it is meant. `sink` is "run", "prefix" or "table"."""

    def __init__(self, sink: str, bounds: Bounds) -> None:
        self.sink, self.bounds = sink, bounds
        self.finished: dict[World, bool] = {}  # what properties found out about worlds

    def start(self) -> World:
        empty = (None,) * self.bounds.versions
        return World(
            source=A,
            unseen=B | C,
            changes=self.bounds.changes,
            attempts=(),
            log=empty,
            done=empty,
            sink=Table(0, (), 0) if self.sink == "table" else empty,
            folders=(0,) * self.bounds.versions,
            flying=(),
            drivers=(Driver(),) * self.bounds.drivers,
            collector=0,
            faults=self.bounds.faults,
            starts=self.bounds.starts,
            abandons=self.bounds.abandons,
            acted=((),) * self.bounds.versions,
        )

    def actions(self, w: World) -> Iterator[Action]:
        """Everything that can happen next."""
        running = [place for place, driver in enumerate(w.drivers) if driver.active]
        for place in running:
            yield from self.advance(w, place)
            if w.faults:
                driver, spent = w.drivers[place], w.faults - 1
                dead = w._replace(drivers=replaced(w.drivers, place, Driver()), faults=spent)
                yield Action("crash", f"driver {place + 1} dies before: {STEPS[driver.step]}", dead, place)
                asleep = replaced(w.drivers, place, driver._replace(active=False))
                label = f"driver {place + 1} is paused before: {STEPS[driver.step]}"
                yield Action("pause", label, w._replace(drivers=asleep, faults=spent), place)
        if self.bounds.free or not running:
            yield from self.begin(w)
            yield from self.collect(w)
            yield from self.fold(w)
            yield from self.land(w)
            yield from self.disturb(w)
        # While a driver runs, a change matters between list and write alone: any other may as well come before it.
        if self.bounds.free or not running or w.drivers[running[0]].step == WRITE:
            yield from self.change_source(w)
        if w.faults:
            yield from self.lose_power(w)

    # Drivers come, stop and go

    def begin(self, w: World) -> Iterator[Action]:
        idle = next((place for place, driver in enumerate(w.drivers) if driver.step == IDLE), None)
        if idle is not None and w.starts:
            run = w._replace(drivers=replaced(w.drivers, idle, Driver(HEAD, True)), starts=w.starts - 1)
            yield Action("start", f"driver {idle + 1} starts a run", run, idle)
        if idle is not None and w.abandons and newest(w.log) > newest(w.done):
            drivers = replaced(w.drivers, idle, Driver(HEAD, True, ABANDON))
            abandon = w._replace(drivers=drivers, abandons=w.abandons - 1)
            yield Action("abandon", f"driver {idle + 1} starts: abandon {newest(w.log)}", abandon, idle)
        for place, driver in enumerate(w.drivers):
            if driver.step != IDLE and not driver.active:
                awake = w._replace(drivers=replaced(w.drivers, place, driver._replace(active=True)))
                yield Action("resume", f"driver {place + 1} continues, before: {STEPS[driver.step]}", awake, place)

    def advance(self, w: World, place: int) -> Iterator[Action]:
        """The next step of a driver: one, or as many as the put that it makes has outcomes."""
        driver = w.drivers[place]
        for text, outcome, world, then in getattr(self, STEPS[driver.step].replace(" ", "_"))(w, driver):
            label = f"driver {place + 1}, {STEPS[driver.step]}: {text}" + (f" [{outcome}]" if outcome else "")
            moved = world._replace(drivers=replaced(world.drivers, place, then))
            yield Action("step", label, moved, place, driver.step, outcome)

    # The steps: each gives (what happens, outcome of the put if there is one, world, driver)

    def head(self, w, d):
        w = self.seal_head(w)
        # Whatever the hint says: it may be lost, damaged, old, or ahead of what a power loss has left.
        for done, decided in sorted({self.newest_by(w, hint) for hint in range(len(w.log) + 1)}):
            yield from self.head_of(w, d, done, decided)

    def newest_by(self, w: World, hint: int) -> tuple[int, int]:
        """(done, decided), beginning at the version that the hint names: 0 where there is none."""
        done = hint
        while done and done < len(w.done) and w.done[done - 1] and w.done[done]:
            done += 1
        if done <= w.folded[0] or not w.done[done - 1]:
            return newest(w.done), newest(w.log)  # all names are listed
        return done, done + int(done < len(w.log) and w.log[done] is not None)

    def head_of(self, w, d, done, decided):
        if decided > done:
            nonce = w.log[decided - 1][0]
            if d.about == ABANDON:
                w = self.act(w, decided, nonce)
                yield f"{decided} is decided, not done", "", w, d._replace(step=PUT_FENCE, version=decided, nonce=nonce)
            else:
                yield from self.recover(w, d, decided, nonce)
        elif d.about == ABANDON or done == self.bounds.versions:
            yield "nothing to do", "", w, Driver()
        elif decided < done or not all(w.done[w.folded[0] : done]):
            yield "the state is damaged, stops", "", w, Driver()
        else:
            base = applied(w, done)
            yield f"{done} is done", "", w, d._replace(step=LIST, version=done + 1, base=base)

    def seal_head(self, w: World) -> World:
        """Sync what the next step builds on: its writer may have died before its folder was synced."""
        for version in range(1, len(w.log) + 1):
            w = w._replace(log=durable(w.log, version), done=durable(w.done, version))
        return w

    def recover(self, w, d, version, nonce):
        then = Driver(APPLY, True, RECOVER, version, nonce)
        yield f"{version} is decided, not done", "", self.act(w, version, nonce), then

    def act(self, w: World, version: int, nonce: int) -> World:
        """Note that a decision is acted on."""
        known = w.acted[version - 1]
        if nonce in known:
            return w
        return w._replace(acted=replaced(w.acted, version - 1, (*known, nonce)))

    def list(self, w, d):
        if not self.readable(w, d.base):
            yield "its base is collected, gives up", "", w, Driver()
            return
        inputs = w.source & ~(w.attempts[d.base - 1].ledger if d.base else 0) & self.judged_files()
        if inputs:
            yield f"new are {described(inputs)}", "", w, d._replace(step=WRITE, note=inputs)
        else:
            yield "nothing is new", "", w, Driver()

    def judged_files(self) -> int:
        return ~Z

    def readable(self, w: World, nonce: int) -> bool:
        """Whether the state of a version can be read."""
        return not nonce or all(
            w.attempts[ref - 1].segments in READABLE for ref in (nonce, *w.attempts[nonce - 1].refs) if ref
        )

    def write(self, w, d):
        if w.source & d.note != d.note:
            yield "an input is gone or another file, gives up", "", w, Driver()
        elif not self.readable(w, d.base):
            yield "its base is collected, gives up", "", w, Driver()
        else:
            attempt = self.prepared(w, d.version, d.base, d.note)
            w = self.store_segments(w, attempt)
            made = not w.folders[d.version - 1]
            folders = replaced(w.folders, d.version - 1, w.folders[d.version - 1] or 1)
            w = w._replace(attempts=(*w.attempts, attempt), folders=folders)
            nonce = len(w.attempts)
            yield (
                f"{described(d.note)} as attempt {nonce}",
                "",
                w,
                d._replace(step=SYNC, nonce=nonce, base=0, note=int(made)),
            )

    def prepared(self, w: World, version: int, base: int, inputs: int) -> Attempt:
        """Judge files against the state of `base`."""
        before = w.attempts[base - 1] if base else None
        refs = list(before.refs) if before else [0] * len(SHARDS)
        state, kept, dropped = self.stored_state(w, base), [], []
        for file in files_of(inputs):
            rows = w.sink.compacted if file == Z else CONTENT[file]
            new = rows & ~state
            state |= rows
            kept += [new] if new else []
            dropped.append((file, rows & ~new))
            for shard, mask in enumerate(SHARDS):
                if rows & mask:
                    refs[shard] = len(w.attempts) + 1
        ledger = (before.ledger if before else 0) | inputs
        return Attempt(
            version, inputs, tuple(kept), tuple(dropped), state, state, ledger, tuple(refs), WRITTEN, WRITTEN
        )

    def stored_state(self, w: World, nonce: int) -> int:
        """Identities in the segments that a decision names."""
        if not nonce:
            return 0
        refs = w.attempts[nonce - 1].refs
        return sum(w.attempts[ref - 1].stored & mask for ref, mask in zip(refs, SHARDS, strict=True) if ref)

    def store_segments(self, w: World, attempt: Attempt) -> World:
        """The attempt has a folder of its own: nothing else changes."""
        return w

    def change_attempt(self, w: World, nonce: int, **fields: object) -> World:
        return w._replace(attempts=replaced(w.attempts, nonce - 1, w.attempts[nonce - 1]._replace(**fields)))

    def sync(self, w, d):
        if GONE in w.attempts[d.nonce - 1][-2:]:
            yield "its files are gone, gives up", "", w, d._replace(step=DISCARD)
        else:
            yield "contents", "", self.sync_contents(w, d.nonce), d._replace(step=SEAL)

    def sync_contents(self, w: World, nonce: int) -> World:
        return self.change_attempt(w, nonce, segments=SYNCED, outputs=SYNCED)

    def seal(self, w, d):
        if GONE in w.attempts[d.nonce - 1][-2:]:
            yield "its files are gone, gives up", "", w, d._replace(step=DISCARD)
        else:
            w = self.seal_shared(self.seal_names(w, d.nonce), d.version, bool(d.note))
            yield "folders", "", w, d._replace(step=DECIDE, note=0)

    def seal_names(self, w: World, nonce: int) -> World:
        return self.change_attempt(w, nonce, segments=SEALED, outputs=SEALED)

    def seal_shared(self, w: World, version: int, made: bool) -> World:
        """Sync the folder above segments/<n>, also where another attempt made it: that one may not have come to it."""
        return w._replace(folders=replaced(w.folders, version - 1, 2))

    def decide(self, w, d):
        for outcome, world in self.put(w, "log", d.version, d.nonce):
            yield f"log/{d.version}", outcome, world, d._replace(step=self.after_decide(outcome))

    def after_decide(self, outcome: str) -> int:
        return SEAL_LOG if outcome == OK else READ_LOG

    def put(self, w: World, name: str, version: int, value: int) -> Iterator[tuple[str, World]]:
        """Put log/<version>, done/<version> or the claim of a prefix if it is absent: all outcomes."""
        lied = w._replace(faults=w.faults - 1)
        if self.is_taken(w, name, version):
            yield EXISTS, w
        else:
            yield OK, self.landed(w, name, version, value)
            if w.faults:
                yield OWN_EXISTS, self.landed(lied, name, version, value)
                yield APPLIED_ERROR, self.landed(lied, name, version, value)
                yield LATE, lied._replace(flying=(*w.flying, (name, version, value)))
        if w.faults:
            yield ERROR, lied

    def is_taken(self, w: World, name: str, version: int) -> bool:
        entry = getattr(w, name)[version - 1]
        return entry is not None and not (name == "sink" and entry.owner() == FREE)

    def landed(self, w: World, name: str, version: int, value: int) -> World:
        if name == "sink" and (folded := w.sink[version - 1]):
            return self.show(w, version, folded._replace(claim=None if value == folded.who else value))
        if name == "sink":
            files = (ABSENT,) * len(w.attempts[value - 1].kept) if value > 0 else ()
            return self.show(w, version, Shown(value, True, files))
        return w._replace(**{name: replaced(getattr(w, name), version - 1, (value, False))})

    def read_log(self, w, d):
        entry = w.log[d.version - 1]
        if entry is None:
            yield "nothing there, once more", "", w, d._replace(step=DECIDE)
        elif entry[0] == d.nonce:
            yield "it is mine", "", w, d._replace(step=SEAL_LOG)
        else:
            w = self.seal_lost(w, d.version)
            yield f"it is attempt {entry[0]}'s", "", w, d._replace(step=READ_FLOOR, note=LOST)

    def seal_lost(self, w: World, version: int) -> World:
        """Make the winner durable before removing anything: a put of mine may land yet, were its name free again."""
        return self.seal_decision(w, version)

    def seal_log(self, w, d):
        yield f"log/{d.version}", "", self.seal_decision(w, d.version), d._replace(step=READ_FLOOR)

    def read_floor(self, w, d):
        """The log shows the owner only of versions above the floor."""
        floor = self.floor_of(w, d)
        if d.version <= floor:
            yield f"{floor}: {d.version} is folded", "", self.leave_folded(w, d), Driver()
        elif d.note == LOST:
            yield f"{floor}: lost", "", w, d._replace(step=DISCARD, note=0)
        else:
            yield f"{floor}: decided", "", self.act(w, d.version, d.nonce), d._replace(step=APPLY, note=0)

    def floor_of(self, w: World, d: Driver) -> int:
        return w.folded[0]

    def leave_folded(self, w: World, d: Driver) -> World:
        """Remove what was put; not what was prepared, for the version may have been this attempt's."""
        w = self.seal_floor(w)
        is_mine = d.note != LOST and w.log[d.version - 1]
        return w._replace(log=replaced(w.log, d.version - 1, None)) if is_mine else w

    def seal_floor(self, w: World) -> World:
        return w._replace(folded=(w.folded[0], w.folded[0]))

    def seal_decision(self, w: World, version: int) -> World:
        return w._replace(log=durable(w.log, version))

    def apply(self, w, d):
        yield from getattr(self, f"apply_{self.sink}")(w, d)

    def apply_run(self, w, d):
        shown, attempt = w.sink[d.version - 1], w.attempts[d.nonce - 1]
        seal = d._replace(step=SEAL_SINK, note=d.nonce)
        if shown is None and attempt.outputs in READABLE:
            w = self.change_attempt(w, d.nonce, outputs=MOVED)
            shown = Shown(d.nonce, False, (THERE,) * len(attempt.kept))
            yield f"rename to run={d.version}", "", self.show(w, d.version, shown), seal
        elif shown and shown.owner() == FREE:
            yield f"an empty run={d.version}, again", "", self.show(w, d.version, shown._replace(claim=None)), seal
        elif shown is None:
            yield "the prepared folder is gone, stops", "", w, Driver()
        else:
            yield from self.find_shown(w, d, shown, seal)

    def find_shown(self, w, d, shown, seal):
        """The next step for the content of the sink under this number."""
        if shown.owner() == d.nonce:
            yield "shown already", "", w, seal
        elif shown.owner() == FENCE:
            yield "fenced off: abandoned", "", w, d._replace(step=SEAL_SINK, note=ABANDONED)
        else:
            yield "not what was decided, stops", "", w, Driver()

    def show(self, w: World, version: int, shown: Shown | None) -> World:
        return w._replace(sink=replaced(w.sink, version - 1, shown))

    def apply_prefix(self, w, d):
        """The version's one name, which `abandon` puts too, comes first; then file by file, then the mark."""
        for outcome, world in self.put(w, "sink", d.version, d.nonce):
            yield f"claim version {d.version}", outcome, world, self.after_claim(d, outcome)

    def after_claim(self, d: Driver, outcome: str) -> Driver:
        if outcome != OK:
            return d._replace(step=READ_CLAIM)
        return d._replace(step=CLEAR, note=ABANDONED) if d.about == ABANDON else d._replace(step=COPY, note=0)

    def read_claim(self, w, d):
        shown = w.sink[d.version - 1]
        if shown is None:
            yield "nothing there, once more", "", w, d._replace(step=PUT_FENCE if d.about == ABANDON else APPLY)
        elif shown.owner() == FREE:
            yield "it was folded, once more", "", w, d._replace(step=PUT_FENCE if d.about == ABANDON else APPLY)
        elif shown.owner() == FOREIGN:
            yield "not of what was decided, stops", "", w, Driver()
        elif shown.owner() == FENCE:
            yield "abandoned", "", w, d._replace(step=CLEAR, note=ABANDONED)
        elif shown.marked:
            yield "applied, all is there", "", w, d._replace(step=CLEAR, note=d.nonce)
        else:
            yield "applied", "", w, d._replace(step=COPY, note=0)

    def copy(self, w, d):
        """It does not check whether the file exists: a driver that was paused after the check copies as well."""
        shown, attempt = w.sink[d.version - 1], w.attempts[d.nonce - 1]
        if d.note >= len(attempt.kept):
            yield "all are there", "", w, d._replace(step=MARK)
        elif attempt.outputs in READABLE:
            was = shown.files[d.note]
            files = replaced(shown.files, d.note, BACK if was in (REMOVED, BACK) else THERE)
            world = self.show(w, d.version, shown._replace(files=files))
            yield f"{d.version}-{d.note}", "", world, d._replace(note=d.note + 1)
        elif shown.marked:
            yield "what was prepared is gone, for all was there", "", w, d._replace(step=CLEAR, note=d.nonce)
        else:
            yield "the prepared file is gone, stops", "", w, Driver()

    def mark(self, w, d):
        shown = w.sink[d.version - 1]._replace(marked=True)
        yield f"version {d.version}", "", self.show(w, d.version, shown), d._replace(step=CLEAR, note=d.nonce)

    def clear(self, w, d):
        """Remove prepared files before the version is done, so that a paused driver finds nothing to copy."""
        w = self.change_attempt(w, d.nonce, outputs=GONE)
        yield f"what attempt {d.nonce} prepared", "", w, d._replace(step=FINISH)

    def seal_sink(self, w, d):
        shown = w.sink[d.version - 1]
        yield f"version {d.version}", "", self.show(w, d.version, shown._replace(durable=True)), d._replace(step=FINISH)

    def apply_table(self, w, d):
        """One commit, which carries the version and fails unless the table has the one before."""
        table, attempt = w.sink, w.attempts[d.nonce - 1]
        if table.version >= d.version:
            # The commit with this number may have been the empty one of `abandon`: then log and table disagree.
            fenced = (FENCE, d.version) in table.hidden
            yield "the table has it", "", w, d._replace(step=FINISH, note=ABANDONED if fenced else d.nonce)
        elif table.version < d.version - 1:
            yield "not what was decided, stops", "", w, Driver()
        else:
            table = table._replace(version=d.version, hidden=(*table.hidden, *attempt.dropped))
            yield f"commit {d.version}", "", w._replace(sink=table), d._replace(step=FINISH, note=d.nonce)

    def finish(self, w, d):
        for outcome, world in self.put(w, "done", d.version, d.note):
            then = d._replace(step=SEAL_DONE if outcome == OK else READ_DONE)
            word = "abandoned" if d.note == ABANDONED else "applied"
            yield f"done/{d.version}, {word}", outcome, world, then

    def read_done(self, w, d):
        entry = w.done[d.version - 1]
        if entry is None:
            yield "nothing there, once more", "", w, d._replace(step=FINISH)
        elif entry[0] == d.note:
            yield "as I wanted", "", w, d._replace(step=SEAL_DONE)
        else:
            yield "another end than mine, stops", "", w, Driver()

    def seal_done(self, w, d):
        w = w._replace(done=durable(w.done, d.version))
        yield f"done/{d.version}", "", w, Driver(HEAD, True) if d.about == RECOVER else Driver()

    def discard(self, w, d):
        w = self.change_attempt(w, d.nonce, segments=GONE, outputs=GONE)
        yield f"what attempt {d.nonce} prepared", "", w, Driver()

    def put_fence(self, w, d):
        """Abandon: take the version's name in the sink, so that no one can apply it any more."""
        then = d._replace(step=SEAL_SINK, note=ABANDONED)
        if self.sink == "table":
            table = w.sink
            if table.version == d.version - 1:
                table = table._replace(version=d.version, hidden=(*table.hidden, (FENCE, d.version)))
                yield f"empty commit {d.version}", "", w._replace(sink=table), then._replace(step=FINISH)
            elif (FENCE, d.version) in table.hidden:
                yield "the table has it", "", w, then._replace(step=FINISH)
            else:
                yield "applied already: cannot be abandoned", "", w, Driver()
            return
        if self.sink == "prefix":
            for outcome, world in self.put(w, "sink", d.version, FENCE):
                yield f"version {d.version}", outcome, world, self.after_claim(d, outcome)
            return
        shown = w.sink[d.version - 1]
        if shown is None:
            yield f"version {d.version}", "", self.show(w, d.version, Shown(FENCE, False, ())), then
        elif shown.owner() == FREE:
            yield (
                f"version {d.version}, which was folded",
                "",
                self.show(w, d.version, shown._replace(claim=FENCE)),
                then,
            )
        elif shown.owner() in (FENCE, FOREIGN):
            yield "its name is taken already", "", w, then
        else:
            yield "applied already: cannot be abandoned", "", w, Driver()

    # Others

    def collect(self, w: World) -> Iterator[Action]:
        """Garbage goes by number: what a done version does not name. Looking and removing are apart."""
        done = newest(w.done)
        if done > w.collector:
            yield Action("observe", f"the collector observes: {done} is done", self.observe(w, done))
        for nonce, attempt in enumerate(w.attempts, 1):
            segments, outputs = self.is_garbage(w, nonce)
            changed = attempt._replace(
                segments=GONE if segments else attempt.segments,
                outputs=GONE if outputs and attempt.outputs != MOVED else attempt.outputs,
            )
            if changed != attempt:
                world = w._replace(attempts=replaced(w.attempts, nonce - 1, changed))
                yield Action("collect", f"the collector removes what attempt {nonce} left", world)

    def observe(self, w: World, done: int) -> World:
        """It also syncs what it relies on, so that removed files do not come back with the older version."""
        return self.seal_head(w)._replace(collector=done)

    def is_garbage(self, w: World, nonce: int) -> tuple[bool, bool]:
        """Whether an attempt's segments, and whether its prepared outputs, may go."""
        last = w.collector
        if w.attempts[nonce - 1].version > last:
            return False, False
        return nonce not in self.retained(w, last), True

    def retained(self, w: World, until: int) -> tuple[int, ...]:
        """The attempts whose files the newest applied version names: one version is retained."""
        kept = applied(w, until)
        return (kept, *w.attempts[kept - 1].refs) if kept else ()

    def fold(self, w: World) -> Iterator[Action]:
        """What the newest applied version that the collector knows does not need of the log goes: first the floor."""
        if not self.bounds.folds:
            return
        floor, durable_floor = w.folded
        last = self.foldable(w)
        if last > floor:
            yield Action("fold", f"versions up to {last} are folded", w._replace(folded=(last, durable_floor)))
        if durable_floor < floor:
            yield Action("seal floor", f"folded/{floor} is synced", self.seal_floor(w))
        for name in ("log", "done"):
            entries = getattr(w, name)
            for version in range(1, self.trimmable(w) + 1):
                if entries[version - 1]:
                    world = w._replace(**{name: replaced(entries, version - 1, None)})
                    yield Action("trim", f"{name}/{version} is removed", world)
        for version, shown in self.without_marks(w) if self.sink != "table" else ():
            yield Action("unmark", f"version {version} loses its mark in the sink", self.show(w, version, shown))

    def foldable(self, w: World) -> int:
        """The version below which no rollback is possible."""
        kept = applied(w, w.collector)
        return w.attempts[kept - 1].version - 1 if kept else 0

    def trimmable(self, w: World) -> int:
        """Up to where the log may go: not before the floor is durable."""
        return w.folded[1]

    def without_marks(self, w: World) -> Iterator[tuple[int, Shown | None]]:
        """Versions whose name in the sink may be free again: they are applied, and no reader needs the name."""
        for version, shown in enumerate(w.sink[: self.trimmable(w)], 1):
            needs_name = self.sink == "run" and shown and shown.files
            if shown and shown.owner() > 0 and not needs_name:
                yield version, shown._replace(claim=FREE)

    def land(self, w: World) -> Iterator[Action]:
        """A put that returned an error to its writer takes effect later, if the name is still free."""
        for place, (name, version, value) in enumerate(w.flying):
            world = w._replace(flying=w.flying[:place] + w.flying[place + 1 :])
            if not self.is_taken(w, name, version):
                world = self.landed(world, name, version, value)
            yield Action("land", f"a put of {name}/{version} by attempt {value} lands", world)

    def disturb(self, w: World) -> Iterator[Action]:
        """Others write to the sink."""
        if not w.changes:
            return
        if self.sink == "table":
            kept = committed(w)
            judged = w.source & w.attempts[kept - 1].ledger if kept else 0
            if judged and not w.source & Z:
                rows = 0
                for file in files_of(judged):
                    rows |= CONTENT[file] & ~hidden(w.sink, file)
                world = w._replace(
                    source=w.source & ~judged | Z, sink=w.sink._replace(compacted=rows), changes=w.changes - 1
                )
                yield Action("compact", f"someone compacts {described(judged)} of the table into z", world)
            return
        if self.sink == "prefix":
            for version, (entry, shown) in enumerate(zip(w.done, w.sink, strict=True), 1):
                if entry and shown and THERE in shown.files:
                    files = tuple(REMOVED if file == THERE else file for file in shown.files)
                    world = self.show(w, version, shown._replace(files=files))._replace(changes=w.changes - 1)
                    yield Action("remove", f"someone removes the files of version {version}, which is done", world)
        if w.faults:
            version = newest(w.log)
            if version and w.sink[version - 1] is None:
                world = self.show(w, version, Shown(FOREIGN, True, ()))._replace(faults=w.faults - 1)
                yield Action("squat", f"someone else writes to the sink under version {version}'s name", world)

    def change_source(self, w: World) -> Iterator[Action]:
        if not w.changes:
            return
        w = w._replace(changes=w.changes - 1)
        for file in files_of(w.unseen):
            world = w._replace(source=w.source | file, unseen=w.unseen & ~file)
            yield Action("add", f"the source gets {NAMES[file]}", world)
        if self.sink == "table":
            return
        if w.source & A:
            yield Action("overwrite", "the source's a is overwritten", w._replace(source=w.source & ~A | A2))
        for file in files_of(w.source):
            yield Action("delete", f"the source loses {NAMES[file]}", w._replace(source=w.source & ~file))

    # Power

    def lose_power(self, w: World) -> Iterator[Action]:
        """Everyone dies, and of what was not synced any part may be lost. Nothing new where all was synced."""
        choices: list[list[tuple[str, int, object]]] = []
        for name, entries in (("log", w.log), ("done", w.done)):
            for number, entry in enumerate(entries):
                if entry and not entry[1]:
                    choices.append([(name, number, None), (name, number, (entry[0], True))])
        named = {entry[0] for entry in w.log if entry}
        for number, folder in enumerate(w.folders):
            if folder == 1:
                choices.append([("folders", number, 0), ("folders", number, 2)])
        for nonce, attempt in enumerate(w.attempts, 1):
            for part in ("segments", "outputs"):
                known = getattr(attempt, part)
                if known in (WRITTEN, SYNCED):
                    # What no decision names is rubbish whatever is left of it.
                    left = (GONE,) if nonce not in named else (GONE, CORRUPT, SEALED)[:: 1 if known == WRITTEN else 2]
                    choices.append([(part, nonce, after) for after in left])
        if self.sink != "table":
            for number, shown in enumerate(w.sink):
                if shown and not shown.durable:
                    choices.append([("shown", number, None), ("shown", number, shown._replace(durable=True))])
        if w.folded[1] < w.folded[0]:
            choices.append([("floor", 0, floor) for floor in w.folded])
        if not choices:
            return
        dark = w._replace(drivers=(Driver(),) * len(w.drivers), collector=0, faults=w.faults - 1)
        for chosen in product(*choices):
            world, lost = dark, []
            for name, number, after in chosen:
                if name == "floor":
                    world = world._replace(folded=(after, after))
                    lost += [f"folded/{w.folded[0]}"] if after < w.folded[0] else []
                elif name in ("log", "done", "folders"):
                    world = world._replace(**{name: replaced(getattr(world, name), number, after)})
                    if not after:
                        lost.append(f"{'segments' if name == 'folders' else name}/{number + 1}")
                elif name in ("segments", "outputs"):
                    world = self.change_attempt(world, number, **{name: after})
                    if after != SEALED:
                        lost.append(f"attempt {number}'s {name}")
                elif name == "shown":
                    before = world.sink[number]
                    if after is None and before.who > 0 and world.attempts[before.who - 1].outputs == MOVED:
                        world = self.change_attempt(world, before.who, outputs=SEALED)
                    if after is None:
                        lost.append(f"version {number + 1} in the sink")
                    world = self.show(world, number + 1, after)
            for number, folder in enumerate(world.folders):
                if not folder and w.folders[number]:
                    for nonce, attempt in enumerate(world.attempts, 1):
                        if attempt.version == number + 1:
                            world = self.change_attempt(world, nonce, segments=GONE)
            yield Action("power", f"power fails; lost: {', '.join(lost) or 'nothing'}", world)


def hidden(table: Table, file: int) -> int:
    rows = 0
    for name, bits in table.hidden:
        if name == file:
            rows |= bits
    return rows
