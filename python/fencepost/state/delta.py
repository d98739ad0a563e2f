"""A Delta table as output: each version is one transaction of its log.

    <table>/part-<n>-<ordinal>-<attempt>.parquet   the rows that version n kept of one input
    <table>/_delta_log/                            version n is the commit that has the transaction (state, n)
    <table>/_fencepost/                            whose table it is, what tasks prepare, and each version's side tables
                                                   (`RunFolders`); readers and VACUUM pass over it

The commit is what counts: a version is applied, or abandoned, by whoever first writes its transaction, and everything
else follows from which of the two it was. Others may append, delete and compact meanwhile. What they must not do is
take rows back by RESTORE: the state would go on to call them duplicates.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost._native import parquet_footer
from fencepost.errors import FencepostError, SinkChangedError, SinkError
from fencepost.state.decision import ABANDONED, APPLIED, Decision
from fencepost.state.delta_log import LOG, commit_info
from fencepost.state.disk import Disk
from fencepost.state.hive import hive_folders, hive_values
from fencepost.state.sinks import MARKER, RunFolders, without_rows

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field, Schema

    from fencepost.state.versions import State

OWN, TABLE = "_fencepost", "_table.json"
ABANDONED_APP = "-abandoned"
"""Ends the application id under which the number of an abandoned version is written beside its transaction."""

FEATURES = {
    *("appendOnly", "invariants", "checkConstraints", "deletionVectors", "timestampNtz", "v2Checkpoint"),
    "variantType",
}
"""Table features under which files may be added just so, constraints and the like being refused one by one."""
LISTED_READER, LISTED_WRITER = 3, 7
"""Versions of the protocol that come with a list of features."""
READER_MAX, WRITER_MAX = 2, 6
"""Versions of the protocol that come without a list: what they may have is looked for in settings and columns."""
REFUSED = {
    "delta.enableChangeDataFeed": "a change data feed",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "timestamps in commits",
    "delta.columnMapping.mode": "column mapping",
}
"""Settings under which a commit has to say more than which files come and go."""
CONSTRAINTS = {"delta.constraints.": "constraints, which nobody would check"}
RULES_OF_COLUMNS = ("delta.generationExpression", "delta.identity.", "delta.invariants", "delta.columnMapping.")
RETENTION = "delta.setTransactionRetentionDuration"


class DeltaSink(RunFolders):
    """Appends each version to a Delta table, which is made for the first rows where there is none."""

    layout = "delta"
    has_schema = True

    def __init__(self, table: Path, disk: Disk) -> None:
        super().__init__(table / OWN, disk)
        self.location = table
        check_library(table)
        if "%" in str(table):
            raise SinkError(f"{table}: a '%' in the path of a Delta table is read as another path; rename it")

    # Looking

    def check_table(self, table: DeltaTable) -> None:
        """Refuse a table that is not written to just so. Raises SinkError, SinkChangedError."""
        check_features(table, self.location, FEATURES, REFUSED | CONSTRAINTS, "adding files")
        _check_columns(table, self.location)

    def check(self, state: State) -> None:
        """See `Sink`."""
        # In this order: other runs may finish versions meanwhile.
        done = state.done()
        table = self._open()
        super().check(state)
        if table is None and _had_table(state, done):
            raise SinkChangedError(f"{self.location}: the Delta table is gone that versions were written to")
        if table is None:
            return
        self.check_table(table)
        if (self.path / TABLE).exists():
            self._remember(table)
        settings = state.settings()
        last = table.transaction_version(settings.id) if settings is not None else None
        if last is None and not _had_table(state, done):
            last = done
        if not done <= (last or 0) <= state.decided():
            raise SinkChangedError(
                f"{self.location}: the newest transaction of this state is {last or 'none'}, though versions up to "
                f"{done} were written: the table was made anew, or its transactions were reset"
            )

    def look(self, before: Decision | None) -> dict[str, Any] | None:
        """See `Sink`: the table's id, its newest version, and this state's newest transaction in it."""
        table = self._open()
        if table is None:
            return None
        if before is not None and before.sink_version is not None:
            self.check_kept(table, before)
        return self.seen(table)

    def seen(self, table: DeltaTable) -> dict[str, Any]:
        """What a decision says of a table."""
        owner = self._owner()
        last = table.transaction_version(owner) if owner else None
        return {"table": table.metadata().id, "version": table.version(), "transaction": last}

    def check_kept(self, table: DeltaTable, before: Decision) -> None:
        """Whether it is still the table, and no commit since the one that was looked at has taken rows back."""
        seen: dict[str, Any] = before.sink_version or {}
        if seen.get("table", table.metadata().id) != table.metadata().id:
            raise SinkChangedError(
                f"{self.location}: another table than the one that version {before.version} was written to (its id is "
                f"{table.metadata().id}, was {seen['table']})"
            )
        for version in range(seen.get("version", -1) + 1, table.version() + 1):
            commit = commit_info(self.location, version)
            if commit is None:
                raise SinkChangedError(
                    f"{self.location}: its log no longer has version {version}, so nobody can tell whether rows were "
                    "taken back there. " + _ROLL_BACK
                )
            if commit.get("operation") == "RESTORE":
                raise SinkChangedError(
                    f"{self.location}: version {version} of the table is a RESTORE: rows that the state knows may be "
                    "gone, and would be refused as duplicates if they came again. " + _ROLL_BACK
                )

    def shown(self, decision: Decision) -> int:
        """See `Sink`. Its rows may lie in other files by now: it is shown unless a RESTORE went back over it."""
        table, owner = self._open(), self._owner()
        if table is None:
            return 0
        version, counts = table.version(), True
        for at in range(version, -1, -1):
            commit = commit_info(self.location, at)
            if commit is None:
                break  # cleaned up, and with it all before: those nobody went back over
            counts = at <= version
            if commit.get("fencepost.state") == owner and commit.get("fencepost.version") == str(decision.version):
                return len(decision.outputs) if counts else 0
            if counts and commit.get("operation") == "RESTORE":
                version = min(version, self._restored_to(commit, at))
        return len(decision.outputs)

    def _restored_to(self, commit: dict[str, Any], at: int) -> int:
        to = commit.get("operationParameters", {}).get("version")
        if to is None:
            raise SinkError(
                f"{self.location}: version {at} of the table is a RESTORE by time, so it cannot be told which rows it "
                "took back: RESTORE it once more to a version, by number"
            )
        return int(to)

    # Rows

    def check_rows(self, schemas: dict[bytes, str], folders: Iterable[str]) -> dict[str, Any]:
        """See `Sink`."""
        import pyarrow as pa  # type: ignore[import-untyped]

        found = [(pa.ipc.read_schema(pa.py_buffer(schema)), path) for schema, path in schemas.items()]
        table = self._open()
        values = [hive_values(folder) for folder in dict.fromkeys(folders)]
        named = {tuple(it) for it in values}
        if table is None:
            if len(named) > 1:
                both = " and by ".join(map(str, named))
                raise SinkError(f"{self.location}: one table cannot be partitioned by {both}")
            for folder in values:
                for name, value in folder.items():
                    if value == "":
                        raise SinkError(f"{self.location}: column '{name}': an empty name of a folder is read as null")
            return {"create": _new_table(self.location, found, next(iter(named), ()))}
        partitions = table.metadata().partition_columns
        for names in named:
            if set(names) != set(partitions):
                raise SinkError(
                    f"{self.location}: the table is partitioned by {partitions or 'nothing'}, the folders of the input "
                    f"give {list(names) or 'nothing'}: files can only be added where both are the same"
                )
        known = {field.name: field for field in table.schema().fields}
        for name in partitions:
            _check_values(self.location, known.pop(name), {it[name] for it in values})
        for schema, path in found:
            _check_schema(self.location, known, schema, path)
        return {}

    def apply(self, decision: Decision) -> str:
        """See `Sink`: one transaction, then the side tables."""
        return self._show(decision, self._status(decision) or self._commit(decision, APPLIED))

    def fence(self, decision: Decision) -> str:
        """See `Sink`: a transaction without rows takes the version's number."""
        try:
            status = self._status(decision) or self._commit(decision, ABANDONED)
        except SinkChangedError:
            status = ABANDONED  # another table than the one it was decided for: nobody can write the version to it
        return self._show(decision, status)

    def _show(self, decision: Decision, status: str) -> str:
        """What follows the transaction, whichever it was."""
        if status == ABANDONED:
            return self._abandon(decision)
        shown = super().apply(without_rows(decision))
        self._clear(decision)
        return shown

    def _abandon(self, decision: Decision) -> str:
        status = super().fence(without_rows(decision))
        if status == ABANDONED:
            for name in self.names(decision):
                self.disk.remove(self.location / name)
        self._clear(decision)
        return status

    def _commit(self, decision: Decision, wanted: str) -> str:
        """Write the version's transaction, unless somebody has. Gives what it was: `wanted`, or what theirs was."""
        from deltalake.exceptions import CommitFailedError

        state, number = str(self._owner()), decision.version
        seen = decision.sink_version
        if seen is None:
            return wanted  # there is no table yet, and no rows for one
        follows = number - 1 if "create" in seen or seen["transaction"] is not None else None
        while True:
            table = self._open() or self._make(decision, state)
            if table is None:
                text = f"{self.location}: the Delta table is gone that version {number} was decided for"
                raise SinkChangedError(text)
            last = table.transaction_version(state)
            if last == number:
                is_abandoned = table.transaction_version(state + ABANDONED_APP) == number
                for version in range(seen.get("version", -1) + 1, table.version() + 1):
                    self._seal(version)
                return ABANDONED if is_abandoned else APPLIED
            if last != follows or seen.get("table", table.metadata().id) != table.metadata().id:
                raise SinkChangedError(
                    f"{self.location}: version {number} can only follow transaction {follows or 'none'} of table "
                    f"{seen.get('table', 'to be made')}; found: {last or 'none'}, of {table.metadata().id}"
                )
            self._remember(table)
            if wanted == APPLIED and not self.fits(table, decision):
                wanted = ABANDONED
            try:
                self._write(table, decision, wanted, state)
            except CommitFailedError as error:
                if self._version() == table.version():
                    raise SinkError(f"{self.location}: cannot be written to: {error}") from error
                continue  # somebody has written the table's next version: look again
            except SinkChangedError:
                if self._version() == table.version():
                    raise
                continue  # somebody has abandoned the version and removed its files
            self._seal(table.version() + 1)
            return wanted

    def fits(self, table: DeltaTable, decision: Decision) -> bool:
        """Whether a version may still be written, whatever others have done since it was decided: rows come beside
        those that are there."""
        return True

    def _write(self, table: DeltaTable, decision: Decision, wanted: str, state: str) -> None:
        """The table's next version, or CommitFailedError where it has one already."""
        from deltalake import CommitProperties, Transaction

        marks = [Transaction(state, decision.version)]
        if wanted == ABANDONED:
            marks.append(Transaction(state + ABANDONED_APP, decision.version))
        table.create_write_transaction(
            self._added(table, decision) if wanted == APPLIED else [],
            "append",
            table.schema(),
            table.metadata().partition_columns,
            # No retries: what was looked at is what the commit follows.
            commit_properties=CommitProperties(
                {"fencepost.state": state, "fencepost.version": str(decision.version)},
                max_commit_retries=0,
                app_transactions=marks,
            ),
        )

    def _added(self, table: DeltaTable, decision: Decision) -> list[Any]:
        """The version's files, brought to their places."""
        from deltalake.transaction import AddAction

        self._place(decision)
        outputs, now_ms = decision.outputs, time.time_ns() // 1_000_000
        return [
            AddAction(name, size, hive_values(prepared), now_ms, True, self._stats(table, name, rows))
            for name, prepared, size, rows in zip(
                self.names(decision), outputs.name, outputs.bytes, outputs.rows, strict=True
            )
        ]

    def _stats(self, table: DeltaTable, name: str, rows: int) -> str:
        """What the log says of a file: its rows, and the bounds of its integer columns."""
        partitions = table.metadata().partition_columns
        fields = [field for field in table.schema().fields if field.name not in partitions]
        integers = [field.name for field in fields if str(_type(field)) in INTEGERS]
        return json.dumps({"numRecords": rows} | _bounds(self.location / name, integers))

    def _place(self, decision: Decision) -> None:
        """Move the version's files to where the table will name them. May be done again, by anyone.

        VACUUM removes files that no version of the table names, but for young ones. So their age begins here: a version
        may be decided long before it is committed.
        """
        prepared = self.path / str(decision.prepared)
        outputs, names = decision.outputs, self.names(decision)
        folders = {(self.location / name).parent for name in names}
        for folder in sorted(folders):
            self.disk.make_folder(folder, self.location)
        for name, final, size in zip(outputs.name, names, outputs.bytes, strict=True):
            target = self.location / final
            try:
                os.utime(prepared / name)
                os.rename(prepared / name, target)
            except FileNotFoundError:
                if not target.exists() or target.stat().st_size != size:
                    raise SinkChangedError(
                        f"{target}: not what version {decision.version} decided, and it cannot be taken from {prepared}"
                    ) from None
                os.utime(target)
        for folder in folders | {self.location}:
            self.disk.seal(folder)

    def names(self, decision: Decision) -> list[str]:
        """See `RunFolders`."""
        return [
            f"{hive_folders(name)}part-{decision.version:06}-{_number(name)}-{decision.attempt[:12]}.parquet"
            for name in decision.outputs.name
        ]

    def _remember(self, table: DeltaTable) -> None:
        """Note which table it is, once there is one."""
        found = table.metadata().id
        if not self.disk.put(self.path / TABLE, (json.dumps({"id": found}) + "\n").encode()):
            known = json.loads((self.path / TABLE).read_bytes())["id"]
            raise SinkChangedError(
                f"{self.location}: another table than the one that versions were written to (its id is {found}, was "
                f"{known})"
            )

    def _make(self, decision: Decision, state: str) -> DeltaTable | None:
        """The table that the decision says is to be made, if any."""
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.exceptions import DeltaError

        wanted = (decision.sink_version or {}).get("create")
        if wanted is None:
            return None
        try:
            DeltaTable.create(
                self.location,
                Schema.from_json(wanted["schema"]),
                partition_by=wanted["partitions"],
                commit_properties=CommitProperties(app_transactions=[Transaction(state, decision.version - 1)]),
            )
        except DeltaError:
            if self._open() is None:
                raise  # else another run was faster
        self._seal(0)
        return self._open()

    def _open(self) -> DeltaTable | None:
        """The table as of now, if there is one."""
        return open_table(self.location, SinkError) if is_delta(self.location) else None

    def _version(self) -> int:
        table = self._open()
        return -1 if table is None else table.version()

    def _seal(self, version: int) -> None:
        """Wait until a commit is on disk: the library does not."""
        log = self.location / LOG
        if (log / f"{version:020}.json").exists():  # else it was cleaned up, long after it was written
            self.disk.seal(log / f"{version:020}.json")
        self.disk.seal(log)
        self.disk.seal(self.location)


