"""The command line `fencepost` (extra `fencepost[cli]`).

There is one module per group of commands and one function per command. Imports that a command needs happen when it
runs. Data goes to stdout or to files; messages and progress go to stderr, progress only on a terminal. Exit codes: 0
clean, 1 error, 2 usage, 3 findings, 4 no input rows. An error is one line that says what is wrong and where.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated

try:
    import rich as _rich  # noqa: F401
    import typer

    from fencepost import __version__
    from fencepost.cli.advise import advise_command
    from fencepost.cli.audit import audit_command
    from fencepost.cli.dedup import dedup_command
    from fencepost.cli.doctor import doctor_command
    from fencepost.cli.generate import generate_command
    from fencepost.cli.kafka import kafka_app
    from fencepost.cli.serve import serve_command
    from fencepost.cli.sql import sql_app
    from fencepost.cli.state import state_app
    from fencepost.cli.terminal import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS, EXIT_NOTHING, EXIT_USAGE
    from fencepost.cli.transactions import transactions_app
    from fencepost.errors import FencepostError
except ModuleNotFoundError as problem:
    package = str(problem.name).partition(".")[0]
    raise SystemExit(f"fencepost: {package} is not installed: pip install 'fencepost[cli]'") from None
except KeyboardInterrupt:  # Ctrl-C before a command runs that could report it
    raise SystemExit("fencepost: interrupted") from None

__all__ = [
    "EXIT_CLEAN",
    "EXIT_ERROR",
    "EXIT_FINDINGS",
    "EXIT_NOTHING",
    "EXIT_USAGE",
    "app",
    "generate_command",
    "main",
    "run",
]

# Newer versions of Typer contain a copy of click, older ones import click: this is the base class in both.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

# The extra that installs a missing package.
_EXTRAS = {"sqlalchemy": "sql", "psycopg": "postgresql", "pymysql": "mariadb", "prometheus_client": "metrics"}
# The exit code of newer Typer versions for Ctrl-C. Older versions raise Abort.
_INTERRUPTED = 130

app = typer.Typer(
    name="fencepost",
    help="Deduplicate streams of events. (pid, epoch, partition, seq) identifies an event.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("dedup")(dedup_command)
app.command("audit")(audit_command)
app.command("advise")(advise_command)
app.add_typer(state_app, name="state")
app.add_typer(kafka_app, name="kafka")
app.add_typer(transactions_app, name="transactions")
app.add_typer(sql_app, name="sql")
app.command("serve")(serve_command)
app.command("generate")(generate_command)
app.command("doctor")(doctor_command)


def run() -> int:
    """Run the command of this process and return the exit code.

    pyarrow imports pandas, if installed, at its first conversion, to check for pandas input. The command line never has
    pandas input, and the import takes longer than a small job, so the import is blocked.
    """
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
    return main()


class _NoPandas:
    """An import hook that blocks pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the command line does not use pandas", name=name)


def main(arguments: list[str] | None = None) -> int:
    """Run one command, from the arguments or from those of this process, and return the exit code."""
    try:
        exit_code = app(arguments, standalone_mode=False) or EXIT_CLEAN
        sys.stdout.flush()
        return exit_code if exit_code != _INTERRUPTED else _complain("interrupted", EXIT_ERROR)
    except _UsageProblem as problem:
        return _complain(problem.format_message(), problem.exit_code)  # type: ignore[attr-defined]
    except ModuleNotFoundError as problem:
        package = str(problem.name).partition(".")[0]
        extra = _EXTRAS.get(package, "cli")
        return _complain(f"{package} is not installed: pip install 'fencepost[{extra}]'", EXIT_ERROR)
    except BrokenPipeError:
        # The reader of stdout closed the pipe. Flushing the remaining output at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except (FencepostError, OSError, ValueError) as problem:
        return _complain(str(problem), EXIT_ERROR)
    except (typer.Abort, KeyboardInterrupt):
        return _complain("interrupted", EXIT_ERROR)


def _complain(message: str, exit_code: int) -> int:
    print(f"fencepost: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _fencepost(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        raise typer.BadParameter("a command is missing: see fencepost --help")
