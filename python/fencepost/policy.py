"""The rule set by which rows are judged, and the columns it reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fencepost import _native
from fencepost.errors import PolicyError, SnapshotError

ColumnNames = str | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which columns hold a row's identity: a name, a tuple of names for composite keys, or None where there is none.

    ``partition=None`` means that a producer numbers all its rows as one. ``epoch`` is None exactly where the policy
    ignores epochs. ``timestamp`` is read by tables that keep timestamps and by no others; None stands for the column
    named "timestamp".
    """

    pid: ColumnNames = "pid"
    epoch: str | None = "epoch"
    partition: ColumnNames = "partition"
    seq: str = "seq"
    timestamp: str | None = None

    @staticmethod
    def preset(name: str) -> Columns:
        """The columns of a usual layout: "kafka", "kafka-connect", "kafka-producer" or "hudi" (docs/kafka.md).

        Wherever columns are asked for, the name alone will do. PolicyError where there is none of that name.
        """
        if name not in COLUMN_PRESETS:
            raise PolicyError(f"columns={name!r}: no preset has that name; there are {', '.join(COLUMN_PRESETS)}")
        return COLUMN_PRESETS[name]

    def __post_init__(self) -> None:
        for role in ("pid", "partition"):
            names = getattr(self, role)
            if isinstance(names, list):
                object.__setattr__(self, role, tuple(names))
            if not _are_names(getattr(self, role)):
                raise PolicyError(f"Columns({role}={names!r}): a column name, a tuple of names, or None was expected")
        if self.pid is None:
            raise PolicyError("Columns(pid=None): every policy needs a producer column")
        if not isinstance(self.seq, str) or not isinstance(self.epoch, str | None):
            raise PolicyError(f"Columns(epoch={self.epoch!r}, seq={self.seq!r}): one column name each was expected")
        if not isinstance(self.timestamp, str | None):
            raise PolicyError(f"Columns(timestamp={self.timestamp!r}): a column name or None was expected")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the identity, in the order pid, epoch, partition, seq; the parts of a composite one by one."""
        epoch = () if self.epoch is None else (self.epoch,)
        return (*self.parts("pid"), *epoch, *self.parts("partition"), self.seq)

    def read(self, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Every column that a table reads which keeps this beyond what its rules need."""
        return (*self.names, self.timestamp or "timestamp") if "timestamp" in keep else self.names

    def parts(self, role: str) -> tuple[str, ...]:
        """The columns of one role."""
        names = getattr(self, role)
        if names is None:
            return ()
        return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchColumns:
    """Which columns describe produce batches and markers, each by default the one of its own name.

    ``pid``, ``epoch``, ``partition``, ``base_seq`` and one of ``count`` and ``last_seq`` are needed; the others are
    read where the rows have them. None means that a column is not to be read, of ``partition`` that there is only one.
    ``default_origin``: where a batch comes from whose row does not say: "client", "replica" or "coordinator"; a marker
    that would be a client's is the coordinator's.
    """

    pid: str = "pid"
    epoch: str = "epoch"
    partition: ColumnNames = "partition"
    base_seq: str = "base_seq"
    count: str | None = "count"
    last_seq: str | None = "last_seq"
    offset: str | None = "offset"
    last_offset: str | None = "last_offset"
    timestamp: str | None = "timestamp"
    transactional: str | None = "transactional"
    control: str | None = "control"
    coordinator_epoch: str | None = "coordinator_epoch"
    transaction_version: str | None = "transaction_version"
    origin: str | None = "origin"
    default_origin: str = "client"

    @staticmethod
    def kafka_log() -> BatchColumns:
        """The columns of ``fencepost.kafka.read_batches``: what a log holds was decided by its leader ("replica")."""
        return BatchColumns(offset="base_offset", timestamp="max_timestamp", default_origin="replica")

    def __post_init__(self) -> None:
        for role in ("partition",):
            names = getattr(self, role)
            if isinstance(names, list):
                object.__setattr__(self, role, tuple(names))
            if not _are_names(getattr(self, role)):
                raise PolicyError(
                    f"BatchColumns({role}={names!r}): a column name, a tuple of names, or None was expected"
                )
        for role in ("pid", "epoch", "base_seq"):
            if not isinstance(getattr(self, role), str):
                raise PolicyError(f"BatchColumns({role}={getattr(self, role)!r}): a column name was expected")
        for role in self.optional:
            if not isinstance(getattr(self, role), str | None):
                raise PolicyError(f"BatchColumns({role}={getattr(self, role)!r}): a column name or None was expected")
        if self.default_origin not in ORIGINS:
            raise PolicyError(f"BatchColumns(default_origin={self.default_origin!r}) is none of {', '.join(ORIGINS)}")

    @property
    def optional(self) -> tuple[str, ...]:
        """The roles whose columns are read only where the rows have them."""
        return _OPTIONAL_ROLES

    def parts(self, role: str) -> tuple[str, ...]:
        """The columns of one role."""
        names = getattr(self, role)
        if names is None:
            return ()
        return (names,) if isinstance(names, str) else tuple(names)

    def replace(self, **changes: Any) -> BatchColumns:
        """The same with other columns."""
        return dataclasses.replace(self, **changes)