_ROLL_BACK = (
    "Look which versions' rows are all there, and take the state back to the last of them (`fencepost state rollback`, "
    "the newest version included)"
)

INTEGERS = ("byte", "short", "integer", "long")


def check_library(path: object) -> None:
    """Raises FencepostError where tables cannot be opened at all."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise FencepostError(f"{path}: Delta tables need fencepost[lake] ({error})") from error


def open_table(path: str | os.PathLike[str], failure: type[FencepostError]) -> DeltaTable:
    """A table as of now. Raises `failure` where its log cannot be read."""
    check_library(path)
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(path)
    except DeltaError as error:
        reason = str(error).partition("\n")[0]
        raise failure(f"{os.fspath(path)}: cannot be read as a Delta table: {reason}") from error


def is_delta(path: str | os.PathLike[str]) -> bool:
    """Whether there is a Delta table in a folder."""
    log = Path(path) / LOG
    return log.is_dir() and any(name.endswith((".json", ".parquet")) for name in os.listdir(log))


def is_delta_sink(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a Delta table, or is to become one with the first rows."""
    return is_delta(path) or (Path(path) / OWN / MARKER).exists()


def _had_table(state: State, version: int) -> bool:
    """Whether there was a table once the version was done."""
    return version > 0 and state.version(version).sink_version is not None


