"""The end of the stream: a row's claim and its effect commit in one transaction of the application's database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine, Table, exc

from fencepost.content import columns_to_compare
from fencepost.errors import BatchError, OutcomeUnknownError, PolicyError, StoreError
from fencepost.inputs import is_integer, is_text, rows_of, shown
from fencepost.policy import Columns, Policy, resolve, resolve_columns
from fencepost.sql import rows as bulk
from fencepost.sql.consumers import Consumer
from fencepost.sql.content_comparison import Comparison
from fencepost.sql.database import Database, run
from fencepost.sql.messages import Messages, check_names
from fencepost.sql.reaping import Reaped, reap, reap_processed
from fencepost.sql.reconciliation import OnFindings, Reconciliation, reconcile
from fencepost.sql.rows import NOTHING, refused_at_commit, refused_statement
from fencepost.sql.sequence_claims import Sequences, log_order_of
from fencepost.sql.sink_metrics import Counters, claims_of, families_of_calls, families_of_claims
from fencepost.sql.staged import StagedTable, place_of
from fencepost.sql.target import Target
from fencepost.sql.together import UnnamedError, claim_together, write_together
from fencepost.sql.upserts import RacedError
from fencepost.state.stores import is_local
from fencepost.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

Effect: TypeAlias = Callable[[Connection, pa.Table], Any]
"""Receives the connection of the transaction, and rows. What it writes through this connection is written once."""

OnConflict: TypeAlias = Literal["stop", "quarantine", "drop"]
ReapBy: TypeAlias = Literal["event_time", "processed_time"]

REDELIVERY_ONLY = "redelivery only"
_RACES_MAX = 100


@dataclass(frozen=True)
class Applied:
    """The result of a call, after its commit."""

    verdict: pa.Array
    """The verdict on each row, in row order: uint8, the codes of `fencepost.Verdict`."""
    kept: pa.Array
    """Whether each row went to the effect: bool."""
    counts: dict[Verdict, int]
    """Number of rows per verdict, for all verdicts."""
    result: Any
    """What the effect returned. None if no row was kept."""
    missing: Any = None
    """Arrow table of the sequence ranges that this call skipped (`Verdicts.missing`). None for claims by message id."""
    expected: Any = None
    """For each OUT_OF_ORDER row, the sequence that would have been accepted; else null. None for claims by message
    id."""
    conflicts: int | None = None
    """Number of CONFLICT rows. None if content is not compared."""
    not_compared: int | None = None
    """Number of duplicates without a row in the table, which cannot be compared. None if content is not compared."""
    identity: str = "sequence"
    """What identifies a row: "sequence", "message_id", or "redelivery only": broker offsets, which do not show that a
    producer sent an event twice."""
    stale_epoch: int | None = None
    """Number of rows, kept or not, whose epoch is below the highest accepted epoch of their key. They come from a
    replaced producer, or are delivered again. None for claims by message id."""

    def __len__(self) -> int:
        return len(self.verdict)

    @property
    def rows_kept(self) -> int:
        """Number of rows that went to the effect."""
        return sum(count for verdict, count in self.counts.items() if verdict.is_kept)

    @property
    def duplicates(self) -> int:
        """Number of DUPLICATE rows: applied before this call, or repeated within it."""
        return self.counts[Verdict.DUPLICATE]


class SqlSink:
    """Applies each event once, however often it is delivered: the claim and the effect commit in one transaction.

    Args:
        engine: Of SQLite, PostgreSQL (psycopg 3) or MariaDB (PyMySQL).
        table: The table that `apply` writes to: its name (with its schema if that is not on the search path) or a
            SQLAlchemy Table. None if you only call `handle`.
        consumer_id: The consumer that applies the events. Two consumers each apply every event; two processes of one
            consumer share their claims. The settings of a consumer never change.
        claim: What identifies a row. "sequence": (pid, epoch, partition, seq), judged as in a `StateTable`. The
            database has one row per partition of a producer. "message_id": the columns `message_id`. The database has
            one row per message.
        policy: A `fencepost.Policy` or the name of one. Only with claim="sequence". The offsets of a broker
            (`policy="kafka_offsets"`) detect redelivery only: events that a producer sent twice have two offsets, and
            both are applied.
        columns: The identity columns: a `Columns`, or the name of a preset. Only with claim="sequence".
        message_id: The columns with an id that the producer creates, or with (aggregate id, version).
        timestamp: With claim="message_id": the column with the event's own time, int64 ms or Arrow timestamps. With
            claim="sequence", use `Columns(timestamp=...)`. With timestamps, `reap` can forget by age.
        insert: The columns that `apply` writes. None: all columns of the rows.
        untracked: "fail" refuses rows without a producer (pid null or -1). "keep" applies them each time they arrive.
        in_log_order: The rows of each producer's partition arrive in the order of the broker's log, as in an export
            of it. A row is then a duplicate if its epoch is lower than that of the newest row, or if its epoch is the
            same and its sequence is not higher. A claim remembers only the newest row, however many transactions raise
            the epoch. Only with claim="sequence", and with policies that accept rows in any order (admit="any").
        replay_ms: The maximum age of an event that the slowest path (a replay, a restored backup) delivers again.
            `reap` warns of a shorter retention.
        attempts: How often a call tries its transaction if the database undoes it.
        compare_content: Compares each duplicate with the row that it repeats in the table; rows that differ are a
            CONFLICT. True compares all written columns except the identity; or name the columns. The table must
            contain the identity columns, with an index if it is large. Leave out columns that your application updates.
        on_conflict: "stop" raises BatchError, and nothing of the call is applied. "quarantine" passes the rows to
            `refused=`. "drop" drops them.
        lock_timeout_ms: How long a statement waits for a lock, on PostgreSQL and MariaDB. None: the session's setting.
        idle_timeout_ms: How long an effect may leave the transaction idle between two statements, on PostgreSQL and
            MariaDB. The database then undoes the transaction, so a stopped process releases its locks. None: the
            session's setting.

    Raises:
        PolicyError: Invalid settings, or settings that differ from the stored ones of this consumer.
        SinkError: The table or one of its columns does not exist.
        SchemaError: Another version of this package created the claims.
        StoreError: The database does not answer. Every call can raise this error.
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
        """The engine passed to the constructor."""
        return self._database.engine

    @property
    def consumer_id(self) -> str:
        """The name of the consumer that owns the claims and positions."""
        return self._consumer.name

    def apply(
        self,
        rows: Any,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: Effect | None = None,
    ) -> Applied:
        """Write the rows that were not applied before to the table, and claim them.

        Args:
            rows: Tabular input as in `fencepost.arrow.Rows`, or a list of dicts. A key that an event lacks is null. If
                its column takes no nulls, the event is refused. If its column has a default, all events of the call
                must have the key, or none.
            positions: The next position of each source after these rows (see `positions()`). Positions commit with the
                rows and never decrease. If rows are identified by (topic, partition, offset), name each source
                `topic-partition`. If a call has rows of a partition, offsets below its position then no longer count as
                missing.
            expected: The required position of each source before the call. If two processes read the same source, one
                of them is refused.
            refused: Receives the rows that are neither kept nor duplicates, with a column `_verdict`, if there are any.
                It receives conflicts only with on_conflict="quarantine". It can store them in the same transaction.

        Raises:
            BatchError: A row cannot be judged or written. After this and all other errors except OutcomeUnknownError,
                nothing is applied or claimed.
            SinkError: The table lacks a column of the rows, or generates it. Or the database refuses a statement, for
                example because the table was renamed.
            StateConflictError: A source is not at its `expected` position.
            StoreError: The database does not answer, closes the connection, or cannot continue. Call again.
            OutcomeUnknownError: The connection was lost during the commit. Call again with the same rows: rows that
                were applied have a claim, so they are DUPLICATE (or, under admit="next", OUT_OF_ORDER if they are older
                than the window; or FENCED if their epoch was replaced). Untracked rows have no claim: they are applied
                again, unless `expected` refuses the call.
        """
        if self._target is None:
            raise PolicyError("this sink has no table: name one, or call handle() with an effect")
        if self._comparison is not None and self.on_conflict == "quarantine" and refused is None:
            raise PolicyError(
                "on_conflict='quarantine': apply() needs refused=, a function that receives the conflicts"
            )
        target = self._target

        with self._counters.of_call():
            table = target.read(rows)
            written = target.convert(table) if table.num_columns else table
            try:
                return self._run(table, _Writing(target, written), positions, expected, refused)
            except exc.DBAPIError as error:
                # An integrity error without a statement comes from the commit. Others come from `refused`.
                if isinstance(error, exc.IntegrityError) and error.statement is None:
                    raise refused_at_commit(target.name, error) from error
                if self._database.kind.is_misfit(error):
                    raise refused_statement(target.name, error) from error
                raise

    def handle(
        self,
        rows: Any,
        effect: Effect,
        *,
        positions: Mapping[str, int] | None = None,
        expected: Mapping[str, int] | None = None,
        refused: Effect | None = None,
    ) -> Applied:
        """Call `effect(connection, kept)` with the rows that were not applied before, and claim them.

        What the effect writes through `connection` commits once, together with the claims. Its other actions may be
        repeated: the effect runs again if the database undoes the transaction. `kept` is a pyarrow Table of these rows
        with all columns, in input order. Without such rows the effect is not called. The effect must not commit or
        roll back. Wrap a statement that may fail without ending the call in `connection.begin_nested()`.

        The other arguments and errors are those of `apply`. An error of the effect is passed on, and nothing is
        claimed.

        Raises:
            UndoneError: The effect ignored an error by which the database undid everything, or ended the transaction.
                Nothing is applied, except what the effect committed itself.
        """
        if self._comparison is not None:
            raise PolicyError("handle() cannot compare what an effect writes: call apply(), or omit compare_content")
        with self._counters.of_call():
            table = rows_of(rows, NOTHING)
            return self._run(
                table,
                lambda connection, mask: run(effect, connection, table.filter(mask)),
                positions,
                expected,
                refused,
            )

    def positions(self) -> dict[str, int]:
        """Return the next position of each source, as stored by `positions=` of earlier calls."""
        return self._database.transaction(self._consumer.positions)

    def begin_positions(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Store these positions for sources without one. Returns the current position of each of these sources."""
        begun = _checked(positions)
        return self._database.transaction(lambda connection: self._consumer.begin(connection, begun))

    def skip(
        self,
        positions: Mapping[str, int],
        *,
        expected: Mapping[str, int] | None = None,
        work: Callable[[Connection], Any] | None = None,
    ) -> None:
        """Advance positions without rows, to skip data. `work(connection)` commits with them.

        The arguments and errors are those of `handle`.
        """
        advanced, held = _checked(positions), _checked(expected or {})

        def move(connection: Connection) -> None:
            self._consumer.hold(connection, held)
            if work is not None:
                run(work, connection)
            self._consumer.advance(connection, advanced)

        self._database.transaction(move)

    def for_job(self, state: str | os.PathLike[str]) -> StagedTable:
        """Return the same table as the sink of a `DedupJob` or of `foreach_batch`, which call this method.

        A job decides by its own state, not by the claims of this consumer, so it does not know the rows that `apply`
        wrote. Tasks prepare rows in `<state>.sink`. For a state in an object store, create a `StagedTable` with its
        own folder.

        Raises:
            PolicyError: The sink has no table, it claims by message id, the state is in an object store, or a
                connection with only the engine's URL finds another table (tasks connect in this way).
        """
        if self._target is None or self.identity == "message_id":
            what = "it has no table" if self._target is None else "jobs identify rows by sequence, not by message id"
            raise PolicyError(f"{self!r} as the sink of a job: {what}")
        if not is_local(state):
            raise PolicyError(
                f"{self!r} with the state {os.fspath(state)}, which is not a local folder: pass a StagedTable with a "
                "local folder of its own"
            )
        folder = os.fspath(state).removeprefix("file://").rstrip("/") + ".sink"
        url, name = self._database.engine.url, self._target.name
        if place_of(url, name) != self._target.place():
            raise PolicyError(
                f"{self!r} as the sink of a job: tasks connect with the engine's URL only, and for this URL {name} is "
                "another table. Pass a StagedTable whose URL has all settings (such as options=-csearch_path=...)"
            )
        return StagedTable(url, name, folder, insert=self._target.insert)

    def forget_positions(self, *sources: str) -> None:
        """Forget the positions of these sources, for a topic that was created again, or for an intended replay."""
        if not sources:
            raise PolicyError("forget_positions() without a source: pass the names of the sources to forget")
        self._database.transaction(lambda connection: self._consumer.forget_positions(connection, list(sources)))

    def reap(
        self, retention_ms: int, *, by: ReapBy = "event_time", now_ms: int | None = None, force: bool = False
    ) -> Reaped:
        """Forget claims that are older than the retention, and return their number.

        If the retention is shorter than `replay_ms`: by event time, warns with RetentionWarning and in the result. By
        processed time, raises PolicyError, or warns with `force`.

        Args:
            retention_ms: The age of the claims to keep, in milliseconds.
            by: What the age is measured by.

                - "event_time": the events' own time, for a sink that keeps timestamps. Unknown rows at or below the
                  horizon (now - `retention_ms`) are then FORGOTTEN: not kept, and never treated as new. So are rows
                  that fill a hole, whatever their own time, if the row that opened the hole is at or below the horizon.
                  The horizon never decreases.
                - "processed_time": the time since a claim's last new row, by the database's clock, for a sink without
                  timestamps. There is no horizon: an event that is delivered again later is applied again.
            now_ms: The current time. None: the database's clock.
            force: Accept a retention that is shorter than `replay_ms` or than the delay of events (see PolicyError),
                and a `now_ms` for which claims up to a time after the database's clock would be forgotten.

        Claims are deleted in pieces, each in its own transaction. If the call is interrupted, the horizon already
        applies, and the next call deletes the rest.

        Raises:
            PolicyError: The retention is not positive, or `now_ms` is not an integer. By event time: the sink keeps no
                timestamps, the horizon would be after the database's clock, or events arrive later than the retention
                allows: a claim was written within the retention, but its newest event is older. By processed time: the
                sink keeps timestamps, the retention is shorter than `replay_ms`, or claims after the database's clock
                would be deleted. Nothing has changed.
        """
        storage = self._claims.storage
        if by not in get_args(ReapBy):
            raise PolicyError(f"by={by!r} is neither 'event_time' nor 'processed_time'")
        if by == "processed_time":
            return reap_processed(self._consumer, storage, retention_ms, self.replay_ms, now_ms, force)
        return reap(self._consumer, storage, retention_ms, self.replay_ms, now_ms, force)

    def metrics(self) -> dict[str, Any]:
        """Return metrics: counters of this process, and the consumer's claims in the database.

        Counters since the sink was created: `calls`, `failures` (calls that raised), `rows` (by verdict), `hits` (rows
        that were applied before), `stale_epoch` (`Applied.stale_epoch`).

        From the database: `claims`, `oldest_claim_age_ms`, `horizon_ms`, `positions`. The age of a claim counts from
        its last event, or from its last write if no timestamps are kept, by the database's clock. It is None without
        claims.
        """
        return self._counters.to_dict() | claims_of(self._consumer, self._claims.storage)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as families of `prometheus_client`: see `fencepost.metrics`.

        While the database does not answer, those from the database are left out: a scrape in an outage needs the
        counters, and the metrics of other objects.
        """
        yield from families_of_calls(self._consumer.name, self._counters.to_dict())
        try:
            claims = claims_of(self._consumer, self._claims.storage)
        except (StoreError, OutcomeUnknownError):
            return
        yield from families_of_claims(self._consumer.name, claims)

    def reconcile(
        self, source: Any, *, where: Any = None, findings_max: int = 1000, on_findings: OnFindings | None = None
    ) -> Reconciliation:
        """Compare the table with its source: rows that only one of them has, and rows that differ.

        Identities and fingerprints of the other columns go to a temporary table, and the database compares them. This
        process holds one batch at a time. Claims are not read, so this detects errors that bypassed them. The table
        must contain the identity columns.

        Args:
            source: Rows as in `apply`, or an iterable of such rows or of events as dicts, in any order, with repeats.
                An Arrow stream is read batch by batch.
            where: A SQLAlchemy condition on the table, to compare a part of it.
            findings_max: Maximum number of findings in the result.
            on_findings: Receives all findings as Arrow record batches.

        Raises:
            PolicyError: The sink has no table.
            SinkError: The table lacks an identity column.
            BatchError: As in `apply`. The row number is within its batch.
        """
        if self._target is None:
            raise PolicyError("this sink has no table: there is nothing to compare with")
        claims = self._claims
        # In a pid, -1 is Kafka's "no producer". A message id may be -1.
        producer = claims.columns.parts("pid") if isinstance(claims, Sequences) else ()
        return reconcile(
            self._database, self._target, claims.identity, producer, source, where, findings_max, on_findings
        )

    def _judge_and_write(
        self,
        connection: Connection,
        prepared: Any,
        positions: Mapping[str, int],
        effect: Callable[[Connection, pa.Array], Any],
    ) -> tuple[Any, Any]:
        """Judge the rows, save the claims, apply the kept rows, and advance positions.

        Few rows of `apply` take fewer statements on PostgreSQL: see `together`. Returns the verdicts and the result of
        the effect.
        """
        if isinstance(effect, _Writing) and isinstance(self._claims, Messages):
            rows = effect.rows
            if rows.num_rows and effect.takes_arrays(connection, rows):
                return claim_together(connection, self._claims, prepared, positions, effect.target, rows), None
        judged: Any = self._claims.claim(connection, prepared, positions)
        if isinstance(effect, _Writing):
            rows = effect.kept(judged.kept)
            if effect.takes_arrays(connection, rows):
                write_together(connection, self._consumer, judged, positions, effect.target, rows)
                return judged, None
        self._claims.save(connection, judged)
        result = effect(connection, judged.kept) if judged.kept.true_count else None
        self._consumer.advance(connection, positions)
        return judged, result

    def _compared(
        self, connection: Connection, rows: pa.Table, written: pa.Table, codes: pa.Array
    ) -> tuple[pa.Array, int]:
        """Return the verdicts with conflicts marked, and the number of duplicates without a row in the table."""
        assert self._comparison is not None
        verdicts = codes.to_numpy().copy()
        is_conflict, not_compared = self._comparison.conflicts(connection, written, verdicts == Verdict.DUPLICATE)
        verdicts[is_conflict] = Verdict.CONFLICT
        if self.on_conflict == "stop" and is_conflict.any():
            row = int(is_conflict.argmax())
            target_name = self._comparison.target.name
            identity = ", ".join(f"{name} {shown(rows[name][row].as_py())}" for name in self._claims.identity)
            raise BatchError(
                f"row {row}: {identity}: repeats a row of table {target_name} with other content "
                f"(such rows in this call: {int(is_conflict.sum()):,}); {NOTHING}. Did a counter start again, or "
                "do the columns not identify a row? on_conflict='quarantine' passes such rows to refused=",
                row=row,
            )
        return pa.array(verdicts), not_compared

    def _run(
        self,
        rows: pa.Table,
        effect: Callable[[Connection, pa.Array], Any],
        positions: Mapping[str, int] | None,
        expected: Mapping[str, int] | None,
        refused: Effect | None,
    ) -> Applied:
        if rows.num_columns == 0 and rows.num_rows == 0:
            # An empty list has no column names.
            rows = pa.table({name: pa.array([], pa.int64()) for name in self._read})
        advanced, held = _checked(positions or {}), _checked(expected or {})
        prepared = self._claims.prepare(rows)

        def work(connection: Connection) -> Applied:
            self._consumer.hold(connection, held)
            judged, result = self._judge_and_write(connection, prepared, advanced, effect)
            codes, counts = judged.verdict, dict(judged.counts)
            not_compared = None
            if self._comparison is not None and isinstance(effect, _Writing):
                codes, not_compared = self._compared(connection, rows, effect.rows, codes)
                counts[Verdict.CONFLICT] = pc.sum(pc.equal(codes, int(Verdict.CONFLICT))).as_py() or 0
                counts[Verdict.DUPLICATE] -= counts[Verdict.CONFLICT]
            _pass_refused(connection, rows, codes, refused, self.on_conflict == "quarantine")
            return Applied(
                codes,
                judged.kept,
                counts,
                result,
                judged.missing,
                judged.expected,
                None if not_compared is None else counts[Verdict.CONFLICT],
                not_compared,
                self.identity,
                judged.stale_epoch,
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
        raise StoreError(
            f"other transactions claimed the same new keys {_RACES_MAX} times in a row. Nothing of this call was "
            "applied: call again"
        )


@dataclass
class _Writing:
    """The effect of `apply`: writes the kept rows to the table. `rows`: all rows, as `Target.convert` returns them."""

    target: Target
    rows: pa.Table
    by_copy: bool = False
    """Whether the database refused a row of an array. That error does not name the row."""

    def __call__(self, connection: Connection, mask: pa.Array) -> None:
        numbers = pc.indices_nonzero(mask).to_numpy() if mask.false_count else None
        self.target.write(connection, self.kept(mask), numbers)

    def kept(self, mask: pa.Array) -> pa.Table:
        return self.rows.filter(mask) if mask.false_count else self.rows

    def takes_arrays(self, connection: Connection, kept: pa.Table) -> bool:
        return not self.by_copy and bulk.takes_arrays(connection, self.target.table, kept)


def _pass_refused(
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
            raise PolicyError(f"{name}={value!r} is for claim={claim!r} only: leave it out, or pass this claim")


def _checked(positions: Mapping[str, int]) -> dict[str, int]:
    for source, position in positions.items():
        is_position = is_integer(position, -(2**63), 2**63 - 1)
        if not is_text(source) or not 0 < len(source) <= 255 or not is_position:
            raise BatchError(
                f"positions: {source!r}: {position!r}: expected a source's name (1 to 255 characters) and a 64-bit "
                "integer; nothing of this call was applied"
            )
    return dict(positions)
