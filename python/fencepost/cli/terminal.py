"""Output of commands (tables on stdout, progress bars on stderr) and their exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fencepost.errors import DependencyError
from fencepost.progress import Progress, ignore
from fencepost.stopping import StopEvent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.table import Table

    from fencepost.report import Report

EXIT_CLEAN, EXIT_ERROR, EXIT_USAGE, EXIT_FINDINGS, EXIT_NOTHING = range(5)

Threads = Annotated[int | None, typer.Option(min=1, help="Number of threads. Default: the number of processors.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the report as one self-contained HTML file with charts.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def option(text: str) -> Any:
    """Declare an option; its name and default are those of the parameter."""
    return typer.Option(help=text)


def first_passed(options: Mapping[str, Any]) -> str | None:
    """Return the name of the first option that was passed, if any. `options`: name and value."""
    return next((name for name, value in options.items() if value), None)


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds as usage errors."""
    try:
        yield
    except kinds as problem:
        raise typer.BadParameter(str(problem)) from None


def kinds_of(texts: Sequence[str] | None, known: Sequence[str]) -> Iterator[str]:
    """Yield the kinds of findings that --fail-on names. Raises a usage error for an unknown one."""
    for text in texts or ():
        for kind in text.split(","):
            if kind not in known:
                raise typer.BadParameter(f"--fail-on {kind}: expected one of {', '.join(known)}")
            yield kind


def fail_if_found(found: Mapping[str, int], is_quiet: bool) -> None:
    """End the command if there are findings. `found`: their numbers by kind."""
    if found:
        fail(EXIT_FINDINGS, f"found: {', '.join(f'{kind} {count:,}' for kind, count in found.items())}", is_quiet)


def fail(code: int, message: str, is_quiet: bool) -> NoReturn:
    """End the command with an exit code, and with a message on stderr unless it is quiet."""
    if not is_quiet:
        print(f"fencepost: {message}", file=sys.stderr)
    raise typer.Exit(code)


def check_page(path: Path | None) -> None:
    """Check that a page can be written, if one is wanted, before the work starts.

    Raises a usage error or DependencyError.
    """
    if path is None:
        return
    from fencepost.pages.charts import is_installed

    if not path.parent.is_dir():
        raise typer.BadParameter(f"--html {path}: there is no folder {path.parent}")
    if not is_installed():
        raise DependencyError("vl_convert is not installed: pip install 'fencepost[report]'")


def write_page(report: Report, path: Path | None) -> None:
    """Write the page of a report, if one is wanted."""
    if path is not None:
        report._page().save(path)


@contextmanager
def quit_at_once() -> Iterator[None]:
    """During imports, make Ctrl-C end the process at once with a one-line message.

    An interrupt inside Python's import system may leave its lock held and the process hanging.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or Ctrl-C sets. A second signal has its default effect."""
    stop = StopEvent()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop_once(number: int, _: object) -> None:
        stop.set()
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, stop_once)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _quit(*_: object) -> None:
    os.write(2, b"fencepost: interrupted\n")
    os._exit(EXIT_ERROR)


@contextmanager
def steps(is_quiet: bool = False) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal. Yields the function to call with the progress."""
    if is_quiet or not sys.stderr.isatty():
        yield ignore
        return
    with quit_at_once():  # import rich only if there is a terminal
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

    console = Console(stderr=True, markup=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _StepBar(bars)


class _StepBar:
    """The bar of the current step, with its rows per second."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._begin("")

    def _begin(self, step: str) -> None:
        # A new bar: the speed of one step says nothing about the time that the next one takes.
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._step, self._done, self._began = step, 0, time.monotonic()
        self._task = self._bars.add_task(step, total=None, rate="")

    def __call__(self, step: str, done: int, total: int) -> None:
        if step != self._step or done < self._done:
            self._begin(step)
        self._done = done
        self._bars.update(self._task, completed=done, total=total or None)

    def show_rows(self, rows: int) -> None:
        """Show the mean rows per second of the step so far."""
        seconds = time.monotonic() - self._began
        self._bars.update(self._task, rate=f"{rows / seconds:,.0f} rows/s" if rows and seconds else "")


def show_table(names: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> None:
    """Print a table to stdout."""
    from rich.console import Console

    # Do not fit the table to the terminal: it would truncate values, also in redirected output.
    Console(width=10_000, markup=False, emoji=False, highlight=False).print(_table(names, lines))


def _table(names: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> Table:
    """Build a table: one name and several numbers per line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for place, name in enumerate(names):
        made.add_column(name, justify="right" if place else "left", no_wrap=True)
    for first, *others in lines:
        made.add_row(str(first), *(f"{it:,}" if isinstance(it, int) else str(it) for it in others))
    return made
