"""State machines in a table. Events that move them may arrive repeatedly or in another order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Table, and_, select, update

from fencepost.errors import PolicyError, TransitionError

_TRIES = 10


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
    """Move one row from one of `from_states` to `to_state`, with the row locked.

    Concurrent calls for the same row run one after the other.

    Args:
        connection: The connection of the current transaction.
        table: The table of the state machines.
        key: The columns and values that identify the row.
        from_states: The states from which the row may move.
        to_state: The new state.
        column: The column of the state.
        values: Other columns to set.

    Returns:
        True if the row has moved. False if it already was in `to_state`, as for a repeat; then nothing is written.

    Raises:
        TransitionError: The row is in another state, does not exist, or is not unique, or a trigger prevents the
            update. Nothing has changed.
        PolicyError: There is no key or no state, the table lacks a column, or `to_state` is in `from_states`.
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
            f"transition of {table.name}: {to_state!r} is in from_states, so a repeat would move the row again"
        )
    named = and_(*(table.c[name] == value for name, value in key.items()))
    asked = select(table.c[column]).where(named).with_for_update()
    # The update checks the state again: if the read takes no lock (SQLite, outside a transaction), another process may
    # have moved the row.
    move = update(table).where(named, table.c[column].in_(states)).values({**(values or {}), column: to_state})
    for _ in range(_TRIES):
        found = connection.execute(asked).scalars().all()
        if found == [to_state]:
            return False
        if len(found) != 1 or found[0] not in states:
            where = ", ".join(f"{name}={value!r}" for name, value in key.items())
            problem = f"the state is {found[0]!r}" if len(found) == 1 else f"{len(found)} rows have this key"
            raise TransitionError(
                f"{table.name} ({where}): {problem}; expected one row in state {' or '.join(map(repr, states))} to "
                f"move to {to_state!r}. Nothing has changed"
            )
        if connection.execute(move).rowcount:
            return True
    raise TransitionError(
        f"{table.name}: the row is in state {found[0]!r}, but {_TRIES} updates to {to_state!r} changed no row. Does a "
        "trigger of the table prevent updates? Nothing has changed"
    )
