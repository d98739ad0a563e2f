"""Repeats against the rows of the table that they repeat: those with other content are conflicts.

The repeats go to a temporary table with the columns of the target, so that the database compares values as it keeps
them: by the fingerprint of `reconciliation.py`, in the transaction of the call, after its new rows were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import Column, Connection, MetaData, Table, and_, exists, literal_column, select
from sqlalchemy.schema import CreateTable

from fencepost.errors import PolicyError
from fencepost.sql import rows as bulk
from fencepost.sql.database import Int64
from fencepost.sql.reconciliation import drop_temporary, exact, fingerprint_of, know_fingerprints
from fencepost.sql.target import Target

Mask = npt.NDArray[np.bool_]
_PLACE = "fencepost_place"


class Comparison:
    """Compares repeats with a target. `identity`: its columns; `wanted`: those to compare, (): all others.

    Raises PolicyError where the table does not hold the identity, or one of the columns.
    """

    def __init__(self, target: Target, identity: Sequence[str], wanted: tuple[str, ...]) -> None:
        for name in (*identity, *wanted):
            if name not in target.table.columns or (target.insert and name not in target.insert):
                raise PolicyError(
                    f"compare_content: table {target.name} is not given a column '{name}', so a repeat cannot be "
                    "compared with the row it repeats"
                )
        self.target, self.identity, self.wanted = target, tuple(identity), wanted

    def conflicts(self, connection: Connection, rows: pa.Table, is_repeat: Mask) -> tuple[Mask, int]:
        """Which of the rows are repeats with other content, and how many repeats have no row in the table to be
        compared with. `rows`: as `Target.convert` gives them; new rows of the call are in the table."""
        found = np.zeros(len(rows), bool)
        places = np.flatnonzero(is_repeat)
        if not len(places):
            return found, 0
        know_fingerprints(connection)
        batch = self._table(rows.column_names)
        try:
            self._create(connection, batch)
            bulk.insert(connection, batch, rows.take(pa.array(places)).append_column(_PLACE, pa.array(places)))
            known, equal = (self._places(connection, batch, is_equal) for is_equal in (False, True))
        finally:
            if not connection.invalidated and connection.in_transaction():
                drop_temporary(connection, batch)
        found[known] = True
        found[equal] = False
        return found, len(places) - len(known)

    def _create(self, connection: Connection, batch: Table) -> None:
        if self.target.kind != "mariadb":
            connection.execute(CreateTable(batch))
            return
        # As a query of the target, whose character sets and collations come along.
        columns = [self.target.table.c[it.name] for it in batch.c if it.name != _PLACE]
        query = select(*columns, literal_column("0 + 0").label(_PLACE)).limit(0)
        compiled = query.compile(connection, compile_kwargs={"literal_binds": True})
        connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {batch.name} AS {compiled}")

    def _table(self, names: Sequence[str]) -> Table:
        columns: list[Column[Any]] = [Column(name, self.target.table.c[name].type) for name in names]
        # The name of the session's own schema would be needed to tell it from a table of the application.
        return Table("fencepost_repeats", MetaData(), *columns, Column(_PLACE, Int64), prefixes=["TEMPORARY"])

    def _places(self, connection: Connection, batch: Table, is_equal: bool) -> list[int]:
        """The repeats of which the table has a row, or one with the same content."""
        table = self.target.table
        names = [name for name in batch.c.keys() if name not in (*self.identity, _PLACE)]  # noqa: SIM118
        compared = sorted(self.wanted or names)
        # The first finds the row by an index, the second is exact: without it "a" repeats "A" on MariaDB.
        conditions = [table.c[name] == batch.c[name] for name in self.identity]
        if self.target.kind == "mariadb":
            conditions += [exact(table.c[name], "mariadb") == exact(batch.c[name], "mariadb") for name in self.identity]
        if is_equal:
            one, other = (fingerprint_of([of.c[name] for name in compared], self.target.kind) for of in (table, batch))
            conditions.append(one == other)
        query = select(batch.c[_PLACE]).where(exists().where(and_(*conditions)))
        return [row[0] for row in connection.execute(query)]
