"""What commands show: tables on stdout, a bar on stderr, and the exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from rich.table import Table

EXIT_CLEAN, EXIT_ERROR, EXIT_USAGE, EXIT_FINDINGS, EXIT_NOTHING = range(5)


Threads = Annotated[int | None, typer.Option(min=1, help="As many as there are processors unless given.")]


Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write a page with charts: one file that loads nothing.")
]


def option(text: str) -> Any:
    """An option of which the name and the default are the parameter's."""
    return typer.Option(help=text)


def check_page(path: Path) -> None:
    """Refuse, before the work begins, a page that could not be written. Raises a usage error or FencepostError."""
    from fencepost.pages.charts import is_installed

    if not path.parent.is_dir():
        raise typer.BadParameter(f"--html {path}: there is no folder {path.parent}")
    if not is_installed():
        raise FencepostError("vl_convert is not installed: pip install 'fencepost[report]'")


@contextmanager
def quit_at_once() -> Iterator[None]:
    """While modules are imported and nothing is under way, Ctrl-C ends the process in one line.

    An interrupt within Python's import system may leave its lock held, and the process would wait for ever.
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
    """An event that SIGTERM or Ctrl-C sets. A second signal ends the process as if there were no such event."""
    stop = threading.Event()
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
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; gives a function that takes how much of `total` is done."""
    with _bar(is_quiet=False) as update:
        yield lambda done: update("events", done, total)


@contextmanager
def steps(is_quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr if that is a terminal; gives a function that takes (step, done, total), step after step."""
    with _bar(is_quiet) as update:
        yield lambda step, done, total: update(step, done, max(total, 1))


@contextmanager
def _bar(is_quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    if is_quiet or not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    with quit_at_once():  # without a terminal nothing of it is needed
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, done, total: bar.update(task, description=step, completed=done, total=total)


def show_table(names: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> None:
    """A table on stdout."""
    from rich.console import Console

    # As wide as it needs: what a narrow terminal cuts off would be lost in a file.
    Console(width=10_000, markup=False, emoji=False, highlight=False).print(_table(names, lines))


def _table(names: Iterable[str], lines: Iterable[tuple[Any, ...]]) -> Table:
    """A table of a name and numbers per line."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for place, name in enumerate(names):
        made.add_column(name, justify="right" if place else "left", no_wrap=True)
    for first, *others in lines:
        made.add_row(str(first), *(f"{it:,}" if isinstance(it, int) else str(it) for it in others))
    return made
