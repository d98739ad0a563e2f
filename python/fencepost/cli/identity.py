"""Options that say by which rules rows are judged, and where their identity stands."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from fencepost._native import presets
from fencepost.errors import PolicyError
from fencepost.policy import COLUMN_PRESETS, Columns, Policy, check_columns, resolve, resolve_columns

_PRESETS = ", ".join(name for name, *_ in presets())
_FIELDS = ", ".join(field.name for field in dataclasses.fields(Policy) if field.name != "columns")

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="PRESET",
        help=f"The rules by which rows are judged: {_PRESETS}; any_order unless given.",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        help='JSON or TOML: fields of a policy, "preset" (any_order) for the others, "columns" (by role, or a preset).'
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Of the object store that SOURCE is in, such as region=eu-central-1, or of an Iceberg table's catalog; "
        "may be repeated. What is not given comes from the environment, which is the place for credentials.",
    ),
]
SinkOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Likewise of the object store or catalog that SINK is in; may be repeated."
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help=f"A field of the policy, e.g. reach=100000, or reach=none for no bound; may be repeated. "
        f"Fields: {_FIELDS}; what they mean is told by help(fencepost.Policy) in Python.",
    ),
]
ColumnsName = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="PRESET",
        help=f"Where the identity stands in a usual layout: {', '.join(COLUMN_PRESETS)}. Options for single columns "
        "change it.",
    ),
]
Pid = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="The producer; repeat it for several columns as one key.")
]
Partition = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="The partition; repeat it for several columns as one key.")
]
NoPartition = Annotated[bool, typer.Option("--no-partition", help="A producer numbers all its rows as one.")]
Epoch = Annotated[str | None, typer.Option(metavar="COLUMN", help="The producer's incarnation.")]
Seq = Annotated[str | None, typer.Option(metavar="COLUMN", help="The sequence number.")]
Timestamp = Annotated[str | None, typer.Option(metavar="COLUMN", help="When the event was made.")]
ResetRowsMin = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Suspect a reset from so many repeats of a key on (1) that carry another timestamp than what they repeat.",
    ),
]
CompareContent = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Compare this column of a repeat with that of the row it repeats: one that differs is a CONFLICT. May be "
        "repeated; all: every column that is not of the identity.",
    ),
]
KeepChecksums = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Keep a checksum of each kept row in the state, at 4 bytes, so that later runs compare repeats with it: "
        "all, or of so many of the newest positions of each key. Every later run must give it, with the same columns; "
        "0 drops them. See --compare-content.",
    ),
]

SCOPE_HELP = (
    "What the data does not say about itself, e.g. a cluster: a text of your own, by which states are told apart. "
    "It is fixed for ever with the state, given or not."
)
SHARDS_HELP = (
    "Into how many parts a new state is cut (16), and stays so. Unless given, runs cut it into more as it grows."
)
LAYOUT_HELP = (
    "delta for a SINK that is to be a Delta table, run for folders; whichever it is already unless given, else folders."
)


def pairs(name: str, texts: list[str] | None) -> dict[str, str] | None:
    """What an option says that is given as NAME=VALUE, perhaps several times. Raises a usage error."""
    found = [text.partition("=") for text in texts or ()]
    for key, sign, value in found:
        if not (key and sign):
            raise typer.BadParameter(f"{name} {key}{sign}{value}: NAME=VALUE was expected")
    return {key: value for key, _, value in found} or None


def compared(names: list[str] | None) -> bool | list[str] | None:
    """`compare_content=` of the columns that were named; None where none was."""
    return True if names == ["all"] else names or None


def read_policy(options: dict[str, Any]) -> Policy:
    """The policy that the options of a command name, with its columns. Raises a usage error."""
    try:
        policy = _from_file(options["policy_file"]) if options["policy_file"] else resolve("any_order")
        if options["policy"] is not None:
            if options["policy_file"]:
                raise PolicyError('--policy and --policy-file: one of them; a file may name a "preset"')
            policy = resolve(options["policy"])
        policy = policy.replace(**dict(map(_field, options["fields"] or ())))
        columns = _columns(resolve_columns(policy, options["columns"]), options)
        check_columns(policy, columns)
        return policy.replace(columns=columns)
    except (PolicyError, ValueError, TypeError) as problem:
        raise typer.BadParameter(str(problem)) from None


def named_columns(options: dict[str, Any]) -> Columns | dict[str, Any]:
    """The columns that the options of a command name: by role, or all of a preset. Raises a usage error."""
    try:
        if options["columns"]:
            return _columns(Columns.preset(options["columns"]), options)
        return _given(options)
    except PolicyError as problem:
        raise typer.BadParameter(str(problem)) from None


def _from_file(path: Path) -> Policy:
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
        raise PolicyError(f"{path}: {problem}") from problem


def _field(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or name == "columns":
        raise PolicyError(f"--set {text}: FIELD=VALUE was expected; columns have options of their own")
    return name, None if value == "none" else int(value) if value.lstrip("-").isdecimal() else value


def _columns(columns: Columns, options: dict[str, Any]) -> Columns:
    return dataclasses.replace(columns, **_given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The columns that single options name, by role."""
    given: dict[str, Any] = {
        role: tuple(options[role]) if len(options[role]) > 1 else options[role][0]
        for role in ("pid", "partition")
        if options[role]
    }
    given |= {role: options[role] for role in ("epoch", "seq", "timestamp") if options[role] is not None}
    if options["no_partition"]:
        if "partition" in given:
            raise PolicyError("--partition and --no-partition: one of them")
        given["partition"] = None
    return given
