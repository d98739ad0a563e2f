"""The end of the stream: what is claimed and what it does commit in one transaction of the application's database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, Table, exc

from fencepost.content import columns_to_compare
from fencepost.errors import BatchError, PolicyError
from fencepost.inputs import is_text, rows_of, shown
from fencepost.policy import Columns, Policy, resolve, resolve_columns
from fencepost.sql import rows as bulk
from fencepost.sql.conflicts import Comparison
from fencepost.sql.consumers import Consumer
from fencepost.sql.database import Database, run
from fencepost.sql.messages import Messages, MessageVerdicts, check_names
from fencepost.sql.metrics import Counters, claims_of, families_of
from fencepost.sql.reconciliation import OnFindings, Reconciliation, reconcile
from fencepost.sql.retention import Reaped, reap, reap_processed
from fencepost.sql.rows import NOTHING, refused_at_commit
from fencepost.sql.sequence_claims import Sequences, log_order_of
from fencepost.sql.staged import StagedTable, place_of
from fencepost.sql.target import Target
from fencepost.sql.together import UnnamedError, claim_together, write_together
from fencepost.sql.upserts import RacedError
from fencepost.state.stores import is_local
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

Effect: TypeAlias = Callable[[Connection, pa.Table], Any]
"""Called with the connection of the transaction and rows; what it writes through it is written once."""

OnConflict: TypeAlias = Literal["stop", "quarantine", "drop"]
ReapBy: TypeAlias = Literal["event_time", "processed_time"]

REDELIVERY_ONLY = "redelivery only"
_RACES_MAX = 100


@dataclass(frozen=True)
class Applied:
    """What a call has done, all of which is committed."""

    verdict: pa.Array
    """Of each row, in their order: uint8, the codes of `fencepost.Verdict`."""
    kept: pa.Array
    """Of each row, whether it went to the effect: bool."""
    counts: dict[Verdict, int]
    """Rows by verdict, of all there are."""
    result: Any
    """What the effect gave back; None where nothing was kept."""
    missing: Any = None
    """Arrow table: the ranges of sequences that this call jumped over (`Verdicts.missing`); None by message id."""
    expected: Any = None
    """Of each OUT_OF_ORDER row the sequence that would have been accepted, else null; None by message id."""
    conflicts: int | None = None
    """Rows by verdict CONFLICT; None where content is not compared."""
    not_compared: int | None = None
    """Duplicates that the table has no row of, so that there was nothing to compare; None likewise."""
    identity: str = "sequence"
    """What the rows were told apart by: "sequence", "message_id", or "redelivery only"."""
    stale_epoch: int | None = None
    """Rows below the highest epoch accepted of their key, kept or not: of a producer that was replaced, or delivered
    again since; None by message id."""

    def __len__(self) -> int:
        return len(self.verdict)

    @property
    def rows_kept(self) -> int:
        """Rows that went to the effect."""
        return sum(count for verdict, count in self.counts.items() if verdict.is_kept)

    @property
    def duplicates(self) -> int:
        """Rows that had been applied before."""
        return self.counts[Verdict.DUPLICATE]


class SqlSink:
    """Applies each event once, however often it comes: the claim and the effect commit in one transaction.

    `engine`: of SQLite, PostgreSQL (psycopg 3) or MariaDB (PyMySQL). `table`: what `apply` writes to, by its name (with
    its schema where it is not on the path) or as a SQLAlchemy Table; None for sinks of which only `handle` is called.
    `consumer_id`: who has applied it: two consumers each apply every event, two processes of one consumer share their
    claims. What a consumer was set up with stays for ever.

    `claim="sequence"`: rows are told apart by (pid, epoch, partition, seq) under a `policy` of `fencepost.Policy`, with
    the verdicts of a `StateTable`; a row of the database remembers a producer's partition, not an event. `columns`:
    where they are, a `Columns` or the name of a preset. With the columns of a broker (`policy="kafka_offsets"`) what is
    caught is redelivery only: what a producer had sent twice lies under two offsets, and both are applied.
    `claim="message_id"`: by the columns `message_id`, an id that the producer makes, or (aggregate id, version); a row
    of the database for each.

    With a timestamp column (`Columns(timestamp=...)`, `timestamp=` by message id; int64 ms or Arrow timestamps, the
    event's own) `reap` can forget by age. `replay_ms`: how old an event can be that comes again by the slowest path
    (a replay, a restored backup); `reap` warns of a retention that is shorter.

    `insert`: the columns that `apply` writes; all that the rows have, unless given. `untracked`: "fail", or "keep" for
    rows without a producer (pid null or -1), which then are applied as often as they come.

    `in_log_order`: rows of a producer's partition arrive in the order of the broker's log, an export of it, say. Then a
    row with a lower epoch or a lower sequence than the newest can only come again: it is a duplicate, and a claim
    remembers the newest row alone, however many transactions raise the epoch. By sequence, and with policies that take
    rows in any order.

    `compare_content`: compare each duplicate with the row of the table that it repeats: True for all columns that are
    written, but those of the identity, or the columns to compare. One that differs is a CONFLICT. `on_conflict`:
    "stop", a BatchError and nothing of the call is applied; "quarantine", it goes to `refused=`; or "drop". The table
    must hold the identity columns, with an index on them where it is large. Leave out columns that your application
    updates.

    `lock_timeout_ms`, `idle_timeout_ms`: on PostgreSQL and MariaDB, how long a statement of a call waits for a lock,
    and how long an effect may leave the transaction idle between two statements before the database undoes it: a
    process that was stopped in a call keeps its locks no longer. None: as the session has it.

    Raises:
        PolicyError: settings that make no sense, or others than those of this consumer.
        SinkError: no such table, or not these columns.
        SchemaError: the claims were made by another version of this package.
        StoreError: the database does not answer, here and in every call.
    """

    def __init__(
        self,
        engine: Engine,
        table: str | Table | None,
        consumer_id: str,
        claim: Literal["sequence", "message_id"] = "sequence",
        *,
        policy: str | Policy = "any_order",
        columns: Columns | str | None = None,
        message_id: str | Sequence[str] | None = None,
        timestamp: str | None = None,
        insert: Sequence[str] | None = None,
        untracked: Literal["fail", "keep"] = "fail",
        in_log_order: bool = False,
        replay_ms: int | None = None,
        attempts: int = 20,
        compare_content: bool | Sequence[str] = False,
        on_conflict: OnConflict = "stop",
        lock_timeout_ms: int | None = 90_000,
        idle_timeout_ms: int | None = 60_000,
    ) -> None:
        self._database = Database(
            engine, attempts=attempts, lock_timeout_ms=lock_timeout_ms, idle_timeout_ms=idle_timeout_ms
        )
        self._target = None if table is None else Target(engine, table, insert)
        self.replay_ms = replay_ms
        settings: dict[str, Any] = {"claim": claim, "table": None if self._target is None else self._target.name}
        if claim == "sequence":
            _only_for("message_id", message_id=message_id, timestamp=timestamp)
            rules = resolve(policy)
            names = resolve_columns(rules, columns)
            settings |= {"policy": rules.rules, "columns": _as_settings(names), "timestamp": names.timestamp}
            if in_log_order:
                settings["in_log_order"] = True
                rules = log_order_of(rules)
        elif claim == "message_id":
            _only_for("sequence", policy=None if policy == "any_order" else policy, columns=columns)
            _only_for("sequence", in_log_order=in_log_order or None)
            ids = (message_id,) if isinstance(message_id, str) else tuple(message_id or ())
            check_names(ids)
            settings |= {"message_id": list(ids), "timestamp": timestamp}
        else:
            raise PolicyError(f"claim={claim!r} is neither 'sequence' nor 'message_id'")
        if untracked not in ("fail", "keep"):
            raise PolicyError(f"untracked={untracked!r} is neither 'fail' nor 'keep'")
        self._consumer = Consumer.open(self._database, consumer_id, settings)
        self._claims: Sequences | Messages = (
            Sequences(self._consumer, rules, names, untracked, in_log_order=in_log_order)
            if claim == "sequence"
            else Messages(self._consumer, ids, timestamp)
        )
        self.identity: str = claim
        if isinstance(self._claims, Sequences) and self._claims.are_offsets:
            self.identity = REDELIVERY_ONLY

        wanted = columns_to_compare(compare_content)
        if on_conflict not in get_args(OnConflict):
            raise PolicyError(f"on_conflict={on_conflict!r} is neither 'stop', 'quarantine' nor 'drop'")
        if wanted is not None and self._target is None:
            raise PolicyError("compare_content: this sink has no table that repeats could be compared with")
        self.on_conflict = on_conflict
        self._comparison = (
            None if wanted is None or self._target is None else Comparison(self._target, self._claims.identity, wanted)
        )
        self._read = (*self._claims.identity, *((at,) if (at := settings["timestamp"]) is not None else ()))
        self._counters = Counters()

    def __repr__(self) -> str:
        into = "" if self._target is None else f" into {self._target.name}"
        return f"<SqlSink {self._consumer.name!r}{into}: {self.identity}>"

    @property
    def engine(self) -> Engine:
        """The engine that it was made with."""
        return self._database.engine

    @property
    def consumer_id(self) -> str:
        """The consumer whose claims and positions these are."""
        return self._consumer.name

    def apply(
        self,
        rows: Any,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: Effect | None = None,
    ) -> Applied:
        """Writes the rows to the table that were not applied before, and claims them.

        `rows`: anything tabular, see `fencepost.arrow.Rows`, or a list of dicts. `positions`: up to where each source
        is applied with them (`positions()` gives it back); they commit with the rows, and none goes back. By
        (topic, partition, offset), the position of a source that is named `topic-partition` also says that no offset
        below it is still to come: the holes below it close. `expected`: where sources must stand before the call, so
        that of two processes that read the same source one is refused. `refused`: called with the rows that are neither
        kept nor duplicates, where there are any, and their verdicts in a column `_verdict`, to set them aside in the
        same transaction.

        Raises:
            BatchError: a row that cannot be judged or written. Nothing of the call was applied, nothing claimed.
            SinkError: the table has not the columns, or generates one of them. Likewise.
            StateConflictError: a source is not where it is `expected`. Likewise.
            StoreError: the database does not answer, cuts off, or cannot go on. Nothing of the call was applied: call
                again.
            OutcomeUnknownError: the connection was lost during the commit. Call again with the same rows: what was
                applied is judged by its claim, as duplicate (under admit="next" beyond the window: out of order).
        """
        if self._target is None:
            raise PolicyError("this sink has no table: name one, or call handle() with an effect")
        if self._comparison is not None and self.on_conflict == "quarantine" and refused is None:
            raise PolicyError("on_conflict='quarantine': apply() needs refused=, which is called with the conflicts")
        target, table = self._target, rows_of(rows, NOTHING)
        written = target.convert(table) if table.num_columns else table

        try:
            return self._run(table, _Writing(target, written), positions, expected, refused, written)
        except exc.IntegrityError as error:
            # Of no statement, so of the commit; others are those of `refused`.
            if error.statement is not None:
                raise
            raise refused_at_commit(target.name, error) from error

    def handle(
        self,
        rows: Any,
        effect: Effect,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: Effect | None = None,
    ) -> Applied:
        """Calls `effect(connection, kept)` with the rows that were not applied before, and claims them.

        What the effect writes through `connection` commits with the claim, once; what it does elsewhere does not, and
        it may be called again when the database undoes the transaction. `kept`: a pyarrow Table of these rows, in
        their order, all their columns; where there are none it is not called. The effect neither commits nor rolls
        back; a statement that may fail without ending the call stands in `connection.begin_nested()`.

        Other arguments, and errors, as of `apply`; an error of the effect comes through, and nothing is claimed.

        Raises:
            UndoneError: the effect passed over an error by which the database had undone everything, or ended the
                transaction. Nothing was applied, but for what it committed itself.
        """
        if self._comparison is not None:
            raise PolicyError("handle(): what an effect writes cannot be compared; compare_content is for apply()")
        table = rows_of(rows, NOTHING)
        return self._run(
            table, lambda connection, mask: run(effect, connection, table.filter(mask)), positions, expected, refused
        )

    def positions(self) -> dict[str, int]:
        """Up to where each source was applied, by `positions=` of the calls."""
        return self._database.transaction(self._consumer.positions)

    def begin_positions(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Stores these positions for sources that have none yet, and returns where each of these sources stands."""
        begun = _checked(positions)
        return self._database.transaction(lambda connection: self._consumer.begin(connection, begun))

    def skip(
        self,
        positions: Mapping[str, int],
        *,
        expected: Mapping[str, int] | None = None,
        work: Callable[[Connection], Any] | None = None,
    ) -> None:
        """Moves positions without rows: past what is not to be applied. `work(connection)` commits with them.

        Arguments and errors are those of `handle`.
        """
        advanced, held = _checked(positions), _checked(expected or {})

        def move(connection: Connection) -> None:
            self._consumer.hold(connection, held)
            if work is not None:
                run(work, connection)
            self._consumer.advance(connection, advanced)

        self._database.transaction(move)

    def for_job(self, state: str | os.PathLike[str]) -> StagedTable:
        """The same table as the sink of a `DedupJob` or of `foreach_batch`, which ask for it.

        What decides there is the job's state, not the claims of this consumer: rows that `apply` has written are not
        known to it. Tasks prepare rows in `<state>.sink`; for a state in an object store make a `StagedTable` with a
        folder of its own. Raises PolicyError for a sink without a table, one that claims by message id, and an engine
        that its URL alone does not lead to the same table.
        """
        if self._target is None or self.identity == "message_id":
            what = "it has no table" if self._target is None else "jobs tell rows apart by sequence, not by message id"
            raise PolicyError(f"{self!r} as the sink of a job: {what}")
        if not is_local(state):
            raise PolicyError(
                f"{self!r} with the state {os.fspath(state)}: give a StagedTable, and a local folder for it"
            )
        folder = os.fspath(state).removeprefix("file://").rstrip("/") + ".sink"
        url, name = self._database.engine.url, self._target.name
        if place_of(url, name) != self._target.place():
            raise PolicyError(
                f"{self!r} as the sink of a job: tasks connect by the engine's URL alone, and there {name} is another "
                "table. Give a StagedTable with a URL that says everything (its options=-csearch_path=..., say)"
            )
        return StagedTable(url, name, folder, insert=self._target.insert)

    def forget_positions(self, *sources: str) -> None:
        """As if these sources were new: for a topic that was made anew, or a replay that is meant."""
        if not sources:
            raise PolicyError("forget_positions() without a source: name those to forget")
        self._database.transaction(lambda connection: self._consumer.forget_positions(connection, list(sources)))

    def reap(
        self, retention_ms: int, *, by: ReapBy = "event_time", now_ms: int | None = None, force: bool = False
    ) -> Reaped:
        """Forgets claims that are older than the retention, and says how many that were.

        `by="event_time"`: by the events' own time, for a sink that keeps timestamps. From then on rows at or
        below the horizon (now - `retention_ms`) that nothing is known of are FORGOTTEN: not kept, and never taken for
        new. So are rows of a missing range that a row at or below it had left, whatever
        their own time. The horizon never falls. `now_ms`: the database's clock, unless given. Claims go in pieces, each
        a transaction; broken off, it is complete as to what rows are judged by, and the next one removes the rest.

        `by="processed_time"`: claims that took no new row for `retention_ms` by the database's clock, for a sink
        without timestamps, from any day on. There is no horizon then: an event that comes again after that is applied
        again.

        Warns (RetentionWarning, and in the result) of a retention shorter than `replay_ms`.

        Raises:
            PolicyError: by event time, the sink keeps no timestamps, or the retention is shorter than what is in flight
                (claims that were written within it by events that are older); by processed time, the sink keeps
                timestamps, or the retention is shorter than `replay_ms`; a retention that is not positive. `force`
                goes on with a short one. Nothing has changed.
        """
        storage = self._claims.storage
        if by not in get_args(ReapBy):
            raise PolicyError(f"by={by!r} is neither 'event_time' nor 'processed_time'")
        if by == "processed_time":
            return reap_processed(self._consumer, storage, retention_ms, self.replay_ms, now_ms, force)
        return reap(self._consumer, storage, retention_ms, self.replay_ms, now_ms, force)

    def metrics(self) -> dict[str, Any]:
        """What monitoring asks: the rows of this process by verdict, and the consumer's claims in the database.

        `calls`, `failures` (calls that raised), `rows` (by verdict), `hits` (rows that had been applied before) and
        `stale_epoch` (`Applied.stale_epoch`) count since this sink was made. `claims`,
        `oldest_claim_age_ms` (since its last event, or where no timestamps are kept its last write, by the database's
        clock; None without claims), `horizon_ms`, `positions` are the database's.
        """
        return self._counters.to_dict() | claims_of(self._consumer, self._claims.storage)

    def collect(self) -> Iterator[Metric]:
        """The same as families of `prometheus_client`: see `fencepost.metrics`."""
        return families_of(self._consumer.name, self.metrics())

    def reconcile(
        self, source: Any, *, where: Any = None, findings_max: int = 1000, on_findings: OnFindings | None = None
    ) -> Reconciliation:
        """Compares the table with its source: what each has and the other lacks, and what differs.

        `source`: rows as `apply` takes them, or an iterable of such or of events as dicts (an Arrow stream is read
        batch by batch), in any order, with repeats. Identities and fingerprints of the other columns go to a temporary
        table, and the database compares; this process holds a batch at a time. `where`: a SQLAlchemy condition on the
        table, to compare a part. `findings_max`: how many findings the result lists; `on_findings` gets all, as Arrow
        record batches.

        Claims are not looked at: this finds what went wrong beside them. The table must hold the identity columns.

        Raises:
            PolicyError: the sink has no table.
            SinkError: the table has not the identity columns.
            BatchError: as `apply`, with the number of the row within its batch.
        """
        if self._target is None:
            raise PolicyError("this sink has no table: there is nothing to compare with")
        claims = self._claims
        # Kafka's "no producer"; a message's id can be -1.
        producer = claims.columns.parts("pid") if isinstance(claims, Sequences) else ()
        return reconcile(
            self._database, self._target, claims.identity, producer, source, where, findings_max, on_findings
        )

    def _run(
        self,
        rows: pa.Table,
        effect: Callable[[Connection, pa.Array], Any],
        positions: Mapping[str, int] | None,
        expected: Mapping[str, int] | None,
        refused: Effect | None,
        written: pa.Table | None = None,
    ) -> Applied:
        if rows.num_columns == 0 and rows.num_rows == 0:
            # An empty list cannot say which columns it would have.
            rows = pa.table({name: pa.array([], pa.int64()) for name in self._read})
        with self._counters.of_call():
            return self._run_counted(rows, effect, positions, expected, refused, written)

    def _judge_and_write(
        self,
        connection: Connection,
        prepared: Any,
        positions: Mapping[str, int],
        effect: Callable[[Connection, pa.Array], Any],
    ) -> MessageVerdicts | None:
        """The verdicts on few rows by message id, which are applied with them; None for all others."""
        if not isinstance(self._claims, Messages) or not isinstance(effect, _Writing) or effect.rows.num_rows == 0:
            return None
        if not effect.takes_arrays(connection, effect.rows):
            return None
        return claim_together(connection, self._claims, prepared, positions, effect.target, effect.rows)

    def _write(
        self,
        connection: Connection,
        judged: Any,
        kept: pa.Array,
        positions: Mapping[str, int],
        effect: Callable[[Connection, pa.Array], Any],
    ) -> Any:
        """Saves the claims, applies the kept rows, and moves positions; returns what the effect gave back."""
        if isinstance(effect, _Writing):
            rows = effect.kept(kept)
            if effect.takes_arrays(connection, rows):
                return write_together(connection, self._consumer, judged, positions, effect.target, rows)
        self._claims.save(connection, judged)
        result = effect(connection, kept) if kept.true_count else None
        self._consumer.advance(connection, positions)
        return result

    def _compared(
        self, connection: Connection, rows: pa.Table, written: pa.Table, codes: pa.Array
    ) -> tuple[pa.Array, int]:
        """The verdicts with conflicts told from duplicates, and how many duplicates have no row in the table."""
        assert self._comparison is not None
        verdicts = codes.to_numpy().copy()
        is_conflict, not_compared = self._comparison.conflicts(connection, written, verdicts == Verdict.DUPLICATE)
        verdicts[is_conflict] = Verdict.CONFLICT
        if self.on_conflict == "stop" and is_conflict.any():
            row = int(is_conflict.argmax())
            identity = ", ".join(f"{name} {shown(rows[name][row].as_py())}" for name in self._claims.identity)
            raise BatchError(
                f"row {row}: {identity}: repeats a row of table {self._target_name()} with other content "
                f"(rows of this call that do: {int(is_conflict.sum()):,}); {NOTHING}. Did a counter begin anew, or "
                "do the columns not give the identity? on_conflict='quarantine' hands such rows to refused=",
                row=row,
            )
        return pa.array(verdicts), not_compared

    def _target_name(self) -> str:
        return "" if self._target is None else self._target.name

    def _run_counted(
        self,
        rows: pa.Table,
        effect: Callable[[Connection, pa.Array], Any],
        positions: Mapping[str, int] | None,
        expected: Mapping[str, int] | None,
        refused: Effect | None,
        written: pa.Table | None,
    ) -> Applied:
        advanced, held = _checked(positions or {}), _checked(expected or {})
        prepared = self._claims.prepare(rows)

        def work(connection: Connection) -> Applied:
            self._consumer.hold(connection, held)
            result = None
            judged: Any = self._judge_and_write(connection, prepared, advanced, effect)
            if judged is None:
                judged = self._claims.claim(connection, prepared, advanced)  # type: ignore[arg-type]
                result = self._write(connection, judged, pa.array(judged.kept), advanced, effect)
            kept = pa.array(judged.kept)
            codes, counts = pa.array(judged.verdict), dict(judged.counts)
            not_compared = None
            if self._comparison is not None and written is not None:
                codes, not_compared = self._compared(connection, rows, written, codes)
                counts[Verdict.CONFLICT] = pc.sum(pc.equal(codes, int(Verdict.CONFLICT))).as_py() or 0
                counts[Verdict.DUPLICATE] -= counts[Verdict.CONFLICT]
            _set_aside(connection, rows, codes, refused, self.on_conflict == "quarantine")
            return Applied(
                codes,
                kept,
                counts,
                result,
                getattr(judged, "missing", None),
                getattr(judged, "expected", None),
                None if not_compared is None else counts[Verdict.CONFLICT],
                not_compared,
                self.identity,
                getattr(judged, "stale_epoch", None),
            )

        for _ in range(_RACES_MAX):
            try:
                applied = self._database.transaction(work)
            except RacedError:
                continue
            except UnnamedError:
                assert isinstance(effect, _Writing)
                effect.by_copy = True
                continue
            self._counters.count(applied.counts, applied.stale_epoch or 0)
            return applied
        raise AssertionError(f"{_RACES_MAX} times in a row others claimed the same new keys")


@dataclass
class _Writing:
    """The effect of `apply`: puts the kept rows into the table. `rows`: all, as `Target.convert` gives them."""

    target: Target
    rows: pa.Table
    by_copy: bool = False
    """Whether the database refused a row of an array, which says not which."""

    def __call__(self, connection: Connection, mask: pa.Array) -> None:
        numbers = pc.indices_nonzero(mask).to_numpy() if mask.false_count else None
        self.target.write(connection, self.kept(mask), numbers)

    def kept(self, mask: pa.Array) -> pa.Table:
        return self.rows.filter(mask) if mask.false_count else self.rows

    def takes_arrays(self, connection: Connection, kept: pa.Table) -> bool:
        return not self.by_copy and bulk.takes_arrays(connection, self.target.table, kept)


def _set_aside(
    connection: Connection, rows: pa.Table, codes: pa.Array, refused: Effect | None, with_conflicts: bool
) -> None:
    if refused is None:
        return
    usual = [it for it in Verdict if it.is_kept or it == Verdict.DUPLICATE]
    usual += [] if with_conflicts else [Verdict.CONFLICT]
    is_refused = pc.invert(pc.is_in(codes, value_set=pa.array(usual, pa.uint8())))
    if not pc.any(is_refused).as_py():
        return
    names = pa.array([it.name for it in Verdict])
    run(refused, connection, rows.append_column("_verdict", names.take(codes)).filter(is_refused))


def _as_settings(columns: Columns) -> dict[str, Any]:
    return {
        role: list(columns.parts(role)) if role in ("pid", "partition") else getattr(columns, role)
        for role in ("pid", "epoch", "partition", "seq")
    }


def _only_for(claim: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise PolicyError(f"{name}={value!r} is for claim={claim!r} only")


def _checked(positions: Mapping[str, int]) -> dict[str, int]:
    for source, position in positions.items():
        is_count = isinstance(position, int) and not isinstance(position, bool) and -(2**63) <= position < 2**63
        if not is_text(source) or not 0 < len(source) <= 255 or not is_count:
            raise BatchError(
                f"positions: {source!r}: {position!r}: a source's name (1 to 255 characters) and a 64-bit integer "
                "were expected; nothing of this call was applied"
            )
    return dict(positions)