def _bounds(path: Path, columns: list[str]) -> dict[str, dict[str, int]]:
    """The lowest and highest value of integer columns, as the file's own statistics tell."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    there = set(pq.read_schema(path).names)
    found = parquet_footer(str(path), [name for name in columns if name in there]).bounds
    known = {name: [it for it in groups if it is not None] for name, groups in found.items()}
    known = {name: groups for name, groups in known.items() if groups and len(groups) == len(found[name])}
    return {
        "minValues": {name: min(low for low, _ in groups) for name, groups in known.items()},
        "maxValues": {name: max(high for _, high in groups) for name, groups in known.items()},
    }


# Which tables, and which columns


def check_features(table: DeltaTable, location: Path, features: set[str], refused: dict[str, str], what: str) -> None:
    """Refuse a table whose settings or features ask for more than is done here. Raises SinkError, SinkChangedError.

    `refused`: settings by what their names begin with; `what`: is to be done to the table.
    """
    protocol, metadata = table.protocol(), table.metadata()
    for name, value in metadata.configuration.items():
        for start, feature in refused.items():
            if name.startswith(start) and value not in ("false", "none", None):
                raise SinkError(f"{location}: the table has {feature} ({name}={value}); {what} is not possible there")
    if RETENTION in metadata.configuration:
        raise SinkChangedError(
            f"{location}: {RETENTION} is set: the table would forget which versions were written. Unset it"
        )
    listed = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    unknown = sorted(listed - features)
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    has_list = writer == LISTED_WRITER and reader <= LISTED_READER
    if unknown or not (has_list or (reader <= READER_MAX and writer <= WRITER_MAX)):
        found = ", ".join(unknown) or f"protocol {reader}/{writer}"
        raise SinkError(f"{location}: the table has {found}, under which it is not known whether {what} is right")


def _check_columns(table: DeltaTable, location: Path) -> None:
    """Refuse columns with rules, which nobody would check for files that are added. Raises SinkError."""
    for field in table.schema().fields:
        rules = [name for name in field.metadata if name.startswith(RULES_OF_COLUMNS)]
        if rules or not field.nullable:
            rule = rules[0] if rules else "NOT NULL"
            raise SinkError(f"{location}: column '{field.name}' has {rule}, which nobody would check for added files")


def _check_schema(location: Path, known: dict[str, Field], schema: Any, path: str) -> None:
    """Raises SinkError where the table does not have a file's columns."""
    for field in _delta_schema(schema, path).fields:
        if field.name not in known:
            raise SinkError(
                f"{location}: column '{field.name}' of {path} is not in the table; add it there (ALTER TABLE ... ADD "
                f"COLUMN `{field.name}`), or read the input without it"
            )
        wanted = _type(known[field.name])
        if _type(field) != wanted:
            text = f"{location}: column '{field.name}' of {path} is {_type(field)}, in the table it is {wanted}"
            raise SinkError(text)


