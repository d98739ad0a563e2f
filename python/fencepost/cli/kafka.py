"""`fencepost kafka`: commands that read a broker's log."""

from __future__ import annotations

import typer

from fencepost.cli.kafka_audit import kafka_audit_command
from fencepost.cli.kafka_export import kafka_export_command

kafka_app = typer.Typer(
    help="Read a Kafka broker's log, which contains producer id, epoch and sequence.", no_args_is_help=True
)
kafka_app.command("audit")(kafka_audit_command)
kafka_app.command("export")(kafka_export_command)
