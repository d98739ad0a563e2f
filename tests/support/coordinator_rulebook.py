"""The reader of the coordinator's rule book: turns the pages of `spec/coordinator` into cases.

`spec/coordinator/README.md` explains the format. A misspelt line fails instead of passing unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.rule_pages import cases_of, cells

PAGES = Path(__file__).parents[2] / "spec" / "coordinator"
NONE = -1
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
ERRORS = ("CONCURRENT", "FENCED", "MAPPING", "TXN", "ABORTABLE", "INVALID_REQUEST", "INVALID_TIMEOUT", "ILLEGAL")
HEADER = ["row", "before", "request", "result", "after", "why"]


class Known(NamedTuple):
    """What is known of a transactional id."""

    pid: int
    epoch: int
    last_epoch: int = NONE
    previous_pid: int = NONE
    next_pid: int = NONE
    state: str = "Empty"
    partitions: frozenset[str] = frozenset()


class Request(NamedTuple):
    name: str
    pid: int = NONE
    epoch: int = NONE
    partitions: frozenset[str] = frozenset()
    timeout_ms: int = 60_000


class Result(NamedTuple):
    """OK or an error's short name; the identity that was given, where it is stated."""

    name: str
    identity: tuple[int, int] | None = None


@dataclass
class Step:
    line: int
    row: str
    request: Request
    result: Result
    after: Known | None
    """None: the same as before, or not stated."""
    is_same: bool


@dataclass
class Case:
    """A state, None for an id that is not known, and requests one after the other."""

    page: str
    line: int
    before: Known | None
    protocol: int
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def cases(pages: Path = PAGES) -> list[Case]:
    return cases_of(pages, read_page)


def read_page(page: str, text: str) -> list[Case]:
    found: list[Case] = []
    header: list[str] = []
    protocol = 2
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("protocol:"):
            protocol = int(line.removeprefix("protocol:"))
        if line.startswith("#"):
            protocol = 2
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells(line)
        elif header == HEADER and not line.startswith("|-"):
            row, before, request, result, after, _ = cells(line)
            if before:
                found.append(Case(page, number, None if before == "new" else known(before), protocol))
            is_same = after == "same"
            then = known(after) if after and not is_same else None
            found[-1].steps.append(Step(number, row, _request(request), _result(result), then, is_same))
    return found


def may_come_from() -> dict[str, tuple[int, set[str]]]:
    """The page of states: the number of each, and its possible predecessors."""
    rows = [cells(line) for line in (PAGES / "states.md").read_text("utf-8").splitlines() if line.startswith("|")]
    assert rows[0] == ["state", "id", "may come from"]
    return {state: (int(number), set(before.split(", "))) for state, number, before in rows[2:]}


_KNOWN = re.compile(
    r"(\d+)/(\d+)(?: last (\d+))?(?: previous (\d+))?(?: next (\d+))? (\w+)(?: \{([a-z ]+)\})?",
)


def known(text: str) -> Known:
    match = _KNOWN.fullmatch(text)
    assert match, f"not a state: {text}"
    *numbers, state, partitions = match.groups()
    assert state in STATES, text
    pid, epoch, last_epoch, previous_pid, next_pid = (NONE if it is None else int(it) for it in numbers)
    return Known(pid, epoch, last_epoch, previous_pid, next_pid, state, frozenset((partitions or "").split()))


_WITH_IDENTITY = re.compile(r"(\w+)(?: \((\d+), (\d+)\))?((?: [a-z])*)")


def _request(text: str) -> Request:
    if text in ("complete", "time out", "expire", "bump", "rotate", "fence", "init", "init empty"):
        return Request(text)
    if text.startswith("init timeout="):
        return Request("init", timeout_ms=int(text.removeprefix("init timeout=")))
    match = _WITH_IDENTITY.fullmatch(text)
    assert match, f"not a request: {text}"
    name, pid, epoch, partitions = match.groups()
    assert name in ("init", "add", "verify", "commit", "abort"), text
    assert pid is not None, text
    return Request(name, int(pid), int(epoch), frozenset(partitions.split()))


def _result(text: str) -> Result:
    match = _WITH_IDENTITY.fullmatch(text)
    assert match, f"not a result: {text}"
    name, pid, epoch, _ = match.groups()
    assert name in ("OK", *ERRORS), text
    return Result(name, None if pid is None else (int(pid), int(epoch)))