def _number(name: str) -> str:
    """What tells an output of a version from the others of its folder."""
    return name.rpartition("/")[2].removeprefix("part-").removesuffix(".parquet")


def _check_values(location: Path, field: Field, values: set[str | None]) -> None:
    """Raises SinkError where folders give what is no value of the column that the table is partitioned by."""
    kind = str(_type(field))
    about = f"{location}: column '{field.name}', by which the table is partitioned, is {kind}"
    if kind not in PARSERS:
        raise SinkError(f"{about}: values of that type are not read from the names of folders")
    for value in sorted(it for it in values if it is not None):
        try:
            PARSERS[kind](value)
        except ValueError:
            raise SinkError(f"{about}; a folder gives {value!r}") from None


def _text(value: str) -> str:
    if not value:
        raise ValueError("an empty text cannot be told from null")
    return value


def _date(value: str) -> None:
    if date.fromisoformat(value).isoformat() != value:
        raise ValueError("another form of a date")


def _integer(bits: int, value: str) -> None:
    if re.fullmatch(r"-?[0-9]+", value) is None or not -(2 ** (bits - 1)) <= int(value) < 2 ** (bits - 1):
        raise ValueError(f"no integer of {bits} bits")


PARSERS: dict[str, Any] = {
    "string": _text,
    "date": _date,
    **{kind: partial(_integer, bits) for kind, bits in zip(INTEGERS, (8, 16, 32, 64), strict=True)},
}
"""What refuses values in the names of folders, by type; those of other types have several forms."""


