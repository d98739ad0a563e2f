"""EndTxn in the first version of the protocol, as a table: nothing of it is in the package."""

from __future__ import annotations

from support.coordinator_rulebook import Known, Request, Result

OUTCOMES = {
    "Ongoing": ("OK", "OK"),
    "CompleteCommit": ("OK", "TXN"),
    "CompleteAbort": ("TXN", "OK"),
    "PrepareCommit": ("CONCURRENT", "TXN"),
    "PrepareAbort": ("TXN", "CONCURRENT"),
    "Empty": ("TXN", "TXN"),
}
"""Commit, abort."""


def end(before: Known, request: Request) -> tuple[Result, Known]:
    if request.pid != before.pid:
        return Result("MAPPING"), before
    if request.epoch != before.epoch:
        return Result("FENCED"), before
    name = OUTCOMES[before.state][request.name == "abort"]
    if before.state != "Ongoing":
        return Result(name, (before.pid, before.epoch) if name == "OK" else None), before
    return Result(name), before._replace(state="PrepareCommit" if request.name == "commit" else "PrepareAbort")
