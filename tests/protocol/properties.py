"""The properties of every world of the model, and of every step of a driver. Each returns a problem, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.model import (
    ABANDONED,
    BACK,
    CONTENT,
    CORRUPT,
    DECIDE,
    DISCARD,
    FENCE,
    FOREIGN,
    HEAD,
    IDLE,
    LIST,
    READABLE,
    REMOVED,
    SEAL,
    SHARDS,
    SYNC,
    THERE,
    WRITE,
    Action,
    Driver,
    Protocol,
    Table,
    World,
    Z,
    applied,
    committed,
    files_of,
    hidden,
    newest,
)


def shown_rows(world: World, until: int | None = None) -> list[int]:
    """Each output file that a reader sees, as identities; those of judged files, where the sink is a table."""
    if isinstance(world.sink, Table):
        nonce = committed(world)
        judged = (world.attempts[nonce - 1].ledger if nonce else 0) | Z
        rows = {file: world.sink.compacted if file == Z else CONTENT[file] for file in files_of(judged & world.source)}
        return [bits & ~hidden(world.sink, file) for file, bits in rows.items()]
    return [
        rows
        for shown in world.sink[:until]
        if shown and shown.who > 0
        for rows, file in zip(world.attempts[shown.who - 1].kept, shown.files, strict=True)
        if file in (THERE, BACK)
    ]


def someone_removed(world: World) -> bool:
    """Whether rows are gone from the sink because someone wanted that."""
    return not isinstance(world.sink, Table) and any(shown and REMOVED in shown.files for shown in world.sink)


def is_shown(world: World, version: int, nonce: int) -> bool:
    """Whether the sink has the whole of what an attempt is to show as a version."""
    if isinstance(world.sink, Table):
        return world.sink.version >= version and (FENCE, version) not in world.sink.hidden
    shown = world.sink[version - 1]
    return shown is not None and shown.who == nonce and all(shown.files)


def above_floor(world: World) -> Iterator[tuple[int, tuple[int, bool] | None]]:
    """done/<n> of the versions above the durable floor: below it these files do not count."""
    return ((version, entry) for version, entry in enumerate(world.done, 1) if version > world.folded[1])


def identities_once(model: Protocol, world: World) -> str:
    """Each decided identity is in the sink once: never twice, and exactly once when its version is done."""
    rows = shown_rows(world)
    seen = 0
    for bits in rows:
        if seen & bits:
            return f"identities {seen & bits:04b} are in the sink twice"
        seen |= bits
    if someone_removed(world):
        return ""
    nonce = applied(world, newest(world.done))
    lost = world.attempts[nonce - 1].state & ~seen if nonce else 0
    return f"identities {lost:04b} are decided and not in the sink" if lost else ""


def cardinality_is_rows(model: Protocol, world: World) -> str:
    """What the newest done version's segments hold is as many identities as there are rows in the sink."""
    done = newest(world.done)
    if isinstance(world.sink, Table) and world.sink.version != done:
        return ""  # A table cannot be read as it was at the version before.
    if someone_removed(world):
        return ""
    nonce = applied(world, done)
    state = model.stored_state(world, nonce).bit_count()
    rows = sum(bits.bit_count() for bits in shown_rows(world, done))
    return f"the state has {state} identities, the sink {rows} rows" if state != rows else ""


def numbers_decided_once(model: Protocol, world: World) -> str:
    """No two decisions are ever acted on under one number."""
    for version, nonces in enumerate(world.acted, 1):
        if len(nonces) > 1:
            return f"version {version} was decided by the attempts {nonces}"
    return ""


def done_is_shown(model: Protocol, world: World) -> str:
    """Above the floor done/<n> implies that the sink has n as it was decided, also after a power loss."""
    for version, entry in above_floor(world):
        if entry and entry[0] != ABANDONED and not is_shown(world, version, entry[0]):
            return f"version {version} is done, the sink does not have it"
    return ""


def history_has_no_gap(model: Protocol, world: World) -> str:
    """Above the floor done/<n> implies log/<n>, and log/<n + 1> implies done/<n>, also after a power loss."""
    floor = world.folded[0]
    for version in range(floor + 1, len(world.log) + 1):
        if world.done[version - 1] and not world.log[version - 1]:
            return f"done/{version} is there, log/{version} is not"
        if version > floor + 1 and world.log[version - 1] and not world.done[version - 2]:
            return f"log/{version} is there, done/{version - 1} is not"
    return ""


