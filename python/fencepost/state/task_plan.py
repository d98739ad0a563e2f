"""The plan of a stage: the items of its tasks as JSON in a file that tasks of other processes read.

Anyone who can write the plan's folder must not be able to run code with a worker's rights. So an item is data. It is
parsed strictly by the types of its class's fields, and its hash reaches the task through the engine's own channel.
Other values are not part of a plan: credentials, stores and functions are arguments of the task's function.

| in memory | in JSON |
|---|---|
| a dataclass | an object with a member per field |
| a list or tuple | an array |
| bytes | `{"base64": ...}` |
| a NumPy array | `{"dtype": ..., "base64": ...}` |
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import uuid4

import numpy as np

from fencepost.errors import StoreError
from fencepost.state.scratch import Scratch

Item = TypeVar("Item")


@dataclass(frozen=True)
class Place:
    """The position of an item in a plan, and its hash."""

    begin: int
    end: int
    sha256: str


def write_plan(scratch: Scratch, stage: str, items: Sequence[Any]) -> tuple[str, list[Place]]:
    """Write the items of a stage. Returns the file and each item's place. Raises TypeError unless they are data."""
    name = f"{stage}-{uuid4().hex}.plan"
    places = []
    with scratch.new(name) as path, open(path, "xb") as file:
        for item in items:
            data = json.dumps(item, default=_plain, separators=(",", ":")).encode() + b"\n"
            begin = file.tell()
            file.write(data)
            places.append(Place(begin, file.tell(), hashlib.sha256(data).hexdigest()))
    return name, places


def read_item(scratch: Scratch, name: str, place: Place, kind: type[Item]) -> Item:
    """Read the item at a place of a plan. `kind`: its class, a dataclass.

    Raises StoreError if the file was changed.
    """
    data = scratch.read_ranges([(name, place.begin, place.end)])[0].to_pybytes()
    where = f"{scratch.place(name)}, bytes {place.begin} to {place.end}"
    found = hashlib.sha256(data).hexdigest()
    if found != place.sha256:
        raise StoreError(
            f"{where}: not the plan that this run wrote (its SHA-256 is {found}, but {place.sha256} was "
            "written): another writer uses this folder, or the file is damaged. Check who can write there, "
            "then run again"
        )
    return from_plan(data, kind, where)


def from_plan(data: bytes, kind: type[Item], where: str) -> Item:
    """Parse an item of this class from JSON. Raises StoreError, naming the field, for anything else."""
    try:
        item: Item = _typed(json.loads(data), kind, kind.__name__)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: cannot be read as the plan of a task ({error}): run again") from error
    return item


def _plain(value: Any) -> Any:
    """Encode a value that JSON does not support."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return {"dtype": value.dtype.str, "base64": _text(np.ascontiguousarray(value).tobytes())}
    if isinstance(value, bytes):
        return {"base64": _text(value)}
    raise TypeError(f"{type(value).__name__}: a plan of a stage contains data only")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _typed(value: Any, kind: Any, place: str) -> Any:
    """Convert a value to its type. Raises ValueError naming the field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _one_of(value, arguments, place)
    if origin is Literal:
        return value if value in arguments else _refuse(value, kind, place)
    if origin is np.ndarray:
        return _array(value, arguments, place)
    if origin in (list, tuple):
        return _listed(value, origin, arguments, place)
    if origin is not None and issubclass(origin, Mapping):
        members = _checked(value, dict, place).items()
        return {name: _typed(it, arguments[1], f"{place}.{name}") for name, it in members}
    if dataclasses.is_dataclass(kind):
        return _object(value, kind, place)
    if kind is bytes:
        return _bytes(_checked(value, dict, place), {"base64"}, place)
    return _checked(value, NoneType if kind is None else kind, place)


def _one_of(value: Any, kinds: Sequence[Any], place: str) -> Any:
    for kind in kinds:
        try:
            return _typed(value, kind, place)
        except ValueError:
            continue
    return _refuse(value, " or ".join(map(_name, kinds)), place)


def _listed(value: Any, origin: type, kinds: Sequence[Any], place: str) -> Any:
    members = _checked(value, list, place)
    is_open = origin is list or kinds[-1] is Ellipsis
    if is_open and kinds[0] in (int, str, bool):  # fast path for long lists
        if not all(type(it) is kinds[0] for it in members):
            _refuse(value, f"list of {_name(kinds[0])}", place)
        return origin(members)
    if not is_open and len(members) != len(kinds):
        _refuse(value, f"{len(kinds)} values", place)
    each = [kinds[0]] * len(members) if is_open else kinds
    return origin(_typed(it, one, f"{place}[{at}]") for at, (it, one) in enumerate(zip(members, each, strict=True)))


def _object(value: Any, kind: Any, place: str) -> Any:
    fields = _checked(value, dict, place)
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    if fields.keys() != names:
        raise ValueError(f"{place}: expected the fields {sorted(names)}, found {sorted(fields)}")
    return kind(**{name: _typed(fields[name], hints[name], f"{place}.{name}") for name in names})


def _array(value: Any, arguments: Sequence[Any], place: str) -> Any:
    wanted = np.dtype(get_args(arguments[1])[0])
    data = _bytes(_checked(value, dict, place), {"dtype", "base64"}, place)
    if value["dtype"] != wanted.str or len(data) % wanted.itemsize:
        _refuse(value["dtype"], f"array of {wanted.str}", place)
    return np.frombuffer(data, wanted)


def _bytes(fields: dict[str, Any], names: set[str], place: str) -> bytes:
    if fields.keys() != names:
        raise ValueError(f"{place}: expected the fields {sorted(names)}, found {sorted(fields)}")
    return base64.b64decode(_checked(fields["base64"], str, place), validate=True)


def _checked(value: Any, kind: type, place: str) -> Any:
    return value if type(value) is kind else _refuse(value, kind, place)


def _refuse(value: Any, wanted: Any, place: str) -> Any:
    raise ValueError(f"{place}: expected {_name(wanted)}, found {value!r:.60}")


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
