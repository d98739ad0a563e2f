"""Recommends a policy, columns and retention for rows, with the evidence.

Judges the rows by each policy and measures their order: how far rows come behind the newest row of their key, in
sequence numbers and in time, and how old repeats are.

Requires pyarrow and numpy (`fencepost[lake]`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fencepost._native import StateTable
from fencepost.auditor import audit_rows, identity, pieces
from fencepost.content import mixed
from fencepost.errors import BatchError, PolicyError
from fencepost.findings import ADVICE_ROWS, AuditReport
from fencepost.inputs import with_fields, without_runs
from fencepost.pages.commands import dedup, place
from fencepost.pages.tables import share
from fencepost.policy import COLUMN_PRESETS, Columns, Policy
from fencepost.progress import Progress, ignore, show_rows
from fencepost.report import Report, grid
from fencepost.resets import Numbers
from fencepost.verdict import Verdict
from fencepost.words import plural

if TYPE_CHECKING:
    from fencepost.pages.page import Page

GAPS_ARE_NORMAL = 0.5
"""Gaps count as normal from this share of skipped sequence numbers."""
SPARE = 4
"""Recommended bounds are this many times the observed maximum."""
INT31 = 1 << 31
REACH_MAX = 1 << 62
"""The largest reach of a policy."""
MISSING_MAX = (1 << 63) - 1
"""The largest number of missing rows in the table of policies, which is that of int64."""

PRODUCERS = ("pid", "producer_id", "producer", "device_id", "device", "client_id", "sensor_id", "sensor", "source_id")
EPOCHS = (
    "epoch",
    "producer_epoch",
    "incarnation",
    "generation",
    "boot_id",
    "boot_time",
    "boot",
    "session_id",
    "session",
)
PARTITIONS = ("partition", "shard", "stream", "channel")
SEQUENCES = (
    "seq",
    "sequence",
    "sequence_number",
    "seq_no",
    "seqno",
    "seqnum",
    "counter",
    "publishing_id",
    "message_id",
)
TIMESTAMPS = ("timestamp", "event_time", "event_timestamp", "ts", "time", "created_at")

Named: TypeAlias = Columns | str | Mapping[str, Any] | None
"""Columns, the name of a preset, or some of the roles. Missing roles are detected by column name."""


@dataclass(frozen=True)
class Fact:
    """One observation about the data."""

    question: str
    answer: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Advice(Report):
    """The recommendation and the observations behind it. `str(advice)` is a text for people."""

    source: str | None
    rows: int
    """Number of rows read."""
    is_all: bool
    """Whether all rows of the source were read."""
    facts: tuple[Fact, ...]
    policy: Policy
    """The recommended policy, with its columns."""
    max_idle_ms: int | None
    """How long to remember idle producers, in milliseconds. None if no timestamps were read."""
    reasons: tuple[str, ...]
    policies: Any
    """The effect of each policy: policy, kept, number of rows by verdict, missing, stale; a `pyarrow.Table`."""

    @property
    def command(self) -> str:
        """The recommended command line."""
        retention = [] if self.max_idle_ms is None else ["--max-idle", duration(self.max_idle_ms)]
        return dedup(place(self.source), self.policy, *retention)

    def _page(self) -> Page:
        from fencepost.pages.advice import advice_page

        return advice_page(self)

    def to_json(self) -> str:
        """Return the advice as JSON, the table as a list of objects."""
        fields = vars(self) | {
            "facts": [dataclasses.asdict(it) for it in self.facts],
            "policy": self.policy.name or self.policy.rules,
            "columns": dataclasses.asdict(self.policy.columns),
            "policies": self.policies.to_pylist(),
            "command": self.command,
        }
        return json.dumps(fields)

    def __str__(self) -> str:
        part = "all" if self.is_all else "the first"
        lines = [f"advice for {self.source or 'rows'}, from {part} {plural(self.rows, 'row')}", ""]
        width = max(len(it.question) for it in self.facts)
        for fact in self.facts:
            lines += [f"  {fact.question:<{width}}  {fact.answer}", f"  {'':<{width}}    {fact.evidence}"]
        lines += ["", "what each policy does with these rows", *_grid(self.policies), "", "recommended"]
        lines += [f"  {it}" for it in self.reasons]
        return "\n".join([*lines, "", f"  {self.command}"])


def advise(rows: Any, columns: Named = None, *, rows_max: int | None = ADVICE_ROWS) -> Advice:
    """Implement `fencepost.advise`."""
    return advise_on(read_sample(rows, columns, rows_max))


@dataclass(frozen=True)
class Sample:
    """The rows that advice is about."""

    rows: pa.Table
    """Identity columns and timestamps."""
    columns: Columns
    _: dataclasses.KW_ONLY
    is_all: bool
    source: str | None = None
    untracked: int = 0
    """Number of rows without a producer that are not in `rows`."""


def read_sample(rows: Any, columns: Named, rows_max: int | None) -> Sample:
    """Read up to `rows_max` rows of any type, from the beginning."""
    # If all roles are named, other columns are not read: they may not be convertible to Arrow.
    named = None if isinstance(columns, Mapping | None) else _as_columns(columns)
    stream = pieces(rows, named.read(named.kept) if named else (), is_whole=named is None)
    first = next(stream)
    found = named or resolve_named(columns, first)
    tables, count, is_all = [], 0, True
    for piece in chain([first], stream):
        if rows_max is not None and count + len(piece) > rows_max:
            piece, is_all = piece.slice(0, rows_max - count), False
        tables.append(narrow(piece, found))
        count += len(piece)
        if not is_all:
            break
    return Sample(pa.concat_tables(tables, promote_options="permissive"), found, is_all=is_all)


def advise_on(sample: Sample, progress: Progress = ignore) -> Advice:
    """Return advice. Calls `progress("judge", done, total)`, in policies, each of which judges all rows."""
    progress("judge", 0, 0)
    rules = base_policy(sample.columns)
    rows = _tracked(sample.rows, rules)
    untracked = sample.untracked + len(sample.rows) - len(rows)
    order = _OrderStatistics(rows, rules)
    if order.highest >= INT31:
        rules = rules.replace(wrap=None)
    candidates = _candidates(rules)
    found: dict[str, AuditReport] = {}
    progress("judge", 0, len(candidates))
    for name, policy in candidates.items():
        found[name] = _audit(rows, policy)
        progress("judge", len(found), len(candidates))
        show_rows(progress, len(found) * len(rows))
    report = next(iter(found.values()))
    best = _Recommendation(rules, order, report)
    return Advice(
        source=sample.source,
        rows=len(rows) + untracked,
        is_all=sample.is_all,
        facts=(*_facts(rows, order, report, best), _untracked(untracked)),
        policy=best.policy,
        max_idle_ms=best.max_idle_ms,
        reasons=tuple(best.reasons),
        policies=_compared(found, untracked),
    )


def resolve_named(columns: Named, rows: pa.Table) -> Columns:
    """Return the identity columns. `rows`: a sample from the beginning. Raises PolicyError."""
    if not isinstance(columns, Mapping | None):
        return _as_columns(columns)
    return _by_names(rows, dict(columns or {}))


def named_timestamp(columns: Named) -> str | None:
    """Return the timestamp column if one is named."""
    if isinstance(columns, Mapping):
        found: str | None = columns.get("timestamp")
        return found
    return None if columns is None else _as_columns(columns).timestamp


def possible_keys(columns: Named) -> tuple[str, ...]:
    """Return the names of columns that may identify the producer or the partition."""
    if not isinstance(columns, Mapping | None):
        return _as_columns(columns).keys
    roles: dict[str, Any] = {"pid": PRODUCERS, "partition": PARTITIONS}
    named = {role: columns[role] for role in roles if columns and columns.get(role)}
    return Columns(**(roles | named)).keys


def _as_columns(columns: Columns | str) -> Columns:
    return Columns.preset(columns) if isinstance(columns, str) else columns


def _by_names(rows: pa.Table, named: dict[str, Any]) -> Columns:
    """Detect the identity columns by names, types and first values. `named`: the roles that are already known.

    A column that looks like an epoch but cannot be one becomes a part of the producer's id: without it, the rows after
    a restart would count as repeats. To leave it out, name the epoch, or None.

    Raises PolicyError if no column looks like a producer or a sequence number.
    """
    # A named column is not found again as epoch or partition. It may be the time, too: some number rows by it.
    used = {name for names in named.values() for name in ((names,) if isinstance(names, str) else names or ())}
    schema = pa.schema([field for field in rows.schema if field.name not in used])
    timestamp = _timestamp(rows.schema)
    pid, seq = named.get("pid"), named.get("seq")
    if pid is None or seq is None:
        preset = _preset(rows, ("kafka-producer", "kafka-connect", "hudi"))
        if preset is not None:
            return dataclasses.replace(preset, **{"timestamp": timestamp, **named})
        pid = pid or _first(schema, PRODUCERS)
        seq = seq or _first(schema, SEQUENCES, pa.types.is_integer)
    if pid is None or seq is None:
        preset = _preset(rows, ("kafka",))
        if preset is not None:
            return dataclasses.replace(preset, **{"timestamp": timestamp, **named})
        what = "a producer" if pid is None else "a sequence number"
        role = "pid" if pid is None else "seq"
        raise PolicyError(
            f"no column looks like {what}: pass its name as `{role}`. The columns are {', '.join(rows.column_names)}"
        )
    epoch = _first(schema, EPOCHS)
    if epoch is not None and not _is_epoch(rows.column(rows.column_names.index(epoch))):
        if "epoch" not in named:
            pid = (*Columns(pid=pid).parts("pid"), epoch)
        epoch = None
    found = Columns(pid=pid, epoch=epoch, partition=_partition(schema), seq=seq, timestamp=timestamp)
    return dataclasses.replace(found, **{**named, "pid": pid})


def _preset(rows: pa.Table, presets: Sequence[str]) -> Columns | None:
    return next((it for name in presets if set((it := COLUMN_PRESETS[name]).names) <= set(rows.column_names)), None)


def base_policy(columns: Columns) -> Policy:
    """Return the base policy: `kafka_offsets` if rows are identified by their offsets, otherwise `any_order`."""
    if any(columns.names == COLUMN_PRESETS[it].names for it in ("kafka", "kafka-connect", "hudi")):
        return Policy.kafka_offsets().replace(columns=columns)
    if columns.epoch is None:
        return Policy.any_order().replace(epochs="ignore", columns=columns)
    return Policy.any_order().replace(columns=columns)


def duration(ms: int) -> str:
    """Format a duration as a value for command-line options."""
    for size, letter in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")):
        if ms % size == 0:
            return f"{ms // size}{letter}"
    return f"{-(-ms // 1000)}s"


def _first(schema: pa.Schema, wanted: Sequence[str], is_right: Any = lambda kind: True) -> str | None:
    known = {field.name.lower(): field for field in reversed(list(schema))}
    return next((known[it].name for it in wanted if it in known and is_right(known[it].type)), None)


def _partition(schema: pa.Schema) -> str | None:
    return _first(schema, PARTITIONS, lambda kind: pa.types.is_integer(kind) or pa.types.is_string(kind))


def _timestamp(schema: pa.Schema) -> str | None:
    return _first(schema, TIMESTAMPS, lambda kind: pa.types.is_timestamp(kind) or kind == pa.int64())


def _is_epoch(column: pa.ChunkedArray) -> bool:
    """Return whether a column can be an epoch: 16-bit integers. Texts, UUIDs and boot times cannot."""
    if not pa.types.is_integer(column.type):
        return False
    bounds = pc.min_max(column).as_py()
    return bounds["min"] is None or (bounds["min"] >= -1 and bounds["max"] < 1 << 15)


def narrow(rows: pa.Table, columns: Columns) -> pa.Table:
    """Return the identity columns and timestamps, each once. Raises BatchError for a missing one."""
    names = columns.read(columns.kept)
    rows = with_fields(rows, names)
    for name in names:
        if name not in rows.column_names:
            known = ", ".join(rows.column_names)
            raise BatchError(f"column '{name}': missing; the rows have the columns {known}", column=name)
        if rows.column_names.count(name) > 1:
            raise BatchError(f"column '{name}': occurs twice in the rows", column=name)
    rows = without_runs(rows.select(list(dict.fromkeys(names))), names)
    return rows.cast(pa.schema([field.with_type(_unpacked(field.type)) for field in rows.schema]))


def _unpacked(kind: pa.DataType) -> pa.DataType:
    """Return the type without an encoding: Arrow cannot filter views, and integers are numbers in any encoding."""
    if pa.types.is_dictionary(kind) and pa.types.is_integer(kind.value_type):
        return kind.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _candidates(rules: Policy) -> dict[str, Policy]:
    """Return the policies to compare, by name, the base policy first."""
    found = {rules.name or "any_order": rules}
    if rules.columns.epoch is not None:
        found["any_order, epochs=fence"] = rules.replace(epochs="fence")
    for name in ("in_order", "kafka", "strict", "watermark"):
        preset: Policy = getattr(Policy, name)()
        has_epochs = preset.epochs != "ignore" and rules.columns.epoch is not None
        columns = rules.columns if has_epochs else dataclasses.replace(rules.columns, epoch=None)
        epochs = preset.epochs if has_epochs else "ignore"
        found[name] = preset.replace(epochs=epochs, wrap=rules.wrap, columns=columns)
    return found


def _audit(rows: pa.Table, policy: Policy) -> AuditReport:
    columns = policy.columns
    return audit_rows(rows, columns, StateTable(policy, keep=columns.kept), 10, 1)


def _tracked(rows: pa.Table, rules: Policy) -> pa.Table:
    """Return the rows that have a producer."""
    # with timestamps, so that a missing one is named here, before anything is measured
    table = StateTable(rules.replace(wrap=None), keep=rules.columns.kept)
    codes = pa.array(table.apply(rows).verdict)
    return rows.filter(pc.not_equal(codes, pa.scalar(Verdict.UNTRACKED.value, codes.type)))


class _OrderStatistics:
    """Measures the order of rows per key (and epoch)."""

    def __init__(self, rows: pa.Table, policy: Policy) -> None:
        columns = policy.columns
        keep = columns.kept
        plain = identity(rows, columns, keep)
        hashes = _hashes(plain.drop_columns([name for name in ("seq", "timestamp") if name in plain.column_names]))
        order = np.argsort(hashes, kind="stable")
        self.groups = hashes[order]
        self.is_start = np.append(True, self.groups[1:] != self.groups[:-1]) if len(order) else np.empty(0, bool)
        ordered = plain["seq"].to_numpy()[order]
        self.keys = int(self.is_start.sum())
        self.behind = self._behind(ordered)
        """How far each row is below the highest row before it of its key. 0 for rows above it."""
        is_first = self._is_first(ordered)
        self.repeats = int((~is_first).sum())
        self.late = self.behind[is_first & (self.behind > 0)]
        steps = np.append(0, np.diff(ordered))
        inner = ~self.is_start
        self.contiguous = float((steps[inner] == 1).mean()) if inner.any() else 1.0
        self.lowest = ordered[self.is_start] if len(ordered) else np.empty(0, np.int64)
        self.highest = int(ordered.max()) if len(ordered) else 0
        self.age_of_repeats: int | None = None
        self.age_of_late: int | None = None
        if keep:
            times = plain["timestamp"].to_numpy()
            ages = (np.maximum.accumulate(times) - times)[order] if len(times) else times
            self.age_of_repeats = int(ages[~is_first].max(initial=0))
            self.age_of_late = int(ages[is_first & (self.behind > 0)].max(initial=0))

    def _behind(self, seq: Numbers) -> Numbers:
        """Compute running maxima within each key: ranks get an offset per key, so that no key affects the next."""
        ranked, ranks = np.unique(seq, return_inverse=True)
        raised = np.maximum.accumulate(ranks.reshape(-1) + (np.cumsum(self.is_start) - 1) * max(len(ranked), 1))
        highest = ranked[raised % max(len(ranked), 1)] if len(ranked) else seq
        before = np.append(0, highest[:-1])
        return np.where(self.is_start, 0, np.maximum(before - seq, 0))

    def _is_first(self, seq: Numbers) -> npt.NDArray[np.bool_]:
        """Return whether each row is the first of its identity."""
        order = np.lexsort((np.arange(len(seq)), seq, self.groups))
        is_first = np.zeros(len(seq), bool)
        groups, ordered = self.groups[order], seq[order]
        is_first[order] = np.append(True, (groups[1:] != groups[:-1]) | (ordered[1:] != ordered[:-1]))[: len(seq)]
        return is_first


def _hashes(keys: pa.Table) -> npt.NDArray[np.uint64]:
    """Return a hash for each row; equal keys have equal hashes."""
    hashes = np.zeros(len(keys), np.uint64)
    for column in keys.columns:
        is_number = pa.types.is_integer(column.type)
        codes = column if is_number else column.combine_chunks().dictionary_encode().indices
        hashes = mixed(hashes, pc.fill_null(codes, -1).to_numpy().astype(np.int64))
    return hashes


class _Recommendation:
    """The recommendation, with a reason for each part."""

    def __init__(self, rules: Policy, order: _OrderStatistics, report: AuditReport) -> None:
        self.policy = rules
        name = rules.name or "any_order"
        self.reasons = [f"{name}: it keeps each row once, in whatever order rows come, and refuses only repeats."]
        self.max_idle_ms: int | None = None
        numbered = report.missing_rows + report.counts.get("ACCEPTED", 0)
        self.missing_share = report.missing_rows / numbered if numbered else 0.0
        self.gaps_are_normal = rules.gaps == "normal" or self.missing_share >= GAPS_ARE_NORMAL
        if rules.columns.epoch is None:
            self.reasons.append("epochs=ignore: no column is an epoch.")
        elif report.stale_epoch:
            rows = plural(report.stale_epoch, "row")
            self.reasons.append(f"Consider --set epochs=fence: {rows} of replaced epochs would be refused then.")
        if order.highest >= INT31:
            self.reasons.append(f"wrap=none: the highest sequence number is {order.highest:,}, above 2^31.")
        if self.gaps_are_normal and rules.gaps != "normal":
            self._set("gaps", "normal", f"gaps=normal: {share(self.missing_share)} of the numbers are skipped.")
            self._bound(_round_up(SPARE * int(order.behind.max(initial=0)), 1_000))
        ages = [it for it in (order.age_of_repeats, order.age_of_late) if it is not None]
        if ages:
            self.max_idle_ms = max(SPARE * max(ages), 86_400_000)
            self.max_idle_ms = -(-self.max_idle_ms // 86_400_000) * 86_400_000
            reason = f"the oldest repeat or late row is {_time(max(ages))} behind the newest row."
            self.reasons.append(f"--max-idle {duration(self.max_idle_ms)}: {reason}")
        else:
            self.reasons.append("No retention: without a timestamp column, idle producers cannot be forgotten by age.")

    def _bound(self, reach: int) -> None:
        if reach > REACH_MAX:
            self.reasons.append("No reach: rows come in no order of their numbers. Each gap of them costs memory.")
            return
        reason = f"reach={reach}: {SPARE} times the farthest row behind, so that memory is bounded."
        self._set("reach", reach, reason)
        self.reasons.append("--file-order: under a reach, the order of rows matters. They were read in this order.")

    def _set(self, field: str, value: Any, reason: str) -> None:
        self.policy = self.policy.replace(**{field: value})
        self.reasons.append(reason)


def _facts(rows: pa.Table, order: _OrderStatistics, report: AuditReport, best: _Recommendation) -> list[Fact]:
    columns = report.rules.columns
    kinds = {
        name: "numbers" if pa.types.is_integer(rows.schema.field(name).type) else "texts" for name in columns.names
    }
    texts = [name for name in columns.parts("pid") if not pa.types.is_integer(rows.schema.field(name).type)]
    found = [
        Fact(
            "Which columns hold the identity?",
            ", ".join(columns.names) + (f"; time in {columns.timestamp}" if columns.timestamp else "; no time"),
            ", ".join(f"{name}: {kind}" for name, kind in kinds.items()),
        ),
        Fact(
            "What are the producers' ids?",
            "texts" if texts else "numbers",
            f"{plural(report.producers, 'producer')}, {plural(order.keys, 'sequence')} of numbers",
        ),
        Fact(
            "Are sequences contiguous?",
            "yes" if order.contiguous > 0.99 else "mostly" if order.contiguous > 0.8 else "no",
            f"{share(order.contiguous)} of the rows follow the row before them of their key",
        ),
        _late(order),
        Fact(
            "Do rows come twice?",
            "yes" if order.repeats else "no",
            f"{plural(order.repeats, 'repeat')}, {share(order.repeats / len(rows) if len(rows) else 0.0)} of the rows",
        ),
        _gaps(report, best),
        _epochs(report),
        _beginnings(order),
    ]
    if report.suspected_resets is not None:
        count = len(report.suspected_resets)
        evidence = f"{plural(count, 'key')} with repeats that carry another timestamp than the row they repeat"
        found.append(Fact("Do counters restart?", "probably" if count else "no", evidence))
    return found


def _gaps(report: AuditReport, best: _Recommendation) -> Fact:
    question = "Are gaps normal?"
    if report.rules.gaps == "normal":
        return Fact(question, "yes", "a log has offsets without a record, so those that are skipped are not counted")
    skipped = f"{plural(report.missing_rows, 'number')} skipped, {share(best.missing_share)} of all numbers"
    return Fact(question, "yes" if best.gaps_are_normal else "no", skipped)


def _late(order: _OrderStatistics) -> Fact:
    question = "Do rows come out of order?"
    if not len(order.late):
        return Fact(question, "no", "each new row is above all rows before it of its key")
    rows, farthest = plural(len(order.late), "new row"), plural(int(order.late.max()), "number")
    return Fact(question, "yes", f"{rows} behind a later one, the farthest by {farthest}")


def _beginnings(order: _OrderStatistics) -> Fact:
    part = float((order.lowest == 0).mean()) if order.keys else 0.0
    evidence = f"{share(part)} of the keys begin with 0; the highest number is {order.highest:,}"
    return Fact("Where do sequences begin?", "at 0" if part > 0.9 else "anywhere", evidence)


def _epochs(report: AuditReport) -> Fact:
    if report.rules.columns.epoch is None:
        return Fact(
            "Are there epochs?",
            "no",
            "no column is an epoch; one that is a text or a time can be part of the producer's id",
        )
    changed = len(report.resets)
    evidence = f"{plural(changed, 'key')} changed the epoch, {plural(report.stale_epoch, 'row')} came of a replaced one"
    return Fact("Are there epochs?", "yes" if changed else "one for each key", evidence)


def _untracked(count: int) -> Fact:
    question = "Do all rows have a producer?"
    return Fact(question, "no" if count else "yes", f"{plural(count, 'row')} without one; each of them is kept")


def _compared(reports: dict[str, AuditReport], untracked: int) -> pa.Table:
    verdicts = ["ACCEPTED", "DUPLICATE", "OUT_OF_ORDER", "FENCED"]
    used = [it for it in verdicts if any(report.counts.get(it) for report in reports.values())]
    columns: dict[str, Any] = {"policy": list(reports)}
    columns |= {it: [report.counts.get(it, 0) for report in reports.values()] for it in used}
    if untracked:
        columns["UNTRACKED"] = [untracked] * len(reports)
    columns["missing"] = [min(report.missing_rows, MISSING_MAX) for report in reports.values()]
    columns["stale"] = [report.stale_epoch for report in reports.values()]
    return pa.table(columns)


def _round_up(value: int, least: int) -> int:
    """Round up to one significant digit."""
    size: int = 10 ** (len(str(max(value, 1))) - 1)
    return max(-(-value // size) * size, least)


def _time(ms: int) -> str:
    for size, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if ms >= size:
            return f"{ms / size:.1f} {name}s"
    return f"{ms} ms"


def _grid(table: pa.Table) -> list[str]:
    lines = [
        table.column_names,
        *([it if isinstance(it, str) else f"{it:,}" for it in row.values()] for row in table.to_pylist()),
    ]
    return [f"  {line}" for line in grid(lines, [at > 0 for at in range(len(table.column_names))])]
