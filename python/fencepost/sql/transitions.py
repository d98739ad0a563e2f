"""State machines in a table, moved by events that may come again or in another order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Table, and_, select, update

from fencepost.errors import PolicyError, TransitionError


def transition(
    connection: Connection,
    table: Table,
    key: Mapping[str, Any],
    from_states: str | Collection[str],
    to_state: str,
    *,
    column: str = "state",
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Moves one row from one of `from_states` to `to_state`, if it is in one: the row is locked first.

    `key`: columns and values that name the row. `values`: other columns to set with it. True: it has moved. False: it
    was in `to_state` already, as after a repeat; nothing is written. Who comes second waits for who came first, and
    finds what that one left.

    Raises:
        TransitionError: the row is in another state, or there is no such row, or there are several. Nothing has
            changed.
        PolicyError: no key, no states, or columns that the table has not.
    """
    states = (from_states,) if isinstance(from_states, str) else tuple(from_states)
    unknown = [name for name in (*key, column, *(values or ())) if name not in table.columns]
    if not key or not states or unknown:
        raise PolicyError(
            f"transition of {table.name}: "
            + (f"no column {unknown[0]!r}" if unknown else "key and from_states must not be empty")
        )
    if to_state in states:
        raise PolicyError(
            f"transition of {table.name}: {to_state!r} is among from_states: a repeat would move it again"
        )
    named = and_(*(table.c[name] == value for name, value in key.items()))
    asked = select(table.c[column]).where(named).with_for_update()
    # The update asks once more: where a read takes no lock (SQLite, outside a transaction) another may have moved it.
    move = update(table).where(named, table.c[column].in_(states)).values({**(values or {}), column: to_state})
    while True:
        found = connection.execute(asked).scalars().all()
        if found == [to_state]:
            return False
        if len(found) != 1 or found[0] not in states:
            where = ", ".join(f"{name}={value!r}" for name, value in key.items())
            problem = f"is {found[0]!r}" if len(found) == 1 else f"{len(found)} rows have that key"
            raise TransitionError(
                f"{table.name} ({where}): {problem}; to {to_state!r} it goes from {' or '.join(map(repr, states))}. "
                "Nothing has changed"
            )
        if connection.execute(move).rowcount:
            return True
