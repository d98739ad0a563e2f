"""`fencepost transactions`: lists open transactions in a database, and aborts abandoned ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.cli.databases import Database, engine_of
from fencepost.cli.terminal import EXIT_FINDINGS, AsJson, show_table

if TYPE_CHECKING:
    from fencepost.sql import TransactionStatus

transactions_app = typer.Typer(
    help="Inspect and abort transactions of producers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="A transactional id.")]


@transactions_app.command("list")
def list_command(
    database: Database,
    every: Annotated[bool, typer.Option("--all", help="Include ids without an open or decided transaction.")] = False,
    as_json: AsJson = False,
) -> None:
    """List transactions that are open, or decided but not completed. Exit code 3 if one takes too long."""
    from fencepost.sql import list_transactions

    with engine_of(database) as engine:
        found = list_transactions(engine, unfinished_only=not every)
    if as_json:
        print(json.dumps([_report(it) for it in found]))
    elif found:
        show_table(_COLUMNS, (_line(it) for it in found))
    if any(it.is_late for it in found):
        raise typer.Exit(EXIT_FINDINGS)


@transactions_app.command("describe")
def describe_command(transactional_id: TransactionalId, database: Database, as_json: AsJson = False) -> None:
    """Show a transaction: state, owner, age, partitions, positions, what it waits for. Exit code 3 if it is late."""
    from fencepost.sql import describe_transaction

    with engine_of(database) as engine:
        found = describe_transaction(engine, transactional_id)
    report = _report(found)
    print(json.dumps(report) if as_json else "\n".join(f"{name}: {_shown(value)}" for name, value in report.items()))
    if found.is_late:
        raise typer.Exit(EXIT_FINDINGS)


@transactions_app.command("abort")
def abort_command(transactional_id: TransactionalId, database: Database) -> None:
    """Abort the open transaction of an ID, as after its timeout. Its producer may begin another one."""
    from fencepost.sql import TransactionCoordinator
    from fencepost.sql.inspection import check_database

    with engine_of(database) as engine:
        check_database(engine)
        topics = TransactionCoordinator(engine).terminate(transactional_id)
    next_step = "call recover() on a coordinator that has a route to each of these topics"
    left = f". To write the markers for {', '.join(topics)}, {next_step}"
    print(f"{transactional_id}: aborted{left if topics else ''}")


@transactions_app.command("metrics")
def metrics_command(database: Database, as_json: AsJson = False) -> None:
    """Print metrics as OpenMetrics text: transactional ids by state, late transactions, age of the oldest."""
    from fencepost.metrics import to_text
    from fencepost.sql import TransactionMetrics, transaction_metrics

    with engine_of(database) as engine:
        if as_json:
            print(json.dumps(transaction_metrics(engine)))
        else:
            print(to_text(TransactionMetrics(engine)), end="")


_COLUMNS = ("id", "state", "pid", "epoch", "age s", "late", "partitions", "waits for")


def _line(found: TransactionStatus) -> tuple[Any, ...]:
    age = "" if found.age_ms is None else f"{found.age_ms / 1000:.1f}"
    partitions = _partitions(found.partitions)
    pid, epoch = found.owner.pid, found.owner.epoch
    late = "late" if found.is_late else ""
    return found.transactional_id, found.state, str(pid), str(epoch), age, late, partitions, found.waits_for


def _partitions(found: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in found)


def _report(found: TransactionStatus) -> dict[str, Any]:
    """Return a status as plain values."""
    return asdict(found) | {
        "partitions": [list(it) for it in found.partitions],
        "waiting": [list(it) for it in found.waiting],
        "positions": [it._asdict() for it in found.positions],
        "sessions": [it._asdict() for it in found.sessions],
    }


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