def _delta_schema(schema: Any, path: str) -> Schema:
    from deltalake import Schema

    return Schema.from_arrow(_arrow_schema(schema, path))


def _arrow_schema(schema: Any, path: str) -> Any:
    """One Arrow type for each type of a table. Raises SinkError."""
    import pyarrow as pa

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, _delta_type(field.type)))
        except TypeError as error:
            raise SinkError(f"{path}: column '{field.name}': a Delta table has no {error}") from None
    return pa.schema(fields)


def _delta_type(kind: Any) -> Any:
    """A type as readers of a Delta table will see it, without what Arrow notes of nested columns. Raises TypeError."""
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


def _new_table(location: Path, found: list[tuple[Any, str]], partitions: tuple[str, ...]) -> dict[str, Any]:
    """Schema and partitions of a table for these files."""
    import pyarrow as pa

    try:
        whole = pa.unify_schemas([_arrow_schema(schema, path) for schema, path in found])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SinkError(f"{location}: files differ in the type of a column: {error}") from error
    for name in partitions:
        whole = whole.append(pa.field(name, pa.string()))
    names = [name.lower() for name in whole.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SinkError(f"{location}: column '{twice}' is there twice; in a Delta table upper and lower case are one")
    return {"schema": _delta_schema(whole, found[0][1]).to_json(), "partitions": list(partitions)}


def _type(field: Field) -> Any:
    """A column's type as JSON has it: text, or an object where it is nested."""
    return json.loads(field.to_json())["type"]