ORIGINS = ("client", "replica", "coordinator")
_OPTIONAL_ROLES = (
    "count",
    "last_seq",
    "offset",
    "last_offset",
    "timestamp",
    "transactional",
    "control",
    "coordinator_epoch",
    "transaction_version",
    "origin",
)


def _are_names(names: object) -> bool:
    if isinstance(names, tuple):
        return len(names) > 0 and all(isinstance(name, str) for name in names)
    return names is None or isinstance(names, str)


COLUMN_PRESETS = {
    # As Spark's connector names them, and others after Kafka's own words.
    "kafka": Columns(pid="topic", epoch=None, partition="partition", seq="offset"),
    # InsertField has no names of its own; these are what most of its configurations say.
    "kafka-connect": Columns(pid="kafka_topic", epoch=None, partition="kafka_partition", seq="kafka_offset"),
    # What Kafka's own producers write: they number each partition of each topic by itself.
    "kafka-producer": Columns(partition=("topic", "partition")),
    # A table of one topic, whose name is in no column.
    "hudi": Columns(
        pid="_hoodie_kafka_source_partition", epoch=None, partition=None, seq="_hoodie_kafka_source_offset"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The rule set by which rows are judged: a value with named presets.

    Start from a preset and change fields: ``Policy.kafka().replace(window=10)``. A combination that makes no sense
    is a PolicyError.
    """

    admit: str
    """'any': a new position is accepted in any order; 'forward': only above the highest; 'next': only highest + 1."""
    epochs: str
    """'key': every epoch counts by itself; 'fence': a lower one is FENCED, a higher one replaces; 'ignore': none."""
    first: str
    """What an unknown key may begin with: 'any', or 'zero' ('any' policies then count the head as missing)."""
    window: int
    """'next' only: how many last rows of the epoch are still recognised as duplicates."""
    late: str
    """'forward' only: what a row below the highest is that was never accepted: 'out_of_order' or 'duplicate'."""
    gaps: str
    """Whether a hole counts as missing rows: 'report' or 'normal'."""
    wrap: int | None
    """Sequence numbers run 0 to wrap - 1, then 0 again; None: 64-bit counters that never wrap."""
    max_jump: int | None
    """'any' and 'forward': a row further than this above the highest is OUT_OF_ORDER; None: no bound."""
    reach: int | None
    """Holes further than this below the highest become final: their rows are FORGOTTEN; None: no bound."""
    intervals_max: int | None
    """A call on a table that holds this many holes raises CapacityError; None: no bound."""
    columns: Columns
    """The columns it reads unless told otherwise."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _is_of_type(field.name, value):
                raise PolicyError(f"{field.name}={value!r} is not {_FIELD_TYPES[field.name]}")
        _native.validate_policy(self.rules)

    @property
    def rules(self) -> str:
        """The rules as text, ``field=value`` by ``field=value``."""
        fields = (field.name for field in dataclasses.fields(self) if field.name != "columns")
        return " ".join(f"{name}={_as_text(getattr(self, name))}" for name in fields)

    @property
    def name(self) -> str | None:
        """The name of the preset with these rules, if there is one."""
        return next((name for name, preset in _PRESETS.items() if preset.rules == self.rules), None)

    @property
    def depends_on_order(self) -> bool:
        """Whether the rows to keep depend on the order in which they come.

        Under "any" they do where a higher epoch fences, where a jump may be too far, where holes below the reach are
        given up, and where a short sequence space comes round: laps are told apart by arrival. A producer that passes
        2^31 sequences within one epoch while rows from before are still under way does not occur; one that passes 256
        does.
        """
        is_long = self.wrap is None or self.wrap >= 2**31
        is_bound = self.max_jump is not None or self.reach is not None
        return self.admit != "any" or self.epochs == "fence" or is_bound or not is_long

    def replace(self, **fields: Any) -> Policy:
        """The same policy with other values for some fields; PolicyError for a field that does not exist."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in fields:
            if name not in known:
                raise PolicyError(f"a policy has no field '{name}'; fields are {', '.join(sorted(known))}")
        if fields.get("epochs") == "ignore" and "columns" not in fields:
            fields["columns"] = dataclasses.replace(self.columns, epoch=None)
        elif self.epochs == "ignore" and fields.get("epochs", "ignore") != "ignore" and "columns" not in fields:
            fields["columns"] = dataclasses.replace(self.columns, epoch="epoch")
        return dataclasses.replace(self, **fields)

    @staticmethod
    def any_order() -> Policy:
        """Every new row is kept, in any order; each epoch counts by itself. The default of every pipeline door."""
        return _PRESETS["any_order"]

    @staticmethod
    def in_order() -> Policy:
        """Only what lies above the highest is kept; a higher epoch fences. Refuses rows that fill a hole."""
        return _PRESETS["in_order"]

    @staticmethod
    def kafka() -> Policy:
        """The broker's rule on single records: highest + 1, a window of five. Refuses everything after a real loss."""
        return _PRESETS["kafka"]

    @staticmethod
    def strict() -> Policy:
        """The textbook contract: from 0, each + 1, a window of one. Refuses everything after a real loss."""
        return _PRESETS["strict"]

    @staticmethod
    def watermark() -> Policy:
        """Cursors and publishing ids: only above the highest. Calls late rows duplicates though never seen."""
        return _PRESETS["watermark"]

    @staticmethod
    def kafka_offsets() -> Policy:
        """Rows by (topic, partition, offset), as a sink landed them. Never an event's identity."""
        return _PRESETS["kafka_offsets"]


_COUNT, _WORD = "a whole number", "one word"
_FIELD_TYPES = dict.fromkeys(("admit", "epochs", "first", "late", "gaps"), _WORD) | {
    "window": _COUNT,
    "wrap": f"{_COUNT} or None",
    "max_jump": f"{_COUNT} or None",
    "reach": f"{_COUNT} or None",
    "intervals_max": f"{_COUNT} or None",
    "columns": "a Columns",
}


def _is_of_type(name: str, value: object) -> bool:
    """Whether a field holds what its text can say: equal rules are equal text, and the other way round."""
    if name == "columns":
        return isinstance(value, Columns)
    if _FIELD_TYPES[name] == _WORD:
        return isinstance(value, str) and value.isidentifier()
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return is_count or (value is None and _FIELD_TYPES[name] != _COUNT)


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


def _from_rules(rules: str, columns: Columns) -> Policy:
    fields: dict[str, Any] = dict(pair.split("=", 1) for pair in rules.split())
    for name, kind in _FIELD_TYPES.items():
        if kind.startswith(_COUNT):
            fields[name] = None if fields[name] == "none" else int(fields[name])
    return Policy(**fields, columns=columns)


_PRESETS: dict[str, Policy] = {
    name: _from_rules(rules, Columns(pid=pid, epoch=epoch, partition=partition, seq=seq))
    for name, rules, pid, epoch, partition, seq in _native.presets()
}


def resolve(policy: str | Policy) -> Policy:
    """The policy itself, or the preset of that name; PolicyError where there is none."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise PolicyError(f"a preset name or a Policy was expected, not {type(policy).__name__}")
    if policy not in _PRESETS:
        raise PolicyError(f"no policy is named '{policy}'; presets are {', '.join(_PRESETS)}")
    return _PRESETS[policy]


def check_columns(policy: Policy, columns: Columns) -> None:
    """Refuses columns that do not go with the policy: an epoch mapped where there are none, or none where needed."""
    _as_columns(columns)
    if policy.epochs == "ignore" and columns.epoch is not None:
        raise PolicyError(f"this policy ignores epochs, so epoch='{columns.epoch}' cannot be mapped; pass epoch=None")
    if policy.epochs != "ignore" and columns.epoch is None:
        raise PolicyError(
            f"this policy needs epochs (epochs='{policy.epochs}'), so columns.epoch cannot be None; "
            "Policy.replace(epochs='ignore') is for rows that have none"
        )


def resolve_columns(policy: Policy, columns: Columns | str | None) -> Columns:
    """The columns to read: those given, those of the preset of that name, or the policy's own.

    Raises PolicyError for a preset that is not known, and for columns that do not go with the policy.
    """
    if columns is None:
        return policy.columns
    if not isinstance(columns, str):
        check_columns(policy, columns)
        return columns
    preset = Columns.preset(columns)
    if preset.epoch is None and policy.epochs != "ignore":
        raise PolicyError(
            f"columns='{columns}' names offsets, and this policy needs epochs (epochs='{policy.epochs}'): "
            "pass policy='kafka_offsets' to judge by offsets, or the columns of the event's own identity"
        )
    check_columns(policy, preset)
    return preset


def columns_or_default(columns: Columns | str | None) -> Columns:
    """The same where no policy is at hand: the usual names if None."""
    if columns is None:
        return Columns()
    if isinstance(columns, str):
        return Columns.preset(columns)
    return _as_columns(columns)


def _as_columns(columns: object) -> Columns:
    if isinstance(columns, Columns):
        return columns
    presets = ", ".join(COLUMN_PRESETS)
    raise PolicyError(f"columns={columns!r}: a fencepost.Columns was expected, or the name of a preset: {presets}")


def difference(found: Policy, expected: Policy) -> str:
    """How one policy differs from another, field by field."""
    names = (field.name for field in dataclasses.fields(Policy))
    return "; ".join(
        f"{name}={getattr(found, name)!r} found, {getattr(expected, name)!r} expected"
        for name in names
        if getattr(found, name) != getattr(expected, name)
    )


@lru_cache(maxsize=64)
def to_label(policy: Policy) -> str:
    """What a snapshot keeps of a policy beside its rules."""
    return json.dumps(dataclasses.asdict(policy.columns), sort_keys=True)


def from_label(rules: str, label: str) -> Policy:
    """The policy of a snapshot; SnapshotError where the label is none that this package writes."""
    try:
        columns = Columns(**json.loads(label)) if label else _default_columns(rules)
    except (ValueError, TypeError, PolicyError) as error:
        reason = f"the columns of its policy cannot be read: {label!r}"
        raise SnapshotError(reason, reason=reason) from error
    return _from_rules(rules, columns)


def _default_columns(rules: str) -> Columns:
    preset = next((preset for preset in _PRESETS.values() if preset.rules == rules), None)
    if preset is not None:
        return preset.columns
    return Columns(epoch=None) if "epochs=ignore" in rules.split() else Columns()


def options_of(
    metadata: Mapping[str, str], policy: str | Policy | None
) -> tuple[Policy, list[str], int | None, str, int | None]:
    """What the metadata of ``StateTable.entries()`` keeps: policy, keep, entries_max, untracked and horizon_ms.

    ``policy``: what it must be, the metadata's own where None is given. Raises SnapshotError where the metadata names
    other rules or cannot be read, PolicyError where no policy is named.
    """
    rules = metadata.get("fencepost.policy")
    if policy is not None:
        expected = resolve(policy)
        if rules is not None and rules != expected.rules:
            reason = f"of another policy: found {rules}, expected {expected.rules}"
            raise SnapshotError(reason, reason=reason)
    elif rules is not None:
        expected = _from_metadata(rules, metadata.get("fencepost.columns", ""))
    else:
        raise PolicyError("no policy: the schema metadata has no 'fencepost.policy', so name one")
    text, horizon = metadata.get("fencepost.options", "{}"), metadata.get("fencepost.horizon")
    try:
        options = json.loads(text)
        kept, entries_max = list(options.get("keep", [])), options.get("entries_max")
        horizon_ms = None if horizon is None else int(horizon)
        return expected, kept, entries_max, options.get("untracked", "keep"), horizon_ms
    except (ValueError, AttributeError, TypeError) as error:
        reason = f"the options of its metadata cannot be read: {text!r}, horizon {horizon!r}"
        raise SnapshotError(reason, reason=reason) from error


def _from_metadata(rules: str, label: str) -> Policy:
    try:
        return from_label(rules, label)
    except (ValueError, KeyError, TypeError, PolicyError) as error:
        reason = f"the policy of its metadata cannot be read: {rules!r}"
        raise SnapshotError(reason, reason=reason) from error
