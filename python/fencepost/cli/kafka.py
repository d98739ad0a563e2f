"""`fencepost kafka`: what stands in a broker's own log."""

from __future__ import annotations

import typer

from fencepost.cli.kafka_audit import kafka_audit_command
from fencepost.cli.kafka_export import kafka_export_command

kafka_app = typer.Typer(
    help="Read the log of a Kafka broker, where producer id, epoch and sequence are.", no_args_is_help=True
)
kafka_app.command("audit")(kafka_audit_command)
kafka_app.command("export")(kafka_export_command)
