"""The columns of a Delta table: which files match, the columns of a new table, and added or widened columns.

Types are those of the log in JSON: text, or an object for nested types. Source: the Delta protocol, sections "Schema
Serialization Format" and "Type Widening".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date
from functools import partial
from typing import Any
from uuid import uuid4

from fencepost.errors import SinkError
from fencepost.state.delta_log import Action, Table

RULES_OF_COLUMNS = ("delta.generationExpression", "delta.identity.", "delta.invariants", "delta.columnMapping.")
INTEGERS = ("byte", "short", "integer", "long")
WIDENING, TYPE_CHANGES = "typeWidening", "delta.typeChanges"
WIDER = (INTEGERS, ("float", "double"))
"""Types in widening order: each one holds the values of those before it. Decimals of the same scale widen, too."""
NO_ZONE = "timestampNtz"
"""The feature of tables with timestamps without time zone."""

Found = list[tuple[Any, str]]
"""Arrow schemas, each with the path of a file that has it."""


# Existing columns


def check_columns(table: Table, location: str) -> None:
    """Raise SinkError for columns with rules, which would not be checked for added files."""
    for field in table.fields:
        rules = [name for name in field.get("metadata") or {} if name.startswith(RULES_OF_COLUMNS)]
        if rules or not field["nullable"]:
            rule = rules[0] if rules else "NOT NULL"
            name = field["name"]
            raise SinkError(
                f"{location}: column '{name}' has {rule}, which fencepost cannot check. Remove the rule, or use "
                "another table"
            )


def check_schema(location: str, known: dict[str, Action], schema: Any, path: str) -> None:
    """Raise SinkError if the table lacks a file's columns."""
    for name, kind in _types(schema, path).items():
        if name not in known:
            raise SinkError(
                f"{location}: column '{name}' of {path} is not in the table; add it there (ALTER TABLE ... ADD COLUMN "
                f"`{name}`), let the job do so (schema='merge'), or read the input without it"
            )
        wanted = known[name]["type"]
        if kind != wanted:
            raise SinkError(f"{location}: column '{name}' of {path} is {kind}, in the table it is {wanted}")


def check_values(location: str, field: Action, values: set[str | None]) -> None:
    """Raise SinkError for folder values that are invalid for the partition column."""
    kind = str(field["type"])
    about = f"{location}: column '{field['name']}' partitions the table and is {kind}"
    if kind not in PARSERS:
        raise SinkError(f"{about}: values of that type cannot be read from folder names")
    for value in sorted(it for it in values if it is not None):
        try:
            PARSERS[kind](value)
        except ValueError:
            raise SinkError(f"{about}, but a folder is named {value!r}") from None


def _text(value: str) -> str:
    if not value:
        raise ValueError("an empty text looks like null")
    return value


def _date(value: str) -> None:
    if date.fromisoformat(value).isoformat() != value:
        raise ValueError("not a date in the form YYYY-MM-DD")


def _integer(bits: int, value: str) -> None:
    if re.fullmatch(r"-?[0-9]+", value) is None or not -(2 ** (bits - 1)) <= int(value) < 2 ** (bits - 1):
        raise ValueError(f"not an integer of {bits} bits")


PARSERS: dict[str, Any] = {
    "string": _text,
    "date": _date,
    **{kind: partial(_integer, bits) for kind, bits in zip(INTEGERS, (8, 16, 32, 64), strict=True)},
}
"""Validators of folder values by type. Other types have several text forms."""


# New tables


