"""Policies (the rules for judging rows) and the columns they read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fencepost import _native
from fencepost.errors import PolicyError, SnapshotError
from fencepost.inputs import is_integer

ColumnNames = str | tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns that hold a row's identity.

    `pid` and `partition` are a column name, or a tuple of names for a composite key. `epoch`, `seq` and `timestamp` are
    one column name. None for `epoch` or `partition` means that there is no such column.

    Attributes:
        pid: The producer.
        epoch: The producer's epoch. None if and only if the policy ignores epochs.
        partition: The partition. None: a producer uses one sequence for all its rows.
        seq: The sequence number.
        timestamp: Read only by tables that keep timestamps. None: the column named "timestamp".
    """

    pid: ColumnNames = "pid"
    epoch: str | None = "epoch"
    partition: ColumnNames = "partition"
    seq: str = "seq"
    timestamp: str | None = None

    @staticmethod
    def preset(name: str) -> Columns:
        """Return the columns of a common layout: "kafka", "kafka-connect", "kafka-producer" or "hudi" (docs/kafka.md).

        Arguments of type ``Columns | str`` also accept the name itself. Raises PolicyError for an unknown name.
        """
        if name not in COLUMN_PRESETS:
            raise PolicyError(f"columns={name!r}: unknown preset; presets are {', '.join(COLUMN_PRESETS)}")
        return COLUMN_PRESETS[name]

    def __post_init__(self) -> None:
        for role in ("pid", "partition"):
            names = getattr(self, role)
            if isinstance(names, list):
                object.__setattr__(self, role, tuple(names))
            if not _are_names(getattr(self, role)):
                raise PolicyError(f"Columns({role}={names!r}): expected a column name, a tuple of names, or None")
        if self.pid is None:
            raise PolicyError("Columns(pid=None): every policy needs a producer column")
        if not isinstance(self.seq, str) or not isinstance(self.epoch, str | None):
            raise PolicyError(f"Columns(epoch={self.epoch!r}, seq={self.seq!r}): expected one column name each")
        if not isinstance(self.timestamp, str | None):
            raise PolicyError(f"Columns(timestamp={self.timestamp!r}): expected a column name or None")

    @property
    def names(self) -> tuple[str, ...]:
        """The identity columns in the order pid, epoch, partition, seq. Composite keys are expanded."""
        epoch = () if self.epoch is None else (self.epoch,)
        return (*self.parts("pid"), *epoch, *self.parts("partition"), self.seq)

    @property
    def kept(self) -> tuple[str, ...]:
        """What a table keeps in addition to what its rules need: ("timestamp",) if these columns name a timestamp
        column, otherwise ()."""
        return () if self.timestamp is None else ("timestamp",)

    def read(self, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Return every column that a table reads. `keep`: what the table keeps beyond what its rules need."""
        return (*self.names, self.timestamp or "timestamp") if "timestamp" in keep else self.names

    def parts(self, role: str) -> tuple[str, ...]:
        """Return the columns of one role."""
        names = getattr(self, role)
        if names is None:
            return ()
        return (names,) if isinstance(names, str) else tuple(names)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify the producer and the partition."""
        return (*self.parts("pid"), *self.parts("partition"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchColumns:
    """The columns that describe produce batches and markers. By default, each role is the column of the same name.

    ``pid``, ``epoch``, ``partition``, ``base_seq`` and either ``count`` or ``last_seq`` are required. The others are
    read if the input has them. None means that the column is not read; for ``partition`` it means that there is only
    one partition.

    ``default_origin``: the origin of a batch whose row does not name one: "client", "replica" or "coordinator". With
    "client", markers default to "coordinator".
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
        """Return the columns of ``fencepost.kafka.read_batches``.

        The origin is "replica": the leader has already judged what its log holds.
        """
        return BatchColumns(offset="base_offset", timestamp="max_timestamp", default_origin="replica")

    def __post_init__(self) -> None:
        for role in ("partition",):
            names = getattr(self, role)
            if isinstance(names, list):
                object.__setattr__(self, role, tuple(names))
            if not _are_names(getattr(self, role)):
                raise PolicyError(f"BatchColumns({role}={names!r}): expected a column name, a tuple of names, or None")
        for role in ("pid", "epoch", "base_seq"):
            if not isinstance(getattr(self, role), str):
                raise PolicyError(f"BatchColumns({role}={getattr(self, role)!r}): expected a column name")
        for role in self.optional:
            if not isinstance(getattr(self, role), str | None):
                raise PolicyError(f"BatchColumns({role}={getattr(self, role)!r}): expected a column name or None")
        if self.default_origin not in ORIGINS:
            raise PolicyError(
                f"BatchColumns(default_origin={self.default_origin!r}) must be one of {', '.join(ORIGINS)}"
            )

    @property
    def optional(self) -> tuple[str, ...]:
        """The roles whose columns are read only if the input has them."""
        return _OPTIONAL_ROLES

    def parts(self, role: str) -> tuple[str, ...]:
        """Return the columns of one role."""
        names = getattr(self, role)
        if names is None:
            return ()
        return (names,) if isinstance(names, str) else tuple(names)

    def replace(self, **changes: Any) -> BatchColumns:
        """Return a copy with other columns."""
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
    # The names that Spark's Kafka connector and others use.
    "kafka": Columns(pid="topic", epoch=None, partition="partition", seq="offset"),
    # InsertField has no default names; most of its configurations use these.
    "kafka-connect": Columns(pid="kafka_topic", epoch=None, partition="kafka_partition", seq="kafka_offset"),
    # Kafka's producers number each partition of each topic separately.
    "kafka-producer": Columns(partition=("topic", "partition")),
    # A table of one topic; no column holds the topic's name.
    "hudi": Columns(
        pid="_hoodie_kafka_source_partition", epoch=None, partition=None, seq="_hoodie_kafka_source_offset"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The rules for judging rows: an immutable value with named presets.

    Start from a preset and change fields: ``Policy.kafka().replace(window=10)``. A contradictory combination raises
    PolicyError.
    """

    admit: str
    """'any': accept a new position in any order; 'forward': only above the highest; 'next': only highest + 1."""
    epochs: str
    """'key': epochs are independent; 'fence': a higher epoch replaces a lower one, which is FENCED; 'ignore': no
    epochs."""
    first: str
    """The first sequence number of an unknown key. 'any': any number. 'zero': under admit='any', the numbers from 0 to
    the first one count as missing; under the other values of admit, the first row must be 0."""
    window: int
    """'next' only: how many last rows of the epoch are recognized as duplicates."""
    late: str
    """'forward' only: the verdict on a new row below the highest: 'out_of_order' or 'duplicate'."""
    gaps: str
    """Whether a hole counts as missing rows: 'report' or 'normal'."""
    wrap: int | None
    """Sequence numbers run from 0 to wrap - 1, then from 0 again. None: 64-bit counters that never wrap."""
    max_jump: int | None
    """'any' and 'forward': a row further than this above the highest is OUT_OF_ORDER. None: unlimited."""
    reach: int | None
    """Holes further than this below the highest become final, and their rows FORGOTTEN. None: unlimited."""
    intervals_max: int | None
    """A call on a table with this many holes raises CapacityError. None: unlimited."""
    columns: Columns
    """The columns to read by default."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _is_of_type(field.name, value):
                raise PolicyError(f"{field.name}={value!r} is not {_FIELD_TYPES[field.name]}")
        _native.validate_policy(self.rules)

    @property
    def rules(self) -> str:
        """The rules as text: ``field=value``, separated by spaces."""
        fields = (field.name for field in dataclasses.fields(self) if field.name != "columns")
        return " ".join(f"{name}={_as_text(getattr(self, name))}" for name in fields)

    @property
    def name(self) -> str | None:
        """The name of the preset with these rules, or None."""
        return next((name for name, preset in _PRESETS.items() if preset.rules == self.rules), None)

    @property
    def depends_on_order(self) -> bool:
        """Whether the set of kept rows depends on the order of the input.

        Under admit="any" it depends on the order if a higher epoch fences, if jumps are limited, if holes below the
        reach become final, or if the sequence space is short. In a short space, only the order of arrival tells in
        which lap a number is (a lap is one pass from 0 to wrap - 1). A space of 2^31 is not short: no producer wraps
        within one epoch while rows of the previous lap are still in flight. A space of 256 is.
        """
        is_long = self.wrap is None or self.wrap >= 2**31
        is_bound = self.max_jump is not None or self.reach is not None
        return self.admit != "any" or self.epochs == "fence" or is_bound or not is_long

    @property
    def takes_late_for_repeats(self) -> bool:
        """Whether a new row below the highest is a DUPLICATE, as a repeat is."""
        return self.admit == "forward" and self.late == "duplicate"

    @property
    def why_gaps_are_unknown(self) -> str | None:
        """Why missing rows cannot be counted under this policy, or None if they can."""
        if self.admit == "next":
            return "this policy refuses the rows after a gap, and does not count those in it"
        return "this policy does not report gaps (gaps=normal)" if self.gaps == "normal" else None

    @property
    def why_some_gaps_are_unknown(self) -> str | None:
        """Why some missing rows are not counted under this policy, or None if all are."""
        if self.reach is None or self.admit != "any":
            return None
        return f"gaps that are more than {self.reach:,} below the highest number are given up, and not counted"

    def replace(self, **fields: Any) -> Policy:
        """Return a copy with other values for some fields. Raises PolicyError for an unknown field."""
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
        """Keep every new row, in any order. Epochs are independent. The default of functions and jobs."""
        return _PRESETS["any_order"]

    @staticmethod
    def in_order() -> Policy:
        """Keep only rows above the highest; a higher epoch fences. Refuses rows that fill a hole."""
        return _PRESETS["in_order"]

    @staticmethod
    def kafka() -> Policy:
        """Apply the broker's rule to single records: highest + 1, a window of five. Refuses everything after a real
        loss."""
        return _PRESETS["kafka"]

    @staticmethod
    def strict() -> Policy:
        """Apply the textbook contract: from 0, each + 1, a window of one. Refuses everything after a real loss."""
        return _PRESETS["strict"]

    @staticmethod
    def watermark() -> Policy:
        """Keep only rows above the highest (cursors, publishing ids). Late rows count as duplicates even if new."""
        return _PRESETS["watermark"]

    @staticmethod
    def kafka_offsets() -> Policy:
        """Identify rows that a sink has copied from Kafka by topic, partition and offset. Recognizes rows that the sink
        wrote twice, but not events that the producer sent twice: each copy of those has its own offset."""
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
    """Return whether a field has a value that its text form preserves: equal rules have equal text and vice versa."""
    if name == "columns":
        return isinstance(value, Columns)
    if _FIELD_TYPES[name] == _WORD:
        return isinstance(value, str) and value.isidentifier()
    return is_integer(value) or (value is None and _FIELD_TYPES[name] != _COUNT)


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


def from_text(text: str) -> str | int | None:
    """Return the value of a field from its text."""
    if text == "none":
        return None
    return int(text) if text.removeprefix("-").isdecimal() else text


def _fields_of(rules: str) -> dict[str, Any]:
    pairs = (pair.partition("=") for pair in rules.split())
    return {name: from_text(value) for name, _, value in pairs}


def _from_rules(rules: str, columns: Columns) -> Policy:
    return Policy(**_fields_of(rules), columns=columns)


_PRESETS: dict[str, Policy] = {
    name: _from_rules(rules, Columns(pid=pid, epoch=epoch, partition=partition, seq=seq))
    for name, rules, pid, epoch, partition, seq in _native.presets()
}


def resolve(policy: str | Policy) -> Policy:
    """Return the policy itself, or the preset of that name. Raises PolicyError for an unknown name."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise PolicyError(f"expected a preset name or a Policy, not {type(policy).__name__}")
    if policy not in _PRESETS:
        raise PolicyError(f"unknown policy '{policy}'; presets are {', '.join(_PRESETS)}")
    return _PRESETS[policy]


def check_columns(policy: Policy, columns: Columns) -> None:
    """Raise PolicyError if the columns contradict the policy: an epoch that it ignores, or no epoch if it needs one."""
    _as_columns(columns)
    if policy.epochs == "ignore" and columns.epoch is not None:
        raise PolicyError(f"this policy ignores epochs, so epoch='{columns.epoch}' cannot be mapped; pass epoch=None")
    if policy.epochs != "ignore" and columns.epoch is None:
        raise PolicyError(
            f"this policy needs epochs (epochs='{policy.epochs}'), so columns.epoch cannot be None; for rows "
            "without epochs use Policy.replace(epochs='ignore')"
        )


def resolve_columns(policy: Policy, columns: Columns | str | None) -> Columns:
    """Return the columns to read: the given ones, the preset of that name, or the policy's own.

    Raises PolicyError for an unknown preset, and for columns that do not match the policy.
    """
    if columns is None:
        return policy.columns
    if not isinstance(columns, str):
        check_columns(policy, columns)
        return columns
    preset = Columns.preset(columns)
    if preset.epoch is None and policy.epochs != "ignore":
        raise PolicyError(
            f"columns='{columns}' names offsets, but this policy needs epochs (epochs='{policy.epochs}'): "
            "pass policy='kafka_offsets' to judge by offsets, or pass the columns of the event's own identity"
        )
    check_columns(policy, preset)
    return preset


def columns_or_default(columns: Columns | str | None) -> Columns:
    """Return the columns to read if there is no policy: None selects the default names."""
    if columns is None:
        return Columns()
    if isinstance(columns, str):
        return Columns.preset(columns)
    return _as_columns(columns)


def _as_columns(columns: object) -> Columns:
    if isinstance(columns, Columns):
        return columns
    presets = ", ".join(COLUMN_PRESETS)
    raise PolicyError(f"columns={columns!r}: expected a fencepost.Columns, or the name of a preset: {presets}")


def difference(found: Policy, expected: Policy) -> str:
    """Describe how one policy differs from another, field by field."""
    ours, theirs = ({"policy": it.rules, "columns": dataclasses.asdict(it.columns)} for it in (found, expected))
    return differences(ours, theirs, "found", "expected")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str, elsewhere: str) -> str:
    """Describe each setting that differs: ``name=1 <where>, 2 <elsewhere>; ...``. A missing value is None.

    Of the settings "policy" (rules as text) and "columns" (by role), each field is described alone.
    """
    one, other = _by_field(ours), _by_field(theirs)
    return "; ".join(
        f"{name}={one.get(name)!r} {where}, {other.get(name)!r} {elsewhere}"
        for name in one | other
        if one.get(name) != other.get(name)
    )


def _by_field(settings: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "policy":
            fields |= _fields_of(value)
        elif name == "columns":
            fields |= {f"columns.{role}": names for role, names in value.items()}
        else:
            fields[name] = value
    return fields


def _make_label(policy: Policy) -> str:
    """Return the text that a snapshot stores of a policy in addition to its rules."""
    return json.dumps(dataclasses.asdict(policy.columns), sort_keys=True)


to_label = lru_cache(maxsize=64)(_make_label)


def from_label(rules: str, label: str) -> Policy:
    """Return the policy of a snapshot. Raises SnapshotError for a label that this package does not write."""
    try:
        columns = Columns(**json.loads(label)) if label else _default_columns(rules)
    except (ValueError, TypeError, PolicyError) as error:
        reason = f"the columns of the policy cannot be read: {label!r}"
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
    """Read policy, keep, entries_max, untracked and horizon_ms from the metadata of ``StateTable.entries()``.

    `policy`: the expected policy, or None for that of the metadata. Raises SnapshotError if the metadata has other
    rules or is unreadable, PolicyError if neither names a policy.
    """
    rules = metadata.get("fencepost.policy")
    if policy is not None:
        expected = resolve(policy)
        if rules is not None and rules != expected.rules:
            differing = differences({"policy": rules}, {"policy": expected.rules}, "found", "expected")
            reason = f"the metadata has another policy: {differing}"
            raise SnapshotError(reason, reason=reason)
    elif rules is not None:
        expected = _from_metadata(rules, metadata.get("fencepost.columns", ""))
    else:
        raise PolicyError("the schema metadata has no 'fencepost.policy': pass a policy")
    text, horizon = metadata.get("fencepost.options", "{}"), metadata.get("fencepost.horizon")
    try:
        options = json.loads(text)
        kept, entries_max = list(options.get("keep", [])), options.get("entries_max")
        horizon_ms = None if horizon is None else int(horizon)
        return expected, kept, entries_max, options.get("untracked", "keep"), horizon_ms
    except (ValueError, AttributeError, TypeError) as error:
        reason = f"the options in the metadata cannot be read: {text!r}, horizon {horizon!r}"
        raise SnapshotError(reason, reason=reason) from error


def _from_metadata(rules: str, label: str) -> Policy:
    try:
        return from_label(rules, label)
    except (ValueError, KeyError, TypeError, PolicyError) as error:
        reason = f"the policy in the metadata cannot be read: {rules!r}"
        raise SnapshotError(reason, reason=reason) from error
