"""Options for the policy and the identity columns."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fencepost._native import presets
from fencepost.cli.terminal import usage_errors
from fencepost.errors import PolicyError, message_of
from fencepost.policy import COLUMN_PRESETS, Columns, Policy, check_columns, from_text, resolve, resolve_columns

_PRESETS = ", ".join(name for name, *_ in presets())
_FIELDS = ", ".join(field.name for field in dataclasses.fields(Policy) if field.name != "columns")

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="PRESET",
        help=f"The rules for judging rows: {_PRESETS}. Default: any_order.",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        help='A JSON or TOML file with fields of the policy. Its key "preset" names the preset for all other fields '
        '(any_order). Its key "columns" maps pid, epoch, partition, seq and timestamp to columns, or names a preset.'
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option for the object store of SOURCE, such as region=eu-central-1, or for its Iceberg catalog. "
        "Repeatable. Other options come from the environment; put credentials there.",
    ),
]
SinkOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option for the object store or catalog of SINK. Repeatable."),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help=f"Change a field of the policy: reach=100000, or reach=none for unlimited. Repeatable. "
        f"Fields: {_FIELDS}; see help(fencepost.Policy) in Python.",
    ),
]
ColumnsName = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="PRESET",
        help=f"The identity columns of a common layout: {', '.join(COLUMN_PRESETS)}. Options for single columns "
        "override it.",
    ),
]
Pid = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="The producer column. Repeat for a composite key.")
]
Partition = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="The partition column. Repeat for a composite key.")
]
NoPartition = Annotated[
    bool, typer.Option("--no-partition", help="No partition column: each producer has one sequence.")
]
Epoch = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the producer's epoch (incarnation).")]
Seq = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the sequence number.")]
Timestamp = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the event's timestamp.")]
ResetRowsMin = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Suspect that a key was reset if it has at least this number of repeats with another timestamp than the "
        "original (1).",
    ),
]
OrderBy = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Judge rows in the order of this column. Repeatable.")
]
FileOrder = Annotated[
    bool, typer.Option("--file-order", help="Judge files in the order of their names, and rows in file order.")
]
DURATION = "e.g. 7d, 12h, 30m, 45s."
MaxIdle = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help=f"Forget producers that were idle for this duration, by the timestamps of the data, {DURATION} "
        "Default: forget nothing. Cannot be enabled or disabled later; the duration may change.",
    ),
]
CompareContent = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Compare this column of a repeat with the row it repeats; a difference is a CONFLICT. Repeatable. all: "
        "every column outside the identity.",
    ),
]
KeepChecksums = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Keep a checksum (4 bytes) of each kept row in the state, so that later runs can compare repeats: all, or "
        "the number of newest positions per key. Later runs must also pass --keep-checksums, and --compare-content "
        "with the same columns; 0 drops the checksums.",
    ),
]

SCOPE_HELP = "A text that distinguishes states of different origins, such as a cluster's name. Cannot be changed later."
SHARDS_HELP = "Fixed number of shards of a new state. Default: 16, split automatically as the state grows."
LAYOUT_HELP = (
    "How to write SINK: delta (a Delta table) or run (folders run=<n>/). Default: the existing layout; for a new SINK, "
    "folders."
)


def pairs(name: str, texts: list[str] | None) -> dict[str, str] | None:
    """Parse an option of the form NAME=VALUE that may be repeated. Raises a usage error."""
    found = [text.partition("=") for text in texts or ()]
    for key, sign, value in found:
        if not (key and sign):
            raise typer.BadParameter(f"{name} {key}{sign}{value}: expected NAME=VALUE")
    return {key: value for key, _, value in found} or None


def ordered(order_by: list[str] | None, file_order: bool) -> list[str] | tuple[()] | None:
    """Return the argument `order_by` of a job."""
    if order_by and file_order:
        raise typer.BadParameter("pass either --order-by or --file-order, not both")
    return () if file_order else order_by or None


def compared(names: list[str] | None) -> bool | list[str] | None:
    """Return the argument `compare_content` for the named columns. None if there are none."""
    return True if names == ["all"] else names or None


def read_policy(options: dict[str, Any]) -> Policy:
    """Return the policy that a command's options describe, with its columns. Raises a usage error."""
    with usage_errors(PolicyError, ValueError, TypeError):
        policy = _from_file(options["policy_file"]) if options["policy_file"] else resolve("any_order")
        if options["policy"] is not None:
            if options["policy_file"]:
                raise PolicyError('pass either --policy or --policy-file, not both; a file can name a "preset"')
            policy = resolve(options["policy"])
        policy = policy.replace(**dict(map(_field, options["fields"] or ())))
        columns = dataclasses.replace(resolve_columns(policy, options["columns"]), **_given(options))
        check_columns(policy, columns)
        return policy.replace(columns=columns)


def named_columns(options: dict[str, Any]) -> Columns | dict[str, Any]:
    """Return the columns that a command's options name, by role or as a preset. Raises a usage error."""
    with usage_errors(PolicyError):
        if options["columns"]:
            return dataclasses.replace(Columns.preset(options["columns"]), **_given(options))
        return _given(options)


def _from_file(path: Path) -> Policy:
    import tomllib

    text = path.read_text()
    try:
        fields = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        preset = resolve(fields.pop("preset", "any_order"))
        columns = fields.pop("columns", None)
        policy = preset.replace(**{name: None if value == "none" else value for name, value in fields.items()})
        if columns is None:
            return policy
        if isinstance(columns, str):
            return policy.replace(columns=resolve_columns(policy, columns))
        columns = {role: None if names == "none" else names for role, names in columns.items()}
        return policy.replace(columns=dataclasses.replace(policy.columns, **columns))
    except (ValueError, TypeError, AttributeError, PolicyError) as problem:
        raise PolicyError(f"{path}: {message_of(problem)}") from problem


def _field(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or name == "columns":
        raise PolicyError(f"--set {text}: expected FIELD=VALUE; columns have their own options")
    return name, from_text(value)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that single options name, by role."""
    given: dict[str, Any] = {
        role: tuple(options[role]) if len(options[role]) > 1 else options[role][0]
        for role in ("pid", "partition")
        if options[role]
    }
    given |= {role: options[role] for role in ("epoch", "seq", "timestamp") if options[role] is not None}
    if options["no_partition"]:
        if "partition" in given:
            raise PolicyError("pass either --partition or --no-partition, not both")
        given["partition"] = None
    return given