def new_table(location: str, found: Found, folders: list[dict[str, str | None]]) -> dict[str, Any]:
    """Return `schema` and `partitions` of a table for these files and folder values. Raises SinkError."""
    import pyarrow as pa  # type: ignore[import-untyped]

    named = {tuple(it) for it in folders}
    if len(named) > 1:
        both = " and by ".join(map(str, named))
        raise SinkError(f"{location}: the folders of the input are named by {both}, but a table has one partitioning")
    for name in (name for folder in folders for name, value in folder.items() if value == ""):
        raise SinkError(f"{location}: column '{name}': a folder has an empty value, which readers take for null")
    try:
        whole = pa.unify_schemas([_arrow_schema(schema, path) for schema, path in found])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SinkError(f"{location}: files differ in the type of a column: {error}") from error
    partitions = next(iter(named), ())
    for name in partitions:
        whole = whole.append(pa.field(name, pa.string()))
    names = [name.lower() for name in whole.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SinkError(f"{location}: column '{twice}' exists twice, because a Delta table ignores case: rename one")
    return {"schema": _to_json(whole), "partitions": list(partitions)}


def first_actions(wanted: dict[str, Any], now_ms: int) -> list[Action]:
    """Return the first actions of a table. `wanted`: the result of `new_table`."""
    protocol: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
    if _has_no_zone(wanted["schema"]):
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": [NO_ZONE], "writerFeatures": [NO_ZONE]}
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": wanted["schema"],
        "partitionColumns": wanted["partitions"],
        "configuration": {},
        "createdTime": now_ms,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


# Added and widened columns


def merged_columns(location: str, table: Table, found: Found) -> list[Action]:
    """Return the columns that the table gets or widens for these files. Raises SinkError."""
    changed: dict[str, Action] = {}
    known = {field["name"]: field for field in table.fields}
    for schema, path in found:
        for name, kind in _types(schema, path).items():
            try:
                field = _merged(table, known, name, kind)
            except ValueError as error:
                raise SinkError(f"{location}: column '{name}' of {path} is {kind}{error}") from None
            if field != known.get(name):
                known[name] = changed[name] = field
    return list(changed.values())


def with_columns(location: str, table: Table, columns: Iterable[Action]) -> Action:
    """Return the table's `metaData` with these columns added (the result of `merged_columns`).

    Raises SinkError if other writers have changed them in the meantime.
    """
    known = {field["name"]: field for field in table.fields}
    for column in columns:
        name, kind = column["name"], column["type"]
        try:
            known[name] = _merged(table, known, name, kind)
        except ValueError as error:
            raise SinkError(
                f"{location}: column '{name}' should become {kind}{error}. The table was changed after the version "
                "was decided: `fencepost state abandon` abandons the version"
            ) from None
    if list(known.values()) == table.fields:
        return table.metadata
    return table.metadata | {"schemaString": json.dumps({"type": "struct", "fields": list(known.values())})}


def _merged(table: Table, known: dict[str, Action], name: str, kind: Any) -> Action:
    """Return the field widened to this type. Raises ValueError with the reason if impossible."""
    if name in table.partition_columns:
        raise ValueError(", and the table is partitioned by a column of that name")
    if name not in known:
        known_name = next((it for it in known if it.lower() == name.lower()), None)
        if known_name is not None:
            raise ValueError(f", and the table has '{known_name}': a Delta table ignores case")
        if _has_no_zone(kind) and NO_ZONE not in table.features:
            raise ValueError(f", which only a table with the feature {NO_ZONE} has")
        return {"name": name, "type": kind, "nullable": True, "metadata": {}}
    field = known[name]
    metadata = field.get("metadata") or {}
    changes = metadata.get(TYPE_CHANGES) or []
    if kind == field["type"] or kind in [it["fromType"] for it in changes if "fieldPath" not in it]:
        return field
    if not _is_wider(kind, field["type"]):
        raise ValueError(f", in the table it is {field['type']}, and only wider types are accepted")
    if WIDENING not in table.features or table.configuration.get("delta.enableTypeWidening") != "true":
        raise ValueError(
            f", in the table it is {field['type']}, and the table does not allow wider types: ALTER TABLE ... SET "
            "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        )
    changes = [*changes, {"fromType": field["type"], "toType": kind}]
    return {**field, "type": kind, "metadata": metadata | {TYPE_CHANGES: changes}}


def _is_wider(kind: Any, than: Any) -> bool:
    for types in WIDER:
        if kind in types and than in types:
            return types.index(kind) > types.index(than)
    decimals = [re.fullmatch(r"decimal\((\d+),(\d+)\)", str(it)) for it in (kind, than)]
    if decimals[0] and decimals[1]:
        return decimals[0][2] == decimals[1][2] and int(decimals[0][1]) > int(decimals[1][1])
    return False


def _has_no_zone(kind: Any) -> bool:
    return '"timestamp_ntz"' in (kind if isinstance(kind, str) and kind.startswith("{") else json.dumps(kind))


# Arrow


def _types(schema: Any, path: str) -> dict[str, Any]:
    """Return the types of a file's columns. Raises SinkError for an unsupported type."""
    return {it["name"]: it["type"] for it in json.loads(_to_json(_arrow_schema(schema, path)))["fields"]}


def _to_json(schema: Any) -> str:
    from deltalake import Schema

    return str(Schema.from_arrow(schema).to_json())


def _arrow_schema(schema: Any, path: str) -> Any:
    """Return the canonical Arrow type of each column. Raises SinkError."""
    import pyarrow as pa

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _delta_type(field.type)))
        except TypeError as error:
            raise SinkError(f"{path}: column '{field.name}': a Delta table has no type for {error}") from None
    return pa.schema(fields)


def _delta_type(kind: Any) -> Any:
    """Return a type as readers of a Delta table see it, without Arrow's metadata of nested columns."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _delta_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([pa.field(it.name, _delta_type(it.type)) for it in kind])
    if types.is_map(kind):
        return pa.map_(_delta_type(kind.key_type), _delta_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_delta_type(kind.value_type))
    if types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if any(is_one(kind) for is_one in (types.is_binary, types.is_large_binary, types.is_binary_view)):
        return pa.binary()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    numbers = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_decimal128)
    if any(is_one(kind) for is_one in (*numbers, types.is_date)):
        return kind
    raise TypeError(kind)