def references_exist(model: Protocol, world: World) -> str:
    """Segments that the newest applied version and a decided one name are there and whole; outputs, until shown."""
    done, decided = newest(world.done), newest(world.log)
    kept = applied(world, done)
    named = [(done, kept)] if kept else []
    if decided > done:
        named.append((decided, world.log[decided - 1][0]))
    for version, nonce in named:
        attempt = world.attempts[nonce - 1]
        for ref, shard in zip(attempt.refs, SHARDS, strict=True):
            if ref and world.attempts[ref - 1].segments not in READABLE:
                return f"attempt {nonce} names a segment of attempt {ref}, shard {shard:04b}, which is not there"
        fenced = not isinstance(world.sink, Table) and (
            (shown := world.sink[version - 1]) is not None and shown.who in (FENCE, FOREIGN)
        )
        if version > done and model.sink != "table" and not fenced and not is_shown(world, version, nonce):
            shown = world.sink[version - 1]
            if attempt.outputs == CORRUPT or (attempt.outputs not in READABLE and not (shown and shown.who > 0)):
                return f"attempt {nonce} is decided and not shown, its prepared outputs are not there"
    return ""


def finishable_without_source(model: Protocol, world: World) -> str:
    """A run without a source and without faults finishes decided versions, even if all others have died."""
    decided = newest(world.log)
    if decided <= newest(world.done):
        return ""
    if not isinstance(world.sink, Table) and (shown := world.sink[decided - 1]) and shown.who == FOREIGN:
        return ""  # Someone else took the name: only `abandon` ends it.
    alone = world._replace(
        source=0,
        drivers=(Driver(HEAD, True), *(Driver() for _ in world.drivers[1:])),
        collector=0,
        faults=0,
        starts=0,
        changes=0,
        abandons=0,
        acted=((),) * len(world.acted),
    )
    finished = model.finished
    if alone not in finished:
        walk = alone
        for _ in range(40):
            if walk.drivers[0].step == IDLE:
                break
            walk = next(model.advance(walk, 0)).world
        finished[alone] = newest(walk.done) >= decided and walk.drivers[0].step == IDLE
    return "" if finished[alone] else f"version {decided} is decided, and a run without the source cannot finish it"


def abandoned_never_appears(model: Protocol, world: World) -> str:
    """If done/<n> says abandoned, above the floor, the sink has no row of n."""
    for version, entry in above_floor(world):
        if entry and entry[0] == ABANDONED:
            if isinstance(world.sink, Table):
                appears = (FENCE, version) not in world.sink.hidden
            else:
                shown = world.sink[version - 1]
                appears = shown is not None and shown.who > 0 and any(shown.files)
            if appears:
                return f"version {version} is abandoned, and is in the sink"
    return ""


def versions_are_whole(model: Protocol, world: World) -> str:
    """A reader of `run=` folders, or of the marked ones in a prefix, sees a version whole or not at all."""
    for version, shown in enumerate(world.sink if model.sink != "table" else (), 1):
        if shown and shown.who > 0 and (model.sink == "run" or shown.marked) and not all(shown.files):
            return f"run={version} is seen in part"
        done = world.done[version - 1]
        if model.sink == "prefix" and done and done[0] != ABANDONED and not (shown and shown.marked):
            return f"version {version} is done, and not marked"
    return ""


def removed_stays_away(model: Protocol, world: World) -> str:
    """A paused driver does not restore removed files of a version that is done."""
    for version, shown in enumerate(world.sink if model.sink == "prefix" else (), 1):
        if shown and BACK in shown.files:
            return f"files of version {version} are there again, which someone had removed"
    return ""


def view(world: World) -> object:
    """All that a reader or another run can see of decisions, and the files that those name."""
    named = sorted(
        {ref for entry in world.log if entry for ref in (entry[0], *world.attempts[entry[0] - 1].refs) if ref}
    )
    return (
        [entry and entry[0] for entry in world.log],
        [entry and entry[0] for entry in world.done],
        world.sink,
        [(world.attempts[nonce - 1].segments, world.attempts[nonce - 1].stored) for nonce in named],
    )


def loser_changes_nothing(model: Protocol, before: World, action: Action) -> str:
    """The steps of a run before it decides, and after it has lost, are invisible."""
    if action.step in (LIST, WRITE, SYNC, SEAL, DISCARD) and view(before) != view(action.world):
        return f"driver {action.driver + 1} had not decided anything, and changed what others see"
    if action.step == DECIDE:
        was, now = before.log, action.world.log
        if any(old and old[0] != (new and new[0]) for old, new in zip(was, now, strict=True)):
            return "a decision was replaced"
    return ""


STATE_PROPERTIES: tuple[Callable[[Protocol, World], str], ...] = (
    identities_once,
    cardinality_is_rows,
    numbers_decided_once,
    done_is_shown,
    history_has_no_gap,
    references_exist,
    finishable_without_source,
    abandoned_never_appears,
    versions_are_whole,
    removed_stays_away,
)
STEP_PROPERTIES: tuple[Callable[[Protocol, World, Action], str], ...] = (loser_changes_nothing,)
