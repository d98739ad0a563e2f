"""Comparison of repeats with the table's rows of the same identity. Repeats with other content are conflicts.

The call's transaction inserts its new rows first. Then it writes the repeats to a temporary table with the target's
columns, so that the database compares stored values. The comparison uses the fingerprint of `reconciliation.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import Column, Connection, MetaData, Table, and_, exists, literal_column, select

from fencepost.errors import PolicyError
from fencepost.sql import rows as bulk
from fencepost.sql.columns import Int64
from fencepost.sql.reconciliation import drop_temporary, exact, fingerprint_of, know_fingerprints
from fencepost.sql.target import Target

Mask = npt.NDArray[np.bool_]
_PLACE = "fencepost_place"


class Comparison:
    """Compares repeats with the rows of a target.

    Args:
        target: The table.
        identity: The identity columns.
        wanted: The columns to compare. (): all columns except the identity.

    Raises:
        PolicyError: The table or `insert` lacks a column of the identity or of `wanted`.
    """

    def __init__(self, target: Target, identity: Sequence[str], wanted: tuple[str, ...]) -> None:
        for name in (*identity, *wanted):
            if name not in target.table.columns or (target.insert and name not in target.insert):
                raise PolicyError(
                    f"compare_content: the sink does not write a column '{name}' to table {target.name}, so repeats "
                    "cannot be compared with its rows"
                )
        self.target, self.identity, self.wanted = target, tuple(identity), wanted

    def conflicts(self, connection: Connection, rows: pa.Table, is_repeat: Mask) -> tuple[Mask, int]:
        """Return which rows are repeats with other content, and the number of repeats without a row in the table.

        `rows`: the result of `Target.convert`. The new rows of the call must be in the table already.
        """
        found = np.zeros(len(rows), bool)
        places = np.flatnonzero(is_repeat)
        if not len(places):
            return found, 0
        know_fingerprints(connection)
        batch = self._table(rows.column_names)
        self._create(connection, batch)
        repeats = rows.take(pa.array(places)).append_column(_PLACE, pa.array(places))
        bulk.insert(connection, batch, repeats, places)
        known, equal = (self._places(connection, batch, is_equal) for is_equal in (False, True))
        drop_temporary(connection, batch)
        found[known] = True
        found[equal] = False
        return found, len(places) - len(known)

    def _create(self, connection: Connection, batch: Table) -> None:
        # The query of the target preserves its types, also those that SQLAlchemy does not know, and collations.
        columns = [self.target.table.c[it.name] for it in batch.c if it.name != _PLACE]
        query = select(*columns, literal_column("0 + 0").label(_PLACE)).limit(0)
        compiled = query.compile(connection, compile_kwargs={"literal_binds": True})
        # On MariaDB the table of a failed call outlives the rollback, which removes it in the other databases.
        create = "CREATE OR REPLACE" if self.target.kind == "mariadb" else "CREATE"
        connection.exec_driver_sql(f"{create} TEMPORARY TABLE {batch.name} AS {compiled}")

    def _table(self, names: Sequence[str]) -> Table:
        columns: list[Column[Any]] = [Column(name, self.target.table.c[name].type) for name in names]
        # Without a schema: the temporary schema of the session has no fixed name. This name hides a table of the
        # application with the same name.
        return Table("fencepost_repeats", MetaData(), *columns, Column(_PLACE, Int64), prefixes=["TEMPORARY"])

    def _places(self, connection: Connection, batch: Table, is_equal: bool) -> list[int]:
        """Return the places of the repeats that have a row in the table, or with `is_equal` a row of equal content."""
        table = self.target.table
        names = [name for name in batch.c.keys() if name not in (*self.identity, _PLACE)]  # noqa: SIM118
        compared = sorted(self.wanted or names)
        # The first condition uses an index. The second is exact: without it, "a" equals "A" on MariaDB.
        conditions = [table.c[name] == batch.c[name] for name in self.identity]
        if self.target.kind == "mariadb":
            conditions += [exact(table.c[name], "mariadb") == exact(batch.c[name], "mariadb") for name in self.identity]
        if is_equal:
            one, other = (fingerprint_of([of.c[name] for name in compared], self.target.kind) for of in (table, batch))
            conditions.append(one == other)
        query = select(batch.c[_PLACE]).where(exists().where(and_(*conditions)))
        return [row[0] for row in connection.execute(query)]
